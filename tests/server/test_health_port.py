"""The port for health and metrics alone: it answers whatever the event loop does."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from pathlib import Path

import pytest

from agent3.observe.metrics import Metrics
from agent3.server.app import app
from agent3.server.build import build
from agent3.server.health_port import HealthPort
from agent3.server.run import listen_for_health
from agent3.settings import Server, Settings, Storage
from tests.support.home import run


def test_health_is_answered_while_the_event_loop_is_held_and_readiness_tells_that_it_is(tmp_path: Path) -> None:
    settings = Settings(server=Server(port=0, health_port=0), storage=Storage(url=f"sqlite:///{tmp_path / 'g.db'}"))

    async def scene() -> None:
        listener = listen_for_health(settings)
        assert listener is not None
        with listener:
            async with build(settings, metrics=Metrics()) as server:
                port = HealthPort(server, listener, app(server).find_refusal)
                await port.start()
                host, number = listener.getsockname()
                # The loop does nothing from here on: it is this very thread that asks.
                for page, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/agents", 404)):
                    assert _get(host, number, page)[0] == status
                slow = socket.create_connection((host, number))
                slow.sendall(b"GET /he")  # never goes on, and nobody waits for it
                assert b"agent3_" in _get(host, number, "/metrics")[1]
                assert _get(host, number, "/healthz", "evil.example.com")[0] == 403
                assert _get(host, number, "/healthz")[0] == 200
                port._told -= 60.0
                status, body = _get(host, number, "/readyz")
                assert status == 503
                assert b"event loop has not answered" in body
                port._told = time.monotonic()
                server.stop()
                assert _get(host, number, "/readyz")[0] == 503
                assert _get(host, number, "/healthz")[0] == 200
                slow.close()
                await port.aclose()

    run(scene())


def test_neither_a_connection_that_made_room_nor_a_page_that_fails_ends_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Together(selectors.DefaultSelector):
        """Tells of a new connection and of bytes on the oldest at once, the new one first."""

        met = False
        waits = threading.Event()

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if len(self.get_map()) > 1:
                self.waits.set()
            found = sorted(super().select(timeout), key=lambda one: one[0].data is not None)
            self.met = self.met or len(found) > 1
            return found if self.met or len(self.get_map()) == 1 else []

    monkeypatch.setattr("agent3.server.health_port.selectors.DefaultSelector", Together)
    monkeypatch.setattr("agent3.server.health_port._MOST", 1)
    settings = Settings(server=Server(port=0, health_port=0), storage=Storage(url=f"sqlite:///{tmp_path / 'g.db'}"))

    async def scene() -> None:
        listener = listen_for_health(settings)
        assert listener is not None
        with listener:
            async with build(settings, metrics=Metrics()) as server:
                port = HealthPort(server, listener, app(server).find_refusal)
                await port.start()
                host, number = listener.getsockname()
                with socket.create_connection((host, number)) as oldest:
                    assert Together.waits.wait(20.0)
                    oldest.sendall(b"GET /he")
                    latest = socket.create_connection((host, number), 20.0)
                    with latest:
                        latest.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                        assert latest.recv(15) == b"HTTP/1.1 200 OK"
                assert b'reason="health_port"' in server.metrics.render()[0]
                monkeypatch.setattr(server.metrics, "render", lambda: 1 / 0)
                status, body = _get(host, number, "/metrics")
                assert (status, b"ZeroDivision" in body) == (500, False)
                assert _get(host, number, "/healthz")[0] == 200
                await port.aclose()

    run(scene())


def _get(host: str, port: int, page: str, name: str = "127.0.0.1") -> tuple[int, bytes]:
    with socket.create_connection((host, port), timeout=20.0) as to:
        to.sendall(f"GET {page} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: to.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body
