"""Driving a coroutine by hand, so that what never waits pays for no watcher.

Many calls finish without ever suspending; ``watched`` starts its watcher only when one does. The coroutine stays in
the task that awaits it, so everything that asks for the current task still works inside.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

__all__ = ["Left", "noticing", "to_the_end", "watched"]

T = TypeVar("T")


class Left(Exception):
    """The watcher came back first: whoever was waiting has left."""


def watched(coro: Coroutine[Any, Any, T], watch: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[T]:
    """Await ``coro`` while ``watch`` runs beside it; when that returns first, ``coro`` is cancelled and Left raised."""
    return _driven(coro, watch)


@types.coroutine
def noticing(coro: Coroutine[Any, Any, T], waits: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await ``coro``, and have it noticed if it has to wait for anything, at the moment when it first does."""
    try:
        pending = coro.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    waits()
    return (yield from to_the_end(coro, pending))


class _Watch:
    """Cancels the current task when the watcher comes back."""

    def __init__(self, watch: Callable[[], Coroutine[Any, Any, Any]]):
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._before = owner.cancelling()
        self._came_back = False
        self._task = asyncio.ensure_future(watch())
        self._task.add_done_callback(self._ended)

    def _ended(self, watcher: asyncio.Future[Any]) -> None:
        if not watcher.cancelled():
            self._came_back = True
            self._owner.cancel()

    def close(self, error: BaseException | None = None) -> None:
        """End the watcher. A cancellation that was its own, and only its own, becomes Left."""
        self._task.cancel()
        if self._came_back and self._owner.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise Left from error


@types.coroutine
def _driven(coro: Coroutine[Any, Any, T], watch: Callable[[], Coroutine[Any, Any, Any]]) -> Generator[Any, Any, T]:
    try:
        pending = coro.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    around = _Watch(watch)
    try:
        result = yield from to_the_end(coro, pending)
    except BaseException as error:
        around.close(error)
        raise
    around.close()
    return result


def to_the_end(coro: Coroutine[Any, Any, T], pending: Any) -> Generator[Any, Any, T]:
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
