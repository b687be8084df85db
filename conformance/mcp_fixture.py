"""The server that the MCP conformance kit wants to meet, built on agent3's own door and call core.

The kit names the tools, resources and prompts, and what each must say. Tools that become tasks run under the same
Runner, steps and jobs as everything behind a gateway. ``python -m conformance.mcp_fixture`` serves it over stdio,
``--port N`` over HTTP at /mcp.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent3.calls.core import Core
from agent3.calls.runner import Target
from agent3.directory import Directory, Reputation
from agent3.env import REAL
from agent3.errors import CapabilityNotFound, NotFound, ValidationError
from agent3.gateway import Caller as GatewayCaller
from agent3.gateway import Gateway
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Principal, Question
from agent3.protocols.functions.client_requests import ask_client
from agent3.protocols.functions.functions import Context, LocalAgent, LocalConnector
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.gateway_tools import JobTasks
from agent3.protocols.mcp.door.toolset import (
    URI,
    Caller,
    Completion,
    FilledPrompt,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    Task,
    Tool,
)
from agent3.settings import Calls, Settings
from agent3.storage import open_database

__all__ = ["Fixture", "serve"]

IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
SOUND = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")
STEP = 0.05
"""Seconds between two notices of one tool, as the kit wants them."""
AWAY = 0.2
"""Seconds that a client has to come back after its stream was closed."""


def form(required: bool = True, **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties."""
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


def text(words: str) -> Done:
    """A result of one text."""
    return Done((Part(text=words),))


