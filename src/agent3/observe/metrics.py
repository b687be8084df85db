"""What the gateway counts and times, in Prometheus' format.

The names, labels and buckets of RT-014 stand here exactly as it writes them, beside our own. Label values often come
from strangers, so every metric bounds them: a flood of names ends in ``other``. It knows nothing of calls or protocols:
the caller passes a tuple of label values.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from threading import Lock
from typing import ClassVar, Final, Generic, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["CALL_BUCKETS", "METRICS", "OTHER", "Bounded", "Count", "Level", "Metrics", "Number", "Spread", "Timing"]

OTHER: Final = "other"
"""The label value for everything beyond the cap."""

Labels = tuple[str, ...]

_LONGEST_VALUE = 100
CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Number:
    """One series of a count or level."""

    __slots__ = ("_lock", "value")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.value = 0.0

    def inc(self) -> None:
        """Count one more."""
        lock = self._lock
        lock.acquire()  # += is not atomic; with every call, and a with statement takes longer
        try:
            self.value += 1.0
        finally:
            lock.release()


class Spread:
    """One series of a timing: how many values fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "_lock", "buckets", "sum")

    def __init__(self, lock: Lock, bounds: tuple[float, ...]) -> None:
        self._lock = lock
        self._bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Record that it took ``value`` seconds."""
        place, lock = bisect_left(self._bounds, value), self._lock
        lock.acquire()
        try:
            self.buckets[place] += 1
            self.sum += value
        finally:
            lock.release()


Series = TypeVar("Series", Number, Spread)


class Bounded(Collector, Generic[Series]):
    """A metric with a bounded number of label values.

    Each label takes ``cap`` distinct values and the whole metric ``series`` combinations; further ones are counted
    under ``other``. Values are cut to 100 characters, and unprintable characters become spaces. Safe from any thread,
    and a known combination is found without a lock. The numbers are our own and the library only renders them: every
    call counts and times half a dozen of them, and the library takes up to twice as long (docs/decisions/0012).
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Labels = (),
        *,
        registry: prometheus.CollectorRegistry | None = None,
        cap: int = 200,
        series: int = 2_000,
    ):
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self._cap = cap
        self._max_series = series
        self._lock = Lock()
        self._children: dict[Labels, Series] = {}
        self._seen: tuple[Counter[str], ...] = tuple(Counter() for _ in labels)
        if not labels:
            self._children[()] = self._new()
        if registry is not None:
            registry.register(self)

    def series(self, labels: Labels) -> Series:
        """The series of these labels, for one who counts there with every call; not where series are removed."""
        return self._children.get(labels) or self._admit(labels)

    def remove(self, labels: Labels) -> None:
        """Forget a series whose subject is gone, and make room for others; what was counted as other stays there."""
        clean = tuple(map(_clean, labels))
        with self._lock:
            if not self.labels or self._children.pop(clean, None) is None:
                return
            for value, seen in zip(clean, self._seen, strict=True):
                seen[value] -= 1
                if seen[value] <= 0:
                    del seen[value]

    def collect(self) -> Iterable[Family]:
        """What a scrape sees."""
        with self._lock:
            family = self._render(list(self._children.items()))
        yield family

    def describe(self) -> Iterable[Family]:
        """What it will show; the registry uses it to refuse two metrics of one name."""
        yield self._render([])

    @abstractmethod
    def _new(self) -> Series:
        """An empty series."""

    @abstractmethod
    def _render(self, series: list[tuple[Labels, Series]]) -> Family:
        """The series in the library's form."""

    def _admit(self, given: Labels) -> Series:
        """Find or make the series. Combinations that became ``other`` come here each time, so memory is bounded."""
        if len(given) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels} but was given {given!r}: give one value each")
        labels = tuple(map(_clean, given))
        with self._lock:
            if labels not in self._children:
                labels = tuple(
                    value if value in seen or len(seen) < self._cap else OTHER
                    for value, seen in zip(labels, self._seen, strict=True)
                )
                # Two labels of 200 values each could still make 40,000 series, hence the second bound.
                if len(self._children) >= self._max_series and labels not in self._children:
                    labels = (OTHER,) * len(labels)
            found = self._children.get(labels)
            if found is None:
                found = self._children[labels] = self._new()
                for value, seen in zip(labels, self._seen, strict=True):
                    seen[value] += 1
            return found


class _Scalar(Bounded[Number]):
    """A metric whose series are single numbers."""

    _family: ClassVar[type[CounterMetricFamily] | type[GaugeMetricFamily]]

    def _new(self) -> Number:
        return Number(self._lock)

    def _render(self, series: list[tuple[Labels, Number]]) -> Family:
        family = self._family(self.name, self.help_text, labels=self.labels)
        for labels, number in series:
            family.add_metric(labels, number.value)
        return family


