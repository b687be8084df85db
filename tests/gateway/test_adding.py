"""Adding never disappoints: slow starts are waited for, loops end, the removed is gone, odd servers are recognised."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from agent3.errors import AgentNotFound, CallTimeout, LoopDetected, SecurityError, SetupError, TargetError
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, Price, Working, value_of
from agent3.protocols.mcp.client.channels import PendingRequest
from agent3.server.build import Server, build
from agent3.settings import Budget, Calls, Outbound, Settings, Storage
from tests.support.clock import advance_loop
from tests.support.gateway import gateway, run_agent3
from tests.support.mcp_program import command
from tests.support.mcp_upstream import served
from tests.support.registration import add, add_all, remove

ME = Caller(LOCAL, "test")
UPSTREAM = "agent3.protocols.mcp.client.upstream"


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 120)

    asyncio.run(bounded())


@asynccontextmanager
async def serving(folder: Path, allow_hosts: tuple[str, ...] = (), **calls: Any) -> AsyncIterator[Server]:
    storage = Storage(url=f"sqlite:///{folder / 'adding.db'}")
    settings = Settings(storage=storage, calls=Calls(**calls), outbound=Outbound(allow_hosts=allow_hosts))
    async with build(settings) as server:
        yield server


async def call(server: Server, agent: str, capability: str, given: Any = None, **more: Any) -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent=agent, capability=capability, input=given or {}, **more))


async def until_gone(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        await asyncio.sleep(0.05)


# A start that takes long


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was once the end of a slow program is short, so that only the new patience can be what waits for it."""
    for name in ("_HANDSHAKE", "_NEWS_OF_START"):
        monkeypatch.setattr(f"{UPSTREAM}.{name}", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_program_that_installs_itself_is_waited_for_and_its_last_words_are_told(tmp_path: Path) -> None:
    go = tmp_path / "go"
    told: list[tuple[str, str]] = []

    def tell(name: str, text: str) -> None:
        told.append((name, text))
        if "Downloading 3 of 7 packages" in text:
            go.touch()

    async def story() -> None:
        async with serving(tmp_path) as server:
            line = shlex.join(command("--wait", str(go)))
            agent = await add(server, line, "slow", on_progress=tell)
            assert [one.name for one in agent.capabilities] == ["echo", "environment", "research", "ask", "sample"]
            assert told[-1][0] == "slow"
            assert "is still starting, for" in told[-1][1]

    run(story())


@pytest.mark.usefixtures("impatient")
def test_a_call_does_not_wait_for_a_start_longer_than_it_may_and_the_start_goes_on(tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"

    async def story() -> None:
        go.touch()
        async with serving(tmp_path) as server:
            await add(server, shlex.join(command("--wait", str(go), "--notes", str(notes))), "slow")
        go.unlink()
        notes.unlink()
        async with serving(tmp_path, breaker_failures=1) as server:  # a start is no failure
            calling = asyncio.create_task(call(server, "slow", "echo", {"text": "hi"}, timeout=60.0, retries=0))
            while not notes.exists():
                await asyncio.sleep(0.01)
            advance_loop(55.0)  # more than the share of its time that a call gives to a start
            early = await calling
            assert isinstance(early, Failed)
            assert (early.code, early.retryable, early.retry_after) == ("unavailable", True, 10.0)
            assert "is still starting" in early.message
            assert "try again in 10 s" in early.message
            go.touch()
            late = await call(server, "slow", "echo", {"text": "hi"}, timeout=60.0)
            assert isinstance(late, Done)
            assert value_of(late.parts) == "hi"
            assert len(notes.read_text().split()) == 1  # the one that was starting, and no other

    run(story())


@pytest.mark.usefixtures("impatient")
def test_a_program_that_never_answers_is_given_up_after_the_time_of_the_settings(tmp_path: Path) -> None:
    async def story() -> None:
        told: list[str] = []

        def tell(name: str, text: str) -> None:
            if "Downloading 3 of 7 packages" in text and not told:
                advance_loop(60.0)
                told.append(text)

        async with serving(tmp_path, start_seconds=60.0) as server:
            with pytest.raises(
                CallTimeout, match=r"within 60 s after its start.*calls.start_seconds.*Downloading 3 of 7"
            ):
                await add(server, shlex.join(command("--wait", str(tmp_path / "never"))), "slow", on_progress=tell)
            assert await server.directory.everything() == []

    run(story())


# Loops


def test_a_gateway_is_not_added_to_itself_by_any_of_its_addresses(tmp_path: Path) -> None:
    with gateway(tmp_path, "--demo") as served_here:
        url = served_here.url
        own = [f"{url}/mcp", url, f"{url}/nothing", f"{url}/a2a", f"{url}/agents/echo/mcp", f"{url}/agents/echo/a2a"]
        own += [url.replace("127.0.0.1", "localhost"), f"{url}/ask", f"{url}/.well-known/agent-card.json"]
        for address in own:
            answer = run_agent3(tmp_path, "add", address)
            assert answer.returncode == 1, (address, answer)
            assert "is this gateway itself" in answer.stderr, (address, answer.stderr)
        db = f"sqlite:///{tmp_path / 'agent3.db'}"
        servers = {
            "by-http": {"type": "http", "url": f"{url}/mcp"},
            "by-stdio": {"command": command()[0], "args": ["-m", "agent3", "mcp", "--db", db], "env": _path()},
            "another": {"command": command()[0], "args": command()[1:]},
        }
        file = tmp_path / "claude_desktop_config.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        answer = run_agent3(tmp_path, "add", str(file))
        assert answer.returncode == 0, answer
        assert answer.stderr.count("is this gateway itself; skipped") == 2, answer.stderr
        assert answer.stdout.startswith("Added another: echo, ")


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


def test_a_gateway_is_not_added_to_itself_through_another_and_a_loop_of_calls_ends_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path / "a") as a, gateway(tmp_path / "b") as b:
        assert run_agent3(tmp_path / "b", "add", f"{a.url}/mcp", "--name", "first").returncode == 0
        through = run_agent3(tmp_path / "a", "add", f"{b.url}/agents/first/mcp", "--name", "through")
        assert through.returncode == 1, through
        assert "gateway does not call itself" in through.stderr
        assert run_agent3(tmp_path / "a", "add", f"{b.url}/mcp", "--name", "second").returncode == 0

        def calling(agent: str, inner: dict[str, Any] | None = None) -> dict[str, Any]:
            if inner is None:
                return {"agentId": agent, "capability": "agent3_search", "input": {"query": "anything"}}
            return {"agentId": agent, "capability": "agent3_call", "input": inner}

        for rounds in (calling("second", calling("first")), calling("second", calling("first", calling("second")))):
            said = run_agent3(
                tmp_path / "a", "call", "second", "--capability", "agent3_call", "--input",
                json.dumps(rounds["input"]), "--server", a.url,
            )  # fmt: skip
            assert said.returncode != 0
            assert "gateway does not call itself" in said.stdout + said.stderr
        straight = run_agent3(
            tmp_path / "a", "call", "second", "--capability", "agent3_search", "--input", '{"query": "first"}',
            "--server", a.url,
        )  # fmt: skip
        assert straight.returncode == 0, straight


# Removing


def test_removing_an_agent_by_a_command_ends_its_program_at_the_running_gateway(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with gateway(tmp_path) as here:
        line = shlex.join(command("--notes", str(notes)))
        assert run_agent3(tmp_path, "add", line, "--name", "gone").returncode == 0
        said = run_agent3(
            tmp_path, "call", "gone", "--capability", "echo", "--input", '{"text": "hi"}', "--server", here.url
        )
        assert said.returncode == 0, said
        pid = int(notes.read_text().split()[-1])
        os.kill(pid, 0)
        assert run_agent3(tmp_path, "remove", "gone").returncode == 0
        run(until_gone(pid))


def test_what_others_still_use_goes_on_when_an_agent_is_removed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async def story() -> None:
        async with serving(tmp_path) as server:
            line = shlex.join(command("--notes", str(notes)))
            await add(server, line, "one")
            await add(server, line, "two")
            assert isinstance(await call(server, "two", "echo", {"text": "hi"}), Done)
            (pid,) = {int(word) for word in notes.read_text().split()}
            await asyncio.sleep(1.1)  # two looks at the directory: the second sees a change, and nothing to close
            await remove(server, "one")
            await asyncio.sleep(1.1)
            os.kill(pid, 0)
            await remove(server, "two")
            await until_gone(pid)

    run(story())


# Files


def test_a_file_that_partly_fails_says_so_and_adds_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    good = {"command": command()[0], "args": command()[1:]}
    file.write_text(
        json.dumps({"mcpServers": {"bad": {"args": []}, "dead": {"command": "no-such-program"}, "good": good}})
    )
    answer = run_agent3(tmp_path, "add", str(file))
    assert answer.returncode == 2, answer  # of the first that failed
    assert 'The server \'bad\' has neither a "url" nor a "command".' in answer.stderr
    assert "dead: 'no-such-program' cannot be started" in answer.stderr
    assert "2 of 3 were not added." in answer.stderr
    assert answer.stdout.startswith("Added good: echo, ")


@pytest.mark.requirement("AC-27")
def test_secrets_of_a_file_are_kept_sealed_and_reach_the_program_alone(tmp_path: Path) -> None:
    secret = "hush-hush-4711"
    variables = {"API_TOKEN": secret, "MODE": "plain"}
    entry = {"command": command()[0], "args": command()[1:], "env": variables}

    async def story() -> None:
        async with serving(tmp_path) as server:
            text = json.dumps({"mcpServers": {"sealed": entry}})
            agent = await add(server, text)
            assert secret not in repr(agent)
            outcome = await call(server, "sealed", "environment", {"text": "API_TOKEN"})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "***"  # it got there, and is taken out of what comes back
            outcome = await call(server, "sealed", "environment", {"text": "MODE"})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "plain"
            assert (await add(server, text)).source == agent.source  # again: the same agent
            entry["command"] = "no-such-program"
            variables["API_TOKEN"] = "another-4712"
            with pytest.raises(TargetError):
                await add(server, json.dumps({"mcpServers": {"sealed": entry}}))
            outcome = await call(server, "sealed", "environment", {"text": "API_TOKEN"})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "***"  # what failed has changed nothing
            rows = await server.database.all("SELECT id, sealed FROM kept_secrets")
            assert [row["id"] for row in rows] == ["kept:sealed.API_TOKEN"]
            assert secret not in rows[0]["sealed"]
            await remove(server, "sealed")
            assert await server.database.all("SELECT id FROM kept_secrets") == []

    run(story())


def test_every_header_of_a_file_is_sent_and_none_is_stored_in_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGION_NAME", "eu-1")
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return _greet(await request.json())

    async def story() -> None:
        async with serving(tmp_path) as server, site({"/mcp": answer}) as url:
            headers = {
                "X-Api-Key": "hush-hush-4711",
                "Authorization": "Bearer sk-live-4712",
                "X-Region": "${REGION_NAME}",
            }
            agent = await add(server, json.dumps({"mcpServers": {"headed": {"url": f"{url}/mcp", "headers": headers}}}))
            outcome = await call(server, "headed", "echo", {"text": "hi"})
            assert isinstance(outcome, Done)
            for one in seen:
                assert (one["X-Api-Key"], one["X-Region"]) == ("hush-hush-4711", "eu-1")
                assert one["Authorization"] == "Bearer sk-live-4712"
            row = await server.database.one("SELECT body FROM agents WHERE id = 'headed'")
            assert row is not None
            assert not [one for one in (b"4711", b"4712") if one in bytes(row["body"])]
            assert "hush" not in repr(agent)

    run(story())


# Adding again, and removing


def website(**more: Any) -> str:
    steps = [{"action_type": "navigate", "value": "https://shop.example/"}]
    base = {"interface_id": "shop", "name": "Shop", "base_url": "https://shop.example", "actions": {"go": steps}}
    return json.dumps({**base, **more})


def test_adding_an_agent_again_wrongly_leaves_the_one_that_works(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path) as server:
            await add(server, website())
            await add(server, website(interface_id="other", name="Other", metadata={"stands_in_for": "shop"}))
            works, routes = await server.directory.get("shop"), await server.directory.routes.everything()
            assert [one.by_agent for one, _ in routes] == ["other", "other"]
            with pytest.raises(AgentNotFound):
                await add(server, website(version="2.0.0", metadata={"stands_in_for": "nobody"}))
            assert await server.directory.get("shop") == works
            assert await server.directory.routes.everything() == routes
            with pytest.raises(AgentNotFound):
                await add(server, website(interface_id="third", name="Third", metadata={"stands_in_for": "nobody"}))
            assert sorted(one.id for one in await server.directory.everything()) == ["other", "shop"]

    run(story())


def test_who_leaves_while_an_agent_is_stored_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"API_TOKEN": "hush-hush-4711"}
    entry = {"command": command()[0], "args": command()[1:], "env": variables}

    async def story() -> None:
        storing, go_on = asyncio.Event(), asyncio.Event()

        async def on_added(_: Any) -> None:
            storing.set()
            await go_on.wait()

        async with serving(tmp_path) as server:
            monkeypatch.setattr(server.protocols["mcp"], "on_added", on_added)
            adding = asyncio.ensure_future(add(server, json.dumps({"mcpServers": {"sealed": entry}})))
            await storing.wait()
            adding.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await adding
            outcome = await call(server, "sealed", "environment", {"text": "API_TOKEN"})
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "***"

    run(story())


def test_a_new_agent_inherits_nothing_of_a_removed_one_of_its_id(tmp_path: Path) -> None:
    async def story() -> None:
        budget = Budget(usd=5.0, each="agent", per="all", action="refuse")
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'adding.db'}"), budgets=(budget,))
        async with build(settings) as server:
            line = shlex.join(command())
            agent = await add(server, line, "shop")
            await add(server, line, "workshop")
            prices, reputation = server.core.parts.prices, server.gateway.reputation
            for name in ("shop", "workshop"):
                await prices.set(name, None, Price(call=5.0))
                assert isinstance(await call(server, name, "echo", {"text": "hi"}), Done)
                assert isinstance(await call(server, name, "echo", {"text": "hi"}), Failed)
                await reputation.rate(name, "bob", 1)
            await remove(server, "shop")
            await add(server, line, "shop")
            assert prices.of("shop", agent.capabilities[0]) == Price()
            assert (await reputation.of("shop")).count == 0
            await prices.set("shop", None, Price(call=5.0))
            assert isinstance(await call(server, "shop", "echo", {"text": "hi"}), Done)
            # Those of another agent stay, though its name ends in the same way.
            assert prices.of("workshop", agent.capabilities[0]).call == 5.0
            assert (await reputation.of("workshop")).count == 1
            assert isinstance(await call(server, "workshop", "echo", {"text": "hi"}), Failed)

    run(story())


