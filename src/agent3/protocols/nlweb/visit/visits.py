"""Visits to websites: a slot, a browser, the caller's own session, a login where one is wanted, and the action.

Each visit has a context of its own, so that two callers share neither cookies nor page. ``visit`` makes one and leaves
checks, retries and the deadline to the call chain; ``run`` is for callers without the chain. It knows no protocol.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, CallTimeout, Interrupted, SetupError, TargetError, TargetRefused, Unavailable
from agent3.identity.secrets import EnvironmentVault, Secret, Vault
from agent3.llm.port import LLM
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.chromium import Chrome
from agent3.protocols.nlweb.browser.pool import Pool
from agent3.protocols.nlweb.browser.sandbox import Overrides
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.actions import YIELDING
from agent3.protocols.nlweb.steps.locator import Finder
from agent3.protocols.nlweb.steps.page_reading import read_news
from agent3.protocols.nlweb.steps.parameters import prepare
from agent3.protocols.nlweb.steps.run_context import Source
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.visit.login import REFERENCE, Accounts, Login
from agent3.protocols.nlweb.visit.page_session import (
    READING,
    OnStep,
    OnWaiting,
    Session,
    Timeouts,
    Tools,
    watch_steps,
)
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.throttle import Pace, Throttle, site_of

__all__ = ["MakeFinder", "OnNotice", "Visited", "Visits", "Work"]

log = logger("nlweb")

_ATTEMPTS = 3
"""Browsers that ``run`` may use."""
_LATENCIES = 1_000
_SECRET = re.compile(r"\{secret:([\w-]+)\}")

MakeFinder = Callable[[NLWebInterface], Finder]
"""Makes the finder of an interface's elements."""
Work = Callable[[Session], Awaitable[Any]]
"""Uses the page that the steps have opened; what it returns is the result."""
OnNotice = Callable[[Sequence[str]], None]
"""Called after an action with what was done or met besides its steps, in sentences."""


class Visited(Struct, frozen=True):
    """What a visit brought."""

    result: Any
    """None, one result, or a list of several."""
    sources: list[Source]
    """Where each extraction had its data from."""
    heals: list[dict[str, Any]]
    """Selectors that did not fit, and what was used in their place."""
    tools: list[str]
    """Tools of the pages themselves that were called."""
    notices: list[str]
    """What was done or met besides the steps, in sentences."""
    page: str = ""
    """Where it ended: the address of the page, without what may hold a secret."""
    seen: list[str] = []
    """What the page said to the last press of an action that reads nothing, line by line."""

    def answer(self, interface: NLWebInterface, action: str) -> Any:
        """The result; of an action that promises and reads nothing, that it was done, where, and what the page said."""
        info = interface.info.get(action)
        if self.result is not None or (info is not None and info.output_schema is not None):
            return self.result
        return {"done": action, "page": self.page, **({"seen": self.seen} if self.seen else {})}


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
        robots: Robots | None = None,
        timeouts: Timeouts | None = None,
        finder: MakeFinder | None = None,
        snapshots: Callable[[], Snapshots] | None = None,
        llm: LLM | None = None,
        metrics: Metrics = METRICS,
    ):
        self.overrides = Overrides.read()
        self.pool = pool or Pool(make=lambda: Chrome(keys=self.overrides.keys), metrics=metrics)
        self.sessions = sessions
        self.vault = vault or EnvironmentVault()
        self.grants = grants or Grants()
        self.accounts = Accounts()
        self.throttle = Throttle(metrics=metrics)
        self.robots = robots or Robots(overrides=self.overrides)
        self.timeouts = timeouts or Timeouts()
        self.finder = finder
        self.snapshots = snapshots
        self.llm = llm
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self.watch = watch_steps(metrics, self.latencies)

    async def run(
        self,
        interface: NLWebInterface,
        name: str,
        parameters: Mapping[str, Any],
        *,
        principal: str,
        on_step: OnStep | None = None,
        on_notice: OnNotice | None = None,
    ) -> Any:
        """Run an action for a caller without the call chain, and give its ``answer``.

        The parameters are checked first. If the browser dies, the visit is repeated in another one, provided that it
        has only read or that the action may be repeated. Errors as those of ``prepare`` and of ``visit``.
        """
        steps, given = prepare(interface, name, parameters)
        info = interface.info.get(name)
        is_idempotent = info is not None and info.hints.idempotent
        for attempt in range(1, _ATTEMPTS + 1):
            visit = _Visit(self, interface, principal, on_step=on_step)
            try:
                visited = await visit.run(name, steps, given)
            except Interrupted as error:
                if attempt == _ATTEMPTS or (error.sent and not is_idempotent):
                    raise
                log.warning("%s: the browser ended; restarting the visit", interface.name)
                continue
            if on_notice is not None:
                on_notice(visited.notices)
            return visited.answer(interface, name)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def visit(
        self,
        interface: NLWebInterface,
        name: str,
        steps: Sequence[NLWebAction],
        parameters: Mapping[str, Any],
        *,
        principal: str,
        seconds: float | None = None,
        on_step: OnStep | None = None,
        on_waiting: OnWaiting | None = None,
        then: Work | None = None,
    ) -> Visited:
        """Run prepared steps once, within ``seconds``, for a caller that repeats a visit which was not sent.

        ``then`` goes on where they end, as something that touches the page.

        Interrupted if the browser died: our failure, not the website's. An error is not ``sent`` if only pages had been
        read by then. Other errors are those of the steps, each naming its step.
        """
        end = None if seconds is None else time.monotonic() + seconds
        visit = _Visit(
            self, interface, principal, end=end, repeated=True, on_step=on_step, on_waiting=on_waiting, then=then
        )
        return await visit.run(name, steps, parameters)

    async def aclose(self) -> None:
        await self.pool.aclose()


