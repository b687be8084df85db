"""Fast lanes: whole POSTs that a door answers straight from their bytes, without ASGI in between.

A lane answers what is regular and passes on the rest. The connection (server/connection.py) asks it before any app.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from msgspec import Struct
from starlette.types import Scope

__all__ = ["TRACE", "Guest", "HungUp", "Lane", "Reply"]

HungUp = Callable[[], Coroutine[Any, Any, Any]]
"""Returns when the client has hung up."""
TRACE = "agent3.traceparent"
"""The key in what a guest is told of the ``traceparent`` of a request, in bytes, where it has one."""


class Reply(Struct, frozen=True):
    """A JSON body that answers with status 200, and the legacy MCP session it belongs to."""

    body: bytes
    session: bytes = b""


class Guest(Protocol):
    """A client whose head of a request is known: what it says, and who it is, was found out once.

    Its requests have that same head, but for the length of the body and the ``traceparent``: see ``TRACE``.
    """

    @property
    def who(self) -> str:
        """The id of its principal."""

    def reply(self, told: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Awaitable[Reply | None]:
        """The answer to a request with this body; None has it come by ASGI, and ``told`` is added to its scope."""


class Lane(Protocol):
    """What may answer a whole POST without ASGI."""

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer; None for what is not regular, which then has to come by ASGI."""

    def guest(self, scope: Scope) -> Guest | None:
        """The client that was answered just now, for further requests with the same head; None to look each time.

        The scope has no ``traceparent``, which differs from request to request.
        """
