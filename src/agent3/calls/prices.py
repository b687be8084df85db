"""Prices: what a call costs. As the operator set it, else as the settings say, else as the agent says of itself.

What an agent says afterwards that a call did cost counts in place of its own price, and where it is more also in place
of the operator's (``agent3.calls.steps.ledger``).

A price that was set with ``agent3 price`` is in the database, for all gateways on it; each looks for changes every few
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from agent3.env import REAL
from agent3.errors import ValidationError
from agent3.model import Capability, Price
from agent3.settings import PriceRule
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, record_change
from agent3.storage.counters import increase

__all__ = ["EVERY", "Prices", "SetPrice"]

EVERY = 5.0
"""Seconds between two looks for prices that another process has set."""
_MOST = 10_000
"""Prices that may be set one by one; for more there are patterns in the settings."""
_ALL = "*"
_SET = """
INSERT INTO prices (agent, capability, call, second, tokens) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (agent, capability) DO UPDATE SET call = excluded.call, second = excluded.second, tokens = excluded.tokens
"""


class SetPrice(Price, frozen=True):
    """A price that the operator set: what an agent says that a call cost can raise it, and never lower it."""


class Prices:
    """The prices of one gateway. ``on_change`` hears when one was set, by whichever process."""

    def __init__(self, database: Database, rules: Sequence[PriceRule] = ()):
        self._database = database
        self._rules = tuple(rules)
        self._stored: dict[tuple[str, str], Price] = {}
        self._version = 0
        self.on_change: Callable[[], None] = lambda: None

    def of(self, agent: str, capability: Capability) -> Price:
        """What a call of a capability costs."""
        stored = self._stored.get((agent, capability.name)) or self._stored.get((agent, _ALL))
        if stored is not None:
            return stored
        for rule in self._rules:
            if fnmatchcase(agent, rule.agent) and fnmatchcase(capability.name, rule.capability):
                return SetPrice(rule.call, rule.second, rule.tokens)
        return capability.price

    async def refresh(self) -> None:
        """Take over what was set since the last look."""
        row = await self._database.one("SELECT value FROM counters WHERE name = 'prices'")
        version = 0 if row is None else int(row["value"])
        if version == self._version:
            return
        rows = await self._database.all("SELECT * FROM prices")
        self._stored = {
            (row["agent"], row["capability"]): SetPrice(row["call"], row["second"], row["tokens"]) for row in rows
        }
        self._version = version
        self.on_change()

    async def set(self, agent: str, capability: str | None, price: Price | None) -> None:
        """Set the price of a capability, or of all of an agent; None takes it back."""
        name = capability or _ALL
        if price is not None:
            for what, value in (("call", price.call), ("second", price.second), ("tokens", price.tokens)):
                if not 0 <= value <= 1_000_000:
                    raise ValidationError(f"{what} is {value}; a price must be from 0 to 1,000,000 US dollars.")

        who = ACTOR.get()

        async def work(tx: Transaction) -> None:
            if price is None:
                await tx.run("DELETE FROM prices WHERE agent = ? AND capability = ?", agent, name)
            else:
                count = await tx.one("SELECT COUNT(*) AS count FROM prices")
                if count is not None and count["count"] >= _MOST:
                    raise ValidationError(
                        f"There are already {_MOST} prices, the maximum. Use [[prices]] with patterns."
                    )
                await tx.run(_SET, agent, name, float(price.call), float(price.second), float(price.tokens))
            content = None if price is None else msgspec.json.encode(price)
            await record_change(tx, REAL, "price set", f"{agent}.{name}", content, who)
            await increase(tx, "prices")

        await self._database.write(work)
        await self.refresh()

    async def stored(self, agent: str) -> list[dict[str, Any]]:
        """The prices that were set for an agent."""
        rows = await self._database.all("SELECT * FROM prices WHERE agent = ? ORDER BY capability", agent)
        return [dict(row) for row in rows]
