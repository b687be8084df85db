"""The MCP protocol in front of any set of tools: both eras, Streamable HTTP and stdio.

The official low-level server does the protocol; this package alone knows it. A ``ToolSet`` (``agent3.protocols.mcp.door.toolset``)
says what a caller has and runs one turn of a call, in the words of ``agent3.model``; ``MCPDoor`` turns outcomes into
results, questions into elicitations and events into notifications. It knows nothing of agents, directories or
storage, and it does not validate arguments: that is the business of the steps behind the tool set.
"""

from __future__ import annotations

import difflib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

import mcp_types as wire
import msgspec
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY, validate_mcp_param_headers
from msgspec import Struct
from pydantic import ValidationError as WireError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, NotFound
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, Principal, Working, encode
from agent3.protocols.mcp.door.exchange import Exchange, Work, uncut
from agent3.protocols.mcp.door.list_changes import Changes, Kind
from agent3.protocols.mcp.door.pagination import page
from agent3.protocols.mcp.door.questions import Seal, power_for
from agent3.protocols.mcp.door.requests import (
    Context,
    era_of,
    lacking,
    owned,
    powers_of,
    principal_of,
    protocol_error,
    session_of,
)
from agent3.protocols.mcp.door.results import (
    asked_in_text,
    contents,
    failure_form,
    failure_text,
    prompted,
    refused,
    result,
)
from agent3.protocols.mcp.door.resumption import SessionEvents, Sessions
from agent3.protocols.mcp.door.stdio import Answering
from agent3.protocols.mcp.door.tasks import Desk
from agent3.protocols.mcp.door.toolset import (
    Caller,
    Completed,
    Completion,
    Completions,
    Era,
    Prompt,
    Prompted,
    Prompts,
    Resource,
    Resources,
    Tasks,
    Template,
    Tool,
    ToolSet,
    Watched,
)

__all__ = [
    "LOOPBACK_HOSTS",
    "LOOPBACK_ORIGINS",
    "OUTCOME",
    "Caller",
    "Era",
    "MCPDoor",
    "Tool",
    "ToolSet",
    "failure_form",
    "failure_text",
    "how_to_answer",
]

logger = logging.getLogger(__name__)

CallResult = wire.CallToolResult | wire.InputRequiredResult
T = TypeVar("T")

LOOPBACK_HOSTS = ("127.0.0.1", "127.0.0.1:*", "localhost", "localhost:*", "[::1]", "[::1]:*")
LOOPBACK_ORIGINS = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in LOOPBACK_HOSTS)

OUTCOME = "agent3.outcome"
"""The key in the ASGI scope under which an app in front leaves the outcome of a first turn that it has run itself."""
SESSIONS = 10_000
"""Legacy sessions whose log level is remembered; the SDK keeps no more sessions than that."""
REMEMBERED = 100_000
"""Tools whose demands on a request are remembered."""
CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
COMPLETIONS = 100
"""Values of one completion, by the protocol."""
_HEADED = f'"{X_MCP_HEADER_KEY}"'.encode()
_answers: msgspec.json.Decoder[dict[str, Answer]] = msgspec.json.Decoder(dict[str, Answer])


def how_to_answer(tool: str, needs: Needs) -> str:
    """What a client that cannot elicit is told to do; a door may be given other words."""
    answers = {question.id: "<your answer>" for question in needs.questions}
    metadata = encode({"job": needs.job, "answers": answers}).decode()
    return f'Ask the person, then answer by calling "{tool}" again with the same arguments and "metadata": {metadata}'


class _Demands(Struct, frozen=True):
    """What a tool wants of a request, beyond its arguments."""

    tool: Tool
    headed: bool
    """Whether it copies arguments into headers."""


