"""The server that the MCP conformance kit wants to meet, written as users write theirs: on ``MCPServer`` alone.

``python -m conformance.mcp_library`` serves it over stdio, ``--port N`` over HTTP at /mcp. ``mcp_fixture`` is the same
server on the door itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Annotated, Any

from pydantic import Field

from agent3 import Context, MCPServer, SyncContext
from agent3.errors import Canceled, Declined, TargetError
from agent3.mcp import embed, user
from agent3.model import Failed, Part
from conformance.mcp_fixture import (
    AWAY,
    CHOICES,
    CONFIRM,
    IMAGE,
    NAME,
    PERSON,
    RICH_SCHEMA,
    SOUND,
    STEP,
    STRING,
    YES,
    form,
)

__all__ = ["main", "server"]

server = MCPServer("agent3-library-conformance", description="What the conformance kit asks for.")


# Contents


@server.tool
def test_simple_text() -> str:
    """A text"""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> bytes:
    """An image"""
    return IMAGE


@server.tool
def test_audio_content() -> bytes:
    """A sound"""
    return SOUND


@server.tool
def test_embedded_resource() -> Part:
    """A resource inside the result"""
    return embed("test://embedded-resource", "This is an embedded resource content.")


@server.tool
def test_multiple_content_types() -> tuple[Any, ...]:
    """A text, an image and a resource"""
    inside = embed("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return "Multiple content types test:", IMAGE, inside


@server.tool
def test_error_handling() -> str:
    """Always fails"""
    raise TargetError("This tool intentionally returns an error for testing")


@server.tool(input_schema=RICH_SCHEMA)
def json_schema_2020_12_tool(**given: Any) -> str:
    """Tool with JSON Schema 2020-12 features"""
    return json.dumps(given)


@server.tool
def test_x_mcp_header(
    region: Annotated[str, Field(description="Where to", json_schema_extra={"x-mcp-header": "Region"})] = "<none>",  # noqa: PT028
) -> str:
    """An argument that is also a header"""
    return f"region={region}"


@server.tool
def greet(name: str) -> str:
    """Says hello at once"""
    return f"Hello, {name}!"


# What happens meanwhile


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Three log lines"""
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log(words)
        await asyncio.sleep(STEP)
    return "Tool with logging executed successfully"


@server.tool
def test_logging_tool(ctx: SyncContext) -> str:
    """One log line"""
    ctx.log("A line", "error")
    return "Logged, for those who asked for it"


@server.tool
def test_tool_with_progress(ctx: SyncContext) -> str:
    """Progress in three steps"""
    for done in (0, 50, 100):
        ctx.progress(done, 100, f"Completed step {done} of 100")
        time.sleep(STEP)
    return "Tool with progress executed successfully"


@server.tool
async def test_reconnection() -> str:
    """Answers after a while"""
    await asyncio.sleep(STEP)
    return "Reconnection test completed"


@server.tool(requires=["sampling"])
def test_missing_capability() -> str:
    """Only for clients with a model"""
    return "Client declared sampling capability; proceeding."


# Lists that change


@server.tool
def test_trigger_tool_change() -> str:
    """Lets a tool come or go"""
    if any(tool.name == "test_dynamic_tool" for tool in server.list_tools()):
        server.unregister("test_dynamic_tool")
        return "test_dynamic_tool went"
    server.tool(test_dynamic_tool)
    return "test_dynamic_tool came"


def test_dynamic_tool() -> str:
    """Comes and goes"""
    return "here"


@server.tool
def test_trigger_prompt_change() -> str:
    """Lets a prompt come or go"""
    if any(prompt.name == "test_dynamic_prompt" for prompt in server.list_prompts()):
        server.unregister_prompt("test_dynamic_prompt")
        return "test_dynamic_prompt went"
    server.prompt(test_dynamic_prompt)
    return "test_dynamic_prompt came"


def test_dynamic_prompt() -> str:
    """Comes and goes"""
    return "here"


# Questions


@server.tool(timeout=300)
async def test_sampling(ctx: Context, prompt: str) -> str:
    """Asks the client's model"""
    said = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {said.text}"


async def _ask_person(ctx: Context, message: str, schema: dict[str, Any]) -> str:
    try:
        content, action = await ctx.ask(message, schema, name="user"), "accept"
    except Declined:
        content, action = {}, "decline"
    except Canceled:
        content, action = {}, "cancel"
    return f"User response: action={action}, content={json.dumps(content)}"


@server.tool(timeout=300)
async def test_elicitation(ctx: Context, message: str) -> str:
    """Asks the person"""
    return await _ask_person(ctx, message, form(username=STRING, email=STRING))


@server.tool(timeout=300)
async def test_streaming_elicitation(ctx: Context) -> str:
    """Asks the person, in a request of its own"""
    return await _ask_person(ctx, "Who are you?", form(username=STRING))


@server.tool(timeout=300)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with defaults of every type"""
    return await _ask_person(ctx, "Please provide user information", PERSON)


@server.tool(timeout=300)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with choices of every form"""
    return await _ask_person(ctx, "Please choose", CHOICES)


