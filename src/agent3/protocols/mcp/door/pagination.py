"""Pages of a list, by the last key shown, so that a cursor survives items that come and go."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent3.errors import ValidationError

__all__ = ["paginate", "strict_base64"]

T = TypeVar("T")


def paginate(items: Iterable[T], key: Callable[[T], str], cursor: str | None, size: int) -> tuple[list[T], str | None]:
    """One page in the order of the key, and the cursor of the next; ValidationError for an unknown cursor."""
    after: str | None = None
    if cursor:
        try:
            after = strict_base64(cursor).decode()
        except ValueError:
            raise ValidationError("Unknown cursor: list again from the start") from None
    rest = sorted((item for item in items if after is None or key(item) > after), key=key)
    page = rest[:size]
    following = base64.urlsafe_b64encode(key(page[-1]).encode()).decode() if len(rest) > len(page) else None
    return page, following


def strict_base64(text: str) -> bytes:
    """Decode base64 without the leniency of the standard library, which skips unknown characters; else ValueError."""
    return base64.b64decode(text, altchars=b"-_", validate=True)
