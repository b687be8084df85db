"""The life of a heal, and the books in which it is kept, in memory and in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from agent3.protocols.nlweb.healing import (
    ElementKey,
    ElementRecord,
    ElementStore,
    Heal,
    MemoryStore,
    Policy,
    Store,
    records,
)
from agent3.protocols.nlweb.healing.fingerprints import Fingerprint
from tests.support.postgres import new_database_url
from tests.support.storage import using

WHERE = ElementKey("shop", "buy", "#go")
OLD = Fingerprint(role="button", tag="button", name="Go")
NEW = Fingerprint(role="button", tag="div", name="Go on")
POLICY = Policy(promote_after=3, revert_after=2)
KNOWN = ElementRecord(WHERE, OLD)


def heal(selector: str = "#new") -> Heal:
    return Heal(id=records.heal_id(WHERE, selector), selector=selector, print=NEW, before=OLD, score=0.9, margin=0.5)


def after(*changes: records.Change, known: ElementRecord = KNOWN) -> ElementRecord:
    for change in changes:
        known = change(known)
    return known


PROPOSED = records.propose(heal(), 1.0)
WON = records.credit(heal().id, 2.0, POLICY)
LOST = records.debit(heal().id, 3.0, POLICY)


def state(known: ElementRecord) -> str:
    found = known.find_heal(heal().id)
    assert found is not None
    return found.state


def test_a_heal_is_promoted_only_after_repeated_success() -> None:
    known = after(PROPOSED, WON, WON)
    assert (state(known), known.print, known.stand_in) == ("proposed", OLD, None)
    known = after(WON, known=known)
    assert (state(known), known.print) == ("promoted", NEW)
    assert [note.what for note in known.heals[0].notes] == ["proposed", "promoted"]


def test_a_failure_between_starts_the_count_anew_and_two_take_the_heal_back() -> None:
    assert state(after(PROPOSED, WON, WON, LOST, WON, WON)) == "proposed"
    assert state(after(PROPOSED, WON, LOST, LOST)) == "reverted"


def test_what_was_taken_back_means_again_what_it_meant_and_is_not_proposed_again() -> None:
    known = after(PROPOSED, records.accept(heal().id, 2.0, "ann"), records.revert(heal().id, 3.0, "bob"), PROPOSED, WON)
    assert (state(known), known.print, len(known.heals)) == ("reverted", OLD, 1)
    assert [(note.what, note.by) for note in known.heals[0].notes] == [
        ("proposed", "agent3"), ("accepted", "ann"), ("reverted", "bob"),
    ]  # fmt: skip


def test_only_what_a_person_accepted_counts_as_confirmed() -> None:
    accepted = after(PROPOSED, records.accept(heal().id, 2.0, "ann")).heals[0]
    promoted = after(PROPOSED, WON, WON, WON).heals[0]
    assert (accepted.by_a_person, promoted.by_a_person) == (True, False)


def test_one_heal_at_a_time_stands_in_for_a_selector() -> None:
    other = heal("#other")
    known = after(
        PROPOSED,
        records.propose(other, 1.0),
        records.accept(other.id, 2.0, "ann"),
        records.accept(heal().id, 3.0, "ann"),
    )
    assert known.stand_in is not None
    assert known.stand_in.id == heal().id
    assert known.heals[1].state == "proposed"


def test_what_was_reverted_stays_known_among_many_proposals() -> None:
    first = after(PROPOSED, records.revert(heal().id, 2.0, "ann"))
    known = after(*(records.propose(heal(f"#n{number}"), 3.0) for number in range(20)), known=first)
    assert len(known.heals) == 8
    assert state(known) == "reverted"


# The books

Story = Callable[[Store], Coroutine[None, None, None]]


def in_memory(story: Story, _: Path) -> None:
    asyncio.run(story(MemoryStore()))


def in_sqlite(story: Story, folder: Path) -> None:
    using(f"sqlite:///{folder}/house.db", lambda database: story(ElementStore(database)))


def in_postgres(story: Story, _: Path) -> None:
    using(new_database_url(), lambda database: story(ElementStore(database)))


@pytest.fixture(params=[in_memory, in_sqlite, pytest.param(in_postgres, marks=pytest.mark.postgres)])
def telling(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    return lambda story: request.param(story, tmp_path)


def test_a_book_gives_back_what_was_written_and_nothing_is_lost_between_two_writers(
    telling: Callable[[Story], None],
) -> None:
    async def story(store: Store) -> None:
        assert await store.get(WHERE) == ElementRecord(WHERE)
        await store.change(WHERE, records.remember(OLD))
        await asyncio.gather(*(store.change(WHERE, records.propose(heal(f"#n{number}"), 1.0)) for number in range(5)))
        other = ElementKey("air", "fly", "#go", "iframe#pay")
        await store.change(other, records.remember(NEW))
        found = await store.get(WHERE)
        assert found.print == OLD
        assert {heal.selector for heal in found.heals} == {f"#n{number}" for number in range(5)}
        assert [record.where for record in await store.all()] == [other, WHERE]
        assert await store.all("shop") == [found]

    telling(story)


def test_a_book_forgets_what_was_not_touched_longest(
    monkeypatch: pytest.MonkeyPatch, telling: Callable[[Story], None]
) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.healing.stores._MOST_ELEMENTS", 3)

    async def story(store: Store) -> None:
        for number in range(5):
            await store.change(ElementKey("shop", "buy", f"#{number}"), records.remember(OLD))
        assert [record.where.selector for record in await store.all()] == ["#2", "#3", "#4"]

    telling(story)
