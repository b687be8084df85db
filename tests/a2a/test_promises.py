"""What a card of ours promises beyond the protocol: deadlines are kept, skills tell their schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent3.a2a.extensions import DEADLINE, IDEMPOTENT, SCHEMAS
from agent3.a2a.serving import listening
from agent3.calls.functions import LocalAgent
from agent3.calls.standalone import Standalone
from tests.support.a2a_toy import codes, message, rpc, unary
from tests.support.gateway import Door


def _slow() -> LocalAgent:
    agent = LocalAgent("slow")

    @agent.capability
    async def wait(ctx: Any, query: str) -> str:
        await asyncio.sleep(30)
        return query

    @agent.capability
    async def add(left: int, right: int) -> int:
        return left + right

    return agent


@pytest.fixture(scope="module")
def agent() -> Iterator[Door]:
    core = Standalone()
    with listening(_slow(), core=core) as url:
        yield Door(url)
    core.close()


def _in(seconds: float) -> dict[str, Any]:
    return {"deadline": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def test_a_call_is_given_up_at_the_deadline_of_its_request(agent: Door) -> None:
    task = unary(rpc(agent, "SendMessage", {"message": message("x", "wait"), "metadata": {DEADLINE: _in(0.3)}}))["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["status"]["message"]["metadata"]["code"] == "timeout"


def test_what_was_wanted_before_it_came_is_not_begun(agent: Door) -> None:
    late = rpc(agent, "SendMessage", {"message": message("y", "wait"), "metadata": {DEADLINE: _in(-5)}})
    assert codes(late)[1] == -32054
    assert "later deadline" in late.json["error"]["message"]


def test_a_deadline_that_is_no_moment_is_refused(agent: Door) -> None:
    wrong = rpc(agent, "SendMessage", {"message": message("z", "wait"), "metadata": {DEADLINE: {"deadline": "soon"}}})
    assert codes(wrong)[1] == -32602
    assert "'soon'" in wrong.json["error"]["message"]


def test_a_card_tells_the_schemas_of_its_skills_and_what_may_be_sent_twice(agent: Door) -> None:
    card = agent.get("/.well-known/agent-card.json?format=1.0").json
    told = {one["uri"]: one.get("params", {}) for one in card["capabilities"]["extensions"]}
    assert IDEMPOTENT in told
    assert told[SCHEMAS]["skills"]["add"]["input"]["properties"]["left"] == {"type": "integer"}
