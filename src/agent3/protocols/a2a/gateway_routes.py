"""A2A at the gateway: ``/a2a`` is the gateway itself, ``/agents/{id}/a2a`` each registered agent natively.

Whatever an agent speaks itself, here it speaks A2A in every generation: an MCP tool is a skill, and a website's action
too. A tenant of ``/a2a`` is an agent.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent3 import jsonrpc
from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, AgentNotFound, RateLimited, Unauthenticated
from agent3.gateway.http import error_response
from agent3.gateway.lanes import TRACE, HungUp, Reply
from agent3.gateway.protocol import Services
from agent3.identity.certificates import ListenerCertificate
from agent3.model import Principal
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.cards.signatures import SigningKeys
from agent3.protocols.a2a.door.card_pages import CARD_PATHS, KEYS_PATH, Keys
from agent3.protocols.a2a.door.endpoint import FEATURES, A2AEndpoint
from agent3.protocols.a2a.door.http import BINDING, Exchange, RequestHeaders, read_headers
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.a2a.door.tasks import Engine
from agent3.protocols.a2a.gateway_host import DOOR, GatewayHost
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.a2a.peer.push_receiver import PushReceiver
from agent3.settings import Settings

if TYPE_CHECKING:  # it needs an optional part
    from agent3.protocols.a2a.grpc.server import GrpcDoor

__all__ = ["CALLBACKS", "A2ADoors", "Place", "find_place"]

BASE: Final = "/a2a"
CALLBACKS: Final = "/callbacks/a2a"
"""Where agents that the gateway calls tell how their tasks go."""
_TOPIC: Final = "a2a.push"
_AGENTS: Final = "/agents/"
_EARLIER: Final = "/agent/authenticatedExtendedCard"
_METHODS = ["GET", "HEAD", "POST", "DELETE"]
_ENGINES = 1_000
_PAID: Final = "agent3.a2a.paid"
"""Where the scope says that a request was counted before it had to come by ASGI, as streams have to."""
_LONGEST_NAME = 200
"""Characters of the name of an agent: longer ones are nobody's, and are not remembered."""


class Place(NamedTuple):
    """Where a request came to: the path of the address, and the agent whose it is; None for the gateway itself."""

    base: str
    tenant: str | None = None


def find_place(path: str) -> Place | None:
    """The A2A address that a path belongs to; None for any other path."""
    if path.startswith(_AGENTS):
        name, found, _ = path[len(_AGENTS) :].partition("/a2a")
        base = f"{_AGENTS}{name}/a2a"
        whole = found and name and "/" not in name and (path == base or path.startswith(f"{base}/"))
        return Place(base, name) if whole else None
    if path in (BASE, _EARLIER, KEYS_PATH) or path.startswith(f"{BASE}/") or path in CARD_PATHS:
        return Place(BASE)
    return None


