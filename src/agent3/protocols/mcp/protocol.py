"""MCP as a protocol of the gateway: servers over HTTP and stdio, the door ``/mcp``, and a door for every agent."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.routing import Route as Path_
from starlette.types import Scope

from agent3.errors import Agent3Error, LoopDetected, SetupError, TargetError, TargetRefused
from agent3.gateway.lanes import Lane
from agent3.gateway.protocol import Door, Found, Given, Protocol, Services
from agent3.identity.doorkeeper import is_loopback
from agent3.identity.flow_tokens import AccessToken
from agent3.identity.oauth import SignIn
from agent3.identity.redaction import redact_agent, redact_error
from agent3.identity.secret_refs import HEADERS, open_route
from agent3.identity.secrets import Secret, Vault
from agent3.identity.sign_ins import Plan, SignInEntry, SignInWish
from agent3.jsonrpc import is_event_stream
from agent3.model import LOCAL, Agent, Principal, Route
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.oauth import authorization_code, client_credentials
from agent3.protocols.mcp.client.upstream import ERA, SESSIONS, SHARED
from agent3.protocols.mcp.client_files import command_route, read_servers
from agent3.protocols.mcp.door.agent_endpoints import AgentEndpoints, agent_in
from agent3.protocols.mcp.door.agent_tools import route_of
from agent3.protocols.mcp.door.direct_tools import DirectTools, how_to_answer
from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, DoorOptions, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.gateway_tools import INSTRUCTIONS, GatewayTools
from agent3.protocols.mcp.door.toolset import ToolSet
from agent3.security.outbound import Gate, Policy

__all__ = ["MCP"]

_METHODS = ["GET", "POST", "DELETE"]
"""Requests, the streams of legacy sessions, and their end."""
_NAMES = frozenset({"mcp", "sse"})
"""What the path of a server often ends with."""
_ELSEWHERE = frozenset({301, 302, 303, 307, 308})
_LOOK_SECONDS = 5.0
"""Seconds that a site gets to show a page."""


class MCP(Protocol):
    """Servers that speak MCP, and the gateway as one of them."""

    name = "mcp"
    connector: MCPConnector
    choices = frozenset({ERA, SESSIONS})
    media_types = {"application/mcp-server-card+json": False, "application/mcp-server+json": False}

    def __init__(self, services: Services):
        super().__init__(services)

        def on_change(address: str) -> None:
            if services.lasting:
                services.renewals.changed(address)

        calls = services.settings.calls
        self.connector = MCPConnector(
            services.policy,
            idle=calls.attempt_timeout,
            first_start=calls.start_seconds,
            on_change=on_change,
            env=services.env,
            scope=services.scope,
        )

    # agent3 add

    def read(self, given: Given) -> Sequence[Found]:
        """A client's file, a ``server.json`` of the MCP registry, or a command that runs a server."""
        if found := read_servers(given):
            return found
        if (
            given.file is not None
            or given.document is not None
            or re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://", given.text)
        ):
            return ()
        try:
            words = shlex.split(given.text)
        except ValueError as error:
            raise SetupError(f"The command cannot be parsed: {error}. Check its quotes.") from None
        return [Found(command_route(words, {}, None, given.credential), given.name)]

    def likelihood(self, address: str) -> float:
        return 0.5

    async def is_unlikely(self, address: str, policy: Policy) -> bool:
        """By what GET gives at the addresses that we would post to: a server refuses it, or streams events."""
        url = urlsplit(address)
        if _NAMES.intersection(url.path.lower().split("/")):
            return False
        gate = Gate(policy)
        try:
            if not await _is_page(gate, address, _ELSEWHERE):
                return False
            below = url._replace(path="/mcp").geturl()
            return url.path not in ("", "/") or await _is_page(gate, below, frozenset())
        except Agent3Error:
            return False
        finally:
            await gate.aclose()

    async def register(self, found: Found, vault: Vault) -> Agent:
        """The server at an address, or at ``/mcp`` below it: people give the address of a site as often."""
        route = found.route
        try:
            return await self.describe(route, vault, found.tell)
        except LoopDetected:
            raise
        except TargetError as error:
            if route.address.startswith("stdio:") or urlsplit(route.address).path not in ("", "/"):
                raise
            bare, question, query = route.address.partition("?")
            endpoint = f"{bare.rstrip('/')}/mcp{question}{query}"
            try:
                return await self.describe(replace(route, address=endpoint), vault, found.tell)
            except TargetRefused as refused:
                if refused.data.get("status") != 401:
                    raise error from None
                refused.data["address"] = endpoint
                raise
            except LoopDetected:
                raise
            except TargetError:
                raise error from None

    async def describe(self, route: Route, vault: Vault, tell: Callable[[str], None] | None = None) -> Agent:
        opened = await open_route(route, vault)
        try:
            agent = await self.connector.describe(
                opened.route.address,
                secret=opened.secret,
                route=route,
                registered=bool(route.meta.get("registered")),
                headers=opened.route.meta.get(HEADERS),
                on_wait=tell,
            )
        except Agent3Error as error:
            raise redact_error(error, opened.hidden) from None
        return redact_agent(agent, opened.hidden)

    async def sign_in(self, found: Found, wish: SignInWish, refusal: TargetRefused | None) -> SignInEntry | None:
        """The address that refused says where one signs in, when it is asked with the sign-in begun."""
        if refusal is None:
            return None
        return SignInEntry(replace(found.route, address=str(refusal.data.get("address", found.route.address))))

    def new_token(self, plan: Plan, secret: Secret | None, sign_in: SignIn) -> AccessToken:
        """A token of the authorization server that the MCP server names when it refuses a request."""
        if plan.way == "person":
            return authorization_code(
                plan.address,
                sign_in,
                redirect=plan.redirect,
                client_id=plan.client_id,
                secret=secret,
                issuer=plan.issuer,
            )
        if plan.client_id is None or secret is None or plan.issuer is None:
            raise SetupError(
                "To sign in as a machine, give its id, its secret and the authorization server that issued "
                "them: --client-id ID --client-secret-ref env:NAME --issuer https://…"
            )
        return client_credentials(plan.address, plan.client_id, secret, issuer=plan.issuer)

    async def notes(self, agent: Agent) -> dict[str, Any]:
        """The newest version that a server speaks, its eras, and what the operator chose."""
        route = route_of(agent)
        if route is None:
            return {}
        told = {"protocolVersion": agent.card.get("protocolVersion"), "eras": agent.card.get("eras")}
        shared = {SESSIONS: SHARED} if route.meta.get(SESSIONS) == SHARED else {}
        return {"mcp": {**told, "era": route.meta.get(ERA, "auto"), **shared}}

    def connected(self) -> Collection[str]:
        return self.connector.connected()

    async def disconnect(self, addresses: Collection[str]) -> None:
        await self.connector.disconnect(addresses)

    def renews(self, route: Route) -> bool:
        return True

    # Doors

    def door(self, tools: ToolSet, **more: Any) -> MCPDoor:
        """An MCP door with the hosts, origins and bounds of the gateway; ``more`` are DoorOptions."""
        settings = self.services.settings.server
        bound = settings.host if ":" not in settings.host else f"[{settings.host}]"
        hosts = [*LOOPBACK_HOSTS, bound, f"{bound}:*", *settings.allowed_hosts]
        if not is_loopback(settings.host) and not settings.allowed_hosts:
            hosts = ["*"]  # bound to the network every caller shows a key, and our own names are not configured
        options = DoorOptions(
            allowed_hosts=hosts,
            allowed_origins=[*LOOPBACK_ORIGINS, *settings.allowed_origins],
            max_body=settings.max_body,
            gateway=self.services.policy.gateway,
            count_read=lambda principal: self.services.reads.take(principal),
            sessions=self.services.settings.limits.sessions,
            key=self.services.scope.key_for(f"mcp {more.get('name', '')}"),
            process=self.services.process,
            **more,
        )
        return MCPDoor(tools, options, env=self.services.env)

    def doors(self) -> Sequence[Door]:
        services = self.services
        tools, front = self._front("mcp", services.doorkeeper)
        agents = AgentEndpoints(services, self.connector, front, self.door)
        lane = FastLane(front, env=services.env)

        def lane_of(path: str) -> Lane | None:
            if path == "/mcp":
                return lane
            return agents if agent_in(path) is not None else None

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with front.running(), agents.running(), tools.watching(lambda: front.notify_change("tools")):
                yield

        return [
            Door(
                routes=[
                    Path_("/mcp", front.asgi(), methods=_METHODS),
                    Path_("/agents/{agent}/mcp", agents, methods=_METHODS),
                ],
                app=_Switch(lane, agents),
                takes=lambda scope: scope["method"] in _METHODS and lane_of(_bare(scope["path"])) is not None,
                checks_hosts=True,
                lane=lane_of,
                running=running,
                about=[("MCP", "/mcp, and /agents/ID/mcp for one agent")],
            )
        ]

    async def serve_stdio(self) -> None:
        tools, front = self._front("stdio", lambda scope: LOCAL)
        async with tools.watching(lambda: front.notify_change("tools")):
            await front.stdio()

    def _front(self, name: str, principal: Callable[[Scope], Principal]) -> tuple[DirectTools, MCPDoor]:
        """The gateway's own door, by the name that it has in the ledger."""
        gateway, most = self.services.gateway, self.services.settings.server.direct_tools
        tools = DirectTools(GatewayTools(gateway, name), gateway, most, name)
        door = self.door(tools, principal=principal, instructions=INSTRUCTIONS, marks_tools=True, hint=how_to_answer)
        return tools, door


class _Switch:
    """``/mcp`` to the lane of the gateway, every other path to the doors of agents."""

    def __init__(self, lane: FastLane, agents: AgentEndpoints):
        self._lane = lane
        self._agents = agents

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        scope["path"] = _bare(scope["path"])
        await (self._lane if scope["path"] == "/mcp" else self._agents)(scope, receive, send)


def _bare(path: str) -> str:
    """The path without the slash that people put at its end; not every client follows a redirect with its body."""
    return path.removesuffix("/")


async def _is_page(gate: Gate, address: str, also: frozenset[int]) -> bool:
    """Whether GET gives a page or a document, nothing at all, or one of these statuses."""
    async with gate.stream(
        "GET", address, headers={"Accept": "application/json, text/html"}, timeout=_LOOK_SECONDS
    ) as answer:
        if answer.status in (404, 410) or answer.status in also:
            return True
        return answer.status == 200 and not is_event_stream(answer.headers.get("content-type"))
