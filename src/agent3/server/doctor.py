"""``agent3 doctor``: whether this installation can do its work, and what to do where it cannot."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from typing import Any

from agent3.errors import Agent3Error
from agent3.server.build import database_url
from agent3.server.client import running
from agent3.settings import Settings, data_folder
from agent3.storage import open_database

__all__ = ["examine"]

Check = dict[str, Any]


def examine(settings: Settings) -> list[Check]:
    """All checks, each with a name, whether it is fine, and a sentence."""
    return [
        _python(),
        asyncio.run(_database(settings)),
        _disk(),
        _port(settings),
        _browser(),
        *_extras(),
    ]


def _check(name: str, ok: bool, detail: str) -> Check:
    return {"name": name, "ok": ok, "detail": detail}


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return _check("python", sys.version_info >= (3, 11), f"{version} (3.11 or newer is needed)")


async def _database(settings: Settings) -> Check:
    try:
        database = await open_database(database_url(settings), max_bytes=settings.storage.max_bytes)
    except Agent3Error as wrong:
        return _check("database", False, wrong.message)
    try:
        report = await database.check()
    except Agent3Error as wrong:
        return _check("database", False, wrong.message)
    finally:
        await database.aclose()
    words = ", ".join(f"{key} {value}" for key, value in report.items() if key != "ok")
    return _check("database", bool(report.get("ok", True)), words)


def _disk() -> Check:
    """Where agent3 keeps its files, or would."""
    folder = next(one for one in (data_folder().absolute(), *data_folder().absolute().parents) if one.is_dir())
    free = shutil.disk_usage(folder).free
    return _check("disk", free > 256 << 20, f"{free / (1 << 30):.1f} GiB free (at least 0.25 are needed)")


def _port(settings: Settings) -> Check:
    if (url := running()) is not None:
        return _check("gateway", True, f"runs at {url}")
    host, port = settings.server.host, settings.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as wrong:
            return _check("gateway", False, f"{host}:{port} cannot be used: {wrong}. Choose another with --port.")
    return _check("gateway", True, f"not running; {host}:{port} is free")


def _browser() -> Check:
    from agent3.nlweb import browsers

    found = browsers.find()
    if found is None:
        return _check("browser", True, "none found; websites need one: python -m agent3.nlweb.browsers ensure")
    return _check("browser", True, f"{found.kind} at {found.path}")


def _extras() -> list[Check]:
    from importlib.util import find_spec

    known = {"postgres": "asyncpg", "browser": "playwright", "otel": "opentelemetry.sdk", "semantic": "tokenizers"}
    there = [extra for extra, module in known.items() if _has(find_spec, module)]
    return [_check("extras", True, f"installed: {', '.join(there) or 'none'}")]


def _has(find: Any, module: str) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:
        return False
