"""How a caller gets into a website: the interface's own login action, with secrets by reference.

An interface says it in its metadata::

    login: {action: login, parameters: {user: env:SHOP_USER, password: env:SHOP_PASSWORD}, asks: "form#login"}

``asks`` selects what a page shows to those whom it does not know (any more). A login that was turned down is not made
again at once: a website locks an account after a few wrong passwords. It knows neither browser nor storage.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent3.definitions import NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import SetupError, TargetRefused
from agent3.identity.secrets import Secret, Vault
from agent3.observe.logs import get as logger

__all__ = ["Account", "Accounts", "Login"]

log = logger("nlweb")

_REFERENCE = "env:"
_SECRET = re.compile(r"passw|passphrase|secret|token|(?:^|[_-])(?:pin|pwd|otp)(?:$|[_-])", re.IGNORECASE)
_KNOWN = frozenset({"action", "parameters", "asks"})
_PAUSE = 60.0
_LONGEST_PAUSE = 3_600.0
_MOST_ACCOUNTS = 1_000


@dataclass(frozen=True, slots=True)
class Login:
    """The action that logs in, its parameters, and by what a page is known that asks for it."""

    action: str
    parameters: Mapping[str, str]
    asks: str | None = None

    @classmethod
    def of(cls, interface: NLWebInterface) -> Login | None:
        """What the interface says of it; None if it says nothing, SetupError for what cannot be used."""
        said = interface.metadata.get("login")
        if said is None:
            return None
        if not isinstance(said, Mapping) or set(said) - _KNOWN or said.get("action") not in interface.actions:
            raise SetupError(
                f"The login of {interface.name!r} cannot be used. Write action (one of its actions), parameters and "
                "asks (a selector)."
            )
        parameters = {str(key): str(value) for key, value in (said.get("parameters") or {}).items()}
        _refuse_secrets(interface.name, parameters)
        asks = said.get("asks")
        return cls(str(said["action"]), parameters, None if asks is None else str(asks))

    async def filled(self, vault: Vault) -> tuple[dict[str, Any], list[Secret]]:
        """The parameters with what their references stand for, and the secrets among them."""
        values, secrets = {}, []
        for name, value in self.parameters.items():
            if value.startswith(_REFERENCE):
                secrets.append(secret := await vault.get(value))
                value = secret.reveal()
            values[name] = value
        return values, secrets


@dataclass
class Account:
    """What came of the logins with one and the same secret."""

    name: str
    env: Env
    known: bool = False
    """Whether one was let in, and none was turned down since."""
    refusals: int = 0
    closed_until: float = 0.0
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    def let_in(self) -> None:
        """The website knows it."""
        self.known, self.refusals, self.closed_until = True, 0, 0.0

    def turned_down(self) -> None:
        """The website does not want it: it is left alone for a while, twice as long each time."""
        pause = min(_PAUSE * 2**self.refusals, _LONGEST_PAUSE)
        self.known, self.refusals, self.closed_until = False, self.refusals + 1, self.env.monotonic() + pause
        log.warning("the login at %s was turned down and is not tried again for %.0f s", self.name, pause)


class Accounts:
    """The logins of a process, so that a wrong password is not sent again at every call. It belongs to one event loop.

    They are known by a digest, in a key of this process, of the login's steps and what is typed into them.
    """

    def __init__(self, *, env: Env = REAL):
        self._env = env
        self._key = os.urandom(32)
        self._accounts: OrderedDict[bytes, Account] = OrderedDict()

    @asynccontextmanager
    async def trying(
        self, interface: NLWebInterface, login: Login, values: Mapping[str, Any]
    ) -> AsyncIterator[Account]:
        """Log in while the block runs: one at a time, until a first one was let in.

        TargetRefused, and nothing is sent, for as long as the last one that was turned down is remembered.
        """
        account = self._account(interface, login, values)
        async with AsyncExitStack() as stack:
            if not account.known:
                await stack.enter_async_context(account.alone)
            self._require_open(account)
            yield account

    def _require_open(self, account: Account) -> None:
        left = account.closed_until - self._env.monotonic()
        if left > 0:
            refused = TargetRefused(
                f"The login at {account.name} was turned down before and is not tried again for {left:.0f} s, so that "
                "the account is not locked. See whether its secret is right.",
                retry_after=left,
            )
            refused.sent = False
            raise refused

    def _account(self, interface: NLWebInterface, login: Login, values: Mapping[str, Any]) -> Account:
        steps = [one.model_dump_json() for one in interface.actions[login.action]]
        said = msgspec.json.encode([interface.base_url, steps, sorted(values.items())])
        digest = hashlib.blake2b(said, key=self._key, digest_size=16).digest()
        account = self._accounts.setdefault(digest, Account(interface.base_url, self._env))
        self._accounts.move_to_end(digest)
        if len(self._accounts) > _MOST_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account


def _refuse_secrets(name: str, parameters: Mapping[str, str]) -> None:
    for key, value in parameters.items():
        if _SECRET.search(key) and not value.startswith(_REFERENCE):
            raise SetupError(
                f"The login of {name!r} holds its {key} itself, and secrets are not stored. Put it into an environment "
                f"variable of the gateway and write {key}: env:NAME."
            )
