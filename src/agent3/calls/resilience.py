"""The steps that meet failure: dead_letter, deadline, fallback, retry, breaker, attempt.

Between themselves they speak only through the outcome. ``attempt``, the innermost of them, is the only one that saw
the try itself, so it alone judges whether it may be repeated; the others read its verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.outcomes import failed_by, failed_by_any
from agent3.calls.process_pauses import Wakefulness
from agent3.calls.timeouts import Timeout, Timeouts
from agent3.env import Env
from agent3.errors import CallTimeout, CircuitOpen, StorageError, Unavailable
from agent3.model import Call, Failed, Handler, Outcome, Route, Step, Working
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.security.sanitize import clean_outcome
from agent3.settings import Calls

__all__ = ["UNDELIVERED", "Breakers", "attempt", "breaker", "dead_letter", "deadline", "fallback", "late", "retry"]

log = logger("calls")

UNDELIVERED = frozenset(
    {"timeout", "unavailable", "circuit_open", "malformed_response", "target_refused", "interrupted"}
)
"""Failures after which the work is still to be done; a target that ran and failed has given its answer."""

_HOPS = frozenset({"unavailable", "circuit_open", "malformed_response", "target_refused", "element_missing"})
_BREAKS = frozenset({"unavailable", "timeout", "malformed_response"})
"""Failures that are held against a route, if it was the target that was waited for."""


def dead_letter(bury: Callable[[Call, Failed], Awaitable[None]], metrics: Metrics) -> Step:
    """Keep what could not be delivered, once, when every attempt and route has failed."""

    def step(inner: Handler) -> Handler:
        async def kept(call: Call) -> Outcome:
            outcome = await inner(call)
            if isinstance(outcome, Failed) and outcome.code in UNDELIVERED and call.entry in ("start", "answer"):
                metrics.dead_letters.inc((outcome.code,))
                await _buried(call, outcome, bury)
            return outcome

        return kept

    return step


async def _buried(call: Call, outcome: Failed, bury: Callable[[Call, Failed], Awaitable[None]]) -> None:
    try:
        await bury(call, outcome)
    except StorageError as wrong:  # what became of the call matters more to its caller than that it was not kept
        log.error("%s/%s: its dead letter is lost: %s", call.agent, call.capability, wrong)


def deadline(settings: Calls, env: Env) -> Step:
    """Bound all attempts and routes of a turn together."""
    timeouts = Timeouts()

    def step(inner: Handler) -> Handler:
        async def bounded(call: Call) -> Outcome:
            seconds = call.timeout if call.timeout is not None else settings.timeout
            live, left, now = call.live, seconds, env.monotonic()
            if live.first is None:
                live.expires = now + seconds
            else:  # the clock runs already
                left = max(0.0, live.expires - now)
            limit = timeouts.after(left)
            try:
                with limit:
                    return await inner(call)
            except TimeoutError:
                if not limit.expired:
                    raise
                return failed_by(late(call, seconds))

        return bounded

    return step


def late(call: Call, seconds: float) -> CallTimeout:
    """What a caller hears of a target that took too long."""
    return CallTimeout(
        f"{call.agent}/{call.capability} did not answer within {seconds:g} s. Give it more time (timeout) or try later."
    )


def fallback(metrics: Metrics) -> Step:
    """Take the next route when one is down. A conversation that has begun stays on its route."""

    def step(inner: Handler) -> Handler:
        def routed(call: Call) -> Awaitable[Outcome]:
            if call.entry != "start" and call.route is not None:
                call.live.route = call.route
                return inner(call)
            if len(call.routes) == 1:  # there is none to fall back on
                call.live.route = only = call.routes[0]
                return inner(replace(call, route=only))
            return _try_routes(inner, call, metrics)

        return routed

    return step


async def _try_routes(inner: Handler, call: Call, metrics: Metrics) -> Outcome:
    outcome: Outcome | None = None
    before: Route | None = None
    for route in call.routes:
        if before is not None:
            call.live.hops += 1
            metrics.fallbacks.inc((before.protocol, route.protocol))
            log.warning("%s/%s: %s failed, taking %s", call.agent, call.capability, before.key, route.key)
        call.live.route = before = route
        outcome = await inner(replace(call, route=route))
        if not _may_hop(outcome, call):
            break
    return failed_by(_no_route(call)) if outcome is None else outcome


def _no_route(call: Call) -> Unavailable:
    error = Unavailable(f"Agent {call.agent!r} has no route for {call.capability!r}. Add it again with agent3 add.")
    error.sent = False
    return error


def _may_hop(outcome: Outcome, call: Call) -> bool:
    if not isinstance(outcome, Failed) or not outcome.repeatable:
        return False
    return outcome.code in _HOPS or (outcome.code == "timeout" and call.idempotent)


def retry(settings: Calls, env: Env, metrics: Metrics) -> Step:
    """Try one route again, after a pause with full jitter or the one the target asked for, while the time lasts."""

    def step(inner: Handler) -> Handler:
        async def retried(call: Call) -> Outcome:
            most = call.retries if call.retries is not None else settings.retries
            outcome = await inner(call)
            for number in range(1, most + 1):
                if not isinstance(outcome, Failed) or not _may_repeat(outcome):
                    break
                pause = _pause(outcome, number, settings, env)
                if call.live.expires is not None and env.monotonic() + pause >= call.live.expires:
                    break
                metrics.retries.inc((call.route.protocol if call.route else "", outcome.code))
                await asyncio.sleep(pause)
                outcome = await inner(replace(call, attempt=number))
            return outcome

        return retried

    return step


def _may_repeat(outcome: Failed) -> bool:
    """An open circuit is for the caller to try later: in here it would be asked only to say no again."""
    return outcome.repeatable and outcome.retryable and outcome.code != "circuit_open"


def _pause(outcome: Failed, number: int, settings: Calls, env: Env) -> float:
    if outcome.retry_after is not None:
        return outcome.retry_after
    return env.jitter(min(settings.backoff_max, settings.backoff * 2 ** (number - 1)))


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until: float = 0.0
    probe: str | None = None


class Breakers:
    """The circuits of all routes: closed, open after failures in a row, half-open for one probe after a while."""

    def __init__(self, settings: Calls, env: Env, metrics: Metrics, most: int = 10_000):
        self._settings = settings
        self._env = env
        self._metrics = metrics
        self._most = most
        self._circuits: dict[str, _Circuit] = {}
        self._awake = Wakefulness(env)

    def state(self, key: str) -> str:
        """``closed``, ``open`` or ``half-open``."""
        circuit = self._circuits.get(key)
        if circuit is None or circuit.failures < self._settings.breaker_failures:
            return "closed"
        return "open" if self._env.monotonic() < circuit.open_until else "half-open"

    def untroubled(self, key: str) -> bool:
        """Whether nothing is held against a route."""
        self._awake.watch()
        return key not in self._circuits

    def refuse(self, key: str, call: str = "") -> float | None:
        """Seconds to wait when the circuit takes no call now, else None; in half-open it takes one as its probe."""
        self._awake.watch()
        circuit = self._circuits.get(key)
        if circuit is None or circuit.failures < self._settings.breaker_failures:
            return None
        left = circuit.open_until - self._env.monotonic()
        if left > 0:
            return left
        if circuit.probe is not None:
            return 1.0
        circuit.probe = call
        self._show(key, 1, "half-open")
        return None

    def failed(self, key: str) -> None:
        """One more failure; at the threshold, and after a failed probe, the circuit opens."""
        circuit = self._circuit(key)
        circuit.failures += 1
        circuit.probe = None
        if circuit.failures >= self._settings.breaker_failures:
            circuit.open_until = self._env.monotonic() + self._settings.breaker_seconds
            self._show(key, 2, "open")

    def succeeded(self, key: str) -> None:
        """It answers again: nothing is held against it."""
        circuit = self._circuits.pop(key, None)
        if circuit is not None and circuit.failures >= self._settings.breaker_failures:
            self._show(key, 0, "closed")

    def abandoned(self, key: str, call: str = "") -> None:
        """A call ended without a verdict; if it was the probe, another may be."""
        circuit = self._circuits.get(key)
        if circuit is not None and circuit.probe == call:
            circuit.probe = None

    def missed(self, key: str, call: Call, code: str = "timeout") -> None:
        """A call failed by what may be its target's silence: the target's failure, unless it says nothing of it.

        So it is where we were away meanwhile, where the call stood in a line of ours, and where the caller gave the
        target less time than the target takes for itself: anybody could close a route for all others that way.
        """
        whole = call.timeout if call.timeout is not None else self._settings.timeout
        began = self._env.monotonic() if call.live.expires is None else call.live.expires - whole
        hurried = code == "timeout" and whole < self._usual(call)
        if self._awake.woke >= began or not call.live.asking or hurried:
            self.abandoned(key, call.id)
        else:
            self.failed(key)

    def _usual(self, call: Call) -> float:
        """The seconds that an attempt has where the caller is in no hurry."""
        own = call.live.capability.timeout if call.live.capability is not None else None
        return min(self._settings.timeout, own or self._settings.attempt_timeout)

    def is_late(self, call: Call) -> bool:
        """Whether the time of the whole call is over."""
        expires = call.live.expires
        return expires is not None and self._env.monotonic() >= expires

    def _circuit(self, key: str) -> _Circuit:
        if key not in self._circuits and len(self._circuits) >= self._most:
            self._circuits.pop(next(iter(self._circuits)))
        return self._circuits.setdefault(key, _Circuit())

    def _show(self, key: str, level: int, name: str) -> None:
        self._metrics.breaker_state.set((key,), level)
        self._metrics.breaker_transitions.inc((name,))
        log.warning("route %s: circuit %s", key, name)


def breaker(circuits: Breakers) -> Step:
    """Leave a route alone that keeps failing. An open circuit is not retried, but the next route may be taken."""

    def step(inner: Handler) -> Handler:
        async def guarded(call: Call) -> Outcome:
            key = call.route.key if call.route is not None else ""
            if call.live.first is None:  # else it was made already, and is only judged here
                if (wait := circuits.refuse(key, call.id)) is not None:
                    return _open(call, wait)
                call.live.asking = True
            try:
                outcome = await inner(call)
            except asyncio.CancelledError:
                # A caller that goes away says nothing of the target; a deadline that it let pass does.
                circuits.missed(key, call) if circuits.is_late(call) else circuits.abandoned(key, call.id)
                raise
            if isinstance(outcome, Failed) and outcome.code in _BREAKS:
                circuits.missed(key, call, outcome.code)
            else:
                circuits.succeeded(key)
            return outcome

        return guarded

    return step


def _open(call: Call, wait: float) -> Failed:
    error = CircuitOpen(
        f"{call.agent} failed too often and is left alone for {wait:.0f} s. Try then, or use another agent.",
        retry_after=wait,
    )
    return replace(failed_by(error), sent=False, repeatable=True)


def attempt(settings: Calls, metrics: Metrics) -> Step:
    """One try: its own time, every exception turned into an outcome, and the verdict whether it may be repeated."""
    timeouts = Timeouts()

    def step(inner: Handler) -> Handler:
        async def once(call: Call) -> Outcome:
            live = call.live
            live.attempts += 1
            seen = live.content
            seconds = live.capability.timeout or settings.attempt_timeout
            outcome = await _tried(inner, call, seconds, timeouts.after(seconds))
            if isinstance(outcome, Failed):
                harmless = live.content == seen and _harmless(outcome, call)
                outcome = replace(outcome, repeatable=harmless, asked=outcome.sent)
            metrics.attempts.inc((call.route.protocol if call.route else "", _word(outcome)))
            return outcome

        return once

    return step


async def _tried(inner: Handler, call: Call, seconds: float, limit: Timeout) -> Outcome:
    try:
        with limit:
            if failpoints.armed is not None:
                return await _struck(inner, call)
            return await inner(call)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return Failed("target_failed", f"{call.agent} failed: something that it waited for was cancelled.")
    except Exception as wrong:
        if limit.expired and isinstance(wrong, TimeoutError):
            return failed_by(late(call, seconds))
        log.debug("attempt at %s failed", call.agent, exc_info=True)
        return clean_outcome(failed_by_any(wrong, call.agent))


async def _struck(inner: Handler, call: Call) -> Outcome:
    """The same between two failpoints: what is cut off before it, and what is cut off when it was done."""
    try:
        await failpoints.reach("call.before_send", Unavailable)
    except Unavailable as wrong:
        wrong.sent = False
        raise
    outcome = await inner(call)
    await failpoints.reach("call.after_send", Unavailable)
    return outcome


def _is_cancelled() -> bool:
    """Whether it is this task that is being cancelled, and not just something that the target waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _harmless(outcome: Failed, call: Call) -> bool:
    """Whether doing it again cannot do it twice: never sent, idempotent by nature, or the target was given a key.

    A key helps only where the route says that its target gets it and honours it.
    """
    if not outcome.sent or call.idempotent:
        return True
    return call.key is not None and call.route is not None and bool(call.route.meta.get("keys"))


def _word(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return outcome.code
    return "working" if isinstance(outcome, Working) else "answered"
