"""What this machine knows of websites, for visits without a gateway: sessions, heals, and the operator's settings.

It uses the gateway's own database if there is one; none is made for a single visit. A gateway may be running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.identity.data_keys import open_stored
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secrets import EnvironmentVault
from agent3.model import LOCAL
from agent3.protocols.nlweb.healing import ElementStore, Healer
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.visits import MakeFinder
from agent3.settings import Settings, data_folder
from agent3.storage.connect import sqlite_path

__all__ = ["OWNER", "LocalProfile", "open_local_profile"]

OWNER = LOCAL.id
"""The owner of the sessions: the local person, as at the gateway."""


@dataclass(frozen=True, slots=True)
class LocalProfile:
    """Empty it knows nothing: no cookies, no heals, no secrets. It belongs to one event loop."""

    grants: Grants = field(default_factory=Grants)
    robots: Robots = field(default_factory=Robots)
    sessions: Sessions | None = None
    finder: MakeFinder | None = None

    async def load_state(self, interface: NLWebInterface) -> Any:
        """What a site stored in the browser at the last visit with such an interface, or None."""
        if self.sessions is None or not self.grants.covers(interface):
            return None
        return await self.sessions.load(OWNER, scope_of(interface))

    async def save_state(self, interface: NLWebInterface, state: Any) -> None:
        """Store a state for the next visit, unless it is empty."""
        if self.sessions is not None and (state["cookies"] or state["origins"]):
            await self.sessions.save(OWNER, scope_of(interface), state)


@asynccontextmanager
async def open_local_profile(settings: Settings, *, fresh: bool = False) -> AsyncIterator[LocalProfile]:
    """The profile of these settings, without sessions and heals if it is ``fresh`` or no gateway ever ran here."""
    grants, robots = Grants.read(settings.web.secrets), Robots(settings.web.robots)
    url = settings.storage.url or f"sqlite:///{data_folder() / 'agent3.db'}"
    file = sqlite_path(url) if url.startswith("sqlite:") else None
    if fresh or (url.startswith("sqlite:") and (file is None or not file.is_file())):
        yield LocalProfile(grants, robots)
        return
    database = (await open_stored(settings, url=url)).database
    try:
        master_keys = MasterKeys(settings.storage.seal, url, EnvironmentVault())
        store = ElementStore(database)

        def finder(interface: NLWebInterface) -> Healer:
            return Healer(interface, store)

        yield LocalProfile(grants, robots, Sessions(database, master_keys.keys), finder)
    finally:
        await database.aclose()
