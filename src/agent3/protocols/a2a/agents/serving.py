"""Agents on the network: ``serve(agent)`` on a port of its own, ``asgi(agent)`` below a path of any other app.

An agent is an AgentExecutor, a LocalAgent, a function or a class. It runs where the core lives, in the bridge's loop;
what listens there itself crosses no thread, and an app in another loop hands each request over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.types import Message, Receive, Scope, Send

from agent3 import bridge, jsonrpc
from agent3.calls.core import Core
from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, AgentNotFound, SecurityError
from agent3.listener import Listening, Who, at_this_machine, names_of, run_http
from agent3.model import Capability, Principal
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.agents.authoring import agent_of, card_of, furnished
from agent3.protocols.a2a.agents.executor import AgentExecutor
from agent3.protocols.a2a.agents.lifecycle import refusal
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.door.dispatch import Engines
from agent3.protocols.a2a.door.endpoint import FEATURES, A2AEndpoint
from agent3.protocols.a2a.door.http import JSON, answer, one_of
from agent3.protocols.a2a.door.shared_keys import Household, household
from agent3.protocols.a2a.door.targeting import aim, wish
from agent3.protocols.a2a.door.tasks import Aim, Engine
from agent3.protocols.a2a.wire import types as shapes
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared

__all__ = ["AgentApp", "asgi", "listening", "serve"]

if TYPE_CHECKING:  # it needs an optional part
    from agent3.protocols.a2a.grpc.server import GrpcDoor

T = TypeVar("T")

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def asgi(
    agent: object,
    *,
    principal: Who | None = None,
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
    ``extended`` is the card for callers who show who they are, or a function that gives it to each. Cards are signed
    where the core keeps a database, and the key with it; ``sign`` says otherwise, or with which key. ``options`` are
    those of A2AEndpoint.
    """
    shown = Shown(card, extended, sign)
    return AgentApp(agent, principal, shown, core, allowed_hosts, allowed_origins, options)


def listening(
    agent: object, host: str = "127.0.0.1", port: int = 0, *, grpc_port: int | None = None, **options: Any
) -> Listening:
    """The agent on a port, for the length of a ``with`` block; gives its address.

    With ``grpc_port``, where 0 takes a free one, it also speaks gRPC there: the card says where.
    """
    names = names_of(host, options.get("principal"), options.pop("allowed_hosts", ()))
    app = asgi(agent, allowed_hosts=names, **options)
    return Listening(app, host, port) if grpc_port is None else _WithGrpc(app, host, port, grpc_port)


def serve(
    agent: object, host: str = "127.0.0.1", port: int = 8334, *, grpc_port: int | None = None, **options: Any
) -> None:
    """Serve the agent until SIGINT or SIGTERM; says where, on standard error."""
    run_http(agent_name(agent), listening(agent, host, port, grpc_port=grpc_port, **options))


def agent_name(agent: object) -> str:
    """What an agent is called."""
    return agent.card.name if isinstance(agent, AgentExecutor) else agent_of(agent).name


Extended = AgentCard | Callable[[Principal], AgentCard]
"""The card for those who show who they are."""


class Shown(NamedTuple):
    """What an agent shows of itself."""

    card: AgentCard | None = None
    extended: Extended | None = None
    sign: bool | CardKey | None = None


class AgentHost:
    """One agent of this process, for its own endpoint."""

    def __init__(self, agent: LocalAgent, card: Callable[[], AgentCard], extended: Extended | None = None):
        self._agent = agent
        self._card = card
        self._extended = extended

    async def aim(self, principal: Principal, message: shapes.Message, tenant: str | None) -> Aim:
        """The capability that a message means; Unavailable while the agent takes nothing new."""
        agent, card = self._agent.agent, self._card()
        if (out := refusal(card.agent_id, card.status)) is not None:
            raise out
        wanted = wish(message)
        declared = card.capability(wanted.name) if wanted.name else None
        if declared is not None and agent.capability(str(wanted.name)) is None:
            wanted = wanted._replace(name=declared.name)  # the card may call it by an id
        shown = self._visible(principal)
        return aim(agent, shown, wanted, () if shown is agent.capabilities else agent.capabilities)

    async def card(self, principal: Principal | None, tenant: str | None = None, extended: bool = False) -> AgentCard:
        """The same for everybody, unless its author gave another for those who show who they are.

        Then strangers see the skills that the public card names, and each caller also those of its own card.
        """
        agent, known = self._agent.agent, self._card()
        offered = self._visible(principal if extended else None)
        if self._extended is not None and extended and principal is not None:
            known = self._own(principal)
        return card_of(agent, offered, known=known)

    def _own(self, principal: Principal) -> AgentCard:
        assert self._extended is not None
        return self._extended if isinstance(self._extended, AgentCard) else self._extended(principal)

    def _visible(self, principal: Principal | None) -> Sequence[Capability]:
        """What a caller sees: all that the public card names, and what its own one does. A card that names none, all.

        Without cards for those who show who they are, everybody sees everything.
        """
        everything: Sequence[Capability] = self._agent.agent.capabilities
        if self._extended is None:
            return everything
        cards = [self._card(), *([self._own(principal)] if principal is not None else ())]
        if not all(one.capabilities for one in cards):
            return everything
        return [one for one in everything if any(card.capability(one.name) is not None for card in cards)]


