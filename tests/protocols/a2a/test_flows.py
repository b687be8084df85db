"""What is taken from a card when a person signs in, and where the token of a sign-in goes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agent3.definitions import AgentCard
from agent3.errors import SecurityError, TargetRefused
from agent3.identity.authorization import RenewableSecret
from agent3.identity.scheme_credentials import carry_plainly
from agent3.protocols.a2a.peer.credentials import Credential
from agent3.protocols.a2a.peer.sign_in import find_flow
from agent3.security.outbound import Gate, Policy

GOOD, EVIL = "https://auth.good.example", "https://evil.example"
BACK = "http://127.0.0.1:1/callback"


def card(authorize: str) -> AgentCard:
    flow = {"authorizationUrl": authorize, "tokenUrl": f"{EVIL}/token", "scopes": {}}
    return AgentCard.from_wire(
        {
            "protocolVersion": "0.3.0",
            "name": "n",
            "description": "d",
            "version": "1",
            "url": f"{EVIL}/a2a",
            "capabilities": {},
            "skills": [],
            "defaultInputModes": [],
            "defaultOutputModes": [],
            "securitySchemes": {"o": {"type": "oauth2", "flows": {"authorizationCode": flow}}},
        }
    )


@pytest.mark.parametrize(
    "address",
    [
        f"{EVIL}/\x1b[2J\x1b]0;x\x07",
        "https://auth.good.example@evil.example/authorize",
        f"{EVIL}/authorize#fragment",
        f"{EVIL}\\@auth.good.example/authorize",
        f"{EVIL}:port/authorize",
        "https:///authorize",
        "http://evil.example/authorize",
    ],
)
def test_an_address_that_is_not_what_it_seems_is_not_shown_to_anybody(address: str) -> None:
    async def story() -> None:
        gate = Gate(Policy())
        with pytest.raises(TargetRefused, match="not used") as refused:
            await find_flow(card(address), gate)
        assert "\x1b" not in refused.value.message
        await gate.aclose()

    asyncio.run(story())


class Renewing:
    """Somebody who keeps a token."""

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        return {"Authorization": "Bearer token-of-a"}

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Any) -> bool:
        return False


def test_the_token_of_a_sign_in_goes_where_it_was_made_for_and_nowhere_else() -> None:
    async def story() -> None:
        gate = Gate(Policy())
        for made_for, home in (
            ((), "https://a.example/card.json"),
            (("https://a.example",), "https://b.example/c.json"),
        ):
            secret = RenewableSecret("oauth:1", Renewing(), lambda: (), made_for)
            credential = Credential(card(GOOD), secret, None, gate, home)
            assert (await credential.carry("https://A.example:443/a2a")).headers
            for elsewhere in ("https://b.example/a2a", "https://a.example:8443/a2a", "https://a.example.b.example/"):
                with pytest.raises(SecurityError, match=r"was made for https://a\.example"):
                    await credential.carry(elsewhere)
            assert carry_plainly(secret, None) == ({}, {})
        await gate.aclose()

    asyncio.run(story())
