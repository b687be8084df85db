"""The documented data classes: what users write down and hand over.

Tools, messages, agent cards and website interfaces, as pydantic models because their users call ``model_dump_json``
and ``model_validate_json``. Data only: no I/O, and no protocol's wire form (that is the codecs' business, and for
cards that of ``agent3.card_formats``).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator
from pydantic import ValidationError as ModelError

from agent3 import card_formats as cardwire
from agent3.errors import ValidationError

__all__ = [
    "A2AMessage",
    "ActionHints",
    "ActionType",
    "AgentAuthentication",
    "AgentCapability",
    "AgentCard",
    "AgentExtension",
    "AgentFeatures",
    "AgentInterface",
    "AgentProvider",
    "AgentSkill",
    "Condition",
    "ExtractField",
    "MessageType",
    "NLWebAction",
    "NLWebActionInfo",
    "NLWebInterface",
    "ToolDefinition",
    "ToolDeprecation",
    "ToolParameter",
]

JSONType = Literal["string", "number", "integer", "boolean", "array", "object", "null"]
_TYPES: tuple[str, ...] = get_args(JSONType)
_PYTHON_NAMES = {
    "float": "number",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "text": "string",
    "enum": "string",
    "None": "null",
}
"""What people write for a JSON type that is not spelt alike; ``int``, ``str`` and ``bool`` are."""


class _Definition(BaseModel):
    """Unknown fields are refused: a misspelt one would otherwise be lost in silence."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


# Tools


class ToolParameter(_Definition):
    """One parameter of a tool. ``items`` and ``properties`` refine arrays and objects, in JSON Schema.

    A type that JSON Schema does not know, such as ``date``, takes any value; one that looks misspelt is refused.
    """

    name: str = Field(min_length=1, max_length=128)
    type: str = "string"
    required: bool = False
    description: str = ""
    enum: list[Any] | None = None
    default: Any = None
    items: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None

    @field_validator("type")
    @classmethod
    def _is_not_misspelt(cls, given: str) -> str:
        meant = _meant(given)
        if meant is not None:
            raise ValueError(f"{given!r} is no JSON type; did you mean {meant!r}? There are {', '.join(_TYPES)}")
        return given

    def to_schema(self) -> dict[str, Any]:
        """Its JSON Schema. A type JSON Schema does not know is left open, as the documents ask."""
        schema: dict[str, Any] = {"type": self.type} if self.type in _TYPES else {}
        optional = {"description": self.description, "enum": self.enum, "items": self.items}
        schema |= {key: value for key, value in optional.items() if value}
        if self.properties:
            schema["properties"] = self.properties
        if self.default is not None:
            schema["default"] = self.default
        return schema


def _meant(given: str) -> str | None:
    """The JSON type that was probably meant; None for one that is right, or of the author's own."""
    if given in _TYPES:
        return None
    close = difflib.get_close_matches(given[:100].lower(), _TYPES, n=1, cutoff=0.6)
    return _PYTHON_NAMES.get(given) or (close[0] if close else None)


class ToolDeprecation(_Definition):
    """Since when a tool should not be used, from when on it is refused, and what to use instead.

    Both moments are ISO 8601; a day begins at midnight UTC.
    """

    since: str | None = None
    sunset: str | None = None
    replacement: str | None = None

    @field_validator("since", "sunset")
    @classmethod
    def _is_a_moment(cls, text: str | None) -> str | None:
        if text is not None:
            datetime.fromisoformat(text)
        return text


