"""What a set of tools offers to MCP clients, in our own words: tools, resources, prompts, tasks, and who calls.

The door (``agent3.protocols.mcp.door.door``) turns these into the protocol's own types. Nothing here knows the SDK, so that
whoever writes a tool set does not load it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from msgspec import Struct

from agent3.model import Answer, Done, Event, Needs, Outcome, Part, Principal

__all__ = [
    "ANNOTATIONS",
    "BLOCK",
    "PASSED",
    "STRUCTURED",
    "URI",
    "Caller",
    "Completed",
    "Completion",
    "Completions",
    "Era",
    "Message",
    "Prompt",
    "PromptArgument",
    "Prompted",
    "Prompts",
    "Resource",
    "Resources",
    "Task",
    "Tasks",
    "Template",
    "Tool",
    "ToolSet",
    "Watched",
]

Era = Literal["modern", "legacy"]
"""modern: 2026-07-28, each request for itself. legacy: everything before it, with ``initialize`` and a session."""

URI = "io.agent3/uri"
"""The key in a part's ``meta`` that makes it the embedded resource of that address."""
ANNOTATIONS = "io.agent3/annotations"
"""The key in a part's ``meta`` under which the protocol's annotations stand: audience, priority, lastModified."""
BLOCK = "io.agent3/block"
"""The key in a part's ``meta`` that holds all of a server's content block but its payload, to be passed on as it is."""
STRUCTURED = "io.agent3/structured"
"""The key in a part's ``meta`` that makes its data the structured content, and no block beside it."""
PASSED = "io.agent3/mcp"
"""In a call's ``meta`` what an MCP client said of its request, and that the server's answer is to be passed on to it
unchanged; in the data of such a call's failure, how the server put it: ``error``, or ``meta`` of a result."""


class Tool(Struct, frozen=True, kw_only=True):
    """One tool as a client sees it. ``annotations`` uses the names of the wire, such as ``readOnlyHint``.

    ``requires`` names what a client must be able to do: ``form``, ``url``, ``sampling``, ``roots`` or ``tasks``.
    Clients that cannot are refused before the tool is asked.
    """

    name: str
    description: str = ""
    title: str | None = None
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = {}
    icons: tuple[dict[str, Any], ...] = ()
    requires: frozenset[str] = frozenset()
    meta: dict[str, Any] = {}


class Resource(Struct, frozen=True, kw_only=True):
    """Something that can be read, by its address."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    size: int | None = None
    annotations: dict[str, Any] = {}
    icons: tuple[dict[str, Any], ...] = ()
    meta: dict[str, Any] = {}


class Template(Struct, frozen=True, kw_only=True):
    """A family of resources, by a URI template (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    annotations: dict[str, Any] = {}
    icons: tuple[dict[str, Any], ...] = ()
    meta: dict[str, Any] = {}


class PromptArgument(Struct, frozen=True, kw_only=True):
    """One argument of a prompt; its value is always text."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt that a person can choose."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[PromptArgument, ...] = ()
    icons: tuple[dict[str, Any], ...] = ()
    meta: dict[str, Any] = {}


class Message(Struct, frozen=True):
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    part: Part


class Prompted(Struct, frozen=True):
    """A prompt with its arguments filled in."""

    messages: tuple[Message, ...]
    description: str | None = None
    meta: dict[str, Any] = {}


class Completion(Struct, frozen=True, kw_only=True):
    """An argument that is being typed, of a prompt (by name) or of a resource template (by its template)."""

    kind: Literal["prompt", "resource"]
    name: str
    argument: str
    value: str
    given: dict[str, str] = {}
    """The arguments that are already filled in."""


class Completed(Struct, frozen=True):
    """What a value could become, where there is more than is told."""

    values: tuple[str, ...]
    total: int | None = None
    more: bool = False


class Task(Struct, frozen=True, kw_only=True):
    """How a job stands. ``outcome`` is Working while it goes on and Needs while it waits; times are seconds of Unix."""

    id: str
    outcome: Outcome
    created: float
    updated: float
    ttl: float | None = None
    """Seconds from ``created`` for which it can be asked for; None for ever."""


@dataclass(slots=True)
class Caller:
    """Who calls, and what the door knows of the request.

    ``listener`` takes events on the thread of the event loop and never waits. ``meta`` is the request's ``_meta``
    without the protocol's own keys.
    """

    principal: Principal
    listener: Callable[[Event], None]
    era: Era
    can_elicit: bool
    traceparent: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    can: frozenset[str] = frozenset()
    """What the client can do for us: ``form``, ``url``, ``sampling``, ``roots``, and follow ``tasks``."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """What was answered so far, for prompts and reads, which are asked again from the top."""
    hang_up: Callable[[], Awaitable[None]] | None = None
    """Closes the stream of a legacy client that can come back for the rest; None for all others."""
    level: str | None = None
    """The least level of log lines that the client wants to see; None for no lines."""


class ToolSet(Protocol):
    """What the door opens to. Refusals are raised as ``Agent3Error``; a cancelled request cancels the turn.

    A tool set that also is a ``Resources``, ``Prompts``, ``Completions``, ``Tasks`` or ``Watched`` offers these too.
    """

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The tools that this caller has."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """The first turn. Raise ``NotFound`` for a tool that ``tools`` does not list for this caller.

        A ``Needs`` carries in ``state`` the string that ``answer`` gets back (its ``job`` where there is none).
        """
        ...

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """The next turn, with one answer for each question that was asked."""
        ...


class Resources(Protocol):
    """Offers resources."""

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """The resources that this caller may read."""
        ...

    async def templates(self, principal: Principal) -> Sequence[Template]:
        """The families of resources that this caller may read."""
        ...

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """Its contents, as text and raw parts; ``NotFound`` for what is not there or not this caller's.

        After a ``Needs`` it is asked again from the top, with ``caller.answers``.
        """
        ...


class Watched(Protocol):
    """Wants to know which resources somebody waits for; without it every address can be watched."""

    async def watch(self, uri: str, principal: Principal) -> None:
        """Somebody begins to wait for changes; ``NotFound`` where there is nothing for this caller."""
        ...

    def unwatch(self, uri: str, principal: Principal) -> None:
        """Somebody who began waits no longer; said once for each ``watch`` that was granted. It may be left out."""
        ...


class Prompts(Protocol):
    """Offers prompts."""

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        """The prompts that this caller has."""
        ...

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> Prompted | Needs:
        """The prompt filled in; ``NotFound`` for one that is not listed, ``ValidationError`` for wrong arguments.

        After a ``Needs`` it is asked again from the top, with ``caller.answers``.
        """
        ...


class Completions(Protocol):
    """Helps to type arguments."""

    async def complete(self, completion: Completion, principal: Principal) -> Sequence[str] | Completed:
        """What the value could become, best first."""
        ...


class Tasks(Protocol):
    """Lets calls that go on be followed as tasks: a ``Working`` outcome whose ``job`` is known here becomes one."""

    async def task(self, job: str, caller: Caller) -> Task:
        """How it stands; ``NotFound`` for what is not there or not this caller's."""
        ...

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Take answers, to all or some of what is asked. Returns as soon as they are kept."""
        ...

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel it; one that has ended stays as it is."""
        ...
