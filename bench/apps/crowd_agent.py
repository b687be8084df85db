"""An agent for ``agent3 serve`` that answers, asks back or fails, each with the words of its caller."""

from __future__ import annotations

from agent3.protocols.functions import Context, LocalAgent

agent = LocalAgent("Crowd", agent_id="crowd", description="Has what a crowd of callers needs.")


@agent.capability(read_only=True)
async def say(text: str) -> str:
    """Say the text back."""
    return text


@agent.capability
async def seat(ctx: Context, text: str) -> str:
    """Ask one question, and say the text and the answer."""
    return f"{text} {await ctx.ask('Which seat?')}"


@agent.capability
async def fail(text: str) -> str:
    """Fail, and say the text in the error."""
    raise ValueError(f"no {text}")
