"""What the adapters of vendors share: an endpoint, its lifetime, and the fields of a reply that grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from agent3 import bridge
from agent3.identity.secrets import Secret, Vault
from agent3.llm.port import Price
from agent3.llm.tools import Names
from agent3.llm.vendor_http import Endpoint

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["GrowingReply", "VendorModel"]


class VendorModel:
    """A model behind a vendor's HTTP API. A subclass adds ``complete``."""

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        key: str | Secret | None,
        header: Callable[[str], Mapping[str, str]],
        price: Price | None,
        options: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        timeout: float,
        retries: int,
        vault: Vault | None,
        gate: Gate | None,
    ):
        self.model = model
        self.price = price
        self._options = dict(options or {})
        self._endpoint = Endpoint(
            base_url,
            key=key,
            header=header,
            headers=headers or {},
            timeout=timeout,
            retries=retries,
            vault=vault,
            gate=gate,
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._endpoint.aclose()

    def close(self) -> None:
        """Close the connections that synchronous calls opened."""
        bridge.run(self.aclose())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self._endpoint.place})"


class GrowingReply:
    """The start of an ``Assembler``: where the reply comes from, and how to read its names and price."""

    def __init__(self, place: str, names: Names, price: Price | None):
        self.ended = False
        self._place = place
        self._names = names
        self._price = price
        self._finish: str | None = None
        self._model = ""
