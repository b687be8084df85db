"""kill -9 under sixteen producers and four consumers: no acknowledged message is lost, none is acknowledged twice.

The child puts, claims and acknowledges, and writes a line to a witness file after each acknowledgement. The parent
kills it, or the PostgreSQL under it, at random moments, and at the end compares the queue with the witness. What is
done is kept in the archive, so that a message that is gone is a message that is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent3.errors import StorageError
from agent3.queue import Lease, Queue, QueueFull, Rules
from agent3.storage import Database, open_database
from faults._postgres import postgres
from faults.registry import Result, fault

KILLS = 100
SERVER_KILLS = 20
PRODUCERS = 16
CONSUMERS = 4
RULES = Rules(bound=2_000, attempts=1_000, lease=1.0, keep_done=86_400.0, poll=0.2)
PAUSED = Rules(lease=1.0, poll=0.1)


@fault("kill-queue")
def kill_queue(seed: int, kills: int = KILLS) -> Result:
    """kill -9 of a process with 16 producers and 4 consumers, 100 times: nothing lost, nothing acknowledged twice."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-queue-") as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/house.db"
        starts = [_live_and_die(url, folder, number, chance) for number in range(kills)]
        return judged(url, folder) | {"kills": kills, "slowest_start": max(filter(None, starts), default=None)}


@fault("kill-postgres")
def kill_postgres(seed: int, kills: int = SERVER_KILLS) -> Result:
    """kill -9 of PostgreSQL under the same queue, 20 times: nothing lost, nothing acknowledged twice, it goes on."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-queue-") as name, postgres() as server:
        folder = Path(name)
        with working(server.url, folder, 0) as child:
            for _ in range(kills):
                time.sleep(chance.uniform(0.8, 2.0))
                server.kill()
                server.start()
            time.sleep(2.0)
            survived = child.poll() is None
        result = judged(server.url, folder)
        return result | {"ok": result["ok"] and survived, "kills": kills, "survived": survived}


@fault("pause-queue")
def pause_queue(_: int) -> Result:
    """SIGSTOP of a consumer past its lease, on both databases: another takes over, the late ack is refused."""
    with tempfile.TemporaryDirectory(prefix="agent3-pause-queue-") as name, postgres() as server:
        results = {"sqlite": _paused(f"sqlite:///{name}/house.db"), "postgres": _paused(server.url)}
    return {"ok": all(one == {"taken_over": True, "late_ack": "False"} for one in results.values()), **results}


def _live_and_die(url: str, folder: Path, number: int, chance: random.Random) -> float | None:
    """The seconds from opening the database to the first acknowledged put; None if it was killed before."""
    with _child(["work", url, str(folder), str(number)]) as child:
        assert child.stdout is not None
        # Every fifth one is killed at any moment of its start.
        if number % 5 == 4:
            time.sleep(chance.uniform(0.2, 0.9))
            return None
        line = child.stdout.readline().split()
        if not line:
            raise RuntimeError(f"Worker {number} ended by itself with code {child.wait(10)}.")
        time.sleep(chance.uniform(0.0, 0.6))
        return float(line[1])


@contextmanager
def working(url: str, folder: Path, number: int, armed: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A child at work, with failpoints armed if they are named."""
    with _child(["work", url, str(folder), str(number)], AGENT3_FAILPOINTS=armed) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError(f"The worker ended by itself with code {child.wait(10)}.")
        yield child


@contextmanager
def _child(arguments: Sequence[str], **more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "faults.kill_queue", *arguments]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


# The child


async def _work_until_killed(url: str, folder: Path, number: int) -> None:
    began = time.monotonic()
    database = await open_database(url)
    queue = Queue(database, "faults", RULES)
    witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def producer(who: int) -> None:
        for turn in range(1_000_000):
            name = f"{number}-{who}-{turn}"
            await _put(queue, name, f"{number}-{who}" if who % 2 else None)
            os.write(witness, f"put {name}\n".encode())
            if not turn and not who:
                print(f"working {time.monotonic() - began:.3f}", flush=True)

    async def consumer(who: int) -> None:
        chance = random.Random(f"{number}-{who}")
        while True:
            try:
                leases = await queue.claim(16, wait=0.5)
                await asyncio.gather(
                    *(_consume(queue, lease, witness, fails=chance.random() < 0.05) for lease in leases)
                )
            except StorageError:
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for who in range(PRODUCERS):
            group.create_task(producer(who))
        for who in range(CONSUMERS):
            group.create_task(consumer(who))


