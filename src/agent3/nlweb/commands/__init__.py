"""Commands in natural language: to an action of an interface (``resolve``), or straight to a page (``drive``)."""

from __future__ import annotations

from agent3.nlweb.commands.driving.driving import Driven, drive
from agent3.nlweb.commands.resolving import Candidate, Resolution, resolve, resolve_async

__all__ = ["Candidate", "Driven", "Resolution", "drive", "resolve", "resolve_async"]
