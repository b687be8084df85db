"""Schemas of OpenAPI as JSON Schema: the words of 3.0 translated, references kept as ``$defs``, all within bounds.

A schema that is beyond what the gateway checks is simplified step by step: first long lists of choices and patterns go,
then what lies deep. What is left admits more than the service does, which checks for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent3.errors import Agent3Error
from agent3.protocols.openapi.document import BrokenReference, Document
from agent3.schema.compiler import compile as compile_schema

__all__ = ["DETAIL", "Detail", "Schemas", "accepted"]

_COPIED = (
    *("title", "description", "default", "format", "const", "multipleOf", "minimum", "maximum", "minLength"),
    *("maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "minContains"),
    *("maxContains", "contentEncoding", "contentMediaType", "deprecated", "dependentRequired"),
)
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MORE = ("unevaluatedProperties", "unevaluatedItems")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "dependentSchemas")
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_NUMBERS = frozenset({"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)


@dataclass(frozen=True)
class Detail:
    """How much of a schema is kept."""

    depth: int = 24
    choices: int = 1_000
    patterns: bool = True
    text: int = 2_000
    outputs: bool = True


DETAIL = (Detail(), Detail(depth=10, choices=50, patterns=False, text=300), Detail(4, 20, False, 100, False))
"""From all there is to the least."""


class Schemas:
    """Converts the schemas of one operation, which share their ``defs``.

    In a request, what is ``readOnly`` does not belong; in a response, what is ``writeOnly`` need not be there.
    """

    def __init__(self, document: Document, *, response: bool = False, detail: Detail = DETAIL[0]):
        self._document = document
        self._response = response
        self._detail = detail
        self._names: dict[str, str] = {}
        self.defs: dict[str, Any] = {}
        self.broken: list[str] = []

    def convert(self, schema: Any, level: int = 0) -> Any:
        """The same in JSON Schema 2020-12. What is no schema, or is broken, admits anything."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(schema.get("$ref"), str):
            return self._refer(schema, level)
        if level > self._detail.depth:
            kinds = _types(schema.get("type"))
            return {"type": kinds} if kinds else {}
        made: dict[str, Any] = {name: schema[name] for name in _COPIED if name in schema and _fits(name, schema[name])}
        for name in ("title", "description"):
            if name in made:
                made[name] = str(made[name])[: self._detail.text]
        if kinds := _types(schema.get("type")):
            made["type"] = kinds
        for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            given = schema.get(exclusive)
            if given is True and plain in made:
                made[exclusive] = made.pop(plain)
            elif _fits(exclusive, given):
                made[exclusive] = given
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and self._detail.patterns:
            made["pattern"] = pattern
        self._add_choices(schema, made)
        for name in (*_ONE, *(() if self._document.old else _MORE)):
            if isinstance(schema.get(name), Mapping | bool):
                made[name] = self.convert(schema[name], level + 1)
        for name in _LISTS:
            if isinstance(schema.get(name), list) and schema[name]:
                made[name] = [self.convert(each, level + 1) for each in schema[name]]
        for name in _MAPS:
            if isinstance(schema.get(name), Mapping):
                made[name] = {str(key): self.convert(each, level + 1) for key, each in schema[name].items()}
        required = schema.get("required")
        if isinstance(required, list):
            made["required"] = sorted({str(name) for name in required})
        self._leave_out(schema, made)
        examples = schema.get("examples") if isinstance(schema.get("examples"), list) else None
        examples = examples or ([schema["example"]] if "example" in schema else None)
        if examples and len(str(examples)) <= self._detail.text:
            made["examples"] = examples
        if self._document.old and schema.get("nullable") is True:
            made = _or_null(made)
        return made

    def with_defs(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema together with what it refers to."""
        return {**schema, "$defs": dict(self.defs)} if self.defs else schema

    def resolve(self, schema: Any) -> Any:
        """A schema with its own reference followed, not converted; an empty one where that is broken."""
        try:
            found = self._document.follow(schema)
        except BrokenReference:
            return {}
        return found if isinstance(found, Mapping) else {}

    def _refer(self, schema: Mapping[str, Any], level: int) -> Any:
        reference = schema["$ref"]
        if reference not in self._names:
            try:
                target = self._document.follow(schema)
            except BrokenReference as broken:
                self.broken.append(str(broken))
                return {}
            if level > self._detail.depth:
                return self.convert({key: target[key] for key in ("type",) if key in target}, 0)
            stem = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])[:60] or "schema"
            name, number = stem, 1
            while name in self.defs:
                number += 1
                name = f"{stem}_{number}"
            # Named before it is converted, so that one that refers to itself ends.
            self._names[reference] = name
            self.defs[name] = {}
            self.defs[name] = self.convert(target, level + 1)
        made: dict[str, Any] = {"$ref": f"#/$defs/{self._names[reference]}"}
        # In 3.0 nothing counts beside a reference; since 3.1 everything does.
        if not self._document.old and len(schema) > 1:
            made |= self.convert({key: value for key, value in schema.items() if key != "$ref"}, level)
        return made

    def _add_choices(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        choices = schema.get("enum")
        if not isinstance(choices, list) or not choices:
            return
        if len(choices) <= self._detail.choices:
            made["enum"] = choices
        else:
            some = ", ".join(str(choice)[:40] for choice in choices[:5])
            text = f"{made.get('description', '')} One of {len(choices)} values, such as {some}."
            made["description"] = text.strip()

    def _leave_out(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Take out the properties that go the other way only."""
        given = schema.get("properties")
        properties: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        word = "writeOnly" if self._response else "readOnly"
        away = {name for name, each in properties.items() if self.resolve(each).get(word) is True}
        if not away:
            return
        if not self._response:
            made["properties"] = {name: each for name, each in made["properties"].items() if name not in away}
        if "required" in made:
            made["required"] = [name for name in made["required"] if name not in away]


def accepted(schema: dict[str, Any]) -> bool:
    """Whether the gateway can check values by a schema."""
    try:
        compile_schema(schema)
    except Agent3Error:
        return False
    return True


def _types(given: Any) -> str | list[str] | None:
    kinds = [
        kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str) and kind in _TYPES
    ]
    if not kinds:
        return None
    return kinds if isinstance(given, list) and len(kinds) > 1 else kinds[0]


def _fits(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if name in _COUNTS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value is not None or name in ("const", "default")


def _or_null(made: dict[str, Any]) -> dict[str, Any]:
    """A schema that also admits null. The notes stay outside, where readers look for them."""
    kinds = made.get("type")
    if kinds is None:
        notes: dict[str, Any] = {name: made.pop(name) for name in ("title", "description", "default") if name in made}
        return {**notes, "anyOf": [made, {"type": "null"}]} if made else notes
    made["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
    if "enum" in made and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    return made
