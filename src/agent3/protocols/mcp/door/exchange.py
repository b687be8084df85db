"""One request of a client that may take several turns: its work, its notifications, and how its questions are asked.

Modern clients get a question as an interim result and send the request again with the answer; legacy clients are
asked in place, while their request waits.
"""

from __future__ import annotations

import asyncio
import hashlib
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
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.questions import Reply, StateTokens, feature_for, to_answer, to_answers, to_request
from agent3.protocols.mcp.door.requests import DEPARTURE, Context, client_features, era_of, meta_of, principal_of
from agent3.protocols.mcp.door.toolset import Caller

__all__ = ["Exchange", "Operation", "await_with_grace"]

log = logger("mcp")

T = TypeVar("T")

ROUNDS = 100
"""How often one legacy request asks in place before it returns the question as text."""
BACKLOG = 256
"""Events that may wait for a slow reader; further ones are dropped, for progress is only advice."""
MESSAGE_LENGTH = 2000
"""Characters of a progress message."""
GRACE = 5.0
"""Seconds that a cancelled call has to clean up before the door stops waiting for it."""
_LEVELS: tuple[str, ...] = get_args(wire.LoggingLevel)


class Params(Protocol):
    """What the parameters of all requests that can pause have in common."""

    input_responses: wire.InputResponses | None
    request_state: str | None


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """What a request asks for. ``resume`` gets the state of a Needs, and the answers to its questions."""

    method: str
    name: str
    arguments: Any
    start: Callable[[Caller], Coroutine[Any, Any, T | Needs]]
    resume: Callable[[str, dict[str, Answer], Caller], Coroutine[Any, Any, T | Needs]]


