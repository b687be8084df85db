"""The words of agent3: Agent, Capability, Route, Principal, Call, Event, Outcome, Part.

Data only, frozen, encoded by msgspec; no I/O and no protocol. One ``Call`` is one turn of a conversation, a ``Job``
(calls/jobs.py) is what the turns share, and a turn ends in exactly one of the four outcomes below.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Token
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agent3.secret import Secret

if TYPE_CHECKING:
    from agent3.observe.traces import Span

__all__ = [
    "ANONYMOUS",
    "LOCAL",
    "SAID",
    "Agent",
    "Answer",
    "Artifact",
    "Call",
    "Capability",
    "Connector",
    "Deprecation",
    "Done",
    "Entry",
    "Event",
    "Failed",
    "Handler",
    "Hints",
    "Needs",
    "Outcome",
    "Part",
    "Price",
    "Principal",
    "Question",
    "Route",
    "StandIn",
    "Traits",
    "Turn",
    "Usage",
    "Working",
    "agent_id",
    "decode_call",
    "decode_outcome",
    "encode",
    "one_line",
    "own_routes",
    "place_of",
    "text_of",
    "traits_of",
    "value_of",
]


class Part(Struct, frozen=True, omit_defaults=True):
    """One piece of content: exactly one of text, data, raw, url or artifact (a reference into our own store)."""

    text: str | None = None
    data: Any = UNSET
    raw: bytes | None = None
    url: str | None = None
    artifact: str | None = None
    media_type: str | None = None
    name: str | None = None
    meta: dict[str, Any] = {}


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A named result made of parts."""

    id: str
    name: str | None = None
    description: str | None = None
    parts: tuple[Part, ...] = ()
    meta: dict[str, Any] = {}


class Usage(Struct, frozen=True, omit_defaults=True):
    """What a turn consumed; ``estimated`` says that nobody counted and we guessed."""

    tokens: int = 0
    cost: float = 0.0
    estimated: bool = False
    retries: int = 0


class Price(Struct, frozen=True, omit_defaults=True):
    """US dollars per call, per second of answer time, and per thousand tokens."""

    call: float = 0.0
    second: float = 0.0
    tokens: float = 0.0

    def describe(self) -> str:
        """For people: what costs something, by its unit; empty where nothing does."""
        parts = [(self.call, "call"), (self.second, "second"), (self.tokens, "1000 tokens")]
        return " + ".join(f"${amount:g} per {unit}" for amount, unit in parts if amount)


class Hints(Struct, frozen=True, omit_defaults=True):
    """What a capability promises of itself. A remote one's hints are its own word and no proof."""

    read_only: bool = False
    idempotent: bool = False
    consequential: bool = False
    replay: bool = False
    """A restart may run it again from the top with the answers it already got."""


class Deprecation(Struct, frozen=True, omit_defaults=True):
    """Since when it should not be used, when it will go, and what to use instead."""

    since: str | None = None
    sunset: str | None = None
    replacement: str | None = None


class StandIn(Struct, frozen=True, omit_defaults=True):
    """That a route leads to another agent's capability: whose it is, and how names of the one become the other's."""

    agent: str
    capability: str
    input: dict[str, str] = {}
    """From names of its own to names of the capability that it stands in for."""
    output: str | None = None
    """The field of the other's result that its result becomes."""
    repeatable: bool = False
    """Whether its author allows it to be run again when nobody knows how far an earlier run came."""


class Route(Struct, frozen=True, omit_defaults=True):
    """How a capability is reached. ``credential`` is a reference such as ``env:PIZZA_TOKEN``, never the secret."""

    protocol: str
    address: str
    target: str | None = None
    credential: str | None = None
    meta: dict[str, Any] = {}
    stand_in: StandIn | None = None

    @property
    def key(self) -> str:
        """What breakers, metrics, the ledger and logs know it by: no part of an address that may hold a secret."""
        return _label(self.protocol, self.address)


_ENDPOINTS = frozenset({"", "/", "/mcp", "/sse", "/a2a"})
"""Paths that tell nothing of whose server it is."""


