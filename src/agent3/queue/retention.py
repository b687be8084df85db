"""What all queues of a database keep no longer, removed: also of a queue that is seldom used, or never again."""

from __future__ import annotations

from agent3.storage.database import Database
from agent3.storage.leases import NOW

__all__ = ["sweep"]

_AT_ONCE = 500
"""Rows removed in one transaction: others write in between."""
_A_ROUND = 100_000
_MESSAGES = """
DELETE FROM queue_messages
WHERE seq IN (SELECT seq FROM queue_messages WHERE state = '{state}' AND due <= {now} LIMIT ?)
"""
_KEYS = """
DELETE FROM queue_keys WHERE (queue, key) IN (SELECT queue, key FROM queue_keys WHERE expires <= {now} LIMIT ?)
"""


async def sweep(database: Database) -> int:
    """Remove dead letters, archived messages and keys past their time, in small transactions; how many."""
    statements = [_MESSAGES.replace("{state}", "dead"), _MESSAGES.replace("{state}", "done"), _KEYS]
    return sum([await _all_of(database, one.replace("{now}", NOW[database.dialect])) for one in statements])


async def _all_of(database: Database, sql: str) -> int:
    removed = 0
    while removed < _A_ROUND:
        some = await database.write(lambda tx: tx.run(sql, _AT_ONCE), frees=True, calm=True)
        removed += some
        if some < _AT_ONCE:
            break
    return removed
