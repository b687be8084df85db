"""The connector: skills as capabilities, tasks as outcomes, and what becomes of a turn that is cut off."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent3.a2a import listening
from agent3.definitions import AgentCard
from agent3.gateway.dead_letters import replay
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Done, Event, Failed, Needs, Outcome, Working, text_of, value_of
from agent3.protocols.a2a.cards.extensions import IDEMPOTENT, SCHEMAS
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.peer import connector
from agent3.protocols.a2a.peer.connector import SIGNATURE
from agent3.server.build import Server, build
from agent3.settings import Calls, Limits, Settings, Storage
from tests.support.a2a_peers import Peer, _served, first, official
from tests.support.a2a_toy import toy
from tests.support.registration import add

WAIT = 120.0
SPOKEN = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("JSONRPC", "0.1")]
everywhere = pytest.mark.parametrize("spoken", SPOKEN, ids=lambda way: f"{way[1]}-{way[0]}")
Story = Callable[[Server, str], Awaitable[None]]


@pytest.fixture(scope="module")
def agents() -> Iterator[dict[tuple[str, str], Peer]]:
    with ExitStack() as stack:
        found = {way: stack.enter_context(official(*way)) for way in SPOKEN[:4]}
        found[SPOKEN[4]] = stack.enter_context(first())[0]
        yield found


@asynccontextmanager
async def gateway(url: str = ":memory:", **calls: Any) -> AsyncIterator[Server]:
    how = Calls(backoff=0.01, backoff_max=0.02, **calls)
    async with build(Settings(storage=Storage(url=url), calls=how, limits=Limits(per_minute=0))) as server:
        yield server


def tell(story: Story, url: str, credential: str | None = None, **calls: Any) -> None:
    """A story in a gateway to which one agent was added."""

    async def main() -> None:
        async with asyncio.timeout(WAIT), gateway(**calls) as server:
            agent = await add(server, url, credential=credential)
            await story(server, agent.id)

    asyncio.run(main())


async def call(server: Server, agent: str, message: str = "", heard: list[Event] | None = None, **more: Any) -> Outcome:
    caller = Caller(LOCAL, "test", listener=heard.append if heard is not None else None)
    return await server.gateway.call(caller, CallRequest(agent=agent, message=message, **more))


def value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Done), outcome
    return value_of(outcome.parts)


# Every generation and binding


@everywhere
def test_an_agent_is_added_and_called(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(server: Server, agent: str) -> None:
        assert value(await call(server, agent, "hello pizza")) == "echo: hello pizza"
        found = await server.directory.get(agent)
        (capability,) = found.capabilities
        assert (capability.name, capability.title) == ("talk", "Talk")
        assert found.meta[SIGNATURE] == {"status": "unsigned"}

    tell(story, agents[spoken].url)


@everywhere
def test_a_stream_is_told_as_it_comes_and_is_the_result(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(server: Server, agent: str) -> None:
        heard: list[Event] = []
        assert value(await call(server, agent, "story time", heard)) == "Once upon time"
        assert [text_of(event.parts) for event in heard if event.kind == "artifact"] == ["Once ", "upon ", "time"]
        assert "on it" in [event.text for event in heard if event.kind == "status"]

    tell(story, agents[spoken].url)


@everywhere
def test_a_question_is_put_to_the_caller_and_its_answer_to_the_agent(
    agents: dict[Any, Peer], spoken: tuple[str, str]
) -> None:
    async def story(server: Server, agent: str) -> None:
        asked = await call(server, agent, "ask me")
        assert isinstance(asked, Needs)
        (question,) = asked.questions
        assert (question.text, question.url) == ("Which size?", None)
        assert asked.job is not None
        me = Caller(LOCAL, "test")
        assert value(await server.gateway.answer(me, asked.job, {question.id: Answer(data="large")})) == "echo: large"

    tell(story, agents[spoken].url)


@everywhere
def test_what_fails_there_fails_here_in_its_words(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(server: Server, agent: str) -> None:
        failed = await call(server, agent, "fail now", retries=3)
        assert isinstance(failed, Failed)
        assert (failed.code, failed.message, failed.retryable) == ("target_failed", "it broke", False)

    tell(story, agents[spoken].url)


def test_rejected_and_authorization_have_their_own_words(agents: dict[Any, Peer]) -> None:
    async def story(server: Server, agent: str) -> None:
        rejected = await call(server, agent, "reject this")
        assert isinstance(rejected, Failed)
        assert (rejected.code, rejected.message) == ("rejected", "not my trade")
        wanted = await call(server, agent, "login please")
        assert isinstance(wanted, Needs)
        assert wanted.questions[0].url == "https://login.example/agree"
        assert wanted.job is not None
        done = await server.gateway.answer(Caller(LOCAL), wanted.job, {wanted.questions[0].id: Answer()})
        assert value(done) == "echo: Yes."

    tell(story, agents[SPOKEN[0]].url)


def test_a_declined_question_cancels_the_task_of_an_agent_that_asked_in_words(agents: dict[Any, Peer]) -> None:
    async def story(server: Server, agent: str) -> None:
        asked = await call(server, agent, "ask me")
        assert isinstance(asked, Needs)
        assert asked.job is not None
        said = await server.gateway.answer(Caller(LOCAL), asked.job, {asked.questions[0].id: Answer("decline")})
        assert isinstance(said, Failed)
        assert said.code == "declined"

    tell(story, agents[SPOKEN[0]].url)


def test_a_waiting_job_is_cancelled_at_the_agent() -> None:
    async def story(server: Server, agent_id: str) -> None:
        asked = await call(server, agent_id, "ask me")
        assert isinstance(asked, Needs)
        assert asked.job is not None
        await server.core.runner.cancel(LOCAL, asked.job)
        (task,) = agent.tasks.values()
        assert task["status"]["state"] == "canceled"

    with first() as (peer, agent):
        tell(story, peer.url)


@pytest.mark.requirement("SP-22")
def test_files_go_both_ways(agents: dict[Any, Peer]) -> None:
    async def story(server: Server, agent: str) -> None:
        given = {"message": "file", "files": [{"name": "a.bin", "bytes": "AAEC"}]}
        outcome = await call(server, agent, input=given)
        assert isinstance(outcome, Done)
        (part,) = outcome.parts
        assert (part.raw, part.name, part.media_type) == (b"\x02\x01\x00", "back.bin", "application/octet-stream")
        wrong = await call(server, agent, input={"message": "file", "files": [{"name": "a.bin"}]})
        assert isinstance(wrong, Failed)
        assert (wrong.code, wrong.message) == (
            "invalid_input",
            'Each of the files needs either "bytes" in base64 or a "url".',
        )

    tell(story, agents[SPOKEN[0]].url)


def test_the_trace_and_the_deadline_go_along(agents: dict[Any, Peer]) -> None:
    peer = agents[SPOKEN[0]]

    async def story(server: Server, agent: str) -> None:
        peer.headers.clear()
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        request = CallRequest(agent=agent, message="hi", timeout=7.0)
        assert value(await server.gateway.call(Caller(LOCAL, traceparent=trace), request)) == "echo: hi"
        (sent,) = peer.headers
        assert sent["traceparent"].split("-")[1] == trace.split("-")[1]
        assert sent["x-agent3-deadline"].endswith("Z")
        assert sent["a2a-version"] == "1.0"

    tell(story, peer.url)


# An agent of ours, elsewhere


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with listening(toy()) as url:
        yield url


def test_an_agent_of_ours_asks_and_is_answered_in_types(ours: str) -> None:
    async def story(server: Server, agent: str) -> None:
        me = Caller(LOCAL, "test")
        for said in (Answer(data="12A"), Answer("decline")):
            asked = await call(server, agent, "Rome", capability="book")
            assert isinstance(asked, Needs)
            (question,) = asked.questions
            assert (question.text, asked.parts) == ("Which seat?", ())
            assert asked.job is not None
            outcome = await server.gateway.answer(me, asked.job, {question.id: said})
            if said.action == "accept":
                assert value(outcome) == "Rome 12A"
            else:
                assert isinstance(outcome, Failed)
                assert outcome.code == "rejected"

    tell(story, ours)


def test_an_agent_of_ours_says_by_which_error_it_failed_and_what_it_used(ours: str) -> None:
    async def story(server: Server, agent: str) -> None:
        late = await call(server, agent, "x", capability="late", retries=0)
        assert isinstance(late, Failed)
        assert (late.code, late.retryable) == ("timeout", True)
        heard: list[Event] = []
        assert value(await call(server, agent, "time", heard, capability="story")) == "Once upon time"
        assert "".join(text_of(event.parts) for event in heard if event.kind == "artifact") == "Once upon time"
        assert value(await call(server, agent, "you", capability="chat")) == "hi, you"
        added = await call(server, agent, capability="add", input={"left": 2, "right": 3})
        assert value(added) == {"sum": 5}

    tell(story, ours)


# Agents that neither stream nor block


class _Slow:
    """Turns the blocking agent of 0.3 into one that answers at once and is done after some reads."""

    def __init__(self, reads: int):
        self.reads = reads
        self.asked: list[str] = []

    def __call__(self, path: str, headers: dict[str, str]) -> Response | None:
        return None if "well-known" in path else _Answering(self)


class _Answering(Response):
    """Answers JSON-RPC of 0.3 by itself."""

    def __init__(self, slow: _Slow):
        super().__init__()
        self.slow = slow

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = json.loads(body)
        self.slow.asked.append(asked["method"])
        done = self.slow.asked.count("tasks/get") > self.slow.reads
        streams = asked["method"] == "message/stream"
        status = {"state": "completed" if done or streams else "working"}
        task: dict[str, Any] = {"kind": "task", "id": "t1", "contextId": "c1", "status": status}
        if done:
            task["artifacts"] = [{"artifactId": "a", "parts": [{"kind": "text", "text": "at last"}]}]
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": task}).encode()
        kind = "text/event-stream" if streams else "application/json"
        await Response(b"data: " + body + b"\n\n" if streams else body, media_type=kind)(scope, receive, send)


def test_a_task_that_goes_on_is_read_until_it_is_done() -> None:
    async def story(server: Server, agent: str) -> None:
        slow.asked.clear()  # whoever adds it tries other protocols too
        assert value(await call(server, agent, "hi")) == "at last"
        assert slow.asked == ["message/send", "tasks/get", "tasks/get", "tasks/get"]

    with official("JSONRPC", "0.3", streaming=False) as peer:
        slow = _Slow(2)
        peer.refuse = slow
        tell(story, peer.url)


def test_a_stream_that_only_says_that_it_is_done_is_followed_by_one_read() -> None:
    async def story(server: Server, agent: str) -> None:
        slow.asked.clear()
        assert value(await call(server, agent, "hi")) == "at last"
        assert slow.asked == ["message/stream", "tasks/get"]

    with official("JSONRPC", "0.3") as peer:
        slow = _Slow(0)
        peer.refuse = slow
        tell(story, peer.url)


def test_a_task_that_takes_long_becomes_a_job_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_LONGEST_POLL", 0.2)

    async def story(server: Server, agent: str) -> None:
        outcome = await call(server, agent, "hi", timeout=60)
        assert isinstance(outcome, Working)
        assert outcome.job is not None
        slow.reads = 0
        assert value(await server.gateway.wait(Caller(LOCAL), outcome.job, 60)) == "at last"
        assert slow.asked.count("message/send") == 1

    with official("JSONRPC", "0.3", streaming=False) as peer:
        slow = _Slow(1_000)
        peer.refuse = slow
        tell(story, peer.url)


# What is cut off


def test_a_call_out_of_time_ends_and_its_task_is_found_again() -> None:
    """The task goes on at the agent; the letter of the call, sent again under its key, does not begin it anew."""

    async def story(server: Server, agent_id: str) -> None:
        late = await call(server, agent_id, "hang on", timeout=3, retries=0, key="k1")
        assert isinstance(late, Failed)
        assert late.code == "timeout"
        (task,) = agent.tasks.values()
        assert task["status"]["state"] == "working"
        task["status"] = {"state": "completed"}
        task["artifacts"] = [{"index": 0, "parts": [{"type": "text", "text": "late, but here"}]}]
        (letter,) = await server.core.dead_letters.latest()
        again = await replay(server.gateway, f"call:{letter.id}", twice=True)
        assert (again.status, again.message) == ("done", None)
        answer = await server.gateway.call(Caller(LOCAL), CallRequest(agent=agent_id, message="hang on", key="k1"))
        assert value(answer) == "late, but here"  # the key stands for the letter's run now
        assert len(agent.tasks) == 1

    with first() as (peer, agent):
        tell(story, peer.url)


def test_a_caller_that_goes_away_takes_the_task_with_it() -> None:
    async def story(server: Server, agent_id: str) -> None:
        begun = asyncio.Event()
        caller = Caller(LOCAL, "test", listener=lambda event: begun.set())
        running = asyncio.create_task(server.gateway.call(caller, CallRequest(agent=agent_id, message="hang on")))
        await begun.wait()
        while not (jobs := await server.database.all("SELECT id FROM jobs")):
            await asyncio.sleep(0.02)
        await server.core.runner.cancel(LOCAL, jobs[0]["id"])
        outcome = await running
        assert isinstance(outcome, Failed)
        assert outcome.code == "canceled"
        (task,) = agent.tasks.values()
        while task["status"]["state"] != "canceled":
            await asyncio.sleep(0.02)

    with first() as (peer, agent):
        tell(story, peer.url)


def test_a_task_that_we_named_is_cancelled_though_it_never_answered() -> None:
    async def story(server: Server, agent_id: str) -> None:
        assert value(await call(server, agent_id, "hi")) == "echo: hi"
        running = asyncio.create_task(call(server, agent_id, "hang on", detach=True))
        working = await running
        assert isinstance(working, Working)
        while len(agent.tasks) < 2:
            await asyncio.sleep(0.02)
        assert working.job is not None
        await server.core.runner.cancel(LOCAL, working.job)
        while [*agent.tasks.values()][1]["status"]["state"] != "canceled":
            await asyncio.sleep(0.02)

    with first(streaming=False) as (peer, agent):
        tell(story, peer.url)


def test_an_agent_that_does_not_stream_though_its_card_says_so_is_asked_in_one_piece() -> None:
    async def story(server: Server, agent_id: str) -> None:
        assert value(await call(server, agent_id, "hi")) == "echo: hi"

    with official(streaming=False) as peer:
        _showing(peer, _card(peer))
        tell(story, peer.url)


def test_a_job_outlives_the_gateway_that_began_it(tmp_path: Path) -> None:
    """The next gateway finds the task that the first one began, and sends nothing again."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def main() -> None:
        async with asyncio.timeout(WAIT):
            async with gateway(url) as server:
                agent_id = (await add(server, peer.url)).id
                working = await call(server, agent_id, "hang on", detach=True)
                assert isinstance(working, Working)
                while not agent.tasks or not await _kept(server):
                    await asyncio.sleep(0.02)
                await server.core.runner.aclose(0.0)
            (task,) = agent.tasks.values()
            assert task["status"]["state"] == "working"
            task["status"] = {"state": "completed"}
            task["artifacts"] = [{"index": 0, "parts": [{"type": "text", "text": "after all"}]}]
            async with gateway(url) as server:
                assert working.job is not None
                done = await server.gateway.wait(Caller(LOCAL), working.job, 60)
                assert value(done) == "after all"
            assert len(agent.tasks) == 1

    with first() as (peer, agent):
        asyncio.run(main())


