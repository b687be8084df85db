"""Dead letters for the operator: those that calls left and those of the queues, under one roof.

An id says where a letter lies: ``call:ID``, or ``queue:NAME:ID``, the name escaped as in an address. Nothing here
shows a secret, and nothing is sent that the operator did not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.calls.dead_letters import DeadLetter, DeadLetters
from agent3.calls.jobs import Job
from agent3.calls.outcomes import error_of, is_refusal
from agent3.calls.runner import Target
from agent3.env import Env
from agent3.errors import Agent3Error, Conflict, NotFound, ValidationError
from agent3.gateway.gateway import Caller, Gateway
from agent3.model import Call, Capability, Failed, Needs, Outcome, Working, encode
from agent3.observe.logs import tidy
from agent3.observe.metrics import Metrics
from agent3.queue import Attempt, Letter, Queue, Rules
from agent3.storage import Database, Row

__all__ = ["Letters", "Replayed", "Wanted", "measure", "replay"]

_NO_BOUND = 2**53
MOST = 1_000


class Wanted(Struct, frozen=True):
    """Which letters to list. An agent or a code are things of calls, so with either the queues are left out."""

    agent: str | None = None
    code: str | None = None
    since: float | None = None
    queue: str | None = None
    replayed: bool = False
    limit: int = 50


class Replayed(Struct, frozen=True):
    """What became of one letter that was sent again."""

    id: str
    status: str
    job: str | None = None
    code: str | None = None
    message: str | None = None


class Letters:
    """All dead letters of a database. A gateway may run on it meanwhile."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env
        self.calls = DeadLetters(database, env)

    async def find(self, wanted: Wanted) -> list[dict[str, Any]]:
        """The latest first, each in a few words."""
        if not 1 <= wanted.limit <= MOST:
            raise ValidationError(f"--limit is {wanted.limit}; give one from 1 to {MOST}.")
        found = [] if wanted.queue else [_of_call(one) for one in await self._of_calls(wanted)]
        if wanted.agent is None and wanted.code is None:
            found += [_of_queue(name, one) for name, one in await self._of_queues(wanted)]
        found.sort(key=lambda one: one["at"], reverse=True)
        return found[: wanted.limit]

    async def show(self, letter: str) -> dict[str, Any]:
        """Everything that is known of one letter, without secrets."""
        kind, name, number = _place(letter)
        if kind == "queue":
            found = await self._in_queue(name, number)
            history = [{"at": one.at, "attempt": one.number, "reason": one.reason} for one in found.history]
            more = {"put": found.put, "priority": found.priority, "history": history, "body": _read(found.body)}
            return dict(tidy(_of_queue(name, found) | more))
        kept, call, outcome = await self.calls.get(number)
        more = {"call": _plain(call), "outcome": _plain(outcome), "mayHaveRun": outcome.sent}
        return dict(tidy(_of_call(kept) | more))

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters for ever; how many there were. An id that is none spoils it before anything is deleted."""
        dropped = 0
        for kind, name, number in [_place(one) for one in letters]:
            dropped += await (self._queue(name).drop([number]) if kind == "queue" else self.calls.drop([number]))
        return dropped

    async def queues(self) -> list[str]:
        """The queues that have dead letters."""
        rows = await self._database.all("SELECT DISTINCT queue FROM queue_messages WHERE state = 'dead' ORDER BY queue")
        return [row["queue"] for row in rows]

    async def line_up(self, name: str, number: str) -> None:
        """Give a message back to its queue, with all its attempts; NotFound when it is dead no more."""
        if not await self._queue(name).replay([number]):
            raise _gone(_in(name, number))

    def _queue(self, name: str) -> Queue:
        """A queue in the operator's hands. Its bound is for those who put: what was in it before finds its place."""
        return Queue(self._database, name, Rules(bound=_NO_BOUND), env=self._env, metrics=Metrics())

    async def _of_calls(self, wanted: Wanted) -> list[DeadLetter]:
        return await self.calls.latest(
            wanted.limit, agent=wanted.agent, code=wanted.code, since=wanted.since, replayed=wanted.replayed
        )

    async def _of_queues(self, wanted: Wanted) -> list[tuple[str, Letter]]:
        names = [wanted.queue] if wanted.queue else await self.queues()
        return [(name, one) for name in names for one in await self._all_in(name) if _died(one) >= (wanted.since or 0)]

    async def _all_in(self, name: str) -> list[Letter]:
        """The latest letters of a queue, without their bodies: each may be large, and a list shows none."""
        rows = await self._database.all(
            f"SELECT {_ENVELOPE} FROM queue_messages WHERE queue = ? AND state = 'dead' ORDER BY seq DESC LIMIT ?",
            name,
            MOST,
        )
        return [_letter(row, b"") for row in rows]

    async def _in_queue(self, name: str, number: str) -> Letter:
        row = await self._database.one(
            f"SELECT {_ENVELOPE}, body FROM queue_messages WHERE queue = ? AND state = 'dead' AND id = ?", name, number
        )
        if row is None:
            raise _gone(_in(name, number))
        return _letter(row, bytes(row["body"]))


