"""Peers: what is open to an agent, over new cards of it and to the end; and what strangers answer instead of keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from multidict import CIMultiDict

from agent3.definitions import AgentCard
from agent3.errors import MalformedResponse, Unavailable, ValidationError
from agent3.identity.secrets import Secret
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.peer.bindings import GrpcBinding, Interface
from agent3.protocols.a2a.peer.card_discovery import FoundCard, check_signature, find_card
from agent3.protocols.a2a.peer.credentials import Credential
from agent3.protocols.a2a.peer.peers import Peers
from agent3.security.outbound import Response

ADDRESS = "https://a.example"


def a_card(version: str) -> dict[str, Any]:
    return AgentCard(agent_id="a", name="a", url=ADDRESS, version=version).to_wire("1.0")


class Channel(GrpcBinding):
    """A line that says whether it is closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True


class Unclosable(GrpcBinding):
    """A line that breaks when it is closed."""

    async def aclose(self) -> None:
        raise OSError("broken")


def test_what_is_open_to_an_agent_outlives_its_card_and_is_closed_at_the_end() -> None:
    async def main() -> None:
        peers = Peers()
        before = await peers.get(ADDRESS, document=a_card("1"))
        place = Interface(ADDRESS, "GRPC", "1.0")
        channel = before.bindings[place] = Channel(place, before.gate)
        after = await peers.get(ADDRESS, document=a_card("2"))
        assert after is not before
        assert after.card.version == "2"
        assert after.bindings[place] is channel
        assert not channel.closed
        await peers.aclose()
        assert channel.closed

    asyncio.run(main())


def test_a_card_that_cannot_be_read_leaves_nothing_behind() -> None:
    async def main() -> None:
        peers = Peers()
        with pytest.raises(ValidationError):
            await peers.get(ADDRESS, document={"name": "x", "skills": 5})
        assert len(peers) == 0
        assert not peers._locks
        await peers.aclose()

    asyncio.run(main())


def test_a_peer_that_is_being_opened_is_closed_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    gates: list[Any] = []

    async def slowly(gate: Any, address: str, *more: Any) -> FoundCard:
        gates.append(gate)
        begun.set()
        await go_on.wait()
        return FoundCard(url=address, document=a_card("1"), card=AgentCard.from_wire(a_card("1")))

    async def main() -> None:
        monkeypatch.setattr("agent3.protocols.a2a.peer.peers.find_card", slowly)
        peers = Peers()
        bad = await peers.get("https://bad.example", document=a_card("1"))
        bad.bindings[Interface(ADDRESS, "GRPC", "1.0")] = Unclosable(Interface(ADDRESS, "GRPC", "1.0"), bad.gate)
        good = await peers.get("https://good.example", document=a_card("1"))
        channel = good.bindings[Interface(ADDRESS, "GRPC", "1.0")] = Channel(
            Interface(ADDRESS, "GRPC", "1.0"), good.gate
        )
        opening = asyncio.create_task(peers.get(ADDRESS))
        await begun.wait()
        closing = asyncio.create_task(peers.aclose())
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(60):
            await closing
            with pytest.raises(Unavailable):
                await opening
        assert channel.closed
        assert len(peers) == 0
        with pytest.raises(Unavailable) as stopped:
            await peers.get(ADDRESS)
        assert not stopped.value.sent  # so that what was to be sent may be tried again
        assert len(gates) == 1

    asyncio.run(main())


class Shows:
    """A gate behind which everything is the same few bytes."""

    def __init__(self, body: bytes):
        self._body = body

    async def request(self, method: str, url: str, **more: Any) -> Response:
        return Response(200, CIMultiDict(), self._body, url)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"keys": "\xff"}', b"nonsense", b'{"keys": 5}'])
def test_keys_that_cannot_be_read_verify_nothing_and_harm_nobody(body: bytes) -> None:
    signed = CardKey.generate(jku=f"{ADDRESS}/.well-known/jwks.json").sign(AgentCard.from_wire(a_card("1")))
    found = FoundCard(url=ADDRESS, document=signed.to_wire("1.0"), card=signed)
    gate: Any = Shows(body)
    assert asyncio.run(check_signature(gate, found))["status"] == "unverified"


def test_a_card_with_addresses_without_end_is_refused() -> None:
    card = a_card("1")
    card["supportedInterfaces"] *= 101
    gate: Any = Shows(json.dumps(card).encode())
    with pytest.raises(MalformedResponse, match="more than 100 addresses"):
        asyncio.run(find_card(gate, ADDRESS))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"access_token": "\xff"}', b"nonsense"])
def test_a_token_that_cannot_be_read_is_none(body: bytes) -> None:
    flow = {"clientCredentials": {"tokenUrl": f"{ADDRESS}/token", "scopes": {}}}
    card = AgentCard(
        agent_id="a",
        name="a",
        url=ADDRESS,
        securitySchemes={"it": {"type": "oauth2", "flows": flow}},
        security=[{"it": []}],
    )
    gate: Any = Shows(body)
    credential = Credential(card, Secret("me:hush"), None, gate, ADDRESS)
    with pytest.raises(MalformedResponse, match="JSON object"):
        asyncio.run(credential.carry(ADDRESS))


def test_a_card_that_does_not_come_holds_no_end_up() -> None:
    async def main() -> None:
        asked, over = asyncio.Event(), asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await over.wait()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = Peers()
        getting = [asyncio.create_task(peers.get(address, None, {"registered": True})) for _ in range(2)]
        await asyncio.wait_for(asked.wait(), 60)
        await asyncio.wait_for(peers.aclose(), 60)
        for error in await asyncio.wait_for(asyncio.gather(*getting, return_exceptions=True), 60):
            assert isinstance(error, Unavailable)
        over.set()
        server.close()
        await server.wait_closed()

    asyncio.run(main())
