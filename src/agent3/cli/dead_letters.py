"""``agent3 dlq``: dead letters in the database of the settings. A gateway may be running."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from datetime import datetime

import msgspec
from cyclopts import App

from agent3.cli.options import load_database_settings
from agent3.cli.output import confirm, make_console, make_table, with_command_names
from agent3.env import REAL
from agent3.errors import Agent3Error, ValidationError
from agent3.gateway.dead_letters import Letters, Replayed, Wanted
from agent3.gateway.dead_letters import replay as replay_letter
from agent3.server.build import build
from agent3.server.demo import agents
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_indented, print_json, print_result

__all__ = ["app", "parse_moment"]

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

app = App(name="dlq")


@app.command(name="list")
def list_(
    *,
    agent: str | None = None,
    code: str | None = None,
    queue: str | None = None,
    since: str | None = None,
    limit: int = 50,
    all: bool = False,  # noqa: A002 - the option is called so
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """List dead letters, newest first.

    Parameters
    ----------
    agent:
        Only calls of this agent.
    code:
        Only calls that failed with this code, such as timeout.
    queue:
        Only messages of this queue.
    since:
        Only those after this time: 2h, 7d, or a date such as 2026-01-31.
    limit:
        Maximum number, up to 1000 [default: 50].
    all:
        Include calls that were already replayed.
    """
    after = None if since is None else parse_moment(since, time.time())
    wanted = Wanted(agent, code, after, queue, all, limit)
    found = run_on_database(load_database_settings(options), lambda database: Letters(database, REAL).find(wanted))
    if options.json:
        print_json({"letters": found, "count": len(found)})
        return
    if not found:
        print("No dead letters.")
        return
    table = make_table("letter", "when", "what", "code", "attempts", "why")
    for letter in found:
        what = f"{letter['agent']}/{letter['capability']}" if "agent" in letter else letter["place"]
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter["at"]))
        letter_code = letter["code"] + (" (replayed)" if letter["replayed"] else "")
        table.add_row(letter["id"], when, clean(what), letter_code, str(letter["attempts"]), clean(letter["message"]))
    make_console().print(table)


@app.command
def show(letter: str, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Show everything recorded about a dead letter. Secrets are never recorded.

    Parameters
    ----------
    letter:
        Id of the dead letter, as printed by agent3 dlq list.
    """
    found = run_on_database(load_database_settings(options), lambda database: Letters(database, REAL).show(letter))
    print_result(found, options.json, print_indented)


@app.command
def replay(
    letters: tuple[str, ...],
    *,
    again: bool = False,
    may_run_twice: bool = False,
    demo: bool = False,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Send dead letters again, each as its original caller. Replaying one twice does not run it twice.

    Parameters
    ----------
    letters:
        Ids of dead letters, as printed by agent3 dlq list.
    again:
        Include those that were already replayed.
    may_run_twice:
        Include those that the target may already have done, and would do again.
    demo:
        Include the demo agents as targets.
    """
    settings = load_database_settings(options)

    async def work() -> list[Replayed]:
        results = []
        async with build(settings, agents() if demo else (), take_over=False) as server:
            for letter in dict.fromkeys(letters):
                try:
                    result = await replay_letter(server.gateway, letter, again=again, twice=may_run_twice)
                except Agent3Error as error:  # the others are sent all the same
                    result = Replayed(letter, "refused", code=error.code, message=error.message)
                results.append(result)
        return results

    replayed = [
        {key: value for key, value in msgspec.to_builtins(result).items() if value is not None}
        for result in asyncio.run(work())
    ]
    if options.json:
        print_json({"replayed": replayed})
    else:
        for result in replayed:
            line = f"{result['id']}: {result['status']}"
            if "job" in result:
                line += f", job {result['job']}"
            elif "message" in result:
                line += f": {with_command_names(result['message'])}"
            print(line)
    if any(result["status"] in ("failed", "refused") for result in replayed):
        sys.exit(1)


@app.command
def drop(
    letters: tuple[str, ...],
    *,
    yes: bool = False,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Delete dead letters permanently.

    Parameters
    ----------
    letters:
        Ids of dead letters, as printed by agent3 dlq list.
    yes:
        Do not ask for confirmation. Required if there is no terminal.
    """
    if not yes:
        confirm(f"Delete {len(letters)} dead letters permanently?", options.json)
    dropped = run_on_database(load_database_settings(options), lambda database: Letters(database, REAL).drop(letters))
    if options.json:
        print_json({"dropped": dropped})
    else:
        print(f"Deleted {dropped} of {len(letters)}.")
    if dropped < len(letters):
        sys.exit(4)


def parse_moment(text: str, now: float) -> float:
    """A time as people write it: ``2h`` ago (s, m, h, d), or a date, optionally with a time of day.

    Without an offset it is local time, as in the lists.
    """
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(f"--since {text!r} is not a time. Write 2h, 7d, or a date such as 2026-01-31.") from None
    return found.timestamp()