# Catalogs


def test_an_ai_catalog_is_added_and_decides_nothing_about_what_runs_here(tmp_path: Path) -> None:
    package = {"registryType": "npm", "identifier": "some-server", "version": "1.0.0"}

    async def story(mcp: str) -> None:
        card = {"name": "com.example/echo", "version": "1", "remotes": [{"type": "streamable-http", "url": mcp}]}
        entries = [
            {"displayName": "Inline", "type": "application/mcp-server-card+json", "data": card},
            {"displayName": "Linked", "type": "application/mcp-server-card+json", "url": "/card.json"},
            {"displayName": "Itself", "mediaType": "application/mcp-server+json", "url": mcp},
            {"displayName": "Program", "type": "application/mcp-server-card+json",
             "data": {"name": "com.example/program", "packages": [package]}},
            {"displayName": "Skill", "type": "application/agent-skills+zip", "url": "/skill.zip"},
        ]  # fmt: skip
        nested = {"specVersion": "1.0", "entries": entries}
        top = {
            "specVersion": "1.0",
            "entries": [{"name": "All", "type": "application/ai-catalog+json", "url": "/all.json"}],
        }
        pages = {"/.well-known/ai-catalog.json": _page(top), "/all.json": _page(nested), "/card.json": _page(card)}
        async with serving(tmp_path, (urlsplit(mcp).netloc,)) as server, site(pages) as url:
            results = {one.name: one for one in await add_all(server, f"{url}/.well-known/ai-catalog.json")}
            assert {name for name, one in results.items() if one.agent is not None} == {"Inline", "Linked", "Itself"}
            assert isinstance(results["Program"].error, SetupError)
            assert "may not decide what runs here" in results["Program"].error.message
            assert isinstance(await call(server, "linked", "echo", {"text": "hi"}), Done)

    with served(tmp_path / "notes") as upstream:
        run(story(upstream.url))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_catalog_names_no_program_no_secret_and_no_private_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    monkeypatch.setenv("SOME_PRECIOUS_KEY", "hush-hush-4711")
    ran, seen = tmp_path / "ran", list[str]()
    run_it = {"command": "sh", "args": ["-c", f"touch {ran}"]}
    package = {"registryType": "npm", "identifier": "some-server", "version": "1.0.0"}
    api = {
        "openapi": "3.1.0",
        "info": {"title": "Inner", "version": "1"},
        "paths": {"/": {"get": {"operationId": "look", "responses": {}}}},
    }

    async def note(request: web.Request) -> web.Response:
        seen.append(f"{request.url} {dict(request.headers)}")
        return web.Response(status=404)

    def remote(url: str, **header: str) -> dict[str, Any]:
        return {"name": "x/r", "remotes": [{"type": "streamable-http", "url": url, "headers": [header]}]}

    async def story() -> None:
        async with serving(tmp_path) as server, site({"/{any:.*}": note}) as inner:
            own = "https://stranger.example/mcp"
            described: dict[str, Any] = {
                "client file": {"mcpServers": {"x": run_it}},
                "vs code": {"servers": {"x": run_it}},
                "package": {"name": "x/p", "packages": [package]},
                "another's secret": remote(own, name="X-Note", value="kept:github.GITHUB_TOKEN"),
                "a variable": remote(own, name="X-Note", value="{SOME_PRECIOUS_KEY}"),
                "a variable inside": remote(own, name="X-Note", value="Bearer ${SOME_PRECIOUS_KEY}"),
                "a wanted variable": remote(own, name="SOME_PRECIOUS_KEY", isRequired="yes"),
                "in the address": remote(f"{own}?a=env:&k=%65nv:SOME_PRECIOUS_KEY", name="X", value="y"),
                "a folder": remote(own, name="X-Note", value="${userHome}"),
                "an inner server": remote(f"{inner}/mcp", name="X", value="y"),
                "an inner service": {**api, "servers": [{"url": inner}]},
                "an inner website": {"base_url": inner, "actions": {"go": []}, "interface_id": "w", "name": "W"},
                "an inner agent": {"name": "A", "url": inner, "skills": [], "protocolVersion": "0.3.0"},
            }
            entries: list[dict[str, Any]] = [
                {"displayName": name, "type": "application/mcp-server+json", "data": data}
                for name, data in described.items()
            ]
            entries += [
                {"displayName": "card", "type": "application/agent-card+json", "url": f"{inner}/card.json"},
                {"displayName": "inline card", "type": "application/agent-card+json",
                 "data": {"name": "A", "skills": [{"id": "s", "name": "s", "description": "", "tags": []}],
                          "supportedInterfaces": [{"url": inner, "protocolBinding": "JSONRPC",
                                                   "protocolVersion": "1.0"}]}},
                {"displayName": "server", "type": "application/mcp-server+json", "url": f"{inner}/mcp"},
                {"displayName": "a key", "type": "application/agent-card+json",
                 "url": "https://stranger.example/?k=$SOME_PRECIOUS_KEY&e=${SOME_PRECIOUS_KEY}"},
            ]  # fmt: skip
            pages = {"/.well-known/ai-catalog.json": _page({"specVersion": "1.0", "entries": entries})}
            async with site(pages) as url:
                results = await add_all(server, f"{url}/.well-known/ai-catalog.json", elsewhere=elsewhere)
            assert len(results) == len(entries)
            for one in results:
                if one.agent is not None:  # a card that is given is not asked: nobody reaches it either
                    assert one.name == "inline card"
                    told = await call(server, one.agent.id, "s", {"message": "hi"}, retries=0)
                    assert isinstance(told, Failed)
                    assert "rule 'loopback'" in told.message
            assert not ran.exists()
            assert seen == []
            why = [one.error.message for one in results if one.error is not None]
            assert len([text for text in why if "may not decide what runs here" in text]) == 3
            assert len([text for text in why if "may not decide who gets one" in text]) == 6

    run(story())


