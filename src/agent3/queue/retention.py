"""Removal of what queues keep no longer, also for a queue that is rarely used or never again."""

from __future__ import annotations

from agent3.storage.database import Database

__all__ = ["sweep"]

_AT_ONCE = 500
"""Rows removed in one transaction: others write in between."""
_AT_MOST = 100_000
"""Rows of one kind removed in one sweep."""
_MESSAGES = """
DELETE FROM queue_messages
WHERE seq IN (SELECT seq FROM queue_messages WHERE state = '{state}' AND due <= {now} LIMIT ?)
"""
_KEYS = """
DELETE FROM queue_keys WHERE (queue, key) IN (SELECT queue, key FROM queue_keys WHERE expires <= {now} LIMIT ?)
"""


async def sweep(database: Database) -> int:
    """Remove expired dead letters, archived messages and keys, in small transactions; return how many."""
    statements = (_MESSAGES.replace("{state}", "dead"), _MESSAGES.replace("{state}", "done"), _KEYS)
    return sum([await _remove(database, database.syntax.fill(text)) for text in statements])


async def _remove(database: Database, sql: str) -> int:
    removed = 0
    while removed < _AT_MOST:
        count = await database.write(lambda tx: tx.run(sql, _AT_ONCE), frees=True, calm=True)
        removed += count
        if count < _AT_ONCE:
            break
    return removed
