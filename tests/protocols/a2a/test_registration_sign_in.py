"""``agent3 add --sign-in`` for A2A agents: by the command, by the library, and where there is nothing to sign in to."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from agent3.errors import SetupError, TargetRefused
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.sign_ins import SignInWish
from agent3.model import LOCAL, Done, value_of
from agent3.server.build import build
from agent3.settings import Settings, Storage
from tests.support.gateway import gateway, run_agent3
from tests.support.oauth_agent import AgentHouse, Person
from tests.support.oauth_house import standing, standing_aside
from tests.support.registration import add

BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=240).read()"


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@pytest.mark.requirement("AC-27")
def test_a_person_signs_in_to_an_agent_by_the_command_and_the_gateway_calls_it(tmp_path: Path) -> None:
    (tmp_path / "browser.py").write_text(BROWSER)
    browser = f"{sys.executable} {tmp_path / 'browser.py'} %s"
    with standing_aside(AgentHouse()) as house, gateway(tmp_path) as served:
        added = run_agent3(tmp_path, "add", house.url, "--sign-in", BROWSER=browser)
        assert (added.returncode, added.stdout.splitlines()[0]) == (0, "Added guarded-agent: tell"), added.stderr
        assert "signed in until 20" in run_agent3(tmp_path, "show", "guarded-agent").stdout
        assert served.call("guarded-agent", "who am I?").json["result"] == "You came with ***."


@pytest.mark.parametrize("given", ["card", "site", "file"])
def test_an_agent_is_signed_in_to_from_its_card_its_site_and_a_file(tmp_path: Path, given: str) -> None:
    async def story() -> None:
        async with standing(AgentHouse()) as house, build(Settings(storage=Storage(url=":memory:"))) as server:
            file = tmp_path / "card.json"
            body = await asyncio.to_thread(lambda: urlopen(house.url, timeout=240).read())
            file.write_bytes(body)
            what = {"card": house.url, "site": house.root + "/a2a", "file": str(file)}[given]
            agent = await add(server, what, sign_in=SignInWish("person", Person()))
            outcome = await server.gateway.call(Caller(LOCAL), CallRequest(agent=agent.id, message="hi"))
            assert isinstance(outcome, Done), outcome
            assert value_of(outcome.parts) == "You came with ***."

    run(story())


def test_what_cannot_be_signed_in_to_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with build(Settings(storage=Storage(url=":memory:"))) as server:
            async with standing(AgentHouse(scheme="apiKey")) as house:
                with pytest.raises(SetupError, match="does not require a sign-in"):
                    await add(server, house.url, sign_in=SignInWish("person", Person()))
            async with standing(AgentHouse()) as house:
                machine = SignInWish("machine", Person(), "me", "env:HOME", "https://issuer.example")
                with pytest.raises(SetupError, match="CLIENT:SECRET"):
                    await add(server, house.url, sign_in=machine)
            assert json.dumps(await server.database.all("SELECT * FROM sign_ins")) == "[]"

    run(story())


def test_what_a_person_gets_at_one_place_goes_to_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with build(Settings(storage=Storage(url=":memory:"))) as server:
            async with standing(AgentHouse()) as other, standing(AgentHouse(strays=other.root)) as house:
                for issuer, words in ((None, "name it: --issuer"), (house.root, "Neither was used")):
                    person = Person()
                    with pytest.raises(TargetRefused, match=words):
                        await add(server, house.url, sign_in=SignInWish("person", person, "known", None, issuer))
                    assert (person.seen, house.forms, other.forms) == ("", [], [])
            assert await server.database.all("SELECT * FROM sign_ins") == []

    run(story())


def test_the_secret_of_a_client_goes_to_the_issuer_that_the_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "S3cret-of-ours")

    async def story() -> None:
        async with build(Settings(storage=Storage(url=":memory:"))) as server, standing(AgentHouse()) as house:

            def wish(issuer: str | None) -> SignInWish:
                return SignInWish("person", Person(), "known", "env:OUR_SECRET", issuer)

            with pytest.raises(SetupError, match="--issuer"):
                await add(server, house.url, sign_in=wish(None))
            with pytest.raises(TargetRefused, match="publishes neither the issuer"):
                await add(server, house.url, sign_in=wish(f"{house.root}/other"))
            assert house.forms == []
            await add(server, house.url, sign_in=wish(f"{house.root}/"))
            (form,) = house.forms
            assert form["authorization"].startswith("Basic ")
            assert form["resource"] == f"{house.root}/a2a"

    run(story())
