"""What is asked back, in the language of the message: one question for each field, the schema, and a worked "
"example."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3.errors import Agent3Error
from agent3.model import Capability, Question, one_line
from agent3.schema.compiler import compiled
from agent3.sentences.lexicon import Language
from agent3.sentences.prohibitions import Why
from agent3.sentences.reader import Ask
from agent3.sentences.slots import Kind, kind_of

__all__ = [
    "AGAIN", "CONFIRM", "ask_again", "ask_confirmation", "ask_for", "decline", "example",
    "explain_fault", "quote_it", "refuse",
]  # fmt: skip

AGAIN, CONFIRM = "agent3:again", "agent3:confirm"
"""Ids of questions that are not about one field. No parameter that is filled has a colon in its name."""


def ask_for(capability: Capability, asked: Ask) -> tuple[Question, ...]:
    """A question for each field that is missing or in doubt; else one for the whole, whose words were left over.

    Each shows an example of its field, and the first also tells what was understood.
    """
    spanish = asked.language == "es"
    properties: Any = capability.input_schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    if asked.missing and not asked.left:
        texts = [_ask_field(name, known.get(name), asked, spanish) for name in asked.missing]
        shown = example(capability)
        for number, name in enumerate(asked.missing):
            value = shown[name] if isinstance(shown, Mapping) and name in shown else _sample(name, known.get(name))
            texts[number] += f"\n{'Ejemplo' if spanish else 'Example'}: {_json({name: value})}"
        if asked.input:
            texts[0] += f"\n{'Entendido' if spanish else 'Understood'}: {_json(asked.input)}"
        return tuple(
            Question(name, text, _definition(known.get(name))) for name, text in zip(asked.missing, texts, strict=True)
        )
    words = ", ".join(f"“{word}”" for word in asked.left[:8])
    text = f"No entiendo {words}. " if spanish else f"I do not understand {words}. "
    said = "Dilo con otras palabras, o da la entrada." if spanish else "Say it in other words, or give the input."
    told = _explain(capability, asked)
    schema = f"{'Esquema' if spanish else 'Schema'}: {_json(capability.input_schema)[:4_000]}"
    return (Question(AGAIN, f"{text if words else ''}{said}\n{told}\n{schema}", {"type": "string", "minLength": 1}),)


def _explain(capability: Capability, asked: Ask) -> str:
    """What was understood, what is open, and an example."""
    spanish = asked.language == "es"
    lines = []
    if asked.input:
        lines.append(f"{'Entendido' if spanish else 'Understood'}: {_json(asked.input)}")
    if asked.left and asked.missing:
        lines.append(f"{'Falta' if spanish else 'Missing'}: {', '.join(asked.missing)}")
    lines.append(f"{'Ejemplo' if spanish else 'Example'}: {_json(example(capability))}")
    return "\n".join(lines)


def ask_confirmation(capability: Capability, given: Any, language: Language) -> Question:
    """Whether to do what was partly guessed."""
    properties: Any = capability.input_schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    pairs = given.items() if isinstance(given, Mapping) else [("", given)]
    told = ", ".join(f"{_label(name, known.get(name))} {_plain(value)}".strip() for name, value in pairs)
    what = one_line(capability.title or capability.description, 80).rstrip(".")
    if not what or what.endswith("…"):
        what = _words(capability.name)
    what = what[:1].upper() + what[1:]
    text = f"{what}: {told}. " if told else f"{what}. "
    return Question(CONFIRM, text + ("¿Lo hago?" if language == "es" else "Shall I do it?"), {"type": "boolean"})


def _plain(value: Any) -> str:
    """A value as a person would write it, where it cannot be taken for more than it is."""
    is_plain = isinstance(value, str) and value and not re.search(r"[,;:.\"\n](?!\S)|^\W*$", value)
    return value if is_plain else _json(value)


def _words(name: str) -> str:
    return re.sub(r"[_\-.]+|(?<=[a-z])(?=[A-Z])", " ", name).strip().lower()


def _label(name: str, given: Any) -> str:
    """What a person would call a parameter: its title, else the words of its name."""
    title = str(given.get("title") or "").strip() if isinstance(given, Mapping) else ""
    if not title or len(title) > 40:
        return _words(name)
    return title if title[1:2].isupper() else title[0].lower() + title[1:]


def ask_again(question: Question, fault: str | None, language: Language) -> Question:
    """The same question once more; ``fault`` is what was wrong with the answer, if there was one."""
    text = _REPROACH.split(question.text, maxsplit=1)[0]
    if fault is None:
        return replace(question, text=text)
    return replace(question, text=f"{text} ({'no vale' if language == 'es' else 'not taken'}: {fault})")


def quote_it(language: Language) -> str:
    """What is said of an answer that leaves the matter open, or asks back."""
    if language == "es":
        return "no dice cuál es; si es la respuesta, ponla entre comillas"
    return "that is no answer; if it is, put it in quotes"


_REPROACH = re.compile(r" \((?:invalid|no válido|not taken|no vale): ")


def explain_fault(question: Question, value: Any, language: Language) -> str | None:
    """What is wrong with an answer: it must fit the schema, and the format that the schema names; None if it does."""
    definition = question.schema or {}
    spanish = language == "es"
    try:
        compiled(definition).check(value, what="answer")
    except Agent3Error as error:
        if definition.get("type") == "boolean":
            return "responde sí o no" if spanish else "answer yes or no"
        return f"el esquema es {_json(definition)}" if spanish else error.message
    sample = _FORMATS.get(str(definition.get("format")))
    if sample is None or not isinstance(value, str):
        return None
    parse, kind = sample
    try:
        parse(value)
    except ValueError:
        shown = _SAMPLES[kind]
        return f"se espera algo como {shown}" if spanish else f"something like {shown} is expected"
    return None


_FORMATS: dict[str, tuple[Callable[[str], Any], Kind]] = {
    "date": (date.fromisoformat, "date"),
    "date-time": (datetime.fromisoformat, "datetime"),
    "time": (time.fromisoformat, "time"),
}
"""Formats that an answer is held to: the reader makes them of words, so that a text that is none was not understood."""


def decline(question: Question, language: Language) -> str:
    """What is said when a question was answered with no."""
    asked = _REPROACH.split(question.text, maxsplit=1)[0].partition("\n")[0]
    if language == "es":
        return f"No se ha hecho nada: la respuesta a «{asked}» ha sido que no."
    return f"Nothing was done: {asked!r} was answered with no."


def refuse(why: Why, language: Language) -> str:
    """Why nothing was done."""
    reasons = _REASONS_ES if language == "es" else _REASONS_EN
    end = "Di qué quieres que se haga." if language == "es" else "Say what is to be done."
    return f"{reasons[why]} {end}"


_REASONS_EN: dict[Why, str] = {
    "forbids": "Nothing was done: the message says not to do it.",
    "conditional": "Nothing was done: the message sets a condition, which cannot be checked here.",
    "withdrawn": "Nothing was done: the message takes the request back.",
    "hypothetical": "Nothing was done: the message asks what would happen.",
    "report": "Nothing was done: the message tells or asks about something, and does not ask for it to be done.",
    "question": "Nothing was done: the message is a question, not a request.",
    "excludes": "Nothing was done: the message makes an exception, which cannot be followed here.",
    "open": "Nothing was done: the message leaves open whether it is wanted.",
}
_REASONS_ES: dict[Why, str] = {
    "forbids": "No se ha hecho nada: el mensaje dice que no se haga.",
    "conditional": "No se ha hecho nada: el mensaje pone una condición que aquí no se puede comprobar.",
    "withdrawn": "No se ha hecho nada: el mensaje retira la petición.",
    "hypothetical": "No se ha hecho nada: el mensaje pregunta qué pasaría.",
    "report": "No se ha hecho nada: el mensaje cuenta o pregunta algo, y no pide que se haga.",
    "question": "No se ha hecho nada: el mensaje es una pregunta, no una petición.",
    "excludes": "No se ha hecho nada: el mensaje hace una excepción, que aquí no se puede seguir.",
    "open": "No se ha hecho nada: el mensaje deja abierto si se quiere que se haga.",
}


def example(capability: Capability) -> Any:
    """An input that fits: the author's own, or one made of the schema."""
    if capability.examples and isinstance(capability.examples[0], Mapping):
        return capability.examples[0]
    properties: Any = capability.input_schema.get("properties")
    required: Any = capability.input_schema.get("required")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    names = required if isinstance(required, list) and required else [*known][:2]
    return {name: _sample(name, known.get(name)) for name in names if isinstance(name, str)}


