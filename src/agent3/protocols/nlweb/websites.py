"""The gateway's websites: the connector of protocol ``nlweb`` with all it needs from the house.

No browser starts before the first visit, and without the extra ``browser`` only that visit fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent3.definitions import NLWebInterface
from agent3.directory import Directory
from agent3.env import Env
from agent3.errors import AgentNotFound
from agent3.identity.secrets import Vault
from agent3.model import Agent, Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.nlweb.ask.sites import Sites
from agent3.protocols.nlweb.authoring.files import load
from agent3.protocols.nlweb.commands import understand
from agent3.protocols.nlweb.connector import NLWebConnector, interface_of
from agent3.protocols.nlweb.healing import Healer, StoredBook
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.snapshots import Snapshots
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.visits import Visits
from agent3.security.access import Access
from agent3.security.outbound import Policy
from agent3.server.sign_ins import Seals
from agent3.settings import Web
from agent3.storage import Database

__all__ = ["forget_website", "websites"]


def websites(
    database: Database,
    directory: Directory,
    access: Callable[[], Access],
    seals: Seals,
    vault: Vault,
    policy: Policy,
    web: Web,
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
    visits = Visits(
        sessions=sessions,
        vault=vault,
        grants=Grants.read(web.secrets),
        robots=Robots(web.robots, env=env),
        finder=finder,
        snapshots=recording,
        metrics=metrics,
    )
    return NLWebConnector(visits, resolve=understand, load=load, find=find, may=may, sites=Sites(policy))


async def forget_website(database: Database, directory: Directory, gone: Agent) -> None:
    """Forget what was kept for a website that was removed, or that has become another one.

    What a website of the directory has in common with it stays: sessions of the same scope, elements of the same id.
    """
    try:
        interface = interface_of(gone)
    except AgentNotFound:
        return
    rest = [
        interface_of(one)
        for one in await directory.everything()
        if one.card.get("protocol") == "nlweb" and "interface" in one.card
    ]
    if scope_of(interface) not in {scope_of(one) for one in rest}:
        await Sessions(database).forget(site=scope_of(interface))
    if interface.interface_id not in {one.interface_id for one in rest}:
        await StoredBook(database).forget(interface.interface_id)
