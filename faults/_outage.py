"""Callers of an agent outside the gateway, while its database goes away and comes back; all write down what they know.

The agent and the callers live in this process, not in the gateway's: each writes a line to the disk, with fsync, before
it goes on. The judge knows nothing but these lines and what the gateway says of each job in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from faults._gateway import asking
from faults.registry import Result

__all__ = ["Told", "judge", "watch_outage"]

CALLERS = 3
"""Of each kind."""
PATIENCE = 40.0
"""Seconds in which every job must have ended once the database is back."""
STORAGE = frozenset({"storage_failed", "storage_unsure"})


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a call: how it was made, of what, its name, its status, its error, its result and its job."""

    how: str
    what: str
    name: str
    status: int
    code: str = ""
    result: str = ""
    job: str = ""
    retry_after: str | None = None


@dataclass(slots=True)
class _Witness:
    """A file to which lines are added, each on the disk before it is true."""

    file: int

    def note(self, line: object) -> None:
        os.write(self.file, json.dumps(line).encode() + b"\n")
        os.fsync(self.file)


@dataclass(slots=True)
class _Scene:
    """The gateway, the client, and the witness of each side."""

    url: str
    session: aiohttp.ClientSession
    client: _Witness
    told: list[Told] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, how: str, what: str, name: str) -> Told:
        """One call; never raises."""
        body: dict[str, Any] = {"agentId": "shop", "capability": what, "input": {"name": name}}
        headers = {"Prefer": "respond-async"} if how == "detached" else {}
        if how == "keyed":
            body["metadata"] = {"idempotencyKey": name}
        try:
            async with self.session.post(f"{self.url}/v1/call", json=body, headers=headers) as answer:
                found = await answer.json()
                error = found.get("error")
                code = (error.get("code") if isinstance(error, dict) else None) or found.get("errorCode") or ""
                told = Told(
                    how,
                    what,
                    name,
                    answer.status,
                    str(code),
                    json.dumps(found.get("result")),
                    str(found.get("job") or ""),
                    answer.headers.get("Retry-After"),
                )
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            told = Told(how, what, name, 0, type(error).__name__)
        self.client.note([told.how, told.what, told.name, told.status, told.code, told.job])
        self.told.append(told)
        return told

    async def keep_calling(self, how: str, what: str, number: int) -> None:
        """Call until it is time to stop; with a key, the same again until there is an answer."""
        count = 0
        while not self.stop.is_set():
            count += 1
            name = f"{how}-{what}-{number}-{count}"
            told = await self.call(how, what, name)
            until = asyncio.get_running_loop().time() + PATIENCE
            while how == "keyed" and _is_open(told) and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.25)
                told = await self.call(how, what, name)
            await asyncio.sleep(0.02 if told.status in (200, 202) else 0.2)

    async def keep_reading(self) -> None:
        """Search all the time."""
        while not self.stop.is_set():
            try:
                async with self.session.post(f"{self.url}/v1/search", json={"query": "order something"}) as answer:
                    found = await answer.json()
                    said = "ok" if answer.status == 200 and found.get("agents") else str(found)[:200]
            except (aiohttp.ClientError, OSError, ValueError) as error:
                said = f"{type(error).__name__}: {error}"[:200]
            self.reads[said] += 1
            await asyncio.sleep(0.1)

    async def ends(self) -> dict[str, dict[str, Any]]:
        """How every acknowledged job ended, by its name."""
        found = {}
        for told in self.told:
            if told.how == "detached" and told.job:
                found[told.name] = await self._end(told.job)
        return found

    async def _end(self, job: str) -> dict[str, Any]:
        """How a job ended, asked again where the answer is cut off; it is working still where none came in time."""
        until = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < until:
            try:
                async with self.session.get(f"{self.url}/v1/calls/{job}?wait={int(PATIENCE)}") as answer:
                    end: dict[str, Any] = await answer.json()
                    return end
            except (aiohttp.ClientError, OSError, ValueError):
                await asyncio.sleep(0.25)
        return {"status": "working"}


def _is_open(told: Told) -> bool:
    """Whether a caller with a key does not know yet how its call ended."""
    return told.status in (0, 202) or told.code in STORAGE


