"""A step that is added to ``ORDER`` is in force at every door of a gateway, wherever in the order it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent3.protocols.a2a.door.endpoint import A2AEndpoint
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.settings import Calls, Limits, Server, Settings
from tests.support.doors import (
    Door,
    a2a_grpc,
    a2a_rest,
    a2a_rpc,
    ask,
    legacy,
    modern,
    rest,
    rest_detached,
    rest_with_a_key,
)
from tests.support.gateway import Hosted, hosted
from tests.support.probe import AROUND, ENTER, PROBE, WORDS, Target, places, probing

FORWARDED = {"x_forwarded_proto": "http"}
"""What a proxy has touched has to come by the app, past the short way."""


@dataclass
class House:
    door: Hosted
    target: Target


@pytest.fixture(
    scope="module",
    params=[*((place, ENTER) for place in places()), *((place, AROUND) for place in places(few=True))],
    ids=lambda given: f"{given[1].__name__}-{given[0]}",
)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with the probe at one place."""
    target = Target()
    settings = Settings(
        calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0), server=Server(grpc_port=0)
    )
    with probing(*request.param), hosted(tmp_path_factory.mktemp("doors"), target.agents, settings) as running:
        yield House(running, target)


DOORS: dict[str, Door] = {
    "REST": rest,
    "REST with a key": rest_with_a_key,
    "REST detached": rest_detached,
    "NLWeb": ask(streaming=False),
    "NLWeb stream": ask(streaming=True),
    **{
        f"MCP {path}{' direct' if direct else ''} {era.__name__} {'fast' if fast else 'SDK'}": era(
            path, fast=fast, direct=direct
        )
        for path, direct in (("/mcp", False), ("/mcp", True), ("/agents/target/mcp", False))
        for era in (modern, legacy)
        for fast in (True, False)
    },
    **{
        f"A2A {path} {method} {'long' if headers else 'short'}": a2a_rpc(path, method, version, **headers)
        for path in ("/a2a", "/agents/target/a2a")
        for method, version in (
            ("tasks/send", "0.1"),
            ("tasks/sendSubscribe", "0.1"),
            ("message/send", "0.3"),
            ("message/stream", "0.3"),
            ("SendMessage", "1.0"),
            ("SendStreamingMessage", "1.0"),
        )
        for headers in ({}, FORWARDED)
    },
    **{
        f"A2A REST {path}": a2a_rest(path, version)
        for base in ("/a2a", "/agents/target/a2a")
        for verb in ("send", "stream")
        for path, version in ((f"{base}/v1/message:{verb}", "0.3"), (f"{base}/message:{verb}", "1.0"))
    },
    "A2A gRPC 0.3": a2a_grpc("0.3", stream=False),
    "A2A gRPC 0.3 stream": a2a_grpc("0.3", stream=True),
    "A2A gRPC 1.0": a2a_grpc("1.0", stream=False),
    "A2A gRPC 1.0 stream": a2a_grpc("1.0", stream=True),
}


def test_a_step_that_refuses_is_asked_and_obeyed(house: House) -> None:
    for name, door in DOORS.items():
        PROBE.clear(refuses=True)
        before = house.target.runs
        told = door(house.door)
        assert WORDS in told, (name, told)
        # Our own gRPC client says of a foreign PERMISSION_DENIED that its target refused.
        assert "forbidden" in told.lower() or "target_refused" in told, (name, told)
        assert house.target.runs == before, name
        assert PROBE.entered, name


def test_a_step_that_only_looks_sees_every_turn_once(house: House) -> None:
    for name, door in DOORS.items():
        PROBE.clear()
        before = house.target.runs
        told = door(house.door)
        assert "said hi" in told, (name, told)
        assert (house.target.runs - before, len(PROBE.entered), len(PROBE.left)) == (1, 1, 1), name


def test_the_short_ways_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the doors above would all be the long one."""
    answered: list[bool] = []

    def counting(inner: Callable[..., Any]) -> Callable[..., Any]:
        async def reply(*given: Any) -> Any:
            answer = await inner(*given)
            answered.append(answer is not None)  # of one door, the call comes last
            return answer

        return reply

    monkeypatch.setattr(FastLane, "answer", counting(FastLane.answer))
    monkeypatch.setattr(A2AEndpoint, "reply", counting(A2AEndpoint.reply))
    with hosted(tmp_path, Target().agents) as running:
        for name, door in DOORS.items():
            if name.endswith(("fast", "SDK", "short", "long")) and "tream" not in name and "Subscribe" not in name:
                answered.clear()
                door(running)
                assert any(answered[-1:]) == name.endswith(("fast", "short")), name
