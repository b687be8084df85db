"""What a server says beside its answers: log lines and changes of resources reach the caller whose they are."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError

from agent3.settings import Calls, Limits, Settings
from agent3.settings import Client as Customer
from tests.support import registration as adding
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_upstream import Site, command, notes, served

TALE = "shelf://tale"
KEYS = {name: f"the-key-of-{name}-which-is-long-enough" for name in ("ann", "bob")}
every_way = pytest.mark.parametrize("way", ["http", "stdio"])


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


class Listener:
    """A client of the official SDK, and what it hears."""

    def __init__(self, mode: str = "legacy") -> None:
        self.mode = mode
        self.lines: list[Any] = []
        self.updates: list[str] = []
        self.done: list[str] = []
        self.person: Any = None

    async def log(self, params: wire.LoggingMessageNotificationParams) -> None:
        self.lines.append(params.data)

    async def hear(self, message: Any) -> None:
        if isinstance(message, wire.ResourceUpdatedNotification):
            self.updates.append(str(message.params.uri))
        if isinstance(message, wire.ElicitCompleteNotification):
            self.done.append(message.params.elicitation_id)

    async def open(self, stack: AsyncExitStack, house: Hosted, name: str = "") -> Client:
        headers = {"Authorization": f"Bearer {KEYS[name]}"} if name else {}
        http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        transport = streamable_http_client(f"{house.url}/agents/shelf/mcp", http_client=http)
        heard: dict[str, Any] = {"logging_callback": self.log, "message_handler": self.hear}
        client = Client(transport, mode=self.mode, elicitation_callback=self.person, **heard)
        return await stack.enter_async_context(client)


@asynccontextmanager
async def shelf(folder: Path, way: str, *, keys: bool) -> AsyncIterator[tuple[Hosted, Site | None]]:
    """A gateway in front of a legacy server, for callers with keys or for the person at this machine."""
    customers = tuple(
        Customer(id=name, key=f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items()
    )
    settings = Settings(clients=customers if keys else (), calls=Calls(ledger="batched"), limits=Limits(per_minute=0))
    with served(folder / "notes", "--legacy", "--shelf") as site, hosted(folder, settings=settings) as house:
        program = command(folder / "notes", "--legacy", "--shelf")
        where = (
            site.url
            if way == "http"
            else shlex.join(["env", "-C", program["cwd"], program["command"], *program["args"]])
        )
        await asyncio.to_thread(house.run, adding.add(house.server, where, "shelf"))
        yield house, site


@every_way
def test_a_log_line_of_a_call_reaches_a_legacy_client_that_has_set_no_level(tmp_path: Path, way: str) -> None:
    async def story() -> None:
        async with shelf(tmp_path, way, keys=False) as (house, _), AsyncExitStack() as stack:
            legacy, modern = Listener(), Listener("auto")
            client = await legacy.open(stack, house)
            await client.list_tools()
            await client.call_tool("log")
            assert legacy.lines == ["thinking"]
            await client.call_tool("echo", {"text": "x"})
            other = await modern.open(stack, house)
            await other.call_tool("log")  # which has to ask for lines in its request
            assert (legacy.lines, modern.lines) == (["thinking"], [])

    run(story())


def test_a_page_that_has_to_be_opened_first_is_the_clients_to_open_and_its_end_is_told(tmp_path: Path) -> None:
    async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        raise AssertionError("it knows the error, and opens the page by itself")

    async def story() -> None:
        async with shelf(tmp_path, "http", keys=True) as (house, _), AsyncExitStack() as stack:
            ann, bob = Listener(), Listener()
            ann.person = person
            hers, his = await ann.open(stack, house, "ann"), await bob.open(stack, house, "bob")
            with pytest.raises(MCPError) as caught:
                await hers.call_tool("go", {"never": True})
            assert caught.value.error.code == -32042
            assert caught.value.error.data["elicitations"][0]["elicitationId"] == "e1"
            while not ann.done:  # what is told before the client's stream stands is lost
                await hers.call_tool("finish")
                await asyncio.sleep(0.1)
            await his.call_tool("echo", {"text": "x"})
            assert (set(ann.done), bob.done) == ({"e1"}, [])

    run(story())


@pytest.mark.filterwarnings("ignore:resources.(un)?subscribe is removed")
@every_way
def test_each_caller_hears_what_happens_in_its_own_session(tmp_path: Path, way: str) -> None:
    async def story() -> None:
        async with shelf(tmp_path, way, keys=True) as (house, _), AsyncExitStack() as stack:
            ann, bob = Listener(), Listener()
            hers = await ann.open(stack, house, "ann")
            his = await bob.open(stack, house, "bob")
            await asyncio.gather(hers.subscribe_resource(TALE), his.subscribe_resource(TALE))
            while not bob.lines:  # what is told before the client's stream stands is lost
                await his.call_tool("murmur", {"text": "for bob"})
                await asyncio.sleep(0.3)
            while len(ann.updates) < 3:
                await hers.call_tool("touch")
                await asyncio.sleep(0.1)
            await his.call_tool("murmur", {"text": "the last"})
            await until(lambda: "the last" in bob.lines)  # which would come behind news of hers
            assert set(ann.updates) == {TALE}
            assert set(bob.lines) == {"for bob", "the last"}
            assert ann.lines == []
            assert len(bob.updates) <= 1, "a session that opens later tells once what it may have missed"
            await hers.unsubscribe_resource(TALE)
            await until(lambda: f"unsubscribe {TALE}" in notes(tmp_path / "notes"))

    run(story())


@pytest.mark.filterwarnings("ignore:resources.(un)?subscribe is removed")
@pytest.mark.parametrize("keys", [False, True])
def test_what_is_watched_stays_watched_when_the_server_starts_again(tmp_path: Path, keys: bool) -> None:
    async def story() -> None:
        async with shelf(tmp_path, "http", keys=keys) as (house, site), AsyncExitStack() as stack:
            ann = Listener()
            client = await ann.open(stack, house, "ann" if keys else "")
            await client.subscribe_resource(TALE)
            assert site is not None
            subscribed = notes(tmp_path / "notes").count(f"subscribe {TALE}")
            await asyncio.to_thread(site.restart)
            # Nobody calls: the gateway notices it by the stream on which it listens.
            await until(lambda: notes(tmp_path / "notes").count(f"subscribe {TALE}") > subscribed)
            await until(lambda: TALE in ann.updates)

    run(story())
