"""Texts of a page as Python and every encoder take them.

A page may cut an emoji in two, and so may our own scripts, which count as the page does. The half that stays, a lone
surrogate, is a character to JavaScript and to Playwright, and an error to UTF-8, JSON and every database. So whatever
comes from a page is made well-formed where it enters, once.
"""

from __future__ import annotations

import re
from typing import TypeVar

from agent3.security.sanitize import rewrite_value

__all__ = ["well_formed"]

T = TypeVar("T")

_LONE = re.compile("[\ud800-\udfff]")


def well_formed(value: T) -> T:
    """A text or any other JSON value, with U+FFFD for every half of a character; the same object if there is none."""
    made: T = rewrite_value(value, _text)
    return made


def _text(text: str) -> str:
    return text if text.isascii() or _LONE.search(text) is None else _LONE.sub("\ufffd", text)