_ENVELOPE = "seq, id, context, priority, attempts, put, history"


def _letter(row: Row, body: bytes) -> Letter:
    history = msgspec.json.decode(row["history"], type=list[tuple[float, int, str]]) if row["history"] else []
    told = {name: row[name] for name in ("id", "context", "priority", "attempts", "seq", "put")}
    return Letter(**told, body=body, history=tuple(Attempt(*one) for one in history))


async def replay(gateway: Gateway, letter: str, *, again: bool = False, twice: bool = False) -> Replayed:
    """Send one letter again, as the caller that sent it first and under its key, so that nothing is done twice.

    A call goes through all steps of this gateway, from the start of its conversation; a message goes back to its queue.
    It is marked when it was sent: if it failed for the same kind of reason, it has left a new letter. Refused before it
    was sent (a rule, a limit, an agent that is gone) it stays as it was. Conflict when it was replayed before, unless
    ``again``, and when it may have run already and its target could not tell, unless it may run ``twice``.
    """
    letters = Letters(gateway.core.database, gateway.core.env)
    kind, name, number = _place(letter)
    if kind == "queue":
        await letters.line_up(name, number)
        return Replayed(letter, "queued")
    kept, call, failed = await letters.calls.get(number)
    if kept.replayed is not None and not again:
        raise Conflict(f"Dead letter {letter} was sent again already. Give --again to send it once more.")
    try:
        target = await gateway.lookup(call.agent, call.capability)
        if failed.sent and not twice and not _told_apart(target[1], call):
            raise Conflict(f"Dead letter {letter} may have run already: it was sent, and then {_TWICE}")
        outcome = await _sent_again(gateway, target, kept, call)
    except Agent3Error as wrong:
        return Replayed(letter, "refused", code=wrong.code, message=wrong.message)
    if not _refused(outcome):
        await letters.calls.mark(number)
    return _told(letter, outcome)


_TWICE = (
    "no answer came. Ask its target. If it was not done, or may be done twice, send it with --may-run-twice;"
    " else drop it: agent3 dlq drop."
)


def _told_apart(capability: Capability, call: Call) -> bool:
    """Whether doing it again cannot do it twice: by its nature, or since its target had a key and honours it."""
    hints = capability.hints
    honoured = bool(capability.routes) and all(route.meta.get("keys") for route in capability.routes)
    return hints.idempotent or hints.read_only or (call.key is not None and honoured)


async def _sent_again(gateway: Gateway, target: Target, kept: DeadLetter, call: Call) -> Outcome:
    """Run it under the key that it had, which then stands for this run: for its target, and for a caller who repeats.

    Whoever was first under that key, another operator or the caller itself, has done it, and that is the outcome. A
    call without a key gets one of its letter.
    """
    job = await _job_of(gateway, call)
    came = call if job is None else job.call
    if came.key is None:
        came = replace(came, key=_key_of(kept))
    else:
        holder = await gateway.core.jobs.find_by_key(came)
        if holder is not None and holder.ended and (holder.id == call.job or holder.created <= (kept.replayed or 0.0)):
            await gateway.core.jobs.release_key(holder)
    first = Call(
        id=gateway.core.env.id(),
        principal=came.principal,
        agent=came.agent,
        capability=came.capability,
        input=came.input,
        parts=came.parts,
        input_mode=came.input_mode,
        context=came.context,
        key=came.key,
        timeout=came.timeout,
        retries=came.retries,
        routes=target[1].routes,
        meta=came.meta,
    )
    return await gateway.start(Caller(came.principal, "dlq"), first, target)


