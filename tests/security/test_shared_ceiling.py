"""One ceiling for all processes on a database, without a journey for every call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3.env import REAL, Env, SeededEnv
from agent3.errors import StorageError
from agent3.model import Call, Outcome
from agent3.security import shared_ceiling as ceilings
from agent3.security.shared_ceiling import SharedCeiling
from agent3.settings import Limits
from agent3.storage import Database
from agent3.storage.leases import Leases
from agent3.storage.notifications import News
from tests.support.postgres import new_database_url
from tests.support.rig import DONE, Script, rig
from tests.support.storage import using


@pytest.fixture(params=["sqlite-file", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/house.db"


class Counted(Leases):
    """Leases that count how often the database is asked, and can be away."""

    journeys = 0
    away = False

    def _go(self) -> None:
        self.journeys += 1
        if self.away:
            raise StorageError("The database is away.")

    async def take(self, name: str, seconds: float) -> bool:
        self._go()
        return await super().take(name, seconds)

    async def held_of(self, names: Any) -> set[str]:
        self._go()
        return await super().held_of(names)


@asynccontextmanager
async def gateway(
    database: Database, name: str, most: int, env: Env = REAL
) -> AsyncIterator[tuple[SharedCeiling, Counted]]:
    """The ceiling of one of several gateways."""
    leases, news = Counted(database, name), News(database, name)
    news.listen()
    ceiling = SharedCeiling(most, leases, news, alone="here".__eq__, env=env)
    try:
        if news._notifier is not None:
            await until(lambda: news.live)
        yield ceiling, leases
    finally:
        await ceiling.aclose()
        await leases.leave()
        await news.aclose()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def let_in(ceiling: SharedCeiling, times: int, key: str = "agent") -> int:
    """How many of so many at once were let in."""
    return (await asyncio.gather(*(ceiling.admit(key) for _ in range(times)))).count(True)


def let_out(ceiling: SharedCeiling, times: int) -> None:
    for _ in range(times):
        ceiling.leave("agent")


async def pass_time(leases: Leases, seconds: float) -> None:
    """Let the database's clock run ahead, as far as leases can tell."""
    await leases._database.write(lambda tx: tx.run("UPDATE leases SET until = until - ?", seconds))


def two(url: str, most: int, story: Callable[..., Any], env: Env = REAL) -> None:
    async def work(database: Database) -> None:
        async with gateway(database, "one", most, env) as first, gateway(database, "two", most, env) as second:
            await story(*first, *second)

    using(url, work)


@pytest.mark.parametrize("most", [1, 5, 33, 100])
def test_two_gateways_let_in_as_many_as_one_would(url: str, most: int) -> None:
    async def story(one: SharedCeiling, _: Counted, two: SharedCeiling, __: Counted) -> None:
        got = await asyncio.gather(let_in(one, most), let_in(two, most))
        assert sum(got) == most, "exactly, over both"
        assert await let_in(one, most, "another") == most, "each agent has a ceiling of its own"

    two(url, most, story)


def test_calls_within_what_is_held_cost_no_journey(url: str) -> None:
    async def story(one: SharedCeiling, leases: Counted, *_: Any) -> None:
        assert await let_in(one, 6) == 6
        journeys = leases.journeys
        for _number in range(1_000):
            one.leave("agent")
            assert one.enter("agent")
        assert leases.journeys == journeys <= 2

    two(url, 100, story)


def test_refusals_cost_few_journeys(url: str) -> None:
    async def story(one: SharedCeiling, _: Counted, other: SharedCeiling, leases: Counted) -> None:
        assert await let_in(one, 4) == 4
        assert await let_in(other, 50) == 0
        assert leases.journeys <= ceilings._TRIES

    two(url, 4, story, SeededEnv())


