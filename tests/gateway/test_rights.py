"""Who is told what: without a proof 401, without any right 403, and what one may not see is simply not there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from agent3.model import Principal
from agent3.security.access import Access
from agent3.server import demo
from agent3.settings import Client, Rule, Settings
from tests.support.a2a_toy import codes, message, rpc
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request

KEYS = {"ada": "ada-key-of-sixteen", "bob": "bob-key-of-sixteen"}
OLD = {"role": "user", "parts": [{"type": "text", "text": "hi"}], "metadata": {"skillId": "say"}}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(f"{name.upper()}_KEY", key)
        settings = Settings(
            clients=tuple(Client(id=name, key=f"env:{name.upper()}_KEY") for name in KEYS),
            rules=(Rule("allow", "ada", "echo"),),
        )
        with hosted(tmp_path_factory.mktemp("rights"), demo.agents(), settings) as found:
            yield found


@pytest.mark.requirement("SP-11")
def test_without_a_key_every_door_answers_401_with_a_challenge(door: Hosted) -> None:
    for reply in (
        door.call("echo", "hi"),
        rpc(door, "SendMessage", {"message": message("hi", "say")}, "/agents/echo/a2a", a2a_version="1.0"),
        door.post("/mcp", {}),
    ):
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.requirement("SP-11")
@pytest.mark.parametrize("agent", ["echo", "nobody"])
def test_a_caller_without_any_right_is_forbidden_whether_the_agent_exists_or_not(door: Hosted, agent: str) -> None:
    bob = door.as_(KEYS["bob"])
    refused = bob.call(agent, "hi")
    assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert bob.get(f"/v1/agents/{agent}").status == 403
    params: dict[str, Any] = {"id": str(uuid.uuid4()), "message": OLD}
    path = f"/agents/{agent}/a2a"
    assert codes(rpc(bob, "tasks/send", params, path)) == (403, -32008)
    new = rpc(bob, "SendMessage", {"message": message("hi", "say")}, path, a2a_version="1.0")
    assert codes(new) == (403, -32051)
    assert agent not in new.json["error"]["message"]


@pytest.mark.requirement("SP-11")
def test_what_a_caller_with_some_rights_may_not_call_is_not_there_for_it(door: Hosted) -> None:
    ada = door.as_(KEYS["ada"])
    assert ada.call("echo", "hi").json["result"] == "hi"
    hidden, missing = ada.call("pizza", "hi"), ada.call("pirate", "hi")
    assert (hidden.status, missing.status) == (404, 404)
    assert hidden.error["message"].replace("pizza", "pirate") == missing.error["message"]
    said = []
    for agent in ("pizza", "pirate"):
        request = modern_request("tools/list", {})
        named = {key.replace("-", "_"): value for key, value in request["headers"].items()}
        listed = ada.post(f"/agents/{agent}/mcp", request["json"], content_type="application/json", **named)
        said.append((listed.status, listed.raw.replace(agent.encode(), b"it")))
        reply = rpc(ada, "SendMessage", {"message": message("hi", "order")}, f"/agents/{agent}/a2a", a2a_version="1.0")
        assert codes(reply)[1] == -32602
    assert said[0] == said[1]
    assert said[0][0] == 404


@pytest.mark.requirement("SP-11")
@pytest.mark.parametrize(
    ("rules", "anything"),
    [
        ([], True),
        ([Rule("allow", "bob", "echo")], True),
        ([Rule("allow", "ada")], False),
        ([Rule("deny", "bob"), Rule("allow")], False),
        ([Rule("deny", "bob", "echo"), Rule("allow")], True),
        ([Rule("allow", scope="admin")], False),
    ],
)
def test_a_right_to_anything_is_found_in_the_rules_alone(rules: list[Rule], anything: bool) -> None:
    assert Access(rules).allows_anything(Principal("bob")) is anything
