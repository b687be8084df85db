"""Clients and frameworks of others at a gateway of ours: each finds its tools, calls an agent, and is told of an error.

No framework needs a model for that: its own client of MCP or A2A is driven directly, in an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.kits import KitError, Npm, python_with
from interop.a2a import CARD, our_agent
from interop.matrix import TYPESCRIPT_1, TYPESCRIPT_2, place_program

__all__ = ["CLIENTS", "Client", "Row", "run"]

_PROGRAMS = Path(__file__).resolve().parent / "peers"
_PATIENCE = 120.0


@dataclass(frozen=True)
class Client:
    """A client, the protocol by which it comes, and its program up to the address."""

    name: str
    protocol: str
    program: Callable[[], list[str]]


@dataclass(frozen=True)
class Row:
    """What came of one client: what it found, the value, the error; or why it could not be run at all."""

    client: Client
    found: bool = False
    value: bool = False
    error: bool = False
    note: str = ""

    @property
    def fine(self) -> bool:
        return self.found and self.value and self.error


def _python(name: str, package: str, version: str, *beside: str) -> Callable[[], list[str]]:
    return lambda: [str(python_with(package, version, *beside)), str(_PROGRAMS / "mcp_client.py"), name]


def _adk() -> list[str]:
    return [str(python_with("google-adk[a2a]", "2.13.0")), str(_PROGRAMS / "adk_client.py")]


def _node(kit: Npm) -> Callable[[], list[str]]:
    return lambda: place_program(kit, "mcp_client.mjs")


CLIENTS = (
    Client("mcp 1.26.0", "MCP", _python("mcp_1", "mcp", "1.26.0", "click")),
    Client("mcp 1.30.0", "MCP", _python("mcp_1", "mcp", "1.30.0", "click")),
    Client("mcp 2.3.0", "MCP", _python("mcp_2", "mcp", "2.3.0", "click")),
    Client("TypeScript SDK 1.32.2", "MCP", _node(TYPESCRIPT_1)),
    Client("TypeScript SDK 2.4.0", "MCP", _node(TYPESCRIPT_2)),
    Client("fastmcp 2.14.7", "MCP", _python("fastmcp", "fastmcp", "2.14.7")),
    Client("fastmcp 3.4.10", "MCP", _python("fastmcp", "fastmcp", "3.4.10")),
    Client("fastmcp 4.1.2", "MCP", _python("fastmcp", "fastmcp", "4.1.2")),
    Client(
        "langchain-mcp-adapters 0.3.2, langgraph 1.2.22",
        "MCP",
        _python("langchain", "langchain-mcp-adapters", "0.3.2", "langgraph==1.2.22"),
    ),
    Client("openai-agents 0.24.0", "MCP", _python("openai_agents", "openai-agents", "0.24.0")),
    Client("pydantic-ai 2.66.0", "MCP", _python("pydantic_ai", "pydantic-ai-slim[mcp]", "2.66.0")),
    Client("crewai 1.15.30", "MCP", _python("crewai", "crewai-tools[mcp]", "1.15.30", "crewai==1.15.30")),
    Client("google-adk 2.13.0", "A2A", _adk),
)


def run(tell: Callable[[Row], None], names: Sequence[str] = ()) -> list[Row]:
    """All clients, or those whose names contain one of some words, at one gateway."""
    rows = []
    with our_agent() as card:
        # The card without gRPC, which ADK does not take.
        address = {
            "A2A": card.replace("agent-card.json", "agent.json"),
            "MCP": card.removesuffix(f"/agents/talk/a2a{CARD}") + "/mcp",
        }
        for client in CLIENTS:
            if not names or any(name in client.name for name in names):
                rows.append(_try(client, address[client.protocol]))
                tell(rows[-1])
    return rows


def _try(client: Client, url: str) -> Row:
    try:
        command = [*client.program(), url, *(["talk"] if client.protocol == "MCP" else [])]
        done = subprocess.run(  # noqa: S603 - our own words
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL
        )
    except KitError as wrong:
        return Row(client, note=f"it cannot be installed: {str(wrong)[-300:]}")
    except subprocess.TimeoutExpired:
        return Row(client, note=f"it was not done within {_PATIENCE:g} s")
    if done.returncode:
        return Row(client, note=(done.stderr or done.stdout)[-400:])
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    value, error = "echo: hello" in seen["value"], "nobody-of-this-name" in seen["error"]
    return Row(client, seen["found"], value, error, "" if value and error else done.stdout[-400:])
