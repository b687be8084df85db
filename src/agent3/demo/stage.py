"""The stage of the demo: starts its processes and websites beside a gateway, and takes one down when asked to.

The gateway serves before any of it is there; each part is hosted when it answers. Processes are ended by their id, and
end by themselves when the gateway does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

from msgspec.structs import replace

from agent3.client.client import AsyncClient
from agent3.demo import trains
from agent3.demo.interfaces import SITES, activities, airline
from agent3.demo.planner import TAG, make_planner
from agent3.directory.stand_ins import Definition
from agent3.errors import Agent3Error, AgentNotFound, SetupError, Unavailable
from agent3.gateway.protocol import Found
from agent3.model import Agent, Route
from agent3.observe.logs import get as logger
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.protocol import Functions
from agent3.protocols.nlweb.browser import installation
from agent3.protocols.nlweb.connector import agent_of
from agent3.server.apps import App
from agent3.server.build import Server
from agent3.testing.websites import Website

__all__ = ["ID", "stage"]

log = logger("demo")

ID = "demo-stage"

Part = Literal["flights", "hotels"]
_PROTOCOLS: dict[Part, str] = {"flights": "a2a", "hotels": "mcp"}
_START = 60.0
"""Seconds that a process has to come up."""
_END = 2.0
_LATER = 3.0
"""Seconds after which they are started: a machine with few cores has its first calls to answer before."""
_LOOK = 2.0
"""Seconds between two looks whether a browser has come."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")
"""Of the environment, what the processes get: no secret of the gateway."""


@asynccontextmanager
async def stage(server: Server, url: str) -> AsyncIterator[Sequence[str]]:
    """The travel demo beside a gateway; gives what its greeting says of it."""
    async with AsyncClient(url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")) as client:
        with Website(SITES / "airline") as flights, Website(SITES / "activities") as things:
            show = _Stage(server, flights.url, things.url)
            await show.host_local(make_planner(client), trains.app, show.make_agent())
            setting_up = asyncio.create_task(show.set_up())
            try:
                yield ("  agent3 demo    plans a trip with all kinds of agents, and stops one of them",)
            finally:
                setting_up.cancel()
                await asyncio.wait([setting_up])
                await show.end()


class _Process:
    """One process of the demo, on a port that it keeps."""

    def __init__(self, part: Part):
        self.part = part
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._is_up = False
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Its id while it serves."""
        process = self._process
        return process.pid if process is not None and process.returncode is None and self._is_up else None

    async def start(self) -> None:
        """Start it and wait until it serves; Unavailable when it does not."""
        async with self._starting:
            if self.pid is None:
                await self.kill()
                await self._start()

    async def _start(self) -> None:
        port = self.url.rpartition(":")[2].partition("/")[0] or "0"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", f"agent3.demo.{self.part}", port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        assert self._process.stdout is not None
        with suppress(TimeoutError):
            line = await asyncio.wait_for(self._process.stdout.readline(), _START)
            if line.strip():
                self.url, self._is_up = line.decode().strip(), True
                return
        await self.kill()
        raise Unavailable(f"The demo's process for {self.part} did not start.")

    async def kill(self) -> None:
        """End it at once, by its id."""
        process, self._is_up = self._process, False
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def end(self) -> None:
        """End it and wait; it keeps nothing that would need time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END)
        except TimeoutError:
            await self.kill()


