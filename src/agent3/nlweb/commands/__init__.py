"""Commands in natural language: to an action of an interface (``resolve``), or straight to a page (``drive``)."""

from __future__ import annotations

from agent3.nlweb.commands.driving.driving import Driven, drive
from agent3.nlweb.commands.following import joined, leans
from agent3.nlweb.commands.resolving import Candidate, Resolution, resolve, resolve_async
from agent3.nlweb.commands.understanding import understand

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
