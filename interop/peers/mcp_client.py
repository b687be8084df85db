"""A client of whichever framework this Python has: ``NAME URL AGENT`` finds the gateway's tools and calls an agent.

It prints what it saw as JSON: the names of the tools, the result of a call, and what a call that fails says.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module

TOOL = "agent3_call"


def build_arguments(agent: str, text: str) -> dict:
    """What is said to the agent."""
    return {"agentId": agent, "message": text}


async def use_mcp_1(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """The official Python SDK 1.x."""
    streams = import_module("mcp.client.streamable_http").streamablehttp_client(url)
    async with streams as (read, write, _), import_module("mcp").ClientSession(read, write) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        return tools, [str((await session.call_tool(TOOL, one)).content) for one in calls]


async def use_mcp_2(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """The official Python SDK 2.x."""
    async with import_module("mcp.client.client").Client(url) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        return tools, [str((await client.call_tool(TOOL, one)).content) for one in calls]


async def use_fastmcp(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """The client of fastmcp, in any version."""
    async with import_module("fastmcp").Client(url) as client:
        tools = [tool.name for tool in await client.list_tools()]
        return tools, [str((await client.call_tool(TOOL, one, raise_on_error=False)).content) for one in calls]


async def use_langchain(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """LangChain's adapters, with the tools run by a node of LangGraph."""
    adapters, prebuilt = import_module("langchain_mcp_adapters.client"), import_module("langgraph.prebuilt")
    graph, messages = import_module("langgraph.graph"), import_module("langchain_core.messages")
    client = adapters.MultiServerMCPClient({"gateway": {"transport": "streamable_http", "url": url}})
    tools = await client.get_tools()
    building = graph.StateGraph(graph.MessagesState)
    building.add_node("tools", prebuilt.ToolNode(tools, handle_tool_errors=True))
    building.add_edge(graph.START, "tools")
    built = building.compile()
    said = []
    for one in calls:
        asked = messages.AIMessage("", tool_calls=[{"name": TOOL, "args": one, "id": "1"}])
        said.append(str((await built.ainvoke({"messages": [asked]}))["messages"][-1].content))
    return [tool.name for tool in tools], said


async def use_openai_agents(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """The OpenAI Agents SDK."""
    async with import_module("agents.mcp").MCPServerStreamableHttp(params={"url": url}) as server:
        tools = [tool.name for tool in await server.list_tools()]
        return tools, [str((await server.call_tool(TOOL, one)).content) for one in calls]


async def use_pydantic_ai(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """pydantic-ai, by its own client of MCP."""
    module = import_module("pydantic_ai.mcp")
    toolset = module.MCPToolset(url) if hasattr(module, "MCPToolset") else module.MCPServerStreamableHTTP(url)
    async with toolset:
        tools = [tool.name for tool in await toolset.list_tools()]
        said = []
        for one in calls:
            try:
                said.append(str(await toolset.direct_call_tool(TOOL, one)))
            except Exception as wrong:  # noqa: BLE001 - it raises what a tool answers as an error
                said.append(str(wrong))
        return tools, said


async def use_crewai(url: str, calls: list[dict]) -> tuple[list[str], list[str]]:
    """CrewAI's adapter, which sends null for what is left out."""
    adapter = import_module("crewai_tools").MCPServerAdapter

    def work() -> tuple[list[str], list[str]]:
        with adapter({"url": url, "transport": "streamable-http"}) as tools:
            tool = next(one for one in tools if one.name == TOOL)
            return [one.name for one in tools], [str(tool.run(**one)) for one in calls]

    return await asyncio.to_thread(work)


async def main(name: str, url: str, agent: str) -> None:
    """Find, call, fail."""
    calls = [build_arguments(agent, "hello"), build_arguments("nobody-of-this-name", "hello")]
    tools, said = await globals()[f"use_{name}"](url, calls)
    sys.stdout.write(json.dumps({"found": TOOL in tools, "value": said[0], "error": said[1]}) + "\n")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:4]), 90))
