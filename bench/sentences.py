"""Sentences: how often the reader fills a schema right, asks, or is wrong, and whether it acts on what is forbidden.

A file holds tools with their schemas, and sentences with what is expected: an input (or one of several), a question,
or no action at all; docs/reference/benchmarks.md describes it. A question where an input was expected is no error; a
wrong input is one, and so is an action on a sentence that forbids it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from agent3.model import Capability, Hints
from agent3.sentences import Ask, Forbidden, Reading, Understood, free_text, read
from bench.harness import Options, Result, Row, bench, say

__all__ = ["judge", "measure"]


@bench(
    "sentences", "Sentences of a FILE or folder read against schemas: right, question, wrong, forbidden but acted on"
)
def measure(options: Options) -> Result:
    """Read every case of the files, and count them for each language and for all."""
    tally: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    for case, agent, capability in _cases(options.files):
        now = datetime.fromisoformat(f"{case.get('today', '2026-11-16')}T10:00:00")
        started = time.perf_counter()
        whole = free_text(capability, case["sentence"], agent=agent)
        if isinstance(whole, Forbidden):
            reading: Reading = whole
        else:
            reading = Understood(whole) if whole else read(capability, case["sentence"], now, agent=agent)
        seconds = time.perf_counter() - started
        verdict = judge(case["expect"], reading)
        for language in (case["lang"], "all"):
            tally.setdefault(language, Counter())[verdict] += 1
            slowest[language] = max(slowest.get(language, 0.0), seconds)
        if verdict in ("wrong", "acted"):
            say(f"{case['id']} {verdict}: {case['sentence']!r} -> {reading}")
    rows = []
    for language in sorted(tally):
        counts = tally[language]
        rows.append(
            Row(
                language,
                errors=counts["wrong"] + counts["acted"],
                extra={
                    "cases": counts.total(),
                    "right": counts["right"],
                    "question": counts["question"],
                    "wrong": counts["wrong"],
                    "forbidden_acted": counts["acted"],
                    "rightly_asked": counts["rightly asked"],
                    "rightly_nothing": counts["rightly nothing"],
                    "slowest_ms": round(slowest[language] * 1_000, 1),
                },
            )
        )
    everything = tally.get("all", Counter())
    inputs = everything["right"] + everything["question"] + everything["wrong"]
    return Result(rows, {"right of inputs": round(everything["right"] / max(1, inputs), 3)})


def _cases(names: Sequence[str]) -> Iterator[tuple[dict[str, Any], str, Capability]]:
    """Each case with its tool, of the files that are named and of those in folders that are named."""
    files = [
        file for name in names for file in (sorted(Path(name).glob("*.json")) if Path(name).is_dir() else [Path(name)])
    ]
    if not files:
        raise SystemExit("Give a file, or a folder with files: python -m bench sentences FILE")
    for file in files:
        exam = json.loads(file.read_text())
        tools = {tool["id"]: _capability(tool) for tool in exam["tools"]}
        for case in exam["cases"]:
            yield case, *tools[case["tool"]]


def judge(expected: dict[str, Any], reading: Understood | Ask | Forbidden) -> str:
    """What a reading is worth beside what was expected."""
    wanted = [expected["input"]] if "input" in expected else expected.get("alternatives", [])
    if isinstance(reading, Understood):
        if _forbids(expected):
            return "acted"
        return "right" if reading.input in wanted else "wrong"
    if wanted:
        return "question"
    return "rightly nothing" if _forbids(expected) else "rightly asked"


def _forbids(expected: dict[str, Any]) -> bool:
    return "none" in expected or "nothing" in expected


def _capability(tool: dict[str, Any]) -> tuple[str, Capability]:
    notes = tool.get("annotations") or {}
    hints = Hints(read_only=bool(notes.get("readOnlyHint")), consequential=bool(notes.get("destructiveHint")))
    described = tool.get("description", "")
    return tool["agent"], Capability(
        name=tool["name"], description=described, input_schema=tool["inputSchema"], hints=hints
    )
