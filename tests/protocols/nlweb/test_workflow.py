"""Workflows over several pages, and forms, in a real Chromium."""

from __future__ import annotations

import html
from collections.abc import Iterator
from threading import Event

import pytest

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import CallTimeout, Conflict, SecurityError, TargetError, ValidationError
from tests.support.acting import PATIENT, Stage, stage, step
from tests.support.sites import Page

A = ActionType
pytestmark = pytest.mark.browser

GOODS = {"1": ("Lamp", "€ 20,00", "yes"), "2": ("Chair", "€ 75,50", "no"), "3": ("Table", "€ 120,00", "yes")}


def _listing(query: dict[str, str]) -> str:
    page = query.get("page", "1")
    follow = {"1": "2", "2": "3"}.get(page)
    link = f"<a class='next' href='/list?page={follow}'>next</a>" if follow else ""
    return f"<!doctype html><title>List</title><a class='thing' href='/thing?id={page}'>{GOODS[page][0]}</a>{link}"


def _thing(query: dict[str, str]) -> str:
    name, price, stock = GOODS[query["id"]]
    sold = "" if stock == "yes" else "<p class='sold'>sold out</p>"
    buy = f"<button id='buy' onclick=\"location='/cart?add={query['id']}'\">Buy</button>" if stock == "yes" else ""
    return f"<!doctype html><title>{name}</title><h1>{name}</h1><i class='price'>{price}</i>{sold}{buy}"


def _cart(query: dict[str, str]) -> str:
    return f"<!doctype html><title>Cart</title><h1>added {html.escape(query.get('add', '-'))}</h1>"


ORDER = """<!doctype html><title>Order</title><form id="order" action="/ordered" method="post">
<label>Your name* <input name="name" required></label>
<label for="m">E-mail:</label><input id="m" name="mail" type="email" required>
<select name="size" aria-label="Size"><option value="s">Small</option><option value="l">Large</option></select>
<label><input type="radio" name="speed" value="slow"> Slow</label>
<label><input type="radio" name="speed" value="fast"> Fast</label>
<label><input type="checkbox" name="gift"> As a gift</label><textarea name="note" placeholder="A note"></textarea>
<button>Order</button></form>"""


def _ordered(query: dict[str, str]) -> str:
    if query.get("name") == "Nobody":
        return ORDER.replace('name="name" required', 'name="name" aria-invalid="true" aria-describedby="why"').replace(
            "<button>", "<p id='why'>We do not deliver to Nobody.</p><button>"
        )
    said = " ".join(f"{key}={value}" for key, value in sorted(query.items()) if value)
    return f"<!doctype html><title>Thanks</title><p role='status'>Thank you. {html.escape(said)}</p>"


QUIET = """<!doctype html><title>Quiet</title><form id="f" novalidate onsubmit="event.preventDefault(); send()">
<input name="city"><button>Send</button></form><div id="out"></div><script>
setInterval(() => new Image().src = '/beacon', 50);
async function send() { const answer = await fetch('/judge?city=' + f.city.value);
  out.innerHTML = await answer.text(); }</script>"""


def _judge(query: dict[str, str]) -> str:
    if query.get("city") == "Atlantis":
        return "<p role='alert' class='error'>There is no such city.</p>"
    return "<p role='status'>Noted.</p>"


released = Event()


def _never(query: dict[str, str]) -> str:
    released.wait(10)
    return "late"


PAGES: dict[str, Page] = {
    "/list": _listing,
    "/thing": _thing,
    "/cart": _cart,
    "/order": ORDER,
    "/ordered": _ordered,
    "/quiet": QUIET,
    "/judge": _judge,
    "/beacon": "",
    "/silent": "<!doctype html><form id='f' action='/never'><input name='a' value='1'><button>Go</button></form>",
    "/never": _never,
    "/hostile": "<!doctype html><title>Hostile</title><p>https://evil.example/</p><p>1&amp;x=2#</p>"
    "<p>\"], button</p><button onclick='document.title=`clicked`'>x</button>",
    "/count": "<!doctype html><title>0</title><button onclick='document.title = +document.title + 1'>more</button>",
}


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(PAGES, timeouts=PATIENT) as made:
        yield made