@lru_cache(maxsize=10_000)
def _label(protocol: str, address: str) -> str:
    """Of a URL its host and of a command its program, with a digest of the whole that tells it from its neighbours."""
    place = place_of(address)
    if address.removeprefix(place) in _ENDPOINTS:
        return f"{protocol}:{address}"
    return f"{protocol}:{place}#{hashlib.sha256(address.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def one_line(text: str, longest: int) -> str:
    """A text in one line, cut at a word where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1].rpartition(' ')[0] or line[: longest - 1]}…"


def place_of(address: str) -> str:
    """Where an address is, for people: a host or a program, without a path or arguments that may hold a secret."""
    if address.startswith("stdio:"):
        return _program(address.removeprefix("stdio:"))
    scheme, found, rest = address.partition("://")
    authority = rest.partition("/")[0].partition("?")[0].partition("#")[0]
    return f"{scheme}://{authority.rpartition('@')[2]}" if found else address


def _program(command: str) -> str:
    try:
        path = msgspec.convert(msgspec.json.decode(command), dict[str, Any]).get("command")
    except (msgspec.DecodeError, msgspec.ValidationError):
        path = None
    return str(path or "stdio").replace("\\", "/").rpartition("/")[2]


class Capability(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing an agent does."""

    name: str
    description: str = ""
    title: str | None = None
    version: str = "1"
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    examples: tuple[Any, ...] = ()
    phrases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ("text/plain", "application/json")
    output_modes: tuple[str, ...] = ("text/plain", "application/json")
    price: Price = Price()
    hints: Hints = Hints()
    deprecated: Deprecation | None = None
    routes: tuple[Route, ...] = ()
    timeout: float | None = None
    """Seconds that one attempt may take; None takes the setting."""
    cache_ttl: float = 0.0
    """Seconds that a result may be served again to the same caller; 0 for never."""
    interactive: bool = False
    """It may stop in the middle and ask, so its frame is parked while a person thinks."""
    meta: dict[str, Any] = {}


def own_routes(capability: Capability) -> tuple[Route, ...]:
    """The routes of a capability itself, without those of what stands in for it."""
    return tuple(route for route in capability.routes if route.stand_in is None)


class Agent(Struct, frozen=True, omit_defaults=True, kw_only=True, weakref=True):
    """Anything in the directory that can be called."""

    id: str
    name: str
    description: str = ""
    version: str = "1"
    provider: str | None = None
    tags: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    status: Literal["registered", "active", "draining", "suspended", "retired"] = "active"
    source: str | None = None
    card: dict[str, Any] = {}
    meta: dict[str, Any] = {}

    def capability(self, name: str) -> Capability | None:
        """The capability of that name, or None."""
        return next((one for one in self.capabilities if one.name == name), None)


