"""What the endpoints of agents on one core share: the keys by which others know them, and push notifications.

A gateway has these from its settings. Here they come with the core: in memory or in its database, created on first use
and closed with the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from agent3.calls.core import Core
from agent3.calls.outbox import KEY, Outbox
from agent3.identity.master_keys import MasterKeys
from agent3.identity.own_keys import OwnKeys
from agent3.identity.secrets import EnvironmentVault
from agent3.protocols.a2a.cards.signatures import CardKey, SigningKeys
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.functions.standalone import Standalone

__all__ = ["SharedKeys", "shared_keys_of"]


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """The keys and pushes of one core, as long as it is open."""

    call_core: Core
    own_keys: OwnKeys
    pushes: Pushes

    async def keys(self, *, key: CardKey | None = None, sign: bool = True) -> SigningKeys | None:
        """The public keys of everything that is signed, and the one that signs cards, unless they are not signed."""
        return await SigningKeys.of(self.own_keys, KEY, key=key, sign=sign)


_known: WeakKeyDictionary[Standalone, SharedKeys] = WeakKeyDictionary()


async def shared_keys_of(core: Standalone) -> SharedKeys:
    """What the endpoints on a core share. Call it in the bridge's loop."""
    call_core = await core.call_core()
    found = _known.get(core)
    if found is not None and found.call_core is call_core:
        return found
    vault, settings = EnvironmentVault(), call_core.settings
    master_keys = MasterKeys(settings.storage.seal, settings.storage.url or ":memory:", vault)
    own_keys = OwnKeys(call_core.database, master_keys, call_core.env)
    outbox = Outbox(settings, call_core.database, vault, call_core.env, call_core.metrics, own_keys)
    outbox.start()

    async def close() -> None:
        _known.pop(core, None)
        await outbox.aclose()

    core.on_close(close)
    found = _known[core] = SharedKeys(
        call_core, own_keys, Pushes(outbox, call_core.jobs, call_core.database, call_core.env)
    )
    return found
