"""What was given in confidence stays out of traces, pictures and the clipboard; what was done is told as done."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from agent3 import bridge
from agent3.definitions import ActionType, NLWebAction
from agent3.errors import Agent3Error, CallTimeout, ValidationError
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.authoring.workbench import _Traced
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.sdk import well_formed
from agent3.protocols.nlweb.healing import ElementStore, Healer
from agent3.protocols.nlweb.steps import snapshots
from agent3.protocols.nlweb.steps.locator import SelectorFinder
from agent3.protocols.nlweb.steps.parameters import inject
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.visit import page_session as session
from agent3.protocols.nlweb.visit.page_session import Timeouts, Tools
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.visits import MakeFinder, Visits
from agent3.storage import open_database
from tests.support.acting import Stage, stage, step
from tests.support.sites import Page, Site
from tests.support.visits import shop

A = ActionType
PASSWORD = "hunter2-and-more"
SECRETS = {"one": "AAAA-1111-AAAA", "two": "BBBB-2222-BBBB"}
PAGES: dict[str, Page] = {
    "/": "<!doctype html><title>Plain</title><h1>here</h1>",
    "/login": """<!doctype html><title>Log in</title><form action="/in"><label>User <input name="user"></label>
<label>Password <input type="password" id="p" name="p"></label><input id="code" autocomplete="one-time-code">
<button id="go">Go</button></form>""",
    "/in": "<!doctype html><title>In</title><h1>welcome</h1>",
    "/hangs": "<!doctype html><title>Hangs</title><h1>h</h1><script>setTimeout(() => { for (;;) {} }, 50)</script>",
    "/echo": """<!doctype html><title>Echo</title><body style="font: 40px monospace">
