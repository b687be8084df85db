"""Options shared by many commands, and the settings and the gateway they select."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cyclopts import Parameter

from agent3.cli.gateway_client import Gateway, Local, Remote
from agent3.cli.output import print_error
from agent3.client.announcement import find_running
from agent3.errors import SetupError
from agent3.settings import Settings, find_misspelt_variables, load
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_note

__all__ = ["GatewayOptions", "connect", "find_server_elsewhere", "load_database_settings", "load_settings"]


@Parameter(name="*")
@dataclass(frozen=True)
class GatewayOptions:
    """Which gateway a command uses, and how it answers."""

    server: str | None = None
    """Address of a running gateway, such as http://127.0.0.1:8333. By default the one on this machine; of several, the
    one
    that uses the database of the settings, else the one started last."""
    db: str | None = None
    "Use this database directly, without a running gateway: sqlite:///PATH or postgresql://…"
    config: Path | None = None
    "Settings file [default: agent3.toml in this folder]."
    demo: bool = False
    "Use the demo agents in this process, without a running gateway."
    json: bool = False
    "Print JSON."


def connect(options: GatewayOptions) -> Gateway:
    """The gateway that a command uses: a running one, unless a database or the demo is named."""
    own = options.db is not None or options.demo
    if options.server is not None and own:
        raise SetupError(
            "--server selects a running gateway; --db and --demo start one in this process. Use one or the other."
        )
    address = options.server or (None if own else os.environ.get("AGENT3_SERVER") or None)
    if address is not None:
        return Remote(address)
    settings = load_settings(options.config, options.db)
    if not own and (address := find_running(settings)) is not None:
        if find_running(settings, own=True) is None:
            print_note(
                f"Using the gateway at {address}, which runs on another database. Choose one with --server or --db."
            )
        return Remote(address)
    return Local(settings, options.demo, alone=not own)


def load_settings(
    config: Path | None,
    db: str | None = None,
    host: str | None = None,
    port: int | None = None,
    grpc_port: int | None = None,
) -> Settings:
    """The settings, overridden by the options. Variables that look like misspelled settings are reported."""
    server = {"host": host, "port": port, "grpc_port": grpc_port}
    settings = load(config, overrides={"storage": {"url": db}, "server": server})
    for sentence in find_misspelt_variables():
        print_error(sentence)
    return settings


def find_server_elsewhere(options: DatabaseOptions) -> str | None:
    """The gateway that AGENT3_SERVER names, where it does not run on the database of the settings, and no database was
    named.
    """
    server = os.environ.get("AGENT3_SERVER", "").rstrip("/")
    if not server or options.db is not None:
        return None
    own = find_running(load_settings(options.config, options.db), own=True)
    return None if own is not None and _is_same(own, server) else server


def load_database_settings(options: DatabaseOptions) -> Settings:
    """The settings of a command that works on the database itself. A gateway may be running on it.

    SetupError where AGENT3_SERVER names a gateway on another database: what is meant for it would be done elsewhere.
    """
    if server := find_server_elsewhere(options):
        raise SetupError(
            f"AGENT3_SERVER names {server}, which does not run on the database of the settings; this command works on "
            "a database. Name it with --db, or unset AGENT3_SERVER to use the one of the settings."
        )
    return load_settings(options.config, options.db)


def _is_same(one: str, other: str) -> bool:
    first, second = (urlsplit(address) for address in (one, other))
    names = {first.hostname, second.hostname}
    is_host = len(names) == 1 or names <= {"localhost", "127.0.0.1", "::1"}
    return is_host and (first.scheme, first.port) == (second.scheme, second.port)
