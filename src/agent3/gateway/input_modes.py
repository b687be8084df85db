"""What a caller sends with ``agent3_call`` besides structured input, as parts: words, JSON, bytes and files.

Files come as handles: the id of an artifact of the caller's, a data URI, or base64 with a media type. A capability
gets only the media types that it declares. What it does not declare is refused, and never passed on as text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from agent3.calls.artifacts import StoredArtifact
from agent3.errors import TooLarge, ValidationError
from agent3.model import Capability, Part

__all__ = [
    "MOST_BYTES",
    "MOST_FILES",
    "TEXT",
    "check_modes",
    "is_among",
    "read_declared",
    "read_files",
    "read_message",
    "read_mode",
]

MOST_FILES = 10
MOST_BYTES = 8 << 20
"""Bytes of all files of one call together."""
TEXT, JSON = "text/plain", "application/json"
_KINDS = {"text": TEXT, "data": JSON, "file": "*/*"}
"""Kinds of parts, which the cards of the first A2A agents name in place of media types."""


_SHORT = {"text": TEXT, "json": JSON}


def read_mode(mode: str) -> str:
    """The media type of a message, without parameters. ``text`` and ``json`` are understood too."""
    kind = _media_type(mode)
    if "/" not in (kind := _SHORT.get(kind, kind)):
        raise ValidationError(f"inputMode must be a media type such as {TEXT} or {JSON}, got {mode[:100]!r}.")
    return kind


def read_message(message: str, mode: str) -> tuple[Part, ...]:
    """The message as a part of its media type. Words and JSON stay text; all else is bytes, in base64 or a data URI."""
    kind = _media_type(mode)
    if not message:
        return ()
    if kind in (TEXT, JSON):
        return (Part(text=message),)
    if kind.startswith("text/"):
        return (Part(text=message, media_type=kind),)
    if message.startswith("data:"):
        raw, named = _read_data_uri(message)
        if named != kind:
            raise ValidationError(f"inputMode says {kind}, but the data URI says {named}. They must match.")
        return (Part(raw=raw, media_type=kind),)
    return (Part(raw=_read_base64(message, f"With inputMode {kind} the message"), media_type=kind),)


async def read_files(
    files: Sequence[Mapping[str, Any]], artifact: Callable[[str], Awaitable[StoredArtifact]]
) -> tuple[Part, ...]:
    """The files of a call as parts, bounded together. ``artifact`` reads one that the caller may read."""
    parts: list[Part] = []
    size = 0
    for number, file in enumerate(files):
        name, kind = file.get("name"), file.get("mediaType")
        match [key for key in ("artifact", "uri", "bytes") if key in file]:
            case ["artifact"]:
                stored = await artifact(file["artifact"])
                raw, found, name = stored.body, stored.media_type, name or stored.name
            case ["uri"]:
                raw, found = _read_data_uri(file["uri"])
            case ["bytes"]:
                raw, found = _read_base64(file["bytes"], f"files[{number}].bytes"), "application/octet-stream"
            case _:
                raise ValidationError(f"files[{number}] needs exactly one of artifact, uri (a data URI) and bytes.")
        size += len(raw)
        if size > MOST_BYTES:
            raise TooLarge(
                f"The files of one call may have at most {MOST_BYTES} bytes in total. Send fewer or smaller ones."
            )
        parts.append(Part(raw=raw, media_type=_media_type(kind or found), name=name))
    return tuple(parts)


def check_modes(agent: str, capability: Capability, parts: Sequence[Part], mode: str) -> None:
    """ValidationError unless the capability takes everything that the caller sends, by the media types it declares.

    Words are also taken where only JSON is declared: they are read into the input.
    """
    declared = _read_kept(capability.input_modes)
    if not declared:
        return
    for part in parts:
        kind = part.media_type or _media_type(mode)
        if kind in declared or (kind == TEXT and JSON in declared):
            continue
        if not any(is_among(kind, pattern) for pattern in declared):
            raise ValidationError(
                f"{agent}/{capability.name} does not accept {kind[:100]}. It accepts {', '.join(declared)}.",
                data={"inputModes": list(declared)},
            )


def is_among(kind: str, pattern: str) -> bool:
    """Whether a media type is one of those that a pattern means, such as ``image/*`` or ``*/*``.

    A pattern may be a stranger's, and long: as a regular expression it would take seconds, and be kept.
    """
    before, star, after = pattern.partition("*")
    if not star:
        return kind == pattern
    if pattern in ("*", "*/*"):
        return True
    return len(kind) >= len(before) + len(after) and kind.startswith(before) and kind.endswith(after)


def read_declared(modes: Sequence[str]) -> tuple[str, ...]:
    """Media types that somebody declares, as patterns. Some also name kinds of parts, such as ``text``."""
    return tuple(_KINDS.get(each, _media_type(each)) for each in modes)


@lru_cache(maxsize=2_000)
def _read_kept(modes: tuple[str, ...]) -> tuple[str, ...]:
    return read_declared(modes)


def _media_type(text: str) -> str:
    """A media type without its parameters."""
    return text.partition(";")[0].strip().lower()


def _read_data_uri(text: str) -> tuple[bytes, str]:
    head, comma, body = text.partition(",")
    if not head.startswith("data:") or not comma:
        raise ValidationError("A file's uri must be a data URI, such as data:image/png;base64,… Other addresses are "
                              "not fetched.")  # fmt: skip
    kind = head.removeprefix("data:")
    is_base64 = kind.endswith(";base64")
    raw = _read_base64(body, "The data URI") if is_base64 else unquote_to_bytes(body)
    return raw, _media_type(kind.removesuffix(";base64")) or TEXT


def _read_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValidationError(f"{what} must be base64.") from None