class A2ADoors:
    """All A2A doors of a gateway, as one ASGI app and one fast lane."""

    def __init__(
        self,
        services: Services,
        connector: A2AConnector,
        *,
        keys: SigningKeys | None = None,
        pushes: Pushes | None = None,
    ):
        settings = services.settings
        self._services = services
        self._gateway = services.gateway
        self._pushes = pushes
        self._signers = any(client.require_signature for client in settings.clients)
        self._host = GatewayHost(services.gateway, settings)
        self._engines: OrderedDict[str | None, Engine] = OrderedDict()
        self._receiver = _listen_for_pushes(services, connector, keys)
        self._endpoint = A2AEndpoint(
            self._engine,
            self._host,
            principal=self._who,
            features=FEATURES.model_copy(update={"push_notifications": pushes is not None}),
            address=settings.oauth.resource.rstrip("/"),
            keys=NamedKeys(keys, settings) if keys is not None else None,
            keys_at=KEYS_PATH,
            keep_cards=True,
            limits=jsonrpc.Limits(body=settings.server.max_body),
            body_seconds=settings.server.body_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        place = find_place(path)
        assert place is not None, "only what find_place knows is sent here"
        if path in CARD_PATHS:
            await self._endpoint.card(Exchange(scope, receive, send, *place))
        elif path == KEYS_PATH:
            await self._endpoint.show_keys(Exchange(scope, receive, send, *place))
        else:
            scope = {**scope, "path": BASE + _EARLIER} if path == _EARLIER else scope
            await self._endpoint.serve(scope, receive, send, *place)

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for one of these doors."""
        return find_place(scope["path"]) is not None

    def lane(self, path: str) -> A2ADoors | None:
        """The fast lane of a path."""
        return self if find_place(path) is not None else None

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a whole POST, without ASGI; None for what is not regular, which then has to come by ASGI."""
        guest = self.guest(scope)
        return await guest.reply(scope, body, hung_up) if guest is not None else None

    def guest(self, scope: Scope) -> Guest | None:
        """The client that sends these headers, for further requests too; None where each must come by ASGI."""
        path: str = scope["path"]
        place = find_place(path)
        if place is None:
            return None
        below = path[len(place.base) :]
        if below in ("", "/"):
            below = ""
        elif not path.startswith(place.base) or scope["query_string"] or scope.get("raw_path") != path.encode():
            return None  # of REST, only what needs no decoding
        if any(name == b"origin" or name.startswith(b"x-forwarded-") for name, _ in scope["headers"]):
            return None  # a page, or a proxy that says who calls: the app around judges both
        try:
            return Guest(self, place, below, read_headers(scope), self._services.doorkeeper(scope))
        except Agent3Error:
            return None

    def within_limit(self, principal: Principal) -> bool:
        """Whether a caller does not ask too often."""
        try:
            self._gateway.count_question(principal)
        except RateLimited:
            return False
        return True

    def answer(self, exchange: Exchange, principal: Principal, below: str, body: bytes) -> Awaitable[bytes | None]:
        """What the endpoint says to a regular request at this path below its address."""
        return self._endpoint.reply(exchange, principal, below, body)

    async def speak_grpc(self, port: int, url: str, judge: Callable[[Scope], Awaitable[None]]) -> GrpcDoor:
        """Speak gRPC too, on a port of its own, beside the gateway at ``url``; MissingExtra, SetupError."""

        async def endpoint() -> A2AEndpoint:
            return self._endpoint

        how = self._services.settings.server
        certificate = ListenerCertificate.find(how)
        return await grpc.listen(endpoint, how.host, port, url + BASE, judge, certificate, shared=how.workers > 0)

    def routes(self) -> list[Route]:
        """The same for requests that come by way of the app around, as those of web pages do."""
        below = "/{path:path}"
        paths = (BASE, BASE + below, "/agents/{agent}/a2a", "/agents/{agent}/a2a" + below)
        routes = [Route(path, self, methods=_METHODS) for path in paths]
        routes += [Route(path, self, methods=["GET"]) for path in (*sorted(CARD_PATHS), KEYS_PATH, _EARLIER)]
        if self._receiver is not None:
            routes.append(Route(f"{CALLBACKS}/{{key}}", self._receive_push, methods=["GET", "POST"]))
        return routes

    async def _receive_push(self, request: Request) -> Response:
        """An agent tells that there is something to read, or asks first whether this address is ours."""
        assert self._receiver is not None
        key, headers, how = request.path_params["key"], request.headers, self._services.settings.server
        try:
            if request.method != "POST":
                asked = request.query_params.get("validationToken", "")
                plain = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
                return PlainTextResponse(self._receiver.challenge(key, asked), headers=plain)
            self._receiver.admit(key, headers)
            try:
                body = await jsonrpc.read_body(request.receive, how.max_body, how.body_seconds)
            except Agent3Error as error:
                raise self._receiver.reject(error) from None
            return JSONResponse({"status": self._receiver.take(key, headers, body)})
        except Agent3Error as error:
            return error_response(error)
        except jsonrpc.ClientLeft:
            return Response(status_code=499)

    def _who(self, scope: Scope) -> Principal:
        """Who calls, unless it does so too often: what is no call reads the database all the same."""
        try:
            principal = self._services.doorkeeper(scope)
        except Unauthenticated as error:
            if scope.get(BINDING) == "grpc" and self._signers:
                error.message += " gRPC carries no signatures: a client that must sign uses JSON-RPC or REST."
            raise
        if not scope.get(_PAID):
            self._gateway.count_question(principal)
        return principal

    def _engine(self, tenant: str | None) -> Engine:
        """The engine of an agent, which knows the tasks of that agent alone; the gateway's own knows all."""
        found = self._engines.get(tenant)
        if found is not None:
            return found
        if tenant is not None and len(tenant) > _LONGEST_NAME:
            raise AgentNotFound(f"Agent {tenant[:100]!r} does not exist. See the card for the agents.")
        fetch = self._gateway.core.artifacts.get
        made = Engine(self._gateway, self._host, push=self._pushes, door=DOOR, agent=tenant, fetch=fetch)
        self._engines[tenant] = made
        if len(self._engines) > _ENGINES:
            self._engines.popitem(last=False)
        return made


def _listen_for_pushes(services: Services, connector: A2AConnector, keys: SigningKeys | None) -> PushReceiver | None:
    """Have the agents that we call push to us, where they can find us: by the address that clients know us by."""
    address = services.settings.oauth.resource.rstrip("/")
    if not address:
        return None
    # Where nothing can be encrypted, callbacks are known to this process alone, and only for as long as it lives.
    secret = keys.secret(_TOPIC) if keys is not None else os.urandom(32)
    news = services.gateway.core.jobs.news

    def pass_on(key: str) -> bool:
        news.tell(_TOPIC, key)
        return news.live

    def count(result: str) -> None:
        services.metrics.a2a_callbacks.inc((result,))

    receiver = PushReceiver(f"{address}{CALLBACKS}", secret, pass_on=pass_on, counted=count)
    news.on(_TOPIC, receiver.wake)
    connector.push_receiver = receiver
    return receiver


class NamedKeys:
    """Signs cards for the names that the settings give this gateway.

    A Host header is only a caller's word: with any name in it, one could have a card signed that leads elsewhere.
    """

    def __init__(self, keys: Keys, settings: Settings):
        self._keys = keys
        given = (settings.server.host, *settings.server.allowed_hosts, urlsplit(settings.oauth.resource).netloc)
        self._names = {_bare(name) for name in ("localhost", "127.0.0.1", "::1", *given) if name}

    def sign(self, card: AgentCard, jku: str) -> AgentCard:
        """The card, signed if it is for a name of ours."""
        return self._keys.sign(card, jku) if _bare(urlsplit(jku).netloc) in self._names else card

    def jwks(self) -> dict[str, Any]:
        """The public keys."""
        return self._keys.jwks()


def _bare(name: str) -> str:
    """A host without its port."""
    host = name.lower().removesuffix(":*")
    return host.partition("]")[0].lstrip("[") if host.startswith("[") or host.count(":") > 1 else host.partition(":")[0]


class Guest:
    """A client that was let in, and comes again with the same headers."""

    __slots__ = ("_below", "_doors", "_headers", "_place", "_principal")

    def __init__(self, doors: A2ADoors, place: Place, below: str, headers: RequestHeaders, principal: Principal):
        self._doors = doors
        self._place = place
        self._below = below
        self._headers = headers
        self._principal = principal

    @property
    def who(self) -> str:
        """The id of its principal."""
        return self._principal.id

    async def reply(self, scope: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a request with this body. A client that hangs up has only stopped listening."""
        if not self._doors.within_limit(self._principal):
            return None
        scope[_PAID] = True
        headers = self._headers
        if (trace := scope.get(TRACE)) is not None:
            headers = headers._replace(traceparent=trace.decode("latin-1"))
        exchange = Exchange(scope, _unreachable, _unreachable, *self._place, headers)
        answer = await self._doors.answer(exchange, self._principal, self._below, body)
        return Reply(answer) if answer is not None else None


async def _unreachable(*_: Any) -> Any:
    raise RuntimeError("what is answered without ASGI neither receives nor sends by it")
