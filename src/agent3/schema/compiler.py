"""Compiling a definition: capped, checked and compiled once.

The engine is jsonschema-rs: draft 2020-12 unless ``$schema`` names another, references only within the document, and
a regex engine that is linear in its input. ``format`` is an annotation in every draft and is not asserted: whether a
date or an address is well-formed is up to its reader, and a lax sender is no reason to refuse a call.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_rs
import msgspec

from agent3.errors import Agent3Error, TooLarge, ValidationError
from agent3.schema.bounds import LIMITS, Limits, Path, find_foreign, measure, render
from agent3.schema.explain import REGEX, Fault, explain, json_type, shorten, summary

__all__ = ["SCHEMA_LIMITS", "Schema", "SchemaLimits", "compile", "compiled", "once"]

T = TypeVar("T")


@dataclass(frozen=True)
class SchemaLimits:
    """What is accepted as a schema. ``expanded`` counts a reference as often as validating one place may follow it."""

    size: int = 64 << 10
    depth: int = 32
    refs: int = 200
    expanded: int = 10_000
    pattern: int = 1_000
    patterns: int = 200


SCHEMA_LIMITS = SchemaLimits()

_CACHED = 16_384
_CACHED_BY_IDENTITY = 4_096
_WORK = 100_000_000
"""References followed for one value, at about 20 ns each: two seconds in the worst case."""
_LOOPED_IN_PLACE = 256
_FLAT = frozenset({str, int, float, bool, type(None)})

_JSON_TYPES = "string, number, integer, boolean, array, object or null"

_plain = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")


class Schema:
    """A compiled schema; immutable, and safe from any thread.

    ``definition`` is a copy of what was compiled; do not change it. ``hash`` is the SHA-256 of its sorted form.
    """

    __slots__ = ("_is_valid", "_targets", "_weight", "definition", "hash")

    def __init__(self, definition: dict[str, Any], key: str, is_valid: Callable[[Any], bool], refs: _References):
        self.definition = definition
        self.hash = key
        self._is_valid = is_valid
        self._weight = refs.weight
        self._targets = refs.targets

    def valid(self, value: object) -> bool:
        """Whether the value fits. What is too large, or not JSON, does not."""
        try:
            # A flat object is the usual input: it needs no walk, since it cannot be deep.
            if not (type(value) is dict and _FLAT.issuperset(map(type, value.values()))):
                self._check_size(value, LIMITS, "input")
            return self._is_valid(value)
        except (Agent3Error, ValueError):
            return False

    def faults(self, value: object, what: str = "input") -> list[Fault]:
        """Everything that is wrong, missing parameters first; empty for a value that fits.

        At most a hundred faults, found within a budget. Raises TooLarge for what cannot be checked safely.
        """
        self._check_size(value, LIMITS, what)
        return [] if self._fits(value) else self._explain(value, what)

    def check(self, value: object, *, what: str = "input", shape: bool = True, limits: Limits = LIMITS) -> None:
        """Raise ValidationError with every fault, or TooLarge.

        ``what`` is the noun in the messages. ``shape=False`` is for values that passed ``check_shape``; another one,
        nested ten thousand deep, would crash the process.
        """
        if shape or self._weight * limits.nodes > _WORK:
            self._check_size(value, limits, what)
        if not self._fits(value):
            faults = self._explain(value, what)
            raise ValidationError(summary(faults), errors=[fault.to_dict() for fault in faults])

    def without_nulls(self, value: Any) -> Any:
        """The value without those nulls of optional parameters that the schema does not take.

        Many clients send null for what they leave out. The same object where there is no such null.
        """
        wrong = {fault.path for fault in self.faults(value) if fault.kind != "missing"}
        cleaned = _drop_nulls(value, wrong, ())
        if cleaned is value:
            return value
        required = {fault.path for fault in self.faults(cleaned) if fault.kind == "missing"}
        return _drop_nulls(value, wrong - required, ()) if required & wrong else cleaned

    def _fits(self, value: object) -> bool:
        try:
            return self._is_valid(value)
        except ValueError:  # it holds something that JSON cannot represent
            return False

    def _check_size(self, value: object, limits: Limits, what: str) -> None:
        nodes = measure(value, limits, what)
        if nodes * self._weight > _WORK:
            raise TooLarge(
                f"The {what} of {nodes} values is too expensive to validate against this schema, whose "
                "references multiply; send it in parts, or define each union of alternatives once under "
                "$defs and refer to it"
            )

    def _explain(self, value: object, what: str) -> list[Fault]:
        foreign = find_foreign(value)
        if foreign is not None:
            path, problem = foreign
            name = f"Parameter '{render(path)}'" if path else what[:1].upper() + what[1:]
            return [Fault(render(path), f"{name} {problem}", "a JSON value", shorten(value))]
        found = explain(self.definition, self._targets, value, what)
        generic = Fault(
            "", f"{what[:1].upper()}{what[1:]} does not match its schema", "a matching value", shorten(value)
        )
        return found or [generic]

    def __repr__(self) -> str:
        return f"Schema({self.hash[:12]})"


def _drop_nulls(value: Any, where: Set[str], path: Path) -> Any:
    """The value without the nulls at these places; the same object where there are none."""
    if isinstance(value, dict):
        kept = {
            key: _drop_nulls(inner, where, (*path, key))
            for key, inner in value.items()
            if inner is not None or render((*path, key), 64) not in where
        }
        return value if len(kept) == len(value) and all(kept[key] is value[key] for key in kept) else kept
    if isinstance(value, list):
        items = [_drop_nulls(inner, where, (*path, place)) for place, inner in enumerate(value)]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


_cache: OrderedDict[tuple[str, SchemaLimits], Schema] = OrderedDict()
_lock = threading.Lock()


def compile(definition: Mapping[str, Any], *, limits: SchemaLimits = SCHEMA_LIMITS) -> Schema:  # noqa: A001
    """The compiled schema of a definition, from a cache by hash.

    The definition is hashed at every call (2 µs), since a dict may have changed; ``compiled`` is for one that does not.
    Raises TooLarge for one beyond the limits and ValidationError for one that is not a schema, has a pattern that the
    linear engine cannot take, or a reference that leads out of it.
    """
    key = hashlib.sha256(_encode(definition, _sorted)).hexdigest(), limits
    with _lock:
        known = _cache.get(key)
        if known is not None:
            _cache.move_to_end(key)
            return known
    encoded = _encode(definition, _plain)
    if len(encoded) > limits.size:
        raise TooLarge(f"The schema has {len(encoded)} bytes, more than {limits.size}; shorten or split it")
    copy: dict[str, Any] = msgspec.json.decode(encoded)
    refs = _resolve_references(copy, _scan(copy, limits), limits)
    try:
        engine = jsonschema_rs.validator_for(copy, pattern_options=REGEX, validate_formats=False, offline=True)
    except jsonschema_rs.ValidationError as error:
        raise _invalid_schema(error) from None
    except ValueError as error:
        raise ValidationError(f"The schema cannot be compiled: {error}") from None
    made = Schema(copy, key[0], engine.is_valid, refs)
    with _lock:
        _cache[key] = made
        while len(_cache) > _CACHED:
            _cache.popitem(last=False)
    return made


def once(make: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
    """Cache a function of a definition by the identity of its dict, for definitions that never change."""
    known: OrderedDict[int, tuple[dict[str, Any], T]] = OrderedDict()

    def get(definition: dict[str, Any]) -> T:
        entry = known.get(id(definition))
        if entry is not None and entry[0] is definition:  # it is held here, so its id cannot pass to another dict
            return entry[1]
        made = make(definition)
        known[id(definition)] = definition, made
        if len(known) > _CACHED_BY_IDENTITY:
            known.popitem(last=False)
        return made

    return get


compiled = once(compile)
"""The compiled schema of a definition that never changes, as those of the model: without hashing it at every call."""


def _encode(definition: object, encoder: msgspec.json.Encoder) -> bytes:
    if not isinstance(definition, Mapping):
        raise ValidationError(f"A schema must be an object, got {json_type(definition)}")
    try:
        return encoder.encode(definition if isinstance(definition, dict) else dict(definition))
    except RecursionError:
        raise TooLarge("The schema is nested too deeply; move parts of it to $defs and refer to them") from None
    except (TypeError, ValueError) as error:
        raise ValidationError(f"The schema contains something that JSON cannot represent: {error}") from None


def _invalid_schema(error: jsonschema_rs.ValidationError) -> ValidationError:
    place = render(tuple(error.instance_path)) or "its root"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format):
        text = (
            f"The schema's pattern {shorten(error.instance)} at {place} cannot be used: it is not a regular "
            "expression, is too large, or needs look-around or back-references, which linear-time engines "
            "do not support; rewrite it"
        )
    elif isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        text = (
            f"The schema refers to something outside it ({error.message[:200]}); put it under $defs, since "
            "nothing is fetched"
        )
    elif error.instance_path[-1:] == ["type"]:
        text = f"The schema is not valid at {place}: {shorten(error.instance)} is not a JSON type; use {_JSON_TYPES}"
    else:
        text = f"The schema is not valid at {place}: {error.message[:200]}"
    return ValidationError(text, data={"path": place})


# --- what a definition holds, found without recursion ----------------------------------------------------------------

_REFERRING = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_NAMING = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
_Trail: TypeAlias = "tuple[_Trail, str | int] | None"


@dataclass(slots=True)
class _Found:
    """The references of a definition, and the names that can be referred to: (path, keyword, text) each."""

    refs: list[tuple[Path, str, str]] = field(default_factory=list)
    names: list[tuple[Path, str, str]] = field(default_factory=list)


def _scan(definition: dict[str, Any], limits: SchemaLimits) -> _Found:
    # With a stack of its own, since a stranger decides how deep the definition is. Paths are linked lists that share
    # their beginnings: a tuple for each node would be quadratic.
    found = _Found()
    patterns = 0
    stack: list[tuple[Any, int, _Trail]] = [(definition, 1, None)]
    while stack:
        node, depth, trail = stack.pop()
        if depth > limits.depth:
            raise TooLarge(
                f"The schema is nested deeper than {limits.depth} levels; move parts of it to $defs and refer to them"
            )
        for key, child in node.items() if type(node) is dict else enumerate(node):
            kind = type(child)
            if kind is dict or kind is list:
                stack.append((child, depth + 1, (trail, key)))
                if key == "patternProperties" and kind is dict:
                    patterns += _patterns(child, limits)
            elif kind is str and type(key) is str:
                if key in _REFERRING:
                    found.refs.append((_path(trail), key, child))
                elif key in _NAMING:
                    found.names.append((_path(trail), key, child))
                elif key == "pattern":
                    patterns += _patterns((child,), limits)
        if len(found.refs) > limits.refs or patterns > limits.patterns:
            raise TooLarge(
                f"The schema has more than {limits.refs} references or {limits.patterns} patterns; shorten or split it"
            )
    return found


def _patterns(patterns: Iterable[str], limits: SchemaLimits) -> int:
    count = 0
    for pattern in patterns:
        count += 1
        if len(pattern) > limits.pattern:
            raise TooLarge(f"A pattern of the schema has {len(pattern)} characters, more than {limits.pattern}")
    return count


def _path(trail: _Trail) -> Path:
    steps: list[str | int] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return tuple(reversed(steps))


# --- where references lead, and how often they would be followed ------------------------------------------------------


@dataclass(slots=True)
class _References:
    """``targets`` maps the id of each referring dict to its target; ``weight`` is the work per node of a value."""

    targets: dict[int, Any] = field(default_factory=dict)
    weight: int = 0


def _resolve_references(definition: dict[str, Any], found: _Found, limits: SchemaLimits) -> _References:
    if not found.refs:
        return _References()
    names = _Names(definition, found)
    leads: list[tuple[Path, list[Path]]] = []
    result = _References()
    for path, keyword, text in found.refs:
        targets = names.resolve(path, keyword, text)
        leads.append((path, targets))
        if targets:
            result.targets[id(_at(definition, path))] = _at(definition, targets[0])
    result.weight = _Expansion(leads, limits).weight()
    return result


_NOWHERE = object()


def _at(definition: Any, path: Path) -> Any:
    for step in path:
        try:
            definition = definition[int(step) if isinstance(definition, list) else step]
        except (KeyError, IndexError, ValueError, TypeError):
            return _NOWHERE
    return definition


class _Names:
    """What the references of a document may mean: identified resources, anchors, and pointers below them.

    References that are not found here are left to the engine, which refuses them.
    """

    def __init__(self, definition: dict[str, Any], found: _Found):
        self.definition = definition
        self.bases: dict[Path, str] = {(): ""}
        self.resources: dict[str, Path] = {"": ()}
        self.anchors: dict[tuple[str, str], Path] = {}
        self.dynamic: dict[str, list[Path]] = {}
        for path, keyword, text in sorted(found.names, key=lambda name: len(name[0])):  # outer ids before inner ones
            if keyword not in ("$id", "id"):
                continue
            uri, fragment = urldefrag(urljoin(self._base(path), text))
            if fragment:
                self.anchors[uri, fragment] = path
            else:
                self.bases[path] = uri
                self.resources[uri] = path
        for path, keyword, text in found.names:
            if keyword in ("$anchor", "$dynamicAnchor"):
                self.anchors[self._base(path), text] = path
            if keyword == "$dynamicAnchor":
                self.dynamic.setdefault(text, []).append(path)

    def _base(self, path: Path) -> str:
        for length in range(len(path), -1, -1):
            if path[:length] in self.bases:
                return self.bases[path[:length]]
        return ""

    def resolve(self, path: Path, keyword: str, text: str) -> list[Path]:
        """The places that a reference at ``path`` may lead to: one, or every candidate of a dynamic reference."""
        try:
            uri, fragment = urldefrag(urljoin(self._base(path), text))
        except ValueError:  # not a URI
            return []
        pointer = unquote(fragment)
        static: Path | None = None
        if pointer and not pointer.startswith("/"):
            static = self.anchors.get((uri, pointer))
        elif (root := self.resources.get(uri)) is not None:
            steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
            static = self._find((*root, *steps))
        others = self.dynamic.get(fragment, []) if keyword == "$dynamicRef" else []
        return list(dict.fromkeys([*([static] if static is not None else []), *others]))

    def _find(self, path: Path) -> Path | None:
        """The path with its indexes as numbers, if it exists."""
        node: Any = self.definition
        found: list[str | int] = []
        for step in path:
            found.append(int(step) if isinstance(node, list) and str(step).isdecimal() else step)
            node = _at(node, (found[-1],))
            if node is _NOWHERE:
                return None
        return tuple(found)


_Place = Literal["here", "below", "apart"]
_LISTS_HERE = frozenset({"allOf", "anyOf", "oneOf"})
_ONE_HERE = frozenset({"not", "if", "then", "else"})
_NAMED_HERE = frozenset({"dependentSchemas", "dependencies"})
_ONE_BELOW = frozenset(
    {"items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"}
)


def _locate(steps: Path) -> tuple[_Place, str | int]:
    """Whether a schema at ``steps`` below another applies to the same value, to a part of it, or not by itself.

    For a part also which one: a property's name, or ``*`` for any.
    """
    at = 0
    while at < len(steps):
        keyword = steps[at]
        if keyword in _LISTS_HERE or keyword in _NAMED_HERE:
            at += 2
        elif keyword in _ONE_HERE:
            at += 1
        elif keyword == "properties" and at + 1 < len(steps):
            return "below", steps[at + 1]
        elif keyword in _ONE_BELOW or keyword in ("patternProperties", "prefixItems", "propertyNames"):
            return "below", "*"
        else:
            return "apart", ""
    return "here", ""


def _too_many_references(count: int, limit: int) -> TooLarge:
    return TooLarge(
        f"The schema's references multiply: for one place of a value {count} of them would be followed, more "
        f"than {limit}; define each union of alternatives once under $defs and refer to it"
    )


class _Expansion:
    """How often references are followed for one place of a value.

    The engine remembers the result of a reference back into its own loop, but follows every other one again. So the
    former are counted once and the latter with everything they lead to; references below different properties apply to
    different values and do not add up.
    """

    def __init__(self, leads: list[tuple[Path, list[Path]]], limits: SchemaLimits):
        self.limits = limits
        # For every schema that can be entered (the root, and each target): the references that lie inside it.
        self.inside: dict[Path, list[tuple[_Place, str | int, list[Path]]]] = {(): []}
        self.inside.update({target: [] for _, targets in leads for target in targets})
        for path, targets in leads:
            for length in range(len(path) + 1):
                if path[:length] in self.inside:
                    place, part = _locate(path[length:])
                    self.inside[path[:length]].append((place, part, targets))
        self.known: dict[Path, tuple[int, int]] = {}
        self.open: set[Path] = set()
        self.looped = False

    def weight(self) -> int:
        """The work per node of a value; raises TooLarge where references multiply too often."""
        expanded, _ = self._count(())
        in_place = max(count for _, count in self.known.values())
        if expanded > self.limits.expanded:
            raise _too_many_references(expanded, self.limits.expanded)
        if self.looped and in_place > _LOOPED_IN_PLACE:
            raise _too_many_references(in_place, _LOOPED_IN_PLACE)
        # Measured: a loop costs up to ten times its references, or the square of those at one place.
        return max(10 * expanded, in_place**2) if self.looped else expanded

    def _count(self, target: Path) -> tuple[int, int]:
        """References followed from a schema in all, and at the very same place of the value."""
        if target in self.open:
            self.looped = True
            return 0, 0
        if target in self.known:
            return self.known[target]
        self.open.add(target)
        here = in_place = 0
        below: dict[str | int, int] = {}
        for place, part, targets in self.inside[target]:
            if place == "apart":
                continue
            counts = [self._count(lead) for lead in targets] or [(0, 0)]
            total = sum(1 + count for count, _ in counts)
            if place == "here":
                here += total
                in_place += sum(1 + count for _, count in counts)
            else:
                below[part] = below.get(part, 0) + total
        anywhere = below.pop("*", 0)
        self.open.discard(target)
        self.known[target] = here + anywhere + max(below.values(), default=0), in_place
        return self.known[target]
