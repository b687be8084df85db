"""What a sentence in somebody's own words means on a page: "delete the project Atlas", "turn it down to 10".

It comes after the forms that ``page_plans`` reads, and is as strict in another way: the verb must be that of one
button, or of none; and every word must be explained by a name, a row, a value or the headings of the page. One word
that nothing explains, or two ways to read it, and nothing is done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from functools import lru_cache

from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, fit, open_first, plan_all, shorten, strip_purpose
from agent3.protocols.nlweb.driver.page_view import DAYS, Control, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, parse_sentence
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import BROAD, base_forms, fold, is_action, meanings, to_concepts
from agent3.sentences.spans import Span, find_spans

__all__ = ["fill_opened", "find_beginning", "find_fresh", "find_menu", "is_beginning", "split_wish", "wish"]

_FILLERS = frozenset(
    "a an the this that these those my your our its of for from to in on at into onto by with as is are be only please"
    " now me us i we want would need should must and it them about just per by was"
    " un una unos unas el la los las lo le les este esta mi mis tu su de del al a en para por con como que y me nos"
    " quiero quisiera necesito favor ahora ser es son sobre solo debe tiene tenga tengan sea seria sera haya se son"
    " have has".split()
)
"""Words that need no explanation."""
_GENERIC = frozenset(
    "now all it my me this the to of a ahora todo todos mi el la los las de a send submit enviar place make do complete"
    " hacer realizar start pdf csv".split()
)
"""Words in the name of a button that need not be said."""
_UNITS = frozenset("euros euro eur dollars dollar degrees grados percent % € $".split())
_SETS = frozenset(
    "set change make move put turn raise lower increase reduce dim adjust update switch choose select pick use take"
    " show give let sort filter order display see only solo prefer include add mover cambiar poner subir bajar ajustar"
    " hacer dejar elegir seleccionar escoger usar mostrar ensenar ver ordenar filtrar preferir incluir anadir pasar"
    " actualizar start receive recibir pon ponme ponle ponlo haz hazme set".split()
)
"""Verbs that give something a value, and press nothing."""
_GOES = frozenset(
    "go open show see view visit switch take display start run launch begin ir abrir ver mostrar ensenar pasar ve vete"
    " iniciar empezar lanzar comenzar".split()
)
"""Verbs that lead somewhere, or begin something."""
_DOING = [
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
_LOGIN = re.compile(
    r"^(?:log|sign)\s+(?:me\s+)?(?:in|on)\b|^(?:inicia|iniciar)\s+sesi[oó]n\b|^(?:entra|entrar)\b", re.IGNORECASE
)
_WORD = re.compile(r"\"[^\"]*\"|[^\s,;:()\"]+")
_PRESSED = ("button", "menuitem")
_FILLED = ("textbox", "searchbox", "combobox", "spinbutton", "slider", "list")


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, or a quoted text; ``start`` and ``end`` are its place in the clause.

    ``names`` is a quoted text in brackets: what something is called on the page, and no value.
    """

    text: str
    plain: str
    quoted: bool
    names: bool
    start: int
    end: int


def wish(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    """The acts that a clause asks for in its own words, or a doubt."""
    text = _spell_out(clause)
    if not any(_does("rename", word) for one in view.controls for word in _content(one.name)[:1]):
        text = _RENAME.sub(r"set the name of \1 \2", text)  # what no button does is written
    for pool in (view, view.reachable):
        off = clause.verb == "clear" or _STOP.match(text) is not None
        given, said = _give(pool, text, off=off, choosing=clause.verb == "choose"), _tokens(text)
        if given is not None and any(_is_for(one, said) for one in pool.visible if not one.row or _says_row(said, one)):
            given = None  # "change my password to …" has a button of its own: the value alone is not all
        if given is not None and _find_giving(pool, _tokens(text), given):
            given = None  # so has "an appointment on May 2": the button that asks for one
        ways = (_press_named(pool, text, written), given, _fill(pool, text), _go(pool, clause, text))
        found = [acts for acts in ways if acts is not None]
        if len(found) > 1 and all(len(acts) == 1 and acts[0].control is found[0][0].control for acts in found):
            found = [acts for acts in found if acts[0].kind in ("check", "clear")][:1] or found[:1]  # one and the same
        if len(found) == 1:
            marked = any(act.kind == "check" for act in found[0])  # a toolbar acts once something is marked
            unusable = [
                act.control for act in found[0] if act.control.disabled and not (marked and act.control.toolbar)
            ]
            if _leaves_verb(pool, text, found[0]):
                return Doubt("words", clause.text)
            return Doubt("disabled", unusable[0].name) if unusable else open_first(view, found[0])
        if found:
            return Doubt("several", clause.text)
    opened = _open_and_fill(view, text)
    return Doubt("words", clause.text) if opened is None else opened


def _spell_out(clause: Clause) -> str:
    """A clause with verbs of one word."""
    text = clause.text.strip(" .!?¿¡")
    for pattern, instead in _PHRASES:
        text = pattern.sub(instead, text)
    return text


def _is_for(button: Control, tokens: Sequence[_Token]) -> bool:
    """Whether a button is called what a sentence asks for; a mere "Add" is not what "put it on hold" asks for."""
    if _after_verb(button, tokens) is None:
        return False
    name = _content(button.name)
    return len(name) > 1 or bool(_forms(_split_verb(tokens)[0]) & _forms(name[0]))


def _find_giving(view: PageView, tokens: Sequence[_Token], acts: Iterable[Act] = ()) -> list[Control]:
    """The buttons of forms that give what a sentence without a verb begins with: "Book a visit" for "a visit on …"."""
    said = [token.plain for token in tokens if token.plain not in _FILLERS][:1]
    if not tokens or tokens[0].plain not in _ARTICLES:
        return []
    forms = {(act.control.frame, act.control.form) for act in acts}
    return [
        one for one in view.visible
        if one.sends and (not forms or (one.frame, one.form) in forms)
        and any(_same(word, other) for word in _content(one.name)[1:] for other in said)
    ]  # fmt: skip


def _leaves_verb(view: PageView, text: str, acts: Sequence[Act]) -> bool:
    """Whether another thing to do comes after an "and", which none of the acts does: "enrol me in Art and pay"."""
    used = [act.control for act in acts]
    said = [word for one in used for word in _content(" ".join((one.name, *one.row, *one.options)))]
    said += [word for act in acts for value in act.values for word in _content(value)]
    for part in _AND.split(text)[1:]:
        tokens = _tokens(part)
        verb = _split_verb(tokens)[0]
        if not verb or any(_same(verb, word) for word in said):
            continue
        buttons = [one for one in view.visible if _after_verb(one, tokens) is not None]
        if buttons and not any(one in used for one in buttons):
            return True
        if not buttons and is_action(verb) and verb not in _NOUNS and not any(_does(verb, word) for word in said):
            return True
    return False


def split_wish(view: PageView, clause: Clause, written: Sequence[Control]) -> list[Clause]:
    """A clause as several, where "and" or a comma stands between things that can all be done; else as it is."""
    parts, verb = _AND.split(clause.text), clause.text.split(maxsplit=1)[0]
    clauses: list[Clause] = []
    used, before, acts = [*written], "", list[Act]()
    for part in parts if 1 < len(parts) <= _MOST_PARTS else ():
        # "Move A to X and B to Y". Two things to look for are one search, or one of them is no thing to look for.
        whole = " ".join((*before.split()[: -len(part.split())], part))
        # "Add A and B to X": each of them to X.
        ends = () if part is parts[-1] else (f"{part} {end[0]}" for end in _TO_END.finditer(parts[-1]))
        for said in (part,) if clause.verb == "search" else (part, f"{verb} {part}", whole, *ends):
            one = parse_sentence(said)
            found = plan_all(view, one, used, otherwise=wish)
            waits = bool(clauses) and all(isinstance(each, list) or each.why == "disabled" for each in found)
            bare = said != part or not (one and (one[0].verb or is_action(_split_verb(_tokens(part))[0])))
            twice = any(act.kind == "write" and act.control in used[len(written) :] for act in _acts_of(found))
            if twice or (bare and before and not _is_like(acts, found)):
                continue
            again = [act for act in _acts_of(found) if act.control in used]
            if (waits or all(isinstance(each, list) for each in found)) and not (said == whole and again):
                before = said
                acts = _acts_of(found)
                clauses += one
                used += [act.control for act in acts]
                break
        else:
            return [clause]
    return clauses or [clause]


def _acts_of(plans: Iterable[Plan]) -> list[Act]:
    return [act for each in plans if isinstance(each, list) for act in each]


def _is_like(acts: Sequence[Act], plans: Sequence[Plan]) -> bool:
    """Whether what one verb does to a second thing is what it does to the first: the same button of another row."""
    others = _acts_of(plans)
    if not acts or not others:
        return True
    one, other = acts[-1], others[-1]
    if "press" not in (one.kind, other.kind):
        return True
    kinds, roles = one.kind == other.kind, one.control.role == other.control.role
    return kinds and roles and (not one.control.row or one.control.name == other.control.name)


def find_menu(view: PageView, clause: Clause) -> Control | None:
    """The one menu button of the one row that a clause names by its first words, where the clause may mean an item."""
    tokens = _tokens(clause.text)
    menus = [
        one for one in view.visible
        if one.row and not one.expanded and not one.disabled and one.role == "button" and _is_menu(one)
    ]  # fmt: skip
    said = [token for token in tokens if token.plain not in _FILLERS]
    named = [one for one in menus if _names_row(tokens, one)] or [one for one in menus if _says_row(said, one)]
    return named[0] if len(named) == 1 else None


def _is_menu(control: Control) -> bool:
    """Whether a button opens the menu of its row: it says so, or is called nothing but that or three dots."""
    said = {*_content(control.name)}
    bare = not re.search(r"\w", control.name)
    return control.menu or bare or bool(said & _MENU_WORDS and said <= {*_MENU_WORDS, *_row_words(control)})


def _names_row(tokens: Sequence[_Token], control: Control) -> bool:
    """Whether a text by which a row is known is said, whole."""
    said = [word for token in tokens for word in re.findall(r"\w+", fold(token.text))]
    for text in control.row:
        words = re.findall(r"\w+", fold(text))
        starts = range(len(said) - len(words) + 1)
        if _content(text) and any(said[start : start + len(words)] == words for start in starts):
            return True
    return False


_MENU_WORDS = frozenset("more actions options menu mas acciones opciones".split())
_AND = re.compile(r",\s+(?:and\s+|y\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_MOST_PARTS = 6
_TO_END = re.compile(r"\b(?:to|from|in|of|as|a|de|en|como)\s.+$", re.IGNORECASE)
_PHRASES = [
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"^(?:get rid of|throw away|deshazte de)\b", "delete"),
        (r"^take (.+?) (?:out of|off)\b", r"remove \1 from"),
        (r"^take out\b", "remove"),
        (r"^(?:haz(?:me)?|realiza|make|place) (?:el|un|mi|the|my|an) (?:pedido|order)\b", "order"),
        (r"^(?:haz(?:me)?|realiza|make) (?:la|una|a|the) (?:reserva|booking|reservation)\b", "book"),
        (r"^(?:haz(?:me)?|realiza|make) (?:la|una|a|the) (?:transferencia|transfer)\b", "transfer"),
        (r"^me llamo\b", "my name is"),
        (
            r"^(?:start|begin|open|set up|abre|inicia|empieza) (?=(?:an? |the |una? |el |la )?(?:new|nuev[oa])\b)",
            "create ",
        ),
        (r"^(?:(?:i|we) (?:now )?live|vivo|vivimos|resido)\b", "my"),
        (r"\b(?:ending|that ends?|terminad[oa]|acabad[oa]|que (?:termina|acaba)) (?:in|with|en)\b", ""),
        # What somebody tells of oneself is a value, and asks for nothing more.
        (r"^(?:i|we)(?:['\u2019](?:m|re|ve|ll)| am| are| have| will)\b(?: be\b| have\b)?", "my"),
        (r"^(?:i|we)\s+(?=\w)", "my "),
        (r"^(?:tengo|tenemos|somos|estoy|estamos|llevo|llevamos)\b", "mi"),
    )
]
"""Verbs of several words."""
_CHANGE_NAME = re.compile(r"^(?:change|cambia) (?:the |el )?(?:name|nombre) (?:of|de) ", re.IGNORECASE)
_RENAME = re.compile(r"^(?:rename|renombra) (.+?) (to|as|a|como)\b", re.IGNORECASE)


