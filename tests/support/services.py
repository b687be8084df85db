"""HTTP services on loopback for tests: any ASGI app on a free port, and what it was asked."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

__all__ = ["Service", "serving"]


@dataclass
class Service:
    """A service that listens. ``requests`` are method, path with query, headers and body of each, in order."""

    url: str
    port: int
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [f"{method} {path}" for method, path, _, _ in self.requests]

    def calls(self) -> list[str]:
        """Those that are no look at its document, which is renewed in the background."""
        return [path for path in self.paths() if not path.endswith("/openapi.json")]


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[Service]:
    """Serve an ASGI app until the end of the block."""
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    service = Service(f"http://127.0.0.1:{port}", port)
    server = uvicorn.Server(
        uvicorn.Config(_noting(app, service), log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield service
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


def _noting(app: Any, service: Service) -> Callable[..., Any]:
    async def run(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        body = bytearray()
        query = scope["query_string"].decode()
        path = scope["raw_path"].decode() + (f"?{query}" if query else "")
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        place = len(service.requests)
        service.requests.append((scope["method"], path, headers, b""))

        async def hear() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            service.requests[place] = (scope["method"], path, headers, bytes(body))
            return message

        await app(scope, hear, send)

    return run
