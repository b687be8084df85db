"""The hand that acts on a page for a sentence: look, click, write, choose, drag; every act bounded in time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver.page_view import Element, Sight, look
from agent3.protocols.nlweb.steps.consequences import has_consequences

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

__all__ = ["Confirm", "Hand"]

Confirm = Callable[[str], None]
"""Hears, in words, of a press that has consequences before it is done, and may raise."""
_MS = 800.0
_SPOKEN = re.compile(r"\b(?:dialog|popup|pop-up|window|modal|cancel|close)\b", re.IGNORECASE)
_WINDOWS = frozenset("popup modal overlay dialog".split())
_AWAY = frozenset(
    {"cancel", "no", "close", "not now", "no thanks", "dismiss", "x", "\u00d7", "later", "cancelar", "cerrar"}
)
_PRESSED = r"""
element => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const own = element.closest("button,input,a,summary,[role=button],[role=link],[role=menuitem]");
  const one = own ?? element.closest("label")?.control ?? element;
  const form = one.form ?? one.closest("form");
  const sends = Boolean(form) && ["submit", "image"].includes(one.type);
  const method = sends ? one.getAttribute("formmethod") || form.getAttribute("method") || "get" : "";
  const shown = ["submit", "button", "image", "reset"].includes(one.type) ? one.value : "";
  const field = each => {
    const label = each.labels?.[0]?.innerText || each.getAttribute("aria-label");
    const name = squeeze(label || each.placeholder || each.name);
    const box = ["checkbox", "radio"].includes(each.type);
    if (!name || (box && !each.checked) || !(each.checkVisibility?.() ?? true)) return "";
    const said = each.localName === "select" ? each.selectedOptions[0]?.text : each.value;
    return `${name}: ${box ? "yes" : !said ? "empty" : each.type === "password" ? "***" : squeeze(said)}`;
  };
  const fields = sends ? [...form.elements].filter(each => /^(input|select|textarea)$/.test(each.localName)
    && !["hidden", "submit", "button", "image", "reset"].includes(each.type)).map(field).filter(Boolean) : [];
  const marked = ["aria-label", "title", "alt"].map(name => one.getAttribute(name) ?? "");
  const words = [one.innerText, shown, ...marked].map(squeeze).join(" ");
  return {words, method: method.toLowerCase(), link: one.localName === "a", fields: fields.slice(0, 20)};
}
"""
_QUIET = """
([quiet, most]) => new Promise(done => {
  let timer = setTimeout(done, quiet);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, quiet); });
  const end = () => { watcher.disconnect(); done(); };
  setTimeout(end, most);
  watcher.observe(document, {subtree: true, childList: true, attributes: true});
})
"""


class Hand:
    """Acts on one page. ``did`` is the story so far, for people: what was done, to what.

    ``confirm`` hears of each press that has consequences: one that posts a form, or whose words say so.
    """

    def __init__(self, page: Page, sentence: str, confirm: Confirm | None = None):
        self.page = page
        self.sentence = sentence
        self._confirm = confirm
        self.did: list[str] = []
        self.last = time.monotonic()

    async def look(self) -> Sight:
        """What is there now."""
        return await look(self.page, self.sentence)

    def locator(self, element: Element) -> Locator:
        """The element as Playwright knows it."""
        frame = self.page.frames[element.frame] if element.frame < len(self.page.frames) else self.page.main_frame
        return frame.locator(element.path).first

    async def settle(self, quiet: int = 40, most: int = 700) -> None:
        """Wait until the page has stopped changing, or for ``most`` milliseconds."""
        with suppress(playwright().Error):
            await self.page.evaluate(_QUIET, [quiet, most])

    async def click(self, element: Element) -> None:
        """Click it as a person would; what covers it is no reason to give up."""
        await self._require_leave(f"click {_name(element)}", element)
        self.did.append(f"click {_name(element)}")
        try:
            await self.locator(element).click(timeout=_MS)
        except playwright().TimeoutError:
            await self.locator(element).dispatch_event("click", timeout=_MS)
        self.last = time.monotonic()
        await self.settle()

    async def _require_leave(self, what: str, where: Element | tuple[float, float]) -> None:
        """Ask before what has consequences. What went away meanwhile cannot be pressed, and has none."""
        if self._confirm is None:
            return
        try:
            if isinstance(where, Element):
                pressed: Any = await self.locator(where).evaluate(_PRESSED, timeout=_MS)
            else:
                script = (
                    f"([x, y]) => {{ const one = document.elementFromPoint(x, y); return one && ({_PRESSED})(one); }}"
                )
                pressed = await self.page.evaluate(script, list(where))
        except playwright().Error:
            return
        if pressed and _weighs(pressed):
            self._confirm(f"{what}{_filled(pressed['fields'])}")

    async def hover(self, element: Element) -> None:
        """Hold the mouse over it."""
        self.did.append(f"hover {_name(element)}")
        with suppress(playwright().TimeoutError):
            await self.locator(element).hover(timeout=_MS, force=True)
        await self.settle(120)

    async def point(self, x: float, y: float) -> None:
        """Click at a place."""
        await self._require_leave(f"click at {x:.0f},{y:.0f}", (x, y))
        self.did.append(f"click at {x:.0f},{y:.0f}")
        await self.page.mouse.click(x, y)
        await self.settle()

    async def write(self, element: Element, text: str, *, keys: bool = False) -> None:
        """Put a text into a field, in place of what was there; by keys where the page listens to them."""
        self.did.append(f"type into {_name(element)}")
        where = self.locator(element)
        try:
            if keys:
                await where.click(timeout=_MS)
                await where.press("Control+a", timeout=_MS)
                await where.press_sequentially(text, timeout=10 * _MS)
            else:
                await where.fill(text, timeout=_MS)
        except playwright().Error:
            if not await self.dismiss():
                await where.focus(timeout=_MS)
            await self._type(where, text)
        await self.settle()
        if await self.dismiss():
            await self._type(where, text)

    async def _type(self, where: Locator, text: str) -> None:
        await where.click(timeout=_MS)
        await self.page.keyboard.press("Control+a")
        await self.page.keyboard.type(text)

    async def dismiss(self) -> bool:
        """Send a window away that came up in between and that the sentence does not speak of; False if there is none.

        The button is the one that changes nothing: cancel, no, close.
        """
        if _SPOKEN.search(self.sentence):
            return False
        sight = await self.look()
        for window in sight.having(lambda one: one.role in ("dialog", "alertdialog") or bool(_WINDOWS & one.words)):
            inside = [one for one in sight.inside(window) if one.visible and one.pressable]
            button = next(
                (one for one in inside if one.text.strip().lower() in _AWAY or one.title.lower() in _AWAY), None
            )
            if button is not None:
                await self.click(button)
                return True
        return False

    async def choose(self, element: Element, options: Sequence[str]) -> None:
        """Choose options of a list by what they show."""
        self.did.append(f"choose {', '.join(options)} in {_name(element)}")
        await self.locator(element).select_option(label=list(options), timeout=_MS, force=True)
        await self.settle()

    async def check(self, element: Element, on: bool = True) -> None:
        """Set a checkbox or radio button."""
        if element.checked != on:
            await self.click(element)

    async def press(self, element: Element, key: str, times: int = 1) -> None:
        """A key on an element."""
        where = self.locator(element)
        await where.focus(timeout=_MS)
        for _ in range(times):
            await self.page.keyboard.press(key)
        await self.settle()

    async def drag(self, start: tuple[float, float], end: tuple[float, float], steps: int = 8) -> None:
        """Press at one place, move, let go at another."""
        self.did.append(f"drag from {start[0]:.0f},{start[1]:.0f} to {end[0]:.0f},{end[1]:.0f}")
        mouse = self.page.mouse
        await mouse.move(*start)
        await mouse.down()
        await mouse.move(*end, steps=steps)
        await mouse.up()
        await self.settle()

    async def pause(self, seconds: float) -> None:
        """Wait, because the sentence says so, from the last click on."""
        await asyncio.sleep(min(max(0.0, self.last + seconds - time.monotonic()), 30.0))


def _weighs(pressed: Any) -> bool:
    asks = pressed["method"] == "get"
    return pressed["method"] == "post" or has_consequences(pressed["words"], link=pressed["link"], asks=asks)


def _filled(fields: Sequence[str]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


def _name(element: Element) -> str:
    named = element.names[0][:40] if element.names else element.marks[:40]
    return f"{element.role or element.tag} {named!r}" if named else element.role or element.tag
