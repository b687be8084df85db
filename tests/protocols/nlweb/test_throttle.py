"""The pace of websites: nobody waits for nothing, and nobody is faster than a site allows."""

from __future__ import annotations

import asyncio
import email.utils

import pytest

from agent3.definitions import NLWebInterface
from agent3.env import SeededEnv
from agent3.errors import RateLimited, SetupError
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.visit.throttle import FREE, Pace, Throttle, site_of

SITE = "https://shop.example"


def interface(url: str = SITE, **metadata: object) -> NLWebInterface:
    return NLWebInterface(interface_id="shop", name="Shop", base_url=url, metadata=metadata)


@pytest.mark.requirement("RF-013-60")
def test_pages_of_one_site_keep_their_distance_and_other_sites_do_not_wait() -> None:
    async def story() -> None:
        metrics = Metrics()
        throttle = Throttle(env=SeededEnv(), metrics=metrics)
        pace = Pace(seconds=0.05)
        turns = [throttle.wait_for_turn(site, pace) for site in (SITE, SITE, SITE, "https://b")]
        assert await asyncio.gather(*turns) == pytest.approx([0, 0.05, 0.1, 0])
        assert b'agent3_web_throttled_total{reason="pace"} 2.0' in metrics.render()[0]

    asyncio.run(story())


@pytest.mark.requirement("RF-013-60")
def test_only_so_many_work_on_a_site_at_once() -> None:
    async def story() -> None:
        throttle, inside, most = Throttle(), 0, 0

        async def visit() -> None:
            nonlocal inside, most
            async with throttle.visit(SITE, Pace(at_once=2)):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(visit() for _ in range(10)))
        assert (most, inside) == (2, 0)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [(429, "120", 120), (429, None, 10), (503, "60", 60), (503, None, 0), (500, "60", 0), (429, "99999", 3600)],
)
def test_a_site_that_says_too_much_is_left_alone_as_long_as_it_says(
    status: int, header: str | None, seconds: float
) -> None:
    async def story() -> None:
        env = SeededEnv()
        throttle = Throttle(env=env)
        pace = Pace(seconds=0.5, patience=5.0)
        await throttle.wait_for_turn(SITE, pace)
        env.advance(1)
        throttle.note_overload(SITE, status, header)
        await throttle.wait_for_turn("http://127.0.0.1:1", FREE)
        throttle.note_overload("http://127.0.0.1:1", status, None)
        assert await throttle.wait_for_turn("http://127.0.0.1:1", FREE) == 0.0  # this machine is no stranger
        if seconds:
            with pytest.raises(RateLimited, match="asked us to wait") as caught:
                await throttle.wait_for_turn(SITE, pace)
            assert caught.value.retry_after == pytest.approx(seconds)
            env.advance(seconds)
        assert await throttle.wait_for_turn(SITE, pace) == 0.0

    asyncio.run(story())


def test_a_date_is_understood_as_the_end_of_the_pause() -> None:
    async def story() -> None:
        env = SeededEnv()
        throttle = Throttle(env=env)
        await throttle.wait_for_turn(SITE, Pace())
        throttle.note_overload(SITE, 429, email.utils.formatdate(env.now() + 300, usegmt=True))
        with pytest.raises(RateLimited) as caught:
            await throttle.wait_for_turn(SITE, Pace())
        assert caught.value.retry_after == pytest.approx(300, abs=1)

    asyncio.run(story())


def test_an_interface_sets_its_own_pace_and_this_machine_needs_none() -> None:
    assert Pace.of(interface()) == Pace()
    assert Pace.of(interface("http://127.0.0.1:8000")) == FREE
    assert Pace.of(interface("http://localhost:8000")) == FREE
    assert Pace.of(interface(pace={"seconds": 2, "at_once": 1})) == Pace(2.0, 1)
    for wrong in ({"second": 1}, {"at_once": 0}, {"seconds": -1}, "slow", {"seconds": "x"}):
        with pytest.raises(SetupError, match="pace of 'Shop'"):
            Pace.of(interface(pace=wrong))


def test_a_site_is_its_scheme_host_and_port() -> None:
    assert site_of("https://user@Shop.example:8443/a?b#c") == "https://shop.example:8443"


def test_a_thousand_sites_do_not_stay_in_memory_for_ever() -> None:
    async def story() -> None:
        throttle = Throttle()
        async with throttle.visit(SITE, Pace()):
            for number in range(1_100):
                await throttle.wait_for_turn(f"https://{number}.example", FREE)
            assert len(throttle._sites) == 1_000
            assert SITE in throttle._sites

    asyncio.run(story())


@pytest.mark.requirement("RF-013-59")
def test_one_who_wants_a_site_often_does_not_keep_out_one_who_wants_it_once() -> None:
    async def story() -> None:
        throttle, order = Throttle(), []

        async def visit(owner: str) -> None:
            async with throttle.visit(SITE, Pace(at_once=1), owner):
                order.append(owner)
                await asyncio.sleep(0)

        async with throttle.visit(SITE, Pace(at_once=1), "first"):
            waiting = [asyncio.create_task(visit(owner)) for owner in ["greedy"] * 4 + ["ann"]]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert order == ["greedy", "ann", "greedy", "greedy", "greedy"]

    asyncio.run(asyncio.wait_for(story(), 60))
