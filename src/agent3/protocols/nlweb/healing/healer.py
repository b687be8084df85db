"""The finder that heals: it remembers what a selector meant, and looks for that when the selector fits no more.

It would rather find nothing than the wrong thing. A step that may fail is not healed, since its element is often not
there; one of an action with consequences only by a heal that a person has accepted; and an element of another role is
never taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

import agent3.protocols.nlweb.healing.page_script as script
import agent3.protocols.nlweb.healing.records as heals
from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import ElementMissing, StorageError
from agent3.observe import logs
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.healing.fingerprints import Print, digest, family, of_page
from agent3.protocols.nlweb.healing.lookahead import Ahead
from agent3.protocols.nlweb.healing.records import Heal, Known, Policy, Use, Where
from agent3.protocols.nlweb.healing.scoring import Scored, Verdict, contradicts, judge, objection
from agent3.protocols.nlweb.healing.stores import Book, MemoryBook
from agent3.protocols.nlweb.healing.templates import Spoken, Templates
from agent3.protocols.nlweb.steps.locator import Awaited, Trust

if TYPE_CHECKING:
    from playwright.async_api import Frame, JSHandle, Locator, Page

__all__ = ["Healer"]

logger = logs.get("nlweb")

_MOST = 400
"""Candidates that are looked at; on a page with more, nothing is sure."""
_ROUND = 400.0
_LAST = 0.25
"""The part of a wait that is left when something else is looked at: what is late is not yet gone."""
_ROLES = {"textbox": ["textbox", "searchbox"]}
_NOT_ARIA = frozenset(
    {"select", "password", "date", "file", "color", "hidden", "generic", "label", "iframe", "summary"}
)
_UNQUOTABLE = frozenset('"\\\n/')
_MOST_MARKS = 300
_PAGE_SECONDS = 3600.0
"""How long the marks of a page are good enough; a site changes slowly, and little by little."""
_SAME_PAGE, _OTHER_PAGE = 0.6, 0.3
"""The share of a page's marks from which on it is the same, and below which it is another."""
_OFFER_SECONDS = 1.0
_OFFERED = 0.4
"""The score from which on an element that was not taken is shown to a person as one that could be meant."""


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
    offers: dict[int, Heal] = field(default_factory=dict)
    """What a person may accept of the elements that were not sure enough, by their number in the list."""


class _AnotherNow(Exception):
    """The selector fits an element that is not the one it meant."""

    def __init__(self, reason: str, seen: Print):
        super().__init__(reason)
        self.reason = reason
        self.seen = seen


