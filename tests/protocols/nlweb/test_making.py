"""Interfaces that are made rather than written: learnt from a page, recorded from a person; and tools of a page."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent3 import bridge
from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import MalformedResponse, SecurityError, SetupError, TargetError, ValidationError
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.authoring import files
from agent3.protocols.nlweb.authoring.checking import check
from agent3.protocols.nlweb.authoring.learning import learn
from agent3.protocols.nlweb.authoring.recording import Recorder
from agent3.protocols.nlweb.authoring.reviewing import review
from agent3.protocols.nlweb.authoring.workbench import run_action
from agent3.protocols.nlweb.console.web import app
from agent3.protocols.nlweb.steps.parameters import inject
from agent3.protocols.nlweb.steps.webmcp import find_plan, list_tools
from agent3.protocols.nlweb.visit.page_session import Session
from tests.support.sites import Page, Site

pytestmark = pytest.mark.browser

T = TypeVar("T")
A = ActionType

HOME = """<!doctype html><title>Tea house</title><meta name=description content="Sells tea">
<nav><a href="/news">News</a><a href="/">Home</a><a href="http://other.example/">Away</a></nav>
<form role=search action="/found"><input type=search name=q aria-label="What you look for">
<select name=kind><option value="">any</option><option value=green>Green</option></select>
<button>Search</button></form>
<form id=login method=post action="/enter"><label>Your name <input name=user required></label>
<label>Password <input name=word type=password required></label>
<label><input type=checkbox name=stay> Stay signed in</label><button>Sign in</button></form>
<table id=prices><caption>Prices</caption><thead><tr><th>Tea</th><th>Price now</th></tr></thead>
<tbody><tr><td>Assam</td><td>€ 3</td></tr><tr><td>Sencha</td><td>€ 4</td></tr></tbody></table>
<main><div class=shelf>
<div class=card><h3 class=name>Assam</h3><span class=price>€ 3,50</span><a href=/tea/1>More</a></div>
<div class=card><h3 class=name>Sencha</h3><span class=price>€ 4</span><a href=/tea/2>More</a></div>
<div class=card><h3 class=name>Oolong</h3><span class=price>€ 5</span><a href=/tea/3>More</a></div></div></main>"""

TOOLS = """<!doctype html><title>Tools</title><h1>Tools</h1><input id=a><button id=add>Add</button>
<form toolname=find tooldescription="Find a tea" toolautosubmit action=/found>
<input name=q toolparamdescription=what></form>
<script>
const offer = tool => document.modelContext.registerTool(tool);
const numbers = {type: 'object', properties: {a: {type: 'number'}, b: {type: 'number'}}, required: ['a', 'b']};
offer({name: 'addNumbers', description: 'Adds', inputSchema: numbers, annotations: {readOnlyHint: true},
       execute: async given => ({sum: given.a + given.b})});
offer({name: 'buy', description: 'Buys', inputSchema: {type: 'object', properties: {tea: {type: 'string'}}},
       annotations: {consequentialHint: true},
       execute: async given => {
         await fetch('/bought');
         return {content: [{type: 'text', text: 'bought ' + given.tea}]};
       }});
