"""Channels to an MCP server. A ``PendingRequest`` is one request under way; a ``Channel`` carries it, here over HTTP.

Requests go straight over the outbound gate and not through the SDK's client: that one brings its own HTTP stack, which
the gate cannot check and which costs three times as much per request, is bound to the task that opened it, never
re-initialises a lost session, and has no timeout that progress extends. A channel knows JSON-RPC and HTTP. It knows
neither protocol eras nor tools; those are negotiated by the upstream.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from agent3 import jsonrpc
from agent3.calls.outcomes import HTTP_STATUS
from agent3.env import REAL
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    LoopDetected,
    MalformedResponse,
    ParseError,
    RateLimited,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.identity.authorization import Authorization, Proves
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.security.outbound import Gate, Stream

__all__ = [
    "Channel",
    "HTTPChannel",
    "Inflow",
    "OldHTTPChannel",
    "OnNotification",
    "OnRequest",
    "PendingRequest",
    "ServerError",
    "Silent",
    "Waiting",
    "answer_request",
    "decode_message",
    "deliver",
    "params_of",
    "parse_result",
    "spawn",
]

log = logger("mcp")

T = TypeVar("T")

LIMITS = jsonrpc.Limits(body=16 << 20, nodes=500_000, lenient=True)
"""What an upstream may answer: more than a stranger may send, because the operator chose it."""
FOREVER = 86_400.0
"""Seconds after which even a silent stream ends; normally the clock of the pending request ends it first."""
RESUMPTIONS = 5
"""How often one legacy answer is resumed after its stream broke off."""
_RENEWALS = 2
"""How often one request is repeated with a better credential: once for a missing one, once for a wider scope."""
_MOVES = 3
"""Redirects that one channel follows."""
_TELLINGS = 3
"""How often a notification or an answer is posted where the connection breaks."""
_COURTESY = 2.0
"""Seconds that telling a server of a cancellation or of the end of a session may take."""
_DRAIN = 0.02
"""Seconds a stream gets to end after its answer; after that the connection is closed instead of reused."""

_IN_A_ROW = 32
"""Messages of one stream that are taken before others may run."""
_ANSWERED_AT_ONCE = 16
"""Requests of one stream that are answered at once; each further one holds up its stream for a moment."""
_HELD_BACK = 0.05
"""Seconds of that, at most: those that are being answered may be questions, which wait for a person."""
_MOST_ASKED = 1_000
"""Requests on one stream that may wait for our answers at once. Further ones are dropped."""

_OF_A_REQUEST = frozenset({"notifications/progress", "notifications/message"})
"""Notifications that concern the request on whose stream they come, and nobody else."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, lowest first."""

