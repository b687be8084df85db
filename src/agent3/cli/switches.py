"""``agent3 stop`` and ``agent3 start``: switch agents off and on, in the database of the settings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent3.calls.stops import Stops
from agent3.cli.options import load_database_settings
from agent3.cli.output import make_console, make_table
from agent3.env import REAL
from agent3.errors import ValidationError
from agent3.schema.explain import nearest
from agent3.storage import Database
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_note, print_result

__all__ = ["start", "stop"]


def stop(agent: str = "", *, reason: str = "", options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Stop an agent: refuse its calls and end those that run. Without an agent, list the stopped ones.

    Parameters
    ----------
    agent:
        Id of the agent.
    reason:
        Reason, shown to callers.
    """
    if len(agent) > 200:
        raise ValidationError("Name the agent to stop, by its id; see agent3 list.")
    settings = load_database_settings(options)
    if not agent:
        stopped = run_on_database(settings, lambda database: Stops(database, REAL).list_agents())
        print_result({"stopped": stopped}, options.json, lambda _: _print_stopped(stopped))
        return

    async def work(database: Database) -> tuple[bool, str | None]:
        await Stops(database, REAL).stop(agent, reason)
        added = [row["id"] for row in await database.all("SELECT id FROM agents")]
        # A gateway may host it itself; then it has most likely been called.
        known = agent in added or await database.one("SELECT id FROM calls WHERE agent = ? LIMIT 1", agent) is not None
        return known, nearest(agent, added)

    known, near = run_on_database(settings, work)
    if not known:
        hint = f" Did you mean {near!r}?" if near else " See agent3 list."
        print_note(f"No agent {agent!r} is known here.{hint} To undo this stop: agent3 start {agent}")
    done = f"{agent} is stopped." if known else f"Calls to {agent!r} are refused."
    print_result({"id": agent, "stopped": True}, options.json, lambda _: print(clean(done)))


def _print_stopped(stopped: Sequence[Mapping[str, Any]]) -> None:
    if not stopped:
        print("No agents are stopped.")
        return
    table = make_table("agent", "since", "by", "reason")
    for one in stopped:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"]))
        table.add_row(one["id"], since, one["who"], one["reason"])
    make_console().print(table)


def start(agent: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Allow calls to a stopped agent again.

    Parameters
    ----------
    agent:
        Id of the agent.
    """
    settings = load_database_settings(options)
    run_on_database(settings, lambda database: Stops(database, REAL).start(agent))
    print_result({"id": agent, "stopped": False}, options.json, lambda _: print(clean(f"{agent} can be called again.")))
