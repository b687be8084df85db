"""Ids that leave the gateway in a caller's name: derived from who calls, so that two callers never share one.

A caller may choose the id of a conversation and an idempotency key. Sent as they are, the same word of two callers is
one conversation, or one order, at the target. So what is sent is an HMAC of the caller and of the word; the caller
itself, the ledger and the jobs go on with its own word.
"""

from __future__ import annotations

import hmac
import uuid
from typing import Literal

from agent3.model import Principal

__all__ = ["CallerScope"]


class CallerScope:
    """Derives what is sent from what was given, by a key that only the gateways on one database have."""

    def __init__(self, key: bytes):
        self._key = key

    @property
    def record_key(self) -> bytes:
        """A key for the hashes that stand in records for what is sensitive."""
        return hmac.digest(self._key, b"records", "sha256")

    def key_for(self, purpose: str) -> bytes:
        """A key of its own for something else that the gateways on one database have in common."""
        return hmac.digest(self._key, b"\0key\0" + purpose.encode(), "sha256")

    def derive(self, principal: Principal, kind: Literal["context", "key"], value: str) -> str:
        """The id that stands for a caller's own word, in the form of a UUID: some targets take no other."""
        text = "\0".join((principal.id, kind, value))
        digest = hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256")
        return str(uuid.UUID(bytes=digest[:16], version=5))
