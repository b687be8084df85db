"""The finder that heals: it remembers what a selector meant, and looks for that when the selector fits no more.

It would rather find nothing than the wrong thing. A step that may fail is not healed, since its element is often not
there; one of an action with consequences only by a heal that a person has accepted; and an element of another role is
never taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

import agent3.nlweb.healing.heals as heals
import agent3.nlweb.healing.script as script
from agent3.definitions import NLWebAction, NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import CallTimeout, StorageError
from agent3.nlweb.healing.books import Book, MemoryBook
from agent3.nlweb.healing.heals import Heal, Known, Policy, Where
from agent3.nlweb.healing.prints import Print, family, of_page
from agent3.nlweb.healing.scoring import Verdict, judge
from agent3.nlweb.sdk import playwright
from agent3.observe import logs
from agent3.observe.metrics import METRICS, Metrics

if TYPE_CHECKING:
    from playwright.async_api import Frame, JSHandle, Locator, Page

__all__ = ["Healer"]

logger = logs.get("nlweb")

_MOST = 400
"""Candidates that are looked at; on a page with more, nothing is sure."""
_ROUND = 400.0
_ROLES = {"textbox": ["textbox", "searchbox"]}
_NOT_ARIA = frozenset(
    {"select", "password", "date", "file", "color", "hidden", "generic", "label", "iframe", "summary"}
)
_UNQUOTABLE = frozenset('"\\\n/')


@dataclass
class _Found:
    """What was found for a step in the running action."""

    print: Print | None
    known: Known
    heal: Heal | None = None
    worked: bool = False


@dataclass
class _Search:
    """The end of looking for an element: the heal and its locator, or why there is none."""

    verdict: Verdict
    heal: Heal | None = None
    locator: Locator | None = None
    seen: list[Print] = field(default_factory=list)


class Healer:
    """Finds the elements of one interface, for one session at a time. What it learns is in the book.

    ``used`` are the heals that the running action, or the last one, went by.
    """

    def __init__(
        self,
        interface: NLWebInterface,
        book: Book | None = None,
        *,
        policy: Policy | None = None,
        metrics: Metrics = METRICS,
        env: Env = REAL,
    ):
        self.book: Book = MemoryBook() if book is None else book
        self.policy = policy or Policy()
        self.used: list[Heal] = []
        self._interface = interface
        self._metrics = metrics
        self._env = env
        self._action: str | None = None
        self._found: dict[Where, _Found] = {}

    async def begin(self, action: str) -> None:
        """An action begins: what the last one left unfinished is forgotten."""
        self._action = action
        self._found = {}
        self.used = []

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The element of the selector, or the one that it used to mean. It is attached when this returns.

        Playwright's TimeoutError if there is none and nothing was known of it; CallTimeout, with what comes near in its
        data, if it was looked for and nothing was sure enough.
        """
        end = time.monotonic() + ms / 1000
        where = self._where(action)
        known = await self._known(where)
        own = page.locator(action.selector or "").first
        if known.print is None or action.optional:
            return await self._taken(page, own, known, ms)
        try:
            return await self._by_selector(page, own, known, min(self._grace(known), ms * 0.4))
        except playwright().TimeoutError:
            return await self._by_print(page, action, own, known, end)

    async def worked(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """The step succeeded. Outside of an action this is all there is to wait for, so it is written down at once."""
        found = self._found.get(self._where(action))
        if found is not None:
            found.worked = True
            if self._action is None:
                await self.end(ok=True)

    async def end(self, *, ok: bool) -> None:
        """The action ended: fingerprints of what worked are kept, and heals are credited or debited."""
        found, self._found, self._action = self._found, {}, None
        try:
            for where, one in found.items():
                await self._kept(where, one, ok)
        except StorageError as wrong:  # what was done is done, remembered or not
            logger.warning("%s: what was learnt of its elements is not kept: %s", self._interface.name, wrong)

    # By the selector

    async def _by_selector(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        """The selector's own element, or that of the heal which stands in for it."""
        stand_in = known.promoted
        if stand_in is None or not self._may_use(known.where, stand_in):
            return await self._checked(page, own, known, ms)
        other = page.locator(stand_in.selector).first
        await own.or_(other).first.wait_for(state="attached", timeout=ms)
        if await own.count():
            return await self._checked(page, own, known, ms)
        seen = await _read(page, stand_in.selector, other, ms)
        verdict = None if seen is None or known.print is None else judge(known.print, [seen])
        if verdict is not None and verdict.chosen is None:
            raise playwright().TimeoutError("the heal does not fit any more")
        self._metrics.nlweb_heals.inc(("used",))
        self._note(known, seen, stand_in)
        return other

    async def _checked(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        """The selector's own element; but if that is of another role now, and the right one is elsewhere, that one."""
        seen = await _read(page, known.where.selector, own, ms)
        role = known.print.role if known.print is not None else ""
        if seen is not None and family(seen.role) != family(role):
            search = await self._search(page, known)
            if search.heal is not None and self._may_use(known.where, search.heal):
                return await self._use(known, search)
        self._note(known, seen)
        return own

    async def _taken(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        self._note(known, await _read(page, known.where.selector, own, ms))
        return own

    # By what is remembered

    async def _by_print(
        self, page: Page | Frame, action: NLWebAction, own: Locator, known: Known, end: float
    ) -> Locator:
        """Look for it, and look again until the time is over: a page may still be coming.

        What is found and may not be taken is looked at once more only: the page is there, and a person must decide.
        """
        for round_ in count():
            search = await self._search(page, known)
            if search.heal is not None and self._may_use(known.where, search.heal):
                return await self._use(known, search)
            left = (end - time.monotonic()) * 1000
            if left <= 1.0 or (search.heal is not None and round_):
                raise await self._given_up(page, action, known, search)
            try:
                return await self._checked(page, own, known, min(_ROUND, left))
            except playwright().TimeoutError:
                continue
        raise AssertionError("unreachable: the time ends")

    async def _search(self, page: Page | Frame, known: Known) -> _Search:
        assert known.print is not None
        role = family(known.print.role)
        try:
            listed = await page.evaluate_handle(script.LIST, [_ROLES.get(role, [role]), known.print.shown, _MOST])
        except playwright().Error:  # the page is on its way to another one
            return _Search(Verdict(None, "the page is still loading", ()))
        try:
            return await self._judged(page, known, listed)
        except (playwright().Error, msgspec.ValidationError):
            return _Search(Verdict(None, "the page changed meanwhile", ()))
        finally:
            await _dispose(listed)

    async def _judged(self, page: Page | Frame, known: Known, listed: JSHandle) -> _Search:
        assert known.print is not None
        answer = await page.evaluate(script.PRINTS, [listed, _MOST])
        seen = [of_page(one) for one in answer["prints"]]
        if not answer["whole"]:
            return _Search(Verdict(None, "the page is still loading, or has too many elements", ()), seen=seen)
        verdict = judge(known.print, seen, threshold=self.policy.threshold, margin=self.policy.margin)
        if verdict.chosen is None:
            return _Search(verdict, seen=seen)
        chosen = seen[verdict.chosen.index]
        named = await _named(page, listed, verdict.chosen.index, chosen)
        if named is None:
            return _Search(Verdict(None, "it cannot be named by a selector", verdict.best), seen=seen)
        selector, locator = named
        name = heals.name_of(known.where, selector)
        heal = known.heal(name) or Heal(
            id=name,
            selector=selector,
            print=chosen,
            before=known.print,
            score=round(verdict.chosen.score, 3),
            margin=round(verdict.margin, 3),
        )
        if heal.state == "reverted":
            return _Search(Verdict(None, "the only one that is like it was reverted before", verdict.best), seen=seen)
        return _Search(verdict, heal, locator, seen)

    async def _use(self, known: Known, search: _Search) -> Locator:
        assert search.heal is not None
        assert search.locator is not None
        await self._propose(known, search.heal)
        logger.warning(
            "%s: %r of %r is not there; the step goes on with %r (heal %s, score %.2f)",
            self._interface.name,
            known.where.selector,
            known.where.action,
            search.heal.selector,
            search.heal.id,
            search.heal.score,
        )
        self._metrics.nlweb_heals.inc(("used",))
        self._note(known, search.heal.print, search.heal)
        return search.locator

    async def _propose(self, known: Known, heal: Heal) -> None:
        if known.heal(heal.id) is None:
            await self.book.change(known.where, heals.proposed(heal, self._env.now()))
            self._metrics.nlweb_heals.inc(("proposed",))

    async def _given_up(self, page: Page | Frame, action: NLWebAction, known: Known, search: _Search) -> CallTimeout:
        """The error that says what was looked for, what came near, and what a person can do."""
        self._metrics.nlweb_heals.inc(("abstained",))
        near = [
            {"name": search.seen[one.index].name, "role": search.seen[one.index].role, "score": round(one.score, 2)}
            for one in search.verdict.best
            if one.index < len(search.seen)
        ]
        data: dict[str, Any] = {
            "selector": action.selector,
            "action_type": action.action_type.value,
            "reason": search.verdict.reason,
            "candidates": near,
        }
        text = f"{action.selector!r} fits nothing on the page"
        if search.heal is None or search.locator is None:
            return CallTimeout(f"{text}, and no other element was taken for it: {search.verdict.reason}.", data=data)
        await self._propose(known, search.heal)
        waiting = [search.heal, *await self._others(page, known.where)]
        data["heals"] = [{"id": one.id, "selector": one.selector} for one in waiting]
        return CallTimeout(
            f"{text}. {known.where.action!r} has consequences, so another element is only taken after a person has "
            f"accepted it: agent3 web heals accept {' '.join(one.id for one in waiting)}",
            data=data,
        )

    async def _others(self, page: Page | Frame, where: Where) -> list[Heal]:
        """Heals for the action's other elements that ought to be on this page, so that a person is asked once."""
        found = []
        for known in await self.book.all(where.interface):
            if known.where.action != where.action or known.where.frame != where.frame or known.print is None:
                continue
            if known.where != where and not await page.locator(known.where.selector).count():
                search = await self._search(page, known)
                if search.heal is not None and not search.heal.by_a_person:
                    await self._propose(known, search.heal)
                    found.append(search.heal)
        return found

    async def _known(self, where: Where) -> Known:
        try:
            return await self.book.get(where)
        except StorageError as wrong:
            logger.warning("%s: what is known of its elements cannot be read: %s", self._interface.name, wrong)
            return Known(where)

    async def _kept(self, where: Where, one: _Found, ok: bool) -> None:
        if one.heal is not None:
            good = ok and one.worked
            if not good or one.heal.state == "proposed" or one.heal.losses:
                await self._settle(where, one.heal, good)
        elif one.worked and one.print is not None and not _alike(one.known.print, one.print):
            await self.book.change(where, heals.learnt(one.print))

    async def _settle(self, where: Where, heal: Heal, ok: bool) -> None:
        judgement = heals.won if ok else heals.lost
        changed = await self.book.change(where, judgement(heal.id, self._env.now(), self.policy))
        now = changed.heal(heal.id)
        if now is not None and now.state != heal.state and now.state != "proposed":
            self._metrics.nlweb_heals.inc((now.state,))
            logger.warning("%s: heal %s of %r is %s", self._interface.name, heal.id, where.selector, now.state)

    # Of the step

    def _where(self, action: NLWebAction) -> Where:
        return Where(self._interface.interface_id, self._action or "", action.selector or "", action.frame or "")

    def _grace(self, known: Known) -> float:
        """A selector that failed before is not waited for as long again."""
        tried = any(one.state == "proposed" and one.wins for one in known.heals)
        return self.policy.grace / 4 if tried or known.promoted is not None else self.policy.grace

    def _may_use(self, where: Where, heal: Heal) -> bool:
        return heal.by_a_person or not self._consequential(where)

    def _consequential(self, where: Where) -> bool:
        """Of the action, or of any that has the selector where a step is run on its own."""
        info = self._interface.info
        if where.action:
            return where.action in info and info[where.action].hints.consequential
        owners = [name for name, steps in self._interface.actions.items() if where.selector in _selectors(steps)]
        return any(name in info and info[name].hints.consequential for name in owners)

    def _note(self, known: Known, seen: Print | None, heal: Heal | None = None) -> None:
        self._found[known.where] = _Found(seen, known, heal)
        if heal is not None:
            self.used.append(heal)


async def _read(page: Page | Frame, selector: str, locator: Locator, ms: float) -> Print | None:
    """The fingerprint, waited for; None where the page goes away under it, or answers nonsense."""
    try:
        quick = await page.evaluate(script.QUICK, selector)
        return of_page(quick or await locator.evaluate(script.READ, timeout=ms))
    except playwright().TimeoutError:
        raise
    except (playwright().Error, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None


async def _named(page: Page | Frame, listed: JSHandle, index: int, chosen: Print) -> tuple[str, Locator] | None:
    """The most lasting selector that means this element and no other."""
    found = await page.evaluate(script.SELECTORS, [listed, index])
    ways = [*found["stable"], *_by_role(chosen), found["path"]]
    for way in ways:
        locator = page.locator(way)
        if await locator.count() == 1 and await locator.evaluate(script.SAME, [listed, index]):
            return way, locator.first
    return None


def _by_role(print_: Print) -> list[str]:
    """As a person would say it: the button "Search". Only where it can be quoted without doubt."""
    if print_.role in _NOT_ARIA or not 0 < len(print_.name) < 60 or _UNQUOTABLE & set(print_.name):
        return []
    return [f'role={print_.role}[name="{print_.name}"s]'] if print_.role.isalpha() else []


def _selectors(steps: list[NLWebAction]) -> set[str]:
    return {one.selector for one in steps if one.selector} | {
        found for one in steps for found in _selectors([*one.steps, *one.otherwise])
    }


def _alike(known: Print | None, seen: Print) -> bool:
    return known is not None and known.lasting == seen.lasting


async def _dispose(handle: JSHandle) -> None:
    try:
        await handle.dispose()
    except playwright().Error:
        return
