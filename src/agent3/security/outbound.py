"""The one outbound gate: every request to somewhere else leaves through a ``Gate``.

A name is resolved once, every address it has is judged, and the connection goes to a judged address and no other; the
TLS name stays the host. Checking a URL and then connecting would be check-then-use: between the two, a hostile name
server answers differently. The gate knows addresses, sizes and times. It knows neither protocols nor principals, and
it never repeats a request.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    SecurityError,
    SetupError,
    TooLarge,
    Unavailable,
)
from agent3.security import via
from agent3.security.destinations import NO_SETTING, SWITCHES, Policy, judge, parse_url, refusal
from agent3.security.unpacking import ACCEPTED, Unpacker, unpacker_for

__all__ = ["Gate", "Policy", "Resolver", "Response", "Stream", "judge", "parse_url"]

Resolver = Callable[[str, int], Awaitable[list[str]]]

_CONNECTIONS = 1000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What may follow a redirect to another origin. It lists what to keep, since any other name may be a credential's.
_PORTABLE = frozenset(
    {"accept", "accept-language", "content-type", "user-agent", "traceparent", "mcp-protocol-version", "a2a-version"}
)
# Set by the client library; with a second one, two readers of the request could disagree about it.
_RESERVED_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; ``headers`` are found in any case, ``url`` is where it came from after redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


@dataclass(slots=True)
class _Request:
    """One request on its way: the next hop, its limits, and whether anything was sent yet."""

    method: str
    url: URL
    headers: dict[str, str]
    body: bytes | None
    follow: bool
    max_bytes: int
    idle: float
    sent: bool = False
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def place(self) -> str:
        """Host and port, for error texts: never the path or query, which may hold a credential."""
        return f"{self.url.host}:{self.url.port}"


class Stream:
    """An answer that is still arriving: iterate over it for its bytes, once."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        request: _Request,
        deadline: float | None,
        translate_errors: Callable[[_Request], AbstractContextManager[None]],
    ):
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.url = str(request.url)
        self._response = response
        self._request = request
        self._deadline = deadline
        self._translate_errors = translate_errors
        self._size = self._packed = 0
        with translate_errors(request):
            self._unpacker = unpacker_for(response.headers.get("Content-Encoding"), request.place)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with self._translate_errors(self._request):
            chunk = await self._read() if self._unpacker is None else await self._unpack(self._unpacker)
        if not chunk:
            raise StopAsyncIteration
        self._size += len(chunk)
        self._check(self._size)
        return chunk

    async def _read(self) -> bytes:
        content = self._response.content
        chunk = content.read_nowait()  # a small answer arrives with its head: no timer for it
        if not chunk and not content.at_eof():
            async with asyncio.timeout_at(self._deadline):
                chunk = await content.readany()
        return chunk

    async def _unpack(self, unpacker: Unpacker) -> bytes:
        """The next plain bytes. Others run between two pieces: a little that was sent can become much."""
        try:
            while True:
                plain = unpacker.take()
                if plain is None:
                    packed = await self._read()
                    if not packed:
                        break
                    self._packed += len(packed)
                    self._check(self._packed)
                    unpacker.feed(packed)
                    continue
                await asyncio.sleep(0)
                if plain:
                    return plain
        except ValueError:
            self._response.close()
            raise _not_unpacked(self._request) from None
        if not unpacker.is_complete():
            raise _not_unpacked(self._request)
        return b""

    def _check(self, size: int) -> None:
        if size > self._request.max_bytes:
            self._response.close()
            raise _too_large(self._request)


