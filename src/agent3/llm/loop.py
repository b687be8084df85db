"""The function-calling loop: tools to the model, what it asks for to ``invoke``, results and errors back to it.

A tool that fails does not end the conversation: the model is told what was wrong in a form it can act on. What ends
it is an answer without calls, or a cap. The loop knows neither vendors nor where tools live.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from agent3 import bridge
from agent3.errors import Agent3Error, Canceled, CapabilityNotFound, ParseError, SetupError, TargetError
from agent3.llm.port import (
    LLM,
    Content,
    Finish,
    Image,
    Message,
    Reply,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
    plain,
)
from agent3.model import Done, Failed, Needs, Part, Working, value_of
from agent3.schema import Schema, compile, nearest  # noqa: A004 - schema.compile, like re.compile

__all__ = ["Conversation", "Invoke", "LoopEvent", "run", "run_sync"]

Invoke: TypeAlias = Callable[[str, dict[str, Any]], Any]
"""Runs one call by name and arguments: a coroutine function, or a plain one that returns at once."""
Stopped: TypeAlias = Literal["done", "steps", "time", "cost", "tokens"]

_GRACE = 5.0
"""Seconds that a cancelled tool gets to clean up before the loop goes on without it."""


class LoopEvent(Struct, frozen=True, omit_defaults=True):
    """Something that happened: the model replied, a call began, a result came."""

    kind: Literal["reply", "call", "result"]
    step: int
    reply: Reply | None = None
    call: ToolCall | None = None
    result: ToolResult | None = None


class Conversation(Struct, frozen=True):
    """How it went. ``messages`` is the whole of it, fit to be gone on with; ``stopped`` says what ended it."""

    text: str
    messages: tuple[Message, ...]
    steps: int
    usage: Usage
    stopped: Stopped
    finish: Finish = "other"


async def run(
    llm: LLM,
    messages: str | Sequence[Message],
    tools: Sequence[Tool],
    invoke: Invoke,
    *,
    max_steps: int = 10,
    seconds: float = 120.0,
    max_cost: float | None = None,
    max_tokens_total: int | None = None,
    parallel: int = 8,
    max_failures: int = 2,
    max_result: int = 32_000,
    on_event: Callable[[LoopEvent], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    **options: Any,
) -> Conversation:
    """Let the model call tools until it answers, or a cap is reached.

    ``invoke(name, arguments)`` runs one call, up to ``parallel`` of them at once, with arguments that fit the tool's
    schema; what it raises goes to the model as a typed result. A step is one reply of the model, and no step begins
    once a cap is reached; calls that were asked for and not run are answered as canceled. A call that failed
    ``max_failures`` times with the same arguments is not run again. Results are cut at ``max_result`` characters.
    ``options`` go to ``llm.complete``. Errors of the model itself are raised; so is SetupError for a ``max_cost``
    where the price is not known. Cancelling it cancels the calls that run.
    """
    caps = _Caps(max_steps, asyncio.get_running_loop().time() + seconds, max_cost, max_tokens_total)
    hands = _Hands(tools, invoke, parallel, max_failures, max_result, on_event)
    said: list[Message] = [User(messages)] if isinstance(messages, str) else list(messages)
    talk = _Talk(llm, tools, said, {**options, "on_text": on_text})
    while True:
        reply = await talk.step(caps)
        if reply is None:
            return talk.ended("time")
        hands.tell(LoopEvent("reply", talk.steps, reply=reply))
        stopped = caps.reached(talk.steps, talk.usage) if reply.calls else "done"
        if stopped is not None:
            said += _not_run(reply.calls, stopped)
            return talk.ended(stopped)
        said += await hands.answer(reply, talk.steps, caps.deadline)


def run_sync(
    llm: LLM, messages: str | Sequence[Message], tools: Sequence[Tool], invoke: Callable[..., Any], **options: Any
) -> Conversation:
    """``run`` for synchronous code. ``invoke`` may be a plain function: it runs in a thread, several at once."""

    async def elsewhere(name: str, arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(invoke):
            return await invoke(name, arguments)
        result = await asyncio.to_thread(invoke, name, arguments)
        return await result if inspect.isawaitable(result) else result

    return bridge.run(run(llm, messages, tools, elsewhere, **options))


class _Caps(Struct, frozen=True):
    """Where it has to end."""

    steps: int
    deadline: float
    cost: float | None
    tokens: int | None

    def reached(self, steps: int, usage: Usage) -> Stopped | None:
        """The cap that forbids another step; None if none does."""
        if self.cost is not None and usage.cost is None:
            raise SetupError("max_cost needs a price: give the model price=Price(input=…, output=…), or leave it out.")
        if self.cost is not None and (usage.cost or 0.0) >= self.cost:
            return "cost"
        if self.tokens is not None and usage.tokens >= self.tokens:
            return "tokens"
        if steps >= self.steps:
            return "steps"
        return "time" if asyncio.get_running_loop().time() >= self.deadline else None


class _Talk:
    """The model's side: what was said, and what it used."""

    def __init__(self, llm: LLM, tools: Sequence[Tool], said: list[Message], options: dict[str, Any]):
        self._llm = llm
        self._tools = tools
        self._said = said
        self._options = options
        self._last = Reply(finish="other")
        self.steps = 0
        self.usage = Usage(cost=0.0)

    async def step(self, caps: _Caps) -> Reply | None:
        """The next reply; None if there was no time for it."""
        if asyncio.get_running_loop().time() >= caps.deadline:
            return None
        scope = asyncio.timeout_at(caps.deadline)
        try:
            async with scope:
                reply = await self._llm.complete(tuple(self._said), self._tools, **self._options)
        except TimeoutError:  # the model's own CallTimeout is one as well
            if scope.expired():
                return None
            raise
        self._last = reply
        self._said.append(reply.message())
        self.steps += 1
        self.usage += reply.usage
        return reply

    def ended(self, stopped: Stopped) -> Conversation:
        """The conversation as it is now."""
        return Conversation(self._last.text, tuple(self._said), self.steps, self.usage, stopped, self._last.finish)