class ToolDefinition(_Definition):
    """A tool: its name, what it takes and what it gives.

    ``input_schema`` states the parameters in JSON Schema instead; it wins over ``parameters`` where both are given.
    ``cache_ttl``, in seconds, is for tools that are ``read_only`` or ``idempotent``.
    """

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")
    description: str = ""
    parameters: list[ToolParameter] = []
    returns: dict[str, Any] | None = None
    title: str | None = None
    version: str = "1"
    input_schema: dict[str, Any] | None = None
    tags: list[str] = []
    examples: list[Any] = []
    read_only: bool = False
    idempotent: bool = False
    consequential: bool = False
    timeout: float | None = Field(default=None, gt=0)
    cache_ttl: float = Field(default=0.0, ge=0)
    cost: float = Field(default=0.0, ge=0)
    deprecated: ToolDeprecation | None = None

    @field_validator("version")
    @classmethod
    def _can_be_called_by(cls, version: str) -> str:
        if version.startswith("sha256:"):
            raise ValueError("a version must not begin with 'sha256:', which is how a call pins a definition")
        if not re.fullmatch(r"[^\s@/]{1,64}", version):
            raise ValueError(
                "a version is 1 to 64 characters without blanks, '@' and '/': it is called as name@version"
            )
        return version

    @field_validator("parameters")
    @classmethod
    def _names_are_unique(cls, parameters: list[ToolParameter]) -> list[ToolParameter]:
        names = [one.name for one in parameters]
        if double := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"parameter {sorted(double)[0]!r} is defined twice; give each a name of its own")
        return parameters

    @model_validator(mode="after")
    def _may_be_kept(self) -> Self:
        if self.cache_ttl and not (self.read_only or self.idempotent):
            raise ValueError("cache_ttl is for tools that are read_only or idempotent; say so, or leave it out")
        return self

    def to_schema(self) -> dict[str, Any]:
        """The JSON Schema of its input."""
        if self.input_schema is not None:
            return self.input_schema
        return {
            "type": "object",
            "properties": {one.name: one.to_schema() for one in self.parameters},
            "required": [one.name for one in self.parameters if one.required],
            "additionalProperties": False,
        }

    @property
    def digest(self) -> str:
        """``sha256:…`` over what a caller relies on: name, version, description, input and result.

        A call of ``name@sha256:…`` is taken only while a tool of just this definition is there.
        """
        relied_on = [self.name, self.version, self.description, self.to_schema(), self.returns]
        text = json.dumps(relied_on, sort_keys=True, separators=(",", ":"), default=str)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# Messages between agents


class MessageType(StrEnum):
    """What a message is for."""

    REQUEST = "request"
    RESPONSE = "response"
    EVENT = "event"
    ERROR = "error"


class A2AMessage(_Definition):
    """A message from one agent to another.

    ``timestamp`` is naive local time, because the documents subtract it from ``datetime.now()``; in JSON it carries
    its offset, and reading gives local time back, so a message survives the round trip unchanged.
    """

    message_id: str = Field(default_factory=lambda: str(uuid.uuid4()), min_length=1, max_length=256)
    from_agent: str = Field(min_length=1, max_length=256)
    to_agent: str = Field(min_length=1, max_length=256)
    message_type: MessageType
    capability: str | None = None
    content: dict[str, Any] = {}
    timestamp: datetime = Field(default_factory=datetime.now)
    correlation_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    priority: int = Field(default=0, ge=-100, le=100)
    reply_to: str | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    traceparent: str | None = None
    metadata: dict[str, Any] = {}
    signature: str | None = None
    """The sender's word that it is from him, over everything else in it."""

    @field_validator("timestamp", "expires_at")
    @classmethod
    def _to_local(cls, moment: datetime | None) -> datetime | None:
        if moment is None or moment.tzinfo is None:
            return moment
        return moment.astimezone().replace(tzinfo=None)

    @field_serializer("timestamp", "expires_at", when_used="json-unless-none")
    def _with_offset(self, moment: datetime) -> str:
        return moment.astimezone().isoformat()

    def reply(self, content: dict[str, Any], message_type: MessageType = MessageType.RESPONSE) -> A2AMessage:
        """The answer to this message: ends swapped, correlated, in the same context."""
        return A2AMessage(
            from_agent=self.to_agent,
            to_agent=self.from_agent,
            message_type=message_type,
            capability=self.capability,
            content=content,
            correlation_id=self.message_id,
            context_id=self.context_id,
            task_id=self.task_id,
            priority=self.priority,
            traceparent=self.traceparent,
        )


# Cards of agents: the union of what RF-013 and the generations of A2A say


class AgentProvider(_Definition):
    """Who answers for an agent."""

    organization: str
    url: str | None = None


class AgentExtension(_Definition):
    """An extension that an agent speaks, by its URI."""

    uri: str
    description: str | None = None
    required: bool = False
    params: dict[str, Any] = {}


