"""The performance monitors of RT-014: how long an operation may take, how long it took, and a warning if too long.

They measure and count; they do not stop anything. Deadlines belong to calls, browsers to nlweb: the page passed in is
anything with Playwright's synchronous methods.
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
    _warned: ClassVar[dict[str, float]] = {}

    @staticmethod
    def enforce_latency(operation: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Measure every call of the function, a coroutine function too, also where it raises.

        A missed target warns and counts; the result is returned all the same.
        """

        def decorator(func: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(func)
            def measure(*args: P.args, **kwargs: P.kwargs) -> R:
                start = time.perf_counter()
                try:
                    return func(*args, **kwargs)
                finally:
                    MCPPerformanceMonitor.record(operation, time.perf_counter() - start)

            @functools.wraps(func)
            async def measure_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                start = time.perf_counter()
                try:
                    return await cast("Any", func(*args, **kwargs))
                finally:
                    MCPPerformanceMonitor.record(operation, time.perf_counter() - start)

            return cast("Callable[P, R]", measure_async) if inspect.iscoroutinefunction(func) else measure

        return decorator

    @staticmethod
    def record(operation: str, duration: float, metrics: Metrics = METRICS, *, warn_every: float = 0.0) -> None:
        """Record that the operation took so many seconds; ``enforce_latency`` does so after each call.

        A missed target is always counted. It is logged at most once in ``warn_every`` seconds for each operation.
        """
        latencies = MCPPerformanceMonitor._latencies
        kept = latencies.get(operation)
        if kept is None:  # names may come from strangers, so their number is bounded
            name = operation if len(latencies) < _MOST_OPERATIONS else OTHER
            kept = latencies.setdefault(name, deque(maxlen=_KEPT))
        kept.append(duration)
        metrics.mcp_latency.observe((operation,), duration)
        target = MCPPerformanceMonitor.LATENCY_TARGETS.get(operation, 1.0)
        if duration > target:
            metrics.missed_targets.inc((operation,))
            warned, now = MCPPerformanceMonitor._warned, time.monotonic()
            name = operation if operation in latencies else OTHER
            if warn_every and now - warned.get(name, float("-inf")) < warn_every:
                return
            warned[name] = now
            logger.warning("%s took %.2fs (target: %ss)", operation, duration, target)

    @staticmethod
    def latencies(operation: str) -> list[float]:
        """The last thousand durations in seconds, oldest first."""
        return list(MCPPerformanceMonitor._latencies.get(operation, ()))

    @staticmethod
    def percentile(operation: str, q: float) -> float | None:
        """The duration that a share ``q`` (0 to 1) of the recorded ones did not exceed; None if there are none."""
        if not 0 <= q <= 1:
            raise ValueError(f"a percentile must be from 0 to 1, such as 0.95, not {q!r}")
        ordered = sorted(MCPPerformanceMonitor.latencies(operation))
        return ordered[max(math.ceil(q * len(ordered)), 1) - 1] if ordered else None


class NLWebPerformanceMonitor:
    """Runs single actions on a page within their time, and says when a browser should be restarted.

    ``action_latencies`` holds the seconds of the last thousand actions that succeeded; ``result`` is what the last one
    returned: the text of an EXTRACT, the image of a SCREENSHOT.
    """

    MAX_BROWSER_LIFETIME = 300

    def __init__(self, metrics: Metrics = METRICS) -> None:
        self.browser_start_time: float | None = None
        """``time.time()`` at the launch; set by the code that launches the browser."""
        self.action_latencies: deque[float] = deque(maxlen=_KEPT)
        self.result: Any = None
        self._metrics = metrics

    def execute_with_timeout(self, action: NLWebAction, page: Any, timeout: float) -> bool:
        """Run the action within ``timeout`` seconds, its ``wait_for`` included; False if it timed out.

        ``page`` is a synchronous Playwright page or anything like it. Errors other than a timeout are raised.
        """
        start = time.perf_counter()
        self.result = None
        try:
            act = _ACTIONS.get(action.action_type)
            if act is None:
                kind = action.action_type.value
                raise ValidationError(
                    f"A {kind} step needs more than a bare page. Run it in an action with NLWebExecutor."
                )
            self.result = act(page, action, max(timeout * 1000, 1.0))
            if action.wait_for and action.action_type is not ActionType.WAIT:
                left = (timeout - (time.perf_counter() - start)) * 1000
                page.wait_for_selector(action.wait_for, timeout=max(left, 1.0))  # 0 means "no limit" to Playwright
        except Exception as error:
            # Playwright's TimeoutError is not Python's; it is known by name, since Playwright is not imported here.
            if not any(kind.__name__ == "TimeoutError" for kind in type(error).__mro__):
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
        # The wall clock, because RT-014 sets the start from time.time(); a jump costs one early or late restart.
        return time.time() - self.browser_start_time > self.MAX_BROWSER_LIFETIME

    def _count(self, action: NLWebAction, status: str) -> None:
        self._metrics.nlweb_actions_executed.inc((action.action_type.value, status))


# --- each action in Playwright's methods: (page, action, milliseconds) -> what it returns -----------------------------


def _wait(page: Any, action: NLWebAction, ms: float) -> Any:
    selector = action.wait_for or action.selector
    if selector:
        return page.wait_for_selector(selector, timeout=ms)
    if action.value and action.value.replace(".", "", 1).isdecimal():
        pause = float(action.value) * 1000
        page.wait_for_timeout(min(pause, ms))
        if pause > ms:
            raise TimeoutError(f"a pause of {pause / 1000}s does not fit into {ms / 1000}s")
        return None
    return page.wait_for_load_state(action.value or "load", timeout=ms)


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
    ActionType.EXTRACT: lambda page, action, ms: page.text_content(action.selector or "body", timeout=ms),
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
