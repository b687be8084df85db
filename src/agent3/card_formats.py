"""Agent cards on the wire: what 0.1, 0.2 to 0.3 and 1.0 of A2A each call the same things.

Plain data in and out. ``project`` writes a card (the dump of ``definitions.AgentCard``) for one generation, ``union``
one document that readers of every generation understand, and ``understand`` reads a document of any of them, or of
several at once, with fields missing or oddly shaped. Security schemes are kept as 0.3 and OpenAPI write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from agent3.errors import ValidationError

__all__ = ["Generation", "flat_scheme", "project", "understand", "union", "wrapped_scheme"]

Generation: TypeAlias = Literal["0.1", "0.3", "1.0"]
Card: TypeAlias = Mapping[str, Any]

_JSONRPC: Final = "JSONRPC"
_MODES: Final = ["text/plain"]

# Security schemes: 0.3 tells them apart by "type", 1.0 by the name of the only member

_WRAPPERS: Final = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_FLOWS: Final = ("authorizationCode", "clientCredentials", "deviceCode", "implicit", "password")
_SCHEME_NAMES: Final = {
    "apiKey": "ApiKey",
    "oauth2": "OAuth2",
    "openIdConnect": "OpenIdConnect",
    "mutualTLS": "MutualTLS",
}
_FROM_NAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bearer": ("bearer", {"type": "http", "scheme": "bearer"}),
    "basic": ("basic", {"type": "http", "scheme": "basic"}),
    "apikey": ("apiKey", {"type": "apiKey", "in": "header", "name": "X-API-Key"}),
    "oauth2": ("oauth2", {"type": "oauth2", "flows": {}}),
    "openidconnect": ("openIdConnect", {"type": "openIdConnect", "openIdConnectUrl": ""}),
    "mutualtls": ("mutualTLS", {"type": "mutualTLS"}),
}


def wrapped_scheme(scheme: Card) -> dict[str, Any]:
    """A security scheme as 1.0 writes it. Of several OAuth flows, of which 1.0 has room for one, the safest."""
    kind = scheme.get("type")
    if kind not in _WRAPPERS:
        return dict(scheme)
    inner = {name: one for name, one in scheme.items() if name not in ("type", "in", "flows") and name not in _WRAPPED}
    if kind == "apiKey":
        inner = {"location": scheme.get("in", "header"), **inner}
    if kind == "oauth2":
        flows = scheme.get("flows") or {}
        inner["flows"] = next(({name: flows[name]} for name in _FLOWS if flows.get(name)), {})
    return {_WRAPPERS[kind]: inner}


def flat_scheme(scheme: Card) -> dict[str, Any]:
    """A security scheme as 0.3 writes it, from either form."""
    if "type" in scheme:
        return {name: one for name, one in scheme.items() if name not in _WRAPPED}
    kind = next((kind for kind, name in _WRAPPERS.items() if isinstance(scheme.get(name), Mapping)), None)
    if kind is None:
        return dict(scheme)
    inner = dict(scheme[_WRAPPERS[kind]])
    if kind == "apiKey":
        inner["in"] = inner.pop("location", "header")
    return {"type": kind, **inner}


_WRAPPED: Final = frozenset(_WRAPPERS.values())


def _schemes(card: Card) -> dict[str, dict[str, Any]]:
    """The schemes of a card, flat; those of a card of 0.1 from the names that it gives."""
    if card["security_schemes"]:
        return {name: flat_scheme(one) for name, one in card["security_schemes"].items()}
    named = (card["authentication"] or {}).get("schemes", ())
    return dict(_FROM_NAMES[one.lower()] for one in named if one.lower() in _FROM_NAMES)


def _requirements(card: Card) -> list[dict[str, list[str]]]:
    if card["security"] or card["security_schemes"]:
        return [_requirement(one) for one in card["security"]]
    return [{name: []} for name in _schemes(card)]


def _requirement(given: Card) -> dict[str, list[str]]:
    """What one entry of ``security`` asks for: 1.0 wraps names and scopes, and some documents name a type instead."""
    if isinstance(given.get("schemes"), Mapping):
        return {str(name): _scopes(one) for name, one in given["schemes"].items()}
    if isinstance(given.get("type"), str):
        return {given["type"]: _scopes(given.get("scopes"))}
    return {str(name): _scopes(one) for name, one in given.items()}


def _scopes(given: Any) -> list[str]:
    named = given.get("list") if isinstance(given, Mapping) else given
    return [one for one in named if isinstance(one, str)] if isinstance(named, (list, tuple)) else []


def _wrapped_requirement(given: Card) -> dict[str, Any]:
    return {"schemes": {name: {"list": scopes} if scopes else {} for name, scopes in _requirement(given).items()}}


def _authentication(card: Card) -> dict[str, Any] | None:
    if card["authentication"]:
        return {"schemes": list(card["authentication"]["schemes"])}
    names = list(dict.fromkeys(_scheme_name(one) for one in _schemes(card).values()))
    return {"schemes": names} if names else None


def _scheme_name(scheme: Card) -> str:
    kind = scheme.get("type", "")
    return str(scheme.get("scheme", "bearer")).title() if kind == "http" else _SCHEME_NAMES.get(kind, str(kind))


# Addresses


def _interfaces(card: Card) -> list[dict[str, Any]]:
    """Every address with binding and version; a card that only has ``url`` means that one."""
    if card["interfaces"]:
        return [dict(one) for one in card["interfaces"]]
    if not card["url"]:
        return []
    binding = card["preferred_transport"] or _JSONRPC
    version = minor(card["protocol_version"] or "1.0")
    return [{"url": card["url"], "protocol_binding": binding, "protocol_version": version, "tenant": None}]


def minor(version: str) -> str:
    """Major and minor of a version: patches are not spoken of."""
    return ".".join(version.split(".")[:2])


def _main(card: Card, versions: tuple[str, ...]) -> tuple[str, str, list[dict[str, Any]]]:
    """The address, its binding, and the other interfaces of an older generation, which has one address on top."""
    every = _interfaces(card)
    spoken = [one for one in every if minor(one["protocol_version"]) in versions] or every
    spoken.sort(key=lambda one: one["protocol_binding"] != (card["preferred_transport"] or _JSONRPC))
    if not spoken:
        return card["url"] or "", card["preferred_transport"] or _JSONRPC, []
    return spoken[0]["url"], spoken[0]["protocol_binding"], spoken[1:]


# Writing


def project(card: Card, generation: Generation) -> dict[str, Any]:
    """The card as one generation writes it: every field that it requires, and no empty one beside."""
    return {"0.1": _v01, "0.3": _v03, "1.0": _v10}[generation](card)


def union(card: Card) -> dict[str, Any]:
    """One document for readers of every generation. Nothing clashes: what two call alike, they write alike, but for
    security schemes, of which each entry is written in both ways at once."""
    first, third, current = _v01(card), _v03(card), _v10(card)
    document = first | third | current
    document["capabilities"] = third["capabilities"] | current["capabilities"]
    document["skills"] = [old | new for old, new in zip(third["skills"], current["skills"], strict=True)]
    if "securitySchemes" in third:
        flat, wrapped = third["securitySchemes"], current["securitySchemes"]
        document["securitySchemes"] = {name: flat[name] | wrapped[name] for name in flat}
    return document


def _v10(card: Card) -> dict[str, Any]:
    schemes = {name: wrapped_scheme(one) for name, one in _schemes(card).items()}
    features = card["features"]
    optional = {
        "provider": _provider(card),
        "documentationUrl": card["documentation_url"],
        "iconUrl": card["icon_url"],
        "securitySchemes": schemes,
        "securityRequirements": [_wrapped_requirement(one) for one in _requirements(card)],
        "signatures": card["signatures"],
    }
    return {
        "name": card["name"],
        "description": card["description"],
        "version": card["version"],
        "supportedInterfaces": [_interface(one) for one in _interfaces(card)],
        "capabilities": _features(features) | {"extendedAgentCard": features["extended_agent_card"]},
        "defaultInputModes": card["default_input_modes"],
        "defaultOutputModes": card["default_output_modes"],
        "skills": [_skill(one, "securityRequirements", _wrapped_requirement) for one in card["capabilities"]],
        **_filled(optional),
    }


def _v03(card: Card) -> dict[str, Any]:
    url, binding, others = _main(card, ("0.2", "0.3"))
    features = card["features"]
    optional = {
        "additionalInterfaces": [{"url": one["url"], "transport": one["protocol_binding"]} for one in others],
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
        "skills": [_skill(one, "security", _requirement) for one in card["capabilities"]],
        **_filled(optional),
    }


def _v01(card: Card) -> dict[str, Any]:
    features = card["features"]
    optional = {
        "description": card["description"],
        "provider": _provider(card),
        "documentationUrl": card["documentation_url"],
        "authentication": _authentication(card),
    }
    return {
        "name": card["name"],
        "url": _main(card, ("0.1",))[0],
        "version": card["version"],
        "capabilities": {
            "streaming": features["streaming"],
            "pushNotifications": features["push_notifications"],
            "stateTransitionHistory": features["state_transition_history"],
        },
        "defaultInputModes": card["default_input_modes"],
        "defaultOutputModes": card["default_output_modes"],
        "skills": [_skill(one, "", None) for one in card["capabilities"]],
        **_filled(optional),
    }


def _interface(one: Card) -> dict[str, Any]:
    written = {"url": one["url"], "protocolBinding": one["protocol_binding"]}
    version = {"protocolVersion": minor(one["protocol_version"])}
    return written | version | ({"tenant": one["tenant"]} if one["tenant"] else {})


def _provider(card: Card) -> dict[str, Any] | None:
    given = card["provider"]
    return {"organization": given["organization"], "url": given["url"] or ""} if given else None


def _features(features: Card) -> dict[str, Any]:
    written = {"streaming": features["streaming"], "pushNotifications": features["push_notifications"]}
    extensions = [
        {"uri": one["uri"], **_filled({name: one[name] for name in ("description", "required", "params")})}
        for one in features["extensions"]
    ]
    return written | ({"extensions": extensions} if extensions else {})


def _skill(skill: Card, field: str, requirement: Callable[[Card], dict[str, Any]] | None) -> dict[str, Any]:
    optional = {
        "examples": [one if isinstance(one, str) else json.dumps(one, default=str) for one in skill["examples"]],
        "inputModes": skill["input_modes"],
        "outputModes": skill["output_modes"],
    }
    if requirement is not None:
        optional[field] = [requirement(one) for one in skill["security"]]
    return {
        "id": skill["id"] or skill["name"],
        "name": skill["name"],
        "description": skill["description"],
        "tags": skill["tags"],
        **_filled(optional),
    }


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in fields.items() if one}


# Reading


class _Faults(list[dict[str, Any]]):
    """What was wrong with a document."""

    def add(self, path: str, expected: str, got: Any) -> None:
        kind = type(got).__name__ if got is not None else "nothing"
        message = f"'{path}' must be {expected}, got {kind}"
        self.append({"path": path, "message": message, "expected": expected, "got": kind})


def understand(document: Any) -> dict[str, Any]:
    """The fields of ``definitions.AgentCard`` that a document of any generation says.

    Unknown members are left out. Raises ValidationError that names each member that cannot be understood.
    """
    faults = _Faults()
    if not isinstance(document, Mapping):
        faults.add("card", "a JSON object", document)
        raise _unreadable(faults)
    features = document.get("capabilities")
    offers = document.get("skills")
    if isinstance(features, list):  # RF-013 calls its skills capabilities
        features, offers = document.get("features"), features if offers is None else offers
    card = {
        "name": _text(document, "name", faults, required=True),
        **_texts(document, faults),
        "features": _read_features(features, document, faults),
        "capabilities": list(_read_skills(offers, faults)),
        "interfaces": list(_read_interfaces(document, faults)),
        **_read_security(document, faults),
        "signatures": [dict(one) for one in _objects(document, "signatures", faults)],
    }
    if faults:
        raise _unreadable(faults)
    return {name: one for name, one in card.items() if one is not None}


def _unreadable(faults: _Faults) -> ValidationError:
    text = "; ".join(one["message"] for one in faults[:10])
    return ValidationError(f"The agent card cannot be understood: {text}", errors=list(faults))


_NAMES: Final = {
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


def _texts(document: Card, faults: _Faults) -> dict[str, Any]:
    found = {field: _text(document, name, faults) for field, name in _NAMES.items()}
    return {
        **found,
        "provider": _read_provider(document.get("provider"), faults),
        "tags": _strings(document, "tags", faults),
        "default_input_modes": _strings(document, "defaultInputModes", faults) or _MODES,
        "default_output_modes": _strings(document, "defaultOutputModes", faults) or _MODES,
    }


def _text(given: Card, name: str, faults: _Faults, path: str = "", required: bool = False) -> str | None:
    value = given.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # versions are often written as numbers
    if value is not None and not isinstance(value, str):
        faults.add(path + name, "a text", value)
        return None
    if required and not value:
        faults.add(path + name, "a text that is not empty", value)
    return value


def _strings(given: Card, name: str, faults: _Faults, path: str = "") -> list[str]:
    value = given.get(name)
    if isinstance(value, str):
        return [value]
    if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        faults.add(path + name, "a list of texts", value)
        return []
    return list(value or ())


def _objects(given: Card, name: str, faults: _Faults, path: str = "") -> list[Card]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        faults.add(path + name, "a list of objects", value)
        return []
    for number, one in enumerate(value):
        if not isinstance(one, Mapping):
            faults.add(f"{path}{name}[{number}]", "an object", one)
    return [one for one in value if isinstance(one, Mapping)]


def _read_provider(given: Any, faults: _Faults) -> dict[str, Any] | None:
    if given is None or isinstance(given, str):
        return {"organization": given} if given else None
    if not isinstance(given, Mapping):
        faults.add("provider", "an object", given)
        return None
    url = _text(given, "url", faults, "provider.")
    name = _text(given, "organization", faults, "provider.") or _text(given, "name", faults, "provider.")
    return {"organization": name or url or "", "url": url} if name or url else None


def _read_features(given: Any, document: Card, faults: _Faults) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        faults.add("capabilities", "an object", given)
    features: Card = given if isinstance(given, Mapping) else {}
    extended = features.get("extendedAgentCard") or document.get("supportsAuthenticatedExtendedCard")
    return {
        "streaming": features.get("streaming") is True,
        "push_notifications": features.get("pushNotifications") is True,
        "state_transition_history": features.get("stateTransitionHistory") is True,
        "extended_agent_card": extended is True,
        "extensions": list(_read_extensions(features, faults)),
    }


def _read_extensions(features: Card, faults: _Faults) -> Iterator[dict[str, Any]]:
    for number, one in enumerate(_objects(features, "extensions", faults, "capabilities.")):
        path = f"capabilities.extensions[{number}]."
        params = one.get("params") or {}
        if not isinstance(params, Mapping):
            faults.add(f"{path}params", "an object", params)
        yield {
            "uri": _text(one, "uri", faults, path, required=True),
            "description": _text(one, "description", faults, path),
            "required": one.get("required") is True,
            "params": dict(params) if isinstance(params, Mapping) else {},
        }


def _read_skills(given: Any, faults: _Faults) -> Iterator[dict[str, Any]]:
    if given is not None and not isinstance(given, list):
        faults.add("skills", "a list", given)
    for number, one in enumerate(given if isinstance(given, list) else ()):
        path = f"skills[{number}]"
        skill: Any = {"name": one} if isinstance(one, str) else one
        if not isinstance(skill, Mapping):
            faults.add(path, "an object", skill)
        else:
            yield _read_skill(skill, f"{path}.", faults)


def _read_skill(given: Card, path: str, faults: _Faults) -> dict[str, Any]:
    key, name = _text(given, "id", faults, path), _text(given, "name", faults, path)
    if not (key or name):
        faults.add(f"{path}name", "a text that is not empty", name)
    security = given.get("securityRequirements") or given.get("security")
    examples = given.get("examples")
    skill = {
        "id": key or name,
        "name": name or key,
        "description": _text(given, "description", faults, path) or "",
        "tags": _strings(given, "tags", faults, path),
        "examples": examples if isinstance(examples, list) else [examples] if examples else [],
        "input_modes": _strings(given, "inputModes", faults, path) or _strings(given, "input_modes", faults, path),
        "output_modes": _strings(given, "outputModes", faults, path) or _strings(given, "output_modes", faults, path),
        "security": [_requirement(one) for one in _objects({"security": security}, "security", faults, path)],
    }
    return skill | {name: given[name] for name in _OURS if given.get(name) is not None}


_OURS: Final = (
    "version",
    "input_schema",
    "output_schema",
    "parameters",
    "cost",
    "read_only",
    "idempotent",
    "consequential",
)
"""What only RF-013's own form of a card says of a skill."""