def test_a_document_that_was_fetched_names_no_secret_when_added_or_renewed(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Service", "version": "1"},
        "servers": [{"url": "/"}],
        "paths": {"/": {"get": {"operationId": "look", "responses": {"200": {"description": "ok"}}}}},
    }

    async def story() -> None:
        async def page(_: web.Request) -> web.Response:
            return web.json_response(document)

        async with serving(tmp_path) as server, site({"/openapi.json": page}) as url:
            agent = await add(server, f"{url}/openapi.json", "service")
            document["servers"] = [{"url": "https://stranger.example/%24%7BSOME_PRECIOUS_KEY%7D"}]
            with pytest.raises(SecurityError, match="secret of this machine"):
                await add(server, f"{url}/openapi.json", "another")
            assert await server.renewals.renew(agent.capabilities[0].routes[0].address) == []
            assert server.renewals.counts["failed"] == 1
            assert (await server.directory.get("service")).capabilities == agent.capabilities

    run(story())


# Odd first answers


def _greet(message: dict[str, Any], session: str | None = None) -> web.Response:
    """A small legacy server over HTTP."""
    info = {"name": "odd", "version": "1"}
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "hi"}]},
    }
    if "id" not in message:
        return web.Response(status=202)
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in results:
        headers = {"Mcp-Session-Id": session} if session and message["method"] == "initialize" else {}
        return web.json_response({**body, "result": results[message["method"]]}, headers=headers)
    return web.json_response({**body, "error": {"code": -32601, "message": "Method not found"}})


