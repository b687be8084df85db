"""What each step of an action does on a page: one short function per kind, in a table.

It knows Playwright's page and nothing of browsers, sandboxes or parameters: a step that comes here is filled and
allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import SecurityError, TargetError, TargetRefused, Unavailable, ValidationError
from agent3.nlweb.extract import extract_page, extract_rows
from agent3.nlweb.sdk import playwright

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

__all__ = ["STEPS", "YIELDING", "Step", "go", "inside"]

Step = Callable[["Page", NLWebAction, float], Awaitable[Any]]
"""(page, step, milliseconds it may take) → what it gives."""

YIELDING = frozenset({ActionType.EXTRACT, ActionType.SCREENSHOT})
"""The kinds whose result is part of the action's result."""

LoadState = Literal["load", "domcontentloaded", "networkidle"]

_LOAD_STATES = frozenset({"load", "domcontentloaded", "networkidle"})
_TRIES = 3
_SETTLE = 500.0
_SCREEN = 800.0
_BOTTOM = "window.scrollTo(0, document.documentElement.scrollHeight)"
_TOP = "window.scrollTo(0, 0)"


def inside(folder: Path | None, name: str) -> Path:
    """A file of the folder that uploads may come from; SecurityError for any other.

    The name often comes from a caller far away, and a website is a good place to send a private key to.
    """
    if folder is None:
        raise SecurityError("Uploads are off. Name the folder that files may come from: NLWebExecutor(…, uploads=…).")
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise SecurityError(f"Upload of {name!r} blocked: it is not a file in the folder for uploads.")
    return path


async def go(page: Page, url: str, ms: float) -> Response | None:
    """Go there, also if the old page is just about to go elsewhere: then again, as a person would.

    That happens with a page that redirects itself, and after a failure, whose notice Chromium loads as a page. The
    parsed document is enough, since the steps that follow wait for their elements themselves.
    """
    for _ in range(_TRIES - 1):
        try:
            return await page.goto(url, timeout=ms, wait_until="domcontentloaded")
        except playwright().Error as error:
            if "interrupted by another navigation" not in error.message:
                raise
        await _settle(page, url)
    return await page.goto(url, timeout=ms, wait_until="domcontentloaded")


async def _settle(page: Page, url: str) -> None:
    """Let an interrupted navigation arrive after all, or it would interrupt the next one in its turn."""
    with suppress(playwright().TimeoutError):
        await page.wait_for_url(lambda now: now.rstrip("/") == url.rstrip("/"), timeout=_SETTLE, wait_until="commit")


async def _navigate(page: Page, action: NLWebAction, ms: float) -> None:
    answer = await go(page, action.value or "", ms)
    if answer is None or answer.status < 400:
        return
    text = f"{answer.url} answered with status {answer.status}"
    if answer.status in (401, 403):
        raise TargetRefused(f"{text}: the site wants a login, or does not let automatons in.")
    if answer.status == 429 or answer.status >= 500:
        raise Unavailable(f"{text}: try again later.")
    raise TargetError(f"{text}: see whether the address in the interface is still right.")


async def _type(page: Page, action: NLWebAction, ms: float) -> None:
    await page.fill(_selector(action), action.value or "", timeout=ms)


async def _click(page: Page, action: NLWebAction, ms: float) -> None:
    await page.click(_selector(action), timeout=ms)


async def _select(page: Page, action: NLWebAction, ms: float) -> None:
    await page.select_option(_selector(action), action.value or "", timeout=ms)


async def _hover(page: Page, action: NLWebAction, ms: float) -> None:
    await page.hover(_selector(action), timeout=ms)


async def _check(page: Page, action: NLWebAction, ms: float) -> None:
    await page.check(_selector(action), timeout=ms)


async def _uncheck(page: Page, action: NLWebAction, ms: float) -> None:
    await page.uncheck(_selector(action), timeout=ms)


async def _upload(page: Page, action: NLWebAction, ms: float) -> None:
    await page.set_input_files(_selector(action), action.value or "", timeout=ms)


async def _press(page: Page, action: NLWebAction, ms: float) -> None:
    """A key, on an element or where the focus is; Enter unless it says another."""
    key = action.value or "Enter"
    if action.selector:
        await page.press(action.selector, key, timeout=ms)
    else:
        await page.keyboard.press(key)


async def _wait(page: Page, action: NLWebAction, ms: float) -> None:
    """For an element (with a text, if it has a value), a state of loading, or a number of seconds."""
    if action.selector:
        found = page.locator(action.selector)
        await _visible(found.filter(has_text=action.value) if action.value else found, ms)
    elif not action.wait_for:
        await _wait_for_value(page, action.value or "load", ms)


async def _wait_for_value(page: Page, value: str, ms: float) -> None:
    if value in _LOAD_STATES:
        await page.wait_for_load_state(cast("LoadState", value), timeout=ms)
        return
    async with asyncio.timeout(ms / 1000):
        await asyncio.sleep(_number(value, "wait"))


async def _scroll(page: Page, action: NLWebAction, ms: float) -> None:
    """To an element, to the top or bottom, or by a number of pixels; one screen if it says nothing."""
    if action.selector:
        await page.locator(action.selector).first.scroll_into_view_if_needed(timeout=ms)
    elif action.value in ("bottom", "top"):
        await page.evaluate(_BOTTOM if action.value == "bottom" else _TOP)
    else:
        await page.mouse.wheel(0, _number(action.value, "scroll") if action.value else _SCREEN)


async def _screenshot(page: Page, action: NLWebAction, ms: float) -> bytes:
    """PNG of an element, or of what is seen of the page."""
    if action.selector:
        return await page.locator(action.selector).first.screenshot(timeout=ms)
    return await page.screenshot(timeout=ms)


async def _extract(page: Page, action: NLWebAction, ms: float) -> Any:
    """Rows of dicts for a selector, one dict for a schema alone, texts without a schema.

    It waits for the first row. If none comes in time the answer is an empty list: nothing found is an answer.
    """
    if not action.selector:
        return await extract_page(page, action.extract_schema)
    rows = page.locator(action.selector)
    await _appears(rows, ms)
    return await extract_rows(rows, action.extract_schema)


async def _appears(rows: Locator, ms: float) -> None:
    """Wait for a first match; running out of time only means that there is none."""
    with suppress(playwright().TimeoutError):
        await rows.first.wait_for(state="attached", timeout=ms)


async def _visible(found: Locator, ms: float) -> None:
    await found.first.wait_for(state="visible", timeout=ms)


def _selector(action: NLWebAction) -> str:
    return action.selector or ""  # the definition refuses these kinds without one


def _number(text: str | None, kind: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise ValidationError(
            f"A {kind} step has the value {text!r}, which is neither a number nor a known word."
        ) from None


STEPS: dict[ActionType, Step] = {
    ActionType.NAVIGATE: _navigate,
    ActionType.TYPE: _type,
    ActionType.CLICK: _click,
    ActionType.EXTRACT: _extract,
    ActionType.WAIT: _wait,
    ActionType.SELECT: _select,
    ActionType.SCROLL: _scroll,
    ActionType.PRESS: _press,
    ActionType.UPLOAD: _upload,
    ActionType.SCREENSHOT: _screenshot,
    ActionType.HOVER: _hover,
    ActionType.CHECK: _check,
    ActionType.UNCHECK: _uncheck,
}
