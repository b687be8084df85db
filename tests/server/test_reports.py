"""What was called, seen from outside: REST and commands, callers and operators, prices, and what a gateway measures."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.queue import Queue
from agent3.security.access import OPERATE
from agent3.server.demo import agents
from agent3.settings import Budget, Client, Limits, Rate, Rule, Settings
from tests.support.a2a_peers import official
from tests.support.forks import Forked
from tests.support.gateway import Door, Hosted, environment, gateway, hosted, run_agent3
from tests.support.registration import add

KEYS = {"alice": "the-key-of-alice-1", "bob": "the-key-of-bob-12", "operator": "the-key-of-the-operator"}
PREFIXED = "=HYPERLINK(1)"


def clients() -> tuple[Client, ...]:
    return tuple(
        Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", (OPERATE,) if name == "operator" else ())
        for name, key in KEYS.items()
    )


def failing() -> LocalAgent:
    agent = LocalAgent("Shaky", description="Fails as it is told")

    @agent.capability
    def work(message: str) -> str:
        """Do it, or not."""
        if message == "fail":
            raise RuntimeError("it broke")
        return message

    @agent.capability
    def secret(message: str) -> str:
        """What alice may not call."""
        return message

    return agent


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(
        clients=clients(),
        limits=Limits(per_minute=0),
        rules=(Rule("deny", principal="alice", agent="shaky", capability="secret"), Rule("allow")),
        rates=(Rate(per_minute=1, burst=2, agent="echo", each="client"),),
        budgets=(Budget(usd=0.002, principal="bob", agent="pizza", action="refuse"),),
    )
    with hosted(tmp_path_factory.mktemp("reports"), [*agents(), failing()], settings, Metrics()) as running:
        for who in ("alice", "bob"):
            door = running.as_(KEYS[who])
            door.call("shaky", "fine", capability="work")
            door.call("shaky", "fail", capability="work")
            door.call("shaky", "hidden", capability="secret")
            door.call("nobody", PREFIXED, capability=PREFIXED)
        running.rows("calls")  # everything is on disk
        yield running


def listed(door: Door, **query: str) -> list[dict[str, Any]]:
    found = door.get("/v1/calls?" + "&".join(f"{name}={quote(value)}" for name, value in query.items()))
    assert found.status == 200, found.raw
    calls: list[dict[str, Any]] = found.json["calls"]
    return calls


@pytest.mark.requirement("AC-20", "AC-26")
def test_every_call_is_listed_with_what_became_of_it(house: Hosted) -> None:
    operator = house.as_(KEYS["operator"])
    (failed,) = listed(operator, agent="shaky", status="failed", caller="alice")
    assert (failed["code"], failed["capability"], failed["door"]) == ("target_failed", "work", "rest")
    assert "it broke" in failed["message"]
    assert (failed["protocol"], failed["attempts"]) == ("local", 1)
    assert failed["seconds"] > 0
    one = operator.get(f"/v1/calls/{failed['id']}").json
    assert one == operator.get(f"/v1/calls/{failed['id']}/record").json
    assert one["turns"] == [failed]
    assert {call["caller"] for call in listed(operator)} == {"alice", "bob"}


def test_a_caller_sees_neither_the_calls_of_others_nor_what_it_may_not_call(house: Hosted) -> None:
    alice, bob = house.as_(KEYS["alice"]), house.as_(KEYS["bob"])
    assert {call["caller"] for call in listed(alice)} == {"alice"}
    assert listed(alice, caller="bob") == []
    (other,) = listed(bob, status="failed")
    for path in (f"/v1/calls/{other['id']}", f"/v1/calls/{other['id']}/record"):
        assert alice.get(path).status == 404
    assert listed(alice, trace=other["trace"]) == listed(alice, job=other["job"]) == []
    hidden = [call for call in listed(alice) if call["capability"] == "secret"]
    nothing = [call for call in listed(alice) if call["agent"] == "nobody"]
    assert {call["status"] for call in (*hidden, *nothing)} == {"refused"}
    refused = [*hidden, *nothing]
    assert all(call in listed(alice, status="refused") for call in refused)
    assert all(call in listed(alice, code="capability_not_found") for call in hidden)
    assert listed(alice, status="denied") == []  # which would tell what is hidden from what is not there
    stats = alice.get("/v1/calls/stats?by=agent,caller,capability").json["statistics"]
    for status in ("failed", "refused"):  # the list and the statistics count alike
        assert sum(one[status] for one in stats) == len(listed(alice, status=status))
    assert {one["caller"] for one in stats} == {"alice"}
    assert "secret" not in {one["capability"] for one in stats}
    assert alice.get("/v1/calls/stats?by=caller&caller=bob").json["statistics"] == []


def test_pages_follow_each_other_by_their_cursor(house: Hosted) -> None:
    operator = house.as_(KEYS["operator"])
    wanted = [call["id"] for call in listed(operator, limit="100")]
    found: list[str] = []
    cursor = ""
    for _ in range(100):
        page = operator.get(f"/v1/calls?limit=3&cursor={cursor}").json
        found += [call["id"] for call in page["calls"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == wanted


def test_csv_has_a_line_for_each_call_and_no_formula(house: Hosted) -> None:
    operator = house.as_(KEYS["operator"])
    page = operator.get("/v1/calls?format=csv&limit=2&caller=alice")
    assert page.headers["content-type"].startswith("text/csv")
    assert page.headers["x-next-cursor"]
    lines = list(csv.DictReader(io.StringIO(operator.get("/v1/calls", accept="text/csv").raw.decode())))
    assert len(lines) == len(listed(operator, limit="1000"))
    assert {line["capability"] for line in lines if line["agent"] == "nobody"} == {f"'{PREFIXED}"}


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/v1/calls?colour=red", "colour"),
        ("/v1/calls?agentId=x", "Did you mean 'agent'?"),
        ("/v1/calls?limit=x", "limit"),
        ("/v1/calls?limit=100000", "limit"),
        ("/v1/calls?since=yesterday", "since"),
        ("/v1/calls?cursor=zzz", "cursor"),
        ("/v1/calls?format=xml", "format"),
        ("/v1/calls/stats?by=colour", "by"),
        *((f"/v1/calls/stats?since={text}", "since") for text in ("nan", "inf", "-1e300")),
        ("/v1/calls?agent=" + "x" * 2_000, "agent"),
    ],
)
def test_a_wrong_filter_is_named(house: Hosted, path: str, word: str) -> None:
    refused = house.as_(KEYS["alice"]).get(path)
    assert (refused.status, refused.error["code"]) == (422, "invalid_input")
    assert word in refused.error["message"]


@pytest.mark.requirement("AC-18")
def test_a_rate_of_an_agent_answers_429_with_retry_after(house: Hosted) -> None:
    bob = house.as_(KEYS["bob"])
    replies = [bob.call("echo", "hi") for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["retry-after"]) <= 60
    assert replies[2].json["errorCode"] == "rate_limited"
    assert house.as_(KEYS["alice"]).call("echo", "hi").status == 200


@pytest.mark.requirement("AC-19", "AC-26")
def test_a_spent_budget_answers_402_and_says_when_it_opens(house: Hosted) -> None:
    bob = house.as_(KEYS["bob"])
    replies = [bob.call("pizza", "", capability="order", input={"message": "a large tuna pizza"}) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 402]
    assert replies[2].json["errorCode"] == "budget_exceeded"
    assert 1 <= int(replies[2].headers["retry-after"]) <= 86_400
    day = house.as_(KEYS["operator"]).get("/v1/calls/stats?by=caller,agent,day&agent=pizza").json["statistics"]
    assert [(one["caller"], one["calls"], one["refused"]) for one in day] == [("bob", 3, 1)]
    assert day[0]["cost"] == pytest.approx(0.002)


def test_only_an_operator_sets_prices(house: Hosted) -> None:
    body = {"agentId": "shaky", "capability": "work", "price": {"call": 0.25}}
    refused = house.as_(KEYS["alice"]).post("/v1/prices", body)
    assert (refused.status, refused.error["code"]) == (403, "forbidden")
    operator = house.as_(KEYS["operator"])
    assert operator.post("/v1/prices", body).json["prices"][0]["call"] == 0.25
    assert operator.call("shaky", "fine", capability="work").json["metadata"]["cost"] == 0.25
    shown = operator.get("/v1/agents/shaky").json["capabilities"]
    assert {one["name"]: one["price"].get("call") for one in shown} == {"work": 0.25, "secret": None}
    mistakes: list[Any] = [
        {"agentId": 1},
        {"agentId": "a", "price": {"call": "x"}},
        {"agentId": "a", "price": {"call": -1}},
        [],
    ]
    for wrong in mistakes:
        assert operator.post("/v1/prices", wrong).status == 422
    assert operator.post("/v1/prices", {**body, "price": None}).json["prices"] == []


@pytest.mark.requirement("AC-06")
def test_only_who_has_called_an_agent_rates_it_and_nobody_rates_itself(tmp_path: Path) -> None:
    own = LocalAgent("alice")

    @own.capability
    def say(message: str) -> str:
        """Say it again."""
        return message

    settings = Settings(clients=clients(), limits=Limits(per_minute=0))
    with hosted(tmp_path, [*agents(), own], settings) as house:
        alice, bob = house.as_(KEYS["alice"]), house.as_(KEYS["bob"])
        refused = alice.post("/v1/feedback", {"agentId": "echo", "rating": 5})
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
        assert "has called 'echo'" in refused.error["message"]
        alice.call("echo", "hi", metadata={"userAgentId": "echo"})  # as the agent itself
        assert alice.post("/v1/feedback", {"agentId": "echo", "rating": 5}).status == 403
        alice.call("echo", "hi")
        assert alice.post("/v1/feedback", {"agentId": "echo", "rating": 5}).json["rating"]["count"] == 1
        assert alice.post("/v1/feedback", {"agentId": "echo", "rating": 1}).json["rating"] == {"count": 1, "mean": 1.0}
        for door in (alice, bob):
            door.call("alice", "hi")
        assert alice.post("/v1/feedback", {"agentId": "alice", "rating": 5}).status == 403
        assert bob.post("/v1/feedback", {"agentId": "alice", "rating": 5}).status == 200


# What a gateway measures


@pytest.mark.requirement("RT-014-O02", "RT-014-O05")
def test_a2a_messages_and_the_depth_of_mailboxes_are_counted_at_a_gateway(tmp_path: Path) -> None:
    with official() as peer, hosted(tmp_path, agents()) as house:
        house.run(add(house.server, peer.url, "Talker"))
        before = _samples(house, "a2a_messages_sent_total")
        assert house.call("talker", "say hello").json["success"]
        message = {"role": "ROLE_USER", "messageId": "m1", "parts": [{"text": "hello"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        said = house.post("/agents/echo/a2a", body, content_type="application/json", a2a_version="1.0")
        assert "result" in said.json, said.raw
        after = _samples(house, "a2a_messages_sent_total")
        grown = {labels for labels, value in after.items() if value > before.get(labels, 0.0)}
        assert grown == {
            (("from_agent", "agent3"), ("message_type", "request"), ("to_agent", "talker")),
            (("from_agent", "local"), ("message_type", "request"), ("to_agent", "echo")),
        }

        async def fill() -> None:
            queue = Queue(house.server.database, "a2a:sleepy")
            for _ in range(3):
                await queue.put(b"hello")
            await queue.aclose()

        house.run(fill())
        house.get("/metrics")
        assert _samples(house, "a2a_message_queue_depth")[(("agent_id", "sleepy"),)] == 3


@pytest.mark.requirement("RT-014-M01", "RT-014-O01")
def test_the_mcp_operations_of_rt_014_are_measured_at_a_gateway(tmp_path: Path) -> None:
    with hosted(tmp_path, agents()) as house:
        before = _samples(house, "mcp_operation_latency_seconds_count")
        headers = {"content_type": "application/json", "accept": "application/json, text/event-stream"}

        def ask(path: str, method: str, **params: Any) -> None:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            }
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            more = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
            named = {"mcp_name": str(params["name"])} if "name" in params else {}
            reply = house.post(path, body, **headers, **more, **named)
            assert b'"result"' in reply.raw, reply.raw

        ask("/mcp", "tools/list")
        ask("/mcp", "tools/call", name="agent3_search", arguments={"query": "echo"})
        ask("/mcp", "tools/call", name="agent3_call", arguments={"agentId": "echo", "message": "hi"})
        ask("/agents/echo/mcp", "tools/list")
        ask("/agents/echo/mcp", "tools/call", name="say", arguments={"message": "hi"})
        after = _samples(house, "mcp_operation_latency_seconds_count")
        grown = {dict(labels)["operation"]: value - before.get(labels, 0.0) for labels, value in after.items()}
        assert grown["list_tools"] == 2
        assert grown["invoke_tool_simple"] == 2
        assert grown["invoke_tool_complex"] == 1
        assert grown["validate_schema"] == 2


def test_calls_are_counted_by_agent_but_not_by_names_that_do_not_exist(house: Hosted) -> None:
    house.as_(KEYS["alice"]).call("no-such-agent", "hi")
    labels = [dict(one) for one in _samples(house, "agent3_calls_total")]
    assert {
        "agent": "shaky",
        "door": "rest",
        "protocol": "local",
        "status": "failed",
        "code": "target_failed",
    } in labels
    assert "no-such-agent" not in {one["agent"] for one in labels}


def _samples(house: Hosted, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in house.server.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


# Commands


@pytest.mark.requirement("AC-20", "AC-26")
def test_the_commands_list_show_count_follow_and_export(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with gateway(data, "--demo") as door:
        door.call("echo", "hello")
        door.call("calculator", "2 +")
        page = json.loads(run_agent3(data, "calls", "list", "--json").stdout)
        assert [call["agent"] for call in page["calls"]] == ["calculator", "echo"]
        assert "calculator/calculate" in run_agent3(data, "calls", "list", "--status", "failed").stdout
        shown = run_agent3(data, "calls", "show", page["calls"][1]["id"])
        assert "echo/say, turn 1: done" in shown.stdout
        assert run_agent3(data, "calls", "show", "nothing").returncode == 4
        counted = json.loads(run_agent3(data, "calls", "stats", "--by", "agent,caller", "--json").stdout)
        assert {(one["agent"], one["calls"]) for one in counted["statistics"]} == {("echo", 1), ("calculator", 1)}

        priced = run_agent3(data, "price", "calculator.calculate", "--call", "0.5", "--json")
        assert json.loads(priced.stdout)["prices"][0]["capability"] == "calculate"
        assert door.call("calculator", "2 + 3").json["metadata"]["cost"] == 0.5
        forgotten = run_agent3(data, "price", "calculator.calculate", "--unset").stdout
        assert forgotten == "calculator.calculate: price removed.\n"
        assert run_agent3(data, "price", "calculator.nothing", "--call", "0.5").returncode == 4
        assert run_agent3(data, "price", "nobody", "--call", "0.5").returncode == 4
        assert run_agent3(data, "price", "calculator").returncode == 2

        follow = ["calls", "tail", "--json", "--agent", "echo"]
        with Forked(follow, env=environment(data), cwd=data, stderr=data / "tail.log") as tail:
            said = data / "tail.log"
            try:
                _eventually(lambda: said.exists() and "Following" in said.read_text())
                seen = door.call("echo", "seen").json["metadata"]
                assert json.loads(_first_line(tail))["tokens"] == seen["tokensUsed"]
            finally:
                tail.kill()

        file = data / "calls.csv"
        assert run_agent3(data, "calls", "export", str(file)).returncode == 0
        assert len(list(csv.DictReader(file.read_text().splitlines()))) == 4
        assert run_agent3(data, "calls", "export", str(file)).returncode == 2
        lines = run_agent3(data, "calls", "export", "--format", "json", "--agent", "echo").stdout.splitlines()
        assert [json.loads(line)["agent"] for line in lines] == ["echo", "echo"]
    # Without a running gateway they read the database itself.
    assert "echo/say" in run_agent3(data, "calls", "list").stdout


def _eventually(true: Any) -> None:
    waiting = threading.Event()
    for _ in range(600):
        if true():
            return
        waiting.wait(0.1)
    raise AssertionError("it never became true")


def _first_line(process: Forked) -> str:
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(process.stdout.readline()), daemon=True)
    reader.start()
    reader.join(60)
    assert found, "nothing was printed"
    return found[0]
