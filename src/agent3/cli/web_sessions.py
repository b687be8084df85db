"""``agent3 web sessions``: where callers are known on websites, to list and to forget. A gateway may be running.

A session itself cannot be read here: it is sealed, and only a visit of its owner opens it.
"""

from __future__ import annotations

import asyncio
import json as notation
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cyclopts import App

from agent3.cli.web_heals import web
from agent3.errors import ValidationError
from agent3.protocols.nlweb.visit.stored_sessions import Kept, Sessions
from agent3.protocols.nlweb.visit.throttle import site_of
from agent3.server.build import database_url
from agent3.settings import Settings, load
from agent3.storage import open_database

__all__ = ["app", "web"]

T = TypeVar("T")

app = App(name="sessions", help="Where callers are known on websites: their cookies, sealed.")
web.command(app)


# The commands


@app.command(name="list")
def list_(
    site: str | None = None,
    *,
    principal: str | None = None,
    db: str | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """List sessions, the latest used first.

    Parameters
    ----------
    site:
        Only those at this website, as https://host or host.
    principal:
        Only those of this caller.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    found = _on(_settings(db, config), lambda sessions: _found(sessions, principal, site))
    if json:
        _print({"sessions": [asdict(one) for one in found], "count": len(found)})
        return
    for one in found:
        sys.stdout.write(f"{one.site}  {one.principal}  used {_day(one.used)}, kept until {_day(one.expires)}\n")
    if not found:
        sys.stdout.write("No sessions are kept.\n")


@app.command
def forget(
    site: str | None = None,
    *,
    principal: str | None = None,
    everything: bool = False,
    db: str | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """Forget sessions: the next visit is that of a stranger, and logs in where its interface says how.

    For example: agent3 web sessions forget shop.example --principal ann

    Parameters
    ----------
    site:
        The website, as https://host or host; all of them by default.
    principal:
        The caller; all of them by default.
    everything:
        Needed to forget all sessions of everybody.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    if site is None and principal is None and not everything:
        raise ValidationError("Say which: a website, --principal NAME, or --everything for all sessions of everybody.")
    number = _on(_settings(db, config), lambda sessions: _forgotten(sessions, principal, site))
    if json:
        _print({"forgotten": number})
    else:
        sys.stdout.write(f"{number} forgotten.\n")


async def _found(sessions: Sessions, principal: str | None, site: str | None) -> list[Kept]:
    found = [kept for one in _sites(site) for kept in await sessions.kept(principal, one)]
    return sorted(found, key=lambda one: -one.used)


async def _forgotten(sessions: Sessions, principal: str | None, site: str | None) -> int:
    return sum([await sessions.forget(principal, one) for one in _sites(site)])


def _sites(said: str | None) -> list[str | None]:
    """What a person calls a site, as sites are known: one, two where the scheme is left open, or any."""
    if said is None:
        return [None]
    return [site_of(said)] if "://" in said else [site_of(f"{scheme}://{said}") for scheme in ("https", "http")]


def _settings(db: str | None, config: Path | None) -> Settings:
    return load(config, overrides={"storage": {"url": db}})


def _on(settings: Settings, work: Callable[[Sessions], Awaitable[T]]) -> T:
    async def run() -> T:
        database = await open_database(database_url(settings), max_bytes=settings.storage.max_bytes)
        try:
            return await work(Sessions(database))
        finally:
            await database.aclose()

    return asyncio.run(run())


def _print(body: object) -> None:
    sys.stdout.write(notation.dumps(body, ensure_ascii=False) + "\n")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "minutes")
