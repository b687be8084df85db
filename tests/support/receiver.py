"""A receiver of webhooks on loopback, in a thread: it keeps what came, and answers as the test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["SECRET", "Receiver", "Webhook", "receiving"]

SECRET = "whsec_" + "c2VjcmV0IGZvciB0aGUgdGVzdHMgb2YgY2FsbGJhY2tz"
"""A secret for tests."""


@dataclass(frozen=True)
class Webhook:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = int | tuple[int, dict[str, str]]
Reply = Callable[[Webhook], Answer]


@dataclass
class Receiver:
    """What came so far. ``reply`` may block, be changed at any time, and gives a status or a status with headers."""

    url: str = ""
    reply: Reply = lambda _: 204
    prove: Callable[[str], tuple[int, str]] = lambda token: (200, token)
    """What it answers to the question whether it wants to be told."""
    asked: list[str] = field(default_factory=list)
    got: list[Webhook] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, webhook: Webhook) -> Answer:
        with self.changed:
            self.got.append(webhook)
            self.changed.notify_all()
        return self.reply(webhook)

    def wait(self, count: int = 1, seconds: float = 60.0) -> list[Webhook]:
        """What came, as soon as it is so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, seconds), f"only {len(self.got)} came"
            return list(self.got)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = self.receiver.take(Webhook(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        try:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
        except OSError:
            self.close_connection = True  # the sender has left

    def do_GET(self) -> None:
        self.receiver.asked.append(self.path)
        status, text = self.receiver.prove(self.path.partition("validationToken=")[2])
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that was killed, or did not like our certificate."""


@contextmanager
def receiving(reply: Reply = lambda _: 204, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver until the end of the block."""
    receiver = Receiver(reply=reply)
    handler = type("Handler", (_Handler,), {"receiver": receiver})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
