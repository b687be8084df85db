"""Where fingerprints and heals are kept: in memory, or in a database that several gateways share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec

from agent3.env import REAL, Env
from agent3.protocols.nlweb.healing.records import Change, ElementKey, ElementRecord
from agent3.storage import Database, Row, Transaction

__all__ = ["ElementStore", "MemoryStore", "Store"]

_MOST_ELEMENTS = 2_000
"""Elements that are remembered of one interface; a selector with a parameter in it makes one for each value."""
_FIND = "SELECT body FROM web_elements WHERE interface = ? AND action = ? AND selector = ? AND frame = ?"
_SAVE = (
    "INSERT INTO web_elements (interface, action, selector, frame, updated, body) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (interface, action, selector, frame) DO UPDATE SET updated = excluded.updated, body = excluded.body"
)
_TRIM = (
    "DELETE FROM web_elements WHERE interface = ? AND updated < (SELECT updated FROM web_elements WHERE interface = ? "
    "ORDER BY updated DESC LIMIT 1 OFFSET ?)"
)


class Store(Protocol):
    """Keeps what is known of elements. Of two changes at the same time neither is lost."""

    async def get(self, where: ElementKey) -> ElementRecord:
        """What is known; nothing but the place for one that is new."""
        ...

    async def change(self, where: ElementKey, change: Change) -> ElementRecord:
        """Change what is known, at once and wholly; what it is then."""
        ...

    async def all(self, interface: str | None = None) -> list[ElementRecord]:
        """Everything, of one interface or of all, in the order of the places."""
        ...


class MemoryStore:
    """A store for as long as the process runs."""

    def __init__(self) -> None:
        self._known: OrderedDict[ElementKey, ElementRecord] = OrderedDict()

    async def get(self, where: ElementKey) -> ElementRecord:
        """What is known; nothing but the place for one that is new."""
        return self._known.get(where) or ElementRecord(where)

    async def change(self, where: ElementKey, change: Change) -> ElementRecord:
        """Change what is known; the one that was changed longest ago goes when there are too many."""
        known = self._known[where] = change(self._known.get(where) or ElementRecord(where))
        self._known.move_to_end(where)
        if len(self._known) > _MOST_ELEMENTS:
            self._known.popitem(last=False)
        return known

    async def all(self, interface: str | None = None) -> list[ElementRecord]:
        found = [known for where, known in self._known.items() if interface in (None, where.interface)]
        return sorted(found, key=lambda known: known.where)


class ElementStore:
    """A store in the database. A change is one transaction, so that several gateways may write to it."""

    def __init__(self, database: Database, env: Env = REAL):
        self._database = database
        self._env = env

    async def get(self, where: ElementKey) -> ElementRecord:
        """What is known; nothing but the place for one that is new."""
        return _decode(where, await self._database.one(_FIND, *_key(where)))

    async def change(self, where: ElementKey, change: Change) -> ElementRecord:
        """Change what is known, in one transaction."""

        async def work(tx: Transaction) -> ElementRecord:
            known = _decode(where, await tx.one(_FIND, *_key(where)))
            changed = change(known)
            if changed != known:  # most actions find what they knew, and write nothing
                await tx.run(_SAVE, *_key(where), self._env.now(), msgspec.json.encode(changed).decode())
                await tx.run(_TRIM, where.interface, where.interface, _MOST_ELEMENTS - 1)
            return changed

        return await self._database.write(work)

    async def all(self, interface: str | None = None) -> list[ElementRecord]:
        sql = "SELECT body FROM web_elements"
        found = (
            await self._database.all(sql)
            if interface is None
            else await self._database.all(f"{sql} WHERE interface = ?", interface)
        )
        return sorted(
            (msgspec.json.decode(row["body"], type=ElementRecord) for row in found), key=lambda known: known.where
        )

    async def forget(self, interface: str) -> int:
        """Forget all of an interface that is gone; how many elements there were."""
        gone = "DELETE FROM web_elements WHERE interface = ?"
        return await self._database.write(lambda tx: tx.run(gone, interface))


def _key(where: ElementKey) -> tuple[str, str, str, str]:
    return where.interface, where.action, where.selector, where.frame


def _decode(where: ElementKey, row: Row | None) -> ElementRecord:
    return ElementRecord(where) if row is None else msgspec.json.decode(row["body"], type=ElementRecord)
