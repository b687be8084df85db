from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from agent3.observe.metrics import Metrics
from tests.support.promtool import promtool

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = ALERTS / "agent3.rules.yml"
TESTS = ALERTS / "agent3.rules.test.yml"


def test_prometheus_accepts_the_rules() -> None:
    assert "11 rules found" in _promtool("check", "rules", str(RULES))


@pytest.mark.requirement("RT-014-O04", "RT-014-O05", "RT-014-O06", "RT-014-O07")
def test_each_alert_fires_and_keeps_still_on_the_sample_series() -> None:
    assert "SUCCESS" in _promtool("test", "rules", str(TESTS))


@pytest.mark.parametrize(
    ("ours", "sketch"),
    [
        ("increase(nlweb_browser_restarts_total[5m])", "rate(nlweb_browser_restarts_total[5m])"),
        ("increase(mcp_auth_failures_total[1m])", "rate(mcp_auth_failures_total[1m])"),
        ("> 5000", "> 50000"),
        ("histogram_quantile(0.95,", "histogram_quantile(0.5,"),
        ("sum by (le, operation)", "sum by (le)"),
        ('up{job="agent3"} == 0', "up == 1"),
        ("while storage is away", "while it sleeps"),
        ("> 0.2", "> 0.6"),
        ("[5m])) > 10", "[5m])) > 1"),
        ("overload|full|refused", ".*"),
        ("died|hung", "rolled"),
        ("> 86400", "> 3600"),
    ],
)
def test_the_sample_series_notice_a_changed_rule(ours: str, sketch: str, tmp_path: Path) -> None:
    text = RULES.read_text()
    assert ours in text
    (tmp_path / RULES.name).write_text(text.replace(ours, sketch))
    shutil.copy(TESTS, tmp_path)
    with pytest.raises(AssertionError, match="FAILED"):
        _promtool("test", "rules", str(tmp_path / TESTS.name))


def test_every_metric_in_the_rules_is_one_that_we_export() -> None:
    exported = {
        f"{family.name}{suffix}"
        for family in Metrics().registry.collect()
        for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    }
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    expressions = [rule["expr"] for rule in rules]
    used = {name for one in expressions for name in re.findall(r"\b(?:mcp|a2a|nlweb|agent3)_\w+", one)}
    assert len(expressions) == 11
    assert used <= exported
    assert used == {
        "mcp_operation_latency_seconds_bucket",
        "a2a_message_queue_depth",
        "nlweb_browser_restarts_total",
        "mcp_auth_failures_total",
        "agent3_renewals_total",
        "agent3_events_dropped_total",
        "agent3_calls_total",
        "agent3_connections_refused_total",
        "agent3_worker_restarts_total",
        "agent3_dead_letters_oldest_seconds",
    }


@pytest.mark.requirement("RT-014-O04", "RT-014-O05", "RT-014-O06", "RT-014-O07")
def test_names_severities_and_messages_are_the_documented_ones() -> None:
    found = re.findall(
        r'- alert: (\w+).*?severity: (\w+).*?summary: "([^"]+)"',
        RULES.read_text(),
        re.DOTALL,
    )
    assert found[:5] == [
        ("MCPHighLatency", "warning", "MCP operations slow (p95 > 2s)"),
        ("A2AQueueBacklog", "critical", "A2A message queue backlog critical"),
        ("NLWebFrequentRestarts", "warning", "NLWeb browser restarting too frequently"),
        ("AuthenticationFailures", "critical", "High rate of authentication failures - possible attack"),
        ("AgentChangeWaits", "warning", "An agent describes itself in another way, and nobody has approved that"),
    ]


def _promtool(*arguments: str) -> str:
    run = subprocess.run([promtool(), *arguments], capture_output=True, text=True, timeout=240, check=False)
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    return output
