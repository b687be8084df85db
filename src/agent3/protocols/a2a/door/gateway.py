"""A2A at the gateway: ``/a2a`` is the gateway itself, ``/agents/{id}/a2a`` each registered agent natively.

Whatever an agent speaks itself, here it speaks A2A in every generation: an MCP tool is a skill, and a website's action
too. A tenant of ``/a2a`` is an agent. A message that names none goes to the agent that fits its words best.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent3 import jsonrpc
from agent3._version import __version__
from agent3.definitions import AgentCapability, AgentCard
from agent3.errors import Agent3Error, AgentNotFound, RateLimited, Unauthenticated, ValidationError
from agent3.gateway import Caller as GatewayCaller
from agent3.model import Agent, Capability, Principal
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.agents.authoring import card_of, skill_of
from agent3.protocols.a2a.door.card_pages import CARD_PATHS, KEYS_PATH
from agent3.protocols.a2a.door.endpoint import FEATURES, A2AEndpoint
from agent3.protocols.a2a.door.http import BINDING, Heard, Talk, hear
from agent3.protocols.a2a.door.targeting import Wish, aim, wish
from agent3.protocols.a2a.door.tasks import Aim, Engine
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.a2a.peer.push_receiver import Notices
from agent3.protocols.a2a.wire.types import Message
from agent3.protocols.mcp.door.fast_lane import HungUp, Reply
from agent3.server.build import Server
from agent3.server.rest import error_response
from agent3.settings import Settings

if TYPE_CHECKING:  # they need an optional part
    from agent3.protocols.a2a.grpc.server import GrpcDoor, Judge

__all__ = ["CALLBACKS", "A2ADoors", "GatewayHost", "Place", "place_of"]

BASE: Final = "/a2a"
CALLBACKS: Final = "/callbacks/a2a"
"""Where agents that the gateway calls tell how their tasks go."""
_TOPIC: Final = "a2a.push"
_TOLD = ["GET", "POST"]
_AGENTS: Final = "/agents/"
_DOOR: Final = "a2a"
_EARLIER: Final = "/agent/authenticatedExtendedCard"
_METHODS = ["GET", "HEAD", "POST", "DELETE"]
_MOST_SKILLS = 1_000
"""Skills in the card of the gateway."""
_ENGINES = 1_000
_PAID: Final = "agent3.a2a.paid"
"""Where the scope says that a request was counted before it had to come by ASGI, as streams have to."""
_LONGEST_NAME = 200
"""Characters of the name of an agent: longer ones are nobody's, and are not remembered."""
ASK: Final = "ask"
_ABOUT = (
    "Any agent, any tool, any website, one call. Name a skill in the metadata of a message as skillId (agent/skill), "
    "or an agent as tenant; a message that names none goes to the agent that fits its words best."
)


class Place(NamedTuple):
    """Where a request came to: the path of the address, and the agent whose it is; None for the gateway itself."""

    base: str
    tenant: str | None = None


