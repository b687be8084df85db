"""The ledger for readers, and its statistics: pages, filters, who sees what, and counting that counts once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent3.calls import history, statistics
from agent3.calls.history import History, Wanted
from agent3.calls.statistics import Statistics, StatisticsWanted, Use, quantile
from agent3.calls.steps.ledger import COLUMNS
from agent3.env import SeededEnv
from agent3.errors import NotFound, ValidationError
from agent3.model import LOCAL, Principal
from agent3.security.access import OPERATE
from agent3.storage import Database, Transaction
from tests.support.storage import using

ALICE = Principal("alice")
OPERATOR = Principal("root", scopes=frozenset({OPERATE}))
START = 1_800_000_000.0


def row(number: int, **given: Any) -> tuple[Any, ...]:
    """A row of the ledger: a call of alice that took a second, a second after the one before."""
    values: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        "id": f"{number:05}",
        "job": f"{number:05}",
        "trace": f"{number:05}",
        "turn": 1,
        "at": START + number,
        "principal": "alice",
        "agent": "pizza",
        "capability": "order",
        "route": "mcp:pizza",
        "door": "rest",
        "entry": "start",
        "status": "done",
        "seconds": 1.0,
        "attempts": 1,
        "hops": 0,
        "cached": 0,
        "tokens": 10,
        "cost": 0.5,
        "bytes_in": 1,
        "bytes_out": 2,
        "estimated": 1,
        **given,
    }
    return tuple(values[name] for name in COLUMNS)


async def write(database: Database, *rows: tuple[Any, ...]) -> None:
    await database.append("calls", COLUMNS, list(rows))


async def ids(database: Database, reader: Principal = LOCAL, **wanted: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(1_000):
        page = await History(database, SeededEnv()).find(reader, Wanted(cursor=cursor, **wanted))
        found += [call["id"] for call in page.calls]
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the pages have no end")


def test_pages_show_every_row_once_the_latest_first(url: str) -> None:
    async def story(database: Database) -> None:
        # Some at the same moment: their order is that of their ids.
        await write(database, *(row(number, at=START + number // 3) for number in range(20)))
        wanted = [f"{number:05}" for number in range(19, -1, -1)]
        for limit in (1, 3, 7, 20, 100):
            assert await ids(database, limit=limit) == wanted
        assert (await History(database, SeededEnv()).find(LOCAL, Wanted(limit=20))).next is None

    using(url, story)


@pytest.mark.requirement("AC-20", "AC-26")
def test_each_filter_leaves_what_fits(url: str) -> None:
    async def story(database: Database) -> None:
        await write(
            database,
            row(0),
            row(1, agent="pasta", route="a2a:pasta", job="00000", turn=2),
            row(2, capability="menu", status="failed", code="timeout", message="It hung.", seconds=20.0),
            row(3, principal="bob", door="mcp", trace="t" * 32),
        )
        for wanted, found in (
            ({"agent": "pasta"}, ["00001"]),
            ({"capability": "menu"}, ["00002"]),
            ({"caller": "bob"}, ["00003"]),
            ({"caller": "alice", "agent": "pizza"}, ["00002", "00000"]),
            ({"status": "failed"}, ["00002"]),
            ({"code": "timeout"}, ["00002"]),
            ({"protocol": "a2a"}, ["00001"]),
            ({"door": "mcp"}, ["00003"]),
            ({"since": START + 1, "until": START + 3}, ["00002", "00001"]),
            ({"min_seconds": 5.0}, ["00002"]),
            ({"trace": "t" * 32}, ["00003"]),
            ({"trace": "00002"}, ["00002"]),
            ({"job": "00000"}, ["00001", "00000"]),
            ({"job": "00000", "agent": "pizza"}, ["00000"]),
            ({"protocol": "mc"}, []),
        ):
            assert await ids(database, **wanted) == found, wanted

    using(url, story)


def test_a_page_looks_at_a_bounded_number_of_rows_and_goes_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_LOOKED_AT", 10)

    async def story(database: Database) -> None:
        await write(database, *(row(number, code="rare" if number == 3 else None) for number in range(35)))
        page = await History(database, SeededEnv()).find(LOCAL, Wanted(code="rare"))
        assert (page.calls, page.next is None) == ([], False)
        assert await ids(database, code="rare") == ["00003"]

    using(url, story)


def test_a_caller_sees_its_own_calls_and_of_a_refusal_what_it_was_told(url: str) -> None:
    async def story(database: Database) -> None:
        await write(
            database,
            row(0),
            row(1, principal="bob"),
            row(2, status="denied", code="forbidden", route=None),
        )
        assert await ids(database, ALICE) == ["00002", "00000"]
        assert await ids(database, ALICE, caller="bob") == []
        assert await ids(database, ALICE, job="00001") == await ids(database, ALICE, trace="00001") == []
        assert await ids(database, OPERATOR) == ["00002", "00001", "00000"]
        assert await ids(database, ALICE, status="denied") == await ids(database, ALICE, code="forbidden") == []
        assert await ids(database, ALICE, code="capability_not_found") == ["00002"]
        assert await ids(database, OPERATOR, status="denied") == ["00002"]
        reading = History(database, SeededEnv())
        with pytest.raises(NotFound, match="Call '00001' is not in"):
            await reading.get(ALICE, "00001")
        assert (await reading.get(OPERATOR, "00001"))["turns"][0]["caller"] == "bob"
        (told,) = (await reading.get(ALICE, "00002"))["turns"]
        assert (told["status"], told["code"]) == ("refused", "capability_not_found")

    using(url, story)


def test_following_shows_each_call_once_when_it_has_ended(url: str) -> None:
    world = SeededEnv(time=START)

    async def story(database: Database) -> None:
        reading = History(database, world)
        page = await reading.find(LOCAL, Wanted(follow=True))
        assert page.calls == []
        seen: list[str] = []
        await write(database, row(1, seconds=3.0), row(2, seconds=0.5), row(3, seconds=30.0))
        for _ in range(50):
            world.advance(1.0)
            page = await reading.find(LOCAL, Wanted(follow=True, cursor=page.next, limit=1))
            seen += [call["id"] for call in page.calls]
        assert seen == ["00002", "00001", "00003"]

    using(url, story)


@pytest.mark.parametrize("wanted", [Wanted(limit=0), Wanted(limit=1_001), Wanted(cursor="?"), Wanted(status="bogus")])
def test_an_impossible_page_is_refused(wanted: Wanted) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(ValidationError, match=r"limit|cursor|Unknown status 'bogus'. Known are done, failed"):
            await History(database, SeededEnv()).find(LOCAL, wanted)

    using(":memory:", story)


# Statistics


async def told(counting: Statistics, reader: Principal = LOCAL, **wanted: Any) -> list[dict[str, Any]]:
    return await counting.read(reader, StatisticsWanted(since=START - 86_400, **wanted))


@pytest.mark.requirement("AC-26")
def test_statistics_are_the_same_before_and_after_they_are_counted(url: str) -> None:
    world = SeededEnv(time=START + 50_000)

    async def story(database: Database) -> None:
        await write(
            database,
            *(row(number, seconds=0.2, at=START + 1_000 * number) for number in range(10)),
            row(20, agent="pasta", status="failed", code="timeout", seconds=20.0, cost=0.0, tokens=0),
            row(21, principal="bob", status="refused", code="agent_not_found", agent="nobody", seconds=0.0, cost=0.0),
            row(22, principal="bob", status="denied", code="forbidden", seconds=0.0, cost=0.0, tokens=0),
        )
        counting = Statistics(database, world)
        grouped = ("agent", "caller", "day")
        before = await told(counting, by=grouped)
        assert await counting.count() > 1
        assert await database.one("SELECT * FROM call_stats") is not None
        assert await told(counting, by=grouped) == before
        assert await counting.count() == 0
        pizza = next(one for one in before if one["agent"] == "pizza")
        assert pizza == {
            "agent": "pizza",
            "caller": "alice",
            "day": "2027-01-15",
            "calls": 10,
            "failed": 0,
            "refused": 0,
            "mean": 0.2,
            "p50": 0.175,
            "p95": 0.2425,
            "tokens": 100,
            "cost": 5.0,
        }
        # One call is its own quantile.
        assert [(one["p50"], one["p95"]) for one in before if one["agent"] == "pasta"] == [(20.0, 20.0)]
        # What does not exist, and what may not be called, has no name of its own.
        assert {one["agent"] for one in before} == {"pizza", "pasta", ""}
        assert [one["refused"] for one in before if one["agent"] == ""] == [2]
        assert [one["caller"] for one in await told(counting, ALICE, by=("caller",))] == ["alice"]
        assert await told(counting, ALICE, caller="bob") == []
        await write(database, row(30, at=START + 40_000, status="failed", code="declined"))
        assert sum(one["calls"] for one in await told(counting)) == 14
        assert sum(one["failed"] for one in await told(counting)) == 2, "as many as the list has with this status"

    using(url, story)


def test_days_that_were_added_up_are_told_as_their_hours_were(url: str) -> None:
    world = SeededEnv(time=START + 5 * 86_400)
    spans: list[dict[str, Any]] = [
        {"by": ("day", "agent")},
        {"by": ("caller",), "caller": "alice"},
        {"by": ("agent",), "until": START + 2 * 86_400 + 5_000},
        {"by": ("agent",), "since": START + 40_000, "until": START + 70_000},
        {"by": ("day",), "since": START + 40_000, "capability": "order"},
    ]

    async def story(database: Database) -> None:
        names = ("pizza", "pasta")
        calls = [row(number, at=START + 9_000 * number, agent=names[number % 2]) for number in range(45)]
        await write(database, *calls, row(60, principal="bob"))
        counting = Statistics(database, world)

        async def tell() -> list[list[dict[str, Any]]]:
            return [
                await counting.read(LOCAL, StatisticsWanted(**{"since": START - 86_400, **wanted})) for wanted in spans
            ]

        before = await tell()
        assert [sum(one["calls"] for one in answer) for answer in before] == [46, 45, 21, 3, 40]
        await counting.count()
        days = await database.all("SELECT day, SUM(calls) AS calls FROM call_days GROUP BY day ORDER BY day")
        assert [int(day["calls"]) for day in days][:2] == [8, 9]
        assert len(days) == 4, "the last day is not over"
        assert await tell() == before

        async def forget_hours(tx: Transaction) -> None:
            await tx.run("DELETE FROM call_stats WHERE hour < ?", int(START // 86_400 + 2) * 24)

        await database.write(forget_hours)
        assert (await tell())[0] == before[0], "whole days are read as such"

    using(url, story)


def test_two_who_count_at_once_count_each_call_once(url: str) -> None:
    world = SeededEnv(time=START + 90_000)

    async def story(database: Database) -> None:
        await write(database, *(row(number, at=START + 100 * number) for number in range(400)))
        learned: list[Use] = []

        async def learn(tx: Transaction, uses: Any) -> None:
            await tx.run("UPDATE counters SET value = value + ? WHERE name = 'learned'", sum(use.good for use in uses))

        await database.many("INSERT INTO counters (name, value) VALUES (?, ?)", [("learned", 0)])
        both = [Statistics(database, world) for _ in range(2)]
        for counting in both:
            counting.learn = learn
        await asyncio.gather(*(counting.count() for counting in both))
        assert learned == []
        assert [one["calls"] for one in await told(both[0])] == [400]
        counted = await database.one("SELECT SUM(calls) AS calls FROM call_stats")
        heard = await database.one("SELECT value FROM counters WHERE name = 'learned'")
        assert counted is not None
        assert heard is not None
        assert (int(counted["calls"]), heard["value"]) == (400, 400)

    using(url, story)


def test_what_a_stand_in_served_is_its_own_use(url: str) -> None:
    world = SeededEnv(time=START + 60)

    async def story(database: Database) -> None:
        await write(database, row(0, served_by="other"), row(1))
        learned: list[Use] = []

        async def learn(_: Transaction, uses: Any) -> None:
            learned.extend(uses)

        counting = Statistics(database, world)
        counting.learn = learn
        await counting.count()
        assert sorted((use.agent, use.good) for use in learned) == [("other", 1), ("pizza", 1)]

    using(url, story)


def test_a_row_that_comes_late_is_counted_when_its_hour_is_closed(url: str) -> None:
    world = SeededEnv(time=START)

    async def story(database: Database) -> None:
        counting = Statistics(database, world)
        await write(database, row(0))
        world.advance(60)
        await counting.count()
        await write(database, row(1, seconds=2.0))  # it ended before what was counted
        world.advance(8_000)
        await write(database, row(2, at=START + 7_800))
        await counting.count()
        assert [one["calls"] for one in await told(counting)] == [3]

    using(url, story)


def test_what_nobody_counts_any_more_is_removed() -> None:
    world = SeededEnv(time=START + 60)

    async def story(database: Database) -> None:
        counting = Statistics(database, world, keep_days=10)
        await write(database, row(0))
        await counting.count()
        assert await counting.expire() == 0
        world.advance(11 * 86_400)
        assert await counting.expire() == 1

    using(":memory:", story)


@pytest.mark.parametrize("wanted", [{"by": ()}, {"by": ("agent", "agent")}, {"limit": 0}, {"until": START + 1e9}])
def test_impossible_statistics_are_refused(wanted: dict[str, Any]) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(ValidationError):
            await told(Statistics(database, SeededEnv(time=START)), **wanted)

    using(":memory:", story)


def test_a_quantile_is_as_near_as_the_buckets_tell() -> None:
    spread = [0] * len(statistics._BUCKETS)
    assert quantile(spread, 0.5) is None
    spread[0] = 10
    assert quantile(spread, 0.5) == 0.0005
    spread[-1] = 1_000
    assert quantile(spread, 0.95) == 60.0
