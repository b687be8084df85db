"""MCP servers elsewhere, as the documented client sees them: each has a connection of its own, its tools and a status.

Every call goes through the core and all its steps. This module knows how a server is reached and what it offers; what
becomes of a result is the client's business. It loads the SDK, so it is imported on first use.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.calls.outcomes import is_refusal
from agent3.definitions import ToolDefinition, ToolParameter
from agent3.errors import Agent3Error, AgentNotFound, CapabilityNotFound, SetupError, TargetError
from agent3.gateway import Caller as GatewayCaller
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Answer, Call, Capability, Failed, Outcome, Principal, Route, Traits, agent_id, place_of
from agent3.observe.logs import get as logger
from agent3.protocols.functions.standalone import Standalone
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.processes import PREFIX, Command

__all__ = ["RemoteServer", "parse_route"]

log = logger("mcp.client")

_DOWN = frozenset({"unavailable", "circuit_open"})
_REFUSED_BY_SERVER = frozenset({"rate_limited", "capability_not_found", "invalid_input"})
"""Codes of a server that refuses before its tool runs: a tool that failed is a result, with a code of its own."""


# Addresses


def parse_route(
    target: str | Sequence[str],
    *,
    credential: str | None = None,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Route:
    """The route to a server: ``http(s)://…``, or a command as one text or as a list of words.

    ``credential`` is a reference such as ``env:NAME``, preceded by the header or variable it goes into where that is
    not the usual one: ``X-API-Key=env:NAME``. ``headers`` says the same as ``{"X-API-Key": "env:NAME"}``.
    """
    if credential is None and headers:
        if len(headers) > 1:
            raise SetupError(f"Only one header can contain a secret, got {', '.join(headers)}. Pass only that one.")
        header, value = next(iter(headers.items()))
        bearer = header.lower() == "authorization" and value.lower().startswith("bearer ")
        credential = value[7:] if bearer else value
        if not credential.startswith("env:"):
            raise SetupError(f"The header {header!r} must hold a reference such as 'env:NAME', not the secret itself.")
        credential = credential if bearer else f"{header}={credential}"
    name, reference = None, credential
    if credential is not None:
        before, equals, after = credential.partition("=")
        if equals and ":" not in before:
            name, reference = before, after
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        if env or cwd:
            raise SetupError("env and cwd are for commands; a server at a URL has its own.")
        return Route("mcp", target, credential=reference, meta={"secret_header": name} if name else {})
    if headers:
        raise SetupError(
            "headers are for a server at a URL; pass a secret to a command with credential='NAME=env:NAME'."
        )
    if isinstance(target, str) and "://" in target.split(" ", 1)[0]:
        raise SetupError(f"{target.split('://')[0]!r} addresses are not supported; use http://, https:// or a command.")
    try:
        words = shlex.split(target) if isinstance(target, str) else [str(word) for word in target]
    except ValueError as error:
        raise SetupError(f"The command cannot be parsed: {error}. Check its quotes, or pass it as a list.") from None
    if not words:
        raise SetupError("The command is empty. Pass a URL, a command, or an MCPServer.")
    command = Command(words[0], tuple(words[1:]), dict(env or {}), cwd)
    variable = name or (reference.partition(":")[2] if reference else None)
    return Route("mcp", command.address, credential=reference, meta={"secret_env": variable} if variable else {})


# Servers


class _RemoteConnector:
    """The connector of protocol ``mcp`` in one core: hands every call to the connection of its server."""

    traits: ClassVar[Traits] = MCPConnector.traits

    def __init__(self) -> None:
        self.servers: dict[str, RemoteServer] = {}

    async def describe(self, address: str) -> Agent:
        """What a server says of itself, over a temporary connection."""
        connector = MCPConnector()
        try:
            return await connector.describe(address)
        finally:
            await connector.aclose()

    async def call(self, call: Call) -> Outcome:
        server = self.servers.get(call.agent)
        if server is None:
            error = AgentNotFound(
                f"The MCP server {call.agent!r} is not connected. Connect to it with connect_to_server."
            )
            error.sent = False
            raise error
        return await server.connector().call(call)

    async def aclose(self) -> None:
        """Close all connections; a server that is used again gets a new one."""
        await asyncio.gather(*(server.hang_up() for server in list(self.servers.values())))


class RemoteServer:
    """One MCP server elsewhere. Its coroutines belong to the loop of the core; the rest is safe from any thread.

    A server that is lost later keeps its tools and has the status ``unavailable`` until it is reached again.
    """

    def __init__(self, core: Standalone, route: Route, name: str | None = None):
        self._core = core
        self._name = name
        self.status: Literal["connected", "unavailable", "disconnected"] = "disconnected"
        self.error: str | None = None
        self._route = replace(route, meta={**route.meta, "registered": True})
        self._agent = Agent(id="", name=place_of(route.address))
        self._tools: tuple[ToolDefinition, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._connector: MCPConnector | None = None
        self._switch: _RemoteConnector | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._is_stale = False

    @property
    def kind(self) -> str:
        """How it is reached."""
        return "stdio" if self._route.address.startswith(PREFIX) else "http"

    @property
    def address(self) -> str:
        """Where it is, fit to be shown."""
        return place_of(self._route.address)

    @property
    def title(self) -> str:
        """What it calls itself."""
        return self._agent.name

    def tools(self) -> tuple[ToolDefinition, ...]:
        return self._tools

    def has(self, name: str) -> bool:
        return name in self._names

    def is_refusal(self, failed: Failed) -> bool:
        """Whether a call was refused, here or by the server, before the tool ran."""
        return is_refusal(failed) or failed.code in _REFUSED_BY_SERVER

    async def connect(self) -> None:
        """Ask what it can do and make that callable; raises what keeps it from being reached."""
        try:
            described = await self._describe_endpoint()
        except BaseException:
            await self.hang_up()
            raise
        switch = self._core.reach("mcp", _RemoteConnector())
        if not isinstance(switch, _RemoteConnector):
            raise SetupError("This core already has another connector for MCP; give the client its own core.")
        name = self._name or described.name
        self._update(self._core.adopt(replace(described, id=agent_id(name, "mcp-server"), name=name)))
        self._switch = switch
        switch.servers[self._agent.id] = self

    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome:
        capability = self._agent.capability(name)
        if capability is None:
            raise CapabilityNotFound(f"Server {self.title!r} no longer has a tool {name[:100]!r}.")
        outcome = await self._core.call_async(self._agent, capability, dict(given), principal, **options)
        is_down = isinstance(outcome, Failed) and outcome.code in _DOWN
        self._set_status(outcome.message if isinstance(outcome, Failed) and is_down else None)
        return outcome

    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome:
        """The next turn of a call that asked something."""
        return await (await self._core.gateway()).answer(GatewayCaller(principal), job, answers)

    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome:
        """The outcome of a call that runs at the server, once it has ended or the time is over."""
        return await (await self._core.gateway()).wait(GatewayCaller(principal), job, seconds)

    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        """The bytes of a large result and their media type; NotFound for what is not this caller's."""
        stored = await self._core.kept(principal, handle)
        return stored.body, stored.media_type

    async def refresh(self) -> None:
        """Ask again what it can do. If it cannot be reached, it keeps its tools and its status says so."""
        try:
            now = replace(await self._describe(), id=self._agent.id, name=self._agent.name)
            self._update(self._core.renew(now))
        except Agent3Error as error:
            self._set_status(error.message)

    async def disconnect(self) -> None:
        """Close the connection and forget the server."""
        if self._switch is not None:
            self._switch.servers.pop(self._agent.id, None)
            self._core.disown(self._agent)
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection, and the program at its end."""
        self.status = "disconnected"
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.wait([refreshing])
        connector, self._connector = self._connector, None
        if connector is not None:
            await connector.aclose()

    def connector(self) -> MCPConnector:
        if self._connector is None:
            self._connector = MCPConnector(on_change=self._on_change)
        return self._connector

    async def _describe_endpoint(self) -> Agent:
        """Describe it at its address, or at ``/mcp`` of a bare site: people often give the site instead."""
        try:
            return await self._describe()
        except TargetError:
            place = urlsplit(self._route.address)
            if self.kind != "http" or place.path not in ("", "/"):
                raise
            before = self._route
            self._route = replace(before, address=place._replace(path="/mcp").geturl())
            try:
                return await self._describe()
            except TargetError:
                self._route = before
            raise

    async def _describe(self) -> Agent:
        reference = self._route.credential
        secret = await EnvironmentVault().get(reference) if reference is not None else None
        return await self.connector().describe(self._route.address, secret=secret, route=self._route)

    def _update(self, agent: Agent) -> None:
        capabilities: tuple[Capability, ...] = agent.capabilities
        self._agent = agent
        self._tools = tuple(map(_to_definition, capabilities))
        self._names = frozenset(capability.name for capability in capabilities)
        self._set_status(None)

    def _set_status(self, error: str | None) -> None:
        before, self.status = self.status, "unavailable" if error else "connected"
        self.error = error
        if error and before == "connected":
            log.warning("%s: %s", self.title, error)

    def _on_change(self, address: str) -> None:
        """Refresh after the server said that its lists changed; several such notes at once are one reason."""
        self._is_stale = True
        if self._refreshing is None or self._refreshing.done():

            async def refresh_while_stale() -> None:
                while self._is_stale:
                    self._is_stale = False
                    await self.refresh()

            self._refreshing = asyncio.get_running_loop().create_task(refresh_while_stale())


def _to_definition(capability: Capability) -> ToolDefinition:
    """A remote tool. Name and schema stay as given: our rules for our own tools do not apply to it."""
    schema = capability.input_schema
    properties, required = schema.get("properties"), schema.get("required")
    parameters = []
    for name, field in properties.items() if isinstance(properties, dict) else ():
        if isinstance(field, dict):
            kind = field.get("type")
            parameter = ToolParameter.model_construct(
                name=name,
                type=kind if isinstance(kind, str) else "any",
                required=isinstance(required, list) and name in required,
                description=str(field.get("description") or ""),
                enum=field.get("enum"),
                default=field.get("default"),
                items=field.get("items"),
                properties=field.get("properties"),
            )
            parameters.append(parameter)
    return ToolDefinition.model_construct(
        name=capability.name,
        description=capability.description,
        parameters=parameters,
        returns=capability.output_schema,
        title=capability.title,
        version=capability.version,
        input_schema=schema,
        tags=list(capability.tags),
        examples=list(capability.examples),
        read_only=capability.hints.read_only,
        idempotent=capability.hints.idempotent,
        consequential=capability.hints.consequential,
        cache_ttl=capability.cache_ttl,
        cost=capability.price.call,
    )
