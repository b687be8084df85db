"""The index: words as search sees them, what fits best, and that changes never need a rebuild."""

from __future__ import annotations

import random
import threading
import weakref
from datetime import datetime
from typing import Any

import pytest
import snowballstemmer
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as some

from agent3.directory.choice import choose, closest, index_capabilities
from agent3.directory.documents import documents_of
from agent3.directory.search import Index
from agent3.directory.words import detect_language, stem, terms
from agent3.model import Agent, Capability, Hints
from agent3.sentences import Understood, read
from agent3.sentences.tokens import LONGEST
from agent3.sentences.word_forms import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Book flights", ["book", "flight"]),
        ("bookFlight", ["book", "flight"]),
        ("get_weather-forecasts", ["get", "weather", "forecast"]),
        ("Cities, boxes & glass", ["city", "box", "glass"]),
        ("Crème BRÛLÉE", ["creme", "brulee"]),
        ("Straße", ["strasse"]),
        ("Москва 東京", ["москва", "東京"]),
        ("", []),
    ],
)
def test_words_are_without_case_accent_and_plural(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_threads_do_not_disturb_each_other_in_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    stemmer = type(snowballstemmer.stemmer("english"))
    inside, go_on = threading.Event(), threading.Event()
    reduce = stemmer._stem
    found: list[str] = []

    def pausing(self: Any) -> Any:
        if threading.current_thread() is other:
            inside.set()
            assert go_on.wait(120)
        return reduce(self)

    monkeypatch.setattr(stemmer, "_stem", pausing)
    other = threading.Thread(target=lambda: found.append(stem("marinadings")))
    other.start()
    assert inside.wait(120)
    assert stem("quarterings") == "quarter"
    go_on.set()
    other.join(120)
    assert found == ["marinad"]


def test_terms_are_stems_without_the_words_that_every_request_has() -> None:
    assert list(terms("Please show me the bookings of HTTPServer, I need them")) == ["book", "http", "server"]
    assert list(terms("¿Quiero reservar los vuelos más baratos?", "spanish")) == ["reserv", "vuel", "barat"]
    assert detect_language("¿Quiero reservar los vuelos?") == "spanish"
    assert detect_language("I want to book the flights") == "english"


def tool(agent: str, name: str, description: str = "", **properties: Any) -> Agent:
    schema = {"type": "object", "properties": properties}
    capability = Capability(name=name, description=description, input_schema=schema)
    return Agent(id=agent, name=agent, capabilities=(capability,))


def first(agents: list[Agent], query: str) -> str:
    matches = list(Index({agent.id: agent for agent in agents}).rank(query))
    return matches[0].agent if matches else ""


def test_what_only_the_schema_says_is_found_too() -> None:
    convert = tool("fx", "convert", "Changes amounts", target={"enum": ["USD", "EUR"], "description": "The currency"})
    other = tool("units", "measure", "Changes lengths", target={"enum": ["m", "ft"], "description": "The unit"})
    for query in ("EUR", "which currency", "target currency usd"):
        assert first([other, convert], query) == "fx", query


def test_a_name_is_worth_more_than_a_mention() -> None:
    named = tool("a", "delete_file", "Removes one.")
    mentions = tool("b", "list_directory", "Lists what is there. Never use it to delete a file: it cannot.")
    assert first([mentions, named], "delete a file") == "a"


def test_a_misspelt_word_another_word_and_a_spanish_word_find_it() -> None:
    agents = [
        tool("calendar", "list_events", "Events of the calendar"),
        tool("files", "create_directory", "Create a new directory"),
        tool("git", "list_repositories", "The repositories of an account"),
        tool("mail", "send_email", "Send it to an address"),
    ]
    for query, wanted in {
        "calender": "calendar",
        "calen": "calendar",
        "a new folder": "files",
        "my repos": "git",
        "hazme una carpeta": "files",
        "write to ada@example.com": "mail",
    }.items():
        assert first(agents, query) == wanted, query


def test_a_date_helps_and_finds_nothing_alone() -> None:
    agents = [tool("trains", "find", "Trains of a date"), tool("calendar", "add_event", "Add an event on a date")]
    assert Index({agent.id: agent for agent in agents}).search("who won yesterday") == []
    assert first(agents, "a train tomorrow") == "trains"
    assert first(agents, "an event on 2027-01-01") == "calendar"


def test_of_a_long_query_only_the_beginning_is_looked_for() -> None:
    index = Index({name: Agent(id=name, name=name) for name in ("pizza", "pasta")})
    long = " ".join(f"w{number}" for number in range(100_000))
    assert [match.agent for match in index.rank(f"a pizza {long} pasta")] == ["pizza"]
    assert list(index.rank(f"{long} pasta")) == []


@given(some.text(max_size=200))
def test_any_text_is_found_again(text: str) -> None:
    index = Index({"a": Agent(id="a", name="A", description=text), "b": Agent(id="b", name="B")})
    for match in index.rank(text):
        assert match.agent in ("a", "b")
        assert 0 < match.score <= 1


def test_an_empty_index_finds_nothing() -> None:
    assert list(Index({}).rank("anything")) == []
    assert Index({}).search("anything") == []


def test_an_exact_name_is_first_however_it_is_written() -> None:
    agents = [tool("time", "get_time", "Time"), tool("clock", "time_time_time", "time time time get get")]
    for query in ("get_time", "time/get_time", "time.get_time", "time__get_time", "TIME"):
        assert first(agents, query) == "time", query
    index = Index({agent.id: agent for agent in agents})
    assert next(iter(index.rank("get_time")))[:3] == ("time", "get_time", 1.0)


WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrt"]


def some_agent(number: int, seed: int, most: int = 12) -> Agent:
    chosen = random.Random(seed)

    def text(count: int) -> str:
        return " ".join(chosen.choices(WORDS, weights=range(len(WORDS), 0, -1), k=count))

    offered = tuple(
        Capability(name=f"{text(2).replace(' ', '_')}_{at}", description=text(8))
        for at in range(chosen.randint(0, most))
    )
    return Agent(id=f"agent-{number}", name=text(2), description=text(4), capabilities=offered)


def tidy(index: Index) -> None:
    while plan := index.plan():
        index.swap(plan, index.build(plan))


@how(max_examples=8)
@given(some.integers(0, 10_000), some.booleans())
def test_an_index_that_lived_long_finds_what_a_new_one_finds(seed: int, tidied: bool) -> None:
    chosen = random.Random(seed)
    index, agents = Index(), dict[str, Agent]()
    with pytest.MonkeyPatch.context() as patch:  # so few documents fill as many segments as in a long life
        patch.setattr("agent3.directory.search._BUFFERED", 16)
        for step in range(80):
            agent = some_agent(chosen.randrange(40), seed + step, 4)
            if chosen.random() < 0.25:
                index.remove(agent.id)
                agents.pop(agent.id, None)
            else:
                index.put(agent, documents_of(agent))
                agents[agent.id] = agent
            if tidied and step % 7 == 0:
                tidy(index)
        fresh = Index(agents)
        assert len(index) == len(fresh) == sum(max(1, len(agent.capabilities)) for agent in agents.values())
        for number in range(5):
            query = " ".join(chosen.choices(WORDS, k=number + 1))
            found = {(match.agent, match.capability) for match in index.rank(query)}
            assert found == {(match.agent, match.capability) for match in fresh.rank(query)}
        tidy(index)
        assert {match.agent for match in index.rank(WORDS[0])} == {match.agent for match in fresh.rank(WORDS[0])}


def test_what_is_removed_while_segments_are_merged_stays_removed() -> None:
    index = Index()
    for number in range(400):
        agent = some_agent(number, number)
        index.put(agent, documents_of(agent))
    plan = index.plan()
    assert plan
    built = index.build(plan)
    index.remove("agent-3")
    renewed = some_agent(4, 9_999)
    index.put(renewed, documents_of(renewed))
    index.swap(plan, built)
    for word in WORDS:
        matches = list(index.rank(word))
        assert all(match.agent != "agent-3" for match in matches)
        offered = {capability.name for capability in renewed.capabilities} | {None}
        assert {match.capability for match in matches if match.agent == "agent-4"} <= offered
        assert len(set(matches)) == len(matches)


def test_what_is_removed_before_its_segment_is_sealed_stays_removed() -> None:
    index, buffered = Index(), 512
    index.put(gone := Agent(id="gone", name="gone", description="marmalade"), documents_of(gone))
    index.remove("gone")
    for number in range(buffered):
        agent = Agent(id=f"agent-{number}", name="other", description="toast")
        index.put(agent, documents_of(agent))
    assert index.rank("marmalade").best == 0.0


def test_capabilities_without_a_word_of_meaning_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.directory.search._BUFFERED", 2)
    index = Index({f"{number}": Agent(id=f"{number}", name="the", description="of") for number in ("a", "is", "and")})
    for agent_id in ("or", "the", "an", "in", "on"):
        index.put(agent := Agent(id=agent_id, name="the"), documents_of(agent))
    tidy(index)
    assert list(index.rank("marmalade of the")) == []
    assert next(iter(index.rank("or")))[:3] == ("or", None, 1.0)


def test_terms_of_agents_that_are_gone_leave_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.directory.search._BUFFERED", 8)
    monkeypatch.setattr("agent3.directory.segments._FEWEST_SHRUNK", 100)
    index, kept = Index(), Agent(id="kept", name="kept", description="wholesome marmalade")
    index.put(kept, documents_of(kept))
    for number in range(30):
        words = " ".join(f"term{number}x{place}" for place in range(20))
        agent = Agent(id="changing", name="changing", description=words)
        index.put(agent, documents_of(agent))
        tidy(index)
    vocabulary = index._state[2]
    assert len(vocabulary) < 500
    assert [match.agent for match in index.rank("marmalade wholesome")] == ["kept"]
    assert [match.agent for match in index.rank("term29x7")] == ["changing"]
    assert vocabulary.starting_with("marma") == ["marmalad"]


def test_what_was_ranked_is_freed_without_the_garbage_collector() -> None:
    index, agent = Index(), some_agent(1, 1)
    index.put(agent, documents_of(agent))
    ranking = index.rank(WORDS[0])
    next(iter(ranking), None)
    held = weakref.ref(ranking)
    del ranking
    assert held() is None


def test_exact_names_are_found_after_many_others_came_and_went() -> None:
    index = Index()
    for number in range(1_500):
        agent = Agent(id="changing", name="Changing", capabilities=(Capability(name=f"do_{number}"),))
        index.put(agent, documents_of(agent))
    assert index.having("DO_1499") == ["changing"]
    assert index.having("do_7") == []
    assert [match[:3] for match in index.rank("changing/do_1499")][:1] == [("changing", "do_1499", 1.0)]


def test_many_may_search_while_one_writes() -> None:
    index = Index()
    steady = some_agent(1_000_000, 7)
    index.put(steady, documents_of(steady))
    query = steady.capabilities[0].name.replace("_", " ")
    done, wrong = threading.Event(), list[str]()

    def read() -> None:
        while not done.is_set():
            matches = list(index.rank(query))
            if sum(match.agent == steady.id for match in matches) != len({m for m in matches if m.agent == steady.id}):
                wrong.append("twice")
            if all(match.agent != steady.id for match in matches):
                wrong.append("lost")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(300):
        agent = some_agent(number % 100, number)
        index.put(agent, documents_of(agent))
        tidy(index)
    done.set()
    for reader in readers:
        reader.join(20)
    assert wrong == []


def test_a_name_counts_also_where_it_is_made_of_words_that_say_nothing() -> None:
    offered = tuple(Capability(name=name, description=text) for name, text in (("get_pet", "One"), ("add_pet", "New")))
    index = index_capabilities(offered)
    assert choose(index, offered, "get pet 2", 0.0) is offered[0]
    assert choose(index, offered, "get or add a pet", 0.0) is None


def test_a_message_is_for_the_only_capability_that_has_a_place_for_each_of_its_words() -> None:
    def tool(name: str, told: str, **texts: str) -> Capability:
        properties = {key: {"type": "string", "description": text} for key, text in texts.items()}
        schema = {"type": "object", "properties": properties, "required": [*texts]}
        return Capability(name=name, description=told, input_schema=schema)

    source, destination = "Path of the file", "New path"
    move = tool("move_file", "Move a file or directory.", source=source, destination=destination)
    create = tool("create_directory", "Create a new directory.", path="Path of the directory")
    write = tool("write_file", "Create a new file or overwrite one.", path="Path of the file", content="Content")
    read = tool("read_file", "Read a file.", path="Path of the file")
    media = tool("read_media_file", "Read a file as an image.", path="Path of the file")
    offered = [move, create, write, read, media]
    index = index_capabilities(offered)
    assert choose(index, offered, "crea una carpeta llamada fotos en /srv/a", 0.0) is create
    assert choose(index, offered, "move /srv/a.txt to /srv/b.txt", 0.0) is move
    assert choose(index, offered, "lee /srv/a.txt", 0.0) is None, "two of them read it"
    assert choose(index, offered, "mueve /srv/a.txt a /srv/b.txt", 0.0) is move


def test_what_only_reads_is_chosen_by_its_phrase_as_a_question() -> None:
    look, query = Hints(read_only=True), {"properties": {"query": {"type": "string"}}, "required": ["query"]}
    schema = {"type": "object", **query}
    none = {"type": "object", "properties": {}}
    cart = Capability(
        name="show_cart", description="Show the cart", phrases=("what is in my cart",), input_schema=none, hints=look
    )
    goods = Capability(
        name="search", description="Search goods", phrases=("do you have {query}",), input_schema=schema, hints=look
    )
    pay = Capability(name="checkout", description="Pay for the cart", phrases=("pay the cart",), input_schema=none)
    offered = [cart, goods, pay]
    index = index_capabilities(offered)
    assert choose(index, offered, "what is in my cart?", 0.0) is cart
    assert read(goods, "do you have a mug?", datetime(2027, 1, 1)) == Understood(
        {"query": "mug"}, (("a mug?", "query"),)
    )
    assert choose(index, offered, "pay the cart?", 0.0) is not goods


def test_the_capability_that_is_meant_is_chosen_only_if_that_is_clear() -> None:
    offered = (
        Capability(name="list_orders", description="Show the orders of a customer"),
        Capability(name="cancel_order", description="Cancel an order"),
        Capability(name="create_order", description="Place an order for a product"),
    )
    index = index_capabilities(offered)

    def chosen(message: str) -> str | None:
        found = choose(index, offered, message, 0.0)
        return found.name if found is not None else None

    assert chosen("cancel my order") == "cancel_order"
    assert chosen("create_order") == "create_order"
    assert chosen("list the orders, please") == "list_orders"
    assert chosen("something with an order") is None
    assert chosen("cancel or create the order") is None
    assert chosen("what a nice day") is None
    assert chosen("nothing of the kind") is None
    assert choose(index, offered[:1], "cancel my order", 0.0) is not offered[1], "what is not offered is not chosen"


def test_a_message_is_read_to_a_bound() -> None:
    """What comes from a stranger may be a megabyte, and is read in the event loop."""
    offered = [Capability(name=name, description=name) for name in ("order_pizza", "cancel_booking")]
    index = index_capabilities(offered)
    filling = "well " * (LONGEST // 5)
    assert choose(index, offered, f"order pizza {filling}", 0.0) == offered[0]
    assert choose(index, offered, f"{filling} order pizza", 0.0) is None
    assert closest(index, offered, f"{filling} cancel booking", 1) == offered[:1]


@pytest.mark.parametrize("reads", [True, False])
def test_one_that_a_message_says_all_for_is_chosen_before_one_that_it_leaves_open(reads: bool) -> None:
    zone = {"type": "string", "description": "IANA timezone name, such as 'Europe/London'"}
    clock = {"type": "string", "description": "Time in 24-hour format (HH:MM)"}
    converted = {"source_timezone": zone, "time": clock, "target_timezone": zone}
    now, convert = (
        Capability(
            name=name,
            description=told,
            hints=Hints(read_only=reads),
            input_schema={"type": "object", "properties": fields, "required": [*fields]},
        )
        for name, told, fields in (
            ("get_current_time", "Get current time in a specific timezone", {"timezone": zone}),
            ("convert_time", "Convert time between timezones", converted),
        )
    )
    offered = [now, convert]
    for message in ("what time is it in Tokyo", "the time in Tokyo, please"):
        assert choose(index_capabilities(offered), offered, message, 1_795_000_000.0) == now
    full = "convert 10:30 from Europe/Madrid to Asia/Tokyo"
    assert choose(index_capabilities(offered), offered, full, 1_795_000_000.0) == convert


def test_a_rare_synonym_does_not_outdo_the_word_itself() -> None:
    files = [Capability(name=name, description="Works on a file.") for name in ("write_file", "move_file", "edit_file")]
    files.append(Capability(name="read_file", description="Read a file."))
    other = Capability(name="gzip_file", description="Compress a file to download, read from an upload or document.")
    index = Index(
        {
            agent.id: agent
            for agent in (
                Agent(id="files", name="Files", capabilities=tuple(files)),
                Agent(id="other", name="Other", capabilities=(other,)),
            )
        }
    )
    assert next(iter(index.rank("read a file"))).capability == "read_file"


def test_what_stands_between_numbers_is_arithmetic() -> None:
    calculate = Capability(name="calculate", description="Work out an arithmetic expression.")
    clock = Capability(name="convert_time", description="Convert a time between time zones.")
    index = Index(
        {
            "calculator": Agent(id="calculator", name="Calculator", capabilities=(calculate,)),
            "clock": Agent(id="clock", name="Clock", capabilities=(clock,)),
        }
    )
    assert [next(iter(index.rank(text))).agent for text in ("what is 15 times 23", "12 percent of 80")] == [
        "calculator"
    ] * 2
    assert next(iter(index.rank("how many times zones are there"))).agent == "clock"


@pytest.mark.parametrize(
    ("text", "number"),
    [("on 2026-07-28", "2026"), ("open 24/7", "24"), ("for 12-30 people", "12"), ("call 555-1234", "555")],
)
def test_numbers_that_are_no_sum_stay_whole_and_find_no_calculator(text: str, number: str) -> None:
    calculate = Capability(name="calculate", description="Work out an arithmetic expression.")
    other = Capability(name="other", description=f"About {number}.")
    index = Index(
        {
            "calculator": Agent(id="calculator", name="Calculator", capabilities=(calculate,)),
            "right": Agent(id="right", name="Right", capabilities=(other,)),
        }
    )
    assert [one.agent for one in index.rank(text)] == ["right"]


@pytest.mark.parametrize("text", ["list the files in /var/log/", "open src/lib/", "a/b"])
def test_a_folder_is_a_path_too(text: str) -> None:
    look = Capability(name="look", description="Show what is at a path.")
    index = Index({"paths": Agent(id="paths", name="Disk", capabilities=(look,))})
    assert [one.agent for one in index.rank(text)] == ["paths"]


@pytest.mark.parametrize("text", ["leer un archivo", "lee el archivo", "¿puedes leer este fichero?"])
def test_spanish_words_find_english_cards_before_false_friends(text: str) -> None:
    read = Capability(name="read_file", description="Read the contents of a file.")
    block = Capability(name="update_block", description="Whether the block is archived.")
    index = Index(
        {
            agent.id: agent
            for agent in (
                Agent(id="files", name="Files", capabilities=(read, Capability(name="move_file"))),
                Agent(id="notes", name="Notes", capabilities=(block,)),
            )
        }
    )
    assert next(iter(index.rank(text))).capability == "read_file"
