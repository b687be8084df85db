"""Carrying out a sentence on a page: plan all of it, find all of it, do it clause by clause, and look whether it shows.

A sentence is done whole or not begun. Only what a link, a tab or a menu opens is looked for after that was pressed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent3.protocols.nlweb.driver import patience
from agent3.protocols.nlweb.driver.evidence import leads_on
from agent3.protocols.nlweb.driver.fields import Confirm
from agent3.protocols.nlweb.driver.page_plans import Doubt, Plan, plan, plan_all
from agent3.protocols.nlweb.driver.page_view import Control, PageView, look
from agent3.protocols.nlweb.driver.pressing import Operator, affirms
from agent3.protocols.nlweb.driver.questions import explain
from agent3.protocols.nlweb.driver.sentences import Clause, is_hedged, parse_sentence, quote_names
from agent3.protocols.nlweb.driver.wishes import fill_opened, is_beginning, split_wish, wish
from agent3.sentences import find_prohibition
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import Language, detect_language, fold
from agent3.sentences.questions import refuse
from agent3.sentences.tokens import LONGEST

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Confirm", "Driven", "drive"]


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
    until = asyncio.get_running_loop().time() + patience.YOUNG_SECONDS
    while True:
        operator, view = Operator(page, confirm, uploads, tell), await look(page)
        driven = await _drive_from(operator, view, page, sentence, unblock)
        # What was not found may be on its way, where the page has only just been opened.
        if operator.used or driven.complete or not await operator.grows(view, until):
            return driven


async def _drive_from(
    operator: Operator,
    view: PageView,
    page: Page,
    sentence: str,
    unblock: Callable[[], Awaitable[object]] | None,
) -> Driven:
    language = detect_language(sentence)
    if is_hedged(sentence):
        return Driven([], [sentence], refuse("hypothetical", language))
    names = [text for one in view.controls for text in (one.name, one.name.strip(" *:"), *one.row)]
    sentence = await asyncio.to_thread(quote_names, sentence, dict.fromkeys(names))  # a page may have thousands
    if (here := _HERE.search(sentence)) is not None:
        operator.here, sentence = True, sentence[: here.start()] + sentence[here.end() :]
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


_HERE = re.compile(r"\s+(?:(?:on|of|from) this page|(?:en|de) esta p[aá]gina)(?=[\s.,]*$)", re.IGNORECASE)
"""Says that rows on other pages of a list are not meant."""


async def _drive(
    operator: Operator,
    page: Page,
    clauses: Sequence[Clause],
    language: Language,
    unblock: Callable[[], Awaitable[object]] | None,
) -> Driven:
    unshown: list[tuple[Clause, Doubt]] = []
    last: Clause | None = None
    deadline = asyncio.get_running_loop().time() + patience.LOADING_SECONDS
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
            ) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(patience.POLL_SECONDS)
                continue
            if doubtful == 0 and await operator.open_menu(view, clauses[0]):
                continue
            only = doubtful == 0 and not any(isinstance(one, Doubt) for one in plans[1:])
            if only and await operator.begin(view, clauses[0]):
                deadline = asyncio.get_running_loop().time() + patience.SUGGESTED_SECONDS
                continue
            await operator.leave()
            await operator.close_menu()
            return _stop(operator, clauses, plans, doubtful, language)
        if not operator.done and not operator.begun:
            turned = await operator.check_only_ones(view, plans, clauses)
            if turned:
                continue  # the page was drawn anew
            for number, one in enumerate(plans):
                if isinstance(one, Doubt) and one.why == "namesake":
                    return _stop(operator, clauses, plans, number, language)
        acts, last = plans[0], clauses[0]
        assert isinstance(acts, list)
        if doubtful is not None:
            operator.tell_first(acts, clauses[doubtful])
        if not operator.done:
            await operator.foretell(view, plans)
        doubt = await operator.perform(view, acts, clauses)
        if doubt is not None and doubt.why in ("unshown", "says") and _may_go_on(plans[1:]):
            unshown.append((clauses[0], doubt))
        elif doubt is not None:
            return _stop(operator, clauses, [doubt, *plans[1:]], 0, language)
        clauses = clauses[1:]
        operator.begun = None
        operator.forget_menu()
        deadline = asyncio.get_running_loop().time() + patience.SUGGESTED_SECONDS
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
    if pressed and clauses[doubtful].verb == "press" and affirms(answer, pressed[-1].name):
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
            any(len(word) > 3 and word in name for name in marked for word in re.findall(r"\w+", fold(one)))
            for one in unseen
        ):
            return True
    rows = any(act.kind == "check" and act.control.row for act in before)
    if rows and isinstance(hidden, list) and all(act.control.toolbar and not act.control.row for act in hidden):
        return True  # what acts on the rows that are marked shows once one is
    if not pressed or any(has_consequences(one.name, link=one.role == "link", asks=True) for one in pressed):
        return False
    if _begins(view, pressed[-1], following=clauses[doubtful]):
        return True
    if any(one.opens or leads_on(one) or (one.searches or (one.frame, one.form) in searched) for one in pressed):
        return all(not one.sends or one.searches or leads_on(one) for one in pressed)
    return isinstance(hidden, list)


def _begins(view: PageView, control: Control, *, following: Clause) -> bool:
    """Whether a button says that it begins something, for which it has no field yet, and the next part fills one in."""
    if control.role != "button" or control.sends or control.disabled or not is_beginning(control):
        return False
    near = [one for one in view.visible if one.is_free and one.boxes and one.boxes[:1] == control.boxes[:1]]
    return not near and following.verb in ("write", "choose", "add")


def _stop(
    operator: Operator, clauses: Sequence[Clause], plans: Sequence[Plan], number: int, language: Language
) -> Driven:
    """The result with a question that tells what was understood and what was not."""
    doubt = plans[number]
    assert isinstance(doubt, Doubt)
    told = explain(plans, doubt, clauses[number], language, done=bool(operator.done), seen=operator.seen)
    left = [clauses[number].text, *(clause.text for clause in clauses if clause is not clauses[number])]
    # Words to look for that could mean more are asked about, not looked for elsewhere.
    named_nothing = clauses[0].verb == "" or (clauses[0].verb == "search" and doubt.why == "absent")
    offers = not operator.done and len(clauses) == 1 and named_nothing
    return Driven(operator.done, left, told, offers, operator.seen)
