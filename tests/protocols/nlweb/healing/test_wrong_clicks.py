"""What healing must never do, in a real Chromium: buy another row, follow a decoy, press what means something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent3 import bridge
from agent3.definitions import ActionType
from agent3.errors import ElementMissing
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.healing import Healer, MemoryStore, Policy
from agent3.protocols.nlweb.healing.review import Heals
from tests.support.acting import PATIENT, Stage, stage, step

A = ActionType
pytestmark = [pytest.mark.browser, pytest.mark.requirement("RF-013-54")]

OPEN = (step(A.NAVIGATE, value="/"), step(A.WAIT, value="load"))
"""Only of a page that has come in wholly can it be said that an element is not there."""
QUICK = 0.8
"""Seconds for a click that is refused; one that is done has all the time it needs."""
PATIENCE = (QUICK, 5.0, 30.0)
"""Seconds for a click whose refusal must say something: a slow machine may not come to see why within the first."""
SAYS = "document.title=this.dataset.what"


def button(what: str, says: str, more: str = "") -> str:
    return f"<button {more} data-what='{what}' onclick='{SAYS}'>{says}</button>"


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage({"/": ""}, timeouts=PATIENT) as made:
        yield made


class Shop:
    """A page that changes under one action, whose clicks are seen in the title."""

    def __init__(self, play: Stage, consequential: bool):
        hints = {"act": {"hints": {"consequential": consequential}}}
        interface = play.executor.interface.model_validate(
            {**play.executor.interface.model_dump(), "info": hints, "actions": {"act": []}}
        )
        self._play = play
        self.store = MemoryStore()
        self.healer = Healer(interface, self.store, policy=Policy(grace=60), metrics=Metrics())
        play.ctx.finder = self.healer

    def click(self, html: str, selector: str, /, seconds: float = 30.0, **parameters: Any) -> str:
        """What was clicked on that page."""
        self._play.site.pages["/"] = f"<!doctype html><title>nothing</title><main>{html}</main>"
        self._play.act(*OPEN, step(A.CLICK, selector, timeout=seconds), **parameters)
        return str(self._play.page.title())

    def refuses(self, html: str, selector: str, /, saying: str = "", **parameters: Any) -> ElementMissing:
        """The error of a click that was not done."""
        said = ""
        for seconds in PATIENCE:
            with pytest.raises(ElementMissing) as caught:
                self.click(html, selector, seconds, **parameters)
            assert self._play.page.title() == "nothing"
            if saying in (said := str(caught.value)):
                return caught.value
        raise AssertionError(f"it was refused without {saying!r}: {said}")

    def accept(self, *names: str) -> None:
        bridge.run(Heals(self.store).accept(names, "ann"))


@pytest.fixture
def shop(play: Stage) -> Shop:
    return Shop(play, consequential=False)


@pytest.fixture
def bank(play: Stage) -> Shop:
    return Shop(play, consequential=True)


def table(*names: str) -> str:
    rows = "".join(f"<tr><td>{name}</td><td>9.00 EUR</td><td>{button(name, 'Add to cart')}</td></tr>" for name in names)
    return f"<h2>Our teas</h2><table>{rows}</table>"


def cards(*names: str) -> str:
    made = "".join(
        f"<div class=tile><h3>{name}</h3><p>In stock</p>{button(name, 'Add to cart')}</div>" for name in names
    )
    return f"<h2>Our teas</h2><p>You looked for <b>Alpha tea</b></p><div>{made}</div>"


ROW = 'tr:has-text("{product}") button'


@pytest.mark.parametrize("left", [["Beta tea"], ["Beta tea", "Gamma tea"], ["Alpha tea de luxe"], []])
@pytest.mark.parametrize("drawn", [table, cards])
def test_a_row_that_is_gone_is_not_bought_by_another_row(shop: Shop, drawn: Any, left: list[str]) -> None:
    selector = 'tr:has(td:text-is("{product}")) button'
    assert shop.click(table("Alpha tea", "Beta tea"), selector, product="Alpha tea") == "Alpha tea"
    refusal = shop.refuses(drawn(*left), selector, product="Alpha tea")
    assert any(text in str(refusal) for text in ("next to what was asked for", "no other", "was not found on the page"))


def test_the_row_that_was_asked_for_is_found_in_its_new_shape_also_another_one_than_before(shop: Shop) -> None:
    assert shop.click(table("Alpha tea", "Beta tea"), ROW, product="Alpha tea") == "Alpha tea"
    assert shop.click(cards("Gamma tea", "Beta tea"), ROW, product="Beta tea") == "Beta tea"
    assert shop.click(cards("Gamma tea", "Beta tea"), ROW, product="Gamma tea") == "Gamma tea"
    assert [use.heal.selector for use in shop.healer.uses] == ['role=button[name="Add to cart"] beside {product}']


def test_what_a_caller_asked_for_is_not_remembered(shop: Shop) -> None:
    link = (
        "<p>For members</p><ul><li>{one} <a title='{one}' href='#{one}' data-what=x onclick='"
        + SAYS
        + "'>{one}</a></ul>"
    )
    shop.click(link.replace("{one}", "Secretive tea"), 'a:has-text("{product}")', product="Secretive tea")
    everything = repr(bridge.run(shop.store.all()))
    assert "{product}" in everything
    assert "ecretive" not in everything


GOOD = f"<form onsubmit='return false'><h2>Your cart</h2>{button('good', 'Place order', 'NAME')}</form>"
DECOY = GOOD.replace("'good'", "'decoy'").replace("NAME", "")


def test_a_promoted_heal_does_not_follow_a_decoy(shop: Shop) -> None:
    shop.click(GOOD.replace("NAME", "id=order"), "#order")
    for _ in range(3):
        assert shop.click(GOOD.replace("NAME", ""), "#order") == "good"
    shop.refuses(DECOY + GOOD.replace("NAME", ""), "#order", saying="several elements are similar")


def test_a_heal_that_a_person_accepted_does_not_follow_a_decoy(bank: Shop) -> None:
    bank.click(GOOD.replace("NAME", "id=order"), "#order")
    refusal = bank.refuses(GOOD.replace("NAME", ""), "#order")
    bank.accept(*(heal["id"] for heal in refusal.data["heals"]))
    assert bank.click(GOOD.replace("NAME", ""), "#order") == "good"
    bank.refuses(DECOY + GOOD.replace("NAME", ""), "#order")


CANCEL = f"<a id=order href='#x' data-what=decoy onclick='{SAYS}'>Cancel all orders</a>"
DELETE = f"<h2>Danger zone</h2><button id=order data-what=decoy onclick='{SAYS}'>Delete account</button>"


@pytest.mark.parametrize("consequential", [False, True])
@pytest.mark.parametrize("now", [CANCEL, DELETE])
def test_a_selector_that_means_something_else_now_is_not_followed(play: Stage, consequential: bool, now: str) -> None:
    shop = Shop(play, consequential)
    shop.click(GOOD.replace("NAME", "id=order"), "#order")
    shop.refuses(now, "#order", saying="now matches a different element")


@pytest.mark.parametrize(
    ("consequential", "before", "now"),
    [
        (True, "Cancel order", "Pay order"),
        (False, "Show order", "Pay order"),
        (True, "Guardar pedido", "Publicar pedido"),
        (True, "", "Buy"),
    ],
)
def test_a_selector_that_still_fits_is_not_pressed_for_what_it_says_now(
    play: Stage, consequential: bool, before: str, now: str
) -> None:
    shop = Shop(play, consequential)
    shop.click(button("good", before, "id=act"), "#act")
    shop.refuses(button("bad", now, "id=act"), "#act", saying="now matches a different element")


def test_the_right_button_is_asked_for_when_its_id_went_to_another_role(bank: Shop) -> None:
    bank.click(GOOD.replace("NAME", "id=order"), "#order")
    refusal = bank.refuses(CANCEL + GOOD.replace("NAME", ""), "#order")
    bank.accept(*(heal["id"] for heal in refusal.data["heals"]))
    assert bank.click(CANCEL + GOOD.replace("NAME", ""), "#order") == "good"


def test_a_price_in_a_name_or_a_button_that_was_a_link_is_still_the_same(bank: Shop) -> None:
    pay = f"<button id=pay data-what=paid onclick='{SAYS}'>Pay 48.00 EUR</button>"
    assert bank.click(pay, "#pay") == "paid"
    assert bank.click(pay.replace("48.00", "52.50"), "#pay") == "paid"
    assert bank.click(pay.replace("button", "a").replace("id=", "href='#x' id="), "#pay") == "paid"


def test_where_much_is_at_stake_another_name_is_asked_for_once_and_then_believed(bank: Shop) -> None:
    first = f"<a id=first href='#x' data-what=went onclick='{SAYS}'>Blue mug</a>"
    assert bank.click(first, "#first") == "went"
    refusal = bank.refuses(first.replace("Blue mug", "Oak table"), "#first")
    bank.accept(refusal.data["offers"][0]["id"])
    assert bank.click(first.replace("Blue mug", "Oak table"), "#first") == "went"
    assert bank.click(first.replace("Blue mug", "Tin soldier"), "#first") == "went"


def test_a_selector_that_one_action_uses_twice_may_mean_two_things(play: Stage, bank: Shop) -> None:
    play.site.pages["/"] = """<!doctype html><title>nothing</title><button id=next onclick="this.innerText === 'Go on'
        ? this.innerText = 'Pay' : document.title = 'paid'">Go on</button>"""
    steps = [*OPEN, step(A.CLICK, "#next"), step(A.CLICK, "#next")]
    for _ in range(2):
        play.act(*steps)
        assert play.page.title() == "paid"


