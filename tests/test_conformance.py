"""The command that runs the conformance suites: what it counts as passed. The suites themselves are run on demand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from conformance import mcp_client
from conformance.__main__ import main
from conformance.kits import Npm
from conformance.mcp_suite import KNOWN, LEGS, Leg, _led, _read, judge

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "conformance.md"
LEG = Leg("any", Npm("@scope/kit", "1.0.0", "index.js"))


def results(folder: Path, **scenarios: list[str]) -> Path:
    for name, statuses in scenarios.items():
        checks = [{"id": f"{name}-{number}", "status": status} for number, status in enumerate(statuses)]
        (folder / name).mkdir()
        (folder / name / "checks.json").write_text(json.dumps(checks), "utf-8")
    return folder


def test_checks_are_counted_by_their_status(tmp_path: Path) -> None:
    report = _read(LEG, 0, results(tmp_path, one=["SUCCESS", "SUCCESS", "INFO"], two=["SUCCESS", "SKIPPED", "WARNING"]))
    assert (report.scenarios, report.checks["SUCCESS"], report.checks["SKIPPED"]) == (2, 3, 1)
    assert report.passed
    assert [fault.split()[0] for fault in report.faults] == ["WARNING"]


@pytest.mark.parametrize(
    ("code", "statuses"), [(0, ["SUCCESS", "FAILURE"]), (1, ["SUCCESS"]), (0, ["SKIPPED"]), (0, [])]
)
def test_a_failure_an_exit_code_or_nothing_checked_is_not_passed(
    tmp_path: Path, code: int, statuses: list[str]
) -> None:
    assert not _read(LEG, code, results(tmp_path, one=statuses)).passed


def test_a_known_case_may_fail_and_another_may_not(tmp_path: Path) -> None:
    folder = results(tmp_path, **{"server-one-2026-11-16T00-22-42-764Z": ["SUCCESS", "FAILURE"]})
    failed = "server-one-2026-11-16T00-22-42-764Z-1"
    for case in ("one", f"one:{failed}"):
        report = _read(LEG, 1, folder, {case: "it cannot"})
        assert report.passed
        assert (report.checks["KNOWN"], report.excused, report.faults) == (1, {case}, [])
    for other in ("two", "one:another"):
        assert not _read(LEG, 1, folder, {other: "it cannot"}).passed


def test_a_known_case_that_did_not_fail_is_told_where_it_was_judged(tmp_path: Path) -> None:
    report = _read(LEG, 0, results(tmp_path, one=["SUCCESS"]), {"one": "it could not", "two": "not in this leg"})
    assert report.passed
    assert report.stale == ["one"]


def test_a_known_case_is_no_excuse_for_a_kit_that_broke_off(tmp_path: Path) -> None:
    assert not _read(LEG, 1, results(tmp_path, one=["SUCCESS"]), {"one": "it could not"}).passed


def test_scenarios_in_folders_of_their_own_are_counted(tmp_path: Path) -> None:
    (tmp_path / "auth").mkdir()
    results(tmp_path / "auth", **{"iss-supported-2026-11-16T00-22-42-764Z": ["FAILURE"]})
    report = _read(LEG, 1, tmp_path, {"auth/iss-supported": "it cannot"})
    assert report.excused == {"auth/iss-supported"}


def test_a_kit_is_used_as_it_is_when_it_is_there_and_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    package = LEG.kit.folder / "node_modules" / "@scope" / "kit"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "1.0.0"}', "utf-8")
    node = LEG.kit.folder / "node_modules" / ".bin" / "node"
    node.parent.mkdir()
    node.touch()
    assert LEG.kit.command() == [str(node), str(package / "index.js")]
    (package / "package.json").write_text('{"version": "0.9.0"}', "utf-8")
    with pytest.raises(Exception, match="npm, which is not on PATH"):
        LEG.kit.command()


def test_every_leg_has_a_name_of_its_own_and_stands_in_the_table() -> None:
    names = [leg.name for leg in LEGS]
    assert len(set(names)) == len(names)
    for name in names:
        assert f"| `{name}` |" in PAGE.read_text("utf-8")


def test_every_known_case_stands_in_the_docs_with_its_reason() -> None:
    page = PAGE.read_text("utf-8")
    for case, reason in (pair for cases in KNOWN.values() for pair in cases.items()):
        assert f"| `{case}` | {reason} |" in page


def test_our_client_is_led_through_scenarios_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_CONFORMANCE_SCENARIO", "nonsense")
    assert mcp_client.main() == 2


def test_the_limit_of_a_leg_is_also_that_of_each_client_that_the_kit_starts() -> None:
    class Listing(Npm):
        def command(self) -> list[str]:
            return ["echo", "  - old [2025-11-25, 2026-07-28]\n  - new [2026-07-28]\n"]

    (led,) = _led(Leg("any", Listing("kit", "1", "index.js"), ("--spec-version", "2025-11-25")), 3600)
    assert led[-4:] == ("--timeout", "3600000", "--scenario", "old")


def test_a_kit_that_ends_badly_without_a_failure_is_told_with_its_words() -> None:
    class Broken(Npm):
        def command(self) -> list[str]:
            checks = '[{"id": "a", "status": "SUCCESS"}]'
            script = f"mkdir $4/one; echo '{checks}' >$4/one/checks.json; echo no such scenario >&2; exit 1"
            return ["sh", "-c", script]

    report = judge(Leg("any", Broken("kit", "1", "index.js")), "http://nowhere.example")
    assert (report.passed, report.checks["SUCCESS"]) == (False, 1)
    (fault,) = report.faults
    assert "no such scenario" in fault


def test_a_leg_that_does_not_exist_is_a_wrong_command_line() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", "--leg", "nonsense"])
    assert ended.value.code == 2


def test_a_leg_that_takes_longer_than_its_limit_fails_and_says_so() -> None:
    class Slow:
        version = "1"

        def command(self) -> tuple[str, ...]:
            return (sys.executable, "-c", "import time; time.sleep(60)")

    report = judge(Leg("slow", cast("Any", Slow())), "http://127.0.0.1:1/mcp", limit=0)
    assert not report.passed
    assert "was not over after 0 s" in report.faults[0]
