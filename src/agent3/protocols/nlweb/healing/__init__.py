"""Healing: an element that moved or changed its looks is found again by what is remembered of it, or not at all.

``Healer`` is the finder; ``ElementStore`` and ``MemoryStore`` keep fingerprints and heals; ``Policy`` says how sure it
must be. It knows neither sessions nor callers.
"""

from __future__ import annotations

from agent3.protocols.nlweb.healing.healer import Healer
from agent3.protocols.nlweb.healing.records import ElementKey, ElementRecord, Heal, Policy
from agent3.protocols.nlweb.healing.stores import ElementStore, MemoryStore, Store

__all__ = ["ElementKey", "ElementRecord", "ElementStore", "Heal", "Healer", "MemoryStore", "Policy", "Store"]