class Principal(Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """Who calls. Two principals with one id are the same caller."""

    id: str
    kind: Literal["local", "client", "agent", "anonymous"] = "client"
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None


LOCAL = Principal("local", "local")
"""The person at this machine: loopback without configured clients, the command line, a stdio host."""
ANONYMOUS = Principal("anonymous", "anonymous")


def agent_id(name: str, default: str = "agent") -> str:
    """A name as the id of an agent: small letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:64] or default


class Question(Struct, frozen=True, omit_defaults=True):
    """Something only the caller can say. A ``url`` means that an authorization is wanted there.

    With ``by`` it is not the caller's to answer: those named there have to, and the caller can only wait or cancel.
    """

    id: str
    text: str
    schema: dict[str, Any] | None = None
    url: str | None = None
    by: str | None = None

    @property
    def wants_authorization(self) -> bool:
        """Whether it is about leave to go on, and not about input."""
        return self.url is not None or self.by is not None


class Answer(Struct, frozen=True, omit_defaults=True):
    """What the caller said."""

    action: Literal["accept", "decline", "cancel"] = "accept"
    data: Any = None
    exact: bool = False
    """Given as input, by the id of its question, and not said in words."""
    words: str = ""
    """What was said, where ``data`` was made of it; they may say that there is no answer."""


Entry = Literal["start", "answer", "attach", "cancel"]
"""How a turn begins: a new call, answers to its questions, a look at work that goes on elsewhere, its end."""
EventKind = Literal["status", "progress", "artifact", "message", "log", "state", "turn"]


SAID = "said"


class Event(Struct, frozen=True, omit_defaults=True):
    """Something that happened during a turn.

    ``state`` is a connector's own reference and never shown; ``message`` is what the caller said in a later turn;
    ``turn`` carries the outcome, so that a resumed stream sees how the turn ended. A ``status`` whose ``data`` is
    SAID belongs to the conversation and is remembered with it. ``seq`` is given by the log.
    """

    kind: EventKind
    text: str | None = None
    done: float | None = None
    total: float | None = None
    artifact: str | None = None
    name: str | None = None
    parts: tuple[Part, ...] = ()
    append: bool = False
    last: bool = False
    data: Any = None
    seq: int = 0
    turn: int = 0


class Done(Struct, frozen=True, omit_defaults=True, tag="done", tag_field="outcome"):
    """It worked."""

    parts: tuple[Part, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    usage: Usage | None = None
    meta: dict[str, Any] = {}


class Failed(Struct, frozen=True, omit_defaults=True, tag="failed", tag_field="outcome"):
    """It did not work; what had come until then is kept.

    ``sent`` is False only where it is certain that the target never saw the call. ``asked`` is True where the target
    was asked, so that the code is its own word and no refusal of ours. ``repeatable`` is the verdict of the attempt
    step, the only one that saw all it takes to judge; nothing is repeated without it.
    """

    code: str
    message: str
    retryable: bool = False
    retry_after: float | None = None
    sent: bool = True
    repeatable: bool = False
    data: dict[str, Any] = {}
    parts: tuple[Part, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    usage: Usage | None = None
    asked: bool = False


class Needs(Struct, frozen=True, omit_defaults=True, tag="needs", tag_field="outcome"):
    """It waits for answers; they come as the next turn."""

    questions: tuple[Question, ...]
    state: Any = None
    parts: tuple[Part, ...] = ()
    job: str | None = None
    turn: int = 0
    answered: tuple[Question, ...] = ()
    """Those asked together with them that have their answers: nobody is asked again, and the target hears all."""


class Working(Struct, frozen=True, omit_defaults=True, tag="working", tag_field="outcome"):
    """It goes on elsewhere; the job can be followed, polled and cancelled, and is entered again with ``attach``."""

    state: Any = None
    poll: float | None = None
    text: str | None = None
    job: str | None = None
    turn: int = 0


Outcome: TypeAlias = Done | Failed | Needs | Working


class Stoppable(Protocol):
    """A running timeout. ``stop`` ends it, and tells whether an error is the cancellation that it caused."""

    def stop(self, error: BaseException | None = None) -> bool: ...


class Turn:
    """What one turn knows only while it runs. It belongs to one process and is never stored.

    The fields are grouped by who sets them. Most turns leave most of them alone, so the defaults stand in the class.
    """

    # The Runner: what the turn is for, and where its events go.
    agent: Agent | None
    capability: Capability
    door: str
    listener: Callable[[Event], None] | None
    forward: Turn | None = None
    """A later turn in which the same frame goes on; events and kept values belong to that one."""
    kept: dict[str, Any]
    """What ``ctx.once`` has already done in this job, by name."""

    # ledger
    at: float = 0.0
    started: float = 0.0
    log_token: Token[Any]
    span: Span | None = None
    span_token: Token[Any]
    answered: bool = False
    """The outcome is there; only its row in the ledger is still waited for."""
    seconds: float = 0.0
    """What it took, once it has paused."""
    seconds_before: float = 0.0
    """What the earlier turns of its job took."""
    sent_before: bool = False
    """An earlier turn of its job reached for the target."""

    # authorize, limit, cache
    denied: str | None = None
    charged: bool = False
    """The caller has paid for this call."""
    acts_as: str | None = None
    """The capability that the call turned out to be for, once that is charged."""
    admitted: bool = False
    """It holds one of the places of its agent."""
    reserved: Any = None
    """What its budgets counted before it started, in this turn or an earlier one of its job, and have to settle."""
    cached: bool = False

    # resolve
    understood: dict[str, Any] | None = None
    """The input that a message was read as, and what of it was guessed."""

    # validate
    answers: dict[str, Answer] | None = None
    """The answers that fit their questions, when others have to be asked again."""

    # fallback
    price: Price | None = None
    """What the stand-in that was asked last costs; None where the agent itself was."""
    accounts: tuple[Any, ...] | None = None
    """The budgets that it is counted on, likewise."""
    served_by: str | None = None
    """The stand-in that was asked last, likewise."""

    # deadline, fallback, attempt
    expires: float | None = None
    """When the time of the whole call is over, by the monotonic clock."""
    route: Route | None = None
    hops: int = 0
    attempts: int = 0
    unsent: int = 0
    """Attempts whose target certainly never saw the call."""
    content: int = 0
    """Pieces of the result that the caller has already seen."""
    seen: int = 0
    """Those that it had seen before this attempt."""
    deadline: Stoppable | None = None
    attempt: Stoppable | None = None
    """The running timeouts of the whole call and of this attempt."""
    asking: bool = True
    """The target is being waited for, not our own queue. Set before each attempt; connectors that queue correct it."""

    # sanitize, route_secrets
    filters: tuple[Callable[[Event], Event], ...] = ()
    """What every event passes on its way out."""
    hides: tuple[Callable[[], Iterable[Secret]], ...] = ()
    """Secrets that a connector gets while it calls, such as tokens: neither an event nor the outcome shows them."""

    # park
    ask: Callable[[Question], Awaitable[Answer]] | None = None

    def __init__(
        self,
        agent: Agent | None,
        capability: Capability,
        listener: Callable[[Event], None] | None = None,
        door: str = "library",
    ):
        self.agent = agent
        self.capability = capability
        self.listener = listener
        self.door = door
        self.kept = {}

    @property
    def heard(self) -> bool:
        """Whether events go anywhere: to a listener, or to the log of a job."""
        return self.listener is not None

    @property
    def handed_on(self) -> bool:
        """Whether another process goes on with its job: this one only stops, and the job pays at its end."""
        return False

    @property
    def can_pause(self) -> bool:
        """Whether it can end with a question: a job keeps what is asked until the answer comes."""
        return False

    def now(self) -> Turn:
        """The turn that runs now: this one, or the one that its frame goes on in."""
        turn = self
        while turn.forward is not None:
            turn = turn.forward
        return turn

    async def keep(self, name: str, value: Any) -> None:
        """Remember what ``ctx.once`` did, before it counts as done. Here only in memory."""
        self.kept[name] = value

    def fork(self) -> Turn:
        """A turn for a frame that may outlive this one: what it emits and keeps belongs to this one for now."""
        turn = Turn.__new__(Turn)
        vars(turn).update(vars(self), listener=None, forward=self)
        return turn

    def emit(self, event: Event) -> None:
        """Tell the listener of the turn that runs now. Never waits."""
        turn = self.now()
        if event.kind == "artifact":
            turn.content += 1
        for change in turn.filters:
            event = change(event)
        turn.hear(event)

    def hear(self, event: Event) -> None:
        """Take an event that has passed the filters."""
        if self.listener is not None:
            self.listener(event)


class _NotRunning(Turn):
    """The turn of a call that no Runner runs: read from storage, still being put together, or given to a connector by
    hand. All such calls share it, so whatever is set on it is forgotten."""

    def __setattr__(self, name: str, value: object) -> None:
        """Forget it."""

    def emit(self, event: Event) -> None:
        """Nobody hears it."""

    async def keep(self, name: str, value: Any) -> None:
        """Nothing outlives it."""


_IDLE = Turn.__new__(_NotRunning)
vars(_IDLE).update(
    agent=None, capability=Capability(name="", input_modes=(), output_modes=()), listener=None, door="", kept={}
)


class Call(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One turn. ``input`` and ``parts`` are always those of the first; ``answers`` adds up, so that replay is possible.

    ``live`` and ``secret`` exist only inside the running process: ``encode`` leaves the first out and refuses the
    second.
    """

    id: str
    principal: Principal
    agent: str
    capability: str
    input: Any = None
    parts: tuple[Part, ...] = ()
    entry: Entry = "start"
    job: str | None = None
    context: str | None = None
    turn: int = 1
    answers: dict[str, Answer] = {}
    questions: tuple[Question, ...] = ()
    reply: tuple[Part, ...] = ()
    state: Any = None
    key: str | None = None
    timeout: float | None = None
    retries: int | None = None
    input_mode: str | None = None
    routes: tuple[Route, ...] = ()
    route: Route | None = None
    attempt: int = 0
    traceparent: str | None = None
    meta: dict[str, Any] = {}
    path: tuple[str, ...] = ()
    """The marks of the calls that it is made inside of; see ``security.via``."""
    live: Turn = _IDLE
    secret: Secret | None = None

    @property
    def idempotent(self) -> bool:
        """Whether doing it twice is as good as once, by its author's word."""
        hints = self.live.capability.hints
        return hints.idempotent or hints.read_only

    def emit(self, event: Event) -> None:
        """Tell what happens meanwhile. Never waits for a reader."""
        self.live.emit(event)


Handler: TypeAlias = Callable[[Call], Awaitable[Outcome]]


class Traits(Struct, frozen=True):
    """What the targets of a protocol are like, for the steps that have to know."""

    asks_for_values: bool = False
    """They ask for values and do not converse: words that drop the matter ("never mind") decline their question."""
    in_process: bool = False
    """They run in this process, and get the caller's own ids of conversations and orders."""
    cost_standards: tuple[tuple[int, str], ...] = ()
    """Numbers of calls, each with the setting in ``[costs]`` that says what so many of them should cost at most."""


class Connector(Protocol):
    """A protocol, in three methods. ``call`` obeys the four entries: start, answer, attach, cancel.

    One whose targets differ from the plain ``Traits()`` has an attribute ``traits``.
    """

    async def describe(self, address: str) -> Agent:
        """Read the card, list the tools, load the interface."""
        ...

    async def call(self, call: Call) -> Outcome:
        """Do it. Only CancelledError travels as an exception by intent; others are translated by the attempt step."""
        ...

    async def aclose(self) -> None:
        """Let go of connections, processes and frames."""
        ...


def traits_of(connector: Connector | None) -> Traits:
    """What the targets of a connector are like."""
    return getattr(connector, "traits", _PLAIN)


_PLAIN = Traits()


_encoder = msgspec.json.Encoder()
_call_decoder = msgspec.json.Decoder(Call)
_outcome_decoder: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Done | Failed | Needs | Working)


