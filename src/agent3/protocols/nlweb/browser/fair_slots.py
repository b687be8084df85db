"""A bounded number of places, given out fairly: the owners take turns, however many each of them wants.

It knows neither browsers nor websites.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from agent3.errors import Unavailable

__all__ = ["Places"]

_MOST_WAITING = 1_000


class Places:
    """A number of places for many owners. Each gets the next free one in its turn; its own line is first come, first.

    It belongs to the event loop it is used in.
    """

    def __init__(self, count: int, most_waiting: int = _MOST_WAITING):
        self.free = count
        self.waiting = 0
        self._most_waiting = most_waiting
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, owner: str) -> None:
        """Take a place, waiting for it in turn; ``leave`` gives it back. Unavailable if too many wait already.

        An owner may have half of what the others leave, so that there is always room for one who comes later.
        """
        if self.free and not self.waiting:
            self.free -= 1
            return
        mine = len(self._lines.get(owner, ()))
        if 2 * mine >= self._most_waiting - (self.waiting - mine):
            raise _full(self.waiting, mine)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # it was given a place in the very moment when it went away
            else:
                self._step_out(owner, turn)
            raise

    def leave(self) -> None:
        """Give the place to the first in the line of the next owner, or keep it free."""
        while self._lines:
            owner, line = self._lines.popitem(last=False)
            turn = line.popleft()
            self.waiting -= 1
            if line:
                self._lines[owner] = line  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    def _step_out(self, owner: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(owner)
        if line is not None and turn in line:
            line.remove(turn)
            self.waiting -= 1
            if not line:
                del self._lines[owner]


def _full(waiting: int, mine: int) -> Unavailable:
    full = Unavailable(
        f"{waiting} sequences wait for a place already, {mine} of them yours. Try again later.", retry_after=5
    )
    full.sent = False
    return full
