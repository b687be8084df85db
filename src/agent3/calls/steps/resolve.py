"""``resolve``: makes structured input of what the caller gave. Structured input is taken as it is.

A message becomes input when that needs no guess: it is JSON and says so, or the capability takes nothing but one
text. A capability that ``reads`` messages itself is left to do so. A later turn is resolved anew, for a job keeps what
its caller said, and a replay needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Step
from agent3.errors import Agent3Error, ValidationError
from agent3.model import Call, Capability, text_of
from agent3.schema.compiler import once

__all__ = ["Resolve"]


class Resolve(Step):
    """Reads the caller's message."""

    name = "resolve"

    def idle(self, aim: Aim) -> bool:
        return aim.entry == "cancel"

    def enter(self, call: Call) -> Entered:
        if call.input is not None or call.entry == "cancel":
            return call
        try:
            return replace(call, input=_read(call, call.live.capability))
        except Agent3Error as error:
            return failed_by(error)


def _read(call: Call, capability: Capability) -> Any:
    """The input that a message says; ValidationError where it is not what it claims, None where others read it."""
    message = text_of(call.parts)
    if call.input_mode == "application/json":
        try:
            return msgspec.json.decode(message)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValidationError(f"The message claims to be application/json but is not: {error}") from None
    if message and capability.meta.get("reads") == "messages":
        return None
    name = _text_parameter(capability.input_schema)
    return {name: message} if name and message else {}


@once
def _text_parameter(definition: dict[str, Any]) -> str | None:
    """The one parameter that a plain message can fill: the only required text, or the only text at all."""
    properties: Mapping[str, Any] = definition.get("properties") or {}
    texts = [name for name, value in properties.items() if isinstance(value, dict) and value.get("type") == "string"]
    required = [name for name in texts if name in (definition.get("required") or ())]
    for candidates in (required, texts):
        if len(candidates) == 1:
            return candidates[0]
    return next((name for name in ("message", "query", "text", "prompt", "input") if name in texts), None)
