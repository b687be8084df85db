"""A step stands before every kind of target: the tools, resources and prompts of MCP servers, A2A agents, websites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.client.client import Client

import agent3.a2a
from agent3.protocols.functions.standalone import Standalone
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
from agent3.settings import Calls, Limits, Settings
from tests.support import registration
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import served
from tests.support.probe import AROUND, ENTER, PROBE, WORDS, Shelf, Target, places, probing


@dataclass
class House:
    door: Hosted
    target: Target


@pytest.fixture(
    scope="module",
    params=[(place, kind) for place in places(few=True) for kind in (ENTER, AROUND)],
    ids=lambda given: f"{given[1].__name__}-{given[0]}",
)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with the probe at one place, and targets elsewhere that know nothing of it."""
    target, core = Target(), Standalone()
    core.run(core.gateway())
    settings = Settings(calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0))
    with ExitStack() as stack:
        stack.callback(core.close)
        peer = stack.enter_context(agent3.a2a.listening(target.plain, core=core))
        stack.enter_context(probing(*request.param))
        running = stack.enter_context(hosted(tmp_path_factory.mktemp("targets"), [], settings))
        shelf = served(MCPDoor(Shelf(target), DoorOptions(name="shelf")))
        url = running.run(shelf.__aenter__())
        stack.callback(lambda: running.run(shelf.__aexit__(None, None, None)))
        running.run(registration.add(running.server, url, "shelf"))
        running.run(registration.add(running.server, peer, "peer"))
        yield House(running, target)


Way = Callable[[Hosted], str]


def rest(agent: str) -> Way:
    return lambda door: door.call(agent, "hi").raw.decode()


def mcp(agent: str, mode: str, ask: Callable[[Client], Any]) -> Way:
    def way(door: Hosted) -> str:
        async def story() -> str:
            async with Client(f"{door.url}/agents/{agent}/mcp", mode=mode) as client:
                try:
                    return repr(await ask(client))
                except Exception as error:  # noqa: BLE001 - a refusal of what is not a tool is an error
                    return repr(error) + repr(getattr(error, "error", ""))

        return asyncio.run(asyncio.wait_for(story(), 60))

    return way


ASKED: dict[str, Callable[[Client], Any]] = {
    "tools/call": lambda client: client.call_tool("say", {}),
    "resources/read": lambda client: client.read_resource("shelf://tale"),
    "prompts/get": lambda client: client.get_prompt("retell"),
}
WAYS: dict[str, Way] = {
    "REST to MCP": rest("shelf"),
    "REST to A2A": rest("peer"),
    "MCP to A2A": mcp("peer", "auto", lambda client: client.call_tool("say", {"text": "hi"})),
    **{f"{method} {mode}": mcp("shelf", mode, ask) for method, ask in ASKED.items() for mode in ("auto", "legacy")},
}


def test_a_step_that_refuses_is_asked_and_obeyed(house: House) -> None:
    for name, way in WAYS.items():
        PROBE.clear(refuses=True)
        before = house.target.runs
        told = way(house.door)
        assert WORDS in told, (name, told)
        assert house.target.runs == before, name
        assert PROBE.entered, name


def test_a_step_that_only_looks_sees_every_turn_once(house: House) -> None:
    for name, way in WAYS.items():
        PROBE.clear()
        before = house.target.runs
        told = way(house.door)
        assert "said hi" in told, (name, told)
        assert (house.target.runs - before, len(PROBE.entered), len(PROBE.left)) == (1, 1, 1), name