OnNotification = Callable[[str, dict[str, Any]], None]
"""Takes the method and the parameters of a notification."""
OnRequest = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request of the server, given its method and parameters."""


class ServerError(Exception):
    """The server answered with an error. ``status`` is that of HTTP, if it is an error too.

    ``by_id`` says that the answer names the request: then it may have run, for all that the status says.
    """

    def __init__(self, code: int | None, message: str, data: Any = None, status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.by_id = False


class Silent(CallTimeout):
    """The server said nothing for too long."""


class PendingRequest:
    """One request under way: who gets its notifications, who answers the server, how long it may stay silent.

    Every message of the server restarts the ``idle`` clock, up to ``ceiling`` seconds in total. No clock runs while the
    caller is being asked. ``subscription`` marks a request that only listens. ``features`` are what the caller can do
    besides elicitation (``sampling``, ``roots``), None for a request of our own; ``level`` is the lowest log level it
    wants; ``patience`` is how many seconds it waits for a server that is still starting; ``caller`` is whose request it
    is, and ``owned`` says that it must not meet other callers: it is not of the gateway itself or of the local person.
    ``waiting`` surrounds the time in which the caller thinks. Use as ``async with``, which starts the clock; raises
    CallTimeout when the time is over.
    """

    def __init__(
        self,
        on_notification: OnNotification | None = None,
        on_request: OnRequest | None = None,
        *,
        idle: float = 20.0,
        ceiling: float = 300.0,
        subscription: bool = False,
        features: frozenset[str] | None = None,
        level: str | None = None,
        patience: float | None = None,
        caller: str = "",
        owned: bool = False,
    ):
        self.caller = caller
        self.owned = owned
        self.subscription = subscription
        self.features = features
        self.level = level
        self.patience = patience
        self.waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        self._on_notification = on_notification
        self._on_request = on_request
        self._idle = idle
        self._ceiling = ceiling
        self._loop = asyncio.get_running_loop()
        self._ends = 0.0
        self._limit = asyncio.timeout(None)
        self._running = False
        self.has_ended = False
        """Whether the server has answered it; one that was given up has not ended."""
        self._paused = 0
        self._answering: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> PendingRequest:
        self._ends = self._loop.time() + self._ceiling
        await self._limit.__aenter__()
        self._running = True
        self.restart_clock()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._running = False
        self.has_ended = kind is None or issubclass(kind, ServerError)
        for task in self._answering:
            task.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise Silent(
                f"The MCP server reported no progress for {self._idle:g} s; the call was cancelled there."
            ) from None

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification of the server, which also shows that it is alive."""
        self.restart_clock()
        if self._on_notification is not None:
            self._on_notification(method, params)

    def tell_of_wait(self, text: str) -> None:
        """Tell the caller why nothing has happened yet."""
        if self._on_notification is not None:
            self._on_notification("notifications/message", {"level": "info", "data": text})

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the server; ServerError if the caller cannot."""
        if self._on_request is None:
            raise ServerError(jsonrpc.METHOD_NOT_FOUND, f"This client does not support {method}")
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            with self.pause_clock():
                async with self.waiting():
                    return await self._on_request(method, params)
        finally:
            self._answering.discard(task)

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Stop the clock for the length of a block: waiting for a person is not the server's delay."""
        began = self._loop.time()
        self._paused += 1
        if self._running:
            self._limit.reschedule(None)
        try:
            yield
        finally:
            self._paused -= 1
            self._ends += self._loop.time() - began
            self.restart_clock()

    @property
    def can_answer(self) -> bool:
        """Whether the caller can be asked anything."""
        return self._on_request is not None

    def restart_clock(self) -> None:
        """The server has shown that it is alive."""
        # A question may outlive its request, such as when the gateway stops while a person is being asked.
        if self._running and not self._paused and not self._limit.expired():
            self._limit.reschedule(min(self._loop.time() + self._idle, self._ends))


class Channel(Protocol):
    """One connection to one server, over any transport. Many requests may be under way at once."""

    @property
    def alive(self) -> bool:
        """Whether it can still take a request."""
        ...

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], pending: PendingRequest) -> Any:
        """Send a request and return its result. ServerError for an error; cancelling it tells the server."""
        ...

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a notification, or the answer to a request of the server."""
        ...

    async def aclose(self) -> None:
        """Close it, ending everything under way on it."""
        ...


def spawn(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task, held in ``tasks`` until it is done: the loop itself keeps only a weak reference."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def decode_message(body: bytes, place: str) -> dict[str, Any]:
    """The JSON-RPC message in some bytes of a server, or MalformedResponse."""
    try:
        message = await jsonrpc.decode_large(body, LIMITS)
    except (ParseError, TooLarge) as error:
        raise MalformedResponse(f"{place} did not answer with JSON-RPC: {error.message}") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise MalformedResponse(f"{place} did not answer with JSON-RPC 2.0.")
    return message


def params_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a message; empty where they are not an object."""
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def parse_result(message: dict[str, Any], place: str, status: int | None = None) -> Any:
    """The result in an answer; ServerError if it is an error."""
    if "result" in message:
        return message["result"]
    error = message.get("error")
    if not isinstance(error, dict):
        raise MalformedResponse(f"{place} answered with neither a result nor an error.")
    code, text = error.get("code"), error.get("message")
    raise ServerError(
        code if isinstance(code, int) else None, str(text or "no reason given"), error.get("data"), status
    )


