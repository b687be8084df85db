"""The five tools that an LLM sees: ``agent3_search``, ``_select``, ``_invoke``, ``_call`` and ``_feedback``.

Beside them the door offers what a call leaves behind: a call that takes long as a task, for clients that follow
tasks, and large results as resources, ``agent3://artifacts/ID``, for their owner alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from agent3 import schema
from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, CapabilityNotFound, NotFound
from agent3.gateway import Caller, CallRequest, Gateway, response
from agent3.model import Answer, Done, Event, Failed, Needs, Outcome, Part, Principal, Working
from agent3.protocols.mcp.door.door import Caller as MCPCaller
from agent3.protocols.mcp.door.door import Tool
from agent3.protocols.mcp.door.job_tasks import JobTasks
from agent3.protocols.mcp.door.tool_texts import ARTIFACT_NAME, ARTIFACT_TEXT, INSTRUCTIONS, TOOLS, ToolText
from agent3.protocols.mcp.door.toolset import Resource, Task, Template

__all__ = ["INSTRUCTIONS", "GatewayTools"]

_ARTIFACTS = "agent3://artifacts/"
_DAY = 86_400.0


class GatewayTools:
    """The gateway as a set of MCP tools, with tasks and resources."""

    def __init__(self, gateway: Gateway, env: Env, door: str = "mcp"):
        self._gateway = gateway
        self._env = env
        self._door = door
        self._calls = gateway.house.settings.calls
        self._tasks = JobTasks(gateway.house.runner, self._calls.job_days * _DAY, door)
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
        """Run one of the five for a caller at the MCP door. What is refused has the form of a failed agent3_call."""
        started = self._env.monotonic()
        status = "error"
        try:
            outcome = await self._turn(name, arguments, caller, started)
            status = "error" if isinstance(outcome, Failed) else "success"
            return outcome
        except Agent3Error as refusal:
            if name not in self._verbs:
                raise
            return self._told(failed_by(refusal), started)
        finally:
            self._count(name, status, self._env.monotonic() - started)

    async def _turn(self, name: str, arguments: dict[str, Any], caller: MCPCaller, started: float) -> Outcome:
        if name != "agent3_call":
            return await self.run(name, arguments, self._caller(caller))
        self.check(name, arguments)
        follows = "tasks" in caller.can
        if follows and not _job(arguments) and not _calls_back(arguments):
            outcome = await self._followed(
                caller, lambda who: self._gateway.call(who, self.request(arguments, detach=True))
            )
        else:
            outcome = await self._called(self._caller(caller), arguments)
        return self._answered(outcome, started, follows)

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
        follows = "tasks" in caller.can
        try:
            if follows:
                outcome = await self._followed(
                    caller, lambda who: self._gateway.answer(who, state, answers, detach=True)
                )
            else:
                outcome = await self._gateway.answer(self._caller(caller), state, answers)
        except Agent3Error as refusal:
            outcome = failed_by(refusal)
        return self._answered(outcome, started, follows)

    def _answered(self, outcome: Outcome, started: float, follows: bool) -> Outcome:
        """What the door is given; work that goes on as it is, for a client that can follow the task it becomes."""
        if follows and isinstance(outcome, Working):
            return outcome
        return _linked(self._told(outcome, started), outcome)

    def _caller(self, caller: MCPCaller) -> Caller:
        return Caller(caller.principal, self._door, caller.listener, caller.traceparent)

    # Calls that take long, as tasks

    async def task(self, job: str, caller: MCPCaller) -> Task:
        """How a job stands; what it ends with has the form of every ``agent3_call``."""
        found = await self._tasks.task(job, caller)
        if isinstance(found.outcome, Working):
            return found
        told = self._shaped(found.outcome, found.updated - found.created)
        return replace(found, outcome=_linked(told, found.outcome))

    async def update(self, job: str, answers: dict[str, Answer], caller: MCPCaller) -> None:
        """Give answers to a job that asked."""
        await self._tasks.update(job, answers, caller)

    async def cancel(self, job: str, caller: MCPCaller) -> None:
        """Cancel a job, down to its target."""
        await self._tasks.cancel(job, caller)

    async def _followed(self, caller: MCPCaller, begin: Callable[[Caller], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """Begin a turn as a job and wait for it a short while; a caller that gives up meanwhile cancels it."""
        ear = _Ear(caller.listener)
        who = Caller(caller.principal, self._door, ear, caller.traceparent)
        # Shielded, because a turn that is cancelled while it is being written down could begin all the same.
        beginning = asyncio.ensure_future(begin(who))
        try:
            outcome = await asyncio.shield(beginning)
            if isinstance(outcome, Working) and outcome.job is not None:
                outcome = await self._gateway.wait(who, outcome.job, self._calls.task_seconds)
            return outcome
        except asyncio.CancelledError:
            await self._call_off(caller.principal, beginning)
            raise
        finally:
            ear.close()

    async def _call_off(self, principal: Principal, beginning: Awaitable[Outcome]) -> None:
        with suppress(Agent3Error):
            begun = await beginning
            if isinstance(begun, Working) and begun.job is not None:
                await self._gateway.house.runner.cancel(principal, begun.job, self._door)

    # Large results, as resources

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """None are listed: a result names those that belong to it."""
        return ()

    async def templates(self, principal: Principal) -> Sequence[Template]:
        """The one family that there is."""
        return (Template(uri_template=_ARTIFACTS + "{id}", name=ARTIFACT_NAME, description=ARTIFACT_TEXT),)

    async def read(self, uri: str, caller: MCPCaller) -> Done:
        """A large result of this caller's; NotFound for whatever else, somebody else's too."""
        if not uri.startswith(_ARTIFACTS):
            raise NotFound(f"There is no resource {uri[:100]!r}. What a result refers to begins with {_ARTIFACTS}")
        found = await self._gateway.artifact(self._caller(caller), unquote(uri.removeprefix(_ARTIFACTS)))
        return Done((_content(found.body, found.media_type),))

    async def watch(self, uri: str, principal: Principal) -> None:
        """Nobody can wait for a change of what never changes."""
        raise NotFound(f"{uri[:100]!r} never changes.")

    # The verbs

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
        return self._told(await self._called(caller, given), started)

    async def _called(self, caller: Caller, given: dict[str, Any]) -> Outcome:
        if job := _job(given):
            return await self._go_on(caller, given, job)
        return await self._gateway.call(caller, self.request(given))

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
            callback=metadata.get("callback"),
        )

    def _told(self, outcome: Outcome, started: float) -> Outcome:
        return self._shaped(outcome, self._env.monotonic() - started)

    def _shaped(self, outcome: Outcome, seconds: float) -> Outcome:
        """The design's response as the one datum of a result; a question stays a question for the door to ask."""
        if isinstance(outcome, Needs):
            return Needs(outcome.questions, state=outcome.job, parts=outcome.parts, job=outcome.job, turn=outcome.turn)
        body = response(outcome, seconds)
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


