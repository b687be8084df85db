"""An agent that calls itself through the gateway is stopped at once, whichever way it does so; others are called."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent3 import a2a
from agent3.client.client import AsyncClient, Client
from agent3.mcp import MCPClient, MCPServer
from agent3.protocols.functions import LocalAgent
from tests.support.gateway import hosted

SEEN: Counter[str] = Counter()


def test_what_calls_itself_through_the_gateway_is_stopped_and_what_calls_others_is_not(tmp_path: Path) -> None:
    SEEN.clear()
    where: dict[str, str] = {}
    own = LocalAgent("Own", agent_id="own")

    def count(name: str) -> None:
        SEEN[name] += 1
        assert SEEN[name] < 10, f"{name} goes on for ever"

    async def call(agent: str, capability: str, **given: Any) -> Any:
        async with AsyncClient(where["gateway"]) as client:
            return (await client.call(agent, capability=capability, input=given)).value

    @own.capability
    def plus(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @own.capability
    async def sum_up(numbers: list[int]) -> int:
        """Add numbers, by another capability of the same agent."""
        total = 0
        for number in numbers:
            total = await call("own", "plus", a=total, b=number)
        return total

    @own.capability
    async def again(text: str) -> Any:
        """Calls itself."""
        count("again")
        return await call("own", "again", text=text)

    @own.capability
    def in_thread(text: str) -> Any:
        """Calls itself from a thread."""
        count("in_thread")
        with Client(where["gateway"]) as client:
            return client.call("own", capability="in_thread", input={"text": text}).value

    @own.capability
    async def later(text: str) -> str:
        """Starts itself without waiting."""
        count("later")
        async with AsyncClient(where["gateway"]) as client:
            started = await client.call("own", capability="later", input={"text": text}, wait=False)
            return str((await client.wait(started)).value)

    @own.capability
    def by_mcp(text: str) -> Any:
        """Calls itself by MCP."""
        count("by_mcp")
        with MCPClient() as client:
            client.connect_to_server(where["gateway"] + "/mcp")
            given = {"agentId": "own", "capability": "by_mcp", "input": {"text": text}}
            return str(client.invoke_tool("agent3_call", given))

    @own.capability
    async def there(text: str) -> Any:
        """Calls an A2A agent that calls this."""
        count("there")
        return await call("faraway", "there_and_back", text=text)

    async def there_and_back(text: str) -> Any:
        """Calls back."""
        count("back")
        return str(await call("own", "there", text=text))

    async def use_others(a: int, b: int) -> Any:
        """Calls another agent of the gateway that called it."""
        return await call("own", "plus", a=a, b=b)

    server = MCPServer(name="tools")

    @server.tool
    async def loop(text: str) -> Any:
        """Calls itself through the gateway."""
        count("loop")
        return await call("tools", "loop", text=text)

    faraway = LocalAgent("Faraway", agent_id="faraway")
    faraway.capability(there_and_back)
    faraway.capability(use_others)
    with ExitStack() as opened:
        agent = opened.enter_context(a2a.listening(faraway))
        tools = opened.enter_context(server.listening())
        opened.callback(server.close)
        door = opened.enter_context(hosted(tmp_path, [own]))
        where["gateway"] = door.url
        for source, name in ((agent, "faraway"), (tools, "tools")):
            assert door.post("/v1/agents", {"source": source, "name": name}).status == 201
        assert door.call("own", capability="sum_up", input={"numbers": [1, 2, 3]}).json["result"] == 6
        assert door.call("faraway", capability="use_others", input={"a": 1, "b": 2}).json["result"] in (3, "3")
        for agent_id, name in (
            ("own", "again"),
            ("own", "in_thread"),
            ("own", "later"),
            ("own", "by_mcp"),
            ("own", "there"),
            ("tools", "loop"),
        ):
            told = door.call(agent_id, capability=name, input={"text": "x"}).raw.decode()
            assert "would call itself" in told, (name, told)
            assert f"{agent_id}/{name}" in told, (name, told)
            assert SEEN[name] == 1, (name, SEEN)
            again_told = door.call(agent_id, capability=name, input={"text": "x"})
            assert SEEN[name] == 2, "one call after the other is no loop"
            assert "would call itself" in again_told.raw.decode()
        refused = [row for row in door.rows("calls") if row["code"] == "loop_detected"]
        assert len(refused) >= 12
        # Deeper than sixteen calls, whatever they are.
        deep = ", ".join(f"~{number:016x}" for number in range(16))
        asked = {"agentId": "own", "capability": "plus", "input": {"a": 1, "b": 2}}
        refusal = door.post("/v1/call", asked, agent3_via=deep)
        assert (refusal.status, refusal.json["errorCode"]) == (508, "loop_detected")
        assert "an agent elsewhere → own/plus" in refusal.json["error"]