async def _put(queue: Queue, name: str, context: str | None) -> None:
    """Until it is acknowledged; the key makes the repetition harmless when nobody knows what became of the first."""
    while True:
        try:
            await queue.put(name.encode(), id=name, key=name, context=context, priority=len(name) % 3)
            return
        except (QueueFull, StorageError):
            await asyncio.sleep(0.02)


async def _consume(queue: Queue, lease: Lease, witness: int, *, fails: bool) -> None:
    if fails:
        await queue.nack(lease, "now and then", delay=0.01)
    elif await queue.ack(lease):
        os.write(witness, f"ack {lease.id}\n".encode())


# The judge


def judged(url: str, folder: Path) -> Result:
    """What is left in the queue against what the children were told."""
    return asyncio.run(asyncio.wait_for(_judge(url, folder / "witness"), 120))


async def _judge(url: str, witness: Path) -> Result:
    """The queue against the witness."""
    database = await open_database(url)
    try:
        rows = await database.all("SELECT id, state FROM queue_messages WHERE queue = 'faults'")
        check = await database.check(thorough=True)
        result = _compared(witness.read_text().splitlines(True), [(row["id"], row["state"]) for row in rows])
        left = await _drained(database)
    finally:
        await database.aclose()
    live = sum(row["state"] not in ("done", "dead") for row in rows)
    ok = result["ok"] and check["integrity"] == "ok" and left == live
    return result | {"ok": ok, "delivered_afterwards": left, "integrity": check["integrity"]}


def _compared(lines: Sequence[str], rows: Sequence[tuple[str, str]]) -> Result:
    """What the witness saw against what is there. A line without its end was cut off by the kill."""
    words = [line.split() for line in lines if line.endswith("\n")]
    put = {name for what, name in words if what == "put"}
    acked = Counter(name for what, name in words if what == "ack")
    state = dict(rows)
    faults = {
        "lost": sum(name not in state for name in put | set(acked)),
        "acks_undone": sum(state.get(name) != "done" for name in acked),
        "acked_twice": sum(count > 1 for count in acked.values()),
        "doubled": len(rows) - len(state),
        "out_of_order": _out_of_order([name for what, name in words if what == "ack"]),
    }
    return {
        "ok": bool(put) and bool(acked) and not any(faults.values()),
        "acknowledged_puts": len(put),
        "acknowledged_acks": len(acked),
        **faults,
    }


def _out_of_order(acked: Sequence[str]) -> int:
    """Of producers with a context, the messages that were acknowledged after a later one."""
    last: dict[str, int] = defaultdict(lambda: -1)
    wrong = 0
    for name in acked:
        context, _, turn = name.rpartition("-")
        if int(context.rpartition("-")[2]) % 2:
            wrong += int(turn) <= last[context]
            last[context] = int(turn)
    return wrong


async def _drained(database: Database) -> int:
    """How many are still handed out, each once."""
    queue = Queue(database, "faults", RULES)
    count = 0
    while leases := await queue.claim(500, lease=60.0, wait=1.5):
        count += sum(await asyncio.gather(*(queue.ack(lease) for lease in leases)))
    await queue.aclose()
    return count


# The consumer that is paused


def _paused(url: str) -> Result:
    with _child(["hold", url]) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()  # it holds the message now
        os.kill(child.pid, signal.SIGSTOP)
        taken = asyncio.run(asyncio.wait_for(_take_over(url), 60))
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.write(b"ack\n")
        child.stdin.flush()
        return {"taken_over": taken, "late_ack": child.stdout.readline().decode().strip()}


async def _take_over(url: str) -> bool:
    """Wait for the message that another holds, and do it."""
    database = await open_database(url)
    queue = Queue(database, "paused", PAUSED)
    try:
        leases = await queue.claim(wait=30)
        return bool(leases) and await queue.ack(leases[0])
    finally:
        await queue.aclose()
        await database.aclose()


async def _hold(url: str) -> None:
    database = await open_database(url)
    queue = Queue(database, "paused", PAUSED)
    await queue.put(b"x")
    (lease,) = await queue.claim()
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(await queue.ack(lease), flush=True)
    await database.aclose()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # messages die and connections are lost here on purpose
    if sys.argv[1] == "hold":
        asyncio.run(_hold(sys.argv[2]))
    else:
        asyncio.run(_work_until_killed(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
