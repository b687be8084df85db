"""An ASGI app on a port of its own, for programs that serve one: its default principal, and the accepted hosts.

It runs in the bridge's loop, as the documented classes do, so that a call does not cross threads.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote

import uvicorn

from agent3 import bridge
from agent3.connections import IDLE_SECONDS, Pool, count_descriptors, guard_class
from agent3.errors import SetupError, Unauthenticated
from agent3.model import LOCAL, Principal

__all__ = ["PASSED_ON", "Authenticate", "Listening", "at_this_machine", "names_of", "run_http", "run_http_async"]

Authenticate = Callable[[Mapping[str, Any]], Principal]

PASSED_ON = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Headers by which a proxy says that it forwards for another client."""
_GRACE = 5
"""Seconds that running calls have to finish when it stops."""
_STOP_SECONDS = 20.0
_REQUEST_SECONDS = 20.0
"""Seconds within which the head of a request must have arrived, and then its body."""
_MOST_CONNECTIONS = 2_000


def at_this_machine(scope: Mapping[str, Any]) -> Principal:
    """The local user, for requests from this machine; Unauthenticated for others and for what a proxy forwards.

    A proxy on this machine that adds no header cannot be recognised: behind one, pass ``principal=``.
    """
    peer = (scope.get("client") or ("", 0))[0]
    if not _is_loopback(peer) or any(name in PASSED_ON for name, _ in scope.get("headers", ())):
        raise Unauthenticated(
            "This server serves its own machine only. To serve others, its author must pass principal=."
        )
    return LOCAL


def names_of(host: str, principal: Authenticate | None, given: Sequence[str]) -> list[str]:
    """The Host headers to accept for a server bound to ``host``; SetupError if it would be open to everyone."""
    if _is_loopback(host):
        return list(given)
    if principal is None:
        raise SetupError(
            f"{host} is reachable from other machines, but callers are not identified. Pass principal=, a "
            "function that reads the caller from the request, or use a gateway (agent3 serve)."
        )
    bound = f"[{host}]" if ":" in host else host
    return [bound, f"{bound}:*", *given] if given else ["*"]


@lru_cache(maxsize=1_000)
def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Placed(Protocol):
    """An ASGI app that knows its path."""

    path: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Listening(AbstractContextManager[str]):
    """Serves an app on a port, within a ``with`` block, in the bridge's loop; gives the URL of its ``path``.

    Leaving the block lets running calls finish for a while. ``ended`` is done when the server ends by itself.
    """

    def __init__(self, app: Placed, host: str, port: int):
        self._path = app.path
        self._where = (host, port)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=IDLE_SECONDS,
            http=guard_class(_REQUEST_SECONDS, Pool(count_descriptors(_MOST_CONNECTIONS))),
        )
        self._server = uvicorn.Server(config)
        self._listener: socket.socket | None = None
        self.ended: Future[None] = Future()

    def __enter__(self) -> str:
        host, port = self._where
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named: only then asyncio sets TCP_NODELAY, without which small answers come 40 ms late.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(2_048)
        except (OSError, OverflowError) as error:
            listener.close()
            raise SetupError(
                f"Cannot listen on {host}:{port}: {error}. Choose another port; 0 takes a free one."
            ) from None
        self._listener = listener
        self.ended = bridge.get_shared().spawn(self._server.serve(sockets=[listener]))
        bound, number = listener.getsockname()[:2]
        return f"http://{f'[{bound}]' if ':' in bound else bound}:{number}{quote(self._path)}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        try:
            self.ended.result(_STOP_SECONDS)
        finally:
            if self._listener is not None:
                self._listener.close()


def run_http(name: str, served: Listening) -> None:
    """Serve until SIGINT or SIGTERM; prints the URL on standard error."""
    with served as url, _interrupt_on_sigterm(), suppress(KeyboardInterrupt):
        sys.stderr.write(f"{name} serves at {url}\n")
        served.ended.result()


async def run_http_async(name: str, served: Listening) -> None:
    """Serve until cancelled."""
    sys.stderr.write(f"{name} serves at {served.__enter__()}\n")
    try:
        await asyncio.shield(asyncio.wrap_future(served.ended))
    finally:
        await asyncio.shield(asyncio.to_thread(served.__exit__))


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on SIGINT; in the main thread only, since others get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
