"""An ASGI app on a port of its own, for programs that serve one: who may call by default, which names are ours.

It listens in the bridge's loop, where what the documented classes do is done: there a call crosses no thread.
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
from agent3.errors import SetupError, Unauthenticated
from agent3.model import LOCAL, Principal

__all__ = ["Listening", "Who", "at_this_machine", "names_of", "run_http", "run_http_async"]

Who = Callable[[Mapping[str, Any]], Principal]

_PASSED_ON = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Headers by which a proxy says that somebody else is behind it."""
_GRACE = 5
"""Seconds that running calls have to finish when it stops."""
_STOPPED = 20.0


def at_this_machine(scope: Mapping[str, Any]) -> Principal:
    """The local person. A proxy on this machine that does not show itself cannot be told from it: hence principal=."""
    peer = (scope.get("client") or ("", 0))[0]
    if not _is_loopback(peer) or any(name in _PASSED_ON for name, _ in scope.get("headers", ())):
        raise Unauthenticated("This server serves its own machine only. Its author can say who else calls: principal=.")
    return LOCAL


def names_of(host: str, principal: Who | None, given: Sequence[str]) -> list[str]:
    """The Host headers to accept for what is bound to a host; SetupError for an open door."""
    if _is_loopback(host):
        return list(given)
    if principal is None:
        raise SetupError(
            f"{host} can be reached by other machines, and nobody says who calls. Give principal=, a function that "
            "reads it from the request, or let a gateway serve it (agent3 serve)."
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
    """An ASGI app that knows at which path it answers."""

    path: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Listening(AbstractContextManager[str]):
    """An app on a port, for the length of a ``with`` block, in the bridge's loop; gives the address of its ``path``.

    Leaving it lets running calls finish for a while. ``ended`` tells when it ended by itself, and why.
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
        )
        self._server = uvicorn.Server(config)
        self._listener: socket.socket | None = None
        self.ended: Future[None] = Future()

    def __enter__(self) -> str:
        self._listener = _bound(*self._where)
        self.ended = bridge.shared().spawn(self._server.serve(sockets=[self._listener]))
        return _url(self._listener, self._path)

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        try:
            self.ended.result(_STOPPED)
        finally:
            if self._listener is not None:
                self._listener.close()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio sends small answers at once only where it is, and else 40 ms later.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2_048)
    except (OSError, OverflowError) as wrong:
        listener.close()
        raise SetupError(f"Cannot listen on {host}:{port}: {wrong}. Choose another port; 0 takes a free one.") from None
    return listener


def _url(listener: socket.socket, path: str) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{quote(path)}"


def run_http(name: str, served: Listening) -> None:
    """Serve until SIGINT or SIGTERM; says where, on standard error."""
    with served as url, _terminable(), suppress(KeyboardInterrupt):
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
def _terminable() -> Iterator[None]:
    """SIGTERM is told as SIGINT is, by KeyboardInterrupt; in other threads than the main one signals are not ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
