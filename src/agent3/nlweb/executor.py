"""Running the actions of a website's interface in a real browser: the synchronous face over ``Session``.

It looks up actions, fills in parameters, keeps time and counts. Everything on the page happens in the session, on the
bridge's loop, so that an executor works from any thread and inside a running event loop.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self

from agent3 import bridge
from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import Agent3Error, CallTimeout, CapabilityNotFound, SecurityError, SetupError, ValidationError
from agent3.nlweb.page import View
from agent3.nlweb.parameters import describe, inject, nearest, used
from agent3.nlweb.sandbox import NLWebSandbox, Overrides, Resolver
from agent3.nlweb.session import Session, Timeouts
from agent3.nlweb.steps import YIELDING
from agent3.observe import logs
from agent3.observe.metrics import METRICS, Metrics
from agent3.observe.performance import NLWebPerformanceMonitor

__all__ = ["NLWebExecutor"]

TARGETS = {ActionType.NAVIGATE: 3.0, ActionType.EXTRACT: 2.0}
"""RT-014's seconds for each step; every other kind has one."""

logger = logs.get("nlweb")


class NLWebExecutor:
    """Runs an interface's actions on a page of its own, in a browser that can reach nothing but that website.

    The browser runs from ``start_browser`` to ``stop_browser``, or as long as the ``with`` block; at the latest it ends
    with the process. Calls from several threads take turns. Without ``sandbox`` exactly the hosts of the interface can
    be reached; ``resolver`` and ``overrides`` say where they are (``Overrides`` tells of AGENT3_HOSTS); ``uploads`` is
    the folder that files may come from.
    """

    def __init__(
        self,
        interface: NLWebInterface,
        *,
        sandbox: NLWebSandbox | None = None,
        monitor: NLWebPerformanceMonitor | None = None,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
        timeouts: Timeouts | None = None,
        uploads: str | Path | None = None,
        metrics: Metrics = METRICS,
    ):
        self.interface = interface
        self.sandbox = sandbox or NLWebSandbox.of(interface)
        self.monitor = monitor or NLWebPerformanceMonitor(metrics)
        self.timeouts = timeouts or Timeouts()
        self._resolver = resolver
        self._overrides = overrides
        self._uploads = None if uploads is None else Path(uploads)
        self._metrics = metrics
        self._session: Session | None = None
        self._headless = True
        self._lock = RLock()

    @property
    def page(self) -> View:
        """The page, in Playwright's words as plain calls: ``page.url``, ``page.title()``, ``page.click("#go")``."""
        return View(self._running().page, bridge.run)

    def start_browser(self, headless: bool = True) -> None:
        """Start the browser; nothing happens if it runs already, and one that died is replaced.

        SetupError if there is none on this machine, MissingExtra without Playwright.
        """
        with self._lock:
            if self._session is not None and self._session.alive:
                return
            self.stop_browser()
            self._headless = headless
            self._open(None)

    def stop_browser(self) -> None:
        """End the browser with its processes and its profile; nothing happens if it does not run."""
        with self._lock:
            session, self._session = self._session, None
            self.monitor.browser_start_time = None
            if session is not None:
                _close(session)

    def execute_action(self, name: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run all steps of an action and give what they extracted: None, one result, or a list of several.

        All parameters are judged before the first step runs. CapabilityNotFound for an unknown action, ValidationError
        for a parameter that is missing or that no step uses; then the errors of the steps, each naming its step.
        """
        steps = self._steps(name)
        given = self._with_defaults(name, parameters or {})
        self._refuse_strangers(name, steps, given)
        labels = [f"{number} of {name!r} ({describe(step)})" for number, step in enumerate(steps, 1)]
        filled = [inject(step, given, label) for step, label in zip(steps, labels, strict=True)]
        with self._lock:
            self._renew(filled)
            return self._run_all(name, filled, labels)

    def _execute_single_action(self, action: NLWebAction) -> Any:
        """Run one step as it stands; what it gives, or None."""
        with self._lock:
            return self._step(self._running(), action, describe(action), self.timeouts.sequence)

    def _inject_parameters(self, action: NLWebAction, parameters: Mapping[str, Any]) -> NLWebAction:
        """The step with its placeholders filled; ValidationError names one that is missing."""
        return inject(action, parameters)

    def __enter__(self) -> Self:
        self.start_browser()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_browser()

    # Looking up and judging

    def _steps(self, name: str) -> list[NLWebAction]:
        if name in self.interface.actions:
            return self.interface.actions[name]
        known = self.interface.actions
        raise CapabilityNotFound(
            f"{self.interface.name!r} has no action {name!r}. {nearest(name, known)}", data={"known": sorted(known)}
        )

    def _properties(self, name: str) -> dict[str, Any]:
        info = self.interface.info.get(name)
        schema = (info and info.input_schema) or {}
        return dict(schema.get("properties", {}))

    def _with_defaults(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        properties = self._properties(name)
        defaults = {
            key: one["default"] for key, one in properties.items() if isinstance(one, dict) and "default" in one
        }
        return {**defaults, **parameters}

    def _refuse_strangers(self, name: str, steps: list[NLWebAction], parameters: Mapping[str, Any]) -> None:
        """A parameter that nothing speaks of is a misspelt one."""
        known = used(steps) | set(self._properties(name))
        if stray := sorted(set(parameters) - known):
            raise ValidationError(
                f"Parameter {stray[0]!r} is used by no step of {name!r}. {nearest(stray[0], known)}",
                errors=[{"path": f"/{one}", "expected": "a parameter of the action"} for one in stray],
            )

    # Running

    def _running(self) -> Session:
        if self._session is None:
            raise SetupError(f"The browser of {self.interface.name!r} is not running. Call start_browser() first.")
        return self._session

    def _run_all(self, name: str, steps: list[NLWebAction], labels: list[str]) -> Any:
        deadline = time.monotonic() + self.timeouts.sequence
        results = []
        for step, label in zip(steps, labels, strict=True):
            left = deadline - time.monotonic()
            if left <= 0:
                raise CallTimeout(
                    f"{name!r} took longer than {self.timeouts.sequence:g} s; step {label} was not begun."
                )
            result = self._step(self._running(), step, label, left)
            if step.action_type in YIELDING:
                results.append(result)
        return results if len(results) > 1 else next(iter(results), None)

    def _step(self, session: Session, step: NLWebAction, label: str, left: float) -> Any:
        start = time.perf_counter()
        status = "error"
        try:
            result = bridge.run(session.perform(step, label, left))
            status = "success"
        except Agent3Error as error:
            status = _status(error)
            raise
        finally:
            self._record(step.action_type, status, time.perf_counter() - start)
        return result

    def _record(self, kind: ActionType, status: str, seconds: float) -> None:
        self._metrics.nlweb_actions_executed.inc((kind.value, status))
        if status == "success":
            self.monitor.action_latencies.append(seconds)
        target = TARGETS.get(kind, 1.0)
        if seconds > target:
            self._metrics.missed_targets.inc((f"nlweb_{kind.value}",))
            logger.warning("%s took %.2fs (target: %ss)", kind.value, seconds, target)

    # The browser's life

    def _open(self, state: Any) -> None:
        session = Session(
            self.interface,
            self.sandbox,
            resolver=self._resolver,
            overrides=self._overrides,
            timeouts=self.timeouts,
            uploads=self._uploads,
        )
        bridge.run(session.open(headless=self._headless, state=state))
        _OPEN[session] = os.getpid()
        self._session = session
        self.monitor.browser_start_time = time.time()

    def _renew(self, steps: list[NLWebAction]) -> None:
        """A fresh browser, with the old one's cookies, once the monitor finds it old.

        Only before an action that begins by navigating: any other counts on the page that is open.
        """
        session = self._running()
        navigates = bool(steps) and steps[0].action_type is ActionType.NAVIGATE
        if not navigates or (session.alive and not self.monitor.should_restart_browser()):
            return
        state = bridge.run(session.state()) if session.alive else None
        self.stop_browser()
        self._open(state)
        self._metrics.nlweb_browser_restarts.inc()


def _status(error: Agent3Error) -> str:
    if isinstance(error, CallTimeout):
        return "timeout"
    return "blocked" if isinstance(error, SecurityError) else "error"


_OPEN: dict[Session, int] = {}
"""The sessions whose browsers run, with the process that started them."""


def _close(session: Session) -> None:
    _OPEN.pop(session, None)
    bridge.run(session.aclose())


def _close_all() -> None:
    """At exit. A forked child shares the pipes of its parent's browsers, but they are not its to end."""
    for session, pid in list(_OPEN.items()):
        if pid == os.getpid():
            _close(session)


# After the bridge's own farewell was registered, hence before it runs.
atexit.register(_close_all)
