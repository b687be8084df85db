"""Running a gateway: over HTTP until it is stopped, or over standard input and output until the host leaves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any, NamedTuple, cast

import uvicorn

from agent3.client.announcement import announce, withdraw
from agent3.connections import IDLE_SECONDS, GuardedConnection, Pool
from agent3.directory.segments import keep_memory_together
from agent3.errors import SetupError
from agent3.gateway.protocol import Listening
from agent3.identity.certificates import ListenerCertificate
from agent3.identity.doorkeeper import Doorkeeper
from agent3.observe import logs
from agent3.observe.loop_watch import TICK_SECONDS, LoopWatch
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.functions import LocalAgent
from agent3.server.app import app
from agent3.server.build import Server, build
from agent3.server.collector import collect_less
from agent3.server.connection import make_connection_class
from agent3.server.health_port import HealthPort
from agent3.server.loading import check_ids
from agent3.server.peers import BEAT, BEAT_SECONDS, READY, RETIRE, Peers, say
from agent3.settings import Settings, database_url
from agent3.storage.connect import without_password

__all__ = [
    "Beside",
    "InBackground",
    "listen",
    "listen_for_health",
    "rehearse",
    "serve_forever",
    "serve_stdio",
    "serve_worker",
]


Beside = Callable[[Server, str], AbstractAsyncContextManager[Sequence[str]]]
"""What runs beside a gateway while it serves: given the gateway and its URL, it yields lines for the greeting."""
BACKLOG = 65_535
"""Connections that wait to be accepted, as many as the system lets: of one that finds no room the first packet is lost,
and its client tries again only after a second."""
_HEALTH_BACKLOG = 256
_LAST_PORT = 65_535


def serve_forever(
    settings: Settings,
    agents: Sequence[LocalAgent] = (),
    *,
    beside: Beside | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve until a signal comes, then let running calls finish. Prints the addresses, and how to try it."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    check_ids(agents)
    _check_clients(settings)
    keep_memory_together()

    async def serve(listener: socket.socket) -> None:
        async with _open(settings, agents, listener, beside, health=health) as opened:
            note = announce(opened.url, settings)
            try:
                with opened.http.capture_signals():  # from the first word on: who reads it may stop it at once
                    _greet(opened, settings, agents)
                    collect_less()
                    await opened.http.serve(sockets=[listener])
            finally:
                withdraw(note)

    with ExitStack() as stack:
        ready = stack.enter_context(listener or listen(settings))
        if (health := listen_for_health(settings)) is not None:
            stack.enter_context(health)
        _run(serve(ready))


def _check_clients(settings: Settings) -> None:
    """Raise what is wrong with the clients of the settings before a port is opened.

    Whether there are any is known when the database is open: ``app`` asks again, before a request is answered.
    """
    if settings.clients or settings.server.local_key:
        Doorkeeper(settings, METRICS)


class InBackground:
    """A gateway in a thread of its own for the length of a ``with`` block, whose value is its URL. Prints nothing."""

    def __init__(self, settings: Settings, agents: Sequence[LocalAgent] = (), *, beside: Beside | None = None):
        self._settings = settings
        self._agents = agents
        self._beside = beside
        self._url: Future[str] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._serve, name="agent3-gateway")

    def __enter__(self) -> str:
        check_ids(self._agents)
        _check_clients(self._settings)
        self._thread.start()
        return self._url.result()

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    def _serve(self) -> None:
        async def serve(listener: socket.socket) -> None:
            async with _open(self._settings, self._agents, listener, self._beside) as opened:
                loop, stop = asyncio.get_running_loop(), opened.http.stop
                self._stop = lambda: loop.call_soon_threadsafe(stop)
                self._url.set_result(opened.url)
                await opened.http.serve(sockets=[listener])

        try:
            with listen(self._settings) as listener:
                _run(serve(listener))
        except BaseException as error:
            if self._url.done():
                raise
            self._url.set_exception(error)


class _Opened(NamedTuple):
    url: str
    http: _Uvicorn
    ports: Sequence[Listening]
    notes: Sequence[str]
    """Lines of what runs beside it."""
    health: str | None
    """The URL of the port for health and metrics alone, if there is one."""


@asynccontextmanager
async def _open(
    settings: Settings,
    agents: Sequence[LocalAgent],
    listener: socket.socket,
    beside: Beside | None,
    peers: Peers | None = None,
    *,
    health: socket.socket | None = None,
) -> AsyncIterator[_Opened]:
    """A gateway behind a socket, ready to be served; closed in order at the end."""
    async with AsyncExitStack() as stack:
        process = peers.token if peers is not None else ""
        server = await stack.enter_async_context(build(settings, agents, process=process))
        server.peers = peers
        server.directory.begin_indexing()
        doors = app(server)
        connections = make_connection_class(
            settings.server.body_seconds,
            doors.lane,
            compress=settings.server.compress_bytes,
            pool=doors.pool,
            heads=doors.heads,
        )
        config = uvicorn.Config(
            doors,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(settings.server.shutdown_seconds),
            timeout_keep_alive=IDLE_SECONDS,
            server_header=False,
            http=connections,
            ws="none",
            backlog=BACKLOG,
        )
        certificate = ListenerCertificate.find(settings.server)
        if certificate is not None:
            config.load()
            config.ssl = certificate.context
            following = asyncio.create_task(certificate.follow(), name="certificate")
            stack.callback(following.cancel)
        url = _url_of(listener, "http" if certificate is None else "https")
        ports = await doors.listen(url)
        for open_port in ports:
            stack.push_async_callback(open_port.aclose)
        if health is not None:
            answering = HealthPort(server, health, doors.find_refusal)
            stack.push_async_callback(answering.aclose)
            await answering.start()
        notes = () if beside is None else await stack.enter_async_context(beside(server, url))
        http = _Uvicorn(config, server, doors.pool) if peers is None else _Worker(config, server, doors.pool, peers)
        watch = asyncio.create_task(LoopWatch(server.metrics, _measure_load(http, doors.pool)).run(), name="loop watch")
        try:
            yield _Opened(url, http, ports, notes, None if health is None else _url_of(health, "http"))
        finally:
            watch.cancel()


def _url_of(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _measure_load(http: uvicorn.Server, pool: Pool) -> Callable[[float], bool]:
    """Tells the pool at each tick of the watch how late the loop is, and how much it answers per tick."""
    seen, ticked = http.server_state.total_requests, time.monotonic()

    def tick(late: float) -> bool:
        nonlocal seen, ticked
        total, now = http.server_state.total_requests, time.monotonic()
        answered = (total - seen) * TICK_SECONDS / max(now - ticked, TICK_SECONDS)
        seen, ticked = total, now
        return pool.overload.tick(late, answered)

    return tick


async def rehearse(settings: Settings) -> Server:
    """Put together all that ``serve_forever`` would serve with these settings, and take it apart again: nobody is
    listened to, and no work of others is taken over. Raises what serving would raise, except for a port in use.

    The gateway that comes back is closed: it tells what it was made of.
    """
    how = settings.server
    _check_clients(settings)
    ListenerCertificate.find(how)
    for port in (how.port, how.health_port):
        if port is not None:
            _bind(how.host, 0 if 0 <= port <= _LAST_PORT else port).close()
    async with build(settings, take_over=False, metrics=Metrics()) as server:
        app(server)
        for protocol in server.protocols.values():
            await protocol.check()
    return server


def serve_stdio(protocol: str, settings: Settings, agents: Sequence[LocalAgent] = ()) -> None:
    """Serve one host by one protocol. Standard output belongs to the protocol; logs go to standard error."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    check_ids(agents)

    async def serve() -> None:
        async with build(settings, agents) as server:
            # Ctrl-C ends it. A thread waits for input and cannot be cancelled, so the process exits with it; what is
            # open is closed before.
            leaving: list[asyncio.Task[None]] = []

            async def leave() -> None:
                try:
                    await asyncio.wait_for(server.core.aclose(), 5)
                    await asyncio.wait_for(server.database.aclose(), 5)
                finally:
                    os._exit(130)

            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, lambda: leaving.append(asyncio.ensure_future(leave())) if not leaving else os._exit(130)
            )
            await server.protocols[protocol].serve_stdio()

    _run(serve())


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class _Uvicorn(uvicorn.Server):
    """Stops on a signal and returns. The original raises the signal again, and the process would die before cleanup.

    It stops listening when those who probe its readiness have noticed, and at once on a second signal.
    """

    def __init__(self, config: uvicorn.Config, server: Server, pool: Pool):
        super().__init__(config)
        self._server = server
        self._pool = pool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._server.readiness.is_stopping:
            self._server.stop()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._server.readiness.is_noticed():
            self.should_exit = True
        return await super().on_tick(counter)

    def stop(self) -> None:
        """Stop listening at once, and let running calls finish."""
        self._server.stop()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.core.begin_leaving()  # requests and jobs have the same seconds, not one after the other
        if not self.config.timeout_graceful_shutdown:  # nothing is waited for
            self._server.core.cut_off()
        await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        try:
            await super()._wait_tasks_to_complete()
        except asyncio.CancelledError:  # their time is over, and what still runs is cancelled next
            self._server.core.cut_off()
            raise

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Worker(_Uvicorn):
    """One of several processes behind a port. SIGTERM lets it alone leave: the others get its connections.

    When all stop, the supervisor says so; SIGINT and SIGHUP, which a terminal sends to all, are the supervisor's alone.
    """

    def __init__(self, config: uvicorn.Config, server: Server, pool: Pool, peers: Peers):
        super().__init__(config, server, pool)
        self._peers = peers
        peers.take = self.take
        peers.on_probe = server.readiness.note_probe

    def retire(self) -> None:
        """Accept nothing more, give idle connections to the others, and let running calls finish."""
        self._pool.is_leaving = True
        self._peers.leave()
        self.should_exit = True

    def take(self, given: socket.socket, data: bytes, origin: bytes = b"") -> None:
        """Serve a connection of another worker, with what that has read of it, and has told of where it comes from."""
        if self.should_exit:
            given.close()
            return

        def make() -> asyncio.Protocol:
            protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            taken = cast("GuardedConnection", protocol)
            taken.initial, taken.origin = data, origin
            return protocol

        async def connect() -> None:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(make, given)
            except OSError:  # its client left on the way
                given.close()

        task = asyncio.get_running_loop().create_task(connect(), name="taken connection")
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(self.retire))
        yield


