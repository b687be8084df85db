"""Sessions at websites for people: listed and forgotten by the command line, and gone with their website."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent3.cli import main as cli
from agent3.protocols.nlweb.authoring.files import dump
from agent3.protocols.nlweb.healing import ElementKey, ElementStore, records
from agent3.protocols.nlweb.healing.fingerprints import Fingerprint
from agent3.protocols.nlweb.visit.secret_grants import scope_of
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.storage import Database
from tests.support.gateway import hosted
from tests.support.registration import add, remove
from tests.support.storage import using
from tests.support.visits import shop

STATE = {"cookies": [{"name": "id", "value": "x", "domain": "a", "path": "/", "expires": -1}], "origins": []}


async def keys() -> list[bytes]:
    return [b"0123456789abcdef"]


async def written(database: Database) -> None:
    sessions = Sessions(database, keys)
    for who, scope in (
        ("ann", "https://shop.example a"),
        ("bob", "https://shop.example b"),
        ("ann", "http://b.test a"),
    ):
        await sessions.save(who, scope, STATE)


def test_sessions_are_listed_and_forgotten_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/house.db"
    using(url, written)

    def sessions(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["agent3", "web", "sessions", *arguments, "--db", url])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())

    def listed(*arguments: str) -> list[tuple[str, str]]:
        code, out = sessions("list", *arguments, "--json")
        assert code == 0
        said: dict[str, Any] = json.loads(out)
        assert said["count"] == len(said["sessions"])
        return sorted((session["principal"], session["site"]) for session in said["sessions"])

    assert listed() == [("ann", "http://b.test"), ("ann", "https://shop.example"), ("bob", "https://shop.example")]
    assert listed("b.test") == [("ann", "http://b.test")]
    assert listed("https://b.test") == []
    assert listed("--principal", "bob") == [("bob", "https://shop.example")]
    code, said = sessions("forget")
    assert (code, "--everything" in said) == (2, True)
    assert sessions("forget", "shop.example", "--principal", "ann") == (0, "1 forgotten.\n")
    assert "https://shop.example  bob  used" in sessions("list")[1]
    assert json.loads(sessions("forget", "--everything", "--json")[1]) == {"forgotten": 2}
    assert sessions("list") == (0, "No sessions are stored.\n")


def test_a_website_that_is_removed_takes_along_what_was_kept_for_it(tmp_path: Path) -> None:
    one, two = shop("https://shop.example"), shop("https://shop.example")
    other = two.model_copy(update={"interface_id": "twin", "name": "Twin"})
    with hosted(tmp_path) as running:
        files = []
        for interface in (one, other):
            file = tmp_path / f"{interface.interface_id}.yaml"
            file.write_text(dump(interface))
            files.append(file)
            running.run(add(running.server, str(file)))
        database = running.server.database

        async def known() -> None:
            await Sessions(database, keys).save("ann", scope_of(one), STATE)
            for name in ("shop", "twin"):
                seen = records.remember(Fingerprint(role="button", tag="button", name="Buy"))
                await ElementStore(database).change(ElementKey(name, "buy", "#go"), seen)

        def left() -> tuple[int, list[str]]:
            return len(running.rows("web_sessions")), [row["interface"] for row in running.rows("web_elements")]

        running.run(known())
        running.run(remove(running.server, "shop"))
        assert left() == (1, ["twin"]), "the twin reaches the same: the session is its own too"
        files[1].write_text(dump(other.model_copy(update={"allowed_hosts": ["cdn.example"]})))
        running.run(add(running.server, str(files[1])))
        assert left() == (0, ["twin"]), "it reaches more now, and begins anew"
        running.run(remove(running.server, "twin"))
        assert left() == (0, [])
