"""What a set of tools offers to MCP clients: tools, resources, prompts, completions, tasks, and who calls.

A tool set must have tools; everything else is an optional capability with a protocol of its own, and
``Capabilities.of`` finds which of them it has. The door translates these types to the protocol's. Nothing here knows
the SDK, so a tool set can be written without loading it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from agent3.model import Answer, Done, Event, Needs, Outcome, Part, Principal
from agent3.protocols.mcp.meta_keys import ANNOTATIONS, BLOCK, PASSED, STRUCTURED, URI

__all__ = ["ANNOTATIONS", "BLOCK", "PASSED", "STRUCTURED", "URI", "Caller", "Capabilities", "Completion",
           "CompletionResult", "Completions", "Era", "FilledPrompt", "Fingerprints", "Overheard", "Prompt",
           "PromptArgument", "PromptMessage", "Prompts", "Resource", "ResourceTemplate", "Resources", "Streaming",
           "Subscriptions", "Task", "Tasks", "Tool", "ToolSet", "describe_client", "ignore_event"]  # fmt: skip

Era = Literal["modern", "legacy"]
"""modern: 2026-07-28, each request stands alone. legacy: everything before it, with ``initialize`` and a session."""


_WIRE_NAMES = {"media_type": "mimeType", "uri_template": "uriTemplate", "meta": "_meta"}
"""The names by which the door encodes these descriptions, where they differ from the fields."""


class Tool(Struct, frozen=True, kw_only=True):
    """One tool as a client sees it. ``annotations`` uses the names of the wire, such as ``readOnlyHint``.

    ``requires`` names what a client must be able to do: ``form``, ``url``, ``sampling``, ``roots`` or ``tasks``.
    Clients that cannot are refused before the tool is called.
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


class Resource(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_WIRE_NAMES):
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


class ResourceTemplate(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_WIRE_NAMES):
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


class Prompt(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_WIRE_NAMES):
    """A prompt that a person can choose."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[PromptArgument, ...] = ()
    icons: tuple[dict[str, Any], ...] = ()
    meta: dict[str, Any] = {}


class PromptMessage(Struct, frozen=True):
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    part: Part


class FilledPrompt(Struct, frozen=True):
    """A prompt with its arguments filled in."""

    messages: tuple[PromptMessage, ...]
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


class CompletionResult(Struct, frozen=True):
    """Proposals for a value; ``more`` says that there are others."""

    values: tuple[str, ...]
    total: int | None = None
    more: bool = False


class Task(Struct, frozen=True, kw_only=True):
    """The state of a job. ``outcome`` is Working while it runs and Needs while it waits; times are Unix seconds."""

    id: str
    outcome: Outcome
    created: float
    updated: float
    ttl: float | None = None
    """Seconds from ``created`` for which it can be queried; None for ever."""


def ignore_event(event: Event) -> None:
    """The listener of a caller that wants no events."""


class Overheard:
    """The listener of a call that began without a stream: keeps its log lines until there is a listener with one."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._lines: list[Event] = []
        self._listener: Callable[[Event], None] | None = None
        self._on_line: Callable[[], None] | None = None

    def __call__(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)
        elif event.kind == "log" and len(self._lines) < self._most:
            self._lines.append(event)
            if self._on_line is not None:
                self._on_line()

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def notify(self, on_line: Callable[[], None]) -> None:
        """Have this called when there is a line, at once if there is one."""
        self._on_line = on_line
        if self._lines:
            on_line()

    def pass_on(self, listener: Callable[[Event], None]) -> None:
        """Give what was kept, and all that follows, to this one."""
        self._listener = listener
        for line in self._lines:
            listener(line)
        self._lines.clear()


class Caller(Struct, eq=False):
    """Who calls, and what the door knows of the request.

    ``listener`` takes events on the thread of the event loop and never waits. ``meta`` is the request's ``_meta``
    without the protocol's own keys.
    """

    principal: Principal
    listener: Callable[[Event], None]
    era: Era
    can_elicit: bool
    traceparent: str | None = None
    meta: dict[str, Any] = {}
    can: frozenset[str] = frozenset()
    """What the client can do for us: ``form``, ``url``, ``sampling``, ``roots``, and follow ``tasks``."""
    answers: dict[str, Answer] = {}
    """All answers so far, for prompts and reads, which start again from the top after a question."""
    resumed: tuple[str, dict[str, Answer]] | None = None
    """The job of the ``Needs`` that a prompt or a read ended with, where it had one, and the answers to just that."""
    hang_up: Callable[[], Awaitable[None]] | None = None
    """Closes the stream of a legacy client that can come back for the rest; None for all others."""
    level: str | None = None
    """The lowest level of log lines that the client wants; None for no lines."""
    streams: bool = False
    """Whether the pieces of a result reach the client while the call runs."""


