"""Failpoints: named places where a fault can be switched on from outside, to see what the rest makes of it.

``AGENT3_FAILPOINTS="ledger.write=error:0.1,storage.commit=kill:#40,call.before_send=delay:50ms"`` arms them for a
process; ``AGENT3_FAILPOINTS_SEED`` makes its chances repeatable. Unarmed, which is always outside tests, a place costs
one look at a name. It knows nothing of what happens at its places.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent3.errors import Agent3Error, SetupError, StorageError

__all__ = ["POINTS", "Failpoints", "arm", "armed", "disarm", "hit", "reach", "read"]

log = logging.getLogger("agent3.failpoints")

Effect = Literal["error", "kill", "delay"]

POINTS: dict[str, str] = {
    "storage.commit": "before SQLite commits a group of writes",
    "storage.committed": "after SQLite has committed a group, before anybody is told",
    "postgres.commit": "before a transaction on PostgreSQL is committed",
    "postgres.committed": "after PostgreSQL has committed it, before anybody is told",
    "queue.commit": "when a group of operations on a queue is done, before its transaction is committed",
    "queue.committed": "after it is committed, before those who asked for them are told",
    "outbox.deliver": "before a webhook is sent",
    "outbox.delivered": "after its receiver has taken it, before that is written down",
    "migration.statement": "before each statement of a migration, and before the row that records it",
    "ledger.write": "before a row of the ledger is handed to storage",
    "call.before_send": "before an attempt is handed to its connector",
    "call.after_send": "after a connector has answered, before anybody is told",
    "job.claim": "before a job is claimed or seized",
    "backup.placed": "when a restore has written everything down, before the new database takes its place",
}
"""Every place, and when it is passed."""

_TOLD = frozenset({"storage.committed", "postgres.committed", "queue.committed"})
"""Places behind which an error would be a lie: what was committed is there."""
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_WHEN = re.compile(r"#[1-9]\d*|\d*\.?\d+")


@dataclass(slots=True)
class _Point:
    """One armed place: what happens there, how likely, or which time it is passed."""

    name: str
    effect: Effect
    seconds: float
    chance: float
    only: int | None
    dice: random.Random
    passed: int = 0

    def strikes(self) -> bool:
        self.passed += 1
        return self.passed == self.only if self.only is not None else self.dice.random() < self.chance

    def strike(self, error: type[Agent3Error]) -> None:
        log.warning("failpoint %s: %s", self.name, self.effect)
        if self.effect == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.effect == "error":
            raise error(f"Failpoint {self.name} is armed and struck. Unset AGENT3_FAILPOINTS to be rid of it.")


class Failpoints:
    """The armed places of a process. Safe from any thread."""

    def __init__(self, points: Mapping[str, _Point]):
        self._points = dict(points)

    def hit(self, name: str, error: type[Agent3Error]) -> None:
        """Pass a place on a thread that may be blocked."""
        point = self._points.get(name)
        if point is not None and point.strikes():
            point.strike(error)
            if point.seconds:
                time.sleep(point.seconds)

    async def reach(self, name: str, error: type[Agent3Error]) -> None:
        """Pass a place in an event loop, which goes on meanwhile."""
        point = self._points.get(name)
        if point is not None and point.strikes():
            point.strike(error)
            if point.seconds:
                await asyncio.sleep(point.seconds)


def read(text: str, seed: int = 0) -> Failpoints | None:
    """The failpoints that a text names, None for an empty one; SetupError for a name or an effect that is none.

    ``PLACE=EFFECT[:WHEN]``, separated by commas. EFFECT is ``error``, ``kill`` or ``delay:50ms``; WHEN is a chance
    from 0 to 1, or ``#3`` for the third time only. Without WHEN it strikes every time. Each place has dice of its own,
    so what one does is not changed by what others meet.
    """
    points = [_point(one.strip(), seed) for one in text.split(",") if one.strip()]
    return Failpoints({one.name: one for one in points}) if points else None


def _point(text: str, seed: int) -> _Point:
    name, _, rest = text.partition("=")
    effect, *more = rest.split(":")
    if name not in POINTS:
        raise SetupError(f"AGENT3_FAILPOINTS: there is no place {name!r}. There are {', '.join(sorted(POINTS))}.")
    seconds = _seconds(text, more.pop(0) if more else "") if effect == "delay" else 0.0
    when = more.pop(0) if more else "1"
    if name in _TOLD and effect == "error":
        raise SetupError(f"AGENT3_FAILPOINTS: {name} cannot fail any more; give kill or delay.")
    if effect not in ("error", "kill", "delay") or more or not _WHEN.fullmatch(when):
        raise SetupError(
            f"AGENT3_FAILPOINTS: {text!r} is none. Write it like ledger.write=error:0.1 or {name}=kill:#3."
        )
    only = int(when[1:]) if when.startswith("#") else None
    chance = 0.0 if only is not None else float(when)
    dice = random.Random(f"{seed}/{name}")  # noqa: S311 - repeatable on purpose
    return _Point(name, effect, seconds, chance, only, dice)  # type: ignore[arg-type] # looked at above


def _seconds(text: str, given: str) -> float:
    match = _DELAY.fullmatch(given)
    if match is None:
        raise SetupError(f"AGENT3_FAILPOINTS: {text!r} says no time. Write it like delay:50ms or delay:2s.")
    return float(match[1]) / (1_000 if match[2] == "ms" else 1)


def arm(text: str, seed: int = 0) -> None:
    """Arm this process; an empty text disarms it."""
    global armed
    armed = read(text, seed)
    if armed is not None:
        log.warning("failpoints are armed, and things will break on purpose: %s, seed %d", text, seed)


def disarm() -> None:
    """Let nothing strike any more."""
    arm("")


def hit(name: str, error: type[Agent3Error] = StorageError) -> None:
    """Pass a place on a thread that may be blocked: the writer of a database, a command."""
    if armed is not None:
        armed.hit(name, error)


async def reach(name: str, error: type[Agent3Error] = StorageError) -> None:
    """Pass a place in an event loop. On the path of every call, look at ``armed`` first: a coroutine is not free."""
    if armed is not None:
        await armed.reach(name, error)


def _seed() -> int:
    given = os.environ.get("AGENT3_FAILPOINTS_SEED", "0")
    try:
        return int(given)
    except ValueError:
        raise SetupError(f"AGENT3_FAILPOINTS_SEED is {given!r}, which is no whole number.") from None


armed: Failpoints | None = None
"""What may strike in this process; None, as always outside tests, when nothing may."""
if _wanted := os.environ.get("AGENT3_FAILPOINTS"):
    arm(_wanted, _seed())
