"""Interfaces as files: YAML or JSON, by a published schema.

Reading checks everything before it gives an interface, and names the step that is wrong. Writing leaves out what is
usual, so that a file shows what its author meant. It knows no browser.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent3.definitions import NLWebInterface
from agent3.errors import MissingExtra, TooLarge, ValidationError
from agent3.protocols.nlweb.steps.parameters import check
from agent3.schema import check_shape
from agent3.schema import compile as compile_schema

__all__ = ["SUFFIXES", "dump", "load", "parse", "save", "schema"]

Form = Literal["yaml", "json"]

SUFFIXES: dict[str, Form] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_MOST_BYTES = 1_000_000
_MOST_VALUES = 100_000
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def load(path: str | Path) -> NLWebInterface:
    """The interface of a file. ValidationError names the file, and in it the step, that is wrong."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValidationError(f"Cannot read {path.name}: {error.strerror}.") from None
    try:
        return parse(content, _form(path))
    except ValidationError as error:
        raise ValidationError(f"{path.name}: {error.message}", errors=error.errors) from None


def save(interface: NLWebInterface, path: str | Path) -> None:
    """Write the interface into a file, in the form that its name says."""
    path = Path(path)
    path.write_text(dump(interface, _form(path)), encoding="utf-8")


def parse(content: bytes | str, form: Form) -> NLWebInterface:
    """The interface of a text; ValidationError if it is not one, TooLarge beyond a megabyte."""
    if len(content) > _MOST_BYTES:
        raise TooLarge(f"An interface of {len(content)} bytes is too large; the maximum is {_MOST_BYTES}.")
    try:
        if form == "json":
            document = msgspec.json.decode(content)
        else:
            document = msgspec.yaml.decode(content)
            _count_values(document, {})
            # YAML makes days of what looks like one; here a day is text, as in JSON.
            document = msgspec.to_builtins(document)
    except ImportError:
        raise MissingExtra("Reading YAML", "browser") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError) as error:
        where = str(error).replace('in "<byte string>", ', "at ").replace('in "<unicode string>", ', "at ")
        raise ValidationError(f"This is not {form.upper()}: {' '.join(where.split())}") from None
    check_shape(document, what="interface")
    interface = NLWebInterface.from_document(document)
    for name, steps in interface.actions.items():
        check(steps, name)
    for name, info in interface.info.items():
        for kind, definition in (("input_schema", info.input_schema), ("output_schema", info.output_schema)):
            try:
                if definition is not None:
                    compile_schema(definition)
            except ValidationError as error:
                raise ValidationError(
                    f"The {kind} of {name!r} is not a JSON Schema: {error.message}", errors=error.errors
                ) from None
    return interface


def dump(interface: NLWebInterface, form: Form = "yaml") -> str:
    """The text of an interface, without what has its usual value. ``parse`` gives the same interface back."""
    document = interface.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        return msgspec.yaml.encode(document).decode()
    except ImportError:
        raise MissingExtra("Writing YAML", "browser") from None


def schema() -> dict[str, Any]:
    """The JSON Schema of an interface file, for editors and for programs that write such files."""
    return {"$schema": _DIALECT, **NLWebInterface.model_json_schema(by_alias=True)}


def _form(path: Path) -> Form:
    form = SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise ValidationError(
            f"The name {path.name} has neither a YAML nor a JSON extension. Call it {path.stem}.yaml."
        )
    return form


def _count_values(value: Any, known: dict[int, int]) -> int:
    """How many values there are when every alias of YAML is written out; TooLarge before anything does so."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_BYTES  # what holds itself is without end
        children = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count_values(child, known) for child in children)
    if known[id(value)] > _MOST_VALUES:
        raise TooLarge(f"An interface may have at most {_MOST_VALUES} values; check the aliases of YAML.")
    return known[id(value)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
