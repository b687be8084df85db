"""Ids of legacy sessions that other processes can continue."""

from __future__ import annotations

import asyncio

import aiohttp

from agent3.env import REAL
from agent3.model import LOCAL, encode
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
from agent3.protocols.mcp.door.session_ids import SessionIds
from tests.support.mcp_serving import served
from tests.support.mcp_toy import Toys

KEY = bytes(32)
PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}, "clientInfo": {"name": "t", "version": "1"}}
OPENING = encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {**PARAMS, "_meta": {"x": 1}}})


def test_another_process_reads_how_the_client_introduced_itself() -> None:
    session = SessionIds(KEY, "one", REAL).issue(OPENING, "ada")
    assert session.startswith("one.")
    assert SessionIds(KEY, "two", REAL).read(session, "ada") == PARAMS


def test_an_id_is_good_for_its_caller_and_unchanged_only() -> None:
    ids, other = SessionIds(KEY, "one", REAL), SessionIds(KEY, "two", REAL)
    session = ids.issue(OPENING, "ada")
    assert other.read(session, "eve") is None
    assert other.read("three" + session[3:], "ada") is None
    assert other.read(session[:-1] + ("0" if session[-1] != "0" else "1"), "ada") is None
    assert SessionIds(bytes(31) + b"1", "two", REAL).read(session, "ada") is None
    for nonsense in ("", "...", "a.b.c.d", "\xff.\xff.\xff.\xff", "a" * 5_000):
        assert other.read(nonsense, "ada") is None
    assert ids.read(session, "ada") is None, "of this process: if it is not known here, it has ended"


def test_what_cannot_be_carried_makes_a_plain_id() -> None:
    ids, other = SessionIds(KEY, "one", REAL), SessionIds(KEY, "two", REAL)
    noise = "".join(chr(33 + (i * i * 7919) % 90) for i in range(12_000)).replace('"', "").replace("\\", "")
    long = encode(
        {"method": "initialize", "params": {**PARAMS, "clientInfo": {"name": REAL.random_bytes(4_000).hex()}}}
    )
    for opening in (None, b"", b"{", b"[]", b'{"method": "ping"}', long, encode({"method": "initialize", "x": noise})):
        session = ids.issue(opening, "ada")
        assert session.count(".") == 1
        assert other.read(session, "ada") is None
    assert ids.issue(OPENING, "ada") != ids.issue(OPENING, "ada")


def test_many_requests_that_come_at_once_after_their_process_is_gone_are_all_served() -> None:
    async def story() -> None:
        session = SessionIds(KEY, "gone", REAL).issue(OPENING, LOCAL.id)
        accept = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
        headers = {**accept, "Mcp-Session-Id": session}
        door = MCPDoor(Toys(), DoorOptions(key=KEY, process="here"))
        async with served(door) as url, aiohttp.ClientSession() as http:

            async def ask(number: int) -> tuple[int, str]:
                listing = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
                async with http.post(url, json=listing, headers=headers) as response:
                    return response.status, await response.text()

            answers = await asyncio.gather(*(ask(number) for number in range(2, 22)))
            assert {status for status, _ in answers} == {200}, answers
            assert all(f'"id":{number},' in text for number, (_, text) in enumerate(answers, 2))

    asyncio.run(asyncio.wait_for(story(), 120))
