"""``A2AEndpoint``: an A2A agent over HTTP, in every generation of the protocol at one address.

JSON-RPC at the address itself, REST and the card below it. The method or path and ``A2A-Version`` tell the generation
of a request, whose codec reads it and writes the answer, errors too. The ``principal`` that the endpoint was given
tells who calls; the engine does the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from agent3 import jsonrpc
from agent3.definitions import AgentFeatures
from agent3.errors import Agent3Error
from agent3.model import Principal
from agent3.protocols.a2a.cards.extensions import Extensions
from agent3.protocols.a2a.door.card_pages import CARD_PATHS, KEYS_PATH, CardPages, Keys
from agent3.protocols.a2a.door.dispatch import Dispatcher, Engines, Who
from agent3.protocols.a2a.door.http import BEAT, Exchange
from agent3.protocols.a2a.door.rest import RestDoor
from agent3.protocols.a2a.door.rpc import RpcDoor
from agent3.protocols.a2a.door.tasks import Engine, Host
from agent3.protocols.a2a.wire.errors import Profile
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["FEATURES", "A2AEndpoint", "Who"]

FEATURES = AgentFeatures(streaming=True, pushNotifications=True, extendedAgentCard=True)
"""What every endpoint of ours can do."""
_MOVED = {"/agent/authenticatedExtendedCard": "/v1/card"}
"""Where 0.2.1 to 0.2.6 looked for the extended card, and where it is now."""


class A2AEndpoint:
    """The ASGI app of an agent, or by tenants of several. It has no lifespan of its own: its engine has.

    Mounted below a path, it finds its own part of the path by ``root_path``; ``serve`` is for routing by hand. A client
    that hangs up only stops listening: its task goes on.

    ``engine`` may be a function that gives the engine of a tenant. ``public`` lets strangers read the card.
    ``card_format`` is the generation of the card for clients that name none, instead of one document for all.
    ``lenient`` accepts methods of 1.0 also without ``A2A-Version: 1.0``, which the specification reads as 0.3. ``keys``
    sign its cards, and are shown at ``keys_at``; ``keep_cards`` is told in ``CardPages``. ``profile`` is the table of
    statuses: 1.0.1 changed some of 1.0.0.
    ``dispatcher`` is for the gRPC door, which stands beside this one.
    """

    def __init__(
        self,
        engine: Engine | Engines,
        host: Host,
        *,
        principal: Who,
        features: AgentFeatures = FEATURES,
        extensions: Extensions | None = None,
        public: bool = True,
        address: str = "",
        card_format: Generation | None = None,
        keys: Keys | None = None,
        keys_at: str | None = None,
        keep_cards: bool = False,
        lenient: bool = False,
        profile: Profile = "1.0.1",
        limits: jsonrpc.Limits = jsonrpc.LIMITS,
        body_seconds: float = 30.0,
        beat: float = BEAT,
    ):
        known = extensions or Extensions()
        self.profile = profile
        self._cards = CardPages(
            host,
            principal,
            features,
            known,
            public=public,
            address=address,
            written=card_format,
            keys=keys,
            keys_at=keys_at,
            keep=keep_cards,
        )
        self.dispatcher = Dispatcher(
            (lambda _: engine) if isinstance(engine, Engine) else engine,
            principal,
            self._cards,
            known,
            features=features,
            limits=limits,
            body_seconds=body_seconds,
            beat=beat,
        )
        self._rpc = RpcDoor(self.dispatcher, lenient=lenient)
        self._rest = RestDoor(self.dispatcher, profile=profile, lenient=lenient)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # A mounted app still sees the whole path, but as a route of its own it does not.
            root: str = scope.get("root_path", "")
            base = root if root and scope["path"].startswith(root) else ""
            # Starlette routes only paths with the slash to a mount; without it a POST would get a redirect.
            await self.serve(scope, receive, send, base, address=f"{base}/" if base else "")

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        base: str = "",
        tenant: str | None = None,
        address: str | None = None,
    ) -> None:
        """Answer a request to the agent at the path ``base``, which cards call ``address`` where that differs."""
        exchange = Exchange(scope, receive, send, base if address is None else address, tenant)
        path = scope["path"][len(base) :]
        if path in ("", "/") and scope["method"] == "POST":
            await self._rpc.serve(exchange)
        elif path in CARD_PATHS and scope["method"] in ("GET", "HEAD"):
            await self.card(exchange)
        elif path == KEYS_PATH and scope["method"] in ("GET", "HEAD"):
            await self.show_keys(exchange)
        elif path in _MOVED:
            await self._rest.serve(exchange, _MOVED[path])
        else:
            # The raw path, because an id in it may hold a slash that is written %2F.
            raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            below = raw.partition(b"?")[0].decode("latin-1").split("/", base.count("/") + 1)[-1]
            await self._rest.serve(exchange, f"/{below}")

    def reply(self, exchange: Exchange, principal: Principal, below: str, body: bytes) -> Awaitable[bytes | None]:
        """The answer to a POST below the address without ASGI, of a known caller; None where that cannot be.

        ``below`` is empty for one at the address itself. Otherwise ``serve`` answers, with the scope as this left it.
        """
        if not below:
            return self._rpc.reply(exchange, principal, body)
        return self._rest.reply(exchange, principal, _MOVED.get(below, below), body)

    def grpc_at(self, port: int) -> None:
        """Say in the cards that gRPC is at this port of the same host."""
        self._cards.grpc_port = port

    async def card(self, exchange: Exchange) -> None:
        """Answer with the card, here or at a well-known path of the host."""
        await self._serve_page(exchange, self._cards.serve)

    async def show_keys(self, exchange: Exchange) -> None:
        """Answer with the public keys of what is signed here."""
        await self._serve_page(exchange, self._cards.serve_keys)

    async def _serve_page(self, exchange: Exchange, serve: Callable[[Exchange], Awaitable[None]]) -> None:
        try:
            await serve(exchange)
        except Agent3Error as error:
            exchange.generation = "1.0"
            await self._rest.refuse(exchange, error)
