"""What the gateway's own tools offer besides the five verbs: tasks, large results, one connection, what calls cost."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as wire
import pytest

from agent3 import Context, LocalAgent
from agent3.model import Price
from agent3.settings import Calls, Client, Limits, Settings
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request
from tests.support.mcp_upstream import served
from tests.support.registration import add

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ASKED: dict[str, Any] = {**TASKS, "elicitation": {}}
KEYS = {"alice": "key-of-alice-0123456789", "bob": "key-of-bob-0123456789"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Worker:
    """An agent whose work ends when the test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began = threading.Event()
        self.ended: list[str] = []
        self.agent = LocalAgent("Worker", description="Works for tests")
        for one in (self.hold, self.ask, self.quick, self.big, self.fail):
            self.agent.capability(one)
        self.agent.add(self.priced, price=Price(call=0.001))

    async def open(self) -> None:
        self.gate.set()

    async def close(self) -> None:
        self.gate.clear()

    async def hold(self, ctx: Context, message: str) -> str:
        """Hold until the gate opens."""
        ctx.status("holding")
        self.began.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return message

    async def ask(self, ctx: Context) -> str:
        """Hold, then ask for a name."""
        await self.gate.wait()
        answer = await ctx.ask("Who are you?", NAME)
        return f"Hello, {answer['name']}!"

    def quick(self, text: str) -> str:
        """Answer at once."""
        return text

    def big(self, text: str) -> str:
        """Give much."""
        return text * 100_000

    def fail(self) -> None:
        """Fail."""
        raise RuntimeError("the oven is cold")

    def priced(self) -> str:
        """Cost a tenth of a cent."""
        return "done"


class Wire:
    """Plain requests of one client."""

    def __init__(self, http: aiohttp.ClientSession, url: str, who: str, capabilities: dict[str, Any]):
        self._http = http
        self._url = f"{url}/mcp"
        self._key = KEYS[who]
        self._capabilities = capabilities

    async def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        request = modern_request(method, params, self._capabilities, Authorization=f"Bearer {self._key}")
        async with self._http.post(self._url, **request) as response:
            answer = await response.json()
            told: dict[str, Any] = answer.get("result") or answer["error"]
            return told

    async def call(self, capability: str, given: Any = None, **more: Any) -> dict[str, Any]:
        arguments = {"agentId": "worker", "capability": capability, "input": given or {}}
        return await self("tools/call", name="agent3_call", arguments=arguments, **more)

    async def until(self, task: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while (told := await self("tasks/get", taskId=task))["status"] not in statuses:
                await asyncio.sleep(0.02)
            return told


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker()


CLIENTS = tuple(Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())


@pytest.fixture(scope="module")
def house(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(clients=CLIENTS, limits=Limits(per_minute=0), calls=Calls(task_seconds=0.2))
    with hosted(tmp_path_factory.mktemp("tools"), [worker.agent], settings) as running:
        yield running


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hosted, Worker]]:
    """A gateway that makes a call a task only after two minutes, for what has to happen before."""
    worker = Worker()
    settings = Settings(clients=CLIENTS, limits=Limits(per_minute=0), calls=Calls(task_seconds=120.0))
    with hosted(tmp_path_factory.mktemp("patient"), [worker.agent], settings) as running:
        yield running, worker


@pytest.fixture(autouse=True)
def closed(house: Hosted, worker: Worker) -> Iterator[None]:
    house.run(worker.close())
    worker.ended.clear()
    yield
    house.run(worker.open())


@asynccontextmanager
async def speaking(house: Hosted, who: str = "alice", capabilities: dict[str, Any] = TASKS) -> AsyncIterator[Wire]:
    async with aiohttp.ClientSession() as http:
        yield Wire(http, house.url, who, capabilities)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


def shape(body: Any) -> Any:
    """A response without the figures that differ from call to call."""
    return {**body, "metadata": sorted(body["metadata"])}


WRONG = [
    ("agent3_search", {"query": 7}, "invalid_input", 422),
    ("agent3_select", {"agentId": "nobody"}, "agent_not_found", 404),
    ("agent3_invoke", {"agentId": "nobody"}, "agent_not_found", 404),
    ("agent3_call", {"agentId": "nobody", "message": "hello"}, "agent_not_found", 404),
    ("agent3_feedback", {"agentId": "worker", "rating": 9}, "invalid_input", 422),
]