offer({name: 'broken', description: 'Breaks', execute: async () => { throw new Error('no tea left'); }});
</script>"""


def found(query: dict[str, str]) -> str:
    return f"<!doctype html><title>Found</title><h1>Found {html.escape(query.get('q', ''))}</h1>"


def entered(query: dict[str, str]) -> str:
    return f"<!doctype html><h1>Welcome {html.escape(query.get('user', ''))}</h1>"


PAGES: dict[str, Page] = {
    "/": HOME,
    "/found": found,
    "/enter": entered,
    "/tools": TOOLS,
    "/news": "<h1>News</h1>",
    "/bought": "yes",
    "/empty": "<p>nothing",
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(PAGES) as site:
        yield site


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[NLWebExecutor]:
    with NLWebExecutor(NLWebInterface(interface_id="tea", name="Tea", base_url=site.url)) as executor:
        yield executor


def on(browser: NLWebExecutor, path: str, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """Do something on a page, in the loop that the browser belongs to."""
    session = browser._session
    assert session is not None
    if path:
        browser._execute_single_action(NLWebAction(action_type=A.NAVIGATE, value=path))
    done: T = bridge.run(work(session))
    return done


def run(browser: NLWebExecutor, interface: NLWebInterface, action: str, **given: Any) -> Any:
    """Run an action of another interface in the same browser."""

    async def work(session: Session) -> Any:
        before, session.ctx.interface = session.ctx.interface, interface
        try:
            return await session.run(action, interface.actions[action], given)
        finally:
            session.ctx.interface = before

    return on(browser, "", work)


# Learning


@pytest.fixture(scope="module")
def learnt(browser: NLWebExecutor) -> NLWebInterface:
    return on(browser, "/", lambda session: learn(session.page))


def test_a_page_becomes_an_interface_that_can_be_written_and_read(learnt: NLWebInterface) -> None:
    assert (learnt.name, learnt.description) == ("Tea house", "Sells tea")
    assert set(learnt.actions) == {"search", "sign_in", "read_prices", "list_card", "open_news"}
    assert files.parse(files.dump(learnt), "yaml") == learnt


def test_a_learnt_search_form_runs_as_it_is(browser: NLWebExecutor, learnt: NLWebInterface) -> None:
    info = learnt.info["search"]
    assert info.hints.read_only
    assert info.input_schema is not None
    assert info.input_schema["required"] == ["what_you_look_for"]
    assert info.input_schema["properties"]["kind"]["enum"] == ["any", "Green"]
    result = run(browser, learnt, "search", what_you_look_for="sencha", kind="Green")
    assert result["heading"] == "Found sencha"
    assert run(browser, learnt, "search", what_you_look_for="assam")["heading"] == "Found assam"


def test_a_learnt_login_has_a_secret_and_consequences(learnt: NLWebInterface) -> None:
    info = learnt.info["sign_in"]
    assert info.hints.consequential
    assert info.input_schema is not None
    assert set(info.input_schema["properties"]) == {"your_name", "stay_signed_in"}
    assert [step.value for step in learnt.actions["sign_in"] if step.action_type is A.TYPE] == [
        "{your_name}",
        "{secret:password}",
    ]
    assert learnt.metadata["secrets"]["password"].startswith("env:")


def test_tables_and_repeated_cards_are_learnt_with_their_fields(browser: NLWebExecutor, learnt: NLWebInterface) -> None:
    assert run(browser, learnt, "read_prices") == [
        {"tea": "Assam", "price_now": {"amount": 3.0, "currency": "EUR"}},
        {"tea": "Sencha", "price_now": {"amount": 4.0, "currency": "EUR"}},
    ]
    cards = run(browser, learnt, "list_card")
    assert [card["name"] for card in cards] == ["Assam", "Sencha", "Oolong"]
    assert cards[0]["price"]["amount"] == 3.5
    assert cards[2]["url"].endswith("/tea/3")


PLANTS = """<!doctype html><title>Plants</title><form action=""><label>Search <input name=q></label><button>Go</button>
</form><div class=card><b>Ivy</b> <i>€ 2</i> <a href=/p/1>More</a></div><div class=card><b>Fern</b> <i>€ 3</i>
<a href=/p/2>More</a></div><div class=card><b>Palm</b> <i>€ 9</i> <a href=/p/3>More</a></div>
<a href=/contact>Contact us</a>"""


def test_links_names_of_columns_and_the_results_of_a_search_are_learnt_from_a_plain_page(
    browser: NLWebExecutor, site: Site
) -> None:
    async def work(session: Session) -> NLWebInterface:
        await session.page.set_content(PLANTS)
        return await learn(session.page)

    made = on(browser, "/empty", work)
    assert set(made.actions) == {"go", "list_card", "open_contact_us"}
    assert made.interface_id == f"site-{site.host.replace('.', '-').replace(':', '-')}-empty"
    for action in ("go", "list_card"):
        assert list(made.actions[action][-1].extract_schema or ()) == ["name", "price", "link", "url"]


CONSOLE = """<!doctype html><html lang=es><title>Pedidos</title><h1>Panel</h1>
<section><h2>Pedidos abiertos</h2><table id=t><thead><tr><th>Pedido</th><th>Unidades</th><th>Fecha</th><th></th>
</tr></thead>
<tbody><tr><td>Norte</td><td>3</td><td>2026-05-01</td><td><button onclick="say('Norte')">Anular</button></td></tr>
<tr><td>Sur</td><td>12</td><td>2026-05-02</td><td><button onclick="say('Sur')">Anular</button></td></tr></tbody>
</table></section>
<section><h2>Ofertas</h2><div class=x1><div class=c><b>Silla</b><del>90 €</del><span>60 €</span></div>
<div class=c><b>Mesa</b><del>200 €</del><span>150 €</span></div><div class=c><b>Sofá</b><del>900 €</del>
<span>700 €</span></div></div></section>
<form id=f method=post action=/enter><h2>Enviar un mensaje</h2><label>Tema <select name=t>
<option>Factura<option>Otro</select></label>
<label>Mensaje <textarea name=m></textarea></label><label>Teléfono (opcional) <input name=p></label>
<button>Enviar</button></form>
<form id=g method=post action=/enter><h2>Devolver</h2><label>Pedido <input name=o></label><button>Devolver</button>
</form>
<form id=h method=post action=/enter><h2>Devolver un regalo</h2><label>Pedido <input name=o></label>
<button>Devolver</button></form>
<p id=said></p><script>const say = one => document.getElementById('said').textContent = 'anulado ' + one;</script>"""


def test_what_is_learnt_is_called_as_the_page_calls_it_and_each_row_is_a_parameter(browser: NLWebExecutor) -> None:
    async def work(session: Session) -> NLWebInterface:
        await session.page.set_content(CONSOLE)
        return await learn(session.page)

    made = on(browser, "/empty", work)
    assert set(made.actions) == {
        "enviar_un_mensaje",
        "devolver",
        "devolver_un_regalo",
        "read_pedidos_abiertos",
        "anular",
        "list_ofertas",
    }
    message = made.info["enviar_un_mensaje"].input_schema
    assert message is not None
    assert (list(message["properties"]), message["required"]) == (
        ["tema", "mensaje", "telefono_opcional"],
        ["mensaje"],
    )
    table = made.actions["read_pedidos_abiertos"][-1].extract_schema or {}
    kinds = {name: field if isinstance(field, str) else field.type for name, field in table.items()}
    assert kinds == {"pedido": "td:nth-child(1)", "unidades": "number", "fecha": "date"}
    offers = made.actions["list_ofertas"][-1].extract_schema or {}
    assert list(offers) == ["name", "price"], "a price that is crossed out is none"
    assert made.info["list_ofertas"].phrases == ["lista de ofertas", "muestra ofertas"]
    assert made.info["anular"].hints.consequential
    assert made.info["anular"].phrases == ["anular {pedido}"]

    async def cancel(session: Session) -> str:
        await session.page.set_content(CONSOLE)
        step = inject(made.actions["anular"][1], {"pedido": "Sur"})
        await session.page.locator(step.selector or "").click(timeout=5_000)
        return await session.page.inner_text("#said")

    assert on(browser, "/empty", cancel) == "anulado Sur"


LENDING = """<!doctype html><html lang=en><title>Tools</title><main><h2>Tools to borrow</h2><ul>
<li><h3>Belt sander</h3><p><del>$12.00</del> $9.50</p><button>Borrow</button></li>
<li><h3>Tile cutter</h3><p>$14.00</p><button>Borrow</button></li>
<li><h3>Heat gun</h3><p>$5.00</p><button>Borrow</button></li></ul>
<table><caption>Courses</caption><tr><th>Course</th><th>Price</th></tr>
<tr><td>Wood</td><td><s>$70.00</s> $55.00</td></tr>
<tr><td>Metal</td><td>$40.00</td></tr></table>
<form method=post action=/back><h2>Return a tool</h2><label>Loan number <input name=n></label><fieldset>
<legend>Condition</legend><label><input type=radio name=c value=1>As new</label><label><input type=radio name=c value=2>
Broken</label></fieldset><button>Return it</button></form></main>"""


def test_items_without_a_class_what_buttons_are_asked_as_and_prices_that_hold_are_learnt(
    browser: NLWebExecutor,
) -> None:
    async def work(session: Session) -> tuple[NLWebInterface, Any]:
        await session.page.set_content(LENDING)
        made = await learn(session.page)
        return made, await session.run("read_courses", made.actions["read_courses"][1:], {})

    made, courses = on(browser, "/empty", work)
    assert set(made.actions) == {"return_it", "read_courses", "list_tools_to_borrow", "borrow"}
    asked = (made.info["return_it"].input_schema or {})["properties"]
    assert (list(asked), asked["condition"]["enum"]) == (["loan_number", "condition"], ["As new", "Broken"])
    assert [row["price"]["amount"] for row in courses] == [55.0, 40.0]


MEMBERS = """<!doctype html><html lang=en><title>Club</title><nav><a href=/cart>Cart (3)</a></nav><h1>Members</h1>
<table><thead><tr><th>Name</th><th>Balance</th><th>Actions</th></tr></thead>
<tbody><tr><td>Ann</td><td>€ 3</td><td><button>Add to team</button></td></tr>
<tr><td>Bob</td><td>€ -2.50</td><td><button>Add to team</button></td></tr></tbody></table>
<h2>Plants</h2><div><article class=p><h3><a href=/1>Ficus</a></h3><i>€ 2</i><a href=/x>More</a></article>
<article class=p><h3><a href=/2>Ivy</a></h3><i>€ 2</i><a href=/y>More</a></article><article class=p>
<h3><a href=/3>Palm</a></h3><i>€ 2</i><a href=/z>More</a></article></div>
<section><h2>Book a court</h2><form method=post><fieldset><legend>Floor</legend><label><input type=radio name=f value=1
checked>Clay</label><label><input type=radio name=f value=2>Grass</label></fieldset><label>Day <input name=d required>
</label><label>Hour <select name=h><option value="">Choose one<option value=a>Early<option value=b>Late</select></label>
<label><input type=checkbox name=k required> I pay on time</label><button>Book it</button></form></section>"""


def test_headings_name_what_has_no_name_and_rows_stand_within_the_words_of_their_buttons(
    browser: NLWebExecutor,
) -> None:
    async def work(session: Session) -> NLWebInterface:
        await session.page.set_content(MEMBERS)
        return await learn(session.page)

    made = on(browser, "/empty", work)
    assert set(made.actions) == {"book_it", "read_members", "add_to_team", "list_plants", "open_cart"}
    assert list(made.actions["read_members"][-1].extract_schema or ()) == ["name", "balance"]
    assert made.info["add_to_team"].phrases == ["add to team {name}", "add {name} to team"]
    assert made.actions["add_to_team"][-1].verify == "change"
    assert list(made.actions["list_plants"][-1].extract_schema or ()) == ["title", "url", "price"]
    booking = made.info["book_it"]
    schema = booking.input_schema or {}
    assert booking.phrases == ["book it", "book a court"]
    assert schema["required"] == ["day", "hour", "i_pay_on_time"]
    assert schema["properties"]["hour"]["enum"] == ["Early", "Late"]


def test_a_person_keeps_renames_or_drops_what_was_learnt(learnt: NLWebInterface) -> None:
    answers = {"search": "find tea", "sign_in": ""}
    made = review(learnt, lambda name: answers.get(name, name))
    assert list(made.actions) == ["find_tea", *[one for one in learnt.actions if one not in answers]]
    assert set(made.info) == set(made.actions)
    with pytest.raises(ValidationError, match="cannot have the same name"):
        review(learnt, lambda name: "same")
    with pytest.raises(ValidationError, match="The interface is empty"):
        review(learnt, lambda name: "")


def test_a_page_without_anything_is_told_so(browser: NLWebExecutor) -> None:
    with pytest.raises(MalformedResponse, match="has no form"):
        on(browser, "/empty", lambda session: learn(session.page))


# WebMCP


def test_the_tools_of_a_page_are_seen_with_their_hints(browser: NLWebExecutor) -> None:
    tools = {tool.name: tool for tool in on(browser, "/tools", lambda session: list_tools(session.page))}
    assert set(tools) == {"addNumbers", "buy", "broken", "find"}
    assert (tools["addNumbers"].read_only, tools["buy"].consequential) == (True, True)


def test_learnt_tools_are_called_and_marked_as_the_pages_own_word(browser: NLWebExecutor) -> None:
    learnt = on(browser, "/tools", lambda session: learn(session.page))
    assert set(learnt.metadata["untrusted"]) == {"add_numbers", "buy", "broken", "find"}
    assert learnt.info["buy"].hints.consequential
    assert run(browser, learnt, "add_numbers", a=1, b=2) == {"sum": 3}
    assert run(browser, learnt, "find", q="oolong")["heading"] == "Found oolong"
    assert run(browser, learnt, "buy", tea="assam") == "bought assam"
    with pytest.raises(TargetError, match="invocation failed"):
        run(browser, learnt, "broken")


def interface(site: Site, *steps: NLWebAction, **info: Any) -> NLWebInterface:
    described = {"add_numbers": NLWebActionInfo(**info)}
    actions = {"add_numbers": [NLWebAction(action_type=A.NAVIGATE, value="/tools"), *steps]}
    return NLWebInterface(interface_id="x", name="X", base_url=site.url, actions=actions, info=described)


def test_a_tool_of_the_same_name_is_used_before_selectors(browser: NLWebExecutor, site: Site) -> None:
    steps = [
        NLWebAction(action_type=A.TYPE, selector="#gone", value="{a} {b}", timeout=0.2),
        NLWebAction(action_type=A.CLICK, selector="#add"),
    ]
    written = interface(site, *steps)
    assert run(browser, written, "add_numbers", a=1, b=2) == {"sum": 3}
    assert [(source.how, source.rows) for source in browser.sources] == [("webmcp", 1)]
    without = written.model_copy(update={"metadata": {"webmcp": False}})
    with pytest.raises(TargetError, match="#gone"):
        run(browser, without, "add_numbers", a=1, b=2)
    # What the tool does not take is left to the selectors.
    with pytest.raises(TargetError, match="#gone"):
        run(browser, written, "add_numbers", a="one", b=2)


def test_a_tool_never_takes_the_place_of_what_only_the_steps_describe(site: Site) -> None:
    click = NLWebAction(action_type=A.CLICK, selector="#add")
    read = NLWebAction(action_type=A.EXTRACT, selector="h1")
    steps = interface(site, click, read).actions["add_numbers"]
    assert find_plan(interface(site, click, read), "add_numbers", steps) is None
    promised = interface(site, click, read, output_schema={"type": "object"})
    assert find_plan(promised, "add_numbers", steps) is not None


def test_a_consequential_tool_is_not_called_unless_the_interface_says_so(browser: NLWebExecutor, site: Site) -> None:
    tool = NLWebAction(action_type=A.TOOL, value="buy", fields={"tea": "assam"})
    site.requests.clear()
    with pytest.raises(SecurityError, match="has consequences"):
        run(browser, interface(site, tool), "add_numbers")
    instead = tool.model_copy(update={"otherwise": [NLWebAction(action_type=A.EXTRACT, selector="#add")]})
    assert run(browser, interface(site, instead), "add_numbers") == ["Add"]
    assert "/bought" not in {path for _, path in site.requests}
    confirmed = interface(site, tool, hints=ActionHints(consequential=True))
    assert run(browser, confirmed, "add_numbers") == "bought assam"
    assert "/bought" in {path for _, path in site.requests}


def test_wrong_input_never_reaches_a_tool(browser: NLWebExecutor, site: Site) -> None:
    tool = NLWebAction(action_type=A.TOOL, value="addNumbers", fields={"a": "1"})
    with pytest.raises(ValidationError, match="b"):
        run(browser, interface(site, tool), "add_numbers")


# Recording


def recorded(browser: NLWebExecutor, deeds: Callable[[Any], Awaitable[None]]) -> NLWebInterface:
    async def work(session: Session) -> NLWebInterface:
        recorder = Recorder()
        page = session.page
        await recorder.begin(page.context, page)
        await page.goto(f"{session.ctx.interface.base_url}/")
        await deeds(page)
        return recorder.interface(action="sign_in", title="Tea")

    return on(browser, "/empty", work)


def test_what_a_person_does_becomes_an_action_that_does_it_again(browser: NLWebExecutor, site: Site) -> None:
    async def deeds(page: Any) -> None:
        await page.fill("[name=user]", "ann")
        await page.fill("[name=word]", "sesame")
        await page.check("[name=stay]")
        await page.click("text=Sign in")
        await page.wait_for_url("**/enter")

    made = recorded(browser, deeds)
    kinds = [step.action_type for step in made.actions["sign_in"]]
    assert kinds == [A.NAVIGATE, A.TYPE, A.TYPE, A.CHECK, A.CLICK]
    assert made.actions["sign_in"][-1].verify == "change"
    assert "sesame" not in files.dump(made)
    properties = (made.info["sign_in"].input_schema or {})["properties"]
    assert properties == {"your_name": {"type": "string", "description": "Your name"}}
    assert "ann" not in files.dump(made)  # what somebody typed is theirs
    assert made.info["sign_in"].hints.consequential  # it was posted
    plain = made.model_copy(
        update={
            "actions": {
                "sign_in": [
                    step.model_copy(update={"value": "x"}) if step.value == "{secret:password}" else step
                    for step in made.actions["sign_in"]
                ]
            }
        }
    )
    assert run(browser, plain, "sign_in", your_name="bob")["seen"] == ["Welcome bob"]


def test_enter_in_a_field_is_recorded_once(browser: NLWebExecutor) -> None:
    async def deeds(page: Any) -> None:
        await page.fill("[type=search]", "mint")
        await page.press("[type=search]", "Enter")
        await page.wait_for_url("**/found?**")

    made = recorded(browser, deeds)
    kinds = [step.action_type for step in made.actions["sign_in"]]
    assert kinds == [A.NAVIGATE, A.TYPE, A.PRESS, A.WAIT, A.EXTRACT]
    assert not made.info["sign_in"].hints.consequential
    assert run(browser, made, "sign_in", what_you_look_for="chai")["heading"] == "Found chai"


def test_a_button_that_says_so_has_consequences_though_nothing_is_posted(browser: NLWebExecutor) -> None:
    async def deeds(page: Any) -> None:
        await page.evaluate("document.body.insertAdjacentHTML('beforeend', '<button id=now>Buy it now</button>')")
        await page.click("#now")
        await page.title()

    assert recorded(browser, deeds).info["sign_in"].hints.consequential


# Checking


def test_what_needs_a_parameter_that_nobody_gave_is_unseen_and_not_wrong(browser: NLWebExecutor, site: Site) -> None:
    steps = [
        NLWebAction(action_type=A.NAVIGATE, value="/{page}"),
        NLWebAction(action_type=A.CLICK, selector="h1"),
    ]
    made = interface(site, *steps)
    (name,) = made.actions
    findings = on(browser, "", lambda session: check(session, made))
    assert [finding.state for finding in findings] == ["ok", "unseen", "unseen"]
    assert findings[1].detail == f"its address needs --param {name}.page=VALUE"
    given = {name: {"page": "empty"}}
    assert on(browser, "", lambda session: check(session, made, given))[1].state == "ok"


def test_a_check_names_the_step_whose_element_is_gone(
    browser: NLWebExecutor, learnt: NLWebInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.authoring.checking._APPEAR_MS", 300.0)
    steps = [
        NLWebAction(action_type=A.NAVIGATE, value="/"),
        NLWebAction(action_type=A.TYPE, selector="#old", value="{q}"),
        NLWebAction(action_type=A.CLICK, selector="button"),
        NLWebAction(action_type=A.EXTRACT, selector="h1"),
    ]
    actions = {"stale": steps, "read_prices": learnt.actions["read_prices"]}
    info = {"read_prices": learnt.info["read_prices"]}
    both = learnt.model_copy(update={"actions": actions, "info": info})
    findings = on(browser, "", lambda session: check(session, both))
    assert [(finding.action, finding.state) for finding in findings] == [
        ("stale", "ok"),
        ("stale", "missing"),
        ("stale", "ok"),
        ("stale", "unseen"),
        ("read_prices", "ok"),
    ]
    assert "#old" in findings[1].detail
    assert findings[-1].detail == "it ran and returned 2 rows"


# From the command line's side


def test_a_trace_is_written_but_not_where_a_secret_would_be_in_it(learnt: NLWebInterface, tmp_path: Path) -> None:
    trace = tmp_path / "trace.zip"
    result = asyncio.run(run_action(learnt, "read_prices", {}, trace=trace))
    assert len(result) == 2
    assert trace.read_bytes().startswith(b"PK")
    with pytest.raises(SetupError, match="would contain"):
        asyncio.run(run_action(learnt, "sign_in", {"your_name": "x"}, trace=trace))


def test_the_command_learns_and_runs(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tea.yaml"
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "data"))

    def command(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        return int(ended.value.code or 0)

    assert command("learn", f"{site.url}/", "--out", str(file)) == 0
    (variable,) = files.load(file).metadata["secrets"].values()
    said = capsys.readouterr().err
    assert f"AGENT3_WEB_SECRETS={variable.removeprefix('env:')}@{site.host}" in said  # how its login gets its password
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path / "data"))  # this machine's own cookies and heals are no matter here
    assert command("run", str(file), "search", "--param", "what_you_look_for=mint", "--json", "--trace") == 0
    assert json.loads(capsys.readouterr().out)["result"]["heading"] == "Found mint"
    assert (tmp_path / "agent3-traces" / "tea-search.zip").read_bytes().startswith(b"PK")
