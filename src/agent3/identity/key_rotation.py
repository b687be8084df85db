"""Replacing the master key: everything that is sealed in a database goes under the newest one.

Only data keys are encrypted anew, not what they encrypt. What an earlier release sealed has no data keys, and is opened
and sealed again; what such a text belongs to is written down here for each table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from agent3.env import Env
from agent3.errors import SetupError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import is_sealed_with, prefix_of, rewrap, seal, unseal
from agent3.storage import Database, Row, Transaction
from agent3.storage.audit import ACTOR, record_change

__all__ = ["ANOTHER_KEY", "Foreign", "Rewrapped", "describe_foreign", "find_foreign", "rewrap_all"]

ANOTHER_KEY = "Put the former key after the present one, separated by a space, where the master key is stored."
_AT_ONCE = 100
_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Place:
    """A column of sealed texts: its table, what tells rows apart, and what a text belongs to."""

    table: str
    columns: tuple[str, ...]
    belongs_to: Callable[[Row], str]
    query: str = ""
    """How its rows are read, where that takes more than its table."""


_PLACES = (
    _Place("kept_secrets", ("id",), lambda row: str(row["id"])),
    _Place("sign_ins", ("id",), lambda row: str(row["id"])),
    _Place("own_keys", ("name",), lambda row: f"own key {row['name']}"),
    _Place("data_keys", ("id",), lambda row: f"data key {row['id']}"),
    _Place("web_sessions", ("principal", "site"), lambda row: _session_place(row)),
    _Place(
        "a2a_pushes",
        ("job", "id"),
        lambda row: f"{row['owner']}\n{row['url']}",
        "SELECT p.job AS job, p.id AS id, p.url AS url, p.sealed AS sealed, j.owner AS owner "
        "FROM a2a_pushes AS p LEFT JOIN jobs AS j ON j.id = p.job WHERE p.sealed <> ''",
    ),
)


class Foreign(msgspec.Struct, frozen=True):
    """How many texts do not open, and the names of some of them."""

    count: int
    names: tuple[str, ...]


class Rewrapped(msgspec.Struct, frozen=True):
    """What was done: texts that are under the newest key now, those that were already, and those under none of our
    keys, such as headers that are sealed with the callback secret of a client."""

    done: int = 0
    already: int = 0
    others: int = 0


def _session_place(row: Row) -> str:
    return msgspec.json.encode(["web session", row["principal"], row["site"]]).decode()


async def find_foreign(database: Database, keys: Sequence[bytes]) -> Foreign:
    """Secrets, sign-ins and own keys that are sealed under none of these keys, by what they say of themselves."""
    ours = " AND ".join("sealed NOT LIKE ?" for _ in keys)
    count, names = 0, list[str]()
    for place in _PLACES[:4]:
        where = f"FROM {place.table} WHERE sealed LIKE ? AND {ours}"
        marks = (f"{prefix_of(None)}%", *(f"{prefix_of(key)}%" for key in keys))
        row = await database.one(f"SELECT COUNT(*) AS texts {where}", *marks)
        if row is not None and row["texts"]:
            count += row["texts"]
            some = await database.all(f"SELECT {place.columns[0]} AS name {where} ORDER BY 1 LIMIT {_NAMED}", *marks)
            names += [str(one["name"]) for one in some]
    return Foreign(count, tuple(names[:_NAMED]))


async def describe_foreign(database: Database, master_keys: MasterKeys) -> str:
    """What of a database does not open with its master key; empty if all does. Where nothing is sealed, no key is
    made."""
    if not master_keys.is_set and (master_keys.file is None or not master_keys.file.exists()):
        return ""
    foreign = await find_foreign(database, await master_keys.keys())
    if not foreign.count:
        return ""
    named = ", ".join(foreign.names) + (", …" if foreign.count > len(foreign.names) else "")
    return f"{foreign.count} secrets and keys are encrypted with another one, and do not open: {named}"


async def rewrap_all(database: Database, keys: Sequence[bytes], env: Env) -> Rewrapped:
    """Put everything under the first of the keys, some rows in each transaction. Safe to repeat and to interrupt."""
    done = already = others = 0
    for place in _PLACES:
        rows = await database.all(place.query or f"SELECT * FROM {place.table}")
        waiting: list[tuple[str, Row]] = []
        for row in rows:
            if is_sealed_with(keys[0], row["sealed"]):
                already += 1
                continue
            try:
                waiting.append((_rewrap(place, row, keys, env), row))
            except SetupError:
                others += 1
        for start in range(0, len(waiting), _AT_ONCE):
            done += await _replace(database, place, waiting[start : start + _AT_ONCE])
    if done:
        who = ACTOR.get()
        await database.write(lambda tx: record_change(tx, env, "vault rotated", "master key", None, who))
    return Rewrapped(done, already, others)


def _rewrap(place: _Place, row: Row, keys: Sequence[bytes], env: Env) -> str:
    wrapped = rewrap(keys, row["sealed"], env)
    if wrapped is not None:
        return wrapped
    belongs_to = place.belongs_to(row)
    return seal(keys[0], unseal(keys, row["sealed"], belongs_to), belongs_to, env)


async def _replace(database: Database, place: _Place, some: Sequence[tuple[str, Row]]) -> int:
    same = " AND ".join(f"{column} = ?" for column in place.columns)

    async def work(tx: Transaction) -> int:
        # What changed meanwhile is left alone: whoever changed it sealed it with a key of today.
        return sum(
            [
                await tx.run(
                    f"UPDATE {place.table} SET sealed = ? WHERE {same} AND sealed = ?",
                    text,
                    *(row[column] for column in place.columns),
                    row["sealed"],
                )
                for text, row in some
            ]
        )

    return await database.write(work)
