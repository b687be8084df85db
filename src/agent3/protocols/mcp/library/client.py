"""The documented ``MCPClient``: finds and runs the tools of servers, wherever they are.

A synchronous face; what it does runs in the bridge's loop. Tools of this process and of servers elsewhere run under
the same steps. What only remote servers need, above all the SDK, is loaded with the first of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec

from agent3 import bridge, llm
from agent3.calls.outcomes import error_of, failed_by, is_refusal
from agent3.calls.result_cache import CACHED
from agent3.definitions import ToolDefinition
from agent3.env import REAL
from agent3.errors import CallTimeout, CapabilityNotFound, Conflict, JobNotFound, NotFound, SetupError, ValidationError
from agent3.model import (
    LOCAL,
    Answer,
    Done,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Working,
    encode,
    value_of,
)
from agent3.observe import traces
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.plans import (
    Item,
    OnError,
    PlanStep,
    StopOnError,
    parse_plan,
    planner,
    run_batch,
    run_plan,
)
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.protocols.mcp.library.rendering import characters, content_of, cut, part_of, parts_in, text_in, words_of
from agent3.protocols.mcp.library.server import MCPServer
from agent3.protocols.mcp.library.tool_runner import TRACE
from agent3.schema import nearest

__all__ = ["MCPClient"]

T = TypeVar("T")
_Read = Callable[[str, Principal], Awaitable[tuple[bytes, str]]]
"""Gives the bytes of a large result and what they are."""

_READER = "read_artifact"
_RESULT_TOKENS = 8_000
"""What a model gets of one result, and anybody of an artifact, unless they say otherwise."""
_OPEN = 1_000
"""Calls that wait for an answer, or go on elsewhere, of which a client knows."""
_LONGEST = 30 * 86_400.0

_READ_TOOL = llm.Tool(
    _READER,
    "Read on in a result that was cut: gives the next piece of its text, and where the one after it begins.",
    {
        "type": "object",
        "properties": {"handle": {"type": "string"}, "offset": {"type": "integer", "minimum": 0}},
        "required": ["handle"],
    },
)


class _Source(Protocol):
    """A connected server, of this process or elsewhere."""

    @property
    def kind(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    def tools(self) -> Sequence[ToolDefinition]: ...
    def has(self, name: str) -> bool: ...
    def refused(self, failed: Failed) -> bool: ...
    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome: ...
    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome: ...
    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome: ...
    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]: ...
    async def look(self) -> None: ...
    async def disconnect(self) -> None: ...


class _Here:
    """A server of this process."""

    kind = "local"
    address = "this process"
    status = "connected"
    error: str | None = None

    def __init__(self, server: MCPServer, principal: Principal):
        self.server = server
        self._principal = principal

    def tools(self) -> Sequence[ToolDefinition]:
        return self.server.list_tools(self._principal)

    def has(self, name: str) -> bool:
        """Also by ``name@version``. One that the caller may not use is not there."""
        base = name.partition("@")[0]
        if not self.server.versions(base):
            return False
        return self.server.security is None or any(one.name == base for one in self.tools())

    def refused(self, failed: Failed) -> bool:
        return is_refusal(failed)

    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome:
        return await self.server.call_tool_async(name, given, principal, **options)

    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome:
        return await self.server.answer_async(job, answers, principal)

    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome:
        return Working(job=job)  # it goes on where only its function knows

    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        return await self.server.artifact_async(handle, principal)

    async def look(self) -> None:
        pass  # it is always up to date

    async def disconnect(self) -> None:
        pass  # it is not ours to close


@dataclass(frozen=True, eq=False, slots=True)
class _Connection:
    """A server under its name here, and the places for calls that may be under way at once."""

    name: str
    source: _Source
    places: asyncio.Semaphore

    def shown(self) -> dict[str, Any]:
        source = self.source
        return {
            "name": self.name,
            "kind": source.kind,
            "address": source.address,
            "status": source.status,
            "error": source.error,
            "tools": len(source.tools()),
        }


@dataclass(slots=True)
class _Ran:
    """One call and how it ended."""

    connection: _Connection
    tool: str
    outcome: Outcome
    trace_id: str
    seconds: float
    more: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The ids of all questions so far, by their texts: one that is asked again says what was wrong with the answer."""

    def told(self, status: str, **fields: Any) -> dict[str, Any]:
        return {"status": status, **fields, "trace_id": self.trace_id, "metadata": self._metadata()}

    def _metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {"server": self.connection.name, "tool": self.tool, "seconds": round(self.seconds, 6)}
        if isinstance(self.outcome, Done | Failed):
            meta = dict(self.outcome.meta) if isinstance(self.outcome, Done) else {}
            meta.pop(TRACE, None)
            found["cached"] = bool(meta.pop(CACHED, False))
            if (usage := self.outcome.usage) is not None:
                found |= {"tokens": usage.tokens, "cost": usage.cost, "retries": usage.retries}
            if meta:
                found["meta"] = meta
        return found | self.more


