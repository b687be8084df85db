"""What an agent has without being told: signed cards, keys that everybody may read, push notifications that hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import create_signature_verifier
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped, unused-ignore]
from jwt.api_jwk import PyJWK

import agent3.a2a
from agent3 import AgentCapability, AgentCard, AgentExecutor
from agent3.errors import Unauthenticated
from agent3.model import Principal
from agent3.protocols.a2a.cards.signatures import CardKey
from agent3.protocols.a2a.door.push import TOKEN, verify
from agent3.protocols.a2a.peer.client import SyncA2AClient
from agent3.protocols.a2a.wire.types import Push, State, StatusUpdate, Task
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Callbacks, Server, Settings, Storage
from tests.support.a2a_toy import codes, message, rpc, toy, unary
from tests.support.gateway import Door, hosted
from tests.support.postgres import new_database_url
from tests.support.receiver import Receiver, receiving

KEYS = "/.well-known/jwks.json"
CARD = "/.well-known/agent-card.json"
OPEN = Callbacks(allow_loopback=True, schemes=("http", "https"), first_delay=0.01, longest_delay=0.05)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


def whisper(text: str) -> str:
    """Say it softly."""
    return text.lower()


def core_on(folder: Path, url: str = "") -> Standalone:
    return Standalone(Settings(storage=Storage(url=url or f"sqlite:///{folder}/house.db"), callbacks=OPEN))


def verified_by_the_sdk(door: Door, path: str = CARD) -> str:
    """Have the official SDK verify a card with the key at the address that its signature names; the key's id."""
    asked: list[tuple[str | None, str | None]] = []

    def provide(kid: str | None, jku: str | None) -> PyJWK:
        asked.append((kid, jku))
        assert jku is not None
        assert jku.startswith(door.url)
        shown = {key["kid"]: key for key in door.get(jku.removeprefix(door.url)).json["keys"]}
        return PyJWK(shown[kid or ""])

    document = door.get(path).json
    create_signature_verifier(provide, ["EdDSA"])(ParseDict(document, pb.AgentCard(), ignore_unknown_fields=True))
    return str(asked[0][0])


def test_the_cards_of_a_gateway_are_signed_and_its_key_outlives_it(tmp_path: Path) -> None:
    kids = []
    for _ in range(2):
        with hosted(tmp_path, [toy()]) as gateway:
            kids += [verified_by_the_sdk(gateway), verified_by_the_sdk(gateway, f"/agents/toy/a2a{CARD}")]
            first, again = (gateway.get(CARD) for _ in range(2))
            assert first.headers["etag"] == again.headers["etag"]
            with SyncA2AClient.connect(f"{gateway.url}/agents/toy/a2a") as client:
                assert client.signature()["status"] == "verified"
            assert "signatures" not in gateway.get(f"{CARD}?format=0.3").json
    assert len(set(kids)) == 1
    seal = tmp_path / "hosted.db.seal"
    assert seal.stat().st_mode & 0o777 == 0o600
    kept = (tmp_path / "hosted.db").read_bytes()
    assert b"PRIVATE KEY" not in kept


def test_signing_may_be_left_out_or_done_with_a_key_of_ones_own(tmp_path: Path, monkeypatch: Any) -> None:
    with hosted(tmp_path, [toy()], Settings(server=Server(sign_cards=False))) as plain:
        assert "signatures" not in plain.get(CARD).json
        assert len(plain.get(KEYS).json["keys"]) == 1  # of what is pushed
    own = CardKey.generate("ES256")
    monkeypatch.setenv("OUR_CARD_KEY", own.pem())
    with hosted(tmp_path, [toy()], Settings(server=Server(card_key="env:OUR_CARD_KEY"))) as signed:
        assert own.key_id in {key["kid"] for key in signed.get(KEYS).json["keys"]}
        assert "d" not in str([sorted(key) for key in signed.get(KEYS).json["keys"]]).split("'")


