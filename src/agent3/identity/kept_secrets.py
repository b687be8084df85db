"""Kept secrets: those of the vault, and those that came with what was added, sealed in the database.

A route names one by reference: ``vault:NAME`` for one that the operator set, ``kept:AGENT.NAME`` for one that came in a
client's file. ``KeptSecrets`` is the vault that knows these, and passes every other reference on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from agent3.env import REAL, Env
from agent3.errors import NotFound, SetupError, ValidationError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import seal, unseal
from agent3.identity.secret_detection import VAULT
from agent3.identity.secrets import Secret, Vault
from agent3.model import Agent, encode
from agent3.observe import logs
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, record_change

__all__ = ["KEPT", "KeptSecrets", "VaultEntry", "kept_in", "kept_reference", "vault_reference"]

KEPT = re.compile(r"kept:[\w.-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONGEST = 65_536


class VaultEntry(NamedTuple):
    """A secret of the vault without its value."""

    name: str
    changed: float
    key: str
    """The id of the master key that it is sealed with; empty for one of an earlier release."""


def kept_reference(place: str) -> str:
    """The reference of the secret in a place, such as a variable of a server."""
    return f"kept:{re.sub(r'[^A-Za-z0-9_.-]', '-', place)}"


def kept_in(agent: Agent) -> set[str]:
    """The kept secrets that an agent refers to."""
    return set(KEPT.findall(encode(agent).decode()))


def vault_reference(name: str) -> str:
    """The reference of the vault's secret of a name; ValidationError for what cannot be a name."""
    if _NAME.fullmatch(name) is None:
        raise ValidationError(
            "The name of a secret must have 1 to 100 letters, digits, dots, underscores and hyphens, and "
            "start with a letter or a digit."
        )
    return f"{VAULT}{name}"


class KeptSecrets:
    """All kept secrets of a database, as a vault."""

    def __init__(self, database: Database, vault: Vault, master_keys: MasterKeys, env: Env = REAL):
        self._database = database
        self._vault = vault
        self._master_keys = master_keys
        self._env = env

    async def get(self, reference: str) -> Secret:
        """The secret of a reference."""
        is_kept = KEPT.fullmatch(reference) is not None
        if not is_kept and not reference.startswith(VAULT):
            return await self._vault.get(reference)
        row = await self._database.one("SELECT sealed FROM kept_secrets WHERE id = ?", reference)
        if row is None and is_kept:
            raise SetupError(f"The secret {reference} is no longer stored. Add its agent again.")
        if row is None:
            name = reference.removeprefix(VAULT)[:100]
            raise SetupError(f"The vault has no secret {name!r}. Store it: agent3 vault set {name}")
        value = unseal(await self._master_keys.keys(), row["sealed"], reference)
        logs.redact(value)  # the last net: whatever is logged from now on does not show it
        return Secret(value)

    # The vault

    async def set(self, name: str, value: str) -> bool:
        """Put a secret into the vault, for every gateway on the database at once; whether it is new."""
        reference = vault_reference(name)
        if not value or len(value) > _LONGEST or "\0" in value:
            raise ValidationError(f"A secret must have 1 to {_LONGEST} characters and no NUL.")
        sealed = seal((await self._master_keys.keys())[0], value, reference, self._env)
        logs.redact(value)
        now, who = self._env.now(), ACTOR.get()

        async def work(tx: Transaction) -> bool:
            gone = await tx.run("DELETE FROM kept_secrets WHERE id = ?", reference)
            await tx.run("INSERT INTO kept_secrets (id, sealed, kept) VALUES (?, ?, ?)", reference, sealed, now)
            # Not even a hash of the value: a short secret could be guessed from it.
            await record_change(tx, self._env, "vault set", name, None, who)
            return not gone

        return await self._database.write(work)

    async def list(self) -> list[VaultEntry]:
        """The secrets of the vault, by name. Their values are not opened."""
        rows = await self._database.all("SELECT id, sealed, kept FROM kept_secrets WHERE id LIKE 'vault:%' ORDER BY id")
        return [
            VaultEntry(row["id"].removeprefix(VAULT), row["kept"], "".join(row["sealed"].split(".")[1:2]))
            for row in rows
        ]

    async def remove(self, name: str) -> None:
        """Delete a secret of the vault; NotFound when there is none."""
        reference, who = vault_reference(name), ACTOR.get()

        async def work(tx: Transaction) -> bool:
            gone = await tx.run("DELETE FROM kept_secrets WHERE id = ?", reference)
            if gone:
                await record_change(tx, self._env, "vault removed", name, None, who)
            return bool(gone)

        if not await self._database.write(work):
            raise NotFound(f"The vault has no secret {name!r}. See agent3 vault list.")

    # Secrets that came with what was added

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
