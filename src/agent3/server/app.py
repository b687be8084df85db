"""The ASGI app: the doors of all protocols, REST and the gateway's own pages under one roof.

It checks hosts, origins and signatures before a door is asked, and knows nothing of what a door says.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3._version import __version__
from agent3.connections import Pool, count_descriptors
from agent3.errors import Agent3Error, LoopDetected, MethodNotAllowed, NotFound, SecurityError
from agent3.gateway.dead_letters import measure
from agent3.gateway.http import error_response, json_response
from agent3.gateway.lanes import Guest, HungUp, Lane, Reply
from agent3.gateway.protocol import Door, Listening
from agent3.identity import access_tokens
from agent3.identity.doorkeeper import Doorkeeper, KnownCallers, SignedRequests, is_loopback
from agent3.observe.logs import get as logger
from agent3.security import via
from agent3.server import console
from agent3.server.build import Server
from agent3.server.caller_limits import CallerLimits
from agent3.server.compression import PackAnswers, UnpackRequests
from agent3.server.connection import KnownHeads
from agent3.server.readiness import Probe
from agent3.server.rest import Rest

__all__ = ["Doors", "app"]

log = logger("server")
access_log = logger("access")

_VIA = via.HEADER.lower().encode()
SPARE = ("/healthz", "/readyz", "/metrics")
"""Paths that are answered however many connections there are."""
_SOON = {"Retry-After": "1"}
_NOTE_EVERY = 60.0
"""Seconds between two records of how many unknown callers were refused."""
_END_STREAMS = 1.0
"""Seconds after a change of clients until what is still answered to a key that ended is cut off."""
_INTERNAL = "Internal error. See the log of the gateway."


def app(server: Server) -> Doors:
    """The doors of a gateway: those of every protocol, REST, health, metrics. Its lifespan must be run."""
    services = server.services
    services.doorkeeper = doorkeeper = Doorkeeper(server.settings, server.metrics, stored=services.clients)
    doors = [door for protocol in server.protocols.values() for door in protocol.doors()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for door in doors:
                await stack.enter_async_context(door.running())
            noting = asyncio.create_task(note_refusals(), name="refusals")
            try:
                yield
            finally:
                noting.cancel()
                await doorkeeper.record_refusals(server.database, server.env)

    async def note_refusals() -> None:
        while True:
            await asyncio.sleep(_NOTE_EVERY)
            await doorkeeper.record_refusals(server.database, server.env)

    # Signatures and tokens take time to verify, so that is done before a door is asked. Without clients that sign,
    # nothing stands in between.
    judge = partial(
        SignedRequests,
        doorkeeper=doorkeeper,
        database=server.database,
        settings=server.settings.server,
        env=server.env,
    )
    how = server.settings.server
    unpacking = partial(UnpackRequests, limit=how.max_body, seconds=how.body_seconds)

    under_way = Counter[str]()

    def reading(app: ASGIApp) -> ASGIApp:
        """What happens to a request before a door reads it: it is counted, large bodies of strangers are refused, and
        packed ones unpacked.
        """
        limited = CallerLimits(
            unpacking(app), doorkeeper, server.settings.limits, services.reads, server.metrics, under_way
        )
        return KnownCallers(limited, doorkeeper, tuple(path for door in doors for path in door.open_paths))

    inner: ASGIApp = Starlette(
        routes=[
            *Pages(server, doors).routes(),
            *(route for door in doors for route in door.routes),
            *access_tokens.metadata_routes(server.settings, server.env),
            *Rest(services, server.registration).routes(),
            *console.routes(),
        ],
        middleware=[*([Middleware(judge)] if doorkeeper.judges else []), Middleware(reading)],
        lifespan=lifespan,
        exception_handlers={404: handle_not_found, 405: handle_not_allowed, 500: handle_internal},
    )
    if origins := server.settings.server.allowed_origins:
        # Browsers ask first whether a page of another origin may call; those in the settings may.
        inner = CORSMiddleware(
            inner,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=[
                *("Location", "Retry-After", "WWW-Authenticate", "Mcp-Session-Id", "A2A-Extensions", "ETag"),
                "X-Next-Cursor",
            ],
        )
    return Doors(inner, doors, server, judge if doorkeeper.judges else None, reading)


class Doors:
    """The outermost app: pages of other origins may not call a gateway on loopback.

    A door that takes a request directly gets it before any middleware, unless a web page sends it, which needs CORS.
    """

    def __init__(
        self,
        inner: ASGIApp,
        doors: Sequence[Door],
        server: Server,
        judge: Callable[[ASGIApp], ASGIApp] | None,
        reading: Callable[[ASGIApp], ASGIApp],
    ):
        self._inner = inner
        self._doors = doors
        self._judge = judge
        around = (lambda app: judge(reading(app))) if judge else reading
        self._direct = [(door, around(door.app)) for door in doors if door.app is not None]
        self._checked: dict[int, _CheckedLane] = {}
        settings = server.settings.server
        self._origins = {*settings.allowed_origins}
        self._hosts = {"127.0.0.1", "localhost", "[::1]", settings.host, *settings.allowed_hosts}
        self._open = not is_loopback(settings.host)
        least = settings.compress_bytes
        self._packed: ASGIApp = PackAnswers(self._serve, least=least) if least else self._serve
        self._logs_access = server.settings.logs.access
        self._gateway = server.services.policy.gateway
        self.heads = KnownHeads[Guest]()
        self._doorkeeper = server.services.doorkeeper
        server.services.clients.on_change = self._on_clients_changed
        self.pool = Pool(
            count_descriptors(settings.max_connections),
            settings.max_connections_per_address,
            spare=SPARE,
            count=lambda reason: server.metrics.connections_closed.inc((reason,)),
            identify=partial(_identify, server.services.doorkeeper),
        )
        self.pool.others = server.peers

    def _on_clients_changed(self) -> None:
        # What is known of a head holds who sent it. A stream goes on without its key being looked at again; calls under
        # way are ended by ``Stops``, which tells their callers why, and gets the time to do so.
        self.heads.clear()
        asyncio.get_running_loop().call_later(_END_STREAMS, self.pool.end, self._doorkeeper.is_over)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._logs_access or scope["type"] != "http":
            await self._packed(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._packed(scope, receive, note)
        finally:
            peer = (scope.get("client") or ("-",))[0]
            # Without the query, which may hold a secret; 0 is a client that left before it was answered.
            line = (scope["method"], scope["path"][:200], status, time.monotonic() - began, peer)
            access_log.info("%s %s %d in %.3f s for %s", *line)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        if came_by := _came_by(scope):
            try:
                via.enter(self._gateway, came_by)
            except LoopDetected as error:
                await error_response(error)(scope, receive, send)
                return
        direct, checks_hosts = None, False
        for door, direct_app in self._direct:
            if door.takes(scope):
                direct, checks_hosts = direct_app, door.checks_hosts
                break
        names = [name for name, _ in scope["headers"] if name in _CHECKED_HEADERS]
        by_page, twice = b"origin" in names, len({*names}) < len(names)
        if (not checks_hosts or by_page or twice) and (refusal := self.find_refusal(scope["headers"])):
            await error_response(refusal)(scope, receive, send)
            return
        if direct is None or by_page:
            await self._inner(scope, receive, send)
            return
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await direct(scope, receive, note)
        except Exception:  # as Starlette does around its routes
            log.exception("%s %s failed", scope["method"], scope["path"][:200])
            if not begun:
                await error_response(Agent3Error(_INTERNAL))(scope, receive, send)

    def lane(self, path: str) -> Lane | None:
        """The fast lane of this path, which may answer a POST before any app is asked."""
        # Signed requests are verified by the app: none may be answered before that.
        if self._judge is not None or self._logs_access:
            return None
        for door in self._doors:
            if (lane := door.lane(path)) is not None:
                if door.checks_hosts:
                    return lane
                if id(lane) not in self._checked:
                    self._checked[id(lane)] = _CheckedLane(lane, self.find_refusal)
                return self._checked[id(lane)]
        return None

    async def listen(self, url: str) -> list[Listening]:
        """Open the ports that doors have beside HTTP."""
        opened = [await door.listen(url, self._verify) for door in self._doors if door.listen is not None]
        return [port for port in opened if port is not None]

    async def _verify(self, scope: Scope) -> None:
        """Verify the access token of a call that does not come over HTTP; the verdict is left in the scope."""
        if self._judge is None:
            return

        async def end(scope: Scope, receive: Receive, send: Send) -> None:
            """Nothing more to do: the verdict is in the scope."""

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            """Dropped: the door that refuses gives the reason in its own protocol."""

        await self._judge(end)(scope, receive, send)

    def find_refusal(self, given: Sequence[tuple[bytes, bytes]]) -> Agent3Error | None:
        """What is wrong with the Host or the Origin in these headers. Safe to use from any thread."""
        headers: dict[bytes, str] = {}
        for field, value in given:
            if field in _CHECKED_HEADERS:
                if field in headers:  # a proxy may have judged the other one
                    return SecurityError(f"This request has the header {field.decode()} twice. Send it once.")
                headers[field] = value.decode("latin-1")
        host = headers.get(b"host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if not self._open and name not in self._hosts and host not in self._hosts:
            return SecurityError(
                f"Host {host[:100]!r} is not an allowed name of this gateway. Add it to server.allowed_hosts."
            )
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._origins and origin.rsplit("://", 1)[-1] != host:
            return SecurityError(
                f"Pages from {origin[:100]!r} may not call this gateway. Add it to server.allowed_origins."
            )
        return None


_CHECKED_HEADERS = frozenset({b"host", b"origin", b"authorization", b"x-api-key"})


def _identify(doorkeeper: Doorkeeper, scope: Scope) -> str | None:
    try:
        return doorkeeper(scope).id
    except Agent3Error:
        return None


class _CheckedLane:
    """A lane of a door that leaves the check of hosts and origins to the app."""

    def __init__(self, lane: Lane, find_refusal: Callable[[Sequence[tuple[bytes, bytes]]], Agent3Error | None]):
        self._lane = lane
        self._find_refusal = find_refusal

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        return await self._lane.reply(scope, body, hung_up) if self._takes(scope) else None

    def guest(self, scope: Scope) -> Guest | None:
        return self._lane.guest(scope) if self._takes(scope) else None

    def _takes(self, scope: Scope) -> bool:
        return self._find_refusal(scope["headers"]) is None and not _came_by(scope)


def _came_by(scope: Scope) -> str:
    """The gateways that a request came through, as it says."""
    return ", ".join(value.decode("latin-1") for name, value in scope["headers"] if name == _VIA)


class Pages:
    """The pages of the gateway itself: home, health, readiness, metrics."""

    def __init__(self, server: Server, doors: Sequence[Door]):
        self._server = server
        self._database = Probe(lambda: server.database.one("SELECT 1 AS fine"), server.env)
        self._measured = Probe(lambda: measure(server.database, server.env, server.metrics), server.env)
        self._about = [
            *(line for door in doors for line in door.about),
            ("REST", "/openapi.json"),
            ("Console", "/console/"),
            ("Health", "/healthz, /readyz"),
            ("Metrics", "/metrics"),
        ]

    def routes(self) -> list[Route]:
        """The routes of all pages."""
        table = {"/": self.home, "/healthz": self.healthz, "/readyz": self.readyz, "/metrics": self.metrics}
        return [Route(path, view, methods=["GET"]) for path, view in table.items()]

    async def home(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        lines = [f"{name:<14} {paths.replace('/', f'{base}/', 1)}" for name, paths in self._about]
        text = f"agent3 {__version__}: any agent, any tool, any website, one call.\n\n"
        return PlainTextResponse(text + "\n".join(lines) + "\n")

    async def healthz(self, request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(self, request: Request) -> Response:
        server = self._server
        server.readiness.note_probe()
        if server.peers is not None:
            server.peers.tell_probe()
        try:
            await self._database.check()
        except Agent3Error as error:
            return json_response({"status": "not ready", "database": error.message}, 503, _SOON)
        if not server.ready:
            return json_response({"status": "not ready", "gateway": "starting or stopping"}, 503, _SOON)
        return json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        server = self._server
        with suppress(Agent3Error):  # what cannot be counted now keeps its last value
            await self._measured.check()
        if server.peers is not None:
            body, kind = await asyncio.to_thread(server.peers.render)
        else:
            body, kind = server.metrics.render()
        return Response(body, media_type=kind)


async def handle_not_found(request: Request, _: Exception) -> Response:
    return error_response(NotFound(f"{request.url.path[:200]} does not exist. See /openapi.json."))


async def handle_not_allowed(request: Request, error: Exception) -> Response:
    message = (
        f"{request.url.path[:200]} does not support {request.method}. The header Allow lists the supported methods."
    )
    answer = error_response(MethodNotAllowed(message))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


async def handle_internal(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(Agent3Error(_INTERNAL))