async def _kept(server: Server) -> bool:
    rows = await server.database.all("SELECT state FROM jobs")
    return any(row["state"] is not None for row in rows)


def _refusing(peer: Peer, times: int, status: int, **headers: str) -> list[str]:
    """Make an agent turn its next messages away."""
    seen: list[str] = []

    def refuse(path: str, given: dict[str, str]) -> Response | None:
        if "well-known" in path:
            return None
        seen.append(path)
        return Response(status_code=status, headers=headers) if len(seen) <= times else None

    peer.refuse = refuse
    return seen


def test_a_message_that_was_turned_away_is_sent_again() -> None:
    async def story(server: Server, agent: str) -> None:
        for status, headers in ((429, {}), (503, {"retry-after": "0"})):
            seen = _refusing(peer, 2, status, **headers)
            assert value(await call(server, agent, "hi", retries=2)) == "echo: hi"
            assert len(seen) == 3

    with official() as peer:
        tell(story, peer.url)


def test_a_message_that_may_have_arrived_is_not_sent_again() -> None:
    async def story(server: Server, agent: str) -> None:
        seen = _refusing(peer, 2, 502)
        failed = await call(server, agent, "hi", retries=5, key="k")
        assert isinstance(failed, Failed)
        assert failed.code == "unavailable"
        assert len(seen) == 1

    with official() as peer:
        tell(story, peer.url)