def serve_worker(
    settings: Settings,
    agents: Sequence[LocalAgent],
    listener: socket.socket,
    folder: Path,
    token: str,
    line: socket.socket,
    *,
    greets: bool,
    health: socket.socket | None = None,
) -> None:
    """Serve as one of several workers, until the supervisor at the other end of the line says otherwise, or is gone."""
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    check_ids(agents)
    _check_clients(settings)
    keep_memory_together()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        peers = Peers(folder, token, METRICS)
        async with _open(settings, agents, listener, None, peers, health=health) as opened:
            http = opened.http
            assert isinstance(http, _Worker)

            def obey() -> None:
                while True:
                    try:
                        said = line.recv(1)
                    except OSError:
                        said = b""
                    if said == RETIRE:
                        loop.call_soon_threadsafe(http.retire)
                    else:  # to stop; also when the supervisor is gone, which cannot say so
                        loop.call_soon_threadsafe(http.handle_exit, signal.SIGTERM, None)
                    if not said:
                        return

            async def beat() -> None:
                while not http.started:  # noqa: ASYNC110 - uvicorn tells it in no other way
                    await asyncio.sleep(0.01)
                await peers.open()
                if greets:
                    _greet(opened, settings, agents)
                collect_less()
                say(line, READY)
                while True:
                    await asyncio.sleep(BEAT_SECONDS)
                    say(line, BEAT)

            beating = asyncio.create_task(beat(), name="heartbeat")
            threading.Thread(target=obey, name="agent3-supervisor", daemon=True).start()
            try:
                await http.serve(sockets=[listener])
            finally:
                beating.cancel()
                await peers.aclose()
        peers.write_counts()  # once more, with what was counted while everything was closed

    _run(serve())


