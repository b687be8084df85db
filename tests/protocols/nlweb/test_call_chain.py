"""A website's action under the call chain: input is checked, time is kept and failures are repeated by the chain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from agent3.calls.outcomes import response
from agent3.definitions import ActionHints, ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, value_of
from agent3.protocols.nlweb.authoring.files import dump
from agent3.protocols.nlweb.connector import NLWebConnector
from agent3.protocols.nlweb.visit.visits import Visited, Visits
from agent3.schema import compile as compile_schema
from agent3.settings import Calls, Outbound, Settings
from tests.support.gateway import Hosted, hosted
from tests.support.registration import add
from tests.support.sites import Answer as Page
from tests.support.sites import Site
from tests.support.visits import PAGES, shop

ME = Caller(LOCAL, "test")


@contextmanager
def gateway(folder: Path, interface: NLWebInterface, **calls: Any) -> Iterator[Hosted]:
    folder.mkdir(exist_ok=True)
    file = folder / "website.yaml"
    file.write_text(dump(interface))
    settings = Settings(outbound=Outbound(allow_loopback=True), calls=Calls(**calls))
    with hosted(folder, settings=settings) as running:
        running.run(add(running.server, str(file)))
        yield running


def visits_of(running: Hosted) -> Visits:
    connector = running.server.core.connectors["nlweb"]
    assert isinstance(connector, NLWebConnector)
    return connector.visits


async def call(running: Hosted, agent: str = "shop", **request: Any) -> Outcome:
    return await running.server.gateway.call(ME, CallRequest(agent=agent, **request))


# Repeating


@pytest.mark.browser
@pytest.mark.parametrize(("retries", "declared", "requests"), [(0, None, 1), (1, None, 2), (1, 2, 6)])
def test_a_page_that_fails_is_requested_once_for_each_attempt_unless_its_step_declares_retries(
    tmp_path: Path, retries: int, declared: int | None, requests: int
) -> None:
    opening = NLWebAction(action_type=ActionType.NAVIGATE, value="/down", retries=declared)
    with Site({"/down": Page("down", 503)}) as site:
        interface = NLWebInterface(interface_id="shop", name="Shop", base_url=site.url, actions={"open": [opening]})
        with gateway(tmp_path, interface, retries=retries, backoff=0.0) as running:
            outcome = running.run(call(running, capability="open", input={}))
            assert isinstance(outcome, Failed)
            assert (outcome.code, outcome.sent) == ("unavailable", False), "only a page was read"
            assert [row["attempts"] for row in running.rows("calls")] == [retries + 1]
        assert [path for _, path in site.requests].count("/down") == requests


@contextmanager
def held(site: Site, path: str) -> Iterator[Event]:
    """A page whose first answer is held back; the event tells that it was requested."""
    requested, over = Event(), Event()
    page = site.pages[path]

    def hold(query: dict[str, str]) -> Any:
        if not requested.is_set():
            requested.set()
            over.wait(60)
        return page(query) if callable(page) else page

    site.pages[path] = hold
    try:
        yield requested
    finally:
        over.set()
        site.pages[path] = page


async def kill_browser(running: Hosted, requested: Event) -> None:
    assert await asyncio.to_thread(requested.wait, 60)
    chrome = visits_of(running).pool.chrome
    assert chrome is not None
    os.kill((await chrome.list_processes())[0], signal.SIGKILL)


@pytest.mark.browser
@pytest.mark.parametrize("retries", [0, 1])
def test_a_visit_whose_browser_dies_while_it_reads_is_repeated_by_the_chain(tmp_path: Path, retries: int) -> None:
    with Site(PAGES) as site, gateway(tmp_path, shop(site.url), retries=retries) as running:

        async def story(requested: Event) -> Outcome:
            visit = asyncio.create_task(call(running, capability="look", input={"query": "tea"}))
            await kill_browser(running, requested)
            return await visit

        with held(site, "/found") as requested:
            outcome = running.run(story(requested))
        if retries:
            assert isinstance(outcome, Done), outcome
            assert value_of(outcome.parts) == ["tea 1", "tea 2"]
        else:
            assert isinstance(outcome, Failed), outcome
            assert (outcome.code, outcome.retryable, outcome.sent) == ("interrupted", True, False)
        assert [row["attempts"] for row in running.rows("calls")] == [retries + 1]


@pytest.mark.browser
def test_a_visit_whose_browser_dies_after_a_click_is_not_repeated(tmp_path: Path) -> None:
    with Site(PAGES) as site, gateway(tmp_path, shop(site.url), retries=3) as running:

        async def story(requested: Event) -> Outcome:
            asked = await call(running, capability="buy", input={"product": "tea"})
            assert isinstance(asked, Needs)
            assert asked.job is not None
            answer = {"agent3:confirm": Answer(data=True)}
            buying = asyncio.create_task(running.server.gateway.answer(ME, asked.job, answer))
            await kill_browser(running, requested)
            return await buying

        with held(site, "/bought") as requested:
            outcome = running.run(story(requested))
        assert isinstance(outcome, Failed), outcome
        assert (outcome.code, outcome.retryable) == ("interrupted", False)
        assert [path.partition("?")[0] for _, path in site.requests].count("/bought") == 1


# Checking, and time


class Recorded(Visits):
    """Visits that no browser makes: they only note what they were told."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, dict[str, Any], float | None]] = []

    async def visit(
        self, interface: NLWebInterface, name: str, steps: Any, parameters: Mapping[str, Any], **more: Any
    ) -> Visited:
        self.made.append((name, dict(parameters), more["seconds"]))
        return Visited(result={"text": "done"}, sources=[], heals=[], tools=[], notices=[])


