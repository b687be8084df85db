"""Clients in the database: added, given new keys, stopped and removed while gateways run.

Clients of the settings stand beside them and are not changed here. Of a key only its SHA-256 is stored, so it is shown
once, when it is made. Every gateway on the database looks for changes twice a second, and where the database notifies
it hears of them at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Conflict, NotFound, ValidationError
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, record_change
from agent3.storage.counters import increase
from agent3.storage.notifications import News

__all__ = ["TOPIC", "StoredClients"]

log = logger("auth")

TOPIC = "clients"
_EVERY = 0.5
"""Seconds between two looks for what another process has changed."""
_MOST = 10_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}")  # scope-token of RFC 6749
_GOOD = "(expires IS NULL OR expires > ?)"


class StoredClients:
    """The clients of one database. Reads come from memory, which ``refresh`` and ``follow`` bring up to date."""

    def __init__(self, database: Database, env: Env = REAL, news: News | None = None):
        self._database = database
        self._env = env
        self._news = news
        self._version = -1
        self._keys: dict[bytes, tuple[Principal, float | None]] = {}
        self._stopped: dict[bytes, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self.count = 0
        """Clients, stopped ones included."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something changed, by whichever process: what was decided before may be wrong."""

    def find(self, digest: bytes) -> Principal | None:
        """Who has the key of this SHA-256; None for a key that is unknown or over, or whose client is stopped."""
        found = self._keys.get(digest)
        if found is None or (found[1] is not None and found[1] <= self._env.now()):
            return None
        return found[0]

    def find_stopped(self, digest: bytes) -> str | None:
        """The stopped client that has the key of this SHA-256."""
        return self._stopped.get(digest)

    # Keeping up

    async def refresh(self) -> None:
        """Take over what was changed since the last look."""
        row = await self._database.one("SELECT value FROM counters WHERE name = 'clients'")
        version = 0 if row is None else int(row["value"])
        if version == self._version:
            return
        clients = await self._database.all("SELECT * FROM clients")
        keys = await self._database.all("SELECT * FROM client_keys")
        working = {row["id"]: _principal(row) for row in clients if row["stopped"] is None}
        self._keys = {
            bytes.fromhex(row["digest"]): (working[row["client"]], row["expires"])
            for row in keys
            if row["client"] in working
        }
        self._stopped = {
            bytes.fromhex(row["digest"]): row["client"]
            for row in keys
            if row["client"] not in working and (row["expires"] is None or row["expires"] > self._env.now())
        }
        self.count = len(clients)
        self._version = version
        self.on_change()

    def follow(self) -> None:
        """Keep up with other processes, until ``aclose``."""
        if self._news is not None:
            self._news.on(TOPIC, lambda _: self._heard.set())
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="clients")

    async def aclose(self) -> None:
        """Stop keeping up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._heard.wait(), _EVERY)
            self._heard.clear()
            try:
                if ended := [digest for digest in self._keys if self.find(digest) is None]:
                    for digest in ended:
                        del self._keys[digest]
                    self.on_change()  # somebody may remember that such a key is good
                await self.refresh()
            except Agent3Error as error:  # of the database: what is known stays good, and the next look may succeed
                log.debug("cannot check whether clients were changed: %s", error)

    # Changing

    async def add(self, client: str, scopes: Sequence[str] = (), tenant: str | None = None) -> str:
        """Add a client; its key, which is not stored and cannot be shown again."""
        if not _ID.fullmatch(client) or client == "local":
            raise ValidationError(
                f"{client[:100]!r} cannot be the id of a client: use up to 100 letters, digits, '.', '_', "
                "'@' and '-', and not 'local'."
            )
        _check_scopes(scopes)
        key, digest = _new_key()
        now = self._env.now()

        async def work(tx: Transaction) -> None:
            if await tx.one("SELECT id FROM clients WHERE id = ?", client):
                raise Conflict(f"Client {client!r} already exists. To make a new key: agent3 client rotate {client}")
            count = await tx.one("SELECT COUNT(*) AS count FROM clients")
            if count is not None and count["count"] >= _MOST:
                raise ValidationError(
                    f"There are already {_MOST} clients, the maximum. Remove some, or use access tokens (OAuth)."
                )
            await tx.run(
                "INSERT INTO clients (id, scopes, tenant, created, stopped) VALUES (?, ?, ?, ?, NULL)",
                *(client, " ".join(dict.fromkeys(scopes)), tenant, now),
            )
            await _insert_key(tx, digest, client, now)
            await increase(tx, "clients")

        await self._change(work, "client added", client)
        return key

    async def rotate(self, client: str, overlap: float) -> tuple[str, float | None]:
        """Give a client a new key. The present one stays good for ``overlap`` seconds; older ones end at once.

        Gives the new key, and when the present one ends; None where it ended at once, or there was none.
        """
        if not 0 <= overlap <= 90 * 86_400:
            raise ValidationError(f"The old key can stay valid for 0 to 90 days, not for {overlap:g} seconds.")
        key, digest = _new_key()
        now = self._env.now()
        until: list[float] = []

        async def work(tx: Transaction) -> None:
            until.clear()  # a transaction may be run again
            await _require(tx, client)
            rows = await tx.all("SELECT digest FROM client_keys WHERE client = ? AND expires IS NULL", client)
            kept = rows[0]["digest"] if rows and overlap else ""
            await tx.run("DELETE FROM client_keys WHERE client = ? AND digest <> ?", client, kept)
            if kept:
                until.append(now + overlap)
                await tx.run("UPDATE client_keys SET expires = ? WHERE digest = ?", now + overlap, kept)
            await _insert_key(tx, digest, client, now)
            await increase(tx, "clients")

        await self._change(work, "client key rotated", client)
        return key, until[0] if until else None

    async def set_scopes(self, client: str, scopes: Sequence[str]) -> None:
        """Give a client other scopes, and with them what rules let it do. Its keys stay good."""
        _check_scopes(scopes)

        async def work(tx: Transaction) -> None:
            await _require(tx, client)
            await tx.run("UPDATE clients SET scopes = ? WHERE id = ?", " ".join(dict.fromkeys(scopes)), client)
            await increase(tx, "clients")

        await self._change(work, "client scopes changed", client)

    async def stop(self, client: str, *, stopped: bool = True) -> None:
        """Refuse everything that a client sends from now on, or, where ``stopped`` is false, take it again."""

        async def work(tx: Transaction) -> None:
            await _require(tx, client)
            await tx.run("UPDATE clients SET stopped = ? WHERE id = ?", self._env.now() if stopped else None, client)
            await increase(tx, "clients")

        await self._change(work, "client stopped" if stopped else "client started", client)

    async def remove(self, client: str) -> None:
        """Remove a client and its keys. What it did stays in the ledger."""

        async def work(tx: Transaction) -> None:
            await _require(tx, client)
            await tx.run("DELETE FROM client_keys WHERE client = ?", client)
            await tx.run("DELETE FROM clients WHERE id = ?", client)
            await increase(tx, "clients")

        await self._change(work, "client removed", client)

    async def list(self) -> list[dict[str, Any]]:
        """Every client, with when its keys were made and end; no key, and no hash of one."""
        now = self._env.now()
        keys: dict[str, list[dict[str, Any]]] = {}
        for row in await self._database.all(
            f"SELECT client, created, expires FROM client_keys WHERE {_GOOD} ORDER BY created DESC", now
        ):
            keys.setdefault(row["client"], []).append({"created": row["created"], "expires": row["expires"]})
        return [
            {
                "id": row["id"],
                "scopes": row["scopes"].split(),
                "tenant": row["tenant"],
                "created": row["created"],
                "stopped": row["stopped"],
                "keys": keys.get(row["id"], []),
            }
            for row in await self._database.all("SELECT * FROM clients ORDER BY id")
        ]

    async def get(self, client: str) -> Principal:
        """A client as rules see it, also while it is stopped."""
        row = await self._database.one("SELECT * FROM clients WHERE id = ?", client)
        if row is None:
            raise _unknown_client(client)
        return _principal(row)

    async def _change(self, work: Callable[[Transaction], Any], what: str, client: str) -> None:
        who = ACTOR.get()

        async def work_and_record(tx: Transaction) -> None:
            await work(tx)
            await record_change(tx, self._env, what, client, None, who)

        await self._database.write(work_and_record)
        if self._news is not None:
            self._news.tell(TOPIC)
        await self.refresh()


def _check_scopes(scopes: Sequence[str]) -> None:
    if wrong := [scope for scope in scopes if not _SCOPE.fullmatch(scope)]:
        raise ValidationError(f"{wrong[0][:100]!r} cannot be a scope: it contains spaces, quotes or non-ASCII letters.")


def _new_key() -> tuple[str, bytes]:
    """A key, with a beginning by which it is recognised where it must not be, and its SHA-256."""
    key = f"a3k_{secrets.token_urlsafe(32)}"
    return key, hashlib.sha256(key.encode()).digest()


def _principal(row: Any) -> Principal:
    return Principal(row["id"], "client", frozenset(row["scopes"].split()), row["tenant"])


async def _insert_key(tx: Transaction, digest: bytes, client: str, now: float) -> None:
    await tx.run(
        "INSERT INTO client_keys (digest, client, created, expires) VALUES (?, ?, ?, NULL)", digest.hex(), client, now
    )


async def _require(tx: Transaction, client: str) -> None:
    if await tx.one("SELECT id FROM clients WHERE id = ?", client) is None:
        raise _unknown_client(client)


def _unknown_client(client: str) -> NotFound:
    return NotFound(
        f"Client {client[:100]!r} is not in this database. See agent3 client list; clients of agent3.toml "
        "are changed there."
    )
