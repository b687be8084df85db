"""Servers that ask: in either era, over one connection that many calls share, and without keeping anybody waiting."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer

from agent3.calls.parking import Park
from agent3.env import REAL
from agent3.model import LOCAL, Agent, Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Principal, Route, Turn
from agent3.observe.metrics import Metrics
from agent3.protocols.mcp.client import upstream
from agent3.protocols.mcp.client.channels import OldHTTPChannel, ServerError
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.floor import Crowded, Floor
from agent3.protocols.mcp.client.processes import Command
from agent3.protocols.mcp.meta_keys import PASSED
from agent3.security.destinations import Policy
from agent3.security.outbound import Gate
from tests.support import mcp_asking, mcp_program
from tests.support.mcp_upstream import command, eventually, notes, served


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@asynccontextmanager
async def standing(
    file: Path,
    version: str = "1",
    port: int = 0,
    seen: list[dict[str, str]] | None = None,
    tools: bool = True,
    old: bool = False,
) -> AsyncIterator[str]:
    """The server of both eras over HTTP, or by the ``old`` transport. ``seen`` gets the headers of every request."""
    listener = socket.create_server(("127.0.0.1", port))
    offering = mcp_asking.build(file, version) if tools else MCPServer("bare")
    inner = offering.sse_app() if old else offering.streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if seen is not None and scope["type"] == "http" and scope["method"] == "POST":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await inner(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{'sse' if old else 'mcp'}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()


class Talk:
    """A connector behind the real Park, as in the gateway, and the agent at its other end."""

    def __init__(self, connector: MCPConnector, agent: Agent):
        self.connector = connector
        self.agent = agent
        self.heard: list[Event] = []
        self.park = Park(REAL, Metrics())
        self._handler = self.park.around(connector.call)

    async def call(
        self, tool: str, job: str = "j", *, entry: Any = "start", principal: Principal = LOCAL, **more: Any
    ) -> Outcome:
        capability = self.agent.capability(tool)
        assert capability is not None
        return await self._handler(
            Call(
                id=job,
                job=job,
                principal=principal,
                agent=self.agent.id,
                capability=tool,
                input={},
                route=capability.routes[0],
                live=Turn(self.agent, capability, listener=self.heard.append),
                entry=entry,
                **more,
            )
        )

    async def converse(self, tool: str, job: str = "j", **more: Any) -> Outcome:
        """Call a tool, and answer whatever it asks with the name of the job."""
        given: dict[str, Answer] = {}
        outcome = await self.call(tool, job, **more)
        while isinstance(outcome, Needs):
            given |= {one.id: Answer(data={"size": job}) for one in outcome.questions}
            outcome = await self.call(tool, job, entry="answer", answers=given, state=outcome.state, **more)
        return outcome


@asynccontextmanager
async def talking(where: str, **meta: str) -> AsyncIterator[Talk]:
    connector = MCPConnector()
    talk = Talk(connector, await connector.describe(where, route=Route("mcp", where, meta=meta), registered=True))
    try:
        yield talk
    finally:
        await talk.park.aclose()
        await connector.aclose()


def said(outcome: Outcome) -> str:
    assert isinstance(outcome, (Done, Failed)), outcome
    return str(outcome.parts[-1].data if isinstance(outcome, Done) else outcome.message)


# Eras


def test_a_server_of_both_eras_can_ask_in_either(tmp_path: Path) -> None:
    file = tmp_path / "notes"

    async def story() -> None:
        async with standing(file) as where, talking(where) as talk:
            assert talk.agent.card["eras"] == ["modern", "legacy"]
            # What may have consequences is run once: in the era in which most tools ask.
            assert "accept j" in said(await talk.converse("order"))
            assert notes(file) == ["order legacy"]
            # What only reads is tried in the modern era first, and then remembered.
            assert "accept j" in said(await talk.converse("look"))
            assert "accept k" in said(await talk.converse("look", "k"))
            assert notes(file)[1:] == ["look modern", "look legacy", "look legacy"]

    run(story())


def test_a_modern_server_is_told_the_method_in_the_other_era_too(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[dict[str, str]] = []
        async with standing(tmp_path / "notes", seen=seen) as where, talking(where) as talk:
            assert "accept j" in said(await talk.converse("order"))
        told = [headers.get("mcp-method") for headers in seen]
        assert {"server/discover", "initialize", "notifications/initialized", "tools/call"} <= set(told)
        assert [one.get("mcp-name") for one in seen if one.get("mcp-method") == "tools/call"] == ["order"]
        # Only an answer has no method: the one to the question.
        assert told.count(None) == 1
        # A server without tools has nothing that could ask.
        seen.clear()
        async with standing(tmp_path / "notes", seen=seen, tools=False) as where, talking(where) as talk:
            assert talk.agent.card["eras"] == ["modern"]
        assert "initialize" not in [headers.get("mcp-method") for headers in seen]

    run(story())


def test_a_tool_that_could_not_ask_is_not_run_again_by_us(tmp_path: Path) -> None:
    file = tmp_path / "notes"

    async def story() -> None:
        async with standing(file) as where, talking(where) as talk:
            assert "Call it again" in said(await talk.converse("wish"))
            assert notes(file) == ["wish legacy"]
            # There was no requestState, so none is sent back.
            assert "accept j None" in said(await talk.converse("wish"))

    run(story())


def test_a_program_whose_tool_asks_by_its_result_needs_the_other_era(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(Command(**mcp_asking.command(tmp_path / "notes")).address) as talk:
            assert "--era modern" in said(await talk.converse("wish"))
            assert "accept j" in said(await talk.converse("order"))

    run(story())


def test_an_mcp_client_is_served_in_its_own_era_and_asked_in_any(tmp_path: Path) -> None:
    file = tmp_path / "notes"

    def client(era: str) -> dict[str, Any]:
        return {PASSED: {"can": ["form"], "era": era}}

    async def story() -> None:
        async with standing(file) as where, talking(where) as talk:
            assert "accept j" in said(await talk.converse("wish", meta=client("modern")))
            assert notes(file) == ["wish modern", "wish modern"]
            first = await talk.call("order", meta=client("modern"))
            assert isinstance(first, Failed)  # in the words of the server, as without a gateway
            assert "Call it again" not in first.message
            assert "accept j" in said(await talk.converse("order", meta=client("modern")))
            assert "accept k" in said(await talk.converse("order", "k", meta=client("legacy")))
            assert notes(file)[2:] == ["order modern", "order legacy", "order legacy"]
            # That a tool asks in one era does not say that it cannot in the other.
            assert "accept j" in said(await talk.converse("look", meta=client("legacy")))
            assert "accept k" in said(await talk.converse("look", "k", meta=client("modern")))
            assert notes(file)[5:] == ["look legacy", "look modern", "look legacy"]

    run(story())


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_operator_can_choose_the_era(tmp_path: Path, era: str, transport: str) -> None:
    file = tmp_path / "notes"

    async def story() -> None:
        async with standing(file) as url:
            where = url if transport == "http" else Command(**mcp_asking.command(file)).address
            async with talking(where, era=era) as talk:
                assert talk.agent.card["eras"] == [era]
                assert "plain" in said(await talk.call("plain"))
                assert notes(file) == [f"plain {era}"]
                asks = "wish" if era == "modern" else "order"
                assert "accept j" in said(await talk.converse(asks))

    run(story())


def test_a_server_of_the_old_transport_is_spoken_to_and_its_end_survived(tmp_path: Path) -> None:
    """HTTP with SSE, as of 2024-11-05: the POST is refused, and a stream says where messages go."""
    file = tmp_path / "notes"

    async def story() -> None:
        connector = MCPConnector()
        async with standing(file, old=True) as where:
            talk = Talk(connector, await connector.describe(where, registered=True))
            assert "plain" in said(await talk.call("plain"))
            people = [Principal(f"p{number}") for number in range(3)]
            asked = await asyncio.gather(*(talk.call("order", one.id, principal=one) for one in people))
            assert all(isinstance(outcome, Needs) for outcome in asked)
            for one in people:
                given = {"q1": Answer(data={"size": one.id})}
                done = await talk.call("order", one.id, entry="answer", answers=given, principal=one)
                assert f"accept {one.id}" in said(done)
            port = int(where.split(":")[2].split("/")[0])
        async with standing(file, port=port, old=True):
            assert "plain" in said(await talk.call("plain"))
        await talk.park.aclose()
        await connector.aclose()

    run(story())


@asynccontextmanager
async def old_stream(*frames: bytes) -> AsyncIterator[tuple[OldHTTPChannel, set[asyncio.Event], list[bytes]]]:
    """A channel to a server of the old transport that says just this, its streams until they end, and what it is told.

    After what it says, its stream stays open.
    """
    streams: set[asyncio.Event] = set()
    told: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        if scope["method"] == "POST":
            told.append(message["body"])
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body"})
            return
        ended = asyncio.Event()
        streams.add(ended)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    gate = Gate(Policy(allow_hosts=frozenset({f"127.0.0.1:{port}"}), schemes=("http",)))
    channel = OldHTTPChannel(gate, f"http://127.0.0.1:{port}/sse")
    try:
        yield channel, streams, told
    finally:
        await channel.aclose()
        await gate.aclose()
        server.should_exit = True
        await serving


def test_an_odd_address_of_the_old_transport_is_refused_and_its_stream_closed() -> None:
    async def story() -> None:
        async with old_stream(b"event: endpoint\ndata: http://[x\n\n") as (channel, streams, _):
            with pytest.raises(ServerError, match="address for messages"):
                await channel.open(60)
            assert len(streams) == 1
            await next(iter(streams)).wait()

    run(story())


def test_events_of_the_old_transport_that_are_no_messages_end_nothing() -> None:
    async def story() -> None:
        frames = (
            b"event: endpoint\ndata: /messages\n\n",
            b"event: ping\ndata: 2026-11-18\n\n",
            b"data: what is this\n\n",
            b'event: message\ndata: {"jsonrpc":"2.0","id":7,"method":"ping"}\n\n',
        )
        async with old_stream(*frames) as (channel, _, told):
            await channel.open(60)
            await eventually(lambda: bool(told))
            assert channel.alive
            assert msgspec.json.decode(told[0]) == {"jsonrpc": "2.0", "id": 7, "result": {}}

    run(story())


def test_another_version_behind_the_same_address_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    changed: list[str] = []

    async def story() -> None:
        connector = MCPConnector(on_change=changed.append)
        async with standing(file) as where:
            talk = Talk(connector, await connector.describe(where, registered=True))
            assert "accept j" in said(await talk.converse("order"))
            port = int(where.split(":")[2].split("/")[0])
        async with standing(file, "2", port):
            assert "plain" in said(await talk.call("plain"))
            assert "accept j" in said(await talk.converse("look"))
            assert changed == [where]
            assert (await connector.describe(where, registered=True)).version == "2"
        await talk.park.aclose()
        await connector.aclose()

    run(story())


def test_tools_for_able_clients_are_listed_too() -> None:
    async def story() -> None:
        words = mcp_program.command()
        async with talking(Command(words[0], tuple(words[1:])).address) as talk:
            assert talk.agent.capability("sample") is not None
            asks = talk.agent.capability("ask")
            assert asks is not None
            assert asks.input_schema == {"type": "object"}  # some write null for what they leave out

    run(story())


# Many questions at once


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool loses the floor because the machine is slow."""
    for name in ("_FIRST", "_LONGEST"):
        monkeypatch.setattr(f"agent3.protocols.mcp.client.floor.{name}", 120.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_fifty_open_questions_are_told_apart_and_keep_nobody_waiting(tmp_path: Path, way: str) -> None:
    file = tmp_path / "notes"

    async def story(where: str) -> None:
        async with talking(where) as talk:
            jobs = [f"j{number}" for number in range(50)]
            asked = dict(zip(jobs, await asyncio.gather(*(talk.call("aside", job) for job in jobs)), strict=True))
            assert all(isinstance(outcome, Needs) for outcome in asked.values())
            assert [event.text for event in talk.heard if event.kind == "progress"] == ["halfway"] * 50
            assert await talk.call("count", "plain") == Done((Part(text="counted"),))
            # A job that is cancelled frees what it held.
            assert isinstance(await talk.call("aside", "j7", entry="cancel"), Failed)
            await eventually(lambda: "aside cancelled" in notes(file))
            # Answered in another order than asked, each call gets its own answer.
            for job in reversed(jobs):
                if job != "j7":
                    given = {"q1": Answer(data={"size": job})}
                    done = await talk.call("aside", job, entry="answer", answers=given)
                    assert done == Done((Part(text=f"accept {{'size': '{job}'}}"),))
            assert [line for line in notes(file) if line.startswith("pid")] == [
                notes(file)[0]
            ]  # one process, one state

    if way == "stdio":
        run(story(Command(**command(file, "--legacy")).address))
    else:
        with served(file, "--legacy") as site:
            run(story(site.url))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_callers_whose_questions_could_be_mistaken_each_get_a_connection_of_their_own(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.protocols.mcp.client.upstream._OWN_LINES", 4)
    file = tmp_path / "notes"
    people = [Principal(f"p{number}") for number in range(2)]

    async def answer(talk: Talk, job: str, principal: Principal) -> Outcome:
        given = {"q1": Answer(data={"size": job})}
        return await talk.call("aside", job, entry="answer", answers=given, principal=principal)

    async def story(where: str) -> None:
        async with talking(where) as talk:
            # All at once, before it is known that the tool asks.
            asked = await asyncio.gather(*(talk.call("aside", one.id, principal=one) for one in people))
            assert all(isinstance(outcome, Needs) for outcome in asked)
            # A second one of somebody who waits already, and one that comes later.
            assert isinstance(await talk.call("aside", "again", principal=people[0]), Needs)
            late = Principal("late")
            assert isinstance(await talk.call("aside", "late", principal=late), Needs)
            assert await talk.call("count", "plain", principal=Principal("other")) == Done((Part(text="counted"),))
            # Theirs is not used any more, and given to the next; then there is none, until somebody is done.
            last, more = Principal("last"), Principal("more")
            assert isinstance(await talk.call("aside", "last", principal=last), Needs)
            waiting = asyncio.create_task(talk.call("aside", "more", principal=more))
            await eventually(lambda: any("other callers" in str(event.text) for event in talk.heard))
            assert await answer(talk, "last", last) == Done((Part(text="accept {'size': 'last'}"),))
            assert isinstance(await waiting, Needs)
            assert await answer(talk, "more", more) == Done((Part(text="accept {'size': 'more'}"),))
            for job, one in [("again", people[0]), ("late", late), *((one.id, one) for one in people)]:
                assert await answer(talk, job, one) == Done((Part(text=f"accept {{'size': '{job}'}}"),))
            if way == "stdio":
                assert len({line for line in notes(file) if line.startswith("pid")}) == 7, (
                    "one for each caller, and ours"
                )

    if way == "stdio":
        run(story(Command(**command(file, "--legacy")).address))
    else:
        with served(file, "--legacy") as site:
            run(story(site.url))


def test_a_question_shown_with_the_wrong_call_is_put_again_when_that_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ask after their time on the floor; which question is whose cannot be told, and both calls end."""
    monkeypatch.setattr("agent3.protocols.mcp.client.floor._FIRST", 0.0)
    monkeypatch.setattr("agent3.protocols.mcp.client.floor._LONGEST", 0.0)
    file = tmp_path / "notes"

    def choose_wrong(floor: Any, candidates: set[Any]) -> Any:
        seat = min(candidates, key=lambda one: (one.open, -list(floor._seats.values()).index(one)))
        floor._open(seat)
        return seat

    monkeypatch.setattr(Floor, "_choose", choose_wrong)

    async def story() -> None:
        async with talking(Command(**command(file, "--legacy")).address) as talk:
            ended = await asyncio.gather(*(talk.converse("aside", job) for job in ("j0", "j1")))
            assert [str(outcome.parts[0].text)[:16] for outcome in ended if isinstance(outcome, Done)] == [
                "accept {'size': "
            ] * 2

    run(story())


PROGRAM = """
import json, sys
asked = {}
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def end(key, text):
    say(id=key, result={"content": [{"type": "text", "text": text}]})
for line in sys.stdin:
    message = json.loads(line)
    key, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "asking", "version": "1"}
        say(id=key, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        say(id=key, result={"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("order", "plain")]})
    elif method == "tools/call" and params["name"] == "plain":
        end(key, "plain")
    elif method == "tools/call":
        asked[f"q{key}"] = key
        schema = {"type": "object", "properties": {"size": {"type": "string"}}}
        say(id=f"q{key}", method="elicitation/create", params={"message": "Size?", "requestedSchema": schema})
    elif method is None:
        end(asked.pop(key), f"{message['result']['action']} {message['result']['content']['size']}")
"""
"""A server over stdio that asks as those of the handshake era do: nothing says which call its question belongs to."""


def test_fifty_callers_of_one_program_think_and_the_next_one_is_served_at_once() -> None:
    async def story() -> None:
        async with talking(Command(sys.executable, ("-I", "-S", "-c", PROGRAM)).address) as talk:
            crowd = [Principal(f"p{number}") for number in range(51)]
            asked = await asyncio.gather(*(talk.call("order", one.id, principal=one) for one in crowd[:50]))
            assert all(isinstance(outcome, Needs) for outcome in asked)
            assert await talk.call("plain", "late", principal=crowd[50]) == Done((Part(text="plain"),))
            assert isinstance(await talk.call("order", "p50", principal=crowd[50]), Needs)
            for one in crowd:
                given = {"q1": Answer(data={"size": one.id})}
                done = await talk.call("order", one.id, entry="answer", answers=given, principal=one)
                assert done == Done((Part(text=f"accept {one.id}"),))

    run(story())


def test_where_memory_is_short_a_further_caller_of_a_program_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0
    monkeypatch.setattr("agent3.protocols.mcp.client.upstream.find_free_memory", lambda: free)
    monkeypatch.setattr("agent3.protocols.mcp.client.upstream._FEW_PROCESSES", 2)

    async def story() -> None:
        nonlocal free
        async with talking(Command(sys.executable, ("-I", "-S", "-c", PROGRAM)).address) as talk:
            people = [Principal(f"p{number}") for number in range(3)]
            for one in people[:2]:
                assert isinstance(await talk.call("order", one.id, principal=one), Needs)
            waiting = asyncio.create_task(talk.call("order", "p2", principal=people[2]))
            await eventually(lambda: any("is used by 2 other callers" in str(event.text) for event in talk.heard))
            assert not waiting.done()
            free = 1 << 40
            assert isinstance(await waiting, Needs)

    run(story())


class Calls:
    """Calls and questions on one connection, each until the test ends it."""

    def __init__(self, **habits: bool):
        self.floor: Floor[str] = Floor(habits)
        self._ends: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def begin(self, call: str, tool: str = "late", caller: str | None = None) -> None:
        end, begun = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async with self.floor.work(tool, call, caller or call):
                begun.set()
                await end.wait()

        task, waiting = asyncio.create_task(work()), asyncio.create_task(begun.wait())
        self._ends[call] = end, task
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            del self._ends[call]
            await task

    async def end(self, call: str) -> None:
        end, task = self._ends.pop(call)
        end.set()
        await task

    async def give_up(self, call: str) -> None:
        _, task = self._ends.pop(call)
        task.cancel()
        await asyncio.wait([task])

    async def question(self) -> tuple[asyncio.Task[None], list[str | None]]:
        """A question that is never answered, and whom it was put to, if anybody yet."""
        put: list[str | None] = []

        async def ask() -> None:
            async with self.floor.question() as call:
                put.append(call)
                await asyncio.Event().wait()

        task = asyncio.create_task(ask())
        for _ in range(5):
            await asyncio.sleep(0)
        return task, put


def test_a_question_is_held_until_the_server_has_ended_all_other_calls() -> None:
    async def story() -> None:
        calls = Calls(late=False)
        await calls.begin("alice")
        await calls.begin("bob")
        asking, put = await calls.question()
        await calls.begin("carol")
        assert put == []
        await calls.end("bob")
        for _ in range(5):
            await asyncio.sleep(0)
        assert put == ["alice"], "it was asked before carol came"
        asking.cancel()
        await calls.end("alice")
        await calls.end("carol")

    run(story())


def test_a_question_that_is_asked_anew_can_still_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that it was put to first has ended; what cancels it then is not that."""

    async def story() -> None:
        asked = asyncio.Event()

        async def wait_for_answer(message: Any, asking: Any) -> bytes:
            asked.set()
            await asyncio.Event().wait()
            return b""

        monkeypatch.setattr(upstream, "answer_request", wait_for_answer)
        calls = Calls(asks=True, late=False)
        session: Any = object.__new__(upstream.Session)
        session._running, session._floor = {}, calls.floor
        first: Any = type("Pending", (), {"has_ended": False})()
        await calls.begin(first, "asks", caller="alice")
        asking = asyncio.create_task(session.answer({"id": 1, "method": "elicitation/create"}))
        await asked.wait()
        await calls.begin("second", caller="alice")
        await calls.begin("third", caller="alice")
        first.has_ended = True
        asking.cancel()  # as the first call does when it ends
        await calls.end(first)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done(), "it is held among the others"
        asking.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asking.cancelled()
        await calls.end("second")
        await calls.end("third")

    run(story())


@pytest.mark.parametrize("came", ["before", "after"])
def test_a_question_of_a_call_that_was_given_up_is_put_to_nobody_else(came: str) -> None:
    """The server may go on with a call that was cancelled or took too long, and ask for it."""

    async def story() -> None:
        calls = Calls(late=False)
        await calls.begin("alice")
        await calls.begin("bob")
        if came == "before":
            asking, put = await calls.question()
            assert put == []
            await calls.give_up("alice")
        else:
            await calls.give_up("alice")
            asking, put = await calls.question()
        for _ in range(5):
            await asyncio.sleep(0)
        assert put == [None]
        asking.cancel()
        # A call of the same caller may ask meanwhile.
        await calls.end("bob")
        await calls.begin("again", caller="alice")
        asking, put = await calls.question()
        assert put == ["again"]
        asking.cancel()
        await calls.end("again")

    run(story())


def test_a_second_question_of_a_call_that_waits_is_put_to_no_other_caller() -> None:
    async def story() -> None:
        calls = Calls(asks=True, late=False)
        await calls.begin("alice", "asks")
        first, put = await calls.question()
        assert put == ["alice"]
        with pytest.raises(Crowded):  # also with a tool that never asked
            await calls.begin("bob")
        await calls.begin("more", "late", caller="alice")
        await calls.end("more")
        second, put = await calls.question()
        assert put == ["alice"]
        await calls.end("alice")
        with pytest.raises(Crowded):  # the connection stays with who was asked on it
            await calls.begin("bob")
        for task in (first, second):
            task.cancel()

    run(story())


def test_tools_that_have_never_ended_are_run_for_one_caller_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take before they ask."""
    monkeypatch.setattr("agent3.protocols.mcp.client.floor._FIRST", 0.0)

    async def story() -> None:
        calls = Calls(late=False)
        await calls.begin("alice", "new")
        await asyncio.sleep(0.01)  # her time to ask first is over
        await calls.begin("carol", "late")
        coming = asyncio.create_task(calls.begin("bob", "new"))
        await asyncio.sleep(0.01)
        assert not coming.done()
        await calls.end("alice")
        await coming
        await calls.end("bob")
        await calls.begin("bob", "newer")
        await calls.give_up("bob")
        monkeypatch.setattr("agent3.protocols.mcp.client.floor._LONGEST", 0.0)
        with pytest.raises(Crowded):  # his may go on at the server, and ask
            await calls.begin("alice", "other")
        await calls.end("carol")

    run(story())


def test_as_many_questions_as_calls_of_several_callers_are_refused_once() -> None:
    """Either may have asked both. Refusing one alone could end its call, and the other would look clear."""

    async def story() -> None:
        calls = Calls(late=False)
        await calls.begin("alice")
        await calls.begin("bob")
        one, first = await calls.question()
        two, second = await calls.question()
        assert (first, second) == ([None], [None])
        await calls.end("alice")
        with pytest.raises(Crowded):  # from now on each of them has a connection of its own
            await calls.begin("alice")
        await calls.end("bob")
        one.cancel()
        two.cancel()

    run(story())


def test_questions_of_one_caller_are_never_refused() -> None:
    async def story() -> None:
        calls = Calls(late=False)
        await calls.begin("one", caller="alice")
        await calls.begin("two", caller="alice")
        tasks, put = zip(*[await calls.question() for _ in range(2)], strict=True)
        assert sorted(put) == [["one"], ["two"]]
        third, more = await calls.question()  # a second one of either
        assert more in (["one"], ["two"])
        for task in (*tasks, third):
            task.cancel()
        await calls.end("one")
        await calls.end("two")

    run(story())


def test_a_tool_that_never_asked_needs_no_floor() -> None:
    async def story() -> None:
        habits: dict[str, bool] = {}
        floor: Floor[int] = Floor(habits)
        async with floor.work("tool", 1, "me"):
            waiting = asyncio.create_task(floor.work("tool", 2, "me").__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert habits == {"tool": False}
        async with floor.work("tool", 3, "me"), floor.work("tool", 4, "me"):
            pass

    run(story())


def test_a_cancelled_wait_for_the_floor_blocks_nobody() -> None:
    async def story() -> None:
        floor: Floor[int] = Floor({"asks": True})
        async with floor.work("asks", 1, "me"):
            gone = asyncio.create_task(floor.work("asks", 2, "me").__aenter__())
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
        async with floor.work("asks", 3, "me"):
            pass

    run(story())
