"""The world that a test can hold."""

from __future__ import annotations

import time

from agent3.env import REAL, Env, SeededEnv


def test_ids_sort_by_time_and_never_repeat() -> None:
    ids = [REAL.id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)
    assert [one[:12] for one in ids] == sorted(one[:12] for one in ids)
    assert abs(int(ids[0][:12], 16) / 1000 - time.time()) < 60
    assert REAL.id("job-").startswith("job-")


def test_the_real_world_moves() -> None:
    assert abs(REAL.now() - time.time()) < 1
    assert abs(REAL.monotonic() - time.monotonic()) < 1
    assert len({REAL.random_bytes(16) for _ in range(100)}) == 100


def test_a_seeded_world_repeats_itself() -> None:
    def story(world: Env) -> list[object]:
        return [world.id(), world.random_bytes(4), world.jitter(5.0), world.now(), world.id()]

    assert story(SeededEnv(seed=7)) == story(SeededEnv(seed=7))
    assert story(SeededEnv(seed=7)) != story(SeededEnv(seed=8))


def test_seeded_time_moves_only_by_hand() -> None:
    world = SeededEnv(time=10.0)
    assert (world.now(), world.monotonic()) == (10.0, 10.0)
    world.advance(2.5)
    assert (world.now(), world.monotonic()) == (12.5, 12.5)


def test_jitter_is_a_share_of_its_ceiling() -> None:
    shares = [SeededEnv(seed=seed).jitter(4.0) for seed in range(200)]
    assert all(0.0 <= one <= 4.0 for one in shares)
    assert min(shares) < 0.5
    assert max(shares) > 3.5
    assert REAL.jitter(0.0) == 0.0
