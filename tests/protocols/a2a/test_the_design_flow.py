"""The design of ``agent3_call``: search, call, feedback, through a real MCP client to a remote A2A agent.

One gateway, and one agent of each generation behind it: the official SDK for 1.0 and 0.3, our own raw one for 0.1.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from starlette.responses import Response

from agent3.model import agent_id
from agent3.settings import Calls, Settings
from tests.support.a2a_peers import Peer, first, official
from tests.support.gateway import Hosted, hosted
from tests.support.registration import add

MODERN = "2026-07-28"
NAMES = {"1.0": "Alpine Talker", "0.3": "Coastal Talker", "0.1": "Desert Talker"}
WAIT = 120.0
Story = Callable[[Client], Awaitable[None]]
every_generation = pytest.mark.parametrize("generation", NAMES)


@dataclass
class Town:
    """A gateway, and the agents that were added to it."""

    gateway: Hosted
    agents: dict[str, Peer]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with ExitStack() as stack:
        agents = {
            "1.0": stack.enter_context(official("JSONRPC", "1.0")),
            "0.3": stack.enter_context(official("HTTP+JSON", "0.3")),
            "0.1": stack.enter_context(first())[0],
        }
        settings = Settings(calls=Calls(backoff=0.01, backoff_max=0.02))
        gateway = stack.enter_context(hosted(tmp_path_factory.mktemp("town"), [], settings))
        for generation, peer in agents.items():
            gateway.run(add(gateway.server, peer.url, NAMES[generation]))
        yield Town(gateway, agents)


def talk(town: Town, story: Story, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT), Client(f"{town.gateway.url}/mcp", mode=MODERN, **options) as client:
            await story(client)

    asyncio.run(main())


def body(result: Any) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


async def call(client: Client, generation: str, message: str, **metadata: Any) -> dict[str, Any]:
    arguments = {"agentId": agent_id(NAMES[generation]), "message": message, "metadata": metadata}
    return body(await client.call_tool("agent3_call", arguments))


@pytest.mark.requirement("AC-05", "AC-06")
@every_generation
def test_search_call_with_a_question_in_the_middle_and_feedback(town: Town, generation: str) -> None:
    asked: list[str] = []

    async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        asked.append(params.message)
        return wire.ElicitResult(action="accept", content={"answer": "large"})

    async def story(client: Client) -> None:
        found = body(await client.call_tool("agent3_search", {"query": f"{NAMES[generation]} pizza"}))
        assert found["agents"][0]["id"] == agent_id(NAMES[generation])
        answer = await call(client, generation, "ask me for a pizza")
        assert (answer["success"], answer["result"]) == (True, "echo: large")
        assert answer["metadata"]["statusCode"] == 200
        rating = {"agentId": agent_id(NAMES[generation]), "rating": 5, "comment": "Hot"}
        assert body(await client.call_tool("agent3_feedback", rating))["recorded"] is True

    talk(town, story, elicitation_callback=person)
    assert asked == ["Which size?"]


@every_generation
def test_a_stream_is_shown_as_progress(town: Town, generation: str) -> None:
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def story(client: Client) -> None:
        arguments = {"agentId": agent_id(NAMES[generation]), "message": "story time"}
        answer = body(await client.call_tool("agent3_call", arguments, progress_callback=hear))
        assert answer["result"] == "Once upon time"

    talk(town, story)
    assert "on it" in heard
    assert "".join(heard).endswith("Once upon time")


@pytest.mark.requirement("AC-11")
@every_generation
def test_an_agent_that_takes_too_long_is_a_timeout(town: Town, generation: str) -> None:
    async def story(client: Client) -> None:
        answer = await call(client, generation, "hang on", timeout=400, retries=0)
        assert (answer["success"], answer["errorCode"]) == (False, "timeout")
        assert answer["metadata"]["statusCode"] == 504
        assert answer["metadata"]["responseTime"] >= 300

    talk(town, story)


@pytest.mark.requirement("AC-09")
@every_generation
def test_an_agent_that_fails_twice_and_then_answers_has_answered(town: Town, generation: str) -> None:
    peer = town.agents[generation]
    turned_away: list[str] = []

    def refuse(path: str, headers: dict[str, str]) -> Response | None:
        if "well-known" in path or len(turned_away) == 2:
            return None
        turned_away.append(path)
        return Response(status_code=503, headers={"retry-after": "0"})

    async def story(client: Client) -> None:
        peer.refuse = refuse
        answer = await call(client, generation, "hi", retries=3)
        assert (answer["success"], answer["result"]) == (True, "echo: hi")
        assert answer["metadata"]["retryCount"] == 2

    try:
        talk(town, story)
    finally:
        peer.refuse = lambda path, headers: None
    assert len(turned_away) == 2


@pytest.mark.requirement("AC-28")
@pytest.mark.parametrize("generation", ["1.0"])  # the SDK's 0.3 reads the bytes of a file as text
def test_a_file_reaches_an_agent_that_takes_it_and_no_other(town: Town, generation: str) -> None:
    content = bytes(range(256))

    async def story(client: Client) -> None:
        file = {"bytes": base64.b64encode(content).decode(), "name": "all.bin"}
        arguments = {"agentId": agent_id(NAMES[generation]), "message": "file this", "files": [file]}
        answer = body(await client.call_tool("agent3_call", arguments))
        assert answer["success"] is True, answer
        assert base64.b64encode(content[::-1]).decode() in json.dumps(answer["result"])
        refused = body(
            await client.call_tool("agent3_call", {**arguments, "files": [{**file, "mediaType": "image/png"}]})
        )
        assert refused["errorCode"] == "invalid_input"
        assert refused["error"].endswith("It accepts text/plain, application/octet-stream.")

    talk(town, story)
