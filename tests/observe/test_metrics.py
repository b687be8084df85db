from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from agent3.observe.metrics import METRICS, OTHER, Count, Level, Metrics

RT_014 = {
    "mcp_tool_invocations_total": ("counter", ("tool_name", "status")),
    "mcp_operation_latency_seconds": ("histogram", ("operation",)),
    "a2a_messages_sent_total": ("counter", ("from_agent", "to_agent", "message_type")),
    "a2a_message_queue_depth": ("gauge", ("agent_id",)),
    "nlweb_actions_total": ("counter", ("action_type", "status")),
    "nlweb_browser_restarts_total": ("counter", ()),
    "mcp_auth_failures_total": ("counter", ()),
}
OURS = {
    "agent3_calls_total": ("counter", ("agent", "door", "protocol", "status", "code")),
    "agent3_call_seconds": ("histogram", ("agent", "protocol")),
    "agent3_attempts_total": ("counter", ("protocol", "status")),
    "agent3_retries_total": ("counter", ("protocol", "code")),
    "agent3_sentences_total": ("counter", ("reading",)),
    "agent3_fallbacks_total": ("counter", ("from_protocol", "to_protocol")),
    "agent3_breaker_state": ("gauge", ("route",)),
    "agent3_breaker_transitions_total": ("counter", ("to",)),
    "agent3_refusals_total": ("counter", ("code",)),
    "agent3_dead_letters_total": ("counter", ("code",)),
    "agent3_cache_total": ("counter", ("result",)),
    "agent3_events_dropped_total": ("counter", ("reason",)),
    "agent3_jobs": ("gauge", ("status",)),
    "agent3_ledger_backlog": ("gauge", ()),
    "agent3_missed_targets_total": ("counter", ("operation",)),
    "agent3_outbound_blocked_total": ("counter", ("rule",)),
    "agent3_a2a_references_dropped_total": ("counter", ()),
    "agent3_a2a_cancellations_total": ("counter", ("reason", "result")),
    "agent3_foreign_names_refused_total": ("counter", ()),
    "agent3_questions_refused_total": ("counter", ()),
    "agent3_open_questions_refused_total": ("counter", ("agent",)),
    "agent3_secrets_withheld_total": ("counter", ()),
    "agent3_connections_refused_total": ("counter", ("reason",)),
    "agent3_connections_handed_over_total": ("counter", ("result",)),
    "agent3_worker_restarts_total": ("counter", ("reason",)),
    "agent3_workers": ("gauge", ()),
    "agent3_approvals_total": ("counter", ("result",)),
    "agent3_loop_held_seconds": ("histogram", ("cause",)),
    "agent3_renewals_total": ("counter", ("result",)),
    "agent3_dead_letters_waiting": ("gauge", ("place",)),
    "agent3_dead_letters_oldest_seconds": ("gauge", ("place",)),
    "agent3_dead_letters_dropped_total": ("counter", ("place",)),
    "agent3_webhooks_total": ("counter", ("result",)),
    "agent3_a2a_callbacks_total": ("counter", ("result",)),
    "agent3_webhooks_waiting": ("gauge", ()),
    "agent3_parked": ("gauge", ()),
    "agent3_cost_usd_total": ("counter", ("agent",)),
    "agent3_reported_costs_capped_total": ("counter", ("agent",)),
    "agent3_budgets_exceeded_total": ("counter", ("action", "whose")),
    "agent3_cost_standards_missed_total": ("counter", ("standard",)),
    "agent3_web_sessions": ("gauge", ("state",)),
    "agent3_web_browsers_ended_total": ("counter", ("reason",)),
    "agent3_web_throttled_total": ("counter", ("reason",)),
    "agent3_web_banners_total": ("counter", ("consent",)),
    "agent3_web_heals_total": ("counter", ("result",)),
}


