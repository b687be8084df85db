"""The documented ``MCPClient``: finds and runs the tools of servers, in this process or elsewhere.

A synchronous face; the work runs in the bridge's loop. Local and remote tools run under the same steps. What only
remote servers need, above all the SDK, is loaded with the first of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec

from agent3 import bridge, llm
from agent3.calls.outcomes import error_of, failed_by, is_refusal
from agent3.calls.steps.cache import CACHED
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
from agent3.protocols.mcp.library.rendering import (
    all_parts,
    content_to_text,
    restore_part,
    to_characters,
    to_content,
    to_text,
    truncate,
)
from agent3.protocols.mcp.library.server import MCPServer
from agent3.protocols.mcp.library.tool_runner import TRACE
from agent3.schema import nearest

__all__ = ["MCPClient"]

T = TypeVar("T")
_ReadArtifact = Callable[[str, Principal], Awaitable[tuple[bytes, str]]]
"""Gives the bytes of a large result and their media type."""

_READER = "read_artifact"
_RESULT_TOKENS = 8_000
"""What a model gets of one result, and anybody of an artifact, by default."""
_MOST_OPEN = 1_000
"""Calls that wait for an answer, or run elsewhere, that a client remembers."""
_LONGEST = 30 * 86_400.0

_READ_TOOL = llm.Tool(
    _READER,
    "Read the rest of a truncated result: returns the next piece of its text, and the offset of the one after it.",
    {
        "type": "object",
        "properties": {"handle": {"type": "string"}, "offset": {"type": "integer", "minimum": 0}},
        "required": ["handle"],
    },
)


class _Server(Protocol):
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
    def is_refusal(self, failed: Failed) -> bool: ...
    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome: ...
    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome: ...
    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome: ...
    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]: ...
    async def refresh(self) -> None: ...
    async def disconnect(self) -> None: ...


class _LocalServer:
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
        """Also by ``name@version``. A tool that the caller may not use does not exist for it."""
        base = name.partition("@")[0]
        if not self.server.versions(base):
            return False
        return self.server.security is None or any(tool.name == base for tool in self.tools())

    def is_refusal(self, failed: Failed) -> bool:
        return is_refusal(failed)

    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome:
        return await self.server.call_tool_async(name, given, principal, **options)

    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome:
        return await self.server.answer_async(job, answers, principal)

    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome:
        return Working(job=job)  # only its function knows how it goes on

    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        return await self.server.artifact_async(handle, principal)

    async def refresh(self) -> None:
        pass  # it is always up to date

    async def disconnect(self) -> None:
        pass  # it is not ours to close


@dataclass(frozen=True, eq=False, slots=True)
class _Connection:
    """A server under its name here, and the places for concurrent calls to it."""

    name: str
    server: _Server
    places: asyncio.Semaphore

    def is_to(self, server: object) -> bool:
        """Whether it is the connection to this ``MCPServer``."""
        return isinstance(self.server, _LocalServer) and self.server.server is server

    @asynccontextmanager
    async def place(self, seconds: float | None) -> AsyncIterator[None]:
        """A place for one call, in the order of arrival; CallTimeout if none came free in time.

        What a tool calls while it runs needs no place of its own: it could wait for the one that its own caller holds.
        """
        held = _held.get()
        if self in held:
            yield
            return
        try:
            async with asyncio.timeout(seconds):
                await self.places.acquire()
        except TimeoutError:
            late = CallTimeout(f"Server {self.name!r} was busy for {seconds:g} s. Raise max_concurrent or timeout.")
            late.sent = False
            raise late from None
        token = _held.set(held | {self})
        try:
            yield
        finally:
            _held.reset(token)
            self.places.release()


_held: ContextVar[frozenset[_Connection]] = ContextVar("held", default=frozenset())
"""Connections on which a call is under way that the current work is part of."""


@dataclass(slots=True)
class _CallRecord:
    """One call and its outcome."""

    connection: _Connection
    tool: str
    outcome: Outcome
    trace_id: str
    seconds: float
    truncation: dict[str, Any] = field(default_factory=dict)
    """Where the rest of a result is that was cut."""
    question_ids: dict[str, str] = field(default_factory=dict)
    """The ids of all questions so far, by their texts: a question asked again says what was wrong with the answer."""

    def to_response(self, status: str, **fields: Any) -> dict[str, Any]:
        """What ``invoke_tool`` gives for it."""
        metadata: dict[str, Any] = {
            "server": self.connection.name,
            "tool": self.tool,
            "seconds": round(self.seconds, 6),
        }
        if isinstance(self.outcome, Done | Failed):
            meta = dict(self.outcome.meta) if isinstance(self.outcome, Done) else {}
            meta.pop(TRACE, None)
            metadata["cached"] = bool(meta.pop(CACHED, False))
            if (usage := self.outcome.usage) is not None:
                metadata |= {"tokens": usage.tokens, "cost": usage.cost, "retries": usage.retries}
            if meta:
                metadata["meta"] = meta
        metadata |= self.truncation
        return {"status": status, **fields, "trace_id": self.trace_id, "metadata": metadata}


class MCPClient:
    """Finds and runs the tools of the servers it is connected to. Safe from any thread, and inside a running loop.

    ``llm_client`` is the model that ``ask`` uses, any ``agent3.llm.LLM``. ``core`` is where calls run; with a database
    of its own (``Standalone(Settings(storage=Storage(url=…)))``) plans outlive the process, under ``name``. On each
    server ``max_concurrent`` calls run at once; further ones wait in the order they came.
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
        self._max_concurrent = max_concurrent
        self._connections: tuple[_Connection, ...] = ()
        self._lock = threading.Lock()
        self._planner: LocalAgent | None = None
        self._open_calls: dict[str, _CallRecord] = {}

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
        """Connect to a server: an ``MCPServer``, ``http(s)://…``, or a command that runs one. Gives its name here.

        ``credential`` is a reference such as ``env:NAME``, never the secret; with ``X-API-Key=env:NAME``, or with
        ``headers={"X-API-Key": "env:NAME"}``, it goes into that header. ``env`` and ``cwd`` are for a command. Raises
        what keeps the server from being reached; one that is lost later shows it in ``servers``.
        """
        if isinstance(server, MCPServer):
            for connection in self._connections:
                if connection.is_to(server):
                    return connection.name
            return self._add(_LocalServer(server, self.principal), name, server.name)
        if not isinstance(server, str | Sequence):
            raise SetupError(f"connect_to_server takes an MCPServer, a URL or a command, got {type(server).__name__}.")
        from agent3.protocols.mcp.library.remotes import RemoteServer, parse_route  # it loads the SDK

        route = parse_route(server, credential=credential, headers=headers, env=env, cwd=cwd)
        remote = RemoteServer(self._core, route, name)
        self._check_free(name)
        bridge.run(remote.connect())
        try:
            return self._add(remote, name, remote.title)
        except Conflict:
            bridge.run(remote.disconnect())
            raise

    def disconnect(self, server: MCPServer | str) -> None:
        """Disconnect from a server, given by its name here or as the object; NotFound if it is not connected."""
        found = self._connection(server)
        with self._lock:
            self._connections = tuple(connection for connection in self._connections if connection is not found)
        bridge.run(found.server.disconnect())

    def servers(self, *, look: bool = False) -> list[dict[str, Any]]:
        """Every connected server: name, kind, address, status, error, and how many tools it has.

        A server that was lost keeps its tools here, with the status ``unavailable``. With ``look`` each is asked anew,
        all at once.
        """
        connections = self._connections
        if look and connections:
            bridge.run(_gather(*(connection.server.refresh() for connection in connections)))
        return [
            {
                "name": connection.name,
                "kind": connection.server.kind,
                "address": connection.server.address,
                "status": connection.server.status,
                "error": connection.server.error,
                "tools": len(connection.server.tools()),
            }
            for connection in connections
        ]

    def close(self) -> None:
        """Disconnect from all servers. The core and the model stay open, because they may serve others.

        Close a model that is no longer used by ``model.close()``.
        """
        with self._lock:
            connections, self._connections = self._connections, ()
            planner, self._planner = self._planner, None
        if planner is not None:
            self._core.drop(planner)
        if any(connection.server.kind != "local" for connection in connections):
            bridge.run(_gather(*(connection.server.disconnect() for connection in connections)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _add(self, server: _Server, name: str | None, title: str) -> str:
        """Add a server under the name it was given, else under its title, numbered where that is taken."""
        with self._lock:
            self._check_free(name)
            taken = {connection.name for connection in self._connections}
            candidates = (f"{title}-{number}" if number > 1 else title for number in range(1, len(taken) + 2))
            chosen = name or next(candidate for candidate in candidates if candidate not in taken)
            self._connections += (_Connection(chosen, server, asyncio.Semaphore(self._max_concurrent)),)
        return chosen

    def _check_free(self, name: str | None) -> None:
        if name is not None and any(connection.name == name for connection in self._connections):
            raise Conflict(f"A server is already connected as {name!r}. Disconnect it first, or use another name.")

    def _connection(self, server: MCPServer | str) -> _Connection:
        for connection in self._connections:
            if connection.name == server or connection.is_to(server):
                return connection
        names = [connection.name for connection in self._connections]
        near = nearest(server, names) if isinstance(server, str) else None
        hint = f" Did you mean {near!r}?" if near else f" Connected: {', '.join(names) or 'none'}."
        raise NotFound(f"No server is connected as {getattr(server, 'name', server)!r}.{hint}")

    # Tools

    def get_available_tools(self, server: str | None = None) -> list[ToolDefinition]:
        """The tools of all connected servers, or of one. A name that several servers have means the server connected
        first; ``server/tool`` names each."""
        connections = self._connections if server is None else (self._connection(server),)
        found: dict[str, ToolDefinition] = {}
        for connection in connections:
            for definition in connection.server.tools():
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
        ``"working"``. What is refused before the tool runs raises: ValidationError, CapabilityNotFound, RateLimited,
        …. After ``timeout`` seconds the tool is cancelled, also a remote one. Of two calls with one
        ``idempotency_key`` the second gets the answer of the first. A result above ``max_tokens`` is cut, and
        ``metadata`` says where ``read_artifact`` continues; ``as_llm`` gives it as a model reads it: a text, or
        ``llm.Text`` and ``llm.Image`` where there are images.
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
        return await _in_bridge(self._invoke(name, parameters, timeout, idempotency_key, max_tokens, as_llm))

    def answer(
        self, job: str, answers: Mapping[str, Any], *, max_tokens: int | None = None, as_llm: bool = False
    ) -> dict[str, Any]:
        """Continue a call that ended as ``needs``: an answer for each of its questions, by the question's id or text.

        An answer is a value that fits the question's ``schema``, for local and remote servers alike;
        ``agent3.model.Answer("decline")`` says no. Gives what ``invoke_tool`` gives: a question whose answer does not
        fit is asked again, under the same id. JobNotFound for a job that no call of this client waits for.
        """
        return bridge.run(self._answer(job, answers, max_tokens, as_llm))

    def wait(
        self, job: str, *, timeout: float = 60.0, max_tokens: int | None = None, as_llm: bool = False
    ) -> dict[str, Any]:
        """The state of a call that ended as ``working``: once it has ended, or after ``timeout`` seconds."""
        return bridge.run(self._wait(job, timeout, max_tokens, as_llm))

    def read_artifact(self, handle: str, *, offset: int = 0, max_tokens: int = _RESULT_TOKENS) -> dict[str, Any]:
        """Read on in a result that was cut: ``{"text", "offset", "next", "size", "media_type"}``.

        ``next`` is where the piece after it begins, None at the end. NotFound for a handle of another caller.
        """
        return bridge.run(self._read(handle, offset, max_tokens))

    # Batches and plans

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
        policy: StopOnError
        match stop_on_error:
            case bool():
                policy = "first" if stop_on_error else "never"
            case "first" | "cancel":
                policy = stop_on_error
            case _:
                raise ValidationError(
                    f"stop_on_error must be False, 'first' or 'cancel', got {str(stop_on_error)[:100]!r}."
                )
        steps = [_parse_call(number, call) for number, call in enumerate(calls)]
        return _dump(bridge.run(run_batch(steps, self._run_step, parallel=concurrency, stop_on_error=policy)))

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
        another step, which it then waits for. With a ``key`` the plan is a job of the core, and continues when it is
        run again under that key, also by another process if the core has a database: no finished step is repeated. A
        step that was interrupted is repeated only if its tool is idempotent or read-only; else its error is
        ``interrupted``, and you decide: run the plan under another key, with the results of the steps that are not to
        be repeated in ``done``, by their ids. Raises ValidationError for a plan that cannot be run, and Conflict for
        a key that stands for another plan.
        """
        items = bridge.run(self._plan(plan, key, on_error, parallel, done))
        failures = (item.status for item in items if item.status not in ("success", "skipped"))
        steps = _dump(items)
        for step in steps:
            error = step.get("error") or {}
            if error.get("code") == "interrupted":  # only the caller can know how to go on
                hint = "Find out whether it happened, then run the plan under another key, with the results of what "
                hint += "must not be repeated as done={id: result}."
                step["error"] = {**error, "message": f"{error['message']} {hint}"}
        return {"status": next(failures, "success"), "steps": steps}

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
        return await _in_bridge(self._ask(text, **options))

    # In the bridge's loop: calls

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
            raise ValidationError(
                f"The parameters of {name[:100]!r} must be a mapping from name to value, got {type(given).__name__}."
            )
        return await self._respond(await self._run(name, given, timeout, key), max_tokens, as_llm)

    async def _run(self, name: str, given: Mapping[str, Any], timeout: float | None, key: str | None) -> _CallRecord:
        connection, tool = self._find(name)
        trace = traces.new(REAL)
        began = time.monotonic()
        try:
            async with connection.place(timeout):
                left = None if timeout is None else max(0.001, round(timeout - (time.monotonic() - began), 3))
                outcome = await connection.server.call(
                    tool, given, self.principal, timeout=left, key=key, traceparent=trace.header()
                )
        except CallTimeout as error:
            outcome = failed_by(error)
        return _CallRecord(connection, tool, outcome, trace.trace_id, time.monotonic() - began)

    def _find(self, name: str) -> tuple[_Connection, str]:
        """The connection that has a tool, and the name of the tool there."""
        connections = self._connections
        for connection in connections:
            if connection.server.has(name):
                return connection, name
        for connection in connections:
            tool = name.removeprefix(f"{connection.name}/")
            if tool != name and connection.server.has(tool):
                return connection, tool
        names = [definition.name for definition in self.get_available_tools()]
        near = nearest(name, names)
        hint = f"Did you mean {near!r}?" if near else f"There are {len(names)} tools."
        data = {"nearest": [near]} if near else None
        raise CapabilityNotFound(f"No connected server has a tool {name[:100]!r}. {hint}", data=data)

    async def _answer(
        self, job: str, answers: Mapping[str, Any], max_tokens: int | None, as_llm: bool
    ) -> dict[str, Any]:
        record = self._open_call(job)
        questions = record.outcome.questions if isinstance(record.outcome, Needs) else ()
        # Answers by the ids of their questions; ValidationError for one to something that was not asked.
        if not isinstance(answers, Mapping):
            raise ValidationError(f"Answers are a mapping from question id to value, got {type(answers).__name__}.")
        by_id = {question.id: question for question in questions}
        given: dict[str, Answer] = {}
        for name, value in answers.items():
            question = by_id.get(name) or by_id.get(record.question_ids.get(name, ""))
            if question is None:
                asked = "; ".join(f"{question.id}: {question.text}" for question in questions) or "nothing"
                raise ValidationError(f"{name[:100]!r} was not asked. Asked was: {asked}")
            given[question.id] = (
                value if isinstance(value, Answer) else Answer(data=_to_form(question, value), exact=True)
            )
        following = record.connection.server.answer(job, given, self.principal)
        return await self._continue(record, following, max_tokens, as_llm)

    async def _wait(self, job: str, seconds: float, max_tokens: int | None, as_llm: bool) -> dict[str, Any]:
        record = self._open_call(job)
        if not isinstance(record.outcome, Working):
            return await self._respond(record, max_tokens, as_llm)
        following = record.connection.server.wait(job, self.principal, seconds)
        return await self._continue(record, following, max_tokens, as_llm)

    def _open_call(self, job: str) -> _CallRecord:
        record = self._open_calls.get(job)
        if record is None:
            raise JobNotFound(
                f"No call of this client is waiting under job {job[:100]!r}. Use the job of its response."
            )
        return record

    async def _continue(
        self, record: _CallRecord, following: Awaitable[Outcome], max_tokens: int | None, as_llm: bool
    ) -> dict[str, Any]:
        began = time.monotonic()
        outcome = await following
        seconds = time.monotonic() - began
        return await self._respond(replace(record, outcome=outcome, seconds=seconds, truncation={}), max_tokens, as_llm)

    async def _respond(
        self, record: _CallRecord, max_tokens: int | None = None, as_llm: bool = False
    ) -> dict[str, Any]:
        match record.outcome:
            case Done() as done:
                result = await self._result(record, done, max_tokens, as_llm)
                return record.to_response("success", result=result)
            case Failed() as failed:
                if record.connection.server.is_refusal(failed):
                    raise error_of(failed)
                error: dict[str, Any] = {
                    "code": failed.code,
                    "message": failed.message,
                    "retryable": failed.retryable,
                }
                if failed.retry_after:
                    error["retry_after"] = failed.retry_after
                if failed.data:
                    error["data"] = failed.data
                return record.to_response("error", error=error)
            case Needs() as needs:
                self._remember(needs.job, record)
                record.question_ids |= {question.text: question.id for question in needs.questions}
                return record.to_response("needs", job=needs.job, questions=list(map(_dump_question, needs.questions)))
            case working:
                self._remember(working.job, record)
                return record.to_response("working", job=working.job)

    def _remember(self, job: str | None, record: _CallRecord) -> None:
        """Remember where a call continues; the oldest are forgotten first."""
        if job is not None:
            self._open_calls[job] = record
            while len(self._open_calls) > _MOST_OPEN:
                self._open_calls.pop(next(iter(self._open_calls)))

    # In the bridge's loop: results

    async def _result(self, record: _CallRecord, done: Done, max_tokens: int | None, as_llm: bool) -> Any:
        """The result in the form asked for; where it is cut, ``record.truncation`` says how it continues."""
        read = record.connection.server.artifact
        parts = [await self._restore(part, read) for part in all_parts(done)]
        shown = to_content(parts) if as_llm else value_of(tuple(parts))
        if max_tokens is None:
            return shown
        text, limit = content_to_text(shown) if as_llm else to_text(shown), to_characters(max_tokens)
        if len(text) <= limit:
            return shown
        handle = await self._core.keep(self.principal, text.encode(), "text/plain; charset=utf-8")
        record.truncation |= {"truncated": True, "artifact": handle, "next": limit, "size": len(text)}
        if not as_llm:
            return text[:limit]
        note = (
            f"[Truncated after {limit} of {len(text)} characters. Continue with {_READER}: handle "
            f"{handle!r}, offset {limit}.]"
        )
        cut = truncate(shown, limit)
        return f"{cut}\n{note}" if isinstance(cut, str) else (*cut, llm.Text(note))

    async def _restore(self, part: Part, read: _ReadArtifact) -> Part:
        """The part itself where the core put a reference in its place; one that has expired stays a reference."""
        if part.artifact is None:
            return part
        try:
            return restore_part(part, *await read(part.artifact, self.principal))
        except NotFound:
            return part

    async def _read_kept(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        stored = await self._core.kept(principal, handle)
        return stored.body, stored.media_type

    async def _read(self, handle: str, offset: int = 0, max_tokens: int = _RESULT_TOKENS) -> dict[str, Any]:
        body, media_type = await self._read_kept(handle, self.principal)
        text, end = body.decode("utf-8", "replace"), offset + to_characters(max_tokens)
        return {
            "text": text[offset:end],
            "offset": offset,
            "next": end if end < len(text) else None,
            "size": len(text),
            "media_type": media_type,
        }

    # In the bridge's loop: plans

    async def _run_step(self, step: PlanStep, given: Any, key: str | None) -> Mapping[str, Any]:
        """One call of a plan or batch, to its end."""
        if not isinstance(given, Mapping):
            raise ValidationError(f"The input of step {step.id!r} must be an object, got {type(given).__name__}.")
        record = await self._run(step.tool, given, step.timeout, key)
        while isinstance(record.outcome, Working) and key is not None:
            record = await self._run(step.tool, given, step.timeout, key)  # the same key waits for the same call
        if isinstance(record.outcome, Working) and record.outcome.job is not None:
            seconds = step.timeout or _LONGEST
            record.outcome = await record.connection.server.wait(record.outcome.job, self.principal, seconds)
        return await self._respond(record)

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
            return await run_plan(None, steps, self._run_step, on_error=on_error, parallel=parallel, done=done)
        with self._lock:
            # Hosted with the first plan, not before: a plan that an earlier process left continues as soon as its
            # agent is here, and by then the servers must be connected.
            if self._planner is None:
                agent = LocalAgent(
                    f"plans of {self.name}", description="Runs plans: steps that use one another's results."
                )
                self._core.host(agent)
                planner(agent, self._run_step)
                self._planner = agent
            agent = self._planner
        await self._core.take_over()
        given = {"steps": msgspec.to_builtins(steps), "on_error": on_error, "parallel": parallel}
        given |= {"done": dict(done)} if done else {}
        capability = agent.functions["run"].capability
        outcome = await self._core.call_async(
            agent, capability, given, self.principal, key=f"plan {key}", timeout=_LONGEST
        )
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        parts = outcome.parts if isinstance(outcome, Done) else ()
        restored = [await self._restore(part, self._read_kept) for part in parts]
        return msgspec.convert(value_of(tuple(restored)), list[Item])

    # In the bridge's loop: models

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
        tools = [llm.Tool(tool.name, tool.description, tool.to_schema()) for tool in self.get_available_tools()]
        if all(tool.name != _READER for tool in tools):
            tools.append(_READ_TOOL)

        async def invoke(name: str, arguments: dict[str, Any]) -> Any:
            """What the model gets of a call: content if it succeeded, else the typed outcome."""
            if name == _READER and not any(connection.server.has(name) for connection in self._connections):
                return await self._read(arguments["handle"], arguments.get("offset", 0), result_tokens)
            record = await self._run(name, arguments, None, None)
            if isinstance(record.outcome, Done):
                return await self._result(record, record.outcome, result_tokens, as_llm=True)
            return record.outcome

        return await llm.run(
            self.llm_client,
            text,
            tools,
            invoke,
            seconds=max_seconds,
            parallel=(8 if parallel else 1) if isinstance(parallel, bool) else parallel,
            max_result=2 * to_characters(result_tokens),  # results are cut here, where the rest is kept
            **options,
        )


async def _in_bridge(work: Coroutine[Any, Any, T]) -> T:
    """Wait in any loop for work in the bridge's."""
    return await asyncio.wrap_future(bridge.get_shared().spawn(work))


async def _gather(*works: Awaitable[None]) -> None:
    await asyncio.gather(*works)


# Questions and answers


def _dump_question(question: Question) -> dict[str, Any]:
    """A question, alike for local servers and for remote ones, which ask by forms."""
    only = _only_field(question.schema)
    schema = question.schema if only is None or only[0] != "answer" else only[1]
    fields = {"id": question.id, "text": question.text, "schema": schema, "url": question.url}
    return {key: value for key, value in fields.items() if value is not None}


def _only_field(schema: Mapping[str, Any] | None) -> tuple[str, Any] | None:
    """Name and schema of the only field of a form."""
    fields = (schema or {}).get("properties")
    return next(iter(fields.items())) if isinstance(fields, dict) and len(fields) == 1 else None


def _to_form(question: Question, value: Any) -> Any:
    """A plain value as a form with one field, where a server wants one; structure in a text field becomes JSON."""
    only = _only_field(question.schema)
    if only is None or (isinstance(value, Mapping) and (only[0] != "answer" or "answer" in value)):
        return value
    name, field_schema = only
    is_text = isinstance(field_schema, dict) and field_schema.get("type") == "string"
    return {name: encode(value).decode() if is_text and isinstance(value, Mapping | list) else value}


# Batches and plans


def _parse_call(number: int, call: Mapping[str, Any] | tuple[str, Mapping[str, Any]]) -> PlanStep:
    """One call of a batch, as a step that waits for nothing."""
    if not isinstance(call, Mapping):
        match call:
            case (str(tool), Mapping() as parameters):
                return PlanStep(str(number), tool, parameters)
        raise ValidationError(
            f"Call {number} of the batch is malformed. Give (tool, parameters), or {{'tool': …, 'parameters': …}}."
        )
    fields = {"id": str(number), **call}
    if "parameters" in fields:
        fields["input"] = fields.pop("parameters")
    try:
        return msgspec.convert(fields, PlanStep)
    except msgspec.ValidationError as error:
        raise ValidationError(f"Call {number} of the batch is malformed: {error}") from None


def _dump(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as plain dicts; a successful one has its result even if that is None, and as the object it is."""
    dumped: list[dict[str, Any]] = msgspec.to_builtins(items)
    return [
        {**step, "result": item.result} if item.status == "success" else step
        for step, item in zip(dumped, items, strict=True)
    ]