@asynccontextmanager
async def _shop(diary: _Witness, done: list[tuple[str, str]]) -> AsyncIterator[str]:
    """An HTTP service that writes down what it did: ``look`` may be repeated, ``order`` may not."""

    async def serve(request: web.Request) -> web.Response:
        what = request.path.strip("/")
        name = request.query.get("name") or (await request.json())["name"]
        diary.note([what, name])
        done.append((what, name))
        await asyncio.sleep(0.05)
        return web.json_response({"did": name})

    app = web.Application()
    app.add_routes([web.get("/look", serve), web.post("/order", serve)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _document(address: str) -> dict[str, Any]:
    text = {"type": "string"}
    body = {"type": "object", "properties": {"name": text}, "required": ["name"]}
    answers = {"200": {"description": "What it did"}}
    look = {"in": "query", "name": "name", "required": True, "schema": text}
    order = {"content": {"application/json": {"schema": body}}, "required": True}
    return {
        "openapi": "3.1.0",
        "info": {"title": "shop", "version": "1"},
        "servers": [{"url": address}],
        "paths": {
            "/look": {
                "get": {"operationId": "look", "summary": "Look", "parameters": [look], "responses": answers},
            },
            "/order": {
                "post": {
                    "operationId": "order",
                    "summary": "Order something",
                    "requestBody": order,
                    "responses": answers,
                }
            },
        },
    }


async def watch_outage(folder: Path, url: str, outage: Callable[[], Awaitable[None]]) -> Result:
    """Callers of every kind at a gateway while ``outage`` happens; what is wrong by the witnesses."""
    done: list[tuple[str, str]] = []
    diary, client = (_Witness(os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)) for name in "ab")
    try:
        async with _shop(diary, done) as address, asking() as session:
            source = {"name": "shop", "source": _document(address)}
            async with session.post(f"{url}/v1/agents", json=source) as answer:
                assert answer.status == 201, await answer.text()
            scene = _Scene(url, session, client)
            kinds = [(how, what) for how in ("detached", "keyed", "plain") for what in ("look", "order")]
            callers = [
                asyncio.create_task(scene.keep_calling(how, what, number))
                for how, what in kinds
                for number in range(CALLERS)
            ]
            callers.append(asyncio.create_task(scene.keep_reading()))
            try:
                await asyncio.sleep(1.5)
                await outage()
                await asyncio.sleep(1.5)
            finally:
                scene.stop.set()
                await asyncio.gather(*callers)
            ends = await scene.ends()
            after = [await scene.call(how, what, f"after-{how}-{what}") for how, what in kinds[2:]]
            return judge(scene.told, ends, done, scene.reads, after)
    finally:
        os.close(diary.file)
        os.close(client.file)


def judge(
    told: list[Told],
    ends: dict[str, dict[str, Any]],
    done: list[tuple[str, str]],
    reads: Counter[str],
    after: list[Told],
) -> Result:
    """What is wrong: by what the agent did, what the callers were told, and how the jobs ended."""
    times = Counter(done)
    last = {one.name: one for one in told}
    keyed = [one for one in last.values() if one.how == "keyed"]
    refused = [one for one in told if one.status not in (200, 202)]
    codes = {name: str(end.get("errorCode") or "") for name, end in ends.items()}
    faults = {
        "order_done_twice": sum(count > 1 for (what, _), count in times.items() if what == "order"),
        "told_done_and_not_done": sum(one.status == 200 and not times[one.what, one.name] for one in told),
        "wrong_answers": sum(one.status == 200 and f'"{one.name}"' not in one.result for one in told),
        "turn_taken": sum(one.code == "turn_taken" for one in told),
        "jobs_failed": sum(code not in ("", "interrupted") for code in codes.values()),
        "looks_not_done": sum(code != "" for name, code in codes.items() if "-look-" in name),
        "jobs_not_ended": sum(end.get("status") == "working" for end in ends.values()),
        "keyed_without_an_end": sum(one.status != 200 and one.code != "interrupted" for one in keyed),
        "keyed_looks_not_done": sum(one.status != 200 for one in keyed if one.what == "look"),
        "refused_without_a_time": sum(one.code == "storage_failed" and not one.retry_after for one in refused),
        "searches_failed": sum(count for said, count in reads.items() if said != "ok"),
        "broken_afterwards": sum(one.status != 200 for one in after),
    }
    ok = not any(faults.values()) and len(ends) >= 10 and len(keyed) >= 5 and bool(refused)
    return {
        "ok": ok,
        "jobs": len(ends),
        "jobs_interrupted": sum(code == "interrupted" for code in codes.values()),
        "keys": len(keyed),
        "keys_interrupted": sum(one.code == "interrupted" for one in keyed),
        "calls": len(told),
        "refusals": dict(Counter(one.code for one in refused)),
        "searches": dict(reads),
        "wrong": {what: count for what, count in faults.items() if count},
    }
