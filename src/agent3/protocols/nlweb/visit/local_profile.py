"""What this machine knows of websites, for who visits them without a gateway: sessions, heals, the operator's word.

It is the gateway's own database, where there is one: nothing is made for a single visit. A gateway may be running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.identity.master_keys import Seals
from agent3.identity.secrets import EnvironmentVault
from agent3.model import LOCAL
from agent3.protocols.nlweb.healing import Healer, StoredBook
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.visits import Finding
from agent3.settings import Settings, data_folder
from agent3.storage import open_database
from agent3.storage.connect import sqlite_path

__all__ = ["PERSON", "Home", "at_home"]

PERSON = LOCAL.id
"""Whose sessions they are: those of the local person, as at the gateway."""


@dataclass(frozen=True, slots=True)
class Home:
    """Without anything it is a stranger's: no cookies, no heals, no secrets. It belongs to one event loop."""

    grants: Grants = field(default_factory=Grants)
    robots: Robots = field(default_factory=Robots)
    sessions: Sessions | None = None
    finder: Finding | None = None

    async def known(self, interface: NLWebInterface) -> Any:
        """What a site stored in the browser when it was last visited by such an interface, or None."""
        if self.sessions is None or not self.grants.cover(interface):
            return None
        return await self.sessions.load(PERSON, scope_of(interface))

    async def remember(self, interface: NLWebInterface, state: Any) -> None:
        """For the next visit; what was never there is not begun by an empty one."""
        if self.sessions is not None and (state["cookies"] or state["origins"]):
            await self.sessions.save(PERSON, scope_of(interface), state)


@asynccontextmanager
async def at_home(settings: Settings, *, fresh: bool = False) -> AsyncIterator[Home]:
    """The home of these settings; ``fresh`` leaves out what earlier visits left, and so does a machine without any."""
    grants, robots = Grants.read(settings.web.secrets), Robots(settings.web.robots)
    url = None if fresh else _database(settings)
    if url is None:
        yield Home(grants, robots)
        return
    database = await open_database(url, max_bytes=settings.storage.max_bytes)
    try:
        seals = Seals(settings.storage.seal, url, EnvironmentVault())
        book = StoredBook(database)

        def finder(interface: NLWebInterface) -> Healer:
            return Healer(interface, book)

        yield Home(grants, robots, Sessions(database, seals.keys), finder)
    finally:
        await database.aclose()


def _database(settings: Settings) -> str | None:
    """The database of a gateway that ran here; None if there never was one."""
    url = settings.storage.url or f"sqlite:///{data_folder() / 'agent3.db'}"
    if not url.startswith("sqlite:"):
        return url
    file = sqlite_path(url)
    return url if file is not None and file.is_file() else None
