"""The counting of the examination; that itself needs the package miniwob and is run by hand."""

from __future__ import annotations

import pytest

from bench import __main__ as command_line
from bench import miniwob
from bench.harness import BENCHES, Options, Result, Row, bench


def test_strict_counts_the_full_reward_only() -> None:
    results = [{"task": "a", "seed": 1, "reward": reward, "seconds": 0.5} for reward in (1.0, 0.6, 0.0, -1.0)]
    row = miniwob.make_row("ours", results)
    assert row.extra == {"strict": 0.25, "lenient": 0.5, "episodes": 4}


def test_seeds_and_tasks_reach_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def run(options: Options) -> Result:
        seen.append(options)
        return Result([Row("one")], {})

    monkeypatch.setitem(BENCHES, "exam", None)
    bench("exam", "an examination")(run)
    assert command_line.main(["exam", "--seeds", "7", "8", "--tasks", "a", "--json"]) == 0
    assert (seen[0].seeds, seen[0].tasks) == ((7, 8), ("a",))
