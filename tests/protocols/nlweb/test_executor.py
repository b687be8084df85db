"""The executor in a real Chromium, on a site of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent3.definitions import ActionType, ExtractField, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    CapabilityNotFound,
    RateLimited,
    SecurityError,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.nlweb import NLWebExecutor, NLWebSandbox
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.browser.sandbox import Overrides
from agent3.protocols.nlweb.visit.page_session import Timeouts
from tests.support.sites import AIRLINE, Authority, Site

A = ActionType

PAGE = """<!doctype html><title>Things</title>
<button id="go" onclick="document.title='gone'">Go</button>
<button id="late" style="display:none">Late</button><script>setTimeout(() => late.style.display = '', 80)</script>
<input id="box"><input id="tick" type="checkbox"><input id="file" type="file">
<select id="pick"><option value="1">One</option><option value="2">Two</option></select>
<div id="hover" onmouseover="this.textContent='hovered'">over me</div>
<div style="height:3000px"></div><p id="end">the end</p>
<script>box.addEventListener('keydown', event => { if (event.key === 'Enter') document.title = 'entered'; });</script>
<ul><li data-name='a"], button'>nasty</li><li data-name="x">plain</li></ul>"""

CARDS = """<!doctype html><title>Cards</title>
<div class="card"><b>Test Air</b><i>€ 1.299,00</i><a href="/book?n=1">Book</a><u>2</u><s>a</s><s>b</s>
  <p class="leg"><em>NYC</em><time datetime="2027-03-04">4 March</time></p>
  <p class="leg"><em>CDG</em><time datetime="2027-03-05">5 March</time></p></div>
<div class="card"><b>Blue Sky</b><i>$499.50</i><a href="javascript:x()">Book</a><u>none</u></div>"""


def step(kind: ActionType, selector: str | None = None, value: str | None = None, **more: Any) -> NLWebAction:
    return NLWebAction(action_type=kind, selector=selector, value=value, **more)


def interface(base_url: str, **actions: list[NLWebAction]) -> NLWebInterface:
    return NLWebInterface(interface_id="test", name="Test", base_url=base_url, actions=actions)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site({**AIRLINE, "/things": PAGE, "/cards": CARDS}) as site:
        yield site


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uploads")
    (folder / "ticket.txt").write_text("ticket")
    (folder.parent / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def executor(site: Site, uploads: Path) -> Iterator[NLWebExecutor]:
    """One browser for all tests that only need a page; each begins by navigating."""
    made = NLWebExecutor(
        interface(site.url), uploads=uploads, timeouts=Timeouts(step=10.0, extraction=10.0, optional=0.2)
    )
    with made:
        yield made


def perform(executor: NLWebExecutor, *steps: NLWebAction, **parameters: Any) -> Any:
    """Run the steps as an action of the executor's interface."""
    executor.interface = executor.interface.model_copy(update={"actions": {"act": list(steps)}})
    return executor.execute_action("act", parameters)


# Actions


