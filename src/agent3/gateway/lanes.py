"""Fast lanes: whole POSTs that a door answers straight from their bytes, without ASGI in between.

A lane answers what is regular and passes on the rest. The connection (server/connection.py) asks it before any app.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from msgspec import Struct
from starlette.types import Scope

__all__ = ["Guest", "HungUp", "Lane", "Reply"]

HungUp = Callable[[], Coroutine[Any, Any, Any]]
"""Returns when the client has hung up."""


class Reply(Struct, frozen=True):
    """A JSON body that answers with status 200, and the legacy MCP session it belongs to."""

    body: bytes
    session: bytes = b""


class Guest(Protocol):
    """A client whose head of a request is known: what it says, and who it is, was found out once."""

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
        """The client that was answered just now, for further requests with the same head; None to look each time."""
