"""Budgets: how much callers may spend, and the cost standards that warn.

What a call is known to cost is reserved before it starts, in one transaction that every process on the database shares,
so that a budget that refuses is not overdrawn by calls that start at once. What it really cost is settled when it has
ended, a moment later and on the day of the reservation. Seconds and tokens are known only then: calls that already run
may go beyond.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec
from msgspec import Struct

from agent3.env import Env
from agent3.errors import BudgetExceeded, StorageError
from agent3.model import Connector, traits_of
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.settings import Budget, Costs
from agent3.storage import Database, Transaction

__all__ = ["Account", "Bill", "Budgets", "Reservation", "Standards"]

log = logger("budgets")

_DAY = 86_400
_PAUSE = 0.05
_FRESH = 1.0
"""Seconds for which a sum is trusted that only this process has looked at."""
_KNOWN = 10_000
_WARN_EVERY = 60.0
_ROUNDING = 1e-9
"""US dollars that adding up may be wrong by: a hundred times 0.001 is 0.10000000000000007."""
_ADD = """
INSERT INTO budget_spent (key, period, usd) VALUES (?, ?, ?)
ON CONFLICT (key, period) DO UPDATE SET usd = budget_spent.usd + excluded.usd RETURNING usd
"""


@dataclass(frozen=True, slots=True)
class Account:
    """One budget of one client, agent or pair. The key does not hold the sum, which may be changed in the middle."""

    budget: Budget
    key: str
    whose: str


class Reservation(Struct, frozen=True):
    """US dollars that were counted before a call, and where: keys of accounts with their periods."""

    usd: float
    places: tuple[tuple[str, int], ...]


class Bill(Struct, frozen=True, omit_defaults=True):
    """What is known of the cost of a job while it goes on."""

    reserved: Reservation | None = None
    seconds: float = 0.0
    """What its turns took so far."""
    sent: bool = False
    """Whether a turn reached for the target. What was never sent costs nothing."""


class Budgets:
    """The budgets of the settings, on one database. ``aclose`` settles what is left."""

    def __init__(self, budgets: Sequence[Budget], database: Database, env: Env, metrics: Metrics):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._spent: OrderedDict[tuple[str, int], tuple[float, float]] = OrderedDict()
        """What is known to be spent, and when that was looked at."""
        self._due: dict[tuple[str, int], float] = {}
        self._settler: asyncio.Task[None] | None = None
        self._warned: dict[str, float] = {}

        @lru_cache(maxsize=10_000)
        def match(principal: str, agent: str) -> tuple[Account, ...]:
            found = []
            for budget in budgets:
                if fnmatchcase(principal, budget.principal) and fnmatchcase(agent, budget.agent):
                    client = principal if budget.each in ("client", "pair") else ""
                    at = agent if budget.each in ("agent", "pair") else ""
                    parts = (budget.principal, budget.agent, budget.each, budget.per, client, at)
                    named = at or ("" if budget.agent == "*" else budget.agent)
                    whose = " at ".join(filter(None, (client or ("" if at else "all callers"), named)))
                    found.append(Account(budget, msgspec.json.encode(parts).decode(), whose))
            return tuple(found)

        self.match = match
        """The accounts that a call of a caller to an agent is counted on."""

    def is_open(self, accounts: Sequence[Account]) -> bool:
        """Whether a call whose cost is not known may start, by what is known here; else ``reserve`` decides."""
        now = self._env.monotonic()
        for account in accounts:
            spent, looked = self._spent.get((account.key, self._period(account)), (0.0, float("-inf")))
            over = spent > 0 and spent >= account.budget.usd - _ROUNDING
            if now - looked > _FRESH or (over and account.budget.action == "refuse"):
                return False
        return True

    async def reserve(
        self, accounts: Sequence[Account], usd: float, before: Reservation | None = None
    ) -> Reservation | None:
        """Count what a call will cost at least, on all of its accounts or none; BudgetExceeded where it is too much.

        What was reserved for it before is given back in the same transaction: an account that it stays on only counts
        the difference. BudgetExceeded leaves all as it was.
        """
        taken = [(account, self._period(account)) for account in accounts]
        places = tuple((account.key, period) for account, period in taken)
        reserved, held = (0.0, ()) if before is None else (before.usd, before.places)
        left = [place for place in held if place not in places]

        async def work(tx: Transaction) -> list[float]:
            totals = []
            for account, period in taken:
                stays = (account.key, period) in held
                more = usd - reserved if stays else usd
                row = await tx.one(_ADD, account.key, period, float(more))
                assert row is not None
                total, most = row["usd"], account.budget.usd
                over = total > most + _ROUNDING or (not usd and total and total >= most - _ROUNDING)
                if account.budget.action == "refuse" and over and not (stays and more <= 0):
                    raise self._refusal(account, total - more)
                totals.append(total)
            for key, period in left:
                row = await tx.one(_ADD, key, period, -reserved)
                assert row is not None
                totals.append(row["usd"])
            return totals

        # Calm: adding locks the row until the commit, and nothing else is read.
        totals = await self._database.write(work, calm=True)
        for (key, period), total in zip([*places, *left], totals, strict=True):
            self._know(key, period, total)
        return Reservation(usd, places) if usd else None

    def settle(self, accounts: Sequence[Account], usd: float, reserved: Reservation | None = None) -> None:
        """Count what a call cost: where it was reserved what differs from that, else all of it today. Never waits."""
        places = [(one.key, self._period(one)) for one in accounts] if reserved is None else reserved.places
        more = usd if reserved is None else usd - reserved.usd
        if more:
            for place in places:
                self._owe(place, more)

    def give_back(self, reserved: Reservation | None) -> None:
        """Settle a call that cost nothing."""
        self.settle((), 0.0, reserved)

    def _owe(self, place: tuple[str, int], usd: float) -> None:
        self._due[place] = self._due.get(place, 0.0) + usd
        if place in self._spent:
            spent, looked = self._spent[place]
            self._spent[place] = spent + usd, looked
        if self._settler is None or self._settler.done():
            self._settler = asyncio.get_running_loop().create_task(self._settle_all(), name="budgets")

    def notes(self, accounts: Sequence[Account]) -> list[str]:
        """A sentence for each budget that is spent, for the caller; logged now and then, and counted each time."""
        found = []
        for account in accounts:
            spent, _ = self._spent.get((account.key, self._period(account)), (0.0, 0.0))
            budget = account.budget
            if spent > budget.usd + _ROUNDING or (spent and spent >= budget.usd - _ROUNDING):
                found.append(f"Budget of {account.whose}: ${spent:.4g} of ${budget.usd:g} spent{_when(budget)}.")
                self._metrics.budgets_exceeded.inc((budget.action, account.whose))
                self._warn(account.key, found[-1])
        return found

    async def aclose(self) -> None:
        """Settle what is left."""
        if self._settler is not None:
            await asyncio.wait([self._settler])

    def _refusal(self, account: Account, spent: float) -> BudgetExceeded:
        budget, now = account.budget, self._env.now()
        opens = None if budget.per == "all" else _DAY - now % _DAY
        when = "It is not renewed." if opens is None else f"It is renewed at midnight UTC, in {opens / 3600:.1f} h."
        self._metrics.budgets_exceeded.inc((budget.action, account.whose))
        self._warn(account.key, f"Budget of {account.whose}: calls are refused, ${spent:.4g} of ${budget.usd:g} spent.")
        error = BudgetExceeded(
            f"The budget of {account.whose} is exhausted: ${spent:.4g} of ${budget.usd:g}{_when(budget)}. {when}",
            data={"spent": round(spent, 9), "budget": budget.usd},
            retry_after=opens,
        )
        error.sent = False
        return error

    def _warn(self, key: str, text: str) -> None:
        now = self._env.monotonic()
        if now - self._warned.get(key, float("-inf")) > _WARN_EVERY:
            if len(self._warned) >= _KNOWN:
                self._warned.clear()
            self._warned[key] = now
            log.warning("%s", text)

    def _period(self, account: Account) -> int:
        return int(self._env.now() // _DAY) if account.budget.per == "day" else 0

    def _know(self, key: str, period: int, total: float) -> None:
        self._spent[key, period] = total + self._due.get((key, period), 0.0), self._env.monotonic()
        self._spent.move_to_end((key, period))
        if len(self._spent) > _KNOWN:
            self._spent.popitem(last=False)

    async def _settle_all(self) -> None:
        while self._due:
            await asyncio.sleep(_PAUSE)
            due, self._due = self._due, {}

            async def work(tx: Transaction, due: dict[tuple[str, int], float] = due) -> list[float]:
                rows = [await tx.one(_ADD, key, period, usd) for (key, period), usd in due.items()]
                return [row["usd"] for row in rows if row is not None]

            try:
                totals = await self._database.write(work, calm=True)
            except StorageError as error:
                log.error("budgets: %s; spending is counted when the database answers again", error)
                for place, usd in due.items():
                    self._due[place] = self._due.get(place, 0.0) + usd
                await asyncio.sleep(1.0)
                continue
            for (key, period), total in zip(due, totals, strict=True):
                self._know(key, period, total)


def _when(budget: Budget) -> str:
    return " today" if budget.per == "day" else ""


class Standards:
    """What calls are expected to cost at most, by protocol, over the last calls of this process."""

    def __init__(self, costs: Costs, connectors: Mapping[str, Connector], env: Env, metrics: Metrics):
        self._env = env
        self._metrics = metrics
        self._warned: dict[str, float] = {}
        self._windows = {
            protocol: [
                _Window(count, most, name)
                for count, name in traits_of(connector).cost_standards
                if (most := getattr(costs, name)) >= 0
            ]
            for protocol, connector in connectors.items()
        }

    def watches(self, protocol: str) -> bool:
        """Whether there is a standard for a protocol."""
        return bool(self._windows.get(protocol))

    def note(self, protocol: str, usd: float) -> list[str]:
        """Count a call, and say which standards it misses, or the last calls together with it."""
        missed = []
        for window in self._windows.get(protocol, ()):
            total = window.add(usd)
            if usd and total > window.most + _ROUNDING:
                calls = "one call" if window.count == 1 else f"the last {len(window.costs)} calls"
                missed.append(
                    f"Cost standard {window.name}: {calls} cost ${total:.4g}, expected at most ${window.most:g}."
                )
                self._metrics.cost_standards_missed.inc((window.name,))
                now = self._env.monotonic()
                if now - self._warned.get(window.name, float("-inf")) > _WARN_EVERY:
                    self._warned[window.name] = now
                    log.warning("%s", missed[-1])
        return missed


class _Window:
    """The costs of the last calls, and their sum."""

    def __init__(self, count: int, most: float, name: str):
        self.count = count
        self.most = most
        self.name = name
        self.costs: deque[float] = deque(maxlen=count)
        self._sum = 0.0

    def add(self, usd: float) -> float:
        if len(self.costs) == self.count:
            self._sum -= self.costs[0]
        self.costs.append(usd)
        self._sum += usd
        return self._sum
