"""HTTP to a vendor: one address, one credential, bounded time and attempts, failures as our own errors.

Requests go through the outbound gate. The address is the operator's own choice, so its host counts as registered and
may be on loopback. It knows HTTP, and nothing of what a model says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
from agent3.jsonrpc import Frame, SSEParser, is_event_stream, parse_retry_after
from agent3.llm.port import Reply
from agent3.security.sanitize import clean_text

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["Assembler", "Endpoint", "VendorError", "VendorFailure", "decode", "parse_vendor_error"]

T = TypeVar("T")

MAX_BYTES = 16 << 20
_ERROR_BYTES = 64 << 10
_BACKOFF = 0.5
_LONGEST_WAIT = 30.0
_json = msgspec.json.Encoder()


class Assembler(Protocol):
    """Makes one reply of an answer, whole or in the pieces of a stream."""

    ended: bool
    """Whether the vendor has said that the stream is complete."""

    def parse(self, body: bytes) -> Reply:
        """The reply of an answer that came in one piece."""
        ...

    def feed(self, frame: Frame) -> str:
        """Take a piece of a stream; return the text in it. Raises VendorFailure for an error inside the stream."""
        ...

    def reply(self) -> Reply:
        """The reply that the pieces make."""
        ...


class VendorError(Struct, frozen=True):
    """What a vendor says when it refuses, under ``{"error": {…}}``."""

    type: str | None = None
    code: Any = None
    message: str | None = None

    @property
    def words(self) -> set[str]:
        """Its type and code, if they are words."""
        return {word for word in (self.type, self.code) if isinstance(word, str)}

    @property
    def status(self) -> int:
        """The HTTP status that it would have had at the start of an answer."""
        if isinstance(self.code, int) and 400 <= self.code < 600:
            return self.code
        return next((_STATUS_OF[word] for word in self.words if word in _STATUS_OF), 500)


class VendorFailure(Exception):
    """The vendor reported an error inside an answer of status 200. It never leaves this package."""

    def __init__(self, error: VendorError):
        super().__init__()
        self.error = error


class _Request(Struct, frozen=True):
    """What every attempt sends."""

    url: str
    headers: dict[str, str]
    body: bytes
    secret: Secret | None


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

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        assembler: Callable[[], Assembler],
        on_text: Callable[[str], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Post a request and return the reply; with ``on_text`` pass each piece of text on as it comes.

        Repeats what the vendor put off or what was never sent, within the time and the attempts there are, but never
        after a piece of text was passed on.
        """
        try:
            encoded = _json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"The conversation contains something that JSON cannot represent: {error}") from None
        secret = await self._vault.get(self._key) if isinstance(self._key, str) else self._key
        # A key that was read from a file often ends with a line break, which no header may hold.
        credential = {} if secret is None else self._header(secret.reveal().strip())
        accept = {} if on_text is None else {"Accept": "text/event-stream"}
        all_headers = {**accept, **self._headers, **credential, **(headers or {})}
        request = _Request(self.url + path, all_headers, encoded, secret)
        told = False

        def tell(text: str) -> None:
            nonlocal told
            if text and on_text is not None:
                told = True
                on_text(text)

        deadline = self._env.monotonic() + self._timeout
        number = 0
        while True:
            left = max(deadline - self._env.monotonic(), 0.001)
            try:
                return await self._attempt(request, assembler(), None if on_text is None else tell, left)
            except (RateLimited, Unavailable) as error:
                # Only what the vendor itself put off, or what was never sent: an answer that broke off is paid for.
                put_off = "status" in error.data and error.data.get("type") != "insufficient_quota"
                if told or number >= self._retries or not (put_off or not error.sent):
                    raise
                if error.retry_after is None:
                    wait = self._env.jitter(_BACKOFF * 2**number)
                else:
                    wait = error.retry_after + self._env.jitter(_BACKOFF)
                if (error.retry_after or 0.0) > _LONGEST_WAIT or self._env.monotonic() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
            number += 1

    async def aclose(self) -> None:
        """Close the connections of this event loop. It may be used again."""
        gate = self._gates.pop(asyncio.get_running_loop(), None)
        if gate is not None:
            await gate.aclose()

    async def _attempt(
        self, request: _Request, assembler: Assembler, tell: Callable[[str], None] | None, left: float
    ) -> Reply:
        try:
            async with self._get_gate().stream(
                "POST", request.url, headers=request.headers, body=request.body, timeout=left, max_bytes=MAX_BYTES
            ) as answer:
                if answer.status != 200:
                    found = b""
                    async for chunk in answer:
                        found += chunk
                        if len(found) > _ERROR_BYTES:
                            break
                    try:
                        value = msgspec.json.decode(found)
                    except (msgspec.DecodeError, RecursionError):
                        value = {}
                    given = parse_vendor_error(value.get("error", value) if isinstance(value, dict) else value)
                    raise self._refusal(given, answer.status, answer.headers, request.secret)
                if tell is None or not is_event_stream(answer.headers.get("Content-Type")):
                    reply = assembler.parse(b"".join([chunk async for chunk in answer]))
                    if tell is not None:  # it was asked to stream, and does not
                        tell(reply.text)
                    return reply
                parser = SSEParser()
                async for chunk in answer:
                    for frame in parser.feed(chunk):
                        tell(assembler.feed(frame))
                if not assembler.ended:
                    raise Unavailable(f"{self.place} closed the connection in the middle of its answer; try again.")
                return assembler.reply()
        except VendorFailure as failure:
            raise self._refusal(failure.error, failure.error.status, {}, request.secret) from None

    def _get_gate(self) -> Gate:
        if self._gate is not None:
            return self._gate
        from agent3.security.outbound import Gate, Policy  # the one place here that loads the HTTP client

        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates[loop] = Gate(Policy(allow_hosts=frozenset({self.place}), setting="llm"))
        return self._gates[loop]

    def _refusal(
        self, given: VendorError, status: int, headers: Mapping[str, str], secret: Secret | None
    ) -> Agent3Error:
        """Our error for an answer with an error status."""
        words = redact(clean_text(given.message or ""), [secret] if secret else [])[:500]
        kind, remedy = _explain(status, given, words)
        # Of a refused credential the vendor's own words are left out: they tend to repeat half of it.
        quoted = f" It says: {words}" if words and kind is not TargetRefused else ""
        after = parse_retry_after(headers.get("retry-after"), self._env.now())
        exact = headers.get("retry-after-ms", "")
        if exact.replace(".", "", 1).isdecimal():
            after = float(exact) / 1000
        error = kind(f"{self.place} answered {status}: {remedy}{quoted}", retry_after=after)
        error.data.update({"status": status, **({"type": given.type} if given.type else {})})
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


