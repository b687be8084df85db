"""The five tools that an LLM sees: ``agent3_search``, ``_select``, ``_invoke``, ``_call`` and ``_feedback``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, CapabilityNotFound
from agent3.gateway import Caller, CallRequest, Gateway, response
from agent3.mcp.protocol import Caller as MCPCaller
from agent3.mcp.protocol import Tool
from agent3.model import Answer, Done, Failed, Needs, Outcome, Part, Principal
from agent3.server.texts import INSTRUCTIONS, TOOLS, ToolText

__all__ = ["INSTRUCTIONS", "GatewayTools"]


class GatewayTools:
    """The gateway as a set of MCP tools."""

    def __init__(self, gateway: Gateway, env: Env, door: str = "mcp"):
        self._gateway = gateway
        self._env = env
        self._door = door
        self._tools = [_tool(text) for text in TOOLS]
        self._schemas = {text.name: schema.compile(text.input_schema) for text in TOOLS}
        self._verbs: dict[str, Callable[[Caller, dict[str, Any]], Awaitable[Outcome]]] = {
            "agent3_search": self._search,
            "agent3_select": self._select,
            "agent3_invoke": self._invoke,
            "agent3_call": self._call,
            "agent3_feedback": self._feedback,
        }

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The same five for everybody; what they find depends on the caller."""
        return self._tools

    def fingerprint(self, principal: Principal) -> str:
        """The list never changes while the process lives."""
        return "five"

    async def call(self, name: str, arguments: dict[str, Any], caller: MCPCaller) -> Outcome:
        """Run one of the five for a caller at the MCP door. A refused agent3_call has the form of a failed one."""
        started = self._env.monotonic()
        status = "error"
        try:
            outcome = await self.run(name, arguments, self._caller(caller))
            status = "error" if isinstance(outcome, Failed) else "success"
            return outcome
        except Agent3Error as refusal:
            if name != "agent3_call":
                raise
            return self._told(failed_by(refusal), started)
        finally:
            self._count(name, status, self._env.monotonic() - started)

    def _count(self, name: str, status: str, seconds: float) -> None:
        metrics = self._gateway.house.metrics
        metrics.mcp_tool_invocations.inc((name if name in self._verbs else "unknown", status))
        metrics.mcp_latency.observe(("invoke_tool",), seconds)

    async def run(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """Run one of the five for any caller."""
        self.check(name, arguments)
        return await self._verbs[name](caller, arguments)

    def check(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise unless the tool exists and the arguments fit it."""
        if name not in self._verbs:
            raise CapabilityNotFound(f"Unknown tool: {name[:100]}")
        self._schemas[name].check(arguments)

    async def answer(self, state: str, answers: dict[str, Answer], caller: MCPCaller) -> Outcome:
        """The next turn of a call that asked; ``state`` is the job."""
        started = self._env.monotonic()
        try:
            outcome = await self._gateway.answer(self._caller(caller), state, answers)
        except Agent3Error as refusal:
            outcome = failed_by(refusal)
        return self._told(outcome, started)

    def _caller(self, caller: MCPCaller) -> Caller:
        return Caller(caller.principal, self._door, caller.listener, caller.traceparent)

    async def _search(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        return _data(await self._gateway.search(caller, given["query"], given.get("limit", 10)))

    async def _select(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        return _data(await self._gateway.select(caller, given["agentId"]))

    async def _invoke(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        return _data(await self._gateway.invoke(caller, given["agentId"]))

    async def _feedback(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        comment = given.get("comment", "")
        return _data(await self._gateway.feedback(caller, given["agentId"], given["rating"], comment))

    async def _call(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        started = self._env.monotonic()
        metadata: Mapping[str, Any] = given.get("metadata") or {}
        if job := metadata.get("job"):
            return self._told(await self._go_on(caller, given, job), started)
        return self._told(await self._gateway.call(caller, self.request(given)), started)

    async def _go_on(self, caller: Caller, given: Mapping[str, Any], job: str) -> Outcome:
        """The next turn of a job; where nothing is said, how it stands."""
        metadata = given["metadata"]
        agent = given["agentId"]
        if said := metadata.get("answers") or given.get("message"):
            return await self._gateway.reply(caller, job, said, agent)
        return await self._gateway.wait(caller, job, metadata.get("timeout", 30_000) / 1000, agent)

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
        )

    def _told(self, outcome: Outcome, started: float) -> Outcome:
        """The design's response as the one datum of a result; a question stays a question for the door to ask."""
        if isinstance(outcome, Needs):
            return Needs(outcome.questions, state=outcome.job, parts=outcome.parts, job=outcome.job, turn=outcome.turn)
        body = response(outcome, self._env.monotonic() - started)
        if isinstance(outcome, Failed):
            return replace(outcome, parts=(Part(data=body),), artifacts=())
        return _data(body)


def _tool(text: ToolText) -> Tool:
    return Tool(
        name=text.name,
        title=text.title,
        description=text.description,
        input_schema=text.input_schema,
        annotations={"readOnlyHint": text.read_only, "openWorldHint": text.name == "agent3_call"},
    )


def _data(body: dict[str, Any]) -> Done:
    return Done((Part(data=body),))
