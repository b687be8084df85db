"""``tokens``: what twenty tasks cost a model in tokens, with tools listed, and found by search.

Three real MCP servers of npm (files, a memory, a set of examples; 36 tools) run over stdio. Each task is done three
times, with real calls:

    raw       the three servers beside each other in the client, without agent3
    search    ``agent3 mcp`` with the five tools: one search, then one ``agent3_call``
    direct    ``agent3 mcp`` with the tools of capabilities beside the five: one call

What is counted is what a model reads and writes until it has the result: each of its requests reads the definitions of
all tools (name, description, input schema) and the conversation so far. Tokens are estimated as in the rest of agent3,
three bytes of JSON to one (``agent3.gateway.hits.count_tokens``); no tokenizer is asked, so trust the ratios.
``listed`` is the definitions alone, ``one`` the mean of a task in a conversation of its own, ``ten`` that of a task
in a conversation of ten, and ``found`` how often the search had the right tool among its hits. agent3 asks persons, so
that one of the servers offers it two tools more.

    search_vs_raw_one, direct_vs_raw_one …    tokens of a task, below 1 where agent3 needs fewer
    even_at_one, even_at_ten                  number of tools at which listing them and searching cost the same

The servers come from npm by name and version, once, into the user's cache folder; the runs need no network.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent, Tool

from agent3.gateway.hits import count_tokens
from agent3.protocols.mcp.door.direct_tools import tool_name
from bench.harness import Options, Result, Row, bench, ratio, say
from conformance.kits import Npm

__all__ = ["run"]

_VERSION = "2026.8.31"
_SERVERS = {
    "files": Npm("@modelcontextprotocol/server-filesystem", _VERSION, "dist/index.js"),
    "memory": Npm("@modelcontextprotocol/server-memory", _VERSION, "dist/index.js"),
    "everything": Npm("@modelcontextprotocol/server-everything", _VERSION, "dist/index.js"),
}
_AGENT3 = [sys.executable, "-m", "agent3"]
_SECONDS = 120.0
_CONVERSATIONS = {"one": 1, "ten": 10}


@dataclass(frozen=True)
class Task:
    """What a person wants, and how a model does it. ``{folder}`` stands for a folder with some files."""

    request: str
    query: str
    server: str
    tool: str
    input: dict[str, Any] = field(default_factory=dict)


TASKS = (
    Task("What does hello.txt in {folder} say?", "read a text file", "files", "read_text_file",
         {"path": "{folder}/hello.txt"}),
    Task("Write 'done' into {folder}/state.txt.", "write a file", "files", "write_file",
         {"path": "{folder}/state.txt", "content": "done"}),
    Task("Make a folder called reports in {folder}.", "create a directory", "files", "create_directory",
         {"path": "{folder}/reports"}),
    Task("Which files are in {folder}?", "list the files of a directory", "files", "list_directory",
         {"path": "{folder}"}),
    Task("How big are the files in {folder}?", "list files with their sizes", "files", "list_directory_with_sizes",
         {"path": "{folder}"}),
    Task("When was hello.txt in {folder} changed?", "file size and modification time", "files", "get_file_info",
         {"path": "{folder}/hello.txt"}),
    Task("Find all text files below {folder}.", "search files by pattern", "files", "search_files",
         {"path": "{folder}", "pattern": "**/*.txt"}),
    Task("In {folder}/notes.txt, replace Monday by Tuesday.", "edit lines of a text file", "files", "edit_file",
         {"path": "{folder}/notes.txt", "edits": [{"oldText": "Monday", "newText": "Tuesday"}]}),
    Task("Rename old.txt in {folder} to new.txt.", "move or rename a file", "files", "move_file",
         {"source": "{folder}/old.txt", "destination": "{folder}/new.txt"}),
    Task("Show {folder} as a tree.", "directory tree", "files", "directory_tree", {"path": "{folder}"}),
    Task("Remember that Ada is a person who wrote programs.", "remember a new entity", "memory", "create_entities",
         {"entities": [{"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}]}),
    Task("Remember that Ada worked with Charles.", "create a relation between entities", "memory",
         "create_relations", {"relations": [{"from": "Ada", "to": "Charles", "relationType": "worked with"}]}),
    Task("Also note that Ada liked mathematics.", "add observations to an entity", "memory", "add_observations",
         {"observations": [{"entityName": "Ada", "contents": ["liked mathematics"]}]}),
    Task("What do you know about programs?", "search the knowledge graph", "memory", "search_nodes",
         {"query": "programs"}),
    Task("Show me everything you remember.", "read the whole knowledge graph", "memory", "read_graph"),
    Task("Forget Ada.", "delete entities from the graph", "memory", "delete_entities", {"entityNames": ["Ada"]}),
    Task("What is 19 plus 23?", "add two numbers", "everything", "get-sum", {"a": 19, "b": 23}),
    Task("Repeat 'good morning'.", "echo a message back", "everything", "echo", {"message": "good morning"}),
    Task("How is the weather in Chicago?", "weather of a city", "everything", "get-structured-content",
         {"location": "Chicago"}),
    Task("Give me links to three resources.", "resource links", "everything", "get-resource-links", {"count": 3}),
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One request of a model: what it wrote, and what it then reads besides."""

    wrote: Any
    read: str


