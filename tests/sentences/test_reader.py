"""Sentences for capabilities of many kinds: the input they mean, the question they leave, or nothing at all."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import pytest

from agent3.model import Capability, Hints
from agent3.sentences import (
    FREE_TEXT,
    Ask,
    Forbidden,
    Reading,
    Understood,
    find_dictated_refusal,
    find_prohibition,
    free_text,
    read,
)
from agent3.sentences.questions import ask_for

NOW = datetime(2026, 11, 16, 10, 0)  # a Monday
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def capability(name: str, /, *required: str, **given: Any) -> Capability:
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


STORE = capability("store", "information", told="Keep a piece of information.", information=TEXT, collection_name=TEXT)
PAGES = capability("map_site", "url", told="Map a site", reads=True, url=TEXT, search=TEXT, limit=WHOLE)
CARD = capability("add_card", "listId", "title", told="Add a card to a list.", listId=TEXT, title=TEXT,
                  dueDate={**TEXT, "description": "ISO 8601 date-time"}, start={**TEXT, "format": "date"})  # fmt: skip
TRANSLATE = capability("translate", "text", "lang", told="Translate a text.", reads=True, text=TEXT, lang=TEXT)
RELEASES = capability("package_info", "package", told="Look up a package", reads=True, package=TEXT, version=TEXT)


@pytest.mark.parametrize(
    ("what", "sentence", "wrong"),
    [
        (STORE, 'Me gustaría que almacenes "no llamar los lunes" en la colección contactos', "almacenes"),
        (PAGES, "Mapea https://ayuda.example.es con la búsqueda tarjetas", "búsqueda"),
        (RELEASES, "Version history of the package ripgrep", "history"),
        (CARD, "Add the card 'Send it' to the list 5f2a1c9e8b7d6a0012ab34cd, due this Friday at 5pm", "'start'"),
    ],
)
def test_no_value_holds_a_word_that_only_leads_to_it(what: Capability, sentence: str, wrong: str) -> None:
    reading = said(what, sentence)
    assert not isinstance(reading, Understood) or wrong not in str(reading.input), reading


def test_what_is_said_keeps_the_mark_that_says_how() -> None:
    reading = said(TRANSLATE, "Translate this into German: Where is the train station?")
    assert isinstance(reading, Understood)
    assert reading.input == {"text": "Where is the train station?", "lang": "de"}


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
    "I would have created /tmp/x", "Someone else will create /tmp/x", "Yo habría creado /tmp/x",
    "Otra persona va a crear /tmp/x",
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
    assert isinstance(free_text(order, "do not order anything"), Forbidden), "what just this forbids is not passed on"


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


IMAGE = capability(
    "generate_image",
    "prompt",
    told="Generate an image from a text prompt",
    prompt={**TEXT, "description": "Description of the image"},
    style={"enum": ["vivid", "natural"]},
    n={**WHOLE, "description": "Number of images to generate"},
)
PAPERS = capability(
    "search_papers",
    "query",
    told="Search academic papers",
    reads=True,
    query=TEXT,
    author={**TEXT, "description": "Filter by author name"},
    year_from={**WHOLE, "description": "Earliest publication year"},
    year_to={**WHOLE, "description": "Latest publication year"},
)
TRANSFER = capability(
    "transfer_funds",
    "from_account",
    "to_account",
    "amount",
    told="Transfer money between accounts",
    from_account={**TEXT, "description": "Source account id"},
    to_account={**TEXT, "description": "Destination account id"},
    amount={"type": "number"},
    currency={**TEXT, "description": "ISO 4217 currency code"},
)
TIMER = capability(
    "start_timer",
    "duration_seconds",
    told="Start a countdown timer",
    duration_seconds={**WHOLE, "description": "Duration in seconds"},
    label={**TEXT, "description": "Name of the timer"},
)
MAIL = capability(
    "send_email",
    "to",
    "subject",
    "body",
    told="Sends a new email",
    to={"type": "array", "items": TEXT, "description": "List of recipient email addresses"},
    subject=TEXT,
    body=TEXT,
    cc={"type": "array", "items": TEXT, "description": "List of CC recipients"},
    inReplyTo={**TEXT, "description": "Message ID being replied to"},
)
STOCK = capability(
    "update_inventory",
    "sku",
    "quantity",
    told="Update the stock level of a product",
    sku={**TEXT, "description": "Product SKU"},
    quantity={**WHOLE, "description": "New quantity in stock"},
)
DELETE = capability(
    "delete_invoice", "number", told="Delete an invoice", number={**TEXT, "description": "Invoice number"}
)


@pytest.mark.parametrize(
    ("what", "sentence", "expected"),
    [
        (
            IMAGE,
            "Make 3 natural images of a mountain lake",
            {"prompt": "a mountain lake", "style": "natural", "n": 3},
        ),
        (IMAGE, "Genera una imagen de un gato con sombrero en estilo natural", {"prompt": "un gato con sombrero",
                                                                                "style": "natural"}),
        (
            PAPERS,
            "Search papers about graph neural networks by Kipf since 2017",
            {"query": "graph neural networks", "author": "Kipf", "year_from": 2017},
        ),
        (
            PAPERS,
            "Busca artículos sobre energía solar publicados entre 2019 y 2022",
            {"query": "energía solar", "year_from": 2019, "year_to": 2022},
        ),
        (
            TRANSFER,
            "Transfiere 1.200 dólares de la cuenta A-77 a la cuenta B-12",
            {"from_account": "A-77", "to_account": "B-12", "amount": 1200, "currency": "USD"},
        ),
        (TIMER, "Pon un temporizador de una hora y media", {"duration_seconds": 5400}),
        (TIMER, "I'm cooking, start a 90 second timer called eggs", {"duration_seconds": 90, "label": "eggs"}),
        (
            MAIL,
            'Please send "It is back up." to ops@acme.dev with the subject "Status", cc boss@acme.dev',
            {"to": ["ops@acme.dev"], "subject": "Status", "body": "It is back up.", "cc": ["boss@acme.dev"]},
        ),
    ],
)  # fmt: skip
def test_words_that_carry_meaning_find_their_parameter(what: Capability, sentence: str, expected: Any) -> None:
    found = said(what, sentence)
    assert isinstance(found, Understood), found
    assert found.input == expected


MERGE = capability("merge_pdfs", "files", "output", files={"type": "array", "items": TEXT}, output=TEXT)
FIND_MAIL = capability("search_emails", "query", query=TEXT, max_results={"type": "integer", "maximum": 100})
LANGUAGES = {"type": "string", "enum": ["EN", "ES", "DE", "IT"], "description": "Target language code"}
TO_LANGUAGE = capability(
    "translate_text", "text", "target_lang", text=TEXT, target_lang=LANGUAGES, source_lang=TEXT, reads=True
)
COLUMNS = capability("describe_table", "table_name", table_name=TEXT, schema=TEXT, told="Show columns", reads=True)


def test_small_words_are_no_values_and_codes_are_no_small_words() -> None:
    found = said(TO_LANGUAGE, 'Translate the text "I am late" from EN to IT')
    assert isinstance(found, Ask) or (isinstance(found, Understood) and found.input["target_lang"] == "IT")
    held = said(COLUMNS, "¿Qué columnas tiene la tabla clientes?")
    assert "tiene" not in str(getattr(held, "input", ""))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (IMAGE, "Generate a password of 16 characters"),  # not what it makes
        (IMAGE, "Show me the invoices of May"),
        (PAPERS, "Search papers about rivers, seas and the weather of the coast by boat"),  # where does it end?
        (STOCK, "Lower the stock of SKU-77 by 5"),  # by how much is not to what
        (STOCK, "Baja el stock de SKU-77 en 5 unidades"),
        (DELETE, "I want the invoice 2026-17"),  # what takes away must be said
        (DELETE, "Make an invoice 2026-17"),
        (TRANSFER, "Transfer 50 from ACC-1 to account"),
        (TIMER, "Start a timer called"),
        (MAIL, 'Email ana@x.es about "Lunch"'),  # subject, or body?
        (TABLE, "Book a table at Casa Lucio or El Bulli for 4 people tomorrow at 9pm"),
        (MERGE, "Une los archivos portada.pdf y tesis.pdf"),  # two of a list, not one and where it goes
        (FIND_MAIL, "Search my mail for overdue bills and give me at most 20 results"),  # where does the text end?
    ],
)
def test_what_is_not_clear_is_asked_and_never_guessed(what: Capability, sentence: str) -> None:
    assert isinstance(said(what, sentence), Ask), said(what, sentence)


def test_a_sentence_without_one_of_its_values_never_means_something_else() -> None:
    """What is left of a sentence may fit by itself, but no other word moves into the empty place."""
    sentences = [
        (TABLE, ["Book a table", "at Casa Lucio", "for 4 people", "tomorrow", "at 9pm"]),
        (TRANSFER, ["Transfer 250 euros", "from account ACC-101", "to account ACC-202"]),
        (PAPERS, ["Search papers", "about solar power", "by Marie Curie", "since 2017"]),
        (
            ISSUE,
            ["Open an issue", "in acme/web", 'titled "Login fails"', 'with body "On Safari"', "and labels bug, ui"],
        ),
    ]
    for what, parts in sentences:
        whole = said(what, " ".join(parts))
        assert isinstance(whole, Understood), whole
        for number in range(1, len(parts)):
            rest = said(what, " ".join(parts[:number] + parts[number + 1 :]))
            if isinstance(rest, Understood):
                assert rest.input.items() <= whole.input.items(), rest


def calls_for(what: Capability, sentence: str) -> int:
    """How many functions are called to read a sentence."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        said(what, sentence)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("unit", ["to a, from b and ", "the ", "1 ", '"a ', "tomorrow at 3 ", "de ", "field 1 "])