def _card(peer: Peer, **more: Any) -> dict[str, Any]:
    interface = {"url": f"{peer.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    skill = {"id": "talk", "name": "Talk", "description": "Talk", "tags": []}
    return {
        "name": "Carded",
        "description": "",
        "version": "1",
        "supportedInterfaces": [interface],
        "capabilities": {"streaming": True, **more.pop("capabilities", {})},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [skill],
        **more,
    }


def _showing(peer: Peer, card: dict[str, Any], jwks: dict[str, Any] | None = None) -> None:
    def answer(path: str, headers: dict[str, str]) -> Response | None:
        if path == "/.well-known/agent-card.json":
            return JSONResponse(card)
        return JSONResponse(jwks) if jwks is not None and path.endswith("jwks.json") else None

    peer.refuse = answer


def test_an_agent_that_tells_repetitions_is_asked_again() -> None:
    """It declares that it knows a message by its id, so a lost answer is no reason to give up."""

    async def story(server: Server, agent: str) -> None:
        route = (await server.directory.get(agent)).capabilities[0].routes[0]
        assert route.meta["keys"] is True
        seen = _refusing(peer, 2, 502)
        assert value(await call(server, agent, "hi", retries=5, key="k")) == "echo: hi"
        assert len(seen) == 3

    with official() as peer:
        _showing(peer, _card(peer, capabilities={"extensions": [{"uri": IDEMPOTENT}]}))
        tell(story, peer.url)


# What a card says


def test_a_skill_with_a_schema_takes_data_that_fits() -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    params = {"skills": {"talk": {"input": schema}}}

    async def story(server: Server, agent: str) -> None:
        assert (await server.directory.get(agent)).capabilities[0].input_schema == schema
        wrong = await call(server, agent, input={"size": "large"})
        assert isinstance(wrong, Failed)
        assert wrong.code == "invalid_input"
        assert isinstance(await call(server, agent, "take this", input={"size": 3}), Done)

    with official() as peer:
        _showing(peer, _card(peer, capabilities={"extensions": [{"uri": SCHEMAS, "params": params}]}))
        tell(story, peer.url)


def test_an_extension_that_is_required_and_not_spoken_is_named_before_anything_is_sent() -> None:
    async def story(server: Server, agent: str) -> None:
        peer.paths.clear()
        failed = await call(server, agent, "hi")
        assert isinstance(failed, Failed)
        assert "urn:strange" in failed.message
        assert not peer.paths

    with official() as peer:
        _showing(peer, _card(peer, capabilities={"extensions": [{"uri": "urn:strange", "required": True}]}))
        tell(story, peer.url)


def test_a_card_is_verified_and_a_card_of_another_key_suspends_the_agent() -> None:
    async def story(server: Server, agent: str) -> None:
        before = await server.directory.get(agent)
        assert before.meta[SIGNATURE]["status"] == "verified"
        address = before.capabilities[0].routes[0].address
        assert await server.renewals.renew(address) == []
        other = CardKey.generate(jku=f"{peer.url}/.well-known/jwks.json")
        _showing(peer, other.sign(card).to_wire("1.0"), other.jwks())
        (now,) = await server.renewals.renew(address)
        assert now.status == "suspended"
        assert now.card == before.card
        with pytest.raises(Exception, match="suspended"):
            await call(server, agent, "hi")
        again = await add(server, peer.url)
        assert (again.status, again.meta[SIGNATURE]["status"]) == ("active", "verified")
        assert value(await call(server, agent, "hi")) == "echo: hi"

    with official() as peer:
        key = CardKey.generate(jku=f"{peer.url}/.well-known/jwks.json")
        card = AgentCard.from_wire(_card(peer))
        _showing(peer, key.sign(card).to_wire("1.0"), key.jwks())
        tell(story, peer.url)


def test_a_secret_is_sent_and_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_KEY", "hush-hush-secret")

    async def story(server: Server, agent: str) -> None:
        heard: list[Event] = []
        outcome = await call(server, agent, "say hush-hush-secret", heard)
        assert value(outcome) == "echo: say ***"
        assert "hush-hush" not in repr(heard)
        assert peer.headers[-1]["x-key"] == "hush-hush-secret"

    with official() as peer:
        scheme = {"it": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}}
        named: list[Any] = [{"schemes": {"it": {}}}]
        _showing(peer, _card(peer, securitySchemes=scheme, securityRequirements=named))
        tell(story, peer.url, "env:AGENT_KEY")


