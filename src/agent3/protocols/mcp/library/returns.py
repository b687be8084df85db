"""What functions of a server return, as the call core knows it: bytes by what they are, artifacts, several at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from agent3.model import Artifact, Done, Part
from agent3.protocols.functions.functions import parts_of

__all__ = ["adapt", "convert_result", "to_bytes_part"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def adapt(function: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, with what it returns converted. Its signature stays the same."""
    if isinstance(function, functools.partial):
        return functools.partial(adapt(function.func, convert), *function.args, **function.keywords)

    async def await_and_convert(value: Coroutine[Any, Any, Any]) -> Any:
        return convert(await value)

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        value = function(*args, **named)
        return await_and_convert(value) if inspect.iscoroutine(value) else convert(value)

    return run


def convert_result(value: Any) -> Any:
    """What a tool returned, as the call core knows it."""
    if isinstance(value, bytes):
        return to_bytes_part(value)
    if isinstance(value, Artifact):
        return Done(artifacts=(value,))
    if not isinstance(value, tuple | list) or not any(isinstance(item, Part | Artifact | bytes) for item in value):
        return value
    parts: list[Part] = []
    for item in value:
        if isinstance(item, bytes):
            parts.append(to_bytes_part(item))
        elif not isinstance(item, Artifact):
            parts.extend(parts_of(item))
    return Done(tuple(parts), tuple(item for item in value if isinstance(item, Artifact)))


def to_bytes_part(body: bytes) -> Part:
    """Some bytes, with the media type by which they begin: clients show images, and only keep other bytes."""
    if body[:4] == b"RIFF" and body[8:12] in (b"WEBP", b"WAVE"):
        kind = "image/webp" if body[8:12] == b"WEBP" else "audio/wav"
    else:
        kind = next((kind for magic, kind in _MAGIC if body.startswith(magic)), "application/octet-stream")
    return Part(raw=body, media_type=kind)
