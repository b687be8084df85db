"""Follows a task at a remote agent by its push notifications, and learns whether they arrive.

Used for agents that push and do not stream. The task is read whenever the agent pushes, and now and then without a
push, because pushes get lost. Where callbacks are received is the business of ``push_receiver``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

from agent3.env import Env
from agent3.errors import Agent3Error, JobNotFound, RequestError, TargetError
from agent3.model import Call, Working
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.peer.bindings import RequestOptions
from agent3.protocols.a2a.peer.peers import SETTLED, Peer
from agent3.protocols.a2a.peer.push_receiver import PushReceiver
from agent3.protocols.a2a.peer.translation import message_id, to_outcome
from agent3.protocols.a2a.wire.types import CreatePush, GetTask, Task

__all__ = ["PushFollower"]

log = logger("a2a.client")

_REGISTER_TIMEOUT: Final = 5.0
"""Seconds that an agent has to accept a push configuration; its task is not read meanwhile."""


class PushFollower:
    """Follows the task of one call. ``options`` gives what goes with a request made now."""

    def __init__(self, receiver: PushReceiver, call: Call, peer: Peer, options: Callable[[], RequestOptions], env: Env):
        self._receiver = receiver
        self._call = call
        self._peer = peer
        self._options = options
        self._env = env
        self._key = receiver.key_for(message_id(call))
        self.wait = receiver.expect(self._key, peer.found.url)

    async def follow(self, task_id: str, until: float) -> AsyncGenerator[Task, None]:
        """The task each time it is read, until it settles or the time ``until`` has come."""
        wait, missed = self.wait, False
        wait.task = task_id
        if not wait.registered:
            await self._register(task_id)
        while True:
            task = await self._read(task_id)
            yield task
            left = until - self._env.monotonic()
            if task.status.state in SETTLED:
                self._judge(missed=missed)
                return
            if left <= 0:
                return
            trusted = wait.is_trusted
            missed = not await wait.wait_to_read(self._receiver.poll_after, left) and trusted

    async def begin(self, task_id: str) -> Task:
        """The task as it stands, and ask for pushes from now on: a push before that may have been missed."""
        self.wait.task, self.wait.before_next = task_id, 1.0
        await self._register(task_id)
        return await self._read(task_id)

    async def wait_for_news(self, task_id: str, left: float) -> Task:
        """The task when there is something new to show of it, or when a turn has waited long enough.

        Each turn of a job is a row in the database, so an agent that reports often is shown more and more rarely.
        """
        wait, poll_after = self.wait, self._receiver.poll_after
        now, longest = self._env.monotonic(), min(poll_after, 0.5 * left)
        ends, show_at = now + longest, now + wait.show_after
        wait.before_next = 1.0 - longest  # turns that wait for less than a second would otherwise follow too closely
        while True:
            trusted = wait.is_trusted
            pushed = await wait.wait_to_read(poll_after, ends - now)
            task = await self._read(task_id)
            now = self._env.monotonic()
            if task.status.state in SETTLED:
                self._judge(missed=trusted and not pushed)
                return task
            outcome = to_outcome(task, self._call)
            looks = (task.status.state, outcome.text if isinstance(outcome, Working) else None)
            if now >= ends:
                wait.show_after, wait.shown = 1.0, looks
                return task
            if looks != wait.shown and now >= show_at:
                wait.show_after, wait.shown = min(poll_after, 2 * wait.show_after), looks
                return task

    def give_up(self, error: Agent3Error) -> None:
        """The agent does not push to us: it is polled instead, and not asked again for a while."""
        self.wait.trust.suspend(self._env.monotonic())
        self._receiver.end(self._key)
        warn = log.warning if self.wait.trust.is_first_warning() else log.info
        warn("%s does not push to this gateway, so it is polled: %s", self._call.agent, error)

    async def _register(self, task_id: str) -> None:
        """Ask the agent to push; if that fails, the task is polled."""
        options, trust = self._options(), self.wait.trust
        try:
            await self._peer.send(
                CreatePush(task_id=task_id, config=self.wait.config),
                options._replace(timeout=min(_REGISTER_TIMEOUT, options.timeout)),
            )
        except JobNotFound:
            log.debug("%s no longer knows its task", self._call.agent)  # reading the task says so to the caller
        except (RequestError, TargetError) as error:
            # One that may succeed next time, from an agent that has pushed before, is only a hiccup.
            if not error.retryable or (not trust.reliable and trust.record_miss(self._env.monotonic())):
                self.give_up(error)
        else:
            self.wait.registered = True

    async def _read(self, task_id: str) -> Task:
        self.wait.clear()
        task = await self._peer.send(GetTask(id=task_id), self._options())
        assert isinstance(task, Task)
        return task

    def _judge(self, *, missed: bool) -> None:
        """Learn from a task that has ended whether the pushes of its agent arrive; ``missed`` if one was relied on."""
        wait = self.wait
        if not missed and (wait.pushes or wait.trust.reliable or not wait.registered):
            return
        if wait.trust.record_miss(self._env.monotonic()):
            warn = log.warning if wait.trust.is_first_warning() else log.info
            warn("%s accepts our address, but its pushes do not arrive, so it is polled.", self._call.agent)
        elif missed:
            log.info("%s: a push did not arrive. It is polled until the next one does.", self._call.agent)
