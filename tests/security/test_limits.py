"""How often and how much at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent3.env import SeededEnv
from agent3.security.limits import Ceiling, RateLimiter


def test_a_burst_is_taken_and_then_the_rate_counts() -> None:
    world = SeededEnv()
    limiter = RateLimiter(60, 3, env=world)
    assert [limiter.take("a") for _ in range(3)] == [0.0] * 3
    assert limiter.take("a") == pytest.approx(1.0)
    assert limiter.take("b") == 0.0, "each caller has a bucket of its own"
    world.advance(0.4)
    assert limiter.take("a") == pytest.approx(0.6)
    world.advance(0.6)
    assert limiter.take("a") == 0.0
    world.advance(1_000)
    assert [limiter.take("a") > 0 for _ in range(4)] == [False, False, False, True], "it never holds more than a burst"


def test_no_rate_is_no_limit() -> None:
    limiter = RateLimiter(0, 1)
    assert all(limiter.take("a") == 0.0 for _ in range(1_000))


def test_the_buckets_are_bounded_and_the_idlest_go_first() -> None:
    limiter = RateLimiter(60, 1, env=SeededEnv(), max_keys=3)
    for key in "abcad":
        limiter.take(key)
    assert list(limiter._buckets) == ["c", "a", "d"]
    assert limiter.take("a") > 0, "who keeps calling is not forgotten"


@given(some.lists(some.floats(0, 3), max_size=60), some.floats(1, 600), some.integers(1, 10))
def test_nobody_ever_gets_more_than_a_burst_and_the_rate(pauses: list[float], per_minute: float, burst: int) -> None:
    world = SeededEnv(time=0.0)
    limiter = RateLimiter(per_minute, burst, env=world)
    taken = 0
    for pause in pauses:
        world.advance(pause)
        wait = limiter.take("a")
        taken += wait == 0.0
        assert taken <= burst + world.time * per_minute / 60 + 1e-6
        if wait:
            world.advance(wait + 1e-6)
            assert limiter.take("a") == 0.0, "it said when to come back"
            taken += 1


def test_a_ceiling_is_given_back() -> None:
    ceiling = Ceiling(2)
    assert [ceiling.enter("a") for _ in range(3)] == [True, True, False]
    assert ceiling.enter("b")
    ceiling.leave("a")
    assert ceiling.enter("a")
    for _ in range(2):
        ceiling.leave("a")
    ceiling.leave("b")
    assert ceiling._running == {}
