"""The shapes of ``agent3_call``: batches, streams, cards, files, media, and answers that fit the output schemas."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client

from agent3 import Context, LocalAgent, schema
from agent3.gateway.hits import count_tokens
from agent3.gateway.input_modes import is_among
from agent3.gateway.tool_texts import MOST_CALLS, TOOLS
from agent3.jsonrpc import SSEParser
from agent3.model import Part
from agent3.settings import Settings
from tests.support.gateway import Hosted, Reply, hosted

PIXEL = b"\x89PNG\r\n\x1a\n" + b"\0" * 200
LARGE = b"\xff" * 100_000
"""More than a result holds: it is kept aside, and its id is the handle."""
OUTPUT = {text.name: schema.compile(text.output_schema) for text in TOOLS}


class Studio:
    """An agent for each shape that an answer can have."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.cancelled = threading.Event()
        self.agent = LocalAgent("Studio", agent_id="studio", description="Works for tests.")
        for one in (self.say, self.fail, self.ask, self.tell, self.hold, self.picture, self.sound, self.poster):
            self.agent.capability(one)
        self.agent.add(self.look_at, input_modes=("text/plain", "image/*"), input_schema={})

    async def say(self, message: str) -> str:
        """Say it back."""
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        return message

    def fail(self) -> None:
        """Fail."""
        raise RuntimeError("the oven is cold")

    async def ask(self, ctx: Context) -> str:
        """Ask for a name."""
        return f"Hello, {await ctx.ask('Who are you?', str)}!"

    async def tell(self) -> AsyncIterator[str]:
        """Tell a story in pieces."""
        for word in ("once ", "upon ", "a ", "time"):
            yield word

    async def hold(self, ctx: Context) -> None:
        """Never end by itself."""
        ctx.status("holding")
        try:
            await asyncio.sleep(600)
        finally:
            self.cancelled.set()

    def picture(self) -> list[Part]:
        """Words and a small image."""
        return [Part(text="Here it is."), Part(raw=PIXEL, media_type="image/png", name="p.png")]

    def sound(self) -> Part:
        """Some audio."""
        return Part(raw=b"RIFF" + b"\0" * 50, media_type="audio/wav")

    def poster(self) -> Part:
        """An image that is too large for a result."""
        return Part(raw=LARGE, media_type="image/png")

    def look_at(self, ctx: Any) -> list[Any]:
        """Say what was given."""
        return [[part.media_type, part.name, len(part.raw or b""), part.text] for part in ctx.parts]


@pytest.fixture(scope="module")
def studio() -> Studio:
    return Studio()


@pytest.fixture(scope="module")
def door(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("shapes"), [studio.agent], Settings()) as running:
        yield running


def call(door: Hosted, capability: str, message: str = "", **more: Any) -> Reply:
    return door.call("studio", message, capability=capability, **more)


