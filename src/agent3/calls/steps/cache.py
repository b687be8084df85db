"""``cache``: answers again what was answered a moment ago, where the capability allows it and only reads."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import msgspec
from msgspec.structs import replace

from agent3.calls.step import Aim, Parts, Step
from agent3.env import Env
from agent3.model import Call, Done, Handler, Outcome
from agent3.security.sensitive import find_sensitive

__all__ = ["CACHED", "EPOCH", "Cache", "ResultCache"]

CACHED = "io.agent3/cached"
"""The key in the ``meta`` of a result that was given before."""
EPOCH = "io.agent3/epoch"
"""The key in the ``meta`` of a capability whose value is changed to have all its cached results forgotten.

Also those of calls that were running at that moment: they end under the old value, which is never asked for again.
"""

_sorted = msgspec.json.Encoder(order="deterministic")


class ResultCache:
    """Results by a key, each with its own end. Bounded; the least used go first."""

    def __init__(self, most: int, env: Env):
        self._most = most
        self._env = env
        self._entries: OrderedDict[bytes, tuple[float, Done]] = OrderedDict()

    def get(self, key: bytes) -> Done | None:
        """The result, if it is still good."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] <= self._env.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: bytes, outcome: Done, seconds: float) -> None:
        """Keep a result for some seconds."""
        self._entries[key] = (self._env.monotonic() + seconds, outcome)
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


class Cache(Step):
    """Looks into the ``ResultCache`` of the core."""

    name = "cache"

    def __init__(self, parts: Parts):
        self._results = parts.cache
        self._metrics = parts.metrics

    def idle(self, aim: Aim) -> bool:
        hints = aim.capability.hints
        # A result that is sensitive is not kept: only its hash might be.
        sensitive = find_sensitive(aim.capability) if aim.capability.cache_ttl else None
        if sensitive is not None and sensitive.in_output:
            return True
        return not aim.capability.cache_ttl or aim.entry != "start" or not (hints.idempotent or hints.read_only)

    def around(self, inner: Handler) -> Handler:
        async def handle(call: Call) -> Outcome:
            capability = call.live.capability
            if not capability.cache_ttl or call.entry != "start" or not call.idempotent:
                return await inner(call)
            version = (capability.version, capability.meta.get(EPOCH))
            who = (call.principal.id, call.principal.tenant, sorted(call.principal.scopes))
            who_and_what = (who, call.agent, call.capability, version)
            try:
                asked = _sorted.encode((who_and_what, call.input, call.parts, call.input_mode))
            except (TypeError, ValueError, RecursionError):
                return await inner(call)  # not JSON, which the steps further in refuse
            key = hashlib.blake2b(asked, digest_size=24).digest()
            if (hit := self._results.get(key)) is not None:
                self._metrics.cache.inc(("hit",))
                call.live.cached = True
                return hit
            self._metrics.cache.inc(("miss",))
            outcome = await inner(call)
            if isinstance(outcome, Done):
                self._results.put(key, replace(outcome, meta={**outcome.meta, CACHED: True}), capability.cache_ttl)
            return outcome

        return handle
