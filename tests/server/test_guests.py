"""Who comes again with the same headers: answered without being looked at anew, but never after something changed."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import http.client
import itertools
import json
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.model import Agent
from agent3.protocols.functions import LocalAgent
from agent3.protocols.mcp.door import agent_endpoints
from agent3.protocols.mcp.door.agent_endpoints import AgentEndpoints
from agent3.server.connection import KnownHeads
from agent3.settings import Calls, Client, Limits, Rule, Settings
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request

KEYS = {"cook": "the-key-of-the-cook", "guest": "the-key-of-a-guest-", "waiter": "the-key-of-waiters-"}
CLIENTS = tuple(Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())
RULES = (Rule("deny", principal="guest"), Rule("deny", principal="waiter", capability="cook"), Rule("allow"))
OFTEN = Limits(per_minute=60_000, burst=1_000)
"""So often that a process fetches the room for many calls at once, without which none is prepared."""
SETTINGS = Settings(calls=Calls(ledger="batched"), limits=OFTEN, clients=CLIENTS, rules=RULES)


async def cook(dish: str) -> str:
    """Cook a dish."""
    return f"Here is your {dish}"


async def burn(dish: str) -> str:
    """Burn a dish."""
    raise RuntimeError(f"The {dish} is on fire")


NUMBERS = itertools.count(1)


def kitchen() -> LocalAgent:
    agent = LocalAgent(f"kitchen-{next(NUMBERS)}")
    for fn in (cook, burn):
        agent.add(fn)
    return agent


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A gateway where every test has a kitchen of its own."""
    with hosted(tmp_path_factory.mktemp("guests"), [], SETTINGS) as house:
        yield house


class Talk:
    """One kept connection of one client. ``known`` counts the requests whose head was known."""

    def __init__(self, house: Hosted, agent: str, known: list[bytes], key: str):
        self.house = house
        self.agent = agent
        self.key = key
        self._known = known
        self._connection = house.connect()

    @property
    def known(self) -> int:
        return len(self._known)

    def call(self, tool: str = "cook", dish: Any = "soup", *, key: str = "", **headers: str) -> tuple[int, Any]:
        asked = modern_request("tools/call", {"name": tool, "arguments": {"dish": dish}})
        return self.ask(asked["json"], key=key, **asked["headers"], **headers)

    def ask(
        self, body: Any, *, key: str = "", method: str = "POST", at: str = "/mcp", **headers: str
    ) -> tuple[int, Any]:
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {key or self.key}", **headers}
        self._connection.request(method, f"/agents/{self.agent}{at}", json.dumps(body), given)
        answer = self._connection.getresponse()
        raw = answer.read()
        self.headers = answer.headers
        return answer.status, json.loads(raw) if raw.startswith(b"{") else raw

    def said(self, **more: Any) -> str:
        """The text of an answer."""
        status, body = self.call(**more)
        assert status == 200, body
        return str(body["result"]["content"][0]["text"])

    def rows(self) -> list[dict[str, Any]]:
        """What the ledger has of it."""
        return [row for row in self.house.rows("calls") if row["agent"] == self.agent]

    def close(self) -> None:
        self._connection.close()


@contextmanager
def talking(house: Hosted, monkeypatch: pytest.MonkeyPatch, agent: LocalAgent | None = None) -> Iterator[Talk]:
    """A client whose next call has a head that is known."""
    found: list[bytes] = []
    find = KnownHeads.find

    def counting(heads: KnownHeads[Any], data: bytes) -> Any:
        known = find(heads, data)
        if known is not None and not known[2]:
            found.append(data)
        return known

    monkeypatch.setattr(KnownHeads, "find", counting)
    mine = agent or kitchen()
    house.server.core.connectors["local"].add(mine)  # type: ignore[attr-defined]
    house.server.directory.host(mine.agent)
    talk = Talk(house, mine.id, found, KEYS["cook"])
    try:
        for _ in range(3):  # seen by the SDK, answered by the lane, known
            talk.said()
        assert talk.known == 1
        yield talk
    finally:
        talk.close()


