"""What the design promises of ``agent3_call``: timeouts, retries, validation, cost, a record, and no secret."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.env import Env
from agent3.errors import Unavailable
from agent3.gateway import Caller, Verbs
from agent3.model import LOCAL, Agent, Capability, Price, Route
from agent3.observe import logs
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage

SECRET = "s3cr3t-of-the-kitchen"


@dataclass(slots=True)
class Unhurried(Env):
    """The real world, but no pause between attempts; how long each might have been is kept."""

    ceilings: list[float] = field(default_factory=list)

    def jitter(self, ceiling: float) -> float:
        self.ceilings.append(ceiling)
        return 0.0


class Kitchen:
    """An agent that fails as told, and remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[Any] = []
        self.failures = 0
        self.agent = LocalAgent("Kitchen")
        self.agent.add(self.cook, read_only=True, price=Price(call=0.25, tokens=1.0))
        self.agent.capability(self.order)
        self.agent.capability(self.hang)
        self.agent.capability(self.hide)
        self.agent.capability(self.leak)

    async def cook(self, dish: str) -> dict[str, str]:
        """Cook a dish."""
        self.reached.append(dish)
        if self.failures:
            self.failures -= 1
            raise Unavailable("The oven is cold.")
        return {"dish": dish}

    async def order(self, dish: str) -> dict[str, str]:
        """Order a dish, which must not happen twice."""
        return await self.cook(dish)

    async def hang(self, dish: str) -> None:
        """Never be done."""
        await asyncio.sleep(60)

    async def hide(self, dish: str) -> str:
        """Say things that a reader does not see."""
        return "\x1b[31msoup\u202e\u200b\U000e0041 of the day"

    async def leak(self, dish: str) -> str:
        """Say the secret, as a careless agent might."""
        if dish == "raise":
            raise RuntimeError(f"refused {os.environ['KITCHEN_TOKEN']}")
        return f"my token is {os.environ['KITCHEN_TOKEN']}"


