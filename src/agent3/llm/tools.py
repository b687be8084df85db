"""Tools as vendors take them: names they can spell, and schemas they can read.

Both vendors refuse the whole request for one name with a dot, one description that is too long, or one schema whose
top is a union; so everything is brought into the form that all of them take. What a model may no longer see as a
rule it still reads as words. Whoever runs the call validates against the schema as it was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from agent3.errors import Conflict, SetupError
from agent3.llm.port import Assistant, Message, Tool, ToolResult

__all__ = ["Names", "parameters", "shortened"]

NAME_LIMIT = 64
_FIT = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LIMIT}}}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


class Names:
    """Names on the wire for the names of one request, there and back.

    A name that fits is itself. Any other is cut and carries a hash of the whole, so that it is the same in every
    request and two long names that begin alike stay two.
    """

    def __init__(self, names: Iterable[str]):
        wanted = set(names)
        self._wire = {name: name for name in wanted if _FIT.fullmatch(name)}
        self._real = dict(self._wire)
        for name in sorted(wanted - self._wire.keys()):
            spelled = _spelled(name, self._real)
            self._wire[name], self._real[spelled] = spelled, name

    @classmethod
    def of(cls, tools: Sequence[Tool], messages: Sequence[Message] = ()) -> Names:
        """The names of the tools, and of those that the conversation speaks of."""
        offered: set[str] = set()
        for tool in tools:
            if tool.name in offered:
                raise Conflict(
                    f"Two tools bear the name {tool.name[:100]!r}; a model cannot tell them apart. Rename one."
                )
            offered.add(tool.name)
        return cls([*offered, *_spoken_of(messages)])

    def wire(self, name: str) -> str:
        """How the vendor is told it."""
        return self._wire[name]

    def real(self, name: str) -> str:
        """What the vendor's name stands for; a name that was never told comes back as it is."""
        return self._real.get(name, name)


def _spoken_of(messages: Sequence[Message]) -> Iterable[str]:
    for message in messages:
        if isinstance(message, Assistant):
            yield from (call.name for call in message.calls)
        elif isinstance(message, ToolResult):
            yield message.name


def _spelled(name: str, taken: Mapping[str, str]) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    readable = _UNFIT.sub("_", name).strip("_") or "tool"
    for length in range(8, NAME_LIMIT - 1, 8):
        spelled = f"{readable[: NAME_LIMIT - 1 - length]}_{digest[:length]}"
        if spelled not in taken:
            return spelled
    raise Conflict(f"No name is left for the tool {name[:100]!r}; rename it.")