# Words


def _tokens(text: str) -> list[_Token]:
    """The words of a text; "Bob's" is Bob."""
    return [
        _Token(
            match[0].strip('"'),
            re.sub(r"['\u2019]s?$", "", fold(match[0].strip("\".!?¿¡'")).lstrip("#")),
            match[0].startswith('"'),
            match[0].startswith('"') and text[: match.start()].endswith("(") and text.startswith(")", match.end()),
            *match.span(),
        )
        for match in _WORD.finditer(text)
    ]


def _split_verb(tokens: Sequence[_Token]) -> tuple[str, list[_Token]]:
    """The first word that says something, where it is not quoted, and the tokens after it."""
    for number, token in enumerate(tokens):
        if token.quoted:
            break
        if token.plain not in _FILLERS:
            return token.plain, [*tokens[number + 1 :]]
    return "", [*tokens]


@lru_cache(maxsize=20_000)
def _forms(word: str) -> frozenset[str]:
    return frozenset(base_forms(word))


@lru_cache(maxsize=20_000)
def _does(verb: str, name: str) -> bool:
    """Whether a verb is what a button of that name does. More and less are not the same, though both change."""
    if _same(verb, name):
        return True
    one, other = (frozenset(n for n, line in enumerate(_DOING) if line & _forms(word)) for word in (verb, name))
    return (
        bool(one & other)
        or bool(_forms(verb) & _forms(name))
        or _is_cousin(verb, name)
        or (not one and _alike(verb, name))
    )


def _thing_words(view: PageView) -> frozenset[str]:
    """What the rows of this page may be called, by the words that are on it."""
    texts = (text for one in view.visible for text in (one.name, *one.columns))
    said = {word for text in (*texts, *view.headings) for word in _content(text)}
    return frozenset(("one", "row", "entry", "uno", "fila")).union(
        *(things for things, signs in _THINGS if signs & said)
    )