TOKEN = "granted-token-0123456789"


class _Indiscreet:
    """An agent that gives tokens for client credentials, and repeats them wherever it can."""

    def app(self, url: str) -> ASGIApp:
        flow = {"clientCredentials": {"tokenUrl": f"{url}/token", "scopes": {}}}
        schemes = {"it": {"oauth2SecurityScheme": {"flows": flow}}}
        card = _card(Peer(url), securitySchemes=schemes, securityRequirements=[{"schemes": {"it": {}}}])

        async def show(_: Request) -> JSONResponse:
            return JSONResponse(card)

        async def grant(_: Request) -> JSONResponse:
            return JSONResponse({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600})

        async def talk(request: Request) -> Response:
            assert request.headers["authorization"] == f"Bearer {TOKEN}"
            asked = await request.json()
            if "fail" in asked["params"]["message"]["parts"][0]["text"]:
                error = {"code": -32602, "message": f"I do not take {TOKEN}"}
                return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            where = {"taskId": "t", "contextId": "c"}
            text = {"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": f"got {TOKEN}"}]}
            parts = [{"text": TOKEN}, {"data": {TOKEN: [TOKEN]}}, {"raw": b64encode(TOKEN.encode()).decode()}]
            artifact = {"artifactId": "a", "name": f"for {TOKEN}", "parts": parts, "metadata": {"token": TOKEN}}
            items = [
                {"statusUpdate": {**where, "status": {"state": "TASK_STATE_WORKING", "message": text}}},
                {"artifactUpdate": {**where, "artifact": artifact, "lastChunk": True}},
                {"statusUpdate": {**where, "status": {"state": "TASK_STATE_COMPLETED"}}},
            ]
            lines = [json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": item}) for item in items]
            return Response("".join(f"data: {line}\n\n" for line in lines), media_type="text/event-stream")

        return Starlette(
            routes=[
                Route("/.well-known/agent-card.json", show),
                Route("/token", grant, methods=["POST"]),
                Route("/rpc", talk, methods=["POST"]),
            ]
        )


def test_a_token_that_was_acquired_for_an_agent_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_CLIENT", "client:hush-hush-secret")

    async def story(server: Server, agent: str) -> None:
        heard: list[Event] = []
        outcome = await call(server, agent, "tell me", heard)
        assert isinstance(outcome, Done), outcome
        assert [event.text for event in heard if event.kind == "status"] == ["got ***"]
        (artifact,) = [event for event in heard if event.kind == "artifact"]
        assert artifact.name == "for ***"
        assert [part.data for part in artifact.parts if isinstance(part.data, dict)] == [{"***": ["***"]}]
        failed = await call(server, agent, "fail")
        assert isinstance(failed, Failed)
        assert "I do not take ***" in failed.message
        for shown in (heard, outcome, failed):
            assert TOKEN not in repr(shown)

    with _served(_Indiscreet().app) as peer:
        tell(story, peer.url, "env:AGENT_CLIENT")
