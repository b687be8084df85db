"""One Chromium with many contexts, each behind a guarded proxy of its own.

It starts and stops the browser with its processes and profile, and knows when the browser should be replaced: its age,
how many contexts it has had, its memory, and whether it has become slow. It does not know interfaces, steps or whose
context is open. Memory is read from ``/proc``; on a system without it nothing is known, and nothing is killed.
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
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.errors import MissingExtra, SetupError, Unavailable
from agent3.observe.logs import get as logger
from agent3.protocols.nlweb.browser import installation
from agent3.protocols.nlweb.browser.profiles import ARTIFACTS, BrowserFolders, remove_abandoned, remove_folder
from agent3.protocols.nlweb.browser.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright
import signal
from collections.abc import Iterable

__all__ = ["FLAGS", "UNPROTECTED", "Chrome", "Wear", "close_in_time", "find_oversized", "find_parent", "is_root",
           "kill_renderer", "own_bytes", "total_bytes"]  # fmt: skip

log = logger("nlweb")

# Playwright sets most of these itself. They are repeated because the sandbox depends on them.
FLAGS = (
    "--disable-quic",  # UDP would bypass the proxy
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # The second lock: the browser can resolve nothing but its proxy, so that no query leaves for a name server.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--enable-features=WebMCP",  # tools that pages offer
)
# Traffic outside any context, such as the browser's own, goes to a port on which only root could listen.
_NOWHERE = "http://127.0.0.1:9"
# Without <-loopback> Chromium would reach addresses of this machine directly, past the proxy.
_BYPASS = "<-loopback>"
_LAUNCH_SECONDS = 30.0
_OPEN_SECONDS = 15.0
_CLOSE_SECONDS = 10.0
_MEASURE_SECONDS = 10.0
_SAMPLES = 5
"""Context openings that are compared to find out whether the browser has become slow."""
_PROFILE = re.compile(r"--user-data-dir=(/.*?/playwright_\w+-\w+)")
_WATCH_SECONDS = 1.0
_PAGE_BYTES = 800_000_000
_PAGES_BYTES = 1_500_000_000
_BLAME_SECONDS = 3.0
"""For so long after a page was killed, a crashed page is taken to be that one."""

UNPROTECTED = (
    "The browser runs as root, and therefore without Chromium's sandbox: a page that exploits a flaw in "
    "Chromium controls this machine. Run agent3 as another user."
)
"""Logged once by a pool, and reported by ``agent3 doctor``."""

Close = Callable[[], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Wear:
    """Limits after which a browser is replaced; 0 means no limit."""

    seconds: float = 300.0
    contexts: int = 500
    bytes: int = 1_500_000_000
    slowdown: float = 4.0
    """How many times slower than at first a context may open, once opening takes ``slow`` seconds."""
    slow: float = 1.0


class Chrome:
    """A browser. It belongs to the event loop that started it.

    ``aclose`` ends it and removes everything it left, also after it was killed and if called twice. ``keys`` are
    digests of public keys whose certificates it accepts (see ``Overrides``). A page that takes more than ``page_bytes``
    is killed while it runs, and so is the largest page when all together take more than ``pages_bytes``.
    """

    def __init__(
        self,
        *,
        headless: bool = True,
        keys: tuple[str, ...] = (),
        page_bytes: int = _PAGE_BYTES,
        pages_bytes: int = _PAGES_BYTES,
    ):
        self.page_bytes = page_bytes
        self.started = 0.0
        """``time.monotonic()`` at its start."""
        self.contexts = 0
        """How many it has had."""
        self.bytes = 0
        """Its memory when last measured."""
        self._headless = headless
        self._keys = keys
        self._pages_bytes = pages_bytes
        self._stack = AsyncExitStack()
        self._browser: Browser | None = None
        self._closing = asyncio.Lock()
        self._lost = False
        self._first_openings: list[float] = []
        self._last_openings: deque[float] = deque(maxlen=_SAMPLES)
        self._measured = 0.0
        self._page_killed = float("-inf")

    @property
    def alive(self) -> bool:
        """Whether the browser is connected and has answered so far."""
        return self._browser is not None and self._browser.is_connected() and not self._lost

    @property
    def has_killed_page(self) -> bool:
        """Whether a page was killed for its memory a moment ago."""
        return time.monotonic() - self._page_killed < _BLAME_SECONDS

    async def start(self) -> None:
        """Start it; if that fails, nothing stays behind.

        SetupError without a browser on this machine, MissingExtra without Playwright.
        """
        found = installation.require()
        await asyncio.to_thread(remove_abandoned)
        async with AsyncExitStack() as stack:
            folders = BrowserFolders(Path(tempfile.mkdtemp(prefix=ARTIFACTS)))
            stack.push_async_callback(folders.remove)
            driver = await _start_driver()
            stack.push_async_callback(close_in_time, driver.stop, _CLOSE_SECONDS)
            pins = [f"--ignore-certificate-errors-spki-list={','.join(self._keys)}"] if self._keys else []
            try:
                browser = await driver.chromium.launch(
                    executable_path=str(found.path),
                    headless=self._headless,
                    chromium_sandbox=not is_root(),
                    args=[*FLAGS, *pins],
                    artifacts_dir=str(folders.artifacts),
                    handle_sigint=False,  # on Ctrl-C the driver would kill the browser before we have closed it
                    proxy={"server": _NOWHERE, "bypass": _BYPASS},
                    timeout=_LAUNCH_SECONDS * 1000,
                )
            except playwright().Error as error:
                raise SetupError(
                    f"{found.path} did not start as a browser: {error.message.splitlines()[0]} "
                    "Run it by hand with --headless --version, or name another one in AGENT3_BROWSER."
                ) from error
            self._browser = browser
            stack.push_async_callback(close_in_time, browser.close, _CLOSE_SECONDS)
            # Playwright makes the folder again when it needs it. Until then, not even kill -9 of us leaves it behind.
            remove_folder(folders.artifacts)
            try:
                # Only the browser knows which profile folder Playwright made for it.
                session = await browser.new_browser_cdp_session()
                command_line = (await session.send("SystemInfo.getInfo"))["commandLine"]
                await session.detach()
            except playwright().Error as error:  # killed while it started
                raise _browser_gone(error) from None
            folders.claim([Path(profile) for profile in _PROFILE.findall(command_line)])
            self.started = self._measured = time.monotonic()
            watcher = asyncio.create_task(self._watch_memory())

            async def stop_watching() -> None:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)

            stack.push_async_callback(stop_watching)
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """Close the browser and the driver and remove the profile, in this order."""
        async with self._closing:
            self._browser = None
            await self._stack.aclose()

    async def context(self, proxy: str, *, state: Any = None) -> BrowserContext:
        """A new context that reaches the web only through that proxy, with the cookies of ``state``.

        Unavailable, and not sent, if the browser is gone or does not answer.
        """
        if self._browser is None:
            raise _browser_gone(None)
        began = time.monotonic()
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                context: BrowserContext = await self._browser.new_context(
                    accept_downloads=False,
                    service_workers="block",
                    storage_state=state,
                    proxy={"server": proxy, "bypass": _BYPASS},
                )
        except (TimeoutError, playwright().Error) as error:
            # The driver may have died instead: Playwright reports only the end of the browser.
            self._lost = True
            raise _browser_gone(error) from None
        self.contexts += 1
        self.note_opening(time.monotonic() - began)
        return context

    def note_opening(self, seconds: float) -> None:
        """Remember how long a context took to open; ``find_wear`` compares the latest with the first."""
        if len(self._first_openings) < _SAMPLES:
            self._first_openings.append(seconds)
        self._last_openings.append(seconds)

    async def find_wear(self, wear: Wear) -> str | None:
        """Why the browser should be replaced, or None. Its memory is measured every few seconds only."""
        if not self.alive:
            return "died"
        now = time.monotonic()
        if wear.seconds and now - self.started > wear.seconds:
            return "age"
        if wear.contexts and self.contexts >= wear.contexts:
            return "count"
        if wear.bytes and now - self._measured > _MEASURE_SECONDS:
            await self.measure_memory()
        if wear.bytes and self.bytes > wear.bytes:
            return "memory"
        if wear.slowdown and self.contexts >= 2 * _SAMPLES:
            usual = statistics.median(self._last_openings)
            if usual > wear.slow and usual > wear.slowdown * statistics.median(self._first_openings):
                return "slowdown"
        return None

    async def is_responding(self) -> bool:
        """Whether it answers; if not, it is not ``alive`` from then on."""
        if self.alive and not await self.list_processes():
            self._lost = True
        return self.alive

    async def list_processes(self, kind: str = "") -> list[int]:
        """The ids of its processes, or of those of one kind, the main process first; none if it is gone."""
        if self._browser is None:
            return []
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                session = await self._browser.new_browser_cdp_session()
                processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
                await session.detach()
        except (TimeoutError, playwright().Error):
            return []
        processes.sort(key=lambda process: process["type"] != "browser")
        return [int(process["id"]) for process in processes if kind in ("", process["type"])]

    async def measure_memory(self) -> int:
        """Its memory in bytes, over all its processes and the driver's; 0 if this system does not tell."""
        self._measured = time.monotonic()
        processes = await self.list_processes()
        # The driver between the browser and us counts too: it buffers what we say to each other.
        drivers: list[int] = []
        above = find_parent(processes[0]) if processes else None
        while above is not None and above > 1 and above != os.getpid():
            drivers.append(above)
            above = find_parent(above)
        if above != os.getpid():  # the driver died, and the browser was adopted by a process that is not ours
            drivers.clear()
        self.bytes = await asyncio.to_thread(total_bytes, [*processes, *drivers])
        return self.bytes

    async def _watch_memory(self) -> None:
        """Kill pages that take too much, while they run: between two visits it would be too late."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._browser is None or not self._browser.contexts:
                continue
            sizes = {pid: own_bytes(pid) for pid in await self.list_processes("renderer")}
            for pid in find_oversized(sizes, self.page_bytes, self._pages_bytes):
                # Set first: the page's crash event may arrive before kill_renderer returns.
                before, self._page_killed = self._page_killed, time.monotonic()
                if kill_renderer(pid):
                    log.warning("a page took %d MB of memory and was killed", sizes[pid] // 1_000_000)
                else:
                    self._page_killed = before


def is_root() -> bool:
    """Whether this process is root, for which Chromium's own sandbox cannot be set up."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


