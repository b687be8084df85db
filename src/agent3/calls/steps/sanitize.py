"""``sanitize``: holds a result against its schema as it came, then strips what can deceive a reader, and bounds it.

What is emitted on the way is cleaned by the same rules.
"""

from __future__ import annotations

import asyncio

from msgspec import UNSET
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.errors import Agent3Error, MalformedResponse, SecurityError
from agent3.model import Call, Done, Event, Failed, Needs, Outcome, Part, Working, value_of
from agent3.schema.compiler import compiled
from agent3.security.foreign_words import find_bad_question
from agent3.security.sanitize import clean_outcome, clean_part, clean_text, clean_value, is_clean_text

__all__ = ["Sanitize", "clean_event"]


def clean_event(event: Event) -> Event:
    """An event without what can deceive a reader."""
    return replace(
        event,
        text=clean_text(event.text) if event.text else event.text,
        name=clean_text(event.name) if event.name else event.name,
        parts=tuple(map(clean_part, event.parts)) if event.parts else event.parts,
        data=clean_value(event.data) if event.data is not None else None,
    )


_CLEAN = (clean_event,)


_LONG = 131_072
"""Characters of a result beyond which it is cleaned in a thread: that takes up to 150 ms for a million of them."""


def _is_long(outcome: Outcome) -> bool:
    parts = [] if isinstance(outcome, Working) else [*outcome.parts]
    if isinstance(outcome, Done | Failed):
        parts += [part for artifact in outcome.artifacts for part in artifact.parts]
    return sum(map(_length, parts)) > _LONG


def _length(part: Part) -> int:
    return len(part.text or "") + len(part.raw or b"")


class Sanitize(Step):
    """Cleans what comes back."""

    name = "sanitize"

    def __init__(self, parts: Parts):
        self.limit = parts.settings.calls.result_bytes
        self.questions_refused = parts.metrics.questions_refused

    def bind(self, aim: Aim) -> Stage:
        return _Sanitize(self)


class _Sanitize(Stage):
    def __init__(self, step: Sanitize):
        self._limit = step.limit
        self._refused = step.questions_refused
        self._plain = min(step.limit, _LONG)

    def enter(self, call: Call) -> Entered:
        live = call.live
        live.filters = (clean_event, *live.filters) if live.filters else _CLEAN
        return call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        live = call.live
        live.filters = live.filters[1:]
        # Of the one that was asked: that is a stand-in where one was.
        capability = live.capability
        definition = capability.output_schema
        if definition is not None and type(outcome) is Done:
            # The schema speaks of the one datum, also where a text for people stands beside it; else of all there is.
            data = [part.data for part in outcome.parts if part.data is not UNSET]
            try:
                # Compiled here and not beforehand: what a server says of its results may be a schema that we do not
                # take, and then its questions, its work and its cancellation go on all the same.
                result = data[0] if len(data) == 1 else value_of(outcome.parts)
                compiled(definition).check(result, what="result")
            except Agent3Error as error:
                text = f"{capability.name} answered with something that breaks its own schema: {error.message}"
                return failed_by(MalformedResponse(text, data=error.data))
        if is_clean_text(outcome, self._plain):
            return outcome
        if _is_long(outcome):
            return asyncio.to_thread(clean_outcome, outcome, self._limit)
        cleaned = clean_outcome(outcome, self._limit)
        if type(cleaned) is Needs and (why := find_bad_question(cleaned)):
            self._refused.inc()
            return failed_by(SecurityError(f"A question of {call.agent} is not put to anybody: {why}."))
        return cleaned

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        call.live.filters = call.live.filters[1:]
        return error
