"""A visit to a website: a place in the pool, the caller's own session, a login where one is wanted, and the action.

Each visit has a context of its own, so that two callers share neither cookies nor page. A browser that dies is no end:
what has only read so far, or says that it may be repeated, begins again in another one. It knows no protocol.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.errors import Agent3Error, CallTimeout, Interrupted, SetupError, TargetError, TargetRefused, Unavailable
from agent3.identity.secrets import EnvironmentVault, Secret, Vault
from agent3.llm.port import LLM
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.chromium import Chrome
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.sandbox import Overrides, Resolver
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.locator import Finder
from agent3.protocols.nlweb.steps.preparation import prepare
from agent3.protocols.nlweb.steps.scene import Source
from agent3.protocols.nlweb.visit.login import Accounts, Login
from agent3.protocols.nlweb.visit.page_session import OnStep, Session, Timeouts, Tools, watching
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.snapshots import Snapshots
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.throttle import Asking, Pace, Throttle, site_of

__all__ = ["OnNotice", "Visits"]

log = logger("nlweb")

_TRIES = 3
"""Browsers that one visit may take."""
_KEPT = 1_000
_SECRET = re.compile(r"\{secret:([\w-]+)\}")

Finding = Callable[[NLWebInterface], Finder]
"""Who finds the elements of an interface."""
Recording = Callable[[], Snapshots]
"""Who keeps what a failure looked like."""
OnRead = Callable[[Sequence[Source]], None]
"""Hears, after an action, where each of its extractions had its data from."""
OnNotice = Callable[[Sequence[str]], None]
"""Hears, after an action, what was done or met besides its steps, in sentences."""
OnHeal = Callable[[Sequence[dict[str, Any]]], None]
"""Hears, after an action, which of its selectors did not fit, and what was taken in their place."""
OnTool = Callable[[Sequence[str]], None]
"""Hears, after an action, which tools of the page itself it was done by."""


class Visits:
    """All visits of a process. It belongs to the event loop it is used in.

    Without ``sessions`` nothing is remembered from one visit to the next, and without ``grants`` no secret is given.
    """

    def __init__(
        self,
        pool: Pool | None = None,
        *,
        sessions: Sessions | None = None,
        vault: Vault | None = None,
        grants: Grants | None = None,
        throttle: Throttle | None = None,
        robots: Robots | None = None,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
        timeouts: Timeouts | None = None,
        uploads: Path | None = None,
        finder: Finding | None = None,
        snapshots: Recording | None = None,
        llm: LLM | None = None,
        metrics: Metrics = METRICS,
    ):
        self._finder = finder
        self._snapshots = snapshots
        self._llm = llm
        self._overrides = overrides or Overrides.read()
        self.pool = pool or Pool(make=lambda: Chrome(keys=self._overrides.keys), metrics=metrics)
        self._sessions = sessions
        self._vault = vault or EnvironmentVault()
        self._grants = grants or Grants()
        self.accounts = Accounts()
        self._throttle = throttle or Throttle(metrics=metrics)
        self._robots = robots or Robots(resolver=resolver, overrides=self._overrides)
        self._resolver = resolver
        self._timeouts = timeouts
        self._uploads = uploads
        self.latencies: deque[float] = deque(maxlen=_KEPT)
        self._watch = watching(metrics, self.latencies)

    async def run(
        self,
        interface: NLWebInterface,
        name: str,
        parameters: Mapping[str, Any],
        *,
        principal: str,
        on_step: OnStep | None = None,
        on_read: OnRead | None = None,
        on_heal: OnHeal | None = None,
        on_asking: Asking | None = None,
        on_tool: OnTool | None = None,
        on_notice: OnNotice | None = None,
    ) -> Any:
        """Run an action for a principal: None, one result, or a list of several; errors as those of its steps.

        ``on_step`` hears of every step before it runs, ``on_read`` where the result was read, before it is given, and
        ``on_heal`` what was healed for it. ``on_asking`` hears when the website is waited for, and when not any more;
        ``on_tool`` which tools of the page itself it was done by, ``on_notice`` what else there is to know of it.
        """
        prepare(interface, name, parameters)  # before a browser is troubled
        for left in reversed(range(_TRIES)):
            visit = _Visit(self, interface, principal, on_step, on_asking)
            try:
                result = await visit.run(name, parameters)
                if on_read is not None:
                    on_read(visit.sources)
                if on_heal is not None:
                    on_heal(visit.heals)
                if on_tool is not None:
                    on_tool(visit.tools)
                if on_notice is not None:
                    on_notice(visit.notices)
                return result
            except Agent3Error as wrong:
                if not visit.died:
                    raise
                if not left or (visit.touched and not _may_repeat(interface, name)):
                    raise _cut_off(wrong) from None
                log.warning("%s: the browser went away, and the visit begins again", interface.name)
        raise AssertionError("unreachable: the last try returns or raises")

    async def aclose(self) -> None:
        """End the browsers."""
        await self.pool.aclose()

    # For a visit

    @asynccontextmanager
    async def place(self, interface: NLWebInterface, principal: str) -> AsyncIterator[Chrome]:
        """A browser to work in: first a place at the site, so that who waits for one keeps no browser from others."""
        async with (
            self._throttle.visit(site_of(interface.base_url), Pace.of(interface), principal),
            self.pool.lease(principal) as chrome,
        ):
            yield chrome

    async def session(
        self,
        interface: NLWebInterface,
        chrome: Chrome,
        on_step: OnStep | None,
        secrets: Mapping[str, Secret],
        on_asking: Asking | None = None,
    ) -> Session:
        """A session in that browser, not yet open."""
        sandbox = await self._robots.prepare(interface, self._throttle)
        tools = Tools(
            finder=self._finder(interface) if self._finder else None,
            llm=self._llm,
            secrets=lambda name: secrets[name].reveal(),
            snapshots=self._snapshots() if self._snapshots else None,
        )
        return Session(
            interface,
            sandbox,
            chrome=chrome,
            resolver=self._resolver,
            overrides=self._overrides,
            timeouts=self._timeouts,
            uploads=self._uploads,
            throttle=self._throttle if on_asking is None else self._throttle.told_to(on_asking),
            watch=self._watch,
            on_step=on_step,
            tools=tools,
        )

    async def remembered(self, principal: str, interface: NLWebInterface) -> dict[str, Any] | None:
        """What the last visit left; nothing for an interface that may not have the secrets that may have opened it."""
        if self._sessions is None:
            return None
        if not self._grants.cover(interface):
            log.warning("%s: without its secrets it is not given the session either", interface.name)
            return None
        return await self._sessions.load(principal, scope_of(interface))

    async def remember(self, principal: str, interface: NLWebInterface, state: Mapping[str, Any]) -> None:
        """What the next visit finds."""
        if self._sessions is not None and self._grants.cover(interface):
            await self._sessions.save(principal, scope_of(interface), state)

    async def filled(self, interface: NLWebInterface, login: Login) -> tuple[dict[str, Any], list[Secret]]:
        """The parameters of a login; SetupError if the website may not have them."""
        wanted = [one for one in login.parameters.values() if one.startswith("env:")]
        self._grants.require(interface, (one.removeprefix("env:") for one in wanted))
        return await login.filled(self._vault)

    async def secrets(self, interface: NLWebInterface, names: Iterable[str]) -> dict[str, Secret]:
        """The secrets that steps speak of, by the references of the interface: ``secrets: {pin: env:SHOP_PIN}``.

        SetupError for one that is not declared, or that the operator does not give to that website.
        """
        references = interface.metadata.get("secrets") or {}
        found = {}
        for name in sorted(names):
            if not isinstance(references, Mapping) or not str(references.get(name, "")).startswith("env:"):
                raise SetupError(
                    f"{interface.name!r} uses the secret {name!r} and does not say where it is. Write in its metadata: "
                    f"secrets: {{{name}: env:NAME}}."
                )
            reference = str(references[name])
            self._grants.require(interface, [reference.removeprefix("env:")])
            found[name] = await self._vault.get(reference)
        return found


def _may_repeat(interface: NLWebInterface, name: str) -> bool:
    info = interface.info.get(name)
    return info is not None and (info.hints.read_only or info.hints.idempotent)


def _cut_off(wrong: Agent3Error) -> Interrupted:
    """The end of a visit whose browser died: our failure and not the website's, so its circuit is not to blame."""
    end = Interrupted(wrong.message, data=wrong.data)
    end.sent = wrong.sent
    return end