@pytest.mark.requirement("RT-014-O01", "RT-014-O02", "RT-014-O03")
def test_the_page_shows_exactly_the_documented_names_types_and_labels() -> None:
    metrics = Metrics()
    _touch_all(metrics)
    shown = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(one.labels) - {"le"} for one in family.samples}
        assert len(labels) == 1
        if not name.startswith("process_"):
            shown[name] = (family.type, labels.pop())
    assert shown == {name: (kind, frozenset(labels)) for name, (kind, labels) in (RT_014 | OURS).items()}


def test_label_values_land_under_the_labels_in_the_declared_order() -> None:
    metrics = Metrics()
    metrics.a2a_messages_sent.inc(("a", "b", "request"))
    metrics.calls.inc(("pizza", "mcp", "local", "failed", "timeout"), 3)
    metrics.mcp_tool_invocations.inc(("search", "success"))
    value = metrics.registry.get_sample_value
    assert value("a2a_messages_sent_total", {"from_agent": "a", "to_agent": "b", "message_type": "request"}) == 1
    calls = {"agent": "pizza", "door": "mcp", "protocol": "local", "status": "failed", "code": "timeout"}
    assert value("agent3_calls_total", calls) == 3
    assert value("mcp_tool_invocations_total", {"tool_name": "search", "status": "success"}) == 1


def test_the_latency_histogram_has_the_documented_buckets() -> None:
    metrics = Metrics()
    metrics.mcp_latency.observe(("list_tools",), 0.3)
    page = metrics.render()[0].decode()
    lines = [line for line in page.splitlines() if line.startswith("mcp_operation_latency_seconds_bucket")]
    found = [(line.split('le="')[1].split('"')[0], line.split()[-1]) for line in lines]
    assert found == [
        ("0.05", "0.0"),
        ("0.1", "0.0"),
        ("0.5", "1.0"),
        ("1.0", "1.0"),
        ("2.0", "1.0"),
        ("5.0", "1.0"),
        ("+Inf", "1.0"),
    ]


def test_the_page_says_what_it_is_and_holds_the_process_but_no_created_series() -> None:
    metrics = Metrics()
    _touch_all(metrics)
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")
    assert b"process_resident_memory_bytes " in page
    assert b"_created" not in page


def test_counters_without_labels_stand_at_zero_from_the_start_so_that_increase_sees_the_first() -> None:
    page = Metrics().render()[0].decode().splitlines()
    assert "mcp_auth_failures_total 0.0" in page
    assert "nlweb_browser_restarts_total 0.0" in page


def test_a_flood_of_names_ends_in_other() -> None:
    metrics = Metrics()
    for number in range(10_000):
        metrics.mcp_tool_invocations.inc((f"tool-{number}", "success"))
    [family] = metrics.registry.restricted_registry(["mcp_tool_invocations_total"]).collect()
    samples = [one for one in family.samples if one.name == "mcp_tool_invocations_total"]
    values = {one.labels["tool_name"]: one.value for one in samples}
    assert len(values) == 201
    assert values["tool-199"] == 1
    assert values[OTHER] == 9_800
    assert sum(values.values()) == 10_000
    assert len(metrics.mcp_tool_invocations._children) == 201


def test_a_known_name_keeps_its_own_series_after_the_flood() -> None:
    metrics = Metrics()
    metrics.mcp_tool_invocations.inc(("search", "success"))
    for number in range(1_000):
        metrics.mcp_tool_invocations.inc((f"tool-{number}", "success"))
    metrics.mcp_tool_invocations.inc(("search", "success"))
    metrics.mcp_tool_invocations.inc(("search", "error"))
    value = metrics.registry.get_sample_value
    assert value("mcp_tool_invocations_total", {"tool_name": "search", "status": "success"}) == 2
    assert value("mcp_tool_invocations_total", {"tool_name": "search", "status": "error"}) == 1


