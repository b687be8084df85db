"""Every kind of target through every door: a value, an error, a question, pieces on the way, and a cancellation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from agent3.settings import Calls, Limits, Settings
from tests.matrix.doors import DOORS, Asked, House
from tests.matrix.targets import BROKEN, KINDS, OUTCOMES, PIECES, QUESTION, Targets, functions, interface, running
from tests.support import registration
from tests.support.gateway import hosted

MESSAGES = {"website": "say apples", "openapi": 'say "apples"'}
QUESTIONS = {"website": "text", "openapi": "text"}
"""What asks for what is missing: these two cannot ask by themselves, so the gateway does."""


@dataclass
class Place:
    house: House
    targets: Targets


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("matrix")
    settings = Settings(calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0))
    with ExitStack() as stack:
        targets = stack.enter_context(running())
        gateway = stack.enter_context(hosted(folder, functions(targets), settings))
        for outcome in OUTCOMES:
            for kind in KINDS:
                name = f"{kind}-{outcome}"
                address = f"{targets.url}/{name}"
                match kind:
                    case "python":
                        continue
                    case "website":
                        file = folder / f"{name}.json"
                        file.write_text(json.dumps(interface(targets.url, outcome)))
                        address = str(file)
                    case "mcp":
                        address += "/"
                    case "openapi":
                        address += "/openapi.json"
                gateway.run(registration.add(gateway.server, address, name))
        yield Place(House(gateway.url, gateway.server, gateway.loop, folder), targets)


def ask(kind: str, outcome: str, door: str) -> Asked:
    given = {"text": "apples"} if kind in ("python", "mcp", "website", "openapi") else None
    if door == "/ask":
        given = None
    named = "say" if kind == "website" and door != "/ask" else None  # it also takes commands
    return Asked(f"{kind}-{outcome}", MESSAGES.get(kind, "apples"), given, named)


cells = pytest.mark.parametrize(("kind", "door"), [(kind, door) for kind in KINDS for door in DOORS])
asking = pytest.mark.parametrize(
    ("kind", "door"),
    # The tool of an OpenAPI service takes no words, so nothing can be missing in them.
    [(kind, door) for kind in KINDS for door in DOORS if (kind, door) != ("openapi", "tool of the agent")],
)


@cells
def test_a_value_comes_back(place: Place, kind: str, door: str) -> None:
    got = DOORS[door].call(place.house, ask(kind, "value", door))
    assert got.worked, got
    assert "said apples" in got.text


@cells
def test_an_error_is_one_and_says_why(place: Place, kind: str, door: str) -> None:
    got = DOORS[door].call(place.house, ask(kind, "error", door))
    assert not got.worked, got
    assert ("nowhere" if kind == "website" else BROKEN) in got.text


@asking
def test_a_question_is_asked_and_its_answer_arrives(place: Place, kind: str, door: str) -> None:
    asked = ask(kind, "question", door)
    if kind in QUESTIONS:
        asked = Asked(asked.agent, "say" if kind == "website" else "say it", None)
    got = DOORS[door].call(place.house, asked, "large")
    assert got.worked, got
    assert got.questions
    assert QUESTIONS.get(kind, QUESTION).lower() in got.questions[0].lower()
    assert "large" in got.text


@cells
def test_pieces_come_before_the_end(place: Place, kind: str, door: str) -> None:
    got = DOORS[door].call(place.house, ask(kind, "stream", door))
    assert got.worked, got
    expected = ("said", "apples") if kind == "website" else PIECES  # a page is read at the end; its steps are progress
    assert all(piece.strip() in got.text + " ".join(got.pieces) for piece in expected), got


@cells
def test_a_cancellation_reaches_the_target(place: Place, kind: str, door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.ask.door._PATIENCE", 0.1)  # after that, /ask gives a promise
    place.targets.noted.pop(kind, None)
    DOORS[door].cancel(place.house, ask(kind, "cancel", door), lambda: place.targets.wait(kind, "running"))
    place.targets.wait(kind, "cancelled")
