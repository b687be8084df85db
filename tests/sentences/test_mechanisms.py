"""One case for each way in which a sentence fills a schema, and for each in which it must not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from agent3.model import Capability, Hints
from agent3.sentences import Forbidden, Reading, Understood, read

NOW = datetime(2026, 11, 18, 10, 0)  # a Wednesday


def capability(name: str, told: str, required: str, /, *, reads: bool = False, **given: Any) -> Capability:
    """A text as a parameter is its description; anything else its schema."""
    properties = {
        key.strip("_"): {"type": "string", "description": one} if isinstance(one, str) else one
        for key, one in given.items()
    }
    schema = {"type": "object", "properties": properties, "required": required.split()}
    return Capability(name=name, description=told, input_schema=schema, hints=Hints(read_only=reads))


def whole(described: str = "") -> dict[str, Any]:
    return {"type": "integer", "description": described}


def switch(described: str = "") -> dict[str, Any]:
    return {"type": "boolean", "description": described}


def one_of(*options: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(options)}


DAY = {"type": "string", "format": "date"}
FILES = capability("move_file", "Move or rename a file", "source destination",
                   source="Path of the file", destination="New path")  # fmt: skip
ROOM = capability("book_room", "Book a meeting room", "room date from to",
                  room="Name of the room", date=DAY, from_="Start HH:MM", to="End HH:MM", people=whole())  # fmt: skip
HOTEL = capability("book", "Book a hotel room", "hotel check_in check_out",
                   hotel="Name of the hotel", check_in=DAY, check_out=DAY, guests=whole("How many guests"))  # fmt: skip
MONEY = capability("convert", "Convert an amount between currencies", "amount from to", reads=True,
                   amount={"type": "number"}, from_="ISO 4217", to="ISO 4217")  # fmt: skip
UNITS = capability("convert", "Convert a value between units", "value from_unit to_unit", reads=True,
                   value={"type": "number"}, from_unit=one_of("km", "mi", "kg", "lb"),
                   to_unit=one_of("km", "mi", "kg", "lb"))  # fmt: skip
CLOCK = capability("convert_time", "Convert a time between timezones", "source_timezone time target_timezone",
                   reads=True, source_timezone="IANA zone", time="HH:MM", target_timezone="IANA zone")  # fmt: skip
FLIGHTS = capability("search", "Search flights", "from to date", reads=True,
                     from_="IATA code of the departure", to="IATA code of the arrival", date=DAY)  # fmt: skip
TEXT = capability("translate_text", "Translate text", "text target_language", reads=True,
                  text="Text to translate", target_language="Language to translate to, e.g. French")  # fmt: skip
NEWS = capability("search_articles", "Search news articles", "q", reads=True,
                  q="Keywords", language=one_of("en", "es", "de"), year_from=whole("Earliest year"))  # fmt: skip
LAMP = capability("set", "Set a lamp", "lamp", lamp=one_of("desk", "ceiling", "porch"), on=switch("On or off"))
TIMER = capability("start_timer", "Start a timer", "minutes", minutes=whole("Minutes"))
ALARM = capability("set_alarm", "Set an alarm", "time", time="Time, HH:MM")
CART = capability("add_to_cart", "Add a product to the cart", "sku", sku="Product SKU, e.g. AB-123", quantity=whole())
REFUND = capability("refund", "Refund a payment", "payment_id",
                    payment_id="Id of the payment, e.g. pay_123", amount={"type": "number"})  # fmt: skip
DEPLOYMENT = capability("scale_deployment", "Scale a deployment", "name replicas",
                        name="Deployment name", replicas=whole("Number of replicas"))  # fmt: skip
PERSON = capability("create_contact", "Create a contact", "first_name last_name",
                    first_name="First name", last_name="Last name", phone="Phone number")  # fmt: skip
INVITE = capability("invite", "Invite somebody to the team", "email role",
                    email={"type": "string", "format": "email"}, role=one_of("admin", "member", "guest"))  # fmt: skip
MACHINE = capability("create", "Create a virtual machine", "name region",
                     name="Name", region=one_of("eu-west", "us-east"))  # fmt: skip
BRANCH = capability("create_branch", "Create a branch in a project", "project branch",
                    project="Project path", branch="Name of the new branch", ref="Branch to start from")  # fmt: skip
CONTAINER = capability("run_container", "Run a container", "image", image="Image", detach=switch("In the background"))
POLL = capability("create", "Create a poll", "question options", question="Question",
                  options={"type": "array", "items": {"type": "string"}, "description": "Choices"})  # fmt: skip
PHONE = capability(
    "update_phone", "Change the phone number of a contact", "name phone", name="Name", phone="New number"
)
PRINT = capability("print_file", "Print a file", "path", path="Path")
BUCKETS = capability("copy_object", "Copy an object", "source_bucket source_key target_bucket",
                     source_bucket="Bucket to copy from", source_key="Key of the object",
                     target_bucket="Bucket to copy to")  # fmt: skip
SONG = capability("add_to_playlist", "Add a song to a playlist", "song playlist",
                  song="Title of the song", playlist="Playlist")  # fmt: skip
CARD = capability("move_card", "Move a card to another list", "card list", card="Title of the card", list="List")
TRANSFER = capability("transfer", "Transfer money", "amount to_account",
                      amount={"type": "number", "description": "Amount in euros"}, to_account="Account")  # fmt: skip


@pytest.mark.requirement("AC-29")
@pytest.mark.parametrize(
    ("what", "sentence", "expected"),
    [
        (FILES, "Move /tmp/a.txt to /home/ann/b.txt", {"source": "/tmp/a.txt", "destination": "/home/ann/b.txt"}),
        (
            ROOM,
            "reserva la sala Neptuno el 3 de diciembre de 2026 de 16:00 a 17:00",
            {"room": "Neptuno", "date": "2026-12-03", "from": "16:00", "to": "17:00"},
        ),
        (
            HOTEL,
            "reserva el hotel Miramar del 3 al 7 de marzo de 2027 para 4 personas",
            {"hotel": "Miramar", "check_in": "2027-03-03", "check_out": "2027-03-07", "guests": 4},
        ),
        (
            HOTEL,
            "Book the Grand Hotel from 2026-12-01 to 2026-12-04",
            {"hotel": "Grand Hotel", "check_in": "2026-12-01", "check_out": "2026-12-04"},
        ),
        (MONEY, "convierte de CHF a EUR 1500", {"amount": 1500, "from": "CHF", "to": "EUR"}),
        (UNITS, "convert 10 km to mi", {"value": 10, "from_unit": "km", "to_unit": "mi"}),
        (UNITS, "how many lb are 72.5 kg?", {"value": 72.5, "from_unit": "kg", "to_unit": "lb"}),
        (
            CLOCK,
            "what time is it in Asia/Tokyo when it is 09:00 in America/New_York?",
            {"source_timezone": "America/New_York", "time": "09:00", "target_timezone": "Asia/Tokyo"},
        ),
        (FLIGHTS, "flights between MAD and JFK tomorrow", {"from": "MAD", "to": "JFK", "date": "2026-11-19"}),
        (TEXT, 'traduce "buenas noches" al francés', {"text": "buenas noches", "target_language": "French"}),
        (NEWS, "noticias sobre energía solar en español", {"q": "energía solar", "language": "es"}),
        (NEWS, "articles on gardening since 2015", {"q": "gardening", "year_from": 2015}),
        (LAMP, "turn off the porch lamp", {"lamp": "porch", "on": False}),
        (LAMP, "apaga la lámpara del escritorio", {"lamp": "desk", "on": False}),
        (TIMER, "set a timer of 2 hours", {"minutes": 120}),
        (ALARM, "pon una alarma a las 7 y media", {"time": "07:30"}),
        (ALARM, "set an alarm for quarter to eight", {"time": "07:45"}),
        (CART, "add 3 of AB-123 to the cart", {"sku": "AB-123", "quantity": 3}),
        (CART, "añade 2 unidades de ZX-9 al carrito", {"sku": "ZX-9", "quantity": 2}),
        (REFUND, "refund 12.50 of payment pay_42", {"payment_id": "pay_42", "amount": 12.5}),
        (DEPLOYMENT, "scale web to 5 replicas", {"name": "web", "replicas": 5}),
        (PERSON, "create a contact called Ann Lee", {"first_name": "Ann", "last_name": "Lee"}),
        (MACHINE, "create a virtual machine named b1 in eu-west", {"name": "b1", "region": "eu-west"}),
        (
            BRANCH,
            "create the branch release-2 from main in the project acme/shop",
            {"project": "acme/shop", "branch": "release-2", "ref": "main"},
        ),
        (CONTAINER, "run the image redis:7 in the background", {"image": "redis:7", "detach": True}),
        (
            POLL,
            'crea una encuesta con la pregunta "¿Qué día?" y las opciones lunes y martes',
            {"question": "¿Qué día?", "options": ["lunes", "martes"]},
        ),
    ],
)
def test_a_sentence_fills_the_schema(what: Capability, sentence: str, expected: dict[str, Any]) -> None:
    reading = read(what, sentence, NOW)
    assert isinstance(reading, Understood), reading
    assert reading.input == expected


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (INVITE, "invite zoe@example.com"),  # the verb is no role
        (MONEY, "convert to 1500 EUR from CHF"),  # so much of which?
        (PHONE, "call Ann at +14155550123"),  # it changes a number
        (PRINT, "create a folder called photos in /home/ann"),
        (PERSON, "create a contact called Ann Lee Brown"),  # which of them is the last name?
        (POLL, "create a folder called photos"),  # "a" is an article
        (CONTAINER, "para el contenedor bd2"),  # which stops it
        (BUCKETS, "copia datos/b.csv del bucket origen al bucket destino"),
        (CARD, "move PROJ-12 to In Progress"),  # "In" is part of a name
        (SONG, 'create a page titled "Setup"'),
        (DEPLOYMENT, "scale web and api to 5 replicas"),
        (DEPLOYMENT, "scale web up"),
        (TRANSFER, "transfer about 250 euros to ES22"),
        (capability("start_vm", "Start a machine", "vm_id", vm_id="Id"), "start_vm"),  # which says nothing of which
    ],
)
def test_what_leaves_something_open_is_asked(what: Capability, sentence: str) -> None:
    reading: Reading = read(what, sentence, NOW)
    assert not isinstance(reading, Understood), reading


@pytest.mark.parametrize("sentence", ["how to scale web to 5 replicas", "cómo escalar web a 5 réplicas"])
def test_who_asks_how_to_do_something_does_not_want_it_done(sentence: str) -> None:
    assert isinstance(read(DEPLOYMENT, sentence, NOW), Forbidden)


INBOX = capability("post_message", "Post a message to a channel", "channel text",
                   channel="Name of the channel without the #", text="Message text to post")  # fmt: skip
TICKET = capability("update_ticket", "Update a ticket", "ticket_id",
                    ticket_id=whole("Id of the ticket"), status=one_of("open", "hold", "solved", "closed"),
                    priority=whole("Priority: 1 urgent, 2 high, 3 normal, 4 low"))  # fmt: skip
BUGS = capability("create_issue", "Create an issue", "project type title", project="Project key, e.g. PROJ",
                  type=one_of("Bug", "Task", "Story"), title="Title of the issue")  # fmt: skip
REFUND = capability("create_refund", "Refund a payment", "payment", payment="Id of the payment, e.g. pay_3Abc",
                    amount=whole("Amount in cents"))  # fmt: skip
VISIT = capability("book_visit", "Book a visit", "day", day="Day of the visit, DD/MM/YYYY",
                   at="Time of the visit, HH:MM:SS")  # fmt: skip
CALL = capability("schedule_call", "Schedule a call", "start", start="Start, YYYY-MM-DDTHH:MM:SS")
GLOB = capability("search_files", "Search files", "path pattern", reads=True, path="Folder to start from",
                  pattern="Glob pattern", exclude_patterns={"type": "array", "items": {"type": "string"}})  # fmt: skip
BILLS = capability("list_invoices", "List invoices", "", reads=True, customer="Id of the customer, e.g. cus_123",
                   status=one_of("open", "paid", "void"), limit=whole("Number of invoices"))  # fmt: skip
ROUTE = capability("get_route", "Get a route", "origin destination", reads=True, origin="Where it starts",
                   destination="Where it ends", avoid_tolls=switch("Avoid toll roads"))  # fmt: skip
REPLICAS = capability("scale_deployment", "Scale a deployment", "name replicas", name="Name of the deployment",
                      replicas=whole("Number of replicas"))  # fmt: skip

BOX = capability(
    "run_box", "Run an image in a new box", "image", image="Image, e.g. nginx:latest", name="Name of the box"
)
CHORES = capability("get_chores", "Get a list of chores", "", reads=True, project="Project name",
                    due={"type": "string", "description": "When they are due", "enum": ["today", "late"]})  # fmt: skip
FORECAST = capability("forecast", "Weather of a city", "city", reads=True, city="Name of the city")


@pytest.mark.parametrize(
    ("what", "sentence", "wanted"),
    [
        (BOX, "run a box called db-test", None),  # of which image?
        (CHORES, "show the chores of the project Garden for today", {"project": "Garden", "due": "today"}),
        (CHORES, "enséñame las tareas de hoy del proyecto Jardín", None),  # "de hoy" says something here
        (FORECAST, "show me the weather of Paris today", {"city": "Paris"}),
        (NEWS, "look for articles matching zig compilers", {"q": "zig compilers"}),
        (INBOX, 'post "hello" to #sales', {"channel": "sales", "text": "hello"}),
        (TICKET, "close ticket 45", {"ticket_id": 45, "status": "closed"}),
        (TICKET, "cierra el ticket 45", {"ticket_id": 45, "status": "closed"}),
        (TICKET, "set the priority of ticket 45 to urgent", {"ticket_id": 45, "priority": 1}),
        (TICKET, "change the status of ticket 45", None),  # to what?
        (TICKET, "pon el ticket 45 con prioridad baja", {"ticket_id": 45, "priority": 4}),
        (TICKET, "update ticket 45 with priority 2", {"ticket_id": 45, "priority": 2}),
        (BUGS, 'create a bug in PAY called "Slow"', {"project": "PAY", "type": "Bug", "title": "Slow"}),
        (BUGS, 'create a ticket in PAY called "Slow"', None),  # a ticket is not a bug
        (REFUND, "refund twenty dollars of pay_9x", {"payment": "pay_9x", "amount": 2000}),
        (REFUND, "reembolsa 12,50 euros del pago pay_9x", {"payment": "pay_9x", "amount": 1250}),
        (REFUND, "refund 20 yen of pay_9x", None),
        (VISIT, "book a visit on March 3 at half past four in the afternoon", {"day": "03/03/2027", "at": "16:30:00"}),
        (VISIT, "reserva una visita mañana a las nueve menos diez", {"day": "19/11/2026", "at": "08:50:00"}),
        (CALL, "schedule a call for Thursday", None),  # at what time?
        (CALL, "schedule a call tomorrow at 9", {"start": "2026-11-19T09:00:00"}),
        (GLOB, "find *.log under /var but leave out *.gz",
         {"path": "/var", "pattern": "*.log", "exclude_patterns": ["*.gz"]}),
        (BILLS, "show the five most recent invoices of cus_41Lp", {"customer": "cus_41Lp", "limit": 5}),
        (BILLS, "void the invoices of cus_41Lp", None),
        (BILLS, "list open invoices of cus_41Lp", {"customer": "cus_41Lp", "status": "open"}),
        (ROUTE, "ruta de Valencia a Zaragoza sin peajes",
         {"origin": "Valencia", "destination": "Zaragoza", "avoid_tolls": True}),
        (REPLICAS, "scale worker to five, no, eight replicas", {"name": "worker", "replicas": 8}),
        (REPLICAS, "scale worker to 5, no 8 replicas", None),
        (REPLICAS, "scale worker to a hundred and twenty replicas", {"name": "worker", "replicas": 120}),
    ],
)  # fmt: skip
def test_formats_levels_and_corrections(what: Capability, sentence: str, wanted: dict[str, Any] | None) -> None:
    found = read(what, sentence, NOW)
    assert (found.input if isinstance(found, Understood) else None) == wanted, found


def test_a_word_of_a_long_agent_name_stays_in_a_value() -> None:
    cart = capability("add_to_cart", "Put a product into the cart", "product", product="Product")
    found = read(cart, "add the product Oak tray to the cart", NOW, agent="cup-and-tray")
    assert not isinstance(found, Understood) or found.input == {"product": "Oak tray"}


_REMIND = capability("delete_reminder", "Delete a reminder by its id.", "id", id=whole())
_VOLUME = capability("set_volume", "Set the volume of a room.", "level room", level=whole(), room={"type": "string"})
_SEND = capability(
    "send_message", "Send a message to somebody.", "to text", to={"type": "string"}, text={"type": "string"}
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(
            (_VOLUME, f"{sign} set the volume of the kitchen to 5")
            for sign in "🚫 ❌ ⛔ ❎ ✋🙅 ⏸ // -- ¬ ≠ ✗ 🙏".split()
        ),
        *((_VOLUME, f"set the volume of the kitchen to 5 {sign}") for sign in "👎 🚫 ⏸ //".split()),
        (_VOLUME, "set the volume to 5 in the kitchen 👎"),
        (_REMIND, "<!-- delete reminder 4 -->"),
        (_REMIND, "/* delete reminder 4 */"),
        (_REMIND, "[ ] delete reminder 4"),
        (_REMIND, "!delete reminder 4"),
        (_REMIND, "🚫delete reminder 4"),
        (_REMIND, "delete reminder !4"),
        (_REMIND, "un delete reminder 4"),
        (_REMIND, "4 👎"),
        (_SEND, "Message: do not send a message to Bob saying hi"),
        (_SEND, "text: never send a message to Bob saying hi"),
        (_SEND, "with the text hi do not send a message to Bob"),
        (_SEND, "saying hi, don't send a message to Bob"),
        (_SEND, "con el texto hola, no envíes un mensaje a Bob"),
        (_SEND, "que diga hola no mandes un mensaje a Bob"),
    ],
)
def test_signs_and_late_verbs_that_forbid_start_nothing(asked: Capability, said: str) -> None:
    assert not isinstance(read(asked, said, NOW), Understood)


@pytest.mark.parametrize(
    ("asked", "said", "given"),
    [
        *(
            (_REMIND, said, {"id": 4})
            for said in ("Hi! Delete reminder 4!", "- delete reminder #4", "delete reminder (4)")
        ),
        (_SEND, "send a message to Bob saying do not send money", {"to": "Bob", "text": "do not send money"}),
        (_SEND, 'send a message to Bob saying "no 🚫"', {"to": "Bob", "text": "no 🚫"}),
        (_SEND, "send a message to Bob saying see you 🙂", {"to": "Bob", "text": "see you 🙂"}),
    ],
)
def test_punctuation_and_the_signs_of_a_text_ask_nothing(asked: Capability, said: str, given: dict[str, Any]) -> None:
    assert read(asked, said, NOW) == Understood(given, used=read(asked, said, NOW).used)  # type: ignore[union-attr]


_WEIGHT = capability("log_weight", "Log the weight", "weight", weight={"type": "number", "description": "In grams"})
_SALES = capability("list_sales", "List sales in a period", "start_date end_date", reads=True,
                    start_date=DAY, end_date=DAY)  # fmt: skip
_EXCHANGE = capability("convert", "Convert money", "amount from_currency to_currency", reads=True,
                       amount={"type": "number"}, from_currency=one_of("EUR", "USD", "MXN"),
                       to_currency=one_of("EUR", "USD", "MXN"))  # fmt: skip
_IN_DOLLARS = {"from_currency": "MXN", "to_currency": "USD"}


@pytest.mark.parametrize(
    ("asked", "said", "wanted"),
    [
        (_EXCHANGE, "Convierte 2.500 MXN a USD", {"amount": 2500, **_IN_DOLLARS}),
        (_EXCHANGE, "convert 2,500 MXN to USD", {"amount": 2500, **_IN_DOLLARS}),
        (_EXCHANGE, "convert 2.500 MXN to USD", None),  # as in Germany?
        (_EXCHANGE, "2.500 MXN a USD", None),
        (_WEIGHT, "log a weight of 1.500 g", {"weight": 1.5}),
        (_WEIGHT, "anota un peso de 1.500 g", None),  # half of those who speak Spanish mean a gram and a half
        (_WEIGHT, "weight: 1.500", None),  # which language is that?
        (_SALES, "sales from 03/04/2027 to 05/06/2027", None),
        (_SALES, "sales from March 7 to March 3", None),
        (_SALES, "ventas del 03/04/2027 al 05/06/2027", {"start_date": "2027-04-03", "end_date": "2027-06-05"}),
    ],
)
def test_what_is_written_differently_elsewhere_is_asked(
    asked: Capability, said: str, wanted: dict[str, Any] | None
) -> None:
    found = read(asked, said, NOW)
    assert (found.input if isinstance(found, Understood) else None) == wanted, found


def many(described: str = "", **item: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string", **item}, "description": described}


_TODO = capability("create_task", "Create a task", "content", content="Content", labels=many("Labels"),
                   all_day=switch("All day"))  # fmt: skip
_MAIL = capability("send_email", "Send an email", "to subject", to=many(format="email"), subject="Subject",
                   bcc=many(format="email"))  # fmt: skip
_STOCK = capability("update_inventory", "Set the stock", "sku quantity", sku="SKU", quantity=whole())
_CONTACT = capability("create_contact", "Create a contact", "email", email={"type": "string", "format": "email"},
                      phone="Phone number")  # fmt: skip
_TRIP = capability("search", "Search flights", "origin departure_date", reads=True, origin="IATA code",
                   departure_date=DAY, return_date=DAY)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said", "wanted"),
    [
        (_TODO, 'create a task "X" with labels red and', None),  # it lost its end
        (_TODO, 'crea una tarea "X" con las etiquetas rojo y', None),
        (_TODO, 'create a task "X" with labels red and blue', {"content": "X", "labels": ["red", "blue"]}),
        (_TODO, 'create a task "X" with labels bug urgent', None),  # one or two?
        (_TODO, 'crea una tarea: "X", con las etiquetas rojo y azul, todavía no', None),
        (_TODO, 'create a task: "X" with labels red and blue, not yet', None),
        (_TODO, 'create an all-day task "X"', {"content": "X", "all_day": True}),
        (_MAIL, 'manda un correo ana@x.es y a eva@x.es, asunto "P"', None),  # neither is a blind copy
        (_MAIL, 'email ana@x.es with subject "P", bcc eva@x.es',
         {"to": ["ana@x.es"], "subject": "P", "bcc": ["eva@x.es"]}),
        (_STOCK, "set the quantity of SKU to 120", None),
        (_STOCK, "set the quantity of SKU AB-1 to 120", {"sku": "AB-1", "quantity": 120}),
        (_CONTACT, "create a contact: email a@b.es, phone 600 123 456", {"email": "a@b.es", "phone": "600 123 456"}),
        (_CONTACT, "create a contact with email a@b.es and phone +34 600 12 34 56",
         {"email": "a@b.es", "phone": "+34 600 12 34 56"}),
        (_TRIP, "flights from LHR on 2027-02-01 returning on 2027-02-08",
         {"origin": "LHR", "departure_date": "2027-02-01", "return_date": "2027-02-08"}),
    ],
)  # fmt: skip
def test_what_is_unfinished_or_stands_elsewhere_fills_nothing(
    asked: Capability, said: str, wanted: dict[str, Any] | None
) -> None:
    found = read(asked, said, NOW)
    assert (found.input if isinstance(found, Understood) else None) == wanted, found


_USER = "Username, e.g. bob_7"
_BLOCK = capability("block_user", "Block a user", "user", user=_USER)
_MAKE = capability("create_user", "Create a user", "user", user=_USER)
_DENOUNCE = capability("report_user", "Report a user to the moderators", "user", user=_USER)
_DOOR = capability("open_door", "Open a door", "door", door="Door, e.g. D-1")
_PAPER = capability("print_file", "Print a file on paper", "path", path="Path")
_FOLDER = capability("delete_folder", "Delete a folder", "path", path="Path of the folder")
_CART = capability("clear_cart", "Empty the cart of a customer", "customer", customer="Customer, e.g. cus_1")
_ALARM = capability("turn_off_alarm", "Turn off an alarm", "alarm_id", alarm_id=whole())
_LIGHT = capability("light_turn_on", "Turn on a light", "room", room="Room")
_LOUDER = capability("increase_volume", "Increase the volume of a room", "room", room="Room")
_WRITE = capability("write_file", "Create or overwrite a file", "path content", path="Path", content="Text to write")
_TICKETS = capability("create_ticket", "Create a support ticket", "subject", subject="Subject")
_SENT = capability("send_invoice", "Send an invoice", "invoice", invoice="Invoice, e.g. inv_1")
_MOVE = capability("move_file", "Move a file", "source destination", source="Path of the file", destination="New path")
_PAY = capability("send_payment", "Send a payment", "recipient amount currency", recipient="Who gets it",
                  amount={"type": "number"}, currency=one_of("EUR", "USD"))  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "others", "own"),
    [
        (_BLOCK, "create the user bob_7|add user bob_7|report user bob_7", "block the user bob_7"),
        (_MAKE, "block the user bob_7|report user bob_7|open user bob_7", "add the user bob_7"),
        (_DENOUNCE, "create the user bob_7|open user bob_7", "report user bob_7"),
        (_DOOR, "show door D-1|create door D-1|read D-1|close door D-1", "open door D-1"),
        (_PAPER, "show the file /a.txt|open /a.txt|muestra /a.txt", "print /a.txt"),
        (_FOLDER, "clear the folder /tmp/a|vacía la carpeta /tmp/a|clean /tmp/a", "remove the folder /tmp/a"),
        (_CART, "delete cus_1|remove cus_1", "empty the cart of cus_1"),
        (_ALARM, "turn on alarm 4|set alarm 4|enciende la alarma 4", "switch alarm 4 off"),
        (_LIGHT, "lower the light in the kitchen|turn the light in the kitchen off", "enciende la luz de la cocina"),
        (_LOUDER, "decrease the volume of the kitchen|baja el volumen de la cocina|set the volume of the kitchen",
         "raise the volume of the kitchen"),
        (_WRITE, "append 'x' to a.txt|añade 'x' a a.txt|write 'x' to the end of a.txt", "write 'x' to a.txt"),
        (_TICKETS, "block 'Broken'|print 'Broken'", "open a ticket 'Broken'"),
        (_SENT, "reply to invoice inv_1|pay invoice inv_1", "send invoice inv_1"),
        (_MOVE, "move a.txt out of docs/", "move a.txt to docs/"),
        (_PAY, "send 20 euros to Bob every month|send Bob's sister 20 euros", "send Bob 20 euros"),
        (_SEND, "dile a Bob que venga y a Ana que no", "dile a Bob que venga"),
        (_SEND, "send a message to Bob saying see you and tell Ann too", "send a message to Bob saying see you"),
    ],
)  # fmt: skip
def test_what_does_something_else_or_more_is_not_done(asked: Capability, others: str, own: str) -> None:
    for other in others.split("|"):
        found = read(asked, other, NOW)
        assert not isinstance(found, Understood), (other, found)
    assert isinstance(found := read(asked, own, NOW), Understood), found


_LOAN = capability("renew_loan", "Renew a loan", "loan_id", loan_id=whole())


def test_what_was_done_already_is_not_done_again() -> None:
    for said in (
        "ya renové el préstamo 780", "Ya lo renové, el 780", "ayer renové el 780", "Ana renovó el préstamo 780",
        "acabo de renovar el préstamo 780", "me renovaron el préstamo 780", "just renewed loan 780",
    ):  # fmt: skip
        assert isinstance(read(_LOAN, said, NOW), Forbidden), said
    for said in ("renueva ya el préstamo 780", "Renueva aquí el préstamo 780", "please just renew loan 780"):
        assert isinstance(found := read(_LOAN, said, NOW), Understood), found
