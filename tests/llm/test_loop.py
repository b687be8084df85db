"""The function-calling loop: with a scripted model for its rules, and over real HTTP from end to end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent3.definitions import AgentCard
from agent3.errors import AccessError, CallTimeout, RateLimited, SetupError, Unavailable
from agent3.identity.secrets import Secret
from agent3.llm import (
    Anthropic,
    Conversation,
    Image,
    LoopEvent,
    OpenAICompatible,
    Price,
    Reply,
    Scripted,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
    run,
    run_sync,
)
from agent3.model import Done, Failed, Needs, Part, Question, Working
from agent3.schema import from_function
from tests.support.llm_server import KEY, Call, LLMServer, Turn

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
DOUBLE = Tool("double", "Twice a number", NUMBER)


async def double(name: str, arguments: dict[str, Any]) -> Any:
    return arguments["n"] * 2


def call(name: str = "double", **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)


def held(
    llm: Scripted, invoke: Callable[[str, dict[str, Any]], Awaitable[Any]] = double, **options: Any
) -> Conversation:
    async def bounded() -> Conversation:
        async with asyncio.timeout(60):
            return await run(llm, "please", options.pop("tools", [DOUBLE]), invoke, **options)

    return asyncio.run(bounded())


def results(talk: Conversation) -> list[ToolResult]:
    return [one for one in talk.messages if isinstance(one, ToolResult)]


def error_of(result: ToolResult) -> dict[str, Any]:
    assert result.error
    assert isinstance(result.content, str)
    told: dict[str, Any] = json.loads(result.content)["error"]
    return told


# --- what it does -----------------------------------------------------------------------------------------------------


def test_the_model_gets_tools_and_what_it_asks_for_is_run() -> None:
    llm = Scripted(call(n=21), "It is 42.")
    talk = held(llm)
    assert (talk.text, talk.stopped, talk.steps) == ("It is 42.", "done", 2)
    assert llm.asked[0].tools == (DOUBLE,)
    (result,) = results(talk)
    assert (result.content, result.error, result.call) == ("42", False, llm.asked[1].messages[1].calls[0].id)  # type: ignore[union-attr]
    assert talk.usage == Usage(20, 10, cost=0.0)


def test_calls_of_one_reply_run_at_once_and_answer_in_their_order() -> None:
    together = asyncio.Barrier(3)

    async def meet(name: str, arguments: dict[str, Any]) -> Any:
        await together.wait()  # passes only when all three are here
        return arguments["n"]

    talk = held(Scripted([call(n=1), call(n=2), call(n=3)], "done"), meet, seconds=60)
    assert [one.content for one in results(talk)] == ["1", "2", "3"]


def test_no_more_run_at_once_than_allowed() -> None:
    running, most = 0, 0

    async def counted(name: str, arguments: dict[str, Any]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    held(Scripted([call(n=n) for n in range(6)], "done"), counted, parallel=2)
    assert most == 2


def test_a_listener_hears_everything_in_order() -> None:
    heard: list[LoopEvent] = []
    said: list[str] = []
    held(Scripted(call(n=1), "end"), on_event=heard.append, on_text=said.append)
    assert [(one.kind, one.step) for one in heard] == [("reply", 1), ("call", 1), ("result", 1), ("reply", 2)]
    assert heard[2].result is not None
    assert heard[2].result.content == "2"
    assert said == ["end"]


# --- what the model is told of errors ---------------------------------------------------------------------------------


def test_arguments_that_do_not_fit_are_told_with_every_fault_and_not_run() -> None:
    async def never(name: str, arguments: dict[str, Any]) -> Any:
        raise AssertionError("must not be called")

    talk = held(Scripted(call(n=True, m=1), "sorry"), never)
    told = error_of(results(talk)[0])
    assert told["code"] == "invalid_input"
    assert told["retryable"] is False
    assert {one["path"] for one in told["errors"]} >= {"n"}
    assert "Correct the arguments" in told["hint"]


def test_a_model_corrects_itself_by_what_it_is_told() -> None:
    def correct(asked: Any) -> ToolCall:
        assert '"invalid_input"' in asked.messages[-1].content
        return call(n=4)

    talk = held(Scripted(call(n="four"), correct, "8"))
    assert talk.text == "8"
    assert [one.error for one in results(talk)] == [True, False]


def test_arguments_that_are_no_json_are_told() -> None:
    broken = ToolCall("1", "double", fault="The arguments are not valid JSON (x): {")
    cut = Reply(calls=(broken,), finish="length")
    talk = held(Scripted(broken, cut, "sorry"))
    first, second = (error_of(one) for one in results(talk))
    assert first["code"] == "parse_error"
    assert "JSON object" in first["hint"]
    assert "cut off" in second["message"]


def test_an_unknown_tool_is_told_with_the_nearest_name() -> None:
    talk = held(Scripted(call("dubble", n=1), call("fly"), "sorry"))
    near, far = (error_of(one) for one in results(talk))
    assert near["code"] == "capability_not_found"
    assert near["nearest"] == ["double"]
    assert "The tools are: double." in far["message"]


@pytest.mark.parametrize(
    ("error", "code", "retryable", "word"),
    [
        (RateLimited("slow down", retry_after=3), "rate_limited", True, "Wait"),
        (Unavailable("down"), "unavailable", True, "later"),
        (CallTimeout("slow"), "timeout", True, "repeat"),
        (AccessError("no"), "forbidden", False, "do not try again"),
        (ValueError("n is odd"), "target_failed", False, "n is odd"),
    ],
)
def test_a_tool_that_fails_is_told_by_its_kind(error: Exception, code: str, retryable: bool, word: str) -> None:
    async def fail(name: str, arguments: dict[str, Any]) -> Any:
        raise error

    talk = held(Scripted(call(n=1), "sorry"), fail)
    told = error_of(results(talk)[0])
    assert (told["code"], told["retryable"]) == (code, retryable)
    assert word in json.dumps(told)
    assert told.get("retry_after") == (3 if code == "rate_limited" else None)
    assert talk.stopped == "done"


def test_a_tool_that_is_cancelled_from_within_does_not_cancel_the_conversation() -> None:
    async def broken(name: str, arguments: dict[str, Any]) -> Any:
        raise asyncio.CancelledError

    talk = held(Scripted(call(n=1), "sorry"), broken)
    assert (talk.text, error_of(results(talk)[0])["code"]) == ("sorry", "canceled")


def test_the_same_failing_call_is_not_run_for_ever() -> None:
    runs: list[int] = []

    async def fail(name: str, arguments: dict[str, Any]) -> Any:
        runs.append(arguments["n"])
        raise Unavailable("down")

    talk = held(Scripted(*[call(n=1)] * 4, call(n=2), "sorry"), fail)
    assert runs == [1, 1, 2]
    given_up = error_of(results(talk)[3])
    assert given_up["retryable"] is False
    assert given_up["code"] == "unavailable"
    assert "failed 2 times" in given_up["message"]
    assert "Change the arguments" in given_up["hint"]


def test_the_same_call_that_succeeds_is_run_as_often_as_asked() -> None:
    talk = held(Scripted(*[call(n=1)] * 5, "done"))
    assert [one.error for one in results(talk)] == [False] * 5


# --- what tools return ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "content", "error"),
    [
        ("text", "text", False),
        ({"a": [1, None]}, '{"a":[1,null]}', False),
        (None, "null", False),
        ("half \ud800", "half ?", False),
        (Text("t"), (Text("t"),), False),
        (Done((Part(text="plain"),)), "plain", False),
        (Done((Part(data={"a": 1}),)), '{"a":1}', False),
        (
            Done((Part(text="see"), Part(raw=b"png", media_type="image/png"))),
            (Text("see"), Image(b"png")),
            False,
        ),
        (Working(job="j1"), '{"status":"working","job":"j1","text":null}', False),
    ],
)
def test_results_reach_the_model_in_the_form_they_have(returned: Any, content: Any, error: bool) -> None:
    async def give(name: str, arguments: dict[str, Any]) -> Any:
        return returned

    (result,) = results(held(Scripted(call(n=1), "ok"), give))
    assert (result.content, result.error) == (content, error)


@pytest.mark.parametrize(
    "returned",
    [
        Failed("rate_limited", "slow", retryable=True, retry_after=2.0),
        Needs((Question("q", "Which city?"),), job="j1"),
        {"status": "error", "error": {"code": "target_failed", "message": "x"}},
    ],
)
def test_outcomes_that_are_no_result_are_errors(returned: Any) -> None:
    async def give(name: str, arguments: dict[str, Any]) -> Any:
        return returned

    (result,) = results(held(Scripted(call(n=1), "ok"), give))
    assert result.error
    assert "code" in error_of(result)


def test_a_pydantic_model_is_shown_by_its_fields() -> None:
    async def give(name: str, arguments: dict[str, Any]) -> Any:
        return [AgentCard(agent_id="a", name="A")]

    (result,) = results(held(Scripted(call(n=1), "ok"), give))
    assert isinstance(result.content, str)
    assert json.loads(result.content)[0]["agent_id"] == "a"


def test_a_large_result_is_cut_and_says_so() -> None:
    async def much(name: str, arguments: dict[str, Any]) -> Any:
        return "x" * 1000

    (result,) = results(held(Scripted(call(n=1), "ok"), much, max_result=100))
    assert isinstance(result.content, str)
    assert result.content.startswith("x" * 100 + "\n[Cut: 900 more characters.")


# --- where it ends ----------------------------------------------------------------------------------------------------


def assert_whole(talk: Conversation) -> None:
    """Every call has its result, so that the conversation can be gone on with."""
    asked = [one.id for message in talk.messages for one in getattr(message, "calls", ())]
    assert asked == [one.call for one in results(talk)]


def test_it_stops_at_the_steps_and_runs_nothing_that_nobody_would_read() -> None:
    runs: list[int] = []

    async def count(name: str, arguments: dict[str, Any]) -> Any:
        runs.append(arguments["n"])

    talk = held(Scripted(*[call(n=n) for n in range(9)]), count, max_steps=3)
    assert (talk.stopped, talk.steps, runs) == ("steps", 3, [0, 1])
    assert error_of(results(talk)[-1])["code"] == "canceled"
    assert_whole(talk)


def test_it_stops_at_the_tokens() -> None:
    talk = held(Scripted(*[call(n=n) for n in range(9)]), max_tokens_total=40)
    assert (talk.stopped, talk.steps, talk.usage.tokens) == ("tokens", 3, 45)
    assert_whole(talk)


def test_it_stops_at_the_cost() -> None:
    llm = Scripted(*[call(n=n) for n in range(9)], usage=Usage(1, 1, cost=0.4))
    talk = held(llm, max_cost=1.0)
    assert (talk.stopped, talk.steps) == ("cost", 3)
    assert_whole(talk)


def test_a_cap_on_cost_without_a_price_is_no_cap_and_refused() -> None:
    with pytest.raises(SetupError, match="price"):
        held(Scripted(call(n=1), "x", usage=Usage(1, 1)), max_cost=1.0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be pushed ahead, so that a deadline passes without waiting for it."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_it_stops_when_time_is_up_in_a_tool_which_is_cancelled() -> None:
    ended: list[str] = []
    heard: list[LoopEvent] = []
    loop = JumpingLoop()

    def listen(event: LoopEvent) -> None:
        heard.append(event)
        if event.kind == "result":
            loop.ahead = 1_000.0

    async def slow(name: str, arguments: dict[str, Any]) -> Any:
        if arguments["n"] == 1:
            return "quick"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def scenario() -> Conversation:
        llm = Scripted([call(n=1), call(n=2)], "never")
        talk = await run(llm, "go", [DOUBLE], slow, seconds=500, on_event=listen)
        assert ended == ["cancelled"]  # here already, not only when the event loop closes
        return talk

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        talk = runner.run(scenario())
    assert talk.stopped == "time"
    assert [one.kind for one in heard].count("result") == 1
    first, second = results(talk)
    assert first.content == "quick"
    assert error_of(second)["code"] == "canceled"
    assert_whole(talk)


def test_it_stops_when_time_is_up_in_the_model() -> None:
    class Slow:
        async def complete(self, *_: Any, **__: Any) -> Reply:
            await asyncio.sleep(60)
            raise AssertionError

    talk = asyncio.run(run(Slow(), "hello", [], double, seconds=0.1))
    assert (talk.stopped, talk.steps, talk.text) == ("time", 0, "")
    assert talk.messages == (User("hello"),)


def test_an_error_of_the_model_is_raised_even_a_timeout() -> None:
    with pytest.raises(CallTimeout):
        held(Scripted(CallTimeout("the vendor is slow")))


def test_cancelling_it_cancels_the_tools_that_run() -> None:
    ended: list[str] = []

    async def scenario() -> None:
        started = asyncio.Event()

        async def slow(name: str, arguments: dict[str, Any]) -> Any:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("cancelled")

        task = asyncio.create_task(run(Scripted(call(n=1), "x"), "go", [DOUBLE], slow))
        await asyncio.wait_for(started.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert ended == ["cancelled"]


# --- synchronous code -------------------------------------------------------------------------------------------------


def test_plain_functions_run_in_threads_side_by_side() -> None:
    together = threading.Barrier(2, timeout=60)

    def meet(name: str, arguments: dict[str, Any]) -> Any:
        together.wait()
        return arguments["n"]

    talk = run_sync(Scripted([call(n=1), call(n=2)], "met"), "go", [DOUBLE], meet, seconds=60)
    assert (talk.text, [one.content for one in results(talk)]) == ("met", ["1", "2"])
    assert run_sync(Scripted(call(n=4), "8"), "go", [DOUBLE], double).text == "8"


def test_a_script_that_is_at_its_end_says_so() -> None:
    with pytest.raises(SetupError, match="one more"):
        held(Scripted(call(n=1)))


# --- from end to end --------------------------------------------------------------------------------------------------


def forecast(city: str, days: int = 1) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "sunny": days < 3}


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_model_calls_a_real_function_and_recovers_from_every_mistake(vendor: str, streamed: bool) -> None:
    schema = from_function(forecast)
    tools = [Tool("weather.example/forecast", schema.description, dict(schema.input)), DOUBLE]

    async def invoke(name: str, arguments: dict[str, Any]) -> Any:
        return await double(name, arguments) if name == "double" else forecast(**arguments)

    async def scenario(server: LLMServer) -> Conversation:
        model: OpenAICompatible | Anthropic
        price = Price(input=1.0, output=2.0)
        if vendor == "openai":
            model = OpenAICompatible(f"{server.url}/v1", "m", Secret(KEY), price=price)
        else:
            model = Anthropic("m", Secret(KEY), base_url=server.url, price=price)
        heard: list[str] = []
        async with asyncio.timeout(60), model:
            return await run(model, "Weather?", tools, invoke, max_cost=1.0, on_text=heard.append if streamed else None)

    with LLMServer() as server:
        wire = "weather_example_forecast_" + _hash("weather.example/forecast")
        server.turns += [
            Turn(calls=(Call(wire, {"town": "Rome"}), Call("dubble", {"n": 1}))),
            Turn(calls=(Call(wire, {"city": "Atlantis"}), Call("double", {"n": 3}))),
            Turn(calls=(Call(wire, {"city": "Rome", "days": 2}),)),
            Turn("Sunny in Rome."),
        ]
        talk = asyncio.run(scenario(server))
        sent = [json.dumps(one.body) for one in server.seen]
    assert (talk.text, talk.stopped, talk.steps) == ("Sunny in Rome.", "done", 4)
    assert talk.usage.cost == pytest.approx(4 * (20 * 1.0 + 7 * 2.0) / 1e6)
    codes = [error_of(one)["code"] if one.error else "" for one in results(talk)]
    assert codes == ["invalid_input", "capability_not_found", "target_failed", "", ""]
    assert "no such city" in sent[2]
    assert "sunny" in sent[3]
    assert {one.name for one in results(talk)} == {"weather.example/forecast", "dubble", "double"}


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
