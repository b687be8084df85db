"""An A2A agent that asks for a token, and the authorization server that its card names, at one address."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

from aiohttp import web

from tests.support.oauth_house import House

__all__ = ["AgentHouse", "Person"]


@dataclass
class Person:
    """Goes where they are sent, and agrees; ``seen`` is where."""

    seen: str = ""

    def go(self, url: str) -> None:
        self.seen = url
        urlopen(url, timeout=240).read()

    def wait(self, left: float) -> None:
        pass


@dataclass
class AgentHouse(House):
    """An agent whose card is for everybody, and which talks to nobody without a token."""

    scheme: str = "oauth2"
    registers: bool = True
    insecure: bool = False
    denies: bool = False
    strays: str = ""
    """Another place to which the card sends the code."""
    moved: str = ""
    """Another place at which the card says that the agent is."""
    gives: dict[str, Any] = field(default_factory=dict)
    """What answers with tokens hold instead of the usual."""

    @property
    def url(self) -> str:
        return f"{self.root}/.well-known/agent-card.json"

    def app(self) -> web.Application:
        app = super().app()
        app.add_routes(
            [
                web.get("/.well-known/agent-card.json", self.card),
                web.get("/.well-known/openid-configuration", self.metadata),
                web.post("/a2a", self.talk),
            ]
        )
        return app

    async def metadata(self, request: web.Request) -> web.Response:
        found = await super().metadata(request)
        if self.registers:
            return found
        ends = {f"{name}_endpoint": f"{self.root}/{name}" for name in ("authorize", "token")}
        return web.json_response({"issuer": self.root, **ends})

    async def card(self, _: web.Request) -> web.Response:
        place = {"url": f"{self.moved or self.root}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        return web.json_response(
            {
                "name": "Guarded Agent",
                "description": "Talks to those it knows",
                "version": "1",
                "skills": [{"id": "tell", "name": "Tell", "description": "Tells who came", "tags": ["x"]}],
                "supportedInterfaces": [place],
                "capabilities": {"streaming": False},
                "securitySchemes": {"who": self.declared()},
                "securityRequirements": [{"schemes": {"who": {"list": ["read"]}}}],
            }
        )

    def declared(self) -> dict[str, Any]:
        if self.scheme == "openIdConnect":
            where = f"{self.root}/.well-known/openid-configuration"
            return {"openIdConnectSecurityScheme": {"openIdConnectUrl": where}}
        if self.scheme == "apiKey":
            return {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}
        flow = {
            "authorizationUrl": f"{self.root}/authorize",
            "tokenUrl": "http://elsewhere.example/token" if self.insecure else f"{self.strays or self.root}/token",
            "scopes": {"read": "Read", "write": "Write"},
        }
        scheme: dict[str, Any] = {"flows": {"authorizationCode": flow}}
        if self.registers:
            scheme["oauth2MetadataUrl"] = f"{self.root}/.well-known/oauth-authorization-server"
        return {"oauth2SecurityScheme": scheme}

    async def authorize(self, request: web.Request) -> web.Response:
        self.seen.append(f"authorize {request.query['client_id']} {request.query.get('scope')}")
        assert request.query["code_challenge_method"] == "S256"
        if not self.denies:
            return await super().authorize(request)
        back = f"{request.query['redirect_uri']}?error=access_denied&state={request.query['state']}"
        return web.Response(status=302, headers={"Location": back})

    def given(self, token: str) -> dict[str, Any]:
        return super().given(token) | self.gives

    async def talk(self, request: web.Request) -> web.Response:
        asked = await request.json()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen.append(f"{asked['method']} {token}")
        if token not in self.tokens:
            return web.json_response({"error": "who?"}, status=401)
        parts = [{"text": f"You came with {token}."}]
        message = {"messageId": f"m-{len(self.seen)}", "role": "ROLE_AGENT", "parts": parts}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": {"message": message}})