class Exchange(Generic[T]):
    """One incoming request, from its first turn to a result. ``level`` is the lowest log level the client wants,
    ``streaming`` what its arguments say about that; with ``logs`` a legacy client that set no level gets all lines."""

    def __init__(
        self,
        ctx: Context,
        tokens: StateTokens,
        level: str | None,
        streaming: bool | None = None,
        logs: bool = False,
    ):
        self._ctx = ctx
        self._tokens = tokens
        self._notifier = _Notifier(ctx, level, streaming, logs)
        meta, features = meta_of(ctx), client_features(ctx)
        trace = meta.get("traceparent")
        self.caller = Caller(
            principal=principal_of(ctx),
            listener=self._notifier.listen,
            era=era_of(ctx),
            can_elicit="form" in features,
            traceparent=trace if isinstance(trace, str) else None,
            meta=meta,
            can=features,
            hang_up=self._notifier.hang_up if ctx.close_sse_stream is not None else None,
            level=level,
            streams=self._notifier.streams,
        )

    async def run(self, operation: Operation[T], params: Params) -> T | Needs | wire.InputRequiredResult:
        """The result; a Needs where the client cannot be asked."""
        caller = self.caller
        modern = caller.era == "modern"
        if modern and params.request_state is not None:
            pause = self._tokens.verify(params.request_state, self._subject(operation))
            answers = to_answers(pause.questions, params.input_responses or {})
            if len(answers) == len(pause.questions):
                outcome = await self._turn(operation.resume(pause.state, answers, caller))
            else:  # what was left unanswered is asked again
                outcome = Needs(pause.questions, state=pause.state, job=pause.job)
        else:
            outcome = await self._turn(operation.start(caller))
            if modern and isinstance(outcome, Needs) and params.input_responses:
                # A client may send answers before it is asked; if they suffice, it is not asked.
                answers = to_answers(outcome.questions, params.input_responses)
                if len(answers) == len(outcome.questions):
                    outcome = await self._turn(operation.resume(_state_of(outcome), answers, caller))
        for _ in range(ROUNDS):
            if not isinstance(outcome, Needs):
                return outcome
            questions = outcome.questions
            if not questions or not caller.can.issuperset(map(feature_for, questions)):
                return outcome
            if modern:
                token = self._tokens.issue(questions, _state_of(outcome), outcome.job, self._subject(operation))
                requests: wire.InputRequests = {question.id: to_request(question) for question in questions}
                return wire.InputRequiredResult(input_requests=requests, request_state=token)
            given = await self._ask_in_place(questions)
            if given is None:
                return outcome
            outcome = await self._turn(operation.resume(_state_of(outcome), given, caller))
        return outcome

    async def _turn(self, turn: Coroutine[Any, Any, T | Needs]) -> T | Needs:
        """Run one turn while its notifications are sent."""
        async with self._notifier.send_meanwhile():
            return await turn

    def _subject(self, operation: Operation[T]) -> str:
        """What a pause is bound to: this caller, this request, these arguments."""
        principal = self.caller.principal
        arguments = msgspec.json.encode(operation.arguments, order="deterministic")
        digest = hashlib.sha256(arguments).hexdigest()
        return encode([principal.id, principal.tenant, operation.method, operation.name, digest]).decode()

    async def _ask_in_place(self, questions: Sequence[Question]) -> dict[str, Answer] | None:
        """Ask one by one; after a refusal, or when the client is gone, the rest counts as cancelled.

        None where the client could not be asked.
        """
        answers: dict[str, Answer] = {}
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        for question in questions:
            try:
                request = to_request(question)
                kind: type[Reply] = wire.CreateMessageResult
                if isinstance(request, wire.ElicitRequest):
                    kind = wire.ElicitResult
                elif isinstance(request, wire.ListRootsRequest):
                    kind = wire.ListRootsResult
                elif request.params.tools or request.params.tool_choice:
                    kind = wire.CreateMessageResultWithTools
                reply = await self._unless_gone(self._ctx.session.send_request(request, kind, metadata=related))
                answers[question.id] = Answer("cancel") if reply is None else to_answer(question, reply)
            except (MCPError, WireError) as error:
                if feature_for(question) not in ("sampling", "roots") or not isinstance(error, MCPError):
                    log.warning("The client could not be asked %s: %s", question.id, type(error).__name__)
                    return None
                # Sampling and roots have no result that says no; the tool decides what to make of the error.
                answers[question.id] = Answer("decline", {"code": error.code, "message": error.message})
            if answers[question.id].action != "accept":
                break
        return {question.id: answers.get(question.id, Answer("cancel")) for question in questions}

    async def _unless_gone(self, asking: Coroutine[Any, Any, Reply]) -> Reply | None:
        """The reply; None when the client is gone, whose question would hold the call, and its server, for long."""
        request = self._ctx.request
        departure = None if request is None else request.scope.get(DEPARTURE)
        if departure is None:
            return await asking
        reply, gone = asyncio.ensure_future(asking), asyncio.ensure_future(departure())
        try:
            await asyncio.wait([reply, gone], return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            log.info("A client is gone that was being asked; its question counts as cancelled")
            return None
        finally:
            gone.cancel()
            reply.cancel()


def _state_of(needs: Needs) -> str:
    return needs.state if isinstance(needs.state, str) else needs.job or ""


async def await_with_grace(work: Coroutine[Any, Any, T]) -> T:
    """Await some work that is cancelled once when we are, and then has a while to clean up.

    The SDK cancels by scope: it would interrupt every further await of the work as well, so that a ledger could not
    record that the call was cancelled. A task of its own is outside of that scope.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=GRACE)
        if task.done() and not task.cancelled() and task.exception() is not None:
            log.debug("A cancelled call ended with %s", type(task.exception()).__name__)
        raise
    if task.cancelled():
        raise Canceled("The call was cancelled inside the gateway")
    return task.result()


class _Notifier:
    """The events of one request as notifications, as far as the client wants them.

    ``listen`` never waits. Everything that was emitted is sent before the result is.
    """

    def __init__(self, ctx: Context, level: str | None, streaming: bool | None, logs: bool):
        self._ctx = ctx
        self._levels = _LEVELS[_LEVELS.index(level) :] if level in _LEVELS else ()
        if level is None and logs and era_of(ctx) == "legacy":
            self._levels = _LEVELS
        has_token = "progress_token" in (ctx.meta or {})
        self._wants_progress = has_token and streaming is not False
        # Without a token a stream goes as log messages. A modern client must have asked for these, by a level; a
        # legacy one gets what the server chooses until it sets a level.
        may_log = "info" in self._levels or (level is None and era_of(ctx) == "legacy")
        self._as_log = bool(streaming) and not has_token and may_log
        self.streams = self._wants_progress or self._as_log
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        self._progress: float | None = None

    def listen(self, event: Event) -> None:
        wanted = self._levels if event.kind == "log" else self.streams
        if wanted and event.kind in ("log", "progress", "status", "artifact") and self._waiting.qsize() < BACKLOG:
            self._waiting.put_nowait(event)

    async def hang_up(self) -> None:
        """Close the stream after everything that was emitted so far."""
        assert self._ctx.close_sse_stream is not None
        await self._waiting.join()
        await self._ctx.close_sse_stream()

    @asynccontextmanager
    async def send_meanwhile(self) -> AsyncIterator[None]:
        """Send notifications during a block, and the remaining ones at its end."""
        if not (self.streams or self._levels):
            yield
            return
        pump = asyncio.ensure_future(self._send_all())
        try:
            yield
            self._waiting.put_nowait(None)
            await pump
        finally:
            pump.cancel()

    async def _send_all(self) -> None:
        while True:
            event = await self._waiting.get()
            try:
                if event is None:
                    return
                if event.kind == "log":
                    await self._send_log(event)
                else:
                    await (self._send_piece(event) if self._as_log else self._send_progress(event))
            except Exception:
                log.exception("An event could not be sent to the client")
            finally:
                self._waiting.task_done()

    async def _send_progress(self, event: Event) -> None:
        text = event.text or (text_of(event.parts) if event.kind == "artifact" else None)
        if event.done is None and not text:
            return
        # The protocol wants each figure above the last, also for events without a figure of their own.
        if self._progress is None:
            self._progress = event.done or 0.0
        elif event.done is not None and event.done > self._progress:
            self._progress = event.done
        else:
            self._progress += 1e-6
        message = text[:MESSAGE_LENGTH] if text else None
        await self._ctx.session.report_progress(self._progress, event.total, message)

    async def _send_piece(self, event: Event) -> None:
        """A piece of the result, or how far it is, as a log message."""
        text = event.text or (text_of(event.parts) if event.kind == "artifact" else None)
        told = {"kind": event.kind, "text": text, "progress": event.done, "total": event.total}
        data = {name: value for name, value in told.items() if value is not None}
        if data.keys() == {"kind"}:
            return
        params = wire.LoggingMessageNotificationParams(level="info", data=data, logger="agent3")
        await self._ctx.session.send_notification(wire.LoggingMessageNotification(params=params), self._ctx.request_id)

    async def _send_log(self, event: Event) -> None:
        level: Any = event.name if event.name in _LEVELS else "info"
        if level not in self._levels:
            return
        data, source = event.data if event.data is not None else event.text, None
        if isinstance(event.data, dict) and event.data.keys() == {"logger", "data"}:
            data, source = event.data["data"], event.data["logger"]
        params = wire.LoggingMessageNotificationParams(level=level, data=data, logger=source)
        await self._ctx.session.send_notification(wire.LoggingMessageNotification(params=params), self._ctx.request_id)
