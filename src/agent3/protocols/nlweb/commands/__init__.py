"""Commands in natural language: to an action of an interface (``resolve``), or straight to a page (``drive``)."""

from __future__ import annotations

from agent3.protocols.nlweb.commands.follow_ups import joined, leans
from agent3.protocols.nlweb.commands.resolution import Candidate, Resolution, resolve, resolve_async
from agent3.protocols.nlweb.commands.understanding import understand
from agent3.protocols.nlweb.driver.driver import Driven, drive

__all__ = [
    "Candidate",
    "Driven",
    "Resolution",
    "drive",
    "joined",
    "leans",
    "resolve",
    "resolve_async",
    "understand",
]
