"""The circuit breakers of all routes: a route that keeps failing is left alone for a while."""

from __future__ import annotations

from dataclasses import dataclass

from agent3.calls.process_pauses import Wakefulness
from agent3.env import Env
from agent3.model import Call
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.settings import Calls

__all__ = ["Breakers"]

log = logger("calls")


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

    def refuse(self, key: str, call: str = "") -> float | None:
        """Seconds to wait when the circuit takes no call now, else None; in half-open it takes one as its probe."""
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

    def watch(self) -> None:
        """A call has to wait: notice from now on whether this process itself is away meanwhile."""
        self._awake.watch()

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
        return min(self._settings.timeout, call.live.capability.timeout or self._settings.attempt_timeout)

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
