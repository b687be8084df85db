"""Counters: whole numbers by name that only grow, such as the version of what every process keeps in memory."""

from __future__ import annotations

from agent3.storage.database import Transaction

__all__ = ["increase"]


async def increase(tx: Transaction, name: str) -> int:
    """Add one to a counter, which begins at 0; its new value, as no other transaction gets it."""
    row = await tx.one(
        "INSERT INTO counters (name, value) VALUES (?, 1) "
        "ON CONFLICT (name) DO UPDATE SET value = counters.value + 1 RETURNING value",
        name,
    )
    assert row is not None
    return int(row["value"])
