"""What an MCPServer offers beside tools: resources, prompts, proposals, questions to the client itself, tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from agent3 import Context, MCPSecurityManager, MCPServer, SyncContext
from agent3.errors import Conflict, NotFound, SetupError, ValidationError
from agent3.mcp import CompletionResult, FilledPrompt, assistant, embed
from agent3.model import Done, Needs, Part, Principal, value_of
from agent3.protocols.mcp.library.uri_templates import UriTemplate
from agent3.protocols.mcp.meta_keys import TASKS
from tests.support.mcp_serving import MODERN, modern_request

ERAS = (MODERN, "legacy")


def travel_server(**options: Any) -> MCPServer:
    server = MCPServer("travel", **options)

    @server.resource("weather://{city}/{days}{?unit}", media_type="application/json", title="Weather")
    def weather(city: str, days: int, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
        """The weather of a city."""
        return {"city": city, "days": days, "unit": unit}

    @server.resource("notes://today")
    async def notes() -> str:
        return "x" * 100_000

    @server.prompt(title="Plan a trip")
    def plan(city: str, style: Literal["calm", "crowded"] = "calm", days: int = 3) -> list[Any]:
        """Plan a trip.

        Args:
            city: Where to.
        """
        return [f"{days} {style} days in {city}", assistant("Gladly."), embed("notes://today", "mind the gap")]

    @server.prompt
    async def tell(ctx: Context) -> str:
        return f"Tell me of {await ctx.ask('Of what?')}"

    @server.completion("plan", "city")
    async def cities(value: str, given: dict[str, str]) -> list[str]:
        return [f"{city}{given.get('style', '')}" for city in ("Roma", "Rouen", "Bonn") if city.startswith(value)]

    @server.tool
    async def advise(ctx: Context) -> str:
        """Asks whatever the client can answer."""
        ctx.log({"step": 1}, "warning", logger="travel")
        ctx.log("not wanted", "debug")
        said, folders = await asyncio.gather(ctx.sample("Where to?", system="Be brief."), ctx.roots())
        return f"{said.text} by {said.model} in {folders[0].uri}"

    @server.tool
    def advise_again(ctx: SyncContext) -> str:
        """The same in a plain function, for clients that can."""
        return ctx.sample("Where to?").text if "sampling" in ctx.can else "nobody to ask"

    @server.tool(task=True)
    async def book(ctx: Context, city: str) -> str:
        return f"{city} {await ctx.ask('Which class?', name='class')}"

    return server


async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
    return wire.ElicitResult(action="accept", content={"answer": "whales"})


async def model(context: Any, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
    said = f"{params.system_prompt} Rome"
    return wire.CreateMessageResult(role="assistant", content=wire.TextContent(text=said), model="m1")


async def folders(context: Any) -> wire.ListRootsResult:
    return wire.ListRootsResult(roots=[wire.Root.model_validate({"uri": "file:///home/me", "name": "home"})])


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
def test_official_clients_find_and_use_all_of_it_in_both_eras() -> None:
    server = travel_server()
    lines: list[Any] = []
    news: asyncio.Queue[str] = asyncio.Queue()

    async def hear_line(params: wire.LoggingMessageNotificationParams) -> None:
        lines.append((params.level, params.logger, params.data))

    async def hear(message: Any) -> None:
        if (method := getattr(message, "method", "")).startswith("notifications/resources"):
            news.put_nowait(method)

    async def use(client: Client) -> None:
        assert [str(one.uri) for one in (await client.list_resources()).resources] == ["notes://today"]
        templates = {one.uri_template: one for one in (await client.list_resource_templates()).resource_templates}
        weather = templates["weather://{city}/{days}{?unit}"]
        assert (weather.title, weather.description) == ("Weather", "The weather of a city.")
        (content,) = (await client.read_resource("weather://S%C3%A3o%20Paulo/3?unit=F")).contents
        assert isinstance(content, wire.TextResourceContents)
        assert (content.mime_type, content.text) == ("application/json", '{"city":"São Paulo","days":3,"unit":"F"}')
        (content,) = (await client.read_resource("notes://today")).contents
        assert isinstance(content, wire.TextResourceContents)
        assert (content.mime_type, len(content.text)) == ("text/plain", 100_000)
        for wrong in ("weather://Bonn/soon", "weather://Bonn", "other://x"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(wrong)
            assert refused.value.code == wire.INVALID_PARAMS
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        arguments = [(one.name, one.required, one.description) for one in prompts["plan"].arguments or ()]
        assert arguments == [("city", True, "Where to."), ("style", False, None), ("days", False, None)]
        filled = await client.get_prompt("plan", {"city": "Rome", "days": "2"})
        assert [message.role for message in filled.messages] == ["user", "assistant", "user"]
        assert filled.messages[0].content == wire.TextContent(text="2 calm days in Rome")
        assert isinstance(filled.messages[2].content, wire.EmbeddedResource)
        for name, given in (("plan", {}), ("plan", {"city": "x", "days": "few"}), ("plam", {})):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name, given)
            assert refused.value.code == wire.INVALID_PARAMS
        asked = await client.get_prompt("tell")
        assert asked.messages[0].content == wire.TextContent(text="Tell me of whales")
        ref = wire.PromptReference(name="plan")
        proposed = await client.complete(ref, {"name": "city", "value": "Ro"}, {"style": "!"})
        assert proposed.completion.values == ["Roma!", "Rouen!"]
        assert (await client.complete(ref, {"name": "style", "value": "cr"})).completion.values == ["crowded"]
        answer = await client.call_tool("advise", {})
        assert answer.content == [wire.TextContent(text="Be brief. Rome by m1 in file:///home/me")]
        assert (await client.call_tool("advise_again", {})).content == [wire.TextContent(text="None Rome")]

    async def use_all(url: str) -> None:
        for era in ERAS:
            lines.clear()
            can: dict[str, Any] = {
                "elicitation_callback": person,
                "sampling_callback": model,
                "list_roots_callback": folders,
            }
            async with Client(
                url,
                mode=era,
                logging_callback=hear_line,
                log_level="info" if era == MODERN else None,
                message_handler=hear,
                **can,
            ) as client:
                if era == "legacy":
                    await client.set_logging_level("info")
                await use(client)
                assert lines == [("warning", "travel", {"step": 1})]
                if era == MODERN:
                    async with client.listen(resource_subscriptions=["notes://today"]) as stream:
                        server.resource_changed("notes://today")
                        async with asyncio.timeout(60):
                            assert "Updated" in type(await anext(aiter(stream))).__name__
                    continue
                await client.subscribe_resource("notes://today")
                while news.empty():  # what is told before the client's stream stands is lost
                    server.resource_changed("notes://today")
                    await asyncio.sleep(0.1)
                assert news.get_nowait() == "notifications/resources/updated"
        async with Client(url, mode="legacy") as client:
            answer = await client.call_tool("advise", {})
            assert answer.is_error
            assert "does not offer a language model" in str(answer.content)
            assert (await client.call_tool("advise_again", {})).content == [wire.TextContent(text="nobody to ask")]

    async def follow(url: str) -> None:
        can: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}
        async with aiohttp.ClientSession() as http:

            async def ask(method: str, **params: Any) -> Any:
                request = modern_request(
                    method, params, can, **{"Mcp-Name": str(params.get("taskId", params.get("name")))}
                )
                async with http.post(url, **request) as answer:
                    return (await answer.json())["result"]

            task = await ask("tools/call", name="book", arguments={"city": "Rome"})
            assert task["resultType"] == "task"
            while (state := await ask("tasks/get", taskId=task["taskId"]))["status"] == "working":
                await asyncio.sleep(0.02)
            assert list(state["inputRequests"]) == ["class"]
            said = {"class": {"action": "accept", "content": {"answer": "second"}}}
            await ask("tasks/update", taskId=task["taskId"], inputResponses=said)
            while (state := await ask("tasks/get", taskId=task["taskId"]))["status"] == "working":
                await asyncio.sleep(0.02)
            assert state["result"]["content"][0]["text"] == "Rome second"

    async def rows() -> set[tuple[str, str]]:
        house = await server._core.call_core()
        await house.ledger.flush()
        found = await house.database.all("SELECT capability, status FROM calls WHERE agent = ?", server._agent.id)
        return {(row["capability"], row["status"]) for row in found}

    try:
        with server.listening() as url:
            asyncio.run(asyncio.wait_for(use_all(url), 240))
            asyncio.run(asyncio.wait_for(follow(url), 60))
        told = server._core.run(rows())
        assert {("resource/weather", "done"), ("prompt/plan", "done"), ("prompt/tell", "needs")} <= told
        assert {("completion/prompt/plan/city", "done"), ("resource", "refused"), ("prompt", "refused")} <= told
    finally:
        server.close()


def test_a_place_is_held_by_a_task_until_it_pauses_or_ends() -> None:
    server = MCPServer("narrow", max_concurrent=1, max_waiting=0)
    going = asyncio.Event()

    @server.tool(task=True)
    async def work() -> str:
        await going.wait()
        return "done"

    @server.tool
    async def other() -> str:
        return "done"

    async def story() -> None:
        began = await server._runner.call("work", {}, detach=True)
        refused = await server.call_tool_async("other", {})
        assert getattr(refused, "code", "") == "rate_limited"
        going.set()
        async with asyncio.timeout(60):
            while not isinstance(await server.call_tool_async("other", {}), Done):
                await asyncio.sleep(0.01)
        assert getattr(began, "job", None)

    try:
        server._core.run(server._runner.run_here(story()))
    finally:
        server.close()


def test_clients_have_only_what_they_are_given_by_its_kind_and_name() -> None:
    security = MCPSecurityManager("a secret of at least 16 bytes", {"tools": ["advise"], "reader": ["resource/*"]})
    server = travel_server(security=security)
    tools, reader, anyone = Principal("tools"), Principal("reader"), Principal("stranger")
    try:
        assert [len(server.list_resources(who)) for who in (tools, reader, anyone)] == [0, 1, 0]
        assert [len(server.list_resource_templates(who)) for who in (tools, reader, anyone)] == [0, 1, 0]
        assert [len(server.list_prompts(who)) for who in (tools, reader, anyone)] == [0, 0, 0]
        assert isinstance(server.read_resource("notes://today", reader), Done)
        for refused in (partial(server.read_resource, "notes://today", tools), partial(server.get_prompt, "plan")):
            with pytest.raises(NotFound):
                refused()
    finally:
        server.close()


def test_programs_use_it_without_a_client() -> None:
    server = travel_server()
    try:
        outcome = server.read_resource("weather://Rome/3")
        assert isinstance(outcome, Done)
        assert value_of(outcome.parts) == {"city": "Rome", "days": 3, "unit": "C"}
        filled = server.get_prompt("plan", {"city": "Rome"})
        assert isinstance(filled, FilledPrompt)
        assert filled.messages[0].part == Part(text="3 calm days in Rome")
        assert isinstance(server.get_prompt("tell"), Needs)
        with pytest.raises(ValidationError, match="city"):
            server.get_prompt("plan")
        server.unregister_resource("notes://today")
        server.unregister_prompt("plan")
        assert server.list_resources() == []
        assert [prompt.name for prompt in server.list_prompts()] == ["tell"]
        with pytest.raises(NotFound):
            server.resource_changed("notes://today")
    finally:
        server.close()


def test_a_cached_resource_is_read_again_once_it_changed() -> None:
    server = MCPServer("counting")
    count = 0

    @server.resource("count://now", cache_ttl=600)
    def now() -> int:
        nonlocal count
        count += 1
        return count

    def read() -> Any:
        outcome = server.read_resource("count://now")
        assert isinstance(outcome, Done)
        return value_of(outcome.parts)

    try:
        assert [read(), read()] == [1, 1]
        server.resource_changed("count://now")
        assert read() == 2
    finally:
        server.close()


def needs_city(city: str) -> str:
    return city


MISTAKES: dict[str, tuple[Callable[[MCPServer], object], str]] = {
    "no scheme": (lambda server: server.resource("weather")(needs_city), "scheme"),
    "unknown variable": (lambda server: server.resource("w://{town}")(needs_city), "no parameter 'town'"),
    "missing variable": (lambda server: server.resource("w://x")(needs_city), "requires 'city'"),
    "adjacent": (lambda server: server.resource("w://{city}{city2}")(needs_city), "nothing between"),
    "operator": (lambda server: server.resource("w://{/city}")(needs_city), "cannot be used"),
    "ours": (lambda server: server.resource("agent3://artifacts/{city}")(needs_city), "large results"),
    "no name": (lambda server: server.resource("w://x")(lambda: ""), "needs a name"),
    "ttl": (lambda server: server.resource("w://{city}", cache_ttl=-1)(needs_city), "cache_ttl"),
    "completion of nothing": (lambda server: server.completion("plam", "city")(needs_city), "neither a prompt"),
    "completion of no argument": (lambda server: server.completion("plan", "cty")(needs_city), "Did you mean 'city'"),
    "completion signature": (lambda server: server.completion("plan", "days")(needs_city), "must take value"),
}


def test_what_cannot_work_is_refused_when_it_is_registered() -> None:
    server = travel_server()
    try:
        for name, (mistake, said) in MISTAKES.items():
            with pytest.raises(SetupError, match=said):
                mistake(server)
            assert len(server.list_resource_templates()) == 1, name
        with pytest.raises(Conflict, match="already"):
            server.resource("notes://today")(_notes)
        with pytest.raises(Conflict, match="already"):
            server.prompt(name="plan")(needs_city)
    finally:
        server.close()


def _notes() -> str:
    return ""


TEMPLATES: tuple[tuple[str, str, dict[str, str] | None], ...] = (
    ("a://{x}", "a://1", {"x": "1"}),
    ("a://{x}", "a://1/2", None),
    ("a://{x}", "a://", None),
    ("a://{+x}", "a://1/2", {"x": "1/2"}),
    ("a://{x}/b/{y}.txt", "a://1/b/2.txt", {"x": "1", "y": "2"}),
    ("a://{x}/b/{y}.txt", "a://1/b/2.txt.old", None),
    ("a://{x}-{y}", "a://1-2-3", {"x": "1", "y": "2-3"}),
    ("a://{x}{?p,q}", "a://1?q=a%20b", {"x": "1", "q": "a b"}),
    ("a://{x}{?p,q}", "a://1?r=2", None),
    ("a://plain", "a://plain", {}),
    ("a://plain", "a://plainer", None),
    ("a://{x}", "a://" + "1" * 9_000, None),
)


def test_templates_match_what_is_theirs() -> None:
    for template, uri, values in TEMPLATES:
        assert UriTemplate(template).match(uri) == values, (template, uri[:40])


def test_proposals_may_say_that_there_are_more() -> None:
    server = travel_server()

    @server.completion("weather://{city}/{days}{?unit}", "city")
    def cities(value: str) -> CompletionResult:
        return CompletionResult((f"{value}a", f"{value}b"), 40, True)

    async def story(url: str) -> None:
        async with Client(url, mode=MODERN) as client:
            ref = wire.ResourceTemplateReference(uri="weather://{city}/{days}{?unit}")
            found = (await client.complete(ref, {"name": "city", "value": "R"})).completion
            assert (found.values, found.total, found.has_more) == (["Ra", "Rb"], 40, True)

    try:
        with server.listening() as url:
            asyncio.run(asyncio.wait_for(story(url), 60))
    finally:
        server.close()
