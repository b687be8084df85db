"""Extensions of A2A: how an agent declares, requires and activates them, and one working example of each kind.

* **usage** (data): what a task consumed, in its metadata; the card says in which units.
* **traceability** (a profile): a request may name its trace in its metadata, for clients that can set no header, and
  every answer names the trace that it belongs to.
* **search** (a method): ``tasks/search`` finds a caller's tasks by their words.
* **timed-out** (a state): a task that ran out of time is in a state of its own, below ``failed``, with a transition
  that says whether it may be sent again.

Three more need no activation, for they only say what an agent of ours does anyway: a message that is sent twice is done
once (**idempotent-send**), a deadline in the metadata of a request is kept (**deadline**), and the schemas of skills
stand in the card (**skill-schemas**).

An extension does nothing until a request activates it by its URI in ``A2A-Extensions``. Unknown URIs are left alone, as
the specification asks; a required one that was not activated refuses the request.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.definitions import AgentCapability, AgentCard, AgentExtension
from agent3.model import Usage
from agent3.protocols.a2a.door.tasks import Caller
from agent3.protocols.a2a.wire.errors import ExtensionRequired
from agent3.protocols.a2a.wire.types import TERMINAL, Message, Send, State, StatusUpdate, Task, TaskPage

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
"""An agent that declares it answers a message with an id that it knows as it did before, and does nothing twice."""
SCHEMAS: Final = f"{_HOME}/skill-schemas/v1"
"""Its params give the JSON Schemas of skills: ``{"skills": {"id": {"input": {…}, "output": {…}}}}``."""
DEADLINE: Final = f"{_HOME}/deadline/v1"
"""The key in a request's metadata under which stands until when its answer is wanted."""
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
        description="A request may name its W3C traceparent in its metadata under this URI; answers name theirs.",
        params={"format": "https://www.w3.org/TR/trace-context/"},
    ),
    AgentExtension(
        uri=SEARCH,
        description="Find tasks of the caller by words.",
        params={"method": SEARCH_METHOD},
    ),
    AgentExtension(
        uri=TIMED_OUT,
        description="A failed task that ran out of time says so under this URI in its metadata.",
        params={"state": STATE_TIMED_OUT, "below": State.FAILED.value},
    ),
    AgentExtension(
        uri=IDEMPOTENT,
        description="A message with an id that is known gets the answer that the first one got.",
    ),
    AgentExtension(
        uri=DEADLINE,
        description="A request may say under this URI in its metadata until when its answer is wanted.",
        params={"field": "deadline", "format": "date-time"},
    ),
)
"""What every endpoint of ours speaks."""

V = TypeVar("V")
_MOST_SCHEMAS: Final = 100
"""Skills of which a card gives the schemas; those of a large catalogue are read one agent at a time."""


def schemas_of(card: AgentCard) -> list[AgentExtension]:
    """The extension that gives the schemas of a card's skills, where there are any to give."""
    known = {one.id or one.name: _schemas(one) for one in card.capabilities if one.input_schema or one.output_schema}
    if not 0 < len(known) <= _MOST_SCHEMAS:
        return []
    return [AgentExtension(uri=SCHEMAS, description="The JSON Schemas of skills.", params={"skills": known})]


def _schemas(skill: AgentCapability) -> dict[str, Any]:
    given = {"input": skill.input_schema, "output": skill.output_schema}
    return {name: schema for name, schema in given.items() if schema}


class Accounts(Protocol):
    """Tells what a task consumed."""

    async def usage(self, caller: Caller, task_id: str) -> Usage | None:
        """What it consumed so far; None where nobody knows."""


class Extensions:
    """The extensions of one endpoint."""

    def __init__(self, *declared: AgentExtension, standard: bool = True):
        self.declared: tuple[AgentExtension, ...] = (*(STANDARD if standard else ()), *declared)
        self._known = frozenset(one.uri for one in self.declared)
        self._required = frozenset(one.uri for one in self.declared if one.required)

    def activate(self, asked: frozenset[str]) -> frozenset[str]:
        """Those of the asked that are spoken here; ExtensionRequired where one is missing."""
        if missing := self._required - asked:
            names = ", ".join(sorted(missing))
            raise ExtensionRequired(f"This agent requires extensions. Send them in A2A-Extensions: {names}")
        return asked & self._known if asked else asked

    def traceparent(self, request: Any, active: frozenset[str], header: str | None) -> str | None:
        """The trace of a request: of its header, else of its metadata."""
        if header is not None or TRACEABILITY not in active or not isinstance(request, Send):
            return header
        return _named(request, TRACEABILITY, "traceparent")

    def deadline(self, request: Any, header: str | None) -> str | None:
        """Until when the answer to a request is wanted: of its header, else of its metadata."""
        return header if header is not None or not isinstance(request, Send) else _named(request, DEADLINE, "deadline")

    async def shown(self, value: V, caller: Caller, accounts: Accounts) -> V:
        """What is answered, with what the extensions that the caller activated add to it."""
        if isinstance(value, TaskPage):
            tasks = [await self.shown(one, caller, accounts) for one in value.tasks]
            return replace(value, tasks=tuple(tasks))
        if not isinstance(value, (Task, Message, StatusUpdate)):
            return value
        added = await _added(value, caller, accounts)
        return replace(value, metadata={**(value.metadata or {}), **added}) if added else value


def _named(request: Send, uri: str, field: str) -> str | None:
    """What the metadata of a request or of its message say under an extension."""
    for metadata in (request.metadata, request.message.metadata):
        said = metadata.get(uri) if metadata else None
        if isinstance(said, dict) and isinstance(said.get(field), str):
            return str(said[field])
    return None


async def _added(value: Task | Message | StatusUpdate, caller: Caller, accounts: Accounts) -> dict[str, Any]:
    """What the active extensions say, by their URI."""
    added: dict[str, Any] = {}
    active = caller.extensions
    if TRACEABILITY in active and caller.traceparent is not None:
        added[TRACEABILITY] = {"traceparent": caller.traceparent, "traceId": _trace_id(caller.traceparent)}
    if isinstance(value, Message):
        return added
    if TIMED_OUT in active and _ran_out_of_time(value):
        added[TIMED_OUT] = {"state": STATE_TIMED_OUT, "next": [State.SUBMITTED.value]}
    if USAGE in active and value.status.state in TERMINAL:
        task = value.id if isinstance(value, Task) else value.task_id
        usage = await accounts.usage(caller, task)
        if usage is not None:
            added[USAGE] = msgspec.to_builtins(usage)
    return added


def _ran_out_of_time(value: Task | StatusUpdate) -> bool:
    said = value.status.message
    return value.status.state is State.FAILED and said is not None and (said.metadata or {}).get("code") == "timeout"


def _trace_id(traceparent: str) -> str:
    return traceparent.partition("-")[2].partition("-")[0]