def test_the_work_for_a_sentence_grows_with_its_length_and_has_an_end(unit: str) -> None:
    many = capability("set", *[f"field_{number}" for number in range(30)], **{f"field_{n}": TEXT for n in range(30)})
    calls_for(many, "set " + unit * 2)  # what is kept for all sentences
    short, long, page = (calls_for(many, f"set {unit * size}"[:size]) for size in (300, 600, 22_000))
    assert long < 3 * short
    assert page < 3 * 1_200_000


def test_the_work_for_a_schema_is_bounded() -> None:
    sentence = "set " + "to a, from b and " * 20
    few, many, more = (
        capability("set", *[f"field_{n}" for n in range(size)], **{f"field_{n}": TEXT for n in range(size)})
        for size in (15, 30, 3_000)
    )
    for what in (few, many, more):
        said(what, sentence)
    assert calls_for(many, sentence) < 3 * calls_for(few, sentence)
    assert calls_for(more, sentence) < 6 * calls_for(many, sentence)
    assert isinstance(said(many, "x" * 100_000), Ask)


@pytest.mark.parametrize("sentence", ["Book a flight to Paris", "ask", "reject what Ann wrote, and say why"])
def test_a_schema_that_names_a_parameter_for_free_text_gets_any_message_whole(sentence: str) -> None:
    schema = {"type": "object", FREE_TEXT: "message", "properties": {"message": TEXT, "data": {}}}
    assert free_text(Capability(name="travel", input_schema=schema), sentence) == {"message": sentence}


