"""When an agent takes messages from its letter boxes: opened, closed, and opened again, from any thread.

An agent has two: for what others want of it, which is closed while it is out of service, and for the answers to what it
asked, which it needs to finish what it has begun.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from agent3 import bridge
from agent3.errors import Agent3Error
from agent3.protocols.a2a.agents.mailboxes import Post, answers_of, box_of
from agent3.protocols.a2a.agents.memory_queue import Box
from agent3.protocols.a2a.agents.registry import LEASE, AgentRegistry
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease

__all__ = ["Inbox"]

AT_ONCE = 64
"""Messages that one agent processes at once."""
_SETTLE = 0.05
"""Seconds after the last capability was registered: until then the next one may come, and its messages wait for it."""


class Inbox:
    """The boxes of one agent, seen from inside. It does not keep its agent alive: when that is gone, it is closed."""

    def __init__(
        self,
        core: Standalone,
        post: Post,
        agent: str,
        process: Callable[[Box, Lease], Awaitable[None]],
        registry: AgentRegistry | None = None,
    ):
        self._core = weakref.ref(core)
        self._post = post
        self._agent = agent
        self._registry = registry
        self._process: weakref.WeakMethod[Any] = weakref.WeakMethod(process)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._shut = False

    def open_soon(self) -> None:
        """Take messages when nothing more was registered for a moment."""
        self._shut = False
        bridge.shared().spawn(self._settle())

    def close(self) -> None:
        """Take nothing new. What was taken is finished, and answers still come."""
        self._shut = True
        bridge.shared().spawn(self._close("requests"))

    def leave(self) -> None:
        """Take nothing more at all."""
        self._shut = True
        if self._tasks or self._timer is not None:
            bridge.shared().spawn(self._close("requests", "answers", "heartbeat"))

    # In the bridge's loop

    async def open(self) -> None:
        """Take messages from now on."""
        self._stop_timer()
        if self._shut or self._runs("requests"):
            return
        self._tasks["requests"] = self._post.serve(box_of(self._agent), self._handle, AT_ONCE)
        if self._registry is not None and not self._runs("heartbeat"):
            self._tasks["heartbeat"] = self._post.attend(_beat(self._registry, self._agent))
        core = self._core()
        if core is not None and core.durable:  # only now are the agents here whose jobs an earlier process left
            await core.take_over()

    async def expect(self) -> None:
        """Take answers from now on."""
        if not self._runs("answers"):
            self._tasks["answers"] = self._post.serve(answers_of(self._agent), self._handle, AT_ONCE)

    async def finished(self) -> None:
        """Wait until all that was taken before it was closed is finished."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _runs(self, name: str) -> bool:
        task = self._tasks.get(name)
        return task is not None and not task.done()

    async def _settle(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(_SETTLE, self._settled)

    def _settled(self) -> None:
        self._timer = None
        if not self._shut:
            bridge.shared().spawn(self.open())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _close(self, *names: str) -> None:
        self._stop_timer()
        for name in names:
            task = self._tasks.pop(name, None)
            if task is not None and not task.done():
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def _handle(self, box: Box, lease: Lease) -> None:
        process = self._process()
        if process is None:
            await box.release(lease)
        else:
            await process(box, lease)


async def _beat(registry: AgentRegistry, agent: str) -> None:
    """Say in the registry that the agent is there, for as long as it is."""
    while True:
        with suppress(Agent3Error):  # one that fails is followed by the next
            await registry.beat(agent)
        await asyncio.sleep(LEASE / 3)
