"""One Chromium with many contexts, each behind a guarded proxy of its own.

It starts and ends the browser with its processes and its profile, and knows how worn it is: its age, how many contexts
it has had, its memory, and whether it has become slow. It knows nothing of interfaces, steps or whose context it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.errors import MissingExtra, SetupError, Unavailable
from agent3.nlweb import browsers
from agent3.nlweb.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

__all__ = ["FLAGS", "Chrome", "Wear", "memory_of"]

# Playwright sets most of these itself; they stand here because the sandbox depends on them and not on its taste.
FLAGS = (
    "--disable-quic",  # UDP would pass the proxy by
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # The second lock: the browser itself can resolve nothing but its proxy, so that no query leaves for a name server.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--enable-features=WebMCP",  # pages that offer tools of their own
)
# What belongs to no context, such as the browser's own chatter, goes to a port where nobody can listen but root.
_NOWHERE = "http://127.0.0.1:9"
# Without <-loopback> Chromium would go to this machine's own addresses past the proxy.
_BYPASS = "<-loopback>"
_LAUNCH_SECONDS = 30.0
_OPEN_SECONDS = 15.0
_CLOSE_SECONDS = 10.0
_SWEEPS = 100
_MEASURE_SECONDS = 10.0
_LATEST = 5
"""Openings of a context that count together when it is judged whether they have become slow."""
_PROFILE = re.compile(r"--user-data-dir=(/.*?/playwright_\w+-\w+)")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)

_PROC = Path("/proc")

Close = Callable[[], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Wear:
    """What a browser may have behind it before another one takes its place; 0 for no end."""

    seconds: float = 300.0
    contexts: int = 500
    bytes: int = 1_500_000_000
    slowdown: float = 4.0
    """How many times as long as at first the opening of a context may take, once it takes ``slow`` seconds."""
    slow: float = 1.0


class Chrome:
    """A browser. It belongs to the event loop that started it.

    ``aclose`` ends it and everything it left behind, also after it was killed and if called twice. ``keys`` are digests
    of public keys whose certificates it believes (see ``Overrides``).
    """

    def __init__(self, *, headless: bool = True, keys: tuple[str, ...] = ()):
        self._headless = headless
        self._keys = keys
        self._stack = AsyncExitStack()
        self._browser: Browser | None = None
        self._closing = asyncio.Lock()
        self._lost = False
        self._openings: deque[float] = deque(maxlen=_LATEST)
        self._first: list[float] = []
        self._measured = 0.0
        self.started = 0.0
        """``time.monotonic()`` at its start."""
        self.contexts = 0
        """How many it has had."""
        self.bytes = 0
        """Its memory when last measured."""

    @property
    def alive(self) -> bool:
        """Whether the browser is there and answers."""
        return self._browser is not None and self._browser.is_connected() and not self._lost

    async def start(self) -> None:
        """Start it; if that fails, nothing stays behind.

        SetupError without a browser on this machine, MissingExtra without Playwright.
        """
        found = browsers.require()
        async with AsyncExitStack() as stack:
            left = _Left(Path(tempfile.mkdtemp(prefix="agent3-browser-")))
            stack.push_async_callback(left.sweep)
            driver = await _driver()
            stack.push_async_callback(_bounded, driver.stop)
            self._browser = await self._launch(driver, found, left.artifacts)
            stack.push_async_callback(_bounded, self._browser.close)
            # Made again when there is something to put in it; until then, not even our own kill -9 leaves it behind.
            _removed(left.artifacts)
            try:
                left.found(await _profile(self._browser))
            except playwright().Error as error:  # killed in its first moment
                raise _gone(error) from None
            self.started = self._measured = time.monotonic()
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """End browser and driver and remove the profile, in this order."""
        async with self._closing:
            self._browser = None
            await self._stack.aclose()

    async def context(self, proxy: str, *, state: Any = None) -> BrowserContext:
        """A fresh context that reaches the web by that proxy alone, with the cookies of ``state``.

        Unavailable, and not sent, if the browser is gone or does not answer.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                context: BrowserContext = await self._running().new_context(
                    accept_downloads=False,
                    service_workers="block",
                    storage_state=state,
                    proxy={"server": proxy, "bypass": _BYPASS},
                )
        except (TimeoutError, playwright().Error) as error:
            self._lost = True  # it, or the driver between us: Playwright tells only of the first
            raise _gone(error) from None
        self.contexts += 1
        self._opened(time.monotonic() - began)
        return context

    async def worn(self, wear: Wear) -> str | None:
        """Why another one should take its place, or None. Its memory is looked at now and then."""
        if not self.alive:
            return "died"
        now = time.monotonic()
        if wear.seconds and now - self.started > wear.seconds:
            return "age"
        if wear.contexts and self.contexts >= wear.contexts:
            return "count"
        if wear.bytes and now - self._measured > _MEASURE_SECONDS:
            await self.measure()
        if wear.bytes and self.bytes > wear.bytes:
            return "memory"
        return "slowdown" if wear.slowdown and self._is_slow(wear) else None

    async def check(self) -> bool:
        """Whether it answers; one that does not is not alive from then on."""
        if self.alive and not await self.processes():
            self._lost = True
        return self.alive

    async def processes(self) -> list[int]:
        """The ids of its processes, the browser's own first; none if it is gone."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                talk = await self._running().new_browser_cdp_session()
                found = (await talk.send("SystemInfo.getProcessInfo"))["processInfo"]
                await talk.detach()
        except (TimeoutError, Unavailable, playwright().Error):
            return []
        return [int(one["id"]) for one in sorted(found, key=lambda one: one["type"] != "browser")]

    async def measure(self) -> int:
        """Its memory in bytes, over all its processes; 0 where this system does not tell."""
        self._measured = time.monotonic()
        self.bytes = await asyncio.to_thread(memory_of, await self.processes())
        return self.bytes

    # Inside

    def _running(self) -> Browser:
        if self._browser is None:
            raise _gone(None)
        return self._browser

    def _opened(self, seconds: float) -> None:
        if len(self._first) < _LATEST:
            self._first.append(seconds)
        self._openings.append(seconds)

    def _is_slow(self, wear: Wear) -> bool:
        if self.contexts < 2 * _LATEST:
            return False
        now = statistics.median(self._openings)
        return now > wear.slow and now > wear.slowdown * statistics.median(self._first)

    async def _launch(self, driver: Playwright, found: browsers.Browser, artifacts: Path) -> Browser:
        pins = [f"--ignore-certificate-errors-spki-list={','.join(self._keys)}"] if self._keys else []
        try:
            return await driver.chromium.launch(
                executable_path=str(found.path),
                headless=self._headless,
                chromium_sandbox=not _is_root(),
                args=[*FLAGS, *pins],
                artifacts_dir=str(artifacts),
                proxy={"server": _NOWHERE, "bypass": _BYPASS},
                timeout=_LAUNCH_SECONDS * 1000,
            )
        except playwright().Error as error:
            raise SetupError(
                f"{found.path} did not start as a browser: {error.message.splitlines()[0]} "
                "Run it by hand with --headless --version, or name another one in AGENT3_BROWSER."
            ) from error


def memory_of(processes: list[int]) -> int:
    """The bytes that some processes take together, pages that they share counted once; 0 where nobody tells."""
    total = 0
    for pid in processes:
        try:
            found = _PSS.search((_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii"))
        except OSError:
            continue
        total += int(found[1]) * 1024 if found else 0
    return total


def _gone(error: Any) -> Unavailable:
    why = f": {str(error).splitlines()[0]}" if error is not None and str(error) else ""
    gone = Unavailable(f"The browser went away before the first step{why}. Start it again and repeat the action.")
    gone.sent = False
    return gone


async def _bounded(close: Close) -> None:
    """Close, but not forever; a browser that is already gone is closed."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await close()
    except (TimeoutError, playwright().Error):
        pass  # the driver ends its browsers when it ends, and it ends with us


