"""Several calls as one: a batch with a status for each, and a plan whose steps feed one another.

A plan is durable through ``ctx.once``: every finished step is in the job before the next one starts, so after a crash
the plan goes on and repeats nothing. A step that was under way when the process died is asked for again under the
same key, so that its target can tell. This module knows no protocol: it is handed a way to call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from agent3.errors import Agent3Error, Canceled, TooLarge, ValidationError
from agent3.model import Capability
from agent3.observe.logs import get as logger
from agent3.protocols.functions.functions import Context, LocalAgent
from agent3.schema import json_type, nearest

__all__ = [
    "Invoke",
    "Item",
    "OnError",
    "PlanStep",
    "StopOnError",
    "fill",
    "needs",
    "parse_plan",
    "planner",
    "run_batch",
    "run_plan",
]

log = logger("plans")

Invoke: TypeAlias = Callable[["PlanStep", Any, str | None], Awaitable[Mapping[str, Any]]]
"""Calls what a step names: (step, input with all references filled in, a key that is the step's own).

It gives the fields of an ``Item``; what it raises is the step's error.
"""
OnError: TypeAlias = Literal["stop", "continue"]
StopOnError: TypeAlias = Literal["never", "first", "cancel"]
"""After a failure: go on with all, begin no more, or also cancel those that run."""

_WHOLE = re.compile(r"\$\{([^{}]+)\}\Z")
_INSIDE = re.compile(r"\$\{([^{}]+)\}")
_MOST = 200
_MOST_CALLS = 10_000
_LONGEST = 30 * 86_400.0
"""Seconds that a plan may take."""
_LONGEST_TEXT = 8 << 20
"""Characters of results that a text with references in it may hold."""


class PlanStep(Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a plan or batch. ``${id.path}`` in its input stands for the result of an earlier step."""

    id: str
    tool: str
    input: Any = {}
    after: tuple[str, ...] = ()
    timeout: float | None = None


class Item(Struct, frozen=True, omit_defaults=True):
    """How one call ended."""

    id: str
    status: Literal["success", "error", "skipped", "canceled", "needs", "working"]
    result: Any = None
    error: dict[str, Any] | None = None
    job: str | None = None
    questions: list[Any] = []
    trace_id: str | None = None
    metadata: dict[str, Any] = {}


class Once(Protocol):
    """What a plan needs of a context: ``Context`` of calls.functions has it."""

    @property
    def job_id(self) -> str: ...
    async def once(self, name: str, do: Callable[[], Any]) -> Any: ...


def planner(agent: LocalAgent, invoke: Invoke) -> Capability:
    """Let a hosted agent run plans. In a core with a database each is a job that another process goes on with."""

    async def run(
        ctx: Context,
        steps: list[dict[str, Any]],
        on_error: OnError = "stop",
        parallel: int = 8,
        done: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Run a plan."""
        items = await run_plan(ctx, parse_plan(steps), invoke, on_error=on_error, parallel=parallel, done=done)
        return [msgspec.to_builtins(item) for item in items]

    return agent.add(run, name="run", replay=True, timeout=_LONGEST)


def parse_plan(steps: Sequence[Mapping[str, Any]]) -> tuple[PlanStep, ...]:
    """The steps of a plan, checked: names unique, references known, nothing waiting for itself."""
    if not 0 < len(steps) <= _MOST:
        raise ValidationError(f"A plan must have 1 to {_MOST} steps, got {len(steps)}.")
    for number, given in enumerate(steps, 1):
        if not isinstance(given, Mapping):  # pairs in a list would pass for one
            raise ValidationError(f"Step {number} of the plan must be an object, not {json_type(given)}.")
    try:
        plan = tuple(msgspec.convert(dict(step), PlanStep) for step in steps)
    except msgspec.ValidationError as error:
        raise ValidationError(f"A step of the plan is malformed: {error}") from None
    names = [step.id for step in plan]
    if double := {name for name in names if names.count(name) > 1}:
        raise ValidationError(f"Step {sorted(double)[0]!r} occurs twice in the plan; give each its own id.")
    for step in plan:
        for other in needs(step):
            if other not in names:
                near = nearest(other, names)
                raise ValidationError(
                    f"Step {step.id!r} depends on {other!r}, which is not in the plan."
                    + (f" Did you mean {near!r}?" if near else "")
                )
    _make_order(plan)
    return plan


def _make_order(plan: Sequence[PlanStep]) -> TopologicalSorter[str]:
    order = TopologicalSorter({step.id: needs(step) for step in plan})
    try:
        order.prepare()
    except CycleError as error:
        raise ValidationError(f"The steps {' → '.join(error.args[1])} depend on one another.") from None
    return order


def needs(step: PlanStep) -> set[str]:
    """The steps that one waits for: those it names, and those whose results it takes."""
    return set(step.after) | {name.split(".", 1)[0] for name in _references(step.input)}


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from _INSIDE.findall(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _references(item)


def fill(value: Any, results: Mapping[str, Any]) -> Any:
    """The input with every reference in it replaced: a whole text by the value itself, a part of one by its text."""
    if isinstance(value, str):
        if whole := _WHOLE.match(value):
            return _at(whole[1], results)
        # Bounded: steps that each name the one before twice would double what they send with every step.
        pieces, end, size = [], 0, 0
        for found in _INSIDE.finditer(value):
            pieces += [value[end : found.start()], _text(_at(found[1], results))]
            end, size = found.end(), size + len(pieces[-1])
            if size > _LONGEST_TEXT:
                raise TooLarge(f"A text of the plan would have more than {_LONGEST_TEXT} characters of results in it.")
        return "".join([*pieces, value[end:]])
    if isinstance(value, Mapping):
        return {key: fill(item, results) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, results) for item in value]
    return value


def _at(path: str, results: Mapping[str, Any]) -> Any:
    here: Any = results
    for name in path.split("."):
        try:
            here = here[int(name)] if isinstance(here, list) else here[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ValidationError(f"${{{path}}} is not in the results: {name!r} does not exist.") from None
    return here


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def run_plan(
    ctx: Once | None,
    plan: Sequence[PlanStep],
    invoke: Invoke,
    *,
    on_error: OnError = "stop",
    parallel: int = 8,
    done: Mapping[str, Any] | None = None,
) -> list[Item]:
    """Run the steps as their dependencies allow; the items come in the order of the plan.

    A failed step skips all that wait for it; with ``stop`` it skips everything that has not begun. Without ``ctx``
    nothing is kept, and no step has a key. ``done`` has the results, by id, of steps that are not to be run.
    """
    run = _PlanRun(ctx, plan, invoke, on_error, parallel)
    run.skip(done or {})
    return await run.finish()


class _PlanRun:
    def __init__(self, ctx: Once | None, plan: Sequence[PlanStep], invoke: Invoke, on_error: OnError, parallel: int):
        self._ctx = ctx
        self._steps = {step.id: step for step in plan}
        self._invoke = invoke
        self._stop = on_error == "stop"
        self._room = asyncio.Semaphore(max(1, parallel))
        self._order = _make_order(plan)
        self._items: dict[str, Item] = {}
        self._failed = False

    def skip(self, done: Mapping[str, Any]) -> None:
        """Take steps as done; ValidationError for one that is not in the plan."""
        for name, result in done.items():
            if name not in self._steps:
                near = nearest(name, self._steps)
                hint = f" Did you mean {near!r}?" if near else ""
                raise ValidationError(f"Step {name!r} is given as done, but is not in the plan.{hint}")
            self._items[name] = Item(name, "success", result=result)

    async def finish(self) -> list[Item]:
        running: set[asyncio.Task[str]] = set()
        try:
            while self._order.is_active():
                running |= {asyncio.ensure_future(self._one(name)) for name in self._order.get_ready()}
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._order.done(task.result())
        finally:
            await _end(running)
        return [self._items[name] for name in self._steps]

    async def _one(self, name: str) -> str:
        step = self._steps[name]
        if name in self._items:
            return name
        async with self._room:
            if any(self._items[other].status != "success" for other in needs(step)) or (self._failed and self._stop):
                self._items[name] = Item(name, "skipped")
            elif self._ctx is None:
                self._items[name] = await self._do(step)
            else:
                kept = await self._ctx.once(f"step {name}", lambda: self._do(step))
                self._items[name] = msgspec.convert(kept, Item)  # JSON, if it was done before a restart
            self._failed = self._failed or self._items[name].status not in ("success", "skipped")
        return name

    async def _do(self, step: PlanStep) -> Item:
        results = {name: item.result for name, item in self._items.items() if item.status == "success"}
        key = f"{self._ctx.job_id}/{step.id}" if self._ctx is not None else None
        return await _item(step, lambda: self._invoke(step, fill(step.input, results), key))


async def _item(step: PlanStep, call: Callable[[], Awaitable[Mapping[str, Any]]]) -> Item:
    try:
        answer = await call()
        return msgspec.convert({**answer, "id": step.id}, Item)
    except Agent3Error as error:
        failure = error
    except Exception as error:
        # One call must not take the others' results with it, whatever it dies of.
        log.exception("step %s: %s failed unexpectedly", step.id, step.tool)
        text = f"{type(error).__name__}: {str(error)[:500]}"
        failure = Agent3Error(f"{step.tool!r} failed with {text}. See the log.")
    return Item(step.id, "error", error=failure.to_dict())


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait for it."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


async def run_batch(
    calls: Sequence[PlanStep],
    invoke: Invoke,
    *,
    parallel: int = 8,
    stop_on_error: StopOnError = "never",
) -> list[Item]:
    """Independent calls at once, each with its own status, in the order given. Cancelling it cancels all that run."""
    if not 0 < len(calls) <= _MOST_CALLS:
        raise ValidationError(f"A batch must have 1 to {_MOST_CALLS} calls, got {len(calls)}.")
    return await _Batch(calls, invoke, parallel, stop_on_error).finish()


class _Batch:
    def __init__(self, calls: Sequence[PlanStep], invoke: Invoke, parallel: int, stop_on_error: StopOnError):
        self._calls = calls
        self._invoke = invoke
        self._room = asyncio.Semaphore(max(1, parallel))
        self._stop_on_error = stop_on_error
        self._stopped = False
        self._running: set[asyncio.Task[Any] | None] = set()

    async def finish(self) -> list[Item]:
        tasks = [asyncio.ensure_future(self._one(call)) for call in self._calls]
        try:
            await asyncio.wait(tasks)
        finally:
            await _end(tasks)
        canceled = Canceled("Another call of the batch failed first.").to_dict()
        return [
            Item(call.id, "canceled", error=canceled) if task.cancelled() else task.result()
            for call, task in zip(self._calls, tasks, strict=True)
        ]

    async def _one(self, call: PlanStep) -> Item:
        async with self._room:
            if self._stopped:
                return Item(call.id, "skipped")
            self._running.add(task := asyncio.current_task())
            try:
                item = await _item(call, lambda: self._invoke(call, call.input, None))
            finally:
                self._running.discard(task)
            if item.status == "error":
                self._stopped = self._stop_on_error != "never"
                if self._stop_on_error == "cancel":
                    for other in self._running:
                        if other is not None:
                            other.cancel()
            return item
