"""The harness itself: what it counts, what it stops, what it prints. No test here judges a speed."""

from __future__ import annotations

import asyncio
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
from types import SimpleNamespace

import pytest

from bench import __main__ as command_line
from bench import a2a, crowd, gateway, mcp, ours, security
from bench.apps import catalogue
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
from bench.load import HOST, Load, apply_load, percentile, with_asyncio, with_count, with_wrk
from bench.mcp import call, in_session, judged, paged

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
    load = with_asyncio(echo_port, replace(ECHO, expect="", tails=(b"{",)), seconds=0.1, connections=2)
    assert load.good == 0
    assert load.bad > 0


def test_tails_are_taken_in_turn(loader: Loader, echo_port: int) -> None:
    other = call("echo", {"message": "something else"}, modern=False)
    load = loader(echo_port, replace(ECHO, tails=ECHO.tails + other.tails), seconds=0.2, connections=2)
    assert load.good > 0
    assert abs(load.good - load.bad) <= 3  # what was under way when the time was over


def test_numbers_that_are_for_once_are_new_in_every_round(loader: Loader, echo_port: int) -> None:
    request = replace(ECHO, once=True)
    assert request.first() < request.first()
    assert loader(echo_port, request, seconds=0.1, connections=2).bad == 0


def test_as_many_are_sent_as_were_asked_for(echo_port: int) -> None:
    for once in (False, True):
        load = with_count(echo_port, replace(ECHO, once=once), 25, connections=4)
        assert (load.good, load.bad) == (25, 0)


def test_a_message_of_a2a_has_an_id_of_its_own() -> None:
    request = a2a.message("SendMessage", {"message": {"messageId": "m@", "parts": [{"text": "hello"}]}})
    ids = [json.loads(request.body_of(number))["params"]["message"]["messageId"] for number in (1, 2)]
    assert ids == ["m1", "m2"]


def test_an_a2a_row_stands_beside_its_limits() -> None:
    ratios: dict[str, float | None] = dict.fromkeys([*a2a.LIMITS, *(f"{name}_cpu" for name in a2a.LIMITS)], 13.0)
    ratios["ours_vs_bare"] = 0.2
    row = a2a.judged(Row("ours", 1.0), ratios)
    assert (row.extra["met"], row.extra["met_cpu"], row.extra["missed"]) == (False, True, "ours_vs_bare")
    assert a2a.judged(Row("RT-014-P05", 2_001.0, p99_ms=4.9), ratios).extra["met_tenfold"]
    assert not a2a.judged(Row("RT-014-P05", 2_001.0, p99_ms=5.1), ratios).extra["met_tenfold"]


def test_fresh_headers_are_made_for_each_request(monkeypatch: pytest.MonkeyPatch, echo_port: int) -> None:
    seen: list[tuple[int, bytes]] = []

    def fresh(port: int, body: bytes) -> dict[str, str]:
        seen.append((port, body))
        return {"X-Number": str(len(seen))}

    request = replace(ECHO, fresh=fresh)
    monkeypatch.setattr("bench.load.shutil.which", lambda _: "wrk")
    load = apply_load(echo_port, request, seconds=0.1, connections=2)
    assert load.bad == 0
    assert len(set(seen)) == len(seen) >= load.good > 0
    with pytest.raises(ValueError, match="wrk cannot make new headers"):
        with_wrk(echo_port, request, seconds=0.1, connections=1)


def test_every_signed_request_is_another_one() -> None:
    request = ours.signed(ECHO)
    first, second = request.headers_with(1, b"{}"), request.headers_with(1, b"{}")
    assert first["Content-Digest"] == second["Content-Digest"]
    assert first["Signature"] != second["Signature"]


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


