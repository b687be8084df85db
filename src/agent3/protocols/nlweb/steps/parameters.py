"""The parameters of an action: checked before anything happens, and put into its steps.

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

from agent3.definitions import ActionType, Condition, ExtractField, NLWebAction, NLWebInterface
from agent3.errors import CapabilityNotFound, ValidationError
from agent3.schema import compile as compile_schema

__all__ = ["check", "check_parameters", "describe", "escape_braces", "inject", "inject_condition", "input_schema",
           "look_up", "match_template", "parameter_names", "prepare", "refuse_clipboard", "saved_names",
           "selector_templates", "step_label", "suggest"]  # fmt: skip

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
_SELECTORS = ("visible", "hidden", "present", "absent", "count")
_COMPARED = ("text", "url", "equals", "contains")


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
    description is for people and logs, so values stay out of it. What is in ``later`` is not known yet, and left empty.
    """
    fill = _Filler(parameters, step or describe(action), secrets, later)
    changes = {
        "selector": action.selector and fill.selector(action.selector),
        "wait_for": action.wait_for and fill.selector(action.wait_for),
        "frame": action.frame and fill.selector(action.frame),
        "next": action.next and fill.selector(action.next),  # the way to the next page
        "value": action.value and fill.value(action),
        "fields": action.fields and {name: fill.text(value) for name, value in action.fields.items()},
        "when": action.when and fill.condition(action.when),
        "until": action.until and fill.condition(action.until),
        "verify": fill.condition(action.verify) if isinstance(action.verify, Condition) else None,
        "extract_schema": action.extract_schema and fill.schema(action.extract_schema),
    }
    return action.model_copy(update={name: value for name, value in changes.items() if value is not None})


def inject_condition(condition: Condition, parameters: Mapping[str, Any], step: str = "") -> Condition:
    """A condition with every placeholder filled, as in a step."""
    return _Filler(parameters, step).condition(condition)


def check_parameters(actions: Iterable[NLWebAction], parameters: Mapping[str, Any], name: str) -> None:
    """Check every step before the first one runs, those within others too; ValidationError as ``inject``.

    A step that runs only ``when`` a parameter is given is not asked for it.
    """
    steps = list(actions)
    _check_steps(steps, parameters, frozenset(saved_names(steps)) | _OWN, name)


def check(actions: Iterable[NLWebAction], name: str) -> None:
    """Check how the steps write their placeholders, whatever the parameters will be; ValidationError names the step."""
    steps = list(actions)
    _check_steps(steps, {}, frozenset(parameter_names(steps) | saved_names(steps)) | _OWN, name)


def _check_steps(
    steps: list[NLWebAction], parameters: Mapping[str, Any], later: frozenset[str], name: str, before: str = ""
) -> None:
    for number, step in enumerate(steps, 1):
        wanted = step.when.given if step.when else None
        skipped = wanted is not None and wanted.split(".")[0] not in later and look_up(parameters, wanted) in (None, "")
        if not skipped:
            label = step_label(step, name, f"{before}{number}")
            inject(step, parameters, label, secrets=lambda _: "", later=later)
            _check_steps(step.steps, parameters, later, name, f"{before}{number}.")
        _check_steps(step.otherwise, parameters, later, name, f"{before}{number}.")


def parameter_names(actions: Iterable[NLWebAction]) -> set[str]:
    """The names of all parameters that the steps speak of, without what they save for one another."""
    steps = list(actions)
    names: set[str] = set()
    for action in _with_inner(steps):
        texts: list[Any] = [action.selector, action.value, action.wait_for, action.frame, action.next]
        texts += [*(action.fields or {}).values(), *_schema_texts(action.extract_schema or {})]
        names |= {action.over} if action.over else set()
        for condition in _conditions(action):
            texts += [getattr(condition, key) for key in (*_SELECTORS, *_COMPARED)]
            # These name a parameter without a placeholder.
            names |= {name for name in (condition.given, condition.variable) if name}
        names |= {name for text in texts if isinstance(text, str) for name in _TOKEN.findall(text) if name}
    return {name.split(".")[0] for name in names if not name.startswith(_SECRET)} - saved_names(steps) - _OWN


def saved_names(actions: Iterable[NLWebAction]) -> set[str]:
    return {action.save_as for action in _with_inner(actions) if action.save_as}


