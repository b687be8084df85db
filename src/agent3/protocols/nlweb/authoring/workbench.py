"""Making and trying interfaces, for one person at a terminal: learn, record, run and check, with a browser of its own.

Everything runs in the same sandbox as in the gateway. It prints nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import MalformedResponse, SecurityError, SetupError, TargetError, Unavailable
from agent3.protocols.nlweb.authoring.checking import Finding, check
from agent3.protocols.nlweb.authoring.learning import draft_page, learn
from agent3.protocols.nlweb.authoring.modelling import Helper, do_kept, do_with_model
from agent3.protocols.nlweb.authoring.recording import RecordedStep, Recorder
from agent3.protocols.nlweb.authoring.reviewing import take_pictures
from agent3.protocols.nlweb.browser import installation
from agent3.protocols.nlweb.browser.chromium import Chrome
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, host_and_port
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.commands import actions_of, understand
from agent3.protocols.nlweb.connector import agent_of
from agent3.protocols.nlweb.driver import Confirm, Driven, drive
from agent3.protocols.nlweb.steps import consent_banners
from agent3.protocols.nlweb.steps.parameters import prepare
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.visit.local_profile import OWNER, LocalProfile
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.page_session import OnStep, Session
from agent3.protocols.nlweb.visit.visits import OnNotice, Visits

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

__all__ = ["check_interface", "drive_page", "drive_session", "learn_page", "record_page", "run_action"]

_BARE_ADDRESS = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?(/\S*)?")
_ANSWER_SECONDS = 10.0
_QUIET_MS = 3_000.0


async def learn_page(
    url: str,
    *,
    name: str | None = None,
    profile: LocalProfile | None = None,
    pictures: Path | None = None,
) -> NLWebInterface:
    """The interface that a page suggests; errors as those of a navigation, MalformedResponse if it suggests none.

    With ``pictures``, a folder, each action that stands in one place of the page is shown there as ACTION.png. A page
    that the site's robots.txt disallows is not looked at: SecurityError.
    """
    interface = _site_of_page(url)
    await _require_reachable(interface)
    await (profile or LocalProfile()).robots.require(interface, url)
    async with _open_page(interface, url) as session:
        await _settle(session.page)
        made, places = await draft_page(session.page, name=name)
        if pictures is not None:
            await take_pictures(session.page, places, pictures)
        return made


async def record_page(
    url: str,
    *,
    action: str = "recorded",
    headless: bool = False,
    until: Callable[[Page], Awaitable[None]],
    on_step: Callable[[RecordedStep], None] | None = None,
) -> NLWebInterface:
    """What a person does on the page, from now ``until`` that is done, as an interface with one action.

    A browser that is gone by then does not matter: what was recorded is kept.
    """
    recorder = Recorder(on_step)
    interface = _site_of_page(url)
    _require_window(headless)
    await _require_reachable(interface)
    session = Session(interface, NLWebSandbox.of(interface))
    await session.open(headless=headless)
    try:
        page = session.page
        await recorder.begin(page.context, page)
        await session.perform(NLWebAction(action_type=ActionType.NAVIGATE, value=url))
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
    on_notice: OnNotice | None = None,
    profile: LocalProfile | None = None,
) -> Any:
    """Run one action, as the gateway would, with what ``profile`` knows. ``trace`` is where its trace is written."""
    prepare(interface, action, parameters)
    if trace is not None:
        # A secret may be typed in the course of the action, or of the login that comes before it.
        login = Login.of(interface)
        steps = [*interface.actions[action], *(interface.actions[login.action] if login else ())]
        login_secret = login is not None and any(value.startswith("env:") for value in login.parameters.values())
        if login_secret or any("{secret:" in step.model_dump_json() for step in steps):
            raise SetupError(f"{action!r} uses a secret, which a trace would contain. Run it without --trace.")
    _require_window(headless)
    keys = Overrides.read().keys
    profile = profile or LocalProfile()
    visits = Visits(
        Pool(1, make=lambda: Chrome(headless=headless, keys=keys)),
        sessions=profile.sessions,
        grants=profile.grants,
        robots=profile.robots,
        finder=profile.finder,
        snapshots=None if trace is None else lambda: _Traced(trace),
    )
    try:
        return await visits.run(interface, action, parameters, principal=OWNER, on_step=on_step, on_notice=on_notice)
    finally:
        await visits.aclose()


async def drive_page(
    url: str,
    sentence: str,
    *,
    confirm: Confirm,
    headless: bool = True,
    profile: LocalProfile | None = None,
    helper: Helper | None = None,
    uploads: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[Driven, dict[str, str]]:
    """Do on an unknown page what a sentence says; also where that led: the address, title and text of the page.

    Where a sentence of one clause names nothing on the page, the question also tells what the page's forms would need.
    ``confirm`` is told of what has consequences before it is done, and may raise. ``uploads`` is the folder that files
    may come from. ``tell`` is told what has to be done before the rest can be looked for.
    """
    profile = profile or LocalProfile()
    interface = _site_of_page(url)
    _require_window(headless)
    await _require_reachable(interface)
    state = await profile.load_state(interface)
    async with _open_page(interface, url, headless=headless, state=state, uploads=uploads) as session:
        result = await drive_session(session, sentence, confirm=confirm, helper=helper, tell=tell)
        page = session.page
        await _settle(page)
        text = await page.locator("body").inner_text(timeout=_QUIET_MS)
        await profile.save_state(interface, await session.state())
        return result, {"url": page.url, "title": await page.title(), "text": text}


async def drive_session(
    session: Session,
    sentence: str,
    *,
    confirm: Confirm,
    helper: Helper | None = None,
    tell: Callable[[str], None] | None = None,
) -> Driven:
    """As ``drive_page``, on the page that a session has open.

    With a ``helper``, what a model did for such a sentence before is done again without it; and where the rules find
    nothing to do, it is asked.
    """
    if helper is not None and (kept := await do_kept(session, sentence, helper, confirm=confirm)) is not None:
        return kept
    answer, session.ctx.answer = session.ctx.answer, None  # the driver answers the page's dialogs
    try:
        result = await drive(
            session.page,
            sentence,
            confirm=confirm,
            unblock=lambda: consent_banners.clear_banner(session.ctx),
            uploads=session.ctx.uploads,
            tell=tell,
        )
    finally:
        session.ctx.answer = answer
    if helper is not None and not result.done:
        helped = await do_with_model(session, sentence, helper, confirm=confirm)
        if helped is not None:
            return helped
    return await _ask_by_offers(session, sentence, result) if result.offers else result


async def _ask_by_offers(session: Session, sentence: str, before: Driven) -> Driven:
    """The same result, with what the page's forms would need for such a sentence. It is asked, never done."""
    try:
        offered = await learn(session.page)
    except MalformedResponse:
        return before
    agent = agent_of(offered)
    found = await understand(sentence, agent, actions_of(agent))
    asked = [question.text for question in found.questions]
    return replace(before, question="\n".join([before.question or "", *asked])) if asked else before


