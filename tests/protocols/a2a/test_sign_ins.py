"""Signing in to A2A agents: a person agrees where the card says, and the token is kept, used and renewed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.errors import SetupError, TargetRefused, Unavailable
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.loopback_redirect import Landing
from agent3.identity.sign_ins import Plan, SignIns, references_of
from agent3.model import LOCAL, Done, Failed, Outcome, Route, value_of
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from agent3.storage.leases import Leases
from tests.support.oauth_agent import AgentHouse, Person
from tests.support.oauth_house import House, standing

ME = Caller(LOCAL, "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(bounded())


@asynccontextmanager
async def at(folder: Path) -> AsyncIterator[Server]:
    async with build(Settings(storage=Storage(url=f"sqlite:///{folder / 'house.db'}")), take_over=False) as server:
        yield server


def vault_of(server: Server) -> SignIns:
    vault = server.services.vault
    assert isinstance(vault, SignIns)
    return vault


def route_to(house: House, credential: str | None = None) -> Route:
    return Route("a2a", house.url, credential=credential, meta={"registered": True})


async def signed_in(server: Server, house: House, client: str | None = None) -> Person:
    """What ``agent3 add --sign-in`` does; the person who signed in."""
    connector = server.core.connectors["a2a"]
    assert isinstance(connector, A2AConnector)
    flow, gate = await connector.find_sign_in(route_to(house))
    assert flow is not None
    person = Person()
    async with Landing(person, 20.0) as landing:
        plan = Plan(house.url, "person", client_id=client, redirect=landing.redirect, flow=flow)
        reference = await vault_of(server).begin(plan, landing.send)
        await vault_of(server).obtain(reference, gate)
    assert vault_of(server).finish(reference)
    agent = await server.protocols["a2a"].describe(route_to(house, reference), vault_of(server))
    await server.directory.add(agent)
    return person


async def call(server: Server) -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent="guarded-agent", message="who am I?"))


def told(outcome: Outcome) -> Any:
    assert isinstance(outcome, Done), outcome
    return value_of(outcome.parts)


@pytest.mark.parametrize("scheme", ["oauth2", "openIdConnect"])
def test_a_person_signs_in_where_the_card_says_and_calls_go_with_their_token(tmp_path: Path, scheme: str) -> None:
    async def story() -> None:
        async with standing(AgentHouse(scheme=scheme)) as house:
            async with at(tmp_path) as server:
                person = await signed_in(server, house)
                assert person.seen.startswith(f"{house.root}/authorize?")
                assert told(await call(server)) == "You came with ***."
                assert house.seen[0] == "authorize c1 read"
                assert house.seen[-1] == "SendMessage token-1"
                (form,) = house.forms
                assert (form["grant_type"], form["client_id"]) == ("authorization_code", "c1")
            async with at(tmp_path) as server:  # another process goes on with it
                assert told(await call(server)) == "You came with ***."
                about = await vault_of(server).about(await server.directory.get("guarded-agent"))
                assert about is not None
                assert (about["way"], about["renews"], about["over"]) == ("person", True, False)
            kept = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
            assert b"token-1" not in kept

    run(story())


def test_a_token_that_was_taken_back_is_renewed_and_one_that_cannot_be_says_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse(rotates=True)) as house, at(tmp_path) as server:
            await signed_in(server, house)
            house.tokens.clear()
            assert told(await call(server)) == "You came with ***."
            assert [one["grant_type"] for one in house.forms] == ["authorization_code", "refresh_token"]
            assert house.seen[-1] == "SendMessage token-2"
            house.tokens.clear()
            house.good = "another"
            over = await call(server)
            assert isinstance(over, Failed)
            assert f"agent3 add {house.url} --sign-in" in over.message

    run(story())


def test_a_token_is_renewed_before_its_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse(life=0)) as house, at(tmp_path) as server:
            await signed_in(server, house)
            house.life = 3600
            assert told(await call(server)) == "You came with ***."
            refused = [one for one in house.seen if one.endswith(" token-1")]
            assert not refused
            assert house.forms[-1]["refresh_token"] == "r"

    run(story())


def test_a_server_that_registers_nobody_needs_a_client_that_it_knows(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse(registers=False)) as house, at(tmp_path) as server:
            with pytest.raises(SetupError, match="--client-id"):
                await signed_in(server, house)
            await signed_in(server, house, "known")
            assert house.seen[-1] == "authorize known read"
            assert told(await call(server)) == "You came with ***."

    run(story())


def test_a_person_who_says_no_and_a_card_that_leads_astray_leave_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with at(tmp_path) as server:
            async with standing(AgentHouse(denies=True)) as house:
                with pytest.raises(TargetRefused, match="access_denied"):
                    await signed_in(server, house)
            async with standing(AgentHouse(insecure=True)) as house:
                with pytest.raises(TargetRefused, match="not a plain https"):
                    await signed_in(server, house)
            assert await server.database.all("SELECT * FROM sign_ins") == []

    run(story())


def test_a_card_without_a_way_for_a_person_has_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse(scheme="apiKey")) as house, at(tmp_path) as server:
            connector = server.core.connectors["a2a"]
            assert isinstance(connector, A2AConnector)
            assert (await connector.find_sign_in(route_to(house)))[0] is None

    run(story())


async def reference_in(server: Server) -> str:
    (reference,) = references_of(await server.directory.get("guarded-agent"))
    return reference


async def ends_in(server: Server, house: House, seconds: float) -> None:
    """Have the stored token end so soon; another process then takes it up."""
    connector = server.core.connectors["a2a"]
    assert isinstance(connector, A2AConnector)
    reference = await reference_in(server)
    row = await vault_of(server).load(reference)
    assert row is not None
    grant = replace((await vault_of(server).open(reference, row)).grant, until=time.time() + seconds)
    flow, _ = await connector.find_sign_in(route_to(house))
    plan = Plan(house.url, "person", redirect="http://127.0.0.1/callback", flow=flow)
    await vault_of(server).save(reference, plan, grant, row["version"])


async def carried(server: Server, house: House) -> Any:
    connector = server.core.connectors["a2a"]
    assert isinstance(connector, A2AConnector)
    _, gate = await connector.find_sign_in(route_to(house))
    secret: Any = await vault_of(server).get(await reference_in(server))
    return lambda: secret.authorization.headers(gate)


def test_a_server_that_gives_no_tokens_for_a_moment_is_asked_once_and_costs_nobody_their_consent(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with standing(AgentHouse(rotates=True)) as house:
            async with at(tmp_path) as server:
                await signed_in(server, house)
                await ends_in(server, house, 20)
            async with at(tmp_path) as server:
                headers = await carried(server, house)
                house.down = True
                sent = await asyncio.gather(*(headers() for _ in range(5)))
                assert {one["Authorization"] for one in sent} == {"Bearer token-1"}
                assert [one["grant_type"] for one in house.forms] == ["authorization_code", "refresh_token"]
                duty = f"sign-in {await reference_in(server)}"
                assert not await Leases(server.database, "another gateway").held(duty)  # nobody waits for us
            house.down = False
            async with at(tmp_path) as server:
                headers = await carried(server, house)
                sent = await asyncio.gather(*(headers() for _ in range(5)))
                assert {one["Authorization"] for one in sent} == {"Bearer token-3"}
                assert len(house.forms) == 3
                row = await vault_of(server).load(await reference_in(server))
                assert row is not None
                kept = await vault_of(server).open(await reference_in(server), row)
                assert kept.grant.tokens["refresh_token"] == house.good == "r-3"

    run(story())


def test_of_those_who_wait_for_a_token_that_is_over_one_asks_a_server_that_is_down(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse()) as house:
            async with at(tmp_path) as server:
                await signed_in(server, house)
                await ends_in(server, house, -1)
            async with at(tmp_path) as server:
                headers = await carried(server, house)
                house.down = True
                found = await asyncio.gather(*(headers() for _ in range(5)), return_exceptions=True)
                assert {type(one) for one in found} == {Unavailable}
                assert len(house.forms) == 2

    run(story())


def test_after_a_sign_in_is_over_nothing_goes_out_as_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse()) as house:
            async with at(tmp_path) as server:
                await signed_in(server, house)
                await ends_in(server, house, -1)
            async with at(tmp_path) as server:
                headers = await carried(server, house)
                house.good = "another"
                for _ in range(2):
                    with pytest.raises(TargetRefused, match=r"has expired\. Sign in again: agent3 add"):
                        await headers()

    run(story())


def test_a_refresh_token_that_is_new_alone_is_stored_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with standing(AgentHouse(rotates=True, gives={"access_token": "same"})) as house:
            async with at(tmp_path) as server:
                await signed_in(server, house)
                await ends_in(server, house, 20)
            async with at(tmp_path) as server:
                await (await carried(server, house))()
                row = await vault_of(server).load(await reference_in(server))
                assert row is not None
                kept = await vault_of(server).open(await reference_in(server), row)
                assert kept.grant.tokens["refresh_token"] == house.good == "r-2"

    run(story())


def test_a_card_that_moves_does_not_take_the_sign_in_along(tmp_path: Path) -> None:
    async def story() -> None:
        agent = AgentHouse()
        async with standing(agent) as house, standing(AgentHouse()) as other:
            async with at(tmp_path) as server:
                await signed_in(server, house)
            agent.moved = other.root
            async with at(tmp_path) as server:
                route = route_to(house, await reference_in(server))
                await server.directory.add(await server.protocols["a2a"].describe(route, vault_of(server)))
                outcome = await call(server)
            assert isinstance(outcome, Failed)
            assert f"was made for {house.root}" in outcome.message
            assert other.root in outcome.message
            assert other.seen == []

    run(story())
