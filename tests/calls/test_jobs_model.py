"""Jobs against a small model of themselves: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from agent3.calls.jobs import Job, Jobs
from agent3.env import SeededEnv
from agent3.errors import Conflict, JobNotFound, TurnTaken
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Principal, Question
from agent3.storage import Database, open_database

T = TypeVar("T")
OWNERS = ("alice", "bob")
OUTCOMES: dict[str, Outcome] = {
    "done": Done((Part(text="yes"),)),
    "failed": Failed("target_failed", "no"),
    "refused": Failed("rate_limited", "later"),
    "canceled": Failed("canceled", "stopped"),
    "needs": Needs((Question("q1", "Which?"),)),
}


@dataclass
class Known:
    """What the model knows of a job."""

    owner: str
    key: str | None
    body: int
    status: str = "working"
    turn: int = 1
    generation: int = 1
    answers: dict[str, Answer] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)


class JobsMachine(RuleBasedStateMachine):
    """Held job objects may be stale: then every change must be refused."""

    held: Bundle[Job] = Bundle("held")

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.database: Database = self.do(open_database(":memory:"))
        self.world = SeededEnv()
        self.jobs = Jobs(self.database, self.world)
        self.known: dict[str, Known] = {}

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.do(self.database.aclose())
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 100))

    @rule(
        target=held,
        owner=some.sampled_from(OWNERS),
        key=some.sampled_from([None, "k1", "k2"]),
        body=some.integers(0, 1),
    )
    def open(self, owner: str, key: str | None, body: int) -> Job:
        call = Call(
            id=self.world.id(), principal=Principal(owner), agent="a", capability="b", input={"body": body}, key=key
        )
        before = next((name for name, one in self.known.items() if key and (one.owner, one.key) == (owner, key)), None)
        try:
            job, new = self.do(self.jobs.open(call))
        except Conflict:
            assert before is not None
            assert self.known[before].body != body
            return self.do(self.jobs.get(owner, before))
        assert new == (before is None)
        if new:
            self.known[job.id] = Known(owner, key, body)
        else:
            assert job.id == before
            assert self.known[job.id].body == body
        return job

    @rule(target=held, job=held)
    def read(self, job: Job) -> Job:
        return self.do(self.jobs.get(job.owner, job.id))

    @rule(job=held)
    def pry(self, job: Job) -> None:
        other = next(one for one in OWNERS if one != job.owner)
        try:
            self.do(self.jobs.get(other, job.id))
        except JobNotFound:
            return
        raise AssertionError("another's job was read")

    @rule(target=held, job=held)
    def seize(self, job: Job) -> Job:
        known = self.known[job.id]
        taken = self.do(self.jobs.take_over(job))
        assert (taken is not None) == (known.status == "working" and known.generation == job.generation)
        if taken is None:
            return job
        known.generation += 1
        return taken

    @rule(target=held, job=held, value=some.integers())
    def claim(self, job: Job, value: int) -> Job:
        known = self.known[job.id]
        answers = {"q1": Answer("accept", value)}
        try:
            claimed = self.do(self.jobs.claim(job, answers))
        except TurnTaken:
            assert known.status != "needs" or known.turn != job.turn
            return job
        assert (known.status, known.turn) == ("needs", job.turn)
        known.status, known.turn, known.answers = "working", known.turn + 1, answers
        known.generation += 1
        return claimed

    @rule(job=held, count=some.integers(1, 3))
    def append(self, job: Job, count: int) -> None:
        known = self.known[job.id]
        mine = known.status == "working" and known.generation == job.generation
        first = self.do(self.jobs.get(job.owner, job.id)).seq + 1
        batch = [Event("status", text=f"{first + one}", seq=first + one, turn=job.turn) for one in range(count)]
        try:
            self.do(self.jobs.append(job, batch))
        except TurnTaken:
            assert not mine
            return
        assert mine
        known.events += [("status", event.text or "") for event in batch]

    @rule(job=held, end=some.sampled_from(sorted(OUTCOMES)))
    def end(self, job: Job, end: str) -> None:
        known = self.known[job.id]
        mine = known.status == "working" and known.generation == job.generation
        written = self.do(self.jobs.get(job.owner, job.id)).seq
        try:
            attempted = end != "refused"
            self.do(self.jobs.end_turn(job, OUTCOMES[end], None, written=written, attempted=attempted))
        except TurnTaken:
            assert not mine
            return
        assert mine
        known.status = "failed" if end == "refused" else end
        known.answers = job.answers
        known.events.append(("turn", end))
        if end == "refused" and known.generation == 1:
            known.key = None

    @invariant()
    def agree(self) -> None:
        for job_id, known in getattr(self, "known", {}).items():
            job = self.do(self.jobs.get(known.owner, job_id))
            assert (job.status, job.turn, job.key) == (known.status, known.turn, known.key)
            assert (job.generation, job.answers) == (known.generation, known.answers)
            events = [line.event for line in self.do(self.jobs.log.read(job_id))]
            assert [event.kind for event in events] == [kind for kind, _ in known.events]
            numbers = [event.seq for event in events]
            assert numbers == sorted(set(numbers))
            assert job.seq >= max(numbers, default=0)


JobsMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestJobsAgreeWithTheirModel = JobsMachine.TestCase
