"""The harness itself: what it counts, what it stops, what it prints. No test here judges a speed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench.harness import (
    BENCHES,
    HEALTHY,
    ROOT,
    Options,
    Result,
    Row,
    Target,
    answers,
    bench,
    cpu_seconds,
    free_port,
    measure,
    ratio,
    resident_mb,
    say,
    serving,
    side_by_side,
    uvicorn,
)
from bench.load import Load, percentile, with_asyncio, with_wrk
from bench.mcp import call, in_session

ECHO = call("echo", {"message": "hello"}, modern=False)
Loader = Callable[..., Load]


def bare(port: int, _: Path) -> list[str]:
    return uvicorn("bare", port)


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    with serving(bare, HEALTHY) as server:
        yield server.port


@pytest.fixture(params=["asyncio", "wrk"])
def loader(request: pytest.FixtureRequest) -> Loader:
    if request.param == "wrk" and shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    return with_wrk if request.param == "wrk" else with_asyncio


def test_only_the_expected_answer_counts_as_good(loader: Loader, echo_port: int) -> None:
    right = loader(echo_port, ECHO, seconds=0.2, connections=2)
    other = loader(echo_port, replace(ECHO, expect="something else"), seconds=0.2, connections=2)
    assert right.good > 0
    assert right.bad == 0
    assert 0 < right.p50_ms <= right.p99_ms
    assert right.rate == pytest.approx(right.good / right.seconds)
    assert other.good == 0
    assert other.bad > 0


def test_a_failing_server_is_never_a_fast_one(echo_port: int) -> None:
    load = with_asyncio(echo_port, replace(ECHO, expect="", tail=b"{"), seconds=0.1, connections=2)
    assert load.good == 0
    assert load.bad > 0


def test_a_server_that_is_gone_is_all_errors() -> None:
    load = with_asyncio(free_port(), ECHO, seconds=0.1, connections=2)
    assert load.good == 0
    assert load.bad > 0


def test_a_server_is_stopped_when_the_block_raises() -> None:
    pid = 0
    with contextlib.suppress(KeyboardInterrupt), serving(bare, HEALTHY) as server:
        pid = server.process.pid
        raise KeyboardInterrupt
    assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_never_starts_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match="status 3: no such thing"),
        serving(lambda *_: [sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], HEALTHY),
    ):
        pass


def test_a_silent_server_is_given_up_and_stopped(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(60)"
    with (
        pytest.raises(RuntimeError, match="no good answer on /healthz"),
        serving(lambda *_: [sys.executable, "-c", script], HEALTHY, ready_seconds=0.5),
    ):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_terminated_bench_takes_its_servers_with_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    program = f"""
import pathlib, signal, sys, time
from bench import __main__ as command_line, harness
from bench.load import Request
from bench.harness import serving, uvicorn
def run(options):
    with serving(lambda port, _: uvicorn("bare", port), Request("/healthz", "ok", method="GET")) as server:
        pathlib.Path({str(told)!r}).write_text(str(server.process.pid))
        time.sleep(60)
harness.bench("forever", "never ends")(run)
command_line.main(["forever"])
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        try:
            until = time.monotonic() + 20
            while not (told.exists() and told.read_text()):
                assert time.monotonic() < until, "the server of the bench never came up"
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU and memory are read from /proc")
def test_cpu_of_a_server_counts_its_children() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    program = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {spin!r}]); print('spun', flush=True)"
    )
    server = "; time.sleep(30)"
    with subprocess.Popen(
        [sys.executable, "-c", program + server], stdout=subprocess.PIPE, start_new_session=True
    ) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == b"spun\n"
            assert (cpu_seconds(one.pid) or 0) >= 0.3
            assert 1 < (resident_mb(one.pid) or 0) < 1000
        finally:
            one.kill()


def test_targets_are_loaded_in_turn_and_a_dead_one_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.load.shutil.which", lambda _: None)  # wrk knows whole seconds only
    dead = Target("dead", lambda *_: [sys.executable, "-c", "raise SystemExit('not today')"], ECHO)
    rows = side_by_side([Target("a", bare, ECHO), dead, Target("b", bare, ECHO)], Options(0.1, 2, 2))
    order = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("round")]
    assert order == ["round 1/2 a", "round 1/2 b", "round 2/2 a", "round 2/2 b"]
    by_name = {row.target: row for row in rows}
    for name in ("a", "b"):
        assert by_name[name].errors == 0
        assert (by_name[name].rate or 0) > 0
        assert by_name[name].extra["best_rate"] >= (by_name[name].rate or 0)
    assert by_name["dead"].rate is None
    assert by_name["dead"].errors == 1
    assert "not today" in by_name["dead"].extra["note"]


def test_json_is_one_object_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: Options) -> Result:
        say("on the way")
        rows = [Row("one", 1.23456, 2.0, 3.0, 4.0, extra={"limit": options.seconds}), Row("two", errors=1)]
        return Result(rows, {"one_vs_two": ratio(1.0, None)})

    monkeypatch.setattr("bench.harness.BENCHES", dict(BENCHES))
    bench("sample", "for this test")(run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert command_line.main(["sample", "--json", "--seconds", "7"]) == 1
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.err == "on the way\n"
    assert list(report) == ["name", "machine", "rows", "ratios"]
    assert report["rows"][0] == {
        "target": "one",
        "rate": 1.235,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "cpu_ms_per_call": 4.0,
        "errors": 0,
        "limit": 7.0,
    }
    assert report["ratios"] == {"one_vs_two": None}
    assert set(report["machine"]) == {"cores", "cpu", "python", "load_average"}


def test_the_list_names_every_bench_and_bounds_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--list"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(BENCHES)
    for wrong in (["--rounds", "1000"], ["--seconds", "0"], ["--connections", "x"], ["no-such-bench"]):
        with pytest.raises(SystemExit) as ended:
            command_line.main(["mcp", *wrong] if wrong[0].startswith("-") else wrong)
        assert ended.value.code == 2


def test_every_item_is_measured_once() -> None:
    seen: list[int] = []
    row = measure("append", seen.append, range(25), chunk=10, note="three chunks")
    assert seen == list(range(25))
    assert row.extra == {"calls": 25, "note": "three chunks"}
    assert (row.rate or 0) > 0


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0


def test_a_server_with_sessions_is_loaded_within_one_by_all_connections_at_once() -> None:
    command, environment = (lambda port, _: uvicorn("sdk", port)), {"BENCH_SESSIONS": "1"}
    with serving(command, HEALTHY, environment=environment) as server:
        assert answers(server.port, call("echo", {"message": "hello"}, modern=True))
        assert not answers(server.port, ECHO)
        load = with_asyncio(server.port, in_session(server.port, ECHO), seconds=0.3, connections=4)
    assert load.good > 0
    assert load.bad == 0  # requests with one id would take each other's answers, and the others wait in vain


def test_a_server_that_gives_a_wrong_answer_is_not_loaded() -> None:
    other = replace(ECHO, expect="good-bye")
    (row,) = side_by_side([Target("wrong", bare, other)], Options(0.1, 1, 1))
    assert row.rate is None
    assert "answered 200 without 'good-bye'" in row.extra["note"]