@pytest.mark.browser
@pytest.mark.requirement("RF-013-41", "RF-013-42")
def test_the_six_steps_of_a_flight_search_give_the_flights(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    search = [
        step(A.NAVIGATE, value="https://airline.com/flights"),
        step(A.TYPE, "#from", "{origin}"),
        step(A.TYPE, "#to", "{destination}"),
        step(A.TYPE, "#date", "{date}"),
        step(A.CLICK, "button[type='submit']"),
        step(A.EXTRACT, ".flight-card", extract_schema={"airline": ".name", "price": ".price"}),
    ]
    with Site(AIRLINE, authority.context("airline.com")) as airline:
        overrides = Overrides({"airline.com": ("127.0.0.1", airline.port)}, (authority.digest,))
        website = interface("https://airline.com", search_flights=search)
        with NLWebExecutor(website, overrides=overrides) as executor:
            found = executor.execute_action(
                "search_flights", {"origin": "NYC", "destination": "Paris", "date": "2027-03-04"}
            )
            heading = executor.page.text_content("h1")
            assert len(executor.monitor.action_latencies) == 6
    assert found == [{"airline": "Test Air", "price": "€ 1.299,00"}, {"airline": "Blue Sky", "price": "$499.50"}]
    assert heading == "NYC Paris 2027-03-04 - -"


@pytest.mark.browser
def test_a_certificate_of_unknown_hand_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    known, stranger = Authority(tmp_path), Authority(tmp_path / "other")
    with Site(AIRLINE, stranger.context("airline.com")) as airline:
        overrides = Overrides({"airline.com": ("127.0.0.1", airline.port)}, (known.digest,))
        with (
            NLWebExecutor(interface("https://airline.com"), overrides=overrides) as executor,
            pytest.raises(Unavailable, match="ERR_CERT_AUTHORITY_INVALID"),
        ):
            executor._execute_single_action(step(A.NAVIGATE, value="https://airline.com/"))
        assert airline.requests == []


@pytest.mark.browser
def test_extraction_gives_typed_and_nested_values(executor: NLWebExecutor, site: Site) -> None:
    leg = ExtractField(
        selector=".leg",
        many=True,
        fields={"at": "em", "on": ExtractField(selector="time", attribute="datetime", type="date")},
    )
    schema: dict[str, str | ExtractField] = {
        "airline": "b",
        "price": ExtractField(selector="i", type="price"),
        "book": ExtractField(selector="a", type="link"),
        "stops": ExtractField(selector="u", type="number"),
        "tags": ExtractField(selector="s", many=True),
        "legs": leg,
    }
    rows = perform(executor, step(A.NAVIGATE, value="/cards"), step(A.EXTRACT, ".card", extract_schema=schema))
    assert rows == [
        {
            "airline": "Test Air",
            "price": {"amount": 1299.0, "currency": "EUR"},
            "book": f"{site.url}/book?n=1",
            "stops": 2.0,
            "tags": ["a", "b"],
            "legs": [{"at": "NYC", "on": "2027-03-04"}, {"at": "CDG", "on": "2027-03-05"}],
        },
        {
            "airline": "Blue Sky",
            "price": {"amount": 499.5, "currency": "USD"},
            "book": None,
            "stops": None,
            "tags": [],
            "legs": [],
        },
    ]


@pytest.mark.browser
def test_several_results_come_in_their_order(executor: NLWebExecutor) -> None:
    results = perform(
        executor,
        step(A.NAVIGATE, value="/cards"),
        step(A.EXTRACT, ".card b"),
        step(A.EXTRACT, ".nowhere", timeout=0.1),
        step(A.EXTRACT, extract_schema={"first": "b"}),
        step(A.SCREENSHOT, ".card"),
    )
    assert results[:3] == [["Test Air", "Blue Sky"], [], {"first": "Test Air"}]
    assert results[3].startswith(b"\x89PNG")
    assert perform(executor, step(A.NAVIGATE, value="/")) is None


@pytest.mark.browser
def test_every_kind_of_step_does_its_work(executor: NLWebExecutor) -> None:
    perform(
        executor,
        step(A.NAVIGATE, value="/things"),
        step(A.WAIT, "#late"),
        step(A.WAIT, "li", "plain"),
        step(A.WAIT, value="load"),
        step(A.WAIT, value="0.01"),
        step(A.TYPE, "#box", "{text}"),
        step(A.PRESS, "#box"),
        step(A.CHECK, "#tick"),
        step(A.SELECT, "#pick", "Two"),
        step(A.HOVER, "#hover"),
        step(A.UPLOAD, "#file", "ticket.txt"),
        step(A.SCROLL, "#end"),
        text="a {b} 'c'",
    )
    page = executor.page
    assert page.title() == "entered"
    assert page.input_value("#box") == "a {b} 'c'"
    assert page.is_checked("#tick")
    assert page.input_value("#pick") == "2"
    assert page.text_content("#hover") == "hovered"
    assert page.evaluate("file.files[0].name") == "ticket.txt"
    assert page.evaluate("scrollY") > 1000
    perform(executor, step(A.UNCHECK, "#tick"), step(A.SCROLL, value="top"), step(A.CLICK, "#go", wait_for="#late"))
    assert not page.is_checked("#tick")
    assert page.evaluate("scrollY") == 0
    assert page.title() == "gone"
    perform(executor, step(A.CLICK, "#box"), step(A.PRESS, value="x"), step(A.SCROLL, value="bottom"))
    assert page.input_value("#box").endswith("x")
    assert page.evaluate("scrollY") > 1000


@pytest.mark.browser
@pytest.mark.requirement("RF-013-43")
def test_injected_text_selects_the_element_it_names_and_no_other(executor: NLWebExecutor) -> None:
    row = step(A.EXTRACT, 'li[data-name="{name}"]')
    there = step(A.NAVIGATE, value="/things")
    assert perform(executor, there, row, name='a"], button') == ["nasty"]
    has_text = step(A.EXTRACT, 'li:has-text("{name}")', timeout=0.1)
    assert perform(executor, there, has_text, name="plain") == ["plain"]
    assert perform(executor, there, has_text, name='"), button:has-text("') == []


# What goes wrong


@pytest.mark.browser
def test_an_unknown_action_is_answered_with_the_nearest(executor: NLWebExecutor) -> None:
    executor.interface = interface(executor.interface.base_url, search_flights=[], book=[])
    with pytest.raises(CapabilityNotFound, match=r"no action 'search_flight'\. Did you mean 'search_flights'\?"):
        executor.execute_action("search_flight")


@pytest.mark.browser
def test_parameters_are_judged_before_anything_happens(executor: NLWebExecutor, site: Site) -> None:
    steps = [step(A.NAVIGATE, value="/things"), step(A.TYPE, "#box", "{origin}"), step(A.TYPE, "#box", "{date}")]
    before = len(site.requests)
    with pytest.raises(ValidationError, match=r"parameter: date \(for the step 3 of 'act' \(type '#box'\)\)"):
        perform(executor, *steps, origin="NYC")
    with pytest.raises(ValidationError, match=r"No step of 'act' uses parameter 'orign'\. Did you mean 'origin'\?"):
        perform(executor, *steps, orign="NYC", date="x")
    assert len(site.requests) == before


@pytest.mark.browser
def test_a_default_of_the_schema_fills_what_was_not_given(executor: NLWebExecutor) -> None:
    steps = [step(A.NAVIGATE, value="/things"), step(A.TYPE, "#box", "{origin}")]
    schema = {"properties": {"origin": {"type": "string", "default": "NYC"}, "unused": {"type": "string"}}}
    executor.interface = NLWebInterface(
        interface_id="test",
        name="Test",
        base_url=executor.interface.base_url,
        actions={"act": steps},
        info={"act": NLWebActionInfo(input_schema=schema)},
    )
    executor.execute_action("act", {"unused": "x"})
    assert executor.page.input_value("#box") == "NYC"


@pytest.mark.browser
def test_a_step_that_takes_too_long_names_itself_and_its_selector(executor: NLWebExecutor) -> None:
    steps = [step(A.NAVIGATE, value="/things"), step(A.CLICK, "#missing", timeout=0.1)]
    with pytest.raises(CallTimeout, match=r"Step 2 of 'act' \(click '#missing'\) was not done within 0\.1 s") as caught:
        perform(executor, *steps)
    assert caught.value.data["selector"] == "#missing"
    with pytest.raises(CallTimeout, match=r"Step wait was not done"):
        executor._execute_single_action(step(A.WAIT, value="5", timeout=0.05))
    with pytest.raises(CallTimeout, match=r"Step click '#go'"):
        executor._execute_single_action(step(A.CLICK, "#go", wait_for="#missing", timeout=0.2))


@pytest.mark.browser
def test_an_optional_step_may_fail(executor: NLWebExecutor) -> None:
    steps = [step(A.NAVIGATE, value="/things"), step(A.CLICK, "#banner", optional=True), step(A.CLICK, "#go")]
    perform(executor, *steps)
    assert executor.page.title() == "gone"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("code", "kind"), [(404, TargetError), (403, TargetRefused), (503, Unavailable), (429, RateLimited)]
)
def test_a_page_that_says_error_is_an_error(executor: NLWebExecutor, code: int, kind: type[Agent3Error]) -> None:
    with pytest.raises(kind, match=f"status {code}"):
        executor._execute_single_action(step(A.NAVIGATE, value=f"/status?code={code}"))