def shortened(text: str, limit: int) -> str:
    """The text, cut at a word if it is too long for the vendor."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head[: head.rfind(' ')] if ' ' in head[limit // 2 :] else head}…"


# --- schemas ----------------------------------------------------------------------------------------------------------

_META = frozenset("$schema $id id $defs definitions $comment $anchor $dynamicAnchor $vocabulary".split())
_NESTED = frozenset("items additionalProperties contains not if then else propertyNames unevaluatedItems".split())
_NESTED |= {"additionalItems", "unevaluatedProperties", "contentSchema"}
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_PORTABLE = frozenset("type properties required items enum description anyOf additionalProperties title".split())
_NOT_ON_TOP = frozenset("anyOf oneOf allOf enum const not if then else".split())

_SELF = 2
"""How often a definition may stand inside itself before it is cut."""
_NODES = 4_000
"""Schemas in one tool after which references are no longer followed: inlining can double at every level."""
_DEPTH = 48


def parameters(tool: Tool, *, text: int = 1024, portable: bool = False) -> dict[str, Any]:
    """The tool's input schema as a vendor takes it: self-contained, an object, without a union at its top.

    ``text`` bounds each description. ``portable`` keeps only what every compatible server understands and moves the
    rest into the descriptions. Raises SetupError for a tool whose input is no object.
    """
    whole = _Inlining(tool.input_schema, text, portable).schema(tool.input_schema, (), 0)
    return _object(tool.name, whole, text)


class _Inlining:
    """One schema on its way: the document that references point into, and how much it has grown."""

    def __init__(self, root: Mapping[str, Any], text: int, portable: bool):
        self._root = root
        self._text = text
        self._portable = portable
        self._nodes = 0

    def schema(self, given: Any, inside: tuple[str, ...], depth: int) -> dict[str, Any]:
        """The schema without references. ``inside`` are those that led here."""
        self._nodes += 1
        if not isinstance(given, Mapping):
            return {"not": {}} if given is False else {}
        if depth > _DEPTH:
            return self._left_out(given, "Nested too deep to be shown here.")
        if isinstance(given.get("$ref"), str):
            return self._referred(given, inside, depth)
        made = {key: self._value(key, value, inside, depth) for key, value in given.items() if key not in _META}
        return self._finished(made)

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key in _NESTED and isinstance(value, Mapping):
            return self.schema(value, inside, depth + 1)
        if key in _MAPS and isinstance(value, Mapping):
            return {name: self.schema(one, inside, depth + 1) for name, one in value.items()}
        if (key in _LISTS or key == "items") and isinstance(value, (list, tuple)):
            return [self.schema(one, inside, depth + 1) for one in value]
        if key == "description" and isinstance(value, str):
            return shortened(value, self._text)
        return value

    def _referred(self, given: Mapping[str, Any], inside: tuple[str, ...], depth: int) -> dict[str, Any]:
        ref = given["$ref"]
        target = _pointed(self._root, ref)
        beside = {key: value for key, value in given.items() if key != "$ref"}
        if not isinstance(target, Mapping):
            return self._left_out(beside, "Its form is defined elsewhere.")
        # What stands beside a reference holds as well; where both speak, the nearer one is the more particular.
        both = {**target, **beside}
        if inside.count(ref) >= _SELF or self._nodes > _NODES:
            return self._left_out(both, "Of the same form as around it; its fields are left out here.")
        return self.schema(both, (*inside, ref), depth + 1)

    def _left_out(self, given: Mapping[str, Any], note: str) -> dict[str, Any]:
        """Only the kind and the words of a schema, so that it permits all that the whole would."""
        kept = {key: given[key] for key in ("type", "description") if key in given}
        return self._finished(_noted(kept, note, self._text))

    def _finished(self, made: dict[str, Any]) -> dict[str, Any]:
        if isinstance(made.get("items"), list):  # a tuple, as drafts before 2020 wrote it
            made["prefixItems"] = made.pop("items")
        if self._portable:
            made = self._ported(made)
        if _has_type(made, "array"):
            made.setdefault("items", {})  # OpenAI refuses an array that does not say of what
        return made

    def _ported(self, made: dict[str, Any]) -> dict[str, Any]:
        if "oneOf" in made and "anyOf" not in made:
            made["anyOf"] = made.pop("oneOf")
        if "const" in made:
            made.setdefault("enum", [made.pop("const")])
        if "prefixItems" in made:
            made.setdefault("items", {"anyOf": made.pop("prefixItems")})
        for part in made.pop("allOf", ()):
            _merge(made, part)
        rest = {key: value for key, value in made.items() if key not in _PORTABLE and key != "default"}
        kept = {key: value for key, value in made.items() if key in _PORTABLE}
        if "default" in made:
            rest["default"] = made["default"]
        return _noted(kept, ", ".join(f"{key}: {_json(value)}" for key, value in rest.items()), self._text)


def _pointed(root: Any, ref: str) -> Any:
    """What a reference within the document points at; None for any other."""
    if not ref.startswith("#"):
        return None
    found = root
    for step in filter(None, unquote(ref[1:]).split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, (list, tuple)) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _has_type(schema: Mapping[str, Any], kind: str) -> bool:
    said = schema.get("type")
    return said == kind or (isinstance(said, list) and kind in said)


def _noted(schema: dict[str, Any], note: str, limit: int) -> dict[str, Any]:
    if not note:
        return schema
    said = schema.get("description")
    return {**schema, "description": shortened(f"{said} ({note})" if isinstance(said, str) and said else note, limit)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


# --- the top ----------------------------------------------------------------------------------------------------------


def _object(name: str, schema: dict[str, Any], limit: int) -> dict[str, Any]:
    for part in schema.get("allOf", ()):
        _merge(schema, part)
    either = [one for key in ("anyOf", "oneOf") for one in schema.get(key, ()) if one.get("type") != "null"]
    if not _is_object(schema, either):
        kind = _json(schema.get("type", "no object"))
        raise SetupError(
            f"Tool {name[:100]!r} takes {kind}, but a model calls tools with an object; give it a schema of that type."
        )
    note = _either(schema, either)
    top = {key: value for key, value in schema.items() if key not in _NOT_ON_TOP}
    return _noted({**top, "type": "object", "properties": top.get("properties", {})}, note, limit)


def _is_object(schema: Mapping[str, Any], either: Sequence[Mapping[str, Any]]) -> bool:
    if "type" in schema:
        return _has_type(schema, "object")
    return all(_has_type(one, "object") or "type" not in one for one in either)


def _either(schema: dict[str, Any], either: Sequence[dict[str, Any]]) -> str:
    """Offer the fields of every alternative, require only what all of them do, and say the rest in words."""
    if not either:
        return ""
    needed = [set(_required(one)) for one in either]
    schema["properties"] = {**_united(either), **schema.get("properties", {})}
    in_all = set.intersection(*needed)
    schema["required"] = list(dict.fromkeys([*_required(schema), *sorted(in_all)]))
    sets = [", ".join(sorted(one)) for one in needed if one - in_all]
    return f"Give one of these sets of fields: {'; or '.join(dict.fromkeys(sets))}" if sets else ""


def _united(either: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of all alternatives; one that differs between them may be any of what they say."""
    forms: dict[str, list[Any]] = {}
    for one in either:
        for name, form in one.get("properties", {}).items():
            known = forms.setdefault(name, [])
            if form not in known:
                known.append(form)
    return {name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in forms.items()}


def _required(schema: Mapping[str, Any]) -> list[str]:
    said = schema.get("required")
    return [one for one in said if isinstance(one, str)] if isinstance(said, (list, tuple)) else []


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add what a part of ``allOf`` says to what is there, which goes first where both speak."""
    fields = part.get("properties")
    if isinstance(fields, Mapping):
        into["properties"] = {**fields, **into.get("properties", {})}
    if _required(part):
        into["required"] = list(dict.fromkeys([*_required(into), *_required(part)]))
    for key, value in part.items():
        if key not in ("properties", "required"):
            into.setdefault(key, value)
