"""``retry``: tries a route again while time lasts, after a pause with full jitter or the one the target asked for."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from agent3.calls.step import Aim, Left, Parts, Stage, Step
from agent3.model import Call, Failed, Outcome

__all__ = ["Retry"]


class Retry(Step):
    """Repeats what ``attempt`` judged to be repeatable."""

    name = "retry"

    def __init__(self, parts: Parts):
        self.settings = parts.settings.calls
        self.env = parts.env
        self.metrics = parts.metrics

    def bind(self, aim: Aim) -> Stage:
        return _Retry(self)


class _Retry(Stage):
    for_failures = True

    def __init__(self, step: Retry):
        self._settings = step.settings
        self._env = step.env
        self._metrics = step.metrics

    def leave(self, call: Call, outcome: Outcome) -> Left:
        return self._repeat(call, outcome) if isinstance(outcome, Failed) and _may_repeat(outcome) else outcome

    async def _repeat(self, call: Call, outcome: Outcome) -> Outcome:
        most = self._settings.retries if call.retries is None else call.retries
        for number in range(1, most + 1):
            if not isinstance(outcome, Failed) or not _may_repeat(outcome):
                break
            pause = outcome.retry_after
            if pause is None:
                longest = min(self._settings.backoff_max, self._settings.backoff * 2 ** (number - 1))
                pause = self._env.jitter(longest)
            expires = call.live.expires
            if expires is not None and self._env.monotonic() + pause >= expires:
                break
            self._metrics.retries.inc((call.route.protocol if call.route else "", outcome.code))
            await asyncio.sleep(pause)
            outcome = await self.inner(replace(call, attempt=number))
        return outcome


def _may_repeat(outcome: Failed) -> bool:
    """An open circuit is for the caller to try later: in here it would be asked only to say no again."""
    return outcome.repeatable and outcome.retryable and outcome.code != "circuit_open"
