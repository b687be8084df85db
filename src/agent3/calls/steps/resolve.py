"""``resolve``: makes structured input of what the caller gave. Structured input is taken as it is, unless it is nothing
but a message that forbids what it would lead to.

A message that says it is JSON is decoded. One to a capability that takes free text as such is passed on as it is. Any
other is read (``agent3.sentences``): what it says becomes the input; what is missing, left over or in doubt is asked;
what it forbids is not done. A configured language model may fill what the reader leaves open. What was understood is
told with the result, and is kept with a job that goes on, so that a later turn does not read anew.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.calls.outcomes import UNDERSTOOD, failed_by
from agent3.calls.step import Aim, Entered, Parts, Stage, Step
from agent3.errors import Agent3Error, Declined, ValidationError
from agent3.model import Answer, Call, Capability, Done, Needs, Outcome, Question, Working, text_of, traits_of
from agent3.schema import compile as compile_schema
from agent3.schema.coercion import choices, from_words
from agent3.sentences import (
    Ask,
    Forbidden,
    Understood,
    find_acting_parameter,
    find_dictated_refusal,
    find_prohibition,
    find_refusal,
    free_text,
    judge_words,
    read,
)
from agent3.sentences.answers import Verdict, drops_request, find_listed, is_choice
from agent3.sentences.lexicon import Language, detect_language, fold, is_action, meanings
from agent3.sentences.questions import (
    AGAIN,
    CONFIRM,
    ask_again,
    ask_confirmation,
    ask_for,
    decline,
    explain_fault,
    quote_it,
    refuse,
)
from agent3.sentences.slots import form_of, kind_of
from agent3.sentences.tokens import LONGEST

__all__ = ["Propose", "Resolve"]

Propose = Callable[[Capability, str, Ask], Awaitable[Understood | None]]
"""A language model's word on what a message means, where the reader has to ask."""

_ASKED, _KEPT = "agent3:sentence", "agent3:understood"
"""Keys of the state of a turn that ended with a question of ours, or of the target after we had read a message."""


class _Open(Struct, omit_defaults=True):
    """What is known so far of what the caller wants."""

    input: dict[str, Any] = {}
    guessed: list[str] = []
    language: Language = "en"
    confirmed: bool = False
    missing: list[str] = []
    left: list[str] = []
    """Words that were not understood."""


