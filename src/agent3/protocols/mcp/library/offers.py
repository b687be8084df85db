"""What a server offers beside tools: resources, families of them, prompts, and proposals for their arguments.

Each is a function, described like a tool and run like one: it has a version in a catalogue of its own, under a name
that says what it is, such as ``resource/weather``. Safe from any thread. It knows nothing of calls.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import Field
from pydantic import ValidationError as DefinitionError

from agent3.definitions import ToolDefinition
from agent3.errors import Conflict, NotFound, SetupError
from agent3.model import Done, Failed, Needs, Part
from agent3.protocols.functions.functions import parts_of, to_bytes_part
from agent3.protocols.mcp.door.toolset import (
    URI,
    Completion,
    FilledPrompt,
    Prompt,
    PromptMessage,
    Resource,
    ResourceTemplate,
)
from agent3.protocols.mcp.library.catalogue import Catalogue, Version
from agent3.protocols.mcp.library.returns import adapt
from agent3.protocols.mcp.library.uri_templates import UriTemplate
from agent3.schema import FunctionSchema, from_function, nearest

__all__ = ["ARTIFACTS", "Offers", "PromptOffer", "ResourceOffer", "assistant", "embed", "list_choices",
           "read_arguments", "to_prompt", "user"]  # fmt: skip

ARTIFACTS = "agent3://artifacts/"
"""Where the large results of tools are; no resource of a server may be there."""
_ROLE = "io.agent3/role"
"""In a part's ``meta``: whose message of a prompt it is, where it is not the user's."""
_DESCRIPTION = "io.agent3/description"
"""In the ``meta`` of a filled prompt: its description."""
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


class _Definition(ToolDefinition):
    """A definition under a name that no tool can have."""

    name: str = Field(min_length=1, max_length=400)


@dataclass(frozen=True, slots=True)
class ResourceOffer:
    """A resource, or a family of them."""

    version: Version
    shown: Resource | ResourceTemplate
    template: UriTemplate
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PromptOffer:
    """A prompt."""

    version: Version
    shown: Prompt
    schema: Mapping[str, Any]


class Offers:
    """All of them, of one server."""

    def __init__(self, server: str):
        self._server = server
        self.catalogue = Catalogue(server)
        self._resources: dict[str, ResourceOffer] = {}
        self._prompts: dict[str, PromptOffer] = {}
        self._completions: dict[tuple[str, str], Version] = {}

    # Resources

    def add_resource(
        self, uri: str, function: Callable[..., Any], described: Mapping[str, Any], limits: Mapping[str, Any]
    ) -> ResourceOffer:
        """Offer what a function gives at an address, or at all addresses of a template."""
        template = UriTemplate(uri)
        if uri.startswith(ARTIFACTS):
            raise SetupError(f"{ARTIFACTS}… is reserved for the large results of tools. Choose another address.")
        name, signature, text = _describe("resource", function, described)
        properties, required = signature.input.get("properties") or {}, signature.input.get("required") or ()
        _check_names(f"Resource {uri!r}", properties, required, template)
        shown: dict[str, Any] = {**described, "name": name, "description": text}
        try:
            entry = (
                msgspec.convert(_on_wire({"uri": uri, **shown}), Resource)
                if template.is_plain
                else msgspec.convert(_on_wire({"uriTemplate": uri, **shown}), ResourceTemplate)
            )
        except msgspec.ValidationError as error:
            raise SetupError(f"The definition of resource {uri!r} is wrong: {error}") from None
        if uri in self._resources:
            raise Conflict(f"Server {self._server!r} already has a resource {uri!r}. Unregister it first.")
        version = self._add(f"resource/{name}", function, signature, text, {"read_only": True, **limits})
        offer = self._resources[uri] = ResourceOffer(version, entry, template, properties)
        return offer

    def remove_resource(self, uri: str) -> ResourceOffer:
        offer = self._resources.pop(uri, None)
        if offer is None:
            raise self.unknown_resource_error(uri)
        self._remove(offer.version)
        return offer

    def resources(self) -> list[ResourceOffer]:
        return list(self._resources.values())

    def find_resource(self, uri: str) -> tuple[ResourceOffer, dict[str, str]] | None:
        """What is at an address, and the values in it; that which has just this address comes first."""
        exact = self._resources.get(uri)
        if exact is not None and exact.template.is_plain:
            return exact, {}
        for offer in self.resources():
            if not offer.template.is_plain and (values := offer.template.match(uri)) is not None:
                return offer, values
        return None

    def unknown_resource_error(self, uri: str) -> NotFound:
        return NotFound(f"Server {self._server!r} has no resource {uri[:200]!r}.")

    # Prompts

    def add_prompt(
        self, function: Callable[..., Any], described: Mapping[str, Any], limits: Mapping[str, Any]
    ) -> PromptOffer:
        """Offer a prompt that a function fills in."""
        name, signature, text = _describe("prompt", function, described)
        properties, required = signature.input.get("properties") or {}, signature.input.get("required") or ()
        arguments = [
            {
                "name": parameter,
                "description": schema.get("description") or signature.parameters.get(parameter),
                "required": parameter in required,
            }
            for parameter, schema in properties.items()
        ]
        if name in self._prompts:
            raise Conflict(f"Server {self._server!r} already has a prompt {name!r}. Unregister it first.")
        shown = {**described, "name": name, "description": text, "arguments": arguments}
        try:
            entry = msgspec.convert(_on_wire(shown), Prompt)
        except msgspec.ValidationError as error:
            raise SetupError(f"Prompt {name!r} is described wrongly: {error}") from None
        version = self._add(
            f"prompt/{name}", adapt(function, _convert_messages), signature, text, {"read_only": True, **limits}
        )
        offer = self._prompts[name] = PromptOffer(version, entry, properties)
        return offer

    def remove_prompt(self, name: str) -> PromptOffer:
        offer = self._prompts.pop(name, None)
        if offer is None:
            raise self.unknown_prompt_error(name)
        self._remove(offer.version)
        return offer

    def prompts(self) -> list[PromptOffer]:
        return list(self._prompts.values())

    def find_prompt(self, name: str) -> PromptOffer | None:
        return self._prompts.get(name)

    def unknown_prompt_error(self, name: str) -> NotFound:
        near = nearest(name, self._prompts)
        hint = f" Did you mean {near!r}?" if near else ""
        return NotFound(f"Server {self._server!r} has no prompt {name[:100]!r}.{hint}")

    # Proposals for arguments

    def add_completion(self, of: str, argument: str, function: Callable[..., Any]) -> Version:
        """Have a function propose values for an argument of a prompt, or a variable of a resource's template."""
        offer = self._resources.get(of) or self._prompts.get(of)
        if offer is None:
            raise SetupError(
                f"Server {self._server!r} has neither a prompt {of!r} nor resources at that template. "
                "Register it first, then the function that completes its values."
            )
        if argument not in offer.schema:
            near = nearest(argument, offer.schema)
            hint = f"Did you mean {near!r}?" if near else f"It has {', '.join(offer.schema) or 'none'}."
            raise SetupError(f"{of!r} has no argument {argument!r}. {hint}")
        signature = from_function(function)
        taken = list(signature.input.get("properties") or {})
        if taken not in (["value"], ["value", "given"]):
            raise SetupError(
                f"The function that completes {argument!r} of {of!r} must take value: str, and may take "
                f"given: dict[str, str], the other arguments; it takes {', '.join(taken) or 'nothing'}."
            )
        key = offer.version.name, argument
        if key in self._completions:
            raise Conflict(f"Another function already completes {argument!r} of {of!r}.")
        name = f"completion/{offer.version.name.partition('/')[2]}/{argument}"
        if isinstance(offer, PromptOffer):
            name = name.replace("completion/", "completion/prompt/", 1)
        version = self._add(name, function, signature, f"Values for {argument}", {"read_only": True})
        self._completions[key] = version
        return version

    def find_offer(self, completion: Completion) -> ResourceOffer | PromptOffer | None:
        """What an argument that is being typed belongs to."""
        if completion.kind == "prompt":
            return self._prompts.get(completion.name)
        return self._resources.get(completion.name)

    def find_completion(self, offer: ResourceOffer | PromptOffer, argument: str) -> Version | None:
        return self._completions.get((offer.version.name, argument))

    # All of them

    def clear(self) -> None:
        self._resources.clear()
        self._prompts.clear()
        self._completions.clear()
        self.catalogue.clear()

    def _add(
        self,
        name: str,
        function: Callable[..., Any],
        signature: FunctionSchema,
        description: str,
        limits: Mapping[str, Any],
    ) -> Version:
        try:
            definition = _Definition(name=name, description=description, input_schema=signature.input, **limits)
        except DefinitionError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "its options"
            raise SetupError(f"{name}: {where}: {fault['msg']}.") from None
        try:
            return self.catalogue.add(definition, function)
        except Conflict:
            kind, _, called = name.partition("/")
            raise Conflict(
                f"Server {self._server!r} already has a {kind} named {called!r}. Give this one another name: name="
            ) from None

    def _remove(self, version: Version) -> None:
        self.catalogue.remove(version.name)
        for key, completion in list(self._completions.items()):
            if key[0] == version.name:
                del self._completions[key]
                self.catalogue.remove(completion.name)


