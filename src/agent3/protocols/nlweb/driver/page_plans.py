"""What the clauses of a sentence mean on a page: acts on controls that were found, or a doubt.

A name must be what the control is called, but for case, accents and marks around it. Where two controls answer to a
description, none is taken. It looks at what was read of the page and does nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Literal, TypeVar

from agent3.protocols.nlweb.driver.page_view import DAYS, Control, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, Target, read_targets, strip_article
from agent3.sentences.lexicon import Language, base_forms, fold
from agent3.sentences.spans import find_spans

__all__ = [
    "Act",
    "Doubt",
    "Plan",
    "Why",
    "describe",
    "fit",
    "open_first",
    "plan",
    "plan_all",
    "shorten",
    "strip_purpose",
]

Why = Literal[
    "absent", "several", "words", "disabled", "empty", "value", "file", "unshown", "refused", "asks", "says", "namesake"
]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing to do with one control. ``values`` are what is written or chosen; ``enter`` ends a search.

    ``open`` is a press that shows something and does nothing more.
    """

    kind: Literal["open", "press", "write", "choose", "check", "clear", "enter", "upload"]
    control: Control
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a clause is not done, with what it is about and names that are near it."""

    why: Why
    about: str
    near: tuple[str, ...] = ()


Plan = list[Act] | Doubt
T = TypeVar("T")

_CHOSEN = ("checkbox", "radio", "switch", "option", "tab", "menuitemcheckbox", "menuitemradio")
_PRESSED = ("button", "link", "menuitem", "treeitem", *_CHOSEN)
_CLEARED = ("checkbox", "switch", "menuitemcheckbox")
_NAMES = re.compile(r",\s*(?:(?:and|y)\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_MARKS = re.compile(r"^[\W_]+|[\W_]+$")
_COUNT = re.compile(r"\s*\(\d+\)$")
_AFTERWARDS = re.compile(r"\s*(?:\([^()]*\d[^()]*\)|[-\u2013\u2014:·,]?\s*(?:[$€£+]\s*\d[\d.,]*|\d[\d.,]*\s*[$€£]).*)$")
"""A price or an amount after a name."""
_PURPOSE = re.compile(r"(?<=\w)\s+(?:for|para)\s.*", re.IGNORECASE)
_GENERIC_PLACE = frozenset(
    "it the list menu page form dialog table dropdown box options lista pagina formulario".split()
)
_SEARCH_FOR = re.compile(r"^(?:(?:for|por|a|an|the|some|un|una|unos|unas|el|la|los|las)\s+)+", re.IGNORECASE)
_MORE_THAN_WORDS = re.compile(
    r"^(?:the|el|la|los|las|within|near|under|over|between|around|only|dentro|cerca|entre|hasta|solo)\s|\s(?:and|y|e)\s"
    r"|\s(?:of|by|from|for|with|about|to|in|on|under|my|me|it|de|del|para|con|sobre|mi|lo|la)(?:\s|$)",
    re.IGNORECASE,
)
_SEARCHING = frozenset("search find buscar busqueda busca".split())
_THE_FORM = frozenset(("", "form", "the form", "it", "el formulario", "formulario"))


_ITS = re.compile(r"\b(?:its|their|his|her|su|sus)\b", re.IGNORECASE)
Reader = Callable[[PageView, Clause, Sequence[Control]], Plan]
"""Reads a clause after others, which use these controls."""


def plan_all(
    view: PageView, clauses: Sequence[Clause], used: Sequence[Control] = (), *, otherwise: Reader | None = None
) -> list[Plan]:
    """A plan for each clause, after the controls that were ``used`` already; ``otherwise`` reads what has no form.

    A form is not sent while one of its required fields stays empty.
    """
    plans: list[Plan] = []
    written = {(control.frame, control.index): control for control in used}
    for clause in clauses:
        row = [*written.values()][-1].row if written else ()
        if row and _ITS.search(clause.text):  # "save the soup and set its price to 5"
            beside = [one for one in view.controls if one.row == row]
            found = plan(PageView(beside, (), view.headings), clause, [*written.values()])
        else:
            found = plan(view, clause, [*written.values()])
        # "Use the code X" may have a button of its own, so its own words come first.
        unread = isinstance(found, Doubt) and found.why in ("absent", "words", "value")
        if otherwise is not None and (unread or clause.verb == "use"):
            wished = otherwise(view, clause, [*written.values()])
            found = wished if isinstance(wished, list) or wished.why == "disabled" else found
        for act in found if isinstance(found, list) else ():
            control = act.control
            if act.kind in ("press", "enter") and (control.sends or act.kind == "enter"):
                empty = _find_empty(view, control, written)
                found = found if empty is None else Doubt("empty", empty.name)
            else:
                written[control.frame, control.index] = control
        plans.append(found)
    for number, clause in enumerate(clauses):
        # "Upload cv.pdf and click Upload" presses once.
        own, after = plans[number], [act for one in plans[number + 1 :] if isinstance(one, list) for act in one]
        if clause.verb == "upload" and isinstance(own, list) and own[-1] in after:
            plans[number] = own[:-1]
    return plans


def plan(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    """What one clause means after others, which use the controls ``written``.

    What is not in sight is looked for in closed sections, tabs and lists of options.
    """
    found = _plan(view, clause, written)
    if isinstance(found, list) or found.why not in ("absent", "words"):
        return found
    opened = _plan(view.reachable, clause, written)
    return found if isinstance(opened, Doubt) else open_first(view, opened)


def open_first(view: PageView, acts: Sequence[Act]) -> list[Act]:
    """The acts, each after the press that shows its control, where it needs one."""
    found: list[Act] = []
    for act in acts:
        opener = view.opener_of(act.control)
        opening = None if opener is None else Act("open", opener)
        # A list of options closes with each choice.
        if opening is not None and (act.control.role == "option" or opening not in found):
            found.append(opening)
        found.append(act)
    return found


def _plan(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    match clause.verb:
        case "press":
            return _press(view, clause, written)
        case "choose" | "clear":
            return _choose(view, clause)
        case "write" | "use":
            return _write(view, clause)
        case "add":
            return _add(view, clause)
        case "search":
            return _search(view, clause)
        case "submit":
            return _submit(view, clause, written)
        case "upload":
            return _upload(view, clause)
        case _:
            return Doubt("words", clause.text)


def _press(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    found = _find(view, clause, clause.rest, lambda control: control.role in _PRESSED or control.is_drawn)
    if isinstance(found, Doubt) and found.why == "several" and any(one.is_box and one.row for one in written):
        # After a row was marked: the button of the toolbar, which acts on it.
        marked = _find(view, clause, clause.rest, lambda control: control.role in _PRESSED and control.toolbar)
        found = marked if not isinstance(marked, Doubt) or marked.why == "disabled" else found
    return found if isinstance(found, Doubt) else [Act("press", found)]


def _submit(view: PageView, clause: Clause, written: Sequence[Control]) -> Plan:
    """The button that sends the form that was just filled, or the only one."""
    if fold(clause.rest.strip(" .")) not in _THE_FORM:
        return Doubt("words", clause.text)
    forms = {(control.frame, control.form) for control in written}
    buttons = [
        control for control in view.visible if control.sends and (not forms or (control.frame, control.form) in forms)
    ]
    if len(buttons) != 1:
        return Doubt("several" if buttons else "absent", clause.text)
    return Doubt("disabled", buttons[0].name) if buttons[0].disabled else [Act("press", buttons[0])]


def _search(view: PageView, clause: Clause) -> Plan:
    """Ask the page's search box, where there is exactly one."""
    text = clause.restore_value(_SEARCH_FOR.sub("", clause.rest))
    # What says more than words to look for, such as "tea and send it to me", is quoted or asked about.
    if not text or (not clause.is_quoted(_SEARCH_FOR.sub("", clause.rest)) and _MORE_THAN_WORDS.search(clause.rest)):
        return Doubt("words", clause.text)
    boxes = []
    for box in view.visible:
        if box.role not in ("textbox", "searchbox", "combobox") or box.disabled:
            continue
        inside = [one for one in view.visible if (one.frame, one.form) == (box.frame, box.form) and box.form >= 0]
        named = [box.name, *(one.name for one in inside if one.sends)]
        # A form that asks for more than one thing is no search box.
        if [one for one in inside if one.is_field and one.role != "list"] in ([box], []) and (
            box.searches or any(_SEARCHING & set(_words(name)) for name in named)
        ):
            boxes.append(box)
    if len(boxes) != 1:
        return Doubt("several" if boxes else "absent", clause.text)
    box = boxes[0]
    return [Act("write", box, (text,)), Act("enter", box)]


