"""The function-calling loop: tools to the model, its calls to ``invoke``, results and errors back to it.

A tool that fails does not end the conversation: the model gets the error in a form it can act on. An answer without
calls ends it, or a cap. The loop knows neither vendors nor where tools live.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    """The outcome. ``messages`` is the whole conversation, ready to be continued; ``stopped`` says what ended it."""

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
    if the price is not known. Cancelling it cancels the calls that run.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    calls = _CallRunner(tools, invoke, parallel, max_failures, max_result, on_event)
    said: list[Message] = [User(messages)] if isinstance(messages, str) else list(messages)
    reply = Reply(finish="other")
    steps, usage = 0, Usage(cost=0.0)
    stopped: Stopped | None = None
    while stopped is None:
        if clock() >= deadline:
            stopped = "time"
            break
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                reply = await llm.complete(tuple(said), tools, on_text=on_text, **options)
        except TimeoutError:  # the model's own CallTimeout is one as well
            if not scope.expired():
                raise
            stopped = "time"
            break
        said.append(reply.message())
        steps += 1
        usage += reply.usage
        calls.report(LoopEvent("reply", steps, reply=reply))
        if not reply.calls:
            stopped = "done"
            break
        if max_cost is not None and usage.cost is None:
            raise SetupError(
                "max_cost needs a price: pass price=Price(input=…, output=…) to the model, or leave max_cost out."
            )
        if max_cost is not None and (usage.cost or 0.0) >= max_cost:
            stopped = "cost"
        elif max_tokens_total is not None and usage.tokens >= max_tokens_total:
            stopped = "tokens"
        elif steps >= max_steps:
            stopped = "steps"
        elif clock() >= deadline:
            stopped = "time"
        if stopped is None:
            said += await calls.run_all(reply, steps, deadline)
        else:
            # Every vendor wants a result for each call, also when the conversation is continued another day.
            said += [_cancel_result(call, stopped) for call in reply.calls]
    return Conversation(reply.text, tuple(said), steps, usage, stopped, reply.finish)


def run_sync(
    llm: LLM, messages: str | Sequence[Message], tools: Sequence[Tool], invoke: Callable[..., Any], **options: Any
) -> Conversation:
    """``run`` for synchronous code. ``invoke`` may be a plain function: it runs in a thread, several at once."""

    async def in_thread(name: str, arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(invoke):
            return await invoke(name, arguments)
        result = await asyncio.to_thread(invoke, name, arguments)
        return await result if inspect.isawaitable(result) else result

    return bridge.run(run(llm, messages, tools, in_thread, **options))


# --- the calls --------------------------------------------------------------------------------------------------------


class _CallRunner:
    """Runs the calls, and remembers those that failed."""

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

    def report(self, event: LoopEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    async def run_all(self, reply: Reply, step: int, deadline: float) -> list[ToolResult]:
        """A result for each call, in their order. What is not done at the deadline is cancelled and says so."""
        tasks = [asyncio.ensure_future(self._run(call, reply, step)) for call in reply.calls]
        try:
            await asyncio.wait(tasks, timeout=max(deadline - asyncio.get_running_loop().time(), 0.0))
            return [
                task.result() if task.done() else _cancel_result(call, "time")
                for task, call in zip(tasks, reply.calls, strict=True)
            ]
        finally:
            # Also when this was cancelled: no tool may go on in the background. One that ignores it is left behind.
            rest = [task for task in tasks if not task.done()]
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=_GRACE)

    async def _run(self, call: ToolCall, reply: Reply, step: int) -> ToolResult:
        async with self._slots:
            self.report(LoopEvent("call", step, call=call))
            result = await self._answer(call, reply)
        self.report(LoopEvent("result", step, call=call, result=result))
        return result

    async def _answer(self, call: ToolCall, reply: Reply) -> ToolResult:
        written = call.fault.encode() if call.fault else msgspec.json.encode(call.arguments, order="sorted")
        key = (call.name, written)
        if self._failures[key] >= self._max_failures:
            return _failure(call, _explain_refusal(self._failures[key], self._last[key]))
        try:
            content, failed = _to_content(await self._invoke_tool(call, reply), self._max_result)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling() > 0:
                raise
            # Not this task was cancelled, but something that the tool waited for.
            content, failed = _json(explain(Canceled("The tool was cancelled from inside."))), True
        except Exception as error:  # noqa: BLE001 - whatever a tool raises goes to the model
            content, failed = _cut(_json(explain(error)), self._max_result), True
        if failed:
            self._failures[key] += 1
            self._last[key] = plain(content)
        return ToolResult(call.id, call.name, content, failed)

    async def _invoke_tool(self, call: ToolCall, reply: Reply) -> Any:
        tool = self._tools.get(call.name)
        if tool is None:
            near = nearest(call.name, self._tools)
            known = ", ".join(list(self._tools)[:20]) or "none"
            hint = f"Did you mean {near!r}?" if near else f"The tools are: {known}."
            data = {"nearest": [near]} if near else None
            raise CapabilityNotFound(f"There is no tool {call.name[:100]!r}. {hint}", data=data)
        if call.fault:
            limit = " It was cut off: the answer reached the maximum number of tokens."
            raise ParseError(f"{call.fault}{limit if reply.finish == 'length' else ''}")
        if tool.name not in self._schemas:
            try:
                self._schemas[tool.name] = compile(tool.input_schema)
            except Agent3Error:
                self._schemas[tool.name] = None  # it cannot be compiled: ``invoke`` has to check the arguments
        schema = self._schemas[tool.name]
        if schema is not None:
            schema.check(call.arguments)
        result = self._invoke(call.name, call.arguments)
        return await result if inspect.isawaitable(result) else result


def _cancel_result(call: ToolCall, stopped: Stopped) -> ToolResult:
    return _failure(call, explain(Canceled(f"It was not completed: the conversation reached its limit ({stopped}).")))


def _failure(call: ToolCall, explanation: Mapping[str, Any]) -> ToolResult:
    return ToolResult(call.id, call.name, _json(explanation), error=True)


# --- what the model gets to see ---------------------------------------------------------------------------------------

_HINTS = {
    "parse_error": "Write the arguments as one JSON object and call again.",
    "invalid_input": "Correct the arguments as described and call again.",
    "too_large": "Send less, or send it in parts.",
    "capability_not_found": "Use one of the tools you were given, by its exact name.",
    "rate_limited": "Wait before you call it again, or continue with something else.",
    "unavailable": "It may work later; use another tool, or say that it is unavailable.",
    "circuit_open": "It failed too often and is not called for a while; use another tool.",
    "timeout": "It may work with a smaller task. It may also have been done already, so check before you repeat it.",
    "forbidden": "You are not allowed to do this; do not try again. Say so, or use another tool.",
    "unauthenticated": "The credentials were rejected; do not try again. Say so.",
    "blocked": "A security rule forbids it; do not try again.",
    "canceled": "It was cancelled; do not repeat it unless you are asked to.",
    "needs_input": "Ask the user these questions.",
}


def explain(error: Exception) -> dict[str, Any]:
    """An error as a model can use it: code, message, whether to retry, each fault, and what to do next."""
    if not isinstance(error, Agent3Error):
        error = TargetError(f"The tool failed with {type(error).__name__}: {str(error)[:500]}")
    return {"error": _add_hint(error.to_dict())}


def _add_hint(error: dict[str, Any]) -> dict[str, Any]:
    """The machine form of an error, with the fields of its ``data`` beside the others, and a hint if there is one."""
    flat = {**{key: value for key, value in error.items() if key != "data"}, **error.get("data", {})}
    hint = _HINTS.get(str(flat.get("code")))
    if hint is None and flat.get("retryable"):
        hint = "It may succeed if you call it again."
    return {**flat, "hint": hint} if hint else flat


def _explain_refusal(times: int, last: str) -> dict[str, Any]:
    """What is answered instead of running a call that failed too often."""
    try:
        error = dict(msgspec.json.decode(last)["error"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        error = {"code": TargetError.code, "message": last[:500]}
    message = f"Not run again: this call already failed {times} times. The last error: {error.get('message', '')}"
    hint = "Change the arguments, use another tool, or report the problem."
    return {"error": {**error, "message": message, "retryable": False, "hint": hint}}


_FAILED_FIELDS = ("code", "message", "retryable", "retry_after", "data")


def _to_content(value: Any, limit: int) -> tuple[Content, bool]:
    """What a tool returned as the content of its result, and whether it is a failure."""
    match value:
        case Done(parts=parts):
            if not any(_is_image(part) for part in parts):
                plain_value = value_of(parts)
                return _cut(plain_value if isinstance(plain_value, str) else _json(plain_value), limit), False
            pieces: list[Text | Image] = []
            for part in parts:
                if part.raw is not None and _is_image(part):
                    pieces.append(Image(part.raw, media_type=part.media_type or "image/png"))
                elif part.text is not None:
                    pieces.append(Text(part.text))
                else:
                    pieces.append(Text(_json(part.data if part.data is not UNSET else msgspec.to_builtins(part))))
            return _cut_texts(tuple(pieces), limit), False
        case Failed():
            error = {key: item for key in _FAILED_FIELDS if (item := getattr(value, key)) not in (None, {})}
            return _cut(_json({"error": _add_hint(error)}), limit), True
        case Needs():
            questions = [question.text for question in value.questions]
            error = {"code": "needs_input", "questions": questions, "job": value.job}
            return _cut(_json({"error": _add_hint(error)}), limit), True
        case Working():
            return _cut(_json({"status": "working", "job": value.job, "text": value.text}), limit), False
        case Text() | Image():
            return _cut_texts((value,), limit), False
        case tuple() if value and all(isinstance(part, (Text, Image)) for part in value):
            return _cut_texts(value, limit), False
    # The documented client reports a failed tool as {"status": "error", "error": …}.
    failed = isinstance(value, dict) and value.get("status") == "error" and "error" in value
    return _cut(value if isinstance(value, str) else _json(value), limit), failed


def _is_image(part: Part) -> bool:
    return part.raw is not None and (part.media_type or "").startswith("image/")


def _cut_texts(content: tuple[Text | Image, ...], limit: int) -> Content:
    return tuple(Text(_cut(part.text, limit)) if isinstance(part, Text) else part for part in content)


def _cut(text: str, limit: int) -> str:
    cut = text[:limit].encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    if len(text) <= limit:
        return cut
    return f"{cut}\n[Cut: {len(text) - limit} more characters. Ask for less, or for a part of it.]"


def _json(value: Any) -> str:
    def to_json(other: Any) -> Any:
        """What is not JSON by itself: pydantic models as their fields, anything else as its text."""
        dump = getattr(other, "model_dump", None)
        return dump(mode="json") if callable(dump) else str(other)

    try:
        return msgspec.json.encode(value, enc_hook=to_json).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)
