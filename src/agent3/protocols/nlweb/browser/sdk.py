"""The only import of Playwright, made when the first browser is needed, and the repair of texts that come through it.

A page may cut an emoji in two, and so may our own scripts, which count as the page does. The half that stays, a lone
surrogate, is a character to JavaScript and to Playwright, and an error to UTF-8, JSON and every database. So whatever
comes from a page is made well-formed where it enters, once.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

from agent3.errors import MissingExtra
from agent3.security.sanitize import rewrite_value

__all__ = ["playwright", "well_formed"]


@cache
def playwright() -> Any:
    """Playwright's asynchronous API; MissingExtra says how to install it."""
    try:
        import playwright.async_api as api
    except ImportError:
        raise MissingExtra("A browser", "browser") from None
    return api


T = TypeVar("T")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(value: T) -> T:
    """A text or any other JSON value, with U+FFFD for every half of a character; the same object if there is none."""

    def rewrite(text: str) -> str:
        is_fine = text.isascii() or _LONE_SURROGATE.search(text) is None
        return text if is_fine else _LONE_SURROGATE.sub("\ufffd", text)

    made: T = rewrite_value(value, rewrite)
    return made
