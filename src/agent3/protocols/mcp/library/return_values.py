"""What the function of a tool may return beyond values: bytes, artifacts, and several of these at once.

The call core knows parts and outcomes; here the rest becomes one of them, before large pieces are stored away.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from agent3.model import Artifact, Done, Part
from agent3.protocols.functions.functions import parts_of

__all__ = ["giving", "media_type"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def giving(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what it returns in a form that the call core knows. Its signature stays as it is."""
    if isinstance(function, functools.partial):
        return functools.partial(giving(function.func), *function.args, **function.keywords)

    @functools.wraps(function)
    def given(*args: Any, **named: Any) -> Any:
        value = function(*args, **named)
        return _later(value) if inspect.iscoroutine(value) else _known(value)

    return given


async def _later(value: Coroutine[Any, Any, Any]) -> Any:
    return _known(await value)


def _known(value: Any) -> Any:
    if isinstance(value, bytes):
        return _raw(value)
    if isinstance(value, Artifact):
        return Done(artifacts=(value,))
    if isinstance(value, tuple | list) and any(isinstance(one, Part | Artifact | bytes) for one in value):
        return _several(value)
    return value


def _several(values: tuple[Any, ...] | list[Any]) -> Done:
    parts: list[Part] = []
    for one in values:
        if isinstance(one, bytes):
            parts.append(_raw(one))
        elif not isinstance(one, Artifact):
            parts.extend(parts_of(one))
    return Done(tuple(parts), tuple(one for one in values if isinstance(one, Artifact)))


def _raw(body: bytes) -> Part:
    return Part(raw=body, media_type=media_type(body))


def media_type(body: bytes) -> str:
    """What some bytes are, by how they begin; images are shown by clients, and other bytes only kept."""
    if body[:4] == b"RIFF" and body[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if body[8:12] == b"WEBP" else "audio/wav"
    return next((kind for magic, kind in _MAGIC if body.startswith(magic)), "application/octet-stream")
