"""Websites behind the gateway: added as files, found, called and asked from every door, also in another's place."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client.client import Client

from agent3.calls.outcomes import response
from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.errors import AgentNotFound, CapabilityNotFound, Conflict, SetupError, ValidationError
from agent3.gateway.gateway import Caller, CallRequest
from agent3.gateway.routes import RouteBook
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, Principal, value_of
from agent3.protocols.nlweb.authoring.files import dump
from agent3.settings import Budget, Calls, Llm, Outbound, PriceRule, Rate, Rule, Settings, Web
from tests.support.gateway import Hosted, hosted
from tests.support.llm_server import KEY, LLMServer, Turn
from tests.support.llm_server import Call as ModelCall
from tests.support.mcp_upstream import Site as Upstream
from tests.support.mcp_upstream import served
from tests.support.registration import add, remove, renew
from tests.support.sites import Answer as Reply
from tests.support.sites import Site
from tests.support.visits import PAGES, shop

ME = Caller(LOCAL, "test")


@contextmanager
def house(folder: Path, site: Site, **settings: Any) -> Iterator[Hosted]:
    """A gateway with the shop in it."""
    file = folder / "shop.yaml"
    file.write_text(dump(shop(site.url)))
    with hosted(folder, settings=Settings(outbound=Outbound(allow_loopback=True), **settings)) as running:
        running.run(add(running.server, str(file)))
        yield running


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(PAGES) as site:
        yield site


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Hosted]:
    folder = tmp_path_factory.mktemp("websites")
    rules = (
        Rule("deny", principal="guest", capability="buy"),
        Rule("deny", principal="guest", capability="account"),
        Rule("allow"),
    )
    with pytest.MonkeyPatch.context() as patch, house(folder, site, rules=rules) as made:
        patch.setenv("AGENT3_DATA", str(folder))  # words alone decide, whatever this machine has installed
        yield made


def call(running: Hosted, agent: str = "shop", *, who: Caller = ME, **wish: Any) -> Outcome:
    outcome: Outcome = running.run(running.server.gateway.call(who, CallRequest(agent=agent, **wish)))
    return outcome


def answer(running: Hosted, outcome: Outcome, **answers: Any) -> Outcome:
    assert isinstance(outcome, Needs)
    assert outcome.job is not None
    given = {key: Answer(data=value) for key, value in answers.items()}
    said: Outcome = running.run(running.server.gateway.answer(ME, outcome.job, given))
    return said


def names(value: Any) -> list[str]:
    return [one["name"] for one in value]


@pytest.mark.browser
def test_the_actions_of_an_added_file_are_found_and_called_by_a_real_mcp_client(running: Hosted) -> None:
    async def story() -> None:
        async with Client(f"{running.url}/mcp") as client:
            found = (
                await client.call_tool("agent3_search", {"query": "search the shop for a product"})
            ).structured_content
            assert (found["agents"][0]["id"], found["agents"][0]["capability"]) == ("shop", "search")
            wish = {"agentId": "shop", "capability": "search", "input": {"query": "tea"}}
            said = (await client.call_tool("agent3_call", wish)).structured_content
            assert names(said["result"]) == ["tea 1", "tea 2"]
            spoken = (
                await client.call_tool("agent3_call", {"agentId": "shop", "message": "find coffee"})
            ).structured_content
            assert names(spoken["result"]) == ["coffee 1", "coffee 2"]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_website_that_wants_a_secret_is_added_once_the_operator_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(dump(shop("https://shop.example", login=True)))
    settings = Settings(web=Web(secrets=("SHOP_PASSWORD@shop.example",)))
    with hosted(tmp_path, settings=settings) as made:
        assert made.run(add(made.server, str(file))).id == "shop"


@pytest.mark.browser
@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    "body",
    [
        {
            "query": {"text": "and coffee?", "site": "shop"},
            "context": {"@type": "ConversationalContext", "prev": ["find tea"]},
            "prefer": {"streaming": False},
        },
        {"query": "and coffee?", "site": "shop", "prev": '["hello", "find tea"]', "streaming": "false"},
        {"query": "and coffee?", "site": "shop", "prev": ["find tea"], "streaming": False},
    ],
)
def test_a_question_that_goes_on_from_another_is_read_with_it(running: Hosted, body: dict[str, Any]) -> None:
    said = running.post("/ask", body)
    assert said.status == 200, said.json
    assert names(said.json["results"]) == ["coffee 1", "coffee 2"]


@pytest.mark.browser
def test_without_what_was_said_before_it_is_asked_what_is_meant(running: Hosted) -> None:
    body = {"query": {"text": "and coffee?", "site": "shop"}, "prefer": {"streaming": False}}
    assert running.post("/ask", body).json["_meta"]["response_type"] == "Elicitation"
    body["context"] = {"prev": ["sing me a song", {"not": "a text"}, ""]}
    assert running.post("/ask", body).json["_meta"]["response_type"] == "Elicitation"


@pytest.mark.browser
def test_input_is_held_to_the_schema_and_nothing_is_visited_otherwise(running: Hosted, site: Site) -> None:
    site.requests.clear()
    for wrong in ({}, {"query": ""}, {"query": "x", "colour": "red"}):
        outcome = call(running, capability="search", input=wrong)
        assert isinstance(outcome, Failed), outcome
        assert outcome.code == "invalid_input"
    assert site.requests == []


@pytest.mark.browser
@pytest.mark.requirement("AC-29")
def test_a_sentence_to_a_named_action_fills_its_parameters_and_asks_for_the_rest(running: Hosted) -> None:
    outcome = call(running, capability="search", message="search for tea")
    assert names(value_of(outcome.parts)) == ["tea 1", "tea 2"]  # type: ignore[union-attr]
    outcome = call(running, capability="search", message="search")
    assert isinstance(outcome, Needs)
    assert [one.id for one in outcome.questions] == ["query"]
    done = answer(running, outcome, query="milk")
    assert isinstance(done, Done), done
    assert names(value_of(done.parts)) == ["milk 1", "milk 2"]
    assert done.meta["action"] == "search"


@pytest.mark.browser
@pytest.mark.requirement("RT-014-C03")
def test_an_answer_says_where_it_was_read_and_what_it_cost_and_is_held_against_the_schema_of_its_action(
    running: Hosted, site: Site, tmp_path: Path
) -> None:
    done = call(running, capability="search", input={"query": "tea"})
    assert isinstance(done, Done), done
    read = [{"step": "4 of 'search' (extract '.card')", "how": "selectors", "rows": 2}]
    assert response(done, 0.1)["metadata"]["sources"] == read
    promised = {"type": "array", "items": {"properties": {"price": {"type": "number"}}}}
    base = shop(site.url)
    strict = base.model_copy(
        update={
            "interface_id": "strict",
            "info": {
                **base.info,
                "search": base.info["search"].model_copy(update={"output_schema": promised}),
                "look": base.info["look"].model_copy(update={"cost": 0.02}),
            },
        }
    )
    (tmp_path / "strict.yaml").write_text(dump(strict))
    running.run(add(running.server, str(tmp_path / "strict.yaml")))
    try:
        for given in ({"capability": "search", "input": {"query": "tea"}}, {"message": "search for tea"}):
            outcome = call(running, "strict", **given)
            assert isinstance(outcome, Failed), outcome
            assert outcome.code == "malformed_response"
            assert "[0].price" in json.dumps(msgspec.to_builtins(outcome))
        for given in ({"capability": "look", "input": {"query": "tea"}}, {"message": 'look at one shelf, query "tea"'}):
            outcome = call(running, "strict", **given)  # RT-014: two cents for a sequence, by name or by sentence
            if isinstance(outcome, Needs):
                outcome = answer(running, outcome, query="tea")
            assert isinstance(outcome, Done), outcome
            assert response(outcome, 0.1)["metadata"]["cost"] == pytest.approx(0.02)
        rows = [row["cost"] for row in running.rows("calls") if row["agent"] == "strict" and row["status"] == "done"]
        assert sum(rows) == pytest.approx(2 * 1.00 / 50)
    finally:
        running.run(remove(running.server, "strict"))


@pytest.mark.browser
@pytest.mark.requirement("RF-013-52")
def test_a_sentence_that_says_nothing_is_asked_about_and_goes_on_with_the_answer(running: Hosted) -> None:
    outcome = call(running, message="xyzzy plugh")
    assert isinstance(outcome, Needs), outcome
    (question,) = outcome.questions
    assert question.id == "agent3:action"
    assert question.schema is not None
    done = answer(running, outcome, **{"agent3:action": "search"})
    assert isinstance(done, Done), done
    assert names(value_of(done.parts)) == ["xyzzy plugh 1", "xyzzy plugh 2"]


@pytest.mark.browser
def test_what_has_consequences_is_done_only_after_a_yes(running: Hosted, site: Site) -> None:
    site.requests.clear()
    for given in ({"input": {"product": "tea"}, "capability": "buy"}, {"message": "buy tea"}):
        outcome = call(running, **given)
        assert isinstance(outcome, Needs), outcome
        assert "product: tea" in outcome.questions[0].text
        assert site.requests == []
        refused = answer(running, outcome, **{"agent3:confirm": False})
        assert isinstance(refused, Failed)
        assert refused.code == "declined"
    done = answer(running, call(running, capability="buy", input={"product": "tea"}), **{"agent3:confirm": True})
    assert isinstance(done, Done)
    assert value_of(done.parts) == ["Bought tea"]
    assert [path for _, path in site.requests].count("/bought?product=tea") == 1


@pytest.mark.browser
def test_an_action_that_is_said_in_words_has_its_price_its_budget_and_its_rate(tmp_path: Path, site: Site) -> None:
    settings: dict[str, Any] = {
        "prices": (PriceRule(agent="shop", capability="look", call=2.0),),
        "rates": (Rate(per_minute=0.001, burst=3, capability="look"), Rate(per_minute=0.001, burst=100)),
        "budgets": (Budget(usd=5.0, action="refuse"),),
    }
    said = {"text": 'look at one shelf, query "tea"'}

    def look(made: Hosted) -> Outcome:
        outcome = call(made, capability="command", input=said)
        return answer(made, outcome, query="tea") if isinstance(outcome, Needs) else outcome

    with house(tmp_path, site, **settings) as made:
        ended = [look(made) for _ in range(4)]
        assert [one.usage.cost for one in ended[:2] if isinstance(one, Done) and one.usage] == [2.0, 2.0]
        assert [one.code for one in ended[2:] if isinstance(one, Failed)] == ["budget_exceeded", "rate_limited"]
        made.run(made.server.core.parts.budgets.aclose())
        assert [row["usd"] for row in made.rows("budget_spent")] == [4.0]
        assert [row["cost"] for row in made.rows("calls") if row["status"] == "failed"] == [0.0, 0.0]


@pytest.mark.browser
def test_a_sentence_reaches_no_action_that_its_caller_may_not_call(running: Hosted, site: Site) -> None:
    guest = Caller(Principal("guest"), "test")
    site.requests.clear()
    with pytest.raises(CapabilityNotFound):
        call(running, who=guest, capability="buy", input={"product": "tea"})
    outcome = call(running, who=guest, message="buy tea")
    said = json.dumps(msgspec.to_builtins(outcome))
    assert not isinstance(outcome, Done)
    assert "confirm" not in said
    assert '"buy"' not in said
    assert site.requests == []


def test_what_is_wrong_with_a_file_is_named_and_nothing_is_stored(tmp_path: Path) -> None:
    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    interface = shop("https://shop.example")
    secret = {"login": {"action": "login", "parameters": {"password": "sesame"}}}
    step = '{"interface_id":"x","name":"X","base_url":"https://x.example","actions":{"go":[{"action_type":"click"}]}}'
    with hosted(tmp_path) as made:
        for what, wrong, words in (
            (file("a.json", step), ValidationError, "step 1 of 'go'.*needs a selector"),
            (file("b.yaml", "just: words"), ValidationError, "b.yaml"),
            (file("c.yaml", dump(interface.model_copy(update={"metadata": secret}))), SetupError, "password itself"),
            (
                file("f.yaml", dump(shop("https://shop.example", login=True))),
                SetupError,
                r"SHOP_PASSWORD@shop\.example.*AGENT3_WEB_SECRETS",
            ),
            (
                file("d.yaml", dump(interface.model_copy(update={"metadata": {"stands_in_for": "nobody"}}))),
                AgentNotFound,
                "nobody",
            ),
        ):
            with pytest.raises(wrong, match=words):
                made.run(add(made.server, what))
        assert made.run(made.server.directory.everything()) == []
        good = file("e.json", dump(interface, "json"))
        assert made.run(add(made.server, good, "My shop")).id == "my-shop"
        assert made.run(add(made.server, good)).id == "shop"
        other = interface.model_copy(update={"base_url": "https://other.example"})
        with pytest.raises(Conflict, match="already"):
            made.run(add(made.server, file("f.yaml", dump(other))))
        agent = made.run(made.server.directory.get("my-shop"))
        assert agent.capabilities[0].routes[0].meta["interface"] == "my-shop"


# In another's place


def stand_in(url: str) -> NLWebInterface:
    """A website that can echo, for an MCP server that can."""
    base = shop(url)
    say = [base.actions["look"][0].model_copy(update={"value": "/found?q={words}"})]
    say.append(base.actions["look"][1].model_copy(update={"selector": None, "extract_schema": {"text": ".card b"}}))
    wish = {"agent": "tools", "capabilities": {"echo": {"action": "say", "input": {"text": "words"}}}}
    return NLWebInterface(
        interface_id="echo-site", name="Echo site", base_url=url, actions={"say": say},
        info={"say": NLWebActionInfo(hints=ActionHints(read_only=True))}, metadata={"stands_in_for": wish},
    )  # fmt: skip


def back(upstream: Upstream, port: int) -> None:
    upstream._listener = socket.create_server(("127.0.0.1", port))
    upstream.start()


PAYING = NLWebInterface(
    interface_id="bank",
    name="Bank",
    base_url="https://bank.example",
    actions={
        "pay": [
            NLWebAction(action_type=ActionType.NAVIGATE, value="/"),
            NLWebAction(action_type=ActionType.TYPE, selector="#confirm", value="{confirm}"),
            NLWebAction(action_type=ActionType.TYPE, selector="#action", value="{action}"),
        ]
    },
    info={
        "pay": NLWebActionInfo(
            hints=ActionHints(consequential=True),
            input_schema={
                "properties": {"confirm": {"type": "boolean"}, "action": {"type": "string"}},
                "required": ["confirm", "action"],
            },
        )
    },
)


def test_parameters_may_be_called_as_the_questions_of_the_house(tmp_path: Path) -> None:
    file = tmp_path / "bank.yaml"
    file.write_text(dump(PAYING))
    with hosted(tmp_path) as made:
        made.run(add(made.server, str(file)))
        asked = call(made, "bank", capability="pay", message="pay")
        assert isinstance(asked, Needs), asked
        assert {one.id for one in asked.questions} == {"confirm", "action"}
        asked = answer(made, asked, confirm=True, action="log")
        assert isinstance(asked, Needs), "a mail that was wished for is no yes to the payment"
        (question,) = asked.questions
        assert (question.id, "confirm: True, action: log" in question.text) == ("agent3:confirm", True)
        refused = answer(made, asked, **{"agent3:confirm": False})
        assert isinstance(refused, Failed)
        assert refused.code == "declined"


_OWN_TOOL = """<h1>Flights</h1><input id=q><button id=go>Go</button><script>
document.modelContext.registerTool({name: 'search', description: 'Search',
  inputSchema: {type: 'object', properties: {query: {type: 'string'}}},
  async execute(given) { return {content: [], structuredContent: {price: 0.01}}; }});