def test_a_silent_server_is_given_up_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "pid"

    def clock() -> float:
        """An hour passes when it has begun."""
        return time.perf_counter() + (3_600.0 if told.exists() and told.read_text() else 0.0)

    monkeypatch.setattr("bench.harness.time", SimpleNamespace(perf_counter=clock, sleep=time.sleep))
    script = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(60)"
    with (
        pytest.raises(RuntimeError, match="no good answer on /healthz"),
        serving(lambda *_: [sys.executable, "-c", script], HEALTHY),
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
        time.sleep(600)
harness.bench("forever", "never ends")(run)
command_line.main(["forever"])
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        try:
            until = time.monotonic() + 120
            while not (told.exists() and told.read_text()):
                assert time.monotonic() < until, "the server of the bench never came up"
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143
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
            assert (cpu_seconds(one.pid) or 0) >= 0.2  # the kernel counts in ticks, and rounds down
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


def test_a_long_list_is_asked_for_page_by_page() -> None:
    target = _target("sdk_list_10000")
    with serving(target.command, HEALTHY, environment=target.environment) as server:
        request = paged(server.port, target.request)
        load = with_asyncio(server.port, request, seconds=0.2, connections=2)
    assert len(set(request.tails)) == catalogue.COUNT // catalogue.PAGE
    assert load.good > 0
    assert load.bad == 0


def test_a_list_that_is_not_whole_is_not_loaded() -> None:
    with (
        serving(lambda port, _: uvicorn("sdk", port), HEALTHY) as server,
        pytest.raises(RuntimeError, match="listed 1 tools, not 10000"),
    ):
        paged(server.port, _target("sdk_list_10000").request)


def test_the_gateway_is_loaded_with_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.load.shutil.which", lambda _: None)
    (row,) = side_by_side([_target("ours_legacy")], Options(0.1, 1, 2))
    assert row.errors == 0, row.extra
    assert (row.rate or 0) > 0


def test_who_does_not_sign_is_not_answered_where_every_request_is_signed() -> None:
    target = _target("ours_signed_modern")
    with serving(target.command, HEALTHY, environment=target.environment) as server:
        assert answers(server.port, target.request)
        assert not answers(server.port, ours.with_key(mcp.SAY))


def test_calls_pass_through_the_gateways_to_the_server_behind_them() -> None:
    with contextlib.ExitStack() as stack:
        with serving(lambda port, _: uvicorn("sdk", port), HEALTHY) as upstream:
            _, forward, agent, tool = gateway.targets(f"http://{HOST}:{upstream.port}")
            bare_one, our_one = (
                stack.enter_context(serving(one.command, HEALTHY, environment=one.environment)).port
                for one in (forward, agent)
            )
            asked = [(bare_one, forward.request), (our_one, agent.request), (our_one, tool.request)]
            assert [answers(*one) for one in asked] == [True, True, True]
        assert [answers(*one) for one in asked] == [False, False, False]


def test_a_gateway_whose_server_cannot_be_added_says_why() -> None:
    (_, _, target, _) = gateway.targets(f"http://{HOST}:{free_port()}")
    (row,) = side_by_side([target], Options(0.1, 1, 1))
    assert row.rate is None
    assert "agent3 add ended with status" in row.extra["note"]


def test_each_ratio_is_held_against_its_limit() -> None:
    ratios: dict[str, float | None] = {f"{name}{twin}": None for name in mcp.PAIRS for twin in ("", "_cpu")}
    ratios |= {"ours_vs_sdk_modern": 4.0, "ours_vs_bare": 0.34, "ours_vs_sdk_modern_cpu": 4.1, "ours_vs_bare_cpu": 0.36}
    modern = judged(Row("ours_modern", 1.0), ratios).extra
    assert (modern["met"], modern["met_cpu"], modern["missed"]) == (False, True, "ours_vs_bare")
    assert not judged(Row("ours_legacy", 1.0), ratios).extra["met"]
    assert judged(Row("sdk_modern", 1.0), ratios).extra == {}
    slow = judged(Row("ours_register_10000", extra={"total_seconds": 1.0}), ratios).extra
    assert slow["met"] is False


def test_a_standard_is_met_by_latency_and_rate_alike() -> None:
    def met(rate: float | None, p99: float | None) -> tuple[bool, bool]:
        extra = judged(Row("RT-014-P02", rate, p99_ms=p99), {}).extra
        return extra["met"], extra["met_tenfold"]

    assert met(500.0, 49.9) == (True, True)
    assert met(499.0, 1.0) == (True, False)
    assert met(1e6, 50.0) == (True, False)
    assert met(49.0, 1.0) == (False, False)
    assert met(None, None) == (False, False)


def _target(name: str) -> Target:
    """A target of the bench; a gateway loads no encoder, and its demo opens no browser."""
    found = next(one for one in mcp.TARGETS if one.name == name)
    plain = {"AGENT3_SEARCH_SEMANTIC": "false", "AGENT3_BROWSER": "/nowhere/chromium"}
    return replace(found, environment={**found.environment, **plain})


def test_a_crowd_of_callers_gets_its_own_answers_and_every_call_has_a_row() -> None:
    """``python -m bench load`` in short: by count, and without a look at the clock."""
    callers, each = 10, 20
    with crowd.house() as it:
        told = crowd.Crowd()
        asyncio.run(told.drive(it.gateway.port, callers, each=each))
        assert (told.wrong, told.broken) == ([], 0)
        assert told.calls == callers * each
        assert set(told.kinds) == set(crowd.MIX)
        assert told.turns == told.calls + told.kinds["question"]
        assert it.rows(told.turns) == told.turns


def test_a_crowd_notices_an_answer_that_is_not_its_own() -> None:
    async def story() -> None:
        async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(65_536):
                body = b'{"success": true, "result": "caller 7 call 7"}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            writer.close()

        server = await asyncio.start_server(wrong, HOST, 0)
        told = crowd.Crowd()
        async with server:
            await told.drive(server.sockets[0].getsockname()[1], 2, each=len(crowd.MIX))
        assert len(told.wrong) == 2 * len(crowd.MIX)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_guards_a_call_is_measured_with_and_without_its_parts() -> None:
    report = security.run(Options(seconds=0.1, rounds=1))
    rows = {row.target: row.extra for row in report.rows}
    assert set(rows) > {"together", "authenticate", "authorize", "limit", "validate", "audit"}
    assert all(row["calls"] > 0 and row["us_per_call"] > 0 for row in rows.values())
    assert rows["together"]["limit"] == "60 µs"
    assert set(report.ratios) == {"limit_vs_together"}
