"""``breaker``: leaves a failing route alone for a while. The next route may be taken; no retry at an open circuit.

``Breakers`` holds the circuits of all routes for the whole core; the step asks and feeds them, once for each attempt.
Gateways on one database warn each other of routes that fail, but none closes a route to another: what one cannot reach,
another may.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.env import Env
from agent3.errors import CircuitOpen
from agent3.model import Call, Failed, Outcome
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.settings import Calls
from agent3.storage.notifications import News

__all__ = ["Breaker", "Breakers"]

log = logger("calls")

_BREAKS = frozenset({"unavailable", "timeout", "malformed_response"})
"""Failures that are held against a route, if it was the target that was waited for."""
_TOPIC = "circuit"
_LONGEST_KEY = 150
"""Characters of a route that others are told of: a notification takes no more than these in one piece."""
_LOOK_EVERY = 0.5
_AWAY = 2.0
"""Seconds beyond the usual after which this process was away, and not merely busy."""


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until: float = 0.0
    probe: str | None = None
    """The id of the one call that is let through while the circuit is half-open."""


class _Wakefulness:
    """Notices, in the loop that it is used in, when this process was stopped, suspended or starved.

    It looks at the clock of the loop twice a second; a gap means that nobody was there to hear an answer, so no target
    can be blamed for silence. ``woke`` is by the ``Env``'s steady clock.
    """

    def __init__(self, env: Env):
        self._env = env
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen = 0.0
        self.woke = float("-inf")

    def watch(self) -> None:
        """Look from now on, in the running loop and for as long as it runs. To say so again costs next to nothing."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._seen = loop, loop.time()
            loop.call_later(_LOOK_EVERY, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # its calls have moved to another loop
            return
        away = loop.time() - self._seen - _LOOK_EVERY
        if away > _AWAY:
            self.woke = self._env.monotonic()
            log.warning("this process was suspended for %.0f s; failures during that time are not counted", away)
        self._seen = loop.time()
        loop.call_later(_LOOK_EVERY, self._look, loop)


class Breakers:
    """The circuits of all routes: closed, open after failures in a row, half-open for one probe after a while."""

    def __init__(self, settings: Calls, env: Env, metrics: Metrics, most: int = 10_000, *, news: News | None = None):
        self._settings = settings
        self._news = news
        if news is not None:
            news.on(_TOPIC, self._hear)
        self._env = env
        self._metrics = metrics
        self._most = most
        self.circuits: dict[str, _Circuit] = {}
        """The routes against which anything is held; mostly there are none."""
        self._awake = _Wakefulness(env)

    def state(self, key: str) -> str:
        """``closed``, ``open`` or ``half-open``."""
        circuit = self.circuits.get(key)
        if circuit is None or circuit.failures < self._settings.breaker_failures:
            return "closed"
        return "open" if self._env.monotonic() < circuit.open_until else "half-open"

    def refuse(self, key: str, call: str = "") -> float | None:
        """Seconds to wait if the circuit takes no call now, else None; a half-open one takes one call as its probe."""
        circuit = self.circuits.get(key)
        if circuit is None or circuit.failures < self._settings.breaker_failures:
            return None
        left = circuit.open_until - self._env.monotonic()
        if left > 0:
            return left
        if circuit.probe is not None:
            return 1.0
        circuit.probe = call
        self._report(key, 1, "half-open")
        return None

    def watch(self) -> None:
        """A call has to wait: notice from now on if this process itself does not run meanwhile."""
        self._awake.watch()

    def add_failure(self, key: str) -> None:
        """Count a failure; at the threshold, and after a failed probe, the circuit opens."""
        circuit, now = self._find(key), self._env.monotonic()
        circuit.failures += 1
        circuit.probe = None
        if circuit.failures >= self._settings.breaker_failures:
            if now >= circuit.open_until:  # not by calls that were under way when it opened
                self._tell("open", key)
            circuit.open_until = now + self._settings.breaker_seconds
            self._report(key, 2, "open")

    def add_silence(self, key: str, call: Call, code: str = "timeout") -> None:
        """Count a call that failed by what may be its target's silence, unless that says nothing about the target."""
        given = call.timeout if call.timeout is not None else self._settings.timeout
        began = self._env.monotonic() if call.live.expires is None else call.live.expires - given
        # A caller that gives less time than an attempt usually has proves nothing by a timeout: otherwise anybody
        # could close a route for all others.
        usual = min(self._settings.timeout, call.live.capability.timeout or self._settings.attempt_timeout)
        hurried = code == "timeout" and given < usual
        paused = self._awake.woke >= began  # nobody was here to hear an answer
        if paused or hurried or not call.live.asking:  # not asking: it stood in a queue of ours
            self.release_probe(key, call.id)
        else:
            self.add_failure(key)

    def reset(self, key: str) -> None:
        """The route answers: nothing is held against it any more."""
        circuit = self.circuits.pop(key, None)
        if circuit is not None and circuit.failures >= self._settings.breaker_failures:
            self._report(key, 0, "closed")
            self._tell("closed", key)

    def release_probe(self, key: str, call: str = "") -> None:
        """A call ended without a verdict; if it was the probe, another may be."""
        circuit = self.circuits.get(key)
        if circuit is not None and circuit.probe == call:
            circuit.probe = None

    def is_late(self, call: Call) -> bool:
        """Whether the time of the whole call is over."""
        expires = call.live.expires
        return expires is not None and self._env.monotonic() >= expires

    def _find(self, key: str) -> _Circuit:
        if key not in self.circuits and len(self.circuits) >= self._most:
            self.circuits.pop(next(iter(self.circuits)))
        return self.circuits.setdefault(key, _Circuit())

    def _tell(self, what: str, key: str) -> None:
        if self._news is not None and len(key) <= _LONGEST_KEY:
            self._news.tell(_TOPIC, f"{what} {key}")

    def _hear(self, text: str) -> None:
        """Of a route that another gateway left alone, the next failure is enough; one that answers it is tried now."""
        what, _, key = text.partition(" ")
        if what == "open":
            circuit = self._find(key)
            circuit.failures = max(circuit.failures, self._settings.breaker_failures - 1)
            log.info("route %s: another gateway has opened its circuit; one failure here opens it too", key)
        elif what == "closed" and (known := self.circuits.get(key)) is not None:
            known.open_until = min(known.open_until, self._env.monotonic())

    def _report(self, key: str, level: int, name: str) -> None:
        self._metrics.breaker_state.set((key,), level)
        self._metrics.breaker_transitions.inc((name,))
        log.warning("route %s: circuit %s", key, name)


class Breaker(Step):
    """Asks and feeds the ``Breakers`` of the core, once for each attempt."""

    name = "breaker"

    def __init__(self, parts: Parts):
        self.breakers = parts.breakers

    def bind(self, aim: Aim) -> Stage:
        return _Breaker(self, aim)


class _Breaker(Stage):
    def __init__(self, step: Breaker, aim: Aim):
        self._breakers = step.breakers
        self._routes = aim.capability.routes  # held, so that no other route gets one of these ids
        self._keys = {id(route): route.key for route in self._routes}

    def enter(self, call: Call) -> Entered:
        live, breakers = call.live, self._breakers
        live.route = call.route
        if breakers.circuits and (wait := breakers.refuse(self._key(call), call.id)) is not None:
            error = CircuitOpen(
                (
                    f"{call.agent} failed too often and is not called for the next {wait:.0f} s. Try again then, "
                    "or use another agent."
                ),
                retry_after=wait,
            )
            return replace(failed_by(error), sent=False, repeatable=True)
        live.asking = True
        return call

    def wait(self, call: Call) -> None:
        self._breakers.watch()

    def leave(self, call: Call, outcome: Outcome) -> Left:
        if type(outcome) is Failed and outcome.code in _BREAKS:
            if outcome.data.get("starting"):
                # It installs itself, say: nothing to blame it for, and nothing to praise.
                self._breakers.release_probe(self._key(call), call.id)
            else:
                self._breakers.add_silence(self._key(call), call, outcome.code)
        elif self._breakers.circuits:
            self._breakers.reset(self._key(call))
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        if isinstance(error, asyncio.CancelledError):
            key = self._key(call)
            # A caller that goes away says nothing about the target; a deadline that the target let pass does.
            if self._breakers.is_late(call):
                self._breakers.add_silence(key, call)
            else:
                self._breakers.release_probe(key, call.id)
        return error

    def _key(self, call: Call) -> str:
        route = call.route
        if route is None:
            return ""
        return self._keys.get(id(route)) or route.key
