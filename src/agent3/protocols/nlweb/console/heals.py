"""``agent3 web heals``: what was healed on websites, for people to accept or to take back. A gateway may be running."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from cyclopts import App

from agent3.protocols.nlweb.healing import ElementStore
from agent3.protocols.nlweb.healing.records import State
from agent3.protocols.nlweb.healing.review import Heals
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_json

__all__ = ["app"]

app = App(name="heals")


@app.command(name="list")
def list_(
    interface: str | None = None,
    *,
    state: State | None = None,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """List heals, the latest change first.

    Parameters
    ----------
    interface:
        Only those of this website, by its interface_id.
    state:
        Only those that are proposed, promoted or reverted.
    """
    rows = _run(options, lambda known: known.find(interface, state))
    _print({"heals": rows, "count": len(rows)}, rows, options, "Nothing was healed.")


@app.command
def accept(heals: tuple[str, ...], *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Accept heals: from now on they replace their selectors, also in actions with consequences.

    Parameters
    ----------
    heals:
        Their ids, as agent3 web heals list prints them.
    """
    rows = _run(options, lambda known: known.accept(heals, _person()))
    _print({"accepted": rows}, rows, options, "No heal was named.")


@app.command
def revert(heals: tuple[str, ...], *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Take heals back: the selectors apply again, and these heals are never made again.

    Parameters
    ----------
    heals:
        Their ids, as agent3 web heals list prints them.
    """
    rows = _run(options, lambda known: known.revert(heals, _person()))
    _print({"reverted": rows}, rows, options, "No heal was named.")


def _person() -> str:
    """The user of this terminal, as far as the system knows; never the name that stands for the gateway itself."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a container without a name for its user
        return "cli"


def _run(options: DatabaseOptions, work: Callable[[Heals], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    return run_on_database(options.settings(), lambda database: work(Heals(ElementStore(database))))


def _print(body: dict[str, Any], rows: Sequence[dict[str, Any]], options: DatabaseOptions, nothing: str) -> None:
    if options.json:
        print_json(body)
        return
    for row in rows:
        changed = datetime.fromtimestamp(row["changed"]).astimezone().isoformat(" ", "seconds")
        print(
            f"{row['id']}  {row['state']:<9} {row['interface']}/{row['action']}: {row['selector']} -> {row['healed']}"
            f"  ({row['element']['role']} {row['element']['name']!r}, score {row['score']:.2f}, {row['wins']} times,"
            f" {changed}, {row['by']})"
        )
    if not rows:
        print(nothing)
