"""An MCP server that asks for OAuth, and the authorization server it trusts, for tests of who signs in to it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

__all__ = ["House", "standing", "standing_aside"]

INFO = {"io.modelcontextprotocol/serverInfo": {"name": "oauth house", "version": "1"}}


@dataclass
class House:
    """An MCP server that asks for a token, and the authorization server it trusts, at one address."""

    wanted: str = "read"
    content: bool = True
    issuer: str | None = None
    life: int = 3600
    port: int = 0
    tokens: dict[str, str] = field(default_factory=dict)
    forms: list[dict[str, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    challenges: dict[str, str] = field(default_factory=dict)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    down: bool = False
    refreshes: bool = True
    good: str = "r"
    """The refresh token that is taken; a new one is given each time where it ``rotates``."""
    rotates: bool = False

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/mcp"

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/.well-known/oauth-protected-resource/mcp", self.resource),
                web.get("/.well-known/oauth-authorization-server", self.metadata),
                web.post("/register", self.register),
                web.get("/authorize", self.authorize),
                web.post("/token", self.token),
                web.post("/idp", self.exchange),
                web.post("/mcp", self.mcp),
            ]
        )
        return app

    async def resource(self, _: web.Request) -> web.Response:
        return web.json_response({"resource": self.url, "authorization_servers": [self.issuer or self.root]})

    async def metadata(self, _: web.Request) -> web.Response:
        ends = {f"{name}_endpoint": f"{self.root}/{path}" for name, path in ENDPOINTS.items()}
        return web.json_response({"issuer": self.root, "response_types_supported": ["code"], **ends})

    async def register(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        return web.json_response({**wanted, "client_id": "c1", "token_endpoint_auth_method": "none"}, status=201)

    async def authorize(self, request: web.Request) -> web.Response:
        code = f"code-{len(self.challenges)}"
        self.challenges[code] = request.query["code_challenge"]
        back = request.query["redirect_uri"]
        return web.Response(status=302, headers={"Location": f"{back}?{self.back(code, request)}"})

    def back(self, code: str, request: web.Request) -> str:
        return urlencode({"code": code, "state": request.query["state"]})

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append({**form, "authorization": request.headers.get("authorization", "")})
        if self.down:
            raise web.HTTPServiceUnavailable
        if ("code" in form and not self.proven(form)) or form.get("refresh_token", self.good) != self.good:
            return web.json_response({"error": "invalid_grant"}, status=400)
        token = f"token-{len(self.forms)}"
        self.tokens[token] = form.get("scope", "")
        if self.rotates:
            self.good = f"r-{len(self.forms)}"
        return web.json_response(self.given(token))

    def given(self, token: str) -> dict[str, Any]:
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.life}
        return answer | ({"refresh_token": self.good} if self.refreshes else {})

    def proven(self, form: dict[str, str]) -> bool:
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        return self.challenges[form["code"]] == base64.urlsafe_b64encode(digest).decode().rstrip("=")

    async def exchange(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        said = f"{form['subject_token']} for {form['audience']} and {form['resource']}"
        return web.json_response({"access_token": said, "token_type": "N_A"})

    async def mcp(self, request: web.Request) -> web.Response:
        message = await request.json()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen.append(f"{message['method']} {token}")
        if token not in self.tokens:
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer scope="{self.wanted}"'})
        if message["method"] == "tools/call" and not self.content:
            wish = f'Bearer error="insufficient_scope", scope="{message["params"]["name"]}"'
            if message["params"]["name"] not in self.tokens[token].split():
                return web.Response(status=403, headers={"WWW-Authenticate": wish})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": await self.result(message, token)})

    async def result(self, message: dict[str, Any], token: str) -> dict[str, Any]:
        if message["method"] == "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": INFO}
        if message["method"] == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "tell")]
            return {"resultType": "complete", "tools": tools}
        if message["params"]["name"] == "tell":
            return {"resultType": "complete", "content": [{"type": "text", "text": f"You came with {token}."}]}
        if message["params"]["name"] == "slow":
            self.hanging.set()
            await self.released.wait()
        return {"resultType": "complete", "content": []}


ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register"}


@asynccontextmanager
async def standing(house: House) -> AsyncIterator[House]:
    runner = web.AppRunner(house.app(), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    house.port = runner.addresses[0][1]
    try:
        yield house
    finally:
        await runner.cleanup()


@contextmanager
def standing_aside(house: House) -> Iterator[House]:
    """Likewise in a thread of its own, for tests that wait for other processes."""
    ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def stand() -> None:
        async with standing(house):
            leave = asyncio.Event()
            loops.append((asyncio.get_running_loop(), leave))
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(stand()))
    thread.start()
    try:
        assert ready.wait(60)
        yield house
    finally:
        for loop, leave in loops:
            loop.call_soon_threadsafe(leave.set)
        thread.join(60)
