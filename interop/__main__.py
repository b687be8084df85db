"""The command line: ``python -m interop a2a [--markdown]``, and ``servers``, ``everything``, ``packages``,
``clients`` or ``matrix`` with names.

Ends with 0 when all went well, with 1 when a cell did not, with 2 when something could not be started.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from conformance.kits import KitError
from conformance.mcp_suite import Report
from interop import a2a, clients, everything, matrix, packages, servers

EVERYTHING = ("server", "leg", "direct", "behind the gateway", "fails only there")
SERVERS = ("server", "from", "command", "added in", "found", "tool", "called")
PACKAGES = ("installed by", "Python", "called")
HEAD = ("client", "agent", "generation", "binding", "message", "stream")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(prog="python -m interop", description="Other people's SDKs against ours.")
    parser.add_argument("what", choices=["a2a", "servers", "everything", "packages", "clients", "matrix"])
    parser.add_argument(
        "names", nargs="*", help="only these: servers, versions of the SDK, or ways to install and versions of Python"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as it stands in the documentation")
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.what == "servers":
        return _run_servers(tuple(chosen.names), chosen.markdown)
    if chosen.what == "everything":
        return _run_everything(tuple(chosen.names), chosen.markdown)
    if chosen.what == "packages":
        return _run_packages(tuple(chosen.names), chosen.markdown)
    if chosen.what == "clients":
        return _run_clients(tuple(chosen.names), chosen.markdown)
    if chosen.what == "matrix":
        return _run_matrix(tuple(chosen.names), chosen.markdown)
    try:
        cells = a2a.run(tell=_tell)
    except (KitError, RuntimeError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    sys.stdout.write((_markdown(cells) if chosen.markdown else _drawn(cells)) + "\n")
    return 0 if all(cell.fine for cell in cells) else 1


def _run_servers(names: tuple[str, ...], markdown: bool) -> int:
    def tell(row: servers.Row) -> None:
        sys.stderr.write(f"{row.case.name}: {'fine' if row.fine else f'WRONG: {row.note}'}\n")

    try:
        rows = servers.run(tell, names)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    words = {True: "yes", False: "**no**"}
    lines = [
        [row.case.name, row.case.origin, f"`{row.case.command}`", f"{row.seconds:.0f} s" if row.added else "**no**",
         words[row.found], f"`{row.case.tool}`", words[row.called]]
        for row in rows
    ]  # fmt: skip
    sys.stdout.write((_markdown_table(SERVERS, lines) if markdown else _draw_table(SERVERS, lines)) + "\n")
    sys.stdout.write(f"{sum(row.fine for row in rows)} of {len(rows)} fine\n")
    return 0 if all(row.fine for row in rows) else 1


def _run_everything(names: tuple[str, ...], markdown: bool) -> int:
    def tell(row: everything.Row) -> None:
        for fault in row.ours:
            sys.stderr.write(f"{row.server} {fault}\n")

    def count(report: Report) -> str:
        return f"{report.checks['SUCCESS']} / {report.checks['FAILURE']}"

    try:
        rows = everything.run(tell, names)
    except (KitError, OSError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    lines = [
        [
            row.server,
            row.direct.leg.name.removeprefix("server-"),
            count(row.direct),
            count(row.behind),
            str(len(row.ours)),
        ]
        for row in rows
    ]
    sys.stdout.write((_markdown_table(EVERYTHING, lines) if markdown else _draw_table(EVERYTHING, lines)) + "\n")
    return 0 if all(row.fine for row in rows) else 1


def _run_packages(names: tuple[str, ...], markdown: bool) -> int:
    def tell(row: packages.Row) -> None:
        sys.stderr.write(f"{row.way} with Python {row.python}: {'fine' if row.fine else f'WRONG: {row.note}'}\n")

    rows = packages.run(tell, names)
    lines = [[row.way, row.python, "yes" if row.fine else "**no**"] for row in rows]
    sys.stdout.write((_markdown_table(PACKAGES, lines) if markdown else _draw_table(PACKAGES, lines)) + "\n")
    absent = [version for version in packages.PYTHONS if version not in {row.python for row in rows}]
    if absent and not names:
        sys.stdout.write(f"Not on this machine: Python {', '.join(absent)}\n")
    return 0 if rows and all(row.fine for row in rows) else 1


def _run_clients(names: tuple[str, ...], markdown: bool) -> int:
    def tell(row: clients.Row) -> None:
        sys.stderr.write(f"{row.client.name}: {'fine' if row.fine else f'WRONG: {row.note}'}\n")

    try:
        rows = clients.run(tell, names)
    except (OSError, RuntimeError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    words = {True: "yes", False: "**no**"}
    lines = [
        [row.client.name, row.client.protocol, words[row.found], words[row.value], words[row.error]] for row in rows
    ]
    head = ("client", "protocol", "found", "called", "told of an error")
    sys.stdout.write((_markdown_table(head, lines) if markdown else _draw_table(head, lines)) + "\n")
    sys.stdout.write(f"{sum(row.fine for row in rows)} of {len(rows)} fine\n")
    return 0 if all(row.fine for row in rows) else 1


def _run_matrix(names: tuple[str, ...], markdown: bool) -> int:
    def tell(row: matrix.Row) -> None:
        sys.stderr.write(f"{row.target}: {'fine' if not row.failed else 'WRONG'}\n")
        for (door, outcome), wrong in row.failed.items():
            sys.stderr.write(f"  {door}, {outcome}: {wrong}\n")

    try:
        rows = matrix.run(tell, names)
    except (KitError, RuntimeError, OSError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    head = ("target", *matrix.ALL_DOORS)
    lines = [[row.target, *(row.show(door) for door in matrix.ALL_DOORS)] for row in rows]
    sys.stdout.write((_markdown_table(head, lines) if markdown else _draw_table(head, lines)) + "\n")
    failed = sum(len(row.failed) for row in rows)
    sys.stdout.write(f"{sum(len(row.cells) for row in rows)} cells, {failed} failed\n")
    return 1 if failed else 0


def _tell(cell: a2a.Cell) -> None:
    verdict = "fine" if cell.fine else f"WRONG: {cell.note}"
    sys.stderr.write(f"{cell.client} -> {cell.agent}, {cell.face.version} {cell.face.binding}: {verdict}\n")


def _row(cell: a2a.Cell) -> list[str]:
    words = {True: "yes", False: "**no**"}
    face = cell.face
    return [cell.client, cell.agent, face.version, face.binding, words[cell.unary], words[cell.stream]]


def _markdown(cells: Sequence[a2a.Cell]) -> str:
    return _markdown_table(HEAD, [*map(_row, cells)])


def _drawn(cells: Sequence[a2a.Cell]) -> str:
    good = sum(cell.fine for cell in cells)
    return f"{_draw_table(HEAD, [*map(_row, cells)])}{good} of {len(cells)} fine"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _draw_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


if __name__ == "__main__":
    sys.exit(main())
