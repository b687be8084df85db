"""What a host sends over standard input, with an answer for what is no message.

The SDK's server drops a line that it cannot read, at a level that nobody logs; whoever sent it would wait for ever.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING

import anyio
import mcp_types as wire
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from agent3.errors import ParseError, RequestError
from agent3.observe.logs import get as logger

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

__all__ = ["Answering"]

log = logger("mcp.stdio")


class Answering:
    """The incoming stream of a server, without what is no message: that is logged and answered, by no id."""

    def __init__(self, incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]):
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def last_context(self) -> Context | None:
        """The context of whoever sent the last message."""
        context: Context | None = getattr(self._incoming, "last_context", None)
        return context

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        while isinstance(item := await self._incoming.receive(), Exception):
            if (refusal := _refusal(item)) is not None:
                log.warning("%s", refusal.message)
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the host reads no more
                    await self._outgoing.send(_answer(refusal))
        return item

    async def aclose(self) -> None:
        """Close the stream behind it."""
        await self._incoming.aclose()

    def __aiter__(self) -> Answering:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Answering:
        await self._incoming.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._incoming.__aexit__(kind, wrong, trace)


def _refusal(wrong: Exception) -> RequestError | None:
    """What is said of a line; None for an empty one, which says nothing itself."""
    if not isinstance(wrong, ValidationError):
        return RequestError(f"A line of standard input was not understood: {type(wrong).__name__}.")
    first = wrong.errors(include_url=False)[0]
    if first["type"] != "json_invalid":
        return RequestError("A line of standard input is JSON, but no JSON-RPC message. Send one message on each line.")
    if not str(first["input"]).strip():
        return None
    return ParseError(f"A line of standard input is not JSON: {first['ctx']['error']}. Send one message on each line.")


def _answer(refusal: RequestError) -> SessionMessage:
    error = wire.ErrorData(code=refusal.rpc_code, message=refusal.message)
    return SessionMessage(wire.JSONRPCError(jsonrpc="2.0", id=None, error=error))
