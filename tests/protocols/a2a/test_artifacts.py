"""Artifacts of agents: made, shared, and for everybody else not there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3 import AgentCard, AgentExecutor, MessageType
from agent3.calls.artifact_sharing import Sharing
from agent3.calls.artifacts import ArtifactStore
from agent3.env import SeededEnv
from agent3.errors import NotFound, ValidationError
from agent3.model import Call, Principal
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage
from agent3.storage import Blobs, open_database
from tests.support.home import run


@pytest.fixture
def agents() -> Iterator[tuple[AgentExecutor, AgentExecutor, AgentExecutor]]:
    made = [
        AgentExecutor(AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name)) for name in ("hotel", "flight", "eve")
    ]
    yield made[0], made[1], made[2]
    for agent in made:
        agent.close()


Agents = tuple[AgentExecutor, AgentExecutor, AgentExecutor]


@pytest.mark.requirement("RF-013-24")
@pytest.mark.parametrize(
    ("content", "body", "media_type"),
    [
        (b"\x89PNG", b"\x89PNG", "application/octet-stream"),
        ("für dich", "für dich".encode(), "text/plain; charset=utf-8"),
        ({"rooms": [1, 2]}, b'{"rooms":[1,2]}', "application/json"),
    ],
)
def test_an_agent_creates_an_artifact_and_shares_it_in_a_message(
    agents: Agents, content: object, body: bytes, media_type: str
) -> None:
    hotel, flight, _ = agents
    made = hotel.create_artifact(content, name="offer")
    assert (made.size, made.owner, made.media_type) == (len(body), hotel.card.agent_id, media_type)
    hotel.share_artifact(made.artifact_id, flight.card.agent_id)
    read: list[bytes] = []
    flight.register_capability(
        "take", lambda artifact: read.append(flight.artifacts.read(artifact["artifact_id"]).body)
    )
    sent = hotel.send_message(flight.card.agent_id, MessageType.REQUEST, "take", made.in_message())
    assert hotel.wait_for_response(sent, 60).content["status"] == "success"
    assert read == [body]


@pytest.mark.requirement("RF-013-25")
def test_a_stranger_is_told_that_it_is_not_there(agents: Agents) -> None:
    hotel, flight, eve = agents
    made = hotel.create_artifact("secret")
    for stranger in (flight, eve):
        with pytest.raises(NotFound, match="does not exist"):
            stranger.artifacts.read(made.artifact_id)
    hotel.share_artifact(made.artifact_id, flight.card.agent_id)
    assert flight.artifacts.read(made.artifact_id).body == b"secret"
    with pytest.raises(NotFound):
        eve.artifacts.read(made.artifact_id)
    # Reading is not owning: only the owner shares, links and takes back.
    for forbidden in (
        lambda: flight.artifacts.share(made.artifact_id, eve.card.agent_id),
        lambda: flight.artifacts.link(made.artifact_id),
        lambda: flight.artifacts.unshare(made.artifact_id),
    ):
        with pytest.raises(NotFound):
            forbidden()
    hotel.artifacts.unshare(made.artifact_id, flight.card.agent_id)
    with pytest.raises(NotFound):
        flight.artifacts.read(made.artifact_id)
    assert hotel.artifacts.read(made.artifact_id).body == b"secret"


@pytest.mark.requirement("RF-013-25")
def test_a_signed_link_opens_it_for_anybody_until_it_is_taken_back(agents: Agents) -> None:
    hotel, _, eve = agents
    made, other = hotel.create_artifact("secret"), hotel.create_artifact("another")
    link = hotel.artifacts.link(made.artifact_id, seconds=60)
    assert eve.artifacts.open(link).body == b"secret"
    later = link.replace("expires=", "expires=9")
    elsewhere = link.replace(made.artifact_id, other.artifact_id)
    hotel.artifacts.link(other.artifact_id)
    for changed in (link[:-1], f"{link}A", later, elsewhere, link.partition("?")[0], "/v1/artifacts/x?expires=x"):
        with pytest.raises(NotFound):
            eve.artifacts.open(changed)
    hotel.artifacts.unshare(made.artifact_id)
    with pytest.raises(NotFound):
        eve.artifacts.open(link)


def test_what_cannot_be_is_refused(agents: Agents) -> None:
    hotel, flight, _ = agents
    made = hotel.create_artifact("x")
    with pytest.raises(ValidationError, match="bytes, text or JSON"):
        hotel.create_artifact(object())
    with pytest.raises(ValidationError, match="at least one agent"):
        hotel.share_artifact(made.artifact_id)
    with pytest.raises(ValidationError, match="cannot be shared for"):
        hotel.artifacts.link(made.artifact_id, seconds=0)
    with pytest.raises(ValidationError, match="cannot be shared for"):
        hotel.share_artifact(made.artifact_id, flight.card.agent_id, seconds=-1)


@pytest.mark.requirement("RF-013-25")
@pytest.mark.parametrize("place", ["memory", "file"])
def test_shares_and_links_end_in_their_time_and_with_their_artifact(place: str, tmp_path: Path) -> None:
    async def story() -> None:
        env = SeededEnv()
        database = await open_database(f"sqlite:///{tmp_path}/a.db" if place == "file" else ":memory:")
        store, sharing = ArtifactStore(database, Blobs(None), env, keep_days=1.0), Sharing(database, env)
        try:
            owner = Call(id=env.id(), principal=Principal("hotel"), agent="", capability="")
            artifact = await store.store(owner, b"x", None, "text/plain")
            await sharing.share("hotel", artifact, ["flight"], 100)
            await sharing.share("hotel", artifact, ["agency"])
            link = await sharing.link("hotel", artifact, 100)
            expires, signature = (pair.partition("=")[2] for pair in link.partition("?")[2].split("&"))
            assert await sharing.owner(artifact, int(expires), signature) == "hotel"
            env.advance(101)
            with pytest.raises(NotFound):
                await store.get("flight", artifact)
            with pytest.raises(NotFound):
                await sharing.owner(artifact, int(expires), signature)
            assert (await store.get("agency", artifact)).body == b"x"
            env.advance(86_400)
            with pytest.raises(NotFound):
                await store.get("agency", artifact)
            with pytest.raises(NotFound):
                await sharing.link("hotel", artifact, 100)
            other = await store.store(owner, b"y", None, "text/plain")
            await sharing.share("hotel", other, ["x"])
            await sharing.link("hotel", other, 9)
            assert [row["reader"] for row in await database.all("SELECT reader FROM artifact_readers")] == ["x"]
            assert len(await database.all("SELECT artifact FROM artifact_links")) == 1
        finally:
            await database.aclose()

    run(story())


@pytest.mark.requirement("RF-013-24")
def test_with_a_database_an_artifact_is_there_in_the_next_process(tmp_path: Path) -> None:
    settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path}/house.db"))
    link = made = None
    for number in range(2):
        core = Standalone(settings)
        with AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"), core=core) as hotel:
            if number == 0:
                made = hotel.create_artifact("kept")
                link = hotel.artifacts.link(made.artifact_id)
            else:
                assert made is not None
                assert link is not None
                assert hotel.artifacts.read(made.artifact_id).body == hotel.artifacts.open(link).body == b"kept"
        core.close()
