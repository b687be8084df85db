"""Several agents as one: run steps in parallel, make one wait for another, and undo what was done when one fails.

A plan is a job of the coordinator's core. Every step that has ended is stored before the next one begins, and each
message has an id derived from the plan. After a crash the plan therefore goes on, and nothing is done twice. Steps go
to agents as messages; there is no other way to reach them here.
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
from agent3.env import REAL
from agent3.errors import Agent3Error, CallTimeout, TargetError, ValidationError, by_code
from agent3.model import Done, Failed, Principal, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.executor import AgentExecutor
from agent3.protocols.a2a.agents.remote_delivery import error_content
from agent3.protocols.functions.functions import Context, LocalAgent
from agent3.protocols.functions.plans import Item, PlanStep, fill, needs, parse_plan, run_plan

__all__ = ["Coordinator", "PlanResult", "Undo", "step"]

log = logger("a2a.coordination")

PlanStatus: TypeAlias = Literal["success", "failed", "compensated", "stuck"]

_LONGEST = 30 * 86_400.0
_STEP_TIMEOUT = 30.0
_UNSURE = frozenset({"timeout", "interrupted", "internal"})
"""Failures after which a step may have been done all the same, so that it is undone too."""
_UNDO_ATTEMPTS = 3


class Undo(Struct, frozen=True, forbid_unknown_fields=True):
    """How a step is undone, by the step's own agent; ``${id.path}`` in the input stands for a result."""

    capability: str
    input: Any = {}


class PlanResult(Struct, frozen=True):
    """How a plan ended.

    ``success``; ``failed`` if nothing had to be undone; ``compensated`` if all of it was; ``stuck`` if something could
    not be. ``undone`` are the steps that were undone, in that order.
    """

    status: PlanStatus
    steps: list[Item]
    undone: list[str] = []
    stuck: list[str] = []

    def result(self, step_id: str) -> Any:
        """The result of a step; TargetError if it did not succeed."""
        item = next((item for item in self.steps if item.id == step_id), None)
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
    timeout: float = _STEP_TIMEOUT,
    undo: Undo | str | None = None,
) -> dict[str, Any]:
    """One step of a plan. ``${id.path}`` in its content stands for the result of an earlier step, which it waits for.

    ``undo`` is the capability that undoes it, by default with the same content. It must accept to undo what was never
    done, because after a timeout that is unknown.
    """
    reverse = Undo(undo, dict(content or {})) if isinstance(undo, str) else undo
    return {
        "id": step_id,
        "agent": agent,
        "capability": capability,
        "input": dict(content or {}),
        "after": list(after),
        "timeout": timeout,
        "undo": msgspec.to_builtins(reverse),
    }