class AgentApp:
    """The ASGI app of an agent. Alone it takes part in the lifespan; mounted, it needs none."""

    path = ""

    def __init__(
        self,
        agent: object,
        principal: Who | None,
        shown: Shown,
        core: Standalone | None,
        allowed_hosts: Sequence[str],
        allowed_origins: Sequence[str],
        options: dict[str, Any],
    ):
        self._principal = principal or at_this_machine
        self._hosts = frozenset(one.lower() for one in (*_LOOPBACK, *allowed_hosts))
        self._origins = frozenset(allowed_origins)
        self._options = options
        self._home: asyncio.AbstractEventLoop | None = None
        self._opened: tuple[Core, A2AEndpoint] | None = None
        self._grpc_port: int | None = None
        self._shown = shown
        self._card: Callable[[], AgentCard]
        if isinstance(agent, AgentExecutor):
            self._core, self._agent = agent.core, agent.agent
            self._card = lambda: shown.card or agent.card
        else:
            given = agent_of(agent)
            card = shown.card or card_of(given.agent, ())
            self._card = lambda: card
            self._core = core or shared()
            # The core gives it an id of its own, under which its functions are reached.
            self._agent = LocalAgent(
                given.name, agent_id=given.id, description=given.description, version=given.version, tags=given.tags
            )
            self._core.host(self._agent)
            furnished(self._agent, given)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif (wrong := self._refusal(scope)) is not None:
            await answer(send, 403, jsonrpc.error(None, wrong.rpc_code, wrong.message), JSON)
        elif asyncio.get_running_loop() is self._home:
            await self._serve(scope, receive, send)
        else:
            here = asyncio.get_running_loop()
            away = self._at_home(self._serve(scope, _across(here, receive), _across(here, send)))
            await asyncio.wrap_future(bridge.shared().spawn(away))

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        self._home = asyncio.get_running_loop()
        return await work

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = await self._endpoint()
        await endpoint(scope, receive, send)

    async def _endpoint(self) -> A2AEndpoint:
        """The endpoint on the core as it is now; one that was closed and opened again is another."""
        house = await self._core.house()
        if self._opened is None or self._opened[0] is not house:
            endpoint = await self._made(house, await household(self._core))
            if self._opened is None or self._opened[0] is not house:  # nobody else made it meanwhile
                self._opened = house, endpoint
        return self._opened[1]

    async def _made(self, house: Core, home: Household) -> A2AEndpoint:
        host = AgentHost(self._agent, self._card, self._shown.extended)
        engine = Engine(
            await self._core.gateway(),
            host,
            push=home.pushes,
            agent=self._agent.id,
            fetch=house.artifacts.get,
        )
        own = self._shown.sign
        keys = await home.keys(
            key=own if isinstance(own, CardKey) else None, sign=self._core.durable if own is None else bool(own)
        )
        features = FEATURES.model_copy(
            update={
                "push_notifications": keys is not None or bool(house.settings.callbacks.secret),
                "extended_agent_card": self._shown.extended is not None,
            }
        )
        options = {"features": features, "keys": keys, **self._options}
        endpoint = A2AEndpoint(self._only(engine), host, principal=self._principal, **options)
        if self._grpc_port is not None:
            endpoint.grpc_at(self._grpc_port)
        return endpoint

    async def speak_grpc(self, host: str, port: int, address: str) -> GrpcDoor:
        """Speak gRPC too, on a port of its own; ``address`` is the one of HTTP, for cards. MissingExtra."""
        door = await grpc.listen(self._endpoint, host, port, address)
        self._grpc_port = door.port
        return door

    def _only(self, engine: Engine) -> Engines:
        """The one tenant of this address is the agent itself."""

        def engines(tenant: str | None) -> Engine:
            if tenant is not None and tenant != self._card().agent_id:
                raise AgentNotFound(f"There is no agent {tenant[:100]!r} at this address.")
            return engine

        return engines

    def _refusal(self, scope: Scope) -> Agent3Error | None:
        """Pages of other sites may not call, and names that are not ours are theirs."""
        host = (one_of(scope["headers"], b"host") or "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if "*" not in self._hosts and not self._hosts & {host, name, f"{name}:*"}:
            return SecurityError(f"Host {host[:100]!r} is not this agent. Its author can add it: allowed_hosts=.")
        origin = one_of(scope["headers"], b"origin")
        if origin is not None and origin not in self._origins and origin.rpartition("://")[2].lower() != host:
            return SecurityError(f"Pages of {origin[:100]!r} may not call. The author can add it: allowed_origins=.")
        return None


class _WithGrpc(Listening):
    """HTTP and gRPC, each on its port."""

    def __init__(self, app: AgentApp, host: str, port: int, grpc_port: int):
        super().__init__(app, host, port)
        self._app = app
        self._also = (host, grpc_port)
        self._grpc: GrpcDoor | None = None

    def __enter__(self) -> str:
        url = super().__enter__()
        try:
            self._grpc = bridge.shared().spawn(self._app.speak_grpc(*self._also, url)).result()
        except BaseException:
            super().__exit__()
            raise
        return url

    def __exit__(self, *_: object) -> None:
        try:
            if self._grpc is not None:
                bridge.shared().spawn(self._grpc.aclose()).result()
        finally:
            super().__exit__()


def _across(loop: asyncio.AbstractEventLoop, there: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """An end of the exchange that belongs to another loop."""

    async def call(*given: Any) -> T:
        return await there(*given)

    async def across(*given: Any) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(*given), loop))

    return across


async def _live(receive: Receive, send: Send) -> None:
    message: Message = await receive()
    while message["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
        message = await receive()
    await send({"type": "lifespan.shutdown.complete"})
