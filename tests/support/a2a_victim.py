"""A process that begins a task, tells how far its stream came, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from agent3.protocols.a2a.wire.types import ArtifactUpdate, Task
from agent3.protocols.functions.functions import LocalAgent
from tests.support.a2a_engine import ALICE, a_bench, say

__all__ = ["an_agent"]


def an_agent(stops: bool = False) -> LocalAgent:
    """Tells three pieces, and in the process that is killed no more than two."""
    agent = LocalAgent("counter")

    async def count(message: str) -> AsyncIterator[str]:
        for number in range(3):
            if stops and number == 2:
                await asyncio.Event().wait()
            yield f"{number} "

    agent.add(count, replay=True)
    return agent


async def main(url: str) -> None:
    """Begin the task and print its id and the number of the last item that was seen."""
    async with a_bench(an_agent(stops=True), url) as bench:
        task = ""
        async for number, item in bench.engine.stream(ALICE, say("go", "m1")):
            if isinstance(item, Task):
                task = item.id
            if isinstance(item, ArtifactUpdate) and item.append:
                print(task, number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
