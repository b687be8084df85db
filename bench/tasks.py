"""What tasks of A2A cost beside messages: a large one written, many that wait for a person, one that many listen to.

Rows, for the SDK and for ours:

    …_write_100kb    a task with a history of 20 messages of text and data, as the JSON of a result, in this process
    …_waiting_2000   2,000 tasks that wait for input; ``memory_mib`` is what the server's process grew by. Ours is an
                     async function that waits in its frame; with ``_plain``, a plain one that is run again
    …_watched_1000   one event of a task told to 1,000 subscribers; ``p99_ms`` is until the last of them has it, and
                     the CPU is per subscriber
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from bench import ours
from bench.harness import HEALTHY, Row, ask, cpu_seconds, measure, resident_mb, say, serving, uvicorn, with_extra
from bench.load import HOST, Request, with_count

__all__ = ["waiting", "watched", "written"]

FAST = ("--loop", "uvloop", "--http", "httptools")
DESK = "bench.apps.a2a_desk:agent"
HOME = "/agents/desk/a2a"
MESSAGES = 20
WAITING = 2_000
WARM = 100
WAITING_MIB = 20.0
LISTENERS = 1_000
FILES = 4_096
PATIENCE = 60.0
JSON = {"Content-Type": "application/json", "A2A-Version": "1.0"}
_TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 8
_DATA = {
    "offers": [
        {"sku": f"SKU-{number:04}", "price": 19.5 + number, "stock": number % 7, "tags": ["new", "blue"], "sold": False}
        for number in range(50)
    ]
}


# A large task


def written(rounds: int) -> list[Row]:
    """A large task as the JSON of a result: the SDK's way and ours, each the best of its rounds."""
    rows = []
    for name, write, times in (("sdk_write_100kb", _sdk_writer(), 20), ("ours_write_100kb", _our_writer(), 1_000)):
        write(0)
        best = max((measure(name, write, range(times)) for _ in range(rounds)), key=lambda row: row.rate or 0)
        say(f"{name}: {best.rate or 0:,.0f}/s")
        rows.append(best)
    return rows


def _our_writer() -> Callable[[int], object]:
    from agent3.protocols.a2a.wire import CODECS
    from agent3.protocols.a2a.wire import types as shapes

    said = tuple(
        shapes.Message(
            message_id=f"m{number}",
            role=shapes.Role.USER,
            parts=(shapes.Part(text=_TEXT), shapes.Part(data=_DATA)),
        )
        for number in range(MESSAGES)
    )
    status = shapes.Status(state=shapes.State.COMPLETED, timestamp="2026-01-01T00:00:00.000Z")
    task = shapes.Task(id="t", context_id="c", status=status, history=said)
    asked = shapes.Send(message=said[0])
    return lambda _: CODECS["1.0"].write_result(asked, task)


def _sdk_writer() -> Callable[[int], object]:
    from a2a.types import a2a_pb2 as wire
    from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]

    data = ParseDict({"data": _DATA}, wire.Part())
    said = [
        wire.Message(message_id=f"m{number}", role=wire.ROLE_USER, parts=[wire.Part(text=_TEXT), data])
        for number in range(MESSAGES)
    ]
    status = wire.TaskStatus(state=wire.TASK_STATE_COMPLETED)
    task = wire.SendMessageResponse(task=wire.Task(id="t", context_id="c", status=status, history=said))
    return lambda _: json.dumps(MessageToDict(task)).encode()


# Tasks that wait


def _message(text: str, skill: str | None, path: str, method: str = "SendMessage", expect: str = "") -> Request:
    metadata = {"metadata": {"skillId": skill}} if skill else {}
    said = {"messageId": "m@", "role": "ROLE_USER", "parts": [{"text": text}], **metadata}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": said}}
    head, tail = json.dumps(body).encode().split(b"@")
    return Request(path, expect, head, JSON, tails=(tail,), once=True)


def waiting() -> list[Row]:
    """How much a server grows by tasks that wait for input."""
    asks = "TASK_STATE_INPUT_REQUIRED"
    sdk = _message("wait", None, "/", expect=asks)
    rows = [_waiting("sdk_waiting_2000", lambda port, _: uvicorn("a2a_sdk", port, *FAST), sdk, {})]
    for name, skill in (("ours_waiting_2000", "wait"), ("ours_waiting_2000_plain", "wait_plain")):
        request = ours.with_key(_message("wait", skill, HOME, expect=asks))
        row = _waiting(name, ours.serve(DESK), request, ours.ENVIRONMENT)
        grown = row.extra.get("memory_mib")
        rows.append(with_extra(row, limit=f"{WAITING_MIB:g} MiB", met=grown is not None and grown < WAITING_MIB))
    return rows


