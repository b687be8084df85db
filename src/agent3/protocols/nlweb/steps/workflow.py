"""The order in which the steps of an action run: conditions, loops, values from one step to the next, and tries again.

It fills each step when its turn comes and hands it to ``perform``, which knows how to run one and how to say what went
wrong. Over several pages the story is the same: the scene's page is wherever the last step left it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.observe import logs
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps import webmcp
from agent3.protocols.nlweb.steps.actions import YIELDING
from agent3.protocols.nlweb.steps.parameters import describe, inject, inject_condition, label, look_up, prove, used
from agent3.protocols.nlweb.steps.scene import Scene, Source
from agent3.protocols.nlweb.steps.waits import holds, left
from agent3.protocols.nlweb.visit.snapshots import Done

__all__ = ["REPEATABLE", "OnStep", "Perform", "run", "single"]

logger = logs.get("nlweb")

Perform = Callable[[NLWebAction, str, float], Awaitable[Any]]
"""(filled step, its name in messages, the seconds that are left) → what it gives."""
OnStep = Callable[[str, int, int], None]
"""Hears which step begins: its name, its number, and how many there are."""

REPEATABLE = frozenset(
    {
        ActionType.NAVIGATE,
        ActionType.TYPE,
        ActionType.SELECT,
        ActionType.CHECK,
        ActionType.UNCHECK,
        ActionType.HOVER,
        ActionType.SCROLL,
        ActionType.WAIT,
        ActionType.EXTRACT,
        ActionType.SCREENSHOT,
        ActionType.FILL,
    }
)
"""The kinds that do the same when they are done twice; a click or a key may buy a second ticket."""

_NAVIGATION_RETRIES = 2
_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_ROUNDS = 100
_MOST_ITEMS = 1000
_MOST_DONE = 200


async def run(
    scene: Scene,
    steps: Sequence[NLWebAction],
    parameters: Mapping[str, Any],
    perform: Perform,
    *,
    name: str = "",
    seconds: float = 60.0,
    on_step: OnStep | None = None,
) -> Any:
    """Run the steps of an action: None, one result, or a list of several.

    Everything that can be judged before the first step is. A step that fails is tried again if doing it twice is the
    same as once; then the page is kept (``scene.snapshots``) and the error raised. CallTimeout if all together take
    longer than ``seconds``. ``on_step`` hears of every step of the action itself, before it begins.
    """
    prove(steps, parameters, name)
    scene.begin(parameters)
    info = scene.interface.info.get(name)
    scene.confirmed = info is not None and info.hints.consequential
    if steps and steps[0].action_type is ActionType.NAVIGATE:
        await scene.tidy()
    story = _Story(scene, perform, name, seconds, on_step)
    if scene.snapshots is not None:
        await scene.snapshots.begin(scene.page.context)
    results = await _told(story, scene, steps, name)
    if scene.snapshots is not None:
        await _afterwards(scene.snapshots.end(scene.page.context, private=scene.private), "its trace")
    return scene.without_secrets(_plain(results))


async def _told(story: _Story, scene: Scene, steps: Sequence[NLWebAction], name: str) -> list[Any]:
    """The steps, and the finder told how it ended. A browser that went away says nothing of the elements found."""
    await scene.finder.begin(name, steps)
    try:
        results = await story.act(steps)
    except TargetError as error:
        if not isinstance(error, Unavailable):
            await _afterwards(scene.finder.end(ok=False), "what was learnt of its elements")
        raise
    await _afterwards(scene.finder.end(ok=True), "what was learnt of its elements")
    return results


async def _afterwards(work: Awaitable[Any], what: str) -> None:
    """What comes after the last step never changes how an action ended: what was done is done, recorded or not."""
    try:
        await work
    except Exception as wrong:  # noqa: BLE001 - whatever it is, an order that was placed did not fail by it
        logger.warning("an action ended, and %s is not kept: %s", what, wrong)


async def single(scene: Scene, action: NLWebAction, perform: Perform, seconds: float = 60.0) -> Any:
    """Run one step as it stands, once; what it gives, or None. Of a failure the page is kept, as in ``run``."""
    story = _Story(scene, perform, "", seconds, None)
    if action.steps:
        return _plain(await story.tell([action]))
    return await story.once(action, describe(action))


class _Story:
    """One run of one action."""

    def __init__(self, scene: Scene, perform: Perform, name: str, seconds: float, on_step: OnStep | None):
        self._scene = scene
        self._on_step = on_step
        self._perform = perform
        self._name = name
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._done: list[Done] = []

    async def act(self, steps: Sequence[NLWebAction]) -> list[Any]:
        """All steps; where the page that they open offers a tool that does the same, that in place of selectors."""
        wanted = webmcp.plan(self._scene.interface, self._name, steps)
        if wanted is None:
            return await self.tell(steps)
        await self.tell(steps[: wanted.at], total=len(steps))
        values = {name: look_up(self._scene.values, name) for name in used(steps[wanted.at : wanted.until])}
        tool = await webmcp.fitting(self._scene, wanted, values)
        if tool is None:
            return await self.tell(steps, first=wanted.at)
        called = label(tool, self._name, str(wanted.at + 1))
        result = await self._single(tool, called)
        taken = webmcp.is_result(self._scene.interface, self._name, result)
        self._mark(called, result if taken else None)
        return [result] if taken else await self.tell(steps, first=wanted.until)

    async def tell(
        self, steps: Sequence[NLWebAction], before: str = "", *, first: int = 0, total: int | None = None
    ) -> list[Any]:
        """What the steps give, in their order; those before the ``first`` are left out."""
        results: list[Any] = []
        for number, step in enumerate(steps[first:], first + 1):
            if self._on_step is not None and not before:
                self._on_step(label(step, self._name, str(number)), number, total or len(steps))
            results += await self._step(step, f"{before}{number}")
        return results

    async def _step(self, step: NLWebAction, number: str) -> list[Any]:
        called = label(step, self._name, number)
        self._left(called)
        wanted = await self._wanted(step, called)
        if step.action_type is ActionType.IF:
            return await self._block(step, step.steps if wanted else step.otherwise, number)
        if not wanted:
            return []
        if step.action_type is ActionType.REPEAT:
            return await self._repeat(step, number, called)
        if step.action_type is ActionType.TOOL:
            return await self._tool(step, number, called)
        result = await self._single(step, called)
        self._save(step, result)
        return [result] if step.action_type in YIELDING else []

    async def _tool(self, step: NLWebAction, number: str, called: str) -> list[Any]:
        """A tool of the page, or what the author wants done where the page does not offer it."""
        if step.otherwise and not await webmcp.offered(self._scene, step):
            return await self._block(step, step.otherwise, number)
        result = await self._single(step, called)
        self._mark(called, result)
        if result is None and step.steps:
            return await self._block(step, step.steps, number)
        self._save(step, result)
        return [] if result is None else [result]

    def _mark(self, called: str, result: Any) -> None:
        """Put down that it was the page's own tool: what it gave is nobody's word but the page's."""
        rows = len(result) if isinstance(result, list) else int(result is not None)
        self._scene.sources.append(Source(called, "webmcp", rows))

    # One step

    async def once(self, filled: NLWebAction, called: str) -> Any:
        """A step that is filled, without another try."""
        try:
            return await self._perform(filled, called, self._left(called))
        except Agent3Error as error:
            raise await self._failed(error, called) from None

    async def _single(self, step: NLWebAction, called: str) -> Any:
        filled = inject(step, self._scene.values, called, secrets=self._secrets)
        tries = _tries(step)
        for attempt in range(1, tries + 1):
            start = time.monotonic()
            try:
                result = await self._perform(filled, called, self._left(called))
            except Agent3Error as error:
                self._note(called, error.code, start)
                pause = self._pause(step, error, attempt) if attempt < tries else None
                if pause is None:
                    raise await self._failed(error, called) from None
                logger.info("step %s failed (%s), tried again in %.1f s", called, error.code, pause)
                await asyncio.sleep(pause)
            else:
                self._note(called, "done", start)
                return result
        raise AssertionError("unreachable: the last try returns or raises")

    def _pause(self, step: NLWebAction, error: Agent3Error, attempt: int) -> float | None:
        """How long to wait before the next try; None if another would not help or is not allowed."""
        if self._scene.page.is_closed() or not _may_help(step, error):
            return None
        pause = error.retry_after if error.retry_after is not None else _PAUSE * 2 ** (attempt - 1)
        return pause if pause <= min(_LONGEST_PAUSE, self._end - time.monotonic()) else None

    async def _failed(self, error: Agent3Error, called: str) -> Agent3Error:
        scene = self._scene
        if isinstance(error, CallTimeout) and scene.unfollowed:
            error.message += " A popup has opened: if the step is meant for it, give the step before it popup: true."
            error.args = (error.message,)
        if scene.snapshots is not None:
            hidden = scene.used_secrets | scene.passwords
            taking = scene.snapshots.take(scene.page, error, called, tuple(self._done), hidden, private=scene.private)
            await _afterwards(taking, "its snapshot")
        # A site that repeats what was typed, or an address that holds it, must not carry a secret into a ledger.
        if healed := scene.finder.told():
            error.data["healed"] = healed
        error.message = scene.without_secrets(error.message)
        error.args = (error.message,)
        error.data = scene.without_secrets(error.data)
        return error

    def _note(self, called: str, outcome: str, start: float) -> None:
        ms = round((time.monotonic() - start) * 1000)
        self._done = [*self._done[-_MOST_DONE:], Done(called, outcome, ms, self._scene.page.url)]

    # Several

    async def _block(self, step: NLWebAction, steps: Sequence[NLWebAction], number: str) -> list[Any]:
        try:
            results = await self.tell(steps, f"{number}.")
        except TargetError:
            if not step.optional or self._scene.page.is_closed():
                raise
            return []
        if step.save_as:
            self._save(step, _plain(results))
        return results

    async def _repeat(self, step: NLWebAction, number: str, called: str) -> list[Any]:
        """The rounds of a loop. One result in each round makes one list of all of them, rows one after the other."""
        around = {key: self._scene.memory.get(key) for key in ("item", "index")}
        try:
            rounds = await self._rounds(step, number, called)
        finally:
            self._scene.memory |= around
        if not any(rounds):
            return []
        gathered = _gathered(rounds)
        self._save(step, gathered)
        return [gathered]

    async def _rounds(self, step: NLWebAction, number: str, called: str) -> list[list[Any]]:
        rounds: list[list[Any]] = []
        for index, item in enumerate(self._items(step, called)):
            self._scene.memory |= {"item": item, "index": index + 1}
            rounds.append(await self._block(step, step.steps, number))
            if step.until is not None and await self._holds(step, step.until, called):
                return rounds
        self._refuse_endless(step, called)
        return rounds

    def _items(self, step: NLWebAction, called: str) -> Sequence[Any]:
        if step.over is None:
            return [None] * (step.times or (_ROUNDS if step.until else 1))
        items = look_up(self._scene.values, step.over)
        if not isinstance(items, list | tuple):
            raise ValidationError(
                f"Step {called} goes over {step.over!r}, which is no list. Save one with save_as, or give one."
            )
        if step.times is None and len(items) > _MOST_ITEMS:
            raise ValidationError(
                f"Step {called} goes over {len(items)} items of {step.over!r}. Say with times how many it shall take."
            )
        return items[: step.times]

    @staticmethod
    def _refuse_endless(step: NLWebAction, called: str) -> None:
        """Reaching a bound that the author did not set means that the end was missed."""
        if step.until is not None and step.over is None and step.times is None:
            raise TargetError(f"Step {called} was repeated {_ROUNDS} times, and what it waits for did not come to be.")

    # Values and conditions

    def _save(self, step: NLWebAction, result: Any) -> None:
        if step.save_as:
            self._scene.memory[step.save_as] = result

    async def _wanted(self, step: NLWebAction, called: str) -> bool:
        if step.when is None:
            return True
        if step.when.given and look_up(self._scene.values, step.when.given) in (None, "", [], {}):
            return False
        return await self._holds(step, step.when, called)

    async def _holds(self, step: NLWebAction, condition: Any, called: str) -> bool:
        values = self._scene.values
        filled = inject_condition(condition, values, called)
        where = inject(step.model_copy(update=_ONLY_THE_FRAME), values, called) if step.frame else step
        try:
            place = await self._scene.place(where, left(self._end))
            return await holds(self._scene, place, filled, where.frame)
        except playwright().Error as error:
            text = error.message.splitlines()[0]
            raise await self._failed(TargetError(f"Step {called}: its condition failed: {text}"), called) from None

    def _left(self, called: str) -> float:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise CallTimeout(f"{self._name!r} took longer than {self._seconds:g} s; step {called} was not begun.")
        return remaining

    @property
    def _secrets(self) -> Callable[[str], str] | None:
        return None if self._scene.secrets is None else self._secret

    def _secret(self, name: str) -> str:
        assert self._scene.secrets is not None
        value = self._scene.secrets(name)
        self._scene.used_secrets.add(value)
        return value


