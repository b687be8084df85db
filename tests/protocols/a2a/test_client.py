"""``A2AClient`` against agents of the official SDK in both of its generations and bindings, one of 0.1, and our own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from agent3.errors import (
    JobNotFound,
    MalformedResponse,
    SecurityError,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.identity.secrets import Secret
from agent3.protocols.a2a.agents.serving import listening
from agent3.protocols.a2a.peer.client import A2AClient, SyncA2AClient
from agent3.protocols.a2a.wire.errors import TaskNotCancelable
from agent3.protocols.a2a.wire.types import ArtifactUpdate, Message, Part, Push, State, StatusUpdate, Task
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Callbacks, Settings
from tests.support.a2a_peers import Peer, first, official
from tests.support.a2a_toy import toy
from tests.support.gateway import Hosted, hosted
from tests.support.receiver import receiving

WAIT = 60.0
SPOKEN = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("JSONRPC", "0.1")]
Story = Callable[[A2AClient], Awaitable[None]]
everywhere = pytest.mark.parametrize("spoken", SPOKEN, ids=lambda way: f"{way[1]}-{way[0]}")


@pytest.fixture(scope="module")
def agents() -> Iterator[dict[tuple[str, str], Peer]]:
    """One agent for each binding and generation."""
    with ExitStack() as stack:
        found = {way: stack.enter_context(official(*way)) for way in SPOKEN[:4]}
        found[SPOKEN[4]] = stack.enter_context(first())[0]
        yield found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("ours"), [toy()]) as found:
        yield found


def tell(story: Story, agent: Any, credential: str | Secret | None = None, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT), await A2AClient.connect(agent, credential, **options) as client:
            await story(client)

    asyncio.run(main())


def text(task: Any) -> str:
    assert isinstance(task, Task), task
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


@everywhere
def test_a_message_is_sent_and_its_task_read(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(client: A2AClient) -> None:
        task = await client.send("hello there", skill="talk")
        assert isinstance(task, Task)
        assert (task.status.state, text(task)) == (State.COMPLETED, "echo: hello there")
        assert client.spoken is not None
        assert (client.spoken.binding, client.spoken.generation) == spoken
        assert text(await client.get(task.id)) == "echo: hello there"
        with pytest.raises(JobNotFound):
            await client.get("no-such-task")

    tell(story, agents[spoken].url)


@everywhere
def test_a_stream_is_heard_from_the_first_word_to_the_last(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(client: A2AClient) -> None:
        items = [item async for item in client.stream("story time")]
        pieces = [item for item in items if isinstance(item, ArtifactUpdate)]
        assert "".join(part.text or "" for piece in pieces for part in piece.artifact.parts) == "Once upon time"
        assert [piece.append for piece in pieces] == [False, True, True]
        last = items[-1]
        assert isinstance(last, StatusUpdate)
        assert last.status.state is State.COMPLETED

    tell(story, agents[spoken].url)


@everywhere
def test_a_question_is_answered_in_its_task(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(client: A2AClient) -> None:
        asked = await client.send("ask me")
        assert isinstance(asked, Task)
        assert asked.status.state is State.INPUT_REQUIRED
        assert asked.status.message is not None
        assert asked.status.message.parts[0].text == "Which size?"
        done = await client.send("large", task=asked.id, context=asked.context_id or None)
        assert isinstance(done, Task)
        assert done.id == asked.id
        assert text(done) == "echo: large"

    tell(story, agents[spoken].url)


@everywhere
def test_a_task_that_hangs_is_followed_and_cancelled(agents: dict[Any, Peer], spoken: tuple[str, str]) -> None:
    async def story(client: A2AClient) -> None:
        items = client.stream("hang on")
        begun = await anext(items)
        task = begun.id if isinstance(begun, Task) else begun.task_id
        assert task is not None
        stopped = await client.cancel(task)
        assert stopped.status.state is State.CANCELED
        await items.aclose()
        assert (await client.get(task)).status.state is State.CANCELED

    tell(story, agents[spoken].url)


def test_a_mere_message_is_an_answer(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        reply = await client.send("chat you")
        assert isinstance(reply, Message)
        assert reply.parts[0].text == "hi, you"
        (said,) = [item async for item in client.stream("chat me")]
        assert isinstance(said, Message)

    for spoken in SPOKEN[:4]:
        tell(story, agents[spoken].url)


@pytest.mark.requirement("SP-22")
def test_files_go_both_ways(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        given = [Part(text="file"), Part(raw=b"\x00\x01\x02", filename="a.bin", media_type="application/octet-stream")]
        task = await client.send(given)
        assert isinstance(task, Task)
        (part,) = task.artifacts[0].parts
        assert (part.raw, part.filename) == (b"\x02\x01\x00", "back.bin")

    for spoken in SPOKEN[:3]:  # the SDK encodes files twice in the REST of 0.3, so no other can read them there
        tell(story, agents[spoken].url)


def test_our_own_endpoint_is_spoken_to_in_everything(ours: Hosted) -> None:
    async def story(client: A2AClient) -> None:
        task = await client.send("hello", skill="echo")
        assert text(task) == "echo: hello"
        items = [item async for item in client.stream("time", skill="story")]
        pieces = [part.text or "" for item in items if isinstance(item, ArtifactUpdate) for part in item.artifact.parts]
        assert "".join(pieces) == "Once upon time"
        assert isinstance(task, Task)
        page = await client.list(context_id=task.context_id)
        assert [each.id for each in page.tasks] == [task.id]
        assert [each.id for each in (await client.search("hello")).tasks] == [task.id]
        with pytest.raises(TaskNotCancelable):
            await client.cancel(task.id)
        assert (await client.extended_card()).name == "toy"

    tell(story, f"{ours.url}/agents/toy/a2a")


def test_an_agent_is_spoken_to_over_grpc() -> None:
    grpc = pytest.importorskip("grpc")
    from tests.support.a2a_peers import over_grpc

    async def main() -> None:
        async with asyncio.timeout(WAIT), over_grpc() as card, await A2AClient.connect(card) as client:
            task = await client.send("hello")
            assert text(task) == "echo: hello"
            assert client.spoken is not None
            assert client.spoken.binding == "GRPC"
            items = [item async for item in client.stream("story time")]
            pieces = [part.text for item in items if isinstance(item, ArtifactUpdate) for part in item.artifact.parts]
            assert pieces == ["Once ", "upon ", "time"]
            with pytest.raises(JobNotFound):
                await client.get("no-such-task")

    assert grpc is not None
    asyncio.run(main())


# Finding the card


def test_a_card_is_found_from_the_agent_the_site_and_itself(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        assert client.card.capability("talk") is not None

    rpc, old = agents[SPOKEN[0]].url, agents[SPOKEN[4]].url
    for address in (f"{rpc}/.well-known/agent-card.json", rpc, f"{rpc}/", f"{rpc}/rpc", f"{old}/a2a", old):
        tell(story, address)


def test_where_there_is_no_card_is_said(agents: dict[Any, Peer]) -> None:
    peer = agents[SPOKEN[0]]
    with pytest.raises(TargetError, match="no A2A agent card"):
        tell(_nothing, f"{peer.url}/nowhere/card.json")
    peer.refuse = lambda path, headers: JSONResponse({"name": "x"})
    try:
        with pytest.raises(MalformedResponse, match="has no address"):
            tell(_nothing, peer.url)
    finally:
        peer.refuse = lambda path, headers: None


async def _nothing(client: A2AClient) -> None:
    raise AssertionError("there is no agent")


ODD: list[tuple[Response, type[Exception], str]] = [
    (Response("<html>", media_type="text/html"), MalformedResponse, "did not answer with JSON-RPC"),
    (JSONResponse({"jsonrpc": "2.0", "id": 1}), MalformedResponse, "neither a result nor an error"),
    (JSONResponse({"jsonrpc": "2.0", "id": 1, "result": {"sum": 5}}), MalformedResponse, "answer"),
    (JSONResponse({"jsonrpc": "2.0", "id": 1, "error": "no"}), MalformedResponse, "not a JSON-RPC error"),
    (Response("[" * 10_000), MalformedResponse, "did not answer with JSON-RPC"),
    (JSONResponse({}, 500), TargetError, "reports an error"),
    (Response(status_code=502), Unavailable, "not available"),
    (Response(status_code=302, headers={"location": "http://169.254.169.254/"}), SecurityError, "metadata"),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_answer_that_is_none_is_an_error_and_no_crash(agents: dict[Any, Peer], number: int) -> None:
    answer, kind, words = ODD[number]
    peer = agents[SPOKEN[0]]

    async def story(client: A2AClient) -> None:
        with pytest.raises(kind, match=words):
            await client.send("hi")
        with pytest.raises(kind, match=words):
            await anext(client.stream("hi"))

    peer.refuse = lambda path, headers: None if "well-known" in path else answer
    try:
        tell(story, peer.url)
    finally:
        peer.refuse = lambda path, headers: None


# Falling back


def _claims(peer: Peer, **claims: Any) -> dict[str, Any]:
    """A card that says something else of an agent than is so."""
    return {
        "name": "Liar",
        "version": "1",
        "capabilities": {},
        "skills": [{"id": "talk", "name": "talk", "description": "", "tags": []}],
        **claims,
    }


def test_an_agent_that_does_not_speak_what_its_card_says_is_spoken_to_as_it_does(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        for _ in range(2):
            assert text(await client.send("hi")) == "echo: hi"
        assert client.spoken is not None
        assert client.spoken.generation == "0.1"

    peer = agents[SPOKEN[4]]
    interface = {"url": f"{peer.url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    before = len(peer.paths)
    tell(story, _claims(peer, supportedInterfaces=[interface]))
    assert len(peer.paths) - before == 4  # 1.0 and 0.3 are tried once, and what works is remembered


def test_a_binding_that_is_not_there_gives_way_to_the_next(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        assert text(await client.send("hi")) == "echo: hi"
        assert client.spoken is not None
        assert client.spoken.binding == "HTTP+JSON"

    peer = agents[SPOKEN[1]]
    offered = [
        {"url": f"{peer.url}/gone", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": f"{peer.url}/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
    ]
    tell(story, _claims(peer, supportedInterfaces=offered))


# Streams that break


def test_a_broken_stream_is_taken_up_again_without_loss(ours: Hosted) -> None:
    """Our server numbers its events; what is told after the break is what was not told before."""

    async def story(client: A2AClient) -> None:
        peer = client._peer
        whole, cuts = peer.stream, [2, 1]

        async def cut(request: Any, options: Any = None, last: Any = None) -> Any:
            seen = 0
            async for item in whole(request, options, last):
                yield item
                seen += 1
                if cuts and seen == cuts[0]:
                    cuts.pop(0)
                    return

        peer.stream = cut  # type: ignore[method-assign]
        items = [item async for item in client.stream("time", skill="story")]
        pieces = [part.text or "" for item in items if isinstance(item, ArtifactUpdate) for part in item.artifact.parts]
        assert "".join(pieces) == "Once upon time"
        assert not cuts
        assert isinstance(items[-1], StatusUpdate)
        assert items[-1].status.state is State.COMPLETED

    tell(story, f"{ours.url}/agents/toy/a2a")


@pytest.mark.parametrize("rude", [False, True])
def test_a_stream_without_numbers_is_subscribed_to_anew(rude: bool) -> None:
    async def story(client: A2AClient) -> None:
        agent.drop_after, agent.rude = 2, rude
        items = [item async for item in client.stream("story time")]
        assert isinstance(items[-1], StatusUpdate)
        assert items[-1].status.state is State.COMPLETED
        whole = [item.artifact.parts[0].text for item in items if isinstance(item, ArtifactUpdate)]
        assert whole[-1] == "Once upon time"
        assert len(agent.tasks) == 1  # nothing was sent twice

    with first() as (peer, agent):
        tell(story, peer.url)


# Credentials


def _asking(schemes: dict[str, Any], check: Callable[[str, dict[str, str]], bool]) -> Callable[..., Any]:
    """Make a peer show a card with these schemes, and take only who fits."""

    def make(peer: Peer) -> dict[str, Any]:
        def refuse(path: str, headers: dict[str, str]) -> Response | None:
            if path == "/token":
                granted = headers.get("authorization") == "Basic " + base64.b64encode(b"me:hush").decode()
                return JSONResponse({"access_token": "t0ken-of-ours", "expires_in": 60}, 200 if granted else 401)
            if path == "/oidc":
                return JSONResponse({"token_endpoint": f"{peer.url}/token"})
            if "well-known" in path or check(path, headers):
                return None
            return JSONResponse({"error": "who are you"}, 401)

        peer.refuse = refuse
        interface = {"url": f"{peer.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        filled = json.loads(json.dumps(schemes).replace("URL", peer.url))
        named: list[Any] = [{"schemes": {name: {}}} for name in filled]
        return _claims(peer, supportedInterfaces=[interface], securitySchemes=filled, securityRequirements=named)

    return make


SCHEMES = {
    "header": ({"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}, "x-key", "hush-hush"),
    "cookie": ({"apiKeySecurityScheme": {"location": "cookie", "name": "key"}}, "cookie", "key=hush-hush"),
    "bearer": ({"httpAuthSecurityScheme": {"scheme": "Bearer"}}, "authorization", "Bearer hush-hush"),
    "basic": ({"httpAuthSecurityScheme": {"scheme": "Basic"}}, "authorization", "Basic bWU6aHVzaA=="),
    "oauth2": (
        {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "URL/token", "scopes": {}}}}},
        "authorization",
        "Bearer t0ken-of-ours",
    ),
    "oidc": (
        {"openIdConnectSecurityScheme": {"openIdConnectUrl": "URL/oidc"}},
        "authorization",
        "Bearer t0ken-of-ours",
    ),
}


@pytest.mark.requirement("SP-12")
@pytest.mark.parametrize("kind", sorted(SCHEMES))
def test_a_secret_goes_where_the_card_asks_for_it(agents: dict[Any, Peer], kind: str) -> None:
    scheme, header, value = SCHEMES[kind]
    peer = agents[SPOKEN[0]]
    card = _asking({"it": scheme}, lambda path, headers: headers.get(header) == value)(peer)
    secret = "me:hush" if kind in ("basic", "oauth2", "oidc") else "hush-hush"

    async def story(client: A2AClient) -> None:
        assert text(await client.send("hi")) == "echo: hi"
        assert text(await client.send("again")) == "echo: again"

    try:
        tell(story, card, Secret(secret))
        with pytest.raises(TargetRefused, match="refused our credentials"):
            tell(story, card)
        assert peer.paths.count("POST /token") in (0, 1)
        peer.paths.clear()
    finally:
        peer.refuse = lambda path, headers: None


def test_a_key_may_stand_in_the_query(agents: dict[Any, Peer]) -> None:
    scheme = {"apiKeySecurityScheme": {"location": "query", "name": "key"}}
    peer = agents[SPOKEN[0]]
    card = _asking({"it": scheme}, lambda path, headers: path.endswith("?key=hush-hush"))(peer)

    async def story(client: A2AClient) -> None:
        assert text(await client.send("hi")) == "echo: hi"

    try:
        tell(story, card, Secret("hush-hush"))
    finally:
        peer.refuse = lambda path, headers: None


def test_a_secret_does_not_travel_in_the_clear_to_another_host(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        await client.send("hi")

    peer = agents[SPOKEN[0]]
    offered = [
        {"url": "https://agent.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "0.1"},
        {"url": "http://elsewhere.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    ]
    card = _claims(peer, url="https://agent.example", supportedInterfaces=offered)
    peer.refuse = lambda path, headers: JSONResponse(card) if "well-known" in path else None
    try:
        with pytest.raises(SecurityError, match="without TLS"):
            tell(story, peer.url, Secret("hush-hush"))
    finally:
        peer.refuse = lambda path, headers: None


def test_a_card_does_not_lead_to_other_places_of_this_machine(agents: dict[Any, Peer]) -> None:
    async def story(client: A2AClient) -> None:
        with pytest.raises(SecurityError, match="loopback"):
            await client.send("hi")

    peer, other = agents[SPOKEN[0]], agents[SPOKEN[1]]
    interface = {"url": f"{other.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = _claims(peer, supportedInterfaces=[interface])
    peer.refuse = lambda path, headers: JSONResponse(card) if "well-known" in path else None
    try:
        before = len(other.paths)
        tell(story, peer.url)
        assert len(other.paths) == before
    finally:
        peer.refuse = lambda path, headers: None


def test_the_synchronous_face_does_the_same(agents: dict[Any, Peer]) -> None:
    with SyncA2AClient.connect(agents[SPOKEN[0]].url) as client:
        assert text(client.send("hi")) == "echo: hi"
        assert isinstance(list(client.stream("story x"))[-1], StatusUpdate)


def test_the_synchronous_face_searches_and_has_somebody_told() -> None:
    core = Standalone(Settings(callbacks=Callbacks(allow_loopback=True, schemes=("http",))))
    with receiving() as receiver, listening(toy(), core=core) as url, SyncA2AClient.connect(url) as client:
        assert str(client.spoken) == "None"
        asked = client.send("Rome", skill="book")
        assert isinstance(asked, Task)
        assert client.spoken is not None
        kept = client.set_push(asked.id, Push(id="one", url=receiver.url, token="t0ken"))
        assert (kept.url, kept.token) == (receiver.url, None)
        assert client.get_push(asked.id).id == client.get_push(asked.id, "one").id == "one"
        assert [one.id for one in client.list_push(asked.id).configs] == ["one"]
        assert receiver.wait(1, 60)[0].headers["x-a2a-notification-token"] == "t0ken"
        client.delete_push(asked.id, "one")
        assert client.list_push(asked.id).configs == ()
        with pytest.raises(JobNotFound):
            client.get_push(asked.id)
        assert [task.id for task in client.search("Rome").tasks] == [asked.id]
        assert client.search("Paris", 5).tasks == ()
        client.cancel(asked.id)
    core.close()


def test_a_client_that_is_made_without_connect_says_how_it_is_made() -> None:
    for kind in (A2AClient, SyncA2AClient):
        with pytest.raises(SetupError, match=r"with connect"):
            kind("http://127.0.0.1:1")  # type: ignore[arg-type]
