"""The agent that our own side of the matrix serves: the same words as the agents of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agent3.protocols.functions import LocalAgent

agent = LocalAgent("Talker", agent_id="talk", description="Echoes, and tells stories in pieces.")


@agent.capability
async def talk(message: str) -> AsyncIterator[str]:
    """Echo a message; one that begins with "story" is told in three pieces."""
    verb, _, rest = message.partition(" ")
    if verb == "story":
        for piece in ("Once ", "upon ", rest):
            yield piece
    else:
        yield f"echo: {message}"