_held: ContextVar[frozenset[_Connection]] = ContextVar("held", default=frozenset())
"""Connections on which a call is under way that this work is part of."""


class MCPClient:
    """Finds and runs the tools of the servers it is connected to. Safe from any thread, and inside a running loop.

    ``llm_client`` is the model that ``ask`` talks to, any ``agent3.llm.LLM``. ``core`` is where calls run; with a
    database of its own (``Standalone(Settings(storage=Storage(url=…)))``) plans outlive the process, under ``name``.
    On each server ``max_concurrent`` calls are under way at once; further ones wait in the order they came.
    """

    def __init__(
        self,
        llm_client: Any = None,
        *,
        principal: Principal = LOCAL,
        core: Standalone | None = None,
        max_concurrent: int = 64,
        name: str = "client",
    ):
        self.llm_client = llm_client
        self.principal = principal
        self.name = name
        self._core = core or shared()
        self._most = max_concurrent
        self._connections: tuple[_Connection, ...] = ()
        self._lock = threading.Lock()
        self._plans: LocalAgent | None = None
        self._open: dict[str, _Ran] = {}

    # Servers

    def connect_to_server(
        self,
        server: MCPServer | str | Sequence[str],
        *,
        name: str | None = None,
        credential: str | None = None,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> str:
        """Connect to a server: an ``MCPServer``, ``http(s)://…``, or a command that runs one. The name it has here.

        ``credential`` is a reference such as ``env:NAME``, never the secret; with ``X-API-Key=env:NAME``, or with
        ``headers={"X-API-Key": "env:NAME"}``, it goes into that header. ``env`` and ``cwd`` are a command's. Raises
        what keeps the server from being reached; one that is lost later shows it in ``servers``.
        """
        if isinstance(server, MCPServer):
            return self._connect_here(server, name)
        if not isinstance(server, str | Sequence):
            raise SetupError(f"connect_to_server takes an MCPServer, a URL or a command, got {type(server).__name__}.")
        from agent3.protocols.mcp.library.remotes import Remote, route_to  # it loads the SDK

        remote = Remote(self._core, route_to(server, credential=credential, headers=headers, env=env, cwd=cwd), name)
        self._check_free(name)
        bridge.run(remote.connect())
        try:
            return self._add(remote, name, remote.title)
        except Conflict:
            bridge.run(remote.disconnect())
            raise

    def disconnect(self, server: MCPServer | str) -> None:
        """Let a server go, by its name here or as the object; NotFound if it is not connected."""
        found = self._connection(server)
        self._remove(found)
        bridge.run(found.source.disconnect())

    def servers(self, *, look: bool = False) -> list[dict[str, Any]]:
        """Every connected server: name, kind, address, status, error, and how many tools it has.

        A server that was lost keeps its tools here, and its status is ``unavailable``. With ``look`` each is asked
        anew, all at once.
        """
        connections = self._connections
        if look and connections:
            bridge.run(_all(one.source.look() for one in connections))
        return [one.shown() for one in connections]

    def close(self) -> None:
        """Disconnect from all servers. The core and the model stay open, for they may serve others.

        Close a model that is not used any more by ``model.close()``.
        """
        with self._lock:
            connections, self._connections = self._connections, ()
            plans, self._plans = self._plans, None
        if plans is not None:
            self._core.drop(plans)
        if any(one.source.kind != "local" for one in connections):
            bridge.run(_all(one.source.disconnect() for one in connections))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # Tools

    def get_available_tools(self, server: str | None = None) -> list[ToolDefinition]:
        """The tools of all connected servers, or of one. Where two bear one name, the server connected first has it;
        ``server/tool`` names each."""
        chosen = self._connections if server is None else (self._connection(server),)
        found: dict[str, ToolDefinition] = {}
        for connection in chosen:
            for definition in connection.source.tools():
                found.setdefault(definition.name, definition)
        return list(found.values())

    list_tools = get_available_tools

    def invoke_tool(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        max_tokens: int | None = None,
        as_llm: bool = False,
    ) -> dict[str, Any]:
        """Run a tool: ``{"status": "success", "result": …, "trace_id": …, "metadata": {…}}``.

        A tool that failed gives ``"error"`` instead, one that asks ``"needs"``, one that goes on elsewhere
        ``"working"``. What is refused before the tool is asked raises: ValidationError, CapabilityNotFound,
        RateLimited, …. After ``timeout`` seconds the tool is cancelled, also a remote one. Of two calls with one
        ``idempotency_key`` the second gets the answer of the first. A result above ``max_tokens`` is cut, and
        ``metadata`` says where ``read_artifact`` goes on; ``as_llm`` gives it as a model reads it: a text, or
        ``llm.Text`` and ``llm.Image`` where there are pictures.
        """
        return bridge.run(self._invoke(name, parameters, timeout, idempotency_key, max_tokens, as_llm))

    async def invoke_tool_async(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        max_tokens: int | None = None,
        as_llm: bool = False,
    ) -> dict[str, Any]:
        """``invoke_tool`` in any loop. Cancelling it cancels the tool."""
        return await _over(self._invoke(name, parameters, timeout, idempotency_key, max_tokens, as_llm))

    def answer(
        self, job: str, answers: Mapping[str, Any], *, max_tokens: int | None = None, as_llm: bool = False
    ) -> dict[str, Any]:
        """Go on with a call that ended as ``needs``: an answer for each of its questions, by the question's id or text.

        An answer is a value that fits the question's ``schema``, for servers of this process and elsewhere alike;
        ``agent3.model.Answer("decline")`` says no. What it gives is what ``invoke_tool`` gives: one that does not fit
        is asked for again, under the same id. JobNotFound for a job that no call of this client waits for.
        """
        return bridge.run(self._answer(job, answers, max_tokens, as_llm))

    def wait(
        self, job: str, *, timeout: float = 60.0, max_tokens: int | None = None, as_llm: bool = False
    ) -> dict[str, Any]:
        """How a call stands that ended as ``working``: when it has ended, or after ``timeout`` seconds."""
        return bridge.run(self._wait(job, timeout, max_tokens, as_llm))

    def invoke_batch(
        self,
        calls: Sequence[Mapping[str, Any] | tuple[str, Mapping[str, Any]]],
        *,
        concurrency: int = 8,
        stop_on_error: bool | Literal["first", "cancel"] = False,
    ) -> list[dict[str, Any]]:
        """Run independent calls, ``concurrency`` at once; for each, in their order, what ``invoke_tool`` gives.

        A call is ``{"tool", "parameters", "id", "timeout"}`` or ``(tool, parameters)``. A refusal is that call's
        error and raises nothing. After an error, ``"first"`` begins no further call (``"skipped"``), and ``"cancel"``
        also ends those that run (``"canceled"``).
        """
        policy = _policy(stop_on_error)
        steps = [_call(number, one) for number, one in enumerate(calls)]
        items = bridge.run(run_batch(steps, self._step, parallel=concurrency, stop_on_error=policy))
        return _shown(items)

    def run_plan(
        self,
        plan: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        on_error: OnError = "stop",
        parallel: int = 8,
        done: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run steps that feed one another: ``{"status", "steps": [{"id", "status", "result" or "error", …}]}``.

        A step is ``{"id", "tool", "input", "after", "timeout"}``; ``${id.path}`` in its input is the result of
        another step, which it then waits for. With a ``key`` the plan is a job of the core, and goes on when it is
        run again under that key, also by another process if the core has a database: no finished step is repeated. A
        step that was cut off in the middle is repeated only if its tool is idempotent or read-only; else its error is
        ``interrupted``, and you decide: run the plan under another key, with the results of the steps that are not to
        be repeated in ``done``, by their ids. Raises ValidationError for a plan that cannot be run, and Conflict for
        a key that stands for another plan.
        """
        items = bridge.run(self._plan(plan, key, on_error, parallel, done))
        wrong = next((one.status for one in items if one.status not in ("success", "skipped")), "success")
        return {"status": wrong, "steps": [_decidable(one) for one in _shown(items)]}

    def read_artifact(self, handle: str, *, offset: int = 0, max_tokens: int = _RESULT_TOKENS) -> dict[str, Any]:
        """Read on in a result that was cut: ``{"text", "offset", "next", "size", "media_type"}``.

        ``next`` is where the piece after it begins, None at the end. NotFound for a handle of somebody else.
        """
        return bridge.run(self._read(handle, offset, max_tokens))

    # Models

    def ask(
        self,
        text: str | Sequence[llm.Message],
        *,
        max_steps: int = 10,
        max_seconds: float = 120.0,
        max_cost: float | None = None,
        parallel: bool | int = True,
        result_tokens: int = _RESULT_TOKENS,
        **options: Any,
    ) -> llm.Conversation:
        """Let the model answer with the tools of all connected servers. ``text`` of the result is the answer.

        What the model asks for is run, several calls at once unless ``parallel`` is False; errors go back to it as
        typed results, so that it can correct itself. It ends with an answer or at a cap, and ``stopped`` says which.
        Of each result the model gets ``result_tokens``, and a tool to read on. ``options`` are those of
        ``agent3.llm.run``, such as ``on_event`` and ``temperature``.
        """
        caps: dict[str, Any] = {"max_steps": max_steps, "max_seconds": max_seconds, "max_cost": max_cost}
        return bridge.run(self._ask(text, parallel=parallel, result_tokens=result_tokens, **caps, **options))

    async def ask_async(self, text: str | Sequence[llm.Message], **options: Any) -> llm.Conversation:
        """``ask`` in any loop, with the same options. Cancelling it cancels the tools that run."""
        return await _over(self._ask(text, **options))

    # Connections

    def _connect_here(self, server: MCPServer, name: str | None) -> str:
        known = next((one for one in self._connections if _is(one, server)), None)
        return known.name if known is not None else self._add(_Here(server, self.principal), name, server.name)

    def _add(self, source: _Source, name: str | None, title: str) -> str:
        """Know a server by the name it was given, else by its title, numbered where that is taken."""
        with self._lock:
            self._check_free(name)
            taken = {one.name for one in self._connections}
            free = (f"{title}-{number}" if number > 1 else title for number in range(1, len(taken) + 2))
            called = name or next(one for one in free if one not in taken)
            self._connections += (_Connection(called, source, asyncio.Semaphore(self._most)),)
        return called

    def _check_free(self, name: str | None) -> None:
        if name is not None and any(one.name == name for one in self._connections):
            raise Conflict(f"A server is connected as {name!r} already. Disconnect it first, or give another name.")

    def _remove(self, connection: _Connection) -> None:
        with self._lock:
            self._connections = tuple(one for one in self._connections if one is not connection)

    def _connection(self, server: MCPServer | str) -> _Connection:
        for one in self._connections:
            if one.name == server or _is(one, server):
                return one
        names = [one.name for one in self._connections]
        near = nearest(server, names) if isinstance(server, str) else None
        hint = f" Did you mean {near!r}?" if near else f" Connected: {', '.join(names) or 'none'}."
        raise NotFound(f"No server is connected as {getattr(server, 'name', server)!r}.{hint}")

    def _find(self, name: str) -> tuple[_Connection, str]:
        """Who has a tool, and its name there."""
        connections = self._connections
        for connection in connections:
            if connection.source.has(name):
                return connection, name
        for connection in connections:
            tool = name.removeprefix(f"{connection.name}/")
            if tool != name and connection.source.has(tool):
                return connection, tool
        raise self._unknown(name)

    def _unknown(self, name: str) -> CapabilityNotFound:
        names = [one.name for one in self.get_available_tools()]
        near = nearest(name, names)
        hint = f"Did you mean {near!r}?" if near else f"There are {len(names)} tools."
        data = {"nearest": [near]} if near else None
        return CapabilityNotFound(f"No connected server has a tool {name[:100]!r}. {hint}", data=data)

    # Calls, in the bridge's loop

    async def _invoke(
        self,
        name: str,
        parameters: Mapping[str, Any] | None,
        timeout: float | None,
        key: str | None,
        max_tokens: int | None,
        as_llm: bool,
    ) -> dict[str, Any]:
        given = {} if parameters is None else parameters
        if not isinstance(given, Mapping):
            raise ValidationError(f"The parameters of {name[:100]!r} are values by their names, got {_kind(given)}.")
        return await self._told(await self._run(name, given, timeout, key), max_tokens, as_llm)

    async def _run(self, name: str, given: Mapping[str, Any], timeout: float | None, key: str | None) -> _Ran:
        connection, tool = self._find(name)
        trace = traces.new(REAL)
        began = time.monotonic()
        try:
            async with _place(connection, timeout):
                left = None if timeout is None else max(0.001, round(timeout - (time.monotonic() - began), 3))
                outcome = await connection.source.call(
                    tool, given, self.principal, timeout=left, key=key, traceparent=trace.header()
                )
        except CallTimeout as late:
            outcome = failed_by(late)
        return _Ran(connection, tool, outcome, trace.trace_id, time.monotonic() - began)

    async def _told(self, ran: _Ran, max_tokens: int | None = None, as_llm: bool = False) -> dict[str, Any]:
        match ran.outcome:
            case Done() as done:
                result = await self._result(ran, done, max_tokens, as_llm)
                return ran.told("success", result=result)
            case Failed() as failed:
                if ran.connection.source.refused(failed):
                    raise error_of(failed)
                return ran.told("error", error=_error(failed))
            case Needs() as needs:
                self._remember(needs.job, ran)
                ran.names |= {one.text: one.id for one in needs.questions}
                return ran.told("needs", job=needs.job, questions=[_question(one) for one in needs.questions])
            case working:
                self._remember(working.job, ran)
                return ran.told("working", job=working.job)

    def _remember(self, job: str | None, ran: _Ran) -> None:
        """Know where a call goes on; of those that nobody came back to, the latest."""
        if job is not None:
            self._open[job] = ran
            while len(self._open) > _OPEN:
                self._open.pop(next(iter(self._open)))

    def _opened(self, job: str) -> _Ran:
        ran = self._open.get(job)
        if ran is None:
            raise JobNotFound(f"No call of this client waits under job {job[:100]!r}. Give the job that it told.")
        return ran

    async def _answer(
        self, job: str, answers: Mapping[str, Any], max_tokens: int | None, as_llm: bool
    ) -> dict[str, Any]:
        ran = self._opened(job)
        asked = ran.outcome.questions if isinstance(ran.outcome, Needs) else ()
        given = _answers(asked, ran.names, answers)
        return await self._go_on(ran, ran.connection.source.answer(job, given, self.principal), max_tokens, as_llm)

    async def _wait(self, job: str, seconds: float, max_tokens: int | None, as_llm: bool) -> dict[str, Any]:
        ran = self._opened(job)
        if not isinstance(ran.outcome, Working):
            return await self._told(ran, max_tokens, as_llm)
        later = ran.connection.source.wait(job, self.principal, seconds)
        return await self._go_on(ran, later, max_tokens, as_llm)

    async def _go_on(
        self, ran: _Ran, later: Awaitable[Outcome], max_tokens: int | None, as_llm: bool
    ) -> dict[str, Any]:
        began = time.monotonic()
        outcome = await later
        return await self._told(
            replace(ran, outcome=outcome, seconds=time.monotonic() - began, more={}), max_tokens, as_llm
        )

    async def _result(self, ran: _Ran, done: Done, max_tokens: int | None, as_llm: bool) -> Any:
        """The result as it was asked for; where it is cut, ``ran.more`` says how it goes on."""
        referred = parts_in(done)
        parts = [await self._whole(part, ran.connection.source.artifact) for part in referred]
        shown = content_of(parts) if as_llm else value_of(tuple(parts))
        if max_tokens is None:
            return shown
        text, limit = words_of(shown) if as_llm else text_in(shown), characters(max_tokens)
        if len(text) <= limit:
            return shown
        handle = await self._core.keep(self.principal, text.encode(), "text/plain; charset=utf-8")
        ran.more |= {"truncated": True, "artifact": handle, "next": limit, "size": len(text)}
        return _noted(cut(shown, limit), handle, limit, len(text)) if as_llm else text[:limit]

    async def _whole(self, part: Part, read: _Read) -> Part:
        """The part itself where the core put a reference in its place; one that has expired stays a reference."""
        if part.artifact is None:
            return part
        try:
            return part_of(part, *await read(part.artifact, self.principal))
        except NotFound:
            return part

    async def _kept(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        stored = await self._core.kept(principal, handle)
        return stored.body, stored.media_type

    async def _read(self, handle: str, offset: int = 0, max_tokens: int = _RESULT_TOKENS) -> dict[str, Any]:
        body, media_type = await self._kept(handle, self.principal)
        text, end = body.decode("utf-8", "replace"), offset + characters(max_tokens)
        return {
            "text": text[offset:end],
            "offset": offset,
            "next": end if end < len(text) else None,
            "size": len(text),
            "media_type": media_type,
        }

    # Plans

    async def _step(self, step: PlanStep, given: Any, key: str | None) -> Mapping[str, Any]:
        """One call of a plan or batch, to its end."""
        if not isinstance(given, Mapping):
            raise ValidationError(f"The input of step {step.id!r} is an object, got {type(given).__name__}.")
        ran = await self._run(step.tool, given, step.timeout, key)
        while isinstance(ran.outcome, Working) and key is not None:
            ran = await self._run(step.tool, given, step.timeout, key)  # whoever knows the key waits with us
        if isinstance(ran.outcome, Working) and ran.outcome.job is not None:
            ran.outcome = await ran.connection.source.wait(ran.outcome.job, self.principal, step.timeout or _LONGEST)
        return await self._told(ran)

    async def _plan(
        self,
        plan: Sequence[Mapping[str, Any]],
        key: str | None,
        on_error: OnError,
        parallel: int,
        done: Mapping[str, Any] | None,
    ) -> list[Item]:
        steps = parse_plan(plan)
        if key is None:
            return await run_plan(None, steps, self._step, on_error=on_error, parallel=parallel, done=done)
        agent = self._planning()
        await self._core.take_over()
        given = {"steps": msgspec.to_builtins(steps), "on_error": on_error, "parallel": parallel}
        given |= {"done": dict(done)} if done else {}
        capability = agent.functions["run"].capability
        outcome = await self._core.call_async(
            agent, capability, given, self.principal, key=f"plan {key}", timeout=_LONGEST
        )
        return await self._items(outcome)

    def _planning(self) -> LocalAgent:
        """The agent that runs this client's plans. It is hosted with the first of them, not before: a plan that an
        earlier process left goes on as soon as its agent is here, and then the servers must be connected."""
        with self._lock:
            if self._plans is None:
                plans = LocalAgent(f"plans of {self.name}", description="Runs plans: steps that feed one another.")
                self._core.host(plans)
                planner(plans, self._step)
                self._plans = plans
            return self._plans

    async def _items(self, outcome: Outcome) -> list[Item]:
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        parts = outcome.parts if isinstance(outcome, Done) else ()
        whole = [await self._whole(part, self._kept) for part in parts]
        return msgspec.convert(value_of(tuple(whole)), list[Item])

    # Models, in the bridge's loop

    async def _ask(
        self,
        text: str | Sequence[llm.Message],
        *,
        max_seconds: float = 120.0,
        parallel: bool | int = True,
        result_tokens: int = _RESULT_TOKENS,
        **options: Any,
    ) -> llm.Conversation:
        if not hasattr(self.llm_client, "complete"):
            raise SetupError(
                "ask needs a model: MCPClient(llm_client=agent3.llm.OpenAICompatible(…)), or Anthropic(…)."
            )

        async def invoke(name: str, arguments: dict[str, Any]) -> Any:
            return await self._for_model(name, arguments, result_tokens)

        return await llm.run(
            self.llm_client,
            text,
            self._model_tools(),
            invoke,
            seconds=max_seconds,
            parallel=(8 if parallel else 1) if isinstance(parallel, bool) else parallel,
            max_result=2 * characters(result_tokens),  # what is cut is cut by us, who keep the rest
            **options,
        )

    def _model_tools(self) -> list[llm.Tool]:
        tools = [llm.Tool(one.name, one.description, one.to_schema()) for one in self.get_available_tools()]
        return tools if any(one.name == _READER for one in tools) else [*tools, _READ_TOOL]

    async def _for_model(self, name: str, arguments: dict[str, Any], max_tokens: int) -> Any:
        """What a model is told of a call: content where it worked, the typed outcome where it did not."""
        if name == _READER and not any(one.source.has(name) for one in self._connections):
            return await self._read(arguments["handle"], arguments.get("offset", 0), max_tokens)
        ran = await self._run(name, arguments, None, None)
        if isinstance(ran.outcome, Done):
            return await self._result(ran, ran.outcome, max_tokens, as_llm=True)
        return ran.outcome


# --- around it --------------------------------------------------------------------------------------------------------


async def _over(work: Coroutine[Any, Any, T]) -> T:
    """Wait in any loop for work in the bridge's."""
    return await asyncio.wrap_future(bridge.shared().spawn(work))


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


@asynccontextmanager
async def _place(connection: _Connection, seconds: float | None) -> AsyncIterator[None]:
    """A place on a server, in turn; CallTimeout when none came free in time.

    What a tool calls while it runs needs no place of its own: it could wait for the one that its own caller holds.
    """
    held = _held.get()
    if connection in held:
        yield
        return
    try:
        async with asyncio.timeout(seconds):
            await connection.places.acquire()
    except TimeoutError:
        late = CallTimeout(f"Server {connection.name!r} was busy for {seconds:g} s. Raise max_concurrent or timeout.")
        late.sent = False
        raise late from None
    token = _held.set(held | {connection})
    try:
        yield
    finally:
        _held.reset(token)
        connection.places.release()


def _is(connection: _Connection, server: object) -> bool:
    return isinstance(connection.source, _Here) and connection.source.server is server


def _error(failed: Failed) -> dict[str, Any]:
    """What is told of a tool that failed."""
    error = {"code": failed.code, "message": failed.message, "retryable": failed.retryable}
    optional = {"retry_after": failed.retry_after, "data": failed.data}
    return error | {key: value for key, value in optional.items() if value}


def _noted(shown: Any, handle: str, offset: int, size: int) -> Any:
    note = f"[Cut after {offset} of {size} characters. Go on with {_READER}: handle {handle!r}, offset {offset}.]"
    return f"{shown}\n{note}" if isinstance(shown, str) else (*shown, llm.Text(note))


def _question(one: Question) -> dict[str, Any]:
    """A question as it is told: alike for servers of this process and for those elsewhere, who ask by forms."""
    field = _one_field(one.schema)
    schema = one.schema if field is None or field[0] != "answer" else field[1]
    told = {"id": one.id, "text": one.text, "schema": schema, "url": one.url}
    return {key: value for key, value in told.items() if value is not None}


def _one_field(schema: Mapping[str, Any] | None) -> tuple[str, Any] | None:
    """Name and schema of the only field of a form."""
    fields = (schema or {}).get("properties")
    return next(iter(fields.items())) if isinstance(fields, dict) and len(fields) == 1 else None


def _answers(asked: Sequence[Question], names: Mapping[str, str], answers: Mapping[str, Any]) -> dict[str, Answer]:
    """Answers by the ids of their questions; ValidationError for one to something that was not asked."""
    if not isinstance(answers, Mapping):
        raise ValidationError(f"Answers are values by the ids of their questions, got {_kind(answers)}.")
    questions = {one.id: one for one in asked}
    found = {name: questions.get(name) or questions.get(names.get(name, "")) for name in answers}
    given: dict[str, Answer] = {}
    for name, question in found.items():
        if question is None:
            wanted = "; ".join(f"{one.id}: {one.text}" for one in asked) or "nothing"
            raise ValidationError(f"{name[:100]!r} was not asked. Asked was: {wanted}")
        said = answers[name]
        given[question.id] = said if isinstance(said, Answer) else Answer(data=_in_form(question, said))
    return given


def _in_form(question: Question, value: Any) -> Any:
    """A plain value as the form of one field, where that is what a server wants; structure in a text is JSON."""
    field = _one_field(question.schema)
    if field is None or (isinstance(value, Mapping) and (field[0] != "answer" or "answer" in value)):
        return value
    name, kind = field
    as_text = isinstance(value, Mapping | list) and isinstance(kind, dict) and kind.get("type") == "string"
    return {name: encode(value).decode() if as_text else value}


def _policy(stop_on_error: object) -> StopOnError:
    match stop_on_error:
        case bool():
            return "first" if stop_on_error else "never"
        case "first" | "cancel":
            return stop_on_error
    raise ValidationError(f"stop_on_error is False, 'first' or 'cancel', got {str(stop_on_error)[:100]!r}.")


def _kind(value: object) -> str:
    return type(value).__name__


def _call(number: int, given: Mapping[str, Any] | tuple[str, Mapping[str, Any]]) -> PlanStep:
    """One call of a batch, as a step that waits for nothing."""
    if not isinstance(given, Mapping):
        match given:
            case (str(tool), Mapping() as parameters):
                return PlanStep(str(number), tool, parameters)
        raise ValidationError(
            f"Call {number} of the batch is malformed. Give (tool, parameters), or {{'tool': …, 'parameters': …}}."
        )
    fields = {"id": str(number), **given}
    if "parameters" in fields:
        fields["input"] = fields.pop("parameters")
    try:
        return msgspec.convert(fields, PlanStep)
    except msgspec.ValidationError as wrong:
        raise ValidationError(f"Call {number} of the batch is malformed: {wrong}") from None


def _decidable(step: dict[str, Any]) -> dict[str, Any]:
    """A step as it is told; one that was cut off says how to go on, for nobody but the caller can know."""
    error = step.get("error") or {}
    if error.get("code") != "interrupted":
        return step
    hint = "Find out whether it happened, then run the plan under another key, with the results of what is not to be "
    return {**step, "error": {**error, "message": f"{error['message']} {hint}repeated as done={{id: result}}."}}


def _shown(items: Sequence[Item]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(items)
    return [
        {**one, "result": item.result} if item.status == "success" else one
        for one, item in zip(found, items, strict=True)
    ]
