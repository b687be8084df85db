"""The gateway's websites: the connector of protocol ``nlweb``, with the database, the vault and the settings behind it.

No browser starts before the first visit; without the extra ``browser`` only the visits fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent3.definitions import NLWebInterface
from agent3.directory import Directory
from agent3.env import Env
from agent3.errors import AgentNotFound
from agent3.identity.master_keys import Seals
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
    """A connector that knows the directory's interfaces and keeps its sessions encrypted in the database.

    Selectors that no longer fit are healed with what earlier visits saw. The pages of the latest failures are kept in
    the folder ``snapshots``.
    """

    async def find(name: str) -> Agent:
        return await directory.get(name)

    def may(principal: Principal, agent: Agent, capability: str) -> bool:
        found = agent.capability(capability)
        return found is not None and bool(access().narrow(principal, agent.id, capability, found.routes))

    book = StoredBook(database, env)

    def finder(interface: NLWebInterface) -> Healer:
        return Healer(interface, book, metrics=metrics, env=env)

    visits = Visits(
        sessions=Sessions(database, seals.keys, env=env),
        vault=vault,
        grants=Grants.read(web.secrets),
        robots=Robots(web.robots, env=env),
        finder=finder,
        snapshots=None if snapshots is None else lambda: Snapshots(snapshots),
        metrics=metrics,
    )
    return NLWebConnector(visits, resolve=understand, load=load, find=find, may=may, sites=Sites(policy), env=env)


async def forget_website(database: Database, directory: Directory, gone: Agent) -> None:
    """Delete what was stored for a website that was removed, or replaced by another one.

    What other websites of the directory share with it stays: sessions of the same scope, elements of the same id.
    """
    try:
        interface = interface_of(gone)
    except AgentNotFound:
        return
    others = [
        interface_of(agent)
        for agent in await directory.everything()
        if agent.card.get("protocol") == "nlweb" and "interface" in agent.card
    ]
    if scope_of(interface) not in {scope_of(other) for other in others}:
        await Sessions(database).forget(site=scope_of(interface))
    if interface.interface_id not in {other.interface_id for other in others}:
        await StoredBook(database).forget(interface.interface_id)
