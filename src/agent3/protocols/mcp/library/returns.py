"""What functions of a server return, as the call core knows it: bytes by what they are, artifacts, several at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from agent3.model import Artifact, Done, Part
from agent3.protocols.functions.functions import parts_of, to_bytes_part

__all__ = ["adapt", "convert_result"]


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
