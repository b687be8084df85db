"""What a gateway answers, as typed data. Fields that a later gateway adds are kept in ``raw``; none is required here
that a program could do without."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agent3.client.plain_http import read_error
from agent3.errors import Conflict
from agent3.model import Part, Question

__all__ = ["AgentInfo", "CapabilityInfo", "Hit", "Rating", "Result", "restore", "stored_size"]

_PART = frozenset(Part.__struct_fields__)
_CONTENT = frozenset({"raw", "url", "artifact"})


@dataclass(frozen=True, slots=True)
class Result:
    """How a call stands: done, with a value; needing answers; or still working. A failure is raised instead."""

    agent: str
    status: Literal["done", "needs", "working"]
    job: str | None
    questions: tuple[Question, ...]
    metadata: Mapping[str, Any]
    """``responseTime`` in milliseconds, ``tokensUsed``, ``cost``, ``retryCount``, and what else the gateway tells."""
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, body: Mapping[str, Any], agent: str, where: str) -> Result:
        """The result in an answer; the error of a call that failed is raised."""
        status: Any = body.get("status") or ("done" if body.get("success") else "failed")
        metadata = body.get("metadata") or {}
        if status in ("failed", "canceled") or (status == "done" and not body.get("success")):
            said = body.get("error")
            found = dict(said) if isinstance(said, Mapping) else {"code": body.get("errorCode"), "message": said}
            raise read_error({"data": body.get("details"), "retry_after": metadata.get("retryAfter"), **found}, where)
        return cls(
            agent=str(body.get("agent") or agent),
            status=status,
            job=body.get("job") or body.get("id"),
            questions=tuple(msgspec.convert(body.get("questions") or (), tuple[Question, ...])),
            metadata=metadata,
            raw=body,
        )

    @property
    def value(self) -> Any:
        """What the agent gave, as JSON: text, a number, a list, an object. Conflict while it is not done."""
        if self.status == "needs":
            asked = " ".join(question.text for question in self.questions)
            raise Conflict(f"{self.agent} has no result yet; it asks: {asked} Answer with client.answer(result, …).")
        if self.status == "working":
            raise Conflict(f"{self.agent} is still working on job {self.job}. Wait with client.wait(result).")
        return self.raw.get("result")

    @property
    def text(self) -> str:
        """The value as text: as it is, or as JSON."""
        value = self.value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The value as parts, where files, images and references to large results are told apart from data."""
        value = self.value
        items = value if isinstance(value, list) and any(map(_is_part, value)) else [value]
        return tuple(map(_part, items)) if value is not None else ()


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and len(_CONTENT & set(value)) == 1 and set(value) <= _PART


def stored_size(value: Any) -> int | None:
    """The bytes of what the gateway stored in place of a large part; None for any other value."""
    meta = value.get("meta") if _is_part(value) and isinstance(value.get("artifact"), str) else None
    size = meta.get("size") if isinstance(meta, dict) else None
    return size if isinstance(size, int) else None


def restore(value: Mapping[str, Any], body: bytes) -> Any:
    """A part that was stored, as the value that it is when it is small."""
    media = str(value.get("media_type"))
    if media.startswith("text/"):
        return body.decode("utf-8", "replace")
    if media == "application/json":
        try:
            return json.loads(body)
        except ValueError:  # a file that calls itself so
            pass
    kept = {name: one for name, one in value.items() if name in ("media_type", "name")}
    return {"raw": base64.b64encode(body).decode(), **kept}


def _part(value: Any) -> Part:
    if isinstance(value, str):
        return Part(text=value)
    return msgspec.convert(value, Part) if _is_part(value) else Part(data=value)


@dataclass(frozen=True, slots=True)
class Rating:
    """How an agent was rated, from 1 to 5; ``mean`` is None without ratings."""

    count: int
    mean: float | None

    @classmethod
    def read(cls, value: Any) -> Rating:
        """From an object with both, or from a mean alone."""
        if isinstance(value, Mapping):
            return cls(int(value.get("count") or 0), value.get("mean"))
        return cls(0 if value is None else 1, value)


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that was found. Give it to ``call`` as it is."""

    id: str
    """The agent's id."""
    capability: str | None
    """Which of its capabilities fits; None where the gateway does not say and it has several."""
    name: str
    description: str
    status: str
    score: float | None
    """How well an agent fits, from 0 to 1; only ``agents`` tells it, and search gives the best first without it."""
    rating: float | None
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Hit:
        """From one entry of ``agents``, be it a capability or a whole agent."""
        named = body.get("capability")
        offered: Sequence[Any] = body.get("capabilities") or ()
        if named is None and len(offered) == 1:
            named = offered[0].get("name") if isinstance(offered[0], Mapping) else offered[0]
        rating = body.get("rating")
        return cls(
            id=str(body["id"]),
            capability=named,
            name=str(body.get("name") or body["id"]),
            description=str(body.get("description") or ""),
            status=str(body.get("status") or "active"),
            score=body.get("score"),
            rating=rating.get("mean") if isinstance(rating, Mapping) else rating,
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class CapabilityInfo:
    """One thing that an agent does."""

    name: str
    description: str
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    examples: tuple[Any, ...]
    protocols: tuple[str, ...]
    """How it can be reached, the first route first."""
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> CapabilityInfo:
        return cls(
            name=str(body["name"]),
            description=str(body.get("description") or ""),
            input_schema=body.get("inputSchema"),
            output_schema=body.get("outputSchema"),
            examples=tuple(body.get("examples") or ()),
            protocols=tuple(body.get("protocols") or ()),
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """Everything one needs to decide whether and how to call an agent."""

    id: str
    name: str
    description: str
    version: str
    status: str
    tags: tuple[str, ...]
    rating: Rating
    capabilities: tuple[CapabilityInfo, ...]
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> AgentInfo:
        return cls(
            id=str(body["id"]),
            name=str(body.get("name") or body["id"]),
            description=str(body.get("description") or ""),
            version=str(body.get("version") or ""),
            status=str(body.get("status") or "active"),
            tags=tuple(body.get("tags") or ()),
            rating=Rating.read(body.get("rating")),
            capabilities=tuple(map(CapabilityInfo.read, body.get("capabilities") or ())),
            raw=body,
        )

    def capability(self, name: str) -> CapabilityInfo | None:
        """The capability of that name."""
        return next((capability for capability in self.capabilities if capability.name == name), None)
