"""Tasks in memory are found by the id that their sender chose, as those of a table are."""

from __future__ import annotations

from agent3.calls.jobs import META_ALIAS
from agent3.model import LOCAL, Call, Done, Part
from agent3.protocols.a2a.door.in_flight import Flights
from agent3.protocols.a2a.door.volatile_tasks import Shelf


def call(number: int, alias: str | None, agent: str = "echo") -> Call:
    meta = {} if alias is None else {META_ALIAS: alias}
    key = f"a2a:{agent}:{alias or number}"
    return Call(id=f"call{number}", principal=LOCAL, agent=agent, capability="say", input={}, key=key, meta=meta)


DONE = Done((Part(text="hello"),))


def test_a_task_is_found_by_its_id_and_by_its_alias() -> None:
    shelf = Shelf()
    shelf.put(call(1, "mine"), DONE, [], 1.0)
    for name in ("call1", "mine"):
        kept = shelf.get(LOCAL.id, name)
        assert kept is not None
        assert kept.job.id == "call1"
    assert shelf.get("somebody else", "mine") is None


def test_an_alias_goes_with_its_task() -> None:
    shelf = Shelf(most=2)
    for number, agent in enumerate(("echo", "other", "third")):
        shelf.put(call(number, "mine" if number < 2 else None, agent), DONE, [], 1.0)
    # The first that took the name has it, and is forgotten first.
    assert shelf.get(LOCAL.id, "mine") is None
    assert shelf.get(LOCAL.id, "call1") is not None
    shelf.put(call(3, "mine", "fourth"), DONE, [], 1.0)
    shelf.put(call(4, None), DONE, [], 1.0)
    assert len(shelf) == 2
    kept = shelf.get(LOCAL.id, "mine")
    assert kept is not None
    assert kept.job.id == "call3"


def test_aliases_that_are_too_many_to_remember_are_all_looked_for() -> None:
    flights = Flights()
    assert not flights.may_have_alias("bob", "mine")
    flights.remember_alias("bob", "mine")
    assert flights.may_have_alias("bob", "mine")
    assert not flights.may_have_alias("alice", "mine")
    for number in range(100_000):
        flights.remember_alias("bob", str(number))
    assert flights.may_have_alias("alice", "mine")
