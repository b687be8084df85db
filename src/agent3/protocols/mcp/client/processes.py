"""MCP servers that are programs on this machine, spoken to over standard input and output.

Each runs in a session of its own, so that it and everything it starts can be ended together. Its environment is small:
the paths of programs, home and certificates, the language, and what the operator gave. If the gateway dies, a watchdog
ends what it left behind: one shell for all programs, which waits for its own standard input to close, as the kernel
does however the gateway died. ``PR_SET_PDEATHSIG`` would reach only the first process of each tree (``npx``, not the
``node`` below it), follows the thread and not the process, and needs code between fork and exec, which is unsafe with
threads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MalformedResponse, SetupError, Unavailable
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.channels import (
    LIMITS,
    Inflow,
    PendingRequest,
    Waiting,
    answer_request,
    decode_message,
    deliver,
    parse_result,
    spawn,
)

__all__ = ["PREFIX", "Command", "Restarts", "StdioChannel", "Watchdog", "environment"]

log = logger("mcp.process")

PREFIX = "stdio:"
"""How the address of a program begins; its command follows as JSON."""
_INHERITED = (
    *(("PATH", "HOME", "LANG") if os.name == "posix" else ("PATH", "USERPROFILE", "SYSTEMROOT", "TEMP")),
    # Where this machine keeps the certificates that it trusts, without which npx and uvx install nothing.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
)
_GRACE = 2.0
"""Seconds that a program gets to end by itself once its input is closed, and again after SIGTERM."""
_REAP = 5.0
"""Seconds that the end of a killed program is waited for."""
_LAST_LINES = 0.5
"""Seconds to wait for the last lines of standard error and the exit code of a program that ended."""
_TAIL = 20
"""Lines of standard error that are kept for error messages."""
_ERROR = re.compile(r"error|fatal|not found", re.IGNORECASE)
_MOST_ERRORS = 4
"""Lines that speak of an error and are told beside the last one."""
_LONGEST_LINE = 2_000
_INFO_LINES = 20
"""Lines of standard error that are logged as info each minute; the last line of a long traceback is kept anyway."""
_DEBUG_LINES = 200
"""Lines that are logged each minute at all, the others as debug."""


class Command(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program with its arguments. A value of ``env`` of the form ``env:NAME`` is read from our own environment."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    @property
    def address(self) -> str:
        return PREFIX + msgspec.json.encode(self).decode()

    @property
    def name(self) -> str:
        """The program without its path, for people."""
        return self.command.replace("\\", "/").rsplit("/", 1)[-1]

    @classmethod
    def parse(cls, address: str) -> Command:
        """The command in an address, or SetupError."""
        try:
            return msgspec.json.decode(address.removeprefix(PREFIX), type=cls)
        except msgspec.DecodeError as error:
            raise SetupError(f"The address of an MCP server is not a command: {error}. Add it again.") from None


def environment(command: Command, extra: Mapping[str, str], ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of the program. SetupError names a referenced variable that is not set."""
    found = {name: ours[name] for name in _INHERITED if name in ours}
    for name, value in command.env.items():
        kind, _, source = value.partition(":")
        if kind == "env" and source:
            if source not in ours:
                raise SetupError(
                    f"{command.name} needs {name} from the environment variable {source}, which is not set."
                )
            value = ours[source]
        found[name] = value
    return {**found, **extra}


_WATCHDOG_SCRIPT = r"""
groups=
while read -r what group; do
  case $what in
    +) groups="$groups $group " ;;
    -) groups=$(printf '%s' "$groups" | sed "s/ $group //") ;;
  esac
done
[ -n "$groups" ] && sleep 1
for group in $groups; do kill -KILL "-$group" 2>/dev/null; done
"""


class Watchdog:
    """Ends the programs of a gateway that died. Starts with the first program; does nothing where there is no sh."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, group: int) -> None:
        """End this process group if the gateway dies."""
        if os.name != "posix":
            return
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(  # noqa: S603 - a constant
                ["/bin/sh", "-c", _WATCHDOG_SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
        self._write(f"+ {group}\n")

    def release(self, group: int) -> None:
        """Forget a group that has ended: its number may soon belong to another process."""
        self._write(f"- {group}\n")

    def close(self) -> None:
        """Stop; no program is left to guard."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()

    def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError as error:
            log.warning("the watchdog of MCP programs has ended: %s", error)


