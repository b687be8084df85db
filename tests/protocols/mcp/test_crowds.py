"""A crowd of people who think about a question of one server: nobody else waits for them."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as wire
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from agent3.settings import Client as Customer
from agent3.settings import Limits, Settings
from tests.protocols.mcp.test_asking_servers import standing
from tests.support import registration as adding
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_upstream import notes

CROWD = 50


class Person:
    """A client of the official SDK, in the era in which the call waits for the answer."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def think(self, context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        self.asked.set()
        await self.answers.wait()
        return wire.ElicitResult(action="accept", content={"size": "large"})

    async def open(self, stack: AsyncExitStack, house: Hosted, key: str) -> Client:
        headers = {"Authorization": f"Bearer {key}"}
        http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        transport = streamable_http_client(f"{house.url}/agents/asking/mcp", http_client=http)
        client = Client(transport, mode="legacy", elicitation_callback=self.think)
        return await stack.enter_async_context(client)


def test_fifty_clients_think_and_the_next_one_is_served_at_once(tmp_path: Path) -> None:
    keys = [f"key-of-person-{number:02}-that-is-long-enough" for number in range(CROWD + 1)]
    customers = tuple(
        Customer(id=f"p{number}", key=f"sha256:{hashlib.sha256(key.encode()).hexdigest()}")
        for number, key in enumerate(keys)
    )
    file = tmp_path / "notes"

    async def story(house: Hosted) -> None:
        async with AsyncExitStack() as stack:
            crowd = [Person() for _ in range(CROWD)]
            calls = []
            for person, key in zip(crowd, keys, strict=False):
                client = await person.open(stack, house, key)
                calls.append(asyncio.create_task(client.call_tool("order")))
            await asyncio.gather(*(person.asked.wait() for person in crowd))
            assert notes(file).count("order legacy") == CROWD
            late = Person()
            client = await late.open(stack, house, keys[-1])
            assert text_of(await client.call_tool("plain")) == "plain"
            late.answers.set()
            assert text_of(await client.call_tool("order")) == "accept large"
            assert not any(call.done() for call in calls)
            for person in crowd:
                person.answers.set()
            assert {text_of(one) for one in await asyncio.gather(*calls)} == {"accept large"}

    async def stand() -> None:
        settings = Settings(clients=customers, limits=Limits(per_minute=0))
        async with standing(file) as where:
            with hosted(tmp_path, settings=settings) as house:
                await asyncio.to_thread(house.run, adding.add(house.server, where, "asking"))
                await story(house)

    asyncio.run(asyncio.wait_for(stand(), 240))


def text_of(result: wire.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, wire.TextContent)
    return block.text
