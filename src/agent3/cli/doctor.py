"""``agent3 doctor``: whether this installation can do its work, and what to do where it cannot.

Each check is ``ok``, ``warn`` (it works, but somebody should look) or ``fail``. Looking changes nothing, except that a
database that is not there yet is made, and an older one brought to the shape of this version, as by any command.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from agent3.calls.jobs import LEASE
from agent3.calls.webhooks import keys_of
from agent3.cli.gateway_client import running
from agent3.directory import Directory
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.gateway.dead_letters import Letters
from agent3.identity.doorkeeper import Doorkeeper
from agent3.identity.secrets import EnvironmentVault
from agent3.observe.metrics import Metrics
from agent3.server.build import database_url
from agent3.settings import Settings, data_folder, mistaken
from agent3.storage import Database, open_database
from agent3.storage.connect import sqlite_path
from agent3.storage.leases import NOW

__all__ = ["examine"]

Check = dict[str, Any]
State = Literal["ok", "warn", "fail"]

_OLDEST = (3, 11)
_LEAST_FREE = 256 << 20
_COMFORTABLE = 1 << 30
_SKEW = 1.0
"""Seconds by which this clock may differ from the database's: leases are half a minute long."""
_AHEAD = 60.0
"""Seconds by which what is stored may lie in the future before the clock must have been set back."""


def examine(settings: Settings, env: Env = REAL) -> list[Check]:
    """All checks, each with a name, how it stands, a sentence, and what to do where something is to be done."""
    return [
        _python(),
        _settings(settings),
        *asyncio.run(_callbacks(settings)),
        *asyncio.run(_stored(settings, env)),
        *_disks(settings),
        *_artifacts(settings),
        *_permissions(settings),
        _port(settings),
        _browser(),
        *_extras(),
    ]


def _check(name: str, state: State, detail: str, remedy: str = "") -> Check:
    return {"name": name, "ok": state != "fail", "state": state, "detail": detail, "remedy": remedy}


def _python() -> Check:
    version = sys.version_info
    text = ".".join(map(str, version[:3]))
    return (
        _check("python", "ok", text) if version >= _OLDEST else _check("python", "fail", text, "Install 3.11 or newer.")
    )


def _settings(settings: Settings) -> Check:
    """Whether a gateway would start with them; that they can be read at all has been seen."""
    try:
        Doorkeeper(settings, Metrics())
    except Agent3Error as wrong:
        return _check("settings", "fail", wrong.message.splitlines()[0], "Change agent3.toml or the environment.")
    if strange := mistaken():
        return _check("settings", "warn", strange[0], "Correct its name, or unset it.")
    clients, rules = len(settings.clients), len(settings.rules)
    return _check("settings", "ok", f"{clients} clients, {rules} rules")


async def _callbacks(settings: Settings) -> list[Check]:
    """Whether the secrets that sign callbacks are set and have their form; without them, callers hear of it first."""
    named = {f"callback_secret of client {one.id!r}": one.callback_secret for one in settings.clients}
    wanted = {name: given for name, given in {"callbacks.secret": settings.callbacks.secret, **named}.items() if given}
    vault = EnvironmentVault()
    for name, reference in wanted.items():
        try:
            keys_of((await vault.get(reference)).reveal())
        except Agent3Error as wrong:
            return [_check("callbacks", "fail", f"{name}: {wrong.message}", "See docs/how-to/callbacks.md.")]
    return [_check("callbacks", "ok", f"{len(wanted)} secrets")] if wanted else []


# In the database


async def _stored(settings: Settings, env: Env) -> list[Check]:
    """What the database says of itself and of what is in it."""
    began = (env.now(), env.monotonic())
    try:
        database = await open_database(database_url(settings), env=env, max_bytes=settings.storage.max_bytes)
    except Agent3Error as wrong:
        return [_check("database", "fail", wrong.message, "See the sentence before.")]
    try:
        found = [await _database(database)]
        if found[0]["ok"]:
            found += [
                await _asked("clock", _clock(database, env, began)),
                await _asked("leases", _leases(database)),
                await _asked("dead letters", _letters(database, env)),
                await _asked("credentials", _credentials(database)),
            ]
        return found
    finally:
        await database.aclose()


async def _asked(name: str, work: Awaitable[Check]) -> Check:
    try:
        return await work
    except Agent3Error as wrong:
        return _check(name, "fail", wrong.message, "See what is said of the database.")