@pytest.mark.browser
@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "nowhere.txt", "."])
def test_only_files_of_the_upload_folder_leave_the_house(executor: NLWebExecutor, name: str) -> None:
    with pytest.raises(SecurityError, match="Upload"):
        perform(executor, step(A.NAVIGATE, value="/things"), step(A.UPLOAD, "#file", "{name}"), name=name)


@pytest.mark.browser
@pytest.mark.requirement("RF-013-46")
@pytest.mark.parametrize(
    "url",
    ["https://evil.example/", "file:///etc/passwd", "javascript:alert(1)", "chrome://version", "//evil.example/x"],
)
def test_a_forbidden_navigation_is_blocked_before_it_begins(executor: NLWebExecutor, url: str) -> None:
    with pytest.raises(SecurityError, match=r"Navigation to .* blocked"):
        executor._execute_single_action(step(A.NAVIGATE, value=url))


@pytest.mark.browser
def test_a_sandbox_runs_steps_of_an_executor(executor: NLWebExecutor, site: Site) -> None:
    sandbox = NLWebSandbox([site.host])
    sandbox.execute_with_sandbox(executor, step(A.NAVIGATE, value=f"{site.url}/things"))
    assert executor.page.url == f"{site.url}/things"
    with pytest.raises(SecurityError) as caught:
        sandbox.execute_with_sandbox(executor, step(A.NAVIGATE, value="https://evil.example/"))
    assert str(caught.value) == "Navigation to https://evil.example/ blocked"


