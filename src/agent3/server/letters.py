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

from agent3.calls.keeping import DeadLetter, DeadLetters
from agent3.calls.outcomes import error_of, is_refusal
from agent3.env import Env
from agent3.errors import Agent3Error, Conflict, NotFound, ValidationError
from agent3.model import Call, Failed, Needs, Outcome, Working
from agent3.observe.logs import tidy
from agent3.observe.metrics import Metrics
from agent3.queue import Letter, Queue
from agent3.server.build import Server
from agent3.storage import Database

__all__ = ["Letters", "Replayed", "Wanted", "measure", "replay"]

_AT_ONCE = 500
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
        """Delete letters for ever; how many there were."""
        dropped = 0
        for kind, name, number in map(_place, letters):
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
        return Queue(self._database, name, env=self._env, metrics=Metrics())

    async def _of_calls(self, wanted: Wanted) -> list[DeadLetter]:
        return await self.calls.latest(
            wanted.limit, agent=wanted.agent, code=wanted.code, since=wanted.since, replayed=wanted.replayed
        )

    async def _of_queues(self, wanted: Wanted) -> list[tuple[str, Letter]]:
        names = [wanted.queue] if wanted.queue else await self.queues()
        return [(name, one) for name in names for one in await self._all_in(name) if _died(one) >= (wanted.since or 0)]

    async def _all_in(self, name: str) -> list[Letter]:
        """Every letter of a queue: it gives them by age, and the latest are wanted."""
        found: list[Letter] = []
        queue = self._queue(name)
        while some := await queue.dead(after=found[-1].seq if found else 0, limit=_AT_ONCE):
            found = [*found, *some][-MOST:]
        return found

    async def _in_queue(self, name: str, number: str) -> Letter:
        queue = self._queue(name)
        after = 0
        while some := await queue.dead(after=after, limit=_AT_ONCE):
            for one in some:
                if one.id == number:
                    return one
            after = some[-1].seq
        raise _gone(_in(name, number))


async def replay(server: Server, letter: str, *, again: bool = False) -> Replayed:
    """Send one letter again, as the caller that sent it first, under a key that makes doing so twice harmless.

    A call goes through all steps of this gateway, from the start of its conversation; a message goes back to its queue.
    It is marked when it was sent: if it failed for the same kind of reason, it has left a new letter. Refused before it
    was sent (a rule, a limit, an agent that is gone) it stays as it was. Conflict when it was replayed before, unless
    ``again``.
    """
    letters = Letters(server.database, server.env)
    kind, name, number = _place(letter)
    if kind == "queue":
        await letters.line_up(name, number)
        return Replayed(letter, "queued")
    kept, call, _ = await letters.calls.get(number)
    if kept.replayed is not None and not again:
        raise Conflict(f"Dead letter {letter} was sent again already. Give --again to send it once more.")
    try:
        outcome = await _sent_again(server, kept, call)
    except Agent3Error as wrong:
        return Replayed(letter, "refused", code=wrong.code, message=wrong.message)
    if not _refused(outcome):
        await letters.calls.mark(number)
    return _told(letter, outcome)


async def _sent_again(server: Server, kept: DeadLetter, call: Call) -> Outcome:
    agent, capability = await server.gateway.lookup(call.agent, call.capability)
    key = f"dlq:{kept.id}" if kept.replayed is None else f"dlq:{kept.id}:{kept.replayed:.3f}"
    first = Call(
        id=server.env.id(),
        principal=call.principal,
        agent=call.agent,
        capability=call.capability,
        input=call.input,
        parts=call.parts,
        input_mode=call.input_mode,
        context=call.context,
        key=key,
        timeout=call.timeout,
        retries=call.retries,
        routes=capability.routes,
        meta=call.meta,
    )
    return await server.house.runner.start(first, (agent, capability), door="dlq")


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
    return msgspec.to_builtins(msgspec.structs.replace(value, live=None) if isinstance(value, Call) else value)


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
