"""``add``: what it finds out by itself, what it refuses, and that what it stored can be called through every step."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.errors import AgentNotFound, Conflict, SetupError, TargetError, Unavailable
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Done, Needs, Outcome, value_of
from agent3.protocols.mcp import MCPConnector
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from tests.support.mcp_upstream import command, served
from tests.support.registration import add, add_all, remove, renew
from tests.support.sites import Site

ME = Caller(LOCAL, "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Server]:
    settings = Settings(storage=Storage(url=f"sqlite:///{folder / 'adding.db'}"))
    async with build(settings) as server:
        connectors = server.core.connectors
        assert isinstance(connectors, dict)
        connectors.setdefault("mcp", MCPConnector())
        yield server


async def call(server: Server, agent: str, capability: str, given: Any = None) -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent=agent, capability=capability, input=given or {}))


def test_an_ordinary_website_is_told_the_way_to_an_interface(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            with pytest.raises(
                TargetError, match=f"agent3 web learn {url} --out site.yaml, then: agent3 add site.yaml"
            ):
                await add(server, url)

    with Site({"/": "<!doctype html><title>Tea</title><h1>Tea</h1>"}) as site:
        run(story(site.url))


def test_a_url_is_added_called_and_removed(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            agent = await add(server, url)
            assert agent.id == "test-server"
            assert agent.source == url
            outcome = await call(server, "test-server", "echo", {"text": "through the gateway"})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == {"text": "through the gateway"}
            found = await server.gateway.search(ME, "echo")
            assert found["agents"][0]["id"] == "test-server"
            assert await add(server, url) == agent  # again: brought up to date
            await remove(server, "test-server")
            with pytest.raises(AgentNotFound):
                await call(server, "test-server", "echo")
            with pytest.raises(AgentNotFound):
                await remove(server, "test-server")

    with served(tmp_path / "notes") as site:
        run(story(site.url))


def test_the_address_of_a_site_leads_to_its_endpoint(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            agent = await add(server, url.removesuffix("/mcp"), "Mine")
            assert (agent.id, agent.name) == ("mine", "Mine")
            assert agent.source == url

    with served(tmp_path / "notes", "--path", "/mcp") as site:
        run(story(site.url))


def test_a_command_is_added_and_asks_through_the_gateway(tmp_path: Path) -> None:
    given = command(tmp_path / "notes", "--legacy")
    line = shlex.join(["env", "-C", given["cwd"], given["command"], *given["args"]])

    async def story() -> None:
        async with gateway(tmp_path) as server:
            agent = await add(server, line, "local tools")
            assert agent.id == "local-tools"
            outcome = await call(server, "local-tools", "ask")
            for answer in ({"size": "S"}, {"size": "L"}):
                assert isinstance(outcome, Needs)
                assert outcome.job is not None
                outcome = await server.gateway.answer(ME, outcome.job, {outcome.questions[0].id: Answer(data=answer)})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "accept {'size': 'S'} accept {'size': 'L'}"

    run(story())


def test_a_client_config_is_added_and_a_dead_server_does_not_keep_others_out(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        entries = {"good": {"type": "http", "url": url}, "dead": {"command": "no-such-program-anywhere"}}
        config = tmp_path / "claude.json"
        config.write_text(json.dumps({"mcpServers": entries}))
        async with gateway(tmp_path) as server:
            results = {one.name: one for one in await add_all(server, str(config))}
            assert results["good"].agent is not None
            assert results["good"].agent.id == "good"
            assert isinstance(results["dead"].error, Unavailable)
            assert [one.id for one in await server.directory.everything()] == ["good"]
            with pytest.raises(SetupError, match="several servers: dead, good"):
                await add(server, str(config))
            with pytest.raises(Unavailable, match="not found"):
                await add(server, str(config), "dead")

    with served(tmp_path / "notes") as site:
        run(story(site.url))


def test_json_is_taken_as_it_is_written_without_any_space(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            packed = json.dumps({"mcpServers": {"packed": {"url": url}}}, separators=(",", ":"))
            assert (await add(server, packed)).id == "packed"

    with served(tmp_path / "notes") as site:
        run(story(site.url))


def test_credentials_are_references_and_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE_TOKEN", "the-right-key")

    async def story(url: str) -> None:
        config = {"mcpServers": {"site": {"url": url, "headers": {"Authorization": "Bearer ${SITE_TOKEN}"}}}}
        async with gateway(tmp_path) as server:
            for agent in (await add(server, url, "one", "env:SITE_TOKEN"), await add(server, json.dumps(config))):
                assert agent.capabilities[0].routes[0].credential == "env:SITE_TOKEN"
                outcome = await call(server, agent.id, "who")
                assert isinstance(outcome, Done)
                assert value_of(outcome.parts)["authorization"] == "Bearer ***"
            stored = await server.database.all("SELECT body FROM agents")
            assert all(b"the-right-key" not in bytes(row["body"]) for row in stored)

    with served(tmp_path / "notes", "--key", "the-right-key") as site:
        run(story(site.url))


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    async def story(one: str, other: str) -> None:
        async with gateway(tmp_path) as server:
            await add(server, one)
            with pytest.raises(Conflict, match="--name"):
                await add(server, other)
            assert (await add(server, other, "second")).id == "second"

    with served(tmp_path / "one") as one, served(tmp_path / "other") as other:
        run(story(one.url, other.url))


def test_an_added_agent_that_one_of_the_gateway_hides_is_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path}/state.db"))
    agent = LocalAgent("echo")
    agent.add(lambda text: text, name="say", description="Say it.")

    async def story() -> None:
        async with build(settings) as server:
            await add(server, json.dumps({"mcpServers": {"echo": command(tmp_path / "notes.json")}}))
        assert not [one for one in caplog.records if "is not served" in one.message]
        async with build(settings, [agent]):
            pass

    run(story())
    (told,) = [one.message for one in caplog.records if "is not served" in one.message]
    assert "'echo'" in told


def test_a_changed_server_is_brought_up_to_date(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with gateway(tmp_path) as server:
            before = await add(server, url, "mine", changes="trust")
            assert await renew(server, url) == []
            assert isinstance(await call(server, "mine", "grow"), Done)
            (after,) = await renew(server, url)
            assert after.id == "mine"
            assert len(after.capabilities) == len(before.capabilities) + 1
            assert await server.directory.get("mine") == after

    with served(tmp_path / "notes") as site:
        run(story(site.url))


WRONG = [
    ("", "Nothing to add"),
    ("ftp://example.com/mcp", "'ftp' addresses"),
    ("missing.json", "Cannot read"),
    ("{not json}", "not JSON"),
    ('{"mcpServers": {"x": {"url": "https://x/", "key": "sk-123"}}', "The given document is not JSON"),
    ('{"sk-123": {"mcp": 1}}', "The given document contains no MCP servers"),
    ('{"other": 1}', "no MCP servers"),
    ('{"mcpServers": {"x": {}}}', 'neither a "url" nor a "command"'),
    ('{"mcpServers": {"x": {"command": "x", "args": ["--api-key", "sk-123"]}}}', "'api-key' of the command contains"),
    ('{"mcpServers": {"x": {"command": "x", "args": "--all"}}}', '"args" that are not a list'),
    ("run 'unclosed", "cannot be parsed: No closing quotation"),
]


@pytest.mark.parametrize(("what", "words"), WRONG)
def test_what_cannot_be_added_is_explained(tmp_path: Path, what: str, words: str) -> None:
    async def story() -> None:
        async with gateway(tmp_path) as server:
            with pytest.raises(SetupError, match=words) as caught:
                await add(server, what)
            assert not [one for one in ("sk-123", "hush") if one in caught.value.message]

    run(story())
