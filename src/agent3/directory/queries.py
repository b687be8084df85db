"""A query as weighted terms: its words, and what is added to them.

Additions help a word and never replace it: the kinds of things that are in the text (a date, an amount, a file),
words that people use for the same thing, and for a word that nobody uses, those that are spelled almost like it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from agent3.directory.words import Language, detect_language, is_empty, spell, stem

__all__ = ["PAIRS", "Query", "Terms", "read_query"]

_LONGEST = 4_000
"""Characters of a query that are looked at: what a long message is about, it says first."""
_MOST_WORDS = 64
"""Different words of a query that are looked for."""
_KIND, _PAIR, _NEIGHBOUR = 0.4, 0.6, 0.5
_MOST_NEIGHBOURS = 6
_MOST_CORRECTED = 12
"""Words that nobody uses whose neighbours are looked for: a query with more of them is no misspelt one."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_KINDS = tuple(
    (re.compile(pattern, re.IGNORECASE), kinds.split())
    for pattern, kinds in (
        (r"\b\d{4}-\d\d?-\d\d?\b|\b\d\d?[/.]\d\d?[/.]\d{2,4}\b", "date"),
        (r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\b", "date"),
        (r"\b(?:today|tomorrow|yesterday|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b", "date"),
        (r"\b(?:hoy|mañana|ayer|lunes|martes|miércoles|jueves|viernes|sábado|domingo)\b", "date fecha"),
        (r"\b\d\d?:\d\d\b|\b\d\d? ?(?:am|pm)\b", "time"),
        (r"[$€£¥] ?\d|\b\d[\d.,]* ?(?:usd|eur|gbp|dollars?|euros?|pounds?)\b", "amount currency price"),
        (r"\b[\w.+-]+@[\w-]+\.\w+", "email"),
        (r"\bhttps?://|\bwww\.", "url"),
        (r"-?\d{1,3}\.\d{2,}\s*,\s*-?\d{1,3}\.\d{2,}", "latitude longitude coordinates location"),
        (
            r"(?:^|\s)(?:[\w.~-]*/)+[\w.-]+|\b[\w-]+\.(?:txt|pdf|csv|json|xlsx?|docx?|md|py|png|jpe?g|mp[34])\b",
            "file path",
        ),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ip address"),
        (r"#[0-9a-f]{6}\b", "color"),
    )
)

_BESIDE = ("date", "time", "amount")
"""Kinds that a request has beside what it is about: "who won yesterday" is about no capability that takes a date."""

# Words that people use for the same thing. Both find each other; several on a line all do.
_SAME = """
repo repository | photo image picture | folder directory | rain weather | snow weather | sunny weather | buy
purchase | movie film | car vehicle | doctor physician | flat apartment | job work career | song music track |
lyrics song | mail email | meeting event appointment | delete remove | create add new | edit update modify | change
update | find search | lookup search | fetch retrieve | reserve book | reservation booking | trip travel | flight
airline | hotel accommodation sleep | railway train | hungry eat food | vacation holiday trip | restaurant food |
recipe cook | stock share | crypto cryptocurrency | bitcoin cryptocurrency | money currency | convert exchange |
translate language | translation language | dictionary definition | meaning definition | synonym word | news article
headline | headline news | paper article | author writer | tv television | game play | score result | match game |
team club | player athlete | football soccer | draw image | resize image | screenshot image | video clip | youtube
video | tweet twitter | post message | chat message | text message sms | call phone | phone telephone | contact
person | people person | user account | login sign | password credential | pay payment | bill invoice | cost price |
cheap price | rate price | discount coupon | deal offer | order purchase | shop store | product item | shipping
delivery | package parcel | track status | address location | place location | map location | near nearby | distance
route | directions route | drive route | city location | town city | country nation | zip postal | timezone time |
clock time | hour time | calendar schedule | remind reminder | todo task | task issue | bug issue | ticket issue |
commit git | branch git | code source | run execute | script code | database sql | query sql | table database | row
record | column field | log logs trace | error exception | server host | site website | webpage website page | page
url | link url | browse web | website web | download file | upload file | document file | pdf document | spreadsheet
excel | sheet spreadsheet | slide presentation | summary summarize | shorten summarize | sentiment emotion | feel
emotion | random generate | compute calculate | math calculate | sum add | average mean | graph chart | plot chart |
diagram chart | temperature weather | forecast weather | climate weather | health medical | illness disease | sick
disease | drug medicine | medication medicine | fitness exercise | workout exercise | calories nutrition | diet
nutrition | pet animal | dog animal | cat animal | house property | home property | rent property | loan mortgage |
tax income | salary income | university college | school education | course class | lesson course | student learner
| exam test | quiz question | joke humor | funny humor | quote saying | review rating | horoscope zodiac | moon
astronomy | planet astronomy | earthquake disaster | air pollution | cloud storage | container docker | age birthday
| due deadline | begin start | end stop | halt stop | launch start | copy duplicate | rename name | send transfer |
publish post | share send | write save | store save
"""

