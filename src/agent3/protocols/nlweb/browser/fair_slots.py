"""A fixed number of slots, shared fairly: owners take turns, however many slots each of them wants.

It knows neither browsers nor websites.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from agent3.errors import Unavailable

__all__ = ["FairSlots"]

_MAX_WAITING = 1_000


class FairSlots:
    """Slots for many owners. Each owner has its own first-in, first-out queue, and a free slot goes round the owners.

    It belongs to the event loop it is used in.
    """

    def __init__(self, count: int, max_waiting: int = _MAX_WAITING):
        self.free = count
        self.waiting = 0
        self._max_waiting = max_waiting
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: str) -> None:
        """Take a slot, waiting in turn for it. Unavailable if too many wait already.

        An owner may fill half of the queue space that the others leave, so that there is always room for a newcomer.
        """
        if self.free and not self.waiting:
            self.free -= 1
            return
        mine = len(self._queues.get(owner, ()))
        if 2 * mine >= self._max_waiting - (self.waiting - mine):
            error = Unavailable(
                f"The queue is full: {self.waiting} calls are waiting, {mine} of them yours. Try again later.",
                retry_after=5,
            )
            error.sent = False
            raise error
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot was granted in the same loop iteration as the cancellation: pass it on
            elif (queue := self._queues.get(owner)) is not None and turn in queue:
                queue.remove(turn)
                self.waiting -= 1
                if not queue:
                    del self._queues[owner]
            raise

    def release(self) -> None:
        """Give the slot to the first in the queue of the next owner, or keep it free."""
        while self._queues:
            owner, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues[owner] = queue  # at the end: the other owners come first
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
