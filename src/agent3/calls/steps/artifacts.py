"""``artifacts``: puts large parts of a result into the store, and a reference in their place."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3.calls.step import Left, Parts, Step
from agent3.model import Call, Done, Failed, Outcome, Part
from agent3.security.sanitize import clean_value

__all__ = ["Artifacts"]


class Artifacts(Step):
    """Keeps what is larger than ``calls.artifact_bytes`` for the caller to fetch."""

    name = "artifacts"

    def __init__(self, parts: Parts):
        self._store = parts.artifacts
        self._limit = parts.settings.calls.artifact_bytes

    def leave(self, call: Call, outcome: Outcome) -> Left:
        if type(outcome) is not Done and type(outcome) is not Failed:
            return outcome
        limit = self._limit
        for part in outcome.parts:
            text = part.text
            if (len(text) if text is not None and text.isascii() else _size(part)) > limit:
                return self._refer(call, outcome)
        for artifact in outcome.artifacts:
            if any(_size(part) > limit for part in artifact.parts):
                return self._refer(call, outcome)
        return outcome

    async def _refer(self, call: Call, outcome: Done | Failed) -> Outcome:
        parts = [await self._put(call, part) for part in outcome.parts]
        artifacts = [
            replace(artifact, parts=tuple([await self._put(call, part) for part in artifact.parts]))
            for artifact in outcome.artifacts
        ]
        return replace(outcome, parts=tuple(parts), artifacts=tuple(artifacts))

    async def _put(self, call: Call, part: Part) -> Part:
        if _size(part) <= self._limit:
            return part
        if part.raw is not None:
            body, media = part.raw, part.media_type or "application/octet-stream"
        elif part.text is not None:
            body, media = part.text.encode("utf-8", "replace"), part.media_type or "text/plain"
        else:
            body, media = _json(part.data), part.media_type or "application/json"
        name = await self._store.store(call, body, part.name, media)
        return Part(artifact=name, media_type=media, name=part.name, meta={**part.meta, "size": len(body)})


def _size(part: Part) -> int:
    if part.text is not None:
        return len(part.text) if part.text.isascii() else len(part.text.encode("utf-8", "replace"))
    if part.raw is not None:
        return len(part.raw)
    data = part.data
    if data is UNSET or not data or not isinstance(data, (str, dict, list, tuple)):
        return 0
    return len(_json(data))


def _json(data: Any) -> bytes:
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:  # half a character, which a target in Python may give and no encoder takes
        return msgspec.json.encode(clean_value(data))
