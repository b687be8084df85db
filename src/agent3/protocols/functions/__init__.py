"""Python functions as agents: ``LocalAgent`` to write one, ``LocalConnector`` to call it."""

from agent3.protocols.functions.functions import Context, LocalAgent, LocalConnector, SyncContext

__all__ = ["Context", "LocalAgent", "LocalConnector", "SyncContext"]
