"""Which of its capabilities a message to an agent means: the one that fits clearly best, or none.

The same engine as the search, over the capabilities of one agent alone, so that the words they all share say little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, permutations
from math import log

from agent3.arrays import NDArray, np
from agent3.directory.documents import documents_of
from agent3.directory.meaning import WORDS, Encoder, encode_message
from agent3.directory.search import Index, Match, Ranking
from agent3.directory.words import spell, terms
from agent3.model import Agent, Capability
from agent3.sentences import Ask, Understood, free_text, read
from agent3.sentences.lexicon import BROAD, EMPTY, fold, is_action, meanings
from agent3.sentences.phrases import match_phrases
from agent3.sentences.slots import split_name
from agent3.sentences.tokens import LONGEST
from agent3.sentences.topics import choose_by_topic, topic_words

__all__ = ["Choices", "choose", "closest", "index_capabilities"]

CLEARLY, CLEARLY_NAMED = 1.25, 1.1
"""How much better than the second the first must fit; less where the message alone says its whole name. A wrong guess
calls something that nobody asked for. On 264 whole tasks of StableToolBench, without the exception for names, 1.25
refuses 85 and errs in 40, 1.15 refuses 70 and errs in 46, 1.0 errs in 83."""


_NAMES = 20
_MEANT, _MEANT_MORE, _FEW = 0.33, 0.07, 8
"""How near by words and meaning together the first must be: among few, and more with the logarithm of how many there
are, since of many one is always near by chance."""
_AHEAD = 0.12
"""By how much nearer than the second it must be. ``python -m bench commands`` shows what these bounds are worth."""
_MOST_PHRASES, _MOST_ENCODED = 12, 2_000
"""Phrases of a capability, and of all those of an agent, that are compared by meaning."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_NEAR = 20
"""Capabilities whose phrases are compared with a message, the nearest by words."""


def index_capabilities(capabilities: Iterable[Capability]) -> Index:
    """An index over capabilities without their agent. A tenth of a millisecond for each: many are done in a thread."""
    index = Index()
    for capability in capabilities:
        documents = documents_of(Agent(id="", name="", capabilities=(capability,)))
        index.put(Agent(id=capability.name, name=capability.name), documents)
    return index


