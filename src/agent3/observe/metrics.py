"""What the gateway counts and times, in Prometheus' form.

The names, labels and buckets of RT-014 stand here exactly as it writes them, beside our own. Label values often come
from strangers, so every metric bounds them: a flood of names ends in ``other``. It knows nothing of calls or
protocols: whoever counts hands over a tuple of label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from threading import Lock
from typing import Final, Generic, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

__all__ = ["METRICS", "OTHER", "Bounded", "Count", "Level", "Metrics", "Timing"]

OTHER: Final = "other"
"""Where label values go that came after the cap."""

Labels = tuple[str, ...]
Metric = TypeVar("Metric", bound=MetricWrapperBase)

_LONGEST = 100
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Bounded(Generic[Metric]):
    """A metric whose label values cannot grow without end.

    Each label takes ``cap`` distinct values and the whole metric ``series`` combinations; what comes later is counted
    under ``other``. Values are cut to 100 characters, and what is not printable becomes a space. Safe from any
    thread, and a known combination is found without a lock.
    """

    def __init__(self, metric: Metric, labels: Labels = (), *, cap: int = 200, series: int = 2_000):
        self.metric = metric
        self.labels = labels
        self._cap = cap
        self._series = series
        self._lock = Lock()
        self._children: dict[Labels, Metric] = {}
        self._seen: tuple[Counter[str], ...] = tuple(Counter() for _ in labels)

    def child(self, labels: Labels) -> Metric:
        """The series of these label values, or the one that they fold into."""
        found = self._children.get(labels)
        return self._admit(labels) if found is None else found

    def remove(self, labels: Labels) -> None:
        """Forget a series whose subject is gone, and give its room to others; what was folded stays."""
        clean = tuple(map(_clean, labels))
        with self._lock:
            if self._children.pop(clean, None) is None or not self.labels:
                return
            self.metric.remove(*clean)
            for value, seen in zip(clean, self._seen, strict=True):
                seen[value] -= 1
                if seen[value] <= 0:
                    del seen[value]

    def _admit(self, given: Labels) -> Metric:
        """Find or make the series. Only folded names come here again, so what is remembered is bounded."""
        if len(given) != len(self.labels):
            raise ValueError(f"{self.metric} has the labels {self.labels} but was given {given!r}: give one value each")
        clean = tuple(map(_clean, given))
        with self._lock:
            labels = self._fold(clean)
            found = self._children.get(labels)
            if found is None:
                found = self.metric.labels(*labels) if labels else self.metric
                self._children[labels] = found
                for value, seen in zip(labels, self._seen, strict=True):
                    seen[value] += 1
            return found

    def _fold(self, labels: Labels) -> Labels:
        if labels in self._children:
            return labels
        folded = tuple(
            value if value in seen or len(seen) < self._cap else OTHER
            for value, seen in zip(labels, self._seen, strict=True)
        )
        # Two labels of 200 values each could still make 40,000 series, hence the second bound.
        if len(self._children) < self._series or folded in self._children:
            return folded
        return (OTHER,) * len(labels)


class Count(Bounded[prometheus.Counter]):
    """Something that only ever adds up."""

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Add ``amount``. On the path of every call, so the usual case is one lookup in a dictionary."""
        child = self._children.get(labels)
        if child is None:
            child = self._admit(labels)
        child.inc(amount)


class Level(Bounded[prometheus.Gauge]):
    """Something that goes up and down. Under ``other`` a ``set`` shows whichever value came last."""

    def set(self, labels: Labels, value: float) -> None:
        """It stands at ``value`` now."""
        self.child(labels).set(value)

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """It rose by ``amount``."""
        self.child(labels).inc(amount)

    def dec(self, labels: Labels = (), amount: float = 1.0) -> None:
        """It fell by ``amount``."""
        self.child(labels).dec(amount)


class Timing(Bounded[prometheus.Histogram]):
    """How long something takes, in seconds."""

    def observe(self, labels: Labels, value: float) -> None:
        """It took ``value`` seconds once more."""
        child = self._children.get(labels)
        if child is None:
            child = self._admit(labels)
        child.observe(value)


