"""A database that can only be read: searching and reading go on, calls are refused before anything is done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent3 import LocalAgent
from tests.support.gateway import Hosted, hosted

done: list[str] = []


def shop() -> LocalAgent:
    agent = LocalAgent("shop", description="Takes orders for flowers")

    @agent.capability
    async def order(text: str) -> str:
        """Order flowers."""
        done.append(text)
        return f"ordered: {text}"

    return agent


def call(gateway: Hosted, text: str, **metadata: Any) -> tuple[int, Mapping[str, str], Any]:
    body = {"agentId": "shop", "capability": "order", "input": {"text": text}, "metadata": metadata}
    answer = gateway.post("/v1/call", body)
    return answer.status, answer.headers, answer.json


def test_searching_and_reading_go_on_and_calls_are_refused_with_a_reason(tmp_path: Path) -> None:
    with hosted(tmp_path, [shop()]) as gateway:

        def let_write(allowed: bool) -> None:
            database: Any = gateway.server.database
            database._writer._connection.execute(f"PRAGMA query_only = {int(not allowed)}")

        status, _, _ = call(gateway, "before", idempotencyKey="k")
        assert status == 200
        let_write(False)
        found = gateway.post("/v1/search", {"query": "order flowers"})
        assert found.status == 200
        assert found.json["agents"][0]["id"] == "shop"
        assert gateway.get("/v1/agents").status == 200
        assert gateway.get("/.well-known/agent-card.json").status == 200
        assert "order" in str(gateway.get("/v1/calls").json)
        assert call(gateway, "before", idempotencyKey="k")[2]["result"] == "ordered: before"
        call(gateway, "first")  # finds out
        before = list(done)
        for given in ({}, {"idempotencyKey": "other"}) * 2:
            status, headers, body = call(gateway, "meanwhile", **given)
            assert status == 503
            assert int(headers["retry-after"]) >= 1
            assert "read-only at the moment" in str(body)
        assert done == before, "what cannot be recorded is not begun"
        let_write(True)
        until = time.monotonic() + 30
        while (status := call(gateway, "after")[0]) == 503 and time.monotonic() < until:
            time.sleep(0.1)
        assert status == 200
        assert done[-1] == "after"
