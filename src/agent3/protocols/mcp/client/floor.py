"""The floor: finds the call that a question of a server belongs to, where the server does not say.

In the handshake era a server asks by a request of its own. Over HTTP it can put it on the stream of the call; on the
connection that all calls share, nothing tells whose question it is, and it must not reach another caller. So of the
calls that may ask, one at a time is at work: it *has the floor*. A call that waits for a person is not at work, so any
number of questions can be open. Which tools ask is learned: one that has never asked needs no floor after its first
call. A question that could still be of several calls is held until the server has ended all but one of them.

A call that waits for a person could ask a second question meanwhile, and one that was given up may go on at the server
and ask. Where several calls of one caller could have asked, the question is put to that caller with the oldest of them:
the answer goes to the question, so only the place where it is shown can be wrong. No other caller is put a question
that could be theirs: it is refused. A connection on which a server has asked belongs to one caller from then on.
Everybody else is sent away before anything was sent, and takes a connection of its own. Until then callers share it,
but for tools that have not ended once yet: of these the connection runs those of one caller at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from agent3.protocols.mcp.client.channels import ServerError

__all__ = ["Crowded", "Floor", "Habits"]

CallT = TypeVar("CallT")

Habits = dict[str, bool]
"""Whether a tool asks on the shared connection, by its name. One that has never been called is not there."""

_SOME_TOOL = ""
"""Among the habits: that a tool asks, where it is not known which."""
_FIRST = 2.0
"""Seconds for which a tool that was never called before has the floor; servers ask early, and others wait."""
_LONGEST = 10.0
"""Seconds for which a tool that is known to ask has it, and for which a call waits until another caller's has ended."""
_LINGERING = 60.0
"""Seconds for which a call that was given up is taken to go on at the server, which may not stop when it is told to."""


class Crowded(Exception):
    """A question of this call could be mistaken for another caller's here. Nothing was sent."""


class _Seat(Generic[CallT]):
    """One call, with the number of its questions that are open."""

    def __init__(self, tool: str, call: CallT, caller: Hashable):
        self.tool = tool
        self.call = call
        self.caller = caller
        self.open = 0
        self.turn: asyncio.Future[None] | None = None
        """Set while it waits for the floor."""


class _Held(Generic[CallT]):
    """A question, and the calls that it may be of."""

    def __init__(self, candidates: set[_Seat[CallT]]):
        self.candidates = candidates
        self.seat: asyncio.Future[_Seat[CallT] | None] = asyncio.get_running_loop().create_future()


