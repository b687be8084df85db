"""``agent3 batch``: several calls at once, from a file or standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agent3.cli.options import GatewayOptions, connect
from agent3.errors import ValidationError
from agent3.terminal.output import print_json, print_result

__all__ = ["batch"]


def batch(
    file: Path | None = None,
    *,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Make several calls at once; each has its own answer.

    Parameters
    ----------
    file:
        The calls, as a JSON array or one JSON object per line: {"agentId": "echo", "message": "hello"}. Read from
        standard
        input if it is missing or -.
    """
    try:
        text = sys.stdin.read() if file is None or str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"Cannot read the calls: {error}.") from None
    answer = connect(options).call({"calls": _parse_calls(text)})
    print_result(answer, options.json, _print_answers)
    if not answer["success"]:
        sys.exit(1)


def _parse_calls(text: str) -> list[Any]:
    try:
        if text.lstrip().startswith("["):
            calls = json.loads(text)
        else:
            calls = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ValidationError(f"The calls are not JSON: {error}. Give an array, or one object per line.") from None
    assert isinstance(calls, list)
    return calls


def _print_answers(answer: dict[str, Any]) -> None:
    """One answer per line, as JSON, in the order of the calls."""
    for each in answer["result"]:
        print_json(each)
