"""A cluster in one process: ten gateways on one database, whose network, clocks and lives follow from a seed.

Each gateway is a real call core, with its Runner, jobs, leases and steps. The database is a real one too, in memory.
Between the two, and between gateways, everything takes time and may go wrong: requests are lost before the database
has them, answers after it has done what was asked, notifications for nothing; gateways are cut off, stand still past
their leases, die and come back; their clocks are wrong by up to an hour and run too fast or too slow. Time is the
loop's own: it jumps to the next timer when all wait, so that minutes take a second and a seed tells its story again.

Witnesses are the target, which writes down each call that it begins, and the clients, which write down what they were
told. Clients give every call a key and ask again, anywhere, until they have an end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import selectors
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agent3.calls.core import Core
from agent3.calls.runner import Target
from agent3.env import Env
from agent3.errors import Agent3Error, StorageError, StorageUnsure
from agent3.model import Agent, Call, Capability, Done, Failed, Hints, Outcome, Part, Principal, Route, Working
from agent3.observe.metrics import Metrics
from agent3.settings import Calls, Limits, Settings
from agent3.storage import Database, Row, open_database
from agent3.storage.database import Work
from agent3.storage.syntax import SYNTAX, Dialect, Syntax
from faults.registry import Result, fault

__all__ = ["Diary", "count_requests", "judge", "simulate"]

T = TypeVar("T")
SEEDS = 40
GATEWAYS = 10
CLIENTS = 12
CALLS = 12
"""Of each client."""
STORM = 60.0
"""Seconds of trouble; then all is well, and everything must come to its end."""
CALM = 400.0
LOSS = 0.02
PATIENCE = 90.0
"""Seconds after which a client takes a gateway for gone."""
_PER_GATEWAY = 200.0
"""Jobs per second of each gateway, where requests are counted: few enough for a simulated minute to take a second."""
_CLOCK = "clock of the simulation"
_NOW = f"(SELECT value / 1000000.0 FROM counters WHERE name = '{_CLOCK}')"
_SET = (
    f"INSERT INTO counters (name, value) VALUES ('{_CLOCK}', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_STARTED = 1_700_000_000.0
_CLIENT = Principal("alice", "client")
_SETTINGS = Settings(calls=Calls(timeout=60.0, attempt_timeout=50.0), limits=Limits(per_minute=0))


@fault("cluster")
def cluster(seed: int, seeds: int = SEEDS) -> Result:
    """Ten gateways by the real runner in simulated time: loss, delay, partitions, pauses, deaths and wrong clocks."""
    logging.getLogger("agent3").setLevel(logging.CRITICAL)
    total: Counter[str] = Counter()
    bad: dict[int, Result] = {}
    for one in range(seed, seed + seeds):
        result = judge(simulate(one))
        total.update({name: count for name, count in result.items() if isinstance(count, int) and name != "ok"})
        if not result["ok"]:
            bad[one] = result
    costs = {f"{many} gateways": count_requests(seed, many) for many in (1, 3, GATEWAYS)}
    return {"ok": not bad, "seeds": f"{seed} to {seed + seeds - 1}", **total, "failed": bad, "requests": costs}


# Time


class _Clock(selectors.SelectSelector):
    """Time that passes only when nothing else can happen. It stands still while the database is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.at_work:
            return super().select(10.0)
        if timeout is None:
            raise RuntimeError("everything waits, and for no timer: the story never ends")
        self.now += max(0.0, timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


@dataclass(slots=True)
class _WrongEnv(Env):
    """The world as one gateway sees it: its clocks are wrong, and its chances follow from the seed."""

    clock: _Clock = field(default_factory=_Clock)
    wrong: float = 0.0
    pace: float = 1.0

    def now(self) -> float:
        return _STARTED + self.clock.now * self.pace + self.wrong

    def monotonic(self) -> float:
        return self.clock.now * self.pace

    def random_bytes(self, count: int) -> bytes:
        return self.chance.randbytes(count)

    def _tail(self) -> str:
        return self.random_bytes(10).hex()


# The network and the database behind it


@dataclass(slots=True)
class _Network:
    """What is between the gateways, the database and the target."""

    clock: _Clock
    dice: random.Random
    loss: float = LOSS
    listeners: dict[str, tuple[_Link, Callable[[str], None]]] = field(default_factory=dict)
    asked: int = 0
    """Requests to the database."""
    heard: int = 0
    """Notifications that reached a gateway."""

    def delay(self) -> float:
        """Mostly a few milliseconds, now and then seconds."""
        return self.dice.expovariate(200) if self.dice.random() > 0.01 else self.dice.uniform(0.5, 5.0)


@dataclass(slots=True, eq=False)
class _Link:
    """The way of one gateway to all others."""

    network: _Network
    cut_until: float = 0.0
    still_until: float = 0.0
    is_dead: bool = False
    died: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_cut(self) -> bool:
        return self.network.clock.now < self.cut_until

    async def travel(self, error: type[StorageError] = StorageError) -> None:
        """One way. What a dead gateway does is never heard of."""
        await asyncio.sleep(self.network.delay())
        while (left := self.still_until - self.network.clock.now) > 0:
            await asyncio.sleep(left)
        if self.is_dead:
            await asyncio.Event().wait()
        if self.is_cut or self.network.dice.random() < self.network.loss:
            await asyncio.sleep(self.network.dice.uniform(0.1, 3.0))
            raise error("The connection to the database server was lost.")


class _Remote:
    """The database as a gateway reaches it, with notifications as PostgreSQL has them."""

    dialect: Dialect = "sqlite"
    url = "simulated://"
    syntax: Syntax = replace(SYNTAX["sqlite"], now=_NOW)

    def __init__(self, database: Database, link: _Link):
        self._database = database
        self._link = link

    async def _ask(self, work: Callable[[], Awaitable[T]], answer_lost: type[StorageError] = StorageUnsure) -> T:
        await self._link.travel()
        clock = self._link.network.clock
        self._link.network.asked += 1
        clock.at_work += 1
        try:
            await self._database.statement(_SET, int((_STARTED + clock.now) * 1e6))
            result = await work()
        finally:
            clock.at_work -= 1
        await self._link.travel(answer_lost)
        return result

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        return await self._ask(lambda: self._database.write(work, frees=frees, calm=calm))

    async def statement(self, sql: str, *params: object) -> Row | None:
        return await self._ask(lambda: self._database.statement(sql, *params))

    async def gather(self, sql: str, key: str, *params: object, many: str = "") -> Row | None:
        return await self._ask(lambda: self._database.gather(sql, key, *params, many=many))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._ask(lambda: self._database.many(sql, rows))

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        return await self._ask(lambda: self._database.append(table, columns, rows))

    async def all(self, sql: str, *params: object) -> list[Row]:
        return await self._ask(lambda: self._database.all(sql, *params), StorageError)

    async def one(self, sql: str, *params: object) -> Row | None:
        return await self._ask(lambda: self._database.one(sql, *params), StorageError)

    async def shrink(self) -> int:
        return 0

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        return {"ok": True}

    async def aclose(self) -> None:
        return

    @asynccontextmanager
    async def listen(self, channel: str, on_text: Callable[[str], None]) -> AsyncIterator[asyncio.Future[None]]:
        await self._link.travel()
        listeners, name = self._link.network.listeners, f"{id(self)} {channel}"
        listeners[name] = self._link, on_text
        try:
            yield asyncio.get_running_loop().create_future()
        finally:
            listeners.pop(name, None)

    async def notify(self, channel: str, text: str) -> None:
        await self._link.travel()
        network = self._link.network
        for link, on_text in list(network.listeners.values()):
            if not link.is_dead and not link.is_cut and network.dice.random() > 5 * network.loss:
                network.heard += 1
                asyncio.get_running_loop().call_later(network.delay(), on_text, text)


# What is reached through the gateways


@dataclass(slots=True)
class Diary:
    """What the target and the clients wrote down."""

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    """The end of each call, by its key."""
    changed: list[str] = field(default_factory=list)
    """Calls of which a client was told two different ends."""
    acknowledged: set[str] = field(default_factory=set)
    unanswered: list[str] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    """Jobs in the database at the end, by how they stand."""
    happened: Counter[str] = field(default_factory=Counter)


class _Target:
    """What the agent does. It goes on when the gateway that asked for it is gone."""

    def __init__(self, diary: Diary, link: _Link):
        self._diary = diary
        self._link = link

    async def describe(self, address: str) -> Agent:
        return Agent(id=address, name=address)

    async def call(self, call: Call) -> Outcome:
        dice, name = self._link.network.dice, str(call.input["name"])
        await asyncio.sleep(self._link.network.delay())
        if self._link.is_dead:
            await asyncio.Event().wait()
        if self._link.is_cut:
            return Failed("unavailable", "It cannot be reached.", retryable=True, sent=False)
        self._diary.begun[name] += 1
        if self._link.network.loss:
            await asyncio.sleep(dice.expovariate(2) if dice.random() < 0.9 else dice.uniform(10, 40))
        self._diary.ended[name] += 1
        if self._link.is_dead:
            await asyncio.Event().wait()
        return Done((Part(data={"name": name}),))

    async def aclose(self) -> None:
        return


_ROUTES = (Route("a", "a.test", "do"),)
_CAPABILITIES = {
    "repeated": Capability(name="repeated", hints=Hints(idempotent=True), routes=_ROUTES),
    "unrepeated": Capability(name="unrepeated", routes=_ROUTES),
}
_AGENT = Agent(id="target", name="Target", capabilities=tuple(_CAPABILITIES.values()))


async def _lookup(agent_id: str, name: str) -> Target:
    return _AGENT, _CAPABILITIES[name]


@dataclass(slots=True)
class _Gateway:
    core: Core
    link: _Link


class _Cluster:
    """The gateways that live, and how another is started."""

    def __init__(self, database: Database, network: _Network, diary: Diary):
        self.gateways: list[_Gateway] = []
        self.network = network
        self._database = database
        self._diary = diary

    def start(self) -> None:
        """One more gateway, with clocks of its own."""
        dice, clock = self.network.dice, self.network.clock
        link = _Link(self.network)
        env = _WrongEnv(
            chance=random.Random(dice.random()),
            clock=clock,
            wrong=dice.choice((0.0, dice.uniform(-3_600, 3_600))),
            pace=dice.uniform(0.98, 1.02),
        )
        remote: Any = _Remote(self._database, link)
        core = Core.build(
            _SETTINGS, remote, {"a": _Target(self._diary, link)}, _lookup, env=env, metrics=Metrics(), audited=False
        )
        core.runner.takeover.start()
        self.gateways.append(_Gateway(core, link))

    def kill(self, gateway: _Gateway) -> None:
        """It does nothing more that anybody hears of, and does not clean up."""
        gateway.link.is_dead = True
        gateway.link.died.set()
        self.gateways.remove(gateway)

    async def trouble(self) -> None:
        """What goes wrong, for as long as the storm lasts."""
        dice, clock = self.network.dice, self.network.clock
        while clock.now < STORM:
            await asyncio.sleep(dice.expovariate(0.4))
            gateway, what = dice.choice(self.gateways), dice.choice(("dies", "is cut off", "stands still"))
            self._diary.happened[what] += 1
            if what == "dies":
                self.kill(gateway)
                asyncio.get_running_loop().call_later(dice.uniform(1, 20), self.start)
            elif what == "is cut off":
                gateway.link.cut_until = clock.now + dice.uniform(1, 40)
            else:
                gateway.link.still_until = clock.now + dice.uniform(5, 40)
            while len(self.gateways) < GATEWAYS // 2:
                await asyncio.sleep(1)
        self.network.loss = 0.0
        for gateway in self.gateways:
            gateway.link.cut_until = gateway.link.still_until = 0.0


# The clients


def _make_call(gateway: _Gateway, name: str, kind: str) -> Call:
    return Call(
        id=gateway.core.env.id(),
        principal=_CLIENT,
        agent="target",
        capability=kind,
        input={"name": name},
        key=name,
        routes=_ROUTES,
    )


async def _call(cluster: _Cluster, diary: Diary, name: str, dice: random.Random) -> None:
    """One call, at one gateway after the other, until its end is told; then once more under the same key."""
    kind = diary.kinds[name] = dice.choice(list(_CAPABILITIES))
    detach = dice.random() < 0.5
    for again in (False, True):
        while True:
            told = await _ask(cluster, diary, name, kind, detach, dice)
            if told is not None:
                break
            await asyncio.sleep(dice.uniform(0.2, 2.0))
        if again and told != diary.told[name]:
            diary.changed.append(f"{name}: {diary.told[name]}, then {told}")
        diary.told.setdefault(name, told)


async def _ask(cluster: _Cluster, diary: Diary, name: str, kind: str, detach: bool, dice: random.Random) -> str | None:
    """How one gateway says that it ended; None where it does not."""
    gateway = dice.choice(cluster.gateways)
    runner = gateway.core.runner

    async def ask() -> Outcome:
        call = _make_call(gateway, name, kind)
        outcome = await runner.start(call, (_AGENT, _CAPABILITIES[kind]), door="test", detach=detach)
        while isinstance(outcome, Working) and outcome.job is not None:
            diary.acknowledged.add(name)
            outcome = await runner.wait(_CLIENT, outcome.job, 30.0)
        return outcome

    asking, dying = asyncio.ensure_future(ask()), asyncio.ensure_future(gateway.link.died.wait())
    done, _ = await asyncio.wait({asking, dying}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    if asking not in done:  # whoever waits at a dead gateway learns from its broken connection that it is gone
        if not gateway.link.is_dead and cluster.network.clock.now > STORM + PATIENCE:
            diary.unanswered.append(name)
        return None
    try:
        outcome = asking.result()
    except StorageError:
        return None
    except Agent3Error as error:
        return f"raised {error.code}: {error}"
    if isinstance(outcome, Done):
        return "done"
    assert isinstance(outcome, Failed), outcome
    return None if outcome.code.startswith("storage") or outcome.retryable else f"failed {outcome.code}"


# The story


def simulate(seed: int) -> Diary:
    """One storm, and what was written down in it."""
    return _run(lambda clock: _tell(clock, random.Random(seed)))


def _run(story: Callable[[_Clock], Coroutine[Any, Any, T]]) -> T:
    loop = _Loop()
    loop.set_exception_handler(lambda *_: None)
    complain = sys.unraisablehook
    try:
        return loop.run_until_complete(story(loop.clock))
    finally:
        # What dead gateways still wait for is dropped with the loop, and cannot clean up.
        sys.unraisablehook = lambda _: None
        loop.close()
        gc.collect()
        sys.unraisablehook = complain


def count_requests(seed: int, gateways: int, jobs: int = 600) -> Result:
    """What a job costs a cluster where all is well: requests to the database, and notifications that are heard.

    What grows with the number of gateways would show here, whatever a request costs. Jobs come as fast as one gateway
    can take them, times the number of gateways.
    """

    async def story(clock: _Clock) -> Result:
        clock.at_work += 1
        database = await open_database(":memory:")
        clock.at_work -= 1
        diary, network = Diary(), _Network(clock, random.Random(seed), loss=0.0)
        cluster = _Cluster(database, network, diary)
        for _ in range(gateways):
            cluster.start()
        await asyncio.sleep(10)
        asked, heard, began = network.asked, network.heard, clock.now
        waiting = []
        for number in range(jobs):
            await asyncio.sleep(1 / (_PER_GATEWAY * gateways))
            runner = cluster.gateways[number % gateways].core.runner
            call = _make_call(cluster.gateways[number % gateways], f"{number}", "repeated")
            waiting.append(asyncio.create_task(runner.start(call, (_AGENT, _CAPABILITIES["repeated"]), detach=True)))
        await asyncio.gather(*waiting)
        while any(gateway.core.runner.tasks for gateway in cluster.gateways):
            await asyncio.sleep(0.01)
        asked, heard = network.asked - asked, network.heard - heard
        # Leases, requests of others and the like, which come by the clock and not by the job.
        alone, began = network.asked, clock.now - began
        await asyncio.sleep(60)
        standing = (network.asked - alone) / 60
        clock.at_work += 1
        await database.aclose()
        return {
            "requests_per_job": round((asked - standing * began) / jobs, 2),
            "notifications_per_job": round(heard / jobs, 2),
            "requests_per_second_without_jobs": round(standing, 1),
        }

    return _run(story)


async def _tell(clock: _Clock, dice: random.Random) -> Diary:
    clock.at_work += 1  # opening is not a part of it
    database = await open_database(":memory:")
    clock.at_work -= 1
    diary, network = Diary(), _Network(clock, dice)
    cluster = _Cluster(database, network, diary)
    for _ in range(GATEWAYS):
        cluster.start()

    async def client(number: int) -> None:
        own = random.Random(dice.random())
        for count in range(CALLS):
            await asyncio.sleep(own.uniform(0, 2 * STORM / CALLS))
            await _call(cluster, diary, f"{number}-{count}", own)

    trouble = asyncio.create_task(cluster.trouble())
    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    _, late = await asyncio.wait([trouble, *clients], timeout=STORM + CALM)
    for task in late:
        task.cancel()
    for task in {trouble, *clients} - late:
        task.result()
    clock.at_work += 1
    for row in await database.all("SELECT status, detail, COUNT(*) AS jobs FROM jobs GROUP BY status, detail"):
        diary.jobs[f"{row['status']} {row['detail'] or ''}".strip()] += row["jobs"]
    await database.aclose()
    return diary


def judge(diary: Diary) -> Result:
    """What must be true of a diary."""
    told, kinds = diary.told, diary.kinds
    faults = {
        "told_done_but_not_done": sum(what == "done" and not diary.ended[name] for name, what in told.items()),
        "done_twice": sum(count > 1 for name, count in diary.begun.items() if kinds[name] == "unrepeated"),
        "never_told": sum(name not in told for name in kinds),
        "told_two_ends": len(diary.changed),
        "unanswered": len(diary.unanswered),
        "repeatable_failed": sum(what != "done" and kinds[name] == "repeated" for name, what in told.items()),
        "failed_otherwise_than_interrupted": sum(what not in ("done", "failed interrupted") for what in told.values()),
        "jobs_without_an_end": sum(
            count for what, count in diary.jobs.items() if what.startswith(("working", "needs"))
        ),
    }
    return {
        "ok": not any(faults.values()) and len(told) > 0,
        "calls": len(kinds),
        "acknowledged": len(diary.acknowledged),
        "interrupted": sum(what == "failed interrupted" for what in told.values()),
        **{f"gateway {what}": count for what, count in diary.happened.items()},
        **faults,
        "details": [
            *diary.changed[:5],
            *(f"{n}: {w}" for n, w in told.items() if w not in ("done", "failed interrupted")),
        ][:10],
        "jobs": dict(diary.jobs),
    }
