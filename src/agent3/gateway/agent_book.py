"""Agents added and removed by operators, over REST: ``agent3 add`` and ``agent3 remove`` for who is not at the machine.

The local person may add whatever the command takes. A client with the scope ``agent3:operate`` may add what answers at
an address. It may not have a program run, a file of the machine read, or a secret of the machine sent elsewhere: these
would give it the machine, and not just the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from agent3 import schema
from agent3.errors import SetupError, ValidationError
from agent3.gateway.gateway import Caller, Gateway
from agent3.gateway.pins import MODES, Approvals
from agent3.gateway.registration import Added, Registration
from agent3.model import Event
from agent3.security.access import require_operator

__all__ = ["AGENT_SCHEMA", "APPROVAL_SCHEMA", "AgentBook", "describe_added"]

AGENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "source": {
            "type": ["string", "object"],
            "minLength": 1,
            "maxLength": 100_000,
            "description": "What to add: an address; for the local person also a command, a path or a document",
        },
        "name": {"type": "string", "minLength": 1, "maxLength": 200, "description": "Name of the agent"},
        "credential": {
            "type": "string",
            "minLength": 1,
            "maxLength": 300,
            "description": "Where its secret is, such as env:NAME; only for the local person",
        },
        "era": {
            "enum": ["auto", "modern", "legacy"],
            "description": "Which era of the protocol to speak with an MCP server; auto detects it",
        },
        "sessions": {
            "enum": ["caller", "shared"],
            "description": "For an MCP server: whether each caller gets its own session, or all share one",
        },
        "changes": {
            "enum": list(MODES),
            "description": "What happens when its description changes: pin, trust or ask; default is the setting",
        },
    },
    "required": ["source"],
    "additionalProperties": False,
}

APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hash": {
            "type": "string",
            "minLength": 64,
            "maxLength": 64,
            "description": "The hash of the change that you looked at",
        }
    },
    "required": ["hash"],
    "additionalProperties": False,
}


class AgentBook:
    """What REST does with agents."""

    def __init__(self, gateway: Gateway, registration: Registration):
        self._gateway = gateway
        self._registration = registration
        self._approvals = Approvals(gateway.directory)
        self._schema = schema.compile(AGENT_SCHEMA)
        self._approval_schema = schema.compile(APPROVAL_SCHEMA)

    async def add(
        self, caller: Caller, body: Mapping[str, Any], listener: Callable[[Event], None] | None = None
    ) -> dict[str, Any]:
        """Add what the body says, and tell what became of each thing in it; adding again brings it up to date.

        Raises what kept it out, where it is one thing. ``listener`` hears of what takes long. Cancelling stops it, as
        the end of a stream does, and what was not added then leaves nothing behind.
        """
        self._check_operator(caller)
        self._schema.check(dict(body))
        hear = listener or (lambda _: None)
        source = body["source"]
        plain = {"era": "auto", "sessions": "caller"}
        choices = {name: body[name] for name, usual in plain.items() if body.get(name, usual) != usual}
        try:
            results = await self._registration.add_all(
                source if isinstance(source, str) else json.dumps(source),
                body.get("name"),
                body.get("credential"),
                choices=choices,
                changes=body.get("changes"),
                elsewhere=caller.principal.kind != "local",
                on_progress=lambda name, text: hear(Event("progress", text=f"{name}: {text}")),
                on_added=lambda one: hear(Event("status", text=f"{one.name}: {'added' if one.agent else 'not added'}")),
            )
            if len(results) == 1 and results[0].error is not None:
                raise results[0].error
        except SetupError as error:  # nothing is wrong with this gateway: it was given something else than it takes
            raise ValidationError(error.message, data=error.data) from None
        return {"added": [describe_added(result) for result in results]}

    async def remove(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """Remove an agent that was added; AgentNotFound for any other."""
        self._check_operator(caller)
        await self._registration.remove(agent_id)
        return {"removed": agent_id}

    async def changes(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """What waits for approval; ``hash`` is null where nothing does."""
        self._check_operator(caller)
        found = await self._approvals.changes(agent_id)
        return {"id": agent_id, **(found or {"hash": None, "changes": []})}

    async def approve(self, caller: Caller, agent_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Serve the change with the hash that was looked at."""
        self._check_operator(caller)
        self._approval_schema.check(dict(body))
        return {"id": agent_id, **await self._approvals.approve(agent_id, body["hash"])}

    def _check_operator(self, caller: Caller) -> None:
        self._gateway.count_question(caller.principal)
        require_operator(caller.principal, "add, approve and remove agents")


def describe_added(result: Added) -> dict[str, Any]:
    """What became of one thing that was to be added, as plain JSON."""
    if result.agent is None:
        assert result.error is not None
        return {"name": result.name, "error": result.error.to_dict()}
    capabilities = [capability.name for capability in result.agent.capabilities]
    return {"name": result.name, "id": result.agent.id, "capabilities": capabilities}