def _read_interfaces(document: Card, faults: _Faults) -> Iterator[dict[str, Any]]:
    """1.0 lists them; before, there is one on top and perhaps others. A document of both speaks of the same ones."""
    listed = _objects(document, "supportedInterfaces", faults) or _objects(document, "interfaces", faults)
    for number, one in enumerate(listed):
        path = f"supportedInterfaces[{number}]."
        yield {
            "url": _text(one, "url", faults, path, required=True),
            "protocol_binding": _text(one, "protocolBinding", faults, path) or one.get("protocol_binding") or _JSONRPC,
            "protocol_version": _text(one, "protocolVersion", faults, path) or one.get("protocol_version") or "1.0",
            "tenant": _text(one, "tenant", faults, path) or None,
        }
    if not listed:
        yield from _read_older_interfaces(document, faults)


def _read_older_interfaces(document: Card, faults: _Faults) -> Iterator[dict[str, Any]]:
    version = minor(_text(document, "protocolVersion", faults) or _guessed(document))
    first = {"url": document.get("url"), "transport": document.get("preferredTransport")}
    others = _objects(document, "additionalInterfaces", faults)
    seen: set[tuple[str, str]] = set()
    for one in (first, *others):
        url, binding = one.get("url"), one.get("transport") or _JSONRPC
        if isinstance(url, str) and isinstance(binding, str) and url and (url, binding) not in seen:
            seen.add((url, binding))
            yield {"url": url, "protocol_binding": binding, "protocol_version": version, "tenant": None}


