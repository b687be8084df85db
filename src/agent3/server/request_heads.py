"""Heads of requests that were seen before: whoever sends the same bytes again means the same by them.

Clients repeat their headers byte for byte on every request of a connection; only the length of the body differs. So
what a parser, a doorkeeper and a lane made of a head once is kept beside its bytes, and a request that begins with
them is taken from there. A head is learned only from a request that was parsed and answered. It knows nothing of what
it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

__all__ = ["Heads"]

T = TypeVar("T")

MOST = 1_000
_LONGEST = 4_096
_END = b"\r\n\r\n"
_MOST_DIGITS = 9
_SPECIAL = frozenset({b"connection", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that say how a request is to be read or answered, which is the parser's business each time."""


class Heads(Generic[T]):
    """What is known of heads, by their bytes without the length of the body. Bounded; the oldest go first.

    That bytes are equal is found by a dict, whose hash is seeded anew in every process: how long it takes says nothing
    about a key in them.
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._known: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> tuple[T, int, int] | None:
        """What is known of the head that the data begins with, where the body begins, and how much of it is missing.

        None for an unknown head, and where more has come than one request.
        """
        end = data.find(_END)
        start, stop = _length(data, end)
        known = self._known.get(data[:start] + data[stop:end]) if start else None
        if known is None or not data[start:stop].isdigit():
            return None
        missing = end + 4 + int(data[start:stop]) - len(data)
        return (known, end + 4, missing) if missing >= 0 else None

    def learn(self, data: bytes, headers: Sequence[tuple[bytes, bytes]], known: T) -> None:
        """Keep what is known of a head that a parser has read, and read as these headers."""
        end = data.find(_END)
        start, stop = _length(data, end)
        if not start or not _plain(data[:end], headers) or (b"content-length", data[start:stop]) not in headers:
            return
        self._known[data[:start] + data[stop:end]] = known
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]


def _length(data: bytes, end: int) -> tuple[int, int]:
    """Where the length of the body is said; 0, 0 in what is no head that could be known."""
    if not 0 < end <= _LONGEST:
        return 0, 0
    found = data.find(b"\r\nContent-Length: ", 0, end)
    if found < 0 and (found := data.find(b"\r\ncontent-length: ", 0, end)) < 0:
        return 0, 0
    stop = data.find(b"\r\n", found + 18)  # that of the end of the head at the latest
    return (found + 18, stop) if stop - found - 18 <= _MOST_DIGITS else (0, 0)


def _plain(head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a head has one line for each header, one of them the length, and nothing that must be read each time."""
    names = {name for name, _ in headers}
    return (
        head.startswith(b"POST /")
        and head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(headers) == len(names)
        and not names & _SPECIAL
    )