async def _profile(browser: Browser) -> list[Path]:
    """The folder that Playwright made for this browser; only the browser itself tells, if it does."""
    talk = await browser.new_browser_cdp_session()
    command = (await talk.send("SystemInfo.getInfo"))["commandLine"]
    await talk.detach()
    return [Path(found) for found in _PROFILE.findall(command)]


class _Left:
    """What a browser leaves on the disk: its profile, and the driver's own folder, which is ours to choose."""

    def __init__(self, artifacts: Path):
        self.artifacts = artifacts
        self._before = _profiles()
        self._profiles: set[Path] | None = None

    def found(self, profiles: list[Path]) -> None:
        """The browser told its profile."""
        self._profiles = set(profiles)

    async def sweep(self) -> None:
        """Remove it, once the browser is dead: killed with its driver, it lives and writes for a moment yet."""
        ours = self._new() if self._profiles is None else self._profiles
        unused = _unused(ours)
        for _ in range(_SWEEPS):
            if unused == ours:
                break
            await asyncio.sleep(0.05)
            unused = _unused(ours)
        for folder in (self.artifacts, *(unused if self._profiles is None else ours)):
            for _ in range(_SWEEPS):
                if _removed(folder):
                    break
                await asyncio.sleep(0.05)

    def _new(self) -> set[Path]:
        """What may be ours of a browser that did not tell; nothing where it cannot be seen whether it is in use."""
        return _profiles() - self._before if _PROC.is_dir() else set()


def _profiles() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("playwright_chromiumdev_profile-*"))


def _unused(folders: set[Path]) -> set[Path]:
    """Those that no process names in its command; all of them where that cannot be seen."""
    commands = []
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            commands.append((process / "cmdline").read_bytes())
    return {one for one in folders if not any(one.name.encode() in command for command in commands)}


def _removed(folder: Path) -> bool:
    # Here and not in a thread: at the exit of the interpreter there are no more threads to be had.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


async def _driver() -> Playwright:
    try:
        driver: Playwright = await playwright().async_playwright().start()
    except MissingExtra:
        raise
    except Exception as error:  # noqa: BLE001 - a driver that dies at its start is told by an error without a type
        raise _gone(error) from None
    return driver


def _is_root() -> bool:
    """Chromium's own sandbox cannot be set up by root; for everyone else it stays on."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