# Files

_FILE = re.compile(
    r"(?:(?:the|my|a|an|this|el|la|mi|un|una|este|esta)\s+)?"
    r"(?:(?:file|document|image|photo|picture|archivo|fichero|documento|imagen|foto)\s+)?"
    r"(?P<file>\x02\d+\x03|[^\s\x02,]+\.\w{1,8})"
    r"(?:\s+(?:to|into|in|on|as|for|under|en|al?|como|para)\s+(?P<place>.+))?",
    re.IGNORECASE,
)
_UPLOADS = frozenset("upload subir sube cargar carga".split())


def _upload(view: PageView, clause: Clause) -> Plan:
    """A file for the field of that name, or for the only one; then the button by which its form sends it, if one does.

    "Upload" is also said of a form that asks for nothing but the file; where it asks for more, the file is chosen only.
    """
    said = _FILE.fullmatch(clause.rest.strip().rstrip("."))
    name = said and (clause.restore_value(said["file"]) if clause.is_quoted(said["file"]) else said["file"])
    if said is None or not name:
        return Doubt("words", clause.text)
    fields, place = [one for one in view.visible if one.role == "file"], said["place"] or ""
    found = fields
    if place and not _is_generic(strip_article(place)):
        ways = [
            _find_fields(fields, target) or [one for one in fields if _is_at(one, target.name)]
            for target in read_targets(clause, place)
        ]
        found = next((way for way in ways if way), [])
    if len(found) != 1:
        near = tuple(one.name for one in fields if one.name)[:5]
        return Doubt("several" if found else "absent", _plain(clause, place or said["file"]), near)
    field = found[0]
    if field.disabled:
        return Doubt("disabled", field.name)
    chosen = Act("upload", field, (name,))
    if fold(clause.text).split()[0] in ("attach", "adjunta", "adjuntar"):
        return [chosen]
    form = [
        one
        for one in view.visible
        if one is not field
        and one.frame == field.frame
        and (one.form == field.form if field.form >= 0 else bool({*one.boxes} & {*field.boxes}))
    ]
    sending = [one for one in form if one.role == "button" and _UPLOADS & {*_words(one.name)[:1]}]
    if not sending and not any(one.is_field or one.is_box or one.role == "file" for one in form):
        sending = [one for one in form if one.sends]
    if len(sending) > 1:
        return Doubt("several", sending[0].name)
    return [chosen, *(Act("press", one) for one in sending)]


