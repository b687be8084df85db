from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import ValidationError
from agent3.observe.metrics import METRICS, Metrics
from agent3.observe.performance import MCPPerformanceMonitor, NLWebPerformanceMonitor


def test_the_targets_are_the_documented_ones() -> None:
    assert MCPPerformanceMonitor.LATENCY_TARGETS == {
        "list_tools": 0.1,
        "invoke_tool_simple": 0.5,
        "invoke_tool_complex": 2.0,
        "validate_schema": 0.05,
    }


@pytest.mark.requirement("RT-014-M01")
def test_the_documented_usage_under_a_cache_measures_the_first_call_only() -> None:
    before = len(MCPPerformanceMonitor.latencies("list_tools"))

    class MCPServer:
        tools = {"search": "a tool"}

        @lru_cache(maxsize=100)  # noqa: B019 - as the document shows it
        @MCPPerformanceMonitor.enforce_latency("list_tools")
        def list_tools(self) -> list[str]:
            """What there is."""
            return list(self.tools.values())

    server = MCPServer()
    assert server.list_tools() == server.list_tools() == ["a tool"]
    assert len(MCPPerformanceMonitor.latencies("list_tools")) == min(before + 1, 1_000)
    assert MCPServer.list_tools.__doc__ == "What there is."


def test_a_missed_target_warns_in_the_documented_words_and_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _slow_clock(monkeypatch, 0.75)
    operation = "invoke_tool_simple"
    missed = _value("agent3_missed_targets_total", operation)
    timed = _value("mcp_operation_latency_seconds_count", operation)

    @MCPPerformanceMonitor.enforce_latency(operation)
    def work(left: int, *, right: int) -> int:
        return left + right

    assert work(1, right=2) == 3
    assert [record.getMessage() for record in caplog.records] == ["invoke_tool_simple took 0.75s (target: 0.5s)"]
    assert _value("agent3_missed_targets_total", operation) == missed + 1
    assert _value("mcp_operation_latency_seconds_count", operation) == timed + 1
    assert MCPPerformanceMonitor.latencies(operation)[-1] == 0.75


def test_a_target_that_is_met_says_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    _slow_clock(monkeypatch, 0.5)
    MCPPerformanceMonitor.enforce_latency("invoke_tool_simple")(lambda: None)()
    assert caplog.records == []


def test_an_operation_without_a_target_has_one_second(caplog: pytest.LogCaptureFixture) -> None:
    MCPPerformanceMonitor.record("unlisted", 1.0)
    MCPPerformanceMonitor.record("unlisted", 1.01)
    assert [record.getMessage() for record in caplog.records] == ["unlisted took 1.01s (target: 1.0s)"]


def test_a_coroutine_function_is_measured_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow_clock(monkeypatch, 0.25)

    @MCPPerformanceMonitor.enforce_latency("async_operation")
    async def work(value: int) -> int:
        await asyncio.sleep(0)
        assert MCPPerformanceMonitor.latencies("async_operation") == []
        return value

    assert asyncio.iscoroutinefunction(work)
    assert asyncio.run(work(7)) == 7
    assert MCPPerformanceMonitor.latencies("async_operation") == [0.25]


def test_what_raises_is_measured_too() -> None:
    @MCPPerformanceMonitor.enforce_latency("raising")
    def work() -> None:
        raise KeyError("as it was")

    @MCPPerformanceMonitor.enforce_latency("raising")
    async def later() -> None:
        raise KeyError("as it was")

    with pytest.raises(KeyError, match="as it was"):
        work()
    with pytest.raises(KeyError, match="as it was"):
        asyncio.run(later())
    assert len(MCPPerformanceMonitor.latencies("raising")) == 2


def test_latencies_are_bounded_and_read_as_percentiles() -> None:
    assert MCPPerformanceMonitor.percentile("never ran", 0.95) is None
    for number in range(1_500):
        MCPPerformanceMonitor.record("bounded", number / 1e6)
    kept = MCPPerformanceMonitor.latencies("bounded")
    assert len(kept) == 1_000
    assert kept[0] == 500 / 1e6
    assert MCPPerformanceMonitor.percentile("bounded", 0) == 500 / 1e6
    assert MCPPerformanceMonitor.percentile("bounded", 0.5) == 999 / 1e6
    assert MCPPerformanceMonitor.percentile("bounded", 0.95) == 1_449 / 1e6
    assert MCPPerformanceMonitor.percentile("bounded", 1) == 1_499 / 1e6
    with pytest.raises(ValueError, match="from 0 to 1"):
        MCPPerformanceMonitor.percentile("bounded", 95)