def selector_templates(actions: Iterable[NLWebAction]) -> set[str]:
    """The selectors of all steps as their author wrote them, those with placeholders and those without."""
    found: set[str | None] = set()
    for action in _with_inner(actions):
        found |= {action.selector, action.wait_for, action.frame, action.next}
        found |= {getattr(condition, name) for condition in _conditions(action) for name in _SELECTORS}
    return {text for text in found if text}


def match_template(template: str, filled: str) -> tuple[tuple[str, str], ...] | None:
    """What stands in a filled selector for each placeholder of its template; None if it was not made from it."""
    names = [found[0] for found in _TOKEN.finditer(template) if found[1]]
    found = _template_pattern(template).fullmatch(filled) if names else None
    if found is None:
        return None
    values = (re.sub(r"\\([0-9a-f]+) ", lambda match: chr(int(match[1], 16)), text) for text in found.groups())
    return tuple(zip(names, values, strict=True))


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
    held = {part.lower().removeprefix("key").removesuffix("left").removesuffix("right") for part in key.split("+")}
    if (held & _COMMANDS and held & _CLIPBOARD) or ("shift" in held and held & _SHIFTED):
        raise ValidationError(
            f"The key {key!r} is not allowed: it uses the clipboard, which all callers share. Read a value "
            "with an extract step and save_as, and write it with a type step."
        )


def describe(action: NLWebAction) -> str:
    """A step in words, without its values, which may be private."""
    return f"{action.action_type.value} {action.selector!r}" if action.selector else f"{action.action_type.value}"


def escape_braces(text: str) -> str:
    """Text for a step in which nothing is a placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def step_label(step: NLWebAction, name: str, number: str) -> str:
    """A step's place and kind, for messages."""
    return f"{number} of {name!r} ({describe(step)})" if name else describe(step)


def suggest(name: str, known: Iterable[str]) -> str:
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
        if condition.url:
            # Part of an address, or a pattern whose * are its author's alone: one that is put in means itself.
            plain = self._fill(condition.url, str)
            if "*" in condition.url:
                changes["url"] = self._fill(condition.url, glob.escape)
            else:
                changes["url"] = f"*{glob.escape(plain)}*" if "*" in plain else plain
        changes["negated"] = condition.negated and self.condition(condition.negated)
        changes["any"] = [self.condition(choice) for choice in condition.any]
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
        address = self._fill(text, lambda value: quote(value, safe="", errors="replace"))
        if self._guessed:
            return address
        # A value names a page below the path that its author wrote, and never another path or host. Browsers resolve
        # the segments . and .., written plain or as %2e, and read a host after two slashes. What is put in is encoded,
        # so that template and address have the same segments.
        before, after = (re.split(r"[?#]", url, maxsplit=1)[0].replace("\\", "/") for url in (text, address))
        segments = zip(before.split("/"), after.split("/"), strict=True)
        walks = any(_TOKEN.search(template) and unquote(filled) in (".", "..") for template, filled in segments)
        if walks or (after.startswith("//") and not before.startswith("//")):
            names = sorted({name for name in _TOKEN.findall(text) if name})
            raise ValidationError(
                f"In step {self._step}, the address {text!r} would lead elsewhere: {', '.join(names)} may "
                "not be '.' or '..', or empty at the beginning.",
                errors=[{"path": f"/{name}", "expected": "the name of a page", "step": self._step} for name in names],
            )
        return address

    def selector(self, text: str) -> str:
        """A selector. Only a quoted string of CSS may be filled.

        There, and only there, an escape exists that leaves no character with a meaning, for CSS and for the engines
        around it alike; ``#day-{day}`` or ``text={label}`` would let a caller choose another element.
        """
        for found in _TOKEN.finditer(text):
            if found[1] and (_NOT_CSS.match(text) or not _is_in_string(text[: found.start()])):
                raise ValidationError(
                    f"In step {self._step}, the selector {text!r} uses {found[0]} outside a quoted CSS "
                    f'string, where it could select something else. Write [id="{found[0]}"] or '
                    f':has-text("{found[0]}").'
                )
        return self._fill(text, _escape_css_string)

    def schema(self, schema: Schema) -> Schema:
        """Every selector and attribute of an extraction."""
        filled: Schema = {}
        for key, field in schema.items():
            if isinstance(field, str):
                filled[key] = self.selector(field)
                continue
            changes = {
                "selector": self.selector(field.selector),
                "attribute": field.attribute and self._fill(field.attribute, str),
                "fields": field.fields and self.schema(field.fields),
            }
            filled[key] = field.model_copy(update=changes)
        return filled

    def _fill(self, text: str, escape: Escape) -> str:
        def replace(found: re.Match[str]) -> str:
            token, name = found[0], found[1]
            if name:
                return escape(self._parameter(name))
            if len(token) == 2:
                return token[0]
            raise ValidationError(
                f"Step {self._step} contains a single {token!r}. Write {{name}} for a parameter, {{{{ or "
                "}} for a brace."
            )

        return _TOKEN.sub(replace, text)

    def _parameter(self, name: str) -> str:
        if name.startswith(_SECRET):
            name = name.removeprefix(_SECRET)
            if self._secrets is None:
                raise ValidationError(f"Step {self._step} needs the secret {name!r}, but this run has no secrets.")
            return self._secrets(name)
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
            f"Parameter '{name}' is {type(given).__name__}, but step {self._step} accepts only text, a "
            "number or a boolean.",
            errors=[{"path": f"/{name}", "expected": "string", "got": type(given).__name__, "step": self._step}],
        )