@dataclass(frozen=True)
class Way:
    """How the tasks were done in one way: what was listed, and the turns of each task."""

    name: str
    listed: int
    """Tokens of the definitions."""
    tools: int
    tasks: Sequence[Sequence[Turn]]
    found: int = len(TASKS)

    def cost(self, together: int) -> float:
        """Tokens of a mean task in a conversation of so many."""
        said = sum(count_tokens(turn.wrote) + count_tokens(turn.read) for turns in self.tasks for turn in turns)
        said += sum(count_tokens(task.request) for task in TASKS)
        history = (together - 1) / 2 * said / len(self.tasks)
        costs = []
        for task, turns in zip(TASKS, self.tasks, strict=True):
            context, cost = history + count_tokens(task.request), 0.0
            for turn in turns:
                wrote, read = count_tokens(turn.wrote), count_tokens(turn.read)
                cost += self.listed + context + wrote
                context += wrote + read
            costs.append(cost + self.listed + context)  # the request in which it reads the result
        return fmean(costs)


@bench("tokens", "what twenty tasks cost a model: tools listed, and found by search")
def run(options: Options) -> Result:
    with tempfile.TemporaryDirectory(prefix="agent3-tokens-") as place:
        raw, search, direct = asyncio.run(_run_all(Path(place)))
    rows = [
        Row(
            f"tokens_{way.name}",
            extra={
                "tools": way.tools,
                "listed": way.listed,
                **{name: round(way.cost(together)) for name, together in _CONVERSATIONS.items()},
                "found": f"{way.found} of {len(TASKS)}",
            },
        )
        for way in (raw, search, direct)
    ]
    # A task reads the definitions twice where its tool is listed, and three times with a search before.
    listed = direct.listed - search.listed
    each = listed / (direct.tools - search.tools)
    ratios: dict[str, float | None] = {}
    for name, together in _CONVERSATIONS.items():
        costs = {way.name: way.cost(together) for way in (raw, search, direct)}
        ratios[f"search_vs_raw_{name}"] = ratio(costs["search"], costs["raw"])
        ratios[f"direct_vs_raw_{name}"] = ratio(costs["direct"], costs["raw"])
        ratios[f"even_at_{name}"] = round((costs["search"] - costs["direct"] + 2 * listed) / (2 * each), 1)
    return Result(rows, ratios)