def _sample(name: str, given: Any, depth: int = 0) -> Any:
    definition: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    for key in ("examples", "enum"):
        if isinstance(several := definition.get(key), list) and several:
            return several[0]
    for key in ("default", "example", "const"):
        if definition.get(key) is not None:
            return definition[key]
    match definition.get("type"):
        case "integer":
            return int(definition.get("minimum", 1))
        case "number":
            return definition.get("minimum", 5)
        case "boolean":
            return True
        case "array":
            return [_sample(name.removesuffix("s"), definition.get("items"), depth + 1)] if depth < 3 else []
        case "object":
            inner: Any = definition.get("properties")
            return (
                {key: _sample(key, part, depth + 1) for key, part in inner.items()}
                if isinstance(inner, Mapping) and depth < 3
                else {}
            )
    told = str(definition.get("description") or "")[:500]
    if shown := _SHOWN.search(told):
        return shown[1]
    return _SAMPLES.get(kind_of(name, definition), f"<{name}>")


_SHOWN = re.compile(r"(?:\be\.g\.?|[Ee]xamples?:?|such as|for example),? ['\"`]([^'\"`]{1,60})['\"`]")
"""A value that a description gives as an example."""
_SAMPLES: dict[Kind, str] = {
    "date": "2027-03-04", "datetime": "2027-03-04T10:30:00", "time": "10:30", "email": "ana@example.com",
    "url": "https://example.com/", "path": "/home/ana/notes.txt", "domain": "example.com", "currency": "EUR",
    "language": "es", "zone": "Europe/Madrid", "phone": "+34600111222", "duration": "1h 30m", "place": "Madrid",
}  # fmt: skip


