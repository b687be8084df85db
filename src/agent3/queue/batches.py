"""Operations of many callers in one transaction: while one batch is under way, the next one fills up.

It knows futures and errors, not what an operation does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agent3.errors import Agent3Error, Conflict, StorageError, StorageFull, StorageUnsure
from agent3.queue.types import Answer, Claim, Operation, Put, Release

__all__ = ["Batcher"]

MAX_OPERATIONS = 512
MAX_BYTES = 4 * 1024**2

_Entry: TypeAlias = tuple[Operation, "asyncio.Future[Any]"]


class Batcher:
    """Runs operations in batches, one batch at a time. For the tasks of one event loop."""

    def __init__(self, run: Callable[[Sequence[Operation]], Awaitable[Sequence[Answer[Any]]]]):
        self._run = run
        self._waiting: deque[_Entry] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """A future for the operation's value once it is committed, or for its error.

        Cancelled before its transaction began, the operation does not happen; cancelled later, it may have happened,
        but what a claim was given is released.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run_all())
        return future

    async def aclose(self) -> None:
        """Wait until everything submitted is done."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run_all(self) -> None:
        batch: list[_Entry] = []
        try:
            while batch := self._next_batch():
                await self._run_batch(batch)
        except BaseException:
            closed = StorageError("The queue was closed in the meantime. Open it again and repeat.")
            _fail([*batch, *self._waiting], closed)
            self._waiting.clear()
            raise
        finally:
            self._task = None

    def _next_batch(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        # Those cancelled meanwhile are left out: their operation has not begun, and does not happen.
        while self._waiting and len(batch) < MAX_OPERATIONS and size < MAX_BYTES:
            operation, future = self._waiting.popleft()
            if not future.done():
                batch.append((operation, future))
                size += len(operation.message.body) if isinstance(operation, Put) else 0
        return batch

    async def _run_batch(self, batch: Sequence[_Entry], *, retries: int = 1) -> None:
        try:
            answers = await self._run([operation for operation, _ in batch])
        except Agent3Error as error:
            if len(batch) == 1 and isinstance(error, Conflict) and retries:
                # A caller's own transaction may have taken the same key at the same moment: the second look sees it.
                await self._run_batch(batch, retries=retries - 1)
            elif len(batch) == 1 or error.retryable or isinstance(error, StorageUnsure):
                _fail(batch, error)  # StorageUnsure must not be repeated by anyone
            else:
                for part in _split(batch, error):  # one operation is at fault: the others must not fail for it
                    await self._run_batch(part)
        else:
            for (operation, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    if answer.error is not None:
                        future.set_exception(answer.error)
                    else:
                        future.set_result(answer.value)
                elif isinstance(operation, Claim):  # its caller was cancelled: give back what it was given
                    for lease in answer.value or ():
                        self._waiting.append((Release(lease), asyncio.get_running_loop().create_future()))


def _split(batch: Sequence[_Entry], error: Agent3Error) -> list[Sequence[_Entry]]:
    """The batch in parts. On a full database only puts need space: the others run without them, and puts together."""
    puts = [entry for entry in batch if isinstance(entry[0], Put)]
    others = [entry for entry in batch if not isinstance(entry[0], Put)]
    if isinstance(error, StorageFull) and puts and others:
        return [others, puts]
    return [[entry] for entry in batch]


def _fail(batch: Sequence[_Entry], error: Agent3Error) -> None:
    for _, future in batch:
        if not future.done():  # each caller gets an exception of its own, since raising one adds to its traceback
            future.set_exception(type(error)(error.message, data=error.data, retry_after=error.retry_after))
