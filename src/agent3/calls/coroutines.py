"""Driving a coroutine by hand, so that what never waits pays for no watcher and no timer.

Many calls finish without ever suspending. The coroutine stays in the task that awaits it, so everything that asks for
the current task still works inside.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

__all__ = ["Left", "as_coroutine", "drive", "finish", "run_watched", "start_task", "wait_for_task"]

T = TypeVar("T")
_UNWATCHED = 0.05
"""Seconds before a watcher begins: a task for each call that waits a moment would cost more than the waiting."""


class Left(Exception):
    """The watcher came back first: the caller has left."""


@types.coroutine
def drive(running: Awaitable[T], on_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await ``running``; ``on_wait`` is called once, at the moment when it first has to wait for anything."""
    coro = running if isinstance(running, Coroutine) else as_coroutine(running)
    try:
        pending = coro.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    on_wait()
    return (yield from finish(coro, pending))


@types.coroutine
def run_watched(coro: Coroutine[Any, Any, T], watch: Callable[[], Coroutine[Any, Any, Any]]) -> Generator[Any, Any, T]:
    """Await ``coro`` while ``watch`` runs beside it; when that returns first, ``coro`` is cancelled and Left raised."""
    try:
        pending = coro.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    watcher = _Watcher(watch)
    try:
        result = yield from finish(coro, pending)
    except BaseException as error:
        watcher.close(error)
        raise
    watcher.close()
    return result


class _Watcher:
    """Cancels the current task when the watcher comes back. Most calls are over before it has to look at all."""

    def __init__(self, watch: Callable[[], Coroutine[Any, Any, Any]]):
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._cancelling = owner.cancelling()
        self._came_back = False
        self._task: asyncio.Task[Any] | None = None
        self._timer = asyncio.get_running_loop().call_later(_UNWATCHED, self._start, watch)

    def _start(self, watch: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.ensure_future(watch())
        self._task.add_done_callback(self._on_end)

    def _on_end(self, watcher: asyncio.Future[Any]) -> None:
        if not watcher.cancelled():
            self._came_back = True
            self._owner.cancel()

    def close(self, error: BaseException | None = None) -> None:
        """End the watcher. A cancellation that was its own, and only its own, becomes Left."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if not self._came_back:
            return
        if self._owner.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise Left from error


def finish(coro: Coroutine[Any, Any, T], pending: Any) -> Generator[Any, Any, T]:
    """``yield from coro``, for a coroutine that has been started already."""
    try:
        while True:
            try:
                value = yield pending
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - whatever the loop throws in belongs to the coroutine
                pending = coro.throw(thrown)
            else:
                pending = coro.send(value)
    except StopIteration as done:
        return cast("T", done.value)


async def as_coroutine(running: Awaitable[T]) -> T:
    """Any awaitable as a coroutine, which can be driven by hand or run as a task."""
    return await running


def start_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of its own, which has run up to where it first waits if this Python can do that."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(coro, loop=loop, eager_start=True)
    return loop.create_task(coro)


async def wait_for_task(
    task: asyncio.Task[Any], seconds: float, give_end: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Return when the task has ended, or after so many seconds; cheaper than ``asyncio.wait``.

    ``give_end`` gets a function that ends the wait too.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    if give_end is not None:
        give_end(end)
    timer = loop.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()
        task.remove_done_callback(end)
