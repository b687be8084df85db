"""What each step of an action does on a page: one short function per kind, in a table.

It knows the scene, whose page is Playwright's, and nothing of browsers, sandboxes or parameters: a step that comes here
is filled and allowed. ``if`` and ``repeat`` are not here; they are the business of ``workflow``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent3.definitions import ActionType, NLWebAction
from agent3.errors import SecurityError, TargetError, TargetRefused, Unavailable
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps import consent_banners as banners
from agent3.protocols.nlweb.steps import forms, webmcp
from agent3.protocols.nlweb.steps import page_reading as reading
from agent3.protocols.nlweb.steps import waits as waiting
from agent3.protocols.nlweb.steps.parameters import refuse_clipboard
from agent3.protocols.nlweb.steps.scene import Scene
from agent3.protocols.nlweb.steps.waits import left, number
from agent3.protocols.nlweb.visit.retry_after import retry_after
from agent3.protocols.nlweb.visit.snapshots import covers

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

__all__ = ["STEPS", "YIELDING", "Scene", "Step", "go", "inside"]

Step = Callable[[Scene, NLWebAction, float], Awaitable[Any]]
"""(scene, step, milliseconds it may take) → what it gives."""
Deed = Callable[["Locator", float], Awaitable[Any]]

YIELDING = frozenset({ActionType.EXTRACT, ActionType.SCREENSHOT})
"""The kinds whose result is part of the action's result."""


_IS_PRIVATE = """([one]) => one ? one.type === 'password'
  || /password|one-time-code|cc-(number|csc|exp)/.test(one.getAttribute('autocomplete') ?? '') : null"""
_SAID_SECONDS = 1.0
_TRIES = 3
_SETTLE = 500.0
_SCREEN = 800.0
_ROUNDS = 20
_GROWTH = 1500.0
_BOTTOM = "window.scrollTo(0, document.documentElement.scrollHeight)"
_TOP = "window.scrollTo(0, 0)"
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


async def _act(scene: Scene, action: NLWebAction, ms: float, deed: Deed) -> Any:
    """Find the element of a step and do something with it, past a banner that stands in the way."""
    end = time.monotonic() + ms / 1000
    place = await scene.place(action, ms)
    found = await scene.finder.find(place, action, left(end))
    if action.popup:
        async with scene.page.expect_popup(timeout=left(end)) as opened:
            result = await banners.past(scene, found, deed, end)
        page = await opened.value
        await page.wait_for_load_state("domcontentloaded", timeout=left(end))
        scene.follow(page)
    else:
        result = await banners.past(scene, found, deed, end)
    await scene.finder.worked(place, action, found)
    return result


async def _navigate(scene: Scene, action: NLWebAction, ms: float) -> None:
    answer = await go(scene.page, action.value or "", ms)
    if answer is None or answer.status < 400:
        return
    text = f"{answer.url} answered with status {answer.status}"
    if answer.status in (401, 403):
        raise TargetRefused(f"{text}: the site wants a login, or does not let automatons in.")
    if answer.status == 429 or answer.status >= 500:
        pause = retry_after(answer.headers.get("retry-after"))
        raise Unavailable(f"{text}: try again later.", retry_after=pause, data={"status": answer.status})
    raise TargetError(f"{text}: see whether the address in the interface is still right.")


async def _type(scene: Scene, action: NLWebAction, ms: float) -> None:
    value, known = action.value or "", (action.value or "") in scene.passwords

    async def fill(found: Locator, time_: float) -> None:
        # Private until the page has said that it is not. It is asked before the fill, and the answer not waited for.
        scene.passwords.add(value)
        asked = asyncio.ensure_future(found.evaluate_all(_IS_PRIVATE))
        try:
            await found.fill(value, timeout=time_)
        finally:
            if not await _is_private(found, asked) and not known:
                scene.passwords.discard(value)

    await _act(scene, action, ms, fill)


async def _is_private(found: Locator, asked: asyncio.Future[Any]) -> bool:
    """What the page said of a field, asked again if the field came late; what cannot be asked is private."""
    try:
        async with asyncio.timeout(_SAID_SECONDS):
            said = await asked
            said = await found.evaluate_all(_IS_PRIVATE) if said is None else said
    except (TimeoutError, playwright().Error):
        return True
    return said is not False and said is not None


async def _click(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.click(timeout=time_))


