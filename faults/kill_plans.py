"""kill -9 while plans run: each goes on under its key, and no finished step is ever repeated.

Each child is the same script: it runs plans of two kinds, one after the other, and takes up the one that was cut off.
Every tool writes a line when it begins. The parent kills the child at random moments and at the end reads the lines:
once a step has begun, none before it may begin again; and a step that may not be repeated begins once at most.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from agent3 import MCPClient, MCPServer
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Server, Settings, Storage
from faults.registry import Result, fault

KILLS = 20
STEPS = 6
KINDS = ("repeatable", "single")
PAUSE = 0.02

Lines = list[list[Any]]


@fault("kill-plans")
def kill_plans(seed: int, kills: int = KILLS) -> Result:
    """kill -9 while plans run, 20 times: each goes on under its key, and no finished step is repeated."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-plans-") as name:
        folder = Path(name)
        for _ in range(kills):
            _live_and_die(folder, chance)
        _finish(folder)
        return judge(_read(folder / "begun"), _read(folder / "ended")) | {"kills": kills}


def _start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "faults.kill_plans", str(folder), *options],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    )


def _live_and_die(folder: Path, chance: random.Random) -> None:
    child = _start(folder)
    with child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != b"working\n":
                raise RuntimeError(f"The child ended by itself with code {child.wait(10)}.")
            time.sleep(chance.uniform(0.0, 4 * STEPS * PAUSE))
        finally:
            child.kill()


def _finish(folder: Path) -> None:
    """Let a last child end what is left, and tell again how every plan ended."""
    with _start(folder, "finish") as child:
        try:
            if child.wait(60):
                raise RuntimeError(f"The last child failed with code {child.returncode}.")
        finally:
            child.kill()


def _read(file: Path) -> Lines:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(True) if line.endswith("\n")]


# The child


class _Witness:
    """A file to which whole lines are added, however its writer ends."""

    def __init__(self, file: Path):
        self._handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, *fields: Any) -> None:
        os.write(self._handle, f"{json.dumps(fields)}\n".encode())


def _tools(core: Standalone, begun: _Witness) -> MCPServer:
    server = MCPServer("work", core=core)

    def work(plan: str, step: int, before: int) -> int:
        """One step: says that it begins, takes its time, and counts on."""
        begun(plan, step, os.getpid())
        time.sleep(PAUSE)
        return before + 1

    server.tool(name="repeatable", idempotent=True)(work)
    server.tool(name="single")(work)
    return server


def steps(kind: str, plan: str) -> list[dict[str, Any]]:
    """A chain: each step counts on from the one before it."""

    def step(number: int) -> dict[str, Any]:
        before = f"${{s{number - 1}}}" if number else 0
        return {"id": f"s{number}", "tool": kind, "input": {"plan": plan, "step": number, "before": before}}

    return [step(number) for number in range(STEPS)]


def _child(folder: Path, finish: bool) -> None:
    logging.getLogger("agent3").setLevel(logging.ERROR)
    begun, ended = _Witness(folder / "begun"), _Witness(folder / "ended")
    url = f"sqlite:///{folder / 'plans.db'}"
    core = Standalone(Settings(server=Server(shutdown_seconds=0.0), storage=Storage(url=url)))
    client = MCPClient(core=core)
    client.connect_to_server(_tools(core, begun))
    last = max((int(plan.split("-")[1]) for plan, *_ in _read(folder / "begun")), default=0)
    first = 0 if finish else last
    print("working", flush=True)
    for number in range(first, last + 1 if finish else 1_000_000):
        for kind in KINDS:
            plan = f"{kind}-{number}"
            told = client.run_plan(steps(kind, plan), key=plan)
            ended(plan, told["status"], [_word(one) for one in told["steps"]])
    client.close()
    core.close()


def _word(step: dict[str, Any]) -> Any:
    return step["result"] if step["status"] == "success" else step.get("error", {}).get("code", step["status"])


# The judge


def judge(begun: Lines, ended: Lines) -> Result:
    """What the lines say of every plan, by what its kind promises."""
    order: dict[str, list[int]] = defaultdict(list)
    processes: dict[str, set[int]] = defaultdict(set)
    for plan, step, pid in begun:
        order[plan].append(step)
        processes[plan].add(pid)
    ends: dict[str, list[Any]] = defaultdict(list)
    for plan, status, words in ended:
        ends[plan].append([status, words])
    wrong: Counter[str] = Counter()
    for plan in order.keys() | ends.keys():
        wrong.update(_faults(plan.split("-")[0], order[plan], ends[plan]))
    resumed = sum(len(pids) > 1 for pids in processes.values())
    repeated = sum(len(one) - len(set(one)) for one in order.values())
    interrupted = sum("interrupted" in told[-1][1] for told in ends.values())
    return {
        "ok": bool(ends) and not wrong and resumed + interrupted > 0,
        "plans": len(ends),
        "resumed": resumed,
        "steps": len(begun),
        "cut_off_and_repeated": repeated,
        "cut_off_and_ended": interrupted,
        "wrong": dict(wrong),
    }


def _faults(kind: str, order: list[int], ends: list[Any]) -> list[str]:
    faults = []
    if order != sorted(order):
        faults.append("a finished step was repeated")
    if kind == "single" and len(set(order)) != len(order):
        faults.append("a step was repeated that may not be")
    if not ends:
        return [*faults, "never ended"]
    status, words = ends[-1]
    if any(end != ends[-1] for end in ends):
        faults.append("changed after its end")
    if status == "success" and (words != list(range(1, STEPS + 1)) or sorted(set(order)) != list(range(STEPS))):
        faults.append("wrong result")
    if status != "success" and (kind != "single" or not _is_interrupted(words)):
        faults.append("failed")
    return faults


def _is_interrupted(words: list[Any]) -> bool:
    """Whether it went as far as it could: results, then the step that was cut off, then nothing more."""
    place = words.index("interrupted") if "interrupted" in words else len(words)
    return words == [*range(1, place + 1), "interrupted", *["skipped"] * (STEPS - place - 1)]


if __name__ == "__main__":
    _child(Path(sys.argv[1]), "finish" in sys.argv[2:])
