"""Which of its capabilities a message to an agent means: the one that fits clearly best, or none.

The same engine as the search, over the capabilities of one agent alone, so that the words they all share say little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice

from agent3.directory.documents import documents_of
from agent3.directory.search import Index, Match, Ranking
from agent3.directory.words import spell, terms
from agent3.model import Agent, Capability
from agent3.sentences.phrases import match_phrases
from agent3.sentences.tokens import LONGEST
from agent3.sentences.topics import choose_by_topic

__all__ = ["choose", "choose_by_meaning", "closest", "index_capabilities"]

CLEARLY, CLEARLY_NAMED = 1.25, 1.1
"""How much better than the second the first must fit; less where the message alone says its whole name. A wrong guess
calls something that nobody asked for. On 264 whole tasks of StableToolBench, without the exception for names, 1.25
refuses 85 and errs in 40, 1.15 refuses 70 and errs in 46, 1.0 errs in 83."""


_NAMES = 20
_MEANT = 0.25
"""How near by words and meaning the first must be. On 27 sentences to three websites, those that none of their actions
does come to 0.16 at most, most of the others to more than 0.25."""
_MOST_READ = 2_000
_NEAR = 20
"""Capabilities whose phrases are compared with a message, the nearest by words."""


def index_capabilities(capabilities: Iterable[Capability]) -> Index:
    """An index over capabilities without their agent. A tenth of a millisecond for each: many belong into a thread."""
    index = Index()
    for capability in capabilities:
        documents = documents_of(Agent(id="", name="", capabilities=(capability,)))
        index.put(Agent(id=capability.name, name=capability.name), documents)
    return index


def choose(index: Index, offered: Sequence[Capability], message: str, now: float) -> Capability | None:
    """The offered capability that fits a message clearly best: by the form of its own phrases; by words, in an index
    that holds it; by its name; else by what the message speaks of, such as sums and dates.
    """
    message = message[:LONGEST]
    today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the user's own day
    ranking = index.rank(message)
    if (phrased := _choose_by_phrase(ranking, offered, message)) is not None:
        return phrased
    named = _find_named(offered, message)
    if len(named) > 1:  # "get or add a pet": the words decide nothing between what is named as a whole
        return None
    found = _choose_clear(ranking, offered, message) or next(iter(named), None)
    return found or choose_by_topic(offered, message, today)


def _choose_by_phrase(ranking: Iterable[Match], offered: Sequence[Capability], message: str) -> Capability | None:
    """The only one near that has a phrase of the message's form. Those whose words do not fit have no such phrase."""
    known = {capability.name: capability for capability in offered}
    near = islice((known[match.agent] for match in ranking if match.agent in known), _NEAR)
    named = [one for one in near if one.phrases and any(True for _ in match_phrases(one, message))]
    return named[0] if len(named) == 1 else None


def closest(index: Index, offered: Sequence[Capability], message: str, most: int) -> list[Capability]:
    """The offered capabilities that come closest to a message, so many at most; then the others, in their order."""
    if len(offered) <= most:
        return list(offered)
    known = {capability.name: capability for capability in offered}
    ranked = dict.fromkeys(match.agent for match in index.rank(message[:LONGEST]) if match.agent in known)
    return [known[name] for name in [*ranked, *(name for name in known if name not in ranked)][:most]]


def _find_named(offered: Sequence[Capability], message: str) -> list[Capability]:
    """Those whose name of several words is in the message, such as get_pet in "get pet 2". Of names that hold each
    other, such as get_pet and get_pet_photo, the longest.
    """
    said = frozenset(spell(message))
    names = [(one, words) for one in offered if len(words := frozenset(spell(one.name))) > 1 and words <= said]
    rivals = names[:_NAMES]  # a message that names more than these is unclear anyway
    return [one for one, words in names if not any(words < others for _, others in rivals)]


def choose_by_meaning(ranking: Ranking, agent: Agent, offered: Sequence[Capability], message: str) -> Capability | None:
    """The offered capability of an agent that a ranking by words and meaning puts clearly first, and near enough.

    For messages whose words leave it open.
    """
    message = message[:LONGEST]
    if len(_find_named(offered, message)) > 1:
        return None
    own = [
        Match(match.capability, None, match.score)
        for match in islice(ranking, _MOST_READ)
        if match.agent == agent.id and match.capability is not None
    ]
    near = [match for match in own if match.score * ranking.best >= _MEANT]
    return _choose_clear(own, offered, message) if near else None


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
