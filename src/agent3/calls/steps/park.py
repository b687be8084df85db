"""``park``: turns a function that waits for an answer into one that returns its question (calls/parking.py)."""

from __future__ import annotations

from agent3.calls.step import Aim, Parts, Step
from agent3.model import Handler

__all__ = ["Parking"]


class Parking(Step):
    """Runs interactive capabilities in a frame of their own."""

    name = "park"

    def __init__(self, parts: Parts):
        self._park = parts.park

    def idle(self, aim: Aim) -> bool:
        return not aim.capability.interactive

    def around(self, inner: Handler) -> Handler:
        return self._park.around(inner)