REMINDER = capability("delete_reminder", "id", told="Delete a reminder", id=WHOLE)
NOTE = capability(
    "create_reminder",
    "title",
    "date",
    told="Create a reminder",
    title=TEXT,
    date={**TEXT, "format": "date"},
    person=TEXT,
)
PART = capability("take_down", "part", told="Kill a part of the demo", part={"enum": ["flights", "hotels"]})


@pytest.mark.parametrize(
    ("what", "sentence", "why"),
    [
        (PART, "take down everything but flights", "excludes"),
        (REMINDER, "delete all except 4", "excludes"),
        (REMINDER, "borra todo menos el 4", "excludes"),
        (REMINDER, "borra los recordatorios salvo el 4", "excludes"),
        (REMINDER, "is reminder 4 deleted?", "question"),
        (REMINDER, "do you delete reminder 4", "question"),
        (REMINDER, "delete reminder 4?", "question"),
        (REMINDER, "¿borro el recordatorio 4?", "question"),
        (PART, "are the hotels down?", "question"),
        (PART, "is flights down", "question"),
        (REMINDER, "el recordatorio 4 está borrado?", "report"),
        (REMINDER, "reminder 4 is deleted, ok?", "report"),
        (REMINDER, "should I delete reminder 4", "hypothetical"),
    ],
)
def test_an_exception_or_a_question_is_no_request(what: Capability, sentence: str, why: str) -> None:
    found = said(what, sentence)
    assert isinstance(found, Forbidden), found
    assert found.why == why


