"""The core of the documented classes: in memory, with an end to it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import Agent3Error, RateLimited
from agent3.model import LOCAL, Done
from agent3.protocols.functions import LocalAgent, standalone
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage
from tests.support.home import run


def counting(core: Standalone) -> LocalAgent:
    agent = LocalAgent("Counter")
    core.host(agent)

    @agent.capability(inline=True)
    def same(n: int) -> int:
        return n

    return agent


async def rows(standalone: Standalone, table: str) -> list[Any]:
    core = (await standalone.gateway()).core
    await core.ledger.flush()
    return list(await core.database.all(f"SELECT * FROM {table} ORDER BY rowid"))


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


def test_what_was_refused_before_it_came_here_is_recorded_and_tidied_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "_KEPT", {"calls": 3, "dead_letters": 1})
    monkeypatch.setattr(standalone, "_EVERY", 5)
    core = Standalone()
    agent = counting(core)

    async def story() -> None:
        try:
            for number in range(10):
                await core.refuse(agent, f"tool {number}", LOCAL, RateLimited("Too often."), door="mcp")
            found = [(row["capability"], row["status"], row["code"], row["door"]) for row in await rows(core, "calls")]
            assert found == [(f"tool {number}", "refused", "rate_limited", "mcp") for number in (7, 8, 9)]
        finally:
            await core.aclose()

    run(story())


def test_a_call_says_by_which_door_it_came() -> None:
    core = Standalone()
    agent = counting(core)

    async def story() -> None:
        try:
            capability = agent.functions["same"].capability
            await core.call_async(agent, capability, {"n": 1})
            await core.call_async(agent, capability, {"n": 1}, door="mcp")
            assert [row["door"] for row in await rows(core, "calls")] == ["library", "mcp"]
        finally:
            await core.aclose()

    run(story())


def test_a_core_whose_database_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "calls.db"
    place.mkdir()  # in the way
    core = Standalone(Settings(storage=Storage(url=f"sqlite:///{place}")))
    agent = counting(core)
    capability = agent.functions["same"].capability

    async def story() -> None:
        for _ in range(2):
            with pytest.raises(Agent3Error):
                await core.call_async(agent, capability, {"n": 1})
        place.rmdir()
        try:
            assert isinstance(await core.call_async(agent, capability, {"n": 1}), Done)
        finally:
            await core.aclose()

    run(story())


def test_a_core_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    (tmp_path / "calls.db").mkdir()
    core = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'calls.db'}")))

    async def story() -> None:
        opening = asyncio.ensure_future(core.gateway())
        await asyncio.sleep(0)
        await core.aclose()
        with pytest.raises(Agent3Error):
            await opening

    run(story())


_LEFT_OPEN = """
import sys
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Calls, Settings, Storage

core = Standalone(Settings(storage=Storage(url=sys.argv[1]), calls=Calls(ledger="batched")))
agent = LocalAgent("A")
agent.add(lambda x: x, name="do")
core.host(agent)
core.call(agent, agent.functions["do"].capability, {"x": "1"})
"""


def test_what_a_program_leaves_open_is_closed_in_order_when_it_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'left.db'}"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", _LEFT_OPEN, url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    with sqlite3.connect(tmp_path / "left.db") as file:
        assert file.execute("SELECT COUNT(*) FROM calls").fetchone() == (1,), "a batched row is at most 50 ms behind"
    file.close()
