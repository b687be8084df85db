"""Cards stay fresh: a server that changed is asked again, an old card is renewed when it is used, the dead show."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from agent3.gateway import renewal as renewing
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.secrets import Vault
from agent3.model import LOCAL, Agent, Capability, Done, Failed, Outcome, Route
from agent3.server.build import Server, build
from agent3.settings import Calls, Settings, Storage
from tests.support.gateway import run_agent3
from tests.support.mcp_upstream import Site, served
from tests.support.postgres import new_database_url
from tests.support.registration import add, remove, renew

ME = Caller(LOCAL, "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are for real servers."""
    monkeypatch.setattr(renewing, "TOGETHER", 0.02)
    monkeypatch.setattr(renewing, "APART", 0.05)


@asynccontextmanager
async def gateway(folder: Path, url: str = "", **calls: Any) -> AsyncIterator[Server]:
    storage = Storage(url=url or f"sqlite:///{folder / 'agent3.db'}")
    # What a server changes is served at once: tests/gateway/test_pins.py is about what waits for approval.
    async with build(Settings(storage=storage, calls=Calls(**{"changes": "trust", **calls}))) as server:
        yield server


async def call(server: Server, capability: str, given: Any = None, agent: str = "mine") -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent=agent, capability=capability, input=given or {}, retries=0))


async def found(server: Server, agent: str = "mine") -> dict[str, Any]:
    hits = (await server.gateway.find_agents(ME, limit=50))["agents"]
    return next(one for one in hits if one["id"] == agent)


async def until(true: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():
            await asyncio.sleep(0.02)


def again(site: Site) -> None:
    """Start a stopped server once more, on the same port."""
    port = urlsplit(site.url).port
    assert port is not None
    site._listener = socket.create_server(("127.0.0.1", port))
    site.start()


@pytest.mark.parametrize("era", [(), ("--legacy",)])
def test_a_server_that_says_that_it_changed_is_renewed_for_every_door(tmp_path: Path, era: tuple[str, ...]) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server, gateway(tmp_path) as other:
            before = await add(server, url, "mine")
            heard: list[str] = []
            server.renewals.listeners.append(heard.append)
            assert isinstance(await call(server, "grow"), Done)
            wanted = len(before.capabilities) + 1

            async def grown() -> bool:
                return len((await found(other))["capabilities"]) == wanted

            await until(grown)
            assert len((await found(server))["capabilities"]) == wanted
            assert heard[-1] == url
            assert server.renewals.counts["renewed"] == 1

    with served(tmp_path / "notes", *era) as site:
        run(story(site.url))


@pytest.mark.requirement("AC-17")
def test_a_card_is_served_from_memory_and_renewed_when_it_is_old_at_its_use(tmp_path: Path) -> None:
    """While it is fresh, no number of uses asks the server; when it is old, the use does not wait for the answer."""

    async def story(url: str) -> None:
        async with gateway(tmp_path, card_seconds=60.0) as server:
            await add(server, url, "mine")
            await renew(server, url)
            listed = site.noted().count("listed")
            for _ in range(20):
                await server.gateway.select(ME, "mine")
                await call(server, "count")
            await asyncio.sleep(0.3)
            assert site.noted().count("listed") == listed
        async with gateway(tmp_path, card_seconds=0.3) as server:
            await renew(server, url)
            listed = site.noted().count("listed")
            await asyncio.sleep(0.4)
            await server.gateway.select(ME, "mine")
            assert site.noted().count("listed") == listed

            async def asked() -> bool:
                return site.noted().count("listed") > listed

            await until(asked)

    with served(tmp_path / "notes") as site:
        run(story(site.url))


@pytest.mark.requirement("AC-17")
def test_a_dead_server_keeps_its_card_and_shows_that_it_is_down_until_it_answers(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path, breaker_failures=100) as server:
            agent = await add(server, url, "mine")
            await renew(server, url)
            assert (await found(server))["status"] == "active"
            site.stop()
            assert isinstance(await call(server, "count"), Failed)

            async def status(wanted: str) -> bool:
                return bool((await found(server))["status"] == wanted)

            await until(lambda: status("unreachable"))
            shown = await server.gateway.select(ME, "mine")
            assert shown["status"] == "unreachable"
            assert len(shown["capabilities"]) == len(agent.capabilities)
            listed = await asyncio.to_thread(run_agent3, tmp_path, "list", "--db", server.settings.storage.url)
            assert "unreachable" in listed.stdout
            again(site)
            assert isinstance(await call(server, "count"), Done)
            await until(lambda: status("active"))

    with served(tmp_path / "notes") as site:
        run(story(site.url))


def test_a_burst_of_news_is_one_question_and_one_at_a_time(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            await add(server, url, "mine")
            listed = site.noted().count("listed")
            for _ in range(50):
                server.renewals.changed(url)

            async def asked() -> bool:
                return site.noted().count("listed") > listed

            await until(asked)
            await asyncio.sleep(0.3)
            assert site.noted().count("listed") <= listed + 2

    with served(tmp_path / "notes") as site:
        run(story(site.url))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_agent_that_was_removed_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Nor when another process removed it, of which this one hears half a second later."""

    async def story() -> None:
        async with gateway(tmp_path) as server, gateway(tmp_path) as other:
            old = Agent(
                id="mine",
                name="mine",
                capabilities=(Capability(name="x", routes=(Route("mcp", "http://127.0.0.1:1/mcp"),)),),
            )
            await server.directory.add(old)
            mcp = server.protocols["mcp"]
            real = mcp.describe

            async def slow(route: Route, vault: Vault) -> Agent:
                await server.directory.everything()
                await remove(other if elsewhere else server, "mine")
                return await real(route, vault)

            monkeypatch.setattr(mcp, "describe", slow)
            assert await renew(server, "http://127.0.0.1:1/mcp") == []
            assert await other.database.all("SELECT id FROM agents") == []

    run(story())


@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgres"])
def test_of_two_gateways_the_one_with_the_lease_renews_an_old_card_and_the_other_sees_it(
    tmp_path: Path, postgres: bool
) -> None:
    async def at_rest(server: Server) -> bool:
        return not server.renewals._rounds

    async def story(url: str, database: str) -> None:
        async with gateway(tmp_path, database, card_seconds=1.0) as second:
            async with gateway(tmp_path, database, card_seconds=1.0) as first:
                whole = await add(first, url, "mine")
                await first.directory.add(replace(whole, capabilities=whole.capabilities[:1]))
                await asyncio.sleep(1.1)  # the card that was just asked for grows old
                listed = site.noted().count("listed")
                await first.gateway.select(ME, "mine")
                await until(lambda: at_rest(first))
                await second.gateway.select(ME, "mine")
                await until(lambda: at_rest(second))
                assert first.renewals.counts["renewed"] == 1
                assert not second.renewals.counts, "it left the card to the first"
                assert site.noted().count("listed") == listed + 1

                async def seen() -> bool:
                    return len((await found(second))["capabilities"]) == len(whole.capabilities)

                await until(seen)

            async def taken_over() -> bool:
                await second.gateway.select(ME, "mine")
                return second.renewals.counts["same"] > 0

            await until(taken_over)

    with served(tmp_path / "notes") as site:
        run(story(site.url, new_database_url() if postgres else ""))


def test_a_passing_command_renews_nothing(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'agent3.db'}"))
        async with build(settings, take_over=False) as server:
            await add(server, url, "mine")
            listed = site.noted().count("listed")
            await call(server, "grow")
            await asyncio.sleep(0.3)
            assert site.noted().count("listed") == listed

    with served(tmp_path / "notes") as site:
        run(story(site.url))
