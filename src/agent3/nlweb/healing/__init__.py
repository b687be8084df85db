"""Healing: an element that moved or changed its looks is found again by what is remembered of it, or not at all.

``Healer`` is the finder; ``StoredBook`` and ``MemoryBook`` keep fingerprints and heals; ``Policy`` says how sure it
must be. It knows neither sessions nor who asks.
"""

from __future__ import annotations

from agent3.nlweb.healing.books import Book, MemoryBook, StoredBook
from agent3.nlweb.healing.healer import Healer
from agent3.nlweb.healing.heals import Heal, Known, Policy, Where

__all__ = ["Book", "Heal", "Healer", "Known", "MemoryBook", "Policy", "StoredBook", "Where"]
