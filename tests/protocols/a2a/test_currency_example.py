"""The example in examples/currency-agent does what its README says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3.a2a import ArtifactUpdate, SyncA2AClient, Task

EXAMPLE = Path(__file__).parents[3] / "examples" / "currency-agent"
STAND_IN = (
    "import agent3.a2a, time, currency\n"
    "with agent3.a2a.listening(currency.agent) as url:\n"
    "    print(url, flush=True)\n"
    "    input()\n"
)
"""As the example serves itself, on a free port."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", STAND_IN],
        cwd=EXAMPLE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as serving:
        assert serving.stdout is not None
        try:
            yield serving.stdout.readline().strip()
            serving.communicate("\n", timeout=120)
        finally:
            serving.kill()


@pytest.mark.requirement("SP-18", "SP-16")
def test_it_converts_in_one_turn_asks_back_and_streams(url: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "ask.py", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "one turn: 10 USD is 830.00 INR.",
        "it asks: Which currency do you want?",
        "two turns: 100 USD is 92.00 EUR.",
    ]
    assert lines[3:6] == ["streamed: 1 USD is 1 USD", "streamed: 1 USD is 0.92 EUR", "streamed: 1 USD is 0.79 GBP"]


def said(task: object) -> str:
    assert isinstance(task, Task)
    message = task.status.message
    parts = [part for one in task.artifacts for part in one.parts] or (message.parts if message else ())
    return " ".join(part.text for part in parts if part.text)


@pytest.mark.requirement("SP-18")
def test_the_sentences_of_the_study_plan_need_no_skill(url: str) -> None:
    with SyncA2AClient.connect(url) as client:
        assert said(client.send("100 USD en CAD")) == "100 USD is 136.00 CAD."
        streamed = [item for item in client.stream("50 EUR en JPY") if isinstance(item, ArtifactUpdate)]
        assert [part.text for item in streamed for part in item.artifact.parts] == ["50 EUR is 8152.17 JPY."]
        asked = client.send("100 USD")
        assert isinstance(asked, Task)
        assert asked.status.state == "TASK_STATE_INPUT_REQUIRED"
        assert said(client.send("en GBP", task=asked.id)) == "100 USD is 79.00 GBP."
