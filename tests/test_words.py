"""The glossary: every word leads to code, a file name in two rooms has one role, and texts for people are plain."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "agent3"
PAGE = (ROOT / "docs" / "words.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `(agent3[\w.]*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("place", [row[2] for row in ROWS])
def test_every_word_leads_to_code(place: str) -> None:
    try:
        importlib.import_module(place)
    except ModuleNotFoundError:
        module, _, name = place.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_no_word_stands_twice() -> None:
    words = [word for row in ROWS for word in row[0].split(", ")]
    assert sorted(words) == sorted(set(words))
    assert len(words) > 40


def test_a_file_name_in_several_rooms_has_its_role_in_the_glossary() -> None:
    rooms: defaultdict[str, int] = defaultdict(int)
    for file in SOURCE.rglob("*.py"):
        rooms[file.name] += 1
    shared = {name for name, count in rooms.items() if count > 1 and name != "__init__.py"}
    assert set(re.findall(r"^\| `(\w+\.py)` \|", PAGE, re.MULTILINE)) == shared


RIDDLES = re.compile(
    r"\b(is|are|was) none of\b|\bwhoever\b|\bwhosoever\b|\bsomebody\b|\bnobody\b|\bthat which\b|\bthereof\b|\bherein\b"
    r"|\bwherever it be\b|\bunto\b|\bsuch as are\b|\bis to be had\b|\bbe it\b",
    re.IGNORECASE,
)


def raised_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The literal words of every exception that is raised or made with a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for piece in ast.walk(node.exc):
                if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
                    yield node.lineno, piece.value


def test_errors_are_written_in_plain_english() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {text}"
        for file in sorted(SOURCE.rglob("*.py"))
        for line, text in raised_texts(ast.parse(file.read_text("utf-8")))
        if RIDDLES.search(text)
    ]
    assert found == []
