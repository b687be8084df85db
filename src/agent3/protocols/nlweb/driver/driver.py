"""Carrying out a sentence on a page: plan all of it, find all of it, do it clause by clause, and look whether it shows.

A sentence is done whole or not begun. Only what a link, a tab or a menu opens is looked for after that was pressed.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.errors import SecurityError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, Why, describe, plan, plan_all
from agent3.protocols.nlweb.driver.page_view import Control, PageView, look
from agent3.protocols.nlweb.driver.sentences import Clause, parse_sentence, quote_names
from agent3.protocols.nlweb.driver.wishes import (
    fill_opened,
    find_beginning,
    find_fresh,
    find_menu,
    is_beginning,
    split_wish,
    wish,
)
from agent3.protocols.nlweb.steps.actions import inside
from agent3.sentences import find_prohibition
from agent3.sentences.consequences import CONSEQUENTIAL, GRAVE, find_new, has_consequences
from agent3.sentences.lexicon import Language, detect_language, fold
from agent3.sentences.questions import refuse
from agent3.sentences.spans import MONTHS
from agent3.sentences.tokens import LONGEST

if TYPE_CHECKING:
    from playwright.async_api import Dialog, ElementHandle, JSHandle, Page, Response

__all__ = ["Confirm", "Driven", "drive"]

Confirm = Callable[[str], None]
"""Is told, in words, of a press that has consequences before it is done, and may raise."""
_ACT_MS, _COVERED_MS = 5_000.0, 1_500.0
"""How long an element may keep an act waiting, and a page the sign that something was pressed."""
_LEAVING = "scheduled navigations"
"""What the browser waited for, where an act was done and the page that it leads to did not come in time."""
_POLL_SECONDS = 0.05
_UNANSWERED_SECONDS = 1.5
"""How long a press may show nothing, where it asked no server for anything."""
_SUGGESTED_SECONDS = 1.5
"""How long a field may take to suggest options, and a page to show what the next part of a sentence needs."""
_MOST_KEYS = 200
_TRIES = 2
_MOST_SEEN = 8
_LOADING_SECONDS = 5.0
"""How long a page that says that it is loading is waited for."""
_YOUNG_SECONDS = 1.5
"""How long after its beginning a page is expected to show more by itself."""
_SAVING_SECONDS = 1.2
"""How long after its last field a page may take to save by itself, or to set the field back."""
_CHECKED = "node => node.checked ?? [node.ariaChecked, node.ariaPressed].includes('true')"
_SELECTED = """(node, values) => !node.selectedOptions || !values.length || values.every(value =>
  [...node.selectedOptions].some(one => (one.label || one.text).replace(/\\s+/g, ' ').trim() === value))"""


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of a sentence: what was done and seen, the clauses that were not, and what to ask about them.

    ``offers`` says that it names no control, and may still mean one of the forms of the page. ``seen`` is what the
    page said after the last press: the lines that were not there before.
    """

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    question: str | None = None
    offers: bool = False
    seen: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether something was done, and nothing left out."""
        return bool(self.done) and not self.left


async def drive(
    page: Page,
    sentence: str,
    *,
    confirm: Confirm | None = None,
    unblock: Callable[[], Awaitable[object]] | None = None,
    uploads: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Driven:
    """Do on the page what the sentence says.

    Nothing is begun for a sentence that forbids something, sets a condition, or has a part that is not understood on
    this page. ``confirm`` is told of each press that has consequences, with what the form holds, and of what the page
    itself asks before it goes on; it may raise. ``unblock`` puts away what stands before the page, such as a banner
    about cookies; what it returns says whether something did. Dialogs of the page are answered here while it runs.
    ``uploads`` is the folder that files may come from; without it, none are uploaded. ``tell`` is told first where a
    part can only be looked for after another one was done.
    """
    if len(sentence) > LONGEST:
        spanish = detect_language(sentence[:LONGEST]) == "es"
        told = f"No se ha hecho nada: escriba como máximo {LONGEST} caracteres."
        return Driven([], [sentence[:60]], told if spanish else f"Nothing was done: use at most {LONGEST} characters.")
    until = asyncio.get_running_loop().time() + _YOUNG_SECONDS
    while True:
        operator, view = _Operator(page, confirm, uploads, tell), await look(page)
        driven = await _drive_from(operator, view, page, sentence, unblock)
        # What was not found may be on its way, where the page has only just been opened.
        if operator.used or driven.complete or not await operator.grows(view, until):
            return driven


async def _drive_from(
    operator: _Operator,
    view: PageView,
    page: Page,
    sentence: str,
    unblock: Callable[[], Awaitable[object]] | None,
) -> Driven:
    language = detect_language(sentence)
    names = [text for one in view.controls for text in (one.name, one.name.strip(" *:"), *one.row)]
    sentence = await asyncio.to_thread(quote_names, sentence, dict.fromkeys(names))  # a page may have thousands
    clauses = parse_sentence(sentence)
    if (why := find_prohibition(sentence)) is not None:
        # "Stop sending me news" forbids nothing that is about to be done: it is said to a box that is marked.
        parts = [part for clause in clauses for part in split_wish(view, clause, ())]
        for part in parts:
            stops = why == "forbids" and re.match(r"(?:please |quiero )?(?:stop|dejar?(?: de)?)\b", fold(part.text))
            acts = wish(view, part, ()) if stops else Doubt("words", sentence)
            if stops is None and why == "forbids" and find_prohibition(part.text) is None:
                continue
            if isinstance(acts, Doubt) or any(act.kind not in ("open", "clear") for act in acts):
                return Driven([], [clause.text for clause in clauses], refuse(why, language))
    with operator.answering():
        await operator.settle()
        return await _drive(operator, page, clauses, language, unblock)


async def _drive(
    operator: _Operator,
    page: Page,
    clauses: Sequence[Clause],
    language: Language,
    unblock: Callable[[], Awaitable[object]] | None,
) -> Driven:
    unshown: list[tuple[Clause, Doubt]] = []
    last: Clause | None = None
    patience = asyncio.get_running_loop().time() + _LOADING_SECONDS
    while clauses:
        loading = await operator.is_loading()
        view = await operator.look()
        plans = plan_all(view, clauses, operator.used, otherwise=wish)
        for number, clause in enumerate(clauses):
            if isinstance(plans[number], Doubt) and len(parts := split_wish(view, clause, operator.used)) > 1:
                clauses = [*clauses[:number], *parts, *clauses[number + 1 :]]
                plans = plan_all(view, clauses, operator.used, otherwise=wish)
                break
        if operator.begun is not None:
            plans[0] = fill_opened(view, *operator.begun, clauses[0])
        if not operator.done:
            plans = [await operator.check_values(view, one) for one in plans]
        doubtful = next((number for number, one in enumerate(plans) if isinstance(one, Doubt)), None)
        if doubtful is not None and not _may_show(view, clauses, plans, doubtful):
            if unblock is not None and await unblock():
                unblock = None
                continue
            if (
                loading or ((operator.done or operator.begun) and doubtful == 0)
            ) and asyncio.get_running_loop().time() < patience:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            if doubtful == 0 and await operator.open_menu(view, clauses[0]):
                continue
            only = doubtful == 0 and not any(isinstance(one, Doubt) for one in plans[1:])
            if only and await operator.begin(view, clauses[0]):
                patience = asyncio.get_running_loop().time() + _SUGGESTED_SECONDS
                continue
            await operator.leave()
            await operator.close_menu()
            return _stop(operator, clauses, plans, doubtful, language)
        acts, last = plans[0], clauses[0]
        assert isinstance(acts, list)
        if doubtful is not None:
            operator.tell_first(acts, clauses[doubtful])
        if not operator.done:
            await operator.foretell(view, plans)
        doubt = await operator.perform(view, acts, clauses)
        if doubt is not None and doubt.why == "unshown" and _may_go_on(plans[1:]):
            unshown.append((clauses[0], doubt))
        elif doubt is not None:
            return _stop(operator, clauses, [doubt, *plans[1:]], 0, language)
        clauses = clauses[1:]
        operator.begun = None
        operator.forget_menu()
        patience = asyncio.get_running_loop().time() + _SUGGESTED_SECONDS
    if last is not None and (doubt := await operator.linger()) is not None:
        unshown.append((last, doubt))
    if unshown:
        return _stop(operator, [clause for clause, _ in unshown], [doubt for _, doubt in unshown], 0, language)
    return Driven(operator.done, seen=operator.seen)


def _may_go_on(plans: Sequence[Plan]) -> bool:
    """Whether the rest may be done after a press that the page did not show: nothing of it has consequences."""
    acts = [act for one in plans if isinstance(one, list) for act in one]
    return not any(act.control.sends or has_consequences(act.control.name) for act in acts if act.kind == "press")


def _may_show(view: PageView, clauses: Sequence[Clause], plans: Sequence[Plan], doubtful: int) -> bool:
    """Whether what a clause names may come to light by an earlier one, which does nothing but show something.

    A link, a tab, a menu or a search may lead anywhere; any other button only to what is on the page and hidden. What
    cannot be used yet may wait for a box or a field before it.
    """
    doubt, before = plans[doubtful], [act for one in plans[:doubtful] if isinstance(one, list) for act in one]
    assert isinstance(doubt, Doubt)
    if doubt.why == "disabled":
        return any(not has_consequences(act.control.name) for act in before)
    if doubt.why not in ("absent", "words") or not clauses[doubtful].verb:
        return False
    searched = {(act.control.frame, act.control.form) for act in before if act.control.searches}
    if any(act.kind == "enter" for act in before):
        return clauses[doubtful].verb == "press"
    pressed = [act.control for act in before if act.kind == "press"]
    answer = clauses[doubtful].restore(clauses[doubtful].rest) or ""
    if pressed and clauses[doubtful].verb == "press" and _affirms(answer, pressed[-1].name):
        pressed = pressed[:-1]  # "click Delete and click Yes": the page asks back
        if not pressed:
            return True
    everything = PageView([replace(control, visible=True) for control in view.controls], ())
    hidden = plan(everything, clauses[doubtful], ())
    marked = [fold(act.control.name) for act in before if act.kind == "check"]
    if marked and isinstance(hidden, list):  # "Return trip" shows "Return date"
        seen = {(one.frame, one.index) for one in view.visible}
        unseen = [act.control.name for act in hidden if (act.control.frame, act.control.index) not in seen]
        if unseen and all(
            any(len(word) > 3 and word in name for name in marked for word in _words(one)) for one in unseen
        ):
            return True
    rows = any(act.kind == "check" and act.control.row for act in before)
    if rows and isinstance(hidden, list) and all(act.control.toolbar and not act.control.row for act in hidden):
        return True  # what acts on the rows that are marked shows once one is
    if not pressed or any(has_consequences(one.name, link=one.role == "link", asks=True) for one in pressed):
        return False
    if _begins(view, pressed[-1], following=clauses[doubtful]):
        return True
    if any(one.opens or _leads_on(one) or (one.searches or (one.frame, one.form) in searched) for one in pressed):
        return all(not one.sends or one.searches or _leads_on(one) for one in pressed)
    return isinstance(hidden, list)


def _leads_on(control: Control) -> bool:
    """Whether a button says that it shows the next step of something."""
    said = re.findall(r"\w+", fold(control.name))
    return (
        bool(said)
        and (said[0] in ("next", "continue", "siguiente", "continuar") or _PAGE.fullmatch(control.name) is not None)
        and not has_consequences(control.name)
    )


_PAGE = re.compile(r"\s*(?:page|p[aá]gina)\s+\d+\s*", re.IGNORECASE)


def _begins(view: PageView, control: Control, *, following: Clause) -> bool:
    """Whether a button says that it begins something, for which it has no field yet, and the next part fills one in."""
    if control.role != "button" or control.sends or control.disabled or not is_beginning(control):
        return False
    near = [one for one in view.visible if one.is_free and one.boxes and one.boxes[:1] == control.boxes[:1]]
    return not near and following.verb in ("write", "choose", "add")


class _Operator:
    """The one place that acts on a page for a sentence; every act is bounded in time, and looked at afterwards."""

    def __init__(
        self, page: Page, confirm: Confirm | None, uploads: Path | None, tell: Callable[[str], None] | None = None
    ):
        self._tell = tell
        self.done: list[str] = []
        self.used: list[Control] = []
        self.seen: list[str] = []
        self._page = page
        self._confirm = confirm
        self._uploads = uploads
        self._confirmed = ""
        self._foretold: list[str] = []
        self._refusal: Exception | None = None
        self._asked: JSHandle | None = None
        self._alerts: list[str] = []
        self._menu: tuple[Control, PageView] | None = None
        self.begun: tuple[PageView, Control] | None = None
        """What the page was before a clause was begun, and what was pressed to find the rest of it."""
        self._set: list[tuple[Act, ElementHandle]] = []
        self._view = PageView((), ())
        self._named = False
        """Whether the sentence says to press what is pressed, not to do what it may do."""
        self._pressed = False
        """Whether the act that is under way has pressed something: then it is not begun again."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer the dialogs of the page: a question of its own is a consequence like any other."""
        self._page.on("dialog", self._answer)
        try:
            yield
        finally:
            self._page.remove_listener("dialog", self._answer)

    async def _answer(self, dialog: Dialog) -> None:
        accept = dialog.type != "prompt"
        if dialog.type in ("alert", "prompt"):
            self._alerts.append(" ".join(dialog.message[:300].split()))
        if dialog.type == "confirm" and self._confirm is not None and self._says_more(dialog.message):
            try:
                self._confirm(f"“{dialog.message[:300]}”")
            except Exception as error:  # noqa: BLE001 - raised where the press is, once the page has its answer
                self._refusal, accept = error, False
        with suppress(playwright().Error):
            await (dialog.accept() if accept else dialog.dismiss())

    def _says_more(self, question: str) -> bool:
        """Whether a question of the page is about something that the person has not said yes to: nothing was confirmed,
        or other consequences, or other numbers.
        """
        if not self._confirmed:
            return True
        known, asked = (frozenset(re.findall(r"\w+", fold(text))) for text in (self._confirmed, question))
        numbers = {word for word in asked - known if word.isdigit()}
        return bool(numbers or find_new(CONSEQUENTIAL, known, asked))

    async def look(self) -> PageView:
        """The page as it is, with what the menu of a row shows in that row."""
        view = await look(self._page)
        return view if self._menu is None else view.adopt(*self._menu)

    async def is_loading(self) -> bool:
        """Whether the page says so, or has nothing yet."""
        with suppress(playwright().Error):
            return bool(await self._page.evaluate(_LOADING))
        return True

    async def grows(self, view: PageView, until: float) -> bool:
        """Whether a page that was opened a moment ago shows something else meanwhile. Its own clock is only a hint."""
        with suppress(playwright().Error):
            young = _YOUNG_SECONDS - float(await self._page.evaluate("performance.now()")) / 1e3
            clock = asyncio.get_running_loop().time
            until = min(until, clock() + young)
            while (left := until - clock()) > 0:
                await asyncio.sleep(min(left, 0.3))
                if (await look(self._page)).controls != view.controls:
                    return True
        return False

    async def check_values(self, view: PageView, found: Plan) -> Plan:
        """The plan, or a doubt where a field would not take what is to be written: too large, too long, no address,
        a file of another kind, or none that may be uploaded.
        """
        for act in found if isinstance(found, list) else ():
            if act.kind == "upload":
                try:
                    inside(self._uploads, act.values[0])
                except SecurityError:
                    return Doubt("file", act.values[0])
                kind = mimetypes.guess_type(act.values[0])[0] or ""
                with suppress(playwright().Error):
                    if not await (await view.element(act.control)).evaluate(_ACCEPTS, [act.values[0], kind]):
                        return Doubt("value", act.values[0])
            if act.kind == "write":
                with suppress(playwright().Error):
                    if not await (await view.element(act.control)).evaluate(_TAKES, act.values[0]):
                        return Doubt("value", act.values[0])
        return found

    async def foretell(self, view: PageView, plans: Sequence[Plan]) -> None:
        """Ask about what has consequences before anything is done, with the form as it will be then.

        Where it is otherwise when its button comes to be pressed, that is asked about once more.
        """
        if self._confirm is None or any(isinstance(one, Doubt) for one in plans):
            return
        planned, marked = dict[str, object](), list[Control]()
        for act in (act for one in plans if isinstance(one, list) for act in one):
            if act.kind in ("write", "choose"):
                planned[act.control.name] = ", ".join(act.values)
            elif act.kind == "upload":
                planned[act.control.name] = act.values[0]
                self._foretold.append(self._tell_upload(act))
            elif act.kind in ("check", "clear"):
                planned[act.control.name] = act.kind == "check"
                marked += [act.control] if act.kind == "check" else []
            elif act.kind == "press" and act.control.visible:
                with suppress(playwright().Error):
                    pressed: Any = await (await view.element(act.control)).evaluate(_PRESSED, planned)
                    if _is_serious(pressed):
                        self._foretold.append(_tell(act, pressed["fields"], marked))
        for told in self._foretold:
            self._confirm(told)

    async def perform(self, view: PageView, acts: Sequence[Act], clauses: Sequence[Clause]) -> Doubt | None:
        """Do all acts of the first of the clauses; a doubt where one failed, or does not show."""
        following, self._view = clauses[1:], view
        self._named = clauses[0].verb == "press"
        if self.begun is not None:
            self.done.append(describe(Act("open", self.begun[1])))
        for number, act in enumerate(acts):
            self.used.append(act.control)
            last = number == len(acts) - 1
            shows: bool | Doubt = Doubt("disabled", act.control.name)  # covered, moving, or gone
            self._pressed = False
            for _ in range(_TRIES):
                try:
                    shows = await self._act(act, await self._find_again(view, act.control), following if last else ())
                    break
                except playwright().Error as error:
                    if self._page.is_closed():
                        raise
                    if self._pressed or _LEAVING in error.message:
                        shows = False
                    if self._pressed or "not attached" not in error.message:
                        break  # else the page was drawn anew at that very moment, and nothing was done
            if self._refusal is not None:
                raise self._refusal
            if isinstance(shows, Doubt):
                if shows.why in ("refused", "asks"):
                    self.done.append(describe(act))  # it was pressed, and did not lead to what was asked
                return shows
            self.done.append(describe(act))
            if not shows:
                return Doubt("unshown", act.control.name)
            await self.settle()
        return None

    async def linger(self) -> Doubt | None:
        """After fields that nothing was pressed for: the time in which pages save by themselves; a doubt for one that
        the page has set back by then.
        """
        if not self._set:
            return None
        with self._watch() as events:
            await asyncio.sleep(_SAVING_SECONDS)
            if "request" in events:
                with suppress(playwright().Error):
                    await self._page.wait_for_load_state("networkidle", timeout=_ACT_MS)
        for act, element in self._set:
            with suppress(playwright().Error):  # a page that is elsewhere by now has taken it
                element = await self._renew(act.control, element)
                if act.kind in ("check", "clear"):
                    kept = await element.evaluate(_CHECKED) is (act.kind == "check")
                else:
                    kept = await element.evaluate(_SELECTED, act.values)
                if not kept:
                    return Doubt("unshown", act.control.name)
        return None

    async def open_menu(self, view: PageView, clause: Clause) -> bool:
        """Whether the menu of the row that a clause names was opened, to look for what is not on the page without."""
        if self._menu is not None or (menu := find_menu(view, clause)) is None:
            return False
        if menu.sends or has_consequences(menu.name):
            return False  # whatever it says of a menu, it is called like something that is done
        self._menu = menu, view
        with suppress(playwright().Error):
            await (await self._find_again(view, menu)).click(timeout=_ACT_MS)
        await self.settle()
        return True

    def forget_menu(self) -> None:
        """What was opened has served: the next part of the sentence may need another one."""
        self._menu = None

    def tell_first(self, acts: Sequence[Act], clause: Clause) -> None:
        """Say, before anything is done, what has to be done before a clause can be looked for."""
        if self._tell is not None and not self.done and acts:
            spanish = detect_language(clause.text) == "es"
            after = "solo después se puede buscar" if spanish else "only then this can be looked for"
            self._tell(f"{describe(acts[-1], 'es' if spanish else 'en')}: {after}: “{clause.text}”")

    async def begin(self, view: PageView, clause: Clause) -> bool:
        """Whether something was opened that a clause has to begin with, to look there for the rest of it."""
        if self.begun is not None or not (acts := find_beginning(view, clause)):
            return False
        self.tell_first(acts, clause)
        try:
            for act in acts:
                await (await self._find_again(view, act.control)).click(timeout=_ACT_MS)
                await self.settle()
        except playwright().Error as error:
            if _LEAVING not in error.message:
                return False  # it was not pressed, and is not told as done
        self.begun = view, acts[-1].control
        return True

    async def leave(self) -> None:
        """Leave what was opened where the rest was not found in it; what opened nothing is told as done."""
        if self.begun is None:
            return
        before, opener = self.begun
        self.begun = None
        with suppress(playwright().Error):
            view = await look(self._page)
            opened = find_fresh(view, before)
            away = [one for one in opened if one.role == "button" and _backs(one)]
            if len(away) == 1:
                await (await view.element(away[0])).click(timeout=_ACT_MS)
            else:
                await self._page.keyboard.press("Escape")
            await self.settle()
            if any(one.is_field for one in opened):
                left = find_fresh(await look(self._page), before)
                if not any(one.is_field for one in left):
                    return
        self.done.append(describe(Act("press", opener)))

    async def close_menu(self) -> None:
        """Leave a page as it was, where the menu that was opened did not have it."""
        if self._menu is None:
            return
        with suppress(playwright().Error):
            await self._page.keyboard.press("Escape")
            view = await look(self._page)
            still = [
                one for one in view.visible
                if (one.name, one.row, one.expanded) == (self._menu[0].name, self._menu[0].row, True)
            ]  # fmt: skip
            if len(still) == 1:
                await (await view.element(still[0])).click(timeout=_ACT_MS)

    async def _find_again(self, view: PageView, control: Control) -> ElementHandle:
        """The element that was seen; where the page has drawn itself anew, the only one that is the same in all."""
        element = await view.element(control)
        return await self._renew(control, element)

    async def _renew(self, control: Control, element: ElementHandle) -> ElementHandle:
        if await element.evaluate("node => node.isConnected"):
            return element
        anew = await look(self._page)
        known = (control.role, control.name, control.row, control.places)
        same = [one for one in anew.controls if (one.role, one.name, one.row, one.places) == known]
        lasting = _lasting_key(control)
        # Numbers may be all that told it from another row, which could be the only one that is left.
        if not same and sum(_lasting_key(one) == lasting for one in self._view.controls) <= 1:
            same = [one for one in anew.controls if _lasting_key(one) == lasting]
        return await anew.element(same[0]) if len(same) == 1 else element

    async def settle(self) -> None:
        """Wait until the page has stopped changing."""
        with suppress(playwright().Error):
            await self._page.evaluate(_QUIET, [40, 700])

    async def _act(self, act: Act, element: ElementHandle, following: Sequence[Clause]) -> bool | Doubt:
        """Whether the page shows that it was done, once it has come to rest."""
        self._set = [*self._set, (act, element)] if act.kind in ("write", "choose", "check", "clear") else []
        match act.kind:
            case "write":
                return await self._write(act, element)
            case "choose":
                self._confirm_at_once(act, act.values)
                return await self._choose(act, element)
            case "check" | "clear":
                self._confirm_at_once(act, [act.control.name] if act.kind == "check" else [])
                return await self._check(act, element)
            case "upload":
                return await self._upload(act, element)
            case _:
                return await self._press(act, element, following)

    async def _write(self, act: Act, element: ElementHandle) -> bool | Doubt:
        if act.control.role == "slider" and act.control.kind != "range":
            return await self._slide(act, element)
        if act.control.kind == "cell":
            return await self._edit_cell(act, element)
        if act.control.kind == "steps":
            return await self._step(act, element)
        if act.control.kind == "calendar":
            return await self._pick_day(act, element)
        suggests = act.control.role == "combobox"
        chips = await element.evaluate(_CHIPS, act.values[0]) if suggests else 0
        lists = await element.evaluate_handle(_LISTS) if suggests else None
        await element.fill(act.values[0], timeout=_ACT_MS)
        if act.control.kind == "range":
            return float(await element.input_value()) == float(act.values[0])
        if suggests and (doubt := await self._take_suggestion(act, element, lists)) is not None:
            return doubt
        await element.evaluate("node => node.blur()")  # many pages take a value when its field is left
        await self.settle()
        element = await self._renew(act.control, element)
        shown: str = await element.evaluate("node => node.value ?? node.innerText")
        if suggests and not shown.strip():  # what was chosen stands beside the field
            return bool(await element.evaluate(_CHIPS, act.values[0]) > chips)
        return _letters(shown) == _letters(act.values[0])

    async def _edit_cell(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A cell that becomes a field when it is pressed twice."""
        await element.dblclick(timeout=_ACT_MS)
        await self.settle()
        field = await element.query_selector("input,textarea,[contenteditable=true]")
        if field is None:
            return Doubt("disabled", act.control.name)
        await field.fill(act.values[0], timeout=_ACT_MS)
        await field.press("Enter", timeout=_ACT_MS)
        await self.settle()
        element = await self._renew(act.control, element)
        shown: str = await element.evaluate("node => node.querySelector('input,textarea') ? '' : node.innerText")
        return _letters(shown) == _letters(act.values[0])

    async def _slide(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A slider that is drawn: by its keys, as long as each brings it nearer."""
        wanted, read = float(act.values[0]), "node => Number(node.ariaValueNow ?? NaN)"
        at = start = float(await element.evaluate(read))
        key = "ArrowRight" if wanted > at else "ArrowLeft"
        for _ in range(_MOST_KEYS):
            if at == wanted:
                return True
            await element.press(key, timeout=_ACT_MS)
            before, at = at, float(await element.evaluate(read))
            if not abs(wanted - at) < abs(wanted - before):
                break
        back = "ArrowLeft" if key == "ArrowRight" else "ArrowRight"
        for _ in range(_MOST_KEYS):
            if at == start or at != at:
                break
            await element.press(back, timeout=_ACT_MS)
            before, at = at, float(await element.evaluate(read))
            if at == before:
                break
        return Doubt("value", act.values[0])

    async def _step(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A number between two buttons: by these, while each press brings it nearer, and back where it does not."""
        view, buttons = self._view, self._view.steps_of(act.control)
        start, wanted = await self._count(act, element), int(float(act.values[0]))
        if start is None or await self._step_to(act, element, view, buttons, start, wanted) == wanted:
            await self.settle()
            return await self._count(act, element) == wanted
        at = await self._count(act, element)
        if at is not None:
            await self._step_to(act, element, view, buttons, at, start)
        return Doubt("value", act.values[0])

    async def _step_to(
        self, act: Act, element: ElementHandle, view: PageView, buttons: Sequence[Control], at: int, wanted: int
    ) -> int | None:
        """The number that the page shows once no press brings it nearer."""
        for _ in range(_MOST_KEYS):
            if at == wanted:
                break
            button = await self._find_again(view, buttons[wanted > at])
            if await button.evaluate("node => node.disabled || node.ariaDisabled === 'true'"):
                break
            await button.click(timeout=_ACT_MS)
            before, until = at, asyncio.get_running_loop().time() + _UNANSWERED_SECONDS
            now: int | None = at
            while now == before and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(_POLL_SECONDS)
                now = await self._count(act, element)
            if now is None:
                return None
            at = now
            if abs(wanted - at) >= abs(wanted - before):
                break
        return at

    async def _count(self, act: Act, element: ElementHandle) -> int | None:
        with suppress(playwright().Error, ValueError):
            return int(
                await (await self._renew(act.control, element)).evaluate("node => node.value || node.textContent")
            )
        return None

    async def _pick_day(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A day in a calendar that the page draws: its month by the buttons beside the month's name, then the day."""
        wanted = date.fromisoformat(act.values[0])
        await element.click(timeout=_ACT_MS)
        await self.settle()
        months = set[tuple[int, int]]()
        for _ in range(_MOST_KEYS):
            found = await self._page.evaluate_handle(_CALENDAR)
            shown = _find_month(str(await found.evaluate("found => found?.heading ?? ''")))
            if shown is None or shown in months:
                break  # none that can be read, or one that stays
            months.add(shown)
            ahead = (wanted.year, wanted.month) > shown
            way = "day" if (wanted.year, wanted.month) == shown else "next" if ahead else "previous"
            pick = "([found, way, day]) => way === 'day' ? found.days[day] ?? null : found[way]"
            target = (await self._page.evaluate_handle(pick, [found, way, wanted.day])).as_element()
            if target is None:
                break
            await target.click(timeout=_ACT_MS)
            await self.settle()
            if way == "day":
                element = await self._renew(act.control, element)
                text = str(await element.evaluate("node => node.value || node.innerText"))
                return _shows_day(text, wanted)
        await self._page.keyboard.press("Escape")
        return Doubt("value", act.values[0])

    async def _take_suggestion(self, act: Act, element: ElementHandle, known: JSHandle | None) -> Doubt | None:
        """What a field that suggests options takes is one of them, not the letters: the one of that very name.

        They may be drawn anywhere, in a list that is not ``known`` from before.
        """
        anywhere = await element.get_attribute("aria-autocomplete") in ("list", "both")
        found = await self._find_option(element, act.values[0], anywhere=anywhere, known=known)
        if found is None:
            return None  # it has no list
        if isinstance(found, Doubt):
            await element.fill(act.control.value, timeout=_ACT_MS)
            return found
        await found.click(timeout=_ACT_MS)
        return None

    async def _find_option(
        self, element: ElementHandle, name: str, *, anywhere: bool, known: JSHandle | None = None
    ) -> ElementHandle | Doubt | None:
        """The one option of that very name, as soon as it is there; None where the element has no list."""
        clock = asyncio.get_running_loop().time
        began, options = clock(), list[str]()
        while clock() - began < _SUGGESTED_SECONDS:
            read = await element.evaluate_handle(_SUGGESTIONS, [anywhere, known])
            told = await read.evaluate("found => found && found.map(one => one.innerText.trim())")
            if told is None:
                return None
            options = told
            same = [number for number, option in enumerate(options) if fold(option) == fold(name)]
            if len(same) == 1:
                return (await read.get_property(str(same[0]))).as_element()
            await asyncio.sleep(_POLL_SECONDS)
        return Doubt("value", name, tuple(options[:5]))

    def _confirm_at_once(self, act: Act, texts: Sequence[str]) -> None:
        """Outside of a form, which has a button for that, what begins with a grave word may be done by a mere tick."""
        first = {word for text in texts for word in re.findall(r"\w+", fold(text))[:1]}
        if self._confirm is not None and act.control.form < 0 and not first.isdisjoint(GRAVE):
            self._confirm(_tell(act, []))

    async def _choose(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Options of a list; one that may hold several keeps what was chosen before."""
        if act.control.is_drawn:
            return await self._choose_drawn(act, element)
        read = "node => [...node.selectedOptions].map(one => (one.label || one.text).replace(/\\s+/g, ' ').trim())"
        kept: list[str] = await element.evaluate(read) if act.control.multiple else []
        await element.select_option(label=[*dict.fromkeys((*kept, *act.values))], timeout=_ACT_MS)
        await self.settle()
        try:
            element = await self._renew(act.control, element)
            return {*await element.evaluate(read)} == {*kept, *act.values}
        except playwright().Error:
            return False

    async def _choose_drawn(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """An option of a list that has to be opened; where it is not in it, the list is shut again."""
        if not act.control.expanded:
            await element.click(timeout=_ACT_MS)
        option = await self._find_option(element, act.values[0], anywhere=True)
        if option is None or isinstance(option, Doubt):
            await self._page.keyboard.press("Escape")
            if await element.get_attribute("aria-expanded") == "true":
                await element.click(timeout=_ACT_MS)
            return option or Doubt("value", act.values[0])
        await option.click(timeout=_ACT_MS)
        await self.settle()
        with suppress(playwright().Error):
            if await option.evaluate(_CHOSEN, act.values[0]):
                return True
        element = await self._renew(act.control, element)
        return bool(await element.evaluate(_TELLS, act.values[0]))

    async def _check(self, act: Act, element: ElementHandle) -> bool:
        wanted = act.kind == "check"
        if act.control.checked != wanted:
            # A box that is drawn by its label is hidden itself: the label is what a person presses.
            label = await element.evaluate_handle("node => node.labels?.[0] ?? node")
            target = element if await element.is_visible() else label.as_element()
            await (target or element).click(timeout=_ACT_MS)
            await self.settle()

        async def shows() -> bool:
            return await (await self._renew(act.control, element)).evaluate(_CHECKED) is wanted

        # Whether the page shows something soon: a page that asks a server first shows it later.
        until = asyncio.get_running_loop().time() + _SAVING_SECONDS
        while not await shows():
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _tell_upload(self, act: Act) -> str:
        size = inside(self._uploads, act.values[0]).stat().st_size
        return _tell(act, [f"{size:,} bytes"])

    async def _upload(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Choose a file. Many pages send it at once, so it is asked about like everything that has consequences."""
        if isinstance(doubt := await self.check_values(self._view, [act]), Doubt):
            return doubt
        told = self._tell_upload(act)
        if told in self._foretold:
            self._foretold.remove(told)
        elif self._confirm is not None:
            self._confirm(told)
        shows = await self._press_and_watch(act, element)
        if isinstance(shows, Doubt):
            return shows
        name = Path(act.values[0]).name
        with suppress(playwright().Error):
            if await element.evaluate("(node, name) => [...node.files].some(one => one.name === name)", name):
                return True
        return any(name in line for line in self.seen)  # a page that has taken it may empty its field

    async def _press(self, act: Act, element: ElementHandle, following: Sequence[Clause]) -> bool | Doubt:
        pressed: Any = await element.evaluate(_PRESSED, {})
        if pressed["invalid"]:
            return Doubt("empty", pressed["invalid"])
        serious = _is_serious(pressed)
        if self._confirm is not None and serious:
            self._confirmed = _tell(act, pressed["fields"], [one for one in self.used if one.role == "checkbox"])
            if self._confirmed in self._foretold:
                self._foretold.remove(self._confirmed)
            else:
                self._confirm(self._confirmed)
        try:
            shows = await self._press_and_watch(act, element)
            return await self._answer_asking(act, element, following, serious) if shows is True else shows
        finally:
            self._confirmed = ""

    async def _find_new_field(self, element: ElementHandle) -> str:
        """What an empty field is called that a press has brought up: then there is more to say."""
        known = [(one.frame, one.name) for one in self._view.visible if one.role == "textbox"]
        with suppress(playwright().Error):
            if not await element.evaluate("node => Boolean(node.ownerDocument.defaultView)"):
                return ""  # on another page
            view = await look(self._page)
            fields = [one for one in view.visible if one.role == "textbox" and one.is_free and not one.value]
            return next((one.name for one in fields if one.name and (one.frame, one.name) not in known), "")
        return ""

    async def _answer_asking(
        self, act: Act, element: ElementHandle, following: Sequence[Clause], serious: bool
    ) -> bool | Doubt:
        """Where the page asks in a dialog, or in place, whether to go on: what the person says, and its button for it.

        A clause that comes after and names something in the dialog answers it.
        """
        asks = not following and not self._named and act.kind == "press" and await self._find_new_field(element)
        if self._asked is None:
            return Doubt("asks", asks) if asks else True
        read = "({text, names, open, fields, inline}) => ({text, names, open, fields, inline})"
        found: Any = await self._asked.evaluate(read)
        names: list[str] = found["names"]
        if following:
            planned = plan_all(await look(self._page), following[:1], self.used, otherwise=wish)[0]
            if isinstance(planned, list) and planned[0].control.name in names:
                return True
        yes = [number for number, name in enumerate(names) if _affirms(name, act.control.name)]
        no = [name for name in names if _declines(name, act.control.name)]
        questions = "?" in found["text"] or _SURE.search(found["text"]) is not None
        # "Yes, submit" says what was pressed; "OK" does not.
        named = serious or any(_affirms(_strip_yes(names[number]), act.control.name) for number in yes)
        if found["open"] and not following and not self._named and act.kind == "press":
            return Doubt("asks", found["text"], tuple(names[:5]))  # "share the budget": with whom is not said
        if found["inline"] and not questions and not (len(yes) == 1 and no):
            return True
        # Nothing but buttons, one of which goes back: what was pressed is not done yet.
        turns_back = not found["fields"] and len(names) > 1 and any(not _CLOSES & {*_words(name)} for name in no)
        if found["open"] or len(yes) != 1:
            unsure = questions or turns_back or (serious and (found["open"] or len(names) > 1))
            return Doubt("asks", found["text"], tuple(names[:5])) if unsure else True
        if not questions and not (no and named):
            # A message with a button to go on, unless one can go back as well.
            return Doubt("asks", found["text"], tuple(names[:5])) if turns_back else True
        if self._confirm is not None:
            self._confirm(f"“{found['text']}”")
        button = (await (await self._asked.get_property("buttons")).get_property(str(yes[0]))).as_element()
        assert button is not None
        shows = await self._press_and_watch(replace(act, kind="press"), button)
        with suppress(playwright().Error):
            if shows is True and await button.is_visible():
                return Doubt("asks", found["text"])
        return shows

    async def _press_and_watch(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Press, and wait for a sign of it: longer where the page has asked a server for something."""
        clock = asyncio.get_running_loop().time
        self._alerts, self._asked = [], None
        buttons = await self._page.evaluate(f"({_ASKING})(null)")
        item = act.control.role.startswith("menuitem")
        with self._watch() as events:
            before = await self._read(menus=not item)
            if act.kind == "enter":
                await element.press("Enter", timeout=_ACT_MS)
            elif act.kind == "upload":
                await element.set_input_files(inside(self._uploads, act.values[0]), timeout=_ACT_MS)
            else:
                await self._click(element)
            self._pressed = True
            began, after = clock(), before
            while clock() - began < (_ACT_MS / 1000 if "request" in events else _UNANSWERED_SECONDS):
                after = await self._read(menus=not item)
                if "event" in events or self._refusal is not None or self._alerts or after != before:
                    break
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return _find_refusal(act, events, []) or False
            if self._refusal is not None:
                return True
            # "Sending …" is no answer yet.
            await self.settle()
            after = await self._read(menus=not item)
            while any(_PENDING.search(line) for line in _new_lines(before, after)) and clock() - began < _ACT_MS / 1000:
                await asyncio.sleep(_POLL_SECONDS)
                after = await self._read(menus=not item)
        lines = [*self._alerts, *_new_lines(before, after)]
        self.seen = [line[:200] for line in lines[:_MOST_SEEN]]
        asked = ""
        with suppress(playwright().Error):  # the page may be on its way to another one
            handle = await self._page.evaluate_handle(_ASKING, buttons)
            asked = await handle.evaluate("found => found?.text ?? ''")
            self._asked = handle if asked else None
        lines = [line for line in lines if line not in asked]  # "this cannot be undone" turns nothing down
        refusing = [(line, word, False) for line in lines for word in _find_refusing(line, act.control.name)]
        removes = not _REMOVES.isdisjoint(CONSEQUENTIAL.get(word) for word in _words(act.control.name))
        lacks = [line for line in lines if _INSTRUCTS.match(line) or (not removes and _EMPTY.search(line))]
        refusing += [(line, line, True) for line in lacks if len(line) < _LONGEST_MESSAGE]
        said = await self._find_said(act, element, refusing[:_MOST_SEEN], before)
        if (refused := _find_refusal(act, events, said)) is not None:
            return refused
        if any(_PENDING.search(line) for line in lines) and not act.control.opens:
            return False
        if act.control.role == "option":
            # Whether an option that was pressed is the chosen one now, or what its list belongs to shows it.
            with suppress(playwright().Error):
                return bool(await element.evaluate(_CHOSEN, act.control.name))
            return False
        return "event" in events or bool(self._alerts) or after != before

    async def _click(self, element: ElementHandle) -> None:
        """Press an element once, in its middle, or where it can be seen, if something lies over that."""
        spot = None
        try:
            await element.click(timeout=_COVERED_MS, trial=True)
        except playwright().TimeoutError as error:
            spot = await element.evaluate(_FREE_SPOT) if "intercepts pointer" in error.message else None
        await element.click(timeout=_ACT_MS, position=spot)

    async def _find_said(
        self,
        act: Act,
        element: ElementHandle,
        refusing: Sequence[tuple[str, str, bool]],
        before: Sequence[Sequence[str]],
    ) -> list[str]:
        """The messages by which the page speaks of what was pressed, and not of what it is about.

        After a press with consequences a heading may do so as well: "Payment declined".
        """
        serious = (act.control.sends and not act.control.searches) or has_consequences(act.control.name)
        owner, said, found = None, list[str](), set[str]()
        known = [line for frame in before for line in frame if not line.startswith("\x00")]
        with suppress(playwright().Error):
            owner = await element.owner_frame()
        for frame in self._page.frames if refusing else ():
            for pressed in (element, None) if frame is owner else (None,):
                with suppress(playwright().Error):
                    read = await frame.evaluate(_SAID, [[*refusing], known, serious, pressed])
                    said += [message for _, message in read if message]
                    found |= {line for (line, *_), (here, _) in zip(refusing, read, strict=True) if here}
                    break
        # What stands nowhere any more, or cannot be found again, was said all the same.
        return said + [line for line, _, told in refusing if line not in found and not told]

    @contextmanager
    def _watch(self) -> Iterator[list[str]]:
        """What a press does outside of the page's content: another window, a download, a request."""
        seen: list[str] = []

        def note(_: object) -> None:
            seen.append("event")

        def note_request(_: object) -> None:
            seen.append("request")

        def note_failure(response: Response) -> None:
            asked = response.request
            if response.status >= 400 and (asked.method != "GET" or asked.is_navigation_request()):
                seen.append(f"HTTP {response.status}")

        heard = (("popup", note), ("download", note), ("request", note_request), ("response", note_failure))
        for name, listener in heard:
            self._page.on(name, listener)  # type: ignore[call-overload]
        try:
            yield seen
        finally:
            for name, listener in heard:
                self._page.remove_listener(name, listener)

    async def _read(self, *, menus: bool = True) -> list[list[str]]:
        """What a person would see of the page: none where it is on its way to another one.

        Without ``menus`` it is what stands behind them: that a menu closes is no sign of what its item did.
        """
        read = []
        for frame in self._page.frames:
            with suppress(playwright().Error):
                read.append(await frame.evaluate(_SHOWN, menus))
        return read


def _lasting_key(control: Control) -> tuple[object, ...]:
    """What a control is known by when its page was drawn anew: all but the numbers around it."""
    places = [[text for text in texts if not re.search(r"\d", text)] for texts in (control.row, *control.places)]
    return control.role, control.name, places


def _find_month(text: str) -> tuple[int, int] | None:
    """The year and the month that a text names, where it names one of each."""
    said = re.findall(r"\d+|[^\W\d_]+", fold(text))
    months = {MONTHS[word] for word in said if word in MONTHS}
    years = {int(word) for word in said if len(word) == 4 and word.startswith(("19", "20"))}
    return (years.pop(), months.pop()) if len(months) == len(years) == 1 else None


def _shows_day(text: str, day: date) -> bool:
    """Whether a text names that day, in whatever order."""
    said = [word.lstrip("0") for word in re.findall(r"\d+|[^\W\d_]+", fold(text))]
    month = _find_month(f"{text} {day.year}") if str(day.year) not in said else _find_month(text)
    return str(day.day) in said and (month == (day.year, day.month) or str(day.month) in said)


def _letters(text: str) -> str:
    """A text as it is compared with what a field makes of it: a mask may add marks and blanks."""
    return "".join(re.findall(r"\w", text)).casefold() or text.strip()


def _is_serious(pressed: Mapping[str, Any]) -> bool:
    """Whether what a button says, or how its form is sent, has consequences."""
    asks = pressed["method"] == "get"
    if pressed["method"] != "post" and _words(pressed["words"])[:1] == _words(pressed["words"]) == ["apply"]:
        return len(pressed["fields"]) != 1  # a code or a filter, and not oneself for a job
    return pressed["method"] == "post" or has_consequences(pressed["words"], link=pressed["link"], asks=asks)


def _tell(act: Act, fields: Sequence[str], marked: Sequence[Control] = ()) -> str:
    """What is about to be done, for the one who says yes: what, whose, and with what, the empty fields included.

    A toolbar acts on the rows that are ``marked``.
    """
    rows = [act.control.row] if act.control.row else [one.row for one in marked if act.control.toolbar]
    whose = "; ".join(", ".join(row)[:160] for row in dict.fromkeys(tuple(row) for row in rows if row))
    told = f"{describe(act)} of “{whose}”" if whose else describe(act)
    return f"{told} ({', '.join(fields)})" if fields else told


def _new_lines(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> list[str]:
    """What can be read now and could not before."""
    known = {line for frame in before for line in frame}
    return [line for frame in after for line in frame if line not in known and not line.startswith("\x00")]


def _find_refusal(act: Act, events: Sequence[str], said: Sequence[str]) -> Doubt | None:
    """The words by which the page or the site turned a press down. What a link or a menu shows may say anything.

    ``said`` are messages that turn something down.
    """
    failed = next((event for event in events if event.startswith("HTTP ")), None)
    if act.kind != "open" and not act.control.opens:
        failed = next(iter(said), None) or failed
    return None if failed is None else Doubt("refused", failed)


def _find_refusing(line: str, pressed: str) -> list[str]:
    """The words that turn something down. "Rejected" does not where "Reject" was pressed: that is what was asked."""
    asked = [word for word in re.findall(r"\w+", fold(pressed)) if len(word) > 3]
    found = [match[0] for match in _REFUSED.finditer(line)] if len(line) < _LONGEST_MESSAGE else []
    return [said for said in found if " " in said or not any(fold(said).startswith(word[:-1]) for word in asked)]


_LONGEST_MESSAGE = 200
_PENDING = re.compile(
    r"^(?:sending|saving|loading|processing|please wait|working|deleting|uploading|enviando|guardando|cargando"
    r"|procesando|espera|un momento|borrando|eliminando)\b.{0,40}$",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|could ?n[o']t|can ?not|can't|unable|not (?:valid|allowed|available|possible|permitted)"
    r"|invalid|required|reject(?:ed)?|denied|declined|incorrect|wrong|missing|must|insufficient|expired|went wrong"
    r"|(?:choose|enter|select|fill|attach|write|provide|pick|add|type|log in|sign in)\b.*\bfirst"
    r"|please (?:choose|enter|select|fill|attach|write|provide|pick|add|type|log|sign|try|correct|check)"
    r"|too (?:short|long|many|few|large|small)|sold out|out of stock|already (?:taken|exists|in use)|try again"
    r"|no se (?:pudo|puede|ha podido|han podido)|no (?:es|son) v[aá]lid[oa]s?|no v[aá]lid[oa]s?|inv[aá]lid[oa]s?"
    r"|incorrect[oa]s?|obligatori[oa]s?|requerid[oa]s?|rechazad[oa]s?|denegad[oa]s?|insuficientes?|falta[n]?|debes?"
    r"|caducad[oa]s?|agotad[oa]s?|ya existe|no (?:est[aá]|hay) (?:disponible|saldo|existencias)|int[eé]ntalo de nuevo"
    r"|(?:elige|escribe|selecciona|introduce|rellena|adjunta|indica|completa)\b.*\b(?:primero|antes|por favor)"
    r"|por favor,? (?:elige|escribe|selecciona|introduce|rellena|adjunta|indica|completa|revisa))\b",
    re.IGNORECASE,
)
_INSTRUCTS = re.compile(
    r"\W*(?:please )?(?:choose|select|pick|enter|fill|type|write|add|complete|tick|check|provide|elige|elija"
    r"|selecciona|escoge|introduce|escribe|rellena|indica|a[nñ]ade|completa|marca|revisa|adjunta)\b",
    re.IGNORECASE,
)
"""How a page says what it misses; a heading or a hint begins like this as well."""
_EMPTY = re.compile(r"\b(?:is|are|est[a\u00e1]n?)\s+(?:\w+\s+)?(?:empty|vac[i\u00ed][oa]s?)\b", re.IGNORECASE)
_REMOVES = frozenset(("delete", "cancel", "discard"))
"""After these nothing may be left: "Your basket is empty" turns an order down, and not them."""
_YES = frozenset(
    "yes ok okay confirm continue proceed sure agree accept si vale aceptar confirmar continuar seguro adelante".split()
)
_NO = frozenset(
    "no not cancel back keep close dismiss never abort stay undo cancelar volver cerrar atras conservar mantener"
    " deshacer".split()
)
_CLOSES = frozenset("close dismiss keep stay cerrar".split())
"""Words that also put away what only tells something: "Keep looking" after "In your bag"."""


_SURE = re.compile(
    r"\b(?:(?:are|is) you sure|sure|really|undone|irreversible|permanent(?:ly)?|to confirm|confirm that"
    r"|segur[oa]s?|deshacer|irreversible|permanente(?:mente)?|para confirmar)\b",
    re.IGNORECASE,
)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", fold(text))


def _backs(control: Control) -> bool:
    """Whether a button only goes back: "Cancel", "Volver"."""
    return _words(control.name)[:1] in (["cancel"], ["cancelar"], ["back"], ["volver"], ["close"], ["cerrar"])


def _strip_yes(name: str) -> str:
    return " ".join(word for word in _words(name) if word not in _YES)


def _affirms(name: str, pressed: str) -> bool:
    """Whether a button of a dialog says yes to what another one was pressed for: by its word, or by "yes"."""
    said, asked = re.findall(r"\w+", fold(name)), re.findall(r"\w+", fold(pressed))
    if said and said[0] in _YES:
        return not (_NO - {*asked}) & {*said}  # "yes, cancel" where something is cancelled
    if len(said) > 1 and {*said} == {*asked}:
        return True
    return bool(said) and not _NO & {*said} and (said[0] in asked or (len(asked) > 1 and {*asked} <= {*said}))


def _declines(name: str, pressed: str) -> bool:
    """Whether a button of a dialog says no: "Cancel", "Not now", "Conservarla"."""
    asked = re.findall(r"\w+", fold(pressed))
    return any(
        word in _NO or any(len(no) > 5 and word.startswith(no) for no in _NO)
        for word in re.findall(r"\w+", fold(name))
        if word not in asked
    )


_QUIET = """
([quiet, most]) => new Promise(done => {
  let timer = setTimeout(done, quiet);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, quiet); });
  const end = () => { watcher.disconnect(); done(); };
  setTimeout(end, most);
  watcher.observe(document, {subtree: true, childList: true, attributes: true});
})
"""
_LOADING = r"""
() => {
  const busy = document.querySelector("[aria-busy=true],[role=progressbar],progress");
  if (document.readyState === "loading" || busy) return true;
  const text = document.body?.innerText ?? "";
  return /(?:^|\n)\s*(?:loading|please wait|cargando|un momento)\b.{0,20}$/im.test(text)
    || !document.querySelector("a,button,input,select,textarea,summary,[role],iframe,[contenteditable]");
}
"""
# A point of an element at which it, or a part of it, would be pressed.
_FREE_SPOT = """
node => {
  const box = node.getBoundingClientRect(), parts = [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98];
  for (const down of parts) for (const along of parts) {
    const at = node.getRootNode().elementFromPoint(box.left + box.width * along, box.top + box.height * down);
    if (at && node.contains(at)) return {x: box.width * along, y: box.height * down};
  }
  return null;
}
"""
_ACCEPTS = """
(node, [name, kind]) => {
  const wanted = (node.accept || "").toLowerCase().split(",").map(one => one.trim()).filter(Boolean);
  return !wanted.length || wanted.some(one => one.startsWith(".") ? name.toLowerCase().endsWith(one)
    : one.endsWith("/*") ? kind.startsWith(one.slice(0, -1)) : one === kind);
}
"""
_TAKES = """
(node, text) => {
  if (!("validity" in node) || node.willValidate === false) return true;
  if (node.maxLength >= 0 && text.length > node.maxLength) return false;
  const copy = node.cloneNode();
  copy.value = text;
  if (node.type === "range") return Number(copy.value) === Number(text);  // which has no wrong value, only the nearest
  return copy.value !== "" && copy.validity.valid;
}
"""
_SHOWN = r"""
menus => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const stateful = "input,select,textarea,details,[aria-expanded],[aria-pressed],[aria-selected],[aria-checked],"
    + "[aria-current],[aria-valuenow]";
  const counts = node => menus || !node.closest("[role=menu]");
  const holders = roots.flatMap(root => [...root.querySelectorAll(stateful)]).filter(counts);
  const states = holders.map(node => [node.value, node.checked, node.open, menus && node.ariaExpanded, node.ariaPressed,
    node.ariaSelected, node.ariaChecked, node.ariaCurrent, node.ariaValueNow].join());
  const shadows = roots.slice(1).flatMap(root => [...root.children]).map(node => node.innerText ?? "");
  const items = menus ? [] : roots.flatMap(root => [...root.querySelectorAll("[role=menu]")])
    .filter(node => node.checkVisibility()).flatMap(node => node.innerText.split("\n"));
  // A clock on the page is no sign of anything.
  const lines = [document.body?.innerText ?? "", ...shadows].join("\n").replace(/\b\d{1,2}:\d{2}(?::\d{2})?\b/g, "")
    .split("\n").map(line => line.replace(/\s+/g, " ").trim()).filter(Boolean);
  for (const item of items.map(line => line.replace(/\s+/g, " ").trim()))
    if (lines.includes(item)) lines.splice(lines.lastIndexOf(item), 1);
  return [...lines, "\0" + [location.href, document.title, scrollY, performance.timeOrigin, ...states].join("\n")];
}
"""
# The lines that are a message. What is an entry of the page (a row, an item, a card, a link, an option, a heading) may
# have any name, unless it stands in an alert or in a list of errors, or beside the very button that was pressed.
_SAID = r"""
([refusing, known, serious, pressed]) => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const plain = text => String(text ?? "").replace(/\b\d{1,2}:\d{2}(?::\d{2})?\b/g, "").replace(/\s+/g, "")
    .toLowerCase();
  const has = (node, text) => plain(node.innerText).includes(text);
  const holders = (node, text) => {
    const found = [...node.querySelectorAll(":scope > *")].filter(one => has(one, text) && one.checkVisibility?.());
    return found.length ? found.flatMap(one => holders(one, text)) : [node];
  };
  const old = node => known.some(line => plain(line).includes(plain(node.innerText)));
  const up = node => node.parentElement ?? node.getRootNode().host ?? null;
  const words = node => [node.getAttribute("class"), node.id].join(" ").replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase().split(/[^a-z]+/);
  const marks = new Set(["error", "errors", "errorlist", "invalid", "alert", "alerts", "toast", "toasts", "snackbar",
    "flash", "validation", "feedback"]);
  const live = "[role=alert],[role=status],[role=alertdialog],[aria-live=polite],[aria-live=assertive],output";
  const cells = "tr,td,th,[role=row],[role=cell],[role=gridcell],[role=columnheader]";
  const entries = "li,dt,dd,article,[role=listitem],[role=article],[role=treeitem],[draggable=true]";
  const names = "a[href],[role=link],option,[role=option],[role=menuitem],[role=tab],[role=radio],[role=checkbox],nav";
  const headings = "h1,h2,h3,h4,h5,h6,[role=heading]";
  const headed = node => Boolean(node.querySelector(`:scope > :is(${headings})`));
  const alike = node => [...(node.parentElement?.querySelectorAll(":scope > *") ?? [])].filter(one => one !== node
    && node.className
    && one.className === node.className);
  const called = node => words(node).some(word => ["card", "tile", "item"].includes(word));
  const isCard = node => /^(DIV|SECTION)$/.test(node.tagName) && alike(node).length > 0
    && ((headed(node) && alike(node).some(headed)) || called(node));
  // A row of a form that is laid out as a table or a list: a field with its label.
  const typed = "input:not([type=checkbox],[type=radio],[type=submit],[type=button],[type=hidden]),select,textarea";
  const asks = node => Boolean(node.closest("form") && node.querySelector("label") && node.querySelector(typed));
  const isMessage = node => {
    for (let at = node; at && at !== document.body; at = up(at)) {
      // "Marathon (sold out)", beside a box, is what there is to choose from.
      if (at.localName === "label" && ["radio", "checkbox"].includes(at.control?.type)) return inAlert(at);
      if (at.matches(live) || at.matches("form,dialog,[role=dialog],fieldset")) return true;
      if (at.ariaInvalid === "true" || (!at.matches(cells) && words(at).some(word => marks.has(word)))) {
        // The mark of a state in a row says what the row is.
        const cell = at.closest("td,th,[role=cell],[role=gridcell]");
        return !cell || Boolean(pressed && cell.contains(pressed)) || asks(cell.closest("tr,[role=row]") ?? cell);
      }
      if (at.matches(names)) return inAlert(at);
      if (at.matches(headings) && !serious) return inAlert(at);
      if (at.matches(cells) || at.matches(entries) || isCard(at)) {
        const beside = pressed && at !== node && at.contains(pressed) && !node.closest(headings) && !old(node);
        return Boolean(beside) || asks(at.closest("tr,[role=row]") ?? at) || inAlert(at);
      }
    }
    return true;
  };
  const inAlert = node => {
    for (let at = up(node); at && at !== document.body; at = up(at))
      if (at.matches("[role=alert],[role=alertdialog]") || words(at).some(word => marks.has(word))) return true;
    return false;
  };
  const tops = [document.body, ...roots.slice(1).flatMap(root => [...root.children])].filter(node => node?.innerText);
  // What only tells what to do turns something down where it is said as an answer.
  const isAnswer = node => inAlert(node) || node.closest("[role=alert],.error") || (serious && node.closest(live));
  return refusing.map(([line, word, told]) => {
    const found = tops.filter(node => has(node, plain(line))).flatMap(node => holders(node, plain(line)));
    const message = found.flatMap(node => holders(node, plain(word))).find(told ? isAnswer : isMessage);
    const text = message?.innerText.replace(/\s+/g, " ").trim();
    return [found.length > 0, !message ? "" : text && text.length < line.length ? text : line];
  });
}
"""
# What asks back: the dialog on top, or buttons that were not there before; without ``known`` the names of all buttons.
_ASKING = r"""
known => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const shown = node => node.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && node.getBoundingClientRect().width >= 1;
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim();
  const all = selector => roots.flatMap(root => [...root.querySelectorAll(selector)]).filter(shown);
  const nameOf = node => squeeze(node.ariaLabel || node.innerText || node.value);
  const pressed = "button,[role=button],input[type=submit],input[type=button],a[href]";
  const left = known ? [...known] : [], usable = all(pressed).filter(node => !node.disabled);
  if (!known) return usable.map(nameOf);
  const fresh = usable.filter(node => {
    const at = left.indexOf(nameOf(node));
    if (at >= 0) left.splice(at, 1);
    return at < 0;
  });
  const dialog = all("dialog[open],[role=dialog],[role=alertdialog],[popover]:popover-open").pop();
  let holder = dialog, buttons = usable.filter(node => dialog?.contains(node));
  if (!dialog || !buttons.some(node => fresh.includes(node))) {
    if (fresh.length < 2 || fresh.length > 4) return null;
    [holder, buttons] = [fresh[0], fresh];
    while (holder && !fresh.every(node => holder.contains(node))) holder = holder.parentElement;
    if (!holder) return null;
  }
  const fields = [...holder.querySelectorAll("input,textarea,select")].filter(node => shown(node)
    && !["submit", "button", "hidden"].includes(node.type));
  const open = fields.some(node => !["checkbox", "radio"].includes(node.type) && !node.value);
  const texts = [], walker = document.createTreeWalker(holder, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (shown(parent) && !buttons.some(node => node.contains(parent))) texts.push(squeeze(walker.currentNode.data));
  }
  const text = squeeze(texts.join(" ")).slice(0, 300) || squeeze(holder.ariaLabel);
  return {text: text || buttons.map(nameOf).join(", "), names: buttons.map(nameOf), open, fields: fields.length,
    inline: holder !== dialog, buttons};
}
"""
# The calendar that is open: what it says of its month, its days by their numbers, and the ways to other months.
_CALENDAR = r"""
() => {
  const roots = [document];
  for (const one of roots) for (const {shadowRoot} of one.querySelectorAll("*")) if (shadowRoot) roots.push(shadowRoot);
  const shown = node => node.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && node.getBoundingClientRect().width >= 1;
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim();
  const number = node => Number(/^\d{1,2}$/.test(squeeze(node.textContent)) ? squeeze(node.textContent) : NaN);
  const other = node => /\b(outside|other|prev|next|adjacent|off)\b/.test(
    [node, node.parentElement].map(one => one.className).join(" ").replace(/[-_]+/g, " ").toLowerCase());
  const disabled = node => node.ariaDisabled === "true" || node.disabled || node.closest("[aria-disabled=true]")
    || /\b(disabled|muted)\b/.test(node.className);
  const usable = "button,[role=button],[role=gridcell],[role=option],td,a";
  const all = roots.flatMap(root => [...root.querySelectorAll(usable)]).filter(node => shown(node) && !other(node)
    && number(node) >= 1 && number(node) <= 31 && ![...node.querySelectorAll(usable)].length);
  for (const first of all.filter(node => number(node) === 1)) {
    for (let at = first.parentElement, level = 0; at && level < 8; at = at.parentElement, level++) {
      const days = {}, inside = all.filter(node => at.contains(node));
      if (inside.length < 28) continue;
      for (const node of inside) days[number(node)] = number(node) in days || disabled(node) ? null : node;
      const texts = [], walker = document.createTreeWalker(at, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const holder = walker.currentNode.parentElement;
        if (!inside.some(node => node.contains(holder)) && shown(holder)) texts.push(squeeze(walker.currentNode.data));
      }
      const heading = texts.join(" "), buttons = [...at.querySelectorAll("button,[role=button],a")]
        .filter(node => shown(node) && !inside.includes(node) && Number.isNaN(number(node)));
      const called = node => squeeze(node.ariaLabel || node.title || node.textContent);
      const named = words => buttons.filter(node => words.test(called(node)));
      const one = found => found.length === 1 ? found[0] : found.find(node => /month|mes/i.test(node.ariaLabel ?? ""));
      const next = one(named(/\bnext|siguiente|^[>\u203a\u2192\u276f\u25b6]$/i));
      const previous = one(named(/\bprev|anterior|^[<\u2039\u2190\u276e\u25c0]$/i));
      if (next && previous) return {heading, days, next, previous};
    }
  }
  return null;
}
"""
_LISTS = "() => [...document.querySelectorAll('[role=listbox]')].filter(one => one.checkVisibility())"
_SUGGESTIONS = r"""
(node, [anywhere, known]) => {
  const root = node.getRootNode(), shown = one => one.checkVisibility() && one.getBoundingClientRect().width >= 1;
  const ids = ["aria-controls", "aria-owns"].flatMap(name => (node.getAttribute(name) ?? "").split(" "));
  const owned = ids.map(id => id && root.getElementById?.(id)).filter(Boolean);
  let lists = [...owned, ...(node.parentElement?.querySelectorAll("[role=listbox]") ?? [])];
  // A list that is drawn elsewhere, and that nobody else owns.
  const free = one => !one.id || ![...root.querySelectorAll(`[aria-controls~="${CSS.escape(one.id)}"]`)].some(
    other => other !== node);
  if (!lists.some(shown) && anywhere) lists = [...document.querySelectorAll("[role=listbox]")]
    .filter(one => free(one) && !known?.includes(one));
  if (!lists.length && !anywhere && !["list", "both"].includes(node.getAttribute("aria-autocomplete"))) return null;
  const found = lists.flatMap(list => [...list.querySelectorAll("[role=option]")]);
  return [...new Set(found)].filter(one => shown(one) && one.ariaDisabled !== "true");
}
"""
# How often a text stands beside a field, as what was chosen in it, and not among its suggestions.
_CHIPS = r"""
(node, name) => {
  const plain = text => String(text ?? "").replace(/\s+/g, " ").trim().toLowerCase();
  let box = node.parentElement ?? node;
  for (let level = 0; level < 2 && box.parentElement && !box.matches("form,fieldset,section,main,body"); level++) {
    if (box.querySelectorAll("input,select,textarea").length > 1) break;
    if (box.parentElement.querySelectorAll("input:not([type=hidden]),select,textarea").length > 1) break;
    box = box.parentElement;
  }
  return [...box.querySelectorAll("*")].filter(one => !one.closest("[role=listbox],datalist,label") && one !== node
    && one.checkVisibility()
    && [...one.childNodes].some(text => text.nodeType === 3 && plain(text.data) === plain(name))
  ).length;
}
"""
_TELLS = r"""
(node, name) => {
  const plain = text => String(text ?? "").replace(/\s+/g, " ").trim().toLowerCase();
  return [node.value, node.innerText].some(text => plain(text).includes(plain(name)));
}
"""
_CHOSEN = r"""
(node, name) => {
  const plain = text => String(text ?? "").replace(/\s+/g, " ").trim().toLowerCase();
  if ([node.ariaSelected, node.ariaChecked].includes("true")) return true;
  const list = node.closest("[role=listbox]"), root = (list ?? document).getRootNode();
  const id = CSS.escape(list?.id ?? "");
  const owner = (id && root.querySelector(`[aria-controls~="${id}"],[aria-owns~="${id}"]`))
    || [...(list?.parentElement?.querySelectorAll(":scope > :is([aria-haspopup],[role=combobox])") ?? [])].filter(one =>
      !one.hasAttribute("aria-controls") && one.compareDocumentPosition(list) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
  const shown = owner ? [owner.value, owner.innerText] : [...root.querySelectorAll("[aria-haspopup],[role=combobox],"
    + "[role=option][aria-selected=true]")].flatMap(one => [one.value, one.innerText]);
  return shown.some(text => plain(text).includes(plain(name)));
}
"""
_PRESSED = r"""
(element, planned) => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const control = element.closest("button,input,a,summary,[role=button],[role=link],[role=menuitem]") ?? element;
  const form = control.form ?? control.closest("form");
  const writes = control.localName === "input" && !["button", "submit", "image", "reset"].includes(control.type);
  const sends = Boolean(form) && (writes || ["submit", "image"].includes(control.type));
  // A form that says neither how nor where it is sent is sent by a script, which may do anything.
  const asks = sends && (form.hasAttribute("action") || form.getAttribute("role") === "search") ? "get" : "";
  const method = sends ? control.getAttribute("formmethod") || form.getAttribute("method") || asks : "";
  const caption = ["submit", "button", "image", "reset"].includes(control.type) ? control.value : "";
  const nameOf = field => squeeze(field.labels?.[0]?.innerText || field.getAttribute("aria-label") || field.placeholder
    || field.name);
  const describe = field => {
    const name = nameOf(field), box = ["checkbox", "radio"].includes(field.type);
    if (!name || (box && !(planned[name] ?? field.checked)) || !(field.checkVisibility?.() ?? true)) return "";
    const value = planned[name] ?? (field.localName === "select" ? field.selectedOptions[0]?.text : field.value);
    const needed = field.required || field.ariaRequired === "true" ? "empty, and needed" : "empty";
    return `${name}: ${box ? "yes" : !value ? needed : field.type === "password" ? "***" : squeeze(value)}`;
  };
  // Without a form, what is asked in the same dialog or section goes with the button.
  const around = sends ? form : form || control.closest("tr,li") ? null
    : control.closest("dialog,[role=dialog],[role=form],fieldset,section,[role=region]");
  const asked = sends ? [...form.elements] : [...(around?.querySelectorAll("input,select,textarea") ?? [])];
  const fields = around ? asked.filter(field => /^(input|select|textarea)$/.test(field.localName)
    && !["hidden", "submit", "button", "image", "reset"].includes(field.type)).map(describe).filter(Boolean) : [];
  const wrong = sends && !form.noValidate && !control.formNoValidate
    ? [...form.elements].find(field => field.willValidate && !field.validity.valid) : null;
  const marked = ["aria-label", "title", "alt"].map(name => control.getAttribute(name) ?? "");
  const words = writes ? "" : [control.innerText, caption, ...marked].map(squeeze).join(" ");
  return {words, method: method.toLowerCase(), link: control.localName === "a", fields: fields.slice(0, 20),
    invalid: wrong ? nameOf(wrong) || wrong.validationMessage : ""};
}
"""


# What is asked

_REASONS: dict[Language, dict[Why, str]] = {
    "en": {
        "absent": "nothing suitable here is called “{}”",
        "several": "several things here match “{}”; say which one, such as the second, or in which row or list",
        "words": "“{}” does not say what to do with which part of the page",
        "disabled": "“{}” cannot be used now",
        "empty": "“{}” is needed and has no valid value",
        "value": "“{}” is not a valid value there",
        "file": "the upload folder has no file “{}”",
        "unshown": "sent, but the page does not show the result ({})",
        "refused": "the page answers “{}”",
        "asks": "the page asks first: “{}”",
    },
    "es": {
        "absent": "aquí no hay nada adecuado que se llame “{}”",
        "several": "aquí coinciden varias cosas con “{}”; diga cuál, por ejemplo la segunda, o en qué fila o lista",
        "words": "“{}” no dice qué hacer con qué parte de la página",
        "disabled": "“{}” no se puede usar ahora",
        "empty": "“{}” es necesario y no tiene un valor válido",
        "value": "“{}” no es un valor que sirva ahí",
        "file": "la carpeta de subidas no contiene el archivo “{}”",
        "unshown": "enviado, pero la página no muestra el resultado ({})",
        "refused": "la página contesta “{}”",
        "asks": "la página pregunta antes: “{}”",
    },
}


def _stop(
    operator: _Operator, clauses: Sequence[Clause], plans: Sequence[Plan], number: int, language: Language
) -> Driven:
    """The result with a question that tells what was understood and what was not."""
    doubt, spanish = plans[number], language == "es"
    assert isinstance(doubt, Doubt)
    acts = [describe(act, language) for one in plans if isinstance(one, list) for act in one]
    lines = [] if operator.done else ["No se ha hecho nada." if spanish else "Nothing was done."]
    if acts:
        lines.append(f"{'Entendido' if spanish else 'Understood'}: {'; '.join(acts)}.")
    reason = _REASONS[language][doubt.why].format(doubt.about)
    if doubt.why in ("unshown", "refused", "asks"):
        missed = "No confirmado" if spanish else "Not confirmed"
    else:
        missed = "No entendido" if spanish else "Not understood"
    lines.append(f"{missed}: “{clauses[number].text}”: {reason}.")
    if doubt.why == "unshown" and operator.seen:
        lines.append(f"{'Se ve' if spanish else 'Seen'}: {'; '.join(operator.seen[:3])}.")
    if doubt.near:
        lines.append(f"{'Hay' if spanish else 'There is'}: {', '.join(f'“{name}”' for name in doubt.near)}.")
    left = [clauses[number].text, *(clause.text for clause in clauses if clause is not clauses[number])]
    # Words to look for that could mean more are asked about, not looked for elsewhere.
    named_nothing = clauses[0].verb == "" or (clauses[0].verb == "search" and doubt.why == "absent")
    offers = not operator.done and len(clauses) == 1 and named_nothing
    return Driven(operator.done, left, " ".join(lines), offers, operator.seen)
