"""Options that many commands take, and the settings and the gateway that they name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from agent3.cli.gateway_client import Gateway, Local, Remote
from agent3.cli.output import print_error
from agent3.client.announcement import find_running
from agent3.errors import SetupError
from agent3.settings import Settings, find_misspelt_variables, load
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_note

__all__ = ["GatewayOptions", "connect", "load_database_settings", "load_settings"]


@Parameter(name="*")
@dataclass(frozen=True)
class GatewayOptions:
    """Which gateway a command speaks to, and how it answers."""

    server: str | None = None
    """Address of a running gateway, such as http://127.0.0.1:8333. By default the one that runs on this
    machine, if any; of several, the one on the database of the settings, else the one started last."""
    db: str | None = None
    "Use this database directly, without a running gateway: sqlite:///PATH or postgresql://…"
    config: Path | None = None
    "Settings file; agent3.toml in this folder by default."
    demo: bool = False
    "Use the demo agents in this process, without a running gateway."
    json: bool = False
    "Print JSON."


def connect(options: GatewayOptions) -> Gateway:
    """The gateway that a command speaks to: a running one, unless a database or the demo is named."""
    own = options.db is not None or options.demo
    if options.server is not None and own:
        raise SetupError(
            "--server names a running gateway; --db and --demo start one in this process. Give one or the other."
        )
    address = options.server or (None if own else os.environ.get("AGENT3_SERVER") or None)
    if address is not None:
        return Remote(address)
    settings = load_settings(options.config, options.db)
    if not own and (address := find_running(settings)) is not None:
        if find_running(settings, own=True) is None:
            print_note(f"This goes to the gateway at {address}, on another database. --server names one, or --db.")
        return Remote(address)
    return Local(settings, options.demo, alone=not own)


def load_settings(
    config: Path | None,
    db: str | None = None,
    host: str | None = None,
    port: int | None = None,
    grpc_port: int | None = None,
) -> Settings:
    """The settings, with what the options say on top. Variables that look like misspelt settings are reported."""
    server = {"host": host, "port": port, "grpc_port": grpc_port}
    settings = load(config, overrides={"storage": {"url": db}, "server": server})
    for sentence in find_misspelt_variables():
        print_error(sentence)
    return settings


def load_database_settings(options: DatabaseOptions) -> Settings:
    """The settings of a command that works on the database itself, also beside a running gateway."""
    settings = load_settings(options.config, options.db)
    server = os.environ.get("AGENT3_SERVER", "").rstrip("/")
    if server and options.db is None and find_running(settings, own=True) != server:
        print_error(
            f"AGENT3_SERVER has no effect here: this command works on the database of the settings, on which {server} "
            "does not run. Name another with --db."
        )
    return settings
