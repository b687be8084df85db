"""The documented data classes that users write: tools, messages, agent cards and website interfaces.

They are pydantic models, because their users call ``model_dump_json`` and ``model_validate_json``. Data only: no I/O,
and no protocol's wire format, which belongs to the codecs and, for cards, to ``agent3.card_formats``.
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

from agent3 import card_formats
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
"""What people write for a JSON type of another spelling; ``int``, ``str`` and ``bool`` are close enough to be found."""


class _Definition(BaseModel):
    """Unknown fields are refused: a misspelt one would otherwise be lost silently."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


# --- tools ------------------------------------------------------------------------------------------------------------


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
    def _check_type(cls, given: str) -> str:
        if given in _TYPES:
            return given
        close = difflib.get_close_matches(given[:100].lower(), _TYPES, n=1, cutoff=0.6)
        meant = _PYTHON_NAMES.get(given) or (close[0] if close else None)
        if meant is not None:
            raise ValueError(f"{given!r} is not a JSON type; did you mean {meant!r}? Known are {', '.join(_TYPES)}")
        return given  # a type of the author's own

    def to_schema(self) -> dict[str, Any]:
        """Its JSON Schema. A type that JSON Schema does not know is left open, as the documents ask."""
        schema: dict[str, Any] = {"type": self.type} if self.type in _TYPES else {}
        optional = {"description": self.description, "enum": self.enum, "items": self.items}
        schema |= {key: value for key, value in optional.items() if value}
        if self.properties:
            schema["properties"] = self.properties
        if self.default is not None:
            schema["default"] = self.default
        return schema


class ToolDeprecation(_Definition):
    """Since when a tool is deprecated, from when on it is refused, and what to use instead.

    Both moments are ISO 8601; a day begins at midnight UTC.
    """

    since: str | None = None
    sunset: str | None = None
    replacement: str | None = None

    @field_validator("since", "sunset")
    @classmethod
    def _check_moment(cls, text: str | None) -> str | None:
        if text is not None:
            datetime.fromisoformat(text)
        return text


class ToolDefinition(_Definition):
    """A tool: its name, what it takes and what it returns.

    ``input_schema`` states the parameters in JSON Schema instead; it wins over ``parameters`` where both are given.
    ``cache_ttl``, in seconds, is for tools that are ``read_only`` or ``idempotent``. ``requires`` names what a client
    must be able to do; others are refused. With ``task``, a call of a client that follows tasks goes on as one: from
    the start, or ``after_input``, when its first questions are answered.
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
    requires: list[Literal["form", "url", "sampling", "roots", "tasks"]] = []
    task: bool | Literal["after_input"] = False

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if version.startswith("sha256:"):
            raise ValueError("a version must not start with 'sha256:', which is how a call pins a definition")
        if not re.fullmatch(r"[^\s@/]{1,64}", version):
            raise ValueError(
                "a version must have 1 to 64 characters without spaces, '@' and '/': it is called as name@version"
            )
        return version

    @field_validator("parameters")
    @classmethod
    def _check_unique_names(cls, parameters: list[ToolParameter]) -> list[ToolParameter]:
        names = [parameter.name for parameter in parameters]
        if double := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"parameter {sorted(double)[0]!r} is defined twice; give each its own name")
        return parameters

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.cache_ttl and not (self.read_only or self.idempotent):
            raise ValueError("cache_ttl needs read_only or idempotent")
        return self

    def to_schema(self) -> dict[str, Any]:
        """The JSON Schema of its input."""
        if self.input_schema is not None:
            return self.input_schema
        return {
            "type": "object",
            "properties": {parameter.name: parameter.to_schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    @property
    def digest(self) -> str:
        """``sha256:…`` over what a caller relies on: name, version, description, input and result.

        A call of ``name@sha256:…`` is accepted only while a tool with exactly this definition exists.
        """
        relied_on = [self.name, self.version, self.description, self.to_schema(), self.returns]
        text = json.dumps(relied_on, sort_keys=True, separators=(",", ":"), default=str)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --- messages between agents ------------------------------------------------------------------------------------------


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
    """The sender's signature over everything else in the message."""

    @field_validator("timestamp", "expires_at")
    @classmethod
    def _to_local(cls, moment: datetime | None) -> datetime | None:
        if moment is None or moment.tzinfo is None:  # naive: local time already
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


