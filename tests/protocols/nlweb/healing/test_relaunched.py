"""An extraction that used to find rows: an empty list on the page as it was, no silent one on a page made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent3 import bridge
from agent3.definitions import ActionType
from agent3.env import Env
from agent3.errors import ElementMissing, StorageError
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.healing import ElementKey, ElementRecord, Healer, MemoryStore, Policy
from tests.support.acting import PATIENT, Stage, stage, step

A = ActionType
pytestmark = [pytest.mark.browser, pytest.mark.requirement("RF-013-54")]

HEAD = """<!doctype html><title>Plants</title><header class="top"><nav id="menu"><a href="/">Home</a></nav></header>
<form id="find" class="search"><input id="q" name="q"><button id="go">Search</button></form>"""
FOOT = "<footer class=foot><p class=imprint>Green Corner</p></footer>"
ROWS = f'{HEAD}<div id="list"><div class="card"><b>Plant 12</b><i>9 EUR</i></div></div>{FOOT}'
NONE = f"{HEAD}<p class=none>No plant is called so.</p>{FOOT}"
ANEW = """<!doctype html><title>Plants</title><section class="hero"><div class="finder"><input name="term">
<span role="button">Find</span></div></section><article class="item"><h4>Plant 12</h4><em>9 EUR</em></article>"""
HALF = """<!doctype html><title>Plants</title><header class="top"><nav id="menu"><a href="/">Home</a></nav></header>
<section class="hero"></section><footer></footer>"""
FIELDS = {"name": "b", "price": "i"}
READ = [step(A.NAVIGATE, value="/"), step(A.EXTRACT, ".card", extract_schema=FIELDS, timeout=0.4)]


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage({"/": ROWS}, timeouts=PATIENT) as made:
        yield made


@pytest.fixture
def store(play: Stage) -> MemoryStore:
    made = MemoryStore()
    play.ctx.finder = Healer(play.executor.interface, made, policy=Policy(grace=60), metrics=Metrics())
    play.site.pages["/"] = ROWS
    return made


def test_no_rows_on_the_page_as_it_was_are_an_answer(play: Stage, store: MemoryStore) -> None:
    assert play.act(*READ) == [{"name": "Plant 12", "price": "9 EUR"}]
    play.site.pages["/"] = NONE
    assert play.act(*READ) == []
    assert play.ctx.notices == []


def test_no_rows_where_there_never_were_any_are_an_answer(play: Stage, store: MemoryStore) -> None:
    play.site.pages["/"] = ANEW
    assert play.act(*READ) == []


def test_no_rows_on_a_page_made_anew_are_a_failure(play: Stage, store: MemoryStore) -> None:
    play.act(*READ)
    play.site.pages["/"] = ANEW
    with pytest.raises(ElementMissing, match=r"'\.card' matches nothing .* used to match.*\(agent3 web check"):
        play.act(*READ)
    assert play.act(READ[0], READ[1].model_copy(update={"optional": True})) is None


def test_no_rows_on_a_page_that_changed_much_are_given_with_a_warning(play: Stage, store: MemoryStore) -> None:
    play.act(*READ)
    play.site.pages["/"] = HALF
    assert play.act(*READ) == []
    (notice,) = play.ctx.notices
    assert "the page has changed much" in notice


def test_fields_of_a_page_made_anew_are_not_silently_empty(play: Stage, store: MemoryStore) -> None:
    steps = [READ[0], step(A.EXTRACT, extract_schema={"name": ".card b"}, timeout=0.4)]
    assert play.act(*steps) == {"name": "Plant 12"}
    play.site.pages["/"] = NONE
    assert play.act(*steps) == {"name": None}
    play.site.pages["/"] = ANEW
    with pytest.raises(ElementMissing, match="none of its fields was found"):
        play.act(*steps)


def test_the_page_is_looked_at_anew_when_what_is_known_of_it_is_old(play: Stage, store: MemoryStore) -> None:
    now = [1_000.0]

    class Clock(Env):
        def now(self) -> float:
            return now[0]

    play.ctx.finder = Healer(play.executor.interface, store, metrics=Metrics(), env=Clock())
    where = ElementKey("test", "act", ".card")
    seen = []
    for after in (0.0, 10.0, 4_000.0):
        now[0] = 1_000.0 + after
        play.act(*READ)
        page = bridge.run(store.get(where)).page
        assert page is not None
        seen.append(page.at)
    assert seen == [1_000.0, 1_000.0, 5_000.0]


def test_a_book_that_fails_stops_no_extraction(play: Stage, store: MemoryStore) -> None:
    class Full(MemoryStore):
        async def change(self, where: ElementKey, change: Any) -> ElementRecord:
            raise StorageError("full")

    play.ctx.finder = Healer(play.executor.interface, Full(), metrics=Metrics())
    assert play.act(*READ) == [{"name": "Plant 12", "price": "9 EUR"}]