def encode(value: Any) -> bytes:
    """JSON bytes of any model object; a Call goes without its live part, and a secret is refused."""
    if isinstance(value, Call):
        if value.secret is not None:
            raise TypeError("a sealed call must never be encoded")
        if value.live is not _IDLE:
            value = msgspec.structs.replace(value, live=_IDLE)
    return _encoder.encode(value)


def decode_call(body: bytes) -> Call:
    """The Call that ``encode`` wrote."""
    return _call_decoder.decode(body)


def decode_outcome(body: bytes) -> Outcome:
    """The Outcome that ``encode`` wrote."""
    return _outcome_decoder.decode(body)


def text_of(parts: tuple[Part, ...]) -> str:
    """The text in some parts, data as JSON, for readers that take only text."""
    pieces = []
    for part in parts:
        if part.text is not None:
            pieces.append(part.text)
        elif not isinstance(part.data, UnsetType):
            pieces.append(_encoder.encode(part.data).decode())
    return "\n".join(pieces)


def value_of(parts: tuple[Part, ...]) -> Any:
    """The plain value of some parts: the one datum or text if there is just one, else a list."""
    values: list[Any] = []
    for part in parts:
        if not isinstance(part.data, UnsetType):
            values.append(part.data)
        elif part.text is not None:
            values.append(part.text)
        else:
            values.append(msgspec.to_builtins(part))
    if not values:
        return None
    return values[0] if len(values) == 1 else values
