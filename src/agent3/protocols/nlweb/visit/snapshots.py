"""What is kept of a page when a step fails: its picture, what was on it, what was done before, and a trace if wanted.

It is for people who look into a failure. Secrets and passwords are not in it; a Playwright trace, which would hold
them, is thrown away where one was used. Nothing of it goes out on the wire but its name.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
import tempfile
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from msgspec import Struct, to_builtins

from agent3.errors import Agent3Error
from agent3.identity.secrets import Secret
from agent3.observe import logs
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.wellformed import well_formed

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Locator, Page

__all__ = ["Done", "Snapshot", "Snapshots", "covers"]

T = TypeVar("T")

logger = logs.get("nlweb")

_SECONDS = 2.0
_LONGEST = 1_000_000
_CONTENT = "most => document.documentElement.outerHTML.slice(0, most)"
_HIDDEN = "•••"
_FIELDS = "input:not([type=submit], [type=button], [type=image]), textarea, select, [contenteditable]"
_PASSWORDS = "() => [...document.querySelectorAll('input[type=password]')].map(one => one.value).filter(Boolean)"


class Done(Struct, frozen=True):
    """A step that was run: which, how it ended, in how many milliseconds, and where the page was then."""

    step: str
    outcome: str
    ms: int
    url: str


class Snapshot(Struct, frozen=True):
    """A page at the moment of a failure. A part that could not be had is empty."""

    name: str
    step: str
    error: str
    url: str
    at: str
    screenshot: bytes
    """PNG, passwords covered."""
    outline: str
    """The page as a screen reader has it, in YAML."""
    html: str
    steps: tuple[Done, ...]
    trace: bytes = b""
    """A zip for Playwright's trace viewer, if traces are on."""


class Snapshots:
    """Takes a snapshot of each failure, of any number of pages at once; ``last`` is the latest.

    With ``folder`` the newest ``keep`` lie there as files. ``trace`` records everything that the browser does, which
    costs some time of every step.
    """

    def __init__(self, folder: str | Path | None = None, *, trace: bool = False, keep: int = 20):
        self.last: Snapshot | None = None
        self._folder = None if folder is None else Path(folder)
        self._trace = trace
        self._keep = keep
        self._tracing: WeakSet[BrowserContext] = WeakSet()

    async def begin(self, context: BrowserContext) -> None:
        """Before the first step of an action."""
        if self._trace and context not in self._tracing:
            await context.tracing.start(screenshots=True, snapshots=True)
            self._tracing.add(context)

    async def end(self, context: BrowserContext, *, private: bool = False) -> None:
        """After an action that succeeded: its trace is not kept. ``private`` says that it could not be."""
        if context in self._tracing:
            self._tracing.discard(context)
            with suppress(playwright().Error):
                await context.tracing.stop()

    async def take(
        self,
        page: Page,
        error: Agent3Error,
        step: str,
        steps: tuple[Done, ...],
        secrets: set[str],
        *,
        private: bool = False,
    ) -> Snapshot:
        """Keep what there is to see, and name it in the error. Never fails, and takes a few seconds at the most.

        ``secrets`` are taken out of all of it; where there are any, or it is ``private``, no trace is kept.
        """
        now = datetime.now(UTC)
        passwords, screenshot, outline, content = await asyncio.gather(
            _soon(page.evaluate(_PASSWORDS), None),
            _soon(_picture(page, secrets), b""),
            _soon(page.aria_snapshot(timeout=_SECONDS * 1000), ""),
            _soon(page.evaluate(_CONTENT, 2 * _LONGEST), ""),
        )
        if not _are_texts(passwords) or not isinstance(content, str):
            # Without knowing them they cannot be taken out; and a page may give what it likes.
            passwords, outline, content, private = [], "", "", True
        outline, content = well_formed((outline, content))
        hidden = _spellings(one for one in [*secrets, *passwords] if one)
        self.last = Snapshot(
            name=f"{now:%Y%m%dT%H%M%S%f}-{_slug(step)}",
            step=step,
            error=_without(well_formed(error.message), hidden),
            url=_without(page.url, hidden),
            at=now.isoformat(),
            screenshot=screenshot,
            outline=_without(outline, hidden),
            html=_without(content, hidden)[:_LONGEST],
            steps=tuple(Done(one.step, one.outcome, one.ms, _without(one.url, hidden)) for one in steps),
            trace=await self._traced(page.context, private or bool(hidden)),
        )
        error.data["snapshot"] = self.last.name
        if self._folder is not None:
            try:
                await asyncio.to_thread(_write, self.last, self._folder, self._keep)
            except (OSError, ValueError) as wrong:
                logger.warning("The snapshot of step %s could not be written: %s", step, wrong)
        return self.last

    async def _traced(self, context: BrowserContext, private: bool) -> bytes:
        if context not in self._tracing:
            return b""
        self._tracing.discard(context)
        if private:
            logger.info("the trace is not kept: a secret or password was typed, or nobody knows whether one was")
        with tempfile.TemporaryDirectory(prefix="agent3-trace-") as folder:
            path = Path(folder) / "trace.zip"
            await _soon(context.tracing.stop(path=None if private else path), None)
            return path.read_bytes() if path.exists() else b""


