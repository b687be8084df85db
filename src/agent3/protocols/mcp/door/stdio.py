"""Standard input of a server, with an answer for lines that are not messages.

The SDK's server drops a line that it cannot read, logged at a level that is never shown; the sender would wait for
ever.
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

__all__ = ["CheckedInput"]

log = logger("mcp.stdio")


class CheckedInput:
    """The incoming stream of a server. Lines that are not messages are logged, answered without an id and skipped."""

    def __init__(self, incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]):
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def last_context(self) -> Context | None:
        """The context of the sender of the last message."""
        context: Context | None = getattr(self._incoming, "last_context", None)
        return context

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        while isinstance(item := await self._incoming.receive(), Exception):
            refusal: RequestError
            if not isinstance(item, ValidationError):
                refusal = RequestError(f"A line of standard input was not understood: {type(item).__name__}.")
            elif (fault := item.errors(include_url=False)[0])["type"] != "json_invalid":
                refusal = RequestError(
                    "A line of standard input is JSON, but not a JSON-RPC message. Send one message on each line."
                )
            elif not str(fault["input"]).strip():
                continue
            else:
                refusal = ParseError(
                    f"A line of standard input is not JSON: {fault['ctx']['error']}. Send one message on each line."
                )
            log.warning("%s", refusal.message)
            error = wire.ErrorData(code=refusal.rpc_code, message=refusal.message)
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the host no longer reads
                await self._outgoing.send(SessionMessage(wire.JSONRPCError(jsonrpc="2.0", id=None, error=error)))
        return item

    async def aclose(self) -> None:
        """Close the stream behind it."""
        await self._incoming.aclose()

    def __aiter__(self) -> CheckedInput:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> CheckedInput:
        await self._incoming.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._incoming.__aexit__(kind, error, trace)