def test_without_a_browser_the_remedy_is_named() -> None:
    executor = NLWebExecutor(interface("https://airline.com", act=[]))
    for use in (lambda: executor.page, lambda: executor.execute_action("act"), lambda: perform(executor)):
        with pytest.raises(SetupError, match=r"Call start_browser\(\) first"):
            use()
    executor.stop_browser()


@pytest.mark.browser
def test_a_browser_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT3_BROWSER", "/bin/true")
    before = _descendants(os.getpid())
    with pytest.raises(SetupError, match="/bin/true did not start as a browser"):
        NLWebExecutor(interface("https://airline.com")).start_browser()
    _wait_until(lambda: not _descendants(os.getpid()) - before)


# Where it runs


@pytest.mark.browser
def test_it_works_inside_a_running_loop_and_from_other_threads(executor: NLWebExecutor, site: Site) -> None:
    async def inside() -> str:
        executor._execute_single_action(step(A.NAVIGATE, value="/things"))
        return str(executor.page.locator("#end").inner_text())

    assert asyncio.run(inside()) == "the end"

    def search(origin: str) -> Any:
        executor._execute_single_action(step(A.NAVIGATE, value=f"/results?from={origin}"))
        return executor.page.url

    with ThreadPoolExecutor(3) as threads:
        urls = list(threads.map(search, ["A", "B", "C"]))
    assert all(url.startswith(f"{site.url}/results?from=") for url in urls)


@pytest.mark.browser
def test_the_view_shows_what_belongs_to_a_page(executor: NLWebExecutor) -> None:
    executor._execute_single_action(step(A.NAVIGATE, value="/things"))
    page = executor.page
    assert [one.inner_text() for one in page.locator("li").all()] == ["nasty", "plain"]
    page.keyboard.press("Tab")
    page.mouse.wheel(0, 10)
    assert page.context.pages[0].url == page.url
    assert page.locator("ul").filter(has=page.locator("li")).count() == 1
    assert "Things" in page.content()
    assert "view of" in repr(page)
    with pytest.raises(AttributeError, match="expect_popup"):
        page.expect_popup()


