"""Ids of legacy sessions that any process of a gateway can continue.

A session lives in the memory of the process that opened it. Its id names that process, and carries, signed and bound to
the caller, how the client introduced itself. So another process can tell whose session it is, and if its owner is gone
open it again instead of sending the client away. What a session gathers later is not in it: its log level, what it
watches, and events that were not delivered.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from agent3.env import Env
from agent3.model import encode

__all__ = ["SessionIds"]

_KEPT = ("protocolVersion", "capabilities", "clientInfo")
_LONGEST = 1_500
"""Characters of an id, beyond which a client's introduction is left out; headers are bounded everywhere."""
_MOST_PLAIN = 16_384
_SIGNED = 16


class SessionIds:
    """Issues ids for one process, and reads those of all that share the key."""

    def __init__(self, key: bytes, process: str, env: Env):
        self._key = key
        self._process = process
        self._env = env

    def issue(self, opening: bytes | None, subject: str) -> str:
        """The id of a new session that a client opens with this request."""
        start = f"{self._process}.{self._env.random_bytes(16).hex()}"
        params = _read_params(opening)
        packed = b"" if params is None else zlib.compress(encode(params))
        body = base64.urlsafe_b64encode(packed).decode().rstrip("=")
        if not body or len(body) > _LONGEST:
            return start
        return f"{start}.{body}.{self._sign(f'{start}.{body}', subject)}"

    def read(self, session: str, subject: str) -> dict[str, Any] | None:
        """How the client of another process introduced itself; None for ids that are not good here.

        A session of this very process that is not known any more has ended, so its id is not good either.
        """
        parts = session.split(".")
        if len(parts) != 4 or parts[0] == self._process or len(session) > 2 * _LONGEST:
            return None
        signed, _, signature = session.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(signed, subject).encode()):
            return None
        try:
            packed = base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4))
            plain = zlib.decompressobj().decompress(packed, _MOST_PLAIN)
            params: dict[str, Any] = msgspec.json.decode(plain, type=dict[str, Any])
        except (ValueError, zlib.error, msgspec.DecodeError):
            return None
        return params

    def _sign(self, text: str, subject: str) -> str:
        who = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).digest()
        digest = hmac.digest(self._key, b"agent3/mcp/session" + who + text.encode("latin-1", "replace"), "sha256")
        return digest[:_SIGNED].hex()


def _read_params(opening: bytes | None) -> dict[str, Any] | None:
    """What is kept of an ``initialize`` request."""
    if opening is None or len(opening) > _MOST_PLAIN:
        return None
    try:
        request = msgspec.json.decode(opening)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(request, Mapping) or request.get("method") != "initialize":
        return None
    params = request.get("params")
    return {name: params[name] for name in _KEPT if name in params} if isinstance(params, Mapping) else None
