"""The queue against a model of it: any sequence of operations on every database, and each claim gets what it must."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agent3.errors import Conflict
from agent3.observe.metrics import Metrics
from agent3.queue import Lease, Queue, QueueFull, Rules
from agent3.storage import Database, open_database
from tests.support.postgres import new_database_url
from tests.support.queues import pass_time

RULES = Rules(bound=6, attempts=2, lease=100.0)
CONTEXTS = st.sampled_from([None, "a", "b"])
LAST = st.integers(min_value=0, max_value=3)
_names = count(1)
EXAMPLES = int(os.environ.get("AGENT3_EXAMPLES", "0"))
"""For a longer look: this many on both databases."""


@dataclass(eq=False)
class Known:
    """A message as the model knows it."""

    id: str
    place: int
    context: str | None
    priority: int
    due: float
    state: str = "queued"  # queued, leased, dead, done
    attempts: int = 0
    lease: Lease | None = None
    stale: list[Lease] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    """Puts, claims and ends at random; time passes at random."""

    runner: asyncio.Runner
    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model-{next(_names)}"
        self.queue = Queue(self.database, self.name, RULES, metrics=Metrics())
        self.known: list[Known] = []
        self.heads: dict[str, Known] = {}
        self.keys: dict[str, tuple[bytes, str]] = {}
        self.now = 0.0

    def run(self, work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await work

        return self.runner.run(bounded())

    # The model

    def live(self) -> Iterator[Known]:
        return (one for one in self.known if one.state in ("queued", "leased"))

    def line_up(self, one: Known) -> None:
        one.state = "queued"
        if one.context is not None:
            self.heads.setdefault(one.context, one)

    def ended(self, one: Known, state: str) -> None:
        one.state = state
        if one.context is not None:
            del self.heads[one.context]
            behind = [other for other in self.live() if other.context == one.context]
            if behind:
                self.heads[one.context] = min(behind, key=lambda other: other.place)

    def expire(self) -> None:
        """What the next locked transaction does to leases that are over."""
        for one in [one for one in self.live() if one.state == "leased" and one.due <= self.now]:
            if one.attempts >= RULES.attempts:
                self.forget_lease(one)
                self.ended(one, "dead")
            else:  # its holder may still speak, until somebody else takes it
                one.state = "queued"

    def forget_lease(self, one: Known) -> None:
        assert one.lease is not None
        one.stale.append(one.lease)
        one.lease = None

    def claimable(self) -> list[Known]:
        fit = [
            one
            for one in self.live()
            if one.state == "queued" and one.due <= self.now and (one.context is None or self.heads[one.context] is one)
        ]
        return sorted(fit, key=lambda one: (-one.priority, one.place))

    def leased(self) -> list[Known]:
        return [one for one in self.known if one.lease is not None]

    # What may happen

    @rule(context=CONTEXTS, priority=st.integers(-1, 1), delay=st.sampled_from([0.0, 0.0, 50.0]), joined=st.booleans())
    def put(self, context: str | None, priority: int, delay: float, joined: bool) -> None:
        self.add(b"body", None, context, priority, delay, joined)

    @rule(key=st.sampled_from(["k", "l"]), body=st.sampled_from([b"x", b"y"]), joined=st.booleans())
    def put_with_key(self, key: str, body: bytes, joined: bool) -> None:
        first = self.keys.get(key)
        if not joined:
            self.expire()
        if first is None:
            self.add(body, key, None, 0, 0.0, joined)
        elif first[0] == body:
            assert self.do_put(joined, body, key=key) == first[1]
        else:
            with pytest.raises(Conflict):
                self.do_put(joined, body, key=key)

    def add(self, body: bytes, key: str | None, context: str | None, priority: int, delay: float, joined: bool) -> None:
        given: dict[str, Any] = {"context": context, "priority": priority, "delay": delay, "key": key}
        if not joined:
            self.expire()
        if sum(1 for _ in self.live()) >= RULES.bound:
            with pytest.raises(QueueFull):
                self.do_put(joined, body, **given)
            return
        new = Known(self.do_put(joined, body, **given), len(self.known), context, priority, self.now + delay)
        self.known.append(new)
        self.line_up(new)
        if key is not None:
            self.keys[key] = (body, new.id)

    def do_put(self, joined: bool, body: bytes, **given: Any) -> str:
        if joined:
            answer: str = self.run(self.database.write(lambda tx: self.queue.put(body, tx=tx, **given)))
        else:
            answer = self.run(self.queue.put(body, **given))
        return answer

    @rule(most=st.integers(1, 3))
    def claim(self, most: int) -> None:
        self.expire()
        expected = self.claimable()[:most]
        leases = self.run(self.queue.claim(most))
        assert [lease.id for lease in leases] == [one.id for one in expected]
        for one, lease in zip(expected, leases, strict=True):
            if one.lease is not None:
                self.forget_lease(one)
            one.state, one.lease, one.due = "leased", lease, self.now + RULES.lease
            one.attempts += 1
            assert lease.attempt == one.attempts
            assert all(lease.token > earlier.token for earlier in one.stale)

    def pick(self, number: int) -> Known:
        held = self.leased()
        return held[number % len(held)]

    @precondition(lambda self: self.leased())
    @rule(number=LAST, joined=st.booleans())
    def ack(self, number: int, joined: bool) -> None:
        one = self.pick(number)
        lease = one.lease
        assert lease is not None
        work: Callable[..., Any] = lambda tx=None: self.queue.ack(lease, tx=tx)  # noqa: E731
        assert self.run(self.database.write(work) if joined else work()) is True
        self.forget_lease(one)
        self.ended(one, "done")
        self.expire()

    @precondition(lambda self: self.leased())
    @rule(number=LAST, delay=st.sampled_from([0.0, 50.0]))
    def nack(self, number: int, delay: float) -> None:
        one = self.pick(number)
        assert one.lease is not None
        fate = "dead" if one.attempts >= RULES.attempts else "retry"
        assert self.run(self.queue.nack(one.lease, "no", delay=delay)) == fate
        self.forget_lease(one)
        one.due = self.now + delay
        if fate == "dead":
            self.ended(one, "dead")
        else:
            one.state = "queued"
        self.expire()

    @precondition(lambda self: self.leased())
    @rule(number=LAST)
    def release(self, number: int) -> None:
        one = self.pick(number)
        assert one.lease is not None
        assert self.run(self.queue.release(one.lease)) is True
        self.forget_lease(one)
        one.state, one.due = "queued", self.now
        one.attempts -= 1
        self.expire()

    @precondition(lambda self: self.leased())
    @rule(number=LAST)
    def extend(self, number: int) -> None:
        one = self.pick(number)
        assert one.lease is not None
        assert self.run(self.queue.extend(one.lease)) is True
        one.state, one.due = "leased", self.now + RULES.lease
        self.expire()

    @precondition(lambda self: any(one.stale for one in self.known))
    @rule(number=LAST)
    def late_word(self, number: int) -> None:
        stale = [lease for one in self.known for lease in one.stale]
        assert self.run(self.queue.ack(stale[number % len(stale)])) is False
        self.expire()

    @precondition(lambda self: any(one.state == "dead" for one in self.known))
    @rule()
    def replay(self) -> None:
        dead = [one for one in self.known if one.state == "dead"]
        if sum(1 for _ in self.live()) + len(dead) > RULES.bound:
            with pytest.raises(QueueFull):
                self.run(self.queue.replay([one.id for one in dead]))
            return
        assert self.run(self.queue.replay([one.id for one in dead])) == len(dead)
        for one in sorted(dead, key=lambda one: one.place):
            one.attempts, one.due = 0, self.now
            self.line_up(one)

    @rule(seconds=st.sampled_from([30.0, 70.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.run(pass_time(self.database, seconds, self.name))

    @invariant()
    def nothing_vanishes(self) -> None:
        depth = self.run(self.queue.depth())
        assert depth.live == sum(1 for _ in self.live())
        assert depth.dead == sum(one.state == "dead" for one in self.known)
        assert [one.id for one in self.run(self.queue.dead())] == [one.id for one in self.known if one.state == "dead"]


def check(url: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        database = runner.run(open_database(url))
        machine = type("Machine", (QueueMachine,), {"runner": runner, "database": database})
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=30,
                    deadline=None,
                    print_blob=True,
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(database.aclose())


@pytest.mark.requirement("RF-013-29", "RF-013-30", "RF-013-37")
@pytest.mark.timeout(600)
def test_any_sequence_of_operations_does_what_the_model_says() -> None:
    check(":memory:", EXAMPLES or 100)


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_postgresql_does_the_same() -> None:
    check(new_database_url(), EXAMPLES or 25)
