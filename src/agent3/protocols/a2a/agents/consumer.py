"""When an agent takes messages from its mailboxes: opened, closed and opened again, from any thread.

An agent has two mailboxes: one for requests and events, which is closed while the agent is out of service, and one for
the answers to its own requests, which it needs to finish what it has begun.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from agent3 import bridge
from agent3.errors import Agent3Error
from agent3.protocols.a2a.agents.mailboxes import Mailboxes, answer_box, request_box
from agent3.protocols.a2a.agents.memory_queue import MessageQueue
from agent3.protocols.a2a.agents.registry import LEASE, AgentRegistry
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease

__all__ = ["Consumer"]

_Work: TypeAlias = Literal["requests", "answers", "heartbeat"]

AT_ONCE = 64
"""Messages that one agent processes at once."""
_SETTLE = 0.05
"""Seconds without a new capability before messages are taken: those for the next one would be refused until then."""


class Consumer:
    """Takes the messages of one agent. It does not keep the agent alive: when that is gone, it gives them back."""

    def __init__(
        self,
        core: Standalone,
        mailboxes: Mailboxes,
        agent: str,
        process: Callable[[MessageQueue, Lease], Awaitable[None]],
        registry: AgentRegistry | None = None,
    ):
        self._core = weakref.ref(core)
        self._mailboxes = mailboxes
        self._agent = agent
        self._registry = registry
        self._process: weakref.WeakMethod[Any] = weakref.WeakMethod(process)
        self._tasks: dict[_Work, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._shut = False

    def open_soon(self) -> None:
        """Take messages once nothing more has been registered for a moment."""
        self._shut = False

        def settle() -> None:
            self._timer = None
            if not self._shut:
                bridge.get_shared().spawn(self.open())

        async def start_timer() -> None:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(_SETTLE, settle)

        bridge.get_shared().spawn(start_timer())

    def close(self) -> None:
        """Take nothing new. What was taken is finished, and answers still come."""
        self._shut = True
        bridge.get_shared().spawn(self._stop("requests"))

    def leave(self) -> None:
        """Take nothing more at all."""
        self._shut = True
        if self._tasks or self._timer is not None:
            bridge.get_shared().spawn(self._stop("requests", "answers", "heartbeat"))

    # In the bridge's loop

    async def open(self) -> None:
        """Take messages from now on."""
        self._stop_timer()
        if self._shut or self._is_running("requests"):
            return
        self._tasks["requests"] = self._mailboxes.serve(request_box(self._agent), self._handle, AT_ONCE)
        registry, agent = self._registry, self._agent
        if registry is not None and not self._is_running("heartbeat"):

            async def beat() -> None:
                while True:
                    with suppress(Agent3Error):  # a beat that fails is followed by the next
                        await registry.beat(agent)
                    await asyncio.sleep(LEASE / 3)

            self._tasks["heartbeat"] = self._mailboxes.run_until_closed(beat())
        core = self._core()
        if core is not None and core.durable:  # only now can the jobs that an earlier process left find their agent
            await core.take_over()

    async def open_answers(self) -> None:
        """Take answers from now on."""
        if not self._is_running("answers"):
            self._tasks["answers"] = self._mailboxes.serve(answer_box(self._agent), self._handle, AT_ONCE)

    async def wait_finished(self) -> None:
        """Wait for the messages that were taken before it was closed."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _is_running(self, work: _Work) -> bool:
        task = self._tasks.get(work)
        return task is not None and not task.done()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop(self, *works: _Work) -> None:
        self._stop_timer()
        for work in works:
            task = self._tasks.pop(work, None)
            if task is not None and not task.done():
                self._mailboxes.end_task(task)
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def _handle(self, queue: MessageQueue, lease: Lease) -> None:
        process = self._process()
        if process is None:
            await queue.release(lease)
        else:
            await process(queue, lease)
