"""A page on this machine to which a browser is redirected after a person has agreed elsewhere (RFC 8252).

It listens on loopback only, for one sign-in, and takes only the redirect that brings the state that was sent out.
"""

from __future__ import annotations

import asyncio
import os
import string
import sys
import threading
import time
import webbrowser
from typing import Protocol
from urllib.parse import parse_qs, quote, urlsplit

from agent3.errors import CallTimeout

__all__ = ["AtTerminal", "Guide", "Landing"]

PATH = "/callback"
_MAX_HEAD = 16_384
_HEAD_SECONDS = 10.0
"""Seconds that a browser has to send its request."""
_REMIND_EVERY = 30.0
_PAGE = "<!doctype html><meta charset=utf-8><title>agent3</title><p style='font:1.2em sans-serif;margin:3em'>{}</p>"
_DESKTOP = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables that a Linux desktop with a browser sets. A text browser would take the terminal from the person."""


class Guide(Protocol):
    """Shows a person where to agree, and that they are waited for."""

    def go(self, url: str) -> None:
        """Show the address. Called in a thread of its own, so it may block."""
        ...

    def wait(self, left: float) -> None:
        """Called every second with the seconds that are left, and with 0 at the end."""
        ...


class AtTerminal:
    """Guides the person at a terminal by standard error, and opens their browser where there is one."""

    def __init__(self) -> None:
        self._last = -_REMIND_EVERY

    def go(self, url: str) -> None:
        """Print who asks and for whom, and the address, and open it."""
        url = quote(url, safe=string.punctuation)  # it comes from outside, and a terminal obeys control characters
        # Where a person agrees, and for what (RFC 8707): they may know one and be surprised by the other.
        place = f" at {urlsplit(url).netloc.rpartition('@')[2]}"
        if resource := quote(_parameter(url, "resource"), safe=string.punctuation):
            place += f", for {resource}"
        _write(f"Open this address to sign in{place}:\n\n  {url}\n\n")
        if sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in _DESKTOP):
            webbrowser.open(url)

    def wait(self, left: float) -> None:
        """Count down in one line, or print a line every half minute where output is not a terminal."""
        words = f"Waiting for you to sign in, {left:.0f} s left. Press Ctrl-C to give up."
        if sys.stderr.isatty():
            _write(f"\r{words} " if left > 0 else "\n")
        elif left > 0 and time.monotonic() - self._last >= _REMIND_EVERY:
            self._last = time.monotonic()
            _write(f"{words}\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class Landing:
    """The page, open inside ``async with``. ``redirect`` is its address; ``send`` sends a person out and waits."""

    def __init__(self, guide: Guide, seconds: float = 300.0):
        self.redirect = ""
        self._guide = guide
        self._seconds = seconds
        self._state = ""
        self._came: asyncio.Future[str] | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Landing:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD)
        self.redirect = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def send(self, url: str) -> str:
        """The path and query that they came back to; CallTimeout when they did not."""
        self._state = _parameter(url, "state")
        self._came = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._guide.go, args=(url,), daemon=True).start()
        ends = time.monotonic() + self._seconds
        try:
            while (left := ends - time.monotonic()) > 0:
                self._guide.wait(left)
                await asyncio.wait([self._came], timeout=min(left, 1.0))
                if self._came.done():
                    return self._came.result()
        finally:
            self._guide.wait(0.0)
        raise CallTimeout(
            f"The sign-in was not completed within {self._seconds:g} s. Try again; --wait sets a longer time."
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode("latin-1")
                if urlsplit(target).path != PATH or self._came is None:
                    page = _page("404 Not Found", "Not found.")
                elif not self._state or _parameter(target, "state") != self._state:
                    page = _page("400 Bad Request", "This request does not belong to the current sign-in.")
                else:
                    if not self._came.done():
                        self._came.set_result(target)
                    page = _page("200 OK", "Thank you. You can close this page and return to the terminal.")
                writer.write(page)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            pass  # whatever sends nothing, or too much, is not the browser that is waited for
        finally:
            writer.close()


def _parameter(url: str, name: str) -> str:
    return parse_qs(urlsplit(url).query).get(name, [""])[0]


def _page(status: str, text: str) -> bytes:
    body = _PAGE.format(text).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
