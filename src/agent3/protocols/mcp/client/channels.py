"""Ways to an MCP server: an ``Exchange`` is one request on its way, a ``Channel`` carries it, here over HTTP.

Spoken directly over the outbound gate and not through the SDK's client: that one brings its own HTTP stack, which
the gate cannot judge and which costs three times as much per request, belongs to the task that opened it, never
re-initialises a lost session, and has no timeout that progress extends. A channel knows JSON-RPC and HTTP. It knows
neither eras nor tools: who negotiates what is the upstream's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from agent3 import jsonrpc
from agent3.env import REAL
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    ParseError,
    RateLimited,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.identity.secrets import Secret
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate, Stream

__all__ = [
    "Authorization",
    "Changing",
    "Channel",
    "Exchange",
    "HTTPChannel",
    "Refused",
    "answer_to",
    "params_of",
    "read",
    "result_of",
]

log = logger("mcp")

LIMITS = jsonrpc.Limits(body=16 << 20, nodes=500_000)
"""What an upstream may answer: more than a stranger may send, for the operator chose it."""
FOREVER = 86_400.0
"""Seconds after which even a silent stream ends; the exchange's own clock is what counts."""
RESUMPTIONS = 5
"""How often one legacy answer whose stream broke off is fetched again."""
_RENEWALS = 2
"""How often one request is sent again with a better credential: once for having none, once for a wider one."""
_COURTESY = 2.0
"""Seconds that a word of cancellation or farewell may take."""
_EOF = 0.02
"""Seconds that a stream gets to end after its answer; then the connection is closed instead of kept."""

Asked = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""How much a log line matters, the least first."""


class Refused(Exception):
    """The server answered with an error. ``status`` is an HTTP status that refused the request before it ran."""

    def __init__(self, code: int | None, message: str, data: Any = None, status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class Exchange:
    """One request on its way: who hears what it tells, who answers what it asks, and how long it may be silent.

    Every message of the server starts the ``idle`` clock anew, up to ``ceiling`` seconds in all. While a person is
    asked no clock runs. ``standing`` says that it only listens. ``powers`` is what the caller can do besides answering
    forms, ``sampling`` and ``roots``; ``level`` is the least of log lines that it wants. Use as ``async with``;
    CallTimeout when the time is over.
    """

    def __init__(
        self,
        hear: Callable[[str, dict[str, Any]], None] | None = None,
        ask: Asked | None = None,
        *,
        idle: float = 20.0,
        ceiling: float = 300.0,
        standing: bool = False,
        powers: frozenset[str] = frozenset(),
        level: str | None = None,
    ):
        self.standing = standing
        self.powers = powers
        self.level = level
        self._hear = hear
        self._ask = ask
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + ceiling
        self._limit = asyncio.timeout_at(self._next())
        self._asking = 0

    async def __aenter__(self) -> Exchange:
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise CallTimeout(
                f"The MCP server showed no sign of progress for {self._idle:g} s; the call was cancelled there."
            ) from None

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """The server told something: it is alive, and whoever listens may know."""
        self._wind()
        if self._hear is not None:
            self._hear(method, params)

    async def asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The server asks something of whoever called."""
        if self._ask is None:
            raise Refused(jsonrpc.METHOD_NOT_FOUND, f"Nobody here answers {method}")
        with self.waiting():
            return await self._ask(method, params)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """No clock runs meanwhile: it is not the server that is slow."""
        began = self._loop.time()
        self._asking += 1
        self._limit.reschedule(None)
        try:
            yield
        finally:
            self._asking -= 1
            self._ends += self._loop.time() - began
            self._wind()

    @property
    def can_answer(self) -> bool:
        """Whether somebody is there to be asked."""
        return self._ask is not None

    def _next(self) -> float:
        return min(self._loop.time() + self._idle, self._ends)

    def _wind(self) -> None:
        if not self._asking and not self._limit.expired():
            self._limit.reschedule(self._next())


