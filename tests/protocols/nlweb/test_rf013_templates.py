"""RF-013's own templates for the scenarios 41 to 43, as they stand in the requirements, limits included.

example.com and airline.com are answered by a site on loopback, through the documented variables AGENT3_HOSTS and
AGENT3_HOST_KEYS; the templates know nothing of it. ``time`` is a clock that a busy machine does not drive.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.nlweb import NLWebExecutor
from tests.support import processor_clock as time
from tests.support.sites import AIRLINE, Authority, Site


@pytest.fixture(autouse=True)
def _the_web_is_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    authority = Authority(tmp_path)
    with Site(AIRLINE, authority.context("example.com", "airline.com")) as site:
        monkeypatch.setenv("AGENT3_HOSTS", f"example.com={site.host},airline.com={site.host}")
        monkeypatch.setenv("AGENT3_HOST_KEYS", authority.digest)
        yield


@pytest.mark.requirement("RF-013-41")
def test_nlweb_interface_definition() -> None:
    """RF-013: NLWeb Scenario 41 - Interface Definition"""
    interface = NLWebInterface(
        interface_id="airline",
        name="Airline Booking",
        base_url="https://airline.com",
        actions={
            "search_flights": [
                NLWebAction(action_type=ActionType.NAVIGATE, value="https://airline.com/flights"),
                NLWebAction(action_type=ActionType.TYPE, selector="#from", value="{origin}"),
                NLWebAction(action_type=ActionType.TYPE, selector="#to", value="{destination}"),
                NLWebAction(action_type=ActionType.TYPE, selector="#date", value="{date}"),
                NLWebAction(action_type=ActionType.CLICK, selector="button[type='submit']"),
                NLWebAction(
                    action_type=ActionType.EXTRACT,
                    selector=".flight-card",
                    extract_schema={"airline": ".name", "price": ".price"},
                ),
            ]
        },
    )

    assert "search_flights" in interface.actions
    assert len(interface.actions["search_flights"]) == 6
    assert interface.actions["search_flights"][0].action_type == ActionType.NAVIGATE


@pytest.mark.browser
@pytest.mark.requirement("RF-013-42")
def test_nlweb_action_execution() -> None:
    """RF-013: NLWeb Scenario 42 - Action Execution"""
    interface = NLWebInterface(interface_id="test", name="Test", base_url="https://example.com", actions={})

    executor = NLWebExecutor(interface)
    executor.start_browser(headless=True)

    navigate_action = NLWebAction(action_type=ActionType.NAVIGATE, value="https://example.com")

    start = time.time()
    executor._execute_single_action(navigate_action)
    duration = time.time() - start

    assert "example.com" in executor.page.url
    assert duration < 3.0

    executor.stop_browser()


@pytest.mark.requirement("RF-013-43")
def test_nlweb_parameter_injection() -> None:
    """RF-013: NLWeb Scenario 43 - Parameter Injection"""
    interface = NLWebInterface(interface_id="test", name="Test", base_url="https://example.com", actions={})

    executor = NLWebExecutor(interface)

    action = NLWebAction(action_type=ActionType.TYPE, selector="#input", value="{origin}")

    injected = executor._inject_parameters(action, {"origin": "NYC"})

    assert injected.value == "NYC"
    assert "{origin}" not in injected.value
