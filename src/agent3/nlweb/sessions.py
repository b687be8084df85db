"""What a website remembers of a caller: cookies and local storage, for each principal and site, sealed in the database.

A session is loaded before a visit and saved after it. Nothing of it can be read in the database, and it opens for
nobody but its principal, at no site but its own. It knows neither browser nor login.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from agent3.env import REAL, Env
from agent3.errors import SetupError
from agent3.observe.logs import get as logger
from agent3.security.sealed import seal, unseal
from agent3.storage import Database, Transaction

__all__ = ["Keys", "Sessions", "fresh"]

log = logger("nlweb")

Keys = Callable[[], Awaitable[Sequence[bytes]]]
"""The keys that seal, the newest first."""

_IDLE_DAYS = 30.0
_DAY = 86_400.0
_LARGEST = 1_000_000
"""Bytes of a state that are kept; a page that stores more in the browser starts anew the next time."""
_SAVE = (
    "INSERT INTO web_sessions (principal, site, expires, updated, sealed) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (principal, site) DO UPDATE "
    "SET expires = excluded.expires, updated = excluded.updated, sealed = excluded.sealed"
)


class Sessions:
    """All sessions of a database. A session that nobody used for ``idle_days`` is forgotten.

    Of two visits of one principal to one site at the same time the one that ends later is remembered.
    """

    def __init__(self, database: Database, keys: Keys, *, idle_days: float = _IDLE_DAYS, env: Env = REAL):
        self._database = database
        self._keys = keys
        self._idle = idle_days * _DAY
        self._env = env
        self._told = False

    async def load(self, principal: str, site: str) -> dict[str, Any] | None:
        """What a browser context takes as its state, without cookies that have expired; None if there is nothing."""
        row = await self._database.one(
            "SELECT sealed FROM web_sessions WHERE principal = ? AND site = ? AND expires > ?",
            principal,
            site,
            self._env.now(),
        )
        if row is None:
            return None
        try:
            text = unseal(await self._keys(), row["sealed"], _belongs_to(principal, site))
        except SetupError:
            log.warning("the session of %s at %s cannot be opened and is forgotten", principal, site)
            await self.forget(principal, site)
            return None
        return fresh(msgspec.json.decode(text), self._env.now())

    async def save(self, principal: str, site: str, state: Mapping[str, Any]) -> None:
        """Remember a state; an empty one is forgotten."""
        text = msgspec.json.encode(state).decode()
        if not (state.get("cookies") or state.get("origins")) or len(text) > _LARGEST:
            await self.forget(principal, site)
            return
        try:
            keys = await self._keys()
        except SetupError as wrong:  # a visit without a memory is better than none
            self._tell_once(wrong)
            return
        now = self._env.now()
        sealed = seal(keys[0], text, _belongs_to(principal, site), self._env)
        values = principal, site, now + self._idle, now, sealed

        async def work(tx: Transaction) -> None:
            await tx.run("DELETE FROM web_sessions WHERE expires < ?", now)
            await tx.run(_SAVE, *values)

        await self._database.write(work)

    async def forget(self, principal: str, site: str | None = None) -> int:
        """Forget a principal's session at a site, or at all of them; how many there were."""
        everywhere = "DELETE FROM web_sessions WHERE principal = ?"

        async def work(tx: Transaction) -> int:
            if site is None:
                return await tx.run(everywhere, principal)
            return await tx.run(f"{everywhere} AND site = ?", principal, site)

        return await self._database.write(work)

    async def sites(self, principal: str) -> list[str]:
        """Where a principal has a session."""
        rows = await self._database.all(
            "SELECT site FROM web_sessions WHERE principal = ? AND expires > ? ORDER BY site",
            principal,
            self._env.now(),
        )
        return [row["site"] for row in rows]

    def _tell_once(self, wrong: SetupError) -> None:
        if not self._told:
            self._told = True
            log.warning("sessions at websites are not kept: %s", wrong)


def fresh(state: dict[str, Any], now: float) -> dict[str, Any] | None:
    """The state without what has expired; None if nothing is left."""
    cookies = [one for one in state.get("cookies") or () if one.get("expires", -1) < 0 or one["expires"] > now]
    origins = state.get("origins") or []
    return {"cookies": cookies, "origins": origins} if cookies or origins else None


def _belongs_to(principal: str, site: str) -> str:
    return msgspec.json.encode(["web session", principal, site]).decode()
