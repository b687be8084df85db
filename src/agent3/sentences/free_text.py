"""Which capabilities take a message as it is: those whose one parameter is what somebody says.

A path, an address, an id, a query in some language or a choice is never filled with a whole message.

A message that forbids what it is about, or takes it back, is passed to nobody. One with a restriction is passed on
whole: "a pizza, but do not cut it". To a capability that only talks, all is passed on but a bare "don't …".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from agent3.model import Capability
from agent3.sentences.lexicon import detect_language, fold, is_action, meanings
from agent3.sentences.prohibitions import (
    Why,
    drops_matter,
    find_prohibition,
    forbids_all,
    is_withdrawal,
    leaves_open,
    leaves_out,
    only_forbids,
    takes_back,
    tells_something,
)
from agent3.sentences.reader import Forbidden
from agent3.sentences.slots import Form, form_of, split_name
from agent3.sentences.tokens import LONGEST

__all__ = [
    "FREE_TEXT",
    "acts",
    "find_acting_parameter",
    "find_dictated_refusal",
    "find_refusal",
    "free_text",
    "speaks_of",
    "talks",
    "understands",
]

FREE_TEXT = "x-agent3-free-text"
"""The keyword of an input schema that names the parameter which takes a message as it is, whatever others there are."""

_SAID = frozenset(
    "message messages question utterance request instruction instructions chat sentence conversation".split()
)
_ALSO_SAID = frozenset("prompt input".split())
_MAKING = frozenset("create draw generate".split())
"""Where a prompt is what to make, the request around it is no part of it."""
_SOUGHT = frozenset("query q text topic keywords search terms term prompt input".split())
_SAYING = frozenset("echo say repeat print send post tell write publish announce".split())
"""Verbs in a name whose object is what is said."""
_RECORDING = frozenset("report log note notes record ticket issue incident complaint feedback memory entry".split())
"""Words in a name whose object is what somebody tells."""
_KEEPING = _RECORDING | frozenset(
    "commit comment notify notification alert warn warning broadcast display show set status greeting forward deliver "
    "email mail text sms message speak toast banner schedule encrypt sign submit add leave save update store remind "
    "reminder draft rule".split()
)
"""Words in a name whose object is a text that others read, or that is kept: it may say anything."""
_LONGEST_START = 120
_GETTING = frozenset("order buy book rent pay create ship deliver hire send donate subscribe prepare cook".split())
"""Verbs by which somebody gets something, so that to skip it is not to have it; elsewhere "skip" may be a request."""
_TALKING = _SAYING | frozenset("chat talk ask answer reply respond converse discuss assist help complete".split())
"""Verbs of capabilities that do nothing but talk: what to do about a "don't" is theirs to say."""


def free_text(capability: Capability, message: str, *, agent: str = "") -> dict[str, str] | Forbidden | None:
    """The input with the whole message where the capability takes it so; None where it has to be read.

    One without a schema gets the message itself and no input. What the message forbids is not passed on.

    What is sought is read first if the message begins as a command ("search for …"): then only its object is meant.
    """
    if not capability.input_schema:
        return find_refusal(capability, message, agent=agent) or {}
    form = form_of(capability, agent)
    if form.unreadable or not message.strip():
        return None
    taker = _taker(form, capability.name, FREE_TEXT in capability.input_schema)
    if taker is None:
        return None
    if len(message) > LONGEST:
        return {taker.name: message}
    if taker.says and (rest := _after_verb(form, message)) is not None:
        return None if find_prohibition(message, reading=True) else {taker.name: rest}
    if taker.needs_reading and _is_command(form, message):
        return None
    if not taker.understands and find_prohibition(message, reading=True) is not None:
        return None
    return _find_refusal(capability, form, message) or {taker.name: message}


class _Taker(NamedTuple):
    """The parameter that takes a whole message."""

    name: str
    says: bool
    """It is the only one, of a capability that says or repeats something."""
    needs_reading: bool
    """Only what is no command is taken as it is."""
    understands: bool


@lru_cache(maxsize=2_000)
def _taker(form: Form, name: str, free: bool) -> _Taker | None:
    """The parameter of a form, of the capability of this name, that takes a whole message; None where none does.

    ``free`` says that its schema is marked as one for free text: then commands are taken as they are, too.
    """
    texts = [slot for slot in form.slots if slot.kind == "text" and not slot.many and len(slot.path) == 1]
    spoken = _SAID if form.verbs & _MAKING else _SAID | _ALSO_SAID
    said = [slot for slot in texts if frozenset(slot.words) & spoken]
    sought = [slot for slot in texts if frozenset(slot.words) & _SOUGHT and len(form.slots) == 1]
    says = bool(_SAYING.intersection(split_name(name))) and len(form.slots) == 1
    for candidates, needs_reading in ((said, len(form.slots) > 1 and not free), (sought, True)):
        if len(candidates) == 1:
            slot = candidates[0]
            if any(other.required for other in form.slots if other is not slot):
                return None
            # "Tell me a story about …": only what it is about is meant.
            says = says and (slot in said or "topic" not in slot.words)
            return _Taker(slot.name, says, needs_reading, slot in said or form.reading)
    return None


def acts(capability: Capability) -> bool:
    """Whether a capability does something, and does not only look something up or talk."""
    form = form_of(capability)
    return _find_nature(form, capability.name, capability.description[:100], capability.hints.consequential)[1]


def talks(capability: Capability) -> bool:
    """Whether a capability does nothing but talk, by its name."""
    return bool(_TALKING.intersection(split_name(capability.name)))


def understands(capability: Capability) -> bool:
    """Whether the parameter of a capability is what somebody says, such as ``message``, and not what is sought."""
    form = form_of(capability)
    taker = None if form.unreadable else _taker(form, capability.name, FREE_TEXT in capability.input_schema)
    return taker is not None and taker.understands


def find_refusal(capability: Capability, message: str, *, agent: str = "") -> Forbidden | None:
    """Why a message is not passed on to a capability that takes it whole; None if it is. A long one is not read."""
    return None if len(message) > LONGEST else _find_refusal(capability, form_of(capability, agent), message)


def find_dictated_refusal(capability: Capability, given: Mapping[str, object]) -> Forbidden | None:
    """Why input is not passed on that is nothing but a message to a capability that acts on it; None if it is.

    Only what forbids or withdraws as a whole: the rest of an input is meant as it is given.
    """
    name, text = next(iter(given.items()))
    if not isinstance(text, str) or len(text) > LONGEST or name != find_acting_parameter(capability):
        return None
    if is_withdrawal(text):
        return Forbidden("withdrawn", detect_language(text))
    # A text that somebody keeps or reads may forbid anything: "Do not turn off". This has to forbid what is done here.
    form = form_of(capability)
    about = speaks_of(form, text) or any(fold(word) in form.told_words for word in re.findall(r"\w{3,}", text))
    if about and (only_forbids(text) or drops_matter(text)):
        return Forbidden("forbids", detect_language(text))
    return None


_kept: dict[int, tuple[Capability, str]] = {}
"""The parameters that take what a capability acts on, by its identity; "" for none."""


def find_acting_parameter(capability: Capability) -> str:
    """The parameter that takes what a capability acts on; "" where there is none."""
    known = _kept.get(id(capability))
    if known is None or known[0] is not capability:
        if len(_kept) >= 2_000:
            _kept.clear()
        form = form_of(capability)
        acts = _find_nature(form, capability.name, capability.description[:100], capability.hints.consequential)[1]
        acts = acts and not _KEEPING.intersection(split_name(capability.name))
        taker = _taker(form, capability.name, False) if acts and FREE_TEXT not in capability.input_schema else None
        known = _kept[id(capability)] = capability, "" if taker is None or not taker.understands else taker.name
    return known[1]


def _find_refusal(capability: Capability, form: Form, message: str) -> Forbidden | None:
    why = _why_not(capability, form, message)
    return None if why is None else Forbidden(why, detect_language(message))


def _why_not(capability: Capability, form: Form, message: str) -> Why | None:
    says, acts = _find_nature(form, capability.name, capability.description[:100], capability.hints.consequential)
    if is_withdrawal(message) and not (says and form.reading):
        return "withdrawn"
    talks = not capability.input_schema or FREE_TEXT in capability.input_schema
    if not talks and acts:
        why = find_prohibition(message)
        keeps = _KEEPING.intersection(split_name(capability.name))
        if why in (None, "forbids") and not keeps and leaves_open(message):
            return "open"
        if why == "forbids" and not forbids_all(message) and not speaks_of(form, _after_first_clause(message)):
            return None
        if why is None and not form.undoes and takes_back(message):
            return "withdrawn"
        if why is None and form.verbs & _GETTING and not _begins_with_verb(form, message) and leaves_out(message):
            return "forbids"
        records = _RECORDING.intersection(split_name(capability.name))
        return "report" if why is None and not records and tells_something(message) else why
    if only_forbids(message) and not says:
        return "forbids"
    # Of anything else one who understands it may be told, unless it is just about this.
    return find_prohibition(message, reading=True) if not talks and speaks_of(form, message) else None


@lru_cache(maxsize=2_000)
def _find_nature(form: Form, name: str, opening: str, consequential: bool) -> tuple[bool, bool]:
    """Whether a capability says something; whether it does something, and does not only look something up or talk."""
    words = split_name(name)
    says = bool(_SAYING.intersection(words))
    if form.reading or _TALKING.intersection(words):
        return says, False
    told = [fold(word) for word in opening.split()[:1]]
    doing = [word for word in words if is_action(word)] or [word for word in told if is_action(word)]
    return says, consequential or any(not meanings(word) & _TALKING for word in doing)


def _begins_with_verb(form: Form, message: str) -> bool:
    said = re.findall(r"\w+", fold(message[:_LONGEST_START]))
    return bool(said) and bool(meanings(said[0]) & form.verbs)


def _after_first_clause(message: str) -> str:
    """What comes after the first comma or the like."""
    return " ".join(re.split(r"[,;.:!?]|\b(?:but|pero)\b", message, maxsplit=1)[1:])


def _after_verb(form: Form, message: str) -> str | None:
    """What follows the verb of a capability that says or repeats something: "echo hello"."""
    verb, _, rest = message.strip().partition(" ")
    if not meanings(fold(verb.strip(":,"))) & form.named:
        return None
    rest = rest.strip(" :")
    quoted = len(rest) > 2 and rest[0] in "\"'“«" and rest[-1] in "\"'”»"
    return (rest[1:-1] if quoted else rest) or None


def _is_command(form: Form, message: str) -> bool:
    """Whether it says what to do, or asks, and is not just what is sought."""
    said = [fold(word.strip(" ,.;:!?¿¡\"'")) for word in message.split()]
    asks = form.reading and any(word in _ASKING for word in said[:6])
    begins = bool(said) and is_action(said[0]) and not _DONE.fullmatch(said[0])
    return asks or speaks_of(form, message) or begins


_DONE = re.compile(r"\w{3,}(?<!e)ed")
"""What was done is no command: "sealed in transit"."""


_ASKING = frozenset(
    "find search look busca buscar buscame encuentra encontrar show get muestra muestrame dame dime tell please "
    "what who which how "
    "where when que quien cual como donde cuando could can puedes podrias i want need quiero necesito add remind "
    "tengo".split()
)


def speaks_of(form: Form, message: str) -> bool:
    return any(meanings(fold(word.strip(" ,.;:!?¿¡\"'"))) & form.named for word in message.split())
