"""How the outcome of a tool is told: as a plain value, as content for a model, and within a budget of tokens.

Pure functions over parts. Where the rest of a result is kept, and who may read it, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3.llm import Image, Text
from agent3.model import Artifact, Done, Failed, Part, encode

__all__ = ["Content", "characters", "content_of", "cut", "part_of", "parts_in", "text_in", "words_of"]

Content: TypeAlias = str | tuple[Text | Image, ...]
"""What a model reads: a text, or pieces where there are pictures among them."""

_PER_TOKEN = 4
"""Characters that a token stands for, as everywhere in the house where nobody counts."""


def characters(tokens: int) -> int:
    """How much text a budget of tokens is."""
    return max(0, tokens) * _PER_TOKEN


def parts_in(outcome: Done | Failed) -> tuple[Part, ...]:
    """All parts of a result, also those of its named pieces."""
    named: tuple[Artifact, ...] = outcome.artifacts
    return (*outcome.parts, *(part for artifact in named for part in artifact.parts))


def text_in(value: Any) -> str:
    """A plain value as text: itself, or its JSON."""
    return value if isinstance(value, str) else encode(value).decode()


def content_of(parts: Sequence[Part]) -> Content:
    """The result as a model reads it: texts, data as JSON, pictures as such, links and files in a line each."""
    pieces = tuple(_piece(part) for part in parts)
    texts = [one.text for one in pieces if isinstance(one, Text)]
    return "\n".join(texts) if len(texts) == len(pieces) else pieces


def _piece(part: Part) -> Text | Image:
    kind = part.media_type or "application/octet-stream"
    if part.text is not None:
        return Text(part.text)
    if part.data is not UNSET:
        return Text(encode(part.data).decode())
    if part.raw is not None and kind.startswith("image/"):
        return Image(part.raw, media_type=kind)
    return Text(_line(part, kind))


def _line(part: Part, kind: str) -> str:
    if part.url is not None:
        return f"{part.name or 'Link'}: {part.url} ({part.media_type or 'unknown type'})"
    if part.artifact is not None:
        return f"{part.name or 'Result'}: {part.meta.get('size', 'some')} bytes of {kind}, artifact {part.artifact}"
    return f"{part.name or 'File'}: {len(part.raw or b'')} bytes of {kind}, not shown"


def words_of(content: Content) -> str:
    """The text of some content, without its pictures."""
    return content if isinstance(content, str) else "\n".join(one.text for one in content if isinstance(one, Text))


def cut(content: Content, limit: int) -> Content:
    """The content with the first ``limit`` characters of its text; pictures stay."""
    if isinstance(content, str):
        return content[:limit]
    shown: list[Text | Image] = []
    for piece in content:
        if isinstance(piece, Image):
            shown.append(piece)
        elif limit > 0:
            shown.append(Text(piece.text[:limit]))
            limit -= len(piece.text) + 1  # with the line end that ``words_of`` puts after it
    return tuple(shown)


def part_of(reference: Part, body: bytes, media_type: str) -> Part:
    """The part that a reference stands for, as it was before its bytes were stored.

    Bytes that only bear the name of JSON stay bytes.
    """
    meta = {key: value for key, value in reference.meta.items() if key != "size"}
    bare = replace(reference, artifact=None, meta=meta)
    if media_type == "application/json":
        try:
            return replace(bare, data=msgspec.json.decode(body))
        except (ValueError, RecursionError):
            return replace(bare, raw=body)
    if media_type.startswith("text/"):
        return replace(bare, text=body.decode("utf-8", "replace"))
    return replace(bare, raw=body)
