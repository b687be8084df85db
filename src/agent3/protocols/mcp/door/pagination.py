"""Pages of a list, by the last key shown, so that a cursor survives items that come and go."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent3.errors import ValidationError

__all__ = ["page", "strict_base64"]

T = TypeVar("T")


def page(items: Iterable[T], key: Callable[[T], str], cursor: str | None, size: int) -> tuple[list[T], str | None]:
    """One page in the order of the key, and the cursor of the next; ValidationError for a cursor that is not ours."""
    after = _opened(cursor) if cursor else None
    rest = sorted((item for item in items if after is None or key(item) > after), key=key)
    shown = rest[:size]
    more = base64.urlsafe_b64encode(key(shown[-1]).encode()).decode() if len(rest) > len(shown) else None
    return shown, more


def strict_base64(text: str) -> bytes:
    """Base64 without the leniency of the standard library, which skips what it does not know; else ValueError."""
    return base64.b64decode(text, altchars=b"-_", validate=True)


def _opened(cursor: str) -> str:
    try:
        return strict_base64(cursor).decode()
    except ValueError:
        raise ValidationError("Unknown cursor: list again from the start") from None
