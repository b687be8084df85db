"""JSON lines as a protocol of the gateway: what an installed gateway learns from this package."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Scope

from agent3.errors import Agent3Error, SetupError
from agent3.gateway.protocol import Door, Found, Given, Listening, Protocol, Services
from agent3.gateway.registration import named_credential
from agent3.identity.redaction import redact_agent, redact_error
from agent3.identity.secret_refs import open_route
from agent3.identity.secrets import Vault
from agent3.model import Agent, Route
from agent3_jsonlines.connector import JSONLinesConnector
from agent3_jsonlines.door import JSONLinesDoor

__all__ = ["JSONLines"]

_ADDRESS = re.compile(r"jsonl://(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}(/[\w.-]*)?")
_PORT = "JSONL_PORT"
"""The environment variable that opens the door: its port, or 0 for a free one."""


class JSONLines(Protocol):
    """Agents that speak JSON lines over TCP, and the agents of the gateway for those who do."""

    name = "jsonl"
    connector: JSONLinesConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self.connector = JSONLinesConnector(services.policy)

    def read(self, given: Given) -> Sequence[Found]:
        """``jsonl://host:port``, or with the id of one agent behind it. Nothing is sent yet: ``describe`` does that."""
        if not given.text.startswith("jsonl://"):
            return ()
        if not _ADDRESS.fullmatch(given.text):
            raise SetupError("The address of an agent that speaks JSON lines is jsonl://HOST:PORT or with /AGENT.")
        _, reference = named_credential(given.credential)
        return [Found(Route(self.name, given.text, credential=reference), given.name)]

    async def describe(self, route: Route, vault: Vault) -> Agent:
        """For ``agent3 add`` and for renewals. The secret is opened here, and taken out of whatever comes back."""
        opened = await open_route(route, vault)
        try:
            agent = await self.connector.describe(route.address, route=route, secret=opened.secret)
        except Agent3Error as error:
            raise redact_error(error, opened.hidden) from None
        return redact_agent(agent, opened.hidden)

    def renews(self, route: Route) -> bool:
        """Its agents are asked again what they can do: now and then, and when they could not be reached."""
        return True

    def doors(self) -> Sequence[Door]:
        """The port, for as long as the gateway serves."""

        async def listen(url: str, judge: Callable[[Scope], Awaitable[None]]) -> Listening | None:
            port = os.environ.get(_PORT)
            if not port:
                return None
            if not port.isdecimal():
                raise SetupError(f"{_PORT} must be the number of a port, got {port!r}.")
            door = JSONLinesDoor(self.services, judge)
            await door.open(int(port))
            return door

        return [Door(listen=listen)]