def test_operations_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MCPPerformanceMonitor, "_latencies", {})
    metrics = Metrics()
    for number in range(1_000):
        MCPPerformanceMonitor.record(f"operation-{number}", 0.001, metrics)
    assert len(MCPPerformanceMonitor._latencies) == 201
    assert len(MCPPerformanceMonitor.latencies("other")) == 800


class Page:
    """A synchronous page that writes down what it was asked, or fails as told."""

    def __init__(self, fails: Exception | None = None, only: str = "") -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._fails = fails
        self._only = only

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.asked.append((name, args, kwargs))
            if self._fails is not None and self._only in ("", name):
                raise self._fails
            return self if name == "locator" else f"result of {name}"

        return ask

    @property
    def mouse(self) -> Page:
        return self

    @property
    def keyboard(self) -> Page:
        return self


CASES = [
    (NLWebAction(action_type=ActionType.NAVIGATE, value="https://a.test"), "goto", ("https://a.test",)),
    (NLWebAction(action_type=ActionType.TYPE, selector="#q", value="x"), "fill", ("#q", "x")),
    (NLWebAction(action_type=ActionType.CLICK, selector="#b"), "click", ("#b",)),
    (NLWebAction(action_type=ActionType.EXTRACT, selector=".r"), "text_content", (".r",)),
    (NLWebAction(action_type=ActionType.EXTRACT), "text_content", ("body",)),
    (NLWebAction(action_type=ActionType.WAIT, selector=".r"), "wait_for_selector", (".r",)),
    (NLWebAction(action_type=ActionType.WAIT, wait_for=".r"), "wait_for_selector", (".r",)),
    (NLWebAction(action_type=ActionType.WAIT, value="networkidle"), "wait_for_load_state", ("networkidle",)),
    (NLWebAction(action_type=ActionType.WAIT), "wait_for_load_state", ("load",)),
    (NLWebAction(action_type=ActionType.SELECT, selector="#s", value="v"), "select_option", ("#s", "v")),
    (NLWebAction(action_type=ActionType.PRESS, selector="#q", value="Tab"), "press", ("#q", "Tab")),
    (NLWebAction(action_type=ActionType.UPLOAD, selector="#f", value="a.txt"), "set_input_files", ("#f", "a.txt")),
    (NLWebAction(action_type=ActionType.SCREENSHOT), "screenshot", ()),
    (NLWebAction(action_type=ActionType.HOVER, selector="#b"), "hover", ("#b",)),
    (NLWebAction(action_type=ActionType.CHECK, selector="#c"), "check", ("#c",)),
    (NLWebAction(action_type=ActionType.UNCHECK, selector="#c"), "uncheck", ("#c",)),
    (NLWebAction(action_type=ActionType.BACK), "go_back", ()),
]


_NEEDS_AN_EXECUTOR = {
    ActionType.FILL,
    ActionType.SUBMIT,
    ActionType.DIALOG,
    ActionType.CLOSE,
    ActionType.IF,
    ActionType.REPEAT,
    ActionType.TOOL,
}


@pytest.mark.parametrize(("action", "method", "args"), CASES, ids=lambda one: getattr(one, "action_type", None))
def test_each_action_is_asked_of_the_page_with_its_time(
    action: NLWebAction, method: str, args: tuple[str, ...]
) -> None:
    metrics = Metrics()
    monitor, page = NLWebPerformanceMonitor(metrics), Page()
    assert monitor.execute_with_timeout(action, page, 2.5) is True
    assert page.asked == [(method, args, {"timeout": 2_500})]
    assert monitor.result == f"result of {method}"
    assert len(monitor.action_latencies) == 1
    assert _actions(metrics, action.action_type, "success") == 1


def test_scrolling_pressing_and_pausing_without_a_selector_act_on_the_page() -> None:
    monitor, page = NLWebPerformanceMonitor(Metrics()), Page()
    for action in (
        NLWebAction(action_type=ActionType.SCROLL, selector="#end"),
        NLWebAction(action_type=ActionType.SCROLL, value="300"),
        NLWebAction(action_type=ActionType.PRESS, value="Escape"),
        NLWebAction(action_type=ActionType.WAIT, value="0.5"),
    ):
        assert monitor.execute_with_timeout(action, page, 1)
    assert page.asked == [
        ("locator", ("#end",), {}),
        ("scroll_into_view_if_needed", (), {"timeout": 1_000}),
        ("wheel", (0, 300.0), {}),
        ("press", ("Escape",), {}),
        ("wait_for_timeout", (500.0,), {}),
    ]


