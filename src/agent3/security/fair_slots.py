"""A fixed number of slots, shared fairly: owners take turns, however many slots each of them wants."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from agent3.errors import Agent3Error, Unavailable

__all__ = ["FairSlots"]

_MAX_WAITING = 1_000


def _refuse(waiting: int, mine: int) -> Agent3Error:
    error = Unavailable(
        f"The queue is full: {waiting} calls are waiting, {mine} of them yours. Try again later.", retry_after=5
    )
    error.sent = False
    return error


class FairSlots:
    """Slots for many owners. Each owner has its own first-in, first-out queue, and a free slot goes round the owners.

    ``refuse`` makes the error for whoever is turned away, of how many wait and how many of these are its own. It
    belongs to the event loop it is used in.
    """

    def __init__(
        self,
        count: int,
        max_waiting: int = _MAX_WAITING,
        *,
        refuse: Callable[[int, int], Agent3Error] = _refuse,
        replaces: bool = False,
    ):
        self.free = count
        self.waiting = 0
        self._max_waiting = max_waiting
        self._refuse = refuse
        self._replaces = replaces
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: str) -> None:
        """Take a slot, waiting in turn for it. The error of ``refuse`` if too many wait already.

        An owner may fill half of the queue space that the others leave, so that there is always room for a newcomer.
        Where newcomers replace others instead, an owner may fill all of it, and its latest has to leave for them.
        """
        if self.free and not self.waiting:
            self.free -= 1
            return
        mine = len(self._queues.get(owner, ()))
        if self._replaces:
            if self.waiting >= self._max_waiting:
                self._make_room(owner, mine)
        elif 2 * mine >= self._max_waiting - (self.waiting - mine):
            raise self._refuse(self.waiting, mine)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                if turn.exception() is None:
                    self.release()  # granted in the same loop iteration as the cancellation: pass it on
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

    def _make_room(self, owner: str, mine: int) -> None:
        """Turn away the latest of the owner that has most in the queue; if that is this one, then this."""
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=owner)
        if mine + 1 >= len(self._queues.get(longest, ())):
            raise self._refuse(self.waiting, mine)
        latest = self._queues[longest].pop()
        self.waiting -= 1
        if not latest.done():
            latest.set_exception(self._refuse(self.waiting, len(self._queues[longest])))
