"""Words of sentences and of pages: which say something, which mean the same, and which nothing explains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from agent3.protocols.nlweb.driver.page_view import Control, PageView
from agent3.sentences.lexicon import BROAD, base_forms, fold, meanings, to_concepts
from agent3.sentences.spans import find_spans

__all__ = [
    "DOING",
    "FILLERS",
    "UNITS",
    "VIEWING",
    "Token",
    "can_mean",
    "find_unexplained",
    "forms_of",
    "is_alike",
    "is_any_of",
    "is_cousin",
    "is_reading",
    "is_same",
    "read_count",
    "read_words",
    "says_row",
    "split_verb",
    "stem_of",
    "words_for_things",
    "words_in",
    "words_of_headings",
    "words_of_places",
    "words_of_row",
]

FILLERS = frozenset(
    "a an the this that these those my your our its of for from to in on at into onto by with as is are be only please"
    " now me us i we want would need should must and it them about just per by was"
    " un una unos unas el la los las lo le les este esta mi mis tu su de del al a en para por con como que y me nos"
    " quiero quisiera necesito favor ahora ser es son sobre solo debe tiene tenga tengan sea seria sera haya se son"
    " have has".split()
)
"""Words that need no explanation."""
UNITS = frozenset("euros euro eur dollars dollar degrees grados percent % € $".split())
DOING = [
    frozenset(line.split())
    for line in """
delete remove erase trash discard drop clear borrar eliminar quitar suprimir vaciar
add put insert include anadir agregar meter poner incluir
create new add make crear nuevo nueva anadir compose redactar
write compose escribir redactar
send submit mail enviar mandar
transfer send transferir enviar mandar
publish post publicar publication
save store keep guardar
edit modify change editar modificar cambiar
search find look show buscar encontrar mostrar
book reserve reservar booking reservation reserva
buy purchase order get comprar pedir
order place pedir encargar
pay pagar abonar payment pago
cancel cancelar anular
open view show see abrir ver mostrar
close cerrar
archive archivar
star favourite favorite destacar
reply answer respond responder contestar
download descargar bajar
upload subir cargar
share compartir
apply use redeem aplicar usar canjear utilizar
block freeze bloquear congelar
unblock desbloquear
assign asignar
invite invitar invitation invitacion
approve accept aprobar aceptar
reject decline rechazar
confirm confirmar
increase raise more aumentar subir incrementar
decrease lower reduce less disminuir reducir bajar
follow seguir
subscribe suscribir subscription suscripcion
rename renombrar
duplicate copy clone duplicar copiar
restore recover restaurar recuperar
print imprimir
export exportar
mark marcar
move mover mueve pasar
read leer
play reproducir
pause pausar
pin fijar anclar
mute silenciar
lock bloquear
unlock desbloquear
register registrar
renew renovar
vote votar
rate valorar puntuar
return devolver
join unir apuntar
log sign entrar iniciar
""".strip().splitlines()
]
"""What the buttons of pages do, a line for each: verbs that may stand for one another."""
VIEWING = frozenset(
    "search find look show buscar encontrar mostrar open view see abrir ver close cerrar play reproducir pause pausar"
    " download descargar print imprimir export exportar read leer edit editar bajar more new nuevo nueva".split()
)
"""Words of them that only show something, or take it out of the page."""
_THINGS = [
    (frozenset(things.split()), frozenset(signs.split()))
    for things, _, signs in (
        line.partition(":")
        for line in """
message mail email correo mensaje: inbox compose reply buzon bandeja redactar subject asunto
task todo item tarea: task todo tarea tareas tasks
product item article producto articulo: cart basket carrito cesta shop
file document archivo fichero documento: file folder upload documents carpeta files archivos
folder carpeta: folder carpeta documents
event appointment meeting cita evento reunion: calendar calendario agenda
home flat house apartment piso casa vivienda: home homes rent house flat piso pisos viviendas
card tarjeta: card tarjeta board tablero
person user member usuario miembro persona: member members user users team miembros usuarios
""".strip().splitlines()
    )
]
"""Words for what the rows of a page are, each with words that a page of such rows has."""
_WORD = re.compile(r"\"[^\"]*\"|[^\s,;:()\"]+")


@dataclass(frozen=True, slots=True)
class Token:
    """A word, or a quoted text; ``start`` and ``end`` are its place in the clause.

    ``names`` is a quoted text in brackets: what something is called on the page, and no value.
    """

    text: str
    plain: str
    quoted: bool
    names: bool
    start: int
    end: int


def read_words(text: str) -> list[Token]:
    """The words of a text; "Bob's" is Bob."""
    return [
        Token(
            match[0].strip('"'),
            re.sub(r"['\u2019]s?$", "", fold(match[0].strip("\".!?¿¡'")).lstrip("#")),
            match[0].startswith('"'),
            match[0].startswith('"') and text[: match.start()].endswith("(") and text.startswith(")", match.end()),
            *match.span(),
        )
        for match in _WORD.finditer(text)
    ]


def split_verb(tokens: Sequence[Token]) -> tuple[str, list[Token]]:
    """The first word that says something, where it is not quoted, and the tokens after it."""
    for number, token in enumerate(tokens):
        if token.quoted:
            break
        if token.plain not in FILLERS:
            return token.plain, [*tokens[number + 1 :]]
    return "", [*tokens]


@lru_cache(maxsize=20_000)
def forms_of(word: str) -> frozenset[str]:
    return frozenset(base_forms(word))


@lru_cache(maxsize=20_000)
def can_mean(verb: str, name: str) -> bool:
    """Whether a verb is what a button of that name does. More and less are not the same, though both change."""
    if is_same(verb, name):
        return True
    one, other = (frozenset(n for n, line in enumerate(DOING) if line & forms_of(word)) for word in (verb, name))
    return (
        bool(one & other)
        or bool(forms_of(verb) & forms_of(name))
        or is_cousin(verb, name)
        or (not one and is_alike(verb, name))
    )


def words_for_things(view: PageView) -> frozenset[str]:
    """What the rows of this page may be called, by the words that are on it."""
    texts = (text for one in view.visible for text in (one.name, *one.columns))
    said = {word for text in (*texts, *view.headings) for word in words_in(text)}
    return frozenset(("one", "row", "entry", "uno", "fila")).union(
        *(things for things, signs in _THINGS if signs & said)
    )


def words_in(text: str) -> list[str]:
    """The words of a name that say something."""
    return [word for word in re.findall(r"\w+", fold(text)) if word not in FILLERS]


@lru_cache(maxsize=20_000)
def stem_of(word: str) -> str:
    """Without the ending of a plural."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-2] if word.endswith(("ches", "shes", "xes", "ores", "ones", "ades")) else word[:-1]
    return word


