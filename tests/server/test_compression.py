"""Compression at the doors of a real gateway, in both directions, and towards others."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent3 import LocalAgent
from agent3.errors import EncodingNotSupported, MalformedResponse, ParseError, TooLarge
from agent3.security.outbound import Gate, Policy
from agent3.server import demo
from agent3.server.compression import choose_encoding, unpack
from agent3.settings import Server, Settings
from tests.support.a2a_toy import message, rpc
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BIG = "many words " * 2_000
MCP = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "zstd": zstd.decompress}
every_encoding = pytest.mark.parametrize("encoding", PACK)
accepted = pytest.mark.parametrize("encoding", UNPACK)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    talker = LocalAgent("Talker", agent_id="talker")

    @talker.capability(read_only=True)
    def say(message: str) -> str:
        """Say something, at length if asked for."""
        return BIG if message == "big" else message

    with hosted(tmp_path_factory.mktemp("packed"), [talker]) as running:
        yield running


def post_rest(door: Hosted, body: dict[str, Any], **headers: str) -> Any:
    return door.post("/v1/call", body, **headers)


def post_ask(door: Hosted, body: dict[str, Any], **headers: str) -> Any:
    asked = {"query": {"text": body["message"], "site": body["agentId"]}, "prefer": {"streaming": False}}
    return door.post("/ask", asked, **headers)


def post_mcp(door: Hosted, body: dict[str, Any], **headers: str) -> Any:
    request = modern_request("tools/call", {"name": "agent3_call", "arguments": body})
    named = {key.replace("-", "_").lower(): value for key, value in request["headers"].items()}
    return door.post("/mcp", request["json"], content_type="application/json", **named, **headers)


def post_a2a(door: Hosted, body: dict[str, Any], **headers: str) -> Any:
    params = {"message": message(body["message"], "say")}
    return rpc(door, "SendMessage", params, "/agents/talker/a2a", a2a_version="1.0", **headers)


DOORS = {"rest": post_rest, "ask": post_ask, "mcp": post_mcp, "a2a": post_a2a}
every_door = pytest.mark.parametrize("where", DOORS)


@pytest.mark.requirement("AC-22")
@every_door
@accepted
def test_a_large_answer_is_packed_for_a_client_that_accepts_it(door: Hosted, where: str, encoding: str) -> None:
    for _ in range(3):  # the first one is parsed, the later ones may be recognised by their head
        answer = DOORS[where](door, {"agentId": "talker", "message": "big"}, accept_encoding=encoding)
        assert answer.status == 200
        assert answer.headers["content-encoding"] == encoding
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert int(answer.headers["content-length"]) == len(answer.raw) < len(BIG) / 4
        assert BIG.strip() in UNPACK[encoding](answer.raw).decode()


@pytest.mark.requirement("AC-22")
@every_door
def test_small_answers_and_clients_that_do_not_accept_it_get_plain_ones(door: Hosted, where: str) -> None:
    call = DOORS[where]
    small = call(door, {"agentId": "talker", "message": "hi"}, accept_encoding="gzip, zstd")
    assert "content-encoding" not in small.headers
    for header in ({}, {"accept_encoding": "br"}, {"accept_encoding": "gzip;q=0, zstd;q=0"}):
        plain = call(door, {"agentId": "talker", "message": "big"}, **header)
        assert "content-encoding" not in plain.headers
        assert BIG.strip() in plain.raw.decode()


@pytest.mark.requirement("AC-22")
def test_answers_on_one_connection_are_packed_by_the_head_of_each_request(door: Hosted) -> None:
    """Also those that are recognised by their head, without a parser."""
    request = modern_request(
        "tools/call", {"name": "agent3_call", "arguments": {"agentId": "talker", "message": "big"}}
    )
    modern = modern_request("tools/list", {})
    connection = door.connect()
    try:
        for sent, encoding in [(modern, None), *[(request, "gzip"), (request, None)] * 3]:
            headers = {**sent["headers"], "Content-Type": "application/json"}
            if encoding:
                headers["Accept-Encoding"] = encoding
            connection.request("POST", "/mcp", json.dumps(sent["json"]), headers)
            answer = connection.getresponse()
            raw = answer.read()
            assert answer.headers.get("Content-Encoding") == encoding
            assert "result" in json.loads(gzip.decompress(raw) if encoding else raw)
    finally:
        connection.close()


@pytest.mark.requirement("AC-22")
def test_a_stream_of_events_is_never_packed(door: Hosted) -> None:
    body = {"agentId": "talker", "message": "big", "metadata": {"streaming": True}}
    answer = door.post("/v1/call", body, accept_encoding="gzip, zstd")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in answer.headers


@pytest.mark.requirement("AC-22")
def test_a_packed_card_has_a_weak_tag_that_is_recognised(tmp_path: Path) -> None:
    path = "/.well-known/agent-card.json"
    with hosted(tmp_path, demo.agents(), Settings(server=Server(compress_bytes=500))) as door:
        plain = door.get(path)
        answer = door.get(path, accept_encoding="gzip")
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["etag"] == f"W/{plain.headers['etag']}"
        assert door.get(path, accept_encoding="gzip", if_none_match=answer.headers["etag"]).status == 304


@pytest.mark.requirement("AC-22")
@every_door
@every_encoding
def test_a_packed_request_is_read_as_if_it_came_plain(door: Hosted, where: str, encoding: str) -> None:
    answer = DOORS[where](Packing(door, encoding), {"agentId": "talker", "message": "hello there"})
    assert answer.status == 200
    assert "hello there" in answer.raw.decode()


class Packing(Hosted):
    """The same door, for a client that packs what it sends."""

    def __init__(self, door: Hosted, encoding: str, bytes_: bytes | None = None):
        super().__init__(door.url, door.server, door.loop)
        self.encoding, self.bytes_ = encoding, bytes_

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        raw = self.bytes_
        if raw is None:
            raw = PACK[self.encoding](body if isinstance(body, bytes) else json.dumps(body).encode())
        return super().ask(method, path, raw, content_encoding=self.encoding, **headers)


@pytest.mark.requirement("AC-22")
@every_door
@every_encoding
def test_a_bomb_is_refused_before_it_unfolds(door: Hosted, where: str, encoding: str) -> None:
    bomb = PACK[encoding](b'{"agentId": "talker", "message": "' + b"a" * (64 << 20) + b'"}')
    assert len(bomb) < 1 << 18
    answer = DOORS[where](Packing(door, encoding, bomb), {"agentId": "talker", "message": "hi"})
    assert answer.status == 413
    assert answer.json["error"]["code"] == "too_large"


@pytest.mark.requirement("AC-22")
@every_door
def test_an_unknown_encoding_is_refused_with_those_that_are_known(door: Hosted, where: str) -> None:
    answer = DOORS[where](Packing(door, "br", b"whatever"), {"agentId": "talker", "message": "hi"})
    assert answer.status == 415
    assert answer.json["error"]["code"] == EncodingNotSupported.code
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"


@pytest.mark.requirement("AC-22")
def test_damaged_and_doubly_packed_bodies_are_parse_errors(door: Hosted) -> None:
    whole = gzip.compress(b'{"query": "x"}')
    for raw in (b"not gzip", whole[:-4], whole + b"more", b""):
        answer = door.post("/v1/search", raw, content_encoding="gzip")
        assert (answer.status, answer.error["code"]) == (400, "parse_error")
    assert door.post("/v1/search", gzip.compress(whole), content_encoding="gzip, gzip").status == 415


@pytest.mark.requirement("AC-22")
def test_identity_is_no_encoding(door: Hosted) -> None:
    assert door.post("/v1/search", {"query": "talk"}, content_encoding="identity").status == 200


@pytest.mark.requirement("AC-22")
def test_packing_can_be_turned_off(tmp_path: Path) -> None:
    with hosted(tmp_path, demo.agents(), Settings(server=Server(compress_bytes=0))) as plain:
        answer = plain.post("/v1/call", {"agentId": "echo", "message": BIG}, accept_encoding="gzip")
        assert "content-encoding" not in answer.headers


@pytest.mark.requirement("AC-22")
@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (b"gzip", "gzip"),
        (b"gzip, deflate, zstd", "zstd"),
        (b"gzip;q=1.0, zstd;q=0.5", "gzip"),
        (b"GZIP", "gzip"),
        (b"*", "zstd"),
        (b"*;q=0.1, zstd;q=0", "gzip"),
        (b"identity", None),
        (b"gzip;q=nonsense", None),
        (b"", None),
        (b"gzip," * 1_000, None),
        (None, None),
    ],
)
def test_the_best_welcome_encoding_is_chosen(header: bytes | None, chosen: str | None) -> None:
    assert choose_encoding(header) == chosen


@pytest.mark.requirement("AC-22")
def test_deflate_is_read_in_both_its_forms() -> None:
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert unpack(bare.compress(b"hello") + bare.flush(), "deflate", 10) == b"hello"
    assert unpack(zlib.compress(b"hello"), "deflate", 10) == b"hello"
    with pytest.raises(TooLarge):
        unpack(zlib.compress(b"hello"), "deflate", 4)
    with pytest.raises(ParseError):
        unpack(b"", "deflate", 10)


@pytest.mark.requirement("AC-22")
def test_a_frame_that_wants_much_memory_is_refused() -> None:
    wide = zstd.compress(b"hello" * 2_000_000, options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(ParseError):
        unpack(wide, "zstd", 100 << 20)


# Towards others


@pytest.mark.requirement("AC-22")
@every_encoding
def test_packed_answers_of_others_are_unpacked_within_their_limit(encoding: str) -> None:
    async def story() -> None:
        async def good(request: web.Request) -> web.Response:
            assert encoding in request.headers["Accept-Encoding"]
            return web.Response(body=PACK[encoding](b"hello"), headers={"Content-Encoding": encoding})

        async def bomb(request: web.Request) -> web.Response:
            return web.Response(body=PACK[encoding](b"a" * (64 << 20)), headers={"Content-Encoding": encoding})

        async def wrong(request: web.Request) -> web.Response:
            return web.Response(body=b"not packed at all", headers={"Content-Encoding": encoding})

        app = web.Application()
        app.add_routes([web.get("/good", good), web.get("/bomb", bomb), web.get("/wrong", wrong)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        gate = Gate(Policy(allow_loopback=True))
        try:
            assert (await gate.request("GET", f"{url}/good", timeout=30)).body == b"hello"
            with pytest.raises(TooLarge):
                await gate.request("GET", f"{url}/bomb", timeout=30, max_bytes=1 << 20)
            with pytest.raises(MalformedResponse):
                await gate.request("GET", f"{url}/wrong", timeout=30)
        finally:
            await gate.aclose()
            await runner.cleanup()

    asyncio.run(asyncio.wait_for(story(), 60))
