"""The five tools that an LLM sees: ``agent3_search``, ``_select``, ``_invoke``, ``_call`` and ``_feedback``.

Beside them the door offers what a call leaves behind: a call that takes long as a task, for clients that follow
tasks, and large results as resources, ``agent3://artifacts/ID``, for their owner alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by, response
from agent3.errors import Agent3Error, NotFound, TurnTaken
from agent3.gateway import Caller, Gateway, Verbs, is_batch
from agent3.gateway.tool_texts import ARTIFACT_NAME, ARTIFACT_TEXT, INSTRUCTIONS, TOOLS
from agent3.model import Answer, Done, Event, Failed, Needs, Outcome, Part, Principal, Working
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.protocols.mcp.door.toolset import STRUCTURED, Resource, ResourceTemplate, Task, Tool
from agent3.protocols.mcp.door.toolset import Caller as MCPCaller

__all__ = ["INSTRUCTIONS", "WARN_EVERY", "GatewayTools", "JobTasks", "StoredResults"]

_ARTIFACTS = "agent3://artifacts/"
_MOST_MEDIA = 4 << 20
"""Bytes of images and audio that one answer shows; what is beyond stays a link."""
NOT_STREAMED = (
    "Nothing was streamed: the request had no progress token, and no log level of info or below. The result is whole."
)
WARN_EVERY = 60.0
"""Seconds between two lines of the log on an operation that misses its target; each miss is counted."""


class StoredResults:
    """Large results as resources, each for its owner alone: a link in a result leads here."""

    def __init__(self, gateway: Gateway, door: str = "mcp"):
        self._gateway = gateway
        self._door = door

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """None are listed: a result names those that belong to it."""
        return ()

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        """The one family that there is."""
        return (ResourceTemplate(uri_template=_ARTIFACTS + "{id}", name=ARTIFACT_NAME, description=ARTIFACT_TEXT),)

    async def read(self, uri: str, caller: MCPCaller) -> Done:
        """A large result of this caller's; NotFound for anything else."""
        if not uri.startswith(_ARTIFACTS):
            raise NotFound(f"Resource {uri[:100]!r} does not exist. Resources in results start with {_ARTIFACTS}")
        who = Caller(caller.principal, self._door, caller.listener, caller.traceparent)
        found = await self._gateway.artifact(who, unquote(uri.removeprefix(_ARTIFACTS)))
        if found.media_type.startswith("text/") or found.media_type == "application/json":
            with suppress(UnicodeDecodeError):  # text as text, so that a model can read it, if it really is text
                return Done((Part(text=found.body.decode(), media_type=found.media_type),))
        return Done((Part(raw=found.body, media_type=found.media_type),))

    async def watch(self, uri: str, principal: Principal) -> None:
        """What never changes cannot be waited for."""
        raise NotFound(f"{uri[:100]!r} never changes.")


