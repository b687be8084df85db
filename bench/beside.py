"""``beside OLD``: the gateway beside an earlier version of itself, by CPU per request.

OLD is a checkout of that version with its environment in ``.venv`` (``scripts/setup dev``). Each row of ours in
``mcp``, ``a2a`` and ``gateway`` is served by both versions at once, and they are asked in turn, a few hundred requests
each, so that what else the machine does falls on both alike. What counts is the CPU time of the server's process, in
nanoseconds, and of all turns the median. Every round starts new processes, the other version first each time: two of
one program differ by some percent. Take an even number of rounds.
The rows of ``calls`` are measured by either version's own bench, in turn.

    python -m bench beside ../old                          every row
    python -m bench beside ../old --tasks ours_modern      the rows of that name only

``cpu_ms_per_call`` is ours now, ``before`` theirs. Ratios, above 1 where this version is better:

    NAME    CPU per request of OLD / that of this version; ``limit`` 0.95
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import a2a, gateway, mcp
from bench.harness import (
    HEALTHY,
    ROOT,
    Options,
    Result,
    Row,
    Server,
    Target,
    bench,
    clean_environment,
    prepared,
    ratio,
    say,
    serving,
)
from bench.load import HOST, with_count

__all__ = ["run"]

LEAST = 0.95
WARM = 1_000
TURNS = 24
REQUESTS = 400
SETTLE_LOOKS, SETTLE_SECONDS = 60, 1.0
SETTLED = 0.03
"""The share of a core that an idle server may take: one that still indexes in the background takes more."""
CALLS_SECONDS = 300

Turn = Callable[[], float]
"""One turn of load; CPU seconds of the server for each request."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A checkout with an environment of its own."""

    root: Path
    python: str

    def of(self, target: Target) -> Target:
        """The target as this version serves it."""

        def command(port: int, folder: Path) -> list[str]:
            return [self.python if part == sys.executable else part for part in target.command(port, folder)]

        # One seed, since the order of a set is worth a percent or two.
        environment = {**target.environment, "PYTHONPATH": str(self.root), "PYTHONHASHSEED": "0"}
        return replace(target, command=command, environment=environment)


@bench("beside", "CPU per request beside an earlier version: python -m bench beside OLD_CHECKOUT [--tasks ROW ...]")
def run(options: Options) -> Result:
    """Serve every row by both versions, and ask them in turn."""
    old = Path(options.files[0]).resolve() if options.files else None
    if old is None or not (old / ".venv" / "bin" / "python").exists():
        raise SystemExit("Say which version to stand beside: a checkout in which scripts/setup dev has been run.")
    versions = _Version(old, str(old / ".venv" / "bin" / "python")), _Version(ROOT, sys.executable)
    rows = [*_served(versions, options), *_inside(versions, options)]
    ratios = {row.target: ratio(row.extra.get("before"), row.cpu_ms_per_call) for row in rows}
    return Result(rows, ratios)


def _wanted(name: str, options: Options) -> bool:
    return not options.tasks or name in options.tasks


def _served(versions: Sequence[_Version], options: Options) -> Iterator[Row]:
    pairs = [(target, target) for target in (*mcp.TARGETS, *a2a.TARGETS) if _is_ours(target)]
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(serving(gateway.upstream, HEALTHY))
        url = f"http://{HOST}:{behind.port}"
        pairs += zip(*(gateway.gateways(url, version.python) for version in versions), strict=True)
        for pair in pairs:
            if _wanted(pair[0].name, options):
                yield _compared(
                    pair[0].name, [version.of(target) for version, target in zip(versions, pair, strict=True)], options
                )


def _is_ours(target: Target) -> bool:
    return not target.name.startswith(("bare", "sdk"))


def _compared(name: str, targets: Sequence[Target], options: Options) -> Row:
    laps: list[list[float]] = [[], []]
    for number in range(options.rounds):
        with contextlib.ExitStack() as stack:
            # Of two that are the same, the one that was started last reads a little worse.
            begun = {which: _turn(stack, targets[which], options) for which in ((0, 1) if number % 2 else (1, 0))}
            turns = [begun[0], begun[1]]
            for turn in range(TURNS):
                for which in (0, 1) if turn % 2 else (1, 0):
                    laps[which].append(turns[which]())
        say(f"round {number + 1}/{options.rounds} {name}: {_of_medians(laps):.3f}")
    return _row(name, laps)


def _turn(stack: contextlib.ExitStack, target: Target, options: Options) -> Turn:
    server = stack.enter_context(serving(target.command, HEALTHY, environment=target.environment))
    request = prepared(server.port, target)

    def turn(count: int = REQUESTS) -> float:
        before = _cpu_seconds(server)
        load = with_count(server.port, request, count, connections=options.connections)
        if load.bad or not load.good:
            raise RuntimeError(f"{target.name}: {load.bad} of {load.bad + load.good} answers were wrong")
        return (_cpu_seconds(server) - before) / load.good

    turn(WARM)
    _settle(server)
    return turn


def _settle(server: Server) -> None:
    """Wait until a start has nothing left to do, such as an index to build."""
    for _ in range(SETTLE_LOOKS):
        before = _cpu_seconds(server)
        time.sleep(SETTLE_SECONDS)
        if _cpu_seconds(server) - before < SETTLE_SECONDS * SETTLED:
            return


def _cpu_seconds(server: Server) -> float:
    # The clock of another process, as clock_getcpuclockid(3) names it; /proc counts in hundredths of a second only.
    return time.clock_gettime((~server.process.pid << 3) | 2)


def _inside(versions: Sequence[_Version], options: Options) -> Iterator[Row]:
    """The rows of ``calls``, which need no server."""
    laps: dict[str, list[list[float]]] = {}
    if options.tasks and not any(name.startswith(("steps", "function")) for name in options.tasks):
        return
    for number in range(4 * options.rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            for row in _calls(versions[which]):
                laps.setdefault(row["target"], [[], []])[which].append(row["cpu_ms_per_call"] / 1e3)
        say(f"round {number + 1}/{4 * options.rounds} calls")
    for name, pair in laps.items():
        if all(pair) and _wanted(name, options):
            yield _row(name, pair)


def _calls(version: _Version) -> list[dict[str, Any]]:
    command = [version.python, "-m", "bench", "calls", "--json", "--rounds", "1", "--seconds", "0.3"]
    environment = {**clean_environment(), "PYTHONHASHSEED": "0"}
    told = subprocess.run(
        command, cwd=version.root, env=environment, capture_output=True, timeout=CALLS_SECONDS, check=True
    )
    rows: list[dict[str, Any]] = json.loads(told.stdout)["rows"]
    return rows


def _of_medians(laps: Sequence[Sequence[float]]) -> float:
    return statistics.median(laps[0]) / statistics.median(laps[1])


def _row(name: str, laps: Sequence[Sequence[float]]) -> Row:
    before, now = (statistics.median(one) * 1e3 for one in laps)
    extra = {"before": before, "ratio": before / now, "limit": LEAST, "met": before / now >= LEAST}
    return Row(name, cpu_ms_per_call=now, extra=extra)
