"""``cache``: answers again what was answered a moment ago, where the capability allows it and only reads."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from agent3.calls.result_cache import CACHED, EPOCH
from agent3.calls.step import Aim, Parts, Step
from agent3.model import Call, Done, Handler, Outcome

__all__ = ["Cache"]

_sorted = msgspec.json.Encoder(order="deterministic")


class Cache(Step):
    """Looks into the ``ResultCache`` of the core."""

    name = "cache"

    def __init__(self, parts: Parts):
        self._results = parts.cache
        self._metrics = parts.metrics

    def idle(self, aim: Aim) -> bool:
        hints = aim.capability.hints
        return not aim.capability.cache_ttl or aim.entry != "start" or not (hints.idempotent or hints.read_only)

    def around(self, inner: Handler) -> Handler:
        async def cached(call: Call) -> Outcome:
            capability = call.live.capability
            if not capability.cache_ttl or call.entry != "start" or not call.idempotent:
                return await inner(call)
            version = (capability.version, capability.meta.get(EPOCH))
            who_and_what = (call.principal.id, call.agent, call.capability, version)
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

        return cached
