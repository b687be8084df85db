"""What a sentence in somebody's own words means on a page: "delete the project Atlas", "turn it down to 10".

It comes after the forms that ``page_plans`` reads, and is as strict in another way: the verb must be that of one
button, or of none; and every word must be explained by a name, a row, a value or the headings of the page. One word
that nothing explains, or two ways to read it, and nothing is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, Plan, fit, open_first, plan_all
from agent3.protocols.nlweb.driver.page_view import Control, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, parse_sentence
from agent3.sentences.consequences import has_consequences
from agent3.sentences.lexicon import fold, meanings, to_concepts
from agent3.sentences.spans import Span, find_spans

__all__ = ["find_menu", "split_wish", "wish"]

_FILLERS = frozenset(
    "a an the this that these those my your our its of for from to in on at into onto by with as is be only please now"
    " me us i we want would like need should and it"
    " un una unos unas el la los las lo le este esta mi tu su de del al a en para por con como que y me nos quiero"
    " quisiera necesito favor ahora ser".split()
)
"""Words that need no explanation."""
_GENERIC = frozenset(
    "now all it my me this the to of a ahora todo todos mi el la los las de a send submit enviar".split()
)
"""Words in the name of a button that need not be said."""
_UNITS = frozenset("euros euro dollars dollar degrees grados percent %  € $".split())
_SETS = frozenset(
    "set change make move put turn raise lower increase reduce dim adjust update mueve mover cambia cambiar pon ponme"
    " ponle poner sube subir baja bajar ajusta haz deja".split()
)
"""Verbs that give something a value, and press nothing."""
_LOGIN = re.compile(
    r"^(?:log|sign)\s+(?:me\s+)?(?:in|on)\b|^(?:inicia|iniciar)\s+sesi[oó]n\b|^(?:entra|entrar)\b", re.IGNORECASE
)
_WORD = re.compile(r"\"[^\"]*\"|[^\s,;:()\"]+")
_PRESSED = ("button", "menuitem")
_FILLED = ("textbox", "searchbox", "combobox", "spinbutton", "slider", "list")


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, or a quoted text; ``start`` and ``end`` are its place in the clause."""

    text: str
    plain: str
    quoted: bool
    start: int
    end: int


