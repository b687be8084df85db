"""One caller never meets another at a target: ids and sessions that leave the gateway are derived from who calls."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent3.model import Principal
from agent3.security.caller_scope import CallerScope
from agent3.settings import Client, Limits, Settings
from tests.support.a2a_toy import message, rpc, unary
from tests.support.gateway import Door, Hosted, hosted
from tests.support.registration import add
from tests.support.services import Service, serving

KEYS = {"ann": "ann-key-000001", "ben": "ben-key-000002"}
PROGRAM = """
import json, sys
kept = []
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    name = asked["method"]
    if name == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "p"}}
    elif name == "tools/list":
        result = {"tools": [{"name": "note", "description": "Keep it", "inputSchema": {"type": "object"}}]}
    else:
        kept.append(asked["params"]["arguments"]["text"])
        result = {"content": [{"type": "text", "text": "|".join(kept)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class Target:
    """Everything that remembers by what it is sent: an MCP server with sessions, an A2A agent with conversations, a
    service with orders."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[str]] = {}
        self.conversations: dict[str, list[str]] = {}
        self.orders: dict[str, str] = {}
        self.references: list[list[str]] = []

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/mcp", self.mcp, methods=["POST", "GET", "DELETE"]),
                Route("/.well-known/agent-card.json", self.card),
                Route("/rpc", self.rpc, methods=["POST"]),
                Route("/openapi.json", self.document),
                Route("/orders", self.order, methods=["POST"]),
            ]
        )

    async def mcp(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        body = json.loads(await request.body())
        session, headers = request.headers.get("mcp-session-id", ""), {}
        if body["method"] == "server/discover":
            return Response(status_code=400)
        if "id" not in body:
            return Response(status_code=202)
        if body["method"] == "initialize":
            session = f"s{len(self.sessions)}"
            self.sessions[session] = []
            headers = {"mcp-session-id": session}
            info = {"name": "cart", "version": "1"}
            result: Any = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif body["method"] == "tools/list":
            result = {"tools": [{"name": "put", "description": "Put it in", "inputSchema": {"type": "object"}}]}
        else:
            self.sessions[session].append(body["params"]["arguments"]["text"])
            result = {"content": [{"type": "text", "text": "|".join(self.sessions[session])}]}
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": result}, headers=headers)

    async def card(self, request: Request) -> Response:
        skill = {"id": "chat", "name": "chat", "description": "Chat", "tags": ["chat"]}
        modes = {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
        url = str(request.base_url) + "rpc"
        about = {"name": "chatty", "description": "Chats", "version": "1", "protocolVersion": "0.3.0"}
        return JSONResponse({**about, **modes, "url": url, "capabilities": {}, "skills": [skill]})

    async def rpc(self, request: Request) -> Response:
        body = json.loads(await request.body())
        message = body["params"]["message"]
        said = self.conversations.setdefault(message["contextId"], [])
        said.append(message["parts"][0]["text"])
        self.references.append(message.get("referenceTaskIds") or [])
        parts = [{"kind": "text", "text": "|".join(said)}]
        if said[0] == "task":
            artifact = {"artifactId": "a", "parts": parts}
            reply: dict[str, Any] = {
                "kind": "task",
                "id": f"their-{len(self.references)}",
                "contextId": message["contextId"],
            }
            reply |= {"status": {"state": "completed"}, "artifacts": [artifact]}
        else:
            reply = {"kind": "message", "role": "agent", "messageId": "m", "contextId": message["contextId"]}
            reply |= {"parts": parts}
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": reply})

    async def document(self, request: Request) -> Response:
        key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}}
        body = {"content": {"application/json": {"schema": {"type": "object"}}}}
        order = {"operationId": "order", "parameters": [key], "requestBody": body, "responses": {"200": {}}}
        about = {"openapi": "3.1.0", "info": {"title": "shop", "version": "1"}}
        return JSONResponse({**about, "servers": [{"url": "/"}], "paths": {"/orders": {"post": order}}})

    async def order(self, request: Request) -> Response:
        word = json.loads(await request.body())["what"]
        return JSONResponse({"ordered": self.orders.setdefault(request.headers["idempotency-key"], word)})


@pytest.fixture(scope="module")
def target() -> Target:
    return Target()


@pytest.fixture(scope="module")
def service(target: Target) -> Iterator[Service]:
    with serving(target.app()) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    clients = tuple(Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())
    settings = Settings(clients=clients, limits=Limits(per_minute=0))
    folder: Path = tmp_path_factory.mktemp("scope")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with hosted(folder, [], settings) as found:
        command = f"{sys.executable} {program}"
        found.run(add(found.server, f"{service.url}/mcp", "cart"))
        found.run(add(found.server, f"{service.url}/mcp", "till", choices={"sessions": "shared"}))
        found.run(add(found.server, f"{service.url}/.well-known/agent-card.json", "chatty"))
        found.run(add(found.server, f"{service.url}/openapi.json", "shop"))
        found.run(add(found.server, command, "notes"))
        yield found


def both(gateway: Hosted) -> tuple[Door, Door]:
    return gateway.as_(KEYS["ann"]), gateway.as_(KEYS["ben"])


def said(door: Door, agent: str, capability: str, arguments: Any, **metadata: str) -> str:
    body = {"agentId": agent, "capability": capability, "input": arguments, "metadata": metadata}
    reply = door.post("/v1/call", body)
    assert reply.status == 200, reply.raw
    return json.dumps(reply.json)


def test_a_conversation_of_one_caller_is_closed_to_another_who_names_it(gateway: Hosted, target: Target) -> None:
    ann, ben = both(gateway)
    said(ann, "chatty", "chat", {"message": "my secret"}, contextId="trip")
    assert "my secret" not in said(ben, "chatty", "chat", {"message": "and?"}, contextId="trip")
    assert "my secret|again" in said(ann, "chatty", "chat", {"message": "again"}, contextId="trip")
    assert len(target.conversations) == 2
    assert "trip" not in target.conversations


def test_a_message_refers_to_tasks_of_its_caller_alone(gateway: Hosted, target: Target) -> None:
    ann, ben = both(gateway)
    path = "/agents/chatty/a2a"

    def send(door: Door, text: str, *references: str) -> str:
        given = message(text, "chat", contextId="tasks", referenceTaskIds=list(references))
        return str(unary(rpc(door, "SendMessage", {"message": given}, path))["task"]["id"])

    def dropped() -> float:
        lines = ann.get("/metrics").raw.decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("agent3_a2a_references_dropped_total "))

    before = dropped()
    first = send(ann, "task")
    theirs = f"their-{len(target.references)}"
    send(ann, "again", first)
    assert target.references[-1] == [theirs]
    send(ann, "and", first, theirs, "their-99")
    assert target.references[-1] == [theirs]
    send(ben, "task", first, theirs)
    assert target.references[-1] == []
    assert dropped() - before == 4


def test_a_key_of_one_caller_never_finds_the_order_of_another(gateway: Hosted, target: Target) -> None:
    ann, ben = both(gateway)
    for door, what in ((ann, "a ring"), (ben, "a spade"), (ann, "a ring")):
        body = {"body": {"what": what}}
        assert what in said(door, "shop", "order", body, idempotencyKey="order-1")
        assert what in said(door, "shop", "order", {**body, "Idempotency-Key": "order-2"})
    assert len(target.orders) == 4
    assert not {"order-1", "order-2"} & set(target.orders)


def test_each_caller_has_a_session_of_its_own_unless_they_are_shared(gateway: Hosted) -> None:
    ann, ben = both(gateway)
    for agent, capability in (("cart", "put"), ("notes", "note")):
        said(ann, agent, capability, {"text": "ring"})
        assert "ring" not in said(ben, agent, capability, {"text": "spade"})
        assert "ring|rose" in said(ann, agent, capability, {"text": "rose"})
    said(ann, "till", "put", {"text": "ring"})
    assert "ring|spade" in said(ben, "till", "put", {"text": "spade"})


def test_a_derived_id_is_lasting_and_tells_nothing_of_the_caller() -> None:
    scope, other = CallerScope(b"k" * 32), CallerScope(b"x" * 32)
    ann, ben = Principal("ann"), Principal("ben")
    derived = scope.derive(ann, "context", "trip")
    assert derived == CallerScope(b"k" * 32).derive(ann, "context", "trip")
    others = {scope.derive(ben, "context", "trip"), scope.derive(ann, "key", "trip"), other.derive(ann, "key", "trip")}
    assert derived not in others
    assert len(others) == 3
