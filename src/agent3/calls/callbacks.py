"""Callbacks: webhooks to the address that came with a call, when its job ends, asks or makes progress.

The address is kept in the call and so in the job; what is sent is written into the outbox in the very transaction that
ends the turn. A token that the caller gave is sealed before anything of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from agent3.calls.jobs import Job
from agent3.calls.outbox import Delivery, Outbox, Receipt
from agent3.calls.outcomes import describe_job
from agent3.env import Env
from agent3.errors import ValidationError
from agent3.model import Event, Principal, encode
from agent3.observe.logs import get as logger
from agent3.storage import Transaction

__all__ = ["CALLBACK", "EVENTS", "Callbacks"]

log = logger("webhooks")

CALLBACK = "callback"
"""The key in a call's ``meta``."""
EVENTS = ("done", "failed", "canceled", "needs", "progress")
"""What a callback can report; without a choice, all but the last."""

_LARGEST = 1_048_576
"""Bytes of a body. A larger result is left out: the receiver fetches the job."""
_CUT = 2_000
_PROGRESS_EVERY = 1.0
"""Seconds between two reports of progress."""
_TOKEN = re.compile(r"[!-~]{1,2048}")


class _Callback(Struct, frozen=True, omit_defaults=True):
    """What a call keeps of the callback that its caller asked for."""

    url: str
    events: tuple[str, ...] = EVENTS[:-1]
    sealed: str = ""


class Callbacks:
    """Takes addresses from callers, and posts to them through the outbox. A ``JobObserver``."""

    def __init__(self, outbox: Outbox, env: Env):
        self._outbox = outbox
        self._env = env

    def start(self) -> None:
        """Deliver from now on in this process too, until ``aclose``."""
        self._outbox.start()

    async def aclose(self) -> None:
        """Let deliveries under way finish for a while, and give back the rest."""
        await self._outbox.aclose()

    async def register(self, principal: Principal, given: Mapping[str, Any]) -> dict[str, Any]:
        """What goes into the call's ``meta``, once its address may be reached and there is room.

        ValidationError, SecurityError, SetupError or QueueFull say why not; a token is in none of them.
        """
        url, token = given["url"], given.get("token")
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValidationError("callback.token must have 1 to 2048 ASCII characters without spaces.")
        await self._outbox.check(principal.id, url)
        events = tuple(event for event in EVENTS if event in given.get("events", EVENTS[:-1]))
        sealed = ""
        if token is not None:
            sealed = await self._outbox.seal(principal.id, url, {"Authorization": f"Bearer {token}"})
        callback: dict[str, Any] = msgspec.to_builtins(_Callback(url, events, sealed))
        return callback

    def concerns(self, job: Job) -> bool:
        """Whether somebody wants to hear of this job."""
        return _find_callback(job) is not None

    async def on_turn_end(self, tx: Transaction, job: Job) -> None:
        """Report that a job has ended or asks, if that was wanted."""
        callback = _find_callback(job)
        if callback is not None and job.status in callback.events:
            await self._post(tx, job, callback, job.status, job.seq, _describe(job))

    async def on_events(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Report progress, if that was wanted: the latest, not too often, and not while an earlier report waits.

        Progress is worth little when it is late, and must not take the room of what was promised.
        """
        callback = _find_callback(job)
        if callback is None or "progress" not in callback.events:
            return
        latest = next((event for event in reversed(events) if event.kind in ("status", "progress")), None)
        if latest is not None and await self._outbox.is_quiet(tx, job.id, _PROGRESS_EVERY):
            data: dict[str, Any] = {
                "id": job.id,
                "status": "working",
                "turn": job.turn,
                "agent": job.call.agent,
                "capability": job.call.capability,
                "seq": latest.seq,
            }
            progress = {"text": latest.text, "done": latest.done, "total": latest.total}
            data |= {name: value for name, value in progress.items() if value is not None}
            await self._post(tx, job, callback, "progress", latest.seq, data)

    async def of(self, job: Job) -> list[Receipt]:
        """What was told of a job and what became of it, the oldest first."""
        return await self._outbox.receipts(job.id)

    async def _post(
        self, tx: Transaction, job: Job, callback: _Callback, event: str, seq: int, data: dict[str, Any]
    ) -> None:
        at = datetime.fromtimestamp(self._env.now(), UTC).isoformat(timespec="milliseconds")
        body = encode({"type": f"call.{event}", "timestamp": at, "data": data}).decode()
        delivery = Delivery(callback.url, body, job.owner, sealed=callback.sealed)
        await self._outbox.post(tx, delivery, id=f"cb_{job.id}_{seq}", subject=job.id, event=event)


def _find_callback(job: Job) -> _Callback | None:
    """What the caller asked for; None also where that cannot be read, since a job must end all the same."""
    if (kept := job.call.meta.get(CALLBACK)) is None:
        return None
    try:
        return msgspec.convert(kept, _Callback)
    except msgspec.ValidationError as error:
        log.error("job %s: its callback settings cannot be read, so none is sent: %s", job.id, error)
        return None


def _describe(job: Job) -> dict[str, Any]:
    """The job as its owner sees it; without its result, if that is too large to be sent."""
    whole = describe_job(job)
    if len(encode(whole)) <= _LARGEST:
        return whole
    small = {name: value for name, value in whole.items() if name not in ("result", "details", "questions")}
    if "error" in small:
        small["error"] = small["error"][:_CUT]
    return small | {"truncated": True}
