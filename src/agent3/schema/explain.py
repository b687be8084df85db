"""What is wrong with a value, in words: every fault at once, each with path, expected, got and the nearest name.

The verdict is the validator's; this only explains it afterwards. It walks by itself because the validator's error list
copies the whole value into every error (90 KB of input made 2 GB) and is exponential in nested unions. This walk has a
budget, and the list ends where the budget does. Patterns are matched by the validator's linear engine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias

import jsonschema_rs

from agent3.schema.bounds import Path, render

__all__ = ["REGEX", "Fault", "explain", "json_type", "nearest", "shorten", "summary"]

REGEX = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
"""The linear engine; a pattern that needs more than 1 MiB compiled is refused."""

_STEPS = 20_000
_FAULTS = 100
_SUGGESTIONS = 20
_SHOWN = 10
_WIDTH = 80

Kind = Literal["missing", "type", "other"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. ``path`` is written like ``items[2].price``, and empty for the whole value."""

    path: str
    message: str
    expected: str
    got: str
    nearest: str | None = None
    kind: Kind = "other"

    def to_dict(self) -> dict[str, Any]:
        """The machine-readable form, without fields that are None."""
        body = asdict(self)
        del body["kind"]
        return {name: entry for name, entry in body.items() if entry is not None}


def explain(
    definition: Mapping[str, Any] | bool, targets: Mapping[int, Any], value: object, what: str = "input"
) -> list[Fault]:
    """The faults of a value, missing parameters first, at most a hundred.

    ``targets`` maps the id of each dict that holds a reference to what it refers to. Empty when the walk finds nothing,
    which does not mean that the value is valid.
    """
    walk = _Walk(targets, what)
    found: list[Fault] = []
    try:
        found.extend(islice(walk.faults(definition, value, ()), _FAULTS))
    except (_BudgetSpent, RecursionError):
        pass  # what was found so far is kept
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda fault: fault.kind != "missing")


def summary(faults: list[Fault]) -> str:
    """The messages in one line."""
    text = "; ".join(fault.message for fault in faults[:_SHOWN])
    left = len(faults) - _SHOWN
    return f"{text}; and {left} more" if left > 0 else text


def shorten(value: object) -> str:
    """The repr of a value in at most 80 characters; never builds more than it needs."""
    if isinstance(value, str):
        text = repr(value[: _WIDTH + 1])
    elif isinstance(value, Mapping):
        text = repr(dict(islice(((key, _glimpse(entry)) for key, entry in value.items()), 20)))
    elif isinstance(value, (list, tuple)):
        text = repr([_glimpse(entry) for entry in islice(value, 40)])
    elif isinstance(value, int) and abs(value) >= 10**_WIDTH:
        text = "a number of more than 80 digits"
    else:
        text = repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _glimpse(entry: object) -> object:
    """An entry of a container, cut before it is formatted."""
    if isinstance(entry, str):
        return entry[:_WIDTH]
    if isinstance(entry, Mapping):
        return {} if not entry else _Dots("{…}")
    if isinstance(entry, (list, tuple)):
        return [] if not entry else _Dots("[…]")
    return entry


