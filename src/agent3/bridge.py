"""The one bridge from synchronous code into the async core.

The documented classes are synchronous; what they do is not. A ``Bridge`` runs a coroutine on an event loop in a thread
of its own, so that it can be called from any thread, also from one whose own loop is running. A coroutine that never
suspends needs no loop and is finished on the spot. The bridge knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from agent3.errors import CallTimeout, Canceled, SetupError

__all__ = ["Bridge", "finish", "get_shared", "iterate", "run"]

T = TypeVar("T")

_GRACE = 5.0
"""Seconds that cancelled work gets to clean up before the caller goes on without it."""
_END: Any = object()


class Bridge:
    """A background event loop for synchronous callers. Its thread starts on first use and is a daemon.

    Safe from any thread; a forked child gets a loop of its own. A coroutine sees a copy of the caller's context
    variables, and its exceptions arrive with their type and traceback.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._engine: _Engine | None = None
        _bridges.add(self)

    def run(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine and return its result. The calling thread waits, also if it has a running loop.

        After ``timeout`` seconds the coroutine is cancelled and ``CallTimeout`` raised; a KeyboardInterrupt cancels it
        too. From inside a coroutine of this same bridge it raises ``SetupError``, since waiting would never end.
        """
        try:
            work = _Work(self._get_engine(), coro)
        except BaseException:
            coro.close()
            raise
        return work.wait(timeout)

    def spawn(self, coro: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine without waiting; cancelling the future cancels it."""
        try:
            work = _Work(self._get_engine(waits=False), coro)
        except BaseException:
            coro.close()
            raise
        work.future.add_done_callback(work.follow)
        return work.future

    def finish(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that never suspends, here and now, without a loop or a thread; return its result.

        One that does suspend is closed and ``SetupError`` raised.
        """
        try:
            coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        coro.close()
        name = getattr(coro, "__qualname__", repr(coro))
        raise SetupError(f"{name} waits for something, so it cannot run synchronously; use run() or await it.")

    def iterate(self, agen: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an async generator, each produced only when asked for.

        The generator runs in one task from its first step to its end. When the iterator is closed or dropped, the
        generator is closed too.
        """
        engine = self._get_engine()
        pump = _Pump(agen)
        work = _Work(engine, pump.serve())
        try:
            while (item := pump.ask(engine)) is not _END:
                yield item
        finally:
            # No one asks any more; errors of closing the generator are the caller's to see.
            work.cancel()
            # The garbage collector may run this on the loop's own thread, which must not wait for itself.
            if engine.may_wait():
                with suppress(Canceled):
                    work.wait(_GRACE)

    def close(self) -> None:
        """Cancel what is left, stop the thread and close the loop. The next ``run`` starts a new one."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def _get_engine(self, *, waits: bool = True) -> _Engine:
        with self._lock:
            if self._engine is None:
                self._engine = _Engine()
            engine = self._engine
        if waits and engine.is_current_thread():
            raise SetupError("A synchronous call inside the bridge's own loop would wait for itself; await it.")
        return engine

    def after_fork(self) -> None:
        """In a forked child: forget the parent's loop, whose thread does not exist here. Called by the interpreter."""
        engine, self._lock, self._engine = self._engine, threading.RLock(), None
        if engine is not None:
            engine.orphan()


class _Engine:
    """One loop and its thread, from start to stop. What is posted before the stop runs; after it, it is refused."""

    def __init__(self) -> None:
        # Reentrant: while it is held, the garbage collector may close an iterator, which posts as well.
        self._lock = threading.RLock()
        self._stopping = False
        self._orphaned = False
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        try:
            import uvloop
        except ImportError:  # there is none for Windows
            self._loop = asyncio.new_event_loop()
        else:
            self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="agent3-bridge", daemon=True)
        self._thread.start()

    def post(self, callback: Callable[[], object]) -> None:
        """Let the loop call it, in the order of posting; ``Canceled`` if the loop is stopping."""
        with self._lock:
            if self._stopping:
                raise Canceled("The bridge was closed while it was in use; call again to start a new one.")
            self._loop.call_soon_threadsafe(callback)

    def is_current_thread(self) -> bool:
        """Whether this is the loop's own thread."""
        return self._thread.ident == threading.get_ident()

    def may_wait(self) -> bool:
        """Whether waiting for its work can end: not in its own thread, nor in a forked child."""
        return not self._orphaned and not self.is_current_thread()

    def orphan(self) -> None:
        """In a forked child: refuse work, but keep the loop. Closing it here would disturb the parent's."""
        self._lock = threading.RLock()
        self._stopping = self._orphaned = True
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:  # they belong to the parent; here they never continue, which must not be reported
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        _orphans.append((self, tasks))

    def stop(self) -> None:
        """End every task, then the loop. Work that does not end keeps the daemon thread, not the caller."""

        def end() -> None:
            # Kept in an attribute: a loop holds its tasks weakly, and this one must not be collected.
            self._ending = self._loop.create_task(self._cancel_all())

        with self._lock:
            if not self._stopping:
                self._loop.call_soon_threadsafe(end)
            self._stopping = True
        if self.may_wait():
            self._thread.join(_GRACE)

    async def _cancel_all(self) -> None:
        # Again and again: a task may start another one while it cleans up.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


class _Work(Generic[T]):
    """One coroutine on its way through an engine."""

    def __init__(self, engine: _Engine, coro: Coroutine[Any, Any, T]):
        self._engine = engine
        self._coro = coro
        self.future: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None
        engine.post(self._start)  # the loop runs it in a copy of the caller's context

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._fail_if_not_started)

    async def _run(self) -> None:
        try:
            result = await self._coro
        except asyncio.CancelledError:
            self._fail(Canceled("The work was cancelled before it was done."))
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt would end the loop for all
            self._fail(error)
        else:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        # The caller of ``spawn`` may have cancelled the future; from here on cancelling is too late, and refused.
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _fail_if_not_started(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never gets to its coroutine.
        if task.cancelled():
            self._coro.close()
            self._fail(Canceled("The work was cancelled before it was started."))

    def follow(self, future: Future[T]) -> None:
        """Cancel the work if its future was cancelled."""
        if future.cancelled():
            with suppress(Canceled):
                self._engine.post(self._stop)

    def wait(self, timeout: float | None) -> T:
        """Wait for the result; anything that ends the waiting early cancels the work."""
        try:
            return self.future.result(timeout)
        except TimeoutError:
            if self.future.done():  # the work's own TimeoutError, or it finished at this very moment
                return self.future.result()
            self.cancel()
            raise CallTimeout(f"It did not complete within {timeout} s and was cancelled.") from None
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the work if it still runs, and give it time to clean up."""
        if self.future.done():
            return
        with suppress(Canceled):  # the engine is stopping and cancels it anyway
            self._engine.post(self._stop)
        if self._engine.may_wait():
            with suppress(TimeoutError):
                self.future.exception(_GRACE)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Pump(Generic[T]):
    """An async generator that gives one item each time it is asked."""

    def __init__(self, agen: AsyncGenerator[T, None]):
        self._agen = agen
        self._asked: asyncio.Queue[Future[T]] = asyncio.Queue()
        self._ended = False

    def ask(self, engine: _Engine) -> T:
        """The next item, or ``_END``."""
        future: Future[T] = Future()
        engine.post(lambda: self._take(future))
        return future.result()

    def _take(self, future: Future[T]) -> None:
        if self._ended:
            future.set_exception(Canceled("The generator was cancelled before its end."))
        else:
            self._asked.put_nowait(future)

    async def serve(self) -> None:
        """Answer until the generator ends; close it however this ends."""
        try:
            item: Any = None
            while item is not _END:
                future = await self._asked.get()
                try:
                    item = await anext(self._agen, _END)
                except asyncio.CancelledError:
                    future.set_exception(Canceled("The generator was cancelled before its end."))
                    raise
                except BaseException as error:  # noqa: BLE001 - it belongs to the caller, who gets it
                    future.set_exception(error)
                    return
                future.set_result(item)
        finally:
            self._ended = True
            while not self._asked.empty():
                self._take(self._asked.get_nowait())
            await self._agen.aclose()


# --- the shared bridge ------------------------------------------------------------------------------------------------

_bridges: WeakSet[Bridge] = WeakSet()
_orphans: list[tuple[_Engine, set[asyncio.Task[Any]]]] = []
_shared = Bridge()


def get_shared() -> Bridge:
    """The one bridge of this process."""
    return _shared


def run(coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """``Bridge.run`` on the shared bridge."""
    return _shared.run(coro, timeout)


def finish(coro: Coroutine[Any, Any, T]) -> T:
    """``Bridge.finish``; it needs no bridge at all."""
    return _shared.finish(coro)


def iterate(agen: AsyncGenerator[T, None]) -> Iterator[T]:
    """``Bridge.iterate`` on the shared bridge."""
    return _shared.iterate(agen)


@atexit.register
def _close_all() -> None:
    for bridge in list(_bridges):
        bridge.close()


def _after_fork_in_child() -> None:
    for bridge in list(_bridges):
        bridge.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