# --- agent cards: the union of what RF-013 and the generations of A2A define ------------------------------------------


class AgentProvider(_Definition):
    """Who is responsible for an agent."""

    organization: str
    url: str | None = None


class AgentExtension(_Definition):
    """An extension that an agent supports, by its URI."""

    uri: str
    description: str | None = None
    required: bool = False
    params: dict[str, Any] = {}


class AgentInterface(_Definition):
    """One address, with the protocol binding and version that it speaks."""

    url: str
    protocol_binding: str = Field(default="JSONRPC", alias="protocolBinding")
    protocol_version: str = Field(default="1.0", alias="protocolVersion")
    tenant: str | None = None


class AgentFeatures(_Definition):
    """What the protocols call an agent's capabilities: streaming, push notifications and so on."""

    streaming: bool = False
    push_notifications: bool = Field(default=False, alias="pushNotifications")
    state_transition_history: bool = Field(default=False, alias="stateTransitionHistory")
    extended_agent_card: bool = Field(default=False, alias="extendedAgentCard")
    extensions: list[AgentExtension] = []


class AgentAuthentication(_Definition):
    """The authentication schemes as the first generation of cards names them. A card never holds a credential."""

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
        """The JSON Schema of its input; open if nothing was declared."""
        if self.input_schema is not None:
            return self.input_schema
        if not self.parameters:
            return {"type": "object"}
        return ToolDefinition(name="input", parameters=self.parameters).to_schema()


AgentSkill = AgentCapability


class AgentCard(_Definition):
    """An agent card.

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
    def _read_protocol_names(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        card = dict(given)
        if isinstance(card.get("capabilities"), dict):
            card["features"] = card.pop("capabilities")
        if "skills" in card and "capabilities" not in card:
            card["capabilities"] = card.pop("skills")
        return card

    @model_validator(mode="after")
    def _fill_id(self) -> Self:
        if not self.agent_id:
            self.agent_id = "-".join(self.name.lower().split())
        return self

    def to_wire(self, generation: card_formats.Generation = "1.0") -> dict[str, Any]:
        """The card as a generation of A2A writes it: 0.1, 0.3 (for 0.2 too) or 1.0."""
        return card_formats.project(self.model_dump(), generation)

    @classmethod
    def from_wire(cls, document: Any) -> Self:
        """The card of a JSON document of any generation, or of several at once, or of RF-013.

        Unknown members are ignored. Raises only ``agent3.errors.ValidationError``, with every member that is invalid.
        """
        try:
            return cls.model_validate(card_formats.parse(document))
        except ModelError as error:
            faults = [{"path": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
            text = "; ".join(f"{fault['path']}: {fault['message']}" for fault in faults[:10])
            raise ValidationError(f"The agent card cannot be understood: {text}", errors=faults) from None

    def capability(self, name: str) -> AgentCapability | None:
        """The capability of that name or id, or None."""
        return next((each for each in self.capabilities if name in (each.name, each.id)), None)


# --- website interfaces -----------------------------------------------------------------------------------------------


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
    """How one value is read from an item on the page: where, which attribute, and as which type."""

    selector: str = ""
    attribute: str | None = None
    type: Literal["text", "number", "integer", "price", "date", "link", "html", "boolean"] = "text"
    many: bool = False
    fields: dict[str, str | ExtractField] | None = None
    required: bool = False


class Condition(_Definition):
    """Something that is true or not, on the page or among the values; everything that is given must hold.

    ``visible``, ``hidden``, ``present`` and ``absent`` are selectors; ``text`` is shown by the page, in upper or lower
    case; ``url`` is part of its address, or a pattern with ``*``. ``count`` is a selector with ``at_least`` and
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
    def _check_comparisons(self) -> Self:
        bounds = {"at_least", "at_most"}
        comparisons = {"equals", "contains", "above", "below"}
        given = {name for name, value in self if value not in (None, [])}
        if not given - bounds - comparisons:
            raise ValueError("a condition must say what to check, such as visible, text, url or variable")
        if bool(given & bounds) != ("count" in given):
            raise ValueError("a condition on count, a selector, needs at_least or at_most")
        if bool(given & comparisons) != ("variable" in given):
            raise ValueError("a condition on a variable needs equals, contains, above or below")
        return self