# Conditions, loops and values


@pytest.mark.requirement("RF-013-55")
def test_a_workflow_goes_over_the_pages_of_what_it_found(play: Stage) -> None:
    links = {"link": {"selector": "", "type": "link"}, "name": ""}
    price = {"price": {"selector": ".price", "type": "price"}}
    found = play.act(
        step(A.NAVIGATE, value="/list"),
        step(
            A.REPEAT,
            steps=[step(A.EXTRACT, ".thing", extract_schema=links), step(A.CLICK, ".next", when={"visible": ".next"})],
            times=3,
            save_as="things",
        ),
        step(
            A.REPEAT,
            over="things",
            steps=[
                step(A.NAVIGATE, value="{item.link}"),
                step(
                    A.IF,
                    when={"absent": ".sold"},
                    steps=[step(A.EXTRACT, extract_schema={"name": "h1", **price})],
                    otherwise=[step(A.EXTRACT, extract_schema={"gone": "h1"})],
                ),
            ],
        ),
    )
    assert [row["name"] for row in found[0]] == ["Lamp", "Chair", "Table"]
    assert found[1] == [
        {"name": "Lamp", "price": {"amount": 20.0, "currency": "EUR"}},
        {"gone": "Chair"},
        {"name": "Table", "price": {"amount": 120.0, "currency": "EUR"}},
    ]


@pytest.mark.requirement("RF-013-55")
@pytest.mark.parametrize(("limit", "title"), [(100, "Cart"), (10, "Lamp")])
def test_a_saved_value_decides_what_is_done(play: Stage, limit: float, title: str) -> None:
    play.act(
        step(A.NAVIGATE, value="/thing?id={id}"),
        step(A.EXTRACT, extract_schema={"price": {"selector": ".price", "type": "price"}}, save_as="seen"),
        step(A.CLICK, "#buy", when={"variable": "seen.price", "below": limit}, wait_for="h1:has-text('added')"),
        id="1",
    )
    assert play.page.title() == title


@pytest.mark.requirement("RF-013-55")
def test_a_loop_ends_when_its_condition_holds_or_at_its_bound(play: Stage) -> None:
    there, more = step(A.NAVIGATE, value="/count"), step(A.CLICK, "button")
    read = step(A.EXTRACT, "title", save_as="now")
    play.act(there, step(A.REPEAT, steps=[more, read], until={"variable": "now.0", "equals": "4"}))
    assert play.page.title() == "4"
    play.act(there, step(A.REPEAT, steps=[more], times=2, until={"text": "never"}))
    assert play.page.title() == "2"
    with pytest.raises(TargetError, match="repeated 100 times"):
        play.act(there, step(A.REPEAT, steps=[step(A.DIALOG)], until={"text": "never"}))


def test_a_step_within_another_is_named_by_its_place(play: Stage) -> None:
    inner = step(A.IF, when={"present": "button"}, steps=[step(A.CLICK, "#never", timeout=0.1)])
    with pytest.raises(CallTimeout, match=r"Step 2\.1\.1 of 'act' \(click '#never'\)"):
        play.act(step(A.NAVIGATE, value="/count"), step(A.REPEAT, steps=[inner]))
    play.act(step(A.NAVIGATE, value="/count"), step(A.REPEAT, steps=[inner], optional=True), step(A.CLICK, "button"))
    assert play.page.title() == "1"


@pytest.mark.requirement("RF-013-43")
def test_a_parameter_may_be_left_out_where_its_steps_say_so(play: Stage) -> None:
    maybe = step(A.CLICK, "button", when={"given": "press"})
    deeper = step(A.IF, when={"given": "page"}, steps=[step(A.NAVIGATE, value="/list?page={page}")])
    play.act(step(A.NAVIGATE, value="/count"), maybe, deeper)
    assert play.page.title() == "0"
    play.act(step(A.NAVIGATE, value="/count"), maybe, deeper, press="yes")
    assert play.page.title() == "1"
    play.act(step(A.NAVIGATE, value="/count"), maybe, deeper, page="3")
    assert play.page.url.endswith("/list?page=3")


