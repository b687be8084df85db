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
from collections.abc import Iterator, Sequence
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
from agent3.protocols.a2a import build_agent, can_be_agent
from agent3.protocols.functions import LocalAgent
from agent3.server.announcement import announce
from agent3.server.app import app
from agent3.server.build import Server, build, database_url
from agent3.server.connection import patient
from agent3.settings import Settings
from agent3.storage.connect import without_password

__all__ = ["serve_forever", "serve_stdio"]

log = logs.get("server")


def serve_forever(settings: Settings, agent: str | None = None, *, demo: bool = False) -> None:
    """Serve until a signal comes, then let running calls finish. Prints where, and how to try it."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    agents = _agents(agent, demo)
    with _listen(settings) as listener:
        _run(_serve(settings, agents, listener))


def serve_stdio(settings: Settings, agent: str | None = None, *, demo: bool = False) -> None:
    """Serve one host. Standard output belongs to the protocol; logs go to standard error."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    agents = _agents(agent, demo)
    if sys.stdin.isatty():
        sys.stderr.write(_for_hosts())
    _run(_stdio(settings, agents))


def _run(work: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _serve(settings: Settings, agents: Sequence[LocalAgent], listener: socket.socket) -> None:
    async with build(settings, agents) as server:
        doors = app(server)
        config = uvicorn.Config(
            doors,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(settings.server.shutdown_seconds),
            limit_concurrency=2_000,
            server_header=False,
            http=patient(settings.server.body_seconds, doors.lane),
            ws="none",
        )
        url = _url(listener)
        ports = await doors.listen(url)
        note = announce(url, settings)
        _greet(url, settings, agents, ports)
        # What start-up made lives as long as the process; the collector need not look at it again.
        gc.freeze()
        try:
            await _Uvicorn(config, server).serve(sockets=[listener])
        finally:
            _forget(note)
            for port in ports:
                await port.aclose()


class _Uvicorn(uvicorn.Server):
    """Stops on a signal and returns. The original raises the signal again, and would die of it before we are closed.

    It stops listening only when those who ask whether it is ready have heard that it is not. A second signal is not as
    patient.
    """

    def __init__(self, config: uvicorn.Config, server: Server):
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._server.readiness.stopping:
            self._server.stop()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._server.readiness.heard():
            self.should_exit = True
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


async def _stdio(settings: Settings, agents: Sequence[LocalAgent]) -> None:
    async with build(settings, agents) as server:
        _leave_on_interrupt(server)
        await server.protocols["mcp"].serve_stdio()


def _leave_on_interrupt(server: Server) -> None:
    """Ctrl-C ends it. A thread waits for input and cannot be called back, so what is open is closed by hand first."""
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


def _listen(settings: Settings) -> socket.socket:
    """Bind before anything else, so that a taken port is one clear sentence; and never an open door without clients."""
    from agent3.observe.metrics import METRICS

    Doorkeeper(settings, METRICS)
    host, port = settings.server.host, settings.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2_048)
    except (OSError, OverflowError) as wrong:
        listener.close()
        raise SetupError(f"Cannot listen on {host}:{port}: {_why(wrong)}") from None
    return listener


def _why(wrong: OSError | OverflowError) -> str:
    if isinstance(wrong, OverflowError):
        return "a port is a number from 0 to 65535."
    if wrong.errno == errno.EADDRINUSE:
        return (
            "another program does already, perhaps a gateway. Choose another with --port, or --port 0 for a free one."
        )
    return f"{wrong.strerror}. Choose an address of this machine with --host, and a port above 1023 with --port."


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _forget(note: Path) -> None:
    try:
        if json.loads(note.read_text())["pid"] == os.getpid():
            note.unlink()
    except (OSError, ValueError, KeyError):
        log.debug("the note of this gateway was gone already")


def _agents(reference: str | None, demo: bool) -> list[LocalAgent]:
    found: list[LocalAgent] = []
    if demo:
        from agent3.server.demo import agents

        found.extend(agents())
    if reference is not None:
        found.extend(_import(reference))
    ids = Counter(one.id for one in found)
    if twice := [one for one, count in ids.items() if count > 1]:
        raise SetupError(
            f"Two agents have the id {twice[0]!r}. Give one of them another agent_id, or leave out --demo."
        )
    return found


