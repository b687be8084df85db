"""A currency agent: it converts in one turn, tells what it is doing, and asks for what it was not told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import agent3.a2a
from agent3 import AgentCapability, AgentCard, AgentExecutor, Context

RATES = {"USD": 1.0, "EUR": 0.92, "GBP": 0.79, "JPY": 150.0, "CAD": 1.36, "INR": 83.0}
"""How much a dollar is, for an example that needs no network."""

CARD = AgentCard(
    agent_id="currency",
    name="Currency Agent",
    description="Converts amounts between currencies",
    version="1.0.0",
    capabilities=[
        AgentCapability(
            id="convert_currency",
            name="convert",
            description="Converts an amount from one currency to another",
            tags=["currency conversion", "currency exchange"],
            examples=["How much is 10 USD in INR?"],
            inputModes=["text/plain"],
            outputModes=["text/plain"],
        ),
        AgentCapability(
            id="show_rates",
            name="rates",
            description="Tells the rates of all currencies, one after the other",
            tags=["currency rates"],
            examples=["What are the rates of today?"],
        ),
    ],
)


async def convert(ctx: Context, message: str) -> str:
    """Convert an amount. What the message does not say is asked for."""
    amount = float(next(iter(re.findall(r"\d+(?:\.\d+)?", message)), "1"))
    named = [word for word in re.findall(r"\b[A-Z]{3}\b", message) if word in RATES]
    source = named[0] if named else await currency(ctx, "Which currency do you have?")
    target = named[1] if len(named) > 1 else await currency(ctx, "Which currency do you want?")
    ctx.status("Looking up the exchange rates")
    await asyncio.sleep(0)
    ctx.status("Processing the exchange rates")
    return f"{amount:g} {source} is {amount / RATES[source] * RATES[target]:.2f} {target}."


async def currency(ctx: Context, question: str) -> str:
    """Ask until a currency is named that is known."""
    while True:
        answer = str(await ctx.ask(question)).strip().upper()
        if named := [word for word in re.findall(r"\b[A-Z]{3}\b", answer) if word in RATES]:
            return named[0]
        question = f"I do not know {answer[:20]!r}. Give one of {', '.join(RATES)}."


async def rates(message: str = "") -> AsyncIterator[str]:
    """Tell all rates, as a stream."""
    for name, rate in RATES.items():
        yield f"1 USD is {rate:g} {name}\n"
        await asyncio.sleep(0)


agent = AgentExecutor(CARD)
agent.register_capability("convert", convert, replay=True)
agent.register_capability("rates", rates, read_only=True)

if __name__ == "__main__":
    agent3.a2a.serve(agent, port=10_000)
