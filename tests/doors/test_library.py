"""A step is in force wherever a Python program calls: tools, agents, mailboxes, batches, plans, and what it serves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.client.client import Client

import agent3.a2a
from agent3 import (
    A2AMessage,
    AgentCard,
    AgentExecutor,
    AgentRegistry,
    Coordinator,
    LocalAgent,
    MCPClient,
    MCPServer,
    MessageType,
)
from agent3.errors import Agent3Error
from agent3.model import Answer, Needs
from agent3.protocols.a2a.agents.coordination import step
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Calls, Settings
from agent3.testing import call as call_in_test
from tests.support.a2a_toy import message, rpc
from tests.support.gateway import Door as Address
from tests.support.probe import AROUND, ENTER, PROBE, WORDS, Target, places, probing

QUICK = Settings(calls=Calls(ledger="batched", retries=0))


@dataclass
class Program:
    """What a program has: a server, a client and agents in a core with the probe; and others elsewhere without it."""

    target: Target
    core: Standalone
    server: MCPServer
    client: MCPClient
    sender: AgentExecutor
    receiver: AgentExecutor
    mcp_url: str
    a2a_url: str


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[Target, str, str]]:
    """The same target behind an MCP server and an A2A agent whose core has no probe."""
    target, core = Target(), Standalone(QUICK)
    core.run(core.gateway())
    server = MCPServer("elsewhere", core=core)
    server.tool(name="remote")(target.say)
    with server.listening() as mcp_url, agent3.a2a.listening(target.plain, core=core) as a2a_url:
        yield target, mcp_url, a2a_url
    core.close()


@pytest.fixture(
    scope="module",
    params=[*((place, ENTER) for place in places()), *((place, AROUND) for place in places(few=True))],
    ids=lambda given: f"{given[1].__name__}-{given[0]}",
)
def program(request: pytest.FixtureRequest, elsewhere: tuple[Target, str, str]) -> Iterator[Program]:
    target, mcp_there, a2a_there = elsewhere
    core = Standalone(QUICK)
    with probing(*request.param), ExitStack() as stack:
        stack.callback(core.close)
        server = MCPServer("here", core=core)
        server.tool(target.say)
        server.tool(target.order)
        client = stack.enter_context(MCPClient(core=core))
        client.connect_to_server(server)
        client.connect_to_server(mcp_there)
        registry = AgentRegistry()
        registry.register_agent(AgentCard(agent_id="there", name="There", url=a2a_there))
        sender = AgentExecutor(AgentCard(agent_id="sender", name="Sender"), core=core, registry=registry)
        receiver = AgentExecutor(AgentCard(agent_id="receiver", name="Receiver"), core=core)
        receiver.register_capability("say", target.say)
        for executor in (sender, receiver):
            stack.callback(executor.close)
        mcp_url = stack.enter_context(server.listening())
        a2a_url = stack.enter_context(agent3.a2a.listening(_agent_of(target), core=core))
        yield Program(target, core, server, client, sender, receiver, mcp_url, a2a_url)


def _agent_of(target: Target) -> LocalAgent:
    agent = LocalAgent("served")
    agent.add(target.say, name="say")
    return agent


Door = Callable[[Program], Any]


def tool(program: Program) -> Any:
    return program.server.call_tool("say", {"text": "hi"})


def tool_async(program: Program) -> Any:
    return asyncio.run(program.server.call_tool_async("say", {"text": "hi"}))


def tool_with_a_key(program: Program) -> Any:
    return program.server.call_tool("say", {"text": "hi"}, key=uuid.uuid4().hex)


def tool_over_http(mode: str) -> Door:
    def call(program: Program) -> Any:
        async def story() -> Any:
            async with Client(program.mcp_url, mode=mode) as client:
                return await client.call_tool("say", {"text": "hi"})

        return asyncio.run(asyncio.wait_for(story(), 60))

    return call


def client_here(program: Program) -> Any:
    return program.client.invoke_tool("say", {"text": "hi"})


def client_there(program: Program) -> Any:
    return program.client.invoke_tool("remote", {"text": "hi"})


def batch(program: Program) -> Any:
    return program.client.invoke_batch([("say", {"text": "hi"})])


def plan(program: Program) -> Any:
    return program.client.run_plan([{"id": "a", "tool": "say", "input": {"text": "hi"}}])


def received(program: Program) -> Any:
    said = A2AMessage(
        from_agent="x",
        to_agent="receiver",
        message_type=MessageType.REQUEST,
        capability="say",
        content={"text": "hi"},
    )
    return program.receiver.receive_message(said)


def by_mailbox(program: Program) -> Any:
    return program.sender.request("receiver", "say", {"text": "hi"}, timeout=60)


def to_elsewhere(program: Program) -> Any:
    return program.sender.request("there", "say", {"text": "hi"}, timeout=60)


def coordinated(program: Program) -> Any:
    return Coordinator(program.sender).run([step("a", "receiver", "say", {"text": "hi"})], timeout=60)


def over_a2a(program: Program) -> Any:
    return rpc(Address(program.a2a_url), "SendMessage", {"message": message("hi", "say")}).raw.decode()


def core_alone(program: Program) -> Any:
    agent = LocalAgent("alone")
    program.core.host(agent)  # first: the route of a capability takes the id that the core gives
    return program.core.call(agent, agent.add(program.target.say, name="say"), {"text": "hi"})


def in_a_test(program: Program) -> Any:
    return asyncio.run(call_in_test(_agent_of(program.target), "say", {"text": "hi"}))


DOORS: dict[str, tuple[Door, int]] = {
    "call_tool": (tool, 1),
    "call_tool_async": (tool_async, 1),
    "call_tool with a key": (tool_with_a_key, 1),
    "served tool, modern": (tool_over_http("auto"), 1),
    "served tool, legacy": (tool_over_http("legacy"), 1),
    "MCPClient to a server here": (client_here, 1),
    "MCPClient to a server elsewhere": (client_there, 1),
    "batch": (batch, 1),
    "plan": (plan, 1),
    "receive_message": (received, 1),
    "mailbox": (by_mailbox, 1),
    "agent elsewhere": (to_elsewhere, 1),
    "Coordinator": (coordinated, 2),
    "served agent": (over_a2a, 1),
    "Standalone": (core_alone, 1),
    "agent3.testing": (in_a_test, 1),
}


def told_by(door: Door, program: Program) -> str:
    try:
        return repr(door(program))
    except Agent3Error as error:
        return f"{error.code}: {error.message}"


def test_a_step_that_refuses_is_asked_and_obeyed(program: Program) -> None:
    for name, (door, _) in DOORS.items():
        PROBE.clear(refuses=True)
        before = program.target.runs
        told = told_by(door, program)
        assert WORDS in told, (name, told)
        assert "forbidden" in told, (name, told)
        assert program.target.runs == before, name
        assert PROBE.entered, name


def test_a_step_that_only_looks_sees_every_turn_once(program: Program) -> None:
    for name, (door, turns) in DOORS.items():
        PROBE.clear()
        before = program.target.runs
        told = told_by(door, program)
        assert "said hi" in told, (name, told)
        assert (program.target.runs - before, len(PROBE.entered), len(PROBE.left)) == (1, turns, turns), name


def test_an_event_that_a_step_refuses_is_a_dead_letter_and_can_be_sent_again(program: Program) -> None:
    PROBE.clear(refuses=True)
    before = program.target.runs
    program.receiver.subscribe("news", "say")
    program.sender.broadcast("news", {"text": "hi"})
    letters = _until(program.receiver.dead_letters)
    assert [letter.reason for letter in letters] == [f"forbidden: {WORDS}"]
    assert program.target.runs == before
    PROBE.clear()
    assert program.receiver.replay_dead_letters(letters[0].message_id) == 1
    _until(lambda: program.target.runs > before)
    assert program.target.runs == before + 1
    assert len(PROBE.entered) == 1


def test_the_answer_to_a_tool_that_asks_is_refused_too(program: Program) -> None:
    PROBE.clear()
    before = program.target.runs
    asked = program.server.call_tool("order", {})
    assert isinstance(asked, Needs)
    assert asked.job is not None
    PROBE.clear(refuses=True)
    told = repr(asyncio.run(program.server.answer_async(asked.job, {"q1": Answer("accept", "tall")})))
    assert WORDS in told, told
    assert program.target.runs == before
    assert PROBE.entered


def _until(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    async def watch() -> Any:
        async with asyncio.timeout(seconds):
            while not (found := await asyncio.to_thread(look)):
                await asyncio.sleep(0.01)
            return found

    return asyncio.run(watch())
