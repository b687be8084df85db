"""``a2a``: messages over HTTP, one server process each: bare ASGI, the official SDK, ours; and what tasks cost.

One message that is echoed as the result of a task:

    bare                   raw ASGI under uvicorn, which keeps nothing
    sdk                    the official SDK's server, JSON-RPC of 1.0, tasks in memory; each task is one event
    ours                   ``agent3 serve`` at /agents/desk/a2a, with API key, rules, validation, rate limit, metrics
                           and the ledger, batched; tasks in memory
    sdk_durable            the SDK with its DatabaseTaskStore on sqlite+aiosqlite
    ours_durable           ours with a SQLite file; each answer waits until its task is on disk
    ours_durable_once      likewise, for a function that must not be run twice: its task is on disk before it begins
    ours_durable_taken     likewise, answered as soon as the task is on disk, before it has ended
    sdk_0_3, ours_0_3      message/send, the words of 0.3, tasks in memory
    ours_0_1               tasks/send, the words of 0.1, tasks in memory
    sdk_rest, ours_rest    POST /message:send of 1.0, tasks in memory

What tasks cost beside that is in ``bench.tasks``: a large one written, 2,000 that wait, an event for 1,000 listeners.

RT-014's table, each with its target and whether it is met, and met tenfold by p99 and rate:

    RT-014-P05             a message sent by an AgentExecutor without waiting for what comes of it, in this process
    RT-014-P06             a message received by an AgentExecutor, in this process
    RT-014-P07             discovery among 1,000 agents of an AgentRegistry, in this process
    RT-014-P08             an artifact of 1 kB made by an AgentExecutor, in this process
    RT-014-P09             ours_durable

Ratios, above 1 where ours is better, with what is asked of them:

    ours_vs_sdk            rate of ours / rate of sdk                                 12
    ours_vs_bare           rate of ours / rate of bare                                 0.25
    ours_vs_sdk_durable    rate of ours_durable / rate of sdk_durable                 12
    ours_vs_bare_durable   rate of ours_durable / rate of bare                         0.25
    ours_vs_sdk_0_3, ours_vs_sdk_rest
    NAME_cpu               the same pair by CPU per call, the other's / ours: the one to trust on a shared machine
    ours_vs_sdk_write      100 kB written: the SDK's time / ours                      20
    ours_vs_sdk_waiting    memory of 2,000 waiting tasks: the SDK's / ours
    ours_vs_sdk_fanout     one event to 1,000 listeners: the SDK's CPU / ours
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import ours, tasks
from bench.harness import Options, Result, Row, Target, bench, measure, ratio, say, side_by_side, uvicorn, with_extra
from bench.load import Request

__all__ = ["LIMITS", "PAIRS", "TARGETS", "judged", "message", "run"]

FAST = ("--loop", "uvloop", "--http", "httptools")
DESK = "bench.apps.a2a_desk:agent"
HOME = "/agents/desk/a2a"
PAIRS = {
    "ours_vs_sdk": ("ours", "sdk"),
    "ours_vs_bare": ("ours", "bare"),
    "ours_vs_sdk_durable": ("ours_durable", "sdk_durable"),
    "ours_vs_bare_durable": ("ours_durable", "bare"),
    "ours_vs_sdk_0_3": ("ours_0_3", "sdk_0_3"),
    "ours_vs_sdk_rest": ("ours_rest", "sdk_rest"),
}
LIMITS = {"ours_vs_sdk": 12.0, "ours_vs_bare": 0.25, "ours_vs_sdk_durable": 12.0, "ours_vs_bare_durable": 0.25}
STANDARDS = {
    "RT-014-P05": (50.0, 200.0),
    "RT-014-P06": (100.0, 100.0),
    "RT-014-P07": (200.0, 50.0),
    "RT-014-P08": (100.0, 100.0),
    "RT-014-P09": (1_000.0, 20.0),
}
"""Of each row of RT-014's table the latency in ms and the calls per second."""
AGENTS = 1_000
TIMES = 1_000


# What is asked


