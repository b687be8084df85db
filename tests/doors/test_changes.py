"""What was compiled for an agent ends with it: once it is registered anew, steps judge it anew at every door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from agent3.calls.step import Aim, Entered, Step
from agent3.model import Call, Principal
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor, Tool
from agent3.settings import Calls, Limits, Settings
from tests.support import registration
from tests.support.doors import Door, a2a_rpc, ask, legacy, modern, rest
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import served
from tests.support.probe import PROBE, WORDS, Shelf, Target, places, probing


class RefuseDanger(Step):
    """Has nothing to do with a capability that is not called dangerous."""

    name = "refuse_danger"

    def idle(self, aim: Aim) -> bool:
        return "dangerous" not in aim.capability.description

    def enter(self, call: Call) -> Entered:
        return PROBE.refusal()


class Changing(Shelf):
    """A server whose tool is described otherwise from some day on."""

    description = "harmless"

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        return [Tool(name="say", description=self.description, input_schema=schema)]


@dataclass
class House:
    door: Hosted
    target: Target
    server: Changing
    url: str


@pytest.fixture(params=places(few=True))
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    target = Target()
    server = Changing(target)
    settings = Settings(calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0))
    with ExitStack() as stack:
        stack.enter_context(probing(request.param, RefuseDanger))
        running = stack.enter_context(hosted(tmp_path_factory.mktemp("changes"), [], settings))
        serving = served(MCPDoor(server, DoorOptions(name="target")))
        url = running.run(serving.__aenter__())
        stack.callback(lambda: running.run(serving.__aexit__(None, None, None)))
        yield House(running, target, server, url)


DOORS: dict[str, Door] = {
    "REST": rest,
    "NLWeb": ask(streaming=False),
    "MCP modern": modern("/mcp", fast=True),
    "MCP legacy": legacy("/mcp", fast=True),
    "MCP direct, modern": modern("/mcp", fast=True, direct=True),
    "MCP direct, legacy": legacy("/mcp", fast=True, direct=True),
    "MCP of the agent, modern": modern("/agents/target/mcp", fast=True),
    "MCP of the agent, legacy": legacy("/agents/target/mcp", fast=True),
    "A2A": a2a_rpc("/a2a", "SendMessage", "1.0"),
    "A2A of the agent": a2a_rpc("/agents/target/a2a", "SendMessage", "1.0"),
}


def test_an_agent_that_is_registered_anew_is_judged_anew_at_every_door(house: House) -> None:
    house.door.run(registration.add(house.door.server, house.url, "target"))
    for name, door in DOORS.items():
        for _ in range(2):  # the second is served from what the first left behind
            assert "said hi" in door(house.door), name
    house.server.description = "dangerous"
    house.door.run(registration.remove(house.door.server, "target"))
    house.door.run(registration.add(house.door.server, house.url, "target"))
    before = house.target.runs
    for name, door in DOORS.items():
        told = door(house.door)
        assert WORDS in told, (name, told)
    assert house.target.runs == before


@pytest.mark.parametrize("mode", ["trust", "pin"])
def test_an_agent_whose_server_says_that_it_changed_is_judged_anew(house: House, mode: str) -> None:
    house.door.run(registration.add(house.door.server, house.url, "target", changes=mode))
    for name, door in DOORS.items():
        assert "said hi" in door(house.door), name
    house.server.description = "dangerous"
    house.door.run(registration.renew(house.door.server, house.url))
    if mode == "pin":
        for name, door in DOORS.items():
            assert "said hi" in door(house.door), f"{name}: it is served as it was approved"
        shown = house.door.get("/v1/agents/target/changes").json["hash"]
        assert house.door.post("/v1/agents/target/approve", {"hash": shown}).status == 200
    before = house.target.runs
    for name, door in DOORS.items():
        told = door(house.door)
        assert WORDS in told, (name, told)
    assert house.target.runs == before