class _Dots(str):
    def __repr__(self) -> str:
        return str(self)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None. Looks at 500 names of at most 100 characters.

    It has the same words, misspelt, or some more or fewer: createNote is no slip of the pen for deleteNote.
    """
    if len(name) > 100:
        return None
    pool = {known.casefold(): known for known in islice(names, 500) if len(known) <= 100}
    close = difflib.get_close_matches(name.casefold(), pool, n=5, cutoff=0.6)
    return next((pool[one] for one in close if _is_slip(name, pool[one])), None)


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+")


def _is_slip(name: str, known: str) -> bool:
    one, other = ([word.casefold() for word in _WORDS.findall(each)] for each in (name, known))
    if (joined := "".join(one)).startswith(long := "".join(other)) or long.startswith(joined):
        return True
    fewer, more = sorted((one, other), key=len)
    for word in fewer:
        match = next((each for each in more if each == word or _is_misspelt(each, word)), None)
        if match is None:
            return False
        more.remove(match)
    return True


def _is_misspelt(one: str, other: str) -> bool:
    """One letter too many, too few, wrong or in the wrong place; in long words two, but never the first.

    Opposites are further apart: import and export, lock and unlock, enable and disable. In a short word a letter can be
    missing, but another one makes another word: get and set.
    """
    shorter = min(len(one), len(other))
    if shorter < 3 or (shorter == 3 and len(one) == len(other)):
        return False
    most = 2 if shorter >= 6 and one[0] == other[0] else 1
    if abs(len(one) - len(other)) > most:
        return False
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1] <= most


class _BudgetSpent(Exception):
    pass


Node: TypeAlias = Mapping[str, Any]
Faults: TypeAlias = Iterator[Fault]
Rule: TypeAlias = Callable[["_Walk", Any, Any, Path, Node], Faults]
_RULES: dict[str, Rule] = {}


def _rule(*keywords: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(keywords, rule))
        return rule

    return register


class _Walk:
    """One explanation: the budget, and what was already judged."""

    def __init__(self, targets: Mapping[int, Any], what: str):
        self.targets = targets
        self.whole = what[:1].upper() + what[1:]
        self.noun = "parameter" if what == "input" else what
        self.steps = 0
        self.open: set[tuple[int, int]] = set()
        self.judged: dict[tuple[int, int], bool] = {}
        self.judging = 0
        self.suggestions = 0

    def faults(self, schema: Any, value: Any, path: Path) -> Faults:
        """What is wrong with ``value`` by ``schema``; a loop of references adds nothing."""
        if schema is False:
            yield self.fault(path, "is not allowed here", "nothing", value)
        pair = (id(schema), id(value))
        if not isinstance(schema, Mapping) or pair in self.open:
            return
        self.spend(1)
        self.open.add(pair)
        try:
            if "type" in schema and not _has_type(value, schema["type"]):
                # The other keywords would only say the same in other words.
                yield self.type_fault(path, _join_types(schema["type"]), value)
                return
            for keyword, argument in schema.items():
                rule = _RULES.get(keyword)
                if rule is not None:
                    yield from rule(self, argument, value, path, schema)
        finally:
            self.open.discard(pair)

    def spend(self, steps: int) -> None:
        """Count work; beyond the budget the walk stops."""
        self.steps += steps
        if self.steps > _STEPS:
            raise _BudgetSpent

    def suggest(self, name: Any, names: Iterable[Any]) -> str | None:
        """The nearest name, for the first few faults only: each search costs far more than a step."""
        self.suggestions += 1
        if self.suggestions > _SUGGESTIONS or not isinstance(name, str):
            return None
        return nearest(name, (known for known in names if isinstance(known, str)))

    def fits(self, schema: Any, value: Any) -> bool:
        """Whether there is no fault; decided once per pair, so that nested unions stay polynomial."""
        pair = (id(schema), id(value))
        if pair not in self.judged:
            # While judging, unions yield a bare fault: reasons would be thrown away, and cost exponential time.
            self.judging += 1
            self.judged[pair] = next(self.faults(schema, value, ()), None) is None
            self.judging -= 1
        return self.judged[pair]

    def target(self, schema: Any) -> Any:
        """Where a chain of plain references leads."""
        for _ in range(32):
            if not isinstance(schema, Mapping) or id(schema) not in self.targets:
                break
            schema = self.targets[id(schema)]
        return schema

    def name(self, path: Path) -> str:
        return f"{self.noun[:1].upper()}{self.noun[1:]} '{render(path)}'" if path else self.whole

    def fault(self, path: Path, problem: str, expected: str, value: Any, near: str | None = None) -> Fault:
        return Fault(render(path, 64), f"{self.name(path)} {problem}", expected, shorten(value), near)

    def type_fault(self, path: Path, expected: str, value: Any) -> Fault:
        got = json_type(value)
        message = f"{self.name(path)} has invalid type. Expected {expected}, got {got}"
        return Fault(render(path, 64), message, expected, got, kind="type")


def json_type(value: Any) -> str:
    """What JSON calls the type of a value; the name of its class where it is none of JSON."""
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), ((float, Decimal), "number"), ((list, tuple), "array"))
    found = next((name for kind, name in names if isinstance(value, kind)), None)
    return found or ("object" if isinstance(value, Mapping) else "null" if value is None else type(value).__name__)


def _join_types(types: Any) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == value // 1,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, (list, tuple)),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}


def _has_type(value: object, types: Any) -> bool:
    return any(_TYPES[name](value) for name in ([types] if isinstance(types, str) else types))


def _are_equal(left: Any, right: Any) -> bool:
    """Equality in JSON Schema: 1 is 1.0, but true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_are_equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_are_equal, left, right))
    return bool(left == right)


