"""HTTP connections of a gateway: those with limits (connections.py), and a short way for the most common requests.

The short way: a POST that arrived whole and that a fast lane can answer is answered without ASGI in between, which
costs as much as all of MCP. If its head was answered before (``KnownHeads``), it is not even parsed. Whatever the lane
declines goes to the parser and the app, as if nothing had been tried.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec.structs import replace
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent3.calls.coroutines import Left
from agent3.connections import GuardedConnection, Origin, Pool
from agent3.gateway.lanes import TRACE, Guest, Lane, Reply
from agent3.identity.certificates import CERTIFICATE, PeerCertificate, read_peer
from agent3.identity.doorkeeper import KNOWN
from agent3.observe.logs import get as logger
from agent3.server.compression import choose_encoding, pack

__all__ = ["KnownHeads", "make_connection_class"]

T = TypeVar("T")
FindLane = Callable[[str], Lane | None]
"""The lane of a path, if it has one."""

log = logger("server")

_MAX_BODY = 65_536
"""Bytes of a body that are waited for here; a larger one goes to the app, which reads it piece by piece."""
_BODY_SECONDS = 1.0
"""Seconds to wait for the rest of a body before the request goes to the app, which may wait longer."""
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
_FAILED = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 21\r\nconnection: close\r\n\r\nInternal Server Error"
)

_MAX_KNOWN = 1_000
_MAX_KNOWN_HEAD = 4_096
_MAX_LENGTH_DIGITS = 9
_END_OF_HEAD = b"\r\n\r\n"
_PARSED_EACH_TIME = frozenset({b"connection", b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that decide how a request is read or answered, which is up to the parser each time."""
_TRACE = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_LENGTH = 55


