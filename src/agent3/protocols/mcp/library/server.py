"""The documented ``MCPServer``: tools, resources and prompts under one name, for this process and for clients that
connect.

A registered function runs under the same steps as every other call. This module knows no wire protocol and no SDK: what
serves the tools to other programs (``serving``) is loaded on first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import jsonschema_rs

from agent3 import bridge, schema
from agent3.calls.outcomes import error_of
from agent3.definitions import ToolDefinition
from agent3.env import REAL, Env
from agent3.errors import RequestError, SetupError, Unauthenticated
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, Principal, Working
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.protocols.mcp.door.toolset import FilledPrompt, Prompt, Resource, ResourceTemplate
from agent3.protocols.mcp.library.catalogue import Version
from agent3.protocols.mcp.library.fair_queue import FairQueue
from agent3.protocols.mcp.library.offer_runner import OfferRunner
from agent3.protocols.mcp.library.offers import to_prompt
from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
from agent3.protocols.mcp.library.tool_runner import DEPRECATED, TRACE, Listener, Rules, ToolRunner
from agent3.schema import from_function, nearest
from agent3.settings import Calls, Limits, Settings

if TYPE_CHECKING:
    from agent3.protocols.mcp.library.serving import Endpoint, Listening

__all__ = ["DEPRECATED", "TRACE", "MCPServer"]

F = TypeVar("F", bound=Callable[..., Any])
Who = Callable[[Mapping[str, Any]], Principal]
"""Reads who calls from an ASGI scope; raises AccessError where nobody may."""

_TRANSPORTS = ("http", "stdio")
_unmetered = Standalone(Settings(calls=Calls(ledger="batched", job_days=1.0), limits=Limits(per_minute=0.0)))
"""The core of servers that have a rate limiter: two limits for one call would contradict each other."""


class MCPServer:
    """Tools, resources and prompts under one name. Safe from any thread, and inside a running loop.

        server = MCPServer(name="travel")
        server.register_tool(ToolDefinition(name="search_flights", parameters=[…]), search_flights)

        @server.resource("weather://{city}")
        def weather(city: str) -> str: ...

    ``security`` says who a client is and which tools it has; the person at this machine is the client ``local``.
    ``rate_limiter`` counts every call, and ``validator`` bounds what is sent; with ``security`` both exist by default,
    and the local person is not counted then. ``max_concurrent`` calls run at once and ``max_waiting`` wait, served in
    turn by caller. ``timeout`` is for tools that have none of their own.
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
            raise SetupError("An MCPServer needs a name, which clients show and the ledger records.")
        self.name = name
        self.description = description
        self.version = version
        self.security = security
        rules = Rules(
            security,
            limiter=rate_limiter or (MCPRateLimiter(env=env) if security else None),
            validator=validator or (MCPInputValidator() if security else None),
            queue=None if max_concurrent is None else FairQueue(max_concurrent, waiting=max_waiting, env=env),
            timeout=timeout,
            spares_local=rate_limiter is None,
        )
        self._core = core or (shared() if rules.limiter is None else _unmetered)
        self._agent = LocalAgent(name, description=description, version=version)
        self._runner = ToolRunner(self._agent, self._core, rules, env)
        self._offers = OfferRunner(self._runner)

    # Tools

    def register_tool(self, definition: ToolDefinition, function: Callable[..., Any]) -> None:
        """Offer a tool, or one more version of it; Conflict if name and version are taken.

        SetupError for parameters that the function does not have, and for invalid schemas. Connected clients are told.
        The types in the function's signature are read when the tool is first called.
        """
        _check_tool(definition, function)
        self._runner.catalogue.add(definition, function)
        self._runner.notify_change()

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(self, function: None = None, **options: Any) -> Callable[[F], F]: ...

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Offer a function as a tool; its signature and docstring are the definition."""
        if function is None:
            return lambda given: self.tool(given, **options)
        signature = from_function(function)
        fields = {"name": function.__name__, "description": signature.description, "input_schema": signature.input}
        self.register_tool(ToolDefinition(**{**fields, **options}), function)
        return function

    def unregister(self, name: str, version: str | None = None) -> None:
        """Remove a tool, or one version of it. Connected clients are told, and its cached results are dropped."""
        catalogue = self._runner.catalogue
        before = catalogue.versions(name)
        if not catalogue.remove(name, version):
            raise self._runner.unknown_tool_error(name if version is None else f"{name}@{version}", LOCAL)
        self._runner.forget(set(before) - set(catalogue.versions(name)))
        self._runner.notify_change()

    def invalidate(self, name: str | None = None) -> None:
        """Drop the cached results of a tool, or of all, including those of calls that are running now."""
        if not self._runner.catalogue.renew(name):
            raise self._runner.unknown_tool_error(name or "", LOCAL)

    @MCPPerformanceMonitor.enforce_latency("list_tools")
    def list_tools(self, principal: Principal = LOCAL, *, all_versions: bool = False) -> list[ToolDefinition]:
        """The tools that a caller has, in the order of their registration: of each the newest version, or all."""
        return [version.definition for version in self._runner.list_versions(principal, all_versions=all_versions)]

    def versions(self, name: str) -> tuple[Version, ...]:
        return self._runner.catalogue.versions(name)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function, on any thread, whenever the tools change; call the result to stop."""

        def on_change(kind: str, uri: str | None) -> None:
            if kind == "tools":
                changed()

        return self._runner.watch(on_change)

    def close(self) -> None:
        """Forget the server, its tools and everything else that it offers."""
        runner = self._runner
        self._core.drop(self._agent)
        runner.forget([*runner.catalogue.all(), *runner.offers.catalogue.all()])
        runner.catalogue.clear()
        runner.offers.clear()
        runner.notify_change()

    # Resources

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        media_type: str | None = None,
        size: int | None = None,
        annotations: Mapping[str, Any] | None = None,
        icons: Sequence[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        cache_ttl: float = 0.0,
    ) -> Callable[[F], F]:
        """Offer what a function returns at an address, or at all addresses of a template such as ``weather://{city}``.

        What stands in braces are the function's parameters. Rules and ledger know it as ``resource/`` and its name,
        which is the function's unless it is given. Clients are told.
        """
        described = {
            "name": name,
            "title": title,
            "description": description,
            "media_type": media_type,
            "size": size,
            "annotations": dict(annotations or {}),
            "icons": [dict(icon) for icon in icons],
            "meta": dict(meta or {}),
        }

        def register(function: F) -> F:
            limits = {"timeout": timeout, "cache_ttl": cache_ttl}
            self._runner.offers.add_resource(uri, function, described, limits)
            self._runner.notify_change("resources")
            return function

        return register

    def unregister_resource(self, uri: str) -> None:
        """Remove the resource, or the template, of this address. Clients are told."""
        offers = self._runner.offers
        before = offers.catalogue.all()
        offers.remove_resource(uri)
        self._runner.forget(set(before) - set(offers.catalogue.all()))
        self._runner.notify_change("resources")

    def resource_changed(self, uri: str) -> None:
        """Tell clients that watch the resource at this address that it changed, and forget what was cached of it."""
        offer, _ = self._offers.find_resource(uri, LOCAL)
        self._runner.offers.catalogue.renew(offer.version.name)
        self._runner.notify_change("resources", uri)

    def list_resources(self, principal: Principal = LOCAL) -> list[Resource]:
        """The resources that a caller may read, in the order of their registration."""
        return self._offers.list_resources(principal)

    def list_resource_templates(self, principal: Principal = LOCAL) -> list[ResourceTemplate]:
        """The families of resources that a caller may read, likewise."""
        return self._offers.list_templates(principal)

    def read_resource(self, uri: str, principal: Principal = LOCAL) -> Outcome:
        """Read a resource, through all steps; waits for its outcome. NotFound for what this caller does not have."""
        return bridge.run(self._runner.run_here(self._offers.read(uri, principal)))

    async def read_resource_async(self, uri: str, principal: Principal = LOCAL) -> Outcome:
        """``read_resource`` from a coroutine, in any loop."""
        return await self._offers.read(uri, principal)

    # Prompts

    @overload
    def prompt(self, function: F) -> F: ...

    @overload
    def prompt(
        self,
        function: None = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Callable[[F], F]: ...

    def prompt(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Offer a prompt that a function fills in: its parameters are the arguments, and it returns a text, or
        messages made by ``user`` and ``assistant`` of ``agent3.mcp``.

        Rules and ledger know it as ``prompt/`` and its name. Clients are told.
        """
        described = {
            "name": name,
            "title": title,
            "description": description,
            "icons": [dict(icon) for icon in icons],
            "meta": dict(meta or {}),
        }

        def register(function: F) -> F:
            self._runner.offers.add_prompt(function, described, {"timeout": timeout})
            self._runner.notify_change("prompts")
            return function

        return register if function is None else register(function)

    def unregister_prompt(self, name: str) -> None:
        """Remove a prompt. Clients are told."""
        offers = self._runner.offers
        before = offers.catalogue.all()
        offers.remove_prompt(name)
        self._runner.forget(set(before) - set(offers.catalogue.all()))
        self._runner.notify_change("prompts")

    def list_prompts(self, principal: Principal = LOCAL) -> list[Prompt]:
        """The prompts that a caller has, in the order of their registration."""
        return self._offers.list_prompts(principal)

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, principal: Principal = LOCAL
    ) -> FilledPrompt | Needs:
        """Fill a prompt in, through all steps. Failures are raised; one that asks gives its questions."""
        work = self.get_prompt_async(name, arguments, principal)
        return bridge.run(self._runner.run_here(work))

    async def get_prompt_async(
        self, name: str, arguments: Mapping[str, str] | None = None, principal: Principal = LOCAL
    ) -> FilledPrompt | Needs:
        """``get_prompt`` from a coroutine, in any loop."""
        outcome = await self._offers.fill(name, arguments or {}, principal)
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        assert not isinstance(outcome, Working), "a prompt runs here"
        return to_prompt(outcome) if isinstance(outcome, Done) else outcome

    # Proposals for arguments

    def completion(self, of: str, argument: str) -> Callable[[F], F]:
        """Have a function propose values for an argument of a prompt, by its name, or of a resource, by its template.

        It takes ``value``, what was typed so far, and may take ``given``, the arguments that are filled in already;
        it returns texts, the best first, or a ``CompletionResult`` of ``agent3.mcp``. Without one, the values are those
        that the argument's type allows, such as a ``Literal``.
        """

        def register(function: F) -> F:
            self._runner.offers.add_completion(of, argument, function)
            return function

        return register

    # Calling

    def authenticate(self, client_id: str, signature: str, timestamp: str) -> Principal:
        """The client that made a signature, as ``security`` judges; Unauthenticated if it did not."""
        if self.security is None:
            raise SetupError(f"Server {self.name!r} has no clients. Pass security=MCPSecurityManager(…).")
        if not self.security.authenticate_client(client_id, signature, timestamp):
            raise Unauthenticated(
                "The signature does not belong to this client, or its time differs by more than 300 s."
            )
        return Principal(client_id, "client")

    def call_tool(
        self, name: str, arguments: Mapping[str, Any], principal: Principal = LOCAL, **options: Any
    ) -> Outcome:
        """One call of ``name``, ``name@version`` or ``name@sha256:…`` through all steps; waits for its outcome.

        Raises CapabilityNotFound for a tool that the caller does not have, Conflict for a definition that is no longer
        the pinned one; other refusals are outcomes. ``options`` are those of ``call_tool_async``.
        """
        return bridge.run(self._runner.run_here(self._runner.call_in_core(name, arguments, principal, **options)))

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
        """``call_tool`` from a coroutine, in any loop; cancelling it cancels the tool.

        ``timeout`` bounds the call as a whole, all who send the same ``key`` share one call, and ``listener`` gets
        events on the caller's loop. ``door`` is where the ledger says that the call came in.
        """
        return await self._runner.call(
            name,
            arguments,
            principal,
            timeout=timeout,
            key=key,
            traceparent=traceparent,
            listener=listener,
            door=door,
        )

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
        return await self._runner.answer(job, answers, principal, listener, door=door)

    async def artifact_async(self, handle: str, principal: Principal = LOCAL) -> tuple[bytes, str]:
        """The bytes of a large result and their media type; NotFound for what is not this caller's."""
        return await self._runner.artifact(handle, principal)

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
        Behind a proxy on this machine give ``principal``: a server takes all requests that come through one for local
        ones, unless the proxy says otherwise. ``allowed_hosts`` are names, besides those of loopback, under which the
        server may be called.
        """
        from agent3.protocols.mcp.library.serving import Endpoint  # it loads the SDK

        return Endpoint(self._runner, path, principal, allowed_hosts, allowed_origins)

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

        SetupError for a host that other machines can reach, unless ``principal`` says who calls.
        """
        from agent3.protocols.mcp.library.serving import Listening, names_of

        hosts = names_of(host, principal, allowed_hosts)
        app = self.asgi(path, principal=principal, allowed_hosts=hosts, allowed_origins=allowed_origins)
        return Listening(app, host, port)

    def run(
        self,
        transport: Literal["http", "stdio"] = "http",
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        **options: Any,
    ) -> None:
        """Serve until a signal comes; over standard input and output until the host leaves.

        ``options`` are those of ``listening``. SetupError for an unknown transport.
        """
        from agent3.protocols.mcp.library.serving import run_http, run_stdio

        _check_transport(transport)
        if transport == "stdio":
            run_stdio(self._runner)
        else:
            run_http(self.name, self.listening(host, port, path, **options))

    async def run_async(
        self,
        transport: Literal["http", "stdio"] = "http",
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        **options: Any,
    ) -> None:
        """``run`` from a coroutine, until it is cancelled."""
        from agent3.protocols.mcp.library.serving import run_http_async, serve_stdio

        _check_transport(transport)
        if transport == "stdio":
            await self._runner.run_anywhere(serve_stdio(self._runner))
        else:
            await run_http_async(self.name, self.listening(host, port, path, **options))


def _check_transport(transport: str) -> None:
    if transport not in _TRANSPORTS:
        near = nearest(str(transport), _TRANSPORTS)
        hint = f"Did you mean {near!r}?" if near else f"Use {' or '.join(_TRANSPORTS)}."
        raise SetupError(f"Unknown transport {transport!r}. {hint}")


def _check_tool(definition: ToolDefinition, function: Callable[..., Any]) -> None:
    """SetupError for a tool that cannot work, as far as that shows without reading types and without a call."""
    tool = f"Tool {definition.name!r}"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise SetupError(f"{tool} needs a function with a signature, got {type(function).__name__}.") from None
    takes: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise SetupError(f"{tool}: its function takes {parameter.name!r} by position, but input is passed by name.")
        annotation = parameter.annotation
        written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        if parameter.name != "ctx" and written.split(".")[-1] != "Context":
            takes.append(parameter)
    # The function must accept whatever the definition lets in.
    input_schema = definition.to_schema()
    defined, required = input_schema.get("properties") or {}, input_schema.get("required") or ()
    names = [parameter.name for parameter in takes]
    unknown = [name for name in defined if name not in names]
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        near = nearest(unknown[0], names)
        hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(names) or 'nothing'}."
        raise SetupError(f"{tool}: its function has no parameter {unknown[0]!r}; {hint}")
    for parameter in takes:
        name = parameter.name
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if is_needed and name not in required:
            raise SetupError(
                f"{tool}: its function requires {name!r}, but the definition does not. Use "
                f"ToolParameter(name={name!r}, required=True), or give it a default in the function."
            )
    # Schemas written by the author; those made of parameters are valid.
    if definition.input_schema is not None:
        try:
            # Compiling, as the first call does, takes 100 µs: too long for 10,000 tools.
            is_valid = jsonschema_rs.meta.is_valid(definition.input_schema)
        except (ValueError, jsonschema_rs.ReferencingError):
            is_valid = False
        if not is_valid:
            _check_schema(tool, "input_schema", definition.input_schema)
    if definition.returns is not None:
        _check_schema(tool, "returns", definition.returns)


def _check_schema(tool: str, field: str, written: dict[str, Any]) -> None:
    try:
        schema.compile(written)
    except RequestError as error:
        raise SetupError(f"{tool}: its {field} cannot be used. {error.message}") from None
