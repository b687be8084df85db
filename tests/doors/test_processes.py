"""A step is in force in processes of their own: ``agent3 serve``, ``mcp`` and ``call``, and a server over stdio.

A program adds a step by setting ``agent3.calls.order.ORDER`` before it builds anything. Here the module that
``agent3 serve MODULE:AGENT`` loads does so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import Forked, run_forked
from tests.support.gateway import environment, gateway, run_agent3
from tests.support.probe import WORDS, places

PLUG = """
from pathlib import Path

from agent3 import LocalAgent, MCPServer
from agent3.calls import order
from agent3.calls.outcomes import failed_by
from agent3.calls.step import Step
from agent3.errors import AccessError


class Refuse(Step):
    name = "refuse"

    def enter(self, call):
        note("asked")
        return call if Path("open").exists() else failed_by(AccessError("{words}"))


def note(word):
    with Path("notes").open("a") as notes:
        notes.write(word + "\\n")


def say(text: str) -> str:
    note("ran")
    return f"said {{text}}"


order.ORDER = (*order.ORDER[:{place}], Refuse, *order.ORDER[{place}:])
agent = LocalAgent("Target", agent_id="target")
agent.add(say)
server = MCPServer("target")
server.tool(say)
"""
STDIO = "from plug import server\nserver.run('stdio')\n"
COMMAND = """
import sys

import plug
from agent3.cli.main import main
from agent3.server import demo

demo.agents = lambda: [plug.agent]
sys.argv = ["agent3", "call", "target", "hi", "--demo"]
main()
"""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
GATEWAY_TOOL: dict[str, Any] = {"name": "agent3_call", "arguments": {"agentId": "target", "message": "hi"}}
OWN_TOOL: dict[str, Any] = {"name": "say", "arguments": {"text": "hi"}}


Call = Callable[[], str]
Door = Callable[[Path], AbstractContextManager[Call]]


def over_stdio(*words: str, tool: dict[str, Any], modern: bool) -> Door:
    """A host that talks to one process until the end of the block."""

    @contextmanager
    def talking(folder: Path) -> Iterator[Call]:
        (folder / "stdio.py").write_text(STDIO)
        os.mkfifo(folder / "in")
        files = {"stdin": folder / "in", "stderr": folder / "err"}
        with Forked(words, env=environment(folder), cwd=folder, **files) as process, (folder / "in").open("w") as out:

            def tell(**told: Any) -> str:
                out.write(json.dumps({"jsonrpc": "2.0", **told}) + "\n")
                out.flush()
                return process.stdout.readline() if "id" in told else ""

            if not modern:
                tell(id=1, method="initialize", params=HELLO)
                tell(method="notifications/initialized")
            params = {**tool, "_meta": META} if modern else tool
            yield lambda: tell(id=2, method="tools/call", params=params)

    return talking


@contextmanager
def command(folder: Path) -> Iterator[Call]:
    (folder / "command.py").write_text(COMMAND)

    def call() -> str:
        done = run_forked(["command.py"], env=environment(folder), cwd=folder, stdin="", timeout=240)
        return done.stdout + done.stderr

    yield call


@contextmanager
def command_to_a_server(folder: Path) -> Iterator[Call]:
    with gateway(folder, "plug:agent") as door:

        def call() -> str:
            done = run_agent3(folder, "call", "target", "hi", "--server", door.url)
            return done.stdout + done.stderr

        yield call


DOORS: dict[str, Door] = {
    "agent3 mcp, modern": over_stdio("mcp", "plug:agent", tool=GATEWAY_TOOL, modern=True),
    "agent3 mcp, legacy": over_stdio("mcp", "plug:agent", tool=GATEWAY_TOOL, modern=False),
    "MCPServer over stdio, modern": over_stdio("stdio.py", tool=OWN_TOOL, modern=True),
    "MCPServer over stdio, legacy": over_stdio("stdio.py", tool=OWN_TOOL, modern=False),
    "agent3 call": command,
    "agent3 call --server": command_to_a_server,
}


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("place", places(few=True))
def test_a_step_of_a_program_refuses_and_looks(tmp_path: Path, place: int, name: str) -> None:
    (tmp_path / "plug.py").write_text(PLUG.format(place=place, words=WORDS))
    with DOORS[name](tmp_path) as call:
        refused = call()
        assert WORDS in refused, refused
        assert (tmp_path / "notes").read_text().split() == ["asked"]
        (tmp_path / "open").touch()
        told = call()
        assert "said hi" in told, told
        assert (tmp_path / "notes").read_text().split() == ["asked", "asked", "ran"]
