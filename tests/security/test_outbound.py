"""The outbound gate, against real sockets on loopback."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent3.errors import (
    CallTimeout,
    MalformedResponse,
    SecurityError,
    SetupError,
    TooLarge,
    Unavailable,
)
from agent3.security.outbound import Gate, Policy, judge, parse_url
from agent3.security.unpacking import unpacker_for
from tests.support.tls import certificate

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CLOSED = Policy()

# --- addresses --------------------------------------------------------------------------------------------------------

REFUSED = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("::1", "loopback"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:0:127.0.0.1", "loopback"),
    ("::127.0.0.1", "loopback"),
    ("64:ff9b::7f00:1", "loopback"),
    ("2002:7f00:1::", "loopback"),
    ("2002:7f00:1::1", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("::", "unspecified"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "private"),
    ("100.127.255.255", "private"),
    ("fc00::1", "private"),
    ("fd12:3456::1", "private"),
    ("fec0::1", "private"),
    ("::ffff:10.0.0.1", "private"),
    ("64:ff9b::a00:1", "private"),
    ("64:ff9b:1::7f00:1", "private"),
    ("64:ff9b:1::808:808", "private"),
    ("2002:c0a8:101::1", "private"),
    ("2001:0:808:808::f5ff:fffe", "private"),  # Teredo: the client is stored inverted, here 10.0.0.1
    ("2001:0:7f00:1::f7f7:f7f7", "loopback"),  # Teredo with a loopback server
    ("2600::5efe:10.0.0.1", "private"),  # ISATAP
    ("169.254.1.1", "link-local"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("168.63.129.16", "metadata"),
    ("100.100.100.200", "metadata"),
    ("192.0.0.192", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("::ffff:169.254.169.254", "metadata"),
    ("64:ff9b::a9fe:a9fe", "metadata"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("ff02::1", "multicast"),
    ("192.0.0.8", "reserved"),
    ("192.0.2.1", "reserved"),
    ("198.18.0.1", "reserved"),
    ("198.51.100.7", "reserved"),
    ("203.0.113.9", "reserved"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("2001:db8::1", "reserved"),
    ("3fff::1", "reserved"),
    ("100::1", "reserved"),
    ("5f00::1", "reserved"),
    ("4000::1", "reserved"),
    ("localhost", "address"),
    ("", "address"),
]
ALLOWED = [
    "1.1.1.1",
    "93.184.216.34",
    "172.15.255.255",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "2606:2800:220:1:248:1893:25c8:1946",
    "2a00:1450:4001::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.parametrize(("address", "rule"), REFUSED)
def test_an_inner_address_is_refused_in_every_form(address: str, rule: str) -> None:
    assert judge(address, CLOSED) == rule


@pytest.mark.parametrize("address", ALLOWED)
def test_a_public_address_is_fine(address: str) -> None:
    assert judge(address, CLOSED) is None
    assert judge(ip_address(address), CLOSED) is None


def test_opening_private_networks_opens_neither_loopback_nor_the_cloud_metadata() -> None:
    policy = Policy(allow_private=True)
    assert judge("10.0.0.1", policy) is None
    assert judge("fd12::1", policy) is None
    assert judge("127.0.0.1", policy) == "loopback"
    assert judge("fd00:ec2::254", policy) == "metadata"
    assert judge("100.100.100.200", policy) == "metadata"
    assert judge("64:ff9b:1::7f00:1", policy) == "loopback"
    assert judge("64:ff9b:1:a9fe:a9:fe00::", policy) == "metadata"


def test_opening_loopback_opens_nothing_else() -> None:
    policy = Policy(allow_loopback=True)
    assert judge("127.0.0.1", policy) is None
    assert judge("::1", policy) is None
    assert judge("10.0.0.1", policy) == "private"
    assert judge("0.0.0.0", policy) == "unspecified"


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "exact"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM./a?b=%7E#frag", "https://example.com/a?b=%7E"),
        ("http://example.com:8080/a%2Fb?x=[1]", "http://example.com:8080/a%2Fb?x=[1]"),
        ("http://bücher.de/ä?q=ü", "http://xn--bcher-kva.de/%C3%A4?q=%C3%BC"),
        ("http://my_service:3000/", "http://my_service:3000/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ("http://017700000001/", "http://127.0.0.1/"),
        ("http://0X7F000001/", "http://127.0.0.1/"),
        ("http://127.0.0.1./", "http://127.0.0.1/"),
        ("http://[::FFFF:7f00:1]:80/", "http://[::ffff:7f00:1]/"),
    ],
)
def test_a_url_has_one_exact_form(url: str, exact: str) -> None:
    assert str(parse_url(url, CLOSED)) == exact


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://127.0.0.1\\@airline.com/", "url"),
        ("http://user@example.com/", "userinfo"),
        ("http://user:pass@example.com/", "userinfo"),
        ("http://@example.com/", "userinfo"),
        ("http://exam\nple.com/", "url"),
        ("http://example.com/a b", "url"),
        (" http://example.com/", "url"),
        ("http://example.com/\x00", "url"),
        ("http://example.com/\u00a0", "url"),
        ("http://example.com/\ud800", "url"),
        ("http:///path", "url"),
        ("http:example.com", "url"),
        ("//example.com/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("unix:///var/run/docker.sock", "scheme"),
        ("gopher://example.com/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("", "scheme"),
        ("http://①②⑦.⓪.⓪.①/", "host"),
        ("http://127。0。0。1/", "host"),
        ("http://\uff45xample.com/", "host"),
        ("http://%31%32%37.0.0.1/", "host"),
        ("http://1.2.3.4.5/", "host"),
        ("http://256.256.256.256/", "host"),
        ("http://example.0x1/", "host"),
        ("http://exa$mple.com/", "host"),
        ("http://[::1]evil.com/", "host"),
        ("http://[fe80::1%25eth0]/", "host"),
        ("http://[1:2]/", "host"),
        ("http://a..b/", "host"),
        ("http://example.com:/", "host"),
        ("http://example.com:99999/", "port"),
        ("http://example.com:0/", "port"),
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str, rule: str) -> None:
    with pytest.raises(SecurityError) as caught:
        parse_url(url, CLOSED)
    assert caught.value.data["rule"] == rule
    assert f"rule {rule!r}" in str(caught.value)
    assert caught.value.sent is False


def test_a_refusal_names_the_setting_that_would_allow_it() -> None:
    strict = Policy(schemes=("https",), ports=frozenset({443}), setting="webhooks")
    with pytest.raises(SecurityError, match=r"webhooks\.schemes"):
        parse_url("http://example.com/", strict)
    with pytest.raises(SecurityError, match=r"webhooks\.ports"):
        parse_url("https://example.com:8443/", strict)
    with pytest.raises(SecurityError, match="No setting"):
        parse_url("file:///etc/passwd", strict)


def test_a_registered_host_that_is_a_url_is_a_mistake_in_the_setup() -> None:
    with pytest.raises(SetupError, match="allow_hosts"):
        Policy(allow_hosts=frozenset({"http://localhost:8080/"}))


# --- a real site ------------------------------------------------------------------------------------------------------

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Site:
    """A real server on loopback that counts who connects and remembers what came."""

    port: int = 0
    connections: int = 0
    seen: list[web.BaseRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "localhost") -> str:
        return f"http://{host}:{self.port}{path}"

    def policy(self, *hosts: str, **more: Any) -> Policy:
        names = hosts or ("localhost",)
        return Policy(allow_hosts=frozenset(f"{name}:{self.port}" for name in names), **more)


@asynccontextmanager
async def serving(answer: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    site = Site()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        site.seen.append(request)
        site.bodies.append(await request.read())
        return await answer(request)

    server = web.Server(handle)

    def accepted() -> asyncio.Protocol:
        site.connections += 1
        return server()

    loop = asyncio.get_running_loop()
    listener = await loop.create_server(accepted, "127.0.0.1", 0, ssl=tls)
    site.port = listener.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        listener.close()
        await server.shutdown(0.1)
        await listener.wait_closed()


async def hello(_: web.BaseRequest) -> web.Response:
    return web.Response(text="hello", headers={"X-From": "site"})


async def to_loopback(_: str, __: int) -> list[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def opened(policy: Policy | None = None, **more: Any) -> AsyncIterator[Gate]:
    gate = Gate(policy, **more)
    try:
        yield gate
    finally:
        await gate.aclose()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def test_a_registered_host_is_reached_and_answers() -> None:
    async def story() -> None:
        async with serving(hello) as site, opened(site.policy(), resolver=to_loopback) as gate:
            answer = await gate.request("post", site.url("/a?b=%7E"), headers={"X-A": "1"}, body=b"body")
            assert (answer.status, answer.body, answer.headers["x-from"]) == (200, b"hello", "site")
            assert answer.url == site.url("/a?b=%7E")
            request = site.seen[0]
            assert (request.method, request.raw_path, request.headers["X-A"]) == ("POST", "/a?b=%7E", "1")
            assert request.headers["Host"] == f"localhost:{site.port}"
            assert site.bodies == [b"body"]

    run(story)


def test_the_system_resolver_is_used_by_default() -> None:
    async def story() -> None:
        async with serving(hello) as site, opened(site.policy("127.0.0.1", "localhost")) as gate:
            assert (await gate.request("GET", site.url(host="127.0.0.1"))).status == 200
            with pytest.raises((SecurityError, Unavailable)):
                await gate.request("GET", site.url(host="localhost.localhost"))
            assert site.connections == 1

    run(story)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "evil.test",
    ],
)
def test_an_inner_host_is_never_connected_whatever_its_spelling(host: str) -> None:
    async def story() -> None:
        blocked: list[str] = []
        async with serving(hello) as site, opened(resolver=to_loopback, on_block=blocked.append) as gate:
            with pytest.raises(SecurityError) as caught:
                await gate.request("GET", site.url(host=host))
            assert caught.value.sent is False
            assert "outbound.allow_hosts" in str(caught.value)
            assert "outbound.allow_loopback" in str(caught.value)
            assert blocked == ["loopback"]
            assert site.connections == 0

    run(story)


def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    async def mixed(_: str, __: int) -> list[str]:
        return ["93.184.216.34", "127.0.0.1"]

    async def story() -> None:
        async with serving(hello) as site, opened(resolver=mixed) as gate:
            with pytest.raises(SecurityError, match="loopback"):
                await gate.request("GET", site.url(host="mixed.test"))
            assert site.connections == 0

    run(story)


def test_a_name_that_changes_its_address_never_gets_us_to_loopback() -> None:
    asked: list[str] = []

    async def rebinding(host: str, _: int) -> list[str]:
        # First an address that is open (here by allow_private, so that no test leaves the house), then ours.
        asked.append(host)
        return ["10.255.255.254"] if len(asked) == 1 else ["127.0.0.1"]

    async def story() -> None:
        policy = Policy(allow_private=True, connect_timeout=0.3)
        async with serving(hello) as site, opened(policy, resolver=rebinding) as gate:
            with pytest.raises((Unavailable, CallTimeout)) as first:
                await gate.request("GET", site.url(host="rebind.test"))
            assert first.value.sent is False
            assert asked == ["rebind.test"], "one request asks once: what was judged is what is connected"
            assert gate._session is not None
            gate._session.connector.clear_dns_cache()  # type: ignore[union-attr]
            gate.policy = replace(policy, connect_timeout=30.0)  # this time only the verdict may end it
            with pytest.raises(SecurityError, match="loopback"):
                await gate.request("GET", site.url(host="rebind.test"))
            assert len(asked) == 2
            assert site.connections == 0

    run(story)


def test_a_registered_host_is_open_on_its_own_port_only() -> None:
    async def story() -> None:
        async with serving(hello) as site, serving(hello) as other, opened(site.policy(), resolver=to_loopback) as gate:
            await gate.request("GET", site.url())
            with pytest.raises(SecurityError):
                await gate.request("GET", other.url())
            with pytest.raises(SecurityError):
                await gate.request("GET", site.url(host="other.test"))
            assert (site.connections, other.connections) == (1, 0)

    run(story)


def test_a_registered_host_that_points_at_cloud_metadata_is_still_refused() -> None:
    async def metadata(_: str, __: int) -> list[str]:
        return ["169.254.169.254"]

    async def story() -> None:
        policy = Policy(allow_hosts=frozenset({"intranet.test"}), allow_private=True, allow_loopback=True)
        async with opened(policy, resolver=metadata) as gate:
            with pytest.raises(SecurityError, match="metadata"):
                await gate.request("GET", "http://intranet.test/")

    run(story)


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(hello) as proxy, serving(hello) as site:
            for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            netrc = tmp_path / "netrc"
            netrc.write_text("machine localhost login me password secret\n")
            monkeypatch.setenv("NETRC", str(netrc))
            async with opened(site.policy(), resolver=to_loopback) as gate:
                await gate.request("GET", site.url())
            assert (proxy.connections, site.connections) == (0, 1)
            assert "Authorization" not in site.seen[0].headers

    run(story)


def test_connections_are_pooled_and_cookies_are_not_kept() -> None:
    async def with_cookie(_: web.BaseRequest) -> web.Response:
        return web.Response(text="x", headers={"Set-Cookie": "a=b"})

    async def story() -> None:
        async with serving(with_cookie) as site, opened(site.policy(), resolver=to_loopback) as gate:
            for _ in range(10):
                await gate.request("GET", site.url())
            assert site.connections == 1
            assert all("Cookie" not in request.headers for request in site.seen)

    run(story)


# --- redirects --------------------------------------------------------------------------------------------------------


def redirecting(location: Callable[[web.BaseRequest], str | None], status: int = 302) -> Handler:
    async def answer(request: web.BaseRequest) -> web.Response:
        to = location(request)
        return web.Response(text="end") if to is None else web.Response(status=status, headers={"Location": to})

    return answer


def test_a_redirect_is_an_answer_unless_asked_to_follow() -> None:
    async def story() -> None:
        async with serving(redirecting(lambda _: "/next")) as site, opened(site.policy(), resolver=to_loopback) as gate:
            answer = await gate.request("GET", site.url())
            assert (answer.status, answer.headers["Location"]) == (302, "/next")
            assert len(site.seen) == 1

    run(story)


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[::ffff:a9fe:a9fe]/", "metadata"),
        ("http://10.0.0.1/", "private"),
        ("http://2130706433/", "loopback"),
        ("file:///etc/passwd", "scheme"),
        ("http://user:pass@example.com/", "userinfo"),
        ("//169.254.169.254/", "metadata"),
    ],
)
def test_each_hop_of_a_redirect_is_judged_anew(location: str, rule: str) -> None:
    async def story() -> None:
        blocked: list[str] = []
        async with (
            serving(redirecting(lambda _: location)) as site,
            opened(site.policy(), resolver=to_loopback, on_block=blocked.append) as gate,
        ):
            with pytest.raises(SecurityError) as caught:
                await gate.request("GET", site.url(), follow=True)
            assert caught.value.data["rule"] == rule
            assert caught.value.sent is True, "the first hop had been sent"
            assert blocked == [rule]

    run(story)


def test_credentials_stay_with_the_origin_they_were_given_for() -> None:
    async def story() -> None:
        async with serving(hello) as other, serving(redirecting(lambda _: other.url("/end"), 307)) as site:
            hosts = frozenset({f"localhost:{site.port}", f"localhost:{other.port}"})
            headers = {
                "Authorization": "Bearer t",
                "Cookie": "a=b",
                "X-Api-Key": "k",
                "Accept": "text/plain",
                "Content-Type": "text/x",
            }
            async with opened(Policy(allow_hosts=hosts), resolver=to_loopback) as gate:
                answer = await gate.request("POST", site.url(), headers=headers, body=b"b", follow=True)
            assert (answer.body, answer.url) == (b"hello", other.url("/end"))
            assert site.seen[0].headers["Authorization"] == "Bearer t"
            arrived = other.seen[0]
            assert not {"Authorization", "Cookie", "X-Api-Key"} & set(arrived.headers)
            assert (arrived.headers["Accept"], arrived.method) == ("text/plain", "POST")
            assert other.bodies == [b"b"]

    run(story)


def test_within_an_origin_credentials_are_kept_and_a_post_becomes_a_get() -> None:
    async def story() -> None:
        async with (
            serving(redirecting(lambda r: "/end" if r.path == "/" else None)) as site,
            opened(site.policy(), resolver=to_loopback) as gate,
        ):
            headers = {"Authorization": "Bearer t", "Content-Type": "text/x"}
            answer = await gate.request("POST", site.url(), headers=headers, body=b"b", follow=True)
            assert answer.body == b"end"
            assert (site.seen[1].method, site.bodies[1]) == ("GET", b"")
            assert site.seen[1].headers["Authorization"] == "Bearer t"

    run(story)


def test_a_stranger_cannot_redirect_us_to_a_registered_inner_host() -> None:
    async def story() -> None:
        async with serving(hello) as inner, serving(redirecting(lambda _: inner.url("/admin"))) as stranger:
            # The stranger is reached over loopback here by the general switch, not by registration.
            policy = inner.policy(allow_loopback=True)
            async with opened(policy, resolver=to_loopback) as gate:
                with pytest.raises(SecurityError, match="called directly only"):
                    await gate.request("GET", stranger.url(host="stranger.test"), follow=True)
                assert inner.connections == 0

    run(story)


def test_a_circle_of_redirects_ends() -> None:
    async def story() -> None:
        async with (
            serving(redirecting(lambda _: "/again")) as site,
            opened(site.policy(max_redirects=2), resolver=to_loopback) as gate,
        ):
            with pytest.raises(MalformedResponse, match="max_redirects"):
                await gate.request("GET", site.url(), follow=True)
            assert len(site.seen) == 3

    run(story)


# --- sizes and times --------------------------------------------------------------------------------------------------


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"x" * 65536)
    except ConnectionError:
        return response


def test_an_answer_without_an_end_is_cut() -> None:
    async def story() -> None:
        async with serving(endless) as site, opened(site.policy(max_bytes=100_000), resolver=to_loopback) as gate:
            with pytest.raises(TooLarge, match="100000 bytes"):
                await gate.request("GET", site.url())

    run(story)


def test_an_announced_size_beyond_the_limit_is_refused_before_it_is_read() -> None:
    async def large(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * 5000)

    async def story() -> None:
        async with serving(large) as site, opened(site.policy(), resolver=to_loopback) as gate:
            with pytest.raises(TooLarge):
                async with gate.stream("GET", site.url(), max_bytes=4999):
                    pytest.fail("the body was offered")
            assert len((await gate.request("GET", site.url(), max_bytes=5000)).body) == 5000
            head = await gate.request("HEAD", site.url(), max_bytes=10)
            assert (head.status, head.headers["Content-Length"]) == (200, "5000")

    run(story)


def test_a_gzip_bomb_is_cut_while_it_unfolds() -> None:
    bomb = gzip.compress(b"\0" * 200_000_000, 9)

    async def explode(_: web.BaseRequest) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    async def story() -> None:
        async with serving(explode) as site, opened(site.policy(), resolver=to_loopback) as gate:
            sizes: list[int] = []

            async def read() -> None:
                async with gate.stream("GET", site.url(), max_bytes=1_000_000) as answer:
                    async for chunk in answer:
                        sizes.append(len(chunk))  # noqa: PERF401 - what came before it was cut counts

            tracemalloc.start()
            with pytest.raises(TooLarge):
                await read()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 10_000_000
            assert sum(sizes) <= 1_000_000
            assert max(sizes) <= 65_536  # each piece takes the loop for a fraction of a millisecond

    run(story)


@pytest.mark.parametrize(
    ("encoding", "part"),
    [("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b"a")), ("zstd", b"P*M\x18\0\0\0\0")],
    ids=["gzip", "zstd", "skippable"],
)
def test_a_body_of_many_tiny_parts_is_given_up(encoding: str, part: bytes) -> None:
    unpacker = unpacker_for(encoding, "a test")
    assert unpacker is not None
    unpacker.feed(part * 2_000)
    with pytest.raises(ValueError, match="parts in"):
        list(iter(unpacker.take, None))


PLAIN = b"hello, " * 20_000


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(PLAIN)),
        ("x-gzip", gzip.compress(PLAIN[:50_000]) + gzip.compress(b"") + gzip.compress(PLAIN[50_000:])),
        ("deflate", zlib.compress(PLAIN)),
        ("deflate", zlib.compress(PLAIN)[2:-4]),
        ("zstd", zstd.compress(PLAIN[:50_000]) + zstd.compress(PLAIN[50_000:])),
    ],
)
def test_a_compressed_answer_comes_as_it_was(encoding: str, packed: bytes) -> None:
    sent = packed

    async def answer(request: web.BaseRequest) -> web.Response:
        assert encoding.removeprefix("x-") in request.headers["Accept-Encoding"]
        return web.Response(body=sent, headers={"Content-Encoding": encoding})

    async def story() -> None:
        nonlocal sent
        async with serving(answer) as site, opened(site.policy(), resolver=to_loopback) as gate:
            assert (await gate.request("GET", site.url())).body == PLAIN
            sent = packed[:-9]
            with pytest.raises(MalformedResponse, match="compressed"):
                await gate.request("GET", site.url())

    run(story)


@pytest.mark.parametrize(
    ("encoding", "pieces", "plain"),
    [
        ("gzip", [gzip.compress(b"one, ") + b"\x1f", gzip.compress(b"two")[1:]], b"one, two"),
        ("gzip", [gzip.compress(b"one") + b"\0", b"\0"], b"one"),
        ("gzip", [], b""),
        ("zstd", [], b""),
    ],
)
def test_bytes_may_be_cut_anywhere_and_an_empty_body_is_whole(encoding: str, pieces: list[bytes], plain: bytes) -> None:
    unpacker = unpacker_for(encoding, "example.com")
    assert unpacker is not None
    found = b""
    for piece in pieces:
        unpacker.feed(piece)
        while (some := unpacker.take()) is not None:
            found += some
    assert (found, unpacker.is_complete()) == (plain, True)


def test_an_encoding_that_nobody_asked_for_is_refused() -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"?", headers={"Content-Encoding": "br"})

    async def story() -> None:
        async with serving(answer) as site, opened(site.policy(), resolver=to_loopback) as gate:
            with pytest.raises(MalformedResponse, match="'br', which was not asked for"):
                await gate.request("GET", site.url())

    run(story)


def test_whoever_reads_when_the_gate_is_closed_is_told_at_once() -> None:
    async def silent(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/begun":
            await response.write(b"more follows")
        await asyncio.Event().wait()
        return response

    async def story() -> None:
        async with serving(silent) as site:
            gate = Gate(site.policy(), resolver=to_loopback)
            reads = asyncio.Event()

            async def read() -> None:
                async with gate.stream("GET", site.url("/begun"), idle=50) as answer:
                    async for _ in answer:
                        reads.set()

            reading = asyncio.create_task(read())
            await reads.wait()
            await gate.aclose()
            with pytest.raises(Unavailable, match="closed here"):
                await reading

    run(story)


def test_what_claims_to_be_gzip_and_is_not_is_malformed() -> None:
    async def broken(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"this is no gzip", headers={"Content-Encoding": "gzip"})

    async def story() -> None:
        async with serving(broken) as site, opened(site.policy(), resolver=to_loopback) as gate:
            with pytest.raises(MalformedResponse, match="compressed"):
                await gate.request("GET", site.url())

    run(story)


def test_the_total_time_is_bounded_though_bytes_keep_coming() -> None:
    async def trickle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/quick":
            return web.Response()
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b".")
                await asyncio.sleep(0.02)
        except ConnectionError:
            return response

    async def story() -> None:
        async with serving(trickle) as site, opened(site.policy(), resolver=to_loopback) as gate:
            await gate.request("GET", site.url("/quick"))  # so that there is a connection, and the next is sent at once
            with pytest.raises(CallTimeout) as caught:
                await gate.request("GET", site.url("/?key=secret"), timeout=0.3)
            assert caught.value.sent is True
            assert "secret" not in str(caught.value)
            assert "localhost" in str(caught.value)

    run(story)


def test_a_stream_gives_chunks_as_they_come() -> None:
    more = asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await more.wait()
        await response.write(b"two")
        return response

    async def story() -> None:
        async with serving(slow) as site, opened(site.policy(), resolver=to_loopback) as gate:
            got = []
            async with gate.stream("GET", site.url(), idle=50) as answer:
                assert answer.status == 200
                async for chunk in answer:
                    got.append(chunk)
                    more.set()
            assert got == [b"one", b"two"]

    run(story)


def test_a_stream_that_falls_silent_is_given_up() -> None:
    async def silent(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async def story() -> None:
        async with serving(silent) as site, opened(site.policy(), resolver=to_loopback) as gate:

            async def read() -> None:
                async with gate.stream("GET", site.url(), idle=0.2) as answer:
                    async for _ in answer:
                        pytest.fail("it said something")

            with pytest.raises(CallTimeout):
                await read()

    run(story)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_what_never_left_says_so() -> None:
    async def unknown(host: str, _: int) -> list[str]:
        raise OSError(f"no such host {host}")

    async def nothing(_: str, __: int) -> list[str]:
        return []

    async def never(_: str, __: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def story() -> None:
        for resolver in (unknown, nothing):
            async with opened(resolver=resolver) as gate:
                with pytest.raises(Unavailable, match=r"gone\.test does not resolve") as caught:
                    await gate.request("POST", "http://gone.test/?key=secret", body=b"x")
                assert caught.value.sent is False
        async with opened(Policy(connect_timeout=0.1), resolver=never) as gate:
            with pytest.raises(CallTimeout, match=r"slow\.test") as late:
                await gate.request("POST", "http://slow.test/?key=secret", body=b"x")
            assert late.value.sent is False
            assert "secret" not in str(late.value)
        async with serving(hello) as site:
            policy = site.policy()
        async with opened(policy, resolver=to_loopback) as gate:
            with pytest.raises(Unavailable, match="Connection refused") as refused:
                await gate.request("POST", site.url(), body=b"x")
            assert refused.value.sent is False
            assert "127.0.0.1" not in str(refused.value)

    run(story)


def test_a_connection_that_breaks_after_sending_says_that_it_was_sent() -> None:
    async def story() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if reply:
                writer.write(reply)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        policy = Policy(allow_hosts=frozenset({f"localhost:{port}"}))
        expected = [
            (b"", Unavailable, "without a response"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", Unavailable, "in the middle"),
            (b"SSH-2.0-OpenSSH\r\n\r\n", MalformedResponse, "did not answer with HTTP"),
        ]
        for reply, error, text in expected:  # noqa: B007
            async with opened(policy, resolver=to_loopback) as gate:
                with pytest.raises(error, match=text) as caught:
                    await gate.request("POST", f"http://localhost:{port}/", body=b"x")
                assert caught.value.sent is True
        server.close()
        await server.wait_closed()

    run(story)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nX-B: b"},
        {"X A": "a"},
        {"Host": "inner"},
        {"Content-Length": "3"},
        {"Transfer-Encoding": "chunked"},
    ],
)
def test_headers_that_could_split_or_redirect_the_request_are_refused(headers: dict[str, str]) -> None:
    async def story() -> None:
        async with serving(hello) as site, opened(site.policy(), resolver=to_loopback) as gate:
            with pytest.raises(SecurityError) as caught:
                await gate.request("GET", site.url(), headers=headers)
            assert caught.value.data["rule"] == "header"
            with pytest.raises(SecurityError, match="method"):
                await gate.request("GET / HTTP/1.1\r\nX: ", site.url())
            assert site.connections == 0

    run(story)


def test_a_gate_that_is_closed_or_used_from_another_loop_says_so() -> None:
    async def story() -> None:
        async with serving(hello) as site:
            gate = Gate(site.policy(), resolver=to_loopback)
            await gate.request("GET", site.url())

            def elsewhere() -> None:
                with pytest.raises(SetupError, match="event loop"):
                    asyncio.run(gate.request("GET", site.url()))

            await asyncio.to_thread(elsewhere)
            await gate.aclose()
            await gate.aclose()
            with pytest.raises(SetupError, match="closed"):
                await gate.request("GET", site.url())

    run(story)


def test_cancelling_the_caller_frees_the_connection() -> None:
    async def story() -> None:
        arrived = asyncio.Event()

        async def wait(_: web.BaseRequest) -> web.Response:
            arrived.set()
            await asyncio.Event().wait()
            return web.Response()

        async with serving(wait) as site, opened(site.policy(), resolver=to_loopback) as gate:
            task = asyncio.create_task(gate.request("GET", site.url()))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not gate._session.connector._acquired  # type: ignore[union-attr]

    run(story)


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_the_tls_name_stays_the_host_while_the_address_is_the_judged_one(tmp_path: Path) -> None:
    server, authority = certificate(tmp_path, "shop.test")
    names: list[str | None] = []
    server.sni_callback = lambda _, name, __: names.append(name)
    trusting = ssl.create_default_context(cafile=str(authority))

    async def story() -> None:
        async with serving(hello, server) as site:
            policy = site.policy("shop.test", "other.test")
            async with opened(policy, resolver=to_loopback, ssl_context=trusting) as gate:
                answer = await gate.request("GET", f"https://shop.test:{site.port}/")
                assert answer.body == b"hello"
                assert names == ["shop.test"]
                with pytest.raises(SecurityError, match="certificate") as wrong_name:
                    await gate.request("GET", f"https://other.test:{site.port}/")
                assert wrong_name.value.sent is False

    run(story)


def test_a_certificate_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    server, _ = certificate(tmp_path, "shop.test")

    async def story() -> None:
        blocked: list[str] = []
        async with (
            serving(hello, server) as site,
            opened(site.policy("shop.test"), resolver=to_loopback, on_block=blocked.append) as gate,
        ):
            with pytest.raises(SecurityError, match="certificate"):
                await gate.request("GET", f"https://shop.test:{site.port}/")
            assert blocked == ["certificate"]
            assert not site.seen

    run(story)


def test_an_https_answer_cannot_send_us_to_http(tmp_path: Path) -> None:
    server, authority = certificate(tmp_path, "shop.test")
    trusting = ssl.create_default_context(cafile=str(authority))

    async def story() -> None:
        async with serving(hello) as plain, serving(redirecting(lambda _: plain.url("/")), server) as site:
            hosts = frozenset({f"shop.test:{site.port}", f"localhost:{plain.port}"})
            async with opened(Policy(allow_hosts=hosts), resolver=to_loopback, ssl_context=trusting) as gate:
                with pytest.raises(SecurityError, match="https to http"):
                    await gate.request("GET", f"https://shop.test:{site.port}/", follow=True)
            assert plain.connections == 0

    run(story)


def test_a_tls_context_that_does_not_verify_is_not_taken() -> None:
    careless = ssl.create_default_context()
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    with pytest.raises(SetupError, match="without verification"):
        Gate(ssl_context=careless)