class Channel(Protocol):
    """One connection to one server, whatever carries it. Many requests may be under way at once."""

    @property
    def alive(self) -> bool:
        """Whether it can still take a request."""
        ...

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], exchange: Exchange) -> Any:
        """Send a request and give its result. Refused for an error; cancelling it tells the server."""
        ...

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a notification, or the answer to a question."""
        ...

    async def aclose(self) -> None:
        """End it, and whatever is under way on it."""
        ...


class Authorization(Protocol):
    """A credential that changes, where a fixed header would not do. It may serve many requests at once."""

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """What the next request carries."""
        ...

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Stream) -> bool:
        """Get a better one after a request with these headers was refused; True if it is worth another try."""
        ...


class Changing(Secret):
    """A secret that its keeper renews, known by a name: ``authorization`` gives what requests carry.

    ``recent`` gives the last ones, so that none of them comes back from a server that repeats what it was sent.
    """

    __slots__ = ("_recent", "authorization")

    def __init__(self, name: str, authorization: Authorization, recent: Callable[[], Sequence[Secret]]):
        super().__init__(name)
        self.authorization = authorization
        self._recent = recent

    def reveal(self) -> str:
        """The one that is good now; nothing before there is one."""
        known = self._recent()
        return known[-1].reveal() if known else ""

    def forms(self) -> tuple[str, ...]:
        """The spellings of the last ones."""
        return tuple(form for one in self._recent() for form in one.forms())


def read(body: bytes, place: str) -> dict[str, Any]:
    """The JSON-RPC message in some bytes of a server, or MalformedResponse."""
    try:
        message = jsonrpc.decode(body, LIMITS)
    except (ParseError, TooLarge) as wrong:
        raise MalformedResponse(f"{place} answered with something that is not JSON-RPC: {wrong.message}") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise MalformedResponse(f"{place} answered with something that is not JSON-RPC 2.0.")
    return message


def params_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a message; none where they are not what they should be."""
    found = message.get("params")
    return found if isinstance(found, dict) else {}


def result_of(message: dict[str, Any], place: str, status: int | None = None) -> Any:
    """The result in an answer; Refused if it is an error."""
    if "result" in message:
        return message["result"]
    wrong = message.get("error")
    if not isinstance(wrong, dict):
        raise MalformedResponse(f"{place} answered with neither a result nor an error.")
    code, text = wrong.get("code"), wrong.get("message")
    raise Refused(code if isinstance(code, int) else None, str(text or "no reason given"), wrong.get("data"), status)


async def answer_to(message: dict[str, Any], exchange: Exchange | None) -> bytes:
    """The bytes that answer a question of the server: by whoever can, else that nobody does."""
    key, method, params = message.get("id"), str(message.get("method")), params_of(message)
    try:
        if method == "ping":
            return jsonrpc.result(key, {})
        if exchange is None:
            raise Refused(jsonrpc.METHOD_NOT_FOUND, f"Nobody here answers {method}")
        return jsonrpc.result(key, await exchange.asked(method, params))
    except Refused as refused:
        return jsonrpc.error(key, refused.code or jsonrpc.INTERNAL_ERROR, refused.message)
    except Agent3Error as wrong:
        return jsonrpc.error_of(key, wrong)


@dataclass(slots=True)
class _Reading:
    """How far one answer has been read: where to resume it, and the questions that are being answered."""

    last: str | None = None
    pause: float = 1.0
    asking: set[asyncio.Task[None]] | None = None


