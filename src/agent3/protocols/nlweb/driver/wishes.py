"""What a sentence in somebody's own words means on a page: "delete the project Atlas", "turn it down to 10".

It comes after the forms that ``page_plans`` reads, and is as strict in another way: the verb must be that of one
button, or of none; and every word must be explained by a name, a row, a value or the headings of the page. One word
that nothing explains, or two ways to read it, and nothing is done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agent3.protocols.nlweb.driver.filling import OPTIONAL, Filling, group_words
from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, fit, open_first, plan_all
from agent3.protocols.nlweb.driver.page_view import DAYS, Control, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, parse_sentence
from agent3.protocols.nlweb.driver.wording import (
    DOING,
    FILLERS,
    UNITS,
    Token,
    can_mean,
    find_unexplained,
    forms_of,
    is_any_of,
    is_cousin,
    is_reading,
    is_same,
    read_count,
    read_words,
    says_row,
    split_verb,
    stem_of,
    words_for_things,
    words_in,
    words_of_headings,
    words_of_places,
    words_of_row,
)
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import fold, is_action

__all__ = ["fill_opened", "find_beginning", "find_fresh", "find_menu", "is_beginning", "split_wish", "wish"]

_GENERIC = frozenset(
    "now all it my me this the to of a ahora todo todos mi el la los las de a send submit enviar place make do complete"
    " hacer realizar start pdf csv".split()
)
"""Words in the name of a button that need not be said."""
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
_LOGIN = re.compile(
    r"^(?:log|sign)\s+(?:me\s+)?(?:in|on)\b|^(?:inicia|iniciar)\s+sesi[oó]n\b|^(?:entra|entrar)\b", re.IGNORECASE
)
_PRESSED = ("button", "menuitem")
_FILLED = ("textbox", "searchbox", "combobox", "spinbutton", "slider", "list")


def wish(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    """The acts that a clause asks for in its own words, or a doubt."""
    text = _spell_out(clause)
    if not any(can_mean("rename", word) for one in view.controls for word in words_in(one.name)[:1]):
        text = _RENAME.sub(r"set the name of \1 \2", text)  # what no button does is written
    for pool in (view, view.reachable):
        off = clause.verb == "clear" or _STOP.match(text) is not None
        given, said = _give(pool, text, off=off, choosing=clause.verb == "choose"), read_words(text)
        if given is not None and any(_is_for(one, said) for one in pool.visible if not one.row or says_row(said, one)):
            given = None  # "change my password to …" has a button of its own: the value alone is not all
        if given is not None and _find_giving(pool, read_words(text), given):
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


def _is_for(button: Control, tokens: Sequence[Token]) -> bool:
    """Whether a button is called what a sentence asks for; a mere "Add" is not what "put it on hold" asks for."""
    if _after_verb(button, tokens) is None:
        return False
    name = words_in(button.name)
    return len(name) > 1 or bool(forms_of(split_verb(tokens)[0]) & forms_of(name[0]))


def _find_giving(view: PageView, tokens: Sequence[Token], acts: Iterable[Act] = ()) -> list[Control]:
    """The buttons of forms that give what a sentence without a verb begins with: "Book a visit" for "a visit on …"."""
    said = [token.plain for token in tokens if token.plain not in FILLERS][:1]
    if not tokens or tokens[0].plain not in _ARTICLES:
        return []
    forms = {(act.control.frame, act.control.form) for act in acts}
    return [
        one for one in view.visible
        if one.sends and (not forms or (one.frame, one.form) in forms)
        and any(is_same(word, other) for word in words_in(one.name)[1:] for other in said)
    ]  # fmt: skip


def _leaves_verb(view: PageView, text: str, acts: Sequence[Act]) -> bool:
    """Whether another thing to do comes after an "and", which none of the acts does: "enrol me in Art and pay"."""
    used = [act.control for act in acts]
    said = [word for one in used for word in words_in(" ".join((one.name, *one.row, *one.options)))]
    said += [word for act in acts for value in act.values for word in words_in(value)]
    for part in _AND.split(text)[1:]:
        tokens = read_words(part)
        verb = split_verb(tokens)[0]
        if not verb or any(is_same(verb, word) for word in said):
            continue
        buttons = [one for one in view.visible if _after_verb(one, tokens) is not None]
        if buttons and not any(one in used for one in buttons):
            return True
        if not buttons and is_action(verb) and verb not in _NOUNS and not any(can_mean(verb, word) for word in said):
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
            bare = said != part or not (one and (one[0].verb or is_action(split_verb(read_words(part))[0])))
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
    tokens = read_words(clause.text)
    menus = [
        one for one in view.visible
        if one.row and not one.expanded and not one.disabled and one.role == "button" and _is_menu(one)
    ]  # fmt: skip
    said = [token for token in tokens if token.plain not in FILLERS]
    named = [one for one in menus if _names_row(tokens, one)] or [one for one in menus if says_row(said, one)]
    return named[0] if len(named) == 1 else None


def _is_menu(control: Control) -> bool:
    """Whether a button opens the menu of its row: it says so, or is called nothing but that or three dots."""
    said = {*words_in(control.name)}
    bare = not re.search(r"\w", control.name)
    return control.menu or bare or bool(said & _MENU_WORDS and said <= {*_MENU_WORDS, *words_of_row(control)})


def _names_row(tokens: Sequence[Token], control: Control) -> bool:
    """Whether a text by which a row is known is said, whole."""
    said = [word for token in tokens for word in re.findall(r"\w+", fold(token.text))]
    for text in control.row:
        words = re.findall(r"\w+", fold(text))
        starts = range(len(said) - len(words) + 1)
        if words_in(text) and any(said[start : start + len(words)] == words for start in starts):
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


# Pressing: "delete the project Atlas", "archive the message from Ann", "put two teas in the cart"


def _press_named(view: PageView, text: str, written: Sequence[Control]) -> list[Act] | None:
    """The one button whose name is the verb, in the row that the other words name."""
    tokens = read_words(text)
    things, found = words_for_things(view), []
    buttons = [(one, rest) for one in view.visible if (rest := _after_verb(one, tokens, things)) is not None]
    last = written[-1].places[:1] if written else []
    # "Take seat 4 and book it": what "it" is was said before.
    if any(token.plain in ("it", "them") or re.search(r"(?:[aei]r?)l[oa]s?$", tokens[0].plain) for token in tokens):
        meant = [stem_of(word) for one in written[-1:] for word in words_in(one.name)]
        buttons = [
            (one, rest) for one in view.visible
            if (rest := _after_verb(one, tokens, things if one.row else meant)) is not None
        ]  # fmt: skip
        buttons = [(one, rest) for one, rest in buttons if last and one.places[:1] == last] or buttons
    # "Create an account" is the button "Create account", whether it can be pressed or not, and never "Add".
    stems, verb = {stem_of(token.plain) for token in tokens}, split_verb(tokens)[0]
    very = [
        (one, rest) for one, rest in buttons
        if len(words_in(one.name)) > 1 and forms_of(verb) & forms_of(words_in(one.name)[0])
        and all(stem_of(word) in stems for word in words_in(one.name)[1:])
    ]  # fmt: skip
    buttons = very or buttons
    only = [token.plain for token in tokens if token.plain not in FILLERS]
    if not buttons and len(only) == 1 and written and any(can_mean(only[0], one) for one in ("save", "send", "apply")):
        # "Set the city to Rome and save": the button beside the field that was filled.
        near = [one for one in view.visible if one.role == "button" and not one.row and _is_beside(written[-1], one)]
        near = [one for one in near if can_mean(only[0], (words_in(one.name) or [""])[0])]
        return [Act("press", near[0])] if len(near) == 1 else None
    for button, rest in buttons:
        name = words_in(button.name)
        left = [
            token
            for token in rest
            if token.quoted or not any(word == token.plain or can_mean(token.plain, word) for word in name)
        ]
        amount, left = _take_amount(view, button, left)
        counts = bool(left) and read_count(left[0]) and not (button.row and says_row(left[:1], button))
        if counts or _is_blank(view, button, written):
            continue  # how many of something nobody can say here, or nothing to send
        # What a thing is called in general says nothing of a button that stands in no row of such things.
        if button.row or button.toolbar:
            left = [
                token
                for token in left
                if token.quoted or not forms_of(token.plain) & things or says_row([token], button)
            ]
        headings = words_in(" ".join(button.under or view.headings[:1]))
        beside = [
            word for one in view.visible if one.is_field and _is_beside(one, button) for word in words_in(one.name)
        ]
        unexplained = find_unexplained(
            left, [*name, *words_of_places(button), *words_in(" ".join(button.columns)), *headings, *beside]
        )
        # Only the very words tell one row from another.
        strange = [token for token in left if not unexplained and _only_alike(token, button, headings)]
        told = [token for token in rest if token.plain not in FILLERS and says_row([token], button)]
        alike = [one for one, _ in buttons if one is not button and one.name == button.name]
        if told and not any(all(says_row([token], one) for token in told) for one in alike):
            strange = []  # other words already say which row
        if not unexplained and not strange and (not button.row or says_row(rest, button)):
            found.append([*amount, Act("press", button)])
        elif unexplained and button.row and not strange and says_row(rest, button) and not button.sends:
            # "Book the attic from May 2 to May 4": what is asked for all rows stands outside of them.
            known = [*name, *words_of_row(button), *headings]
            sent = {(one.frame, one.form) for one in view.visible if one.sends and one.form >= 0}
            fields = [
                one for one in view.visible
                if not one.row and not one.is_free and one.role != "combobox" and _is_given(one, view, "set")
                and (one.frame, one.form) not in sent
            ]  # fmt: skip
            others = [token for token in left if not says_row([token], button)]
            acts = Filling(text, others, fields, known, things=things, sure=True).read() if fields else None
            if acts:
                found.append([*amount, *acts, Act("press", button)])
        elif unexplained and button.toolbar and not button.row:
            found += [[Act("check", box), Act("press", button)] for box in _marks(view, button, left, headings)]
    exact = [acts for acts in found if is_same(split_verb(tokens)[0], (words_in(acts[-1].control.name) or [""])[0])]
    found = exact or found
    said = [token.plain for token in tokens]  # "Move to Done" is said by its very words, "Move to To do" is not
    exact = [
        acts for acts in found
        if all(any(is_same(word, one) for one in said) for word in words_in(acts[-1].control.name)[1:])
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


def _after_verb(button: Control, tokens: Sequence[Token], meant: Iterable[str] = ()) -> list[Token] | None:
    """The tokens after the verb, where that is what a button does; None otherwise. What is ``meant`` is as if said."""
    verb, rest = split_verb(tokens)
    if button.role not in _PRESSED or not verb or (button.opens and button.role == "button"):
        return None
    name = words_in(button.name)
    if button.row and button.toggles and not button.checked and name and not is_action(name[0]):
        # "Save the lamp to my wishlist", where that is what a button with two states is called.
        words = [token.plain for token in rest]
        if any(can_mean(verb, one) for one in ("add", "save")) and all(any(is_same(w, s) for s in words) for w in name):
            return rest
    light = bool(name) and name[0] in _GENERIC  # "invite Ann" for "Send invitation", "order" for "Place order"
    if not name or not (can_mean(verb, name[0]) or (light and any(can_mean(verb, word) for word in name[1:]))):
        return None
    said = [verb, *(token.plain for token in rest)]
    said += [word for token in tokens if token.quoted for word in words_in(token.text)]
    missing = [
        word for word in name if word not in _GENERIC | UNITS and not word.isdigit() and not is_any_of(word, said)
    ]
    known = [*meant]
    missing = [word for word in missing if not any(can_mean(one, word) for one in said) and stem_of(word) not in known]
    missing += _ONE & {*re.findall(r"\w+", fold(button.name))} - {token.plain for token in rest}  # "remove one"
    return None if missing else rest


_ONE = frozenset("one uno una".split())


def _only_alike(token: Token, button: Control, headings: Sequence[str]) -> bool:
    """Whether a word is explained by a mere likeness to the text of a row, which another row may have as well."""
    if token.quoted or token.plain in FILLERS:
        return False
    around = [text for texts in button.places for text in texts if text not in button.row]
    exact = [*words_of_row(button), *words_in(button.name)]
    loose = [*headings, *words_in(" ".join((button.name, *around, *button.columns)))]
    return not any(is_same(token.plain, word) for word in exact) and not is_any_of(token.plain, loose)


def _take_amount(view: PageView, button: Control, tokens: list[Token]) -> tuple[list[Act], list[Token]]:
    """A number at the beginning, where the row of a button has one field for numbers."""
    if not tokens or not button.row:
        return [], tokens
    number = read_count(tokens[0])
    fields = [one for one in view.visible if one.role == "spinbutton" and one.row == button.row]
    if number is None or len(fields) != 1:
        return [], tokens
    act = fit(fields[0], number)
    return ([], tokens) if isinstance(act, Doubt) else ([act], tokens[1:])


def _marks(view: PageView, button: Control, tokens: Sequence[Token], headings: Sequence[str]) -> Iterator[Control]:
    """The box of the one row that words name, for a button of a toolbar that acts on what is marked."""
    boxes = [one for one in view.visible if one.role == "checkbox" and one.row]
    if any(one.checked for one in boxes):
        return
    for box in boxes:
        own = words_in(box.name)
        strange = [
            token for token in find_unexplained(tokens, [*headings, *words_in(button.name)])
            if not says_row([token], box) and (token.quoted or not is_any_of(token.plain, own))
        ]  # fmt: skip
        if not strange and says_row(tokens, box):
            yield box


# Going somewhere: "go to the next page", "show only active tasks"

_KINDS = frozenset(
    "page pagina button boton link enlace tab pestana section seccion view vista folder carpeta menu list lista screen"
    " pantalla".split()
)


def _go(view: PageView, clause: Clause, text: str) -> list[Act] | None:
    """The one control that has the words of a name, whatever it is called beside that: "página 2" for "Page 2"."""
    verb, rest = split_verb(read_words(text))
    leads = clause.verb == "press" or bool(forms_of(verb) & _GOES)
    tokens = [token for token in (rest if leads else read_words(text)) if token.plain not in FILLERS]
    if clause.quotes or not tokens:
        return None
    if (
        not leads
        and is_action(verb)
        and not any(is_same(verb, word) for one in view.visible for word in words_in(one.name))
    ):
        return None
    around, things, found = [*_KINDS, *words_of_headings(view)], words_for_things(view), []
    for control in view.visible:
        name = [word for word in words_in(control.name) if word not in _KINDS]
        own = control.role in (*_PRESSED, "link", "tab", "treeitem") and not control.sends and not control.toggles
        own = own and (leads or not control.opens or control.role == "link")
        # Without a verb only a name of several words says what to do: "I forgot my password".
        if (
            own
            and len(name) > (not leads)
            and all(any(is_reading(token.plain, word) for token in tokens) for word in name)
        ):
            left = [token for token in tokens if not any(is_reading(token.plain, word) for word in name)]
            if not find_unexplained(left, around, things) and (
                not control.row or not left or says_row(tokens, control)
            ):
                found.append(Act("press", control))
    if len(found) != 1 or found[0].control.disabled or has_consequences(found[0].control.name):
        return None
    return found


# Giving a value: "move Write docs to Done", "my phone number is 555", "I would like express delivery"

_ONLY = frozenset("only solo solamente unicamente just".split())


def _give(view: PageView, text: str, *, off: bool = False, choosing: bool = False) -> list[Act] | None:
    """Values for fields, options of lists, and boxes, of the whole page or of the one row that is named."""
    verb, rest = split_verb(read_words(text))
    plain = bool(forms_of(verb) & _SETS) or off or verb in _ON
    # What a verb asks for is more than a value, unless it is in the name of a box: "keep me signed in".
    led = bool(read_words(text)) and read_words(text)[0].plain in _ARTICLES
    acting = not plain and not led and verb not in _NOUNS
    acting = acting and (is_action(verb) or any(line & forms_of(verb) for line in DOING))
    tokens = rest if plain else read_words(text)
    headings, found = words_of_headings(view), []
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
                if one.role == "menuitem" or (one.is_box and is_any_of(verb, [*words_in(one.name), *group_words(one)]))
                or (one.role in ("list", "combobox") and is_cousin(verb, (words_in(one.name) or [""])[0]))
            ]  # fmt: skip
        if not fields or (row and not says_row(tokens, fields[0])):
            continue
        known = [*headings, *(words_of_row(fields[0]) if row else ()), *(_DONE if can_mean(verb, "mark") else ())]
        acts = Filling(text, tokens, fields, known, off=off, things=words_for_things(view) | _UP, sure=True).read()
        acts = acts or (_give_row(fields, tokens, known, verb if plain else "", off) if row else None)
        if acts:
            found.append((row, acts))
    # Words that name a row are no value of a field elsewhere.
    found = [one for one in found if one[0]] or found
    distinct = {tuple((act.control.frame, act.control.index, act.values) for act in acts): acts for _, acts in found}
    if len(distinct) != 1:
        return None
    acts = next(iter(distinct.values()))
    if any(token.plain in _ONLY for token in read_words(text)) and _leaves_others(view, acts):
        return None
    return acts


def _give_row(
    fields: Sequence[Control], tokens: Sequence[Token], explained: Sequence[str], verb: str, off: bool
) -> list[Act] | None:
    """What a row has only one of, and is not named: how many ("four green teas"), or whether it is in use."""
    numbers = [one for one in fields if one.role == "spinbutton"]
    boxes = [one for one in fields if (one.is_box or one.toggles) and {*words_in(one.name)} <= _STATES]
    said = [token for token in tokens if token.plain not in FILLERS]
    known = [*explained, *words_in(" ".join(fields[0].columns))]
    value = read_count(said[0]) if said else None
    if value is not None and len(numbers) == 1:
        act, said = fit(numbers[0], value), [token for token in said[1:] if token.plain not in _COUNTED]
    elif len(boxes) == 1 and (off or verb in _ON):
        act = Act("clear" if off else "check", boxes[0])
    else:
        return None
    strange = [one for one in said if not one.quoted and not any(is_same(one.plain, word) for word in known)]
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
        return opener is not None and can_mean(verb, (words_in(opener.name) or [""])[0])
    return control.role in (*_FILLED, "option", "tab") or control.is_box or control.toggles


def _leaves_others(view: PageView, acts: Sequence[Act]) -> bool:
    """Whether a box is marked beside others that are marked: then "only" says more than to mark it."""
    boxes = view.visible
    return any(
        act.kind == "check" and act.control.role == "checkbox" and not _ONLY & {*words_in(act.control.name)}
        and any(one.role == "checkbox" and one.checked and one.places[:1] == act.control.places[:1] for one in boxes)
        for act in acts
    )  # fmt: skip


# Filling a form and sending it: "book a double room for two guests from May 2 to May 4"


def _fill(view: PageView, text: str) -> list[Act] | None:
    """The button that a verb names, after the fields of its form have what the other words say."""
    tokens = read_words(text)
    login = _LOGIN.match(text)
    if login is not None:
        passwords = [one for one in view.visible if one.kind == "password"]
        forms = {(one.frame, one.form) for one in passwords}
        buttons = [one for one in view.visible if one.sends and (one.frame, one.form) in forms]
        rest = [token for token in tokens if token.start >= login.end()]
    else:
        fitting = [one for one in view.visible if not one.row and not one.opens and not one.toolbar]
        verb, rest = split_verb(tokens)
        buttons = [one for one in fitting if _after_verb(one, tokens) is not None]
        if not buttons and (giving := _find_giving(view, tokens)):
            found = [acts for one in giving if (acts := _fill_form(view, view.visible, one, text, tokens))]
            return found[0] if len(found) == 1 else None
        if not buttons:  # "send 20 euros to Ann" says what is sent by what the form asks for
            buttons = [one for one in fitting if one.sends and is_same(verb, (words_in(one.name) or [""])[0])]
            found = [acts for one in buttons if (acts := _fill_form(view, view.visible, one, text, rest))]
            return found[0] if len(found) == 1 and len(found[0]) > _FEWEST_SAID else None
    found = [acts for button in buttons if (acts := _fill_form(view, view.visible, button, text, rest))]
    return found[0] if len(found) == 1 else None


_FEWEST_SAID = 2
"""How many values tell what a form sends, where its button is named by its verb alone."""


def _fill_form(
    view: PageView, controls: Sequence[Control], button: Control, text: str, tokens: Sequence[Token]
) -> list[Act] | None:
    """Values for the fields that a button sends, and the button."""
    fields = [
        one for one in controls
        if not one.row and not one.disabled and not one.read_only and (not one.searches or button.searches)
        and (one.role in (*_FILLED, "option") or one.is_box) and (
            _is_beside(one, button) or _is_lonely(one, button, view)
        )
    ]  # fmt: skip
    known = [*words_in(button.name), *words_of_headings(view), *words_of_places(button)]
    acts = Filling(text, tokens, fields, known, things=words_for_things(view)).read()
    # What is half filled is not sent: "pay with card 4111" has not said all that the card's fields ask for.
    touched = [act.control for act in acts or ()]
    marked = any(one.required for one in fields)
    empty = [
        one for one in fields
        if one.role in ("textbox", "spinbutton") and one.kind != "textarea" and not one.value and one not in touched
        and (one.required or not (marked or OPTIONAL & {*words_in(one.name)}))
    ]  # fmt: skip
    return [*acts, Act("press", button)] if acts and not empty else None


_NEVER = frozenset("cancel close discard back reset cancelar cerrar descartar volver".split())


def _open_and_fill(view: PageView, text: str) -> list[Act] | None:
    """A hidden dialog of the page: the one button that shows it, its fields, and the button that sends it."""
    tokens, found = read_words(text), []
    hidden = [replace(one, visible=True) for one in view.controls if not one.visible and one.opener < 0 and one.places]
    buttons = [one for one in hidden if one.role == "button" and not _NEVER & {*words_in(one.name)[:1]}]
    openers = [
        one for one in view.visible
        if one.role == "button" and not (one.row or one.sends or one.disabled or has_consequences(one.name))
    ]  # fmt: skip
    for button in buttons:
        if sum(_is_beside(one, button) for one in buttons) != 1:
            continue
        title = words_of_places(button)
        for opener in openers:
            name = words_in(opener.name)
            by_verb = _after_verb(replace(opener, opens=False), tokens) is not None
            starts = bool(name) and any(can_mean(word, "create") for word in name[:1])
            if (by_verb and any(is_any_of(word, title) for word in name)) or (
                starts and _after_verb(button, tokens) is not None and (len(name) == 1 or is_any_of(name[-1], title))
            ):
                view_of = PageView(view.controls, (), [*view.headings, *name, *title])
                acts = _fill_form(view_of, hidden, button, text, split_verb(tokens)[1])
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
    for tokens, pool in ((read_words(one), pool) for one in texts for pool in (view, view.reachable)):
        things, found = words_for_things(pool), []
        for one in pool.visible:
            said = [token for token in tokens if token.plain not in FILLERS]
            rest = _after_verb(replace(one, opens=False), tokens, things)
            if rest is None or one.sends or one.disabled or has_consequences(one.name) or not _asks_more(one):
                continue
            known = [*words_in(one.name), *words_of_row(one), *words_of_places(one)]
            if (not one.row or says_row(rest, one)) and find_unexplained(said[1:], known):
                found.append(one)
        places = [{*words_in(text)} for one in found for texts in one.places for text in texts]
        words = [stem_of(token.plain) for token in tokens]
        named = [
            one for one in found
            if any(words_in(text) and all(stem_of(word) in words for word in words_in(text)) and {*words_in(text)}
                   in places for texts in one.places for text in texts)
        ]  # fmt: skip
        found = found if len(found) == 1 else named
        if len(found) == 1:
            return open_first(view, [Act("open", found[0])])
    return []


def _asks_more(control: Control) -> bool:
    """Whether a button only opens something that asks for more."""
    name = words_in(control.name)
    if control.role == "menuitem":
        return bool({*name[:1]} & _ITEMS) or control.name.rstrip(" .").endswith("\u2026")
    if control.name.rstrip().endswith(("\u2026", "...")) or (control.opens and not control.menu):
        return bool(name)
    alone = control.row or {*name} & _COMPOSES
    return len(name) > (not alone) and is_beginning(control)


def is_beginning(control: Control) -> bool:
    """Whether a button says that it begins something, such as a form; "Add" in the row of a product adds it at once."""
    return bool({*words_in(control.name)[:1]} & (_CHANGES if control.row else _BEGINS))


def fill_opened(view: PageView, before: PageView, opener: Control, clause: Clause) -> Plan:
    """What a clause means in what its beginning has opened: values for the fields there, and the button."""
    text = _RENAME.sub(r"set the name of \1 \2", _spell_out(clause))
    fresh = [replace(one, row=()) for one in find_fresh(view, before)]
    around = [opener.name, *opener.row, *(text for texts in opener.places for text in texts), *_CONTAINERS]
    opened = PageView(fresh, (), [*view.headings, *around])
    buttons = [
        one for one in fresh if one.role == "button" and not one.opens and not _NEVER & {*words_in(one.name)[:1]}
    ]
    buttons = [one for one in buttons if one.sends] or buttons
    tokens = split_verb(read_words(text))[1]
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
