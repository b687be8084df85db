"""The command line: ``python -m interop a2a [--markdown]``.

Ends with 0 when all went well, with 1 when a cell did not, with 2 when something could not be started.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from conformance.kits import KitError
from interop import a2a

HEAD = ("client", "agent", "generation", "binding", "message", "stream")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(prog="python -m interop", description="Other people's SDKs against ours.")
    parser.add_argument("protocol", choices=["a2a"])
    parser.add_argument("--markdown", action="store_true", help="print the table as it stands in the documentation")
    chosen = parser.parse_args(arguments)
    try:
        cells = a2a.run(tell=_tell)
    except (KitError, RuntimeError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    sys.stdout.write((_markdown(cells) if chosen.markdown else _drawn(cells)) + "\n")
    return 0 if all(cell.fine for cell in cells) else 1


def _tell(cell: a2a.Cell) -> None:
    verdict = "fine" if cell.fine else f"WRONG: {cell.note}"
    sys.stderr.write(f"{cell.client} -> {cell.agent}, {cell.face.version} {cell.face.binding}: {verdict}\n")


def _row(cell: a2a.Cell) -> list[str]:
    words = {True: "yes", False: "**no**"}
    face = cell.face
    return [cell.client, cell.agent, face.version, face.binding, words[cell.unary], words[cell.stream]]


def _markdown(cells: Sequence[a2a.Cell]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *map(_row, cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _drawn(cells: Sequence[a2a.Cell]) -> str:
    table = Table(*HEAD)
    for cell in cells:
        table.add_row(*_row(cell))
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.capture() as captured:
        console.print(table)
    good = sum(cell.fine for cell in cells)
    return f"{captured.get()}{good} of {len(cells)} fine"


if __name__ == "__main__":
    sys.exit(main())
