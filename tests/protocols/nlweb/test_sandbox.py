from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SecurityError, SetupError
from agent3.protocols.nlweb.browser.proxy import GuardedProxy, Request
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, resolve
from tests.support.sites import AIRLINE, Site


@pytest.mark.requirement("RF-013-46")
@pytest.mark.parametrize(
    "url",
    [
        "https://airline.com",
        "http://airline.com/flights?to=CDG",
        "https://www.airline.com/",
        "https://a.b.hotel.com",
        "HTTPS://AIRLINE.COM/",
        "https://airline.com:443/",
        "https://booking.com/?q=a@b",
    ],
)
def test_an_allowed_domain_and_its_subdomains_pass(url: str) -> None:
    assert NLWebSandbox().validate_url(url)


@pytest.mark.requirement("RF-013-46")
@pytest.mark.parametrize(
    "url",
    [
        "https://evilairline.com",
        "https://airline.com.evil.com",
        "https://airline.co",
        "https://evil.com/airline.com",
        "https://airline.com@evil.com/",
        "https://evil.com@airline.com/",
        "https://airline.com:pass@evil.com/",
        "http://127.0.0.1\\@airline.com/",
        "https:\\\\airline.com",
        "https://airline.com\t.evil.com",
        "https://airline.com\n",
        " https://airline.com",
        "https://airline.com:8443/",
        "https://airline.com:22/",
        "https://airline.com:99999/",
        "ftp://airline.com/",
        "file:///etc/passwd",
        "javascript:alert(1)//airline.com",
        "data:text/html,airline.com",
        "view-source:https://airline.com",
        "chrome://version",
        "//airline.com",
        "airline.com",
        "https://",
        "",
        "https://аirline.com/",  # noqa: RUF001 - the first letter is Cyrillic
        "http://2130706433/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "https://airline.com" + "/a" * 8192,
    ],
)
def test_everything_else_is_refused(url: str) -> None:
    assert not NLWebSandbox().validate_url(url)


def test_without_subdomains_only_the_very_host_passes() -> None:
    sandbox = NLWebSandbox(["airline.com"], subdomains=False)
    assert sandbox.validate_url("https://airline.com/")
    assert not sandbox.validate_url("https://www.airline.com/")


def test_a_rule_with_a_port_means_that_port_alone() -> None:
    sandbox = NLWebSandbox(["airline.com:8443"])
    assert sandbox.validate_url("https://airline.com:8443/")
    assert not sandbox.validate_url("https://airline.com/")


def test_an_address_has_no_subdomains() -> None:
    assert not NLWebSandbox(["0.0.1"]).validate_url("http://127.0.0.1/")


def test_an_interface_allows_its_own_host_and_those_it_lists() -> None:
    interface = NLWebInterface(
        interface_id="a", name="A", base_url="https://airline.com/start", allowed_hosts=["cdn.example"]
    )
    sandbox = NLWebSandbox.of(interface)
    assert sandbox.validate_url("https://airline.com/x")
    assert sandbox.validate_url("https://cdn.example/x")
    assert not sandbox.validate_url("https://www.airline.com/x")
    assert NLWebSandbox.of(interface.model_copy(update={"allow_subdomains": True})).validate_url(
        "https://www.airline.com"
    )


def test_the_documented_list_can_be_replaced_in_a_subclass() -> None:
    class Ours(NLWebSandbox):
        ALLOWED_DOMAINS = ("ours.example",)

    assert Ours().validate_url("https://ours.example/")
    assert not Ours().validate_url("https://airline.com/")


def test_a_rule_that_is_no_host_is_named() -> None:
    with pytest.raises(SetupError, match=r"'user@airline\.com' cannot be an allowed host"):
        NLWebSandbox(["user@airline.com"]).validate_url("https://airline.com/")


class Recorder:
    """An executor that only remembers."""

    def __init__(self) -> None:
        self.done: list[NLWebAction] = []

    def _execute_single_action(self, action: NLWebAction) -> Any:
        self.done.append(action)
        return "done"


@pytest.mark.requirement("RF-013-46", "RT-014-S07", "RF-013-V3")
def test_the_sandbox_runs_what_it_allows_and_blocks_the_rest_in_the_documented_words() -> None:
    recorder = Recorder()
    sandbox = NLWebSandbox()
    good = NLWebAction(action_type=ActionType.NAVIGATE, value="https://airline.com/")
    click = NLWebAction(action_type=ActionType.CLICK, selector="#go")
    assert sandbox.execute_with_sandbox(recorder, good) == "done"
    assert sandbox.execute_with_sandbox(recorder, click) == "done"
    with pytest.raises(SecurityError) as caught:
        sandbox.execute_with_sandbox(
            recorder, NLWebAction(action_type=ActionType.NAVIGATE, value="https://evilairline.com/")
        )
    assert str(caught.value) == "Navigation to https://evilairline.com/ blocked"
    assert recorder.done == [good, click]


