"""MCP servers elsewhere, as the documented client sees them: each has a line of its own, its tools, and a status.

Every call goes through the core and so through all its steps. This module knows how a server is reached and what it
offers; what becomes of a result is the client's business. It loads the SDK, so it is imported when first needed.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.calls.outcomes import is_refusal
from agent3.definitions import ToolDefinition, ToolParameter
from agent3.errors import Agent3Error, AgentNotFound, CapabilityNotFound, SetupError, TargetError
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Answer, Call, Capability, Failed, Outcome, Principal, Route
from agent3.observe.logs import get as logger
from agent3.protocols.functions.standalone import Standalone
from agent3.protocols.mcp.client.connector import MCPConnector, agent_id
from agent3.protocols.mcp.client.processes import PREFIX, Command
from agent3.protocols.mcp.client.upstream import place_of

__all__ = ["Remote", "route_to"]

log = logger("mcp.client")

_DOWN = frozenset({"unavailable", "circuit_open"})
_TURNED_AWAY = frozenset({"rate_limited", "capability_not_found", "invalid_input"})
"""Codes of a server that says no before its tool runs: a tool that failed is a result, with a code of its own."""


# How it is reached


def route_to(
    what: str | Sequence[str],
    *,
    credential: str | None = None,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Route:
    """The route to a server: ``http(s)://…``, or a command as one text or as a list of words.

    ``credential`` is a reference such as ``env:NAME``, before it the header or variable it goes into where that is
    not the usual one: ``X-API-Key=env:NAME``. ``headers`` says the same as ``{"X-API-Key": "env:NAME"}``.
    """
    given = credential if credential is not None else _header(headers or {})
    if isinstance(what, str) and what.startswith(("http://", "https://")):
        if env or cwd:
            raise SetupError("env and cwd are for a command; a server at a URL has its own.")
        header, reference = _named(given)
        return Route("mcp", what, credential=reference, meta={"secret_header": header} if header else {})
    if headers:
        raise SetupError("headers are for a server at a URL; give a command its secret by credential='NAME=env:NAME'.")
    words = _words(what)
    command = Command(words[0], tuple(words[1:]), dict(env or {}), cwd)
    variable, reference = _named(given)
    variable = variable or (reference.partition(":")[2] if reference else None)
    return Route("mcp", command.address, credential=reference, meta={"secret_env": variable} if variable else {})


def _words(what: str | Sequence[str]) -> list[str]:
    if isinstance(what, str) and "://" in what.split(" ", 1)[0]:
        raise SetupError(f"{what.split('://')[0]!r} addresses are not known; give http:// or https://, or a command.")
    try:
        words = shlex.split(what) if isinstance(what, str) else [str(one) for one in what]
    except ValueError as wrong:
        raise SetupError(f"The command cannot be read: {wrong}. Check its quotes, or give it as a list.") from None
    if not words:
        raise SetupError("An empty command was given. Give a URL, a command, or an MCPServer.")
    return words


def _header(headers: Mapping[str, str]) -> str | None:
    """The one header that a route can carry, as a credential."""
    if not headers:
        return None
    if len(headers) > 1:
        raise SetupError(f"One header can carry a secret, got {', '.join(headers)}. Give the one that counts.")
    name, value = next(iter(headers.items()))
    bearer = name.lower() == "authorization" and value.lower().startswith("bearer ")
    reference = value[7:] if bearer else value
    if not reference.startswith("env:"):
        raise SetupError(f"The header {name!r} must hold a reference such as 'env:NAME', not the secret itself.")
    return reference if bearer else f"{name}={reference}"


def _named(credential: str | None) -> tuple[str | None, str | None]:
    """``NAME=REFERENCE`` in two; a reference alone has no name."""
    if credential is None:
        return None, None
    name, found, reference = credential.partition("=")
    return (name, reference) if found and ":" not in name else (None, credential)


# The servers


class _Switch:
    """The connector of protocol ``mcp`` in one core: hands every call to the line of its agent."""

    def __init__(self) -> None:
        self.lines: dict[str, Remote] = {}

    async def describe(self, address: str) -> Agent:
        """What a server says of itself, over a line that ends with it."""
        connector = MCPConnector()
        try:
            return await connector.describe(address)
        finally:
            await connector.aclose()

    async def call(self, call: Call) -> Outcome:
        """One turn of a tool."""
        remote = self.lines.get(call.agent)
        if remote is None:
            gone = AgentNotFound(
                f"The MCP server {call.agent!r} is not connected. Connect to it with connect_to_server."
            )
            gone.sent = False
            raise gone
        return await remote.connector().call(call)

    async def aclose(self) -> None:
        """End all lines; a server that is used again gets a new one."""
        await asyncio.gather(*(remote.hang_up() for remote in list(self.lines.values())))


class Remote:
    """One MCP server elsewhere. It belongs to the loop of the core, but for what it tells of itself.

    A server that is lost later keeps its tools and shows ``unavailable``, until a call or a look at it succeeds.
    """

    def __init__(self, core: Standalone, route: Route, name: str | None = None):
        self.core = core
        self._name = name
        self.status: Literal["connected", "unavailable", "disconnected"] = "disconnected"
        self.error: str | None = None
        self._route = replace(route, meta={**route.meta, "registered": True})
        self._agent = Agent(id="", name=place_of(route.address))
        self._tools: tuple[ToolDefinition, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._connector: MCPConnector | None = None
        self._switch: _Switch | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._changed = False

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
        """The tools that it listed last."""
        return self._tools

    def has(self, name: str) -> bool:
        """Whether it listed a tool."""
        return name in self._names

    def refused(self, failed: Failed) -> bool:
        """Whether a call was refused, here or by the server, before the tool was asked."""
        return is_refusal(failed) or failed.code in _TURNED_AWAY

    async def connect(self) -> None:
        """Ask it what it can do and make that callable; raises what keeps it from being reached."""
        try:
            described = await self._first_that_answers()
        except BaseException:
            await self.hang_up()
            raise
        switch = self.core.reach("mcp", _Switch())
        if not isinstance(switch, _Switch):
            raise SetupError("This core has another connector for MCP; give the client a core of its own.")
        name = self._name or described.name
        self._know(self.core.adopt(replace(described, id=agent_id(name), name=name)))
        self._switch = switch
        switch.lines[self._agent.id] = self

    async def call(self, name: str, given: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome:
        """One call of a tool through all steps."""
        capability = self._agent.capability(name)
        if capability is None:
            raise CapabilityNotFound(f"Server {self.title!r} has no tool {name[:100]!r} any more.")
        outcome = await self.core.call_async(self._agent, capability, dict(given), principal, **options)
        down = isinstance(outcome, Failed) and outcome.code in _DOWN
        self._note(outcome.message if isinstance(outcome, Failed) and down else None)
        return outcome

    async def answer(self, job: str, answers: Mapping[str, Answer], principal: Principal) -> Outcome:
        """The next turn of a call that asked something."""
        return await (await self.core.house()).runner.answer(principal, job, answers)

    async def wait(self, job: str, principal: Principal, seconds: float) -> Outcome:
        """How a call stands that goes on at the server, when it has ended or the time is over."""
        return await (await self.core.house()).runner.wait(principal, job, seconds)

    async def artifact(self, handle: str, principal: Principal) -> tuple[bytes, str]:
        """The bytes of a large result and what they are; NotFound for what is not this caller's."""
        stored = await self.core.kept(principal, handle)
        return stored.body, stored.media_type

    async def look(self) -> None:
        """Ask it again what it can do. One that cannot be reached keeps what it had, and says so by its status."""
        try:
            now = replace(await self._describe(), id=self._agent.id, name=self._agent.name)
            self._know(self.core.renew(now))
        except Agent3Error as wrong:
            self._note(wrong.message)

    async def disconnect(self) -> None:
        """End the line and forget the server."""
        if self._switch is not None:
            self._switch.lines.pop(self._agent.id, None)
            self.core.disown(self._agent)
        await self.hang_up()

    async def hang_up(self) -> None:
        """End the line, and the program at its end."""
        self.status = "disconnected"
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait([renewing])
        connector, self._connector = self._connector, None
        if connector is not None:
            await connector.aclose()

    def connector(self) -> MCPConnector:
        """The line, opened if need be."""
        if self._connector is None:
            self._connector = MCPConnector(on_change=self._heard)
        return self._connector

    # Inside

    async def _first_that_answers(self) -> Agent:
        """People give the address of a site as often as that of its endpoint."""
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

    def _know(self, agent: Agent) -> None:
        capabilities: tuple[Capability, ...] = agent.capabilities
        self._agent = agent
        self._tools = tuple(map(_definition, capabilities))
        self._names = frozenset(one.name for one in capabilities)
        self._note(None)

    def _note(self, error: str | None) -> None:
        before, self.status = self.status, "unavailable" if error else "connected"
        self.error = error
        if error and before == "connected":
            log.warning("%s: %s", self.title, error)

    def _heard(self, address: str) -> None:
        """It says that its lists changed. Several words at once are one reason to ask."""
        self._changed = True
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while self._changed:
            self._changed = False
            await self.look()


