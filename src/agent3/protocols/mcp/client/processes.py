"""MCP servers that are programs on this machine, spoken to over standard input and output.

Each runs in a session of its own, so that it and all it starts can be ended together. The environment it gets is
small: where programs and the home are, the language, and what the operator gave. If the gateway dies without a word,
a watchdog ends what it left behind: one shell for all, that waits for its own input to close, which the kernel does
whatever the gateway died of. ``PR_SET_PDEATHSIG`` would reach only the first process of each tree (``npx``, not the
``node`` below it), follows the thread and not the process, and needs code between fork and exec, which is not safe
where threads run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MalformedResponse, SetupError, Unavailable
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.channels import LIMITS, Exchange, answer_to, params_of, read, result_of

__all__ = ["Command", "PipeChannel", "Restarts", "Watchdog", "environment"]

log = logger("mcp.process")

PREFIX = "stdio:"
_KEPT = ("PATH", "HOME", "LANG") if os.name == "posix" else ("PATH", "USERPROFILE", "SYSTEMROOT", "TEMP")
_GRACE = 2.0
"""Seconds that a program gets to end by itself once its input is closed, and again after SIGTERM."""
_TAIL = 20
_LONGEST_LINE = 2_000
_SHOWN_PER_MINUTE = 20
"""Lines of a program's standard error that are logged; of a long traceback the last one says most, and is kept."""
_LINES_PER_MINUTE = 200
"""Likewise for whoever reads what is logged as debug."""