class Resolve(Step):
    """Reads the caller's message."""

    name = "resolve"
    for_changes = True

    def __init__(self, parts: Parts):
        self._env = parts.env
        self._propose = parts.propose
        self._connectors = parts.connectors
        self._sentences = parts.metrics.sentences

    def bind(self, aim: Aim) -> Stage:
        return _Start(self, aim.capability) if aim.entry == "start" else self

    def enter(self, call: Call) -> Entered:
        state = call.state
        if call.entry == "answer" and not (isinstance(state, dict) and _ASKED in state):
            heard = self._hear(call)
            if not isinstance(heard, Call):
                return heard
            call = heard
        if isinstance(state, dict) and _KEPT in state:
            call.live.understood = state[_KEPT]
            return replace(call, input=state[_KEPT]["input"], state=state.get("state"))
        if call.input is not None or call.entry == "cancel":
            return call
        try:
            if call.entry == "answer" and isinstance(state, dict) and _ASKED in state:
                return self._try_to_continue(call, msgspec.convert(state[_ASKED], _Open))
            return self._read(call, text_of(call.parts))
        except Agent3Error as error:
            return failed_by(error)

    def leave(self, call: Call, outcome: Outcome) -> Outcome:
        understood = call.live.understood
        if understood is None:
            return outcome
        if isinstance(outcome, Done):
            return replace(outcome, meta={**outcome.meta, UNDERSTOOD: understood})
        if isinstance(outcome, Needs | Working) and not (isinstance(outcome.state, dict) and _ASKED in outcome.state):
            return replace(outcome, state={_KEPT: understood, "state": outcome.state})
        return outcome

    def _read(self, call: Call, message: str, known: _Open | None = None) -> Entered:
        """The call with the input that a message says, or what ends it here.

        ``known`` is what was understood before, of a message that answers what was not.
        """
        capability = call.live.capability
        if call.input_mode == "application/json":
            try:
                return replace(call, input=msgspec.json.decode(message))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValidationError(f"The message is not valid application/json: {error}") from None
        if not message:
            return replace(call, input={})
        if capability.meta.get("reads") == "messages":
            return call
        if capability.meta.get("reads") == "commands":
            return replace(call, input={"text": message})  # it is not clear which action is meant: a website asks
        agent = call.live.agent.name if call.live.agent is not None else ""
        whole = free_text(capability, message, agent=agent)
        if (
            whole is None
            and capability.meta.get("reads") == "context"
            and not capability.input_schema.get("properties")
        ):
            # A function without parameters reads the message itself.
            whole = find_refusal(capability, message, agent=agent) or {}
        if not isinstance(whole, dict) and call.entry != "start" and known is None:
            whole = {}  # a turn that goes on with what its target keeps
        if isinstance(whole, Forbidden):
            return self.refuse(whole, known)
        if whole and known is not None:
            # What was said first was not understood: that this is wanted at all is a guess.
            whole = {**known.input, **whole}
            return self._confirm(call, _Open(whole, [*whole], known.language))
        if whole is not None:
            return replace(call, input=whole)
        return self._read_sentence(call, message, agent, known)

    def refuse(self, reading: Forbidden, known: _Open | None = None) -> Outcome:
        """Why nothing is done, in the language in which the conversation began."""
        self._sentences.inc(("forbidden",))
        language = reading.language if known is None else known.language
        return failed_by(Declined(refuse(reading.why, language), data={"reason": reading.why}))

    async def _read_sentence(self, call: Call, message: str, agent: str, known: _Open | None) -> Call | Outcome:
        """The same for what has to be read word by word: in a thread, for it takes tens of milliseconds."""
        capability, now = call.live.capability, datetime.fromtimestamp(self._env.now())  # noqa: DTZ006 - the user's day
        reading = await asyncio.to_thread(read, capability, message, now, agent=agent)
        if isinstance(reading, Forbidden):
            return self.refuse(reading, known)
        if known is not None:
            reading = await asyncio.to_thread(self._join, capability, known, message, reading)
        # Of what forbids something beside its request, a model could leave that out.
        if isinstance(reading, Ask) and self._propose is not None and find_prohibition(message) != "forbids":
            try:
                proposed = await self._propose(capability, message, reading)
            except Agent3Error as error:
                return failed_by(error)
            if proposed is not None:
                reading = proposed if known is None else self._join(capability, known, message, proposed)
        language = detect_language(message) if known is None else known.language
        if isinstance(reading, Understood):
            self._sentences.inc(("understood",))
            return self._confirm(call, _Open(reading.input, [*reading.guessed], language))
        self._sentences.inc(("asked",))
        if _says_all(call.live.capability, reading):
            # Nothing is open but whether this is what the verb means: "take down flights".
            sure = _Open(reading.input, [*reading.input], reading.language)
            return _ask((ask_confirmation(call.live.capability, sure.input, sure.language),), sure)
        guessed = [] if known is None else [*reading.input]
        left = _Open(reading.input, guessed, reading.language, missing=[*reading.missing], left=[*reading.left])
        return _ask(ask_for(call.live.capability, reading), left)

    def _join(self, capability: Capability, known: _Open, said: str, reading: Understood | Ask) -> Understood | Ask:
        """What an answer says together with what was understood before: the answer changes only what it says itself.

        Said as an answer, a value needs no verb: "4". What comes of it is confirmed, for nobody knows yet whether this
        was meant by what was not understood; a sentence that says all of it anew is read as the first one was.
        """
        given = {**known.input, **reading.input}
        if isinstance(reading, Understood) and not _lacks_verb(reading) and given.keys() == reading.input.keys():
            return reading
        left, doubt = (reading.left, reading.doubt) if isinstance(reading, Ask) else ((), {})
        if left and not reading.input and known.missing:
            # Only one thing was open, so that a bare value means it: "Ana". Of several each is asked for.
            left, doubt, name = (), {}, known.missing[0]
            definition = (capability.input_schema.get("properties") or {}).get(name)
            question = Question(name, "", definition if isinstance(definition, dict) else {})
            value = self._value(question, said)
            if len(known.missing) == 1 and explain_fault(question, value, known.language) is None:
                given = {**given, name: value}
        names = capability.input_schema.get("required")
        required = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        missing = dict.fromkeys([*(name for name in required if name not in given), *doubt])
        if missing or left:
            return Ask(tuple(missing), left, given, doubt, known.language)
        joined = Ask((), (), given, {}, known.language)
        return Understood(given, guessed=tuple(given)) if _says_all(capability, joined) else joined

    def _confirm(self, call: Call, known: _Open) -> Call | Outcome:
        """Start it, or ask first: where it cannot be taken back, or where something was guessed that changes anything.

        Websites do the same with commands. Input that is given as such is not asked about.
        """
        capability, hints = call.live.capability, call.live.capability.hints
        sure = not hints.consequential or capability.meta.get("confirms") == "itself"
        if not known.confirmed and (not sure or (known.guessed and not hints.read_only)):
            return _ask((ask_confirmation(capability, known.input, known.language),), known)
        call.live.understood = {"input": known.input, "guessed": known.guessed}
        return _as_start(replace(call, input=known.input))

    async def _try_to_continue(self, call: Call, known: _Open) -> Call | Outcome:
        """The turn that answers our questions."""
        try:
            entered = await self._continue(call, known)
        except Agent3Error as error:
            return failed_by(error)
        return await entered if isinstance(entered, Awaitable) else entered

    async def _continue(self, call: Call, known: _Open) -> Entered:
        capability = call.live.capability
        again = []
        for question in call.questions:
            answer = call.answers.get(question.id)
            said = None if answer is None else _unwrap(question, answer.data)
            judged = None if answer is None else _judge(capability, question, answer, said)
            if judged == "refused":
                raise Declined(f"{call.agent}: {decline(question, known.language)}")
            if question.id != CONFIRM and (given := _as_input(capability, said)) is not None:
                known.input = {**known.input, **given}
                if question.id == AGAIN and not _explains(capability, given, known.left):
                    known.guessed = [*known.input]
                continue
            told = (
                None if question.id in (CONFIRM, AGAIN) else await asyncio.to_thread(self._told, call, question, said)
            )
            if told is not None:
                known.input = {**known.input, **told.input}
                known.guessed += told.guessed
                again.append(ask_again(question, None, known.language))
                continue
            if judged == "open":
                again.append(ask_again(question, quote_it(known.language), known.language))
                continue
            value = None if answer is None else await asyncio.to_thread(self._value, question, said)
            if answer is None or (fault := explain_fault(question, value, known.language)) is not None:
                again.append(ask_again(question, None if answer is None else fault, known.language))
            elif question.id == CONFIRM:
                if value is False:
                    raise Declined(f"{call.agent}: {decline(question, known.language)}")
                known.guessed, known.confirmed = [], True
            elif question.id == AGAIN and self._asks_back(call, str(value)):
                again.append(ask_again(question, None, known.language))
            elif question.id == AGAIN:
                entered = self._read(call, str(value), known)
                # What is taken as it is starts here as well, and the steps behind judge it as every start.
                return _as_start(entered) if isinstance(entered, Call) else entered
            else:
                known.input = {**known.input, question.id: value}
        if again := [question for question in again if question.id not in known.input]:
            return _ask(tuple(again), known)
        required = capability.input_schema.get("required")
        names = required if isinstance(required, list) else []
        if missing := tuple(name for name in names if isinstance(name, str) and name not in known.input):
            return _ask(ask_for(capability, Ask(missing, (), known.input, {}, known.language)), known)
        return self._confirm(call, known)

    def _asks_back(self, call: Call, said: str) -> bool:
        """Whether an answer is itself a question: nothing is done for it, and the matter is not dropped either."""
        form = form_of(call.live.capability)
        why = find_prohibition(said, reading=form.reading, verbs=form.verbs)
        return why == "question" or (why in ("report", "hypothetical") and said.rstrip().endswith("?"))

    def _hear(self, call: Call) -> Call | Needs:
        """What is said to questions of the target. Words that refuse or withdraw decline them and are no value; words
        that leave the matter open are none either, and the same is asked again, while the other answers are kept.

        An agent that converses reads them itself.
        """
        capability = call.live.capability
        converses = not any(traits_of(self._connectors.get(route.protocol)).asks_for_values for route in call.routes)
        if converses or capability.meta.get("reads") == "messages":
            return call
        heard, again = {**call.answers}, []
        for question in call.questions:
            answer = call.answers.get(question.id)
            if answer is None or answer.action != "accept":
                continue
            judged = _judge(capability, question, answer, _unwrap(question, answer.data))
            if judged == "refused":
                heard[question.id] = Answer("decline")
            elif judged == "open":
                del heard[question.id]
                again.append(question)
            elif (listed := _read_place(question, answer)) is not None:
                heard[question.id] = replace(answer, data=listed)
        if again or heard != call.answers:
            # Kept so: a function that is run again from the top must not find the words as a value.
            call.live.answers = heard
        if not again:
            return call if call.live.answers is None else replace(call, answers=heard)
        language = detect_language(again[0].text)
        good = tuple(question for question in call.questions if question not in again)
        asked = tuple(ask_again(question, quote_it(language), language) for question in again)
        return Needs(asked, state=call.state, answered=good)

    def _told(self, call: Call, question: Question, said: Any) -> Understood | None:
        """What an answer says that is no value of what was asked: a question, or a new sentence, which is read as such.

        None for a value. A text may say whatever it likes.
        """
        capability = call.live.capability
        if not isinstance(said, str) or said in choices(question.schema) or len(said) > LONGEST:
            return None
        if kind_of(question.id, question.schema or {}) == "text":
            return None
        if said.rstrip().endswith("?"):
            return Understood({})
        first, *rest = said.split() or [""]
        if len(rest) < 2 or not (is_action(fold(first)) and meanings(fold(first)) & form_of(capability).verbs):
            return None
        reading = read(capability, said, datetime.fromtimestamp(self._env.now()))  # noqa: DTZ006 - the user's own day
        return (
            reading
            if isinstance(reading, Understood)
            else Understood({} if isinstance(reading, Forbidden) else reading.input)
        )

    def _value(self, question: Question, said: Any) -> Any:
        """An answer in words as the value that its schema asks for."""
        if not isinstance(said, str) or question.id in (AGAIN,):
            return said
        definition = question.schema or {}
        schema = {"type": "object", "properties": {question.id: definition}, "required": [question.id]}
        one = Capability(name="get", input_schema=schema)
        if definition.get("type") != "boolean":
            found = read(one, said, datetime.fromtimestamp(self._env.now()))  # noqa: DTZ006 - the user's own day
            if isinstance(found, Understood) and not found.guessed:
                return found.input[question.id]
        return from_words(definition, said)


