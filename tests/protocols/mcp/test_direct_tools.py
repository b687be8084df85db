"""Capabilities as tools of their own at ``/mcp``: for whom, under which names, and as the catalogue changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from agent3 import Context, LocalAgent
from agent3.directory import Directory
from agent3.gateway.tool_texts import TOOLS
from agent3.model import Agent, Capability, Principal, Route
from agent3.protocols.mcp.door.direct_tools import DirectTools, tool_name
from agent3.protocols.mcp.door.gateway_tools import GatewayTools
from agent3.server.build import Server, build
from agent3.settings import Client as Known
from agent3.settings import Limits, Rule, Settings, Storage
from agent3.settings import Server as Serving
from tests.support.gateway import AGENT3, Hosted, environment, hosted
from tests.support.mcp_serving import modern_request

FIVE = {text.name for text in TOOLS}
KEYS = {"alice": "key-of-alice-0123456789", "bob": "key-of-bob-0123456789"}
SIZE = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}

every_client = pytest.mark.parametrize("mode", ["auto", "legacy"])


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


def shop() -> LocalAgent:
    agent = LocalAgent("Shop", agent_id="shop", description="Sells shoes")

    async def order(ctx: Context) -> str:
        """Order a shoe."""
        return f"ordered {(await ctx.ask('Which size?', SIZE))['size']}"

    def stock(shoe: str) -> dict[str, Any]:
        """How many are left."""
        return {"shoe": shoe, "left": 3}

    agent.add(order)
    agent.add(stock, read_only=True)
    return agent


def card(name: str, count: int = 1) -> Agent:
    """A stored agent; nobody is at its address."""
    route = Route(protocol="mcp", address="http://127.0.0.1:9/mcp")
    tools = tuple(Capability(name=f"do{number}", routes=(route,)) for number in range(count))
    return Agent(id=name, name=name, capabilities=tools)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Hosted]:
    with hosted(tmp_path, [shop()], Settings(server=Serving(direct_tools=4))) as running:
        yield running


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}


@every_client
def test_few_capabilities_are_tools_beside_the_five(house: Hosted, mode: str) -> None:
    async def story() -> None:
        async with Client(f"{house.url}/mcp", mode=mode) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert listed.keys() == FIVE | {"shop__order", "shop__stock"}
            stock = listed["shop__stock"]
            assert stock.description == "How many are left."
            assert stock.input_schema["required"] == ["shoe"]
            assert stock.annotations is not None
            assert stock.annotations.read_only_hint is True
            for _ in range(2):
                done = await client.call_tool("shop__stock", {"shoe": "boot"})
                assert done.structured_content == {"shoe": "boot", "left": 3}
            wrong = await client.call_tool("shop__stock", {"shoe": 3})
            assert wrong.is_error
            assert wrong.structured_content is not None
            assert wrong.structured_content["code"] == "invalid_input"
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("shop__stok", {})
            searched = await client.call_tool("agent3_search", {"query": "shoes"})
            assert searched.structured_content is not None
            assert searched.structured_content["count"] > 0

    run(story())
    assert {row["door"] for row in house.rows("calls")} == {"mcp"}


@every_client
def test_a_client_that_cannot_ask_learns_how_to_answer(house: Hosted, mode: str) -> None:
    async def story() -> None:
        async with Client(f"{house.url}/mcp", mode=mode) as client:
            asked = await client.call_tool("shop__order", {})
            assert isinstance(asked.content[0], wire.TextContent)
            text = asked.content[0].text
            assert "Which size?" in text
            found = re.search(r"by calling agent3_call with (\{.*\})", text)
            assert found is not None, text
            arguments = json.loads(found[1].replace("<your answer>", "42"))
            done = await client.call_tool("agent3_call", arguments)
            assert done.structured_content is not None
            assert done.structured_content["result"] == "ordered 42"

    run(story())


def test_over_stdio_they_are_there_too(tmp_path: Path) -> None:
    async def story() -> None:
        env = {**environment(tmp_path), "AGENT3_SERVER_DIRECT_TOOLS": "1000"}
        parameters = StdioServerParameters(command=AGENT3, args=["mcp", "--demo"], env=env)
        async with Client(stdio_client(parameters), mode="legacy") as client:
            direct = await names(client) - FIVE
            assert direct
            assert all("__" in name for name in direct)

    run(story())


@every_client
def test_what_comes_and_goes_is_told_and_beyond_the_size_the_five_are_left(house: Hosted, mode: str) -> None:
    async def story() -> None:
        told = asyncio.Event()

        async def heard(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.set()

        @asynccontextmanager
        async def listening(client: Client) -> AsyncIterator[None]:
            if mode == "legacy":
                yield
                return
            async with client.listen(tools_list_changed=True) as news:

                async def listen() -> None:
                    async for _ in news:
                        told.set()

                task = asyncio.ensure_future(listen())
                try:
                    yield
                finally:
                    task.cancel()

        directory = house.server.directory

        async def until(expected: set[str], change: Coroutine[Any, Any, None]) -> None:
            told.clear()
            await asyncio.to_thread(house.run, change)
            async with asyncio.timeout(120):
                await told.wait()
            assert await names(client) == FIVE | expected

        async with Client(f"{house.url}/mcp", mode=mode, message_handler=heard) as client:
            both = {"shop__order", "shop__stock"}
            assert await names(client) == FIVE | both
            async with listening(client):
                if mode == "legacy":  # what is told before the client's stream stands is lost
                    async with asyncio.timeout(120):
                        number = 0
                        while not told.is_set():
                            number += 1
                            await asyncio.to_thread(house.run, directory.add(card("first", 1 + number % 2)))
                            await asyncio.sleep(0.5)
                        await asyncio.to_thread(house.run, directory.remove("first"))
                        while await names(client) != FIVE | both:
                            await asyncio.sleep(0.1)
                await until(both | {"two__do0", "two__do1"}, directory.add(card("two", 2)))
                await until(set(), directory.add(card("one")))
                # Nobody has to list again in the middle of its work: what was listed can be called.
                assert not (await client.call_tool("shop__stock", {"shoe": "boot"})).is_error
                await until(both | {"one__do0"}, directory.remove("two"))

    run(story())


def guarded(tmp_path: Path) -> Any:
    digests = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    settings = Settings(
        clients=tuple(Known(name, f"sha256:{digest}") for name, digest in digests.items()),
        rules=(
            Rule("deny", principal="bob", capability="stock"),
            Rule("deny", principal="bob", agent="many"),
            Rule("allow"),
        ),
        limits=Limits(per_minute=0),
        server=Serving(direct_tools=4),
    )
    return hosted(tmp_path, [shop()], settings)


def test_who_may_see_few_of_many_has_these_and_cannot_call_those_of_others(tmp_path: Path) -> None:
    def ask(door: Hosted, who: str, method: str, **params: Any) -> Any:
        request = modern_request(method, params)
        headers = {name.replace("-", "_").lower(): value for name, value in request["headers"].items()}
        answer = door.as_(KEYS[who]).post("/mcp", request["json"], content_type="application/json", **headers)
        return answer.json

    def listed(door: Hosted, who: str) -> set[str]:
        return {tool["name"] for tool in ask(door, who, "tools/list")["result"]["tools"]} - FIVE

    with guarded(tmp_path) as door:
        for _ in range(2):  # the second is served from what the first left behind
            assert listed(door, "alice") == {"shop__order", "shop__stock"}
            assert listed(door, "bob") == {"shop__order"}
        for progress in ({}, {"_meta": {"progressToken": "p"}}):  # on both lanes
            refused, unknown = (
                ask(door, "bob", "tools/call", name=f"shop__{one}", arguments={"shoe": "x"}, **progress)["error"]
                for one in ("stock", "stink")
            )
            assert refused["code"] == unknown["code"] == -32602
            assert refused["message"] == "Unknown tool: shop__stock"
        door.run(door.server.directory.add(card("many", 50)))
        assert listed(door, "alice") == set()
        assert listed(door, "bob") == {"shop__order"}


def test_none_are_listed_where_they_are_switched_off(tmp_path: Path) -> None:
    async def story() -> None:
        async with Client(f"{door.url}/mcp") as client:
            assert await names(client) == FIVE
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("shop__stock", {"shoe": "boot"})

    with hosted(tmp_path, [shop()], Settings(server=Serving(direct_tools=0))) as door:
        run(story())


@asynccontextmanager
async def tools_of(tmp_path: Path, *rules: Rule, most: int = 4) -> AsyncIterator[tuple[Server, DirectTools]]:
    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'direct.db'}"), rules=rules)
    async with build(settings) as server:
        yield server, DirectTools(GatewayTools(server.gateway), server.gateway, most)


def test_a_change_is_told_though_its_caller_asks_first_and_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        told, failed = asyncio.Event(), asyncio.Event()
        async with tools_of(tmp_path) as (server, tools):
            me = Principal("me")
            before = len(await tools.tools(me))
            async with tools.watching(told.set), asyncio.timeout(120):
                await server.directory.add(card("first"))
                assert len(await tools.tools(me)) == before + 1  # and so the view is a new one already
                await told.wait()
                told.clear()

                def broken(since: int) -> Any:
                    failed.set()
                    raise RuntimeError("of no kind that is expected")

                with monkeypatch.context() as patch:
                    patch.setattr(server.directory, "changed_since", broken)
                    await server.directory.add(card("second"))
                    await failed.wait()
                await told.wait()
                assert len(await tools.tools(me)) == before + 2

    run(story())


def test_a_change_of_one_agent_is_a_look_at_one_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many agents that a caller may not see, those it may are found once, and then followed."""
    walks: list[None] = []
    everything = Directory.each

    def counted(directory: Directory) -> AsyncIterator[Agent]:
        walks.append(None)
        return everything(directory)

    async def story() -> None:
        rules = (Rule("allow", agent="mine*"), Rule("allow", principal="all"))
        async with tools_of(tmp_path, *rules) as (server, tools):
            directory, me, everybody = server.directory, Principal("me"), Principal("all")
            for number in range(30):
                await directory.add(card(f"other{number}"))
            await directory.add(card("mine"))

            async def direct(who: Principal) -> set[str]:
                return {tool.name for tool in await tools.tools(who)} - FIVE

            assert (await direct(me), await direct(everybody)) == ({"mine__do0"}, set())
            monkeypatch.setattr(Directory, "each", counted)
            await directory.add(card("mine2"))
            await directory.add(card("other1", 7))
            await directory.remove("other2")
            assert (await direct(me), await direct(everybody)) == ({"mine__do0", "mine2__do0"}, set())
            suspended = Agent(id="mine", name="mine", capabilities=card("mine").capabilities, status="suspended")
            await directory.add(suspended)
            assert await direct(me) == {"mine2__do0"}
            assert not walks
            # Those that were counted are gone: whether there are others, only a look at all can tell.
            for number in range(30):
                if number != 2:
                    await directory.remove(f"other{number}")
            assert await direct(everybody) == {"mine2__do0"}
            assert walks

    run(story())