@pytest.mark.postgres
def test_gateways_on_one_postgres_share_the_key_where_it_can_be_sealed(tmp_path: Path, monkeypatch: Any) -> None:
    url = new_database_url()
    with hosted(tmp_path, [toy()], Settings(storage=Storage(url=url))) as bare:
        assert "signatures" not in bare.get(CARD).json
        assert bare.get(KEYS).status == 404
        assert bare.get(CARD).json["capabilities"]["pushNotifications"] is False
    monkeypatch.setenv("THE_SEAL", "the-secret-of-all-gateways")
    settings = Settings(storage=Storage(url=url, seal="env:THE_SEAL"))
    with hosted(tmp_path, [toy()], settings) as first, hosted(tmp_path, [toy("other")], settings) as second:
        assert verified_by_the_sdk(first) == verified_by_the_sdk(second)


def test_an_agent_of_ones_own_signs_where_its_key_is_kept(tmp_path: Path) -> None:
    kids = []
    for _ in range(2):
        core = core_on(tmp_path)
        with agent3.a2a.listening(shout, core=core) as url:
            kids.append(verified_by_the_sdk(Door(url)))
        core.close()
    assert kids[0] == kids[1]
    memory = Standalone()
    with agent3.a2a.listening(shout, core=memory) as url:  # a key that ends with the process would be worth nothing
        assert "signatures" not in Door(url).get(CARD).json
    own = CardKey.generate()
    with agent3.a2a.listening(shout, core=memory, sign=own) as url:
        assert verified_by_the_sdk(Door(url)) == own.key_id
    memory.close()


def test_a_key_that_cannot_be_opened_leaves_cards_unsigned(tmp_path: Path) -> None:
    with hosted(tmp_path, [toy()]) as gateway:
        verified_by_the_sdk(gateway)
    (tmp_path / "hosted.db.seal").write_text(os.urandom(32).hex())
    with hosted(tmp_path, [toy()]) as gateway:
        assert "signatures" not in gateway.get(CARD).json
        assert unary(rpc(gateway, "SendMessage", {"message": message("hi", "toy/echo")}, "/a2a"))["task"]


# Push


@pytest.mark.requirement("SP-05", "SP-06", "SL-13")
@pytest.mark.parametrize("durable", [True, False])
def test_an_agent_of_ones_own_pushes_and_its_receiver_verifies_by_its_keys(
    tmp_path: Path, receiver: Receiver, durable: bool
) -> None:
    core = core_on(tmp_path) if durable else Standalone(Settings(callbacks=OPEN))
    with agent3.a2a.listening(shout, core=core) as url, SyncA2AClient.connect(url) as client:
        assert client.card.features.push_notifications
        task = client.send("hi", push=Push(url=receiver.url, token="of-this-task"))
        came = receiver.wait(3, 60)
        keys = Door(url).get(KEYS).json["keys"]
    core.close()
    assert isinstance(task, Task)
    last = came[-1]
    told = verify(last.headers, last.body, keys=keys, token="of-this-task").item
    assert isinstance(told, StatusUpdate)
    assert (told.task_id, told.status.state) == (task.id, State.COMPLETED)
    assert last.headers[TOKEN.lower()] == "of-this-task"
    with pytest.raises(Unauthenticated):
        verify(last.headers, last.body.replace(b"COMPLETED", b"REJECTED"), keys=keys)
    with pytest.raises(Unauthenticated):
        verify(last.headers, last.body, keys=[CardKey.generate().jwk()])
    with pytest.raises(Unauthenticated):
        verify(last.headers, last.body, keys=keys, now=1.0)
    if durable:
        assert b"of-this-task" not in (tmp_path / "house.db").read_bytes()


@pytest.mark.requirement("SP-06")
@pytest.mark.parametrize(
    "url",
    ["http://hook.example/", "https://127.0.0.1/", "https://169.254.169.254/latest", "https://[::1]:9/", "file:///x"],
)
def test_a_push_goes_to_no_place_inside(url: str) -> None:
    core = Standalone()
    with agent3.a2a.listening(shout, core=core) as address:
        config = {"pushNotificationConfig": {"url": url}}
        refused = rpc(Door(address), "SendMessage", {"message": message("hi"), "configuration": _v10(config)})
        assert codes(refused)[1] in (-32602, -32052, -32603), refused.json
        assert unary(rpc(Door(address), "ListTasks", {}))["tasks"] == []
    core.close()


def _v10(config: dict[str, Any]) -> dict[str, Any]:
    return {"taskPushNotificationConfig": config["pushNotificationConfig"]}


# Cards for those who show who they are


