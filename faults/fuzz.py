"""Rubbish for every decoder and for every operation of the REST door, for a bounded time.

Decoders are fed by atheris where it is installed (``pip install atheris``), else by mutations of seeds. Operations are
taken from ``/openapi.json``, and called with values that fit their schemas more or less; by schemathesis too where that
is installed. Nothing may crash, answer 5xx, take a second, or hold the event loop for a tenth of one. What the loop
waited for the processor is told apart from its own work, and slow answers are told and not judged where the machine has
more to do than it has processors.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from faults._decoders import ASIDE, DECODERS, LONGEST, decode
from faults._gateway import asking, gateway
from faults.registry import Result, fault

EACH_SECONDS = 3.0
"""For each decoder."""
DOOR_SECONDS = 30.0
SLOW_SECONDS = 1.0
HELD_SECONDS = 0.1
SEEDS = (
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a", "arguments": {"x": [1, 2.5, null]}}}',
    b"event: message\ndata: {}\nid: 7\nretry: 10\n\n: comment\n\n",
    b"<div><p class='a'>Hello <b>you</b><script>alert(1)</script></p><!-- c --></div>",
    b"Order two large pizzas for tomorrow at 7 pm, but no onions. Don't pay.",
    b'{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"pattern": "^(a+)+$"}}}',
    b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    b"user:pw@host/a/${vault:name}?key=env:NAME&b=%20",
    b"fly from {origin} to {destination} {a}{b}{c}\nfly from here to there a b c d",
    b"abcdefabcdef.AAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAA",
    b'{"record": {"number": 1, "at": 1, "kind": "open", "what": "", "who_digest": "", "detail": "{}", "link": ""}}',
)


@fault("fuzz")
def fuzz(seed: int, each: float = EACH_SECONDS, door: float = DOOR_SECONDS) -> Result:
    """Rubbish for every decoder and every operation of /openapi.json: no crash, no 5xx, nothing slow, no held loop."""
    decoders = _fuzz_decoders(seed, each)
    operations = _fuzz_door(seed, door)
    return {**decoders, **operations, "ok": operations["ok"] and not decoders["crashes"]}


def _fuzz_decoders(seed: int, each: float) -> Result:
    crashes, cases, slowest = [], 0, 0.0
    by_atheris = importlib.util.find_spec("atheris") is not None
    for name in DECODERS:
        if by_atheris:
            count, crash = _run_atheris(name, seed, each)
        else:
            count, crash, slow = _mutate(name, random.Random(f"{seed} {name}"), each)
            slowest = max(slowest, slow)
        cases += count
        if crash:
            crashes.append(f"{name}: {crash}")
    timed = {} if by_atheris else {"slowest_decoding_ms": round(slowest * 1_000, 1)}
    return {"decoders": len(DECODERS), "by": "atheris" if by_atheris else "mutations", "cases": cases, **timed,
            "crashes": crashes}  # fmt: skip


def _run_atheris(name: str, seed: int, seconds: float) -> tuple[int, str]:
    with tempfile.TemporaryDirectory(prefix="agent3-fuzz-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "faults._atheris", name, str(max(1, round(seconds))), str(seed % 2**31)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=seconds + 120,
            check=False,
        )
    found = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    crash = "" if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr[-800:]}"
    return int(found[1]) if found else 0, crash


def _mutate(name: str, chance: random.Random, seconds: float) -> tuple[int, str, float]:
    decode(name, SEEDS[0])  # what is loaded at the first use is not the case's
    ends, cases, slowest = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < ends:
        raw = _mutated(chance)
        began = time.thread_time()
        try:
            decode(name, raw)
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            return cases, f"{type(error).__name__}: {error} by {raw!r}"[:500], slowest
        slowest = max(slowest, time.thread_time() - began)
        cases += 1
    late = slowest > (SLOW_SECONDS if name in ASIDE else HELD_SECONDS)
    return cases, f"{slowest * 1_000:.0f} ms of CPU for at most {LONGEST} bytes" if late else "", slowest


def _mutated(chance: random.Random) -> bytes:
    raw = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randrange(12)):
        at = chance.randrange(len(raw) + 1)
        match chance.randrange(5):
            case 0:
                raw[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 1:
                del raw[at : at + chance.randrange(1, 9)]
            case 2:
                raw[at:at] = chance.choice(SEEDS)[: chance.randrange(1, 60)]
            case 3:
                raw[at:at] = raw[at : at + 20] * chance.randrange(1, 30)
            case _:
                raw[at:at] = chance.choice((b"[", b"{", b"<", b"\xff", b"\x00", b"\xed\xa0\x80", b"9" * 40, b"\\u0000"))
    return bytes(raw[:LONGEST])


# The REST door


def _fuzz_door(seed: int, seconds: float) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="agent3-fuzz-") as name,
        gateway(Path(name), "--demo", config="[limits]\nper_minute = 0\n") as house,
    ):
        told = asyncio.run(asyncio.wait_for(_ask_all(house.url, random.Random(seed), seconds), seconds + 120))
        if shutil.which("schemathesis"):
            told |= _run_schemathesis(house.url, seed)
        told |= asyncio.run(_read_health(house.url))
        log = (Path(name) / "serve.log").read_text()
        told["tracebacks"] = log.count("Traceback (most recent call last)")
        told["held_by"] = re.findall(r"held.*", log)[:5]
    told["busy_machine"] = os.getloadavg()[0] > (os.cpu_count() or 1)
    slow = told["slow"] and not told["busy_machine"]
    wrong = told["server_errors"] or told["tracebacks"] or told["held_over_100_ms"] or slow
    return {"ok": not wrong and told["alive"] and told.get("schemathesis", "ok") == "ok", **told}


async def _ask_all(url: str, chance: random.Random, seconds: float) -> Result:
    count, errors, slow, slowest = 0, [], [], 0.0
    async with asking() as session:
        async with session.get(f"{url}/openapi.json") as answer:
            document = await answer.json()
        operations = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            path, method, operation = operations[count % len(operations)]
            began = time.monotonic()
            status, text = await _ask(session, url, path, method, operation, chance)
            took = time.monotonic() - began
            count, slowest = count + 1, max(slowest, took)
            if status == 0 or (status >= 500 and status != 503):
                errors.append(f"{method} {path}: {status} {text}"[:300])
            if took > SLOW_SECONDS:
                slow.append(f"{method} {path}: {took:.1f} s")
    return {
        "operations": len(operations),
        "requests": count,
        "slowest_s": round(slowest, 2),
        "server_errors": errors[:5],
        "slow": slow[:5],
    }


async def _ask(
    session: aiohttp.ClientSession, url: str, path: str, method: str, operation: dict[str, Any], chance: random.Random
) -> tuple[int, str]:
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace(f"{{{name}}}", quote(_word(chance), safe=""))
    query = {
        one["name"]: _word(chance)
        for one in operation.get("parameters", ())
        if one["in"] == "query" and one["name"] != "wait" and chance.random() < 0.5
    }
    data, headers = None, {"Content-Type": "application/json"}
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        data = json.dumps(_value(schema, chance, 0)).encode() if chance.random() < 0.8 else _mutated(chance)
        if path == "/v1/agents":  # it would be asked what it is, which takes its time
            data = data.replace(b"http", b"x")
    try:
        text = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in query.items())
        where = f"{url}{path}?{text}" if text else f"{url}{path}"
        async with session.request(method, _encoded(where), data=data, headers=headers) as answer:
            return answer.status, (await answer.content.read(300)).decode("utf-8", "replace")
    except (aiohttp.ClientError, OSError) as error:
        return 0, f"{type(error).__name__}: {error}"


def _encoded(where: str) -> Any:
    from yarl import URL

    return URL(where, encoded=True)


def _word(chance: random.Random) -> str:
    known = (
        "echo",
        "pizza",
        "calculator",
        "",
        "0",
        "-1",
        "1e9",
        "../x",
        "%00",
        "a" * 300,
        "\u202ename",
        "🍕",
        "'--",
        "*",
    )
    return chance.choice(known) if chance.random() < 0.7 else _mutated(chance)[:80].decode("utf-8", "replace")


def _value(schema: Any, chance: random.Random, depth: int) -> Any:
    """A value that fits a schema more or less."""
    if chance.random() < 0.1 or not isinstance(schema, dict) or depth > 6:
        return chance.choice((None, True, -1, 1e308, "", _word(chance), [], {}, [[[[1]]]], {"a": {"b": None}}))
    if "enum" in schema and chance.random() < 0.8:
        return chance.choice(schema["enum"])
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = chance.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        chosen = {name: one for name, one in (schema.get("properties") or {}).items() if chance.random() < 0.6}
        return {name: _value(one, chance, depth + 1) for name, one in chosen.items()}
    if kind == "array":
        return [_value(schema.get("items"), chance, depth + 1) for _ in range(chance.randrange(4))]
    whole = chance.randrange(-5, 100)
    return {
        "integer": whole if chance.random() < 0.8 else float(whole),
        "number": 1.5,
        "boolean": True,
        "null": None,
    }.get(kind, _word(chance))


def _run_schemathesis(url: str, seed: int) -> Result:
    done = subprocess.run(
        ["schemathesis", "run", f"{url}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "10",
         "--seed", str(seed), "--max-response-time", str(SLOW_SECONDS), "--phases", "fuzzing",
         "--exclude-path", "/v1/agents", "--request-timeout", "10", "--no-color"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return {"schemathesis": "ok" if done.returncode == 0 else done.stdout[-1_500:]}


async def _read_health(url: str) -> Result:
    async with asking() as session:
        async with session.get(f"{url}/healthz") as answer:
            alive = answer.status == 200
        async with session.get(f"{url}/metrics") as answer:
            found = re.findall(
                r'^agent3_loop_held_seconds_count{cause="(\w+)"} (\d+)', await answer.text(), re.MULTILINE
            )
    held = {cause: int(count) for cause, count in found}
    return {"alive": alive, "held_over_100_ms": held.get("work", 0), "waited_for_the_processor": held.get("starved", 0)}
