"""The official A2A kit (a2aproject/a2a-tck), run against our agent in every profile and over every binding.

The kit is given as a checkout: branch ``1.0-dev`` judges 1.0, branch ``0.3.x`` judges 0.3. What it needs is installed
once, beside it nothing: the kits folder holds a Python of its own for each. A leg starts the agent under test as a
process, has the kit judge it, and counts. A failure counts unless it is known, by name and with its reason.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.a2a_agent import Profile, Shipped, Table
from conformance.kits import KitError, python_for

__all__ = ["LEGS", "Leg", "run"]

PATIENCE = 900.0
"""Seconds for one run of a kit, where the command line says nothing else."""
START = 90.0
"""Seconds that the agent has to come up."""


@dataclass(frozen=True)
class Leg:
    """One run of a kit: which, against what, and with which of its own options."""

    kit: str
    profile: Profile
    binding: str
    options: tuple[str, ...]
    only: str = ""
    """Tests that the leg is about, where it is not about all."""
    table: Table = "1.0.0"
    """The statuses of the agent."""
    shipped: Shipped | None = None
    """As what the agent is served with every default that is shipped, instead of as the kit would have it."""

    @property
    def name(self) -> str:
        return f"{self.kit}-{self.shipped or self.profile}-{self.binding}"


ALL = ("--transport", "jsonrpc,http_json,grpc")
CATEGORIES: dict[Profile, tuple[str, ...]] = {
    "full": ("mandatory", "capabilities", "features", "quality"),
    "minimal": ("mandatory", "capabilities"),
}
"""The parts of the kit of 0.3; how all bindings agree is a leg of its own."""

THIRD: tuple[Profile, ...] = ("full", "minimal")

LEGS: tuple[Leg, ...] = (
    Leg("1.0", "full", "all", ALL),
    Leg("1.0", "minimal", "all", ALL),
    Leg("1.0", "full", "1.0.1", ALL, table="1.0.1"),
    Leg("1.0", "minimal", "1.0.1", ALL, table="1.0.1"),
    Leg("1.0", "full", "default", ALL, shipped="library"),
    Leg("1.0", "full", "default", ALL, shipped="gateway"),
    Leg("1.0", "extension", "all", ALL, only="TestCapabilityExtensionRequired"),
    *(Leg("0.3", profile, one, ("--transports", one)) for profile in THIRD for one in ("jsonrpc", "rest", "grpc")),
    Leg("0.3", "full", "equivalence", ("--transports", "jsonrpc,rest,grpc")),
)


@dataclass(frozen=True)
class Known:
    """A failure that is no fault of the agent: in which legs, and why."""

    leg: str
    """How the names of the legs begin."""
    test: str
    reason: str

    def __call__(self, leg: Leg, test: str) -> bool:
        return leg.name.startswith(self.leg) and self.test in test


_SHIPPED = ("1.0-library-default", "1.0-gateway-default")
_CLOSED = "the kit listens on this machine; webhooks to loopback are closed until [callbacks] opens them"
_UNRESOLVED = "the kit names example.com, which has to resolve before a webhook is taken; without a network it does not"
_ONE_CARD = "a client that names no version gets one card for all generations, and the kit knows the fields of 1.0 only"
_LATER = "1.0.1 changed this status, and the kit knows 1.0.0"
KNOWN: tuple[Known, ...] = (
    Known(
        "1.0-minimal",
        "TestRestStreaming::test_streaming_content_type",
        "the kit reads the body of a refusal that it asked for as a stream without reading it first, and stops with "
        "httpx.ResponseNotRead; it was about to skip the test, because streaming is not declared",
    ),
    Known(
        "0.3-full",
        "test_task_state_quality::test_task_state_transitions",
        "the test sends without `blocking` and wants the task to be still at work; 0.3 leaves that to the agent, and "
        "ours answers when it has something to say. The kit itself calls a failure here perfectly acceptable",
    ),
    *(
        Known(leg, test, _LATER)
        for leg in ("1.0-full-1.0.1", "1.0-minimal-1.0.1", *_SHIPPED)
        for test in ("test_version_not_supported_returns_unimplemented", "test_content_type_not_supported_returns_415")
    ),
    Known("1.0-minimal-1.0.1", "test_unsupported_operation_returns_unimplemented", _LATER),
    Known("1.0-minimal-1.0.1", "test_push_not_supported_returns_unimplemented", _LATER),
    *(
        Known(leg, test, reason)
        for leg in _SHIPPED
        for test, reason in (
            ("test_agent_card_validates_against_schema", _ONE_CARD),
            ("test_create_push_config", _UNRESOLVED),
            ("TestPushNotificationDelivery", _CLOSED),
        )
    ),
)


@dataclass
class Result:
    """What came of a leg."""

    leg: Leg
    counts: Counter[str] = field(default_factory=Counter)
    bindings: dict[str, Counter[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def add(self, test: str, verdict: str, words: str) -> None:
        """Count one test."""
        if verdict == "failed":
            reason = next((one.reason for one in KNOWN if one(self.leg, test)), None)
            verdict = "failed" if reason is None else "known"
            (self.failed if reason is None else self.known).append(f"{test}: {reason or words}")
        self.counts[verdict] += 1
        binding = _binding(test) if self.leg.kit == "1.0" else self.leg.binding
        self.bindings.setdefault(binding, Counter())[verdict] += 1


def run(checkout: Path, legs: Sequence[Leg] | None = None, limit: float = PATIENCE) -> int:
    """Judge the agent by the kit in a checkout, each run for ``limit`` seconds at most; the exit code."""
    kit = _kit(checkout)
    chosen = [leg for leg in legs or LEGS if leg.kit == kit]
    python = python_for(f"a2a-tck-{kit}", _requirements(checkout, kit))
    results = [_judged(leg, checkout, python, limit) for leg in chosen]
    _print(results)
    for known in stale(results):
        print(f"stale  {known.leg}: {known.test} did not fail")
    return 1 if any(one.failed or not one.counts["passed"] for one in results) else 0


def stale(results: Sequence[Result]) -> list[Known]:
    """Known failures of the legs that were run, which did not fail."""
    return [
        one
        for one in KNOWN
        if any(result.leg.name.startswith(one.leg) for result in results)
        and not any(one(result.leg, test) for result in results for test in result.known)
    ]


def _kit(checkout: Path) -> str:
    """Which kit a checkout is, by its tests."""
    if (checkout / "tests" / "compatibility").is_dir():
        return "1.0"
    if (checkout / "tests" / "mandatory").is_dir():
        return "0.3"
    raise KitError(f"{checkout} is no checkout of a2aproject/a2a-tck: take branch 1.0-dev or 0.3.x.")


def _requirements(checkout: Path, kit: str) -> list[str]:
    """What the kit says that it needs. That of 0.3 does not run with the pytest of today."""
    wanted: list[str] = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    return [*wanted, "pytest<9"] if kit == "0.3" else wanted


def _judged(leg: Leg, checkout: Path, python: Path, limit: float) -> Result:
    result = Result(leg)
    with _agent(leg) as url:
        for options in _runs(leg, url):
            print(f"{leg.name} {' '.join(options)} ...", file=sys.stderr)
            for test, verdict, words in _verdicts(leg, [str(python), "run_tck.py", *options], checkout, limit):
                result.add(test, verdict, words)
    return result


def _runs(leg: Leg, url: str) -> list[tuple[str, ...]]:
    if leg.kit == "1.0":
        return [("--sut-host", url, *leg.options)]
    categories = CATEGORIES[leg.profile] if leg.binding != "equivalence" else ("transport-equivalence",)
    return [("--sut-url", url, "--category", category, *leg.options) for category in categories]


def _verdicts(leg: Leg, command: list[str], checkout: Path, limit: float) -> list[tuple[str, str, str]]:
    """Name, verdict and words of each test of one run, from the report that pytest writes."""
    with TemporaryDirectory(prefix="agent3-tck-") as folder:
        report = Path(folder) / "report.xml"
        environment = {**os.environ, "TCK_STREAMING_TIMEOUT": "1.0"}
        if leg.kit == "1.0":
            command = [*command, "--", *(("-k", leg.only) if leg.only else ()), f"--junitxml={report}"]
        else:  # it gives nothing on to pytest by itself
            environment["PYTEST_ADDOPTS"] = f"--junitxml={report}"
        try:
            done = subprocess.run(
                command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            late = f"The kit was not done after {limit:g} s. On a busy machine, give it more: --limit SECONDS."
            raise KitError(f"{late}\n{' '.join(command)}") from None
        if not report.is_file():
            raise KitError(f"The kit did not run: {' '.join(command)}\n{(done.stdout + done.stderr)[-2000:]}")
        cases = ElementTree.parse(report).iter("testcase")
        return [_verdict(case) for case in cases]


def _verdict(case: ElementTree.Element) -> tuple[str, str, str]:
    name = f"{case.get('classname', '').replace('.', '::')}::{case.get('name', '')}"
    for tag, verdict in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return name, verdict, " ".join((found.get("message") or "").split())[:300]
    return name, "passed", ""


def _binding(test: str) -> str:
    """The binding that a test of 1.0 is about, by its parameter or its file."""
    named = ("grpc", "jsonrpc", "http_json")
    return next(
        (one for one in named if one in test.lower() or (one == "http_json" and "Rest" in test)), "card, others"
    )


# The agent under test, as a process


@contextmanager
def _agent(leg: Leg) -> Iterator[str]:
    port, grpc_port = _free(), _free()
    command = [sys.executable, "-m", "conformance", "a2a", "--serve", str(port), "--profile", leg.profile]
    command += ["--grpc-port", str(grpc_port), "--kit", leg.kit, "--table", leg.table]
    command += ["--shipped", leg.shipped] if leg.shipped is not None else []
    with subprocess.Popen(command, cwd=Path(__file__).parents[1]) as process:
        try:
            url = f"http://localhost:{port}" + ("/agents/tck/a2a" if leg.shipped == "gateway" else "")
            _await(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(START)


def _free() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/.well-known/agent-card.json", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise KitError(f"The agent under test did not come up at {url}.")


# What is told


def _print(results: Sequence[Result]) -> None:
    print(f"{'leg':<24} {'binding':<14} {'passed':>7} {'failed':>7} {'known':>6} {'skipped':>8}")
    for result in results:
        for binding, counts in sorted(result.bindings.items()):
            row = "".join(f"{counts[one]:>{width}}" for one, width in COLUMNS)
            print(f"{result.leg.name:<24} {binding:<14} {row}")
    for result in results:
        for test in result.failed:
            print(f"FAILED {result.leg.name}: {test}")
        for test in result.known:
            print(f"known  {result.leg.name}: {test}")


COLUMNS = (("passed", 7), ("failed", 8), ("known", 7), ("skipped", 9))
