"""Sentences at every door: MCP, REST, A2A and the command line, with their questions, answers and refusals."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp import Client

from agent3.protocols.functions import LocalAgent
from agent3.settings import Llm, Outbound, Settings
from tests.support.gateway import Hosted, hosted, run_agent3
from tests.support.llm_server import KEY, Call, LLMServer, Turn

MADE: list[dict[str, Any]] = []


def desk() -> LocalAgent:
    agent = LocalAgent("Desk")

    @agent.capability
    def create_issue(owner: str, repo: str, title: str, priority: int = 3) -> str:
        """Create a new issue in a repository."""
        MADE.append({"owner": owner, "repo": repo, "title": title, "priority": priority})
        return f"{owner}/{repo}: {title} ({priority})"

    return agent


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Hosted]:
    MADE.clear()
    with hosted(tmp_path, [desk()]) as running:
        yield running


@pytest.mark.requirement("AC-29")
def test_rest_shows_what_was_understood(door: Hosted) -> None:
    body = door.call("desk", 'Open an issue in acme/web titled "Login fails" with priority 1').json
    assert body["result"] == "acme/web: Login fails (1)"
    expected = {"owner": "acme", "repo": "web", "title": "Login fails", "priority": 1}
    assert body["metadata"]["understood"] == {"input": expected, "guessed": []}


@pytest.mark.requirement("AC-29")
def test_what_is_missing_is_asked_and_the_answer_completes_the_call(door: Hosted) -> None:
    asked = door.call("desk", "Crea una incidencia en acme/web con prioridad 2").json
    assert asked["status"] == "needs"
    (question,) = asked["questions"]
    assert (question["id"], question["schema"]["type"]) == ("title", "string")
    assert question["text"].startswith("Falta title"), "in the language of the message"
    assert "Ejemplo: " in question["text"]
    done = door.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"title": "Se cae"}}).json
    assert done["result"] == "acme/web: Se cae (2)"
    assert done["metadata"]["understood"]["input"]["priority"] == 2


def test_words_that_are_left_over_are_asked_about_and_said_again(door: Hosted) -> None:
    asked = door.call("desk", 'Open an issue in acme/web titled "A" and merge branch x-1').json
    assert asked["status"] == "needs"
    assert "x-1" in asked["questions"][0]["text"]
    again = {"answers": {asked["questions"][0]["id"]: 'Open an issue in acme/web titled "A"'}}
    assert door.post(f"/v1/calls/{asked['job']}/answer", again).json["result"] == "acme/web: A (3)"


def test_a_sentence_that_forbids_is_refused_and_nothing_is_done(door: Hosted) -> None:
    for message in ('Do not open an issue in acme/web titled "A"', 'No abras la incidencia "A" en acme/web'):
        body = door.call("desk", message)
        assert (body.status, body.json["errorCode"]) == (409, "declined")
    assert MADE == []


def test_a_declined_question_does_nothing(door: Hosted) -> None:
    asked = door.call("desk", "Open an issue in acme/web").json
    answers = {"answers": {"title": {"action": "decline"}}}
    assert door.post(f"/v1/calls/{asked['job']}/answer", answers).json["errorCode"] == "declined"
    assert MADE == []


def test_a_question_in_spanish_stays_in_spanish(door: Hosted) -> None:
    asked = door.call("desk", "Crea una incidencia en acme/web").json
    assert 'Ejemplo: {"title":' in asked["questions"][0]["text"]
    again = door.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"title": 5}}).json
    assert "no vale" in again["questions"][0]["text"]
    answers = {"answers": {"title": {"action": "decline"}}}
    refused = door.post(f"/v1/calls/{again['job']}/answer", answers).json
    assert "No se ha hecho nada" in str(refused)
    assert MADE == []


def test_what_was_guessed_is_confirmed_first(door: Hosted) -> None:
    asked = door.call("desk", "In acme/web create an issue Login page broken").json
    assert [question["id"] for question in asked["questions"]] == ["agent3:confirm"]
    assert MADE == []
    done = door.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"agent3:confirm": True}}).json
    assert done["result"] == "acme/web: Login page broken (3)"


@pytest.mark.requirement("AC-29")
def test_mcp_is_told_the_same(door: Hosted) -> None:
    async def story() -> Any:
        async with Client(f"{door.url}/mcp", mode="legacy") as client:
            message = 'Open an issue in acme/web titled "Login fails"'
            return await client.call_tool("agent3_call", {"agentId": "desk", "message": message})

    result = asyncio.run(asyncio.wait_for(story(), 60))
    body = result.structured_content
    assert body["metadata"]["understood"]["input"]["title"] == "Login fails"


@pytest.mark.requirement("AC-29")
def test_a2a_asks_and_takes_the_answer(door: Hosted) -> None:
    def send(text: str, **more: Any) -> Any:
        message = {"messageId": os.urandom(8).hex(), "role": "ROLE_USER", "parts": [{"text": text}], **more}
        request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        return door.post("/agents/desk/a2a", request, a2a_version="1.0").json["result"]["task"]

    task = send("Open an issue in acme/web")
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    done = send("Login fails", taskId=task["id"], contextId=task["contextId"])
    assert done["artifacts"][0]["parts"] == [{"text": "acme/web: Login fails (3)"}]


def test_the_command_line_understands_and_asks(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(
        "from agent3 import LocalAgent\n"
        "agent = LocalAgent('Notes')\n"
        "@agent.capability(read_only=True)\n"
        "def read_note(path: str, lines: int = 10) -> str:\n"
        "    '''Read a note.'''\n"
        "    return f'{path} {lines}'\n"
    )
    config = tmp_path / "agent3.toml"
    config.write_text("")
    from tests.support.gateway import gateway

    with gateway(tmp_path, "notes:agent") as door:
        done = run_agent3(
            tmp_path, "call", "notes", "--json", "--", "read the first 5 lines of a.md", AGENT3_SERVER=door.url
        )
        assert json.loads(done.stdout)["metadata"]["understood"]["input"] == {"path": "a.md", "lines": 5}
        asked = run_agent3(tmp_path, "call", "notes", "read the note", AGENT3_SERVER=door.url)
        assert asked.returncode == 3
        assert "path" in asked.stdout + asked.stderr


# The language model


def helped(server: LLMServer, api: str) -> Settings:
    os.environ["TEST_LLM_KEY"] = KEY
    base = f"{server.url}/v1" if api == "openai" else server.url
    model = Llm(model="small", base_url=base, api=api, key="env:TEST_LLM_KEY", timeout=10.0)  # type: ignore[arg-type]
    return msgspec.structs.replace(Settings(outbound=Outbound(allow_loopback=True)), llm=model)


SENTENCE = "create issue acme/web Login fails"


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_model_helps_where_the_reader_asks_and_is_confirmed(tmp_path: Path, api: str) -> None:
    MADE.clear()
    given = {"owner": "acme", "repo": "web", "title": "Login fails"}
    with (
        LLMServer(Turn(calls=(Call("create_issue", given),))) as server,
        hosted(tmp_path, [desk()], helped(server, api)) as door,
    ):
        asked = door.call("desk", SENTENCE).json
        assert [question["id"] for question in asked["questions"]] == ["agent3:confirm"]
        assert MADE == []
        done = door.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"agent3:confirm": True}}).json
        assert done["success"] is True
        assert [{**given, "priority": 3}] == MADE
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    "turn",
    [
        Turn(calls=(Call("create_issue", {"owner": "evil", "repo": "web", "title": "Login fails"}),)),
        Turn(calls=(Call("create_issue", {"owner": "acme", "repo": "web"}),)),
        Turn("What do you mean?"),
        Turn(status=500, body=b"{}"),
    ],
)
def test_what_a_model_makes_up_is_asked_for_instead(tmp_path: Path, turn: Turn) -> None:
    MADE.clear()
    with LLMServer(turn, turn) as server, hosted(tmp_path, [desk()], helped(server, "openai")) as door:
        asked = door.call("desk", SENTENCE).json
        assert asked["status"] == "needs"
        assert "agent3:confirm" not in [question["id"] for question in asked["questions"]]
        assert server.seen
        assert MADE == []


def test_a_model_is_not_asked_about_what_is_forbidden_or_clear(tmp_path: Path) -> None:
    MADE.clear()
    with LLMServer() as server, hosted(tmp_path, [desk()], helped(server, "openai")) as door:
        assert door.call("desk", 'Do not open an issue in acme/web titled "A"').status == 409
        assert door.call("desk", 'Open an issue in acme/web titled "A"').json["success"] is True
        assert server.seen == []
