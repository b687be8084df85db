"""Who gets in, and what they see: keys, hosts, origins, rules, rates, and the health of the house."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent3.errors import SetupError, Unavailable
from agent3.identity.doorkeeper import Doorkeeper, is_loopback
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.server.demo import agents
from agent3.settings import Calls, Client, Limits, Rule, Server, Settings
from tests.support.gateway import Door, Hosted, hosted

KEY = "a-key-of-many-characters"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
MCP_HEADERS = {"content_type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """On loopback, nobody configured."""
    with hosted(tmp_path_factory.mktemp("open"), agents()) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """With clients, a slow rate, and rules."""
    settings = Settings(
        clients=(Client("me", f"sha256:{DIGEST}"), Client("trusted", "env:TRUSTED_KEY", ("kitchen",))),
        limits=Limits(per_minute=1, burst=2),
        rules=(
            Rule("allow", principal="trusted", scope="kitchen"),
            Rule("deny", agent="pizza"),
            Rule("deny", agent="story", capability="guess"),
            Rule("allow"),
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUSTED_KEY", "the-key-of-the-trusted")
        with hosted(tmp_path_factory.mktemp("guarded"), agents(), settings) as running:
            yield running


def mcp(door: Door, body: Any = HELLO, **headers: str) -> tuple[int, str]:
    reply = door.post("/mcp", body, **MCP_HEADERS, **headers)
    return reply.status, reply.raw.decode()


# Who


def test_on_loopback_without_clients_nobody_is_asked_for_a_key(open_house: Hosted) -> None:
    assert open_house.call("echo", "hi").json["result"] == "hi"
    assert mcp(open_house)[0] == 200
    for path in ("/mcp/", "/agents/echo/mcp", "/agents/echo/mcp/"):  # a slash at the end is no other place
        assert open_house.post(path, HELLO, **MCP_HEADERS).status == 200, path


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}, {"x_api_key": ""}]
)
def test_without_a_known_key_nobody_gets_in_and_it_is_counted(guarded: Hosted, headers: dict[str, str]) -> None:
    before = _failures(guarded)
    refused = guarded.get("/v1/agents", **headers)
    assert (refused.status, refused.error["code"]) == (401, "unauthenticated")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "agent3 client add" in refused.error["message"]
    for path in ("/mcp", "/mcp/"):
        reply = guarded.post(path, HELLO, **MCP_HEADERS, **headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
    assert _failures(guarded) == before + 3


def _failures(door: Door) -> float:
    lines = door.get("/metrics").raw.decode().splitlines()
    return float(next(line for line in lines if line.startswith("mcp_auth_failures_total ")).split()[1])


@pytest.mark.parametrize("name", ["authorization", "x_api_key"])
def test_a_key_is_taken_in_either_header(guarded: Hosted, name: str) -> None:
    value = f"bearer {KEY}" if name == "authorization" else KEY
    assert guarded.get("/v1/agents", **{name: value}).status == 200
    assert mcp(guarded, **{name: value})[0] == 200


def test_health_and_metrics_need_no_key(guarded: Hosted) -> None:
    assert [guarded.get(path).status for path in ("/healthz", "/readyz", "/metrics", "/openapi.json")] == [200] * 4


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("plain-text-key", "must be env:NAME or sha256:"),
        ("sha256:" + "g" * 64, "must be env:NAME or sha256:"),
        ("env:NOT_SET", "NOT_SET"),
        ("env:SHORT", "at least 16 characters"),
    ],
)
def test_a_client_whose_key_cannot_be_used_keeps_the_gateway_from_starting(key: str, words: str) -> None:
    with pytest.raises(SetupError, match="clients") as refusal:
        Doorkeeper(Settings(clients=(Client("me", key),)), Metrics(), {"SHORT": "short"})
    assert words in refusal.value.message
    assert "plain-text-key" not in refusal.value.message


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ((Client("a", f"sha256:{'0' * 64}"), Client("b", f"sha256:{'0' * 64}")), "'b' has the same key as 'a'"),
        ((Client("local", f"sha256:{'0' * 64}"),), "'local' cannot be"),
    ],
)
def test_no_client_passes_for_another_one_or_for_the_local_person(clients: tuple[Client, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Doorkeeper(Settings(clients=clients), Metrics())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "gateway.example.com", "127.evil.example"])
def test_an_open_address_without_clients_is_refused(host: str) -> None:
    with pytest.raises(SetupError, match=r"\[\[clients\]\]"):
        Doorkeeper(Settings(server=Server(host=host)), Metrics())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_is_known_in_all_its_forms(host: str) -> None:
    assert is_loopback(host)


# From where


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "testserver"])
def test_a_foreign_host_is_refused_at_every_door(open_house: Hosted, host: str) -> None:
    for path in ("/v1/agents", "/healthz", "/metrics", "/"):
        assert open_house.get(path, host=host).error["code"] == "blocked"
    assert mcp(open_house, host=host)[0] in (403, 421)


_PING = (
    "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: 40\r\n\r\n"
    '{"jsonrpc":"2.0","id":1,"method":"ping"}'
)


@pytest.mark.parametrize("path", ["/v1/agents", "/mcp", "/a2a", "/ask"])
def test_a_request_with_two_keys_or_two_hosts_is_nobodys(guarded: Hosted, path: str) -> None:
    place = urlsplit(guarded.url)
    own = {"Host": place.netloc, "Authorization": f"Bearer {KEY}"}
    for name, other in (("Host", "evil.example"), ("Authorization", "Bearer the-key-of-the-trusted")):
        for pair in ((own[name], other), (other, own[name])):
            fields = [(key, value) for key, value in own.items() if key != name] + [(name, value) for value in pair]
            head = "".join(f"{key}: {value}\r\n" for key, value in fields)
            with socket.create_connection((place.hostname or "", place.port or 0), timeout=240) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\n{head}{_PING}".encode())
                assert connection.recv(65_536).startswith(b"HTTP/1.1 403"), (name, pair)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "file://"])
def test_pages_of_foreign_origins_are_refused_at_every_door(open_house: Hosted, origin: str) -> None:
    refused = open_house.get("/v1/agents", origin=origin)
    assert (refused.status, refused.error["code"]) == (403, "blocked")
    assert "server.allowed_origins" in refused.error["message"]
    assert mcp(open_house, origin=origin)[0] == 403


def test_the_gateways_own_pages_and_both_names_of_loopback_pass(open_house: Hosted) -> None:
    port = open_house.url.rsplit(":", 1)[1]
    assert open_house.get("/v1/agents", origin=open_house.url).status == 200
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert open_house.get("/v1/agents", host=host).status == 200
    assert mcp(open_house, host=f"localhost:{port}", origin=f"http://localhost:{port}")[0] == 200


def test_hosts_and_origins_that_were_added_pass(tmp_path: Path) -> None:
    server = Server(allowed_hosts=("gateway.example",), allowed_origins=("https://app.example",))
    clients = (Client(id="me", key=f"sha256:{hashlib.sha256(b'a-key-of-a-client').hexdigest()}"),)
    with hosted(tmp_path, agents(), Settings(server=server, clients=clients)) as door:
        known = {"authorization": "Bearer a-key-of-a-client"}
        assert door.get("/v1/agents", host="gateway.example", origin="https://app.example", **known).status == 200
        assert mcp(door, host="gateway.example", origin="https://app.example", **known)[0] == 200
        assert door.get("/v1/agents", host="other.example", **known).status == 403


def test_a_browser_hears_that_pages_of_an_added_origin_may_call_and_others_may_not(tmp_path: Path) -> None:
    server = Server(allowed_origins=("https://app.example",))
    asking = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    with hosted(tmp_path, agents(), Settings(server=server)) as door:
        for path in ("/v1/call", "/mcp"):
            first = door.ask("OPTIONS", path, origin="https://app.example", **asking)
            assert (first.status, first.headers["access-control-allow-origin"]) == (200, "https://app.example")
            assert "authorization" in first.headers["access-control-allow-headers"]
            other = door.ask("OPTIONS", path, origin="https://evil.example", **asking)
            assert other.status >= 400
            assert "access-control-allow-origin" not in other.headers
        changing = {**asking, "access_control_request_method": "PUT"}
        assert door.ask("OPTIONS", "/v1/routes", origin="https://app.example", **changing).status == 200
        body = {"agentId": "echo", "message": "hi"}
        called = door.post("/v1/call", body, origin="https://app.example")
        assert called.headers["access-control-allow-origin"] == "https://app.example"
        assert "X-Next-Cursor" in called.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in door.post("/v1/call", body).headers


def test_a_body_that_does_not_arrive_in_time_is_refused(tmp_path: Path) -> None:
    with hosted(tmp_path, agents(), Settings(server=Server(body_seconds=0.2))) as door:
        connection = door.connect()
        try:
            connection.putrequest("POST", "/v1/search")
            connection.putheader("Content-Length", "100")
            connection.endheaders(b'{"query": ')
            assert connection.getresponse().status == 408
        finally:
            connection.close()


def test_the_trace_of_a_caller_goes_on_in_the_ledger(open_house: Hosted) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    body = {"agentId": "echo", "message": "traced"}
    open_house.post("/v1/call", body, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    assert open_house.rows("calls")[-1]["trace"] == trace
    open_house.post("/v1/call", body, traceparent="nonsense")
    row = open_house.rows("calls")[-1]
    assert (row["status"], row["trace"]) == ("done", row["id"])


def test_a_body_may_be_as_large_as_the_setting_says(tmp_path: Path) -> None:
    with hosted(tmp_path, agents(), Settings(server=Server(max_body=3 << 20))) as door:
        padded = json.dumps({"agentId": "echo", "message": "hi"}).encode() + b" " * (2 << 20)
        assert door.post("/v1/call", padded).json["result"] == "hi"
        assert door.post("/v1/call", padded * 2).status == 413


# What they may


def test_a_denied_agent_is_nowhere(guarded: Hosted) -> None:
    me, trusted = guarded.as_(KEY), guarded.as_("the-key-of-the-trusted")
    assert "pizza" in [agent["id"] for agent in trusted.get("/v1/agents").json["agents"]]
    assert "pizza" not in [agent["id"] for agent in me.get("/v1/agents").json["agents"]]
    assert me.post("/v1/search", {"query": "pizza delivery"}).json["agents"] == []
    for reply in (
        me.get("/v1/agents/pizza"),
        me.get("/v1/agents/pizza/card"),
        me.post("/v1/feedback", {"agentId": "pizza", "rating": 1}),
        me.call("pizza", "a large tuna pizza"),
        me.call("pizza", "a large tuna pizza", prefer="respond-async"),
    ):
        assert (reply.status, reply.error["code"]) == (404, "agent_not_found")
        assert "'pizza'" not in json.dumps(reply.error.get("data", {}))


def test_a_denied_agent_sounds_like_one_that_does_not_exist(guarded: Hosted) -> None:
    me = guarded.as_(KEY)
    denied = me.get("/v1/agents/pizza").error["message"]
    nowhere = me.get("/v1/agents/qqqqq").error["message"]
    assert denied.replace("pizza", "qqqqq") == nowhere


def test_a_denied_capability_is_not_shown_nor_called(guarded: Hosted) -> None:
    me = guarded.as_(KEY)
    assert [one["name"] for one in me.get("/v1/agents/story").json["capabilities"]] == ["tell"]
    assert [skill["id"] for skill in me.get("/v1/agents/story/card").json["skills"]] == ["tell"]
    refusal = me.call("story", capability="guess").error
    assert (refusal["code"], "It has tell." in refusal["message"]) == ("capability_not_found", True)
    unknown = me.call("story", capability="gues").error
    assert unknown["message"] == refusal["message"].replace("guess", "gues"), "the two look the same"


def test_a_refusal_is_in_the_ledger(guarded: Hosted) -> None:
    guarded.as_(KEY).call("pizza", "into the ledger")
    row = [row for row in guarded.rows("calls") if row["agent"] == "pizza" and row["principal"] == "me"][-1]
    assert (row["status"], row["code"], row["door"]) == ("refused", "agent_not_found", "rest")


def test_a_client_that_calls_too_often_is_told_when_to_come_back(guarded: Hosted) -> None:
    me, trusted = guarded.as_(KEY), guarded.as_("the-key-of-the-trusted")
    replies = [me.call("echo", "hi") for _ in range(4)]
    limited = replies[-1]
    assert limited.status == 429
    assert limited.json["errorCode"] == "rate_limited"
    assert limited.json["retryable"] is True
    assert 1 <= int(limited.headers["retry-after"]) <= 60
    assert trusted.call("echo", "another client is not held back").status == 200


# Health


def test_a_gateway_whose_database_is_closed_is_alive_but_not_ready(tmp_path: Path) -> None:
    with hosted(tmp_path, agents()) as door:
        assert door.get("/readyz").status == 200
        door.run(door.server.database.aclose())
        unready = door.get("/readyz")
        assert (unready.status, unready.json["status"]) == (503, "not ready")
        assert door.get("/healthz").status == 200
        call = door.call("echo", "hi")
        assert call.status in (500, 503)
        assert "Traceback" not in call.raw.decode()


def test_a_gateway_that_stops_is_not_ready(open_house: Hosted) -> None:
    open_house.server.ready = False
    try:
        assert open_house.get("/readyz").status == 503
    finally:
        open_house.server.ready = True


def test_an_open_circuit_is_told_as_something_to_try_later(tmp_path: Path) -> None:
    oven = LocalAgent("oven")

    @oven.capability
    def bake() -> None:
        """Bake."""
        raise Unavailable("The oven is cold.")

    settings = Settings(calls=Calls(breaker_failures=1, retries=0))
    with hosted(tmp_path, [oven], settings) as door:
        assert door.call("oven").json["errorCode"] == "unavailable"
        refused = door.call("oven", metadata={"retries": 3})
    assert (refused.status, refused.json["errorCode"], refused.json["retryable"]) == (503, "circuit_open", True)
    assert 0 < refused.json["metadata"]["retryAfter"] <= 30
