"""Failpoints: what strikes where, by which chance, and that nothing does unless it is armed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent3 import failpoints
from agent3.errors import SetupError, StorageError, Unavailable
from agent3.model import Done, Failed
from agent3.protocols.functions import LocalAgent
from agent3.storage import open_database
from tests.support.home import home, run
from tests.support.storage import PUT, put

ROOT = Path(__file__).resolve().parent.parent

agent = LocalAgent("shop")


@agent.capability
async def pay(amount: int) -> str:
    """Pay for it."""
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def strikes(text: str, name: str, times: int, seed: int = 0) -> list[int]:
    """Which of so many times a place strikes."""
    found = failpoints.read(text, seed)
    assert found is not None
    struck = []
    for number in range(1, times + 1):
        try:
            found.hit(name, StorageError)
        except StorageError:
            struck.append(number)
    return struck


def test_every_place_is_documented_and_passed_somewhere() -> None:
    page = (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8")
    sources = [one for one in (ROOT / "src").rglob("*.py") if one.name != "failpoints.py"]
    passed = set(
        re.findall(r'failpoints\.(?:hit|reach)\("([\w.]+)"', "".join(one.read_text("utf-8") for one in sources))
    )
    assert passed == set(failpoints.POINTS)
    assert passed <= set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))


def test_nothing_strikes_unless_it_is_armed() -> None:
    assert failpoints.read("") is None
    for name in failpoints.POINTS:
        failpoints.hit(name)
        asyncio.run(failpoints.reach(name))


def test_a_place_that_is_not_armed_costs_next_to_nothing() -> None:
    rounds = 100_000
    best = min(timeit.repeat(lambda: failpoints.hit("storage.commit"), number=rounds, repeat=5)) / rounds
    assert best < 2e-6


def test_one_time_only_or_by_a_chance_that_the_seed_repeats() -> None:
    assert strikes("ledger.write=error:#3", "ledger.write", 10) == [3]
    assert strikes("ledger.write=error", "ledger.write", 4) == [1, 2, 3, 4]
    assert strikes("ledger.write=error:0", "ledger.write", 100) == []
    by_chance = strikes("ledger.write=error:0.2", "ledger.write", 1_000, seed=7)
    assert 120 < len(by_chance) < 280
    assert strikes("ledger.write=error:0.2", "ledger.write", 1_000, seed=7) == by_chance
    assert strikes("ledger.write=error:0.2", "ledger.write", 1_000, seed=8) != by_chance


def test_what_one_place_does_is_not_changed_by_others() -> None:
    alone = strikes("ledger.write=error:0.5", "ledger.write", 50)
    beside = failpoints.read("ledger.write=error:0.5,job.claim=error:0.5")
    assert beside is not None
    found = []
    for number in range(1, 51):
        for name in ("job.claim", "ledger.write"):
            try:
                beside.hit(name, StorageError)
            except StorageError:
                found += [number] if name == "ledger.write" else []
    assert found == alone


def test_a_delay_waits_and_then_goes_on() -> None:
    failpoints.arm("call.before_send=delay:20ms,storage.commit=delay:0.02s")

    async def timed() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await failpoints.reach("call.before_send")
        failpoints.hit("storage.commit")
        return loop.time() - before

    assert asyncio.run(timed()) >= 0.039


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere=error", "unknown place 'nowhere'.*storage.commit"),
        ("ledger.write=explode", "cannot be read"),
        ("ledger.write", "cannot be read"),
        ("ledger.write=error:x", "cannot be read"),
        ("ledger.write=error:1:2", "cannot be read"),
        ("ledger.write=error:#0", "cannot be read"),
        ("ledger.write=delay", "has no duration"),
        ("ledger.write=delay:5min", "has no duration"),
        ("storage.committed=error", "can no longer fail"),
    ],
)
def test_what_is_written_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        failpoints.read(text)


def test_a_commit_that_fails_leaves_nothing_behind_and_the_next_one_works() -> None:
    async def story() -> None:
        database = await open_database("sqlite://")
        try:
            # Not only the first: a gateway of another test in this process may commit as well.
            failpoints.arm("storage.commit=error:1")
            with pytest.raises(StorageError, match=r"storage\.commit"):
                await database.write(put("lost", 1))
            failpoints.disarm()
            await database.write(put("kept", 1))
            rows = await database.all("SELECT name FROM counters")
            assert [row["name"] for row in rows] == ["kept"]
        finally:
            await database.aclose()

    run(story())


def test_a_ledger_that_cannot_be_written_fails_the_call_and_is_written_later() -> None:
    async def story() -> None:
        async with home(agent) as core:
            failpoints.arm("ledger.write=error:#1")
            with pytest.raises(StorageError):
                await core.call("pay", {"amount": "much"})
            failpoints.disarm()
            await core.core.ledger.flush()
            rows = await core.core.database.all("SELECT code FROM calls")
            assert [row["code"] for row in rows] == ["invalid_input"]

    run(story())


def test_what_failed_before_it_was_sent_is_tried_again_and_what_failed_after_is_not() -> None:
    async def story() -> None:
        async with home(agent) as core:
            failpoints.arm("call.before_send=error:#1")
            unsent = await core.call("pay", {"amount": 2})
            assert isinstance(unsent, Done)
            failpoints.arm("call.after_send=error:#1")
            outcome = await core.call("pay", {"amount": 2})
            assert isinstance(outcome, Failed)
            assert (outcome.code, outcome.sent) == (Unavailable.code, True)

    run(story())


def test_a_process_is_killed_where_its_environment_says(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom agent3.storage import open_database\n"
        "async def main():\n"
        "    database = await open_database(sys.argv[1])\n"
        f"    await database.many({PUT!r}, [('one', 1)])\n"
        "    print('acknowledged', flush=True)\n"
        "asyncio.run(main())\n"
    )
    url = f"sqlite:///{tmp_path / 'killed.db'}"

    async def count() -> int:
        database = await open_database(url)
        try:
            row = await database.one("SELECT COUNT(*) AS n FROM counters")
            assert row is not None
            return int(row["n"])
        finally:
            await database.aclose()

    run(count())  # the schema is there: what commits next is the row
    kept = []
    for place in ("storage.commit", "storage.committed"):
        # Opening commits once, to look for migrations: the row is the second commit.
        environment = {**os.environ, "AGENT3_FAILPOINTS": f"{place}=kill:#2"}
        done = subprocess.run(
            [sys.executable, "-c", code, url], env=environment, cwd=ROOT, capture_output=True, timeout=240, check=False
        )
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
        kept.append(run(count()))
    assert kept == [0, 1]


def test_a_wrong_environment_is_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "AGENT3_DATA": str(tmp_path), "AGENT3_FAILPOINTS": "nowhere=error"}
    done = subprocess.run(
        [sys.executable, "-m", "agent3", "dlq", "list"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("agent3: AGENT3_FAILPOINTS: unknown place 'nowhere'")