@pytest.mark.parametrize(("tool", "arguments", "code", "status"), WRONG)
def test_every_tool_says_in_one_form_what_went_wrong(
    house: Hosted, tool: str, arguments: dict[str, Any], code: str, status: int
) -> None:
    async def story() -> None:
        async with speaking(house, capabilities={}) as wire:
            told = await wire("tools/call", name=tool, arguments=arguments)
        assert told["isError"]
        body = told["structuredContent"]
        assert (body["success"], body["errorCode"], body["metadata"]["statusCode"]) == (False, code, status)
        assert isinstance(body["error"], str)
        assert body["error"] in told["content"][0]["text"]
        assert not body["retryable"]

    run(story())


# Tasks


def test_a_long_call_is_a_task_that_ends_with_the_response_of_a_short_one(house: Hosted, worker: Worker) -> None:
    async def story() -> None:
        async with speaking(house) as say, speaking(house, capabilities={}) as plain:
            made = await say.call("hold", {"message": "later"})
            assert (made["resultType"], made["status"]) == ("task", "working")
            assert (await say("tasks/get", taskId=made["taskId"]))["status"] == "working"
            await asyncio.to_thread(house.run, worker.open())
            done = await say.until(made["taskId"], "completed")
            at_once = await plain.call("hold", {"message": "later"})
            assert done["result"]["structuredContent"]["result"] == "later"
            assert done["result"]["structuredContent"]["metadata"]["responseTime"] >= 200
            assert shape(done["result"]["structuredContent"]) == shape(at_once["structuredContent"])
            assert done["result"]["isError"] is at_once["isError"] is False

    run(story())


def test_a_short_call_is_answered_at_once_also_to_a_client_that_follows_tasks(
    patient: tuple[Hosted, Worker],
) -> None:
    house, _ = patient

    async def story() -> None:
        async with speaking(house) as say, speaking(house, capabilities={}) as plain:
            quick, same = [await one.call("quick", {"text": "hi"}) for one in (say, plain)]
            assert quick["resultType"] == "complete"
            assert shape(quick["structuredContent"]) == shape(same["structuredContent"])
            failed, alike = [await one.call("fail") for one in (say, plain)]
            assert failed["isError"] is alike["isError"] is True
            assert shape(failed["structuredContent"]) == shape(alike["structuredContent"])
            assert "the oven is cold" in failed["structuredContent"]["error"]

    run(story())


def test_a_client_that_cannot_follow_tasks_waits(house: Hosted, worker: Worker) -> None:
    async def story() -> None:
        async with speaking(house, capabilities={}) as say:
            waiting = asyncio.create_task(say.call("hold", {"message": "x"}))
            assert not (await asyncio.wait([waiting], timeout=0.6))[0]
            await asyncio.to_thread(house.run, worker.open())
            assert (await waiting)["structuredContent"]["result"] == "x"

    run(story())


def test_a_task_asks_and_goes_on_with_the_answer(house: Hosted, worker: Worker) -> None:
    async def story() -> None:
        async with speaking(house, capabilities=ASKED) as say:
            task = (await say.call("ask"))["taskId"]
            await asyncio.to_thread(house.run, worker.open())
            (key,) = (await say.until(task, "input_required"))["inputRequests"]
            answer = {key: {"action": "accept", "content": {"name": "Ann"}}}
            assert (await say("tasks/update", taskId=task, inputResponses=answer))["resultType"] == "complete"
            done = await say.until(task, "completed")
            assert done["result"]["structuredContent"]["result"] == "Hello, Ann!"

    run(story())


def test_a_question_that_comes_at_once_is_asked_in_place(patient: tuple[Hosted, Worker]) -> None:
    house, worker = patient

    async def story() -> None:
        await asyncio.to_thread(house.run, worker.open())
        async with speaking(house, capabilities=ASKED) as say:
            asked = await say.call("ask")
            assert asked["resultType"] == "input_required"
            (key,) = asked["inputRequests"]
            answer = {key: {"action": "accept", "content": {"name": "Ann"}}}
            done = await say.call("ask", inputResponses=answer, requestState=asked["requestState"])
            assert done["structuredContent"]["result"] == "Hello, Ann!"

    run(story())


def test_cancelling_a_task_reaches_its_target(house: Hosted, worker: Worker) -> None:
    async def story() -> None:
        async with speaking(house) as say:
            task = (await say.call("hold", {"message": "x"}))["taskId"]
            await say("tasks/cancel", taskId=task)
            assert (await say("tasks/get", taskId=task))["status"] == "cancelled"
            assert worker.ended == ["cancelled"]

    run(story())


def test_a_client_that_gives_up_before_there_is_a_task_cancels_the_call(patient: tuple[Hosted, Worker]) -> None:
    house, worker = patient

    async def story() -> None:
        await asyncio.to_thread(house.run, worker.close())
        async with speaking(house) as say:
            waiting = asyncio.create_task(say.call("hold", {"message": "x"}))
            assert await asyncio.to_thread(worker.began.wait, 60)
            waiting.cancel()
            await asyncio.wait([waiting])
            async with asyncio.timeout(60):
                while worker.ended != ["cancelled"]:
                    await asyncio.sleep(0.02)

    run(story())


