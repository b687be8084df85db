"""Pages that lie, repeat secrets, hang or give without end; and a process that is killed with its browser."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent3.definitions import ActionType, Condition
from agent3.env import SeededEnv
from agent3.errors import CallTimeout, MalformedResponse, RateLimited, SetupError, Unavailable, ValidationError
from agent3.model import Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.authoring.workbench import run_action
from agent3.protocols.nlweb.connector import owner_of
from agent3.protocols.nlweb.steps import extraction as extract
from agent3.protocols.nlweb.steps import snapshots
from agent3.protocols.nlweb.steps.parameters import inject_condition
from agent3.protocols.nlweb.steps.waits import holds
from agent3.protocols.nlweb.visit import page_session as session
from agent3.protocols.nlweb.visit.page_session import Tools
from agent3.protocols.nlweb.visit.throttle import Pace, Throttle
from tests.support.acting import Stage, stage, step
from tests.support.sites import Answer, Page
from tests.support.visits import shop

A = ActionType
SECRET = "open & say=me"
LIAR = """<!doctype html><title>Liar</title><p class="row">one</p><p class="row">two</p><script>
{trick}
</script>"""
PAGES: dict[str, Page] = {
    "/": "<!doctype html><title>Plain</title><h1>here</h1>",
    "/echo": lambda query: f"<!doctype html><title>Echo</title><h1>You said {query.get('q', '')}</h1>",
    "/down": Answer("down", 503),
    "/form": """<!doctype html><title>Form</title><form action="/sent" novalidate><input name="pin" id="pin">
<button>Send</button></form>""",
    "/sent": lambda query: f"<p role='alert' class='error'>{query['pin'].replace('&', '&amp;')} is no good pin</p>",
    "/map": LIAR.replace("{trick}", "Array.prototype.map = () => 5;"),
    "/objects": LIAR.replace("{trick}", "Array.prototype.map = () => [7, {b: 'x'}, null];"),
    "/cut": LIAR.replace("{trick}", "String.prototype.slice = () => 'x'.repeat(200000);"),
    "/numbers": f"<!doctype html><title>Numbers</title><b>{'9' * 400}</b>",
    "/heavy": """<!doctype html><title>Heavy</title><body><script>
for (let n = 0; n < 300; n++) document.body.append(Object.assign(document.createElement('p'),
  {className: 'row', textContent: 'y'.repeat(500)}));
