"""The gateway's websites: the connector of protocol ``nlweb`` with all it needs from the house.

No browser starts before the first visit, and without the extra ``browser`` only that visit fails.
"""

from __future__ import annotations

from collections.abc import Callable

from agent3.directory import Directory
from agent3.env import Env
from agent3.model import Agent, Principal
from agent3.nlweb.commands import resolve_async
from agent3.nlweb.connector import NLWebConnector
from agent3.nlweb.files import load
from agent3.nlweb.sessions import Sessions
from agent3.nlweb.visits import Visits
from agent3.observe.metrics import Metrics
from agent3.security.access import Access
from agent3.security.secrets import Vault
from agent3.server.signins import Seals
from agent3.storage import Database

__all__ = ["websites"]


def websites(
    database: Database,
    directory: Directory,
    access: Callable[[], Access],
    seals: Seals,
    vault: Vault,
    env: Env,
    metrics: Metrics,
) -> NLWebConnector:
    """A connector whose sessions are sealed in the database, and which knows the directory's interfaces."""

    async def find(name: str) -> Agent:
        return await directory.get(name)

    def may(principal: Principal, agent: Agent, capability: str) -> bool:
        found = agent.capability(capability)
        return found is not None and bool(access().narrow(principal, agent.id, capability, found.routes))

    sessions = Sessions(database, seals.keys, env=env)
    visits = Visits(sessions=sessions, vault=vault, metrics=metrics)
    return NLWebConnector(visits, resolve=resolve_async, load=load, find=find, may=may)
