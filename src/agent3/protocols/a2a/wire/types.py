"""The model of A2A in the shapes of 1.0: messages, tasks, artifacts, updates, and what can be asked.

Every codec turns its wire into these structs and back; nothing outside ``wire`` knows that there is more than one
generation. Field names become camelCase in JSON, so the structs are also the JSON of 1.0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

__all__ = [
    "TERMINAL",
    "Artifact",
    "ArtifactUpdate",
    "Authentication",
    "CancelTask",
    "CreatePush",
    "DeletePush",
    "Generation",
    "GetCard",
    "GetPush",
    "GetTask",
    "Item",
    "ListPush",
    "ListTasks",
    "Message",
    "Part",
    "Push",
    "PushPage",
    "Reply",
    "Request",
    "Role",
    "Search",
    "Send",
    "Sending",
    "State",
    "Status",
    "StatusUpdate",
    "Subscribe",
    "Task",
    "TaskPage",
]

Generation: TypeAlias = Literal["0.1", "0.3", "1.0"]
"""0.3 stands for 0.2.0 to 0.3.0, which share one wire."""


class State(StrEnum):
    """The state of a task."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


TERMINAL: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED})
"""States that a task never leaves."""


class Role(StrEnum):
    """Who wrote a message."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


class _Shape(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Unknown fields are ignored, as the protocol asks."""


class Part(_Shape, frozen=True, kw_only=True):
    """A piece of content: exactly one of text, raw (base64 in JSON), url and data."""

    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any | UnsetType = UNSET
    metadata: dict[str, Any] | None = None
    filename: str | None = None
    media_type: str | None = None


class Message(_Shape, frozen=True, kw_only=True):
    """One message of a conversation."""

    message_id: str
    role: Role
    parts: tuple[Part, ...]
    context_id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()


class Artifact(_Shape, frozen=True, kw_only=True):
    """A result of a task."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class Status(_Shape, frozen=True, kw_only=True):
    """A state, the agent's message about it, and its time: RFC 3339 in UTC with milliseconds."""

    state: State
    message: Message | None = None
    timestamp: str | None = None


class Task(_Shape, frozen=True, kw_only=True):
    """A piece of work that the agent keeps. Ours have a context; other agents may leave it out."""

    id: str
    context_id: str = ""
    status: Status
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] | None = None


class StatusUpdate(_Shape, frozen=True, kw_only=True):
    """A task changed its state, or reports progress."""

    task_id: str
    context_id: str = ""
    status: Status
    metadata: dict[str, Any] | None = None
    final: bool = False
    """Whether the stream ends with this update. 1.0 does not write it."""


class ArtifactUpdate(_Shape, frozen=True, kw_only=True):
    """An artifact, or a chunk of one."""

    task_id: str
    context_id: str = ""
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None


Reply: TypeAlias = Task | Message
"""What a message is answered with."""
Item: TypeAlias = Task | Message | StatusUpdate | ArtifactUpdate
"""What a stream carries."""


class Authentication(_Shape, frozen=True, kw_only=True):
    """How the receiver of push notifications authenticates the sender."""

    scheme: str
    credentials: str | None = None


class Push(_Shape, frozen=True, kw_only=True):
    """Where to send push notifications of a task. ``id`` is that of the configuration."""

    url: str
    id: str | None = None
    task_id: str | None = None
    token: str | None = None
    authentication: Authentication | None = None
    tenant: str | None = None


# Requests. ``tenant`` names the agent where one address serves several.


class Sending(_Shape, frozen=True, kw_only=True):
    """How a message is to be answered."""

    accepted_output_modes: tuple[str, ...] = ()
    return_immediately: bool = False
    history_length: int | None = None
    push: Push | None = field(default=None, name="taskPushNotificationConfig")


class Send(_Shape, frozen=True, kw_only=True):
    """Send a message; with ``stream``, receive everything that follows.

    ``task_alias`` is the id that a client of 0.1 gave its task.
    """

    message: Message
    configuration: Sending = Sending()
    metadata: dict[str, Any] | None = None
    tenant: str | None = None
    stream: bool = False
    task_alias: str | None = None


class GetTask(_Shape, frozen=True, kw_only=True):
    """Read a task."""

    id: str
    history_length: int | None = None
    tenant: str | None = None
    metadata: dict[str, Any] | None = None


class ListTasks(_Shape, frozen=True, kw_only=True):
    """List the tasks of a caller, the latest changed first."""

    context_id: str | None = None
    status: State | None = None
    page_size: int | None = None
    page_token: str | None = None
    history_length: int | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool = False
    tenant: str | None = None


class Search(_Shape, frozen=True, kw_only=True):
    """Find tasks by words, which our extension ``tasks/search`` adds."""

    query: str
    page_size: int | None = None
    tenant: str | None = None


class CancelTask(_Shape, frozen=True, kw_only=True):
    """Cancel a task."""

    id: str
    tenant: str | None = None
    metadata: dict[str, Any] | None = None


class Subscribe(_Shape, frozen=True, kw_only=True):
    """Follow a task; ``after`` is the number of the last event that was received, from ``Last-Event-ID``."""

    id: str
    tenant: str | None = None
    after: int | None = None
    metadata: dict[str, Any] | None = None


class CreatePush(_Shape, frozen=True, kw_only=True):
    """Add a push configuration to a task."""

    task_id: str
    config: Push
    tenant: str | None = None


class GetPush(_Shape, frozen=True, kw_only=True):
    """Read a push configuration; without an ``id`` the task's first."""

    task_id: str
    id: str | None = None
    tenant: str | None = None


class ListPush(_Shape, frozen=True, kw_only=True):
    """List the push configurations of a task."""

    task_id: str
    page_size: int | None = None
    page_token: str | None = None
    tenant: str | None = None


class DeletePush(_Shape, frozen=True, kw_only=True):
    """Remove a push configuration."""

    task_id: str
    id: str
    tenant: str | None = None


class GetCard(_Shape, frozen=True, kw_only=True):
    """Read the extended card of the agent."""

    tenant: str | None = None


_Tasks: TypeAlias = Send | GetTask | ListTasks | CancelTask | Subscribe | Search
_Pushes: TypeAlias = CreatePush | GetPush | ListPush | DeletePush
Request: TypeAlias = _Tasks | _Pushes | GetCard


class TaskPage(_Shape, frozen=True, kw_only=True, omit_defaults=False):
    """A page of tasks, and the token of the next one."""

    tasks: tuple[Task, ...] = ()
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


class PushPage(_Shape, frozen=True, kw_only=True, omit_defaults=False):
    """A page of push configurations, and the token of the next one."""

    configs: tuple[Push, ...] = ()
    next_page_token: str = ""