async def answer_request(message: dict[str, Any], pending: PendingRequest | None) -> bytes:
    """The bytes that answer a request of the server, which ``pending`` may be able to answer."""
    key, method = message.get("id"), str(message.get("method"))
    try:
        if method == "ping":
            return jsonrpc.result(key, {})
        if pending is None:
            raise ServerError(jsonrpc.METHOD_NOT_FOUND, f"This client does not support {method}")
        return jsonrpc.result(key, await pending.answer(method, params_of(message)))
    except ServerError as error:
        return jsonrpc.error(key, error.code or jsonrpc.INTERNAL_ERROR, error.message)
    except Agent3Error as error:
        return jsonrpc.error_of(key, error)


class Inflow:
    """What a server sends on one stream, taken at a pace at which others get their turn.

    ``answering`` are its requests that are being answered.
    """

    def __init__(self, place: str):
        self.answering: set[asyncio.Task[None]] = set()
        self._place = place
        self._count = 0
        self._has_asked = False

    async def pace(self) -> None:
        """To be awaited after each message."""
        self._count += 1
        has_asked, self._has_asked = self._has_asked, False
        if has_asked and len(self.answering) >= _ANSWERED_AT_ONCE:
            await asyncio.wait(self.answering, timeout=_HELD_BACK, return_when=asyncio.FIRST_COMPLETED)
        elif not self._count % _IN_A_ROW:
            await asyncio.sleep(0)

    def answer(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Answer a request beside the reading: more may come on the stream meanwhile."""
        self._has_asked = True
        if len(self.answering) < _MOST_ASKED:
            spawn(self.answering, work())
            return
        METRICS.events_dropped.inc(("requests of an MCP server",))
        log.debug("%s: a request was dropped, since %d wait for answers", self._place, _MOST_ASKED)

    def cancel(self) -> None:
        """Answer no more."""
        for task in self.answering:
            task.cancel()


@dataclass(slots=True)
class _StreamState:
    """How far one answer has been read: where to resume it, and what the server asks on it."""

    inflow: Inflow
    last_event: str | None = None
    retry: float = 1.0


class HTTPChannel:
    """Streamable HTTP to one address with one credential, in either era.

    In the ``legacy`` era the server may send requests on the stream of an answer, a broken stream is resumed, and a
    notification cancels a request; a modern request is cancelled by closing its stream. ``session`` is the server's id
    of a legacy session. ``on_message`` takes what belongs to no request.
    """

    def __init__(
        self,
        gate: Gate,
        url: str,
        headers: Mapping[str, str] | None = None,
        authorization: Authorization | None = None,
    ):
        self._gate = gate
        self._url = url
        self._authorization = authorization
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        self.place = "/".join(url.split("/", 3)[:3])
        self.request_ids = itertools.count(1)
        self.legacy = False
        self.session: str | None = None
        self._has_listened = False
        self._moves = 0
        self.on_message: Callable[[dict[str, Any]], None] | None = None
        self.inflow = Inflow(self.place)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    def by_old_transport(self) -> OldHTTPChannel:
        """The same address, for a server that has only the transport of 2024-11-05. Still to be opened."""
        return OldHTTPChannel(self._gate, self._url, self._headers, self._authorization)

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], pending: PendingRequest) -> Any:
        state = _StreamState(Inflow(self.place))
        try:
            moved = None
            async with self._open("POST", body, headers, pending) as answer:
                if 300 <= answer.status < 400:
                    moved = self._moved_to(answer)
                elif self.legacy and self.session is None and answer.status < 300:
                    # Of ``initialize`` only: some servers put the id of a session that they discard on a refusal.
                    self.session = answer.headers.get("mcp-session-id")
                if moved is None and not _is_event_stream(answer):
                    return await self._parse_body(answer, b"".join([chunk async for chunk in answer]), key)
                message = await self._read_stream(answer, key, pending, headers, state) if moved is None else None
            if moved is not None:
                self._url, self._moves = moved, self._moves + 1
                return await self.request(key, body, headers, pending)
            if message is None:
                message = await self._resume(key, pending, headers, state)
            return parse_result(message, self.place)
        except asyncio.CancelledError:
            if self.legacy and self.session is not None:
                params = {"requestId": key, "reason": "the caller cancelled or ran out of time"}
                spawn(self._tasks, self._tell_cancelled(params, headers))
            raise
        finally:
            state.inflow.cancel()

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post a notification or an answer, and again where the connection broke, since it may arrive twice.

        Servers close connections that were idle, at times just when one is used again. An answer to a question that is
        lost in this way would leave the call waiting.
        """
        for _ in range(_TELLINGS - 1):
            try:
                await self._post(body, headers)
            except Unavailable:
                log.debug("%s is sent again", self.place)
            else:
                return
        await self._post(body, headers)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(_COURTESY * 5), self._open("POST", body, headers) as answer:
                content = b"".join([chunk async for chunk in answer])
        except TimeoutError:
            raise CallTimeout(f"{self.place} did not accept a notification in time.") from None
        if answer.status >= 400:
            await self._parse_body(answer, content)

    async def listen(self, headers: Mapping[str, str], opened: Callable[[], None] = lambda: None) -> bool:
        """Read the stream on which a legacy server sends what belongs to no request. False if it has none.

        Returns when the stream ends; open it again to hear more. ``opened`` is called once it stands. ServerError with
        status 404 if it had one and knows no such session any more.
        """
        async with self._open("GET", None, headers) as answer:
            opened()
            if answer.status == 404 and self._has_listened:
                raise ServerError(None, "The session is no longer known", status=404)
            if answer.status != 200 or not _is_event_stream(answer):
                return False
            self._has_listened = True
            parser = jsonrpc.SSEParser(LIMITS.body)
            async for chunk in answer:
                for frame in parser.feed(chunk):
                    if frame.data and self.on_message is not None:
                        self.on_message(await decode_message(frame.data, self.place))
                        await self.inflow.pace()
        return True

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Tell a legacy server that its session is over. Failing to is harmless."""
        if not self.session:
            return
        try:
            async with asyncio.timeout(_COURTESY), self._open("DELETE", None, headers):
                pass
        except (Agent3Error, TimeoutError):
            log.debug("%s was not told that its session has ended", self.place)

    async def aclose(self) -> None:
        self._closed = True
        self.inflow.cancel()
        await asyncio.gather(*self.inflow.answering, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_COURTESY)
        for task in self._tasks:
            task.cancel()

    # Sending

    def _open(
        self, method: str, body: bytes | None, headers: Mapping[str, str], pending: PendingRequest | None = None
    ) -> AbstractAsyncContextManager[Stream]:
        sent = {**self._headers, **headers}
        if self.session:
            sent["Mcp-Session-Id"] = self.session
        if self._authorization is not None:
            return self._open_authorized(self._authorization, method, body, sent, pending)
        return self._stream(method, body, sent)

    @asynccontextmanager
    async def _open_authorized(
        self,
        authorization: Authorization,
        method: str,
        body: bytes | None,
        headers: Mapping[str, str],
        pending: PendingRequest | None,
    ) -> AsyncIterator[Stream]:
        """Send with the current credential, and again with a better one if the server refuses it.

        A request that is refused for its credential never ran, so repeating it is safe.
        """
        for left in range(_RENEWALS, -1, -1):
            sent = {**headers, **await authorization.headers(self._gate)}
            proves = authorization if isinstance(authorization, Proves) else None
            proof = {} if proves is None else proves.prove(method, self._url, sent)
            async with self._stream(method, body, {**sent, **proof}) as answer:
                has_new_nonce = proves is not None and proves.take_nonce(answer.headers)
                # 401: no token, or a stale one. 403 with insufficient_scope: one for too little.
                challenge = answer.headers.get("www-authenticate", "")
                refused = answer.status == 401 or (answer.status == 403 and "insufficient_scope" in challenge)
                if answer.status == 401 and "use_dpop_nonce" in challenge:
                    again = bool(left) and has_new_nonce  # the token is good, only the proof was not
                else:
                    with nullcontext() if pending is None else pending.pause_clock():  # a person may have to agree
                        again = bool(left and refused and await authorization.renew(self._gate, sent, answer))
                if not again:
                    yield answer
                    return

    def _stream(self, method: str, body: bytes | None, sent: Mapping[str, str]) -> AbstractAsyncContextManager[Stream]:
        return self._gate.stream(
            method, self._url, headers=sent, body=body, timeout=FOREVER, idle=FOREVER, max_bytes=LIMITS.body
        )

    async def _tell_cancelled(self, params: dict[str, Any], headers: Mapping[str, str]) -> None:
        try:
            method = "notifications/cancelled"
            await self.tell(jsonrpc.notification(method, params), _headers_after(headers, method))
        except (Agent3Error, ServerError, TimeoutError) as error:
            log.debug("%s was not told of a cancellation: %s", self.place, error)

    # Receiving

    def _moved_to(self, answer: Stream) -> str | None:
        """Where a redirect leads, if it stays with the same server: from ``/mcp`` to ``/mcp/``, say."""
        location = answer.headers.get("location")
        if not location or self._moves >= _MOVES:
            return None
        old, new = urlsplit(self._url), urlsplit(urljoin(self._url, location))
        return new.geturl() if (old.scheme, old.netloc) == (new.scheme, new.netloc) else None

    async def _parse_body(self, answer: Stream, content: bytes, key: int | None = None) -> Any:
        """The result in an answer that came in one piece; an error for every other status."""
        status, place = answer.status, self.place
        if status < 300:
            return parse_result(await decode_message(content, place), place)
        # These statuses speak for themselves, whatever the body says. All but 5xx refuse before any tool has run.
        error: Agent3Error | None = None
        if status < 400:
            error = TargetError(f"{place} redirects to another address (HTTP {status}); add the final address instead.")
        elif status == LoopDetected.http_status:
            error = LoopDetected(
                f"{place} is this gateway itself, or leads back to it. A gateway does not call itself."
            )
        elif status in (401, 403):
            what = "requires a valid credential" if status == 401 else "does not allow this with our credential"
            hint = "Add one with agent3 add --credential env:NAME."
            error = TargetRefused(f"{place} {what} (HTTP {status}). {hint}", data={"status": status})
        elif status == 429:
            error = RateLimited(
                f"{place} accepts no more calls at the moment (HTTP 429).", retry_after=_retry_after(answer)
            )
        elif status in (502, 503, 504):
            text, own = f"{place} is not available (HTTP {status}).", {HTTP_STATUS: status}
            raise Unavailable(text, retry_after=_retry_after(answer), data=own)
        if error is not None:
            error.data[HTTP_STATUS] = status
            error.sent = False
            raise error
        try:
            message = await decode_message(content, place)
        except MalformedResponse:
            raise ServerError(None, f"{place} answered with HTTP status {status}", status=status) from None
        try:
            parse_result(message, place, status)
        except ServerError as fault:
            fault.by_id = key is not None and message.get("id") == key
            raise
        raise MalformedResponse(f"{place} answered with HTTP status {status} and a result.")

    async def _read_stream(
        self, answer: Stream, key: int, pending: PendingRequest, headers: Mapping[str, str], state: _StreamState
    ) -> dict[str, Any] | None:
        """Read an event stream up to the answer to ``key``; None if it ends without one."""
        parser = jsonrpc.SSEParser(LIMITS.body)
        try:
            async for chunk in answer:
                for frame in parser.feed(chunk):
                    state.last_event = frame.id or state.last_event
                    if frame.retry is not None:
                        state.retry = min(frame.retry / 1000, 30.0)
                    if not frame.data:
                        continue
                    message = await decode_message(frame.data, self.place)
                    if "method" not in message:
                        if message.get("id") == key:
                            await _drain(answer)
                            return message
                        log.debug("%s sent an answer to the unknown request %r", self.place, message.get("id"))
                    elif "id" in message:
                        state.inflow.answer(partial(self._answer, message, pending, headers))
                    else:
                        pending.notify(str(message["method"]), params_of(message))
                        if message["method"] not in _OF_A_REQUEST and not pending.subscription and self.on_message:
                            self.on_message(message)  # such as that a list changed, which some say with a call
                    await state.inflow.pace()
        except Unavailable:
            if state.last_event is None or not self.legacy:
                raise
        return None

    async def _answer(
        self, message: dict[str, Any], pending: PendingRequest | None, headers: Mapping[str, str]
    ) -> None:
        try:
            await self.tell(await answer_request(message, pending), _headers_after(headers))
        except (Agent3Error, ServerError, TimeoutError) as error:
            log.warning("%s did not accept the answer to its question: %s", self.place, error)

    async def _resume(
        self, key: int, pending: PendingRequest, headers: Mapping[str, str], state: _StreamState
    ) -> dict[str, Any]:
        """Fetch the rest of an answer whose stream ended early, if the server numbers its events."""
        for _ in range(RESUMPTIONS if self.legacy and state.last_event else 0):
            await asyncio.sleep(state.retry)
            if self._closed:
                break
            where = {**_headers_after(headers), "Last-Event-ID": state.last_event or ""}
            try:
                async with self._open("GET", None, where) as answer:
                    if answer.status != 200 or not _is_event_stream(answer):
                        break
                    message = await self._read_stream(answer, key, pending, headers, state)
            except Unavailable:
                continue
            if message is not None:
                return message
        raise Unavailable(
            f"{self.place} closed the connection before it answered; whether it did the work is not known."
        )


class OldHTTPChannel(HTTPChannel):
    """HTTP with SSE, which servers of 2024-11-05 speak: all that they say comes on one stream.

    The first event of the stream names the address that takes messages. The stream is the session: when it ends, the
    channel is dead.
    """

    def __init__(
        self,
        gate: Gate,
        url: str,
        headers: Mapping[str, str] | None = None,
        authorization: Authorization | None = None,
    ):
        super().__init__(gate, url, headers, authorization)
        self.legacy, self.session = True, ""
        self._waiting: Waiting = {}
        self._reading: asyncio.Task[None] | None = None

    async def open(self, limit: float) -> None:
        """Open the stream. ServerError, or an error of the gate, if there is none at the address."""
        endpoint: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading = spawn(self._tasks, self._read(endpoint))
        try:
            async with asyncio.timeout(limit):
                either: list[asyncio.Future[Any]] = [self._reading, endpoint]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise ServerError(None, "its stream does not name the address for messages") from None
        if not endpoint.done():
            self._reading.result()
            raise ServerError(None, "its stream ended before it named the address for messages")

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], pending: PendingRequest) -> Any:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer, pending
        try:
            await self._post(body, headers)
            return parse_result(await answer, self.place)
        except asyncio.CancelledError:
            spawn(self._tasks, self._tell_cancelled({"requestId": key}, headers))
            raise
        finally:
            del self._waiting[key]
            if answer.done() and not answer.cancelled():
                answer.exception()  # so that asyncio does not complain of an exception that nobody retrieved

    async def listen(self, headers: Mapping[str, str], opened: Callable[[], None] = lambda: None) -> bool:
        opened()
        return False  # what belongs to no request comes on the one stream

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await super().aclose()

    def _stream(self, method: str, body: bytes | None, sent: Mapping[str, str]) -> AbstractAsyncContextManager[Stream]:
        most = LIMITS.body if method != "GET" else 1 << 40  # of the stream, each message is bounded by itself
        return self._gate.stream(
            method, self._url, headers=sent, body=body, timeout=FOREVER, idle=FOREVER, max_bytes=most
        )

    async def _read(self, endpoint: asyncio.Future[None]) -> None:
        try:
            async with self._open("GET", None, {"Accept": "text/event-stream"}) as answer:
                if not _is_event_stream(answer):
                    raise ServerError(None, f"HTTP status {answer.status}", status=answer.status)
                parser = jsonrpc.SSEParser(LIMITS.body)
                async for chunk in answer:
                    for frame in parser.feed(chunk):
                        if frame.event == "endpoint" and not endpoint.done():
                            self._take_endpoint(frame.data.decode("utf-8", "replace").strip())
                            endpoint.set_result(None)
                        elif frame.data and frame.event in (None, "message"):
                            await self._dispatch(frame.data)
                            await self.inflow.pace()
        except (Agent3Error, ServerError) as error:
            if not endpoint.done():
                raise
            log.info("%s: the stream of the session ended: %s", self.place, error)
        finally:
            self._closed = True
            for waiting, _ in self._waiting.values():
                if not waiting.done():
                    text = "closed the stream of the session before it answered; whether it did the work is not known."
                    waiting.set_exception(Unavailable(f"{self.place} {text}"))

    def _take_endpoint(self, given: str) -> None:
        """Send messages to the address that the stream names; ServerError if they cannot go there."""
        try:
            old, new = urlsplit(self._url), urlsplit(urljoin(self._url, given))
        except ValueError:
            raise ServerError(None, "the address for messages in its stream is not valid") from None
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            raise ServerError(None, "the address for messages in its stream is on another server")
        self._url = new.geturl()

    async def _dispatch(self, data: bytes) -> None:
        """Hand one message to the request it belongs to."""
        try:
            message = await decode_message(data, self.place)
        except MalformedResponse:
            log.info("%s sent an event that is not a message: %s", self.place, data[:200])
            return
        if not deliver(message, self._waiting, self.on_message) and "id" in message:
            self.inflow.answer(partial(self._answer, message, None, {}))  # it came before the session stands


Waiting = dict[int, tuple[asyncio.Future[dict[str, Any]], PendingRequest]]
"""Requests whose answers come on a stream that all share, by their ids."""


def deliver(message: dict[str, Any], waiting: Waiting, otherwise: Callable[[dict[str, Any]], None] | None) -> bool:
    """Hand one message of a shared stream to the request that it belongs to. False if nobody takes it."""
    if "method" not in message:
        key = message.get("id")
        if isinstance(key, int) and key in waiting and not waiting[key][0].done():
            waiting[key][0].set_result(message)
        return True
    params = params_of(message)
    token = params.get("progressToken")
    if "id" not in message and isinstance(token, int) and token in waiting:
        waiting[token][1].notify(str(message["method"]), params)
        return True
    if otherwise is not None:
        otherwise(message)
    return otherwise is not None


async def _drain(answer: Stream) -> None:
    """Read what follows the answer, normally nothing, so that the connection can be used again."""
    with suppress(TimeoutError, Agent3Error):
        async with asyncio.timeout(_DRAIN):
            async for _ in answer:
                pass


def _headers_after(headers: Mapping[str, str], method: str = "") -> dict[str, str]:
    """The headers of what follows a request, from those of the request: they name no tool, and their own method."""
    kept = {name: value for name, value in headers.items() if name.lower() == "mcp-protocol-version"}
    return {**kept, "Mcp-Method": method} if method and "Mcp-Method" in headers else kept


def _is_event_stream(answer: Stream) -> bool:
    return answer.status < 300 and jsonrpc.is_event_stream(answer.headers.get("content-type"))


def _retry_after(answer: Stream) -> float | None:
    return jsonrpc.parse_retry_after(answer.headers.get("retry-after"), REAL.now(), FOREVER)