def test_a_task_of_somebody_else_is_not_there(house: Hosted) -> None:
    async def story() -> None:
        async with speaking(house) as alice, speaking(house, "bob") as bob:
            task = (await alice.call("hold", {"message": "x"}))["taskId"]
            for method in ("tasks/get", "tasks/cancel"):
                refused = await bob(method, taskId=task)
                nobodys = await bob(method, taskId="0" * 32)
                assert refused["code"] == wire.INVALID_PARAMS
                assert refused["message"].replace(task, "0" * 32) == nobodys["message"]
            assert (await alice("tasks/get", taskId=task))["status"] == "working"

    run(story())


def test_a_question_to_a_client_that_cannot_be_asked_has_the_form_of_every_answer(
    house: Hosted, worker: Worker
) -> None:
    async def story() -> None:
        house.run(worker.open())
        async with speaking(house, "alice", {}) as say:
            answer = await say.call("ask")
            assert not answer.get("isError")
            form = answer["structuredContent"]
            assert set(form) == {"success", "job", "status", "questions", "metadata"}
            assert (form["success"], form["status"], form["questions"][0]["text"]) == (False, "needs", "Who are you?")

    run(story())


# Large results


def test_a_large_result_is_a_resource_of_its_owner(house: Hosted) -> None:
    async def story() -> None:
        async with speaking(house, "alice", {}) as alice, speaking(house, "bob", {}) as bob:
            answer = await alice.call("big", {"text": "ab"})
            (link,) = [one for one in answer["content"] if one["type"] == "resource_link"]
            uri = link["uri"]
            assert uri == f"agent3://artifacts/{answer['structuredContent']['result']['artifact']}"
            assert link["mimeType"] == "text/plain"
            (content,) = (await alice("resources/read", uri=uri))["contents"]
            assert (content["uri"], content["text"]) == (uri, "ab" * 100_000)
            theirs = await bob("resources/read", uri=uri)
            nobodys = await bob("resources/read", uri="agent3://artifacts/nothing")
            assert theirs["code"] == nobodys["code"] == wire.INVALID_PARAMS
            assert theirs["message"].replace(uri.rpartition("/")[2], "nothing") == nobodys["message"]

    run(story())


def test_resources_have_a_template_and_other_addresses_lead_nowhere(house: Hosted) -> None:
    async def story() -> None:
        async with speaking(house) as say:
            (template,) = (await say("resources/templates/list"))["resourceTemplates"]
            assert template["uriTemplate"] == "agent3://artifacts/{id}"
            assert (await say("resources/list"))["resources"] == []
            assert (await say("resources/read", uri="file:///etc/passwd"))["code"] == wire.INVALID_PARAMS

    run(story())


# One connection, and what calls cost


@pytest.mark.requirement("AC-21")
def test_calls_to_one_server_share_one_connection(house: Hosted, tmp_path: Path) -> None:
    async def story(url: str) -> None:
        await asyncio.to_thread(house.run, add(house.server, url, "pooled"))
        async with speaking(house, "alice", {}) as alice, speaking(house, "bob", {}) as bob:
            arguments = {"agentId": "pooled", "capability": "who", "input": {}}
            seen = []
            for say in (alice, bob, alice):
                answer = await say("tools/call", name="agent3_call", arguments=arguments)
                seen.append(answer["structuredContent"]["result"])
            ports = {one["port"] for one in seen}
            assert len(ports) == 1
            assert None not in ports

    with served(tmp_path / "notes", "--json") as site:
        run(story(site.url))


@pytest.mark.requirement("RT-014-C01")
def test_a_hundred_calls_of_a_tenth_of_a_cent_cost_ten_cents(house: Hosted) -> None:
    def spent() -> float:
        lines = house.get("/metrics").raw.decode().splitlines()
        found = [line for line in lines if line.startswith('agent3_cost_usd_total{agent="worker"}')]
        return float(found[0].split()[1]) if found else 0.0

    async def story() -> None:
        async with speaking(house, capabilities={}) as say:
            for _ in range(100):
                answer = await say.call("priced")
                assert answer["structuredContent"]["metadata"]["cost"] == pytest.approx(0.001)

    before = spent()
    run(story())
    rows = [row for row in house.rows("calls") if row["capability"] == "priced"]
    assert len(rows) == 100
    assert sum(row["cost"] for row in rows) == pytest.approx(0.10)
    assert {row["door"] for row in rows} == {"mcp"}
    assert spent() - before == pytest.approx(0.10)