@pytest.mark.requirement("RF-013-43")
def test_what_a_page_says_stays_data(play: Stage) -> None:
    read = [step(A.NAVIGATE, value="/hostile"), step(A.EXTRACT, "p", save_as="said")]
    with pytest.raises(SecurityError, match=r"Navigation to https://evil\.example/ blocked"):
        play.act(*read, step(A.NAVIGATE, value="{said.0}"))
    play.act(*read, step(A.NAVIGATE, value="/cart?add={said.1}&x=1"))
    assert play.sent("/cart")[-1] == "/cart?add=1%26x%3D2%23&x=1"
    with pytest.raises(CallTimeout):
        play.act(*read, step(A.CLICK, '[data-x="{said.2}"]', timeout=0.1))
    assert play.page.title() == "Hostile"
    with pytest.raises(ValidationError, match="which is not a list"):
        play.act(step(A.NAVIGATE, value="/count"), step(A.REPEAT, over="x", steps=[step(A.BACK)]), x="abc")


# Forms


def order(*more: NLWebAction, **fields: str) -> list[NLWebAction]:
    filled = step(A.FILL, "#order", fields=fields)
    return [step(A.NAVIGATE, value="/order"), filled, step(A.SUBMIT, "#order", save_as="answer"), *more]


@pytest.mark.requirement("RF-013-56")
def test_a_form_is_filled_by_its_labels_and_its_answer_read(play: Stage) -> None:
    fields = {"your name": "{name}", "E-Mail": "a@b.example", "size": "large", "speed": "Fast", "as a gift": "yes"}
    play.act(*order(**fields, **{"a note": "soon"}), name="Ada")
    answer = play.ctx.memory["answer"]
    assert answer["outcome"] == "moved"
    assert answer["messages"] == ["Thank you. gift=on mail=a@b.example name=Ada note=soon size=l speed=fast"]


@pytest.mark.requirement("RF-013-56")
def test_what_is_required_is_found_before_anything_is_sent(play: Stage) -> None:
    before = len(play.sent("/ordered"))
    with pytest.raises(
        ValidationError, match=r"not sent, because it is incomplete\. Your name\*: .*E-mail:: "
    ) as caught:
        play.act(*order(mail="not an address"))
    assert [(error["path"], error["required"]) for error in caught.value.errors] == [("/name", True), ("/mail", True)]
    assert len(play.sent("/ordered")) == before
    for field, words in ({"nane": "x"}, "no field 'nane'"), ({"size": "huge"}, "no option 'huge'"):
        with pytest.raises(TargetError, match=words):
            play.act(*order(**field))


@pytest.mark.requirement("RF-013-56")
def test_the_messages_of_the_site_are_read_back(play: Stage) -> None:
    with pytest.raises(ValidationError, match=r"did not accept the form\. Your name\*: We do not deliver to Nobody\."):
        play.act(*order(name="Nobody", mail="a@b.example"))
    quiet = [step(A.NAVIGATE, value="/quiet"), step(A.TYPE, "[name=city]", "{city}"), step(A.SUBMIT, "#f button")]
    with pytest.raises(ValidationError, match=r"did not accept the form\. There is no such city\."):
        play.act(*quiet, city="Atlantis")
    play.act(*quiet[:2], step(A.SUBMIT, "#f", save_as="answer"), city="Rome")
    assert play.ctx.memory["answer"]["messages"] == ["Noted."]


@pytest.mark.requirement("RF-013-56")
def test_a_form_without_an_answer_is_not_sent_again(play: Stage) -> None:
    with pytest.raises(CallTimeout, match="The form was sent, but the website did not answer"):
        play.act(step(A.NAVIGATE, value="/silent"), step(A.SUBMIT, "#f", timeout=2.0))
    released.set()
    assert len(play.sent("/never")) == 1


@pytest.mark.requirement("RF-013-56")
def test_a_form_is_not_sent_twice(play: Stage) -> None:
    before = len(play.sent("/ordered"))
    eve = {"name": "Eve", "mail": "e@b.example"}
    twice = [step(A.BACK), step(A.FILL, "#order", fields=eve), step(A.SUBMIT, "#order")]
    with pytest.raises(Conflict, match="already sent with the same content"):
        play.act(*order(*twice, **eve))
    assert len(play.sent("/ordered")) == before + 1
