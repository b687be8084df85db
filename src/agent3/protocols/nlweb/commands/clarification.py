"""What to ask a person when a command is unclear, in the language of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent3.protocols.nlweb.commands.lexicon import Language
from agent3.protocols.nlweb.commands.ranking import spoken

__all__ = ["ask_missing", "ask_which"]

_MOST_CHOICES = 8


def ask_which(titles: Sequence[str], language: Language, *, near: bool = True) -> str:
    """Which of these was meant; where none is near, what can be done at all."""
    if not titles:
        return "Este sitio no ofrece acciones." if language == "es" else "This website offers no actions."
    several = _either(titles, language)
    if not near and language == "es":
        return f"No sé hacer eso aquí. Puedes, por ejemplo: {several}. ¿Qué quieres hacer?"
    if not near:
        return f"I cannot do that here. You can, for example: {several}. What do you want to do?"
    if language == "es":
        return f"No estoy seguro de qué quieres hacer. ¿Te refieres a {several}?"
    return f"I am not sure what you want to do. Do you mean {several}?"


def ask_missing(
    action: str,
    missing: Sequence[str],
    properties: Mapping[str, Any],
    doubts: Mapping[str, Sequence[Any]],
    language: Language,
) -> str:
    """What is still needed, with its choices, and which reading of a doubtful value is right."""
    absent = [_wanted(name, properties.get(name, {}), language) for name in missing if name not in doubts]
    parts = []
    if absent:
        listed = _both(absent, language)
        parts.append(
            f"Para {action} me falta: {listed}." if language == "es" else f"To {action} I still need: {listed}."
        )
    for name, readings in doubts.items():
        either = _either([str(one) for one in readings], language)
        parts.append(f"¿{spoken(name)} es {either}?" if language == "es" else f"Is {spoken(name)} {either}?")
    return " ".join(parts)


def _wanted(name: str, schema: Mapping[str, Any], language: Language) -> str:
    if choices := schema.get("enum"):
        return f"{spoken(name)} ({_either([str(one) for one in choices[:_MOST_CHOICES]], language)})"
    if described := schema.get("description"):
        return f"{spoken(name)} ({str(described).rstrip('.')})"
    return spoken(name)


def _either(items: Sequence[str], language: Language) -> str:
    return _joined(items, "o" if language == "es" else "or")


def _both(items: Sequence[str], language: Language) -> str:
    return _joined(items, "y" if language == "es" else "and")


def _joined(items: Sequence[str], word: str) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
