"""``dead_letter``: keeps what could not be delivered, once, when every attempt and route has failed."""

from __future__ import annotations

from agent3.calls.step import Aim, Left, Parts, Step
from agent3.errors import StorageError
from agent3.model import Call, Failed, Outcome
from agent3.observe.logs import get as logger

__all__ = ["UNDELIVERED", "DeadLetter"]

log = logger("calls")

UNDELIVERED = frozenset(
    {"timeout", "unavailable", "rate_limited", "circuit_open", "malformed_response", "target_refused", "interrupted"}
)
"""Failures after which the work is still to be done; a target that ran and failed has given its answer."""


class DeadLetter(Step):
    """Hands failed calls to the ``DeadLetters`` of the core."""

    name = "dead_letter"
    for_failures = True

    def __init__(self, parts: Parts):
        self._dead_letters = parts.dead_letters
        self._metrics = parts.metrics

    def idle(self, aim: Aim) -> bool:
        return aim.entry not in ("start", "answer")

    def leave(self, call: Call, outcome: Outcome) -> Left:
        if isinstance(outcome, Failed) and outcome.code in UNDELIVERED and call.entry in ("start", "answer"):
            return self._keep(call, outcome)
        return outcome

    async def _keep(self, call: Call, outcome: Failed) -> Outcome:
        self._metrics.dead_letters.inc((outcome.code,))
        try:
            await self._dead_letters.bury(call, outcome)
        except StorageError as error:  # what became of the call matters more to its caller than that it was not kept
            log.error("%s/%s: its dead letter was lost: %s", call.agent, call.capability, error)
        return outcome
