"""``FaultProxy``: a bad network between a client and a real server, on loopback, repeatable by its seed.

It passes bytes and knows no protocol. The fault of a connection is drawn when it is accepted, from the seed and the
number of the connection, so that neither timing nor other connections change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeAlias

__all__ = ["Fate", "FaultProxy", "Faults"]

Fate: TypeAlias = Literal["pass", "refuse", "cut", "reset", "silence", "corrupt"]

_PIECE = 16_384
_OPEN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is. The first five are chances from 0 to 1; together at most 1.

    ``refuse``: closed before a byte is passed. ``cut``: closed in the middle of the answer. ``reset``: likewise, but
    reset (RST). ``silence``: the answer stops, and the connection stays open. ``corrupt``: one bit of the answer is
    flipped.
    """

    refuse: float = 0.0
    cut: float = 0.0
    reset: float = 0.0
    silence: float = 0.0
    corrupt: float = 0.0
    within: int = 1
    """The fault happens within so many bytes of the answer: with 1 before the first of them."""
    delay: float = 0.0
    """Seconds, at most, by which each piece is delayed, both ways."""
    rate: float | None = None
    """Bytes of the answer that pass per second."""

    def __post_init__(self) -> None:
        chances = (self.refuse, self.cut, self.reset, self.silence, self.corrupt)
        if min(chances) < 0 or sum(chances) > 1 + 1e-9:
            raise ValueError(
                f"Chances of {chances} are not possible: each must be at least 0, and their sum at most 1."
            )

    def draw(self, dice: random.Random) -> Fate:
        """What happens to one connection."""
        left = dice.random()
        fates: tuple[Fate, ...] = ("refuse", "cut", "reset", "silence", "corrupt")
        for fate, chance in zip(fates, (self.refuse, self.cut, self.reset, self.silence, self.corrupt), strict=True):
            if left < chance:
                return fate
            left -= chance
        return "pass"


class FaultProxy:
    """Listens on a free port of loopback while it is entered, and passes bytes on to ``host``:``port``, or does not.

    ``faults`` may be changed at any time and applies to later connections; ``fates`` says what happened to each, in the
    order in which they came. ``stop_answering`` makes it a server that hangs: connections stay open, and nothing passes
    until ``go_on``.
    """

    def __init__(self, host: str, port: int, *, seed: int = 0, faults: Faults | None = None):
        self.faults = faults or Faults()
        self.seed = seed
        self.host = "127.0.0.1"
        self.port = 0
        self.fates: list[Fate] = []
        self._upstream = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[_Link] = set()
        self._answering = asyncio.Event()
        self._answering.set()

    @property
    def url(self) -> str:
        """Its address, as for an HTTP server."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # a connection that was accepted just now is registered after this
        while self._tasks:
            self.drop_all()
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def stop_answering(self) -> None:
        """Hang: pass nothing more, in either direction."""
        self._answering.clear()

    def go_on(self) -> None:
        """Pass what came meanwhile, and everything after it."""
        self._answering.set()

    def strike(self, fate: Fate) -> None:
        """Let this happen to the next answer on every connection that is open now, before its first byte."""
        for link in self._links:
            link.doom(fate)

    def drop_all(self) -> None:
        """Reset every connection that is open now."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        # Dice of its own: how many numbers another connection draws depends on timing.
        dice = random.Random(f"{self.seed}/{len(self.fates)}")  # noqa: S311 - repeatable on purpose
        link = _Link(self.faults, self.faults.draw(dice), dice, self._answering.wait)
        self.fates.append(link.fate)
        self._links.add(link)
        try:
            await link.join(reader, writer, self._upstream)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            _reset(writer)
        finally:
            writer.close()
            self._tasks.discard(task)
            self._links.discard(link)


class _Link:
    """One connection and its fate."""

    def __init__(self, faults: Faults, fate: Fate, dice: random.Random, passing: Callable[[], Awaitable[object]]):
        self.fate = fate
        self._faults = faults
        self._dice = dice
        self._passing = passing
        self._left = dice.randrange(max(1, faults.within))

    def doom(self, fate: Fate) -> None:
        self.fate, self._left = fate, 0

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: tuple[str, int]) -> None:
        """Pass bytes both ways until one side ends, or until the fault."""
        if self.fate == "refuse":
            return
        async with asyncio.timeout(_OPEN_SECONDS):
            theirs, ours = await asyncio.open_connection(*upstream)
        asking = asyncio.create_task(self._pass_request(reader, ours))
        try:
            while piece := await theirs.read(_PIECE):
                await self._delay()
                if self.fate != "pass" and len(piece) > self._left:
                    if self.fate != "corrupt":
                        await self._send(piece[: self._left], writer)
                        if self.fate == "reset":
                            _reset(writer)
                        if self.fate == "silence":
                            await asyncio.Event().wait()  # until one side gives up
                        return
                    flipped = bytearray(piece)
                    flipped[max(0, self._left)] ^= 1 << self._dice.randrange(8)
                    self.fate, piece = "pass", bytes(flipped)
                self._left -= len(piece)
                await self._send(piece, writer)
        finally:
            ours.close()
            asking.cancel()
            await asyncio.wait([asking])

    async def _pass_request(self, reader: asyncio.StreamReader, ours: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._delay()
                ours.write(piece)
                await ours.drain()
            ours.write_eof()

    async def _delay(self) -> None:
        await self._passing()
        if self._faults.delay:
            await asyncio.sleep(self._dice.uniform(0.0, self._faults.delay))

    async def _send(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        rate = self._faults.rate
        step = len(piece) if rate is None else max(1, int(rate / 20))
        for start in range(0, len(piece), step or 1):
            some = piece[start : start + step]
            writer.write(some)
            await writer.drain()
            if rate is not None:
                await asyncio.sleep(len(some) / rate)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: what was not read is lost, and the other side gets an error."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
