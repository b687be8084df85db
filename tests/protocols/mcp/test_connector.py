"""The MCP connector against real servers of both eras, over HTTP and as programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.parking import Park
from agent3.env import REAL
from agent3.errors import Agent3Error, TargetError, Unavailable
from agent3.identity.secrets import Secret
from agent3.model import (
    LOCAL,
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Question,
    Route,
    Turn,
    Working,
    value_of,
)
from agent3.observe.metrics import Metrics
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.processes import Command
from agent3.protocols.mcp.client.upstream import Upstream
from tests.support.mcp_upstream import Site, command, eventually, notes, served
from tests.support.movable_loop import advance, run_movable


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program wrote before it ended arrives, however slow the machine is."""
    monkeypatch.setattr("agent3.protocols.mcp.client.processes._LAST_LINES", 30.0)


WAYS = ["http-modern", "http-legacy", "stdio-modern", "stdio-legacy"]


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


def route_to(where: str, way: str) -> Route:
    """A program of both eras is spoken to in the handshake era, unless the operator wants the other."""
    return Route("mcp", where, meta={"era": "modern"} if way == "stdio-modern" else {})


@contextmanager
def address(way: str, folder: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """Where the server of one way is, and what it notes."""
    kind, era = way.split("-")
    given = (*options, "--legacy") if era == "legacy" else options
    file = folder / f"{way}.notes"
    if kind == "stdio":
        yield Command(**command(file, *given)).address, file
        return
    with served(file, *given) as site:
        yield site.url, file


class Talk:
    """A connector, the agent at its other end, and how to call it."""

    def __init__(self, connector: MCPConnector, agent: Agent):
        self.connector = connector
        self.agent = agent
        self.heard: list[Event] = []

    def prepare(self, name: str, given: Any = None, **more: Any) -> Call:
        known = self.agent.capability(name)
        capability = known or Capability(name=name, routes=self.agent.capabilities[0].routes)
        route = replace(capability.routes[0], target=name)
        live = Turn(self.agent, capability, listener=self.heard.append)
        return Call(
            id="c1", principal=LOCAL, agent=self.agent.id, capability=name, input=given, route=route, live=live, **more
        )

    async def call(self, name: str, given: Any = None, **more: Any) -> Outcome:
        return await self.connector.call(self.prepare(name, given, **more))


@asynccontextmanager
async def talking(where: str, way: str = "", **options: Any) -> AsyncIterator[Talk]:
    connector = MCPConnector(**options)
    try:
        yield Talk(connector, await connector.describe(where, route=route_to(where, way), registered=True))
    finally:
        await connector.aclose()


@dataclass
class Everywhere:
    """One server for each way, and a connection to it, for the tests that leave both as they are."""

    way: str
    where: str
    file: Path
    runner: asyncio.Runner
    talk: Talk

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(story, 240)

        self.talk.heard.clear()
        self.runner.run(bounded())


@pytest.fixture(scope="module", params=WAYS)
def everywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everywhere]:
    async def open_talk(where: str) -> Talk:
        connector = MCPConnector()
        route = route_to(where, request.param)
        return Talk(connector, await connector.describe(where, route=route, registered=True))

    with address(request.param, tmp_path_factory.mktemp("mcp")) as (where, file), asyncio.Runner() as runner:
        talk = runner.run(open_talk(where))
        yield Everywhere(request.param, where, file, runner, talk)
        runner.run(talk.connector.aclose())


def test_a_server_is_described_as_an_agent(everywhere: Everywhere) -> None:
    way = everywhere.way

    async def story() -> None:
        talk = everywhere.talk
        agent = talk.agent
        assert (agent.id, agent.name, agent.version) == ("test-server", "Test Server", "7")
        # Never the instructions: they are written for a model that uses this server alone.
        assert agent.description.startswith("Test Server tools: echo, region, ")
        assert agent.card["protocolVersion"] == ("2026-07-28" if way.endswith("modern") else "2025-11-25")
        echo = agent.capability("echo")
        assert echo is not None
        assert echo.hints.read_only
        assert not echo.hints.consequential
        assert echo.title == "Echo"
        assert echo.output_schema is not None
        assert echo.interactive is (way != "stdio-modern")
        assert echo.routes[0].protocol == "mcp"
        assert echo.routes[0].target == "echo"
        region = agent.capability("region")
        assert region is not None
        assert region.input_schema["properties"]["region"]["x-mcp-header"] == "Region"
        assert region.input_schema["$defs"] == {"kept": {"type": "integer"}}
        assert agent.capability("bad_header") is None

    everywhere.run(story())


