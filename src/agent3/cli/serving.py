"""``agent3 serve`` and ``agent3 mcp``: the gateway over HTTP, or over standard input and output."""

from __future__ import annotations

from pathlib import Path

from agent3.cli.options import load_settings
from agent3.server.run import serve_forever, serve_stdio

__all__ = ["mcp", "serve"]


def serve(
    agent: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    grpc: int | None = None,
    db: str | None = None,
    config: Path | None = None,
    demo: bool = False,
) -> None:
    """Run the gateway: MCP at /mcp, A2A at /a2a, REST at /v1, health and metrics.

    Parameters
    ----------
    agent:
        Also serve an agent written in Python, as MODULE:NAME: a LocalAgent, an AgentExecutor, a function or a class.
    host:
        Address to listen on [default: 127.0.0.1].
    port:
        Port to listen on, 0 for a free one [default: 8333].
    grpc:
        Port at which to speak A2A over gRPC too, 0 for a free one.
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder, if there].
    demo:
        Include the demo agents.
    """
    serve_forever(load_settings(config, db, host, port, grpc), agent, demo=demo)


def mcp(agent: str | None = None, *, db: str | None = None, config: Path | None = None, demo: bool = False) -> None:
    """Serve the five tools over standard input and output, for Claude Desktop and other hosts.

    Parameters
    ----------
    agent:
        Also serve an agent written in Python, as MODULE:NAME.
    db:
        sqlite:///PATH or postgresql://… [default: agent3.db in the data folder].
    config:
        Settings file [default: agent3.toml in this folder, if there].
    demo:
        Include the demo agents.
    """
    serve_stdio(load_settings(config, db), agent, demo=demo)
