"""A server passed through: subscriptions for many who come and go at once, and nothing secret in what it shows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest

from agent3.errors import Agent3Error, MalformedResponse, NotFound, TargetError, TooLarge, Unavailable
from agent3.identity.secrets import EnvironmentVault, Secret
from agent3.model import Answer, Done, Needs, Principal, Route
from agent3.protocols.mcp.client.channels import OnNotification
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.door import passthrough as module
from agent3.protocols.mcp.door.passthrough import Passthrough
from agent3.protocols.mcp.door.toolset import PASSED, Caller, Completion

ASKED = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
TOKEN = "the-token-of-the-route"
IN_ADDRESS = "the-key-of-the-address"
ANN = Caller(Principal("ann"), lambda event: None, "modern", can_elicit=False)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 120)

    asyncio.run(bounded())


class Server:
    """Stands for the connector and the server behind it: streams of news that stay open, and whatever it shall say."""

    def __init__(self) -> None:
        self.streams: list[tuple[str, ...]] = []
        self.asked = 0
        self.refuses: set[str] = set()
        self.breaks: asyncio.Event | None = None
        self.says: Any = {}

    async def watch(
        self, route: Route, uris: Sequence[str], heard: OnNotification, *, secret: Secret | None = None
    ) -> None:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.refuses & set(uris):
            raise NotFound(f"no such resource; you are {secret.reveal() if secret else ''}")
        self.streams.append(tuple(uris))
        try:
            heard("notifications/subscriptions/acknowledged", {})
            await (self.breaks or asyncio.Event()).wait()
            raise Unavailable("gone")
        finally:
            self.streams.remove(tuple(uris))

    async def subscribe(self, route: Route, uri: str, caller: str, **options: Any) -> bool:
        return False  # a modern server

    async def request(self, route: Route, method: str, params: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", self._said())

    async def items(self, route: Route, method: str, key: str, **options: Any) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self._said())

    def _said(self) -> Any:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def pass_through(server: Server, heard: OnNotification = lambda method, params: None) -> Passthrough:
    vault = EnvironmentVault({"TOKEN": TOKEN, "API_KEY": IN_ADDRESS})
    route = Route("mcp", "https://example.com/mcp?key=env:API_KEY", credential="env:TOKEN")
    return Passthrough(cast("MCPConnector", server), route, vault, heard)


async def settled(server: Server, streams: list[tuple[str, ...]]) -> None:
    async with asyncio.timeout(60):
        while server.streams != streams:
            await asyncio.sleep(0.005)


# News


def test_any_number_may_begin_to_watch_at_once() -> None:
    async def story() -> None:
        server = Server()
        passthrough = pass_through(server)
        async with asyncio.timeout(60):
            await asyncio.gather(*(passthrough.watch(uri, "ann") for uri in "abcdefgh"))
        assert server.asked <= 2  # one promise serves all that came together
        await settled(server, [tuple("abcdefgh")])
        async with asyncio.timeout(60):
            await asyncio.gather(
                passthrough.watch("i", "ann"), passthrough.watch("a", "bob"), passthrough.watch("k", "bob")
            )
        await settled(server, [tuple("abcdefghik")])
        await passthrough.aclose()
        assert server.streams == []

    run(story())


def test_no_stream_outlives_the_passthrough() -> None:
    async def story() -> None:
        server = Server()
        passthrough = pass_through(server)
        await passthrough.watch("a", "ann")
        late = asyncio.ensure_future(passthrough.watch("b", "ann"))
        await asyncio.sleep(0)
        await passthrough.aclose()
        with pytest.raises(Unavailable):
            await late
        assert server.streams == []
        with pytest.raises(Unavailable):
            await passthrough.watch("c", "ann")

    run(story())


def test_a_refused_resource_keeps_nobody_from_the_others() -> None:
    async def story() -> None:
        server = Server()
        server.refuses = {"bad"}
        passthrough = pass_through(server)
        await passthrough.watch("a", "ann")
        results = await asyncio.gather(
            passthrough.watch("b", "ann"),
            passthrough.watch("bad", "ann"),
            passthrough.watch("c", "bob"),
            return_exceptions=True,
        )
        assert [type(one) for one in results] == [type(None), NotFound, type(None)]
        assert TOKEN not in str(results[1])
        await settled(server, [("a", "b", "c")])
        with pytest.raises(NotFound):
            await passthrough.watch("bad", "bob")
        assert server.streams == [("a", "b", "c")]  # the news of others goes on
        await passthrough.aclose()

    run(story())


def test_who_goes_while_it_waits_leaves_nothing_behind() -> None:
    async def story() -> None:
        server = Server()
        passthrough = pass_through(server)
        gone = asyncio.ensure_future(passthrough.watch("a", "ann"))
        await asyncio.sleep(0)
        gone.cancel()
        stays = asyncio.ensure_future(passthrough.watch("b", "bob"))
        await stays
        passthrough.unwatch("b", "bob")
        await settled(server, [])
        await passthrough.aclose()

    run(story())


def test_the_last_who_goes_ends_the_stream_and_who_does_not_wait_ends_nothing() -> None:
    async def story() -> None:
        server = Server()
        passthrough = pass_through(server)
        for client in ("ann", "ann", "bob"):
            await passthrough.watch("a", client)
        assert server.asked == 1
        for client in ("ann", "bob", "bob", "eve"):
            passthrough.unwatch("a", client)
        await asyncio.sleep(0.02)
        assert server.streams == [("a",)]
        passthrough.unwatch("a", "ann")
        await settled(server, [])
        await passthrough.watch("a", "ann")
        await settled(server, [("a",)])
        await passthrough.aclose()

    run(story())


def test_one_client_cannot_take_the_room_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WATCHED", 5)
    monkeypatch.setattr(module, "MOST_WATCHED_BY_CLIENT", 3)

    async def story() -> None:
        passthrough = pass_through(Server())
        for uri in "abc":
            await passthrough.watch(uri, "ann")
        with pytest.raises(TooLarge, match="You already watch 3"):
            await passthrough.watch("d", "ann")
        await passthrough.watch("a", "ann")  # what it has already takes no room
        for uri in "de":
            await passthrough.watch(uri, "bob")
        with pytest.raises(TooLarge, match="5 resources"):
            await passthrough.watch("f", "bob")
        passthrough.unwatch("b", "ann")
        await passthrough.watch("f", "bob")
        await passthrough.aclose()

    run(story())


def test_after_a_gap_everything_that_is_waited_for_may_have_changed() -> None:
    async def story() -> None:
        server, told = Server(), asyncio.Queue[str]()
        server.breaks = asyncio.Event()
        passthrough = pass_through(server, lambda method, params: told.put_nowait(params["uri"]))
        await asyncio.gather(passthrough.watch("a", "ann"), passthrough.watch("b", "ann"))
        passthrough.unwatch("b", "ann")
        broken, server.breaks = server.breaks, None
        broken.set()
        async with asyncio.timeout(60):
            assert await told.get() == "a"
        await settled(server, [("a",)])
        assert told.empty()
        await passthrough.aclose()

    run(story())


# Secrets and hidden characters

ECHO = f"you sent {TOKEN} to ?key={IN_ADDRESS}"
SPLIT = f"{TOKEN[:5]}\u200b{TOKEN[5:]} \u202e\x07"


def clean(told: object) -> None:
    text = repr(told)
    assert TOKEN not in text
    assert IN_ADDRESS not in text
    assert not any(hidden in text for hidden in ("\\u202e", "\\x07", "\\u200b"))
    assert "***" in text


def test_what_is_shown_holds_neither_credential_nor_hidden_characters() -> None:
    async def story() -> None:
        server = Server()
        passthrough = pass_through(server)
        server.says = [{"uri": "a://b", "name": ECHO, "description": SPLIT, "_meta": {ECHO: SPLIT}}]
        clean(await passthrough.resources())
        server.says = [{"uriTemplate": "a://{b}", "name": ECHO, "description": SPLIT}]
        clean(await passthrough.templates())
        server.says = [{"name": ECHO, "arguments": [{"name": "x", "description": SPLIT}]}]
        clean(await passthrough.prompts())
        server.says = {"contents": [{"uri": f"a://{TOKEN}", "text": ECHO + SPLIT}], "_meta": {"a": ECHO}}
        clean(await passthrough.read("a://b", ANN))
        message = {"role": "assistant", "content": {"type": "text", "text": ECHO + SPLIT, "_meta": {"a": ECHO}}}
        server.says = {"messages": [message], "description": SPLIT, "_meta": {"a": ECHO}}
        clean(await passthrough.prompt("p", {}, ANN))
        server.says = {"completion": {"values": [ECHO, SPLIT]}}
        clean(await passthrough.complete(Completion(kind="prompt", name="p", argument="a", value="")))

    run(story())


def test_bytes_that_hold_the_credential_stay_readable() -> None:
    async def story() -> None:
        server = Server()
        server.says = {"contents": [{"uri": "a://b", "blob": base64.b64encode(f"x{TOKEN}y".encode()).decode()}]}
        done = await pass_through(server).read("a://b", ANN)
        assert isinstance(done, Done)
        assert done.parts[0].raw == b"x***y"

    run(story())


def test_a_question_holds_no_credential_either() -> None:
    async def story() -> None:
        server = Server()
        params = {"message": ECHO + SPLIT, "requestedSchema": {"type": "object", "properties": {}}}
        server.says = {
            "resultType": "input_required",
            "requestState": TOKEN,
            "inputRequests": {"q": {"method": "elicitation/create", "params": params}},
        }
        asked = await pass_through(server).read("a://b", ANN)
        assert isinstance(asked, Needs)
        clean(asked)

    run(story())


def test_a_state_that_the_server_did_not_give_is_not_sent_back() -> None:
    sent: list[Mapping[str, Any]] = []

    class Asking(Server):
        async def request(self, route: Route, method: str, params: Mapping[str, Any], **options: Any) -> dict[str, Any]:
            sent.append(dict(params))
            if "inputResponses" not in params:
                return {"resultType": "input_required", "inputRequests": {"q": ASKED}}
            return {"contents": [{"uri": "a://b", "text": "read"}]}

    async def story() -> None:
        caller = Caller(Principal("ann"), lambda event: None, "modern", can_elicit=True, answers={"q": Answer(data={})})
        assert isinstance(await pass_through(Asking()).read("a://b", caller), Done)
        assert [sorted(one.keys() - {"_meta"}) for one in sent] == [["uri"], ["inputResponses", "uri"]]

    run(story())


FAULTS = [
    TargetError(ECHO + SPLIT, data={PASSED: {"error": {"code": -1, "message": ECHO, "data": {ECHO: [SPLIT]}}}}),
    MalformedResponse(ECHO + SPLIT),
    RuntimeError(ECHO + SPLIT),
    TimeoutError(ECHO + SPLIT),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: type(one).__name__)
def test_what_goes_wrong_is_told_without_credential_and_hidden_characters(fault: Exception) -> None:
    async def story() -> None:
        server = Server()
        server.says = fault
        for asked in (pass_through(server).resources(), pass_through(server).read("a://b", ANN)):
            with pytest.raises(Agent3Error) as caught:
                await asked
            clean((caught.value.message, caught.value.data, str(caught.value)))

    run(story())