def _is_in_string(before: str) -> bool:
    """Whether a CSS string is open after this text."""
    quoted, escaped = "", False
    for letter in before:
        if escaped or letter == "\\":
            escaped = not escaped
        elif letter == quoted:
            quoted = ""
        elif not quoted and letter in "\"'":
            quoted = letter
    return bool(quoted)


def _escape_css_string(text: str) -> str:
    """Text inside a CSS string: all but letters, digits, blanks, - and _ as hexadecimal escapes."""
    return "".join(
        letter if letter.isalnum() or letter in _PLAIN_IN_STRING else f"\\{ord(letter):x} " for letter in text
    )


@lru_cache(maxsize=1_000)
def _template_pattern(template: str) -> re.Pattern[str]:
    """What a filled selector of this template looks like, a group for each placeholder."""
    parts, end = [], 0
    for found in _TOKEN.finditer(template):
        parts.append(re.escape(template[end : found.start()]))
        parts.append(r"((?:[\w \-]|\\[0-9a-f]+ )*?)" if found[1] else re.escape(found[0][0]))
        end = found.end()
    return re.compile("".join([*parts, re.escape(template[end:])]))


# The texts of steps


def _conditions(action: NLWebAction) -> Iterator[Condition]:
    waiting = [one for one in (action.when, action.until, action.verify) if isinstance(one, Condition)]
    while waiting:
        condition = waiting.pop()
        yield condition
        waiting += [*condition.any, *([condition.negated] if condition.negated else [])]


def _with_inner(actions: Iterable[NLWebAction]) -> Iterator[NLWebAction]:
    for action in actions:
        yield action
        yield from _with_inner([*action.steps, *action.otherwise])


def _schema_texts(schema: Schema) -> Iterator[str]:
    for field in schema.values():
        if isinstance(field, str):
            yield field
        else:
            yield from (field.selector, field.attribute or "")
            yield from _schema_texts(field.fields or {})


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
            f"No step of {name!r} uses parameter {strange[0]!r}. {suggest(strange[0], known)}",
            errors=[{"path": f"/{key}", "expected": "a parameter of the action"} for key in strange],
        )
    if schema is not None and not checked:
        compile_schema(input_schema(interface, name)).check(given)
    return actions[name], given


def input_schema(interface: NLWebInterface, name: str) -> dict[str, Any]:
    """The schema of an action's parameters: its own, else one text for each that its steps speak of."""
    info = interface.info.get(name)
    if info is not None and info.input_schema is not None:
        schema = {"type": "object", **info.input_schema}
        properties = schema.get("properties", {})
        # What has a default need not be given: ``prepare`` fills it in.
        needed = [name for name in schema.get("required", ()) if "default" not in properties.get(name, {})]
        return {**schema, "required": needed} if "required" in schema else schema
    names = sorted(parameter_names(interface.actions[name]))
    properties = {key: {"type": ["string", "number", "boolean"]} for key in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
