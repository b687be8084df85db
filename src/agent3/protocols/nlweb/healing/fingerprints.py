"""The fingerprint of an element: what it is, what it is called, and what stands around it.

It is kept for as long as the interface is, and for all callers alike. So it never holds what was typed, and the words
around an element, which may speak of a person, are kept as digests that can be compared and not read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from agent3.protocols.nlweb.browser.sdk import well_formed

__all__ = ["Fingerprint", "digest", "digest_words", "parse_fingerprint", "role_family", "split_words"]

_SAME_ROLE = {"searchbox": "textbox"}
"""What ARIA calls a kind of the other."""
_MOST_WORDS = 100
_TEXTS = ("name", "test", "id", "field", "placeholder", "title", "href", "query", "near", "wide", "row", "heading")
_SPLIT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")


class Fingerprint(Struct, frozen=True, omit_defaults=True):
    """What is remembered of one element. ``near`` to ``heading`` and ``query`` hold digests, the rest is plain."""

    role: str
    tag: str
    name: str = ""
    kind: str = ""
    test: str = ""
    id: str = ""
    field: str = ""
    placeholder: str = ""
    title: str = ""
    complete: str = ""
    href: str = ""
    query: str = ""
    classes: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    row: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    landmark: str = ""
    box: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    shown: bool = True
    given: int = 0
    """How the caller's words stand beside it, where its selector has some: 0 not at all, 1 among others, 2 alone."""

    @property
    def without_box(self) -> Fingerprint:
        """Without its place, which changes with every window."""
        return replace(self, box=(0.0, 0.0, 0.0, 0.0))


def parse_fingerprint(seen: dict[str, Any], given: Sequence[tuple[str, str]] = ()) -> Fingerprint:
    """The fingerprint of what the page's script has read; msgspec's error for a page that answers nonsense.

    Of ``given``, placeholders and the caller's words for them, the fingerprint holds the placeholders.
    """
    if given:
        seen = {**seen, **{key: _mask(str(seen.get(key) or ""), given) for key in _TEXTS}}
    seen = well_formed(seen)
    around = {key: digest_words(str(seen.get(key) or "")) for key in ("near", "wide", "row", "heading")}
    box = tuple(round(float(edge), 3) for edge in seen["box"])
    query = str(seen.get("query") or "").lstrip("?")
    return convert({**seen, **around, "box": box, "query": digest(query) if query else ""}, Fingerprint)


def role_family(role: str) -> str:
    """Roles that can stand for each other have one family; mostly it is the role itself."""
    return _SAME_ROLE.get(role, role)


def split_words(text: str) -> list[str]:
    """The words of a text or an identifier, without case and accents: ``searchBtn`` has two."""
    apart = unicodedata.normalize("NFKD", _SPLIT.sub(" ", text))
    plain = "".join(letter for letter in apart if not unicodedata.combining(letter)).lower()
    return _WORD.findall(plain)


def digest(text: str) -> str:
    """A short digest, to be compared and not read."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def digest_words(text: str) -> tuple[str, ...]:
    """The different words of a text, each as a short digest."""
    return tuple(digest(word) for word in list(dict.fromkeys(split_words(text)))[:_MOST_WORDS])


def _mask(text: str, given: Sequence[tuple[str, str]]) -> str:
    """A text with placeholders for the caller's words. Where these are written otherwise, none of it is kept."""
    for name, value in given:
        own = _WORD.findall(value)
        if not own:
            continue
        apart = r"[\W_]+".join(re.escape(word) for word in own)
        text = re.sub(rf"(?<![^\W_]){apart}(?![^\W_])", name, text, flags=re.IGNORECASE)
        if f" {' '.join(split_words(value))} " in f" {' '.join(split_words(text.replace(name, ' | ')))} ":
            return ""
    return text
