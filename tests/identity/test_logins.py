"""Users who reach an agent with a credential of their own, and refreshes that are cut off in the middle."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from aiohttp import web

from agent3.errors import NotFound, SetupError
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.logins import Logins
from agent3.identity.sign_ins import SignInWish
from agent3.model import Done, Outcome, Principal, Route
from agent3.server.build import Server
from tests.identity.test_sign_ins import Person, at, call, kept, run, signed_in
from tests.support.oauth_house import House, standing
from tests.support.registration import add, remove

ANNA, BERT = (Caller(Principal(name, "client"), "rest") for name in ("anna", "bert"))
WISH = SignInWish("person", Person())


async def _call(server: Server, who: Caller) -> Outcome:
    return await server.gateway.call(who, CallRequest(agent="oauth-house", capability="read", input={}))


def test_each_user_calls_with_their_own_sign_in_and_the_others_with_that_of_the_agent(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House()) as house, at(tmp_path) as server, at(tmp_path) as second:
            await signed_in(server, house)
            assert await server.registration.login("oauth-house", "anna", None, WISH) == "sign-in"
            for gateway in (server, second):
                assert isinstance(await _call(gateway, ANNA), Done)
                assert house.seen[-1] == "tools/call token-2"
                assert isinstance(await _call(gateway, BERT), Done)
                assert house.seen[-1] == "tools/call token-1"
            # Again replaces the one before, and leaves nothing of it.
            await server.registration.login("oauth-house", "anna", None, WISH)
            await _call(second, ANNA)
            assert house.seen[-1] == "tools/call token-3"
            assert len(await server.database.all("SELECT id FROM sign_ins")) == 2
            await server.registration.logout("oauth-house", "anna")
            await _call(second, ANNA)
            assert house.seen[-1] == "tools/call token-1"
            with pytest.raises(NotFound, match="not logged in"):
                await server.registration.logout("oauth-house", "anna")
            await server.registration.login("oauth-house", "anna", None, WISH)
            await remove(server, "oauth-house")
            assert await server.database.all("SELECT id FROM sign_ins") == []
            assert await server.database.all("SELECT agent FROM logins") == []

    run(story())


def test_a_user_may_give_a_secret_of_their_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House()) as house, at(tmp_path) as server:
            await signed_in(server, house)
            house.tokens["bert-s-own-token"] = "read tell"
            assert await server.registration.login("oauth-house", "bert", "bert-s-own-token", WISH) == "secret"
            assert isinstance(await _call(server, BERT), Done)
            assert house.seen[-1] == "tools/call bert-s-own-token"
            await _call(server, ANNA)
            assert house.seen[-1] == "tools/call token-1"
        assert b"bert-s-own-token" not in kept(tmp_path)

    run(story())


def test_a_login_goes_only_to_where_the_agent_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with at(tmp_path) as server:
            logins = Logins(server.database)
            home = Route("mcp", "https://home.example/mcp", credential="env:SHARED")
            await logins.keep("anna", "shop", home, "kept:own")
            for address, used in (
                ("https://home.example/mcp", "kept:own"),
                ("https://home.example/other", "kept:own"),
                ("https://evil.example/mcp", "env:SHARED"),
                ("http://home.example/mcp", "env:SHARED"),
                ("https://home.example:444/mcp", "env:SHARED"),
                ("https://home.example@evil.example/mcp", "env:SHARED"),
            ):
                route = Route("mcp", address, credential="env:SHARED")
                assert (await logins.own_route("anna", "shop", route)).credential == used
                assert (await logins.own_route("bert", "shop", route)).credential == "env:SHARED"
                assert (await logins.own_route("anna", "other", route)).credential == "env:SHARED"

    run(story())


def test_nobody_logs_in_to_what_has_no_credential(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(House(tokens={"": ""})) as house, at(tmp_path) as server:
            await add(server, house.url)
            with pytest.raises(SetupError, match="without a credential"):
                await server.registration.login("oauth-house", "anna", "something", WISH)
        assert b"something" not in kept(tmp_path)

    run(story())


def test_the_command_reads_a_secret_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent3.cli.logins import login
    from agent3.terminal.options import DatabaseOptions

    monkeypatch.setattr("sys.stdin", io.StringIO("a-secret-on-stdin"))
    options = DatabaseOptions(db=f"sqlite:///{tmp_path / 'house.db'}")
    with pytest.raises(NotFound):
        login("nobody", key=True, options=options)
    shown = capsys.readouterr()
    assert "a-secret-on-stdin" not in shown.out + shown.err
    assert b"a-secret-on-stdin" not in kept(tmp_path)


class Slow(House):
    """Answers a refresh only when it is let go on; by then the old refresh token is used up."""

    asked: asyncio.Event
    go_on: asyncio.Event

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        answer = await super().token(request)
        if form.get("grant_type") == "refresh_token":
            self.asked.set()
            await self.go_on.wait()
        return answer


def test_a_refresh_whose_caller_leaves_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        house = Slow(rotates=True)
        house.asked, house.go_on = asyncio.Event(), asyncio.Event()
        async with standing(house):
            async with at(tmp_path) as server:
                await signed_in(server, house)
                house.tokens.clear()
                calling = asyncio.ensure_future(call(server))
                await house.asked.wait()  # the refresh token is used up, and its successor not yet here
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                house.go_on.set()
                assert isinstance(await call(server), Done)
            async with at(tmp_path) as later:  # the new refresh token was stored
                house.tokens.clear()
                assert isinstance(await call(later), Done)
            kinds = [form["grant_type"] for form in house.forms]
            assert kinds == ["authorization_code", "refresh_token", "refresh_token"]

    run(story())