class Choices:
    """The capabilities of one agent, read once, so that each message is only compared with what was read.

    With an ``encoder``, and the ``vectors`` of the capabilities in their order, words and meaning decide together. Made
    and asked in a thread then. It may be used by several at once.
    """

    def __init__(
        self,
        capabilities: Sequence[Capability],
        encoder: Encoder | None = None,
        vectors: NDArray[np.float32] | None = None,
        index: Index | None = None,
    ):
        self.index = index_capabilities(capabilities) if index is None else index
        self.encoder = encoder if vectors is not None else None
        self._rows = {one.name: row for row, one in enumerate(capabilities)}
        self._topics: dict[str, Mapping[str, float]] = {}
        self._verbs: dict[str, tuple[frozenset[str], ...]] = {}
        if encoder is None or vectors is None:
            return
        each = min(_MOST_PHRASES, _MOST_ENCODED // max(1, len(capabilities)))
        said = [(row, spell_out(text)) for row, one in enumerate(capabilities) for text in one.phrases[:each]]
        phrases = np.asarray(encoder.encode([text for _, text in said])) if said else np.zeros((0, vectors.shape[1]))
        self._vectors = np.concatenate([vectors, phrases.astype(np.float32)])
        self._owners = np.array([*range(len(capabilities)), *(row for row, _ in said)], np.intp)

    def choose(self, offered: Sequence[Capability], message: str, now: float) -> Capability | None:
        """The offered capability that a message clearly means: by the form of its own phrases, by words and meaning,
        by its name; else by what the message speaks of, such as sums and dates, or by the only one that has a place for
        each of its words. None where that is not clear, or where none of them comes near.
        """
        message = message[:LONGEST]
        found = self._choose(offered, message, now)
        if found is None:
            return _choose_by_reading(self.index, offered, message, now)
        # "What time is it in Tokyo" is nearest to one that converts times, but says all that another one needs.
        if _leaves_open(found, message, now):
            others = [one for one in offered if one is not found]
            if (other := _choose_by_reading(self.index, others, message, now, clearly=False)) is not None:
                return other if other.hints.read_only else None
        return found

    def _choose(self, offered: Sequence[Capability], message: str, now: float) -> Capability | None:
        ranking = self.index.rank(message)
        if (phrased := _choose_by_phrase(ranking, offered, message)) is not None:
            return phrased
        named = _find_named(offered, message)
        if len(named) > 1:  # "get or add a pet": the words decide nothing between what is named as a whole
            return None
        if (called := _find_called(offered, message)) is not None and not self._contradicts(called, message):
            return called
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the user's own day
        if self.encoder is None:
            found = _choose_clear(ranking, offered, message) or next(iter(named), None)
            found = found or choose_by_topic(offered, message, today, self._words_of)
            return None if found is None or self._contradicts(found, message) else found
        near = self._rank_by_meaning(self.encoder, ranking, offered, message)
        first = near[0][1] if near else None
        if any(one is first for one in named):
            return first
        needed = _MEANT + _MEANT_MORE * max(0.0, log(len(near) / _FEW)) if near else 0.0
        is_clear = len(near) == 1 or (bool(near) and near[0][0] - near[1][0] >= _AHEAD)
        if first is None or near[0][0] < needed or not is_clear or self._contradicts(first, message):
            return None
        return first

    def _contradicts(self, capability: Capability, message: str) -> bool:
        """Whether a message says to do something else than what a capability does, to the same thing: "unlock the
        door" to one that locks it.
        """
        verbs = self._verbs.get(capability.name)
        if verbs is None:
            verbs = self._verbs[capability.name] = tuple(map(meanings, dict.fromkeys(_verbs_of(capability))))
        if not verbs:
            return False
        done = frozenset().union(*verbs)
        said = [fold(word) for word in re.findall(r"[\w']+", message[:_OPENING])][:8]
        for word in said:
            meant = (meanings(word) - BROAD) | {word}
            if any(_OPPOSITES.get(one, frozenset()) & done and one not in done for one in meant):
                return True
        verb = next((word for word in said if word not in _COURTESIES), "")
        if not is_action(verb):
            return False
        meant = meanings(verb)
        return not any((meant & one) - BROAD or (meant & one and not meant - BROAD - {verb}) for one in verbs)

    def _rank_by_meaning(
        self, encoder: Encoder, ranking: Ranking, offered: Sequence[Capability], message: str
    ) -> list[tuple[float, Capability]]:
        """The offered ones with their scores, the best first: the nearest of what each says of itself, and words."""
        products = self._vectors @ encode_message(encoder, message)
        meant = np.zeros(len(self._rows), np.float32)
        np.maximum.at(meant, self._owners, products)
        for match in ranking:
            if (row := self._rows.get(match.agent)) is not None:
                meant[row] += match.fit * ranking.best * WORDS
        scored = [(float(meant[row]), one) for one in offered if (row := self._rows.get(one.name)) is not None]
        return sorted(scored, key=lambda pair: -pair[0])

    def _words_of(self, capability: Capability) -> Mapping[str, float]:
        found = self._topics.get(capability.name)
        if found is None:
            found = self._topics[capability.name] = topic_words(capability)
        return found


_OPENING = 200
_COURTESIES = EMPTY | frozenset(
    "please kindly ok okay so now just lets let's go ahead like love i'd i'll gustaria nos podrias podria al final ya "
    "oye".split()
)
_OPPOSITES: dict[str, frozenset[str]] = {}
for _pair in (
    "lock unlock|open close|raise lower|on off|start stop|add delete|create delete|enable disable|activate deactivate"
    "|mute unmute|show hide|buy sell|archive unarchive|subscribe unsubscribe|assign unassign|follow unfollow"
    "|block unblock|publish unpublish|upload download|approve reject|pause resume|join leave|lend borrow|cancel book"
    "|like unlike|link unlink|install uninstall|freeze unfreeze|register unsubscribe|pin unpin|arm disarm"
).split("|"):
    for _one, _other in permutations(_pair.split()):
        _OPPOSITES[_one] = _OPPOSITES.get(_one, frozenset()) | {_other}


def _verbs_of(capability: Capability) -> Iterator[str]:
    """What a capability does: the verbs with which its name, its description and its phrases begin."""
    openings = [split_name(capability.name)[:1], [fold(word) for word in capability.description[:60].split()[:1]]]
    openings += [[fold(word) for word in phrase[:60].split()[:1]] for phrase in capability.phrases[:_MOST_PHRASES]]
    return (word for opening in openings for word in opening if is_action(word))


def spell_out(phrase: str) -> str:
    """A phrase with the names of its parameters as words: "flights to {destination}" says "flights to destination"."""
    return _PLACEHOLDER.sub(lambda found: found[1].replace("_", " "), phrase)


def choose(index: Index, offered: Sequence[Capability], message: str, now: float) -> Capability | None:
    """``Choices.choose`` by words alone, for an index that is at hand."""
    return Choices(offered, index=index).choose(offered, message, now)


def _choose_by_phrase(ranking: Iterable[Match], offered: Sequence[Capability], message: str) -> Capability | None:
    """The only one near that has a phrase of the message's form. Those whose words do not fit have no such phrase."""
    known = {capability.name: capability for capability in offered}
    near = islice((known[match.agent] for match in ranking if match.agent in known), _NEAR)
    named = [one for one in near if one.phrases and _has_form(one, message)]
    return named[0] if len(named) == 1 else None


def _has_form(capability: Capability, message: str) -> bool:
    """Whether a message has the form of a phrase; of what only reads also as a question, "what is in my cart?"."""
    said = {message, _MARKS.sub("", message)} if capability.hints.read_only else {message}
    return any(True for one in said for _ in match_phrases(capability, one))


_MARKS = re.compile(r"^[\s¿¡]+|[\s?!.]{1,5}\Z")


def closest(index: Index, offered: Sequence[Capability], message: str, most: int) -> list[Capability]:
    """The offered capabilities that come closest to a message, so many at most; then the others, in their order."""
    if len(offered) <= most:
        return list(offered)
    known = {capability.name: capability for capability in offered}
    ranked = dict.fromkeys(match.agent for match in index.rank(message[:LONGEST]) if match.agent in known)
    return [known[name] for name in [*ranked, *(name for name in known if name not in ranked)][:most]]


def _leaves_open(capability: Capability, message: str, now: float) -> bool:
    """Whether a message does not say all that a capability needs, for one that reads messages at all."""
    if capability.meta.get("reads") or free_text(capability, message) is not None:
        return False
    reading = read(capability, message, datetime.fromtimestamp(now))  # noqa: DTZ006 - the user's own day
    return isinstance(reading, Ask) and bool(reading.missing)


def _choose_by_reading(
    index: Index, offered: Sequence[Capability], message: str, now: float, *, clearly: bool = True
) -> Capability | None:
    """The only one near that understands all of a message, and whose verb or noun is in it. None where one of the
    others would take any words, or, unless ``clearly`` is false, fits the words clearly better.
    """
    today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the user's own day
    found: list[Capability] = []
    most = min(_READ, _READ_CHARACTERS // (len(message) or 1))
    for one in closest(index, offered, message, most) if most > 1 else ():
        if one.meta.get("reads") or free_text(one, message) is not None:
            return None
        reading = read(one, message, today)
        if isinstance(reading, Understood) and reading.input and any(role == "capability" for _, role in reading.used):
            found.append(one)
    found = [one for one in found if not _DEPRECATED.search(one.description[:200])] or found
    if len(found) != 1 or not clearly:
        return found[0] if len(found) == 1 else None
    fits = {match.agent: match.score for match in islice(index.rank(message), _NEAR)}
    return found[0] if fits.get(found[0].name, 0.0) * CLEARLY >= max(fits.values(), default=0.0) else None


_READ = 24
"""Capabilities that a message is read for, the nearest by words."""
_READ_CHARACTERS = 2_400
"""And what that comes to together: a long message takes a tenth of a second for each."""
_DEPRECATED = re.compile(r"\bdeprecated\b", re.IGNORECASE)


def _find_named(offered: Sequence[Capability], message: str) -> list[Capability]:
    """Those whose name of several words is in the message, such as get_pet in "get pet 2". Of names that hold each
    other, such as get_pet and get_pet_photo, the longest.
    """
    said = frozenset(spell(message))
    names = [(one, words) for one in offered if len(words := frozenset(spell(one.name))) > 1 and words <= said]
    rivals = names[:_NAMES]  # a message that names more than these is unclear anyway
    return [one for one, words in names if not any(words < others for _, others in rivals)]


def _find_called(offered: Sequence[Capability], message: str) -> Capability | None:
    """The only one whose name of one word is how a message begins or ends: "tell of a cat", "pizza menu"."""
    said = re.findall(r"\w+", fold(message))
    called = [one for one in offered if {fold(one.name)} & {*said[:1], *said[-1:]}]
    return called[0] if len(called) == 1 else None


def _choose_clear(ranking: Iterable[Match], offered: Sequence[Capability], message: str) -> Capability | None:
    """The one that a ranking, with the names of capabilities as agents, puts clearly first."""
    known = {capability.name: capability for capability in offered}
    ranked = (match for match in ranking if match.agent in known)
    first, second = next(ranked, None), next(ranked, None)
    if first is None:
        return None
    if second is None or second.score < first.score == 1.0:
        return known[first.agent]
    said = frozenset(terms(message))
    named = _is_said(first.agent, said) and not _is_said(second.agent, said)
    clear = first.score >= (CLEARLY_NAMED if named else CLEARLY) * second.score
    return known[first.agent] if clear else None


def _is_said(name: str, said: frozenset[str]) -> bool:
    return frozenset(terms(name)) <= said
