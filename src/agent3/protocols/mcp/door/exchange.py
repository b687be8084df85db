"""One request that may take several turns: what runs, what is told meanwhile, and how its questions are asked.

Modern clients get a question as an interim result and send the request again with the answer; legacy clients are
asked in place, while their request waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, get_args

import anyio
import mcp_types as wire
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError as WireError

from agent3.errors import Canceled
from agent3.model import Answer, Event, Needs, Question, encode, text_of
from agent3.protocols.mcp.door.questions import Reply, Seal, answer_of, answers_of, power_for, request_of
from agent3.protocols.mcp.door.requests import Context, era_of, meta_of, powers_of, principal_of
from agent3.protocols.mcp.door.toolset import Caller

__all__ = ["Exchange", "Work", "uncut"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUNDS = 100
"""How often one legacy request asks in place before it gives the question back."""
BACKLOG = 256
"""Events that may wait for a slow reader; further ones are dropped, for progress is advice."""
MESSAGE_LENGTH = 2000
"""Characters of a progress message."""
GRACE = 5.0
"""Seconds that a cancelled call has to clean up before the door stops waiting for it."""
_LEVELS: tuple[str, ...] = get_args(wire.LoggingLevel)


class Params(Protocol):
    """What the three requests share that can be paused."""

    input_responses: wire.InputResponses | None
    request_state: str | None


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """What a request asks for. ``go_on`` gets the state that a Needs carried, and the answers to its questions."""

    method: str
    name: str
    arguments: Any
    start: Callable[[Caller], Coroutine[Any, Any, T | Needs]]
    go_on: Callable[[str, dict[str, Answer], Caller], Coroutine[Any, Any, T | Needs]]


class Exchange(Generic[T]):
    """One request, from its first turn to a result. ``level`` is the least level of logs that the client wants."""

    def __init__(self, ctx: Context, seal: Seal, level: str | None):
        self._ctx = ctx
        self._seal = seal
        self._feed = _Feed(ctx, level)
        self.caller = _caller(ctx, self._feed, level)

    async def result(self, work: Work[T], params: Params) -> T | Needs | wire.InputRequiredResult:
        """What came of it; a Needs where the client cannot be asked."""
        outcome = await self._first(work, params)
        for _ in range(ROUNDS):
            if not isinstance(outcome, Needs) or not self._can_ask(outcome.questions):
                return outcome
            if self.caller.era == "modern":
                return self._ask_back(work, outcome)
            answers = await self._ask_in_place(outcome.questions)
            if answers is None:
                return outcome
            outcome = await self._turn(work.go_on(_state(outcome), answers, self.caller))
        return outcome

    async def _first(self, work: Work[T], params: Params) -> T | Needs:
        """A new call, or the answers to the questions of an earlier one; what was left unanswered is asked again."""
        if self.caller.era == "legacy" or params.request_state is None:
            outcome = await self._turn(work.start(self.caller))
            return await self._foreseen(work, outcome, params.input_responses or {})
        paused = self._seal.open(params.request_state, self._subject(work))
        answers = answers_of(paused.questions, params.input_responses or {})
        if len(answers) < len(paused.questions):
            return Needs(paused.questions, state=paused.state, job=paused.job)
        return await self._turn(work.go_on(paused.state, answers, self.caller))

    async def _foreseen(self, work: Work[T], outcome: T | Needs, replies: wire.InputResponses) -> T | Needs:
        """A client may send answers without being asked; if they are all that is needed, it is not asked."""
        if not isinstance(outcome, Needs) or not replies or self.caller.era == "legacy":
            return outcome
        answers = answers_of(outcome.questions, replies)
        if len(answers) < len(outcome.questions):
            return outcome
        return await self._turn(work.go_on(_state(outcome), answers, self.caller))

    async def _turn(self, turn: Coroutine[Any, Any, T | Needs]) -> T | Needs:
        """Run one turn while its events go out."""
        async with self._feed.flowing():
            return await turn

    def _can_ask(self, questions: Sequence[Question]) -> bool:
        return bool(questions) and self.caller.can.issuperset(map(power_for, questions))

    def _subject(self, work: Work[T]) -> str:
        """What a pause belongs to: this caller, this request, these arguments."""
        who = self.caller.principal
        arguments = msgspec.json.encode(work.arguments, order="deterministic")
        digest = hashlib.sha256(arguments).hexdigest()
        return encode([who.id, who.tenant, work.method, work.name, digest]).decode()

    def _ask_back(self, work: Work[T], needs: Needs) -> wire.InputRequiredResult:
        paused = self._seal.close(needs.questions, _state(needs), needs.job, self._subject(work))
        requests: wire.InputRequests = {question.id: request_of(question) for question in needs.questions}
        return wire.InputRequiredResult(input_requests=requests, request_state=paused)

    async def _ask_in_place(self, questions: Sequence[Question]) -> dict[str, Answer] | None:
        """Ask one by one; after a no the rest counts as cancelled. None where the client could not be asked."""
        answers: dict[str, Answer] = {}
        for question in questions:
            try:
                answers[question.id] = answer_of(question, await self._ask(question))
            except (MCPError, WireError) as error:
                if power_for(question) not in ("sampling", "roots") or not isinstance(error, MCPError):
                    logger.warning("The client could not be asked %s: %s", question.id, type(error).__name__)
                    return None
                # These have no other word for a no; it is for whoever asked to make the best of it.
                answers[question.id] = Answer("decline", {"code": error.code, "message": error.message})
            if answers[question.id].action != "accept":
                break
        return {question.id: answers.get(question.id, Answer("cancel")) for question in questions}

    async def _ask(self, question: Question) -> Reply:
        request = request_of(question)
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        session = self._ctx.session
        if isinstance(request, wire.ElicitRequest):
            return await session.send_request(request, wire.ElicitResult, metadata=related)
        if isinstance(request, wire.ListRootsRequest):
            return await session.send_request(request, wire.ListRootsResult, metadata=related)
        if request.params.tools or request.params.tool_choice:
            return await session.send_request(request, wire.CreateMessageResultWithTools, metadata=related)
        return await session.send_request(request, wire.CreateMessageResult, metadata=related)


def _caller(ctx: Context, feed: _Feed, level: str | None) -> Caller:
    meta = meta_of(ctx)
    trace = meta.get("traceparent")
    can = powers_of(ctx)
    return Caller(
        principal=principal_of(ctx),
        listener=feed.listen,
        era=era_of(ctx),
        can_elicit="form" in can,
        traceparent=trace if isinstance(trace, str) else None,
        meta=meta,
        can=can,
        hang_up=feed.hang_up if ctx.close_sse_stream is not None else None,
        level=level,
    )


def _state(needs: Needs) -> str:
    return needs.state if isinstance(needs.state, str) else needs.job or ""


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Await some work that is cancelled once when we are, and then has a while to clean up.

    The SDK cancels by scope: it would interrupt every further await of the work as well, so that a ledger could not
    write down that the call was cancelled. A task of its own is outside of that scope.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=GRACE)
        if task.done() and not task.cancelled() and task.exception() is not None:
            logger.debug("A cancelled call ended with %s", type(task.exception()).__name__)
        raise
    if task.cancelled():
        raise Canceled("The call was cancelled inside the gateway")
    return task.result()


class _Feed:
    """The events of one request, as notifications, as far as the client wants them.

    ``listen`` never waits. Everything that was said is sent before the result is.
    """

    def __init__(self, ctx: Context, level: str | None):
        self._ctx = ctx
        self._levels = _LEVELS[_LEVELS.index(level) :] if level in _LEVELS else ()
        self._progress = "progress_token" in (ctx.meta or {})
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        self._reached: float | None = None

    def listen(self, event: Event) -> None:
        wanted = self._levels if event.kind == "log" else self._progress
        if wanted and event.kind in ("log", "progress", "status", "artifact") and self._waiting.qsize() < BACKLOG:
            self._waiting.put_nowait(event)

    async def hang_up(self) -> None:
        """Close the stream after all that was said so far."""
        assert self._ctx.close_sse_stream is not None
        await self._waiting.join()
        await self._ctx.close_sse_stream()

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        if not (self._progress or self._levels):
            yield
            return
        pump = asyncio.ensure_future(self._pump())
        try:
            yield
            self._waiting.put_nowait(None)
            await pump
        finally:
            pump.cancel()

    async def _pump(self) -> None:
        while True:
            event = await self._waiting.get()
            try:
                if event is None:
                    return
                await (self._log(event) if event.kind == "log" else self._report(event))
            except Exception:
                logger.exception("An event could not be sent to the client")
            finally:
                self._waiting.task_done()

    async def _report(self, event: Event) -> None:
        text = event.text or (text_of(event.parts) if event.kind == "artifact" else None)
        if event.done is not None or text:
            message = text[:MESSAGE_LENGTH] if text else None
            await self._ctx.session.report_progress(self._further(event.done), event.total, message)

    def _further(self, done: float | None) -> float:
        """The protocol wants each figure above the last, also for events that bring none of their own."""
        before = self._reached
        if before is None:
            self._reached = done or 0.0
        else:
            self._reached = done if done is not None and done > before else before + 1e-6
        return self._reached

    async def _log(self, event: Event) -> None:
        level: Any = event.name if event.name in _LEVELS else "info"
        if level in self._levels:
            data, logger_name = event.data if event.data is not None else event.text, None
            if isinstance(event.data, dict) and event.data.keys() == {"logger", "data"}:
                data, logger_name = event.data["data"], event.data["logger"]
            params = wire.LoggingMessageNotificationParams(level=level, data=data, logger=logger_name)
            note = wire.LoggingMessageNotification(params=params)
            await self._ctx.session.send_notification(note, self._ctx.request_id)
