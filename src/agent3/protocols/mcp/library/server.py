"""The documented ``MCPServer``: tools under one name, for this process and for clients that connect.

A registered tool runs under the same steps as everything else in the house. This module knows no wire and no SDK:
what serves the tools to other programs (``agent3.protocols.mcp.library.serving``) is loaded when it is first asked for.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import jsonschema_rs

from agent3 import bridge, schema
from agent3.definitions import ToolDefinition
from agent3.env import REAL, Env
from agent3.errors import RequestError, SetupError, Unauthenticated
from agent3.model import LOCAL, Answer, Event, Outcome, Principal
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.protocols.mcp.library.catalogue import Version
from agent3.protocols.mcp.library.fair_queue import Turns
from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
from agent3.protocols.mcp.library.tool_runner import DEPRECATED, TRACE, Rules, Workshop
from agent3.schema import from_function, nearest
from agent3.settings import Calls, Limits, Settings

if TYPE_CHECKING:
    from agent3.protocols.mcp.library.serving import Endpoint, Listening

__all__ = ["DEPRECATED", "TRACE", "MCPServer"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Listener = Callable[[Event], None]
Who = Callable[[Mapping[str, Any]], Principal]
"""Reads who calls from an ASGI scope; raises AccessError where nobody may."""

_TRANSPORTS = ("http", "stdio")
_unmetered = Standalone(Settings(calls=Calls(ledger="batched", job_days=1.0), limits=Limits(per_minute=0.0)))
"""The core of servers that count calls by themselves: two counters for one call would contradict each other."""


class MCPServer:
    """A set of tools under one name. Safe from any thread, and inside a running loop.

        server = MCPServer(name="travel")
        server.register_tool(ToolDefinition(name="search_flights", parameters=[…]), search_flights)

    ``security`` says who a client is and which tools it has; the person at this machine is the client ``local``.
    ``rate_limiter`` counts every call, and ``validator`` bounds what is sent; with ``security`` both are there by
    default, where the local person is not counted. ``max_concurrent`` calls run at once and ``max_waiting`` wait,
    served by turns of their callers. ``timeout`` holds for tools that name none.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        version: str = "1",
        core: Standalone | None = None,
        security: MCPSecurityManager | None = None,
        rate_limiter: MCPRateLimiter | None = None,
        validator: MCPInputValidator | None = None,
        max_concurrent: int | None = None,
        max_waiting: int = 1_000,
        timeout: float | None = None,
        env: Env = REAL,
    ):
        if not name.strip():
            raise SetupError("An MCPServer needs a name: clients show it, and the ledger has its calls under it.")
        self.name = name
        self.description = description
        self.version = version
        self.security = security
        rules = Rules(
            security,
            limiter=rate_limiter or (MCPRateLimiter(env=env) if security else None),
            validator=validator or (MCPInputValidator() if security else None),
            turns=None if max_concurrent is None else Turns(max_concurrent, waiting=max_waiting, env=env),
            timeout=timeout,
            spares_local=rate_limiter is None,
        )
        self._core = core or (shared() if rules.limiter is None else _unmetered)
        self._agent = LocalAgent(name, description=description, version=version)
        self._workshop = Workshop(name, self._agent, self._core, rules, env)
        self._watchers: list[Callable[[], None]] = []
        self._home: asyncio.AbstractEventLoop | None = None

    # What it offers

    def register_tool(self, definition: ToolDefinition, function: Callable[..., Any]) -> None:
        """Offer a tool, or one more version of it; Conflict when name and version are taken.

        SetupError for parameters that the function does not have, and for schemas that are none. Connected clients
        are told. The types in the function's signature are read when the tool is first called.
        """
        _check(definition, function)
        self._workshop.catalogue.add(definition, function)
        self._tell()

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(self, function: None = None, **options: Any) -> Callable[[F], F]: ...

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Offer a function as a tool; its signature and docstring are the definition."""
        if function is None:
            return lambda given: self.tool(given, **options)
        self.register_tool(_definition_of(function, options), function)
        return function

    def unregister(self, name: str, version: str | None = None) -> None:
        """Take a tool back, or one version of it. Connected clients are told, and its kept results are forgotten."""
        catalogue = self._workshop.catalogue
        before = catalogue.family(name)
        if not catalogue.remove(name, version):
            raise self._workshop.unknown(name if version is None else f"{name}@{version}", LOCAL)
        self._workshop.forget(set(before) - set(catalogue.family(name)))
        self._tell()

    def invalidate(self, name: str | None = None) -> None:
        """Forget the kept results of a tool, or of all; also what calls that run just now will bring."""
        if not self._workshop.catalogue.renew(name):
            raise self._workshop.unknown(name or "", LOCAL)

    @MCPPerformanceMonitor.enforce_latency("list_tools")
    def list_tools(self, principal: Principal = LOCAL, *, all_versions: bool = False) -> list[ToolDefinition]:
        """The tools that a caller has, in the order of their registration: of each the newest version, or all."""
        return [one.definition for one in self._workshop.offered(principal, all_versions=all_versions)]

    def offered(self, principal: Principal = LOCAL) -> Sequence[Version]:
        """The newest versions of the tools that a caller has; the same sequence as long as nothing changes."""
        return self._workshop.offered(principal)

    def versions(self, name: str) -> tuple[Version, ...]:
        """All versions of a tool, the newest first."""
        return self._workshop.catalogue.family(name)

    def fingerprint(self, principal: Principal) -> tuple[Any, ...]:
        """Something that stays the same as long as the caller has the same tools."""
        return self._workshop.fingerprint(principal)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called, from whichever thread, whenever the tools change; what it gives ends that."""
        self._watchers.append(changed)

        def end() -> None:
            with suppress(ValueError):
                self._watchers.remove(changed)

        return end

    # Calling

    def authenticate(self, client_id: str, signature: str, timestamp: str) -> Principal:
        """The client that made a signature, as ``security`` judges; Unauthenticated where it did not."""
        if self.security is None:
            raise SetupError(f"Server {self.name!r} knows no clients. Give it security=MCPSecurityManager(…).")
        if not self.security.authenticate_client(client_id, signature, timestamp):
            raise Unauthenticated("The signature is not that of this client, or more than 300 s away from now.")
        return Principal(client_id, "client")

    def call_tool(
        self, name: str, arguments: Mapping[str, Any], principal: Principal = LOCAL, **options: Any
    ) -> Outcome:
        """One call of ``name``, ``name@version`` or ``name@sha256:…`` through all steps; waits for its outcome.

        Raises CapabilityNotFound for what the caller does not have, Conflict for a definition that is no longer the
        pinned one; other refusals are outcomes. ``options`` are those of ``call_tool_async``.
        """
        return bridge.run(self._at_work(self._workshop.call(name, arguments, principal, **options)))

    async def call_tool_async(
        self,
        name: str,
        arguments: Mapping[str, Any],
        principal: Principal = LOCAL,
        *,
        timeout: float | None = None,
        key: str | None = None,
        traceparent: str | None = None,
        listener: Listener | None = None,
        door: str = "library",
    ) -> Outcome:
        """Likewise from a coroutine, in whichever loop; cancelling it cancels the tool.

        ``timeout`` bounds the call as a whole, all who send the same ``key`` share one call, and ``listener`` hears of
        events on the caller's loop. ``door`` is where the ledger says that the call came in.
        """
        given = {"timeout": timeout, "key": key, "traceparent": traceparent, "listener": self._heard_here(listener)}
        return await self._at_home(self._workshop.call(name, arguments, principal, door=door, **given))

    async def answer_async(
        self,
        job: str,
        answers: Mapping[str, Answer],
        principal: Principal = LOCAL,
        listener: Listener | None = None,
        *,
        door: str = "library",
    ) -> Outcome:
        """The next turn of a call that asked something."""
        return await self._at_home(self._workshop.answer(job, answers, principal, self._heard_here(listener), door))

    async def artifact_async(self, handle: str, principal: Principal = LOCAL) -> tuple[bytes, str]:
        """The bytes of a large result, and what they are; NotFound for what is not this caller's."""
        stored = await self._at_home(self._core.kept(principal, handle))
        return stored.body, stored.media_type

    def close(self) -> None:
        """Forget the server and its tools."""
        self._core.drop(self._agent)
        self._workshop.forget(self._workshop.catalogue.all())
        self._workshop.catalogue.clear()
        self._tell()

    # Serving

    def asgi(
        self,
        path: str = "/mcp",
        *,
        principal: Who | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ) -> Endpoint:
        """An ASGI app that serves the tools at ``path``: alone, as a route, or mounted in Starlette or FastAPI.

        ``principal`` says who calls; without it ``security`` does, and without that only this machine may call.
        Behind a proxy on this machine give ``principal``: to a server everybody who comes through one is at this
        machine, unless the proxy says otherwise. ``allowed_hosts`` are names, besides those of loopback, under which
        the server may be called.
        """
        endpoint: Endpoint = _serving().Endpoint(self, path, principal, allowed_hosts, allowed_origins)
        return endpoint

    def listening(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/mcp",
        *,
        principal: Who | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ) -> Listening:
        """Serve over HTTP for the length of a ``with`` block, in the background; gives the address.

        SetupError for a host that other machines reach, unless ``principal`` says who calls.
        """
        hosts = _serving().names_of(host, principal, allowed_hosts)
        app = self.asgi(path, principal=principal, allowed_hosts=hosts, allowed_origins=allowed_origins)
        served: Listening = _serving().Listening(app, host, port)
        return served

    def run(
        self,
        transport: Literal["http", "stdio"] = "http",
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        **options: Any,
    ) -> None:
        """Serve until a signal comes; over standard input and output until the host leaves.

        ``options`` are those of ``listening``. SetupError for a transport that is neither.
        """
        _check_transport(transport)
        if transport == "stdio":
            _serving().run_stdio(self)
        else:
            _serving().run_http(self.name, self.listening(host, port, path, **options))

    async def run_async(
        self,
        transport: Literal["http", "stdio"] = "http",
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        **options: Any,
    ) -> None:
        """Likewise from a coroutine, until it is cancelled."""
        _check_transport(transport)
        if transport == "stdio":
            await self._at_home(_serving().stdio(self))
        else:
            await _serving().run_http_async(self.name, self.listening(host, port, path, **options))

    # Inside

    def _tell(self) -> None:
        for changed in list(self._watchers):
            changed()

    async def _at_work(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something where the core lives, and remember where that is."""
        self._home = asyncio.get_running_loop()
        return await work

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done where the core lives: right here, or in the bridge's loop."""
        if asyncio.get_running_loop() is self._home:
            return await work
        return await asyncio.wrap_future(bridge.shared().spawn(self._at_work(work)))

    def _heard_here(self, listener: Listener | None) -> Listener | None:
        here = asyncio.get_running_loop()
        if listener is None or here is self._home:
            return listener
        return lambda event: _pass_on(here, listener, event)


def _pass_on(loop: asyncio.AbstractEventLoop, listener: Listener, event: Event) -> None:
    loop.call_soon_threadsafe(listener, event)


def _serving() -> Any:
    """What serves, with the SDK and the web server that it loads."""
    return import_module("agent3.protocols.mcp.library.serving")


def _check_transport(transport: str) -> None:
    if transport not in _TRANSPORTS:
        near = nearest(str(transport), _TRANSPORTS)
        hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(_TRANSPORTS)}."
        raise SetupError(f"A server has no transport {transport!r}. {hint}")


