"""Several agents as one: fan out, join, let one wait for another, and take back what was done when one fails.

A plan is a job of the coordinator's core. Every step that has ended is written down before the next one begins, and
each message bears an id that follows from the plan: so after a crash the plan goes on, and what was asked for already
is not done twice. Steps go to agents as messages; this module knows no other way to reach them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from agent3 import bridge
from agent3.calls.outcomes import error_of
from agent3.definitions import A2AMessage
from agent3.env import REAL
from agent3.errors import Agent3Error, CallTimeout, TargetError, ValidationError, by_code
from agent3.model import Done, Failed, Outcome, Principal, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.executor import AgentExecutor
from agent3.protocols.functions.functions import Context, LocalAgent
from agent3.protocols.functions.plans import Item, PlanStep, fill, needs, parse_plan, run_plan

__all__ = ["Coordinator", "PlanResult", "Undo", "step"]

log = logger("a2a.coordination")

PlanStatus: TypeAlias = Literal["success", "failed", "compensated", "stuck"]

_LONGEST = 30 * 86_400.0
_TIMEOUT = 30.0
_UNSURE = frozenset({"timeout", "interrupted", "internal"})
"""Failures after which it may have been done all the same, so that it is taken back too."""
_UNDO_ATTEMPTS = 3


class Undo(Struct, frozen=True, forbid_unknown_fields=True):
    """How a step is taken back; ``${id.path}`` in its input stands for a result. The agent is the step's own."""

    capability: str
    input: Any = {}


class PlanResult(Struct, frozen=True):
    """How a plan ended: ``success``; ``failed`` where nothing had to be taken back; ``compensated`` where all of it
    was; ``stuck`` where something could not be. ``undone`` are the steps that were taken back, in that order."""

    status: PlanStatus
    steps: list[Item]
    undone: list[str] = []
    stuck: list[str] = []

    def result(self, step_id: str) -> Any:
        """What a step gave; TargetError when it did not succeed."""
        item = next((one for one in self.steps if one.id == step_id), None)
        if item is None or item.status != "success":
            raise TargetError(f"Step {step_id!r} has no result: {item.status if item else 'it is not in the plan'}.")
        return item.result


def step(
    step_id: str,
    agent: str,
    capability: str,
    content: Mapping[str, Any] | None = None,
    *,
    after: Sequence[str] = (),
    timeout: float = _TIMEOUT,
    undo: Undo | str | None = None,
) -> dict[str, Any]:
    """One step of a plan. ``${id.path}`` in its content stands for the result of an earlier one, which it waits for.

    ``undo`` is the capability that takes it back, by default with the same content. It must bear to be asked to take
    back what was never done: after a timeout nobody knows.
    """
    back = Undo(undo, dict(content or {})) if isinstance(undo, str) else undo
    return {
        "id": step_id,
        "agent": agent,
        "capability": capability,
        "input": dict(content or {}),
        "after": list(after),
        "timeout": timeout,
        "undo": msgspec.to_builtins(back),
    }


