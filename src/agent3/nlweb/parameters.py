"""Putting a caller's parameters into the steps of an action.

``{name}`` stands for a parameter and ``{{ }}`` for braces. What is put in stays data: in a selector it may only fill a
quoted string, in an address it is percent-encoded, and no step takes a script. It knows no page.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from agent3.definitions import ActionType, ExtractField, NLWebAction
from agent3.errors import ValidationError

__all__ = ["describe", "inject", "nearest", "used"]

Escape = Callable[[str], str]
Schema = dict[str, str | ExtractField]

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w-]*)\}|[{}]")
# Selectors that are not CSS all through: another engine, a chain of engines, XPath, or Playwright's quoted text.
_NOT_CSS = re.compile(r"""\s*(?!css=)[\w\-+:*]+=|\s*\(*//|\s*\.\.|\s*["']|.*>>""", re.DOTALL)
_PLAIN_IN_STRING = frozenset(" -_")


def inject(action: NLWebAction, parameters: Mapping[str, Any], step: str = "") -> NLWebAction:
    """The step with every placeholder filled; the given one is left as it was.

    ValidationError names the step and the parameter that is missing or cannot stand where it is wanted. The
    description is for people and logs, so values stay out of it.
    """
    fill = _Filler(parameters, step or describe(action))
    changes = {
        "selector": action.selector and fill.selector(action.selector),
        "wait_for": action.wait_for and fill.selector(action.wait_for),
        "value": action.value and fill.value(action),
        "extract_schema": action.extract_schema and fill.schema(action.extract_schema),
    }
    return action.model_copy(update=changes)


def used(actions: Iterable[NLWebAction]) -> set[str]:
    """The names of all parameters that the steps speak of."""
    texts = (text for action in actions for text in _texts(action))
    return {name for text in texts for name in _TOKEN.findall(text) if name}


def describe(action: NLWebAction) -> str:
    """A step in words, without its values, which may be private."""
    return f"{action.action_type.value} {action.selector!r}" if action.selector else f"{action.action_type.value}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence on an unknown name: what was probably meant, or what there is."""
    known = sorted(known)
    if found := difflib.get_close_matches(name, known, n=1):
        return f"Did you mean {found[0]!r}?"
    return f"There are: {', '.join(known)}." if known else "There are none."


class _Filler:
    """Fills the texts of one step, each as its place demands."""

    def __init__(self, parameters: Mapping[str, Any], step: str):
        self._parameters = parameters
        self._step = step

    def value(self, action: NLWebAction) -> str:
        """The value: text as it is, but encoded inside an address. A whole address is judged by the sandbox."""
        text = action.value or ""
        alone = _TOKEN.fullmatch(text)
        inside_address = action.action_type is ActionType.NAVIGATE and not (alone and alone[1])
        return self._fill(text, (lambda one: quote(one, safe="")) if inside_address else str)

    def selector(self, text: str) -> str:
        """A selector. Only a quoted string of CSS may be filled.

        There, and only there, an escape exists that leaves no character with a meaning, for CSS and for the engines
        around it alike; ``#day-{day}`` or ``text={label}`` would let a caller choose another element.
        """
        self._refuse_loose_placeholders(text)
        return self._fill(text, _css_string)

    def schema(self, schema: Schema) -> Schema:
        """Every selector and attribute of an extraction."""
        return {key: self._field(field) for key, field in schema.items()}

    def _field(self, field: str | ExtractField) -> str | ExtractField:
        if isinstance(field, str):
            return self.selector(field)
        changes = {
            "selector": self.selector(field.selector),
            "attribute": field.attribute and self._fill(field.attribute, str),
            "fields": field.fields and self.schema(field.fields),
        }
        return field.model_copy(update=changes)

    def _fill(self, text: str, escape: Escape) -> str:
        return _TOKEN.sub(lambda found: self._replacement(found, escape), text)

    def _replacement(self, found: re.Match[str], escape: Escape) -> str:
        token, name = found[0], found[1]
        if name:
            return escape(self._parameter(name))
        if len(token) == 2:
            return token[0]
        raise ValidationError(
            f"The step {self._step} holds a lone {token!r}. Write {{name}} for a parameter, {{{{ or }}}} for a brace."
        )

    def _parameter(self, name: str) -> str:
        given = self._parameters.get(name)
        if given is None:
            raise ValidationError(
                f"Missing required parameter: {name} (for the step {self._step})",
                errors=[{"path": f"/{name}", "expected": "a value", "got": None, "step": self._step}],
            )
        if isinstance(given, bool):
            return str(given).lower()
        if isinstance(given, str | int | float):
            return str(given)
        raise ValidationError(
            f"Parameter '{name}' is {type(given).__name__}, but the step {self._step} can only take text, a number "
            "or a boolean.",
            errors=[{"path": f"/{name}", "expected": "string", "got": type(given).__name__, "step": self._step}],
        )

    def _refuse_loose_placeholders(self, text: str) -> None:
        for found in _TOKEN.finditer(text):
            if found[1] and (_NOT_CSS.match(text) or not _in_string(text[: found.start()])):
                raise ValidationError(
                    f"In the step {self._step} the selector {text!r} takes {found[0]} outside a quoted string of CSS, "
                    f'where it could select something else. Write it as [id="{found[0]}"] or :has-text("{found[0]}").'
                )


def _in_string(before: str) -> bool:
    """Whether a CSS string is open after this text."""
    quoted, escaped = "", False
    for one in before:
        if escaped or one == "\\":
            escaped = not escaped
        elif one == quoted:
            quoted = ""
        elif not quoted and one in "\"'":
            quoted = one
    return bool(quoted)


def _css_string(text: str) -> str:
    """Text inside a CSS string: all but letters, digits, blanks, - and _ as hexadecimal escapes."""
    return "".join(one if one.isalnum() or one in _PLAIN_IN_STRING else f"\\{ord(one):x} " for one in text)


def _texts(action: NLWebAction) -> Iterator[str]:
    yield from (text for text in (action.selector, action.value, action.wait_for) if text)
    yield from _schema_texts(action.extract_schema or {})


def _schema_texts(schema: Schema) -> Iterator[str]:
    for field in schema.values():
        if isinstance(field, str):
            yield field
        else:
            yield from (field.selector, field.attribute or "")
            yield from _schema_texts(field.fields or {})