@pytest.mark.parametrize(
    "sentence",
    [
        "can you delete reminder 4?", "delete reminder 4, please?", "would you delete reminder four?",
        "¿puedes borrar el recordatorio 4?", "¿me borras el recordatorio 4?",
        "al menos borra el recordatorio 4, ¿vale?",
    ],
)  # fmt: skip
def test_a_request_may_be_put_as_a_question(sentence: str) -> None:
    found = said(REMINDER, sentence)
    assert not isinstance(found, Forbidden), found
    assert found.input == {"id": 4}


MERGE_PULL = capability(
    "merge_pull_request", "owner", "repo", "pull_number", told="Merge a pull request", owner=TEXT, repo=TEXT,
    pull_number={**WHOLE, "description": "Number of the pull request"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "sentence", "missing"),
    [
        (REMINDER, "delete 4 reminders", ("id",)),  # how many is not which
        (MERGE_PULL, "Merge 2 pull requests of nova/ui", ("pull_number",)),
        (REMINDER, "delete four of the reminders", ("id",)),
        (REMINDER, "delete the last 4", ("id",)),
        (REMINDER, "borra los 4 recordatorios", ("id",)),
        (REMINDER, "delete but 4", ()),
        (NOTE, "create a reminder titled Pay rent on 2027-01-05 and 2027-02-05", ("date", "title")),
        (NOTE, "create a reminder titled Buy milk for Ann on 2027-01-05", ("title",)),
        (NOTE, "crea un recordatorio titulado Cena para Ana mañana", ("title",)),
    ],
)
def test_what_may_be_two_things_is_asked(what: Capability, sentence: str, missing: tuple[str, ...]) -> None:
    found = said(what, sentence)
    assert isinstance(found, Ask), found
    assert found.missing == missing


def test_a_number_out_of_bounds_is_asked_for_with_its_bounds_and_the_rest_is_kept() -> None:
    days = {**WHOLE, "minimum": 1, "maximum": 7}
    forecast = capability("forecast", "city", told="Weather forecast", reads=True, city=TEXT, days=days)
    found = said(forecast, "forecast for Rome for 12 days")
    assert isinstance(found, Ask)
    assert (found.missing, found.input) == (("days",), {"city": "Rome"})
    assert "1 to 7" in ask_for(forecast, found)[0].text


ORDER = capability("order", "message", told="Order a pizza in plain words.", message=TEXT)
AGENT = Capability(name="order", input_schema={FREE_TEXT: "message", "properties": {"message": TEXT, "data": {}}})
REPORT = capability("report_problem", "message", told="Report a problem to the staff", message=TEXT)
COMMIT = capability("git_commit", "message", told="Commit what is staged", message=TEXT)
CHAT = capability("chat", "message", told="Talk to a model", message=TEXT)