def test_what_is_not_sure_enough_is_offered_to_a_person_and_serves_once_accepted(bank: Shop) -> None:
    form = "<form onsubmit='return false'><h2>Write to us</h2><label>Mail <input name=mail></label>{}</form>"
    bank.click(form.format(f"<button id=send data-what=sent onclick='{SAYS}'>Send message</button>"), "#send")
    new = form.format(f"<button data-what=sent onclick='{SAYS}'>Hand in</button>")
    refusal = bank.refuses(new, "#send")
    (offer,) = refusal.data["offers"]
    assert f"agent3 web heals accept ID: {offer['id']} (button 'Hand in')" in str(refusal)
    assert [candidate["id"] for candidate in refusal.data["candidates"]] == [offer["id"]]
    bank.accept(offer["id"])
    assert bank.click(new, "#send") == "sent"


def test_a_refusal_without_anything_to_offer_says_what_to_do(shop: Shop) -> None:
    shop.click(GOOD.replace("NAME", "id=order"), "#order")
    assert "correct the selector in the interface file" in str(shop.refuses("<p>Closed</p>", "#order"))


@pytest.mark.parametrize("consequential", [False, True])
def test_each_action_looks_anew_however_soon_it_comes(play: Stage, consequential: bool) -> None:
    shop = Shop(play, consequential)
    for _ in range(2):
        assert shop.click(button("order", "Order", "id=it"), "#it") == "order"
    link = f"<a id=it href='#' data-what=gone onclick='{SAYS}'>Delete</a>"
    play.page.evaluate(f"document.querySelector('#it').outerHTML = `{link}`")
    with pytest.raises(ElementMissing):
        play.act(step(A.CLICK, "#it", timeout=QUICK))
    assert play.page.title() == "order"


def test_a_step_by_itself_is_looked_at_again_on_another_document(play: Stage) -> None:
    shop = Shop(play, consequential=False)
    assert shop.click(button("order", "Order", "id=it"), "#it") == "order"
    single = play.executor._execute_single_action
    for _ in range(3):
        single(step(A.CLICK, "#it"))
    play.site.pages["/"] = (
        f"<!doctype html><title>nothing</title><a id=it href='#' data-what=x onclick='{SAYS}'>Delete</a>"
    )
    single(step(A.NAVIGATE, value="/"))
    with pytest.raises(ElementMissing):
        single(step(A.CLICK, "#it", timeout=QUICK))
    assert play.page.title() == "nothing"
