"""The fair queue: so many at once, by callers in turn, bounded in number and time."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from agent3.errors import RateLimited, SetupError
from agent3.protocols.mcp.library.fair_queue import FairQueue


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 120))


class Callers:
    """Callers that each hold their place until they are let go, in the order in which they got it."""

    def __init__(self, queue: FairQueue):
        self._queue = queue
        self.order: list[str] = []
        self._gates: list[asyncio.Event] = []

    async def come(self, who: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._hold(who), context=contextvars.Context())  # nobody's inner call
        await asyncio.sleep(0)
        return task

    async def _hold(self, who: str) -> None:
        async with self._queue.place(who):
            gate = asyncio.Event()
            self.order.append(who)
            self._gates.append(gate)
            await gate.wait()

    async def let_go(self, count: int = 1) -> None:
        for _ in range(count):
            self._gates.pop(0).set()
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.mark.requirement("RF-013-10")
def test_those_who_wait_take_turns_by_caller() -> None:
    async def story() -> None:
        callers = Callers(FairQueue(1))
        tasks = [await callers.come(who) for who in ["a"] * 5 + ["b"] * 2 + ["c"]]
        await callers.let_go(len(tasks))
        await asyncio.gather(*tasks)
        assert callers.order == ["a", "a", "b", "c", "a", "b", "a", "a"]

    run(story())


def test_who_does_not_get_in_is_told_when_to_come_back() -> None:
    async def story() -> None:
        callers = Callers(FairQueue(1, waiting=2))
        tasks = [await callers.come("a") for _ in range(3)]
        with pytest.raises(RateLimited, match="1 calls are running and 2 waiting") as refusal:
            await (await callers.come("a"))
        assert (refusal.value.retry_after or 0) >= 1
        await callers.let_go(3)
        await asyncio.gather(*tasks)

    run(story())


def test_a_full_queue_of_one_caller_does_not_keep_another_out() -> None:
    async def story() -> None:
        callers = Callers(FairQueue(1, waiting=3))
        greedy = [await callers.come("greedy") for _ in range(4)]
        modest = await callers.come("modest")
        with pytest.raises(RateLimited):
            await greedy[3]
        await callers.let_go(4)
        await asyncio.gather(*greedy[:3], modest)
        assert callers.order == ["greedy", "greedy", "modest", "greedy"]

    run(story())


def test_nobody_waits_for_ever() -> None:
    async def story() -> None:
        callers = Callers(FairQueue(1, patience=0.01))
        first = await callers.come("a")
        with pytest.raises(RateLimited):
            await (await callers.come("b"))
        await callers.let_go()
        await first
        assert callers.order == ["a"]

    run(story())


def test_who_leaves_the_queue_takes_no_place_with_it() -> None:
    async def story() -> None:
        callers = Callers(FairQueue(1))
        first, gone, last = [await callers.come(who) for who in ("a", "b", "c")]
        gone.cancel()
        await asyncio.wait([gone])
        await callers.let_go(2)
        await asyncio.gather(first, last)
        assert callers.order == ["a", "c"]

    run(story())


def test_a_place_that_is_handed_to_somebody_who_just_left_goes_on() -> None:
    async def story() -> None:
        queue = FairQueue(1)
        callers = Callers(queue)
        leaving, last = None, None
        async with queue.place("a"):
            leaving, last = await callers.come("b"), await callers.come("c")
        leaving.cancel()  # it has its place by now, and does not know yet
        await asyncio.wait([leaving])
        for _ in range(5):
            await asyncio.sleep(0)
        assert callers.order == ["c"]
        await callers.let_go()
        await last

    run(story())


def test_what_runs_may_call_again_without_a_second_place_also_from_tasks_of_its_own() -> None:
    async def enter(queue: FairQueue) -> None:
        async with asyncio.timeout(60), queue.place("inside"):
            return

    async def story() -> None:
        queue, other = FairQueue(1, patience=0.01), FairQueue(1, patience=0.01)
        async with queue.place("a"), other.place("a"), queue.place("a"):
            await asyncio.create_task(enter(other))
            with pytest.raises(RateLimited):
                await asyncio.create_task(enter(queue), context=contextvars.Context())
        await enter(queue)

    run(story())


@pytest.mark.parametrize(("most", "waiting"), [(0, 1), (1, -1)])
def test_bounds_that_make_no_sense_are_refused(most: int, waiting: int) -> None:
    with pytest.raises(SetupError):
        FairQueue(most, waiting=waiting)