def listen(settings: Settings) -> socket.socket:
    """Bind the port before anything else is started, so that a taken one is reported in one sentence."""
    host, port = settings.server.host, settings.server.port
    listener = _bind(host, port)
    listener.listen(BACKLOG)
    return listener


def listen_for_health(settings: Settings) -> socket.socket | None:
    """Bind the port for health and metrics alone, where the settings name one."""
    port = settings.server.health_port
    if port is None:
        return None
    listener = _bind(settings.server.host, port)
    listener.listen(_HEALTH_BACKLOG)
    return listener


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OverflowError):
            reason = "a port must be a number from 0 to 65535."
        elif error.errno == errno.EADDRINUSE:
            reason = (
                "the port is in use, perhaps by another gateway. Choose another with --port, or --port 0 for a "
                "free one."
            )
        else:
            reason = (
                f"{error.strerror}. Choose an address of this machine with --host, and a port above 1023 with --port."
            )
        raise SetupError(f"Cannot listen on {host}:{port}: {reason}") from None
    return listener


def _greet(opened: _Opened, settings: Settings, agents: Sequence[LocalAgent]) -> None:
    """Print the addresses, what to paste into a client, and one command to try."""
    url, ports = opened.url, opened.ports
    health = url if opened.health is None else opened.health
    entry: dict[str, Any] = {"type": "http", "url": f"{url}/mcp"}
    keyed = [client.id for client in settings.clients if client.key and not client.require_signature]
    if keyed:
        entry["headers"] = {"Authorization": "Bearer KEY"}
    config = {"mcpServers": {"agent3": entry}}
    lines = [
        f"agent3 serves at {url}",
        f"  MCP      {url}/mcp",
        f"  A2A      {url}/a2a",
        f"  REST     {url}/openapi.json",
        *(["  Ports    " + ", ".join(f"{port.name} at port {port.port}" for port in ports)] if ports else ()),
        f"  Health   {health}/healthz  {health}/readyz  {health}/metrics",
        f"  State    {without_password(database_url(settings))}",
        "",
        "Add it to an MCP client:",
        *(f"  {line}" for line in json.dumps(config, indent=2).splitlines()),
        f"  or, for Claude Code:  claude mcp add --transport http agent3 {url}/mcp"
        + (' --header "Authorization: Bearer KEY"' if keyed else ""),
    ]
    if agents and (keyed or not settings.clients):  # the command line can send a key, but not sign requests
        own = Path(sys.argv[0])
        command = "agent3"
        if own.name == "agent3" and own.parent not in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
            # Not on the PATH: by its path, from here if it is in a virtual environment of this folder.
            here = Path.cwd()
            command = str(own.relative_to(here)) if own.parent.parent.parent == here else str(own)
        example = f"show {quote(agents[0].id)}"
        if any(agent.id == "pizza" for agent in agents):
            example = 'call pizza "I want a pepperoni pizza"'
        lines += ["", "Try it in another terminal:", f"  {'AGENT3_KEY=KEY ' if keyed else ''}{command} {example}"]
    lines += opened.notes
    if keyed:
        lines += ["", f"KEY is the key of a client: {', '.join(keyed)}."]
    elif settings.clients:
        lines += ["", "Its clients sign their requests; see docs/reference/signing.md."]
    print("\n".join(lines), flush=True)  # noqa: T201 - this is what the command is for
