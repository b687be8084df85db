"""What callers say of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from agent3.directory import Rating, Reputation
from agent3.env import SeededEnv
from agent3.errors import ValidationError
from agent3.storage import Database
from tests.support.storage import using


def test_each_caller_counts_once_by_its_latest_word(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        reputation = Reputation(database, world)
        for principal, rating in (("alice", 1), ("bob", 4), ("alice", 5), ("carol", 2)):
            await reputation.rate("pizza", principal, rating, "words")
            world.advance(0.0001)  # far less than the ids tell apart
        await reputation.rate("pasta", "alice", 3)
        assert await reputation.of("pizza") == Rating(3, 3.67)
        assert await reputation.all(["pizza", "pasta", "nothing"]) == {
            "pizza": Rating(3, 3.67),
            "pasta": Rating(1, 3.0),
            "nothing": Rating(),
        }
        assert await reputation.all([]) == {}

    using(url, story)


@pytest.mark.parametrize("bad", [0, 6, -1, True, 4.5, "5", None])
def test_only_whole_numbers_from_one_to_five_are_ratings(bad: Any) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(ValidationError, match="from 1 to 5"):
            await Reputation(database, SeededEnv()).rate("pizza", "alice", bad)
        assert await database.all("SELECT * FROM feedback") == []

    using(":memory:", story)


def test_long_comments_are_cut() -> None:
    async def story(database: Database) -> None:
        await Reputation(database, SeededEnv()).rate("pizza", "alice", 5, "x" * 10_000, call="c1")
        row = await database.one("SELECT * FROM feedback")
        assert row is not None
        assert (len(row["comment"]), row["call"]) == (2_000, "c1")

    using(":memory:", story)


@dataclass(frozen=True)
class Met:
    """What a caller met at an agent."""

    agent: str
    principal: str
    at: float
    good: int
    bad: int = 0
    seconds: float = 0.0


async def learn(database: Database, reputation: Reputation, *met: Met) -> None:
    await database.write(lambda tx: reputation.learn(tx, met))


def test_success_and_speed_move_the_weight_and_nothing_known_is_neutral(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        reputation = Reputation(database, world)
        for number in range(10):
            await learn(
                database,
                reputation,
                Met("good", f"c{number}", world.now(), 20, 0, 4.0),
                Met("slow", f"c{number}", world.now(), 20, 0, 400.0),
                Met("bad", f"c{number}", world.now(), 2, 18, 4.0),
            )
        found = await reputation.weights(["good", "slow", "bad", "unknown"])
        assert found["unknown"] == 0.5
        assert 0.0 <= found["bad"] < 0.45 < 0.55 < found["slow"] < found["good"] <= 1.0

    using(url, story)


def test_old_calls_count_less_and_less(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        reputation = Reputation(database, world)
        callers = [f"c{number}" for number in range(10)]
        await learn(database, reputation, *(Met("pizza", one, world.now(), 0, 50) for one in callers))
        before = (await reputation.weights(["pizza"]))["pizza"]
        world.advance(120 * 86_400)
        await learn(database, reputation, *(Met("pizza", one, world.now(), 5) for one in callers))
        after = (await reputation.weights(["pizza"]))["pizza"]
        assert before < 0.45
        assert after > 0.55

    using(url, story)


def test_one_caller_who_calls_or_rates_without_end_moves_little(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        reputation = Reputation(database, world)
        for _ in range(20):
            await learn(database, reputation, Met("mine", "me", world.now(), 1_000_000))
            await reputation.rate("mine", "me", 5)
        for number in range(8):
            await learn(database, reputation, Met("liked", f"c{number}", world.now(), 20))
            await reputation.rate("liked", f"c{number}", 5)
        found = await reputation.weights(["mine", "liked"])
        assert found["mine"] - 0.5 < (found["liked"] - 0.5) / 2
        assert await reputation.of("mine") == Rating(1, 5.0)

    using(url, story)


def test_a_weight_is_looked_up_by_its_key_and_remembered_for_a_moment() -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        reputation, other = Reputation(database, world), Reputation(database, world)
        assert await reputation.weights(["pizza"]) == {"pizza": 0.5}
        await other.rate("pizza", "alice", 5)
        assert await reputation.weights(["pizza"]) == {"pizza": 0.5}
        world.advance(6)
        assert (await reputation.weights(["pizza"]))["pizza"] > 0.5
        assert await reputation.weights([]) == {}
        plan = await database.all("EXPLAIN QUERY PLAN SELECT * FROM reputation WHERE agent IN (?, ?)", "a", "b")
        assert all("SEARCH" in row["detail"] for row in plan)

    using(":memory:", story)
