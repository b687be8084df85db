"""How a caller logs in to a website: the interface's own login action, with secrets by reference.

An interface declares it in its metadata::

    login: {action: login, parameters: {user: env:SHOP_USER, password: env:SHOP_PASSWORD}, asks: "form#login"}

``asks`` selects what a page shows to visitors who are not (or no longer) logged in. A login that was rejected is not
repeated at once: a website locks an account after a few wrong passwords. It knows neither browser nor storage.
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

__all__ = ["REFERENCE", "Account", "Accounts", "Login"]

log = logger("nlweb")

REFERENCE = "env:"
"""Begins a reference to a secret: the rest is the name of an environment variable of the gateway."""
_SECRET = re.compile(r"passw|passphrase|secret|token|(?:^|[_-])(?:pin|pwd|otp)(?:$|[_-])", re.IGNORECASE)
_KEYS = frozenset({"action", "parameters", "asks"})
_PAUSE = 60.0
_LONGEST_PAUSE = 3_600.0
_MAX_ACCOUNTS = 1_000


@dataclass(frozen=True, slots=True)
class Login:
    """The action that logs in, its parameters, and the selector of what a page shows when it wants a login."""

    action: str
    parameters: Mapping[str, str]
    asks: str | None = None

    @classmethod
    def of(cls, interface: NLWebInterface) -> Login | None:
        """The login of an interface, or None; SetupError if its metadata cannot be used."""
        declared = interface.metadata.get("login")
        if declared is None:
            return None
        if (
            not isinstance(declared, Mapping)
            or set(declared) - _KEYS
            or declared.get("action") not in interface.actions
        ):
            raise SetupError(
                f"The login of {interface.name!r} cannot be used. Write action (one of its actions), parameters and "
                "asks (a selector)."
            )
        parameters = {str(key): str(value) for key, value in (declared.get("parameters") or {}).items()}
        for key, value in parameters.items():
            if _SECRET.search(key) and not value.startswith(REFERENCE):
                raise SetupError(
                    f"The login of {interface.name!r} contains its {key} itself, but secrets are not stored "
                    f"in the open. Put it into an environment variable of the gateway and write {key}: "
                    "env:NAME."
                )
        asks = declared.get("asks")
        return cls(str(declared["action"]), parameters, None if asks is None else str(asks))

    @property
    def variables(self) -> set[str]:
        """The environment variables that its secrets come from."""
        return {value.removeprefix(REFERENCE) for value in self.parameters.values() if value.startswith(REFERENCE)}

    async def fill(self, vault: Vault) -> tuple[dict[str, Any], list[Secret]]:
        """The parameters with their references resolved, and the secrets among them."""
        values, secrets = {}, []
        for name, value in self.parameters.items():
            if value.startswith(REFERENCE):
                secrets.append(secret := await vault.get(value))
                value = secret.reveal()
            values[name] = value
        return values, secrets


@dataclass
class Account:
    """What is known of the logins with one set of credentials."""

    name: str
    env: Env
    accepted: bool = False
    """Whether one was accepted, and none was rejected since."""
    rejections: int = 0
    closed_until: float = 0.0
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    def accept(self) -> None:
        """The website let it in."""
        self.accepted, self.rejections, self.closed_until = True, 0, 0.0

    def reject(self) -> None:
        """The website rejected it: it is not tried for a while, twice as long each time."""
        pause = min(_PAUSE * 2**self.rejections, _LONGEST_PAUSE)
        self.accepted, self.rejections = False, self.rejections + 1
        self.closed_until = self.env.monotonic() + pause
        log.warning("the login at %s was rejected and is not tried again for %.0f s", self.name, pause)


class Accounts:
    """The logins of a process, so that a wrong password is not sent again with every call. It belongs to one loop.

    An account is identified by a keyed digest of the login's steps and of what is typed into them.
    """

    def __init__(self, *, env: Env = REAL):
        self._env = env
        self._key = os.urandom(32)
        self._accounts: OrderedDict[bytes, Account] = OrderedDict()

    @asynccontextmanager
    async def attempt(
        self, interface: NLWebInterface, login: Login, values: Mapping[str, Any]
    ) -> AsyncIterator[Account]:
        """Log in while the block runs: one at a time, until the first one was accepted.

        TargetRefused, and nothing is sent, while a rejected login is not to be tried again.
        """
        steps = [step.model_dump_json() for step in interface.actions[login.action]]
        identity = msgspec.json.encode([interface.base_url, steps, sorted(values.items())])
        digest = hashlib.blake2b(identity, key=self._key, digest_size=16).digest()
        account = self._accounts.setdefault(digest, Account(interface.base_url, self._env))
        self._accounts.move_to_end(digest)
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        async with AsyncExitStack() as stack:
            if not account.accepted:
                # Several callers with the same wrong password would lock the account together.
                await stack.enter_async_context(account.alone)
            left = account.closed_until - self._env.monotonic()
            if left > 0:
                refused = TargetRefused(
                    f"The login at {account.name} was rejected and is not tried again for {left:.0f} s, so "
                    "that the account is not locked. Check its secret.",
                    retry_after=left,
                )
                refused.sent = False
                raise refused
            yield account
