"""The fault proxy: every fault is what it says, repeats itself by its seed, and a connector tells it honestly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from agent3.model import LOCAL, Call, Done, Failed, Outcome, Turn
from agent3.protocols.mcp import MCPConnector
from agent3.testing import FaultProxy, Faults
from agent3.testing.proxy import Fate
from tests.support.home import run
from tests.support.mcp_upstream import served

ANSWER = b"x" * 1_000
FATES: tuple[Fate, ...] = ("cut", "reset")


@asynccontextmanager
async def server() -> AsyncIterator[int]:
    """Answers every line with a thousand bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readline():
                writer.write(ANSWER)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def ask(proxy: FaultProxy, seconds: float = 60.0) -> str | bytes:
    """What comes of one question: the bytes, and how it ended if not as it should."""
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    came = b""
    try:
        writer.write(b"?\n")
        async with asyncio.timeout(seconds):
            while len(came) < len(ANSWER):
                piece = await reader.read(4_096)
                if not piece:
                    return f"closed after {len(came)}"
                came += piece
        return came
    except TimeoutError:
        return f"silent after {len(came)}"
    except ConnectionError:
        return "reset"
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(), ANSWER),
        (Faults(cut=1.0), "closed after 0"),
        (Faults(reset=1.0), "reset"),
        (Faults(silence=1.0), "silent after 0"),
    ],
    ids=["pass", "cut", "reset", "silence"],
)
def test_every_fault_is_what_it_says(faults: Faults, expected: object) -> None:
    async def story() -> object:
        async with server() as port, FaultProxy("127.0.0.1", port, faults=faults) as proxy:
            return await ask(proxy, 0.2 if faults.silence else 60.0)

    assert run(story()) == expected


def test_a_refused_connection_passes_nothing() -> None:
    async def story() -> object:
        async with server() as port, FaultProxy("127.0.0.1", port, faults=Faults(refuse=1.0)) as proxy:
            return await ask(proxy)

    assert run(story()) in ("closed after 0", "reset")  # the question may arrive when the door is closed already


def test_an_answer_is_cut_in_its_middle() -> None:
    async def story() -> object:
        async with server() as port, FaultProxy("127.0.0.1", port, faults=Faults(cut=1.0, within=500)) as proxy:
            return await ask(proxy)

    told = run(story())
    assert isinstance(told, str)
    assert 0 < int(told.removeprefix("closed after ")) < 500


def test_corruption_turns_one_bit() -> None:
    async def story() -> object:
        async with server() as port, FaultProxy("127.0.0.1", port, faults=Faults(corrupt=1.0, within=500)) as proxy:
            return await ask(proxy)

    told = run(story())
    assert isinstance(told, bytes)
    assert len(told) == len(ANSWER)
    assert sum((a ^ b).bit_count() for a, b in zip(told, ANSWER, strict=True)) == 1


def test_the_same_seed_has_the_same_fates() -> None:
    mixed = Faults(refuse=0.2, cut=0.2, reset=0.2)

    async def fates(seed: int) -> list[str]:
        async with server() as port, FaultProxy("127.0.0.1", port, seed=seed, faults=mixed) as proxy:
            for _ in range(30):
                await ask(proxy)
            return list(proxy.fates)

    first = run(fates(1))
    assert set(first) == {"pass", "refuse", "cut", "reset"}
    assert run(fates(1)) == first
    assert run(fates(2)) != first


def test_a_slow_network_is_slow() -> None:
    async def story() -> float:
        async with server() as port, FaultProxy("127.0.0.1", port, faults=Faults(rate=5_000)) as proxy:
            before = asyncio.get_running_loop().time()
            assert await ask(proxy) == ANSWER
            return asyncio.get_running_loop().time() - before

    assert run(story()) > 0.1


def test_a_server_that_stops_answering_can_go_on() -> None:
    async def story() -> None:
        async with server() as port, FaultProxy("127.0.0.1", port) as proxy:
            proxy.stop_answering()
            waiting = asyncio.create_task(ask(proxy))
            assert await ask(proxy, 0.05) == "silent after 0"
            assert not waiting.done()
            proxy.go_on()
            assert await waiting == ANSWER

    run(story())


def test_chances_beyond_certainty_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        Faults(cut=0.6, reset=0.6)


def test_a_call_whose_connection_is_cut_is_told_as_sent_and_is_not_repeated(tmp_path: Path) -> None:
    async def story(port: int, noted: Path) -> None:
        async with FaultProxy("127.0.0.1", port) as proxy:
            connector = MCPConnector()
            agent = await connector.describe(f"{proxy.url}/mcp", registered=True)

            async def count() -> Outcome:
                capability = agent.capability("count")
                assert capability is not None
                live = Turn(agent, capability)
                call = Call(
                    id="c1", principal=LOCAL, agent=agent.id, capability="count", input={}, route=capability.routes[0]
                )
                return await connector.call(replace(call, live=live))

            try:
                for number, fate in enumerate(FATES):
                    assert isinstance(await count(), Done)
                    proxy.strike(fate)
                    outcome = await count()
                    assert isinstance(outcome, Failed)
                    assert (outcome.code, outcome.sent) == ("unavailable", True)
                    assert noted.read_text().split().count("count") == 2 * number + 2
            finally:
                await connector.aclose()

    with served(tmp_path / "notes", "--json") as site:  # which answers only when the tool has run
        run(story(urlsplit(site.url).port or 0, tmp_path / "notes"))
