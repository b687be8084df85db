"""The order in which the steps of an action run: conditions, loops, values from one step to the next, and retries.

It fills each step when its turn comes and hands it to ``perform``, which knows how to run one and how to say what went
wrong. Over several pages nothing changes: the page in front is wherever the last step left it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agent3.definitions import ActionType, Condition, NLWebAction
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    ElementMissing,
    MalformedResponse,
    NotOnPage,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.observe import logs
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps import page_reading, webmcp
from agent3.protocols.nlweb.steps.actions import YIELDING
from agent3.protocols.nlweb.steps.parameters import (
    check_parameters,
    describe,
    inject,
    inject_condition,
    look_up,
    parameter_names,
    step_label,
)
from agent3.protocols.nlweb.steps.run_context import RunContext, Source
from agent3.protocols.nlweb.steps.snapshots import StepRecord
from agent3.protocols.nlweb.steps.waits import holds, ms_left

__all__ = ["PRESSING", "REPEATABLE", "OnStep", "Perform", "run", "single"]

logger = logs.get("nlweb")

Perform = Callable[[NLWebAction, str, float], Awaitable[Any]]
"""(filled step, its name in messages, the seconds that are left) → what it gives."""
OnStep = Callable[[str, int, int], None]
"""Is told which step begins: its name, its number, and how many there are."""

REPEATABLE = frozenset(
    map(ActionType, "navigate type select check uncheck hover scroll wait extract screenshot fill".split())
)
"""The kinds that do the same when they are done twice; a click or a key may buy a second ticket."""
PRESSING = frozenset(map(ActionType, "click press submit".split()))
"""The kinds by which something is sent."""

_NAVIGATION_RETRIES = 2
_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_MOST_ROUNDS = 100
_MOST_ITEMS = 1000
_MOST_DONE = 200
_ONLY_THE_FRAME = {
    "selector": None, "value": None, "wait_for": None, "next": None, "fields": None, "when": None, "until": None,
    "extract_schema": None, "verify": None,
}  # fmt: skip


async def run(
    ctx: RunContext,
    steps: Sequence[NLWebAction],
    parameters: Mapping[str, Any],
    perform: Perform,
    *,
    name: str = "",
    seconds: float = 60.0,
    on_step: OnStep | None = None,
) -> Any:
    """Run the steps of an action: None, one result, or a list of several.

    Everything that can be checked before the first step is. A step that fails is tried again if doing it twice is the
    same as once; then the page is kept (``ctx.snapshots``) and the error raised. CallTimeout if all together take
    longer than ``seconds``. ``on_step`` is told of every step of the action itself, before it begins.
    """
    check_parameters(steps, parameters, name)
    ctx.begin(parameters)
    info = ctx.interface.info.get(name)
    ctx.confirmed = info is not None and info.hints.consequential
    ctx.reads = info is not None and info.hints.read_only
    if steps and steps[0].action_type is ActionType.NAVIGATE:
        # An action that opens its own page begins without the popups of the last one; any other goes on in them.
        await ctx.tidy()
    work = _Run(ctx, perform, name, seconds, on_step)
    if ctx.snapshots is not None:
        await ctx.snapshots.begin(ctx.page.context)
    await ctx.finder.begin(name, steps)
    try:
        results = await work.act(steps)
    except TargetError as error:
        # A browser that went away says nothing of the elements found.
        if not isinstance(error, Unavailable):
            await _afterwards(ctx.finder.end(ok=False), "what was learnt of its elements")
        raise
    await _afterwards(ctx.finder.end(ok=True), "what was learnt of its elements")
    if ctx.snapshots is not None:
        await _afterwards(ctx.snapshots.end(ctx.page.context, private=ctx.private), "its trace")
    result = _to_result(results)
    if result is None and ctx.news and (info is None or info.output_schema is None):
        result = {"done": name, "page": ctx.page.url.partition("?")[0].partition("#")[0], "seen": ctx.news}
    return ctx.without_secrets(result)


async def single(ctx: RunContext, action: NLWebAction, perform: Perform, seconds: float = 60.0) -> Any:
    """Run one step as it stands, once; what it gives, or None. Of a failure the page is kept, as in ``run``."""
    work = _Run(ctx, perform, "", seconds, None)
    if action.steps:
        return _to_result(await work.run_steps([action]))
    return await work.perform_once(action, describe(action))


async def _afterwards(work: Awaitable[Any], what: str) -> None:
    """What comes after the last step never changes how an action ended: what was done is done, recorded or not."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is, an order that was placed did not fail by it
        logger.warning("an action ended, and %s could not be stored: %s", what, error)


