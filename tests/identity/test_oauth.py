"""The OAuth client: what is taken from an authorization server, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict

from agent3.errors import MalformedResponse, TargetError, TargetRefused, Unavailable
from agent3.identity import oauth
from agent3.identity.loopback_redirect import AtTerminal
from agent3.identity.oauth import Client, Flow, check_flow, origin_of, request_consent
from agent3.identity.sign_ins import Plan
from agent3.security.outbound import Gate, Policy, Response
from tests.support.oauth_agent import AgentHouse
from tests.support.oauth_house import standing

GOOD, EVIL = "https://auth.good.example", "https://evil.example"
BACK = "http://127.0.0.1:1/callback"


def refreshed(**gives: Any) -> oauth.Tokens:
    """What is made of an answer with these."""

    async def story() -> oauth.Tokens:
        async with standing(AgentHouse(gives=gives)) as house:
            gate = Gate(Policy(allow_loopback=True))
            try:
                flow = Flow(f"{house.root}/authorize", f"{house.root}/token")
                return await oauth.refresh_tokens(flow, gate, Client("c"), "r")
            finally:
                await gate.aclose()

    return asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(
    ("gives", "life"),
    [
        ({"refresh_token": None, "expires_in": "3600"}, 3600.0),
        ({"token_type": "bearer", "expires_in": None}, None),
        ({"token_type": None, "expires_in": "soon"}, None),
        ({"expires_in": -5}, 0.0),
    ],
)
def test_tokens_are_read_as_servers_write_them(gives: dict[str, Any], life: float | None) -> None:
    found = refreshed(**gives)
    assert (found.access_token, found.refresh_token, found.expires_in) == ("token-1", "r", life)


@pytest.mark.parametrize(
    "gives", [{"access_token": ""}, {"access_token": "a\r\nX: y"}, {"access_token": "ü"}, {"token_type": "DPoP"}]
)
def test_what_is_no_bearer_token_is_not_taken(gives: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponse):
        refreshed(**gives)


@pytest.mark.parametrize(
    "flow",
    [
        Flow(f"{GOOD}/authorize", f"{EVIL}/token"),
        Flow(f"{GOOD}/authorize", f"{GOOD}/token", refresh=f"{EVIL}/token"),
        Flow(f"{GOOD}/authorize", f"{GOOD}/token", register=f"{EVIL}/register"),
        Flow(f"{GOOD}/authorize", f"{EVIL}/token", issuer=EVIL),
    ],
)
def test_only_who_is_asked_for_consent_can_say_that_it_goes_elsewhere(flow: Flow) -> None:
    with pytest.raises(TargetRefused, match="--issuer"):
        check_flow(flow, None)
    with pytest.raises(TargetRefused, match="does not confirm"):
        check_flow(flow, GOOD)


def test_who_is_asked_for_consent_may_give_tokens_at_another_host() -> None:
    check_flow(Flow(f"{GOOD}/authorize", "https://tokens.example/token", issuer=GOOD), None)
    check_flow(Flow(f"{GOOD}/authorize", f"{GOOD}/token"), None)


def test_a_token_is_asked_for_one_agent_unless_its_scopes_say_so() -> None:
    flow = Flow(f"{GOOD}/authorize", f"{GOOD}/token", resource=f"{EVIL}/a2a", scopes=("read",))
    assert "resource=https%3A%2F%2Fevil.example%2Fa2a" in request_consent(flow, Client("c"), BACK).url
    named = Flow(f"{GOOD}/authorize", f"{GOOD}/token", resource=f"{EVIL}/a2a", scopes=("api://agent/read",))
    assert "resource" not in request_consent(named, Client("c"), BACK).url


@pytest.mark.parametrize("iss", ["", f"&iss={EVIL}"])
def test_an_issuer_that_signs_what_comes_back_must_have_done_so(iss: str) -> None:
    async def story() -> None:
        gate = Gate(Policy())
        flow = Flow(f"{GOOD}/authorize", f"{GOOD}/token", issuer=GOOD, signs=True)
        asked = request_consent(flow, Client("c"), BACK)
        with pytest.raises(TargetRefused, match="RFC 9207"):
            await oauth.redeem_code(flow, gate, Client("c"), BACK, asked, f"/callback?code=x&state={asked.state}{iss}")
        await gate.aclose()

    asyncio.run(story())


def test_an_origin_is_always_written_the_same_way() -> None:
    assert origin_of("HTTPS://Agent.Example:443/x?y") == origin_of("https://agent.example") == "https://agent.example"
    assert origin_of("http://[::1]:80/") == "http://[::1]"
    assert origin_of("https://a.example:nonsense") != origin_of("https://a.example")


def test_a_person_is_told_who_asks_and_for_whom_in_characters_that_can_be_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.identity.loopback_redirect._DESKTOP", ())
    monkeypatch.setattr("sys.platform", "linux")
    AtTerminal().go(f"{GOOD}/\x1b[2J?resource=https%3A%2F%2Fevil.example%2F%1B[2J&state=s")
    said = capsys.readouterr().err
    assert "sign in at auth.good.example, for https://evil.example/%1B[2J:" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(("status", "kind"), [(429, Unavailable), (503, Unavailable), (400, TargetRefused)])
def test_only_a_plain_no_costs_a_person_their_consent(status: int, kind: type[TargetError]) -> None:
    class Answers(Gate):
        async def request(self, method: str, url: str, **more: Any) -> Response:
            return Response(status, CIMultiDict(), b"{}", url)

    with pytest.raises(kind) as caught:
        asyncio.run(oauth.refresh_tokens(Flow(f"{GOOD}/authorize", f"{GOOD}/token"), Answers(), Client("c"), "r"))
    assert not caught.value.sent


def test_a_sign_in_that_was_stored_without_a_protocol_is_still_read() -> None:
    plan = msgspec.json.decode(b'{"address": "https://a.example/mcp", "way": "person"}', type=Plan)
    assert (plan.protocol, plan.flow) == ("mcp", None)
    assert b"protocol" not in msgspec.json.encode(plan)
