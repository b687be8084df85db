"""The switch that stops an agent or a client at once, calls under way included; and what may be seen, not called."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.errors import CapabilityNotFound, NotFound, Unavailable
from agent3.gateway import Caller, CallRequest
from agent3.model import Done, Failed, Needs, Outcome, Principal
from agent3.protocols.functions import Context
from agent3.server.build import Server, build
from agent3.settings import Calls, Rule, Settings, StandInRoute, Storage

BOB = Caller(Principal("bob"), "test")
EVE = Caller(Principal("eve"), "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 100)

    asyncio.run(bounded())


class Slow:
    """An agent that answers at once, or hangs until it is cancelled."""

    def __init__(self) -> None:
        self.agent = LocalAgent("Slow")
        self.begun = asyncio.Event()
        self.cancelled = 0

        @self.agent.capability
        async def hang() -> str:
            """Hang."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return "never"

        @self.agent.capability
        def hello() -> str:
            """Say hello."""
            return "hello"


async def call(server: Server, name: str, caller: Caller = BOB, **more: Any) -> Outcome:
    return await server.gateway.call(caller, CallRequest(agent="slow", capability=name, **more))


@pytest.mark.parametrize("more", [{}, {"key": "k"}], ids=["inline", "job"])
def test_a_stopped_agent_ends_what_runs_and_takes_nothing_until_it_is_started(more: dict[str, Any]) -> None:
    async def story() -> None:
        slow = Slow()
        async with build(Settings(storage=Storage(url="sqlite://")), [slow.agent]) as server:
            assert isinstance(await call(server, "hello"), Done)
            hanging = asyncio.ensure_future(call(server, "hang", **more))
            await slow.begun.wait()
            stops = server.core.parts.stops
            await stops.stop("slow", "it pays twice")
            ended = await hanging
            assert isinstance(ended, Failed)
            assert ended.code == "forbidden"
            assert "it pays twice" in ended.message
            assert slow.cancelled == 1
            for extra in ({}, {"key": "l"}, {"detach": True}):
                refused = await call(server, "hello", **extra)
                assert isinstance(refused, Failed)
                assert refused.code == "forbidden"
            everywhere = [await server.gateway.select(BOB, "slow")]
            everywhere += (await server.gateway.find_agents(BOB))["agents"]
            everywhere += (await server.gateway.search(BOB, "hello"))["agents"]
            assert {one["status"] for one in everywhere} == {"stopped"}
            rows = await server.services.database.all("SELECT what FROM audit WHERE kind = 'change'")
            assert "agent stopped" in [row["what"] for row in rows]
            codes = await server.services.database.all("SELECT code FROM calls WHERE status <> 'done'")
            assert [row["code"] for row in codes].count("forbidden") == 4
            await stops.start("slow")
            assert isinstance(await call(server, "hello"), Done)
            with pytest.raises(NotFound):
                await stops.start("slow")

    run(story())


def test_a_stopped_or_removed_client_loses_its_running_calls_and_others_keep_theirs() -> None:
    async def story() -> None:
        slow = Slow()
        async with build(Settings(storage=Storage(url="sqlite://")), [slow.agent]) as server:
            clients = server.services.clients
            await clients.add("bob")
            await clients.add("eve")
            await server.core.parts.stops.refresh()
            for change in (clients.stop("bob"), clients.remove("eve")):
                caller = BOB if slow.cancelled == 0 else EVE
                slow.begun.clear()
                hanging = asyncio.ensure_future(call(server, "hang", caller))
                await slow.begun.wait()
                other = asyncio.ensure_future(call(server, "hang", Caller(Principal("ann"), "test")))
                await change
                ended = await hanging  # the gateway looks by itself
                assert isinstance(ended, Failed)
                assert "stopped" in ended.message
                refused = await call(server, "hello", caller)
                assert isinstance(refused, Failed)
                assert not other.done()
                other.cancel()
                await asyncio.wait([other])
            await clients.stop("bob", stopped=False)
            await server.core.parts.stops.refresh()
            assert isinstance(await call(server, "hello"), Done)

    run(story())