def _waiting(name: str, command: ours.Command, request: Request, environment: Mapping[str, str]) -> Row:
    with serving(command, HEALTHY, environment=environment) as server:
        with_count(server.port, request, WARM, connections=4)
        before = resident_mb(server.process.pid)
        load = with_count(server.port, request, WAITING, connections=16)
        after = resident_mb(server.process.pid)
    grown = (after - before) * 1e6 / 1_048_576 if after is not None and before is not None else None
    say(f"{name}: {grown or 0:.1f} MiB")
    lost = WAITING - load.good
    return Row(name, load.rate, load.p50_ms, load.p99_ms, errors=lost, extra={"memory_mib": grown, "tasks": load.good})


# A task that many listen to


def watched(rounds: int) -> list[Row]:
    """How long one event takes to a thousand subscribers, and what it costs the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(FILES, hard)), hard))
    sdk = _message("hold", None, "/", "SendStreamingMessage")
    mine = ours.with_key(_message("hold", "hold", HOME, "SendStreamingMessage"))
    word = ours.with_key(_message("a word", "tell", HOME))
    return [
        _watched("sdk_watched_1000", lambda p, _: uvicorn("a2a_sdk", p, *FAST), sdk, Request("/tell", ""), {}, rounds),
        _watched("ours_watched_1000", ours.serve(DESK), mine, word, ours.ENVIRONMENT, rounds),
    ]


def _watched(
    name: str, command: ours.Command, begin: Request, word: Request, environment: Mapping[str, str], rounds: int
) -> Row:
    with serving(command, HEALTHY, environment=environment) as server:
        laps, busy, lost = asyncio.run(_listen(server.port, server.process.pid, begin, word, rounds))
    say(f"{name}: {max(laps) * 1e3:,.0f} ms")
    took = statistics.median(laps)
    cost = busy * 1e3 / (LISTENERS * rounds) if busy is not None else None
    last = {"subscribers": LISTENERS}
    return Row(name, LISTENERS / took, p99_ms=took * 1e3, cpu_ms_per_call=cost, errors=lost, extra=last)


async def _listen(
    port: int, pid: int, begin: Request, word: Request, rounds: int
) -> tuple[list[float], float | None, int]:
    """Seconds of each round until the last subscriber had its event, the CPU of all of them, and events missing."""
    async with asyncio.timeout(PATIENCE * 2):
        first, head = await _stream(port, begin)
        task = json.loads(head)["result"]["task"]["id"]
        asked = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
        follow = replace(begin, body=json.dumps(asked).encode(), tails=())
        streams = [first, *[(await _stream(port, follow))[0] for _ in range(LISTENERS)]]
        await asyncio.gather(*map(_settle, streams))
        before, laps, lost = cpu_seconds(pid), [], 0
        for _ in range(rounds):
            began = time.perf_counter()
            heard = asyncio.gather(*(_frame(one[0]) for one in streams[1:]), return_exceptions=True)
            new = replace(word, body=word.body_of(time.time_ns()), tails=())
            await asyncio.to_thread(ask, port, new, timeout=PATIENCE)
            lost += sum("a word" not in str(one) for one in await heard)
            laps.append(time.perf_counter() - began)
        after = cpu_seconds(pid)
        for _, writer in streams:
            writer.close()
    return laps, after - before if after is not None and before is not None else None, lost


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _stream(port: int, request: Request) -> tuple[Stream, str]:
    """An open stream, and its first frame."""
    reader, writer = await asyncio.open_connection(HOST, port)
    body = request.body_of(time.time_ns())
    lines = [f"POST {request.path} HTTP/1.1", f"Host: {HOST}:{port}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in request.headers_with(port, body).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    return (reader, writer), await _frame(reader)


async def _frame(reader: asyncio.StreamReader) -> str:
    """The data of the next event; signs of life are passed over."""
    while True:
        line = (await reader.readuntil(b"\n")).strip()
        if line.startswith(b"data:"):
            return line[5:].decode()


async def _settle(stream: Stream) -> None:
    """Read what came already, until nothing does for a while."""
    while True:
        try:
            async with asyncio.timeout(0.5):
                await _frame(stream[0])
        except TimeoutError:
            return