class Floor(Generic[CallT]):
    """The calls under way on one connection. ``habits`` outlive the connection."""

    def __init__(self, habits: Habits):
        self._habits = habits
        self._seats: dict[CallT, _Seat[CallT]] = {}
        self._at_work: set[_Seat[CallT]] = set()
        self._speaker: _Seat[CallT] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[_Seat[CallT]] = deque()
        self._given_up: set[_Seat[CallT]] = set()
        self._held: list[_Held[CallT]] = []
        self._owner: Hashable = None
        self._unproven: set[_Seat[CallT]] = set()
        """Calls of tools that had never ended without a question when they began."""
        self._news: asyncio.Future[None] | None = None
        """What callers wait for that cannot begin yet."""

    @asynccontextmanager
    async def work(self, tool: str, call: CallT, caller: Hashable, *, rooted: bool = False) -> AsyncIterator[None]:
        """Run a call in this block. Begins when the tool may ask without being mistaken for another.

        Crowded if it should be run on another connection, unless it is ``rooted`` here. Without a result or an error of
        the server the call was given up, and may go on there.
        """
        seat = _Seat(tool, call, caller)
        if not rooted:
            await self._enter(seat)
        try:
            await self._begin(seat)
        except BaseException:
            self._leave(seat)
            raise
        self._seats[call] = seat
        try:
            yield
            if tool not in self._habits:
                self._know_quiet(tool)
        except ServerError:
            raise
        except BaseException:
            # It ended without a word of the server: what it asked, or will ask, is nobody else's question.
            for held in self._held:
                if seat in held.candidates and not held.seat.done():
                    held.seat.set_result(None)
            self._given_up.add(seat)
            asyncio.get_running_loop().call_later(_LINGERING, self._leave, seat)
            raise
        finally:
            del self._seats[call]
            self._pause(seat)
            self._settle(without=seat)
            if seat not in self._given_up:
                self._leave(seat)

    @property
    def is_empty(self) -> bool:
        """Whether no call is under way that a question could belong to."""
        return not self._seats and not self._given_up

    @asynccontextmanager
    async def wait_for_person(self, call: CallT) -> AsyncIterator[None]:
        """Others may work during this block, in which the call waits for an answer."""
        seat = self._seats.get(call)
        if seat is None:
            yield
            return
        self._open(seat)
        async with self._close_after(seat):
            yield

    @asynccontextmanager
    async def question(self) -> AsyncIterator[CallT | None]:
        """The call that a question on the shared connection belongs to; None if that cannot be told."""
        candidates = self._find_candidates()
        seat = None
        if candidates <= self._at_work and len(candidates) > 1:
            held = _Held(candidates)
            self._held.append(held)
            self._settle()
            seat = await held.seat
        elif candidates:
            seat = self._choose(candidates)
        if seat is None:
            if candidates:
                self._habits[_SOME_TOOL] = True
            yield None
            return
        self._habits[seat.tool] = True
        if self._owner is None:
            self._owner = seat.caller
        self._tell_news()
        async with self._close_after(seat):
            yield seat.call

    # Who shares the connection

    async def _enter(self, seat: _Seat[CallT]) -> None:
        """Come in, as soon as no call of another caller could be taken for this one; Crowded if that takes long."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + _LONGEST
        while self._has_rivals(seat):
            left = ends - loop.time()
            if left <= 0 or any(self._habits.values()):
                raise Crowded
            if self._news is None or self._news.done():
                self._news = loop.create_future()
            await asyncio.wait([self._news], timeout=left)
        if seat.tool not in self._habits or self._is_unproven(seat.tool):
            self._unproven.add(seat)
        if any(self._habits.values()):
            self._owner = seat.caller

    def _has_rivals(self, seat: _Seat[CallT]) -> bool:
        """Whether calls of other callers here could ask while this one may."""
        if any(self._habits.values()):
            if self._owner is not None:
                return self._owner != seat.caller
            return any(other.caller != seat.caller for other in (*self._seats.values(), *self._given_up))
        if seat.tool in self._habits and not self._is_unproven(seat.tool):
            return False
        return any(other.caller != seat.caller for other in self._unproven)

    def _is_unproven(self, tool: str) -> bool:
        return any(other.tool == tool for other in self._unproven)

    def _leave(self, seat: _Seat[CallT]) -> None:
        """It can ask nothing any more."""
        self._given_up.discard(seat)
        self._unproven.discard(seat)
        self._tell_news()

    def _tell_news(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # Beginning and ending work

    async def _begin(self, seat: _Seat[CallT]) -> None:
        """Come to work, with the floor if the tool may ask."""
        if self._habits.get(seat.tool, True):
            if self._speaker is None:
                self._give_floor(seat)
            else:
                seat.turn = asyncio.get_running_loop().create_future()
                self._queue.append(seat)
                try:
                    await seat.turn
                except asyncio.CancelledError:
                    self._pause(seat)
                    raise
                finally:
                    seat.turn = None
        self._at_work.add(seat)

    def _pause(self, seat: _Seat[CallT]) -> None:
        """No longer at work: it ended, or waits for a person."""
        self._at_work.discard(seat)
        if self._speaker is seat:
            self._pass_on()

    def _give_floor(self, seat: _Seat[CallT]) -> None:
        self._speaker = seat
        first = seat.tool not in self._habits
        self._timer = asyncio.get_running_loop().call_later(_FIRST if first else _LONGEST, self._time_is_up, seat)

    def _time_is_up(self, seat: _Seat[CallT]) -> None:
        if seat.tool not in self._habits:
            self._know_quiet(seat.tool)
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the floor to the next that waits for it."""
        self._speaker = None
        if self._timer is not None:
            self._timer.cancel()
        while self._queue:
            seat = self._queue.popleft()
            if seat.turn is not None and not seat.turn.done():
                self._give_floor(seat)
                seat.turn.set_result(None)
                return

    def _know_quiet(self, tool: str) -> None:
        """A tool that does not ask needs no floor, neither now nor later."""
        self._habits[tool] = False
        for seat in self._queue:
            if seat.tool == tool and seat.turn is not None and not seat.turn.done():
                seat.turn.set_result(None)

    # Questions

    def _find_candidates(self) -> set[_Seat[CallT]]:
        """The calls that a question may be of."""
        everybody = {*self._seats.values(), *self._given_up}
        if len({seat.caller for seat in everybody}) > 1:
            return everybody
        # With nobody at work it is a further question of a call that waits.
        return set(self._at_work or self._seats.values())

    def _choose(self, candidates: set[_Seat[CallT]]) -> _Seat[CallT] | None:
        """The call with which a question of any of these is shown; None where they are of several callers."""
        if len({seat.caller for seat in candidates}) > 1:
            return None
        seat = min((one for one in self._seats.values() if one in candidates), key=lambda one: one.open)
        self._open(seat)
        return seat

    def _open(self, seat: _Seat[CallT]) -> None:
        seat.open += 1
        if seat.open == 1:
            self._pause(seat)

    @asynccontextmanager
    async def _close_after(self, seat: _Seat[CallT]) -> AsyncIterator[None]:
        try:
            yield
        except Exception:  # a refusal is an answer too: the call goes on
            await self._close(seat)
            raise
        await self._close(seat)

    async def _close(self, seat: _Seat[CallT]) -> None:
        seat.open -= 1
        if not seat.open and self._seats.get(seat.call) is seat:
            await self._begin(seat)
            if self._seats.get(seat.call) is not seat:  # it ended while it waited for the floor
                self._pause(seat)

    def _settle(self, without: _Seat[CallT] | None = None) -> None:
        """Hand out the questions that are clear by now, ``without`` a call that has ended.

        As many questions as calls are held no longer: each call may wait for its answer, so that none would end.
        """
        for held in self._held:
            held.candidates -= {without}
            if len(held.candidates) == 1 and not held.seat.done():
                (seat,) = held.candidates
                self._open(seat)
                held.seat.set_result(seat)
        self._held = [held for held in self._held if not held.seat.done()]
        if self._held and len(self._held) >= len(set[_Seat[CallT]]().union(*(held.candidates for held in self._held))):
            for held in self._held:
                held.seat.set_result(self._choose(held.candidates))
            self._held.clear()
