"""What is marked as sensitive: kept out of records, where a hash stands in its place.

A property of a schema is marked by ``sensitive: true`` (or ``x-sensitive``, or ``format: password``), a whole
capability by ``sensitive`` in its ``meta``. The hash is keyed, since a short value could be guessed from a plain one:
the same value has the same hash within one database, and tells nothing outside of it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from agent3.model import Capability
from agent3.schema.bounds import weigh

__all__ = ["SENSITIVE", "Sensitive", "find_sensitive"]

SENSITIVE = "sensitive"
"""The key of the mark in the ``meta`` of a capability and in schemas."""
_DEEPEST = 32
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ALTERNATIVES = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_OF_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
"""What says something of the same value, of other properties and of items: marked in any of them, it is hidden."""
_SHORTEST = 3
"""Characters of a value that is looked for in messages: shorter ones are in every sentence."""
_MOST_HIDING, _MOST_LOOKING = 1 << 29, 10_000_000
"""How much of a value is hidden piece by piece: by the sizes of it and its schema, of a text and what is looked for in
it. Beyond that all of it is hidden, since records are written in the event loop."""
_LONGEST = 1 << 26
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
        return self._hide(value, self._input)

    def hide_output(self, value: Any) -> Any:
        """A structured result likewise."""
        return self._hide(value, self._output)

    def _hide(self, value: Any, schema: Mapping[str, Any]) -> Any:
        if self._whole or _is_too_much(value, schema):
            return self._digest(value)
        return _hide(value, schema, schema, self._digest, 0)

    def hide_text(self, text: str) -> str:
        """The hash of a text, of which nobody knows where in it something sensitive stands."""
        return self._digest(text)

    def hide_in_message(self, message: str, value: Any) -> str:
        """A message with the sensitive values of an input replaced by their hashes."""
        return self._replace(message, self._find_leaves(value))

    def hide_echoes(self, told: Any, value: Any) -> Any:
        """What a target answered, with the sensitive values of its input that it repeats replaced by their hashes."""
        leaves = self._find_leaves(value)
        if leaves and len(leaves) * weigh(told, _MOST_LOOKING) > _MOST_LOOKING:
            return self._digest(told)

        def hide(one: Any, depth: int) -> Any:
            if isinstance(one, str):
                return self._replace(one, leaves)
            if isinstance(one, Mapping | list | tuple) and depth > _DEEPEST:
                return self._digest(one)
            if isinstance(one, Mapping):
                return {self._replace(str(name), leaves): hide(each, depth + 1) for name, each in one.items()}
            if isinstance(one, list | tuple):
                return [hide(each, depth + 1) for each in one]
            return self._digest(one) if not isinstance(one, bool) and str(one) in leaves else one

        return hide(told, 0) if leaves else told

    def _find_leaves(self, value: Any) -> dict[str, str]:
        """The sensitive values of an input in every way of writing them, each with its hash, the longest first."""
        found: list[Any] = []

        def note(sensitive: Any) -> str:
            found.append(sensitive)
            return ""

        if self._whole or _is_too_much(value, self._input):
            found.append(value)
        else:
            _hide(value, self._input, self._input, note, 0)
        leaves = {str(leaf) for one in found for leaf in _leaves(one)}
        # As it is, as Python shows it, and as JSON writes it.
        written = {
            text: self._digest(leaf)
            for leaf in leaves
            if len(leaf) >= _SHORTEST
            for text in (leaf, repr(leaf)[1:-1], json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1])
        }
        return {text: written[text] for text in sorted(written, key=len, reverse=True)}

    def _replace(self, text: str, leaves: Mapping[str, str]) -> str:
        if len(leaves) * len(text) > _MOST_LOOKING:
            return self._digest(text)
        for written, digest in leaves.items():
            if written in text:
                text = text.replace(written, digest)
        return text

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


def _is_too_much(value: Any, schema: Any) -> bool:
    """Whether each piece of a value, held against each of a schema, would take long."""
    return weigh(value, _LONGEST) * weigh(schema, _LONGEST) > _MOST_HIDING


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
    schemas = _expand(schema, root)
    if schemas is None or any(map(_is_marked, schemas)):
        return hide(value)
    if isinstance(value, Mapping):
        return {name: _hide(one, _below(schemas, name), root, hide, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        inner = {"anyOf": [one for each in schemas for name in _OF_ITEMS for one in _as_list(each.get(name))]}
        return [_hide(one, inner, root, hide, depth + 1) for one in value]
    return value


def _below(schemas: list[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The schemas that may be those of one property: which pattern its name fits is not worth a mistake."""
    found = []
    for one in schemas:
        properties, patterns = one.get("properties"), one.get("patternProperties")
        if isinstance(properties, Mapping) and name in properties:
            found.append(properties[name])
        else:
            found += [one[other] for other in _OF_OTHERS if other in one]
        found += patterns.values() if isinstance(patterns, Mapping) else ()
    return {"anyOf": found}


def _expand(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """A schema, what it refers to within its document, and its alternatives; None where that cannot be told."""
    found: list[Mapping[str, Any]] = []
    seen, waiting = set(), [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        found.append(one)
        for name in _REFERENCES:
            if (reference := one.get(name)) is not None:
                if (there := _find(reference, root)) is None:
                    return None
                waiting.append(there)
        for name in _ALTERNATIVES:
            waiting += _as_list(one.get(name))
        for name in ("dependentSchemas", "dependencies"):
            waiting += others.values() if isinstance(others := one.get(name), Mapping) else ()
    return found


def _find(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference within a document leads to; None for any other."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list | tuple) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


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
