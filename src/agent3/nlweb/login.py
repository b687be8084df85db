"""How a caller gets into a website: the interface's own login action, with secrets by reference.

An interface says it in its metadata::

    login: {action: login, parameters: {user: env:SHOP_USER, password: env:SHOP_PASSWORD}, asks: "form#login"}

``asks`` selects what a page shows to those whom it does not know (any more). It knows neither browser nor storage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.errors import SetupError
from agent3.security.secrets import Secret, Vault

__all__ = ["Login"]

_REFERENCE = "env:"
_SECRET = re.compile(r"passw|passphrase|secret|token|(?:^|[_-])(?:pin|pwd|otp)(?:$|[_-])", re.IGNORECASE)
_KNOWN = frozenset({"action", "parameters", "asks"})


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


def _refuse_secrets(name: str, parameters: Mapping[str, str]) -> None:
    for key, value in parameters.items():
        if _SECRET.search(key) and not value.startswith(_REFERENCE):
            raise SetupError(
                f"The login of {name!r} holds its {key} itself, and secrets are not stored. Put it into an environment "
                f"variable of the gateway and write {key}: env:NAME."
            )