def _page(document: Any) -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(document)

    return answer


@asynccontextmanager
async def site(routes: dict[str, Any]) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "127.0.0.1", 0)
    await listening.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _discarding(request: web.Request) -> web.Response:
    """As a widespread server does: a session id on the refusal of the probe, which it does not know afterwards."""
    message = await request.json()
    if message["method"] == "server/discover":
        return web.json_response({"error": "Missing session"}, status=400, headers={"Mcp-Session-Id": "discarded"})
    if request.headers.get("Mcp-Session-Id") == "discarded":
        return web.json_response({"error": "Session not found"}, status=404)
    return _greet(message, "kept")


async def _crashing(request: web.Request) -> web.Response:
    message = await request.json()
    return web.Response(status=500) if message["method"] == "server/discover" else _greet(message)


async def _missing(request: web.Request) -> web.Response:
    message = await request.json()
    return web.Response(status=404, text="<html>") if message["method"] == "server/discover" else _greet(message)


async def _hanging_up(request: web.Request) -> web.Response:
    message = await request.json()
    if message["method"] == "server/discover":
        assert request.transport is not None
        request.transport.close()
        return web.Response()
    return _greet(message)


async def _moved(request: web.Request) -> web.Response:
    raise web.HTTPTemporaryRedirect("/mcp/")


