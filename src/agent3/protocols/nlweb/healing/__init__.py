"""Healing: an element that moved or changed its looks is found again by what is remembered of it, or not at all.

``Healer`` is the finder; ``StoredBook`` and ``MemoryBook`` keep fingerprints and heals; ``Policy`` says how sure it
must be. It knows neither sessions nor callers.
"""

from __future__ import annotations

from agent3.protocols.nlweb.healing.healer import Healer
from agent3.protocols.nlweb.healing.records import ElementKey, ElementRecord, Heal, Policy
from agent3.protocols.nlweb.healing.stores import Book, MemoryBook, StoredBook

__all__ = ["Book", "ElementKey", "ElementRecord", "Heal", "Healer", "MemoryBook", "Policy", "StoredBook"]