class Metrics:
    """All metrics of one gateway, in a registry of their own, so that two gateways in one process stay apart.

    Label values are given as a tuple in the order of the declaration: ``calls.inc(("mcp", "local", "done", ""))``.
    """

    def __init__(self, *, cap: int = 200) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._cap = cap
        prometheus.ProcessCollector(registry=self.registry)
        self._declare_documented()
        self._declare_calls()
        self._declare_house()

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus scrapes, and its content type."""
        return prometheus.generate_latest(_WithoutCreated(self.registry)), prometheus.CONTENT_TYPE_LATEST

    def _declare_documented(self) -> None:
        """RT-014, word for word, and the counter that its fourth alert asks for."""
        count, level = self._count, self._level
        self.mcp_tool_invocations = count(
            "mcp_tool_invocations_total", "Total MCP tool invocations", "tool_name", "status"
        )
        self.mcp_latency = self._timing(
            "mcp_operation_latency_seconds", "MCP operation latency", (0.05, 0.1, 0.5, 1.0, 2.0, 5.0), "operation"
        )
        self.mcp_auth_failures = count("mcp_auth_failures_total", "Total MCP authentication failures")
        self.a2a_messages_sent = count(
            "a2a_messages_sent_total", "Total A2A messages sent", "from_agent", "to_agent", "message_type"
        )
        self.a2a_queue_depth = level("a2a_message_queue_depth", "Current A2A message queue depth", "agent_id")
        self.nlweb_actions_executed = count(
            "nlweb_actions_total", "Total NLWeb actions executed", "action_type", "status"
        )
        self.nlweb_browser_restarts = count("nlweb_browser_restarts_total", "Total browser restarts")

    def _declare_calls(self) -> None:
        """What happens to a call on its way through the steps."""
        count = self._count
        self.calls = count("agent3_calls_total", "Turns that ended", "door", "protocol", "status", "code")
        self.call_seconds = self._timing(
            "agent3_call_seconds", "Seconds that a turn took, all attempts together", _CALL_BUCKETS, "protocol"
        )
        self.attempts = count("agent3_attempts_total", "Attempts at a route", "protocol", "status")
        self.retries = count("agent3_retries_total", "Attempts repeated, by what went wrong", "protocol", "code")
        self.fallbacks = count("agent3_fallbacks_total", "Hops to the next route", "from_protocol", "to_protocol")
        self.refusals = count("agent3_refusals_total", "Calls refused before they were sent", "code")
        self.dead_letters = count("agent3_dead_letters_total", "Calls that ended as dead letters", "code")
        self.cache = count("agent3_cache_total", "Lookups in the cache of results", "result")
        self.cost_usd = count("agent3_cost_usd_total", "Cost of calls in US dollars", "agent")
        self.breaker_state = self._level(
            "agent3_breaker_state", "Breaker of a route: 0 closed, 1 half-open, 2 open", "route"
        )
        self.breaker_transitions = count("agent3_breaker_transitions_total", "Changes of a breaker", "to")

    def _declare_house(self) -> None:
        """How the gateway itself is."""
        count, level = self._count, self._level
        self.jobs = level("agent3_jobs", "Jobs by status", "status")
        self.parked = level("agent3_parked", "Frames parked while a person thinks")
        self.ledger_backlog = level("agent3_ledger_backlog", "Ledger rows not yet committed")
        self.events_dropped = count("agent3_events_dropped_total", "Events that no reader will see", "reason")
        self.missed_targets = count("agent3_missed_targets_total", "Operations slower than their target", "operation")
        self.outbound_blocked = count("agent3_outbound_blocked_total", "Connections that the gate refused", "rule")

    def _count(self, name: str, help_text: str, *labels: str) -> Count:
        return Count(prometheus.Counter(name, help_text, labels, registry=self.registry), labels, cap=self._cap)

    def _level(self, name: str, help_text: str, *labels: str) -> Level:
        return Level(prometheus.Gauge(name, help_text, labels, registry=self.registry), labels, cap=self._cap)

    def _timing(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Timing:
        histogram = prometheus.Histogram(name, help_text, labels, registry=self.registry, buckets=buckets)
        return Timing(histogram, labels, cap=self._cap)


class _WithoutCreated(Collector):
    """A registry without the ``_created`` series, which nobody documents or asks for and which double every counter.

    The library can only turn them off for the whole process, and that is not ours to decide.
    """

    def __init__(self, registry: prometheus.CollectorRegistry):
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


def _clean(value: str) -> str:
    """A label value that can be shown; a lone surrogate would make the whole page fail to encode."""
    short = str(value)[:_LONGEST]
    return short if short.isprintable() else "".join(one if one.isprintable() else " " for one in short)


METRICS = Metrics()
"""The process's own, used by the documented classes when they stand alone."""
