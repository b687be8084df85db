"""Batches of 2025-03-26: several messages in one POST, each served as if it had come alone.

No other version has them, and the SDK knows none. The answers come together as one array; where a message is answered
with more than its result, such as progress or a question, all of them come as a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw
from starlette.types import ASGIApp, Message, Scope, Send

from agent3 import jsonrpc
from agent3.observe.logs import get as logger

__all__ = ["VERSIONS", "parse_batch", "serve_batch"]

log = logger("mcp")

VERSIONS = frozenset({b"", b"2025-03-26"})
"""What the version header of a request that may be a batch says; that version does not have the header yet."""
MOST = 100
"""Messages in one batch."""
_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache, no-transform")]


def parse_batch(body: bytes) -> list[bytes] | None:
    """The messages of a batch; None for what is not an array."""
    if body.lstrip()[:1] != b"[":
        return None
    try:
        return [bytes(item) for item in msgspec.json.decode(body, type=list[Raw])]
    except msgspec.DecodeError:
        return None


async def serve_batch(app: ASGIApp, scope: Scope, bodies: Sequence[bytes], send: Send) -> None:
    """Have an app answer each message, and answer with all of that."""
    if not 0 < len(bodies) <= MOST:
        refusal = jsonrpc.error(None, jsonrpc.INVALID_REQUEST, f"A batch must have 1 to {MOST} messages")
        await _respond(send, 400, refusal)
        return
    answers: asyncio.Queue[bytes | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_serve_one(app, scope, body, answers)) for body in bodies]
    waiting: list[bytes] | None = []
    try:
        left = len(tasks)
        while left:
            answer = await answers.get()
            if answer is None:
                left -= 1
            elif waiting is not None and _envelope(answer).method is None:
                waiting.append(answer)
            else:
                if waiting is not None:
                    await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
                for one in (*(waiting or ()), answer):
                    data = b"event: message\ndata: " + one + b"\n\n"
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                waiting = None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if waiting is None:
        await send({"type": "http.response.body", "body": b""})
    elif waiting:
        await _respond(send, 200, b"[" + b",".join(waiting) + b"]")
    else:
        await _respond(send, 202, b"")


async def _serve_one(app: ASGIApp, scope: Scope, body: bytes, answers: asyncio.Queue[bytes | None]) -> None:
    """Serve one message, and put each message that answers it into the queue, then None."""
    asked, collector = _envelope(body), _Collector(answers)
    try:
        if asked.method == "initialize":
            text = "initialize must not be part of a batch"  # by the specification: the others need its session
            answers.put_nowait(jsonrpc.error(asked.id, jsonrpc.INVALID_REQUEST, text))
            return
        length = b"%d" % len(body)
        headers = [(name, length if name == b"content-length" else value) for name, value in scope["headers"]]
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                await asyncio.Event().wait()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await app({**scope, "headers": headers}, receive, collector)
        collector.finish()
    except Exception:
        log.exception("a message of a batch could not be served")
        if asked.id is not None and not collector.is_answered:
            answers.put_nowait(jsonrpc.error(asked.id, jsonrpc.INTERNAL_ERROR, "Internal error"))
    finally:
        answers.put_nowait(None)


class _Collector:
    """Takes the messages out of an answer, which is JSON or a stream."""

    def __init__(self, answers: asyncio.Queue[bytes | None]):
        self._answers = answers
        self._parser: jsonrpc.SSEParser | None = None
        self._body: list[bytes] = []
        self.is_answered = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            self._parser = jsonrpc.SSEParser() if kind.startswith(b"text/event-stream") else None
        elif self._parser is None:
            self._body.append(message.get("body", b""))
        else:
            for frame in self._parser.feed(message.get("body", b"")):
                if frame.data:
                    self._put(bytes(frame.data))

    def finish(self) -> None:
        body = b"".join(self._body)
        if body.startswith(b"{"):
            self._put(body)

    def _put(self, message: bytes) -> None:
        self.is_answered = self.is_answered or _envelope(message).method is None
        self._answers.put_nowait(message)


class _Envelope(msgspec.Struct):
    method: str | None = None
    id: Any = None


def _envelope(body: bytes) -> _Envelope:
    try:
        return msgspec.json.decode(body, type=_Envelope)
    except msgspec.DecodeError:
        return _Envelope()


async def _respond(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