@lru_cache(maxsize=512)
def _matcher(pattern: str) -> Callable[[str], bool]:
    return jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=REGEX, offline=True).is_valid


@_rule("enum")
def _check_enum(walk: _Walk, options: Any, value: Any, path: Path, _: Node) -> Faults:
    walk.spend(len(options) // 8)
    if not any(_are_equal(value, option) for option in options):
        shown = shorten(options)
        yield walk.fault(path, f"must be one of {shown}", f"one of {shown}", value, walk.suggest(value, options))


@_rule("const")
def _check_const(walk: _Walk, wanted: Any, value: Any, path: Path, _: Node) -> Faults:
    if not _are_equal(value, wanted):
        yield walk.fault(path, f"must be {shorten(wanted)}, got {shorten(value)}", shorten(wanted), value)


def _add_bound_rule(keyword: str, words: str, holds: Callable[[Any, Any], bool]) -> None:
    @_rule(keyword)
    def check(walk: _Walk, limit: Any, value: Any, path: Path, _: Node) -> Faults:
        # Draft 4 says exclusiveMinimum: true beside a minimum.
        if _is_number(value) and _is_number(limit) and not holds(value, limit):
            yield walk.fault(path, f"must be {words} {limit}, got {shorten(value)}", f"{words} {limit}", value)


_add_bound_rule("minimum", "at least", lambda value, limit: value >= limit)
_add_bound_rule("maximum", "at most", lambda value, limit: value <= limit)
_add_bound_rule("exclusiveMinimum", "greater than", lambda value, limit: value > limit)
_add_bound_rule("exclusiveMaximum", "less than", lambda value, limit: value < limit)


@_rule("multipleOf")
def _check_multiple(walk: _Walk, step: Any, value: Any, path: Path, _: Node) -> Faults:
    if not _is_number(value):
        return
    try:
        remains = bool(Decimal(str(value)) % Decimal(str(step)))
    except ArithmeticError:  # the quotient has more digits than Decimal takes
        return
    if remains:
        yield walk.fault(path, f"must be a multiple of {step}, got {shorten(value)}", f"a multiple of {step}", value)


def _add_size_rule(keyword: str, noun: str, kinds: tuple[type[Any], ...], most: bool) -> None:
    @_rule(keyword)
    def check(walk: _Walk, limit: Any, value: Any, path: Path, _: Node) -> Faults:
        size = len(value) if isinstance(value, kinds) else limit
        if size > limit if most else size < limit:
            words = f"{'at most' if most else 'at least'} {limit} {noun}"
            yield walk.fault(path, f"must have {words}, got {size}", words, value)


_add_size_rule("minLength", "characters", (str,), most=False)
_add_size_rule("maxLength", "characters", (str,), most=True)
_add_size_rule("minItems", "items", (list, tuple), most=False)
_add_size_rule("maxItems", "items", (list, tuple), most=True)
_add_size_rule("minProperties", "properties", (Mapping,), most=False)
_add_size_rule("maxProperties", "properties", (Mapping,), most=True)


@_rule("pattern")
def _check_pattern(walk: _Walk, pattern: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, str) and not _matcher(pattern)(value):
        wanted = shorten(pattern)
        yield walk.fault(path, f"must match the pattern {wanted}, got {shorten(value)}", f"pattern {wanted}", value)


@_rule("uniqueItems")
def _check_unique(walk: _Walk, wanted: Any, value: Any, path: Path, _: Node) -> Faults:
    if wanted is not True or not isinstance(value, (list, tuple)):
        return
    walk.spend(len(value))
    # Comparing containers is quadratic, so beyond the first hundred items only scalars are compared.
    scalars = [item for item in value if not isinstance(item, (Mapping, list, tuple))]
    repeats = len({(isinstance(item, bool), item) for item in scalars}) < len(scalars)
    few = value[:100]
    if repeats or any(_are_equal(item, other) for place, item in enumerate(few) for other in few[place + 1 :]):
        yield walk.fault(path, "must not contain the same item twice", "unique items", value)


@_rule("required")
def _check_required(walk: _Walk, names: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, Mapping) and not isinstance(names, bool):
        for name in names:
            if name not in value:
                yield _missing_fault(walk, (*path, name), walk.suggest(name, value))


def _missing_fault(walk: _Walk, path: Path, near: str | None = None, because: str = "") -> Fault:
    text = f"Missing required {walk.noun}: {render(path)}{because}"
    return Fault(render(path, 64), text, "a value", "nothing", near, "missing")


@_rule("dependentRequired", "dependencies", "dependentSchemas")
def _check_dependent(walk: _Walk, needs: Any, value: Any, path: Path, _: Node) -> Faults:
    for name, need in needs.items():
        if not isinstance(value, Mapping) or name not in value:
            continue
        if not isinstance(need, (list, tuple)):
            yield from walk.faults(need, value, path)
            continue
        for other in need:
            if other not in value:
                yield _missing_fault(walk, (*path, other), because=f" (needed with '{render((name,))}')")


@_rule("properties")
def _check_properties(walk: _Walk, properties: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, Mapping):
        for name, schema in properties.items():
            if name in value:
                yield from walk.faults(schema, value[name], (*path, name))


@_rule("patternProperties")
def _check_pattern_properties(walk: _Walk, patterns: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, Mapping):
        for pattern, schema in patterns.items():
            walk.spend(len(value) // 2)
            for name in filter(_matcher(pattern), value):
                yield from walk.faults(schema, value[name], (*path, name))


@_rule("additionalProperties")
def _check_additional(walk: _Walk, extra: Any, value: Any, path: Path, schema: Node) -> Faults:
    if extra is True or not isinstance(value, Mapping):
        return
    known = schema.get("properties", {})
    patterns = [_matcher(pattern) for pattern in schema.get("patternProperties", {})]
    for name in value:
        if name in known or any(matches(name) for matches in patterns):
            continue
        if extra is False:
            yield _unknown_fault(walk, (*path, name), known)
        else:
            yield from walk.faults(extra, value[name], (*path, name))


def _unknown_fault(walk: _Walk, path: Path, known: Iterable[str]) -> Fault:
    near = walk.suggest(path[-1], known)
    hint = f". Did you mean '{render((near,))}'?" if near is not None else ""
    text = f"Unknown {walk.noun}: {render(path)}{hint}"
    return Fault(render(path, 64), text, "no such name", shorten(path[-1]), near)


@_rule("unevaluatedProperties")
def _check_unevaluated(walk: _Walk, rest: Any, value: Any, path: Path, schema: Node) -> Faults:
    if rest is not False or not isinstance(value, Mapping):
        return
    known: set[str] = set()
    if _collect_names(walk, schema, value, known, 0):
        for name in value:
            if name not in known:
                yield _unknown_fault(walk, (*path, name), known)


def _collect_names(walk: _Walk, schema: Any, value: Node, known: set[str], depth: int) -> bool:
    """Add the names that a schema, and those applied beside it, evaluate; False if they evaluate all names."""
    if not isinstance(schema, Mapping) or depth > 32:
        return True
    if "additionalProperties" in schema or (depth and "unevaluatedProperties" in schema):
        return False
    known.update(schema.get("properties", {}))
    for pattern in schema.get("patternProperties", {}):
        known.update(filter(_matcher(pattern), value))
    return all(_collect_names(walk, part, value, known, depth + 1) for part in _schemas_in_place(walk, schema, value))


def _schemas_in_place(walk: _Walk, schema: Node, value: Any) -> Iterator[Any]:
    """The schemas that a schema applies at the same place, as far as the value fits them."""
    if id(schema) in walk.targets:
        yield walk.targets[id(schema)]
    yield from schema.get("allOf", ())
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if walk.fits(alternative, value):
            yield alternative
    if "if" in schema:
        met = walk.fits(schema["if"], value)
        if met:
            yield schema["if"]
        yield schema.get("then" if met else "else", True)


@_rule("propertyNames")
def _check_property_names(walk: _Walk, schema: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, Mapping):
        for name in value:
            if not walk.fits(schema, name):
                yield walk.fault((*path, name), "has a name that is not allowed", "an allowed name", name)


@_rule("prefixItems")
def _check_prefix_items(walk: _Walk, schemas: Any, value: Any, path: Path, _: Node) -> Faults:
    if isinstance(value, (list, tuple)):
        for place, (schema, item) in enumerate(zip(schemas, value, strict=False)):
            yield from walk.faults(schema, item, (*path, place))


@_rule("items")
def _check_items(walk: _Walk, schema: Any, value: Any, path: Path, parent: Node) -> Faults:
    if isinstance(schema, (list, tuple)):
        yield from _check_prefix_items(walk, schema, value, path, parent)
    else:
        yield from _check_rest(walk, schema, value, path, len(parent.get("prefixItems", ())))


@_rule("additionalItems")
def _check_additional_items(walk: _Walk, schema: Any, value: Any, path: Path, parent: Node) -> Faults:
    first = parent.get("items")
    if isinstance(first, (list, tuple)):
        yield from _check_rest(walk, schema, value, path, len(first))


def _check_rest(walk: _Walk, schema: Any, value: Any, path: Path, first: int) -> Faults:
    if isinstance(value, (list, tuple)):
        for place in range(first, len(value)):
            yield from walk.faults(schema, value[place], (*path, place))


@_rule("contains")
def _check_contains(walk: _Walk, schema: Any, value: Any, path: Path, parent: Node) -> Faults:
    if not isinstance(value, (list, tuple)):
        return
    least, most = parent.get("minContains", 1), parent.get("maxContains", len(value))
    found = sum(walk.fits(schema, item) for item in value)
    if not least <= found <= most:
        wanted = f"at least {least}" if found < least else f"at most {most}"
        yield walk.fault(path, f"must contain {wanted} matching items, got {found}", f"{wanted} items", value)


@_rule("allOf")
def _check_all_of(walk: _Walk, schemas: Any, value: Any, path: Path, _: Node) -> Faults:
    for schema in schemas:
        yield from walk.faults(schema, value, path)


@_rule("$ref", "$dynamicRef", "$recursiveRef")
def _check_reference(walk: _Walk, _: Any, value: Any, path: Path, schema: Node) -> Faults:
    yield from walk.faults(walk.targets.get(id(schema), True), value, path)


@_rule("not")
def _check_not(walk: _Walk, schema: Any, value: Any, path: Path, _: Node) -> Faults:
    if walk.fits(schema, value):
        yield walk.fault(path, f"must not match {shorten(value)}", f"not {shorten(schema)}", value)


@_rule("if")
def _check_if(walk: _Walk, condition: Any, value: Any, path: Path, schema: Node) -> Faults:
    branch = "then" if walk.fits(condition, value) else "else"
    yield from walk.faults(schema.get(branch, True), value, path)


@_rule("anyOf", "oneOf")
def _check_alternatives(walk: _Walk, schemas: Any, value: Any, path: Path, parent: Node) -> Faults:
    fitting = sum(walk.fits(schema, value) for schema in schemas)
    if fitting > 1 and "oneOf" in parent and parent["oneOf"] is schemas:
        problem = f"matches {fitting} of its {len(schemas)} alternatives, but must match exactly one"
        yield walk.fault(path, problem, "exactly one alternative", value)
    if fitting:
        return
    if walk.judging:  # only the verdict is wanted, not the reasons
        yield walk.fault(path, "", "", None)
        return
    # Explain the one alternative that was meant, if it is clear which; explaining all would be exponential.
    targets = [walk.target(schema) for schema in schemas]
    meant = [schema for schema in targets if _may_be_meant(walk, schema, value)]
    types: list[Any] = [schema.get("type") if isinstance(schema, Mapping) else None for schema in targets]
    if len(meant) == 1:
        yield from walk.faults(meant[0], value, path)
    elif not meant and all(types) and not any(_has_type(value, kind) for kind in types):
        yield walk.type_fault(path, " or ".join(dict.fromkeys(_join_types(kind) for kind in types)), value)
    else:
        problem = f"matches none of its {len(schemas)} alternatives, got {shorten(value)}"
        yield walk.fault(path, problem, f"one of {len(schemas)} alternatives", value)


def _may_be_meant(walk: _Walk, schema: Any, value: Any) -> bool:
    """Whether an alternative may have been meant: its type fits, and so do the constants that mark it."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema and not _has_type(value, schema["type"]):
        return False
    if not _has_mark(schema, value):
        return False
    properties = schema.get("properties", {}) if isinstance(value, Mapping) else {}
    return all(_has_mark(walk.target(part), value[name]) for name, part in properties.items() if name in value)


def _has_mark(schema: Any, value: Any) -> bool:
    """Whether the value is the schema's constant or one of its enum; True if it has neither."""
    if not isinstance(schema, Mapping):
        return True
    options: Any = [schema["const"]] if "const" in schema else schema.get("enum")
    return options is None or any(_are_equal(value, option) for option in options)
