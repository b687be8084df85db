"""Gateways for tests: a real process of its own, or one in this process where the test holds the parts.

Both listen on a free port of loopback and are spoken to by the same small HTTP client, which waits for a bounded time
and follows nothing.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import uvicorn

from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.server.app import app
from agent3.server.build import Server, build
from agent3.server.connection import make_connection_class
from agent3.settings import Settings, Storage
from tests.support.forks import WITHOUT_STAGE, Forked, run_forked

__all__ = ["AGENT3", "Door", "Hosted", "Process", "Reply", "environment", "gateway", "hosted", "run_agent3"]

AGENT3 = str(Path(sys.executable).parent / "agent3")
ROOT = Path(__file__).parents[2]
START = 200.0
"""Seconds that a process has to come up; a starved machine has been seen to need more than 60."""


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The one form of a refusal."""
        assert self.headers["content-type"] == "application/json"
        body = self.json
        assert set(body) == {"error"}, body
        error: dict[str, Any] = body["error"]
        assert {"code", "message", "retryable"} <= set(error)
        return error


@dataclass
class Door:
    """Something that answers HTTP at an address."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, kw_only=True)

    def connect(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request. A body that is not bytes goes as JSON; ``last_event_id`` stands for the header Last-Event-ID."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connect()
        try:
            connection.request(method, path, raw, {**self.headers, **named})
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, fields, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def call(self, agent: str, message: str = "", *, prefer: str | None = None, **more: Any) -> Reply:
        """POST /v1/call."""
        headers = {"prefer": prefer} if prefer else {}
        return self.post("/v1/call", {"agentId": agent, "message": message, **more}, **headers)

    def as_(self, key: str) -> Door:
        """The same door for a client with a key."""
        return Door(self.url, headers={**self.headers, "authorization": f"Bearer {key}"})


@dataclass
class Process(Door):
    """A gateway that runs as a process of its own. ``lines`` is what it printed until it served."""

    process: Forked
    data: Path
    lines: list[str]
    log: Path

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Stop it and wait; gives the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(seconds)

    def said(self) -> str:
        """What it logged."""
        return self.log.read_text()


def environment(data: Path, **more: str) -> dict[str, str]:
    """The environment of a child: its own data folder, and nothing of ours that could lead it to another gateway."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    plain = {"AGENT3_SEARCH_SEMANTIC": "false"}  # the encoder's weights take a second to load
    return {**kept, **plain, "AGENT3_DATA": str(data), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **more}


def run_agent3(
    data: Path, *arguments: str, cwd: Path | None = None, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return run_forked(arguments, env=environment(data, **more), cwd=cwd or data, stdin=stdin, timeout=200)


@contextmanager
def gateway(
    data: Path, *arguments: str, cwd: Path | None = None, config: str | None = None, stage: bool = False, **more: str
) -> Iterator[Process]:
    """``agent3 serve`` on a free port, until the end of the block.

    With ``--demo`` it has the small agents. The processes of the travel demo would take seconds of a processor in each
    gateway; they come with ``stage``.
    """
    data.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (data / "agent3.toml").write_text(config)
        arguments = (*arguments, "--config", str(data / "agent3.toml"))
    log = data / f"serve-{len(list(data.glob('serve-*')))}.log"
    command = ["serve", "--port", "0", *arguments]
    surroundings = environment(data, **({} if stage else {WITHOUT_STAGE: "1"}), **more)
    with Forked(command, env=surroundings, cwd=cwd or data, stderr=log) as process:
        try:
            lines = _until_served(process.stdout)
            if not lines:
                process.kill()
                raise AssertionError(f"agent3 serve did not come up: {log.read_text()}")
            found = Process(lines[0].split()[-1], process, data, lines, log)
            yield found
            found.stop()
        finally:
            process.kill()


def _until_served(output: IO[str]) -> list[str]:
    """The greeting, which is written and so comes in one piece; nothing when the process ends or takes too long."""
    pieces: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        while piece := os.read(handle, 65_536):
            pieces.put(piece)
        os.close(handle)
        pieces.put(b"")

    handle = os.dup(output.fileno())
    threading.Thread(target=read, daemon=True).start()
    try:
        return pieces.get(timeout=START).decode().splitlines()
    except queue.Empty:
        return []


@dataclass
class Hosted(Door):
    """A gateway in this process, in a loop of its own thread."""

    server: Server
    loop: asyncio.AbstractEventLoop

    def run(self, work: Any) -> Any:
        """Run a coroutine in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Everything in a table."""

        async def read() -> list[dict[str, Any]]:
            await self.server.core.ledger.flush()
            return [dict(row) for row in await self.server.database.all(f"SELECT * FROM {table}")]

        found: list[dict[str, Any]] = self.run(read())
        return found


class _Starting:
    def __init__(self) -> None:
        self.ready = threading.Event()
        self.hosted: Hosted | None = None
        self.wrong: BaseException | None = None
        self.stop: asyncio.Event | None = None


@contextmanager
def hosted(
    folder: Path, agents: Sequence[LocalAgent] = (), settings: Settings | None = None, metrics: Metrics | None = None
) -> Iterator[Hosted]:
    """A gateway in this process on a database of its own, until the end of the block.

    Without ``metrics`` it counts where every other one of this process does, and labels may be used up.
    """
    chosen = settings or Settings()
    if not chosen.storage.url:
        import msgspec

        chosen = msgspec.structs.replace(chosen, storage=Storage(url=f"sqlite:///{folder / 'hosted.db'}"))
    start = _Starting()
    thread = threading.Thread(target=lambda: asyncio.run(_host(chosen, agents, start, metrics)))
    thread.start()
    assert start.ready.wait(START)
    try:
        if start.wrong is not None:
            raise start.wrong
        assert start.hosted is not None
        yield start.hosted
    finally:
        if start.hosted is not None and start.stop is not None:
            start.hosted.loop.call_soon_threadsafe(start.stop.set)
        thread.join(60)
        assert not thread.is_alive()


async def _host(settings: Settings, agents: Sequence[LocalAgent], start: _Starting, metrics: Metrics | None) -> None:
    start.stop = asyncio.Event()
    try:
        async with build(settings, agents, metrics=metrics) as server:
            listener = socket.create_server(("127.0.0.1", 0))
            doors = app(server)
            http = make_connection_class(  # as agent3 serve does
                settings.server.body_seconds,
                doors.lane,
                compress=settings.server.compress_bytes,
                pool=doors.pool,
                heads=doors.heads,
            )
            config = uvicorn.Config(
                doors, log_config=None, lifespan="on", timeout_graceful_shutdown=1, http=http, ws="none"
            )
            uvicorn_server = uvicorn.Server(config)
            serving = asyncio.create_task(uvicorn_server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            ports = await doors.listen(url)
            start.hosted = Hosted(url, server, asyncio.get_running_loop())
            start.ready.set()
            await start.stop.wait()
            uvicorn_server.should_exit = True
            await asyncio.wait_for(serving, 60)
            for port in ports:
                await port.aclose()
            listener.close()
    except BaseException as wrong:  # noqa: BLE001 - told to the test that waits for it
        start.wrong = wrong
    finally:
        start.ready.set()
