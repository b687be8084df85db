"""An agent for ``agent3 serve`` whose tasks end at once, wait for a person, or go on for as long as somebody tells."""

from __future__ import annotations

import asyncio

from agent3.protocols.functions import Context, LocalAgent, SyncContext

agent = LocalAgent("Desk", agent_id="desk", description="Has the tasks that a benchmark needs.")
words: asyncio.Queue[str] = asyncio.Queue()


@agent.capability(read_only=True)
async def say(message: str) -> str:
    """Say the message back."""
    return message


@agent.capability
async def note(message: str) -> str:
    """Say the message back; nobody allows this to be done twice."""
    return message


@agent.capability
async def wait(ctx: Context, message: str) -> str:
    """Ask one question, and wait for the answer in the middle of the function."""
    return f"{message} {await ctx.ask('Which seat?')}"


@agent.capability
def wait_plain(ctx: SyncContext, message: str) -> str:
    """Ask one question; with the answer the function is run again."""
    return f"{message} {ctx.ask('Which seat?')}"


@agent.capability
async def hold(ctx: Context, message: str) -> str:
    """Pass on each word that ``tell`` brings, for ever."""
    while True:
        ctx.status(await words.get())


@agent.capability
async def tell(message: str) -> str:
    """Give a word to ``hold``."""
    words.put_nowait(message)
    return message