class KnownHeads(Generic[T]):
    """What parser, doorkeeper and lane found out about the head of a request, by its bytes. The oldest go first.

    Clients repeat their headers byte for byte on every request of a connection; only the length of the body and the
    trace differ, so heads are compared without them. A head is learned only from a request that was parsed and
    answered.

    Equal bytes are found by a dict, whose hash is seeded anew in every process: the time it takes reveals nothing about
    a key in them.
    """

    def __init__(self, limit: int = _MAX_KNOWN):
        self._limit = limit
        self._known: dict[bytes, T] = {}
        self._last: tuple[bytes, bytes, T] | None = None
        """The head that was found last, before and behind the length of its body."""

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all, because who sent them may no longer be who they were."""
        self._known.clear()
        self._last = None

    def find(self, data: bytes) -> tuple[T, int, int, bytes | None] | None:
        """What is known of the head at the start of the data, where the body begins, how much of it is missing, and
        the ``traceparent`` of the head.

        None for an unknown head, and if more than one request has arrived.
        """
        # Most often it is the head that was found last: then two comparisons do, and nothing is searched or hashed.
        if self._last is not None:
            before, after, known = self._last
            start = len(before)
            stop = data.find(b"\r\n", start)
            length = data[start:stop]
            if data.startswith(before) and data.startswith(after, stop) and length.isdigit():
                if len(length) > _MAX_LENGTH_DIGITS:
                    return None
                body = stop + len(after)
                missing = body + int(length) - len(data)
                return (known, body, missing, None) if missing >= 0 else None
        return self._search(data)

    def _search(self, data: bytes) -> tuple[T, int, int, bytes | None] | None:
        end = data.find(_END_OF_HEAD)
        start, stop = _find_length(data, end)
        if not start or not data[start:stop].isdigit():
            return None
        head, trace = _split_trace(data[:start] + data[stop:end])
        known = self._known.get(head)
        if known is None:
            return None
        if trace is None:
            self._last = data[:start], data[stop : end + 4], known
        missing = end + 4 + int(data[start:stop]) - len(data)
        return (known, end + 4, missing, trace) if missing >= 0 else None

    def learn(self, data: bytes, headers: Sequence[tuple[bytes, bytes]], known: T) -> None:
        """Remember what is known of the head at the start of the data, which a parser has read as these headers."""
        end = data.find(_END_OF_HEAD)
        start, stop = _find_length(data, end)
        head, names = data[:end], {name for name, _ in headers}
        if (
            start
            and head.startswith(b"POST /")
            # One line for each header, and no name twice: nothing that two parsers could read differently.
            and head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(headers) == len(names)
            and not names & _PARSED_EACH_TIME
            and (b"content-length", data[start:stop]) in headers
        ):
            self._last = None
            self._known[_split_trace(data[:start] + data[stop:end])[0]] = known
            if len(self._known) > self._limit:
                del self._known[next(iter(self._known))]


def _find_length(data: bytes, end: int) -> tuple[int, int]:
    """Where the digits of Content-Length begin and end; (0, 0) in a head that cannot be known."""
    if not 0 < end <= _MAX_KNOWN_HEAD:
        return 0, 0
    found = data.find(b"\r\nContent-Length: ", 0, end)
    if found < 0 and (found := data.find(b"\r\ncontent-length: ", 0, end)) < 0:
        return 0, 0
    stop = data.find(b"\r\n", found + 18)  # at the latest that of the end of the head
    return (found + 18, stop) if stop - found - 18 <= _MAX_LENGTH_DIGITS else (0, 0)


def _split_trace(head: bytes) -> tuple[bytes, bytes | None]:
    """A head without its traceparent, and that; as it is where it has none, or one that is not as usual."""
    found = head.find(b"\r\ntraceparent: ")
    if found < 0 and (found := head.find(b"\r\nTraceparent: ")) < 0:
        return head, None
    value = head[found + 15 : found + 15 + _TRACE_LENGTH]
    rest = head[found + 15 + _TRACE_LENGTH :]
    if _TRACE.fullmatch(value) is None or (rest and not rest.startswith(b"\r\n")):
        return head, None
    return head[:found] + rest, value


def _find_accepted(head: bytes) -> bytes | None:
    """The Accept-Encoding in the bytes of a known head, which has one line for each header."""
    lower = head.lower()
    found = lower.find(b"\r\naccept-encoding:")
    return lower[found + 18 : lower.find(b"\r\n", found + 18)].strip() if found >= 0 else None


def _for_guest(scope: Scope) -> Scope:
    """What of a request holds for all others of its head: not its trace, and not who was found to call by then.

    A key may have been revoked while the request was answered, and is looked at again.
    """
    headers = [pair for pair in scope["headers"] if pair[0] != b"traceparent"]
    return {**{name: value for name, value in scope.items() if name != KNOWN}, "headers": headers}


async def _pack(reply: Reply, accepted: bytes | None) -> tuple[Reply, str | None]:
    encoding = choose_encoding(accepted)
    return (reply, None) if encoding is None else (replace(reply, body=await pack(reply.body, encoding)), encoding)


def make_connection_class(
    seconds: float,
    find_lane: FindLane = lambda path: None,
    *,
    compress: int = 0,
    pool: Pool | None = None,
    heads: KnownHeads[Guest] | None = None,
) -> type[HttpToolsProtocol]:
    """The class for ``uvicorn.Config(http=…)``. Connections wait this long for the head of a request, and for its body.

    Answers of a lane of at least ``compress`` bytes are packed for clients that accept it; 0 packs none.
    """
    members = {
        "seconds": seconds,
        "find_lane": staticmethod(find_lane),
        "heads": KnownHeads[Guest]() if heads is None else heads,
        "compress": compress,
        "pool": pool or Pool(),
    }
    return type("Connection", (_Connection,), members)


class _Connection(GuardedConnection):
    """One connection."""

    find_lane: FindLane
    heads: KnownHeads[Guest]
    compress: int

    _raw: bytes | None = None
    """The bytes that arrived, if the request that is parsed now begins with them."""
    _direct: asyncio.Task[None] | None = None
    """The task that answers a request of a known head, which the parser has not seen."""
    _incomplete: bytes | None = None
    """A request of a known head whose body has not arrived completely."""
    _queued = b""
    """Bytes that arrived behind the request that is answered directly."""
    _disconnected: asyncio.Event | None = None
    _is_last = False
    _scope_extras: MutableMapping[str, Any] | None = None

    _certificate: PeerCertificate | None = None
    """What the client of this connection proved to be. Requests of such a connection are not answered by their head
    alone: on another connection the same bytes may be somebody else's."""

    def connection_made(self, transport: Any) -> None:
        if transport.get_extra_info("ssl_object") is not None:
            self._certificate = read_peer(transport)
        elif self.origin and (shown := msgspec.json.decode(self.origin, type=Origin).shown) is not None:
            self._certificate = msgspec.convert(shown, PeerCertificate)
        super().connection_made(transport)

    def _describe(self) -> Origin:
        return Origin(self.client, self._certificate)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._direct is not None:
            self._queued = b""
            self._disconnected = self._disconnected or asyncio.Event()
            self._disconnected.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_evicted:
            super().data_received(data)  # which passes it on, if another process answers it
            return
        if self._defers(data):
            return
        if self._incomplete is not None:
            data, self._incomplete = self._incomplete + data, None
        if self._direct is not None:
            self._queued += data
            if len(self._queued) > _MAX_BODY:
                self.flow.pause_reading()
        elif (
            not self._is_between
            or self._is_answering()
            or self._certificate is not None
            or not self._answer_directly(data)
        ):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        # A certificate belongs to its connection: nothing is learned that would tell its bearer by the head alone.
        self._raw = data if self._is_between and self._certificate is None else None
        super()._parse(data)

    def _on_timeout(self) -> None:
        if self._incomplete is not None:
            self._timer = None
            self._parse_incomplete()
        else:
            super()._on_timeout()

    def _is_waiting(self) -> bool:
        return self._direct is None and super()._is_waiting()

    def _is_busy(self) -> bool:
        return self._direct is not None or super()._is_busy()

    def _unanswered(self) -> bytes:
        return self._incomplete or super()._unanswered()

    # Requests that were parsed: by the lane if it takes them, else by the app

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        raw, self._raw = self._raw, None
        if self._certificate is not None:
            raw = None
            cast("Scope", cycle.scope)[CERTIFICATE] = self._certificate
        if not self._may_answer(cycle) or self._route(cycle, app):
            return
        scope = cast("Scope", cycle.scope)
        if self._scope_extras is not None:  # answered directly as far as possible: the lane has had its turn
            extras, self._scope_extras = self._scope_extras, None
            scope.update(extras)
            self._run_app(cycle, app)
            return
        lane = self.find_lane(scope["path"]) if scope["method"] == "POST" and app is self.app else None
        if lane is None or any(name == b"content-encoding" for name, _ in scope["headers"]):
            self._run_app(cycle, app)
            return
        self.tasks.add(self.loop.create_task(self._answer_parsed(lane, cycle, app, raw)))

    async def _answer_parsed(self, lane: Lane, cycle: RequestResponseCycle, app: Any, raw: bytes | None) -> None:
        scope = cast("Scope", cycle.scope)

        async def hung_up() -> None:
            while not cycle.disconnected:
                cycle.message_event.clear()
                await cycle.message_event.wait()

        try:
            reply = None
            # Nothing is kept of a stranger's body here: the app reads it, with limits of its own.
            if cycle.more_body and not cycle.waiting_for_100_continue and self.pool.identify(scope) is not None:
                await self._receive_body(cycle)
            if not cycle.more_body and not cycle.waiting_for_100_continue:
                self.flow.resume_reading()  # a large body paused it, but a disconnect must be noticed
                reply = await lane.reply(scope, bytes(cycle.body), hung_up)
            if reply is None:
                cycle.message_event.set()  # hung_up may have cleared it, and the app has yet to read the body
                await cycle.run_asgi(app)
                return
            encoding = None
            if 0 < self.compress <= len(reply.body):
                accepted = next((value for name, value in scope["headers"] if name == b"accept-encoding"), None)
                reply, encoding = await _pack(reply, accepted)
            if self.flow.write_paused and not cycle.disconnected:
                await self.flow.drain()
            if not cycle.disconnected:
                self._write(reply, keep_alive=cycle.keep_alive, encoding=encoding)
                cycle.response_started = cycle.response_complete = True
                cycle.message_event.set()
                self.on_response_complete()
                if raw is not None and cycle.keep_alive and (guest := lane.guest(_for_guest(scope))) is not None:
                    self.heads.learn(raw, scope["headers"], guest)
        except Left:
            return
        except Exception:
            log.exception("POST %s failed", scope["path"])
            await cycle.send_500_response()
        finally:
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _receive_body(self, cycle: RequestResponseCycle) -> None:
        """Many clients send the body right behind the headers. A slow or a large one is left to the app."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_BODY_SECONDS, self.seconds)):
                while cycle.more_body and not cycle.disconnected and len(cycle.body) < _MAX_BODY:
                    cycle.message_event.clear()
                    await cycle.message_event.wait()

    def _write(self, reply: Reply, *, keep_alive: bool, encoding: str | None = None) -> None:
        more = b""
        for name, value in self.server_state.default_headers:
            more += b"%b: %b\r\n" % (name, value)
        if reply.session:
            more += b"mcp-session-id: %b\r\n" % reply.session
        if encoding:
            more += b"content-encoding: %b\r\nvary: Accept-Encoding\r\n" % encoding.encode()
        if not keep_alive:
            more += b"connection: close\r\n"
        self.transport.write(_ANSWER % (len(reply.body), more, reply.body))
        if not keep_alive:
            self.transport.close()

    # Requests of a known head: neither the parser nor the app sees them

    def _answer_directly(self, data: bytes) -> bool:
        """Whether the data is a request of a known head, which is then answered, or kept until its body is complete."""
        found = self.heads.find(data)
        if found is None:
            return False
        if self._is_reserved:
            return False  # there is no room for it: the parser refuses it
        guest, start, missing, trace = found
        self._idle_since = None
        if not missing:
            if self.pool.overload.is_on and not self._enter(guest.who):
                self._send_away()
                return True
            self._stop_timer()
            # By the loop it would first be given a name of its own.
            self._direct = asyncio.Task(self._run_direct(guest, data, start, trace), loop=self.loop, name="request")
            self.tasks.add(self._direct)
        elif len(data) + missing > _MAX_BODY:
            return False
        else:
            self._incomplete = data
            if self._timer is None:
                self._timer = self.loop.call_later(min(_BODY_SECONDS, self.seconds), self._on_timeout)
        return True

    async def _run_direct(self, guest: Guest, data: bytes, start: int, trace: bytes | None) -> None:
        """Answer the request, or pass it to the parser after all; then continue with what arrived meanwhile."""
        extras: dict[str, Any] = {} if trace is None else {TRACE: trace}

        async def hung_up() -> None:
            self._disconnected = self._disconnected or asyncio.Event()
            await self._disconnected.wait()

        try:
            reply, encoding = await guest.reply(extras, data[start:], hung_up), None
            if reply is not None and 0 < self.compress <= len(reply.body):
                reply, encoding = await _pack(reply, _find_accepted(data[:start]))
            if self.flow.write_paused and self._disconnected is None:
                await self.flow.drain()
        except Left:
            self._end_direct()
            return
        except Exception:
            log.exception("a POST on the fast path failed")
            self._end_direct()
            self._close_with(_FAILED)
            return
        except BaseException:
            self._end_direct()
            self.transport.close()
            raise
        self._end_direct()
        if self.transport.is_closing():
            return
        if reply is not None:
            self._write(reply, keep_alive=not self._is_last, encoding=encoding)
            self.on_response_complete()
        else:
            extras.pop(TRACE, None)  # the parser reads it in the head
            self._scope_extras = extras or None
            self._parse(data)
            if self._is_last:
                super().shutdown()
        if self._queued and not self.transport.is_closing():
            queued, self._queued = self._queued, b""
            self.data_received(queued)

    def _end_direct(self) -> None:
        if self._direct is not None:
            self.tasks.discard(self._direct)
            self._direct = None

    def _parse_incomplete(self) -> None:
        data, self._incomplete = self._incomplete, None
        if data is not None:
            self._parse(data)

    def shutdown(self) -> None:
        if self.pool.is_leaving:
            super().shutdown()
            return
        self._parse_incomplete()
        if self._direct is not None:
            self._is_last = True
        else:
            super().shutdown()

    # One timer for an idle connection, checked when it fires, instead of one for every request

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._has_served = True
        self._idle_since = self.since = self.loop.time()
        if self._is_leaving:
            self.loop.call_soon(self._leave_if_idle)
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _check_idle(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self._check_idle)
        else:
            self.timeout_keep_alive_handler()
