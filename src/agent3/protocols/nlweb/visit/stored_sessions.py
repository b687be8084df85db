"""What websites remember of callers: cookies and local storage, by principal and scope, encrypted in the database.

A scope is a site followed by a digest of what the session is bound to (``secret_grants.scope_of``). A session is loaded
before a visit and saved after it. It cannot be read in the database, and only its principal can use it, in its own
scope. It knows neither browser nor login.
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

__all__ = ["Keys", "Sessions", "StoredSession", "drop_expired"]

log = logger("nlweb")

Keys = Callable[[], Awaitable[Sequence[bytes]]]
"""The keys that encrypt, the newest first."""

_IDLE_DAYS = 30.0
_DAY = 86_400.0
_LARGEST = 1_000_000
"""Bytes; a page that stores more in the browser starts anew next time."""
_SAVE = (
    "INSERT INTO web_sessions (principal, site, expires, updated, sealed) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (principal, site) DO UPDATE "
    "SET expires = excluded.expires, updated = excluded.updated, sealed = excluded.sealed"
)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A stored session without its content: whose it is, where, when it was last used, and when it expires."""

    principal: str
    site: str
    used: float
    expires: float


class Sessions:
    """All sessions of a database. A session that was not used for ``idle_days`` is deleted.

    Without ``keys`` they can only be listed and deleted. Of two simultaneous visits of one principal in one scope, the
    one that ends later is kept.
    """

    def __init__(self, database: Database, keys: Keys | None = None, *, idle_days: float = _IDLE_DAYS, env: Env = REAL):
        self._database = database
        self._keys = keys
        self._idle = idle_days * _DAY
        self._env = env
        self._warned = False

    async def load(self, principal: str, scope: str) -> dict[str, Any] | None:
        """The state for a browser context, without expired cookies; None if there is none.

        A session that no key decrypts is deleted. Without any keys it is only not used: they may come back.
        """
        row = await self._database.one(
            "SELECT sealed FROM web_sessions WHERE principal = ? AND site = ? AND expires > ?",
            principal,
            scope,
            self._env.now(),
        )
        keys = await self._load_keys() if row is not None else None
        if row is None or keys is None:
            return None
        try:
            text = unseal(keys, row["sealed"], _context(principal, scope))
        except SetupError:
            log.warning("the session of %s at %s cannot be decrypted; deleting it", principal, scope)
            await self._delete("principal = ? AND site = ?", principal, scope)
            return None
        return drop_expired(msgspec.json.decode(text), self._env.now())

    async def save(self, principal: str, scope: str, state: Mapping[str, Any]) -> None:
        """Store a state; an empty or very large one deletes what was stored."""
        text = msgspec.json.encode(state).decode()
        if not (state.get("cookies") or state.get("origins")) or len(text) > _LARGEST:
            await self._delete("principal = ? AND site = ?", principal, scope)
            return
        keys = await self._load_keys()
        if keys is None:
            return
        now = self._env.now()
        sealed = seal(keys[0], text, _context(principal, scope), self._env)
        values = principal, scope, now + self._idle, now, sealed

        async def work(tx: Transaction) -> None:
            await tx.run("DELETE FROM web_sessions WHERE expires < ?", now)
            await tx.run(_SAVE, *values)

        await self._database.write(work)

    async def forget(self, principal: str | None = None, site: str | None = None) -> int:
        """Delete the sessions of one principal or all, at one site, in one scope or everywhere; how many there were."""
        return await self._delete(*_where(principal, site))

    async def find(self, principal: str | None = None, site: str | None = None) -> list[StoredSession]:
        """The sessions of one principal or all, selected as in ``forget``, the last used first."""
        where, *values = _where(principal, site)
        rows = await self._database.all(
            f"SELECT principal, site, updated, expires FROM web_sessions WHERE {where} AND expires > ? "
            "ORDER BY updated DESC, principal, site",
            *values,
            self._env.now(),
        )
        return [
            StoredSession(row["principal"], row["site"].partition(" ")[0], row["updated"], row["expires"])
            for row in rows
        ]

    async def _delete(self, where: str, *values: Any) -> int:
        async def work(tx: Transaction) -> int:
            return await tx.run(f"DELETE FROM web_sessions WHERE {where}", *values)

        return await self._database.write(work)

    async def _load_keys(self) -> Sequence[bytes] | None:
        """The keys; None if there are none, because a visit without a stored session is better than no visit."""
        try:
            return None if self._keys is None else await self._keys()
        except SetupError as error:
            if not self._warned:
                self._warned = True
                log.warning("sessions at websites are neither used nor stored: %s", error)
            return None


def drop_expired(state: dict[str, Any], now: float) -> dict[str, Any] | None:
    """The state without expired cookies; None if nothing is left."""
    # Playwright writes -1 for a cookie that lasts as long as the session.
    cookies = [cookie for cookie in state.get("cookies") or () if not 0 <= cookie.get("expires", -1) <= now]
    origins = state.get("origins") or []
    return {"cookies": cookies, "origins": origins} if cookies or origins else None


def _where(principal: str | None, site: str | None) -> tuple[Any, ...]:
    """The SQL condition for a principal and a site or scope, and its values."""
    conditions: list[str] = ["1 = 1"]
    values: list[Any] = []
    if principal is not None:
        conditions.append("principal = ?")
        values.append(principal)
    if site is not None:
        # A site means all its scopes. Not LIKE: % and _ in an address would match others.
        conditions.append("(site = ? OR substr(site, 1, ?) = ?)")
        values += [site, len(site) + 1, f"{site} "]
    return " AND ".join(conditions), *values


def _context(principal: str, scope: str) -> str:
    """What a session is encrypted for: a row moved to another principal or scope does not decrypt."""
    return msgspec.json.encode(["web session", principal, scope]).decode()
