"""Making and trying interfaces, for one person at a terminal: learn, record, run and check, with a browser of its own.

Everything runs in the same sandbox as in the gateway. It prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SetupError, TargetError
from agent3.nlweb.checking import Finding, check
from agent3.nlweb.chrome import Chrome
from agent3.nlweb.commands import Driven, drive
from agent3.nlweb.learning import learn
from agent3.nlweb.login import Login
from agent3.nlweb.pool import Pool
from agent3.nlweb.preparing import prepare
from agent3.nlweb.recording import Heard, Recorder
from agent3.nlweb.sandbox import NLWebSandbox, Overrides
from agent3.nlweb.sdk import playwright
from agent3.nlweb.session import OnStep, Session
from agent3.nlweb.snapshots import Snapshots
from agent3.nlweb.visits import Visits

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

__all__ = ["check_interface", "drive_page", "learn_page", "record_page", "run_action"]

_SECRET = re.compile(r"\{secret:")
_QUIET_MS = 3_000.0
Over = Callable[["Page"], Awaitable[None]]
"""Waits until the person is done."""


async def learn_page(url: str, *, name: str | None = None) -> NLWebInterface:
    """The interface that a page suggests; errors as those of a navigation, MalformedResponse if it suggests none."""
    async with _on(_unknown(url), url) as session:
        await _settled(session.page)
        return await learn(session.page, name=name)


async def record_page(
    url: str,
    *,
    action: str = "recorded",
    headless: bool = False,
    until: Over,
    on_step: Callable[[Heard], None] | None = None,
) -> NLWebInterface:
    """What a person does on the page, from now ``until`` then, as an interface with one action."""
    recorder = Recorder(on_step)
    interface = _unknown(url)
    session = Session(interface, NLWebSandbox.of(interface))
    await session.open(headless=headless)
    try:
        page = session.page
        await recorder.begin(page.context, page)
        await session.perform(_open(url))
        title = await page.title()
        await until(page)
        return recorder.interface(action=action, title=title)
    finally:
        await session.aclose()


async def run_action(
    interface: NLWebInterface,
    action: str,
    parameters: Mapping[str, Any],
    *,
    headless: bool = True,
    trace: Path | None = None,
    on_step: OnStep | None = None,
) -> Any:
    """Run one action, as the gateway would, without cookies from before. ``trace`` is where its trace is written."""
    prepare(interface, action, parameters)
    if trace is not None and _knows_secrets(interface, action):
        raise SetupError(f"{action!r} uses a secret, and a trace would hold it. Run it without --trace.")
    keys = Overrides.read().keys
    visits = Visits(
        Pool(1, make=lambda: Chrome(headless=headless, keys=keys)),
        snapshots=None if trace is None else lambda: _Traced(trace),
    )
    try:
        return await visits.run(interface, action, parameters, principal="local", on_step=on_step)
    finally:
        await visits.aclose()


async def drive_page(url: str, sentence: str, *, headless: bool = True) -> tuple[Driven, dict[str, str]]:
    """Do on an unknown page what a sentence says; also where that led: the address, title and text of the page."""
    async with _on(_unknown(url), url, headless=headless) as session:
        done = await drive(session.page, sentence)
        await _settled(session.page)
        page = session.page
        text = await page.locator("body").inner_text(timeout=_QUIET_MS)
        return done, {"url": page.url, "title": await page.title(), "text": text}


async def check_interface(
    interface: NLWebInterface, parameters: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Finding]:
    """How each step of each action stands on the live website."""
    session = Session(interface, NLWebSandbox.of(interface))
    await session.open()
    try:
        return await check(session, interface, parameters)
    finally:
        await session.aclose()


# Inside


def _knows_secrets(interface: NLWebInterface, action: str) -> bool:
    """Whether a secret is typed in the course of an action, or of the login that comes before it."""
    login = Login.of(interface)
    if login is not None and any(value.startswith("env:") for value in login.parameters.values()):
        return True
    steps = [*interface.actions[action], *(interface.actions[login.action] if login else ())]
    return any(_SECRET.search(step.model_dump_json()) for step in steps)


class _Traced(Snapshots):
    """Keeps the trace of an action that went well, too."""

    def __init__(self, path: Path):
        super().__init__(path.parent, trace=True)
        self._path = path

    async def end(self, context: BrowserContext) -> None:
        """After an action that succeeded."""
        self._tracing.discard(context)
        try:
            await context.tracing.stop(path=self._path)
        except playwright().Error as wrong:
            raise TargetError(f"The trace could not be written: {wrong.message.splitlines()[0]}") from None


def _unknown(url: str) -> NLWebInterface:
    """The interface of a page of which nothing is known but where it is."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(f"{url[:200]!r} is no address of a website. Give it as https://host/path.")
    base = f"{parts.scheme}://{parts.netloc}"
    return NLWebInterface(interface_id=parts.hostname, name=parts.hostname, base_url=base)


def _open(url: str) -> NLWebAction:
    return NLWebAction(action_type=ActionType.NAVIGATE, value=url)


@asynccontextmanager
async def _on(interface: NLWebInterface, url: str, *, headless: bool = True) -> AsyncIterator[Session]:
    session = Session(interface, NLWebSandbox.of(interface))
    await session.open(headless=headless)
    try:
        await session.perform(_open(url))
        yield session
    finally:
        await session.aclose()


async def _settled(page: Page) -> None:
    """Until nothing more is loaded; a page that never rests is taken as it is."""
    with suppress(playwright().TimeoutError):
        await page.wait_for_load_state("networkidle", timeout=_QUIET_MS)
