"""Carrying out a sentence on a page: plan all of it, find all of it, do it clause by clause, and look whether it shows.

A sentence is done whole or not begun. Only what a link, a tab or a menu opens is looked for after that was pressed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, Why, describe, plan, plan_all
from agent3.protocols.nlweb.driver.page_view import Control, PageView, look
from agent3.protocols.nlweb.driver.sentences import Clause, parse_sentence
from agent3.protocols.nlweb.driver.wishes import split_wish, wish
from agent3.sentences import find_prohibition
from agent3.sentences.lexicon import Language, detect_language, has_consequences
from agent3.sentences.questions import refuse

if TYPE_CHECKING:
    from playwright.async_api import Dialog, ElementHandle, Page

__all__ = ["Confirm", "Driven", "drive"]

Confirm = Callable[[str], None]
"""Is told, in words, of a press that has consequences before it is done, and may raise."""
_ACT_MS = 5_000.0
"""How long an element may keep an act waiting, and a page the sign that something was pressed."""
_POLL_SECONDS = 0.05
_UNANSWERED_SECONDS = 1.5
"""How long a press may show nothing, where it asked no server for anything."""
_LOADING_SECONDS = 5.0
"""How long a page that says that it is loading is waited for."""


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of a sentence: what was done and seen, the clauses that were not, and what to ask about them.

    ``offers`` says that it names no control, and may still mean one of the forms of the page.
    """

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    question: str | None = None
    offers: bool = False

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
) -> Driven:
    """Do on the page what the sentence says.

    Nothing is begun for a sentence that forbids something, sets a condition, or has a part that is not understood on
    this page. ``confirm`` is told of each press that has consequences, with what the form holds, and of what the page
    itself asks before it goes on; it may raise. ``unblock`` puts away what stands before the page, such as a banner
    about cookies; what it returns says whether something did. Dialogs of the page are answered here while it runs.
    """
    clauses, language = parse_sentence(sentence), detect_language(sentence)
    if (why := find_prohibition(sentence)) is not None:
        return Driven([], [clause.text for clause in clauses], refuse(why, language))
    operator = _Operator(page, confirm)
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
    patience = asyncio.get_running_loop().time() + _LOADING_SECONDS
    while clauses:
        loading = await operator.is_loading()
        view = await look(page)
        plans = plan_all(view, clauses, operator.used, otherwise=wish)
        for number, clause in enumerate(clauses):
            if isinstance(plans[number], Doubt) and len(parts := split_wish(view, clause, operator.used)) > 1:
                clauses = [*clauses[:number], *parts, *clauses[number + 1 :]]
                plans = plan_all(view, clauses, operator.used, otherwise=wish)
                break
        if not operator.done:
            plans = [await operator.check_values(view, one) for one in plans]
        doubtful = next((number for number, one in enumerate(plans) if isinstance(one, Doubt)), None)
        if doubtful is not None and not _may_show(view, clauses, plans, doubtful):
            if unblock is not None and await unblock():
                unblock = None
                continue
            if loading and asyncio.get_running_loop().time() < patience:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            return _stop(operator, clauses, plans, doubtful, language)
        acts = plans[0]
        assert isinstance(acts, list)
        doubt = await operator.perform(view, acts)
        if doubt is not None and doubt.why == "unshown" and _may_go_on(plans[1:]):
            unshown.append((clauses[0], doubt))
        elif doubt is not None:
            return _stop(operator, clauses, [doubt, *plans[1:]], 0, language)
        clauses = clauses[1:]
    if unshown:
        return _stop(operator, [clause for clause, _ in unshown], [doubt for _, doubt in unshown], 0, language)
    return Driven(operator.done)


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
        return any(act.kind in ("check", "write", "choose") for act in before)
    if doubt.why not in ("absent", "words") or not clauses[doubtful].verb:
        return False
    searched = {(act.control.frame, act.control.form) for act in before if act.control.searches}
    if any(act.kind == "enter" for act in before):
        return clauses[doubtful].verb == "press"
    pressed = [act.control for act in before if act.kind == "press"]
    if not pressed or any(has_consequences(one.name, link=one.role == "link", asks=True) for one in pressed):
        return False
    if any(one.opens or (one.searches or (one.frame, one.form) in searched) for one in pressed):
        return all(not one.sends or one.searches for one in pressed)
    everything = PageView([replace(control, visible=True) for control in view.controls], ())
    return isinstance(plan(everything, clauses[doubtful], ()), list)