async def close_in_time(close: Close, seconds: float) -> None:
    """Close something of Playwright's, but do not wait forever; what is gone already is closed."""
    with suppress(TimeoutError, playwright().Error):  # at the latest it ends with the driver, which ends with us
        async with asyncio.timeout(seconds):
            await close()


async def _start_driver() -> Playwright:
    try:
        manager = playwright().async_playwright()
        driver: Playwright = await manager.start()
    except MissingExtra:
        raise
    except Exception as error:  # noqa: BLE001 - a driver that dies at its start raises an untyped error
        raise _browser_gone(error) from None
    # Playwright stores the error of a dying driver in a future that it never awaits, and asyncio would complain about
    # it. The calls in flight fail by themselves. The future has no public name; if it is renamed, only the complaint
    # comes back.
    transport = getattr(getattr(manager, "_client", None), "_transport", None)
    failure = getattr(transport, "on_error_future", None)
    if isinstance(failure, asyncio.Future):
        failure.add_done_callback(lambda done: done.cancelled() or done.exception())
    return driver


def _browser_gone(error: BaseException | None) -> Unavailable:
    reason = f": {str(error).splitlines()[0]}" if error is not None and str(error) else ""
    gone = Unavailable(f"The browser ended before the first step{reason}. Start it again and repeat the action.")
    gone.sent = False
    return gone


