"""Commands to named actions: the sites of a file with their actions, and sentences, some of which no action is for.

A wrong action is counted apart from one that was not chosen, which only costs a question; ``acted`` are sentences that
no action is for and one was chosen. ``by_words`` is without the extra ``semantic``.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agent3.arrays import np
from agent3.directory.choice import Choices
from agent3.directory.meaning import Encoder, encode_agent, load_encoder
from agent3.model import Agent, Capability
from agent3.sentences import find_prohibition
from bench.harness import Options, Result, Row, bench, say

__all__ = ["OPEN", "measure", "run_site"]

NOW = 1_795_000_000.0
OPEN = Path(__file__).parent / "exams" / "commands.json"
"""Twelve sites with 284 sentences. The bounds were tuned on them."""


def read_choices(name: str, offered: list[Capability], encoder: Encoder | None) -> Choices:
    """What there is to choose from on a site."""
    agent = Agent(id=name, name=name, capabilities=tuple(offered))
    vectors = None if encoder is None else encode_agent(encoder, agent).astype(np.float32) / np.float32(127)
    return Choices(offered, encoder, vectors)


def _understand(sentence: str, offered: list[Capability], choices: Choices) -> Capability | None:
    """The action that a caller's sentence is read for; none where it forbids, before anything is chosen."""
    return None if find_prohibition(sentence, reading=True) else choices.choose(offered, sentence, NOW)


def run_site(site: dict[str, Any], encoder: Encoder | None, *, tell: bool = False) -> Counter[str]:
    """How many sentences were right, wrong, asked about, rightly left alone or acted on."""
    offered = [
        Capability(name=one["name"], description=one["description"], phrases=tuple(one["phrases"]))
        for one in site["actions"]
    ]
    choices, tally = read_choices(site["name"], offered, encoder), Counter[str]()
    for case in site["cases"]:
        found, wanted = _understand(case["sentence"], offered, choices), case["action"]
        chosen = None if found is None else found.name
        if wanted is None:
            verdict = "left_alone" if chosen is None else "acted"
        else:
            verdict = "asked" if chosen is None else "right" if chosen == wanted else "wrong"
        tally[verdict] += 1
        if tell and verdict in ("acted", "wrong"):
            say(f"{site['name']} {verdict}: {case['sentence']!r} -> {chosen}, not {wanted}")
    return tally


def _many(encoder: Encoder | None) -> float:
    """Milliseconds of processor time for a sentence to a site of 150 actions."""
    names = [f"{verb}_{noun}" for verb in "book search cancel list check update rate share track compare".split()
             for noun in "flights hotels rooms cars trains tickets tables menus orders events songs films books pens"
             " bags".split()]  # fmt: skip
    offered = [Capability(name=one, description=one.replace("_", " ")) for one in names]
    choices = read_choices("Many", offered, encoder)
    said = (
        "find me a place to sleep in Porto",
        "compare the trains to Vienna on Monday",
        "order a pizza",
        "valora el hotel",
    )
    for sentence in said:
        choices.choose(offered, sentence, NOW)
    began = time.process_time()
    for sentence in said * 10:
        choices.choose(offered, sentence, NOW)
    return (time.process_time() - began) / (10 * len(said)) * 1e3


@bench(
    "commands", "Sentences of a FILE for the named actions of sites: right, wrong, asked; and those no action is for"
)
def measure(options: Options) -> Result:
    """Every site by words and meaning, and by words alone; then the time with 150 actions."""
    if len(options.files) > 1:
        raise SystemExit("Give one file, or none: python -m bench commands [FILE]")
    exam = json.loads(Path(options.files[0] if options.files else OPEN).read_text())
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    for way, encoder in {"by_words": None, "by_meaning": load_encoder()}.items():
        if way == "by_meaning" and encoder is None:
            continue
        total = Counter[str]()
        for site in exam["sites"]:
            total += run_site(site, encoder, tell=encoder is not None)
        meant, foreign = total["right"] + total["wrong"] + total["asked"], total["left_alone"] + total["acted"]
        rows.append(Row(way, p50_ms=_many(encoder), errors=total["wrong"] + total["acted"], extra=dict(total)))
        ratios |= {
            f"{way}_right": round(total["right"] / max(1, meant), 3),
            f"{way}_wrong": round(total["wrong"] / max(1, meant), 3),
            f"{way}_acted": round(total["acted"] / max(1, foreign), 3),
        }
    return Result(rows, ratios)