class _Stage:
    def __init__(self, server: Server, airline_url: str, activities_url: str):
        self._server = server
        self._websites = agent_of(airline(airline_url)), agent_of(activities(activities_url))
        self._processes: dict[Part, _Process] = {name: _Process(name) for name in _PROTOCOLS}
        self._coming_back: dict[Part, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._browser = "Looking for a browser."

    async def host_local(self, *agents: LocalAgent) -> None:
        """Show agents of this process."""
        functions = self._server.protocols["local"]
        assert isinstance(functions, Functions)
        for agent in agents:
            if await self._host(agent.agent):
                functions.connector.add(agent)

    async def _host(self, agent: Agent) -> bool:
        """Show an agent, unless somebody has one of that id: what is hosted would hide what is stored."""
        try:
            await self._server.directory.get(agent.id)
        except AgentNotFound:
            self._server.directory.host(agent)
            return True
        log.warning("the demo skips its %s: an agent with that id exists", agent.id)
        return False

    def make_agent(self) -> App:
        """What a caller can do with the stage."""
        app = App("Demo stage", agent_id=ID, description="Stops and starts parts of the demo.", tags=(TAG,))

        @app.capability(read_only=True)
        async def parts() -> dict[str, str]:
            """Show which parts of the demo are there."""
            shown = {"websites": self._browser}
            for name, process in self._processes.items():
                is_hosted = self._server.directory.peek(f"demo-{name}") is not None
                shown[name] = "starting" if not is_hosted else "up" if process.pid else "down"
            return shown

        @app.capability(idempotent=True)
        async def take_down(part: Part, seconds: float = 60.0) -> str:
            """Kill the process of a part of the demo. It comes back by itself.

            Args:
                part: Which one.
                seconds: After how long it comes back, at most 600.
            """
            process = self._processes[part]
            async with self._changing:
                await self._stop_coming_back(part)
                pid = process.pid
                await process.kill()
                self._coming_back[part] = asyncio.create_task(self._start_later(part, min(max(seconds, 0.0), 600.0)))
            return f"{part} is down." if pid is None else f"{part} is down: process {pid} was killed."

        @app.capability(idempotent=True)
        async def bring_back(part: Part) -> str:
            """Start a part of the demo again.

            Args:
                part: Which one.
            """
            async with self._changing:
                await self._stop_coming_back(part)
                await self._processes[part].start()
            return f"{part} is back at {self._processes[part].url}."

        return app

    async def set_up(self) -> None:
        """Host everything, each as soon as it is there. One that fails does not keep the others out."""
        await asyncio.sleep(_LATER)
        ended = await asyncio.gather(
            self._host_websites(), *(self._host_process(part) for part in self._processes), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, Exception):
                log.error("a part of the demo is missing", exc_info=error)

    async def end(self) -> None:
        """End every process, and wait for it."""
        for part in self._processes:
            await self._stop_coming_back(part)
        await asyncio.gather(*(process.end() for process in self._processes.values()))

    async def _host_process(self, part: Part) -> None:
        try:
            await self._processes[part].start()
            protocol = self._server.protocols[_PROTOCOLS[part]]
            found = Found(Route(protocol.name, self._processes[part].url, meta={"registered": True}), part)
            agent = await protocol.register(found, self._server.services.vault)
        except (Agent3Error, OSError) as error:
            log.warning("the demo continues without %s: %s", part, error)
            return
        if await self._host(replace(agent, id=f"demo-{part}", tags=(*agent.tags, TAG))) and part == "flights":
            self._stand_in()

    async def _host_websites(self) -> None:
        """A website is hosted when there is a browser to open it: one may come while the gateway already serves."""
        while (missing := await asyncio.to_thread(_find_missing)) is not None:
            self._browser = missing
            await asyncio.sleep(_LOOK)
        self._browser = "up"
        for website in self._websites:
            await self._host(replace(website, tags=(*website.tags, TAG)))
        self._stand_in()

    def _stand_in(self) -> None:
        """Called when either is there: with both, the airline's website stands in for the flight agent."""
        directory = self._server.directory
        flights, website = directory.peek("demo-flights"), directory.peek("demo-airline")
        if flights is None or website is None:
            return
        for name in (one.name for one in flights.capabilities if website.capability(one.name) is not None):
            directory.routes.host(Definition(flights.id, name, website.id, name, origin="demo"))

    async def _stop_coming_back(self, part: Part) -> None:
        if (waiting := self._coming_back.pop(part, None)) is not None:
            waiting.cancel()
            await asyncio.wait([waiting])

    async def _start_later(self, part: Part, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await self._processes[part].start()
        except (Unavailable, OSError) as error:
            log.warning("the demo continues without %s: %s", part, error)


def _find_missing() -> str | None:
    """What a visit lacks; None when a browser can be used."""
    if importlib.util.find_spec("playwright") is None:
        return "The extra browser is not installed."
    try:
        return None if installation.find() is not None else "No Chromium is installed yet."
    except SetupError as error:
        return error.message
