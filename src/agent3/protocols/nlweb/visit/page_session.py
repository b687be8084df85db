"""A page in a context of its own, behind its guarded proxy: the asynchronous core under executor and connector.

It runs steps on the page, keeps their time, counts them, and translates what goes wrong into our errors. It knows
nothing of threads, of callers, or of where cookies are stored.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import msgspec

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    ElementMissing,
    MalformedResponse,
    Rejected,
    SecurityError,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.llm.port import LLM
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.browser.chromium import Chrome, close_in_time
from agent3.protocols.nlweb.browser.proxy import GuardedProxy
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, Resolver, host_and_port
from agent3.protocols.nlweb.browser.sdk import playwright, well_formed
from agent3.protocols.nlweb.steps import page_reading, verifying, workflow
from agent3.protocols.nlweb.steps.actions import STEPS, go, inside
from agent3.protocols.nlweb.steps.locator import Awaited, Finder, SelectorFinder
from agent3.protocols.nlweb.steps.parameters import describe
from agent3.protocols.nlweb.steps.run_context import RunContext, Secrets
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.steps.waits import ms_left
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.throttle import Pace, Throttle, site_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Response

__all__ = ["READING", "TARGETS", "OnStep", "OnWaiting", "Session", "Timeouts", "Tools", "Watch", "watch_steps"]

log = logger("nlweb")

Watch = Callable[[ActionType, str, float], None]
"""Called after every step with its kind, how it ended, and its seconds."""
OnStep = Callable[[str, int, int], None]
"""Called before a step with its label, its number, and the number of steps."""
OnWaiting = Callable[[bool], None]
"""Called with True when the site was asked for a page, and with False when it came or the wait is ours."""

READING = frozenset(map(ActionType, "navigate extract wait scroll screenshot dialog back close".split()))
"""Steps that change nothing: a page that is requested twice is the same page (GET is safe, RFC 9110, 9.2.1)."""
_ON_ONE_ELEMENT = frozenset(map(ActionType, "click type select check uncheck hover press upload".split()))
"""Steps that do nothing before their one element is found."""

TARGETS = {ActionType.NAVIGATE: 3.0, ActionType.EXTRACT: 2.0}
"""RT-014's seconds for each kind of step; every other kind has one."""

_MARGIN = 2.0
"""Beyond a step's own time, for what Playwright does without a limit of its own, such as an evaluation."""
_MODEL_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_LOST = re.compile(r"has been closed|[Cc]rashed|Connection closed|Browser closed")
_MOVED = re.compile(r"Execution context was destroyed|because of a navigation")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_NET = re.compile(r"net::(ERR_\w+)")


