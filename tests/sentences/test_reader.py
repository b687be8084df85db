"""Sentences for capabilities of many kinds: the input they mean, the question they leave, or nothing at all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from agent3.model import Capability, Hints
from agent3.sentences import Ask, Forbidden, Reading, Understood, find_prohibition, free_text, read

NOW = datetime(2026, 11, 16, 10, 0)  # a Monday
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def capability(name: str, *required: str, **given: Any) -> Capability:
    """``told`` is its description and ``reads`` says that it only reads; all others are its parameters."""
    told, reads = given.pop("told", ""), given.pop("reads", False)
    schema = {"type": "object", "properties": given, "required": list(required)}
    return Capability(name=name, description=told, input_schema=schema, hints=Hints(read_only=reads))


FOLDER = capability("create_directory", "path", told="Create a new directory.", path=TEXT)
MOVE = capability("move_file", "source", "destination", told="Move or rename files.", source=TEXT, destination=TEXT)
ISSUE = capability(
    "create_issue",
    "owner",
    "repo",
    "title",
    told="Create a new issue in a repository",
    owner=TEXT,
    repo=TEXT,
    title=TEXT,
    body=TEXT,
    labels={"type": "array", "items": TEXT},
)
TABLE = capability(
    "book_table",
    "restaurant",
    "date",
    "time",
    "people",
    told="Book a table at a restaurant",
    restaurant={**TEXT, "description": "Restaurant name"},
    date={**TEXT, "format": "date"},
    time={**TEXT, "description": "HH:MM"},
    people={**WHOLE, "minimum": 1},
)
MONEY = capability(
    "convert_currency",
    "amount",
    "from",
    "to",
    told="Convert an amount between two currencies",
    reads=True,
    amount={"type": "number"},
    **{"from": {**TEXT, "description": "ISO 4217 code"}, "to": {**TEXT, "description": "ISO 4217 code"}},
)
COMMITS = capability(
    "list_commits", "path", told="List commits", reads=True, path=TEXT, max_count=WHOLE, all={"type": "boolean"}
)
ROUTE = capability(
    "get_directions",
    "origin",
    "destination",
    told="Directions between two places",
    reads=True,
    origin=TEXT,
    destination=TEXT,
    mode={"enum": ["driving", "walking", "transit"]},
)
SEARCH = capability("search_notes", "query", told="Search the notes", reads=True, query=TEXT)


def said(what: Capability, sentence: str) -> Reading:
    return read(what, sentence, NOW)


@pytest.mark.requirement("AC-29")
@pytest.mark.parametrize(
    ("what", "sentence", "expected"),
    [
        (FOLDER, "please create a folder called photos in /tmp/work", {"path": "/tmp/work/photos"}),
        (FOLDER, "Crea la carpeta /home/ana/fotos", {"path": "/home/ana/fotos"}),
        (MOVE, "Move a.txt to b.txt", {"source": "a.txt", "destination": "b.txt"}),
        (MOVE, "Pasa a /b/x.csv el fichero /a/x.csv", {"source": "/a/x.csv", "destination": "/b/x.csv"}),
        (
            ISSUE,
            'Open an issue in acme/web titled "Login fails" with body "On Safari" and labels bug, ui and login',
            {
                "owner": "acme",
                "repo": "web",
                "title": "Login fails",
                "body": "On Safari",
                "labels": ["bug", "ui", "login"],
            },
        ),
        (
            TABLE,
            "Book a table at Casa Lucio for 4 people next Friday at 9pm",
            {"restaurant": "Casa Lucio", "date": "2026-11-20", "time": "21:00", "people": 4},
        ),
        (
            TABLE,
            "Reserva mesa en El Bulli para dos personas el 4 de marzo de 2027 a las 21:30",
            {"restaurant": "El Bulli", "date": "2027-03-04", "time": "21:30", "people": 2},
        ),
        (MONEY, "How much is 1,000.50 dollars in euros?", {"amount": 1000.5, "from": "USD", "to": "EUR"}),
        (MONEY, "Pásame 1.000,50 euros a libras esterlinas", {"amount": 1000.5, "from": "EUR", "to": "GBP"}),
        (COMMITS, "show the last five commits of /srv/app", {"path": "/srv/app", "max_count": 5}),
        (
            ROUTE,
            "How do I get from Atocha to Plaza Mayor on foot?",
            {"origin": "Atocha", "destination": "Plaza Mayor", "mode": "walking"},
        ),
        (SEARCH, "Search the notes for Laura's birthday", {"query": "Laura's birthday"}),
        (SEARCH, "Busca las notas sobre cafeteras", {"query": "cafeteras"}),
    ],
)
def test_a_sentence_fills_the_schema(what: Capability, sentence: str, expected: Any) -> None:
    found = said(what, sentence)
    assert isinstance(found, Understood), found
    assert found.input == expected
    assert found.guessed == ()


@pytest.mark.parametrize(
    ("what", "sentence", "missing"),
    [
        (FOLDER, "create a folder", ("path",)),
        (MOVE, "Mueve /home/eva/foto.png", ("destination",)),
        (TABLE, "Reserva mesa en El Bulli para dos personas mañana", ("time",)),
        (MONEY, "Convert 80 euros, please", ("to",)),
        (MONEY, "¿Cuánto son 500 pesos en euros?", ("amount", "from")),
    ],
)
def test_what_is_missing_is_asked_for(what: Capability, sentence: str, missing: tuple[str, ...]) -> None:
    found = said(what, sentence)
    assert isinstance(found, Ask)
    assert set(found.missing) & set(missing)


@pytest.mark.parametrize(
    ("what", "sentence", "left"),
    [
        (MOVE, "Move a.txt to b.txt and print two copies", "print"),
        (COMMITS, "show the commits of /srv/app in glorious colours", "glorious"),
        (MONEY, "Convert 80 euros to dollars and buy shoes", "shoes"),
        (FOLDER, "Delete /tmp/work", "Delete"),
    ],
)
def test_a_word_without_a_place_leads_to_a_question(what: Capability, sentence: str, left: str) -> None:
    found = said(what, sentence)
    assert isinstance(found, Ask)
    assert left in found.left


FORBIDDING = [
    "Don't create /tmp/x", "do not create the folder /tmp/x", "Please don't create /tmp/x", "Never create /tmp/x",
    "You must not create /tmp/x", "never mind, leave /tmp/x", "Create /tmp/x if it rains",
    "Unless I call, create /tmp/x",
    "create /tmp/x unless it exists", "What would happen if I create /tmp/x?", "Should I create /tmp/x?",
    "I did not ask you to create /tmp/x", "I never said create /tmp/x", "Cancel that, /tmp/x", "forget it: /tmp/x",
    "create /tmp/x? Actually, no", "Stop creating /tmp/x", "Avoid creating /tmp/x", "There is no need to create /tmp/x",
    "create /tmp/x when I tell you", "Once I am back, create /tmp/x", "I already created /tmp/x", "We created /tmp/x",
    "Did you create /tmp/x?", "Who created /tmp/x?", "Wait, create /tmp/x", "Create /tmp/x, on second thought no",
    "No crees /tmp/x", "no crees la carpeta /tmp/x", "Por favor, no crees /tmp/x", "Nunca crees /tmp/x",
    "Ni se te ocurra crear /tmp/x", "Todavía no crees /tmp/x", "Aún no crees /tmp/x", "Ya no crees /tmp/x",
    "Crea /tmp/x si llueve", "Si existe /tmp/y, crea /tmp/x", "Crea /tmp/x a menos que exista",
    "¿Qué pasaría si creo /tmp/x?", "¿Debería crear /tmp/x?", "No te pedí que crearas /tmp/x", "Olvídalo, /tmp/x",
    "Deja de crear /tmp/x", "Evita crear /tmp/x", "No hace falta crear /tmp/x", "Crea /tmp/x cuando te avise",
    "Antes de crear /tmp/x, avísame", "Ya he creado /tmp/x", "¿Has creado /tmp/x?", "Cancela eso, /tmp/x",
    "Espera, crea /tmp/x", "En vez de crear /tmp/x, nada", "Jamás crees /tmp/x", "Mejor no crees /tmp/x",
]  # fmt: skip


@pytest.mark.parametrize("sentence", FORBIDDING)
def test_a_sentence_that_forbids_leads_to_nothing(sentence: str) -> None:
    assert isinstance(said(FOLDER, sentence), Forbidden)


@pytest.mark.parametrize(
    "sentence",
    [
        "Don't forget to create /tmp/x",
        "If you don't mind, create /tmp/x",
        "Si puedes, crea /tmp/x",
        "No te olvides de crear /tmp/x",
    ],
)
def test_a_courtesy_forbids_nothing(sentence: str) -> None:
    found = said(FOLDER, sentence)
    assert isinstance(found, Understood)
    assert found.input == {"path": "/tmp/x"}


def test_what_is_quoted_or_is_the_text_of_a_message_forbids_nothing() -> None:
    assert find_prohibition('Post "do not delete the branch" in #ops') is None
    assert find_prohibition("Tell the team that we do not work on Friday") is None
    assert find_prohibition("Do not post: we work on Friday") == "forbids"


def test_two_readings_that_are_as_good_lead_to_a_question() -> None:
    merge = capability("pull", "head", "base", told="Open a request", head=TEXT, base=TEXT)
    found = said(merge, "pull feature-a and feature-b")
    assert isinstance(found, Ask)


def test_a_date_that_can_be_read_in_two_ways_is_asked_for() -> None:
    found = said(TABLE, "Book a table at Casa Lucio for 4 people on 03/04/2027 at 9pm")
    assert isinstance(found, Ask)
    assert found.missing == ("date",)


@pytest.mark.parametrize("name", ["path", "url", "sql", "customer_id", "city"])
def test_a_whole_message_never_fills_what_is_no_free_text(name: str) -> None:
    assert free_text(capability("use", name, **{name: TEXT}), "anything at all") is None


def test_a_whole_message_is_free_text_where_that_is_taken() -> None:
    assert free_text(capability("chat", "message", message=TEXT), "if it rains, what then?") == {
        "message": "if it rains, what then?"
    }
    assert free_text(SEARCH, "blue shoes") == {"query": "blue shoes"}
    assert free_text(SEARCH, "search for blue shoes") is None, "only what is sought is the query"
    echo = capability("echo", "message", reads=True, message=TEXT)
    assert free_text(echo, "echo hello world") == {"message": "hello world"}
    order = capability("order", "message", told="Order a pizza", message=TEXT)
    assert free_text(order, "do not order anything") is None, "what just this forbids is not passed on"


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"properties": 7, "required": "x"},
        {"properties": {"a": True, "b": {"$ref": "#/properties/b"}, "c": {"enum": []}}, "required": [1, "c"]},
        {"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/nowhere"}]}}},
    ],
)
def test_a_strange_schema_is_no_obstacle(hostile: Any) -> None:
    found = read(Capability(name="x", input_schema=hostile), "do it with a and b", NOW)
    assert isinstance(found, Ask | Understood)


def test_the_work_for_one_sentence_is_bounded() -> None:
    many = capability("set", *[f"field_{number}" for number in range(60)], **{f"field_{n}": TEXT for n in range(60)})
    assert isinstance(said(many, "set " + "to a, from b and " * 110), Ask)
    assert isinstance(said(many, "x" * 100_000), Ask)
