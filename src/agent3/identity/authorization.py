"""Credentials that change: what a request carries now, and how to get something better after a refusal.

``Authorization`` is the interface between the clients of the protocols, which send requests, and whatever keeps a
token fresh. A vault gives such a credential as a ``RenewableSecret``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from agent3.secret import Secret
from agent3.security.outbound import Gate

__all__ = ["Authorization", "Proves", "Refusal", "Refused", "RenewableSecret"]


class Refusal(Protocol):
    """An answer that refuses a credential."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class Refused(NamedTuple):
    """A refusal of which only this much is known."""

    status: int
    headers: Mapping[str, str] = {}


class Authorization(Protocol):
    """A credential that changes over time, where a fixed header would not do. It may serve many requests at once."""

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """The headers of the next request."""
        ...

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Refusal) -> bool:
        """Get a better credential after a request with these headers was refused; True if a retry is worthwhile."""
        ...


@runtime_checkable
class Proves(Protocol):
    """An authorization whose tokens may be bound to a key, which every request has to prove (DPoP, RFC 9449)."""

    def prove(self, method: str, url: str, sent: Mapping[str, str]) -> Mapping[str, str]:
        """What a request with these headers carries beside its token; nothing where that is not bound."""
        ...

    def take_nonce(self, answered: Mapping[str, str]) -> bool:
        """Keep the nonce that an answer gives for the next proof; True if it is another than before."""
        ...


class RenewableSecret(Secret):
    """A secret that is renewed over time, known by a name: ``authorization`` gives what requests carry.

    ``recent`` gives the latest values, so that none of them leaks from a server that echoes what it was sent.
    ``origins`` are the only ones that it may be sent to; empty where the caller knows that itself.
    """

    __slots__ = ("_recent", "authorization", "origins")

    def __init__(
        self,
        name: str,
        authorization: Authorization,
        recent: Callable[[], Sequence[Secret]],
        origins: tuple[str, ...] = (),
    ):
        super().__init__(name)
        self.authorization = authorization
        self.origins = origins
        self._recent = recent

    def reveal(self) -> str:
        """The current value; empty before there is one."""
        known = self._recent()
        return known[-1].reveal() if known else ""

    def forms(self) -> tuple[str, ...]:
        """All spellings of the recent values."""
        return tuple(form for secret in self._recent() for form in secret.forms())
