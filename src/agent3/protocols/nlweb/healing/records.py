"""What is known of the element of a step, and the life of a heal: proposed, promoted, reverted.

A heal is another selector for a step whose own does not fit any more. It begins as a proposal, is promoted after it has
served whole actions often enough or by a person, and can be taken back, after which it is never made again. All of it
is data, stored as JSON under the names of the fields here; every change is a function from record to record.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agent3.protocols.nlweb.healing.fingerprints import Fingerprint

__all__ = ["Change", "ElementKey", "ElementRecord", "Heal", "HealUse", "Policy", "State", "accept", "credit", "debit",
           "heal_id", "propose", "remember", "remember_page", "revert"]  # fmt: skip

State = Literal["proposed", "promoted", "reverted"]
ITSELF = "agent3"
"""Who changed a heal, where it was not a person."""
_MOST_HEALS = 8
_MOST_NOTES = 20
_FIRST_TO_GO = ("proposed", "reverted", "promoted")
"""Which heals go first when there are too many: a reverted one must stay known, or it would be made again."""


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


class ElementKey(Struct, frozen=True, order=True):
    """The element that a step of an action means, in a frame of the page if it says so."""

    interface: str
    action: str
    selector: str
    frame: str = ""


class HealEvent(Struct, frozen=True):
    """One event in the life of a heal: when, what, and who did it."""

    at: float
    what: str
    by: str = ITSELF


class Heal(Struct, frozen=True, kw_only=True):
    """Another selector for a step. ``before`` is the fingerprint that it was found by, ``print`` its own."""

    id: str
    selector: str
    print: Fingerprint
    before: Fingerprint
    score: float
    margin: float
    state: State = "proposed"
    wins: int = 0
    losses: int = 0
    notes: tuple[HealEvent, ...] = ()

    @property
    def by_a_person(self) -> bool:
        """Whether a person accepted it; only such a one serves an action with consequences."""
        return self.state == "promoted" and bool(self.notes) and self.notes[-1].by != ITSELF


class PageMarks(Struct, frozen=True):
    """Marks of a page on which something was read, outside of what was read, and when that was."""

    at: float
    marks: tuple[str, ...]


class ElementRecord(Struct, frozen=True):
    """All that is known of an element: its fingerprint, its heals, and the page on which rows of it were read."""

    where: ElementKey
    print: Fingerprint | None = None
    heals: tuple[Heal, ...] = ()
    page: PageMarks | None = None

    @property
    def stand_in(self) -> Heal | None:
        """The heal that stands in for the selector; the latest, should there be several."""
        return next((heal for heal in reversed(self.heals) if heal.state == "promoted"), None)

    def find_heal(self, name: str) -> Heal | None:
        return next((heal for heal in self.heals if heal.id == name), None)


class HealUse(Struct, frozen=True):
    """That a step went by a heal."""

    where: ElementKey
    heal: Heal

    def describe(self) -> dict[str, Any]:
        """For the caller: which selector did not fit, and what was taken in its place, how surely."""
        return {
            "id": self.heal.id,
            "action": self.where.action,
            "selector": self.where.selector,
            "healed": self.heal.selector,
            "element": {"role": self.heal.print.role, "name": self.heal.print.name},
            "score": self.heal.score,
            "state": self.heal.state,
        }


Change = Callable[[ElementRecord], ElementRecord]


# Changes are functions, so that a store can apply them to what is there at that moment, in its own transaction.


def heal_id(where: ElementKey, selector: str) -> str:
    """The id of a heal: the same for the same step and selector, on every machine."""
    text = "\x1f".join((where.interface, where.action, where.selector, where.frame, selector))
    return blake2b(text.encode(), digest_size=5).hexdigest()


def remember(print_: Fingerprint) -> Change:
    """The step's own selector worked: this is what it means."""
    return lambda known: replace(known, print=print_)


def remember_page(marks: tuple[str, ...], at: float) -> Change:
    """The selector of an extraction found something on a page with these marks."""
    return lambda known: replace(known, page=PageMarks(at, marks))


def propose(heal: Heal, at: float) -> Change:
    """A heal is made. One that is known already stays as it is."""

    def change(known: ElementRecord) -> ElementRecord:
        if known.find_heal(heal.id) is not None:
            return known
        heals = [*known.heals, _with_note(heal, at, "proposed")]
        while len(heals) > _MOST_HEALS:
            heals.remove(min(heals, key=lambda heal: _FIRST_TO_GO.index(heal.state)))
        return replace(known, heals=tuple(heals))

    return change


def credit(name: str, at: float, policy: Policy) -> Change:
    """An action succeeded with it."""

    def change(known: ElementRecord) -> ElementRecord:
        heal = known.find_heal(name)
        if heal is None or heal.state == "reverted":
            return known
        heal = replace(heal, wins=heal.wins + 1, losses=0)
        if heal.state == "proposed" and heal.wins >= policy.promote_after:
            return _promote(known, _with_note(replace(heal, state="promoted"), at, "promoted"))
        return _with_heal(known, heal)

    return change


def debit(name: str, at: float, policy: Policy) -> Change:
    """An action failed with it. It need not have been the reason, so once is no more than a lost lead."""

    def change(known: ElementRecord) -> ElementRecord:
        heal = known.find_heal(name)
        if heal is None or heal.state == "reverted":
            return known
        heal = replace(heal, wins=0, losses=heal.losses + 1)
        if heal.losses >= policy.revert_after and not heal.by_a_person:
            return _take_back(known, heal, at, ITSELF)
        return _with_heal(known, heal)

    return change


def accept(name: str, at: float, by: str) -> Change:
    """A person says that it is right."""

    def change(known: ElementRecord) -> ElementRecord:
        heal = known.find_heal(name)
        if heal is None:
            return known
        return _promote(known, _with_note(replace(heal, state="promoted", losses=0), at, "accepted", by))

    return change


def revert(name: str, at: float, by: str) -> Change:
    """A person says that it is wrong: the fingerprint before it is the right one again, and it is never made again."""

    def change(known: ElementRecord) -> ElementRecord:
        heal = known.find_heal(name)
        return known if heal is None or heal.state == "reverted" else _take_back(known, heal, at, by)

    return change


def _promote(known: ElementRecord, heal: Heal) -> ElementRecord:
    """From now on the new element is the one that is remembered, and no other heal stands in for the selector."""
    others = tuple(
        replace(other, state="proposed", wins=0) if other.state == "promoted" else other for other in known.heals
    )
    return replace(_with_heal(replace(known, heals=others), heal), print=heal.print)


def _take_back(known: ElementRecord, heal: Heal, at: float, by: str) -> ElementRecord:
    was = heal.state
    changed = _with_heal(known, _with_note(replace(heal, state="reverted", wins=0), at, "reverted", by))
    return replace(changed, print=heal.before) if was == "promoted" else changed


def _with_heal(known: ElementRecord, heal: Heal) -> ElementRecord:
    return replace(known, heals=tuple(heal if other.id == heal.id else other for other in known.heals))


def _with_note(heal: Heal, at: float, what: str, by: str = ITSELF) -> Heal:
    return replace(heal, notes=(*heal.notes, HealEvent(at, what, by))[-_MOST_NOTES:])
