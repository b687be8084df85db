"""Traps of a deployment: what makes a stranger the local person is refused, at the start or at the door."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent3.errors import SetupError, Unauthenticated
from agent3.identity.doorkeeper import Doorkeeper
from agent3.model import LOCAL
from agent3.observe.logs import Sparingly
from agent3.observe.metrics import Metrics
from agent3.server.demo import agents
from agent3.settings import Logs, Server, Settings
from tests.support.gateway import hosted

GET_TASK = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "one"}}
FORWARDED = ("forwarded", "x_forwarded_for", "x_forwarded_host", "x_real_ip", "via")


@pytest.mark.parametrize("name", ["gateway.example.com", "10.0.0.5:8333", "*", "[2001:db8::1]:*"])
def test_a_gateway_with_a_public_name_and_without_clients_does_not_start(name: str) -> None:
    with pytest.raises(SetupError, match=re.escape(name)) as told:
        Doorkeeper(Settings(server=Server(allowed_hosts=(name,))), Metrics())
    assert "agent3 client add" in told.value.message


def test_names_of_this_machine_need_no_clients() -> None:
    names = ("localhost:8333", "app.localhost", "127.0.0.2", "[::1]:*")
    assert Doorkeeper(Settings(server=Server(allowed_hosts=names)), Metrics())({"headers": []}) == LOCAL


def test_what_a_proxy_forwards_and_a_page_of_another_local_port_are_refused_at_every_door(tmp_path: Path) -> None:
    with hosted(tmp_path, agents()) as door:
        for path, body in (
            ("/mcp", {}),
            ("/a2a", GET_TASK),
            ("/ask", {"query": "hi"}),
            ("/v1/call", {"agentId": "echo"}),
        ):
            for header in FORWARDED:
                told = door.post(path, body, **{header: "203.0.113.7"})
                assert told.status == 401, (path, header, told.raw)
            told = door.post(path, body, origin="http://localhost:3000")
            assert told.status == 403, (path, told.raw)
            assert b"server.allowed_origins" in told.raw
        assert door.get("/healthz", x_forwarded_for="203.0.113.7").status == 200


def test_failed_calls_are_logged_once_with_their_id_and_requests_where_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="agent3")
    with hosted(tmp_path, agents(), Settings(logs=Logs(access=True))) as door:
        failed = door.post("/v1/call", {"agentId": "nobody", "message": "hi"})
        assert failed.status == 404
        assert door.post("/v1/call", {"agentId": "echo", "message": "hi"}).status == 200
        rows = door.rows("calls")
    lines = [record for record in caplog.records if record.name == "agent3.ledger"]
    assert [record.__dict__["call"] for record in lines] == [row["id"] for row in rows if row["status"] != "done"]
    assert "nobody" in lines[0].getMessage()
    requests = [record.getMessage() for record in caplog.records if record.name == "agent3.access"]
    assert [line.rsplit(" in ", 1)[0] for line in requests] == ["POST /v1/call 404", "POST /v1/call 200"]


def test_log_lines_of_one_kind_are_bounded_and_the_others_counted() -> None:
    lines = Sparingly(2)
    assert [lines.admit(0.1 * at) for at in range(5)] == [0, 0, None, None, None]
    assert lines.admit(1.2) == 3


def test_a_local_key_tells_the_users_of_a_machine_apart(tmp_path: Path) -> None:
    path = tmp_path / "local.key"
    settings = Settings(server=Server(local_key=str(path)))
    with hosted(tmp_path, agents(), settings) as door:
        assert path.stat().st_mode & 0o777 == 0o600
        assert door.get("/v1/agents").status == 401
        key = path.read_text().strip()
        assert door.get("/v1/agents", authorization=f"Bearer {key}").status == 200
    keeper = Doorkeeper(settings, Metrics())  # the same key after a restart
    assert keeper({"headers": [(b"x-api-key", key.encode())]}) == LOCAL
    with pytest.raises(Unauthenticated):
        keeper({"headers": []})
    path.chmod(0o640)
    with pytest.raises(SetupError, match="chmod 600"):
        Doorkeeper(settings, Metrics())