async def check_interface(
    interface: NLWebInterface,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    profile: LocalProfile | None = None,
) -> list[Finding]:
    """How each step of each action stands on the live website, with the cookies of ``profile``."""
    await _require_reachable(interface)
    session = Session(interface, NLWebSandbox.of(interface))
    await session.open(state=await (profile or LocalProfile()).load_state(interface))
    try:
        return await check(session, interface, parameters)
    finally:
        await session.aclose()


# Traces


class _Traced(Snapshots):
    """Keeps the trace of an action that went well, too."""

    def __init__(self, path: Path):
        super().__init__(path.parent, trace=True)
        self._path = path

    async def end(self, context: BrowserContext, *, private: bool = False) -> None:
        """After an action that succeeded. Where a password was typed the trace would hold it."""
        self._tracing.discard(context)
        try:
            await context.tracing.stop(path=None if private else self._path)
        except playwright().Error as error:
            raise TargetError(f"The trace could not be written: {error.message.splitlines()[0]}") from None
        if private:
            self._path.unlink(missing_ok=True)  # that of an earlier run, which this one would have replaced
            raise TargetError("A password was typed, which the trace would contain, so no trace was written.")


# Pages


def _site_of_page(url: str) -> NLWebInterface:
    """The interface of a page of which nothing is known but its address; SetupError if that is not one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise SetupError(f"{url[:200]!r} is not the address of a website. Write https://host/path.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        is_bare = _BARE_ADDRESS.fullmatch(url) is not None
        advice = f"Did you mean https://{url[:200]} ?" if is_bare else "Write https://host/path."
        raise SetupError(f"{url[:200]!r} is not the address of a website. {advice}")
    base = f"{parts.scheme}://{parts.netloc}"
    return NLWebInterface(interface_id=parts.hostname, name=parts.hostname, base_url=base)


@asynccontextmanager
async def _open_page(
    interface: NLWebInterface, url: str, *, headless: bool = True, state: Any = None, uploads: Path | None = None
) -> AsyncIterator[Session]:
    session = Session(interface, NLWebSandbox.of(interface), uploads=uploads)
    await session.open(headless=headless, state=state)
    try:
        await session.perform(NLWebAction(action_type=ActionType.NAVIGATE, value=url))
        yield session
    finally:
        await session.aclose()


async def _settle(page: Page) -> None:
    """Wait until nothing more is loaded; a page that never rests is taken as it is."""
    with suppress(playwright().TimeoutError):
        await page.wait_for_load_state("networkidle", timeout=_QUIET_MS)


async def _require_reachable(interface: NLWebInterface) -> None:
    """Before a browser starts: an address that leads nowhere, or where we may not go, is said in words."""
    guard = Guard(NLWebSandbox.of(interface), base_url=interface.base_url, overrides=Overrides.read())
    try:
        addresses = await guard.admit(*host_and_port(interface.base_url))
    except SecurityError as error:
        raise SecurityError(
            f"{error.message}; only public websites and those of this machine are visited. If the site is "
            "yours, allow it with AGENT3_HOSTS=host=address."
        ) from None
    failure = "it does not answer"
    for address, port in addresses:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(address, port)
        except TimeoutError:
            continue
        except OSError as error:  # asyncio's own text is not for people
            failure = (os.strerror(error.errno) if error.errno else str(error)).lower()
        else:
            writer.close()
            return
    raise Unavailable(
        f"{interface.base_url} cannot be reached: {failure}. Check the address and whether the site is running."
    )


def _require_window(headless: bool) -> None:
    """SetupError where a browser is to be shown and cannot be."""
    if headless:
        return
    instead = "Run it on a machine with a screen, or without a window (--headless, if there is such an option)."
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise SetupError(f"There is no display to show a browser on. {instead}")
    found = installation.require()
    if found.kind == "headless-shell":
        raise SetupError(f"{found.path} cannot show windows. Install Chromium, or name one in AGENT3_BROWSER.")
