"""What is marked as sensitive: kept out of records, where a hash stands in its place.

A property of a schema is marked by ``sensitive: true`` (or ``x-sensitive``, or ``format: password``), a whole
capability by ``sensitive`` in its ``meta``. The hash is keyed, since a short value could be guessed from a plain one:
the same value has the same hash within one database, and tells nothing outside of it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agent3.model import Capability

__all__ = ["SENSITIVE", "Sensitive", "find_sensitive"]

SENSITIVE = "sensitive"
"""The key of the mark in the ``meta`` of a capability and in schemas."""
_DEEPEST = 32
_SHORTEST = 3
"""Characters of a value that is looked for in messages: shorter ones are in every sentence."""
_sorted = msgspec.json.Encoder(order="deterministic")


class Sensitive:
    """What is sensitive of one capability."""

    def __init__(self, capability: Capability, key: bytes = b""):
        self._key = key
        self._whole = bool(capability.meta.get(SENSITIVE))
        self._input = capability.input_schema or {}
        self._output = capability.output_schema or {}
        self.in_input = self._whole or _marks(self._input)
        self.in_output = self._whole or _marks(self._output)

    def hide_input(self, value: Any) -> Any:
        """Input with a hash in the place of each sensitive value."""
        return self._digest(value) if self._whole else _hide(value, self._input, self._input, self._digest, 0)

    def hide_output(self, value: Any) -> Any:
        """A structured result likewise."""
        return self._digest(value) if self._whole else _hide(value, self._output, self._output, self._digest, 0)

    def hide_text(self, text: str) -> str:
        """The hash of a text, of which nobody knows where in it something sensitive stands."""
        return self._digest(text)

    def hide_in_message(self, message: str, value: Any) -> str:
        """A message with the sensitive values of an input replaced by their hashes."""
        found: list[Any] = []

        def note(sensitive: Any) -> str:
            found.append(sensitive)
            return ""

        if self._whole:
            found.append(value)
        else:
            _hide(value, self._input, self._input, note, 0)
        leaves = {str(leaf) for one in found for leaf in _leaves(one)}
        for leaf in sorted(leaves, key=len, reverse=True):
            if len(leaf) >= _SHORTEST and leaf in message:
                message = message.replace(leaf, self._digest(leaf))
        return message

    def _digest(self, value: Any) -> str:
        try:
            raw = _sorted.encode(value)
        except (TypeError, ValueError, RecursionError):
            raw = repr(value).encode("utf-8", "surrogatepass")
        return f"hash:{hmac.digest(self._key, raw, 'sha256').hex()[:32]}"


def find_sensitive(capability: Capability, key: bytes = b"") -> Sensitive | None:
    """What is sensitive of a capability; None where nothing is."""
    found = Sensitive(capability, key)
    return found if found.in_input or found.in_output else None


def _is_marked(schema: Any) -> bool:
    return isinstance(schema, Mapping) and (
        schema.get(SENSITIVE) is True or schema.get("x-sensitive") is True or schema.get("format") == "password"
    )


def _marks(schema: Any) -> bool:
    """Whether anything in a schema is marked."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if _is_marked(one):
            return True
        waiting.extend(one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
    return False


def _hide(value: Any, schema: Any, root: Mapping[str, Any], hide: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return hide(value)  # nobody looks that deep, so nothing of it is shown
    schemas = list(_expand(schema, root, depth))
    if any(map(_is_marked, schemas)):
        return hide(value)
    if isinstance(value, Mapping):
        return {name: _hide(one, _below(schemas, name), root, hide, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        inner = {"anyOf": [one["items"] for one in schemas if isinstance(one.get("items"), Mapping)]}
        return [_hide(one, inner, root, hide, depth + 1) for one in value]
    return value


def _below(schemas: list[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The schemas of one property."""
    found = []
    for one in schemas:
        properties, others = one.get("properties"), one.get("additionalProperties")
        if isinstance(properties, Mapping) and name in properties:
            found.append(properties[name])
        elif isinstance(others, Mapping):
            found.append(others)
    return {"anyOf": found}


def _expand(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """A schema, what it refers to within its document, and its alternatives."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        yield from _expand(found, root, depth + 8)
    for name in ("allOf", "anyOf", "oneOf"):
        for one in schema.get(name) or ():
            yield from _expand(one, root, depth + 1)


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
        elif one is not None and not isinstance(one, bool):
            yield one
