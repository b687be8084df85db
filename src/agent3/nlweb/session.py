"""A browser with one page behind its guarded proxy: the asynchronous core under the executor.

It starts and ends the browser, runs steps on the page, and translates what goes wrong into the house's errors. This is
the one place that loads Playwright. It knows nothing of threads, names of actions or parameters.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    SecurityError,
    SetupError,
    TargetError,
    Unavailable,
)
from agent3.nlweb import browsers
from agent3.nlweb.parameters import describe
from agent3.nlweb.proxy import GuardedProxy
from agent3.nlweb.sandbox import Guard, NLWebSandbox, Overrides, Resolver
from agent3.nlweb.sdk import playwright
from agent3.nlweb.steps import STEPS, go, inside

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Playwright

__all__ = ["FLAGS", "Session", "Timeouts"]

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
)
_LAUNCH_SECONDS = 30.0
_CLOSE_SECONDS = 10.0
# Beyond a step's own time, for what Playwright does without a limit of its own, such as an evaluation.
_MARGIN = 2.0
_SWEEPS = 20
_PROFILE = re.compile(r"--user-data-dir=(/.*?/playwright_\w+-\w+)")
_LOST = re.compile(r"has been closed|[Cc]rashed|Connection closed|Browser closed")
_MOVED = re.compile(r"Execution context was destroyed|because of a navigation")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_NET = re.compile(r"net::(ERR_\w+)")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a step may take where it does not say so itself."""

    step: float = 5.0
    navigation: float = 15.0
    extraction: float = 2.0
    optional: float = 1.0
    """A step that may fail, such as closing a banner that is often not there."""
    sequence: float = 60.0
    """All steps of an action together."""

    def of(self, action: NLWebAction) -> float:
        """The time of one step."""
        if action.timeout is not None:
            return action.timeout
        if action.optional:
            return self.optional
        kinds = {ActionType.NAVIGATE: self.navigation, ActionType.EXTRACT: self.extraction}
        return kinds.get(action.action_type, self.step)


