"""The five verbs as tools for every door: arguments checked by schema, answers as plain JSON.

``agent3_search``, ``agent3_select``, ``agent3_invoke``, ``agent3_call`` and ``agent3_feedback``, in the shapes of the
design. MCP offers them as tools, REST as resources, the command line as commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import response
from agent3.errors import CapabilityNotFound
from agent3.gateway.gateway import Caller, CallRequest, Gateway
from agent3.gateway.tool_texts import TOOLS
from agent3.model import Done, Failed, Needs, Outcome, Part

__all__ = ["Verbs"]


class Verbs:
    """The verbs of one gateway."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._env = gateway.core.env
        self._schemas = {text.name: schema.compile(text.input_schema) for text in TOOLS}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise unless the verb exists and the arguments fit it."""
        if name not in self._schemas:
            raise CapabilityNotFound(f"Unknown tool: {name[:100]}")
        self._schemas[name].check(arguments)

    async def run(self, name: str, given: Mapping[str, Any], caller: Caller) -> Outcome:
        """Run one of the five; its one datum is the answer. A question stays a question."""
        self.check(name, given)
        if name == "agent3_call":
            started = self._env.monotonic()
            outcome = await self.call(caller, given)
            return self.shape(outcome, self._env.monotonic() - started)
        return Done((Part(data=await self.look(name, given, caller)),))

    async def look(self, name: str, given: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """The verbs that are no call, with arguments that were checked."""
        gateway = self._gateway
        match name:
            case "agent3_search":
                return await gateway.search(caller, given["query"], given.get("limit", 10))
            case "agent3_select":
                return await gateway.select(caller, given["agentId"])
            case "agent3_invoke":
                return await gateway.invoke(caller, given["agentId"])
            case "agent3_feedback":
                return await gateway.feedback(caller, given["agentId"], given["rating"], given.get("comment", ""))
            case _:
                raise CapabilityNotFound(f"Unknown tool: {name[:100]}")

    async def call(self, caller: Caller, given: Mapping[str, Any]) -> Outcome:
        """``agent3_call``: a new call, or the next turn of a job; where nothing is said, how that job stands."""
        metadata: Mapping[str, Any] = given.get("metadata") or {}
        job = metadata.get("job")
        if not job:
            return await self._gateway.call(caller, self.request(given))
        if said := metadata.get("answers") or given.get("message"):
            return await self._gateway.reply(caller, job, said, given["agentId"])
        return await self._gateway.wait(caller, job, metadata.get("timeout", 30_000) / 1000, given["agentId"])

    def request(self, given: Mapping[str, Any], *, detach: bool = False) -> CallRequest:
        """What the arguments of ``agent3_call`` ask for, in the gateway's words."""
        metadata: Mapping[str, Any] = given.get("metadata") or {}
        timeout = metadata.get("timeout")
        return CallRequest(
            agent=given["agentId"],
            message=given.get("message", ""),
            capability=given.get("capability"),
            input=given.get("input"),
            input_mode=given.get("inputMode", "text/plain"),
            timeout=timeout / 1000 if timeout is not None else None,
            retries=metadata.get("retries"),
            key=metadata.get("idempotencyKey"),
            context=metadata.get("contextId"),
            detach=detach,
            user_agent_id=metadata.get("userAgentId"),
            callback=metadata.get("callback"),
        )

    def shape(self, outcome: Outcome, seconds: float) -> Outcome:
        """The design's response as the one datum of a result; a question stays a question for the door to ask."""
        if isinstance(outcome, Needs):
            return Needs(outcome.questions, state=outcome.job, parts=outcome.parts, job=outcome.job, turn=outcome.turn)
        body = response(outcome, seconds)
        if isinstance(outcome, Failed):
            return replace(outcome, parts=(Part(data=body),), artifacts=())
        return Done((Part(data=body),))
