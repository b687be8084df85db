"""RT-014's table for websites, on a page of loopback.

Other tests run at the same time, so a target counts as met by the quickest of several tries, and the start of a browser
is held against the processor time that it takes. How it compares with Playwright by hand is the business of
``python -m bench nlweb``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import CallTimeout
from agent3.nlweb import NLWebExecutor
from agent3.protocols.nlweb.visit.page_session import TARGETS, Timeouts
from faults.kill_browser import descendants
from tests.support.sites import AIRLINE, Site

pytestmark = pytest.mark.browser

A = ActionType


def meets(target: float, deed: Callable[[], Any], tries: int = 20) -> bool:
    """Whether one of the tries takes less than the target."""
    for _ in range(tries):
        began = time.perf_counter()
        deed()
        if time.perf_counter() - began < target:
            return True
    return False


def processor_seconds(pids: set[int]) -> float:
    """The time that some processes have spent on a processor: on a busy machine it stays what it is."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):  # a helper that has ended already
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


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
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked at in /proc")
def test_a_browser_starts_within_two_seconds_of_work_and_is_used_again(executor: NLWebExecutor) -> None:
    other = NLWebExecutor(executor.interface)
    before = descendants(os.getpid())
    other.start_browser()
    try:
        assert processor_seconds(descendants(os.getpid()) - before) < 2.0
        session = other._session
        other.start_browser()
        assert other._session is session
    finally:
        other.stop_browser()


@pytest.mark.requirement("RT-014-P11")
@pytest.mark.requirement("RT-014-P12")
@pytest.mark.requirement("RT-014-P13", "RF-013-V3")
@pytest.mark.requirement("RT-014-P14")
def test_pages_actions_extractions_and_sequences_keep_their_targets(executor: NLWebExecutor) -> None:
    single = executor._execute_single_action
    cards = NLWebAction(action_type=A.EXTRACT, selector=".flight-card", extract_schema={"price": ".price"})
    assert (TARGETS[A.NAVIGATE], TARGETS[A.EXTRACT]) == (3.0, 2.0)
    assert meets(3.0, lambda: single(NLWebAction(action_type=A.NAVIGATE, value="/flights")))
    assert meets(1.0, lambda: single(NLWebAction(action_type=A.CHECK, selector="#direct")))
    assert meets(10.0, lambda: executor.execute_action("search", {"origin": "NYC"}))
    assert meets(2.0, lambda: single(cards))


@pytest.mark.requirement("RT-014-P12")
@pytest.mark.requirement("RT-014-P14")
def test_a_step_ends_when_its_time_is_over(executor: NLWebExecutor) -> None:
    hasty = NLWebExecutor(executor.interface, timeouts=Timeouts(step=0.2))
    with hasty, pytest.raises(CallTimeout, match=r"'#none'.* within 0\.2 s"):
        hasty.execute_action("stuck")


@pytest.mark.requirement("RT-014-P14")
def test_a_sequence_ends_when_its_time_is_over(executor: NLWebExecutor) -> None:
    hasty = NLWebExecutor(executor.interface, timeouts=Timeouts(step=60.0, sequence=1.0))
    with hasty, pytest.raises(CallTimeout, match=r"longer than 1 s|within (1|0\.\d+) s"):
        hasty.execute_action("stuck")
