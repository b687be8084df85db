"""Whether a press counts as done: only when the page shows it, and never where the page turned it down or asks back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agent3 import bridge
from agent3.definitions import ActionHints, ActionType, Condition, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import Agent3Error, NotOnPage, Rejected, TargetError, ValidationError
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.steps import verifying
from agent3.protocols.nlweb.steps.parameters import prepare
from agent3.protocols.nlweb.steps.run_context import RunContext
from tests.support.sites import Answer, Page, Site

pytestmark = pytest.mark.browser

FORM = "<!doctype html><form {how}><label>Mail <input name=mail></label><button>Send</button></form>"
ROWS = """<!doctype html><ul><li>Ficus <button onclick="{press}">Order</button></li>
<li>Wrong invoice <button>Order</button></li></ul><p id=said></p><div id=warn role=alert></div>
<div id=card onclick="said.textContent = 'Opened'">A card</div>"""


def rows(press: str) -> str:
    return ROWS.replace("{press}", press.replace('"', "'"))


def posted(query: dict[str, str]) -> str:
    mail = query.get("mail", "")
    if mail.startswith("new"):
        return f"<!doctype html><h1>Order A-1001</h1><p>We write to {mail}.</p>"
    said = "<p>Pick another one</p>" if mail.startswith("odd") else "<p class=error>Unknown address</p>"
    return said + FORM.format(how="method=post action=/posted")


PAGES: dict[str, Page] = {
    "/broke": FORM.format(how="method=post action=/pay"),
    "/pay": Answer("<!doctype html><p>Insufficient balance</p>", 402),
    "/form": FORM.format(how="method=post action=/posted"),
    "/posted": posted,
    "/needed": FORM.format(how="").replace("<input", "<input required type=email"),
    "/late": rows("setTimeout(() => said.textContent = 'Order number 7', 50)"),
    "/soldout": rows("said.textContent = 'Sorry, Ficus is sold out'"),
    "/alert": rows("warn.textContent = 'Choose a size'").replace("<ul>", "<input name=x value=Ficus><ul>"),
    "/asks": rows("if (confirm('Order Ficus?')) this.closest('li').remove()"),
    "/asks-more": rows("if (confirm('Order Ficus and delete 3 drafts?')) said.textContent = 'Done'"),
    "/nothing": rows(""),
    "/failing": rows("fetch('/broken', {method: 'POST'}).then(() => said.append('Hm'))"),
    "/dialog": rows("document.body.insertAdjacentHTML('beforeend', '<div role=dialog>For whom? <input></div>')"),
}


@pytest.fixture(scope="module")
def shop() -> Iterator[NLWebExecutor]:
    actions: dict[str, list[NLWebAction]] = {}
    for path in PAGES:
        opening = NLWebAction(action_type=ActionType.NAVIGATE, value=path)
        order = NLWebAction(
            action_type=ActionType.CLICK, selector='li:has-text("{name}") button:text("Order")', verify="change"
        )
        mail = NLWebAction(action_type=ActionType.TYPE, selector="[name=mail]", value="{name}")
        send = NLWebAction(action_type=ActionType.CLICK, selector="form button", verify="change")
        actions[path[1:]] = [opening, *([mail, send] if path in ("/form", "/needed") else [order])]
    card = NLWebAction(action_type=ActionType.CLICK, selector="#card", verify=Condition(text="Opened"))
    actions["card"] = [actions["nothing"][0], card]
    actions["absent"] = [actions["late"][0], actions["late"][1].model_copy(update={"timeout": 0.3})]
    unshown = Condition(text="Order {name}")
    actions["number"] = [actions["late"][0], actions["late"][1].model_copy(update={"verify": unshown})]
    info = {name: NLWebActionInfo(hints=ActionHints(consequential=True)) for name in actions}
    with Site(PAGES) as site:
        made = NLWebInterface(interface_id="v", name="V", base_url=site.url, actions=actions, info=info)
        with NLWebExecutor(made) as executor:
            yield executor


@pytest.mark.parametrize(
    ("action", "name", "seen"),
    [
        ("late", "Ficus", ["Order number 7"]),
        ("form", "new@x.org", ["Order A-1001", "We write to new@x.org."]),
        ("asks", "Ficus", ["gone: Ficus Order"]),
        ("card", None, ["Opened"]),
    ],
)
def test_an_action_answers_what_the_page_shows_came_of_it(
    shop: NLWebExecutor, action: str, name: str | None, seen: list[str]
) -> None:
    result: Any = shop.execute_action(action, {} if name is None else {"name": name})
    assert (result["done"], result["seen"]) == (action, seen)


@pytest.mark.parametrize(
    ("action", "name", "kind", "said"),
    [
        ("form", "old@x.org", Rejected, "did not accept it: Unknown address"),
        ("form", "odd@x.org", TargetError, "its form is still there.* The page shows: Pick another one"),
        ("needed", "nobody", Rejected, "did not accept it: Mail: "),
        ("soldout", "Ficus", Rejected, "Sorry, Ficus is sold out"),
        ("alert", "Ficus", Rejected, "Choose a size"),
        ("asks-more", "Ficus", Rejected, "asked “Order Ficus and delete 3 drafts\\?”, and was answered with no"),
        ("nothing", "Ficus", TargetError, "nothing on the page shows it"),
        ("failing", "Ficus", Rejected, "status 404"),
        ("dialog", "Ficus", Rejected, "asks back, and it was not answered: “For whom\\?”"),
        ("number", "Ficus", TargetError, "does not show text 'Order Ficus'"),
        ("absent", "Palm", NotOnPage, "'Palm' was not found on the page"),
    ],
)
def test_what_a_page_turns_down_asks_back_or_does_not_show_is_no_success(
    shop: NLWebExecutor, action: str, name: str, kind: type[Agent3Error], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is TargetError:  # nothing more is to come
        monkeypatch.setattr(verifying, "_UNANSWERED", 0.3)
        monkeypatch.setattr(verifying, "SECONDS", 1.0)
    with pytest.raises(kind, match=said) as failed:
        shop.execute_action(action, {"name": name})
    assert type(failed.value) is kind


@pytest.mark.parametrize(
    ("action", "steps", "said"),
    [
        ("failing", "click", "status 404: Hm"),
        ("soldout", "click", "Sorry, Ficus is sold out"),
        ("failing", "if", "status 404: Hm"),
        ("broke", "submit", "status 402: Insufficient balance"),
        ("nothing", "click", None),
        ("dialog", "click", None),
        ("soldout", "none", None),
    ],
)
def test_the_last_press_of_what_has_consequences_fails_where_the_page_refuses(
    shop: NLWebExecutor, action: str, steps: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_UNANSWERED", 0.3)
    opening = NLWebAction(action_type=ActionType.NAVIGATE, value=f"/{action}")
    press = NLWebAction(action_type=ActionType.CLICK, selector="li:first-child button", retries=1)
    if steps == "none":
        press = press.model_copy(update={"verify": "none"})
    if steps == "submit":
        press = NLWebAction(action_type=ActionType.SUBMIT, selector="form")
    if steps == "if":
        press = NLWebAction(action_type=ActionType.IF, when=Condition(present="li"), steps=[press])
    assert shop._session is not None
    made = shop._session._interface
    monkeypatch.setitem(made.actions, "plain", [opening, press])
    monkeypatch.setitem(made.info, "plain", NLWebActionInfo(hints=ActionHints(consequential=True)))
    if said is None:
        assert shop.execute_action("plain", {}) is None
        return
    with pytest.raises(Rejected, match=said):
        shop.execute_action("plain", {})
    if action == "failing":  # what was pressed is not pressed again, whatever its retries are
        assert bridge.run(shop._session.page.inner_text("#said")) == "Hm"


def test_a_page_that_does_not_come_after_a_press_is_no_success(shop: NLWebExecutor) -> None:
    session = shop._session
    assert session is not None
    bridge.run(session.page.route("**/posted", lambda route: route.abort()))
    try:
        with pytest.raises(TargetError, match="could not be loaded"):
            shop.execute_action("form", {"name": "new@x.org"})
    finally:
        bridge.run(session.page.unroute("**/posted"))


def test_no_line_shows_a_part_of_what_was_typed_in_confidence() -> None:
    typed: Any = SimpleNamespace(used_secrets={"tulip-7"}, passwords=set[str]())
    lines = ["gone: tulip-7", "x" * 195 + "tulip-7", "y" * 300, "z"]
    assert RunContext.show_news(typed, lines, 1) == ["y" * 200]


def test_what_is_verified_is_written_as_a_condition_or_as_change() -> None:
    def parse(**step: Any) -> NLWebInterface:
        return NLWebInterface.from_document(
            {"interface_id": "x", "name": "X", "base_url": "https://x.example", "actions": {"a": [step]}}
        )

    made = parse(action_type="click", selector="#a", verify={"text": "{number}"})
    assert prepare(made, "a", {"number": "7"})[1] == {"number": "7"}
    with pytest.raises(ValidationError, match="verify is only for"):
        parse(action_type="navigate", value="/", verify="change")
    with pytest.raises(ValidationError, match="verify"):
        parse(action_type="click", selector="#a", verify="soon")