# --- the calls --------------------------------------------------------------------------------------------------------


class _Hands:
    """What runs the calls, and remembers those that failed."""

    def __init__(
        self,
        tools: Sequence[Tool],
        invoke: Invoke,
        parallel: int,
        max_failures: int,
        max_result: int,
        on_event: Callable[[LoopEvent], None] | None,
    ):
        self._tools = {tool.name: tool for tool in tools}
        self._invoke = invoke
        self._slots = asyncio.Semaphore(parallel)
        self._max_failures = max_failures
        self._max_result = max_result
        self._on_event = on_event
        self._schemas: dict[str, Schema | None] = {}
        self._failures: Counter[tuple[str, bytes]] = Counter()
        self._last: dict[tuple[str, bytes], str] = {}

    def tell(self, event: LoopEvent) -> None:
        """Let the listener hear it."""
        if self._on_event is not None:
            self._on_event(event)

    async def answer(self, reply: Reply, step: int, deadline: float) -> list[ToolResult]:
        """A result for each call, in their order. What is not done at the deadline is cancelled and says so."""
        tasks = [asyncio.ensure_future(self._told(call, reply, step)) for call in reply.calls]
        try:
            await asyncio.wait(tasks, timeout=max(deadline - asyncio.get_running_loop().time(), 0.0))
            return [
                task.result() if task.done() else _canceled(call, "time")
                for task, call in zip(tasks, reply.calls, strict=True)
            ]
        finally:
            await _stopped(tasks)

    async def _told(self, call: ToolCall, reply: Reply, step: int) -> ToolResult:
        async with self._slots:
            self.tell(LoopEvent("call", step, call=call))
            result = await self._result(call, reply)
        self.tell(LoopEvent("result", step, call=call, result=result))
        return result

    async def _result(self, call: ToolCall, reply: Reply) -> ToolResult:
        key = (
            call.name,
            msgspec.json.encode(call.arguments, order="sorted") if not call.fault else call.fault.encode(),
        )
        if self._failures[key] >= self._max_failures:
            return _failure(call, _given_up(self._failures[key], self._last[key]))
        try:
            value = await self._run(call, reply)
            content, wrong = _content(value, self._max_result)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            content, wrong = _json(explained(Canceled("The tool was cancelled from within."))), True
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is the model's to hear of
            content, wrong = _bounded(_json(explained(error)), self._max_result), True
        if wrong:
            self._failures[key] += 1
            self._last[key] = plain(content)
        return ToolResult(call.id, call.name, content, wrong)

    async def _run(self, call: ToolCall, reply: Reply) -> Any:
        tool = self._tools.get(call.name)
        if tool is None:
            raise self._unknown(call.name)
        if call.fault:
            cut = (
                " It was cut off: the answer reached its largest number of tokens." if reply.finish == "length" else ""
            )
            raise ParseError(f"{call.fault}{cut}")
        schema = self._schema(tool)
        if schema is not None:
            schema.check(call.arguments)
        result = self._invoke(call.name, call.arguments)
        return await result if inspect.isawaitable(result) else result

    def _unknown(self, name: str) -> CapabilityNotFound:
        near = nearest(name, self._tools)
        known = ", ".join(list(self._tools)[:20]) or "none"
        hint = f"Did you mean {near!r}?" if near else f"There are: {known}."
        data = {"nearest": [near]} if near else None
        return CapabilityNotFound(f"There is no tool {name[:100]!r}. {hint}", data=data)

    def _schema(self, tool: Tool) -> Schema | None:
        """The tool's schema, compiled once; None for one that cannot be, which is left to whoever runs the call."""
        if tool.name not in self._schemas:
            try:
                self._schemas[tool.name] = compile(tool.input_schema)
            except Agent3Error:
                self._schemas[tool.name] = None
        return self._schemas[tool.name]


def _is_cancelled() -> bool:
    """Whether it is this task that was cancelled, and not something it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stopped(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel what still runs, and wait a little for it."""
    rest = [task for task in tasks if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_GRACE)