def _describe(kind: str, function: Callable[..., Any], described: Mapping[str, Any]) -> tuple[str, FunctionSchema, str]:
    """Name, schema and description of what is offered: as given, else those of the function."""
    if not callable(function):
        raise SetupError(f"A {kind} needs a function, got {type(function).__name__}.")
    signature = from_function(function)
    name = described.get("name") or getattr(function, "__name__", "")
    if not _NAME.fullmatch(str(name)):
        raise SetupError(
            f"A {kind} needs a name of letters, digits, '_', '-' and '.', got {name!r}. Give it one: name="
        )
    return str(name), signature, str(described.get("description") or signature.description)


def _check_names(what: str, properties: Mapping[str, Any], required: Sequence[str], template: UriTemplate) -> None:
    """SetupError unless the function takes what the address has."""
    for name in (*template.variables, *template.optional):
        if name not in properties:
            near = nearest(name, properties)
            hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(properties) or 'nothing'}."
            raise SetupError(f"{what}: its function has no parameter {name!r}; {hint}")
    for name in required:
        if name not in template.variables:
            raise SetupError(
                f"{what}: its function requires {name!r}, which is not in the address. Put {{{name}}} there, "
                "or give it a default in the function."
            )


def _on_wire(described: Mapping[str, Any]) -> dict[str, Any]:
    names = {"media_type": "mimeType", "meta": "_meta"}
    return {names.get(key, key): value for key, value in described.items() if value is not None}


