"""Agents on the network: ``serve(agent)`` on a port of its own, ``asgi(agent)`` below a path of another app.

An agent is an AgentExecutor, a LocalAgent, a function or a class. It runs in the bridge's loop, where the core is. A
server of ours listens in that loop too and crosses no thread; an app in another loop hands each request over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.types import Receive, Scope, Send

from agent3 import bridge, jsonrpc
from agent3.calls.core import Core
from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, AgentNotFound, LoopDetected, SecurityError
from agent3.gateway import Gateway
from agent3.listener import Authenticate, Listening, at_this_machine, names_of, run_http
from agent3.model import Capability, Principal
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.agents.authoring import build_agent, build_card, copy_functions
from agent3.protocols.a2a.agents.executor import AgentExecutor
from agent3.protocols.a2a.agents.lifecycle import find_refusal
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.door.endpoint import FEATURES, A2AEndpoint
from agent3.protocols.a2a.door.http import JSON, find_header, send_response
from agent3.protocols.a2a.door.shared_keys import SharedKeys, shared_keys_of
from agent3.protocols.a2a.door.targeting import choose_target, read_intent
from agent3.protocols.a2a.door.tasks import Aim, Engine
from agent3.protocols.a2a.wire.types import Message
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.security import via

__all__ = ["AgentApp", "asgi", "listening", "serve"]

if TYPE_CHECKING:  # it needs an optional part
    from agent3.protocols.a2a.grpc.server import GrpcDoor

T = TypeVar("T")

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def asgi(
    agent: object,
    *,
    principal: Authenticate | None = None,
    card: AgentCard | None = None,
    extended: Extended | None = None,
    core: Standalone | None = None,
    sign: bool | CardKey | None = None,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    **options: Any,
) -> AgentApp:
    """The agent as an ASGI app, in every generation of A2A; mount it in Starlette or FastAPI, or serve it as it is.

    Without ``principal``, a function that tells from the ASGI scope who calls, it serves its own machine only.
    ``extended`` is the card for authenticated callers, or a function that returns it for each of them. Cards are signed
    if the core has a database to keep the key in; ``sign`` says otherwise, or with which key. ``options`` are those of
    A2AEndpoint.
    """
    cards = CardSources(card, extended, sign)
    return AgentApp(agent, principal, cards, core, allowed_hosts, allowed_origins, options)


def listening(
    agent: object, host: str = "127.0.0.1", port: int = 0, *, grpc_port: int | None = None, **options: Any
) -> Listening:
    """The agent on a port, for the length of a ``with`` block; its value is the address.

    With ``grpc_port``, where 0 takes a free one, the agent also speaks gRPC there, and its card says so.
    """
    names = names_of(host, options.get("principal"), options.pop("allowed_hosts", ()))
    app = asgi(agent, allowed_hosts=names, **options)
    return Listening(app, host, port) if grpc_port is None else _WithGrpc(app, host, port, grpc_port)


def serve(
    agent: object, host: str = "127.0.0.1", port: int = 8334, *, grpc_port: int | None = None, **options: Any
) -> None:
    """Serve the agent until SIGINT or SIGTERM; prints its address on standard error."""
    name = agent.card.name if isinstance(agent, AgentExecutor) else build_agent(agent).name
    run_http(name, listening(agent, host, port, grpc_port=grpc_port, **options))


Extended = AgentCard | Callable[[Principal], AgentCard]
"""The card for authenticated callers."""


class CardSources(NamedTuple):
    """The public card, if it is not the agent's own; the extended card; and whether, or with which key, to sign."""

    card: AgentCard | None = None
    extended: Extended | None = None
    sign: bool | CardKey | None = None


