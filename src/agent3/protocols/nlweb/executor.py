"""Running the actions of a website's interface in a real browser: the synchronous face of ``Session``.

Calls take turns, and a worn browser is replaced between two actions. Everything on the page happens in the session, on
the bridge's loop, so that an executor works from any thread and inside a running event loop.
"""

from __future__ import annotations

import atexit
import inspect
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self

from agent3 import bridge
from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SetupError
from agent3.observe.metrics import METRICS, Metrics
from agent3.observe.performance import NLWebPerformanceMonitor
from agent3.protocols.nlweb.browser.chromium import Wear
from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox, Overrides, Resolver
from agent3.protocols.nlweb.healing import Healer
from agent3.protocols.nlweb.steps.parameters import inject, prepare
from agent3.protocols.nlweb.steps.run_context import Source
from agent3.protocols.nlweb.steps.snapshots import Snapshot
from agent3.protocols.nlweb.visit.page_session import Session, Timeouts, Tools, watch_steps
from agent3.protocols.nlweb.visit.throttle import Throttle

__all__ = ["NLWebExecutor"]


class NLWebExecutor:
    """Runs an interface's actions on a page of its own, in a browser that can reach nothing but that website.

    The browser runs from ``start_browser`` to ``stop_browser``, or as long as the ``with`` block; at the latest it ends
    with the process. Calls from several threads take turns. Without ``sandbox`` exactly the hosts of the interface can
    be reached; ``resolver`` and ``overrides`` say where they are (``Overrides`` explains AGENT3_HOSTS); ``uploads`` is
    the folder that files may come from; ``wear`` says when to take a fresh browser, beside the age that the monitor
    watches; ``tools`` are what its steps may use beside the page. Without a finder among them, selectors are healed for
    as long as the executor lives.
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
        wear: Wear | None = None,
        tools: Tools | None = None,
        metrics: Metrics = METRICS,
    ):
        self.interface = interface
        self.sandbox = sandbox or NLWebSandbox.of(interface)
        self.monitor = monitor or NLWebPerformanceMonitor(metrics)
        self.timeouts = timeouts or Timeouts()
        self.wear = wear or Wear(seconds=0)
        self.tools = tools or Tools()
        if self.tools.finder is None:
            self.tools = replace(self.tools, finder=Healer(interface, metrics=metrics))
        self._resolver = resolver
        self._overrides = overrides
        self._uploads = None if uploads is None else Path(uploads)
        self._metrics = metrics
        self._throttle = Throttle(metrics=metrics)
        self._session: Session | None = None
        self._headless = True
        self._lock = RLock()

    @property
    def page(self) -> View:
        """The page, with Playwright's methods as plain calls: ``page.url``, ``page.title()``, ``page.click("#go")``."""
        return View(self._get_session().page, bridge.run)

    @property
    def sources(self) -> list[Source]:
        """Where the extractions of the last action had their data from: selectors, or which fallback."""
        return list(self._get_session().ctx.sources)

    @property
    def healed(self) -> list[dict[str, Any]]:
        """Which selectors of the last action did not fit, what was used in their place, and how sure that was."""
        return self._get_session().ctx.finder.describe_heals()

    @property
    def snapshot(self) -> Snapshot | None:
        """The page at the latest failure: its picture, its content, and the steps before."""
        snapshots = self._get_session().ctx.snapshots
        return snapshots.last if snapshots else None

    def start_browser(self, headless: bool = True) -> None:
        """Start the browser. One that runs already is kept, and one that died is replaced.

        SetupError if there is none on this machine, MissingExtra without Playwright.
        """
        with self._lock:
            if self._session is not None and self._session.alive:
                return
            self.stop_browser()
            self._headless = headless
            self._open_session()

    def stop_browser(self) -> None:
        """Close the browser with its processes and its profile, if it runs."""
        with self._lock:
            session, self._session = self._session, None
            self.monitor.browser_start_time = None
            if session is not None:
                _close(session)

    def execute_action(self, name: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run all steps of an action and return what they extracted: None, one result, or a list of several.

        All parameters are checked before the first step runs. CapabilityNotFound for an unknown action, ValidationError
        for a parameter that is missing or that no step uses; then the errors of the steps, each naming its step.
        """
        steps, given = prepare(self.interface, name, parameters or {})
        with self._lock:
            session = self._get_session()
            # A worn browser is replaced, and its cookies are kept. Only before an action that begins with a navigation:
            # any other needs the page that is open.
            reason = None
            if steps and steps[0].action_type is ActionType.NAVIGATE:
                if self.monitor.should_restart_browser():
                    reason = "age"
                else:
                    reason = bridge.run(session.chrome.find_wear(self.wear)) if session.alive else "died"
            if reason is not None:
                state = bridge.run(session.state()) if session.alive else None
                self.stop_browser()
                self._open_session(state)
                self._metrics.nlweb_browser_restarts.inc()
                self._metrics.nlweb_browsers_ended.inc((reason,))
            return bridge.run(self._get_session().run(name, steps, given))

    def _execute_single_action(self, action: NLWebAction) -> Any:
        """Run one step as it stands; its result, or None."""
        with self._lock:
            return bridge.run(self._get_session().single(action))

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

    def _get_session(self) -> Session:
        if self._session is None:
            raise SetupError(f"The browser of {self.interface.name!r} is not running. Call start_browser() first.")
        return self._session

    def _open_session(self, state: Any = None) -> None:
        session = Session(
            self.interface,
            self.sandbox,
            resolver=self._resolver,
            overrides=self._overrides,
            timeouts=self.timeouts,
            uploads=self._uploads,
            throttle=self._throttle,
            watch=watch_steps(self._metrics, self.monitor.action_latencies),
            tools=self.tools,
        )
        bridge.run(session.open(headless=self._headless, state=state))
        _OPEN[session] = os.getpid()
        self._session = session
        self.monitor.browser_start_time = time.time()


_OPEN: dict[Session, int] = {}
"""The sessions whose browsers run, with the process that started them."""


def _close(session: Session) -> None:
    _OPEN.pop(session, None)
    bridge.run(session.aclose())


# Registered after the bridge registered its own exit handler, and therefore run before it.
@atexit.register
def _close_all() -> None:
    for session, pid in list(_OPEN.items()):
        # A forked child shares the pipes of its parent's browsers, and must not close them.
        if pid == os.getpid():
            _close(session)


Run = Callable[[Coroutine[Any, Any, Any]], Any]

_SDK = "playwright."


class View:
    """A Playwright object (page, locator, response) with its coroutines turned into plain calls, from any thread.

    Playwright's own synchronous page belongs to one thread and refuses to work where a loop is running.
    Attributes are read directly; methods run on the page's own loop and return when they are done. Handlers given to
    ``on`` are called on that loop and must not call back into a view. Playwright's ``expect_…`` managers are left out.
    """

    __slots__ = ("_run", "_target")

    def __init__(self, target: Any, run: Run):
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "expect_")):
            raise AttributeError(f"{type(self._target).__name__} has no synchronous {name!r}")
        found = getattr(self._target, name)
        if not inspect.ismethod(found):
            return self._wrap(found)

        async def invoke(args: list[Any], kwargs: dict[str, Any]) -> Any:
            # Some methods are coroutines and some, such as ``locator``, are not; both must run where the page lives.
            result = found(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [_unwrap(value) for value in args]
            named = {key: _unwrap(value) for key, value in kwargs.items()}
            return self._wrap(self._run(invoke(plain, named)))

        call.__name__ = found.__name__
        call.__doc__ = found.__doc__
        return call

    def __repr__(self) -> str:
        return f"<synchronous view of {self._target!r}>"

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(item) for item in value]
        return View(value, self._run) if type(value).__module__.startswith(_SDK) else value


def _unwrap(value: Any) -> Any:
    return value._target if isinstance(value, View) else value  # noqa: SLF001 - our own class
