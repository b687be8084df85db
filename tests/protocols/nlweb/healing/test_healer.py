"""Healing on pages that change, in a real Chromium: what is found again, what is left alone, and what is remembered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent3 import bridge
from agent3.definitions import ActionType
from agent3.errors import CallTimeout, StorageError
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.healing import ElementKey, ElementRecord, Healer, MemoryStore, Policy, records
from agent3.protocols.nlweb.healing import healer as healing
from agent3.protocols.nlweb.healing.lookahead import Lookahead
from tests.support.acting import PATIENT, Stage, stage, step

A = ActionType
pytestmark = pytest.mark.browser

OLD = """<!doctype html><title>Shop</title><main><h1>Blue mug</h1><p>Stoneware of three hundred millilitres</p>
<form onsubmit="return false"><label for="count">Quantity</label><input id="count" name="count">
<button id="add" class="btn" onclick="document.title='added'">Add to cart</button></form></main>"""
NEW = """<!doctype html><title>Shop</title><div><h1>Blue mug</h1><section><p>Stoneware of three hundred millilitres</p>
<form onsubmit="return false"><div><button onclick="document.title='removed'">Remove from cart</button></div>
<span role="button" tabindex="0" onclick="document.title='added'">Add to basket</span>
<label>Qty <input name="count"></label></form></section></div>"""
REMOVED = """<!doctype html><title>Shop</title><main><h1>Blue mug</h1><p>Stoneware of three hundred millilitres</p>
<form onsubmit="return false"><button class="btn" onclick="document.title='wrong'">Get premium</button></form></main>
<footer><p>Letters about mugs</p><form onsubmit="return false"><input name="mail">
<button onclick="document.title='wrong'">Add to cart</button></form></footer>"""
SWAPPED = OLD.replace('<button id="add"', '<a id="add" href="#top">Up</a><button id="other"')
SHADOW = """<!doctype html><title>Shop</title><my-box></my-box><script>
customElements.define('my-box', class extends HTMLElement { connectedCallback() {
this.attachShadow({mode: 'open'}).innerHTML = `<h2>Blue mug</h2><p>Stoneware of clay</p>
<button INNER>Add to cart</button>`;
this.shadowRoot.querySelector('button').onclick = () => document.title = 'added'; } });</script>"""
LIST = """<!doctype html><title>Shop</title><main><h1>Mugs</h1><p>Stoneware of three hundred millilitres</p>
<button id="more">Show more mugs</button><p hidden id="busy">Loading</p></main>"""
NEW_LIST = LIST.replace('id="more"', 'class="wide"').replace(' hidden id="busy"', "")
FRAME = "<!doctype html><title>Shop</title><iframe id='inner' src='/inside'></iframe>"
LATE = """<!doctype html><title>Shop</title><main></main><script>setTimeout(() => {
document.querySelector('main').innerHTML =
`<button id="add" onclick="document.title='added'">Quite another thing</button>`; }, 450);</script>"""


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage({"/": OLD}, timeouts=PATIENT) as made:
        yield made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def healer(play: Stage, store: MemoryStore) -> Healer:
    """A finder of the test's own, on the stage that all share."""
    made = Healer(play.executor.interface, store, policy=Policy(grace=150), metrics=Metrics())
    play.ctx.finder = made
    play.site.pages["/"] = OLD
    return made


OPEN = [step(A.NAVIGATE, value="/"), step(A.WAIT, value="load")]
"""Only of a page that has come in wholly can it be said that an element is not there."""
ADD = [*OPEN, step(A.CLICK, "#add")]
REFUSED = [*OPEN, step(A.CLICK, "#add", timeout=1.0)]
"""For a click that is not done; one that is done has all the time it needs."""


def known(store: MemoryStore, selector: str = "#add") -> ElementRecord:
    return bridge.run(store.get(ElementKey("test", "act", selector)))


@pytest.mark.requirement("RF-013-54")
def test_a_redesigned_element_is_found_again_and_the_heal_is_proposed(
    play: Stage, healer: Healer, store: MemoryStore
) -> None:
    steps = [*OPEN, step(A.TYPE, "#count", "3"), ADD[-1]]
    play.act(*steps)
    assert not healer.uses
    play.site.pages["/"] = NEW
    play.act(*steps)
    assert play.page.title() == "added"
    assert play.page.input_value("[name=count]") == "3"
    assert [heal["healed"] for heal in play.executor.healed] == [
        'input[name="count"]',
        'role=button[name="Add to basket"s]',
    ]
    assert [(heal.state, heal.wins) for heal in known(store).heals] == [("proposed", 1)]


