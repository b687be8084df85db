"""Several calls as one: a batch with a status for each, and a plan whose steps feed one another.

A plan is durable through ``ctx.once``: every finished step is in the job before the next one starts, so after a crash
the plan goes on and repeats nothing. A step that was under way when the process died is asked for again under the
same key, so that whoever answers it can tell. This module knows no protocol: it is handed a way to call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from agent3.calls.outcomes import failed_by
from agent3.errors import Agent3Error, ValidationError
from agent3.model import Done, Failed, Needs, Outcome, value_of
from agent3.schema import nearest

__all__ = ["Invoke", "Item", "PlanStep", "parse_plan", "run_batch", "run_plan"]

Invoke = Callable[["PlanStep", Any, str], Awaitable[Outcome]]
"""Calls what a step names: (step, input with all references filled in, a key that is the step's own)."""

_WHOLE = re.compile(r"\$\{([^{}]+)\}\Z")
_INSIDE = re.compile(r"\$\{([^{}]+)\}")
_MOST = 200


class PlanStep(Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a plan or batch. ``${id.path}`` in its input stands for the result of an earlier step."""

    id: str
    tool: str
    input: Any = {}
    after: tuple[str, ...] = ()
    agent: str | None = None


class Item(Struct, frozen=True):
    """How one call ended."""

    id: str
    status: Literal["success", "error", "skipped", "needs"]
    result: Any = None
    error: dict[str, Any] | None = None


class Once(Protocol):
    """What a plan needs of a context: ``Context`` of calls.functions has it."""

    @property
    def job_id(self) -> str: ...
    async def once(self, name: str, do: Callable[[], Any]) -> Any: ...


def parse_plan(steps: Sequence[Mapping[str, Any]]) -> tuple[PlanStep, ...]:
    """The steps of a plan, checked: names unique, references known, nothing waiting for itself."""
    if not 0 < len(steps) <= _MOST:
        raise ValidationError(f"A plan has 1 to {_MOST} steps, got {len(steps)}.")
    try:
        plan = tuple(msgspec.convert(dict(one), PlanStep) for one in steps)
    except msgspec.ValidationError as wrong:
        raise ValidationError(f"A step of the plan is malformed: {wrong}") from None
    names = [step.id for step in plan]
    if double := {name for name in names if names.count(name) > 1}:
        raise ValidationError(f"Step {sorted(double)[0]!r} stands twice in the plan; give each an id of its own.")
    for step in plan:
        for other in _needs(step):
            if other not in names:
                near = nearest(other, names)
                raise ValidationError(
                    f"Step {step.id!r} waits for {other!r}, which is not in the plan."
                    + (f" Did you mean {near!r}?" if near else "")
                )
    _sorted(plan)
    return plan


def _sorted(plan: Sequence[PlanStep]) -> TopologicalSorter[str]:
    order = TopologicalSorter({step.id: _needs(step) for step in plan})
    try:
        order.prepare()
    except CycleError as circle:
        raise ValidationError(f"The steps {' → '.join(circle.args[1])} wait for one another.") from None
    return order


def _needs(step: PlanStep) -> set[str]:
    return set(step.after) | {name.split(".", 1)[0] for name in _references(step.input)}


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from _INSIDE.findall(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _references(one)


def fill(value: Any, results: Mapping[str, Any]) -> Any:
    """The input with every reference in it replaced: a whole text by the value itself, a part of one by its text."""
    if isinstance(value, str):
        if whole := _WHOLE.match(value):
            return _at(whole[1], results)
        return _INSIDE.sub(lambda found: _text(_at(found[1], results)), value)
    if isinstance(value, Mapping):
        return {key: fill(one, results) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [fill(one, results) for one in value]
    return value


def _at(path: str, results: Mapping[str, Any]) -> Any:
    here: Any = results
    for name in path.split("."):
        try:
            here = here[int(name)] if isinstance(here, list) else here[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ValidationError(f"${{{path}}} is not in the results: there is no {name!r}.") from None
    return here


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def run_plan(
    ctx: Once,
    plan: Sequence[PlanStep],
    invoke: Invoke,
    *,
    on_error: Literal["stop", "continue"] = "stop",
    parallel: int = 8,
) -> list[Item]:
    """Run the steps as their dependencies allow; the items come in the order of the plan.

    A failed step skips all that wait for it; with ``stop`` it skips everything that has not begun.
    """
    run = _PlanRun(ctx, plan, invoke, on_error, parallel)
    return await run.to_the_end()


class _PlanRun:
    def __init__(self, ctx: Once, plan: Sequence[PlanStep], invoke: Invoke, on_error: str, parallel: int):
        self._ctx = ctx
        self._steps = {step.id: step for step in plan}
        self._invoke = invoke
        self._stop = on_error == "stop"
        self._room = asyncio.Semaphore(max(1, parallel))
        self._order = _sorted(plan)
        self._items: dict[str, Item] = {}
        self._failed = False

    async def to_the_end(self) -> list[Item]:
        running: set[asyncio.Task[str]] = set()
        try:
            while self._order.is_active():
                running |= {asyncio.ensure_future(self._one(name)) for name in self._order.get_ready()}
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._order.done(task.result())
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        return [self._items[name] for name in self._steps]

    async def _one(self, name: str) -> str:
        step = self._steps[name]
        async with self._room:
            if any(self._items[other].status != "success" for other in _needs(step)) or (self._failed and self._stop):
                self._items[name] = Item(name, "skipped")
            else:
                self._items[name] = msgspec.convert(await self._ctx.once(f"step {name}", lambda: self._do(step)), Item)
            self._failed = self._failed or self._items[name].status in ("error", "needs")
        return name

    async def _do(self, step: PlanStep) -> Any:
        results = {name: item.result for name, item in self._items.items() if item.status == "success"}
        item = await _item(step.id, self._called(step, results))
        return msgspec.to_builtins(item)

    async def _called(self, step: PlanStep, results: Mapping[str, Any]) -> Outcome:
        return await self._invoke(step, fill(step.input, results), f"{self._ctx.job_id}/{step.id}")


async def _item(name: str, called: Awaitable[Outcome]) -> Item:
    try:
        outcome = await called
    except Agent3Error as wrong:
        outcome = failed_by(wrong)
    if isinstance(outcome, Done):
        return Item(name, "success", value_of(outcome.parts))
    if isinstance(outcome, Failed):
        error = {"code": outcome.code, "message": outcome.message, "retryable": outcome.retryable}
        return Item(name, "error", error=error)
    asked = [one.text for one in outcome.questions] if isinstance(outcome, Needs) else []
    return Item(name, "needs", {"job": outcome.job, "questions": asked})


async def run_batch(
    calls: Sequence[PlanStep],
    invoke: Invoke,
    *,
    parallel: int = 8,
    stop_on_error: bool = False,
    key: str = "batch",
) -> list[Item]:
    """Independent calls at once, each with its own status, in the order given."""
    if not 0 < len(calls) <= _MOST:
        raise ValidationError(f"A batch has 1 to {_MOST} calls, got {len(calls)}.")
    room = asyncio.Semaphore(max(1, parallel))
    failed = False

    async def one(step: PlanStep) -> Item:
        nonlocal failed
        async with room:
            if failed and stop_on_error:
                return Item(step.id, "skipped")
            item = await _item(step.id, invoke(step, step.input, f"{key}/{step.id}"))
            failed = failed or item.status == "error"
            return item

    return list(await asyncio.gather(*(one(step) for step in calls)))
