"""The MCP project's own conformance kit, in legs: against the fixture server, through a gateway, against our client."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from conformance.kits import CONFORMANCE, CONFORMANCE_OLD, Npm

__all__ = ["KNOWN", "LEGS", "Known", "Leg", "Place", "Report", "await_server", "fixture_server", "judge",
           "library_server", "run"]  # fmt: skip

PATIENCE = 900.0
"""Seconds for one leg, where the command line says nothing else."""
_LATE = 124
"""The exit code of what took too long."""
STARTING = 90
"""Seconds until the fixture server answers."""
CLIENT = shlex.join([sys.executable, "-m", "conformance.mcp_client"])

Place = Callable[[], AbstractContextManager[str]]
"""Where a server to be judged stands, for as long as it is."""
Known = Mapping[str, str]
"""Cases that fail, each with the reason: a scenario, or ``scenario:check``."""


@dataclass(frozen=True)
class Leg:
    """One run of a kit. ``arguments`` follow its command and what it is to judge."""

    name: str
    kit: Npm
    arguments: tuple[str, ...] = ()
    judges: Literal["fixture", "library", "gateway", "client"] = "fixture"


ALL = ("--suite", "all")
OLD = ("--spec-version", "2025-11-25")
NEW = ("--spec-version", "2026-07-28")

LEGS = (
    Leg("server-2025-11-25", CONFORMANCE, (*ALL, *OLD)),
    Leg("server-2026-07-28", CONFORMANCE, (*ALL, *NEW)),
    Leg("server-all", CONFORMANCE, ALL),
    Leg("server-0.1.16", CONFORMANCE_OLD, ALL),
    Leg("library-2025-11-25", CONFORMANCE, (*ALL, *OLD), "library"),
    Leg("library-2026-07-28", CONFORMANCE, (*ALL, *NEW), "library"),
    Leg("library-all", CONFORMANCE, ALL, "library"),
    Leg("library-0.1.16", CONFORMANCE_OLD, ALL, "library"),
    Leg("client-2025-11-25", CONFORMANCE, OLD, "client"),
    Leg("client-2026-07-28", CONFORMANCE, NEW, "client"),
    Leg("client-all", CONFORMANCE, (), "client"),
    Leg("gateway-2025-11-25", CONFORMANCE, (*ALL, *OLD), "gateway"),
    Leg("gateway-2026-07-28", CONFORMANCE, (*ALL, *NEW), "gateway"),
    Leg("gateway-all", CONFORMANCE, ALL, "gateway"),
    Leg("gateway-0.1.16", CONFORMANCE_OLD, ALL, "gateway"),
)


KNOWN: dict[str, dict[str, str]] = {
    "client": {},
    "gateway": {},
}
"""The known cases of what is judged; each stands in docs/reference/conformance.md too."""


@dataclass
class Report:
    """What came of one leg: checks by their status, and the words of those that failed.

    A failure of a ``known`` case does not count; a known case that did not fail is ``stale``.
    """

    leg: Leg
    exit_code: int
    known: Known = field(default_factory=dict)
    scenarios: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed but what is known, and something was checked at all."""
        ended_well = not self.exit_code or bool(self.excused)
        return ended_well and not self.checks["FAILURE"] and self.checks["SUCCESS"] > 0

    def count(self, scenario: str, check: Mapping[str, str]) -> None:
        """Take in one check."""
        status, case = check["status"], f"{scenario}:{check['id']}"
        excuse = next((one for one in (scenario, case) if one in self.known), None) if status == "FAILURE" else None
        if excuse is not None:
            self.excused.add(excuse)
            status = "KNOWN"
        self.checks[status] += 1
        if status in ("FAILURE", "WARNING"):
            told = check.get("errorMessage") or check.get("description") or ""
            self.faults.append(f"{status} {self.leg.name} {case}: {told}")


def run(legs: Sequence[Leg], url: str | None, places: Mapping[str, Place], limit: float = PATIENCE) -> int:
    """Run some legs, each for ``limit`` seconds at most; 0 when all passed.

    Those for a server take the one at ``url``, else that at their place.
    """
    for kit in {leg.kit for leg in legs}:
        kit.command()
    reports = []
    for judged in dict.fromkeys(leg.judges for leg in legs):
        some, known = [leg for leg in legs if leg.judges == judged], KNOWN.get(judged, {})
        if judged == "client":
            reports += [_run(leg, _led(leg, limit), known, limit) for leg in some]
        else:
            with _given(url) if url is not None else places[judged]() as here:
                reports += [judge(leg, here, known, limit) for leg in some]
    _draw(reports)
    return 0 if all(report.passed for report in reports) else 1


