"""``validate``: lets only fitting input through: the input of a start, and answers to their questions.

An answer that does not fit is asked for again; the answers that fit are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Stage, Step
from agent3.errors import Agent3Error, ValidationError
from agent3.model import Answer, Call, Needs, Question
from agent3.schema.compiler import compiled
from agent3.sentences.lexicon import detect_language
from agent3.sentences.questions import explain_fault

__all__ = ["Validate"]


class Validate(Step):
    """Holds input against its schema."""

    name = "validate"

    def idle(self, aim: Aim) -> bool:
        return aim.entry not in ("start", "answer")

    def bind(self, aim: Aim) -> Stage:
        return _Validate(aim)


class _Validate(Stage):
    def __init__(self, aim: Aim):
        self._capability = aim.capability
        self._starts = aim.entry == "start"
        self._fits: Callable[[object], bool] = _never
        with suppress(Agent3Error):  # the calls that need it say why there is none; a cancellation needs none
            if aim.capability.input_schema:
                self._fits = compiled(aim.capability.input_schema).valid

    def enter(self, call: Call) -> Entered:
        # An answer that ``resolve`` understood has become a start.
        if self._starts or call.entry == "start":
            return call if self._fits(call.input) else self._explain(call)
        if call.entry != "answer":
            return call
        faults = {question.id: fault for question in call.questions if (fault := _fault(call, question)) is not None}
        if not faults:
            return call
        call.live.answers = {name: answer for name, answer in call.answers.items() if name not in faults}
        good = tuple(question for question in call.questions if question.id not in faults)
        again = []
        for question in call.questions:
            if question.id in faults:
                # One who answers the questions one after the other has done nothing wrong.
                tried = question.id in call.answers or not good
                again.append(
                    _ask_again(question, call.answers.get(question.id), faults[question.id] if tried else None)
                )
        return Needs(tuple(again), state=call.state, answered=good)

    def _explain(self, call: Call) -> Entered:
        """The refusal with every fault named; the call itself where there is none after all."""
        if call.input is None and self._capability.meta.get("reads") == "messages":
            return call  # its connector makes input of the message, and holds it against the schema
        try:
            schema = compiled(self._capability.input_schema)
            given = schema.without_nulls(call.input)
            if given is not call.input:
                call = replace(call, input=given)
            schema.check(call.input)
            if not self._capability.input_schema:
                # An empty schema takes anything, but what is not JSON cannot be sent, kept or shown.
                msgspec.json.encode(call.input)
        except Agent3Error as error:
            return failed_by(error)
        except (TypeError, ValueError) as error:
            return failed_by(ValidationError(f"Input must be JSON: {error}"))
        return call


def _never(_: object) -> bool:
    return False


def _ask_again(question: Question, answer: Answer | None, fault: str | None) -> Question:
    """The question once more, with what was wrong with its answer, in the language of the question."""
    text = _REPROACH.split(question.text, maxsplit=1)[0]
    if fault is None:
        return replace(question, text=text)
    if detect_language(text) == "en":
        return replace(question, text=f"{text} (invalid: {fault})")
    told = "falta la respuesta" if answer is None else explain_fault(question, answer.data, "es")
    return replace(question, text=f"{text} (no válido: {told or fault})")


_REPROACH = re.compile(r" \((?:invalid|no válido|not taken|no vale): ")


def _fault(call: Call, question: Question) -> str | None:
    answer = call.answers.get(question.id)
    if answer is None:
        return "no answer was given"
    if answer.action != "accept" or question.schema is None or question.url:
        return None
    try:
        schema.compile(question.schema).check(answer.data, what="answer")
    except Agent3Error as error:
        return error.message
    return None
