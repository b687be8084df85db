"""The performance monitors of RT-014: what an operation may take, what it took, and a warning when it took longer.

They measure and count; they do not stop anything. Deadlines belong to the calls, browsers to nlweb: the page handed
in here is anything that speaks Playwright's synchronous words.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, cast

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import ValidationError
from agent3.observe import logs
from agent3.observe.metrics import METRICS, OTHER, Metrics

__all__ = ["MCPPerformanceMonitor", "NLWebPerformanceMonitor"]

P = ParamSpec("P")
R = TypeVar("R")

_KEPT: Final = 1_000
_MOST_OPERATIONS: Final = 200
_SCROLL_STEP: Final = 800

logger = logs.get("performance")


class MCPPerformanceMonitor:
    """Latencies of MCP operations beside their targets, for the whole process. The last thousand of each are kept."""

    LATENCY_TARGETS: ClassVar[dict[str, float]] = {
        "list_tools": 0.1,
        "invoke_tool_simple": 0.5,
        "invoke_tool_complex": 2.0,
        "validate_schema": 0.05,
    }
    """Seconds; an operation that is not listed has one second."""

    _latencies: ClassVar[dict[str, deque[float]]] = {}

    @staticmethod
    def enforce_latency(operation: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Measure every call of the function, a coroutine function too, also where it raises.

        A missed target warns and counts; the result is returned all the same.
        """

        def decorator(func: Callable[P, R]) -> Callable[P, R]:
            wrap = _measured_async if inspect.iscoroutinefunction(func) else _measured
            return wrap(operation, func)

        return decorator

    @staticmethod
    def record(operation: str, duration: float, metrics: Metrics = METRICS) -> None:
        """Note that the operation took so many seconds; what ``enforce_latency`` does after each call."""
        MCPPerformanceMonitor._kept(operation).append(duration)
        metrics.mcp_latency.observe((operation,), duration)
        target = MCPPerformanceMonitor.LATENCY_TARGETS.get(operation, 1.0)
        if duration > target:
            metrics.missed_targets.inc((operation,))
            logger.warning("%s took %.2fs (target: %ss)", operation, duration, target)

    @staticmethod
    def latencies(operation: str) -> list[float]:
        """The last thousand durations in seconds, oldest first."""
        return list(MCPPerformanceMonitor._latencies.get(operation, ()))

    @staticmethod
    def percentile(operation: str, q: float) -> float | None:
        """The duration that a share ``q`` (0 to 1) of the kept ones did not exceed; None if there are none."""
        if not 0 <= q <= 1:
            raise ValueError(f"a percentile is asked for as a share from 0 to 1, such as 0.95, not {q!r}")
        ordered = sorted(MCPPerformanceMonitor.latencies(operation))
        return ordered[max(math.ceil(q * len(ordered)), 1) - 1] if ordered else None

    @staticmethod
    def _kept(operation: str) -> deque[float]:
        kept = MCPPerformanceMonitor._latencies
        found = kept.get(operation)
        if found is None:
            name = operation if len(kept) < _MOST_OPERATIONS else OTHER
            found = kept.setdefault(name, deque(maxlen=_KEPT))
        return found


