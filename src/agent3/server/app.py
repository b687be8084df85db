"""The ASGI app: every door at its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3._version import __version__
from agent3.errors import Agent3Error, MethodNotAllowed, NotFound, SecurityError
from agent3.identity import access_tokens as oauth
from agent3.identity.doorkeeper import Doorkeeper, SignedRequests, is_loopback
from agent3.model import LOCAL, Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.gateway import A2ADoors, place_of
from agent3.protocols.mcp.door.agent_endpoints import AgentDoors, agent_in
from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, DoorOptions, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane, HungUp, Reply
from agent3.protocols.mcp.door.gateway_tools import INSTRUCTIONS, GatewayTools
from agent3.protocols.mcp.door.toolset import ToolSet
from agent3.protocols.nlweb.ask import door as asking
from agent3.server.build import Server
from agent3.server.connection import Guest, Lane
from agent3.server.dead_letters import measure
from agent3.server.rest import error_response, json_response, routes

if TYPE_CHECKING:  # it needs an optional part
    from agent3.protocols.a2a.grpc.server import GrpcDoor

__all__ = ["Doors", "app", "door"]

log = logger("server")

_METHODS = ["GET", "POST", "DELETE"]
"""Of MCP: requests, the streams of legacy sessions, and their end."""


def door(
    server: Server,
    tools: ToolSet,
    principal: Callable[[Scope], Principal] = lambda scope: LOCAL,
    instructions: str | None = INSTRUCTIONS,
    **more: Any,
) -> MCPDoor:
    """An MCP door of a gateway, with its hosts, origins and bounds; ``more`` are DoorOptions."""
    settings = server.settings.server
    bound = settings.host if ":" not in settings.host else f"[{settings.host}]"
    hosts = [*LOOPBACK_HOSTS, bound, f"{bound}:*", *settings.allowed_hosts]
    if not is_loopback(settings.host) and not settings.allowed_hosts:
        hosts = ["*"]  # bound to the network, every caller shows a key, and nobody told us our names
    options = DoorOptions(
        instructions=instructions,
        principal=principal,
        allowed_hosts=hosts,
        allowed_origins=[*LOOPBACK_ORIGINS, *settings.allowed_origins],
        max_body=settings.max_body,
        **more,
    )
    return MCPDoor(tools, options, env=server.env)


def app(server: Server) -> Doors:
    """The doors of a gateway: MCP, A2A, REST, health, metrics. Its lifespan must be run."""
    doorkeeper = Doorkeeper(server.settings, server.metrics)
    tools = GatewayTools(server.gateway, server.env)
    mcp = door(server, tools, doorkeeper)
    agents = AgentDoors(server, doorkeeper, mcp, partial(door, server))
    a2a = A2ADoors(server, doorkeeper)
    house = [
        Route("/", _home, methods=["GET"]),
        Route("/mcp", mcp.asgi(), methods=_METHODS),
        Route("/agents/{agent}/mcp", agents, methods=_METHODS),
        *a2a.routes(),
        *asking.routes(server, doorkeeper),
        Route("/healthz", _healthz, methods=["GET"]),
        Route("/readyz", _ready(server), methods=["GET"]),
        Route("/metrics", _metrics(server), methods=["GET"]),
        *oauth.routes(server.settings, server.env),
        *routes(server, tools, doorkeeper),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mcp.running(), agents.running():
            yield

    handlers: dict[Any, Any] = {404: _not_found, 405: _not_allowed, 500: _internal}
    inner = Starlette(
        routes=house, middleware=_signed(server, doorkeeper), lifespan=lifespan, exception_handlers=handlers
    )
    lane: ASGIApp = FastLane(mcp, env=server.env)
    others: ASGIApp = agents
    tasks: ASGIApp = a2a
    if doorkeeper.judges:
        lane, others, tasks = (
            SignedRequests(one, doorkeeper, server.database, server.settings.server, server.env)
            for one in (lane, others, tasks)
        )
    doors = Doors(_for_pages(inner, server.settings.server.allowed_origins), lane, others, tasks, server)
    doors.speak_grpc = partial(a2a.speak_grpc, judge=_judging(server, doorkeeper))
    return doors


def _judging(server: Server, doorkeeper: Doorkeeper) -> Callable[[Scope], Awaitable[None]]:
    """What judges the access tokens of calls that come by another way than HTTP. Signatures are none over gRPC."""

    async def nobody(scope: Scope, receive: Receive, send: Send) -> None:
        """The verdict is in the scope."""

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def unheard(message: Message) -> None:
        """Whoever refuses says why by itself."""

    judge = SignedRequests(nobody, doorkeeper, server.database, server.settings.server, server.env)

    async def judging(scope: Scope) -> None:
        if doorkeeper.judges:
            await judge(scope, gone, unheard)

    return judging


def _signed(server: Server, doorkeeper: Doorkeeper) -> list[Middleware]:
    """What judges signed requests; nothing where no client can sign."""
    if not doorkeeper.judges:
        return []
    return [Middleware(SignedRequests, doorkeeper, server.database, server.settings.server, server.env)]


def _for_pages(inner: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Browsers ask first whether a page of another origin may call; those that were named may."""
    if not origins:
        return inner
    return CORSMiddleware(
        inner,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Location", "Retry-After", "WWW-Authenticate", "Mcp-Session-Id", "A2A-Extensions", "ETag"],
    )


