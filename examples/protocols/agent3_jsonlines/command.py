"""``agent3 jsonl``: looks at an agent that speaks JSON lines, without adding it."""

from __future__ import annotations

import asyncio
import json

from agent3.security.outbound import Policy
from agent3_jsonlines.connector import JSONLinesConnector

__all__ = ["show_card"]


def show_card(address: str) -> None:
    """Show the card of an agent that speaks JSON lines, without adding it.

    Parameters
    ----------
    address:
        jsonl://HOST:PORT, or with /AGENT.
    """
    agent = asyncio.run(JSONLinesConnector(Policy()).describe(address))
    print(json.dumps(agent.card, indent=2, ensure_ascii=False))
