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
from typing import Any, Literal, Union

import msgspec
import pydantic
from pydantic.errors import PydanticUserError

from agent3.errors import SetupError, ValidationError

__all__ = ["FunctionSchema", "arguments", "from_function"]

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class FunctionSchema:
    """What a function takes and gives, as JSON Schema, and how it wants to be called."""

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
    """By parameter, for those whose Python value is not the JSON value itself."""

    @property
    def takes_context(self) -> bool:
        return self.context is not None


def arguments(function: FunctionSchema, input: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
    """Keyword arguments from input that fits ``function.input``: rich types made, plain JSON passed as it is.

    Raises ValidationError for what fits the schema and yet makes no value, such as ``2026-02-31`` for a date.
    """
    values = dict(input)
    for name, convert in function.converters.items():
        if name in values:
            values[name] = _converted(name, convert, values[name])
    return values


def _converted(name: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except (pydantic.ValidationError, msgspec.ValidationError, ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, pydantic.ValidationError) else str(error)
        fault = {"path": name, "message": f"Parameter '{name}' has an invalid value: {reason}"}
        raise ValidationError(fault["message"], errors=[fault]) from error


def from_function(fn: Callable[..., Any], *, skip: Sequence[str] = ("ctx",)) -> FunctionSchema:
    """Read the schema off a function. Parameters in ``skip``, and the one that takes the context, are left out.

    A parameter without annotation, or with one that cannot be resolved, takes anything. Raises SetupError for what
    cannot be called by name (``*args``, positional-only) and for a type that has no JSON form.
    """
    target = _code(fn)
    hints = _hints(target)
    signature = inspect.signature(fn)
    context = _context(signature, hints)
    description, docs = _docstring(inspect.getdoc(fn) if not isinstance(fn, functools.partial) else fn.func.__doc__)
    reader = _Reader(getattr(target, "__qualname__", repr(fn)), hints, docs)
    for parameter in signature.parameters.values():
        if parameter.name != context and parameter.name not in skip:
            reader.add(parameter)
    streams = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)
    return FunctionSchema(
        input=reader.input(),
        output=_output(hints.get("return", Any), streams),
        description=description,
        parameters=docs,
        context=context,
        streams=streams,
        is_async=inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target),
        converters=reader.converters,
    )


def _code(fn: Any) -> Any:
    """The function that a partial, a wrapper or an object with ``__call__`` runs in the end."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        fn = type(fn).__call__
    return fn.__init__ if inspect.isclass(fn) else fn


def _hints(fn: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        raw = getattr(fn, "__annotations__", {})
        return {name: _resolved(hint, getattr(fn, "__globals__", {})) for name, hint in raw.items()}


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """One annotation by itself, since another one of the same function could not be resolved."""

    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(probe, names, include_extras=True)["hint"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return hint if not isinstance(hint, str) else Any


def _context(signature: inspect.Signature, hints: Mapping[str, Any]) -> str | None:
    for name, parameter in signature.parameters.items():
        hint = hints.get(name)
        written = parameter.annotation if isinstance(parameter.annotation, str) else ""
        if name == "ctx" or getattr(hint, "__name__", "") == "Context" or written.split(".")[-1] == "Context":
            return name
    return None


def _output(hint: Any, streams: bool) -> dict[str, Any] | None:
    """The schema of what is returned; None where nothing useful is said. A stream says it in Generator's third type."""
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
    return _rooted(_hoist(described.schema(mode="serialization"), definitions), definitions)


