"""What the function of a tool may return besides plain values: bytes, artifacts, and several of these at once.

The call core knows parts and outcomes; here the rest becomes one of them, before large pieces are stored away.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from agent3.model import Artifact, Done, Part
from agent3.protocols.functions.functions import parts_of

__all__ = ["adapt_returns"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def adapt_returns(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, returning values that the call core knows. Its signature stays the same."""
    if isinstance(function, functools.partial):
        return functools.partial(adapt_returns(function.func), *function.args, **function.keywords)

    async def await_and_adapt(value: Coroutine[Any, Any, Any]) -> Any:
        return _adapt(await value)

    @functools.wraps(function)
    def adapted(*args: Any, **named: Any) -> Any:
        value = function(*args, **named)
        return await_and_adapt(value) if inspect.iscoroutine(value) else _adapt(value)

    return adapted


def _adapt(value: Any) -> Any:
    if isinstance(value, bytes):
        return _bytes_part(value)
    if isinstance(value, Artifact):
        return Done(artifacts=(value,))
    if not isinstance(value, tuple | list) or not any(isinstance(item, Part | Artifact | bytes) for item in value):
        return value
    parts: list[Part] = []
    for item in value:
        if isinstance(item, bytes):
            parts.append(_bytes_part(item))
        elif not isinstance(item, Artifact):
            parts.extend(parts_of(item))
    return Done(tuple(parts), tuple(item for item in value if isinstance(item, Artifact)))


def _bytes_part(body: bytes) -> Part:
    """Some bytes, with the media type by which they begin: clients show images, and only keep other bytes."""
    if body[:4] == b"RIFF" and body[8:12] in (b"WEBP", b"WAVE"):
        kind = "image/webp" if body[8:12] == b"WEBP" else "audio/wav"
    else:
        kind = next((kind for magic, kind in _MAGIC if body.startswith(magic)), "application/octet-stream")
    return Part(raw=body, media_type=kind)
