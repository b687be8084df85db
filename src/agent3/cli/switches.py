"""``agent3 stop`` and ``agent3 start``: a switch for agents, on the database of the settings."""

from __future__ import annotations

from agent3.calls.stops import Stops
from agent3.cli.options import load_database_settings
from agent3.env import REAL
from agent3.errors import ValidationError
from agent3.storage import Database
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_note, print_result

__all__ = ["start", "stop"]


def stop(agent: str, *, reason: str = "", options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Stop an agent: its calls are refused from now on, and those that run are ended.

    Parameters
    ----------
    agent:
        Its id.
    reason:
        Why; callers are told.
    """
    if not agent or len(agent) > 200:
        raise ValidationError("Say which agent to stop, by its id: agent3 list names them.")
    settings = load_database_settings(options)

    async def work(database: Database) -> bool:
        await Stops(database, REAL).stop(agent, reason)
        return await database.one("SELECT id FROM agents WHERE id = ?", agent) is not None

    if not run_on_database(settings, work):
        print_note(
            f"No agent {agent!r} has been added to this database. Unless a gateway hosts one of that id itself, this "
            "stops nothing: agent3 list names them."
        )
    print_result({"id": agent, "stopped": True}, options.json, lambda _: print(clean(f"{agent} is stopped.")))


def start(agent: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Let an agent that was stopped be called again.

    Parameters
    ----------
    agent:
        Its id.
    """
    settings = load_database_settings(options)
    run_on_database(settings, lambda database: Stops(database, REAL).start(agent))
    print_result({"id": agent, "stopped": False}, options.json, lambda _: print(clean(f"{agent} may be called again.")))
