"""The way to a vendor: one address, one credential, time and attempts bounded, failures in the house's own words.

It goes through the outbound gate like every other request. The address is the operator's own word, so its host
counts as registered and may be on loopback. It knows HTTP and nothing of what a model says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    MalformedResponse,
    NotFound,
    RateLimited,
    RequestError,
    SetupError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.identity.redaction import redact
from agent3.identity.secrets import EnvironmentVault, Secret, Vault
from agent3.jsonrpc import Frame, SSEParser
from agent3.llm.port import Reply
from agent3.security.sanitize import clean_text

if TYPE_CHECKING:
    from agent3.security.outbound import Gate, Stream

__all__ = ["Assembler", "Endpoint", "ToldNo", "Trouble", "decoded", "trouble_of"]

T = TypeVar("T")

MAX_BYTES = 16 << 20
_ERROR_BYTES = 64 << 10
_BASE = 0.5
_LONGEST_WAIT = 30.0
_json = msgspec.json.Encoder()


class Assembler(Protocol):
    """Makes one reply of the pieces of a stream."""

    ended: bool
    """Whether the vendor has said that this is all."""

    def feed(self, frame: Frame) -> str:
        """Take a piece; the text in it, which may be none. Raises ToldNo when the vendor tells of an error."""
        ...

    def reply(self) -> Reply:
        """What the pieces make."""
        ...


class Trouble(Struct, frozen=True):
    """What a vendor says when it says no, in either form: ``{"error": {…}}``."""

    type: str | None = None
    code: Any = None
    message: str | None = None

    @property
    def words(self) -> set[str]:
        """Its type and code, as far as they are words."""
        return {one for one in (self.type, self.code) if isinstance(one, str)}

    @property
    def status(self) -> int:
        """The HTTP status that it would have had, had it come at the beginning."""
        if isinstance(self.code, int) and 400 <= self.code < 600:
            return self.code
        return next((_STATUS_OF[word] for word in self.words if word in _STATUS_OF), 500)


class ToldNo(Exception):
    """The vendor said no inside an answer that began well. It never leaves this package."""

    def __init__(self, trouble: Trouble):
        super().__init__()
        self.trouble = trouble


class Endpoint:
    """An address with its credential. Usable from several event loops, each with connections of its own."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str | Secret | None,
        header: Callable[[str], Mapping[str, str]],
        headers: Mapping[str, str],
        timeout: float,
        retries: int,
        vault: Vault | None,
        gate: Gate | None,
        env: Env = REAL,
    ):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise SetupError("base_url must be http(s)://host[:port][/path], without a user name or a query.")
        self.url = base_url.rstrip("/")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.place = f"[{parts.hostname}]:{port}" if ":" in parts.hostname else f"{parts.hostname}:{port}"
        self._key = key
        self._header = header
        self._headers = {"Content-Type": "application/json", **headers}
        self._timeout = timeout
        self._retries = retries
        self._vault = vault or EnvironmentVault()
        self._gate = gate
        self._env = env
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate] = WeakKeyDictionary()

    async def send(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[bytes], Reply],
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Post it and read the whole answer."""
        secret = await self._secret()

        async def attempt(left: float) -> Reply:
            answer = await self._opened().request(
                "POST",
                self.url + path,
                headers={**self._credited(secret), **(headers or {})},
                body=_encoded(body),
                timeout=left,
                max_bytes=MAX_BYTES,
            )
            if answer.status != 200:
                raise self._failure(answer.status, answer.headers, answer.body, secret)
            return read(answer.body)

        return await self._attempts(attempt, secret, lambda: False)

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[bytes], Reply],
        assembler: Callable[[], Assembler],
        on_text: Callable[[str], None],
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Post it and tell each piece of text as it comes. After the first piece nothing is repeated."""
        secret = await self._secret()
        told = False

        def tell(text: str) -> None:
            nonlocal told
            if text:
                told = True
                on_text(text)

        async def attempt(left: float) -> Reply:
            async with self._opened().stream(
                "POST",
                self.url + path,
                headers={"Accept": "text/event-stream", **self._credited(secret), **(headers or {})},
                body=_encoded(body),
                timeout=left,
                max_bytes=MAX_BYTES,
            ) as answer:
                if answer.status != 200:
                    raise self._failure(answer.status, answer.headers, await _some(answer), secret)
                if "event-stream" in answer.headers.get("Content-Type", ""):
                    return await self._assembled(answer, assembler(), tell)
                reply = read(b"".join([chunk async for chunk in answer]))  # a server that does not stream
                tell(reply.text)
                return reply

        return await self._attempts(attempt, secret, lambda: told)

    async def aclose(self) -> None:
        """Close the connections of this event loop. It may be used again."""
        gate = self._gates.pop(asyncio.get_running_loop(), None)
        if gate is not None:
            await gate.aclose()

    async def _assembled(self, answer: Stream, pieces: Assembler, tell: Callable[[str], None]) -> Reply:
        parser = SSEParser()
        async for chunk in answer:
            for frame in parser.feed(chunk):
                tell(pieces.feed(frame))
        if not pieces.ended:
            raise Unavailable(f"{self.place} broke off in the middle of its answer; ask again.")
        return pieces.reply()

    async def _attempts(
        self, attempt: Callable[[float], Awaitable[Reply]], secret: Secret | None, told: Callable[[], bool]
    ) -> Reply:
        deadline = self._env.monotonic() + self._timeout
        number = 0
        while True:
            try:
                return await self._attempt(attempt, max(deadline - self._env.monotonic(), 0.001), secret)
            except (RateLimited, Unavailable) as error:
                wait = self._wait(error, number)
                if wait is None or told() or self._env.monotonic() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
            number += 1

    async def _attempt(self, attempt: Callable[[float], Awaitable[Reply]], left: float, secret: Secret | None) -> Reply:
        try:
            return await attempt(left)
        except ToldNo as no:
            raise self._refused(no.trouble, no.trouble.status, None, secret) from None

    def _wait(self, error: Agent3Error, number: int) -> float | None:
        """Seconds until the next attempt; None if there is none to make.

        Only what the vendor itself put off, or what never left: an answer that broke off is paid for already.
        """
        put_off = "status" in error.data and error.data.get("type") != "insufficient_quota"
        if number >= self._retries or not (put_off or not error.sent):
            return None
        if error.retry_after is None:
            return self._env.jitter(_BASE * 2**number)
        return None if error.retry_after > _LONGEST_WAIT else error.retry_after + self._env.jitter(_BASE)

    # --- credentials and connections ---

    async def _secret(self) -> Secret | None:
        return await self._vault.get(self._key) if isinstance(self._key, str) else self._key

    def _credited(self, secret: Secret | None) -> dict[str, str]:
        # A key that was read from a file often brings its line end along, which no header may hold.
        return dict(self._headers) if secret is None else {**self._headers, **self._header(secret.reveal().strip())}

    def _opened(self) -> Gate:
        if self._gate is not None:
            return self._gate
        from agent3.security.outbound import Gate, Policy  # the one place here that loads the HTTP client

        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates[loop] = Gate(Policy(allow_hosts=frozenset({self.place}), setting="llm"))
        return self._gates[loop]

    # --- failures ---

    def _failure(self, status: int, headers: Mapping[str, str], body: bytes, secret: Secret | None) -> Agent3Error:
        """The house's error for an answer with an error status."""
        return self._refused(_trouble(body), status, _retry_after(headers, self._env.now()), secret)

    def _refused(self, said: Trouble, status: int, after: float | None, secret: Secret | None) -> Agent3Error:
        words = redact(clean_text(said.message or ""), [secret] if secret else [])[:500]
        kind, remedy = _meaning(status, said, words)
        # Of a refused credential the vendor's own words are left out: they like to repeat half of it.
        quoted = f" It says: {words}" if words and kind is not TargetRefused else ""
        error = kind(f"{self.place} answered {status}: {remedy}{quoted}", retry_after=after)
        error.data.update({"status": status, **({"type": said.type} if said.type else {})})
        return error


