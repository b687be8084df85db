"""``agent3 serve --reload``: a real process that follows its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from agent3 import Agent3Error, Client
from agent3.errors import AccessError, Unavailable
from tests.support.gateway import environment, run_agent3

APP = """
from agent3 import App
app = App("greeter")

@app.capability(read_only=True)
def greet(name: str) -> str:
    "Greet somebody."
    return f"WORD, {name}"
"""


@contextmanager
def reloading(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and all lines that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agent3", "serve", "app.py", "--reload", "--port", "0"],
        cwd=folder,
        env=environment(folder / "data"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    output = process.stdout
    reader = threading.Thread(target=_collect, args=(output, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        process.kill()
        process.wait(60)
        reader.join(30)  # ends when the last process that holds the pipe has
        assert not reader.is_alive(), "a process was left behind"
        output.close()


def _collect(output: IO[str], lines: list[str]) -> None:
    for line in output:
        lines.append(line.rstrip("\n"))  # noqa: PERF401 - each as it comes


def until(lines: list[str], words: str, times: int = 1) -> str:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        if len(found := [line for line in lines if words in line]) >= times:
            return found[times - 1]
        time.sleep(0.05)
    raise AssertionError(f"{words!r} was not said {times} times: {lines}")


def test_a_changed_file_is_served_at_the_same_address_and_a_broken_one_is_told(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.replace("WORD", "Hello"))
    with reloading(tmp_path) as (process, lines):
        url = until(lines, "agent3 serves at").split()[-1]
        with Client(url) as gateway:
            assert gateway.call("greeter", input={"name": "Ada"}).text == "Hello, Ada"
        file.write_text("app = (")
        until(lines, "app.py changed: restarting")
        assert "SyntaxError" in until(lines, "could not be loaded")
        # Nobody waits for what cannot come, whether the gateway is named or found.
        with Client(url) as gateway, pytest.raises(Unavailable, match=r"app\.py could not be loaded: SyntaxError"):
            gateway.call("greeter", input={"name": "Ada"})
        found = run_agent3(tmp_path / "data", "call", "greeter", "--input", '{"name": "Ada"}')
        assert (found.returncode, "app.py could not be loaded: SyntaxError" in found.stderr) == (5, True), found
        file.write_text(APP.replace("WORD", "Good evening"))
        until(lines, "app.py changed: restarting", 2)
        assert until(lines, "agent3 serves at", 2).split()[-1] == url
        with Client(url) as gateway:
            assert gateway.call("greeter", input={"name": "Ada"}).text == "Good evening, Ada"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not any("Traceback" in line for line in lines)


def test_the_settings_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with reloading(tmp_path) as (_, lines):
        url = until(lines, "agent3 serves at").split()[-1]
        settings = tmp_path / "agent3.toml"
        settings.write_text("[limits\n")
        until(lines, "agent3.toml changed: restarting")
        until(lines, "agent3.toml is not valid TOML")
        with Client(url) as gateway, pytest.raises(Unavailable, match="not valid TOML"):
            gateway.call("greeter", input={"name": "Ada"})
        settings.write_text('[[rules]]\neffect = "deny"\n')
        until(lines, "agent3 serves at", 2)
        with Client(url) as gateway, pytest.raises(AccessError, match="no rule allows"):
            gateway.call("greeter", input={"name": "Ada"})


def test_a_caller_waits_through_a_restart_and_is_not_refused(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.replace("WORD", "Hello"))
    with reloading(tmp_path) as (_, lines):
        url = until(lines, "agent3 serves at").split()[-1]
        file.write_text(APP.replace("WORD", "Bye"))
        until(lines, "app.py changed: restarting")
        answers: list[str] = []
        with Client(url) as gateway:
            while "Bye, Ada" not in answers and len(answers) < 100:
                try:
                    answers.append(gateway.call("greeter", input={"name": "Ada"}).text)
                except Agent3Error as error:  # the old process may have taken this one, and hung up
                    answers.append(error.message)
        assert answers[-1] == "Bye, Ada"
        assert not any("refused" in answer.lower() for answer in answers)


def test_when_it_is_killed_what_it_started_ends_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with reloading(tmp_path) as (process, lines):
        until(lines, "agent3 serves at")
        os.kill(process.pid, signal.SIGKILL)
        # Leaving the block waits for every process that holds the other end of the pipe.


def test_it_needs_something_to_follow_and_serves_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    nothing = run_agent3(tmp_path, "serve", "--reload")
    assert (nothing.returncode, "travel.py:app" in nothing.stderr) == (2, True)
    config = tmp_path / "clients.toml"
    config.write_text('[[clients]]\nid = "me"\nkey = "env:MY_KEY"\n')
    open_to_all = ["serve", "app.py", "--reload", "--host", "0.0.0.0", "--config", str(config)]
    refused = run_agent3(tmp_path, *open_to_all, MY_KEY="0123456789abcdef")
    assert (refused.returncode, "this machine only" in refused.stderr) == (2, True)
    missing = run_agent3(tmp_path, "serve", "nowhere.py", "--reload")
    assert (missing.returncode, "'nowhere.py' does not exist" in missing.stderr) == (2, True)
