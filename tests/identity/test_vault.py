"""The vault: secrets by name, sealed under a master key that can be replaced; and databases that are encrypted."""

from __future__ import annotations

import asyncio
import base64
import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.env import REAL
from agent3.errors import Corrupt, NotFound, SetupError, Unavailable, ValidationError
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.data_keys import DataCipher, open_stored
from agent3.identity.kept_secrets import KeptSecrets
from agent3.identity.key_rotation import rewrap_all
from agent3.identity.master_keys import MasterKeys
from agent3.identity.own_keys import OwnKeys
from agent3.identity.secret_box import is_sealed_with, rewrap, seal, unseal
from agent3.identity.secret_refs import check_query, check_words, open_route, references_in, refers_to_secret
from agent3.identity.secrets import EnvironmentVault, Secret
from agent3.model import LOCAL, Done, Route
from agent3.queue import Queue
from agent3.queue.messages import checksum
from agent3.settings import Calls, Settings, Storage
from agent3.storage import Blobs, Transaction, open_database
from agent3.storage.at_rest import Private, encrypt_blobs, encrypt_database
from agent3.storage.audit import ACTOR
from agent3.storage.backup import back_up, restore

pytestmark = pytest.mark.anyio

ME = Caller(LOCAL, "test")
VALUE = "tr0ub4dor-and-three"
OLD, NEW = b"an-older-master-key!", b"the-newer-master-key"


def test_a_text_has_a_data_key_of_its_own_and_moves_to_another_master_key_unopened() -> None:
    sealed = seal(OLD, VALUE, "place", REAL)
    assert VALUE not in sealed
    assert sealed != seal(OLD, VALUE, "place", REAL)
    assert is_sealed_with(OLD, sealed)
    assert not is_sealed_with(NEW, sealed)
    moved = rewrap([NEW, OLD], sealed, REAL)
    assert moved is not None
    assert is_sealed_with(NEW, moved)
    assert moved.rpartition(".")[2] == sealed.rpartition(".")[2]
    assert unseal([NEW], moved, "place") == VALUE
    for keys, text, place in (([NEW], sealed, "place"), ([OLD], sealed, "elsewhere"), ([OLD], sealed[:-8], "place")):
        with pytest.raises(SetupError, match="cannot be opened"):
            unseal(keys, text, place)
    for damaged in ("", "2.", "2..", "2.a.b.c", f"2.{sealed[2:14]}.AAAA.BBBB", "x" * 40):
        with pytest.raises(SetupError):
            unseal([OLD, NEW], damaged, "place")


def test_what_an_earlier_release_sealed_is_still_opened() -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from agent3.identity.secret_box import derive

    nonce = os.urandom(12)
    import base64

    closed = AESGCM(derive(OLD, b"agent3 sealed text 1")).encrypt(nonce, VALUE.encode(), b"place")
    former = base64.urlsafe_b64encode(nonce + closed).decode()
    assert unseal([NEW, OLD], former, "place") == VALUE
    assert rewrap([NEW, OLD], former, REAL) is None


async def _vault(tmp_path: Path) -> tuple[Any, KeptSecrets, MasterKeys]:
    url = f"sqlite:///{tmp_path / 'v.db'}"
    database = await open_database(url)
    keys = MasterKeys("", url, EnvironmentVault())
    return database, KeptSecrets(database, EnvironmentVault(), keys), keys


