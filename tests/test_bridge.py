"""The synchronous doors, from every side they may be used from."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from agent3 import bridge
from agent3.bridge import Bridge
from agent3.errors import CallTimeout, Canceled, SetupError, Unavailable

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
def door() -> Iterator[Bridge]:
    one = Bridge()
    yield one
    one.close()


async def soon(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def forever(started: threading.Event, ended: threading.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def test_a_coroutine_gives_its_result(door: Bridge) -> None:
    assert door.run(soon(42)) == 42
    assert door.run(soon(43), timeout=60) == 43


def test_it_can_be_called_from_many_threads_at_once_and_all_share_one_loop(door: Bridge) -> None:
    async def where() -> tuple[int, int]:
        await asyncio.sleep(0)
        return threading.get_ident(), id(asyncio.get_running_loop())

    with ThreadPoolExecutor(16) as threads:
        places = set(threads.map(lambda _: door.run(where()), range(200)))
    assert len(places) == 1
    assert places.pop()[0] != threading.get_ident()


def test_it_can_be_called_while_another_loop_is_running_here(door: Bridge) -> None:
    async def outer() -> Any:
        return door.run(soon("inner"))

    assert asyncio.run(outer()) == "inner"


def test_a_call_from_inside_its_own_loop_says_what_to_do_instead_of_waiting_for_itself(door: Bridge) -> None:
    async def inner() -> None:
        door.run(soon(1))

    async def inner_iteration() -> None:
        list(door.iterate(counting([])))

    for story in (inner, inner_iteration):
        with pytest.raises(SetupError, match="await it"):
            door.run(story(), timeout=60)


def test_one_bridge_may_call_another(door: Bridge) -> None:
    other = Bridge()

    async def inner() -> Any:
        return other.run(soon("far"))

    assert door.run(inner(), timeout=60) == "far"
    other.close()


def test_errors_keep_their_type_and_show_where_they_came_from(door: Bridge) -> None:
    async def where_it_broke() -> None:
        await asyncio.sleep(0)
        raise Unavailable("pizza oven is cold")

    with pytest.raises(Unavailable, match="cold") as caught:
        door.run(where_it_broke())
    assert "where_it_broke" in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, TimeoutError, StopAsyncIteration])
def test_no_error_of_one_coroutine_ends_the_loop_for_the_others(door: Bridge, error: type[BaseException]) -> None:
    async def leave() -> None:
        raise error

    with pytest.raises(error) as caught:
        door.run(leave(), timeout=60)
    assert caught.type is error
    assert door.run(soon(1), timeout=60) == 1


def test_the_callers_context_is_seen_and_not_touched(door: Bridge) -> None:
    async def look() -> str:
        await asyncio.sleep(0)
        seen = who.get()
        who.set("changed")
        return seen

    token = who.set("alice")
    assert door.run(look()) == "alice"
    assert who.get() == "alice"
    who.reset(token)


def test_what_takes_too_long_is_cancelled_and_cleaned_up(door: Bridge) -> None:
    started, ended = threading.Event(), threading.Event()
    with pytest.raises(CallTimeout, match=r"0\.05 s"):
        door.run(forever(started, ended), timeout=0.05)
    assert ended.is_set() == started.is_set(), "on a very busy machine it was cancelled before it began"


def test_an_interrupt_at_the_keyboard_cancels_the_coroutine(door: Bridge) -> None:
    started, ended = threading.Event(), threading.Event()

    def press() -> None:
        started.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        door.run(forever(started, ended), timeout=60)
    presser.join(60)
    assert ended.is_set()


# --- finish -----------------------------------------------------------------------------------------------------------


def test_what_never_waits_is_finished_here_and_now() -> None:
    async def here() -> int:
        return threading.get_ident()

    async def deeper() -> int:
        return await here()

    one = Bridge()
    assert one.finish(deeper()) == threading.get_ident()
    assert one._engine is None, "no thread was started for it"


def test_what_waits_is_closed_and_refused() -> None:
    closed: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(SetupError, match="waits"):
        bridge.finish(waits())
    assert closed == [True]


def test_finish_lets_errors_through() -> None:
    async def fails() -> None:
        raise Unavailable("no")

    with pytest.raises(Unavailable):
        bridge.finish(fails())


# --- iterate ----------------------------------------------------------------------------------------------------------


async def counting(log: list[Any], stop: int = 3) -> AsyncGenerator[int, None]:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(60):  # only right when every step runs in one task
            for number in range(stop):
                log.append(number)
                await asyncio.sleep(0)
                yield number
    finally:
        await asyncio.sleep(0)
        log.append("closed" if asyncio.current_task() is task else "closed elsewhere")


def test_an_async_generator_becomes_an_iterator(door: Bridge) -> None:
    log: list[Any] = []
    assert list(door.iterate(counting(log))) == [0, 1, 2]
    assert log == [0, 1, 2, "closed"]


def test_items_are_made_only_when_asked_for(door: Bridge) -> None:
    log: list[Any] = []
    items = door.iterate(counting(log))
    assert log == []
    assert next(items) == 0
    door.run(soon(None))
    assert log == [0]


def test_an_iteration_left_early_closes_the_generator(door: Bridge) -> None:
    log: list[Any] = []
    for item in door.iterate(counting(log, 1000)):
        if item == 1:
            break
    gc.collect()
    assert log == [0, 1, "closed"]


def test_an_error_in_the_generator_arrives_and_ends_it(door: Bridge) -> None:
    async def breaks() -> AsyncGenerator[int, None]:
        yield 1
        raise Unavailable("oven")

    items = door.iterate(breaks())
    assert next(items) == 1
    with pytest.raises(Unavailable):
        next(items)
    assert list(items) == []


def test_an_iteration_dropped_on_the_loops_own_thread_does_not_block_it(door: Bridge) -> None:
    log: list[Any] = []
    held = [door.iterate(counting(log, 1000))]
    next(held[0])

    async def drop() -> None:
        held.clear()
        gc.collect()
        while "closed" not in log:
            await asyncio.sleep(0)

    door.run(drop(), timeout=60)
    assert log == [0, "closed"]


def test_closing_the_bridge_ends_an_iteration_with_a_reason(door: Bridge) -> None:
    log: list[Any] = []
    items = door.iterate(counting(log, 1000))
    next(items)
    door.close()
    assert log == [0, "closed"]
    with pytest.raises(Canceled):
        next(items)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_cancels_what_is_left_and_may_be_repeated(door: Bridge) -> None:
    started, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(door.run, forever(started, ended))
        assert started.wait(60)
        door.close()
        assert ended.is_set()
        with pytest.raises(Canceled):
            waiting.result(60)
    door.close()
    assert "agent3-bridge" not in {thread.name for thread in threading.enumerate()} or door._engine is None
    assert door.run(soon("again"), timeout=60) == "again"


def test_work_posted_while_the_bridge_closes_is_done_or_refused_but_never_forgotten() -> None:
    one = Bridge()
    stop = threading.Event()

    def hammer(_: int) -> set[str]:
        ends: set[str] = set()
        while not stop.is_set():
            try:
                assert one.run(soon(1), timeout=60) == 1
                ends.add("done")
            except Canceled:
                ends.add("refused")
        return ends

    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(hammer, number) for number in range(4)]
        for _ in range(30):
            one.close()
        stop.set()
        assert set().union(*(result.result(60) for result in results)) <= {"done", "refused"}
    one.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_loop_of_its_own_and_the_parents_goes_on() -> None:
    script = """