<input id="q" style="font: 40px monospace"><p id="e"></p><script>q.oninput = () => e.textContent = q.value</script>""",
    "/half": "<!doctype html><title>Half</title><h1></h1><script>document.querySelector('h1').textContent = 'a\\ud83c';"
    "alert('b\\ud83c')</script>",
    "/pay": f"<!doctype html><form action='/paid'><button id='pay'>Pay now {'x' * 111}🎉 and more</button></form>",
    "/paid": "<!doctype html><h1>paid</h1><script>localStorage.setItem('last', 'party 🎉'.slice(0, 7))</script>",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Stage]:
    with stage(PAGES, Tools(secrets=SECRETS.__getitem__, snapshots=Snapshots(trace=True))) as made:
        yield made


@pytest.fixture
def traced(browser: Stage) -> Stage:
    """A page on which nothing was said in confidence yet."""
    browser.ctx.passwords.clear()
    browser.ctx.used_secrets.clear()
    return browser


# Traces


def held(play: Stage) -> list[str]:
    """Where in the trace of the last failure the password stands; the trace itself if there is none."""
    kept = play.executor.snapshot
    assert kept is not None
    assert PASSWORD not in f"{kept.html}{kept.outline}{kept.url}{kept.error}{kept.steps}"
    if not kept.trace:
        return ["no trace"]
    with zipfile.ZipFile(BytesIO(kept.trace)) as inside:
        return [name for name in inside.namelist() if PASSWORD.encode() in inside.read(name)]


@pytest.mark.browser
def test_a_trace_is_not_kept_where_a_password_was_typed_before_though_its_field_is_gone(traced: Stage) -> None:
    gone = step(A.CLICK, "#nowhere", timeout=0.2)
    with pytest.raises(Agent3Error):
        traced.act(step(A.NAVIGATE, value="/login"), gone)
    assert held(traced) == []  # a trace, since nothing was typed
    fills = [
        step(A.TYPE, "#p", "{password}"),
        step(A.FILL, "form", fields={"Password": "{password}"}),
        step(A.TYPE, "#code", "{password}"),
    ]
    for fill in fills:
        traced.ctx.passwords.clear()
        with pytest.raises(Agent3Error):
            traced.act(step(A.NAVIGATE, value="/login"), fill, step(A.CLICK, "#go"), gone, password=PASSWORD)
        assert held(traced) == ["no trace"], fill


@pytest.mark.browser
def test_a_trace_is_not_kept_where_the_page_cannot_be_asked(traced: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MARGIN", 0.2)
    monkeypatch.setattr(snapshots, "_SECONDS", 0.2)
    with pytest.raises(CallTimeout):
        traced.act(step(A.NAVIGATE, value="/hangs"), step(A.WAIT, value="0.2"), step(A.EXTRACT, "h1", timeout=0.2))
    assert held(traced) == ["no trace"]


@pytest.mark.browser
def test_a_trace_that_was_asked_for_is_not_written_either_and_the_result_is_given(
    traced: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, traced.ctx.snapshots = traced.ctx.snapshots, _Traced(tmp_path / "trace.zip")
    start, read = step(A.NAVIGATE, value="/login"), [step(A.CLICK, "#go"), step(A.EXTRACT, "h1", timeout=2)]
    try:
        assert traced.act(start, step(A.TYPE, "#p", PASSWORD), *read) == ["welcome"]
        assert not (tmp_path / "trace.zip").exists()
        assert "no trace was written" in caplog.text
        traced.ctx.passwords.clear()
        assert traced.act(start, *read) == ["welcome"]
        assert (tmp_path / "trace.zip").exists()
    finally:
        traced.ctx.snapshots = kept


# Pictures


@pytest.mark.browser
def test_a_picture_shows_no_secret_neither_in_its_field_nor_where_the_page_repeats_it(traced: Stage) -> None:
    def picture(value: str, **given: str) -> Any:
        return traced.act(step(A.NAVIGATE, value="/echo"), step(A.TYPE, "#q", value), step(A.SCREENSHOT), **given)

    assert picture("{a}", a=SECRETS["one"]) != picture("{a}", a=SECRETS["two"])  # what is no secret is seen
    assert picture("{secret:one}") == picture("{secret:two}")


# The clipboard


@pytest.mark.parametrize(
    "key",
    ["Control+c", "Control+V", "Meta+x", "ControlOrMeta+v", "Control+Shift+V", "ControlRight+KeyC", "Shift+Insert",
     "Control+Insert", "Control+a+v", "Shift+Delete", "{held}+v"],
)  # fmt: skip
def test_keys_of_the_clipboard_are_refused_before_the_first_step(key: str) -> None:
    pressing = NLWebAction(action_type=A.PRESS, selector="#q", value=key)
    with pytest.raises(ValidationError, match="clipboard"):
        inject(pressing, {"held": "Control"})


@pytest.mark.parametrize("key", ["c", "v", "Shift+v", "Control+a", "Enter", "Delete", "Insert", "Control+Enter", "+"])
def test_other_keys_are_pressed(key: str) -> None:
    assert inject(NLWebAction(action_type=A.PRESS, value=key), {}).value == key


@pytest.mark.browser
def test_a_step_alone_does_not_paste_either(traced: Stage) -> None:
    with pytest.raises(ValidationError, match="clipboard"):
        traced.executor._execute_single_action(step(A.PRESS, value="Control+v"))


# Half characters, and what comes after the last step


def test_half_a_character_becomes_the_sign_for_one_that_is_unknown() -> None:
    assert well_formed({"a\ud83c": ["b\udf89", 1, None, "🎉"]}) == {"a\ufffd": ["b\ufffd", 1, None, "🎉"]}
    whole = {"a": ["ü", "🎉"]}
    assert well_formed(whole) is whole


@pytest.mark.browser
def test_half_a_character_on_a_page_is_data_like_any_other(traced: Stage) -> None:
    assert traced.act(step(A.NAVIGATE, value="/half"), step(A.EXTRACT, "h1")) == ["a\ufffd"]
    assert list(traced.ctx.dialogs) == ["b\ufffd"]


class Forgetful(SelectorFinder):
    """Fails when all is done."""

    async def end(self, *, ok: bool) -> None:
        raise RuntimeError("no room for what was learnt")


class Full(Sessions):
    """Keeps nothing, and says so as no error of ours."""

    async def save(self, principal: str, scope: str, state: Mapping[str, Any]) -> None:
        raise UnicodeError("no room for sessions")


@pytest.mark.browser
def test_what_was_paid_is_told_as_paid_whatever_cannot_be_remembered(caplog: pytest.LogCaptureFixture) -> None:
    async def keys() -> list[bytes]:
        return [b"0123456789abcdef"]

    async def paid(site: Site) -> None:
        database = await open_database(":memory:")
        pool = Pool(1, metrics=Metrics())
        interface = shop(site.url)
        interface.actions["pay"] = [step(A.NAVIGATE, value="/pay"), step(A.CLICK, "#pay"), step(A.EXTRACT, "h1")]
        store = ElementStore(database)
        timeouts = Timeouts(step=10.0, extraction=10.0)
        makings: list[tuple[str, Sessions, MakeFinder]] = [
            ("ann", Sessions(database, keys), lambda _: Healer(interface, store)),
            ("bob", Full(database, keys), lambda _: Forgetful()),
        ]
        for who, sessions, finder in makings:
            visits = Visits(pool, sessions=sessions, finder=finder, timeouts=timeouts, metrics=Metrics())
            assert await visits.run(interface, "pay", {}, principal=who) == ["paid"]
        assert [one.print.name[-1] for one in await store.all() if one.print] == ["\ufffd"]
        rows = await database.all("SELECT principal FROM web_sessions")
        assert [one["principal"] for one in rows] == ["ann"]
        await pool.aclose()
        await database.aclose()

    with Site(PAGES) as site:
        bridge.run(paid(site), timeout=60)
        assert len([path for _, path in site.requests if path.startswith("/paid")]) == 2
    assert "no room for what was learnt" in caplog.text
    assert "no room for sessions" in caplog.text
