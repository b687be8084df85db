"""The three usage examples of the design, word for word, through a real MCP client at a real gateway.

``agent3_search`` and the others below are the calls of the examples; what they give is the structured result.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client

from agent3 import LocalAgent
from agent3.errors import Unavailable
from agent3.model import Price
from agent3.server import demo
from agent3.settings import Calls, Settings
from tests.support.gateway import Hosted, hosted

ERAS = ["2025-11-25", "2026-07-28"]
Tool = Callable[..., Awaitable[dict[str, Any]]]


class Bank:
    """Processes payments; not reachable at first."""

    def __init__(self) -> None:
        self.failures = 0
        self.agent = LocalAgent("Bank", agent_id="bank", description="Processes payments.")
        self.agent.add(self.pay, idempotent=True, price=Price(call=0.01))

    async def pay(self, message: str) -> dict[str, str]:
        """Process a payment."""
        if self.failures:
            self.failures -= 1
            raise Unavailable("The bank is closed.")
        return {"status": "paid"}


@pytest.fixture(scope="module")
def bank() -> Bank:
    return Bank()


@pytest.fixture(scope="module")
def door(bank: Bank, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(calls=Calls(backoff=0.01, backoff_max=0.02, breaker_failures=1_000))
    with hosted(tmp_path_factory.mktemp("examples"), [*demo.agents(), bank.agent], settings) as running:
        yield running


def play(door: Hosted, era: str, example: Callable[[Tool, Tool, Tool], Awaitable[None]]) -> list[wire.CallToolResult]:
    """Run an example with the three calls that it makes; gives all results of the tools."""
    results: list[wire.CallToolResult] = []

    async def main() -> None:
        async with asyncio.timeout(60), Client(f"{door.url}/mcp", mode=_mode(era)) as client:

            async def tool(name: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(name, arguments)
                results.append(result)
                assert isinstance(result.structured_content, dict)
                return result.structured_content

            async def agent3_search(query: str) -> dict[str, Any]:
                return await tool("agent3_search", query=query)

            async def agent3_call(agent_id: str, message: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
                return await tool("agent3_call", agentId=agent_id, message=message, **(options or {}))

            async def agent3_feedback(agent_id: str, rating: int, comment: str) -> dict[str, Any]:
                return await tool("agent3_feedback", agentId=agent_id, rating=rating, comment=comment)

            await example(agent3_search, agent3_call, agent3_feedback)

    asyncio.run(main())
    return results


def _mode(era: str) -> Any:
    return era if era == "2026-07-28" else "legacy"


@pytest.mark.requirement("AC-30")
@pytest.mark.parametrize("era", ERAS)
def test_example_1_simple_food_order(door: Hosted, era: str) -> None:
    async def example(agent3_search: Tool, agent3_call: Tool, agent3_feedback: Tool) -> None:
        agents = await agent3_search("pizza delivery")
        pizza_agent_id = agents["agents"][0]["id"]

        order = await agent3_call(pizza_agent_id, "I want to order a large pepperoni pizza")

        assert order["success"] is True
        assert order["result"]["orderId"].startswith("P-")
        assert order["result"]["status"] == "confirmed"
        assert order["metadata"]["responseTime"] > 0

    play(door, era, example)


@pytest.mark.requirement("AC-30")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("failures", "success"), [(0, True), (3, True), (9, False)])
def test_example_2_with_timeout_and_retry(door: Hosted, bank: Bank, era: str, failures: int, success: bool) -> None:
    async def example(agent3_search: Tool, agent3_call: Tool, agent3_feedback: Tool) -> None:
        agent_id = "bank"
        result = await agent3_call(
            agent_id,
            "Process payment",
            {"metadata": {"timeout": 15000, "retries": 3, "userAgentId": "my-bot-456"}},
        )

        if result["success"]:
            assert result["result"] == {"status": "paid"}
            assert result["metadata"]["cost"] == 0.01
        else:
            assert result["error"] == "The bank is closed."
        assert result["success"] is success
        assert result["metadata"]["retryCount"] == min(failures, 3)

    bank.failures = failures
    play(door, era, example)


@pytest.mark.requirement("AC-30")
@pytest.mark.parametrize("era", ERAS)
def test_example_3_with_feedback_loop(door: Hosted, era: str) -> None:
    async def example(agent3_search: Tool, agent3_call: Tool, agent3_feedback: Tool) -> None:
        agents = await agent3_search("image generation")
        image_agent_id = agents["agents"][0]["id"]

        response = await agent3_call(image_agent_id, "Generate a professional product image of a laptop")

        if response["success"]:
            await agent3_feedback(
                image_agent_id, 5, f"Excellent! Generated in {response['metadata']['responseTime']}ms"
            )
        assert response["success"] is True
        named = response["result"]
        assert (named["type"], named["media_type"], named["name"]) == ("image", "image/png", "image.png")

    _, called, rated = play(door, era, example)
    assert rated.structured_content is not None
    assert rated.structured_content["recorded"] is True
    # The image itself is content that a model can see, once, and not text in the middle of JSON.
    (image,) = [block for block in called.content if isinstance(block, wire.ImageContent)]
    assert image.mime_type == "image/png"
    png = base64.b64decode(image.data)
    assert _pixels(png) == (96, 96)
    (text,) = [block for block in called.content if isinstance(block, wire.TextContent)]
    assert image.data not in text.text


def _pixels(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG, all of whose chunks and rows are whole."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, found, size = 8, b"", (0, 0)
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", png[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(kind + data)
        if kind == b"IHDR":
            size = struct.unpack(">II", data[:8])
        found += data if kind == b"IDAT" else b""
        place += 12 + length
    assert len(zlib.decompress(found)) == size[1] * (1 + 3 * size[0])
    return size
