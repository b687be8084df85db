"""Jobs of the call core as tasks: what a tool set answers with where its calls run under a Runner."""

from __future__ import annotations

from agent3.calls.jobs.jobs import Job
from agent3.calls.runner import Runner
from agent3.errors import TurnTaken
from agent3.model import Answer, Outcome, Working
from agent3.protocols.mcp.door.toolset import Caller, Task

__all__ = ["JobTasks"]

SETTLING = 5.0
"""Seconds to wait after an incomplete answer until the job asks again for the rest, which takes milliseconds."""


class JobTasks:
    """Tasks that are jobs. ``ttl`` is how many seconds a job is kept at least."""

    def __init__(self, runner: Runner, ttl: float, door: str = "mcp"):
        self._runner = runner
        self._ttl = ttl
        self._door = door

    async def task(self, job: str, caller: Caller) -> Task:
        """How the job stands; JobNotFound for one that is not this caller's."""
        found = await self._runner.get(caller.principal, job)
        return Task(id=job, outcome=_outcome(found), created=found.created, updated=found.updated, ttl=self._ttl)

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Give the answers to the job, which goes on by itself; with some missing it asks for these again."""
        before = await self._runner.get(caller.principal, job)
        try:
            await self._runner.answer(caller.principal, job, answers, turn=before.turn, door=self._door, detach=True)
        except TurnTaken:
            return  # somebody was faster, and answers to what is no longer asked are ignored
        if any(question.id not in answers for question in before.questions):
            await self._runner.wait(caller.principal, job, SETTLING)

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel the job; one that has ended stays as it is."""
        await self._runner.cancel(caller.principal, job, self._door)


def _outcome(job: Job) -> Outcome:
    """A job that runs is working, whatever its last turn ended with."""
    if job.outcome is None or job.status == "working":
        last = job.outcome if isinstance(job.outcome, Working) else Working()
        return Working(poll=last.poll, text=last.text, job=job.id, turn=job.turn)
    return job.outcome
