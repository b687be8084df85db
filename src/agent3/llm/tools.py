"""Tools in the form that vendors accept: names they can spell, and schemas they can read.

Both vendors refuse the whole request for one name with a dot, one description that is too long, or one schema whose
top is a union; so everything is brought into the form that all of them accept. Rules that this removes are kept as
words in descriptions. Whoever runs the call validates against the original schema.
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

__all__ = ["Names", "encode_parameters", "shorten"]

NAME_LIMIT = 64
_VALID = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LIMIT}}}")
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")


class Names:
    """The names of one request on the wire, there and back.

    A valid name is itself. Any other is cut and gets a hash of the whole, so that it is the same in every request and
    two long names that begin alike stay two.
    """

    def __init__(self, names: Iterable[str]):
        wanted = set(names)
        self._wire = {name: name for name in wanted if _VALID.fullmatch(name)}
        self._real = dict(self._wire)
        for name in sorted(wanted - self._wire.keys()):
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            readable = _INVALID.sub("_", name).strip("_") or "tool"
            candidates = (
                f"{readable[: NAME_LIMIT - 1 - length]}_{digest[:length]}" for length in range(8, NAME_LIMIT - 1, 8)
            )
            spelled = next((candidate for candidate in candidates if candidate not in self._real), None)
            if spelled is None:
                raise Conflict(f"No unique name is left for the tool {name[:100]!r}; rename it.")
            self._wire[name], self._real[spelled] = spelled, name

    @classmethod
    def of(cls, tools: Sequence[Tool], messages: Sequence[Message] = ()) -> Names:
        """The names of the tools, and of those that the conversation mentions."""
        names: set[str] = set()
        for tool in tools:
            if tool.name in names:
                raise Conflict(
                    f"Two tools have the name {tool.name[:100]!r}, so a model cannot tell them apart. Rename one."
                )
            names.add(tool.name)
        for message in messages:
            if isinstance(message, Assistant):
                names.update(call.name for call in message.calls)
            elif isinstance(message, ToolResult):
                names.add(message.name)
        return cls(names)

    def wire(self, name: str) -> str:
        """The name as it is sent to the vendor."""
        return self._wire[name]

    def real(self, name: str) -> str:
        """What the vendor's name stands for; a name that was never sent comes back as it is."""
        return self._real.get(name, name)


def shorten(text: str, limit: int) -> str:
    """Cut a text that is too long for the vendor, at a word if possible."""
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

_RECURSIONS = 2
"""How often a definition may stand inside itself before it is cut."""
_MAX_NODES = 4_000
"""Schemas in one tool after which references are no longer followed: inlining can double at every level."""
_MAX_DEPTH = 48


def encode_parameters(tool: Tool, *, longest: int = 1024, portable: bool = False) -> dict[str, Any]:
    """The tool's input schema as a vendor accepts it: self-contained, an object, without a union at its top.

    ``longest`` bounds each description. ``portable`` keeps only what every compatible server understands and moves the
    rest into the descriptions. Raises SetupError for a tool whose input is not an object.
    """
    schema = _Inliner(tool.input_schema, longest, portable).inline(tool.input_schema, (), 0)
    for part in schema.get("allOf", ()):
        _merge(schema, part)
    either = [part for key in ("anyOf", "oneOf") for part in schema.get(key, ()) if part.get("type") != "null"]
    if "type" in schema:
        is_object = _has_type(schema, "object")
    else:
        is_object = all(_has_type(part, "object") or "type" not in part for part in either)
    if not is_object:
        kind = _json(schema.get("type", "no object"))
        raise SetupError(
            f"Tool {tool.name[:100]!r} takes {kind}, but a model calls tools with an object; give it an object schema."
        )
    note = _merge_alternatives(schema, either) if either else ""
    top = {key: value for key, value in schema.items() if key not in _NOT_ON_TOP}
    return _add_note({**top, "type": "object", "properties": top.get("properties", {})}, note, longest)


