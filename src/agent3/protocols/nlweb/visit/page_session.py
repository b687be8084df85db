"""A page in a context of its own, behind its guarded proxy: the asynchronous core under executor and connector.

It runs steps on the page, keeps their time, counts them, and translates what goes wrong into the house's errors. It
knows nothing of threads, of who asked, or where cookies are kept.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
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
    SecurityError,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.llm.port import LLM
from agent3.observe import logs
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.browser.chromium import Chrome
from agent3.protocols.nlweb.browser.proxy import GuardedProxy
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, Resolver, place
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps import workflow
from agent3.protocols.nlweb.steps.actions import STEPS, go, inside
from agent3.protocols.nlweb.steps.locator import Awaited, Finder, Plain
from agent3.protocols.nlweb.steps.parameters import describe
from agent3.protocols.nlweb.steps.scene import Scene, Secrets
from agent3.protocols.nlweb.steps.wellformed import well_formed
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.snapshots import Snapshots
from agent3.protocols.nlweb.visit.throttle import Pace, Throttle, site_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Response

__all__ = ["TARGETS", "OnStep", "Session", "Timeouts", "Tools", "Watch", "watching"]

Watch = Callable[[ActionType, str, float], None]
"""Hears of every step: its kind, how it ended, and its seconds."""
OnStep = Callable[[str, int, int], None]
"""Hears of a step before it runs: its label, its number, and how many there are."""

_READING = frozenset(
    {
        ActionType.NAVIGATE,
        ActionType.EXTRACT,
        ActionType.WAIT,
        ActionType.SCROLL,
        ActionType.SCREENSHOT,
        ActionType.DIALOG,
        ActionType.BACK,
        ActionType.CLOSE,
    }
)
"""Steps that ask and look, and change nothing: a page that is asked for twice is the same page (RFC 9110, 9.2.1)."""

_DEEDS = frozenset(
    {
        ActionType.CLICK,
        ActionType.TYPE,
        ActionType.SELECT,
        ActionType.CHECK,
        ActionType.UNCHECK,
        ActionType.HOVER,
        ActionType.PRESS,
        ActionType.UPLOAD,
    }
)

TARGETS = {ActionType.NAVIGATE: 3.0, ActionType.EXTRACT: 2.0}
"""RT-014's seconds for each step; every other kind has one."""

logger = logs.get("nlweb")

# Beyond a step's own time, for what Playwright does without a limit of its own, such as an evaluation.
_MARGIN = 2.0
_MODEL_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_LOST = re.compile(r"has been closed|[Cc]rashed|Connection closed|Browser closed")
_MOVED = re.compile(r"Execution context was destroyed|because of a navigation")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_NET = re.compile(r"net::(ERR_\w+)")


@dataclass(frozen=True, slots=True)
class Tools:
    """What the steps may use beside the page: who finds elements, a language model, secrets, and who records."""

    finder: Finder | None = None
    llm: LLM | None = None
    secrets: Secrets | None = None
    snapshots: Snapshots | None = None


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
        if action.next or (action.action_type is ActionType.SCROLL and action.value == "end"):
            return self.sequence  # many pages in one step
        kinds = {ActionType.NAVIGATE: self.navigation, ActionType.EXTRACT: self.extraction}
        return kinds.get(action.action_type, self.step)