def _guessed(document: Card) -> str:
    """The version of a card that does not say it: none before 0.2.5 did. Only 0.1 knows ``authentication``."""
    later = ("securitySchemes", "security", "supportsAuthenticatedExtendedCard", "preferredTransport", "iconUrl")
    return "0.1" if "authentication" in document and not any(name in document for name in later) else "0.3"


def _read_security(document: Card, faults: _Faults) -> dict[str, Any]:
    schemes = document.get("securitySchemes") or document.get("security_schemes") or {}
    if not isinstance(schemes, Mapping):
        faults.add("securitySchemes", "an object", schemes)
        schemes = {}
    for name, one in schemes.items():
        if not isinstance(one, Mapping):
            faults.add(f"securitySchemes.{name}", "an object", one)
    key = "securityRequirements" if document.get("securityRequirements") else "security"
    security = _objects(document, key, faults)
    flat = {str(name): flat_scheme(one) for name, one in schemes.items() if isinstance(one, Mapping)}
    named = [one["type"] for one in security if isinstance(one.get("type"), str) and not flat]
    flat |= {name: {"type": name, "flows": {}} if name == "oauth2" else {"type": name} for name in named}
    return {
        "security_schemes": flat,
        "security": [_requirement(one) for one in security],
        "authentication": _read_authentication(document.get("authentication"), faults),
    }


def _read_authentication(given: Any, faults: _Faults) -> dict[str, Any] | None:
    """0.1's own. Examples also write the bare name of a scheme, or ``public``. Credentials in a card are not kept."""
    if isinstance(given, str):
        return {"schemes": [] if given.lower() in ("", "public", "none") else [given]}
    if given is not None and not isinstance(given, Mapping):
        faults.add("authentication", "an object with schemes", given)
    return {"schemes": _strings(given, "schemes", faults, "authentication.")} if isinstance(given, Mapping) else None
