"""Printing for commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["clean", "print_indented", "print_json", "print_note", "print_result"]

T = TypeVar("T")


def print_result(body: T, as_json: bool, render: Callable[[T], None]) -> None:
    """The result of a command: as JSON for programs, else as ``render`` prints it for people."""
    if as_json:
        print_json(body)
    else:
        render(body)


def print_json(body: Any, indent: int | None = None) -> None:
    """JSON on standard output, on one line unless indented. Bytes become base64; other foreign values, text."""

    def as_text(value: Any) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    print(json.dumps(body, default=as_text, ensure_ascii=False, indent=indent))


def print_indented(body: Any) -> None:
    """JSON that people read."""
    print_json(body, indent=2)


def print_note(text: str) -> None:
    """A line for people on standard error, so that standard output holds the result only."""
    print(text, file=sys.stderr)


def clean(text: str) -> str:
    """Text of a stranger without characters that would move the cursor or change the colours of the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
