"""Load on one loopback server: the same request again and again over a few connections, for a given time.

``wrk`` does it where it is installed, because it takes little of the processor that the server needs; else a small
asyncio client does, and also where each request needs headers of its own. Both count as good only an answer with status
200 that contains the expected text, so that a server which fails fast never looks fast. Nothing here knows who is being
loaded or why.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "HOST",
    "Load",
    "Request",
    "apply_load",
    "percentile",
    "read_answer",
    "with_asyncio",
    "with_count",
    "with_wrk",
]

HOST = "127.0.0.1"
ANSWER_SECONDS = 60.0
"""How long one answer may take before it counts as an error."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, and what the answer must contain to count.

    Where ``tails`` are given, they are taken in turn, and a number stands between the body and the tail that is new in
    every request: two requests of one JSON-RPC session that are under way at once must not have the same id. With
    ``once`` the number is new in every round of load too, for servers that answer what they heard before from memory.
    ``fresh`` makes further headers for each request, from the port and the body that it goes with, such as a signature.
    """

    path: str
    expect: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    tails: tuple[bytes, ...] = ()
    fresh: Callable[[int, bytes], Mapping[str, str]] | None = None
    once: bool = False

    def first(self) -> int:
        """The number before the first of a round of load."""
        return time.time_ns() if self.once else 0

    def body_of(self, number: int) -> bytes:
        """The body of the request with this number."""
        return b"%b%d%b" % (self.body, number, self.tails[number % len(self.tails)]) if self.tails else self.body

    def headers_with(self, port: int, body: bytes) -> dict[str, str]:
        """The headers of one request to this port with this body."""
        return {**self.headers, **(self.fresh(port, body) if self.fresh else {})}


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it. ``bad`` counts wrong answers and broken connections alike."""

    good: int
    bad: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Good answers per second."""
        return self.good / self.seconds if self.seconds else 0.0


def apply_load(port: int, request: Request, *, seconds: float, connections: int) -> Load:
    """Load the server on ``port`` with wrk if it is there and can make the requests, else with the asyncio client."""
    if request.fresh is None and shutil.which("wrk"):
        return with_wrk(port, request, seconds=seconds, connections=connections)
    return with_asyncio(port, request, seconds=seconds, connections=connections)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted ``values``; 0 when there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


# --- wrk ------------------------------------------------------------------------------------------------------------

_LUA = """
wrk.method = {method}
wrk.body = {body}
{headers}
local expect, head, tails = {expect}, {body} .. {round}, {{{tails}}}
local threads = {{}}
local sent = 0
if #tails > 0 then
  function request()
    sent = sent + 1
    return wrk.format(nil, nil, nil, head .. sent .. tails[sent % #tails + 1])
  end
end
good, bad = 0, 0  -- globals: each thread has its own pair, which done() reads
function setup(thread) table.insert(threads, thread) end
function response(status, headers, body)
  if status == 200 and string.find(body, expect, 1, true) then good = good + 1 else bad = bad + 1 end
end
function done(summary, latency, requests)
  local all_good, all_bad = 0, 0
  for _, thread in ipairs(threads) do
    all_good = all_good + thread:get("good")
    all_bad = all_bad + thread:get("bad")
  end
  local lost = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format("\\ncounted %d %d %d %f %f\\n",
    all_good, all_bad + lost, summary.duration, latency:percentile(50), latency:percentile(99)))
end
"""
_COUNTED = re.compile(r"^counted (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)$", re.MULTILINE)


def with_wrk(port: int, request: Request, *, seconds: float, connections: int) -> Load:
    """Load with wrk on one thread. wrk knows whole seconds only, so a fraction is rounded up.

    ValueError for a request with ``fresh`` headers: its Lua has no way to ask Python for them.
    """
    if request.fresh is not None:
        raise ValueError(f"wrk cannot make new headers for each request to {request.path}; use with_asyncio")
    whole = max(1, round(seconds + 0.49))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        script = Path(folder, "request.lua")
        script.write_text(_lua(request), encoding="ascii")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{whole}s", f"--timeout={ANSWER_SECONDS:.0f}s"]
        command += ["-s", str(script), f"http://{HOST}:{port}{request.path}"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=whole + 30, check=False)
    match = _COUNTED.search(told.stdout)
    if match is None:
        raise RuntimeError(f"wrk did not report its counts: {told.stdout[-500:]} {told.stderr[-500:]}")
    good, bad, micros, p50, p99 = match.groups()
    return Load(int(good), int(bad), int(micros) / 1e6, float(p50) / 1e3, float(p99) / 1e3)


def _lua(request: Request) -> str:
    headers = "\n".join(
        f"wrk.headers[{_quoted(name.encode())}] = {_quoted(value.encode())}" for name, value in request.headers.items()
    )
    return _LUA.format(
        method=_quoted(request.method.encode()),
        body=_quoted(request.body),
        tails=", ".join(map(_quoted, request.tails)),
        round=_quoted(b"%d" % request.first() if request.once else b""),
        headers=headers,
        expect=_quoted(request.expect.encode()),
    )


def _quoted(raw: bytes) -> str:
    # Decimal escapes carry any byte, so no body can break out of its string.
    return '"' + "".join(f"\\{byte:03d}" for byte in raw) + '"'


# --- asyncio --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    sent: int = 0
    last: int = sys.maxsize
    good: int = 0
    bad: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))

    def goes_on(self, until: float, connections: int) -> bool:
        """Whether another request is to be sent."""
        in_time = time.perf_counter() < until or self.good + self.bad < connections
        return in_time and self.sent < self.last


def with_asyncio(port: int, request: Request, *, seconds: float, connections: int) -> Load:
    """Load with a client of our own: HTTP/1.1, kept-alive connections, one request in flight on each.

    At least as many answers as connections are waited for, however late: a round without any would say nothing.
    """
    return _loaded(port, request, seconds, connections, sys.maxsize)


def with_count(port: int, request: Request, count: int, *, connections: int, seconds: float = 60.0) -> Load:
    """Likewise, but a number of requests and no more, if there is time for them."""
    return _loaded(port, request, seconds, connections, count)


def _loaded(port: int, request: Request, seconds: float, connections: int, count: int) -> Load:
    first = request.first()
    tally = _Tally(first, first + count)
    began = time.perf_counter()
    asyncio.run(_drive(port, request, began + seconds, connections, tally))
    took = time.perf_counter() - began
    ordered = sorted(tally.latencies)
    return Load(tally.good, tally.bad, took, percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3)


async def _drive(port: int, request: Request, until: float, connections: int, tally: _Tally) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_caller(port, request, tally, lambda: tally.goes_on(until, connections)))


async def _caller(port: int, request: Request, tally: _Tally, goes_on: Callable[[], bool]) -> None:
    while goes_on():
        try:
            await _connection(port, request, tally, goes_on)
        except (OSError, EOFError, ValueError, TimeoutError):
            tally.bad += 1
            await asyncio.sleep(0.01)  # a server that refuses connections must not turn this into a busy loop


async def _connection(port: int, request: Request, tally: _Tally, goes_on: Callable[[], bool]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    expect = request.expect.encode()
    try:
        while goes_on():
            began = time.perf_counter()
            tally.sent += 1
            writer.write(_on_the_wire(port, request, tally.sent))
            async with asyncio.timeout(ANSWER_SECONDS):
                status, body = await read_answer(reader)
            tally.latencies.append(time.perf_counter() - began)
            if status == 200 and expect in body:
                tally.good += 1
            else:
                tally.bad += 1
    finally:
        writer.close()


def _on_the_wire(port: int, request: Request, number: int) -> bytes:
    body = request.body_of(number)
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: {HOST}:{port}"]
    lines += [f"{name}: {value}" for name, value in request.headers_with(port, body).items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    if length is not None:
        return status, await reader.readexactly(int(length.group(1)))
    if b"\r\ntransfer-encoding: chunked" in head:
        return status, await _chunks(reader)
    raise ValueError("the answer has neither a length nor chunks")


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(body)
