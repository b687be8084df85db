"""``agent3 add`` for A2A: what it finds out from an address, a card and a file, and that cards are renewed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from agent3.errors import SetupError, TargetError, TargetRefused, Unavailable
from agent3.gateway import renewal as renewing
from agent3.gateway.gateway import Caller, CallRequest, status_of
from agent3.model import LOCAL, Agent, Done, Outcome, value_of
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from tests.support.a2a_peers import Peer, first, official
from tests.support.a2a_toy import toy
from tests.support.gateway import hosted, run_agent3
from tests.support.registration import add, add_all, renew

Story = Callable[[Server], Awaitable[None]]


@pytest.fixture(scope="module")
def agent() -> Iterator[Peer]:
    with official() as peer:
        yield peer


@pytest.fixture(autouse=True)
def open_again(agent: Peer) -> Iterator[None]:
    yield
    agent.refuse = lambda path, headers: None


@asynccontextmanager
async def gateway(url: str = ":memory:") -> AsyncIterator[Server]:
    async with build(Settings(storage=Storage(url=url))) as server:
        yield server


def tell(story: Story) -> None:
    async def told() -> None:
        async with asyncio.timeout(60), gateway() as server:
            await story(server)

    asyncio.run(told())


async def said(server: Server, agent: Agent, message: str = "hi") -> Any:
    outcome: Outcome = await server.gateway.call(Caller(LOCAL), CallRequest(agent=agent.id, message=message))
    assert isinstance(outcome, Done), outcome
    return value_of(outcome.parts)


@pytest.mark.parametrize("path", ["", "/", "/rpc", "/.well-known/agent-card.json"])
def test_an_agent_is_found_from_its_card_its_endpoint_and_its_site(agent: Peer, path: str) -> None:
    async def story(server: Server) -> None:
        added = await add(server, f"{agent.url}{path}")
        assert (added.id, added.source) == ("official-agent", f"{agent.url}/.well-known/agent-card.json")
        assert {route.protocol for one in added.capabilities for route in one.routes} == {"a2a"}
        assert await said(server, added) == "echo: hi"
        found = await server.gateway.search(Caller(LOCAL), "pizza talk")
        assert found["agents"][0]["id"] == "official-agent"

    tell(story)


def test_the_older_name_of_a_card_is_looked_for_last() -> None:
    async def story(server: Server) -> None:
        added = await add(server, f"{peer.url}/a2a", "Grandfather")
        assert (added.id, added.source) == ("grandfather", f"{peer.url}/.well-known/agent.json")
        asked = [one for one in peer.paths if one.startswith("GET") and ".well-known" in one]
        assert [one.removeprefix("GET ") for one in asked][:4] == [
            "/a2a/.well-known/agent-card.json",
            "/.well-known/agent-card.json",
            "/a2a/.well-known/agent.json",
            "/.well-known/agent.json",
        ]
        assert await said(server, added) == "echo: hi"

    with first() as (peer, _):
        tell(story)


def test_an_agent_behind_another_gateway_is_added_by_its_address(tmp_path: Path) -> None:
    with hosted(tmp_path, [toy()]) as other:

        async def story(server: Server) -> None:
            added = await add(server, f"{other.url}/agents/toy/a2a")
            assert {"echo", "book", "story"} <= {one.name for one in added.capabilities}
            outcome = await server.gateway.call(
                Caller(LOCAL), CallRequest(agent=added.id, capability="echo", message="far away")
            )
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "echo: far away"

        tell(story)


def test_a_card_is_added_from_a_file_and_is_not_asked_for(agent: Peer, tmp_path: Path) -> None:
    card = {
        "name": "By Hand",
        "version": "1",
        "url": f"{agent.url}/rpc",
        "protocolVersion": "1.0",
        "capabilities": {"streaming": True},
        "skills": [{"id": "talk", "name": "Talk", "description": "Talk", "tags": []}],
    }
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card))

    async def story(server: Server) -> None:
        agent.paths.clear()
        (added,) = await add_all(server, str(file))
        assert added.agent is not None
        assert added.agent.id == "by-hand"
        assert not agent.paths
        assert await said(server, added.agent) == "echo: hi"
        assert agent.paths == ["POST /rpc"]
        assert await renew(server, f"{agent.url}/rpc") == []
        with pytest.raises(SetupError, match="no MCP servers"):
            await add(server, '{"name": "neither"}')

    tell(story)


def test_what_is_neither_is_told_as_before(agent: Peer) -> None:
    async def story(server: Server) -> None:
        agent.refuse = lambda path, headers: Response("<html>", media_type="text/html")
        with pytest.raises(TargetError):
            await add(server, f"{agent.url}/page")
        with pytest.raises(Unavailable):
            await add(server, "http://127.0.0.1:1/")

    tell(story)


def test_who_must_show_a_credential_is_told_what_to_type(agent: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: str, headers: dict[str, str]) -> Response | None:
        right = headers.get("authorization") == "Bearer the-right-key"
        return None if right else JSONResponse({"error": "no"}, 401)

    async def story(server: Server) -> None:
        agent.refuse = locked
        with pytest.raises(TargetRefused, match="--credential env:NAME"):
            await add(server, f"{agent.url}/.well-known/agent-card.json")
        monkeypatch.setenv("KEY", "the-right-key")
        added = await add(server, f"{agent.url}/.well-known/agent-card.json", credential="env:KEY")
        assert await said(server, added) == "echo: hi"
        stored = await server.database.all("SELECT body FROM agents")
        assert all(b"the-right-key" not in bytes(row["body"]) for row in stored)

    tell(story)


def test_a_secret_in_the_address_is_a_reference(agent: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASS", "s3cr3t-in-the-query")

    def locked(path: str, headers: dict[str, str]) -> Response | None:
        wanted = "well-known" not in path or "key=s3cr3t-in-the-query" in path
        return None if wanted else Response(status_code=404)

    async def story(server: Server) -> None:
        agent.refuse = locked
        with pytest.raises(SetupError, match="contains a secret"):
            await add(server, f"{agent.url}/.well-known/agent-card.json?key=s3cr3t-in-the-query")
        added = await add(server, f"{agent.url}/.well-known/agent-card.json?key=env:PASS")
        assert "key=env:PASS" in added.capabilities[0].routes[0].address
        assert await said(server, added, "s3cr3t-in-the-query") == "echo: ***"
        stored = await server.database.all("SELECT body FROM agents")
        assert all(b"s3cr3t-in" not in bytes(row["body"]) for row in stored)

    tell(story)


def test_a_card_is_renewed_and_one_that_did_not_change_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "TOGETHER", 0.01)
    monkeypatch.setattr(renewing, "APART", 0.01)

    async def story(server: Server) -> None:
        added = await add(server, peer.url, changes="trust")
        address = added.capabilities[0].routes[0].address
        assert await renew(server, address) == []
        peer.headers.clear()
        assert await renew(server, address) == []
        assert "if-none-match" in peer.headers[-1]
        card = {**added.card, "skills": [*added.card["skills"], {"id": "new", "name": "New"}]}
        peer.refuse = lambda path, headers: JSONResponse(card) if "agent.json" in path else None
        (now,) = await renew(server, address)
        assert [one.name for one in now.capabilities] == ["talk", "new"]
        peer.refuse = lambda path, headers: Response(status_code=500)
        (down,) = await renew(server, address)
        assert status_of(down) == "unreachable"
        assert [one.name for one in down.capabilities] == ["talk", "new"]

    with first() as (peer, _):
        tell(story)


def test_the_command_line_adds_and_calls_an_agent(agent: Peer, tmp_path: Path) -> None:
    added = run_agent3(tmp_path, "add", agent.url, "--name", "talker", "--json")
    assert added.returncode == 0, added.stderr
    called = run_agent3(tmp_path, "call", "talker", "hello from the shell", "--json")
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["result"] == "echo: hello from the shell"