class Count(_Scalar):
    """Something that only ever adds up."""

    _family = CounterMetricFamily

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Add ``amount``, which must not be negative. On the path of every call: usually one lookup."""
        if not amount >= 0:  # NaN too, which would spoil the series for good
            raise ValueError(f"{self.name} only increases, but was given {amount}")
        # Without the lock: a dict's get is atomic, and a series is never replaced by another of the same labels.
        child = self._children.get(labels) or self._admit(labels)
        with self._lock:  # += is not atomic
            child.value += amount


class Level(_Scalar):
    """Something that goes up and down. Under ``other``, ``set`` shows whichever value came last."""

    _family = GaugeMetricFamily
    shared = False
    """Whether every process of a gateway shows the same value, because it is measured in their database."""

    def set(self, labels: Labels, value: float) -> None:
        """Set it to ``value``."""
        child = self._children.get(labels) or self._admit(labels)
        child.value = float(value)

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Raise it by ``amount``."""
        child = self._children.get(labels) or self._admit(labels)
        with self._lock:
            child.value += amount


class Timing(Bounded[Spread]):
    """How long something takes, in seconds."""

    def __init__(
        self,
        name: str,
        help_text: str,
        buckets: tuple[float, ...],
        labels: Labels = (),
        *,
        registry: prometheus.CollectorRegistry | None = None,
        cap: int = 200,
    ):
        self.bounds = buckets
        super().__init__(name, help_text, labels, registry=registry, cap=cap)

    def observe(self, labels: Labels, value: float) -> None:
        """Record that it took ``value`` seconds."""
        (self._children.get(labels) or self._admit(labels)).observe(value)

    def _new(self) -> Spread:
        return Spread(self._lock, self.bounds)

    def _render(self, series: list[tuple[Labels, Spread]]) -> Family:
        family = HistogramMetricFamily(self.name, self.help_text, labels=self.labels)
        names = [*map(floatToGoString, self.bounds), "+Inf"]
        for labels, spread in series:
            cumulated = accumulate(map(float, spread.buckets))
            family.add_metric(labels, list(zip(names, cumulated, strict=True)), spread.sum)
        return family


