"""Signing in to servers that ask for OAuth: by the real command, through a gateway, and when something goes wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from aiohttp import web
from msgspec.structs import replace

from agent3.errors import Agent3Error, CallTimeout, SetupError, TargetRefused
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.loopback_redirect import Landing
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secrets import EnvironmentVault
from agent3.identity.sign_ins import Plan, SignIns, SignInWish
from agent3.model import LOCAL, Done, Failed, Outcome
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from tests.support.gateway import gateway as served
from tests.support.gateway import run_agent3
from tests.support.mcp_serving import modern_request
from tests.support.oauth_house import House, standing, standing_aside
from tests.support.registration import add, remove

ME = Caller(LOCAL, "test")
BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=240).read()"


@dataclass
class Person:
    """Goes where they are sent, or not; ``seen`` is where."""

    agrees: bool = True
    seen: str = ""

    def go(self, url: str) -> None:
        self.seen = url
        if self.agrees:
            urlopen(url, timeout=240).read()

    def wait(self, left: float) -> None:
        pass


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@asynccontextmanager
async def at(folder: Path) -> AsyncIterator[Server]:
    async with build(Settings(storage=Storage(url=f"sqlite:///{folder / 'house.db'}")), take_over=False) as server:
        yield server


async def call(server: Server, capability: str = "read") -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent="oauth-house", capability=capability, input={}))


async def signed_in(server: Server, house: House, **more: Any) -> None:
    await add(server, house.url, sign_in=SignInWish("person", Person(), **more))


def kept(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.requirement("AC-27")
def test_a_person_signs_in_by_the_command_and_the_gateway_goes_on_with_it(tmp_path: Path) -> None:
    (tmp_path / "browser.py").write_text(BROWSER)
    browser = f"{sys.executable} {tmp_path / 'browser.py'} %s"
    with standing_aside(House(rotates=True)) as house, served(tmp_path) as gateway:
        refused = run_agent3(tmp_path, "add", house.url)
        assert refused.returncode == 1
        assert f"agent3 add {house.url} --sign-in\n" in refused.stderr
        added = run_agent3(tmp_path, "add", house.url, "--sign-in", BROWSER=browser)
        assert (added.returncode, added.stdout.splitlines()[0]) == (0, "Added oauth-house: read, tell"), added.stderr
        assert f"{house.root}/authorize?" in added.stderr
        shown = run_agent3(tmp_path, "show", "oauth-house")
        assert "signed in until 20" in shown.stdout
        assert "renewed automatically" in shown.stdout

        def asked(capability: str) -> Any:
            return gateway.post("/v1/call", {"agentId": "oauth-house", "capability": capability, "input": {}}).json

        assert asked("tell")["result"] == "You came with ***."
        request = modern_request("tools/call", {"name": "tell", "arguments": {}})
        headers = {"Content-Type": "application/json", **request["headers"]}
        shown_as_itself = gateway.post("/agents/oauth-house/mcp", request["json"], **headers)
        assert shown_as_itself.json["result"]["content"] == [{"type": "text", "text": "You came with ***."}]
        house.tokens.clear()  # they were taken back, and only the refresh token is good
        assert asked("read")["success"]
        assert [form["grant_type"] for form in house.forms] == ["authorization_code", "refresh_token"]
        for told in (added.stdout, added.stderr, shown.stdout, gateway.said()):
            assert "token-" not in told
    assert b"token-1" not in kept(tmp_path)
    assert b"token-2" not in kept(tmp_path)


def test_a_machine_signs_in_by_a_secret_that_is_stored_nowhere(tmp_path: Path) -> None:
    options = ("--sign-in", "machine", "--client-id", "us", "--client-secret-ref", "env:HOUSE_SECRET", "--json")
    with standing_aside(House()) as house:
        lacking = run_agent3(tmp_path, "add", house.url, *options, HOUSE_SECRET="hush-hush-hush")
        assert "--issuer" in json.loads(lacking.stdout)["added"][0]["error"]["message"]
        everything = (*options, "--issuer", house.root)
        added = run_agent3(tmp_path, "add", house.url, *everything, HOUSE_SECRET="hush-hush-hush")
        assert json.loads(added.stdout)["added"][0]["id"] == "oauth-house", added.stderr
        arguments = ("call", "oauth-house", "--capability", "read", "--input", "{}", "--json")
        called = run_agent3(tmp_path, *arguments, HOUSE_SECRET="hush-hush-hush")
        assert json.loads(called.stdout)["success"], called.stdout
        assert [form["grant_type"] for form in house.forms] == ["client_credentials"]
        assert house.seen[-1] == "tools/call token-1"
        told = json.loads(run_agent3(tmp_path, "show", "oauth-house", "--json").stdout)
        assert (told["signIn"]["way"], told["signIn"]["renews"]) == ("machine", True)
    assert b"hush-hush-hush" not in kept(tmp_path)


def test_two_processes_renew_a_token_once_between_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House(rotates=True)) as house, at(tmp_path) as first, at(tmp_path) as second:
            await signed_in(first, house)
            assert isinstance(await call(second), Done)
            house.tokens.clear()
            outcomes = await asyncio.gather(*(call(server) for server in (first, second) * 3))
            assert all(isinstance(one, Done) for one in outcomes), outcomes
            assert [form["grant_type"] for form in house.forms] == ["authorization_code", "refresh_token"]

    run(story())


def test_a_token_is_renewed_before_it_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House()) as house:
            async with at(tmp_path) as server:
                await signed_in(server, house)
                vault = server.services.vault
                assert isinstance(vault, SignIns)
                row = await server.database.one("SELECT id, version, sealed FROM sign_ins")
                assert row is not None
                kept = await vault.open(row["id"], row)
                await vault.save(row["id"], kept.plan, replace(kept.grant, until=time.time() - 1), row["version"])
            async with at(tmp_path) as server:
                assert isinstance(await call(server), Done)
            assert "tools/call token-1" not in house.seen
            assert house.seen[-1] == "tools/call token-2"
            assert house.forms[-1]["resource"] == house.url

    run(story())


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_sign_in_that_is_over_says_what_to_type(tmp_path: Path, taken_back: bool) -> None:
    async def story() -> None:
        async with standing(House(refreshes=not taken_back)) as house, at(tmp_path) as server:
            await add(server, house.url, "Mine", sign_in=SignInWish("person", Person()))
            house.tokens.clear()
            house.good = "another"
            outcome = await server.gateway.call(ME, CallRequest(agent="mine", capability="read", input={}))
            assert isinstance(outcome, Failed)
            assert outcome.code == "target_refused"
            assert f"agent3 add {house.url} --name Mine --sign-in" in outcome.message
            await add(server, house.url, "Mine", sign_in=SignInWish("person", Person()))
            again = await server.gateway.call(ME, CallRequest(agent="mine", capability="read", input={}))
            assert isinstance(again, Done)
            rows = await server.database.all("SELECT id FROM sign_ins")
            assert len(rows) == 1  # the one before was forgotten
            await remove(server, "mine")
            assert await server.database.all("SELECT id FROM sign_ins") == []

    run(story())


class Unwilling(House):
    """Lets nobody in."""

    def back(self, code: str, request: web.Request) -> str:
        return f"error=access_denied&state={request.query['state']}"


@pytest.mark.parametrize(
    ("house", "wish", "error", "words"),
    [
        (Unwilling(), SignInWish("person", Person()), TargetRefused, "access_denied"),
        (House(), SignInWish("person", Person(agrees=False), seconds=0.2), CallTimeout, "0.2 s"),
        (House(tokens={"": ""}), SignInWish("person", Person()), SetupError, "does not require"),
        (House(), SignInWish("machine", Person(), "us"), SetupError, "--client-secret-ref"),
    ],
)
def test_a_sign_in_that_comes_to_nothing_leaves_nothing(
    tmp_path: Path, house: House, wish: SignInWish, error: type[Agent3Error], words: str
) -> None:
    async def story() -> None:
        async with standing(house), at(tmp_path) as server:
            with pytest.raises(error, match=words):
                await add(server, house.url, sign_in=wish)
            assert await server.directory.everything() == []
            assert await server.database.all("SELECT id FROM sign_ins") == []

    run(story())


@pytest.mark.parametrize(
    ("what", "credential", "words"),
    [
        ("some-program --flag", None, "program"),
        ("http://127.0.0.1:1/mcp", "env:KEY", "not both"),
        ("http://127.0.0.1:1/${KEY}/mcp", None, "references"),
    ],
)
def test_what_cannot_be_signed_in_to_is_said_before_anybody_is_asked(
    tmp_path: Path, what: str, credential: str | None, words: str
) -> None:
    async def story() -> None:
        async with at(tmp_path) as server:
            with pytest.raises(SetupError, match=words):
                await add(server, what, None, credential, sign_in=SignInWish("person", Person()))

    run(story())


def test_the_address_of_a_site_leads_to_the_endpoint_that_asks(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House()) as house, at(tmp_path) as server:
            agent = await add(server, house.root, sign_in=SignInWish("person", Person()))
            assert agent.source == house.url

    run(story())


def test_who_comes_back_with_another_state_is_not_listened_to() -> None:
    async def story() -> None:
        person = Person(agrees=False)
        async with Landing(person, 20) as landing:
            sent = asyncio.create_task(landing.send("https://auth.example.com/?state=mine"))
            while not person.seen:
                await asyncio.sleep(0.01)
            for path, status in (("/callback?state=other&code=x", 400), ("/favicon.ico", 404), ("/callback", 400)):
                assert await _status(landing, path) == status
            assert not sent.done()
            assert await _status(landing, "/callback?state=mine&code=y") == 200
            assert await sent == "/callback?state=mine&code=y"

    run(story())


async def _status(landing: Landing, path: str) -> int:
    host, _, port = landing.redirect.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    line = await reader.readline()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


def test_tokens_are_sealed_by_a_file_of_the_owner_or_by_one_secret_of_all(tmp_path: Path) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'a.db'}"
        plain = EnvironmentVault({"SEAL": "a-secret-of-sixteen an-older-one-of-them", "SHORT": "short"})
        made = await MasterKeys("", url, plain).keys()
        assert await MasterKeys("", url, plain).keys() == made
        assert (tmp_path / "a.db.seal").stat().st_mode & 0o077 == 0
        assert await MasterKeys("env:SEAL", url, plain).keys() == [b"a-secret-of-sixteen", b"an-older-one-of-them"]
        with pytest.raises(SetupError, match="too short"):
            await MasterKeys("env:SHORT", url, plain).keys()
        with pytest.raises(SetupError, match="AGENT3_STORAGE_SEAL"):
            await MasterKeys("", "postgresql://somewhere/x", plain).keys()

    run(story())


def test_a_sign_in_by_a_protocol_that_is_not_here_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with at(tmp_path) as server:
            vault = server.services.vault
            assert isinstance(vault, SignIns)
            for protocol, words in (("unheard-of", "without that protocol"), ("a2a", "no sign-in of its own")):
                with pytest.raises(SetupError, match=words):
                    await vault.begin(Plan("https://a.example", "person", protocol=protocol))

    run(story())
