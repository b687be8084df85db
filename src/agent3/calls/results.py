"""The steps that look after results: cache, artifacts, sanitize."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, MalformedResponse
from agent3.model import Artifact, Call, Capability, Done, Event, Failed, Handler, Outcome, Part, Step, value_of
from agent3.observe.metrics import Metrics
from agent3.schema.cache import compiled
from agent3.security.sanitize import clean_outcome, clean_part, clean_text, clean_value

__all__ = ["CACHED", "EPOCH", "ResultCache", "artifacts", "cache", "clean_event", "has_large", "malformed", "sanitize"]

CACHED = "io.agent3/cached"
"""The key in the ``meta`` of a result that was given before."""
EPOCH = "io.agent3/epoch"
"""The key in the ``meta`` of a capability whose value is changed to have all its kept results forgotten.

Also those of calls that were running at that moment: they end under the old value, which nobody asks for any more.
"""


class ResultCache:
    """Results by who asked what of which version, each with its own end. Bounded; the least used go first."""

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


_sorted = msgspec.json.Encoder(order="deterministic")


def _cache_key(call: Call, capability: Capability) -> bytes | None:
    """What a result is kept under; None for input that is not JSON, which the next steps refuse."""
    version = (capability.version, capability.meta.get(EPOCH))
    who_and_what = (call.principal.id, call.agent, call.capability, version)
    asked = (who_and_what, call.input, call.parts, call.input_mode)
    try:
        return hashlib.blake2b(_sorted.encode(asked), digest_size=24).digest()
    except (TypeError, ValueError, RecursionError):
        return None


def cache(results: ResultCache, metrics: Metrics) -> Step:
    """Answer again what was answered a moment ago, where the capability allows it and only reads."""

    def step(inner: Handler) -> Handler:
        def cached(call: Call) -> Awaitable[Outcome]:
            capability: Capability = call.live.capability
            if not capability.cache_ttl or call.entry != "start" or not call.idempotent:
                return inner(call)
            return kept(call, capability)

        async def kept(call: Call, capability: Capability) -> Outcome:
            key = _cache_key(call, capability)
            if key is None:
                return await inner(call)
            if (hit := results.get(key)) is not None:
                metrics.cache.inc(("hit",))
                call.live.cached = True
                return hit
            metrics.cache.inc(("miss",))
            outcome = await inner(call)
            if isinstance(outcome, Done):
                results.put(key, replace(outcome, meta={**outcome.meta, CACHED: True}), capability.cache_ttl)
            return outcome

        return cached

    return step


Store = Callable[[Call, bytes, str | None, str], Awaitable[str]]
"""Keeps some bytes for a call's owner: (call, bytes, name, media type) → artifact id."""


def artifacts(store: Store, limit: int) -> Step:
    """Put large parts of a result into the store, and a reference in their place."""

    def step(inner: Handler) -> Handler:
        async def referring(call: Call) -> Outcome:
            outcome = await inner(call)
            if isinstance(outcome, (Done, Failed)) and has_large(outcome, limit):
                return await _refer(outcome, call, store, limit)
            return outcome

        return referring

    return step


def _size(part: Part) -> int:
    if part.raw is not None:
        return len(part.raw)
    if part.text is not None:
        return len(part.text) if part.text.isascii() else len(part.text.encode("utf-8", "replace"))
    return 0 if part.data is UNSET else _json_size(part.data)


def _json_size(data: Any) -> int:
    if isinstance(data, (str, dict, list, tuple)) and data:
        return len(_json(data))
    return 0


def _json(data: Any) -> bytes:
    """As JSON. A target in Python may give half a character, which no encoder takes; the next step removes it too."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean_value(data))


def has_large(outcome: Done | Failed, limit: int) -> bool:
    """Whether some part of it has more bytes than that."""
    for part in outcome.parts:
        if _size(part) > limit:
            return True
    if not outcome.artifacts:
        return False
    return any(_size(part) > limit for artifact in outcome.artifacts for part in artifact.parts)


async def _refer(outcome: Done | Failed, call: Call, store: Store, limit: int) -> Outcome:
    parts = tuple([await _part_or_reference(part, call, store, limit) for part in outcome.parts])
    kept: list[Artifact] = []
    for artifact in outcome.artifacts:
        inside = tuple([await _part_or_reference(part, call, store, limit) for part in artifact.parts])
        kept.append(replace(artifact, parts=inside))
    return replace(outcome, parts=parts, artifacts=tuple(kept))


async def _part_or_reference(part: Part, call: Call, store: Store, limit: int) -> Part:
    if _size(part) <= limit:
        return part
    body, media = _bytes_of(part)
    name = await store(call, body, part.name, media)
    return Part(artifact=name, media_type=media, name=part.name, meta={**part.meta, "size": len(body)})


def _bytes_of(part: Part) -> tuple[bytes, str]:
    if part.raw is not None:
        return part.raw, part.media_type or "application/octet-stream"
    if part.text is not None:
        return part.text.encode("utf-8", "replace"), part.media_type or "text/plain"
    return _json(part.data), part.media_type or "application/json"


def sanitize(limit: int) -> Step:
    """Hold a result against its schema as it came, then strip what can deceive a reader, and bound it.

    What is emitted on the way is cleaned by the same rules.
    """

    def step(inner: Handler) -> Handler:
        async def clean(call: Call) -> Outcome:
            live = call.live
            before = live.filters
            live.filters = (clean_event, *before)
            try:
                outcome = await inner(call)
            finally:
                live.filters = before
            if fault := malformed(outcome, live.capability):
                return fault
            return clean_outcome(outcome, limit)

        return clean

    return step


def clean_event(event: Event) -> Event:
    """An event without what can deceive a reader."""
    return replace(
        event,
        text=clean_text(event.text) if event.text else event.text,
        name=clean_text(event.name) if event.name else event.name,
        parts=tuple(map(clean_part, event.parts)) if event.parts else event.parts,
        data=clean_value(event.data) if event.data is not None else None,
    )


def _structured(outcome: Done) -> Any:
    """What the schema speaks of: the one datum, also where a text for people stands beside it; else all there is."""
    data = [part.data for part in outcome.parts if part.data is not UNSET]
    return data[0] if len(data) == 1 else value_of(outcome.parts)


def malformed(outcome: Outcome, capability: Capability) -> Failed | None:
    """What becomes of a result that breaks its own schema; None for one that fits."""
    if capability.output_schema is None or not isinstance(outcome, Done):
        return None
    try:
        compiled(capability.output_schema).check(_structured(outcome), what="result")
    except Agent3Error as wrong:
        text = f"{capability.name} answered with something that breaks its own schema: {wrong.message}"
        return failed_by(MalformedResponse(text, data=wrong.data))
    return None
