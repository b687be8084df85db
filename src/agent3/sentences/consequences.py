"""Words that speak of consequences, in English and Spanish: the one list of them.

Whoever presses a button reads it here: the reader of sentences asks a person first, a recording is marked, and healing
never takes a control for one that did not say so. A line holds the words of one meaning.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

from agent3.sentences.lexicon import fold

__all__ = ["CONSEQUENTIAL", "DECEPTIVE", "GRAVE", "find_new", "has_consequences", "says_more"]


def _read(*tables: str) -> dict[str, str]:
    """Each word with the first of its line, which stands for the meaning."""
    lines = [line.split() for table in tables for line in table.strip().splitlines()]
    return {word: line[0] for line in lines for word in line}


_SURE = """
pay pagar paga pague pagas abonar abona
buy purchase comprar compra compre
delete remove erase destroy wipe borrar borra borre eliminar elimina elimine suprimir suprime empty vaciar vacia
cancel cancelar cancela cancele anular anula anule
transfer transferir transfiere transfiera
unsubscribe desuscribir desuscribirse
withdraw retirar retira
donate donar dona
discard descartar descarta
terminate
"""
_STEPS = """
checkout
confirm confirmar confirma confirme
"""
"""They have consequences, and also lead to the page before them."""
_ALSO_PLACES = """
order pedir pide encargar encarga tramitar tramita contratar contrata finalizar finaliza
subscribe suscribir suscribirse suscribete
register signup registrarse registrate
reserve reservar reserva
publish post publicar publica
apply
vote votar
bid pujar puja
refund reembolsar reembolso
"""
"""On a button they say what it does; a link of that name may lead to a place."""
_ALSO_SEARCHES = """
send submit enviar envia
book
"""
"""Buttons of forms that only ask something bear these names too."""
_DECEPTIVE = """
reset restablecer
close cerrar
logout
block bloquear
report denunciar
upgrade
premium
advertisement sponsored patrocinado
"""
"""No consequences, but nothing is taken for these that did not say so before."""

_LINK, _ASKING = frozenset(_read(_SURE, _STEPS)), frozenset(_read(_SURE, _STEPS, _ALSO_PLACES))
CONSEQUENTIAL: Mapping[str, str] = _read(_SURE, _STEPS, _ALSO_PLACES, _ALSO_SEARCHES)
"""All of them, each with its meaning."""
GRAVE: Mapping[str, str] = _read(_SURE) | {word: sense for word, sense in CONSEQUENTIAL.items() if sense == "refund"}
"""What cannot be taken back: no step does it by a selector that meant something else."""
DECEPTIVE: Mapping[str, str] = {**GRAVE, **_read(_DECEPTIVE)}
"""What nothing is ever taken for that did not say it before."""


def says_more(agreed: str, question: str) -> bool:
    """Whether a question is about more than was said yes to: other consequences or numbers, or nothing was agreed."""
    known, asked = (frozenset(re.findall(r"\w+", fold(text))) for text in (agreed, question))
    numbers = {word for word in asked - known if word.isdigit()}
    return not agreed or bool(numbers or find_new(CONSEQUENTIAL, known, asked))


def find_new(senses: Mapping[str, str], before: Iterable[str], after: Iterable[str]) -> str:
    """A word of ``after`` whose meaning is none of ``before``, of those with ``senses``; empty if there is none."""
    known = {senses.get(word) for word in before}
    return min((word for word in after if word in senses and senses[word] not in known), default="")


_JOINED = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LATIN, _OTHER = re.compile("[A-Za-z]"), re.compile("[\u0370-\u1fff]")


def has_consequences(text: str, *, link: bool = False, asks: bool = False) -> bool:
    """Whether the words of a button say so; of a ``link``, or of the button of a form that ``asks`` (GET), fewer do."""
    parted = _JOINED.sub(" ", unicodedata.normalize("NFKD", text))
    said = re.findall(r"[a-z]+", parted.encode("ascii", "ignore").decode().lower())
    if {"account", "cuenta"} & {*said} and {"close", "cerrar", "cierra", "deactivate", "desactivar"} & {*said}:
        return True
    if any(_LATIN.search(word) and _OTHER.search(word) for word in re.findall(r"[^\W\d_]+", parted)):
        return True  # a word of two scripts wants to be taken for another
    return not frozenset(said).isdisjoint(_LINK if link else _ASKING if asks else CONSEQUENTIAL)
