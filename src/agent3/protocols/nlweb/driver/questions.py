"""What is asked where a sentence was not carried out whole: what was understood of it, and what was not."""

from __future__ import annotations

from collections.abc import Sequence

from agent3.protocols.nlweb.driver.page_plans import Doubt, Plan, Why, describe
from agent3.protocols.nlweb.driver.sentences import Clause
from agent3.sentences.lexicon import Language

__all__ = ["explain"]

_REASONS: dict[Language, dict[Why, str]] = {
    "en": {
        "absent": "nothing suitable here is called “{}”",
        "several": "several things here match “{}”; say which one, such as the second, or in which row or list",
        "words": "“{}” does not say what to do with which part of the page",
        "disabled": "“{}” cannot be used now",
        "empty": "“{}” is needed and has no valid value",
        "value": "“{}” is not a valid value there",
        "file": "the upload folder has no file “{}”",
        "unshown": "sent, but the page does not show the result ({})",
        "refused": "the page answers “{}”",
        "namesake": "the list goes on, and more of it may be called so; say which one, or “on this page”",
        "asks": "the page asks first: “{}”",
        "says": "pressed, and the page says “{}”, which does not tell that it is done",
    },
    "es": {
        "absent": "aquí no hay nada adecuado que se llame “{}”",
        "several": "aquí coinciden varias cosas con “{}”; diga cuál, por ejemplo la segunda, o en qué fila o lista",
        "words": "“{}” no dice qué hacer con qué parte de la página",
        "disabled": "“{}” no se puede usar ahora",
        "empty": "“{}” es necesario y no tiene un valor válido",
        "value": "“{}” no es un valor que sirva ahí",
        "file": "la carpeta de subidas no contiene el archivo “{}”",
        "unshown": "enviado, pero la página no muestra el resultado ({})",
        "refused": "la página contesta “{}”",
        "namesake": "la lista sigue y puede haber más con ese nombre; diga cuál, o “en esta página”",
        "asks": "la página pregunta antes: “{}”",
        "says": "pulsado, y la página dice “{}”, lo que no indica que esté hecho",
    },
}


def explain(
    plans: Sequence[Plan], doubt: Doubt, clause: Clause, language: Language, *, done: bool, seen: Sequence[str]
) -> str:
    """What was understood and what was not, and why not, for the one who said the sentence."""
    spanish = language == "es"
    acts = [describe(act, language) for one in plans if isinstance(one, list) for act in one]
    lines = [] if done else ["No se ha hecho nada." if spanish else "Nothing was done."]
    if acts:
        lines.append(f"{'Entendido' if spanish else 'Understood'}: {'; '.join(acts)}.")
    reason = _REASONS[language][doubt.why].format(doubt.about)
    if doubt.why in ("unshown", "refused", "asks", "says"):
        missed = "No confirmado" if spanish else "Not confirmed"
    else:
        missed = "No entendido" if spanish else "Not understood"
    lines.append(f"{missed}: “{clause.text}”: {reason}.")
    if doubt.why == "unshown" and seen:
        lines.append(f"{'Se ve' if spanish else 'Seen'}: {'; '.join(seen[:3])}.")
    if doubt.near:
        lines.append(f"{'Hay' if spanish else 'There is'}: {', '.join(f'“{name}”' for name in doubt.near)}.")
    return " ".join(lines)