async def _select(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.select_option(action.value or "", timeout=time_))


async def _hover(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.hover(timeout=time_))


async def _check(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.check(timeout=time_))


async def _uncheck(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.uncheck(timeout=time_))


async def _upload(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(scene, action, ms, lambda found, time_: found.set_input_files(action.value or "", timeout=time_))


async def _press(scene: Scene, action: NLWebAction, ms: float) -> None:
    """A key, on an element or where the focus is; Enter unless it says another."""
    key = action.value or "Enter"
    refuse_clipboard(key)
    if action.selector:
        await _act(scene, action, ms, lambda found, time_: found.press(key, timeout=time_))
    else:
        await scene.page.keyboard.press(key)


async def _fill(scene: Scene, action: NLWebAction, ms: float) -> None:
    await _act(
        scene, action, ms, lambda found, time_: forms.fill(found, action.fields or {}, time_, scene.passwords.add)
    )


async def _submit(scene: Scene, action: NLWebAction, ms: float) -> dict[str, Any]:
    """Send a form once, and read what the site says to it: where it led, and its messages."""
    end = time.monotonic() + ms / 1000
    place = await scene.place(action, ms)
    found = await scene.finder.find(place, action, left(end))
    result = await forms.submit(scene, place, found, end)
    await scene.finder.worked(place, action, found)
    return result


async def _wait(scene: Scene, action: NLWebAction, ms: float) -> None:
    end = time.monotonic() + ms / 1000
    place = await scene.place(action, ms)
    await waiting.wait(scene, place, action, left(end))


async def _scroll(scene: Scene, action: NLWebAction, ms: float) -> int | None:
    """To an element, to the top, bottom or end, or by a number of pixels; one screen if it says nothing.

    ``end`` scrolls on while more comes, and gives how often more came.
    """
    place = await scene.place(action, ms)
    if action.value == "end":
        return await _scroll_to_the_end(place, action, time.monotonic() + ms / 1000)
    if action.selector:
        await _act(scene, action, ms, lambda found, time_: found.scroll_into_view_if_needed(timeout=time_))
    elif action.value in ("bottom", "top"):
        await place.evaluate(_BOTTOM if action.value == "bottom" else _TOP)
    else:
        await scene.page.mouse.wheel(0, number(action.value, "scroll") if action.value else _SCREEN)
    return None


async def _scroll_to_the_end(place: Any, action: NLWebAction, end: float) -> int:
    """Down, and down again while the page grows, at most ``times``. One time more without growth is the end."""
    box = None
    if action.selector:
        box = await place.locator(action.selector).first.element_handle(timeout=left(end))
    rounds = action.times or _ROUNDS
    for done in range(rounds):
        size = await place.evaluate(_TO_END, box)
        try:
            await place.wait_for_function(_GROWN, arg=[box, size], timeout=min(_GROWTH, left(end)), polling=50)
        except playwright().TimeoutError:
            if left(end) <= 1.0:
                raise
            return done
    return rounds


async def _screenshot(scene: Scene, action: NLWebAction, ms: float) -> bytes:
    """PNG of an element, or of what is seen of the page. What was typed in confidence is covered in it."""
    covered = covers(scene.page, scene.used_secrets | scene.passwords)
    if action.selector:
        shot: bytes = await _act(scene, action, ms, lambda found, time_: found.screenshot(timeout=time_, mask=covered))
        return shot
    return await scene.page.screenshot(timeout=ms, mask=covered)


async def _extract(scene: Scene, action: NLWebAction, ms: float) -> Any:
    return await reading.extract(scene, action, ms)


async def _dialog(scene: Scene, action: NLWebAction, ms: float) -> None:
    """How the dialogs to come are answered; without a word of this, they are dismissed."""
    scene.answer = action.value if action.value is not None else "accept"


async def _back(scene: Scene, action: NLWebAction, ms: float) -> None:
    if await scene.page.go_back(timeout=ms, wait_until="domcontentloaded") is None and scene.page.url == "about:blank":
        raise TargetError("There is no page to go back to.")


async def _close(scene: Scene, action: NLWebAction, ms: float) -> None:
    await scene.close_front()


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
    ActionType.FILL: _fill,
    ActionType.SUBMIT: _submit,
    ActionType.DIALOG: _dialog,
    ActionType.BACK: _back,
    ActionType.CLOSE: _close,
    ActionType.TOOL: webmcp.call,
}
