"""The websites in examples, served, added and called by every command that their READMEs show."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway import ROOT, Process, gateway, run_agent3

pytestmark = pytest.mark.browser

EXPECTED = {
    "shop": ["", "White mug", "", "Blue mug", "Do it?", "", "White mug", "search_products", "White mug"],
    "airline": ["", "DM103", "DM103", "Do it?", "", "DM103", "search_flights", "DM103"],
}
"""What each command of ``agent3`` says, among other things, in order."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("websites")) as running:
        yield running


@contextmanager
def site(folder: Path, words: list[str], port: str = "0") -> Iterator[str]:
    """The site as its own command serves it, on a free port; the port."""
    command = [sys.executable, *words[1:], "--port", port]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.terminate()


def commands(folder: Path) -> list[list[str]]:
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("name", ["shop", "airline"])
def test_every_command_of_the_readme_does_what_it_says(served: Process, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    file = folder / f"{name}.yaml"
    serving, *first = commands(folder)
    cut = next(number for number, words in enumerate(first) if words[0] == "python")
    expected = iter(EXPECTED[name])
    job = ""

    def run(words: list[str]) -> None:
        nonlocal job
        assert words[0] == "agent3"
        done = run_agent3(served.data, *(job if word == "JOB" else word for word in words[1:]), cwd=folder)
        said, wanted = done.stdout + done.stderr, next(expected)
        assert done.returncode == (3 if wanted == "Do it?" else 0), (words, said)
        assert wanted in said, (words, said)
        if found := re.search(r"--job (\S+)", done.stderr):
            job = found[1]

    with site(folder, serving) as port:
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text), encoding="utf-8")
        for words in first[:cut]:
            run(words)
    with site(folder, first[cut], port):
        for words in first[cut + 1 :]:
            run(words)
        if name == "shop":
            _require_heals_to_be_accepted(served, next(words for words in first if "place_order" in words))
    assert list(expected) == []


def _require_heals_to_be_accepted(served: Process, order: list[str]) -> None:
    asked = run_agent3(served.data, *order[1:])
    found = re.search(r"--job (\S+)", asked.stderr)
    assert found is not None, asked.stderr
    refused = run_agent3(served.data, "call", "cup-and-tray", "yes", "--job", found[1])
    assert refused.returncode == 1
    assert "agent3 web heals accept" in refused.stderr
