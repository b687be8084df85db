"""An answer keeps all that was understood before, and what refuses or leaves open is no value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Literal

import pydantic
import pytest

from agent3 import Context, LocalAgent
from agent3.gateway import Caller, CallRequest, Gateway
from agent3.model import LOCAL, Capability, Done, Failed, Needs, Outcome, Question
from agent3.protocols.a2a.door.projection import answers_to
from agent3.protocols.a2a.wire.types import Message, Part, Role
from agent3.protocols.nlweb.ask.door import parse_answers
from agent3.sentences import FREE_TEXT, Ask, Forbidden, free_text, judge_answer, judge_words, read
from agent3.sentences.answers import find_listed
from agent3.sentences.lexicon import detect_language
from agent3.sentences.questions import ask_confirmation, ask_for
from agent3.server.build import build
from agent3.settings import Settings, Storage

ME = Caller(LOCAL, "rest")
NAME = {"type": "string"}


def desk(done: list[Any]) -> LocalAgent:
    agent = LocalAgent("desk")

    @agent.capability
    def pay(recipient: str, amount: float, currency: Literal["EUR", "USD"] = "EUR") -> str:
        """Pay money to a person."""
        done.append((recipient, amount, currency))
        return "paid"

    @agent.capability
    def set_light(room: Literal["kitchen", "bedroom", "hall"], on: bool) -> str:
        """Switch the light in a room on or off."""
        done.append((room, on))
        return "switched"

    @agent.capability
    def send_email(to: str, subject: str, body: str = "") -> str:
        """Send an email to somebody.

        Args:
            to: The address of the recipient.
            subject: The subject line.
            body: The text of the mail.
        """
        done.append((to, subject, body))
        return "sent"

    return agent


def talk(capability: str, *said: Any) -> tuple[Outcome, list[Any]]:
    """How a call stands after a message and the answers to its questions, and what was done."""
    done: list[Any] = []

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [desk(done)]) as server:
            first, *answers = said
            outcome = await server.gateway.call(ME, CallRequest(agent="desk", capability=capability, message=first))
            for answer in answers:
                assert isinstance(outcome, Needs), outcome
                assert outcome.job is not None
                assert done == []
                outcome = await server.gateway.reply(ME, outcome.job, answer)
            return outcome

    return asyncio.run(story()), done


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("pay 50 dollars for Ana", "to Ana", "yes"), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", "Ana", "yes"), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", "recipient: Ana", "yes"), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", {"recipient": "Ana"}), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", '{"recipient": "Ana"}'), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", {"recipient": "Ana", "amount": 40}), ("Ana", 40, "USD")),
        (("pay 50 dollars for Ana", "who?", "I don't know yet", "to Ana", "yes"), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana twice", {"recipient": "Ana"}, "yes"), ("Ana", 50, "USD")),
        (("pay 50 dollars for Ana", "pay 50 dollars to Ana"), ("Ana", 50, "USD")),
        (("paga 50 dólares por Ana", "a Ana", "50", "sí"), ("Ana", 50, "USD")),
        (("paga 50 dólares por Ana", "no lo sé", "Ana", {"recipient": "Ana", "amount": 50}, "sí"), ("Ana", 50, "USD")),
        (("paga 50 dólares", "Ana"), ("Ana", 50, "USD")),
    ],
)
def test_an_answer_keeps_what_was_understood(said: tuple[Any, ...], expected: Any) -> None:
    outcome, done = talk("pay", *said)
    assert isinstance(outcome, Done), outcome
    assert done == [expected]


@pytest.mark.parametrize(
    "said",
    [
        ("turn off the light in the bathroom", "the hall", "yes"),
        ("turn off the light in the bathroom", {"room": "hall"}, "yes"),
        ("apaga la luz del baño", "hall", "sí"),
    ],
)
def test_what_was_to_be_switched_off_is_never_switched_on(said: tuple[Any, ...]) -> None:
    outcome, done = talk("set_light", *said)
    assert isinstance(outcome, Done), outcome
    assert done == [("hall", False)]


def test_the_subject_of_a_mail_is_not_asked_for_again() -> None:
    outcome, done = talk("send_email", "send an email to ana@example.com about lunch", {"to": "ana@example.com"})
    assert isinstance(outcome, Done), outcome
    assert done == [("ana@example.com", "lunch", "")]


REFUSED = (
    "no", "nope", "no, thanks", "no one", "nobody", "none of them", "never mind", "ninguno", "a nadie", "no, gracias",
)  # fmt: skip
OPEN = (
    "not yet", "not Ana", "hold on", "wait", "let me think", "I am not sure", "idk", "help", "the same as last time",
    "Ana, but only if she asks", "not now", "later", "you decide", "yes", "who?", "no lo sé", "todavía no", "espera",
    "déjame pensar", "lo mismo de siempre", "quizás", "a Ana, si quiere", "vale", "order a pizza instead",
    "pide una pizza en vez de eso",
)  # fmt: skip


@pytest.mark.parametrize("first", ["pay 50 dollars", "paga 50 dólares"])
@pytest.mark.parametrize("answer", REFUSED)
def test_a_refusal_ends_the_call(first: str, answer: str) -> None:
    outcome, done = talk("pay", first, answer)
    assert isinstance(outcome, Failed)
    assert (outcome.code, done) == ("declined", [])


@pytest.mark.parametrize("answer", OPEN)
def test_what_leaves_open_is_asked_again_and_nothing_is_lost(answer: str) -> None:
    outcome, done = talk("pay", "pay 50 dollars", answer, "Ana")
    assert isinstance(outcome, Done), outcome
    assert done == [("Ana", 50, "USD")]


@pytest.mark.parametrize(("answer", "taken"), [({"recipient": "no"}, "no"), ('{"recipient": "wait"}', "wait")])
def test_input_given_by_its_name_is_taken_as_it_is(answer: Any, taken: str) -> None:
    _, done = talk("pay", "pay 50 dollars", answer)
    assert done == [(taken, 50, "USD")]


@pytest.mark.parametrize(
    "name",
    ["Ana López", "my sister", "Noa", "Noel", "Nadia", "Maybelline", "la abuela", "Help Desk Ltd", "Luego SL",
     "Same Day Couriers", '"Not yet"', "«Nadie»", '"Paint it instead"'],
)  # fmt: skip
def test_a_name_is_a_value_whatever_it_begins_with(name: str) -> None:
    assert judge_answer("recipient", NAME, name) is None


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("Don't forget the milk", None), ("nobody came", None), ("no more bread", None), ("Can we meet?", None),
        ("I'm not sure we can come", None), ("espera en la puerta", None), ("yes", None), ("no", "refused"),
        ("nada", "refused"), ("wait", "open"), ("no lo sé", "open"),
    ],
)  # fmt: skip
def test_a_text_may_say_what_it_likes_but_a_bare_refusal(text: str, judged: str | None) -> None:
    assert judge_answer("body", NAME, text) == judged


class Guest(pydantic.BaseModel):
    name: str


SAYS_A_TEXT: dict[str, Callable[..., Awaitable[Outcome]]] = {
    "REST": lambda gateway, job, asked, said: gateway.reply(ME, job, said),
    "terminal": lambda gateway, job, asked, said: gateway.reply(ME, job, {asked[0].id: {"said": said}}),
    "A2A": lambda gateway, job, asked, said: gateway.answer(
        ME, job, answers_to(asked, Message(message_id="m", role=Role.USER, parts=(Part(text=said),)))
    ),
    "/ask": lambda gateway, job, asked, said: gateway.answer(ME, job, parse_answers(said, asked)),
}


@pytest.mark.parametrize("door", SAYS_A_TEXT)
def test_through_every_door_a_form_is_not_filled_with_a_refusal_or_a_hedge(door: str) -> None:
    async def story(said: Any, gateway: Gateway, booked: list[str]) -> Outcome:
        booked.clear()
        outcome = await gateway.call(ME, CallRequest(agent="desk", capability="book", input={}))
        assert isinstance(outcome, Needs)
        assert outcome.job is not None
        if isinstance(said, dict):
            return await gateway.reply(ME, outcome.job, {"q1": said})
        return await SAYS_A_TEXT[door](gateway, outcome.job, outcome.questions, said)

    async def tell() -> None:
        booked: list[str] = []
        agent = LocalAgent("desk")

        @agent.capability(replay=True)
        async def book(ctx: Context) -> str:
            """Book a table."""
            booked.append((await ctx.ask("Who comes?", Guest)).name)
            return "booked"

        async with build(Settings(storage=Storage(url="sqlite://")), [agent]) as server:
            for said in ("no", "never mind", "olvídalo"):
                outcome = await story(said, server.gateway, booked)
                assert isinstance(outcome, Failed), said
                assert (outcome.code, booked) == ("declined", []), said
            for said in ("not yet", "what?", "not Ana", "¿quién?"):
                outcome = await story(said, server.gateway, booked)
                assert isinstance(outcome, Needs), said
                assert booked == [], said
            for given, taken in (({"name": "no"}, "no"), ("Ana", "Ana"), ('"no"', '"no"')):
                assert isinstance(await story(given, server.gateway, booked), Done), given
                assert booked == [taken], given

    asyncio.run(tell())


WHO, ANY = Question("q1", "Which topping?", NAME), Question("q1", "Any allergies?", NAME)


@pytest.mark.parametrize(
    ("question", "said", "judged"),
    [
        (WHO, "nvm", "refused"), (WHO, "let's drop it", "refused"), (WHO, "mejor lo dejamos", "refused"),
        (WHO, "I'd rather not", "refused"), (WHO, "no hace falta", "refused"), (WHO, "maybe ham", "open"),
        (WHO, "not ham", "open"), (WHO, "mañana te digo", "open"), (WHO, "such as?", "open"), (WHO, "ham", None),
        (Question("q1", "Which one?", {"type": "string", "enum": ["no", "ham"]}), "No", None),
        (Question("q1", "Are you a member?", {"type": "boolean"}), "no", None),
        (ANY, "no", None), (ANY, "never mind", "refused"), (Question("q1", "Really pay?", NAME), "no", "refused"),
        (Question("q1", "Really pay?", NAME), "yes", None),
        (Question("q1", "How was it?", NAME), "It was cold, I did not like it", None),
        (Question("q1", "What should I tell her?", NAME), "Are you coming?", None),
        (WHO, "never  mind", "refused"), (WHO, "nev\u200ber mind", "refused"), (WHO, "n\u0435v\u0435r mind", "refused"),
        (WHO, "\uff4eever mind", "refused"), (WHO, "cancel pls", "open"), (WHO, "nein", "open"),
        (WHO, "\u274c", "open"),
        (WHO, "\u043d\u0435\u0442", "open"), (WHO, "n/a", "open"), (WHO, "I take it back", "open"),
        (Question("text", "Text?", NAME), "I take it back", None), (Question("text", "Text?", NAME), "nein", "open"),
        (WHO, "\u041d\u0438\u043d\u0430", None), (WHO, "\"nein\"", None), (WHO, "Nan", None), (WHO, "Annul & Co", None),
    ],
)  # fmt: skip
def test_words_are_judged_by_what_the_question_wants(question: Question, said: str, judged: str | None) -> None:
    assert judge_words(ORDER, question, said) == judged


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1", 0), ("the first", 0), ("2.", 1), ("the second one, please", 1), ("la segunda", 1), ("el tercero", 2),
        ("number 3", 2), ("la opción 2", 1), ("the last one", 2), ("refund order", 1), ("Track a parcel", 2),
        ("cancel-order", 0), ("4", None), ("0", None), ("the refund of 2 orders", None), ("no", None), ("", None),
        ("no one", None), ("no second", None), ("no. 2", 1),
    ],
)  # fmt: skip
def test_one_of_a_list_is_meant_by_its_name_its_title_or_its_place(said: str, meant: int | None) -> None:
    names, titles = ["cancel_order", "refund_order", "track"], ["Cancel", "Refund", "Track a parcel"]
    assert find_listed(names, said, titles) == meant


@pytest.mark.parametrize(
    ("said", "language"),
    [
        ("Ejecuta la consulta \"SELECT count(*) FROM pedidos\".", "es"), ("¿Me lees docs/intro.md?", "es"),
        ("factura 300 EUR", "es"), ("avisa a Ana", "es"), ("turno noche Ana domingo", "es"), ("quita alarma", "es"),
        ("Rename the project to «Casa nueva»", "en"), ("book a table for two", "en"), ("page Ann", "en"), ("Ana", "en"),
    ],
)  # fmt: skip
def test_a_language_is_known_by_the_words_that_only_it_has(said: str, language: str) -> None:
    assert detect_language(said) == language


@pytest.mark.parametrize("said", ["no sé", "ni idea", "¿quién?"])
def test_a_conversation_stays_in_the_language_in_which_it_began(said: str) -> None:
    outcome, _ = talk("pay", "pay 50 dollars", said)
    assert isinstance(outcome, Needs)
    assert outcome.questions[0].text.startswith("Which recipient?")
    refused, _ = talk("pay", "paga 50 dólares", said, "cancel")
    assert isinstance(refused, Failed)
    assert "No se ha hecho nada" in refused.message


def test_questions_are_put_in_plain_words_and_say_what_was_only_half_understood() -> None:
    day = {"type": "string", "format": "date", "title": "Day"}
    schema = {
        "type": "object", "properties": {"person": {"type": "string"}, "day": day}, "required": ["person", "day"],
    }  # fmt: skip
    book = Capability(name="book_appointment", description="Book an appointment.", input_schema=schema)
    for said, texts in (
        ("book an appointment with Ana", ["Which day?", "Which person? 'Ana' was not clear."]),
        ("reserva una cita con Ana", ["Falta day. ¿Cuál es?", "Falta person. ¿Cuál es? 'Ana' no está claro."]),
    ):
        asked = read(book, said, datetime(2027, 1, 1))
        assert isinstance(asked, Ask)
        assert [one.text.partition("\n")[0] for one in ask_for(book, asked)] == texts
    given = {"person": "Ana", "day": "2027-05-09"}
    sure = "Book an appointment: person Ana, day 2027-05-09."
    assert ask_confirmation(book, given, "en").text == f"{sure} Shall I do it?"
    assert ask_confirmation(book, given, "es").text == f"{sure} ¿Lo hago?"
    assert 'person "Ana, day 1"' in ask_confirmation(book, {"person": "Ana, day 1"}, "en").text, "one value is one"


MESSAGE = {"type": "object", "properties": {"message": NAME}, "required": ["message"]}
ORDER = Capability(name="order_coffee", description="Order coffee in plain words.", input_schema=MESSAGE)
EDIT = Capability(name="edit_slides", description="Edit the slides.", input_schema=MESSAGE)
CHAT = Capability(name="chat", description="Talk about anything.", input_schema=MESSAGE)
ECHO = Capability(name="say", description="Say the message back.", input_schema=MESSAGE)
SKILL = Capability(name="order", description="Order coffee.", input_schema={})
MARKED = Capability(name="order", description="Order coffee.", input_schema={**MESSAGE, FREE_TEXT: "message"})
NO_ORDER = (
    # forbids, avoids, declines
    "skip the large coffee", "I'll pass on the coffee", "leave out the coffee", "I refuse to order a coffee",
    "we can do without a coffee", "steer clear of the coffee", "the doctor forbade drinking coffee",
    "it would be a bad idea to order a coffee", "a large coffee is the last thing I want", "remove the coffee",
    "nada de café", "quita el café grande", "paso de tomar café", "prescinde de un café",
    "renuncio a un café", "el jefe prohibió pedir café", "sería mala idea pedir un café",
    "un café es lo último que quiero",
    # postpones, doubts
    "maybe a large coffee", "a coffee later maybe, I'm not sure", "perhaps a coffee some day", "coffee? another day",
    "quizás un café", "mejor otro día", "a lo mejor un café", "un café, no lo sé", "otro día un café",
    # asks how, pretends, tells what others want
    "explain how to order a coffee", "tell me how to order a coffee", "teach me to order a coffee",
    "pretend to order a large coffee", "I was thinking of a coffee", "my sister wants a large coffee",
    "Ana would like a coffee", "a large coffee sounds disgusting", "explícame cómo pedir un café",
    "enséñame a pedir un café", "finge que pides un café", "mi hermana quiere un café", "Juan quiere un café grande",
)  # fmt: skip
AN_ORDER = (
    "a large coffee", "I want a large coffee", "could I have a coffee, please", "a coffee, skip the sugar",
    "my sister wants a coffee, order one please", "order a coffee for my sister", "maybe you could order a coffee",
    "could you maybe order a coffee", "I'll have a coffee", "get me a coffee as usual", "quiero un café sin azúcar",
    "un café, quita el azúcar", "pide un café para mi hermana", "me apetece un café grande", "ponme un café",
)  # fmt: skip


@pytest.mark.parametrize("message", NO_ORDER)
def test_what_orders_nothing_is_not_passed_on_as_an_order(message: str) -> None:
    assert isinstance(free_text(ORDER, message), Forbidden)


@pytest.mark.parametrize("message", AN_ORDER)
def test_an_order_is_passed_on_whole(message: str) -> None:
    assert free_text(ORDER, message) == {"message": message}


@pytest.mark.parametrize(
    "message", ["my sister wants a large coffee", "maybe a coffee", "skip the coffee", "quizás un café"]
)
@pytest.mark.parametrize("capability", [CHAT, ECHO, SKILL, MARKED], ids=["chat", "echo", "skill", "marked"])
def test_one_that_only_talks_is_told_everything(capability: Capability, message: str) -> None:
    assert free_text(capability, message) == ({"message": message} if capability.input_schema else {})


@pytest.mark.parametrize("message", ["skip the intro", "remove the second slide", "quita la última"])
def test_to_take_something_away_is_a_request_where_things_are_edited(message: str) -> None:
    assert free_text(EDIT, message) == {"message": message}
