"""Driving by hand: as if it were awaited, with a watcher only for what waits."""

from __future__ import annotations

import asyncio

import pytest

from agent3.calls.coroutines import Left, run_watched


async def _quick() -> int:
    return 1


async def _forever(left: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        left.append("cancelled")
        raise


async def _never() -> None:
    await asyncio.sleep(60)


def test_results_and_errors_come_through_after_waiting() -> None:
    async def later(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise ValueError("negative")
        return value

    async def story() -> int:
        with pytest.raises(ValueError, match="negative"):
            await run_watched(later(-1), _never)
        return await run_watched(later(3), _never)

    assert asyncio.run(story()) == 3


def test_a_cancelled_caller_cancels_the_inside() -> None:
    async def story() -> list[str]:
        left: list[str] = []

        async def waiting() -> None:
            await run_watched(_forever(left), _never)

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return left

    assert asyncio.run(story()) == ["cancelled"]


def test_the_inside_may_use_timeouts_and_groups_of_its_own() -> None:
    async def inner() -> str:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.001))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        return "fine"

    async def story() -> str:
        return await run_watched(inner(), _never)

    assert asyncio.run(story()) == "fine"


def test_a_watcher_that_comes_back_cancels_the_inside() -> None:
    async def story() -> list[str]:
        left: list[str] = []
        with pytest.raises(Left):
            await run_watched(_forever(left), lambda: asyncio.sleep(0.01))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return left

    assert asyncio.run(story()) == ["cancelled"]


def test_a_watcher_ends_with_what_it_watches() -> None:
    async def story() -> int:
        watcher_left: list[str] = []
        watching = asyncio.Event()

        async def later() -> int:
            await watching.wait()
            return 2

        async def watch() -> None:
            watching.set()
            await _forever(watcher_left)

        value = await run_watched(later(), watch)
        await asyncio.sleep(0.01)
        assert watcher_left == ["cancelled"]
        return value

    assert asyncio.run(story()) == 2


def test_no_watcher_is_started_for_what_never_waits() -> None:
    async def story() -> int:
        started: list[str] = []

        async def watch() -> None:
            started.append("watch")

        value = await run_watched(_quick(), watch)
        await asyncio.sleep(0)
        assert started == []
        return value

    assert asyncio.run(story()) == 1