_PLURALS = re.compile(r"(?<=[ndlrzj])es$")


def is_same(one: str, other: str) -> bool:
    """The same word, in the singular or the plural ("pan" and "panes")."""
    return one == other or stem_of(one) == stem_of(other) or one in _bare_plural(other) or other in _bare_plural(one)


@lru_cache(maxsize=20_000)
def _bare_plural(word: str) -> tuple[str, ...]:
    return (_PLURALS.sub("", word),) if len(word) > 4 else ()


def is_alike(one: str, other: str) -> bool:
    """The same word, a word of the same meaning, or its cousin in the other language."""
    if is_same(one, other):
        return True
    if {one, other} & _NAMING and {one, other} & _TITLES:
        return False
    concept = to_concepts(one)
    return (
        bool((meanings(one) & meanings(other)) - BROAD)
        or (len(concept) == 1 and concept == to_concepts(other))
        or is_cousin(one, other)
    )


_NAMING, _TITLES = frozenset(("name", "nombre")), frozenset(("title", "titulo"))
"""Not the same where both may be asked for."""


def is_cousin(one: str, other: str) -> bool:
    """Whether two words begin with the same letters but for an ending: "invite" and "invitation"."""
    shared = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return shared >= 5 and shared >= max(len(one), len(other)) - 4


def is_any_of(word: str, words: Iterable[str]) -> bool:
    return any(is_alike(word, other) for other in words)


def find_unexplained(
    tokens: Iterable[Token], explained: Iterable[str], things: frozenset[str] = frozenset()
) -> list[Token]:
    """The words that nothing explains. A quoted text is never explained by words, only by a text that is the same."""
    known = [*explained]
    return [
        one
        for one in tokens
        if (fold(one.text) not in known if one.quoted else one.plain not in FILLERS and not is_any_of(one.plain, known))
        and not forms_of(one.plain) & things
        and not (one.names and all(word in known for word in words_in(one.text)))
    ]


def words_of_row(control: Control) -> list[str]:
    return [*words_in(" ".join(control.row)), *_marked_words(control.row), *map(fold, control.row)]


def _marked_words(texts: Iterable[str]) -> list[str]:
    """Words with marks in them, such as the number of an invoice, which are one word to the one who says them."""
    return [
        plain for text in texts for word in text.split() if re.search(r"\w\W+\w", plain := fold(word.strip(".,;:!?")))
    ]


def says_row(tokens: Iterable[Token], control: Control) -> bool:
    """Whether a word of the row that a control stands in is said."""
    known = words_of_row(control)
    return any(
        fold(token.text) in known if token.quoted else any(is_same(token.plain, word) for word in known)
        for token in tokens
    )


def words_of_places(control: Control) -> list[str]:
    texts = [text for texts in control.places for text in texts]
    return [*words_in(" ".join(texts)), *_marked_words(texts), *map(fold, texts)]


def words_of_headings(view: PageView) -> list[str]:
    return [word for text in view.headings for word in words_in(text)]


def is_reading(one: str, other: str) -> bool:
    """The same word, or the same thing in the other language."""
    return is_same(one, other) or (
        not one.isdigit()
        and (to_concepts(one) == to_concepts(other) != [] or bool(meanings(one) & meanings(other) - BROAD))
    )


def read_count(token: Token) -> str | None:
    spans = find_spans(token.text, datetime.now())  # noqa: DTZ005 - only for its numbers
    if token.quoted or len(spans) != 1 or spans[0].kind != "number" or spans[0].unit == "article":
        return None
    return f"{spans[0].value:g}" if (spans[0].start, spans[0].end) == (0, len(token.text)) else None