class Gate:
    """A pooled client that reaches judged addresses only. It belongs to the event loop it is used in.

    Proxy variables and ``.netrc`` are never read, certificates are always verified, cookies are not kept, and unix
    sockets cannot be named. Failures come as ``Unavailable``, ``CallTimeout``, ``MalformedResponse``, ``TooLarge`` or
    ``SecurityError``, each with an attribute ``sent`` that is False only if nothing of the request was sent.
    ``on_block`` is called with the rule of every refusal. ``resolver`` and ``ssl_context`` are there for tests; a
    context that does not verify is refused.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        resolver: Resolver | None = None,
        on_block: Callable[[str], None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ):
        if ssl_context is not None and not (ssl_context.check_hostname and ssl_context.verify_mode & ssl.CERT_REQUIRED):
            raise SetupError("The gate accepts no TLS context without verification of certificates and host names.")
        self.policy = policy or Policy()
        self._resolver = _JudgingResolver(self.policy, resolver or _resolve)
        self._on_block = on_block
        self._tls = ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[aiohttp.ClientResponse] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        max_bytes: int | None = None,
        follow: bool = False,
    ) -> Response:
        """Send a request and read the whole answer, all redirects and bytes within ``timeout`` seconds.

        An answer with an error status is an answer. Redirects are answers too, unless ``follow``.
        """
        total = self.policy.total_timeout if timeout is None else timeout
        async with self.stream(
            method, url, headers=headers, body=body, timeout=total, idle=total, max_bytes=max_bytes, follow=follow
        ) as answer:
            content = b"".join([chunk async for chunk in answer])
        return Response(answer.status, answer.headers, content, answer.url)

    async def check(self, url: str) -> None:
        """Raise unless the URL could be reached now: its form, and every address of its name. Nothing is sent.

        For URLs that strangers leave behind to be called later; a request judges again, since names change.
        """
        await self.addresses(url)

    async def addresses(self, url: str) -> list[str]:
        """The addresses of a URL's host, all of them judged, for a client that connects by itself and to no other."""
        request = self._prepare("GET", url, None, None, False, 0, self.policy.connect_timeout)
        host, port = request.url.raw_host or "", request.url.port or 0
        with self._translate_errors(request):
            async with asyncio.timeout(self.policy.connect_timeout):
                if _is_address(host):
                    self._resolver.check(host, port, [host])
                    return [host]
                try:
                    return [found["host"] for found in await self._resolver.resolve(host, port)]
                except OSError:
                    raise _dns_error(host) from None

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        idle: float | None = None,
        max_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Stream]:
        """Send a request and read the answer as it comes.

        The head must arrive within ``timeout`` or the policy's total; then each chunk within ``idle`` seconds of the
        last, and all of it within ``timeout`` if one is given. Leaving early closes the connection.
        """
        head = self.policy.total_timeout if timeout is None else timeout
        limits = (self.policy.max_bytes if max_bytes is None else max_bytes, head if idle is None else idle)
        request = self._prepare(method, url, headers, body, follow, *limits)
        with self._translate_errors(request):
            async with asyncio.timeout_at(request.began + head):
                response = await self._send(request)
        self._open.add(response)
        try:
            if request.method != "HEAD" and (response.content_length or 0) > request.max_bytes:
                raise _too_large(request)
            yield Stream(
                response, request, None if timeout is None else request.began + timeout, self._translate_errors
            )
        finally:
            self._open.discard(response)
            response.close()  # a connection whose answer was read to its end is back in the pool already

    async def aclose(self) -> None:
        """Close every connection; the gate takes no more requests. Whoever still reads an answer gets Unavailable."""
        self._closed = True
        for response in self._open:
            # The client library closes the connection without a word to its reader, who would wait for its own clock.
            response.content.set_exception(Unavailable(f"The connection to {response.host} was closed here."))
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _prepare(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        follow: bool,
        max_bytes: int,
        idle: float,
    ) -> _Request:
        """Check what is about to be sent."""
        try:
            if method.upper() not in _METHODS:
                raise refusal("method", f"The method {method[:32]!r} is not one of {', '.join(sorted(_METHODS))}")
            place = parse_url(url, self.policy)
            checked = dict(headers or {})
            if way := via.outgoing(self.policy.gateway):
                checked[via.HEADER] = way
            for name, value in checked.items():
                if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                    raise refusal(
                        "header", f"The header {name[:64]!r} contains characters that are not allowed in headers"
                    )
                if name.lower() in _RESERVED_HEADERS:
                    raise refusal("header", f"The header {name!r} is set by the gate itself; leave it out")
            return _Request(method.upper(), place, checked, body, follow, max_bytes, idle)
        except SecurityError as error:
            self._report(error)
            raise

    async def _send(self, request: _Request) -> aiohttp.ClientResponse:
        """Send the request, following redirects if asked to; return the answer whose head has arrived."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise SetupError("This gate is closed; make a new one.")
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_mark_sent)
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver, ssl=self._tls or _verified_tls(), limit=_CONNECTIONS
                ),
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "agent3", "Accept-Encoding": ACCEPTED},
                auto_decompress=False,
                trace_configs=[trace],
            )
        elif self._loop is not loop:
            raise SetupError("A gate belongs to the event loop it was first used in; make one for each loop.")
        session = self._session
        for _ in range(self.policy.max_redirects + 1):
            host, port = request.url.raw_host or "", request.url.port or 0
            if _is_address(host):  # aiohttp asks no resolver for these
                self._resolver.check(host, port, [host])
            connect = min(self.policy.connect_timeout, request.idle)
            response = await session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=request.body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_read=request.idle),
                trace_request_ctx=request,
            )
            location = response.headers.get("Location") if response.status in _REDIRECTS else None
            if location is None or not request.follow:
                return response
            response.close()
            self._redirect(request, response.status, location)
        raise MalformedResponse(
            f"{request.place} redirected more than {self.policy.max_redirects} times. Use the final address, "
            f"or raise {self.policy.setting}.max_redirects."
        )

    def _redirect(self, request: _Request, status: int, location: str) -> None:
        """Point the request at where a redirect leads, without what belongs to the origin that it leaves."""
        old = request.url
        new = parse_url(urljoin(str(old), location), self.policy)
        if old.scheme == "https" and new.scheme == "http":
            raise refusal("redirect", f"{request.place} redirects from https to http", host=new.host)
        if new.origin() != old.origin():
            # A registered host is open to direct calls; a stranger may not send us there by a redirect.
            registered = self.policy.is_registered
            if registered(new.host or "", new.port or 0) and not registered(old.host or "", old.port or 0):
                what = f"{old.host} redirects to {new.host}:{new.port}, which may be called directly only"
                raise refusal("redirect", what, "Register the final address.", host=new.host)
            request.headers = {name: value for name, value in request.headers.items() if name.lower() in _PORTABLE}
        # RFC 9110, 15.4: 303 always becomes a GET, and so does a POST by 301 and 302, as every browser does it.
        if (status == 303 and request.method != "HEAD") or (status in (301, 302) and request.method == "POST"):
            request.method, request.body = "GET", None
            request.headers = {name: value for name, value in request.headers.items() if name.lower() != "content-type"}
        request.url = new

    @contextmanager
    def _translate_errors(self, request: _Request) -> Iterator[None]:
        """Translate the client library's errors, once. Its own texts may hold the whole URL, so they are dropped."""
        try:
            yield
        except (Agent3Error, TimeoutError, aiohttp.ClientError, OSError) as error:
            ours = error if isinstance(error, Agent3Error) else _translate_error(error, request)
            ours.sent = request.sent
            self._report(ours)
            raise ours from None

    def _report(self, error: Agent3Error) -> None:
        if self._on_block is not None and isinstance(error, SecurityError):
            self._on_block(error.data.get("rule", "other"))