def _import(reference: str) -> list[LocalAgent]:
    """The agent, or the list of agents, that MODULE:NAME names; the current folder is searched first.

    An agent is a LocalAgent, an AgentExecutor, a function, or a class with public methods.
    """
    module, _, name = reference.partition(":")
    if not name or not module or module.endswith(".py") or "/" in module:
        raise SetupError(f"{reference!r} must be MODULE:NAME, such as travel:agent for agent in travel.py.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = importlib.import_module(module)
    except Exception as wrong:
        raise SetupError(_not_loaded(reference, module, wrong)) from wrong
    value = getattr(loaded, name, None)
    many: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not many or not all(can_be_agent(one) for one in many):
        what = f"is a {type(value).__name__}" if hasattr(loaded, name) else "is not there"
        raise SetupError(
            f"{reference}: {name!r} in {module!r} {what}. It must be an agent, or a list of them: a LocalAgent, an "
            "AgentExecutor, a function, or a class with methods."
        )
    return [build_agent(one) for one in many]


def _not_loaded(reference: str, module: str, wrong: Exception) -> str:
    """Where the author has to look: the line of the module at which it broke."""
    if isinstance(wrong, ModuleNotFoundError) and wrong.name in (module, module.partition(".")[0]):
        return f"{reference}: there is no module {module!r} here. Run it from the folder of the module."
    frames = [one for one in traceback.extract_tb(wrong.__traceback__) if "importlib" not in one.filename]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    return f"{reference} could not be loaded: {type(wrong).__name__}: {wrong}{place}"


def _greet(url: str, settings: Settings, agents: Sequence[LocalAgent], ports: Sequence[Listening]) -> None:
    """Where it is, what to paste into a client, and one command to try."""
    entry: dict[str, Any] = {"type": "http", "url": f"{url}/mcp"}
    keyed = [client.id for client in settings.clients if client.key and not client.require_signature]
    if keyed:
        entry["headers"] = {"Authorization": "Bearer KEY"}
    config = {"mcpServers": {"agent3": entry}}
    lines = [
        f"agent3 serves at {url}",
        f"  MCP      {url}/mcp",
        f"  A2A      {url}/a2a" + "".join(f"  gRPC at port {port.port}" for port in ports),
        f"  REST     {url}/openapi.json",
        f"  Health   {url}/healthz  {url}/readyz  {url}/metrics",
        f"  State    {without_password(database_url(settings))}",
        "",
        "Add it to an MCP client:",
        *(f"  {line}" for line in json.dumps(config, indent=2).splitlines()),
        f"  or, for Claude Code:  claude mcp add --transport http agent3 {url}/mcp"
        + (' --header "Authorization: Bearer KEY"' if keyed else ""),
    ]
    if agents and (keyed or not settings.clients):  # the command line sends a key, and signs nothing
        key = "AGENT3_KEY=KEY " if keyed else ""
        lines += ["", "Try it in another terminal:", f"  {key}{_command()} {_example(agents)}"]
    if keyed:
        lines += ["", f"KEY is the key of a client: {', '.join(keyed)}."]
    elif settings.clients:
        lines += ["", "Its clients sign their requests: see docs/reference/signing.md."]
    print("\n".join(lines), flush=True)  # noqa: T201 - this is what the command is for


def _for_hosts() -> str:
    """What a person who starts the stdio server by hand should know: it is for a program at the other end."""
    entry = {"command": str(Path(sys.argv[0]).absolute()), "args": sys.argv[1:]}
    config = json.dumps({"mcpServers": {"agent3": entry}}, indent=2)
    ends = "Ctrl-C or Ctrl-D ends it."
    return f"This speaks MCP on standard input and output. Let an MCP client start it:\n{config}\n{ends}\n"


def _command() -> str:
    """How the person at this terminal can run agent3: by name where it is on PATH, else by its path from here."""
    own = Path(sys.argv[0])
    if own.name != "agent3" or any(Path(one) == own.parent for one in os.environ.get("PATH", "").split(os.pathsep)):
        return "agent3"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.parent.parent.parent == here else str(own)


def _example(agents: Sequence[LocalAgent]) -> str:
    if any(one.id == "pizza" for one in agents):
        return 'call pizza "I want a pepperoni pizza"'
    return f"show {quote(agents[0].id)}"