def test_who_shows_who_it_is_gets_the_card_that_the_author_gives_it() -> None:
    def who(scope: Any) -> Principal:
        key = dict(scope["headers"]).get(b"authorization")
        if key is None:
            raise Unauthenticated("Send a key.")
        return Principal(key.decode().removeprefix("Bearer "), "client")

    def for_ones_own(principal: Principal) -> AgentCard:
        named = [AgentCapability(name="whisper", description=f"For {principal.id} alone")]
        return hotel.card.model_copy(update={"capabilities": named})

    core = Standalone()
    public = AgentCapability(name="shout", description="Say it loud")
    hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel", capabilities=[public]), core=core)
    hotel.register_capability("shout", shout)
    hotel.register_capability("whisper", whisper)
    with agent3.a2a.listening(hotel, principal=who, extended=for_ones_own) as url:
        door = Door(url)
        card = door.get(CARD).json
        assert card["capabilities"]["extendedAgentCard"] is True
        assert [skill["name"] for skill in card["skills"]] == ["shout"]
        shown = unary(rpc(door.as_("ada"), "GetExtendedAgentCard", {}))
        assert {skill["name"]: skill["description"] for skill in shown["skills"]}["whisper"] == "For ada alone"
        assert len(shown["skills"]) == 2
        assert rpc(door, "GetExtendedAgentCard", {}).status == 401
    with agent3.a2a.listening(hotel) as url:
        assert Door(url).get(CARD).json["capabilities"].get("extendedAgentCard", False) is False
    hotel.close()
    core.close()


def test_an_error_or_a_question_names_the_skills_that_the_caller_may_see_and_no_others() -> None:
    def who(scope: Any) -> Principal:
        key = dict(scope["headers"]).get(b"authorization", b"Bearer nobody")
        return Principal(key.decode().removeprefix("Bearer "), "client")

    def for_ones_own(principal: Principal) -> AgentCard:
        named = [AgentCapability(name="whisper", description="Softly")] if principal.id == "ada" else []
        return hotel.card.model_copy(update={"capabilities": [*hotel.card.capabilities, *named]})

    core = Standalone()
    public = [AgentCapability(name=name, description="For all") for name in ("shout", "cry")]
    hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel", capabilities=public), core=core)
    for name in ("shout", "cry", "whisper", "secret"):
        hotel.register_capability(name, whisper if name in ("whisper", "secret") else shout)
    with agent3.a2a.listening(hotel, principal=who, extended=for_ones_own) as url:
        ada, bob = Door(url).as_("ada"), Door(url).as_("bob")

        def told(door: Door, skill: str | None) -> str:
            body = rpc(door, "SendMessage", {"message": message("zzz", skill)}).json
            return str(body["result"]["task"]["status"] if skill is None else body["error"]["message"])

        for skill in (None, "nothing", "secre"):
            assert "whisper" in told(ada, skill)
            assert "whisper" not in told(bob, skill)
            assert "secret" not in told(ada, skill) + told(bob, skill)
            assert "shout" in told(bob, skill)
        named = unary(rpc(ada, "GetExtendedAgentCard", {}))["skills"]
        assert {skill["name"] for skill in named} == {"shout", "cry", "whisper"}
        assert unary(rpc(bob, "SendMessage", {"message": message("HI", "whisper")}))["task"]["artifacts"]
    hotel.close()
    core.close()


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256"])
def test_a_card_that_did_not_change_has_the_same_tag_whoever_serves_it(algorithm: Any) -> None:
    key = CardKey.generate(algorithm).pem()
    tags: set[str] = set()
    for _ in range(2):  # as if by two processes with one key
        core = Standalone()
        with agent3.a2a.listening(shout, port=0, core=core, sign=CardKey(key), address="https://shout.example") as url:
            first, again = Door(url).get(CARD), Door(url).get(CARD)
            assert first.raw == again.raw
            assert first.json["signatures"]
            assert Door(url).get(CARD, if_none_match=first.headers["etag"]).status == 304
            tags.add(first.headers["etag"])
        core.close()
    assert len(tags) == 1
    core = Standalone()
    other = CardKey.generate(algorithm)
    with agent3.a2a.listening(shout, core=core, sign=other, address="https://shout.example") as url:
        assert Door(url).get(CARD).headers["etag"] not in tags  # another signer is another card
    core.close()
