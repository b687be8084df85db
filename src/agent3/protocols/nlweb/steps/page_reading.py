"""What an extraction gives: by its selectors, page after page, and in other ways where those find nothing.

The ways are tried in this order: the selectors, the page's own structured data (JSON-LD, microdata), structure that
repeats itself, and a language model if there is one. The run context notes which it was. A way is believed only if it
fills most of the fields by evidence: an empty list is a better answer than a menu mistaken for a list of flights.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from agent3.definitions import NLWebAction
from agent3.errors import Agent3Error, ElementMissing, MalformedResponse
from agent3.observe import logs
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.extraction import (
    MOST_ROWS,
    Schema,
    extract_page,
    extract_rows,
    raw_rows,
    typed_row,
    typed_rows,
)
from agent3.protocols.nlweb.steps.page_data import ask_model, find_rows, read_page_data
from agent3.protocols.nlweb.steps.run_context import Place, RunContext, Source
from agent3.protocols.nlweb.steps.waits import ms_left

__all__ = ["extract", "read_lines", "read_news", "shows"]

logger = logs.get("nlweb")

_MOST_PAGES = 10
_PAUSE = 0.05
_FIRST_ROW_MS = 5000.0
_CHANGE_MS = 5000.0
_NEWS_SECONDS = 1.0
_MOST_NEWS = 8
_MOVED = ("context was destroyed", "because of a navigation", "detached")
_HAS = """text => {
  const plain = said => String(said).replace(/\\s+/g, ' ').toLowerCase(), page = document.documentElement;
  const escaped = document.createElement('p');
  escaped.textContent = text;
  return plain(page.innerText).includes(plain(text)) || plain(page.outerHTML).includes(plain(escaped.innerHTML));
}"""
_CAN_GO = """([way]) => Boolean(way) && (way.checkVisibility?.() ?? true) && !way.disabled
  && way.getAttribute('aria-disabled') !== 'true'
  && !/(^|[\\s_-])(disabled|inactive)($|[\\s_-])/i.test(way.getAttribute('class') ?? '')"""


async def shows(place: Place, text: str) -> bool:
    """Whether a text stands anywhere on the page, also where nobody sees it; True where it cannot be read."""
    with suppress(playwright().Error):
        return bool(await place.evaluate(_HAS, text))
    return True


async def read_lines(ctx: RunContext) -> list[str]:
    """What a person would read on the page, line by line; nothing where it is on its way to another one."""
    with suppress(playwright().Error):
        text = str(await ctx.page.evaluate("document.body?.innerText ?? ''"))
        return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return []


async def read_news(ctx: RunContext) -> list[str]:
    """What the page says that it did not say before the last press, such as the number of an order.

    A page that has not answered yet is waited for a moment. Lines that hold what was typed in confidence are left out.
    """
    if ctx.news:
        return ctx.news
    end = time.monotonic() + _NEWS_SECONDS
    while (known := ctx.known) is not None:
        said = frozenset(known)
        news = [line for line in await read_lines(ctx) if line not in said]
        if news or time.monotonic() > end:
            return ctx.show_news(news, _MOST_NEWS)
        await asyncio.sleep(_PAUSE)
    return []


async def extract(ctx: RunContext, action: NLWebAction, ms: float) -> Any:
    """Rows of dicts for a selector, one dict for a schema alone, texts without a schema.

    It waits for the first row. If none comes in time the answer is an empty list: nothing found is an answer, as long
    as the page is the one where something was found before; ElementMissing if it plainly is another one by now.
    MalformedResponse if a required field is found in no way.
    """
    end = time.monotonic() + ms / 1000
    place = await ctx.get_place(action, ms)
    found, failure = None, None
    try:
        if action.selector:
            found = await _read_first_rows(place, action, end)
            if action.next and found:
                await _add_next_pages(ctx, action, found, end)
        else:
            found = await extract_page(place, action.extract_schema)
    except MalformedResponse as error:
        found, failure = None, error
    how = "selectors"
    if action.extract_schema and action.fallbacks and _is_empty(found):
        how, other = await _extract_otherwise(ctx, place, action)
        found = other if other is not None else found
    if found is None and failure is not None:
        raise failure
    if how == "selectors" or _is_empty(found):
        # Hold nothing found against what is known of the page: a redesigned site has rows, and other selectors.
        trust = await ctx.finder.note_extraction(place, action, found=not _is_empty(found))
        if trust != "same":
            what = f"{action.selector!r} matches nothing" if action.selector else "none of its fields was found"
            where = f"on {ctx.page.url.split('?')[0]}, where it used to match"
            advice = "Check the selectors of the interface file (agent3 web check FILE)."
            text = f"Step {ctx.label}: {what} {where}, and the page"
            if trust == "changed":
                raise ElementMissing(f"{text} is a different one now. {advice}", data={"step": ctx.label})
            ctx.notices.append(f"{text} has changed much. {advice}")
            logger.warning("%s: %s", ctx.interface.name, ctx.notices[-1])
    ctx.sources.append(Source(ctx.label, how, len(found) if isinstance(found, list) else 1))
    return found


async def _read_first_rows(place: Place, action: NLWebAction, end: float) -> list[Any]:
    """The rows of the page as it is: those that are there need no waiting for, unless more of them are coming in."""
    rows, schema = place.locator(action.selector), action.extract_schema
    found, loading = await raw_rows(rows, schema)
    if not found:
        with suppress(playwright().TimeoutError):  # running out of time only means that there is none
            ms = min(ms_left(end), _FIRST_ROW_MS) if action.next else ms_left(end)
            await rows.first.wait_for(state="attached", timeout=ms)
        found, loading = await raw_rows(rows, schema)
    while found and loading and time.monotonic() < end:
        with suppress(playwright().TimeoutError):
            await place.wait_for_load_state("domcontentloaded", timeout=ms_left(end))
        found, loading = await raw_rows(rows, schema)
        if loading:  # the driver may still have had the state of the page before: only the page itself knows
            await asyncio.sleep(_PAUSE)
    return typed_rows(found, schema)


# One page after another


async def _add_next_pages(ctx: RunContext, action: NLWebAction, found: list[Any], end: float) -> None:
    """Add the rows of the pages that follow, until there is no way on or a page brings nothing new."""
    shown = list(found)
    for _ in range((action.times or _MOST_PAGES) - 1):
        place: Place = await ctx.get_place(action, ms_left(end))
        way = place.locator(action.next or "")
        if not await way.evaluate_all(_CAN_GO):
            return
        try:
            await way.first.click(timeout=min(ms_left(end), _CHANGE_MS))
        except playwright().TimeoutError:
            return  # gone, or out of order, in the meantime
        before, shown = shown, await _wait_for_other_rows(ctx, action, shown, end)
        # "Load more" keeps the old rows at the head: then only those that came are new.
        found += shown[len(before) :] if shown[: len(before)] == before else shown
        if not shown or len(found) >= MOST_ROWS:
            del found[MOST_ROWS:]
            return


async def _wait_for_other_rows(ctx: RunContext, action: NLWebAction, before: list[Any], end: float) -> list[Any]:
    """The rows once they are others than before and have come to rest; none if they stay the same."""
    stop = min(end, time.monotonic() + _CHANGE_MS / 1000)
    latest: list[Any] = []
    while time.monotonic() < stop:
        try:
            place: Place = await ctx.get_place(action, ms_left(stop))
            rows = await extract_rows(place.locator(action.selector or ""), action.extract_schema)
        except playwright().Error as error:
            if not any(words in error.message for words in _MOVED):
                raise
            rows = []
        if rows and rows != before and rows == latest:
            return rows
        latest = rows
        await asyncio.sleep(_PAUSE)
    return latest if latest != before else []


# Other ways


async def _extract_otherwise(ctx: RunContext, place: Place, action: NLWebAction) -> tuple[str, Any]:
    """How something was found after all, and what; ``nothing`` and None if it was not."""
    schema = action.extract_schema or {}
    many = action.selector is not None
    data = await read_page_data(place)
    for how, rows in find_rows(data, schema):
        if (found := _to_result(rows, schema, many)) is not None:
            return how, found
    if ctx.llm is not None:
        try:
            rows = await ask_model(ctx.llm, data.text, schema, many)
        except Agent3Error as error:
            logger.warning("The model could not read the page: %s", error.message)
            rows = []
        if (found := _to_result(rows, schema, many)) is not None:
            return "model", found
    return "nothing", None


def _to_result(rows: list[dict[str, Any]], schema: Schema, many: bool) -> Any:
    """The rows as values of their types; None if there are none, or one lacks what is required."""
    try:
        found = [typed_row(row, schema) for row in rows]
    except MalformedResponse:
        return None
    found = [row for row in found if not _is_empty(row)]
    if not found:
        return None
    return found if many else found[0]


def _is_empty(found: Any) -> bool:
    """Nothing at all, or rows whose every field is empty."""
    if isinstance(found, dict):
        return all(
            value in (None, [], "", False) or (isinstance(value, dict) and _is_empty(value)) for value in found.values()
        )
    if isinstance(found, list):
        return all(_is_empty(row) for row in found)
    return found is None or found == ""
