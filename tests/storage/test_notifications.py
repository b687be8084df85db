"""Notifications: they are live exactly while the other processes can be heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from agent3.errors import StorageError
from agent3.storage import Database
from agent3.storage.notifications import News


class Notifier:
    """A database of which only notifications are left. ``lost`` is what ends the current connection."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listening = asyncio.Event()

    @asynccontextmanager
    async def listen(self, channel: str, on_text: Callable[[str], None]) -> AsyncIterator[asyncio.Future[None]]:
        self.lost = asyncio.get_running_loop().create_future()
        self.listening.set()
        yield self.lost

    async def notify(self, channel: str, text: str) -> None:
        """No one is there."""


async def live_news() -> tuple[News, Notifier]:
    notifier = Notifier()
    news = News(cast("Database", notifier), "here")
    news.listen()
    await asyncio.wait_for(notifier.listening.wait(), 60)
    await asyncio.sleep(0)
    assert news.live
    return news, notifier


def lose(notifier: Notifier) -> None:
    notifier.lost.set_result(None)


def fail(notifier: Notifier) -> None:
    notifier.lost.set_exception(StorageError("gone"))


def surprise(notifier: Notifier) -> None:
    notifier.lost.set_exception(RuntimeError("nobody expects this"))


@pytest.mark.parametrize("end", [lose, fail, surprise])
def test_however_listener_ends_the_news_are_not_live_any_more(end: Callable[[Notifier], None]) -> None:
    async def story() -> None:
        news, notifier = await live_news()
        end(notifier)
        async with asyncio.timeout(60):
            while news.live:
                await asyncio.sleep(0)
        await news.aclose()
        if news._listener is not None and not news._listener.cancelled():
            assert isinstance(news._listener.exception(), RuntimeError)

    asyncio.run(story())


def test_news_that_are_closed_are_not_live() -> None:
    async def story() -> None:
        news, _ = await live_news()
        await news.aclose()
        assert not news.live

    asyncio.run(story())


def test_a_lost_connection_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.storage.notifications.RECONNECT_SECONDS", 0.0)

    async def story() -> None:
        news, notifier = await live_news()
        notifier.listening.clear()
        lose(notifier)
        await asyncio.wait_for(notifier.listening.wait(), 60)
        await asyncio.sleep(0)
        assert news.live
        await news.aclose()

    asyncio.run(story())
