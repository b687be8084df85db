"""What is known of the element of a step, and the life of a heal: proposed, promoted, reverted.

A heal is another selector for a step whose own does not fit any more. It begins as a proposal, is promoted after it has
served whole actions often enough or by a person, and can be taken back, after which it is never made again. All of it
is data; every change is a function from what is known to what is known then.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agent3.protocols.nlweb.healing.fingerprints import Print

__all__ = ["Change", "Heal", "Known", "Note", "Policy", "Seen", "State", "Use", "Where", "accepted", "learnt", "lost",
           "proposed", "read_on", "reverted", "won"]  # fmt: skip

State = Literal["proposed", "promoted", "reverted"]
ITSELF = "agent3"
"""Who changed a heal, where it was no person."""
_MOST_HEALS = 8
_MOST_NOTES = 20


class Policy(Struct, frozen=True):
    """When to heal, and what a heal must have shown.

    ``grace`` is how many milliseconds the step's own selector has before anything else is looked at; ``promote_after``
    is how many actions in a row must have succeeded with a heal, ``revert_after`` how many in a row have failed.
    """

    threshold: float = 0.62
    margin: float = 0.12
    grace: float = 1500.0
    promote_after: int = 3
    revert_after: int = 2


class Where(Struct, frozen=True, order=True):
    """The element that a step of an action means, in a frame of the page if it says so."""

    interface: str
    action: str
    selector: str
    frame: str = ""


class Note(Struct, frozen=True):
    """One event in the life of a heal: when, what, and who did it."""

    at: float
    what: str
    by: str = ITSELF


class Heal(Struct, frozen=True, kw_only=True):
    """Another selector for a step. ``before`` is the fingerprint that it was found by, ``print`` its own."""

    id: str
    selector: str
    print: Print
    before: Print
    score: float
    margin: float
    state: State = "proposed"
    wins: int = 0
    losses: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def by_a_person(self) -> bool:
        """Whether somebody accepted it; only such a one serves an action with consequences."""
        return self.state == "promoted" and bool(self.notes) and self.notes[-1].by != ITSELF


class Seen(Struct, frozen=True):
    """Marks of a page on which something was read, outside of what was read, and when that was."""

    at: float
    marks: tuple[str, ...]


class Known(Struct, frozen=True):
    """All that is known of an element: its fingerprint, its heals, and the page on which rows of it were read."""

    where: Where
    print: Print | None = None
    heals: tuple[Heal, ...] = ()
    page: Seen | None = None

    @property
    def promoted(self) -> Heal | None:
        """The heal that stands in for the selector; the latest, should there be several."""
        return next((one for one in reversed(self.heals) if one.state == "promoted"), None)

    def heal(self, name: str) -> Heal | None:
        """The heal of an id."""
        return next((one for one in self.heals if one.id == name), None)


class Use(Struct, frozen=True):
    """That a step went by a heal."""

    where: Where
    heal: Heal

    def told(self) -> dict[str, Any]:
        """For whoever called: which selector did not fit, and what was taken in its place, how surely."""
        return {
            "id": self.heal.id,
            "action": self.where.action,
            "selector": self.where.selector,
            "healed": self.heal.selector,
            "element": {"role": self.heal.print.role, "name": self.heal.print.name},
            "score": self.heal.score,
            "state": self.heal.state,
        }


Change = Callable[[Known], Known]


def name_of(where: Where, selector: str) -> str:
    """The id of a heal: the same for the same step and selector, on every machine."""
    text = "\x1f".join((where.interface, where.action, where.selector, where.frame, selector))
    return blake2b(text.encode(), digest_size=5).hexdigest()


def learnt(print_: Print) -> Change:
    """The step's own selector worked: this is what it means."""
    return lambda known: replace(known, print=print_)


def read_on(marks: tuple[str, ...], at: float) -> Change:
    """The selector of an extraction found something on a page with these marks."""
    return lambda known: replace(known, page=Seen(at, marks))


def proposed(heal: Heal, at: float) -> Change:
    """A heal is made. One that is known already stays as it is."""

    def change(known: Known) -> Known:
        if known.heal(heal.id) is not None:
            return known
        return replace(known, heals=_bounded([*known.heals, _noted(heal, at, "proposed")]))

    return change


def won(name: str, at: float, policy: Policy) -> Change:
    """An action succeeded with it."""

    def change(known: Known) -> Known:
        heal = known.heal(name)
        if heal is None or heal.state == "reverted":
            return known
        heal = replace(heal, wins=heal.wins + 1, losses=0)
        if heal.state == "proposed" and heal.wins >= policy.promote_after:
            return _promoted(known, _noted(replace(heal, state="promoted"), at, "promoted"))
        return _with(known, heal)

    return change


def lost(name: str, at: float, policy: Policy) -> Change:
    """An action failed with it. It need not have been the reason, so once is no more than a lost lead."""

    def change(known: Known) -> Known:
        heal = known.heal(name)
        if heal is None or heal.state == "reverted":
            return known
        heal = replace(heal, wins=0, losses=heal.losses + 1)
        if heal.losses >= policy.revert_after and not heal.by_a_person:
            return _taken_back(known, heal, at, ITSELF)
        return _with(known, heal)

    return change


def accepted(name: str, at: float, by: str) -> Change:
    """A person says that it is right."""

    def change(known: Known) -> Known:
        heal = known.heal(name)
        if heal is None:
            return known
        return _promoted(known, _noted(replace(heal, state="promoted", losses=0), at, "accepted", by))

    return change


def reverted(name: str, at: float, by: str) -> Change:
    """A person says that it is wrong: the fingerprint before it is the right one again, and it is never made again."""

    def change(known: Known) -> Known:
        heal = known.heal(name)
        return known if heal is None or heal.state == "reverted" else _taken_back(known, heal, at, by)

    return change


def _promoted(known: Known, heal: Heal) -> Known:
    """From now on the new element is the one that is remembered, and no other heal stands in for the selector."""
    others = tuple(replace(one, state="proposed", wins=0) if one.state == "promoted" else one for one in known.heals)
    return replace(_with(replace(known, heals=others), heal), print=heal.print)


def _taken_back(known: Known, heal: Heal, at: float, by: str) -> Known:
    was = heal.state
    changed = _with(known, _noted(replace(heal, state="reverted", wins=0), at, "reverted", by))
    return replace(changed, print=heal.before) if was == "promoted" else changed


def _with(known: Known, heal: Heal) -> Known:
    return replace(known, heals=tuple(heal if one.id == heal.id else one for one in known.heals))


def _noted(heal: Heal, at: float, what: str, by: str = ITSELF) -> Heal:
    return replace(heal, notes=(*heal.notes, Note(at, what, by))[-_MOST_NOTES:])


def _bounded(heals: list[Heal]) -> tuple[Heal, ...]:
    """Not more than a few: proposals go first, since a reverted one must stay known."""
    while len(heals) > _MOST_HEALS:
        rank = {"proposed": 0, "reverted": 1, "promoted": 2}
        heals.remove(min(heals, key=lambda one: rank[one.state]))
    return tuple(heals)
