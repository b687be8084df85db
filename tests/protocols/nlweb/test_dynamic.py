"""Waiting, content that comes and moves, failures that are kept, and tries again, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3.definitions import ActionType
from agent3.errors import CallTimeout, Rejected, TargetError, Unavailable, ValidationError
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.visit.page_session import Tools
from tests.support.acting import PATIENT, Stage, stage, step
from tests.support.sites import Answer, Page

A = ActionType
pytestmark = pytest.mark.browser

LATE = """<!doctype html><title>Late</title><p id="state">loading</p><ul></ul><div id="veil">wait</div><script>
setTimeout(() => { state.textContent = 'Ready now'; veil.remove(); history.replaceState(0, '', '/late?done=1');
  for (const one of 'abc') document.querySelector('ul').innerHTML += `<li>${one}</li>`; }, 150);</script>"""
FEED = """<!doctype html><title>Feed</title><div id="list"></div><script>
let page = 0; const more = () => { if (page >= 4) return; page++;
  for (let i = 0; i < 10; i++) list.innerHTML += `<p class="row" style="height:150px">${page}-${i}</p>`; };
const near = () => scrollY + innerHeight > document.body.scrollHeight - 50;
more(); addEventListener('scroll', () => { if (near()) setTimeout(more, 30); });
</script>"""
ODDITIES = """<!doctype html><title>Oddities</title>
<iframe id="inner" src="/inner"></iframe><my-card></my-card><my-card></my-card>
<a id="open" href="/popup" target="_blank">open</a>
<button id="ask" onclick="document.title = confirm('Really delete?') ? 'deleted' : 'kept'">ask</button>
<button id="say" onclick="document.title = prompt('Your name?') ?? 'nobody'">say</button>
<script>customElements.define('my-card', class extends HTMLElement { connectedCallback() {
  this.attachShadow({mode: 'open'}).innerHTML = '<b class="name">Shadow</b><button class="in">in</button>';
  this.shadowRoot.querySelector('.in').onclick = () => document.title = 'shadow clicked'; } });</script>"""
BANNER = """<!doctype html><title>Banner</title><button id="go" onclick="document.title='gone'">Go</button>
<div id="cookie-box" role="dialog" style="position:fixed;inset:0;background:#fff">We use cookies.
<button onclick="window.chosen='accept'; this.parentElement.remove()">Accept all</button>
<button onclick="window.chosen='decline'; this.parentElement.remove()">Reject all</button></div>"""
PLAIN_OVERLAY = """<!doctype html><title>Over</title><button id="go">Go</button>
<div style="position:fixed;inset:0;background:#fff">Delete everything?
<button onclick="document.title='deleted'">OK</button></div>"""
FORM = """<!doctype html><title>Login</title><p>Hello there</p><input id="user"><input id="pass" type="password">
<input id="code">"""


class Flaky:
    """A page that fails some times before it answers."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, query: dict[str, str]) -> str | Answer:
        self.left -= 1
        return Answer("busy", 503) if self.left >= 0 else "<!doctype html><title>Up</title><h1>up</h1>"


