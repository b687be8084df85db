"""Connections of strangers: what uvicorn does, and a bound on how long and how much a request may take to begin.

Without it a connection that never finishes its headers is kept for ever, and two thousand of them close the door for
everybody. How long a body may take is the business of whoever reads it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent3.observe.logs import get as logger

__all__ = ["patient"]

log = logger("server")

_MOST_HEADERS = 65_536
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 44\r\nconnection: close\r\n\r\nThe headers of a request are 64 KiB at most."
)


def patient(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol for ``uvicorn.Config(http=…)``: it waits this long for the headers of a request."""
    return type("Connection", (_Connection,), {"seconds": seconds})


class _Connection(HttpToolsProtocol):
    """One connection. Its clock runs while nothing is being answered and something has begun to arrive, or nothing
    ever has; a connection that rests between two requests is uvicorn's to close."""

    seconds: float
    _clock: asyncio.TimerHandle | None = None
    _in_headers = False
    _received = 0
    _arriving = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arriving = len(data)
        super().data_received(data)
        self._received += len(data)
        if self._in_headers and self._received > _MOST_HEADERS:
            self._refuse()
        elif self._answering() or self.transport.is_closing():
            self._stop()
        elif self._clock is None:
            self._wind()

    def on_message_begin(self) -> None:
        self._in_headers, self._received = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        # One read may bring more than the limit at once; its body must not count, so then they are counted exactly.
        if self._received + self._arriving > _MOST_HEADERS and self._weight() > _MOST_HEADERS:
            raise ValueError("too many headers")  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self.headers and self._weight() > _MOST_HEADERS:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _weight(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self) -> None:
        self._stop()
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wind(self) -> None:
        self._clock = self.loop.call_later(self.seconds, self._ring)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _ring(self) -> None:
        self._clock = None
        if not self._answering() and not self.transport.is_closing():
            log.debug("a connection of %s sent no whole request in %g s and is closed", self.client, self.seconds)
            self.transport.close()