def _explain(status: int, given: VendorError, words: str) -> tuple[type[Agent3Error], str]:
    """The error's class, and what to do about it."""
    if status in (401, 403):
        return TargetRefused, "it rejects the key, or the key may not use this model; check the credential reference."
    if status == 402:
        return TargetRefused, "the account has no credit left; see its billing page."
    if status == 429:
        used_up = "insufficient_quota" in given.words
        return (
            RateLimited,
            "the quota is exhausted; add credit." if used_up else "too many requests; wait and try again.",
        )
    if status == 413 or any(phrase in words or phrase in given.words for phrase in _TOO_LONG):
        return TooLarge, "the conversation is too long for the model; shorten it or use a larger model."
    if status == 404:
        return NotFound, "no such model or path; check model and base_url."
    if status == 408 or status >= 500:
        return Unavailable, "it is overloaded or failing; try again later."
    if status < 400:
        return MalformedResponse, "this is not the answer of a model; check that base_url is the final address."
    return RequestError, "it rejects this request."


def parse_vendor_error(value: Any) -> VendorError:
    """The error from whatever stands under ``error``."""
    if isinstance(value, str):
        return VendorError(message=value)
    try:
        return msgspec.convert(value, VendorError)
    except msgspec.ValidationError:
        return VendorError()


def decode(body: bytes, kind: type[T], place: str) -> T:
    """Decode the vendor's JSON; MalformedResponse if it is not of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedResponse(f"{place} did not answer like a model: {error}") from None
