"""An agent with a few dozen tools for ``agent3 serve``: most of them small, one with a large nested input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agent3.protocols.functions import LocalAgent

TOOLS = 50
agent = LocalAgent("Shop", agent_id="shop", description="Sells what a benchmark needs.")


@dataclass
class Money:
    amount: float
    currency: Literal["CHF", "EUR", "USD"]


@dataclass
class Option:
    name: str
    value: str


@dataclass
class Discount:
    percent: float
    reason: str


@dataclass
class Line:
    sku: str
    quantity: int
    price: Money
    options: list[Option] = field(default_factory=list)
    discount: Discount | None = None


@dataclass
class Address:
    name: str
    street: str
    city: str
    country: str
    lines: list[str] = field(default_factory=list)


@dataclass
class Order:
    customer: Address
    delivery: Address
    lines: list[Line]
    tags: list[str] = field(default_factory=list)


@agent.capability
async def place(order: Order) -> dict[str, Any]:
    """Place an order and work out what it costs.

    Args:
        order: Who gets what, line by line.
    """
    return {"customer": order.customer.name, "lines": len(order.lines), "total": sum(map(_cost, order.lines))}


def _cost(line: Line) -> float:
    off = line.discount.percent if line.discount else 0.0
    return line.quantity * line.price.amount * (1 - off / 100)


def _shelf(number: int) -> None:
    async def look(query: str, limit: int = 10) -> str:
        """Look for something on one shelf.

        Args:
            query: What to look for.
            limit: How much to show.
        """
        return f"{number}: {query} {limit}"

    look.__name__ = f"look_{number:02}"
    agent.add(look)


for one in range(TOOLS - 1):
    _shelf(one)
