"""Tasks whose caller has left: they are cancelled at their agent, by whatever way and however late it names them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Failed, Outcome, Working
from agent3.protocols.a2a.peer import connector
from agent3.protocols.a2a.peer.bindings import BINDINGS, Interface
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    CancelTask,
    Item,
    Part,
    Request,
    Send,
    State,
    Status,
    Task,
)
from agent3.server.build import Server, build
from agent3.settings import Calls, Limits, Settings, Storage
from tests.support.registration import add

WORKING = Task(id="named-late", context_id="c", status=Status(state=State.WORKING))


class Agent:
    """A remote agent that answers when it is told to; it stands in for a binding."""

    def __init__(self, interface: Interface):
        self.interface = interface
        self.origin = "http://127.0.0.1:9"
        self.reached, self.released, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.items: list[Item] | AsyncIterator[Item] = [WORKING]

    async def send(self, request: Request, options: Any) -> Any:
        if isinstance(request, CancelTask):
            assert request.id == WORKING.id
            self.cancelled.set()
            return Task(id=request.id, context_id="c", status=Status(state=State.CANCELED))
        assert isinstance(request, Send)
        self.reached.set()
        await self.released.wait()
        return WORKING

    async def stream(
        self, request: Request, options: Any, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        self.reached.set()
        await self.released.wait()
        for item in self.items if isinstance(self.items, list) else []:
            yield None, item
        if not isinstance(self.items, list):
            async for item in self.items:
                yield None, item
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def calling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, binding: str, *, streams: bool
) -> AsyncIterator[tuple[Server, str, Agent]]:
    """A gateway with that agent."""
    agent = Agent(Interface("127.0.0.1:9", binding, "1.0"))
    monkeypatch.setitem(BINDINGS, binding, lambda interface, gate: agent)
    monkeypatch.setattr(connector, "_CANCEL_DELAY", 0.0)
    url = "http://127.0.0.1:9/rpc" if binding != "GRPC" else "127.0.0.1:9"
    card = {
        "name": "Late",
        "description": "Names its tasks late",
        "version": "1",
        "supportedInterfaces": [{"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}],
        "capabilities": {"streaming": streams},
        "skills": [{"id": "talk", "name": "Talk", "description": "Talk", "tags": []}],
    }
    file = folder / "card.json"
    file.write_text(json.dumps(card))
    how = Settings(storage=Storage(url=":memory:"), calls=Calls(backoff=0.01), limits=Limits(per_minute=0))
    async with asyncio.timeout(60), build(how) as server:
        yield server, (await add(server, str(file))).id, agent


async def call(server: Server, agent: str, **more: Any) -> Outcome:
    return await server.gateway.call(Caller(LOCAL, "test"), CallRequest(agent=agent, message="hi", **more))


def counted(server: Server, reason: str, result: str) -> float:
    for metric in server.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "agent3_a2a_cancellations_total" and sample.labels == {
                "reason": reason,
                "result": result,
            }:
                return sample.value
    return 0.0


@pytest.mark.parametrize(
    ("binding", "streams", "as_job"),
    [("JSONRPC", False, False), ("JSONRPC", True, True), ("GRPC", False, True), ("GRPC", True, False)],
)
def test_a_task_that_is_named_after_its_caller_left_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binding: str, streams: bool, as_job: bool
) -> None:
    async def main() -> None:
        async with calling(tmp_path, monkeypatch, binding, streams=streams) as (server, name, agent):
            before = counted(server, "named late", "cancelled")
            if as_job:
                working = await call(server, name, detach=True)
                assert isinstance(working, Working)
                assert working.job is not None
                await agent.reached.wait()
                await server.core.runner.cancel(LOCAL, working.job)
            else:
                running = asyncio.create_task(call(server, name))
                await agent.reached.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            assert not agent.cancelled.is_set()
            agent.released.set()
            await agent.cancelled.wait()
            while counted(server, "named late", "cancelled") == before:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_task_that_is_never_named_is_not_awaited_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_LATE_NAME", 0.01)

    async def main() -> None:
        async with calling(tmp_path, monkeypatch, "JSONRPC", streams=True) as (server, name, agent):
            before = counted(server, "named late", "never named")
            running = asyncio.create_task(call(server, name))
            await agent.reached.wait()
            running.cancel()
            while counted(server, "named late", "never named") == before:
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_artifacts_without_end_are_refused_and_their_task_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent never waits, and still others have their turn on the loop."""
    monkeypatch.setattr(connector, "_MOST_ARTIFACTS", 300)

    async def endless() -> AsyncIterator[Item]:
        yield WORKING
        for number in range(1_000_000):
            piece = Artifact(artifact_id=str(number), parts=(Part(text="more"),))
            yield ArtifactUpdate(task_id=WORKING.id, context_id="c", artifact=piece)

    async def main() -> None:
        async with calling(tmp_path, monkeypatch, "JSONRPC", streams=True) as (server, name, agent):
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            agent.items = endless()
            agent.released.set()
            other = asyncio.create_task(turn())
            try:
                failed = await call(server, name)
            finally:
                other.cancel()
            assert isinstance(failed, Failed)
            assert (failed.code, "300 artifacts" in failed.message) == ("too_large", True)
            assert turns > 15
            await agent.cancelled.wait()

    asyncio.run(main())
