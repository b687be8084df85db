"""Which words speak of consequences: what such a button does cannot be taken back, so a person is asked first.

It knows words only, in English and Spanish. An interface says more of its own website by its hints.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["has_consequences"]

_SURE = frozenset(
    "buy pay checkout purchase delete remove cancel transfer confirm unsubscribe withdraw donate erase "
    "comprar compra pagar paga borrar borra eliminar elimina cancelar cancela transferir transfiere confirmar confirma "
    "donar dona".split()
)
_ALSO_PLACES = frozenset(
    "order subscribe register signup reserve publish post apply vote "
    "pedir pide reservar reserva suscribir suscribirse registrarse publicar votar".split()
)
"""On a button they say what it does; a link of that name may lead to a place."""
_ALSO_SEARCHES = frozenset("send submit book enviar envia".split())
"""Buttons of forms that only ask something bear these names too."""


def has_consequences(text: str, *, link: bool = False, asks: bool = False) -> bool:
    """Whether the words of a button say so; of a ``link``, or of the button of a form that ``asks`` (GET), fewer do."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    said = frozenset(re.findall(r"[a-z]+", plain))
    words = _SURE | (frozenset() if link else _ALSO_PLACES) | (frozenset() if link or asks else _ALSO_SEARCHES)
    return bool(said & words)
