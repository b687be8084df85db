"""``App``: typed functions, written once, behind every door at once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from mcp import Client as MCPClient

from agent3 import App, Client, Context, SyncContext, testing
from agent3.a2a import SyncA2AClient, Task
from agent3.errors import SetupError
from agent3.model import Done, Failed, Part

shop = App("Corner shop", description="Sells things.", tags=("food",))


@dataclasses.dataclass
class Item:
    name: str
    count: int = 1


class Address(pydantic.BaseModel):
    city: str
    number: int = pydantic.Field(ge=1)


class Receipt(TypedDict):
    total: float
    lines: list[str]


@shop.capability(price=0.25, examples=({"items": [{"name": "tea"}], "to": {"city": "Rome", "number": 1}},))
def order(items: list[Item], to: Address, speed: Literal["slow", "fast"] = "slow") -> Receipt:
    """Order things."""
    lines = [f"{item.count} {item.name} to {to.city}" for item in items]
    return Receipt(total=sum(item.count for item in items) * (2.0 if speed == "fast" else 1.0), lines=lines)


@shop.capability(name="say", description="Say something twice.", read_only=True)
async def say_twice(words: Annotated[str, "What to say"]) -> str:
    return f"{words} {words}"


@shop.capability
def count(to: int) -> Iterator[str]:
    """Count up to a number."""
    for number in range(1, to + 1):
        yield f"{number} "


@shop.capability
async def count_async(to: int) -> AsyncIterator[str]:
    """Count up to a number, on the loop."""
    for number in range(1, to + 1):
        yield f"{number} "


@shop.capability(replay=True)
async def wrap(ctx: Context, gift: str) -> str:
    """Wrap a gift."""
    return f"{gift} in {await ctx.ask('Which colour?', Literal['red', 'blue'])} paper"


@shop.capability
def wrap_plain(ctx: SyncContext, gift: str) -> str:
    """Wrap a gift, in a plain function."""
    return f"{gift} in {ctx.ask('Which colour?')} paper"


@shop.capability(read_only=True)
def picture() -> Part:
    """Show the shop."""
    return Part(raw=b"\x89PNG", media_type="image/png")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with shop.listening() as where:
        yield where


def post(url: str, body: dict[str, Any], **headers: str) -> Any:
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=240) as answer:
        return json.load(answer)


def test_types_of_every_kind_are_the_schema_and_arrive_as_themselves(url: str) -> None:
    given = {"items": [{"name": "tea", "count": 2}, {"name": "milk"}], "to": {"city": "Rome", "number": 3}}
    with Client(url) as gateway:
        told = gateway.call("corner-shop", capability="order", input={**given, "speed": "fast"})
        assert told.value == {"total": 6.0, "lines": ["2 tea to Rome", "1 milk to Rome"]}
        assert told.metadata["cost"] == 0.25
        offered = gateway.select("corner-shop").capability("order")
        assert offered is not None
        assert offered.input_schema is not None
        assert offered.output_schema is not None
        assert offered.input_schema["properties"]["speed"]["enum"] == ["slow", "fast"]
        assert offered.output_schema["properties"].keys() == {"total", "lines"}
        assert offered.examples[0]["to"]["city"] == "Rome"


def test_every_form_of_function_works(url: str) -> None:
    with Client(url) as gateway:
        assert gateway.call("corner-shop", capability="say", input={"words": "hi"}).text == "hi hi"
        for name in ("count", "count_async"):
            pieces = gateway.stream("corner-shop", capability=name, input={"to": 3})
            assert [event.parts[0].text for event in pieces if event.kind == "artifact"] == ["1 ", "2 ", "3 "]
            assert pieces.result().text == "1 2 3 "
        for name in ("wrap", "wrap_plain"):
            asked = gateway.call("corner-shop", capability=name, input={"gift": "A book"})
            assert [question.text for question in asked.questions] == ["Which colour?"]
            assert gateway.answer(asked, "red").text == "A book in red paper"
        assert gateway.call("corner-shop", capability="picture").parts[0].raw == b"\x89PNG"


def test_it_is_mcp_tools_an_a2a_agent_of_every_generation_ask_and_rest_at_once(url: str) -> None:
    async def by_mcp() -> tuple[set[str], Any]:
        async with MCPClient(f"{url}/agents/corner-shop/mcp") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, await client.call_tool("say", {"words": "hi"})

    tools, told = asyncio.run(asyncio.wait_for(by_mcp(), 60))
    assert tools == set(shop.functions)
    assert told.content[0].text == "hi hi"

    where = f"{url}/agents/corner-shop/a2a"
    with SyncA2AClient.connect(where) as client:
        task = client.send({"words": "hi"}, skill="say")
        assert isinstance(task, Task)
        assert task.artifacts[0].parts[0].text == "hi hi"
    parts = [{"kind": "data", "type": "data", "data": {"skill": "say", "input": {"words": "hi"}}}]
    newer = {"message": {"kind": "message", "messageId": "m1", "role": "user", "parts": parts}}
    told = post(where, {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": newer})
    assert told["result"]["artifacts"][0]["parts"][0]["text"] == "hi hi"
    oldest = {"id": "t1", "message": {"role": "user", "parts": parts}}
    told = post(where, {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": oldest})
    assert told["result"]["artifacts"][0]["parts"][0]["text"] == "hi hi"

    asked = {"query": {"text": "say tomatoes", "site": "corner-shop"}, "prefer": {"streaming": False}}
    assert "tomatoes" in json.dumps(post(f"{url}/ask", asked))
    body = {"agentId": "corner-shop", "capability": "say", "input": {"words": "hi"}}
    assert post(f"{url}/v1/call", body)["result"] == "hi hi"


def test_a_typed_result_is_structured_content_for_mcp(url: str) -> None:
    async def run() -> Any:
        async with MCPClient(f"{url}/agents/corner-shop/mcp") as client:
            given = {"items": [{"name": "tea"}], "to": {"city": "Rome", "number": 3}}
            return await client.call_tool("order", given)

    told = asyncio.run(asyncio.wait_for(run(), 60))
    assert told.structured_content == {"total": 1.0, "lines": ["1 tea to Rome"]}


def test_a_function_without_types_is_refused_where_it_is_written() -> None:
    app = App("untyped")
    with pytest.raises(
        SetupError, match=r"untyped: parameter 'city' of price has no type. Add a type hint, such as city: str"
    ):

        @app.capability
        def price(city, bags: int = 0) -> float:  # type: ignore[no-untyped-def]
            return 1.0

    assert app.functions == {}


def test_two_apps_can_listen_at_once_and_each_ends_with_its_block() -> None:
    one, two = App("one"), App("two")
    one.capability(say_twice)
    two.capability(say_twice)
    with one.listening() as first, two.listening() as second, Client(first) as to_first, Client(second) as to_second:
        assert [hit.id for hit in to_first.agents()] == ["one"]
        assert [hit.id for hit in to_second.agents()] == ["two"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{first}/healthz", timeout=240)


def test_a_declared_type_makes_no_large_result_too_large() -> None:
    app, deep = App("large"), [0]
    for _ in range(100):
        deep = [deep]  # type: ignore[list-item]
    numbers, text = list(range(100_000)), "x" * 1_000_000

    @app.capability
    def numbered() -> list[int]:
        return numbers

    @app.capability
    def written() -> str:
        return text

    @app.capability
    async def both() -> dict[str, Any]:
        return {"text": text, "numbers": numbers, "deep": deep}

    for name, given in (
        ("numbered", numbers),
        ("written", text),
        ("both", {"text": text, "numbers": numbers, "deep": deep}),
    ):
        done = asyncio.run(testing.call(app, name))
        assert isinstance(done, Done), done
        assert done.parts[0].meta["size"] == len(given if isinstance(given, str) else msgspec.json.encode(given))


def test_what_a_function_returns_is_held_to_its_type_and_its_errors_tell_no_secret() -> None:
    app = App("liar")

    @app.capability
    def number() -> int:
        return "three"  # type: ignore[return-value]

    @app.capability
    async def items() -> list[Item]:
        return [Item("tea"), {"name": 3}]  # type: ignore[list-item]

    @app.capability(inline=True)
    def nothing() -> str:
        return None  # type: ignore[return-value]

    @app.capability
    def good() -> list[Item]:
        return [Item("tea")]

    @app.capability
    def leaking() -> str:
        raise RuntimeError("password=hunter2 and sk-abcdefghijklmnop")

    for name in ("number", "items", "nothing"):
        failed = asyncio.run(testing.call(app, name))
        assert isinstance(failed, Failed)
        assert (failed.code, f"{name} returned something that does not match its declared type" in failed.message) == (
            "malformed_response",
            True,
        )
    assert isinstance(asyncio.run(testing.call(app, "good")), Done)
    leaked = asyncio.run(testing.call(app, "leaking"))
    assert isinstance(leaked, Failed)
    assert "RuntimeError: password=" in leaked.message
    assert "hunter2" not in leaked.message
    assert "sk-abc" not in leaked.message
    with pytest.raises(SetupError, match="capability 'good' already exists"):
        app.add(lambda: "again", name="good")