class Metrics:
    """All metrics of one gateway, in a registry of their own, so that two gateways in one process stay apart.

    Label values are given as a tuple in the order of the declaration: ``attempts.inc(("mcp", "answered"))``.
    """

    def __init__(self, *, cap: int = 200) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)

        def count(name: str, help_text: str, *labels: str, series: int = 2_000) -> Count:
            return Count(name, help_text, labels, registry=self.registry, cap=cap, series=series)

        def level(name: str, help_text: str, *labels: str, shared: bool = False) -> Level:
            made = Level(name, help_text, labels, registry=self.registry, cap=cap)
            made.shared = shared
            return made

        def timing(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Timing:
            return Timing(name, help_text, buckets, labels, registry=self.registry, cap=cap)

        # RT-014, word for word, and the counter that its fourth alert asks for.
        self.mcp_tool_invocations = count(
            "mcp_tool_invocations_total", "Total MCP tool invocations", "tool_name", "status"
        )
        self.mcp_latency = timing(
            "mcp_operation_latency_seconds", "MCP operation latency", (0.05, 0.1, 0.5, 1.0, 2.0, 5.0), "operation"
        )
        self.mcp_auth_failures = count("mcp_auth_failures_total", "Total MCP authentication failures")
        self.a2a_messages_sent = count(
            "a2a_messages_sent_total", "Total A2A messages sent", "from_agent", "to_agent", "message_type"
        )
        self.a2a_references_dropped = count(
            "agent3_a2a_references_dropped_total",
            "Task ids in messages that were dropped because the task is not the caller's",
        )
        self.a2a_cancellations = count(
            "agent3_a2a_cancellations_total",
            "Tasks of A2A agents that were to be cancelled after their caller left, by reason and result",
            "reason",
            "result",
        )
        self.a2a_queue_depth = level(
            "a2a_message_queue_depth", "Current A2A message queue depth", "agent_id", shared=True
        )
        self.nlweb_actions_executed = count(
            "nlweb_actions_total", "Total NLWeb actions executed", "action_type", "status"
        )
        self.nlweb_browser_restarts = count("nlweb_browser_restarts_total", "Total browser restarts")

        # Calls on their way through the steps.
        self.calls = count(
            *("agent3_calls_total", "Turns that ended", "agent", "door", "protocol", "status", "code"), series=5_000
        )
        self.call_seconds = timing(
            *("agent3_call_seconds", "Seconds that a turn took, including all attempts", CALL_BUCKETS),
            *("agent", "protocol"),
        )
        self.attempts = count("agent3_attempts_total", "Attempts at a route", "protocol", "status")
        self.retries = count("agent3_retries_total", "Attempts repeated, by error code", "protocol", "code")
        self.fallbacks = count(
            "agent3_fallbacks_total", "Times that a call moved on to the next route", "from_protocol", "to_protocol"
        )
        self.refusals = count("agent3_refusals_total", "Calls refused before they were sent", "code")
        self.dead_letters = count("agent3_dead_letters_total", "Calls that ended as dead letters", "code")
        self.cache = count("agent3_cache_total", "Lookups in the result cache", "result")
        self.approvals = count("agent3_approvals_total", "Approvals requested, by result", "result")
        self.sentences = count("agent3_sentences_total", "Messages read as sentences, by result", "reading")
        self.open_questions_refused = count(
            "agent3_open_questions_refused_total", "Questions beyond what one client may leave open", "agent"
        )
        self.cost_usd = count("agent3_cost_usd_total", "Cost of calls in US dollars", "agent")
        self.budgets_exceeded = count(
            "agent3_budgets_exceeded_total", "Calls beyond a budget, refused or with a warning", "action", "whose"
        )
        self.reports_capped = count(
            "agent3_reported_costs_capped_total", "Calls whose agent reported a higher cost than is counted", "agent"
        )
        self.cost_standards_missed = count(
            "agent3_cost_standards_missed_total", "Calls that cost more than expected", "standard"
        )
        self.breaker_state = level(
            "agent3_breaker_state",
            "State of the breaker of a route: 0 closed, 1 half-open, 2 open",
            "route",
            shared=True,
        )
        self.breaker_transitions = count("agent3_breaker_transitions_total", "State changes of breakers", "to")

        # The gateway itself.
        self.jobs = level("agent3_jobs", "Jobs by status", "status", shared=True)
        self.renewals = count("agent3_renewals_total", "Agent cards fetched again", "result")
        self.foreign_names_refused = count(
            "agent3_foreign_names_refused_total", "Deceptive names of agents and tools found"
        )
        self.questions_refused = count(
            "agent3_questions_refused_total", "Questions of agents that were not shown to callers"
        )
        self.secrets_withheld = count("agent3_secrets_withheld_total", "Secrets withheld from an unconfirmed origin")
        self.parked = level("agent3_parked", "Functions parked in memory while they wait for an answer")
        self.ledger_backlog = level("agent3_ledger_backlog", "Ledger rows not yet committed")
        self.events_dropped = count(
            "agent3_events_dropped_total", "Events dropped before a reader received them", "reason"
        )
        self.dead_letters_waiting = level(
            *("agent3_dead_letters_waiting", "Dead letters not yet replayed", "place"), shared=True
        )
        self.dead_letters_oldest = level(
            *(
                "agent3_dead_letters_oldest_seconds",
                "Age of the oldest dead letter not yet replayed",
                "place",
            ),
            shared=True,
        )
        self.dead_letters_dropped = count(
            "agent3_dead_letters_dropped_total", "Dead letters dropped because there were too many", "place"
        )
        self.webhooks = count("agent3_webhooks_total", "Webhook delivery attempts by result", "result")
        self.a2a_callbacks = count(
            "agent3_a2a_callbacks_total", "Callbacks received from called agents, by result", "result"
        )
        self.webhooks_waiting = level("agent3_webhooks_waiting", "Webhooks waiting for delivery", shared=True)
        self.missed_targets = count("agent3_missed_targets_total", "Operations slower than their target", "operation")
        self.outbound_blocked = count(
            "agent3_outbound_blocked_total", "Connections refused by the outbound gate", "rule"
        )

        self.connections_closed = count(
            "agent3_connections_refused_total", "Connections and requests refused or closed for lack of room", "reason"
        )
        self.workers = level("agent3_workers", "Worker processes that serve (with serve --workers)")
        self.worker_restarts = count("agent3_worker_restarts_total", "Worker processes restarted, by reason", "reason")
        self.handovers = count(
            "agent3_connections_handed_over_total", "Connections passed to another worker process, by result", "result"
        )
        self.loop_held = timing(
            "agent3_loop_held_seconds",
            "Seconds that the event loop was blocked, if over 100 ms, by cause",
            (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
            "cause",
        )

        # Browsers, and the websites they visit.
        self.nlweb_sessions = level("agent3_web_sessions", "Browser sessions by state", "state")
        self.nlweb_browsers_ended = count("agent3_web_browsers_ended_total", "Browsers replaced by a new one", "reason")
        self.nlweb_throttled = count(
            "agent3_web_throttled_total", "Pages delayed to respect the pace of a website, by reason", "reason"
        )
        self.nlweb_banners = count("agent3_web_banners_total", "Cookie banners closed, by the consent given", "consent")
        self.nlweb_heals = count("agent3_web_heals_total", "Attempts to heal selectors that no longer match", "result")

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus scrapes, and its content type."""
        return prometheus.generate_latest(self.registry), prometheus.CONTENT_TYPE_LATEST


def _clean(value: str) -> str:
    """A label value that can be shown; a lone surrogate would make the whole page fail to encode."""
    short = str(value)[:_LONGEST_VALUE]
    return short if short.isprintable() else "".join(char if char.isprintable() else " " for char in short)


METRICS = Metrics()
"""The metrics of the process, used by the documented classes when they stand alone."""
