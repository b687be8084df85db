"""A step is in force in every turn of a call: an answer, a repetition, a takeover, a job in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client

from agent3.gateway.dead_letters import Letters, Wanted, replay
from agent3.model import LOCAL, Answer, Call
from agent3.settings import Callbacks, Calls, Limits, Settings
from tests.support.a2a_toy import message, rpc
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request
from tests.support.probe import AROUND, ENTER, PROBE, WORDS, Target, places, probing
from tests.support.receiver import SECRET, Receiver, receiving

OPEN = Callbacks(secret="env:HOOK_SECRET", schemes=("http",), allow_loopback=True, timeout=5.0)


@dataclass
class House:
    door: Hosted
    target: Target
    receiver: Receiver
    folder: Path


@pytest.fixture(
    scope="module",
    params=[*((place, ENTER) for place in places()), *((place, AROUND) for place in places(few=True))],
    ids=lambda given: f"{given[1].__name__}-{given[0]}",
)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with the probe at one place, and a receiver of its callbacks."""
    target, folder = Target(), tmp_path_factory.mktemp("turns")
    calls = Calls(ledger="batched", retries=0, breaker_failures=1_000)
    settings = Settings(calls=calls, limits=Limits(per_minute=0), callbacks=OPEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOK_SECRET", SECRET)
        with probing(*request.param), receiving() as receiver, hosted(folder, target.agents, settings) as running:
            yield House(running, target, receiver, folder)


# Each begins something, calls ``then``, and goes on with it; gives what the caller got


Then = Callable[[], None]
Turn = Callable[[House, Then], str]


def _ask(house: House) -> str:
    """The job of a call that asked."""
    asked = house.door.call("asker", "x").json
    assert asked["status"] == "needs", asked
    return str(asked["job"])


def answer_by_rest(house: House, then: Then) -> str:
    job = _ask(house)
    then()
    return house.door.post(f"/v1/calls/{job}/answer", {"message": "tall"}).raw.decode()


def answer_by_call(house: House, then: Then) -> str:
    job = _ask(house)
    then()
    return house.door.call("asker", metadata={"job": job, "answers": {"q1": "tall"}}).raw.decode()


def answer_by_nlweb(house: House, then: Then) -> str:
    asked = house.door.post("/ask", {"query": {"text": "x", "site": "asker"}, "prefer": {"streaming": False}}).json
    session = asked["_meta"]["session_context"]
    then()
    said = {"query": {"text": "tall", "site": "asker"}, "prefer": {"streaming": False}}
    return house.door.post("/ask", {**said, "meta": {"session_context": session}}).raw.decode()


def _modern(house: House, path: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    request = modern_request(method, params, {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
    headers = {key.replace("-", "_"): value for key, value in request["headers"].items()}
    reply = house.door.post(path, request["json"], content_type="application/json", **headers)
    body: dict[str, Any] = json.loads(reply.raw.decode().partition("data: ")[2] or reply.raw)
    return body


def answer_by_modern_mcp(path: str) -> Turn:
    name, arguments = ("agent3_call", {"agentId": "asker"}) if path == "/mcp" else ("order", {})
    call = {"name": name, "arguments": arguments}

    def turn(house: House, then: Then) -> str:
        asked = _modern(house, path, "tools/call", call)["result"]
        (key,) = asked["inputRequests"]
        then()
        given = {key: {"action": "accept", "content": _form(asked["inputRequests"][key]["params"])}}
        more = {"inputResponses": given, "requestState": asked["requestState"]}
        return json.dumps(_modern(house, path, "tools/call", {**call, **more}))

    return turn


def answer_by_task(path: str) -> Turn:
    def turn(house: House, then: Then) -> str:
        job = _ask(house)
        (request,) = _modern(house, path, "tasks/get", {"taskId": job})["result"]["inputRequests"].items()
        then()
        given = {request[0]: {"action": "accept", "content": _form(request[1]["params"])}}
        _modern(house, path, "tasks/update", {"taskId": job, "inputResponses": given})
        house.door.get(f"/v1/calls/{job}?wait=60")
        return json.dumps(_modern(house, path, "tasks/get", {"taskId": job}))

    return turn


def _form(params: dict[str, Any]) -> dict[str, str]:
    return dict.fromkeys(params["requestedSchema"]["properties"], "tall")


def answer_by_legacy_mcp(path: str) -> Turn:
    name, arguments = ("agent3_call", {"agentId": "asker"}) if path == "/mcp" else ("order", {})

    def turn(house: House, then: Then) -> str:
        async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
            then()
            assert isinstance(params, wire.ElicitRequestFormParams)
            return wire.ElicitResult(action="accept", content={**_form({"requestedSchema": params.requested_schema})})

        async def story() -> str:
            async with Client(house.door.url + path, mode="legacy", elicitation_callback=person) as client:
                return (await client.call_tool(name, arguments)).model_dump_json()

        return asyncio.run(asyncio.wait_for(story(), 60))

    return turn


def answer_by_a2a(path: str, version: str) -> Turn:
    def turn(house: House, then: Then) -> str:
        said = message("x", "order")
        method = "SendMessage"
        if version == "0.3":
            method = "message/send"
            said = {**said, "kind": "message", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
        asked = rpc(house.door, method, {"message": said}, path, a2a_version=version).json["result"]
        task = asked.get("task", asked)
        assert "input" in task["status"]["state"].lower(), asked
        then()
        more = {**said, "messageId": message("")["messageId"], "taskId": task["id"], "contextId": task["contextId"]}
        more["parts"] = [{**said["parts"][0], "text": "tall"}]
        return rpc(house.door, method, {"message": more}, path, a2a_version=version).raw.decode()

    return turn


def answer_handed_over(house: House, then: Then) -> str:
    """As another process hands it to the one in which the function waits."""
    job_id = _ask(house)
    core = house.door.server.core

    async def hand() -> None:
        job = await core.jobs.get(LOCAL.id, job_id)
        await core.jobs.claim(job, {"q1": Answer("accept", "tall")}, hand_to=core.jobs.node)

    then()
    house.door.run(hand())
    return house.door.get(f"/v1/calls/{job_id}?wait=60").raw.decode()


def takeover(house: House, then: Then) -> str:
    core = house.door.server.core
    agent = house.target.reading

    async def leave_behind() -> str:
        call = Call(
            id=core.env.id(),
            principal=LOCAL,
            agent=agent.id,
            capability="read",
            input={"text": "tall"},
            routes=agent.agent.capabilities[0].routes,
            key=core.env.id(),
        )
        job, _ = await core.jobs.open(call)
        await core.database.many("UPDATE jobs SET node = 'dead/1/x', lease = ? WHERE id = ?", [(1.0, job.id)])
        return job.id

    then()
    job = house.door.run(leave_behind())
    house.door.run(core.runner.recover())
    return house.door.get(f"/v1/calls/{job}?wait=60").raw.decode()


def dead_letter(house: House, then: Then) -> str:
    server = house.door.server
    house.target.down = True
    assert house.door.call("target", "tall", metadata={"retries": 0}).json["success"] is False
    house.target.down = False
    (letter,) = house.door.run(Letters(server.database, server.env).find(Wanted(limit=1)))
    then()
    return repr(house.door.run(replay(server.gateway, letter["id"], twice=True)))


def callback(house: House, then: Then) -> str:
    house.receiver.got.clear()
    then()
    metadata = {"callback": {"url": f"{house.receiver.url}/hook"}}
    assert house.door.call("target", "tall", metadata=metadata).status == 202
    return house.receiver.wait(1, 60.0)[0].body.decode()


ANSWERS: dict[str, Turn] = {
    "REST": answer_by_rest,
    "REST call": answer_by_call,
    "NLWeb": answer_by_nlweb,
    **{f"MCP modern {path}": answer_by_modern_mcp(path) for path in ("/mcp", "/agents/asker/mcp")},
    **{f"MCP task {path}": answer_by_task(path) for path in ("/mcp", "/agents/asker/mcp")},
    **{f"MCP legacy {path}": answer_by_legacy_mcp(path) for path in ("/mcp", "/agents/asker/mcp")},
    **{
        f"A2A {path} {version}": answer_by_a2a(path, version)
        for path in ("/a2a", "/agents/asker/a2a")
        for version in ("0.3", "1.0")
    },
    "handed over": answer_handed_over,
}
SINGLE: dict[str, Turn] = {"takeover": takeover, "dead letter": dead_letter, "callback": callback}


def test_a_step_that_refuses_from_now_on_ends_what_has_begun(house: House) -> None:
    runs: list[int] = []

    def refuse() -> None:
        runs.append(house.target.runs)
        PROBE.clear(refuses=True)

    for name, turn in {**ANSWERS, **SINGLE}.items():
        PROBE.clear()
        runs.clear()
        told = turn(house, refuse)
        assert WORDS in told, (name, told)
        assert "forbidden" in told.lower(), (name, told)
        assert [house.target.runs] == runs, name
        assert PROBE.entered, name


def test_a_step_that_only_looks_sees_every_later_turn_once(house: House) -> None:
    for name, turn in {**ANSWERS, **SINGLE}.items():
        PROBE.clear()
        told = turn(house, PROBE.clear)
        assert "said tall" in told or "done" in told, (name, told)
        assert len(PROBE.entered) == len(PROBE.left) == 1, name
