"""A call as a stream of server-sent events: what happens as it happens, and as the last event the response.

An event of a call has the form that ``/v1/calls/{job_id}/events`` gives it, under its kind. The last one is called
``response`` and holds what the same call without streaming answers. A client that hangs up cancels the call, unless it
can come back for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agent3 import jsonrpc
from agent3.calls.outcomes import failed_by, response
from agent3.errors import Agent3Error
from agent3.model import Event, encode
from agent3.observe.logs import get as logger

__all__ = ["stream_call"]

log = logger("rest")

_SHOWN = frozenset({"status", "progress", "artifact", "log"})
_MOST_EVENTS = 1_000
_MOST_BYTES = 8 << 20
"""Events that may wait for a slow reader, and their bytes together. Further ones are left out, and counted."""
_BEGIN = 2.0
"""Seconds that the status of the answer waits for the first event, so that what fails at once has its own status."""
_ALIVE = 15.0
"""Seconds of silence after which a comment shows that the connection is alive."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Run = Callable[[Callable[[Event], None]], Awaitable[dict[str, Any]]]
"""Makes the call, given a listener; its answer as plain JSON."""


class _Frames:
    """Events on their way to a reader. ``listen`` never waits. ``count`` hears of each event that is left out."""

    def __init__(self, count: Callable[[], None]) -> None:
        self.left_out = 0
        self._count = count
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def listen(self, event: Event) -> None:
        if event.kind not in _SHOWN:
            return
        frame = jsonrpc.encode_event(encode(event), event=event.kind)
        if len(self._waiting) >= _MOST_EVENTS or self._size + len(frame) > _MOST_BYTES:
            self.left_out += 1
            self._count()
            return
        self._waiting.append(frame)
        self._size += len(frame)
        self._news.set()

    def wake(self, _: object = None) -> None:
        """Look again: something happened that is no event."""
        self._news.set()

    def take(self) -> bytes:
        """Everything that waits."""
        taken = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._news.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Whether something happened in this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class _CallResponse(StreamingResponse):
    """Leaves the call with the response, also if the client left before it began."""

    def __init__(self, leave: Callable[[], object], frames: AsyncIterator[bytes], status: int):
        super().__init__(frames, status, _HEADERS, "text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def _as_answer(error: Agent3Error) -> dict[str, Any]:
    return response(failed_by(error), 0.0)


async def stream_call(
    run: Run,
    status_of: Callable[[dict[str, Any]], int],
    count: Callable[[], None],
    describe_error: Callable[[Agent3Error], dict[str, Any]] = _as_answer,
    *,
    goes_on: bool = False,
) -> Response:
    """Make a call and stream it. An error that is raised before anything was heard is raised here.

    With ``goes_on`` the call ends also if nobody reads the stream any more.
    """
    frames = _Frames(count)
    call = asyncio.ensure_future(run(frames.listen))
    call.add_done_callback(frames.wake)
    leave = partial(_let_go_on, call) if goes_on else call.cancel
    try:
        await frames.wait(_BEGIN)
    except BaseException:
        leave()
        raise
    status = 200
    if call.done():
        status = status_of(call.result())

    async def body() -> AsyncIterator[bytes]:
        while not call.done():
            if taken := frames.take():
                yield taken
            elif not await frames.wait(_ALIVE):
                yield b": working\n\n"
        answer = _finish(call, describe_error)
        if frames.left_out:
            note = f"{frames.left_out} events were dropped from the stream, which was read too slowly."
            metadata = answer.get("metadata", {})
            answer["metadata"] = {**metadata, "notices": [*metadata.get("notices", ()), note]}
        yield frames.take() + jsonrpc.encode_event(encode(answer), event="response")

    return _CallResponse(leave, body(), status)


_left: set[asyncio.Task[dict[str, Any]]] = set()
"""Calls that go on without a reader: the loop itself holds its tasks only weakly."""


def _let_go_on(call: asyncio.Task[dict[str, Any]]) -> None:
    """Let a call end by itself. How it ended is kept with its key; here only what went wrong inside is told."""

    def end(done: asyncio.Task[dict[str, Any]]) -> None:
        _left.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None and not isinstance(error, Agent3Error):
            log.error("a call that was streamed failed inside the gateway", exc_info=error)

    if not call.done():
        _left.add(call)
        call.add_done_callback(end)


def _finish(
    call: asyncio.Task[dict[str, Any]], describe_error: Callable[[Agent3Error], dict[str, Any]]
) -> dict[str, Any]:
    """The answer of a call that has ended. Its stream has begun, so an error can only be told as an answer."""
    try:
        return call.result()
    except Agent3Error as error:
        return describe_error(error)
    except Exception:
        log.exception("a call that was streamed failed inside the gateway")
        return describe_error(Agent3Error("Internal error. See the log of the gateway."))