class Healer:
    """Finds the elements of one interface, for one session at a time. What it learns is in the book.

    ``uses`` are the heals that the running action, or the last one, went by, each with the place it was used at.
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
        self.uses: list[Use] = []
        self._interface = interface
        self._metrics = metrics
        self._env = env
        self._action: str | None = None
        self._found: dict[Where, _Found] = {}
        self._ahead = Ahead()
        self._conditions: dict[Where, Known] = {}
        self._templates = Templates()
        self._spoken: dict[Where, Spoken] = {}
        self._often: frozenset[str] = frozenset()

    @property
    def used(self) -> list[Heal]:
        """The heals alone."""
        return [one.heal for one in self.uses]

    async def begin(self, action: str, steps: Sequence[NLWebAction] = ()) -> None:
        """An action begins: what the last one left unfinished is forgotten."""
        self._action = action
        self._ahead.begin(steps)
        self._found = {}
        self._conditions = {}
        self._templates = Templates(steps)
        self._spoken = {}
        self._often = _used_often(steps)
        self.uses = []

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The element of the selector, or the one that it used to mean. It is attached when this returns.

        Playwright's TimeoutError if there is none and nothing was known of it; ElementMissing, with what comes near in
        its data, if it was looked for and nothing was sure enough, or if the selector means something else now.
        """
        end = time.monotonic() + ms / 1000
        where = self._where(action.selector, action.frame)
        known = await self._known(where)
        own = page.locator(action.selector or "").first
        if known.print is None or action.optional:
            return await self._taken(page, own, known, ms)
        if await self._foreseen(page, action, known) or self._lately_seen(page, known):
            return own
        try:
            return await self._by_selector(page, own, known, min(self._grace(known), ms * 0.4))
        except (playwright().TimeoutError, _AnotherNow):
            return await self._by_print(page, action, own, known, end)

    async def note_success(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        """The step succeeded. Outside of an action this is all there is to wait for, so it is written down at once."""
        self._ahead.worked(action)
        await self._succeeded(self._where(action.selector, action.frame))

    async def appears(self, page: Page | Frame, awaited: Awaited, ms: float) -> None:
        """Wait for an element. What it used to be is looked for in a new shape only when the time is nearly over.

        Playwright's TimeoutError if it did not come and nothing was known of it, else ElementMissing, as ``find``.
        """
        known = await self._known(self._where(awaited.selector, awaited.frame))
        heals_it = known.print is not None and awaited.sure
        stand_in = self._stand_in(known)
        own = page.locator(awaited.selector)
        target = own if stand_in is None else own.or_(page.locator(stand_in.selector))
        try:
            await target.first.wait_for(state=awaited.state, timeout=ms * (1 - _LAST) if heals_it else ms)
            await self._came(page, known, stand_in)
        except playwright().TimeoutError:
            if not heals_it:
                raise
            await self._instead(page, awaited, known)
        await self._succeeded(known.where)

    async def locate(self, page: Page | Frame, awaited: Awaited) -> Locator:
        """The selector's matches; if there are none, that of a heal which was promoted to stand in for it, and fits."""
        where = self._where(awaited.selector, awaited.frame)
        if where not in self._conditions:
            self._conditions[where] = await self._known(where)
        known = self._conditions[where]
        own, stand_in = page.locator(awaited.selector), self._stand_in(known)
        if stand_in is None or await own.count() or await self._fitting(page, known, stand_in) is None:
            return own
        return page.locator(stand_in.selector)

    async def note_extraction(self, page: Page | Frame, action: NLWebAction, *, found: bool) -> Trust:
        """Remember the page on which an extraction found something; of one with nothing, whether it is that page still.

        No rows on a page that is as ever are an answer. Where little of the page is left that it was, or some of it had
        to be healed to come here, the selector is more likely to be out of date than the list to be empty.
        """
        known = await self._known(self._where(action.selector or _fields(action), action.frame))
        before, now = known.page, self._env.now()
        fresh = before is not None and now - before.at < _PAGE_SECONDS
        if (found and fresh) or (not found and before is None):
            return "same"
        marks = await _marks(page, action.selector)
        if found and marks is not None:
            await self._written(known.where, heals.read_on(marks, now))
        if found or marks is None or before is None:
            return "same"
        left = len(set(before.marks) & set(marks)) / len(before.marks) if before.marks else 0.5
        if left >= _SAME_PAGE:
            return "same"
        return "changed" if left < _OTHER_PAGE or self.uses else "unsure"

    async def end(self, *, ok: bool) -> None:
        """The action ended: fingerprints of what worked are kept, and heals are credited or debited."""
        found, self._found, self._action = self._found, {}, None
        self._ahead.begin(())
        try:
            for where, one in found.items():
                await self._kept(where, one, ok)
        except StorageError as wrong:  # what was done is done, remembered or not
            logger.warning("%s: what was learnt of its elements is not kept: %s", self._interface.name, wrong)

    def told(self) -> list[dict[str, Any]]:
        """The heals of the running action, or the last one, each once, as a caller is told of them."""
        return [one.told() for one in {use.heal.id: use for use in self.uses}.values()]

    # Waiting

    async def _came(self, page: Page | Frame, known: Known, stand_in: Heal | None) -> None:
        """Remember what was waited for; or that it was what stands in for it, if that fits still."""
        spoken = self._as_spoken(known)
        own = page.locator(spoken.selector).first
        if stand_in is None or await own.count():
            self._note(known, await _read(page, spoken, own, _ROUND))
            return
        seen = await self._fitting(page, known, stand_in)
        if seen is None:
            raise playwright().TimeoutError("the heal does not fit any more")
        self._metrics.nlweb_heals.inc(("used",))
        self._note(known, seen, stand_in)

    async def _instead(self, page: Page | Frame, awaited: Awaited, known: Known) -> None:
        search = await self._search(page, known)
        if search.heal is None or search.locator is None or not self._may_use(known.where, search.heal):
            raise await self._given_up(page, known, search, "wait")
        if awaited.state == "visible" and not search.heal.print.shown:
            raise playwright().TimeoutError("what it looks like now is not to be seen")
        await self._use(known, search)

    # By the selector

    async def _foreseen(self, page: Page | Frame, action: NLWebAction, known: Known) -> bool:
        """Whether the selector's own element is seen to be there and the one it meant, by a look at several steps."""
        seen = await self._ahead.look(page, action)
        if seen is None or self._objection(known, seen):
            return False
        self._note(known, seen)
        return True

    async def _by_selector(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        """The selector's own element, or that of the heal which stands in for it.

        A heal's selector is believed by itself only where a person chose it and it names its element. Otherwise the
        element is looked for among all others, as when it was healed: the page may have another like it by now.
        """
        stand_in = self._stand_in(known)
        if stand_in is None:
            return await self._checked(page, own, known, ms)
        await own.or_(page.locator(stand_in.selector)).first.wait_for(state="attached", timeout=ms)
        if await own.count():
            return await self._checked(page, own, known, ms)
        chosen = stand_in.by_a_person and " > " not in stand_in.selector
        seen = await self._fitting(page, known, stand_in) if chosen else None
        if seen is None:
            raise playwright().TimeoutError("it has to be looked for")
        self._metrics.nlweb_heals.inc(("used",))
        self._note(known, seen, stand_in)
        return page.locator(stand_in.selector).first

    def _stand_in(self, known: Known) -> Heal | None:
        """The promoted heal, where it may be used; one of a selector with gaps names no element by itself."""
        heal = known.promoted
        if heal is None or self._as_spoken(known).given or not self._may_use(known.where, heal):
            return None
        return heal

    async def _fitting(self, page: Page | Frame, known: Known, heal: Heal) -> Print | None:
        """What a heal's selector means now, if that is one element, still like what is remembered."""
        try:
            if await page.locator(heal.selector).count() != 1:
                return None
            seen = await _read(page, Spoken(heal.selector, heal.selector), page.locator(heal.selector).first, _ROUND)
        except playwright().TimeoutError:
            return None
        fits = seen is not None and known.print is not None and judge(known.print, [seen]).chosen is not None
        return seen if fits else None

    async def _checked(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        """The selector's own element; _AnotherNow if that is plainly not the one it meant."""
        seen = await _read(page, self._as_spoken(known), own, ms)
        if seen is not None and (reason := self._objection(known, seen)):
            raise _AnotherNow(reason, seen)
        self._note(known, seen)
        if seen is not None:
            self._ahead.checked(page, self._as_spoken(known).selector, seen)
        return own

    def _lately_seen(self, page: Page | Frame, known: Known) -> bool:
        """Whether the selector's own element was checked a moment ago; what has consequences is checked each time."""
        seen = self._ahead.lately(page, self._as_spoken(known).selector)
        if seen is None or self._consequential(known.where):
            return False
        self._note(known, seen)
        return True

    def _objection(self, known: Known, seen: Print) -> str:
        """What speaks against the element that the selector fits now.

        A selector that an action uses several times may mean several elements, and one that a person has accepted as it
        stands may mean what it likes to be called.
        """
        if known.print is None:
            return ""
        accepted = any(one.by_a_person and one.selector == known.where.selector for one in known.heals)
        named = known.where.selector not in self._often and not accepted
        return objection(known.print, seen, named=named, strict=self._consequential(known.where))

    async def _taken(self, page: Page | Frame, own: Locator, known: Known, ms: float) -> Locator:
        self._note(known, await _read(page, self._as_spoken(known), own, ms))
        return own

    # By what is remembered

    async def _by_print(
        self, page: Page | Frame, action: NLWebAction, own: Locator, known: Known, end: float
    ) -> Locator:
        """Look for it, and look again until the time is over: a page may still be coming.

        What is found and may not be taken is looked at once more only: the page is there, and a person must decide.
        """
        another: _AnotherNow | None = None
        for round_ in count():
            search = await self._search(page, known)
            if search.heal is not None and self._may_use(known.where, search.heal):
                return await self._use(known, search)
            left = (end - time.monotonic()) * 1000
            if left <= 1.0 or (round_ and (search.heal or another)):
                raise await self._given_up(page, known, search, action.action_type.value, another)
            try:
                return await self._checked(page, own, known, min(_ROUND, left))
            except _AnotherNow as now:
                another = now
                await asyncio.sleep(min(_ROUND, left) / 1000)
            except playwright().TimeoutError:
                another = None
        raise AssertionError("unreachable: the time ends")

    async def _search(self, page: Page | Frame, known: Known, *, offering: bool = False) -> _Search:
        assert known.print is not None
        role = family(known.print.role)
        try:
            listed = await page.evaluate_handle(script.LIST, [_ROLES.get(role, [role]), known.print.shown, _MOST])
        except playwright().Error:  # the page is on its way to another one
            return _Search(Verdict(None, "the page is still loading", ()))
        try:
            return await self._judged(page, known, listed, offering)
        except (playwright().Error, msgspec.ValidationError):
            return _Search(Verdict(None, "the page changed meanwhile", ()))
        finally:
            await _dispose(listed)

    async def _judged(self, page: Page | Frame, known: Known, listed: JSHandle, offering: bool) -> _Search:
        assert known.print is not None
        spoken = self._as_spoken(known)
        answer = await page.evaluate(script.PRINTS, [listed, _MOST, spoken.values])
        seen = [of_page(one, spoken.given) for one in answer["prints"]]
        if not answer["whole"]:
            return _Search(Verdict(None, "the page is still loading, or has too many elements", ()), seen=seen)
        if spoken.given and not known.print.given:
            return _Search(Verdict(None, "what was asked for did not stand beside it", ()), seen=seen)
        verdict = judge(known.print, seen, threshold=self.policy.threshold, margin=self.policy.margin)
        taken = [verdict.chosen] if verdict.chosen else [one for one in verdict.best if offering and _offered(one)]
        made = {one.index: await self._made(page, known, listed, one, seen, verdict.margin) for one in taken}
        if verdict.chosen is None:
            offers = {index: one[0] for index, one in made.items() if one and one[0].state != "reverted"}
            return _Search(verdict, seen=seen, offers=offers)
        chosen = made[verdict.chosen.index]
        if chosen is None:
            return _Search(Verdict(None, "it cannot be named by a selector", verdict.best), seen=seen)
        if chosen[0].state == "reverted":
            return _Search(Verdict(None, "the only one that is like it was reverted before", verdict.best), seen=seen)
        return _Search(verdict, *chosen, seen)

    async def _made(
        self, page: Page | Frame, known: Known, listed: JSHandle, one: Scored, seen: list[Print], margin: float
    ) -> tuple[Heal, Locator] | None:
        """The heal that takes this element, and the element; None if no selector names it."""
        assert known.print is not None
        spoken, print_ = self._as_spoken(known), seen[one.index]
        found = await _named(page, listed, one.index, None if spoken.given else print_)
        if found is None:
            return None
        selector = _beside(print_, spoken) if spoken.given else found[0]
        name = heals.name_of(known.where, selector)
        new = Heal(
            id=name,
            selector=selector,
            print=print_,
            before=known.print,
            score=round(one.score, 3),
            margin=round(margin, 3),
        )
        return known.heal(name) or new, found[1]

    async def _use(self, known: Known, search: _Search) -> Locator:
        assert search.heal is not None
        assert search.locator is not None
        await self._propose(known, search.heal)
        logger.log(
            logging.WARNING if search.heal.state == "proposed" else logging.INFO,
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

    async def _given_up(
        self, page: Page | Frame, known: Known, search: _Search, kind: str, another: _AnotherNow | None = None
    ) -> ElementMissing:
        """The error that says what was looked for, what came near, and what a person can do."""
        self._metrics.nlweb_heals.inc(("abstained",))
        search = search if search.heal is not None else await self._with_offers(page, known, search)
        selector = self._as_spoken(known).selector
        text = f"{selector!r} means another element now: {another.reason}" if another else (
            f"{selector!r} fits nothing on the page"
        )  # fmt: skip
        data: dict[str, Any] = {
            "selector": selector,
            "action_type": kind,
            "reason": search.verdict.reason,
            "candidates": [_candidate(one, search) for one in search.verdict.best if one.index < len(search.seen)],
        }
        if search.heal is not None:
            await self._propose(known, search.heal)
            waiting = [search.heal, *await self._others(page, known.where)]
            data["heals"] = [{"id": one.id, "selector": one.selector} for one in waiting]
            return ElementMissing(
                f"{text}. {known.where.action!r} has consequences, so another element is only taken after a person has "
                f"accepted it: agent3 web heals accept {' '.join(one.id for one in waiting)}",
                data=data,
            )
        offers = [*([_as_it_is(known, another.seen)] if another else []), *search.offers.values()]
        for one in offers:
            await self._propose(known, one)
        data["offers"] = [_offer(one) for one in offers]
        return ElementMissing(
            f"{text}, and no other element was taken for it: {search.verdict.reason}. {_what_to_do(offers)}", data=data
        )

    async def _with_offers(self, page: Page | Frame, known: Known, search: _Search) -> _Search:
        """The same end of a search with what a person may accept, if the page gives it soon enough."""
        try:
            async with asyncio.timeout(_OFFER_SECONDS):
                again = await self._search(page, known, offering=True)
        except TimeoutError:
            return search
        return again if again.heal is None else search

    async def _others(self, page: Page | Frame, where: Where) -> list[Heal]:
        """Heals for the action's other elements that ought to be on this page, so that a person is asked once."""
        found = []
        for known in await self.book.all(where.interface):
            if known.where.action != where.action or known.where.frame != where.frame or known.print is None:
                continue
            if self._templates.has_gaps(known.where.selector):
                continue  # what it will be filled with is not known before its turn
            if known.where != where and not await page.locator(known.where.selector).count():
                search = await self._search(page, known)
                if search.heal is not None and not search.heal.by_a_person:
                    await self._propose(known, search.heal)
                    found.append(search.heal)
        return found

    async def _written(self, where: Where, change: heals.Change) -> None:
        try:
            await self.book.change(where, change)
        except StorageError as wrong:
            logger.warning("%s: what was learnt of its pages is not kept: %s", self._interface.name, wrong)

    async def _known(self, where: Where) -> Known:
        try:
            return await self.book.get(where)
        except StorageError as wrong:
            logger.warning("%s: what is known of its elements cannot be read: %s", self._interface.name, wrong)
            return Known(where)

    async def _kept(self, where: Where, one: _Found, ok: bool) -> None:
        if one.heal is not None:
            if one.worked and not ok and (one.heal.wins or one.heal.state == "promoted"):
                return  # it has led to the end before, and its own step was done: the fault is another step's
            if not ok or one.heal.state == "proposed" or one.heal.losses:
                await self._settle(where, one.heal, ok and one.worked)
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

    async def _succeeded(self, where: Where) -> None:
        """Outside of an action nothing more is to come, so it is written down at once."""
        found = self._found.get(where)
        if found is not None:
            found.worked = True
            if self._action is None:
                await self.end(ok=True)

    def _where(self, selector: str | None, frame: str | None) -> Where:
        spoken, within = self._templates.read(selector or ""), self._templates.read(frame or "")
        where = Where(self._interface.interface_id, self._action or "", spoken.template, within.template)
        self._spoken[where] = spoken
        return where

    def _as_spoken(self, known: Known) -> Spoken:
        """The selector of an element as this action fills it."""
        return self._spoken.get(known.where) or Spoken(known.where.selector, known.where.selector)

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
            self.uses.append(Use(known.where, heal))


async def _read(page: Page | Frame, spoken: Spoken, locator: Locator, ms: float) -> Print | None:
    """The fingerprint, waited for; None where the page goes away under it, or answers nonsense."""
    try:
        quick = await page.evaluate(script.QUICK, [spoken.selector, spoken.values])
        return of_page(quick or await locator.evaluate(script.READ, spoken.values, timeout=ms), spoken.given)
    except playwright().TimeoutError:
        raise
    except (playwright().Error, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None


async def _named(page: Page | Frame, listed: JSHandle, index: int, chosen: Print | None) -> tuple[str, Locator] | None:
    """The most lasting selector that means this element and no other; also by what it says, if that is given."""
    found = await page.evaluate(script.SELECTORS, [listed, index])
    ways = [*found["stable"], *(_by_role(chosen) if chosen else []), found["path"]]
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


def _fields(action: NLWebAction) -> str:
    """What stands for the selector of an extraction that has none: the names of its fields."""
    return f"extract {', '.join(sorted(action.extract_schema or {}))}"


async def _marks(page: Page | Frame, selector: str | None) -> tuple[str, ...] | None:
    """What marks the page besides the matches of the selector; None where it cannot be read."""
    try:
        found = await page.locator(selector or "no-rows").evaluate_all(script.MARKED, _MOST_MARKS)
        return tuple(digest(str(one)) for one in found)
    except (playwright().Error, TypeError):
        return None


def _beside(print_: Print, spoken: Spoken) -> str:
    """How an element is named that is found by the caller's words: what it says, and what it stands beside."""
    element = f'role={print_.role}[name="{print_.name}"]'
    apart = [name for name, _ in spoken.given if name not in print_.name]
    return f"{element} beside {', '.join(apart)}" if apart else element


def _offered(one: Scored) -> bool:
    return one.score >= _OFFERED and not contradicts(one.doubt)


def _as_it_is(known: Known, seen: Print) -> Heal:
    """The selector itself, for a person to say that what it means now is right."""
    selector = known.where.selector
    before = known.print or seen
    return Heal(
        id=heals.name_of(known.where, selector), selector=selector, print=seen, before=before, score=1.0, margin=0.0
    )


def _candidate(one: Scored, search: _Search) -> dict[str, Any]:
    print_, offer = search.seen[one.index], search.offers.get(one.index)
    told: dict[str, Any] = {"name": print_.name, "role": print_.role, "score": round(one.score, 2)}
    return told | ({"id": offer.id} if offer else {})


def _offer(heal: Heal) -> dict[str, Any]:
    return {"id": heal.id, "selector": heal.selector, "role": heal.print.role, "name": heal.print.name}


def _what_to_do(offers: Sequence[Heal]) -> str:
    mend = "mend the selector in the interface's file and add it again with agent3 add FILE."
    if not offers:
        return f"See what the page has now, {mend}"
    said = "; ".join(f"{one.id} ({one.print.role} {one.print.name[:40]!r})" for one in offers)
    return f"If one of these is meant, accept it with agent3 web heals accept ID: {said}. If none is, {mend}"


def _selectors(steps: Iterable[NLWebAction]) -> list[str]:
    """The selectors of the elements that steps act on, as often as they do."""
    inside = [found for one in steps for found in _selectors([*one.steps, *one.otherwise]) * _rounds(one)]
    return [one.selector for one in steps if one.selector and one.action_type is not ActionType.WAIT] + inside


def _rounds(step: NLWebAction) -> int:
    return 2 if step.action_type is ActionType.REPEAT else 1


def _used_often(steps: Sequence[NLWebAction]) -> frozenset[str]:
    return frozenset(one for one, times in Counter(_selectors(steps)).items() if times > 1)


def _alike(known: Print | None, seen: Print) -> bool:
    return known is not None and known.lasting == seen.lasting


async def _dispose(handle: JSHandle) -> None:
    try:
        await handle.dispose()
    except playwright().Error:
        return
