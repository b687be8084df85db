"""Sites that take memory, keep connections, send others away, are not there, or stream without end."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3 import bridge
from agent3.cli import doctor
from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import RateLimited, SecurityError, TargetError, Unavailable, ValidationError
from agent3.gateway.http import error_response
from agent3.model import LOCAL, Call, Capability, Done, Event, Failed, Turn
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.ask.sites import Sites
from agent3.protocols.nlweb.browser import chromium as chromes
from agent3.protocols.nlweb.browser import profiles as profiles
from agent3.protocols.nlweb.browser.chromium import Chrome
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.proxy import GuardedProxy
from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
from agent3.protocols.nlweb.steps.parameters import check, check_parameters, inject
from agent3.protocols.nlweb.visit import robots
from agent3.protocols.nlweb.visit.page_session import Session, Timeouts
from agent3.protocols.nlweb.visit.throttle import Pace, Throttle, site_of
from agent3.protocols.nlweb.visit.visits import Visits
from tests.support.acting import step
from tests.support.sites import Answer, Page, Site

A = ActionType
MB = 1_000_000
GREEDY = """<!doctype html><h1>greedy</h1><script>const kept = []; let left = 12;
const take = () => { if (!left--) return; const more = new Uint8Array(64 * 1024 * 1024); more.fill(1); kept.push(more);
  setTimeout(take, 30) }; setTimeout(take, 100);</script>"""


@pytest.fixture(scope="module")
def visits() -> Iterator[Visits]:
    async def make() -> Visits:
        pool = Pool(2, make=lambda: Chrome(page_bytes=250 * MB), metrics=Metrics())
        return Visits(pool, timeouts=Timeouts(step=10.0, extraction=10.0), metrics=Metrics())

    made = bridge.run(make())
    yield made
    bridge.run(made.aclose())


def run(visits: Visits, url: str, *steps: NLWebAction, who: str = "ann", **more: Any) -> Any:
    interface = NLWebInterface(interface_id="x", name="X", base_url=url, actions={"act": list(steps)}, **more)
    return bridge.run(visits.run(interface, "act", {}, principal=who), timeout=60)


HERE = (step(A.NAVIGATE, value="/"), step(A.EXTRACT, "h1"))


# Memory


@pytest.mark.browser
def test_a_page_that_takes_too_much_memory_is_ended_while_it_runs_and_not_begun_again(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chromes, "_WATCH_SECONDS", 0.1)
    with Site({"/": GREEDY, "/plain": "<h1>plain</h1>"}) as site:
        waiting = step(A.WAIT, "#never", timeout=20)
        with pytest.raises(TargetError, match="memory") as ended:
            run(visits, site.url, HERE[0], waiting)
        assert not isinstance(ended.value, Unavailable)
        assert [path for _, path in site.requests if path == "/"] == ["/"]
        assert run(visits, site.url, step(A.NAVIGATE, value="/plain"), HERE[1]) == ["plain"]
    assert visits.pool.restarts == 0


def test_who_takes_too_much_is_found_and_nobody_else() -> None:
    assert chromes.find_oversized({1: 90, 2: 10}, page_limit=100, total_limit=150) == []
    assert chromes.find_oversized({1: 101, 2: 10}, page_limit=100, total_limit=150) == [1]
    assert chromes.find_oversized({1: 80, 2: 90}, page_limit=100, total_limit=150) == [2]
    assert (
        chromes.find_oversized(dict.fromkeys(range(20), 20), page_limit=100, total_limit=150) == []
    )  # many small ones
    assert chromes.find_oversized({}, page_limit=100, total_limit=150) == []


def test_only_the_process_of_a_page_is_ended() -> None:
    assert chromes.own_bytes(os.getpid()) > 1 * MB
    assert not chromes.kill_renderer(os.getpid())
    assert chromes.find_parent(os.getpid()) == os.getppid()


@pytest.mark.browser
def test_the_driver_counts_with_its_browser(visits: Visits) -> None:
    async def story() -> None:
        async with visits.pool.lease("ann") as chrome:
            alone = await asyncio.to_thread(chromes.total_bytes, await chrome.list_processes())
            assert await chrome.measure_memory() > alone + 20 * MB

    bridge.run(story(), timeout=60)


# What is left on the disk

_OWNER = """
import os, sys, time
from pathlib import Path
from agent3.protocols.nlweb.browser.profiles import BrowserFolders
made = BrowserFolders(Path(sys.argv[2]))
made.claim([Path(sys.argv[1])])
print("noted", flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_has_left_is_swept_and_nothing_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign, artifacts = tmp_path / "playwright_chromiumdev_profile-foreign", tmp_path / "agent3-browser-x"
    foreign.mkdir()
    artifacts.mkdir()
    # By its last part the owner's command would name its profile, as a browser's does.
    ours = tmp_path / "playwright_chromiumdev_profile-ours"
    ours.mkdir()
    by_another_name = tmp_path / "link"
    by_another_name.symlink_to(ours)
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(by_another_name), str(artifacts)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "noted\n"
        assert profiles.remove_abandoned() == 0
        assert ours.exists()
        owner.send_signal(signal.SIGKILL)
    assert profiles.remove_abandoned() == 2
    assert [ours.exists(), artifacts.exists(), foreign.exists()] == [False, False, True]


@pytest.mark.parametrize("root", [True, False])
def test_the_doctor_says_when_the_browser_is_without_its_own_sandbox(
    monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    monkeypatch.setattr(chromes, "is_root", lambda: root)
    found = doctor.check_browser()
    assert ("sandbox" in str(found)) is root


# Pace


@pytest.mark.parametrize("wait", [math.inf, math.nan, -1.0, 0.2, 30.4])
def test_whatever_a_target_asks_for_the_header_is_a_whole_number(wait: float) -> None:
    told = error_response(Unavailable("later", retry_after=wait)).headers["Retry-After"]
    assert 1 <= int(told) <= 86_400


@pytest.mark.browser
def test_a_frame_of_another_host_closes_no_website(visits: Visits) -> None:
    with Site({"/ad": Answer("later", 503, {"Retry-After": "3600"})}) as other, Site({}) as site:
        site.pages["/"] = f"<h1>open</h1><iframe src='{other.url}/ad'></iframe><iframe src='/inside'></iframe>"
        site.pages["/inside"] = Answer("later", 503, {"Retry-After": "3600"})
        for who in ("alice", "bob"):
            assert run(visits, site.url, *HERE, who=who, allowed_hosts=[other.host]) == ["open"]
        assert len(other.requests) >= 1


@pytest.mark.browser
@pytest.mark.parametrize(("size", "waits"), [(0, True), (200, False)])
def test_a_session_alone_keeps_the_crawl_delay_of_as_much_of_a_robots_txt_as_is_read(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, size: int, waits: bool
) -> None:
    monkeypatch.setattr(robots, "_MAX_BYTES", 100)
    text = f"#{'x' * size}\nUser-agent: *\nCrawl-delay: 30\n"
    pages: dict[str, Page] = {"/robots.txt": Answer(text, headers={"Content-Type": "text/plain"}), "/": "<h1>here</h1>"}
    throttle = Throttle(metrics=Metrics())

    async def story(interface: NLWebInterface) -> None:
        async with visits.pool.lease("ann") as chrome:
            alone = Session(interface, NLWebSandbox.of(interface), chrome=chrome, throttle=throttle)
            await alone.open()
            try:
                assert await alone.run("act", HERE, {}) == ["here"]
            finally:
                await alone.aclose()

    with Site(pages) as site:
        more: dict[str, Any] = {"metadata": {"pace": {"seconds": 0.01}}, "actions": {"act": list(HERE)}}
        interface = NLWebInterface(interface_id="x", name="X", base_url=site.url, **more)
        bridge.run(story(interface), timeout=60)
        assert [path for _, path in site.requests][:2] == ["/robots.txt", "/"]
    if waits:
        with pytest.raises(RateLimited, match="asked us to wait"):
            asyncio.run(throttle.wait_for_turn(site_of(site.url), Pace.of(interface)))
    else:
        assert asyncio.run(throttle.wait_for_turn(site_of(site.url), Pace.of(interface))) < 1


# Connections


async def stubborn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]) -> None:
    """A site that keeps its connections whatever it is asked."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        asked.append(head.split(b" ")[1].decode())
        body = b"<h1>page</h1><p id=o></p><script>fetch('/x').then(() => o.textContent = 'came')</script>"
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")
        writer.write(b"connection: keep-alive\r\nKeep-Alive: timeout=99\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)


def serving(asked: list[str]) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await stubborn(reader, writer, asked)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    return asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.browser
def test_what_a_page_asks_of_a_site_that_keeps_its_connections_arrives(visits: Visits) -> None:
    asked: list[str] = []

    async def story() -> Any:
        async with await serving(asked) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            steps = [HERE[0], step(A.WAIT, until={"text": "came"}), step(A.EXTRACT, "#o")]
            interface = NLWebInterface(interface_id="x", name="X", base_url=url, actions={"act": steps})
            return await visits.run(interface, "act", {}, principal="ann")

    assert bridge.run(story(), timeout=60) == ["came"]
    assert "/x" in asked


def test_an_answer_ends_its_connection_whatever_the_site_says() -> None:
    async def story() -> bytes:
        async with await serving([]) as server:
            port = server.sockets[0].getsockname()[1]

            async def admit(_: str, __: int) -> list[tuple[str, int]]:
                return [("127.0.0.1", port)]

            proxy = GuardedProxy(admit)
            address = await proxy.start()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
                writer.write(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
                answer = await asyncio.wait_for(reader.readuntil(b"</script>"), 60)
                writer.close()
                await writer.wait_closed()
                return answer
            finally:
                await proxy.aclose()

    interim, head, body = asyncio.run(story()).split(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 103 Early Hints\r\nLink: </a>"
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: ")
    assert head.endswith(b"\r\nConnection: close")
    assert b"keep-alive" not in head.lower()
    assert body.startswith(b"<h1>page</h1>")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_site_that_is_not_there_has_answered_nothing(visits: Visits, scheme: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        gone = unreached(visits, f"{scheme}://{host}")
    assert f"{host} cannot be reached: it refused the connection" in gone.message


@pytest.mark.browser
def test_a_name_that_nobody_knows_has_answered_nothing(visits: Visits) -> None:
    gone = unreached(visits, "http://nosuch.invalid")
    assert "nosuch.invalid:80 cannot be reached: nosuch.invalid could not be resolved" in gone.message


def unreached(visits: Visits, url: str) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        run(visits, url, step(A.NAVIGATE, value="/", retries=0), metadata={"pace": {"seconds": 0}})
    assert "answered" not in caught.value.message
    assert not caught.value.sent
    return caught.value


@pytest.mark.browser
def test_a_site_at_an_address_that_is_not_allowed_is_told_with_what_to_do(visits: Visits) -> None:
    with pytest.raises(SecurityError, match=r"Navigation to http://10\.1\.2\.3/ blocked: .*AGENT3_HOSTS"):
        run(visits, "http://10.1.2.3", step(A.NAVIGATE, value="/", retries=0), metadata={"pace": {"seconds": 0}})


# Addresses


def going(address: str) -> NLWebAction:
    return NLWebAction(action_type=A.NAVIGATE, value=address)


@pytest.mark.requirement("RF-013-43")
@pytest.mark.parametrize(
    ("address", "given"),
    [
        ("/orders/{id}/show", {"id": ".."}),
        ("/orders/{id}/show", {"id": "."}),
        ("/files/.{id}", {"id": "."}),
        ("/files/%2e{id}", {"id": "."}),
        ("https://shop.example/files/{id}?a=b", {"id": ".."}),
        ("/{id}/{other}", {"id": "", "other": "elsewhere.example"}),
    ],
)
def test_a_value_leads_to_no_other_path_and_no_other_host(address: str, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="would lead elsewhere") as refused:
        inject(going(address), given)
    assert refused.value.errors[0]["path"] == "/id"
    with pytest.raises(ValidationError, match="would lead elsewhere"):
        check_parameters([going(address)], given, "act")


@pytest.mark.parametrize(
    ("address", "given", "filled"),
    [
        ("/files/{id}", "%2e%2e", "/files/%252e%252e"),
        ("/files/{id}", "../admin", "/files/..%2Fadmin"),
        ("/files/{id}", "..a", "/files/..a"),
        ("/files/{id}", "", "/files/"),
        ("/files?id={id}", "..", "/files?id=.."),
        ("/up/../{id}", "a", "/up/../a"),
    ],
)
def test_what_only_looks_like_another_path_is_a_name(address: str, given: str, filled: str) -> None:
    assert inject(going(address), {"id": given}).value == filled


def test_what_is_only_known_later_is_judged_then() -> None:
    check([going("/{id}/.{other}")], "act")
    check_parameters([going("/{item}/{other}")], {"other": "x"}, "act")


# Streams


def test_a_site_that_streams_without_end_is_cut_and_tells_nothing_twice() -> None:
    first = 'data: {"_meta": {"response_type": "Answer", "version": "0.54"}}\n\n'
    row = 'data: {"results": [{"name": "Soup"}]}\n\n'
    streaming = {"Content-Type": "text/event-stream"}
    pages: dict[str, Page] = {"/ask": Answer(first, headers=streaming)}
    events: list[Event] = []

    async def story(site: Site) -> list[Any]:
        sites = Sites()
        try:
            agent = await sites.describe(site.url)
            live = Turn(None, Capability(name="ask"), events.append)
            route = agent.capabilities[0].routes[0]
            call = Call(
                id="c", principal=LOCAL, agent="s", capability="ask", route=route, input={"query": "soup"}, live=live
            )
            site.pages["/ask"] = Answer(first + row + "data: {}\n\n" * 500 + row, headers=streaming)
            good = await sites.call(call)
            site.pages["/ask"] = Answer(first + "data: {}\n\n" * 12_000, headers=streaming)
            endless = await sites.call(replace(call, id="d"))
            site.pages["/ask"] = Answer(first + "data: " + '{"a":' * 100 + "1" + "}" * 100 + "\n\n", headers=streaming)
            return [good, endless, await sites.call(replace(call, id="e"))]
        finally:
            await sites.aclose()

    with Site(pages) as site:
        good, endless, deep = asyncio.run(story(site))
    assert isinstance(good, Done)
    assert [one.text for one in events] == ["1 found", "2 found"]
    assert isinstance(endless, Failed)
    assert "more than 10000 pieces" in endless.message
    assert isinstance(deep, Failed), "what was too much to read was left out without a word"
    assert "more than can be read: " in deep.message