class Session:
    """One browser, one context, one page. It belongs to the event loop that opened it.

    ``aclose`` ends the browser and everything it left behind, also after a failure and if called twice.
    """

    def __init__(
        self,
        interface: NLWebInterface,
        sandbox: NLWebSandbox,
        *,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
        timeouts: Timeouts | None = None,
        uploads: Path | None = None,
    ):
        self._interface = interface
        self._sandbox = sandbox
        self._overrides = overrides or Overrides.read()
        self._uploads = uploads
        self._timeouts = timeouts or Timeouts()
        guard = Guard(sandbox, base_url=interface.base_url, resolver=resolver, overrides=self._overrides)
        self.proxy = GuardedProxy(guard.admit)
        self._stack = AsyncExitStack()
        self._browser: Browser | None = None
        self._page: Page | None = None

    @property
    def alive(self) -> bool:
        """Whether the browser is there and answers."""
        return self._browser is not None and self._browser.is_connected()

    @property
    def page(self) -> Page:
        """The page, while the browser runs."""
        if self._page is None:
            raise SetupError(f"The browser of {self._interface.name!r} is not running. Call start_browser() first.")
        return self._page

    async def open(self, *, headless: bool = True, state: Any = None) -> None:
        """Start proxy, browser and page, with the cookies of ``state``; if one fails, nothing stays behind."""
        async with AsyncExitStack() as stack:
            server = await self.proxy.start()
            stack.push_async_callback(self.proxy.aclose)
            profiles: list[Path] = []
            stack.push_async_callback(_sweep, profiles)
            driver = await playwright().async_playwright().start()
            stack.push_async_callback(_bounded, driver.stop)
            self._browser = await self._launch(driver, server, headless)
            stack.push_async_callback(_bounded, self._browser.close)
            profiles += await _profile(self._browser)
            context = await self._browser.new_context(
                accept_downloads=False, service_workers="block", storage_state=state
            )
            self._page = await context.new_page()
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """End page, browser, driver and proxy, in this order."""
        self._page = self._browser = None
        await self._stack.aclose()

    async def state(self) -> Any:
        """Cookies and local storage, for the session that follows this one."""
        return await self.page.context.storage_state()

    async def perform(self, action: NLWebAction, label: str = "", limit: float = math.inf) -> Any:
        """Run one filled step; what it gives, or None. ``label`` names it in errors; ``limit`` is the most it may take.

        CallTimeout if it took too long, SecurityError if it, or where the page went, is not allowed, and another
        TargetError for what the page or browser did. An optional step gives None instead of a TargetError.
        """
        label = label or describe(action)
        seconds = min(self._timeouts.of(action), limit)
        refusals = self.proxy.refusals
        try:
            async with asyncio.timeout(seconds + _MARGIN):
                return await self._perform(self._allowed(action), seconds)
        except (TimeoutError, playwright().TimeoutError) as error:
            failure: Agent3Error = error if isinstance(error, CallTimeout) else _too_slow(action, label, seconds)
        except playwright().Error as error:
            failure = self._translated(error, label, refusals)
        except (SecurityError, TargetError) as error:
            failure = error
        failure = self._outside() or failure
        if isinstance(failure, SecurityError | Unavailable):
            await self._retreat()
        if action.optional and isinstance(failure, TargetError) and self.alive:
            return None
        raise failure from None

    async def _perform(self, action: NLWebAction, seconds: float) -> Any:
        end = time.monotonic() + seconds
        try:
            result = await STEPS[action.action_type](self.page, action, _left(end))
        except playwright().Error as error:
            # An extraction that meets the page on its way to the next one reads that one instead.
            if action.action_type is not ActionType.EXTRACT or not _MOVED.search(error.message):
                raise
            result = await STEPS[action.action_type](self.page, action, _left(end))
        if action.wait_for:
            await self.page.locator(action.wait_for).first.wait_for(state="visible", timeout=_left(end))
        if outside := self._outside():
            raise outside
        return result

    def _allowed(self, action: NLWebAction) -> NLWebAction:
        """The step as it may run: addresses made whole and judged, files looked for where they may be."""
        if action.action_type is ActionType.NAVIGATE:
            value = action.value or ""
            url = value if _SCHEME.match(value) else urljoin(self._interface.base_url, value)
            self._sandbox.require(url)
            return action.model_copy(update={"value": url})
        if action.action_type is ActionType.UPLOAD:
            return action.model_copy(update={"value": str(inside(self._uploads, action.value or ""))})
        return action

    def _outside(self) -> SecurityError | None:
        """A refused redirect over http ends on the proxy's own answer: the page is outside then, with nothing in it."""
        url = self._page.url if self._page else ""
        reason = self._sandbox.objection(url) if url.startswith(("http:", "https:")) else None
        return SecurityError(f"Navigation to {url} blocked", data={"reason": reason}) if reason else None

    async def _retreat(self) -> None:
        """Leave a page that is none: a refused address, or the browser's own notice of an error still on its way."""
        with suppress(TimeoutError, playwright().Error):
            await go(self.page, "about:blank", _MARGIN * 1000)

    def _translated(self, error: Any, label: str, refusals: int) -> Agent3Error:
        text = str(error.message).splitlines()[0]
        if self.proxy.refusals > refusals and _NET.search(text):
            where = self.proxy.refused[-1]
            return SecurityError(f"Navigation to {where} blocked", data={"reason": "not allowed", "step": label})
        if found := _NET.search(text):
            return Unavailable(f"Step {label}: {self._interface.base_url} could not be reached ({found[1]}).")
        if not self.alive or _LOST.search(text):
            return Unavailable(f"Step {label}: the browser went away. Start it again and repeat the action.")
        return TargetError(f"Step {label} failed: {text}")

    async def _launch(self, driver: Playwright, server: str, headless: bool) -> Browser:
        found = browsers.require()
        keys = self._overrides.keys
        pins = [f"--ignore-certificate-errors-spki-list={','.join(keys)}"] if keys else []
        try:
            return await driver.chromium.launch(
                executable_path=str(found.path),
                headless=headless,
                chromium_sandbox=not _is_root(),
                args=[*FLAGS, *pins],
                # Without <-loopback> Chromium would go to this machine's own addresses past the proxy.
                proxy={"server": server, "bypass": "<-loopback>"},
                timeout=_LAUNCH_SECONDS * 1000,
            )
        except playwright().Error as error:
            raise SetupError(
                f"{found.path} did not start as a browser: {error.message.splitlines()[0]} "
                "Run it by hand with --headless --version, or name another one in AGENT3_BROWSER."
            ) from error


def _left(end: float) -> float:
    """Milliseconds until then; never 0, which means without end to Playwright."""
    return max((end - time.monotonic()) * 1000, 1.0)


def _too_slow(action: NLWebAction, label: str, seconds: float) -> CallTimeout:
    return CallTimeout(
        f"Step {label} was not done within {seconds:g} s. See whether its selector still fits the page, or give the "
        "step a longer timeout.",
        data={"step": label, "selector": action.selector, "action_type": action.action_type.value},
    )


async def _bounded(close: Any) -> None:
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


async def _sweep(profiles: list[Path]) -> None:
    """Remove what is left of a profile. The driver does so too, but a helper of a dying browser may write once more."""
    for profile in profiles:
        for _ in range(_SWEEPS):
            if _removed(profile):
                break
            await asyncio.sleep(0.05)


def _removed(profile: Path) -> bool:
    # Here and not in a thread: at the exit of the interpreter there are no more threads to be had.
    shutil.rmtree(profile, ignore_errors=True)
    return not profile.exists()


def _is_root() -> bool:
    """Chromium's own sandbox cannot be set up by root; for everyone else it stays on."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