# Options and boxes


def _choose(view: PageView, clause: Clause) -> Plan:
    """All that a clause lists, or the one thing of that whole name ("Trinidad and Tobago")."""
    whole = _choose_one(view, clause, clause.rest)
    if not isinstance(whole, Doubt):
        return [whole]
    listed = _choose_several(view, clause)
    if isinstance(listed, Doubt) and clause.verb == "choose":
        # "Select December 24, 2027 as the date", "choose size Large": a field and its value.
        written = _write(view, clause)
        if isinstance(written, Doubt):
            return written if written.why == "disabled" else listed
        free = any(act.kind == "write" and act.control.is_free for act in written)
        return listed if free else written
    return listed


_ADDING = frozenset("add create anadir agregar crear".split())
_ONTO = re.compile(r"\s+(?:to|a)\s+", re.IGNORECASE)


def _add(view: PageView, clause: Clause) -> Plan:
    """An option to a list that may hold several, or words into an empty field: "add Tea to Drinks"."""
    for cut in _ONTO.finditer(clause.rest):
        value, place = clause.restore(strip_article(clause.rest[: cut.start()])), clause.rest[cut.end() :]
        for target in read_targets(clause, place) if value else ():
            lists = [one for one in _find_fields(_fields(view), target) if one.multiple]
            options = [option for one in lists for option in _same([(each, each) for each in one.options], value or "")]
            if len(lists) == 1 and len(options) == 1:
                return [Act("choose", lists[0], (options[0],))]
    written = _write(view, clause)
    if not isinstance(written, list) or any(act.kind != "write" or act.control.value for act in written):
        return Doubt("words", clause.text)
    # What is to be added is not added by writing it, where a button does that.
    form = {(act.control.frame, act.control.form) for act in written}
    buttons = [one for one in view.visible if one.role == "button" and (one.frame, one.form) in form]
    adding = [one for one in buttons if not one.row and set(_words(one.name)[:1]) & _ADDING]
    if len(form) == len(adding) == 1 and not adding[0].disabled:
        return [*written, Act("press", adding[0])]
    if adding or any(one.sends for one in buttons):
        return Doubt("words", clause.text)
    # Outside of a form Enter sends nothing: it is how a word becomes a tag.
    alone = len(written) == 1 and written[0].control.form < 0
    return [*written, Act("enter", written[0].control)] if alone else written


