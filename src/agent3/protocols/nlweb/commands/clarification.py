"""What to ask a person when a command is unclear, in the language of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent3.protocols.nlweb.commands.lexicon import Language
from agent3.protocols.nlweb.commands.ranking import as_words

__all__ = ["ask_missing", "ask_which"]

_MOST_CHOICES = 8


def ask_which(titles: Sequence[str], language: Language, *, near: bool = True) -> str:
    """Which of these was meant; where none is near, what can be done at all."""
    if not titles:
        return "Este sitio no ofrece acciones." if language == "es" else "This website offers no actions."
    if language == "es":
        several = _join(titles, "o")
        if not near:
            return f"No sé hacer eso aquí. Puedes, por ejemplo: {several}. ¿Qué quieres hacer?"
        return f"No estoy seguro de qué quieres hacer. ¿Te refieres a {several}?"
    several = _join(titles, "or")
    if not near:
        return f"I cannot do that here. You can, for example: {several}. What do you want to do?"
    return f"I am not sure what you want to do. Do you mean {several}?"


def ask_missing(
    action: str,
    missing: Sequence[str],
    properties: Mapping[str, Any],
    doubts: Mapping[str, Sequence[Any]],
    language: Language,
) -> str:
    """What is still needed, with its choices, and which reading of a doubtful value is right."""
    both, either = ("y", "o") if language == "es" else ("and", "or")
    absent = []
    for name in (name for name in missing if name not in doubts):
        schema = properties.get(name, {})
        hint = str(schema.get("description") or "").rstrip(".")
        if choices := schema.get("enum"):
            hint = _join([str(choice) for choice in choices[:_MOST_CHOICES]], either)
        absent.append(f"{as_words(name)} ({hint})" if hint else as_words(name))
    parts = []
    if absent:
        listed = _join(absent, both)
        parts.append(
            f"Para {action} me falta: {listed}." if language == "es" else f"To {action} I still need: {listed}."
        )
    for name, readings in doubts.items():
        listed = _join([str(reading) for reading in readings], either)
        parts.append(f"¿{as_words(name)} es {listed}?" if language == "es" else f"Is {as_words(name)} {listed}?")
    return " ".join(parts)


def _join(items: Sequence[str], word: str) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