@contextmanager
def _given(url: str) -> Iterator[str]:
    yield url


def _led(leg: Leg, limit: float) -> list[tuple[str, ...]]:
    """What starts our client, scenario by scenario: the kit's own suite starts all at once, and some look at the clock.

    The kit lists each as ``- name [versions]``. By itself it would end a client after 30 s, however busy the machine.
    """
    listed = subprocess.run([*leg.kit.command(), "list", "--client"], capture_output=True, text=True, check=True).stdout
    version = leg.arguments[-1] if leg.arguments else ""
    names = [
        name for name, versions in re.findall(r"^ +- (\S+) \[(.*)\]$", listed, re.MULTILINE) if version in versions
    ]
    patience = ("--timeout", f"{limit * 1000:.0f}")
    return [("client", "--command", CLIENT, *patience, "--scenario", name) for name in names]


def judge(leg: Leg, url: str, known: Known | None = None, limit: float = PATIENCE) -> Report:
    """Have the kit judge the server at an address."""
    return _run(leg, [("server", "--url", url)], known or {}, limit)


def _run(leg: Leg, starts: Sequence[tuple[str, ...]], known: Known, limit: float) -> Report:
    until = time.monotonic() + limit
    with tempfile.TemporaryDirectory(prefix="agent3-conformance-") as folder:
        ended = []
        for start in starts:
            command = [*leg.kit.command(), *start, *leg.arguments, "-o", folder]
            left = max(0.0, until - time.monotonic())
            try:
                ended.append(subprocess.run(command, capture_output=True, text=True, timeout=left, check=False))
            except subprocess.TimeoutExpired:  # what was judged until then, and in other legs, is told all the same
                late = f"The leg was not over after {limit:g} s. On a busy machine, give it more: --limit SECONDS."
                ended.append(subprocess.CompletedProcess(command, _LATE, "", late))
                break
        report = _read(leg, max((one.returncode for one in ended), default=0), Path(folder), known)
    if not report.passed and not report.checks["FAILURE"]:  # the kit itself ended badly, which no check tells
        bad = [one for one in ended if one.returncode or not report.checks]
        report.faults += [f"{shlex.join(one.args)}\n{(one.stderr or one.stdout)[-2000:]}" for one in bad]
    return report


def _read(leg: Leg, exit_code: int, folder: Path, known: Known | None = None) -> Report:
    report = Report(leg, exit_code, known or {})
    seen = set()
    for path in sorted(folder.rglob("checks.json")):
        scenario = _scenario(path.parent.relative_to(folder).as_posix())
        seen.add(scenario)
        report.scenarios += 1
        for check in json.loads(path.read_text("utf-8")):
            report.count(scenario, check)
    report.stale = [case for case in report.known if case.split(":")[0] in seen and case not in report.excused]
    return report


def _scenario(folder: str) -> str:
    """The scenario in the name of a folder, to which the kit adds the role of what it judged, and the time."""
    return re.sub(r"-\d{4}-\d\d-\d\dT[\dZ-]+$", "", folder).removeprefix("server-")


def _draw(reports: Sequence[Report]) -> None:
    table = Table("leg", "kit", "scenarios", "passed", "failed", "known", "warnings", "skipped")
    for report in reports:
        counts = [report.checks[status] for status in ("SUCCESS", "FAILURE", "KNOWN", "WARNING", "SKIPPED")]
        table.add_row(report.leg.name, report.leg.kit.version, str(report.scenarios), *map(str, counts))
        for fault in report.faults:
            print(fault, file=sys.stderr)
        for case in sorted(report.excused):
            print(f"KNOWN {report.leg.name} {case}: {report.known[case]}", file=sys.stderr)
        for case in report.stale:
            print(f"STALE {report.leg.name} {case}: known as failing, and did not fail", file=sys.stderr)
    Console(width=max(100, Console().width)).print(table)


@contextmanager
def fixture_server(module: str = "conformance.mcp_fixture") -> Iterator[str]:
    """The fixture server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", module, "--port", str(port)])
    try:
        url = f"http://localhost:{port}/mcp"
        await_server(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(15)


def library_server() -> AbstractContextManager[str]:
    """The same on the documented class."""
    return fixture_server("conformance.mcp_library")


def await_server(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a server that was started answers."""
    until = time.monotonic() + STARTING
    while process.poll() is None and time.monotonic() < until:
        try:
            # A GET would open a stream that never ends.
            urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=2)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"The server did not answer at {url} within {STARTING} s.")
