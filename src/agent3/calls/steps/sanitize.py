"""``sanitize``: holds a result against its schema as it came, then strips what can deceive a reader, and bounds it.

What is emitted on the way is cleaned by the same rules.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.errors import Agent3Error, MalformedResponse, SecurityError
from agent3.model import Call, Capability, Done, Event, Needs, Outcome, Working, value_of
from agent3.schema.bounds import RESULTS, weigh
from agent3.schema.compiler import compiled
from agent3.security.foreign_words import find_bad_question
from agent3.security.sanitize import clean_outcome, clean_part, clean_text, clean_value, is_clean_text

__all__ = ["Sanitize", "clean_event", "is_long"]

_LONGEST_EVENT = 65_536
"""Characters of what an event tells. Events are cleaned where they come in, in the loop."""
_BOUNDED = frozenset({"status", "progress", "log"})
"""Events that hold no part of a result."""


def clean_event(event: Event) -> Event:
    """An event without what can deceive a reader."""
    text, data = event.text, event.data
    if event.kind in _BOUNDED:
        if text is not None and len(text) > _LONGEST_EVENT:
            text = f"{text[:_LONGEST_EVENT]}…"
        if data is not None and weigh(data, _LONGEST_EVENT) >= _LONGEST_EVENT:
            data = "[left out: too long for an event]"
    return replace(
        event,
        text=clean_text(text) if text else text,
        name=clean_text(event.name) if event.name else event.name,
        parts=tuple(map(clean_part, event.parts)) if event.parts else event.parts,
        data=clean_value(data) if data is not None else None,
    )


_CLEAN = (clean_event,)


_LONG = 131_072
"""Characters of a result beyond which it is judged in a thread: that takes up to 150 ms for a million of them."""
_PART = 64
"""What a part weighs beside its characters."""


def is_long(outcome: Outcome) -> bool:
    """Whether going through an outcome takes too long for the event loop."""
    if isinstance(outcome, Working):
        return len(outcome.text or "") > _LONG
    groups, told = [outcome.parts], list[Any]()
    if isinstance(outcome, Needs):
        told += [(question.text, question.url, question.schema) for question in outcome.questions]
    else:
        told += [outcome.meta] if isinstance(outcome, Done) else [outcome.message, outcome.data]
        for artifact in outcome.artifacts:
            groups.append(artifact.parts)
            told.append((artifact.name, artifact.description, artifact.meta))
    weight = sum(map(len, groups)) * _PART + weigh(told, _LONG)
    for part in (part for parts in groups for part in parts):
        if weight > _LONG:
            break
        weight += sum(map(len, filter(None, (part.text, part.raw, part.url, part.media_type, part.name))))
        weight += weigh(part.data, _LONG) if part.data is not UNSET else 0
        weight += weigh(part.meta, _LONG) if part.meta else 0
    return weight > _LONG


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
        definition = capability.output_schema if type(outcome) is Done else None
        if definition is None and is_clean_text(outcome, self._plain):
            return outcome
        if is_long(outcome):
            return asyncio.to_thread(self._judge, call, capability, outcome)
        return self._judge(call, capability, outcome)

    def _judge(self, call: Call, capability: Capability, outcome: Outcome) -> Outcome:
        """Hold a result against its schema, and clean it; what may not be asked is not asked."""
        if capability.output_schema is not None and type(outcome) is Done:
            # The schema speaks of the one datum, also where a text for people stands beside it; else of all there is.
            data = [part.data for part in outcome.parts if part.data is not UNSET]
            try:
                # Compiled here and not beforehand: what a server says of its results may be a schema that we do not
                # take, and then its questions, its work and its cancellation go on all the same.
                result = data[0] if len(data) == 1 else value_of(outcome.parts)
                compiled(capability.output_schema).check(result, what="result", limits=RESULTS)
            except Agent3Error as error:
                text = f"{capability.name} returned a result that does not match its own schema: {error.message}"
                return failed_by(MalformedResponse(text, data=error.data))
        cleaned = clean_outcome(outcome, self._limit)
        if type(cleaned) is Needs and (why := find_bad_question(cleaned)):
            self._refused.inc()
            return failed_by(SecurityError(f"A question of {call.agent} was not shown: {why}."))
        return cleaned

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        call.live.filters = call.live.filters[1:]
        return error