def _job(given: Mapping[str, Any]) -> str | None:
    """The job that a call goes on with, if it does."""
    job: str | None = (given.get("metadata") or {}).get("job")
    return job


def _calls_back(given: Mapping[str, Any]) -> bool:
    """Whether the caller is told of its job elsewhere, so that it may leave at once."""
    return (given.get("metadata") or {}).get("callback") is not None


class _Ear:
    """Hears for a caller until it has its answer: a job that goes on must not speak to who has left."""

    def __init__(self, listener: Callable[[Event], None]):
        self._listener: Callable[[Event], None] | None = listener

    def __call__(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)

    def close(self) -> None:
        self._listener = None


def _linked(told: Outcome, outcome: Outcome) -> Outcome:
    """A result with a link to every large part that it refers to."""
    if not isinstance(told, Done) or not isinstance(outcome, Done):
        return told
    links = tuple(_references(outcome))
    return replace(told, parts=(*told.parts, *links)) if links else told


def _references(done: Done) -> Iterator[Part]:
    for part in (*done.parts, *(one for artifact in done.artifacts for one in artifact.parts)):
        if part.artifact is not None:
            yield part


def _content(body: bytes, media_type: str) -> Part:
    """Text as text, so that a model can read it."""
    if media_type.startswith("text/") or media_type == "application/json":
        try:
            return Part(text=body.decode(), media_type=media_type)
        except UnicodeDecodeError:
            pass  # it says that it is text and is not: then bytes are the truth
    return Part(raw=body, media_type=media_type)
