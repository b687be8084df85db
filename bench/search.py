"""``search``: how well and how fast capabilities are found, beside SQLite's FTS5 and plain BM25 in the same run.

Quality needs public sets of questions, which are no part of this project: name their folder by ``--data``. It has a
checkout of each repository of ``bench.tool_sets.SOURCES`` (git clone https://github.com/OWNER/NAME FOLDER/NAME) and may
hold exams of one's own, ``*.json``. Without a folder only the speed is measured. ``--tasks`` chooses sets by name.

recall1 is how often the first hit is right, recall5 the share of the right tools among the first five. The weights of
fields were not chosen by the sets of ``HELD_OUT``; how synonyms count was compared on all of them but UltraTool.
Rows ``…_meaning`` need the extra ``semantic``; they are for sets of up to 600 tools and
300 questions of each, and rows ``…_words`` are ours on the same questions.

Speed: 100,000 made-up capabilities of 10,000 agents; ``cpu_p99_ms`` is what the slowest hundredth of the queries takes
of CPU, also with every word ``misspelt``. ``loop`` loads them from a database and goes on searching, adding
and removing; ``held_ms`` is the longest CPU time of one turn of the event loop, the figure to trust on a busy
machine, and ``held_loading_ms`` that before everything was loaded. ``first_ms`` is the first search after the start,
``early`` how many were answered while it was still loading.

    ours_vs_fts5_recall1, ours_vs_fts5_recall5    means over the sets that were held out
    ours_vs_fts5_speed                            CPU time of a query at 100,000, above 1 where ours is faster
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, islice
from statistics import fmean

from agent3.directory import Directory
from agent3.directory.documents import documents_of
from agent3.directory.meaning import Encoder, Vectors, encode_agent, load_encoder
from agent3.directory.search import Index
from agent3.directory.words import spell
from agent3.env import REAL
from agent3.model import Agent, Capability
from agent3.storage import open_database
from bench.harness import Options, Result, Row, bench, measure, ratio, say
from bench.load import percentile
from bench.tool_sets import HELD_OUT, SOURCES, ToolSet, load_sets, read_exam

__all__ = ["Words", "run"]

CAPABILITIES = 100_000
PER_AGENT = 10
QUERIES = 1_000
EMBEDDED = 600
"""Tools of a set up to which they are also found by meaning."""
MEANT = 300
"""Questions of a set that are also asked by meaning: an encoder takes some milliseconds for each."""

Rank = Callable[[str], list[int]]


@bench("search", "which capability fits: quality beside FTS5 and BM25, and speed at 100,000")
def run(options: Options) -> Result:
    rows, ratios = _quality(options) if options.data is not None else ([], {})
    if options.data is None:
        say("quality: no --data. It wants a folder with " + ", ".join(SOURCES.values()))
    speed = _speed()
    ratios["ours_vs_fts5_speed"] = ratio(speed[1].cpu_ms_per_call, speed[0].cpu_ms_per_call)
    return Result([*rows, *speed, _changes(), asyncio.run(_loop())], ratios)


# --- quality --------------------------------------------------------------------------------------------------------


def _quality(options: Options) -> tuple[list[Row], dict[str, float | None]]:
    assert options.data is not None
    sets, missing = load_sets(options.data, options.tasks)
    for name in missing:
        say(f"{name} is not in {options.data}")
    sets += [read_exam(path) for path in sorted(options.data.glob("*.json"))]
    rows: list[Row] = []
    for one in sets:
        say(f"{one.name}: {len(one.tools)} tools, {len(one.questions)} questions")
        ways: dict[str, Rank] = {"ours": _ours(one), "fts5": _fts5(one), "bm25": _bm25(one)}
        rows += [_judge(one, way, rank, one.questions) for way, rank in ways.items()]
        if len(one.tools) <= EMBEDDED and (encoder := load_encoder()) is not None:
            step = max(1, len(one.questions) // MEANT)
            some = one.questions[::step]  # the same for both, so that they can be compared
            rows.append(_judge(one, "meaning", _meaning(one, encoder), some))
            rows.append(_judge(one, "words", ways["ours"], some))
    means = {way: [row for row in rows if row.extra["set"] in HELD_OUT and row.extra["way"] == way] for way in _WAYS}
    ratios: dict[str, float | None] = {}
    for way, held in means.items():
        if held:
            mean = {key: round(fmean(row.extra[key] for row in held), 3) for key in ("recall1", "recall5")}
            rows.append(Row(f"held_out_{way}", extra={"set": "", "way": way, **mean, "sets": len(held)}))
    found = {row.extra["way"]: row.extra for row in rows if row.target.startswith("held_out_")}
    for key in ("recall1", "recall5"):
        if found:
            ratios[f"ours_vs_fts5_{key}"] = ratio(found["ours"][key], found["fts5"][key])
    return rows, ratios


_WAYS = ("ours", "fts5", "bm25", "meaning", "words")


def _judge(one: ToolSet, way: str, rank: Rank, questions: Sequence[tuple[str, frozenset[int]]]) -> Row:
    first = share = 0.0
    for question, right in questions:
        top = rank(question)[:5]
        first += bool(top) and top[0] in right
        share += len(right.intersection(top)) / len(right)
    recalls = {"recall1": round(first / len(questions), 3), "recall5": round(share / len(questions), 3)}
    return Row(f"{one.name}_{way}", extra={"set": one.name, "way": way, **recalls, "questions": len(questions)})


def _ours(one: ToolSet) -> Rank:
    index = Index({tool.id: tool for tool in one.tools})
    return lambda question: [int(match.agent) for match in islice(index.rank(question), 5)]


def _meaning(one: ToolSet, encoder: Encoder) -> Rank:
    index, vectors = Index({tool.id: tool for tool in one.tools}), Vectors(encoder)
    for tool in one.tools:
        vectors.put(index.numbers_of(tool.id), encode_agent(encoder, tool))
    return lambda question: [int(match.agent) for match in islice(vectors.fuse(question, index.rank(question)), 5)]


def _texts(tool: Agent) -> tuple[str, str, str]:
    capability = tool.capabilities[0]
    properties = capability.input_schema.get("properties") or {}
    said = [
        f"{name} {inner.get('description', '') if isinstance(inner, dict) else ''}"
        for name, inner in properties.items()
    ]
    return " ".join(spell(capability.name)), capability.description, " ".join([*said, tool.name])


def _fts5(one: ToolSet) -> Rank:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE tools USING fts5 (name, description, rest, tokenize = 'porter unicode61')")
    rows = ((place, *_texts(tool)) for place, tool in enumerate(one.tools))
    database.executemany("INSERT INTO tools (rowid, name, description, rest) VALUES (?, ?, ?, ?)", rows)
    return lambda question: _ask_fts5(database, question)


def _ask_fts5(database: sqlite3.Connection, question: str) -> list[int]:
    said = dict.fromkeys(re.findall(r"\w+", question))
    if not said:
        return []
    match = " OR ".join(f'"{word}"' for word in islice(said, 60))
    sql = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, 4, 2, 1) LIMIT 5"
    return [row[0] for row in database.execute(sql, (match,))]


def _bm25(one: ToolSet) -> Rank:
    """As in a textbook: one bag of words for each tool, k 1.2, b 0.75, no stems and no stop words."""
    bags = [Counter(spell(" ".join(_texts(tool)))) for tool in one.tools]
    where: dict[str, list[int]] = {}
    for place, bag in enumerate(bags):
        for word in bag:
            where.setdefault(word, []).append(place)
    mean = fmean(bag.total() for bag in bags)

    def rank(question: str) -> list[int]:
        scores: dict[int, float] = {}
        for word in set(spell(question)):
            there = where.get(word, ())
            rarity = math.log(1 + (len(bags) - len(there) + 0.5) / (len(there) + 0.5))
            for place in there:
                count = bags[place][word]
                norm = count + 1.2 * (0.25 + 0.75 * bags[place].total() / mean)
                scores[place] = scores.get(place, 0.0) + rarity * 2.2 * count / norm
        return sorted(scores, key=lambda place: -scores[place])[:5]

    return rank


# --- speed ----------------------------------------------------------------------------------------------------------


class Words:
    """Words with the frequencies of a language: a few everywhere, most almost nowhere."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self.random.choices(letters, k=self.random.randint(3, 9))) for _ in range(40_000)]
        self._weights = list(accumulate(1 / (place + 10) for place in range(len(self._words))))

    def some(self, count: int) -> list[str]:
        return self.random.choices(self._words, cum_weights=self._weights, k=count)

    def text(self, count: int) -> str:
        return " ".join(self.some(count))

    def agent(self, number: int) -> Agent:
        offered = tuple(
            Capability(
                name="_".join(self.some(3)),
                description=self.text(16),
                input_schema={
                    "type": "object",
                    "properties": {name: {"type": "string", "description": self.text(6)} for name in self.some(4)},
                },
            )
            for _ in range(PER_AGENT)
        )
        return Agent(id=f"agent-{number}", name=self.text(2), description=self.text(12), capabilities=offered)