def _check(definition: ToolDefinition, function: Callable[..., Any]) -> None:
    """What can be said of a tool without reading types and without a call: SetupError for what cannot work."""
    name = definition.name
    try:
        takes = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise SetupError(f"Tool {name!r} needs a function with a signature, got {type(function).__name__}.") from None
    for one in takes:
        if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
            raise SetupError(f"Tool {name!r}: its function takes {one.name!r} by position, but input comes by name.")
    _check_names(definition, [one for one in takes if not _is_context(one)])
    _check_schemas(definition)


def _check_names(definition: ToolDefinition, takes: Sequence[inspect.Parameter]) -> None:
    """That the function can be called with whatever the definition lets in."""
    given = definition.to_schema()
    defined, needed = given.get("properties") or {}, given.get("required") or ()
    names = [one.name for one in takes]
    strange = [one for one in defined if one not in names]
    if strange and not any(one.kind is one.VAR_KEYWORD for one in takes):
        near = nearest(strange[0], names)
        hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(names) or 'nothing'}."
        raise SetupError(f"Tool {definition.name!r}: its function has no parameter {strange[0]!r}; {hint}")
    for one in takes:
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD and one.name not in needed:
            raise SetupError(
                f"Tool {definition.name!r}: its function cannot do without {one.name!r}, which the definition does not "
                f"require. Say ToolParameter(name={one.name!r}, required=True), or give it a default in the function."
            )