@pytest.mark.requirement("RF-013-54")
def test_a_decoy_beside_a_removed_element_is_not_clicked(play: Stage, healer: Healer) -> None:
    play.act(*ADD)
    play.site.pages["/"] = REMOVED
    with pytest.raises(CallTimeout, match="no other element was used") as caught:
        play.act(*REFUSED)
    assert play.page.title() == "Shop"
    assert {candidate["name"] for candidate in caught.value.data["candidates"]} == {"Get premium", "Add to cart"}
    assert not healer.uses


def test_a_heal_is_promoted_after_three_actions_and_reverting_it_is_final(
    play: Stage, healer: Healer, store: MemoryStore
) -> None:
    play.act(*ADD)
    play.site.pages["/"] = NEW
    for _ in range(3):
        play.act(*ADD)
    stand_in = known(store).stand_in
    assert stand_in is not None
    play.act(*ADD)
    assert [use.heal for use in healer.uses] == [stand_in]
    bridge.run(store.change(ElementKey("test", "act", "#add"), records.revert(stand_in.id, 1.0, "ann")))
    with pytest.raises(CallTimeout, match="was reverted before"):
        play.act(*REFUSED)


def test_a_heal_with_which_actions_fail_is_taken_back(play: Stage, healer: Healer, store: MemoryStore) -> None:
    play.act(*ADD)
    play.site.pages["/"] = NEW
    for _ in range(2):
        with pytest.raises(CallTimeout):
            play.act(*ADD, step(A.WAIT, "#never", timeout=0.05))
    assert [heal.state for heal in known(store).heals] == ["reverted"]


def test_a_heal_that_has_led_to_the_end_is_not_taken_back_for_the_fault_of_another_step(
    play: Stage, healer: Healer, store: MemoryStore
) -> None:
    play.act(*ADD)
    play.site.pages["/"] = NEW
    play.act(*ADD)
    for _ in range(3):
        with pytest.raises(CallTimeout):
            play.act(*ADD, step(A.WAIT, "#never", timeout=0.05))
    assert [heal.state for heal in known(store).heals] == ["proposed"]
    play.act(*ADD)


def test_a_step_that_may_fail_is_not_healed(play: Stage, healer: Healer) -> None:
    play.act(*ADD)
    play.site.pages["/"] = NEW
    play.act(*OPEN, step(A.CLICK, "#add", optional=True))
    assert play.page.title() == "Shop"


def test_a_selector_that_now_means_another_role_is_not_followed(play: Stage, healer: Healer) -> None:
    play.act(*ADD)
    play.site.pages["/"] = SWAPPED
    play.act(*ADD)
    assert play.page.title() == "added"
    assert [use.heal.selector for use in healer.uses] == ["#other"]


def test_an_element_that_comes_late_is_waited_for(play: Stage, healer: Healer) -> None:
    play.act(*ADD)
    play.site.pages["/"] = LATE
    play.act(OPEN[0], ADD[-1])
    assert play.page.title() == "added"
    assert not healer.uses


def test_elements_in_shadow_roots_and_frames_are_healed_where_they_are(play: Stage, healer: Healer) -> None:
    play.site.pages["/"] = SHADOW.replace("INNER", 'id="add"')
    play.act(*ADD)
    play.site.pages["/"] = SHADOW.replace("INNER", 'class="new"')
    play.act(*ADD)
    assert play.page.title() == "added"
    inside = [*OPEN, step(A.TYPE, "#count", "7", frame="#inner")]
    play.site.pages |= {"/": FRAME, "/inside": OLD}
    play.act(*inside)
    play.site.pages["/inside"] = NEW
    play.act(*inside)
    assert [use.heal.selector for use in healer.uses] == ['input[name="count"]']


def test_what_was_typed_is_never_remembered(play: Stage, healer: Healer, store: MemoryStore) -> None:
    play.act(*OPEN, step(A.TYPE, "#count", "4711-secret"), step(A.PRESS, "#count", "Tab"), ADD[-1])
    everything = repr(bridge.run(store.all()))
    assert "Quantity" in everything
    assert "4711" not in everything


def test_a_step_on_its_own_is_remembered_and_healed_too(play: Stage, healer: Healer) -> None:
    play.page.goto(play.site.url)
    play.executor._execute_single_action(ADD[-1])
    play.site.pages["/"] = NEW
    play.page.goto(play.site.url)
    play.executor._execute_single_action(ADD[-1])
    assert play.page.title() == "added"


class Broken(MemoryStore):
    """A book whose pages are stuck."""

    async def get(self, where: ElementKey) -> ElementRecord:
        raise StorageError("stuck")

    async def change(self, where: ElementKey, change: Any) -> ElementRecord:
        raise StorageError("stuck")


def test_a_book_that_fails_stops_no_action(play: Stage, healer: Healer) -> None:
    healer.store = Broken()
    play.act(*ADD)
    assert play.page.title() == "added"


