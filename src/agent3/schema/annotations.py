"""One Python type as a schema, and back: for answers to questions, whose type stands in the code that asks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pydantic
from pydantic.errors import PydanticUserError

from agent3.errors import SetupError, ValidationError

__all__ = ["of_type", "to_type"]

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def of_type(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type; a schema passes through."""
    if isinstance(kind, dict):
        return kind
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    schema = _adapter(kind).json_schema()
    schema.pop("title", None)
    return schema


def to_type(kind: Any, data: Any) -> Any:
    """The value of a type from JSON data; data for a plain schema passes through."""
    if isinstance(kind, dict) or kind in _PLAIN:
        return data
    try:
        return _adapter(kind).validate_python(data)
    except pydantic.ValidationError as error:
        raise ValidationError(error.errors(include_url=False)[0]["msg"]) from None


@lru_cache(maxsize=1_000)
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    try:
        return pydantic.TypeAdapter(kind)
    except PydanticUserError as error:
        raise SetupError(f"{kind!r} cannot be asked for: {error.message}") from None
