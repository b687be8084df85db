"""Banners that ask for cookies, as real pages show them: what is pressed as the interface says, and what never."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

import pytest

from agent3.definitions import ActionHints, ActionType, NLWebActionInfo, NLWebInterface
from agent3.errors import CallTimeout
from agent3.observe.metrics import METRICS
from tests.support.acting import PATIENT, Stage, stage, step
from tests.support.sites import Page

pytestmark = [pytest.mark.browser, pytest.mark.requirement("RF-013-50")]

A = ActionType

_HEAD = """<!doctype html><title>Shop</title><button id=go onclick="document.title='done'">Go</button><script>
const chosen = [];
const press = (button, what) => { chosen.push(what); button.closest('.over').remove(); };</script>"""
_OVER = 'class=over style="position:fixed;inset:0;background:#fff"'


def page(text: str, *buttons: str, more: str = "") -> str:
    made = "".join(f'<button onclick="press(this, this.innerText)">{caption}</button>' for caption in buttons)
    return f"{_HEAD}<div {_OVER}>{text} {made} {more}</div>"


_SHADOW = f"""{_HEAD}<consent-box id=cookie-consent {_OVER}></consent-box>
<script>const box = document.querySelector('consent-box'); box.attachShadow({{mode: 'open'}}).innerHTML =
'<p>We use cookies</p><button id=y>Accept all</button><button id=n>Reject all</button>';
for (const [id, what] of [['y', 'Accept all'], ['n', 'Reject all']])
  box.shadowRoot.getElementById(id).onclick = () => {{ chosen.push(what); box.remove(); }};</script>"""
_FRAME = f"""{_HEAD}<iframe class=over src=/frame style="position:fixed;inset:0;width:100%;height:100%"></iframe>
<script>addEventListener('message', event => {{ chosen.push(event.data);
document.querySelector('iframe').remove(); }});</script>"""
_INNER = """<!doctype html><div role=dialog>Cookies help us.
<button onclick="parent.postMessage('Accept', '*')">Accept</button>
<button onclick="parent.postMessage('Decline', '*')">Decline</button></div>"""

PAGES: dict[str, Page] = {
    "/both": page("We use cookies.", "Settings", "Accept all", "Reject all"),
    "/spanish": page("Usamos cookies propias.", "Configurar", "Aceptar todas", "Rechazar todas"),
    "/only-accept": page("We use cookies.", "Accept all", "Settings"),
    "/informs": page("This site uses cookies.", "Got it", more='<a href="/more">Learn more</a>'),
    "/order": page("Order 12 cookies for 9 euros?", "OK", "Cancel"),
    "/address": page("Cookies will be sent to:", "OK", more="<input id=street>"),
    "/aside": f'{_HEAD}<div class="over cookie-bar" style="position:fixed;bottom:0">Cookies? <button '
    'onclick="press(this, this.innerText)">Accept all</button></div>',
    "/clinic": page("Consent to the operation of 12 March", "Decline", "Sign"),
    "/bakery": page("We use cookies of our own baking: 24 for 48.00 EUR", "Accept"),
    "/baker": page("Our partners bake cookies. Yours will be sent to:", "Accept", "Decline", more="<select></select>"),
    "/cmp": page("We value your privacy", "Accept all", "Reject all").replace(
        "class=over", 'class=over id="didomi-host"'
    ),
    "/answer": f"""{_HEAD}<button id=ask onclick="document.querySelector('dialog').showModal()">Ask</button>
