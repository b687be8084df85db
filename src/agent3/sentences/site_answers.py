"""What a website says to what was done, in English and Spanish: that it is at it, turns it down, or asks back.

One list for whoever presses a button: the reader of sentences on a page, and actions that verify what came of them.
"""

from __future__ import annotations

import re

from agent3.sentences.lexicon import fold

__all__ = ["ACCEPTED", "ASKS", "HEDGED", "LONGEST_MESSAGE", "PENDING", "REPORTED", "refusals_in"]

LONGEST_MESSAGE = 200
PENDING = re.compile(
    r"^(?:sending|saving|loading|processing|please wait|working|deleting|uploading|enviando|guardando|cargando"
    r"|procesando|espera|un momento|borrando|eliminando)\b.{0,40}$",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|could ?n[o']t|can ?not|can't|unable|not (?:valid|allowed|available|possible|permitted)"
    r"|invalid|required|reject(?:ed)?|denied|declined|incorrect|wrong|missing|must|insufficient|expired|went wrong"
    r"|(?:choose|enter|select|fill|attach|write|provide|pick|add|type|log in|sign in)\b.*\bfirst"
    r"|please (?:choose|enter|select|fill|attach|write|provide|pick|add|type|log|sign|try|correct|check)"
    r"|too (?:short|long|many|few|large|small)|not enough|sold out|out of stock|fully booked|no longer available"
    r"|already (?:an? \w+|taken|exists|in use|used|registered|booked)|try again"
    r"|no se (?:pudo|puede|ha podido|han podido)|no (?:es|son) v[aá]lid[oa]s?|no v[aá]lid[oa]s?|inv[aá]lid[oa]s?"
    r"|incorrect[oa]s?|obligatori[oa]s?|requerid[oa]s?|rechazad[oa]s?|denegad[oa]s?|insuficientes?|falta[n]?|debes?"
    r"|caducad[oa]s?|agotad[oa]s?|no quedan?"
    r"|ya (?:existe|est[aá]|es)|no (?:est[aá]|hay) (?:disponible|saldo|existencias)"
    r"|int[eé]ntalo de nuevo"
    r"|(?:elige|escribe|selecciona|introduce|rellena|adjunta|indica|completa)\b.*\b(?:primero|antes|por favor)"
    r"|por favor,? (?:elige|escribe|selecciona|introduce|rellena|adjunta|indica|completa|revisa))\b",
    re.IGNORECASE,
)
HEDGED = re.compile(
    r"\b(?:(?:did|was|were|has|have|had|could|does|do|is|are|will|would) ?n(?:o|['\u2019])t\b|not (?:yet|done|saved"
    r"|sent|been|go|gone)|hold on|on hold|nothing (?:was|were|is|has|changed|to)|no changes?|timed out|queued?"
    r"|pending|await\w*|waiting for|(?:under|for|in) review|review (?:it|this|your)|be reviewed|will review"
    r"|(?:try|come|check) (?:back|again)|not enough|exceed\w*|sorry|unfortunately|oops|only \w+ (?:can|may)"
    r"|(?:needs?|requires?|required) \w+|approv(?:al|e first)|offline|unavailable|maintenance|locked|suspended|conflict"
    r"|revert\w*|rolled back|draft|verify|verification|two-step|one moment|a moment|almost|still"
    r"|limit (?:is|of|was|reached)|(?:over|above|reached) (?:the|your) limit|log ?in|sign ?in|code we"
    r"|no se \w+|no (?:fue|ha|han|hay|es|tiene|tienes|puedes?|pudimos|hemos)|nada (?:ha )?cambi\w*|en cola"
    r"|pendientes?|en espera|en revisi[oó]n|revisaremos|revisad[oa]|m[aá]s tarde|lo sent\w+|lo siento|ups"
    r"|un momento|espere|sin (?:saldo|cambios|conexi[oó]n|guardar|enviar)|requiere\w*|necesita\w*|aprobaci[oó]n"
    r"|bloquead[oa]|borrador|inicia sesi[oó]n|verifica\w*|l[ií]mite|todav[ií]a|a[u\u00fa]n)(?!\w)",
    re.IGNORECASE,
)
"""What a page says where it has not, or not yet, done what it was asked for."""
_TAKEN = (
    r"success\w*|thanks?|thank you|done|saved|confirmed|received|completed?|welcome|gracias|hecho|listo"
    r"|guardad[oa]s?|confirmad[oa]s?|recibid[oa]s?|completad[oa]s?|bienvenid[oa]s?"
)
"""Words of success that fit whatever was asked for."""
ACCEPTED = re.compile(
    rf"\b(?:{_TAKEN}|added|sent|created|booked|placed|deleted|removed|updated|éxito|añadid[oa]s?|enviad[oa]s?"
    r"|cread[oa]s?|reservad[oa]s?|realizad[oa]s?|eliminad[oa]s?|borrad[oa]s?|actualizad[oa]s?)\b",
    re.IGNORECASE,
)
"""What a page says that has taken something, for one who cannot tell what that was: any deed will do."""
REPORTED = re.compile(
    rf"\b(?:{_TAKEN}|all set|confirmation|congratulations|accepted|(?:order|booking|ticket|reference|request)"
    r" (?:number|no|id)|correctamente|con [eé]xito|aceptad[oa]s?|enhorabuena)\b|[\u2713\u2714\u2705]",
    re.IGNORECASE,
)
"""The same for one who knows the deed, and finds it in a message by its own word: "Draft deleted" sends no order."""
ASKS = re.compile(
    r"\b(?:sure|really|confirm|proceed|segur[oa]s?|de verdad|confirma\w*|continuar)\b[^?]{0,120}\?|again to confirm",
    re.IGNORECASE,
)
"""A question back, before anything is done."""


def refusals_in(line: str, pressed: str) -> list[str]:
    """The words that turn something down. "Rejected" does not where "Reject" was pressed: that is what was asked."""
    asked = [word for word in re.findall(r"\w+", fold(pressed)) if len(word) > 3]
    found = [match[0] for match in _REFUSED.finditer(line)] if len(line) < LONGEST_MESSAGE else []
    return [said for said in found if " " in said or not any(fold(said).startswith(word[:-1]) for word in asked)]
