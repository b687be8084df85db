"""kill -9 of the browser in the middle of visits: each begins again or fails with its reason, and nothing is left.

A gateway visits a small shop on loopback, searching and buying, while its browser (at times a page of it, or the driver
beside it) is killed at random moments. What was searched for must be found or refused with a reason; nothing is bought
twice; and when the gateway is closed there is no process and no profile left.
"""

from __future__ import annotations

import asyncio
import html
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agent3.definitions import NLWebInterface
from agent3.gateway.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Done, Failed, Needs, Outcome, value_of
from agent3.protocols.nlweb import agent_of
from agent3.server.build import Server, build
from agent3.settings import Settings, Storage
from faults.registry import Result, fault

KILLS = 20
VISITORS = 4
SECONDS = 20.0
"""The longest that a visit may take, however often its browser is killed."""
ME = Caller(LOCAL, "faults")


@fault("kill-browser")
def kill_browser(seed: int, kills: int = KILLS) -> Result:
    """kill -9 of the browser under four visitors, 20 times: done again or failed with a reason, nothing left behind."""
    chance = random.Random(seed)
    before = descendants(os.getpid())
    with (
        tempfile.TemporaryDirectory(prefix="agent3-kill-browser-") as name,
        _temporary(Path(name)),
        shop() as (url, sold),
    ):
        folder = Path(name)
        told = asyncio.run(asyncio.wait_for(_story(folder, url, kills, chance), 300))
        left = _left(before)
        profiles = sorted(one.name for one in folder.iterdir() if one.name.startswith(("playwright", "agent3-browser")))
        return judged(told, sold, left, profiles) | {"kills": kills}


def judged(told: list[dict[str, Any]], sold: Counter[str], left: int, profiles: list[str]) -> Result:
    """What the visitors were told against what the shop saw."""
    faults = {
        "wrong_answers": sum(one["status"] == "wrong" for one in told),
        "without_a_reason": sum(one["status"] == "failed" and not one["why"] for one in told),
        "bought_twice": sum(count > 1 for count in sold.values()),
        "told_and_not_bought": sum(one["status"] == "bought" and not sold[one["what"]] for one in told),
        "processes_left": left,
        "profiles_left": len(profiles),
        "too_slow": sum(one["seconds"] > SECONDS for one in told),
    }
    ended = Counter(one["status"] for one in told)
    return {
        "ok": not any(faults.values()) and ended["found"] > 0 and ended["bought"] > 0,
        "visits": len(told),
        **{key: ended[key] for key in ("found", "bought", "failed")},
        **faults,
        "slowest": round(max((one["seconds"] for one in told), default=0.0), 1),
        "reasons": dict(Counter(one["why"].partition(":")[0] for one in told if one["why"])),
    }


async def _story(folder: Path, url: str, kills: int, chance: random.Random) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    async with build(Settings(storage=Storage(url=f"sqlite:///{folder}/house.db"))) as server:
        await server.directory.add(agent_of(interface(url)))
        over = asyncio.Event()
        visitors = [asyncio.create_task(_visit(server, who, over, told)) for who in range(VISITORS)]
        for _ in range(kills):
            await _one_killed(chance, len(told), told)
        await _both_seen(told)
        over.set()
        await asyncio.gather(*visitors)
    return told


async def _one_killed(chance: random.Random, before: int, told: list[dict[str, Any]]) -> None:
    """Kill one at a random moment, and let two visits end before the next."""
    await asyncio.sleep(chance.uniform(0.1, 0.6))
    async with asyncio.timeout(60):
        while not _kill(chance.choice(("browser", "browser", "browser", "page", "driver"))):
            await asyncio.sleep(0.02)
        while len(told) < before + 2:
            await asyncio.sleep(0.05)