class _Inliner:
    """Replaces the references of one schema by what they refer to, as far as it does not grow without bound."""

    def __init__(self, root: Mapping[str, Any], longest: int, portable: bool):
        self._root = root
        self._longest = longest
        self._portable = portable
        self._nodes = 0

    def inline(self, given: Any, inside: tuple[str, ...], depth: int) -> dict[str, Any]:
        """The schema without references; ``inside`` are the references that led here."""
        self._nodes += 1
        if not isinstance(given, Mapping):
            return {"not": {}} if given is False else {}
        if depth > _MAX_DEPTH:
            return self._leave_out(given, "Nested too deeply to be shown here.")
        if isinstance(ref := given.get("$ref"), str):
            target = _find_target(self._root, ref)
            beside = {key: value for key, value in given.items() if key != "$ref"}
            if not isinstance(target, Mapping):
                return self._leave_out(beside, "Its schema is defined elsewhere.")
            # What stands beside a reference holds as well; where both say something, the nearer one is more specific.
            both = {**target, **beside}
            if inside.count(ref) >= _RECURSIONS or self._nodes > _MAX_NODES:
                return self._leave_out(both, "Same schema as its parent; its fields are not repeated here.")
            return self.inline(both, (*inside, ref), depth + 1)
        made: dict[str, Any] = {}
        for key, value in given.items():
            if key in _META:
                continue
            if key in _NESTED and isinstance(value, Mapping):
                made[key] = self.inline(value, inside, depth + 1)
            elif key in _MAPS and isinstance(value, Mapping):
                made[key] = {name: self.inline(part, inside, depth + 1) for name, part in value.items()}
            elif (key in _LISTS or key == "items") and isinstance(value, (list, tuple)):
                made[key] = [self.inline(part, inside, depth + 1) for part in value]
            elif key == "description" and isinstance(value, str):
                made[key] = shorten(value, self._longest)
            else:
                made[key] = value
        return self._finish(made)

    def _leave_out(self, given: Mapping[str, Any], note: str) -> dict[str, Any]:
        """Only the type and the description of a schema, so that it permits everything that the whole would."""
        kept = {key: given[key] for key in ("type", "description") if key in given}
        return self._finish(_add_note(kept, note, self._longest))

    def _finish(self, made: dict[str, Any]) -> dict[str, Any]:
        if isinstance(made.get("items"), list):  # a tuple, as drafts before 2020 wrote it
            made["prefixItems"] = made.pop("items")
        if self._portable:
            made = self._port(made)  # before the items below, which every server understands
        if _has_type(made, "array"):
            made.setdefault("items", {})  # OpenAI refuses an array without items
        return made

    def _port(self, made: dict[str, Any]) -> dict[str, Any]:
        """Only the keywords that every server knows; the others become a note."""
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
        return _add_note(kept, ", ".join(f"{key}: {_json(value)}" for key, value in rest.items()), self._longest)


def _find_target(root: Any, ref: str) -> Any:
    """What a reference within the document refers to; None for any other reference."""
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
    given = schema.get("type")
    return given == kind or (isinstance(given, list) and kind in given)


def _add_note(schema: dict[str, Any], note: str, limit: int) -> dict[str, Any]:
    if not note:
        return schema
    given = schema.get("description")
    text = f"{given} ({note})" if isinstance(given, str) and given else note
    return {**schema, "description": shorten(text, limit)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _merge_alternatives(schema: dict[str, Any], either: Sequence[dict[str, Any]]) -> str:
    """Offer the fields of every alternative, require only what all of them do, and return a note about the rest."""
    forms: dict[str, list[Any]] = {}
    for part in either:
        for name, form in part.get("properties", {}).items():
            known = forms.setdefault(name, [])
            if form not in known:
                known.append(form)
    # A field that differs between the alternatives may have any of their forms.
    united = {name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in forms.items()}
    schema["properties"] = {**united, **schema.get("properties", {})}
    needed = [set(_get_required(part)) for part in either]
    in_all = set.intersection(*needed)
    schema["required"] = list(dict.fromkeys([*_get_required(schema), *sorted(in_all)]))
    sets = [", ".join(sorted(names)) for names in needed if names - in_all]
    return f"Pass one of these sets of fields: {'; or '.join(dict.fromkeys(sets))}" if sets else ""


def _get_required(schema: Mapping[str, Any]) -> list[str]:
    given = schema.get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, (list, tuple)) else []


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part of ``allOf`` to a schema, which wins where both say something."""
    fields = part.get("properties")
    if isinstance(fields, Mapping):
        into["properties"] = {**fields, **into.get("properties", {})}
    if _get_required(part):
        into["required"] = list(dict.fromkeys([*_get_required(into), *_get_required(part)]))
    for key, value in part.items():
        if key not in ("properties", "required"):
            into.setdefault(key, value)
