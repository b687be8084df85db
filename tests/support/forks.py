"""Processes for tests that have loaded everything already: each forks from one that waits, and so saves a second.

What runs in them is the real thing, in a process of its own with its own environment, folder and standard streams.
Only loading is not shown; the tests that start ``agent3`` as a program do that.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

__all__ = ["FORKS", "WITHOUT_STAGE", "Forked", "run_forked"]

WITHOUT_STAGE = "TESTS_WITHOUT_STAGE"
"""The variable with which a gateway with the demo starts no process of it."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.support.mcp_upstream",
        "agent3.cli.main",
        *(f"agent3.cli.{name}" for name in ("agents", "backups", "calls", "dead_letters", "registration", "serving")),
        "agent3.demo.stage",
    ]
)


def run_forked(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """One ``agent3`` command, or script with every warning an error, to its end, as ``subprocess.run`` would."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").write_text(stdin)
        with Forked(arguments, env=env, cwd=cwd, stdin=Path(folder) / "in", stderr=Path(folder) / "err") as process:
            try:
                out = process.communicate(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.wait(0), out, (Path(folder) / "err").read_text())


class Forked:
    """``agent3`` or a script under way, with what tests use of ``subprocess.Popen``.

    Leaving it waits for its end; a test that fails meanwhile ends it.
    """

    def __init__(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stderr: Path, stdin: Path | None = None
    ):
        self.args = list(arguments) if arguments[:1] and arguments[0].endswith(".py") else ["agent3", *arguments]
        reader, writer = FORKS.Pipe(duplex=False)
        files = str(stdin or os.devnull), str(stderr)
        self._process = FORKS.Process(target=_command, args=(self.args, dict(env), str(cwd), files, writer))
        self._process.start()
        writer.close()
        self.pid = self._process.pid or 0
        self.stdout: IO[str] = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        try:
            self.wait(120)
        finally:
            self.kill()
            self.stdout.close()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float) -> str:
        """All that it prints until its end."""
        found: list[str] = []
        reading = threading.Thread(target=lambda: found.append(self.stdout.read()), daemon=True)
        reading.start()
        self.wait(timeout)
        reading.join(timeout)
        return "".join(found)

    def send_signal(self, sign: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _command(words: list[str], env: dict[str, str], cwd: str, files: tuple[str, str], out: Connection) -> None:
    _become(0, os.open(files[0], os.O_RDONLY))
    _become(1, os.dup(out.fileno()))
    _become(2, os.open(files[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    out.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(cwd)
    sys.argv = words
    try:
        _run(words[0], cwd)
    finally:
        atexit._run_exitfuncs()  # a process that forked leaves without them


def _run(program: str, cwd: str) -> None:
    if program == "agent3":
        from agent3.cli.main import main

        if os.environ.pop(WITHOUT_STAGE, None) and "--demo" in sys.argv:
            from agent3.demo import stage

            stage._LATER = 86_400.0
        main()
        return
    warnings.simplefilter("error")
    sys.path.insert(0, cwd)
    runpy.run_path(program, run_name="__main__")


def _become(number: int, handle: int) -> None:
    os.dup2(handle, number)
    os.close(handle)