@dataclass(frozen=True, slots=True)
class Tools:
    """What the steps may use beside the page: a finder of elements, a language model, secrets, and snapshots."""

    finder: Finder | None = None
    llm: LLM | None = None
    secrets: Secrets | None = None
    snapshots: Snapshots | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a step may take if it does not say so itself."""

    step: float = 5.0
    navigation: float = 15.0
    extraction: float = 2.0
    optional: float = 1.0
    """A step that may fail, such as closing a banner that is often not there."""
    sequence: float = 60.0
    """All steps of an action together."""

    def of(self, action: NLWebAction) -> float:
        if action.timeout is not None:
            return action.timeout
        if action.optional:
            return self.optional
        if action.next or (action.action_type is ActionType.SCROLL and action.value == "end"):
            return self.sequence  # many pages in one step
        kinds = {ActionType.NAVIGATE: self.navigation, ActionType.EXTRACT: self.extraction}
        return kinds.get(action.action_type, self.step)


class Session:
    """One context with its page. It belongs to the event loop that opened it.

    Without ``chrome`` it starts a browser of its own and closes it with itself. ``aclose`` leaves nothing behind, also
    after a failure and if called twice. ``throttle`` delays its pages for the website's sake, with the ``Crawl-delay``
    that ``robots`` reads. ``watch`` is called after each step, ``on_step`` before it.
    """

    def __init__(
        self,
        interface: NLWebInterface,
        sandbox: NLWebSandbox,
        *,
        chrome: Chrome | None = None,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
        timeouts: Timeouts | None = None,
        uploads: Path | None = None,
        throttle: Throttle | None = None,
        robots: Robots | None = None,
        watch: Watch | None = None,
        on_step: OnStep | None = None,
        on_waiting: OnWaiting | None = None,
        tools: Tools | None = None,
    ):
        self._interface = interface
        self._sandbox = sandbox
        self._chrome = chrome
        self._overrides = overrides or Overrides.read()
        self._uploads = uploads
        self._timeouts = timeouts or Timeouts()
        self._throttle = throttle
        self._robots = robots or Robots(resolver=resolver, overrides=self._overrides)
        self._pace = Pace.of(interface)
        self._knows_delay = self._pace.seconds == 0  # a site without a pace is not asked for one
        self._site = site_of(interface.base_url)
        self._watch = watch
        self._on_step = on_step
        self._on_waiting = on_waiting
        self._tools = tools or Tools()
        guard = Guard(sandbox, base_url=interface.base_url, resolver=resolver, overrides=self._overrides)
        self.proxy = GuardedProxy(guard.admit)
        self._stack = AsyncExitStack()
        self._ctx: RunContext | None = None
        self._awaited: str | None = None
        """The selector that the running step waits for."""
        self.crashed = False
        """Whether the page died, though the browser may live."""
        self.oversized = False
        """Whether the page was killed for its memory: another attempt would end the same."""
        self.hung = False
        """Whether the page no longer answers. The next action that begins with a navigation gets another page."""
        self.touched = False
        """Whether a step has run that does more than read."""
        self.tells = False
        """Whether what the page says to a press is to be told: of an action that reads nothing."""
        self.login_selector: str | None = None
        """What a page shows to visitors who are not logged in: a navigation that ends there is refused."""

    @property
    def alive(self) -> bool:
        """Whether the session is open, and neither its browser nor its page has died."""
        return self._ctx is not None and self._chrome is not None and self._chrome.alive and not self.crashed

    @property
    def chrome(self) -> Chrome:
        """The browser, while the session is open."""
        if self._chrome is None or self._ctx is None:
            raise self._not_open()
        return self._chrome

    @property
    def page(self) -> Page:
        """The page in front, while the session is open."""
        return self.ctx.page

    @property
    def ctx(self) -> RunContext:
        """The page with all that the steps share, while the session is open."""
        if self._ctx is None:
            raise self._not_open()
        return self._ctx

    async def open(self, *, headless: bool = True, state: Any = None) -> None:
        """Start proxy, browser and page, with the cookies of ``state``; if one fails, nothing stays behind."""
        async with AsyncExitStack() as stack:
            server = await self.proxy.start()
            stack.push_async_callback(self.proxy.aclose)
            if self._chrome is None:
                stack.callback(setattr, self, "_chrome", None)
                self._chrome = Chrome(headless=headless, keys=self._overrides.keys)
                await self._chrome.start()
                stack.push_async_callback(self._chrome.aclose)
                context = await self._chrome.context(server, state=state)
            else:
                context = await self._chrome.context(server, state=state)
                stack.push_async_callback(close_in_time, context.close, _CLOSE_SECONDS)
            page = await self._new_page(context)
            context.on("response", self.on_response)
            self._ctx = RunContext(
                page,
                self._interface,
                self._tools.finder or SelectorFinder(),
                self._uploads,
                llm=self._tools.llm,
                secrets=self._tools.secrets,
                snapshots=self._tools.snapshots or Snapshots(),
            )
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """Close page, context and proxy, and the browser if it is our own, in this order."""
        self._ctx = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def state(self) -> Any:
        """Cookies and local storage for the next session; Unavailable if the browser is gone."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                return well_formed(await self.page.context.storage_state())
        except (TimeoutError, playwright().Error):
            raise Unavailable("The browser ended, and its cookies are lost.") from None

    async def run(
        self, name: str, steps: Sequence[NLWebAction], parameters: Mapping[str, Any], *, seconds: float | None = None
    ) -> Any:
        """Run the steps of an action with its parameters: None, one result, or a list of several.

        Every step is checked before the first one runs. CallTimeout if all together take longer than ``seconds``
        (``timeouts.sequence`` by default); otherwise as ``perform``, after the retries of ``workflow``.
        """
        if self.hung and steps and steps[0].action_type is ActionType.NAVIGATE:
            # A page that hangs in a script of its own would not even navigate away.
            await self.ctx.renew(await self._new_page(self.page.context))
            self.hung = False
        return await workflow.run(
            self.ctx,
            steps,
            parameters,
            self.perform,
            name=name,
            seconds=self._timeouts.sequence if seconds is None else seconds,
            on_step=self._on_step,
        )

    async def single(self, action: NLWebAction) -> Any:
        """Run one step as it stands, as ``perform``; a failure leaves a snapshot of the page."""
        return await workflow.single(self.ctx, action, self.perform, self._timeouts.sequence)

    async def perform(self, action: NLWebAction, label: str = "", limit: float = math.inf) -> Any:
        """Run one filled step; its result or None. ``label`` names it in errors; ``limit`` is the most it may take.

        CallTimeout if it took too long, SecurityError if it, or where the page went, is not allowed, and another
        TargetError for what the page or browser did. An optional step returns None instead of a TargetError.
        """
        start = time.perf_counter()
        status = "error"
        try:
            self.ctx.label = label or describe(action)
            result = well_formed(await self._attempt(action, self.ctx.label, limit))
            status = "success"
        except CallTimeout:
            status = "timeout"
            raise
        except SecurityError:
            status = "blocked"
            raise
        finally:
            if self._watch is not None:
                self._watch(action.action_type, status, time.perf_counter() - start)
        return result

    # One step, and what may go wrong with it

    async def _attempt(self, action: NLWebAction, label: str, limit: float) -> Any:
        seconds = min(self._timeouts.of(action), limit)
        margin = _MARGIN
        if action.action_type is ActionType.EXTRACT and self.ctx.llm is not None:
            margin += _MODEL_SECONDS
        if verifying.judges(action):
            margin += verifying.SECONDS
        refusals, failures, touched = self.proxy.refusals, self.proxy.failures, self.touched
        failure: Agent3Error
        try:
            if action.action_type is ActionType.NAVIGATE:
                value = action.value or ""
                url = value if _SCHEME.match(value) else urljoin(self._interface.base_url, value)
                self._sandbox.require(url)
                action = action.model_copy(update={"value": url})
                if self._throttle is not None:
                    self._report_waiting(False)  # for our own pace, not for the site
                    if not self._knows_delay:
                        self._knows_delay = True
                        delay = await self._robots.crawl_delay(self._interface)
                        self._pace = replace(self._pace, seconds=max(self._pace.seconds, delay))
                    await self._throttle.wait_for_turn(self._site, self._pace)
                    self._report_waiting(True)
            elif action.action_type is ActionType.UPLOAD:
                action = action.model_copy(update={"value": str(inside(self._uploads, action.value or ""))})
            async with asyncio.timeout(seconds + margin):
                return await self._run_step(action, seconds)
        except (TimeoutError, playwright().TimeoutError) as error:
            failure = error if isinstance(error, CallTimeout) else self._explain_timeout(action, error, label, seconds)
            # An element that is missing was not touched, if the step does nothing before it is found.
            only_looked = self._awaited == action.selector and action.action_type in _ON_ONE_ELEMENT
            if isinstance(failure, ElementMissing) and only_looked and not action.popup:
                self.touched = touched
            try:
                async with asyncio.timeout(_MARGIN):
                    await self.page.evaluate("1")
            except TimeoutError:
                self.hung = True
            except playwright().Error:
                self.hung = False  # it is gone, which is another matter
            else:
                self.hung = False
        except msgspec.ValidationError:  # our scripts run in the page's world, and it may change what they return
            failure = MalformedResponse(f"Step {label}: the result does not match what was read from the page.")
        except playwright().Error as error:
            if self._chrome is not None and _LOST.search(error.message):
                await self._chrome.is_responding()
            failure = self._translate(str(error.message).splitlines()[0], label, refusals, failures)
        except (SecurityError, TargetError) as error:
            failure = self._unmask_proxy(error, refusals, failures)
        failure = self._find_outside() or failure
        if isinstance(failure, SecurityError | Unavailable):
            # Leave a page that is not one: a refused address, or the browser's error page that is still loading.
            with suppress(TimeoutError, SetupError, playwright().Error):
                await go(self.page, "about:blank", _MARGIN * 1000)
        if action.optional and isinstance(failure, TargetError) and self.alive:
            return None
        raise failure from None

    async def _run_step(self, action: NLWebAction, seconds: float) -> Any:
        end = time.monotonic() + seconds
        self.touched |= action.action_type not in READING
        self._awaited = action.selector
        if self.tells and action.verify in (None, "refusal", "none") and action.action_type in workflow.PRESSING:
            self.ctx.known = await page_reading.read_lines(self.ctx)
        denied = len(self.ctx.denied)
        try:
            step = STEPS[action.action_type]
            if verifying.judges(action):
                step = verifying.verified(step)
            result = await step(self.ctx, action, ms_left(end))
        except playwright().Error as error:
            # An extraction that meets the page on its way to the next one reads that one instead.
            if action.action_type is not ActionType.EXTRACT or not _MOVED.search(error.message):
                raise
            result = await STEPS[action.action_type](self.ctx, action, ms_left(end))
        if (asked := self.ctx.denied[denied:]) and action.action_type not in READING and not self.ctx.reads:
            what = self.ctx.label or action.action_type.value
            raise Rejected(f"Step {what}: {verifying.asked_in_vain(asked)}")
        if action.wait_for:
            where = await self.ctx.get_place(action, ms_left(end))
            awaited = Awaited(action.wait_for, action.frame or "", sure=not action.optional)
            self._awaited = action.wait_for
            await self.ctx.finder.appears(where, awaited, ms_left(end))
        if outside := self._find_outside():
            raise outside
        asks = self.login_selector if action.action_type is ActionType.NAVIGATE else None
        if asks is not None and await self.page.locator(asks).first.is_visible():
            raise TargetRefused(f"{self._interface.name} asks for a login: it does not accept the session.")
        return result

    def _find_outside(self) -> SecurityError | None:
        """A refused redirect over http ends on the proxy's own answer: an empty page at a forbidden address."""
        url = self._ctx.page.url if self._ctx else ""
        reason = self._sandbox.objection(url) if url.startswith(("http:", "https:")) else None
        return SecurityError(f"Navigation to {url[:200]} blocked", data={"reason": reason}) if reason else None

    def _explain_timeout(self, action: NLWebAction, error: Exception, label: str, seconds: float) -> CallTimeout:
        """Why a step was not done in its time: its element was never on the page, or it only took too long.

        Playwright's message says what a locator resolved to. Looking again now would not do: the page may have changed.
        """
        details = {"step": label, "selector": action.selector, "action_type": action.action_type.value}
        message = str(error) if isinstance(error, playwright().TimeoutError) else ""
        if self._awaited and "waiting for locator(" in message and "resolved to" not in message:
            return ElementMissing(
                f"Step {label} was not done within {seconds:g} s: {self._awaited!r} matches nothing on the "
                "page. Check the selector, or give the step a longer timeout.",
                data={**details, "selector": self._awaited},
            )
        return CallTimeout(
            f"Step {label} was not done within {seconds:g} s. Check its selector, or give the step a longer timeout.",
            data=details,
        )

    def _translate(self, text: str, label: str, refusals: int, failures: int) -> Agent3Error:
        """Our error for one of Playwright's, with what the proxy knows about it."""
        self.oversized |= "crashed" in text.lower() and self._chrome is not None and self._chrome.has_killed_page
        if self.oversized:
            return TargetError(f"Step {label}: the page used too much memory and was killed.")
        if self.proxy.refusals > refusals and _NET.search(text):
            return SecurityError(
                f"Navigation to {self.proxy.refused[-1]} blocked: this interface may not reach it or the "
                "address it resolves to",
                data={"reason": "not allowed", "step": label},
            )
        if "ERR_TUNNEL_CONNECTION_FAILED" in text and self.proxy.failures > failures:
            return self._unreachable(self.proxy.unreached[-1][0])
        if found := _NET.search(text):
            return Unavailable(f"Step {label}: {self._interface.base_url} could not be reached ({found[1]}).")
        if not self.alive or _LOST.search(text):
            return Unavailable(f"Step {label}: the browser ended. Start it again and repeat the action.")
        return TargetError(f"Step {label} failed: {text}")

    def _unmask_proxy(self, error: Agent3Error, refusals: int, failures: int) -> Agent3Error:
        """The proxy's own answers are not the site's: 403 for a refused address, 502 where nothing answers."""
        refused = isinstance(error, TargetRefused) and self.proxy.refusals > refusals
        unreached = isinstance(error, Unavailable) and self.proxy.failures > failures
        if not refused and not unreached:
            return error
        host, port = host_and_port(self.page.url)
        where = (f"{host}:{port}", f"[{host}]:{port}")
        if refused and self.proxy.refused[-1] in where:
            return SecurityError(
                f"Navigation to {self.page.url} blocked: its name resolves to an address that is not "
                "allowed. If the site is yours, allow it with AGENT3_HOSTS=host=address.",
                data={"reason": "its address is not allowed"},
            )
        if unreached and self.proxy.unreached[-1][0] in where:
            return self._unreachable(f"{host}:{port}")
        return error

    def _unreachable(self, where: str) -> Unavailable:
        """Nothing answered there. Before anything was done, the call counts as not sent."""
        failure = Unavailable(
            f"{where} cannot be reached: {self.proxy.unreached[-1][1]}. Check the address and whether the "
            "site is running.",
            data={"unreached": where},
        )
        failure.sent = self.touched
        return failure

    def _not_open(self) -> SetupError:
        return SetupError(f"The browser of {self._interface.name!r} is not running. Call start_browser() first.")

    # The page, and its pace

    async def _new_page(self, context: BrowserContext) -> Page:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                page = await context.new_page()
        except (TimeoutError, playwright().Error) as error:
            if self._chrome is not None:
                await self._chrome.is_responding()
            reason = (str(error) or "it does not answer").splitlines()[0]
            gone = Unavailable(f"The browser ended before the first step: {reason}")
            gone.sent = False
            raise gone from None

        def note_crash(_: Page) -> None:
            self.crashed = True
            self.oversized |= self._chrome is not None and self._chrome.has_killed_page

        page.on("crash", note_crash)
        return page

    def on_response(self, response: Response) -> None:
        """Count a page of the site, however it was requested. Other hosts and frames say nothing of the site."""
        if self._throttle is None or not response.request.is_navigation_request():
            return
        if site_of(response.url) != self._site:
            return
        try:
            if response.frame.parent_frame is not None:
                return
        except playwright().Error:
            pass  # a window that is just being opened has no frame yet
        self._report_waiting(False)
        self._throttle.note_page(self._site, self._pace)
        if response.status in (429, 503):
            self._throttle.note_overload(self._site, response.status, response.headers.get("retry-after"))

    def _report_waiting(self, waiting: bool) -> None:
        if self._on_waiting is not None:
            self._on_waiting(waiting)


def watch_steps(metrics: Metrics, latencies: MutableSequence[float]) -> Watch:
    """Count every step, keep the seconds of those that succeeded, and log those that miss RT-014's target."""

    def watch(kind: ActionType, status: str, seconds: float) -> None:
        metrics.nlweb_actions_executed.inc((kind.value, status))
        if status == "success":
            latencies.append(seconds)
        target = TARGETS.get(kind, 1.0)
        if seconds > target:
            metrics.missed_targets.inc((f"nlweb_{kind.value}",))
            log.warning("%s took %.2fs (target: %ss)", kind.value, seconds, target)

    return watch
