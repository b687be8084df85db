"""``agent3 serve --reload``: a gateway in a process of its own that is started again whenever its code changes.

The port is opened here and handed down, so that callers wait through a restart instead of being refused. A change that
cannot be loaded prints its error and the next change is waited for. For development: it serves this machine only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from agent3.errors import Agent3Error, SetupError
from agent3.server.loading import find_file
from agent3.server.run import listen
from agent3.settings import Settings
from agent3.terminal.output import print_note

__all__ = ["serve_reloading"]

_LOOK = 0.3
"""Seconds between two looks at the files."""
_MOST_FILES = 2_000
_PATIENCE = 5.0
"""Seconds beyond the time for running calls that a process has to end before it is killed."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

Serve = Callable[[Settings, str, socket.socket], None]
"""Serves what a reference names until a signal comes; it must be importable by its name, for the new process."""


def serve_reloading(settings: Settings, reference: str, serve: Serve) -> None:
    """Serve until a signal comes, with ``serve`` in a process of its own that follows the files."""
    if settings.server.host not in _LOOPBACK:
        raise SetupError("--reload is for development and serves this machine only. Leave out --host, or --reload.")
    folder = find_file(reference).parent
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        with listen(settings) as listener:
            _follow(settings, reference, serve, folder, listener)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(settings: Settings, reference: str, serve: Serve, folder: Path, listener: socket.socket) -> None:
    print_note(f"Watching {folder} for changes.")
    while True:
        seen = _take_times(folder)
        child = multiprocessing.get_context("spawn").Process(target=_run, args=(serve, settings, reference, listener))
        child.start()
        try:
            while not (changed := _list_changes(seen, _take_times(folder))):
                time.sleep(_LOOK)
            print_note(f"{', '.join(changed[:3])} changed: starting again.")
        finally:
            _end(child, settings.server.shutdown_seconds + _PATIENCE)


def _run(serve: Serve, settings: Settings, reference: str, listener: socket.socket) -> None:
    """In the new process."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        serve(settings, reference, listener)
    except Agent3Error as error:
        print_note(f"agent3: {error.message}")
    except KeyboardInterrupt:
        pass


def _end(child: SpawnProcess, seconds: float) -> None:
    child.terminate()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    child.close()


def _take_times(folder: Path) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for file in _list_files(folder):
        try:
            found[file] = file.stat().st_mtime_ns
        except OSError:  # removed meanwhile
            continue
    return found


def _list_files(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, except in hidden and virtual environments'; at most so many."""
    count = 0
    for where, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__")) and not (Path(where) / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                yield Path(where) / name
                count += 1
        if count >= _MOST_FILES:
            return


def _list_changes(before: Mapping[Path, int], now: Mapping[Path, int]) -> list[str]:
    return sorted(file.name for file in before.keys() | now.keys() if before.get(file) != now.get(file))


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