def test_results_become_parts(everywhere: Everywhere) -> None:
    async def story() -> None:
        talk = everywhere.talk
        assert await talk.call("echo", {"text": "hi"}) == Done((Part(data={"text": "hi"}),))
        parts = await talk.call("parts")
        assert isinstance(parts, Done)
        assert parts.parts == (
            Part(text="words"),
            Part(raw=b"png", media_type="image/png"),
            Part(raw=b"wav", media_type="audio/wav"),
            Part(url="https://example.com/x", name="x", media_type="text/html", meta={"size": 3}),
            Part(text="inside", media_type="text/plain", name="test://inner", meta={"uri": "test://inner"}),
            Part(raw=b"zip", media_type="application/zip", name="test://blob", meta={"uri": "test://blob"}),
            Part(data={"n": 1}),
        )
        assert parts.meta == {"example.com/cost": 2}
        summary = await talk.call("summary")
        assert isinstance(summary, Done)
        assert summary.parts == (Part(text="Sunny, as always"), Part(data={"degrees": 20}))

    everywhere.run(story())


def test_failures_have_their_codes(everywhere: Everywhere) -> None:
    async def story() -> None:
        talk = everywhere.talk
        cold = await talk.call("fail")
        assert isinstance(cold, Failed)
        assert (cold.code, cold.message) == ("target_failed", "The oven is cold")
        assert cold.parts == (Part(text="The oven is cold"),)
        unknown = await talk.call("nothing")
        assert isinstance(unknown, Failed)
        assert unknown.code == "capability_not_found"
        limited = await talk.call("limited")
        assert isinstance(limited, Failed)
        assert (limited.code, limited.retryable, limited.retry_after) == ("rate_limited", True, 2.5)
        strange = await talk.call("echo", ["not", "an", "object"])
        assert isinstance(strange, Failed)
        assert strange.code == "invalid_input"

    everywhere.run(story())


def test_progress_and_logs_are_events(everywhere: Everywhere) -> None:
    async def story() -> None:
        talk = everywhere.talk
        assert isinstance(await talk.call("steps", {"number": 3}), Done)
        assert [(one.kind, one.done, one.total, one.text) for one in talk.heard] == [
            ("progress", number, 3, f"step {number}") for number in (1, 2, 3)
        ]
        talk.heard.clear()
        assert isinstance(await talk.call("log"), Done)
        assert [(one.kind, one.name, one.text) for one in talk.heard] == [("log", "info", "thinking")]

    everywhere.run(story())


def test_trace_and_key_are_told_to_the_server(everywhere: Everywhere) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def story() -> None:
        talk = everywhere.talk
        done = await talk.call("who", traceparent=parent, key="k1")
        assert isinstance(done, Done)
        meta = value_of(done.parts)["meta"]
        assert meta["traceparent"] == parent
        assert meta["io.agent3/idempotency-key"] == "k1"

    everywhere.run(story())


def test_twenty_calls_run_at_once_on_one_connection(everywhere: Everywhere) -> None:
    way = everywhere.way

    async def story() -> None:
        talk = everywhere.talk
        waiting = [talk.call("silent", {"together": 19}) for _ in range(19)]
        *rest, who = await asyncio.gather(*waiting, talk.call("who"))
        assert all(isinstance(outcome, Done) for outcome in rest)
        assert isinstance(who, Done)
        again = await talk.call("who")
        assert isinstance(again, Done)
        same = "pid" if way.startswith("stdio") else "session"
        assert value_of(who.parts)[same] == value_of(again.parts)[same]
        assert len(talk.connector.upstreams) == 1

    everywhere.run(story())


