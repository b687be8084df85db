"""A crowd of people who think about a question of one server: nobody else waits for them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from agent3.protocols.mcp.door import fast_lane
from agent3.settings import Client as Customer
from agent3.settings import Limits, Settings
from tests.protocols.mcp.test_asking_servers import standing
from tests.protocols.mcp.test_handlers import frames, hello
from tests.support import registration as adding
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_upstream import eventually, notes, served

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


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_question_of_a_legacy_client_is_given_up_only_if_it_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    file, sleep = tmp_path / "notes", asyncio.sleep
    decided, looks = threading.Event(), list[float]()

    async def pause(seconds: float, result: Any = None) -> Any:
        """The gateway looks whether the client is there again and again, once that has come back or never will."""
        if seconds == fast_lane.GONE_AFTER / 2:
            while not decided.is_set():
                await sleep(0.01)
            looks.append(seconds)
            seconds = 0.01
        return await sleep(seconds, result)

    monkeypatch.setattr(asyncio, "sleep", pause)

    async def story(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            headers = await hello(http, url, elicitation={})
            call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "aside", "arguments": {}}}
            async with http.post(url, json=call, headers=headers) as response:
                asked, last = await _next_message(response)
                response.close()
            assert asked["method"] == "elicitation/create"
            if not comes_back:
                decided.set()
                await eventually(lambda: "aside cancel" in notes(file))
                return
            async with http.get(url, headers={**headers, "Last-Event-ID": last}) as response:
                decided.set()
                await eventually(lambda: len(looks) > 4)  # it thinks for longer than one that is gone is waited for
                answer = {"action": "accept", "content": {"size": "large"}}
                said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer}
                async with http.post(url, json=said, headers=headers) as taken:
                    assert taken.status == 202
                done, _ = await _next_message(response)
            assert done["result"]["content"][0]["text"] == "accept {'size': 'large'}"

    with served(file, "--legacy") as site, hosted(tmp_path, settings=Settings()) as house:
        house.run(adding.add(house.server, site.url, "asking"))
        asyncio.run(asyncio.wait_for(story(f"{house.url}/agents/asking/mcp"), 120))


async def _next_message(response: aiohttp.ClientResponse) -> tuple[dict[str, Any], str]:
    """The next message of a stream, and the id of its event."""
    async for frame in frames(response):
        if frame.get("data"):
            return json.loads(frame["data"]), frame["id"]
    raise AssertionError("the stream ended")


def text_of(result: wire.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, wire.TextContent)
    return block.text
