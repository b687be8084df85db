"""One conversation with an agent in memory, with or without a restart between its turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent3.calls.core import Core
from agent3.calls.runner import Target
from agent3.calls.steps.authorize import unknown
from agent3.model import LOCAL, Answer, Call, Needs, Outcome, Part
from agent3.observe.metrics import Metrics
from agent3.protocols.functions.functions import LocalAgent, LocalConnector
from agent3.settings import Settings
from agent3.storage import open_database

__all__ = ["call", "restarting"]


async def call(
    agent: LocalAgent,
    capability: str,
    given: Mapping[str, Any] | None = None,
    *,
    message: str = "",
    answers: Mapping[str, Any] | None = None,
) -> Outcome:
    """The outcome of one conversation: every question is answered from ``answers``, by its id or its text.

    It ends at a question without an answer, and at one that is asked again: the outcome is then ``Needs``.
    """
    return await _converse(agent, capability, given, message, answers or {}, restart=False)


async def restarting(
    agent: LocalAgent,
    capability: str,
    given: Mapping[str, Any] | None = None,
    *,
    message: str = "",
    answers: Mapping[str, Any] | None = None,
) -> Outcome:
    """Like ``call``, with a restart after every turn."""
    return await _converse(agent, capability, given, message, answers or {}, restart=True)


async def _converse(
    agent: LocalAgent,
    capability: str,
    given: Mapping[str, Any] | None,
    message: str,
    answers: Mapping[str, Any],
    *,
    restart: bool,
) -> Outcome:
    function = agent.functions.get(capability)
    if function is None:
        raise unknown(agent.id, capability)
    target = (agent.agent, function.capability)

    async def lookup(agent_id: str, name: str) -> Target:
        return target

    connector = LocalConnector()
    connector.add(agent)
    database = await open_database(":memory:")
    core = Core.build(Settings(), database, {"local": connector}, lookup, metrics=Metrics())
    first = Call(
        id=core.env.id(),
        principal=LOCAL,
        agent=agent.id,
        capability=capability,
        input=dict(given) if given is not None else None,
        parts=(Part(text=message),) if message else (),
    )
    try:
        outcome = await core.runner.start(first, target, door="testing")
        answered: set[str] = set()
        while isinstance(outcome, Needs) and outcome.job is not None:
            questions = outcome.questions
            known = all(question.id in answers or question.text in answers for question in questions)
            if not known or not answered.isdisjoint(question.id for question in questions):
                return outcome
            answered.update(question.id for question in questions)
            given = {question.id: answers.get(question.id, answers.get(question.text)) for question in questions}
            turn = {
                key: value if isinstance(value, Answer) else Answer("accept", value, exact=True)
                for key, value in given.items()
            }
            if restart:
                await core.parts.park.aclose()  # forgets every frame, as a restart does
            outcome = await core.runner.answer(LOCAL, outcome.job, turn, door="testing")
        return outcome
    finally:
        await core.aclose()
        await database.aclose()