def _definition(capability: Capability) -> ToolDefinition:
    """A tool of elsewhere. Its name and schema are as it gave them, so they are not judged by our rules for our own."""
    return ToolDefinition.model_construct(
        name=capability.name,
        description=capability.description,
        parameters=_parameters(capability.input_schema),
        returns=capability.output_schema,
        title=capability.title,
        version=capability.version,
        input_schema=capability.input_schema,
        tags=list(capability.tags),
        examples=list(capability.examples),
        read_only=capability.hints.read_only,
        idempotent=capability.hints.idempotent,
        consequential=capability.hints.consequential,
        cache_ttl=capability.cache_ttl,
        cost=capability.price.call,
    )


def _parameters(schema: Mapping[str, Any]) -> list[ToolParameter]:
    """The first level of a schema, for people who look at parameters."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    if not isinstance(properties, dict):
        return []
    return [_parameter(name, one, name in needed) for name, one in properties.items() if isinstance(one, dict)]


def _parameter(name: str, schema: Mapping[str, Any], required: bool) -> ToolParameter:
    kind = schema.get("type")
    return ToolParameter.model_construct(
        name=name,
        type=kind if isinstance(kind, str) else "any",
        required=required,
        description=str(schema.get("description") or ""),
        enum=schema.get("enum"),
        default=schema.get("default"),
        items=schema.get("items"),
        properties=schema.get("properties"),
    )
