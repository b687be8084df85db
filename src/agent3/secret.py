"""A text that must not leak: masked wherever it is shown, never encoded, and known by all its spellings."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "Secret", "to_bytes"]

MASK = "***"
# Shorter ones occur in ordinary words, and where they are masked would tell what they are.
_SHORTEST = 4
_SHORTEST_BASE64 = 8


class Secret:
    """A text that is masked wherever it is shown, cannot be encoded or pickled, and compares in constant time."""

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str):
        self._value = value
        self._forms: tuple[str, ...] | None = None

    def reveal(self) -> str:
        """The secret itself, for the header it goes into and nothing else."""
        return self._value

    def forms(self) -> tuple[str, ...]:
        """The spellings under which it may come back, longest first: plain, in JSON, in a URL, in base64."""
        if self._forms is None:
            self._forms = _spellings(self._value)
        return self._forms

    def __repr__(self) -> str:
        return f"Secret('{MASK}')"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(to_bytes(self._value), to_bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret is neither pickled nor copied; pass its reference instead")


def to_bytes(text: str) -> bytes:
    """The bytes of a text; of one from the environment also those that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _spellings(value: str) -> tuple[str, ...]:
    if len(value) < _SHORTEST:
        return ()
    raw = to_bytes(value)
    quoted = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    found |= quoted | {_lower_escapes(text) for text in quoted} | set(_base64_spellings(raw))
    return tuple(sorted(found, key=len, reverse=True))


def _lower_escapes(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return "%".join([head, *(piece[:2].lower() + piece[2:] for piece in rest)])


def _base64_spellings(raw: bytes) -> Iterable[str]:
    """Base64 alone, and the middle of it inside something longer, such as ``user:secret``, at each of three offsets."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        if len(whole) >= _SHORTEST_BASE64:
            yield whole
        for offset in range(3):
            start, end = -(-offset * 8 // 6), (offset + len(raw)) * 8 // 6
            inner = encode(bytes(offset) + raw).decode()[start:end]
            if len(inner) >= _SHORTEST_BASE64:
                yield inner
