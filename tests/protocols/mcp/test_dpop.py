"""Tokens that are bound to a key (DPoP, RFC 9449), and the identity of a workload, towards servers that want them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import parse_qs

import pytest
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from agent3 import MCPServer
from agent3.errors import TargetRefused
from agent3.identity.authorization import Refused
from agent3.identity.dpop import read_nonce
from agent3.identity.oauth import Grant
from agent3.identity.secrets import Secret
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.oauth import OAuth, client_credentials, workload_identity
from agent3.security.outbound import Gate, Policy

HERE = Policy(allow_loopback=True)


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class House:
    """An authorization server and an MCP server at one address. Both check proofs, and change their nonces."""

    def __init__(self) -> None:
        self.url = ""
        self.nonces = {"as": "as-1", "rs": "rs-1"}
        self.proofs: set[str] = set()
        self.keys: set[str] = set()
        self.forms: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.faults: list[str] = []
        self.binds = True
        self.server = MCPServer("bound")
        self.server.tool(name="hello")(lambda: "hello")
        routes = [
            Route("/.well-known/oauth-protected-resource/mcp", self.resource),
            Route("/.well-known/oauth-authorization-server", self.metadata),
            Route("/token", self.token, methods=["POST"]),
            Mount("/", app=self.guarded),
        ]
        self.app = Starlette(routes=routes)
        self.inner = self.server.asgi()

    async def resource(self, request: Request) -> Response:
        return JSONResponse({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def metadata(self, request: Request) -> Response:
        known = {"issuer": self.url, "token_endpoint": f"{self.url}/token", "response_types_supported": ["code"]}
        known["authorization_endpoint"] = f"{self.url}/authorize"
        return JSONResponse(known | ({"dpop_signing_alg_values_supported": ["ES256"]} if self.binds else {}))

    async def token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        if self.binds:
            fault = self.check(request.headers.get("dpop", ""), "POST", f"{self.url}/token", "as", None)
            if fault is not None:
                return JSONResponse({"error": fault}, 400, headers={"DPoP-Nonce": self.nonces["as"]})
        self.forms.append(form)
        if form.get("assertion") == "stale":
            return JSONResponse({"error": "invalid_grant"}, 400)
        self.tokens.append(f"token-{len(self.tokens) + 1}")
        given = {"access_token": self.tokens[-1], "token_type": "DPoP" if self.binds else "Bearer", "expires_in": 600}
        return JSONResponse(given | {"refresh_token": "again"})

    async def guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        wanted = "DPoP" if self.binds else "Bearer"
        fault: str | None = "invalid_token"
        if scheme == wanted and token in self.tokens:
            url = f"{self.url}{scope['path']}"
            fault = self.check(headers.get("dpop", ""), scope["method"], url, "rs", token) if self.binds else None
        if fault is None:
            await self.inner(scope, receive, send)
            return
        where = f'resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
        told = {"WWW-Authenticate": f'{wanted} error="{fault}", {where}', "DPoP-Nonce": self.nonces["rs"]}
        await JSONResponse({}, 401, headers=told)(scope, receive, send)

    def check(self, proof: str, method: str, url: str, who: str, token: str | None) -> str | None:
        """What is wrong with a proof."""
        try:
            head, body, signature = proof.split(".")
            header, claims = json.loads(decode(head)), json.loads(decode(body))
            jwk, raw = header["jwk"], decode(signature)
            x, y = (int.from_bytes(decode(jwk[axis]), "big") for axis in "xy")
            r, s = (int.from_bytes(half, "big") for half in (raw[:32], raw[32:]))
            key = EllipticCurvePublicNumbers(x, y, SECP256R1()).public_key()
            key.verify(encode_dss_signature(r, s), f"{head}.{body}".encode(), ECDSA(SHA256()))
        except (ValueError, KeyError, InvalidSignature) as error:
            self.faults.append(f"{who}: {error!r}")
            return "invalid_dpop_proof"
        ath = None if token is None else hashlib.sha256(token.encode()).digest()
        seen = claims["htm"], claims["htu"], header["typ"], decode(claims["ath"]) if "ath" in claims else None
        if seen != (method, url, "dpop+jwt", ath) or claims["jti"] in self.proofs or "d" in jwk:
            self.faults.append(f"{who}: {seen}")
            return "invalid_dpop_proof"
        self.proofs.add(claims["jti"])
        self.keys.add(jwk["x"])
        return None if claims.get("nonce") == self.nonces[who] else "use_dpop_nonce"


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    house = House()
    listener = socket.create_server(("127.0.0.1", 0))
    house.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    web = uvicorn.Server(uvicorn.Config(house.app, log_config=None, ws="none", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        yield house
    finally:
        web.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()
        house.server.close()


async def count_tools(house: House, by: OAuth) -> int:
    connector = MCPConnector(HERE)
    connector.upstreams.authorize(f"{house.url}/mcp", by)
    try:
        return len((await connector.describe(f"{house.url}/mcp", registered=True)).capabilities)
    finally:
        await connector.aclose()


def as_client(house: House) -> OAuth:
    return client_credentials(f"{house.url}/mcp", "us", Secret("a secret of ours"), issuer=house.url)


def test_tokens_are_bound_to_a_key_that_every_request_proves() -> None:
    async def story() -> None:
        async with open_house() as house:
            by = as_client(house)
            assert await count_tools(house, by) == 1
            assert by.header == "DPoP token-1"
            house.nonces = {"as": "as-2", "rs": "rs-2"}
            assert await count_tools(house, by) == 1
            assert len(house.tokens) == 1, "a new nonce is no reason for a new token"
            kept = by.grant()
            assert kept is not None
            assert isinstance(kept, Grant)
            assert kept.key is not None
            # Another process goes on with the same key, by the refresh token, and by the nonce that is wanted now.
            other = as_client(house)
            await other.resume(kept)
            gate = Gate(HERE)
            try:
                assert await other.refresh(gate)
            finally:
                await gate.aclose()
            assert (house.forms[-1]["grant_type"], other.header) == ("refresh_token", "DPoP token-2")
            assert await count_tools(house, other) == 1
            assert len(house.keys) == 1
            assert house.faults == []

    asyncio.run(asyncio.wait_for(story(), 120))


def test_a_server_that_binds_nothing_gets_bearer_tokens_also_after_one_that_did() -> None:
    async def story() -> None:
        async with open_house() as house:
            by = as_client(house)
            assert await count_tools(house, by) == 1
            house.binds = False
            house.tokens.clear()
            assert await count_tools(house, by) == 1
            assert by.header == "Bearer token-1"
            assert by.prove("POST", f"{house.url}/mcp", {"Authorization": by.header}) == {}
            kept = by.grant()
            assert kept is not None
            assert kept.key is None

    asyncio.run(asyncio.wait_for(story(), 120))


def test_a_workload_shows_the_token_of_its_platform_and_takes_no_for_an_answer() -> None:
    said = "fresh"

    async def assertion(audience: str, resource: str) -> str:
        asked.append((audience, resource))
        return said

    asked: list[tuple[str, str]] = []

    async def story() -> None:
        nonlocal said
        async with open_house() as house:
            make = partial(workload_identity, f"{house.url}/mcp", "job-7", assertion, issuer=house.url, scope="read")
            by = make()
            assert await count_tools(house, by) == 1
            assert asked == [(house.url, f"{house.url}/mcp")]
            (form,) = house.forms
            assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
            assert (form["assertion"], form["client_id"], form["scope"]) == ("fresh", "job-7", "read")
            assert "client_secret" not in form
            said = "stale"
            with pytest.raises(TargetRefused, match="invalid_grant"):
                await count_tools(house, make())
            assert len(house.forms) == 2, "a refusal is not tried again"

    asyncio.run(asyncio.wait_for(story(), 120))


def test_only_a_nonce_that_can_be_sent_is_taken() -> None:
    assert read_nonce({"DPoP-Nonce": "abc"}) == "abc"
    for nonce in ("", "a\nb", "é", "x" * 2_000):
        assert read_nonce({"dpop-nonce": nonce}) is None
    assert read_nonce(Refused(401).headers) is None