class Doors:
    """What stands before every door: foreign pages may not call a gateway on loopback.

    MCP judges hosts and origins by itself, and goes straight to its lane unless a page calls, which needs CORS.
    """

    speak_grpc: Callable[[int, str], Awaitable[GrpcDoor]]
    """Opens the door of gRPC on a port, beside the address of these doors."""

    def __init__(self, inner: ASGIApp, lane: ASGIApp, agents: ASGIApp, a2a: ASGIApp, server: Server):
        self._inner = inner
        self._a2a = a2a
        self._lane = lane
        self._agents = agents
        # Where requests are judged before they reach a lane, none is answered without that.
        self._short = {"/mcp": lane} if isinstance(lane, FastLane) else {}
        self._shorts = agents if isinstance(agents, AgentDoors) else None
        self._tasks = a2a if isinstance(a2a, A2ADoors) else None
        self._origins = {*server.settings.server.allowed_origins}
        names = {"127.0.0.1", "localhost", "[::1]", server.settings.server.host}
        self._hosts = names | set(server.settings.server.allowed_hosts)
        self._open = not is_loopback(server.settings.server.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            own = scope["path"] == "/mcp"
            if own or agent_in(scope["path"]) is not None:
                if scope["method"] in _METHODS and not any(name == b"origin" for name, _ in scope["headers"]):
                    await _caught(self._lane if own else self._agents, scope, receive, send)
                    return
            elif refusal := self._refusal(scope):
                await error_response(refusal)(scope, receive, send)
                return
            elif place_of(scope["path"]) is not None and not any(name == b"origin" for name, _ in scope["headers"]):
                await _caught(self._a2a, scope, receive, send)
                return
        await self._inner(scope, receive, send)

    def lane(self, path: str) -> Lane | None:
        """What may answer a POST to this path before any app is asked."""
        if found := self._short.get(path):
            return found
        if agent_in(path) is not None:
            return self._shorts
        return self if self._tasks is not None and place_of(path) is not None else None

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer of A2A to a whole POST, without ASGI."""
        guest = self.guest(scope)
        return await guest.reply(scope, body, hung_up) if guest is not None else None

    def guest(self, scope: Scope) -> Guest | None:
        """Who asks A2A, for this request and any further one with the same head."""
        return self._tasks.guest(scope) if self._tasks is not None and self._refusal(scope) is None else None

    def _refusal(self, scope: Scope) -> Agent3Error | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if not self._open and name not in self._hosts and host not in self._hosts:
            return SecurityError(f"Host {host[:100]!r} is not this gateway. Add it to server.allowed_hosts.")
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._origins and origin.rsplit("://", 1)[-1] != host:
            return SecurityError(f"Pages of {origin[:100]!r} may not call. Add it to server.allowed_origins.")
        return None


async def _caught(lane: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """What Starlette does around its routes: an error of ours is logged and told without its words."""
    begun = False

    async def noting(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        await lane(scope, receive, noting)
    except Exception:
        log.exception("%s %s failed", scope["method"], scope["path"][:200])
        if not begun:
            await error_response(Agent3Error("Internal error. The log of the gateway says more."))(scope, receive, send)


async def _home(request: Request) -> Response:
    base = str(request.base_url).rstrip("/")
    lines = [
        f"agent3 {__version__}: any agent, any tool, any website, one call.",
        "",
        f"MCP endpoint   {base}/mcp, and {base}/agents/ID/mcp for one agent alone",
        f"A2A endpoint   {base}/a2a, and {base}/agents/ID/a2a for one agent alone",
        f"NLWeb          {base}/ask, {base}/who",
        f"REST           {base}/openapi.json",
        f"Health         {base}/healthz, {base}/readyz",
        f"Metrics        {base}/metrics",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


async def _healthz(request: Request) -> Response:
    return json_response({"status": "ok", "version": __version__})


def _ready(server: Server) -> Any:
    async def readyz(request: Request) -> Response:
        server.readiness.asked()
        try:
            await server.database.one("SELECT 1 AS fine")
        except Agent3Error as wrong:
            return json_response({"status": "not ready", "database": wrong.message}, 503)
        if not server.ready:
            return json_response({"status": "not ready", "gateway": "starting or stopping"}, 503)
        return json_response({"status": "ready"})

    return readyz


def _metrics(server: Server) -> Any:
    async def metrics(request: Request) -> Response:
        with suppress(Agent3Error):  # what cannot be counted now is shown as it was
            await measure(server.database, server.env, server.metrics)
        body, kind = server.metrics.render()
        return Response(body, media_type=kind)

    return metrics


async def _not_found(request: Request, _: Exception) -> Response:
    return error_response(NotFound(f"There is nothing at {request.url.path[:200]}. See /openapi.json."))


async def _not_allowed(request: Request, wrong: Exception) -> Response:
    answer = json_response(
        {"error": MethodNotAllowed(f"{request.method} is not for {request.url.path[:200]}.").to_dict()}, 405
    )
    answer.headers.update(getattr(wrong, "headers", None) or {})
    return answer


async def _internal(request: Request, wrong: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=wrong)
    return error_response(Agent3Error("Internal error. The log of the gateway says more."))