def _rooted(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
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
                f"{self.function} takes '{star}{parameter.name}' by position, but input comes by name; "
                "give it a name, or a list as one parameter"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            self.open = True
            return
        schema = self._schema(parameter)
        if parameter.name in self.docs:
            schema.setdefault("description", self.docs[parameter.name])
        self.properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            self.required.append(parameter.name)

    def _schema(self, parameter: inspect.Parameter) -> dict[str, Any]:
        hint, about = _described(self.hints.get(parameter.name, Any))
        try:
            described = _describe(hint)
        except _NoForm as error:
            raise SetupError(
                f"{self.function}: parameter '{parameter.name}' has a type without JSON form ({error}); "
                "annotate it with a JSON type, a dataclass, an Enum, a pydantic model or a msgspec Struct"
            ) from error
        if hint is int:
            self.converters[parameter.name] = _whole
        elif not _plain(hint) or _holds_int(hint):
            self.converters[parameter.name] = described.convert
        schema = _hoist(described.schema(), self.definitions)
        if about:
            schema["description"] = about
        if parameter.default is not parameter.empty:
            schema.update(_default(described, parameter.default))
        return schema

    def input(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": self.properties}
        if self.required:
            schema["required"] = self.required
        schema["additionalProperties"] = self.open
        return _rooted(schema, self.definitions)


def _described(hint: Any) -> tuple[Any, str | None]:
    """An annotation and the description in ``Annotated[..., "description"]``."""
    if typing.get_origin(hint) is typing.Annotated:
        words = [one for one in hint.__metadata__ if isinstance(one, str)]
        return hint, " ".join(words) or None
    return hint, None


_PLAIN = (str, int, float, bool, type(None), None, Any, object, list, dict, inspect.Parameter.empty)


def _plain(hint: Any) -> bool:
    """Whether the JSON value itself is what the annotation asks for."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return all(isinstance(one, str) for one in hint.__metadata__) and _plain(inner[0])
    if origin is Literal:
        return True
    if origin in (list, dict, Union, types.UnionType):
        return all(_plain(one) for one in inner)
    return any(hint is one for one in _PLAIN)


def _holds_int(hint: Any) -> bool:
    """Whether an ``int`` is inside: to JSON Schema 2.0 is an integer too, to a function it is none."""
    return hint is int or (typing.get_origin(hint) is not Literal and any(map(_holds_int, typing.get_args(hint))))


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


# Two libraries that describe and convert types, behind one face.


class _NoForm(Exception):
    """Neither library can describe the type."""


@dataclass(frozen=True)
class _Pydantic:
    adapter: pydantic.TypeAdapter[Any]

    def schema(self, mode: Literal["validation", "serialization"] = "validation") -> dict[str, Any]:
        return self.adapter.json_schema(mode=mode)

    def convert(self, value: Any) -> Any:
        return self.adapter.validate_python(value)

    def plain(self, value: Any) -> Any:
        return self.adapter.dump_python(value, mode="json", warnings="error")


@dataclass(frozen=True)
class _Msgspec:
    hint: Any

    def schema(self, mode: str = "validation") -> dict[str, Any]:
        (schema,), definitions = msgspec.json.schema_components([self.hint], ref_template="#/$defs/{name}")
        return _rooted(schema, definitions)

    def convert(self, value: Any) -> Any:
        return msgspec.convert(value, self.hint)

    def plain(self, value: Any) -> Any:
        return msgspec.to_builtins(value)


def _default(described: _Pydantic | _Msgspec, value: Any) -> dict[str, Any]:
    """The default as JSON; none for one that a caller could not send, such as None for a plain ``int``."""
    try:
        plain = described.plain(value)
        described.convert(plain)
    except (ValueError, TypeError):
        return {}
    return {"default": plain}


def _describe(hint: Any) -> _Pydantic | _Msgspec:
    try:
        adapter = pydantic.TypeAdapter[Any](hint)
        adapter.json_schema()
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
    names = {name: _free(name, _tidied(part, {}), definitions) for name, part in own.items()}
    for name, part in own.items():
        definitions[names[name]] = _tidied(part, names)
    tidied: dict[str, Any] = _tidied(schema, names)
    return tidied


def _free(name: str, part: Any, definitions: Mapping[str, Any]) -> str:
    """A name for a definition: its own, unless another one has it. Equal ones share."""
    candidate, number = name, 1
    while candidate in definitions and definitions[candidate] != part:
        number += 1
        candidate = f"{name}{number}"
    return candidate


_MAPS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
_DATA = frozenset({"default", "const", "enum", "examples", "example", "mapping"})
_SKIPPED = frozenset({"title", "discriminator"})


def _tidied(schema: Any, names: Mapping[str, str]) -> Any:
    """A copy without the titles that repeat names, and with references by their new names."""
    if isinstance(schema, list):
        return [_tidied(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _tidied_entry(key, part, names) for key, part in schema.items() if key not in _SKIPPED}


def _tidied_entry(key: str, part: Any, names: Mapping[str, str]) -> Any:
    if key in _DATA:
        return part
    if key in _MAPS and isinstance(part, dict):
        return {name: _tidied(one, names) for name, one in part.items()}
    if key == "$ref" and isinstance(part, str):
        name = part.rpartition("/")[2]
        return f"#/$defs/{names.get(name, name)}"
    return _tidied(part, names)


# Docstrings: the first paragraph, and what is said of each parameter in one of three styles.

_REST = re.compile(r"^:param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_GOOGLE_HEADS = frozenset({"args:", "arguments:", "parameters:", "params:", "keyword args:"})


def _docstring(text: str | None) -> tuple[str, dict[str, str]]:
    lines = inspect.cleandoc(text or "").splitlines()
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(":") or line.strip().lower() in _GOOGLE_HEADS:
            break
        paragraph.append(line.strip())
    return " ".join(paragraph), {**_numpy(lines), **_google(lines), **_rest(lines)}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _gather(entries: Iterator[tuple[str | None, str]]) -> dict[str, str]:
    """Lines that start an entry or go on with the one before, put together."""
    docs: dict[str, str] = {}
    last: str | None = None
    for name, text in entries:
        last = name or last
        if last is not None:
            docs[last] = f"{docs.get(last, '')} {text}".strip()
    return {name: text for name, text in docs.items() if text}


def _rest(lines: list[str]) -> dict[str, str]:
    def entries() -> Iterator[tuple[str | None, str]]:
        inside = False
        for line in lines:
            start = _REST.match(line)
            inside = bool(start) or (inside and line.startswith(" "))
            if start:
                yield start[1], start[2]
            elif inside:
                yield None, line.strip()

    return _gather(entries())


def _section(lines: list[str], heads: frozenset[str]) -> list[str]:
    """The indented block below a heading such as ``Args:``."""
    for place, line in enumerate(lines):
        if line.strip().lower() in heads:
            block: list[str] = []
            for one in lines[place + 1 :]:
                if one.strip() and _indent(one) <= _indent(line):
                    break
                block.append(one)
            return block
    return []


def _google(lines: list[str]) -> dict[str, str]:
    block = _section(lines, _GOOGLE_HEADS)
    first = min((_indent(line) for line in block if line.strip()), default=0)

    def entries() -> Iterator[tuple[str | None, str]]:
        for line in block:
            start = _GOOGLE.match(line.strip()) if _indent(line) == first else None
            yield (start[1], start[2]) if start else (None, line.strip())

    return _gather(entries())


def _numpy(lines: list[str]) -> dict[str, str]:
    heads = [place for place, line in enumerate(lines[:-1]) if _underlined(line, lines[place + 1])]
    starts = [place for place in heads if lines[place].strip().lower() in ("parameters", "other parameters")]
    docs: dict[str, str] = {}
    for start in starts:
        end = min((place for place in heads if place > start), default=len(lines))
        docs |= _numpy_entries(lines[start + 2 : end])
    return docs


def _underlined(line: str, below: str) -> bool:
    return bool(line.strip()) and len(below.strip()) >= 3 and set(below.strip()) == {"-"}


def _numpy_entries(block: list[str]) -> dict[str, str]:
    docs: dict[str, str] = {}
    names: list[str] = []
    for line in block:
        start = _NUMPY.match(line) if line.strip() and _indent(line) == 0 else None
        if start:
            names = [name.strip() for name in start[1].split(",")]
        elif line.strip():
            docs.update({name: f"{docs.get(name, '')} {line.strip()}".strip() for name in names})
    return docs