@pytest.mark.parametrize(
    ("what", "message", "why"),
    [
        (ORDER, "I don't want a large pizza", "forbids"),
        (ORDER, "nunca pidas una pizza", "forbids"),
        (ORDER, "a large pizza? never", "forbids"),
        (ORDER, "bring a large pizza, but do not order it here", "forbids"),
        (ORDER, "cancel my large pizza", "withdrawn"),
        (ORDER, "anything but a large pizza", "excludes"),
        (ORDER, "how much is a large pizza?", "question"),
        (ORDER, "a large pizza if it is warm", "conditional"),
        (ORDER, "I hate large pepperoni pizza", "report"),
        (ORDER, "my large pizza was cold", "report"),
        (ORDER, "odio la pizza grande", "report"),
        (ORDER, "ya pedí una pizza grande", "report"),
        (ORDER, "remember that I like large pizza", "report"),
        (ORDER, "I am hungry, order a large pizza", None),
        (ORDER, "the large pizza that I ordered was cold", "report"),
        (ORDER, "I like large pizza, red wine and olives", "report"),
        (ORDER, "I'd love a large pizza", None),
        (ORDER, "we'd like two large pizzas", None),
        (REPORT, "the lift in the hall is noisy", None),
        (ORDER, "a large pizza at 11 am, it is for my son", None),
        (ORDER, "a large pizza that is vegan", None),
        (ORDER, "my name is Ann. One large pizza.", None),
        (ORDER, "una pizza para esta noche, es mi cumpleaños", None),
        (ORDER, "order the pizza that I should have ordered yesterday", None),
        (ORDER, "me pones una pizza grande", None),
        (ORDER, "a small pizza, but do not cut it", None),
        (ORDER, "a small pizza, no onions", None),
        (ORDER, "can I have a small pizza?", None),
        (CHAT, "don't write a poem", "forbids"),
        (CHAT, "never mind", "withdrawn"),
        (CHAT, "don't tell me the end, only the beginning", None),
        (CHAT, "write a poem, do not rhyme", None),
        (CHAT, "what should I do?", None),
        (CHAT, "cancel my subscription", None),
        (AGENT, "do not order a pizza", "forbids"),
        (AGENT, "do not order a pizza, only tell me what it costs", None),
        (AGENT, "what happens if I order a pizza?", None),
        (Capability(name="order_pizza"), "do not order a pizza", "forbids"),
        (Capability(name="order_pizza"), "how much is it?", None),
    ],
)
def test_a_message_that_forbids_as_a_whole_is_passed_to_nobody(what: Capability, message: str, why: str | None) -> None:
    found = free_text(what, message)
    assert (found.why if isinstance(found, Forbidden) else None) == why
    if why is None:
        assert found == ({"message": message} if what.input_schema else {})


@pytest.mark.parametrize(
    ("what", "message", "why"),
    [
        (ORDER, "do not order a large pizza", "forbids"),
        (ORDER, "no pidas una pizza grande", "forbids"),
        (ORDER, "never mind the large pizza", "forbids"),
        (ORDER, "olvídalo", "withdrawn"),
        (ORDER, "a large pizza, if you can; do not cut it", None),
        (ORDER, "a large pizza", None),
        (ORDER, "enough large pizza for ten", None),
        (ORDER, "do not disturb", None),
        (COMMIT, "never mind", None),
        (COMMIT, "do not commit secrets", None),
        (CHAT, "do not rhyme", None),
        (AGENT, "do not stop before the tests pass", None),
    ],
)
def test_input_that_is_nothing_but_a_message_is_not_passed_on_where_it_forbids(
    what: Capability, message: str, why: str | None
) -> None:
    found = find_dictated_refusal(what, {"message": message})
    assert (None if found is None else found.why) == why
    assert find_dictated_refusal(what, {"data": message}) is None


def _text(told: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "description": told, **more}