def _yields(steps: Sequence[NLWebAction]) -> bool:
    """Whether an action reads something, which then is its result."""
    return any(
        step.action_type in {*YIELDING, ActionType.TOOL} or _yields(step.steps) or _yields(step.otherwise)
        for step in steps
    )


class _Visit:
    """One visit, from its slot to its end. ``repeated`` says that the caller repeats what was not sent."""

    def __init__(
        self,
        visits: Visits,
        interface: NLWebInterface,
        principal: str,
        *,
        end: float | None = None,
        repeated: bool = False,
        on_step: OnStep | None = None,
        on_waiting: OnWaiting | None = None,
        then: Work | None = None,
    ):
        self._then = then
        self._visits = visits
        self._interface = interface
        self._principal = principal
        self._end = end
        self._repeated = repeated
        self._on_step = on_step
        self._on_waiting = on_waiting
        self._login = Login.of(interface)
        self._logged_in = False

    async def run(self, name: str, steps: Sequence[NLWebAction], parameters: Mapping[str, Any]) -> Visited:
        visits, interface = self._visits, self._interface
        async with (
            # The site's slot first: a visit that waits for one keeps no browser from others.
            visits.throttle.visit(site_of(interface.base_url), Pace.of(interface), self._principal),
            visits.pool.lease(self._principal) as chrome,
        ):
            before: dict[str, Any] | None = None
            if visits.sessions is not None and visits.grants.covers(interface):
                before = await visits.sessions.load(self._principal, scope_of(interface))
            elif visits.sessions is not None:
                # A session may have been opened by secrets that this interface may not have.
                log.warning("%s: without its secrets it gets no session either", interface.name)
            secrets = await self._load_secrets(name)
            session = Session(
                interface,
                await visits.robots.sandbox(interface),
                chrome=chrome,
                overrides=visits.overrides,
                timeouts=visits.timeouts,
                throttle=visits.throttle,
                robots=visits.robots,
                watch=visits.watch,
                on_step=self._on_step,
                on_waiting=self._on_waiting,
                tools=Tools(
                    finder=visits.finder(interface) if visits.finder else None,
                    llm=visits.llm,
                    secrets=lambda secret: secrets[secret].reveal(),
                    snapshots=visits.snapshots() if visits.snapshots else None,
                ),
            )
            try:
                await session.open(state=before)
                session.tells = not _yields(steps)
                result = await self._act(session, name, steps, parameters, known=before is not None)
                ctx = session.ctx
                visited = Visited(
                    result=result,
                    sources=list(ctx.sources),
                    heals=ctx.finder.describe_heals(),
                    tools=[*dict.fromkeys(ctx.tools)],
                    notices=list(ctx.notices),
                    page=ctx.page.url.partition("?")[0].partition("#")[0],
                    seen=ctx.without_secrets(await read_news(ctx)) if result is None else [],
                )
                await self._save_state(session, before)
                return visited
            except Agent3Error as error:
                if not chrome.alive or (session.crashed and not session.oversized):
                    info = interface.info.get(name)
                    ended = Interrupted(error.message, data=error.data)
                    ended.sent = session.touched and not (info is not None and info.hints.read_only)
                    raise ended from None
                if isinstance(error, CallTimeout | Unavailable) and not (session.touched or self._logged_in):
                    error.sent = False  # only pages were read
                raise
            finally:
                await session.aclose()

    async def _act(
        self,
        session: Session,
        name: str,
        steps: Sequence[NLWebAction],
        parameters: Mapping[str, Any],
        *,
        known: bool,
    ) -> Any:
        """Run the action, after a login if the site does not know the caller, or says that it no longer does."""
        login = self._login
        if login is None or name == login.action:
            return await self._run_steps(session, name, steps, parameters)
        session.login_selector = login.asks
        if known:
            try:
                return await self._run_steps(session, name, steps, parameters)
            except TargetRefused:
                if session.touched:
                    raise
        self._visits.grants.require(self._interface, login.variables)
        values, secrets = await login.fill(self._visits.vault)
        session.ctx.used_secrets.update(secret.reveal() for secret in secrets)
        async with self._visits.accounts.attempt(self._interface, login, values) as account:
            self._logged_in = True
            session.login_selector = None
            try:
                login_steps, given = prepare(self._interface, login.action, values)
                await self._run_steps(session, login.action, login_steps, given)
            except Agent3Error as error:
                error.message = f"The login failed. {error.message}"
                error.args = (error.message,)
                # The site said no, unless it, or the browser, went away before it could.
                is_answer = isinstance(error, TargetError) and not isinstance(error, Unavailable)
                if is_answer and session.touched and session.alive:
                    account.reject()
                raise
            finally:
                session.login_selector = login.asks
            session.touched = False  # to be logged in is only the beginning
            await self._save_state(session, None)
            try:
                result = await self._run_steps(session, name, steps, parameters)
            except TargetRefused:
                with suppress(SetupError, playwright().Error):
                    # What the site shows to visitors who are not logged in.
                    if login.asks is not None and await session.page.locator(login.asks).first.is_visible():
                        account.reject()
                raise
            # Only now it is certain: a site may accept a wrong password and ask for the login again.
            account.accept()
            return result

    async def _run_steps(
        self, session: Session, name: str, steps: Sequence[NLWebAction], parameters: Mapping[str, Any]
    ) -> Any:
        if self._repeated and not self._logged_in:
            # Until something is touched the caller repeats the whole visit, and a navigation does not also try again by
            # itself. From then on only the step can; and what an interface declares (``retries``) stays.
            reading = next((n for n, step in enumerate(steps) if step.action_type not in READING), len(steps))
            steps = [
                step.model_copy(update={"retries": 0})
                if number < reading and step.action_type is ActionType.NAVIGATE and step.retries is None
                else step
                for number, step in enumerate(steps)
            ]
        result = await session.run(name, steps, parameters, seconds=self._seconds_left())
        if self._then is None or (self._login is not None and name == self._login.action):
            return result
        session.touched = True
        try:
            async with asyncio.timeout(self._seconds_left()):
                return await self._then(session)
        except TimeoutError:
            raise CallTimeout(f"{name} at {self._interface.name} took longer than the time it had.") from None
        except playwright().Error as error:
            raise Unavailable(f"The page closed during {name}: {error.message.splitlines()[0][:200]}") from None

    def _seconds_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    async def _load_secrets(self, name: str) -> dict[str, Secret]:
        """The secrets in the steps of the action and of the login that may come before it, by name.

        The interface declares their references: ``secrets: {pin: env:SHOP_PIN}``. SetupError for a secret that is not
        declared, or that the operator does not grant to this website.
        """
        actions = {name, *([self._login.action] if self._login else ())}
        steps = [step for action in actions for step in self._interface.actions[action]]
        names = {found for step in steps for found in _SECRET.findall(step.model_dump_json())}
        declared = self._interface.metadata.get("secrets") or {}
        secrets = {}
        for secret in sorted(names):
            if not isinstance(declared, Mapping) or not str(declared.get(secret, "")).startswith(REFERENCE):
                raise SetupError(
                    f"{self._interface.name!r} uses the secret {secret!r} without saying where it is. Add to "
                    f"its metadata: secrets: {{{secret}: env:NAME}}."
                )
            reference = str(declared[secret])
            self._visits.grants.require(self._interface, [reference.removeprefix(REFERENCE)])
            secrets[secret] = await self._visits.vault.get(reference)
        return secrets

    async def _save_state(self, session: Session, before: Mapping[str, Any] | None) -> None:
        """Store the state for the next visit. The action is done: a failure here must not change how it ended."""
        visits = self._visits
        try:
            state = await session.state()
            if state == before or (before is None and not state["cookies"] and not state["origins"]):
                return
            if visits.sessions is not None and visits.grants.covers(self._interface):
                await visits.sessions.save(self._principal, scope_of(self._interface), state)
        except Unavailable:
            return
        except Exception as error:  # noqa: BLE001 - whatever kept it from being stored
            log.warning("%s: the session of this visit was not stored: %s", self._interface.name, error)