async def _database(database: Database) -> Check:
    report = await database.check(thorough=True)
    words = ", ".join(f"{key} {value}" for key, value in report.items() if key not in ("ok", "error"))
    if report.get("ok", True):
        return _check("database", *_room(report, words))
    damaged = report.get("integrity") not in ("ok", "unknown")
    remedy = "Stop the gateway and restore a backup: agent3 restore FILE." if damaged else "Try again; see the log."
    return _check("database", "fail", f"{report.get('error', words)}", remedy)


def _room(report: dict[str, object], words: str) -> tuple[State, str, str]:
    size, most = report.get("size"), report.get("max_bytes")
    free = report.get("free")
    if isinstance(size, int) and isinstance(most, int) and size - (free if isinstance(free, int) else 0) > 0.9 * most:
        return "warn", f"{words}: nearly full", "Raise storage.max_bytes, or keep less: calls.ledger_days and others."
    return "ok", words, ""


_NEWEST = (
    "SELECT MAX(at) AS at FROM (SELECT MAX(at) AS at FROM calls UNION ALL SELECT MAX(updated) FROM jobs) AS newest"
)


async def _clock(database: Database, env: Env, began: tuple[float, float]) -> Check:
    """Whether this clock agrees with the database's, runs as fast as time does, and is not behind what is stored."""
    before = env.now()
    row = await database.one(f"SELECT {NOW[database.dialect]} AS now")
    after = env.now()
    assert row is not None
    skew = max(before - row["now"], row["now"] - after, 0.0)
    jumped = abs((env.now() - began[0]) - (env.monotonic() - began[1]))
    newest = await database.one(_NEWEST)
    ahead = (newest["at"] or 0.0) - env.now() if newest is not None else 0.0
    remedy = "Let the machines keep time by NTP."
    if jumped > _SKEW:
        return _check("clock", "warn", f"it jumped by {jumped:.1f} s while this was looked at", remedy)
    if skew > _SKEW:
        state: State = "fail" if skew > LEASE / 2 else "warn"
        return _check("clock", state, f"{skew:.1f} s away from the database's", remedy)
    if ahead > _AHEAD:
        return _check("clock", "warn", f"{ahead:.0f} s behind what is stored: it was set back", remedy)
    return _check("clock", "ok", f"{skew * 1000:.0f} ms away from the database's")


async def _leases(database: Database) -> Check:
    """Jobs whose lease is long over, by the clock that leases are written with, which is the database's."""
    row = await database.one(
        "SELECT COUNT(*) AS jobs, COUNT(DISTINCT node) AS nodes FROM jobs "
        f"WHERE status = 'working' AND lease < {NOW[database.dialect]} - CAST(? AS DOUBLE PRECISION)",
        LEASE,
    )
    if row is None or not row["jobs"]:
        return _check("leases", "ok", "no job waits for a process that is gone")
    text = f"{row['jobs']} jobs of {row['nodes']} processes that are gone wait to be taken over"
    return _check("leases", "warn", text, "Start agent3 serve with the agents of those jobs.")


async def _letters(database: Database, env: Env) -> Check:
    letters = Letters(database, env)
    waiting, queues = await letters.calls.count_waiting(), await letters.queues()
    if not waiting.count and not queues:
        return _check("dead letters", "ok", "none")
    text = f"{waiting.count} calls, {len(queues)} queues with some"
    return _check("dead letters", "warn", text, "Look at them: agent3 dlq list.")


async def _credentials(database: Database) -> Check:
    """Whether the secrets and sign-ins that the added agents refer to are there. Their values are not looked at."""
    agents = await Directory(database, REAL, Metrics()).everything()
    wanted = {route.credential for agent in agents for one in agent.capabilities for route in one.routes}
    vault = EnvironmentVault()
    signed_in = {row["id"] for row in await database.all("SELECT id FROM sign_ins")}
    missing = [name for name in sorted(filter(None, wanted - signed_in)) if not await _resolves(vault, name)]
    if not missing:
        return _check("credentials", "ok", f"{len(wanted - {None})} references")
    text = f"not set here: {', '.join(missing[:10])}"
    remedy = "Set them in the environment of the gateway; what begins with oauth: comes back by agent3 add --sign-in."
    return _check("credentials", "warn", text, remedy)


