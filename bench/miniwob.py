"""MiniWoB++ as an examination: each task's sentence goes to our command path, without a language model.

The pages come from the package miniwob, installed without its dependencies into a cache folder, and are served on
loopback. ``strict`` counts episodes with the full reward, ``lenient`` those with any, ``wrong`` those that ended with
a penalty, and ``false_done`` those called done without the full reward. A control that only presses the
submit button is measured beside it: what it gets was not earned by understanding.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Options, Result, Row, bench, say

__all__ = ["examine", "pages", "run", "serve"]

VERSION = "1.1.0"
SEEDS = (900, 901, 902)
EPISODE_SECONDS = 25.0
_FULL = 0.99
_START = """
([seed, ms]) => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = ms;
  core.startEpisodeReal();
  // The display of the reward does not belong to the page that is examined.
  for (const id of ["reward-display", "click-canvas"]) {
    const element = document.getElementById(id);
    if (element) element.style.display = "none";
  }
  const sentence = core.getUtterance();
  return typeof sentence === "string" ? sentence : sentence.utterance;
}
"""
_OUTCOME = "() => WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : null"

Agent = Callable[[Any, str], Awaitable[object]]


def pages() -> Path:
    """The folder of the pages; fetched the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent3" / "bench" / f"miniwob-{VERSION}"
    folder = cache / "miniwob" / "html"
    if not folder.is_dir():
        say(f"installing miniwob {VERSION} without its dependencies …")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(cache)]
        subprocess.run([*command, f"miniwob=={VERSION}"], check=True, timeout=300)
    return folder


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a folder of pages, on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


async def examine(
    tasks: Sequence[str], seeds: Sequence[int], agent: Agent, *, at_once: int = 2
) -> list[dict[str, Any]]:
    """Run every task with every seed; one dict per episode with task, seed, sentence, reward and seconds."""
    from agent3.protocols.nlweb.browser.installation import require
    from agent3.protocols.nlweb.browser.sdk import playwright

    waiting = list(tasks)
    results: list[dict[str, Any]] = []
    with serve(pages()) as base:
        async with playwright().async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=str(require().path))

            async def work() -> None:
                page = await browser.new_page(viewport={"width": 500, "height": 320})
                while waiting:
                    task = waiting.pop(0)
                    results.extend([await _episode(page, base, task, seed, agent) for seed in seeds])

            await asyncio.gather(*(work() for _ in range(at_once)))
            await browser.close()
    return results


async def _episode(page: Any, base: str, task: str, seed: int, agent: Agent) -> dict[str, Any]:
    """One try. One that fails in any way gets no reward."""
    began = time.perf_counter()
    row: dict[str, Any] = {"task": task, "seed": seed, "sentence": "", "reward": 0.0, "fault": "", "claimed": False}
    try:
        await page.goto(f"{base}miniwob/{task}.html")
        row["sentence"] = await page.evaluate(_START, [seed, int((EPISODE_SECONDS + 30) * 1000)])
        told = await asyncio.wait_for(agent(page, row["sentence"]), EPISODE_SECONDS)
        row["claimed"] = bool(getattr(told, "complete", False))
        row["reward"] = await _read_reward(page)
    except Exception as error:  # noqa: BLE001 - an examination counts, it does not stop
        row["fault"] = f"{type(error).__name__}: {str(error)[:100]}"
        row["reward"] = await _read_reward(page)
    row["seconds"] = time.perf_counter() - began
    return row


async def _read_reward(page: Any) -> float:
    """The reward that the page gave; nothing if it is not done after a moment."""
    for _ in range(4):
        try:
            outcome = await page.evaluate(_OUTCOME)
        except Exception:  # noqa: BLE001 - the page went away: then there is no reward
            return 0.0
        if outcome is not None:
            return float(outcome)
        await asyncio.sleep(0.1)
    return 0.0


async def drive_sentence(page: Any, sentence: str) -> object:
    """What is examined: the sentence on the page, as ``agent3 web run URL`` does it."""
    from agent3.protocols.nlweb.driver import drive

    return await drive(page, sentence)


async def press_submit(page: Any, _: str) -> None:
    """The control: press the submit button and nothing else."""
    button = page.get_by_text("Submit", exact=True).first
    if await button.count():
        await button.click(timeout=800)


@bench("miniwob", "MiniWoB++ tasks done from their sentence alone, without a language model (--seeds, --tasks)")
def run(options: Options) -> Result:
    """Examine on the chosen seeds and tasks; rounds and load do not apply."""
    known = sorted(path.stem for path in (pages() / "miniwob").glob("*.html"))
    tasks = list(options.tasks or known)
    if unknown := sorted(set(tasks) - set(known)):
        raise SystemExit(f"no such task: {unknown[0]}; there are {', '.join(known)}")
    seeds = list(options.seeds or SEEDS)
    ours = asyncio.run(examine(tasks, seeds, drive_sentence))
    control = asyncio.run(examine(tasks, seeds, press_submit))
    by_task = {task: [result for result in ours if result["task"] == task] for task in sorted(tasks)}
    rows = [make_row("ours", ours), make_row("submit_only", control)]
    rows += [make_row(f"task {task}", results) for task, results in by_task.items()]
    return Result(
        rows,
        {
            "strict": _rate(ours, _FULL),
            "lenient": _rate(ours, 1e-9),
            "wrong": _share(ours, [result for result in ours if result["reward"] < 0]),
            "false_done": _share(ours, [one for one in ours if one["claimed"] and one["reward"] < _FULL]),
            "strict_submit_only": _rate(control, _FULL),
        },
    )


def make_row(target: str, results: Sequence[dict[str, Any]]) -> Row:
    """The row of a report: how many episodes were rewarded, wholly and at all, and how long they took."""
    took = sorted(result["seconds"] * 1e3 for result in results)
    extra = {"strict": _rate(results, _FULL), "lenient": _rate(results, 1e-9), "episodes": len(results)}
    return Row(target, p50_ms=statistics.median(took), p99_ms=took[int(len(took) * 0.99)], extra=extra)


def _rate(results: Sequence[dict[str, Any]], least: float) -> float:
    return _share(results, [result for result in results if result["reward"] >= least])


def _share(results: Sequence[dict[str, Any]], some: Sequence[dict[str, Any]]) -> float:
    return round(len(some) / len(results), 4) if results else 0.0
