"""Operations of many callers, done together: while one transaction is under way, the next one fills up.

It knows futures and errors; what an operation does is not its business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agent3.errors import Agent3Error, Conflict, StorageError, StorageFull, StorageUnsure
from agent3.queue.operations import Answer, Claim, Operation, Put, Release

__all__ = ["Turns"]

GROUP = 512
BYTES = 4 * 1024**2

_Waiting: TypeAlias = tuple[Operation, "asyncio.Future[Any]"]


class Turns:
    """Runs operations in groups, one group at a time. For the tasks of one event loop."""

    def __init__(self, run: Callable[[Sequence[Operation]], Awaitable[Sequence[Answer[Any]]]]):
        self._run = run
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    def do(self, operation: Operation) -> asyncio.Future[Any]:
        """Awaited, the operation's value once it is committed; its error is raised.

        Cancelled before its transaction began, it does not happen; cancelled later, it may have happened, but what a
        claim was given goes back.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(operation, future)
        return future

    async def aclose(self) -> None:
        """Wait until all that was asked for is done."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _add(self, operation: Operation, future: asyncio.Future[Any]) -> None:
        self._waiting.append((operation, future))
        if self._task is None:
            self._task = asyncio.create_task(self._until_empty())

    async def _until_empty(self) -> None:
        group: list[_Waiting] = []
        try:
            while group := self._take():
                await self._together(group)
        except BaseException:
            _tell([*group, *self._waiting], StorageError("The queue was closed meanwhile. Open it again and repeat."))
            self._waiting.clear()
            raise
        finally:
            self._task = None

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < GROUP and size < BYTES:
            operation, future = self._waiting.popleft()
            if not future.done():
                group.append((operation, future))
                size += len(operation.message.body) if isinstance(operation, Put) else 0
        return group

    async def _together(self, group: Sequence[_Waiting]) -> None:
        try:
            self._settle(group, await self._run([operation for operation, _ in group]))
        except Agent3Error as error:
            if error.retryable or isinstance(error, StorageUnsure):  # which must not be repeated, by nobody
                _tell(group, error)
                return
            for some in _apart(group, error):  # one of them is at fault: the others must not fail for it
                await (self._together(some) if len(some) > 1 else self._alone(some[0]))

    async def _alone(self, one: _Waiting) -> None:
        """A key may have been taken by a caller's transaction at the same moment: the second look sees it."""
        for last in (False, True):
            try:
                self._settle([one], await self._run([one[0]]))
                return
            except Agent3Error as error:
                if last or not isinstance(error, Conflict):
                    _tell([one], error)
                    return

    def _settle(self, group: Sequence[_Waiting], answers: Sequence[Answer[Any]]) -> None:
        for (operation, future), answer in zip(group, answers, strict=True):
            if future.done():
                self._give_back(operation, answer)
            elif answer.error is not None:
                future.set_exception(answer.error)
            else:
                future.set_result(answer.value)

    def _give_back(self, operation: Operation, answer: Answer[Any]) -> None:
        """Nobody waits any more for what a claim was given."""
        if isinstance(operation, Claim):
            for lease in answer.value or ():
                self._waiting.append((Release(lease), asyncio.get_running_loop().create_future()))


def _apart(group: Sequence[_Waiting], error: Agent3Error) -> list[Sequence[_Waiting]]:
    """The group in parts. Where there is no room it is the puts that want some: what ends messages is done without
    them, and they hear of it together.
    """
    puts = [one for one in group if isinstance(one[0], Put)]
    others = [one for one in group if not isinstance(one[0], Put)]
    if isinstance(error, StorageFull) and puts and others:
        return [others, puts]
    return [[one] for one in group]


def _tell(group: Sequence[_Waiting], error: Agent3Error) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(type(error)(error.message, data=error.data, retry_after=error.retry_after))