def message(method: str, params: Mapping[str, Any], path: str = "/", *, version: str = "1.0") -> Request:
    """A JSON-RPC request whose id of a message or task, written @, is new in each."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return _request(path, body, {} if version == "0.1" else {"A2A-Version": version})


def _request(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Request:
    head, tail = json.dumps(body).encode().split(b"@")
    whole = {"Content-Type": "application/json", **headers}
    return Request(path, "hello", head, whole, tails=(tail,), once=True)


def _said(skill: str | None = None, text: str = "hello") -> dict[str, Any]:
    metadata = {"metadata": {"skillId": skill}} if skill else {}
    return {"messageId": "m@", "role": "ROLE_USER", "parts": [{"text": text}], **metadata}


def _said_0_3(skill: str | None = None) -> dict[str, Any]:
    return {**_said(skill), "kind": "message", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}


def _said_0_1(skill: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "hello"}]
    return {"id": "t@", "message": {"role": "user", "parts": parts, "metadata": {"skillId": skill}}}


def _at_once(skill: str) -> dict[str, Any]:
    return {"message": _said(skill), "configuration": {"returnImmediately": True}}


# Who is asked


def _bare(port: int, _: Path) -> list[str]:
    return uvicorn("a2a_bare", port, *FAST)


def _sdk(port: int, _: Path) -> list[str]:
    return uvicorn("a2a_sdk", port, *FAST)


def _gateway(name: str, request: Request, *, memory: bool = True) -> Target:
    return Target(name, ours.serve(DESK, memory=memory), ours.with_key(request), None, ours.ENVIRONMENT)


SEND = message("SendMessage", {"message": _said()})
OURS = message("SendMessage", {"message": _said("say")}, HOME)
TARGETS = (
    Target("bare", _bare, SEND),
    Target("sdk", _sdk, SEND),
    _gateway("ours", OURS),
    Target("sdk_durable", _sdk, SEND, None, {"BENCH_DB": "sqlite+aiosqlite:///tasks.db"}),
    _gateway("ours_durable", OURS, memory=False),
    _gateway("ours_durable_once", message("SendMessage", {"message": _said("note")}, HOME), memory=False),
    Target("sdk_0_3", _sdk, message("message/send", {"message": _said_0_3()}, version="0.3")),
    _gateway("ours_0_3", message("message/send", {"message": _said_0_3("say")}, HOME, version="0.3")),
    _gateway("ours_0_1", message("tasks/send", _said_0_1("say"), HOME, version="0.1")),
    Target("sdk_rest", _sdk, _request("/rest/message:send", {"message": _said()}, {"A2A-Version": "1.0"})),
    _gateway("ours_rest", _request(f"{HOME}/message:send", {"message": _said("say")}, {"A2A-Version": "1.0"})),
    _gateway("ours_durable_taken", message("SendMessage", _at_once("note"), HOME), memory=False),
)


# What came of it


@bench("a2a", "messages over HTTP: bare ASGI, the official SDK, ours; large, waiting and watched tasks; RT-014's table")
def run(options: Options) -> Result:
    """Measure what needs no server, then load the servers in turn, then let tasks wait and be watched."""
    inside = [*tasks.written(options.rounds), *_documented()]
    rows = side_by_side(TARGETS, options)
    rows += [*inside, *tasks.waiting(), *tasks.watched(options.rounds)]
    found = {row.target: row for row in rows}
    rows.append(replace(found["ours_durable"], target="RT-014-P09"))
    ratios = _ratios(found)
    return Result([judged(row, ratios) for row in sorted(rows, key=_place)], ratios)


def _place(row: Row) -> str:
    return row.target if row.target in STANDARDS else ""


def _ratios(rows: Mapping[str, Row]) -> dict[str, float | None]:
    ratios = {name: ratio(rows[above].rate, rows[below].rate) for name, (above, below) in PAIRS.items()}
    for name, (above, below) in PAIRS.items():
        ratios[f"{name}_cpu"] = ratio(rows[below].cpu_ms_per_call, rows[above].cpu_ms_per_call)
    ratios["ours_vs_sdk_write"] = ratio(rows["ours_write_100kb"].rate, rows["sdk_write_100kb"].rate)
    waiting = [rows[f"{who}_waiting_2000"].extra.get("memory_mib") for who in ("sdk", "ours")]
    ratios["ours_vs_sdk_waiting"] = ratio(*waiting)
    watched = [rows[f"{who}_watched_1000"].cpu_ms_per_call for who in ("sdk", "ours")]
    ratios["ours_vs_sdk_fanout"] = ratio(*watched)
    return ratios


def judged(row: Row, ratios: Mapping[str, float | None]) -> Row:
    """The row beside what is asked of it."""
    if row.target in STANDARDS:
        return _beside_standard(row, *STANDARDS[row.target])
    if row.target == "ours_write_100kb":
        return with_extra(row, limit="ours_vs_sdk_write 20", met=(ratios["ours_vs_sdk_write"] or 0) >= 20)
    asked = {name: LIMITS[name] for name, (above, _) in PAIRS.items() if above == row.target and name in LIMITS}
    return _beside_limits(row, asked, ratios) if asked else row


def _beside_standard(row: Row, latency: float, rate: float) -> Row:
    def met(times: float) -> bool:
        fine = row.rate is not None and row.p99_ms is not None
        return fine and (row.p99_ms or 0) * times < latency and (row.rate or 0) >= rate * times

    return with_extra(row, target_ms=latency, target_rate=rate, met=met(1), met_tenfold=met(10))


def _beside_limits(row: Row, asked: Mapping[str, float], ratios: Mapping[str, float | None]) -> Row:
    """``met`` by rate and ``met_cpu`` by CPU per call; each ratio that misses its limit is named."""
    missed = [name for name, least in asked.items() if (ratios[name] or 0) < least]
    missed_cpu = [name for name, least in asked.items() if (ratios[f"{name}_cpu"] or 0) < least]
    limit = ", ".join(f"{name} {least:g}" for name, least in asked.items())
    named = {"missed": ", ".join(missed)} if missed else {}
    return with_extra(row, limit=limit, met=not missed, met_cpu=not missed_cpu, **named)


# The documented classes, in this process


def _documented() -> list[Row]:
    from agent3 import A2AMessage, AgentCapability, AgentCard, AgentExecutor, AgentRegistry, MessageType

    registry = AgentRegistry()
    for number in range(AGENTS):
        skill = AgentCapability(name=f"skill{number % 100}")
        registry.register_agent(AgentCard(agent_id=f"agent{number}", name="agent", capabilities=[skill]))
    hotel = AgentExecutor(AgentCard(agent_id="hotel", name="hotel"))
    hotel.register_capability("search", _hotels)

    def sent(number: int) -> None:
        hotel.send_message("nobody", MessageType.EVENT, "told", {"number": number})

    def received(number: int) -> None:
        asked = A2AMessage(
            from_agent="flight",
            to_agent="hotel",
            message_type=MessageType.REQUEST,
            capability="search",
            content={"place": f"Paris {number}"},
        )
        answer = hotel.receive_message(asked)
        assert answer is not None
        assert answer.content["status"] == "success"

    def discovered(number: int) -> None:
        assert len(registry.discover_agents(capability_required=f"skill{number % 100}")) == AGENTS // 100

    def made(number: int) -> None:
        hotel.create_artifact({"number": number, "offer": "x" * 1_000})

    work: dict[str, Callable[[int], None]] = {
        "RT-014-P05": sent,
        "RT-014-P06": received,
        "RT-014-P07": discovered,
        "RT-014-P08": made,
    }
    rows = []
    for name, one in work.items():
        one(0)
        rows.append(measure(name, one, range(TIMES)))
        say(f"{name}: {rows[-1].rate or 0:,.0f}/s")
    hotel.close()
    return rows


def _hotels(place: str) -> list[dict[str, str]]:
    return [{"name": f"Hotel {place}"}]