async def _plain(request: web.Request) -> web.Response:
    return _greet(await request.json())


@pytest.mark.parametrize(
    "routes",
    [
        {"/mcp": _discarding},
        {"/mcp": _crashing},
        {"/mcp": _missing},
        {"/mcp": _hanging_up},
        {"/mcp": _moved, "/mcp/": _plain},
    ],
    ids=["session id on a refusal", "500 at the probe", "404 at the probe", "hangs up at the probe", "redirects"],
)
def test_a_server_behind_an_odd_first_answer_is_recognised(tmp_path: Path, routes: dict[str, Any]) -> None:
    async def story() -> None:
        async with serving(tmp_path) as server, site(routes) as url:
            assert (await add(server, f"{url}/mcp")).id == "odd"
            assert isinstance(await call(server, "odd", "echo"), Done)

    run(story())


def test_a_server_that_drops_what_it_does_not_know_is_looked_at_for_a_card(tmp_path: Path) -> None:
    async def drop(request: web.Request) -> web.Response:
        if request.path == "/.well-known/agent-card.json":
            interface = {"url": f"http://{request.host}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            skill = {"id": "s", "name": "S", "description": "d", "tags": []}
            card = {
                "name": "Shy",
                "description": "d",
                "version": "1",
                "supportedInterfaces": [interface],
                "skills": [skill],
            }
            modes = {"capabilities": {}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
            return web.json_response({**card, **modes})
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def story() -> None:
        async with serving(tmp_path) as server, site({"/{rest:.*}": drop}) as url:
            agent = await add(server, url)
            assert (agent.id, agent.card["name"]) == ("shy", "Shy")

    run(story())


def test_a_plain_service_with_a_description_is_sent_nothing_but_get_while_it_is_added(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append((request.method, request.path))
        if request.path != "/openapi.json":
            return web.Response(status=404)
        operation = {"operationId": "list", "responses": {"200": {"description": "fine"}}}
        info = {"title": "Stock", "version": "1"}
        return web.json_response({"openapi": "3.1.0", "info": info, "paths": {"/items": {"get": operation}}})

    async def story() -> None:
        async with serving(tmp_path) as server, site({"/{rest:.*}": serve}) as url:
            agent = await add(server, url)
            assert agent.capabilities[0].routes[0].protocol == "openapi"
            assert ("GET", "/openapi.json") in seen
            assert {method for method, _ in seen} == {"GET"}

    run(story())


def test_a_redirect_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    async def story(other: str) -> None:
        async def away(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(other)

        async with serving(tmp_path) as server, site({"/mcp": away}) as url:
            with pytest.raises(TargetError, match="redirects to another address"):
                await add(server, f"{url}/mcp")

    with served(tmp_path / "notes") as upstream:
        run(story(upstream.url))


# Tools that are tasks, questions at the end


def test_a_tool_that_can_only_be_a_task_is_called_as_one_and_may_ask(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path) as server:
            await add(server, shlex.join(command()), "tasks")
            outcome = await call(server, "tasks", "research", {"text": "tea"})
            assert isinstance(outcome, Working)
            assert outcome.job is not None
            outcome = await server.gateway.wait(ME, outcome.job, 60)
            assert isinstance(outcome, Needs)
            assert outcome.questions[0].text == "How deep?"
            assert outcome.job is not None
            answers = {outcome.questions[0].id: Answer(data={"text": "very"})}
            outcome = await server.gateway.answer(ME, outcome.job, answers)
            assert isinstance(outcome, Done), outcome
            assert value_of(outcome.parts) == 'tea: {"text": "very"}'

    run(story())


def test_a_gateway_that_stops_while_a_question_waits_leaves_no_traceback(tmp_path: Path) -> None:
    with gateway(tmp_path) as here:
        assert run_agent3(tmp_path, "add", shlex.join(command()), "--name", "asking").returncode == 0
        asked = run_agent3(tmp_path, "call", "asking", "--capability", "ask", "--input", "{}", "--server", here.url)
        assert asked.returncode == 3, asked
        here.stop()
        log = here.log.read_text()
    assert "Traceback" not in log, log
    assert "never retrieved" not in log, log


def test_the_clock_of_a_request_that_is_over_is_left_alone() -> None:
    async def story() -> None:
        pending = PendingRequest()
        async with pending:
            pause = pending.pause_clock()
            pause.__enter__()
        pause.__exit__(None, None, None)  # the question outlived its request
        pending.notify("notifications/progress", {})

    run(story())


# What is shown


def test_instructions_of_others_are_not_shown_in_lists_and_an_example_is(tmp_path: Path) -> None:
    added = run_agent3(tmp_path, "add", shlex.join(command()), "--name", "small")
    assert added.returncode == 0, added
    listed = run_agent3(tmp_path, "list").stdout
    assert "Easter egg" not in listed
    assert "Small program tools: echo, environment, research, ask, sample" in listed
    assert all(len(line) < 400 for line in listed.splitlines())


def test_a_credential_that_the_running_gateway_lacks_is_named_at_once(tmp_path: Path) -> None:
    line = shlex.join(command())
    with gateway(tmp_path) as here:
        words = ("add", line, "--name", "keyed", "--credential", "TOKEN=env:ADDING_TOKEN")
        added = run_agent3(tmp_path, *words, ADDING_TOKEN="hush-hush-1")
        assert added.returncode == 0, added
        assert "The running gateway lacks ADDING_TOKEN, which keyed needs" in added.stderr
        checked = run_agent3(tmp_path, "doctor", "--json", ADDING_TOKEN="hush-hush-1")
        checks = {one["name"]: one for one in json.loads(checked.stdout)["checks"]}
        assert checks["credentials"]["detail"] == f"not set for the gateway at {here.url}: env:ADDING_TOKEN"
    with gateway(tmp_path, ADDING_TOKEN="hush-hush-1"):
        added = run_agent3(tmp_path, *words, ADDING_TOKEN="hush-hush-1")
        assert (added.returncode, "lacks" in added.stderr) == (0, False), added


def test_a_loop_that_is_found_is_one_error_at_every_door() -> None:
    assert (LoopDetected.code, LoopDetected.http_status, LoopDetected.retryable) == ("loop_detected", 508, False)


def test_a_server_that_asks_while_it_is_added_causes_no_warning(tmp_path: Path) -> None:
    added = run_agent3(tmp_path, "add", shlex.join(command("--curious")))
    assert added.returncode == 0, added.stderr
    assert "question" not in added.stderr


async def _asking(request: web.Request) -> web.Response:
    """The MCP side of a site that speaks NLWeb, as some ship it: listed, and broken."""
    message = await request.json()
    if message["method"] != "tools/list":
        return _greet(message)
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    result = {"tools": [{"name": "ask", "inputSchema": schema}]}
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


async def _answer(request: web.Request) -> web.Response:
    meta = {"response_type": "Answer", "version": "0.54"}
    return web.json_response({"_meta": meta, "results": [{"@type": "Recipe", "name": "Soup", "url": ""}]})


def test_a_site_that_speaks_nlweb_is_asked_at_ask_before_its_mcp(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path) as server:
            async with site({"/mcp": _asking, "/ask": _answer}) as url:
                assert (await add(server, url, "whole")).card["protocol"] == "nlweb"
                assert (await add(server, f"{url}/mcp", "named")).card["protocol"] == "mcp"
            async with site({"/mcp": _asking}) as url:
                assert (await add(server, url, "half")).card["protocol"] == "mcp"

    run(story())