def _content(text: str) -> list[str]:
    """The words of a name that say something."""
    return [word for word in re.findall(r"\w+", fold(text)) if word not in _FILLERS]


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    """Without the ending of a plural."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-2] if word.endswith(("ches", "shes", "xes", "ores", "ones", "ades")) else word[:-1]
    return word


_PLURALS = re.compile(r"(?<=[ndlrzj])es$")


def _same(one: str, other: str) -> bool:
    """The same word, in the singular or the plural ("pan" and "panes")."""
    return one == other or _stem(one) == _stem(other) or one in _bare_plural(other) or other in _bare_plural(one)


@lru_cache(maxsize=20_000)
def _bare_plural(word: str) -> tuple[str, ...]:
    return (_PLURALS.sub("", word),) if len(word) > 4 else ()


def _alike(one: str, other: str) -> bool:
    """The same word, a word of the same meaning, or its cousin in the other language."""
    if _same(one, other):
        return True
    if {one, other} & _NAMING and {one, other} & _TITLES:
        return False
    concept = to_concepts(one)
    return (
        bool((meanings(one) & meanings(other)) - BROAD)
        or (len(concept) == 1 and concept == to_concepts(other))
        or _is_cousin(one, other)
    )


_NAMING, _TITLES = frozenset(("name", "nombre")), frozenset(("title", "titulo"))
"""Not the same where both may be asked for."""


def _is_cousin(one: str, other: str) -> bool:
    """Whether two words begin with the same letters but for an ending: "invite" and "invitation"."""
    shared = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return shared >= 5 and shared >= max(len(one), len(other)) - 4


def _is_any(word: str, words: Iterable[str]) -> bool:
    return any(_alike(word, other) for other in words)


def _left_over(
    tokens: Iterable[_Token], explained: Iterable[str], things: frozenset[str] = frozenset()
) -> list[_Token]:
    """The words that nothing explains. A quoted text is never explained by words, only by a text that is the same."""
    known = [*explained]
    return [
        one
        for one in tokens
        if (fold(one.text) not in known if one.quoted else one.plain not in _FILLERS and not _is_any(one.plain, known))
        and not _forms(one.plain) & things
        and not (one.names and all(word in known for word in _content(one.text)))
    ]


def _row_words(control: Control) -> list[str]:
    return [*_content(" ".join(control.row)), *_marked_words(control.row), *map(fold, control.row)]


def _marked_words(texts: Iterable[str]) -> list[str]:
    """Words with marks in them, such as the number of an invoice, which are one word to the one who says them."""
    return [
        plain for text in texts for word in text.split() if re.search(r"\w\W+\w", plain := fold(word.strip(".,;:!?")))
    ]


def _says_row(tokens: Iterable[_Token], control: Control) -> bool:
    """Whether a word of the row that a control stands in is said."""
    known = _row_words(control)
    return any(
        fold(token.text) in known if token.quoted else any(_same(token.plain, word) for word in known)
        for token in tokens
    )


def _place_words(control: Control) -> list[str]:
    texts = [text for texts in control.places for text in texts]
    return [*_content(" ".join(texts)), *_marked_words(texts), *map(fold, texts)]


def _headings(view: PageView) -> list[str]:
    return [word for text in view.headings for word in _content(text)]


# Pressing: "delete the project Atlas", "archive the message from Ann", "put two teas in the cart"


def _press_named(view: PageView, text: str, written: Sequence[Control]) -> list[Act] | None:
    """The one button whose name is the verb, in the row that the other words name."""
    tokens = _tokens(text)
    headings, things, found = _headings(view), _thing_words(view), []
    buttons = [(one, rest) for one in view.visible if (rest := _after_verb(one, tokens, things)) is not None]
    last = written[-1].places[:1] if written else []
    # "Take seat 4 and book it": what "it" is was said before.
    if any(token.plain in ("it", "them") or re.search(r"(?:[aei]r?)l[oa]s?$", tokens[0].plain) for token in tokens):
        meant = [_stem(word) for one in written[-1:] for word in _content(one.name)]
        buttons = [
            (one, rest) for one in view.visible
            if (rest := _after_verb(one, tokens, things if one.row else meant)) is not None
        ]  # fmt: skip
        buttons = [(one, rest) for one, rest in buttons if last and one.places[:1] == last] or buttons
    # "Create an account" is the button "Create account", whether it can be pressed or not, and never "Add".
    stems, verb = {_stem(token.plain) for token in tokens}, _split_verb(tokens)[0]
    very = [
        (one, rest) for one, rest in buttons
        if len(_content(one.name)) > 1 and _forms(verb) & _forms(_content(one.name)[0])
        and all(_stem(word) in stems for word in _content(one.name)[1:])
    ]  # fmt: skip
    buttons = very or buttons
    only = [token.plain for token in tokens if token.plain not in _FILLERS]
    if not buttons and len(only) == 1 and written and any(_does(only[0], one) for one in ("save", "send", "apply")):
        # "Set the city to Rome and save": the button beside the field that was filled.
        near = [one for one in view.visible if one.role == "button" and not one.row and _is_beside(written[-1], one)]
        near = [one for one in near if _does(only[0], (_content(one.name) or [""])[0])]
        return [Act("press", near[0])] if len(near) == 1 else None
    for button, rest in buttons:
        name = _content(button.name)
        left = [
            token
            for token in rest
            if token.quoted or not any(word == token.plain or _does(token.plain, word) for word in name)
        ]
        amount, left = _take_amount(view, button, left)
        if (left and _number(left[0])) or _is_blank(view, button, written):
            continue  # how many of something nobody can say here, or nothing to send
        left = [
            token for token in left if token.quoted or not _forms(token.plain) & things or _says_row([token], button)
        ]
        unexplained = _left_over(left, [*name, *_place_words(button), *_content(" ".join(button.columns)), *headings])
        # Only the very words tell one row from another.
        strange = [token for token in left if not unexplained and _only_alike(token, button, headings)]
        told = [token for token in rest if token.plain not in _FILLERS and _says_row([token], button)]
        alike = [one for one, _ in buttons if one is not button and one.name == button.name]
        if told and not any(all(_says_row([token], one) for token in told) for one in alike):
            strange = []  # other words already say which row
        if not unexplained and not strange and (not button.row or _says_row(rest, button)):
            found.append([*amount, Act("press", button)])
        elif unexplained and button.row and not strange and _says_row(rest, button) and not button.sends:
            # "Book the attic from May 2 to May 4": what is asked for all rows stands outside of them.
            known = [*name, *_row_words(button), *headings]
            sent = {(one.frame, one.form) for one in view.visible if one.sends and one.form >= 0}
            fields = [
                one for one in view.visible
                if not one.row and not one.is_free and one.role != "combobox" and _is_given(one, view, "set")
                and (one.frame, one.form) not in sent
            ]  # fmt: skip
            others = [token for token in left if not _says_row([token], button)]
            acts = _Filling(text, others, fields, known, things=things, sure=True).read() if fields else None
            if acts:
                found.append([*amount, *acts, Act("press", button)])
        elif unexplained and button.toolbar and not button.row:
            found += [[Act("check", box), Act("press", button)] for box in _marks(view, button, left, headings)]
    exact = [acts for acts in found if _same(_split_verb(tokens)[0], (_content(acts[-1].control.name) or [""])[0])]
    found = exact or found
    said = [token.plain for token in tokens]  # "Move to Done" is said by its very words, "Move to To do" is not
    exact = [
        acts for acts in found
        if all(any(_same(word, one) for one in said) for word in _content(acts[-1].control.name)[1:])
    ]  # fmt: skip
    found = exact or found
    return found[0] if len(found) == 1 else None


def _is_blank(view: PageView, button: Control, written: Sequence[Control]) -> bool:
    """Whether a button would send fields in which nothing is written: then something was left unsaid."""
    if not button.sends and any(one.sends and one.form == button.form >= 0 for one in view.visible):
        return False  # another one sends them
    texts = [one for one in view.visible if one.role == "textbox" and not one.row and _is_beside(one, button)]
    if button.form < 0 and not button.boxes:  # on a bare page a field goes with the next button
        buttons = [one.index for one in view.visible if one.role == "button" and one.frame == button.frame]
        texts = [one for one in texts if min((n for n in buttons if n > one.index), default=-1) == button.index]
    return bool(texts) and not button.row and not any(one.value or one in written for one in texts)


def _is_beside(field: Control, other: Control) -> bool:
    """Whether two controls belong together: to one form, or without one to one region."""
    if field.frame != other.frame or field.form != other.form:
        return False
    if field.form >= 0:
        return True
    near = other.boxes[0] in field.boxes if other.boxes else field.boxes[-1:] == other.boxes[-1:]
    return near and field.places[:1] == other.places[:1] and field.opener == other.opener


def _is_lonely(field: Control, button: Control, view: PageView) -> bool:
    """Whether a field stands in a group without a button, on a page without forms: it goes with the page's."""
    if field.form >= 0 or button.form >= 0 or field.boxes or button.boxes or field.frame != button.frame:
        return False
    return not any(one.role == "button" and one.places[:1] == field.places[:1] for one in view.visible)


