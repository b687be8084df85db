"""RT-014's table for websites, on a page of loopback: the best of a few tries, for other tests run at the same time.

How it compares with Playwright by hand is the business of ``python -m bench nlweb``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import CallTimeout
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.visit.page_session import TARGETS, Timeouts
from tests.support.sites import AIRLINE, Site

pytestmark = pytest.mark.browser

A = ActionType


def best(deed: Callable[[], Any], tries: int = 3) -> float:
    """The seconds of the quickest try."""
    laps = []
    for _ in range(tries):
        began = time.perf_counter()
        deed()
        laps.append(time.perf_counter() - began)
    return min(laps)


@pytest.fixture(scope="module")
def executor() -> Iterator[NLWebExecutor]:
    steps = [
        NLWebAction(action_type=A.NAVIGATE, value="/flights"),
        NLWebAction(action_type=A.TYPE, selector="#from", value="{origin}"),
        NLWebAction(action_type=A.TYPE, selector="#to", value="SFO"),
        NLWebAction(action_type=A.SELECT, selector="#class", value="b"),
        NLWebAction(action_type=A.CLICK, selector="button"),
        NLWebAction(action_type=A.EXTRACT, selector=".flight-card", extract_schema={"name": ".name"}),
    ]
    stuck = [NLWebAction(action_type=A.NAVIGATE, value="/"), NLWebAction(action_type=A.CLICK, selector="#none")]
    with Site(AIRLINE) as site:
        actions = {"search": steps, "stuck": stuck}
        interface = NLWebInterface(interface_id="air", name="Air", base_url=site.url, actions=actions)
        with NLWebExecutor(interface) as executor:
            yield executor


@pytest.mark.requirement("RT-014-P10", "RF-013-V3")
def test_a_browser_starts_within_two_seconds_and_is_used_again(executor: NLWebExecutor) -> None:
    other = NLWebExecutor(executor.interface)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        other.start_browser()
        took.append(time.perf_counter() - began)
        session = other._session
        other.start_browser()
        assert other._session is session
        other.stop_browser()
        if took[-1] < 2.0:
            break
    assert min(took) < 2.0


@pytest.mark.requirement("RT-014-P11")
@pytest.mark.requirement("RT-014-P12")
@pytest.mark.requirement("RT-014-P13", "RF-013-V3")
@pytest.mark.requirement("RT-014-P14")
def test_pages_actions_extractions_and_sequences_keep_their_targets(executor: NLWebExecutor) -> None:
    single = executor._execute_single_action
    assert best(lambda: single(NLWebAction(action_type=A.NAVIGATE, value="/flights"))) < TARGETS[A.NAVIGATE] == 3.0
    assert best(lambda: single(NLWebAction(action_type=A.CHECK, selector="#direct"))) < 1.0
    assert best(lambda: executor.execute_action("search", {"origin": "NYC"})) < 10.0
    cards = NLWebAction(action_type=A.EXTRACT, selector=".flight-card", extract_schema={"price": ".price"})
    assert best(lambda: single(cards)) < TARGETS[A.EXTRACT] == 2.0


@pytest.mark.requirement("RT-014-P12")
@pytest.mark.requirement("RT-014-P14")
def test_a_step_and_a_sequence_end_when_their_time_is_over(executor: NLWebExecutor) -> None:
    hasty = NLWebExecutor(executor.interface, timeouts=Timeouts(step=0.2, sequence=5.0))
    with hasty:
        began = time.perf_counter()
        with pytest.raises(CallTimeout, match="#none"):
            hasty.execute_action("stuck")
        assert time.perf_counter() - began < 5.0