Ask = Callable[..., Awaitable[dict[str, Any]]]
Story = Callable[[Kitchen, Ask, Server, Unhurried], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    """Run a story in a gateway that hosts the kitchen."""

    async def whole() -> None:
        kitchen, env = Kitchen(), Unhurried()
        async with build(Settings(storage=Storage(url="sqlite://")), [kitchen.agent], env=env) as server:
            verbs = Verbs(server.gateway)

            async def ask(
                capability: str, dish: Any = "soup", agent: str = "kitchen", **metadata: Any
            ) -> dict[str, Any]:
                given = {"agentId": agent, "capability": capability, "input": {"dish": dish}, "metadata": metadata}
                return await verbs.answer("agent3_call", given, Caller(LOCAL, "test"))

            await story(kitchen, ask, server, env)

    asyncio.run(asyncio.wait_for(whole(), 100))


@pytest.mark.requirement("AC-09", "AC-12")
def test_a_failed_attempt_is_repeated_with_pauses_that_double() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        kitchen.failures = 3
        answer = await ask("cook", retries=3)
        assert (answer["success"], answer["metadata"]["retryCount"]) == (True, 3)
        assert len(kitchen.reached) == 4
        first, second, third = env.ceilings
        assert (second, third) == (2 * first, 4 * first)

    tell(story)


@pytest.mark.requirement("AC-04", "AC-09")
def test_one_retry_is_the_default_and_none_can_be_asked_for() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        kitchen.failures = 9
        answer = await ask("cook")
        assert (answer["success"], answer["error"], answer["retryable"]) == (False, "The oven is cold.", True)
        assert (answer["errorCode"], answer["metadata"]["statusCode"]) == ("unavailable", 503)
        assert len(kitchen.reached) == 2
        await ask("cook", retries=0)
        assert len(kitchen.reached) == 3

    tell(story)


@pytest.mark.requirement("AC-09")
def test_what_must_not_happen_twice_is_not_repeated() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        kitchen.failures = 1
        answer = await ask("order", retries=3)
        assert answer["success"] is False
        assert len(kitchen.reached) == 1

    tell(story)


@pytest.mark.requirement("AC-09", "AC-11")
def test_a_call_ends_with_its_time() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        answer = await ask("hang", timeout=50, retries=0)
        assert (answer["errorCode"], answer["metadata"]["statusCode"]) == ("timeout", 504)
        assert 40 <= answer["metadata"]["responseTime"] < 5_000

    tell(story)


@pytest.mark.requirement("AC-13")
def test_input_that_does_not_fit_never_reaches_the_agent() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        answer = await ask("cook", 5)
        assert (answer["success"], answer["errorCode"]) == (False, "invalid_input")
        assert "dish" in answer["error"]
        assert answer["details"]["errors"][0]["expected"] == "string"
        assert kitchen.reached == []

    tell(story)


@pytest.mark.requirement("AC-14")
def test_a_result_is_stripped_of_what_nobody_can_see() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        assert (await ask("hide"))["result"] == "[31msoup of the day"

    tell(story)


@pytest.mark.requirement("AC-10", "AC-15", "AC-19")
def test_time_tokens_and_cost_are_told() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        metadata = (await ask("cook", "x" * 4_000))["metadata"]
        assert metadata["responseTime"] > 0
        assert 1_900 < metadata["tokensUsed"] < 2_100
        assert metadata["cost"] == pytest.approx(0.25 + metadata["tokensUsed"] / 1000)
        assert (await ask("cook", 5))["metadata"].get("cost", 0) == 0

    tell(story)


@pytest.mark.requirement("AC-20")
def test_every_call_leaves_one_record() -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        kitchen.failures = 1
        await ask("cook", retries=1)
        await ask("cook", 5)
        rows = await server.database.all("SELECT * FROM calls ORDER BY at")
        told = [(row["principal"], row["agent"], row["door"], row["status"], row["attempts"]) for row in rows]
        assert told == [("local", "kitchen", "test", "done", 2), ("local", "kitchen", "test", "refused", 0)]
        assert all(row["seconds"] >= 0 for row in rows)

    tell(story)


@pytest.mark.requirement("AC-27")
def test_a_credential_is_nowhere_that_a_caller_or_a_reader_of_the_records_can_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KITCHEN_TOKEN", SECRET)

    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        route = Route("local", "kitchen", "leak", credential="env:KITCHEN_TOKEN")
        capability = Capability(name="leak", routes=(route,))
        await server.directory.add(Agent(id="careless", name="Careless", capabilities=(capability,)))
        me = Caller(LOCAL, "test")
        seen: list[Any] = [await ask("leak", agent="careless"), await ask("leak", "raise", agent="careless")]
        assert "my token is" in seen[0]["result"]
        assert "refused" in seen[1]["error"]
        seen += [await server.gateway.select(me, "careless"), await server.gateway.invoke(me, "careless")]
        seen.append(await server.gateway.search(me, "careless"))
        for table in ("calls", "jobs", "job_events", "dead_letters", "agents"):
            seen.append([dict(row) for row in await server.database.all(f"SELECT * FROM {table}")])
        assert SECRET not in repr(seen)
        assert SECRET not in json.dumps(seen[:5])

    tell(story)


def test_a_function_that_raises_leaves_its_stack_in_the_log_once_with_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(kitchen: Kitchen, ask: Ask, server: Server, env: Unhurried) -> None:
        answer = await ask("leak", "raise", retries=3)
        assert answer["errorCode"] == "target_failed"
        kitchen.failures = 1
        await ask("cook", retries=0)

    logs.redact(SECRET)  # as whatever reads a secret does
    os.environ["KITCHEN_TOKEN"] = SECRET
    try:
        with caplog.at_level("WARNING"):
            tell(story)
    finally:
        del os.environ["KITCHEN_TOKEN"]
    (record,) = [record for record in caplog.records if record.name == "agent3.calls"]
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("kitchen/leak raised in call ")
    assert caplog.text.count("Traceback") == 1
    assert "raise RuntimeError(" in caplog.text
    assert SECRET not in caplog.text
