"""Every place on the way of a message at which it can be struck: each is armed in turn, and nothing may get lost there.

A kill by a failpoint strikes between two steps, where one at random hardly ever does: after the commit and before
anybody is told, or after a receiver has taken a webhook and before that is written down.
"""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from agent3 import failpoints
from agent3.calls.outbox import Delivery, Outbox
from agent3.env import REAL
from agent3.identity.secrets import EnvironmentVault
from agent3.observe.metrics import Metrics
from agent3.settings import Callbacks, Settings
from agent3.storage import Transaction, open_database
from faults import kill_queue
from faults._postgres import postgres
from faults.registry import Result, fault

PLACES = {
    "sqlite": ("storage.commit", "storage.committed", "queue.commit", "queue.committed"),
    "postgres": ("postgres.commit", "postgres.committed", "queue.commit", "queue.committed"),
}
LIVES = 2
OWNERS = 15
EACH = 3
HOW = Callbacks(
    secret="env:HOOK",
    schemes=("http",),
    allow_loopback=True,
    timeout=0.25,
    attempts=100,
    first_delay=0.02,
    longest_delay=0.05,
)
SECRET = {"HOOK": "whsec_c2VjcmV0IGZvciB0aGUgZmF1bHRzIG9mIGNhbGxiYWNrcw=="}
OUTBOX = "outbox.deliver=error:0.3,outbox.delivered=error:0.2,queue.commit=error:0.1"


@fault("failpoints")
def struck(seed: int, lives: int = LIVES) -> Result:
    """Commits, queue and outbox are struck at each failpoint in turn: nothing lost, acked twice or left behind."""
    chance = random.Random(seed)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="agent3-failpoints-") as name, postgres() as server:
        for kind, url in (("sqlite", f"sqlite:///{name}/house.db"), ("postgres", server.url)):
            folder = Path(name, kind)
            folder.mkdir()
            results[kind] = _queue_struck(url, folder, PLACES[kind], chance, lives)
        for kind, url in (("sqlite", f"sqlite:///{name}/outbox.db"), ("postgres", server.url)):
            results[f"outbox_{kind}"] = asyncio.run(asyncio.wait_for(outbox_struck(url, chance.randrange(2**31)), 90))
    return {"ok": all(one["ok"] for one in results.values()), **results}


# The queue


def _queue_struck(url: str, folder: Path, places: tuple[str, ...], chance: random.Random, lives: int) -> Result:
    """Killed at each place, some lives long, then a life in which every place fails now and then."""
    died = 0
    numbers = iter(range(1_000))
    for place in places:
        for _ in range(lives):
            died += _killed_there(url, folder, next(numbers), f"{place}=kill:#{chance.randint(20, 200)}")
    failing = ",".join(f"{place}={'delay:2ms' if place.endswith('ted') else 'error'}:0.1" for place in places)
    with kill_queue.working(url, folder, next(numbers), failing) as child:
        time.sleep(2.0)
        survived = child.poll() is None
    judged = kill_queue.judged(url, folder)
    expected = len(places) * lives
    return judged | {"ok": judged["ok"] and survived and died == expected, "killed_at_their_place": died}


def _killed_there(url: str, folder: Path, number: int, armed: str) -> bool:
    with kill_queue.working(url, folder, number, armed) as child:
        try:
            return child.wait(120) == -9
        except subprocess.TimeoutExpired:
            return False


# The outbox


@dataclass(slots=True)
class _Receiver:
    """Takes every webhook, and keeps whose it was."""

    url: str = ""
    got: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    async def take(self, request: web.Request) -> web.Response:
        owner, _, number = (await request.text()).partition("/")
        self.got[owner].append((request.headers["webhook-id"], number))
        return web.Response(status=204)


@asynccontextmanager
async def _receiving() -> AsyncIterator[_Receiver]:
    receiver = _Receiver()
    app = web.Application()
    app.router.add_post("/", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"{site.name}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def outbox_struck(url: str, seed: int) -> Result:
    """Deliveries whose sending, taking and writing down fail now and then, until all have arrived."""
    logging.getLogger("agent3").setLevel(logging.CRITICAL)
    database = await open_database(url)
    outbox = Outbox(Settings(callbacks=HOW), database, EnvironmentVault(SECRET), REAL, Metrics())
    async with _receiving() as receiver:
        await database.write(lambda tx: _post_all(outbox, tx, receiver.url))
        failpoints.arm(OUTBOX, seed)
        try:
            outbox.start()
            statuses = await _until_delivered(outbox)
        finally:
            failpoints.disarm()
            await outbox.aclose()
            await database.aclose()
    return judge(receiver.got, statuses)


async def _post_all(outbox: Outbox, tx: Transaction, url: str) -> None:
    for owner in range(OWNERS):
        for number in range(EACH):
            delivery = Delivery(url, f"o{owner}/{number}", f"o{owner}")
            await outbox.post(tx, delivery, id=f"cb{owner}-{number}", subject="all", event="test")


async def _until_delivered(outbox: Outbox) -> Counter[str]:
    while True:
        statuses: Counter[str] = Counter(receipt.status for receipt in await outbox.receipts("all"))
        if statuses["waiting"] + statuses["sending"] == 0:
            return statuses
        await asyncio.sleep(0.1)


def judge(got: dict[str, list[tuple[str, str]]], statuses: Counter[str]) -> Result:
    """What arrived, by owner, and what is written down of it."""
    first = {owner: list(dict.fromkeys(number for _, number in arrived)) for owner, arrived in got.items()}
    names = {f"cb{owner[1:]}-{number}": name for owner, arrived in got.items() for name, number in arrived}
    expected = [str(number) for number in range(EACH)]
    faults = {
        "never_arrived": OWNERS * EACH - sum(len(numbers) for numbers in first.values()),
        "out_of_order": sum(numbers != expected for numbers in first.values()),
        "other_ids": sum(told != name for told, name in names.items()),
        "not_delivered": OWNERS * EACH - statuses["delivered"],
    }
    repeated = sum(map(len, got.values())) - OWNERS * EACH
    return {
        "ok": not any(faults.values()) and repeated > 0,
        "deliveries": OWNERS * EACH,
        "repeated": repeated,
        **faults,
    }