async def _both_seen(told: list[dict[str, Any]]) -> None:
    """Let both kinds of visits end well once: few kills are over before anybody has come to buy."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not {"found", "bought"} <= {one["status"] for one in told}:
                await asyncio.sleep(0.05)


def _kill(what: str) -> bool:
    for pid in sorted(descendants(os.getpid())):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            kinds = {"page": b"--type=renderer", "driver": b"run-driver"}
            is_browser = b"--user-data-dir" in command and b"--type=" not in command
            if is_browser if what == "browser" else kinds[what] in command:
                os.kill(pid, signal.SIGKILL)
                return True
    return False


# The visitors


async def _visit(server: Server, who: int, over: asyncio.Event, told: list[dict[str, Any]]) -> None:
    number = 0
    while not over.is_set():
        number += 1
        what = f"thing-{who}-{number}"
        began = time.monotonic()
        outcome = await (_bought if number % 3 == 0 else _found)(server, what)
        told.append({"what": what, "seconds": time.monotonic() - began, **_ended(outcome, what)})


async def _found(server: Server, what: str) -> Outcome:
    return await server.gateway.call(ME, CallRequest(agent="shop", capability="search", input={"query": what}))


async def _bought(server: Server, what: str) -> Outcome:
    asked = await server.gateway.call(ME, CallRequest(agent="shop", capability="buy", input={"product": what}))
    if not isinstance(asked, Needs) or asked.job is None:
        return asked
    return await server.gateway.answer(ME, asked.job, {asked.questions[0].id: Answer(data=True)})


def _ended(outcome: Outcome, what: str) -> dict[str, Any]:
    if isinstance(outcome, Failed):
        return {"status": "failed", "why": f"{outcome.code}: {outcome.message}" if outcome.message else ""}
    value = value_of(outcome.parts) if isinstance(outcome, Done) else None
    known = {f"found {what}": "found", f"bought {what}": "bought"}
    said = value[0] if isinstance(value, list) and len(value) == 1 else None
    return {"status": known.get(said, "wrong") if isinstance(said, str) else "wrong", "why": ""}


def interface(url: str) -> NLWebInterface:
    """The shop's."""

    def through(path: str, parameter: str) -> list[dict[str, Any]]:
        return [
            {"action_type": "navigate", "value": path},
            {"action_type": "type", "selector": "input", "value": f"{{{parameter}}}"},
            {"action_type": "click", "selector": "button"},
            {"action_type": "extract", "selector": "h1"},
        ]

    return NLWebInterface.from_document(
        {
            "interface_id": "shop",
            "name": "Shop",
            "base_url": url,
            "actions": {"search": through("/search", "query"), "buy": through("/buy", "product")},
            "info": {"search": {"hints": {"read_only": True}}, "buy": {"hints": {"consequential": True}}},
        }
    )


# The shop


@contextmanager
def shop() -> Iterator[tuple[str, Counter[str]]]:
    """Its address, and what it sold."""
    sold: Counter[str] = Counter()
    pages = {"/search": "found", "/buy": "bought"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            what = dict(parse_qsl(parts.query)).get("what")
            if parts.path == "/bought" and what:
                sold[what] += 1
            word = pages.get(parts.path)
            form = f"<form action='/{word}'><input name='what'><button>Go</button></form>"
            said = f"<h1>{parts.path[1:]} {html.escape(what or '')}</h1>"
            body = f"<!doctype html>{form if word else said}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", sold
        finally:
            server.shutdown()


# What is left


@contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    """Have every profile made in a folder of our own, where one that stays is seen."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
        tempfile.tempdir = None


def _left(before: set[int], seconds: float = 10.0) -> int:
    """Processes that are still there a while after the end."""
    end = time.monotonic() + seconds
    while (left := descendants(os.getpid()) - before) and time.monotonic() < end:
        time.sleep(0.05)
    return len(left)


def descendants(pid: int) -> set[int]:
    """Every living process below this one; a zombie is dead."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    ring = {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring}
        found |= ring
    return found
