"""Agent cards as JSON: what 0.1, 0.2 to 0.3 and 1.0 of A2A call the same things.

Plain data in and out. ``project`` writes a card (the dump of ``definitions.AgentCard``) for one generation, ``union``
one document for readers of every generation, and ``parse`` reads a document of any of them, or of several at once,
with fields missing or oddly shaped. Security schemes are kept as 0.3 and OpenAPI write them. It knows nothing of HTTP
or of signatures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from agent3.errors import ValidationError

__all__ = ["Generation", "flatten_scheme", "minor_version", "parse", "project", "union", "wrap_scheme"]

Generation: TypeAlias = Literal["0.1", "0.3", "1.0"]
Card: TypeAlias = Mapping[str, Any]

_JSONRPC: Final = "JSONRPC"
_MODES: Final = ["text/plain"]

# Security schemes: 0.3 tells them apart by "type", 1.0 by the name of their only member

_WRAPPERS: Final = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_WRAPPED: Final = frozenset(_WRAPPERS.values())
_FLOWS: Final = ("authorizationCode", "clientCredentials", "deviceCode", "implicit", "password")
"""OAuth flows, the safest first."""
_SCHEME_NAMES: Final = {
    "apiKey": "ApiKey",
    "oauth2": "OAuth2",
    "openIdConnect": "OpenIdConnect",
    "mutualTLS": "MutualTLS",
}
_NAMED_SCHEMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bearer": ("bearer", {"type": "http", "scheme": "bearer"}),
    "basic": ("basic", {"type": "http", "scheme": "basic"}),
    "apikey": ("apiKey", {"type": "apiKey", "in": "header", "name": "X-API-Key"}),
    "oauth2": ("oauth2", {"type": "oauth2", "flows": {}}),
    "openidconnect": ("openIdConnect", {"type": "openIdConnect", "openIdConnectUrl": ""}),
    "mutualtls": ("mutualTLS", {"type": "mutualTLS"}),
}
"""The schemes that 0.1 only has names for."""


def wrap_scheme(scheme: Card) -> dict[str, Any]:
    """A security scheme as 1.0 writes it. 1.0 has room for one OAuth flow: of several, the safest."""
    kind = scheme.get("type")
    if kind not in _WRAPPERS:
        return dict(scheme)
    inner = {name: value for name, value in scheme.items() if name not in ("type", "in", "flows", *_WRAPPED)}
    if kind == "apiKey":
        inner = {"location": scheme.get("in", "header"), **inner}
    if kind == "oauth2":
        flows = scheme.get("flows") or {}
        inner["flows"] = next(({name: flows[name]} for name in _FLOWS if flows.get(name)), {})
    return {_WRAPPERS[kind]: inner}


def flatten_scheme(scheme: Card) -> dict[str, Any]:
    """A security scheme as 0.3 writes it, from either form."""
    if "type" in scheme:
        return {name: value for name, value in scheme.items() if name not in _WRAPPED}
    kind = next((kind for kind, name in _WRAPPERS.items() if isinstance(scheme.get(name), Mapping)), None)
    if kind is None:
        return dict(scheme)
    inner = dict(scheme[_WRAPPERS[kind]])
    if kind == "apiKey":
        inner["in"] = inner.pop("location", "header")
    return {"type": kind, **inner}


def _schemes(card: Card) -> dict[str, dict[str, Any]]:
    """The schemes of a card, flat; those of a card of 0.1 from the names that it gives."""
    if card["security_schemes"]:
        return {name: flatten_scheme(scheme) for name, scheme in card["security_schemes"].items()}
    names = (card["authentication"] or {}).get("schemes", ())
    return dict(_NAMED_SCHEMES[name.lower()] for name in names if name.lower() in _NAMED_SCHEMES)


def _requirements(card: Card) -> list[dict[str, list[str]]]:
    if card["security"] or card["security_schemes"]:
        return [_requirement(entry) for entry in card["security"]]
    return [{name: []} for name in _schemes(card)]


def _requirement(given: Card) -> dict[str, list[str]]:
    """The scopes that one entry of ``security`` asks for, by scheme. 1.0 wraps both; some documents name a type."""
    if isinstance(given.get("schemes"), Mapping):
        given = given["schemes"]
    elif isinstance(given.get("type"), str):
        given = {given["type"]: given.get("scopes")}
    scopes: dict[str, list[str]] = {}
    for name, value in given.items():
        listed = value.get("list") if isinstance(value, Mapping) else value
        texts = [text for text in listed if isinstance(text, str)] if isinstance(listed, (list, tuple)) else []
        scopes[str(name)] = texts
    return scopes


def _wrapped_requirement(given: Card) -> dict[str, Any]:
    return {"schemes": {name: {"list": scopes} if scopes else {} for name, scopes in _requirement(given).items()}}


# Addresses


def minor_version(version: str) -> str:
    """Major and minor of a version, which is all that counts."""
    return ".".join(version.split(".")[:2])


def _interfaces(card: Card) -> list[dict[str, Any]]:
    """Every address with binding and version; a card that only has ``url`` means that one."""
    if card["interfaces"]:
        return [dict(interface) for interface in card["interfaces"]]
    if not card["url"]:
        return []
    binding = card["preferred_transport"] or _JSONRPC
    version = minor_version(card["protocol_version"] or "1.0")
    return [{"url": card["url"], "protocol_binding": binding, "protocol_version": version, "tenant": None}]


def _main_interface(card: Card, versions: tuple[str, ...]) -> tuple[str, str, list[dict[str, Any]]]:
    """The one address that an older generation has on top, its binding, and the other interfaces."""
    every = _interfaces(card)
    known = [interface for interface in every if minor_version(interface["protocol_version"]) in versions] or every
    known.sort(key=lambda interface: interface["protocol_binding"] != (card["preferred_transport"] or _JSONRPC))
    if not known:
        return card["url"] or "", card["preferred_transport"] or _JSONRPC, []
    return known[0]["url"], known[0]["protocol_binding"], known[1:]


# Writing


def project(card: Card, generation: Generation) -> dict[str, Any]:
    """The card as one generation writes it: every field that it requires, and others unless they are empty."""
    return {"0.1": _write_01, "0.3": _write_03, "1.0": _write_10}[generation](card)


def union(card: Card) -> dict[str, Any]:
    """One document for readers of every generation.

    Nothing clashes: where two generations use the same name they mean the same, except for security schemes, of which
    each entry is written in both ways at once.
    """
    old, current = _write_03(card), _write_10(card)
    document = _write_01(card) | old | current
    document["capabilities"] = old["capabilities"] | current["capabilities"]
    document["skills"] = [older | newer for older, newer in zip(old["skills"], current["skills"], strict=True)]
    if "securitySchemes" in old:
        flat, wrapped = old["securitySchemes"], current["securitySchemes"]
        document["securitySchemes"] = {name: flat[name] | wrapped[name] for name in flat}
    return document


def _write_10(card: Card) -> dict[str, Any]:
    features = card["features"]
    interfaces = [
        {
            "url": interface["url"],
            "protocolBinding": interface["protocol_binding"],
            "protocolVersion": minor_version(interface["protocol_version"]),
            **({"tenant": interface["tenant"]} if interface["tenant"] else {}),
        }
        for interface in _interfaces(card)
    ]
    optional = {
        "provider": _provider(card),
        "documentationUrl": card["documentation_url"],
        "iconUrl": card["icon_url"],
        "securitySchemes": {name: wrap_scheme(scheme) for name, scheme in _schemes(card).items()},
        "securityRequirements": [_wrapped_requirement(entry) for entry in _requirements(card)],
        "signatures": card["signatures"],
    }
    return {
        "name": card["name"],
        "description": card["description"],
        "version": card["version"],
        "supportedInterfaces": interfaces,
        "capabilities": _features(features) | {"extendedAgentCard": features["extended_agent_card"]},
        "defaultInputModes": card["default_input_modes"],
        "defaultOutputModes": card["default_output_modes"],
        "skills": [_skill(skill, "securityRequirements", _wrapped_requirement) for skill in card["capabilities"]],
        **_without_empty(optional),
    }


def _write_03(card: Card) -> dict[str, Any]:
    url, binding, others = _main_interface(card, ("0.2", "0.3"))
    features = card["features"]
    optional = {
        "additionalInterfaces": [{"url": other["url"], "transport": other["protocol_binding"]} for other in others],
        "provider": _provider(card),
        "documentationUrl": card["documentation_url"],
        "iconUrl": card["icon_url"],
        "securitySchemes": _schemes(card),
        "security": _requirements(card),
        "supportsAuthenticatedExtendedCard": features["extended_agent_card"],
        "signatures": card["signatures"],
    }
    return {
        "protocolVersion": "0.3.0",
        "name": card["name"],
        "description": card["description"],
        "url": url,
        "preferredTransport": binding,
        "version": card["version"],
        "capabilities": _features(features) | {"stateTransitionHistory": features["state_transition_history"]},
        "defaultInputModes": card["default_input_modes"],
        "defaultOutputModes": card["default_output_modes"],
        "skills": [_skill(skill, "security", _requirement) for skill in card["capabilities"]],
        **_without_empty(optional),
    }


def _write_01(card: Card) -> dict[str, Any]:
    features = card["features"]
    if card["authentication"]:
        names = list(card["authentication"]["schemes"])
    else:
        names = []
        for scheme in _schemes(card).values():
            kind = scheme.get("type", "")
            name = str(scheme.get("scheme", "bearer")).title() if kind == "http" else _SCHEME_NAMES.get(kind, str(kind))
            if name not in names:
                names.append(name)
    optional = {
        "description": card["description"],
        "provider": _provider(card),
        "documentationUrl": card["documentation_url"],
        "authentication": {"schemes": names} if names or card["authentication"] else None,
    }
    return {
        "name": card["name"],
        "url": _main_interface(card, ("0.1",))[0],
        "version": card["version"],
        "capabilities": {
            "streaming": features["streaming"],
            "pushNotifications": features["push_notifications"],
            "stateTransitionHistory": features["state_transition_history"],
        },
        "defaultInputModes": card["default_input_modes"],
        "defaultOutputModes": card["default_output_modes"],
        "skills": [_skill(skill) for skill in card["capabilities"]],
        **_without_empty(optional),
    }


def _provider(card: Card) -> dict[str, Any] | None:
    given = card["provider"]
    return {"organization": given["organization"], "url": given["url"] or ""} if given else None


def _features(features: Card) -> dict[str, Any]:
    written = {"streaming": features["streaming"], "pushNotifications": features["push_notifications"]}
    extensions = [
        {"uri": extension["uri"], **_without_empty({n: extension[n] for n in ("description", "required", "params")})}
        for extension in features["extensions"]
    ]
    return written | ({"extensions": extensions} if extensions else {})


def _skill(
    skill: Card, security: str = "", requirement: Callable[[Card], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """A skill; ``security`` is what its generation calls its requirements, and 0.1 has none."""
    examples = skill["examples"]
    optional = {
        "examples": [text if isinstance(text, str) else json.dumps(text, default=str) for text in examples],
        "inputModes": skill["input_modes"],
        "outputModes": skill["output_modes"],
    }
    if requirement is not None:
        optional[security] = [requirement(entry) for entry in skill["security"]]
    return {
        "id": skill["id"] or skill["name"],
        "name": skill["name"],
        "description": skill["description"],
        "tags": skill["tags"],
        **_without_empty(optional),
    }


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


# Reading

_TEXTS: Final = {
    "description": "description",
    "version": "version",
    "url": "url",
    "protocol_version": "protocolVersion",
    "preferred_transport": "preferredTransport",
    "documentation_url": "documentationUrl",
    "icon_url": "iconUrl",
    "agent_id": "agent_id",
    "public_key": "public_key",
}
_OWN_SKILL_FIELDS: Final = (
    "version",
    "input_schema",
    "output_schema",
    "parameters",
    "cost",
    "read_only",
    "idempotent",
    "consequential",
)
"""What only the card format of requirement RF-013 says of a skill."""


def parse(document: Any) -> dict[str, Any]:
    """The fields of ``definitions.AgentCard`` in a document of any generation.

    Unknown members are ignored. Raises ValidationError that names each member that cannot be understood.
    """
    read = _Reading()
    if not isinstance(document, Mapping):
        read.expect("card", "a JSON object", document)
        raise read.error()
    features, skills = document.get("capabilities"), document.get("skills")
    if isinstance(features, list):  # RF-013 calls its skills capabilities
        features, skills = document.get("features"), features if skills is None else skills
    card = {
        "name": read.text(document, "name", required=True),
        **{field: read.text(document, name) for field, name in _TEXTS.items()},
        "provider": read.provider(document.get("provider")),
        "tags": read.texts(document, "tags"),
        "default_input_modes": read.texts(document, "defaultInputModes") or _MODES,
        "default_output_modes": read.texts(document, "defaultOutputModes") or _MODES,
        "features": read.features(features, document),
        "capabilities": read.skills(skills),
        "interfaces": read.interfaces(document),
        **read.security(document),
        "signatures": [dict(signature) for signature in read.objects(document, "signatures")],
    }
    if read.faults:
        raise read.error()
    return {name: value for name, value in card.items() if value is not None}


class _Reading:
    """Reads one document, and collects what is wrong with it."""

    def __init__(self) -> None:
        self.faults: list[dict[str, Any]] = []

    def error(self) -> ValidationError:
        text = "; ".join(entry["message"] for entry in self.faults[:10])
        return ValidationError(f"The agent card cannot be understood: {text}", errors=self.faults)

    def expect(self, path: str, expected: str, got: Any) -> None:
        """Note that a member is not what was expected."""
        kind = type(got).__name__ if got is not None else "nothing"
        message = f"'{path}' must be {expected}, got {kind}"
        self.faults.append({"path": path, "message": message, "expected": expected, "got": kind})

    def text(self, given: Card, name: str, path: str = "", required: bool = False) -> str | None:
        value = given.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # versions are often written as numbers
        if value is not None and not isinstance(value, str):
            self.expect(path + name, "a text", value)
            return None
        if required and not value:
            self.expect(path + name, "a text that is not empty", value)
        return value

    def texts(self, given: Card, name: str, path: str = "") -> list[str]:
        value = given.get(name)
        if isinstance(value, str):
            return [value]
        if value is not None and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
            self.expect(path + name, "a list of texts", value)
            return []
        return list(value or ())

    def objects(self, given: Card, name: str, path: str = "") -> list[Card]:
        value = given.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.expect(path + name, "a list of objects", value)
            return []
        for number, entry in enumerate(value):
            if not isinstance(entry, Mapping):
                self.expect(f"{path}{name}[{number}]", "an object", entry)
        return [entry for entry in value if isinstance(entry, Mapping)]

    def provider(self, given: Any) -> dict[str, Any] | None:
        if given is None or isinstance(given, str):
            return {"organization": given} if given else None
        if not isinstance(given, Mapping):
            self.expect("provider", "an object", given)
            return None
        url = self.text(given, "url", "provider.")
        name = self.text(given, "organization", "provider.") or self.text(given, "name", "provider.")
        return {"organization": name or url or "", "url": url} if name or url else None

    def features(self, given: Any, document: Card) -> dict[str, Any]:
        if given is not None and not isinstance(given, Mapping):
            self.expect("capabilities", "an object", given)
        features: Card = given if isinstance(given, Mapping) else {}
        extensions = []
        for number, extension in enumerate(self.objects(features, "extensions", "capabilities.")):
            path = f"capabilities.extensions[{number}]."
            params = extension.get("params") or {}
            if not isinstance(params, Mapping):
                self.expect(f"{path}params", "an object", params)
            extensions.append(
                {
                    "uri": self.text(extension, "uri", path, required=True),
                    "description": self.text(extension, "description", path),
                    "required": extension.get("required") is True,
                    "params": dict(params) if isinstance(params, Mapping) else {},
                }
            )
        extended = features.get("extendedAgentCard") or document.get("supportsAuthenticatedExtendedCard")
        return {
            "streaming": features.get("streaming") is True,
            "push_notifications": features.get("pushNotifications") is True,
            "state_transition_history": features.get("stateTransitionHistory") is True,
            "extended_agent_card": extended is True,
            "extensions": extensions,
        }

    def skills(self, given: Any) -> list[dict[str, Any]]:
        if given is not None and not isinstance(given, list):
            self.expect("skills", "a list", given)
        found = []
        for number, entry in enumerate(given if isinstance(given, list) else ()):
            skill = {"name": entry} if isinstance(entry, str) else entry
            if isinstance(skill, Mapping):
                found.append(self._skill(skill, f"skills[{number}]."))
            else:
                self.expect(f"skills[{number}]", "an object", skill)
        return found

    def _skill(self, given: Card, path: str) -> dict[str, Any]:
        key, name = self.text(given, "id", path), self.text(given, "name", path)
        if not (key or name):
            self.expect(f"{path}name", "a text that is not empty", name)
        examples = given.get("examples")
        security = given.get("securityRequirements") or given.get("security")
        skill = {
            "id": key or name,
            "name": name or key,
            "description": self.text(given, "description", path) or "",
            "tags": self.texts(given, "tags", path),
            "examples": examples if isinstance(examples, list) else [examples] if examples else [],
            "input_modes": self.texts(given, "inputModes", path) or self.texts(given, "input_modes", path),
            "output_modes": self.texts(given, "outputModes", path) or self.texts(given, "output_modes", path),
            "security": [_requirement(entry) for entry in self.objects({"security": security}, "security", path)],
        }
        return skill | {name: given[name] for name in _OWN_SKILL_FIELDS if given.get(name) is not None}

    def interfaces(self, document: Card) -> list[dict[str, Any]]:
        """1.0 lists them; before, there is one on top and perhaps others. A document of both means the same ones."""
        found: list[dict[str, Any]] = []
        listed = self.objects(document, "supportedInterfaces") or self.objects(document, "interfaces")
        for number, given in enumerate(listed):
            path = f"supportedInterfaces[{number}]."
            found.append(
                {
                    "url": self.text(given, "url", path, required=True),
                    "protocol_binding": self.text(given, "protocolBinding", path)
                    or given.get("protocol_binding")
                    or _JSONRPC,
                    "protocol_version": self.text(given, "protocolVersion", path)
                    or given.get("protocol_version")
                    or "1.0",
                    "tenant": self.text(given, "tenant", path) or None,
                }
            )
        if found:
            return found
        # No card before 0.2.5 says its version. Only 0.1 knows "authentication", and it knows none of these.
        later = ("securitySchemes", "security", "supportsAuthenticatedExtendedCard", "preferredTransport", "iconUrl")
        guess = "0.1" if "authentication" in document and not any(name in document for name in later) else "0.3"
        version = minor_version(self.text(document, "protocolVersion") or guess)
        first = {"url": document.get("url"), "transport": document.get("preferredTransport")}
        seen: set[tuple[str, str]] = set()
        for other in (first, *self.objects(document, "additionalInterfaces")):
            url, binding = other.get("url"), other.get("transport") or _JSONRPC
            if isinstance(url, str) and isinstance(binding, str) and url and (url, binding) not in seen:
                seen.add((url, binding))
                found.append({"url": url, "protocol_binding": binding, "protocol_version": version, "tenant": None})
        return found

    def security(self, document: Card) -> dict[str, Any]:
        schemes = document.get("securitySchemes") or document.get("security_schemes") or {}
        if not isinstance(schemes, Mapping):
            self.expect("securitySchemes", "an object", schemes)
            schemes = {}
        for name, scheme in schemes.items():
            if not isinstance(scheme, Mapping):
                self.expect(f"securitySchemes.{name}", "an object", scheme)
        key = "securityRequirements" if document.get("securityRequirements") else "security"
        security = self.objects(document, key)
        flat = {str(name): flatten_scheme(scheme) for name, scheme in schemes.items() if isinstance(scheme, Mapping)}
        named = [entry["type"] for entry in security if isinstance(entry.get("type"), str) and not flat]
        flat |= {name: {"type": name, "flows": {}} if name == "oauth2" else {"type": name} for name in named}
        # Examples of 0.1 also write the bare name of a scheme, or "public". Credentials are not kept.
        given, authentication = document.get("authentication"), None
        if isinstance(given, str):
            authentication = {"schemes": [] if given.lower() in ("", "public", "none") else [given]}
        elif isinstance(given, Mapping):
            authentication = {"schemes": self.texts(given, "schemes", "authentication.")}
        elif given is not None:
            self.expect("authentication", "an object with schemes", given)
        return {
            "security_schemes": flat,
            "security": [_requirement(entry) for entry in security],
            "authentication": authentication,
        }