class Command(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program with its arguments. A value of ``env`` that reads ``env:NAME`` is taken from our own environment."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    @property
    def address(self) -> str:
        """What a route holds."""
        return PREFIX + msgspec.json.encode(self).decode()

    @property
    def name(self) -> str:
        """For people: the program without its path."""
        return self.command.replace("\\", "/").rsplit("/", 1)[-1]

    @classmethod
    def parse(cls, address: str) -> Command:
        """The command in an address, or SetupError."""
        try:
            return msgspec.json.decode(address.removeprefix(PREFIX), type=cls)
        except msgspec.DecodeError as wrong:
            raise SetupError(f"The address of an MCP server is not a command: {wrong}. Add it again.") from None


def environment(command: Command, extra: Mapping[str, str], ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All that the program will see. SetupError names a variable that the operator promised and did not set."""
    found = {name: ours[name] for name in _KEPT if name in ours}
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


_WATCH = r"""
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
    """Ends the programs of a gateway that died. Started with the first program; does nothing where there is no sh."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, group: int) -> None:
        """End this group should we die."""
        if os.name != "posix":
            return
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(  # noqa: S603 - a constant
                ["/bin/sh", "-c", _WATCH],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
        self._say(f"+ {group}\n")

    def release(self, group: int) -> None:
        """It has ended; its number may soon be somebody else's."""
        self._say(f"- {group}\n")

    def close(self) -> None:
        """Nothing is left to guard."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()

    def _say(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError as wrong:
            log.warning("the watchdog of MCP programs is gone: %s", wrong)


class Restarts:
    """How often a program may be started again: at once after its first crash, then ever more slowly."""

    def __init__(self, now: Callable[[], float], window: float = 60.0, longest: float = 30.0):
        self._now = now
        self._window = window
        self._longest = longest
        self._crashes: deque[float] = deque(maxlen=16)

    def crashed(self) -> None:
        """It ended, and not because we wanted it to."""
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


class PipeChannel:
    """One running program. Answers are told apart by their ids, so any number of requests may be under way.

    ``on_stray`` hears the notifications that belong to no request. A question of the server does not say which
    request it belongs to: with one under way it is clear, with several nobody is asked, and ``on_ambiguous`` is told.
    """

    def __init__(self, command: Command, process: asyncio.subprocess.Process, watchdog: Watchdog):
        self._command = command
        self._process = process
        self._watchdog = watchdog
        self.place = f"The program {command.name!r}"
        self.on_stray: Callable[[dict[str, Any]], None] | None = None
        self.on_crash: Callable[[], None] | None = None
        self.on_ambiguous: Callable[[], None] | None = None
        self._waiting: dict[int, tuple[asyncio.Future[dict[str, Any]], Exchange]] = {}
        self._said: deque[str] = deque(maxlen=_TAIL)
        self._closing = False
        self._overhearing = asyncio.create_task(self._overhear())
        self._tasks = {asyncio.create_task(self._listen()), self._overhearing}

    @classmethod
    async def start(cls, command: Command, extra: Mapping[str, str], watchdog: Watchdog) -> PipeChannel:
        """Start the program. Unavailable says why it could not be."""
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
        except (OSError, ValueError) as wrong:
            raise _not_started(command, wrong) from None
        watchdog.guard(process.pid)
        return cls(command, process, watchdog)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._closing

    @property
    def pid(self) -> int:
        """The process, and its group."""
        return self._process.pid

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._waiting)

    async def request(self, key: int, body: bytes, headers: Mapping[str, str], exchange: Exchange) -> Any:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer, exchange
        try:
            await self._write(body)
            return result_of(await answer, self.place)
        except asyncio.CancelledError:
            self._call_off(key)
            raise
        finally:
            self._waiting.pop(key, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def tell(self, body: bytes, headers: Mapping[str, str]) -> None:
        await self._write(body)

    async def aclose(self) -> None:
        """End the program and all it started: close its input, then SIGTERM, then SIGKILL. Never hangs."""
        if not self._closing:
            self._closing = True
            try:
                await self._end()
            finally:
                self._kill(signal.SIGKILL)
                self._watchdog.release(self.pid)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Inside

    async def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        for sign in (None, signal.SIGTERM):
            if sign is not None:
                self._kill(sign)
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
                return
            except TimeoutError:
                continue

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
            await self._last_words()
            raise self._gone(sent=False)
        try:
            stdin.write(body + b"\n")
            await stdin.drain()
        except (ConnectionError, RuntimeError):
            await self._last_words()
            raise self._gone(sent=True) from None

    async def _last_words(self) -> None:
        """Let what a program said before it ended arrive, and how it ended: somebody will want to know it."""
        try:
            async with asyncio.timeout(0.5):
                await asyncio.wait([self._overhearing])
                await self._process.wait()
        except TimeoutError:
            log.debug("%s closed its input and goes on", self.place)

    def _call_off(self, key: int) -> None:
        stdin = self._process.stdin
        if stdin is not None and self.alive:
            stdin.write(jsonrpc.notification("notifications/cancelled", {"requestId": key}) + b"\n")

    def _gone(self, *, sent: bool) -> Unavailable:
        code = self._process.returncode
        how = (
            "was stopped" if self._closing else f"ended (exit code {code})" if code is not None else "closed its input"
        )
        error = Unavailable(f"{self.place} {how} before it answered.{self._quoted()}")
        error.sent = sent
        return error

    def _quoted(self) -> str:
        return f" Its last words: {self._said[-1][:300]}" if self._said and not self._closing else ""

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                self._sort(line)
        except ValueError:
            self._fail(MalformedResponse(f"{self.place} wrote a message of more than {LIMITS.body} bytes."))
            self._kill(signal.SIGKILL)
        await self._process.wait()
        if crashed := not self._closing:
            self._kill(signal.SIGKILL)  # what it started, and left in its group
            self._watchdog.release(self.pid)
            if self.on_crash is not None:
                self.on_crash()
        await self._last_words()
        if crashed:
            log.warning("%s ended with exit code %s.%s", self.place, self._process.returncode, self._quoted())
        self._fail(self._gone(sent=True))

    def _fail(self, error: Agent3Error) -> None:
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def _sort(self, line: bytes) -> None:
        try:
            message = read(line, self.place)
        except MalformedResponse:
            log.debug("%s printed what is not a message: %s", self.place, line[:200])
            return
        if "method" not in message:
            key = message.get("id")
            if isinstance(key, int) and key in self._waiting and not self._waiting[key][0].done():
                self._waiting[key][0].set_result(message)
        elif "id" in message:
            self._reply(message)
        else:
            self._tell(message)

    def _tell(self, message: dict[str, Any]) -> None:
        params = params_of(message)
        token = params.get("progressToken")
        if isinstance(token, int) and token in self._waiting:
            self._waiting[token][1].heard(str(message["method"]), params)
        elif message["method"] == "notifications/message":
            working = [exchange for _, exchange in self._waiting.values() if not exchange.standing]
            if len(working) == 1:  # it does not say whose it is
                working[0].heard("notifications/message", params)
        elif self.on_stray is not None:
            self.on_stray(message)

    def _reply(self, message: dict[str, Any]) -> None:
        able = [exchange for _, exchange in self._waiting.values() if exchange.can_answer]
        if message.get("method") != "ping" and len(able) > 1 and self.on_ambiguous is not None:
            self.on_ambiguous()

        async def replied() -> None:
            try:
                await self._write(await answer_to(message, able[0] if len(able) == 1 else None))
            except Agent3Error as wrong:
                log.debug("%s did not take an answer: %s", self.place, wrong)

        task = asyncio.create_task(replied())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _overhear(self) -> None:
        """What it says on standard error: to the log, line by line, but not more than a log can bear."""
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
                self._note(line, count)
        if rest:
            self._note(rest, count + 1)

    def _note(self, line: bytes, count: int) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip()
        if not text:
            return
        self._said.append(text)
        if count <= _LINES_PER_MINUTE:
            log.log(logging.INFO if count <= _SHOWN_PER_MINUTE else logging.DEBUG, "%s: %s", self._command.name, text)
        if count == _SHOWN_PER_MINUTE:
            log.info("%s says more on standard error: in this minute it is for the level debug", self._command.name)


def _not_started(command: Command, wrong: OSError | ValueError) -> Unavailable:
    if isinstance(wrong, FileNotFoundError):
        what = f"the folder {command.cwd}" if command.cwd and not os.path.isdir(command.cwd) else "the program"  # noqa: PTH112
        why = f"{what} was not found. Install it, or give its full path"
    elif isinstance(wrong, PermissionError):
        why = "it may not be executed. Check its permissions"
    else:
        why = str(wrong)
    error = Unavailable(f"{command.name!r} cannot be started: {why}.")
    error.sent = False
    return error
