"""HTTP connections with limits: how many there are, how long a request may take to arrive, how long an answer to leave.

Without them a connection that never finishes its request is kept for ever, and a few thousand of them lock everyone
else out. The rules, for every listener:

* The head of a request and its body each have a deadline. An answer that nobody reads has one too.
* ``most`` connections are open at once, and ``per_address`` of one address, unless it is that of this machine.
* A new connection beyond that closes older ones that wait for something: first those that never completed a request,
  then those idle between two, then those that do not read their answer. One that is being answered is never closed.
* If all are being answered, the new one is served from a small reserve: the paths in ``spare`` as ever, everything else
  with 503 and Retry-After.

It knows nothing of gateways. What it refuses it reports to ``count``, by one word.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["IDLE_SECONDS", "GuardedConnection", "Others", "Overload", "Pool", "count_descriptors", "guard_class"]

log = logging.getLogger("agent3.server")

IDLE_SECONDS = 95
"""Seconds that a connection may be idle between two requests: longer than clients and proxies keep theirs, of which
most do so for 5 to 90. Else a request is lost that is sent while its connection is closed. When room is needed, idle
ones are closed earlier."""
_MAX_HEADERS = 65_536
_BODY_GRACE = 1.0
"""Seconds that the reader of a body has to refuse a slow one in its own words, before the connection does."""
_READ_SECONDS = 60.0
"""Seconds in which a client must take at least some 50 kB of an answer that it does not read as fast as it comes."""
_RESERVE = 128
"""Connections beyond ``most`` that are served all the same, for the paths in ``spare``."""
_OWN_FILES = 512
"""Files that are open besides connections: the reserve, the database, logs, browsers."""
_LOOK_SECONDS = 0.05
"""Seconds for which nobody looks for room again, when there was none."""
_SHARE = 16
"""One of so many connections is closed at once when room is needed, so that looking for them is rarely done."""
LATE = 0.03
"""Seconds by which a loop may be late without having too much to do."""
_CALM = 40
"""Intervals in a row without a refusal after which everybody is admitted again."""
_REST, _LONGEST_REST = 1, 8
"""Seconds for which a connection waits whose request was one too many, as its refusal says: at least, and at most."""
_REFUSED = 0.1
"""Refusals for each request that is admitted, from which on connections wait longer: a refusal takes about a third of
the time of a plain call, and a loop that gets little of its machine would else do hardly anything but refuse."""
_MOST_CALLERS = 1_000
_SURE = 8
"""Requests of an interval that those who ask for little may share, however late the loop is."""
_FEW = 256
"""Requests that may always run at once: those of a few hundred callers, of whom each waits for its answer."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 44\r\nconnection: close\r\n\r\nThe headers of a request are 64 KiB at most."
)


def _refusal(status: str, code: str, message: str, more: str = "", after: int = 0) -> bytes:
    """A whole answer in the one form of an error."""
    retryable = "true" if after else "false"
    wait = f',"retry_after":{after}.0' if after else ""
    more = f"retry-after: {after}\r\n{more}" if after else more
    body = f'{{"error":{{"code":"{code}","message":"{message}","retryable":{retryable}{wait}}}}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return (head + body).encode("ascii")


_CLOSE = "connection: close\r\n"
_FULL = _refusal(
    *("503 Service Unavailable", "unavailable", "Too many open connections. Connect again in a moment."),
    _CLOSE,
    after=1,
)
_ELSEWHERE = _refusal(
    "503 Service Unavailable",
    "unavailable",
    "Another process serves this session. Send one request at a time.",
    _CLOSE,
    after=1,
)
_SLOW_BODY = _refusal(
    "408 Request Timeout", "too_slow", "The body did not arrive in time; send it faster, or send less.", _CLOSE
)


@lru_cache(maxsize=_LONGEST_REST)
def _busy(seconds: int) -> bytes:
    """The refusal of a request on a connection that stays open, and is read again after so many seconds."""
    text = "The gateway is overloaded. Send the request again later."
    return _refusal("503 Service Unavailable", "unavailable", text, after=seconds)