class NLWebAction(_Definition):
    """One step on a page. Every text but the type, the names and the description may hold ``{parameter}`` placeholders.

    For any step, ``when`` is the condition under which it runs, ``frame`` the iframe in which it acts, ``popup`` says
    that it opens another page on which the following steps continue, ``save_as`` is the name of its result for later
    steps, and ``retries`` how often it is tried again, if not as often as its kind usually is.

    ``verify`` is what the page must show after a press for it to count as done: a condition, or ``change`` for anything
    new. What the page turns down, asks back or does not show is an error. With ``refusal`` only what it turns down is;
    so it is for the last press of an action with consequences, unless its ``verify`` is ``none``.

    An ``if`` runs its ``steps`` or ``otherwise``. A ``repeat`` runs its ``steps`` for each ``{item}`` of the saved list
    ``over``, or ``until`` a condition holds, and at most so many ``times``. A ``wait`` may wait ``until`` a condition
    holds. An ``extract`` goes on over ``next``, the selector of the way to the next page; where its selectors find
    nothing the page is read in other ways, unless ``fallbacks`` is false. A ``fill`` fills the ``fields`` of a form by
    their names or labels. A ``tool`` calls the tool of that ``value`` which the page itself offers (WebMCP) with
    ``fields``; it runs its ``steps`` after one that gives nothing, and ``otherwise`` where there is no such tool.
    """

    # In YAML a number needs no quotes, but what is typed into a page is text.
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
    verify: Condition | Literal["change", "refusal", "none"] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        kind = self.action_type
        if kind not in _WITHOUT_SELECTOR and not self.selector:
            raise ValueError(f"a {kind.value} step needs a selector: the element of the page to use")
        if kind is ActionType.NAVIGATE and not self.value:
            raise ValueError("a navigate step needs a value: the address to open")
        if kind is ActionType.TOOL and not self.value:
            raise ValueError("a tool step needs a value: the name of the page's tool")
        if kind in (ActionType.IF, ActionType.REPEAT) and not self.steps:
            raise ValueError(f"a {kind.value} step needs steps: what it runs")
        if kind is ActionType.IF and self.when is None:
            raise ValueError("a step of the kind if needs when: the condition for its steps")
        if kind is ActionType.FILL and not self.fields:
            raise ValueError("a fill step needs fields: the values by the names or labels of the form")
        for name, kinds in _ONLY_FOR.items():
            if getattr(self, name) not in (None, []) and kind not in kinds:
                raise ValueError(
                    f"{name} is only for {' and '.join(sorted(kinds))} steps; a {kind.value} step does not use it"
                )
        return self


_ONLY_FOR: dict[str, set[ActionType]] = {
    "steps": {ActionType.IF, ActionType.REPEAT, ActionType.TOOL},
    "otherwise": {ActionType.IF, ActionType.TOOL},
    "until": {ActionType.REPEAT, ActionType.WAIT},
    "times": {ActionType.REPEAT, ActionType.EXTRACT, ActionType.SCROLL},
    "over": {ActionType.REPEAT},
    "next": {ActionType.EXTRACT},
    "fields": {ActionType.FILL, ActionType.TOOL},
    "extract_schema": {ActionType.EXTRACT},
    "verify": set(map(ActionType, "click press submit select check uncheck".split())),
}


class ActionHints(_Definition):
    """What an action promises: whether it only reads, and whether it has consequences beyond the page."""

    read_only: bool = False
    consequential: bool = False
    idempotent: bool = False


