"""Kept secrets: those that came with what was added, such as in a client's file, sealed in the database.

A route names one by reference, ``kept:AGENT.NAME``. ``KeptSecrets`` is the vault that knows these, and passes every
other reference on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent3.env import REAL, Env
from agent3.errors import SetupError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import seal, unseal
from agent3.identity.secrets import Secret, Vault
from agent3.model import Agent, encode
from agent3.observe import logs
from agent3.storage import Database, Transaction

__all__ = ["KEPT", "KeptSecrets", "kept_in", "kept_reference"]

KEPT = re.compile(r"kept:[\w.-]+")


def kept_reference(place: str) -> str:
    """The reference of the secret in a place, such as a variable of a server."""
    return f"kept:{re.sub(r'[^A-Za-z0-9_.-]', '-', place)}"


def kept_in(agent: Agent) -> set[str]:
    """The kept secrets that an agent refers to."""
    return set(KEPT.findall(encode(agent).decode()))


class KeptSecrets:
    """All kept secrets of a database, as a vault."""

    def __init__(self, database: Database, vault: Vault, master_keys: MasterKeys, env: Env = REAL):
        self._database = database
        self._vault = vault
        self._master_keys = master_keys
        self._env = env

    async def get(self, reference: str) -> Secret:
        """The secret of a reference."""
        if KEPT.fullmatch(reference) is None:
            return await self._vault.get(reference)
        row = await self._database.one("SELECT sealed FROM kept_secrets WHERE id = ?", reference)
        if row is None:
            raise SetupError(f"The secret {reference} is no longer kept. Add what it belongs to again.")
        value = unseal(await self._master_keys.keys(), row["sealed"], reference)
        logs.redact(value)  # the last net: whatever is logged from now on does not show it
        return Secret(value)

    async def keep(self, secrets: Mapping[str, str]) -> dict[str, str | None]:
        """Seal and store secrets under their references; what stood there before, sealed, to be put back."""
        keys = await self._master_keys.keys()
        sealed = {reference: seal(keys[0], value, reference, self._env) for reference, value in secrets.items()}
        for value in secrets.values():
            logs.redact(value)
        return await self.put_back(sealed)

    async def put_back(self, sealed: Mapping[str, str | None]) -> dict[str, str | None]:
        """Store what is sealed already, None for nothing; what stood there before."""
        now = self._env.now()

        async def work(tx: Transaction) -> dict[str, str | None]:
            before: dict[str, str | None] = {}
            for reference, text in sealed.items():
                row = await tx.one("SELECT sealed FROM kept_secrets WHERE id = ?", reference)
                before[reference] = None if row is None else row["sealed"]
                await tx.run("DELETE FROM kept_secrets WHERE id = ?", reference)
                if text is not None:
                    await tx.run("INSERT INTO kept_secrets (id, sealed, kept) VALUES (?, ?, ?)", reference, text, now)
            return before

        return await self._database.write(work) if sealed else {}
