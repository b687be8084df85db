"""One page of metrics for several processes: what each counted, put together.

A process writes down what it counts as plain data (``take``), any other reads that and shows the whole (``render``).
Counts and timings add up. A level adds up too, unless all processes measure the same thing, such as the jobs in their
database: then the highest is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import prometheus_client as prometheus
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from agent3.observe.metrics import Level, Metrics

__all__ = ["Page", "add", "keep_counts", "render", "take"]

Page = dict[str, Any]
"""Families by name: kind, help text, and values by the name of a sample and its labels."""

_ADDS_UP = ("counter", "histogram")
_HIGHEST = frozenset({"process_start_time_seconds", "process_max_fds"})


def take(metrics: Metrics) -> Page:
    """What a process counts now, as plain data that JSON can hold."""
    page: Page = {}
    for family in metrics.registry.collect():
        samples = [[one.name, sorted(one.labels.items()), one.value] for one in family.samples]
        page[family.name] = {"kind": family.type, "help": family.documentation, "samples": samples}
    for name, level in vars(metrics).items():
        if isinstance(level, Level) and level.shared:
            page[level.name]["highest"] = True
        del name
    for name in _HIGHEST & page.keys():
        page[name]["highest"] = True
    return page


def add(pages: Iterable[Page]) -> Page:
    """The pages of several processes as one."""
    whole: Page = {}
    for page in pages:
        for name, family in page.items():
            into = whole.setdefault(name, {**family, "samples": []})
            known = into.setdefault("at", {})
            for sample, labels, value in family["samples"]:
                key = (sample, tuple(map(tuple, labels)))
                if key not in known:
                    known[key] = value
                elif into.get("highest"):
                    known[key] = max(known[key], value)
                else:
                    known[key] += value
    for family in whole.values():
        found = family.pop("at", {})
        family["samples"] = [
            [sample, [list(pair) for pair in labels], value] for (sample, labels), value in found.items()
        ]
    return whole


def keep_counts(page: Page) -> Page:
    """What stays true of a process that has ended: what it counted, but no level."""
    return {name: family for name, family in page.items() if family["kind"] in _ADDS_UP}


def render(page: Page) -> tuple[bytes, str]:
    """The page that Prometheus scrapes, and its content type."""

    class Whole(Collector):
        def collect(self) -> Iterator[Family]:
            for name, family in page.items():
                made = Family(name, family["help"], family["kind"])
                for sample, labels, value in family["samples"]:
                    made.add_sample(sample, dict(labels), value)
                yield made

    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(Whole())
    return prometheus.generate_latest(registry), prometheus.CONTENT_TYPE_LATEST