# Overrides


def test_hosts_are_read_from_the_environment() -> None:
    overrides = Overrides.read({"AGENT3_HOSTS": "a.example=127.0.0.1:8443, b.example:80=10.0.0.7,c.example=[::1]:9"})
    assert overrides.find("a.example", 443) == ("127.0.0.1", 8443)
    assert overrides.find("b.example", 80) == ("10.0.0.7", 80)
    assert overrides.find("b.example", 443) is None
    assert overrides.find("c.example", 443) == ("::1", 9)
    assert overrides.find("d.example", 443) is None
    assert Overrides.read({}) == Overrides({})


@pytest.mark.parametrize("entry", ["a.example", "a.example=elsewhere.example", "a.example=127.0.0.1:x"])
def test_an_unreadable_host_entry_is_named(entry: str) -> None:
    with pytest.raises(SetupError, match="AGENT3_HOSTS"):
        Overrides.read({"AGENT3_HOSTS": entry})


# The guard


def admit(guard: Guard, host: str, port: int = 443) -> Sequence[tuple[str, int]]:
    return asyncio.run(_admit(guard, host, port))


async def _admit(guard: Guard, host: str, port: int) -> Sequence[tuple[str, int]]:
    return await guard.admit(host, port)


def answering(*addresses: str) -> Any:
    async def resolver(host: str, port: int) -> list[tuple[str, int]]:
        return [(address, port) for address in addresses]

    return resolver


def test_a_name_that_leads_to_loopback_is_refused() -> None:
    guard = Guard(NLWebSandbox(["localhost"]), base_url="https://airline.com")
    with pytest.raises(SecurityError, match="localhost resolves to a loopback address"):
        admit(guard, "localhost")


def test_loopback_is_open_to_an_interface_of_loopback_only_for_its_own_host() -> None:
    guard = Guard(NLWebSandbox(["127.0.0.1:8000", "localhost"]), base_url="http://127.0.0.1:8000")
    assert list(admit(guard, "127.0.0.1", 8000)) == [("127.0.0.1", 8000)]
    with pytest.raises(SecurityError, match="loopback"):
        admit(guard, "localhost")


def test_nobody_can_vouch_for_a_metadata_service() -> None:
    sandbox = NLWebSandbox(["airline.com"])
    guard = Guard(sandbox, base_url="https://airline.com", resolver=answering("169.254.169.254"))
    with pytest.raises(SecurityError, match="metadata"):
        admit(guard, "airline.com")
    overrides = Overrides({"airline.com": ("169.254.169.254", None)})
    with pytest.raises(SecurityError, match="metadata"):
        admit(Guard(sandbox, base_url="https://airline.com", overrides=overrides), "airline.com")


def test_one_bad_address_among_good_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.browser.sandbox.resolve", answering("93.184.216.34", "10.0.0.1"))
    with pytest.raises(SecurityError, match="private"):
        admit(Guard(NLWebSandbox(["airline.com"]), base_url="https://airline.com"), "airline.com")


def test_the_system_resolver_finds_this_machine() -> None:
    async def find() -> Sequence[tuple[str, int]]:
        return await resolve("localhost", 80)

    assert ("127.0.0.1", 80) in asyncio.run(find())


# The proxy, spoken to in raw bytes


async def through_proxy(raw: bytes, *addresses: tuple[str, int], allowed: str = "airline.com") -> bytes:
    """What the proxy answers to these bytes, when the allowed host leads to the given addresses."""

    async def resolver(host: str, port: int) -> Sequence[tuple[str, int]]:
        return addresses

    guard = Guard(NLWebSandbox([allowed]), base_url="https://airline.com", resolver=resolver)
    proxy = GuardedProxy(guard.admit)
    server = await proxy.start()
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.rpartition(":")[2]))
            writer.write(raw)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer
    finally:
        await proxy.aclose()


def test_the_proxy_writes_the_host_it_has_judged() -> None:
    with Site(AIRLINE) as site:
        raw = b"GET http://airline.com/?a=\\b HTTP/1.1\r\nHost: evil.com\r\nProxy-Connection: keep-alive\r\n\r\n"
        answer = asyncio.run(through_proxy(raw, ("127.0.0.1", site.port)))
        assert answer.startswith(b"HTTP/1.1 200")
        assert site.requests == [("airline.com", "/?a=\\b")]


