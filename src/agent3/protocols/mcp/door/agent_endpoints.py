"""``/agents/{id}/mcp``: every registered agent behind an MCP door of its own.

A door is opened when somebody comes, and closed when nobody has come for a while or the agent is gone. A caller that
may not call an agent is told what it would be told of one that does not exist.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from weakref import WeakSet

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent3.errors import Agent3Error, AgentNotFound, Unavailable
from agent3.gateway.lanes import HungUp, Reply
from agent3.gateway.protocol import Services
from agent3.model import Agent, Principal, encode
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.door.agent_tools import AgentTools, callable_by, how_to_answer, offers, route_of
from agent3.protocols.mcp.door.door import MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane, Visitor
from agent3.protocols.mcp.door.passthrough import Passthrough
from agent3.protocols.mcp.door.toolset import ToolSet

__all__ = ["AgentEndpoints", "agent_in"]

log = logger("server")

PREFIX, SUFFIX = "/agents/", "/mcp"
MOST = 200
"""Doors that stay open without anybody inside."""
IDLE = 600.0
"""Seconds after which a door that nobody used is closed."""
_LOOK = 0.25
"""Seconds between two looks at what became of the agents whose doors are open."""
_STAY = 60.0
"""Seconds between two words to a server that it is still being listened to."""
_APART = 1.0
"""Least seconds between two questions to one server, also to one that says without end that it changed."""
_FAREWELL = 5.0
_KNOWN = 1_000
"""Callers of one door that are remembered."""
_CALLER = "agent3.caller"

_Who = tuple[str, frozenset[str]]
"""All of a caller that rules can ask for."""
Make = Callable[..., MCPDoor]
"""Makes the MCP door of a tool set, with the hosts and bounds of the gateway."""


def agent_in(path: str) -> str | None:
    """The agent that a path names; None for a path that is no agent's door."""
    if not (path.startswith(PREFIX) and path.endswith(SUFFIX)):
        return None
    name = path[len(PREFIX) : -len(SUFFIX)]
    return name if name and "/" not in name else None


