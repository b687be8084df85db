"""The words of a sentence as its readers compare them."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["words"]

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACCENT = re.compile("[\u0300-\u036f]")


def words(text: str) -> list[str]:
    """The words of a text for matching: without case, accents, plural s or camel case."""
    text = _HUMP.sub(" ", text)
    plain = text.lower() if text.isascii() else _ACCENT.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return [_singular(word) for word in _WORD.findall(plain)]


def _singular(word: str) -> str:
    for ending, least in (("ies", 5), ("ing", 6), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith("ss"):
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word