<dialog class=over>Our partners send cookies. <button onclick="press(this, 'Accept')">Accept</button>
<button onclick="press(this, 'Decline')">Decline</button></dialog>""",
    "/shadow": _SHADOW,
    "/framed": _FRAME,
    "/frame": _INNER,
}


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(PAGES, timeouts=PATIENT) as made:
        yield made


def went(play: Stage, path: str, consent: str, seconds: float = 30.0) -> tuple[bool, list[str]]:
    """Whether the button behind it was reached, and what was pressed on the way."""
    before: NLWebInterface = play.ctx.interface
    play.ctx.interface = before.model_copy(update={"consent": consent})
    try:
        play.act(step(A.NAVIGATE, value=path), step(A.CLICK, "#go", timeout=seconds))
    except CallTimeout:
        assert play.page.title() == "Shop"
    finally:
        play.ctx.interface = before
    return play.page.title() == "done", play.page.evaluate("chosen")


@pytest.mark.parametrize(
    ("path", "consent", "pressed"),
    [
        ("/both", "accept", ["Accept all"]),
        ("/both", "decline", ["Reject all"]),
        ("/spanish", "accept", ["Aceptar todas"]),
        ("/spanish", "decline", ["Rechazar todas"]),
        ("/only-accept", "accept", ["Accept all"]),
        ("/informs", "accept", ["Got it"]),
        ("/informs", "decline", ["Got it"]),
        ("/shadow", "accept", ["Accept all"]),
        ("/shadow", "decline", ["Reject all"]),
        ("/framed", "accept", ["Accept"]),
        ("/framed", "decline", ["Decline"]),
        ("/aside", "leave", []),  # it covers nothing, and stays
    ],
)
def test_a_banner_is_put_away_as_the_interface_says(play: Stage, path: str, consent: str, pressed: list[str]) -> None:
    assert went(play, path, consent) == (True, pressed)


@pytest.mark.parametrize(
    ("path", "consent"),
    [
        ("/both", "leave"),
        ("/informs", "leave"),
        ("/only-accept", "decline"),  # who declines never accepts instead
        ("/order", "accept"),
        ("/order", "decline"),
        ("/address", "decline"),
        ("/clinic", "decline"),  # consent alone is no word for cookies
        ("/bakery", "accept"),  # what has a price is no banner
        ("/baker", "decline"),  # nor what is to be filled in
    ],
)
def test_what_is_not_wished_or_is_no_banner_is_not_pressed(play: Stage, path: str, consent: str) -> None:
    assert went(play, path, consent, 0.9) == (False, [])


def test_a_dialog_that_one_of_our_own_steps_opened_is_not_answered(play: Stage) -> None:
    with pytest.raises(CallTimeout):
        play.act(step(A.NAVIGATE, value="/answer"), step(A.CLICK, "#ask"), step(A.CLICK, "#go", timeout=0.9))
    assert play.page.evaluate("chosen") == []


def test_a_dialog_is_not_answered_before_we_hear_that_our_step_is_done(
    play: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.steps.consent_banners._acted_on", Deaf())
    test_a_dialog_that_one_of_our_own_steps_opened_is_not_answered(play)


class Deaf(WeakSet[Any]):
    """Hears of no deed."""

    def add(self, item: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize(("path", "pressed"), [("/both", []), ("/informs", []), ("/cmp", ["Reject all"])])
def test_in_an_action_with_consequences_only_a_known_maker_of_banners_is_trusted(
    play: Stage, path: str, pressed: list[str]
) -> None:
    before: NLWebInterface = play.ctx.interface
    grave = {"act": NLWebActionInfo(hints=ActionHints(consequential=True))}
    play.ctx.interface = before.model_copy(update={"info": grave, "consent": "decline"})
    try:
        with nullcontext() if pressed else pytest.raises(CallTimeout):
            play.act(step(A.NAVIGATE, value=path), step(A.CLICK, "#go", timeout=30.0 if pressed else 0.9))
    finally:
        play.ctx.interface = before
    assert play.page.evaluate("chosen") == pressed


def pressed_so_far() -> float:
    samples = next(iter(METRICS.nlweb_banners.collect())).samples
    return sum(sample.value for sample in samples if sample.labels.get("consent") == "decline")


def test_what_was_pressed_is_counted_and_told(play: Stage) -> None:
    before = pressed_so_far()
    assert went(play, "/both", "decline") == (True, ["Reject all"])
    assert pressed_so_far() == before + 1
    (notice,) = play.ctx.notices
    assert notice.startswith("Pressed 'reject all' in a banner about cookies on http://")
    went(play, "/aside", "leave")
    assert play.ctx.notices == []
