"""The finder that heals: it remembers what a selector meant, and looks for that when the selector fits no more.

It would rather find nothing than the wrong thing. A step that may fail is not healed, since its element is often not
there; one of an action with consequences only by a heal that a person has accepted; and an element of another role is
never taken, except that a link may have become a button where everything else agrees.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

import agent3.protocols.nlweb.healing.page_script as script
import agent3.protocols.nlweb.healing.records as records
from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import ElementMissing, StorageError
from agent3.observe import logs
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.healing.fingerprints import Fingerprint, digest, parse_fingerprint, role_family
from agent3.protocols.nlweb.healing.lookahead import Lookahead
from agent3.protocols.nlweb.healing.records import ElementKey, ElementRecord, Heal, HealUse, Policy
from agent3.protocols.nlweb.healing.scoring import Scored, Verdict, find_objection, is_contradiction, judge
from agent3.protocols.nlweb.healing.stores import MemoryStore, Store
from agent3.protocols.nlweb.healing.templates import FilledSelector, Templates
from agent3.protocols.nlweb.steps.locator import Awaited, Trust
from agent3.protocols.nlweb.steps.page_reading import shows

if TYPE_CHECKING:
    from playwright.async_api import Frame, JSHandle, Locator, Page

__all__ = ["Healer"]

logger = logs.get("nlweb")

_MOST_CANDIDATES = 400
"""Candidates that are looked at; on a page with more, nothing is sure."""
_ROUND_MS = 400.0
_LAST_PART = 0.25
"""The part of a wait that is left when something else is looked at: what is late is not yet gone."""
_ROLES = {"textbox": ["textbox", "searchbox"], "button": ["button", "link"], "link": ["button", "link"]}
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
_OFFERED_SCORE = 0.4
"""The score from which on an element that was not taken is shown to a person as one that could be meant."""


@dataclass
class _Sighting:
    """What was found for a step in the running action."""

    print: Fingerprint | None
    record: ElementRecord
    heal: Heal | None = None
    worked: bool = False


@dataclass
class _Search:
    """The end of looking for an element: the heal and its locator, or why there is none."""

    verdict: Verdict
    heal: Heal | None = None
    locator: Locator | None = None
    seen: list[Fingerprint] = field(default_factory=list)
    offers: dict[int, Heal] = field(default_factory=dict)
    """What a person may accept of the elements that were not sure enough, by their number in the list."""


class _AnotherNow(Exception):
    """The selector fits an element that is not the one it meant."""

    def __init__(self, reason: str, seen: Fingerprint):
        super().__init__(reason)
        self.reason = reason
        self.seen = seen


class Healer:
    """Finds the elements of one interface, for one session at a time. What it learns is in the store.

    ``uses`` are the heals that the running action, or the last one, went by, each with the place it was used at.
    """

    def __init__(
        self,
        interface: NLWebInterface,
        store: Store | None = None,
        *,
        policy: Policy | None = None,
        metrics: Metrics = METRICS,
        env: Env = REAL,
    ):
        self.store: Store = MemoryStore() if store is None else store
        self.policy = policy or Policy()
        self.uses: list[HealUse] = []
        self._interface = interface
        self._metrics = metrics
        self._env = env
        self._action: str | None = None
        self._sightings: dict[ElementKey, _Sighting] = {}
        self._lookahead = Lookahead()
        self._conditions: dict[ElementKey, ElementRecord] = {}
        self._templates = Templates()
        self._filled: dict[ElementKey, FilledSelector] = {}
        self._used_often: frozenset[str] = frozenset()

    async def begin(self, action: str, steps: Sequence[NLWebAction] = ()) -> None:
        """An action begins: what the last one left unfinished is forgotten."""
        self._action = action
        self._lookahead.begin(steps)
        self._sightings = {}
        self._conditions = {}
        self._templates = Templates(steps)
        self._filled = {}
        self._used_often = frozenset(text for text, times in Counter(_selectors(steps)).items() if times > 1)
        self.uses = []

    async def find(self, page: Page | Frame, action: NLWebAction, ms: float) -> Locator:
        """The element of the selector, or the one that it used to mean. It is attached when this returns.

        Playwright's TimeoutError if there is none and nothing was known of it; ElementMissing, with what comes near in
        its data, if it was looked for and nothing was sure enough, or if the selector means something else now.
        """
        end = time.monotonic() + ms / 1000
        record = await self._get_record(self._key(action.selector, action.frame))
        selector = self._as_filled(record)
        own = page.locator(action.selector or "").first
        if record.print is None or action.optional:
            self._note(record, await _read_print(page, selector, own, ms))
            return own
        seen = await self._lookahead.look(page, action)
        if seen is not None and not self._find_objection(record, seen):
            self._note(record, seen)
            return own
        seen = self._lookahead.find_checked(page, selector.selector)
        if seen is not None and not self._is_consequential(record.where):  # those are checked each time
            self._note(record, seen)
            return own
        # A selector that failed before is not waited for as long again.
        failed_before = any(heal.state == "proposed" and heal.wins for heal in record.heals)
        grace = self.policy.grace / 4 if failed_before or record.stand_in is not None else self.policy.grace
        try:
            # The larger part of the time is left for looking, should the selector not fit.
            return await self._find_by_selector(page, own, record, min(grace, ms * 0.4))
        except (playwright().TimeoutError, _AnotherNow):
            return await self._find_by_print(page, action, own, record, end)

    async def note_success(self, page: Page | Frame, action: NLWebAction, locator: Locator) -> None:
        self._lookahead.note_step(action)
        await self._note_worked(self._key(action.selector, action.frame))

    async def appears(self, page: Page | Frame, awaited: Awaited, ms: float) -> None:
        """Wait for an element. What it used to be is looked for in a new shape only when the time is nearly over.

        Playwright's TimeoutError if it did not come and nothing was known of it, else ElementMissing, as ``find``.
        """
        record = await self._get_record(self._key(awaited.selector, awaited.frame))
        may_heal = record.print is not None and awaited.sure
        stand_in = self._find_stand_in(record)
        own = page.locator(awaited.selector)
        target = own if stand_in is None else own.or_(page.locator(stand_in.selector))
        try:
            await target.first.wait_for(state=awaited.state, timeout=ms * (1 - _LAST_PART) if may_heal else ms)
            if stand_in is None or await own.first.count():
                self._note(record, await _read_print(page, self._as_filled(record), own.first, _ROUND_MS))
            else:
                seen = await self._read_stand_in(page, record, stand_in)
                if seen is None:
                    raise playwright().TimeoutError("the heal no longer fits")
                self._metrics.nlweb_heals.inc(("used",))
                self._note(record, seen, stand_in)
        except playwright().TimeoutError:
            if not may_heal:
                raise
            search = await self._search(page, record)
            if search.heal is None or search.locator is None or not self._may_use(record.where, search.heal):
                raise await self._give_up(page, record, search, "wait") from None
            if awaited.state == "visible" and not search.heal.print.shown:
                raise playwright().TimeoutError("the element it stands for is not visible") from None
            await self._use(record, search)
        await self._note_worked(record.where)

    async def locate(self, page: Page | Frame, awaited: Awaited) -> Locator:
        """The selector's matches; if there are none, that of a heal which was promoted to stand in for it, and fits."""
        where = self._key(awaited.selector, awaited.frame)
        if where not in self._conditions:
            self._conditions[where] = await self._get_record(where)
        record = self._conditions[where]
        own, stand_in = page.locator(awaited.selector), self._find_stand_in(record)
        if stand_in is None or await own.count() or await self._read_stand_in(page, record, stand_in) is None:
            return own
        return page.locator(stand_in.selector)

    async def note_extraction(self, page: Page | Frame, action: NLWebAction, *, found: bool) -> Trust:
        """Remember the page on which an extraction found something; of one with nothing, whether it is that page still.

        No rows on a page that is as ever are an answer. Where little of the page is left that it was, or some of it had
        to be healed to come here, the selector is more likely to be out of date than the list to be empty.
        """
        # The names of its fields stand for the selector of an extraction that has none.
        fields = f"extract {', '.join(sorted(action.extract_schema or {}))}"
        record = await self._get_record(self._key(action.selector or fields, action.frame))
        before, now = record.page, self._env.now()
        is_fresh = before is not None and now - before.at < _PAGE_SECONDS
        if (found and is_fresh) or (not found and before is None):
            return "same"
        try:
            rows = page.locator(action.selector or "no-rows")
            marks = tuple(digest(str(mark)) for mark in await rows.evaluate_all(script.MARKED, _MOST_MARKS))
        except (playwright().Error, TypeError):
            return "same"
        if found:
            try:
                await self.store.change(record.where, records.remember_page(marks, now))
            except StorageError as error:
                logger.warning("%s: what was learned about its pages was not stored: %s", self._interface.name, error)
        if found or before is None:
            return "same"
        share = len(set(before.marks) & set(marks)) / len(before.marks) if before.marks else 0.5
        if share >= _SAME_PAGE:
            return "same"
        return "changed" if share < _OTHER_PAGE or self.uses else "unsure"

    async def end(self, *, ok: bool) -> None:
        """The action ended: fingerprints of what worked are kept, and heals are credited or debited."""
        sightings, self._sightings, self._action = self._sightings, {}, None
        self._lookahead.begin(())
        try:
            for where, sighting in sightings.items():
                heal = sighting.heal
                if heal is None:
                    known, seen = sighting.record.print, sighting.print
                    if (
                        sighting.worked
                        and seen is not None
                        and (known is None or known.without_box != seen.without_box)
                    ):
                        await self.store.change(where, records.remember(seen))
                    continue
                if sighting.worked and not ok and (heal.wins or heal.state == "promoted"):
                    continue  # it has led to the end before, and its own step was done: the fault is another step's
                if ok and heal.state != "proposed" and not heal.losses:
                    continue
                judgement = records.credit if ok and sighting.worked else records.debit
                changed = await self.store.change(where, judgement(heal.id, self._env.now(), self.policy))
                now = changed.find_heal(heal.id)
                if now is not None and now.state != heal.state and now.state != "proposed":
                    self._metrics.nlweb_heals.inc((now.state,))
                    logger.warning("%s: heal %s of %r is %s", self._interface.name, heal.id, where.selector, now.state)
        except StorageError as error:  # what was done is done, remembered or not
            logger.warning("%s: what was learned about its elements was not stored: %s", self._interface.name, error)

    def describe_heals(self) -> list[dict[str, Any]]:
        """The heals of the running action, or the last one, each once, as they are reported to the caller."""
        return [use.describe() for use in {use.heal.id: use for use in self.uses}.values()]

    # By the selector

    async def _find_by_selector(self, page: Page | Frame, own: Locator, record: ElementRecord, ms: float) -> Locator:
        """The selector's own element, or that of the heal which stands in for it.

        A heal's selector is believed by itself only where a person chose it and it names its element. Otherwise the
        element is looked for among all others, as when it was healed: the page may have another like it by now.
        """
        stand_in = self._find_stand_in(record)
        if stand_in is None:
            return await self._check_own(page, own, record, ms)
        await own.or_(page.locator(stand_in.selector)).first.wait_for(state="attached", timeout=ms)
        if await own.count():
            return await self._check_own(page, own, record, ms)
        is_chosen = stand_in.by_a_person and " > " not in stand_in.selector
        seen = await self._read_stand_in(page, record, stand_in) if is_chosen else None
        if seen is None:
            raise playwright().TimeoutError("it must be searched for")
        self._metrics.nlweb_heals.inc(("used",))
        self._note(record, seen, stand_in)
        return page.locator(stand_in.selector).first

    async def _check_own(self, page: Page | Frame, own: Locator, record: ElementRecord, ms: float) -> Locator:
        """The selector's own element; _AnotherNow if that is plainly not the one it meant."""
        selector = self._as_filled(record)
        seen = await _read_print(page, selector, own, ms)
        if seen is not None and (reason := self._find_objection(record, seen)):
            raise _AnotherNow(reason, seen)
        self._note(record, seen)
        if seen is not None:
            self._lookahead.note_checked(page, selector.selector, seen)
        return own

    def _find_stand_in(self, record: ElementRecord) -> Heal | None:
        """The promoted heal, where it may be used; one of a selector with placeholders names no element by itself."""
        heal = record.stand_in
        if heal is None or self._as_filled(record).given or not self._may_use(record.where, heal):
            return None
        return heal

    async def _read_stand_in(self, page: Page | Frame, record: ElementRecord, heal: Heal) -> Fingerprint | None:
        """What a heal's selector means now, if that is one element, still like what is remembered."""
        found = page.locator(heal.selector)
        try:
            if await found.count() != 1:
                return None
            seen = await _read_print(page, FilledSelector(heal.selector, heal.selector), found.first, _ROUND_MS)
        except playwright().TimeoutError:
            return None
        fits = seen is not None and record.print is not None and judge(record.print, [seen]).chosen is not None
        return seen if fits else None

    def _find_objection(self, record: ElementRecord, seen: Fingerprint) -> str:
        """What speaks against the element that the selector fits now.

        A selector that an action uses several times may mean several elements, and one that a person has accepted as it
        stands may mean an element of any name.
        """
        if record.print is None:
            return ""
        selector = record.where.selector
        is_accepted = any(heal.by_a_person and heal.selector == selector for heal in record.heals)
        is_named = selector not in self._used_often and not is_accepted
        return find_objection(record.print, seen, named=is_named, strict=self._is_consequential(record.where))

    # By what is remembered

    async def _find_by_print(
        self, page: Page | Frame, action: NLWebAction, own: Locator, record: ElementRecord, end: float
    ) -> Locator:
        """Look for it, and look again until the time is over: a page may still be coming.

        What is found and may not be taken is looked at once more only: the page is there, and a person must decide.
        """
        for words in self._as_filled(record).values:
            # What was asked for is not there: that is an answer, and nothing else is looked for in its place.
            while not await shows(page, words):
                if (ms_left := (end - time.monotonic()) * 1000) <= 1.0:
                    selector = self._as_filled(record).selector
                    raise ElementMissing(f"{words!r} was not found on the page", data={"selector": selector})
                try:
                    await own.wait_for(state="attached", timeout=min(_ROUND_MS, ms_left))
                    break
                except playwright().TimeoutError:  # look again: the page may have come meanwhile
                    continue
        another: _AnotherNow | None = None
        for round_ in count():
            search = await self._search(page, record)
            if search.heal is not None and self._may_use(record.where, search.heal):
                return await self._use(record, search)
            ms_left = (end - time.monotonic()) * 1000
            if ms_left <= 1.0 or (round_ and (search.heal or another)):
                raise await self._give_up(page, record, search, action.action_type.value, another)
            try:
                return await self._check_own(page, own, record, min(_ROUND_MS, ms_left))
            except _AnotherNow as now:
                another = now
                await asyncio.sleep(min(_ROUND_MS, ms_left) / 1000)
            except playwright().TimeoutError:
                another = None
        raise AssertionError("unreachable: the time ends")

    async def _search(self, page: Page | Frame, record: ElementRecord, *, offering: bool = False) -> _Search:
        """Compare all elements of its role with what is remembered; ``offering`` also names those that come near."""
        assert record.print is not None
        role = role_family(record.print.role)
        asked = [_ROLES.get(role, [role]), record.print.shown, _MOST_CANDIDATES]
        try:
            listed = await page.evaluate_handle(script.LIST, asked)
        except playwright().Error:  # the page is on its way to another one
            return _Search(Verdict(None, "the page is still loading", ()))
        try:
            return await self._judge_candidates(page, record, listed, offering)
        except (playwright().Error, msgspec.ValidationError):
            return _Search(Verdict(None, "the page changed in the meantime", ()))
        finally:
            with suppress(playwright().Error):
                await listed.dispose()

    async def _judge_candidates(
        self, page: Page | Frame, record: ElementRecord, listed: JSHandle, offering: bool
    ) -> _Search:
        assert record.print is not None
        selector = self._as_filled(record)
        answer = await page.evaluate(script.PRINTS, [listed, _MOST_CANDIDATES, selector.values])
        seen = [parse_fingerprint(candidate, selector.given) for candidate in answer["prints"]]
        if not answer["whole"]:
            return _Search(Verdict(None, "the page is still loading, or has too many elements", ()), seen=seen)
        if selector.given and not record.print.given:
            return _Search(Verdict(None, "what was asked for was not next to it", ()), seen=seen)
        verdict = judge(record.print, seen, threshold=self.policy.threshold, margin=self.policy.margin)
        if verdict.chosen is not None:
            made = await self._make_heal(page, record, listed, verdict.chosen, seen, verdict.margin)
            if made is None:
                return _Search(Verdict(None, "no selector identifies it", verdict.best), seen=seen)
            if made[0].state == "reverted":
                reason = "the only similar element was reverted before"
                return _Search(Verdict(None, reason, verdict.best), seen=seen)
            return _Search(verdict, *made, seen)
        offers = {}
        for scored in verdict.best if offering else ():
            if scored.score >= _OFFERED_SCORE and not is_contradiction(scored.doubt):
                made = await self._make_heal(page, record, listed, scored, seen, verdict.margin)
                if made is not None and made[0].state != "reverted":
                    offers[scored.index] = made[0]
        return _Search(verdict, seen=seen, offers=offers)

    async def _make_heal(
        self,
        page: Page | Frame,
        record: ElementRecord,
        listed: JSHandle,
        scored: Scored,
        seen: list[Fingerprint],
        margin: float,
    ) -> tuple[Heal, Locator] | None:
        """The heal that takes this element, and the element; None if no selector names it.

        It gets the most lasting selector that means this element and no other; also by what it says, unless that is in
        the caller's words.
        """
        assert record.print is not None
        print_, given = seen[scored.index], self._as_filled(record).given
        ways = await page.evaluate(script.SELECTORS, [listed, scored.index])
        # As a person would say it: the button "Search". Only where it can be quoted without doubt.
        can_quote = 0 < len(print_.name) < 60 and not _UNQUOTABLE & set(print_.name)
        by_role = []
        if not given and can_quote and print_.role.isalpha() and print_.role not in _NOT_ARIA:
            by_role = [f'role={print_.role}[name="{print_.name}"s]']
        for selector in [*ways["stable"], *by_role, ways["path"]]:
            locator = page.locator(selector)
            if await locator.count() == 1 and await locator.evaluate(script.SAME, [listed, scored.index]):
                break
        else:
            return None
        if given:
            # Found by the caller's words, it is named by what it says and what it stands beside.
            apart = [name for name, _ in given if name not in print_.name]
            beside = f" beside {', '.join(apart)}" if apart else ""
            selector = f'role={print_.role}[name="{print_.name}"]{beside}'
        name = records.heal_id(record.where, selector)
        known = record.find_heal(name)
        if known is not None:
            return known, locator.first
        score, margin = round(scored.score, 3), round(margin, 3)
        heal = Heal(id=name, selector=selector, print=print_, before=record.print, score=score, margin=margin)
        return heal, locator.first

    async def _use(self, record: ElementRecord, search: _Search) -> Locator:
        assert search.heal is not None
        assert search.locator is not None
        await self._propose(record, search.heal)
        logger.log(
            logging.WARNING if search.heal.state == "proposed" else logging.INFO,
            "%s: %r of %r was not found; the step continues with %r (heal %s, score %.2f)",
            self._interface.name,
            record.where.selector,
            record.where.action,
            search.heal.selector,
            search.heal.id,
            search.heal.score,
        )
        self._metrics.nlweb_heals.inc(("used",))
        self._note(record, search.heal.print, search.heal)
        return search.locator

    async def _propose(self, record: ElementRecord, heal: Heal) -> None:
        if record.find_heal(heal.id) is None:
            await self.store.change(record.where, records.propose(heal, self._env.now()))
            self._metrics.nlweb_heals.inc(("proposed",))

    # Giving up

    async def _give_up(
        self,
        page: Page | Frame,
        record: ElementRecord,
        search: _Search,
        kind: str,
        another: _AnotherNow | None = None,
    ) -> ElementMissing:
        """The error that says what was looked for, what came near, and what a person can do."""
        self._metrics.nlweb_heals.inc(("abstained",))
        if search.heal is None:
            with suppress(TimeoutError):  # the page may be too slow to say what a person could accept
                async with asyncio.timeout(_OFFER_SECONDS):
                    again = await self._search(page, record, offering=True)
                    search = again if again.heal is None else search
        selector = self._as_filled(record).selector
        text = f"{selector!r} matches nothing on the page"
        if another is not None:
            text = f"{selector!r} now matches a different element: {another.reason}"
        candidates = []
        for scored in search.verdict.best:
            if scored.index < len(search.seen):
                print_, offer = search.seen[scored.index], search.offers.get(scored.index)
                candidate = {"name": print_.name, "role": print_.role, "score": round(scored.score, 2)}
                candidates.append(candidate | ({"id": offer.id} if offer else {}))
        data: dict[str, Any] = {
            "selector": selector,
            "action_type": kind,
            "reason": search.verdict.reason,
            "candidates": candidates,
        }
        if search.heal is not None:
            await self._propose(record, search.heal)
            waiting = [search.heal, *await self._heal_others(page, record.where)]
            data["heals"] = [{"id": heal.id, "selector": heal.selector} for heal in waiting]
            return ElementMissing(
                f"{text}. {record.where.action!r} has consequences, so another element is used only after a "
                f"person has accepted it: agent3 web heals accept {' '.join(heal.id for heal in waiting)}",
                data=data,
            )
        offers = list(search.offers.values())
        if another is not None:  # the selector as it stands, for a person to say that what it means now is right
            own = record.where.selector
            offers.insert(
                0,
                Heal(
                    id=records.heal_id(record.where, own),
                    selector=own,
                    print=another.seen,
                    before=record.print or another.seen,
                    score=1.0,
                    margin=0.0,
                ),
            )
        for heal in offers:
            await self._propose(record, heal)
        data["offers"] = [
            {"id": heal.id, "selector": heal.selector, "role": heal.print.role, "name": heal.print.name}
            for heal in offers
        ]
        advice = "correct the selector in the interface file and add it again with agent3 add FILE."
        if offers:
            listed = "; ".join(f"{heal.id} ({heal.print.role} {heal.print.name[:40]!r})" for heal in offers)
            advice = (
                f"If one of these is correct, accept it with agent3 web heals accept ID: {listed}. Otherwise {advice}"
            )
        else:
            advice = f"Look at the page, then {advice}"
        return ElementMissing(f"{text}, and no other element was used: {search.verdict.reason}. {advice}", data=data)

    async def _heal_others(self, page: Page | Frame, where: ElementKey) -> list[Heal]:
        """Heals for the action's other elements that ought to be on this page, so that a person is asked once."""
        found = []
        for record in await self.store.all(where.interface):
            other = record.where
            if other == where or other.action != where.action or other.frame != where.frame or record.print is None:
                continue
            if self._templates.has_placeholders(other.selector):
                continue  # what it will be filled with is not known before its turn
            if not await page.locator(other.selector).count():
                search = await self._search(page, record)
                if search.heal is not None and not search.heal.by_a_person:
                    await self._propose(record, search.heal)
                    found.append(search.heal)
        return found

    # What is known

    async def _get_record(self, where: ElementKey) -> ElementRecord:
        try:
            return await self.store.get(where)
        except StorageError as error:
            logger.warning("%s: stored data about its elements cannot be read: %s", self._interface.name, error)
            return ElementRecord(where)

    def _note(self, record: ElementRecord, seen: Fingerprint | None, heal: Heal | None = None) -> None:
        self._sightings[record.where] = _Sighting(seen, record, heal)
        if heal is not None:
            self.uses.append(HealUse(record.where, heal))

    async def _note_worked(self, where: ElementKey) -> None:
        """Outside of an action nothing more is to come, so it is written down at once."""
        sighting = self._sightings.get(where)
        if sighting is not None:
            sighting.worked = True
            if self._action is None:
                await self.end(ok=True)

    def _key(self, selector: str | None, frame: str | None) -> ElementKey:
        filled, within = self._templates.recognize(selector or ""), self._templates.recognize(frame or "")
        where = ElementKey(self._interface.interface_id, self._action or "", filled.template, within.template)
        self._filled[where] = filled  # the record is the same for every caller, the selector is not
        return where

    def _as_filled(self, record: ElementRecord) -> FilledSelector:
        """The selector of an element as this action fills it."""
        return self._filled.get(record.where) or FilledSelector(record.where.selector, record.where.selector)

    def _may_use(self, where: ElementKey, heal: Heal) -> bool:
        return heal.by_a_person or not self._is_consequential(where)

    def _is_consequential(self, where: ElementKey) -> bool:
        """Of the action, or of any that has the selector where a step is run on its own."""
        info = self._interface.info
        if where.action:
            return where.action in info and info[where.action].hints.consequential
        owners = [name for name, steps in self._interface.actions.items() if where.selector in _selectors(steps)]
        return any(name in info and info[name].hints.consequential for name in owners)


async def _read_print(page: Page | Frame, selector: FilledSelector, locator: Locator, ms: float) -> Fingerprint | None:
    """The fingerprint, waited for; None where the page goes away under it, or answers nonsense."""
    try:
        # One message where the page itself understands the selector and the element is there; else Playwright waits.
        quick = await page.evaluate(script.QUICK, [selector.selector, selector.values])
        seen = quick or await locator.evaluate(script.READ, selector.values, timeout=ms)
        return parse_fingerprint(seen, selector.given)
    except playwright().TimeoutError:
        raise
    except (playwright().Error, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None


def _selectors(steps: Iterable[NLWebAction]) -> list[str]:
    """The selectors of the elements that steps act on, as often as they do; in a loop, twice."""
    found = [step.selector for step in steps if step.selector and step.action_type is not ActionType.WAIT]
    for step in steps:
        found += _selectors([*step.steps, *step.otherwise]) * (2 if step.action_type is ActionType.REPEAT else 1)
    return found
