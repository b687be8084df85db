"""How values of parameters are written into a request: the styles of OpenAPI 3, by RFC 6570 where it says so.

A value of ``null`` is left out. What the standard leaves open (objects inside of objects in ``deepObject``) is written
as most services read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from agent3.errors import ValidationError

__all__ = ["STYLES", "to_pairs", "to_path", "to_text"]

STYLES: Mapping[str, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place; the first is the default."""
_RESERVED = ":/?@!$'()*,;"
"""What ``allowReserved`` lets stand in a query. ``#``, ``&``, ``+``, ``=`` and brackets would change its meaning."""
_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}


def to_text(value: Any) -> str:
    """One value as text: as JSON writes it, but a text without quotes."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def to_pairs(name: str, value: Any, style: str, explode: bool, *, reserved: bool = False) -> list[tuple[str, str]]:
    """A value as encoded pairs of a query, a form or a cookie."""
    safe = _RESERVED if reserved else ""

    def written(one: Any) -> str:
        return quote(to_text(one), safe=safe)

    key = quote(name, safe="")
    if style == "deepObject" and isinstance(value, dict):
        return [(path, written(one)) for path, one in _walk(key, value)]
    if isinstance(value, dict):
        present = {each: one for each, one in value.items() if one is not None}
        if explode and style == "form":
            return [(quote(each, safe=""), written(one)) for each, one in present.items()]
        flat = [piece for each, one in present.items() for piece in (written(each), written(one))]
        return [(key, _SEPARATORS.get(style, ",").join(flat))]
    if isinstance(value, list):
        pieces = [written(one) for one in value if one is not None]
        if explode or style == "deepObject":
            return [(key, piece) for piece in pieces]
        return [(key, _SEPARATORS.get(style, ",").join(pieces))] if pieces else []
    return [(key, written(value))]


def to_path(name: str, value: Any, style: str, explode: bool) -> str:
    """A value as a piece of a path. ValidationError where it would lead to another place than the template says."""

    def written(one: Any) -> str:
        return quote(to_text(one), safe="")

    if isinstance(value, dict):
        present = [(written(each), written(one)) for each, one in value.items() if one is not None]
        pieces = [f"{each}={one}" if explode else f"{each},{one}" for each, one in present]
    elif isinstance(value, list):
        pieces = [written(one) for one in value if one is not None]
    else:
        pieces = [written(value)]
    if style == "label":
        text = "." + (".".join(pieces) if explode else ",".join(pieces))
    elif style == "matrix" and explode and isinstance(value, dict):
        text = "".join(f";{piece}" for piece in pieces)
    elif style == "matrix" and explode and isinstance(value, list):
        text = "".join(f";{quote(name, safe='')}={piece}" for piece in pieces)
    elif style == "matrix":
        text = f";{quote(name, safe='')}={','.join(pieces)}"
    else:
        text = ",".join(pieces)
    if not pieces or (style == "simple" and not text):
        # Without it, DELETE /users/{id} would become DELETE /users/.
        raise ValidationError(f"Parameter {name!r} is part of the path and cannot be empty.")
    return text


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _walk(f"{path}[{quote(name, safe='')}]", one)
    elif isinstance(value, list):
        for one in value:
            yield from _walk(path, one)
    elif value is not None:
        yield path, value
