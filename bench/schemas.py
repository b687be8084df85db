"""``schemas``: JSON Schemas compiled and inputs validated in this process, beside the Python package jsonschema.

Compiling is measured on 10,000 schemas that all differ, as when a large catalogue is registered; jsonschema
(``check_schema`` and building the validator) does 200 of them, and its total for all is their mean times 10,000.
Validating takes one tool's schema and two inputs: a right one, and one with five faults that are all reported. Each
round repeats everything on new schemas, so that no cache of compiled ones helps; the best round of each row is kept.

Ratios, above 1 where ours is faster:

    ours_vs_jsonschema_compile    schemas per second
    ours_vs_jsonschema_valid      validations per second of right input
    ours_vs_jsonschema_invalid    validations per second of wrong input, every fault explained
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from agent3.errors import ValidationError
from agent3.schema import compile as compile_schema
from bench.harness import Options, Result, Row, bench, measure, ratio, say

__all__ = ["definition", "run"]

COUNT = 10_000
SAMPLE = 200
LIMIT_SECONDS = 1.0
TARGET_MS = 50.0
TARGET_RATE = 200.0
RIGHT = {"query": "pizza", "kind": "a1", "limit": 10, "tags": ["hot"], "place": {"lat": 46.5, "lon": 6.6}}
WRONG = {"kind": "z", "limit": 5_000_000, "tags": ["hot", 3], "place": {"lat": 46.5}}


def definition(number: int) -> dict[str, Any]:
    """The input schema of a tool, such as a catalogue holds many of; no two numbers give the same."""
    return {
        "type": "object",
        "title": f"tool {number}",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "What to look for"},
            "kind": {"type": "string", "enum": [f"a{number}", f"b{number}", "a1"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100 + number},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                "required": ["lat", "lon"],
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }


@bench("schemas", "10,000 schemas compiled, and inputs validated, beside the package jsonschema")
def run(options: Options) -> Result:
    """Measure all rows once per round and keep the best of each; the other options of load do not apply."""
    best: dict[str, Row] = {}
    for turn in range(options.rounds):
        say(f"round {turn + 1}/{options.rounds}")
        for row in _one_round(1 + turn * COUNT):
            if row.target not in best or (row.rate or 0) > (best[row.target].rate or 0):
                best[row.target] = row
    rows = [_judged(row) for row in best.values()]
    return Result(rows, {f"ours_vs_jsonschema_{what}": _ratio(best, what) for what in ("compile", "valid", "invalid")})


def _one_round(first: int) -> Iterable[Row]:
    definitions = [definition(first + number) for number in range(COUNT)]
    yield measure("ours_compile", compile_schema, definitions)
    yield measure("jsonschema_compile", _jsonschema, definitions[:SAMPLE])
    ours, theirs = compile_schema(definitions[0]), _jsonschema(definitions[0])
    yield measure("ours_valid", ours.valid, _times(RIGHT, 20_000), chunk=100)
    yield measure("jsonschema_valid", theirs.is_valid, _times(RIGHT, 2_000), chunk=10)
    yield measure("ours_invalid", _refused(ours.check), _times(WRONG, 2_000))
    yield measure("jsonschema_invalid", lambda value: list(theirs.iter_errors(value)), _times(WRONG, 1_000))
    yield measure("RT-014-P04", ours.check, _times(RIGHT, 5_000))


def _jsonschema(schema: dict[str, Any]) -> Any:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _refused(check: Callable[[Any], object]) -> Callable[[Any], None]:
    def refused(value: Any) -> None:
        with suppress(ValidationError):
            check(value)
            raise RuntimeError("an input with five faults was taken as right")

    return refused


def _times(value: Any, count: int) -> list[Any]:
    return list(repeat(value, count))


def _judged(row: Row) -> Row:
    if row.target == "RT-014-P04":
        met = (row.p99_ms or 0) < TARGET_MS and (row.rate or 0) >= TARGET_RATE
        return _with(row, target_ms=TARGET_MS, target_rate=TARGET_RATE, met=met)
    if row.target.endswith("_compile"):
        total = COUNT / row.rate if row.rate else None
        judged = {"limit": LIMIT_SECONDS, "met": total is not None and total < LIMIT_SECONDS}
        return _with(row, total_seconds=total, **(judged if row.target == "ours_compile" else {}))
    return row


def _with(row: Row, **extra: Any) -> Row:
    return replace(row, extra={**row.extra, **extra})


def _ratio(rows: dict[str, Row], what: str) -> float | None:
    return ratio(rows[f"ours_{what}"].rate, rows[f"jsonschema_{what}"].rate)
