"""Printing for commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from io import TextIOBase
from typing import Any, TextIO, TypeVar

__all__ = ["CleanStream", "clean", "guard_output", "print_indented", "print_json", "print_note", "print_result"]

T = TypeVar("T")
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_HIDDEN_TEXT = re.compile(_HIDDEN.pattern.replace("\x00-\x09", "\x00-\x08"))
"""The same, but for tabs."""


def print_result(body: T, as_json: bool, render: Callable[[T], None]) -> None:
    """The result of a command: JSON for programs, otherwise as ``render`` prints it."""
    if as_json:
        print_json(body)
    else:
        render(body)


def print_json(body: Any, indent: int | None = None) -> None:
    """JSON on standard output, on one line unless indented. Bytes become base64; other foreign values, text."""

    def as_text(value: Any) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    text = json.dumps(body, default=as_text, ensure_ascii=False, indent=indent)
    # Only strings can hold such characters, and there an escape means the same.
    print(text if text.isprintable() else _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text))


def print_indented(body: Any) -> None:
    """JSON that people read."""
    print_json(body, indent=2)


def print_note(text: str) -> None:
    """A line for people on standard error, so that standard output holds only the result."""
    print(text, file=sys.stderr)


def clean(text: str) -> str:
    """Untrusted text without characters that would move the cursor or change the colours of a terminal."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


class CleanStream(TextIOBase):
    """Standard output or error of a command: control characters in what is printed are replaced.

    It is installed once, for every command. ``behind`` is the stream itself, for code that writes control characters on
    purpose and cleans its texts before, and for bytes.
    """

    def __init__(self, behind: TextIO):
        self.behind = behind

    def write(self, text: str, /) -> int:
        """Write a text, keeping tabs and line ends, without control characters."""
        self.behind.write(text if text.isprintable() else _HIDDEN_TEXT.sub(" ", text))
        return len(text)

    def flush(self) -> None:
        self.behind.flush()

    def isatty(self) -> bool:
        return self.behind.isatty()

    def fileno(self) -> int:
        return self.behind.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.behind.encoding

    @property
    def buffer(self) -> Any:
        return self.behind.buffer


def guard_output() -> None:
    """Let only clean text through standard output and error, from now on."""
    if not isinstance(sys.stdout, CleanStream):
        sys.stdout = CleanStream(sys.stdout)
    if not isinstance(sys.stderr, CleanStream):
        sys.stderr = CleanStream(sys.stderr)
