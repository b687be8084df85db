"""Running a gateway: over HTTP until it is stopped, or over standard input and output until the host leaves."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from agent3.calls import LocalAgent
from agent3.errors import SetupError
from agent3.observe import logs
from agent3.server.app import app, door
from agent3.server.auth import Doorkeeper
from agent3.server.build import build, database_url
from agent3.server.client import announce
from agent3.server.tools import GatewayTools
from agent3.settings import Settings

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
    _run(_stdio(settings, _agents(agent, demo)))


def _run(work: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _serve(settings: Settings, agents: Sequence[LocalAgent], listener: socket.socket) -> None:
    async with build(settings, agents) as server:
        config = uvicorn.Config(
            app(server),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(settings.server.shutdown_seconds),
            limit_concurrency=2_000,
            server_header=False,
            h11_max_incomplete_event_size=65_536,
        )
        url = _url(listener)
        note = announce(url)
        _greet(url, settings, agents)
        # What start-up made lives as long as the process; the collector need not look at it again.
        gc.freeze()
        try:
            await uvicorn.Server(config).serve(sockets=[listener])
        finally:
            _forget(note)


async def _stdio(settings: Settings, agents: Sequence[LocalAgent]) -> None:
    async with build(settings, agents) as server:
        await door(server, GatewayTools(server.gateway, server.env, "stdio")).stdio()


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
    except OSError as wrong:
        listener.close()
        raise SetupError(
            f"Cannot listen on {host}:{port}: {wrong.strerror}. Is a gateway running already? Try --port 0."
        ) from None
    return listener


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
    return found


def _import(reference: str) -> list[LocalAgent]:
    """The agent, or the list of agents, that MODULE:NAME names; the current folder is searched first."""
    module, _, name = reference.partition(":")
    if not name:
        raise SetupError(f"{reference!r} must be MODULE:NAME, such as travel:agent.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as wrong:
        raise SetupError(f"{reference}: {wrong}. Run it from the folder of the module.") from None
    except AttributeError:
        raise SetupError(f"{reference}: module {module!r} has no {name!r}.") from None
    many = list(value) if isinstance(value, list | tuple) else [value]
    if not many or not all(isinstance(one, LocalAgent) for one in many):
        raise SetupError(f"{reference} is not a LocalAgent, nor a list of them.")
    return many


def _greet(url: str, settings: Settings, agents: Sequence[LocalAgent]) -> None:
    """Where it is, what to paste into a client, and one command to try."""
    config = {"mcpServers": {"agent3": {"type": "http", "url": f"{url}/mcp"}}}
    lines = [
        f"agent3 serves at {url}",
        f"  MCP      {url}/mcp",
        f"  REST     {url}/v1  ({url}/openapi.json)",
        f"  Health   {url}/healthz  {url}/readyz  {url}/metrics",
        f"  State    {_shown(database_url(settings))}",
        "",
        "Add it to an MCP client:",
        *(f"  {line}" for line in json.dumps(config, indent=2).splitlines()),
        "  or, for Claude Code:  claude mcp add --transport http agent3 " + f"{url}/mcp",
    ]
    if agents:
        lines += ["", "Try it in another terminal:", f"  {_command()} call {_example(agents)}"]
    print("\n".join(lines), flush=True)  # noqa: T201 - this is what the command is for


def _command() -> str:
    """How the person at this terminal can run agent3: by name where it is on PATH, else by its path from here."""
    own = Path(sys.argv[0])
    if own.name != "agent3" or any(Path(one) == own.parent for one in os.environ.get("PATH", "").split(os.pathsep)):
        return "agent3"
    try:
        return str(own.relative_to(Path.cwd()))
    except ValueError:
        return str(own)


def _example(agents: Sequence[LocalAgent]) -> str:
    return 'pizza "I want a pepperoni pizza"' if any(one.id == "pizza" for one in agents) else f'{agents[0].id} "hello"'


def _shown(url: str) -> str:
    """Without the password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rsplit('@', 1)[-1]}" if "@" in rest else url
