"""The fault kill-jobs runs, and it can fail."""

from __future__ import annotations

from agent3.calls.jobs import Job
from agent3.env import REAL
from agent3.model import LOCAL, Call, Done, Event, Failed, Outcome, Part
from faults import kill_jobs


def a_job(outcome: Outcome, status: str = "done") -> Job:
    call = Call(id=REAL.id(), principal=LOCAL, agent="worker", capability="done")
    return Job(id=call.id, owner="local", status=status, turn=1, call=call, outcome=outcome)  # type: ignore[arg-type]


def test_two_kills_lose_no_job() -> None:
    result = kill_jobs.kill_jobs(11, kills=2)
    assert result["wrong"] == {}, result
    assert result["still_working"] == 0
    assert result["jobs"] > 0
    assert result["ok"], result


def test_what_goes_wrong_is_noticed() -> None:
    fine = Done((Part(text="1/2"),))
    turn = Event("turn", seq=1, turn=1)

    def faults(kind: str, outcome: Outcome, end: str | None, *events: Event) -> list[str]:
        return kill_jobs._faults(kind, a_job(outcome), "1/2", end, list(events))

    assert faults("done", fine, "done 1/2", turn) == []
    assert faults("done", fine, "done else", turn) == ["changed after its end"]
    assert faults("replayed", Failed("interrupted", "x"), None, turn) == ["wrong result"]
    assert faults("unrepeated", Failed("timeout", "x"), None, turn) == ["neither done nor interrupted"]
    assert faults("done", fine, None) == ["events doubled or lost"]
    assert faults("done", fine, None, turn, turn) == ["events doubled or lost"]
    twice = [Event("progress", done=1, seq=1), Event("progress", done=1, seq=2), Event("turn", seq=3, turn=1)]
    assert faults("unrepeated", fine, None, *twice) == ["a step told twice"]