_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_TOO_LONG = ("context_length_exceeded", "prompt is too long", "maximum context length", "string_above_max_length")


def _meaning(status: int, said: Trouble, words: str) -> tuple[type[Agent3Error], str]:
    """The error's class, and what to do about it."""
    if status in (401, 403):
        return TargetRefused, "it does not take the key, or not for this model; check the credential reference."
    if status == 402:
        return TargetRefused, "the account must be paid for; see its billing page."
    if status == 429:
        used_up = "insufficient_quota" in said.words
        return RateLimited, "the quota is used up; add credit." if used_up else "too many requests; wait and ask again."
    if status == 413 or any(one in words or one in said.words for one in _TOO_LONG):
        return TooLarge, "the conversation is too long for it; shorten it or use a larger model."
    if status == 404:
        return NotFound, "no such model or path; check model and base_url."
    if status == 408 or status >= 500:
        return Unavailable, "it is overloaded or out of order; ask again later."
    if status < 400:
        return MalformedResponse, "not the answer of a model; check that base_url is the final address."
    return RequestError, "it does not take this request."


def _trouble(body: bytes) -> Trouble:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Trouble()
    return trouble_of(value.get("error", value) if isinstance(value, dict) else value)


def trouble_of(value: Any) -> Trouble:
    """What went wrong, from whatever stands under ``error``."""
    if isinstance(value, str):
        return Trouble(message=value)
    try:
        return msgspec.convert(value, Trouble)
    except msgspec.ValidationError:
        return Trouble()


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds, from ``retry-after-ms`` or either form of ``retry-after``."""
    try:
        if (exact := headers.get("retry-after-ms")) is not None:
            return max(float(exact) / 1000, 0.0)
        if (said := headers.get("retry-after")) is None:
            return None
        seconds = float(said) if said.strip()[:1].isdigit() else parsedate_to_datetime(said).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return max(seconds, 0.0) if seconds < 1e9 else None


def decoded(body: bytes, kind: type[T], place: str) -> T:
    """The vendor's JSON as what it should be."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedResponse(f"{place} answered with something that is no answer of a model: {error}") from None


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return _json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"The conversation holds something that JSON cannot carry: {error}") from None


async def _some(answer: Stream) -> bytes:
    """Enough of an error's body to read it."""
    found = b""
    async for chunk in answer:
        found += chunk
        if len(found) > _ERROR_BYTES:
            break
    return found
