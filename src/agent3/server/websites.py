"""The gateway's websites: the connector of protocol ``nlweb`` with all it needs from the house.

No browser starts before the first visit, and without the extra ``browser`` only that visit fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent3.definitions import NLWebInterface
from agent3.directory import Directory
from agent3.env import Env
from agent3.model import Agent, Principal
from agent3.nlweb.asking import Sites
from agent3.nlweb.commands import Resolution, embeddings, resolve, resolve_async
from agent3.nlweb.connector import NLWebConnector
from agent3.nlweb.files import load
from agent3.nlweb.healing import Healer, StoredBook
from agent3.nlweb.sessions import Sessions
from agent3.nlweb.snapshots import Snapshots
from agent3.nlweb.visits import Visits
from agent3.observe.metrics import Metrics
from agent3.security.access import Access
from agent3.security.network import Policy
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
    policy: Policy,
    env: Env,
    metrics: Metrics,
    snapshots: Path | None = None,
) -> NLWebConnector:
    """A connector whose sessions are sealed in the database, and which knows the directory's interfaces.

    Selectors that no longer fit are healed by what earlier visits saw. What a failed visit looked like is kept in the
    folder ``snapshots``, the newest few.
    """

    async def find(name: str) -> Agent:
        return await directory.get(name)

    def may(principal: Principal, agent: Agent, capability: str) -> bool:
        found = agent.capability(capability)
        return found is not None and bool(access().narrow(principal, agent.id, capability, found.routes))

    sessions = Sessions(database, seals.keys, env=env)
    book = StoredBook(database, env)

    def finder(interface: NLWebInterface) -> Healer:
        return Healer(interface, book, metrics=metrics, env=env)

    recording = None if snapshots is None else partial(Snapshots, snapshots)
    visits = Visits(sessions=sessions, vault=vault, finder=finder, snapshots=recording, metrics=metrics)
    return NLWebConnector(visits, resolve=_understood, load=load, find=find, may=may, sites=Sites(policy))


async def _understood(text: str, interface: NLWebInterface) -> Resolution:
    """A sentence by its words, and where these leave it open by its meaning, if `agent3 semantic install` was run."""
    found = await resolve_async(text, interface)
    if found.action is not None or not embeddings.installed():
        return found
    return await asyncio.to_thread(_by_meaning, text, interface)


def _by_meaning(text: str, interface: NLWebInterface) -> Resolution:
    return resolve(text, interface, semantic=embeddings.load())
