"""A2A at the gateway: the gateway itself, every agent natively, and who sees what."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3 import AgentCard, LocalAgent
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.gateway_routes import Place, find_place
from agent3.settings import Callbacks, Client, Limits, Rule, Settings
from tests.support.a2a_toy import V1, codes, frames, message, rpc, toy, unary
from tests.support.gateway import Hosted, hosted, run_agent3
from tests.support.gateway import gateway as gateway_process

KEYS = {"ada": "ada-key-of-sixteen", "bob": "bob-key-of-sixteen"}


def pizza() -> LocalAgent:
    agent = LocalAgent("pizza", description="Takes orders for pizza")

    @agent.capability(tags=("food",))
    async def order(text: str) -> str:
        """Order a pizza."""
        return f"ordered: {text}"

    return agent


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("a2a"), [toy(), pizza()]) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    folder = tmp_path_factory.mktemp("guarded")
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(f"{name.upper()}_KEY", key)
        patch.setenv("HOOKS", "whsec_" + "c2VjcmV0LW9mLXRoaXJ0eS10d28tYnl0ZXMtb3Itc28=")
        settings = Settings(
            clients=tuple(Client(id=name, key=f"env:{name.upper()}_KEY") for name in KEYS),
            rules=(Rule("allow", "ada"), Rule("allow", "bob", "pizza")),
            callbacks=Callbacks(secret="env:HOOKS", allow_loopback=True, schemes=("http", "https")),
        )
        with hosted(folder, [toy(), pizza()], settings) as found:
            yield found


def test_paths_lead_to_the_gateway_or_to_an_agent() -> None:
    assert (
        find_place("/a2a") == find_place("/a2a/tasks") == find_place("/.well-known/agent.json") == Place("/a2a", None)
    )
    assert find_place("/agents/pizza/a2a/tasks/1") == Place("/agents/pizza/a2a", "pizza")
    assert find_place("/agents/a2a/a2a") == Place("/agents/a2a/a2a", "a2a")
    for other in ("/a2ab", "/agents/x/a2ab", "/agents/x/y/a2a", "/agents//a2a", "/agents/x/mcp", "/"):
        assert find_place(other) is None


@pytest.mark.requirement("SP-08")
def test_the_gateway_has_a_card_whose_skills_can_be_called(gateway: Hosted) -> None:
    card = gateway.get("/.well-known/agent-card.json").json
    assert card == gateway.get("/.well-known/agent.json").json == gateway.get("/a2a/.well-known/agent-card.json").json
    assert card["url"] == f"{gateway.url}/a2a"
    assert {"ask", "pizza/order", "toy/echo"} <= {skill["id"] for skill in card["skills"]}
    task = unary(rpc(gateway, "SendMessage", {"message": message("hi", "toy/echo")}, "/a2a"))["task"]
    assert task["artifacts"][0]["parts"] == [{"text": "echo: hi"}]


def test_a_plain_message_goes_to_the_agent_that_fits_best(gateway: Hosted) -> None:
    task = unary(rpc(gateway, "SendMessage", {"message": message("a pepperoni pizza", None)}, "/a2a"))["task"]
    assert task["artifacts"][0]["parts"] == [{"text": "ordered: a pepperoni pizza"}]
    lost = rpc(gateway, "SendMessage", {"message": message("zzz", None)}, "/a2a")
    assert "tenant" in lost.json["error"]["message"]


def test_a_skill_or_an_agent_may_be_named_alone(gateway: Hosted) -> None:
    by_skill = unary(rpc(gateway, "SendMessage", {"message": message("one", "order")}, "/a2a"))["task"]
    by_tenant = unary(rpc(gateway, "SendMessage", {"message": message("two", None), "tenant": "pizza"}, "/a2a"))["task"]
    by_agent = unary(rpc(gateway, "SendMessage", {"message": message("three", "pizza")}, "/a2a"))["task"]
    path = gateway.post(
        "/a2a/pizza/message:send", {"message": message("4", None)}, content_type="application/json", **V1
    )
    told = [entry["artifacts"][0]["parts"][0]["text"] for entry in (by_skill, by_tenant, by_agent, path.json["task"])]
    assert told == ["ordered: one", "ordered: two", "ordered: three", "ordered: 4"]


def test_every_agent_is_an_a2a_agent_of_its_own(gateway: Hosted) -> None:
    card = gateway.get("/agents/toy/a2a/.well-known/agent-card.json").json
    assert (card["name"], card["url"]) == ("toy", f"{gateway.url}/agents/toy/a2a")
    task = unary(rpc(gateway, "SendMessage", {"message": message("hi")}, "/agents/toy/a2a"))["task"]
    read = gateway.get(f"/agents/toy/a2a/tasks/{task['id']}", **V1)
    assert read.json["id"] == task["id"]
    # Another agent has no such task, the gateway has.
    assert gateway.get(f"/agents/pizza/a2a/tasks/{task['id']}", **V1).status == 404
    assert gateway.get(f"/a2a/tasks/{task['id']}", **V1).status == 200
    assert gateway.get("/agents/none/a2a/.well-known/agent-card.json").status == 404
    assert codes(rpc(gateway, "SendMessage", {"message": message("x")}, "/agents/none/a2a"))[1] == -32602
    other = {"message": message("x"), "tenant": "pizza"}
    assert codes(rpc(gateway, "SendMessage", other, "/agents/toy/a2a"))[1] == -32602


def test_a_stream_through_the_gateway_is_resumed(gateway: Hosted) -> None:
    told = frames(rpc(gateway, "SendStreamingMessage", {"message": message("time", "story")}, "/agents/toy/a2a"))
    task = told[0][1]["result"]["task"]["id"]
    rest = frames(rpc(gateway, "SubscribeToTask", {"id": task}, "/agents/toy/a2a", last_event_id=told[1][0].id or ""))
    assert rest[1:] == told[2:]


def test_calls_and_refusals_stand_in_the_ledger(gateway: Hosted) -> None:
    unary(rpc(gateway, "SendMessage", {"message": message("ledger")}, "/agents/toy/a2a"))
    rpc(gateway, "SendMessage", {"message": message("x", "none/such")}, "/a2a")
    rows = gateway.rows("calls")
    assert any(row["door"] == "a2a" and row["agent"] == "toy" for row in rows)
    assert any(row["door"] == "a2a" and row["capability"] == "none/such" for row in rows)


def test_pages_of_other_sites_may_not_call(gateway: Hosted) -> None:
    assert rpc(gateway, "SendMessage", {"message": message("x")}, "/a2a", origin="https://evil.example").status == 403
    assert gateway.get("/.well-known/agent-card.json", host="evil.example").status == 403


@pytest.mark.requirement("SP-11")
def test_without_a_key_nothing_but_the_public_card_is_told(guarded: Hosted) -> None:
    card = guarded.get("/.well-known/agent-card.json").json
    assert [skill["id"] for skill in card["skills"]] == ["ask"]
    assert set(card["securitySchemes"]) == {"bearer", "apiKey"}
    for path in ("/a2a", "/agents/pizza/a2a"):
        reply = rpc(guarded, "SendMessage", {"message": message("x")}, path)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
    first = rpc(guarded, "tasks/send", {"id": "t", "message": {"role": "user", "parts": []}}, "/a2a", a2a_version="")
    assert codes(first) == (401, -32007)
    assert guarded.get("/agents/pizza/a2a/.well-known/agent-card.json").status == 401
    assert guarded.get("/a2a/tasks", **V1).status == 401
    assert guarded.get("/a2a/extendedAgentCard", **V1).status == 401


@pytest.mark.requirement("SP-09")
@pytest.mark.requirement("SL-07")
def test_a_caller_sees_and_calls_what_it_may(guarded: Hosted) -> None:
    ada, bob = (guarded.as_(KEYS[name]) for name in ("ada", "bob"))
    seen = {skill["id"] for skill in bob.get("/a2a/extendedAgentCard", **V1).json["skills"]}
    assert seen == {"ask", "pizza/order"}
    own = bob.get("/.well-known/agent-card.json")
    assert {skill["id"] for skill in own.json["skills"]} == seen
    assert "private" in own.headers["cache-control"]
    assert bob.get("/agents/toy/a2a/.well-known/agent-card.json").status == 404
    refused = rpc(bob, "SendMessage", {"message": message("x")}, "/agents/toy/a2a")
    assert codes(refused)[1] == -32602
    task = unary(rpc(ada, "SendMessage", {"message": message("mine")}, "/agents/toy/a2a"))["task"]["id"]
    assert codes(rpc(bob, "GetTask", {"id": task}, "/a2a")) == (200, -32001)
    assert unary(rpc(bob, "ListTasks", {}, "/a2a"))["tasks"] == []


def test_push_configurations_are_kept_without_their_secrets(guarded: Hosted) -> None:
    ada = guarded.as_(KEYS["ada"])
    assert guarded.get("/.well-known/agent-card.json").json["capabilities"]["pushNotifications"] is True
    task = unary(rpc(ada, "SendMessage", {"message": message("Rome", "book")}, "/agents/toy/a2a"))["task"]["id"]
    config = {"taskId": task, "id": "c1", "url": "http://127.0.0.1:9/hook", "token": "very-secret"}
    made = unary(rpc(ada, "CreateTaskPushNotificationConfig", config, "/agents/toy/a2a"))
    assert made["id"] == "c1"
    path = f"/agents/toy/a2a/tasks/{task}/pushNotificationConfigs"
    listed = ada.get(path, **V1)
    assert [config["id"] for config in listed.json["configs"]] == ["c1"]
    assert b"very-secret" not in listed.raw
    assert ada.ask("DELETE", f"{path}/c1", **V1).status == 200
    assert ada.get(path, **V1).json["configs"] == []
    unary(rpc(ada, "CancelTask", {"id": task}, "/agents/toy/a2a"))


def test_what_is_too_long_for_a_name_or_a_query_is_refused_before_it_is_remembered(gateway: Hosted) -> None:
    unknown = rpc(gateway, "GetTask", {"id": "x", "tenant": "t" * 201}, "/a2a")
    assert "Agent 'ttt" in unknown.json["error"]["message"]
    fields = "&".join(f"a-{number}=1" for number in range(101))
    assert codes(rpc(gateway, "GetTask", {"id": "x"}, f"/a2a?{fields}"))[1] == -32001


def test_a_body_that_is_too_large_is_refused(gateway: Hosted) -> None:
    large = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"x": "y" * 1_100_000}}).encode()
    assert gateway.post("/a2a", large, content_type="application/json", **V1).status == 413


AGENTS = """
from agent3 import AgentCard, AgentExecutor

