"""What each step of an action does on a page: one short function for each kind, in a table.

It knows the run context, whose page is Playwright's, and nothing of browsers, sandboxes or parameters: a step that
comes here is filled and allowed. ``if`` and ``repeat`` are not here; ``workflow`` runs them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.calls.outcomes import HTTP_STATUS
from agent3.definitions import ActionType, NLWebAction
from agent3.env import REAL
from agent3.errors import RateLimited, SecurityError, TargetError, TargetRefused, Unavailable
from agent3.jsonrpc import parse_retry_after
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps import forms, page_reading, waits, webmcp
from agent3.protocols.nlweb.steps.consent_banners import past_banner
from agent3.protocols.nlweb.steps.parameters import refuse_clipboard
from agent3.protocols.nlweb.steps.run_context import RunContext
from agent3.protocols.nlweb.steps.snapshots import find_masks
from agent3.protocols.nlweb.steps.waits import ms_left, parse_number

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

__all__ = ["STEPS", "YIELDING", "Step", "go", "inside"]

Step = Callable[[RunContext, NLWebAction, float], Awaitable[Any]]
"""(run context, step, milliseconds it may take) → what it gives."""

YIELDING = frozenset({ActionType.EXTRACT, ActionType.SCREENSHOT})
"""The kinds whose result is part of the action's result."""

_IS_PRIVATE = """([field]) => field ? field.type === 'password'
  || /password|one-time-code|cc-(number|csc|exp)/.test(field.getAttribute('autocomplete') ?? '') : null"""
_PRIVACY_SECONDS = 1.0
_TRIES = 3
_LONGEST_WAIT = 3_600.0
"""Seconds that a site may ask for by Retry-After."""
_SETTLE_MS = 500.0
_SCREEN = 800.0
_MOST_SCROLLS = 20
_GROWTH_MS = 1500.0
_TO_END = """element => {
  const box = element ?? document.scrollingElement ?? document.documentElement;
  box.scrollTop = box.scrollHeight;
  return [box.scrollHeight, box.querySelectorAll('*').length];
}"""
_GROWN = """([element, [height, count]]) => {
  const box = element ?? document.scrollingElement ?? document.documentElement;
  return box.scrollHeight > height || box.querySelectorAll('*').length > count;
}"""


def inside(folder: Path | None, name: str) -> Path:
    """A file of the folder that uploads may come from; SecurityError for any other.

    The name often comes from a remote caller, and a website is a good place to send a private key to.
    """
    if folder is None:
        raise SecurityError("Uploads are off. Name the folder for uploads: NLWebExecutor(…, uploads=…).")
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
        # Let the interrupted navigation arrive after all, or it would interrupt the next one in its turn.
        with suppress(playwright().TimeoutError):
            await page.wait_for_url(
                lambda now: now.rstrip("/") == url.rstrip("/"), timeout=_SETTLE_MS, wait_until="commit"
            )
    return await page.goto(url, timeout=ms, wait_until="domcontentloaded")


async def _act(
    ctx: RunContext, action: NLWebAction, ms: float, deed: Callable[[Locator, float], Awaitable[Any]]
) -> Any:
    """Find the element of a step and do something with it, past a banner that stands in the way."""
    end = time.monotonic() + ms / 1000
    place = await ctx.get_place(action, ms)
    found = await ctx.finder.find(place, action, ms_left(end))
    if action.popup:
        async with ctx.page.expect_popup(timeout=ms_left(end)) as opened:
            result = await past_banner(ctx, found, deed, end)
        page = await opened.value
        await page.wait_for_load_state("domcontentloaded", timeout=ms_left(end))
        ctx.follow(page)
    else:
        result = await past_banner(ctx, found, deed, end)
    await ctx.finder.note_success(place, action, found)
    return result


def _on_element(deed: Callable[[Locator, NLWebAction, float], Awaitable[Any]]) -> Step:
    """A step that does one thing with its element."""

    async def step(ctx: RunContext, action: NLWebAction, ms: float) -> None:
        await _act(ctx, action, ms, lambda found, ms_: deed(found, action, ms_))

    return step