STRING = {"type": "string"}
NAME = form(name=STRING)
YES = form(ok={"type": "boolean"})
CONFIRM = form(confirm={"type": "boolean"})
PERSON = form(
    False,
    name={"type": "string", "description": "User name", "default": "John Doe"},
    age={"type": "integer", "description": "User age", "default": 30},
    score={"type": "number", "description": "User score", "default": 95.5},
    status={
        "type": "string",
        "description": "User status",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    verified={"type": "boolean", "description": "Verification status", "default": True},
)


def titled(**options: str) -> list[dict[str, str]]:
    """Choices with a title each."""
    return [{"const": value, "title": title} for value, title in options.items()]


CHOICES = form(
    untitledSingle={"type": "string", "enum": ["option1", "option2", "option3"]},
    titledSingle={"type": "string", "oneOf": titled(value1="First", value2="Second", value3="Third")},
    legacyEnum={
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti={"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    titledMulti={"type": "array", "items": {"anyOf": titled(value1="First", value2="Second", value3="Third")}},
)
RICH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", **form(False, street=STRING, city=STRING)}},
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
REGION = form(False, region={"type": "string", "description": "Where to", "x-mcp-header": "Region"})

Method = Callable[..., Awaitable[Outcome]]
TOOLS: dict[str, tuple[Tool, Method]] = {}
AFTER: dict[str, Method] = {}


def tool(schema: dict[str, Any] | None = None, **options: Any) -> Callable[[Method], Method]:
    """Offer a method under its own name; its docstring is the description."""

    def offered(method: Method) -> Method:
        name = method.__name__
        described = (method.__doc__ or "").strip()
        TOOLS[name] = Tool(name=name, description=described, input_schema=schema or {}, **options), method
        return method

    return offered


def after(name: str) -> Callable[[Method], Method]:
    """The method that goes on with a tool when its questions are answered."""

    def going_on(method: Method) -> Method:
        AFTER[name] = method
        return method

    return going_on


def ask(tool_name: str, *questions: Question, **kept: Any) -> Needs:
    """Pause a tool; ``kept`` comes back with the answers."""
    return Needs(questions, state=json.dumps([tool_name, kept]))


# Tasks: functions under the call core

jobs = LocalAgent("conformance", description="Work that takes a while")


@jobs.capability
async def slow_compute(seconds: float = 1.0, label: str = "") -> str:
    """Sleep for some seconds, then tell the label."""
    await asyncio.sleep(seconds)
    return f"Computed {label} in {seconds:g} s"


@jobs.capability
async def failing_job() -> Failed:
    """Fail after a second, as a tool does."""
    await asyncio.sleep(1)
    return Failed("target_failed", "This job always fails")


@jobs.capability
async def protocol_error_job() -> Failed:
    """Fail as a server does that is broken inside."""
    await asyncio.sleep(STEP)
    return Failed("internal", "The server broke while it did this")


@jobs.capability
async def confirm_delete(ctx: Context, filename: str = "") -> str:
    """Ask before a file is deleted."""
    said = await ctx.ask(f"Delete {filename}?", CONFIRM)
    return f"Deleted {filename}" if said["confirm"] else f"Kept {filename}"


@jobs.capability
async def multi_input(ctx: Context) -> str:
    """Ask for two names at once."""
    first, second = await asyncio.gather(ctx.ask("The first name?", NAME), ctx.ask("The second name?", NAME))
    return f"Got {first['name']} and {second['name']}"


@jobs.capability
async def test_tool_with_task(ctx: Context) -> str:
    """Ask for a name while the request waits, then work on as a task."""
    said = await ctx.ask("What is your name?", NAME)
    await asyncio.sleep(AWAY)
    return f"Hello, {said['name']}!"


INPUT_FIRST = {"test_tool_with_task"}
"""These ask before they become a task."""
REQUIRED = {"failing_job", "test_tool_with_task"}
"""These do not run for a client that cannot follow tasks."""


def _ask_model(question_id: str, text: str, *, max_tokens: int) -> Question:
    params = {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], "maxTokens": max_tokens}
    return ask_client(question_id, text, {"method": "sampling/createMessage", "params": params})


def _ask_folders(question_id: str) -> Question:
    return ask_client(question_id, "Which folders may be used?", {"method": "roots/list"})


class Fixture:
    """A tool set with everything that the kit asks for. ``door`` is told of changes."""

    def __init__(self, gateway: Gateway):
        self.door: MCPDoor | None = None
        self._gateway = gateway
        self._tasks = JobTasks(gateway)
        self._dynamic: set[str] = set()

    # Tools

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """All of them, for everybody."""
        direct = [one for one, _ in TOOLS.values()]
        dynamic = [Tool(name=name, description="Comes and goes") for name in self._dynamic if name.endswith("tool")]
        return [*direct, *map(_job_tool, jobs.functions), *dynamic]

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """Run a tool."""
        if name in jobs.functions:
            return await self._start(name, arguments, caller)
        if name not in TOOLS:
            raise CapabilityNotFound(f"There is no tool {name}")
        return await TOOLS[name][1](self, arguments, caller)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """Go on with a tool that asked."""
        if not state.startswith("["):
            follows = "tasks" in caller.can
            who = GatewayCaller(caller.principal, "mcp", caller.listener)
            return await self._gateway.answer(who, state, answers, detach=follows)
        name, kept = json.loads(state)
        return await AFTER[name](self, kept, answers, caller)

    async def _start(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        capability = jobs.functions[name].capability
        call = Call(
            id=REAL.id(),
            principal=caller.principal,
            agent=jobs.id,
            capability=name,
            input=arguments,
            routes=capability.routes,
        )
        follows = "tasks" in caller.can and name not in INPUT_FIRST
        target: Target = (jobs.agent, capability)
        who = GatewayCaller(caller.principal, "mcp", caller.listener)
        return await self._gateway.start(who, call, target, detach=follows)

    # Tasks

    async def task(self, job: str, caller: Caller) -> Task:
        """How a job stands."""
        return await self._tasks.task(job, caller)

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Answer a job."""
        await self._tasks.update(job, answers, caller)

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel a job."""
        await self._tasks.cancel(job, caller)

    # Resources

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """What can be read."""
        return [
            Resource(uri="test://static-text", name="static-text", media_type="text/plain"),
            Resource(uri="test://static-binary", name="static-binary", media_type="image/png"),
            Resource(uri="test://watched-resource", name="watched-resource", media_type="text/plain"),
        ]

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        """What can be read with a word filled in."""
        name = "test://template/{id}/data"
        return [ResourceTemplate(uri_template=name, name="template", media_type="application/json")]

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """Read it."""
        if uri == "test://static-text":
            return Done((Part(text="This is the content of the static text resource.", media_type="text/plain"),))
        if uri == "test://static-binary":
            return Done((Part(raw=IMAGE, media_type="image/png"),))
        if uri == "test://watched-resource":
            return Done((Part(text="Watched resource content", media_type="text/plain"),))
        if uri.startswith("test://template/") and uri.endswith("/data"):
            key = uri.removeprefix("test://template/").removesuffix("/data")
            body = json.dumps({"id": key, "templateTest": True, "data": f"Data for ID: {key}"})
            return Done((Part(text=body, media_type="application/json"),))
        raise NotFound(f"Resource not found: {uri}")

    # Prompts

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        """What can be chosen."""
        both = (PromptArgument(name="arg1", required=True), PromptArgument(name="arg2", required=True))
        uri = (PromptArgument(name="resourceUri", required=True),)
        return [
            Prompt(name="test_simple_prompt", description="Without arguments"),
            Prompt(name="test_prompt_with_arguments", description="With two arguments", arguments=both),
            Prompt(name="test_prompt_with_embedded_resource", description="With a resource", arguments=uri),
            Prompt(name="test_prompt_with_image", description="With an image"),
            Prompt(name="test_input_required_result_prompt", description="Asks before it is filled in"),
            *(Prompt(name=name, description="Comes and goes") for name in self._dynamic if name.endswith("prompt")),
        ]

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        """Fill it in."""
        known = {one.name: one for one in await self.prompts(caller.principal)}
        if name not in known:
            raise NotFound(f"There is no prompt {name}")
        missing = [one.name for one in known[name].arguments if one.required and one.name not in arguments]
        if missing:
            raise ValidationError(f"Missing arguments of {name}: {', '.join(missing)}")
        if name == "test_input_required_result_prompt" and "user_context" not in caller.answers:
            return Needs((Question("user_context", "What context should the prompt use?", form(context=STRING)),))
        return FilledPrompt(tuple(PromptMessage("user", part) for part in _filled(name, arguments, caller.answers)))

    async def complete(self, completion: Completion, principal: Principal) -> Sequence[str]:
        """Words that begin as the value does."""
        return [word for word in ("paris", "park", "party") if word.startswith(completion.value)]

    # The tools one by one

    @tool()
    async def test_simple_text(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """A text"""
        return text("This is a simple text response for testing.")

    @tool()
    async def test_image_content(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """An image"""
        return Done((Part(raw=IMAGE, media_type="image/png"),))

    @tool()
    async def test_audio_content(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """A sound"""
        return Done((Part(raw=SOUND, media_type="audio/wav"),))

    @tool()
    async def test_embedded_resource(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """A resource inside the result"""
        words = "This is an embedded resource content."
        return Done((Part(text=words, media_type="text/plain", meta={URI: "test://embedded-resource"}),))

    @tool()
    async def test_multiple_content_types(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """A text, an image and a resource"""
        body = '{"test":"data","value":123}'
        inside = Part(text=body, media_type="application/json", meta={URI: "test://mixed-content-resource"})
        return Done((Part(text="Multiple content types test:"), Part(raw=IMAGE, media_type="image/png"), inside))

    @tool()
    async def test_tool_with_logging(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Three log lines"""
        for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            caller.listener(Event("log", text=words, name="info"))
            await asyncio.sleep(STEP)
        return text("Tool with logging executed successfully")

    @tool()
    async def test_logging_tool(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """One log line"""
        caller.listener(Event("log", text="A line", name="error"))
        return text("Logged, for those who asked for it")

    @tool()
    async def test_tool_with_progress(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Progress in three steps"""
        for done in (0, 50, 100):
            caller.listener(Event("progress", done=done, total=100, text=f"Completed step {done} of 100"))
            await asyncio.sleep(STEP)
        return text("Tool with progress executed successfully")

    @tool()
    async def test_error_handling(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Always fails"""
        return Failed("target_failed", "This tool intentionally returns an error for testing")

    @tool(RICH_SCHEMA)
    async def json_schema_2020_12_tool(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Tool with JSON Schema 2020-12 features"""
        return text(json.dumps(given))

    @tool(REGION)
    async def test_x_mcp_header(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """An argument that is also a header"""
        return text(f"region={given.get('region', '<none>')}")

    @tool(requires=frozenset({"sampling"}))
    async def test_missing_capability(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Only for clients with a model"""
        return text("Client declared sampling capability; proceeding.")

    @tool()
    async def test_reconnection(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Closes the stream before it answers"""
        if caller.hang_up is not None:
            await caller.hang_up()
            await asyncio.sleep(AWAY)
        return text("Reconnection test completed")

    @tool()
    async def test_trigger_tool_change(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Lets a tool come or go"""
        return self._toggle("tools", "test_dynamic_tool")

    @tool()
    async def test_trigger_prompt_change(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Lets a prompt come or go"""
        return self._toggle("prompts", "test_dynamic_prompt")

    def _toggle(self, kind: Any, name: str) -> Outcome:
        self._dynamic ^= {name}
        if self.door is not None:
            self.door.notify_change(kind)
        return text(f"{name} {'came' if name in self._dynamic else 'went'}")

    @tool(form(prompt=STRING))
    async def test_sampling(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks the client's model"""
        return ask("test_sampling", _ask_model("reply", given["prompt"], max_tokens=100))

    @after("test_sampling")
    async def _sampled(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"LLM response: {_words(answers['reply'])}")

    @tool(form(message=STRING))
    async def test_elicitation(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks the person"""
        return ask("test_elicitation", Question("user", given["message"], form(username=STRING, email=STRING)))

    @tool()
    async def test_streaming_elicitation(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks the person, in a request of its own"""
        return ask("test_elicitation", Question("user", "Who are you?", form(username=STRING)))

    @tool()
    async def test_elicitation_sep1034_defaults(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks with defaults of every type"""
        return ask("test_elicitation", Question("user", "Please provide user information", PERSON))

    @tool()
    async def test_elicitation_sep1330_enums(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks with choices of every form"""
        return ask("test_elicitation", Question("user", "Please choose", CHOICES))

    @after("test_elicitation")
    async def _elicited(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        said = answers["user"]
        return text(f"User response: action={said.action}, content={json.dumps(said.data or {})}")

    # Answers that come with a second request

    @tool()
    async def test_input_required_result_elicitation(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks for a name"""
        return ask("greet", Question("user_name", "What is your name?", NAME))

    @after("greet")
    async def _greeted(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"Hello, {_field(answers['user_name'], 'name')}!")

    @tool()
    async def test_input_required_result_sampling(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks the client's model for a capital"""
        return ask("capital", _ask_model("capital_question", "What is the capital of France?", max_tokens=100))

    @after("capital")
    async def _capital(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"Model said: {_words(answers['capital_question'])}")

    @tool()
    async def test_input_required_result_list_roots(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks for the client's folders"""
        return ask("roots", _ask_folders("client_roots"))

    @after("roots")
    async def _rooted(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"Client exposed {len(answers['client_roots'].data['roots'])} root(s).")

    @tool()
    async def test_input_required_result_request_state(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Carries a state through the client"""
        return ask("state", Question("confirm", "Please confirm", YES), nonce="round-1")

    @tool()
    async def test_input_required_result_tampered_state(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Carries a state that nobody may change"""
        return ask("state", Question("confirm", "Please confirm", YES), nonce="round-1")

    @after("state")
    async def _stated(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"state-ok: {kept['nonce']}")

    @tool()
    async def test_input_required_result_multiple_inputs(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks the person, the model and the client at once"""
        return ask(
            "several",
            Question("user_name", "What is your name?", NAME),
            _ask_model("greeting", "Generate a greeting", max_tokens=50),
            _ask_folders("client_roots"),
        )

    @after("several")
    async def _several(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"All {len(answers)} inputs received.")

    @tool()
    async def test_input_required_result_multi_round(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks twice"""
        return ask("round1", Question("step1", "Step 1: What is your name?", NAME))

    @after("round1")
    async def _round1(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        name = _field(answers["step1"], "name")
        return ask("round2", Question("step2", "Step 2: What is your favorite color?", form(color=STRING)), name=name)

    @after("round2")
    async def _round2(self, kept: dict[str, Any], answers: dict[str, Answer], caller: Caller) -> Outcome:
        return text(f"{kept['name']} likes {_field(answers['step2'], 'color')}.")

    @tool()
    async def test_input_required_result_capabilities(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Asks only what the client can answer"""
        possible = {
            "sampling": _ask_model("sample", "Say hello", max_tokens=50),
            "form": Question("ask", "What is your name?", NAME),
        }
        asked = [question for power, question in possible.items() if power in caller.can]
        return ask("several", *asked) if asked else text("This client can answer nothing.")

    @tool(form(name=STRING))
    async def greet(self, given: dict[str, Any], caller: Caller) -> Outcome:
        """Says hello at once"""
        return text(f"Hello, {given['name']}!")


def _job_tool(name: str) -> Tool:
    capability = jobs.functions[name].capability
    needs = frozenset({"tasks"}) if name in REQUIRED else frozenset[str]()
    return Tool(name=name, description=capability.description, input_schema=capability.input_schema, requires=needs)


def _words(answer: Answer) -> str:
    content = answer.data["content"] if isinstance(answer.data, dict) else {}
    return str(content.get("text", "No response")) if isinstance(content, dict) else "No response"


def _field(answer: Answer, name: str) -> str:
    return str(answer.data.get(name, "?")) if isinstance(answer.data, dict) else "?"


def _filled(name: str, arguments: dict[str, str], answers: dict[str, Answer]) -> list[Part]:
    if name == "test_prompt_with_arguments":
        return [Part(text=f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]
    if name == "test_prompt_with_embedded_resource":
        words = "Embedded resource content for testing."
        inside = Part(text=words, media_type="text/plain", meta={URI: arguments["resourceUri"]})
        return [inside, Part(text="Please process the embedded resource above.")]
    if name == "test_prompt_with_image":
        return [Part(raw=IMAGE, media_type="image/png"), Part(text="Please analyze the image above.")]
    if name == "test_input_required_result_prompt":
        return [Part(text=f"Use the following context: {_field(answers['user_context'], 'context')}")]
    return [Part(text="This is a simple prompt for testing.")]


# Serving


@asynccontextmanager
async def opened() -> AsyncIterator[MCPDoor]:
    """The door of the fixture, with a call core in memory behind it."""
    connector = LocalConnector()
    connector.add(jobs)
    settings = Settings(calls=Calls(ledger="batched"))
    database = await open_database(":memory:")

    async def lookup(agent: str, name: str) -> Target:
        return jobs.agent, jobs.functions[name].capability

    core = Core.build(settings, database, {"local": connector}, lookup)
    fixture = Fixture(Gateway(core, Directory(database, REAL), Reputation(database, REAL)))
    fixture.door = MCPDoor(fixture, DoorOptions(name="agent3-conformance", retry=0.1))
    try:
        yield fixture.door
    finally:
        await core.runner.aclose(0.1)
        await core.aclose()
        await database.aclose()


class _Endpoint:
    """The door of the app around, behind its fast lane; it exists only while that runs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["app"].state.lane(scope, receive, send)


def app() -> Starlette:
    """The fixture at /mcp."""

    @asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        async with opened() as door, door.running():
            starlette.state.lane = FastLane(door)
            yield

    return Starlette(routes=[Route("/mcp", _Endpoint())], lifespan=lifespan)


def serve(port: int) -> None:
    """Serve over HTTP on loopback until interrupted."""
    uvicorn.run(app(), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)


async def _stdio() -> None:
    async with opened() as door:
        await door.stdio()


def main() -> None:
    """Over HTTP with a port, else over stdio."""
    parser = argparse.ArgumentParser(prog="python -m conformance.mcp_fixture")
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    if chosen.port is not None:
        serve(chosen.port)
    else:
        asyncio.run(_stdio())


if __name__ == "__main__":
    main()
