"""Google's ADK as a client of A2A: ``URL`` is that of a card. It prints what it saw as JSON."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import json
import sys
import warnings

warnings.simplefilter("ignore")

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402


async def main(card: str) -> None:
    """Call an agent, and one that is not there."""
    said = []
    for url in (card, card.replace("/talk/", "/nobody-of-this-name/")):
        runner = InMemoryRunner(agent=RemoteA2aAgent(name="remote", agent_card=url), app_name="interop")
        session = await runner.session_service.create_session(app_name="interop", user_id="somebody")
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        heard = ""
        async for event in runner.run_async(user_id="somebody", session_id=session.id, new_message=message):
            parts = event.content.parts if event.content is not None and event.content.parts else []
            heard += "".join(part.text or "" for part in parts) + (event.error_message or "")
        said.append(heard)
    sys.stdout.write(json.dumps({"found": bool(said[0]), "value": said[0], "error": said[1]}) + "\n")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(sys.argv[1]), 90))
