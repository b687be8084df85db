"""What is held of a principal is given out whole and erased whole, and the audit chain holds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.audit import verify_database
from agent3.calls.personal_data import PersonalData
from agent3.errors import SetupError, Unavailable
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.own_keys import is_signed_with
from agent3.model import LOCAL, Call, Price, Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.security.access import OPERATE
from agent3.server.build import Server, build
from agent3.server.demo import agents
from agent3.settings import ApprovalRule, Calls, Client, Settings, Storage
from agent3.storage.audit import ACTOR
from tests.support.gateway import hosted

pytestmark = pytest.mark.anyio

ANNA, BERT = (Caller(Principal(name, "client"), "rest") for name in ("anna", "bert"))


@asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[Server]:
    shop = LocalAgent("shop")

    @shop.capability
    def buy(what: str) -> str:
        return what * 20_000

    @shop.capability
    def lose(what: str) -> str:
        raise Unavailable("away")

    settings = Settings(storage=Storage(url=f"sqlite:///{folder / 'p.db'}"), calls=Calls(bodies="full"))
    async with build(settings, [shop]) as server:
        yield server


async def _use(server: Server) -> None:
    for who, word in ((ANNA, "Apfelstrudel"), (BERT, "Birnenbrot")):
        for capability in ("buy", "lose"):
            request = CallRequest(agent="shop", capability=capability, input={"what": word}, key=f"k-{capability}")
            await server.gateway.call(who, request)
        ACTOR.set(who.principal.id)
        await server.core.parts.prices.set("shop", "buy", Price(call=0.001))
    await server.core.parts.bodies.aclose()
    await server.core.ledger.flush()


async def _export(server: Server, principal: str) -> list[dict[str, Any]]:
    data = PersonalData(server.database, server.core.artifacts.blobs, server.env)
    return [json.loads(line) async for line in data.export(principal)]


async def test_everything_that_is_held_is_given_out_and_nothing_of_others(tmp_path: Path) -> None:
    async with _gateway(tmp_path) as server:
        await _use(server)
        head, *lines = await _export(server, "anna")
        assert head["principal"] == "anna"
        kinds = {line["kind"] for line in lines}
        assert {"calls", "bodies", "jobs", "dead letters", "artifacts"} <= kinds
        text = json.dumps(lines)
        assert "Apfelstrudel" in text
        assert "Birnenbrot" not in text
        assert "bert" not in text


async def test_what_goes_while_it_is_given_out_hides_nothing_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.calls.personal_data._PAGE", 2)
    async with _gateway(tmp_path) as server:
        rows = [(f"f{number}", 1.0, "shop", "anna", 5) for number in range(9)]
        await server.database.many(
            "INSERT INTO feedback (id, at, agent, principal, rating) VALUES (?, ?, ?, ?, ?)", rows
        )
        data, seen = PersonalData(server.database, server.core.artifacts.blobs, server.env), list[str]()
        async for line in data.export("anna"):
            found = json.loads(line)
            if found.get("kind") == "ratings":
                seen.append(found["data"]["id"])
                await server.database.many("DELETE FROM feedback WHERE id = ?", [(seen[-1],)])
        assert seen == [row[0] for row in rows]


async def test_bytes_that_another_has_just_put_outlive_the_erasure_of_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.calls.personal_data._RECENT", 0.3)
    async with _gateway(tmp_path) as server:
        artifacts = server.core.artifacts
        call = Call(id="c1", principal=ANNA.principal, agent="shop", capability="buy")
        await artifacts.store(call, b"the same" * 1_000, None, "text/plain")
        data, real = PersonalData(server.database, artifacts.blobs, server.env), artifacts.blobs.discard
        kept: list[str] = []

        async def put_just_before(sha256: str, unused: float) -> bool:
            if not kept:  # its row comes a moment later, as it always does
                await artifacts.blobs.put(b"the same" * 1_000)
                gone = await real(sha256, unused)
                other = replace(call, id="c2", principal=BERT.principal)
                kept.append(await artifacts.store(other, b"the same" * 1_000, None, "text/plain"))
                return gone
            return await real(sha256, unused)

        monkeypatch.setattr(artifacts.blobs, "discard", put_just_before)
        monkeypatch.setattr(artifacts.blobs, "delete", None)
        await data.erase("anna")
        found = await artifacts.get("bert", kept[0])
        assert found.body == b"the same" * 1_000


async def test_erasing_leaves_nothing_of_one_all_of_the_others_and_a_chain_that_holds(tmp_path: Path) -> None:
    async with _gateway(tmp_path) as server:
        await _use(server)
        key = await server.services.own_keys.key("audit")

        async def verify() -> dict[str, Any]:
            return await verify_database(server.database, lambda _, made, text: is_signed_with(key.jwk(), made, text))

        before = await verify()
        of_bert = await _export(server, "bert")
        data = PersonalData(server.database, server.core.artifacts.blobs, server.env)
        ACTOR.set("operator")
        gone = await data.erase("anna", key)
        assert gone["calls"] == 2
        assert gone["artifacts"] == gone["dead letters"] == 1
        assert (await _export(server, "anna"))[1:] == []
        assert (await _export(server, "bert"))[1:] == of_bert[1:]
        after = await verify()
        assert after["ok"]
        assert after["removed"] - before["removed"] == 2
        # Again is nothing, and the chain goes on.
        assert sum((await data.erase("anna", key)).values()) == 0
        await server.gateway.call(ANNA, CallRequest(agent="shop", capability="lose", input={"what": "x"}))
        await server.core.ledger.flush()
        assert (await verify())["rows"] == after["rows"] + 1
        await data.erase("anna", key)


async def test_what_waits_for_approval_is_given_out_and_erased_and_who_decided_is_forgotten() -> None:
    bank = LocalAgent("bank")

    @bank.capability
    def pay(amount: int) -> str:
        return f"paid {amount}"

    why = ApprovalRule(agent="bank", approvers=("bert", "anna"))
    async with build(Settings(storage=Storage(url="sqlite://"), approvals=(why,)), [bank]) as server:
        data = PersonalData(server.database, server.core.artifacts.blobs, server.env)
        for who in (ANNA, BERT):
            await server.gateway.call(who, CallRequest(agent="bank", capability="pay", input={"amount": 5}))
        # Whoever is at the machine sees what waits, and decides it only where a rule names them.
        seen = (await server.gateway.approvals(Caller(LOCAL, "cli")))["approvals"]
        assert [(one["who"], one["youMayDecide"]) for one in seen] == [("anna", False), ("bert", False)]
        (of_bert,) = (one for one in (await server.gateway.approvals(ANNA))["approvals"] if one["who"] == "bert")
        await server.gateway.decide(ANNA, of_bert["id"], approve=False, reason="I know him")
        while (await server.database.one("SELECT id FROM approvals WHERE settled IS NOT NULL")) is None:
            await server.core.parts.approvals.settle()
        assert "approvals asked for" in {line.get("kind") for line in await _export(server, "anna")}
        await data.erase("anna")
        (left,) = await server.database.all("SELECT * FROM approvals")
        assert (left["owner"], left["status"]) == ("bert", "denied")
        assert "anna" not in (left["decided_by"] or "")
        assert not left["reason"]


KEYS = {"anna": "the-key-of-anna-1", "operator": "the-key-of-the-operator"}


def test_the_rest_door_gives_everybody_their_own_and_operators_all(tmp_path: Path) -> None:
    clients = tuple(
        Client(name, f"sha256:{sha256(key.encode()).hexdigest()}", (OPERATE,) if name == "operator" else ())
        for name, key in KEYS.items()
    )
    with hosted(tmp_path, agents(), Settings(clients=clients), Metrics()) as house:
        anna, operator = house.as_(KEYS["anna"]), house.as_(KEYS["operator"])
        anna.call("echo", "Apfelstrudel")
        house.rows("calls")
        for door in (anna, operator):
            found = door.get("/v1/data/anna")
            assert found.status == 200
            kinds = [json.loads(line).get("kind") for line in found.raw.splitlines()]
            assert "calls" in kinds
        assert anna.get("/v1/data/operator").status == 403
        assert anna.ask("DELETE", "/v1/data/anna").status == 403
        erased = operator.ask("DELETE", "/v1/data/anna")
        assert (erased.status, erased.json["erased"]["calls"]) == (200, 1)
        assert '"kind":"calls"' not in operator.get("/v1/data/anna").raw.decode()
        # Asking for it is no call, so nothing new is held.
        assert operator.ask("DELETE", "/v1/data/nobody").json["erased"]["calls"] == 0


def test_the_commands_write_a_file_for_its_owner_alone_and_erase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    from agent3.cli.personal_data import erase, export
    from agent3.terminal.options import DatabaseOptions

    async def use() -> None:
        async with _gateway(tmp_path) as server:
            await _use(server)

    asyncio.run(use())
    options = DatabaseOptions(db=f"sqlite:///{tmp_path / 'p.db'}", json=True)
    export("anna", tmp_path / "out.jsonl", options=options)
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o077 == 0
    assert "Apfelstrudel" in (tmp_path / "out.jsonl").read_text()
    erase("anna", yes=True, options=options)
    assert json.loads(capsys.readouterr().out)["erased"]["calls"] == 2
    with pytest.raises(SetupError, match="--yes"):
        erase("anna", options=options)
