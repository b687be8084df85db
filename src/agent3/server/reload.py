"""``agent3 serve --reload``: a gateway in a process of its own that is started again whenever its code changes.

The port is opened here and handed down, so that callers wait through a restart instead of being refused. The settings
are read again each time, but the address stays. A change that cannot be loaded prints its error, and callers get it
for an answer until the next change. For development: it serves this machine only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from agent3.client.announcement import announce, withdraw
from agent3.errors import Agent3Error, SetupError, Unavailable
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
_LONGEST_BODY = 1_000_000
"""Bytes of a request that are read before it is answered that nothing is served."""
_SLOWEST = 10
"""Seconds in which they have to come."""

Serve = Callable[[Settings, Sequence[str], socket.socket], None]
"""Serves what a reference names until a signal comes; it must be importable by its name, for the new process."""


def serve_reloading(read: Callable[[], Settings], settings_file: Path, references: Sequence[str], serve: Serve) -> None:
    """Serve until a signal comes, with ``serve`` in a process of its own that follows the files.

    ``read`` gives the settings, anew for each process.
    """
    settings = read()
    if settings.server.host not in _LOOPBACK:
        raise SetupError("--reload is for development and serves this machine only. Use --host or --reload, not both.")
    folder = find_file(references[0]).parent
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        with listen(settings) as listener:
            _follow(settings, read, references, serve, (folder, settings_file.absolute()), listener)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(
    settings: Settings,
    read: Callable[[], Settings],
    references: Sequence[str],
    serve: Serve,
    places: tuple[Path, Path],
    listener: socket.socket,
) -> None:
    print_note(f"Watching {places[0]} for changes.")
    while True:
        seen = _take_times(*places)
        wrong = None
        try:
            settings = read()
        except SetupError as error:
            wrong = error.message
        given = (serve, settings, references, listener, wrong)
        child = multiprocessing.get_context("spawn").Process(target=_run, args=given)
        child.start()
        try:
            while not (changed := _list_changes(seen, _take_times(*places))):
                time.sleep(_LOOK)
            print_note(f"{', '.join(changed[:3])} changed: restarting.")
        finally:
            _end(child, settings.server.shutdown_seconds + _PATIENCE)


def _run(
    serve: Serve, settings: Settings, references: Sequence[str], listener: socket.socket, wrong: str | None
) -> None:
    """In the new process. Where the settings are wrong, or the agent cannot be served, callers are told why."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    kept = listener.dup()  # serving closes the other
    try:
        if wrong is None:
            wrong = _serve(serve, settings, references, listener)
        if wrong is not None:
            print_note(f"agent3: {wrong}")
            _answer_with(wrong, settings, kept)
    except KeyboardInterrupt:
        pass


def _serve(serve: Serve, settings: Settings, references: Sequence[str], listener: socket.socket) -> str | None:
    """Serve until a signal comes; why that was not possible."""
    try:
        serve(settings, references, listener)
    except Agent3Error as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - whatever it is, callers are told
        traceback.print_exc()
        return f"{', '.join(references)} could not be served: {type(error).__name__}: {error}"
    except SystemExit as error:
        return f"{', '.join(references)} could not be served: it ended the process with {error.code!r}."
    return None


def _answer_with(wrong: str, settings: Settings, listener: socket.socket) -> None:
    """Answer every request with what is wrong, until a signal comes."""
    refusal = json.dumps({"error": Unavailable(wrong).to_dict()}).encode()

    class Refusing(BaseHTTPRequestHandler):
        timeout = _SLOWEST

        def do_GET(self) -> None:
            length = self.headers.get("Content-Length", "0")
            self.rfile.read(min(int(length), _LONGEST_BODY) if length.isdecimal() else 0)
            alive = self.path == "/healthz"  # by which commands find it
            body = b"{}" if alive else refusal
            self.send_response(200 if alive else Unavailable.http_status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - as they are called there

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called there
            pass

    host, port = listener.getsockname()[:2]
    signal.signal(signal.SIGTERM, _raise_interrupt)
    with ThreadingHTTPServer((host, port), Refusing, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        note = announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", settings)
        try:
            server.serve_forever()
        finally:
            withdraw(note)


def _end(child: SpawnProcess, seconds: float) -> None:
    child.terminate()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    child.close()


def _take_times(folder: Path, settings_file: Path) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for file in (settings_file, *_list_files(folder)):
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
