"""The steps that decide whether a call may go on, and with what input: authorize, limit, resolve, validate."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import at_once, failed_by
from agent3.errors import Agent3Error, CapabilityNotFound, RateLimited, ValidationError
from agent3.model import Answer, Call, Capability, Failed, Handler, Needs, Outcome, Question, Route, Step, text_of
from agent3.schema.cache import compiled, once
from agent3.security.access import Access
from agent3.security.limits import Ceiling, Limiter

__all__ = ["RECOVERY", "authorize", "from_message", "limit", "resolve", "toll", "understood", "unknown", "validate"]

RECOVERY = "recovery"
"""The door of calls that were let in by an earlier process."""


def unknown(agent: str, capability: str) -> CapabilityNotFound:
    """What a caller hears of a capability that is not there, and of one that is none of its business."""
    return CapabilityNotFound(
        f"Agent {agent!r} has no capability {capability!r} that you can call. Use agent3_search to find one."
    )


def authorize(access: Access) -> Step:
    """Ask the rules once, and leave only the routes they allow. A cancel always passes: it only ends what is there."""

    def step(inner: Handler) -> Handler:
        def authorized(call: Call) -> Awaitable[Outcome]:
            if call.entry == "cancel":
                return inner(call)
            # A conversation stays on its route, so that one is what it needs to be allowed.
            begun = call.route if call.entry != "start" else None
            wanted = call.routes if begun is None else (begun,)
            routes = access.narrow(call.principal, call.agent, call.capability, wanted)
            if not routes and wanted:
                call.live.denied = "forbidden"
                return at_once(failed_by(unknown(call.agent, call.capability)))
            return inner(call if routes is wanted else replace(call, routes=routes))

        return authorized

    return step


def limit(limiter: Limiter, ceiling: Ceiling) -> Step:
    """Charge the caller once for the turn that starts a job, and keep an agent from being flooded."""

    def step(inner: Handler) -> Handler:
        async def limited(call: Call) -> Outcome:
            if call.entry != "start" or call.live.door == RECOVERY:
                return await inner(call)
            if not call.live.charged and (refusal := await toll(limiter, call)) is not None:
                return refusal
            if not (ceiling.enter(call.agent) or await ceiling.admit(call.agent)):
                return failed_by(_too_many(call))
            try:
                return await inner(call)
            finally:
                ceiling.leave(call.agent)

        return limited

    return step


async def toll(limiter: Limiter, call: Call) -> Failed | None:
    """Charge the caller for one call; the refusal of one that comes too often. The local person is not charged."""
    if call.principal.kind != "local" and (wait := await limiter.charge(call.principal.id)):
        return failed_by(_too_often(call, wait))
    return None


def _too_often(call: Call, wait: float) -> RateLimited:
    return RateLimited(
        f"Rate limit exceeded for client {call.principal.id}. The next call is taken in {wait:.1f} s.", retry_after=wait
    )


def _too_many(call: Call) -> RateLimited:
    return RateLimited(f"Agent {call.agent!r} is busy with as many calls as it may take. Try again.", retry_after=1.0)


def resolve() -> Step:
    """Make structured input of what the caller gave. Structured input is taken as it is.

    A message becomes input when that can be done without guessing: it is JSON and says so, or the capability takes
    nothing but one text. One that ``reads`` messages itself is left to do so. A later turn is resolved anew, for a job
    keeps what its caller said, and a replay needs it.
    """

    def step(inner: Handler) -> Handler:
        def resolved(call: Call) -> Awaitable[Outcome]:
            if call.input is not None or call.entry == "cancel":
                return inner(call)
            try:
                given = understood(call)
            except Agent3Error as wrong:
                return at_once(failed_by(wrong))
            return inner(given)

        return resolved

    return step


def understood(call: Call, route: Route | None = None) -> Call:
    """The call with its message as structured input, if it has no other, and then by this route.

    ValidationError for a message that is not what it says.
    """
    if call.input is not None:
        return call
    return replace(call, input=from_message(call, call.live.capability), route=route or call.route)


def from_message(call: Call, capability: Capability) -> Any:
    """The input that a message says; ValidationError where it is not what it claims, None where others read it."""
    message = text_of(call.parts)
    if call.input_mode == "application/json":
        try:
            return msgspec.json.decode(message)
        except (msgspec.DecodeError, RecursionError) as wrong:
            raise ValidationError(f"The message claims to be application/json but is not: {wrong}") from None
    if message and capability.meta.get("reads") == "messages":
        return None
    name = _text_parameter(capability.input_schema)
    return {name: message} if name and message else {}


@once
def _text_parameter(definition: dict[str, Any]) -> str | None:
    """The one parameter that a plain message can fill: the only required text, or the only text at all."""
    properties: Mapping[str, Any] = definition.get("properties") or {}
    texts = [name for name, one in properties.items() if isinstance(one, dict) and one.get("type") == "string"]
    required = [name for name in texts if name in (definition.get("required") or ())]
    for candidates in (required, texts):
        if len(candidates) == 1:
            return candidates[0]
    return next((name for name in ("message", "query", "text", "prompt", "input") if name in texts), None)


def validate() -> Step:
    """Let only fitting input through: the input of a start against its schema, the answers against their questions.

    An answer that does not fit is asked for again; the answers that did fit are kept.
    """

    def step(inner: Handler) -> Handler:
        def validated(call: Call) -> Awaitable[Outcome]:
            if call.entry == "start":
                if refusal := _check_input(call):
                    return at_once(refusal)
            elif call.entry == "answer" and (again := _check_answers(call)):
                return at_once(again)
            return inner(call)

        return validated

    return step


def _check_input(call: Call) -> Failed | None:
    capability: Capability = call.live.capability
    if call.input is None and capability.meta.get("reads") == "messages":
        return None  # its connector makes input of the message, and holds it to the schema
    definition = capability.input_schema
    try:
        compiled(definition).check(call.input)
        if not definition:
            _check_json(call.input)
    except Agent3Error as wrong:
        return failed_by(wrong)
    return None


def _check_json(value: Any) -> None:
    """An empty schema takes anything, but it must be JSON: what is not cannot be sent, kept or shown."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError) as wrong:
        raise ValidationError(f"Input must be JSON: {wrong}") from None


def _check_answers(call: Call) -> Needs | None:
    wrong = {question.id: fault for question in call.questions if (fault := _fault(question, call.answers))}
    if not wrong:
        return None
    call.live.answers = {key: answer for key, answer in call.answers.items() if key not in wrong}
    good = tuple(one for one in call.questions if one.id not in wrong)
    again = (
        _asked_again(one, wrong[one.id], one.id in call.answers or not good)
        for one in call.questions
        if one.id in wrong
    )
    return Needs(tuple(again), state=call.state, answered=good)


def _fault(question: Question, answers: Mapping[str, Answer]) -> str | None:
    answer = answers.get(question.id)
    if answer is None:
        return "no answer was given"
    if answer.action != "accept" or question.schema is None or question.url:
        return None
    try:
        schema.compile(question.schema).check(answer.data, what="answer")
    except Agent3Error as wrong:
        return wrong.message
    return None


def _asked_again(question: Question, fault: str, tried: bool) -> Question:
    """The question once more, with what was wrong; who answers one after the other has done nothing wrong."""
    first = question.text.split(" (not taken: ", 1)[0]
    return replace(question, text=f"{first} (not taken: {fault})" if tried else first)