async def _resolves(vault: EnvironmentVault, reference: str) -> bool:
    try:
        await vault.get(reference)
    except Agent3Error:
        return False
    return True


# On this machine


def _disks(settings: Settings) -> list[Check]:
    """Room where agent3 keeps its files, and where the database lies if that is elsewhere."""
    places = {"disk": data_folder().absolute()}
    if (file := _file(settings)) is not None and file.parent != places["disk"]:
        places["disk of the database"] = file.parent
    return [_disk(name, folder) for name, folder in places.items()]


def _disk(name: str, wanted: Path) -> Check:
    folder = next(one for one in (wanted, *wanted.parents) if one.is_dir())
    try:
        free = shutil.disk_usage(folder).free
    except OSError as wrong:
        return _check(name, "fail", f"{folder}: {wrong.strerror}", "Make the folder readable.")
    state: State = "fail" if free < _LEAST_FREE else "warn" if free < _COMFORTABLE else "ok"
    remedy = "" if state == "ok" else f"Free some space at {folder}; at 0 every write is refused."
    return _check(name, state, f"{free / (1 << 30):.1f} GiB free", remedy)


def _artifacts(settings: Settings) -> list[Check]:
    """Where large results lie, if the database may have other gateways: those see only what is in a common folder."""
    try:
        shared = database_url(settings).startswith("postgres")
    except Agent3Error:
        return []
    if not shared:
        return []
    if settings.storage.artifacts:
        return [_check("artifacts", "ok", f"in {settings.storage.artifacts}")]
    text = f"in {data_folder() / 'artifacts'}, which gateways on other machines do not see"
    remedy = "With more than one machine, set storage.artifacts to a folder that all of them share."
    return [_check("artifacts", "warn", text, remedy)]


def _file(settings: Settings) -> Path | None:
    """The file of the embedded database."""
    try:
        url = database_url(settings)
        return sqlite_path(url) if url.startswith("sqlite://") else None
    except Agent3Error:
        return None


def _permissions(settings: Settings) -> list[Check]:
    """What is stored is nobody else's business; and it must be ours to write."""
    if os.name == "nt":  # its permissions are not told by a mode
        return []
    file = _file(settings)
    places = [data_folder(), *([file.parent, file] if file is not None else [])]
    closed = [one for one in dict.fromkeys(places) if one.exists() and not os.access(one, os.R_OK | os.W_OK)]
    if closed:
        return [_check("permissions", "fail", f"{closed[0]} cannot be written", "Give it to the user of the gateway.")]
    ours = [one for one in dict.fromkeys((data_folder(), file)) if one is not None and one.exists()]
    if shared := [one for one in ours if stat.S_IMODE(one.stat().st_mode) & 0o077]:
        mode = "700" if shared[0].is_dir() else "600"
        return [_check("permissions", "warn", f"{shared[0]} is open to others", f"chmod {mode} {shared[0]}")]
    return [_check("permissions", "ok", "for this user only")]


def _port(settings: Settings) -> Check:
    if (url := running(settings)) is not None:
        return _check("gateway", "ok", f"runs at {url}")
    host, port = settings.server.host, settings.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as wrong:
            return _check("gateway", "fail", f"{host}:{port} cannot be used: {wrong}", "Choose another with --port.")
    return _check("gateway", "ok", f"not running; {host}:{port} is free")


def _browser() -> Check:
    from agent3.protocols.nlweb.browser import installation as browsers
    from agent3.protocols.nlweb.browser.chromium import UNPROTECTED, is_root

    found = browsers.find()
    if found is None:
        remedy = "python -m agent3.protocols.nlweb.browser.installation ensure, if you want to use websites."
        return _check("browser", "warn", "none found; websites need one", remedy)
    if is_root():
        return _check("browser", "warn", f"{found.kind} at {found.path}. {UNPROTECTED}", "Run agent3 as another user.")
    return _check("browser", "ok", f"{found.kind} at {found.path}")


def _extras() -> list[Check]:
    from importlib.util import find_spec

    known = {
        "postgres": "asyncpg",
        "browser": "playwright",
        "grpc": "grpc",
        "otel": "opentelemetry.sdk",
        "semantic": "tokenizers",
    }
    there = [extra for extra, module in known.items() if _has(find_spec, module)]
    return [_check("extras", "ok", f"installed: {', '.join(there) or 'none'}")]


def _has(find: Callable[[str], object], module: str) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:
        return False
