"""Dead letters for the operator: those of calls and those of queues in one list, to show, send again or drop.

An id says where a letter is: ``call:ID``, or ``queue:NAME:ID`` with the name escaped as in a URL. Nothing here shows a
secret, and nothing is sent that the operator did not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.calls.dead_letters import DeadLetter, DeadLetters
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
"""Letters in one list."""
_MAILBOXES = 200
"""Mailboxes whose depth is shown."""
_COLUMNS = "seq, id, context, priority, attempts, put, history"


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
            raise ValidationError(f"--limit is {wanted.limit}; it must be from 1 to {MOST}.")
        found: list[dict[str, Any]] = []
        if not wanted.queue:
            calls = await self.calls.latest(
                wanted.limit, agent=wanted.agent, code=wanted.code, since=wanted.since, replayed=wanted.replayed
            )
            found += [_summarize_call(letter) for letter in calls]
        if wanted.agent is None and wanted.code is None:
            for name in [wanted.queue] if wanted.queue else await self.queues():
                # Without their bodies: each may be large, and a list shows none.
                rows = await self._database.all(
                    f"SELECT {_COLUMNS} FROM queue_messages WHERE queue = ? AND state = 'dead' ORDER BY seq DESC "
                    "LIMIT ?",
                    name,
                    MOST,
                )
                letters = [_summarize_message(name, _decode_letter(row, b"")) for row in rows]
                found += [letter for letter in letters if letter["at"] >= (wanted.since or 0)]
        found.sort(key=lambda letter: letter["at"], reverse=True)
        return found[: wanted.limit]

    async def show(self, letter: str) -> dict[str, Any]:
        """Everything that is known of one letter, without secrets."""
        kind, queue, number = _parse_id(letter)
        if kind == "queue":
            row = await self._database.one(
                f"SELECT {_COLUMNS}, body FROM queue_messages WHERE queue = ? AND state = 'dead' AND id = ?",
                queue,
                number,
            )
            if row is None:
                raise _not_found(queue, number)
            message = _decode_letter(row, bytes(row["body"]))
            history = [
                {"at": attempt.at, "attempt": attempt.number, "reason": attempt.reason} for attempt in message.history
            ]
            more = {
                "put": message.put,
                "priority": message.priority,
                "history": history,
                "body": _show_body(message.body),
            }
            return dict(tidy(_summarize_message(queue, message) | more))
        kept, call, outcome = await self.calls.get(number)
        more = {"call": _to_builtins(call), "outcome": _to_builtins(outcome), "mayHaveRun": outcome.sent}
        return dict(tidy(_summarize_call(kept) | more))

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters for ever; how many there were. An id of a wrong form fails before anything is deleted."""
        dropped = 0
        for kind, name, number in [_parse_id(letter) for letter in letters]:
            dropped += await (self._queue(name).drop([number]) if kind == "queue" else self.calls.drop([number]))
        return dropped

    async def queues(self) -> list[str]:
        """The queues that have dead letters."""
        rows = await self._database.all("SELECT DISTINCT queue FROM queue_messages WHERE state = 'dead' ORDER BY queue")
        return [row["queue"] for row in rows]

    async def line_up(self, name: str, number: str) -> None:
        """Give a message back to its queue, with all its attempts; NotFound if it is no longer a dead letter."""
        if not await self._queue(name).replay([number]):
            raise _not_found(name, number)

    def _queue(self, name: str) -> Queue:
        """A queue for the operator: without its bound, so that what was in it before finds room again."""
        return Queue(self._database, name, Rules(bound=_NO_BOUND), env=self._env, metrics=Metrics())


async def replay(gateway: Gateway, letter: str, *, again: bool = False, twice: bool = False) -> Replayed:
    """Send one letter again, as the caller that sent it first and under its key, so that nothing is done twice.

    A call goes through all steps of this gateway, from the start of its conversation; a message goes back to its queue.
    It is marked when it was sent: if it failed for the same kind of reason, it has left a new letter. Refused before it
    was sent (a rule, a limit, an agent that is gone) it stays as it was. Conflict when it was replayed before, unless
    ``again``, and when it may have run already and its target could not tell, unless it may run ``twice``.
    """
    letters = Letters(gateway.core.database, gateway.core.env)
    kind, queue, number = _parse_id(letter)
    if kind == "queue":
        await letters.line_up(queue, number)
        return Replayed(letter, "queued")
    kept, call, failed = await letters.calls.get(number)
    if kept.replayed is not None and not again:
        raise Conflict(f"Dead letter {letter} was already replayed. Add --again to send it once more.")
    try:
        target = await gateway.lookup(call.agent, call.capability)
        if failed.sent and not twice and not _is_repeatable(target[1], call):
            raise Conflict(
                f"Dead letter {letter} may already have run: it was sent, but no answer came. Ask its "
                "target. If it did not run, or may run twice, add --may-run-twice; otherwise drop it with "
                "agent3 dlq drop."
            )
        outcome = await _send_again(gateway, target, kept, call)
    except Agent3Error as error:
        return Replayed(letter, "refused", code=error.code, message=error.message)
    # Not sent at all: refused by this gateway, or by its storage. What the target itself answers is an answer.
    unsent = isinstance(outcome, Failed) and outcome.code == "storage_failed" and not outcome.asked
    refused = unsent or is_refusal(outcome)
    if not refused:
        await letters.calls.mark(number)
    if isinstance(outcome, Failed):
        status = "refused" if refused else "failed"
        return Replayed(letter, status, code=outcome.code, message=error_of(outcome).message)
    job = outcome.job if isinstance(outcome, Needs | Working) else None
    return Replayed(letter, "needs" if isinstance(outcome, Needs) else "working" if job else "done", job)