def _after_verb(button: Control, tokens: Sequence[_Token], meant: Iterable[str] = ()) -> list[_Token] | None:
    """The tokens after the verb, where that is what a button does; None otherwise. What is ``meant`` is as if said."""
    verb, rest = _split_verb(tokens)
    if button.role not in _PRESSED or not verb or (button.opens and button.role == "button"):
        return None
    name = _content(button.name)
    if button.row and button.toggles and not button.checked and name and not is_action(name[0]):
        # "Save the lamp to my wishlist", where that is what a button with two states is called.
        words = [token.plain for token in rest]
        if any(_does(verb, one) for one in ("add", "save")) and all(any(_same(w, s) for s in words) for w in name):
            return rest
    light = bool(name) and name[0] in _GENERIC  # "invite Ann" for "Send invitation", "order" for "Place order"
    if not name or not (_does(verb, name[0]) or (light and any(_does(verb, word) for word in name[1:]))):
        return None
    said = [verb, *(token.plain for token in rest)]
    said += [word for token in tokens if token.quoted for word in _content(token.text)]
    missing = [word for word in name if word not in _GENERIC and not word.isdigit() and not _is_any(word, said)]
    known = [*meant]
    missing = [word for word in missing if not any(_does(one, word) for one in said) and _stem(word) not in known]
    missing += _ONE & {*re.findall(r"\w+", fold(button.name))} - {token.plain for token in rest}  # "remove one"
    return None if missing else rest


_ONE = frozenset("one uno una".split())


def _only_alike(token: _Token, button: Control, headings: Sequence[str]) -> bool:
    """Whether a word is explained by a mere likeness to the text of a row, which another row may have as well."""
    if token.quoted or token.plain in _FILLERS:
        return False
    around = [text for texts in button.places for text in texts if text not in button.row]
    exact = [*_row_words(button), *_content(button.name)]
    loose = [*headings, *_content(" ".join((button.name, *around, *button.columns)))]
    return not any(_same(token.plain, word) for word in exact) and not _is_any(token.plain, loose)


def _take_amount(view: PageView, button: Control, tokens: list[_Token]) -> tuple[list[Act], list[_Token]]:
    """A number at the beginning, where the row of a button has one field for numbers."""
    if not tokens or not button.row:
        return [], tokens
    number = _number(tokens[0])
    fields = [one for one in view.visible if one.role == "spinbutton" and one.row == button.row]
    if number is None or len(fields) != 1:
        return [], tokens
    act = fit(fields[0], number)
    return ([], tokens) if isinstance(act, Doubt) else ([act], tokens[1:])


def _number(token: _Token) -> str | None:
    spans = find_spans(token.text, datetime.now())  # noqa: DTZ005 - only for its numbers
    if token.quoted or len(spans) != 1 or spans[0].kind != "number" or spans[0].unit == "article":
        return None
    return f"{spans[0].value:g}" if (spans[0].start, spans[0].end) == (0, len(token.text)) else None


def _marks(view: PageView, button: Control, tokens: Sequence[_Token], headings: Sequence[str]) -> Iterator[Control]:
    """The box of the one row that words name, for a button of a toolbar that acts on what is marked."""
    boxes = [one for one in view.visible if one.role == "checkbox" and one.row]
    if any(one.checked for one in boxes):
        return
    for box in boxes:
        own = _content(box.name)
        strange = [
            token for token in _left_over(tokens, [*headings, *_content(button.name)])
            if not _says_row([token], box) and (token.quoted or not _is_any(token.plain, own))
        ]  # fmt: skip
        if not strange and _says_row(tokens, box):
            yield box


# Going somewhere: "go to the next page", "show only active tasks"

_KINDS = frozenset(
    "page pagina button boton link enlace tab pestana section seccion view vista folder carpeta menu list lista screen"
    " pantalla".split()
)


def _go(view: PageView, clause: Clause, text: str) -> list[Act] | None:
    """The one control that has the words of a name, whatever it is called beside that: "página 2" for "Page 2"."""
    verb, rest = _split_verb(_tokens(text))
    leads = clause.verb == "press" or bool(_forms(verb) & _GOES)
    tokens = [token for token in (rest if leads else _tokens(text)) if token.plain not in _FILLERS]
    if clause.quotes or not tokens:
        return None
    if (
        not leads
        and is_action(verb)
        and not any(_same(verb, word) for one in view.visible for word in _content(one.name))
    ):
        return None
    around, things, found = [*_KINDS, *_headings(view)], _thing_words(view), []
    for control in view.visible:
        name = [word for word in _content(control.name) if word not in _KINDS]
        own = control.role in (*_PRESSED, "link", "tab", "treeitem") and not control.sends and not control.toggles
        own = own and (leads or not control.opens or control.role == "link")
        # Without a verb only a name of several words says what to do: "I forgot my password".
        if own and len(name) > (not leads) and all(any(_reads(token.plain, word) for token in tokens) for word in name):
            left = [token for token in tokens if not any(_reads(token.plain, word) for word in name)]
            if not _left_over(left, around, things) and (not control.row or not left or _says_row(tokens, control)):
                found.append(Act("press", control))
    if len(found) != 1 or found[0].control.disabled or has_consequences(found[0].control.name):
        return None
    return found


def _reads(one: str, other: str) -> bool:
    """The same word, or the same thing in the other language."""
    return _same(one, other) or (
        not one.isdigit()
        and (to_concepts(one) == to_concepts(other) != [] or bool(meanings(one) & meanings(other) - BROAD))
    )


# Giving a value: "move Write docs to Done", "my phone number is 555", "I would like express delivery"

_ONLY = frozenset("only solo solamente unicamente just".split())


def _give(view: PageView, text: str, *, off: bool = False, choosing: bool = False) -> list[Act] | None:
    """Values for fields, options of lists, and boxes, of the whole page or of the one row that is named."""
    verb, rest = _split_verb(_tokens(text))
    plain = bool(_forms(verb) & _SETS) or off or verb in _ON
    # What a verb asks for is more than a value, unless it is in the name of a box: "keep me signed in".
    led = bool(_tokens(text)) and _tokens(text)[0].plain in _ARTICLES
    acting = not plain and not led and verb not in _NOUNS
    acting = acting and (is_action(verb) or any(line & _forms(verb) for line in _DOING))
    tokens = rest if plain else _tokens(text)
    headings, found = _headings(view), []
    rows = {(one.frame, tuple(one.row)) for one in view.visible if one.is_field or one.is_box or one.role == "menuitem"}
    names = Counter(one.name for one in view.visible)
    for frame, row in {(-1, ()), *rows}:
        # What there is only once needs no row to be told.
        own = [
            one for one in view.visible
            if (one.frame, tuple(one.row)) == (frame, row) or (not row and (not one.row or names[one.name] == 1))
        ]  # fmt: skip
        fields = [one for one in own if _is_given(one, view, verb) and (one.is_box or one.toggles or not off)]
        if choosing:
            fields = [one for one in fields if one.role not in ("textbox", "combobox") or one.kind in ("time", *DAYS)]
        if acting:
            fields = [
                one for one in fields
                if one.role == "menuitem" or (one.is_box and _is_any(verb, [*_content(one.name), *_group_words(one)]))
                or (one.role in ("list", "combobox") and _is_cousin(verb, (_content(one.name) or [""])[0]))
            ]  # fmt: skip
        if not fields or (row and not _says_row(tokens, fields[0])):
            continue
        known = [*headings, *(_row_words(fields[0]) if row else ()), *(_DONE if _does(verb, "mark") else ())]
        acts = _Filling(text, tokens, fields, known, off=off, things=_thing_words(view) | _UP, sure=True).read()
        acts = acts or (_give_row(fields, tokens, known, verb if plain else "", off) if row else None)
        if acts:
            found.append((row, acts))
    # Words that name a row are no value of a field elsewhere.
    found = [one for one in found if one[0]] or found
    distinct = {tuple((act.control.frame, act.control.index, act.values) for act in acts): acts for _, acts in found}
    if len(distinct) != 1:
        return None
    acts = next(iter(distinct.values()))
    if any(token.plain in _ONLY for token in _tokens(text)) and _leaves_others(view, acts):
        return None
    return acts