</script>""",
    "/hangs": "<!doctype html><title>Hangs</title><h1>h</h1><script>setTimeout(() => { for (;;) {} }, 50)</script>",
}


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(PAGES, Tools(secrets={"word": SECRET}.__getitem__)) as made:
        yield made


def spellings(text: Any) -> list[str]:
    said = str(text)
    return [one for one in (SECRET, "open%20%26", "open+%26", "open &amp;") if one in said]


# Secrets


@pytest.mark.browser
def test_a_secret_that_the_site_repeats_is_in_no_result_message_or_snapshot(play: Stage) -> None:
    said = play.act(step(A.NAVIGATE, value="/echo?q={secret:word}"), step(A.EXTRACT, "h1"))
    assert said == ["You said ***"]
    assert spellings(play.sent("/echo")) == ["open%20%26"]  # the site itself did get it
    with pytest.raises(Unavailable, match="status 503") as down:
        play.act(step(A.NAVIGATE, value="/down?q={secret:word}", retries=0))
    with pytest.raises(ValidationError, match="no good pin") as refused:
        play.act(
            step(A.NAVIGATE, value="/form"), step(A.TYPE, "#pin", "{secret:word}"), step(A.SUBMIT, "form", timeout=2)
        )
    kept = play.executor.snapshot
    assert kept is not None
    assert "is no good pin" in kept.html
    assert "pin=" in kept.url
    for one in (down.value.to_dict(), refused.value.to_dict(), kept):
        assert spellings(one) == []


def test_a_caller_of_a_tenant_is_never_taken_for_another_one() -> None:
    callers = [
        Principal("bob"), Principal("acme/bob"), Principal("bob", tenant="acme"), Principal("c", tenant="a/b"),
        Principal("b/c", tenant="a"), Principal('["acme","bob"]'),
    ]  # fmt: skip
    assert len({owner_of(one) for one in callers}) == len(callers)


# Data


@pytest.mark.browser
@pytest.mark.parametrize("path", ["/map", "/objects"])
def test_a_page_that_replaces_what_the_reading_uses_gives_no_data(play: Stage, path: str) -> None:
    with pytest.raises(MalformedResponse):
        play.act(step(A.NAVIGATE, value=path), step(A.EXTRACT, ".row", extract_schema={"b": ""}, fallbacks=False))


@pytest.mark.browser
def test_what_a_page_gives_is_cut_here_too_and_a_number_without_end_is_none(play: Stage) -> None:
    (one, _) = play.act(step(A.NAVIGATE, value="/cut"), step(A.EXTRACT, ".row", fallbacks=False))
    assert len(one) == extract.LONGEST_TEXT
    kinds = {name: {"selector": "b", "type": name} for name in ("number", "integer", "price")}
    said = play.act(step(A.NAVIGATE, value="/numbers"), step(A.EXTRACT, extract_schema=kinds, fallbacks=False))
    assert said == {"number": None, "integer": None, "price": None}


@pytest.mark.browser
def test_a_page_without_end_is_refused_and_not_swallowed(play: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(play.act(step(A.NAVIGATE, value="/heavy"), step(A.EXTRACT, ".row"))) == 300
    monkeypatch.setattr(extract, "MOST_TEXT", 100_000)
    with pytest.raises(MalformedResponse, match="narrower selector"):
        play.act(step(A.NAVIGATE, value="/heavy"), step(A.EXTRACT, ".row"))


@pytest.mark.browser
def test_a_page_that_hangs_ends_in_time_and_the_next_one_is_read(play: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MARGIN", 0.2)
    monkeypatch.setattr(snapshots, "_SECONDS", 0.2)
    with pytest.raises(CallTimeout):
        play.act(step(A.NAVIGATE, value="/hangs"), step(A.WAIT, value="0.2"), step(A.EXTRACT, "h1", timeout=0.2))
    assert play.act(step(A.NAVIGATE, value="/"), step(A.EXTRACT, "h1")) == ["here"]
    assert play.act(step(A.NAVIGATE, value="/"), step(A.EXTRACT, "h1")) == ["here"]
    end = time.monotonic() + 60  # the old one is closed in the background
    while len(play.ctx.page.context.pages) > 1 and time.monotonic() < end:
        play.page.wait_for_timeout(20)
    assert len(play.ctx.page.context.pages) == 1


# What callers put in


def test_a_star_of_the_caller_is_no_pattern_of_an_address() -> None:
    class Page:
        url = "https://shop.example/items/1"

    class Here:
        page = Page()
        values: ClassVar[dict[str, Any]] = {}

    def met(pattern: str, given: str) -> bool:
        filled = inject_condition(Condition(url=pattern), {"id": given})
        return asyncio.run(holds(Here(), None, filled))  # type: ignore[arg-type]

    assert met("/items/{id}", "1")
    assert met("*/items/{id}", "1")
    assert met("https://*/items/*", "")
    for star in ("*", "?", "[0-9]", "*1"):
        assert not met("/items/{id}", star)
        assert not met("*/items/{id}", star)


# Pace


def test_a_page_that_a_click_led_to_counts_for_the_pace() -> None:
    async def story() -> None:
        throttle, pace = Throttle(env=SeededEnv(), metrics=Metrics()), Pace(seconds=5.0, patience=1.0)
        throttle.note_page("https://shop.example", pace)
        with pytest.raises(RateLimited, match="asked us to wait"):
            await throttle.wait_for_turn("https://shop.example", pace)

    asyncio.run(story())


# The process itself

_VICTIM = """
import asyncio
from agent3.protocols.nlweb.browser.chromium import Chrome

async def main():
    chrome = Chrome()
    await chrome.start()
    context = await chrome.context("http://127.0.0.1:9")
    await context.new_page()
    print(*await chrome.list_processes(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.browser
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked at in /proc")
def test_a_killed_process_leaves_neither_browser_nor_profile(tmp_path: Path) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    with victim:
        assert victim.stdout is not None
        pids = [int(one) for one in victim.stdout.readline().split()]
        there = list(tmp_path.iterdir())
        victim.send_signal(signal.SIGKILL)
    assert pids
    assert there
    end = time.monotonic() + 60
    while (alive(pids) or any(tmp_path.iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    assert alive(pids) == []
    assert list(tmp_path.iterdir()) == []


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state != "Z" else []
    return found


def test_no_trace_is_made_of_an_action_that_logs_in_with_a_secret(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="a trace would contain"):
        asyncio.run(run_action(shop("http://127.0.0.1:9", login=True), "account", {}, trace=tmp_path / "trace.zip"))
    assert list(tmp_path.iterdir()) == []
