"""Approvals at the doors: what each protocol tells a caller that waits, and how others decide over REST and the CLI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.server.run import InBackground
from agent3.settings import ApprovalRule, Client, Rule, Server, Settings, Storage

BOB, ANN, EVE = "bobs-key-is-long-enough", "anns-key-is-long-enough", "eves-key-is-long-enough"


def _client(name: str, key: str, *scopes: str) -> Client:
    return Client(name, key=f"sha256:{sha256(key.encode()).hexdigest()}", scopes=scopes)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    bank = LocalAgent("Bank")

    @bank.capability(consequential=True)
    def pay(amount: float) -> str:
        """Pay somebody."""
        return f"paid {amount:g}"

    @bank.capability
    def burn() -> str:
        """Burn the money."""
        return "burnt"

    settings = Settings(
        server=Server(port=0),
        storage=Storage(url="sqlite://"),
        clients=(_client("bob", BOB), _client("ann", ANN, "agent3:approve"), _client("eve", EVE)),
        rules=(Rule("see", capability="burn"), Rule("allow")),
        approvals=(ApprovalRule(capability="pay", arguments={"amount": "> 100"}),),
    )
    with InBackground(settings, [bank]) as address:
        yield address


def ask(url: str, key: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(url + path, data, sent)
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def rpc(url: str, key: str, path: str, method: str, params: Any, **headers: str) -> Any:
    return ask(url, key, path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **headers)[1]


def pay(url: str, amount: float = 500) -> dict[str, Any]:
    body = {"agentId": "bank", "capability": "pay", "input": {"amount": amount}}
    status, answer = ask(url, BOB, "/v1/call", body)
    assert status == 200, answer
    return dict(answer)


def test_over_rest_a_call_waits_is_decided_by_others_and_goes_on(url: str) -> None:
    assert pay(url, 5)["success"]
    asked = pay(url)
    assert asked["status"] == "needs"
    assert "agent3:approve" in asked["questions"][0]["by"]
    job = asked["job"]
    (waiting,) = [one for one in ask(url, ANN, "/v1/approvals")[1]["approvals"] if one["job"] == job]
    path = f"/v1/approvals/{waiting['id']}"
    assert ask(url, ANN, path)[1]["input"] == {"amount": 500}
    assert ask(url, EVE, path)[0] == 404
    assert ask(url, EVE, "/v1/approvals")[1]["approvals"] == []
    assert ask(url, EVE, f"{path}/approve", {})[0] == 404
    assert ask(url, BOB, f"{path}/approve", {})[0] == 403
    assert ask(url, ANN, f"{path}/approve", {"because": "x"})[0] == 422
    assert ask(url, ANN, f"{path}/approve", {"reason": "ok"})[1]["status"] == "approved"
    assert ask(url, ANN, f"{path}/deny", {})[0] == 409
    ended: dict[str, Any] = {}
    for _ in range(600):
        ended = ask(url, BOB, f"/v1/calls/{job}?wait=60")[1]
        if ended["status"] not in ("needs", "working"):
            break
    assert ended["result"] == "paid 500"


def test_what_may_be_seen_and_not_called_is_403(url: str) -> None:
    status, answer = ask(url, BOB, "/v1/call", {"agentId": "bank", "capability": "burn"})
    assert status == 403
    assert answer["errorCode"] == "forbidden"
    (row,) = [one for one in ask(url, BOB, "/v1/calls")[1]["calls"] if one["capability"] == "burn"]
    assert (row["status"], row["code"]) == ("refused", "forbidden")
    shown = ask(url, BOB, "/v1/agents/bank")[1]
    assert {one["name"] for one in shown["capabilities"]} == {"pay", "burn"}


def test_over_a2a_the_task_needs_authorization(url: str) -> None:
    message = {
        "messageId": "m1",
        "role": "ROLE_USER",
        "parts": [{"data": {"amount": 700}}],
        "metadata": {"capability": "pay", "skill": "pay", "skillId": "pay"},
    }
    answer = rpc(url, BOB, "/agents/bank/a2a", "SendMessage", {"message": message}, **{"A2A-Version": "1.0"})
    assert "result" in answer, answer
    assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"


def test_over_mcp_the_model_reads_that_it_waits_and_nobody_is_elicited(url: str) -> None:
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    start = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    request = urllib.request.Request(
        f"{url}/agents/bank/mcp",
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start}).encode(),
        {"Authorization": f"Bearer {BOB}", "Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=240) as answer:
        session = answer.headers.get("Mcp-Session-Id")
    if session:
        headers["Mcp-Session-Id"] = session
    call = {"name": "pay", "arguments": {"amount": 900}}
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).encode()
    sent = {"Authorization": f"Bearer {BOB}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/agents/bank/mcp", body, sent)
    with urllib.request.urlopen(request, timeout=240) as answer:
        text = answer.read().decode()
    assert "waits for an approval" in text
    assert "elicitation/create" not in text


def test_the_command_line_lists_shows_and_denies(url: str) -> None:
    asked = pay(url, 800)
    environment = {**os.environ, "AGENT3_KEY": ANN}

    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "agent3", "approvals", *words, "--server", url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (one,) = [one for one in run("list")["approvals"] if one["job"] == asked["job"]]
    assert run("show", one["id"])["input"] == {"amount": 800}
    assert run("deny", one["id"], "--reason", "no money")["status"] == "denied"
    ended: dict[str, Any] = {}
    for _ in range(600):
        ended = ask(url, BOB, f"/v1/calls/{asked['job']}?wait=60")[1]
        if ended["status"] not in ("needs", "working"):
            break
    assert ended["errorCode"] == "not_approved"
    assert "no money" in ended["error"]
