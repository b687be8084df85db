"""Vaults: from a reference such as ``env:PIZZA_TOKEN`` to the secret itself, at the last step before sending."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from agent3.errors import SetupError
from agent3.observe import logs
from agent3.secret import Secret

__all__ = ["EnvironmentVault", "Secret", "Vault"]


class Vault(Protocol):
    """Where secrets are kept."""

    async def get(self, reference: str) -> Secret:
        """The secret of that reference; ``SetupError`` says what is missing and never what is there."""
        ...


class EnvironmentVault:
    """Secrets from environment variables: ``env:NAME``."""

    def __init__(self, environment: Mapping[str, str] | None = None):
        self._environment = os.environ if environment is None else environment

    async def get(self, reference: str) -> Secret:
        scheme, found, name = reference.partition(":")
        if scheme != "env" or not found or not name:
            # Never the reference itself: it may be the secret, given by mistake.
            shown = f"begins with {scheme[:20]!r}" if found else "has no scheme"
            raise SetupError(
                f"The credential reference {shown}. Write env:NAME, with the name of an environment "
                "variable, or vault:NAME if the gateway has a vault."
            )
        value = self._environment.get(name)
        if not value:
            state = "not set" if value is None else "empty"
            raise SetupError(f"The environment variable {name} is {state}, but a route takes its credential from it.")
        logs.redact(value)  # the last net: whatever is logged from now on does not show it
        return Secret(value)
