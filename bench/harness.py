"""The harness: a register of benches, servers that always stop, and rows that stand beside each other.

A bench is a function from ``Options`` to a ``Result``. Servers run on loopback, each in a process and session of its
own, and are loaded in turn for several rounds (A B C A B C), so that a neighbour's burst on a shared machine falls on
all of them. It knows no protocol and nothing of agent3.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from bench.load import HOST, Load, Request, apply_load, percentile

__all__ = [
    "APPS",
    "BENCHES",
    "HEALTHY",
    "ROOT",
    "Bench",
    "Options",
    "Result",
    "Row",
    "Server",
    "Target",
    "answers",
    "ask",
    "bench",
    "clean_environment",
    "cpu_seconds",
    "free_port",
    "load_benches",
    "machine",
    "measure",
    "prepared",
    "ratio",
    "resident_mb",
    "say",
    "serving",
    "side_by_side",
    "uvicorn",
    "with_extra",
]

ROOT = Path(__file__).resolve().parent.parent
APPS = ROOT / "bench" / "apps"
READY_SECONDS = 120.0
STOP_SECONDS = 5.0
HEALTHY = Request("/healthz", "", method="GET")
"""What every server that is measured here must answer with 200 when it is ready."""
MODULES = (
    "a2a",
    "beside",
    "calls",
    "commands",
    "crowd",
    "footprint",
    "gateway",
    "growth",
    "healing",
    "mcp",
    "miniwob",
    "nlweb",
    "page_exam",
    "queues",
    "schemas",
    "security",
    "search",
    "sentences",
    "tokens",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    seconds: float = 3.0
    rounds: int = 3
    connections: int = 16
    seeds: tuple[int, ...] = ()
    """Of an examination; its own if none are given."""
    tasks: tuple[str, ...] = ()
    """Of an examination; all if none are given."""
    files: tuple[str, ...] = ()
    """What to examine, for a bench that takes a file."""
    data: Path | None = None
    """A folder with data that is no part of the project."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured. A figure that makes no sense for it is None; ``extra`` holds keys of its own."""

    target: str
    rate: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms_per_call: float | None = None
    errors: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The form that ``--json`` prints."""
        return {
            "target": self.target,
            "rate": _rounded(self.rate),
            "p50_ms": _rounded(self.p50_ms),
            "p99_ms": _rounded(self.p99_ms),
            "cpu_ms_per_call": _rounded(self.cpu_ms_per_call),
            "errors": self.errors,
            **{key: _rounded(value) for key, value in self.extra.items()},
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What a bench hands back. A ratio is None when one of its two sides could not be measured."""

    rows: list[Row]
    ratios: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Bench:
    """A registered bench."""

    name: str
    summary: str
    run: Callable[[Options], Result]


BENCHES: dict[str, Bench] = {}


def bench(name: str, summary: str) -> Callable[[Callable[[Options], Result]], Callable[[Options], Result]]:
    """Register the decorated function under ``name``."""

    def register(run: Callable[[Options], Result]) -> Callable[[Options], Result]:
        BENCHES[name] = Bench(name, summary, run)
        return run

    return register


def load_benches() -> dict[str, Bench]:
    """All benches by name. Their modules import nothing heavy until they run."""
    for name in MODULES:
        import_module(f"bench.{name}")
    return BENCHES


def say(text: str) -> None:
    """Progress, for people: on stderr, so that stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the figures depend on, without anything that names the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = [round(one, 2) for one in os.getloadavg()] if hasattr(os, "getloadavg") else None
    return {"cores": cores, "cpu": _cpu_model(), "python": platform.python_version(), "load_average": load}


def ratio(above: float | None, below: float | None) -> float | None:
    """``above / below``, or None when either is missing or nothing was measured."""
    return _rounded(above / below) if above and below else None


def with_extra(row: Row, **extra: Any) -> Row:
    """The row with further keys of its own."""
    return replace(row, extra={**row.extra, **extra})


def measure(target: str, function: Callable[[T], object], items: Sequence[T], *, chunk: int = 1, **extra: Any) -> Row:
    """Call ``function`` once per item in this process and time it.

    ``chunk`` calls share one reading of the clock, for a function as quick as the clock itself: the percentiles are
    then those of the mean of a chunk.
    """
    laps: list[float] = []
    busy, began = time.process_time(), time.perf_counter()
    for start in range(0, len(items), chunk):
        lap = time.perf_counter()
        part = items[start : start + chunk]
        for item in part:
            function(item)
        laps.append((time.perf_counter() - lap) / len(part))
    took, busy = time.perf_counter() - began, time.process_time() - busy
    laps.sort()
    p50, p99 = percentile(laps, 0.5) * 1e3, percentile(laps, 0.99) * 1e3
    return Row(target, len(items) / took, p50, p99, busy * 1e3 / len(items), extra={"calls": len(items), **extra})


# --- servers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: its process leads a session of its own, so that its children can be counted and stopped."""

    process: subprocess.Popen[bytes]
    port: int
    start_seconds: float
    """From the start of the process to the first good answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to load: how to start it (given a free port and an empty folder), and what to ask it.

    ``prepare`` sees the running server first and says what to ask it then, such as the request with a session's id.
    ``note`` says how to read its row.
    """

    name: str
    command: Callable[[int, Path], Sequence[str]]
    request: Request
    prepare: Callable[[int, Request], Request] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def uvicorn(app: str, port: int, *extra: str, python: str = sys.executable) -> list[str]:
    """The command line that serves ``bench/apps/APP.py`` in one process."""
    command = [python, "-m", "uvicorn", f"{app}:app", "--app-dir", str(APPS), "--host", HOST, "--port", str(port)]
    return [*command, "--log-level", "warning", "--no-access-log", *extra]


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, request: Request, *, timeout: float = 5.0) -> tuple[int, Message, bytes]:
    """One request: status, headers and body of its answer. OSError or HTTPException when there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        body = request.body_of(0)
        connection.request(request.method, request.path, body, request.headers_with(port, body))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def answers(port: int, request: Request) -> bool:
    """Whether the server gives a good answer now."""
    try:
        status, _, body = ask(port, request)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200 and request.expect.encode() in body


@contextlib.contextmanager
def serving(
    command: Callable[[int, Path], Sequence[str]],
    ready: Request,
    *,
    environment: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Iterator[Server]:
    """Run a server until the block ends, however it ends; enter it when ``ready`` got a good answer.

    Raises RuntimeError with the end of the server's own output when it exits or stays silent.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        port, log = free_port(), Path(folder, "output.log")
        with log.open("wb") as output:
            began = time.perf_counter()
            process = subprocess.Popen(
                list(command(port, Path(folder))),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**clean_environment(), **(environment or {})},
                start_new_session=True,
            )
        try:
            _wait_until_ready(process, port, ready, began + ready_seconds, log)
            yield Server(process, port, time.perf_counter() - began)
        finally:
            _stop(process)