async def test_the_vault_sets_lists_gives_and_removes_without_showing(tmp_path: Path) -> None:
    database, vault, _ = await _vault(tmp_path)
    try:
        ACTOR.set("alice")
        assert await vault.set("github", VALUE)
        assert not await vault.set("github", f"{VALUE}2")
        assert await vault.get("vault:github") == Secret(f"{VALUE}2")
        listed = await vault.list()
        assert [one.name for one in listed] == ["github"]
        assert VALUE not in repr(listed)
        await vault.remove("github")
        with pytest.raises(NotFound):
            await vault.remove("github")
        with pytest.raises(SetupError, match="agent3 vault set github"):
            await vault.get("vault:github")
        for bad in ("", "../x", "a b", "a\n", "x" * 101, "é"):
            with pytest.raises(ValidationError):
                await vault.set(bad, VALUE)
        for bad in ("", "a\0b", "x" * 70_000):
            with pytest.raises(ValidationError):
                await vault.set("name", bad)
        changes = await database.all("SELECT what, who, detail FROM audit ORDER BY number")
        assert [(row["what"], row["who"]) for row in changes] == [
            ("vault set", "alice"),
            ("vault set", "alice"),
            ("vault removed", "alice"),
        ]
        assert all(VALUE not in row["detail"] for row in changes)
    finally:
        await database.aclose()
    assert VALUE.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


async def test_a_rotation_moves_everything_and_running_gateways_follow(tmp_path: Path) -> None:
    database, vault, running = await _vault(tmp_path)
    try:
        await vault.set("one", VALUE)
        own = await OwnKeys(database, running, REAL).key("cards")
        before = list(await running.keys())
        rotating = MasterKeys("", database.url, EnvironmentVault())
        rotating.add()
        keys = await rotating.keys()
        assert keys[1:] == before
        # A gateway that runs seals with the new key from now on, and opens what the old one sealed.
        await vault.set("two", VALUE)
        assert is_sealed_with(
            keys[0], (await database.one("SELECT sealed FROM kept_secrets WHERE id = 'vault:two'"))["sealed"]
        )
        assert (await vault.get("vault:one")).reveal() == VALUE
        moved = await rewrap_all(database, keys, REAL)
        assert (moved.done, moved.already, moved.others) == (2, 1, 0)
        assert (await rewrap_all(database, keys, REAL)).done == 0
        rotating.drop_former()
        assert await running.keys() == await rotating.keys() == keys[:1]
        assert (await vault.get("vault:one")).reveal() == (await vault.get("vault:two")).reveal() == VALUE
        assert (await OwnKeys(database, running, REAL).key("cards")).pem == own.pem
        file = tmp_path / "v.db.seal"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert before[0].hex() not in file.read_text()
    finally:
        await database.aclose()


async def test_a_master_key_comes_from_a_file_or_the_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    keys = MasterKeys(f"file:{file}", "postgresql://h/d", EnvironmentVault())
    with pytest.raises(SetupError, match="does not exist"):
        await keys.keys()
    file.write_text("a-master-key-in-a-file")
    file.chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        await keys.keys()
    file.chmod(0o600)
    assert await keys.keys() == [b"a-master-key-in-a-file"]
    monkeypatch.setenv("PATH", str(tmp_path))
    ring = MasterKeys("keyring:gateway", "postgresql://h/d", EnvironmentVault())
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(SetupError, match="the program secret-tool is not installed"):
        await ring.keys()
    tool = tmp_path / "secret-tool"
    tool.write_text('#!/bin/sh\n[ "$*" = "lookup service agent3 name gateway" ] && echo key-of-the-keyring\n')
    tool.chmod(0o755)
    assert await ring.keys() == [b"key-of-the-keyring"]
    with pytest.raises(SetupError, match="no secret 'other'"):
        await MasterKeys("keyring:other", "postgresql://h/d", EnvironmentVault()).keys()


class _Fixed:
    async def get(self, reference: str) -> Secret:
        return Secret({"vault:tok": VALUE, "env:PLAIN": "plain-value"}[reference])