class GatewayTools(StoredResults):
    """The gateway as a set of MCP tools, with tasks and resources."""

    def __init__(self, gateway: Gateway, door: str = "mcp"):
        super().__init__(gateway, door)
        self._verbs = Verbs(gateway)
        self._env = gateway.core.env
        self._calls = gateway.core.settings.calls
        self._metrics = gateway.core.metrics
        self._tasks = JobTasks(gateway, door)
        self._tools = [
            Tool(
                name=text.name,
                title=text.title,
                description=text.description,
                input_schema=text.shown_schema(),
                output_schema=text.output_schema,
                annotations={"readOnlyHint": text.read_only, "openWorldHint": text.name == "agent3_call"},
            )
            for text in TOOLS
        ]

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The same five for everybody; what they find depends on the caller."""
        return self._tools

    def fingerprint(self, principal: Principal) -> str:
        """The list never changes while the process lives."""
        return "five"

    def on_listed(self, seconds: float) -> None:
        """Measure it."""
        MCPPerformanceMonitor.record("list_tools", seconds, self._metrics, warn_every=WARN_EVERY)

    async def call(self, name: str, arguments: dict[str, Any], caller: MCPCaller) -> Outcome:
        """Run one of the five for a caller at the MCP door. What is refused has the form of a failed agent3_call."""
        started = self._env.monotonic()
        status = "error"
        try:
            arguments = dict(self._verbs.check(name, arguments))
            checked = self._env.monotonic() - started
            MCPPerformanceMonitor.record("validate_schema", checked, self._metrics, warn_every=WARN_EVERY)
            who = Caller(caller.principal, self._door, caller.listener, caller.traceparent)
            outcome: Outcome
            if name != "agent3_call":
                outcome = Done((Part(data=await self._verbs.look(name, arguments, who)),))
            elif is_batch(arguments):
                outcome = Done((Part(data=await self._verbs.batch(arguments, who)),))
            else:
                metadata: Mapping[str, Any] = arguments.get("metadata") or {}
                follows = "tasks" in caller.can
                # A call that is told of elsewhere, or goes on with a job, is answered in place.
                if follows and not metadata.get("job") and metadata.get("callback") is None:
                    request = self._verbs.request(arguments, detach=True)
                    called = await self._follow(caller, lambda who: self._gateway.call(who, request))
                else:
                    called = await self._verbs.call(who, arguments)
                card = await self._verbs.card(who, arguments)
                notice = NOT_STREAMED if metadata.get("streaming") and not caller.streams else None
                seconds = self._env.monotonic() - started
                outcome = await self._answer(caller, called, seconds, follows, card, notice)
            status = "error" if isinstance(outcome, Failed) else "success"
            return outcome
        except Agent3Error as refusal:
            if name not in self._verbs:
                raise
            return await self._answer(caller, failed_by(refusal), self._env.monotonic() - started, follows=False)
        finally:
            self._metrics.mcp_tool_invocations.inc((name if name in self._verbs else "unknown", status))
            # A call goes on to another agent; the others are answered here.
            operation = "invoke_tool_complex" if name == "agent3_call" else "invoke_tool_simple"
            seconds = self._env.monotonic() - started
            MCPPerformanceMonitor.record(operation, seconds, self._metrics, warn_every=WARN_EVERY)

    async def answer(self, state: str, answers: dict[str, Answer], caller: MCPCaller) -> Outcome:
        """The next turn of a call that asked; ``state`` is the job."""
        started = self._env.monotonic()
        follows = "tasks" in caller.can
        try:
            if follows:
                outcome = await self._follow(caller, lambda who: self._gateway.answer(who, state, answers, detach=True))
            else:
                who = Caller(caller.principal, self._door, caller.listener, caller.traceparent)
                outcome = await self._gateway.answer(who, state, answers)
        except Agent3Error as refusal:
            outcome = failed_by(refusal)
        return await self._answer(caller, outcome, self._env.monotonic() - started, follows)

    def streaming(self, name: str, arguments: Mapping[str, Any]) -> bool | None:
        """What ``metadata.streaming`` of an ``agent3_call`` says."""
        metadata = arguments.get("metadata") if name == "agent3_call" else None
        wanted = metadata.get("streaming") if isinstance(metadata, dict) else None
        return wanted if isinstance(wanted, bool) else None

    async def _answer(
        self,
        caller: MCPCaller,
        outcome: Outcome,
        seconds: float,
        follows: bool,
        card: dict[str, Any] | None = None,
        notice: str | None = None,
    ) -> Outcome:
        """What the door is given: images and audio as content, and a link to every other part that is kept aside.

        Work that goes on is given as it is to a client that can follow the task it becomes.
        """
        if follows and isinstance(outcome, Working):
            return outcome
        beside: list[Part] = []
        if isinstance(outcome, Done):
            outcome, beside = await self._split_media(caller.principal, outcome)
        body = response(outcome, seconds)
        if notice is not None:
            body["metadata"]["notices"] = [*body["metadata"].get("notices", ()), notice]
        if card is not None:
            body["agentCard"] = card
        match outcome:
            case Needs():
                # The form is for a client that cannot be asked; the door asks all others.
                form = Part(data=body, meta={STRUCTURED: True})
                return Needs(outcome.questions, state=outcome.job, parts=(form,), job=outcome.job, turn=outcome.turn)
            case Failed():
                return replace(outcome, parts=(Part(data=body),), artifacts=())
        return Done((Part(data=body), *beside))

    async def _split_media(self, principal: Principal, outcome: Done) -> tuple[Done, list[Part]]:
        """The result with images and audio named only, and the parts that go beside it."""
        beside: list[Part] = []
        left = _MOST_MEDIA

        async def split(part: Part) -> Part:
            nonlocal left
            kind = part.media_type or ""
            size = len(part.raw) if part.raw is not None else part.meta.get("size")
            if not kind.startswith(("image/", "audio/")) or not isinstance(size, int) or size > left:
                if part.artifact is not None:
                    beside.append(part)
                return part
            if part.artifact is None:
                if part.raw is None:
                    return part
                beside.append(Part(raw=part.raw, media_type=kind, name=part.name))
                named = {"type": kind.partition("/")[0], "media_type": kind, "name": part.name, "size": size}
                part = Part(data={key: value for key, value in named.items() if value is not None})
            else:
                try:
                    stored = await self._gateway.core.artifacts.get(principal.id, part.artifact)
                except Agent3Error:
                    beside.append(part)
                    return part
                beside.append(Part(raw=stored.body, media_type=kind, name=part.name))
            left -= size
            return part

        parts = tuple([await split(part) for part in outcome.parts])
        artifacts = tuple(
            [replace(each, parts=tuple([await split(part) for part in each.parts])) for each in outcome.artifacts]
        )
        return (replace(outcome, parts=parts, artifacts=artifacts) if beside else outcome), beside

    # Calls that take long, as tasks

    async def task(self, job: str, caller: MCPCaller) -> Task:
        """How a job stands; what it ends with has the form of every ``agent3_call``."""
        found = await self._tasks.task(job, caller)
        answer = await self._answer(caller, found.outcome, found.updated - found.created, follows=True)
        return replace(found, outcome=answer)

    async def update(self, job: str, answers: dict[str, Answer], caller: MCPCaller) -> None:
        await self._tasks.update(job, answers, caller)

    async def cancel(self, job: str, caller: MCPCaller) -> None:
        await self._tasks.cancel(job, caller)

    async def _follow(self, caller: MCPCaller, begin: Callable[[Caller], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """Begin a turn as a job and wait for it a short while; a caller that gives up meanwhile cancels it."""
        listener: Callable[[Event], None] | None = caller.listener

        def hear(event: Event) -> None:
            # A job that goes on must not speak to a caller that has its answer.
            if listener is not None:
                listener(event)

        who = Caller(caller.principal, self._door, hear, caller.traceparent)
        # Shielded, because a turn that is cancelled while it is being written down could begin all the same.
        beginning = asyncio.ensure_future(begin(who))
        try:
            outcome = await asyncio.shield(beginning)
            if isinstance(outcome, Working) and outcome.job is not None:
                outcome = await self._gateway.wait(who, outcome.job, self._calls.task_seconds)
            return outcome
        except asyncio.CancelledError:
            with suppress(Agent3Error):
                begun = await beginning
                if isinstance(begun, Working) and begun.job is not None:
                    await self._gateway.give_up(who, begun.job)
            raise
        finally:
            listener = None


SETTLING = 5.0
"""Seconds to wait after an incomplete answer until the job asks again for the rest, which takes milliseconds."""
_DAY = 86_400.0


class JobTasks:
    """Jobs of the gateway as tasks, for clients that follow tasks: those of all agents, or of one."""

    def __init__(self, gateway: Gateway, door: str = "mcp", agent: str | None = None):
        self._gateway = gateway
        self._door = door
        self._agent = agent
        self._ttl = gateway.core.settings.calls.job_days * _DAY

    async def task(self, job: str, caller: MCPCaller) -> Task:
        """How the job stands; JobNotFound for one that is not this caller's."""
        found = await self._gateway.job(self._who(caller), job, self._agent)
        outcome: Outcome | None = found.outcome
        if outcome is None or found.status == "working":
            # A job that runs is working, whatever its last turn ended with.
            last = outcome if isinstance(outcome, Working) else Working()
            outcome = Working(poll=last.poll, text=last.text, job=found.id, turn=found.turn)
        return Task(id=job, outcome=outcome, created=found.created, updated=found.updated, ttl=self._ttl)

    async def update(self, job: str, answers: dict[str, Answer], caller: MCPCaller) -> None:
        """Give the answers to the job, which goes on by itself; with some missing it asks for these again."""
        who = self._who(caller)
        before = await self._gateway.job(who, job, self._agent)
        try:
            await self._gateway.answer(who, job, answers, turn=before.turn, detach=True)
        except TurnTaken:
            return  # another answer was faster, and answers to what is no longer asked are ignored
        if any(question.id not in answers for question in before.questions):
            await self._gateway.wait(who, job, SETTLING)

    async def cancel(self, job: str, caller: MCPCaller) -> None:
        """Cancel the job; one that has ended stays as it is."""
        who = self._who(caller)
        if self._agent is not None:
            await self._gateway.job(who, job, self._agent)
        await self._gateway.cancel(who, job)

    def _who(self, caller: MCPCaller) -> Caller:
        return Caller(caller.principal, self._door)