def test_cancelling_a_call_cancels_the_tool(everywhere: Everywhere) -> None:
    file = everywhere.file

    async def story() -> None:
        before = notes(file).count("hanging"), notes(file).count("cancelled")
        talk = everywhere.talk
        task = asyncio.create_task(talk.call("hang"))
        await eventually(lambda: notes(file).count("hanging") > before[0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: notes(file).count("cancelled") > before[1])
        assert isinstance(await talk.call("echo", {"text": "still there"}), Done)

    everywhere.run(story())


class SlowEvents(list[Event]):
    """Events that each come 900 seconds after the one before."""

    def append(self, event: Event) -> None:
        super().append(event)
        advance(900)


def test_silence_ends_a_call_and_progress_prolongs_it(everywhere: Everywhere) -> None:
    where = everywhere.where
    file = everywhere.file

    async def story() -> None:
        async with talking(where, idle=1_000, ceiling=100_000) as talk:
            before = notes(file).count("hanging"), notes(file).count("cancelled")
            call = asyncio.create_task(talk.call("hang"))
            await hanging(file, before[0])
            advance(1_001)
            silent = await call
            assert isinstance(silent, Failed)
            assert (silent.code, silent.sent) == ("timeout", True)
            while notes(file).count("cancelled") == before[1]:
                await asyncio.sleep(0.01)
            talk.heard = SlowEvents()
            assert isinstance(await talk.call("steps", {"number": 6}), Done)
            assert len(talk.heard) == 6

    run_movable(story())


async def hanging(file: Path, before: int) -> None:
    while notes(file).count("hanging") == before:
        await asyncio.sleep(0.01)


def test_progress_does_not_prolong_a_call_beyond_the_ceiling(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where, idle=1_000, ceiling=2_000) as talk:
            talk.heard = SlowEvents()
            endless = await talk.call("steps", {"number": 10_000, "pause": 0.2})
            assert isinstance(endless, Failed)
            assert endless.code == "timeout"
            assert len(talk.heard) < 90  # three, and what came with them; without a ceiling it takes a day

    with address("http-modern", tmp_path) as (where, _):
        run_movable(story(where))


def test_questions_of_a_modern_server_are_answered_in_turns(tmp_path: Path) -> None:
    async def story(where: str, way: str) -> None:
        async with talking(where, way) as talk:
            first = await talk.call("ask")
            assert isinstance(first, Needs)
            assert [(one.id, one.text) for one in first.questions] == [("size", "Which size?")]
            assert first.questions[0].schema is not None
            given = {"size": Answer(data={"size": "S"})}
            second = await talk.call("ask", entry="answer", turn=2, answers=given, state=first.state)
            assert isinstance(second, Needs)
            (again,) = second.questions
            assert again.id != "size"
            given[again.id] = Answer(data={"size": "L"})
            last = await talk.call("ask", entry="answer", turn=3, answers=given, state=second.state)
            assert last == Done((Part(text="round-2 accept {'size': 'L'}"),))

    for way in ("http-modern", "stdio-modern"):
        with address(way, tmp_path) as (where, _):
            run(story(where, way))


class Parked:
    """The connector behind the real Park, as in the gateway."""

    def __init__(self, talk: Talk):
        self.talk = talk
        self.park = Park(REAL, Metrics())
        self.handler = self.park.around(talk.connector.call)

    async def call(self, job: str, **more: Any) -> Outcome:
        return await self.handler(self.talk.prepare("ask", job=job, **more))


def test_questions_of_a_legacy_server_park_the_call(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where, idle=1_000) as talk:
            parked = Parked(talk)
            first = await parked.call("j1")
            assert isinstance(first, Needs)
            (question,) = first.questions
            assert question == Question("q1", "Which size?", question.schema)
            advance(5_000)  # a person may think longer than a server may be silent
            await asyncio.sleep(0.01)  # a round of the loop, in which a clock that ran would strike
            second = await parked.call("j1", entry="answer", answers={"q1": Answer(data={"size": "S"})})
            assert isinstance(second, Needs)
            given = {"q1": Answer(data={"size": "S"}), "q2": Answer("decline")}
            last = await parked.call("j1", entry="answer", answers=given)
            assert last == Done((Part(text="accept {'size': 'S'} decline None"),))
            await parked.park.aclose()

    for way in ("http-legacy", "stdio-legacy"):
        with address(way, tmp_path) as (where, _):
            run_movable(story(where))


def test_questions_of_legacy_calls_at_once_are_not_mixed_up(tmp_path: Path) -> None:
    """Over HTTP the stream says whose question it is; a program that asks gets a process for each conversation."""

    async def answered(parked: Parked, job: str) -> Outcome:
        given: dict[str, Answer] = {}
        outcome = await parked.call(job)
        while isinstance(outcome, Needs):
            given |= {one.id: Answer(data={"size": job}) for one in outcome.questions}
            outcome = await parked.call(job, entry="answer", answers=given)
        return outcome

    async def story(where: str, *, lost: bool) -> None:
        async with talking(where) as talk:
            parked = Parked(talk)
            if lost:  # not known yet that it asks, several at once: refused, and learned from
                await asyncio.gather(*(answered(parked, f"x{number}") for number in range(2)))
            jobs = [f"j{number}" for number in range(3)]
            for job, outcome in zip(jobs, await asyncio.gather(*(answered(parked, job) for job in jobs)), strict=True):
                assert outcome == Done((Part(text=f"accept {{'size': '{job}'}} accept {{'size': '{job}'}}"),))
            await parked.park.aclose()

    for way in ("http-legacy", "stdio-legacy"):
        with address(way, tmp_path) as (where, _):
            run(story(where, lost=way == "stdio-legacy"))


def test_an_answer_to_a_lost_conversation_says_so(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where) as talk:
            outcome = await talk.call("ask", entry="answer", answers={"q1": Answer(data={"size": "S"})})
            assert isinstance(outcome, Failed)
            assert outcome.code == "interrupted"

    with address("http-legacy", tmp_path) as (where, _):
        run(story(where))


def test_a_wish_for_authorization_is_a_question_with_an_address(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where) as talk:
            first = await talk.call("go")
            assert isinstance(first, Needs)
            assert first.questions == (Question("e1", "Log in", url="https://example.com/login"),)
            done = await talk.call("go", entry="answer", answers={"e1": Answer()}, state=first.state)
            assert done == Done((Part(text="gone"),))
            # Who is not done with the page, or does not open it, is not asked over and over.
            for answer, code in ((Answer(), "target_failed"), (Answer("decline"), "declined")):
                again = await talk.call("go", {"never": True})
                assert isinstance(again, Needs)
                failed = await talk.call(
                    "go", {"never": True}, entry="answer", answers={"e1": answer}, state=again.state
                )
                assert isinstance(failed, Failed)
                assert failed.code == code
                assert ("Finish at https://example.com/login, then call it again" in failed.message) is (
                    code != "declined"
                )

    with address("http-legacy", tmp_path) as (where, _):
        run(story(where))


def test_a_task_is_followed_asked_and_cancelled_also_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(where: str, way: str, file: Path) -> None:
        async with talking(where, way) as talk:
            first = await talk.call("task")
            assert isinstance(first, Working)
            assert (first.poll, first.text) == (0.1, "kneading")
            outcome: Outcome = first
            for _ in range(5):
                if not isinstance(outcome, Working):
                    break
                outcome = await talk.call("task", entry="attach", state=outcome.state)
            assert outcome == Done((Part(text="baked None"),))

            asking = await talk.call("task", {"asking": True})
            assert isinstance(asking, Needs)
            given = {"sure": Answer(data={"size": "L"})}
            working = await talk.call("task", {"asking": True}, entry="answer", answers=given, state=asking.state)
            assert isinstance(working, Working)
            gone = await talk.call("task", {"asking": True}, entry="cancel", state=working.state)
            assert isinstance(gone, Failed)
            assert gone.code == "canceled"
            assert "cancelled t2" in notes(file)

            asked, honest = asyncio.Event(), Upstream.request

            async def request(self: Upstream, method: str, *given: Any, **more: Any) -> dict[str, Any]:
                if method == "tasks/get":
                    asked.set()
                    await asyncio.Event().wait()
                return await honest(self, method, *given, **more)

            third = await talk.call("task", {"endless": True})
            assert isinstance(third, Working)
            with monkeypatch.context() as patched:
                patched.setattr(Upstream, "request", request)
                looking = asyncio.ensure_future(talk.call("task", entry="attach", state=third.state))
                await asked.wait()
                looking.cancel()
                await eventually(lambda: "cancelled t3" in notes(file))

    for way in ("http-modern", "stdio-modern"):
        with address(way, tmp_path) as (where, file):
            run(story(where, way, file))


def test_arguments_go_into_headers_where_the_schema_says_so(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where) as talk:
            assert await talk.call("region", {"region": "eu"}) == Done((Part(text="eu"),))
            odd = await talk.call("region", {"region": "süd"})
            assert isinstance(odd, Done)
            assert str(value_of(odd.parts)).startswith("=?base64?")

    with address("http-modern", tmp_path) as (where, _):
        run(story(where))


def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    """The modern era notices nothing; a legacy session is opened anew, and what it turned away is sent again, once."""

    async def story(site: Site) -> None:
        async with talking(site.url) as talk:
            assert isinstance(await talk.call("count"), Done)
            await asyncio.to_thread(site.restart)
            assert isinstance(await talk.call("count"), Done)
            assert site.noted().count("count") == 2

    for options in ((), ("--legacy",)):
        with served(tmp_path / f"restart{len(options)}", *options) as site:
            run(story(site))


def test_a_legacy_answer_whose_stream_broke_off_is_fetched(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        async with talking(where) as talk:
            assert await talk.call("reconnect") == Done((Part(text="after the gap"),))

    with address("http-legacy", tmp_path) as (where, _):
        run(story(where))


def test_a_call_that_was_under_way_when_the_server_died_is_not_repeated(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        async with talking(site.url) as talk:
            task = asyncio.create_task(talk.call("hang"))
            await eventually(lambda: "hanging" in site.noted())
            await asyncio.to_thread(site.restart)
            outcome = await task
            assert isinstance(outcome, Failed)
            assert (outcome.code, outcome.sent) == ("unavailable", True)
            assert isinstance(await talk.call("echo", {"text": "back"}), Done)
            assert site.noted().count("hang") == 1

    for options in ((), ("--legacy",)):
        with served(tmp_path / f"died{len(options)}", *options) as site:
            run(story(site))


def test_a_server_may_change_its_era_while_we_know_it(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        async with talking(site.url) as talk:
            for options in (("--legacy",), ()):
                site.options = options
                await asyncio.to_thread(site.restart)
                assert isinstance(await talk.call("echo", {"text": "same"}), Done)

    with served(tmp_path / "era") as site:
        run(story(site))


def test_two_credentials_never_share_a_connection(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        connector = MCPConnector()
        try:
            agent = await connector.describe(where, secret=Secret("first-secret"), registered=True)
            talk = Talk(connector, agent)
            seen = []
            for secret in (Secret("first-secret"), Secret("second-secret"), None):
                call = replace(talk.prepare("who"), secret=secret)
                outcome = await connector.call(call)
                assert isinstance(outcome, Done)
                seen.append(value_of(outcome.parts))
            assert [one["authorization"] for one in seen] == ["Bearer first-secret", "Bearer second-secret", None]
            assert len({one["port"] for one in seen}) == 3
            if seen[0]["session"] is not None:
                assert len({one["session"] for one in seen}) == 3
            assert len(connector.upstreams) == 3
        finally:
            await connector.aclose()

    for way in ("http-modern", "http-legacy"):
        with address(way, tmp_path) as (where, _):
            run(story(where))


def test_a_program_gets_its_credential_and_little_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_OWN_SECRET", "stays here")
    monkeypatch.setenv("GIVEN", "by reference")
    given = command(tmp_path / "env.notes")
    program = Command(**given, env={"PLAIN": "value", "FROM_US": "env:GIVEN"})
    route = Route("mcp", program.address, credential="env:X", meta={"secret_env": "API_TOKEN"})

    async def story() -> None:
        connector = MCPConnector()
        try:
            secret = Secret("s3cret-token")
            agent = await connector.describe(program.address, secret=secret, route=route)
            call = Talk(connector, agent).prepare("who")
            outcome = await connector.call(replace(call, secret=secret))
            assert isinstance(outcome, Done)
            environment = value_of(outcome.parts)["environment"]
            assert environment["API_TOKEN"] == "s3cret-token"
            assert environment["PLAIN"] == "value"
            assert environment["FROM_US"] == "by reference"
            assert "OUR_OWN_SECRET" not in environment
            certificates = {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"}
            given = {"PATH", "HOME", "LANG", "API_TOKEN", "PLAIN", "FROM_US", "LC_CTYPE", "PWD"}
            assert set(environment) <= given | certificates
            other = await connector.call(replace(call, secret=Secret("another-token")))
            assert isinstance(other, Done)
            assert value_of(other.parts)["pid"] != value_of(outcome.parts)["pid"]
        finally:
            await connector.aclose()

    run(story())


REFUSALS: list[tuple[str, tuple[str, ...], str]] = [
    ("/mcp", ("--key", "right"), "target_refused"),
    ("/busy", (), "rate_limited"),
]


@pytest.mark.parametrize(("path", "options", "code"), REFUSALS)
def test_refusals_of_the_door_have_their_codes(tmp_path: Path, path: str, options: tuple[str, ...], code: str) -> None:
    async def story(where: str) -> None:
        connector = MCPConnector()
        try:
            with pytest.raises(Agent3Error) as caught:
                await connector.describe(where, secret=Secret("wrong-one"), registered=True)
            assert caught.value.code == code
            assert caught.value.retry_after == (7.0 if code == "rate_limited" else None)
            assert "wrong-one" not in caught.value.message
            assert not caught.value.sent
        finally:
            await connector.aclose()

    with served(tmp_path / "door", *options) as site:
        run(story(site.url.removesuffix("/mcp") + path))


def test_a_dead_server_is_an_error_and_never_an_empty_list(tmp_path: Path) -> None:
    async def story(where: str, kind: type[Agent3Error], words: str) -> None:
        connector = MCPConnector()
        try:
            with pytest.raises(kind, match=words):
                await connector.describe(where, registered=True)
            route = Route("mcp", where, "echo", meta={"registered": True})
            call = Call(id="c", principal=LOCAL, agent="dead", capability="echo", route=route)
            outcome = await connector.call(call)
            assert isinstance(outcome, Failed)
            assert not outcome.sent
        finally:
            await connector.aclose()

    run(story("http://127.0.0.1:9/mcp", Unavailable, "cannot be reached"))
    run(story(Command("no-such-program-anywhere").address, Unavailable, "not found"))
    run(story(Command("sh", ("-c", "echo broken glass >&2; exit 4")).address, Unavailable, "exit code 4.*broken glass"))
    run(story(Command("cat").address, TargetError, "is not an MCP server"))


def test_an_address_of_this_machine_is_closed_unless_the_operator_chose_it(tmp_path: Path) -> None:
    async def story(where: str) -> None:
        connector = MCPConnector()
        try:
            with pytest.raises(Agent3Error) as caught:
                await connector.describe(where)
            assert caught.value.code == "blocked"
        finally:
            await connector.aclose()

    with address("http-modern", tmp_path) as (where, _):
        run(story(where))


def test_all_pages_are_listed_and_kept_until_the_server_says_that_they_changed(tmp_path: Path) -> None:
    async def story(where: str, file: Path, connector: MCPConnector, changed: list[str]) -> None:
        try:
            agent = await connector.describe(where, registered=True)
            assert len(agent.capabilities) == 21
            route = agent.capabilities[0].routes[0]
            listed = notes(file).count("listed")
            assert len(await connector.items(route, "tools/list", "tools")) == 22
            assert notes(file).count("listed") == listed
            talk = Talk(connector, agent)
            while not changed:  # the hearing begins beside the first call, so an early change may go unheard
                assert isinstance(await talk.call("grow"), Done)
                await asyncio.sleep(0.05)
            assert changed[0] == where
            assert len(await connector.items(route, "tools/list", "tools")) > 22
            assert notes(file).count("listed") > listed
        finally:
            await connector.aclose()

    def heard(changed: list[str]) -> Callable[[str], None]:
        return changed.append

    for way in WAYS:
        with address(way, tmp_path, "--page", "5") as (where, file):

            async def told(where: str = where, file: Path = file) -> None:
                changed: list[str] = []
                await story(where, file, MCPConnector(on_change=heard(changed)), changed)

            run(told())