class AgentHost:
    """One agent of this process, behind an endpoint of its own."""

    def __init__(
        self, gateway: Gateway, agent: LocalAgent, card: Callable[[], AgentCard], extended: Extended | None = None
    ):
        self._gateway = gateway
        self._agent = agent
        self._card = card
        self._extended = extended

    async def aim(self, principal: Principal, message: Message, tenant: str | None) -> Aim:
        """The capability that a message is for; Unavailable while the agent takes nothing new."""
        agent, card = self._agent.agent, self._card()
        if (refused := find_refusal(card.agent_id, card.status)) is not None:
            raise refused
        intent = read_intent(message)
        declared = card.capability(intent.name) if intent.name else None
        if declared is not None and agent.capability(str(intent.name)) is None:
            intent = intent._replace(name=declared.name)  # the message named it by its id on the card
        visible = self._visible(principal)
        hidden = () if visible is agent.capabilities else agent.capabilities
        return await choose_target(self._gateway, agent, visible, intent, hidden)

    async def card(self, principal: Principal | None, tenant: str | None = None, extended: bool = False) -> AgentCard:
        """The same card for everyone, unless there is an extended one.

        Then strangers see the skills that the public card names, and each caller also those of its extended card.
        """
        agent, known = self._agent.agent, self._card()
        offered = self._visible(principal if extended else None)
        if self._extended is not None and extended and principal is not None:
            known = self._extended_card(principal)
        return build_card(agent, offered, known=known)

    def _extended_card(self, principal: Principal) -> AgentCard:
        assert self._extended is not None
        return self._extended if isinstance(self._extended, AgentCard) else self._extended(principal)

    def _visible(self, principal: Principal | None) -> Sequence[Capability]:
        """The capabilities that the public card or the caller's extended card names; a card without skills names all.

        Without an extended card, everyone sees everything.
        """
        everything: Sequence[Capability] = self._agent.agent.capabilities
        if self._extended is None:
            return everything
        cards = [self._card(), *([self._extended_card(principal)] if principal is not None else ())]
        if not all(card.capabilities for card in cards):
            return everything
        return [each for each in everything if any(card.capability(each.name) is not None for card in cards)]


