"""``Client`` and ``AsyncClient`` against a real gateway, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest

from agent3 import AsyncClient, Client, Context, LocalAgent, ValidationError
from agent3.client.client import Events
from agent3.client.types import Hit, Result
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    CallTimeout,
    Conflict,
    RateLimited,
    SetupError,
    TargetError,
    Unauthenticated,
    Unavailable,
)
from agent3.settings import Client as Known
from agent3.settings import Limits, Settings, Storage
from tests.support.gateway import Hosted, gateway, hosted

desk = LocalAgent("desk", description="Does things for tests of the client.")
holding = threading.Event()


@desk.capability(read_only=True)
async def echo(text: str) -> str:
    """Say it back."""
    return text


@desk.capability(read_only=True)
async def both(first: int, second: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": first + second}


@desk.capability
async def fail(text: str) -> str:
    """Fail."""
    raise TargetError(f"no {text}")


@desk.capability(replay=True)
async def form(ctx: Context, text: str) -> str:
    """Ask two things at once, then a third."""
    one, two = await asyncio.gather(ctx.ask("One?", int), ctx.ask("Two?", Literal["a", "b"]))
    return f"{text} {one} {two} {await ctx.ask('Three?')}"


@desk.capability
async def forever(ctx: Context) -> str:
    """Ask for ever."""
    while True:
        await ctx.ask("And now?")


@desk.capability
async def pieces(count: int) -> AsyncIterator[str]:
    """Tell pieces."""
    for number in range(count):
        yield f"{number},"


large: list[Any] = []


@desk.capability
async def give() -> Any:
    """Give what the test set."""
    return large[0]


@desk.capability
async def file(size: int) -> bytes:
    """Give a file."""
    return bytes(size)


@desk.capability
async def looks(told: dict[str, Any]) -> dict[str, Any]:
    """Say it back."""
    return told


@desk.capability
async def hold() -> str:
    """Work until it is let go."""
    while not holding.is_set():
        await asyncio.sleep(0.02)
    return "let go"


@desk.capability
async def breaks(text: str) -> AsyncIterator[str]:
    """Tell a piece, then fail."""
    yield text
    raise TargetError("broken")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("client"), [desk]) as running:
        yield running


@pytest.fixture
def client(served: Hosted) -> Iterator[Client]:
    with Client(served.url) as made:
        yield made


def test_what_is_found_is_looked_at_and_called_as_it_is(client: Client) -> None:
    hit = client.search("add two numbers")[0]
    assert (hit.id, hit.name, hit.status) == ("desk", "desk", "active")
    about = client.select(hit)
    found = about.capability("both")
    assert found is not None
    assert (found.protocols, found.input_schema and found.input_schema["required"]) == (("local",), ["first", "second"])
    told = client.call(hit, capability="both", input={"first": 1, "second": 2})
    assert (told.value, told.text, told.status) == ({"sum": 3}, '{"sum": 3}', "done")
    assert told.parts[0].data == {"sum": 3}
    assert told.metadata["statusCode"] == 200
    assert client.feedback(hit, 4, "Good.").mean == 4.0
    assert [one.id for one in client.agents()] == ["desk"]
    assert client.select("desk").rating.count == 1


@pytest.mark.parametrize(
    ("body", "capability"),
    [
        ({"id": "time", "capability": "now", "description": "Tells it.", "signature": "now(zone)", "new": 1}, "now"),
        ({"id": "time", "capabilities": [{"name": "now"}]}, "now"),
        ({"id": "time", "capabilities": [{"name": "now"}, {"name": "then"}]}, None),
        ({"id": "time", "rating": {"count": 2, "mean": 4.5}}, None),
    ],
)
def test_hits_are_agents_or_capabilities(body: dict[str, Any], capability: str | None) -> None:
    hit = Hit.read(body)
    assert (hit.id, hit.capability, hit.raw) == ("time", capability, body)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"agent": "desc"}, AgentNotFound, "Did you mean 'desk'"),
        ({"agent": "desk", "capability": "both", "input": {"first": "x"}}, ValidationError, "second"),
        ({"agent": "desk", "capability": "fail", "message": "luck"}, TargetError, "no luck"),
        ({"agent": "desk", "capability": "hold", "timeout": 0.3}, CallTimeout, "desk"),
    ],
)
def test_what_fails_is_raised_by_its_kind(
    client: Client, wrong: dict[str, Any], error: type[Agent3Error], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.call(**wrong)


def test_questions_are_answered_one_by_one_together_or_by_a_function(client: Client) -> None:
    asked = client.call("desk", "x", capability="form")
    assert asked.status == "needs"
    assert [question.text for question in asked.questions] == ["One?", "Two?"]
    with pytest.raises(Conflict, match=r"it asks: One\? Two\?"):
        _ = asked.value
    with pytest.raises(ValidationError, match=r"no question 'zz'. Its questions are: q1, q2"):
        client.answer(asked, {"zz": 3})
    third = client.answer(asked, {"q1": 1, "q2": "b"})
    assert third.questions[0].text == "Three?"
    assert client.answer(third, "tea").text == "x 1 b tea"
    again = client.call("desk", "x", capability="form")
    first = client.answer(again, 1)
    assert [question.id for question in first.questions] == ["q2"]
    assert client.job(third).text == "x 1 b tea"

    answers = {"One?": 7, "Two?": "a", "Three?": "no"}
    seen = []

    def ask(question: Any) -> Any:
        seen.append(threading.current_thread().name)
        return answers[question.text]

    assert client.call("desk", "y", capability="form", ask=ask).text == "y 7 a no"
    assert "agent3-bridge" not in seen, "a function that blocks would hold everybody's loop"


def test_an_agent_that_asks_for_ever_ends(client: Client) -> None:
    told = client.call("desk", capability="forever", ask=lambda question: "more")
    assert told.status == "needs"
    client.cancel(told)
    with pytest.raises(Agent3Error, match="cancel"):
        client.job(told)


def test_a_stream_gives_the_events_and_then_the_result(client: Client) -> None:
    events = client.stream("desk", capability="pieces", input={"count": 3})
    assert [event.parts[0].text for event in events if event.kind == "artifact"] == ["0,", "1,", "2,"]
    assert events.result().text == "0,1,2,"
    again = client.follow(events.result(), after=2)
    assert [event.parts[0].text for event in again if event.kind == "artifact"] == ["2,"]
    passed_over = client.stream("desk", capability="pieces", input={"count": 2})
    assert passed_over.result().text == "0,1,"


def test_a_stream_that_fails_says_so_after_its_last_event(client: Client) -> None:
    events = client.stream("desk", "a piece", capability="breaks")
    assert next(events).kind == "artifact"
    with pytest.raises(TargetError, match="broken"):
        list(events)


def test_a_stream_with_a_question_ends_at_it_and_goes_on_after_the_answer(client: Client) -> None:
    events = client.stream("desk", "x", capability="form")
    result = events.result()
    assert [question.text for question in result.questions] == ["One?", "Two?"]
    assert client.answer(result, {"q1": 1, "q2": "b"}, ask=lambda question: "ok").text == "x 1 b ok"


def test_a_job_is_waited_for_and_cancelled(client: Client) -> None:
    holding.clear()
    job = client.call("desk", capability="hold", wait=False)
    assert job.status == "working"
    with pytest.raises(Conflict, match="still working"):
        _ = job.value
    with pytest.raises(CallTimeout, match=r"is still working after 0\.2 s"):
        client.wait(job, 0.2)
    holding.set()
    assert client.wait(job, 60).text == "let go"
    holding.clear()
    other = client.call("desk", capability="hold", wait=False)
    client.cancel(other)
    with pytest.raises(Agent3Error, match="cancel"):
        client.wait(other, 60)


def test_a_batch_keeps_the_order_and_one_failure_is_only_its_own(client: Client) -> None:
    calls: list[dict[str, Any]] = [
        {"agent": "desk", "capability": "echo", "input": {"text": str(number)}} for number in range(30)
    ]
    calls[7] = {"agent": "nobody", "message": "hello"}
    ended = client.batch(calls, parallel=4)
    assert [one.text for one in ended if isinstance(one, Result)] == [str(n) for n in range(30) if n != 7]
    assert isinstance(ended[7], AgentNotFound)
    assert client.batch([]) == []
    with pytest.raises(ValidationError, match="Call 1 of the batch names no agent"):
        client.batch([{"agent": "desk"}, {"message": "x"}])
    with pytest.raises(ValidationError, match="no option 'capabillity'"):
        client.batch([{"agent": "desk", "capabillity": "echo"}])


def test_the_same_key_runs_once(client: Client) -> None:
    first = client.call("desk", "x", capability="form", key="once")
    again = client.call("desk", "x", capability="form", key="once")
    assert first.job == again.job


@pytest.mark.parametrize(
    "value",
    ["x" * 400_000, "ñ" * 400_000, list(range(50_000)), {"text": "y" * 400_000}],
    ids=["ascii", "text", "list", "object"],
)
def test_a_large_result_is_the_value_that_a_small_one_is(client: Client, value: Any) -> None:
    large[:] = [value]
    result = client.call("desk", capability="give")
    assert result.value == value
    assert result.text == (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def test_a_large_file_comes_as_a_small_one_does(client: Client) -> None:
    for size in (100, 100_000):
        (part,) = client.call("desk", capability="file", input={"size": size}).parts
        assert (part.raw, part.artifact) == (b"\x00" * size, None)


def test_data_that_looks_like_a_reference_stays_as_it_is(client: Client) -> None:
    told = {"artifact": "nothing", "media_type": "text/plain", "meta": {"size": 3}}
    assert client.call("desk", capability="looks", input={"told": told}).value == told


@pytest.mark.parametrize("error", [Unavailable("away"), RateLimited("too often")])
def test_a_call_that_was_done_does_not_fail_for_a_part_that_cannot_be_fetched(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Agent3Error
) -> None:
    asked = []

    async def refuse(self: AsyncClient, artifact: str) -> bytes:
        asked.append(artifact)
        raise error

    monkeypatch.setattr(AsyncClient, "artifact", refuse)
    (part,) = client.call("desk", capability="file", input={"size": 100_000}).parts
    assert asked == [part.artifact]
    asked.clear()
    large[:] = [[{"artifact": "nothing", "meta": {"size": 0}}] * 200]
    assert client.call("desk", capability="give").value == large[0]
    assert len(asked) <= 64


def test_what_is_stored_is_fetched_by_its_id_by_its_owner(client: Client, served: Hosted) -> None:
    body = {"agentId": "desk", "capability": "echo", "input": {"text": "x" * 100_000}}
    artifact = served.post("/v1/call", body).json["result"]["artifact"]
    assert client.artifact(artifact) == b"x" * 100_000
    with pytest.raises(Agent3Error, match="not"):
        client.artifact("nothing")


@pytest.mark.parametrize("given", [[1, 2], "a=1"])
def test_input_that_is_no_object_is_refused(client: Client, given: Any) -> None:
    with pytest.raises(ValidationError, match="input must be an object"):
        client.call("desk", capability="echo", input=given)


def test_the_async_client_does_the_same_in_its_own_loop(served: Hosted) -> None:
    async def run() -> None:
        async with AsyncClient(served.url) as client:
            assert (await client.call((await client.search("echo"))[0], "hi", capability="echo")).text == "hi"
            stream = client.stream("desk", capability="pieces", input={"count": 2})
            assert [event.kind async for event in stream] == ["artifact", "artifact", "turn"]
            assert (await stream.result()).text == "0,1,"

            async def ask(question: Any) -> Any:
                await asyncio.sleep(0)
                return {"One?": 1, "Two?": "a", "Three?": "z"}[question.text]

            assert (await client.call("desk", "x", capability="form", ask=ask)).text == "x 1 a z"
            many = await asyncio.gather(*(client.call("desk", str(n), capability="echo") for n in range(20)))
            assert [one.text for one in many] == [str(n) for n in range(20)]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_cancelled_call_lets_the_client_go_on(served: Hosted) -> None:
    async def run() -> None:
        holding.clear()
        async with AsyncClient(served.url) as client:
            call = asyncio.create_task(client.call("desk", capability="hold"))
            await asyncio.sleep(0.1)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            assert (await client.call("desk", "hi", capability="echo")).text == "hi"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_it_works_from_many_threads(client: Client) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: texts.append(client.call("desk", str(n), capability="echo").text))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(texts) == [str(n) for n in range(8)]


def test_the_gateway_of_this_machine_is_found_as_the_commands_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path))
    monkeypatch.delenv("AGENT3_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="No gateway is running on this machine"):
        Client()
    with gateway(tmp_path, "--demo") as running:
        with Client() as found:
            assert found.url == running.url
            assert found.call("calculator", "2 * 3").value == 6
        monkeypatch.setenv("AGENT3_SERVER", f"{running.url}/")

        async def run() -> Any:
            async with AsyncClient() as client:
                return (await client.call("calculator", "3 * 3")).value

        assert asyncio.run(run()) == 9


def test_a_key_is_sent_never_shown_and_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT3_KEY", raising=False)
    monkeypatch.setenv("TEST_KEY", "0123456789abcdef")
    settings = Settings(clients=(Known("me", "env:TEST_KEY"),), storage=Storage(url=f"sqlite:///{tmp_path / 'k.db'}"))
    with hosted(tmp_path, [desk], settings) as running:
        with Client(running.url) as stranger, pytest.raises(Unauthenticated, match="AGENT3_KEY"):
            stranger.agents()
        with Client(running.url, "0123456789abcdef") as known:
            assert known.call("desk", "hi", capability="echo").text == "hi"
            assert "0123456789abcdef" not in repr(vars(known)) + repr(vars(vars(known)["_inner"]))
        monkeypatch.setenv("AGENT3_KEY", "0123456789abcdef")
        with Client(running.url) as by_environment:
            assert by_environment.agents()[0].id == "desk"


def test_too_many_calls_say_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "0123456789abcdef")
    settings = Settings(
        clients=(Known("me", "env:TEST_KEY"),),
        limits=Limits(per_minute=1, burst=1),
        storage=Storage(url=f"sqlite:///{tmp_path / 'k.db'}"),
    )
    with hosted(tmp_path, [desk], settings) as running, Client(running.url, "0123456789abcdef") as client:
        client.call("desk", "hi", capability="echo")
        with pytest.raises(RateLimited) as refused:
            client.call("desk", "hi", capability="echo")
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 0


class Odd(BaseHTTPRequestHandler):
    """Answers as it was told to; breaks a stream off after each event."""

    answer = b""
    starts: list[str] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.answer or b'{"success": false, "status": "working", "job": "j1", "metadata": {}}')

    def do_GET(self) -> None:
        if "/events" not in self.path:
            self._answer(b'{"id": "j1", "status": "done", "success": true, "result": "whole", "metadata": {}}')
            return
        after = int(self.path.rpartition("=")[2])
        self.starts.append(self.path)
        frame = json.dumps({"kind": "artifact", "parts": [{"text": str(after)}], "seq": after + 1})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if after < 3:
            self.send_header("Content-Length", "100000")  # more than comes: the connection breaks in the middle
        self.end_headers()
        self.wfile.write(f"id: {after + 1}\ndata: {frame}\n\n".encode())
        self.close_connection = True

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def odd(request: pytest.FixtureRequest) -> Iterator[str]:
    kind = type("Kind", (Odd,), {"answer": getattr(request, "param", b""), "starts": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_stream_that_breaks_is_taken_up_where_it_was(odd: str) -> None:
    with Client(odd) as client:
        events: Events = client.stream("any")
        assert [event.parts[0].text for event in events] == ["0", "1", "2", "3"]
        assert events.result().text == "whole"


@pytest.mark.parametrize("odd", [b"<html>", b"[1]"], indirect=True)
def test_something_that_is_no_gateway_is_said_to_be_none(odd: str) -> None:
    with Client(odd) as client, pytest.raises(Unavailable, match="JSON"):
        client.call("any")


def test_a_gateway_that_is_not_there_is_named() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unavailable, match=r"No gateway answers at http://127"):
        client.search("x")
    for wrong in ("127.0.0.1:8333", "ftp://x", "http://[::1", "http://x:0"):
        with pytest.raises(SetupError, match="not the address of a gateway"):
            Client(wrong)
