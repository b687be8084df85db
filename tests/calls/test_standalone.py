"""The core of the documented classes: in memory, with an end to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent3.calls import LocalAgent, standalone
from agent3.calls.standalone import Standalone
from agent3.model import Done
from tests.support.home import run


def counting(core: Standalone) -> LocalAgent:
    agent = LocalAgent("Counter")
    core.host(agent)

    @agent.capability(inline=True)
    def same(n: int) -> int:
        return n

    return agent


async def rows(core: Standalone, table: str) -> list[Any]:
    house = await core.house()
    await house.ledger.flush()
    return await house.database.all(f"SELECT * FROM {table} ORDER BY rowid")


def test_thirty_thousand_calls_leave_no_more_rows_than_are_kept() -> None:
    core = Standalone()
    agent = counting(core)
    capability = agent.functions["same"].capability

    async def story() -> None:
        most = 0
        try:
            for number in range(30_000):
                assert isinstance(await core.call_async(agent, capability, {"n": number}), Done)
                if number % 2_500 == 2_499:
                    most = max(most, len(await rows(core, "calls")))
            assert 10_000 <= most <= 11_000
        finally:
            await core.aclose()

    run(story(), 120)


def test_the_latest_rows_are_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "_KEPT", {"calls": 3, "dead_letters": 1})
    monkeypatch.setattr(standalone, "_EVERY", 5)
    core = Standalone()
    agent = counting(core)
    capability = agent.functions["same"].capability

    async def story() -> None:
        try:
            for number in range(10):
                await core.call_async(agent, capability, {"n": number}, context=str(number))
            assert [row["context"] for row in await rows(core, "calls")] == ["7", "8", "9"]
        finally:
            await core.aclose()

    run(story())


def test_it_keeps_house_until_it_is_closed() -> None:
    core = Standalone()
    agent = counting(core)

    async def story() -> None:
        await core.call_async(agent, agent.functions["same"].capability, {"n": 1})
        assert "jobs" in {task.get_name() for task in asyncio.all_tasks()}
        await core.aclose()
        assert "jobs" not in {task.get_name() for task in asyncio.all_tasks()}

    run(story())