class _Start(Stage):
    """A first turn: most bring input, of which only a lone message may forbid what it would lead to."""

    for_changes = True

    def __init__(self, step: Resolve, capability: Capability):
        self._step = step
        self._capability = capability
        self._taker: str | None = None
        """The parameter that such a message is given as, once it was asked for."""

    def enter(self, call: Call) -> Entered:
        given, state = call.input, call.state
        if given is None or (state is not None and isinstance(state, dict) and _KEPT in state):
            return self._step.enter(call)
        if isinstance(given, dict) and len(given) == 1:
            if self._taker is None:
                self._taker = find_acting_parameter(self._capability)
            if self._taker in given and (refused := find_dictated_refusal(self._capability, given)) is not None:
                return self._step.refuse(refused)
        return call

    def leave(self, call: Call, outcome: Outcome) -> Outcome:
        return self._step.leave(call, outcome)


def _ask(questions: tuple[Question, ...], known: _Open) -> Needs:
    return Needs(questions, state={_ASKED: msgspec.to_builtins(known)})


def _as_start(call: Call) -> Call:
    """The turn that answers our questions, as the first one of its target."""
    route = call.route or (call.routes[0] if len(call.routes) == 1 else None)
    return replace(call, entry="start", state=None, questions=(), route=route)


def _lacks_verb(reading: Understood) -> bool:
    """Whether nothing that was said is about what the capability does."""
    return all(role != "capability" for _, role in reading.used)