def covers(page: Page, secrets: Iterable[str]) -> list[Locator]:
    """What is covered in a picture of the page: where a secret was typed, all fields and every text that shows it.

    Without any secret these are the fields for passwords. The search for a text runs in Playwright's own world, where
    no script of the page hears what is looked for.
    """
    hidden = [one for one in secrets if one.strip()]
    fields = _FIELDS if hidden else "input[type=password]"
    texts = _spellings(hidden)
    places = page.frames
    return [
        *(one.locator(fields) for one in places),
        *(one.get_by_text(text) for one in places for text in texts),
    ]


async def _picture(page: Page, secrets: Iterable[str]) -> bytes:
    """What is seen, without what nobody may see."""
    return await page.screenshot(timeout=_SECONDS * 1000, mask=covers(page, secrets), animations="disabled")


async def _soon(work: Awaitable[T], instead: T) -> T:
    """What it gives, or the other thing: a page that just failed may be slow, or gone."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await work
    except (TimeoutError, playwright().Error):
        return instead


def _are_texts(said: Any) -> bool:
    return isinstance(said, list) and all(isinstance(one, str) for one in said)


def _spellings(hidden: Iterable[str]) -> list[str]:
    """The ways in which a page, an address or a message may write them, the longest first."""
    found = {form for one in hidden for form in (one, html.escape(one), html.escape(one, False), *Secret(one).forms())}
    return sorted(found, key=len, reverse=True)


def _without(text: str, hidden: list[str]) -> str:
    for one in hidden:
        text = text.replace(one, _HIDDEN)
    return text


def _slug(step: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")[:60] or "step"


def _write(snapshot: Snapshot, folder: Path, keep: int) -> None:
    """For the owner's eyes only; the oldest make room."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = folder / snapshot.name
    place.mkdir(mode=0o700)
    about: dict[str, Any] = {"step": snapshot.step, "error": snapshot.error, "url": snapshot.url, "at": snapshot.at}
    about["steps"] = to_builtins(snapshot.steps)
    (place / "about.json").write_text(json.dumps(about, indent=2, ensure_ascii=False), encoding="utf-8")
    (place / "page.html").write_text(snapshot.html, encoding="utf-8")
    (place / "outline.yaml").write_text(snapshot.outline, encoding="utf-8")
    (place / "screenshot.png").write_bytes(snapshot.screenshot)
    if snapshot.trace:
        (place / "trace.zip").write_bytes(snapshot.trace)
    for old in sorted(one for one in folder.iterdir() if (one / "about.json").exists())[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