def test_every_action_type_is_known() -> None:
    covered = {action.action_type for action, _, _ in CASES} | {ActionType.SCROLL}
    assert covered | _NEEDS_AN_EXECUTOR == set(ActionType)
    assert not covered & _NEEDS_AN_EXECUTOR


@pytest.mark.parametrize("kind", sorted(_NEEDS_AN_EXECUTOR))
def test_a_step_that_a_bare_page_cannot_do_is_refused_with_the_way_to_do_it(kind: ActionType) -> None:
    metrics = Metrics()
    monitor, page = NLWebPerformanceMonitor(metrics), Page()
    action = NLWebAction.model_construct(action_type=kind)
    with pytest.raises(ValidationError, match=f"{kind.value}.*NLWebExecutor"):
        monitor.execute_with_timeout(action, page, 1)
    assert page.asked == []
    assert _actions(metrics, kind, "error") == 1


def test_a_pause_longer_than_the_timeout_is_cut_and_is_a_timeout() -> None:
    monitor, page = NLWebPerformanceMonitor(Metrics()), Page()
    assert monitor.execute_with_timeout(NLWebAction(action_type=ActionType.WAIT, value="9"), page, 1) is False
    assert page.asked == [("wait_for_timeout", (1_000,), {})]


def test_what_an_action_waits_for_shares_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow_clock(monkeypatch, 0.75)
    action = NLWebAction(action_type=ActionType.CLICK, selector="#b", wait_for=".done")
    monitor, page = NLWebPerformanceMonitor(Metrics()), Page()
    assert monitor.execute_with_timeout(action, page, 2)
    assert page.asked == [("click", ("#b",), {"timeout": 2_000}), ("wait_for_selector", (".done",), {"timeout": 1_250})]
    assert list(monitor.action_latencies) == [1.5]


def _playwright_timeout() -> Exception:
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    return PlaywrightTimeout("Timeout 1000ms exceeded.")


@pytest.mark.parametrize("error", [TimeoutError("slow"), _playwright_timeout()], ids=["python", "playwright"])
@pytest.mark.parametrize("where", ["click", "wait_for_selector"])
def test_a_timeout_is_logged_and_returned_as_false(
    error: Exception, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    monitor = NLWebPerformanceMonitor(metrics)
    action = NLWebAction(action_type=ActionType.CLICK, selector="#b", wait_for=".x")
    assert monitor.execute_with_timeout(action, Page(error, where), 1.5) is False
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("ERROR", "Action click timed out after 1.5s")
    ]
    assert len(monitor.action_latencies) == 0
    assert _actions(metrics, ActionType.CLICK, "timeout") == 1
    assert _actions(metrics, ActionType.CLICK, "success") is None


def test_any_other_error_is_the_callers_and_counted() -> None:
    metrics = Metrics()
    monitor = NLWebPerformanceMonitor(metrics)
    action = NLWebAction(action_type=ActionType.CLICK, selector="#b")
    with pytest.raises(ConnectionError, match="page closed"):
        monitor.execute_with_timeout(action, Page(ConnectionError("page closed")), 1)
    assert _actions(metrics, ActionType.CLICK, "error") == 1
    assert len(monitor.action_latencies) == 0


def test_the_latencies_behave_like_the_documented_list_and_stay_bounded() -> None:
    monitor = NLWebPerformanceMonitor()
    assert list(monitor.action_latencies) == []
    for number in range(1_200):
        monitor.action_latencies.append(number / 10)
    assert len(monitor.action_latencies) == 1_000
    assert sum(monitor.action_latencies) == pytest.approx(sum(range(200, 1_200)) / 10)
    assert monitor.action_latencies[-1] == 119.9


@pytest.mark.requirement("RT-014-M03")
def test_a_browser_is_to_be_restarted_after_its_lifetime() -> None:
    monitor = NLWebPerformanceMonitor()
    assert monitor.MAX_BROWSER_LIFETIME == 300
    assert monitor.browser_start_time is None
    assert monitor.should_restart_browser() is False
    monitor.browser_start_time = time.time() - 200
    assert monitor.should_restart_browser() is False
    monitor.browser_start_time = time.time() - 301
    assert monitor.should_restart_browser() is True


def _slow_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A clock that moves by ``step`` whenever it is read, so that no test has to wait."""
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("agent3.observe.performance.time.perf_counter", lambda: next(ticks) * step)


def _value(name: str, operation: str) -> float:
    return METRICS.registry.get_sample_value(name, {"operation": operation}) or 0.0


def _actions(metrics: Metrics, kind: ActionType, status: str) -> float | None:
    labels = {"action_type": kind.value, "status": status}
    return metrics.registry.get_sample_value("nlweb_actions_total", labels)
