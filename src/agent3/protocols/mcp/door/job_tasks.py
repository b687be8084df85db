"""Jobs of the gateway as tasks, for clients that follow tasks."""

from __future__ import annotations

from agent3.errors import TurnTaken
from agent3.gateway import Caller as GatewayCaller
from agent3.gateway import Gateway
from agent3.model import Answer, Outcome, Working
from agent3.protocols.mcp.door.toolset import Caller, Task

__all__ = ["JobTasks"]

SETTLING = 5.0
"""Seconds to wait after an incomplete answer until the job asks again for the rest, which takes milliseconds."""
_DAY = 86_400.0


class JobTasks:
    """Tasks that are jobs, of all agents or of one."""

    def __init__(self, gateway: Gateway, door: str = "mcp", agent: str | None = None):
        self._gateway = gateway
        self._door = door
        self._agent = agent
        self._ttl = gateway.core.settings.calls.job_days * _DAY

    async def task(self, job: str, caller: Caller) -> Task:
        """How the job stands; JobNotFound for one that is not this caller's."""
        found = await self._gateway.job(self._who(caller), job, self._agent)
        outcome: Outcome | None = found.outcome
        if outcome is None or found.status == "working":
            # A job that runs is working, whatever its last turn ended with.
            last = outcome if isinstance(outcome, Working) else Working()
            outcome = Working(poll=last.poll, text=last.text, job=found.id, turn=found.turn)
        return Task(id=job, outcome=outcome, created=found.created, updated=found.updated, ttl=self._ttl)

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Give the answers to the job, which goes on by itself; with some missing it asks for these again."""
        who = self._who(caller)
        before = await self._gateway.job(who, job, self._agent)
        try:
            await self._gateway.answer(who, job, answers, turn=before.turn, detach=True)
        except TurnTaken:
            return  # another answer was faster, and answers to what is no longer asked are ignored
        if any(question.id not in answers for question in before.questions):
            await self._gateway.wait(who, job, SETTLING)

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel the job; one that has ended stays as it is."""
        who = self._who(caller)
        if self._agent is not None:
            await self._gateway.job(who, job, self._agent)
        await self._gateway.cancel(who, job)

    def _who(self, caller: Caller) -> GatewayCaller:
        return GatewayCaller(caller.principal, self._door)