def _not_run(calls: Sequence[ToolCall], stopped: Stopped) -> list[ToolResult]:
    # Every vendor wants a result for each call, also when the conversation is taken up again another day.
    return [_canceled(call, stopped) for call in calls]


def _canceled(call: ToolCall, stopped: Stopped) -> ToolResult:
    return _failure(call, explained(Canceled(f"It was not finished: the conversation reached its cap ({stopped}).")))


def _failure(call: ToolCall, told: Mapping[str, Any]) -> ToolResult:
    return ToolResult(call.id, call.name, _json(told), error=True)


# --- what the model is told -------------------------------------------------------------------------------------------

_HINTS = {
    "parse_error": "Write the arguments as one JSON object and call again.",
    "invalid_input": "Correct the arguments as the errors say and call again.",
    "too_large": "Send less, or in parts.",
    "capability_not_found": "Use one of the tools you were given, by its exact name.",
    "rate_limited": "Wait before you call it again, or go on with something else.",
    "unavailable": "It may work later; use another tool or say that it is out of reach.",
    "circuit_open": "It failed too often and is left alone for a while; use another tool.",
    "timeout": "It may work with less to do; it may also have been done already, so look before you repeat it.",
    "forbidden": "You may not do this; do not try again. Say so, or use another tool.",
    "unauthenticated": "The credentials are not accepted; do not try again. Say so.",
    "blocked": "A security rule forbids it; do not try again.",
    "canceled": "It was cancelled; do not repeat it unless asked to.",
    "needs_input": "Ask the person these questions.",
}


def explained(error: Exception) -> dict[str, Any]:
    """An error as a model can use it: code, message, whether to repeat it, each fault, and what to do next."""
    if not isinstance(error, Agent3Error):
        error = TargetError(f"The tool failed with {type(error).__name__}: {str(error)[:500]}")
    return {"error": _hinted(error.to_dict())}


def _hinted(told: dict[str, Any]) -> dict[str, Any]:
    """The machine form of an error, its faults and nearest names drawn up, and a hint if there is one."""
    told = {**{key: value for key, value in told.items() if key != "data"}, **told.get("data", {})}
    hint = _HINTS.get(str(told.get("code")))
    if hint is None and told.get("retryable"):
        hint = "It may succeed if you call it again."
    return {**told, "hint": hint} if hint else told


def _given_up(times: int, last: str) -> dict[str, Any]:
    try:
        told = dict(msgspec.json.decode(last)["error"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        told = {"code": TargetError.code, "message": last[:500]}
    message = f"Not run again: this same call failed {times} times. The last time: {told.get('message', '')}"
    hint = "Change the arguments, use another tool, or say what does not work."
    return {"error": {**told, "message": message, "retryable": False, "hint": hint}}


def _content(value: Any, limit: int) -> tuple[Content, bool]:
    """What a tool returned as the content of its result, and whether it is a failure."""
    match value:
        case Done(parts=parts):
            return _of_parts(parts, limit), False
        case Failed():
            told = {key: item for key in _SHOWN if (item := getattr(value, key)) not in (None, {})}
            return _bounded(_json({"error": _hinted(told)}), limit), True
        case Needs():
            asked = {"code": "needs_input", "questions": [one.text for one in value.questions], "job": value.job}
            return _bounded(_json({"error": _hinted(asked)}), limit), True
        case Working():
            return _bounded(_json({"status": "working", "job": value.job, "text": value.text}), limit), False
        case Text() | Image():
            return _fitted((value,), limit), False
        case tuple() if value and all(isinstance(one, (Text, Image)) for one in value):
            return _fitted(value, limit), False
    return _bounded(value if isinstance(value, str) else _json(value), limit), _says_error(value)


_SHOWN = ("code", "message", "retryable", "retry_after", "data")


def _says_error(value: Any) -> bool:
    """The form in which the documented client tells of a tool that failed."""
    return isinstance(value, dict) and value.get("status") == "error" and "error" in value


def _of_parts(parts: tuple[Part, ...], limit: int) -> Content:
    pictures = [one for one in parts if one.raw is not None and (one.media_type or "").startswith("image/")]
    if not pictures:
        value = value_of(parts)
        return _bounded(value if isinstance(value, str) else _json(value), limit)
    shown = tuple(_piece(one) for one in parts)
    return _fitted(shown, limit)


def _piece(part: Part) -> Text | Image:
    if part.raw is not None and (part.media_type or "").startswith("image/"):
        return Image(part.raw, media_type=part.media_type or "image/png")
    if part.text is not None:
        return Text(part.text)
    return Text(_json(part.data if part.data is not UNSET else msgspec.to_builtins(part)))


def _fitted(content: tuple[Text | Image, ...], limit: int) -> Content:
    return tuple(Text(_bounded(one.text, limit)) if isinstance(one, Text) else one for one in content)


def _bounded(text: str, limit: int) -> str:
    cut = text[:limit].encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent
    if len(text) <= limit:
        return cut
    return f"{cut}\n[Cut: {len(text) - limit} more characters. Ask for less, or for a part of it.]"


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plainly).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _plainly(value: Any) -> Any:
    """What is no JSON by itself: pydantic models as their fields, the rest as its text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
