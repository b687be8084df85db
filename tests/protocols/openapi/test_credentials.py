"""OAuth for services: tokens by client credentials, and a person who signs in; keys; slow and large answers."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from fastapi import FastAPI, Header, HTTPException, Request

from agent3.errors import SetupError, TargetRefused
from agent3.gateway import Caller, CallRequest
from agent3.identity.scheme_credentials import Scheme, SchemeCredential
from agent3.identity.secrets import Secret
from agent3.identity.sign_ins import SignInWish
from agent3.model import LOCAL, Done, Failed, value_of
from agent3.security.outbound import Gate, Policy
from agent3.server.build import build
from agent3.settings import Calls, Settings, Storage
from tests.support.gateway import Hosted, hosted
from tests.support.oauth_agent import Person
from tests.support.oauth_house import House, standing
from tests.support.registration import add
from tests.support.services import serving


def call(made: Hosted, agent: str, capability: str, key: str | None = None, **given: Any) -> Any:
    request = CallRequest(agent=agent, capability=capability, input=given, key=key)
    return made.run(made.server.gateway.call(Caller(LOCAL), request))


class Guarded:
    """A service that gives tokens for client credentials, and refuses each of them after two uses."""

    def __init__(self) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.uses: dict[str, int] = {}
        self.app = FastAPI(title="Guarded")

        @self.app.post("/token")
        async def token(request: Request) -> Any:
            user = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
            if user != "me:hush-hush-hush":
                raise HTTPException(401)
            self.forms.append(parse_qs((await request.body()).decode()))
            given = f"token-{len(self.forms)}-of-this-service"
            self.uses[given] = 0
            return {"access_token": given, "token_type": "bearer", "expires_in": 3600}

        @self.app.get("/secret", operation_id="secret")
        def secret(authorization: str = Header("")) -> Any:
            given = authorization.removeprefix("Bearer ")
            if self.uses.get(given, 2) >= 2:
                raise HTTPException(401, "Who are you?")
            self.uses[given] += 1
            return {"told": given}

        @self.app.get("/refusal", operation_id="refusal")
        def refusal(authorization: str = Header("")) -> Any:
            raise HTTPException(409, f"not for {authorization.removeprefix('Bearer ')}")

        flow = {"tokenUrl": "/token", "scopes": {"read": "Read"}}
        found = self.app.openapi()
        scheme = {"type": "oauth2", "flows": {"clientCredentials": flow}}
        found["components"]["securitySchemes"] = {"machine": scheme}
        found["security"] = [{"machine": ["read"]}]


@pytest.mark.requirement("AC-27")
def test_a_machine_gets_a_token_once_and_another_when_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARDED", "me:hush-hush-hush")
    guarded = Guarded()
    with serving(guarded.app) as service, hosted(tmp_path) as made:
        made.run(add(made.server, f"{service.url}/openapi.json", credential="env:GUARDED"))
        told = [call(made, "guarded", "secret") for _ in range(5)]
        assert [value_of(one.parts) for one in told] == [{"told": "***"}] * 5, "a token never comes back"
        assert len(guarded.forms) == 3, "one token for two calls each"
        assert guarded.forms[0] == {"grant_type": ["client_credentials"], "scope": ["read"]}
        refused = call(made, "guarded", "refusal")
        assert isinstance(refused, Failed)
        assert "not for ***" in f"{refused.message} {refused.data}"
        for shown in ("hush", "of-this-service"):
            assert all(shown not in str(row) for table in ("calls", "agents") for row in made.rows(table))
            assert shown not in f"{told}{refused}"


def test_a_token_is_got_once_for_all_and_given_up_only_if_it_was_the_one_refused() -> None:
    guarded = Guarded()

    async def story(url: str) -> None:
        flow = {"clientCredentials": {"tokenUrl": f"{url}/token"}}
        scheme = Scheme({"type": "oauth2", "flows": flow}, ())
        gate = Gate(Policy().registering(url))
        try:
            credential = SchemeCredential(scheme, Secret("me:hush-hush-hush"), None, gate, url)
            first = await asyncio.gather(*(credential.carry(url) for _ in range(5)))
            assert len(guarded.forms) == 1
            assert len({one.headers["Authorization"] for one in first}) == 1
            refusal = TargetRefused("no", data={"status": 401})
            assert await credential.renew(first[0].headers, refusal)
            second = await credential.carry(url)
            assert second != first[0]
            assert await credential.renew(first[1].headers, refusal), "a late refusal of the old one"
            assert await credential.carry(url) == second
            assert len(guarded.forms) == 2
        finally:
            await gate.aclose()

    with serving(guarded.app) as service:
        asyncio.run(asyncio.wait_for(story(service.url), 120))


@dataclass
class ServiceHouse(House):
    """A service whose document names an authorization code flow of the same house."""

    @property
    def url(self) -> str:
        return f"{self.root}/openapi.json"

    def app(self) -> web.Application:
        app = super().app()
        app.add_routes([web.get("/openapi.json", self.document), web.get("/who", self.who)])
        return app

    async def document(self, _: web.Request) -> web.Response:
        flow = {"authorizationUrl": "/authorize", "tokenUrl": "/token", "scopes": {"read": "Read"}}
        scheme = {"type": "oauth2", "flows": {"authorizationCode": flow}}
        return web.json_response(
            {
                "openapi": "3.1.0",
                "info": {"title": "Guarded service", "version": "1"},
                "paths": {"/who": {"get": {"operationId": "who", "security": [{"person": ["read"]}], "responses": {}}}},
                "components": {"securitySchemes": {"person": scheme}},
            }
        )

    async def who(self, request: web.Request) -> web.Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response({"error": "who?"}, status=401)
        return web.json_response({"known": True})


def test_a_person_signs_in_where_the_document_says() -> None:
    async def story() -> None:
        async with standing(ServiceHouse()) as house, build(Settings(storage=Storage(url=":memory:"))) as server:
            machine = SignInWish("machine", Person(), "me", "env:HOME", "https://issuer.example")
            with pytest.raises(SetupError, match="CLIENT:SECRET"):
                await add(server, house.url, sign_in=machine)
            person = Person()
            agent = await add(server, house.url, sign_in=SignInWish("person", person, "known"))
            assert person.seen.startswith(f"{house.root}/authorize?")
            request = CallRequest(agent=agent.id, capability="who", input={})
            outcome = await server.gateway.call(Caller(LOCAL), request)
            assert isinstance(outcome, Done), outcome
            assert value_of(outcome.parts) == {"known": True}

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_key_that_the_service_honours_lets_a_call_be_repeated_and_no_other_is(tmp_path: Path) -> None:
    app = FastAPI(title="Bank")
    seen: list[str | None] = []

    @app.post("/pay", operation_id="pay")
    def pay(amount: int, idempotency_key: str | None = Header(None)) -> Any:
        seen.append(idempotency_key)
        if len(seen) % 2:
            raise HTTPException(503, "busy")
        return {"paid": amount}

    settings = Settings(calls=Calls(retries=2, backoff=0.01))
    with serving(app) as service, hosted(tmp_path, settings=settings) as made:
        made.run(add(made.server, service.url))
        assert isinstance(call(made, "bank", "pay", amount=1), Failed)
        assert seen == [None], "it may have been done"
        seen.clear()
        assert value_of(call(made, "bank", "pay", key="order-7", amount=1).parts) == {"paid": 1}
        assert len(seen) == 2
        assert seen[0] == seen[1] != "order-7", "the key is this caller's own"


def test_a_service_that_hangs_is_a_timeout_and_its_connection_is_closed(tmp_path: Path) -> None:
    app = FastAPI(title="Slow")
    gone = asyncio.Event()

    @app.get("/slow", operation_id="slow")
    async def slow(request: Request) -> Any:
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        gone.set()

    settings = Settings(calls=Calls(retries=0, attempt_timeout=0.3))
    with serving(app) as service, hosted(tmp_path, settings=settings) as made:
        made.run(add(made.server, service.url))
        failed = call(made, "slow", "slow")
        assert isinstance(failed, Failed)
        assert failed.code == "timeout"
        made.run(_until(gone))


async def _until(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        while not event.is_set():
            await asyncio.sleep(0.02)


def test_an_answer_beyond_the_bound_is_cut_off(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        document = (
            b"""{"openapi": "3.1.0", "info": {"title": "Flood"}, "paths": {"/f": {"get": {"operationId": "f"}}}}"""
        )
        flood = scope["path"] == "/f"
        kind = b"application/octet-stream" if flood else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for _ in range(20 if flood else 0):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b"" if flood else document})

    with serving(app) as service, hosted(tmp_path) as made:
        made.run(add(made.server, f"{service.url}/openapi.json"))
        failed = call(made, "flood", "f")
        assert isinstance(failed, Failed)
        assert failed.code == "too_large"