@lru_cache(maxsize=1_000)
def _is_own(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return not address  # a Unix socket has none


def count_descriptors(wanted: int) -> int:
    """How many connections the process can open, at most ``wanted``. Its bound on open files is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2 * wanted + _OWN_FILES  # a call may need a connection of its own to somewhere else
    if soft < enough and soft != resource.RLIM_INFINITY:
        limit = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
        if soft < enough:
            return max(1, min(wanted, (soft - _OWN_FILES) // 2))
    return wanted


class Overload:
    """Admits as many requests as the loop can do, once it falls behind, and shares them out fairly.

    ``tick`` is told at short intervals how late the loop was. While it is late, fewer requests are admitted each time,
    else a few more, until nobody is refused any longer. Whoever asks for less than the others gets all of it; the
    others get equal shares (max-min fairness, by what each asked for in the interval before). On a machine that is busy
    elsewhere there may be less than one request to share out: the few of a modest caller are admitted even then.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._quota = 0.0
        self._share = 0.0
        self._sure = 0
        self._greedy: frozenset[str] = frozenset()
        self._asked: Counter[str] = Counter()
        self._calm = 0
        self._refused = 0
        self.rest = float(_REST)
        """Seconds for which a connection waits whose request was refused."""

    def tick(self, late: float, answered: float) -> bool:
        """An interval ended: the loop was so late at its end, and so many requests were answered in its time.

        Whether anybody was there.
        """
        asked = self._asked.total() if self.is_on else 0
        if late > LATE:
            self._calm = 0
            self._quota = max(1.0, self._quota * 0.9 if self.is_on else answered)
            self.is_on = True
        elif self.is_on:
            self._calm = self._calm + 1 if asked <= self._quota else 0
            self._quota = self._quota * 1.03 + 0.25
            self.is_on = self._calm < _CALM
        longer = self._refused > _REFUSED * (asked - self._refused)
        self.rest = min(_LONGEST_REST, self.rest * 1.1) if longer else max(_REST, self.rest * 0.98)
        self._refused = 0
        if self.is_on:
            self._share = _fill(sorted(self._asked.values()), self._quota)
            self._sure = _SURE // max(1, len(self._asked))
            self._greedy = frozenset(who for who, many in self._asked.items() if many > self._sure)
            self._asked = Counter()
        return answered > 0 or asked > 0

    def enter(self, who: str, running: int) -> bool:
        """Whether a request of ``who`` is admitted now, beside those that are running.

        A few are always admitted: with these alone, the loop is late because the machine is slow, not for their number.
        """
        if who not in self._asked and len(self._asked) >= _MOST_CALLERS:
            who = ""
        self._asked[who] += 1
        asked = self._asked[who]
        admitted = asked <= self._share or running < _FEW or (asked <= self._sure and who not in self._greedy)
        self._refused += not admitted
        return admitted


def _fill(asked: list[int], quota: float) -> float:
    """The largest share, at least one, with which all get no more than the quota together. ``asked`` is sorted."""
    left = quota
    for place, wanted in enumerate(asked):
        share = left / (len(asked) - place)
        if wanted > share:
            return max(1.0, share)
        left -= wanted
    return max(1.0, quota)  # nobody asked for more than there is: a newcomer may have all of it


class Others(Protocol):
    """Other processes that serve the same listener, to which a connection can be given."""

    def owner_of(self, session: str) -> str | None:
        """The one that holds a session; None if it may be served here."""

    def any_other(self) -> str | None:
        """One that takes any connection."""

    def give(self, token: str, handle: int, data: bytes, origin: bytes = b"") -> Awaitable[bool]:
        """Give it a connection, with what was read of its next request; whether it was taken.

        ``origin`` says where it comes from, if that cannot be seen from the connection itself.
        """


class Origin(msgspec.Struct, frozen=True):
    """Where a connection comes from that a process with its TLS relays to another one."""

    client: tuple[str, int] | None
    shown: Any = None
    """What its client has shown of itself, as the process that took it told it."""


class _Relay(asyncio.Protocol):
    """The other end of a connection whose TLS ends here and whose requests are answered by another process."""

    def __init__(self, connection: GuardedConnection):
        self._connection = connection

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._connection.transport.write(data)

    def pause_writing(self) -> None:
        self._connection.flow.pause_reading()

    def resume_writing(self) -> None:
        self._connection.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.transport.close()


class Pool:
    """All connections of one listener. Used in its loop only."""

    def __init__(
        self,
        most: int = 2_000,
        per_address: int = 0,
        *,
        spare: Iterable[str] = (),
        count: Callable[[str], None] = lambda what: None,
        identify: Callable[[Any], str | None] = lambda scope: "",
    ):
        self.most = most
        self.per_address = per_address or most
        self.spare = frozenset(spare)
        self.spare_heads = tuple(f"GET {path} ".encode() for path in self.spare)
        self.count = count
        self.identify = identify
        """Who sends a request, by its ASGI scope; None if that is not known."""
        self.overload = Overload()
        self.others: Others | None = None
        self.is_leaving = False
        """Whether connections are given to others as soon as they are idle, instead of being closed."""
        self._connections: Collection[Any] = ()
        self._addresses: Counter[str] = Counter()
        self._found_full = float("-inf")

    def add(self, new: GuardedConnection) -> bool:
        """Take a new connection, and make room for it; whether there was some."""
        address = new.address
        self._connections = new.connections
        self._addresses[address] += 1
        if self._addresses[address] > self.per_address and not _is_own(address):
            own = [one for one in new.connections if cast("GuardedConnection", one).address == address]
            if not self._make_room(own, new, self.per_address):
                self.count("address")
                return False
        here, now = len(new.connections), new.loop.time()
        if here > self.most:
            looks = here > self.most + _RESERVE or now - self._found_full > _LOOK_SECONDS
            if not looks or not self._make_room(new.connections, new, self.most):
                self._found_full = now if looks else self._found_full
                self.count("full")
                return False
        return True

    def remove(self, old: GuardedConnection) -> None:
        """Forget a connection that was lost."""
        self._addresses[old.address] -= 1
        if self._addresses[old.address] <= 0:
            del self._addresses[old.address]

    def end(self, is_over: Callable[[Any], bool]) -> int:
        """Close the connections whose request is being answered and is over, by its ASGI scope; how many there were."""
        ended = [one for one in self._connections if one.answers(is_over)]
        for one in ended:
            one.transport.abort()
            self.count("ended")
        return len(ended)

    def _make_room(self, connections: Collection[Any], new: GuardedConnection, most: int) -> bool:
        """Close those that wait, the least deserving and the oldest first; whether the new one then has a place.

        If it has none, it is one of the reserve, in which the oldest have to leave as well.
        """
        busy, ranked = 0, []
        for one in connections:
            if one is not new and not one.transport.is_closing():
                if rank := one.rank():
                    ranked.append((rank, one.since, id(one), one))
                else:
                    busy += 1
        over = busy + len(ranked) + 1 - most
        if over <= 0:
            return True
        has_room = busy < most
        if not has_room:
            over = max(0, over - _RESERVE)
        ranked.sort()
        for _, _, _, one in ranked[: over and max(over, most // _SHARE)]:
            one.evict()
            self.count("evicted")
        if over > len(ranked):
            new.refuse(_FULL)
        return has_room


def guard_class(seconds: float, pool: Pool) -> type[HttpToolsProtocol]:
    """The class for ``uvicorn.Config(http=…)``, of connections that wait so long for a request."""
    return type("Connection", (GuardedConnection,), {"seconds": seconds, "pool": pool})


class GuardedConnection(HttpToolsProtocol):
    """One connection.

    Its timer runs from the first byte of a request, or from the start, until its head is complete; then from there
    until its body is. Idle connections between two requests are uvicorn's to close.
    """

    seconds: float
    pool: Pool

    since = 0.0
    """When it came, or when its last request ended."""
    address = ""
    _has_served = False
    _is_reserved = False
    _is_evicted = False
    _timer: asyncio.TimerHandle | None = None
    _waits_for_body = False
    _reader_timer: asyncio.TimerHandle | None = None
    _reads_since: float | None = None
    _idle_since: float | None = None
    _in_headers = False
    _has_ended = False
    _received = 0
    _arriving = 0
    _current: RequestResponseCycle | None = None
    _is_between = True
    """Whether the parser has seen the end of every request that it saw begin."""
    initial = b""
    """What another process had read of a connection that it gave."""
    _seen = b""
    """The request that arrives, from its first byte; kept only where others could serve it."""
    _begun = 0
    """How many requests began in what is kept."""
    _is_leaving = False
    _deferred: bytes | None = None
    """What arrived since a request was one too many, until the rest after that is over."""
    _caller: str | None = None
    """Who sent the last request, of those that came while there was too much to do."""
    _is_shared = False
    """Whether several callers send requests on it."""
    origin = b""
    """Where it comes from, if another process has its TLS."""
    _relay: asyncio.Transport | None = None
    """The way to the process that answers it, where its TLS ends here."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.origin:
            self.client, self.scheme = msgspec.json.decode(self.origin, type=Origin).client, "https"
        self.address = self.client[0] if self.client else ""
        self.since = self.loop.time()
        self._timer = self.loop.call_later(self.seconds, self._on_timeout)
        self._is_reserved = not self.pool.add(self)
        if self.initial:
            data, self.initial = self.initial, b""
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._relay is not None:
            self._relay.close()
        self._stop_timer()
        self.pool.remove(self)
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        # Of pipelined requests uvicorn notifies the last one, which has not begun; the current one must know too.
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.write(data)
        elif not self._is_evicted and not self._defers(data):
            self._parse(data)

    # Room for others

    def rank(self) -> int:
        """How early it is closed when room is needed: the lowest first; 0 for one that is being answered.

        One that another process answers is for that one to judge: what is under way there is not seen here.
        """
        if self._is_evicted:
            return 0
        if self._is_waiting():
            return 2 if self._has_served else 1
        return 3 if self._reads_since is not None else 0

    def _is_waiting(self) -> bool:
        """Whether the next thing has to come from the client."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle.more_body and not cycle.response_started and not self.flow.read_paused

    def answers(self, judge: Callable[[Any], bool]) -> bool:
        """Whether a request is being answered here of which this holds."""
        return self._is_answering() and judge(self.cycle.scope)

    def evict(self) -> None:
        """Close it, for there is somebody who can do more with its place."""
        if self._is_between and self._has_served:
            # Idle: an answer that was not asked for would be taken for that of the next request.
            self._is_evicted = True
            self.transport.close()
        elif self._reads_since is not None:
            self._is_evicted = True
            self.transport.abort()
        else:
            self.refuse(_FULL)

    def refuse(self, answer: bytes) -> None:
        """Answer what has not arrived completely, and close."""
        self._is_evicted = True
        if (cycle := self._current) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self._close_with(answer)

    # Limits on a request

    def _parse(self, data: bytes) -> None:
        self._arriving, self._has_ended = len(data), False
        if self.pool.others is not None:
            if self._is_between:
                self._seen, self._begun = data, 0
            elif self._in_headers:
                self._seen += data
        super().data_received(data)
        # A request that began behind another one in this read is counted from the next read on.
        self._received = 0 if self._in_headers and self._has_ended else self._received + len(data)
        if self._in_headers and self._received > _MAX_HEADERS:
            self._close_with(_TOO_LARGE)
        elif self.transport.is_closing():
            self._stop_timer()
        elif self._is_answering():
            if not self.cycle.more_body:
                self._stop_timer()
            elif not self._waits_for_body or self._timer is None:
                self._stop_timer()
                self._waits_for_body = True
                self._timer = self.loop.call_later(self.seconds + _BODY_GRACE, self._on_timeout)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._on_timeout)

    def on_message_begin(self) -> None:
        self._begun += 1
        self._in_headers, self._received, self._is_between, self._waits_for_body = True, 0, False, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        # One read may bring more than the limit, but its body must not count: only then are the headers added up.
        if self._received + self._arriving > _MAX_HEADERS and self._headers_size() > _MAX_HEADERS:
            raise ValueError("too many headers")  # the parser stops and calls send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_ended = self._is_between = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.headers and self._headers_size() > _MAX_HEADERS:
            self._close_with(_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def _headers_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _close_with(self, answer: bytes) -> None:
        self._stop_timer()
        self.transport.write(answer)
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _stop_timer(self) -> None:
        self._waits_for_body = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self._is_evicted:
            return  # the body of one that another process answers is not read here
        if not self._is_answering():
            log.debug("closing a connection of %s: no complete request in %g s", self.client, self.seconds)
            self.pool.count("slow_head")
            self.transport.close()
        elif self.cycle.more_body and not self.cycle.response_started:
            if self.flow.read_paused:  # its body waits for us, not we for it
                self._timer = self.loop.call_later(self.seconds, self._on_timeout)
                return
            log.debug("closing a connection of %s: no complete body in %g s", self.client, self.seconds)
            self.pool.count("slow_body")
            self.refuse(_SLOW_BODY)

    # Limits on an answer

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._relay is not None:
            self._relay.pause_reading()
        self._reads_since = self.loop.time()
        self._reader_timer = self.loop.call_later(max(_READ_SECONDS, self.seconds), self._on_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._relay is not None:
            self._relay.resume_reading()
        self._reads_since = None
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _on_unread(self) -> None:
        self._reader_timer = None
        log.debug("closing a connection of %s: it does not read its response", self.client)
        self.pool.count("slow_reader")
        self.transport.abort()

    # Requests that are answered here, because there is no room for them

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        if self._may_answer(cycle):
            self._run_app(cycle, app)

    def _run_app(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, app)

    def _may_answer(self, cycle: RequestResponseCycle) -> bool:
        """Whether there is room for this request; otherwise it has been refused."""
        overload = self.pool.overload
        if not self._is_reserved and not overload.is_on:
            return True
        scope = cast("Any", cycle.scope)
        if scope["path"] in self.pool.spare:
            return True
        if self._is_reserved:
            self.pool.count("refused")
            self.refuse(_FULL)
            return False
        if self._enter(self.pool.identify(scope) or self.address):
            return True
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        self._send_away()
        if not cycle.keep_alive:
            self.transport.close()
        return False

    def _enter(self, who: str) -> bool:
        """Whether a request of this caller is admitted while there is too much to do."""
        self._is_shared = self._is_shared or self._caller not in (None, who)
        self._caller = who
        return self.pool.overload.enter(who, len(self.tasks))

    def _send_away(self) -> None:
        """Refuse a request that is one too many, and begin no other before the time that the refusal names.

        Whoever does not wait as it is told costs nothing then: else the gateway would do little but refuse. On a
        connection that carries several callers, as that of a proxy does, the others are not made to wait.
        """
        self.pool.count("overload")
        self._stop_timer()
        rest = round(self.pool.overload.rest)
        self.transport.write(_busy(rest))
        self.on_response_complete()
        if self._deferred is None and not self._is_shared:
            self._deferred = b""
            self.loop.call_later(rest, self._listen_again)

    def _defers(self, data: bytes) -> bool:
        """Whether these bytes wait until the rest is over; a page in ``spare`` does not."""
        if self._deferred is None or (not self._deferred and data.startswith(self.pool.spare_heads)):
            return False
        self._deferred += data
        if len(self._deferred) > _MAX_HEADERS:
            self.flow.pause_reading()
        return True

    def _listen_again(self) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred and not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(deferred)

    def on_response_complete(self) -> None:
        self._has_served, self.since = True, self.loop.time()
        super().on_response_complete()
        if self._is_leaving:
            self.loop.call_soon(self._leave_if_idle)

    # Connections that are given to other processes of the same listener

    def shutdown(self) -> None:
        if self.pool.is_leaving and self.pool.others is not None:
            self._is_leaving = True
            self._leave_if_idle()
        else:
            super().shutdown()

    def _leave_if_idle(self) -> None:
        if self.transport.is_closing() or self._is_evicted or self._is_busy():
            return  # a busy one comes here again when it has answered
        if self.transport.get_write_buffer_size():
            self.loop.call_later(0.05, self._leave_if_idle)
            return
        others = self.pool.others
        other = others.any_other() if others is not None and not self._has_tls() else None
        if other is None:
            super().shutdown()
        else:
            self._give(other, self._unanswered(), super().shutdown)

    def _is_busy(self) -> bool:
        return bool(self._deferred) or self._is_answering()

    def _unanswered(self) -> bytes:
        """What has arrived of the next request."""
        return self._seen if self._in_headers else b""

    def _route(self, cycle: RequestResponseCycle, app: Any) -> bool:
        """Whether this request belongs to a session that another process holds; then it gets the connection."""
        others = self.pool.others
        if others is None:
            return False
        headers = cast("Any", cycle.scope)["headers"]
        session = next((value for name, value in headers if name == b"mcp-session-id"), b"")
        owner = others.owner_of(session.decode("latin-1")) if session else None
        if owner is None:
            return False
        if self._begun != 1 or self.transport.get_write_buffer_size():
            self.refuse(_ELSEWHERE)  # several requests at once: those before it are answered here
        else:
            self._give(owner, self._seen, lambda: self._run_app(cycle, app))
        return True

    def _give(self, other: str, data: bytes, otherwise: Callable[[], None]) -> None:
        self._is_evicted = True  # nothing more is read here
        self._stop_timer()
        self.flow.pause_reading()
        task = self.loop.create_task(self._give_to(other, data, otherwise))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _has_tls(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    def _describe(self) -> Origin:
        return Origin(self.client)

    async def _give_to(self, other: str, data: bytes, otherwise: Callable[[], None]) -> None:
        others = self.pool.others
        assert others is not None
        here: socket.socket | None = None
        origin = self.origin
        try:
            if self._has_tls():  # what it has agreed on cannot be given away: this process goes on with it
                here, there = socket.socketpair()
                handle, origin = there.detach(), msgspec.json.encode(self._describe())
            else:
                handle = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:  # it was lost
            return
        try:
            taken = await others.give(other, handle, data, origin)
        finally:
            os.close(handle)
        if taken and here is not None:
            await self._relay_to(here)
        elif taken:
            self.transport.abort()  # the other has a handle of its own, so the connection stays open
        else:
            if here is not None:
                here.close()
            if not self.transport.is_closing():
                self._is_evicted = False
                self.flow.resume_reading()
                otherwise()

    async def _relay_to(self, here: socket.socket) -> None:
        try:
            self._relay, _ = await self.loop.create_connection(lambda: _Relay(self), sock=here)
        except OSError:
            self.transport.close()
            return
        if self.transport.is_closing():
            self._relay.close()
        self.flow.resume_reading()
