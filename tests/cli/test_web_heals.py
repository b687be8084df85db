"""Heals for people: listed, accepted and taken back, by the command line on the gateway's own database."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent3.calls.outcomes import HEALS, response
from agent3.cli import main as cli
from agent3.definitions import NLWebInterface
from agent3.errors import NotFound
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Done, Outcome
from agent3.protocols.nlweb.connector import agent_of
from agent3.protocols.nlweb.healing import ElementKey, ElementStore, Heal, MemoryStore, Store, records
from agent3.protocols.nlweb.healing.fingerprints import Fingerprint
from agent3.protocols.nlweb.healing.review import Heals
from agent3.server.build import build
from agent3.settings import Settings, Storage
from tests.support.sites import Site
from tests.support.storage import using

WHERE = ElementKey("shop", "buy", "#go")
OLD = Fingerprint(role="button", tag="button", name="Buy")
HEAL = Heal(id="0a1b2c3d4e", selector="#new", print=OLD, before=OLD, score=0.91, margin=0.4)


async def written(store: Store) -> None:
    await store.change(WHERE, records.remember(OLD))
    await store.change(WHERE, records.propose(HEAL, 100.0))


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
    using(url, lambda database: written(ElementStore(database)))

    def heals(*arguments: str) -> Any:
        assert run(monkeypatch, *arguments, "--db", url, "--json") == 0
        return json.loads(capsys.readouterr().out)

    listed = heals("list", "shop", "--state", "proposed")
    assert [(heal["id"], heal["healed"], heal["state"]) for heal in listed["heals"]] == [(HEAL.id, "#new", "proposed")]
    (accepted,) = heals("accept", HEAL.id)["accepted"]
    assert (accepted["state"], accepted["by"].split(":")[0]) == ("promoted", "cli")
    (reverted,) = heals("revert", HEAL.id)["reverted"]
    assert [event["what"] for event in reverted["history"]] == ["proposed", "accepted", "reverted"]
    assert run(monkeypatch, "list", "--db", url) == 0
    assert "reverted  shop/buy: #go -> #new  (button 'Buy', score 0.91" in capsys.readouterr().out


def test_an_unknown_heal_is_said_to_be_unknown_and_no_other_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def story() -> None:
        store = MemoryStore()
        await written(store)
        with pytest.raises(NotFound, match="Unknown heal 'nobody'"):
            await Heals(store).accept([HEAL.id, "nobody"], "ann")
        assert (await store.get(WHERE)).heals[0].state == "proposed"

    asyncio.run(story())
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "revert", "nobody", "--db", f"sqlite:///{tmp_path}/house.db") == 4
    assert "agent3 web heals list" in capsys.readouterr().err


# A gateway that heals


BEFORE = """<!doctype html><main><h1>Mugs of clay</h1>
<form action='/found'><input name='what'><button id='go'>Search mugs</button></form>"""
AFTER = BEFORE.replace("id='go'", "class='wide'")
SHOP = {
    "interface_id": "Mugs",
    "name": "Mugs",
    "actions": {
        "search": [
            {"action_type": "navigate", "value": "/"},
            {"action_type": "click", "selector": "#go", "timeout": 30},
            {"action_type": "extract", "selector": "b"},
        ]
    },
    "info": {"search": {"hints": {"read_only": True}}},
}


@pytest.mark.browser
@pytest.mark.requirement("RF-013-54")
def test_a_heal_is_seen_in_the_answer_the_ledger_and_the_agent_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/house.db"
    me = Caller(LOCAL, "library")

    async def story(site: Site) -> tuple[Outcome, dict[str, Any], Any]:
        async with build(Settings(storage=Storage(url=url))) as server:
            await server.directory.add(agent_of(NLWebInterface.from_document({**SHOP, "base_url": site.url})))
            request = CallRequest(agent="mugs", capability="search", input={})
            await server.gateway.call(me, request)
            assert "heals" not in await server.gateway.select(me, "mugs")
            site.pages["/"] = AFTER
            outcome = await server.gateway.call(me, request)
            row = await server.database.one("SELECT message FROM calls ORDER BY at DESC LIMIT 1")
            assert row is not None
            return outcome, await server.gateway.select(me, "mugs"), row["message"]

    with Site({"/": BEFORE, "/found": "<b>Blue mug</b>"}) as site:
        outcome, selected, message = asyncio.run(story(site))
    assert isinstance(outcome, Done), outcome
    (heal,) = outcome.meta[HEALS]
    assert (heal["selector"], heal["healed"], heal["state"]) == ("#go", 'role=button[name="Search mugs"s]', "proposed")
    assert response(outcome, 1.0)["metadata"]["heals"] == [heal]
    assert message.startswith('healed: #go -> role=button[name="Search mugs"s] (')
    assert [(shown["id"], shown["action"], shown["wins"]) for shown in selected["heals"]] == [(heal["id"], "search", 1)]
    monkeypatch.setattr(sys, "argv", ["agent3", "show", "mugs", "--db", url])
    with suppress(SystemExit):
        cli.main()
    assert f"{heal['id']}  search: #go -> role=button" in capsys.readouterr().out