async def _asks(session: Session, login: Login) -> bool:
    """Whether the page in front shows what the site shows to strangers."""
    try:
        return login.asks is not None and await session.page.locator(login.asks).first.is_visible()
    except (SetupError, playwright().Error):
        return False


class _Visit:
    """One of them, from its place to its end."""

    def __init__(
        self,
        house: Visits,
        interface: NLWebInterface,
        principal: str,
        on_step: OnStep | None,
        on_asking: Asking | None,
    ):
        self._house = house
        self._on_asking = on_asking
        self._interface = interface
        self._principal = principal
        self._on_step = on_step
        self._login = Login.of(interface)
        self._logged_in = False
        self.sources: tuple[Source, ...] = ()
        """Where the result was read."""
        self.tools: list[str] = []
        """Tools of the pages themselves."""
        self.notices: tuple[str, ...] = ()
        """What else there is to know of it."""
        self.heals: list[dict[str, Any]] = []
        """What was taken in place of selectors that did not fit."""
        self.died = False
        """Whether it was the browser that failed."""
        self.touched = False
        """Whether more had been done than reading."""

    async def run(self, name: str, parameters: Mapping[str, Any]) -> Any:
        async with self._house.place(self._interface, self._principal) as chrome:
            state = await self._house.remembered(self._principal, self._interface)
            secrets = await self._house.secrets(self._interface, self._spoken_of(name))
            session = await self._house.session(self._interface, chrome, self._on_step, secrets, self._on_asking)
            try:
                await session.open(state=state)
                result = await self._let_in(session, name, parameters, known=state is not None)
                self.sources = tuple(session.scene.sources)
                self.tools = [*dict.fromkeys(session.scene.tools)]
                self.heals = session.scene.finder.told()
                self.notices = tuple(session.scene.notices)
                await self._remember(session, state)
                return result
            except Agent3Error as wrong:
                self.died = not chrome.alive or (session.crashed and not session.heavy)
                self.touched = session.touched
                if isinstance(wrong, CallTimeout) and not (self.touched or self._logged_in):
                    wrong.sent = False  # pages were read, and that was all
                raise
            finally:
                await session.aclose()

    def _spoken_of(self, name: str) -> set[str]:
        """The secrets of the action, and of the login that may come before it."""
        actions = {name, *([self._login.action] if self._login else ())}
        steps = [step for one in actions for step in self._interface.actions[one]]
        return {found for step in steps for found in _SECRET.findall(step.model_dump_json())}

    async def _let_in(self, session: Session, name: str, parameters: Mapping[str, Any], *, known: bool) -> Any:
        """The action, after a login where nobody is known yet, or where the site says that it knows us no more."""
        login = self._login
        if login is None or name == login.action:
            return await self._act(session, name, parameters)
        session.asks = login.asks
        if known:
            try:
                return await self._act(session, name, parameters)
            except TargetRefused:
                if session.touched:
                    raise
        return await self._by_login(session, login, name, parameters)

    async def _by_login(self, session: Session, login: Login, name: str, parameters: Mapping[str, Any]) -> Any:
        """The login and the action. Whether the login was taken is sure only when the site no longer asks for it."""
        values, secrets = await self._house.filled(self._interface, login)
        session.scene.used_secrets.update(one.reveal() for one in secrets)
        async with self._house.accounts.trying(self._interface, login, values) as account:
            try:
                await self._log_in(session, login, values)
            except TargetError as wrong:
                if session.touched and session.alive and not isinstance(wrong, Unavailable):
                    account.turned_down()
                raise
            try:
                result = await self._act(session, name, parameters)
            except TargetRefused:
                if await _asks(session, login):
                    account.turned_down()
                raise
            account.let_in()
            return result

    async def _log_in(self, session: Session, login: Login, values: Mapping[str, Any]) -> None:
        self._logged_in = True
        session.asks, asks = None, session.asks
        try:
            await self._act(session, login.action, values)
        except Agent3Error as wrong:
            wrong.message = f"The login failed. {wrong.message}"
            wrong.args = (wrong.message,)
            raise
        finally:
            session.asks = asks
        session.touched = False  # to be let in is the beginning; what is asked for comes now
        await self._remember(session, None)

    async def _act(self, session: Session, name: str, parameters: Mapping[str, Any]) -> Any:
        steps, given = prepare(self._interface, name, parameters)
        return await session.run(name, steps, given)

    async def _remember(self, session: Session, before: Mapping[str, Any] | None) -> None:
        try:
            state = await session.state()
            if state != before and (before is not None or state["cookies"] or state["origins"]):
                await self._house.remember(self._principal, self._interface, state)
        except Unavailable:  # what was asked for is done; only the next visit knows less
            return
        except Exception as wrong:  # noqa: BLE001 - likewise, whatever kept it from being written down
            log.warning("%s: the session of this visit is not kept: %s", self._interface.name, wrong)