# What Spanish words are called in English, where most cards are written; the first of each finds the others.
_SPANISH = """
carpeta folder directory | archivo file | fichero file | foto photo image | imagen image | vídeo video | correo
email | mensaje message | reunión meeting event | cita appointment event | calendario calendar | hora time | hoy
today | mañana tomorrow | fecha date | tiempo weather time | clima weather | lluvia rain weather | llover rain
weather | amanece sunrise | vuelo flight | volar flight | hotel hotel | alojamiento accommodation hotel | dormir
sleep hotel | vacación holiday trip | ferrocarril railway train | viaje trip travel | tren train | coche car |
billete ticket | entrada ticket | reservar book reserve | reserva reservation booking | comprar buy purchase |
compra purchase | pedido order | pedir order | tienda shop store | precio price | dinero money currency | cambio
exchange | divisa currency | convertir convert | pagar pay | pago payment | factura invoice | cuenta account |
usuario user | contraseña password | cliente customer client | buscar search find | encontrar find | crear create |
añadir add | borrar delete remove | eliminar delete remove | quitar remove | cambiar change update | actualizar
update | editar edit | mover move | copiar copy | renombrar rename | enviar send | mandar send | leer read |
escribir write | guardar save | abrir open | cerrar close | lista list | listar list | contar count | parar stop |
apagar off stop | encender on | arrancar start run | ejecutar run execute | luz light | canción song music | música
music | película movie film | noticia news | libro book | receta recipe | comida food meal | comer food restaurant |
restaurante restaurant | tarea task | recordatorio reminder | recordar remember reminder | nota note | idioma
language | traducir translate | palabra word | significado meaning definition | resumen summary | resumir summarize
| mapa map | ruta route directions | distancia distance | dirección address | ciudad city | país country | lugar
place location | cerca near nearby | tabla table | columna column | fila row | consulta query | base database |
registro record log | servidor server | página page | web website | enlace link url | descargar download | subir
upload | contenedor container | puerto port | rama branch | código code | error error | fallo error failure |
incidencia issue | canal channel | equipo team | paquete package parcel | envío shipping | salud health | médico
doctor | medicina medicine | ejercicio exercise | peso weight | calcular calculate | suma sum add | acción stock
share | bolsa stock market | partido match game | jugador player | juego game | pizza pizza | hablar speech | voz
voice | grabar record | imprimir print | pantalla screen | mostrar show | perro dog | gato cat | casa house home |
alquiler rent | trabajo job work | empleo job | persona person | amigo friend | grupo group | versión version |
tamaño size | dibujar draw image | dibujo drawing image | cuento story | historia story history | hambre hungry food
| nombre name | número number | nuevo new | último latest last
"""


def _pairs() -> dict[str, frozenset[str]]:
    same: dict[str, set[str]] = {}
    for group in _SAME.split("|"):
        members = [stem(word) for word in group.split()]
        for member in members:
            same.setdefault(member, set()).update(other for other in members if other != member)
    for group in _SPANISH.split("|"):
        word, *others = group.split()
        (plain,) = spell(word)
        for form in {stem(plain, "spanish"), stem(plain)}:
            same.setdefault(form, set()).update(stem(other) for other in others)
    return {member: frozenset(others) for member, others in same.items()}


PAIRS: Mapping[str, frozenset[str]] = _pairs()


class Query(NamedTuple):
    """The terms to look for with their weights, and the words of the query behind each."""

    weights: Mapping[str, float]
    words: Mapping[str, str]


class Terms(Protocol):
    """The terms of all documents."""

    def count(self, term: str) -> int:
        """How many documents hold a term."""
        ...

    def starting_with(self, start: str) -> list[str]:
        """Some terms that begin so."""
        ...

    def among(self, candidates: set[str]) -> set[str]:
        """Those of the candidates that are terms: one question for hundreds."""
        ...


def read_query(text: str, terms: Terms) -> Query:
    """What to look for, given what there is."""
    text = text[:_LONGEST]
    language = detect_language(text)
    counts = Counter(word for word in spell(text) if not is_empty(word, language))
    weights: dict[str, float] = {}
    said: dict[str, str] = {}

    def add(term: str, weight: float, word: str) -> None:
        if weight > weights.get(term, 0.0):
            weights[term] = weight
            said[term] = word

    additions: list[tuple[str, float, str]] = []
    corrected = 0
    for word, count in list(counts.items())[:_MOST_WORDS]:
        worth = 1.5 * count / (count + 0.5)
        term = _known_stem(word, language, terms)
        if term is not None:
            add(term, worth, word)
        elif corrected < _MOST_CORRECTED:
            corrected += 1
            additions += [(near, _NEIGHBOUR * worth, word) for near in _neighbours(word, terms)]
        others = PAIRS.get(stem(word, language)) or PAIRS.get(stem(word), frozenset())
        additions += [(other, _PAIR * worth, word) for other in others]
    is_about = bool(weights) or any(terms.count(term) for term, _, _ in additions)
    for pattern, kinds in _KINDS:
        if (is_about or kinds[0] not in _BESIDE) and (found := pattern.search(text)):
            additions += [(stem(kind), _KIND, found[0].strip()[:40]) for kind in kinds]
    for term, weight, word in additions:
        if terms.count(term):
            add(term, weight, word)
    return Query(weights, said)


def _known_stem(word: str, language: Language, terms: Terms) -> str | None:
    """The stem of a word that documents hold. Short queries hide their language, so that both are tried."""
    other: Language = "spanish" if language == "english" else "english"
    return next((term for term in (stem(word, language), stem(word, other)) if terms.count(term)), None)


def _neighbours(word: str, terms: Terms) -> list[str]:
    """Known terms that go on where the word ends, or are one letter away from it; the most used first."""
    if len(word) < 4 or word.isdigit():
        return []
    root = stem(word)
    near = {term for start in {word, root} if len(start) >= 4 for term in terms.starting_with(start)}
    near |= terms.among({term for form in {root, word} for term in _one_edit(form)})
    near |= terms.among(set(map(stem, near)))
    return sorted(near, key=lambda term: (-terms.count(term), term))[:_MOST_NEIGHBOURS]


def _one_edit(word: str) -> Iterator[str]:
    """Every text that is one letter left out, added, changed or swapped away; the first letter is mostly right."""
    for at in range(1, len(word)):
        head, tail = word[:at], word[at:]
        yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            yield head + letter + tail[1:]
    for letter in _LETTERS:
        yield word + letter
    yield word[1:]