# Arguments that come as text


def read_arguments(properties: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments that came as texts, as the types that they are declared with. What cannot be read stays a text, and
    is refused by the schema."""
    return {name: _read(properties.get(name) or {}, text) for name, text in given.items()}


def _read(schema: Mapping[str, Any], text: str) -> Any:
    choices = [choice for choice in schema.get("anyOf") or [schema] if isinstance(choice, Mapping)]
    kinds = [choice.get("type") for choice in choices]
    if "string" in kinds or len(text) > 100_000:
        return text
    for kind in kinds:
        if kind == "integer" and re.fullmatch(r"[+-]?\d{1,100}", text):
            return int(text)
        if kind == "number" and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
            return float(text)
        if kind == "boolean" and text in ("true", "false"):
            return text == "true"
        if kind in ("array", "object"):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                continue
    return text


def list_choices(schema: Mapping[str, Any], value: str) -> list[str]:
    """The values that a schema itself allows and that begin as ``value`` does."""
    choices: list[Any] = []
    for choice in schema.get("anyOf") or [schema]:
        if isinstance(choice, Mapping):
            choices += choice.get("enum") or ([choice["const"]] if "const" in choice else [])
    return [choice for choice in choices if isinstance(choice, str) and choice.startswith(value)]


# What prompts return


def user(content: Any) -> PromptMessage:
    """A message of the user in a prompt: a text, bytes, a part, or anything that is JSON."""
    return PromptMessage("user", _part_of(content))


def assistant(content: Any) -> PromptMessage:
    """A message of the assistant in a prompt, likewise."""
    return PromptMessage("assistant", _part_of(content))


def embed(uri: str, content: str | bytes, media_type: str | None = None) -> Part:
    """The content of a resource, inside a result or a prompt."""
    if isinstance(content, bytes):
        return Part(raw=content, media_type=media_type or "application/octet-stream", meta={URI: uri})
    return Part(text=content, media_type=media_type or "text/plain", meta={URI: uri})


def _part_of(content: Any) -> Part:
    found = (to_bytes_part(content),) if isinstance(content, bytes) else parts_of(content)
    if len(found) != 1:
        raise SetupError("A message of a prompt has one content. Return several messages for several of them.")
    return found[0]


def _convert_messages(value: Any) -> Any:
    """What the function of a prompt returned: its messages as parts."""
    if isinstance(value, (Done, Failed, Needs)) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        return value
    meta: dict[str, Any] = {}
    if isinstance(value, FilledPrompt):
        meta = {**value.meta, **({_DESCRIPTION: value.description} if value.description else {})}
        value = list(value.messages)
    parts: list[Part] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        message = item if isinstance(item, PromptMessage) else user(item)
        part = message.part
        is_users = message.role == "user"
        parts.append(part if is_users else replace(part, meta={**part.meta, _ROLE: message.role}))
    return Done(tuple(parts), meta=meta)


def to_prompt(done: Done) -> FilledPrompt:
    """What ``_convert_messages`` made of a prompt, after its call."""
    messages = []
    for part in done.parts:
        role = part.meta.get(_ROLE, "user")
        bare = {key: value for key, value in part.meta.items() if key != _ROLE}
        messages.append(PromptMessage("assistant" if role == "assistant" else "user", replace(part, meta=bare)))
    described = done.meta.get(_DESCRIPTION)
    meta = {key: value for key, value in done.meta.items() if key != _DESCRIPTION}
    return FilledPrompt(tuple(messages), described if isinstance(described, str) else None, meta)