def mcp(door: Hosted, story: Callable[[Client], Awaitable[None]], mode: Any = "2026-07-28", **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Client(f"{door.url}/mcp", mode=mode, **options) as client:
            await story(client)

    asyncio.run(main())


def frames(reply: Reply) -> list[tuple[str | None, Any]]:
    return [(frame.event, json.loads(frame.data)) for frame in SSEParser().feed(reply.raw) if frame.data]


# Batches


@pytest.mark.requirement("AC-23")
def test_a_batch_answers_each_call_in_its_place_and_one_that_fails_stops_none(door: Hosted) -> None:
    calls = [
        {"agentId": "studio", "capability": "say", "message": "one"},
        {"agentId": "nobody", "message": "two"},
        {"agentId": "studio", "capability": "fail"},
        {"agentId": "studio", "capability": "say", "massage": "four"},
        {"agentId": "studio", "capability": "ask"},
        {"calls": []},
        {"agentId": "studio", "capability": "say", "metadata": "fast"},
        {"agentId": "studio", "capability": "say", "message": "last"},
    ]
    answer = door.post("/v1/call", {"calls": calls})
    body = answer.json
    assert (answer.status, body["success"]) == (200, False)
    answers = body["result"]
    codes = [one.get("errorCode", one.get("status", "done")) for one in answers]
    assert codes == [
        "done", "agent_not_found", "target_failed", "invalid_input", "needs", "invalid_input", "invalid_input", "done"
    ]  # fmt: skip
    assert [answers[0]["result"], answers[-1]["result"]] == ["one", "last"]
    assert (body["metadata"]["count"], body["metadata"]["succeeded"]) == (8, 2)
    # Each is an ordinary call: the one that asked is answered like any other.
    again = {"agentId": "studio", "message": "Ada", "metadata": {"job": answers[4]["job"]}}
    other = door.post("/v1/call", {**again, "capability": "say"})
    assert (other.status, "is a call of 'ask', not of 'say'" in other.error["message"]) == (422, True)
    assert door.post("/v1/call", {**again, "capability": "ask"}).json["result"] == "Hello, Ada!"


@pytest.mark.requirement("AC-23")
def test_every_call_of_a_batch_is_in_the_ledger_and_few_run_at_once(door: Hosted, studio: Studio) -> None:
    before = len(door.rows("calls"))
    studio.most = 0
    calls = [{"agentId": "studio", "capability": "say", "message": str(number)} for number in range(MOST_CALLS)]
    body = door.post("/v1/call", {"calls": calls}).json
    assert body["success"] is True
    assert [one["result"] for one in body["result"]] == [str(number) for number in range(MOST_CALLS)]
    assert len(door.rows("calls")) - before == MOST_CALLS
    assert 1 < studio.most <= 5
    assert door.post("/v1/call", {"calls": [*calls, calls[0]]}).status == 422
    assert door.post("/v1/call", {"calls": []}).status == 422
    assert door.post("/v1/call", {"calls": calls, "agentId": "studio"}).status == 422


@pytest.mark.requirement("AC-23")
def test_a_batch_over_mcp_and_detached(door: Hosted) -> None:
    calls = [{"agentId": "studio", "capability": "say", "message": word} for word in ("a", "b")]

    async def story(client: Client) -> None:
        result = await client.call_tool("agent3_call", {"calls": calls})
        assert result.structured_content is not None
        assert [one["result"] for one in result.structured_content["result"]] == ["a", "b"]
        assert result.is_error is not True

    mcp(door, story)
    mcp(door, story, mode="legacy")
    body = door.post("/v1/call", {"calls": calls}, prefer="respond-async").json
    jobs = [one["job"] for one in body["result"]]
    assert [door.get(f"/v1/calls/{job}?wait=60").json["result"] for job in jobs] == ["a", "b"]


# Streams


@pytest.mark.requirement("AC-16")
@pytest.mark.parametrize("how", [{"metadata": {"streaming": True}}, {"accept": "text/event-stream"}])
def test_a_call_over_rest_streams_its_pieces_and_ends_with_the_response(door: Hosted, how: dict[str, Any]) -> None:
    accept = {"accept": how["accept"]} if "accept" in how else {}
    more = {"metadata": how["metadata"]} if "metadata" in how else {}
    reply = door.post("/v1/call", {"agentId": "studio", "capability": "tell", **more}, **accept)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    *pieces, (last, response) = frames(reply)
    assert [piece["parts"][0]["text"] for kind, piece in pieces if kind == "artifact"] == [
        "once ",
        "upon ",
        "a ",
        "time",
    ]
    assert last == "response"
    assert (response["success"], response["result"]) == (True, "once upon a time")


@pytest.mark.requirement("AC-16")
def test_nothing_is_streamed_with_false_also_where_it_would_be_accepted(door: Hosted) -> None:
    body = {"agentId": "studio", "capability": "tell", "metadata": {"streaming": False}}
    reply = door.post("/v1/call", body, accept="text/event-stream")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["result"] == "once upon a time"


@pytest.mark.requirement("AC-16")
def test_what_fails_at_once_has_its_status_also_as_a_stream(door: Hosted) -> None:
    body: dict[str, Any] = {"agentId": "studio", "capability": "say", "metadata": {"streaming": True}}
    reply = door.post("/v1/call", body)
    assert reply.status == 422
    assert [kind for kind, _ in frames(reply)] == ["response"]
    assert door.post("/v1/call", {**body, "agentId": "nobody"}).error["code"] == "agent_not_found"


@pytest.mark.requirement("AC-16")
def test_a_client_that_leaves_a_stream_cancels_the_call(door: Hosted, studio: Studio) -> None:
    studio.cancelled.clear()
    connection = door.connect()
    body = {"agentId": "studio", "capability": "hold", "metadata": {"streaming": True, "timeout": 600_000}}
    connection.request("POST", "/v1/call", json.dumps(body))
    answer = connection.getresponse()
    assert b"holding" in answer.readline() + answer.readline()
    answer.close()
    connection.close()
    assert studio.cancelled.wait(30)


@pytest.mark.requirement("AC-16")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(("streaming", "heard"), [(None, True), (True, True), (False, False)])
def test_progress_over_mcp_follows_the_flag(door: Hosted, mode: str, streaming: bool | None, heard: bool) -> None:
    pieces: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        pieces.append(message or "")

    async def story(client: Client) -> None:
        metadata = {} if streaming is None else {"streaming": streaming}
        arguments = {"agentId": "studio", "capability": "tell", "metadata": metadata}
        result = await client.call_tool("agent3_call", arguments, progress_callback=hear)
        assert result.structured_content is not None
        assert result.structured_content["result"] == "once upon a time"
        assert "notices" not in result.structured_content["metadata"]

    mcp(door, story, mode)
    assert "".join(pieces) == ("once upon a time" if heard else "")


@pytest.mark.requirement("AC-16")
def test_a_legacy_client_without_a_token_gets_the_pieces_as_log_messages(door: Hosted) -> None:
    logs: list[Any] = []

    async def hear(params: wire.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    async def story(client: Client) -> None:
        await client.list_tools()  # from here on calls may take the fast lane, which streams nothing
        for streaming in (True, False, None):
            metadata = {} if streaming is None else {"streaming": streaming}
            arguments = {"agentId": "studio", "capability": "tell", "metadata": metadata}
            await client.call_tool("agent3_call", arguments)
            if streaming:
                assert "".join(data["text"] for data in logs) == "once upon a time"
                logs.clear()

    mcp(door, story, "legacy", logging_callback=hear)
    assert logs == []


@pytest.mark.requirement("AC-16")
def test_a_modern_client_without_a_token_is_told_that_nothing_was_streamed(door: Hosted) -> None:
    async def story(client: Client) -> None:
        arguments = {"agentId": "studio", "capability": "tell", "metadata": {"streaming": True}}
        for _ in range(2):
            result = await client.call_tool("agent3_call", arguments)
            assert result.structured_content is not None
            (notice,) = result.structured_content["metadata"]["notices"]
            assert "progress token" in notice
            await client.list_tools()

    mcp(door, story)


# Results


@pytest.mark.requirement("AC-05")
def test_the_card_comes_with_the_answer_when_it_is_asked_for(door: Hosted) -> None:
    card = door.get("/v1/agents/studio/card").json
    for capability, message in (("say", "hi"), ("fail", ""), ("ask", "")):
        answer = call(door, capability, message, metadata={"agentCard": True}).json
        assert answer["agentCard"] == card
        assert "agentCard" not in call(door, capability, message).json

    async def story(client: Client) -> None:
        arguments = {"agentId": "studio", "capability": "say", "message": "hi", "metadata": {"agentCard": True}}
        result = await client.call_tool("agent3_call", arguments)
        assert result.structured_content is not None
        assert result.structured_content["agentCard"] == card

    mcp(door, story)


@pytest.mark.requirement("AC-05")
def test_a_finished_result_can_be_read_again(door: Hosted) -> None:
    job = call(door, "say", "kept", prefer="respond-async").json["job"]
    asked = {"agentId": "studio", "metadata": {"job": job, "timeout": 60_000}}
    first, again = door.post("/v1/call", asked).json, door.post("/v1/call", asked).json
    assert (first["success"], first["result"]) == (again["success"], again["result"]) == (True, "kept")

    async def story(client: Client) -> None:
        result = await client.call_tool("agent3_call", asked)
        assert result.structured_content is not None
        assert result.structured_content["result"] == "kept"

    mcp(door, story)


@pytest.mark.requirement("AC-05")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_images_and_audio_are_content_and_not_text_in_json(door: Hosted, mode: str) -> None:
    async def story(client: Client) -> None:
        for capability, kind, raw in (
            ("picture", wire.ImageContent, PIXEL),
            ("sound", wire.AudioContent, b"RIFF" + b"\0" * 50),
            ("poster", wire.ImageContent, LARGE),
        ):
            result = await client.call_tool("agent3_call", {"agentId": "studio", "capability": capability})
            (block,) = [block for block in result.content if isinstance(block, kind)]
            assert base64.b64decode(block.data) == raw
            assert block.data not in json.dumps(result.structured_content)
            assert len(result.content) == 2  # and nothing else but the answer

    mcp(door, story, mode)
    # Over REST, bytes are base64 in the result.
    words, image = call(door, "picture").json["result"]
    assert words == "Here it is."
    assert base64.b64decode(image["raw"]) == PIXEL


@pytest.mark.requirement("AC-04", "AC-05")
def test_every_answer_of_the_five_tools_fits_its_output_schema(door: Hosted) -> None:
    studio = {"agentId": "studio"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("agent3_search", {"query": "tests"}),
        ("agent3_search", {"query": "zzzz qqqq"}),
        ("agent3_search", {}),
        ("agent3_select", studio),
        ("agent3_select", {"agentId": "nobody"}),
        ("agent3_invoke", studio),
        ("agent3_invoke", {"agentId": "nobody"}),
        ("agent3_feedback", {**studio, "rating": 5}),
        ("agent3_feedback", {**studio, "rating": 9}),
        ("agent3_call", {**studio, "capability": "say", "message": "hi", "metadata": {"agentCard": True}}),
        ("agent3_call", {**studio, "capability": "fail"}),
        ("agent3_call", {**studio, "capability": "ask"}),
        ("agent3_call", {**studio, "capability": "picture"}),
        ("agent3_call", {**studio, "capability": "say"}),
        ("agent3_call", {**studio, "capability": "hold", "metadata": {"timeout": 10, "retries": 0}}),
        ("agent3_call", {**studio, "capability": "say", "message": "x", "metadata": {"callback": {"url": "ftp://x"}}}),
        (
            "agent3_call",
            {"calls": [{**studio, "capability": "say", "message": "hi"}, {**studio, "capability": "fail"}]},
        ),
        ("agent3_call", {"agentId": "nobody"}),
        ("agent3_call", {}),
    ]
    detached = call(door, "hold", prefer="respond-async", metadata={"timeout": 600_000}).json["job"]
    calls.append(("agent3_call", {**studio, "metadata": {"job": detached, "timeout": 10}}))

    async def story(client: Client) -> None:
        listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert {name: listed[name] for name in OUTPUT} == {text.name: text.output_schema for text in TOOLS}
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            OUTPUT[name].check(result.structured_content, what=f"answer of {name}")
            if name == "agent3_call":
                assert isinstance(result.structured_content, dict)
                assert isinstance(result.structured_content["success"], bool)

    try:
        mcp(door, story)
        mcp(door, story, "legacy")
    finally:
        door.post(f"/v1/calls/{detached}/cancel")
    for name, arguments in calls[9:14]:
        OUTPUT[name].check(door.post("/v1/call", arguments).json, what="answer over REST")


# What is sent


PNG = base64.b64encode(PIXEL).decode()


@pytest.mark.requirement("AC-28")
def test_files_arrive_as_parts_by_every_kind_of_handle(door: Hosted) -> None:
    stored = call(door, "poster").json["result"]["artifact"]
    files = [
        {"bytes": PNG, "mediaType": "image/png", "name": "a.png"},
        {"uri": f"data:image/png;base64,{PNG}"},
        {"artifact": stored},
        {"uri": "data:text/plain,just%20words"},
    ]
    answer = call(door, "look_at", "What is this?", files=files).json
    assert answer["result"] == [
        [None, None, 0, "What is this?"],
        ["image/png", "a.png", len(PIXEL), None],
        ["image/png", None, len(PIXEL), None],
        ["image/png", None, len(LARGE), None],
        ["text/plain", None, len("just words"), None],
    ]


@pytest.mark.requirement("AC-28")
def test_a_message_in_a_binary_mode_is_base64_or_a_data_uri(door: Hosted) -> None:
    for message in (PNG, f"data:image/png;base64,{PNG}"):
        answer = call(door, "look_at", message, inputMode="image/png").json
        assert answer["result"] == [["image/png", None, len(PIXEL), None]]
    assert "must be base64" in call(door, "look_at", "not base64!", inputMode="image/png").error["message"]
    wrong = call(door, "look_at", f"data:image/gif;base64,{PNG}", inputMode="image/png")
    assert "They must match" in wrong.error["message"]


@pytest.mark.requirement("AC-28")
def test_words_and_json_have_short_modes_and_parameters(door: Hosted) -> None:
    for mode in ("text", "Text/Plain; charset=utf-8"):
        assert call(door, "say", "hi", inputMode=mode).json["result"] == "hi"
    for mode in ("json", "application/json; charset=utf-8"):
        assert call(door, "say", '{"message": "hi"}', inputMode=mode).json["result"] == "hi"
    assert "inputMode must be a media type" in call(door, "say", "hi", inputMode="words").error["message"]


def test_a_parameter_in_the_wrong_place_is_shown_the_right_one_alone(door: Hosted) -> None:
    refusal = door.post("/v1/call", {"agentId": "studio", "message": "hi", "agentCard": True}).error
    assert refusal["message"] == "Unknown parameter: agentCard. agentCard belongs in metadata: metadata.agentCard"


@pytest.mark.requirement("AC-28")
def test_a_mode_that_is_not_declared_is_refused_with_those_that_are(door: Hosted) -> None:
    before = len(door.rows("calls"))
    for capability, more, takes in (
        ("say", {"message": "AAE=", "inputMode": "application/octet-stream"}, "text/plain, application/json"),
        ("say", {"message": PNG, "inputMode": "image/png"}, "text/plain, application/json"),
        ("say", {"message": "hi", "files": [{"bytes": PNG, "mediaType": "image/png"}]}, "text/plain, application/json"),
        ("look_at", {"message": "{}", "inputMode": "application/json"}, "text/plain, image/*"),
        ("look_at", {"message": "hi", "files": [{"bytes": PNG}]}, "text/plain, image/*"),
    ):
        refusal = door.post("/v1/call", {"agentId": "studio", "capability": capability, **more})
        assert refusal.status == 422
        assert refusal.error["message"].endswith(f"It accepts {takes}.")
        assert refusal.error["data"]["inputModes"] == takes.split(", ")
    unclear = door.post("/v1/call", {"agentId": "studio", "message": "AAE=", "inputMode": "font/woff"})
    assert (unclear.status, "does not accept font/woff" in unclear.error["message"]) == (422, True), "not asked about"
    assert len(door.rows("calls")) - before == 6  # refused, and recorded


@pytest.mark.requirement("AC-28")
def test_files_are_bounded_and_only_ones_own(door: Hosted) -> None:
    one = {"bytes": PNG, "mediaType": "image/png"}
    assert call(door, "look_at", files=[one] * 11).status == 422
    stored = call(door, "poster").json["result"]["artifact"]
    assert call(door, "look_at", files=[{"artifact": stored}] * 10).json["success"] is True
    assert call(door, "look_at", files=[{"artifact": "nope"}]).error["code"] == "not_found"
    for wrong in ({}, {**one, "artifact": stored}, {"uri": "https://example.com/x.png"}, {"bytes": "%%%"}):
        assert call(door, "look_at", files=[wrong]).status == 422


@pytest.mark.requirement("AC-25")
@pytest.mark.parametrize(
    ("tool", "arguments", "hint"),
    [
        ("agent3_call", {"agentId": "studio", "job": "x"}, "metadata.job"),
        ("agent3_call", {"agentId": "studio", "timeout": 5}, "metadata.timeout"),
        ("agent3_call", {"agent": "studio", "message": "x"}, "agent is called agentId here"),
        ("agent3_call", {"agentId": "studio", "prompt": "x"}, "prompt is called message here"),
        ("agent3_call", {"agentId": "studio", "metadata": {"capability": "say"}}, "but next to it"),
        ("agent3_invoke", {"agentId": "studio", "capability": "say", "input": {}}, "call with agent3_call"),
        ("agent3_select", {"agentId": "studio", "message": "x"}, "call with agent3_call"),
        ("agent3_select", {"id": "studio"}, "id is called agentId here"),
        ("agent3_search", {"q": "pizza"}, "q is called query here"),
    ],
)
def test_a_wrong_parameter_points_to_the_right_place(
    door: Hosted, tool: str, arguments: dict[str, Any], hint: str
) -> None:
    async def story(client: Client) -> None:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert result.structured_content is not None
        assert hint in result.structured_content["error"]
        (text,) = result.content
        assert isinstance(text, wire.TextContent)
        assert hint in text.text

    mcp(door, story)


def test_what_a_model_reads_of_the_five_tools_is_short_and_refuses_nothing_that_they_take() -> None:
    """It is part of every conversation. What it leaves out is checked all the same."""
    told = {text.name: {"description": text.description, "inputSchema": text.shown_schema()} for text in TOOLS}
    assert count_tokens(told) < 1_400
    for text in TOOLS:
        shown = text.shown_schema()
        assert shown["properties"].keys() == text.input_schema["properties"].keys()
        assert shown.get("required") == text.input_schema.get("required")
    file = {"bytes": "aGk=", "mediaType": "text/plain", "name": "x"}
    callback = {"url": "https://example.com/", "token": "t", "events": ["completed"]}
    full = {
        "agentId": "a",
        "message": "m",
        "capability": "c",
        "input": {"x": 1},
        "files": [file],
        "metadata": {"timeout": 1, "retries": 0, "callback": callback, "answers": {"q": 1}},
    }
    schema.compile(next(text for text in TOOLS if text.name == "agent3_call").shown_schema()).check(full)


@pytest.mark.parametrize(
    ("kind", "pattern", "among"),
    [
        ("image/png", "image/png", True),
        ("image/png", "image/*", True),
        ("image/png", "*/*", True),
        ("image/png", "*", True),
        ("application/ld+json", "application/*+json", True),
        ("image/png", "text/*", False),
        ("image/png", "image/p", False),
        ("a/b", "a/b*/b", False),
        ("image/png", "*a" * 9, False),
        ("image/png", "[i]mage/png", False),
    ],
)
def test_a_media_type_is_among_those_that_a_pattern_means(kind: str, pattern: str, among: bool) -> None:
    assert is_among(kind, pattern) is among
