"""The house's own keys: made once, the same for everybody on the database, and nothing to a thief of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent3.env import REAL
from agent3.errors import SetupError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.own_keys import OwnKeys, is_signed_with
from agent3.identity.secrets import EnvironmentVault
from agent3.storage import open_database


def test_of_several_who_make_a_key_at_once_all_have_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/house.db"

    async def main() -> None:
        database = await open_database(url, env=REAL)
        try:
            processes = [OwnKeys(database, MasterKeys("", url, EnvironmentVault()), REAL) for _ in range(5)]
            keys = await asyncio.gather(*(process.key("cards") for process in processes))
            assert len({one.pem for one in keys}) == 1
            other = await processes[0].key("webhooks")
            assert other.pem != keys[0].pem
            assert await processes[0].key("cards") is keys[0]
            rows = await database.all("SELECT name, sealed FROM own_keys ORDER BY name")
            assert [row["name"] for row in rows] == ["cards", "webhooks"]
            assert "PRIVATE" not in str([dict(row) for row in rows])
            signature = keys[1].sign(b"words")
            assert is_signed_with(keys[0].jwk(), signature, b"words")
            assert not is_signed_with(keys[0].jwk(), signature, b"other words")
            assert not is_signed_with(other.jwk(), signature, b"words")
            for wrong in (None, {}, {"kty": "OKP", "crv": "Ed25519", "x": "?"}, {"kty": "OKP", "crv": "Ed25519"}):
                assert not is_signed_with(wrong, signature, b"words")
        finally:
            await database.aclose()

    asyncio.run(main())


def test_a_key_that_was_sealed_otherwise_is_not_replaced_but_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/house.db"
    monkeypatch.setenv("SEAL", "another-secret-of-ours")

    async def main() -> None:
        database = await open_database(url, env=REAL)
        try:
            made = await OwnKeys(database, MasterKeys("", url, EnvironmentVault()), REAL).key("cards")
            changed = OwnKeys(database, MasterKeys("env:SEAL", url, EnvironmentVault()), REAL)
            with pytest.raises(SetupError, match="encrypted with another secret"):
                await changed.key("cards")
            again = await OwnKeys(database, MasterKeys("", url, EnvironmentVault()), REAL).key("cards")
            assert again.pem == made.pem
        finally:
            await database.aclose()

    asyncio.run(main())
