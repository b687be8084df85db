"""The MCP protocol in front of any set of tools: both eras, Streamable HTTP and stdio.

The official low-level server does the protocol; this module alone knows it. A ``ToolSet`` says which tools a caller
has and runs one turn of a call, in the words of ``agent3.model``; ``MCPDoor`` turns outcomes into results, questions
into elicitations and events into notifications. It knows nothing of agents, directories or storage, and it does not
validate arguments: that is the business of the steps behind the tool set.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args
from urllib.parse import quote

import anyio
import mcp_types as wire
import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least
from msgspec import Struct, UnsetType
from pydantic import ValidationError as WireError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Canceled, NotFound
from agent3.model import (
    LOCAL,
    Answer,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Working,
    encode,
    text_of,
)

__all__ = ["Caller", "Era", "MCPDoor", "Tool", "ToolSet", "how_to_answer"]

logger = logging.getLogger(__name__)

Era = Literal["modern", "legacy"]
"""modern: 2026-07-28, each request for itself. legacy: everything before it, with ``initialize`` and a session."""

Context = ServerRequestContext[Any, Any]
CallResult = wire.CallToolResult | wire.InputRequiredResult
T = TypeVar("T")

LOOPBACK_HOSTS = ("127.0.0.1", "127.0.0.1:*", "localhost", "localhost:*", "[::1]", "[::1]:*")
LOOPBACK_ORIGINS = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in LOOPBACK_HOSTS)

PRINCIPAL = "agent3.principal"
"""The key in the ASGI scope under which the door leaves who calls."""
ROUNDS = 100
"""How often one legacy call asks in place before it gives the question back as text."""
BACKLOG = 256
"""Events that may wait for a slow reader; further ones are dropped, for progress is advice."""
SESSIONS = 10_000
"""Legacy sessions whose log level is remembered; the SDK keeps no more sessions than that."""
MESSAGE_LENGTH = 2000
"""Characters of a progress message."""
GRACE = 5.0
"""Seconds that a cancelled call has to clean up before the door stops waiting for it."""


class Tool(Struct, frozen=True, kw_only=True):
    """One tool as a client sees it. ``annotations`` uses the names of the wire, such as ``readOnlyHint``."""

    name: str
    description: str = ""
    title: str | None = None
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, bool] = {}
    meta: dict[str, Any] = {}


@dataclass(slots=True)
class Caller:
    """Who calls, and what the door knows of the request.

    ``listener`` takes events on the thread of the event loop and never waits. ``meta`` is the request's ``_meta``
    without the protocol's own keys.
    """

    principal: Principal
    listener: Callable[[Event], None]
    era: Era
    can_elicit: bool
    traceparent: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


class ToolSet(Protocol):
    """What the door opens to. Refusals are raised as ``Agent3Error``; a cancelled request cancels the turn."""

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The tools that this caller has."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """The first turn. Raise ``NotFound`` for a tool that ``tools`` does not list for this caller.

        A ``Needs`` carries in ``state`` the string that ``answer`` gets back (its ``job`` where there is none).
        """
        ...

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """The next turn, with one answer for each question that was asked."""
        ...


def how_to_answer(tool: str, needs: Needs) -> str:
    """What a client that cannot elicit is told to do; a door may be given other words."""
    answers = {question.id: "<your answer>" for question in needs.questions}
    metadata = encode({"job": needs.job, "answers": answers}).decode()
    return f'Ask the person, then answer by calling "{tool}" again with the same arguments and "metadata": {metadata}'


class MCPDoor:
    """One MCP server: ``asgi()`` for HTTP, to be used within ``running()``, and ``stdio()``.

    ``principal`` reads who calls from the ASGI scope and may raise ``AccessError``; over stdio it is always
    ``LOCAL``. ``key`` signs what a modern client carries between two turns; replicas must share it, and without one
    the door makes its own, good for one process. ``allowed_hosts`` and ``allowed_origins`` default to loopback, a
    trailing ``:*`` stands for any port, and ``"*"`` among the hosts turns both checks off.
    """

    def __init__(
        self,
        toolset: ToolSet,
        *,
        name: str = "agent3",
        version: str = __version__,
        instructions: str | None = None,
        principal: Callable[[Scope], Principal] = lambda _: LOCAL,
        allowed_hosts: Sequence[str] = LOOPBACK_HOSTS,
        allowed_origins: Sequence[str] = LOOPBACK_ORIGINS,
        key: bytes | None = None,
        answer_within: float = 86_400.0,
        list_ttl: float = 30.0,
        page_size: int = 500,
        max_body: int = 1 << 20,
        hint: Callable[[str, Needs], str] = how_to_answer,
        env: Env = REAL,
    ):
        self.toolset = toolset
        self.hint = hint
        self.seal = _Seal(key or env.random_bytes(32), answer_within, env)
        self._principal = principal
        self._page_size = page_size
        self._max_body = max_body
        self._security = _security(allowed_hosts, allowed_origins)
        self._levels: OrderedDict[str, wire.LoggingLevel] = OrderedDict()
        self._headed: dict[str, dict[str, Any]] = {}
        self._manager: StreamableHTTPSessionManager | None = None
        self._server = self._build(name, version, instructions, list_ttl)

    def asgi(self) -> _Endpoint:
        """The ASGI app of one path: POST for both eras, GET and DELETE for legacy sessions."""
        return _Endpoint(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve HTTP meanwhile: to be entered by the lifespan of the app around. Leaving it ends all requests."""
        # The SDK's manager runs once only, so each run gets its own.
        manager = StreamableHTTPSessionManager(
            self._server, security_settings=self._security, max_request_body_size=self._max_body
        )
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def stdio(self) -> None:
        """Serve the host at standard input and output until it closes its end; prints go to stderr meanwhile."""
        async with stdio_server() as (incoming, outgoing):
            await self._server.run(incoming, outgoing, self._server.create_initialization_options())

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if self._manager is None:
            await Response("The MCP endpoint is not running", 503)(scope, receive, send)
            return
        try:
            principal = self._principal(scope)
        except Agent3Error as error:
            await _refusal(error)(scope, receive, send)
            return
        await self._manager.handle_request(_owned(scope, principal), receive, send)

    def log_level(self, ctx: Context) -> str | None:
        """The least level the client wants to see: said with each request, or once per session in the legacy era."""
        if _era(ctx) == "modern":
            level = (ctx.meta or {}).get(wire.LOG_LEVEL_META_KEY)
            return level if isinstance(level, str) else None
        return self._levels.get(_session_of(ctx))

    async def known(self, principal: Principal) -> list[Tool]:
        """This caller's tools, by name. What goes wrong is an error of the protocol, for there is no result yet."""
        try:
            return sorted(await self.toolset.tools(principal), key=lambda tool: tool.name)
        except Agent3Error as error:
            raise MCPError(error.rpc_code, error.message, error.to_dict()) from error
        except Exception:
            logger.exception("The tools could not be listed")
            raise MCPError(wire.INTERNAL_ERROR, "The tools could not be listed; the gateway's log says why") from None

    def _build(self, name: str, version: str, instructions: str | None, list_ttl: float) -> Server[Any]:
        server: Server[Any] = Server(
            name,
            version=version,
            instructions=instructions,
            on_list_tools=self._list,
            on_call_tool=self._call,
            cache_hints={"tools/list": CacheHint(ttl_ms=int(list_ttl * 1000), scope="private")},
            # Without it the SDK runs tools/list inside every tools/call, to compare headers with arguments.
            get_tool_input_schema=self._headed.get,
        )
        # Registered here because the constructor's parameter for it warns of deprecation at every start.
        server.add_request_handler("logging/setLevel", wire.SetLevelRequestParams, self._set_level)
        return server

    async def _list(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        """Pages by the last name shown, so that a cursor survives tools that come and go."""
        after = _cursor_name(params.cursor) if params is not None and params.cursor else ""
        rest = [tool for tool in await self.known(_principal_of(ctx)) if tool.name > after]
        page = rest[: self._page_size]
        self._remember(page)
        era = _era(ctx)
        more = _cursor(page[-1].name) if len(rest) > len(page) else None
        return wire.ListToolsResult(tools=[_wire_tool(tool, era) for tool in page], next_cursor=more)

    def _remember(self, page: Sequence[Tool]) -> None:
        """Keep the schemas that copy arguments into headers, for these are all that the SDK compares."""
        for tool in page:
            if b'"x-mcp-header"' in encode(tool.input_schema):
                self._headed[tool.name] = tool.input_schema
            else:
                self._headed.pop(tool.name, None)

    async def _call(self, ctx: Context, params: wire.CallToolRequestParams) -> CallResult:
        return await _Exchange(self, ctx, params).result()

    async def _set_level(self, ctx: Context, params: wire.SetLevelRequestParams) -> wire.EmptyResult:
        session = _session_of(ctx)
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


def _security(hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    return TransportSecuritySettings(
        enable_dns_rebinding_protection="*" not in hosts, allowed_hosts=list(hosts), allowed_origins=list(origins)
    )


def _owned(scope: Scope, principal: Principal) -> Scope:
    """The scope with its principal, also in the form in which the SDK ties a legacy session to who opened it."""
    token = AccessToken(token="", client_id=principal.id, scopes=[], subject=principal.tenant)
    return {**scope, PRINCIPAL: principal, "user": AuthenticatedUser(token)}


def _refusal(error: Agent3Error) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    fault = {"code": error.rpc_code, "message": error.message, "data": error.to_dict()}
    body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
    return Response(body, error.http_status, headers, "application/json")


# What the request says


def _era(ctx: Context) -> Era:
    return "modern" if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"


def _principal_of(ctx: Context) -> Principal:
    principal = ctx.request.scope[PRINCIPAL] if ctx.request is not None else LOCAL
    assert isinstance(principal, Principal)
    return principal


def _session_of(ctx: Context) -> str:
    """What tells legacy connections apart; over stdio there is only one."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else ""


def _modes(ctx: Context) -> frozenset[str]:
    """How this client can be asked. An empty elicitation capability means forms; legacy also needs a way back."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None or (_era(ctx) == "legacy" and not ctx.session.can_send_request):
        return frozenset()
    modes = {"url"} if elicitation.url is not None else set()
    if elicitation.form is not None or not modes:
        modes.add("form")
    return frozenset(modes)


def _meta_of(ctx: Context) -> dict[str, Any]:
    own = ("progress_token", "progressToken")
    meta = ctx.meta or {}
    return {key: value for key, value in meta.items() if key not in own and not _reserved(key)}


def _reserved(key: str) -> bool:
    return key.startswith("io.modelcontextprotocol/")


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _bytes(text: str) -> bytes:
    """Base64 without the leniency of the standard library, which skips what it does not know."""
    return base64.b64decode(text, altchars=b"-_", validate=True)


def _cursor_name(cursor: str) -> str:
    try:
        return _bytes(cursor).decode()
    except ValueError:
        raise MCPError(wire.INVALID_PARAMS, "Unknown cursor: list again from the start") from None


# Tools


def _wire_tool(tool: Tool, era: Era) -> wire.Tool:
    return wire.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        # One schema without its type would make the SDK refuse the whole list.
        input_schema={**tool.input_schema, "type": "object"},
        output_schema=tool.output_schema if era == "modern" else _legacy_output(tool.output_schema),
        annotations=wire.ToolAnnotations.model_validate(tool.annotations) if tool.annotations else None,
        _meta=tool.meta or None,
    )


def _legacy_output(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Legacy results are objects: other results are wrapped, and so is a schema that surely never means an object."""
    if schema is None or schema.get("type") == "object":
        return schema
    if isinstance(schema.get("type"), str) and b'"$ref"' not in encode(schema):
        return _wrapped("result", schema)
    return None


def _wrapped(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: dict(schema)}, "required": [name]}


# One tools/call request


class _Exchange:
    """One tools/call request, from its first turn to a result that the client can take."""

    def __init__(self, door: MCPDoor, ctx: Context, params: wire.CallToolRequestParams):
        self._door = door
        self._ctx = ctx
        self._params = params
        self._era = _era(ctx)
        self._modes = _modes(ctx)
        self._feed = _Feed(ctx, door.log_level(ctx))
        self._caller = self._who()

    async def result(self) -> CallResult:
        outcome = await self._turn(self._first())
        for _ in range(ROUNDS):
            if not isinstance(outcome, Needs):
                return _result(outcome, self._ctx.protocol_version)
            if not self._can_ask(outcome.questions):
                break
            if self._era == "modern":
                return self._ask_back(outcome)
            answers = await self._ask_in_place(outcome.questions)
            if answers is None:
                break
            outcome = await self._turn(self._door.toolset.answer(_state(outcome), answers, self._caller))
        assert isinstance(outcome, Needs)
        return _asked_in_text(outcome, self._door.hint(self._params.name, outcome))

    def _can_ask(self, questions: Sequence[Question]) -> bool:
        return bool(questions) and self._modes.issuperset(map(_mode, questions))

    def _who(self) -> Caller:
        meta = _meta_of(self._ctx)
        trace = meta.get("traceparent")
        return Caller(
            principal=_principal_of(self._ctx),
            listener=self._feed.listen,
            era=self._era,
            can_elicit="form" in self._modes,
            traceparent=trace if isinstance(trace, str) else None,
            meta=meta,
        )

    async def _first(self) -> Outcome:
        """A new call, or the answers to the questions of an earlier one; what was left unanswered is asked again."""
        toolset, params = self._door.toolset, self._params
        if self._era == "legacy" or params.request_state is None:
            return await toolset.call(params.name, params.arguments or {}, self._caller)
        paused = self._door.seal.open(params.request_state, self._subject())
        answers = _answers(paused.questions, params.input_responses or {})
        if len(answers) < len(paused.questions):
            return Needs(paused.questions, state=paused.state, job=paused.job)
        return await toolset.answer(paused.state, answers, self._caller)

    async def _turn(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run one turn while its events go out. What goes wrong is an outcome, but for a tool that is not there."""
        try:
            async with self._feed.flowing():
                return await _uncut(work)
        except NotFound as error:
            await self._refuse_unknown()
            return _refused(error)
        except Agent3Error as error:
            return _refused(error)
        except MCPError:
            raise
        except Exception:
            # The SDK would send the words of any exception to a legacy client.
            logger.exception("The tool %s failed inside the gateway", self._params.name)
            return Failed("internal", f"{self._params.name} failed inside the gateway; its log says why")

    async def _refuse_unknown(self) -> None:
        name = self._params.name
        names = [tool.name for tool in await self._door.known(self._caller.principal)]
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=3)
            raise MCPError(wire.INVALID_PARAMS, f"Unknown tool: {name}", {"nearest": nearest})

    def _subject(self) -> str:
        """What a pause belongs to: this caller, this tool, these arguments."""
        who = self._caller.principal
        arguments = msgspec.json.encode(self._params.arguments or {}, order="deterministic")
        return encode([who.id, who.tenant, self._params.name, hashlib.sha256(arguments).hexdigest()]).decode()

    def _ask_back(self, needs: Needs) -> wire.InputRequiredResult:
        paused = self._door.seal.close(needs.questions, _state(needs), needs.job, self._subject())
        requests: wire.InputRequests = {question.id: _elicitation(question) for question in needs.questions}
        return wire.InputRequiredResult(input_requests=requests, request_state=paused)

    async def _ask_in_place(self, questions: Sequence[Question]) -> dict[str, Answer] | None:
        """Ask one by one; after a no the rest counts as cancelled. None where the client could not be asked."""
        answers: dict[str, Answer] = {}
        for question in questions:
            try:
                reply = await self._elicit(question)
            except (MCPError, WireError) as error:
                logger.warning("The client could not be asked %s: %s", question.id, type(error).__name__)
                return None
            answers[question.id] = _answer(question, reply)
            if reply.action != "accept":
                break
        return {question.id: answers.get(question.id, Answer("cancel")) for question in questions}

    async def _elicit(self, question: Question) -> wire.ElicitResult:
        session, request = self._ctx.session, self._ctx.request_id
        if question.url is not None:
            return await session.elicit_url(question.text, question.url, question.id, request)
        return await session.elicit_form(question.text, _form(question), request)


async def _uncut(work: Coroutine[Any, Any, T]) -> T:
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


# Events on their way out


class _Feed:
    """The events of one request, as notifications, as far as the client wants them.

    ``listen`` never waits. Everything that was said is sent before the result is.
    """

    def __init__(self, ctx: Context, level: str | None):
        levels: tuple[str, ...] = get_args(wire.LoggingLevel)
        self._ctx = ctx
        self._levels = levels[levels.index(level) :] if level in levels else ()
        self._progress = "progress_token" in (ctx.meta or {})
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        self._reached: float | None = None

    def listen(self, event: Event) -> None:
        wanted = self._levels if event.kind == "log" else self._progress
        if wanted and event.kind in ("log", "progress", "status", "artifact") and self._waiting.qsize() < BACKLOG:
            self._waiting.put_nowait(event)

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
        while (event := await self._waiting.get()) is not None:
            try:
                await (self._log(event) if event.kind == "log" else self._report(event))
            except Exception:
                logger.exception("An event could not be sent to the client")

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
        level: Any = event.name if event.name in get_args(wire.LoggingLevel) else "info"
        if level in self._levels:
            data = event.data if event.data is not None else event.text
            params = wire.LoggingMessageNotificationParams(level=level, data=data)
            note = wire.LoggingMessageNotification(params=params)
            await self._ctx.session.send_notification(note, self._ctx.request_id)


# Questions


def _mode(question: Question) -> str:
    return "form" if question.url is None else "url"


def _state(needs: Needs) -> str:
    return needs.state if isinstance(needs.state, str) else needs.job or ""


def _elicitation(question: Question) -> wire.ElicitRequest:
    if question.url is not None:
        return wire.ElicitRequest(params=wire.ElicitRequestURLParams(message=question.text, url=question.url))
    form = wire.ElicitRequestFormParams(message=question.text, requested_schema=_form(question))
    return wire.ElicitRequest(params=form)


Shape = Literal["object", "value", "json"]
"""How an answer is put into a form: as the form, as its one field, or as JSON text in its one field."""


def _shape(schema: Mapping[str, Any] | None) -> Shape:
    """Forms are flat by the protocol: text, numbers, yes or no, choices."""
    if schema is None or _flat(schema):
        return "value"
    fields = schema.get("properties")
    if schema.get("type") == "object" and isinstance(fields, dict) and all(_flat(one) for one in fields.values()):
        return "object"
    return "json"


def _flat(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        items = schema.get("items")
        return isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return schema.get("type") in ("string", "number", "integer", "boolean")


def _form(question: Question) -> dict[str, Any]:
    schema = question.schema or {"type": "string"}
    shape = _shape(schema)
    if shape == "object":
        return {key: schema[key] for key in ("$schema", "type", "properties", "required") if key in schema}
    if shape == "json":
        schema = {"type": "string", "description": f"JSON of this schema: {encode(schema).decode()}"}
    return _wrapped("answer", schema)


def _answer(question: Question, reply: wire.ElicitResult) -> Answer:
    if reply.action != "accept" or question.url is not None:
        return Answer(reply.action)
    content: dict[str, Any] = reply.content or {}
    shape = _shape(question.schema)
    value = content if shape == "object" else content.get("answer")
    if shape == "json" and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            # Whoever validates answers will say what is wrong with it.
            logger.debug("The answer to %s is not JSON", question.id)
    return Answer(data=value)


def _answers(questions: Sequence[Question], replies: Mapping[str, Any]) -> dict[str, Answer]:
    given = [(question, replies.get(question.id)) for question in questions]
    return {one.id: _answer(one, reply) for one, reply in given if isinstance(reply, wire.ElicitResult)}


class _Paused(Struct, frozen=True):
    """What a modern client carries from one turn to the next."""

    subject: str
    expires: float
    questions: tuple[Question, ...]
    state: str
    job: str | None = None


class _Seal:
    """Signs what a client carries for us. It can read it (it was asked these questions) but not change it."""

    def __init__(self, key: bytes, lifetime: float, env: Env):
        self._key = key
        self._lifetime = lifetime
        self._env = env

    def close(self, questions: tuple[Question, ...], state: str, job: str | None, subject: str) -> str:
        body = encode(_Paused(subject, self._env.now() + self._lifetime, questions, state, job))
        return base64.urlsafe_b64encode(self._sign(body) + body).decode()

    def open(self, token: str, subject: str) -> _Paused:
        """What ``close`` was given. Refused alike if changed, too old, or of another caller, tool or arguments."""
        try:
            raw = _bytes(token)
            body = raw[32:]
            if hmac.compare_digest(raw[:32], self._sign(body)):
                paused = msgspec.json.decode(body, type=_Paused)
                if paused.subject == subject and self._env.now() < paused.expires:
                    return paused
        except ValueError:
            logger.debug("A requestState is not ours")
        raise MCPError(wire.INVALID_PARAMS, "Invalid or expired requestState: call the tool again without it")

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, b"agent3/mcp/requestState" + body, "sha256")


# Results


def _refused(error: Agent3Error) -> Failed:
    return Failed(error.code, error.message, retryable=error.retryable, retry_after=error.retry_after, data=error.data)


def _result(outcome: Done | Failed | Working, version: str) -> wire.CallToolResult:
    if isinstance(outcome, Done):
        return _done(outcome, version)
    if isinstance(outcome, Failed):
        return _failed(outcome, version)
    return _working(outcome)


def _done(done: Done, version: str) -> wire.CallToolResult:
    parts = [*done.parts, *(part for artifact in done.artifacts for part in artifact.parts)]
    return wire.CallToolResult(
        content=_blocks(parts, version), structured_content=_structured(parts, version), _meta=done.meta or None
    )


def _failed(failed: Failed, version: str) -> wire.CallToolResult:
    parts = [*failed.parts, *(part for artifact in failed.artifacts for part in artifact.parts)]
    text = _text("\n".join([failed.message, *_advice(failed)]))
    if len(parts) == 1 and isinstance(parts[0].data, dict):
        # The tool has a form of its own for failures; it takes the place of ours.
        return wire.CallToolResult(content=[text], structured_content=_plain(parts[0].data), is_error=True)
    return wire.CallToolResult(
        content=[text, *_blocks(parts, version)], structured_content=_machine_form(failed), is_error=True
    )


def _machine_form(failed: Failed) -> dict[str, Any]:
    """As ``Agent3Error.to_dict``, with the faults of an input beside it instead of below ``data``."""
    data = dict(failed.data)
    errors = data.pop("errors", None)
    form: dict[str, Any] = {"code": failed.code, "message": failed.message, "retryable": failed.retryable}
    if failed.retry_after is not None:
        form["retry_after"] = round(failed.retry_after, 3)
    if errors:
        form["errors"] = errors
    if data:
        form["data"] = data
    plain: dict[str, Any] = _plain(form)
    return plain


def _advice(failed: Failed) -> Iterator[str]:
    """What a model should read besides the message."""
    for fault in failed.data.get("errors") or ():
        if isinstance(fault, Mapping) and fault.get("message") and fault["message"] not in failed.message:
            yield f"- {fault['message']}"
    if failed.data.get("nearest"):
        yield f"Nearest: {', '.join(map(str, failed.data['nearest']))}"
    if failed.retryable:
        yield f"It may work again in {failed.retry_after:.0f} s." if failed.retry_after else "It may work later."


def _working(working: Working) -> wire.CallToolResult:
    form: dict[str, Any] = {"job": working.job, "status": "working"}
    if working.poll is not None:
        form["poll"] = working.poll
    text = working.text or "This goes on in the background."
    return wire.CallToolResult(content=[_text(f"{text}\nJob: {working.job}")], structured_content=form)


def _asked_in_text(needs: Needs, hint: str) -> wire.CallToolResult:
    """For a client that cannot ask its person: the model reads the question and asks."""
    lines = ["This cannot go on without an answer."]
    for question in needs.questions:
        lines.append(f"Question {question.id}: {question.text}")
        if question.schema is not None:
            lines.append(f"JSON Schema of the answer: {encode(question.schema).decode()}")
        if question.url is not None:
            lines.append(f"To be done at: {question.url}")
    lines += [f"Job: {needs.job}"] if needs.job else []
    message = " ".join(question.text for question in needs.questions)
    form = {"code": "input_required", "message": message, "retryable": False, "status": "needs"}
    asked = {"job": needs.job, "turn": needs.turn, "questions": needs.questions}
    text = _text("\n".join([*lines, hint]))
    return wire.CallToolResult(content=[text], structured_content=_plain({**form, **asked}), is_error=True)


def _structured(parts: Sequence[Part], version: str) -> Any:
    values = [_plain(part.data) for part in parts if not isinstance(part.data, UnsetType)]
    if not values:
        return None
    value = values[0] if len(values) == 1 else values
    return value if isinstance(value, dict) or version in MODERN_PROTOCOL_VERSIONS else {"result": value}


def _plain(value: Any) -> Any:
    """The value as JSON has it: no structs, no dates, no NaN, which the SDK would not send or a client not read."""
    return msgspec.json.decode(encode(value))


def _blocks(parts: Sequence[Part], version: str) -> list[wire.ContentBlock]:
    return [_block(part, number, version) for number, part in enumerate(parts, 1)]


def _block(part: Part, number: int, version: str) -> wire.ContentBlock:
    if part.text is not None:
        return _text(part.text, part.meta)
    if not isinstance(part.data, UnsetType):
        return _text(encode(part.data).decode(), part.meta)
    if part.raw is not None:
        return _binary(part, part.raw, number, version)
    return _link(part, part.url or f"agent3://artifacts/{quote(part.artifact or '', safe='')}", version)


def _text(text: str, meta: Mapping[str, Any] | None = None) -> wire.TextContent:
    return wire.TextContent(text=text, _meta=dict(meta) if meta else None)


def _binary(part: Part, raw: bytes, number: int, version: str) -> wire.ContentBlock:
    data = base64.b64encode(raw).decode()
    kind = part.media_type or "application/octet-stream"
    if kind.startswith("image/"):
        return wire.ImageContent(data=data, mime_type=kind, _meta=part.meta or None)
    if kind.startswith("audio/") and is_version_at_least(version, "2025-03-26"):
        return wire.AudioContent(data=data, mime_type=kind, _meta=part.meta or None)
    uri = f"agent3://parts/{quote(part.name or str(number), safe='')}"
    blob = wire.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return wire.EmbeddedResource(resource=blob, _meta=part.meta or None)


def _link(part: Part, uri: str, version: str) -> wire.ContentBlock:
    """Links are younger than the oldest versions, whose clients get them as text."""
    name = part.name or uri
    if not is_version_at_least(version, "2025-06-18"):
        return _text(name if name == uri else f"{name}: {uri}", part.meta)
    return wire.ResourceLink(name=name, uri=uri, mime_type=part.media_type, _meta=part.meta or None)
