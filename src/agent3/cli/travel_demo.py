"""``agent3 demo``: the travel demo, step by step."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from agent3.cli.output import make_console
from agent3.client.announcement import find_running
from agent3.client.client import Client
from agent3.demo import stage, tale
from agent3.errors import AccessError, AgentNotFound, SetupError
from agent3.observe import logs
from agent3.server.demo import agents
from agent3.server.run import InBackground
from agent3.settings import Server, Settings, Storage, load
from agent3.terminal.output import clean, print_json

__all__ = ["demo"]


def demo(*, server: str | None = None, json: bool = False) -> None:
    """Plan a trip with agents of every kind, kill one of them, and plan again.

    Parameters
    ----------
    server:
        Address of a gateway started with --demo [default: AGENT3_SERVER, else one running on this machine, else a
        temporary one].
    json:
        Print JSON.
    """
    logs.configure("ERROR", "text")
    with _gateway(server) as gateway:
        scenes = _Scenes(tale.tell(gateway))
        if json:
            for _ in scenes:
                pass
            print_json(scenes.told)
        else:
            _print_scenes(gateway.url, scenes)
    if scenes.told["second"]["journey"] is None:
        sys.exit(1)


class _Scenes:
    """The scenes one by one; afterwards ``told`` is the result."""

    def __init__(self, scenes: Generator[tale.Scene, None, dict[str, Any]]):
        self._scenes = scenes
        self.told: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tale.Scene]:
        self.told = yield from self._scenes


@contextmanager
def _gateway(server: str | None) -> Iterator[Client]:
    server = server or os.environ.get("AGENT3_SERVER") or None
    address = server or find_running(load())
    if address is not None:
        with Client(address) as gateway:
            try:
                gateway.select(stage.ID)
            except (AgentNotFound, AccessError):
                if server is not None:
                    raise SetupError(
                        f"The gateway at {server} does not serve the demo. Start it with agent3 serve --demo."
                    ) from None
            else:
                yield gateway
                return
    settings = Settings(server=Server(port=0), storage=Storage(url=":memory:"))
    with InBackground(settings, agents(), beside=stage.stage) as url, Client(url) as gateway:
        yield gateway


def _print_scenes(url: str, scenes: _Scenes) -> None:
    """At a terminal with a spinner; into a pipe the finished scenes only."""
    console = make_console()
    console.print(f"Using the gateway at {url}", style="dim")
    with console.status("Beginning") as spinner:
        for scene in scenes:
            if not scene.lines:
                spinner.update(clean(scene.title))
                continue
            console.print(f"\n{clean(scene.title)}", style="bold")
            for line in scene.lines:
                console.print(f"  {clean(line)}")
