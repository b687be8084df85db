"""Words as values: one reading of them for fields, options and boxes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, time

from agent3.protocols.nlweb.driver.page_plans import Act, Doubt, fit, shorten, strip_purpose
from agent3.protocols.nlweb.driver.page_view import DAYS, Control
from agent3.protocols.nlweb.driver.wording import (
    FILLERS,
    UNITS,
    Token,
    find_unexplained,
    is_alike,
    is_any_of,
    is_reading,
    is_same,
    read_words,
    stem_of,
    words_in,
    words_of_places,
)
from agent3.sentences.lexicon import fold
from agent3.sentences.spans import Span, find_spans

__all__ = ["OPTIONAL", "Filling", "group_words"]

OPTIONAL = frozenset("optional opcional note notes nota notas comment comments comentario comentarios".split())


class Filling:
    """One reading of words as values of fields, options and boxes. ``off`` takes the marks of boxes away.

    Where it has to be ``sure``, words are written only after one that says so: "the note is …", not "the note …".
    """

    def __init__(
        self,
        text: str,
        tokens: Sequence[Token],
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
        if not ok or find_unexplained(self._tokens, [*self._known, *self._explained], self._things | UNITS):
            return None
        acts = [self._acts[key] for key in sorted(self._acts)]
        # What may turn out not to take its value comes first: then nothing else is done.
        return sorted(acts, key=lambda act: not (act.kind == "write" and act.control.role == "combobox"))

    def _put(self, act: Act | Doubt) -> bool:
        if isinstance(act, Doubt) or (act.control.frame, act.control.index) in self._acts:
            return False
        self._acts[act.control.frame, act.control.index] = act
        self._explained += words_in(act.control.name)
        self._explained += words_in(" ".join(text for texts in act.control.places[:2] for text in texts))
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
            fields = [one for one in fields if {"birth", "nacimiento"} & {*words_in(one.name)}]
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
                before = [token.plain for token in read_words(self._text[: span.start])][-_NEAR_WORDS:]
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
            said = [token.plain for token in read_words(self._text[start : span.start]) if token.plain not in FILLERS]
            near = [
                one for one in fields if one not in found and any(is_any_of(word, said) for word in words_in(one.name))
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
            where = [word for one in named for word in words_of_places(one)]
            value = self._value_after(index, texts, where) if named else []
            if value and len(named) > 1:
                named = self._at_place(named) or named
            if value and len(named) > 1:
                # "Phone number 600": the next word tells which.
                after = self._tokens[index + 1].plain
                named = named if len(named) == 1 else [one for one in named if is_any_of(after, words_in(one.name))]
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
                said = after_it.plain not in FILLERS and not after_it.names
                if before.plain in ("as", "como") and len(users) == 1 and said:
                    self._drop(before.start, after_it.end)
                    return self._put(fit(users[0], after_it.text))
        return True

    def _at_place(self, fields: Sequence[Control]) -> list[Control]:
        """Those of several fields whose place is said, and is that of no other: "the brightness of the kitchen"."""
        words = [{stem_of(word) for word in words_of_places(one)} for one in fields]
        said = {stem_of(token.plain) for token in self._tokens if not token.quoted}
        others = [set[str]().union(*(each for each in words if each is not own)) for own in words]
        return [one for one, own, rest in zip(fields, words, others, strict=True) if said & (own - rest)]

    def _announces(self, token: Token, field: Control) -> bool:
        name = re.findall(r"\w+", fold(strip_purpose(field.name)))
        if token.plain in _NAMELESS:
            return False
        if field.role in ("slider", "spinbutton"):
            return token.plain not in FILLERS and is_any_of(token.plain, words_in(field.name))
        for before, names in _ANNOUNCED:
            named = re.match(r"[\"\d]|[^\W\d_a-z]|\S+@", self._text[token.end :].lstrip())
            if re.search(r"\b(?:up|close|next|out)\s+$", self._text[: token.start], re.IGNORECASE):
                continue  # "up to 1000"
            if token.plain in ("a", "de") and named is None:
                continue  # an article, or "date of return"
            if token.plain in before and names & {*name} and (token.plain not in FILLERS or len(name) < 4):
                return True
        if len(name) == 1:
            return token.plain == name[0] or (token.plain not in FILLERS and is_alike(token.plain, name[0]))
        return token.plain not in FILLERS and any(
            is_alike(token.plain, word) for word in name if word not in FILLERS
        )  # fmt: skip

    def _value_after(self, index: int, texts: Sequence[Control], where: Sequence[str]) -> list[Token]:
        """The tokens up to a comma, a word that belongs to another field, or a small word."""
        value: list[Token] = []
        # "The price of the lamp to 25": whose it is may stand before the value.
        whose = index + 1
        while whose < len(self._tokens) and (
            self._tokens[whose].plain not in _GIVING
            and (
                self._tokens[whose].plain in FILLERS
                or any(is_same(self._tokens[whose].plain, one) for one in (*self._known, *where))
            )
        ):
            whose += 1
        # But "from Rome to Oslo" has two values, whatever the page says of Rome.
        small = self._tokens[index].plain in FILLERS
        if whose < len(self._tokens) and self._tokens[whose].plain in _GIVING and not small:
            index = whose
        for token in self._tokens[index + 1 :]:
            between = self._text[(value[-1] if value else self._tokens[index]).end : token.start]
            if value and ("," in between or value[0].quoted or token.quoted or token.plain in FILLERS):
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
            if not value and token.plain in FILLERS:
                break
            value.append(token)
            if not token.quoted and re.fullmatch(r"[\d.,]+%?", value[0].text):
                following = next((one for one in self._tokens if one.start > token.start), token)
                if not (token.plain.isdigit() and following.plain.isdigit() and following.start == token.end + 1):
                    break  # "600 100 200" is one number
        return value

    def _take_options(self) -> bool:
        """Options, boxes and radio buttons that are named, the longest name first. A number alone says too little."""
        claims: dict[tuple[Token, ...], list[tuple[Control, str]]] = {}
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
                    if any(is_any_of(word, rest) for word in group_words(field))
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

    def _find(self, name: str) -> list[Token]:
        words = re.findall(r"\w+", fold(name))
        plain = [[*re.findall(r"\w+", token.plain)] if not token.quoted else [] for token in self._tokens]
        for start in range(len(self._tokens)):
            for end in range(start + 1, min(len(self._tokens), start + len(words)) + 1):
                if words and all(plain[start:end]) and [word for part in plain[start:end] for word in part] == words:
                    return self._tokens[start:end]
        quoted = [token for token in self._tokens if token.quoted and fold(token.text) == fold(name)]
        return quoted[:1]

    def _find_words(self, name: str, field: Control) -> list[Token]:
        """The tokens that say all words of a name in any order, in words of the same meaning, in either language."""
        words, found = (
            [word for word in words_in(name) if not (field.is_box and word in _INCLUDED | _NAMELESS)],
            [],
        )
        for word in words:
            said = [token for token in self._tokens if not token.quoted and token.plain not in FILLERS]
            fitting = is_reading if field.role == "list" else is_alike
            token = next((one for one in said if one not in found and fitting(one.plain, word)), None)
            if (
                token is None
                or word.isdigit()
                or (not is_same(token.plain, word) and self._names_another(token, field))
            ):
                return []
            found.append(token)
        # The word for the list itself chooses nothing in it.
        return [] if field.role == "list" and all(is_any_of(word, words_in(field.name)) for word in words) else found

    def _names_another(self, token: Token, field: Control) -> bool:
        """Whether a word is that of another field or a heading, to the letter: "forma de pago" chooses no "Pagadas"."""
        others = [one for one in self._fields if one is not field and one.name != field.name]
        words = [word for one in others for word in (*words_in(one.name), *group_words(one))]
        return any(is_same(token.plain, word) for word in (*words, *self._known))

    def _take_spans(self, spans: Sequence[Span]) -> bool:
        """Addresses, amounts, and numbers of something."""
        for span in spans:
            if span.unit == "article" and span.kind != "number":
                continue
            inside = [token for token in self._tokens if token.start >= span.start and token.end <= span.end]
            if span.unit != "article" and all(token.plain in FILLERS for token in inside):
                continue
            if span.kind == "email":
                fields = [one for one in self._fields if one.kind == "email" and self._is_free(one)]
                fields = fields or [one for one in self._fields if self._is_free(one) and one.is_free
                                    and {"email", "mail", "correo"} & {*words_in(one.name)}]  # fmt: skip
                value = str(span.value)
            elif span.kind == "money":
                fields = [
                    one for one in self._fields
                    if one.role in ("textbox", "spinbutton") and self._is_free(one) and _AMOUNTS & {*words_in(one.name)}
                ]  # fmt: skip
                value = f"{span.value:g}" if span.value == int(span.value) else f"{span.value:.2f}"
            elif span.kind == "number":
                ends = [one.start for one in spans if one.start >= span.end and one.kind == "number"]
                after = [
                    token for token in self._tokens if span.end <= token.start < min(ends, default=len(self._text))
                ]
                after = [token for token in after if token.plain not in FILLERS]
                counters = [one for one in self._fields if one.role in ("spinbutton", "list") and self._is_free(one)]
                fields = [one for one in counters if after and is_any_of(after[0].plain, words_in(one.name))]
                # "Two tickets for adults": what the page is about may stand between a number and whose it is.
                if not fields and len(after) > 1 and any(is_same(after[0].plain, word) for word in self._known):
                    fields = [one for one in counters if is_any_of(after[1].plain, words_in(one.name))]
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
        said = [token.plain for token in read_words(self._text) if not token.quoted and token.plain not in FILLERS]
        said += [word for token in read_words(self._text) if token.names for word in words_in(token.text)]
        name = [word for word in words_in(field.name) if word not in _NAMELESS]
        return any(is_any_of(word, said) for word in name) or (
            not self._sure and len(self._fields) == 1 and not OPTIONAL & {*name}
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


def group_words(field: Control) -> list[str]:
    texts = [text for texts in field.places[:1] for text in texts if text != field.name]
    return [*(words_in(field.name) if field.role == "list" else ()), *words_in(" ".join(texts))]