class HTTPChannel:
    """Streamable HTTP to one address with one credential, in either era.

    ``legacy`` requests may be asked back on their stream, are resumed when it breaks off, and are cancelled by a
    notification; a modern one is cancelled by closing its stream. ``session`` is the server's id of a legacy session.
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
        self.legacy = False
        self.session: str | None = None
        self.on_stray: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], exchange: Exchange) -> Any:
        reading = _Reading()
        try:
            async with self._open("POST", body, headers, exchange) as answer:
                if session := answer.headers.get("mcp-session-id"):
                    self.session = session
                if not _is_stream(answer):
                    return self._whole(answer, b"".join([chunk async for chunk in answer]))
                message = await self._follow(answer, key, exchange, headers, reading)
            if message is None:
                message = await self._resume(key, exchange, headers, reading)
            return result_of(message, self.place)
        except asyncio.CancelledError:
            if self.legacy and self.session is not None:
                params = {"requestId": key, "reason": "the caller cancelled or ran out of time"}
                self._later(self.tell(jsonrpc.notification("notifications/cancelled", params), headers))
            raise
        finally:
            for task in reading.asking or ():
                task.cancel()

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        plain = {name: value for name, value in headers.items() if not name.lower().startswith("mcp-param-")}
        try:
            async with asyncio.timeout(_COURTESY * 5), self._open("POST", body, plain) as answer:
                content = b"".join([chunk async for chunk in answer])
        except TimeoutError:
            raise CallTimeout(f"{self.place} did not take a notification in time.") from None
        if answer.status >= 400:
            self._whole(answer, content)

    async def stray(self, headers: Mapping[str, str], opened: Callable[[], None] = lambda: None) -> bool:
        """Read the stream on which a legacy server tells what belongs to no request. False if it has none.

        Gives up when the stream ends; whoever wants to hear more opens it again. ``opened`` hears when it is there.
        """
        async with self._open("GET", None, headers) as answer:
            opened()
            if answer.status != 200 or not _is_stream(answer):
                return False
            parser = jsonrpc.SSEParser(LIMITS.body)
            async for chunk in answer:
                for frame in parser.feed(chunk):
                    if frame.data and self.on_stray is not None:
                        await self.on_stray(read(frame.data, self.place))
        return True

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Tell a legacy server that its session is over; whether it listens does not matter."""
        if self.session is None:
            return
        try:
            async with asyncio.timeout(_COURTESY), self._open("DELETE", None, headers):
                pass
        except (Agent3Error, TimeoutError):
            log.debug("%s was not told that its session is over", self.place)

    async def aclose(self) -> None:
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_COURTESY)
        for task in self._tasks:
            task.cancel()

    # Inside

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it without anybody waiting: a courtesy that may fail."""

        async def kindly() -> None:
            try:
                await work
            except (Agent3Error, Refused, TimeoutError) as wrong:
                log.debug("%s was not told: %s", self.place, wrong)

        task = asyncio.get_running_loop().create_task(kindly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open(
        self, method: str, body: bytes | None, headers: Mapping[str, str], exchange: Exchange | None = None
    ) -> AbstractAsyncContextManager[Stream]:
        sent = {**self._headers, **headers}
        if self.session is not None:
            sent["Mcp-Session-Id"] = self.session
        if self._authorization is not None:
            return self._authorized(self._authorization, method, body, sent, exchange)
        return self._plain(method, body, sent)

    def _plain(self, method: str, body: bytes | None, sent: Mapping[str, str]) -> AbstractAsyncContextManager[Stream]:
        return self._gate.stream(
            method, self._url, headers=sent, body=body, timeout=FOREVER, idle=FOREVER, max_bytes=LIMITS.body
        )

    @asynccontextmanager
    async def _authorized(
        self,
        authorization: Authorization,
        method: str,
        body: bytes | None,
        headers: Mapping[str, str],
        exchange: Exchange | None,
    ) -> AsyncIterator[Stream]:
        """A refusal for want of a credential came before anything ran, so the same request may follow it."""
        for left in range(_RENEWALS, -1, -1):
            sent = {**headers, **await authorization.headers(self._gate)}
            async with self._plain(method, body, sent) as answer:
                with nullcontext() if exchange is None else exchange.waiting():  # a person may have to agree
                    again = left and _wants_more(answer) and await authorization.renew(self._gate, sent, answer)
                if not again:
                    yield answer
                    return

    def _whole(self, answer: Stream, content: bytes) -> Any:
        """The result in an answer that came in one piece; every status has its error."""
        status = answer.status
        if status < 300:
            return result_of(read(content, self.place), self.place)
        if wrong := _refusal(answer, self.place):
            raise wrong
        try:
            message = read(content, self.place)
        except MalformedResponse:
            raise Refused(None, f"{self.place} answered with HTTP status {status}", status=status) from None
        result_of(message, self.place, status)
        raise MalformedResponse(f"{self.place} answered with HTTP status {status} and a result.")

    async def _follow(
        self, answer: Stream, key: int, exchange: Exchange, headers: Mapping[str, str], reading: _Reading
    ) -> dict[str, Any] | None:
        """Read a stream until the answer to ``key``; None if it ends without."""
        parser = jsonrpc.SSEParser(LIMITS.body)
        try:
            async for chunk in answer:
                for frame in parser.feed(chunk):
                    reading.last = frame.id or reading.last
                    reading.pause = reading.pause if frame.retry is None else min(frame.retry / 1000, 30.0)
                    if frame.data and (message := self._sort(frame.data, key, exchange, headers, reading)):
                        await _to_its_end(answer)
                        return message
        except Unavailable:
            if reading.last is None or not self.legacy:
                raise
        return None

    def _sort(
        self, data: bytes, key: int, exchange: Exchange, headers: Mapping[str, str], reading: _Reading
    ) -> dict[str, Any] | None:
        """The message if it is the answer; others go to whoever they are for."""
        message = read(data, self.place)
        if "method" not in message:
            if message.get("id") == key:
                return message
            log.debug("%s answered %r, which nobody asked on this stream", self.place, message.get("id"))
        elif "id" in message:
            self._reply(message, exchange, headers, reading)
        else:
            exchange.heard(str(message["method"]), params_of(message))
        return None

    def _reply(
        self, message: dict[str, Any], exchange: Exchange, headers: Mapping[str, str], reading: _Reading
    ) -> None:
        """Answer a question of the server beside the reading, for more may come on the stream meanwhile."""

        async def replied() -> None:
            try:
                await self.tell(await answer_to(message, exchange), headers)
            except (Agent3Error, Refused, TimeoutError) as wrong:
                log.warning("%s did not take the answer to its question: %s", self.place, wrong)

        task = asyncio.get_running_loop().create_task(replied())
        reading.asking = reading.asking or set()
        reading.asking.add(task)
        task.add_done_callback(reading.asking.discard)

    async def _resume(
        self, key: int, exchange: Exchange, headers: Mapping[str, str], reading: _Reading
    ) -> dict[str, Any]:
        """Fetch the rest of an answer whose stream ended early, where the server numbered its events."""
        for _ in range(RESUMPTIONS if self.legacy and reading.last else 0):
            await asyncio.sleep(reading.pause)
            where = {**headers, "Last-Event-ID": reading.last or ""}
            try:
                async with self._open("GET", None, where) as answer:
                    if answer.status != 200 or not _is_stream(answer):
                        break
                    message = await self._follow(answer, key, exchange, headers, reading)
            except Unavailable:
                continue
            if message is not None:
                return message
        raise Unavailable(f"{self.place} broke off before it answered; whether it did the work is not known.")


async def _to_its_end(answer: Stream) -> None:
    """Read the nothing that follows the answer, so that the connection can be used again."""
    try:
        async with asyncio.timeout(_EOF):
            async for _ in answer:
                pass
    except (TimeoutError, Agent3Error):
        pass


def _is_stream(answer: Stream) -> bool:
    return answer.status < 300 and answer.headers.get("content-type", "").startswith("text/event-stream")


def _wants_more(answer: Stream) -> bool:
    """Whether a better token may help: none or a stale one was sent, or one for too little."""
    if answer.status == 403:
        return "insufficient_scope" in answer.headers.get("www-authenticate", "")
    return answer.status == 401


def _refusal(answer: Stream, place: str) -> Agent3Error | None:
    """What an HTTP status says by itself, whatever the body; refusals of the door, before any tool ran."""
    status = answer.status
    error: Agent3Error
    if status in (401, 403):
        what = "wants a credential, or a better one" if status == 401 else "does not allow this to our credential"
        error = TargetRefused(
            f"{place} {what} (HTTP {status}). Give it with agent3 add --credential env:NAME.", data={"status": status}
        )
    elif status == 429:
        error = RateLimited(f"{place} takes no more calls at the moment.", retry_after=_retry_after(answer))
    elif status < 400:
        error = TargetError(f"{place} redirects (HTTP {status}); add the final address instead.")
    elif status in (502, 503, 504):
        return Unavailable(f"{place} is not available (HTTP {status}).", retry_after=_retry_after(answer))
    else:
        return None
    error.sent = False
    return error


def _retry_after(answer: Stream) -> float | None:
    text = answer.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return min(float(text), FOREVER)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - REAL.now()) if text else None
    except ValueError:
        return None