_ONLY_THE_FRAME = {
    "selector": None, "value": None, "wait_for": None, "next": None, "fields": None, "when": None, "until": None,
    "extract_schema": None,
}  # fmt: skip


def _tries(step: NLWebAction) -> int:
    if step.retries is not None:
        return 1 + step.retries
    if step.action_type is ActionType.NAVIGATE:
        return 1 + _NAVIGATION_RETRIES
    return 2 if step.action_type in REPEATABLE else 1


def _may_help(step: NLWebAction, error: Agent3Error) -> bool:
    """A page that did not come may come; an element that was not there for the whole time of its step will not."""
    if isinstance(error, TargetRefused | MalformedResponse) or not isinstance(error, TargetError):
        return False
    if step.retries is not None:
        return True
    if step.action_type is ActionType.NAVIGATE:
        return isinstance(error, Unavailable | CallTimeout)
    return not isinstance(error, CallTimeout | Unavailable)


def _gathered(rounds: list[list[Any]]) -> list[Any]:
    if any(len(one) > 1 for one in rounds):
        return rounds
    alone = [one[0] for one in rounds if one]
    return [row for rows in alone for row in rows] if all(isinstance(one, list) for one in alone) else alone


def _plain(results: list[Any]) -> Any:
    return results if len(results) > 1 else next(iter(results), None)