class AgentEndpoints:
    """All doors of agents, as one ASGI app. To be used within ``running()``.

    ``front`` is the door of the gateway itself: what is refused at every door alike is refused in its words.
    """

    def __init__(
        self,
        services: Services,
        connector: MCPConnector,
        front: MCPDoor,
        make: Make,
        *,
        most: int = MOST,
        idle: float = IDLE,
    ):
        self.env = services.env
        self.connector = connector
        self._services = services
        self._gateway = services.gateway
        self._front = front
        self._make = make
        self._most = most
        self._idle = idle
        self._open: OrderedDict[str, _Door] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve meanwhile; leaving it closes every door."""
        self._running = True
        keeper = asyncio.get_running_loop().create_task(self._keep(), name="agent doors")
        try:
            yield
        finally:
            self._running = False
            keeper.cancel()
            for agent in list(self._open):
                self._close(agent, "the gateway stops")
            await asyncio.wait({keeper, *self._tasks}, timeout=_FAREWELL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = self._services.doorkeeper(scope)
            if not self._running or not self._front.answers_to(_host(scope)):
                raise Unavailable("Not here, or not now.")
        except Agent3Error:
            await self._front.serve(scope, receive, send)
            return
        try:
            door = await self._door(agent_in(scope["path"]) or "", principal)
        except Agent3Error as error:
            await _refusal(error)(scope, receive, send)
            return
        scope[_CALLER] = principal
        with door.held():
            await door.serve(scope, receive, send)

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a whole POST, by the fast lane of the agent's door; None for what has to come by ASGI."""
        name = agent_in(scope["path"]) or ""
        try:
            principal = self._services.doorkeeper(scope)
            if not self._running:
                return None
            door = self._open.get(name)
            if door is None or not door.knows(_who(principal), self._gateway.directory.peek(name)):
                door = await self._door(name, principal)
                door.remember(principal)
        except Agent3Error:
            return None
        self._open.move_to_end(name)
        scope[_CALLER] = principal
        return await door.reply(scope, body, hung_up)

    def guest(self, scope: Scope) -> _Guest | None:
        """Whoever was answered just now, for further requests with the same headers."""
        name = agent_in(scope["path"]) or ""
        door = self._open.get(name)
        if door is None or _CALLER not in scope or (visitor := door.lane.visitor(scope)) is None:
            return None
        guest = _Guest(self, name, door, _caller(scope), visitor)
        door.guests.add(guest)
        return guest

    def admits(self, name: str, door: _Door, who: _Who) -> bool:
        """Whether the door that somebody was let in by is still open to them, and to the agent as it is now."""
        if self._open.get(name) is not door or not self._running:
            return False
        self._open.move_to_end(name)
        return door.knows(who, self._gateway.directory.peek(name))

    # Doors

    async def _door(self, name: str, principal: Principal) -> _Door:
        agent = await self._agent(name, principal)
        door = self._open.get(name)
        if door is not None and not door.fits(agent):
            self._close(name, "its agent is another one now")
            door = None
        if door is None:
            door = self._open[name] = self._begin(agent)
            self._evict()
        self._open.move_to_end(name)
        door.renew(agent)
        return door

    async def _agent(self, name: str, principal: Principal) -> Agent:
        """The agent, if this caller may know of it."""
        gateway = self._gateway
        return await gateway.agent(principal, name, lambda agent: callable_by(gateway, agent, principal))

    def _begin(self, agent: Agent) -> _Door:
        door = _Door(self, agent)
        task = asyncio.get_running_loop().create_task(door.live(), name=f"door of {agent.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        log.debug("the door of %s is open", agent.id)
        return door

    def _close(self, name: str, why: str) -> None:
        door = self._open.pop(name)
        door.closing.set()
        for guest in door.guests:
            guest.leave()
        log.debug("the door of %s is closed: %s", name, why)

    def _evict(self) -> None:
        """Close what was not used for longest; a door with somebody inside stays."""
        idle = [name for name, door in self._open.items() if not door.busy]
        for name in idle[: max(0, len(self._open) - self._most)]:
            if name != next(reversed(self._open)):
                self._close(name, "too many are open")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for name in list(self._open):
                try:
                    await self._look_after(name)
                except Agent3Error as wrong:
                    log.warning("the door of %s could not be looked after: %s", name, wrong)

    async def _look_after(self, name: str) -> None:
        door = self._open.get(name)
        if door is None:
            return
        try:
            agent = await self._gateway.directory.get(name)
        except AgentNotFound:
            self._close(name, "its agent is gone")
            return
        if not door.fits(agent):
            self._close(name, "its agent is another one now")
        elif not door.busy and door.used < self.now() - self._idle:
            self._close(name, "nobody came")
        else:
            door.renew(agent)
            door.stay()

    # What a door is made of

    def passthrough(self, agent: Agent, heard: Callable[[str, dict[str, Any]], None]) -> Passthrough | None:
        """What shows the server of an agent; None for one that is no MCP server."""
        route = route_of(agent)
        return None if route is None else Passthrough(self.connector, route, self._services.vault, heard)

    def tools(self, agent: Agent, passthrough: Passthrough | None) -> AgentTools:
        """The tool set of an agent."""
        return AgentTools(self._gateway, agent, passthrough)

    def made(self, tools: ToolSet, agent: Agent) -> MCPDoor:
        """The MCP door of an agent, under the name of its server."""
        info = _info(agent)
        return self._make(
            tools,
            name=info["name"],
            version=info["version"],
            about=info,
            instructions=_instructions(agent),
            principal=_caller,
            list_ttl=0.0,
            hint=how_to_answer(agent.id),
        )

    async def renewed(self, address: str) -> None:
        """Have the directory renewed with what the server at an address can do now, and its doors with it."""
        for agent in await self._services.renewals.renew(address):
            if (door := self._open.get(agent.id)) is not None and door.fits(agent):
                door.renew(await self._gateway.directory.get(agent.id))

    def now(self) -> float:
        """Seconds of the gateway's clock."""
        return self.env.monotonic()


class _Guest:
    """Who was let in to an agent's door, and comes again with the same headers."""

    def __init__(self, doors: AgentEndpoints, name: str, door: _Door, principal: Principal, visitor: Visitor):
        self._doors = doors
        self._name = name
        self._who = _who(principal)
        self._inside: tuple[_Door, Visitor] | None = (door, visitor)

    def leave(self) -> None:
        """The door is closed: nothing of it is kept because somebody might come again."""
        self._inside = None

    async def reply(self, told: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a request with this body; None where the guest has to be let in anew."""
        if self._inside is None or not self._doors.admits(self._name, self._inside[0], self._who):
            return None
        door, visitor = self._inside
        door.busy += 1
        door.used = self._doors.now()
        try:
            return await visitor.reply(told, body, hung_up)
        finally:
            door.busy -= 1


class _Door:
    """One agent's door, while it is open. ``busy`` counts the requests inside, open streams among them."""

    def __init__(self, doors: AgentEndpoints, agent: Agent):
        self._doors = doors
        self._face = _face(agent)
        self._route = route_of(agent)
        self._passthrough = doors.passthrough(agent, self.heard)
        self._tools = doors.tools(agent, self._passthrough)
        self._mcp = doors.made(self._tools, agent)
        self.lane = FastLane(self._mcp, env=doors.env)
        self._opened = asyncio.Event()
        self._stayed = float("-inf")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again = False
        self.closing = asyncio.Event()
        self.busy = 0
        self.used = doors.now()
        self._known: set[_Who] = set()
        self.guests: WeakSet[_Guest] = WeakSet()

    async def live(self) -> None:
        """Be open until told to close."""
        leave = self._doors.connector.listen(self._route.address, self.heard) if self._route is not None else None
        try:
            async with self._mcp.running():
                self._opened.set()
                await self.closing.wait()
        finally:
            self._opened.set()
            if leave is not None:
                leave()
            for task in list(self._tasks.values()):
                task.cancel()
            if self._passthrough is not None:
                await self._passthrough.aclose()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep it open meanwhile, unless its agent goes."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used = self._doors.now()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; the first ones wait a moment until it is open."""
        if not self._opened.is_set():
            await self._opened.wait()
        await self.lane(scope, receive, send)

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """Likewise without ASGI."""
        self.busy += 1
        self.used = self._doors.now()
        try:
            return await self.lane.reply(scope, body, hung_up)
        finally:
            self.busy -= 1

    def knows(self, who: _Who, agent: Agent | None) -> bool:
        """Whether this caller was let in to the agent as it is now; rules do not change while a gateway runs."""
        return agent is self._tools.agent and who in self._known

    def remember(self, principal: Principal) -> None:
        """This caller was let in."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known.add(_who(principal))

    def fits(self, agent: Agent) -> bool:
        """Whether this door still says of the agent what is true; its tools may change behind it."""
        return agent is self._tools.agent or (_face(agent), route_of(agent)) == (self._face, self._route)

    def renew(self, agent: Agent) -> None:
        """Show the agent as it is now, and tell clients when its tools are others."""
        if agent is self._tools.agent:
            return
        self._known.clear()
        if self._tools.renew(agent):
            self._mcp.changed("tools")

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """News of the server. Changed tools are told when the directory has them, which is asked for here."""
        if method == "notifications/tools/list_changed":
            self._again = True
            self._spawn("renewal", self._renewal)
        elif method == "notifications/prompts/list_changed":
            self._mcp.changed("prompts")
        elif method == "notifications/resources/list_changed":
            self._mcp.changed("resources")
        elif method == "notifications/resources/updated" and isinstance(params.get("uri"), str):
            self._mcp.changed("resources", params["uri"])

    def stay(self) -> None:
        """Keep the connection to the server while somebody is here, who may be waiting for its news."""
        if self._passthrough is None or not self.busy or self._doors.now() - self._stayed < _STAY:
            return
        self._stayed = self._doors.now()
        self._spawn("connection", self._passthrough.connect)

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something beside the requests, unless it is being done already."""
        if name not in self._tasks:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(_quietly(work()))
            task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _renewal(self) -> None:
        """Ask the server at once what it can do now. Who waits here should not wait for the gateway's own round."""
        while self._again and self._route is not None:
            self._again = False
            await self._doors.renewed(self._route.address)
            await asyncio.sleep(_APART)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(Agent3Error):  # whoever calls will hear of it
        await work


def _face(agent: Agent) -> bytes:
    """What a door says of its agent once and for all."""
    return encode([_info(agent), _instructions(agent), sorted(offers(agent))])


def _info(agent: Agent) -> dict[str, Any]:
    told = agent.card.get("serverInfo") if agent.card.get("protocol") == "mcp" else None
    if not isinstance(told, dict):
        return {"name": agent.id, "version": agent.version, "title": agent.name}
    info = {key: one for key, one in told.items() if isinstance(one, str) or key == "icons"}
    return {"icons": [], **info, "name": info.get("name", agent.id), "version": info.get("version", "")}


def _instructions(agent: Agent) -> str | None:
    if agent.card.get("protocol") != "mcp":
        return agent.description or None
    told = agent.card.get("instructions")
    return told if isinstance(told, str) else None


def _who(principal: Principal) -> _Who:
    return principal.id, principal.scopes


def _caller(scope: Scope) -> Principal:
    principal = scope[_CALLER]
    assert isinstance(principal, Principal)
    return principal


def _host(scope: Scope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")


def _refusal(error: Agent3Error) -> Response:
    fault = {"code": error.rpc_code, "message": error.message, "data": error.to_dict()}
    body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
    return Response(body, error.http_status, media_type="application/json")