</script>"""


@pytest.mark.browser
def test_what_a_tool_of_the_page_gave_is_marked_as_untrusted(tmp_path: Path) -> None:
    with Site({"/": _OWN_TOOL}) as flights, hosted(tmp_path) as made:
        interface = shop(flights.url)
        promised = interface.info["search"].model_copy(update={"output_schema": {"type": "object"}})
        file = tmp_path / "air.yaml"
        file.write_text(dump(interface.model_copy(update={"info": {"search": promised}})))
        made.run(add(made.server, str(file)))
        done = call(made, capability="search", input={"query": "LIS"})
        assert isinstance(done, Done), done
        told = response(done, 0.0)
        assert told["result"] == {"price": 0.01}
        assert told["metadata"]["untrusted"] == ["search"]
        assert [one["how"] for one in told["metadata"]["sources"]] == ["webmcp"]
        assert [row["message"] for row in made.rows("calls")] == ["untrusted: the page's own tool search"]


@pytest.mark.browser
def test_what_one_caller_does_not_find_on_a_page_closes_the_website_for_nobody(tmp_path: Path, site: Site) -> None:
    """Only silence of the site itself does, which everybody meets."""
    interface = shop(site.url)
    interface.actions["buy"][1] = interface.actions["buy"][1].model_copy(update={"selector": "#gone", "timeout": 0.3})
    interface.actions["broken"] = [NLWebAction(action_type=ActionType.NAVIGATE, value="/broken")]
    site.pages["/broken"] = Reply("no", 500)
    file = tmp_path / "shop.yaml"
    file.write_text(dump(interface.model_copy(update={"info": {}})))
    settings = Settings(outbound=Outbound(allow_loopback=True), calls=Calls(retries=0, breaker_failures=1))
    with hosted(tmp_path, settings=settings) as made:
        made.run(add(made.server, str(file)))
        missing = call(made, capability="buy", input={"product": "tea"})
        assert isinstance(missing, Failed)
        assert (missing.code, missing.retryable, missing.sent) == ("element_missing", False, False)
        assert "'#gone' matches nothing on the page" in missing.message
        assert made.rows("dead_letters") == [], "nothing is to be done again that cannot be done"
        for wish in ({"capability": "broken", "input": {}}, {"capability": "account", "input": {}, "timeout": 0.01}):
            outcome = call(made, **wish)
            assert isinstance(outcome, Failed)
            assert outcome.code in ("unavailable", "timeout"), outcome
        assert isinstance(call(made, capability="account", input={}), Done)
    down = interface.model_copy(update={"base_url": "http://127.0.0.1:9", "info": {}})
    file.write_text(dump(down))
    with hosted(tmp_path / "down", settings=settings) as made:
        made.run(add(made.server, str(file)))
        codes = [call(made, capability="account", input={}) for _ in range(2)]
        assert [one.code for one in codes if isinstance(one, Failed)] == ["unavailable", "circuit_open"]


@pytest.mark.browser
@pytest.mark.requirement("RF-013-53")
def test_the_website_answers_while_the_mcp_server_is_down_and_no_longer_when_it_is_back(
    tmp_path: Path, site: Site
) -> None:
    file = tmp_path / "echo.yaml"
    file.write_text(dump(stand_in(site.url)))
    settings = Settings(
        outbound=Outbound(allow_loopback=True), calls=Calls(retries=0, breaker_failures=1, breaker_seconds=0.5)
    )

    def said(made: Hosted) -> Any:
        outcome = call(made, "tools", capability="echo", input={"text": "hello"})
        assert isinstance(outcome, Done), outcome
        return value_of(outcome.parts)

    with served(tmp_path / "notes") as upstream, hosted(tmp_path, settings=settings) as made:
        port = int(upstream.url.split(":")[2].split("/")[0])
        made.run(add(made.server, upstream.url, "tools"))
        made.run(add(made.server, str(file)))
        assert [one.protocol for one in _echo(made)] == ["mcp"], "nobody has confirmed it"
        book = RouteBook(made.server.gateway)
        made.run(book.put(ME, {"capability": "tools.echo", "also": "echo-site.say"}))
        assert said(made) == {"text": "hello"}
        upstream.stop()
        for _ in range(2):  # refused, and then the circuit is open
            assert said(made) == {"text": "hello 1"}
        assert b'agent3_fallbacks_total{from_protocol="mcp",to_protocol="nlweb"}' in made.get("/metrics").raw
        back(upstream, port)
        eventually(lambda: said(made) == {"text": "hello"})
        made.run(renew(made.server, upstream.url))  # a new card keeps who stands in
        assert [one.protocol for one in _echo(made)] == ["mcp", "nlweb"]
        made.run(add(made.server, upstream.url, "tools"))
        assert [one.protocol for one in _echo(made)] == ["mcp", "nlweb"]
        made.run(remove(made.server, "echo-site"))
        assert [one.protocol for one in _echo(made)] == ["mcp"]


def _echo(made: Hosted) -> Any:
    return made.run(made.server.directory.get("tools")).capability("echo").routes


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async def wait() -> None:
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.05)

    asyncio.run(wait())


@pytest.mark.browser
def test_an_action_that_reads_nothing_says_what_was_done(running: Hosted, site: Site, tmp_path: Path) -> None:
    open_page = NLWebAction(action_type=ActionType.NAVIGATE, value="/?session=s3cret")
    site.pages["/desk"] = """<ul><li>Blue mug <button onclick="setTimeout(() => {