def _give_row(
    fields: Sequence[Control], tokens: Sequence[_Token], explained: Sequence[str], verb: str, off: bool
) -> list[Act] | None:
    """What a row has only one of, and is not named: how many ("four green teas"), or whether it is in use."""
    numbers = [one for one in fields if one.role == "spinbutton"]
    boxes = [one for one in fields if (one.is_box or one.toggles) and {*_content(one.name)} <= _STATES]
    said = [token for token in tokens if token.plain not in _FILLERS]
    known = [*explained, *_content(" ".join(fields[0].columns))]
    value = _number(said[0]) if said else None
    if value is not None and len(numbers) == 1:
        act, said = fit(numbers[0], value), [token for token in said[1:] if token.plain not in _COUNTED]
    elif len(boxes) == 1 and (off or verb in _ON):
        act = Act("clear" if off else "check", boxes[0])
    else:
        return None
    strange = [one for one in said if not one.quoted and not any(_same(one.plain, word) for word in known)]
    quoted = [one for one in said if one.quoted and fold(one.text) not in known]
    return None if strange or quoted or not said or isinstance(act, Doubt) else [act]


_COUNTED = frozenset("units unit pieces piece items times unidades unidad piezas pieza veces".split())
_UP = frozenset(("up", "down"))
_ARTICLES = frozenset("the a an my el la los las un una mi".split())
_NOUNS = frozenset("text phone email mail message name date time price".split())
"""Verbs to some, and names of fields."""
_STOP = re.compile(r"^(?:stop|unsubscribe|deja(?:d|r)? de)\b", re.IGNORECASE)
_DONE = ("done", "complete", "completed", "finished", "hecho", "hecha", "completado", "completada", "terminada")
_ON = frozenset(
    "enable activate allow permit encender activar permitir admitir marcar check tick mark turn switch enciende activa"
    " permite admite marca".split()
)
_STATES = frozenset(
    "enabled active activated on status state activo activa activado activada habilitado estado".split()
)
"""Names of boxes that tell whether the thing of their row is in use."""


def _is_given(control: Control, view: PageView, verb: str) -> bool:
    if control.disabled or control.read_only or (control.searches and control.is_free):
        return False
    if control.role == "menuitem":  # of a menu that says what its items do: "Move …"
        opener = view.opener_of(control)
        return opener is not None and _does(verb, (_content(opener.name) or [""])[0])
    return control.role in (*_FILLED, "option", "tab") or control.is_box or control.toggles


def _leaves_others(view: PageView, acts: Sequence[Act]) -> bool:
    """Whether a box is marked beside others that are marked: then "only" says more than to mark it."""
    boxes = view.visible
    return any(
        act.kind == "check" and act.control.role == "checkbox" and not _ONLY & {*_content(act.control.name)}
        and any(one.role == "checkbox" and one.checked and one.places[:1] == act.control.places[:1] for one in boxes)
        for act in acts
    )  # fmt: skip


# Filling a form and sending it: "book a double room for two guests from May 2 to May 4"


def _fill(view: PageView, text: str) -> list[Act] | None:
    """The button that a verb names, after the fields of its form have what the other words say."""
    tokens = _tokens(text)
    login = _LOGIN.match(text)
    if login is not None:
        passwords = [one for one in view.visible if one.kind == "password"]
        forms = {(one.frame, one.form) for one in passwords}
        buttons = [one for one in view.visible if one.sends and (one.frame, one.form) in forms]
        rest = [token for token in tokens if token.start >= login.end()]
    else:
        fitting = [one for one in view.visible if not one.row and not one.opens and not one.toolbar]
        verb, rest = _split_verb(tokens)
        buttons = [one for one in fitting if _after_verb(one, tokens) is not None]
        if not buttons and (giving := _find_giving(view, tokens)):
            found = [acts for one in giving if (acts := _fill_form(view, view.visible, one, text, tokens))]
            return found[0] if len(found) == 1 else None
        if not buttons:  # "send 20 euros to Ann" says what is sent by what the form asks for
            buttons = [one for one in fitting if one.sends and _same(verb, (_content(one.name) or [""])[0])]
            found = [acts for one in buttons if (acts := _fill_form(view, view.visible, one, text, rest))]
            return found[0] if len(found) == 1 and len(found[0]) > _FEWEST_SAID else None
    found = [acts for button in buttons if (acts := _fill_form(view, view.visible, button, text, rest))]
    return found[0] if len(found) == 1 else None


_FEWEST_SAID = 2
"""How many values tell what a form sends, where its button is named by its verb alone."""


def _fill_form(
    view: PageView, controls: Sequence[Control], button: Control, text: str, tokens: Sequence[_Token]
) -> list[Act] | None:
    """Values for the fields that a button sends, and the button."""
    fields = [
        one for one in controls
        if not one.row and not one.disabled and not one.read_only and (not one.searches or button.searches)
        and (one.role in (*_FILLED, "option") or one.is_box) and (
            _is_beside(one, button) or _is_lonely(one, button, view)
        )
    ]  # fmt: skip
    known = [*_content(button.name), *_headings(view), *_place_words(button)]
    acts = _Filling(text, tokens, fields, known, things=_thing_words(view)).read()
    # What is half filled is not sent: "pay with card 4111" has not said all that the card's fields ask for.
    touched = [act.control for act in acts or ()]
    marked = any(one.required for one in fields)
    empty = [
        one for one in fields
        if one.role in ("textbox", "spinbutton") and one.kind != "textarea" and not one.value and one not in touched
        and (one.required or not (marked or _OPTIONAL & {*_content(one.name)}))
    ]  # fmt: skip
    return [*acts, Act("press", button)] if acts and not empty else None


_OPTIONAL = frozenset("optional opcional note notes nota notas comment comments comentario comentarios".split())
_NEVER = frozenset("cancel close discard back reset cancelar cerrar descartar volver".split())


def _open_and_fill(view: PageView, text: str) -> list[Act] | None:
    """A hidden dialog of the page: the one button that shows it, its fields, and the button that sends it."""
    tokens, found = _tokens(text), []
    hidden = [replace(one, visible=True) for one in view.controls if not one.visible and one.opener < 0 and one.places]
    buttons = [one for one in hidden if one.role == "button" and not _NEVER & {*_content(one.name)[:1]}]
    openers = [
        one for one in view.visible
        if one.role == "button" and not (one.row or one.sends or one.disabled or has_consequences(one.name))
    ]  # fmt: skip
    for button in buttons:
        if sum(_is_beside(one, button) for one in buttons) != 1:
            continue
        title = _place_words(button)
        for opener in openers:
            name = _content(opener.name)
            by_verb = _after_verb(replace(opener, opens=False), tokens) is not None
            starts = bool(name) and any(_does(word, "create") for word in name[:1])
            if (by_verb and any(_is_any(word, title) for word in name)) or (
                starts and _after_verb(button, tokens) is not None and (len(name) == 1 or _is_any(name[-1], title))
            ):
                view_of = PageView(view.controls, (), [*view.headings, *name, *title])
                acts = _fill_form(view_of, hidden, button, text, _split_verb(tokens)[1])
                if acts:
                    found.append([Act("open", opener), *acts])
    return found[0] if len(found) == 1 else None


# What has to be opened before the rest can be found: "create a folder called Taxes", "rename notes.md to ideas.md"

