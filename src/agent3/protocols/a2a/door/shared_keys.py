"""What agents' own endpoints on one core share: the keys by which others know them, and push notifications.

A gateway has all of this from its settings. Here it comes with the core: in memory or in its database, made at the
first need, and let go when the core is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from agent3.calls.core import Core
from agent3.calls.outbox import KEY, Outbox
from agent3.identity.master_keys import Seals
from agent3.identity.own_keys import Safe
from agent3.identity.secrets import EnvironmentVault
from agent3.protocols.a2a.cards.signatures import CardKey, HouseKeys
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.functions.standalone import Standalone

__all__ = ["Household", "household"]


@dataclass(frozen=True, slots=True)
class Household:
    """Of one core, as long as it is open."""

    house: Core
    safe: Safe
    pushes: Pushes

    async def keys(self, *, key: CardKey | None = None, sign: bool = True) -> HouseKeys | None:
        """What signs its cards, where they are signed, and the public keys of all that is."""
        return await HouseKeys.of(self.safe, KEY, key=key, sign=sign)


_known: WeakKeyDictionary[Standalone, Household] = WeakKeyDictionary()


async def household(core: Standalone) -> Household:
    """The one of a core. Inside the bridge's loop."""
    house = await core.house()
    found = _known.get(core)
    if found is None or found.house is not house:
        found = _known[core] = _moved_in(core, house)
    return found


def _moved_in(core: Standalone, house: Core) -> Household:
    plain, settings = EnvironmentVault(), house.settings
    safe = Safe(house.database, Seals(settings.storage.seal, settings.storage.url or ":memory:", plain), house.env)
    outbox = Outbox(settings, house.database, plain, house.env, house.metrics, safe)
    outbox.start()

    async def leave() -> None:
        _known.pop(core, None)
        await outbox.aclose()

    core.on_close(leave)
    return Household(house, safe, Pushes(outbox, house.jobs, house.database, house.env))