@pytest.mark.postgres
def test_what_one_does_not_use_another_gets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def patiently(ceiling: SharedCeiling, times: int) -> int:
        """However slow the machine is, the other one gets the time to give back what it does not need."""
        with monkeypatch.context() as patch:
            patch.setattr(ceilings, "_TRIES", 1_000)
            return await let_in(ceiling, times)

    async def story(one: SharedCeiling, _: Counted, other: SharedCeiling, __: Counted) -> None:
        assert await let_in(one, 32) == 32
        let_out(one, 20)
        assert await patiently(other, 20) == 20
        assert await let_in(other, 12) == 0
        let_out(other, 20)
        assert await patiently(one, 20) == 20
        assert not await other.admit("agent")

    two(new_database_url(), 32, story)


def test_slots_are_renewed_and_those_of_the_dead_are_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS", 3_600.0)  # the test renews by hand, and ``pass_time`` ends leases
    env = SeededEnv()

    async def story(one: SharedCeiling, leases: Counted, other: SharedCeiling, __: Counted) -> None:
        assert await let_in(one, 4) == 4
        for _round in range(2):
            await pass_time(leases, 3_000)
            await one._renew_once()
        assert await let_in(other, 1) == 0, "they are renewed"
        env.advance(1.0)  # refusals from memory are over
        await pass_time(leases, 3_700)  # it slept: it renewed nothing, and said nothing
        assert await let_in(other, 4) == 4
        await one._renew_once()
        assert one._shares["agent"].slots == 0
        one.leave("agent")
        assert not one.enter("agent"), "when it wakes up, it knows that they are another's"

    two(url, 4, story, env)


def test_what_is_not_used_any_more_is_given_back_and_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS", 3_600.0)
    monkeypatch.setattr(ceilings, "_IDLE_ROUNDS", 2)

    async def story(one: SharedCeiling, leases: Counted, *_: Any) -> None:
        assert await let_in(one, 4) == 4
        let_out(one, 4)
        kept = []
        for _round in range(3):
            await one._renew_once()
            kept.append(sum(share.slots for share in one._shares.values()))
        assert kept == [4, 1, 0], "what was used at the last round, then one for the next call, then none"
        assert not one._shares
        assert await leases.held_of([ceilings._lease_name("agent", number) for number in range(4)]) == set()
        assert await let_in(one, 4) == 4

    two(url, 4, story)


def test_while_the_database_is_away_each_counts_for_itself(url: str) -> None:
    async def story(one: SharedCeiling, leases: Counted, other: SharedCeiling, __: Counted) -> None:
        assert await let_in(other, 5) == 5
        leases.away = True
        assert await let_in(one, 7) == 5
        assert not one.enter("agent")

    two(url, 5, story)


def test_an_agent_of_this_process_is_counted_in_it(url: str) -> None:
    async def story(one: SharedCeiling, leases: Counted, other: SharedCeiling, __: Counted) -> None:
        assert [await let_in(each, 4, "here") for each in (one, other)] == [3, 3]
        assert leases.journeys == 0
        one.leave("here")
        assert one.enter("here")

    two(url, 3, story)


@pytest.mark.postgres
def test_an_agent_behind_two_gateways_is_never_given_more_than_the_setting_says() -> None:
    async def story(url: str) -> None:
        go, most = asyncio.Event(), 3
        how: dict[str, Any] = {"url": url, "limits": Limits(per_minute=0, concurrent=most)}

        async def busy(call: Call) -> Outcome:
            await go.wait()
            return DONE

        target = Script(busy)
        async with rig(target, **how) as one, rig(target, **how) as other:
            calls = [asyncio.ensure_future(each.call(retries=0)) for each in (one, other) for _ in range(most)]
            async with asyncio.timeout(60):
                while sum(call.done() for call in calls) < most:  # those that are refused
                    await asyncio.sleep(0.01)
            assert len(target.calls) == most
            go.set()
            ended = await asyncio.gather(*calls)
            assert sorted(getattr(each, "code", "done") for each in ended) == ["done"] * most + ["rate_limited"] * most

    asyncio.run(story(new_database_url()))