def _tidy(index: Index) -> None:
    while plan := index.plan():
        index.swap(plan, index.build(plan))


def _speed() -> list[Row]:
    say(f"speed: {CAPABILITIES:,} capabilities")
    words, index = Words(1), Index()
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE tools USING fts5 (name, description, rest, tokenize = 'porter unicode61')")
    for number in range(CAPABILITIES // PER_AGENT):
        agent = words.agent(number)
        index.put(agent, documents_of(agent))
        _tidy(index)
        rows = [_texts(Agent(id="", name=agent.name, capabilities=(one,))) for one in agent.capabilities]
        database.executemany("INSERT INTO tools (name, description, rest) VALUES (?, ?, ?)", rows)
    queries = [words.text(words.random.randint(3, 9)) for _ in range(QUERIES)]
    misspelt = [" ".join(_misspell(word) for word in query.split()) for query in queries]
    fts5 = measure("search_100k_fts5", lambda query: _ask_fts5(database, query), queries[: QUERIES // 10])
    return [_measure("search_100k_ours", index, queries), fts5, _measure("search_100k_misspelt", index, misspelt)]


def _measure(target: str, index: Index, queries: Sequence[str]) -> Row:
    busy: list[float] = []

    def ask(query: str) -> None:
        began = time.thread_time()
        list(islice(index.rank(query), 10))
        busy.append(time.thread_time() - began)

    row = measure(target, ask, queries)
    return replace(row, extra={**row.extra, "cpu_p99_ms": round(percentile(sorted(busy), 0.99) * 1e3, 2)})


def _misspell(word: str) -> str:
    """Two letters in the middle swapped."""
    at = len(word) // 2
    return f"{word[: at - 1]}{word[at]}{word[at - 1]}{word[at + 1 :]}" if len(word) > 3 else word


def _changes() -> Row:
    """An agent of ten capabilities put in and taken out of the large index, by CPU time."""
    words, index = Words(2), Index()
    for number in range(CAPABILITIES // PER_AGENT // 4):
        agent = words.agent(number)
        index.put(agent, documents_of(agent))
        _tidy(index)
    before = len(index.numbers_of("agent-0"))
    added, removed = [], []
    for number in range(200):
        agent = words.agent(1_000_000 + number)
        began = time.process_time()
        index.put(agent, documents_of(agent))
        added.append((time.process_time() - began) / before)
        began = time.process_time()
        index.remove(agent.id)
        removed.append((time.process_time() - began) / before)
    figures = {
        "add_us": round(percentile(sorted(added), 0.5) * 1e6, 1),
        "remove_us": round(percentile(sorted(removed), 0.5) * 1e6, 1),
    }
    return Row("search_changes", extra={**figures, "note": "per capability, medians"})


# --- the event loop -------------------------------------------------------------------------------------------------


@contextmanager
def _watched(held: list[float]) -> Iterator[None]:
    """The CPU time of each turn of this thread's event loop, in seconds."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        held.append(time.thread_time() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def _loop() -> Row:
    say("loop: a directory of 10,000 agents")
    words = Words(3)
    database = await open_database(":memory:")
    writer = Directory(database, REAL)
    for number in range(CAPABILITIES // PER_AGENT):
        await writer.add(words.agent(number))
    held: list[float] = []
    laps: list[float] = []
    reader = Directory(database, REAL)
    gc.freeze()  # as a gateway does that has started
    with _watched(held):
        began = time.perf_counter()
        reader.begin_indexing()
        early: list[float] = []
        while (await reader.search(words.text(5), whole=False)).indexing is not None:
            early.append(time.perf_counter() - began - sum(early))
        loaded, loading = time.perf_counter() - began, max(held)
        held.clear()
        for number in range(200):
            if number % 4 == 0:
                await reader.add(words.agent(20_000 + number))
            if number % 8 == 1:
                await reader.remove(f"agent-{number}")
            began = time.perf_counter()
            await reader.search(words.text(5))
            laps.append(time.perf_counter() - began)
    await reader.aclose()
    await database.aclose()
    laps.sort()
    extra = {
        "held_ms": round(max(held) * 1e3, 2),
        "held_loading_ms": round(loading * 1e3, 2),
        "loaded_seconds": round(loaded, 1),
        "first_ms": round(early[0] * 1e3, 1) if early else None,
        "early_p99_ms": round(percentile(sorted(early), 0.99) * 1e3, 1) if early else None,
        "early": len(early),
        "turns": len(held),
    }
    return Row("search_loop", p50_ms=percentile(laps, 0.5) * 1e3, p99_ms=percentile(laps, 0.99) * 1e3, extra=extra)