_BEGINS = frozenset(
    "new create add edit invite compose write nuevo nueva crear anadir agregar editar invitar redactar".split()
)
_CHANGES = frozenset("edit rename reply respond comment editar renombrar responder contestar comentar".split())
_ITEMS = _BEGINS | _CHANGES | frozenset("share assign move cambiar change compartir asignar mover".split())
"""What an item of a menu cannot do before it has asked for something."""
_COMPOSES = frozenset("compose write redactar escribir".split())
_CONTAINERS = frozenset("column section list group columna seccion lista grupo".split())


def find_beginning(view: PageView, clause: Clause) -> list[Act]:
    """The press that a clause has to begin with, where the page asks for the rest only then; none where that is unsure.

    It is called what the verb says and opens a dialog, or what it does needs words that it has no field for.
    """
    text = _spell_out(clause)
    texts = dict.fromkeys((text, _CHANGE_NAME.sub("rename ", text)))
    for tokens, pool in ((_tokens(one), pool) for one in texts for pool in (view, view.reachable)):
        things, found = _thing_words(pool), []
        for one in pool.visible:
            said = [token for token in tokens if token.plain not in _FILLERS]
            rest = _after_verb(replace(one, opens=False), tokens, things)
            if rest is None or one.sends or one.disabled or has_consequences(one.name) or not _asks_more(one):
                continue
            known = [*_content(one.name), *_row_words(one), *_place_words(one)]
            if (not one.row or _says_row(rest, one)) and _left_over(said[1:], known):
                found.append(one)
        places = [{*_content(text)} for one in found for texts in one.places for text in texts]
        words = [_stem(token.plain) for token in tokens]
        named = [
            one for one in found
            if any(_content(text) and all(_stem(word) in words for word in _content(text)) and {*_content(text)}
                   in places for texts in one.places for text in texts)
        ]  # fmt: skip
        found = found if len(found) == 1 else named
        if len(found) == 1:
            return open_first(view, [Act("open", found[0])])
    return []


def _asks_more(control: Control) -> bool:
    """Whether a button only opens something that asks for more."""
    name = _content(control.name)
    if control.role == "menuitem":
        return bool({*name[:1]} & _ITEMS) or control.name.rstrip(" .").endswith("\u2026")
    if control.name.rstrip().endswith(("\u2026", "...")) or (control.opens and not control.menu):
        return bool(name)
    alone = control.row or {*name} & _COMPOSES
    return len(name) > (not alone) and is_beginning(control)


def is_beginning(control: Control) -> bool:
    """Whether a button says that it begins something, such as a form; "Add" in the row of a product adds it at once."""
    return bool({*_content(control.name)[:1]} & (_CHANGES if control.row else _BEGINS))


def fill_opened(view: PageView, before: PageView, opener: Control, clause: Clause) -> Plan:
    """What a clause means in what its beginning has opened: values for the fields there, and the button."""
    text = _RENAME.sub(r"set the name of \1 \2", _spell_out(clause))
    fresh = [replace(one, row=()) for one in find_fresh(view, before)]
    around = [opener.name, *opener.row, *(text for texts in opener.places for text in texts), *_CONTAINERS]
    opened = PageView(fresh, (), [*view.headings, *around])
    buttons = [
        one for one in fresh if one.role == "button" and not one.opens and not _NEVER & {*_content(one.name)[:1]}
    ]
    buttons = [one for one in buttons if one.sends] or buttons
    tokens = _split_verb(_tokens(text))[1]
    found = [acts for one in buttons if (acts := _fill_form(opened, fresh, one, text, tokens)) is not None]
    return found[0] if len(found) == 1 else Doubt("several" if found else "words", clause.text)


def find_fresh(view: PageView, before: PageView) -> list[Control]:
    """What is on a page now and was not before."""
    known, fresh = Counter(_identity(one) for one in before.visible), []
    for one in view.visible:
        known[_identity(one)] -= 1
        if known[_identity(one)] < 0:
            fresh.append(one)
    return fresh


def _identity(control: Control) -> tuple[object, ...]:
    return control.frame, control.role, control.name, tuple(control.row), tuple(map(tuple, control.places))


