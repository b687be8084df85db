"""Python functions as a protocol of the gateway: agents of this very process."""

from __future__ import annotations

from agent3.gateway.protocol import Protocol, Services
from agent3.protocols.functions.functions import LocalConnector

__all__ = ["Functions"]


class Functions(Protocol):
    """Agents written in Python. They are given when the gateway is built, not added."""

    name = "local"
    connector: LocalConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self.connector = LocalConnector()