async def navigate(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """Open an address; a status that is an error is raised as one."""
    answer = await go(ctx.page, action.value or "", ms)
    if answer is None or answer.status < 400:
        return
    text, data = f"{answer.url} answered with status {answer.status}", {HTTP_STATUS: answer.status}
    if answer.status in (401, 403):
        raise TargetRefused(f"{text}: the site requires a login, or refuses automated visits.", data=data)
    if answer.status == 429 or answer.status >= 500:
        pause = parse_retry_after(answer.headers.get("retry-after"), REAL.now(), _LONGEST_WAIT)
        kind = RateLimited if answer.status == 429 else Unavailable
        raise kind(f"{text}: try again later.", retry_after=pause, data={**data, "status": answer.status})
    raise TargetError(f"{text}: check the address in the interface.", data=data)


async def type_text(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """Fill a field. What goes into one for passwords is kept out of every record."""
    value = action.value or ""
    was_private = value in ctx.passwords

    async def fill(found: Locator, fill_ms: float) -> None:
        # Private until the page has said that it is not. It is asked before the fill, and the answer not waited for.
        ctx.passwords.add(value)
        asked = asyncio.ensure_future(found.evaluate_all(_IS_PRIVATE))
        try:
            await found.fill(value, timeout=fill_ms)
        finally:
            private = True  # also where the page cannot be asked
            with suppress(TimeoutError, playwright().Error):
                async with asyncio.timeout(_PRIVACY_SECONDS):
                    answer = await asked
                    if answer is None:  # the field came late
                        answer = await found.evaluate_all(_IS_PRIVATE)
                    private = answer not in (False, None)
            if not private and not was_private:
                ctx.passwords.discard(value)

    await _act(ctx, action, ms, fill)


async def press(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """Press a key, on an element or where the focus is; Enter unless it says another."""
    key = action.value or "Enter"
    refuse_clipboard(key)
    if action.selector:
        await _act(ctx, action, ms, lambda found, ms_: found.press(key, timeout=ms_))
    else:
        await ctx.page.keyboard.press(key)


async def fill(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """Fill the fields of a form by the names that people see."""
    fields = action.fields or {}
    await _act(ctx, action, ms, lambda found, ms_: forms.fill(found, fields, ms_, ctx.passwords.add))


async def submit(ctx: RunContext, action: NLWebAction, ms: float) -> dict[str, Any]:
    """Send a form once, and read what the site says to it: where it led, and its messages."""
    end = time.monotonic() + ms / 1000
    place = await ctx.get_place(action, ms)
    found = await ctx.finder.find(place, action, ms_left(end))
    result = await forms.submit(ctx, place, found, end)
    await ctx.finder.note_success(place, action, found)
    return result


async def wait(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """Wait for an element, a text, an address, the network, or some seconds."""
    end = time.monotonic() + ms / 1000
    place = await ctx.get_place(action, ms)
    await waits.wait(ctx, place, action, ms_left(end))


async def scroll(ctx: RunContext, action: NLWebAction, ms: float) -> int | None:
    """To an element, to the top, bottom or end, or by a number of pixels; one screen if it says nothing.

    ``end`` scrolls on while the page grows, at most ``times``, and gives how often it grew.
    """
    place: Any = await ctx.get_place(action, ms)
    if action.value == "end":
        end = time.monotonic() + ms / 1000
        box = None
        if action.selector:
            box = await place.locator(action.selector).first.element_handle(timeout=ms_left(end))
        rounds = action.times or _MOST_SCROLLS
        for done in range(rounds):
            size = await place.evaluate(_TO_END, box)
            try:
                ms_growth = min(_GROWTH_MS, ms_left(end))
                await place.wait_for_function(_GROWN, arg=[box, size], timeout=ms_growth, polling=50)
            except playwright().TimeoutError:
                if ms_left(end) <= 1.0:
                    raise
                return done  # once more without growth is the end
        return rounds
    if action.selector:
        await _act(ctx, action, ms, lambda found, ms_: found.scroll_into_view_if_needed(timeout=ms_))
    elif action.value in ("bottom", "top"):
        height = "document.documentElement.scrollHeight" if action.value == "bottom" else "0"
        await place.evaluate(f"window.scrollTo(0, {height})")
    else:
        await ctx.page.mouse.wheel(0, parse_number(action.value, "scroll") if action.value else _SCREEN)
    return None


async def screenshot(ctx: RunContext, action: NLWebAction, ms: float) -> bytes:
    """PNG of an element, or of what is seen of the page. What was typed in confidence is covered in it."""
    # A password field shows dots, but the page may have copied what was typed elsewhere.
    covered = find_masks(ctx.page, ctx.used_secrets | ctx.passwords)
    if action.selector:
        shot: bytes = await _act(ctx, action, ms, lambda found, ms_: found.screenshot(timeout=ms_, mask=covered))
        return shot
    return await ctx.page.screenshot(timeout=ms, mask=covered)


async def dialog(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    """How the dialogs to come are answered; without this step, they are dismissed."""
    ctx.answers_as_told = True
    ctx.answer = action.value if action.value is not None else "accept"


async def back(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    if await ctx.page.go_back(timeout=ms, wait_until="domcontentloaded") is None and ctx.page.url == "about:blank":
        raise TargetError("There is no previous page to go back to.")


async def close(ctx: RunContext, action: NLWebAction, ms: float) -> None:
    await ctx.close_front()


STEPS: dict[ActionType, Step] = {
    ActionType.NAVIGATE: navigate,
    ActionType.TYPE: type_text,
    ActionType.CLICK: _on_element(lambda found, action, ms: found.click(timeout=ms)),
    ActionType.EXTRACT: page_reading.extract,
    ActionType.WAIT: wait,
    ActionType.SELECT: _on_element(lambda found, action, ms: found.select_option(action.value or "", timeout=ms)),
    ActionType.SCROLL: scroll,
    ActionType.PRESS: press,
    ActionType.UPLOAD: _on_element(lambda found, action, ms: found.set_input_files(action.value or "", timeout=ms)),
    ActionType.SCREENSHOT: screenshot,
    ActionType.HOVER: _on_element(lambda found, action, ms: found.hover(timeout=ms)),
    ActionType.CHECK: _on_element(lambda found, action, ms: found.check(timeout=ms)),
    ActionType.UNCHECK: _on_element(lambda found, action, ms: found.uncheck(timeout=ms)),
    ActionType.FILL: fill,
    ActionType.SUBMIT: submit,
    ActionType.DIALOG: dialog,
    ActionType.BACK: back,
    ActionType.CLOSE: close,
    ActionType.TOOL: webmcp.call,
}
