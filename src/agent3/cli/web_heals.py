"""``agent3 web heals``: what was healed on websites, for people to accept or to take back. A gateway may be running."""

from __future__ import annotations

import asyncio
import getpass
import json as notation
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from cyclopts import App

from agent3.cli.web import app as web
from agent3.protocols.nlweb.healing import StoredBook
from agent3.protocols.nlweb.healing.records import State
from agent3.protocols.nlweb.healing.review import Heals
from agent3.server.build import database_url
from agent3.settings import Settings, load
from agent3.storage import Database, open_database

__all__ = ["Heals", "app", "web"]

T = TypeVar("T")

app = App(name="heals", help="Selectors that fit no more, and what was taken in their place.")
web.command(app)


# The commands


@app.command(name="list")
def list_(
    interface: str | None = None,
    *,
    state: State | None = None,
    db: str | None = None,
    config: Path | None = None,
    json: bool = False,
) -> None:
    """List heals, the latest change first.

    Parameters
    ----------
    interface:
        Only those of this website, by its interface_id.
    state:
        Only those that are proposed, promoted or reverted.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    rows = _on(_settings(db, config), lambda heals: heals.find(interface, state))
    _show({"heals": rows, "count": len(rows)}, rows, json, "Nothing was healed.")


@app.command
def accept(heals: tuple[str, ...], *, db: str | None = None, config: Path | None = None, json: bool = False) -> None:
    """Say that heals are right: from now on they stand for their selectors, also where an action has consequences.

    Parameters
    ----------
    heals:
        Their ids, as agent3 web heals list prints them.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    rows = _on(_settings(db, config), lambda all_: all_.accept(heals, _person()))
    _show({"accepted": rows}, rows, json, "No heal was named.")


@app.command
def revert(heals: tuple[str, ...], *, db: str | None = None, config: Path | None = None, json: bool = False) -> None:
    """Take heals back: the selectors mean what they meant before, and these heals are never made again.

    Parameters
    ----------
    heals:
        Their ids, as agent3 web heals list prints them.
    db:
        The database: sqlite:///PATH or postgresql://… By default that of the settings.
    config:
        Settings file; agent3.toml in this folder by default.
    json:
        Print JSON.
    """
    rows = _on(_settings(db, config), lambda all_: all_.revert(heals, _person()))
    _show({"reverted": rows}, rows, json, "No heal was named.")


def _settings(db: str | None, config: Path | None) -> Settings:
    return load(config, overrides={"storage": {"url": db}})


def _person() -> str:
    """Who sits there, as far as the system knows; never the name that stands for the gateway itself."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a container without a name for its user
        return "cli"


def _on(settings: Settings, work: Callable[[Heals], Awaitable[T]]) -> T:
    async def run() -> T:
        database: Database = await open_database(database_url(settings), max_bytes=settings.storage.max_bytes)
        try:
            return await work(Heals(StoredBook(database)))
        finally:
            await database.aclose()

    return asyncio.run(run())


def _show(body: dict[str, Any], rows: Sequence[dict[str, Any]], json: bool, nothing: str) -> None:
    if json:
        sys.stdout.write(notation.dumps(body, ensure_ascii=False) + "\n")
        return
    for row in rows:
        when = datetime.fromtimestamp(row["changed"]).astimezone().isoformat(" ", "seconds")
        sys.stdout.write(
            f"{row['id']}  {row['state']:<9} {row['interface']}/{row['action']}: {row['selector']} -> {row['healed']}"
            f"  ({row['element']['role']} {row['element']['name']!r}, score {row['score']:.2f}, {row['wins']} times,"
            f" {when}, {row['by']})\n"
        )
    if not rows:
        sys.stdout.write(f"{nothing}\n")
