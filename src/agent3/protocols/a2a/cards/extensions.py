"""Extensions of A2A: how an agent declares, requires and activates them, and the ones that every endpoint of ours has.

* **usage** (data): what a task consumed, in its metadata; the card gives the units.
* **traceability** (a profile): a request may name its trace in its metadata, for clients that cannot set headers, and
  every answer names the trace that it belongs to.
* **search** (a method): ``tasks/search`` finds a caller's tasks by their words.
* **timed-out** (a state): a task that ran out of time is in a state of its own, below ``failed``, with a transition
  that says whether it may be sent again.

Three more only declare what our agents do anyway, and need no activation: a message that is sent twice is processed
once (**idempotent-send**), a deadline in the metadata of a request is kept (**deadline**), and the card has the schemas
of its skills (**skill-schemas**).

An extension does nothing until a request activates it by its URI in ``A2A-Extensions``. Unknown URIs are ignored, as
the specification asks; a request without a required extension is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.definitions import AgentCard, AgentExtension
from agent3.model import Usage
from agent3.protocols.a2a.wire.errors import ExtensionRequired
from agent3.protocols.a2a.wire.types import TERMINAL, Message, Send, State, StatusUpdate, Task, TaskPage

if TYPE_CHECKING:  # cards are below the door
    from agent3.protocols.a2a.door.tasks import Caller

__all__ = [
    "DEADLINE",
    "IDEMPOTENT",
    "SCHEMAS",
    "SEARCH",
    "SEARCH_METHOD",
    "STANDARD",
    "TIMED_OUT",
    "TRACEABILITY",
    "USAGE",
    "Extensions",
    "schemas_of",
]

_HOME: Final = "https://agent3.dev/extensions"
USAGE: Final = f"{_HOME}/usage/v1"
TRACEABILITY: Final = f"{_HOME}/traceability/v1"
SEARCH: Final = f"{_HOME}/tasks-search/v1"
TIMED_OUT: Final = f"{_HOME}/timed-out/v1"
IDEMPOTENT: Final = f"{_HOME}/idempotent-send/v1"
"""The agent answers a message whose id it has seen as it did before, and does nothing twice."""
SCHEMAS: Final = f"{_HOME}/skill-schemas/v1"
"""Its params hold the JSON Schemas of skills: ``{"skills": {"id": {"input": {…}, "output": {…}}}}``."""
DEADLINE: Final = f"{_HOME}/deadline/v1"
"""The key of the deadline in the metadata of a request."""
SEARCH_METHOD: Final = "tasks/search"
STATE_TIMED_OUT: Final = "TASK_STATE_TIMED_OUT"

STANDARD: Final = (
    AgentExtension(
        uri=USAGE,
        description="What a task consumed, in its metadata under this URI.",
        params={"cost": "USD", "fields": ["tokens", "cost", "estimated", "retries"]},
    ),
    AgentExtension(
        uri=TRACEABILITY,
        description="A request may have its W3C traceparent in its metadata under this URI; so do answers.",
        params={"format": "https://www.w3.org/TR/trace-context/"},
    ),
    AgentExtension(
        uri=SEARCH,
        description="Find tasks of the caller by words.",
        params={"method": SEARCH_METHOD},
    ),
    AgentExtension(
        uri=TIMED_OUT,
        description="A failed task that timed out says so under this URI in its metadata.",
        params={"state": STATE_TIMED_OUT, "below": State.FAILED.value},
    ),
    AgentExtension(
        uri=IDEMPOTENT,
        description="A message with a known id gets the same answer as the first one.",
    ),
    AgentExtension(
        uri=DEADLINE,
        description="A request may state under this URI in its metadata until when it needs the answer.",
        params={"field": "deadline", "format": "date-time"},
    ),
)
"""The extensions of every endpoint of ours."""

V = TypeVar("V")
_MOST_SCHEMAS: Final = 100
"""Skills up to which a card has schemas; those of a larger catalogue are read one agent at a time."""


def schemas_of(card: AgentCard) -> list[AgentExtension]:
    """The extension with the schemas and hints of a card's skills; empty where there are none, or too many."""
    skills: dict[str, Any] = {}
    for skill in card.capabilities:
        hints = {"readOnly": skill.read_only, "idempotent": skill.idempotent, "consequential": skill.consequential}
        schemas: dict[str, Any] = {"input": skill.input_schema, "output": skill.output_schema}
        schemas["hints"] = {name: True for name, holds in hints.items() if holds}
        if present := {name: schema for name, schema in schemas.items() if schema}:
            skills[skill.id or skill.name] = present
    if not 0 < len(skills) <= _MOST_SCHEMAS:
        return []
    return [AgentExtension(uri=SCHEMAS, description="The JSON Schemas of skills.", params={"skills": skills})]