class Coordinator:
    """Runs plans in the name of an executor. Build it before its core is first used, so that plans are resumed.

        trip = Coordinator(agency)
        trip.run([step("flight", "flights", "book", {...}, undo="cancel"),
                  step("hotel", "hotels", "book", {"day": "${flight.day}"}, undo="cancel")])

    Safe from any thread. With a core that has a database a plan outlives its process: the next one that builds this
    coordinator goes on with it, and ``run`` with the same ``key`` returns its result.
    """

    def __init__(self, executor: AgentExecutor):
        self._executor = executor
        self._agent = LocalAgent(f"{executor.card.name} coordinator", agent_id=f"{executor.card.agent_id}.coordinator")
        self._principal = Principal(executor.card.agent_id, "local")
        executor.core.host(self._agent)  # first: the route of a capability takes the id that the core gives
        self._capability = self._agent.add(self._run_plan, name="run", replay=True, timeout=_LONGEST)

    def run(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        parallel: int = 8,
        timeout: float = _LONGEST,
    ) -> PlanResult:
        """Run a plan to its end. A failed step stops those that have not begun, and what was done is undone.

        ``key`` names the plan: run again with it, also after a restart, it is the same plan. ValidationError names what
        is wrong with a plan; CallTimeout says that it did not end in time, and goes on.
        """
        _parse(steps)
        plan = {"steps": [dict(each) for each in steps], "parallel": parallel}
        plan_key = key or f"plan {REAL.id()}"

        async def run() -> PlanResult:
            core = self._executor.core
            outcome = await core.call_async(
                self._agent,
                self._capability,
                plan,
                self._principal,
                key=plan_key,
                timeout=_LONGEST,
                detach=True,
                door="a2a",
            )
            job = getattr(outcome, "job", None)
            if job is not None:
                outcome = await (await core.call_core()).runner.wait(self._principal, job, timeout)
            if isinstance(outcome, Done):
                return msgspec.convert(value_of(outcome.parts), PlanResult)
            if isinstance(outcome, Failed):
                raise error_of(outcome)
            raise CallTimeout(f"The plan continues as job {outcome.job}. Run it again with its key to wait for it.")

        return bridge.run(run())

    def ask_all(
        self,
        agents: Sequence[str],
        capability: str,
        content: Mapping[str, Any] | None = None,
        *,
        enough: int | None = None,
        timeout: float = _STEP_TIMEOUT,
    ) -> dict[str, dict[str, Any]]:
        """Ask several agents the same at once; the contents of their answers by agent, once all have come.

        With ``enough`` it ends after so many successes, and the others are not waited for. An agent that did not answer
        in time has an error in its place.
        """
        names, asked = tuple(agents), dict(content or {})
        if not names or (enough is not None and not 0 < enough <= len(names)):
            raise ValidationError(f"Ask at least one agent, and require 1 to {len(names)} of them, got {enough}.")

        async def ask(agent: str) -> dict[str, Any]:
            try:
                return (await self._executor.ask(agent, capability, asked, timeout)).content
            except Agent3Error as error:
                return error_content(error.code, error.message)

        async def ask_until_enough() -> dict[str, dict[str, Any]]:
            tasks = {asyncio.ensure_future(ask(name)): name for name in names}
            answers: dict[str, dict[str, Any]] = {}
            left = set(tasks)
            try:
                while left:
                    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    answers |= {tasks[task]: task.result() for task in done}
                    successes = sum(1 for answer in answers.values() if answer.get("status") == "success")
                    if enough is not None and successes >= enough:
                        break
            finally:
                for task in left:
                    task.cancel()
            return {name: answers[name] for name in names if name in answers}

        return bridge.run(ask_until_enough())

    def close(self) -> None:
        """Run no more plans here."""
        self._executor.core.drop(self._agent)

    # The plan itself, as a capability of the coordinator's agent

    async def _run_plan(self, ctx: Context, steps: list[dict[str, Any]], parallel: int = 8) -> dict[str, Any]:
        by_id = {each["id"]: each for each in steps}
        plan = _parse(steps)

        async def invoke(planned: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
            target, timeout = by_id[planned.id], planned.timeout or _STEP_TIMEOUT
            # Under an id of the step's own: asked again after a crash, it is the same message.
            answer = await self._executor.ask_once(target["agent"], target["capability"], given, timeout, key)
            content = answer.content
            if content.get("status") == "success":
                return {"status": "success", "result": content.get("result")}
            if content.get("status") == "error":
                error = content.get("error") or {}
                raise by_code(error.get("code", ""))(error.get("message") or f"{answer.from_agent} failed.")
            return {"status": content.get("status", "error"), "job": content.get("job")}

        items = await run_plan(ctx, plan, invoke, on_error="stop", parallel=parallel)
        if all(item.status == "success" for item in items):
            return msgspec.to_builtins(PlanResult("success", items))  # type: ignore[no-any-return]
        # Undo what was done, and what may have been, each step before those that it waited for.
        item_of = {item.id: item for item in items}
        results = {item.id: item.result for item in items if item.status == "success"}
        order = list(TopologicalSorter({planned.id: needs(planned) for planned in plan}).static_order())
        undone: list[str] = []
        stuck: list[str] = []
        for step_id in reversed(order):
            item = item_of[step_id]
            may_be_done = item.status in ("success", "working") or (item.error or {}).get("code") in _UNSURE
            if by_id[step_id].get("undo") and may_be_done:
                done = await ctx.once(f"undo {step_id}", partial(self._undo, ctx, by_id[step_id], results))
                (undone if done else stuck).append(step_id)
        status: PlanStatus = "stuck" if stuck else "compensated" if undone else "failed"
        return msgspec.to_builtins(PlanResult(status, items, undone, stuck))  # type: ignore[no-any-return]

    async def _undo(self, ctx: Context, target: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
        reverse = msgspec.convert(target["undo"], Undo)
        step_id, timeout = target["id"], target.get("timeout") or _STEP_TIMEOUT
        for attempt in range(_UNDO_ATTEMPTS):
            try:
                given = fill(reverse.input, results)
                key = f"{ctx.job_id}/{step_id}/undo/{attempt}"
                answer = await self._executor.ask_once(target["agent"], reverse.capability, given, timeout, key)
            except Agent3Error as error:
                log.warning("step %s could not be undone: %s", step_id, error)
                continue
            if answer.content.get("status") == "success":
                return True
            log.warning("step %s could not be undone: %s", step_id, answer.content.get("error"))
        log.error("step %s of plan %s was not undone and needs attention", step_id, ctx.job_id)
        return False


def _parse(steps: Sequence[Mapping[str, Any]]) -> tuple[PlanStep, ...]:
    for each in steps:
        if not isinstance(each.get("agent"), str) or not isinstance(each.get("capability"), str):
            raise ValidationError(f"Step {each.get('id')!r} must name its agent and capability; build it with step().")
    return parse_plan(
        [
            {
                "id": each["id"],
                "tool": f"{each['agent']}/{each['capability']}",
                "input": each.get("input") or {},
                "after": each.get("after") or [],
                "timeout": each.get("timeout"),
            }
            for each in steps
        ]
    )
