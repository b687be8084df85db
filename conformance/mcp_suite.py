"""The MCP project's own conformance kit against the fixture server: every leg, its counts, and a table."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from conformance.kits import CONFORMANCE, CONFORMANCE_OLD, Npm

__all__ = ["LEGS", "Leg", "Report", "fixture_server", "run"]

PATIENCE = 900
"""Seconds for one leg."""
STARTING = 30
"""Seconds until the fixture server answers."""


@dataclass(frozen=True)
class Leg:
    """One run of a kit. ``arguments`` follow its command ``server``, to which the address is added."""

    name: str
    kit: Npm
    arguments: tuple[str, ...] = ()


LEGS = (
    Leg("server-2025-11-25", CONFORMANCE, ("--suite", "all", "--spec-version", "2025-11-25")),
    Leg("server-2026-07-28", CONFORMANCE, ("--suite", "all", "--spec-version", "2026-07-28")),
    Leg("server-all", CONFORMANCE, ("--suite", "all")),
    Leg("server-0.1.16", CONFORMANCE_OLD, ("--suite", "all")),
)


@dataclass
class Report:
    """What came of one leg: checks by their status, and the words of those that failed."""

    leg: Leg
    exit_code: int
    scenarios: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and something was checked at all."""
        return not (self.exit_code or self.checks["FAILURE"]) and self.checks["SUCCESS"] > 0


def run(legs: Sequence[Leg], url: str | None = None) -> int:
    """Run some legs against a server, or the fixture; 0 when all passed."""
    for kit in {leg.kit for leg in legs}:
        kit.command()
    if url is not None:
        reports = [_run(leg, url) for leg in legs]
    else:
        with fixture_server() as here:
            reports = [_run(leg, here) for leg in legs]
    _draw(reports)
    return 0 if all(report.passed for report in reports) else 1


def _run(leg: Leg, url: str) -> Report:
    with tempfile.TemporaryDirectory(prefix="agent3-conformance-") as folder:
        command = [*leg.kit.command(), "server", "--url", url, *leg.arguments, "-o", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        report = _read(leg, done.returncode, Path(folder))
    if not report.checks:
        report.faults.append((done.stderr or done.stdout)[-2000:])
    return report


def _read(leg: Leg, exit_code: int, folder: Path) -> Report:
    report = Report(leg, exit_code)
    for path in sorted(folder.glob("*/checks.json")):
        report.scenarios += 1
        for check in json.loads(path.read_text("utf-8")):
            report.checks[check["status"]] += 1
            if check["status"] in ("FAILURE", "WARNING"):
                told = check.get("errorMessage", check.get("description", ""))
                report.faults.append(f"{check['status']} {path.parent.name}: {check['id']}: {told}")
    return report


def _draw(reports: Sequence[Report]) -> None:
    table = Table("leg", "kit", "scenarios", "passed", "failed", "warnings", "skipped")
    for report in reports:
        counts = [report.checks[status] for status in ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")]
        table.add_row(report.leg.name, report.leg.kit.version, str(report.scenarios), *map(str, counts))
        for fault in report.faults:
            print(fault, file=sys.stderr)
    Console(width=max(100, Console().width)).print(table)


@contextmanager
def fixture_server() -> Iterator[str]:
    """The fixture server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "conformance.mcp_fixture", "--port", str(port)])
    try:
        url = f"http://localhost:{port}/mcp"
        _await(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(15)


def _await(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + STARTING
    while process.poll() is None and time.monotonic() < until:
        try:
            # A GET would open a stream that never ends.
            urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=2)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"The fixture server did not answer at {url} within {STARTING} s.")
