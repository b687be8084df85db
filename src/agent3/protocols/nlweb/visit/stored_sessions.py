"""What a website remembers of a caller: cookies and local storage, for a principal and a scope, sealed in the database.

A scope is a site, with a mark behind it of what it is bound to there (``grants.scope_of``). A session is loaded before
a visit and saved after it. Nothing of it can be read in the database, and it opens for nobody but its principal, in no
scope but its own. It knows neither browser nor login.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agent3.env import REAL, Env
from agent3.errors import SetupError
from agent3.identity.secret_box import seal, unseal
from agent3.observe.logs import get as logger
from agent3.storage import Database, Transaction

__all__ = ["Kept", "Keys", "Sessions", "fresh"]

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


@dataclass(frozen=True, slots=True)
class Kept:
    """A session as people see it: whose it is, where, since when it was not used, and when it is forgotten."""

    principal: str
    site: str
    used: float
    expires: float


class Sessions:
    """All sessions of a database. A session that nobody used for ``idle_days`` is forgotten.

    Without ``keys`` they can only be listed and forgotten.
    Of two visits of one principal in one scope at the same time the one that ends later is remembered.
    """

    def __init__(self, database: Database, keys: Keys | None = None, *, idle_days: float = _IDLE_DAYS, env: Env = REAL):
        self._database = database
        self._keys = keys
        self._idle = idle_days * _DAY
        self._env = env
        self._told = False

    async def load(self, principal: str, scope: str) -> dict[str, Any] | None:
        """What a browser context takes as its state, without cookies that have expired; None if there is nothing.

        One that no key opens is forgotten. Without any keys it is only not used: they may come back.
        """
        row = await self._database.one(
            "SELECT sealed FROM web_sessions WHERE principal = ? AND site = ? AND expires > ?",
            principal,
            scope,
            self._env.now(),
        )
        keys = await self._unlocked() if row is not None else None
        if row is None or keys is None:
            return None
        try:
            text = unseal(keys, row["sealed"], _belongs_to(principal, scope))
        except SetupError:
            log.warning("the session of %s at %s cannot be opened and is forgotten", principal, scope)
            await self._delete("principal = ? AND site = ?", principal, scope)
            return None
        return fresh(msgspec.json.decode(text), self._env.now())

    async def save(self, principal: str, scope: str, state: Mapping[str, Any]) -> None:
        """Remember a state; an empty one is forgotten."""
        text = msgspec.json.encode(state).decode()
        if not (state.get("cookies") or state.get("origins")) or len(text) > _LARGEST:
            await self._delete("principal = ? AND site = ?", principal, scope)
            return
        keys = await self._unlocked()
        if keys is None:
            return
        now = self._env.now()
        sealed = seal(keys[0], text, _belongs_to(principal, scope), self._env)
        values = principal, scope, now + self._idle, now, sealed

        async def work(tx: Transaction) -> None:
            await tx.run("DELETE FROM web_sessions WHERE expires < ?", now)
            await tx.run(_SAVE, *values)

        await self._database.write(work)

    async def forget(self, principal: str | None = None, site: str | None = None) -> int:
        """Forget the sessions of a principal, or of all, at a site or in one scope, or everywhere; how many."""
        return await self._delete(*_those(principal, site))

    async def kept(self, principal: str | None = None, site: str | None = None) -> list[Kept]:
        """The sessions of a principal, or of all, likewise, the latest used first."""
        where, *values = _those(principal, site)
        rows = await self._database.all(
            f"SELECT principal, site, updated, expires FROM web_sessions WHERE {where} AND expires > ? "
            "ORDER BY updated DESC, principal, site",
            *values,
            self._env.now(),
        )
        return [Kept(row["principal"], _site(row["site"]), row["updated"], row["expires"]) for row in rows]

    async def _delete(self, where: str, *values: Any) -> int:
        async def work(tx: Transaction) -> int:
            return await tx.run(f"DELETE FROM web_sessions WHERE {where}", *values)

        return await self._database.write(work)

    async def _unlocked(self) -> Sequence[bytes] | None:
        """The keys; None where there are none, for a visit without a memory is better than none."""
        try:
            return None if self._keys is None else await self._keys()
        except SetupError as wrong:
            if not self._told:
                self._told = True
                log.warning("sessions at websites are neither used nor kept: %s", wrong)
            return None


def fresh(state: dict[str, Any], now: float) -> dict[str, Any] | None:
    """The state without what has expired; None if nothing is left."""
    cookies = [one for one in state.get("cookies") or () if one.get("expires", -1) < 0 or one["expires"] > now]
    origins = state.get("origins") or []
    return {"cookies": cookies, "origins": origins} if cookies or origins else None


def _those(principal: str | None, site: str | None) -> tuple[Any, ...]:
    """The condition for a principal and a site or scope, and its values."""
    conditions: list[str] = ["1 = 1"]
    values: list[Any] = []
    if principal is not None:
        conditions.append("principal = ?")
        values.append(principal)
    if site is not None:  # with or without a mark behind it
        conditions.append("(site = ? OR substr(site, 1, ?) = ?)")
        values += [site, len(site) + 1, f"{site} "]
    return " AND ".join(conditions), *values


def _site(scope: str) -> str:
    return scope.partition(" ")[0]


def _belongs_to(principal: str, scope: str) -> str:
    return msgspec.json.encode(["web session", principal, scope]).decode()
