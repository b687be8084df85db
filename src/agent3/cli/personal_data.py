"""``agent3 data``: what the database of the settings holds about a caller. A gateway may be running."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from cyclopts import App

from agent3.calls.personal_data import PersonalData
from agent3.cli.options import load_database_settings
from agent3.cli.output import confirm
from agent3.env import REAL
from agent3.errors import SetupError
from agent3.identity.data_keys import open_stored
from agent3.identity.own_keys import OwnKey, open_own_keys
from agent3.protocols.functions.standalone import blob_store
from agent3.settings import database_url
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import clean, print_note, print_result

__all__ = ["app"]

app = App(name="data", help="Data stored about a caller: export it, or erase it.")


@app.command
def export(principal: str, file: Path | None = None, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Export everything stored about a caller as JSON lines: calls, jobs, results, ratings, logins.

    Parameters
    ----------
    principal:
        Id of a client, or local.
    file:
        File to write, readable only by you [default: standard output].
    """

    async def work(data: PersonalData, _: OwnKey | None) -> int:
        lines = 0
        opener = None if file is None else os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        target = sys.stdout.buffer if opener is None else os.fdopen(opener, "wb")
        try:
            async for line in data.export(principal):
                target.write(line)
                lines += 1
            target.flush()
        finally:
            if opener is not None:
                target.close()
        return lines - 1

    try:
        lines = _run(options, work)
    except OSError as error:
        raise SetupError(f"Cannot write {file}: {error}.") from None
    print_note(f"{lines} records about {clean(principal)}.")


@app.command
def erase(principal: str, *, yes: bool = False, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008
    """Erase everything stored about a caller. The audit chain stays verifiable; backups are not changed.

    Parameters
    ----------
    principal:
        Id of a client, or local.
    yes:
        Do not ask for confirmation.
    """
    if not yes:
        confirm(f"Erase everything stored about {principal}? This cannot be undone.", options.json)
    gone = _run(options, lambda data, key: data.erase(principal, key))
    print_result({"principal": principal, "erased": gone}, options.json, _print_erased)


def _print_erased(found: dict[str, Any]) -> None:
    left = found["erased"].pop("running jobs")
    told = ", ".join(f"{count} {name}" for name, count in found["erased"].items() if count)
    print(clean(f"Erased for {found['principal']}: {told or 'nothing was stored'}."))
    if left:
        print_note(f"{left} jobs are still running. Run this again when they have ended.")


def _run(options: DatabaseOptions, work: Any) -> Any:
    settings = load_database_settings(options)
    url = database_url(settings)

    async def run() -> Any:
        stored = await open_stored(settings, url=url)
        try:
            key: OwnKey | None = None
            try:
                key = await open_own_keys(stored.database, settings.storage.seal, url, REAL).key("audit")
            except SetupError as error:
                print_note(f"The removal is not signed in the audit: {error.message}")
            blobs = blob_store(settings, url, stored.database, stored.cipher)
            return await work(PersonalData(stored.database, blobs, REAL), key)
        finally:
            await stored.database.aclose()

    return asyncio.run(run())
