"""What anyone without a key can do to a gateway: every door has deadlines, and keeps nothing of a stranger's body."""

from __future__ import annotations

import hashlib
import json
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent3.observe.metrics import Metrics
from agent3.settings import Client, Logs, Server, Settings
from tests.support.gateway import hosted
from tests.support.machines import eventually

KEY = "a-key-of-a-client-of-ours"
DOORS = ("/mcp", "/agents/nobody/mcp", "/a2a", "/a2a/message:send", "/agents/nobody/a2a", "/ask", "/await", "/call")
HEADS = {
    "modern": "Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nA2A-Version: 1.0\r\n",
    "odd": "Last-Event-Id: 1\r\nA2A-Version: 1.0\r\n",
    "packed": "Content-Encoding: gzip\r\nA2A-Version: 1.0\r\n",
}


def begin(url: str, path: str, length: int, more: str = "") -> socket.socket:
    """A POST whose body does not come."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=240)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\nAccept: application/json, text/event-stream\r\n{more}\r\n"
    )
    connection.sendall(head.encode() + b"{")
    return connection


def read_all(connection: socket.socket) -> bytes:
    with closing(connection):
        pieces = []
        while piece := connection.recv(65_536):
            pieces.append(piece)
        return b"".join(pieces)


def test_every_door_has_a_deadline_and_reads_no_large_body_of_a_stranger(tmp_path: Path) -> None:
    settings = Settings(
        server=Server(body_seconds=0.3),
        clients=(Client(id="me", key=f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"),),
    )
    metrics = Metrics()
    with hosted(tmp_path, settings=settings, metrics=metrics) as door:
        own = f"Authorization: Bearer {KEY}\r\n"
        slow = {
            (path, name, who): begin(door.url, path, 100, more + who)
            for path in DOORS
            for name, more in HEADS.items()
            for who in ("", own)
        }
        # Before one byte more comes, a stranger is told that it is one; its connection ends.
        large = [(path, begin(door.url, path, 900_000, more)) for path in DOORS for more in HEADS.values()]
        for path, connection in large:
            answer = read_all(connection)
            assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404")), (path, answer)
        # Everybody else, and whoever sends little, is waited for no longer than the settings say.
        for what, connection in slow.items():
            answer = read_all(connection)
            assert answer.split(b" ", 2)[1:2] in ([b"408"], [b"401"], [b"404"]), (what, answer)
            body = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert "error" in body or "detail" in body or "_meta" in body, (what, body)
        assert b"agent3_connections_refused_total" in metrics.render()[0]


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="agent3")
    settings = Settings(
        clients=(Client(id="me", key=f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"),), logs=Logs(access=True)
    )

    def lines(name: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == name]

    with hosted(tmp_path, settings=settings) as door:
        paths = [*DOORS, "/v1/call", "/v1/agents"]
        for path in paths:
            for more in HEADS.values():
                begin(door.url, path, 100, f"Authorization: Bearer {KEY}\r\n{more}").close()
        eventually(lambda: len(lines("agent3.access")) == len(paths) * len(HEADS))
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
