"""Connections that one worker gives to another: taken by one of them, and by one that was short of files too."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from agent3.observe.metrics import Metrics
from agent3.server import peers as module
from agent3.server.peers import Peers


def test_one_that_its_giver_no_longer_waits_for_is_left_to_it(tmp_path: Path) -> None:
    async def story() -> None:
        loop, taken = asyncio.get_running_loop(), []
        peers = Peers(tmp_path, "a", Metrics())
        peers.take = lambda given, data, origin: taken.append(given)
        giver, came = socket.socketpair()
        client, ours = socket.socketpair()
        with came, client, ours:
            head = module._HEAD.pack(module._CONNECTION, 2)
            socket.send_fds(giver, [head], [ours.fileno()])
            giver.sendall(b"hi")
            giver.close()  # it has waited long enough, and serves the connection itself
            with pytest.raises(OSError, match=os.strerror(errno.EPIPE)):
                peers._receive(loop, came)
            await asyncio.sleep(0)
        assert taken == []

    asyncio.run(story())


def test_a_worker_that_was_short_of_files_takes_connections_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.001, raising=False)
    failures = [OSError(errno.EMFILE, "Too many open files")]

    class Short(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise failures.pop()
            return super().accept()

    async def story() -> None:
        peers, other = Peers(tmp_path, "a", Metrics()), Peers(tmp_path, "b", Metrics())
        taken: asyncio.Queue[tuple[socket.socket, bytes]] = asyncio.Queue()
        peers.take = lambda given, data, origin: taken.put_nowait((given, data))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Short)
            await peers.open()
        client, ours = socket.socketpair()
        with client, ours:
            assert await other.give("a", ours.fileno(), b"GET")
            given, data = await asyncio.wait_for(taken.get(), 60)
            given.close()
            assert data == b"GET"
        await peers.aclose()

    asyncio.run(story())