class AgentInterface(_Definition):
    """One address, with the binding and the version spoken there."""

    url: str
    protocol_binding: str = Field(default="JSONRPC", alias="protocolBinding")
    protocol_version: str = Field(default="1.0", alias="protocolVersion")
    tenant: str | None = None


class AgentFeatures(_Definition):
    """What the protocols call an agent's capabilities: streaming, push and the like."""

    streaming: bool = False
    push_notifications: bool = Field(default=False, alias="pushNotifications")
    state_transition_history: bool = Field(default=False, alias="stateTransitionHistory")
    extended_agent_card: bool = Field(default=False, alias="extendedAgentCard")
    extensions: list[AgentExtension] = []


class AgentAuthentication(_Definition):
    """How the first generation of cards names its schemes. A card is public: it never holds a credential."""

    schemes: list[str] = []


class AgentCapability(_Definition):
    """One thing an agent does; what the protocols call a skill."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    id: str | None = None
    version: str = "1"
    tags: list[str] = []
    examples: list[Any] = []
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    input_modes: list[str] = Field(default=[], alias="inputModes")
    output_modes: list[str] = Field(default=[], alias="outputModes")
    parameters: list[ToolParameter] = []
    security: list[dict[str, Any]] = []
    cost: float = Field(default=0.0, ge=0)
    read_only: bool = False
    idempotent: bool = False
    consequential: bool = False

    def to_schema(self) -> dict[str, Any]:
        """The JSON Schema of its input; open where nothing was declared."""
        if self.input_schema is not None:
            return self.input_schema
        if not self.parameters:
            return {"type": "object"}
        return ToolDefinition(name="input", parameters=self.parameters).to_schema()


AgentSkill = AgentCapability


class AgentCard(_Definition):
    """An agent's visiting card.

    RF-013 writes ``agent_id``, ``name`` and ``capabilities`` (a list of things it does); the protocols' ``skills``
    are read as the same list, and their ``capabilities`` object as ``features``.
    """

    agent_id: str = Field(default="", max_length=256)
    name: str = Field(min_length=1)
    description: str = ""
    version: str = "1"
    url: str | None = None
    capabilities: list[AgentCapability] = []
    features: AgentFeatures = AgentFeatures()
    provider: AgentProvider | None = None
    tags: list[str] = []
    status: Literal["registered", "active", "draining", "suspended", "retired"] = "active"
    protocol_version: str | None = Field(default=None, alias="protocolVersion")
    preferred_transport: str | None = Field(default=None, alias="preferredTransport")
    interfaces: list[AgentInterface] = Field(default=[], alias="supportedInterfaces")
    authentication: AgentAuthentication | None = None
    security_schemes: dict[str, Any] = Field(default={}, alias="securitySchemes")
    security: list[dict[str, Any]] = []
    default_input_modes: list[str] = Field(default=["text/plain"], alias="defaultInputModes")
    default_output_modes: list[str] = Field(default=["text/plain"], alias="defaultOutputModes")
    documentation_url: str | None = Field(default=None, alias="documentationUrl")
    icon_url: str | None = Field(default=None, alias="iconUrl")
    public_key: str | None = None
    signatures: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_the_protocols_words(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        card = dict(given)
        if isinstance(card.get("capabilities"), dict):
            card["features"] = card.pop("capabilities")
        if "skills" in card and "capabilities" not in card:
            card["capabilities"] = card.pop("skills")
        return card

    @model_validator(mode="after")
    def _has_an_id(self) -> Self:
        if not self.agent_id:
            self.agent_id = "-".join(self.name.lower().split())
        return self

    def to_wire(self, generation: cardwire.Generation = "1.0") -> dict[str, Any]:
        """The card as a generation of A2A writes it: 0.1, 0.3 (for 0.2 too) or 1.0."""
        return cardwire.project(self.model_dump(), generation)

    @classmethod
    def from_wire(cls, document: Any) -> Self:
        """The card of a JSON document of any generation, or of several at once, or of RF-013.

        Members that nobody knows are left out. Raises ``agent3.errors.ValidationError`` with every member that cannot
        be understood, and nothing else.
        """
        try:
            return cls.model_validate(cardwire.understand(document))
        except ModelError as reason:
            faults = [{"path": ".".join(map(str, one["loc"])), "message": one["msg"]} for one in reason.errors()]
            text = "; ".join(f"{one['path']}: {one['message']}" for one in faults[:10])
            raise ValidationError(f"The agent card cannot be understood: {text}", errors=faults) from None

    def capability(self, name: str) -> AgentCapability | None:
        """The capability of that name or id, or None."""
        return next((one for one in self.capabilities if name in (one.name, one.id)), None)


# Interfaces of websites


class ActionType(StrEnum):
    """What one step on a page does; ``if`` and ``repeat`` hold steps of their own."""

    NAVIGATE = "navigate"
    TYPE = "type"
    CLICK = "click"
    EXTRACT = "extract"
    WAIT = "wait"
    SELECT = "select"
    SCROLL = "scroll"
    PRESS = "press"
    UPLOAD = "upload"
    SCREENSHOT = "screenshot"
    HOVER = "hover"
    CHECK = "check"
    UNCHECK = "uncheck"
    FILL = "fill"
    SUBMIT = "submit"
    DIALOG = "dialog"
    BACK = "back"
    CLOSE = "close"
    IF = "if"
    REPEAT = "repeat"
    TOOL = "tool"


_WITHOUT_SELECTOR = frozenset(
    {
        ActionType.NAVIGATE,
        ActionType.EXTRACT,
        ActionType.WAIT,
        ActionType.SCROLL,
        ActionType.PRESS,
        ActionType.SCREENSHOT,
        ActionType.DIALOG,
        ActionType.BACK,
        ActionType.CLOSE,
        ActionType.IF,
        ActionType.REPEAT,
        ActionType.TOOL,
    }
)
_MOST_STEPS = 500
_DEEPEST = 6
_NAME = r"^[A-Za-z_][A-Za-z0-9_-]*$"


class ExtractField(_Definition):
    """How one value is read from a card of the page: where, which attribute, and as what."""

    selector: str = ""
    attribute: str | None = None
    type: Literal["text", "number", "integer", "price", "date", "link", "html", "boolean"] = "text"
    many: bool = False
    fields: dict[str, str | ExtractField] | None = None
    required: bool = False


class Condition(_Definition):
    """Something that holds or not, on the page or among the values; all that is given must hold.

    ``visible``, ``hidden``, ``present`` and ``absent`` are selectors; ``text`` is shown by the page, in any case of
    letters; ``url`` is part of its address, or a pattern with ``*``. ``count`` is a selector with ``at_least`` and
    ``at_most`` matches. ``given`` names a parameter or saved value that is there and not empty, ``variable`` one that
    ``equals``, ``contains``, is ``above`` or ``below`` something.
    """

    visible: str | None = None
    hidden: str | None = None
    present: str | None = None
    absent: str | None = None
    text: str | None = None
    url: str | None = None
    count: str | None = None
    at_least: int | None = Field(default=None, ge=0)
    at_most: int | None = Field(default=None, ge=0)
    given: str | None = None
    variable: str | None = None
    equals: str | bool | float | None = None
    contains: str | None = None
    above: float | None = None
    below: float | None = None
    negated: Condition | None = Field(default=None, alias="not")
    any: list[Condition] = []

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        bounds = {"at_least", "at_most"}
        comparisons = {"equals", "contains", "above", "below"}
        said = {name for name, value in self if value not in (None, [])}
        if not said - bounds - comparisons:
            raise ValueError("a condition must say what has to hold, such as visible, text, url or variable")
        if bool(said & bounds) != ("count" in said):
            raise ValueError("a condition on count, a selector, says at_least or at_most how many it wants")
        if bool(said & comparisons) != ("variable" in said):
            raise ValueError("a condition on a variable compares it: equals, contains, above or below")
        return self


class NLWebAction(_Definition):
    """One step on a page. Every text but the type, the names and the description may hold ``{parameter}`` placeholders.

    Of any step, ``when`` says under which condition it is run at all, ``frame`` the iframe that it acts in, ``popup``
    that it opens another page on which the following steps go on, ``save_as`` under which name its result is known to
    the steps after it, and ``retries`` how often it is tried again where the kind's own number is not right.

    An ``if`` runs its ``steps`` or ``otherwise``. A ``repeat`` runs its ``steps`` for each ``{item}`` of the saved list
    ``over``, or ``until`` a condition holds, and at most so many ``times``. A ``wait`` may wait ``until`` a condition
    holds. An ``extract`` goes on over ``next``, the selector of the way to the next page; where its selectors find
    nothing the page is read in other ways, unless ``fallbacks`` is false. A ``fill`` fills the ``fields`` of a form by
    their names or labels. A ``tool`` calls the tool of that ``value`` which the page itself offers (WebMCP) with
    ``fields``; it runs its ``steps`` after one that gives nothing, and ``otherwise`` where there is no such tool.
    """

    # In YAML a number needs no quotes, and what is typed into a page is text all the same.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    action_type: ActionType
    selector: str | None = None
    value: str | None = None
    wait_for: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    extract_schema: dict[str, str | ExtractField] | None = None
    optional: bool = False
    description: str = ""
    when: Condition | None = None
    until: Condition | None = None
    steps: list[NLWebAction] = []
    otherwise: list[NLWebAction] = []
    times: int | None = Field(default=None, ge=1, le=1000)
    over: str | None = Field(default=None, pattern=_NAME)
    save_as: str | None = Field(default=None, pattern=_NAME)
    frame: str | None = None
    popup: bool = False
    next: str | None = None
    fields: dict[str, str] | None = None
    fallbacks: bool = True
    retries: int | None = Field(default=None, ge=0, le=10)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if fault := _fault(self):
            raise ValueError(fault)
        return self


def _fault(step: NLWebAction) -> str | None:
    """What the step lacks, or has that its kind cannot use; None if it can work."""
    kind = step.action_type
    if kind not in _WITHOUT_SELECTOR and not step.selector:
        return f"a {kind.value} step needs a selector: say which element of the page it acts on"
    if kind is ActionType.NAVIGATE and not step.value:
        return "a navigate step needs a value: the address to go to"
    if kind is ActionType.TOOL and not step.value:
        return "a tool step needs a value: the name of the tool that the page offers"
    if kind in (ActionType.IF, ActionType.REPEAT) and not step.steps:
        return f"a {kind.value} step needs steps: say what it runs"
    if kind is ActionType.IF and step.when is None:
        return "a step of the kind if needs when: the condition under which its steps are run"
    if kind is ActionType.FILL and not step.fields:
        return "a fill step needs fields: the values by the names or labels of the form"
    return _stray(step)


def _stray(step: NLWebAction) -> str | None:
    for name, kinds in _ONLY_FOR.items():
        if getattr(step, name) not in (None, []) and step.action_type not in kinds:
            return (
                f"{name} is for {' and '.join(sorted(kinds))} steps; a {step.action_type.value} step has no use for it"
            )
    return None


_ONLY_FOR: dict[str, set[ActionType]] = {
    "steps": {ActionType.IF, ActionType.REPEAT, ActionType.TOOL},
    "otherwise": {ActionType.IF, ActionType.TOOL},
    "until": {ActionType.REPEAT, ActionType.WAIT},
    "times": {ActionType.REPEAT, ActionType.EXTRACT, ActionType.SCROLL},
    "over": {ActionType.REPEAT},
    "next": {ActionType.EXTRACT},
    "fields": {ActionType.FILL, ActionType.TOOL},
    "extract_schema": {ActionType.EXTRACT},
}


class ActionHints(_Definition):
    """What an action promises: whether it only reads, and whether it has consequences beyond the page."""

    read_only: bool = False
    consequential: bool = False
    idempotent: bool = False


class NLWebActionInfo(_Definition):
    """What is known of an action beside its steps. ``cost`` is what one run of it costs its caller, in US dollars."""

    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    phrases: list[str] = []
    hints: ActionHints = ActionHints()
    cost: float = Field(default=0.0, ge=0)


class NLWebInterface(_Definition):
    """A website as an agent: named actions, each a list of steps. ``info`` describes them, by the same names.

    ``consent`` says what becomes of a banner that asks for cookies and stands in the way: it is declined, accepted, or
    left alone.
    """

    interface_id: str = Field(min_length=1, max_length=256)
    name: str
    base_url: str
    actions: dict[str, list[NLWebAction]] = {}
    info: dict[str, NLWebActionInfo] = {}
    description: str = ""
    version: str = "1"
    allowed_hosts: list[str] = []
    allow_subdomains: bool = False
    consent: Literal["decline", "accept", "leave"] = "decline"
    metadata: dict[str, Any] = {}

    @field_validator("base_url")
    @classmethod
    def _is_a_web_address(cls, url: str) -> str:
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"base_url {url!r} must start with https:// or http://")
        return url

    @field_validator("actions")
    @classmethod
    def _are_not_endless(cls, actions: dict[str, list[NLWebAction]]) -> dict[str, list[NLWebAction]]:
        for name, steps in actions.items():
            count, depth = _extent(steps)
            if count > _MOST_STEPS or depth > _DEEPEST:
                raise ValueError(
                    f"action {name!r} has {count} steps, {depth} deep; at most {_MOST_STEPS}, {_DEEPEST} deep, go"
                )
        return actions

    @model_validator(mode="after")
    def _info_speaks_of_actions(self) -> Self:
        if stray := sorted(set(self.info) - set(self.actions)):
            raise ValueError(f"info describes {stray[0]!r}, which is not among the actions")
        return self

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The interface of a JSON or YAML document, already parsed.

        Raises ``agent3.errors.ValidationError`` with every fault, each naming the step it is in, and nothing else.
        """
        try:
            return cls.model_validate(document)
        except ModelError as reason:
            faults = [
                {"path": "/".join(map(str, one["loc"])), "message": f"{_place(one['loc'])}{_in_words(one)}"}
                for one in reason.errors()
            ]
            text = "; ".join(one["message"] for one in faults[:10])
            raise ValidationError(f"The interface cannot be used: {text}", errors=faults) from None


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