class _Operator:
    """The one place that acts on a page for a sentence; every act is bounded in time, and looked at afterwards."""

    def __init__(self, page: Page, confirm: Confirm | None):
        self.done: list[str] = []
        self.used: list[Control] = []
        self._page = page
        self._confirm = confirm
        self._confirmed = False
        self._refusal: Exception | None = None

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
        if dialog.type == "confirm" and self._confirm is not None and not self._confirmed:
            try:
                self._confirm(f"“{dialog.message[:300]}”")
            except Exception as error:  # noqa: BLE001 - raised where the press is, once the page has its answer
                self._refusal, accept = error, False
        with suppress(playwright().Error):
            await (dialog.accept() if accept else dialog.dismiss())

    async def is_loading(self) -> bool:
        """Whether the page says so, or has nothing yet."""
        with suppress(playwright().Error):
            return bool(await self._page.evaluate(_LOADING))
        return True

    async def check_values(self, view: PageView, found: Plan) -> Plan:
        """The plan, or a doubt where a field would not take what is to be written: too large, too long, no address."""
        for act in found if isinstance(found, list) else ():
            if act.kind == "write":
                with suppress(playwright().Error):
                    if not await (await view.element(act.control)).evaluate(_TAKES, act.values[0]):
                        return Doubt("value", act.values[0])
        return found

    async def perform(self, view: PageView, acts: Sequence[Act]) -> Doubt | None:
        """Do all acts of a clause; a doubt where one failed, or does not show."""
        for act in acts:
            self.used.append(act.control)
            try:
                shows = await self._act(act, await self._find_again(view, act.control))
            except playwright().Error:
                if self._page.is_closed():
                    raise
                shows = Doubt("disabled", act.control.name)  # covered, moving, or gone
            if isinstance(shows, Doubt):
                return shows
            if self._refusal is not None:
                raise self._refusal
            self.done.append(describe(act))
            if not shows:
                return Doubt("unshown", act.control.name)
            await self.settle()
        return None

    async def _find_again(self, view: PageView, control: Control) -> ElementHandle:
        """The element that was seen; where the page has drawn itself anew, the only one that is the same in all."""
        element = await view.element(control)
        if await element.evaluate("node => node.isConnected"):
            return element
        anew = await look(self._page)
        same = [
            one for one in anew.controls
            if (one.role, one.name, one.row, one.places) == (control.role, control.name, control.row, control.places)
        ]  # fmt: skip
        return await anew.element(same[0]) if len(same) == 1 else element

    async def settle(self) -> None:
        """Wait until the page has stopped changing."""
        with suppress(playwright().Error):
            await self._page.evaluate(_QUIET, [40, 700])

    async def _act(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Whether the page shows that it was done."""
        match act.kind:
            case "write":
                if act.control.role == "slider" or act.control.kind == "range":
                    await element.fill(act.values[0], timeout=_ACT_MS)
                    return float(await element.input_value()) == float(act.values[0])
                await element.fill(act.values[0], timeout=_ACT_MS)
                shown: str = await element.evaluate("node => node.value ?? node.innerText")
                return _letters(shown) == _letters(act.values[0])
            case "choose":
                return await self._choose(act, element)
            case "check" | "clear":
                return await self._check(act, element)
            case _:
                return await self._press(act, element)

    async def _choose(self, act: Act, element: ElementHandle) -> bool:
        """Options of a list; one that may hold several keeps what was chosen before."""
        read = "node => [...node.selectedOptions].map(one => (one.label || one.text).replace(/\\s+/g, ' ').trim())"
        kept: list[str] = await element.evaluate(read) if act.control.multiple else []
        await element.select_option(label=[*dict.fromkeys((*kept, *act.values))], timeout=_ACT_MS)
        try:
            return {*await element.evaluate(read)} == {*kept, *act.values}
        except playwright().Error:
            return False

    async def _check(self, act: Act, element: ElementHandle) -> bool:
        wanted = act.kind == "check"
        if act.control.checked != wanted:
            # A box that is drawn by its label is hidden itself: the label is what a person presses.
            label = await element.evaluate_handle("node => node.labels?.[0] ?? node")
            target = element if await element.is_visible() else label.as_element()
            await (target or element).click(timeout=_ACT_MS)
        state = "node => node.checked ?? [node.ariaChecked, node.ariaPressed].includes('true')"
        return bool(await element.evaluate(state) is wanted)

    async def _press(self, act: Act, element: ElementHandle) -> bool | Doubt:
        pressed: Any = await element.evaluate(_PRESSED)
        if pressed["invalid"]:
            return Doubt("empty", pressed["invalid"])
        if self._confirm is not None and (
            pressed["method"] == "post"
            or has_consequences(pressed["words"], link=pressed["link"], asks=pressed["method"] == "get")
        ):
            fields = ", ".join(pressed["fields"])
            self._confirm(f"{describe(act)} ({fields})" if fields else describe(act))
            self._confirmed = True
        try:
            return await self._press_and_watch(act, element)
        finally:
            self._confirmed = False

    async def _press_and_watch(self, act: Act, element: ElementHandle) -> bool:
        """Press, and wait for a sign of it: longer where the page has asked a server for something."""
        clock = asyncio.get_running_loop().time
        with self._watch() as events:
            before = await self._read()
            if act.kind == "enter":
                await element.press("Enter", timeout=_ACT_MS)
            else:
                await element.click(timeout=_ACT_MS)
            began = clock()
            while clock() - began < (_ACT_MS / 1000 if "request" in events else _UNANSWERED_SECONDS):
                if "event" in events or self._refusal is not None or await self._read() != before:
                    return True
                await asyncio.sleep(_POLL_SECONDS)
        return False

    @contextmanager
    def _watch(self) -> Iterator[list[str]]:
        """What a press does outside of the page's content: another window, a download, a request."""
        seen: list[str] = []

        def note(_: object) -> None:
            seen.append("event")

        def note_request(_: object) -> None:
            seen.append("request")

        heard = (("popup", note), ("download", note), ("request", note_request))
        for name, listener in heard:
            self._page.on(name, listener)  # type: ignore[call-overload]
        try:
            yield seen
        finally:
            for name, listener in heard:
                self._page.remove_listener(name, listener)

    async def _read(self) -> list[str]:
        """What a person would see of the page: none where it is on its way to another one."""
        read = []
        for frame in self._page.frames:
            with suppress(playwright().Error):
                read.append(await frame.evaluate(_SHOWN))
        return read


def _letters(text: str) -> str:
    """A text as it is compared with what a field makes of it: a mask may add marks and blanks."""
    return "".join(re.findall(r"\w", text)).casefold() or text.strip()


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
() => {
  const states = [...document.querySelectorAll("input,select,textarea,details,[aria-expanded],[aria-pressed],"
    + "[aria-selected],[aria-checked],[aria-current]")].map(node => [node.value, node.checked, node.open,
    node.ariaExpanded, node.ariaPressed, node.ariaSelected, node.ariaChecked, node.ariaCurrent].join());
  const page = [location.href, document.title, document.body?.innerText, scrollY, performance.timeOrigin];
  return [...page, ...states].join("\n");
}
"""
_PRESSED = r"""
element => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const control = element.closest("button,input,a,summary,[role=button],[role=link],[role=menuitem]") ?? element;
  const form = control.form ?? control.closest("form");
  const writes = control.localName === "input" && !["button", "submit", "image", "reset"].includes(control.type);
  const sends = Boolean(form) && (writes || ["submit", "image"].includes(control.type));
  const method = sends ? control.getAttribute("formmethod") || form.getAttribute("method") || "get" : "";
  const caption = ["submit", "button", "image", "reset"].includes(control.type) ? control.value : "";
  const nameOf = field => squeeze(field.labels?.[0]?.innerText || field.getAttribute("aria-label") || field.placeholder
    || field.name);
  const describe = field => {
    const name = nameOf(field), box = ["checkbox", "radio"].includes(field.type);
    if (!name || (box && !field.checked) || !(field.checkVisibility?.() ?? true)) return "";
    const value = field.localName === "select" ? field.selectedOptions[0]?.text : field.value;
    return `${name}: ${box ? "yes" : !value ? "empty" : field.type === "password" ? "***" : squeeze(value)}`;
  };
  const fields = sends ? [...form.elements].filter(field => /^(input|select|textarea)$/.test(field.localName)
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
        "absent": "nothing here that could be meant is called “{}”",
        "several": "more than one thing here fits “{}”; say which one, such as the second, or in which row or list",
        "words": "“{}” does not say what to do with which part of the page",
        "disabled": "“{}” cannot be used now",
        "empty": "“{}” is needed and has no valid value",
        "value": "“{}” is no value that fits there",
        "unshown": "the page does not show that it was done ({})",
    },
    "es": {
        "absent": "aquí nada que pueda ser se llama “{}”",
        "several": "más de una cosa encaja aquí con “{}”; di cuál, por ejemplo la segunda, o en qué fila o lista",
        "words": "“{}” no dice qué hacer con qué parte de la página",
        "disabled": "“{}” no se puede usar ahora",
        "empty": "“{}” es necesario y no tiene un valor válido",
        "value": "“{}” no es un valor que sirva ahí",
        "unshown": "la página no muestra que se haya hecho ({})",
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
    lines.append(f"{'No entendido' if spanish else 'Not understood'}: “{clauses[number].text}”: {reason}.")
    if doubt.near:
        lines.append(f"{'Hay' if spanish else 'There is'}: {', '.join(f'“{name}”' for name in doubt.near)}.")
    left = [clauses[number].text, *(clause.text for clause in clauses if clause is not clauses[number])]
    # Words to look for that could mean more are asked about, not looked for elsewhere.
    named_nothing = clauses[0].verb == "" or (clauses[0].verb == "search" and doubt.why == "absent")
    offers = not operator.done and len(clauses) == 1 and named_nothing
    return Driven(operator.done, left, " ".join(lines), offers)