def test_every_call_of_a_guest_is_answered_recorded_and_counted(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talking(shared, monkeypatch) as talk:
        before = _invocations(talk)
        for dish in ("soup", "cake", "a very large pizza", "ümlaut \u202eeci"):
            assert talk.said(dish=dish) == f"Here is your {dish}".replace("\u202e", "")
        assert talk.known == 5
        rows = talk.rows()
        assert [(row["principal"], row["status"], row["door"]) for row in rows] == [("cook", "done", "mcp")] * 7
        assert len({row["id"] for row in rows}) == 7
        assert _invocations(talk) - before == 4


def _invocations(talk: Talk) -> float:
    page = talk.house.server.metrics.render()[0].decode()
    lines = [one for one in page.splitlines() if one.startswith('mcp_tool_invocations_total{status="success"')]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_guest_hears_the_same_refusals(shared: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(shared, monkeypatch) as talk:
        status, body = talk.call(dish=5)
        assert (status, talk.known) == (200, 2)
        assert body["result"]["isError"]
        assert body["result"]["structuredContent"]["code"] == "invalid_input"
        for _ in range(3):
            status, body = talk.call("burn")
            assert status == 200
            assert body["result"]["isError"]
        assert talk.known > 2
        codes = [row["code"] for row in talk.rows()]
        assert codes.count("invalid_input") == 1
        assert len(codes) == 7


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        ("the-key-of-the-cooc", 401, "unauthenticated"),
        (KEYS["guest"], 403, "forbidden"),
        (KEYS["waiter"], 400, "Unknown tool: cook"),  # as a tool that is not there
    ],
    ids=["unknown", "forbidden agent", "forbidden tool"],
)
def test_another_key_is_another_head(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch, key: str, status: int, code: str
) -> None:
    with talking(shared, monkeypatch) as talk:
        for _ in range(3):
            found, body = talk.call(key=key)
            assert found == status
            assert code in json.dumps(body)
        assert talk.said() == "Here is your soup"
        assert {row["principal"] for row in talk.rows() if row["status"] == "done"} == {"cook"}


