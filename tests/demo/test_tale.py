"""The demo as a user meets it: one gateway, agents of every kind, one of them killed in the middle."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
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
    with gateway(tmp_path, "--demo", stage=True) as running, Client(running.url) as client:
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

        # Killed once more, while a plan is being made: the plan is still right.
        planning = client.stream("travel-planner", capability="plan", input=tale.TRIP, timeout=120)
        asking = next(event.text for event in planning if event.kind == "status")
        assert asking is not None
        client.call("demo-stage", capability="take_down", input={"part": "flights"})
        plan = planning.result().value
        assert {name: plan["journey"][name] for name in CHEAPEST} == CHEAPEST
        assert plan["served"]["journey"]["agent"] == "demo-flights"
        assert plan["served"]["journey"]["route"] in ("A2A", "website"), "as fast as the machine was"

    # Nothing of it is stored, and the command tells a gateway without the demo from one with it.
    with gateway(tmp_path) as running, Client(running.url) as client:
        assert client.agents() == []
        with pytest.raises(NotFound):
            client.select("demo-flights")
        refused = run_agent3(tmp_path, "demo", "--server", running.url)
        assert refused.returncode == 2
        assert "agent3 serve --demo" in refused.stderr


def wait_for(client: Client, *parts: str) -> None:
    end = time.monotonic() + 180
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


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    if not found.exists():
        pytest.skip("the children of a process are read from /proc")
    return [
        int(child)
        for child in found.read_text().split()
        if b"agent3.demo" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


MINE = """
from agent3 import App
mine = [App("greeter"), App("Hotels", agent_id="my-hotels")]

@mine[0].capability(read_only=True)
def hello(name: str) -> str:
    return f"Hello, {name}"

@mine[1].capability(read_only=True)
def find_hotels(city: str) -> list[dict[str, float]]:
    "Find hotels in a city."
    raise AssertionError("the demo has no business here")
"""


HELD = """
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
"""
"""What a process of the demo does first; the gateway itself is a fork of ours."""


def test_the_demo_leaves_out_what_somebody_has_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MINE.replace("greeter", "travel-planner"))
    with (
        gateway(tmp_path, "own:mine", "--demo", AGENT3_BROWSER="/nowhere") as running,
        Client(running.url) as client,
    ):
        assert client.call("travel-planner", input={"name": "Ada"}).text == "Hello, Ada"
    assert "skips its travel-planner" in running.said()


def test_beside_somebodys_own_it_is_served_taken_down_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MINE)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "sitecustomize.py").write_text(HELD.format(go=str(tmp_path / "go")))
    how: dict[str, Any] = {"AGENT3_BROWSER": "/nowhere/chromium", "PYTHONPATH": str(tmp_path / "held")}
    with gateway(tmp_path, "own:mine", "--demo", stage=True, **how) as running, Client(running.url) as client:
        # The gateway serves before the demo is there.
        assert client.call("demo-stage", capability="parts").value["hotels"] == "starting"
        assert client.call("calculator", "2 * 3").value == 6
        (tmp_path / "go").touch()
        wait_for(client, "flights", "hotels")

        # What is somebody's own is not called.
        plan = client.call("travel-planner", capability="plan", input=tale.TRIP, timeout=120).value
        assert plan["served"]["hotel"] == {"agent": "demo-hotels", "route": "MCP"}
        assert not any("my-hotels" in note for note in plan["notes"])

        # Parts can be taken down, by several at once, and come back by themselves.
        down: dict[str, Any] = {"capability": "take_down", "input": {"part": "hotels", "seconds": 0.1}}
        with ThreadPoolExecutor(3) as takers:
            assert all(takers.map(lambda _: client.call("demo-stage", **down).text, range(3)))
        wait_for(client, "hotels")
        assert client.call("demo-hotels", capability="find_hotels", input={"city": "Rome"}).value

        # The command tells the tale at a running gateway, in plain text.
        told = run_agent3(tmp_path, "demo")
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith(f"Using the gateway at {running.url}\n")
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
