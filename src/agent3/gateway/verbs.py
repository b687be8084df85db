"""The five verbs as tools for every door: arguments checked by schema, answers as plain JSON.

``agent3_search``, ``agent3_select``, ``agent3_invoke``, ``agent3_call`` and ``agent3_feedback``, in the shapes of the
design. MCP offers them as tools, REST as resources, the command line as commands.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import failed_by, response
from agent3.errors import Agent3Error, CapabilityNotFound, ValidationError
from agent3.gateway.gateway import Caller, CallRequest, Gateway
from agent3.gateway.tool_texts import TOOLS
from agent3.model import Outcome
from agent3.observe.logs import get as logger

__all__ = ["Verbs", "is_batch"]

log = logger("gateway")

_AT_ONCE = 5
"""Calls of one batch that run at the same time."""
_CALL = next(text.input_schema for text in TOOLS if text.name == "agent3_call")
_ONE = {name: value for name, value in _CALL["properties"].items() if name != "calls"}
_OPTIONS = frozenset(_CALL["properties"]["metadata"]["properties"])
_OTHER_WORDS = {
    "id": "agentId",
    "agent": "agentId",
    "agent_id": "agentId",
    "text": "message",
    "prompt": "message",
    "task": "message",
    "arguments": "input",
    "args": "input",
    "parameters": "input",
    "skill": "capability",
    "tool": "capability",
}
"""What callers write for parameters that have another name."""
_WORDS_FOR_QUERY = frozenset({"q", "search", "text", "message", "prompt", "words", "keywords"})


class Verbs:
    """The verbs of one gateway."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._env = gateway.core.env
        self._schemas = {text.name: schema.compile(text.input_schema) for text in TOOLS}
        self._schemas["agent3_call"] = schema.compile({**_CALL, "properties": _ONE, "required": ["agentId"]})
        self._batch = schema.compile({**_CALL, "properties": {"calls": _CALL["properties"]["calls"]}})

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def check(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments, without null for what is left out. Raises unless the verb exists and they fit it.

        The calls of a batch are checked one by one.
        """
        if name not in self._schemas:
            raise CapabilityNotFound(f"Unknown tool: {name[:100]}")
        if not isinstance(arguments, Mapping):
            raise ValidationError(f"{name} takes an object, got {schema.json_type(arguments)}.")
        fits = self._schemas[name]
        if name == "agent3_call" and is_batch(arguments):
            fits = self._batch
        if fits.valid(arguments):
            return arguments
        arguments = fits.without_nulls(arguments)
        try:
            fits.check(arguments)
            return arguments
        except ValidationError as error:
            if hint := _find_misplaced(name, arguments):
                # It is known where it belongs, so a name that is merely alike does not help.
                error.message = f"{_ALIKE.sub('', error.message)}. {hint}"
            raise

    async def answer(
        self, name: str, given: Mapping[str, Any], caller: Caller, *, detach: bool = False
    ) -> dict[str, Any]:
        """The answer of one of the five as plain JSON, also where it asks or goes on. ``detach`` is for new calls."""
        given = self.check(name, given)
        if name != "agent3_call":
            return await self.look(name, given, caller)
        if is_batch(given):
            return await self.batch(given, caller, detach=detach)
        started = self._env.monotonic()
        outcome = await self.call(caller, given, detach=detach)
        body = response(outcome, self._env.monotonic() - started)
        card = await self.card(caller, given)
        return body if card is None else {**body, "agentCard": card}

    async def look(self, name: str, given: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """The verbs that are no call, with arguments that were checked."""
        gateway = self._gateway
        # JSON has one kind of number: 5.0 is an integer too.
        given = {one: int(value) if isinstance(value, float) else value for one, value in given.items()}
        match name:
            case "agent3_search":
                return await gateway.search(
                    caller,
                    given["query"],
                    given.get("limit", 5),
                    filters=given.get("filters"),
                    detail=given.get("detail", "signature"),
                    max_tokens=given.get("maxTokens"),
                )
            case "agent3_select":
                return await gateway.select(caller, given["agentId"])
            case "agent3_invoke":
                return await gateway.invoke(caller, given["agentId"])
            case "agent3_feedback":
                return await gateway.feedback(caller, given["agentId"], given["rating"], given.get("comment", ""))
            case _:
                raise CapabilityNotFound(f"Unknown tool: {name[:100]}")

    async def call(self, caller: Caller, given: Mapping[str, Any], *, detach: bool = False) -> Outcome:
        """``agent3_call``: a new call, or the next turn of a job; where nothing is said, how that job stands.

        A job that has ended stands as it ended: its result can be read again.
        """
        metadata: Mapping[str, Any] = given.get("metadata") or {}
        if metadata.get("streaming") is False and caller.listener is not None:
            caller = replace(caller, listener=None)
        job = metadata.get("job")
        if not job:
            return await self._gateway.call(caller, self.request(given, detach=detach))
        if said := metadata.get("answers") or given.get("message"):
            return await self._gateway.reply(caller, job, said, given["agentId"], given.get("capability"))
        return await self._gateway.wait(caller, job, metadata.get("timeout", 30_000) / 1000, given["agentId"])

    async def batch(self, given: Mapping[str, Any], caller: Caller, *, detach: bool = False) -> dict[str, Any]:
        """Several calls, a few at a time, each an ordinary one with an answer of its own, in the order given."""
        started = self._env.monotonic()
        places = asyncio.Semaphore(_AT_ONCE)
        quiet = replace(caller, listener=None)

        async def one(given: Mapping[str, Any]) -> dict[str, Any]:
            async with places:
                began = self._env.monotonic()
                try:
                    given = self.check("agent3_call", given)
                    if is_batch(given) or (given.get("metadata") or {}).get("streaming"):
                        raise ValidationError("A call in a batch cannot be a batch itself, and cannot be streamed.")
                    return await self.answer("agent3_call", given, quiet, detach=detach)
                except Agent3Error as refusal:
                    return response(failed_by(refusal), self._env.monotonic() - began)
                except Exception:
                    log.exception("a call of a batch failed inside the gateway")
                    internal = Agent3Error("Internal error. See the log of the gateway.")
                    return response(failed_by(internal), self._env.monotonic() - began)

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(one(each)) for each in given["calls"]]
        answers = [call.result() for call in calls]
        succeeded = sum(answer["success"] for answer in answers)
        metadata = {
            "responseTime": round((self._env.monotonic() - started) * 1000, 3),
            "tokensUsed": sum(answer["metadata"].get("tokensUsed", 0) for answer in answers),
            "cost": round(sum(answer["metadata"].get("cost", 0.0) for answer in answers), 6),
            "statusCode": 200,
            "succeeded": succeeded,
            "count": len(answers),
        }
        return {"success": succeeded == len(answers), "result": answers, "metadata": metadata}

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
            files=given.get("files", ()),
        )

    async def card(self, caller: Caller, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The card of the agent that was called, where the call asks for it."""
        if not (given.get("metadata") or {}).get("agentCard"):
            return None
        return await self._gateway.card(caller, given["agentId"])


_ALIKE = re.compile(r"\. Did you mean '[^']*'\?")


def is_batch(given: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``agent3_call`` are several calls."""
    return given.get("calls") is not None


def _find_misplaced(name: str, given: Mapping[str, Any]) -> str | None:
    """Where a parameter belongs that the verb does not have, if it is known somewhere."""
    if name == "agent3_call":
        for key in given:
            if key not in _ONE and key in _OPTIONS:
                return f"{key} belongs in metadata: metadata.{key}"
            if key not in _ONE and key in _OTHER_WORDS:
                return f"{key} is called {_OTHER_WORDS[key]} here"
        metadata = given.get("metadata")
        for key in metadata if isinstance(metadata, Mapping) else ():
            if key not in _OPTIONS and key in _ONE:
                return f"{key} does not belong in metadata, but next to it"
        return None
    if name == "agent3_search":
        other = next((key for key in given if key in _WORDS_FOR_QUERY), None)
        return f"{other} is called query here" if other is not None and "query" not in given else None
    if name in ("agent3_invoke", "agent3_select") and given.keys() & {"capability", "input", "message", "metadata"}:
        return f"{name} only shows the {'card' if name == 'agent3_invoke' else 'agent'}; call with agent3_call"
    other = next((key for key in given if _OTHER_WORDS.get(key) == "agentId"), None)
    return f"{other} is called agentId here" if other is not None and "agentId" not in given else None