LINES = capability("read_file", "path", told="Read a file.", reads=True, path=TEXT,
                   head={**WHOLE, "description": "Only the first N lines"},
                   tail={**WHOLE, "description": "Only the last N lines"})  # fmt: skip
LOGS = capability("container_logs", "id", told="Logs of a container", reads=True, id=_text("Container ID or name"),
                  tail={"anyOf": [WHOLE, {"const": "all"}], "description": "Number of lines from the end"})  # fmt: skip
REMOVE = capability("remove_resource", "type", "name", told="Remove a resource", name=_text("Name of the resource"),
                    type=_text("Type of resource (e.g. pods, deployments, services)"), namespace=TEXT)  # fmt: skip
TODO = capability("create_task", "content", told="Create a task", content=_text("The content/title of the task"),
                  due=_text("Natural language due date like 'tomorrow', 'next Monday'"),
                  labels={"type": "array", "items": TEXT})  # fmt: skip
PULL = capability("create_pull_request", "title", "head", "base", told="Create a pull request", title=TEXT,
                  head=_text("The branch with your changes"), base=_text("The branch to merge into"))  # fmt: skip
ARTICLE = capability("get_summary", "title", told="Get a summary of a Wikipedia article", reads=True, title=TEXT)
TRANSCRIPT = capability("get_transcript", "url", told="The transcript of a video", reads=True, url=TEXT, limit=WHOLE)
CALL = capability("create_meeting", "topic", "start_time", told="Schedule a meeting", topic=TEXT,
                  start_time=_text("Start time in ISO 8601 format"), guests={"type": "array", "items": TEXT,
                  "description": "Emails of people to invite"})  # fmt: skip
ROUTE = capability("estimate_ride", "pickup", "dropoff", told="Estimate a ride", reads=True,
                   pickup=_text("Pickup address"), dropoff=_text("Dropoff address"))  # fmt: skip
COUPON = capability("create_coupon", "name", "percent", told="Create a coupon", name=TEXT, percent=WHOLE)
DONE = capability("complete_task", "name", told="Mark a task as complete",
                  name=_text("Name/content of the task to search for"))  # fmt: skip
LIGHT = capability("light_control", "entity", "state", told="Turn a light on or off", state={"enum": ["on", "off"]},
                   entity=_text("Entity ID of the light, for example light.kitchen"))  # fmt: skip
FIELD = capability("fill", "selector", "value", told="Fill a field", selector=_text("CSS selector"), value=TEXT)


def test_descriptions_examples_and_lists_say_what_a_word_is_for() -> None:
    cases: list[tuple[Capability, str, dict[str, Any]]] = [
        (LINES, "enséñame las primeras 5 líneas de datos.csv", {"path": "datos.csv", "head": 5}),
        (LINES, "the last 20 lines of /var/log/syslog", {"path": "/var/log/syslog", "tail": 20}),
        (LOGS, "last 50 lines of logs from container api-2", {"id": "api-2", "tail": 50}),
        (REMOVE, "remove the pod web-7d9f", {"type": "pods", "name": "web-7d9f"}),
        (REMOVE, "borra el servicio pagos del namespace pruebas",
         {"type": "services", "name": "pagos", "namespace": "pruebas"}),
        (TODO, 'create a task "Call the bank" due next Monday', {"content": "Call the bank", "due": "next Monday"}),
        (TODO, "new task, content: Read Dune, labels: reading", {"content": "Read Dune", "labels": ["reading"]}),
        (PULL, 'open a PR from feature-x into main titled "Add X"',
         {"title": "Add X", "head": "feature-x", "base": "main"}),
        (ARTICLE, "who was Ada Lovelace?", {"title": "Ada Lovelace"}),
        (ARTICLE, "give me a short summary of the French Revolution from wikipedia", {"title": "French Revolution"}),
        (TRANSCRIPT, "dame la transcripción de https://example.com/v", {"url": "https://example.com/v"}),
        (TRANSCRIPT, "get example.com but at most 20", {"url": "https://example.com", "limit": 20}),
        (CALL, "schedule a meeting about budgets tomorrow at 10:00 with ana@example.com",
         {"topic": "budgets", "start_time": "2026-11-17T10:00:00", "guests": ["ana@example.com"]}),
        (ROUTE, "how much is a ride from 12 Baker Street to Gran Vía 28, Madrid?",
         {"pickup": "12 Baker Street", "dropoff": "Gran Vía 28, Madrid"}),
        (DONE, "marca la tarea Comprar pan como completada", {"name": "Comprar pan"}),
        (LIGHT, "apaga light.salon", {"entity": "light.salon", "state": "off"}),
        (COUPON, "I need a coupon named Welcome for 10 percent", {"name": "Welcome", "percent": 10}),
        (FIELD, "fill input[name=q] with 'hello'", {"selector": "input[name=q]", "value": "hello"}),
    ]  # fmt: skip
    for what, sentence, wanted in cases:
        found = said(what, sentence)
        assert isinstance(found, Understood), (sentence, found)
        assert found.input == wanted, sentence


