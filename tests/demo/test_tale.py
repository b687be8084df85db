"""The demo as a user meets it: one gateway, agents of every kind, one of them killed in the middle."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent3 import Client
from agent3.demo import tale
from agent3.errors import NotFound
from tests.support.gateway import gateway, run_agent3

CHEAPEST = {"number": "A3 101", "leaves": "07:15", "arrives": "07:40", "price": 49}
TITLES = ["Tram 28 through Alfama", "An evening of fado", "Tiles: a workshop"]


def heard(client: Client) -> tuple[list[str], dict[str, Any]]:
    """The titles of the finished scenes, and what was told."""
    scenes = tale.tell(client)
    titles: list[str] = []
    while True:
        try:
            scene = next(scenes)
        except StopIteration as end:
            return titles, end.value
        if scene.lines:
            titles.append(scene.title)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.requirement("RF-013-53")
def test_a_trip_is_planned_survives_the_death_of_the_flight_agent_and_says_which_route_served(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as running, Client(running.url) as client:
        titles, told = heard(client)
        assert len(titles) == 6
        assert told["parts"] == {"flights": "up", "hotels": "up", "websites": "up"}
        first, second = told["first"], told["second"]

        assert first["journey"] == CHEAPEST
        assert first["hotel"] == {"name": "Casa do Rio", "stars": 3, "price": 234.0}
        assert [one["title"] for one in first["activities"]] == TITLES
        assert first["total"] == 49 + 234
        assert first["served"] == {
            "journey": {"agent": "demo-flights", "route": "A2A"},
            "hotel": {"agent": "demo-hotels", "route": "MCP"},
            "activities": {"agent": "demo-activities", "route": "website"},
        }
        assert first["notes"] == []

        # The process is really gone, and the plan is the same: the airline's website gave what its agent would have.
        killed = re.search(r"process (\d+) was killed", told["killed"])
        assert killed is not None
        assert not is_running(int(killed[1]))
        assert second["served"]["journey"] == {"agent": "demo-flights", "route": "website"}
        assert second["served"] == {**first["served"], "journey": second["served"]["journey"]}
        assert second["notes"] == ["demo-flights did not answer by A2A: its website stood in."]
        for part in ("journey", "hotel", "activities", "total"):
            assert second[part] == first[part]
        assert told["ratings"]["demo-hotels"]["mean"] == 5.0
        assert told["ratings"]["demo-flights"]["mean"] < 5.0
        (route,) = running.get("/v1/routes").json["routes"]
        assert (route["capability"], route["also"]) == ("demo-flights.find_flights", "demo-airline.find_flights")
        assert (route["state"], route["origin"]) == ("ready", "demo")

        # It was brought back, and is asked again once the breaker lets it.
        assert client.call("demo-stage", capability="parts").value["flights"] == "up"


def test_killed_while_the_plan_is_being_made_the_plan_is_still_right(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as running, Client(running.url) as client:
        wait_for(client, "flights", "hotels", "websites")
        planning = client.stream("travel-planner", capability="plan", input=tale.TRIP, timeout=120)
        asking = next(event.text for event in planning if event.kind == "status")
        assert asking is not None
        client.call("demo-stage", capability="take_down", input={"part": "flights"})
        plan = planning.result().value
        assert {name: plan["journey"][name] for name in CHEAPEST} == CHEAPEST
        assert plan["served"]["journey"]["agent"] == "demo-flights"
        assert plan["served"]["journey"]["route"] in ("A2A", "website"), "as fast as the machine was"


def wait_for(client: Client, *parts: str) -> None:
    end = time.monotonic() + 90
    while any(client.call("demo-stage", capability="parts").value[part] != "up" for part in parts):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_without_a_browser_it_says_so_and_goes_on_with_what_there_is(tmp_path: Path) -> None:
    done = run_agent3(tmp_path, "demo", "--json", AGENT3_BROWSER="/nowhere/chromium")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "/nowhere/chromium" in told["parts"]["websites"]
    assert told["first"]["served"]["journey"] == {"agent": "demo-flights", "route": "A2A"}
    assert told["second"]["served"]["journey"] == {"agent": "demo-trains", "route": "Python"}
    assert sorted(told["second"]["notes"]) == [  # whoever answers first
        "Nothing found for the activities.",
        "demo-flights cannot be reached (unavailable).",
    ]
    assert told["ratings"]["demo-flights"]["mean"] == 1.0


def test_the_command_tells_it_in_plain_text_at_a_running_gateway_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo", AGENT3_BROWSER="/nowhere/chromium") as running:
        told = run_agent3(tmp_path, "demo")
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith(f"The gateway is {running.url}\n")
        assert "\x1b" not in told.stdout
        assert "NT 28, 21:00 to 09:00" in told.stdout
        children = [pid for pid in children_of(running.process.pid) if is_running(pid)]
        assert len(children) == 2
        running.process.kill()  # not even asked to stop
        running.process.wait(60)
        end = time.monotonic() + 60
        while any(map(is_running, children)):
            assert time.monotonic() < end, "its processes outlived the gateway"
            time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    if not found.exists():
        pytest.skip("the children of a process are read from /proc")
    return [
        int(child)
        for child in found.read_text().split()
        if b"agent3.demo" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_gateway_without_the_demo_is_told_from_one_with_it(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        told = run_agent3(tmp_path, "demo", "--server", running.url)
        assert told.returncode == 2
        assert "agent3 serve --demo" in told.stderr


def test_nothing_of_the_demo_is_stored(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as running, Client(running.url) as client:
        wait_for(client, "flights", "hotels")
    with gateway(tmp_path) as running, Client(running.url) as client:
        assert client.agents() == []
        with pytest.raises(NotFound):
            client.select("demo-flights")


MINE = """
from agent3 import App
mine = [App("travel-planner"), App("Hotels", agent_id="my-hotels")]

