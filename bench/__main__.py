"""The command line: ``python -m bench --list`` and ``python -m bench NAME [--json]``.

Ends with 0, with 1 when something could not be measured, with 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import Bench, Options, Result, load_benches, machine, say

DRAWN = ("target", "rate", "p50_ms", "p99_ms", "cpu_ms_per_call", "errors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one bench and print its table, or its JSON object and nothing else on stdout."""
    benches = load_benches()
    chosen = _parser(benches).parse_args(arguments)
    if chosen.list or chosen.name is None:
        for one in sorted(benches.values(), key=lambda one: one.name):
            print(f"{one.name:<12}{one.summary}")
        return 0
    # Without this, a polite kill would leave the servers running; SystemExit unwinds what stops them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    where = machine()
    result = benches[chosen.name].run(_options(chosen))
    report = _report(chosen.name, where, result)
    if chosen.json:
        print(json.dumps(report))
    else:
        _draw(report)
    return 0 if all(row.errors == 0 for row in result.rows) else 1


def _options(chosen: argparse.Namespace) -> Options:
    return Options(
        chosen.seconds,
        chosen.rounds,
        chosen.connections,
        tuple(chosen.seeds),
        tuple(chosen.tasks),
        tuple(chosen.files),
        chosen.data,
    )


def _parser(benches: dict[str, Bench]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Side-by-side benchmarks of agent3.")
    parser.add_argument("name", nargs="?", choices=sorted(benches), help="which bench to run")
    parser.add_argument("files", nargs="*", metavar="FILE", help="what to examine, for a bench that takes a file")
    parser.add_argument("--list", action="store_true", help="name the benches and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    default = Options()
    parser.add_argument("--seconds", type=_between(float, 0.1, 60), default=default.seconds, help="of load per round")
    parser.add_argument("--rounds", type=_between(int, 1, 20), default=default.rounds, help="over all targets")
    parser.add_argument("--connections", type=_between(int, 1, 256), default=default.connections, help="at a time")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="of an examination")
    parser.add_argument("--tasks", nargs="+", default=[], help="of an examination, by name; all of them without it")
    parser.add_argument("--data", type=Path, help="a folder with data that a bench asks for")
    return parser


def _between(kind: Callable[[str], Any], low: float, high: float) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return value

    return number


def _report(name: str, where: dict[str, Any], result: Result) -> dict[str, Any]:
    rows = [row.to_dict() for row in result.rows]
    return {"name": name, "machine": where, "rows": rows, "ratios": result.ratios}


def _draw(report: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    where = report["machine"]
    console.print(f"{where['cores']} cores, {where['cpu']}, Python {where['python']}, load {where['load_average']}")
    rows: list[dict[str, Any]] = report["rows"]
    _draw_table(console, report["name"], [*DRAWN, "more"], [[*(row[key] for key in DRAWN), _more(row)] for row in rows])
    for row in rows:
        if row.get("note"):
            console.print(f"{row['target']}: {row['note']}", markup=False, highlight=False)
    _draw_table(console, "ratios", ["ratio", "times"], [list(pair) for pair in report["ratios"].items()])


def _draw_table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    used = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    table = Table(title=title, title_justify="left")
    for index in used:
        text = columns[index] in ("target", "ratio", "more")
        table.add_column(columns[index], justify="left" if text else "right", no_wrap=columns[index] == "target")
    for row in rows:
        table.add_row(*(_cell(row[index]) for index in used))
    console.print(table)


def _more(row: dict[str, Any]) -> str | None:
    extra = {key: value for key, value in row.items() if key not in (*DRAWN, "note")}
    return ", ".join(f"{key} {_cell(value)}" for key, value in extra.items()) or None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value >= 1000:
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
