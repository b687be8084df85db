"""``agent3 web sessions``: lists and forgets the sessions of callers on websites. A gateway may be running.

A session itself cannot be read here: it is sealed, and only a visit of its owner opens it.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from cyclopts import App

from agent3.errors import ValidationError
from agent3.protocols.nlweb import Sessions, StoredSession, site_of
from agent3.storage import Database
from agent3.terminal.database_work import run_on_database
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_json

__all__ = ["app"]

app = App(name="sessions")


@app.command(name="list")
def list_(
    site: str | None = None,
    *,
    principal: str | None = None,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """List sessions, the latest used first.

    Parameters
    ----------
    site:
        Only those at this website, as https://host or host.
    principal:
        Only those of this caller.
    """

    async def find(database: Database) -> list[StoredSession]:
        sessions = Sessions(database)
        found = [kept for origin in _origins(site) for kept in await sessions.find(principal, origin)]
        return sorted(found, key=lambda kept: -kept.used)

    found = run_on_database(options.settings(), find)
    if options.json:
        print_json({"sessions": [asdict(kept) for kept in found], "count": len(found)})
        return
    for kept in found:
        used, expires = (
            datetime.fromtimestamp(moment).astimezone().isoformat(" ", "minutes")
            for moment in (kept.used, kept.expires)
        )
        print(f"{kept.site}  {kept.principal}  used {used}, kept until {expires}")
    if not found:
        print("No sessions are stored.")


@app.command
def forget(
    site: str | None = None,
    *,
    principal: str | None = None,
    everything: bool = False,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Forget sessions: the next visit starts without cookies, and logs in where its interface says how.

    For example: agent3 web sessions forget shop.example --principal ann

    Parameters
    ----------
    site:
        The website, as https://host or host; all of them by default.
    principal:
        The caller; all of them by default.
    everything:
        Required to forget all sessions of all callers.
    """
    if site is None and principal is None and not everything:
        raise ValidationError("Name a website, --principal NAME, or --everything for all sessions of all callers.")

    async def forget_all(database: Database) -> int:
        sessions = Sessions(database)
        return sum([await sessions.forget(principal, origin) for origin in _origins(site)])

    number = run_on_database(options.settings(), forget_all)
    if options.json:
        print_json({"forgotten": number})
    else:
        print(f"{number} forgotten.")


def _origins(site: str | None) -> list[str | None]:
    """What a person calls a site, as sites are known: one, two where the scheme is left open, or any."""
    if site is None:
        return [None]
    return [site_of(site)] if "://" in site else [site_of(f"{scheme}://{site}") for scheme in ("https", "http")]