class NLWebActionInfo(_Definition):
    """What is known of an action besides its steps. ``cost`` is what one run costs the caller, in US dollars.

    ``preview`` names an action that only reads: what it gives is shown where this one is confirmed.
    """

    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    phrases: list[str] = []
    hints: ActionHints = ActionHints()
    cost: float = Field(default=0.0, ge=0)
    preview: str | None = None


class NLWebInterface(_Definition):
    """A website as an agent: named actions, each a list of steps. ``info`` describes them, by the same names.

    ``consent`` says what to do with a cookie banner that is in the way: decline it, accept it, or leave it.
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
    def _check_base_url(cls, url: str) -> str:
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"base_url {url!r} must start with https:// or http://")
        return url

    @field_validator("actions")
    @classmethod
    def _check_extent(cls, actions: dict[str, list[NLWebAction]]) -> dict[str, list[NLWebAction]]:
        for name, steps in actions.items():
            count, depth = _extent(steps)
            if count > _MOST_STEPS or depth > _DEEPEST:
                raise ValueError(
                    f"action {name!r} has {count} steps, {depth} deep; at most {_MOST_STEPS}, {_DEEPEST} deep"
                )
        return actions

    @model_validator(mode="after")
    def _check_info(self) -> Self:
        if stray := sorted(set(self.info) - set(self.actions)):
            raise ValueError(f"info describes {stray[0]!r}, which is not one of the actions")
        for name, info in self.info.items():
            shown = self.info.get(info.preview or "")
            if info.preview is not None and (shown is None or not shown.hints.read_only):
                raise ValueError(
                    f"the preview of {name!r} is {info.preview!r}, which is not an action with read_only: true"
                )
        return self

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The interface of a JSON or YAML document, already parsed.

        Raises only ``agent3.errors.ValidationError``, with every fault, each naming its step.
        """
        try:
            return cls.model_validate(document)
        except ModelError as error:
            faults = [
                {"path": "/".join(map(str, each["loc"])), "message": f"{_render_place(each['loc'])}{_explain(each)}"}
                for each in error.errors()
            ]
            text = "; ".join(fault["message"] for fault in faults[:10])
            raise ValidationError(f"The interface cannot be used: {text}", errors=faults) from None


_KINDS = {
    "model_type": "a mapping (name: value)",
    "dict_type": "a mapping (name: value)",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _explain(error: Any) -> str:
    """What is wrong with a document, in our words rather than in pydantic's."""
    kind, given, path = error["type"], error.get("input"), error["loc"]
    if kind == "extra_forbidden":
        fields = list(NLWebInterface.model_fields)
        if path[:1] == ("actions",):
            fields = list(NLWebAction.model_fields)
        elif path[:1] == ("info",):
            fields = [*NLWebActionInfo.model_fields, *ActionHints.model_fields]
        found = difflib.get_close_matches(str(path[-1]), fields, n=1)
        return f"unknown field{(f'; did you mean {found[0]!r}?' if found else '')}"
    if kind == "missing":
        return "it is missing"
    if kind in _KINDS and given is None:
        return f"it is empty; it must be {_KINDS[kind]}"
    if kind in _KINDS:
        return f"it must be {_KINDS[kind]}, not {json.dumps(given, default=str)[:40]}"
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "it must be")


def _extent(steps: list[NLWebAction]) -> tuple[int, int]:
    """How many steps there are in all, and how deep they are nested."""
    within = [_extent([*step.steps, *step.otherwise]) for step in steps]
    return len(steps) + sum(count for count, _ in within), 1 + max((depth for _, depth in within), default=-1)


def _render_place(path: tuple[int | str, ...]) -> str:
    """``step 3 of 'search' (selector): `` for the path of a fault, counting from 1."""
    if path[:1] != ("actions",) or len(path) < 3:
        return f"{'.'.join(map(str, path))}: " if path else ""
    steps = [str(key + 1) for key in path[2:] if isinstance(key, int)]
    field = ".".join(str(key) for key in path[3:] if not isinstance(key, int) and key not in ("steps", "otherwise"))
    return f"step {'.'.join(steps)} of {path[1]!r}{f' ({field})' if field else ''}: "