def test_heals_are_counted(play: Stage, store: MemoryStore) -> None:
    metrics = Metrics()
    play.ctx.finder = Healer(play.executor.interface, store, policy=Policy(grace=100, promote_after=1), metrics=metrics)
    play.site.pages["/"] = OLD
    play.act(*ADD)
    play.site.pages["/"] = NEW
    play.act(*ADD)
    shown = {sample.labels["result"]: sample.value for sample in next(iter(metrics.nlweb_heals.collect())).samples}
    assert {key: shown[key] for key in ("used", "proposed", "promoted")} == {"used": 1, "proposed": 1, "promoted": 1}


# Waiting, and conditions


WAIT = [*OPEN, step(A.WAIT, "#more", timeout=1.0)]


@pytest.mark.requirement("RF-013-54")
def test_what_is_waited_for_is_healed_when_the_time_is_nearly_over(
    play: Stage, healer: Healer, store: MemoryStore
) -> None:
    play.site.pages["/"] = LIST
    play.act(*WAIT)
    assert known(store, "#more").print is not None
    play.site.pages["/"] = NEW_LIST
    began = time.monotonic()
    play.act(*WAIT, step(A.NAVIGATE, value="/", wait_for="#more", timeout=2.0))
    assert time.monotonic() - began >= 0.75
    assert {heal["selector"]: heal["healed"] for heal in healer.describe_heals()} == {
        "#more": 'role=button[name="Show more mugs"s]'
    }
    assert [(heal.state, heal.wins) for heal in known(store, "#more").heals] == [("proposed", 1)]


def test_a_wait_for_what_is_gone_ends_in_time_and_says_why(play: Stage, healer: Healer) -> None:
    play.site.pages["/"] = LIST
    play.act(*WAIT)
    play.site.pages["/"] = LIST.replace('id="more">Show more mugs', ">Print")
    with pytest.raises(CallTimeout, match="no other element was used"):
        play.act(*WAIT)
    assert not healer.describe_heals()


def test_a_wait_that_may_fail_and_a_wait_for_absence_are_not_healed(play: Stage, healer: Healer) -> None:
    play.site.pages["/"] = LIST.replace(" hidden", "")
    play.act(*OPEN, step(A.WAIT, "#busy"), WAIT[-1])
    play.site.pages["/"] = NEW_LIST
    play.act(*OPEN, step(A.WAIT, until={"absent": "#busy"}), step(A.WAIT, "#more", optional=True, timeout=0.3))
    assert not healer.describe_heals()


def test_a_condition_goes_by_a_heal_that_was_promoted_and_searches_for_none(
    play: Stage, healer: Healer, store: MemoryStore
) -> None:
    asked = [*OPEN, step(A.EXTRACT, "h1", when={"visible": "#add"})]
    play.act(*ADD)
    play.site.pages["/"] = NEW
    assert play.act(*asked) is None
    for _ in range(3):
        play.act(*ADD)
    assert play.act(*asked) == ["Blue mug"]
    play.site.pages["/"] = REMOVED
    assert play.act(*asked) is None


# Looking ahead


def test_steps_on_one_document_are_looked_at_together(
    play: Stage, healer: Healer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [*OPEN, step(A.TYPE, "#count", "3"), ADD[-1]]
    play.act(*steps)
    singly: list[str] = []
    read = healing._read_print

    async def counted(page: Any, spoken: Any, *rest: Any) -> Any:
        singly.append(spoken.selector)
        return await read(page, spoken, *rest)

    monkeypatch.setattr(healing, "_read_print", counted)
    play.act(*steps)
    assert play.page.title() == "added"
    assert singly == []
    play.site.pages["/"] = NEW
    play.act(*steps)
    assert [heal["selector"] for heal in healer.describe_heals()] == ["#count", "#add"]


def test_what_was_seen_ahead_is_not_believed_of_another_document_or_after_a_click(play: Stage) -> None:
    play.site.pages |= {"/": OLD, "/swapped": SWAPPED}
    typing, clicking = step(A.TYPE, "#count", "3"), step(A.CLICK, "#add")
    page = play.ctx.page

    async def story() -> list[str]:
        ahead, roles = Lookahead(), []
        ahead.begin([typing, clicking])
        for after in ("", "/swapped", "click"):
            await page.goto(play.site.url)
            assert (await ahead.look(page, typing)) is not None
            if after == "/swapped":
                await page.goto(play.site.url + after)
            elif after == "click":
                ahead.note_step(clicking)
            seen = await ahead.look(page, clicking)
            roles.append(seen.role if seen else "nothing")
        return roles

    assert bridge.run(story()) == ["button", "nothing", "nothing"]