import asyncio, os, sys
from agent3 import bridge
async def pid():
    await asyncio.sleep(0.001)
    return os.getpid()
async def numbers():
    for n in range(9):
        yield n
items = bridge.iterate(numbers())
next(items)
assert bridge.run(pid(), timeout=60) == os.getpid()
child = os.fork()
if child == 0:
    assert bridge.run(pid(), timeout=60) == os.getpid()
    del items
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert bridge.run(pid(), timeout=60) == os.getpid()
assert list(items) == list(range(1, 9))
print("fine")
"""
    done = _python(script)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


def test_the_interpreter_exits_cleanly_with_work_left() -> None:
    script = """
import asyncio, threading
from agent3 import bridge
started = threading.Event()
async def forever():
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)
def wait():
    try:
        bridge.run(forever())
    except Exception as error:
        print(type(error).__name__, flush=True)
threading.Thread(target=wait, daemon=True).start()
assert started.wait(60)
async def numbers():
    yield 1
    yield 2
items = bridge.iterate(numbers())
print(next(items), flush=True)
"""
    done = _python(script)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("1\ncleaned up\n")


def _python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=240, check=False
    )


def test_without_uvloop_it_works_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    one = Bridge()
    assert one.run(soon(1), timeout=60) == 1
    assert type(one._engine._loop).__module__.startswith("asyncio")  # type: ignore[union-attr]
    one.close()


def test_the_shared_bridge_is_one_for_the_process() -> None:
    assert bridge.get_shared() is bridge.get_shared()
    assert bridge.run(soon(5)) == 5
    assert list(bridge.iterate(counting([], 2))) == [0, 1]


def test_cancelling_the_future_of_spawned_work_cancels_the_work(door: Bridge) -> None:
    started, ended = threading.Event(), threading.Event()
    future = door.spawn(forever(started, ended))
    assert started.wait(60)
    assert future.cancel()
    assert ended.wait(60)
    assert future.cancelled()
    assert door.run(soon(1)) == 1


def test_spawned_work_that_is_cancelled_before_it_begins_never_begins(door: Bridge) -> None:
    begun: list[int] = []
    held, go = threading.Event(), threading.Event()

    async def hold() -> None:
        held.set()
        go.wait(60)

    async def work() -> None:
        begun.append(1)

    door.spawn(hold())
    assert held.wait(60)
    futures = [door.spawn(work()) for _ in range(3)]
    assert all(future.cancel() for future in futures)
    go.set()
    door.run(soon(1))
    gc.collect()  # a coroutine that was forgotten would complain here, and a warning is an error
    assert begun == []
    assert wait(futures, 60).not_done == set()


def test_spawned_work_that_is_done_cannot_be_cancelled_any_more(door: Bridge) -> None:
    future = door.spawn(soon(3))
    assert future.result(60) == 3
    assert not future.cancel()


def test_cancelling_at_any_moment_leaves_nothing_to_complain_about(
    door: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(300):
        future = door.spawn(soon(1))
        if not future.cancel():
            assert future.result(60) == 1
    door.close()
    gc.collect()
    assert [record for record in caplog.records if record.name in ("asyncio", "concurrent.futures")] == []