async def _run_all(place: Path) -> tuple[Way, Way, Way]:
    commands = {name: server.command() for name, server in _SERVERS.items()}
    raw = await _run_raw(commands, _prepare(place / "raw"))
    ways = []
    for name, most in (("search", "0"), ("direct", "1000")):
        say(f"{name}: {len(TASKS)} tasks")
        folder = _prepare(place / name)
        environment = {
            **os.environ,
            "AGENT3_DATA": str(place / f"{name}-data"),
            "AGENT3_SERVER_DIRECT_TOOLS": most,
            "MEMORY_FILE_PATH": str(folder.parent / "memory.jsonl"),
        }
        for server, command in commands.items():
            words = [*command, *([str(folder)] if server == "files" else [])]
            asked = [*_AGENT3, "add", " ".join(words), "--name", server]
            subprocess.run(asked, env=environment, check=True, capture_output=True, timeout=_SECONDS)
        parameters = StdioServerParameters(command=_AGENT3[0], args=[*_AGENT3[1:], "mcp"], env=environment)
        async with Client(stdio_client(parameters), mode="legacy") as client:
            ways.append(await (_run_search if most == "0" else _run_direct)(client, folder))
    return raw, ways[0], ways[1]


async def _run_raw(commands: dict[str, list[str]], folder: Path) -> Way:
    say(f"raw: {len(TASKS)} tasks")
    environment = {**os.environ, "MEMORY_FILE_PATH": str(folder.parent / "memory.jsonl")}
    async with AsyncExitStack() as stack:
        clients = {}
        for name, (program, *words) in commands.items():
            more = [str(folder)] if name == "files" else []
            parameters = StdioServerParameters(command=program, args=[*words, *more], env=environment)
            clients[name] = await stack.enter_async_context(Client(stdio_client(parameters), mode="legacy"))
        tools = [tool for client in clients.values() for tool in (await client.list_tools()).tools]
        turns = []
        for task in TASKS:
            given = _fill(task.input, folder)
            done = await clients[task.server].call_tool(task.tool, given)
            turns.append([Turn({"name": task.tool, "input": given}, _text(task, done))])
    return Way("raw", _count(tools), len(tools), turns)


async def _run_search(client: Client, folder: Path) -> Way:
    turns, found = [], 0
    tools = (await client.list_tools()).tools
    for task in TASKS:
        asked = {"query": task.query}
        hits = await client.call_tool("agent3_search", asked)
        listed = (hits.structured_content or {})["agents"]
        found += any((hit["id"], hit["capability"]) == (task.server, task.tool) for hit in listed)
        call = {"agentId": task.server, "capability": task.tool, "input": _fill(task.input, folder)}
        done = await client.call_tool("agent3_call", call)
        turns.append(
            [
                Turn({"name": "agent3_search", "input": asked}, _text(task, hits)),
                Turn({"name": "agent3_call", "input": call}, _text(task, done)),
            ]
        )
    return Way("search", _count(tools), len(tools), turns, found)


async def _run_direct(client: Client, folder: Path) -> Way:
    tools, turns = (await client.list_tools()).tools, []
    for task in TASKS:
        name, given = tool_name(task.server, task.tool), _fill(task.input, folder)
        done = await client.call_tool(name, given)
        turns.append([Turn({"name": name, "input": given}, _text(task, done))])
    return Way("direct", _count(tools), len(tools), turns)


def _prepare(place: Path) -> Path:
    folder = place / "folder"
    folder.mkdir(parents=True)
    for name, text in (("hello.txt", "Hello!\n"), ("notes.txt", "Meet on Monday.\n"), ("old.txt", "old\n")):
        (folder / name).write_text(text, "utf-8")
    return folder.resolve()


def _count(tools: Sequence[Tool]) -> int:
    """What a client gives to a model of a list of tools."""
    return sum(
        count_tokens({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema})
        for tool in tools
    )


def _text(task: Task, result: CallToolResult) -> str:
    """What a client shows to a model of a result."""
    text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
    if result.is_error:
        raise RuntimeError(f"{task.request} {text}")
    return text


def _fill(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    filled: dict[str, Any] = json.loads(json.dumps(given).replace("{folder}", str(folder)))
    return filled
