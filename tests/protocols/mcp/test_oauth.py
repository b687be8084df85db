"""OAuth towards MCP servers: tokens found, shared, renewed and widened, and secrets that go where they should only."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from pydantic import AnyUrl

from agent3 import jsonrpc
from agent3.env import Env
from agent3.errors import Agent3Error, SecurityError, TargetRefused
from agent3.identity.authorization import Authorization
from agent3.identity.secrets import Secret
from agent3.protocols.mcp.client.channels import HTTPChannel, PendingRequest
from agent3.protocols.mcp.client.oauth import (
    Memory,
    OAuth,
    authorization_code,
    client_credentials,
    identity_assertion,
    private_key,
    token_exchange,
)
from agent3.protocols.mcp.client.upstream import Upstream, Upstreams
from agent3.security.outbound import Gate, Policy
from tests.support.movable_loop import advance, run_movable
from tests.support.oauth_house import House, standing

BACK = "http://localhost:3000/callback"
HIDDEN = Secret("the-secret-of-the-house")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@asynccontextmanager
async def reached(house: House, by: Authorization, **policy: Any) -> AsyncIterator[Upstream]:
    upstreams = Upstreams(Policy(**policy))
    upstreams.authorize(house.url, by)
    try:
        yield upstreams.get(house.url, None, {"registered": True})
    finally:
        await upstreams.aclose()


async def call(upstream: Upstream, name: str = "read") -> dict[str, Any]:
    return await upstream.request("tools/call", {"name": name, "arguments": {}}, PendingRequest)


def ours(house: House, **more: Any) -> OAuth:
    return client_credentials(house.url, "us", HIDDEN, issuer=house.root, **more)


def test_a_token_is_got_once_and_shared_by_all_who_need_it() -> None:
    async def story() -> None:
        async with standing(House()) as house, reached(house, ours(house)) as upstream:
            await asyncio.gather(*(call(upstream) for _ in range(5)))
            assert len(house.forms) == 1
            assert house.forms[0]["scope"] == "read"
            assert house.forms[0]["resource"] == house.url
            house.tokens.clear()  # as if they had been revoked
            await asyncio.gather(*(call(upstream) for _ in range(5)))
            assert len(house.forms) == 2

    run(story())


def test_a_slow_call_holds_up_no_other() -> None:
    async def story() -> None:
        async with standing(House()) as house, reached(house, ours(house)) as upstream:
            slow = asyncio.create_task(call(upstream, "slow"))
            await house.hanging.wait()
            await call(upstream)
            assert not slow.done()
            house.released.set()
            await slow

    run(story())


def test_the_secret_goes_to_its_issuer_and_to_nobody_else() -> None:
    async def story() -> None:
        async with standing(House()) as house:
            by = client_credentials(house.url, "us", HIDDEN, issuer="https://auth.example.com")
            async with reached(house, by) as upstream:
                with pytest.raises(TargetRefused, match=r"auth\.example\.com") as caught:
                    await call(upstream)
            assert not caught.value.sent
            assert house.forms == []

    run(story())


def test_a_wider_scope_is_asked_for_beside_what_was_granted() -> None:
    async def story() -> None:
        async with standing(House(content=False)) as house, reached(house, ours(house)) as upstream:
            await call(upstream)
            await call(upstream, "write")
            assert [form["scope"] for form in house.forms] == ["read", "read write"]
            await call(upstream)
            assert len(house.forms) == 2

    run(story())


class Never(House):
    """Refuses every call for its scope, whatever it is."""

    async def token(self, request: web.Request) -> web.Response:
        answer = await super().token(request)
        self.tokens = dict.fromkeys(self.tokens, "")
        return answer


def test_a_server_that_is_never_content_is_not_obeyed_for_ever() -> None:
    async def story() -> None:
        async with standing(Never(content=False)) as house, reached(house, ours(house)) as upstream:
            for _ in range(3):
                with pytest.raises(TargetRefused, match="403"):
                    await call(upstream)
            assert len(house.forms) == 2  # one for having none, one for the scope

    run(story())


def test_a_server_that_refuses_every_token_is_asked_with_a_new_one_twice() -> None:
    class Forgetful(House):
        async def mcp(self, request: web.Request) -> web.Response:
            self.tokens.clear()
            return await super().mcp(request)

    async def story() -> None:
        async with standing(Forgetful()) as house, reached(house, ours(house)) as upstream:
            with pytest.raises(TargetRefused, match="401"):
                await call(upstream)
            assert len(house.seen) == 3

    run(story())


@pytest.mark.parametrize(
    ("issuer", "error", "words"),
    [
        ("http://127.0.0.1:{other}", SecurityError, "loopback"),
        ("http://auth.example.com", TargetRefused, "does not use https"),
    ],
)
def test_a_server_cannot_send_us_to_places_that_are_closed(issuer: str, error: type[Agent3Error], words: str) -> None:
    async def story() -> None:
        async with standing(House()) as other, standing(House()) as house:
            house.issuer = issuer.format(other=other.port)
            by = client_credentials(house.url, "us", HIDDEN, issuer=house.issuer)
            async with reached(house, by) as upstream:
                with pytest.raises(error, match=words) as caught:
                    await call(upstream)
            assert not caught.value.sent
            assert (house.forms, other.forms) == ([], [])

    run(story())


def test_a_private_key_signs_for_the_issuer_and_stays_at_home() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    async def story() -> None:
        async with standing(House()) as house:
            by = private_key(house.url, "us", Secret(pem), issuer=house.root, algorithm="ES256")
            async with reached(house, by) as upstream:
                await call(upstream)
            payload = house.forms[0]["client_assertion"].split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
            assert (claims["iss"], claims["aud"]) == ("us", house.root)

    run(story())


def test_an_identity_is_exchanged_for_a_token_of_the_other_house() -> None:
    async def story() -> None:
        async with standing(House()) as house:
            gate = Gate(Policy(allow_loopback=True))
            assertion = token_exchange(gate, f"{house.root}/idp", "us", Secret("anna"))
            by = identity_assertion(house.url, "us", HIDDEN, assertion, issuer=house.root)
            async with reached(house, by) as upstream:
                await call(upstream)
            await gate.aclose()
            assert house.forms[0]["assertion"] == f"anna for {house.root} and {house.url}"

    run(story())


def agreeing(gate: Gate) -> Any:
    async def sign_in(url: str) -> str:
        return (await gate.request("GET", url)).headers["location"]

    return sign_in


def test_a_person_agrees_once_and_the_code_is_bound_to_us() -> None:
    async def story() -> None:
        async with standing(House()) as house:
            gate = Gate(Policy(allow_loopback=True))
            async with reached(house, authorization_code(house.url, agreeing(gate), redirect=BACK)) as upstream:
                await call(upstream)
                await call(upstream)
            await gate.aclose()
            assert [form["grant_type"] for form in house.forms] == ["authorization_code"]
            assert house.forms[0]["client_id"] == "c1"

    run(story())


def test_a_person_may_take_longer_than_a_server_may_be_silent() -> None:
    async def story() -> None:
        async with standing(House()) as house:
            gate = Gate(Policy(allow_loopback=True))

            async def slowly(url: str) -> str:
                advance(5_000)
                return str(await agreeing(gate)(url))

            channel = HTTPChannel(gate, house.url, authorization=authorization_code(house.url, slowly, redirect=BACK))
            body = jsonrpc.request(1, "server/discover", {})
            async with PendingRequest(idle=1_000) as pending:
                assert await channel.request(1, body, {}, pending)
            await gate.aclose()

    run_movable(story())


@pytest.mark.parametrize(
    ("back", "words"),
    [("error=access_denied", "access_denied"), ("code=x&state=other", "mismatch"), ("", "no reason given")],
)
def test_a_person_who_does_not_agree_is_a_refusal(back: str, words: str) -> None:
    async def sign_in(url: str) -> str:
        return f"{BACK}?{back}"

    async def story() -> None:
        async with standing(House()) as house:
            async with reached(house, authorization_code(house.url, sign_in, redirect=BACK)) as upstream:
                with pytest.raises(TargetRefused, match=words):
                    await call(upstream)
            assert house.forms == []

    run(story())


class Later(Env):
    """A clock that can be set forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@asynccontextmanager