def test_a_series_that_is_held_counts_on_the_same_page() -> None:
    metrics = Metrics(cap=1)
    metrics.attempts.inc(("mcp", "answered"))
    metrics.attempts.series(("mcp", "answered")).inc()
    metrics.attempts.series(("a2a", "answered")).inc()
    metrics.call_seconds.series(("echo", "mcp")).observe(0.003)
    metrics.call_seconds.observe(("echo", "mcp"), 2.0)
    value = metrics.registry.get_sample_value
    assert value("agent3_attempts_total", {"protocol": "mcp", "status": "answered"}) == 2
    assert value("agent3_attempts_total", {"protocol": OTHER, "status": "answered"}) == 1
    assert value("agent3_call_seconds_sum", {"agent": "echo", "protocol": "mcp"}) == pytest.approx(2.003)
    assert value("agent3_call_seconds_bucket", {"agent": "echo", "protocol": "mcp", "le": "0.005"}) == 1


def test_combinations_are_bounded_too() -> None:
    registry = CollectorRegistry()
    count = Count("pairs", "", ("a", "b"), registry=registry, cap=100, series=50)
    for number in range(1_000):
        count.inc((f"{number % 100}", f"{number // 100}"))
    assert len(count._children) == 51
    assert registry.get_sample_value("pairs_total", {"a": OTHER, "b": OTHER}) == 950


def test_hostile_label_values_are_cleaned_and_the_page_still_renders() -> None:
    metrics = Metrics()
    metrics.refusals.inc(("a\nb\x1b[31m\ud800\u2028",))
    metrics.refusals.inc(('quote" and \\ backslash',))
    metrics.refusals.inc(("x" * 5_000,))
    text = metrics.render()[0].decode()
    [family] = [one for one in text_string_to_metric_families(text) if one.name == "agent3_refusals"]
    codes = {one.labels["code"] for one in family.samples}
    assert codes == {"a b [31m  ", 'quote" and \\ backslash', "x" * 100}


def test_values_that_clean_to_the_same_share_one_series() -> None:
    metrics = Metrics()
    for tail in range(500):
        metrics.refusals.inc(("x" * 100 + str(tail),))
    assert metrics.registry.get_sample_value("agent3_refusals_total", {"code": "x" * 100}) == 500
    assert len(metrics.refusals._children) == 1


def test_a_wrong_number_of_labels_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"agent3_refusals.*code"):
        Metrics().refusals.inc(("a", "b"))


def test_a_level_goes_up_and_down_and_is_removed_with_its_subject() -> None:
    registry = CollectorRegistry()
    level = Level("depth", "", ("agent_id",), registry=registry, cap=2)
    level.set(("a",), 5)
    level.inc(("a",))
    level.inc(("a",), -2)
    level.set(("b",), 1)
    level.set(("c",), 7)
    assert registry.get_sample_value("depth", {"agent_id": "a"}) == 4
    assert registry.get_sample_value("depth", {"agent_id": OTHER}) == 7
    level.remove(("b",))
    level.remove(("never seen",))
    assert registry.get_sample_value("depth", {"agent_id": "b"}) is None
    level.remove((OTHER,))
    level.set(("c",), 8)
    assert registry.get_sample_value("depth", {"agent_id": "c"}) == 8


def test_threads_lose_no_increment_and_admit_no_name_twice() -> None:
    metrics = Metrics(cap=50)
    ready = threading.Barrier(4)

    def count() -> None:
        ready.wait(timeout=240)
        for number in range(2_000):
            metrics.refusals.inc((f"code-{number % 100}",))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    [family] = metrics.registry.restricted_registry(["agent3_refusals_total"]).collect()
    values = [one.value for one in family.samples if one.name == "agent3_refusals_total"]
    assert len(values) == 51
    assert sum(values) == 8_000


def test_two_gateways_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.mcp_auth_failures.inc()
    assert one.registry.get_sample_value("mcp_auth_failures_total") == 1
    assert two.registry.get_sample_value("mcp_auth_failures_total") == 0
    assert METRICS.registry is not one.registry


def _touch_all(metrics: Metrics) -> None:
    """One series of each, so that the page shows its labels."""
    for value in vars(metrics).values():
        if isinstance(value, Count | Level):
            value.inc(("x",) * len(value.labels))
    metrics.mcp_latency.observe(("x",), 1)
    metrics.call_seconds.observe(("x", "x"), 1)
    metrics.loop_held.observe(("x",), 1)
