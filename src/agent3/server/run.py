"""Running a gateway: over HTTP until it is stopped, or over standard input and output until the host leaves."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

import uvicorn

from agent3.errors import SetupError
from agent3.gateway.protocol import Listening
from agent3.identity.doorkeeper import Doorkeeper
from agent3.observe import logs
from agent3.observe.metrics import METRICS
from agent3.protocols.a2a import build_agent, can_be_agent
from agent3.protocols.functions import LocalAgent
from agent3.server.announcement import announce, withdraw
from agent3.server.app import app
from agent3.server.build import Server, build
from agent3.server.connection import make_connection_class
from agent3.server.demo import agents as demo_agents
from agent3.settings import Settings, database_url
from agent3.storage.connect import without_password

__all__ = ["serve_forever", "serve_stdio"]


def serve_forever(settings: Settings, agent: str | None = None, *, demo: bool = False) -> None:
    """Serve until a signal comes, then let running calls finish. Prints the addresses, and how to try it."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    agents = _load_agents(agent, demo)
    Doorkeeper(settings, METRICS)  # raises before a port is opened, if anyone could call

    async def serve(listener: socket.socket) -> None:
        async with build(settings, agents) as server:
            doors = app(server)
            config = uvicorn.Config(
                doors,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=int(settings.server.shutdown_seconds),
                limit_concurrency=2_000,
                server_header=False,
                http=make_connection_class(settings.server.body_seconds, doors.lane),
                ws="none",
            )
            host, port = listener.getsockname()[:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            ports = await doors.listen(url)
            note = announce(url, settings)
            _greet(url, settings, agents, ports)
            # What start-up made lives as long as the process; the collector need not look at it again.
            gc.freeze()
            try:
                await _Uvicorn(config, server).serve(sockets=[listener])
            finally:
                withdraw(note)
                for open_port in ports:
                    await open_port.aclose()

    with _listen(settings) as listener:
        _run(serve(listener))


def serve_stdio(settings: Settings, agent: str | None = None, *, demo: bool = False) -> None:
    """Serve one host. Standard output belongs to the protocol; logs go to standard error."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    agents = _load_agents(agent, demo)
    if sys.stdin.isatty():
        # A person started it by hand, but it speaks to programs.
        entry = {"command": str(Path(sys.argv[0]).absolute()), "args": sys.argv[1:]}
        config = json.dumps({"mcpServers": {"agent3": entry}}, indent=2)
        sys.stderr.write(
            f"This speaks MCP on standard input and output. Let an MCP client start it:\n{config}\n"
            "Ctrl-C or Ctrl-D ends it.\n"
        )

    async def serve() -> None:
        async with build(settings, agents) as server:
            # Ctrl-C ends it. A thread waits for input and cannot be cancelled, so the process exits with it; what is
            # open is closed before.
            leaving: list[asyncio.Task[None]] = []

            async def leave() -> None:
                try:
                    await asyncio.wait_for(server.core.aclose(), 5)
                    await asyncio.wait_for(server.database.aclose(), 5)
                finally:
                    os._exit(130)

            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, lambda: leaving.append(asyncio.ensure_future(leave())) if not leaving else os._exit(130)
            )
            await server.protocols["mcp"].serve_stdio()

    _run(serve())


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class _Uvicorn(uvicorn.Server):
    """Stops on a signal and returns. The original raises the signal again, and the process would die before cleanup.

    It stops listening when those who probe its readiness have noticed, and at once on a second signal.
    """

    def __init__(self, config: uvicorn.Config, server: Server):
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._server.readiness.is_stopping:
            self._server.stop()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._server.readiness.is_noticed():
            self.should_exit = True
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(settings: Settings) -> socket.socket:
    """Bind the port before anything else is started, so that a taken one is reported in one sentence."""
    host, port = settings.server.host, settings.server.port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2_048)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OverflowError):
            reason = "a port is a number from 0 to 65535."
        elif error.errno == errno.EADDRINUSE:
            reason = "it is in use, perhaps by another gateway. Choose another with --port, or --port 0 for a free one."
        else:
            reason = (
                f"{error.strerror}. Choose an address of this machine with --host, and a port above 1023 with --port."
            )
        raise SetupError(f"Cannot listen on {host}:{port}: {reason}") from None
    return listener


def _load_agents(reference: str | None, demo: bool) -> list[LocalAgent]:
    """The demo agents, if wanted, and what MODULE:NAME names; the current folder is searched first.

    NAME is an agent or a list of them: a LocalAgent, an AgentExecutor, a function, or a class with public methods.
    """
    agents = list(demo_agents()) if demo else []
    if reference is not None:
        module, _, name = reference.partition(":")
        if not name or not module or module.endswith(".py") or "/" in module:
            raise SetupError(f"{reference!r} must be MODULE:NAME, such as travel:agent for agent in travel.py.")
        sys.path.insert(0, str(Path.cwd()))
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name in (module, module.partition(".")[0]):
                raise SetupError(
                    f"{reference}: there is no module {module!r} here. Run it from the folder of the module."
                ) from error
            raise _load_error(reference, error) from error
        except Exception as error:
            raise _load_error(reference, error) from error
        value = getattr(loaded, name, None)
        named: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if not named or not all(can_be_agent(item) for item in named):
            what = f"is a {type(value).__name__}" if hasattr(loaded, name) else "does not exist"
            raise SetupError(
                f"{reference}: {name!r} in {module!r} {what}. It must be an agent, or a list of them: a LocalAgent, an "
                "AgentExecutor, a function, or a class with methods."
            )
        agents.extend(build_agent(item) for item in named)
    ids = Counter(agent.id for agent in agents)
    if duplicates := [name for name, count in ids.items() if count > 1]:
        raise SetupError(
            f"Two agents have the id {duplicates[0]!r}. Give one of them another agent_id, or leave out --demo."
        )
    return agents


def _load_error(reference: str, error: Exception) -> SetupError:
    """With the line of the author's module at which loading failed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    return SetupError(f"{reference} could not be loaded: {type(error).__name__}: {error}{place}")


def _greet(url: str, settings: Settings, agents: Sequence[LocalAgent], ports: Sequence[Listening]) -> None:
    """Print the addresses, what to paste into a client, and one command to try."""
    entry: dict[str, Any] = {"type": "http", "url": f"{url}/mcp"}
    keyed = [client.id for client in settings.clients if client.key and not client.require_signature]
    if keyed:
        entry["headers"] = {"Authorization": "Bearer KEY"}
    config = {"mcpServers": {"agent3": entry}}
    lines = [
        f"agent3 serves at {url}",
        f"  MCP      {url}/mcp",
        f"  A2A      {url}/a2a",
        f"  REST     {url}/openapi.json",
        *(["  Ports    " + ", ".join(f"{port.name} at port {port.port}" for port in ports)] if ports else ()),
        f"  Health   {url}/healthz  {url}/readyz  {url}/metrics",
        f"  State    {without_password(database_url(settings))}",
        "",
        "Add it to an MCP client:",
        *(f"  {line}" for line in json.dumps(config, indent=2).splitlines()),
        f"  or, for Claude Code:  claude mcp add --transport http agent3 {url}/mcp"
        + (' --header "Authorization: Bearer KEY"' if keyed else ""),
    ]
    if agents and (keyed or not settings.clients):  # the command line can send a key, but not sign requests
        own = Path(sys.argv[0])
        command = "agent3"
        if own.name == "agent3" and own.parent not in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
            # Not on the PATH: by its path, from here if it is in a virtual environment of this folder.
            here = Path.cwd()
            command = str(own.relative_to(here)) if own.parent.parent.parent == here else str(own)
        example = f"show {quote(agents[0].id)}"
        if any(agent.id == "pizza" for agent in agents):
            example = 'call pizza "I want a pepperoni pizza"'
        lines += ["", "Try it in another terminal:", f"  {'AGENT3_KEY=KEY ' if keyed else ''}{command} {example}"]
    if keyed:
        lines += ["", f"KEY is the key of a client: {', '.join(keyed)}."]
    elif settings.clients:
        lines += ["", "Its clients sign their requests: see docs/reference/signing.md."]
    print("\n".join(lines), flush=True)  # noqa: T201 - this is what the command is for
