"""Driving a coroutine by hand, so that what never waits pays for no timer and no watcher.

Most steps and many functions finish without ever suspending. ``within`` arms its timer, and ``watched`` starts its
watcher, only when the coroutine does suspend; until then it costs a tenth of ``asyncio.timeout``. The coroutine stays
in the task that awaits it, so everything that asks for the current task still works inside.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar, cast

__all__ = ["Left", "watched", "within"]

T = TypeVar("T")


class Left(Exception):
    """The watcher came back first: whoever was waiting has left."""


class _Scope(Protocol):
    """What surrounds a coroutine once it has suspended: an asynchronous context manager that itself never waits."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any: ...


def within(seconds: float, coro: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Await ``coro`` for at most ``seconds``; then it is cancelled and TimeoutError raised, as by asyncio.timeout."""
    return _driven(coro, lambda: cast("_Scope", asyncio.timeout(seconds)))


def watched(coro: Coroutine[Any, Any, T], watch: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[T]:
    """Await ``coro`` while ``watch`` runs beside it; when that returns first, ``coro`` is cancelled and Left raised."""
    return _driven(coro, lambda: _Watch(watch))


class _Watch:
    """Cancels the current task when the watcher comes back; the watcher ends with the scope."""

    def __init__(self, watch: Callable[[], Coroutine[Any, Any, Any]]):
        self._watch = watch
        self._came_back = False

    async def __aenter__(self) -> None:
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._before = owner.cancelling()
        self._task = asyncio.ensure_future(self._watch())
        self._task.add_done_callback(self._ended)

    def _ended(self, watcher: asyncio.Future[Any]) -> None:
        if not watcher.cancelled():
            self._came_back = True
            self._owner.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._task.cancel()
        # As asyncio.timeout does it: a cancellation that was ours, and only ours, becomes our own word for it.
        if self._came_back and self._owner.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise Left from error


@types.coroutine
def _driven(coro: Coroutine[Any, Any, T], scope: Callable[[], _Scope]) -> Generator[Any, Any, T]:
    try:
        pending = coro.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    around = scope()
    _finish(around.__aenter__())
    try:
        result = yield from _to_the_end(coro, pending)
    except BaseException as error:
        # A timer that fired turns the CancelledError that it threw in into its own TimeoutError here.
        _finish(around.__aexit__(type(error), error, error.__traceback__))
        raise
    _finish(around.__aexit__(None, None, None))
    return result


def _to_the_end(coro: Coroutine[Any, Any, T], pending: Any) -> Generator[Any, Any, T]:
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


def _finish(never_waits: Coroutine[Any, Any, Any]) -> None:
    try:
        never_waits.send(None)
    except StopIteration:
        return
    never_waits.close()
    raise RuntimeError("a scope waited; it must not")