def place_of(path: str) -> Place | None:
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
    """All A2A doors of a gateway, as one ASGI app."""

    def __init__(self, server: Server, doorkeeper: Callable[[Any], Principal]):
        settings = server.settings
        self._server = server
        self._doorkeeper = doorkeeper
        self._signers = any(one.require_signature for one in settings.clients)
        self._host = GatewayHost(server)
        self._engines: OrderedDict[str | None, Engine] = OrderedDict()
        self._notices = _listening(server)
        self._endpoint = A2AEndpoint(
            self._engine,
            self._host,
            principal=self._who,
            features=FEATURES.model_copy(update={"push_notifications": server.pushes is not None}),
            address=settings.oauth.resource.rstrip("/"),
            keys=server.keys,
            keys_at=KEYS_PATH,
            limits=jsonrpc.Limits(body=settings.server.max_body),
            body_seconds=settings.server.body_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = place_of(scope["path"])
        assert place is not None, "only what place_of knows is sent here"
        if scope["path"] in CARD_PATHS:
            await self._endpoint.card(Talk(scope, receive, send, *place))
        elif scope["path"] == KEYS_PATH:
            await self._endpoint.show_keys(Talk(scope, receive, send, *place))
        elif scope["path"] == _EARLIER:
            await self._endpoint.serve({**scope, "path": BASE + _EARLIER}, receive, send, *place)
        else:
            await self._endpoint.serve(scope, receive, send, *place)

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a whole POST, without ASGI; None for what is not regular, which then has to come by ASGI."""
        guest = self.guest(scope)
        return await guest.reply(scope, body, hung_up) if guest is not None else None

    def guest(self, scope: Scope) -> Guest | None:
        """Who sends these headers, for this request and any further one; None where each must come by ASGI."""
        place = place_of(scope["path"])
        if place is None or scope["path"].rstrip("/") != place.base:
            return None
        if any(name == b"origin" or name.startswith(b"x-forwarded-") for name, _ in scope["headers"]):
            return None  # a page, or a proxy that says who calls: the app around judges both
        try:
            return Guest(self, place, hear(scope), self._doorkeeper(scope))
        except Agent3Error:
            return None

    def within(self, principal: Principal) -> bool:
        """Whether a caller does not ask too often."""
        try:
            self._server.gateway.count_question(principal)
        except RateLimited:
            return False
        return True

    def answered(self, talk: Talk, principal: Principal, body: bytes) -> Awaitable[bytes | None]:
        """What the endpoint says to a regular request."""
        return self._endpoint.reply(talk, principal, body)

    async def speak_grpc(self, port: int, url: str, judge: Judge) -> GrpcDoor:
        """Speak gRPC too, on a port of its own, beside the gateway at ``url``; MissingExtra, SetupError."""

        async def endpoint() -> A2AEndpoint:
            return self._endpoint

        return await grpc.listen(endpoint, self._server.settings.server.host, port, url + BASE, judge)

    def routes(self) -> list[Route]:
        """The same for requests that come by way of the app around, as those of web pages do."""
        below = "/{path:path}"
        talk = (BASE, BASE + below, "/agents/{agent}/a2a", "/agents/{agent}/a2a" + below)
        read = (*sorted(CARD_PATHS), KEYS_PATH, _EARLIER)
        return [
            *(Route(one, self, methods=_METHODS) for one in talk),
            *(Route(one, self, methods=["GET"]) for one in read),
            *(() if self._notices is None else (Route(f"{CALLBACKS}/{{key}}", self._called_back, methods=_TOLD),)),
        ]

    async def _called_back(self, request: Request) -> Response:
        """An agent tells that there is something to read, or asks first whether this address is ours."""
        assert self._notices is not None
        key, headers, how = request.path_params["key"], request.headers, self._server.settings.server
        try:
            if request.method != "POST":
                asked = request.query_params.get("validationToken", "")
                return PlainTextResponse(self._notices.challenge(key, asked), headers=_PLAIN)
            self._notices.admit(key, headers)
            try:
                body = await jsonrpc.read_body(request.receive, how.max_body, how.body_seconds)
            except Agent3Error as wrong:
                raise self._notices.refused(wrong) from None
            return JSONResponse({"status": self._notices.take(key, headers, body)})
        except Agent3Error as wrong:
            return error_response(wrong)

    def _who(self, scope: Scope) -> Principal:
        """Who calls, unless it does so too often: what is no call reads the database all the same."""
        try:
            principal = self._doorkeeper(scope)
        except Unauthenticated as wrong:
            if scope.get(BINDING) == "grpc" and self._signers:
                wrong.message = f"{wrong.message} {_UNSIGNED}"
            raise
        if not scope.get(_PAID):
            self._server.gateway.count_question(principal)
        return principal

    def _engine(self, tenant: str | None) -> Engine:
        """The engine of an agent, which knows the tasks of that agent alone; the gateway's own knows all."""
        found = self._engines.get(tenant)
        if tenant is not None and len(tenant) > _LONGEST_NAME:
            raise AgentNotFound(f"There is no agent {tenant[:100]!r}. Its card says what it is called.")
        if found is None:
            found = Engine(
                self._server.gateway,
                self._host,
                push=self._server.pushes,
                door=_DOOR,
                agent=tenant,
                fetch=self._server.core.artifacts.get,
            )
            self._engines[tenant] = found
            if len(self._engines) > _ENGINES:
                self._engines.popitem(last=False)
        return found


def _listening(server: Server) -> Notices | None:
    """Have the agents that we call push to us, where they can find us: by the address that clients know us by."""
    address, connector = server.settings.oauth.resource.rstrip("/"), server.core.connectors.get(_DOOR)
    if not address or not isinstance(connector, A2AConnector):
        return None
    # Where nothing can be sealed, callbacks are known to this process alone, and only for as long as it lives.
    secret = server.keys.secret(_TOPIC) if server.keys is not None else os.urandom(32)
    news = server.core.jobs.news

    def passed_on(key: str) -> bool:
        news.tell(_TOPIC, key)
        return news.live

    def counted(result: str) -> None:
        server.metrics.a2a_callbacks.inc((result,))

    notices = Notices(f"{address}{CALLBACKS}", secret, pass_on=passed_on, counted=counted)
    news.on(_TOPIC, notices.knock)
    connector.notices = notices
    return notices


_UNSIGNED: Final = "gRPC carries no signatures: who must sign uses JSON-RPC or REST."
_PLAIN: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Guest:
    """Who was let in, and comes again with the same headers."""

    __slots__ = ("_doors", "_heard", "_place", "_principal")

    def __init__(self, doors: A2ADoors, place: Place, heard: Heard, principal: Principal):
        self._doors = doors
        self._place = place
        self._heard = heard
        self._principal = principal

    async def reply(self, told: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a request with this body. A client that hangs up has only stopped listening."""
        if not self._doors.within(self._principal):
            return None
        told[_PAID] = True
        talk = Talk(told, _nobody, _nobody, *self._place, self._heard)
        answer = await self._doors.answered(talk, self._principal, body)
        return Reply(answer) if answer is not None else None


async def _nobody(*_: Any) -> Any:
    raise RuntimeError("what is answered without ASGI has nobody to hear from")


class GatewayHost:
    """What the gateway serves over A2A: every agent that the caller may call."""

    def __init__(self, server: Server):
        self._server = server
        self._schemes = _schemes(server.settings)

    async def aim(self, principal: Principal, message: Message, tenant: str | None) -> Aim:
        """The agent and capability that a message means. Refusals are recorded like any other, then raised."""
        wanted = wish(message)
        try:
            known = self._server.directory.peek(tenant) if tenant is not None else None
            if known is not None and self._offered(known, principal):
                agent = known
            else:
                agent, wanted = await self._agent(principal, wanted, tenant, message.metadata or {})
            if agent.status in ("suspended", "retired"):
                raise AgentNotFound(f"Agent {agent.id!r} is {agent.status} and takes no calls. Search for another one.")
            found = aim(agent, self._offered(agent, principal), wanted)
        except Agent3Error as refusal:
            caller = GatewayCaller(principal, _DOOR)
            await self._server.gateway.refuse(caller, tenant or "", wanted.name or "", refusal)
            raise
        return found

    async def card(
        self, principal: Principal | None, tenant: str | None = None, extended: bool = False
    ) -> AgentCard | None:
        """The gateway's card with the skills that the caller may call; strangers see what it is, and how to come in.

        The card of an agent is for those who may call it.
        """
        if tenant is None:
            skills = await self._skills(principal) if principal is not None else []
            return self._guarded(_gateway_card(skills))
        if principal is None:
            raise Unauthenticated("The cards of agents are for clients of this gateway. Send a key.")
        agent = await self._server.directory.get(tenant, self._visible(principal))
        return self._guarded(card_of(agent, self._offered(agent, principal)))

    # Inside

    async def _agent(
        self, principal: Principal, wanted: Wish, tenant: str | None, metadata: dict[str, Any]
    ) -> tuple[Agent, Wish]:
        """The agent that is meant, and what is left of the wish for it."""
        directory, visible = self._server.directory, self._visible(principal)
        named = tenant or next(
            (metadata[key] for key in ("agentId", "agent") if isinstance(metadata.get(key), str)), None
        )
        if named is not None:
            return await directory.get(named, visible), wanted
        if wanted.name is not None and wanted.name != ASK:
            return await self._by_skill(principal, wanted)
        hits = await directory.search(wanted.text, 1, lambda one: bool(self._offered(one, principal)))
        if not hits:
            raise AgentNotFound("No agent fits this message. Name one as tenant, or a skill as skillId: agent/skill.")
        return hits[0].agent, wanted._replace(name=None)

    async def _by_skill(self, principal: Principal, wanted: Wish) -> tuple[Agent, Wish]:
        """The agent of a skill, which is named as in the card, or by itself where only one agent has it."""
        assert wanted.name is not None
        agent, found, skill = wanted.name.partition("/")
        if found:
            return await self._server.directory.get(agent, self._visible(principal)), wanted._replace(name=skill)
        everybody = await self._server.directory.everything()
        having = [one for one in everybody if any(each.name == agent for each in self._offered(one, principal))]
        if len(having) == 1:
            return having[0], wanted
        if len(having) > 1:
            names = ", ".join(f"{one.id}/{agent}" for one in having[:20])
            raise ValidationError(f"Several agents have a skill {agent[:100]!r}. Name one of them as skillId: {names}")
        return await self._server.directory.get(agent, self._visible(principal)), wanted._replace(name=None)

    async def _skills(self, principal: Principal) -> list[AgentCapability]:
        found: list[AgentCapability] = []
        for agent in await self._server.directory.everything():
            if agent.status in ("suspended", "retired"):
                continue
            found.extend(_skill(agent, one) for one in self._offered(agent, principal))
            if len(found) >= _MOST_SKILLS:
                break
        return found[:_MOST_SKILLS]

    def _offered(self, agent: Agent, principal: Principal) -> Sequence[Capability]:
        return self._server.gateway.offered(agent, principal)

    def _visible(self, principal: Principal) -> Callable[[Agent], bool]:
        return lambda agent: bool(self._offered(agent, principal))

    def _guarded(self, card: AgentCard) -> AgentCard:
        if not self._schemes:
            return card
        return card.model_copy(
            update={"security_schemes": self._schemes, "security": [{name: []} for name in self._schemes]}
        )


def _gateway_card(skills: list[AgentCapability]) -> AgentCard:
    ask = AgentCapability(
        id=ASK,
        name="Ask for anything",
        description="Say what you need in plain words; the agent that fits best is found and called.",
        tags=["routing", "search"],
        examples=["I want a pepperoni pizza"],
    )
    return AgentCard(
        agent_id="agent3", name="agent3 gateway", description=_ABOUT, version=__version__, capabilities=[ask, *skills]
    )


def _skill(agent: Agent, one: Capability) -> AgentCapability:
    skill = skill_of(one)
    tags = [*skill.tags, agent.id] if agent.id not in skill.tags else skill.tags
    return skill.model_copy(
        update={"id": f"{agent.id}/{one.name}", "name": f"{agent.name}: {skill.name}", "tags": tags}
    )


def _schemes(settings: Settings) -> dict[str, Any]:
    """How callers show who they are; nothing where everybody is the local person."""
    schemes: dict[str, Any] = {}
    if settings.clients or settings.oauth.issuers:
        schemes["bearer"] = {"type": "http", "scheme": "bearer", "description": "A key of a client, or an access token"}
    if settings.clients:
        schemes["apiKey"] = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    return schemes
