"""The ASGI app: every door at its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3._version import __version__
from agent3.errors import Agent3Error, MethodNotAllowed, NotFound, SecurityError
from agent3.gateway.dead_letters import measure
from agent3.gateway.http import error_response, json_response
from agent3.gateway.lanes import Guest, HungUp, Lane, Reply
from agent3.gateway.protocol import Door, Listening
from agent3.identity import access_tokens
from agent3.identity.doorkeeper import Doorkeeper, SignedRequests, is_loopback
from agent3.observe.logs import get as logger
from agent3.server.build import Server
from agent3.server.rest import Rest

__all__ = ["Doors", "app"]

log = logger("server")

_INTERNAL = "Internal error. The gateway's log has the details."


def app(server: Server) -> Doors:
    """The doors of a gateway: those of every protocol, REST, health, metrics. Its lifespan must be run."""
    services = server.services
    services.doorkeeper = doorkeeper = Doorkeeper(server.settings, server.metrics)
    doors = [door for protocol in server.protocols.values() for door in protocol.doors()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for door in doors:
                await stack.enter_async_context(door.running())
            yield

    def judged(inner: ASGIApp) -> ASGIApp:
        return SignedRequests(inner, doorkeeper, server.database, server.settings.server, server.env)

    # Signatures and tokens take time to judge, so that is done before a door is asked; nothing where nobody signs.
    middleware = [Middleware(_Judged, judge=judged)] if doorkeeper.judges else []
    inner: ASGIApp = Starlette(
        routes=[
            Route("/", _home(doors), methods=["GET"]),
            *(route for door in doors for route in door.routes),
            Route("/healthz", _healthz, methods=["GET"]),
            Route("/readyz", _readyz(server), methods=["GET"]),
            Route("/metrics", _metrics(server), methods=["GET"]),
            *access_tokens.metadata_routes(server.settings, server.env),
            *Rest(services).routes(),
        ],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={404: _not_found, 405: _not_allowed, 500: _internal},
    )
    if origins := server.settings.server.allowed_origins:
        # Browsers ask first whether a page of another origin may call; those that were named may.
        inner = CORSMiddleware(
            inner,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Location", "Retry-After", "WWW-Authenticate", "Mcp-Session-Id", "A2A-Extensions", "ETag"],
        )
    return Doors(inner, doors, server, judged if doorkeeper.judges else None)


class _Judged:
    """A middleware that is made by a function."""

    def __init__(self, app: ASGIApp, judge: Callable[[ASGIApp], ASGIApp]):
        self._app = judge(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Doors:
    """What stands before every door: foreign pages may not call a gateway on loopback.

    A door that takes a request directly gets it before any middleware, unless a web page sends it, which needs CORS.
    """

    def __init__(
        self, inner: ASGIApp, doors: Sequence[Door], server: Server, judged: Callable[[ASGIApp], ASGIApp] | None
    ):
        self._inner = inner
        self._doors = doors
        self._judged = judged
        self._direct = [(door, judged(door.app) if judged else door.app) for door in doors if door.app is not None]
        self._checked: dict[int, _CheckedLane] = {}
        settings = server.settings.server
        self._origins = {*settings.allowed_origins}
        self._hosts = {"127.0.0.1", "localhost", "[::1]", settings.host, *settings.allowed_hosts}
        self._open = not is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            from_page = any(name == b"origin" for name, _ in scope["headers"])
            for door, direct in self._direct:
                if door.takes(scope):
                    if not door.checks_hosts and (refusal := self._refusal(scope)):
                        await error_response(refusal)(scope, receive, send)
                    elif from_page:
                        break
                    else:
                        await _guarded(direct, scope, receive, send)
                    return
            else:
                if refusal := self._refusal(scope):
                    await error_response(refusal)(scope, receive, send)
                    return
        await self._inner(scope, receive, send)

    def lane(self, path: str) -> Lane | None:
        """What may answer a POST to this path before any app is asked."""
        # Where requests are judged before they reach a door, none is answered without that.
        if self._judged is not None:
            return None
        for door in self._doors:
            if (lane := door.lane(path)) is not None:
                if door.checks_hosts:
                    return lane
                if id(lane) not in self._checked:
                    self._checked[id(lane)] = _CheckedLane(lane, self._refusal)
                return self._checked[id(lane)]
        return None

    async def listen(self, url: str) -> list[Listening]:
        """Open the ports that doors have beside HTTP."""
        opened = [await door.listen(url, self._judge) for door in self._doors if door.listen is not None]
        return [port for port in opened if port is not None]

    async def _judge(self, scope: Scope) -> None:
        """Judge the access token of a call that comes by another way than HTTP; the verdict is left in the scope."""
        if self._judged is None:
            return

        async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
            """The verdict is in the scope."""

        async def gone() -> Message:
            return {"type": "http.disconnect"}

        async def unheard(message: Message) -> None:
            """The door that refuses says why by itself."""

        await self._judged(nothing)(scope, gone, unheard)

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


class _CheckedLane:
    """A lane of a door that leaves hosts and origins to the app around."""

    def __init__(self, lane: Lane, refusal: Callable[[Scope], Agent3Error | None]):
        self._lane = lane
        self._refusal = refusal

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        return await self._lane.reply(scope, body, hung_up) if self._refusal(scope) is None else None

    def guest(self, scope: Scope) -> Guest | None:
        return self._lane.guest(scope) if self._refusal(scope) is None else None


async def _guarded(direct: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """What Starlette does around its routes: an error of ours is logged and told without its words."""
    begun = False

    async def note(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        await direct(scope, receive, note)
    except Exception:
        log.exception("%s %s failed", scope["method"], scope["path"][:200])
        if not begun:
            await error_response(Agent3Error(_INTERNAL))(scope, receive, send)


View = Callable[[Request], Awaitable[Response]]


def _home(doors: Sequence[Door]) -> View:
    about = [line for door in doors for line in door.about]
    rest = [("REST", "/openapi.json"), ("Health", "/healthz, /readyz"), ("Metrics", "/metrics")]

    async def home(request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        lines = [f"{name:<14} {paths.replace('/', f'{base}/', 1)}" for name, paths in (*about, *rest)]
        text = f"agent3 {__version__}: any agent, any tool, any website, one call.\n\n"
        return PlainTextResponse(text + "\n".join(lines) + "\n")

    return home


async def _healthz(request: Request) -> Response:
    return json_response({"status": "ok", "version": __version__})


def _readyz(server: Server) -> View:
    async def readyz(request: Request) -> Response:
        server.readiness.asked()
        try:
            await server.database.one("SELECT 1 AS fine")
        except Agent3Error as error:
            return json_response({"status": "not ready", "database": error.message}, 503)
        if not server.ready:
            return json_response({"status": "not ready", "gateway": "starting or stopping"}, 503)
        return json_response({"status": "ready"})

    return readyz


def _metrics(server: Server) -> View:
    async def metrics(request: Request) -> Response:
        with suppress(Agent3Error):  # what cannot be counted now is shown as it was
            await measure(server.database, server.env, server.metrics)
        body, kind = server.metrics.render()
        return Response(body, media_type=kind)

    return metrics


async def _not_found(request: Request, _: Exception) -> Response:
    return error_response(NotFound(f"There is nothing at {request.url.path[:200]}. See /openapi.json."))


async def _not_allowed(request: Request, error: Exception) -> Response:
    answer = error_response(MethodNotAllowed(f"{request.method} is not for {request.url.path[:200]}."))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


async def _internal(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(Agent3Error(_INTERNAL))