@pytest.mark.parametrize(
    ("address", "opened"),
    [
        ("https://h/mcp?key=vault:tok", f"https://h/mcp?key={VALUE}"),
        ("https://h/vault:tok/mcp", f"https://h/{VALUE}/mcp"),
        ("https://h/mcp?q=a-${vault:tok}-b", f"https://h/mcp?q=a-{VALUE}-b"),
    ],
)
async def test_a_reference_to_the_vault_stands_wherever_one_to_the_environment_does(address: str, opened: str) -> None:
    route = Route("mcp", check_query(address))
    assert VALUE not in route.address
    assert refers_to_secret(route)
    assert references_in(route) == {"vault:tok"}
    found = await open_route(route, _Fixed())
    assert found.route.address == opened
    assert found.hidden == (Secret(VALUE),)


async def test_a_program_gets_secrets_of_the_vault_in_arguments_and_variables() -> None:
    import json

    words = check_words(["--token", "vault:tok", "--key=vault:tok"])
    address = "stdio:" + json.dumps({"command": "x", "args": words, "env": {"A": "vault:tok", "B": "env:PLAIN"}})
    found = await open_route(Route("mcp", address), _Fixed())
    command = json.loads(found.route.address.removeprefix("stdio:"))
    assert command["args"] == ["--token", VALUE, f"--key={VALUE}"]
    assert command["env"] == {"A": VALUE, "B": "env:PLAIN"}
    assert Secret(VALUE) in found.hidden
    named = await open_route(Route("mcp", "https://h/", meta={"headers": {"X-Key": "vault:tok"}}), _Fixed())
    assert named.route.meta["headers"] == {"X-Key": VALUE}


# At rest


def _settings(tmp_path: Path, seal_: str = "env:MASTER") -> Settings:
    return Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'r.db'}", seal=seal_), calls=Calls(bodies="full"))


