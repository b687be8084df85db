"""Agents added and removed over REST, by those who may."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.protocols.a2a.agents.serving import listening
from agent3.settings import Client, Settings
from tests.support.a2a_toy import toy
from tests.support.gateway import Hosted, hosted, run_agent3
from tests.support.mcp_program import command

KEYS = {"ada": "ada-key-of-sixteen", "bob": "bob-key-of-sixteen"}


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    """An agent somewhere."""
    with listening(toy()) as url:
        yield url


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Hosted]:
    with hosted(tmp_path, [LocalAgent("here")]) as found:
        yield found


def test_an_agent_is_added_called_and_removed(door: Hosted, peer: str) -> None:
    added = door.post("/v1/agents", {"source": peer, "name": "faraway"})
    assert added.status == 201
    assert added.headers["location"] == "/v1/agents/faraway"
    (one,) = added.json["added"]
    assert one["id"] == "faraway"
    assert "echo" in one["capabilities"]
    assert door.call("faraway", capability="echo", input={"text": "hi"}).json["result"] == "echo: hi"
    assert door.post("/v1/agents", {"source": peer, "name": "faraway"}).status == 201, "again: brought up to date"
    assert door.ask("DELETE", "/v1/agents/faraway").json == {"removed": "faraway"}
    assert door.get("/v1/agents/faraway").status == 404
    assert door.ask("DELETE", "/v1/agents/faraway").error["code"] == "agent_not_found"
    assert door.ask("DELETE", "/v1/agents/here").status == 404, "what the gateway hosts itself stays"


def test_the_era_of_an_mcp_server_can_be_chosen_and_is_shown(door: Hosted, peer: str, tmp_path: Path) -> None:
    words = shlex.join(command())
    assert door.post("/v1/agents", {"source": words, "name": "program", "era": "legacy"}).status == 201
    shown = door.get("/v1/agents/program").json["mcp"]
    assert shown == {"protocolVersion": "2025-11-25", "eras": ["legacy"], "era": "legacy"}
    text = run_agent3(tmp_path, "show", "program", "--server", door.url).stdout
    assert "MCP 2025-11-25, legacy era, as chosen with --era" in text
    refused = door.post("/v1/agents", {"source": words, "name": "other", "era": "modern"})
    assert "does not speak MCP 2026-07-28" in refused.error["message"]
    refused = door.post("/v1/agents", {"source": peer, "name": "agent", "era": "modern"})
    assert refused.error["code"] == "target_failed", "who chooses an era means an MCP server"
    # What clients send for what they leave out is no mistake, neither for the gateway nor for the agent.
    given = {"text": "hi", "size": None}
    body = {"agentId": "program", "capability": "echo", "input": given, "message": None, "metadata": None}
    answer = door.post("/v1/call", body)
    assert answer.json["result"] == "hi"


def test_what_cannot_be_added_says_why(door: Hosted) -> None:
    for body, status, code in (
        ({}, 422, "invalid_input"),
        ({"source": "", "x": 1}, 422, "invalid_input"),
        ({"source": "gopher://x"}, 422, "invalid_input"),
        ({"source": "http://127.0.0.1:9/mcp"}, 503, "unavailable"),
        ({"source": door.url}, 508, "loop_detected"),
    ):
        refused = door.post("/v1/agents", body)
        assert (refused.status, refused.error["code"]) == (status, code), refused.json


def test_of_several_things_each_says_what_became_of_it(door: Hosted, peer: str) -> None:
    servers = {"bad": {"url": "http://127.0.0.1:9/mcp"}, "good": {"command": command()[0], "args": command()[1:]}}
    told = door.post("/v1/agents", {"source": {"mcpServers": servers}})
    assert told.status == 201
    found = {one["name"]: one for one in told.json["added"]}
    assert found["bad"]["error"]["code"] == "unavailable"
    assert "echo" in found["good"]["capabilities"]


def test_a_slow_start_is_told_as_it_goes(door: Hosted, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    body = json.dumps({"source": shlex.join(command("--wait", str(installed))), "name": "slow"})
    connection = door.connect(timeout=120)
    connection.request("POST", "/v1/agents", body, {"Accept": "text/event-stream"})
    answer = connection.getresponse()  # it has begun: the program answers nothing yet
    assert answer.status == 200
    assert str(answer.getheader("content-type")).startswith("text/event-stream")
    installed.touch()
    told = answer.read().decode()
    connection.close()
    last = json.loads(told.rpartition("event: response\ndata: ")[2])
    assert last["added"][0]["id"] == "slow"
    assert "event: status" in told


def test_only_an_operator_may_and_elsewhere_only_addresses(
    tmp_path: Path, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)
    scopes: dict[str, tuple[str, ...]] = {"ada": ("agent3:operate",), "bob": ()}
    clients = tuple(Client(id=name, key=f"env:{name.upper()}_KEY", scopes=scopes[name]) for name in KEYS)
    marker = tmp_path / "started"
    program = shlex.join(command("--notes", str(marker)))
    servers = {"mcpServers": {"x": {"command": command()[0], "args": [*command()[1:], "--notes", str(marker)]}}}
    catalog = tmp_path / "ai-catalog.json"
    catalog.write_text("{}")
    with hosted(tmp_path, [], Settings(clients=clients)) as door:
        ada, bob = (door.as_(KEYS[name]) for name in ("ada", "bob"))
        assert bob.post("/v1/agents", {"source": peer}).error["code"] == "forbidden"
        assert bob.ask("DELETE", "/v1/agents/toy").error["code"] == "forbidden"
        refused: list[dict[str, Any]] = [
            {"source": program},
            {"source": servers},
            {"source": json.dumps(servers)},
            {"source": str(catalog)},
            {"source": peer, "credential": "env:ADA_KEY"},
            {"source": f"{peer}?key=env:ADA_KEY"},
        ]
        for body in refused:
            told = ada.post("/v1/agents", body)
            assert (told.status, told.error["code"]) == (403, "forbidden"), (body, told.json)
            assert "agent3 add" in told.error["message"]
        assert not marker.exists()
        assert door.rows("agents") == []
        assert ada.post("/v1/agents", {"source": peer, "name": "toy"}).status == 201
        assert ada.ask("DELETE", "/v1/agents/toy").status == 200