def _measured(operation: str, func: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        start = time.perf_counter()
        try:
            return func(*args, **kwargs)
        finally:
            MCPPerformanceMonitor.record(operation, time.perf_counter() - start)

    return wrapper


def _measured_async(operation: str, func: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(func)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        start = time.perf_counter()
        try:
            return await cast("Any", func(*args, **kwargs))
        finally:
            MCPPerformanceMonitor.record(operation, time.perf_counter() - start)

    return cast("Callable[P, R]", wrapper)


class NLWebPerformanceMonitor:
    """Runs single actions on a page within their time, and says when a browser has lived long enough.

    ``action_latencies`` holds the seconds of the last thousand actions that succeeded; ``result`` what the last one
    gave: the text of an EXTRACT, the image of a SCREENSHOT.
    """

    MAX_BROWSER_LIFETIME = 300

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self.browser_start_time: float | None = None
        """``time.time()`` at the launch; whoever launches the browser sets it."""
        self.action_latencies: deque[float] = deque(maxlen=_KEPT)
        self.result: Any = None
        self._metrics = metrics

    def execute_with_timeout(self, action: NLWebAction, page: Any, timeout: float) -> bool:
        """Do the action within ``timeout`` seconds, its ``wait_for`` included; False if that was not enough.

        ``page`` is a synchronous Playwright page or anything alike. Errors other than a timeout are the caller's.
        """
        start = time.perf_counter()
        self.result = None
        try:
            self.result = _perform(action, page, timeout * 1000)
            if action.wait_for and action.action_type is not ActionType.WAIT:
                page.wait_for_selector(action.wait_for, timeout=_left(start, timeout))
        except Exception as error:
            if not _is_timeout(error):
                self._count(action, "error")
                raise
            self._count(action, "timeout")
            logger.error("Action %s timed out after %ss", action.action_type, timeout)
            return False
        self.action_latencies.append(time.perf_counter() - start)
        self._count(action, "success")
        return True

    def should_restart_browser(self) -> bool:
        """Whether the browser has lived longer than MAX_BROWSER_LIFETIME seconds."""
        if not self.browser_start_time:
            return False
        # Wall clock, because RT-014 sets the start from time.time(); a jump costs one early or late restart.
        return time.time() - self.browser_start_time > self.MAX_BROWSER_LIFETIME

    def _count(self, action: NLWebAction, status: str) -> None:
        self._metrics.nlweb_actions_executed.inc((action.action_type.value, status))


def _left(start: float, timeout: float) -> float:
    """Milliseconds left. Never 0, which means "no limit" to Playwright."""
    return max((timeout - (time.perf_counter() - start)) * 1000, 1.0)


def _is_timeout(error: Exception) -> bool:
    """Playwright's TimeoutError is none of Python's; it is known by its name, as Playwright has its door elsewhere."""
    return any(kind.__name__ == "TimeoutError" for kind in type(error).__mro__)


# Each action in Playwright's words: (page, action, milliseconds) → what it gives


def _perform(action: NLWebAction, page: Any, ms: float) -> Any:
    act = _ACTIONS.get(action.action_type)
    if act is None:
        raise ValidationError(
            f"A {action.action_type.value} step needs more than a bare page. Run it in an action with NLWebExecutor."
        )
    return act(page, action, max(ms, 1.0))


def _extract(page: Any, action: NLWebAction, ms: float) -> Any:
    return page.text_content(action.selector or "body", timeout=ms)


def _wait(page: Any, action: NLWebAction, ms: float) -> Any:
    selector = action.wait_for or action.selector
    if selector:
        return page.wait_for_selector(selector, timeout=ms)
    if action.value and action.value.replace(".", "", 1).isdecimal():
        return _pause(page, float(action.value) * 1000, ms)
    return page.wait_for_load_state(action.value or "load", timeout=ms)


def _pause(page: Any, wanted: float, ms: float) -> None:
    page.wait_for_timeout(min(wanted, ms))
    if wanted > ms:
        raise TimeoutError(f"a pause of {wanted / 1000}s does not fit into {ms / 1000}s")


def _scroll(page: Any, action: NLWebAction, ms: float) -> Any:
    if action.selector:
        return page.locator(action.selector).scroll_into_view_if_needed(timeout=ms)
    return page.mouse.wheel(0, float(action.value or _SCROLL_STEP))


def _press(page: Any, action: NLWebAction, ms: float) -> Any:
    if action.selector:
        return page.press(action.selector, action.value or "Enter", timeout=ms)
    return page.keyboard.press(action.value or "Enter")


_ACTIONS: dict[ActionType, Callable[[Any, NLWebAction, float], Any]] = {
    ActionType.NAVIGATE: lambda page, action, ms: page.goto(action.value, timeout=ms),
    ActionType.TYPE: lambda page, action, ms: page.fill(action.selector, action.value or "", timeout=ms),
    ActionType.CLICK: lambda page, action, ms: page.click(action.selector, timeout=ms),
    ActionType.EXTRACT: _extract,
    ActionType.WAIT: _wait,
    ActionType.SELECT: lambda page, action, ms: page.select_option(action.selector, action.value, timeout=ms),
    ActionType.SCROLL: _scroll,
    ActionType.PRESS: _press,
    ActionType.UPLOAD: lambda page, action, ms: page.set_input_files(action.selector, action.value, timeout=ms),
    ActionType.SCREENSHOT: lambda page, action, ms: page.screenshot(timeout=ms),
    ActionType.HOVER: lambda page, action, ms: page.hover(action.selector, timeout=ms),
    ActionType.CHECK: lambda page, action, ms: page.check(action.selector, timeout=ms),
    ActionType.UNCHECK: lambda page, action, ms: page.uncheck(action.selector, timeout=ms),
    ActionType.BACK: lambda page, action, ms: page.go_back(timeout=ms),
}