_PREPOSITIONS = frozenset("to from by for at in on of with as until since".split())
"""Names that would be no nouns in a question."""


def _ask_field(name: str, given: Any, asked: Ask, spanish: bool) -> str:
    definition: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    told = str(definition.get("description") or "").rstrip(".?")
    label = _label(name, given)
    if label in _PREPOSITIONS:
        label = f"\u201c{label}\u201d"  # "Which to?" is no question
    text = f"{label} ({told})" if told and told.lower() != label else label
    if isinstance(options := definition.get("enum"), list):
        text += f" [{', '.join(map(str, options[:10]))}]"
    text += _bounds(definition, spanish)
    readings = [value for value in asked.doubt.get(name, ()) if value != "None"]
    if len(readings) > 1:
        either = " o " if spanish else " or "
        text += f": {either.join(readings[:4])}"
    text = f"Falta {text}. ¿Cuál es?" if spanish else f"Which {text}?"
    if len(readings) == 1:
        text += f" {readings[0]} no está claro." if spanish else f" {readings[0]} was not clear."
    return text


def _bounds(definition: Mapping[str, Any], spanish: bool) -> str:
    """The least and the most that a number may be, as far as its schema says."""
    least, most = definition.get("minimum"), definition.get("maximum")
    has_least, has_most = isinstance(least, int | float), isinstance(most, int | float)
    if has_least and has_most:
        return f" ({least} a {most})" if spanish else f" ({least} to {most})"
    if has_least:
        return f" (al menos {least})" if spanish else f" (at least {least})"
    if has_most:
        return f" (como mucho {most})" if spanish else f" (at most {most})"
    return ""


def _definition(given: Any) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