said.textContent = 'Your order A-1001 is on its way. PIN s3cret-pin'; note.textContent = 'Thank you, Ann'}, 200)">Order
</button></li></ul><input type=password id=p><p id=said></p><p id=note></p>"""
    row = NLWebAction(action_type=ActionType.CLICK, selector='li:has-text("{product}") button', timeout=30)
    hurried = row.model_copy(update={"timeout": 0.3})
    pin = NLWebAction(action_type=ActionType.TYPE, selector="#p", value="s3cret-pin")
    order = [NLWebAction(action_type=ActionType.NAVIGATE, value="/desk"), pin, row]
    actions = {"ring": [open_page], "order": order, "pick": [order[0], hurried]}
    actions["look"] = [order[0], NLWebAction(action_type=ActionType.EXTRACT, selector="li")]
    info = {
        "look": NLWebActionInfo(hints=ActionHints(read_only=True)),
        "order": NLWebActionInfo(hints=ActionHints(consequential=True), preview="look", description="Order it."),
    }
    bell = NLWebInterface(interface_id="bell", name="Bell", base_url=site.url, actions=actions, info=info)
    file = tmp_path / "bell.yaml"
    file.write_text(dump(bell))
    running.run(add(running.server, str(file)))
    outcome = call(running, "bell", capability="ring", input={})
    assert isinstance(outcome, Done), outcome
    assert value_of(outcome.parts) == {"done": "ring", "page": f"{site.url}/"}
    asked = call(running, "bell", capability="order", input={"product": "Blue mug"})
    assert isinstance(asked, Needs)
    said = "Order it at Bell (product: Blue mug): “Blue mug Order”; this has consequences. Do it?"
    assert [question.text for question in asked.questions] == [said]
    ordered = answer(running, asked, **{"agent3:confirm": True})
    assert isinstance(ordered, Done), ordered
    assert value_of(ordered.parts) == {"done": "order", "page": f"{site.url}/desk", "seen": ["Thank you, Ann"]}
    missing = call(running, "bell", capability="pick", input={"product": "Green mug"})
    assert isinstance(missing, Failed)
    assert missing.code == "not_on_page"
    assert missing.message == f"'Green mug' was not found on the page {site.url}/desk"


@pytest.mark.browser
@pytest.mark.requirement("RF-013-45")
@pytest.mark.parametrize("reads_pages", [True, False])
def test_the_model_of_the_settings_reads_a_page_only_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_pages: bool
) -> None:
    rows = [{"name": "Lamp", "price": "€ 20,00"}, {"name": "Sofa", "price": "€ 900,00"}]  # the page shows no sofa
    schema = {"name": "b", "price": {"selector": "i", "type": "price"}}
    steps = [
        {"action_type": "navigate", "value": "/"},
        {"action_type": "extract", "selector": ".gone", "extract_schema": schema},
    ]
    shown = "<p>Today we sell a Lamp, for € 20,00.</p>"
    turn = Turn(calls=(ModelCall("record", {"rows": rows}),))
    monkeypatch.setenv("TEST_LLM_KEY", KEY)
    with Site({"/": shown}) as page, LLMServer(turn) as model:
        lamps = {"interface_id": "lamps", "name": "Lamps", "base_url": page.url, "actions": {"offers": steps}}
        llm = Llm(model="small", base_url=f"{model.url}/v1", key="env:TEST_LLM_KEY", reads_pages=reads_pages)
        settings = Settings(outbound=Outbound(allow_loopback=True), llm=llm)
        with hosted(tmp_path, settings=settings) as running:
            running.run(add(running.server, json.dumps(lamps)))
            found = call(running, "lamps", capability="offers", input={})
    assert isinstance(found, Done)
    assert names(value_of(found.parts)) == (["Lamp"] if reads_pages else [])
    assert len(model.seen) == int(reads_pages)


_DESK = """<!doctype html><title>Desk</title><h1>Desk</h1><label>Nickname <input name=nick></label>
<label>Dark mode <input type=checkbox onchange="said.textContent = 'dark is ' + this.checked"></label>
<form method=post action=/sent><label>Comment <input name=comment></label><button>Send comment</button></form>
<button onclick="fetch('/left', {method: 'POST'}).then(() => ask.showModal())">Leave</button>
<dialog id=ask><p>Really leave for 30 days?</p><button onclick="said.textContent = 'gone'">Yes</button>
<button onclick="ask.close()">No</button></dialog><p id=said></p>"""


@contextmanager
def desk(folder: Path, site: Site, rules: tuple[Rule, ...] = (), **settings: Any) -> Iterator[Hosted]:
    """A gateway that may act on the page of a website, which has two actions of its own."""
    look = [NLWebAction(action_type=ActionType.NAVIGATE, value="/"), NLWebAction(action_type=ActionType.EXTRACT)]
    actions = {"opening_hours": look, "list_prices": look}
    made = NLWebInterface(interface_id="desk", name="Desk", base_url=site.url, actions=actions)
    given = {"web": Web(acts_on_pages=True), "outbound": Outbound(allow_loopback=True), **settings}
    with hosted(folder, settings=Settings(rules=rules, **given)) as running:
        running.run(add(running.server, dump(made, "json")))
        yield running


@pytest.mark.browser
def test_what_no_action_is_for_is_done_on_the_page_where_the_operator_allows_it(tmp_path: Path) -> None:
    rules = (Rule("deny", principal="guest", capability="list_prices"), Rule("allow"))
    with Site({"/": _DESK, "/sent": "<h1>Thank you</h1>", "/left": "ok"}) as site, desk(tmp_path, site, rules) as made:
        dark = call(made, "desk", capability="command", message="turn on Dark mode")
        assert isinstance(dark, Done), dark
        assert value_of(dark.parts)["done"] == ["check checkbox 'Dark mode'"]
        refused = call(made, "desk", capability="command", message="do not turn on Dark mode")
        assert isinstance(refused, Failed)
        asked = call(made, "desk", capability="command", message='type "hi" into Comment and click "Send comment"')
        assert isinstance(asked, Needs)
        assert "Comment: hi" in asked.questions[0].text
        assert "/sent" not in [path for _, path in site.requests]
        sent = answer(made, asked, **{"agent3:confirm": True})
        assert isinstance(sent, Done), sent
        assert value_of(sent.parts)["seen"] == ["Thank you"]
        assert [path for _, path in site.requests].count("/sent") == 1
        unclear = call(made, "desk", capability="command", message="paint the walls green")
        assert isinstance(unclear, Needs)
        assert "Nothing was done" in unclear.questions[0].text
        guest = Caller(Principal("guest"), "test")
        limited = call(made, "desk", who=guest, capability="command", message="turn on Dark mode")
        assert isinstance(limited, Needs), "who may not use all actions gets no way around them"
    with Site({"/": _DESK}) as site, desk(tmp_path / "off", site, web=Web()) as made:
        outcome = call(made, "desk", capability="command", message="turn on Dark mode")
        assert isinstance(outcome, Needs), "off unless the operator says so"


@pytest.mark.browser
def test_a_page_that_asks_after_something_was_sent_is_not_sent_it_again(tmp_path: Path) -> None:
    with Site({"/": _DESK, "/left": "ok"}) as site, desk(tmp_path, site) as made:
        left = call(made, "desk", capability="command", message="click Leave")
        assert isinstance(left, Failed)
        assert "Really leave for 30 days?" in left.message
        assert [path for _, path in site.requests].count("/left") == 1


@pytest.mark.browser
def test_the_model_of_the_settings_proposes_steps_for_callers_too_and_what_worked_is_kept_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [{"control": 0, "do": "write", "value": "Zed"}]
    turn = Turn(calls=(ModelCall("act", {"steps": steps, "finished": True}),))
    monkeypatch.setenv("TEST_LLM_KEY", KEY)
    with Site({"/": _DESK}) as site, LLMServer(Turn(), turn, Turn()) as model:
        llm = Llm(model="small", base_url=f"{model.url}/v1", key="env:TEST_LLM_KEY")
        with desk(tmp_path, site, llm=llm) as made:
            for _ in range(2):
                done = call(made, "desk", capability="command", message="people ought to know me as Zed from today")
                assert isinstance(done, Done), done
            asked = len(model.seen)
            assert list((tmp_path / "learnt").glob("*/*.json"))
    assert asked == 3, "once which action, once for the steps; then only which action"
