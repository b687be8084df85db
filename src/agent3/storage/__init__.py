"""Storage: one port at the level of SQL over SQLite and PostgreSQL, and blobs stored under their hash.

The SQL is written once, by the package that owns the tables. This package knows statements and transactions, not jobs
or calls. Other modules here are doors of their own: ``leases``, ``counters`` and ``notifications`` (what processes
share), ``backup`` and ``checksums``.
"""

from __future__ import annotations

from agent3.storage.blobs import Blobs, BlobStore
from agent3.storage.connect import open_database
from agent3.storage.database import Database, Row, Transaction

__all__ = ["BlobStore", "Blobs", "Database", "Row", "Transaction", "open_database"]
