"""One Chromium with many contexts, each behind a guarded proxy of its own.

It starts and ends the browser with its processes and its profile, and knows how worn it is: its age, how many contexts
it has had, its memory, and whether it has become slow. It knows nothing of interfaces, steps or whose context it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.errors import MissingExtra, SetupError, Unavailable
from agent3.observe import logs
from agent3.protocols.nlweb.browser import installation as browsers
from agent3.protocols.nlweb.browser import process_memory as memory
from agent3.protocols.nlweb.browser.process_memory import memory_of
from agent3.protocols.nlweb.browser.profiles import ARTIFACTS, Leavings, removed, sweep_left
from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

__all__ = ["FLAGS", "UNPROTECTED", "Chrome", "Wear", "is_root", "memory_of"]

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
_MEASURE_SECONDS = 10.0
_LATEST = 5
"""Openings of a context that count together when it is judged whether they have become slow."""
_PROFILE = re.compile(r"--user-data-dir=(/.*?/playwright_\w+-\w+)")
_WATCH_SECONDS = 1.0
_PAGE_BYTES = 800_000_000
_PAGES_BYTES = 1_500_000_000
_BLAME_SECONDS = 3.0
"""For how long a page that died is taken for the one that was ended."""

logger = logs.get("nlweb")

UNPROTECTED = (
    "The browser runs as root, and so without Chromium's own sandbox: a page that finds a fault in it has this machine."
    " Run agent3 as another user."
)
"""What a pool says once, and the doctor."""

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
    of public keys whose certificates it believes (see ``Overrides``). A page that takes more than ``page_bytes`` is
    ended while it runs, and the largest one where all together take more than ``pages_bytes``.
    """

    def __init__(
        self,
        *,
        headless: bool = True,
        keys: tuple[str, ...] = (),
        page_bytes: int = _PAGE_BYTES,
        pages_bytes: int = _PAGES_BYTES,
    ):
        self._headless = headless
        self._keys = keys
        self._pages_bytes = pages_bytes
        self._ended = float("-inf")
        self.page_bytes = page_bytes
        """What one page may take."""
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
        await asyncio.to_thread(sweep_left)
        async with AsyncExitStack() as stack:
            left = Leavings(Path(tempfile.mkdtemp(prefix=ARTIFACTS)))
            stack.push_async_callback(left.sweep)
            driver = await _driver()
            stack.push_async_callback(_bounded, driver.stop)
            self._browser = await self._launch(driver, found, left.artifacts)
            stack.push_async_callback(_bounded, self._browser.close)
            # Made again when there is something to put in it; until then, not even our own kill -9 leaves it behind.
            removed(left.artifacts)
            try:
                left.found(await _profile(self._browser))
            except playwright().Error as error:  # killed in its first moment
                raise _gone(error) from None
            self.started = self._measured = time.monotonic()
            watching = asyncio.create_task(self._watch())
            stack.push_async_callback(_ended, watching)
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

    @property
    def culled(self) -> bool:
        """Whether a page was ended for its memory a moment ago."""
        return time.monotonic() - self._ended < _BLAME_SECONDS

    async def check(self) -> bool:
        """Whether it answers; one that does not is not alive from then on."""
        if self.alive and not await self.processes():
            self._lost = True
        return self.alive

    async def processes(self) -> list[int]:
        """The ids of its processes, the browser's own first; none if it is gone."""
        return [pid for pid, _ in await self._kinds()]

    async def _kinds(self) -> list[tuple[int, str]]:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                talk = await self._running().new_browser_cdp_session()
                found = (await talk.send("SystemInfo.getProcessInfo"))["processInfo"]
                await talk.detach()
        except (TimeoutError, Unavailable, playwright().Error):
            return []
        kinds = [(int(one["id"]), str(one["type"])) for one in found]
        return sorted(kinds, key=lambda one: one[1] != "browser")

    async def measure(self) -> int:
        """Its memory in bytes, over all its processes and the driver's; 0 where this system does not tell."""
        self._measured = time.monotonic()
        self.bytes = await asyncio.to_thread(memory_of, _with_driver(await self.processes()))
        return self.bytes

    async def _watch(self) -> None:
        """While pages are open: how much each takes. Between two visits it would be too late to look."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._browser is not None and self._browser.contexts:
                renderers = [pid for pid, kind in await self._kinds() if kind == "renderer"]
                await self._cull({pid: memory.own_bytes(pid) for pid in renderers})

    async def _cull(self, sizes: dict[int, int]) -> None:
        for pid in memory.too_heavy(sizes, self.page_bytes, self._pages_bytes):
            before, self._ended = self._ended, time.monotonic()  # first: the page may be told before this returns
            if memory.end_renderer(pid):
                logger.warning("a page took %d MB of memory and was ended", sizes[pid] // 1_000_000)
            else:
                self._ended = before

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
                chromium_sandbox=not is_root(),
                args=[*FLAGS, *pins],
                artifacts_dir=str(artifacts),
                handle_sigint=False,  # Ctrl-C is ours: the driver would take the browser away before we have closed it
                proxy={"server": _NOWHERE, "bypass": _BYPASS},
                timeout=_LAUNCH_SECONDS * 1000,
            )
        except playwright().Error as error:
            raise SetupError(
                f"{found.path} did not start as a browser: {error.message.splitlines()[0]} "
                "Run it by hand with --headless --version, or name another one in AGENT3_BROWSER."
            ) from error


def _with_driver(processes: list[int]) -> list[int]:
    """Also what stands between the browser and us: the driver, which keeps what we say to each other."""
    between: list[int] = []
    above = memory.parent_of(processes[0]) if processes else None
    while above is not None and above > 1 and above != os.getpid():
        between.append(above)
        above = memory.parent_of(above)
    # Without us at its end it is the line of others: a driver that died has left its browser to them.
    return [*processes, *between] if above == os.getpid() else processes


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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


async def _driver() -> Playwright:
    try:
        manager = playwright().async_playwright()
        driver: Playwright = await manager.start()
    except MissingExtra:
        raise
    except Exception as error:  # noqa: BLE001 - a driver that dies at its start is told by an error without a type
        raise _gone(error) from None
    _hear_of_its_end(manager)
    return driver


def _hear_of_its_end(manager: Any) -> None:
    """Playwright leaves the error of a driver that dies in a future that it never looks at again; asyncio complains.

    The calls in flight fail by themselves, and those are heard. The future has no public name: where it is called
    otherwise, the complaint is all that comes of it.
    """
    transport = getattr(getattr(manager, "_client", None), "_transport", None)
    end = getattr(transport, "on_error_future", None)
    if isinstance(end, asyncio.Future):
        end.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def is_root() -> bool:
    """Chromium's own sandbox cannot be set up by root; for everyone else it stays on."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