def test_what_a_description_only_mentions_does_not_make_a_capability_fit() -> None:
    remark = capability("add_comment", "issue_key", "comment", told="Add a comment", issue_key=TEXT, comment=TEXT)
    for what, sentence in (
        (DONE, 'search "Buy milk"'),
        (remark, "create a file called shopping.txt that says 'milk'"),
        (TRANSCRIPT, "dame el precio de https://example.com/v"),
        (COUPON, "I needed a coupon named Welcome for 10 percent"),
    ):
        assert not isinstance(said(what, sentence), Understood), sentence


# Arithmetic


def test_arithmetic_in_words_becomes_an_expression_where_all_of_it_is_understood() -> None:
    sum_up = capability(
        "calculate", "expression", told="Work out an arithmetic expression.", reads=True, expression=TEXT
    )
    asked = {**TEXT, "description": "A mathematical expression, such as 2 + 2."}
    by_description = capability("evaluate", "input", told="Evaluate.", reads=True, input=asked)
    for sentence, expression in (
        ("add 2 and 3", "2 + 3"),
        ("please add 2, 3 and 4.5", "2 + 3 + 4.5"),
        ("what's the sum of 2 and 3?", "2 + 3"),
        ("suma 2 y 3", "2 + 3"),
        ("subtract 5 from 20", "20 - 5"),
        ("resta 5 a 20", "20 - 5"),
        ("multiplica 6 por 7", "6 * 7"),
        ("divide 10 entre 4", "10 / 4"),
        ("what is 12 times 7", "12 * 7"),
        ("cuánto es 15 por 4", "15 * 4"),
        ("20 % of 250", "250 * 20 / 100"),
        ("¿cuánto es el 20 por ciento de 250?", "250 * 20 / 100"),
    ):
        for tool, name in ((sum_up, "expression"), (by_description, "input")):
            assert free_text(tool, sentence) is None, sentence
            reading = said(tool, sentence)
            assert isinstance(reading, Understood), (tool.name, sentence, reading)
            assert reading.input == {name: expression}
    for sentence in (
        "add 2 and 3 and multiply by 4",
        "add 2 and 3 times 4",
        "add 2 and 3 to my list",
        "add milk and 3",
        "add 5 to 10 percent of 200",
        "subtract 5",
        "add 1,5 and 2",
    ):
        assert isinstance(said(sum_up, sentence), Ask), sentence
    # The verb of the capability is no operation, and an expression of another kind no arithmetic.
    sheet = capability("add_formula", "formula", told="Add a formula to the sheet.", formula=TEXT)
    timer = capability("check", "expression", reads=True, expression={**TEXT, "description": "A cron expression"})
    for tool in (sheet, timer):
        reading = said(tool, "add 2 and 3")
        assert not isinstance(reading, Understood), reading