def test_a_second_request_on_the_same_connection_goes_nowhere() -> None:
    first = b"POST http://airline.com/ HTTP/1.1\r\nContent-Length: 3\r\n\r\na=b"
    second = b"GET http://airline.com/flights HTTP/1.1\r\n\r\n"
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A site that ignores the wish to close and takes whatever else comes."""
        heard.extend(await reader.readuntil(b"a=b"))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                heard.extend(await reader.read(1000))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def send() -> bytes:
        async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
            return await through_proxy(first + second, server.sockets[0].getsockname()[:2])

    assert asyncio.run(send()).startswith(b"HTTP/1.1 204")
    assert heard.startswith(b"POST / HTTP/1.1\r\nHost: airline.com\r\n")
    assert heard.endswith(b"a=b")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"CONNECT evil.com:443 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT airline.com:22 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT airline.com.:443 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n", 403),
        (b"GET http://evil.com/ HTTP/1.1\r\n\r\n", 403),
        (b"GET http://airline.com:8080/ HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT airline.com HTTP/1.1\r\n\r\n", 400),
        (b"GET https://airline.com/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: airline.com\r\n\r\n", 400),
        (b"GET http://a@airline.com/ HTTP/1.1\r\n\r\n", 400),
        (b"POST http://airline.com/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST http://airline.com/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST http://airline.com/ HTTP/1.1\r\nContent-Length: -1\r\n\r\nGET /other HTTP/1.1\r\n\r\n", 400),
        (b"GET http://airline.com/ HTTP/1.1\r\n folded: line\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"GET http://airline.com/ HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 400),
    ],
)
def test_what_the_proxy_does_not_take_reaches_nobody(raw: bytes, status: int) -> None:
    with Site({}) as site:
        answer = asyncio.run(through_proxy(raw, ("127.0.0.1", site.port)))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert site.connections == 0


def test_the_proxy_takes_the_next_address_if_one_does_not_answer() -> None:
    with Site(AIRLINE) as site, Site({}) as gone:
        dead = gone.port
        gone.__exit__()
        raw = b"GET http://airline.com/ HTTP/1.1\r\n\r\n"
        answer = asyncio.run(through_proxy(raw, ("127.0.0.1", dead), ("127.0.0.1", site.port)))
        assert answer.startswith(b"HTTP/1.1 200")
        assert asyncio.run(through_proxy(raw, ("127.0.0.1", dead))).startswith(b"HTTP/1.1 502")


def test_a_name_is_resolved_once_for_a_connection() -> None:
    asked: list[str] = []

    async def resolver(host: str, port: int) -> list[tuple[str, int]]:
        asked.append(host)
        return [("127.0.0.1", site.port)]

    async def go() -> None:
        guard = Guard(NLWebSandbox(["airline.com"]), base_url="https://airline.com", resolver=resolver)
        proxy = GuardedProxy(guard.admit)
        server = await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.rpartition(":")[2]))
        writer.write(b"CONNECT airline.com:80 HTTP/1.1\r\n\r\n")
        assert b"200" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        writer.write(b"GET / HTTP/1.1\r\nHost: airline.com\r\nConnection: close\r\n\r\n")
        assert b"Welcome" in await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
        await proxy.aclose()

    with Site(AIRLINE) as site:
        asyncio.run(go())
    assert asked == ["airline.com"]


def test_closing_the_proxy_cuts_open_tunnels_and_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> bytes:
        guard = Guard(NLWebSandbox([site.host]), base_url=site.url)
        proxy = GuardedProxy(guard.admit)
        server = await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.rpartition(":")[2]))
        writer.write(f"CONNECT {site.host} HTTP/1.1\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        await asyncio.wait_for(proxy.aclose(), 60)
        rest = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
        return rest

    with Site({}) as site:
        assert asyncio.run(go()) == b""
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_request_without_a_path_asks_for_the_root() -> None:
    assert Request.parse(b"GET http://airline.com?x=1 HTTP/1.1\r\n\r\n").head.startswith(b"GET /?x=1 HTTP/1.1\r\n")
    assert Request.parse(b"GET http://airline.com HTTP/1.1\r\n\r\n").port == 80
    assert Request.parse(b"GET http://[::1]:81/ HTTP/1.1\r\n\r\n").host == "::1"
