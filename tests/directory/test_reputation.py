"""What callers say of agents."""

from __future__ import annotations

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