class _Filling:
    """One reading of words as values of fields, options and boxes. ``off`` takes the marks of boxes away.

    Where it has to be ``sure``, words are written only after one that says so: "the note is …", not "the note …".
    """

    def __init__(
        self,
        text: str,
        tokens: Sequence[_Token],
        fields: Sequence[Control],
        known: Sequence[str],
        *,
        off: bool = False,
        things: frozenset[str] = frozenset(),
        sure: bool = False,
    ):
        self._things = things
        self._sure = sure
        self._text = text
        self._tokens = list(tokens)
        self._fields = fields
        self._known = known
        self._off = off
        self._acts: dict[tuple[int, int], Act] = {}
        self._explained: list[str] = []

    def read(self) -> list[Act] | None:
        """The acts, in the order of the fields; None where a word is left, or a value fits nowhere or twice."""
        spans = [
            span
            for span in find_spans(self._text, datetime.now())  # noqa: DTZ005 - the user's own day
            if self._tokens and span.start >= self._tokens[0].start
        ]
        ok = (
            self._take_dates(spans)
            and self._take_announced()
            and self._take_options()
            and self._take_spans(spans)
            and self._take_rest()
        )
        if not ok or _left_over(self._tokens, [*self._known, *self._explained], self._things | _UNITS):
            return None
        acts = [self._acts[key] for key in sorted(self._acts)]
        # What may turn out not to take its value comes first: then nothing else is done.
        return sorted(acts, key=lambda act: not (act.kind == "write" and act.control.role == "combobox"))

    def _put(self, act: Act | Doubt) -> bool:
        if isinstance(act, Doubt) or (act.control.frame, act.control.index) in self._acts:
            return False
        self._acts[act.control.frame, act.control.index] = act
        self._explained += _content(act.control.name)
        self._explained += _content(" ".join(text for texts in act.control.places[:2] for text in texts))
        return True

    def _drop(self, start: int, end: int) -> None:
        self._tokens = [token for token in self._tokens if token.end <= start or token.start >= end]

    def _is_free(self, field: Control) -> bool:
        return (field.frame, field.index) not in self._acts

    def _take_dates(self, spans: Sequence[Span]) -> bool:
        """As many dates as there are fields that need one, in the order of the sentence; and one time."""
        dates = [span for span in spans if span.kind == "date"]
        fields = [one for one in self._fields if one.kind in DAYS]
        if born := [token.plain for token in self._tokens if token.plain in ("naci", "born")]:
            fields = [one for one in fields if {"birth", "nacimiento"} & {*_content(one.name)}]
            self._explained += born
        if dates and (named := self._name_dates(dates, fields)):
            fields = named
        elif dates and (
            len(dates) > len(fields)
            or any(one.required for one in fields[len(dates) :])
            or (len(dates) < len(fields) and not any(one.required for one in fields))
            or any(span.other is not None or not isinstance(span.value, date) for span in dates)
            or [span.value for span in dates] != sorted(span.value for span in dates)
        ):
            return not fields  # a day may be the name of an option
        for span, field in zip(dates, fields, strict=False):
            self._drop(span.start, span.end)
            if not self._put(Act("write", field, (span.value.isoformat(),))):
                return False
        times = [span for span in spans if span.kind == "time" and isinstance(span.value, time)]
        clocks = [one for one in self._fields if one.kind == "time"]
        for span in times if clocks else ():
            fitting = clocks
            if len(clocks) > 1 or len(times) > 1:
                # "It starts at 18:00 and ends at 19:00": the nearest word before that is one of these tells which.
                before = [token.plain for token in _tokens(self._text[: span.start])][-_NEAR_WORDS:]
                sides = [side for word in reversed(before) for side in _EDGES if word in side][:1]
                fitting = [one for one in clocks for side in sides if side & {*re.findall(r"\w+", fold(one.name))}]
                self._explained += [word for side in sides for word in side]
            self._drop(span.start, span.end)
            if len(fitting) != 1 or not self._put(Act("write", fitting[0], (span.value.strftime("%H:%M"),))):
                return False
        return True

    def _name_dates(self, dates: Sequence[Span], fields: Sequence[Control]) -> list[Control]:
        """The field of each date by the words before it, where each has one of its own: "I arrive on May 2, 2027"."""
        found, start = list[Control](), 0
        for span in dates:
            said = [token.plain for token in _tokens(self._text[start : span.start]) if token.plain not in _FILLERS]
            near = [
                one for one in fields if one not in found and any(_is_any(word, said) for word in _content(one.name))
            ]
            if len(near) != 1 or span.other is not None or not isinstance(span.value, date):
                return []
            found, start = [*found, *near], span.end
        return found

    def _take_announced(self) -> bool:
        """A value after the name of its field: "password s3cret", "from Rome", "my city is Rome", "called Ann"."""
        texts = [one for one in self._fields if one.role in _WRITTEN and one.kind not in ("time", *DAYS)]
        index = 0
        while index < len(self._tokens):
            token = self._tokens[index]
            named = [one for one in texts if self._is_free(one) and not token.quoted and self._announces(token, one)]
            where = [word for one in named for word in _place_words(one)]
            value = self._value_after(index, texts, where) if named else []
            if value and len(named) > 1:
                named = self._at_place(named) or named
            if value and len(named) > 1:
                # "Phone number 600": the next word tells which.
                after = self._tokens[index + 1].plain
                named = named if len(named) == 1 else [one for one in named if _is_any(after, _content(one.name))]
                if len(named) != 1:
                    return False
            if value and named and self._sure and named[0].is_free and not value[0].quoted:
                between = [one for one in self._tokens if token.start <= one.start < value[0].start]
                if ":" not in self._text[token.end : value[0].start] and not any(
                    one.plain in _GIVING | _CALLED for one in between
                ):
                    return False
            if value and named:
                start, end = value[0].start, value[-1].end
                text = value[0].text if value[0].quoted else self._text[start:end].strip(" ,.")
                if not self._put(fit(named[0], text)):
                    return False
                self._drop(token.start, token.end)
                self._tokens = [
                    one
                    for one in self._tokens
                    if one.start < token.start or one.start >= start or (one.plain not in _BEFORE_VALUE)
                ]
                self._drop(start, end)
                continue
            index += 1
        # "As ann" is who somebody is, where a password is asked for as well.
        if any(one.kind == "password" for one in self._fields):
            users = [one for one in texts if one.kind != "password" and self._is_free(one)]
            for before, after_it in zip(self._tokens, self._tokens[1:], strict=False):
                said = after_it.plain not in _FILLERS and not after_it.names
                if before.plain in ("as", "como") and len(users) == 1 and said:
                    self._drop(before.start, after_it.end)
                    return self._put(fit(users[0], after_it.text))
        return True

    def _at_place(self, fields: Sequence[Control]) -> list[Control]:
        """Those of several fields whose place is said, and is that of no other: "the brightness of the kitchen"."""
        words = [{_stem(word) for word in _place_words(one)} for one in fields]
        said = {_stem(token.plain) for token in self._tokens if not token.quoted}
        others = [set[str]().union(*(each for each in words if each is not own)) for own in words]
        return [one for one, own, rest in zip(fields, words, others, strict=True) if said & (own - rest)]

    def _announces(self, token: _Token, field: Control) -> bool:
        name = re.findall(r"\w+", fold(strip_purpose(field.name)))
        if token.plain in _NAMELESS:
            return False
        if field.role in ("slider", "spinbutton"):
            return token.plain not in _FILLERS and _is_any(token.plain, _content(field.name))
        for before, names in _ANNOUNCED:
            named = re.match(r"[\"\d]|[^\W\d_a-z]|\S+@", self._text[token.end :].lstrip())
            if re.search(r"\b(?:up|close|next|out)\s+$", self._text[: token.start], re.IGNORECASE):
                continue  # "up to 1000"
            if token.plain in ("a", "de") and named is None:
                continue  # an article, or "date of return"
            if token.plain in before and names & {*name} and (token.plain not in _FILLERS or len(name) < 4):
                return True
        if len(name) == 1:
            return token.plain == name[0] or (token.plain not in _FILLERS and _alike(token.plain, name[0]))
        return token.plain not in _FILLERS and any(
            _alike(token.plain, word) for word in name if word not in _FILLERS
        )  # fmt: skip

    def _value_after(self, index: int, texts: Sequence[Control], where: Sequence[str]) -> list[_Token]:
        """The tokens up to a comma, a word that belongs to another field, or a small word."""
        value: list[_Token] = []
        # "The price of the lamp to 25": whose it is may stand before the value.
        whose = index + 1
        while whose < len(self._tokens) and (
            self._tokens[whose].plain not in _GIVING
            and (
                self._tokens[whose].plain in _FILLERS
                or any(_same(self._tokens[whose].plain, one) for one in (*self._known, *where))
            )
        ):
            whose += 1
        # But "from Rome to Oslo" has two values, whatever the page says of Rome.
        small = self._tokens[index].plain in _FILLERS
        if whose < len(self._tokens) and self._tokens[whose].plain in _GIVING and not small:
            index = whose
        for token in self._tokens[index + 1 :]:
            between = self._text[(value[-1] if value else self._tokens[index]).end : token.start]
            if value and ("," in between or value[0].quoted or token.quoted or token.plain in _FILLERS):
                break
            if token.names:
                break
            if not value and token.plain in _BEFORE_VALUE:
                continue
            if not token.quoted and any(self._announces(token, one) for one in texts):
                if value or not any(
                    self._announces(self._tokens[index], one) and self._announces(token, one) for one in texts
                ):
                    break
                continue
            if not value and token.plain in _FILLERS:
                break
            value.append(token)
            if not token.quoted and re.fullmatch(r"[\d.,]+%?", value[0].text):
                following = next((one for one in self._tokens if one.start > token.start), token)
                if not (token.plain.isdigit() and following.plain.isdigit() and following.start == token.end + 1):
                    break  # "600 100 200" is one number
        return value

    def _take_options(self) -> bool:
        """Options, boxes and radio buttons that are named, the longest name first. A number alone says too little."""
        claims: dict[tuple[_Token, ...], list[tuple[Control, str]]] = {}
        for field in self._fields:
            one_of = field.role in ("option", "tab", "menuitem") or field.is_box or field.toggles
            if (field.role != "list" and not one_of) or not self._is_free(field):
                continue
            names = (
                [*field.options]
                if field.role == "list"
                else [*dict.fromkeys((field.name, field.lead, shorten(field.name), _FIRST.split(field.name)[0]))]
            )
            exact = [(found, name) for name in names if not name.isdigit() and (found := self._find(name))][
                : None if field.role == "list" else 1
            ]
            loose = [(found, name) for name in names if not exact and (found := self._find_words(name, field))]
            loose = loose if field.role == "list" else loose[:1]
            if len(loose) > 1:
                return False
            for found, name in exact or loose:
                claims.setdefault(tuple(found), []).append((field, name))
        taken: set[int] = set()
        for claim in sorted(claims, key=len, reverse=True):
            if any(token.start in taken for token in claim):
                if len({token.start for token in claim} - taken):
                    return False
                continue
            rest = [token.plain for token in self._tokens if token not in claim and not token.quoted]
            fitting = claims[claim]
            if len(fitting) > 1:
                fitting = [
                    (field, name) for field, name in fitting
                    if any(_is_any(word, rest) for word in _group_words(field))
                ]  # fmt: skip
            if len(fitting) != 1:
                return False
            field, name = fitting[0]
            taken |= {token.start for token in claim}
            if field.role == "list":
                before = self._acts.pop((field.frame, field.index), None) if field.multiple else None
                act = Act("choose", field, (*(before.values if before else ()), name))
            elif field.role in ("option", "tab", "menuitem"):
                act = Act("press", field)
            else:
                act = Act("clear" if self._off else "check", field)
            if not self._put(act):
                return False
        self._tokens = [token for token in self._tokens if token.start not in taken]
        return True

    def _find(self, name: str) -> list[_Token]:
        words = re.findall(r"\w+", fold(name))
        plain = [[*re.findall(r"\w+", token.plain)] if not token.quoted else [] for token in self._tokens]
        for start in range(len(self._tokens)):
            for end in range(start + 1, min(len(self._tokens), start + len(words)) + 1):
                if words and all(plain[start:end]) and [word for part in plain[start:end] for word in part] == words:
                    return self._tokens[start:end]
        quoted = [token for token in self._tokens if token.quoted and fold(token.text) == fold(name)]
        return quoted[:1]

    def _find_words(self, name: str, field: Control) -> list[_Token]:
        """The tokens that say all words of a name in any order, in words of the same meaning, in either language."""
        words, found = [word for word in _content(name) if not (field.is_box and word in _INCLUDED | _NAMELESS)], []
        for word in words:
            said = [token for token in self._tokens if not token.quoted and token.plain not in _FILLERS]
            fitting = _reads if field.role == "list" else _alike
            token = next((one for one in said if one not in found and fitting(one.plain, word)), None)
            if token is None or word.isdigit() or (not _same(token.plain, word) and self._names_another(token, field)):
                return []
            found.append(token)
        # The word for the list itself chooses nothing in it.
        return [] if field.role == "list" and all(_is_any(word, _content(field.name)) for word in words) else found

    def _names_another(self, token: _Token, field: Control) -> bool:
        """Whether a word is that of another field or a heading, to the letter: "forma de pago" chooses no "Pagadas"."""
        others = [one for one in self._fields if one is not field and one.name != field.name]
        words = [word for one in others for word in (*_content(one.name), *_group_words(one))]
        return any(_same(token.plain, word) for word in (*words, *self._known))

    def _take_spans(self, spans: Sequence[Span]) -> bool:
        """Addresses, amounts, and numbers of something."""
        for span in spans:
            if span.unit == "article" and span.kind != "number":
                continue
            inside = [token for token in self._tokens if token.start >= span.start and token.end <= span.end]
            if span.unit != "article" and all(token.plain in _FILLERS for token in inside):
                continue
            if span.kind == "email":
                fields = [one for one in self._fields if one.kind == "email" and self._is_free(one)]
                fields = fields or [one for one in self._fields if self._is_free(one) and one.is_free
                                    and {"email", "mail", "correo"} & {*_content(one.name)}]  # fmt: skip
                value = str(span.value)
            elif span.kind == "money":
                fields = [
                    one for one in self._fields
                    if one.role in ("textbox", "spinbutton") and self._is_free(one) and _AMOUNTS & {*_content(one.name)}
                ]  # fmt: skip
                value = f"{span.value:g}" if span.value == int(span.value) else f"{span.value:.2f}"
            elif span.kind == "number":
                ends = [one.start for one in spans if one.start >= span.end and one.kind == "number"]
                after = [
                    token for token in self._tokens if span.end <= token.start < min(ends, default=len(self._text))
                ]
                after = [token for token in after if token.plain not in _FILLERS]
                counters = [one for one in self._fields if one.role in ("spinbutton", "list") and self._is_free(one)]
                fields = [one for one in counters if after and _is_any(after[0].plain, _content(one.name))]
                # "Two tickets for adults": what the page is about may stand between a number and whose it is.
                if not fields and len(after) > 1 and any(_same(after[0].plain, word) for word in self._known):
                    fields = [one for one in counters if _is_any(after[1].plain, _content(one.name))]
                value = f"{span.value:g}"
            elif span.kind == "quote":
                continue
            else:
                return False
            if span.unit == "article" and len(fields) != 1:
                continue  # "a" is no number, unless it is of what a field counts: "one child"
            if len(fields) != 1 or not self._put(fit(fields[0], value)):
                return False
            self._drop(span.start, span.end)
        return True

    def _take_rest(self) -> bool:
        """What is quoted or "called" something, where one field is left that takes any words and is meant."""
        free = [one for one in self._fields if one.role == "textbox" and one.is_free and one.kind != "password"]
        free = [one for one in free if self._is_free(one)]
        free = [one for one in free if self._is_meant(one)]
        quoted = [token for token in self._tokens if token.quoted and not token.names]
        if len(quoted) == 1 and len(free) == 1:
            self._drop(quoted[0].start, quoted[0].end)
            self._tokens = [token for token in self._tokens if token.plain not in _CALLED]
            return self._put(fit(free[0], quoted[0].text))
        called = [token for token in self._tokens if token.plain in _CALLED]
        if len(called) == 1 and not quoted and len(free) == 1:
            value = [token for token in self._tokens if token.start > called[0].start]
            if value:
                self._drop(called[0].start, value[-1].end)
                return self._put(fit(free[0], self._text[value[0].start : value[-1].end].strip(" ,.")))
        return not called

    def _is_meant(self, field: Control) -> bool:
        """Whether the sentence says a word of a field's name, or there is no other field that it could speak of."""
        said = [token.plain for token in _tokens(self._text) if not token.quoted and token.plain not in _FILLERS]
        said += [word for token in _tokens(self._text) if token.names for word in _content(token.text)]
        name = [word for word in _content(field.name) if word not in _NAMELESS]
        return any(_is_any(word, said) for word in name) or (
            not self._sure and len(self._fields) == 1 and not _OPTIONAL & {*name}
        )