def test_another_process_stops_it_and_a_restart_remembers(tmp_path: Path) -> None:
    async def story() -> None:
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'a.db'}"))
        slow = Slow()
        async with build(settings, [slow.agent]) as server:
            hanging = asyncio.ensure_future(call(server, "hang"))
            await slow.begun.wait()
            async with build(settings, take_over=False) as other:
                await other.core.parts.stops.stop("slow")
            assert isinstance(await hanging, Failed)
        async with build(settings, [slow.agent]) as server:
            assert isinstance(await call(server, "hello"), Failed)

    run(story())


def test_what_may_be_seen_is_found_and_forbidden_and_what_may_not_is_not_there() -> None:
    async def story() -> None:
        rules = (Rule("see", capability="hang"), Rule("deny", capability="hello"), Rule("allow"))
        slow = Slow()
        async with build(Settings(storage=Storage(url="sqlite://"), rules=rules), [slow.agent]) as server:
            shown = await server.gateway.select(BOB, "slow")
            assert [one["name"] for one in shown["capabilities"]] == ["hang"]
            found = await server.gateway.search(BOB, "hang")
            assert found["count"] == 1
            refused = await call(server, "hang")
            assert isinstance(refused, Failed)
            assert refused.code == "forbidden"
            with pytest.raises(CapabilityNotFound):
                await call(server, "hello")
            assert not slow.begun.is_set()

    run(story())


def test_tenants_find_only_what_is_theirs() -> None:
    async def story() -> None:
        rules = (Rule("allow", tenant="blue", agent="slow"),)
        blue = Caller(Principal("b", tenant="blue"), "test")
        red = Caller(Principal("r", tenant="red", scopes=frozenset({"agent3:operate"})), "test")
        slow = Slow()
        async with build(Settings(storage=Storage(url="sqlite://"), rules=rules), [slow.agent]) as server:
            assert isinstance(await call(server, "hello", blue), Done)
            assert (await server.gateway.find_agents(blue))["count"] == 1
            assert (await server.gateway.find_agents(red))["count"] == 0
            assert (await server.gateway.search(red, "hello"))["count"] == 0

    run(story())


def test_what_stands_in_is_stopped_as_well_while_it_runs_and_in_its_conversations() -> None:
    async def story() -> None:
        first, second, begun = LocalAgent("First"), LocalAgent("Second"), asyncio.Event()
        heard: list[str] = []

        @first.capability(read_only=True)
        def look(wait: bool) -> str:
            """Look."""
            raise Unavailable("not today")

        @second.capability(name="look", read_only=True)
        async def look_there(ctx: Context, wait: bool) -> str:
            """Look."""
            if wait:
                begun.set()
                await asyncio.Event().wait()
            heard.append(await ctx.ask("Which colour?", str))
            return "seen"

        given = Settings(
            storage=Storage(url="sqlite://"),
            calls=Calls(retries=0),
            routes=(StandInRoute("first.look", "second.look"),),
        )
        async with build(given, [first, second]) as server:

            async def look_at(wait: bool) -> Outcome:
                request = CallRequest(agent="first", capability="look", input={"wait": wait})
                return await server.gateway.call(BOB, request)

            asked = await look_at(False)
            assert isinstance(asked, Needs), asked
            assert asked.job
            hanging = asyncio.ensure_future(look_at(True))
            await begun.wait()
            await server.core.parts.stops.stop("second", "it sees ghosts")
            for outcome in (await hanging, await server.gateway.reply(BOB, asked.job, "red")):
                assert isinstance(outcome, Failed)
                assert outcome.code == "forbidden"
                assert "it sees ghosts" in outcome.message
            assert heard == []

    run(story())


def test_what_is_being_ended_is_not_cancelled_again() -> None:
    async def story() -> None:
        agent, begun, going, tidied = LocalAgent("Slow"), asyncio.Event(), asyncio.Event(), asyncio.Event()

        @agent.capability
        async def hang() -> str:
            """Hang, and tidy up for a while when cancelled."""
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                going.set()
                await asyncio.sleep(0.05)
                tidied.set()
            return "never"

        async with build(Settings(storage=Storage(url="sqlite://")), [agent]) as server:
            hanging = asyncio.ensure_future(call(server, "hang"))
            await begun.wait()
            stops = server.core.parts.stops
            await stops.stop("slow")
            await going.wait()
            await stops.stop("another")
            assert isinstance(await hanging, Failed)
            assert tidied.is_set()

    run(story())