def test_a_list_is_known_to_be_the_same_until_its_tools_are_others(tmp_path: Path) -> None:
    async def story() -> None:
        rules = (Rule("allow", agent="mine*"),)
        async with tools_of(tmp_path, *rules) as (server, tools):
            me = Principal("me")
            await server.directory.add(card("mine"))
            assert tools.fingerprint(me) is None  # nobody has looked yet
            await tools.tools(me)
            first = tools.fingerprint(me)
            assert first is not None
            await server.directory.add(card("other"))
            assert tools.fingerprint(me) is None
            await tools.tools(me)
            assert tools.fingerprint(me) == first
            await server.directory.add(card("mine", 2))
            await tools.tools(me)
            assert tools.fingerprint(me) not in (None, first)

    run(story())


def test_names_are_safe_and_tell_capabilities_apart() -> None:
    assert tool_name("time", "convert_time") == "time__convert_time"
    pairs = [
        ("a__b", "c"),
        ("a", "b__c"),
        ("a_", "_b"),
        ("a", "__b"),
        ("ä", "b"),
        ("ö", "b"),
        ("my.agent", "do"),
        ("my_agent", "do"),
        ("my_agent", tool_name("my.agent", "do").removeprefix("my_agent__")),
        ("shop", "get/items"),
        ("shop", "get items"),
        ("long" * 20, "x"),
        ("long" * 20, "y"),
        ("x", "long" * 20),
        ("", ""),
    ]
    made = [tool_name(*pair) for pair in pairs]
    assert len(set(made)) == len(made), made
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in made), made
