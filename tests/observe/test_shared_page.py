"""The metrics of several processes on one page."""

from __future__ import annotations

import json

from agent3.observe import shared_page
from agent3.observe.metrics import Metrics


def test_counts_and_timings_add_up_and_what_all_measure_alike_does_not() -> None:
    one, other = Metrics(), Metrics()
    for metrics, amount in ((one, 2), (other, 3)):
        metrics.retries.inc(("mcp", "timeout"), amount)
        metrics.parked.set((), amount)
        metrics.jobs.set(("done",), amount)
        metrics.call_seconds.observe(("a", "mcp"), 0.02)
    pages = [json.loads(json.dumps(shared_page.take(metrics))) for metrics in (one, other)]
    text = shared_page.render(shared_page.add(pages))[0].decode()
    assert 'agent3_retries_total{code="timeout",protocol="mcp"} 5.0' in text
    assert "agent3_parked 5.0" in text
    assert 'agent3_jobs{status="done"} 3.0' in text  # both read the same table
    assert 'agent3_call_seconds_count{agent="a",protocol="mcp"} 2.0' in text
    assert 'agent3_call_seconds_bucket{agent="a",le="0.01",protocol="mcp"} 0.0' in text
    assert 'agent3_call_seconds_bucket{agent="a",le="0.025",protocol="mcp"} 2.0' in text


def test_a_page_of_one_says_what_that_one_says() -> None:
    metrics = Metrics()
    metrics.retries.inc(("mcp", "timeout"))
    metrics.call_seconds.observe(("a", "mcp"), 0.02)
    alone = {line for line in metrics.render()[0].decode().splitlines() if not line.startswith("process_")}
    shared = shared_page.render(shared_page.add([shared_page.take(metrics)]))[0].decode().splitlines()
    assert alone == {line for line in shared if not line.startswith("process_")}


def test_what_has_ended_leaves_its_counts_but_no_levels() -> None:
    metrics = Metrics()
    metrics.retries.inc(("mcp", "timeout"))
    metrics.parked.set((), 4)
    left = shared_page.keep_counts(shared_page.take(metrics))
    text = shared_page.render(left)[0].decode()
    assert "agent3_retries_total" in text
    assert "agent3_parked" not in text