def wish(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    """The acts that a clause asks for in its own words, or a doubt."""
    text = _PHRASES.sub(lambda match: _PHRASE[fold(match[0])], clause.text.strip(" .!"))
    for pool in (view, view.reachable):
        given = _give_value(pool, text)
        if given is not None and any(_after_verb(one, _tokens(text)) is not None for one in pool.visible):
            given = None  # "change my password to …" has a button of its own: the value alone is not all
        ways = (_press_named(pool, text, written), given, _fill(pool, text), _set_box(pool, text), _go(pool, clause))
        found = [acts for acts in ways if acts is not None]
        if len(found) == 2 and all(len(acts) == 1 and acts[0].control is found[1][0].control for acts in found):
            found = [acts for acts in found if acts[0].kind in ("check", "clear")] or found  # a button with two states
        if len(found) == 1:
            return open_first(view, found[0])
        if found:
            return Doubt("several", clause.text)
    return Doubt("words", clause.text)


def split_wish(view: PageView, clause: Clause, written: Sequence[Control]) -> list[Clause]:
    """A clause as several, where "and" or a comma stands between things that can all be done; else as it is."""
    parts, verb = _AND.split(clause.text), clause.text.split(maxsplit=1)[0]
    clauses: list[Clause] = []
    used = [*written]
    for part in parts if 1 < len(parts) <= _MOST_PARTS else ():
        # "Move A to X and B to Y". Two things to look for are one search, or one of them is no thing to look for.
        for said in (part,) if clause.verb == "search" else (part, f"{verb} {part}"):
            one = parse_sentence(said)
            found = plan_all(view, one, used, otherwise=wish)
            if all(isinstance(each, list) for each in found):
                clauses += one
                used += [act.control for each in found if isinstance(each, list) for act in each]
                break
        else:
            return [clause]
    return clauses or [clause]


def find_menu(view: PageView, clause: Clause) -> Control | None:
    """The one menu button of the one row that a clause names by its first words, where the clause may mean an item."""
    tokens = _tokens(clause.text)
    menus = [one for one in view.visible if one.menu and one.row and not one.expanded and not one.disabled]
    named = [one for one in menus if _names_row(tokens, one)]
    return named[0] if len(named) == 1 else None


def _names_row(tokens: Sequence[_Token], control: Control) -> bool:
    """Whether a text by which a row is known is said, whole."""
    said = [word for token in tokens for word in re.findall(r"\w+", fold(token.text))]
    for text in control.row:
        words = re.findall(r"\w+", fold(text))
        starts = range(len(said) - len(words) + 1)
        if _content(text) and any(said[start : start + len(words)] == words for start in starts):
            return True
    return False


_AND = re.compile(r",\s+(?:and\s+|y\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_MOST_PARTS = 6
_PHRASE = {"get rid of": "delete", "throw away": "delete", "take out": "remove", "deshazte de": "borra"}
_PHRASES = re.compile(rf"^(?:{'|'.join(_PHRASE)})\b", re.IGNORECASE)


# Words


def _tokens(text: str) -> list[_Token]:
    return [
        _Token(match[0].strip('"'), fold(match[0].strip("\".!?'")), match[0].startswith('"'), *match.span())
        for match in _WORD.finditer(text)
    ]


def _content(text: str) -> list[str]:
    """The words of a name that say something."""
    return [word for word in re.findall(r"\w+", fold(text)) if word not in _FILLERS]


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    """Without the ending of a plural."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-2] if word.endswith(("ches", "shes", "xes", "ores", "ones", "ades")) else word[:-1]
    return word


def _same(one: str, other: str) -> bool:
    """The same word, in the singular or the plural."""
    return one == other or _stem(one) == _stem(other)


def _alike(one: str, other: str) -> bool:
    """The same word, a word of the same meaning, or its cousin in the other language."""
    if _same(one, other):
        return True
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    concept = to_concepts(one)
    return (
        bool(meanings(one) & meanings(other))
        or (len(concept) == 1 and concept == to_concepts(other))
        or (shared >= 5 and shared >= max(len(one), len(other)) - 4)
    )


def _is_any(word: str, words: Iterable[str]) -> bool:
    return any(_alike(word, other) for other in words)


def _left_over(tokens: Iterable[_Token], explained: Iterable[str]) -> list[_Token]:
    """The words that nothing explains. A quoted text is never explained by words."""
    known = [*explained]
    return [one for one in tokens if one.quoted or (one.plain not in _FILLERS and not _is_any(one.plain, known))]


def _row_words(control: Control) -> list[str]:
    return [*_content(" ".join(control.row)), *_marked_words(control.row)]


def _marked_words(texts: Iterable[str]) -> list[str]:
    """Words with marks in them, such as the number of an invoice, which are one word to the one who says them."""
    return [
        plain for text in texts for word in text.split() if re.search(r"\w\W+\w", plain := fold(word.strip(".,;:!?")))
    ]


def _says_row(tokens: Iterable[_Token], control: Control) -> bool:
    """Whether a word of the row that a control stands in is said."""
    return any(_same(token.plain, word) for token in tokens for word in _row_words(control))


def _place_words(control: Control) -> list[str]:
    texts = [text for texts in control.places for text in texts]
    return [*_content(" ".join(texts)), *_marked_words(texts)]


def _headings(view: PageView) -> list[str]:
    return [word for text in view.headings for word in _content(text)]


# Pressing: "delete the project Atlas", "archive the message from Ann", "put two teas in the cart"


def _press_named(view: PageView, text: str, written: Sequence[Control]) -> list[Act] | None:
    """The one button whose name is the verb, in the row that the other words name."""
    tokens = _tokens(text)
    buttons = [(one, rest) for one in view.visible if (rest := _after_verb(one, tokens)) is not None]
    headings, found = _headings(view), []
    last = written[-1].places[:1] if written else []
    if any(token.plain in ("it", "them") or re.search(r"(?:[aei]r?)l[oa]s?$", tokens[0].plain) for token in tokens):
        buttons = [(one, rest) for one, rest in buttons if last and one.places[:1] == last] or buttons
    for button, rest in buttons:
        left = [token for token in rest if token.plain not in _content(button.name)]
        amount, left = _take_amount(view, button, left)
        if (left and _number(left[0])) or _is_blank(view, button, written):
            continue
        unexplained = _left_over(left, [*_content(button.name), *_place_words(button), *headings])
        # Only the very words tell one row from another.
        strange = [token for token in left if not unexplained and _only_alike(token, button, headings)]
        if not unexplained and not strange and (not button.row or _says_row(rest, button)):
            found.append([*amount, Act("press", button)])
        elif unexplained and button.toolbar and not button.row:
            found += [[Act("check", box), Act("press", button)] for box in _marks(view, button, left, headings)]
    if len(found) != 1:
        return None
    button = found[0][-1].control
    return None if button.disabled else found[0]


def _is_blank(view: PageView, button: Control, written: Sequence[Control]) -> bool:
    """Whether a button would send fields in which nothing is written: then something was left unsaid."""
    texts = [one for one in view.visible if one.role == "textbox" and not one.row and _is_beside(one, button)]
    return bool(texts) and not button.row and not any(one.value or one in written for one in texts)


def _is_beside(field: Control, other: Control) -> bool:
    """Whether two controls belong together: to one form, or without one to one region."""
    if field.frame != other.frame or field.form != other.form:
        return False
    return field.form >= 0 or (field.places[:1] == other.places[:1] and field.opener == other.opener)


def _after_verb(button: Control, tokens: Sequence[_Token]) -> list[_Token] | None:
    """The tokens after the verb, where that is what a button does; None otherwise."""
    if button.role not in _PRESSED or not tokens or tokens[0].quoted or (button.opens and button.role == "button"):
        return None
    name = _content(button.name)
    verb = tokens[0].plain
    sends = button.sends and bool(name) and name[0] in _GENERIC  # "invite Ann" for "Send invitation"
    if not name or not (_alike(verb, name[0]) or (sends and _is_any(verb, name[1:]))):
        return None
    said = [token.plain for token in tokens]
    missing = [word for word in name if word not in _GENERIC and not word.isdigit() and not _is_any(word, said)]
    return None if missing else [*tokens[1:]]


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
        exact, own = _row_words(box), _content(box.name)
        strange = [
            token for token in _left_over(tokens, [*headings, *_content(button.name)])
            if token.quoted or not (any(_same(token.plain, word) for word in exact) or _is_any(token.plain, own))
        ]  # fmt: skip
        if not strange and _says_row(tokens, box):
            yield box


# Boxes and switches: "keep me signed in", "stop sharing my location"

_STOP = re.compile(r"^(?:stop|deja de|dejar de)\s+", re.IGNORECASE)


def _set_box(view: PageView, text: str) -> list[Act] | None:
    """The box whose name is what the words say, no less and no more."""
    stop = _STOP.match(text)
    tokens = _tokens(text[stop.end() :] if stop else text)
    said = [token.plain for token in tokens if not token.quoted]
    found = []
    for box in view.visible:
        if not (box.is_box or box.toggles) or box.role == "radio" or box.disabled:
            continue
        name, quoted = _content(box.name), [token for token in tokens if token.quoted]
        if quoted:  # the verb, and the name as the page has it
            fits = [fold(token.text) for token in quoted] == [fold(box.name)] and _is_any(
                said[0] if said else "", name[:1]
            )
            fits = fits and all(word in _FILLERS for word in said[1:])
        else:
            fits = (
                (len(name) > 1 or (bool(name) and bool(stop) and box.checked))
                and all(_is_any(word, said) for word in name)
                and not _left_over(tokens, name)
            )
        if fits:
            found.append(Act("clear" if stop else "check", box))
    return found if len(found) == 1 else None


# Going somewhere: "go to the next page"

_KINDS = frozenset("page pagina button boton link enlace tab pestana section seccion".split())


def _go(view: PageView, clause: Clause) -> list[Act] | None:
    """The one control that has the words of a name, whatever it is called beside that: "página 2" for "Page 2"."""
    tokens = [token for token in _tokens(clause.rest) if token.plain not in _FILLERS]
    if clause.verb != "press" or clause.quotes or not tokens:
        return None
    found = []
    for control in view.visible:
        name = [word for word in _content(control.name) if word not in _KINDS]
        own = control.role in (*_PRESSED, "link", "tab") and bool(name) and not control.disabled
        if own and all(any(_reads(token.plain, word) for token in tokens) for word in name):
            left = [token for token in tokens if not any(_reads(token.plain, word) for word in name)]
            if all(token.plain in _KINDS for token in left):
                found.append(Act("press", control))
    return found if len(found) == 1 and not has_consequences(found[0].control.name) else None


def _reads(one: str, other: str) -> bool:
    """The same word, or the same thing in the other language."""
    return _same(one, other) or (not one.isdigit() and to_concepts(one) == to_concepts(other) != [])


# Giving a value: "move Write docs to Done", "make Bob an admin", "raise the temperature to 24 degrees"

_BETWEEN = re.compile(
    r"\s+(?:to|into|as|at|a|en|como)\s+(?:an?\s+|the\s+|el\s+|la\s+)?|\s+(?:an?|the)\s+", re.IGNORECASE
)
_SHOULD = re.compile(
    r"^(?P<what>.+?)\s+(?:should|must|debe|tiene que)\s+(?:only\s+|now\s+|s[oó]lo\s+)?(?:be|ser)\s+"
    r"(?:an?\s+|the\s+|un\s+|una\s+)?(?P<value>.+)$",
    re.IGNORECASE,
)


def _give_value(view: PageView, text: str) -> list[Act] | None:
    """What a verb such as "set" or "move" gives a value: a field by its name, or the list of a row."""
    pairs: list[tuple[str, str]] = []
    if (wanted := _SHOULD.match(text)) is not None:
        pairs = [(wanted["what"], wanted["value"])]
    elif (first := text.split(maxsplit=1)) and fold(first[0]) in _SETS and len(first) == 2:
        pairs = [(first[1][: cut.start()], first[1][cut.end() :]) for cut in _BETWEEN.finditer(first[1])]
    found = {
        (act.control.frame, act.control.index, act.values): act
        for what, value in pairs
        for act in (*_choices(view, _tokens(what), value), *_fills(view, _tokens(what), value))
    }
    return [*found.values()] if len(found) == 1 else None


def _choices(view: PageView, what: Sequence[_Token], value: str) -> Iterator[Act]:
    """The option of that name, of the one list in the row or of the name that the words say."""
    wanted = [token.plain for token in _tokens(value)]
    said = [token for token in what if token.plain not in _FILLERS]
    for control in view.visible if said else ():
        if control.disabled:
            continue
        if control.role == "list":
            options = [one for one in control.options if re.findall(r"\w+", fold(one)) == wanted]
            named = [*_row_words(control), *_content(control.name)]
            known = all(any(_same(token.plain, word) for word in named) for token in said)
            if len(options) == 1 and known and (not control.row or _says_row(said, control)):
                yield Act("choose", control, (options[0],))
        elif control.role in ("option", "radio") and re.findall(r"\w+", fold(control.name)) == wanted:
            around = [word for texts in control.places[:2] for text in texts for word in _content(text)]
            if all(_is_any(token.plain, around) for token in said):
                yield Act("press" if control.role == "option" else "check", control)


def _fills(view: PageView, what: Sequence[_Token], value: str) -> Iterator[Act]:
    """The field that the words name, with its row where it stands in one."""
    words = [token for token in _tokens(value) if token.plain not in _UNITS and token.plain not in ("now", "ahora")]
    said = [token for token in what if token.plain not in _FILLERS]
    if len(words) != 1 or not said:
        return
    for control in view.visible:
        own = _content(control.name)
        if control.role not in ("slider", "spinbutton", "textbox") or any(
            token.quoted and fold(token.text) != fold(control.name) for token in said
        ):
            continue
        known = all(_is_any(token.plain, [*own, *_row_words(control)]) for token in said)
        if known and any(_is_any(token.plain, own) for token in said) and (not control.row or _says_row(said, control)):
            act = fit(control, words[0].text)
            if isinstance(act, Act):
                yield act


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
        fitting = [one for one in view.visible if not one.row and not one.opens]
        buttons = [one for one in fitting if _after_verb(one, tokens) is not None]
        rest = tokens[1:]
    if len(buttons) != 1:
        return None
    button = buttons[0]
    fields = [
        one for one in view.visible
        if not one.row and not one.disabled and not one.read_only
        and (one.role in _FILLED or one.role == "option" or one.is_box)
        and (button.form < 0 or (one.frame, one.form) == (button.frame, button.form))
    ]  # fmt: skip
    acts = _Filling(text, rest, fields, [*_content(button.name), *_headings(view), *_place_words(button)]).read()
    # What is half filled is not sent: "pay with card 4111" has not said all that the card's fields ask for.
    touched = [act.control for act in acts or ()]
    empty = [
        one for one in fields
        if one.role in ("textbox", "spinbutton") and one.kind != "textarea" and not one.value and one not in touched
        and any(_is_beside(one, other) for other in touched)
    ]  # fmt: skip
    return [*acts, Act("press", button)] if acts and not empty else None


class _Filling:
    """One reading of the words after a verb as values of the fields of a form."""

    def __init__(self, text: str, tokens: Sequence[_Token], fields: Sequence[Control], known: Sequence[str]):
        self._text = text
        self._tokens = list(tokens)
        self._fields = fields
        self._known = known
        self._acts: dict[tuple[int, int], Act] = {}
        self._explained: list[str] = []

    def read(self) -> list[Act] | None:
        """The acts, in the order of the fields; None where a word is left, or a value fits nowhere or twice."""
        spans = [
            span
            for span in find_spans(self._text, datetime.now())  # noqa: DTZ005 - the user's own day
            if self._tokens and span.start >= self._tokens[0].start and span.unit != "article"
        ]
        ok = self._take_dates(spans) and self._take_announced() and self._take_options() and self._take_spans(spans)
        if not ok or _left_over(self._tokens, [*self._known, *self._explained, *_UNITS]):
            return None
        return [self._acts[key] for key in sorted(self._acts)]

    def _put(self, act: Act | Doubt) -> bool:
        if isinstance(act, Doubt) or (act.control.frame, act.control.index) in self._acts:
            return False
        self._acts[act.control.frame, act.control.index] = act
        self._explained += _content(act.control.name)
        return True

    def _drop(self, start: int, end: int) -> None:
        self._tokens = [token for token in self._tokens if token.end <= start or token.start >= end]

    def _is_free(self, field: Control) -> bool:
        return (field.frame, field.index) not in self._acts

    def _take_dates(self, spans: Sequence[Span]) -> bool:
        """As many dates as there are fields for them, in the order of the sentence."""
        dates = [span for span in spans if span.kind == "date"]
        fields = [one for one in self._fields if one.kind == "date"]
        if not dates:
            return True
        if len(dates) != len(fields) or any(
            span.other is not None or not isinstance(span.value, date) for span in dates
        ):
            return False
        if [span.value for span in dates] != sorted(span.value for span in dates):
            return False
        for span, field in zip(dates, fields, strict=True):
            self._drop(span.start, span.end)
            if not self._put(Act("write", field, (span.value.isoformat(),))):
                return False
        return True

    def _take_announced(self) -> bool:
        """A value after the name of its field: "password s3cret", "from Rome", "my city is Rome"."""
        texts = [one for one in self._fields if one.role in ("textbox", "searchbox", "combobox") and one.kind != "date"]
        index = 0
        while index < len(self._tokens):
            token = self._tokens[index]
            named = [one for one in texts if self._is_free(one) and not token.quoted and self._announces(token, one)]
            if len(named) > 1:
                return False
            if named:
                value = self._value_after(index, texts)
                if value:
                    start, end = value[0].start, value[-1].end
                    text = value[0].text if value[0].quoted else self._text[start:end]
                    if not self._put(fit(named[0], text)):
                        return False
                    self._drop(token.start, end)
                    continue
            index += 1
        # "As ann" is who somebody is, where a password is asked for as well.
        if any(one.kind == "password" for one in self._fields):
            users = [one for one in texts if one.kind != "password" and self._is_free(one)]
            for before, after in zip(self._tokens, self._tokens[1:], strict=False):
                if before.plain in ("as", "como") and len(users) == 1 and after.plain not in _FILLERS:
                    self._drop(before.start, after.end)
                    return self._put(fit(users[0], after.text))
        return True

    def _announces(self, token: _Token, field: Control) -> bool:
        name = re.findall(r"\w+", fold(field.name))
        if len(name) == 1:
            return token.plain == name[0] or (token.plain not in _FILLERS and _alike(token.plain, name[0]))
        return token.plain not in _FILLERS and any(_same(token.plain, word) for word in name)

    def _value_after(self, index: int, texts: Sequence[Control]) -> list[_Token]:
        """The tokens up to a comma, a word that belongs to another field, or a small word."""
        value: list[_Token] = []
        for token in self._tokens[index + 1 :]:
            between = self._text[(value[-1] if value else self._tokens[index]).end : token.start]
            if value and ("," in between or value[0].quoted or token.quoted or token.plain in _FILLERS):
                break
            if not value and token.plain in ("is", "es", "number", "a", "to", "como", "as"):
                continue
            if not token.quoted and any(self._announces(token, one) for one in texts):
                break
            if not value and token.plain in _FILLERS:
                break
            value.append(token)
        return value

    def _take_options(self) -> bool:
        """Options, boxes and radio buttons that are named, the longest name first. A number says too little."""
        for field in self._fields:
            if field.role not in ("list", "option") and not field.is_box:
                continue
            names = [*field.options] if field.role == "list" else [field.name]
            hits = [(place, name) for name in names if not name.isdigit() and (place := self._find(name)) is not None]
            if not hits or not self._is_free(field):
                continue
            hits.sort(key=lambda hit: hit[0][0] - hit[0][1])
            (start, end), name = hits[0]
            if any(place[1] <= start or place[0] >= end for place, _ in hits[1:]):
                return False  # two options of one list
            self._drop(start, end)
            if field.role == "list":
                act = Act("choose", field, (name,))
            else:
                act = Act("press" if field.role == "option" else "check", field)
            if not self._put(act):
                return False
            self._explained += _content(" ".join(text for texts in field.places[:1] for text in texts))
        return True

    def _find(self, name: str) -> tuple[int, int] | None:
        words = re.findall(r"\w+", fold(name))
        for start in range(len(self._tokens) - len(words) + 1):
            part = self._tokens[start : start + len(words)]
            if words and not any(token.quoted for token in part) and [token.plain for token in part] == words:
                return part[0].start, part[-1].end
        return None

    def _take_spans(self, spans: Sequence[Span]) -> bool:
        """Addresses, amounts, and numbers of something."""
        for span in spans:
            if not any(token.start >= span.start and token.end <= span.end for token in self._tokens):
                continue
            if span.kind == "email":
                fields = [one for one in self._fields if one.kind == "email" and self._is_free(one)]
                value = str(span.value)
            elif span.kind == "number":
                after = next((token.plain for token in self._tokens if token.start >= span.end), "")
                fields = [
                    one for one in self._fields
                    if one.role in ("spinbutton", "list") and self._is_free(one)
                    and after and _is_any(after, _content(one.name))
                ]  # fmt: skip
                value = f"{span.value:g}"
            else:
                return False
            if len(fields) != 1 or not self._put(fit(fields[0], value)):
                return False
            self._drop(span.start, span.end)
        return True
