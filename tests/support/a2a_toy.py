"""A toy agent for the A2A doors, one capability for each thing that can come of a message; and plain requests to it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agent3 import Context, LocalAgent
from agent3.errors import CallTimeout, TargetError
from agent3.jsonrpc import Frame, SSEParser
from tests.support.gateway import Door, Reply

__all__ = ["V1", "codes", "frames", "message", "rpc", "toy", "unary"]

V1 = {"a2a_version": "1.0"}


def toy(name: str = "toy") -> LocalAgent:
    """The agent. Nothing in it waits for longer than it is let."""
    agent = LocalAgent(name, description="Toys of every kind")

    @agent.capability(tags=("words",))
    async def echo(text: str) -> str:
        """Say it again."""
        return f"echo: {text}"

    @agent.capability
    async def add(left: int, right: int) -> dict[str, int]:
        """Add two numbers."""
        return {"sum": left + right}

    @agent.capability
    async def story(topic: str) -> AsyncIterator[str]:
        """Tell a tale in three pieces."""
        for piece in ("Once ", "upon ", topic):
            yield piece

    @agent.capability
    async def book(ctx: Context, place: str) -> str:
        """Book a flight, after one question."""
        seat = await ctx.ask("Which seat?")
        return f"{place} {seat}"

    @agent.capability
    async def hang(ctx: Context, text: str) -> str:
        """Never end by itself."""
        ctx.status("hanging")
        await asyncio.Event().wait()
        return text

    @agent.capability
    async def break_(text: str) -> str:
        """Fail."""
        raise TargetError(f"{text} is broken")

    @agent.capability
    async def late(text: str) -> str:
        """Run out of time."""
        raise CallTimeout(f"{text} took too long")

    async def chat(text: str) -> str:
        """Answer with a mere message."""
        return f"hi, {text}"

    agent.add(chat, meta={"a2a": {"answer": "message"}})
    return agent


def message(text: str, skill: str | None = "echo", **more: Any) -> dict[str, Any]:
    """A message of 1.0."""
    metadata = {"metadata": {"skillId": skill}} if skill else {}
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **metadata, **more}


def rpc(door: Door, method: str, params: Any, path: str = "/", **headers: str) -> Reply:
    """One JSON-RPC request; of 1.0, unless the headers say otherwise."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return door.post(path, body, **{"content_type": "application/json", **V1, **headers})


def unary(reply: Reply) -> Any:
    """The result of an answer that has one."""
    body = reply.json
    assert reply.status == 200, body
    assert body["jsonrpc"] == "2.0"
    assert body["id"] == 7
    assert "result" in body, body
    return body["result"]


def frames(reply: Reply) -> list[tuple[Frame, Any]]:
    """The events of a stream that has ended, each with its JSON."""
    assert reply.headers["content-type"] == "text/event-stream", reply.raw
    return [(one, json.loads(one.data)) for one in SSEParser().feed(reply.raw)]


def codes(reply: Reply) -> tuple[int, int]:
    """The status of an answer and the code of its error."""
    error: Mapping[str, Any] = reply.json["error"]
    return reply.status, error["code"]