def website() -> NLWebInterface:
    """One action, whose input has a default and a bound."""
    schema = {
        "properties": {"words": {"type": "string", "maxLength": 5}, "count": {"type": "integer", "default": 3}},
        "required": ["words", "count"],
    }
    steps = [NLWebAction(action_type=ActionType.NAVIGATE, value="/say?w={words}&n={count}")]
    info = NLWebActionInfo(input_schema=schema, phrases=["say {words}"], hints=ActionHints(read_only=True))
    return NLWebInterface(
        interface_id="shop", name="Shop", base_url="https://shop.example", actions={"say": steps}, info={"say": info}
    )


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hosted, Recorded, list[str]]]:
    """A gateway whose visits are only noted, and the schemas that the connector checks by itself."""
    checks: list[str] = []

    def counting(schema: dict[str, Any]) -> Any:
        checks.append("input" if "properties" in schema else "result")
        return compile_schema(schema)

    monkeypatch.setattr("agent3.protocols.nlweb.connector.compile_schema", counting)
    with gateway(tmp_path, website()) as running:
        connector = running.server.core.connectors["nlweb"]
        assert isinstance(connector, NLWebConnector)
        made = connector.visits = Recorded()
        yield running, made, checks


def test_input_that_the_chain_has_checked_is_not_checked_again(
    recorded: tuple[Hosted, Recorded, list[str]],
) -> None:
    running, made, checks = recorded
    outcome = running.run(call(running, capability="say", input={"words": "tea", "count": 1}))
    assert isinstance(outcome, Done), outcome
    refused = running.run(call(running, capability="say", input={"words": "too long", "count": 1}))
    assert isinstance(refused, Failed)
    assert refused.code == "invalid_input"
    assert checks == []
    assert [(name, parameters) for name, parameters, _ in made.made] == [("say", {"words": "tea", "count": 1})]


def test_what_a_sentence_says_gets_its_defaults_and_is_told_with_the_answer(
    recorded: tuple[Hosted, Recorded, list[str]],
) -> None:
    running, made, checks = recorded
    outcome = running.run(call(running, capability="say", message="say tea"))
    assert isinstance(outcome, Done), outcome
    assert [parameters for _, parameters, _ in made.made] == [{"words": "tea", "count": 3}]
    assert checks == []  # the chain has checked it, as any other input
    assert response(outcome, 0.1)["metadata"]["understood"]["input"] == {"words": "tea"}
    refused = running.run(call(running, capability="say", message="say much too much"))
    assert isinstance(refused, Needs), refused
    assert [question.id for question in refused.questions] == ["words"]
    assert len(made.made) == 1


def test_a_visit_is_told_when_its_call_expires(recorded: tuple[Hosted, Recorded, list[str]]) -> None:
    running, made, _ = recorded
    running.run(call(running, capability="say", input={"words": "tea", "count": 1}, timeout=500.0))
    ((_, _, seconds),) = made.made
    assert seconds is not None
    assert 400 < seconds <= 500
