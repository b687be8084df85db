"""A Python function as a schema: its signature, its annotations and its docstring.

Types are described and converted by pydantic; what pydantic does not take (msgspec Structs, and typing.TypedDict
before Python 3.12) by msgspec. It only reads functions and never calls one.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Union

import msgspec
import pydantic
from pydantic.errors import PydanticUserError

from agent3.errors import SetupError, ValidationError

__all__ = ["FunctionSchema", "arguments", "from_function"]

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class FunctionSchema:
    """What a function takes and returns, as JSON Schema, and how it is called."""

    input: dict[str, Any]
    output: dict[str, Any] | None
    description: str
    parameters: Mapping[str, str]
    """What the docstring says of each parameter."""
    context: str | None
    """The parameter that takes the context, if there is one."""
    streams: bool
    is_async: bool
    converters: Mapping[str, Convert] = field(default_factory=dict)
    """For each parameter whose Python value is not the JSON value itself."""

    @property
    def takes_context(self) -> bool:
        return self.context is not None


def arguments(function: FunctionSchema, input: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
    """Keyword arguments from input that fits ``function.input``: rich types converted, plain JSON as it is.

    Raises ValidationError for what fits the schema and still has no value, such as ``2026-02-31`` for a date.
    """
    values = dict(input)
    for name, convert in function.converters.items():
        if name not in values:
            continue
        try:
            values[name] = convert(values[name])
        except (pydantic.ValidationError, msgspec.ValidationError, ValueError, TypeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, pydantic.ValidationError) else str(error)
            fault = {"path": name, "message": f"Parameter '{name}' has an invalid value: {reason}"}
            raise ValidationError(fault["message"], errors=[fault]) from error
    return values


def from_function(fn: Callable[..., Any], *, skip: Sequence[str] = ("ctx",)) -> FunctionSchema:
    """Read the schema off a function. Parameters in ``skip``, and the one that takes the context, are left out.

    A parameter without annotation, or with one that cannot be resolved, takes anything. Raises SetupError for
    parameters that cannot be passed by name (``*args``, positional-only) and for a type that has no JSON form.
    """
    target = _find_code(fn)
    hints = _resolve_hints(target)
    signature = inspect.signature(fn)
    context = None
    for name, parameter in signature.parameters.items():
        written = parameter.annotation if isinstance(parameter.annotation, str) else ""
        if name == "ctx" or "Context" in (getattr(hints.get(name), "__name__", ""), written.split(".")[-1]):
            context = name
            break
    text = inspect.getdoc(fn) if not isinstance(fn, functools.partial) else fn.func.__doc__
    lines = inspect.cleandoc(text or "").splitlines()
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(":") or line.strip().lower() in _GOOGLE_HEADS:
            break
        paragraph.append(line.strip())
    description = " ".join(paragraph)
    docs = {**_parse_numpy(lines), **_parse_google(lines), **_parse_rest(lines)}
    reader = _Reader(getattr(target, "__qualname__", repr(fn)), hints, docs)
    for parameter in signature.parameters.values():
        if parameter.name != context and parameter.name not in skip:
            reader.add(parameter)
    streams = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)
    return FunctionSchema(
        input=reader.input(),
        output=_describe_output(hints.get("return", Any), streams),
        description=description,
        parameters=docs,
        context=context,
        streams=streams,
        is_async=inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target),
        converters=reader.converters,
    )


def _find_code(fn: Any) -> Any:
    """The function that a partial, a wrapper or an object with ``__call__`` finally runs."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        fn = type(fn).__call__
    return fn.__init__ if inspect.isclass(fn) else fn


_UNRESOLVED = (NameError, TypeError, AttributeError, SyntaxError)


