"""MCP as a protocol of the gateway: servers over HTTP and stdio, the door ``/mcp``, and a door for every agent."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.routing import Route as Path_
from starlette.types import Scope

from agent3.errors import Agent3Error, SetupError, TargetError, TargetRefused
from agent3.gateway.lanes import Lane
from agent3.gateway.protocol import Door, Found, Given, Protocol, Services
from agent3.gateway.registration import named_credential
from agent3.identity.doorkeeper import is_loopback
from agent3.identity.flow_tokens import AccessToken
from agent3.identity.oauth import SignIn
from agent3.identity.redaction import redact_agent, redact_error
from agent3.identity.secret_detection import holds_secret, names_secret, variable
from agent3.identity.secret_refs import check_query, check_words, open_route
from agent3.identity.secrets import Secret, Vault
from agent3.identity.sign_ins import Plan, SignInEntry, SignInWish
from agent3.model import LOCAL, Agent, Route
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.oauth import authorization_code, client_credentials
from agent3.protocols.mcp.client.processes import Command
from agent3.protocols.mcp.door.agent_endpoints import AgentEndpoints, agent_in
from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, DoorOptions, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.gateway_tools import INSTRUCTIONS, GatewayTools
from agent3.protocols.mcp.door.toolset import ToolSet

__all__ = ["MCP"]

_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_METHODS = ["GET", "POST", "DELETE"]
"""Requests, the streams of legacy sessions, and their end."""


class MCP(Protocol):
    """Servers that speak MCP, and the gateway as one of them."""

    name = "mcp"
    connector: MCPConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self.connector = MCPConnector(
            services.policy,
            idle=services.settings.calls.attempt_timeout,
            on_change=self._on_change,
            env=services.env,
        )

    def _on_change(self, address: str) -> None:
        if self.services.lasting:
            self.services.renewals.changed(address)

    # agent3 add

    def read(self, given: Given) -> Sequence[Found]:
        """A client's file with ``mcpServers``, or a command that runs a server."""
        document = given.document
        if isinstance(document, Mapping):
            servers = document.get("mcpServers") or document.get("servers")
            if not isinstance(servers, Mapping) or not servers:
                return ()
            if given.name is not None and len(servers) > 1:
                if given.name not in servers:
                    names = ", ".join(sorted(servers))
                    raise SetupError(f"{given.where} holds no server {given.name!r}; it holds {names}.")
                servers = {given.name: servers[given.name]}
            return [
                Found(_configured(name, entry, given.credential), given.name or name) for name, entry in servers.items()
            ]
        if given.file is not None or document is not None or re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://", given.text):
            return ()
        try:
            words = shlex.split(given.text)
        except ValueError as error:
            raise SetupError(f"The command cannot be read: {error}. Check its quotes.") from None
        return [Found(_command_route(words, {}, None, given.credential), given.name)]

    def likelihood(self, address: str) -> float:
        return 0.5

    async def register(self, found: Found, vault: Vault) -> Agent:
        """The server at an address, or at ``/mcp`` below it: people give the address of a site as often."""
        route = found.route
        try:
            return await self.describe(route, vault)
        except TargetError as error:
            if route.address.startswith("stdio:") or urlsplit(route.address).path not in ("", "/"):
                raise
            bare, question, query = route.address.partition("?")
            endpoint = f"{bare.rstrip('/')}/mcp{question}{query}"
            try:
                return await self.describe(replace(route, address=endpoint), vault)
            except TargetRefused as refused:
                if refused.data.get("status") != 401:
                    raise error from None
                refused.data["address"] = endpoint
                raise
            except TargetError:
                raise error from None

    async def describe(self, route: Route, vault: Vault) -> Agent:
        opened = await open_route(route, vault)
        try:
            agent = await self.connector.describe(
                opened.route.address, secret=opened.secret, route=route, registered=True
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
                "To sign in as a machine, give its id, its secret and the authorization server that issued them: "
                "--client-id ID --client-secret-ref env:NAME --issuer https://…"
            )
        return client_credentials(plan.address, plan.client_id, secret, issuer=plan.issuer)

    def renews(self, route: Route) -> bool:
        return True

    # Doors

    def door(self, tools: ToolSet, **more: Any) -> MCPDoor:
        """An MCP door with the hosts, origins and bounds of the gateway; ``more`` are DoorOptions."""
        settings = self.services.settings.server
        bound = settings.host if ":" not in settings.host else f"[{settings.host}]"
        hosts = [*LOOPBACK_HOSTS, bound, f"{bound}:*", *settings.allowed_hosts]
        if not is_loopback(settings.host) and not settings.allowed_hosts:
            hosts = ["*"]  # bound to the network every caller shows a key, and nobody told us our names
        options = DoorOptions(
            allowed_hosts=hosts,
            allowed_origins=[*LOOPBACK_ORIGINS, *settings.allowed_origins],
            max_body=settings.max_body,
            **more,
        )
        return MCPDoor(tools, options, env=self.services.env)

    def doors(self) -> Sequence[Door]:
        services = self.services
        front = self.door(GatewayTools(services.gateway), principal=services.doorkeeper, instructions=INSTRUCTIONS)
        agents = AgentEndpoints(services, self.connector, front, self.door)
        lane = FastLane(front, env=services.env)

        def lane_of(path: str) -> Lane | None:
            if path == "/mcp":
                return lane
            return agents if agent_in(path) is not None else None

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with front.running(), agents.running():
                yield

        return [
            Door(
                routes=[
                    Path_("/mcp", front.asgi(), methods=_METHODS),
                    Path_("/agents/{agent}/mcp", agents, methods=_METHODS),
                ],
                app=_Switch(lane, agents),
                takes=lambda scope: scope["method"] in _METHODS and lane_of(scope["path"]) is not None,
                checks_hosts=True,
                lane=lane_of,
                running=running,
                about=[("MCP", "/mcp, and /agents/ID/mcp for one agent alone")],
            )
        ]

    async def serve_stdio(self) -> None:
        tools = GatewayTools(self.services.gateway, "stdio")
        await self.door(tools, principal=lambda scope: LOCAL, instructions=INSTRUCTIONS).stdio()