async def aging(house: House, env: Env) -> AsyncIterator[Upstream]:
    """A person's token, and a clock."""
    gate = Gate(Policy(allow_loopback=True))
    came: list[str] = []

    async def send(url: str) -> None:
        came.append((await gate.request("GET", url)).headers["location"])

    async def returned() -> AuthorizationCodeResult:
        given = parse_qs(urlsplit(came[-1]).query)
        return AuthorizationCodeResult(code=given["code"][0], state=given["state"][0])

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(BACK)])
    provider = OAuthClientProvider(house.url, metadata, Memory(), send, returned)
    try:
        async with reached(house, OAuth(provider, house.url, env)) as upstream:
            yield upstream
    finally:
        await gate.aclose()


def test_a_token_is_refreshed_before_it_ends() -> None:
    async def story() -> None:
        env = Later()
        async with standing(House()) as house, aging(house, env) as upstream:
            await call(upstream)
            env.ahead = house.life - 100
            await call(upstream)
            assert len(house.forms) == 1
            env.ahead = house.life - 10
            await call(upstream)
            assert [form["grant_type"] for form in house.forms] == ["authorization_code", "refresh_token"]
            assert house.seen[-1] == "tools/call token-2"

    run(story())


def test_a_token_that_still_holds_is_used_while_the_authorization_server_is_gone() -> None:
    async def story() -> None:
        env = Later()
        async with standing(House()) as house, aging(house, env) as upstream:
            await call(upstream)
            env.ahead, house.down = house.life - 10, True
            await call(upstream)
            assert house.seen[-1] == "tools/call token-1"

    run(story())