@mine[0].capability(read_only=True)
def hello(name: str) -> str:
    return f"Hello, {name}"

@mine[1].capability(read_only=True)
def find_hotels(city: str) -> list[dict[str, float]]:
    "Find hotels in a city."
    raise AssertionError("the demo has no business here")
"""


def test_the_demo_neither_hides_nor_calls_what_is_somebodys_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MINE)
    given = ("own:mine", "--demo")
    with gateway(tmp_path, *given, AGENT3_BROWSER="/nowhere") as running, Client(running.url) as client:
        assert client.call("travel-planner", input={"name": "Ada"}).text == "Hello, Ada"
    assert "leaves out its travel-planner" in running.said()
    (tmp_path / "own.py").write_text(MINE.replace("travel-planner", "greeter"))
    with gateway(tmp_path, *given, AGENT3_BROWSER="/nowhere") as running, Client(running.url) as client:
        wait_for(client, "flights", "hotels")
        plan = client.call("travel-planner", capability="plan", input=tale.TRIP, timeout=120).value
        assert plan["served"]["hotel"] == {"agent": "demo-hotels", "route": "MCP"}
        assert not any("my-hotels" in note for note in plan["notes"])


def test_the_gateway_serves_before_the_demo_is_there(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as running, Client(running.url) as client:
        assert client.call("demo-stage", capability="parts").value["hotels"] == "starting"
        assert client.call("calculator", "2 * 3").value == 6


def test_parts_can_be_taken_down_and_come_back_by_themselves(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo", AGENT3_BROWSER="/nowhere/chromium") as running, Client(running.url) as client:
        wait_for(client, "hotels")
        told: list[str] = []
        takers = [
            threading.Thread(
                target=lambda: told.append(
                    client.call("demo-stage", capability="take_down", input={"part": "hotels", "seconds": 0.1}).text
                )
            )
            for _ in range(3)
        ]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(30)
        assert len(told) == 3
        wait_for(client, "hotels")
        assert client.call("demo-hotels", capability="find_hotels", input={"city": "Rome"}).value