def _to_result(results: list[Any]) -> Any:
    return results if len(results) > 1 else next(iter(results), None)


def _find_last_presses(steps: Sequence[NLWebAction]) -> list[NLWebAction]:
    """The press that an action ends with; several where it ends in branches."""
    for place, step in reversed([*enumerate(steps)]):
        if step.action_type in PRESSING:
            return [step]
        if found := [*_find_last_presses(step.steps), *_find_last_presses(step.otherwise)]:
            # Where a branch presses nothing, or is not taken, it ends with the press before.
            is_sure = step.action_type is ActionType.REPEAT or (step.steps and step.otherwise)
            return found if is_sure else [*found, *_find_last_presses(steps[:place])]
    return []


class _Run:
    """One run of one action."""

    def __init__(self, ctx: RunContext, perform: Perform, name: str, seconds: float, on_step: OnStep | None):
        self._ctx = ctx
        self._on_step = on_step
        self._perform = perform
        self._name = name
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._done: list[StepRecord] = []
        self._last: set[int] = set()

    async def act(self, steps: Sequence[NLWebAction]) -> list[Any]:
        """All steps; where the page that they open offers a tool that does the same, that in place of selectors."""
        if self._ctx.confirmed:
            self._last = {id(step) for step in _find_last_presses(steps)}
        plan = webmcp.find_plan(self._ctx.interface, self._name, steps)
        if plan is None:
            return await self.run_steps(steps)
        await self.run_steps(steps[: plan.at], total=len(steps))
        names = parameter_names(steps[plan.at : plan.until])
        tool = await webmcp.find_tool_step(self._ctx, plan, {name: look_up(self._ctx.values, name) for name in names})
        if tool is None:
            return await self.run_steps(steps, first=plan.at)
        label = step_label(tool, self._name, str(plan.at + 1))
        result = await self._perform_with_retries(tool, label)
        is_promised = webmcp.is_promised(self._ctx.interface, self._name, result)
        self._note_tool(label, result if is_promised else None)
        return [result] if is_promised else await self.run_steps(steps, first=plan.until)

    async def run_steps(
        self, steps: Sequence[NLWebAction], before: str = "", *, first: int = 0, total: int | None = None
    ) -> list[Any]:
        """What the steps give, in their order; those before the ``first`` are left out."""
        results: list[Any] = []
        for number, step in enumerate(steps[first:], first + 1):
            if self._on_step is not None and not before:
                self._on_step(step_label(step, self._name, str(number)), number, total or len(steps))
            results += await self._run_step(step, f"{before}{number}")
        return results

    async def _run_step(self, step: NLWebAction, number: str) -> list[Any]:
        label = step_label(step, self._name, number)
        self._seconds_left(label)  # raises where no time is left to begin
        is_wanted = True
        if step.when is not None:
            given = step.when.given
            is_there = not given or look_up(self._ctx.values, given) not in (None, "", [], {})
            is_wanted = is_there and await self._holds(step, step.when, label)
        if step.action_type is ActionType.IF:
            return await self._run_block(step, step.steps if is_wanted else step.otherwise, number)
        if not is_wanted:
            return []
        if step.action_type is ActionType.REPEAT:
            return await self._repeat(step, number, label)
        if step.action_type is ActionType.TOOL and step.otherwise and not await webmcp.is_offered(self._ctx, step):
            return await self._run_block(step, step.otherwise, number)
        if step.verify is None and id(step) in self._last:
            # What has consequences is not done where the page says that it is not, whoever wrote its steps.
            step = step.model_copy(update={"verify": "refusal"})
        result = await self._perform_with_retries(step, label)
        if step.action_type is ActionType.TOOL:
            self._note_tool(label, result)
            if result is None and step.steps:
                return await self._run_block(step, step.steps, number)
        self._save(step, result)
        if step.action_type is ActionType.TOOL:
            return [] if result is None else [result]
        return [result] if step.action_type in YIELDING else []

    def _note_tool(self, label: str, result: Any) -> None:
        """Note that the result came from the page's own tool: its reader must not trust it more than the page."""
        rows = len(result) if isinstance(result, list) else int(result is not None)
        self._ctx.sources.append(Source(label, "webmcp", rows))

    def _save(self, step: NLWebAction, result: Any) -> None:
        if step.save_as:
            self._ctx.memory[step.save_as] = result

    # One step

    async def perform_once(self, filled: NLWebAction, label: str) -> Any:
        """A step that is filled, without another try."""
        try:
            return await self._perform(filled, label, self._seconds_left(label))
        except Agent3Error as error:
            raise await self._record_failure(error, label) from None

    async def _perform_with_retries(self, step: NLWebAction, label: str) -> Any:
        ctx = self._ctx

        def reveal_secret(name: str) -> str:
            assert ctx.secrets is not None
            value = ctx.secrets(name)
            ctx.used_secrets.add(value)
            return value

        secrets = reveal_secret if ctx.secrets is not None else None
        filled = inject(step, ctx.values, label, secrets=secrets)
        if step.retries is not None:
            tries = 1 + step.retries
        elif step.action_type is ActionType.NAVIGATE:
            tries = 1 + _NAVIGATION_RETRIES
        else:
            tries = 2 if step.action_type in REPEATABLE else 1
        for attempt in range(1, tries + 1):
            start, ctx.pressed = time.monotonic(), False
            try:
                result = await self._perform(filled, label, self._seconds_left(label))
            except Agent3Error as error:
                self._note_done(label, error.code, start)
                # What was pressed was done, whatever the page shows of it.
                pause = self._pause(step, error, attempt) if attempt < tries and not ctx.pressed else None
                if pause is None:
                    raise await self._record_failure(error, label) from None
                logger.info("step %s failed (%s), retrying in %.1f s", label, error.code, pause)
                await asyncio.sleep(pause)
            else:
                self._note_done(label, "done", start)
                return result
        raise AssertionError("unreachable: the last try returns or raises")

    def _pause(self, step: NLWebAction, error: Agent3Error, attempt: int) -> float | None:
        """How long to wait before the next try; None if another would not help or is not allowed."""
        if self._ctx.page.is_closed():
            return None
        if isinstance(error, TargetRefused | MalformedResponse) or not isinstance(error, TargetError):
            return None
        # A page that did not come may come; an element that was not there for the whole time of its step will not.
        if step.retries is None:
            is_late = isinstance(error, Unavailable | CallTimeout)
            if is_late != (step.action_type is ActionType.NAVIGATE):
                return None
        pause = error.retry_after if error.retry_after is not None else _PAUSE * 2 ** (attempt - 1)
        return pause if pause <= min(_LONGEST_PAUSE, self._end - time.monotonic()) else None

    async def _record_failure(self, error: Agent3Error, label: str) -> Agent3Error:
        """Keep the page as it is, and take secrets out of the error."""
        ctx = self._ctx
        # The most frequent reason for an element that does not come is a page that opened elsewhere.
        if isinstance(error, CallTimeout) and ctx.ignored_popups:
            error.message += " A popup has opened: if the step belongs in it, add popup: true to the previous step."
            error.args = (error.message,)
        if isinstance(error, ElementMissing) and (named := ctx.named_in(str(error.data.get("selector")))):
            if await page_reading.shows(ctx.page, named):
                error.message = f"{named[:200]!r} was not found on the page. {error.message}"
                error.args = (error.message,)
            else:
                where = ctx.page.url.partition("?")[0].partition("#")[0]
                details = {"step": label, "named": named[:200], "page": where}
                error = NotOnPage(f"{named[:200]!r} was not found on the page {where}", data=details)
        if ctx.snapshots is not None:
            hidden = ctx.used_secrets | ctx.passwords
            taking = ctx.snapshots.take(ctx.page, error, label, tuple(self._done), hidden, private=ctx.private)
            await _afterwards(taking, "its snapshot")
        if healed := ctx.finder.describe_heals():
            error.data["healed"] = healed
        # A site that repeats what was typed, or an address that holds it, must not carry a secret into a ledger.
        error.message = ctx.without_secrets(error.message)
        error.args = (error.message,)
        error.data = ctx.without_secrets(error.data)
        return error

    def _note_done(self, label: str, outcome: str, start: float) -> None:
        ms = round((time.monotonic() - start) * 1000)
        self._done = [*self._done[-_MOST_DONE:], StepRecord(label, outcome, ms, self._ctx.page.url)]

    # Several steps

    async def _run_block(self, step: NLWebAction, steps: Sequence[NLWebAction], number: str) -> list[Any]:
        try:
            results = await self.run_steps(steps, f"{number}.")
        except TargetError:
            if not step.optional or self._ctx.page.is_closed():
                raise
            return []
        if step.save_as:
            self._save(step, _to_result(results))
        return results

    async def _repeat(self, step: NLWebAction, number: str, label: str) -> list[Any]:
        """The rounds of a loop. One result in each round makes one list of all of them, rows one after the other."""
        items: Any = [None] * (step.times or (_MOST_ROUNDS if step.until else 1))
        if step.over is not None:
            items = look_up(self._ctx.values, step.over)
            if not isinstance(items, list | tuple):
                raise ValidationError(
                    f"Step {label} loops over {step.over!r}, which is not a list. Save one with save_as, or pass one."
                )
            if step.times is None and len(items) > _MOST_ITEMS:
                raise ValidationError(
                    f"Step {label} loops over {len(items)} items of {step.over!r}. Set times to limit the number."
                )
            items = items[: step.times]
        # A loop within a loop has an item of its own; the outer one gets its own back.
        around = {key: self._ctx.memory.get(key) for key in ("item", "index")}
        rounds: list[list[Any]] = []
        try:
            for index, item in enumerate(items):
                self._ctx.memory |= {"item": item, "index": index + 1}
                rounds.append(await self._run_block(step, step.steps, number))
                if step.until is not None and await self._holds(step, step.until, label):
                    break
            else:
                # Reaching a bound that the author did not set means that the end was missed.
                if step.until is not None and step.over is None and step.times is None:
                    raise TargetError(f"Step {label} was repeated {_MOST_ROUNDS} times without meeting its condition.")
        finally:
            self._ctx.memory |= around
        if not any(rounds):
            return []
        gathered: list[Any] = rounds
        if all(len(results) <= 1 for results in rounds):
            gathered = [results[0] for results in rounds if results]
            if all(isinstance(rows, list) for rows in gathered):
                gathered = [row for rows in gathered for row in rows]
        self._save(step, gathered)
        return [gathered]

    # Conditions and time

    async def _holds(self, step: NLWebAction, condition: Condition, label: str) -> bool:
        values = self._ctx.values
        filled = inject_condition(condition, values, label)
        where = inject(step.model_copy(update=_ONLY_THE_FRAME), values, label) if step.frame else step
        try:
            place = await self._ctx.get_place(where, ms_left(self._end))
            return await holds(self._ctx, place, filled, where.frame)
        except playwright().Error as error:
            text = error.message.splitlines()[0]
            failure = TargetError(f"Step {label}: its condition failed: {text}")
            raise await self._record_failure(failure, label) from None

    def _seconds_left(self, label: str) -> float:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise CallTimeout(f"{self._name!r} took longer than {self._seconds:g} s; step {label} was not started.")
        return remaining