class AgentApp:
    """The ASGI app of an agent. Alone it takes part in the lifespan; mounted, it needs none."""

    path = ""

    def __init__(
        self,
        agent: object,
        principal: Authenticate | None,
        cards: CardSources,
        core: Standalone | None,
        allowed_hosts: Sequence[str],
        allowed_origins: Sequence[str],
        options: dict[str, Any],
    ):
        self._principal = principal or at_this_machine
        self._hosts = frozenset(host.lower() for host in (*_LOOPBACK, *allowed_hosts))
        self._origins = frozenset(allowed_origins)
        self._options = options
        self._home: asyncio.AbstractEventLoop | None = None
        self._opened: tuple[Core, A2AEndpoint] | None = None
        self._grpc_port: int | None = None
        self._cards = cards
        self._card: Callable[[], AgentCard]
        if isinstance(agent, AgentExecutor):
            self._core, self._agent = agent.core, agent.agent
            self._card = lambda: cards.card or agent.card
        else:
            given = build_agent(agent)
            card = cards.card or build_card(given.agent, ())
            self._card = lambda: card
            self._core = core or shared()
            # A copy, because the core changes the id under which its functions are reached.
            self._agent = LocalAgent(
                given.name, agent_id=given.id, description=given.description, version=given.version, tags=given.tags
            )
            self._core.host(self._agent)
            copy_functions(self._agent, given)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif (error := self._find_refusal(scope)) is not None:
            await send_response(send, 403, jsonrpc.error(None, error.rpc_code, error.message), JSON)
        elif (error := _note_way(scope)) is not None:
            await send_response(send, error.http_status, jsonrpc.error(None, error.rpc_code, error.message), JSON)
        elif asyncio.get_running_loop() is self._home:
            await (await self._endpoint())(scope, receive, send)
        else:
            here = asyncio.get_running_loop()

            async def serve_there() -> None:
                self._home = asyncio.get_running_loop()
                await (await self._endpoint())(scope, _call_in(here, receive), _call_in(here, send))

            await asyncio.wrap_future(bridge.get_shared().spawn(serve_there()))

    async def _endpoint(self) -> A2AEndpoint:
        """The endpoint on the core as it is now; a core that was closed and used again needs another one."""
        call_core = await self._core.call_core()
        if self._opened is None or self._opened[0] is not call_core:
            endpoint = await self._build_endpoint(call_core, await shared_keys_of(self._core))
            if self._opened is None or self._opened[0] is not call_core:  # another request may have been faster
                self._opened = call_core, endpoint
        return self._opened[1]

    async def _build_endpoint(self, call_core: Core, shared_keys: SharedKeys) -> A2AEndpoint:
        gateway = await self._core.gateway()
        host = AgentHost(gateway, self._agent, self._card, self._cards.extended)
        engine = Engine(
            gateway,
            host,
            push=shared_keys.pushes,
            agent=self._agent.id,
            fetch=call_core.artifacts.get,
        )
        sign = self._cards.sign
        keys = await shared_keys.keys(
            key=sign if isinstance(sign, CardKey) else None, sign=self._core.durable if sign is None else bool(sign)
        )
        features = FEATURES.model_copy(
            update={
                "push_notifications": keys is not None or bool(call_core.settings.callbacks.secret),
                "extended_agent_card": self._cards.extended is not None,
            }
        )

        def engines(tenant: str | None) -> Engine:
            # The only tenant of this address is the agent itself.
            if tenant is not None and tenant != self._card().agent_id:
                raise AgentNotFound(f"Agent {tenant[:100]!r} does not exist at this address.")
            return engine

        options = {"features": features, "keys": keys, **self._options}
        endpoint = A2AEndpoint(engines, host, principal=self._principal, **options)
        if self._grpc_port is not None:
            endpoint.grpc_at(self._grpc_port)
        return endpoint

    async def speak_grpc(self, host: str, port: int, address: str) -> GrpcDoor:
        """Also speak gRPC, on a port of its own; ``address`` is that of HTTP, for cards. MissingExtra."""
        door = await grpc.listen(self._endpoint, host, port, address)
        self._grpc_port = door.port
        return door

    def _find_refusal(self, scope: Scope) -> Agent3Error | None:
        """Why a request is refused: it is for another host (DNS rebinding), or from a page of another site."""
        host = (find_header(scope["headers"], b"host") or "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if "*" not in self._hosts and not self._hosts & {host, name, f"{name}:*"}:
            return SecurityError(
                f"Host {host[:100]!r} is not an allowed name of this agent. Its author can add it: allowed_hosts=."
            )
        origin = find_header(scope["headers"], b"origin")
        if origin is not None and origin not in self._origins and origin.rpartition("://")[2].lower() != host:
            return SecurityError(
                f"Pages from {origin[:100]!r} may not call this agent. Its author can add it: allowed_origins=."
            )
        return None


class _WithGrpc(Listening):
    """HTTP and gRPC, each on its port."""

    def __init__(self, app: AgentApp, host: str, port: int, grpc_port: int):
        super().__init__(app, host, port)
        self._app = app
        self._grpc_address = (host, grpc_port)
        self._grpc_door: GrpcDoor | None = None

    def __enter__(self) -> str:
        url = super().__enter__()
        try:
            self._grpc_door = bridge.get_shared().spawn(self._app.speak_grpc(*self._grpc_address, url)).result()
        except BaseException:
            super().__exit__()
            raise
        return url

    def __exit__(self, *_: object) -> None:
        try:
            if self._grpc_door is not None:
                bridge.get_shared().spawn(self._grpc_door.aclose()).result()
        finally:
            super().__exit__()


def _note_way(scope: Scope) -> LoopDetected | None:
    """Note the way that a request came, for the clients that are used while it is answered; why it is refused."""
    try:
        via.enter("", find_header(scope["headers"], via.HEADER.lower().encode()) or "")
    except LoopDetected as error:
        return error
    return None


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """A function of another loop, callable in this one."""

    async def call(*args: Any) -> T:
        return await function(*args)

    async def call_there(*args: Any) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(*args), loop))

    return call_there
