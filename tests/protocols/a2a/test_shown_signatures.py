"""Whether a card is signed, and whether the signature holds, is seen by whoever chooses an agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent3.a2a import listening
from agent3.gateway.gateway import Caller
from agent3.model import LOCAL, Agent
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.functions.standalone import Standalone
from agent3.server.build import build
from agent3.settings import Settings, Storage
from tests.support.a2a_toy import toy
from tests.support.gateway import run_agent3
from tests.support.registration import add

WORDS = {
    "verified": "card signed and verified, key ",
    "unverified": "card signed, but not verified: its keys are at another host",
    "invalid": "card with an INVALID signature: it was changed",
    "unsigned": "card not signed",
    "given": "card given by the operator",
}


@pytest.mark.parametrize("status", list(WORDS))
def test_select_and_show_say_whether_a_card_is_signed_and_verified(tmp_path: Path, status: str) -> None:
    more: dict[str, dict[str, Any]] = {
        "verified": {"keys": ["k" * 43]},
        "unverified": {"why": "its keys are at another host"},
        "invalid": {"why": "it was changed"},
    }
    found = {"status": status, **more.get(status, {})}

    async def story() -> None:
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'agent3.db'}"))
        async with build(settings, take_over=False) as server:
            await server.directory.add(Agent(id="remote", name="Remote", source="x", meta={"signature": found}))
            await server.directory.add(Agent(id="plain", name="Plain", source="y"))

    asyncio.run(asyncio.wait_for(story(), 60))
    shown = run_agent3(tmp_path, "show", "remote")
    assert WORDS[status] in shown.stdout, shown.stderr
    assert json.loads(run_agent3(tmp_path, "show", "remote", "--json").stdout)["signature"] == found
    assert "signature" not in json.loads(run_agent3(tmp_path, "show", "plain", "--json").stdout)


def test_an_agent_that_signs_its_card_is_shown_as_verified() -> None:
    async def story() -> None:
        async with build(Settings(storage=Storage(url=":memory:"))) as server:
            agent = await add(server, url)
            selected = await server.gateway.select(Caller(LOCAL), agent.id)
            assert selected["signature"]["status"] == "verified"
            assert len(selected["signature"]["keys"]) == 1

    core = Standalone()
    with listening(toy(), core=core, sign=CardKey.generate()) as url:
        asyncio.run(asyncio.wait_for(story(), 60))
    core.close()
