"""``resolve``: makes structured input of what the caller gave. Structured input is taken as it is.

A message that says it is JSON is decoded. One to a capability that takes free text as such is passed on as it is. Any
other is read (``agent3.sentences``): what it says becomes the input; what is missing, left over or in doubt is asked;
what it forbids is not done. A configured language model may fill what the reader leaves open. What was understood is
told with the result, and is kept with a job that goes on, so that a later turn does not read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.calls.outcomes import UNDERSTOOD, failed_by
from agent3.calls.step import Aim, Entered, Parts, Step
from agent3.errors import Agent3Error, Declined, ValidationError
from agent3.model import Call, Capability, Done, Needs, Outcome, Question, Working, text_of
from agent3.schema import compile as compile_schema
from agent3.schema.coercion import from_words
from agent3.sentences import Ask, Forbidden, Understood, free_text, read
from agent3.sentences.lexicon import Language, detect_language
from agent3.sentences.questions import AGAIN, CONFIRM, ask_again, ask_confirmation, ask_for, decline, refuse

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


class Resolve(Step):
    """Reads the caller's message."""

    name = "resolve"

    def __init__(self, parts: Parts):
        self._env = parts.env
        self._propose = parts.propose
        self._sentences = parts.metrics.sentences

    def idle(self, aim: Aim) -> bool:
        return False

    def enter(self, call: Call) -> Entered:
        state = call.state
        if isinstance(state, dict) and _KEPT in state:
            call.live.understood = state[_KEPT]
            return replace(call, input=state[_KEPT]["input"], state=state.get("state"))
        if call.input is not None or call.entry == "cancel":
            return call
        try:
            if call.entry == "answer" and isinstance(state, dict) and _ASKED in state:
                return self._answered(call, msgspec.convert(state[_ASKED], _Open))
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

    def _read(self, call: Call, message: str, *, asked: bool = False) -> Entered:
        """The call with the input that a message says, or what ends it here."""
        capability = call.live.capability
        if call.input_mode == "application/json":
            try:
                return replace(call, input=msgspec.json.decode(message))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValidationError(f"The message claims to be application/json but is not: {error}") from None
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
            whole = {}  # a function without parameters reads the message itself
        if whole is None and call.entry != "start" and not asked:
            whole = {}  # a turn that goes on with what its target keeps
        if whole is not None:
            return replace(call, input=whole)
        return self._read_sentence(call, message, agent)

    async def _read_sentence(self, call: Call, message: str, agent: str) -> Call | Outcome:
        """The same for what has to be read word by word: in a thread, for it takes tens of milliseconds."""
        capability, now = call.live.capability, datetime.fromtimestamp(self._env.now())  # noqa: DTZ006 - the user's day
        reading = await asyncio.to_thread(read, capability, message, now, agent=agent)
        if isinstance(reading, Forbidden):
            self._sentences.inc(("forbidden",))
            return failed_by(Declined(refuse(reading.why, reading.language), data={"reason": reading.why}))
        if isinstance(reading, Ask) and self._propose is not None:
            try:
                reading = await self._propose(capability, message, reading) or reading
            except Agent3Error as error:
                return failed_by(error)
        return self._take(call, message, reading)

    def _take(self, call: Call, message: str, reading: Understood | Ask) -> Call | Outcome:
        if isinstance(reading, Understood):
            self._sentences.inc(("understood",))
            return self._confirm(call, _Open(reading.input, [*reading.guessed], detect_language(message)))
        self._sentences.inc(("asked",))
        return _ask(ask_for(call.live.capability, reading), _Open(reading.input, [], reading.language))

    def _confirm(self, call: Call, known: _Open) -> Call | Outcome:
        """Start it, or ask first where something was guessed and it may have consequences."""
        capability = call.live.capability
        if known.guessed and not capability.hints.read_only:
            return _ask((ask_confirmation(capability, known.input, known.language),), known)
        return self._start(call, known)

    def _start(self, call: Call, known: _Open) -> Call:
        call.live.understood = {"input": known.input, "guessed": known.guessed}
        route = call.route or (call.routes[0] if len(call.routes) == 1 else None)
        return replace(call, entry="start", input=known.input, state=None, questions=(), route=route)

    async def _answered(self, call: Call, known: _Open) -> Call | Outcome:
        """The turn that answers our questions."""
        try:
            entered = await self._continue(call, known)
        except Agent3Error as error:
            return failed_by(error)
        return await entered if isinstance(entered, Awaitable) else entered

    async def _continue(self, call: Call, known: _Open) -> Entered:
        again = []
        for question in call.questions:
            answer = call.answers.get(question.id)
            if answer is not None and answer.action != "accept":
                raise Declined(f"{call.agent}: {decline(question, known.language)}")
            value = None if answer is None else await asyncio.to_thread(self._value, question, answer.data)
            if question.id == CONFIRM and value is False:
                raise Declined(f"{call.agent}: {decline(question, known.language)}")
            if answer is None or (fault := _fault(question, value)) is not None:
                again.append(ask_again(question, None if answer is None else fault, known.language))
            elif question.id == AGAIN:
                return self._read(call, str(value), asked=True)
            elif question.id == CONFIRM:
                known.guessed = []
            else:
                known.input = {**known.input, question.id: value}
        if again:
            return _ask(tuple(again), known)
        return self._confirm(call, known)

    def _value(self, question: Question, said: Any) -> Any:
        """An answer in words as the value that its schema asks for."""
        if isinstance(said, dict) and set(said) == {question.id}:  # a form with one field
            said = said[question.id]
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


def _ask(questions: tuple[Question, ...], known: _Open) -> Needs:
    return Needs(questions, state={_ASKED: msgspec.to_builtins(known)})


def _fault(question: Question, value: Any) -> str | None:
    try:
        compile_schema(question.schema or {}).check(value, what="answer")
    except Agent3Error as error:
        return error.message
    return None
