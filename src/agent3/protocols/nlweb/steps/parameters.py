"""Putting a caller's parameters into the steps of an action.

``{name}`` stands for a parameter or for what an earlier step saved, ``{name.field}`` for a part of it,
``{secret:name}`` for a secret and ``{{ }}`` for braces. What is put in stays data: in a selector it may only fill a
quoted string, in an address it is percent-encoded, and no step takes a script. It knows no page.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from agent3.definitions import ActionType, Condition, ExtractField, NLWebAction
from agent3.errors import ValidationError

__all__ = ["check", "describe", "given_in", "inject", "inject_condition", "label", "look_up", "nearest", "prove",
           "refuse_clipboard", "saved", "templates", "used"]  # fmt: skip

Escape = Callable[[str], str]
Schema = dict[str, str | ExtractField]
Secrets = Callable[[str], str]

_TOKEN = re.compile(r"\{\{|\}\}|\{((?:secret:)?[A-Za-z_][\w-]*(?:\.[\w-]+)*)\}|[{}]")
_SECRET = "secret:"  # noqa: S105 - the word before a name
# Selectors that are not CSS all through: another engine, a chain of engines, XPath, or Playwright's quoted text.
_NOT_CSS = re.compile(r"""\s*(?!css=)[\w\-+:*]+=|\s*\(*//|\s*\.\.|\s*["']|.*>>""", re.DOTALL)
_PLAIN_IN_STRING = frozenset(" -_")
_COMMANDS = frozenset({"control", "meta", "controlormeta"})
_CLIPBOARD = frozenset({"c", "x", "v", "insert", "numpad0"})
_SHIFTED = frozenset({"insert", "delete", "numpad0", "numpaddecimal"})
_OWN = frozenset({"item", "index", "dialog"})
"""Values that the run itself gives: of a loop, and the text of the last dialog."""


def inject(
    action: NLWebAction,
    parameters: Mapping[str, Any],
    step: str = "",
    *,
    secrets: Secrets | None = None,
    later: frozenset[str] = frozenset(),
) -> NLWebAction:
    """The step with every placeholder filled; the given one is left as it was, and so are the steps within it.

    ValidationError names the step and the parameter that is missing or cannot stand where it is wanted. The
    description is for people and logs, so values stay out of it. What is in ``later`` is not known yet and left empty.
    """
    fill = _Filler(parameters, step or describe(action), secrets, later)
    changes = {
        "selector": action.selector and fill.selector(action.selector),
        "wait_for": action.wait_for and fill.selector(action.wait_for),
        "frame": action.frame and fill.selector(action.frame),
        "next": action.next and fill.selector(action.next),
        "value": action.value and fill.value(action),
        "fields": action.fields and {name: fill.text(value) for name, value in action.fields.items()},
        "when": action.when and fill.condition(action.when),
        "until": action.until and fill.condition(action.until),
        "extract_schema": action.extract_schema and fill.schema(action.extract_schema),
    }
    return action.model_copy(update={name: value for name, value in changes.items() if value is not None})


def inject_condition(condition: Condition, parameters: Mapping[str, Any], step: str = "") -> Condition:
    """A condition with every placeholder filled, as in a step."""
    return _Filler(parameters, step).condition(condition)


def prove(actions: Iterable[NLWebAction], parameters: Mapping[str, Any], name: str) -> None:
    """Judge every step before the first one runs, those within others too; ValidationError as ``inject``.

    A step that runs only ``when`` a parameter is given is not asked for it.
    """
    steps = list(actions)
    _prove(steps, parameters, frozenset(saved(steps)) | _OWN, name)


def _prove(
    steps: list[NLWebAction], parameters: Mapping[str, Any], later: frozenset[str], name: str, before: str = ""
) -> None:
    for number, step in enumerate(steps, 1):
        skipped = _waits_for_a_parameter(step, parameters, later)
        if not skipped:
            inject(step, parameters, label(step, name, f"{before}{number}"), secrets=_no_secret, later=later)
            _prove(step.steps, parameters, later, name, f"{before}{number}.")
        _prove(step.otherwise, parameters, later, name, f"{before}{number}.")


def check(actions: Iterable[NLWebAction], name: str) -> None:
    """Judge how the steps write their placeholders, whatever the parameters will be; ValidationError names the step."""
    steps = list(actions)
    _prove(steps, {}, frozenset(used(steps) | saved(steps)) | _OWN, name)


def used(actions: Iterable[NLWebAction]) -> set[str]:
    """The names of all parameters that the steps speak of, without what they save for one another."""
    steps = list(actions)
    texts = (text for action in _all(steps) for text in _texts(action))
    names = {name.split(".")[0] for text in texts for name in _TOKEN.findall(text) if name}
    asked = {name.split(".")[0] for action in _all(steps) for name in _asked(action)}
    return {name for name in names | asked if not name.startswith(_SECRET)} - saved(steps) - _OWN


def saved(actions: Iterable[NLWebAction]) -> set[str]:
    """The names under which the steps save something."""
    return {action.save_as for action in _all(actions) if action.save_as}


def templates(actions: Iterable[NLWebAction]) -> set[str]:
    """The selectors of all steps as their author wrote them, those with placeholders and those without."""
    return {text for action in _all(actions) for text in _selectors(action)}


def given_in(template: str, filled: str) -> tuple[tuple[str, str], ...] | None:
    """What stands in a filled selector for each placeholder of its template; None if it was not made of it."""
    names = [found[0] for found in _TOKEN.finditer(template) if found[1]]
    found = _shape(template).fullmatch(filled) if names else None
    return None if found is None else tuple(zip(names, map(_from_css_string, found.groups()), strict=True))


def look_up(values: Mapping[str, Any], name: str) -> Any:
    """The value of a name such as ``origin``, ``item.price.amount`` or ``rows.0``; None if there is none."""
    if name in values:
        return values[name]
    root, *path = name.split(".")
    value = values.get(root)
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def refuse_clipboard(key: str) -> None:
    """ValidationError for keys that copy, cut or paste.

    All contexts of a browser have one clipboard, and a window has that of its person: what one caller copied another
    would paste. Pages write to it at any click, so a paste can bring anything.
    """
    held = {one.lower().removeprefix("key").removesuffix("left").removesuffix("right") for one in key.split("+")}
    if (held & _COMMANDS and held & _CLIPBOARD) or ("shift" in held and held & _SHIFTED):
        raise ValidationError(
            f"The key {key!r} is not pressed: it uses the clipboard, which all callers share. Read a value with an "
            "extract step and save_as, and write it with a type step."
        )


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

    def __init__(
        self,
        parameters: Mapping[str, Any],
        step: str,
        secrets: Secrets | None = None,
        later: frozenset[str] = frozenset(),
    ):
        self._parameters = parameters
        self._step = step
        self._secrets = secrets
        self._later = later
        self._guessed = False
        """Whether something was left empty that is only known later."""

    def text(self, text: str) -> str:
        """Text that is typed or compared: as it is."""
        return self._fill(text, str)

    def condition(self, condition: Condition) -> Condition:
        """Every selector and text of a condition."""
        changes: dict[str, Any] = {
            name: self.selector(text) for name in _SELECTORS if (text := getattr(condition, name)) is not None
        }
        changes |= {name: self.text(text) for name in _COMPARED if isinstance(text := getattr(condition, name), str)}
        changes["url"] = condition.url and self._pattern(condition.url)
        changes["negated"] = condition.negated and self.condition(condition.negated)
        changes["any"] = [self.condition(one) for one in condition.any]
        return condition.model_copy(update=changes)

    def value(self, action: NLWebAction) -> str:
        """The value: text as it is, but encoded inside an address. A whole address is judged by the sandbox."""
        text = action.value or ""
        alone = _TOKEN.fullmatch(text)
        inside_address = action.action_type is ActionType.NAVIGATE and not (alone and alone[1])
        if not inside_address:
            plain = self._fill(text, str)
            if action.action_type is ActionType.PRESS:
                refuse_clipboard(plain)
            return plain
        address = self._fill(text, lambda one: quote(one, safe="", errors="replace"))
        self._refuse_other_ways(text, address)
        return address

    def _refuse_other_ways(self, text: str, address: str) -> None:
        """A value names a page below the path that its author wrote, and never another path or host.

        Browsers resolve the segments ``.`` and ``..``, written plain or as %2e, and read a host after two slashes.
        """
        if self._guessed:
            return
        parts = zip(_path(text).split("/"), _path(address).split("/"), strict=True)
        walks = any(_TOKEN.search(before) and unquote(after) in (".", "..") for before, after in parts)
        if walks or (_path(address).startswith("//") and not _path(text).startswith("//")):
            names = sorted({name for name in _TOKEN.findall(text) if name})
            raise ValidationError(
                f"In the step {self._step} the address {text!r} would lead elsewhere: {', '.join(names)} may not be "
                "'.' or '..', nor empty at its beginning.",
                errors=[{"path": f"/{name}", "expected": "the name of a page", "step": self._step} for name in names],
            )

    def selector(self, text: str) -> str:
        """A selector. Only a quoted string of CSS may be filled.

        There, and only there, an escape exists that leaves no character with a meaning, for CSS and for the engines
        around it alike; ``#day-{day}`` or ``text={label}`` would let a caller choose another element.
        """
        self._refuse_loose_placeholders(text)
        return self._fill(text, _css_string)

    def _pattern(self, text: str) -> str:
        """Part of an address, or a pattern whose ``*`` are its author's alone: one that is put in means itself."""
        plain = self._fill(text, str)
        if "*" not in text:
            return f"*{glob.escape(plain)}*" if "*" in plain else plain
        return self._fill(text, glob.escape)

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
        if name.startswith(_SECRET):
            return self._secret(name.removeprefix(_SECRET))
        given = look_up(self._parameters, name)
        if given is None:
            root = name.split(".")[0]
            if root in self._later and root not in self._parameters:
                self._guessed = True
                return ""
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

    def _secret(self, name: str) -> str:
        if self._secrets is None:
            raise ValidationError(
                f"The step {self._step} needs the secret {name!r}, but no secrets were given to this run."
            )
        return self._secrets(name)

    def _refuse_loose_placeholders(self, text: str) -> None:
        for found in _TOKEN.finditer(text):
            if found[1] and (_NOT_CSS.match(text) or not _in_string(text[: found.start()])):
                raise ValidationError(
                    f"In the step {self._step} the selector {text!r} takes {found[0]} outside a quoted string of CSS, "
                    f'where it could select something else. Write it as [id="{found[0]}"] or :has-text("{found[0]}").'
                )


def _path(address: str) -> str:
    """An address up to its query. What is put in is encoded, so that template and address have the same segments."""
    return re.split(r"[?#]", address, maxsplit=1)[0].replace("\\", "/")


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


def _from_css_string(text: str) -> str:
    return re.sub(r"\\([0-9a-f]+) ", lambda found: chr(int(found[1], 16)), text)


@lru_cache(maxsize=1_000)
def _shape(template: str) -> re.Pattern[str]:
    """What a filled selector of this template looks like, a group for each placeholder."""
    parts, end = [], 0
    for found in _TOKEN.finditer(template):
        parts.append(re.escape(template[end : found.start()]))
        parts.append(r"((?:[\w \-]|\\[0-9a-f]+ )*?)" if found[1] else re.escape(found[0][0]))
        end = found.end()
    return re.compile("".join([*parts, re.escape(template[end:])]))


_SELECTORS = ("visible", "hidden", "present", "absent", "count")
_COMPARED = ("text", "url", "equals", "contains")


def _selectors(action: NLWebAction) -> Iterator[str]:
    yield from (text for text in (action.selector, action.wait_for, action.frame, action.next) if text)
    for condition in _conditions(action):
        yield from (text for name in _SELECTORS if (text := getattr(condition, name)))


def _texts(action: NLWebAction) -> Iterator[str]:
    plain = (action.selector, action.value, action.wait_for, action.frame, action.next)
    yield from (text for text in plain if text)
    yield from (action.fields or {}).values()
    yield from _schema_texts(action.extract_schema or {})
    for condition in _conditions(action):
        texts = (getattr(condition, name) for name in (*_SELECTORS, *_COMPARED))
        yield from (text for text in texts if isinstance(text, str))


def _asked(action: NLWebAction) -> Iterator[str]:
    """The parameters that a step asks for by name, without a placeholder."""
    if action.over:
        yield action.over
    for condition in _conditions(action):
        yield from (name for name in (condition.given, condition.variable) if name)


def _conditions(action: NLWebAction) -> Iterator[Condition]:
    waiting = [one for one in (action.when, action.until) if one is not None]
    while waiting:
        condition = waiting.pop()
        yield condition
        waiting += [*condition.any, *([condition.negated] if condition.negated else [])]


def _all(actions: Iterable[NLWebAction]) -> Iterator[NLWebAction]:
    for action in actions:
        yield action
        yield from _all([*action.steps, *action.otherwise])


def label(step: NLWebAction, name: str, number: str) -> str:
    """A step's place and kind, for messages."""
    return f"{number} of {name!r} ({describe(step)})" if name else describe(step)


def _waits_for_a_parameter(step: NLWebAction, parameters: Mapping[str, Any], later: frozenset[str]) -> bool:
    wanted = step.when.given if step.when else None
    return wanted is not None and wanted.split(".")[0] not in later and look_up(parameters, wanted) in (None, "")


def _no_secret(_: str) -> str:
    return ""


def _schema_texts(schema: Schema) -> Iterator[str]:
    for field in schema.values():
        if isinstance(field, str):
            yield field
        else:
            yield from (field.selector, field.attribute or "")
            yield from _schema_texts(field.fields or {})
