"""``agent3 serve`` and ``agent3 mcp``: the gateway over HTTP, or over standard input and output."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from agent3.cli.options import load_settings
from agent3.errors import SetupError
from agent3.protocols.functions import LocalAgent
from agent3.server.demo import agents as demo_agents
from agent3.server.loading import load_agents
from agent3.server.reload import serve_reloading
from agent3.server.run import Beside, serve_forever, serve_stdio, serve_worker
from agent3.server.workers import Work, serve_with_workers, share_of
from agent3.settings import Settings, settings_file

__all__ = ["mcp", "serve"]


def serve(
    agent: list[str] | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    grpc: int | None = None,
    db: str | None = None,
    config: Path | None = None,
    demo: bool = False,
    reload: bool = False,
    workers: str | None = None,
) -> None:
    """Run the gateway: MCP at /mcp, A2A at /a2a, REST at /v1, health and metrics.

    Parameters
    ----------
    agent:
        Python agents to serve as well, as MODULE:NAME or FILE.py:NAME: an App, LocalAgent, AgentExecutor, function or
        class. Without NAME, the only App in the module.
    host:
        Address to listen on [default: 127.0.0.1].
    port:
        Port to listen on; 0 picks a free one [default: 8333].
    grpc:
        Port for A2A over gRPC; 0 picks a free one [default: none].
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder].
    demo:
        Include the demo agents and the travel demo.
    reload:
        For development: restart when the settings file or a Python file in the agent's folder changes.
    workers:
        Number of processes behind one port, or auto for one per core. Processes that die are restarted; SIGHUP replaces
        all without a failed call. Excludes the travel demo.
    """
    count = None if workers is None else _count_workers(workers)

    def read() -> Settings:
        settings = load_settings(config, db, host, port, grpc)
        return settings if count is None else replace(settings, server=replace(settings.server, workers=count))

    if reload and not agent:
        raise SetupError("--reload needs an agent to follow, such as travel.py:app.")
    if reload and workers is not None:
        raise SetupError("--reload runs a single process. Use --workers or --reload, not both.")
    if not reload and count is not None:
        serve_with_workers(read, agent or (), demo, _serve_worker)
    elif not reload:
        settings = read()
        if settings.server.workers:
            serve_with_workers(read, agent or (), demo, _serve_worker)
        else:
            serve_forever(settings, _agents(agent or (), demo), beside=_stage() if demo else None)
    else:
        assert agent
        serve_reloading(read, settings_file(config), agent, _serve_with_demo if demo else _serve_alone)


def mcp(
    agent: list[str] | None = None, *, db: str | None = None, config: Path | None = None, demo: bool = False
) -> None:
    """Serve agent3's tools over standard input and output, for Claude Desktop and other hosts.

    Parameters
    ----------
    agent:
        Python agents to serve as well, as MODULE:NAME or FILE.py:NAME.
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder].
    demo:
        Include the demo agents.
    """
    if sys.stdin.isatty():
        # A person started it by hand, but it speaks to programs.
        entry = {"command": str(Path(sys.argv[0]).absolute()), "args": sys.argv[1:]}
        example = json.dumps({"mcpServers": {"agent3": entry}}, indent=2)
        sys.stderr.write(
            "This command speaks MCP on standard input and output. Configure it in an MCP "
            f"client:\n{example}\nPress Ctrl-C or Ctrl-D to stop it.\n"
        )
    serve_stdio("mcp", load_settings(config, db), _agents(agent or (), demo))


def _count_workers(given: str) -> int:
    if given == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or not 1 <= int(given[:9]) <= 256:
        raise SetupError("--workers must be a number from 1 to 256, or auto.")
    return int(given)


def _agents(references: Sequence[str], demo: bool) -> list[LocalAgent]:
    named = [agent for reference in references for agent in load_agents(reference)]
    return [*(demo_agents() if demo else ()), *named]


def _stage() -> Beside:
    from agent3.demo.stage import stage  # takes a fifth of the start, which a gateway without the demo is spared

    return stage


# In a new process each is found by its name.


def _serve_worker(work: Work) -> None:
    agents = _agents(work.references, work.demo)
    where = (work.listener, work.folder, work.token, work.line)
    serve_worker(share_of(work.settings), agents, *where, greets=work.greets, health=work.health)


def _serve_alone(settings: Settings, references: Sequence[str], listener: socket.socket) -> None:
    serve_forever(settings, _agents(references, demo=False), listener=listener)


def _serve_with_demo(settings: Settings, references: Sequence[str], listener: socket.socket) -> None:
    serve_forever(settings, _agents(references, demo=True), beside=_stage(), listener=listener)