def _is_repeatable(capability: Capability, call: Call) -> bool:
    """Whether to do it again cannot do it twice: by its nature, or since its target had a key and honours it."""
    hints = capability.hints
    honoured = bool(capability.routes) and all(route.meta.get("keys") for route in capability.routes)
    harmless = hints.idempotent or hints.read_only or (call.key is not None and honoured)
    return harmless and all(route.stand_in is None or route.stand_in.repeatable for route in capability.routes)


async def _send_again(gateway: Gateway, target: Target, kept: DeadLetter, call: Call) -> Outcome:
    """Run it under the key that it had, which then stands for this run: for its target, and for a caller who repeats.

    If another operator, or the caller itself, was first under that key, theirs is the outcome. A call without a key
    gets one from its letter.
    """
    jobs = gateway.core.jobs
    came = call
    if call.job is not None:
        # The job has the call as it came, by which its key is known again.
        with suppress(NotFound):
            came = (await jobs.get(call.principal.id, call.job)).call
    if came.key is None:
        key = f"dlq:{kept.id}" if kept.replayed is None else f"dlq:{kept.id}:{kept.replayed:.3f}"
        came = replace(came, key=key)
    else:
        holder = await jobs.find_by_key(came)
        if holder is not None and holder.ended and (holder.id == call.job or holder.created <= (kept.replayed or 0.0)):
            await jobs.release_key(holder)
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


async def measure(database: Database, env: Env, metrics: Metrics) -> None:
    """Bring the gauges of queues up to date: dead letters that wait, the age of the oldest, the depth of mailboxes."""
    waiting = await DeadLetters(database, env).count_waiting()
    queues = await database.one("SELECT COUNT(*) AS count, MIN(put) AS oldest FROM queue_messages WHERE state = 'dead'")
    assert queues is not None
    for place, count, oldest in (
        ("calls", waiting.count, waiting.oldest),
        ("queues", queues["count"], queues["oldest"]),
    ):
        metrics.dead_letters_waiting.set((place,), count)
        metrics.dead_letters_oldest.set((place,), 0.0 if oldest is None else max(0.0, env.now() - oldest))
    # The mailboxes of agents that share this database, wherever they run; the deepest of them.
    boxes = await database.all(
        "SELECT name, depth FROM queues WHERE name >= 'a2a:' AND name < 'a2a;' ORDER BY depth DESC LIMIT ?", _MAILBOXES
    )
    for box in boxes:
        metrics.a2a_queue_depth.set((box["name"].removeprefix("a2a:"),), box["depth"])


# Ids and descriptions


def _parse_id(letter: str) -> tuple[str, str, str]:
    """Where a letter is: ``call`` or ``queue``, the name of the queue, and the id there."""
    kind, _, rest = letter.partition(":")
    if kind == "call" and rest:
        return kind, "", rest
    name, _, number = rest.partition(":")
    if kind == "queue" and name and number:
        return kind, unquote(name), number
    raise ValidationError(f"{letter[:100]!r} is not the id of a dead letter. Use one printed by agent3 dlq list.")


def _queue_id(queue: str, number: str) -> str:
    return f"queue:{quote(queue, safe='')}:{number}"


def _not_found(queue: str, number: str) -> NotFound:
    letter = _queue_id(queue, number)
    return NotFound(
        f"Dead letter {letter[:200]!r} does not exist. It may have been replayed, dropped, or have expired."
    )


def _decode_letter(row: Row, body: bytes) -> Letter:
    history = msgspec.json.decode(row["history"], type=list[tuple[float, int, str]]) if row["history"] else []
    columns = {name: row[name] for name in ("id", "context", "priority", "attempts", "seq", "put")}
    return Letter(**columns, body=body, history=tuple(Attempt(*attempt) for attempt in history))


def _summarize_call(letter: DeadLetter) -> dict[str, Any]:
    return {"place": "calls", **msgspec.to_builtins(letter), "id": f"call:{letter.id}"}


def _summarize_message(queue: str, letter: Letter) -> dict[str, Any]:
    return {
        "id": _queue_id(queue, letter.id),
        "place": f"queue {queue}",
        "at": letter.history[-1].at if letter.history else letter.put,
        "context": letter.context,
        "code": "dead",
        "message": letter.reason,
        "attempts": letter.attempts,
        "replayed": None,
    }


def _to_builtins(value: Any) -> Any:
    return msgspec.json.decode(encode(value))


def _show_body(body: bytes) -> Any:
    """A body as JSON, else as text, else by its size."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"
