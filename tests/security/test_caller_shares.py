"""One client cannot lock out another: slots of agents, requests, sessions, reads and large results are shared."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent3 import LocalAgent
from agent3.calls.artifacts import ArtifactStore
from agent3.env import REAL
from agent3.errors import TooLarge
from agent3.model import LOCAL, Call, Principal
from agent3.security.limits import FairShares
from agent3.settings import Client, Limits, Settings
from agent3.storage import Blobs, open_database
from tests.support.gateway import Door, Hosted, hosted

KEYS = {"ann": "ann-key-00000001", "ben": "ben-key-00000002"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream", "content_type": "application/json"}


def settings(**limits: Any) -> Settings:
    clients = tuple(Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())
    return Settings(clients=clients, limits=Limits(**limits))


def both(gateway: Hosted) -> tuple[Door, Door]:
    return gateway.as_(KEYS["ann"]), gateway.as_(KEYS["ben"])


def call(door: Door, text: str = "x") -> Any:
    return door.post("/v1/call", {"agentId": "slow", "capability": "work", "input": {"text": text}})


def test_a_share_is_half_of_what_others_leave_or_a_number() -> None:
    shares = FairShares(8)
    counts = {who: sum(shares.enter("agent", who) for _ in range(8)) for who in ("ann", "ben", "cid")}
    assert counts == {"ann": 4, "ben": 2, "cid": 1}
    assert shares.enter("agent", "dan"), "a newcomer always has one"
    shares.leave("agent", "ann")
    assert shares.enter("other", "ann")
    fixed = FairShares(8, 3)
    assert [fixed.enter("agent", "ann") for _ in range(4)] == [True, True, True, False]


def test_one_client_cannot_take_all_slots_of_an_agent_nor_all_requests(tmp_path: Path) -> None:
    release, running = threading.Event(), threading.Semaphore(0)
    agent, other = LocalAgent("slow"), LocalAgent("other")

    @other.capability
    @agent.capability
    async def work(text: str) -> str:
        running.release()
        while text == "hold" and not release.is_set():
            await asyncio.sleep(0.02)
        return text

    how = settings(per_minute=0, concurrent=4, requests=3)
    with hosted(tmp_path, [agent, other], how) as gateway, ThreadPoolExecutor(8) as threads:
        ann, ben = both(gateway)
        held = [threads.submit(call, ann, "hold") for _ in range(2)]
        try:
            assert all(running.acquire(timeout=240) for _ in held)
            refused = call(ann)
            assert (refused.status, "Client ann has reached its share" in refused.json["error"]) == (429, True)
            assert call(ben).status == 200, "ben still has room"
            assert running.acquire(timeout=240)
            body = {"agentId": "other", "capability": "work", "input": {"text": "hold"}}
            held.append(threads.submit(ann.post, "/v1/call", body))
            assert running.acquire(timeout=240)
            refused = ann.get("/v1/agents")
            assert (refused.status, "already has 3 requests in progress" in refused.error["message"]) == (429, True)
            assert ben.get("/v1/agents").status == 200
        finally:
            release.set()
        assert [one.result(60).status for one in held] == [200, 200, 200]
        assert call(ann).status == 200, "what was taken is given back"


def test_requests_reads_and_sessions_of_one_client_are_bounded_and_leave_others_alone(tmp_path: Path) -> None:
    with hosted(tmp_path, [], settings(per_minute=60, requests_per_minute=1, burst=1, sessions=2)) as gateway:
        ann, ben = both(gateway)
        opened = [ann.post("/mcp", INITIALIZE, **ACCEPT) for _ in range(3)]
        assert [one.status for one in opened] == [200, 200, 429]
        assert "2 open sessions" in json.dumps(opened[2].json)
        odd = json.dumps(INITIALIZE).replace("initialize", "\\u0069nitialize").encode()
        assert ann.post("/mcp", odd, **ACCEPT).status == 429
        assert ben.post("/mcp", INITIALIZE, **ACCEPT).status == 200
        session = opened[0].headers["mcp-session-id"]
        listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        legacy = {**ACCEPT, "mcp_session_id": session, "mcp_protocol_version": "2025-06-18"}
        statuses = [ann.post("/mcp", listed, **legacy).status for _ in range(25)]
        assert statuses[0] == 200
        assert statuses[-1] == 429, "lists count too, also those from the cache"
        for path in ("/v1/agents", "/v1/calls/none?wait=1", "/openapi.json"):
            assert (ann.get(path).status, ben.get(path).status == 429) == (429, False)
        assert ann.get("/v1/agents").error["retryable"]
        assert gateway.get("/healthz").status == 200
        assert b'agent3_connections_refused_total{reason="client_rate"}' in ben.get("/metrics").raw


def test_large_results_of_one_client_are_bounded_in_number_and_bytes() -> None:
    def a_call(principal: Principal) -> Call:
        return Call(id="i", principal=principal, agent="a", capability="c")

    async def story() -> None:
        database = await open_database("sqlite://")
        try:
            store = ArtifactStore(database, Blobs(None), REAL, most=2, most_bytes=100)
            ann, ben, me = (a_call(one) for one in (Principal("ann"), Principal("ben"), LOCAL))
            await store.store(ann, b"x" * 60, None, "text/plain")
            with pytest.raises(TooLarge, match="Client ann already has 60 bytes of large results"):
                await store.store(ann, b"x" * 41, None, "text/plain")
            await store.store(ann, b"x" * 40, None, "text/plain")
            with pytest.raises(TooLarge, match="2 large results"):
                await store.store(ann, b"", None, "text/plain")
            for who in (ben, me, me, me):
                assert await store.store(who, b"y" * 50, None, "text/plain")
        finally:
            await database.aclose()

    asyncio.run(story())
