"""How the outcome of a tool is rendered: as a plain value, as content for a model, and within a budget of tokens.

Pure functions over parts. Where the rest of a result is kept, and who may read it, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3.llm import Image, Text
from agent3.model import Done, Failed, Part, encode

__all__ = ["Content", "all_parts", "content_to_text", "restore_part", "to_characters", "to_content", "to_text",
           "truncate"]  # fmt: skip

Content: TypeAlias = str | tuple[Text | Image, ...]
"""What a model reads: a text, or pieces where there are images among them."""

_PER_TOKEN = 4
"""Characters that a token stands for, as everywhere in agent3 where nothing counts tokens."""


def to_characters(tokens: int) -> int:
    """How many characters a budget of tokens is."""
    return max(0, tokens) * _PER_TOKEN


def all_parts(outcome: Done | Failed) -> tuple[Part, ...]:
    """All parts of a result, including those of its artifacts."""
    return (*outcome.parts, *(part for artifact in outcome.artifacts for part in artifact.parts))


def to_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def to_content(parts: Sequence[Part]) -> Content:
    """The result as a model reads it: texts, data as JSON, images as such, links and files in one line each."""
    pieces: list[Text | Image] = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        if part.text is not None:
            pieces.append(Text(part.text))
        elif part.data is not UNSET:
            pieces.append(Text(encode(part.data).decode()))
        elif part.raw is not None and kind.startswith("image/"):
            pieces.append(Image(part.raw, media_type=kind))
        elif part.url is not None:
            pieces.append(Text(f"{part.name or 'Link'}: {part.url} ({part.media_type or 'unknown type'})"))
        elif part.artifact is not None:
            size = part.meta.get("size", "some")
            pieces.append(Text(f"{part.name or 'Result'}: {size} bytes of {kind}, artifact {part.artifact}"))
        else:
            pieces.append(Text(f"{part.name or 'File'}: {len(part.raw or b'')} bytes of {kind}, not shown"))
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    return "\n".join(texts) if len(texts) == len(pieces) else tuple(pieces)


def content_to_text(content: Content) -> str:
    """The text of some content, without its images."""
    if isinstance(content, str):
        return content
    return "\n".join(piece.text for piece in content if isinstance(piece, Text))


def truncate(content: Content, limit: int) -> Content:
    """The content with the first ``limit`` characters of its text; images stay."""
    if isinstance(content, str):
        return content[:limit]
    kept: list[Text | Image] = []
    for piece in content:
        if isinstance(piece, Image):
            kept.append(piece)
        elif limit > 0:
            kept.append(Text(piece.text[:limit]))
            limit -= len(piece.text) + 1  # with the line end that ``content_to_text`` puts after it
    return tuple(kept)


def restore_part(reference: Part, body: bytes, media_type: str) -> Part:
    """The part that a reference stands for, as it was before its bytes were stored.

    Bytes that are labelled as JSON but are not stay bytes.
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
