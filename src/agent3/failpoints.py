"""Failpoints: named places where a fault can be switched on from outside, to test how the rest copes.

``AGENT3_FAILPOINTS="ledger.write=error:0.1,storage.commit=kill:#40,call.before_send=delay:50ms"`` arms them for a
process; ``AGENT3_FAILPOINTS_SEED`` makes the chances repeatable. Unarmed, as always outside tests, a failpoint costs
one comparison. It knows nothing of what happens at its places.
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
    "storage.committed": "after SQLite has committed a group, before the callers are told",
    "postgres.commit": "before a transaction on PostgreSQL is committed",
    "postgres.committed": "after PostgreSQL has committed it, before the caller is told",
    "queue.commit": "when a batch of operations on a queue is done, before its transaction is committed",
    "queue.committed": "after it is committed, before the callers are told",
    "outbox.deliver": "before a webhook is sent",
    "outbox.delivered": "after its receiver has accepted it, before that is recorded",
    "migration.statement": "before each statement of a migration, and before the row that records it",
    "ledger.write": "before a row of the ledger is handed to storage",
    "call.before_send": "before an attempt is handed to its connector",
    "call.after_send": "after a connector has answered, before the caller is told",
    "job.claim": "before a job is claimed or taken over",
    "backup.placed": "when a restore has written everything, before the new database takes its place",
}
"""Every place, and when it is passed."""

_COMMITTED = frozenset({"storage.committed", "postgres.committed", "queue.committed"})
"""Places where an error would be a lie: what was committed is stored."""
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_WHEN = re.compile(r"#[1-9]\d*|\d*\.?\d+")


@dataclass(slots=True)
class _Point:
    """One armed place: what happens there, and how likely or at which passage."""

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
            raise error(f"Failpoint {self.name} is armed and was triggered. Unset AGENT3_FAILPOINTS to disarm it.")


class Failpoints:
    """The armed places of a process. Safe from any thread."""

    def __init__(self, points: Mapping[str, _Point]):
        self._points = dict(points)

    def hit(self, name: str, error: type[Agent3Error]) -> None:
        """Pass a place on a thread that may block."""
        point = self._points.get(name)
        if point is not None and point.strikes():
            point.strike(error)
            if point.seconds:
                time.sleep(point.seconds)

    async def reach(self, name: str, error: type[Agent3Error]) -> None:
        """Pass a place in an event loop, without blocking it."""
        point = self._points.get(name)
        if point is not None and point.strikes():
            point.strike(error)
            if point.seconds:
                await asyncio.sleep(point.seconds)


def read(text: str, seed: int = 0) -> Failpoints | None:
    """Parse failpoints, None for an empty text; SetupError for an unknown place or effect.

    ``PLACE=EFFECT[:WHEN]``, separated by commas. EFFECT is ``error``, ``kill`` or ``delay:50ms``; WHEN is a chance
    from 0 to 1, or ``#3`` for the third passage only. Without WHEN it strikes every time. Each place has its own random
    numbers, so that what happens at one is not changed by the others.
    """
    points: dict[str, _Point] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, rest = entry.partition("=")
        effect, *more = rest.split(":")
        if name not in POINTS:
            raise SetupError(f"AGENT3_FAILPOINTS: unknown place {name!r}. Known are {', '.join(sorted(POINTS))}.")
        seconds = 0.0
        if effect == "delay":
            delay = _DELAY.fullmatch(more.pop(0) if more else "")
            if delay is None:
                raise SetupError(f"AGENT3_FAILPOINTS: {entry!r} has no duration. Write it like delay:50ms or delay:2s.")
            seconds = float(delay[1]) / (1_000 if delay[2] == "ms" else 1)
        when = more.pop(0) if more else "1"
        if name in _COMMITTED and effect == "error":
            raise SetupError(f"AGENT3_FAILPOINTS: {name} can no longer fail; use kill or delay.")
        if effect not in ("error", "kill", "delay") or more or not _WHEN.fullmatch(when):
            raise SetupError(
                f"AGENT3_FAILPOINTS: {entry!r} cannot be read. Write it like ledger.write=error:0.1 or {name}=kill:#3."
            )
        only = int(when[1:]) if when.startswith("#") else None
        chance = 0.0 if only is not None else float(when)
        dice = random.Random(f"{seed}/{name}")  # noqa: S311 - repeatable on purpose
        points[name] = _Point(name, effect, seconds, chance, only, dice)  # type: ignore[arg-type] # checked above
    return Failpoints(points) if points else None


def arm(text: str, seed: int = 0) -> None:
    """Arm this process; an empty text disarms it."""
    global armed
    armed = read(text, seed)
    if armed is not None:
        log.warning("failpoints are armed and will cause failures on purpose: %s, seed %d", text, seed)


def disarm() -> None:
    """Disarm this process."""
    arm("")


def hit(name: str, error: type[Agent3Error] = StorageError) -> None:
    """Pass a place on a thread that may block: the writer of a database, a command."""
    if armed is not None:
        armed.hit(name, error)


async def reach(name: str, error: type[Agent3Error] = StorageError) -> None:
    """Pass a place in an event loop. On the path of every call, test ``armed`` first: a coroutine is not free."""
    if armed is not None:
        await armed.reach(name, error)


armed: Failpoints | None = None
"""What may strike in this process; None, as always outside tests, when nothing may."""
if _wanted := os.environ.get("AGENT3_FAILPOINTS"):
    _seed = os.environ.get("AGENT3_FAILPOINTS_SEED", "0")
    if not _seed.removeprefix("-").isdecimal():
        raise SetupError(f"AGENT3_FAILPOINTS_SEED is {_seed!r}; it must be a whole number.")
    arm(_wanted, int(_seed))
