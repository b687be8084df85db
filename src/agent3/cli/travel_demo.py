"""``agent3 demo``: the travel demo, told step by step."""

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
    """Plan a trip with agents of every kind, kill one of them, and plan it again.

    Parameters
    ----------
    server:
        Address of a gateway that was started with --demo. By default that of AGENT3_SERVER, else one that runs on this
        machine, else one that is started for this, in memory.
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
    """The scenes one by one; when they are over, ``told`` is what was found out."""

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
                        f"The gateway at {server} does not show the demo. Start it with agent3 serve --demo."
                    ) from None
            else:
                yield gateway
                return
    settings = Settings(server=Server(port=0), storage=Storage(url=":memory:"))
    with InBackground(settings, agents(), beside=stage.stage) as url, Client(url) as gateway:
        yield gateway


def _print_scenes(url: str, scenes: _Scenes) -> None:
    """At a terminal with a spinner for what is going on; into a pipe the finished scenes alone."""
    console = make_console()
    console.print(f"The gateway is {url}", style="dim")
    with console.status("Beginning") as spinner:
        for scene in scenes:
            if not scene.lines:
                spinner.update(clean(scene.title))
                continue
            console.print(f"\n{clean(scene.title)}", style="bold")
            for line in scene.lines:
                console.print(f"  {clean(line)}")
