"""Printing and asking for this package: errors in terms of commands, tables, confirmations."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from agent3.errors import SetupError
from agent3.terminal.output import CleanStream, clean, print_note

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["ask", "confirm", "is_interactive", "make_console", "make_table", "print_error", "with_command_names"]

_COMMAND_OF_TOOL = {
    "agent3_search": "agent3 search",
    "agent3_select": "agent3 show",
    "agent3_invoke": "agent3 show --card",
    "agent3_call": "agent3 call",
}


_TOOL = re.compile(rf"(?:(?<=[Uu]se )|(?<=with )|(?<=from )|(?<=[Ss]ee ))(?:{'|'.join(_COMMAND_OF_TOOL)})\b(?![.-]\w)")
"""The name of a tool where a message says to use it. Elsewhere it is the name of a capability, and stays."""


def print_error(message: str) -> None:
    """An error or a warning for people, on standard error."""
    print_note(f"agent3: {with_command_names(message)}")


def with_command_names(text: str) -> str:
    """A message of the gateway, with its tools replaced by the commands that do the same."""
    return _TOOL.sub(lambda found: _COMMAND_OF_TOOL[found[0]], text)


def is_interactive(as_json: bool) -> bool:
    """Whether a person can be asked: there is a terminal, and the output is not for a program."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def confirm(question: str, as_json: bool) -> None:
    """Ask, and exit with 1 unless the answer is yes. SetupError if there is no terminal to ask at."""
    if not is_interactive(as_json):
        raise SetupError(f"{question} There is no terminal to ask at: add --yes.")
    if not ask(question, as_json):
        sys.exit(1)


def ask(question: str, as_json: bool) -> bool:
    """Whether the answer is yes; no if there is no terminal to ask at."""
    if not is_interactive(as_json):
        return False
    try:
        answer = input(clean(f"{question} [y/N] "))
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


# rich takes a tenth of a second to load, and a command that prints JSON does not need it.


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is, without markup; into a pipe in long lines, for line-based tools.

    It writes control characters of its own, so every text is cleaned before.
    """
    from rich.console import Console

    class CleanConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(clean(text), **options)

    stream = sys.stderr if stderr else sys.stdout
    file = stream.behind if isinstance(stream, CleanStream) else stream
    width = None if stream.isatty() else 1_000
    return CleanConsole(markup=False, emoji=False, highlight=False, width=width, file=file)


def make_table(*columns: str) -> Table:
    """A table without a frame."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)
