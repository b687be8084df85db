"""The one place that acts on a page for a sentence: look, click, write, choose; every act bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver.page_view import Element, PageView, look
from agent3.sentences.lexicon import has_consequences

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

__all__ = ["Confirm", "PageOperator"]

Confirm = Callable[[str], None]
"""Is told, in words, of a press that has consequences before it is done, and may raise."""
_ACT_MS = 3_000.0
"""How long an element may keep an act waiting: what is covered or still moving."""
_PRESSED = r"""
element => {
  const squeeze = text => String(text ?? "").replace(/\s+/g, " ").trim().slice(0, 80);
  const own = element.closest("button,input,a,summary,[role=button],[role=link],[role=menuitem]");
  const control = own ?? element.closest("label")?.control ?? element;
  const form = control.form ?? control.closest("form");
  const sends = Boolean(form) && ["submit", "image"].includes(control.type);
  const method = sends ? control.getAttribute("formmethod") || form.getAttribute("method") || "get" : "";
  const caption = ["submit", "button", "image", "reset"].includes(control.type) ? control.value : "";
  const describe = field => {
    const label = field.labels?.[0]?.innerText || field.getAttribute("aria-label");
    const name = squeeze(label || field.placeholder || field.name);
    const box = ["checkbox", "radio"].includes(field.type);
    if (!name || (box && !field.checked) || !(field.checkVisibility?.() ?? true)) return "";
    const value = field.localName === "select" ? field.selectedOptions[0]?.text : field.value;
    return `${name}: ${box ? "yes" : !value ? "empty" : field.type === "password" ? "***" : squeeze(value)}`;
  };
  const fields = sends ? [...form.elements].filter(field => /^(input|select|textarea)$/.test(field.localName)
    && !["hidden", "submit", "button", "image", "reset"].includes(field.type)).map(describe).filter(Boolean) : [];
  const marked = ["aria-label", "title", "alt"].map(name => control.getAttribute(name) ?? "");
  const words = [control.innerText, caption, ...marked].map(squeeze).join(" ");
  return {words, method: method.toLowerCase(), link: control.localName === "a", fields: fields.slice(0, 20)};
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


class PageOperator:
    """Acts on one page. ``done`` tells what was done so far, for people.

    ``confirm`` is told of each press that has consequences: one that posts a form, or whose words say so.
    """

    def __init__(self, page: Page, confirm: Confirm | None = None):
        self.page = page
        self.done: list[str] = []
        self._confirm = confirm

    async def look(self) -> PageView:
        """What is there now."""
        return await look(self.page)

    async def settle(self, quiet_ms: int = 40, most_ms: int = 700) -> None:
        """Wait until the page has stopped changing."""
        with suppress(playwright().Error):
            await self.page.evaluate(_QUIET, [quiet_ms, most_ms])

    async def click(self, element: Element) -> None:
        """Click as a person would; what covers the element is no reason to give up."""
        what = f"click {_describe(element)}"
        if self._confirm is not None:
            pressed: Any = None
            with suppress(playwright().Error):  # an element that is gone has no consequences
                pressed = await self._locate(element).evaluate(_PRESSED, timeout=_ACT_MS)
            if pressed and (
                pressed["method"] == "post"
                or has_consequences(pressed["words"], link=pressed["link"], asks=pressed["method"] == "get")
            ):
                fields = ", ".join(pressed["fields"])
                self._confirm(f"{what} ({fields})" if fields else what)
        self.done.append(what)
        try:
            await self._locate(element).click(timeout=_ACT_MS)
        except playwright().TimeoutError:
            await self._locate(element).dispatch_event("click", timeout=_ACT_MS)
        await self.settle()

    async def check(self, element: Element, on: bool = True) -> None:
        """Set or clear a box; one that is right already is left alone."""
        if element.checked != on:
            await self.click(element)
        else:
            self.done.append(f"{_describe(element)} is {'' if on else 'not '}checked already")

    async def hover(self, element: Element) -> None:
        self.done.append(f"hover {_describe(element)}")
        with suppress(playwright().TimeoutError):
            await self._locate(element).hover(timeout=_ACT_MS, force=True)
        await self.settle(120)

    async def write(self, element: Element, text: str) -> None:
        """Put a text into a field, in place of what was there."""
        target = self._locate(element)
        try:
            await target.fill(text, timeout=_ACT_MS)
        except playwright().Error:
            if element.tag in ("input", "textarea"):
                raise  # the value is not one that the field takes
            await target.click(timeout=_ACT_MS)
            await self.page.keyboard.press("Control+a")
            await self.page.keyboard.type(text)
        self.done.append(f"type into {_describe(element)}")
        await self.settle()

    async def choose(self, element: Element, options: Sequence[str]) -> None:
        """Choose options of a list by the texts that they show."""
        await self._locate(element).select_option(label=list(options), timeout=_ACT_MS, force=True)
        self.done.append(f"choose {', '.join(options)} in {_describe(element)}")
        await self.settle()

    async def press_key(self, element: Element, key: str, times: int = 1) -> None:
        await self._locate(element).focus(timeout=_ACT_MS)
        for _ in range(times):
            await self.page.keyboard.press(key)
        await self.settle()

    def _locate(self, element: Element) -> Locator:
        frames = self.page.frames
        frame = frames[element.frame] if element.frame < len(frames) else self.page.main_frame
        return frame.locator(element.path).first


def _describe(element: Element) -> str:
    name = element.names[0][:40] if element.names else element.marks[:40]
    return f"{element.role or element.tag} {name!r}" if name else element.role or element.tag