class Session:
    """One context with its page. It belongs to the event loop that opened it.

    Without ``chrome`` it has a browser of its own, which ends with it. ``aclose`` leaves nothing behind, also after a
    failure and if called twice. ``throttle`` holds its pages back for the website's sake; ``watch`` hears of each step.
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
        watch: Watch | None = None,
        on_step: OnStep | None = None,
        tools: Tools | None = None,
    ):
        self._interface = interface
        self._sandbox = sandbox
        self._chrome = chrome
        self._overrides = overrides or Overrides.read()
        self._uploads = uploads
        self._timeouts = timeouts or Timeouts()
        self._throttle = throttle
        self._pace = Pace.of(interface)
        self._site = site_of(interface.base_url)
        self._watch = watch
        self._on_step = on_step
        self._tools = tools or Tools()
        self._robots = Robots(resolver=resolver, overrides=self._overrides)
        guard = Guard(sandbox, base_url=interface.base_url, resolver=resolver, overrides=self._overrides)
        self.proxy = GuardedProxy(guard.admit)
        self._stack = AsyncExitStack()
        self._scene: Scene | None = None
        self.crashed = False
        """Whether the page died, though the browser may live."""
        self.heavy = False
        """Whether it was ended for the memory it took: another try would end the same."""
        self._awaits: str | None = None
        """The selector that the running step waits for."""
        self.hung = False
        """Whether the page no longer answers. The next action that begins by navigating gets another one."""
        self.touched = False
        """Whether a step has run that does more than read."""
        self.asks: str | None = None
        """What a page shows to those it does not know: a navigation that ends there is refused."""

    @property
    def alive(self) -> bool:
        """Whether the browser is there and its page answers."""
        return self._scene is not None and self._chrome is not None and self._chrome.alive and not self.crashed

    @property
    def chrome(self) -> Chrome:
        """The browser, while the session is open."""
        if self._chrome is None or self._scene is None:
            raise self._not_running()
        return self._chrome

    @property
    def page(self) -> Page:
        """The page in front, while the session is open."""
        return self.scene.page

    @property
    def scene(self) -> Scene:
        """Where the steps play, while the session is open."""
        if self._scene is None:
            raise self._not_running()
        return self._scene

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
                stack.push_async_callback(_closed, context)
            self._scene = self._set(await self._first_page(context))
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """End page, context and proxy, and the browser if it is our own, in this order."""
        self._scene = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def state(self) -> Any:
        """Cookies and local storage, for the session that follows this one; Unavailable if the browser is gone."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                return well_formed(await self.page.context.storage_state())
        except (TimeoutError, playwright().Error):
            raise Unavailable("The browser went away with what it knew of its session.") from None

    async def run(self, name: str, steps: Sequence[NLWebAction], parameters: Mapping[str, Any]) -> Any:
        """Run the steps of an action with its parameters: None, one result, or a list of several.

        Every step is judged before the first one runs. CallTimeout if all together take longer than
        ``timeouts.sequence``; otherwise as ``perform``, after what ``workflow`` tries again.
        """
        if self.hung and steps and steps[0].action_type is ActionType.NAVIGATE:
            await self._replace_page()
        return await workflow.run(
            self.scene,
            steps,
            parameters,
            self.perform,
            name=name,
            seconds=self._timeouts.sequence,
            on_step=self._on_step,
        )

    async def single(self, action: NLWebAction) -> Any:
        """Run one step as it stands, as ``perform``; of a failure the page is kept."""
        return await workflow.single(self.scene, action, self.perform, self._timeouts.sequence)

    async def perform(self, action: NLWebAction, label: str = "", limit: float = math.inf) -> Any:
        """Run one filled step; what it gives, or None. ``label`` names it in errors; ``limit`` is the most it may take.

        CallTimeout if it took too long, SecurityError if it, or where the page went, is not allowed, and another
        TargetError for what the page or browser did. An optional step gives None instead of a TargetError.
        """
        start = time.perf_counter()
        status = "error"
        try:
            self.scene.label = label or describe(action)
            result = well_formed(await self._judged(action, self.scene.label, limit))
            status = "success"
        except Agent3Error as error:
            status = _status(error)
            raise
        finally:
            if self._watch is not None:
                self._watch(action.action_type, status, time.perf_counter() - start)
        return result

    # Inside

    async def _judged(self, action: NLWebAction, label: str, limit: float) -> Any:
        seconds = min(self._timeouts.of(action), limit)
        refusals, failures, touched = self.proxy.refusals, self.proxy.failures, self.touched
        try:
            allowed = self._allowed(action)
            await self._in_turn(action)
            async with asyncio.timeout(seconds + self._margin(action)):
                return await self._perform(allowed, seconds)
        except (TimeoutError, playwright().TimeoutError) as error:
            late = error if isinstance(error, CallTimeout) else self._undone(action, error, label, seconds)
            failure: Agent3Error = late
            if isinstance(late, ElementMissing) and self._awaits == action.selector and _is_one_deed(action):
                self.touched = touched  # what is not there was not touched
            self.hung = not await self._answers()
        except msgspec.ValidationError:  # our scripts run among the page's own, and it may change what they give
            failure = MalformedResponse(f"Step {label}: the page gave something else than was read from it.")
        except playwright().Error as error:
            if self._chrome is not None and _LOST.search(error.message):
                await self._chrome.check()
            failure = self._translated(error, label, refusals, failures)
        except (SecurityError, TargetError) as error:
            failure = self._shut_out(error, refusals, failures)
        failure = self._outside() or failure
        if isinstance(failure, SecurityError | Unavailable):
            await self._retreat()
        if action.optional and isinstance(failure, TargetError) and self.alive:
            return None
        raise failure from None

    async def _perform(self, action: NLWebAction, seconds: float) -> Any:
        end = time.monotonic() + seconds
        self.touched |= action.action_type not in _READING
        self._awaits = action.selector
        try:
            result = await STEPS[action.action_type](self.scene, action, _left(end))
        except playwright().Error as error:
            # An extraction that meets the page on its way to the next one reads that one instead.
            if action.action_type is not ActionType.EXTRACT or not _MOVED.search(error.message):
                raise
            result = await STEPS[action.action_type](self.scene, action, _left(end))
        if action.wait_for:
            place = await self.scene.place(action, _left(end))
            awaited = Awaited(action.wait_for, action.frame or "", sure=not action.optional)
            self._awaits = action.wait_for
            await self.scene.finder.appears(place, awaited, _left(end))
        if outside := self._outside():
            raise outside
        if action.action_type is ActionType.NAVIGATE:
            await self._require_known()
        return result

    def _margin(self, action: NLWebAction) -> float:
        asks_a_model = action.action_type is ActionType.EXTRACT and self.scene.llm is not None
        return _MARGIN + (_MODEL_SECONDS if asks_a_model else 0.0)

    async def _require_known(self) -> None:
        if self.asks is not None and await self.page.locator(self.asks).first.is_visible():
            raise TargetRefused(f"{self._interface.name} asks for a login: it does not know this session any more.")

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
        url = self._scene.page.url if self._scene else ""
        reason = self._sandbox.objection(url) if url.startswith(("http:", "https:")) else None
        return SecurityError(f"Navigation to {url[:200]} blocked", data={"reason": reason}) if reason else None

    def _shut_out(self, error: Agent3Error, refusals: int, failures: int) -> Agent3Error:
        """The proxy's own answers are no words of the site: 403 for a refused address, 502 where nobody answers."""
        shut = isinstance(error, TargetRefused) and self.proxy.refusals > refusals
        gone = isinstance(error, Unavailable) and self.proxy.failures > failures
        if not shut and not gone:
            return error
        host, port = place(self.page.url)
        where = (f"{host}:{port}", f"[{host}]:{port}")
        if shut and self.proxy.refused[-1] in where:
            return SecurityError(
                f"Navigation to {self.page.url} blocked: its name leads to an address that is not allowed. If the site "
                "is yours, vouch for it with AGENT3_HOSTS=host=address.",
                data={"reason": "its address is not allowed"},
            )
        if gone and self.proxy.unreached[-1][0] in where:
            return self._unreached(f"{host}:{port}")
        return error

    def _unreached(self, where: str) -> Unavailable:
        """Nobody answered there: said as it is, and before anything was done, as something that was not sent."""
        failure = Unavailable(
            f"{where} cannot be reached: {self.proxy.unreached[-1][1]}. See whether the address is right and the site "
            "is up.",
            data={"unreached": where},
        )
        failure.sent = self.touched
        return failure

    async def _retreat(self) -> None:
        """Leave a page that is none: a refused address, or the browser's own notice of an error still on its way."""
        with suppress(TimeoutError, SetupError, playwright().Error):
            await go(self.page, "about:blank", _MARGIN * 1000)

    def _translated(self, error: Any, label: str, refusals: int, failures: int) -> Agent3Error:
        text = str(error.message).splitlines()[0]
        self.heavy |= "crashed" in text.lower() and self._chrome is not None and self._chrome.culled
        if self.heavy:
            return TargetError(f"Step {label}: the page took too much memory, and was ended before it took it all.")
        if self.proxy.refusals > refusals and _NET.search(text):
            where = self.proxy.refused[-1]
            text = f"Navigation to {where} blocked: it, or where its name leads, is not what this interface may reach"
            return SecurityError(text, data={"reason": "not allowed", "step": label})
        if "ERR_TUNNEL_CONNECTION_FAILED" in text and self.proxy.failures > failures:
            return self._unreached(self.proxy.unreached[-1][0])
        if found := _NET.search(text):
            return Unavailable(f"Step {label}: {self._interface.base_url} could not be reached ({found[1]}).")
        if not self.alive or _LOST.search(text):
            return Unavailable(f"Step {label}: the browser went away. Start it again and repeat the action.")
        return TargetError(f"Step {label} failed: {text}")

    def _not_running(self) -> SetupError:
        return SetupError(f"The browser of {self._interface.name!r} is not running. Call start_browser() first.")

    # The page, and its pace

    async def _first_page(self, context: BrowserContext) -> Page:
        page = await self._new_page(context)
        context.on("response", self._note_response)
        return page

    async def _new_page(self, context: BrowserContext) -> Page:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                page = await context.new_page()
        except (TimeoutError, playwright().Error) as error:
            if self._chrome is not None:
                await self._chrome.check()
            why = (str(error) or "it does not answer").splitlines()[0]
            gone = Unavailable(f"The browser went away before the first step: {why}")
            gone.sent = False
            raise gone from None
        page.on("crash", self._note_crash)
        return page

    def _set(self, page: Page) -> Scene:
        tools = self._tools
        return Scene(
            page,
            self._interface,
            tools.finder or Plain(),
            self._uploads,
            llm=tools.llm,
            secrets=tools.secrets,
            snapshots=tools.snapshots or Snapshots(),
        )

    async def _answers(self) -> bool:
        """Whether the page does anything at all; one that is gone is another matter."""
        try:
            async with asyncio.timeout(_MARGIN):
                await self.page.evaluate("1")
        except TimeoutError:
            return False
        except playwright().Error:
            return True
        return True

    def _undone(self, action: NLWebAction, error: Exception, label: str, seconds: float) -> CallTimeout:
        """Why a step was not done in its time: what it waited for was never on the page, or it only took too long.

        Playwright tells what a locator was resolved to. To look again now would not do: the page may be another one.
        """
        told = str(error) if isinstance(error, playwright().TimeoutError) else ""
        if self._awaits and "waiting for locator(" in told and "resolved to" not in told:
            return _missing(action, label, self._awaits, seconds)
        return _too_slow(action, label, seconds)

    async def _replace_page(self) -> None:
        """A page that hangs in a script of its own would not even go elsewhere."""
        page = await self._new_page(self.page.context)
        await self.scene.renew(page)
        self.hung = False

    def _note_crash(self, _: Page) -> None:
        self.crashed = True
        self.heavy |= self._chrome is not None and self._chrome.culled

    def _note_response(self, response: Response) -> None:
        """The pace is the site's own: what another host answers, or a frame in a page, says nothing of the site."""
        if self._throttle is None or not response.request.is_navigation_request():
            return
        if site_of(response.url) != self._site or not _is_a_page(response):
            return
        self._throttle.came(self._site, self._pace)
        if response.status in (429, 503):
            self._throttle.told(self._site, response.status, response.headers.get("retry-after"))

    async def _in_turn(self, action: NLWebAction) -> None:
        """Wait until the website may be asked for another page."""
        if self._throttle is None or action.action_type is not ActionType.NAVIGATE:
            return
        if self._throttle.wants_robots(self._site, self._pace):
            self._throttle.robots(self._site, await self._robots.text(self._interface))
        await self._throttle.turn(self._site, self._pace)