class Desk:
    "Finds things."
    def find(self, what: str) -> str:
        "Find it."
        return f"found {what}"

def shout(text: str) -> str:
    "Say it loud."
    return text.upper()

hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"))
hotel.register_capability("rooms", lambda city: [city])
everything = [Desk, shout, hotel]
"""


def test_the_command_line_serves_functions_classes_and_executors(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text(AGENTS)
    with gateway_process(tmp_path, "house:everything") as served:
        card = served.get("/.well-known/agent-card.json").json
        assert {"desk/find", "shout/shout", "hotel/rooms"} <= {skill["id"] for skill in card["skills"]}
        asked = {"data": {"skill": "rooms", "input": {"city": "Rome"}}}
        told = rpc(served, "SendMessage", {"message": message("", None, parts=[asked])}, "/agents/hotel/a2a")
        assert unary(told)["task"]["artifacts"][0]["parts"] == [{"data": ["Rome"]}]
        assert any("/a2a" in line for line in served.lines)


def test_what_is_no_agent_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text("number = 7")
    refused = run_agent3(tmp_path, "serve", "house:number", cwd=tmp_path)
    assert refused.returncode == 2
    assert "a function, or a class with methods" in refused.stderr


def test_a_stream_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", KEYS["ada"])
    settings = Settings(clients=(Client(id="ada", key="env:ADA_KEY"),), limits=Limits(per_minute=0.1, burst=1))
    with hosted(tmp_path, [toy()], settings) as found:
        ada = found.as_(KEYS["ada"])
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": "none"}}
        headers = {**ada.headers, "content-type": "application/json", "a2a-version": "1.0"}
        connection = found.connect()
        told = []
        for number in range(11):  # ten times as often as calls, which come one at a time
            if number < 5:
                told.append(rpc(ada, "SubscribeToTask", {"id": "none"}, "/a2a").json["error"]["code"])
            else:
                connection.request("POST", "/a2a", json.dumps(body), headers)
                told.append(json.loads(connection.getresponse().read())["error"]["code"])
        connection.close()
        assert told[:10] == [-32001] * 10
        assert told[10] != -32001


def test_a_card_of_many_skills_is_bounded_built_off_the_loop_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    sign = CardKey.sign

    def noting(self: CardKey, card: AgentCard, jku: str | None = None) -> AgentCard:
        threads.append(threading.current_thread())
        return sign(self, card, jku)

    monkeypatch.setattr(CardKey, "sign", noting)
    many = LocalAgent("many")
    for number in range(300):
        many.add(lambda text: text, name=f"do-{number}")
    path = "/.well-known/agent-card.json"
    with hosted(tmp_path, [many]) as served:
        loop = served.run(current_thread())
        first = served.get(path)
        assert len(first.json["skills"]) == 251
        assert "first 250 skills" in first.json["description"]
        assert threads
        assert loop not in threads
        count = len(threads)
        assert served.get(path).json == first.json
        assert served.get(path, if_none_match=first.headers["etag"]).status == 304
        assert len(threads) == count, "a card that did not change is written once"
        later = LocalAgent("early", description="Comes later, and before the others")
        later.add(lambda text: text, name="come")
        served.run(served.server.gateway.directory.add(later.agent))
        assert "early/come" in {skill["id"] for skill in served.get(path).json["skills"]}


async def current_thread() -> threading.Thread:
    return threading.current_thread()


def test_a_plain_message_goes_to_the_only_agent_that_its_caller_has(guarded: Hosted) -> None:
    for who, is_served in (("bob", True), ("ada", False)):
        said = rpc(guarded.as_(KEYS[who]), "SendMessage", {"message": message("zzz", None)}, "/a2a")
        assert ("error" not in said.json) is is_served
        if is_served:
            assert unary(said)["task"]["artifacts"][0]["parts"] == [{"text": "ordered: zzz"}]