class Accounts(Protocol):
    """Knows what tasks consumed."""

    async def usage(self, caller: Caller, task_id: str) -> Usage | None:
        """What a task consumed; None where that is not known."""


class Extensions:
    """The extensions of one endpoint."""

    def __init__(self, *declared: AgentExtension, standard: bool = True):
        self.declared: tuple[AgentExtension, ...] = (*(STANDARD if standard else ()), *declared)
        self._known = frozenset(extension.uri for extension in self.declared)
        self._required = frozenset(extension.uri for extension in self.declared if extension.required)

    def activate(self, asked: frozenset[str]) -> frozenset[str]:
        """Those of the requested extensions that are known here; ExtensionRequired where a required one is missing."""
        if missing := self._required - asked:
            names = ", ".join(sorted(missing))
            raise ExtensionRequired(f"This agent requires extensions. Send them in A2A-Extensions: {names}")
        return asked & self._known if asked else asked

    def traceparent(self, request: Any, active: frozenset[str], header: str | None) -> str | None:
        """The trace of a request, from its header or its metadata."""
        if header is not None or TRACEABILITY not in active or not isinstance(request, Send):
            return header
        return _find_text(request, TRACEABILITY, "traceparent")

    def deadline(self, request: Any, header: str | None) -> str | None:
        """The deadline of a request, from its header or its metadata."""
        if header is not None or not isinstance(request, Send):
            return header
        return _find_text(request, DEADLINE, "deadline")

    async def extend(self, value: V, caller: Caller, accounts: Accounts) -> V:
        """An answer with the metadata of the extensions that the caller activated."""
        if isinstance(value, TaskPage):
            tasks = [await self.extend(task, caller, accounts) for task in value.tasks]
            return replace(value, tasks=tuple(tasks))
        if not isinstance(value, (Task, Message, StatusUpdate)):
            return value
        active = caller.extensions
        added: dict[str, Any] = {}
        if TRACEABILITY in active and caller.traceparent is not None:
            trace_id = caller.traceparent.partition("-")[2].partition("-")[0]
            added[TRACEABILITY] = {"traceparent": caller.traceparent, "traceId": trace_id}
        if not isinstance(value, Message):
            status = value.status
            failure = status.message.metadata if status.state is State.FAILED and status.message is not None else None
            if TIMED_OUT in active and failure is not None and failure.get("code") == "timeout":
                added[TIMED_OUT] = {"state": STATE_TIMED_OUT, "next": [State.SUBMITTED.value]}
            if USAGE in active and status.state in TERMINAL:
                usage = await accounts.usage(caller, value.id if isinstance(value, Task) else value.task_id)
                if usage is not None:
                    added[USAGE] = msgspec.to_builtins(usage)
        return replace(value, metadata={**(value.metadata or {}), **added}) if added else value


def _find_text(request: Send, uri: str, field: str) -> str | None:
    """A field of an extension in the metadata of a request or of its message."""
    for metadata in (request.metadata, request.message.metadata):
        entry = metadata.get(uri) if metadata else None
        if isinstance(entry, dict) and isinstance(entry.get(field), str):
            return str(entry[field])
    return None