class _Switch:
    """``/mcp`` to the lane of the gateway, every other path to the doors of agents."""

    def __init__(self, lane: FastLane, agents: AgentEndpoints):
        self._lane = lane
        self._agents = agents

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await (self._lane if scope["path"] == "/mcp" else self._agents)(scope, receive, send)


# The entries of a client's file


def _configured(name: str, entry: Any, credential: str | None) -> Route:
    if isinstance(entry, Mapping) and isinstance(entry.get("url"), str):
        header, reference = named_credential(credential or _header_credential(name, entry.get("headers") or {}))
        meta = {"secret_header": header} if header else {}
        return Route("mcp", check_query(entry["url"]), credential=reference, meta=meta)
    if isinstance(entry, Mapping) and isinstance(entry.get("command"), str):
        arguments = [str(argument) for argument in entry.get("args") or ()]
        environment = _environment(name, entry.get("env") or {})
        return _command_route([entry["command"], *arguments], environment, entry.get("cwd"), credential)
    raise SetupError(f'The server {name!r} has neither a "url" nor a "command".')


def _header_credential(name: str, headers: Mapping[str, Any]) -> str | None:
    """The one header that the route can carry, as a reference."""
    if not headers:
        return None
    if len(headers) > 1:
        raise SetupError(f"The server {name!r} wants several headers. Give the one that counts as --credential.")
    header, value = next(iter(headers.items()))
    bearer = header.lower() == "authorization" and str(value).lower().startswith("bearer ")
    reference = variable(str(value)[7:] if bearer else str(value))
    if reference is None:
        raise SetupError(
            f"The server {name!r} holds the secret of its header {header!r} itself. Put it into an environment "
            f'variable and write "{"Bearer " if bearer else ""}${{NAME}}" in its place.'
        )
    return f"env:{reference}" if bearer else f"{header}=env:{reference}"


def _environment(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key, value in given.items():
        reference = variable(str(value))
        named = _SECRET.search(key) or names_secret(key)
        if reference is None and (named or holds_secret(key, str(value))):
            raise SetupError(
                f"The server {name!r} holds the secret {key} itself, and secrets are not stored. Set {key} in the "
                f'environment of the gateway and write "{key}": "${{{key}}}".'
            )
        found[key] = f"env:{reference}" if reference is not None else str(value)
    return found


def _command_route(
    words: Sequence[str], environment: dict[str, str], folder: str | None, credential: str | None
) -> Route:
    # The gateway may run elsewhere than whoever adds the command.
    command = Command(words[0], tuple(check_words(list(words[1:]))), environment, folder or str(Path.cwd()))
    name, reference = named_credential(credential)
    if reference is not None and name is None:
        name = variable(reference)
        if name is None:
            raise SetupError("Say in which variable the program gets the credential: --credential NAME=REFERENCE.")
    return Route("mcp", command.address, credential=reference, meta={"secret_env": name} if name else {})
