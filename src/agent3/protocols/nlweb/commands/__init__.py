"""Commands in natural language: to an action of an interface (``resolve``), or straight to a page (``drive``)."""

from __future__ import annotations

from agent3.protocols.nlweb.commands.follow_ups import joined, leans
from agent3.protocols.nlweb.commands.resolution import Candidate, Resolution, resolve, resolve_async
from agent3.protocols.nlweb.commands.understanding import understand

__all__ = [
    "Candidate",
    "Resolution",
    "joined",
    "leans",
    "resolve",
    "resolve_async",
    "understand",
]
