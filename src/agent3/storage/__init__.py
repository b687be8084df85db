"""Where things are kept: one port at SQL level over SQLite and PostgreSQL, and blobs by their hash.

The SQL is written once, by those who own the tables; this package knows statements and transactions, not jobs or calls.
"""

from __future__ import annotations

from agent3.storage.blobs import Blobs
from agent3.storage.connect import open_database
from agent3.storage.database import Database, Row, Transaction

__all__ = ["Blobs", "Database", "Row", "Transaction", "open_database"]