def _choose_several(view: PageView, clause: Clause) -> Plan:
    acts: list[Act] = []
    for part in _NAMES.split(clause.rest):
        one = _choose_one(view, clause, part)
        if isinstance(one, Doubt):
            return one
        before = next((act for act in acts if act.control is one.control), None)
        if before is None:
            acts.append(one)
        elif one.kind == "choose" and one.control.multiple:
            acts[acts.index(before)] = Act("choose", one.control, (*before.values, *one.values))
        else:
            return Doubt("value", _plain(clause, part))  # the second choice would undo the first
    return acts


def _choose_one(view: PageView, clause: Clause, words: str) -> Act | Doubt:
    roles = _CLEARED if clause.verb == "clear" else _CHOSEN
    kind: Literal["check", "clear"] = "clear" if clause.verb == "clear" else "check"
    for target in read_targets(clause, words):
        found = _match(view, target, lambda control: control.role in roles or control.toggles)
        acts = [Act("press" if one.role in ("tab", "option") else kind, one) for one in found]
        if target.name and kind == "check":
            acts += _choose_listed(view, target)
        if len(acts) > 1:
            return Doubt("several", words.strip())
        if acts:
            return Doubt("disabled", acts[0].control.name) if acts[0].control.disabled else acts[0]
    return _absent(view, clause, words, lambda control: control.role in roles)


def _choose_listed(view: PageView, target: Target) -> Iterator[Act]:
    """The lists that have an option of that name, by their own name or by the row that they stand in."""
    for control in view.visible:
        opened = control.is_drawn and control.expanded  # then its options are in sight themselves
        if (
            control.role == "list"
            and not opened
            and (not target.roles or "option" in target.roles or "list" in target.roles)
        ):
            options = _same([(option, option) for option in control.options], target.name)
            there = not target.place or _is_generic(target.place) or _is_at(control, target.place)
            if there or _is_called(control, target.place):
                yield from (Act("choose", control, (option,)) for option in options)


# Fields

