"""The example in examples/hello, served and called as its README says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import ROOT, Process, gateway, run_agent3

HELLO = ROOT / "examples" / "hello"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    reference = next(line.split()[-1] for line in commands() if line.startswith("agent3 serve"))
    with gateway(tmp_path_factory.mktemp("hello"), reference, cwd=HELLO, PYTHONDONTWRITEBYTECODE="1") as running:
        yield running


def commands() -> list[str]:
    """The commands of the README."""
    lines = (HELLO / "README.md").read_text().splitlines()
    return [line.strip() for line in lines if line.startswith("    agent3 ")]


def test_the_commands_of_the_readme_do_what_it_says(served: Process, tmp_path: Path) -> None:
    told = [
        run_agent3(served.data, *shlex.split(line)[1:], cwd=tmp_path)
        for line in commands()
        if "serve" not in line and "--job" not in line
    ]
    search, greet, spanish, introduce = told
    assert "hello" in search.stdout
    assert greet.stdout == "Hello, Ada!\n"
    assert spanish.stdout == "Hola, Ada!\n"
    assert (introduce.returncode, introduce.stdout) == (3, "What is your name?\n")
    again = shlex.split(introduce.stderr.partition(": ")[2].replace("ANSWER", "Ada"))
    assert run_agent3(served.data, *again[1:]).stdout == "Which language do you speak? (english / spanish / german)\n"
    again[3] = "german"
    assert run_agent3(served.data, *again[1:]).stdout == "Hallo, Ada! Nice to meet you.\n"


def test_a_language_that_is_not_spoken_is_refused_with_those_that_are(served: Process) -> None:
    wrong = json.dumps({"name": "Ada", "language": "klingon"})
    done = run_agent3(served.data, "call", "hello", "--capability", "greet", "--input", wrong)
    assert done.returncode == 2
    assert "german" in done.stderr


def test_its_greeting_shows_a_command_that_works(served: Process) -> None:
    example = shlex.split(served.lines[-1])
    done = run_agent3(served.data, *example[1:])
    assert done.returncode == 0, done.stderr