def cpu_seconds(pid: int) -> float | None:
    """User and system time so far of the session that ``pid`` leads; None where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    ticks = sum(sum(map(int, stat[11:15])) for stat in _stats() if int(stat[3]) == pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float | None:
    """The resident memory of one process in MB (10^6 bytes); None where there is no /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmRSS:")), None)
    return int(line.split()[1]) * 1024 / 1e6 if line else None


def side_by_side(targets: Sequence[Target], options: Options) -> list[Row]:
    """Start all targets, load them in turn for every round, and stop them.

    A target that does not start becomes a row without figures, one error and the reason in ``note``: the others are
    still worth having.
    """
    loads: dict[str, list[tuple[Load, float | None]]] = {target.name: [] for target in targets}
    with contextlib.ExitStack() as stack:
        started = {target.name: _started(stack, target, options) for target in targets}
        for turn in range(options.rounds):
            for target in targets:
                running = started[target.name]
                if not isinstance(running, str):
                    loads[target.name].append(_one_round(*running, options))
                    say(f"round {turn + 1}/{options.rounds} {target.name}: {loads[target.name][-1][0].rate:,.0f}/s")
    return [_summary(target, loads[target.name], started[target.name]) for target in targets]


def _started(stack: contextlib.ExitStack, target: Target, options: Options) -> tuple[Server, Request] | str:
    try:
        server = stack.enter_context(serving(target.command, HEALTHY, environment=target.environment))
        request = prepared(server.port, target)
    except (RuntimeError, OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
        say(f"{target.name}: {error}")
        return str(error)
    apply_load(server.port, request, seconds=min(1.0, options.seconds), connections=2)  # warm, and not counted
    return server, request


def prepared(port: int, target: Target) -> Request:
    """What to ask the running target; RuntimeError unless it answers that well."""
    request = target.prepare(port, target.request) if target.prepare else target.request
    status, _, body = ask(port, request)
    if status != 200 or request.expect.encode() not in body:
        raise RuntimeError(f"the server answered {status} without {request.expect!r}: {body[:300].decode()}")
    return request


def _one_round(server: Server, request: Request, options: Options) -> tuple[Load, float | None]:
    before = cpu_seconds(server.process.pid)
    load = apply_load(server.port, request, seconds=options.seconds, connections=options.connections)
    after = cpu_seconds(server.process.pid)
    return load, after - before if after is not None and before is not None else None


def _summary(target: Target, rounds: Sequence[tuple[Load, float | None]], started: object) -> Row:
    if isinstance(started, str):
        return Row(target.name, errors=1, extra={"note": started})
    loads = [load for load, _ in rounds]
    good = sum(load.good for load in loads)
    busy = [seconds for _, seconds in rounds if seconds is not None]
    note = {"note": target.note} if target.note else {}
    return Row(
        target.name,
        rate=statistics.median(load.rate for load in loads),
        p50_ms=statistics.median(load.p50_ms for load in loads),
        p99_ms=statistics.median(load.p99_ms for load in loads),
        cpu_ms_per_call=sum(busy) * 1e3 / good if good and busy else None,
        errors=sum(load.bad for load in loads),
        extra={"best_rate": max(load.rate for load in loads), "calls": good, **note},
    )


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, ready: Request, until: float, log: Path) -> None:
    while not answers(port, ready):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}: {_tail(log)}")
        if time.perf_counter() > until:
            raise RuntimeError(f"the server gave no good answer on {ready.path} in time: {_tail(log)}")
        time.sleep(0.01)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    # Reports are shared: they name the program, not where this machine keeps it.
    return lines[-1][-300:].replace(sys.executable, "python").replace(str(ROOT), ".") if lines else "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return


def clean_environment() -> dict[str, str]:
    """The environment without a developer's own settings, which must not reach what is measured."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("AGENT3_", "PYTHON", "OTEL_"))}


def _stats() -> Iterator[list[str]]:
    # The name of a process may hold spaces and parentheses, so fields are counted from behind it: 3 is the session,
    # 11 to 14 are utime, stime and those of children that have ended.
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text().rpartition(")")[2].split()


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _rounded(value: Any) -> Any:
    # Four significant digits: more would only be noise that looks like knowledge.
    return float(f"{value:.4g}") if isinstance(value, float) else value
