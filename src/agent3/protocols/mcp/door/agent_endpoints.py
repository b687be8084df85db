"""``/agents/{id}/mcp``: every registered agent behind an MCP door of its own.

A door is opened with its first request, and closed when it has been idle for a while or its agent is gone. A caller
that may not call an agent gets the same answer as for one that does not exist.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from weakref import WeakSet

from starlette.types import Receive, Scope, Send

from agent3.errors import Agent3Error, AgentNotFound, Unavailable
from agent3.gateway.lanes import HungUp, Reply
from agent3.gateway.protocol import Services
from agent3.model import LOCAL, Agent, Principal, encode
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.channels import OnNotification
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.door.agent_tools import AgentTools, callable_by, how_to_answer, offers, route_of
from agent3.protocols.mcp.door.door import MCPDoor, refusal
from agent3.protocols.mcp.door.fast_lane import FastLane, Visitor
from agent3.protocols.mcp.door.passthrough import Passthrough
from agent3.protocols.mcp.door.toolset import ToolSet

__all__ = ["AgentEndpoints", "agent_in"]

log = logger("server")

PREFIX, SUFFIX = "/agents/", "/mcp"
MOST = 200
"""Doors that stay open without a request inside."""
IDLE = 600.0
"""Seconds after which an unused door is closed."""
_LOOK = 0.25
"""Seconds between two checks of the agents whose doors are open."""
_RECONNECT = 60.0
"""Seconds between two checks that the server of a door in use is still connected."""
_APART = 1.0
"""Least seconds between two renewals from one server, even if it reports changes without end."""
_FAREWELL = 5.0
_TOLD = ("notifications/message", "notifications/elicitation/complete")
"""Notifications that belong to no request and are for one caller."""
_MOST_LINES = 256
"""How many of these may wait to be passed on; older ones are dropped."""
_KNOWN = 1_000
"""Callers of one door that are remembered."""
_CALLER = "agent3.caller"

_Who = tuple[str, frozenset[str], str | None]
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
        keeper = asyncio.get_running_loop().create_task(self._check_doors(), name="agent doors")
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
            host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
            if not self._running or not self._front.answers_to(host):
                raise Unavailable("Not here, or not now.")
        except Agent3Error:
            await self._front.serve(scope, receive, send)
            return
        try:
            door = await self._door(agent_in(scope["path"]) or "", principal)
        except Agent3Error as error:
            await refusal(error)(scope, receive, send)
            return
        scope[_CALLER] = principal
        with door.hold():
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
        """The caller that was answered just now, for further requests with the same headers."""
        name = agent_in(scope["path"]) or ""
        door = self._open.get(name)
        if door is None or _CALLER not in scope or (visitor := door.lane.visitor(scope)) is None:
            return None
        guest = _Guest(self, name, door, _caller(scope), visitor)
        door.guests.add(guest)
        return guest

    def admits(self, name: str, door: _Door, who: _Who) -> bool:
        """Whether the door that a caller was let in by is still open to it, and to the agent as it is now."""
        if self._open.get(name) is not door or not self._running:
            return False
        self._open.move_to_end(name)
        return door.knows(who, self._gateway.directory.peek(name))

    # Doors

    async def _door(self, name: str, principal: Principal) -> _Door:
        """The door of an agent, opened if necessary; AgentNotFound if this caller may not know of the agent."""
        gateway = self._gateway
        agent = await gateway.agent(principal, name, lambda agent: callable_by(gateway, agent, principal))
        door = self._open.get(name)
        if door is not None and not door.fits(agent):
            self._close(name, "another agent has taken its id")
            door = None
        if door is None:
            door = self._open[name] = _Door(self, agent)
            task = asyncio.get_running_loop().create_task(door.live(), name=f"door of {agent.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            log.debug("the door of %s is open", agent.id)
            # Close those that were not used for longest; the new one is last, and one with requests inside stays.
            idle = [other for other, opened in self._open.items() if not opened.busy and other != name]
            for other in idle[: max(0, len(self._open) - self._most)]:
                self._close(other, "too many are open")
        self._open.move_to_end(name)
        door.renew(agent)
        return door

    def _close(self, name: str, why: str) -> None:
        door = self._open.pop(name)
        door.closing.set()
        for guest in door.guests:
            guest.leave()
        log.debug("the door of %s is closed: %s", name, why)

    async def _check_doors(self) -> None:
        """Close doors that are idle, or whose agent is gone or another one; renew all others."""
        while True:
            await asyncio.sleep(_LOOK)
            for name, door in list(self._open.items()):
                if self._open.get(name) is not door:
                    continue  # closed or replaced while another one was checked
                try:
                    agent = await self._gateway.directory.get(name)
                    if self._open.get(name) is not door:
                        continue
                    if not door.fits(agent):
                        self._close(name, "another agent has taken its id")
                    elif not door.is_in_use() and door.used < self.now() - self._idle:
                        self._close(name, "it was not used")
                    else:
                        door.renew(agent)
                        door.keep_connected()
                except AgentNotFound:
                    if self._open.get(name) is door:
                        self._close(name, "its agent was removed")
                except Agent3Error as error:
                    log.warning("the door of %s could not be checked: %s", name, error)

    # What a door is made of

    def passthrough(self, agent: Agent, on_notification: OnNotification) -> Passthrough | None:
        """What shows the server of an agent; None for one that is no MCP server."""
        route = route_of(agent)
        return None if route is None else Passthrough(self.connector, route, self._services.vault, on_notification)

    def tools(self, agent: Agent, passthrough: Passthrough | None) -> AgentTools:
        return AgentTools(self._gateway, agent, passthrough)

    def make_door(self, tools: ToolSet, agent: Agent) -> MCPDoor:
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

    async def renew_directory(self, address: str) -> None:
        """Have the directory renewed with what the server at an address can do now, and its doors with it."""
        for agent in await self._services.renewals.renew(address):
            if (door := self._open.get(agent.id)) is not None and door.fits(agent):
                door.renew(await self._gateway.directory.get(agent.id))

    def now(self) -> float:
        return self.env.monotonic()


class _Guest:
    """Who was let in to an agent's door, and comes again with the same headers."""

    def __init__(self, doors: AgentEndpoints, name: str, door: _Door, principal: Principal, visitor: Visitor):
        self._doors = doors
        self._name = name
        self._who = _who(principal)
        self.who = principal.id
        self._inside: tuple[_Door, Visitor] | None = (door, visitor)

    def leave(self) -> None:
        """The door is closed: nothing of it is kept for a caller that might come again."""
        self._inside = None

    async def reply(self, scope: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a request with this body; None where the guest has to be let in anew."""
        if self._inside is None:
            return None
        door, visitor = self._inside
        if not self._doors.admits(self._name, door, self._who):
            return None
        door.busy += 1
        door.was_used = True
        try:
            return await visitor.reply(scope, body, hung_up)
        finally:
            door.busy -= 1


class _Door:
    """One agent's door, while it is open. ``busy`` counts the requests inside, open streams among them."""

    was_used = False
    """Since it was last looked at, which is when ``used`` is set: not every request reads the clock for it."""

    def __init__(self, doors: AgentEndpoints, agent: Agent):
        self._doors = doors
        self._identity = _identity(agent)
        self._route = route_of(agent)
        self._passthrough = doors.passthrough(agent, self.on_notification)
        self._tools = doors.tools(agent, self._passthrough)
        self._mcp = doors.make_door(self._tools, agent)
        self.lane = FastLane(self._mcp, env=doors.env)
        self._opened = asyncio.Event()
        self._stayed = float("-inf")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again = False
        self._lines: deque[tuple[str, str, dict[str, Any]]] = deque(maxlen=_MOST_LINES)
        self.closing = asyncio.Event()
        self.busy = 0
        self.used = doors.now()
        self._known: set[_Who] = set()
        self.guests: WeakSet[_Guest] = WeakSet()

    async def live(self) -> None:
        """Be open until ``closing`` is set."""
        leave = (
            self._doors.connector.listen(self._route.address, self.on_notification) if self._route is not None else None
        )
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
    def hold(self) -> Iterator[None]:
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

    def is_in_use(self) -> bool:
        """Whether requests are inside, or were since the last look."""
        if self.was_used:
            self.was_used, self.used = False, self._doors.now()
        return self.busy > 0

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
        return agent is self._tools.agent or (_identity(agent), route_of(agent)) == (self._identity, self._route)

    def renew(self, agent: Agent) -> None:
        """Show the agent as it is now, and tell clients when its tools are others."""
        if agent is self._tools.agent:
            return
        self._known.clear()
        if self._tools.renew(agent):
            self._mcp.notify_change("tools")

    def on_notification(self, method: str, params: dict[str, Any], caller: str = "") -> None:
        """Pass on news of the server, to one ``caller`` if it came in a session of its own.

        That the tools changed is told once the directory has been renewed.
        """
        if method == "notifications/tools/list_changed":
            self._again = True
            self._spawn("renewal", self._renew_directory)
        elif method == "notifications/prompts/list_changed":
            self._mcp.notify_change("prompts")
        elif method == "notifications/resources/list_changed":
            self._mcp.notify_change("resources")
        elif method == "notifications/resources/updated" and isinstance(params.get("uri"), str):
            self._mcp.notify_change("resources", params["uri"], caller)
        elif method in _TOLD and self._mcp.has_session(caller or LOCAL.id):
            self._lines.append((caller or LOCAL.id, method, params))
            self._spawn("lines", self._pass_lines)

    async def _pass_lines(self) -> None:
        """Pass on what the server says outside of any call."""
        assert self._passthrough is not None
        while self._lines:
            lines = list(self._lines)
            self._lines.clear()
            cleaned = await self._passthrough.clean([params for _, _, params in lines])
            for (caller, method, _), params in zip(lines, cleaned, strict=True):
                self._mcp.tell(caller, method, params)

    def keep_connected(self) -> None:
        """Keep the connection to the server while clients are here, who may be waiting for its notifications."""
        if self._passthrough is None or not self.busy or self._doors.now() - self._stayed < _RECONNECT:
            return
        self._stayed = self._doors.now()
        self._spawn("connection", self._passthrough.connect)

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something beside the requests, unless it is being done already."""

        async def run() -> None:
            with suppress(Agent3Error):  # the next caller gets the same error
                await work()

        if name not in self._tasks:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(run())
            task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _renew_directory(self) -> None:
        """Ask the server at once what it can do now: clients here should not wait for the gateway's own round."""
        while self._again and self._route is not None:
            self._again = False
            await self._doors.renew_directory(self._route.address)
            # Also where the list is what it was, or stays so until a change is approved: the server has said so.
            self._mcp.notify_change("tools")
            await asyncio.sleep(_APART)


def _identity(agent: Agent) -> bytes:
    """What a door says of its agent once and for all."""
    return encode([_info(agent), _instructions(agent), sorted(offers(agent))])


def _info(agent: Agent) -> dict[str, Any]:
    stated = agent.card.get("serverInfo") if agent.card.get("protocol") == "mcp" else None
    if not isinstance(stated, dict):
        return {"name": agent.id, "version": agent.version, "title": agent.name}
    info = {key: value for key, value in stated.items() if isinstance(value, str) or key == "icons"}
    return {"icons": [], **info, "name": info.get("name", agent.id), "version": info.get("version", "")}


def _instructions(agent: Agent) -> str | None:
    if agent.card.get("protocol") != "mcp":
        return agent.description or None
    instructions = agent.card.get("instructions")
    return instructions if isinstance(instructions, str) else None


def _who(principal: Principal) -> _Who:
    return principal.id, principal.scopes, principal.tenant


def _caller(scope: Scope) -> Principal:
    principal = scope[_CALLER]
    assert isinstance(principal, Principal)
    return principal
