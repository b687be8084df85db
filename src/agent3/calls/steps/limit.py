"""``limit``: charges the caller once for a call, and keeps an agent from being flooded."""

from __future__ import annotations

from agent3.calls.outcomes import failed_by
from agent3.calls.step import RECOVERY, Aim, Entered, Left, Parts, Step
from agent3.errors import RateLimited
from agent3.model import Call, Failed, Outcome

__all__ = ["Limit"]


class Limit(Step):
    """Rate per caller, concurrency per agent. Only the turn that starts a job is counted."""

    name = "limit"

    def __init__(self, parts: Parts):
        self._limiter = parts.limiter
        self._ceiling = parts.ceiling

    def idle(self, aim: Aim) -> bool:
        return aim.entry != "start" or aim.door == RECOVERY

    def enter(self, call: Call) -> Entered:
        if call.entry != "start" or call.live.door == RECOVERY:
            return call
        live, principal = call.live, call.principal
        # The local person is not charged, and a job has paid before it was written down.
        if not live.charged and principal.kind != "local" and self._limiter.take(principal.id):
            return self._admit(call, paid=False)
        if not self._ceiling.enter(call.agent):
            return self._admit(call, paid=True)
        live.admitted = True
        return call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        if call.live.admitted:
            call.live.admitted = False
            self._ceiling.leave(call.agent)
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        if call.live.admitted:
            call.live.admitted = False
            self._ceiling.leave(call.agent)
        return error

    async def charge(self, call: Call) -> Failed | None:
        """Charge the caller of a call; the refusal of one that comes too often."""
        principal = call.principal
        if principal.kind != "local" and (wait := await self._limiter.charge(principal.id)):
            return failed_by(
                RateLimited(
                    f"Rate limit exceeded for client {principal.id}. The next call is taken in {wait:.1f} s.",
                    retry_after=wait,
                )
            )
        return None

    async def _admit(self, call: Call, *, paid: bool) -> Call | Failed:
        """The same where the database has to be asked."""
        if not paid and (refusal := await self.charge(call)) is not None:
            return refusal
        if not (self._ceiling.enter(call.agent) or await self._ceiling.admit(call.agent)):
            return failed_by(
                RateLimited(
                    f"Agent {call.agent!r} is busy with as many calls as it may take. Try again.", retry_after=1.0
                )
            )
        call.live.admitted = True
        return call
