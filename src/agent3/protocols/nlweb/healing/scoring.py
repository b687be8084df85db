"""Which of many elements is the one that is remembered: a score for each, and a judgement that would rather say none.

Evidence for an element counts fully, evidence against it by how much it is worth: a new id or class is what redesigns
do, another name is another thing. The best one is accepted only above a threshold, with a margin to the next, where
what it says and what is around it both speak for it, and nothing speaks plainly against it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from msgspec import Struct

from agent3.protocols.nlweb.healing.fingerprints import Fingerprint, role_family, split_words
from agent3.sentences.consequences import CONSEQUENTIAL, DECEPTIVE, GRAVE, find_new

__all__ = ["MARGIN", "THRESHOLD", "Scored", "Verdict", "find_objection", "is_contradiction", "judge",
           "name_similarity", "score"]  # fmt: skip

THRESHOLD = 0.62
MARGIN = 0.12
_NAMED = 0.9
_CONTRADICTED = 0.45
_CONTEXT = 0.45
_STRONG_CONTEXT = 0.75
_BESIDE = ((0.75, 0.25), (0.62, 0.3))
"""How much of what stood beside an element must stand beside one of several alike, and how much more than beside the
others: buttons of rows are told apart by their rows."""
_ROW_KEPT, _ROW_AHEAD = 0.3, 0.2
"""How much of its row's own words must be left, and how much more than of the others'."""
_CROSSING = frozenset({"button", "link"})
"""Roles that a redesign exchanges for each other."""

_MEANINGS = (
    {"search", "find", "buscar"},
    {"buy", "purchase", "comprar"},
    {"cart", "basket", "bag", "carrito", "cesta"},
    {"login", "signin", "entrar"},
    {"submit", "send", "enviar"},
    {"continue", "next", "siguiente", "continuar"},
    {"pay", "checkout", "pagar"},
    {"email", "mail", "correo"},
    {"from", "origin", "departure", "origen", "salida"},
    {"to", "destination", "arrival", "destino", "llegada"},
    {"phone", "telephone", "telefono"},
    {"quantity", "qty", "amount", "cantidad"},
    {"register", "signup", "join"},
)
"""Words that say the same on a control."""
_OPPOSITES = (
    ({"add", "anadir"}, {"remove", "delete", "quitar"}),
    ({"next", "siguiente"}, {"previous", "back", "anterior"}),
    ({"from", "origin", "departure", "origen"}, {"to", "destination", "arrival", "destino"}),
    ({"login", "signin"}, {"logout", "signout", "register", "signup"}),
    ({"accept", "agree", "aceptar", "allow"}, {"reject", "decline", "deny", "rechazar"}),
    ({"increase", "more", "plus"}, {"decrease", "less", "minus"}),
    ({"show", "open"}, {"hide", "close"}),
    ({"first"}, {"last"}),
    ({"older"}, {"newer"}),
    ({"before"}, {"after"}),
    ({"import", "upload"}, {"export", "download"}),
    ({"start", "begin"}, {"end", "stop", "finish"}),
    ({"min", "minimum"}, {"max", "maximum"}),
    ({"up"}, {"down"}),
    ({"yes"}, {"no"}),
    ({"enable", "on"}, {"disable", "off"}),
)
_PRESSED = frozenset({"button", "link", "menuitem", "tab", "summary", "generic"})
"""Roles that a click treats alike."""
_CALLED = frozenset(
    "button link menuitem tab summary option checkbox radio switch textbox spinbutton date select file".split()
)
"""Roles whose name says what they are for; that of a form or a row is whatever stands in it."""
_FILLERS = frozenset("the a an your my our now please here el la los las tu su mi ahora".split())
_PAIRS = {("log", "in"): "login", ("sign", "in"): "signin", ("log", "out"): "logout", ("sign", "out"): "signout",
          ("sign", "up"): "signup", ("check", "out"): "checkout", ("e", "mail"): "email"}  # fmt: skip


class Scored(Struct, frozen=True):
    """A candidate by its number in the list, with its score."""

    index: int
    score: float
    doubt: str = ""
    """Why it cannot be accepted, however high its score is."""


class Verdict(Struct, frozen=True):
    """The accepted candidate, or none with the reason; ``best`` are the first of all."""

    chosen: Scored | None
    reason: str
    best: tuple[Scored, ...]
    margin: float = 0.0


def judge(
    known: Fingerprint, candidates: Sequence[Fingerprint], *, threshold: float = THRESHOLD, margin: float = MARGIN
) -> Verdict:
    """Which candidate is the remembered element, if that is beyond doubt."""
    verdict = _judge_alike(known, candidates, threshold, margin, crossing=False)
    is_open = verdict.chosen is None and (not verdict.best or verdict.best[0].score < threshold)
    if not is_open or known.role not in _CROSSING or known.given:
        return verdict
    # Nothing of its role comes near: a link may have become a button, where everything else agrees.
    crossed = _judge_alike(known, candidates, threshold, margin, crossing=True)
    return crossed if crossed.chosen is not None else verdict


def _judge_alike(
    known: Fingerprint, candidates: Sequence[Fingerprint], threshold: float, margin: float, *, crossing: bool
) -> Verdict:
    """Among those of its role; or, ``crossing``, among those that its role may have become."""

    def may_be(other: Fingerprint) -> bool:
        if crossing:
            return other.role != known.role and other.role in _CROSSING
        return role_family(other.role) == role_family(known.role)

    ranked = sorted(
        (Scored(index, score(known, candidate), _find_doubt(known, candidate))
         for index, candidate in enumerate(candidates)
         if may_be(candidate) and candidate.given >= known.given),
        key=lambda scored: -scored.score,
    )  # fmt: skip
    best = tuple(ranked[:3])
    if not best and known.given:
        return Verdict(None, f"there is no {known.role} next to what was asked for", ())
    if not best:
        return Verdict(None, f"there is no other {known.role} on the page", ())
    first = best[0]
    ahead = first.score - (best[1].score if len(best) > 1 else 0.0)
    if first.score < threshold:
        return Verdict(None, "nothing on the page is similar enough", best, ahead)
    if ahead < margin:
        rivals = [one for one in ranked if first.score - one.score < margin]
        told_apart = _tell_apart(known, candidates, rivals)
        if told_apart is None or told_apart[0].score < threshold:
            return Verdict(None, "several elements are similar", best, ahead)
        first, ahead = told_apart
    if crossing and (doubt := _find_crossing_doubt(known, candidates[first.index])):
        return Verdict(None, doubt, best, ahead)
    return Verdict(None if first.doubt else first, first.doubt, best, ahead)


def _tell_apart(
    known: Fingerprint, candidates: Sequence[Fingerprint], rivals: Sequence[Scored]
) -> tuple[Scored, float] | None:
    """The one of several alike that stands beside the same words, and by how much more than the others."""
    if known.row and all(candidates[one.index].row for one in rivals):
        return _tell_by_row(known, candidates, rivals)
    if len(set(known.near)) < 2:
        return None
    beside = sorted(
        ((_overlap(known.near, candidates[one.index].near), one) for one in rivals), key=lambda two: -two[0]
    )
    (most, first), (next_, _) = beside[:2]
    is_told = any(most >= enough and most - next_ >= ahead for enough, ahead in _BESIDE)
    return (first, most - next_) if is_told else None


def _tell_by_row(
    known: Fingerprint, candidates: Sequence[Fingerprint], rivals: Sequence[Scored]
) -> tuple[Scored, float] | None:
    """The one in the row that begins as the remembered one did, and has more of its own words than any other.

    Words that all rows have tell nothing. The first of the others says whose row it is; what comes after it changes.
    """
    rows = [set(candidates[one.index].row) for one in rivals]
    shared = set.intersection(*rows) if len(rows) > 1 else set()
    own = [word for word in known.row if word not in shared]
    if not own:
        return None
    ranked = sorted(
        ((len(row.intersection(own)) / len(set(own)), one) for row, one in zip(rows, rivals, strict=True)
         if own[0] == next((word for word in candidates[one.index].row if word not in shared), "")),
        key=lambda two: -two[0],
    )  # fmt: skip
    if not ranked or ranked[0][0] < _ROW_KEPT:
        return None
    ahead = ranked[0][0] - (ranked[1][0] if len(ranked) > 1 else 0.0)
    return (ranked[0][1], ahead) if ahead >= _ROW_AHEAD else None


def _find_crossing_doubt(known: Fingerprint, other: Fingerprint) -> str:
    """Why an element of the other role is not the remembered one; its twin in another part of the page is not."""
    if not known.name or name_similarity(known.name, other.name) < 1.0:
        return f"it is a {other.role} now, with another name"
    if known.landmark != other.landmark:
        return f"it is a {other.role}, in another part of the page"
    is_marked = any(
        getattr(known, mark) and getattr(known, mark) == getattr(other, mark) for mark in ("test", "id", "field")
    )
    beside = _overlap(known.near, other.near) if known.near else _overlap(known.heading, other.heading)
    return "" if is_marked or beside >= _STRONG_CONTEXT else f"it is a {other.role} with other neighbours"


# How similar two elements are


def score(known: Fingerprint, other: Fingerprint) -> float:
    """From 0 to 1: the share of what speaks for it in all that speaks."""
    speaks_for = against = 0.0

    def compare(mine: Collection[str], similarity: float, weight: float, worth: float) -> None:
        """``worth`` is what a difference counts: a redesign changes ids and classes, but hardly ever names."""
        nonlocal speaks_for, against
        if mine:
            speaks_for += weight * similarity
            against += weight * worth * (1.0 - similarity)

    compare(known.test, _id_similarity(known.test, other.test), 5.0, 0.3)
    compare(known.name, name_similarity(known.name, other.name), 4.0, 1.2 if other.name else 0.4)
    compare(known.field, _id_similarity(known.field, other.field), 3.0, 0.4)
    compare(known.href, _link_similarity(known, other), 3.0 if len(known.href) > 1 else 1.0, 0.4)
    compare(known.id, _id_similarity(known.id, other.id), 2.5, 0.2)
    compare(known.near, _near_similarity(known, other), 2.5, 0.6)
    compare(known.placeholder, name_similarity(known.placeholder, other.placeholder), 1.5, 0.4)
    compare(known.complete, float(known.complete == other.complete), 1.5, 0.5)
    compare(known.heading, _overlap(known.heading, other.heading), 1.5, 0.6)
    compare(known.fields, _overlap(known.fields, other.fields), 1.5, 0.4)
    compare(known.title, name_similarity(known.title, other.title), 1.0, 0.3)
    mine, theirs = ({word for name in print_.classes for word in split_words(name)} for print_ in (known, other))
    compare(known.classes, _overlap(mine, theirs), 1.0, 0.2)
    compare(known.path, _overlap(known.path, other.path), 0.7, 0.3)
    compare(known.tag, float(known.tag == other.tag), 0.5, 0.5)
    compare(known.kind, float(known.kind == other.kind), 0.5, 1.0)
    compare(known.landmark, float(known.landmark == other.landmark), 0.5, 0.5)
    distance = sum(abs(before - after) for before, after in zip(known.box, other.box, strict=True))
    compare("box", max(0.0, 1.0 - distance), 0.5, 0.5)
    total = speaks_for + against
    return speaks_for / total if total else 0.0


def name_similarity(name: str, other: str) -> float:
    """How much two names say the same. Names with different numbers, or with a word exchanged, do not."""
    first, second = _meanings(name), _meanings(other)
    if not first or not second:
        return 0.0
    if first == second:
        repeats = [len(set(words)) < len(words) for words in (split_words(name), split_words(other))]
        return 1.0 if repeats[0] == repeats[1] else 0.85
    if {word for word in first if word.isdigit()} != {word for word in second if word.isdigit()}:
        return 0.0
    dice = _overlap(first, second)
    if first <= second or second <= first:
        return min(0.55 + 0.45 * dice, 0.85)
    return min(dice, 0.6)


def _meanings(text: str) -> set[str]:
    """The words of a name; those that say the same are one."""
    words = split_words(text)
    joined: list[str] = []
    while words:
        pair = _PAIRS.get((words[0], words[1])) if len(words) > 1 else None
        joined.append(pair or words[0])
        words = words[2 if pair else 1 :]
    said = [word for word in joined if word not in _FILLERS] or joined
    return {next((min(group) for group in _MEANINGS if word in group), word) for word in said}


def _id_similarity(name: str, other: str) -> float:
    """Identifiers are alike by their words; equal ones are worth more than all others."""
    if not name or not other:
        return 0.0
    return 1.0 if name == other else 0.7 * _overlap(split_words(name), split_words(other))


def _link_similarity(known: Fingerprint, other: Fingerprint) -> float:
    """A link to the same path with another query leads somewhere else, but not far from there."""
    if known.href != other.href:
        return 0.0
    return 1.0 if known.query == other.query else 0.5


def _near_similarity(known: Fingerprint, other: Fingerprint) -> float:
    """Whether the words beside the one are beside the other, or at least in the same part of the page."""
    inside = len(set(known.near) & set(other.wide)) / len(set(known.near)) if known.near else 0.0
    return max(_overlap(known.near, other.near), inside)


def _overlap(one: Collection[str], other: Collection[str]) -> float:
    first, second = set(one), set(other)
    return 2.0 * len(first & second) / (len(first) + len(second)) if first and second else 0.0


# What speaks plainly against it


def _find_doubt(known: Fingerprint, other: Fingerprint) -> str:
    """Why a candidate is not to be taken for the remembered one; empty if nothing forbids it."""
    if contradiction := _find_contradiction(known.name, other.name):
        return contradiction
    if role_family(known.role) in ("textbox", "spinbutton", "date") and known.kind != other.kind and "password" in (
        known.kind,
        other.kind,
    ):  # fmt: skip
        return "one of them is for a password"
    similarity = name_similarity(known.name, other.name)
    # How many marks are the same: those that a site gives to one element only, and those and others together. A class
    # or a place is no mark, and what neighbours often share, a placeholder or where a link leads, is a weak one.
    own = sum(
        bool(getattr(known, mark) == getattr(other, mark)) for mark in ("test", "id", "field") if getattr(known, mark)
    )
    same = own + (bool(known.placeholder) and known.placeholder == other.placeholder)
    same += len(known.href) > 1 and _link_similarity(known, other) == 1.0
    # How much of what stands around the one stands around the other, where anything is known of it. To stand beside the
    # very words that were asked for says more than prices and remarks around it.
    parts = [
        (bool(known.near), _near_similarity(known, other), 3.0),
        (bool(known.heading), _overlap(known.heading, other.heading), 1.0),
        (bool(known.fields), _overlap(known.fields, other.fields), 1.0),
        (bool(known.given), float(other.given >= known.given), 3.0),
    ]
    weights = sum(weight for is_known, _, weight in parts if is_known)
    total = sum(part * weight for is_known, part, weight in parts if is_known)
    around = total / weights if weights else 0.5
    if known.name and other.name and similarity < _CONTRADICTED:
        return "" if own >= 2 or (own and around >= _STRONG_CONTEXT) else "it has another name"
    if same:
        return (
            ""
            if same >= 2 or around >= _CONTEXT / 2 or similarity >= _NAMED
            else "only one of its attributes is the same"
        )
    if similarity < _NAMED:
        return "neither its name nor any attribute is the same"
    return "" if around >= _CONTEXT else "it has other neighbours"


def is_contradiction(doubt: str) -> bool:
    """Whether a doubt is of the kind that no person should be asked to overrule."""
    return doubt.startswith(("it says", "it has another number", "one of them is for a password"))


def find_objection(known: Fingerprint, now: Fingerprint, *, named: bool, strict: bool) -> str:
    """Why the element that a selector fits now is not the one that it meant; empty if it may be.

    The author's selector fits, so only what is plain counts: another role, or a grave word. What it is called is looked
    at where ``named``, and beyond such words only where much is at stake (``strict``): then any word of consequences
    that it did not say before is one too many. Numbers never count: a price or an amount in a name is another one in
    every call.
    """
    before, after = (
        " ".join(word for word in split_words(name) if not word.isdigit()) for name in (known.name, now.name)
    )
    if role_family(known.role) != role_family(now.role):
        is_alike = name_similarity(before, after) >= _NAMED or (not before and not after)
        if not (is_alike and {known.role, now.role} <= _PRESSED):
            return f"it was a {known.role} and is a {now.role}{f' {now.name[:60]!r}' if now.name else ''}"
    if not named or role_family(known.role) not in _CALLED or not after or not (before or strict):
        return ""
    is_grave = bool(find_new(CONSEQUENTIAL if strict else GRAVE, _word_set(before), _word_set(after)))
    if not before and not is_grave:
        return ""
    is_marked = any(getattr(known, mark) and getattr(known, mark) == getattr(now, mark) for mark in ("test", "field"))
    is_other = name_similarity(before, after) < _CONTRADICTED and not is_marked
    if is_grave or (strict and (_find_contradiction(before, after) or is_other)):
        return f"its name was {known.name[:60]!r} and is {now.name[:60]!r}"
    return ""


def _find_contradiction(name: str, other: str) -> str:
    first, second = _word_set(name), _word_set(other)
    if word := find_new(DECEPTIVE, first, second):
        return f"it says {word!r}"
    for left, right in _OPPOSITES:
        for here, there in ((left, right), (right, left)):
            if first & here and second & there and not first & there and not second & here:
                return "it says the opposite"
    numbers = [{word for word in words if word.isdigit()} for words in (first, second)]
    return "it has another number" if numbers[0] != numbers[1] and all(numbers) else ""


def _word_set(text: str) -> set[str]:
    words = split_words(text)
    return {*words, *(joined for pair, joined in _PAIRS.items() if pair in pairwise(words))}