def _unwrap(question: Question, said: Any) -> Any:
    """What was said, without the form of one field around it."""
    return said[question.id] if isinstance(said, dict) and set(said) == {question.id} else said


def _judge(capability: Capability, question: Question, answer: Answer, said: Any) -> Verdict | None:
    """Whether an answer is no value: it declines, or its words do, or they leave the matter open.

    Input given by its name is a value, unless it plainly drops the matter ("never mind").
    """
    if answer.action != "accept":
        return "refused"
    words = answer.words or said
    if not isinstance(words, str):
        return None
    if answer.exact:
        drops = not is_choice(question, words) and drops_request(capability, words)
        return "refused" if drops else None
    if question.id == CONFIRM:
        return "refused" if drops_request(capability, words) else None
    return judge_words(capability, replace(question, id="message") if question.id == AGAIN else question, words)


def _read_place(question: Question, answer: Answer) -> Any:
    """The option that an answer means by its place in the list that its question shows: "1", "the second"."""
    options = (question.schema or {}).get("enum")
    if "\n- " not in question.text or not isinstance(options, list) or not isinstance(answer.data, str):
        return None
    place = None if answer.exact else find_listed([str(option) for option in options], answer.data)
    return None if place is None else options[place]


def _as_input(capability: Capability, said: Any) -> dict[str, Any] | None:
    """An answer that is JSON and holds parameters by their names, whatever the question was."""
    if isinstance(said, str) and said.lstrip().startswith("{"):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, RecursionError):
            return None
    properties = capability.input_schema.get("properties")
    if (
        not isinstance(said, dict)
        or not said
        or not isinstance(properties, dict)
        or not said.keys() <= properties.keys()
    ):
        return None
    return said


def _explains(capability: Capability, given: dict[str, Any], left: list[str]) -> bool:
    """Whether input that answers words that were not understood is all that is needed, or says what they are."""
    names = capability.input_schema.get("required")
    if isinstance(names, list) and all(name in given for name in names):
        return True
    told = set(re.findall(r"\w+", fold(" ".join(map(str, given.values())))))
    return all(word in told for one in left for word in re.findall(r"\w+", fold(one)))


def _says_all(capability: Capability, asked: Ask) -> bool:
    if asked.left or asked.missing or asked.doubt or not asked.input:
        return False
    try:
        compile_schema(capability.input_schema).check(asked.input)
    except Agent3Error:
        return False
    return True
