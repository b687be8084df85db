"""News: while somebody can be heard it is live, and never longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from agent3.errors import StorageError
from agent3.storage import Database
from agent3.storage.notifications import News


class Carrier:
    """A database of which only the words are left. ``lost`` is what ends the connection of the moment."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listening = asyncio.Event()

    @asynccontextmanager
    async def listen(self, channel: str, heard: Callable[[str], None]) -> AsyncIterator[asyncio.Future[None]]:
        self.lost = asyncio.get_running_loop().create_future()
        self.listening.set()
        yield self.lost

    async def say(self, channel: str, words: str) -> None:
        """Nobody is there."""


async def live_news() -> tuple[News, Carrier]:
    carrier = Carrier()
    news = News(cast("Database", carrier), "here")
    news.listen()
    await asyncio.wait_for(carrier.listening.wait(), 5)
    await asyncio.sleep(0)
    assert news.live
    return news, carrier


def lose(carrier: Carrier) -> None:
    carrier.lost.set_result(None)


def fail(carrier: Carrier) -> None:
    carrier.lost.set_exception(StorageError("gone"))


def surprise(carrier: Carrier) -> None:
    carrier.lost.set_exception(RuntimeError("nobody expects this"))


@pytest.mark.parametrize("end", [lose, fail, surprise])
def test_however_listening_ends_the_news_are_not_live_any_more(end: Callable[[Carrier], None]) -> None:
    async def story() -> None:
        news, carrier = await live_news()
        end(carrier)
        async with asyncio.timeout(5):
            while news.live:
                await asyncio.sleep(0)
        await news.aclose()
        if news._listening is not None and not news._listening.cancelled():
            assert isinstance(news._listening.exception(), RuntimeError)

    asyncio.run(story())


def test_news_that_are_closed_are_not_live() -> None:
    async def story() -> None:
        news, _ = await live_news()
        await news.aclose()
        assert not news.live

    asyncio.run(story())


def test_a_lost_connection_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.storage.notifications.AGAIN_SECONDS", 0.0)

    async def story() -> None:
        news, carrier = await live_news()
        carrier.listening.clear()
        lose(carrier)
        await asyncio.wait_for(carrier.listening.wait(), 5)
        await asyncio.sleep(0)
        assert news.live
        await news.aclose()

    asyncio.run(story())