_PARTS = re.compile(r",(?!(?<=\d,)\d)\s*(?:(?:and|y)\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_BEFORE_FIELD = re.compile(r"\s+(?:as|into|in|for|como|en)\s+", re.IGNORECASE)
_BEFORE_TEXT = re.compile(
    r"\s+(?:to|with|as|is|at|con|a|en|called|named|titled|llamad[oa]|titulad[oa])\s+|\s*[:=]\s*", re.IGNORECASE
)
_AT_END = re.compile(
    r"\s+(?:in|there|into it|(?:in|into|on)\s+the\s+(?:form|page|(?:text |input )?(?:fields|inputs|boxes)))$",
    re.IGNORECASE,
)


def _write(view: PageView, clause: Clause) -> Plan:
    """Each field with its text: "Ann as name, Rome as city", "the name Ann", "city to Rome", '"Ann" into Name'."""
    words = _AT_END.sub("", clause.rest.strip(" ."))
    parts = [part.strip() for part in _PARTS.split(words) if part.strip()]
    acts = _assign_all(view, clause, parts)
    if isinstance(acts, Doubt) and len(parts) > 1:
        # "Trinidad and Tobago as country" is one part, though there is an "and" in it. But a text that speaks of a
        # second field is rather two, and one of them was not understood.
        whole = _assign_all(view, clause, [words])
        if not isinstance(whole, Doubt):
            said = set(_words(whole[0].values[0]))
            others = [control for control in _fields(view) if control is not whole[0].control]
            buttons = {word for one in view.visible if one.role == "button" for word in _words(one.name)[:1]}
            if any(buttons & {*base_forms(word)} for part in parts[1:] for word in _words(part)[:1]):
                return acts  # "Rome and save"
            if not any(said & set(_words(control.name)) for control in others):
                return whole
    return acts


def _assign_all(view: PageView, clause: Clause, parts: Sequence[str]) -> Plan:
    acts: list[Act] = []
    for part in parts:
        one = _assign(clause, part, [one for one in _fields(view) if all(one is not act.control for act in acts)])
        if isinstance(one, Doubt):
            return one
        acts.append(one)
    return acts or Doubt("words", clause.text)


def _assign(clause: Clause, part: str, fields: Sequence[Control]) -> Act | Doubt:
    """The one field and text that a part can be cut into; a doubt where there is none, or where two cuts differ."""
    cuts = [(part[: cut.start()], part[cut.end() :]) for cut in _BEFORE_FIELD.finditer(part)]
    cuts += [(part[cut.end() :], part[: cut.start()]) for cut in _BEFORE_TEXT.finditer(part)]
    words = strip_article(part).split()
    side_by_side = [(" ".join(words[count:]), " ".join(words[:count])) for count in range(len(words) - 1, 0, -1)]
    if any(target.name and _find_fields(fields, target) for target in read_targets(clause, part)):
        return Doubt("words", _plain(clause, part))  # a field, and nothing to write into it
    doubt = Doubt("words", _plain(clause, part))
    # "The title of Emma to Blue" speaks of Emma, who is not here: it is no text for the title.
    side_by_side = [
        (text, name) for text, name in side_by_side
        if not {*_words(name)} <= _SMALL and fold(text.split()[0]) not in _LEADING
        and not {*_words(name)[-2:]} & _LEADING
    ]  # fmt: skip
    for way in (cuts, side_by_side):  # "city to Rome" first: "the name Ann" has no word between the two
        one = _assign_cut(clause, way, fields, close=way is side_by_side)
        if isinstance(one, Act) or one.why != "words":
            return one
    return doubt


def _assign_cut(
    clause: Clause, cuts: Sequence[tuple[str, str]], fields: Sequence[Control], *, close: bool
) -> Act | Doubt:
    found: dict[tuple[int, int], Act | Doubt] = {}
    for text, name in cuts:
        value = clause.restore(text)
        if not value:
            continue
        described = not clause.is_quoted(text) and _DESCRIBED.match(text.strip()) is not None
        for target in read_targets(clause, name):
            named = _find_fields(fields, target)
            if close and target.name:
                named = [one for one in named if {*_words(target.name)} & {*_words(strip_purpose(one.name))}]
            if clause.restore_value(text) is None:  # a name: it may be that of an option
                named = [one for one in named if one.role == "list"]
            if described:  # "the text below" is not what is to be written
                named = [one for one in named if not one.is_free]
            if not clause.is_quoted(text):  # a text that says the name of another field is rather for that one
                named = [
                    one for one in named
                    if _is_called(one, target.name) or not _names_field(value, [each for each in fields if each != one])
                ]  # fmt: skip
            if len(named) > 1:
                return Doubt("several", name.strip())
            if named:
                field = named[0]
                before = found.get((field.frame, field.index))
                # Of two cuts for one field the first is the one at a word made for it: "to", "as", "into".
                if before is None:
                    found[field.frame, field.index] = fit(field, value, _order_of(clause))
                break
    if len(found) != 1:
        return Doubt("several" if found else "words", _plain(clause, " ".join(cuts[0]) if cuts else ""))
    return next(iter(found.values()))


def _order_of(clause: Clause) -> Language | None:
    """The language of the verb of a clause, which tells the order of a day such as 03/04/2027."""
    words = [
        word for word in _words(clause.text) if word not in ("please", "then", "and", "y", "luego", "por", "favor")
    ]
    return next((language for language, verbs in _ORDERS.items() if words[:1] and words[0] in verbs), None)


_ORDERS: dict[Language, frozenset[str]] = {
    "en": frozenset("enter type put set write fill choose select pick use change".split()),
    "es": frozenset("escribe escriba pon ponga introduce introduzca elige elija selecciona fija usa cambia".split()),
}


def _names_field(text: str, fields: Sequence[Control]) -> bool:
    """Whether the whole name of a field stands in a text."""
    said = f" {' '.join(_words(text))} "
    return any(one.name and f" {' '.join(_words(one.name))} " in said for one in fields)


def fit(field: Control, value: str, order: Language | None = None) -> Act | Doubt:
    """The act that puts a value into a field, in the form that it takes; 03/04/2027 in the ``order`` of a language, or
    of the country that a page in English is made for.
    """
    if field.disabled or field.read_only:
        return Doubt("disabled", field.name)
    if field.role == "list":
        if field.is_drawn and not field.options:
            return Act("choose", field, (value,))  # it has its options once it is open
        options = _same([(option, option) for option in field.options], value)
        if not options and len(field.options) < _FEWEST_OPTIONS:
            return Doubt("disabled", field.name)  # they depend on something else
        return Act("choose", field, (options[0],)) if len(options) == 1 else Doubt("value", value, tuple(field.options))
    if field.kind in ("time", *DAYS):
        moment = _parse_moment(value, _puts_day_first(order, field.lang))
        if field.kind in DAYS and isinstance(moment, date):
            return Act("write", field, (moment.isoformat(),))
        if field.kind == "time" and isinstance(moment, time):
            return Act("write", field, (moment.strftime("%H:%M"),))
        return Doubt("value", value)
    if field.role in ("slider", "spinbutton"):
        value = _DECIMAL.sub(r"\1.\2", _UNIT.sub("", value))
    if field.role in ("slider", "spinbutton") and not re.fullmatch(r"-?\d+(?:\.\d+)?", value):
        return Doubt("value", value)
    return Act("write", field, (value,))


_SLASHED = re.compile(r"\d{1,2}/\d{1,2}/\d{4}")
_DECIMAL = re.compile(r"(-?\d+),(\d{1,2})")
_FEWEST_OPTIONS = 2
_LEADING = frozenset("of to from for in on at as with by de del a al para en como con por".split())
"""Words with which no text begins that stands right after the name of its field."""
_DESCRIBED = re.compile(
    r"(?:[Tt]he|[Tt]his|[Tt]hat|[Tt]hese|[Tt]hose|[Ii]ts|[Tt]heir|[Ee]l|[Ll]as?|[Ll]os|[Ee]st[ae]|[Ss]us?)\s+[^\WA-Z\d_]"
    r"|(?:it|this|that|them|something|anything|whatever|lo|eso|esto|algo)$"
)
"""Words that tell of a text, and are not the text: "the sum of both". A title has a capital: "The Hobbit"."""
_SMALL = frozenset(
    "to from of the a an in on for be us me my your it what new add enter de a en el la los las un una para nuevo nueva"
    " anadir".split()
)
"""Words that name no field by themselves, unless they are all of its name."""
_UNIT = re.compile(r"(?<=\d)\s*(?:%|€|\$|£|°\s?[cf]?|euros?|eur|dollars?|degrees|grados|percent)$", re.IGNORECASE)


def _puts_day_first(order: Language | None, lang: str) -> bool | None:
    """Whether 03/04/2027 is in April; None if it cannot be told."""
    if order != "en":
        return None if order is None else True
    language, _, country = lang.partition("-")
    if language not in ("", "en") or country == "ca":
        return None
    return country not in ("", "us", "ph")


def _parse_moment(text: str, day_first: bool | None) -> date | time | None:
    """The date or time that a text is; None if it says more, or can be read in two ways, such as 03/04/2027."""
    found = find_spans(text, datetime.now())  # noqa: DTZ005 - the user's own day
    if len(found) != 1 or found[0].kind not in ("date", "time"):
        return None
    if found[0].other is not None and (day_first is None or not _SLASHED.fullmatch(text.strip())):
        return None
    moment: date | time = found[0].other if day_first and found[0].other is not None else found[0].value
    return moment if not re.search(r"\w", text[: found[0].start] + text[found[0].end :]) else None


def _fields(view: PageView) -> list[Control]:
    return [control for control in view.visible if control.is_field]


def _find_fields(fields: Sequence[Control], target: Target) -> list[Control]:
    """Fields by their whole name; else those whose name has all of the words ("name" for "Your name")."""
    pool = [one for one in fields if not target.roles or one.role in target.roles]
    pool = [one for one in pool if not target.place or _is_generic(target.place) or _is_at(one, target.place)]
    if target.name:
        said = set(_words(target.name))
        pool = _same([(one, one.name) for one in pool], target.name) or [
            one for one in pool if said - _SMALL and said <= set(_words(one.name))
        ]
    elif not target.roles:
        return []
    return _pick(pool, target.ordinal)


def _find_empty(view: PageView, sending: Control, written: Iterable[tuple[int, int]]) -> Control | None:
    """A required field of the form that a control sends, which is empty and stays so."""
    filled = {*written}
    return next(
        (
            one
            for one in view.visible
            if (one.frame, one.form) == (sending.frame, sending.form)
            and one.form >= 0
            and one.required
            and not one.disabled
            and one.role in ("textbox", "searchbox", "combobox", "spinbutton", "checkbox")
            and not (one.checked if one.is_box else one.value)
            and (one.frame, one.index) not in filled
        ),
        None,
    )


# Finding what is named


def _find(view: PageView, clause: Clause, words: str, fits: Callable[[Control], bool]) -> Control | Doubt:
    """The one control that words describe, by the most literal reading that names something."""
    for target in read_targets(clause, words):
        found = _match(view, target, fits)
        if len(found) > 1:
            return Doubt("several", _plain(clause, words))
        if found:
            return Doubt("disabled", found[0].name) if found[0].disabled else found[0]
    return _absent(view, clause, words, fits)


def _match(view: PageView, target: Target, fits: Callable[[Control], bool]) -> list[Control]:
    pool = [one for one in view.visible if fits(one) and (not target.roles or one.role in target.roles)]
    pool = [one for one in pool if not target.place or _is_generic(target.place) or _is_at(one, target.place)]
    if target.name:
        pool = _same([(one, one.name) for one in pool], target.name)
    elif not target.roles:
        return []
    return _pick(pool, target.ordinal)


def _absent(view: PageView, clause: Clause, words: str, fits: Callable[[Control], bool]) -> Doubt:
    said = set(_words(_plain(clause, words)))
    near = [one.name for one in view.visible if fits(one) and said & set(_words(one.name))]
    return Doubt("absent", _plain(clause, words), tuple(dict.fromkeys(near))[:5])


def _pick(pool: Sequence[Control], ordinal: int | None) -> list[Control]:
    if ordinal is None:
        return [*pool]
    index = ordinal - 1 if ordinal > 0 else ordinal
    return [pool[index]] if -len(pool) <= index < len(pool) else []


def _same(named: Iterable[tuple[T, str]], wanted: str) -> list[T]:
    """What is called so: to the letter but for case and accents; else without marks and counts around it."""
    pairs = [(one, fold(" ".join(name.split()))) for one, name in named]
    plain = fold(" ".join(wanted.split()))
    if exact := [one for one, name in pairs if name == plain]:
        return exact
    bare = _bare(plain)
    if marked := [one for one, name in pairs if bare and _bare(name) == bare]:
        return marked
    # "Express" for "Express (4.90 €)", or what stands first in a label of several lines.
    return [
        one for one, name in pairs
        if bare and (_bare(shorten(name)) == bare or (isinstance(one, Control) and fold(one.lead) == plain))
    ]  # fmt: skip


def shorten(name: str) -> str:
    """A name without a price or an amount after it."""
    return _AFTERWARDS.sub("", name)


def strip_purpose(name: str) -> str:
    """A name without what it is for: "kitchen" before a text does not announce one for "Notes for the kitchen"."""
    return _PURPOSE.sub("", name)


def _is_called(control: Control, name: str) -> bool:
    return bool(_same([(control, control.name)], name))


def _is_at(control: Control, place: str) -> bool:
    """Whether it stands in a row, list or region that is known by that text."""
    return any(_same([(text, text) for text in texts], place) for texts in control.places) or any(
        _tells_of(text, place) for text in control.row
    )


def _tells_of(text: str, name: str) -> bool:
    """Whether a text is about that: "Sam mentioned you", and not "Sam Hill" or "Sam II"; or "Review by Sam"."""
    if re.fullmatch(rf"\w+ (?:by|from|of|de|por) {re.escape(name)}", text, re.IGNORECASE):
        return True
    said = re.match(rf"{re.escape(name)}\s+(?=[^\W\d_])(\w+)(?:\s+\S+){{2}}", text, re.IGNORECASE)
    return said is not None and said[1].islower()


def _is_generic(place: str) -> bool:
    return fold(place) in _GENERIC_PLACE


def _bare(plain: str) -> str:
    return _MARKS.sub("", _COUNT.sub("", plain))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", fold(text))


def _plain(clause: Clause, words: str) -> str:
    """Words of a clause with their quoted texts in place."""
    for number, quote in enumerate(clause.quotes):
        words = words.replace(f"\x02{number}\x03", quote)
    return words.strip(" .,")


_IN_SPANISH = {
    "button": "botón", "link": "enlace", "tab": "pestaña", "textbox": "campo", "searchbox": "buscador", "list": "lista",
    "checkbox": "casilla", "radio": "opción", "option": "opción", "switch": "interruptor", "slider": "deslizador",
}  # fmt: skip


def describe(act: Act, language: Language = "en") -> str:
    """What an act does, for people."""
    spanish, listed = language == "es", ", ".join(act.values)
    role = _IN_SPANISH.get(act.control.role, "campo") if spanish else act.control.role
    what = f"{role} {act.control.name[:60]!r}"
    ways = {
        "open": (f"open {what}", f"abrir {what}"),
        "press": (f"click {what}", f"clic en {what}"),
        "write": (f"type into {what}", f"escribir en {what}"),
        "choose": (f"choose {listed} in {what}", f"elegir {listed} en {what}"),
        "enter": (f"press Enter in {what}", f"pulsar Intro en {what}"),
        "upload": (
            f"choose the file {listed} in {act.control.name[:60]!r}",
            f"elegir el archivo {listed} en {act.control.name[:60]!r}",
        ),
        "check": (f"check {what}", f"marcar {what}"),
        "clear": (f"uncheck {what}", f"desmarcar {what}"),
    }
    return ways[act.kind][spanish]