async def _read_raw(url: str, folder: Path) -> bytes:
    """All that is stored, as who has the disk or the database sees it."""
    stored = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    if url.startswith("postgres"):
        raw = await open_database(url)
        tables = await raw.all("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        for table in tables:
            for row in await raw.all(f"SELECT * FROM {table['tablename']}"):
                stored += [
                    bytes(one) if isinstance(one, bytes | memoryview) else str(one).encode()
                    for one in dict(row).values()
                ]
        await raw.aclose()
    return b"\n".join(stored)


async def test_with_a_master_key_everything_stored_is_encrypted(
    lasting_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent3.protocols.functions import LocalAgent
    from agent3.server.build import build

    monkeypatch.setenv("MASTER", NEW.decode())
    echo = LocalAgent("echo")

    @echo.capability
    def big(text: str) -> str:
        return text * 20_000

    @echo.capability
    def fail(text: str) -> str:
        raise Unavailable("away")

    word = "Kirschwasser"
    monkeypatch.setenv("AGENT3_DATA", str(tmp_path))
    settings = replace(_settings(tmp_path), storage=Storage(url=lasting_url, seal="env:MASTER"))
    unsealed = replace(settings, storage=Storage(url=lasting_url))
    insert = "INSERT INTO a2a_replies (agent, message, body, at) VALUES ('a', ?, ?, 1000000000000.0)"
    for number in range(2):  # what the first process stored, the second reads
        async with build(settings, [echo]) as server:
            asked: dict[str, Any] = {"agent": "echo", "input": {"text": word}}
            done = await server.gateway.call(ME, CallRequest(capability="big", key="k1", **asked))
            assert isinstance(done, Done)
            artifact = next(part.artifact for part in done.parts if part.artifact is not None)
            found = await server.core.artifacts.get("local", artifact)
            assert found.body.startswith(word.encode())
            await server.gateway.call(ME, CallRequest(capability="fail", **asked))
            assert len(await server.core.dead_letters.latest()) == number + 1
            await server.database.many(insert, [(str(number), word.encode())])
    stored = await _read_raw(lasting_url, tmp_path)
    assert b"echo" in stored  # what may be read is
    assert word.encode() not in stored

    monkeypatch.delenv("MASTER")
    with pytest.raises(SetupError, match="no master key is set"):
        await open_stored(unsealed)
    monkeypatch.setenv("MASTER", OLD.decode())
    with pytest.raises(SetupError, match="a different master key"):
        await open_stored(settings)
    monkeypatch.setenv("MASTER", f"{OLD.decode()} {NEW.decode()}")
    await (await open_stored(settings)).database.aclose()


async def test_encryption_can_be_turned_on_for_a_database_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", NEW.decode())
    insert = "INSERT INTO a2a_replies (agent, message, body, at) VALUES ('a', ?, ?, 1)"
    plain = (await open_stored(_settings(tmp_path, ""))).database
    await plain.write(lambda tx: tx.run(insert, "old", b'"before"'))
    await plain.aclose()
    opened = (await open_stored(_settings(tmp_path))).database
    await opened.many(insert, [("new", b'"after"')])
    rows = await opened.all("SELECT message, body FROM a2a_replies ORDER BY message")
    assert [(row["message"], bytes(row["body"])) for row in rows] == [("new", b'"after"'), ("old", b'"before"')]
    await opened.aclose()
    with sqlite3.connect(tmp_path / "r.db") as raw:
        found = dict(raw.execute("SELECT message, body FROM a2a_replies").fetchall())
    assert found["old"] == b'"before"'
    assert b"after" not in found["new"]


async def test_bytes_that_were_changed_are_not_read(tmp_path: Path) -> None:
    cipher, other = DataCipher(os.urandom(32)), DataCipher(os.urandom(32))
    closed = cipher.encrypt(b"hello")
    bound = cipher.encrypt(b"hello", b"jobs.call\n1")
    assert cipher.decrypt(closed) == (b"hello", b"")
    assert cipher.decrypt(bound) == (b"hello", b"jobs.call\n1")
    assert cipher.decrypt(b"plain") == (b"plain", b"")
    elsewhere = bound.replace(b"jobs.call\n1", b"jobs.call\n2")
    for changed in (closed[:-1] + bytes([closed[-1] ^ 1]), closed[:20], other.encrypt(b"x"), elsewhere, bound[:40]):
        with pytest.raises(Corrupt):
            cipher.decrypt(changed)
    blobs = encrypt_blobs(Blobs(tmp_path), cipher)
    name = await blobs.put(b"a large result")
    assert await blobs.get(name) == b"a large result"
    assert b"large" not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_texts_of_strangers_that_look_encrypted_stay_as_they_are() -> None:
    database = encrypt_database(await open_database(":memory:"), DataCipher(os.urandom(32)))
    try:
        for text in ("a3e1:", "a3e1:AAAA", "a3e1:!!", "a3e1:AGEzZTEAAAA="):
            row = await database.one("SELECT ? AS text", text)
            assert row is not None
            assert row["text"] == text
    finally:
        await database.aclose()


async def _rename(name: str, tx: Transaction) -> int:
    return await tx.run("UPDATE call_bodies SET kind = ?", name)


async def test_what_lies_encrypted_is_not_opened_for_who_sends_it_as_a_text() -> None:
    """Somebody has a copy of the database, and a key of the gateway: with both together there is still no reading."""
    inner = await open_database(":memory:")
    database = encrypt_database(inner, DataCipher(os.urandom(32)))
    try:
        await database.append("call_bodies", ("id", "at", "kind", "request"), [("1", 1.0, "full", Private("and why"))])
        await database.many(REPLY, [("m", b"what anna said")])
        text, body = await inner.one("SELECT * FROM call_bodies"), await inner.one("SELECT * FROM a2a_replies")
        assert text is not None
        assert body is not None
        for stolen in (text["request"], "a3e1:" + base64.b64encode(body["body"]).decode()):
            seen = await database.one("SELECT ? AS text", stolen)
            assert seen is not None
            assert seen["text"] == stolen
            await database.write(partial(_rename, stolen))
            seen = await database.one("SELECT * FROM call_bodies")
            assert seen is not None
            assert (seen["kind"], seen["request"]) == (stolen, "and why")
    finally:
        await database.aclose()


REPLY = "INSERT INTO a2a_replies (agent, message, body, at) VALUES ('a', ?, ?, 1)"
READ = "SELECT message, body FROM a2a_replies WHERE message = ?"


async def test_an_encrypted_value_opens_in_its_own_row_and_column_alone(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", NEW.decode())
    settings = Settings(storage=Storage(url=lasting_url, seal="env:MASTER"))
    stored = await open_stored(settings)
    database, raw = stored.database, await open_database(lasting_url)
    try:
        assert stored.cipher is not None
        assert stored.cipher.strict  # nothing was there before
        await database.many(REPLY, [("mine", b'"for me"'), ("hers", b'"for her"')])
        await database.many(
            "INSERT INTO dead_letters (id, at, principal, agent, capability, call, outcome) "
            "VALUES (?, 1, 'p', 'a', 'c', ?, ?)",
            [("hers", b'"call"', b'"outcome"')],
        )
        hers = await raw.one(READ, "hers")
        letter = await raw.one("SELECT call, outcome FROM dead_letters")
        assert hers is not None
        assert letter is not None
        assert b"for her" not in bytes(hers["body"]) + bytes(letter["call"])
        found = await database.one(READ, "mine")
        assert found is not None
        assert bytes(found["body"]) == b'"for me"'
        # another row; another table with the same key; another column of the row; in the clear; of the earlier form
        bare = stored.cipher.encrypt(b'"bare"')
        for other in (hers["body"], letter["call"], b'"plain"', bare):
            await raw.many("UPDATE a2a_replies SET body = ? WHERE message = 'mine'", [(other,)])
            with pytest.raises(Corrupt, match="is not encrypted, or was moved"):
                await database.one("SELECT body FROM a2a_replies WHERE agent = ? AND message = ?", "a", "mine")
            with pytest.raises(Corrupt):
                await database.all("SELECT message, body FROM a2a_replies WHERE message IN (?, ?)", "mine", "hers")
        # the same message of another agent, also where the two have changed places
        keep = "INSERT INTO a2a_replies (agent, message, body, at) VALUES (?, ?, ?, 1)"
        take = "SELECT body FROM a2a_replies WHERE agent = ? AND message = ?"
        await database.many(keep, [("A", "B", b'"of A"'), ("C", "B", b'"of C"'), ("B", "A", b'"of B"')])
        of_a, own = await raw.one(take, "A", "B"), await database.one(take, "A", "B")
        assert of_a is not None
        assert own is not None
        assert bytes(own["body"]) == b'"of A"'
        await raw.many("UPDATE a2a_replies SET body = ? WHERE agent <> 'a'", [(of_a["body"],)])
        for agent, message in (("C", "B"), ("B", "A")):
            with pytest.raises(Corrupt, match="is not encrypted, or was moved"):
                await database.one(take, agent, message)
        with pytest.raises(Corrupt):
            await database.all("SELECT * FROM a2a_replies WHERE agent = ?", "C")
        # texts of kept bodies: in the clear, only looking encrypted, and encrypted without a place
        kept = "INSERT INTO call_bodies (id, at, kind, request, response) VALUES (?, 1, 'call', ?, ?)"
        await database.many(kept, [("1", Private("sent"), None)])
        row = await database.one("SELECT * FROM call_bodies WHERE id = ?", "1")
        assert row is not None
        assert (row["request"], row["response"]) == ("sent", None)
        for forged in ("sent by nobody", "a3e1:x", "a3e1:" + base64.b64encode(bare).decode()):
            await raw.many("UPDATE call_bodies SET response = ?", [(forged,)])
            with pytest.raises(Corrupt, match="is not encrypted, or was moved"):
                await database.one("SELECT id, request, response FROM call_bodies WHERE id IN (?)", "1")
        await raw.many("UPDATE dead_letters SET outcome = ?", [(letter["call"],)])
        with pytest.raises(Corrupt):
            await database.one("SELECT * FROM dead_letters WHERE id = ?", "hers")
    finally:
        await raw.aclose()
        await database.aclose()


async def test_a_message_that_was_put_beside_the_gateways_becomes_a_dead_letter(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", NEW.decode())
    opened = await open_stored(Settings(storage=Storage(url=lasting_url, seal="env:MASTER")))
    queue, raw = Queue(opened.database, "box"), await open_database(lasting_url)
    try:
        for number in range(3):
            await queue.put(b"%d" % number, id=f"m{number}")
        plain = b"forged"
        await raw.many(
            "UPDATE queue_messages SET body = ?, checksum = ? WHERE id = 'm1'", [(plain, checksum("m1", None, plain))]
        )
        leases = await queue.claim(3, wait=0)
        assert [(lease.id, lease.body) for lease in leases] == [("m0", b"0"), ("m2", b"2")]
        assert [letter.id for letter in await queue.dead()] == ["m1"]
    finally:
        await queue.aclose()
        await raw.aclose()
        await opened.database.aclose()


def test_the_command_line_takes_a_value_from_standard_input_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    from agent3.cli.vault import list_, remove, rotate, set_
    from agent3.terminal.options import DatabaseOptions

    options = DatabaseOptions(db=f"sqlite:///{tmp_path / 'c.db'}", json=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{VALUE}\n"))
    set_("pizza", options=options)
    list_(options=options)
    rotate(options=options)
    list_(options=options)
    remove("pizza", yes=True, options=options)
    shown = capsys.readouterr()
    assert VALUE not in shown.out + shown.err
    assert '"name": "pizza"' in shown.out
    assert '"formerKeys": 1' in shown.out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SetupError, match="No value"):
        set_("pizza", options=options)
    with pytest.raises(SetupError, match="on the command line") as refused:
        set_("pizza", VALUE, options=options)
    assert VALUE not in str(refused.value)


def test_a_backup_from_before_a_rotation_opens_until_the_former_keys_are_dropped(tmp_path: Path) -> None:
    from agent3.cli.vault import rotate
    from agent3.terminal.options import DatabaseOptions

    file, archive = tmp_path / "v.db", tmp_path / "v.tar"
    options = DatabaseOptions(db=f"sqlite:///{file}", json=True)

    async def with_vault(work: Callable[[Any], Awaitable[Any]]) -> Any:
        database, vault, _ = await _vault(tmp_path)
        try:
            return await work(vault)
        finally:
            await database.aclose()

    asyncio.run(with_vault(lambda vault: vault.set("one", VALUE)))
    back_up(file, None, archive)
    rotate(options=options)
    restore(archive, file, None)
    assert asyncio.run(with_vault(lambda vault: vault.get("vault:one"))).reveal() == VALUE
    rotate(drop_former=True, options=options)  # moves what was restored, then forgets the key that it was under
    assert asyncio.run(with_vault(lambda vault: vault.get("vault:one"))).reveal() == VALUE
    restore(archive, file, None)
    with pytest.raises(SetupError, match="cannot be opened"):
        asyncio.run(with_vault(lambda vault: vault.get("vault:one")))
    with pytest.raises(SetupError, match="no former master keys"):
        rotate(drop_former=True, options=options)


@pytest.mark.parametrize("words", [["client", "add", "shop"], ["login", "shop"], ["vault", "set", "shop"]])
def test_a_secret_on_the_command_line_is_not_shown_again(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from agent3.cli.main import app

    with pytest.raises(SetupError, match="command line") as refused:
        app([*words, VALUE], exit_on_error=False)
    shown = capsys.readouterr()
    assert VALUE not in str(refused.value) + shown.out + shown.err


def test_the_encrypted_database_has_every_method_of_the_port() -> None:
    from agent3.storage.at_rest import _Encrypted
    from agent3.storage.database import Database

    port = {name for name, found in vars(Database).items() if callable(found) and not name.startswith("_")}
    assert port <= set(vars(_Encrypted))
