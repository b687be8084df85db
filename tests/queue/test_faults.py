"""The faults of the queue run, and they can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults import full_queue, kill_queue, order, poison_messages
from tests.support.postgres import new_database_url


@pytest.mark.requirement("RF-013-29")
def test_three_kills_lose_nothing() -> None:
    result = kill_queue.kill_queue(5, kills=3)
    assert result["ok"], result
    assert result["acknowledged_puts"] > 0


def test_what_goes_wrong_is_noticed() -> None:
    rows = [("0-1-0", "done"), ("0-1-1", "done"), ("0-0-0", "ready"), ("0-0-1", "leased")]
    good = ["put 0-1-0\n", "put 0-0-0\n", "ack 0-1-0\n", "ack 0-1-1\n", "put 0-0-9"]
    assert kill_queue._compared(good, rows)["ok"]
    for line, fault in (
        ("put 0-1-7\n", "lost"),
        ("ack 0-0-0\n", "acks_undone"),
        ("ack 0-1-1\n", "acked_twice"),
        ("ack 0-1-0\n", "out_of_order"),
    ):
        result = kill_queue._compared([*good, line], rows)
        assert not result["ok"]
        assert result[fault] == 1
    assert kill_queue._compared(good, [*rows, rows[0]])["doubled"] == 1
    assert not kill_queue._compared([], rows)["ok"]


def test_a_consumer_that_was_paused_past_its_lease_is_refused(tmp_path: Path) -> None:
    assert kill_queue._paused(f"sqlite:///{tmp_path}/house.db") == {"taken_over": True, "late_ack": "False"}


def test_a_flood_is_refused_to_the_last_message_and_the_rest_delivered(tmp_path: Path) -> None:
    result = asyncio.run(full_queue.flood(f"sqlite:///{tmp_path}/house.db", 12_000))
    assert result == {"ok": True, "puts": 12_000, "refused": 2_000, "accepted": 10_000, "delivered": 10_000}


@pytest.mark.postgres
def test_a_paused_consumer_of_postgresql_is_refused_too() -> None:
    assert kill_queue._paused(new_database_url()) == {"taken_over": True, "late_ack": "False"}


def test_poison_is_dead_after_exactly_the_allowed_attempts_and_replayed(tmp_path: Path) -> None:
    result = asyncio.run(poison_messages.poisoned(f"sqlite:///{tmp_path}/house.db", 1, 200))
    assert result["ok"], result


def test_a_context_stays_in_order_with_eight_workers_and_failures(tmp_path: Path) -> None:
    result = asyncio.run(order.ordered(f"sqlite:///{tmp_path}/house.db", 1, (1,)))
    assert result["ok"], result
