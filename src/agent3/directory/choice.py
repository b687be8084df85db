"""Which of its capabilities a message to an agent means: the one that fits clearly best, or none.

The same engine as the search, over the capabilities of one agent alone, so that the words they all share say little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from agent3.directory.documents import documents_of
from agent3.directory.search import Index, Match
from agent3.directory.words import spell, terms
from agent3.model import Agent, Capability
from agent3.sentences.topics import choose_by_topic

__all__ = ["choose", "index_capabilities"]

CLEARLY, CLEARLY_NAMED = 1.25, 1.1
"""How much better than the second the first must fit; less where the message alone says its whole name. A wrong guess
calls something that nobody asked for. On 264 whole tasks of StableToolBench, without the exception for names, 1.25
refuses 85 and errs in 40, 1.15 refuses 70 and errs in 46, 1.0 errs in 83."""


def index_capabilities(capabilities: Iterable[Capability]) -> Index:
    """An index over capabilities without their agent. A tenth of a millisecond for each: many belong into a thread."""
    index = Index()
    for capability in capabilities:
        documents = documents_of(Agent(id="", name="", capabilities=(capability,)))
        index.put(Agent(id=capability.name, name=capability.name), documents)
    return index


def choose(index: Index, offered: Sequence[Capability], message: str, now: float) -> Capability | None:
    """The offered capability that fits a message clearly best: by words, in an index that holds it; else by its name;
    else by what the message speaks of, such as sums and dates.
    """
    known = {capability.name: capability for capability in offered}
    ranked = (match for match in index.rank(message) if match.agent in known)
    first, second = next(ranked, None), next(ranked, None)
    if first and second and _are_both_said(first.agent, second.agent, message):
        return None
    if first and (second is None or _is_clear(first, second, message)):
        return known[first.agent]
    today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the user's own day
    return _choose_by_name(offered, message) or choose_by_topic(offered, message, today)


def _choose_by_name(offered: Sequence[Capability], message: str) -> Capability | None:
    """The only one whose name of several words is in the message, such as get_pet in "get pet 2"."""
    said = frozenset(spell(message))
    named = [one for one in offered if len(words := spell(one.name)) > 1 and said.issuperset(words)]
    return named[0] if len(named) == 1 else None


def _is_clear(first: Match, second: Match, message: str) -> bool:
    if second.score < first.score == 1.0:
        return True
    said = frozenset(terms(message))
    named = _is_said(first.agent, said) and not _is_said(second.agent, said)
    return first.score >= (CLEARLY_NAMED if named else CLEARLY) * second.score


def _is_said(name: str, said: frozenset[str]) -> bool:
    return frozenset(terms(name)) <= said


def _are_both_said(one: str, other: str, message: str) -> bool:
    """Whether a message says two whole names, such as get_pet and add_pet in "get or add a pet", and neither is a part
    of the other: that one has the rarer words does not say which is meant.
    """
    said, names = frozenset(spell(message)), [frozenset(spell(name)) for name in (one, other)]
    return all(len(name) > 1 and name <= said for name in names) and not (names[0] <= names[1] or names[1] <= names[0])
