"""The tools, resources and prompts that the protocol's kit looks for, on whichever fastmcp this Python has.

``everything_fastmcp.py PORT`` serves them at ``/mcp``.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import base64
import sys
from dataclasses import dataclass

import mcp.types as wire
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
WAV = base64.b64encode(b"RIFF$\x00\x00\x00WAVEfmt ").decode()
server = FastMCP("everything")


@dataclass
class Person:
    """What is asked for."""

    username: str
    email: str


def text(words: str) -> wire.TextContent:
    return wire.TextContent(type="text", text=words)


def image() -> wire.ImageContent:
    return wire.ImageContent(type="image", data=PNG, mimeType="image/png")


def embedded(uri: str, words: str, kind: str = "text/plain") -> wire.EmbeddedResource:
    inside = wire.TextResourceContents(uri=uri, mimeType=kind, text=words)
    return wire.EmbeddedResource(type="resource", resource=inside)


@server.tool
def test_simple_text() -> str:
    """One text."""
    return "This is a simple text response for testing."


@server.tool(output_schema=None)
def test_image_content() -> list[wire.ImageContent]:
    """One image."""
    return [image()]


@server.tool(output_schema=None)
def test_audio_content() -> list[wire.AudioContent]:
    """One sound."""
    return [wire.AudioContent(type="audio", data=WAV, mimeType="audio/wav")]


@server.tool(output_schema=None)
def test_embedded_resource() -> list[wire.EmbeddedResource]:
    """One resource."""
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool(output_schema=None)
def test_multiple_content_types() -> list[wire.TextContent | wire.ImageContent | wire.EmbeddedResource]:
    """Several kinds."""
    data = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return [text("Multiple content types test:"), image(), data]


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Three log lines."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Three steps."""
    for step in (0, 50, 100):
        await ctx.report_progress(step, 100, f"Completed step {step} of 100")
        await asyncio.sleep(0.05)
    return "done"


@server.tool
def test_error_handling() -> str:
    """Always fails."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model."""
    answer = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {answer.text}"


@server.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the person."""
    answer = await ctx.elicit(message, Person)
    return f"User response: action={answer.action}, content={getattr(answer, 'data', None)}"


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:  # noqa: A002 - as the template names it
    """Any id."""
    return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'


@server.prompt
def test_simple_prompt() -> str:
    """Without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """With two."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


if __name__ == "__main__":
    server.run(transport="http", port=int(sys.argv[1]), show_banner=False, log_level="error")