_FIRST = re.compile(r"\s+[|\u00b7\u2013\u2014(-]")
"""What ends the part of a label that tells it from others: "22:15 · Room 1"."""
_NEAR_WORDS = 3
_EDGES = tuple(
    frozenset(line.split())
    for line in (
        "from start starts starting begin begins beginning opens desde inicio empieza comienza abre comienzo",
        "until till to end ends ending closes hasta fin final termina acaba cierra",
    )
)
"""Words for the beginning and the end of a time, beside one and in the name of its field."""
_WRITTEN = ("textbox", "searchbox", "combobox", "slider", "spinbutton")
_CALLED = frozenset(
    "called named titled saying says entitled llamado llamada llame llama titulado titulada diciendo diga dice".split()
)
_INCLUDED = frozenset("included allowed available incluido incluida permitidos permitidas".split())
_NAMELESS = frozenset("new add enter your nuevo nueva anadir tu select choose".split())
"""Words in the names of fields that say nothing of which."""
_GIVING = frozenset("is are es son seria sera to at a al en como as should be".split())
"""Words between the name of something and its value."""
_BEFORE_VALUE = frozenset("number it down up numero".split()) | _GIVING | _CALLED
_ANNOUNCED = [
    (frozenset(before.split()), frozenset(names.split()))
    for before, _, names in (
        line.partition(":")
        for line in """
from de desde: from desde origin origen salida company organisation organization empresa
to a hasta hacia: to hasta destination destino recipient payee beneficiary destinatario beneficiario
in en: city ciudad location ubicacion place lugar
called named titled entitled llamado llamada llame llama titulado titulada: name title nombre titulo
saying says diciendo diga dice: message body text comment mensaje texto comentario cuerpo
about: subject asunto
""".strip().splitlines()
    )
]
"""Words before a value, and words in the names of the fields that it is for."""
_AMOUNTS = frozenset("amount importe cantidad sum total price precio eur euros usd value money".split())


def _group_words(field: Control) -> list[str]:
    texts = [text for texts in field.places[:1] for text in texts if text != field.name]
    return [*(_content(field.name) if field.role == "list" else ()), *_content(" ".join(texts))]