@server.tool(timeout=300)
def test_input_required_result_elicitation(ctx: SyncContext) -> str:
    """Asks for a name"""
    said = ctx.ask("What is your name?", NAME, name="user_name")
    return f"Hello, {said.get('name', '?')}!"


@server.tool(timeout=300)
def test_input_required_result_sampling(ctx: SyncContext) -> str:
    """Asks the client's model for a capital"""
    said = ctx.sample("What is the capital of France?", max_tokens=100, name="capital_question")
    return f"Model said: {said.text}"


@server.tool(timeout=300)
def test_input_required_result_list_roots(ctx: SyncContext) -> str:
    """Asks for the client's folders"""
    return f"Client exposed {len(ctx.roots(name='client_roots'))} root(s)."


@server.tool(timeout=300)
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Carries a state through the client"""
    nonce = "round-1"
    await ctx.ask("Please confirm", YES, name="confirm")
    return f"state-ok: {nonce}"


@server.tool(timeout=300)
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Carries a state that nobody may change"""
    return await test_input_required_result_request_state(ctx)


@server.tool(timeout=300)
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks the person, the model and the client at once"""
    said = await asyncio.gather(
        ctx.ask("What is your name?", NAME, name="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, name="greeting"),
        ctx.roots(name="client_roots"),
    )
    return f"All {len(said)} inputs received."


@server.tool(timeout=300)
def test_input_required_result_multi_round(ctx: SyncContext) -> str:
    """Asks twice"""
    name = ctx.ask("Step 1: What is your name?", NAME, name="step1")["name"]
    color = ctx.ask("Step 2: What is your favorite color?", form(color=STRING), name="step2")["color"]
    return f"{name} likes {color}."


@server.tool(timeout=300)
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks only what the client can answer"""
    asked = []
    if "sampling" in ctx.can:
        asked.append(ctx.sample("Say hello", max_tokens=50, name="sample"))
    if "form" in ctx.can:
        asked.append(ctx.ask("What is your name?", NAME, name="ask"))
    return f"All {len(await asyncio.gather(*asked))} inputs received." if asked else "This client can answer nothing."


# Tasks


@server.tool(task=True, timeout=120)
async def slow_compute(seconds: float = 1.0, label: str = "") -> str:
    """Sleep for some seconds, then tell the label."""
    await asyncio.sleep(seconds)
    return f"Computed {label} in {seconds:g} s"


@server.tool(task=True, requires=["tasks"])
async def failing_job() -> str:
    """Fail after a second, as a tool does."""
    await asyncio.sleep(1)
    raise TargetError("This job always fails")


@server.tool(task=True)
async def protocol_error_job() -> Failed:
    """Fail as a server does that is broken inside."""
    await asyncio.sleep(STEP)
    return Failed("internal", "The server broke while it did this")


@server.tool(task=True, timeout=300)
async def confirm_delete(ctx: Context, filename: str = "") -> str:
    """Ask before a file is deleted."""
    said = await ctx.ask(f"Delete {filename}?", CONFIRM)
    return f"Deleted {filename}" if said["confirm"] else f"Kept {filename}"


@server.tool(task=True, timeout=300)
async def multi_input(ctx: Context) -> str:
    """Ask for two names at once."""
    first, second = await asyncio.gather(ctx.ask("The first name?", NAME), ctx.ask("The second name?", NAME))
    return f"Got {first['name']} and {second['name']}"


@server.tool(task="after_input", requires=["tasks"], timeout=300)
async def test_tool_with_task(ctx: Context) -> str:
    """Ask for a name while the request waits, then work on as a task."""
    said = await ctx.ask("What is your name?", NAME)
    await asyncio.sleep(AWAY)
    return f"Hello, {said['name']}!"


# Resources


@server.resource("test://static-text", name="static-text", media_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", name="static-binary", media_type="image/png")
def static_binary() -> bytes:
    return IMAGE


@server.resource("test://watched-resource", name="watched-resource", media_type="text/plain")
async def watched() -> str:
    return "Watched resource content"


@server.resource("test://template/{id}/data", name="template", media_type="application/json")
def templated(id: str) -> dict[str, Any]:  # noqa: A002 - it is in the address
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


@server.prompt
def test_simple_prompt() -> str:
    """Without arguments"""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """With two arguments"""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.completion("test_prompt_with_arguments", "arg1")
def words(value: str) -> list[str]:
    return [word for word in ("paris", "park", "party") if word.startswith(value)]


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:  # noqa: N803 - the kit's name
    """With a resource"""
    content = embed(resourceUri, "Embedded resource content for testing.")
    return [content, "Please process the embedded resource above."]


@server.prompt
async def test_prompt_with_image() -> list[Any]:
    """With an image"""
    return [user(IMAGE), user("Please analyze the image above.")]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """Asks before it is filled in"""
    said = await ctx.ask("What context should the prompt use?", form(context=STRING), name="user_context")
    return f"Use the following context: {said['context']}"


def main() -> None:
    """Over HTTP with a port, else over stdio."""
    parser = argparse.ArgumentParser(prog="python -m conformance.mcp_library")
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    if chosen.port is not None:
        server.run(port=chosen.port)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