class Coordinator:
    """Runs plans in the name of an executor. Build it before its core is first used, so that plans are taken up.

        trip = Coordinator(agency)
        trip.run([step("flight", "flights", "book", {...}, undo="cancel"),
                  step("hotel", "hotels", "book", {"day": "${flight.day}"}, undo="cancel")])

    Safe from any thread. With a core that keeps a database a plan survives its process: the next one that builds this
    coordinator goes on with it, and ``run`` with the same ``key`` gives its result.
    """

    def __init__(self, executor: AgentExecutor):
        self._executor = executor
        self._agent = LocalAgent(f"{executor.card.name} coordinator", agent_id=f"{executor.card.agent_id}.coordinator")
        self._principal = Principal(executor.card.agent_id, "local")
        executor.core.host(self._agent)  # before it has a capability, whose route takes the id that the core gives
        self._capability = self._agent.add(self._plan, name="run", replay=True, timeout=_LONGEST)

    def run(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        parallel: int = 8,
        timeout: float = _LONGEST,
    ) -> PlanResult:
        """Run a plan to its end; a failed step stops those that have not begun, and takes back what was done.

        ``key`` names it: asked for again, also after a restart, it is the same plan. ValidationError names what is
        wrong with a plan, CallTimeout says that it was not over in time; it goes on.
        """
        _parsed(steps)
        given = {"steps": [dict(one) for one in steps], "parallel": parallel}
        return bridge.run(self._run(given, key or f"plan {REAL.id()}", timeout))

    def ask_all(
        self,
        agents: Sequence[str],
        capability: str,
        content: Mapping[str, Any] | None = None,
        *,
        enough: int | None = None,
        timeout: float = _TIMEOUT,
    ) -> dict[str, dict[str, Any]]:
        """Ask several agents the same at once; the contents of their answers by agent, when all have come.

        With ``enough`` it ends with so many successes, and the others are not waited for. Who did not answer in time
        has an error there like any other.
        """
        return bridge.run(self._ask_all(tuple(agents), capability, dict(content or {}), enough, timeout))

    def close(self) -> None:
        """Run no more plans here."""
        self._executor.core.drop(self._agent)

    async def _run(self, given: dict[str, Any], key: str, timeout: float) -> PlanResult:
        core = self._executor.core
        outcome = await core.call_async(
            self._agent, self._capability, given, self._principal, key=key, timeout=_LONGEST, detach=True, door="a2a"
        )
        job = getattr(outcome, "job", None)
        if job is not None:
            outcome = await (await core.house()).runner.wait(self._principal, job, timeout)
        return _result(outcome)

    # The plan itself, as a capability of the coordinator's agent

    async def _plan(self, ctx: Context, steps: list[dict[str, Any]], parallel: int = 8) -> dict[str, Any]:
        plan = _parsed(steps)
        items = await run_plan(ctx, plan, self._invoke(steps), on_error="stop", parallel=parallel)
        if all(item.status == "success" for item in items):
            return msgspec.to_builtins(PlanResult("success", items))  # type: ignore[no-any-return]
        undone, stuck = await self._take_back(ctx, steps, items)
        status: PlanStatus = "stuck" if stuck else "compensated" if undone else "failed"
        return msgspec.to_builtins(PlanResult(status, items, undone, stuck))  # type: ignore[no-any-return]

    def _invoke(self, steps: Sequence[Mapping[str, Any]]) -> Any:
        by_id = {one["id"]: one for one in steps}

        async def invoke(one: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
            target = by_id[one.id]
            told = await self._ask(target["agent"], target["capability"], given, one.timeout or _TIMEOUT, key)
            return _item(told)

        return invoke

    async def _ask(self, agent: str, capability: str, given: Any, timeout: float, key: str | None) -> A2AMessage:
        """Ask under an id that is the step's own: asked again after a crash, it is the same message."""
        return await self._executor.ask_once(agent, capability, given, timeout, key)

    async def _take_back(
        self, ctx: Context, steps: list[dict[str, Any]], items: list[Item]
    ) -> tuple[list[str], list[str]]:
        """Take back what was done, the last first; those that were, and those that could not be."""
        by_id = {item.id: item for item in items}
        results = {item.id: item.result for item in items if item.status == "success"}
        undone: list[str] = []
        stuck: list[str] = []
        for one in _backwards(steps):
            if one.get("undo") and _may_be_done(by_id[one["id"]]):
                done = await ctx.once(f"undo {one['id']}", partial(self._undo, ctx, one, results))
                (undone if done else stuck).append(one["id"])
        return undone, stuck

    async def _undo(self, ctx: Context, one: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
        back = msgspec.convert(one["undo"], Undo)
        for attempt in range(_UNDO_ATTEMPTS):
            try:
                key = f"{ctx.job_id}/{one['id']}/undo/{attempt}"
                given = fill(back.input, results)
                told = await self._ask(one["agent"], back.capability, given, one.get("timeout") or _TIMEOUT, key)
            except Agent3Error as wrong:
                log.warning("step %s could not be taken back: %s", one["id"], wrong)
                continue
            if told.content.get("status") == "success":
                return True
            log.warning("step %s could not be taken back: %s", one["id"], told.content.get("error"))
        log.error("step %s of plan %s is not taken back; somebody must look at it", one["id"], ctx.job_id)
        return False

    async def _ask_all(
        self, agents: tuple[str, ...], capability: str, content: dict[str, Any], enough: int | None, timeout: float
    ) -> dict[str, dict[str, Any]]:
        if not agents or (enough is not None and not 0 < enough <= len(agents)):
            raise ValidationError(f"Ask at least one agent, and want 1 to {len(agents)} of them, got {enough}.")
        tasks = {asyncio.ensure_future(self._one(name, capability, content, timeout)): name for name in agents}
        answers: dict[str, dict[str, Any]] = {}
        left = set(tasks)
        try:
            while left and (enough is None or _successes(answers) < enough):
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                answers |= {tasks[task]: task.result() for task in done}
        finally:
            for task in left:
                task.cancel()
        return {name: answers[name] for name in agents if name in answers}

    async def _one(self, agent: str, capability: str, content: dict[str, Any], timeout: float) -> dict[str, Any]:
        try:
            return (await self._executor.ask(agent, capability, content, timeout)).content
        except Agent3Error as wrong:
            return {"status": "error", "error": {"code": wrong.code, "message": wrong.message}}


def _successes(answers: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(1 for one in answers.values() if one.get("status") == "success")


def _parsed(steps: Sequence[Mapping[str, Any]]) -> tuple[PlanStep, ...]:
    for one in steps:
        if not isinstance(one.get("agent"), str) or not isinstance(one.get("capability"), str):
            raise ValidationError(f"Step {one.get('id')!r} must name its agent and capability; build it with step().")
    return parse_plan(
        [
            {
                "id": one["id"],
                "tool": f"{one['agent']}/{one['capability']}",
                "input": one.get("input") or {},
                "after": one.get("after") or [],
                "timeout": one.get("timeout"),
            }
            for one in steps
        ]
    )


def _backwards(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps, each before those that it waited for."""
    by_id = {one["id"]: one for one in steps}
    plan = _parsed(steps)
    order = TopologicalSorter({one.id: needs(one) for one in plan}).static_order()
    return [by_id[name] for name in reversed(list(order))]


def _may_be_done(item: Item) -> bool:
    return item.status in ("success", "working") or (item.error or {}).get("code") in _UNSURE


def _item(told: A2AMessage) -> dict[str, Any]:
    content = told.content
    if content.get("status") == "success":
        return {"status": "success", "result": content.get("result")}
    if content.get("status") == "error":
        error = content.get("error") or {}
        raise by_code(error.get("code", ""))(error.get("message") or f"{told.from_agent} failed.")
    return {"status": content.get("status", "error"), "job": content.get("job")}


def _result(outcome: Outcome) -> PlanResult:
    if isinstance(outcome, Done):
        return msgspec.convert(value_of(outcome.parts), PlanResult)
    if isinstance(outcome, Failed):
        raise error_of(outcome)
    raise CallTimeout(f"The plan goes on as job {outcome.job}. Run it again with its key to wait for it.")