def describe_client(caller: Caller) -> dict[str, Any]:
    """The ``meta`` of a call for an MCP client: what it said of itself and of its request."""
    said: dict[str, Any] = {"can": sorted(caller.can), "era": caller.era}
    if caller.level:
        said["level"] = caller.level
    if caller.meta:
        said["meta"] = caller.meta
    return {PASSED: said}


class ToolSet(Protocol):
    """What a door serves. Refusals are raised as ``Agent3Error``; a cancelled request cancels the turn.

    A tool set that also implements ``Resources``, ``Subscriptions``, ``Prompts``, ``Completions``, ``Tasks``,
    ``Fingerprints`` or ``Streaming`` offers these too.
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


@runtime_checkable
class Fingerprints(Protocol):
    """Can tell whether its list of tools changed, so that listings may be cached."""

    def fingerprint(self, principal: Principal) -> Hashable | None:
        """A value that stays the same as long as ``tools`` gives this caller the same, and never comes again after;
        None where it is not known now."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """Has tools whose arguments say whether to stream."""

    def streaming(self, name: str, arguments: Mapping[str, Any]) -> bool | None:
        """What the arguments say, which nobody has checked yet; None where they say nothing.

        True streams also to a client without a progress token, if the protocol has a way; False never does.
        """


@runtime_checkable
class Measures(Protocol):
    """Hears how long its list took."""

    def on_listed(self, seconds: float) -> None:
        """A list of tools was made in so many seconds."""
        ...


@runtime_checkable
class Resources(Protocol):
    """Offers resources."""

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """The resources that this caller may read."""
        ...

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        """The families of resources that this caller may read."""
        ...

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        """The contents, as text and raw parts; ``NotFound`` for what is not there or not this caller's.

        After a ``Needs`` it is called again from the top, with ``caller.answers``.
        """
        ...


@runtime_checkable
class Subscriptions(Protocol):
    """Decides which resources may be watched; without it every address can be.

    One that also has ``unwatch(uri, principal)`` gets a call of it for each ``watch`` that was granted and has ended.
    """

    async def watch(self, uri: str, principal: Principal) -> None:
        """A client starts watching; ``NotFound`` where there is nothing for this caller."""
        ...


@runtime_checkable
class _Unwatch(Protocol):
    def unwatch(self, uri: str, principal: Principal) -> None: ...


@runtime_checkable
class Prompts(Protocol):
    """Offers prompts."""

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        """The prompts that this caller has."""
        ...

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        """The prompt filled in; ``NotFound`` for one that is not listed, ``ValidationError`` for wrong arguments.

        After a ``Needs`` it is called again from the top, with ``caller.answers``.
        """
        ...


@runtime_checkable
class Completions(Protocol):
    """Proposes values for arguments that are being typed."""

    async def complete(self, completion: Completion, principal: Principal) -> Sequence[str] | CompletionResult:
        """What the value could become, best first."""
        ...


@runtime_checkable
class Tasks(Protocol):
    """Lets long calls be followed as tasks: a ``Working`` outcome whose ``job`` is known here becomes one."""

    async def task(self, job: str, caller: Caller) -> Task:
        """The state of a job; ``NotFound`` for what is not there or not this caller's."""
        ...

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Take answers to all or some of the open questions. Returns as soon as they are stored."""
        ...

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel a job; one that has ended stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional capabilities of a tool set; None for what it does not offer."""

    resources: Resources | None = None
    subscriptions: Subscriptions | None = None
    unwatch: Callable[[str, Principal], None] | None = None
    prompts: Prompts | None = None
    completions: Completions | None = None
    tasks: Tasks | None = None
    fingerprint: Callable[[Principal], Hashable | None] | None = None
    streaming: Callable[[str, Mapping[str, Any]], bool | None] | None = None
    on_listed: Callable[[float], None] = lambda seconds: None
    logs: bool = False
    """Whether log lines also go to legacy clients that have set no level, whom a server may send what it chooses."""

    @classmethod
    def of(cls, toolset: ToolSet) -> Capabilities:
        """What a tool set offers: what it declares as ``capabilities``, else all that it has the methods of."""
        declared = getattr(toolset, "capabilities", None)
        if isinstance(declared, cls):
            return declared
        return cls(
            resources=toolset if isinstance(toolset, Resources) else None,
            subscriptions=toolset if isinstance(toolset, Subscriptions) else None,
            unwatch=toolset.unwatch if isinstance(toolset, _Unwatch) else None,
            prompts=toolset if isinstance(toolset, Prompts) else None,
            completions=toolset if isinstance(toolset, Completions) else None,
            tasks=toolset if isinstance(toolset, Tasks) else None,
            fingerprint=toolset.fingerprint if isinstance(toolset, Fingerprints) else None,
            streaming=toolset.streaming if isinstance(toolset, Streaming) else None,
            on_listed=toolset.on_listed if isinstance(toolset, Measures) else lambda seconds: None,
        )