async def _job_of(gateway: Gateway, call: Call) -> Job | None:
    """The job that the call was: it has the call as it came, by which its key is known again."""
    try:
        return None if call.job is None else await gateway.core.jobs.get(call.principal.id, call.job)
    except NotFound:
        return None


def _key_of(kept: DeadLetter) -> str:
    return f"dlq:{kept.id}" if kept.replayed is None else f"dlq:{kept.id}:{kept.replayed:.3f}"


def _refused(outcome: Outcome) -> bool:
    """Whether it was not sent at all; what the target itself answers, in whichever words, is an answer."""
    unkept = isinstance(outcome, Failed) and outcome.code == "storage_failed" and not outcome.asked
    return unkept or is_refusal(outcome)


def _told(letter: str, outcome: Outcome) -> Replayed:
    if isinstance(outcome, Failed):
        wrong = error_of(outcome)
        status = "refused" if _refused(outcome) else "failed"
        return Replayed(letter, status, code=outcome.code, message=wrong.message)
    job = outcome.job if isinstance(outcome, Needs | Working) else None
    return Replayed(letter, "needs" if isinstance(outcome, Needs) else "working" if job else "done", job)


async def measure(database: Database, env: Env, metrics: Metrics) -> None:
    """Bring the levels of dead letters up to date: how many wait, and how old the oldest is."""
    letters = Letters(database, env)
    waiting = await letters.calls.waiting()
    _level(metrics, "calls", waiting.count, env.now() - waiting.oldest if waiting.oldest is not None else 0.0)
    rows = await database.all(
        "SELECT queue, COUNT(*) AS count, MIN(put) AS oldest FROM queue_messages WHERE state = 'dead' GROUP BY queue"
    )
    total = sum(row["count"] for row in rows)
    oldest = min((row["oldest"] for row in rows), default=None)
    _level(metrics, "queues", total, env.now() - oldest if oldest is not None else 0.0)


def _level(metrics: Metrics, place: str, count: int, age: float) -> None:
    metrics.dead_letters_waiting.set((place,), count)
    metrics.dead_letters_oldest.set((place,), max(0.0, age))


# In words


def _place(letter: str) -> tuple[str, str, str]:
    """Where a letter lies: the kind of place, the name of the queue, the id there."""
    kind, _, rest = letter.partition(":")
    if kind == "call" and rest:
        return kind, "", rest
    name, _, number = rest.partition(":")
    if kind == "queue" and name and number:
        return kind, unquote(name), number
    raise ValidationError(f"{letter[:100]!r} is no id of a dead letter. Take one that agent3 dlq list prints.")


def _in(queue: str, number: str) -> str:
    return f"queue:{quote(queue, safe='')}:{number}"


def _gone(letter: str) -> NotFound:
    return NotFound(f"There is no dead letter {letter[:200]!r}. It may have been replayed, dropped, or have expired.")


def _of_call(one: DeadLetter) -> dict[str, Any]:
    return {"place": "calls", **msgspec.to_builtins(one), "id": f"call:{one.id}"}


def _of_queue(name: str, one: Letter) -> dict[str, Any]:
    return {
        "id": _in(name, one.id),
        "place": f"queue {name}",
        "at": _died(one),
        "context": one.context,
        "code": "dead",
        "message": one.reason,
        "attempts": one.attempts,
        "replayed": None,
    }


def _died(one: Letter) -> float:
    return one.history[-1].at if one.history else one.put


def _plain(value: Any) -> Any:
    return msgspec.json.decode(encode(value))


def _read(body: bytes) -> Any:
    """A body as JSON, else as text, else by its size."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"
