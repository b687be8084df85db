"""Filling in what a page asks for: texts, options, boxes, days, numbers, each looked at afterwards."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from agent3.errors import SecurityError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver import patience
from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, describe
from agent3.protocols.nlweb.driver.page_view import Control, PageView, look
from agent3.protocols.nlweb.steps.actions import inside
from agent3.sentences.consequences import GRAVE
from agent3.sentences.lexicon import fold
from agent3.sentences.spans import MONTHS

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, JSHandle, Page

__all__ = ["CHECKED", "CHOSEN", "SELECTED", "TELLS", "TEXT", "Confirm", "Fields", "is_same_amount", "letters", "tell"]

Confirm = Callable[[str], None]
"""Is told, in words, of a press that has consequences before it is done, and may raise."""


class Fields:
    """Acts on the fields of a page, one at a time."""

    def __init__(self, page: Page, confirm: Confirm | None, uploads: Path | None):
        self._page = page
        self._confirm = confirm
        self._uploads = uploads
        self._view = PageView((), ())
        self._menu: tuple[Control, PageView] | None = None

    async def look(self) -> PageView:
        """The page as it is, with what the menu of a row shows in that row."""
        view = await look(self._page)
        return view if self._menu is None else view.adopt(*self._menu)

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
        await element.fill(act.values[0], timeout=patience.ACT_MS)
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
        return letters(shown) == letters(act.values[0]) or is_same_amount(shown, act.values[0])

    async def _edit_cell(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A cell that becomes a field when it is pressed twice."""
        await element.dblclick(timeout=patience.ACT_MS)
        await self.settle()
        field = await element.query_selector("input,textarea,[contenteditable=true]")
        if field is None:
            return Doubt("disabled", act.control.name)
        await field.fill(act.values[0], timeout=patience.ACT_MS)
        await field.press("Enter", timeout=patience.ACT_MS)
        await self.settle()
        element = await self._renew(act.control, element)
        shown: str = await element.evaluate("node => node.querySelector('input,textarea') ? '' : node.innerText")
        return letters(shown) == letters(act.values[0])

    async def _slide(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """A slider that is drawn: by its keys, as long as each brings it nearer."""
        wanted, read = float(act.values[0]), "node => Number(node.ariaValueNow ?? NaN)"
        at = start = float(await element.evaluate(read))
        key = "ArrowRight" if wanted > at else "ArrowLeft"
        for _ in range(patience.MOST_KEYS):
            if at == wanted:
                return True
            await element.press(key, timeout=patience.ACT_MS)
            before, at = at, float(await element.evaluate(read))
            if not abs(wanted - at) < abs(wanted - before):
                break
        back = "ArrowLeft" if key == "ArrowRight" else "ArrowRight"
        for _ in range(patience.MOST_KEYS):
            if at == start or at != at:
                break
            await element.press(back, timeout=patience.ACT_MS)
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
        for _ in range(patience.MOST_KEYS):
            if at == wanted:
                break
            button = await self._find_again(view, buttons[wanted > at])
            if await button.evaluate("node => node.disabled || node.ariaDisabled === 'true'"):
                break
            await button.click(timeout=patience.ACT_MS)
            before, until = at, asyncio.get_running_loop().time() + patience.UNANSWERED_SECONDS
            now: int | None = at
            while now == before and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(patience.POLL_SECONDS)
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
        await element.click(timeout=patience.ACT_MS)
        await self.settle()
        if not await self._page.evaluate(f"Boolean(({_CALENDAR})())"):
            beside = (await element.evaluate_handle(_CALENDAR_BUTTON)).as_element()
            if beside is not None:
                await beside.click(timeout=patience.ACT_MS)
                await self.settle()
        months = set[tuple[int, int]]()
        for _ in range(patience.MOST_KEYS):
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
            await target.click(timeout=patience.ACT_MS)
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
            await element.fill(act.control.value, timeout=patience.ACT_MS)
            return found
        await found.click(timeout=patience.ACT_MS)
        return None

    async def _find_option(
        self, element: ElementHandle, name: str, *, anywhere: bool, known: JSHandle | None = None
    ) -> ElementHandle | Doubt | None:
        """The one option of that very name, as soon as it is there; None where the element has no list."""
        clock = asyncio.get_running_loop().time
        began, options = clock(), list[str]()
        while clock() - began < patience.SUGGESTED_SECONDS:
            read = await element.evaluate_handle(_SUGGESTIONS, [anywhere, known])
            told = await read.evaluate("found => found && found.map(one => one.innerText.trim())")
            if told is None:
                return None
            options = told
            same = [number for number, option in enumerate(options) if fold(option) == fold(name)]
            if len(same) == 1:
                return (await read.get_property(str(same[0]))).as_element()
            await asyncio.sleep(patience.POLL_SECONDS)
        return Doubt("value", name, tuple(options[:5]))

    def _confirm_at_once(self, act: Act, texts: Sequence[str]) -> None:
        """Outside of a form, which has a button for that, what begins with a grave word may be done by a mere tick."""
        first = {word for text in texts for word in re.findall(r"\w+", fold(text))[:1]}
        if self._confirm is not None and act.control.form < 0 and not first.isdisjoint(GRAVE):
            self._confirm(tell(act, []))

    async def _choose(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """Options of a list; one that may hold several keeps what was chosen before."""
        if act.control.is_drawn:
            return await self._choose_drawn(act, element)
        read = "node => [...node.selectedOptions].map(one => (one.label || one.text).replace(/\\s+/g, ' ').trim())"
        kept: list[str] = await element.evaluate(read) if act.control.multiple else []
        await element.select_option(label=[*dict.fromkeys((*kept, *act.values))], timeout=patience.ACT_MS)
        await self.settle()
        try:
            element = await self._renew(act.control, element)
            return {*await element.evaluate(read)} == {*kept, *act.values}
        except playwright().Error:
            return False

    async def _choose_drawn(self, act: Act, element: ElementHandle) -> bool | Doubt:
        """An option of a list that has to be opened; where it is not in it, the list is shut again."""
        if not act.control.expanded:
            await element.click(timeout=patience.ACT_MS)
        option = await self._find_option(element, act.values[0], anywhere=True)
        if option is None or isinstance(option, Doubt):
            await self._page.keyboard.press("Escape")
            if await element.get_attribute("aria-expanded") == "true":
                await element.click(timeout=patience.ACT_MS)
            return option or Doubt("value", act.values[0])
        await option.click(timeout=patience.ACT_MS)
        await self.settle()
        with suppress(playwright().Error):
            if await option.evaluate(CHOSEN, act.values[0]):
                return True
        element = await self._renew(act.control, element)
        return bool(await element.evaluate(TELLS, act.values[0]))

    async def _check(self, act: Act, element: ElementHandle) -> bool:
        wanted = act.kind == "check"
        if act.control.checked != wanted:
            # A box that is drawn by its label is hidden itself: the label is what a person presses.
            label = await element.evaluate_handle("node => node.labels?.[0] ?? node")
            target = element if await element.is_visible() else label.as_element()
            await (target or element).click(timeout=patience.ACT_MS)
            await self.settle()

        async def shows() -> bool:
            return await (await self._renew(act.control, element)).evaluate(CHECKED) is wanted

        # Whether the page shows something soon: a page that asks a server first shows it later.
        until = asyncio.get_running_loop().time() + patience.SAVING_SECONDS
        while not await shows():
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(patience.POLL_SECONDS)
        return True


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


def is_same_amount(shown: str, written: str) -> bool:
    """Whether a field shows a number as written by another custom: 1500 as "1.500,00"."""
    if not re.fullmatch(r"\d+(?:[.,]\d\d?)?", written):
        return False  # "1.500" may be one and a half
    whole, _, part = written.replace(",", ".").partition(".")
    found = re.fullmatch(
        r"[^\d\-\u2212]*(\d{1,3}(?:([.,\u2019' \u00a0])\d{3}(?:\2\d{3})*)?|\d+)(?:[.,](\d\d?))?\D*", shown
    )
    if found is None:
        return False
    digits = re.sub(r"\D", "", found[1])
    return digits.lstrip("0") == whole.lstrip("0") and (found[3] or "").rstrip("0") == part.rstrip("0")


def letters(text: str) -> str:
    """A text as it is compared with what a field makes of it: a mask may add marks and blanks."""
    return "".join(re.findall(r"\w", text)).casefold() or text.strip()


def tell(act: Act, fields: Sequence[str], marked: Sequence[Control] = ()) -> str:
    """What is about to be done, for the one who says yes: what, whose, and with what, the empty fields included.

    A toolbar acts on the rows that are ``marked``.
    """
    rows = [act.control.row] if act.control.row else [one.row for one in marked if act.control.toolbar]
    whose = "; ".join(", ".join(row)[:160] for row in dict.fromkeys(tuple(row) for row in rows if row))
    told = f"{describe(act)} of “{whose}”" if whose else describe(act)
    return f"{told} ({', '.join(fields)})" if fields else told


CHECKED = "node => node.checked ?? [node.ariaChecked, node.ariaPressed].includes('true')"
TEXT = "node => String(node.value ?? node.ariaValueNow ?? node.innerText ?? '')"
SELECTED = """(node, values) => !node.selectedOptions || !values.length || values.every(value =>
  [...node.selectedOptions].some(one => (one.label || one.text).replace(/\\s+/g, ' ').trim() === value))"""
_QUIET = """
([quiet, most]) => new Promise(done => {
  let timer = setTimeout(done, quiet);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, quiet); });
  const end = () => { watcher.disconnect(); done(); };
  setTimeout(end, most);
  watcher.observe(document, {subtree: true, childList: true, attributes: true});
})
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
# The button beside a field of its own that opens a calendar for it.
_CALENDAR_BUTTON = r"""
node => [...(node.parentElement?.querySelectorAll("button,[role=button]") ?? [])].find(one => one !== node
  && /calendar|\bdate\b|fecha|\u{1F4C5}/iu.test(`${one.ariaLabel ?? ""} ${one.title} ${one.textContent}`)) ?? null
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
TELLS = r"""
(node, name) => {
  const plain = text => String(text ?? "").replace(/\s+/g, " ").trim().toLowerCase();
  return [node.value, node.innerText].some(text => plain(text).includes(plain(name)));
}
"""
CHOSEN = r"""
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