def _is_context(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    written = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return parameter.name == "ctx" or written.split(".")[-1] == "Context"


def _check_schemas(definition: ToolDefinition) -> None:
    """Schemas that an author wrote; those that are made of parameters are right."""
    taken, given = definition.input_schema, definition.returns
    wrong = None if taken is None or _is_schema(taken) else _fault("input_schema", taken)
    wrong = wrong or (None if given is None else _fault("returns", given))
    if wrong is not None:
        raise SetupError(f"Tool {definition.name!r}: its {wrong}")


def _fault(what: str, written: dict[str, Any]) -> str | None:
    try:
        schema.compile(written)
    except RequestError as wrong:
        return f"{what} cannot be used. {wrong.message}"
    return None


def _is_schema(written: dict[str, Any]) -> bool:
    """Whether it surely is one. To compile it, as the first call does, takes 100 µs: too long for 10,000 tools."""
    try:
        return jsonschema_rs.meta.is_valid(written)
    except (ValueError, jsonschema_rs.ReferencingError):
        return False


def _definition_of(function: Callable[..., Any], options: Mapping[str, Any]) -> ToolDefinition:
    signature = from_function(function)
    plain = {"name": function.__name__, "description": signature.description, "input_schema": signature.input}
    return ToolDefinition(**{**plain, **options})
