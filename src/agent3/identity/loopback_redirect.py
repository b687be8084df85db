"""A page on this machine to which a browser comes back after its person has agreed elsewhere (RFC 8252).

It opens on loopback only, for one sign-in, and listens to nobody who does not bring the state that was sent out.
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
_HEAD = 16_384
_PATIENCE = 10.0
"""Seconds that a browser has to say what it wants."""
_OFTEN = 30.0
_PAGE = "<!doctype html><meta charset=utf-8><title>agent3</title><p style='font:1.2em sans-serif;margin:3em'>{}</p>"
_SIGNS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables by which a Linux desktop says that there is a browser; one of a terminal would take it from the person."""


class Guide(Protocol):
    """Shows a person the way."""

    def go(self, url: str) -> None:
        """There they can agree. Called beside the event loop, it may take its time."""
        ...

    def waiting(self, left: float) -> None:
        """They are waited for, this many seconds more; said every second, and 0 at the end."""
        ...


class AtTerminal:
    """Tells the person at a terminal by standard error, and opens their browser where there is one."""

    def __init__(self) -> None:
        self._last = -_OFTEN

    def go(self, url: str) -> None:
        """Print who asks and for whom, and the address, and open it."""
        url = quote(url, safe=string.punctuation)  # others wrote it, and a terminal obeys what cannot be seen
        _say(f"Open this address to sign in{_parties(url)}:\n\n  {url}\n\n")
        if sys.platform in ("darwin", "win32") or any(os.environ.get(one) for one in _SIGNS):
            webbrowser.open(url)

    def waiting(self, left: float) -> None:
        """Say so: in one line that counts down, or every half minute where the lines are kept."""
        words = f"Waiting for you to sign in, {left:.0f} s more. Ctrl-C gives up."
        if sys.stderr.isatty():
            _say(f"\r{words} " if left > 0 else "\n")
        elif left > 0 and time.monotonic() - self._last >= _OFTEN:
            self._last = time.monotonic()
            _say(f"{words}\n")


def _parties(url: str) -> str:
    """At whose page a person agrees, and for what (RFC 8707): they may know one and be surprised by the other."""
    meant = quote(parse_qs(urlsplit(url).query).get("resource", [""])[0], safe=string.punctuation)
    return f" at {urlsplit(url).netloc.rpartition('@')[2]}" + (f", for {meant}" if meant else "")


def _say(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()


class Landing:
    """Use as ``async with``. ``redirect`` is where the page is; ``send`` sends a person out and waits for them."""

    def __init__(self, guide: Guide, seconds: float = 300.0):
        self.redirect = ""
        self._guide = guide
        self._seconds = seconds
        self._state = ""
        self._came: asyncio.Future[str] | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Landing:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0, limit=_HEAD)
        self.redirect = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def send(self, url: str) -> str:
        """Where they came back to, with all that it says; CallTimeout when they did not."""
        self._state = _state(url)
        self._came = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._guide.go, args=(url,), daemon=True).start()
        ends = time.monotonic() + self._seconds
        try:
            while (left := ends - time.monotonic()) > 0:
                self._guide.waiting(left)
                await asyncio.wait([self._came], timeout=min(left, 1.0))
                if self._came.done():
                    return self._came.result()
        finally:
            self._guide.waiting(0.0)
        raise CallTimeout(f"Nobody signed in within {self._seconds:g} s. Try again; --wait gives more time.")

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.split(b" ", 2)[1].decode("latin-1")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            pass  # a browser that says nothing, or too much, is not the one that is waited for
        finally:
            writer.close()

    def _answer(self, target: str) -> bytes:
        if urlsplit(target).path != PATH or self._came is None:
            return _page("404 Not Found", "Nothing is here.")
        if not self._state or _state(target) != self._state:
            return _page("400 Bad Request", "This does not belong to the sign-in that is under way.")
        if not self._came.done():
            self._came.set_result(target)
        return _page("200 OK", "Thank you. You can close this page and go back to the terminal.")


def _state(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("state", [""])[0]


def _page(status: str, words: str) -> bytes:
    body = _PAGE.format(words).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