def test_an_agent_that_is_gone_suspended_or_back_is_noticed_at_once(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talking(shared, monkeypatch) as talk:
        directory = talk.house.server.directory
        agent = directory._hosted.pop(talk.agent)  # hosted agents never leave by themselves
        assert talk.call()[0] == 404
        directory.host(replace(agent, status="suspended"))
        status, body = talk.call()
        assert (status, body["error"]["data"]["code"]) == (404, "agent_not_found")
        directory.host(agent)
        assert talk.said() == "Here is your soup"
        directory.host(replace(agent, capabilities=agent.capabilities[1:]))
        status, body = talk.call()
        assert body["error"]["message"] == "Unknown tool: cook"


def test_a_door_that_was_closed_is_not_kept_by_its_guests(shared: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    init = agent_endpoints._Door.__init__

    def noting(door: Any, doors: AgentEndpoints, agent: Agent) -> None:
        init(door, doors, agent)
        made.append(weakref.ref(door))

    monkeypatch.setattr(agent_endpoints._Door, "__init__", noting)
    with talking(shared, monkeypatch) as talk:
        directory = talk.house.server.directory
        directory.host(
            replace(directory._hosted[talk.agent], version="2")
        )  # which the door says of it, so it is closed
        assert talk.said() == "Here is your soup"
        deadline = time.monotonic() + 60
        while made[0]() is not None and time.monotonic() < deadline:
            talk.house.run(_collected())
        assert made[0]() is None
        assert made[1]() is not None


async def _collected() -> None:
    await asyncio.sleep(0.01)
    gc.collect()


def test_a_function_that_was_replaced_or_taken_back_is_not_run(shared: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fry(dish: str) -> str:
        return f"Fried {dish}"

    agent = kitchen()
    with talking(shared, monkeypatch, agent=agent) as talk:
        agent.remove("cook")
        agent.add(fry, name="cook")
        assert talk.said() == "Fried soup"
        agent.remove("cook")
        assert "no longer offers" in talk.said()


def test_a_changed_schema_counts_from_its_registration_on(shared: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(shared, monkeypatch) as talk:
        directory = talk.house.server.directory
        agent = directory._hosted[talk.agent]
        narrow = {"type": "object", "properties": {"dish": {"enum": ["cake"]}}}
        first = replace(agent.capabilities[0], input_schema=narrow)
        directory.host(replace(agent, capabilities=(first, *agent.capabilities[1:])))
        for _ in range(3):
            status, body = talk.call()
            assert (status, body["result"]["isError"]) == (200, True)
            assert talk.said(dish="cake") == "Here is your cake"


def test_a_limit_holds_for_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, limits=Limits(per_minute=0.001, burst=5))
    with hosted(tmp_path, [], settings) as house, talking(house, monkeypatch) as talk:
        refused = [talk.call()[1]["result"]["isError"] for _ in range(4)]
        assert refused == [False, False, True, True]
        assert talk.known == 5
        codes = [row["code"] for row in talk.rows()]  # refusals are written at once, the others later
        assert sorted(map(str, codes)) == ["None"] * 5 + ["rate_limited"] * 2


def test_an_open_circuit_holds_for_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, calls=Calls(ledger="batched", breaker_failures=1))
    with hosted(tmp_path, [], settings) as house, talking(house, monkeypatch) as talk:
        talk.house.server.core.parts.breakers.add_failure(f"local:{talk.agent}")
        status, body = talk.call()
        assert (status, body["result"]["structuredContent"]["code"]) == (200, "circuit_open")
        talk.house.server.core.parts.breakers.reset(f"local:{talk.agent}")
        assert talk.said() == "Here is your soup"


def test_a_legacy_session_that_was_ended_is_not_served_any_more(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talking(shared, monkeypatch) as talk:
        common = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        talk.ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}, **common)
        common["Mcp-Session-Id"] = str(talk.headers["Mcp-Session-Id"])
        talk.ask({"jsonrpc": "2.0", "method": "notifications/initialized"}, **common)
        params = {"name": "cook", "arguments": {"dish": "soup"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        before = talk.known
        answers = [talk.ask(call, **common) for _ in range(3)]
        assert talk.known == before + 2
        assert {status for status, _ in answers} == {200}
        assert talk.ask(call, key=KEYS["waiter"], **common)[0] == 404
        assert talk.ask(None, method="DELETE", **common)[0] == 200
        assert talk.ask(call, **common)[0] == 404


def test_headers_that_differ_from_the_body_are_refused_also_where_they_are_known(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talking(shared, monkeypatch) as talk:
        asked = modern_request("tools/call", {"name": "cook", "arguments": {"dish": "soup"}})
        other = modern_request("tools/call", {"name": "burn", "arguments": {"dish": "soup"}})
        status, body = talk.ask(other["json"], **asked["headers"])
        assert talk.known == 2
        assert status == 400
        assert "error" in body
        assert [row["capability"] for row in talk.rows()] == ["cook"] * 3


def test_a_result_that_only_the_other_lane_can_tell_is_told_without_a_second_call(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    async def paint(dish: str) -> bytes:
        """Paint it."""
        made.append(dish)
        return b"\x89PNG"

    agent = kitchen()
    agent.add(paint)
    with talking(shared, monkeypatch, agent=agent) as talk:
        for number in range(4):
            status, body = talk.call("paint", f"soup {number}")
            assert status == 200
            assert body["result"]["content"][0]["type"] in ("resource", "image", "blob")
        assert made == [f"soup {number}" for number in range(4)]


def test_http_of_a_guest_is_that_of_everybody(shared: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(shared, monkeypatch) as talk:
        known = _answer(talk)
        assert talk.known == 2
        first = _answer(talk, **{"X-New": "1"})
        assert talk.known == 2
        assert known == first


def _answer(talk: Talk, **headers: str) -> tuple[int, list[str], Any]:
    status, body = talk.call(**headers)
    names = [name for name, _ in http.client.HTTPMessage.items(talk.headers)]
    return status, names, body


@pytest.mark.parametrize("below", ["", "/message:send"])
def test_each_request_of_a_guest_has_the_trace_that_it_brings(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    with talking(shared, monkeypatch) as talk:
        traces = [f"{number:032x}" for number in range(0xA1, 0xA6)]
        known = talk.known
        for trace in traces:
            said = {"messageId": trace, "role": "ROLE_USER", "parts": [{"data": {"dish": "soup"}}]}
            sent = {"message": {**said, "metadata": {"skillId": "cook"}}}
            body = sent if below else {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": sent}
            headers = {"A2A-Version": "1.0", "traceparent": f"00-{trace}-{'b' * 16}-01"}
            status, answer = talk.ask(body, at=f"/a2a{below}", **headers)
            assert status == 200, answer
            task = answer["task"] if below else answer["result"]["task"]
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert talk.known > known
        assert {row["trace"] for row in talk.rows()} >= set(traces)


def test_a_refusal_over_rest_has_its_status_also_where_the_head_is_known(
    shared: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talking(shared, monkeypatch) as talk:

        def send(message: Any, verb: str = "send") -> int:
            return talk.ask({"message": message}, at=f"/a2a/message:{verb}", **{"A2A-Version": "1.0"})[0]

        said = {"role": "ROLE_USER", "parts": [{"data": {"dish": "soup"}}], "metadata": {"skillId": "cook"}}
        known = talk.known
        assert [send({**said, "messageId": f"m{number}"}) for number in range(3)] == [200] * 3
        assert talk.known > known
        assert send({**said, "messageId": "m3", "taskId": "no-such-task"}) == 404
        assert send({}) == 400
        assert send(said, "sing") == 404
