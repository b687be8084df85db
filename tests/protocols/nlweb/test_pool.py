"""Many at once in one browser: fair, bounded, apart from each other, and none lost when the browser is replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import Unavailable
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.browser.chromium import Chrome, Wear, find_parent, total_bytes
from agent3.protocols.nlweb.browser.pool import Pool, default_size
from agent3.protocols.nlweb.visit.visits import Visits
from agent3.security.fair_slots import FairSlots
from tests.support.sites import Site
from tests.support.visits import PAGES, shop


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@pytest.mark.browser
def test_neither_the_browser_nor_its_driver_inherits_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_TOKEN", "HTTPS_PROXY", "AGENT3_MASTER_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "hush-hush-1234")

    async def story() -> None:
        browser = Chrome()
        await browser.start()
        try:
            processes = await browser.list_processes()
            above = find_parent(processes[0])
            while above is not None and above != os.getpid():
                processes.append(above)
                above = find_parent(above)
            assert above == os.getpid()
            assert len(processes) > 2
            for pid in processes:
                given = Path(f"/proc/{pid}/environ").read_bytes()
                assert b"hush-hush-1234" not in given, pid
            assert b"PATH=" in Path(f"/proc/{processes[-1]}/environ").read_bytes()
        finally:
            await browser.aclose()

    run(story())


# Places


@pytest.mark.requirement("RF-013-59")
def test_one_who_wants_many_does_not_keep_out_one_who_wants_one() -> None:
    async def story() -> None:
        slots, order = FairSlots(1), []

        async def use(owner: str) -> None:
            await slots.acquire(owner)
            order.append(owner)
            await asyncio.sleep(0)
            slots.release()

        await slots.acquire("first")
        greedy = [asyncio.create_task(use("greedy")) for _ in range(5)]
        await asyncio.sleep(0)
        modest = [asyncio.create_task(use(name)) for name in ("ann", "bob")]
        await asyncio.sleep(0)
        slots.release()
        await asyncio.gather(*greedy, *modest)
        assert order == ["greedy", "ann", "bob", "greedy", "greedy", "greedy", "greedy"]
        assert (slots.free, slots.waiting) == (1, 0)

    run(story())


def test_whoever_stops_waiting_leaves_no_place_behind() -> None:
    async def story() -> None:
        slots = FairSlots(1)
        await slots.acquire("a")
        waiting = [asyncio.create_task(slots.acquire("b")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert slots.waiting == 2
        slots.release()  # given to the second …
        waiting[1].cancel()  # … who goes away in the same moment
        await asyncio.wait_for(waiting[2], 60)
        assert (slots.free, slots.waiting) == (0, 0)
        slots.release()
        assert slots.free == 1

    run(story())


def test_a_line_has_an_end() -> None:
    async def story() -> None:
        slots = FairSlots(1, max_waiting=1)
        await slots.acquire("a")
        waiting = asyncio.create_task(slots.acquire("b"))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="1 calls are waiting") as caught:
            await slots.acquire("c")
        assert not caught.value.sent
        slots.release()
        await waiting

    run(story())


def test_nobody_can_fill_the_line_for_all_others() -> None:
    async def story() -> None:
        slots = FairSlots(1, max_waiting=8)
        await slots.acquire("a")
        waiting = [asyncio.create_task(slots.acquire("greedy")) for _ in range(10)]
        await asyncio.sleep(0)
        assert slots.waiting == 4
        waiting += [asyncio.create_task(slots.acquire("modest")) for _ in range(2)]
        await asyncio.sleep(0)
        assert slots.waiting == 6
        for one in waiting:
            one.cancel()
        refused = [
            one for one in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(one, Unavailable)
        ]
        assert len(refused) == 6
        assert "4 of them yours" in refused[0].message

    run(story())


def test_the_number_of_places_follows_cores_and_memory() -> None:
    assert default_size() >= 1
    assert total_bytes([]) == 0
    assert total_bytes([2**22 + 1]) == 0


# Browsers


@pytest.mark.browser
@pytest.mark.requirement("RF-013-59", "RF-013-47")
def test_twenty_sequences_at_once_are_all_right_while_the_browser_is_replaced_under_them() -> None:
    metrics = Metrics()

    async def story(site: Site) -> None:
        # On a machine that others keep busy, slow openings would be a second reason.
        pool = Pool(4, wear=Wear(contexts=11, slowdown=0), metrics=metrics)
        visits = Visits(pool, metrics=metrics)
        interface = shop(site.url)
        try:
            names = [f"thing{number}" for number in range(20)]
            found = await asyncio.gather(
                *(visits.run(interface, "search", {"query": name}, principal=f"p{name[-1]}") for name in names)
            )
            for name, rows in zip(names, found, strict=True):
                assert rows == [{"name": f"{name} {n}", "price": f"€ {n},50"} for n in (1, 2)]
            assert pool.restarts == 1
            assert len(visits.latencies) == 80
        finally:
            await visits.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await visits.run(interface, "look", {"query": "x"}, principal="late")

    with Site(PAGES) as site:
        run(story(site))
    said = metrics.render()[0]
    assert b"nlweb_browser_restarts_total 1.0" in said
    assert b'agent3_web_browsers_ended_total{reason="count"} 1.0' in said
    assert b'agent3_web_sessions{state="working"} 0.0' in said


@pytest.mark.browser
@pytest.mark.requirement("RF-013-47")
def test_a_browser_whose_page_eats_memory_is_replaced_before_the_next_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.browser.chromium._MEASURE_SECONDS", 0.0)
    metrics, allowed = Metrics(), 150_000_000

    async def story() -> None:
        pool = Pool(1, wear=Wear(slowdown=0), metrics=metrics)
        try:
            async with pool.lease("hungry") as eaten:
                page = await (await eaten.context("http://127.0.0.1:9")).new_page()
                await page.evaluate("1")  # the processes of the page are there, and counted in what it starts from
                base = await eaten.measure_memory()
                pool.wear = Wear(bytes=base + allowed, slowdown=0)
                assert await eaten.find_wear(pool.wear) is None
                await page.evaluate("size => { globalThis.kept = new Uint8Array(size).fill(7); }", 3 * allowed)
            async with pool.lease("next") as fresh:
                assert fresh is not eaten
                assert not eaten.alive
                assert await fresh.measure_memory() < base + allowed
            assert pool.restarts == 1
        finally:
            await pool.aclose()

    run(story())
    assert b'agent3_web_browsers_ended_total{reason="memory"} 1.0' in metrics.render()[0]


@pytest.mark.browser
@pytest.mark.requirement("RF-013-47")
def test_age_count_memory_and_slowness_wear_a_browser_out_and_death_does() -> None:
    async def story() -> None:
        chrome = Chrome()
        try:
            assert await chrome.find_wear(Wear()) == "died"
            await chrome.start()
            assert await chrome.find_wear(Wear()) is None
            assert await chrome.measure_memory() > 50_000_000
            assert await chrome.find_wear(Wear(bytes=1_000_000)) == "memory"
            assert await chrome.find_wear(Wear(seconds=0.001)) == "age"
            chrome.contexts = 10
            assert await chrome.find_wear(Wear(contexts=10)) == "count"
            for seconds in (0.1, 0.1, 0.1, 0.1, 0.1, 2.0, 2.0, 2.0, 2.0, 2.0):
                chrome.note_opening(seconds)
            assert await chrome.find_wear(Wear()) == "slowdown"
            assert await chrome.find_wear(Wear(slowdown=50)) is None
            assert len(await chrome.list_processes()) > 1
        finally:
            await chrome.aclose()
        assert await chrome.list_processes() == []
        with pytest.raises(Unavailable) as caught:
            await chrome.context("http://127.0.0.1:9")
        assert not caught.value.sent

    run(story())
