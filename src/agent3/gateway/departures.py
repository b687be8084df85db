"""Departures: what a gateway holds open for an agent ends when the agent is removed, also by another process.

The directory is in the database, and a command that removes an agent from it does not speak to the gateway. So while
anything is open, the version of the directory is looked at, and which addresses nobody has any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agent3.directory import Directory
from agent3.errors import Agent3Error
from agent3.gateway.protocol import Protocol
from agent3.observe.logs import get as logger

__all__ = ["Departures"]

log = logger("server")

_EVERY = 0.5
"""Seconds between two looks."""


class Departures:
    """Closes what belongs to agents that are gone. It belongs to the event loop it is started in."""

    def __init__(self, directory: Directory, protocols: Mapping[str, Protocol]):
        self._directory = directory
        self._protocols = protocols
        self._seen = 0
        self._left: dict[str, set[str]] = {}
        """What a protocol did not close, because an agent was being added there."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, until ``aclose``."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="departures")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Close what is open for addresses that were in the directory and no longer are."""
        opened = {name: protocol.connected() for name, protocol in self._protocols.items()}
        if not any(opened.values()):
            return
        await self._directory.version()  # which looks at the database
        self._seen, gone = self._directory.departed_since(self._seen)
        for name, addresses in opened.items():
            again = self._directory.departed(self._left.pop(name, set()))
            if left := (gone | again).intersection(addresses):
                await self._protocols[name].disconnect(left)
                if still := left.intersection(self._protocols[name].connected()):
                    self._left[name] = still
                if closed := len(left) - len(still):
                    log.info("closed %d connections of removed agents", closed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self.look()
            except Agent3Error as error:  # of the database; the next look may succeed
                log.debug("cannot check whether agents were removed: %s", error)
            except Exception:
                log.exception("resources of removed agents could not be closed")