_KINDS = {
    "model_type": "a mapping (name: value)",
    "dict_type": "a mapping (name: value)",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _in_words(one: Any) -> str:
    """What is wrong with a document, in our words rather than in those of who found it."""
    kind, given = one["type"], one.get("input")
    if kind == "extra_forbidden":
        found = difflib.get_close_matches(str(one["loc"][-1]), _fields_of(one["loc"]), n=1)
        return f"there is no such field{f'; did you mean {found[0]!r}?' if found else ''}"
    if kind == "missing":
        return "it is missing"
    if kind in _KINDS and given is None:
        return f"nothing is there; it must be {_KINDS[kind]}"
    if kind in _KINDS:
        return f"it must be {_KINDS[kind]}, not {json.dumps(given, default=str)[:40]}"
    return _said(one["msg"]).replace("Input should be", "it must be")


def _fields_of(path: tuple[int | str, ...]) -> list[str]:
    """The fields that there are at the place of a fault."""
    if path[:1] == ("actions",):
        return list(NLWebAction.model_fields)
    if path[:1] == ("info",):
        return [*NLWebActionInfo.model_fields, *ActionHints.model_fields]
    return list(NLWebInterface.model_fields)


def _extent(steps: list[NLWebAction]) -> tuple[int, int]:
    """How many steps there are in all, and how deep they stand in one another."""
    within = [_extent([*one.steps, *one.otherwise]) for one in steps]
    return len(steps) + sum(count for count, _ in within), 1 + max((depth for _, depth in within), default=-1)


def _place(path: tuple[int | str, ...]) -> str:
    """``step 3 of 'search' (selector): `` for the path of a fault, as people count."""
    if path[:1] != ("actions",) or len(path) < 3:
        return f"{'.'.join(map(str, path))}: " if path else ""
    steps = [str(one + 1) for one in path[2:] if isinstance(one, int)]
    field = ".".join(str(one) for one in path[3:] if not isinstance(one, int) and one not in ("steps", "otherwise"))
    return f"step {'.'.join(steps)} of {path[1]!r}{f' ({field})' if field else ''}: "
