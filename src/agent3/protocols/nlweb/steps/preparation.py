"""What is asked of an interface, checked before anything happens: the action by its name, and its parameters.

It knows neither page nor browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent3.definitions import NLWebAction, NLWebInterface
from agent3.errors import CapabilityNotFound, ValidationError
from agent3.protocols.nlweb.steps.parameters import parameter_names, suggest
from agent3.schema import compile as compile_schema

__all__ = ["input_schema", "prepare"]


def prepare(
    interface: NLWebInterface, name: str, parameters: Mapping[str, Any], *, checked: bool = False
) -> tuple[list[NLWebAction], dict[str, Any]]:
    """The steps of an action, and its parameters with the defaults of its schema.

    CapabilityNotFound for an unknown action, ValidationError for a parameter that no step uses, or that the schema of
    its author does not allow: the same words as at a gateway. ``checked`` says that the schema was checked before.
    """
    actions = interface.actions
    if name not in actions:
        raise CapabilityNotFound(
            f"{interface.name!r} has no action {name!r}. {suggest(name, actions)}", data={"known": sorted(actions)}
        )
    info = interface.info.get(name)
    schema = info.input_schema if info is not None else None
    properties: dict[str, Any] = (schema or {}).get("properties", {})
    defaults = {
        key: part["default"] for key, part in properties.items() if isinstance(part, dict) and "default" in part
    }
    given = {**defaults, **parameters}
    # A parameter that nothing uses is a misspelt one.
    known = parameter_names(actions[name]) | set(properties)
    if strange := sorted(set(given) - known):
        raise ValidationError(
            f"Parameter {strange[0]!r} is used by no step of {name!r}. {suggest(strange[0], known)}",
            errors=[{"path": f"/{key}", "expected": "a parameter of the action"} for key in strange],
        )
    if schema is not None and not checked:
        compile_schema(input_schema(interface, name)).check(given)
    return actions[name], given


def input_schema(interface: NLWebInterface, name: str) -> dict[str, Any]:
    """The schema of an action's parameters: its own, else one text for each that its steps speak of."""
    info = interface.info.get(name)
    if info is not None and info.input_schema is not None:
        return {"type": "object", **info.input_schema}
    names = sorted(parameter_names(interface.actions[name]))
    properties = {key: {"type": ["string", "number", "boolean"]} for key in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