# What is left behind


def _descendants(pid: int) -> set[int]:
    """Every living process below this one. A zombie whose new parent does not look is gone for our purpose."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found, ring = set(), {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring}
        found |= ring
    return found


def _gone(pids: set[int]) -> bool:
    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return not any(lives(pid) for pid in pids)


def _wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.browser
def test_stopping_leaves_no_process_and_no_profile(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = _descendants(os.getpid())
    executor = NLWebExecutor(interface(site.url))
    executor.start_browser()
    started = _descendants(os.getpid()) - before
    assert len(started) > 2
    assert list(tmp_path.iterdir())
    executor.start_browser()
    assert not _descendants(os.getpid()) - before - started
    with pytest.raises(CallTimeout), executor:
        executor._execute_single_action(step(A.CLICK, "#missing", timeout=0.05))
    _wait_until(lambda: _gone(started))
    assert list(tmp_path.iterdir()) == []
    executor.stop_browser()


@pytest.mark.browser
def test_a_browser_that_was_killed_is_reported_and_replaced(site: Site) -> None:
    metrics = Metrics()
    before = _descendants(os.getpid())
    website = interface(site.url, read=[step(A.NAVIGATE, value="/things"), step(A.EXTRACT, "#end")])
    with NLWebExecutor(website, metrics=metrics) as executor:
        for pid in _descendants(os.getpid()) - before:
            with suppress(OSError):  # the first one takes others with it
                if b"--user-data-dir" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        _wait_until(lambda: not (executor._session and executor._session.alive))
        with pytest.raises(Unavailable, match="the browser ended"):
            executor._execute_single_action(step(A.CLICK, "#go"))
        assert executor.execute_action("read") == ["the end"]
        assert b"nlweb_browser_restarts_total 1.0" in metrics.render()[0]
        started = _descendants(os.getpid()) - before
    _wait_until(lambda: _gone(started))


@pytest.mark.browser
def test_an_old_browser_is_renewed_between_actions_and_keeps_its_cookies(site: Site) -> None:
    website = interface(site.url, visit=[step(A.NAVIGATE, value="/things")])
    with NLWebExecutor(website) as executor:
        executor.execute_action("visit")
        executor.page.evaluate("document.cookie = 'seat=12; max-age=1000'")
        old = executor._session
        executor.execute_action("visit")
        assert executor._session is old
        assert executor.monitor.browser_start_time is not None
        executor.monitor.browser_start_time -= executor.monitor.MAX_BROWSER_LIFETIME + 1
        executor.execute_action("visit")
        assert executor._session is not old
        assert executor.page.evaluate("document.cookie") == "seat=12"


_SCRIPT = """
import os, signal, sys
from agent3.definitions import NLWebInterface
from agent3.nlweb import NLWebExecutor
executor = NLWebExecutor(NLWebInterface(interface_id="x", name="X", base_url="http://127.0.0.1:1"))
executor.start_browser()
print("up", flush=True)
sys.stdin.readline()
{end}
"""


@pytest.mark.browser
@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_the_browser_ends_with_the_process_that_started_it(tmp_path: Path, end: str, code: int) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT.format(end=end)],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        started = _descendants(process.pid)
        assert len(started) > 2
        _, errors = process.communicate("\n", timeout=240)
    assert process.returncode == code
    assert errors == ""
    _wait_until(lambda: _gone(started))
    _wait_until(lambda: list(tmp_path.iterdir()) == [])


def test_importing_the_package_loads_no_browser_driver() -> None:
    check = "import sys, agent3.protocols.nlweb.executor; sys.exit('playwright' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=240, check=False).returncode == 0
