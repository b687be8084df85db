"""One bucket for all processes on a database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent3.env import REAL, SeededEnv
from agent3.errors import StorageError
from agent3.security.limits import SharedLimiter, expire_buckets
from agent3.storage import Database
from tests.support.postgres import new_database_url
from tests.support.storage import using


@pytest.fixture(params=["sqlite-file", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/house.db"


class Counted:
    """A database that counts how often it is written to, and can be away."""

    def __init__(self, database: Database):
        self._database = database
        self.dialect, self.syntax, self.url = database.dialect, database.syntax, database.url
        self.writes = 0
        self.away = False

    async def write(self, work: Any, **how: Any) -> Any:
        self.writes += 1
        if self.away:
            raise StorageError("The database is away.")
        return await self._database.write(work, **how)


def counted(database: Database, per_minute: float, burst: int) -> tuple[SharedLimiter, Counted]:
    """A limiter whose own clock stands still, so that nothing it remembers grows old."""
    around = Counted(database)
    return SharedLimiter(around, per_minute, burst, env=SeededEnv()), around  # type: ignore[arg-type]


async def taken(limiter: SharedLimiter, key: str, times: int) -> int:
    """How many of so many at once were let through."""
    return (await asyncio.gather(*(limiter.charge(key) for _ in range(times)))).count(0.0)


def test_two_processes_spend_from_one_bucket(url: str) -> None:
    async def story(database: Database) -> None:
        limiters = [SharedLimiter(database, 0.6, 20) for _ in range(2)]
        got = await asyncio.gather(*(taken(one, "a", 30) for one in limiters))
        assert sum(got) == 20, "exactly the burst, over both"
        assert await limiters[1].charge("b") == 0.0, "each caller has a bucket of its own"
        assert 0 < await limiters[0].charge("a") <= 100.001, "it says when there is one again"

    using(url, story)


def test_the_rate_counts_over_both(url: str) -> None:
    async def story(database: Database) -> None:
        env = SeededEnv()
        limiters = [SharedLimiter(database, 0.6, 50, env=env) for _ in range(2)]  # one token in a hundred seconds

        async def through() -> int:
            return sum(await asyncio.gather(*(taken(limiter, "a", 60) for limiter in limiters)))

        assert await through() == 50
        for _round in range(3):
            await database.many("UPDATE limits SET at = at - ?", [(1_000.0,)])
            env.advance(1_000.0)
            assert await through() == 10, "what the rate gives in that time, over both"

    using(url, story)


def test_a_refused_caller_costs_nothing(url: str) -> None:
    async def story(database: Database) -> None:
        limiter, around = counted(database, 6, 3)
        assert await taken(limiter, "a", 3) == 3
        assert await limiter.charge("a") > 0
        written = around.writes
        assert await taken(limiter, "a", 500) == 0
        assert around.writes == written

    using(url, story)


def test_who_comes_often_costs_a_few_writes(url: str) -> None:
    async def story(database: Database) -> None:
        limiter, around = counted(database, 60_000, 1_000)
        assert [await limiter.charge("a") for _ in range(400)] == [0.0] * 400
        assert around.writes == 2, "a quarter of a second of the rate at once"
        assert limiter.take("a") == 0.0, "what is at hand is taken without waiting"

    using(url, story)


def test_those_who_come_together_share_the_way(url: str) -> None:
    async def story(database: Database) -> None:
        limiter, around = counted(database, 60, 20)
        assert await taken(limiter, "a", 20) == 20
        assert around.writes <= 2

    using(url, story)


def test_while_the_database_is_away_each_counts_for_itself(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(database: Database) -> None:
        limiter, around = counted(database, 6, 4)
        around.away = True
        assert [await limiter.charge("a") for _ in range(4)] == [0.0] * 4
        assert await limiter.charge("a") > 0
        around.away = False
        assert await limiter.charge("b") == 0.0

    using(url, story)
    assert caplog.text.count("counts by itself") <= 1


def test_full_buckets_are_removed(url: str) -> None:
    async def story(database: Database) -> None:
        limiter = SharedLimiter(database, 60, 5)
        await limiter.charge("old")
        await database.many("UPDATE limits SET at = at - ?", [(1_000.0,)])
        await limiter.charge("new")
        slow = SharedLimiter(database, 0.1, 5)
        assert await expire_buckets(database, REAL, [limiter, slow]) == 0  # its own buckets would not be full yet
        assert await expire_buckets(database, REAL, [limiter]) == 1
        assert [row["key"] for row in await database.all("SELECT key FROM limits")] == ["new"]

    using(url, story)


def test_a_database_in_memory_has_nobody_to_share_with() -> None:
    async def story(database: Database) -> None:
        limiter = SharedLimiter(database, 60, 2, env=SeededEnv())
        assert [limiter.take("a"), limiter.take("a")] == [0.0, 0.0]
        assert await limiter.charge("a") == pytest.approx(1.0)
        assert await database.all("SELECT * FROM limits") == []

    using(":memory:", story)


def test_keys_are_bounded(url: str) -> None:
    async def story(database: Database) -> None:
        limiter = SharedLimiter(database, 0.6, 2, max_keys=3)
        for key in "abcd":
            await limiter.charge(key)
        assert list(limiter._purses) == ["b", "c", "d"]
        assert await limiter.charge("a") == 0.0
        assert await limiter.charge("a") > 0, "what is forgotten here is known to the database"

    using(url, story)
