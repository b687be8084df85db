"""The handlers behind the SDK's server: one method for each request of the protocol, answered by a tool set.

They translate between the protocol's types and those of ``toolset``. They know nothing of transports, agents or
storage, and do not validate arguments: the steps behind the tool set do.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar, cast

import mcp_types as wire
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY, validate_mcp_param_headers
from msgspec import Struct
from pydantic import BaseModel
from pydantic import ValidationError as WireError

from agent3.calls.outcomes import failed_by
from agent3.errors import Agent3Error, LoopDetected, NotFound
from agent3.model import Answer, Done, Failed, Needs, Outcome, Principal, Working, encode
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.exchange import Exchange, Operation, await_with_grace
from agent3.protocols.mcp.door.list_changes import ChangeNotifier
from agent3.protocols.mcp.door.questions import StateTokens, feature_for
from agent3.protocols.mcp.door.requests import (
    Context,
    client_features,
    era_of,
    missing_features_error,
    paginate,
    principal_of,
    session_of,
    to_mcp_error,
)
from agent3.protocols.mcp.door.results import questions_as_text, to_contents, to_prompt_result, to_tool_result
from agent3.protocols.mcp.door.tasks import TaskHandlers
from agent3.protocols.mcp.door.toolset import (
    Caller,
    Capabilities,
    Completion,
    CompletionResult,
    Completions,
    FilledPrompt,
    Overheard,
    Prompts,
    Resources,
    Tool,
    ToolSet,
)
from agent3.security import via

__all__ = ["OUTCOME", "Hint", "RequestHandlers", "Turn", "to_icons"]

log = logger("mcp")

CallResult = wire.CallToolResult | wire.InputRequiredResult
Hint = Callable[[str, Needs], str]
"""What a client that cannot elicit is told to do, given the tool and its questions."""
T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

OUTCOME = "agent3.outcome"
"""The key in the ASGI scope under which an app in front leaves the outcome of a first turn that it has run itself, the
``NotFound`` that it ended with, or the ``Turn`` where it is still under way."""
MOST_SESSIONS = 10_000
"""Legacy sessions whose log level is remembered; the SDK keeps no more sessions than that."""
MOST_TOOLS = 100_000
"""Tools whose demands on a request are remembered."""
MOST_COMPLETIONS = 100
"""Values of one completion, by the protocol."""
_HEADER_KEY = f'"{X_MCP_HEADER_KEY}"'.encode()


class Turn(Struct, eq=False):
    """A first turn that has begun already. ``is_taken`` says that a handler waits for it, and can end it."""

    task: asyncio.Task[Outcome]
    heard: Overheard | None = None
    is_taken: bool = False


class _Replayed(Struct, frozen=True, omit_defaults=True):
    """What is kept of a prompt or a read that asked: the answers it had, and its job, where it has one."""

    answers: dict[str, Answer] = {}
    job: str | None = None


_replayed = msgspec.json.Decoder(_Replayed)


class _Demands(Struct, frozen=True):
    """What a tool demands of a request, beyond its arguments."""

    tool: Tool
    wants_headers: bool
    """Whether arguments are to be repeated in headers."""


class RequestHandlers:
    """Answers the requests of clients from a tool set and its optional capabilities."""

    def __init__(
        self,
        toolset: ToolSet,
        capabilities: Capabilities,
        tokens: StateTokens,
        *,
        page_size: int,
        hint: Hint,
        gateway: str = "",
        marks_tools: bool = False,
    ):
        self._toolset = toolset
        self._gateway = gateway
        self._mark = {via.META: gateway} if marks_tools else {}
        self._capabilities = capabilities
        self._tokens = tokens
        self._page_size = page_size
        self._hint = hint
        self._tasks = TaskHandlers(capabilities.tasks) if capabilities.tasks is not None else None
        self._levels: OrderedDict[str, wire.LoggingLevel] = OrderedDict()
        self._demands: OrderedDict[str, _Demands] = OrderedDict()
        self.changes = ChangeNotifier(
            self.may_watch,
            capabilities.unwatch or (lambda uri, principal: None),
            lambda session: self._levels.get(session, "debug" if capabilities.logs else None),
        )

    def register(self, server: Server[Any]) -> None:
        """Serve what the tool set offers; the SDK announces what is registered."""

        def serve(method: str, params: type[BaseModel], handler: Callable[..., Awaitable[Any]]) -> None:
            async def check_and_handle(ctx: Context, given: Any) -> Any:
                # Always, because the task of a session remembers the way of the request that opened it.
                try:
                    via.enter(self._gateway, _way_of(ctx))
                except LoopDetected as error:
                    raise to_mcp_error(error) from None
                return await handler(ctx, given)

            server.add_request_handler(method, cast("Any", params), check_and_handle)

        serve("tools/list", wire.PaginatedRequestParams, self.list_tools)
        serve("tools/call", wire.CallToolRequestParams, self.call_tool)
        serve("subscriptions/listen", wire.SubscriptionsListenRequestParams, self.changes.listen)
        serve("logging/setLevel", wire.SetLevelRequestParams, self.set_level)
        server.add_notification_handler(
            "notifications/initialized", wire.NotificationParams, self.changes.on_initialized
        )
        if self._capabilities.resources is not None:
            serve("resources/list", wire.PaginatedRequestParams, self.list_resources)
            serve("resources/templates/list", wire.PaginatedRequestParams, self.list_templates)
            serve("resources/read", wire.ReadResourceRequestParams, self.read_resource)
            serve("resources/subscribe", wire.SubscribeRequestParams, self.changes.subscribe)
            serve("resources/unsubscribe", wire.UnsubscribeRequestParams, self.changes.unsubscribe)
        if self._capabilities.prompts is not None:
            serve("prompts/list", wire.PaginatedRequestParams, self.list_prompts)
            serve("prompts/get", wire.GetPromptRequestParams, self.get_prompt)
        if self._capabilities.completions is not None:
            serve("completion/complete", wire.CompleteRequestParams, self.complete)
        if self._tasks is not None:
            self._tasks.register(server)

    # What the fast lane and the SDK ask

    def is_regular(self, tool: str, session: str = "", can: frozenset[str] = frozenset()) -> bool:
        """Whether a call wants nothing but the tool's answer, so that an app in front may give it.

        False for tools that were not listed yet or demand something of a request, for legacy sessions that want log
        lines, and for clients that follow tasks, where there are tasks.
        """
        known = self._demands.get(tool)
        if known is None or known.wants_headers or known.tool.requires or session in self._levels:
            return False
        return self._tasks is None or "tasks" not in can

    def schema_with_headers(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool that repeats arguments in headers, for the SDK to compare the two."""
        known = self._demands.get(name)
        return known.tool.input_schema if known is not None and known.wants_headers else None

    def forget_tools(self) -> None:
        """The tools changed, and with them what they demand."""
        self._demands.clear()

    # Tools

    async def list_tools(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        started = monotonic()
        tools, cursor = await self._page(self._toolset.tools(principal_of(ctx)), lambda tool: tool.name, params)
        self._remember(tools)
        modern = era_of(ctx) == "modern"
        listed = wire.ListToolsResult(
            tools=[
                wire.Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    # One schema without its type would make the SDK refuse the whole list.
                    input_schema={**tool.input_schema, "type": "object"},
                    output_schema=tool.output_schema if modern else _legacy_output_schema(tool.output_schema),
                    annotations=wire.ToolAnnotations.model_validate(tool.annotations) if tool.annotations else None,
                    icons=to_icons(tool.icons),
                    _meta={**tool.meta, **self._mark} or None,
                )
                for tool in tools
            ],
            next_cursor=cursor,
        )
        self._capabilities.on_listed(monotonic() - started)
        return listed

    async def call_tool(self, ctx: Context, params: wire.CallToolRequestParams) -> CallResult:
        await self._check_demands(ctx, params)
        name, arguments = params.name, params.arguments or {}

        async def start(caller: Caller) -> Outcome:
            if ctx.request is not None and (ready := ctx.request.scope.pop(OUTCOME, None)) is not None:
                if isinstance(ready, Turn) and ready.heard is not None:
                    ready.heard.pass_on(caller.listener)
                return await self._run_turn(name, _end_turn(ready), caller)
            return await self._run_turn(name, self._toolset.call(name, arguments, caller), caller)

        async def resume(state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
            return await self._run_turn(name, self._toolset.answer(state, answers, caller), caller)

        streaming = self._capabilities.streaming
        wanted = streaming(name, arguments) if streaming is not None else None
        exchange: Exchange[Outcome] = Exchange(ctx, self._tokens, self._log_level(ctx), wanted, self._capabilities.logs)
        outcome = await exchange.run(Operation("tools/call", name, arguments, start, resume), params)
        if isinstance(outcome, wire.InputRequiredResult):
            return outcome
        if isinstance(outcome, Needs):
            return questions_as_text(outcome, self._hint(name, outcome))
        if isinstance(outcome, Working) and self._tasks is not None and "tasks" in exchange.caller.can:
            created = await self._tasks.create(outcome, exchange.caller, ctx.protocol_version)
            if created is not None:
                # The SDK's types know no results of extensions, but its server sends them as they are.
                return cast("CallResult", created)
        return to_tool_result(outcome, ctx.protocol_version)

    async def _run_turn(self, name: str, turn: Coroutine[Any, Any, Outcome], caller: Caller) -> Outcome:
        """Run one turn. Errors become outcomes, except for a tool that does not exist."""
        try:
            return await await_with_grace(turn)
        except NotFound as error:
            # The tool itself, or something that it looked for? Only its absence is an error of the protocol.
            names = [tool.name for tool in await _with_mcp_errors(self._toolset.tools(caller.principal))]
            if name not in names:
                nearest = difflib.get_close_matches(name, names, n=3)
                raise MCPError(wire.INVALID_PARAMS, f"Unknown tool: {name}", {"nearest": nearest}) from error
            return failed_by(error)
        except Agent3Error as error:
            return failed_by(error)
        except MCPError:
            raise
        except Exception:
            # The SDK would send the text of any exception to a legacy client.
            log.exception("The tool %s failed inside the gateway", name)
            return Failed("internal", f"{name} failed inside the gateway. See the log of the gateway.")

    async def _check_demands(self, ctx: Context, params: wire.CallToolRequestParams) -> None:
        """Refuse a request that lacks what the tool demands."""
        known = self._demands.get(params.name)
        if known is None:
            self._remember(await _with_mcp_errors(self._toolset.tools(principal_of(ctx))))
            known = self._demands.get(params.name)
            if known is not None and known.wants_headers and ctx.request is not None and era_of(ctx) == "modern":
                # The SDK has compared headers and arguments already, except for a tool that was never listed.
                schema, arguments = known.tool.input_schema, params.arguments or {}
                fault = validate_mcp_param_headers(schema, arguments, ctx.request.headers)
                if fault is not None:
                    raise MCPError(fault.code, fault.message, fault.data)
        if known is not None and known.tool.requires and (missing := known.tool.requires - client_features(ctx)):
            raise missing_features_error(missing, params.name)

    def _remember(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            known = self._demands.get(tool.name)
            if known is None or known.tool is not tool:
                self._demands[tool.name] = _Demands(tool, _HEADER_KEY in encode(tool.input_schema))
        while len(self._demands) > MOST_TOOLS:
            self._demands.popitem(last=False)

    # Resources

    async def list_resources(
        self, ctx: Context, params: wire.PaginatedRequestParams | None
    ) -> wire.ListResourcesResult:
        listing = self._resources.resources(principal_of(ctx))
        found, cursor = await self._page(listing, lambda resource: resource.uri, params)
        resources = [_to_wire(wire.Resource, resource) for resource in found]
        return wire.ListResourcesResult(resources=resources, next_cursor=cursor)

    async def list_templates(
        self, ctx: Context, params: wire.PaginatedRequestParams | None
    ) -> wire.ListResourceTemplatesResult:
        listing = self._resources.templates(principal_of(ctx))
        found, cursor = await self._page(listing, lambda template: template.uri_template, params)
        templates = [_to_wire(wire.ResourceTemplate, template) for template in found]
        return wire.ListResourceTemplatesResult(resource_templates=templates, next_cursor=cursor)

    async def read_resource(
        self, ctx: Context, params: wire.ReadResourceRequestParams
    ) -> wire.ReadResourceResult | wire.InputRequiredResult:
        async def read(caller: Caller) -> Done | Needs:
            try:
                return await self._resources.read(params.uri, caller)
            except NotFound as error:
                raise MCPError(wire.INVALID_PARAMS, error.message, {"uri": params.uri}) from error

        done = await self._run_replayed(ctx, params, "resources/read", params.uri, None, read)
        if isinstance(done, wire.InputRequiredResult):
            return done
        return wire.ReadResourceResult(contents=to_contents(done.parts, params.uri), _meta=done.meta or None)

    async def may_watch(self, uri: str, principal: Principal) -> bool:
        subscriptions = self._capabilities.subscriptions
        if subscriptions is not None:
            try:
                await subscriptions.watch(uri, principal)
            except Agent3Error:
                return False
        return True

    @property
    def _resources(self) -> Resources:
        assert self._capabilities.resources is not None
        return self._capabilities.resources

    # Prompts

    async def list_prompts(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListPromptsResult:
        found, cursor = await self._page(self._prompts.prompts(principal_of(ctx)), lambda prompt: prompt.name, params)
        prompts = [_to_wire(wire.Prompt, prompt, arguments=[]) for prompt in found]
        return wire.ListPromptsResult(prompts=prompts, next_cursor=cursor)

    async def get_prompt(
        self, ctx: Context, params: wire.GetPromptRequestParams
    ) -> wire.GetPromptResult | wire.InputRequiredResult:
        arguments = params.arguments or {}

        async def fill(caller: Caller) -> FilledPrompt | Needs:
            return await self._prompts.prompt(params.name, arguments, caller)

        prompt = await self._run_replayed(ctx, params, "prompts/get", params.name, arguments, fill)
        if isinstance(prompt, wire.InputRequiredResult):
            return prompt
        return to_prompt_result(prompt, ctx.protocol_version)

    async def complete(self, ctx: Context, params: wire.CompleteRequestParams) -> wire.CompleteResult:
        completions = cast("Completions", self._capabilities.completions)
        ref = params.ref
        is_prompt = isinstance(ref, wire.PromptReference)
        completion = Completion(
            kind="prompt" if is_prompt else "resource",
            name=ref.name if isinstance(ref, wire.PromptReference) else ref.uri,
            argument=params.argument.name,
            value=params.argument.value,
            given=(params.context.arguments if params.context is not None else None) or {},
        )
        found = await _with_mcp_errors(completions.complete(completion, principal_of(ctx)))
        if not isinstance(found, CompletionResult):
            found = CompletionResult(tuple(found), len(found), len(found) > MOST_COMPLETIONS)
        values = list(found.values[:MOST_COMPLETIONS])
        return wire.CompleteResult(completion=wire.Completion(values=values, total=found.total, has_more=found.more))

    @property
    def _prompts(self) -> Prompts:
        assert self._capabilities.prompts is not None
        return self._capabilities.prompts

    # Log levels

    async def set_level(self, ctx: Context, params: wire.SetLevelRequestParams) -> wire.EmptyResult:
        """logging/setLevel, of legacy clients."""
        session = session_of(ctx)
        self._levels[session] = params.level
        self._levels.move_to_end(session)
        if len(self._levels) > MOST_SESSIONS:
            self._levels.popitem(last=False)
        return wire.EmptyResult()

    def _log_level(self, ctx: Context) -> str | None:
        """The lowest level the client wants: given with each request, or once per session in the legacy era."""
        if era_of(ctx) == "modern":
            level = (ctx.meta or {}).get(wire.LOG_LEVEL_META_KEY)
            return level if isinstance(level, str) else None
        return self._levels.get(session_of(ctx))

    # What they share

    async def _page(
        self,
        listing: Awaitable[Sequence[T]],
        key: Callable[[T], str],
        params: wire.PaginatedRequestParams | None,
    ) -> tuple[list[T], str | None]:
        items = await _with_mcp_errors(listing)
        try:
            return paginate(items, key, params.cursor if params is not None else None, self._page_size)
        except Agent3Error as error:
            raise to_mcp_error(error) from error

    async def _run_replayed(
        self,
        ctx: Context,
        params: wire.ReadResourceRequestParams | wire.GetPromptRequestParams,
        method: str,
        name: str,
        arguments: Any,
        run: Callable[[Caller], Coroutine[Any, Any, T | Needs]],
    ) -> T | wire.InputRequiredResult:
        """Run something that starts again from the top after each question, with all answers so far, or goes on with
        the job that asked."""

        async def start(caller: Caller) -> T | Needs:
            outcome = await await_with_grace(run(caller))
            if isinstance(outcome, Needs):
                return Needs(outcome.questions, state=encode(_Replayed(caller.answers, outcome.job)).decode())
            return outcome

        async def resume(state: str, answers: dict[str, Answer], caller: Caller) -> T | Needs:
            kept = _replayed.decode(state) if state else _Replayed()
            caller.answers = {**kept.answers, **answers}
            caller.resumed = None if kept.job is None else (kept.job, answers)
            return await start(caller)

        exchange: Exchange[T] = Exchange(ctx, self._tokens, self._log_level(ctx), logs=self._capabilities.logs)
        outcome = await _with_mcp_errors(exchange.run(Operation(method, name, arguments, start, resume), params))
        if isinstance(outcome, Needs):
            raise missing_features_error(frozenset(map(feature_for, outcome.questions)), name)
        return outcome


def _way_of(ctx: Context) -> str:
    """The way that a request came, by its ``_meta``, else by its header."""
    if isinstance(told := (ctx.meta or {}).get(via.META), str):
        return told
    return str(ctx.request.headers.get(via.HEADER, "")) if ctx.request is not None else ""


async def _end_turn(ended: Outcome | NotFound | Turn) -> Outcome:
    """A turn that has begun already, or ended too. Whoever cancels this cancels it."""
    if isinstance(ended, Turn):
        ended.is_taken = True
        return await ended.task
    if isinstance(ended, NotFound):
        raise ended
    return ended


async def _with_mcp_errors(work: Awaitable[T]) -> T:
    """Await something of the tool set whose errors are errors of the protocol, because there is no result yet."""
    try:
        return await work
    except Agent3Error as error:
        raise to_mcp_error(error) from error
    except (MCPError, WireError):
        raise
    except Exception:
        log.exception("The request failed inside the gateway")
        raise MCPError(
            wire.INTERNAL_ERROR, "The request failed inside the gateway. See the log of the gateway."
        ) from None


def _legacy_output_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Legacy results are objects: other results are wrapped, and so is a schema that certainly means no object."""
    if schema is None or schema.get("type") == "object":
        return schema
    if isinstance(schema.get("type"), str) and b'"$ref"' not in encode(schema):
        return {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    return None


def to_icons(icons: Sequence[Mapping[str, Any]]) -> list[wire.Icon] | None:
    return [wire.Icon.model_validate(icon) for icon in icons] or None


def _to_wire(kind: type[ModelT], described: Struct, **always: Any) -> ModelT:
    """A description of ``toolset``, which has the protocol's names, as the protocol's type."""
    return kind.model_validate({**always, **msgspec.to_builtins(described)}, by_name=False)