flaky = Flaky()
PAGES: dict[str, Page] = {
    "/late": LATE,
    "/feed": FEED,
    "/odd": ODDITIES,
    "/inner": "<!doctype html><title>Inner</title><button id=deep onclick='this.textContent=`pressed`'>deep</button>",
    "/popup": "<!doctype html><title>Popup</title><h1>in the popup</h1>",
    "/banner": BANNER,
    "/overlay": PLAIN_OVERLAY,
    "/form": FORM,
    "/flaky": flaky,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "snapshots"


@pytest.fixture(scope="module")
def play(folder: Path) -> Iterator[Stage]:
    tools = Tools(snapshots=Snapshots(folder, keep=3), secrets=lambda name: f"s3cret-{name}")
    with stage(PAGES, tools, PATIENT) as made:
        yield made


# Waiting


@pytest.mark.requirement("RF-013-49")
@pytest.mark.parametrize(
    "condition",
    [
        {"text": "ready NOW"},
        {"absent": "#veil"},
        {"hidden": "#veil", "url": "done=1"},
        {"url": "*/late?done=*"},
        {"count": "li", "at_least": 3},
        {"any": [{"text": "never"}, {"present": "li:nth-child(3)"}]},
        {"not": {"visible": "#veil"}},
        {"visible": "li", "not": {"text": "loading"}},
    ],
)
def test_a_condition_is_waited_for(play: Stage, condition: dict[str, object]) -> None:
    play.act(step(A.NAVIGATE, value="/late"), step(A.WAIT, until=condition))
    assert play.page.text_content("#state") == "Ready now"


@pytest.mark.requirement("RF-013-49")
def test_a_wait_has_an_end_and_says_what_did_not_come(play: Stage) -> None:
    steps = [step(A.NAVIGATE, value="/late"), step(A.WAIT, until={"count": "li", "at_least": 9}, timeout=0.3)]
    waiting = r"Step 2 of 'act' \(wait\): still waiting for count 'li', at_least 9 after 0\.3 s"
    with pytest.raises(CallTimeout, match=waiting):
        play.act(*steps)
    with pytest.raises(CallTimeout, match="not done within 0"):
        play.act(step(A.NAVIGATE, value="/late"), step(A.WAIT, "#never", timeout=0.2))
    play.act(step(A.NAVIGATE, value="/late"), step(A.WAIT, value="network"))


# Content that comes and moves


@pytest.mark.requirement("RF-013-50")
def test_an_endless_page_is_scrolled_to_its_end(play: Stage) -> None:
    rows = play.act(step(A.NAVIGATE, value="/feed"), step(A.SCROLL, value="end"), step(A.EXTRACT, ".row"))
    assert len(rows) == 40
    some = play.act(step(A.NAVIGATE, value="/feed"), step(A.SCROLL, value="end", times=1), step(A.EXTRACT, ".row"))
    assert len(some) == 20


@pytest.mark.requirement("RF-013-50")
def test_frames_and_shadows_are_reached(play: Stage) -> None:
    rows = play.act(
        step(A.NAVIGATE, value="/odd"),
        step(A.CLICK, "#deep", frame="#inner"),
        step(A.EXTRACT, "#deep", frame="#inner", save_as="deep"),
        step(A.CLICK, "my-card .in"),
        step(A.EXTRACT, "my-card", extract_schema={"name": ".name"}),
    )
    assert rows == [["pressed"], [{"name": "Shadow"}, {"name": "Shadow"}]]
    assert play.page.title() == "shadow clicked"
    with pytest.raises(TargetError, match="is not an iframe"):
        play.act(step(A.NAVIGATE, value="/odd"), step(A.CLICK, "#deep", frame="#open"))


@pytest.mark.requirement("RF-013-50")
def test_a_popup_is_followed_where_a_step_says_so(play: Stage) -> None:
    there = step(A.NAVIGATE, value="/odd")
    heading = step(A.EXTRACT, "h1")
    inside = play.act(there, step(A.CLICK, "#open", popup=True), heading, step(A.CLOSE), step(A.EXTRACT, "#open"))
    assert inside == [["in the popup"], ["open"]]
    with pytest.raises(CallTimeout, match="A popup has opened"):
        play.act(there, step(A.CLICK, "#open"), step(A.WAIT, "h1", timeout=2.0))
    with pytest.raises(TargetError, match="no popup to close"):
        play.act(there, step(A.CLOSE))
    assert len(play.page.context.pages) == 1


@pytest.mark.requirement("RF-013-50")
def test_a_question_that_no_step_answers_is_dismissed_and_is_not_done(play: Stage) -> None:
    there, ask = step(A.NAVIGATE, value="/odd"), step(A.CLICK, "#ask")
    with pytest.raises(Rejected, match="the page asked “Really delete\\?”, and was answered with no"):
        play.act(there, ask)
    assert play.page.title() == "kept"
    assert list(play.ctx.dialogs) == ["Really delete?"]
    play.act(there, step(A.DIALOG, value="dismiss"), ask)
    assert play.page.title() == "kept"
    play.act(there, step(A.DIALOG, value="accept"), ask)
    assert play.page.title() == "deleted"
    play.act(there, step(A.DIALOG, value="{name}"), step(A.CLICK, "#say"), name="Ada")
    assert play.page.title() == "Ada"


@pytest.mark.requirement("RF-013-50")
def test_a_consent_banner_is_declined_and_no_other_box_is_touched(play: Stage) -> None:
    play.act(step(A.NAVIGATE, value="/banner"), step(A.CLICK, "#go"))
    assert play.page.title() == "gone"
    assert play.page.evaluate("window.chosen") == "decline"
    with pytest.raises(CallTimeout):
        play.act(step(A.NAVIGATE, value="/overlay"), step(A.CLICK, "#go", timeout=0.8))
    assert play.page.title() == "Over"


# What is kept of a failure


@pytest.mark.requirement("RF-013-48")
def test_a_failure_keeps_the_page_without_its_secrets(play: Stage, folder: Path) -> None:
    steps = [
        step(A.NAVIGATE, value="/form"),
        step(A.TYPE, "#pass", "hunter22"),
        step(A.TYPE, "#code", "{secret:code}"),
        step(A.CLICK, "#nowhere", timeout=0.2),
    ]
    with pytest.raises(CallTimeout) as caught:
        play.act(*steps)
    kept = folder / caught.value.data["snapshot"]
    assert sorted(file.name for file in kept.iterdir()) == ["about.json", "outline.yaml", "page.html", "screenshot.png"]
    assert (kept / "screenshot.png").read_bytes().startswith(b"\x89PNG")
    assert "Hello there" in (kept / "outline.yaml").read_text()
    assert "Hello there" in (kept / "page.html").read_text()
    about = (kept / "about.json").read_text()
    assert "1 of 'act' (navigate)" in about
    assert '"outcome": "element_missing"' in about
    for file in kept.iterdir():
        assert b"hunter22" not in file.read_bytes()
        assert b"s3cret-code" not in file.read_bytes()
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.requirement("RF-013-48")
def test_a_single_step_keeps_its_failure_too(play: Stage) -> None:
    play.executor._execute_single_action(step(A.NAVIGATE, value="/form"))
    inner = step(A.CLICK, "#gone", timeout=0.1)
    for single in (inner, step(A.IF, when={"present": "#user"}, steps=[inner])):
        with pytest.raises(CallTimeout) as caught:
            play.executor._execute_single_action(single)
        assert play.executor.snapshot is not None
        assert play.executor.snapshot.name == caught.value.data["snapshot"]


@pytest.mark.requirement("RF-013-48")
def test_only_the_newest_failures_are_kept_and_a_trace_if_asked_for(play: Stage, folder: Path) -> None:
    snapshots = play.ctx.snapshots
    assert snapshots is not None
    snapshots._trace = True
    play.ctx.used_secrets.clear()  # of a page that knew a secret no trace is kept
    play.ctx.passwords.clear()
    try:
        for _ in range(4):
            with pytest.raises(CallTimeout):
                play.act(step(A.NAVIGATE, value="/form"), step(A.CLICK, "#nowhere", timeout=0.05))
        assert snapshots.last is not None
        assert snapshots.last.trace.startswith(b"PK")
        assert (folder / snapshots.last.name / "trace.zip").exists()
    finally:
        snapshots._trace = False
    assert len(list(folder.iterdir())) == 3


# Tries again


@pytest.mark.requirement("RF-013-58")
def test_a_navigation_is_tried_again_and_not_for_ever(play: Stage) -> None:
    flaky.left = 2
    assert play.act(step(A.NAVIGATE, value="/flaky"), step(A.EXTRACT, "h1")) == ["up"]
    flaky.left = 9
    before = len(play.sent("/flaky"))
    with pytest.raises(Unavailable, match="status 503"):
        play.act(step(A.NAVIGATE, value="/flaky"))
    assert len(play.sent("/flaky")) - before == 3
    flaky.left = 1
    with pytest.raises(Unavailable):
        play.act(step(A.NAVIGATE, value="/flaky", retries=0))
    assert flaky.left == 0


def test_a_secret_that_nobody_gave_is_named(play: Stage) -> None:
    given, play.ctx.secrets = play.ctx.secrets, None
    try:
        with pytest.raises(ValidationError, match="needs the secret 'code'"):
            play.act(step(A.NAVIGATE, value="/form"), step(A.TYPE, "#code", "{secret:code}"))
    finally:
        play.ctx.secrets = given
