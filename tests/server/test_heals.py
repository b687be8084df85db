"""Heals for people: listed, accepted and taken back, by the command line on the gateway's own database."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent3 import cli
from agent3.errors import NotFound
from agent3.nlweb.healing import Book, Heal, MemoryBook, StoredBook, Where
from agent3.nlweb.healing import heals as life
from agent3.nlweb.healing.prints import Print
from agent3.server.heals import Heals
from tests.support.storage import using

WHERE = Where("shop", "buy", "#go")
OLD = Print(role="button", tag="button", name="Buy")
HEAL = Heal(id="0a1b2c3d4e", selector="#new", print=OLD, before=OLD, score=0.91, margin=0.4)


async def written(book: Book) -> None:
    await book.change(WHERE, life.learnt(OLD))
    await book.change(WHERE, life.proposed(HEAL, 100.0))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["agent3", "web", "heals", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.requirement("RF-013-54")
def test_heals_are_listed_accepted_and_reverted_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/house.db"
    using(url, lambda database: written(StoredBook(database)))

    def heals(*arguments: str) -> Any:
        assert run(monkeypatch, *arguments, "--db", url, "--json") == 0
        return json.loads(capsys.readouterr().out)

    listed = heals("list", "shop", "--state", "proposed")
    assert [(one["id"], one["healed"], one["state"]) for one in listed["heals"]] == [(HEAL.id, "#new", "proposed")]
    (accepted,) = heals("accept", HEAL.id)["accepted"]
    assert (accepted["state"], accepted["by"].split(":")[0]) == ("promoted", "cli")
    (reverted,) = heals("revert", HEAL.id)["reverted"]
    assert [one["what"] for one in reverted["history"]] == ["proposed", "accepted", "reverted"]
    assert run(monkeypatch, "list", "--db", url) == 0
    assert "reverted  shop/buy: #go -> #new  (button 'Buy', score 0.91" in capsys.readouterr().out


def test_an_unknown_heal_is_said_to_be_unknown_and_no_other_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def story() -> None:
        book = MemoryBook()
        await written(book)
        with pytest.raises(NotFound, match="no heal 'nobody'"):
            await Heals(book).accept([HEAL.id, "nobody"], "ann")
        assert (await book.get(WHERE)).heals[0].state == "proposed"

    asyncio.run(story())
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "revert", "nobody", "--db", f"sqlite:///{tmp_path}/house.db") == 4
    assert "agent3 web heals list" in capsys.readouterr().err