def _is_address(host: str) -> bool:
    """Whether aiohttp connects without asking a resolver, by its own test."""
    return ":" in host or host.replace(".", "").isdigit()


class _JudgingResolver(AbstractResolver):
    """What aiohttp asks for addresses: it gets judged ones or a refusal, so it can connect to nothing else."""

    def __init__(self, policy: Policy, resolver: Resolver):
        self._policy = policy
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._resolver(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        self.check(host, port, addresses)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    def check(self, host: str, port: int, addresses: list[str]) -> None:
        """Raise unless every address may be reached: one bad address among good ones is how a rebinding looks."""
        policy = self._policy.toward(host, port)
        for address in addresses:
            rule = judge(address, policy)
            if rule is None:
                continue
            remedy, setting = NO_SETTING, self._policy.setting
            if rule in SWITCHES:
                name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                remedy = f"If it is yours, add {name!r} to {setting}.allow_hosts, or set {setting}.{SWITCHES[rule]}."
            raise refusal(rule, f"{host} resolves to a {rule} address", remedy, host=host)

    async def close(self) -> None:
        """Nothing is held."""


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


@cache
def _verified_tls() -> ssl.SSLContext:
    # Reading the certificate store takes tens of milliseconds, so the process does it once.
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _mark_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.sent = True


def _too_large(request: _Request) -> TooLarge:
    error = TooLarge(
        f"The response of {request.place} is larger than the maximum of {request.max_bytes} bytes and was "
        "cut off. Request less, or raise max_bytes."
    )
    error.sent = True
    return error


def _not_unpacked(request: _Request) -> MalformedResponse:
    return MalformedResponse(f"{request.place} sent a compressed body that cannot be decompressed.")


def _dns_error(host: str | None) -> Unavailable:
    return Unavailable(f"The name {host} does not resolve; check its spelling and the name server.")


def _translate_error(error: Exception, request: _Request) -> Agent3Error:
    """Our error for one of the client library's, naming host and cause but nothing of the request."""
    place = request.place
    match error:
        case aiohttp.ConnectionTimeoutError():
            return CallTimeout(f"{place} did not accept a connection in time; check that it is running and reachable.")
        case TimeoutError():
            waited = asyncio.get_running_loop().time() - request.began
            return CallTimeout(f"{place} did not complete its response in time ({waited:.1f} s so far).")
        case aiohttp.ClientConnectorDNSError():
            return _dns_error(request.url.host)
        case aiohttp.ClientConnectorCertificateError():
            cause = getattr(error.certificate_error, "verify_message", "") or "not valid"
            what = f"The certificate of {place} was not accepted: {cause}"
            return refusal("certificate", what, host=request.url.host)
        case aiohttp.ClientConnectorSSLError():
            return Unavailable(f"TLS with {place} failed; it must support TLS 1.2 or later.")
        case aiohttp.ClientConnectorError():
            # Not the error's own text: it may show an address of the inner network to a stranger.
            cause = os.strerror(error.os_error.errno) if error.os_error.errno else "no connection"
            return Unavailable(f"{place} cannot be reached ({cause}); check that it is running.")
        case aiohttp.InvalidURL():
            return refusal("url", f"The URL of {place} is not valid")
        case aiohttp.ClientResponseError():
            return MalformedResponse(f"{place} did not answer with HTTP.")
    if isinstance(error, aiohttp.ClientPayloadError):
        return Unavailable(f"{place} closed the connection in the middle of its response.")
    return Unavailable(f"{place} closed the connection without a response.")
