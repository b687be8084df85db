"""What is kept of a page when a step fails: its picture, its content, the steps before, and a trace if wanted.

It helps people who look into a failure. Secrets and passwords are removed; a Playwright trace, which would contain
them, is discarded if one was used. Only the name of a snapshot goes out on the wire.
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
from agent3.observe.logs import get as logger
from agent3.protocols.nlweb.browser.sdk import playwright, well_formed

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Locator, Page

__all__ = ["Snapshot", "Snapshots", "StepRecord", "find_masks"]

T = TypeVar("T")

log = logger("nlweb")

_SECONDS = 2.0
_LONGEST = 1_000_000
_CONTENT = "limit => document.documentElement.outerHTML.slice(0, limit)"
_HIDDEN = "•••"
_FIELDS = "input:not([type=submit], [type=button], [type=image]), textarea, select, [contenteditable]"
_PASSWORDS = "() => [...document.querySelectorAll('input[type=password]')].map(field => field.value).filter(Boolean)"


class StepRecord(Struct, frozen=True):
    """A step that was run: its label, how it ended, its milliseconds, and the address of the page then."""

    step: str
    outcome: str
    ms: int
    url: str


class Snapshot(Struct, frozen=True):
    """A page at the moment of a failure. A part that could not be taken is empty."""

    name: str
    step: str
    error: str
    url: str
    at: str
    screenshot: bytes
    """PNG, passwords covered."""
    outline: str
    """The accessibility tree of the page, in YAML."""
    html: str
    steps: tuple[StepRecord, ...]
    trace: bytes = b""
    """A zip for Playwright's trace viewer, if traces are on."""


class Snapshots:
    """Takes a snapshot of each failure, of any number of pages at once; ``last`` is the latest.

    With ``folder`` the newest ``keep`` are written there. ``trace`` records everything that the browser does, which
    slows every step.
    """

    def __init__(self, folder: str | Path | None = None, *, trace: bool = False, keep: int = 20):
        self.last: Snapshot | None = None
        self._folder = None if folder is None else Path(folder)
        self._trace = trace
        self._keep = keep
        self._tracing: WeakSet[BrowserContext] = WeakSet()

    async def begin(self, context: BrowserContext) -> None:
        """Called before the first step of an action."""
        if self._trace and context not in self._tracing:
            try:
                await context.tracing.start(screenshots=True, snapshots=True)
            except playwright().Error:
                # One whose end was cut off, by the limit of _within_limit or a cancellation, still runs.
                await context.tracing.stop()
                await context.tracing.start(screenshots=True, snapshots=True)
            self._tracing.add(context)

    async def end(self, context: BrowserContext, *, private: bool = False) -> None:
        """Called after an action that succeeded: its trace is discarded.

        A subclass may keep it, unless it is ``private``: then something was typed that no trace may show.
        """
        if context in self._tracing:
            self._tracing.discard(context)
            with suppress(playwright().Error):
                await context.tracing.stop()

    async def take(
        self,
        page: Page,
        error: Agent3Error,
        step: str,
        steps: tuple[StepRecord, ...],
        secrets: set[str],
        *,
        private: bool = False,
    ) -> Snapshot:
        """Keep what there is to see, and name it in the error. It never fails, and takes a few seconds at most.

        ``secrets`` are removed from all of it; if there are any, or it is ``private``, no trace is kept.
        """
        now = datetime.now(UTC)

        async def picture() -> bytes:
            return await page.screenshot(timeout=_SECONDS * 1000, mask=find_masks(page, secrets), animations="disabled")

        passwords, screenshot, outline, content = await asyncio.gather(
            _within_limit(page.evaluate(_PASSWORDS), None),
            _within_limit(picture(), b""),
            _within_limit(page.aria_snapshot(timeout=_SECONDS * 1000), ""),
            _within_limit(page.evaluate(_CONTENT, 2 * _LONGEST), ""),
        )
        # Our scripts run in the page's world, so it may return anything. Unknown passwords cannot be removed.
        known = isinstance(passwords, list) and all(isinstance(password, str) for password in passwords)
        if not known or not isinstance(content, str):
            passwords, outline, content, private = [], "", "", True
        outline, content = well_formed((outline, content))
        hidden = _spell([text for text in (*secrets, *passwords) if text])
        slug = re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")[:60] or "step"
        self.last = Snapshot(
            name=f"{now:%Y%m%dT%H%M%S%f}-{slug}",
            step=step,
            error=_mask(well_formed(error.message), hidden),
            url=_mask(page.url, hidden),
            at=now.isoformat(),
            screenshot=screenshot,
            outline=_mask(outline, hidden),
            html=_mask(content, hidden)[:_LONGEST],
            steps=tuple(StepRecord(done.step, done.outcome, done.ms, _mask(done.url, hidden)) for done in steps),
            trace=await self._stop_trace(page.context, private or bool(hidden)),
        )
        error.data["snapshot"] = self.last.name
        if self._folder is not None:
            try:
                await asyncio.to_thread(_write, self.last, self._folder, self._keep)
            except (OSError, ValueError) as failure:
                log.warning("the snapshot of step %s could not be written: %s", step, failure)
        return self.last

    async def _stop_trace(self, context: BrowserContext, private: bool) -> bytes:
        if context not in self._tracing:
            return b""
        self._tracing.discard(context)
        if private:
            log.info("the trace is not stored: a secret or password was typed, or may have been")
        with tempfile.TemporaryDirectory(prefix="agent3-trace-") as folder:
            path = Path(folder) / "trace.zip"
            await _within_limit(context.tracing.stop(path=None if private else path), None)
            return path.read_bytes() if path.exists() else b""


def find_masks(page: Page, secrets: Iterable[str]) -> list[Locator]:
    """What is masked in a picture of the page: if a secret was typed, all fields and every text that shows it.

    Without secrets only password fields are masked. The search for a text runs in Playwright's isolated world, where no
    script of the page can observe what is searched for.
    """
    hidden = [secret for secret in secrets if secret.strip()]
    fields = _FIELDS if hidden else "input[type=password]"
    texts = _spell(hidden)
    return [
        *(frame.locator(fields) for frame in page.frames),
        *(frame.get_by_text(text) for frame in page.frames for text in texts),
    ]


async def _within_limit(work: Awaitable[T], instead: T) -> T:
    """The result, or ``instead``: a page that just failed may be slow, or gone."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await work
    except (TimeoutError, playwright().Error):
        return instead


def _spell(texts: Iterable[str]) -> list[str]:
    """The ways in which a page, an address or a message may write these texts, the longest first."""
    forms = {
        form for text in texts for form in (text, html.escape(text), html.escape(text, False), *Secret(text).forms())
    }
    return sorted(forms, key=len, reverse=True)


def _mask(text: str, hidden: list[str]) -> str:
    for form in hidden:
        text = text.replace(form, _HIDDEN)
    return text


def _write(snapshot: Snapshot, folder: Path, keep: int) -> None:
    """Write it so that only the owner can read it, and delete the oldest."""
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
    for old in sorted(path for path in folder.iterdir() if (path / "about.json").exists())[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