class MCPDoor:
    """One MCP server: ``asgi()`` for HTTP, to be used within ``running()``, and ``stdio()``.

    ``principal`` reads who calls from the ASGI scope and may raise ``AccessError``; over stdio it is always
    ``LOCAL``. ``key`` signs what a modern client carries between two turns; replicas must share it, and without one
    the door makes its own, good for one process. ``allowed_hosts`` and ``allowed_origins`` default to loopback, a
    trailing ``:*`` stands for any port, and ``"*"`` among the hosts turns both checks off. ``retry`` is how many
    seconds a legacy client waits before it takes up a lost stream again. ``about`` is what more the server says of
    itself, by the protocol's names: title, description, websiteUrl, icons.
    """

    def __init__(
        self,
        toolset: ToolSet,
        *,
        name: str = "agent3",
        version: str = __version__,
        instructions: str | None = None,
        about: Mapping[str, Any] | None = None,
        principal: Callable[[Scope], Principal] = lambda _: LOCAL,
        allowed_hosts: Sequence[str] = LOOPBACK_HOSTS,
        allowed_origins: Sequence[str] = LOOPBACK_ORIGINS,
        key: bytes | None = None,
        answer_within: float = 86_400.0,
        list_ttl: float = 30.0,
        page_size: int = 500,
        max_body: int = 1 << 20,
        resumable: bool = True,
        retry: float = 1.0,
        hint: Callable[[str, Needs], str] = how_to_answer,
        env: Env = REAL,
    ):
        self.toolset = toolset
        self.name, self.version = name, version
        self.principal = principal
        self.max_body = max_body
        self._hint = hint
        self._seal = Seal(key or env.random_bytes(32), answer_within, env)
        self._page_size = page_size
        self._resumable = resumable
        self._retry = retry
        self._security = _security(allowed_hosts, allowed_origins)
        self._levels: OrderedDict[str, wire.LoggingLevel] = OrderedDict()
        self._demands: OrderedDict[str, _Demands] = OrderedDict()
        self._manager: Sessions | None = None
        self._changes = Changes(self._may_watch, self._no_longer_watches)
        self._desk = Desk(cast("Tasks", toolset)) if hasattr(toolset, "task") else None
        self._server = self._build(name, version, instructions, about or {}, list_ttl)
        self.info: dict[str, Any] = self._server.server_info_stamp

    def asgi(self) -> _Endpoint:
        """The ASGI app of one path: POST for both eras, GET and DELETE for legacy sessions."""
        return _Endpoint(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve HTTP meanwhile: to be entered by the lifespan of the app around. Leaving it ends all requests."""
        # The SDK's manager runs once only, so each run gets its own.
        manager = Sessions(
            self._server,
            events=SessionEvents if self._resumable else None,
            retry_interval=int(self._retry * 1000),
            security_settings=self._security,
            max_request_body_size=self.max_body,
        )
        async with manager.run(), self._changes.telling():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def stdio(self) -> None:
        """Serve the host at standard input and output until it closes its end; prints go to stderr meanwhile."""
        async with AsyncExitStack() as stack:
            incoming, outgoing = await stack.enter_async_context(stdio_server())
            await stack.enter_async_context(self._changes.telling())
            heard = Answering(incoming, outgoing)
            await self._server.run(heard, outgoing, self._server.create_initialization_options())

    def changed(self, kind: Kind, uri: str | None = None) -> None:
        """Tell clients of both eras that a list changed, or with ``uri`` that one resource did. From any thread."""
        if kind == "tools":
            self._demands.clear()
        self._changes.tell(kind, uri)

    def regular(self, tool: str, *, session: str = "", can: frozenset[str] = frozenset()) -> bool:
        """Whether a call wants nothing of this door but the tool's answer, so that an app in front may give it.

        False for tools that were not seen yet or demand something of a request, for legacy sessions that want log
        lines, and for clients that follow tasks, where there are tasks.
        """
        known = self._demands.get(tool)
        if known is None or known.headed or known.tool.requires or session in self._levels:
            return False
        return self._desk is None or "tasks" not in can

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this server."""
        allowed = self._security.allowed_hosts
        anywhere = not self._security.enable_dns_rebinding_protection
        return anywhere or host in allowed or f"{host.rsplit(':', 1)[0]}:*" in allowed

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if self._manager is None:
            await Response("The MCP endpoint is not running", 503)(scope, receive, send)
            return
        try:
            principal = self.principal(scope)
        except Agent3Error as error:
            await _refusal(error)(scope, receive, send)
            return
        await self._manager.handle_request(owned(scope, principal), receive, send)

    def _build(
        self, name: str, version: str, instructions: str | None, about: Mapping[str, Any], list_ttl: float
    ) -> Server[Any]:
        hint = CacheHint(ttl_ms=int(list_ttl * 1000), scope="private")
        server = _Server(
            name,
            version=version,
            instructions=instructions,
            title=about.get("title"),
            description=about.get("description"),
            website_url=about.get("websiteUrl"),
            icons=_icons(about.get("icons") or ()),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._changes.listen,
            cache_hints=dict.fromkeys(CACHEABLE, hint),
            # Without it the SDK runs tools/list inside every tools/call, to compare headers with arguments.
            get_tool_input_schema=self._headed,
        )
        # Registered here because the constructor's parameters for these warn of deprecation at every start.
        server.add_request_handler("logging/setLevel", wire.SetLevelRequestParams, self._set_level)
        server.add_notification_handler("notifications/initialized", wire.NotificationParams, self._changes.greet)
        self._offer(server)
        return server

    def _offer(self, server: Server[Any]) -> None:
        """Serve what this tool set offers besides tools; what it does not offer is not announced either."""
        if hasattr(self.toolset, "resources"):
            server.add_request_handler("resources/list", wire.PaginatedRequestParams, self._list_resources)
            server.add_request_handler("resources/templates/list", wire.PaginatedRequestParams, self._list_templates)
            server.add_request_handler("resources/read", wire.ReadResourceRequestParams, self._read)
            server.add_request_handler("resources/subscribe", wire.SubscribeRequestParams, self._changes.subscribe)
            server.add_request_handler(
                "resources/unsubscribe", wire.UnsubscribeRequestParams, self._changes.unsubscribe
            )
        if hasattr(self.toolset, "prompts"):
            server.add_request_handler("prompts/list", wire.PaginatedRequestParams, self._list_prompts)
            server.add_request_handler("prompts/get", wire.GetPromptRequestParams, self._prompt)
        if hasattr(self.toolset, "complete"):
            server.add_request_handler("completion/complete", wire.CompleteRequestParams, self._complete)
        if self._desk is not None:
            self._desk.install(server)

    # Tools

    async def _list_tools(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        tools, more = await self._page(self.toolset.tools(principal_of(ctx)), _tool_key, params)
        self._remember(tools)
        era = era_of(ctx)
        return wire.ListToolsResult(tools=[_wire_tool(tool, era) for tool in tools], next_cursor=more)

    async def _call_tool(self, ctx: Context, params: wire.CallToolRequestParams) -> CallResult:
        await self._admit(ctx, params)
        exchange: Exchange[Outcome] = Exchange(ctx, self._seal, self._log_level(ctx))
        outcome = await exchange.result(self._tool_work(ctx, params), params)
        if isinstance(outcome, wire.InputRequiredResult):
            return outcome
        if isinstance(outcome, Needs):
            return asked_in_text(outcome, self._hint(params.name, outcome))
        if isinstance(outcome, Working) and self._desk is not None and "tasks" in exchange.caller.can:
            created = await self._desk.created(outcome, exchange.caller, ctx.protocol_version)
            if created is not None:
                # The SDK's types know no results of extensions, but its server sends them as they are.
                return cast("CallResult", created)
        return result(outcome, ctx.protocol_version)

    def _tool_work(self, ctx: Context, params: wire.CallToolRequestParams) -> Work[Outcome]:
        name, arguments = params.name, params.arguments or {}

        async def start(caller: Caller) -> Outcome:
            if ctx.request is not None and (ready := ctx.request.scope.pop(OUTCOME, None)) is not None:
                outcome: Outcome = ready
                return outcome
            return await self._outcome(name, self.toolset.call(name, arguments, caller), caller)

        async def go_on(state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
            return await self._outcome(name, self.toolset.answer(state, answers, caller), caller)

        return Work("tools/call", name, arguments, start, go_on)

    async def _outcome(self, name: str, turn: Coroutine[Any, Any, Outcome], caller: Caller) -> Outcome:
        """What goes wrong in a turn is an outcome, but for a tool that is not there."""
        try:
            return await uncut(turn)
        except NotFound as error:
            await self._refuse_unknown(name, caller.principal)
            return refused(error)
        except Agent3Error as error:
            return refused(error)
        except MCPError:
            raise
        except Exception:
            # The SDK would send the words of any exception to a legacy client.
            logger.exception("The tool %s failed inside the gateway", name)
            return Failed("internal", f"{name} failed inside the gateway; its log says why")

    async def _refuse_unknown(self, name: str, principal: Principal) -> None:
        names = [tool.name for tool in await _listed(self.toolset.tools(principal))]
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=3)
            raise MCPError(wire.INVALID_PARAMS, f"Unknown tool: {name}", {"nearest": nearest})

    async def _admit(self, ctx: Context, params: wire.CallToolRequestParams) -> None:
        """Refuse what the tool demands of every request and this one lacks."""
        known = self._demands.get(params.name)
        if known is None:
            self._remember(await _listed(self.toolset.tools(principal_of(ctx))))
            known = self._demands.get(params.name)
            self._check_headers(ctx, known, params)
        if known is not None and known.tool.requires and (missing := known.tool.requires - powers_of(ctx)):
            raise lacking(missing, params.name)

    def _check_headers(self, ctx: Context, known: _Demands | None, params: wire.CallToolRequestParams) -> None:
        """The SDK compares them before it asks us, but for the first call of a tool that nobody has listed yet."""
        if known is None or not known.headed or ctx.request is None or era_of(ctx) == "legacy":
            return
        wrong = validate_mcp_param_headers(known.tool.input_schema, params.arguments or {}, ctx.request.headers)
        if wrong is not None:
            raise MCPError(wrong.code, wrong.message, wrong.data)

    def _remember(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            known = self._demands.get(tool.name)
            if known is None or known.tool is not tool:
                self._demands[tool.name] = _Demands(tool, _HEADED in encode(tool.input_schema))
        while len(self._demands) > REMEMBERED:
            self._demands.popitem(last=False)

    def _headed(self, name: str) -> dict[str, Any] | None:
        known = self._demands.get(name)
        return known.tool.input_schema if known is not None and known.headed else None

    # Resources

    async def _list_resources(
        self, ctx: Context, params: wire.PaginatedRequestParams | None
    ) -> wire.ListResourcesResult:
        listing = cast("Resources", self.toolset).resources(principal_of(ctx))
        found, more = await self._page(listing, lambda one: one.uri, params)
        return wire.ListResourcesResult(resources=[_wire_resource(one) for one in found], next_cursor=more)

    async def _list_templates(
        self, ctx: Context, params: wire.PaginatedRequestParams | None
    ) -> wire.ListResourceTemplatesResult:
        listing = cast("Resources", self.toolset).templates(principal_of(ctx))
        found, more = await self._page(listing, lambda one: one.uri_template, params)
        shown = [_wire_template(one) for one in found]
        return wire.ListResourceTemplatesResult(resource_templates=shown, next_cursor=more)

    async def _read(
        self, ctx: Context, params: wire.ReadResourceRequestParams
    ) -> wire.ReadResourceResult | wire.InputRequiredResult:
        resources = cast("Resources", self.toolset)

        async def read(caller: Caller) -> Done | Needs:
            try:
                return await resources.read(params.uri, caller)
            except NotFound as error:
                raise MCPError(wire.INVALID_PARAMS, error.message, {"uri": params.uri}) from error

        done = await self._replayed(ctx, params, "resources/read", params.uri, None, read)
        if isinstance(done, wire.InputRequiredResult):
            return done
        return wire.ReadResourceResult(contents=contents(done.parts, params.uri), _meta=done.meta or None)

    async def _may_watch(self, uri: str, principal: Principal) -> bool:
        if not hasattr(self.toolset, "watch"):
            return True
        try:
            await cast("Watched", self.toolset).watch(uri, principal)
        except Agent3Error:
            return False
        return True

    def _no_longer_watches(self, uri: str, principal: Principal) -> None:
        if hasattr(self.toolset, "unwatch"):
            cast("Watched", self.toolset).unwatch(uri, principal)

    # Prompts

    async def _list_prompts(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListPromptsResult:
        listing = cast("Prompts", self.toolset).prompts(principal_of(ctx))
        found, more = await self._page(listing, lambda one: one.name, params)
        return wire.ListPromptsResult(prompts=[_wire_prompt(one) for one in found], next_cursor=more)

    async def _prompt(
        self, ctx: Context, params: wire.GetPromptRequestParams
    ) -> wire.GetPromptResult | wire.InputRequiredResult:
        prompts, arguments = cast("Prompts", self.toolset), params.arguments or {}

        async def filled(caller: Caller) -> Prompted | Needs:
            return await prompts.prompt(params.name, arguments, caller)

        made = await self._replayed(ctx, params, "prompts/get", params.name, arguments, filled)
        if isinstance(made, wire.InputRequiredResult):
            return made
        return prompted(made, ctx.protocol_version)

    async def _complete(self, ctx: Context, params: wire.CompleteRequestParams) -> wire.CompleteResult:
        completions = cast("Completions", self.toolset)
        found = await _listed(completions.complete(_completion(params), principal_of(ctx)))
        if not isinstance(found, Completed):
            found = Completed(tuple(found), len(found), len(found) > COMPLETIONS)
        done = wire.Completion(values=list(found.values[:COMPLETIONS]), total=found.total, has_more=found.more)
        return wire.CompleteResult(completion=done)

    # What they share

    async def _page(
        self,
        listing: Awaitable[Sequence[T]],
        key: Callable[[T], str],
        params: wire.PaginatedRequestParams | None,
    ) -> tuple[list[T], str | None]:
        items = await _listed(listing)
        try:
            return page(items, key, params.cursor if params is not None else None, self._page_size)
        except Agent3Error as error:
            raise protocol_error(error) from error

    async def _replayed(
        self,
        ctx: Context,
        params: wire.ReadResourceRequestParams | wire.GetPromptRequestParams,
        method: str,
        name: str,
        arguments: Any,
        run: Callable[[Caller], Coroutine[Any, Any, T | Needs]],
    ) -> T | wire.InputRequiredResult:
        """Run something that, after a question, is run again from the top with all answers so far."""
        exchange: Exchange[T] = Exchange(ctx, self._seal, self._log_level(ctx))

        async def start(caller: Caller) -> T | Needs:
            outcome = await uncut(run(caller))
            if isinstance(outcome, Needs):
                return Needs(outcome.questions, state=encode(caller.answers).decode())
            return outcome

        async def go_on(state: str, answers: dict[str, Answer], caller: Caller) -> T | Needs:
            caller.answers = {**_earlier(state), **answers}
            return await start(caller)

        outcome = await _listed(exchange.result(Work(method, name, arguments, start, go_on), params))
        if isinstance(outcome, Needs):
            raise lacking(frozenset(map(power_for, outcome.questions)), name)
        return outcome

    # Logs

    def _log_level(self, ctx: Context) -> str | None:
        """The least level the client wants to see: said with each request, or once per session in the legacy era."""
        if era_of(ctx) == "modern":
            level = (ctx.meta or {}).get(wire.LOG_LEVEL_META_KEY)
            return level if isinstance(level, str) else None
        return self._levels.get(session_of(ctx))

    async def _set_level(self, ctx: Context, params: wire.SetLevelRequestParams) -> wire.EmptyResult:
        session = session_of(ctx)
        self._levels[session] = params.level
        self._levels.move_to_end(session)
        if len(self._levels) > SESSIONS:
            self._levels.popitem(last=False)
        return wire.EmptyResult()


class _Endpoint:
    """An instance rather than a function, because Starlette's Route takes functions for views of a request."""

    def __init__(self, door: MCPDoor):
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door.serve(scope, receive, send)


class _Server(Server[Any]):
    """The SDK's server, announcing to legacy clients too that lists may change. Tasks are for modern ones only."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        made = super().create_initialization_options(changing, experimental_capabilities, extensions)
        return made.model_copy(update={"capabilities": made.capabilities.model_copy(update={"extensions": None})})


def _security(hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    return TransportSecuritySettings(
        enable_dns_rebinding_protection="*" not in hosts, allowed_hosts=list(hosts), allowed_origins=list(origins)
    )


def _refusal(error: Agent3Error) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    fault = {"code": error.rpc_code, "message": error.message, "data": error.to_dict()}
    body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
    return Response(body, error.http_status, headers, "application/json")


async def _listed(work: Awaitable[T]) -> T:
    """Await something of the tool set. What goes wrong is an error of the protocol, for there is no result yet."""
    try:
        return await work
    except Agent3Error as error:
        raise protocol_error(error) from error
    except (MCPError, WireError):
        raise
    except Exception:
        logger.exception("The request failed inside the gateway")
        raise MCPError(wire.INTERNAL_ERROR, "The request failed inside the gateway; its log says why") from None


def _earlier(state: str) -> dict[str, Answer]:
    return _answers.decode(state) if state else {}


# Our words in the protocol's


def _tool_key(tool: Tool) -> str:
    return tool.name


def _wire_tool(tool: Tool, era: Era) -> wire.Tool:
    return wire.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        # One schema without its type would make the SDK refuse the whole list.
        input_schema={**tool.input_schema, "type": "object"},
        output_schema=tool.output_schema if era == "modern" else _legacy_output(tool.output_schema),
        annotations=wire.ToolAnnotations.model_validate(tool.annotations) if tool.annotations else None,
        icons=_icons(tool.icons),
        _meta=tool.meta or None,
    )


def _legacy_output(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Legacy results are objects: other results are wrapped, and so is a schema that surely never means an object."""
    if schema is None or schema.get("type") == "object":
        return schema
    if isinstance(schema.get("type"), str) and b'"$ref"' not in encode(schema):
        return {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    return None


def _wire_resource(one: Resource) -> wire.Resource:
    return wire.Resource(
        uri=one.uri,
        name=one.name,
        title=one.title,
        description=one.description,
        mime_type=one.media_type,
        size=one.size,
        annotations=_annotations(one.annotations),
        icons=_icons(one.icons),
        _meta=one.meta or None,
    )


def _wire_template(one: Template) -> wire.ResourceTemplate:
    return wire.ResourceTemplate(
        uri_template=one.uri_template,
        name=one.name,
        title=one.title,
        description=one.description,
        mime_type=one.media_type,
        annotations=_annotations(one.annotations),
        icons=_icons(one.icons),
        _meta=one.meta or None,
    )


def _icons(given: Sequence[Mapping[str, Any]]) -> list[wire.Icon] | None:
    return [wire.Icon.model_validate(one) for one in given] or None


def _annotations(given: dict[str, Any]) -> wire.Annotations | None:
    return wire.Annotations.model_validate(given) if given else None


def _wire_prompt(one: Prompt) -> wire.Prompt:
    arguments = [
        wire.PromptArgument(name=each.name, title=each.title, description=each.description, required=each.required)
        for each in one.arguments
    ]
    return wire.Prompt(
        name=one.name,
        title=one.title,
        description=one.description,
        arguments=arguments,
        icons=_icons(one.icons),
        _meta=one.meta or None,
    )


def _completion(params: wire.CompleteRequestParams) -> Completion:
    ref = params.ref
    by_name = isinstance(ref, wire.PromptReference)
    context = params.context.arguments if params.context is not None else None
    return Completion(
        kind="prompt" if by_name else "resource",
        name=ref.name if isinstance(ref, wire.PromptReference) else ref.uri,
        argument=params.argument.name,
        value=params.argument.value,
        given=context or {},
    )