class Restarts:
    """When a program may be started again: at once after its first crash, then more and more slowly."""

    def __init__(self, now: Callable[[], float], window: float = 60.0, longest: float = 30.0):
        self._now = now
        self._window = window
        self._longest = longest
        self._crashes: deque[float] = deque(maxlen=16)

    def record_crash(self) -> None:
        self._crashes.append(self._now())

    def wait(self) -> float:
        """Seconds until it may be started again."""
        now = self._now()
        while self._crashes and now - self._crashes[0] > self._window:
            self._crashes.popleft()
        count = len(self._crashes)
        if count < 2:
            return 0.0
        return float(max(0.0, self._crashes[-1] + min(self._longest, 0.25 * 2**count) - now))


class StdioChannel:
    """One running program. Answers are matched by id, so any number of requests may be under way.

    ``on_message`` takes what does not say which of our requests it belongs to: requests of the server, log lines, and
    notifications of its own.
    """

    def __init__(self, command: Command, process: asyncio.subprocess.Process, watchdog: Watchdog):
        self._command = command
        self._process = process
        self._watchdog = watchdog
        self.place = f"The program {command.name!r}"
        self.request_ids = itertools.count(1)
        self.on_message: Callable[[dict[str, Any]], None] | None = None
        self.on_crash: Callable[[], None] | None = None
        self._waiting: Waiting = {}
        self._stderr_tail: deque[str] = deque(maxlen=_TAIL)
        self._closing = False
        self.inflow = Inflow(self.place)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading_stderr = spawn(self._tasks, self._read_stderr())
        spawn(self._tasks, self._read_stdout())

    @classmethod
    async def start(cls, command: Command, extra: Mapping[str, str], watchdog: Watchdog) -> StdioChannel:
        """Start the program. Unavailable says why it could not be started."""
        try:
            process = await asyncio.create_subprocess_exec(
                command.command,
                *command.args,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=command.cwd,
                env=environment(command, extra),
                limit=LIMITS.body,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _start_error(command, error) from None
        watchdog.guard(process.pid)
        return cls(command, process, watchdog)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._closing

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self._process.pid

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], pending: PendingRequest) -> Any:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer, pending
        try:
            await self._write(body)
            return parse_result(await answer, self.place)
        except asyncio.CancelledError:
            stdin = self._process.stdin
            if stdin is not None and self.alive:
                stdin.write(jsonrpc.notification("notifications/cancelled", {"requestId": key}) + b"\n")
            raise
        finally:
            self._waiting.pop(key, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # so that asyncio does not complain of an exception that nobody retrieved

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        await self._write(body)

    async def aclose(self) -> None:
        """End the program and all it started: close its input, then SIGTERM, then SIGKILL. Never hangs."""
        if not self._closing:
            self._closing = True
            try:
                if self._process.stdin is not None:
                    self._process.stdin.close()
                for sign in (None, signal.SIGTERM):
                    if sign is not None:
                        self._kill(sign)
                    try:
                        async with asyncio.timeout(_GRACE):
                            await self._process.wait()
                        break
                    except TimeoutError:
                        continue
            finally:
                self._kill(signal.SIGKILL)
                self._watchdog.release(self.pid)
            # No program survives SIGKILL, but asyncio has to notice, or its transport is left open.
            with suppress(TimeoutError):
                async with asyncio.timeout(_REAP):
                    await self._process.wait()
        tasks = [*self._tasks, *self.inflow.answering]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The process

    def _kill(self, sign: signal.Signals) -> None:
        try:
            if os.name == "posix":
                os.killpg(self.pid, sign)
            else:
                self._process.kill()
        except (ProcessLookupError, PermissionError):
            pass

    async def _write(self, body: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None or not self.alive:
            await self._await_end()
            raise self._ended_error(sent=False)
        try:
            stdin.write(body + b"\n")
            await stdin.drain()
        except (ConnectionError, RuntimeError):
            await self._await_end()
            raise self._ended_error(sent=True) from None

    async def _await_end(self) -> None:
        """Wait briefly for the last lines and the exit code of a program that ended, for the error message."""
        try:
            async with asyncio.timeout(_LAST_LINES):
                await asyncio.wait([self._reading_stderr])
                await self._process.wait()
        except TimeoutError:
            log.debug("%s closed its input but keeps running", self.place)

    def _ended_error(self, *, sent: bool) -> Unavailable:
        code = self._process.returncode
        how = (
            "was stopped" if self._closing else f"ended (exit code {code})" if code is not None else "closed its input"
        )
        error = Unavailable(f"{self.place} {how} before it answered.{self._last_line()}")
        error.sent = sent
        return error

    @property
    def last_words(self) -> str:
        """The last line of its standard error, after the first ones that speak of an error: npm ends with advice."""
        if not self._stderr_tail:
            return ""
        *before, last = self._stderr_tail
        errors = [line for line in before if _ERROR.search(line)][:_MOST_ERRORS]
        return " | ".join(line[:300] for line in dict.fromkeys([*errors, last]))

    def _last_line(self) -> str:
        return f" Its last output: {self.last_words}" if self._stderr_tail and not self._closing else ""

    # What it writes

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                await self._dispatch(line)
                await self.inflow.pace()
        except ValueError:
            self._fail_all(MalformedResponse(f"{self.place} wrote a message of more than {LIMITS.body} bytes."))
            self._kill(signal.SIGKILL)
        await self._process.wait()
        if crashed := not self._closing:
            self._kill(signal.SIGKILL)  # what it started, and left in its group
            self._watchdog.release(self.pid)
            if self.on_crash is not None:
                self.on_crash()
        await self._await_end()
        if crashed:
            log.warning("%s ended with exit code %s.%s", self.place, self._process.returncode, self._last_line())
        self._fail_all(self._ended_error(sent=True))

    def _fail_all(self, error: Agent3Error) -> None:
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    async def _dispatch(self, line: bytes) -> None:
        """Hand one message to the request it belongs to."""
        try:
            message = await decode_message(line, self.place)
        except MalformedResponse:
            log.debug("%s printed a line that is not a message: %s", self.place, line[:200])
            return
        if not deliver(message, self._waiting, self.on_message) and "id" in message:
            self.inflow.answer(partial(self._answer, message))

    async def _answer(self, message: dict[str, Any]) -> None:
        """Answer a request that comes before the session stands."""
        try:
            await self._write(await answer_request(message, None))
        except Agent3Error as error:
            log.debug("%s did not accept an answer: %s", self.place, error)

    async def _read_stderr(self) -> None:
        """Log standard error line by line, but no more of it than a log can bear."""
        assert self._process.stderr is not None
        rest, count, since = b"", 0, asyncio.get_running_loop().time()
        while chunk := await self._process.stderr.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            now = asyncio.get_running_loop().time()
            if now - since > 60.0:
                count, since = 0, now
            for line in lines:
                count += 1
                self._log_line(line, count)
        if rest:
            self._log_line(rest, count + 1)

    def _log_line(self, line: bytes, count: int) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip()
        if not text:
            return
        self._stderr_tail.append(text)
        if count <= _DEBUG_LINES:
            log.log(logging.INFO if count <= _INFO_LINES else logging.DEBUG, "%s: %s", self._command.name, text)
        if count == _INFO_LINES:
            log.info(
                "%s writes a lot to standard error; the rest of this minute is logged as debug", self._command.name
            )


def _start_error(command: Command, error: OSError | ValueError) -> Unavailable:
    """Why a program could not be started, and what to do about it."""
    if isinstance(error, FileNotFoundError):
        is_folder = command.cwd and not os.path.isdir(command.cwd)  # noqa: PTH112
        what = f"the folder {command.cwd}" if is_folder else "the program"
        why = f"{what} was not found. Install it, or give its full path"
        if command.name.endswith(".py"):
            why += "; agent3 serve takes a Python file with an App"
    elif isinstance(error, PermissionError):
        why = "it is not executable. Check its permissions"
    else:
        why = str(error)
    failure = Unavailable(f"{command.name!r} cannot be started: {why}.")
    failure.sent = False
    return failure
