"""The faults of the whole house run, small, and their judges can say no."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent3.calls.jobs import Job
from agent3.model import LOCAL, Call, Done, Part
from faults import __main__ as command_line
from faults import (
    _outage,
    clock_jumps,
    cluster,
    failpoints,
    flaky_peer,
    flipped_bit,
    full_disk,
    graceful_stop,
    kill_gateway,
    overload,
    overload_connections,
    slow_everything,
    upgrade,
    workers_die,
)
from faults._gateway import Told, asking
from faults.registry import known

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "faults.md"
GOOD = Told(200, {"success": True, "result": "flood"}, 0.1)
REFUSED = Told(429, {"error": "busy"}, 0.01, "1")
BROKEN = Told(0, {"error": "reset"}, 0.1)


def test_every_fault_says_what_it_is_about_and_stands_in_the_reference() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for name, fault in known().items():
        assert fault.about.endswith("."), name
        assert f"`{name}`" in page


def test_the_list_and_the_json_are_for_programs_and_a_full_disk_recovers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command_line.main(["--list"]) == 0
    assert "full-disk" in capsys.readouterr().out
    assert command_line.main(["full-disk", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["seed"] == 3
    assert told["ceiling"]["acked_while_full"] == full_disk.WHILE_FULL
    assert told["disk"].get("acked_while_full", full_disk.WHILE_FULL) == full_disk.WHILE_FULL
    assert "seed 3" in err


def test_a_stop_with_calls_in_flight_answers_them_all() -> None:
    result = graceful_stop.graceful_stop(1, calls=20)
    assert result["ok"], result


def test_a_stop_that_loses_a_call_is_noticed() -> None:
    told, begun = [GOOD, GOOD], ["early0", "early1"]
    assert graceful_stop.judge(told, [BROKEN], Counter(done=2), begun, 0)["ok"]
    assert not graceful_stop.judge([GOOD, BROKEN], [], Counter(done=2), begun, 0)["ok"]
    assert not graceful_stop.judge(told, [], Counter(done=1), begun, 0)["ok"]
    assert not graceful_stop.judge(told, [], Counter(done=2), [*begun, "late0"], 0)["ok"]
    assert not graceful_stop.judge(told, [], Counter(done=2), begun, 1)["ok"]


def test_an_overload_is_judged_by_goodput_and_honest_refusals() -> None:
    flood = [GOOD] * 95 + [REFUSED] * 405
    assert overload.judge(100.0, flood, 1.0, GOOD)["ok"]
    assert not overload.judge(110.0, flood, 1.0, GOOD)["ok"]
    assert not overload.judge(100.0, [*flood, BROKEN], 1.0, GOOD)["ok"]
    assert not overload.judge(100.0, [*flood, Told(429, {}, 0.01)], 1.0, GOOD)["ok"]
    assert not overload.judge(100.0, flood, 1.0, REFUSED)["ok"]


def test_a_flood_of_requests_is_judged_by_the_work_that_goes_on() -> None:
    before, after = overload.Flood(1_000.0, {200: 9}, {200: 9}), overload.Flood(920.0, {200: 9, 503: 9}, {200: 9})
    assert overload.judge_requests(before, after)["ok"]
    assert not overload.judge_requests(before, after._replace(rate=800.0))["ok"]
    assert not overload.judge_requests(before, after._replace(modest={200: 5, 503: 4}))["ok"]
    assert not overload.judge_requests(before, after._replace(many={200: 9, 503: 9, 0: 1}))["ok"]


def test_a_flaky_peer_is_judged_by_what_was_done() -> None:
    answers = [
        ("once", "once-0", Told(200, {"success": True, "result": "once-0"}, 0.1)),
        ("once", "once-1", Told(503, {"error": "gone"}, 0.1)),
    ]
    after, ledger = [GOOD], Counter({"once done": 1})
    assert flaky_peer.judge(answers, after, ["once-0", "once-1"], ledger)["ok"]
    assert flaky_peer.judge(answers, after, ["once-0", "once-0"], ledger)["done_twice"] == 1
    assert flaky_peer.judge(answers, after, ["once-1"], ledger)["told_done_and_not_done"] == 1
    assert flaky_peer.judge([*answers, ("once", "once-2", BROKEN)], after, ["once-0"], ledger)["unanswered"] == 1
    assert not flaky_peer.judge(answers, [REFUSED], ["once-0"], ledger)["ok"]


def test_a_gateway_lives_with_a_clock_that_jumps(tmp_path: Path) -> None:
    result = asyncio.run(clock_jumps.jumpy(tmp_path, 1, calls=40))
    assert result["ok"], result


@pytest.mark.parametrize("seconds", [clock_jumps.DAY, -clock_jumps.DAY])
def test_a_queue_lives_with_a_database_whose_clock_jumps(tmp_path: Path, seconds: float) -> None:
    result = asyncio.run(clock_jumps.jumped(f"sqlite:///{tmp_path}/queue.db", "jumps", seconds))
    assert result["ok"], result


@pytest.mark.parametrize("version", sorted({*range(1, upgrade.NEWEST, 6), upgrade.NEWEST - 1, upgrade.NEWEST}))
def test_a_database_of_each_version_keeps_its_rows(tmp_path: Path, version: int) -> None:
    result = asyncio.run(upgrade.upgraded("sqlite", version, 1, tmp_path, ""))
    assert result["ok"], result


def test_whatever_were_served_damaged_would_be_noticed(tmp_path: Path) -> None:
    file = tmp_path / "whole.db"
    known = asyncio.run(flipped_bit.filled(file, random.Random(1)))
    copies = [shutil.copy(file, tmp_path / f"{number}.db") for number in range(5)]

    def seen(**other: Any) -> str:
        return asyncio.run(flipped_bit.looked_at(Path(copies.pop()), replace(known, **other)))

    assert seen() == "harmless"
    assert seen(messages={**known.messages, "unknown": b"x"}) == "lost without a word"
    assert seen(messages=dict.fromkeys(known.messages, b"other")).startswith("served damaged: message")
    assert seen(agents={}).startswith("served damaged: agent")
    assert seen(jobs=dict.fromkeys(known.jobs)).startswith("served damaged: job")


def a_job(word: str) -> Job:
    call = Call(id=word, principal=LOCAL, agent="served", capability="message", input={})
    outcome = Done((Part(text=word),))
    return Job(id=word, owner=LOCAL.id, status="done", turn=2, call=call, outcome=outcome)


def test_messages_that_a_gateway_lost_or_took_twice_are_noticed() -> None:
    async def crowd(**more: Any) -> kill_gateway.Crowd:
        async with asking() as session:
            told: dict[str, Any] = {"accepted": {"k": "job"}, "acked": {"job": ["k/a"]}, **more}
            return kill_gateway.Crowd(session, **told)

    def seen(job: Job | None, **more: Any) -> dict[str, Any]:
        return kill_gateway.compared(asyncio.run(crowd(**more)), {"k": job})

    assert seen(a_job("k/a"))["ok"]
    assert seen(None)["lost"] == 1
    assert seen(a_job("k/b"))["acks_undone"] == 1
    assert seen(a_job("k/a"), acked={"job": ["k/a", "k/b"]})["acked_twice"] == 1
    assert seen(a_job("k/a"), acked={})["never_acked"] == 1
    assert not seen(a_job("k/a"), second_jobs=1)["ok"]


def test_webhooks_that_did_not_arrive_or_not_in_order_are_noticed() -> None:
    delivered = Counter(delivered=failpoints.OWNERS * failpoints.EACH)
    all_of_it = {
        f"o{owner}": [(f"cb{owner}-{number}", str(number)) for number in range(failpoints.EACH)]
        for owner in range(failpoints.OWNERS)
    }
    twice = {**all_of_it, "o0": [all_of_it["o0"][0], *all_of_it["o0"]]}
    assert failpoints.judge(twice, delivered)["ok"]
    assert not failpoints.judge(all_of_it, delivered)["ok"], "nothing was repeated, so nothing was struck"
    assert failpoints.judge({**twice, "o1": twice["o1"][:2]}, delivered)["never_arrived"] == 1
    assert failpoints.judge({**twice, "o1": twice["o1"][::-1]}, delivered)["out_of_order"] == 1
    assert failpoints.judge(twice, Counter(delivered=1))["not_delivered"] > 0


def test_an_outage_is_judged_by_what_was_done_and_told() -> None:
    names = [f"detached-order-0-{number}" for number in range(10)]
    ends: dict[str, dict[str, Any]] = {name: {"status": "done"} for name in names}
    keyed = [_outage.Told("keyed", "look", f"k{one}", 200, result=f'{{"did": "k{one}"}}') for one in range(5)]
    refused = _outage.Told("plain", "order", "p", 503, "storage_failed", retry_after="1")
    done = [("order", name) for name in names] + [("look", one.name) for one in keyed]

    def seen(
        told: list[_outage.Told] | None = None, did: list[tuple[str, str]] | None = None, **end: str
    ) -> dict[str, int]:
        changed = {**ends, names[0]: {**ends[names[0]], **end}}
        result = _outage.judge([*keyed, refused, *(told or ())], changed, [*done, *(did or ())], Counter({"ok": 3}), [])
        assert result["ok"] is not bool(result["wrong"])
        wrong: dict[str, int] = result["wrong"]
        return wrong

    assert seen() == {}
    assert seen(errorCode="interrupted") == {}
    assert seen(errorCode="storage_failed") == {"jobs_failed": 1}
    assert seen(status="working") == {"jobs_not_ended": 1}
    assert seen(did=[("order", names[0])]) == {"order_done_twice": 1}
    assert seen(did=[("look", "k0")]) == {}
    taken = _outage.Told("keyed", "order", "k9", 409, "turn_taken")
    assert seen([taken]) == {"turn_taken": 1, "keyed_without_an_end": 1}
    assert seen([_outage.Told("plain", "look", "x", 200, result='"x"')]) == {"told_done_and_not_done": 1}
    assert seen([_outage.Told("plain", "look", "x", 503, "storage_failed")]) == {"refused_without_a_time": 1}


def test_the_judge_of_dying_workers_can_say_no() -> None:
    def seen(**more: Any) -> workers_die._Seen:
        good = {
            "told": {"a": "done", "j": "done"},
            "jobs": {"j": "job-1"},
            "kinds": {"a": "unrepeated", "j": "repeated"},
            "killed": {1: (10.0, 11.0)},
        }
        return workers_die._Seen(**{**good, **more})

    diary = ["1 begin a", "1 end a", "1 begin j", "2 begin j", "2 end j"]
    assert workers_die.judge(seen(), diary)["ok"]
    assert workers_die.judge(seen(), diary[1:4])["told_done_but_not_done"] == 1
    assert workers_die.judge(seen(), [*diary, "2 begin a"])["done_twice"] == 1
    assert not workers_die.judge(seen(told={"a": "done", "j": "working"}), diary)["ok"]
    assert not workers_die.judge(seen(told={"a": "done", "j": "failed interrupted"}), diary)["ok"]
    assert not workers_die.judge(seen(refused=Counter({"503": 1})), diary)["ok"]
    assert not workers_die.judge(seen(unanswered=["x"]), diary)["ok"]
    assert not workers_die.judge(seen(killed={}), diary)["ok"]


@pytest.mark.parametrize(
    ("broken", "begun", "is_ok"),
    [
        ((9.0, 10.5, False), "1 begin x", True),  # on the one that was killed
        ((9.0, 10.5, False), "", True),  # it may have been on its way there
        ((9.0, 10.5, False), "2 begin x", False),  # on the other
        ((9.0, 10.5, True), "2 begin x", True),  # a job, which the other took over
        ((7.0, 9.0, False), "1 begin x", False),  # before the kill
        ((12.0, 13.0, False), "", False),  # sent when the worker was gone
    ],
)
def test_only_what_was_in_flight_on_a_killed_worker_may_break(
    broken: tuple[float, float, bool], begun: str, is_ok: bool
) -> None:
    seen = workers_die._Seen(
        told={"a": "done", "j": "done"}, jobs={"j": "job"}, kinds={"j": "repeated"}, killed={1: (10.0, 11.0)}
    )
    seen.broken["x"] = broken
    diary = ["2 end a", "2 end j", *([begun] if begun else [])]
    assert workers_die.judge(seen, diary)["broken_beyond_those_in_flight"] == (not is_ok)


def test_the_judges_of_crowds_and_slowness_can_say_no() -> None:
    patient = Told(200, {"result": "patient"}, 0.1)
    probes = [(200, 0.01)] * 5
    assert overload_connections.judge([patient], probes, probes, patient, probes)["ok"]
    assert not overload_connections.judge([patient, BROKEN], probes, probes, patient, probes)["ok"]
    assert not overload_connections.judge([patient], [*probes, (503, 0.01)], probes, patient, probes)["ok"]
    assert not overload_connections.judge([patient], [(200, 0.2)] * 5, probes, patient, probes)["ok"]
    assert not overload_connections.judge([patient] * 20 + [Told(503, {}, 0.1)], probes, probes, patient, probes)["ok"]
    assert not overload_connections.judge([patient], probes, [(200, 0.2)] * 5, patient, probes)["ok"]
    assert not overload_connections.judge([patient], probes, [*probes, (503, 0.01)], patient, probes)["ok"]
    done, pages = Counter(["a", "j"]), [("/healthz 200", 0.01)]
    assert slow_everything.judge({"a": GOOD}, {"j": "done"}, pages, GOOD, done)["ok"]
    assert not slow_everything.judge({"a": GOOD}, {"j": "failed"}, pages, GOOD, done)["ok"]
    assert not slow_everything.judge({"a": GOOD}, {}, pages, GOOD, Counter())["ok"]
    assert not slow_everything.judge({"a": GOOD}, {}, pages, GOOD, Counter(["a", "a"]))["ok"]
    assert not slow_everything.judge({"a": BROKEN}, {}, pages, GOOD, done)["ok"]


def test_a_cluster_in_a_storm_loses_nothing_and_tells_everyone_the_same_twice() -> None:
    first = cluster.simulate(2)
    assert cluster.judge(first)["ok"], cluster.judge(first)
    assert cluster.simulate(2).told == first.told, "a seed tells its story again"


def test_the_judge_of_the_cluster_can_say_no() -> None:
    diary = cluster.Diary(
        begun=Counter(a=2, b=1), ended=Counter(b=1), kinds=dict.fromkeys("abcd", "unrepeated"), changed=["b: two"]
    )
    diary.told |= {"a": "done", "b": "done", "c": "failed turn_taken"}
    diary.jobs["working"] = 1
    found = cluster.judge(diary)
    wrong = {name: count for name, count in found.items() if isinstance(count, int) and count}
    del wrong["calls"]
    assert not found["ok"]
    assert wrong == {
        "told_done_but_not_done": 1,
        "done_twice": 1,
        "never_told": 1,
        "told_two_ends": 1,
        "failed_otherwise_than_interrupted": 1,
        "jobs_without_an_end": 1,
    }