_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)


def total_bytes(pids: Iterable[int]) -> int:
    """The bytes that some processes take together, with shared pages counted once; 0 if unknown."""
    # Pss splits each shared page among its users. Summing Rss would count Chromium's code once for every process.
    found = (_PSS.search(_read(pid, "smaps_rollup")) for pid in pids)
    return sum(int(match[1]) * 1024 for match in found if match)


def own_bytes(pid: int) -> int:
    """The bytes that a process filled itself. Cheaper than ``total_bytes``, and without the shared program code."""
    return sum(int(kilobytes) for kilobytes in _OWN.findall(_read(pid, "status"))) * 1024


def find_parent(pid: int) -> int | None:
    """The process that started another, or None if unknown."""
    match = _PARENT.search(_read(pid, "status"))
    return int(match[1]) if match else None


def find_oversized(sizes: dict[int, int], page_limit: int, total_limit: int) -> list[int]:
    """The page processes to kill: those over ``page_limit``, or the largest if all together exceed ``total_limit``.

    A page below a quarter of ``page_limit`` is never killed for the total: then there are only many small ones.
    """
    oversized = [pid for pid, size in sizes.items() if size > page_limit]
    if not oversized and sum(sizes.values()) > total_limit:
        largest = max(sizes, key=sizes.__getitem__)
        oversized = [largest] if sizes[largest] > page_limit // 4 else []
    return oversized


def kill_renderer(pid: int) -> bool:
    """Kill the process of a page. False if it is not (or no longer) one: pids are reused."""
    if "--type=renderer" not in _read(pid, "cmdline"):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
