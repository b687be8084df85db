"""``A2AEndpoint``: an A2A agent over HTTP, in every generation of the protocol at one address.

JSON-RPC at the address itself, REST and the card below it. A request is told apart by its method or path and the
``A2A-Version`` that it names, is read by the codec of its generation, and answered in that generation's own words,
errors too. Who calls is told by the ``principal`` that the endpoint was given; what is asked goes to the engine.
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
from agent3.protocols.a2a.door.card_pages import CARD_PATHS, KEYS_PATH, CardDesk, Keys
from agent3.protocols.a2a.door.dispatch import Desk, Engines, Who
from agent3.protocols.a2a.door.http import BEAT, Talk
from agent3.protocols.a2a.door.rest import RestDoor
from agent3.protocols.a2a.door.rpc import RpcDoor
from agent3.protocols.a2a.door.tasks import Engine, Host
from agent3.protocols.a2a.wire.errors import Profile
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["FEATURES", "A2AEndpoint", "Who", "mounted_at"]

FEATURES = AgentFeatures(streaming=True, pushNotifications=True, extendedAgentCard=True)
"""What every endpoint of ours can do."""
_EARLIER = {"/agent/authenticatedExtendedCard": "/v1/card"}
"""Where 0.2.1 to 0.2.6 looked for the extended card, and where it is now."""


class A2AEndpoint:
    """The ASGI app of an agent, or by tenants of several. It has no lifespan: it lives as long as its engine.

    Mounted below a path, it finds its own part of the path by ``root_path``; ``serve`` is for whoever routes by hand. A
    client that hangs up has stopped listening, and nothing else: its task goes on.

    ``engine`` may be a function that gives the engine of a tenant. ``public`` says whether strangers may read the card.
    ``card_format`` shows the card of one generation where a client asks for none in particular, instead of one for all.
    ``lenient`` takes the words of 1.0 also from clients that do not say ``A2A-Version: 1.0``, which the specification
    reads as 0.3. ``keys`` sign its cards, and are shown at ``keys_at``. ``profile`` is the table of statuses: 1.0.1
    changed some of 1.0.0. ``desk`` is for the door of gRPC, which stands beside this one.
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
        lenient: bool = False,
        profile: Profile = "1.0.1",
        limits: jsonrpc.Limits = jsonrpc.LIMITS,
        body_seconds: float = 30.0,
        beat: float = BEAT,
    ):
        spoken = extensions or Extensions()
        self._cards = CardDesk(
            host,
            principal,
            features,
            spoken,
            public=public,
            address=address,
            written=card_format,
            keys=keys,
            keys_at=keys_at,
        )
        self.profile = profile
        self.desk = desk = Desk(
            (lambda _: engine) if isinstance(engine, Engine) else engine,
            principal,
            self._cards,
            spoken,
            features=features,
            limits=limits,
            body_seconds=body_seconds,
            beat=beat,
        )
        self._rpc = RpcDoor(desk, lenient=lenient)
        self._rest = RestDoor(desk, profile=profile, lenient=lenient)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            base = mounted_at(scope)
            # An app around routes only what has the slash; without it a POST would be answered by a redirect.
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
        """One request to the agent at the path ``base``, which cards call ``address`` where that is another."""
        talk = Talk(scope, receive, send, base if address is None else address, tenant)
        path = scope["path"][len(base) :]
        if path in ("", "/") and scope["method"] == "POST":
            await self._rpc.serve(talk)
        elif path in CARD_PATHS and scope["method"] in ("GET", "HEAD"):
            await self.card(talk)
        elif path == KEYS_PATH and scope["method"] in ("GET", "HEAD"):
            await self.show_keys(talk)
        else:
            below = _EARLIER.get(path) or _below(scope, base)
            await self._rest.serve(talk, below)

    def reply(self, talk: Talk, principal: Principal, body: bytes) -> Awaitable[bytes | None]:
        """The answer to a POST at the address itself without ASGI, of a caller that is known; None where that must be.

        Who does not want it by that way gets the same by ``serve``, with the scope as this left it.
        """
        return self._rpc.reply(talk, principal, body)

    def grpc_at(self, port: int) -> None:
        """Say in the cards that gRPC is spoken at this port of the same host."""
        self._cards.grpc_port = port

    async def card(self, talk: Talk) -> None:
        """The card, for whoever asks at this address or at a well-known path of the house."""
        await self._shown(talk, self._cards.serve)

    async def show_keys(self, talk: Talk) -> None:
        """The public keys of what is signed here."""
        await self._shown(talk, self._cards.show_keys)

    async def _shown(self, talk: Talk, show: Callable[[Talk], Awaitable[None]]) -> None:
        try:
            await show(talk)
        except Agent3Error as wrong:
            talk.words = "1.0"
            await self._rest.refuse(talk, wrong)


def mounted_at(scope: Scope) -> str:
    """Where an app is mounted. The path still begins with that; as a route of its own, it does not."""
    root: str = scope.get("root_path", "")
    return root if root and scope["path"].startswith(root) else ""


def _below(scope: Scope, base: str) -> str:
    """The path below the agent's address as it came: an id in it may hold a slash that is written %2F."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return "/" + raw.partition(b"?")[0].decode("latin-1").split("/", base.count("/") + 1)[-1]
