"""What is asked of an interface, judged before anything happens: the action by its name, and its parameters.

It knows neither page nor browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent3.definitions import NLWebAction, NLWebInterface
from agent3.errors import CapabilityNotFound, ValidationError
from agent3.protocols.nlweb.steps.parameters import nearest, used
from agent3.schema import compile as compiled

__all__ = ["input_schema", "prepare"]

Prepared = tuple[list[NLWebAction], dict[str, Any]]


def prepare(interface: NLWebInterface, name: str, parameters: Mapping[str, Any], *, checked: bool = False) -> Prepared:
    """The steps of an action, and its parameters with the defaults of its schema.

    CapabilityNotFound for an unknown action, ValidationError for a parameter that nothing speaks of, or that the schema
    of its author does not allow: the same words as at a gateway. ``checked`` says that the schema was checked before.
    """
    steps = _steps(interface, name)
    properties = _properties(interface, name)
    defaults = {key: one["default"] for key, one in properties.items() if isinstance(one, dict) and "default" in one}
    given = {**defaults, **parameters}
    _refuse_strangers(name, used(steps) | set(properties), given)
    info = interface.info.get(name)
    if not checked and info is not None and info.input_schema is not None:
        compiled(input_schema(interface, name)).check(given)
    return steps, given


def input_schema(interface: NLWebInterface, name: str) -> dict[str, Any]:
    """The schema of an action's parameters: as it is described, else one text for each that its steps speak of."""
    info = interface.info.get(name)
    if info is not None and info.input_schema is not None:
        return {"type": "object", **info.input_schema}
    names = sorted(used(interface.actions[name]))
    properties = {one: {"type": ["string", "number", "boolean"]} for one in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _steps(interface: NLWebInterface, name: str) -> list[NLWebAction]:
    known = interface.actions
    if name in known:
        return known[name]
    raise CapabilityNotFound(
        f"{interface.name!r} has no action {name!r}. {nearest(name, known)}", data={"known": sorted(known)}
    )


def _properties(interface: NLWebInterface, name: str) -> dict[str, Any]:
    info = interface.info.get(name)
    schema = (info and info.input_schema) or {}
    return dict(schema.get("properties", {}))


def _refuse_strangers(name: str, known: set[str], parameters: Mapping[str, Any]) -> None:
    """A parameter that nothing speaks of is a misspelt one."""
    if stray := sorted(set(parameters) - known):
        raise ValidationError(
            f"Parameter {stray[0]!r} is used by no step of {name!r}. {nearest(stray[0], known)}",
            errors=[{"path": f"/{one}", "expected": "a parameter of the action"} for one in stray],
        )