def _is_a_page(response: Response) -> bool:
    """Whether it is the page itself and not a frame in it; a window that is only being opened has no frame yet."""
    try:
        return response.frame.parent_frame is None
    except playwright().Error:
        return True


def _status(error: Agent3Error) -> str:
    if isinstance(error, CallTimeout):
        return "timeout"
    return "blocked" if isinstance(error, SecurityError) else "error"


def _left(end: float) -> float:
    """Milliseconds until then; never 0, which means without end to Playwright."""
    return max((end - time.monotonic()) * 1000, 1.0)


def _is_one_deed(action: NLWebAction) -> bool:
    """Whether nothing of a step is done before its one element is found."""
    return action.action_type in _DEEDS and not action.popup


def _missing(action: NLWebAction, label: str, selector: str, seconds: float) -> ElementMissing:
    return ElementMissing(
        f"Step {label} was not done within {seconds:g} s: {selector!r} fits nothing on the page. See whether the "
        "selector is still right, or give the step a longer timeout.",
        data={"step": label, "selector": selector, "action_type": action.action_type.value},
    )


def _too_slow(action: NLWebAction, label: str, seconds: float) -> CallTimeout:
    return CallTimeout(
        f"Step {label} was not done within {seconds:g} s. See whether its selector still fits the page, or give the "
        "step a longer timeout.",
        data={"step": label, "selector": action.selector, "action_type": action.action_type.value},
    )


async def _closed(context: BrowserContext) -> None:
    """Close a context, but not forever; that of a browser that is gone is closed."""
    with suppress(TimeoutError, playwright().Error):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await context.close()


def watching(metrics: Metrics, latencies: MutableSequence[float]) -> Watch:
    """Count every step, and keep the seconds of those that succeeded; what misses its target is told."""

    def watch(kind: ActionType, status: str, seconds: float) -> None:
        metrics.nlweb_actions_executed.inc((kind.value, status))
        if status == "success":
            latencies.append(seconds)
        target = TARGETS.get(kind, 1.0)
        if seconds > target:
            metrics.missed_targets.inc((f"nlweb_{kind.value}",))
            logger.warning("%s took %.2fs (target: %ss)", kind.value, seconds, target)

    return watch