def _resolve_hints(fn: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except _UNRESOLVED:
        pass
    # One annotation cannot be resolved: resolve each by itself, and take anything for those that cannot.
    found: dict[str, Any] = {}
    for name, hint in getattr(fn, "__annotations__", {}).items():

        def probe() -> None: ...

        probe.__annotations__ = {"hint": hint}
        try:
            found[name] = typing.get_type_hints(probe, getattr(fn, "__globals__", {}), include_extras=True)["hint"]
        except _UNRESOLVED:
            found[name] = hint if not isinstance(hint, str) else Any
    return found


def _describe_output(hint: Any, streams: bool) -> dict[str, Any] | None:
    """The schema of what is returned; None where it says nothing useful. A stream has it in Generator's third type."""
    if streams:
        inner = typing.get_args(hint)
        hint = inner[2] if len(inner) == 3 else Any
    if hint in (Any, None, type(None), inspect.Parameter.empty, object):
        return None
    try:
        described = _describe(hint)
    except _NoForm:
        return None
    definitions: dict[str, Any] = {}
    return _with_definitions(_hoist(described.schema(mode="serialization"), definitions), definitions)


def _with_definitions(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "$defs": definitions} if definitions else schema


class _Reader:
    """Collects parameters into one object schema."""

    def __init__(self, function: str, hints: Mapping[str, Any], docs: Mapping[str, str]):
        self.function = function
        self.hints = hints
        self.docs = docs
        self.properties: dict[str, Any] = {}
        self.required: list[str] = []
        self.definitions: dict[str, Any] = {}
        self.converters: dict[str, Convert] = {}
        self.open = False

    def add(self, parameter: inspect.Parameter) -> None:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            raise SetupError(
                f"{self.function} takes '{star}{parameter.name}' by position, but input is passed by name; "
                "give it a name, or use one list parameter"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            self.open = True
            return
        hint = self.hints.get(parameter.name, Any)
        try:
            described = _describe(hint)
        except _NoForm as error:
            raise SetupError(
                f"{self.function}: parameter '{parameter.name}' has a type without a JSON form ({error}); "
                "annotate it with a JSON type, a dataclass, an Enum, a pydantic model or a msgspec Struct"
            ) from error
        if hint is int:
            self.converters[parameter.name] = _to_int
        elif not _is_plain(hint) or _holds_int(hint):
            self.converters[parameter.name] = described.convert
        schema = _hoist(described.schema(), self.definitions)
        if typing.get_origin(hint) is typing.Annotated:  # Annotated[..., "description"]
            about = " ".join(text for text in hint.__metadata__ if isinstance(text, str))
            if about:
                schema["description"] = about
        if parameter.default is parameter.empty:
            self.required.append(parameter.name)
        else:
            try:
                default = described.to_json(parameter.default)
                described.convert(default)
                schema["default"] = default
            except (ValueError, TypeError):
                pass  # a default that a caller could not send, such as None for a plain ``int``
        if parameter.name in self.docs:
            schema.setdefault("description", self.docs[parameter.name])
        self.properties[parameter.name] = schema

    def input(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": self.properties}
        if self.required:
            schema["required"] = self.required
        schema["additionalProperties"] = self.open
        return _with_definitions(schema, self.definitions)


_PLAIN = (str, int, float, bool, type(None), None, Any, object, list, dict, inspect.Parameter.empty)


def _is_plain(hint: Any) -> bool:
    """Whether the JSON value itself is what the annotation asks for."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return all(isinstance(data, str) for data in hint.__metadata__) and _is_plain(inner[0])
    if origin is Literal:
        return True
    if origin in (list, dict, Union, types.UnionType):
        return all(map(_is_plain, inner))
    return any(hint is plain for plain in _PLAIN)


def _holds_int(hint: Any) -> bool:
    """Whether an ``int`` is inside: 2.0 is an integer to JSON Schema, but not to a function."""
    return hint is int or (typing.get_origin(hint) is not Literal and any(map(_holds_int, typing.get_args(hint))))


def _to_int(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


# --- two libraries that describe and convert types, behind one interface ----------------------------------------------


class _NoForm(Exception):
    """Neither library can describe the type."""


@dataclass(frozen=True)
class _Pydantic:
    adapter: pydantic.TypeAdapter[Any]

    def schema(self, mode: Literal["validation", "serialization"] = "validation") -> dict[str, Any]:
        return self.adapter.json_schema(mode=mode)

    def convert(self, value: Any) -> Any:
        return self.adapter.validate_python(value)

    def to_json(self, value: Any) -> Any:
        return self.adapter.dump_python(value, mode="json", warnings="error")


@dataclass(frozen=True)
class _Msgspec:
    hint: Any

    def schema(self, mode: str = "validation") -> dict[str, Any]:
        (schema,), definitions = msgspec.json.schema_components([self.hint], ref_template="#/$defs/{name}")
        return _with_definitions(schema, definitions)

    def convert(self, value: Any) -> Any:
        return msgspec.convert(value, self.hint)

    def to_json(self, value: Any) -> Any:
        return msgspec.to_builtins(value)


def _describe(hint: Any) -> _Pydantic | _Msgspec:
    try:
        adapter = pydantic.TypeAdapter[Any](hint)
        adapter.json_schema()  # some types can be validated but not described, which shows only here
        return _Pydantic(adapter)
    except (PydanticUserError, NameError):
        pass  # msgspec may know it
    try:
        described = _Msgspec(hint)
        described.schema()
    except (TypeError, NameError) as error:
        raise _NoForm(getattr(hint, "__name__", str(hint))) from error
    return described


def _hoist(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema without titles, its definitions moved into the shared ones under names that do not clash."""
    own = schema.pop("$defs", {})
    names: dict[str, str] = {}
    for name, part in own.items():
        bare, candidate, number = _tidy(part, {}), name, 1
        while candidate in definitions and definitions[candidate] != bare:  # equal definitions share a name
            number += 1
            candidate = f"{name}{number}"
        names[name] = candidate
    for name, part in own.items():
        definitions[names[name]] = _tidy(part, names)
    tidy: dict[str, Any] = _tidy(schema, names)
    return tidy


_MAPS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
_DATA = frozenset({"default", "const", "enum", "examples", "example", "mapping"})
_SKIPPED = frozenset({"title", "discriminator"})


def _tidy(schema: Any, names: Mapping[str, str]) -> Any:
    """A copy without the titles that repeat names, and with references by their new names."""
    if isinstance(schema, list):
        return [_tidy(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _SKIPPED:
            continue
        if key in _DATA:
            copy[key] = part
        elif key in _MAPS and isinstance(part, dict):
            copy[key] = {name: _tidy(entry, names) for name, entry in part.items()}
        elif key == "$ref" and isinstance(part, str):
            name = part.rpartition("/")[2]
            copy[key] = f"#/$defs/{names.get(name, name)}"
        else:
            copy[key] = _tidy(part, names)
    return copy


# --- docstrings: the first paragraph, and the parameters in one of three styles ---------------------------------------

_REST = re.compile(r"^:param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_GOOGLE_HEADS = frozenset({"args:", "arguments:", "parameters:", "params:", "keyword args:"})
_NUMPY_HEADS = frozenset({"parameters", "other parameters"})


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(entries: Iterator[tuple[Sequence[str], str]]) -> dict[str, str]:
    """The text of each name, from lines that start an entry (with names) or continue the previous one (without)."""
    docs: dict[str, str] = {}
    last: Sequence[str] = ()
    for names, text in entries:
        last = names or last
        for name in last:
            docs[name] = f"{docs.get(name, '')} {text}".strip()
    return {name: text for name, text in docs.items() if text}


def _parse_rest(lines: list[str]) -> dict[str, str]:
    def entries() -> Iterator[tuple[Sequence[str], str]]:
        inside = False
        for line in lines:
            start = _REST.match(line)
            inside = bool(start) or (inside and line.startswith(" "))
            if start:
                yield (start[1],), start[2]
            elif inside:
                yield (), line.strip()

    return _join(entries())


def _parse_google(lines: list[str]) -> dict[str, str]:
    block: list[str] = []  # the indented lines below the first heading such as ``Args:``
    for place, line in enumerate(lines):
        if line.strip().lower() in _GOOGLE_HEADS:
            for below in lines[place + 1 :]:
                if below.strip() and _indent(below) <= _indent(line):
                    break
                block.append(below)
            break
    first = min((_indent(line) for line in block if line.strip()), default=0)

    def entries() -> Iterator[tuple[Sequence[str], str]]:
        for line in block:
            start = _GOOGLE.match(line.strip()) if _indent(line) == first else None
            yield ((start[1],), start[2]) if start else ((), line.strip())

    return _join(entries())


def _parse_numpy(lines: list[str]) -> dict[str, str]:
    heads = []  # a line underlined with dashes
    for place, (line, below) in enumerate(pairwise(lines)):
        if line.strip() and len(below.strip()) >= 3 and set(below.strip()) == {"-"}:
            heads.append(place)

    def entries() -> Iterator[tuple[Sequence[str], str]]:
        for start in heads:
            if lines[start].strip().lower() not in _NUMPY_HEADS:
                continue
            end = min((place for place in heads if place > start), default=len(lines))
            for line in lines[start + 2 : end]:
                found = _NUMPY.match(line) if line.strip() and _indent(line) == 0 else None
                if found:
                    yield [name.strip() for name in found[1].split(",")], ""
                elif line.strip():
                    yield (), line.strip()

    return _join(entries())
