"""Both adapters against a server that speaks their vendors' wire formats and refuses what they refuse."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from threading import Event
from typing import Any, TypeAlias

import pytest

from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    NotFound,
    RateLimited,
    RequestError,
    SetupError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.identity.secrets import EnvironmentVault, Secret
from agent3.llm import (
    Anthropic,
    Assistant,
    Image,
    Message,
    OpenAICompatible,
    Price,
    Reply,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
    complete_sync,
)
from tests.support.llm_server import KEY, Call, LLMServer, Turn

Model: TypeAlias = OpenAICompatible | Anthropic
Maker: TypeAlias = Callable[..., Model]
HELLO: list[Message] = [User("hello")]
SEARCH = Tool("search", "Finds things", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})


def openai_at(server: LLMServer, **options: Any) -> OpenAICompatible:
    return OpenAICompatible(f"{server.url}/v1", "gpt-test", Secret(KEY), **options)


def anthropic_at(server: LLMServer, **options: Any) -> Anthropic:
    return Anthropic("claude-test", Secret(KEY), base_url=server.url, **options)


both = pytest.mark.parametrize("make", [openai_at, anthropic_at], ids=["openai", "anthropic"])
in_both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def asking(model: Model, use: Callable[[Model], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(60), model:
            return await use(model)

    return asyncio.run(within())


def completed(model: Model, messages: list[Message], tools: list[Tool], streamed: bool, **options: Any) -> Reply:
    heard: list[str] = []
    if streamed:
        options["on_text"] = heard.append
    reply: Reply = asking(model, lambda one: one.complete(messages, tools, **options))
    assert not streamed or "".join(heard) == reply.text
    return reply


def failing(model: Model, streamed: bool = False, on_text: Callable[[str], None] | None = None) -> Agent3Error:
    async def attempt(one: Model) -> Agent3Error:
        with pytest.raises(Agent3Error) as caught:
            await one.complete(HELLO, on_text=on_text or ((lambda _: None) if streamed else None))
        return caught.value

    error: Agent3Error = asking(model, attempt)
    return error


# --- answers ----------------------------------------------------------------------------------------------------------


@both
@in_both_ways
def test_a_text_comes_back_with_its_tokens_and_its_cost(make: Maker, streamed: bool) -> None:
    with LLMServer(Turn("Hello, world.", usage=(1000, 500))) as server:
        price = Price(input=2.0, output=8.0, cached=0.5)
        reply = completed(make(server, price=price), HELLO, [], streamed)
    assert reply.text == "Hello, world."
    assert reply.finish == "stop"
    assert reply.calls == ()
    assert (reply.usage.input, reply.usage.output, reply.usage.cached) == (1000, 500, 4)
    assert reply.usage.cost == pytest.approx((996 * 2.0 + 4 * 0.5 + 500 * 8.0) / 1e6)


@both
def test_a_stream_is_told_piece_by_piece(make: Maker) -> None:
    heard: list[str] = []
    with LLMServer("abcdef") as server:
        asking(make(server), lambda one: one.complete(HELLO, on_text=heard.append))
    assert heard == ["abc", "def"]


@both
@in_both_ways
def test_calls_come_back_several_at_once(make: Maker, streamed: bool) -> None:
    turn = Turn("Let me see.", calls=(Call("search", {"q": "a"}), Call("search", {"q": "ü"}), Call("now")))
    with LLMServer(turn) as server:
        reply = completed(make(server), HELLO, [SEARCH, Tool("now")], streamed)
    assert [(one.name, one.arguments, one.fault) for one in reply.calls] == [
        ("search", {"q": "a"}, ""),
        ("search", {"q": "ü"}, ""),
        ("now", {}, ""),
    ]
    assert len({one.id for one in reply.calls}) == 3
    assert reply.finish == "tool_calls"
    assert reply.text == "Let me see."


@both
@in_both_ways
def test_names_that_no_vendor_can_spell_go_there_and_come_back(make: Maker, streamed: bool) -> None:
    odd = Tool("weather.example/forecast for " + "ä" * 80)
    with LLMServer() as server:
        names = spelled(make(server), server, [odd, Tool("plain")])
        server.turns += [Turn(calls=(Call(names[0]), Call(names[1])))]
        server._served = 1
        reply = completed(make(server), HELLO, [odd, Tool("plain")], streamed)
    assert [one.name for one in reply.calls] == [odd.name, "plain"]


def spelled(model: Model, server: LLMServer, tools: list[Tool]) -> list[str]:
    """The names as the vendor is told them."""
    server.turns.append(Turn("ok"))
    completed(model, HELLO, tools, False)
    sent = server.seen[-1].body["tools"]
    return [one.get("name") or one["function"]["name"] for one in sent]


@pytest.mark.parametrize(
    ("make", "streamed"),
    [(openai_at, False), (openai_at, True), (anthropic_at, True)],  # Anthropic sends an object where it does not stream
    ids=["openai-whole", "openai-streamed", "anthropic-streamed"],
)
def test_arguments_that_are_no_json_are_a_fault_and_no_error(make: Maker, streamed: bool) -> None:
    finish = "length" if make is openai_at else "max_tokens"
    with LLMServer(Turn(calls=(Call("search", written='{"q": "a'),), finish=finish)) as server:
        reply = completed(make(server), HELLO, [SEARCH], streamed)
    (call,) = reply.calls
    assert call.arguments == {}
    assert "not valid JSON" in call.fault
    assert '{"q": "a' in call.fault
    assert reply.finish == "length"


@both
def test_a_whole_conversation_is_sent_as_the_vendor_wants_it(make: Maker) -> None:
    picture = Image(b"\x89PNG", media_type="image/png")
    calls = (ToolCall("call_a", "search", {"q": "a"}), ToolCall("call_b", "camera.take", {}))
    talk: list[Message] = [
        System("Be brief."),
        User((Text("What is this?"), picture, Image(url="https://example.org/cat.png"))),
        Assistant("", calls),
        ToolResult("call_a", "search", "nothing", error=True),
        ToolResult("call_b", "camera.take", (Text("taken"), picture)),
        User("And now?"),
    ]
    with LLMServer("A cat.") as server:
        assert completed(make(server), talk, [SEARCH], False).text == "A cat."
        (seen,) = server.seen
    sent = json.dumps(seen.body)
    assert sent.count("iVBORw==") == 2
    assert "https://example.org/cat.png" in sent


def test_thoughts_go_back_to_where_they_came_from_in_their_order() -> None:
    turn = Turn("Hm.", thought="I should search.", calls=(Call("search", {"q": "a"}),))
    with LLMServer(turn, turn, "Done.") as server:
        whole = completed(anthropic_at(server), HELLO, [SEARCH], False)
        reply = completed(anthropic_at(server), HELLO, [SEARCH], True)
        assert whole.kept == reply.kept
        assert [one["type"] for one in reply.kept] == ["thinking", "text", "tool_use"]
        talk = [*HELLO, reply.message(), ToolResult(reply.calls[0].id, "search", "found")]
        assert completed(anthropic_at(server), talk, [SEARCH], False).text == "Done."
        kept = server.seen[-1].body["messages"][1]["content"]
    assert kept[0] == {"type": "thinking", "thinking": "I should search.", "signature": "c2lnbmVk"}
    assert kept[2] == {"type": "tool_use", "id": "toolu_0", "name": "search", "input": {"q": "a"}}


@both
def test_options_are_sent_under_the_vendors_own_names(make: Maker) -> None:
    with LLMServer("ok") as server:
        model = make(server, options={"seed": 7} if make is openai_at else {"top_k": 7})
        completed(model, HELLO, [], False, max_tokens=9, temperature=0.5, stop=["END"])
        (seen,) = server.seen
    stop = "stop" if make is openai_at else "stop_sequences"
    assert (seen.body["max_tokens"], seen.body["temperature"], seen.body[stop]) == (9, 0.5, ["END"])
    assert 7 in seen.body.values()


def test_only_a_temperature_asks_the_older_version_of_the_api() -> None:
    with LLMServer("a", "b") as server:
        completed(anthropic_at(server), HELLO, [], False)
        completed(anthropic_at(server), HELLO, [], False, temperature=0.0)
        versions = [one.headers["anthropic-version"] for one in server.seen]
    assert versions == ["2026-10-21", "2023-06-01"]


def test_azure_is_asked_by_deployment_version_and_its_own_header() -> None:
    with LLMServer("ok") as server:
        model = OpenAICompatible(server.url, "my gpt", Secret(KEY), api_version="2024-10-21")
        completed(model, HELLO, [], False, max_tokens=5)
        (seen,) = server.seen
    assert seen.path == "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    assert seen.headers["api-key"] == KEY
    assert "authorization" not in seen.headers
    assert seen.body["max_completion_tokens"] == 5


def test_a_server_without_a_key_gets_none() -> None:
    with LLMServer("ok", key="") as server:
        completed(OpenAICompatible(f"{server.url}/v1/", "llama"), HELLO, [], False)
    assert "authorization" not in server.seen[0].headers


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [{"message": {"tool_calls": [{"function": {"name": "search", "arguments": {"q": "x"}}}]}}]},
        {
            "choices": [
                {
                    "message": {
                        "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": '"{\\"q\\": \\"x\\"}"'}}]
                    }
                }
            ]
        },
    ],
    ids=["as an object", "as JSON in JSON"],
)
def test_arguments_are_read_as_small_servers_write_them(odd: dict[str, Any]) -> None:
    with LLMServer(Turn(body=json.dumps(odd).encode())) as server:
        reply = completed(openai_at(server), HELLO, [SEARCH], False)
    assert reply.calls[0].arguments == {"q": "x"}
    assert reply.calls[0].id
    assert reply.finish == "tool_calls"


def test_streamed_calls_that_all_have_the_index_zero_stay_apart() -> None:
    def piece(key: str, arguments: str) -> str:
        call = {"index": 0, "id": key, "function": {"name": "search", "arguments": arguments}}
        return f"data: {json.dumps({'choices': [{'delta': {'tool_calls': [call]}}]})}\n\n"

    end = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: {"choices": null, "usage": null}\n\n'
    body = (piece("a", '{"q": "1"}') + piece("b", '{"q": "2"}') + end).encode()
    with LLMServer(Turn(body=body, headers={"Content-Type": "text/event-stream"})) as server:
        reply = completed(openai_at(server), HELLO, [SEARCH], True)
    assert [one.arguments["q"] for one in reply.calls] == ["1", "2"]


def test_a_server_that_does_not_stream_is_heard_all_the_same() -> None:
    body = b'{"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}], "usage": {"cost": 0.25}}'
    with LLMServer(Turn(body=body)) as server:
        reply = completed(openai_at(server), HELLO, [], True)
    assert reply.text == "all at once"
    assert reply.usage.cost == 0.25  # told by the vendor itself


# --- failures ---------------------------------------------------------------------------------------------------------

STATUSES = [
    (400, "invalid_request_error", RequestError),
    (401, "authentication_error", TargetRefused),
    (402, "billing_error", TargetRefused),
    (403, "permission_error", TargetRefused),
    (404, "not_found_error", NotFound),
    (413, "request_too_large", TooLarge),
    (429, "rate_limit_error", RateLimited),
    (500, "api_error", Unavailable),
    (503, "server_error", Unavailable),
    (529, "overloaded_error", Unavailable),
    (302, "moved", MalformedResponse),
]


@both
@in_both_ways
@pytest.mark.parametrize(("status", "kind", "error"), STATUSES)
def test_each_status_is_its_error(
    make: Maker, streamed: bool, status: int, kind: str, error: type[Agent3Error]
) -> None:
    with LLMServer(Turn("said why", status=status, error=kind)) as server:
        caught = failing(make(server, retries=0), streamed)
    assert type(caught) is error
    assert caught.data["status"] == status
    assert f"answered {status}" in caught.message
    assert ("said why" in caught.message) is (error is not TargetRefused)


@both
def test_a_rate_limit_says_when_to_come_again(make: Maker) -> None:
    with LLMServer(
        Turn(status=429, headers={"Retry-After": "7"}),
        Turn(status=429, headers={"retry-after-ms": "1500"}),
        Turn(status=503, headers={"retry-after": formatdate(time.time() + 3600, usegmt=True)}),
        Turn(status=429, headers={"retry-after": "soon"}),
    ) as server:
        waits = [failing(make(server, retries=0)).retry_after for _ in range(4)]
    assert waits[:2] == [7.0, 1.5]
    assert waits[2] == pytest.approx(3600, abs=300)
    assert waits[3] is None


@both
@in_both_ways
def test_what_the_vendor_put_off_is_asked_again(make: Maker, streamed: bool) -> None:
    again = {"retry-after": "0"}
    with LLMServer(Turn(status=429, headers=again), Turn(status=529, headers=again), "at last") as server:
        assert completed(make(server), HELLO, [], streamed).text == "at last"
        assert len(server.seen) == 3


@both
def test_it_is_asked_again_so_often_and_no_more(make: Maker) -> None:
    with LLMServer(*[Turn(status=500, headers={"retry-after": "0"})] * 9) as server:
        assert isinstance(failing(make(server, retries=1)), Unavailable)
        assert len(server.seen) == 2


@both
@pytest.mark.parametrize(
    "turn",
    [
        Turn(status=400),
        Turn(status=401),
        Turn(status=429, headers={"retry-after": "3600"}),
        Turn(status=429, error="insufficient_quota"),
    ],
    ids=["wrong", "refused", "an hour", "no credit"],
)
def test_what_will_not_get_better_is_not_asked_again(make: Maker, turn: Turn) -> None:
    with LLMServer(turn, "never") as server:
        failing(make(server, timeout=7200))
        assert len(server.seen) == 1


@both
def test_a_stream_that_breaks_off_is_told_and_not_repeated(make: Maker) -> None:
    heard: list[str] = []
    drop = 2 if make is openai_at else 4
    with LLMServer(Turn("abcdef", drop=drop), "never") as server:
        error = failing(make(server), on_text=heard.append)
        assert len(server.seen) == 1
    assert isinstance(error, Unavailable)
    assert "in the middle" in error.message
    assert heard == ["abc"]


@both
def test_an_error_inside_a_stream_is_that_error_and_not_repeated_after_text(make: Maker) -> None:
    heard: list[str] = []
    drop = 2 if make is openai_at else 4
    with LLMServer(Turn("abcdef", drop=drop, error="overloaded_error"), "never") as server:
        error = failing(make(server), on_text=heard.append)
        assert len(server.seen) == 1
    assert isinstance(error, Unavailable)
    assert error.data["status"] == 529
    assert heard == ["abc"]


@both
def test_an_error_inside_a_stream_before_any_text_is_asked_again(make: Maker) -> None:
    with LLMServer(Turn("abcdef", drop=1, error="overloaded_error"), "now it works") as server:
        assert completed(make(server), HELLO, [], True).text == "now it works"
        assert len(server.seen) == 2


@both
def test_a_stream_that_ends_well_formed_but_too_early_is_no_answer(make: Maker) -> None:
    body = b'data: {"choices": [{"delta": {"content": "abc"}}], "type": "ping"}\n\n'
    with LLMServer(Turn(body=body, headers={"Content-Type": "text/event-stream"})) as server:
        assert isinstance(failing(make(server), streamed=True), Unavailable)


@both
@in_both_ways
@pytest.mark.parametrize("garbage", [b"<html>hello</html>", b"[]", b"{}", b"\xff\xfe", b"[" * 5000])
def test_garbage_is_a_malformed_response(make: Maker, streamed: bool, garbage: bytes) -> None:
    with LLMServer(Turn(body=garbage)) as server:
        assert type(failing(make(server), streamed)) is MalformedResponse


def test_an_error_in_an_answer_of_status_200_is_an_error() -> None:
    body = b'{"error": {"code": 429, "message": "upstream is busy"}}'
    with LLMServer(Turn(body=body)) as server:
        assert isinstance(failing(openai_at(server, retries=0)), RateLimited)


@both
@in_both_ways
def test_silence_is_a_timeout(make: Maker, streamed: bool) -> None:
    with LLMServer(Turn("late", wait=Event())) as server:
        error = failing(make(server, timeout=0.3), streamed)
        server.turns[0].wait.set()  # type: ignore[union-attr]
    assert isinstance(error, CallTimeout)


@both
def test_a_host_that_is_down_is_unavailable(make: Maker) -> None:
    with LLMServer() as server:
        pass
    assert isinstance(failing(make(server, retries=1)), Unavailable)


@both
def test_what_json_cannot_carry_is_refused_before_it_is_sent(make: Maker) -> None:
    async def attempt(one: Model) -> None:
        with pytest.raises(RequestError, match="JSON cannot represent"):
            await one.complete([User("half \ud800")])

    with LLMServer() as server:
        asking(make(server), attempt)
        assert server.seen == []


@both
def test_a_conversation_that_is_too_long_says_so(make: Maker) -> None:
    with LLMServer(Turn("prompt is too long: 210000 tokens > 200000 maximum", status=400)) as server:
        assert isinstance(failing(make(server)), TooLarge)


# --- secrets ----------------------------------------------------------------------------------------------------------


@both
def test_the_key_is_never_in_an_error_or_a_repr(make: Maker) -> None:
    with LLMServer(Turn(f"you sent {KEY}", status=400)) as server:
        echoed = failing(make(server))
        server.key = "another"
        model = make(server)
        refused = failing(model)
    assert isinstance(refused, TargetRefused)
    for told in (repr(model), repr(vars(model._endpoint)), str(refused), str(refused.to_dict()), str(echoed)):
        assert KEY not in told
    assert "you sent ***" in str(echoed)


def test_a_key_is_a_reference_and_a_line_end_does_not_hurt() -> None:
    vault = EnvironmentVault({"MY_KEY": f"{KEY}\n"})
    with LLMServer("ok") as server:
        model = OpenAICompatible(f"{server.url}/v1", "m", "env:MY_KEY", vault=vault)
        assert completed(model, HELLO, [], False).text == "ok"


def test_a_key_in_the_place_of_its_reference_is_refused_and_not_shown() -> None:
    with LLMServer() as server:
        error = failing(OpenAICompatible(f"{server.url}/v1", "m", "sk-live-abcdef"))
        assert server.seen == []
    assert isinstance(error, SetupError)
    assert "abcdef" not in str(error)


@pytest.mark.parametrize("url", ["ftp://x", "localhost:11434", "https://u:p@host/v1", "https://host/v1?key=1"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(SetupError, match="base_url"):
        OpenAICompatible(url, "m")


# --- synchronous code, and imports ------------------------------------------------------------------------------------


@both
def test_synchronous_code_asks_in_the_same_way(make: Maker) -> None:
    with LLMServer("one", "two") as server:
        model = make(server)
        try:
            assert complete_sync(model, HELLO).text == "one"
            assert complete_sync(model, HELLO, on_text=lambda _: None).text == "two"
        finally:
            model.close()


def test_importing_it_loads_no_http_client() -> None:
    code = "import agent3.llm, sys; agent3.llm.Anthropic('m'); print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "False"


def test_usage_adds_up_and_an_unknown_cost_stays_unknown() -> None:
    assert Usage(1, 2, cost=0.5) + Usage(3, 4, cost=0.25) == Usage(4, 6, cost=0.75)
    assert (Usage(1, 2, cost=0.5) + Usage(1, 1)).cost is None
