"""The words of commands, in English and Spanish: which of them mean the same, and which mean nothing.

A word is reduced to its concept, so that ``buscar``, ``find`` and ``look up`` are equal. It is a short list of what
people say to websites, not a dictionary: the rest is left to the embeddings. Words of consequences are in
``consequences``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from agent3.sentences.synonyms import MEANINGS
from agent3.sentences.translations import NOUNS, VERBS
from agent3.sentences.word_forms import words

__all__ = [
    "BROAD",
    "EMPTY",
    "Language",
    "base_forms",
    "detect_language",
    "fold",
    "fold_letters",
    "is_action",
    "is_cognate",
    "is_common",
    "is_english",
    "is_known",
    "is_phrase",
    "is_translation",
    "meanings",
    "same_stem",
    "things",
    "to_concept",
    "to_concepts",
    "ways_to_say",
]  # fmt: skip

Language = Literal["en", "es"]

_ACCENT = re.compile("[\u0300-\u036f]")

_SYNONYMS = """
search find look lookup show list see browse discover seek locate buscar busca busque encontrar encuentra mostrar
search muestra ver listar consultar consulta localizar localiza buscame ensename
buy purchase order acquire comprar compra pedir pide encargar encarga adquirir
book reserve reservar reserva reservame booking reservation
cancel cancelar cancela anular anula cancelation
delete remove erase trash discard borrar borra eliminar elimina quitar quita suprimir
add put insert anadir anade agregar agrega poner pon meter mete
open go visit enter abrir abre ir visitar visita
send mail deliver enviar envia mandar manda
reply answer respond responder responde contestar contesta
forward reenviar reenvia
pay checkout pagar paga abonar
login signin log sign iniciar entrar acceder
logout signout salir
register signup subscribe registrar registrarse suscribir suscribirse
create make new crear crea nuevo nueva hacer
update change edit modify actualizar cambiar cambia modificar editar edita
compare comparar compara
track follow seguir rastrear rastrea sigue
status estado state
check verify comprobar comprueba revisar revisa
download descargar descarga bajar
upload subir sube cargar
share compartir comparte
rate review valorar valora puntuar resena opinion
flight vuelo plane fly volar airplane
hotel alojamiento accommodation hostel
room habitacion cuarto
car coche carro auto
train tren
bus autobus
ticket billete boleto entrada pasaje
seat asiento plaza
table mesa
restaurant restaurante
product item articulo producto thing goods cosa
cart basket carrito cesta carro
price cost precio coste costo fare tarifa
cheap cheapest inexpensive barato barata
offer deal discount oferta descuento promocion
weather forecast tiempo clima pronostico
news noticia headline
article articulo post
movie film pelicula
song cancion music musica
book libro
shoe zapato zapatilla sneaker
customer client cliente
user usuario account cuenta
message mensaje
email mail correo
meeting appointment reunion cita
event evento
calendar calendario
address direccion
phone telefono
order pedido
return devolver devolucion refund reembolso
passenger traveler traveller pasajero viajero
person people guest persona huesped comensal
adult adulto
child children kid nino
night noche
day dia
week semana
month mes
date fecha
time hora
city ciudad
country pais
origin origen departure salida
destination destino arrival llegada
economy turista economica
business negocios ejecutiva
first primera
red rojo roja
blue azul
green verde
black negro negra
white blanco blanca
yellow amarillo amarilla
small pequeno pequena
medium mediano mediana
large big grande
yes si
"""
_EMPTY = """
a an and are as at be by can could do for from get give hello hey hi how i in into is it let me my need of on or our
please some that the their them then there this to up us want wants we what when where which will with would you your
al algo con cual cuando de del desde donde el ella en es esta este esto hacia hasta hay hola la las le lo los me mi
necesito o para por porfavor favor puedes podria que quiero quisiera se su sus te tu un una unas uno unos y yo
"""
EMPTY = frozenset(_EMPTY.split())
"""Words that say nothing of what is wanted."""

_ENGLISH = frozenset(
    "the a an and of on in for to from with by me my please find search book buy show tomorrow today next at is".split()
)
_SPANISH = frozenset(
    "el la los las un una unos unas y de del en para por desde hasta con mi por favor buscar busca comprar reservar "
    "mañana hoy próximo próxima que al quiero ver vuelo vuelos ningún ninguna nada nunca está están sí "
    "vale qué cuál cómo crea crees borra borres pon haz hagas cancela canceles olvídalo déjalo gracias "
    "sin titulado durante sobre entre como cuando cuánto cuánta cuántos dónde a quien lo le les se su sus tu tus este "
    "esta estos estas ese esa muy más menos o también ya todos todas si pero porque hazlo hazme dame dime ponme ponte "
    "necesito necesitamos ayuda ahora luego ayer anoche nadie nada nunca jamás mejor tampoco todavía aún otra otro "
    "otras otros vez veces dos tres cuatro cinco seis siete ocho nueve diez lunes martes miércoles jueves viernes "
    "sábado domingo enero febrero abril junio julio agosto septiembre octubre noviembre diciembre noche tarde semana "
    "mes hora horas minutos".split()
)
_SHARED = frozenset("a me no en".split())
_NO_VERBS = frozenset("circular popular regular celular titular azucar estandar".split())
_ENGLISH_VERBS = frozenset(
    "create make add open send post write set update change move rename delete remove cancel get show find search list "
    "read run start stop schedule book order buy pay invite assign merge close upload download give tell put take "
    "draw generate play turn transfer refund convert translate".split()
)


# Each word with the first of its line; of a word with two meanings the first line wins.
_CONCEPTS: dict[str, str] = {}
for _line in _SYNONYMS.splitlines():
    _known = [word for text in _line.split() for word in words(text)]
    for _word in _known:
        _CONCEPTS.setdefault(_word, _known[0])


def fold(text: str) -> str:
    """Without case and accents."""
    return text.lower() if text.isascii() else _ACCENT.sub("", unicodedata.normalize("NFKD", text)).casefold()


def fold_letters(text: str) -> str:
    """Folded letter by letter, so that positions stay those of the text."""
    return text.lower() if text.isascii() else "".join((fold(letter) or letter)[0] for letter in text)


def to_concept(word: str) -> str:
    """What a word, reduced as for search, stands for."""
    return _CONCEPTS.get(word, word)


def to_concepts(text: str) -> list[str]:
    """What the words of a text stand for, in order, without the empty ones."""
    return [to_concept(word) for word in words(text) if word not in EMPTY]


def detect_language(text: str) -> Language:
    """English, unless there are more Spanish words in it. What is quoted, and an address, tells nothing."""
    plain = _TELLS_NOTHING.sub(" ", text[:_LONGEST_TOLD])
    said = re.findall(r"[^\W\d_]+", plain.casefold())
    spanish = 2 * any(mark in plain for mark in "¿¡ñ")
    english = 0
    for number, word in enumerate(said):
        if word in _SHARED:
            continue
        if word in _SPANISH or fold(word) in _SPANISH_PLAIN:
            spanish += 2
        elif word in _ENGLISH:
            english += 2
        elif word in _ENGLISH_VERBS:
            english += 2 if number == 0 else 1
        elif _is_spanish_word(word):
            spanish += 1
        elif word in _ENGLISH_HEADS or word in _ENGLISH_ACTIONS:
            english += 1
    spanish += bool(said) and said[0] not in _ENGLISH_VERBS and bool(re.search("[áéíóú]", plain))
    return "es" if spanish > english else "en"


_LONGEST_TOLD = 2_000
_TELLS_NOTHING = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|`[^`]*`|\S+[@/\\]\S+|\S*[\d_]\S*")


@lru_cache(maxsize=20_000)
def _is_spanish_word(word: str) -> bool:
    """Whether the dictionary has a word, in small letters, as Spanish, and not as English too."""
    plain = fold(word)
    if plain in _SPANISH_NOUNS:
        return True
    return _is_spanish_verb(plain)


def is_english(text: str, verb: str) -> bool:
    """Whether a command is English for certain: it has words that only English has, and none of Spanish."""
    said = set(re.findall(r"\w+", text.casefold()))
    if said & (_SPANISH - _SHARED) or any(mark in text for mark in "¿¡ñ"):
        return False
    return bool(said & (_ENGLISH - _SHARED)) or verb in _ENGLISH_VERBS


def is_telling(text: str) -> bool:
    """Whether a text has a word by which its language can be told."""
    said = re.findall(r"\w+", text.casefold())
    if any(mark in text for mark in "¿¡ñ") or any(word in _SPANISH or word in _ENGLISH for word in said):
        return True
    return bool(said) and (said[0] in _ENGLISH_VERBS or _is_spanish_verb(fold(said[0])))


# The meanings of words for tools: a word may have several, and is met in any of its forms.

BROAD = frozenset(
    "set send create read write run add update notify fetch post turn play convert list log request start stop save "
    "move delete search track submit".split()
)
"""Meanings of many verbs each: good enough to tell what a capability does, not for what a parameter is called."""


def _entries(text: str) -> list[list[str]]:
    """The words of each entry of a word list."""
    return [found for entry in re.split(r"[;\n]", text) if (found := entry.split())]


_MEANINGS: dict[str, set[str]] = {}
_PHRASES: dict[str, set[tuple[str, ...]]] = {}
_SYNONYMS_OF: dict[str, list[tuple[str, ...]]] = {}
for _members in _entries(MEANINGS):
    _alike = tuple(_member for _member in _members if "_" not in _member)
    for _member in _members:
        _SYNONYMS_OF.setdefault(_member, []).append(_alike)
        _MEANINGS.setdefault(_member, set()).add(_members[0])
        if _members[0] not in BROAD:
            _PHRASES.setdefault(_member, set()).update(tuple(other.split("_")) for other in _members)
_ENGLISH_OF: dict[str, set[str]] = {}
"""What each word of the dictionary is in English; an English one is itself."""
_NOUNS = {_word for _members in _entries(NOUNS) for _word in _members}
_DOINGS = {_word for _members in _entries(VERBS) for _word in _members} - _MEANINGS.keys()
"""Verbs of the dictionary that mean nothing else."""
for _members in _entries(f"{NOUNS};{VERBS}"):
    for _member in _members:
        if _member in _NOUNS or _member in _DOINGS:
            _ENGLISH_OF.setdefault(_member, set()).update((_members[0], *words(_members[0])))
_VERBS = BROAD | frozenset(
    "draw book buy pay cancel open close rename copy restart on off load pause lock translate calculate multiply "
    "divide "
    "subtract count sort filter resize rotate crop compress extract merge split schedule remind invite assign resolve "
    "lookup scale forward download upload share rate compare check reply register subscribe unsubscribe renew activate "
    "deactivate archive restore approve reject confirm review link attach join leave follow watch monitor measure "
    "estimate predict analyze classify detect summarize explain describe choose validate verify scan encrypt decrypt "
    "encode decode format parse clean empty fill replace swap duplicate sync refresh reload reset undo redo skip "
    "resume "
    "continue repeat finish complete begin wake ring call contact visit rent lend borrow cook charge spend earn invest "
    "withdraw deposit donate sell hire deploy build test install import export print roll generate force simulate "
    "redeem transition backup "
    "publish append insert answer transfer deliver ship click press scroll paste cut trim keep adjust "
    "refund".split()
)
_ACTIONS = _VERBS | {_word for _members in _entries(MEANINGS) for _word in _members if _members[0] in _VERBS} | _DOINGS
_ENGLISH_ACTIONS = _VERBS | {_members[0] for _members in (*_entries(NOUNS), *_entries(VERBS))}
_SPANISH_VERBS = {
    _word for _members in _entries(VERBS) for _word in _members[1:] if _word.endswith(("ar", "er", "ir"))
} - _ENGLISH_ACTIONS
_ENGLISH_HEADS = {_members[0] for _members in _entries(f"{MEANINGS};{NOUNS};{VERBS}")}
_SPANISH_VERBS |= {
    _word
    for _members in _entries(MEANINGS)
    for _word in _members[1:]
    if re.fullmatch(r"[a-z]{3,}(?:[^ei]ar|ir)", _word) and _word not in _ENGLISH_HEADS | _ENGLISH_ACTIONS | _NO_VERBS
}
_SPANISH_PLAIN = frozenset(fold(_word) for _word in _SPANISH)
_SPANISH_NOUNS = {
    _word
    for _members in _entries(NOUNS)
    for _word in _members[1:]
    if "_" not in _word and _word not in _ENGLISH_ACTIONS
} - _ENGLISH_HEADS
_ENCLITIC = re.compile(r"(?<=\w{3})(?:(?:me|te|se|nos)(?:l[oae]s?)?|l[oae]s?)$")


def synonyms(word: str) -> frozenset[str]:
    """The other words of the entries that a word, folded and as it stands, is in."""
    return frozenset(other for entry in _SYNONYMS_OF.get(word, ()) for other in entry if other != word)


@lru_cache(maxsize=20_000)
def meanings(word: str) -> frozenset[str]:
    """What a word, folded, may mean to a tool: of all its forms that are known, or the word itself."""
    found: set[str] = set()
    for form in base_forms(word):
        found |= _MEANINGS.get(form, set()) | _ENGLISH_OF.get(form, set())
    return frozenset(found | {*words(word)[:1]} | {word})


def _is_spanish_verb(word: str) -> bool:
    """Whether a word, folded, is a form of a Spanish verb of the dictionary, and no English word that it knows."""
    return (
        word not in _ENGLISH_ACTIONS and word not in _ENGLISH_VERBS and not _SPANISH_VERBS.isdisjoint(base_forms(word))
    )


@lru_cache(maxsize=20_000)
def is_translation(word: str, other: str) -> bool:
    """Whether the dictionary has a word, folded, or what it is a form of, as the Spanish for another."""
    english = {one for form in base_forms(word) for one in _ENGLISH_OF.get(form, ())}
    return word != other and not english.isdisjoint(base_forms(other))


@lru_cache(maxsize=20_000)
def things(word: str) -> frozenset[str]:
    """What a word, folded, may mean as a noun: "the file" is a document, whatever "to file" may mean."""
    return frozenset(one for one in meanings(word) if one == word or one not in _VERBS)


@lru_cache(maxsize=20_000)
def same_stem(word: str, other: str) -> bool:
    """Whether two words, folded, are forms of one that is in no list: "levels" and "level"."""
    common = {form for form in base_forms(word) if len(form) > 3} & {
        form for form in base_forms(other) if len(form) > 3
    }
    return any(word.startswith(form[:-1]) and other.startswith(form[:-1]) for form in common)


_LATIN = re.compile(
    r"(?:aciones|acion|ciones|cion|siones|sion|ations?|tions?|sions?|idades|idad|ities|ity|mente|ables?|ibles?|icos?"
    r"|icas?|ics?|ical|ales?|als?|antes?|entes?|ants?|ents?|arios?|arias?|aries|ary|ivos?|ivas?|ives?|adores?|ador"
    r"|ators?|ores?|ors?|ates?|ed|izar|ize|ise|ados?|adas?|ar|er|ir|an|en|as|es|os|a|e|o|s|y)"
)
"""Endings that English and Spanish words of one Latin root differ by."""
_ONE_SOUND = (
    ("ciones", "tions"),
    ("cion", "tion"),
    ("ador", "ator"),
    ("ph", "f"),
    ("qu", "c"),
    ("th", "t"),
    ("y", "i"),
    ("k", "c"),
)
_DOUBLED = re.compile(r"([a-z])\1")


@lru_cache(maxsize=20_000)
def is_cognate(word: str, other: str) -> bool:
    """Whether two words, folded, one in each language, are of one root: "transcripcion" and "transcript"."""
    if min(len(word), len(other)) < 5 or word[0] != other[0]:
        return False
    one, two = _latin_root(word), _latin_root(other)
    shorter, longer = sorted((one, two), key=len)
    return one == two or (len(shorter) >= 7 and longer.startswith(shorter))


@lru_cache(maxsize=20_000)
def _latin_root(word: str) -> str:
    for written, sound in _ONE_SOUND:
        word = word.replace(written, sound)
    word = _DOUBLED.sub(r"\1", word)
    for _ in range(2):
        cuts = (cut for cut in range(5, len(word)) if _LATIN.fullmatch(word, cut))
        word = word[: next(cuts, len(word))]
    return word


@lru_cache(maxsize=4096)
def ways_to_say(text: str) -> frozenset[tuple[str, ...]]:
    """The rows of words, folded, that stand for a short text such as an option: its own words first of all."""
    plain = tuple(fold(word) for word in re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)))
    key = "_".join(plain)
    return frozenset({plain, *_PHRASES.get(key, ())})


def is_common(word: str) -> bool:
    """Whether a word, folded, or what it is a form of, is one that tools and people have for something."""
    return any(form in _MEANINGS for form in base_forms(word))


def is_known(word: str) -> bool:
    """Whether a word, folded, or what it is a form of, stands in any of the lists."""
    return is_common(word) or any(form in _ENGLISH_OF for form in base_forms(word))


def is_action(word: str) -> bool:
    """Whether a word, folded, can say what to do. A noun that looks like a form of a verb is none: "vuelos"."""
    if word.removesuffix("s") in _NOUNS and word.endswith("s"):
        return word in _ACTIONS
    return any(form in _ACTIONS for form in base_forms(word))


def is_phrase(*said: str) -> bool:
    """Whether these words, folded, are one thing together: "living room"."""
    return "_".join(said) in _PHRASES


def base_forms(word: str) -> Iterator[str]:
    """The word, and what it may be a form of: plurals, verbs of both languages, Spanish genders and pronouns."""
    stems = {word, _ENCLITIC.sub("", word)}
    for stem in [*stems]:
        for ending, instead in (("ies", "y"), ("ces", "z"), ("es", ""), ("s", ""), ("en", "e"), ("an", "a")):
            if len(stem) > len(ending) + 1 and stem.endswith(ending):
                stems.add(stem.removesuffix(ending) + instead)
    for stem in [*stems]:
        for ending in ("ingly", "mente", "ing", "ed", "ly"):
            if len(stem) > len(ending) + 2 and stem.endswith(ending):
                cut = stem.removesuffix(ending)
                stems |= {cut, f"{cut}e", f"{cut}o"} | ({cut[:-1]} if cut[-1:] == cut[-2:-1] else set())
        if len(stem) > 3 and stem[-1] in "aeo":
            root = stem[:-1]
            roots = {root, *(root[: -len(end)] + base for end, base in _SPELLINGS if root.endswith(end))}
            for old, new in (("ue", "o"), ("ie", "e")):
                roots |= {new.join(each.rsplit(old, 1)) for each in roots if old in each}
            stems |= {f"{each}{end}" for each in roots for end in ("ar", "er", "ir", "o", "a")}
            stems |= {f"{'e'.join(each.rsplit('i', 1))}ir" for each in roots if "i" in each}  # "pide" is of "pedir"
        if stem.endswith(("ado", "ada", "ido", "ida")):
            stems |= {f"{stem[:-3]}{end}" for end in ("ar", "er", "ir")}
        if stem.endswith(("ando", "endo")) and len(stem) > 6:
            stems |= {f"{stem.removesuffix('ando').removesuffix('iendo')}{end}" for end in ("ar", "er", "ir")}
    yield from stems


_SPELLINGS = (("qu", "c"), ("gu", "g"), ("c", "z"))
"""How the end of a Spanish root is written before an e."""
