"""A message that does not say which of an agent's capabilities it is for is answered with a question, at every door."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from agent3 import Context, LocalAgent
from agent3.directory import directory
from agent3.directory.choice import index_capabilities
from agent3.directory.search import Index
from agent3.gateway.gateway import Caller, CallRequest
from agent3.gateway.which import write_question
from agent3.model import LOCAL, Capability, Done, Failed, Needs, Outcome
from agent3.protocols.a2a.agents.serving import listening
from agent3.protocols.a2a.grpc import connect
from agent3.protocols.a2a.wire.types import Generation, Message, Part, Role, Send, Task
from agent3.security.outbound import Gate, Policy
from agent3.server.build import build
from agent3.settings import Client as Known
from agent3.settings import Limits, Rule, Server, Settings, Storage
from tests.support.a2a_toy import message, rpc, unary
from tests.support.gateway import Door, Hosted, hosted

VAGUE = "hello there"
AT = "/agents/desk/a2a"
NAMES = ["weather", "rate"]


def desk() -> LocalAgent:
    agent = LocalAgent("desk")

    @agent.capability(read_only=True)
    async def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"sunny in {city}"

    @agent.capability(read_only=True)
    async def rate(text: str) -> str:
        """Tell the exchange rate of a currency."""
        return f"rate of {text}"

    return agent


def crowd() -> LocalAgent:
    """An agent that does so much that no question can list it."""
    agent = LocalAgent("crowd")

    def add(number: int) -> None:
        async def work(text: str) -> str:
            return f"{number}: {text}"

        work.__name__, work.__doc__ = f"work{number}", f"Does thing {number}."
        agent.add(work, read_only=True)

    for number in range(30):
        add(number)
    return agent


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(server=Server(grpc_port=0))
    with hosted(tmp_path_factory.mktemp("which"), [desk(), crowd()], settings) as found:
        yield found


def _question(task: Any) -> dict[str, Any]:
    """The form of the question that a task asks, in JSON of any generation."""
    assert task["status"]["state"] in ("input-required", "TASK_STATE_INPUT_REQUIRED"), task
    said = task["status"]["message"]
    parts = said.get("parts") or said.get("content")
    texts, forms = [one.get("text") for one in parts], [one["data"] for one in parts if "data" in one]
    assert "weather: Tell the weather of a city." in texts[0]
    form: dict[str, Any] = forms[0].get("data", forms[0])
    return form


# By A2A


def test_json_rpc_1_0_asks_and_the_answer_goes_on(gateway: Hosted) -> None:
    for path, more in ((AT, {}), ("/a2a", {"tenant": "desk"})):
        task = unary(rpc(gateway, "SendMessage", {"message": message(VAGUE, None), **more}, path))["task"]
        assert _question(task) == {"id": "capability", "schema": {"type": "string", "enum": NAMES}}
        said = message("rate", None, taskId=task["id"], contextId=task["contextId"])
        done = unary(rpc(gateway, "SendMessage", {"message": said}, path))["task"]
        assert (done["id"], done["status"]["state"]) == (task["id"], "TASK_STATE_COMPLETED")
        assert done["artifacts"][0]["parts"] == [{"text": f"rate of {VAGUE}"}]


def test_json_rpc_0_3_streams_the_question(gateway: Hosted) -> None:
    said = {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": VAGUE}], "messageId": "m-03"}
    task = unary(rpc(gateway, "message/send", {"message": said}, AT, a2a_version="0.3"))
    assert _question(task)["schema"]["enum"] == NAMES
    said |= {"messageId": "m-03b", "taskId": task["id"], "parts": [{"kind": "data", "data": {"capability": "rate"}}]}
    streamed = rpc(gateway, "message/stream", {"message": said}, AT, a2a_version="0.3").raw.decode()
    assert f"rate of {VAGUE}" in streamed
    assert '"completed"' in streamed
    begun = rpc(gateway, "message/stream", {"message": {**said, "taskId": None, "messageId": "m-03c",
                "parts": [{"kind": "text", "text": VAGUE}]}}, AT, a2a_version="0.3").raw.decode()  # fmt: skip
    assert '"input-required"' in begun


def test_json_rpc_0_1_asks(gateway: Hosted) -> None:
    task_id = str(uuid.uuid4())

    def send(text: str) -> Any:
        said = {"role": "user", "parts": [{"type": "text", "text": text}]}
        return unary(rpc(gateway, "tasks/send", {"id": task_id, "message": said}, AT, a2a_version="0.1"))

    assert _question(send(VAGUE))["schema"]["enum"] == NAMES
    done = send("rate")
    assert done["status"]["state"] == "completed"
    assert done["artifacts"][0]["parts"][0]["text"] == f"rate of {VAGUE}"


def test_rest_asks_also_a_client_that_does_not_wait(gateway: Hosted) -> None:
    def send(said: dict[str, Any], **more: Any) -> Any:
        body = {"message": said, **more}
        kind = "application/json"
        return gateway.post(f"{AT}/message:send", body, content_type=kind, a2a_version="1.0").json["task"]

    task = send(message(VAGUE, None), configuration={"returnImmediately": True})
    assert _question(task)["schema"]["enum"] == NAMES
    done = send(message("rate", None, taskId=task["id"]))
    assert done["artifacts"][0]["parts"] == [{"text": f"rate of {VAGUE}"}]


@pytest.mark.parametrize("generation", ["0.3", "1.0"])
def test_grpc_asks(gateway: Hosted, generation: Generation) -> None:
    card = gateway.get("/.well-known/agent-card.json").json
    (place,) = {one["url"] for one in card["supportedInterfaces"] if one["protocolBinding"] == "GRPC"}

    async def story() -> None:
        way_out = Gate(Policy(allow_loopback=True))
        channel = await connect(way_out, place, generation)

        async def send(text: str, task: str | None = None, **more: Any) -> Task:
            said = Message(message_id=str(uuid.uuid4()), role=Role.USER, parts=(Part(text=text),), task_id=task, **more)
            async with asyncio.timeout(60):
                answered = await channel.ask(Send(message=said))
            assert isinstance(answered, Task)
            return answered

        try:
            asked = await send(VAGUE, metadata={"agentId": "desk"})
            assert asked.status.state.name == "INPUT_REQUIRED"
            done = await send("rate", asked.id)
            assert done.artifacts[0].parts[0].text == f"rate of {VAGUE}"
        finally:
            await channel.aclose()
            await way_out.aclose()

    asyncio.run(story())


def test_the_same_message_again_is_the_same_task_and_a_waiting_one_can_be_cancelled(gateway: Hosted) -> None:
    said = message(VAGUE, None)
    first, again = (unary(rpc(gateway, "SendMessage", {"message": said}, AT))["task"] for _ in range(2))
    assert first["id"] == again["id"]
    ended = unary(rpc(gateway, "CancelTask", {"id": first["id"]}, AT))
    assert ended["status"]["state"] == "TASK_STATE_CANCELED"
    assert ended["status"]["message"]["parts"] == [{"text": "The job was cancelled."}]


def test_an_agent_that_is_served_by_itself_asks_too_and_is_indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed: list[object] = []

    def index(capabilities: Iterable[Capability]) -> Index:
        indexed.append(asyncio._get_running_loop())
        return index_capabilities(capabilities)

    monkeypatch.setattr(directory, "index_capabilities", index)
    with listening(crowd()) as url:
        for _ in range(2):
            task = unary(rpc(Door(url), "SendMessage", {"message": message(VAGUE, None)}))["task"]
            assert "10 more" in task["status"]["message"]["parts"][0]["text"]
    assert indexed == [None], "once, and in a thread, as they are many"
    with listening(desk()) as url:
        door = Door(url)
        task = unary(rpc(door, "SendMessage", {"message": message(VAGUE, None)}))["task"]
        assert _question(task)["schema"]["enum"] == NAMES
        done = unary(rpc(door, "SendMessage", {"message": message("rate", None, taskId=task["id"])}))["task"]
        assert done["artifacts"][0]["parts"] == [{"text": f"rate of {VAGUE}"}]


# By the others


def test_rest_and_ask_and_mcp_ask_the_same(gateway: Hosted) -> None:
    asked = gateway.call("desk", VAGUE).json
    assert (asked["status"], asked["questions"][0]["id"]) == ("needs", "capability")
    done = gateway.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"capability": "rate"}}).json
    assert done["result"] == f"rate of {VAGUE}"

    body = {"query": {"text": VAGUE, "site": "desk"}, "prefer": {"streaming": False}}
    told = gateway.post("/ask", body).json
    (question,) = told["elicitation"]["questions"]
    assert (question["type"], question["options"]) == ("single_select", NAMES)
    # The answer of one question leads to the next: weather needs to know of which city.
    more: Any = {"query": {"text": "weather", "site": "desk"}, "prefer": {"streaming": False}}
    told = gateway.post("/ask", {**more, "meta": {"session_context": told["_meta"]["session_context"]}}).json
    assert [one["id"] for one in told["elicitation"]["questions"]] in (["city"], ["agent3:again"])
    more["query"]["text"] = "the weather in Paris"
    told = gateway.post("/ask", {**more, "meta": {"session_context": told["_meta"]["session_context"]}}).json
    assert "Paris" in told["results"][0]["text"]

    async def by_mcp() -> Any:
        async with Client(f"{gateway.url}/mcp") as client:
            return await client.call_tool("agent3_call", {"agentId": "desk", "message": VAGUE})

    answer = asyncio.run(asyncio.wait_for(by_mcp(), 60))
    assert answer.structured_content["questions"][0]["schema"]["enum"] == NAMES


def test_an_answer_may_be_a_sentence_and_one_that_says_nothing_is_asked_again(gateway: Hosted) -> None:
    job = gateway.call("desk", VAGUE).json["job"]
    again = gateway.post(f"/v1/calls/{job}/answer", {"message": "whatever"}).json
    assert again["questions"][0]["text"].endswith("(invalid: 'whatever')")
    done = gateway.post(f"/v1/calls/{job}/answer", {"message": "tell the weather in Paris"}).json
    assert "sunny in Paris" in str(done)
    declined = gateway.call("desk", VAGUE).json["job"]
    told = gateway.post(f"/v1/calls/{declined}/answer", {"answers": {"capability": {"action": "decline"}}}).json
    assert told["errorCode"] == "declined"
    for said, code in (("olvídalo", "declined"), ("not yet", None), ("the second one", None)):
        told = gateway.post(f"/v1/calls/{gateway.call('desk', VAGUE).json['job']}/answer", {"message": said}).json
        assert told.get("errorCode") == code
        assert said != "the second one" or told["result"] == f"{NAMES[1]} of {VAGUE}"


def test_of_very_many_the_closest_are_listed_and_any_can_be_named(gateway: Hosted) -> None:
    (question,) = (asked := gateway.call("crowd", VAGUE).json)["questions"]
    assert question["text"].count("\n- ") == 20
    assert "10 more" in question["text"]
    assert "enum" not in question["schema"]
    done = gateway.post(f"/v1/calls/{asked['job']}/answer", {"message": "work29"}).json
    assert done["result"] == f"29: {VAGUE}"


def test_the_only_capability_of_an_agent_is_not_started_by_a_greeting() -> None:
    done: list[str] = []

    async def wipe() -> str:
        """Delete all files."""
        done.append("wiped")
        return "wiped"

    async def chat(ctx: Context) -> str:
        """Talk."""
        return f"you said {ctx.message}"

    def one(function: Any) -> LocalAgent:
        agent = LocalAgent(function.__name__ + "r")
        agent.add(function)
        return agent

    async def main() -> None:
        async with build(Settings(storage=Storage(url=":memory:")), [one(wipe), one(chat)]) as server:
            me, gateway = Caller(LOCAL, "test"), server.gateway

            async def call(agent: str, said: str, **more: Any) -> Outcome:
                return await gateway.call(me, CallRequest(agent=agent, message=said, **more))

            for answer, outcome in (("no", Failed), ("yes", Done)):
                asked = await call("wiper", VAGUE)
                assert isinstance(asked, Needs)
                assert "Should it do this?\n- wipe: Delete all files." in asked.questions[0].text
                assert not done
                assert asked.job is not None
                assert isinstance(await gateway.reply(me, asked.job, answer), outcome)
            for more in ({}, {"capability": "wipe"}):
                assert isinstance(await call("wiper", "delete all files", **more), Done)
            assert done == ["wiped"] * 3
            assert isinstance(await call("chatr", VAGUE), Done)

    asyncio.run(main())


def test_the_question_is_in_the_language_of_the_message() -> None:
    offered = [Capability(name=name, description=f"Does {name}.") for name in ("sow", "reap")]
    assert write_question("Farm", offered, "do it now please") == (
        "It is not clear what Farm should do. Which one do you mean?\n- sow: Does sow.\n- reap: Does reap."
    )
    assert write_question("Farm", offered * 15, "quiero que lo hagas hoy por favor").endswith(
        "… y 10 más; indique el nombre."
    )


def test_every_turn_is_in_the_ledger_under_what_it_was_for(gateway: Hosted) -> None:
    job = gateway.call("desk", VAGUE).json["job"]
    gateway.post(f"/v1/calls/{job}/answer", {"message": "rate"})
    rows = [(row["turn"], row["capability"], row["status"]) for row in gateway.rows("calls") if row["job"] == job]
    assert sorted(rows) == [(1, "", "needs"), (2, "rate", "done")]


def test_what_a_caller_may_not_call_is_neither_listed_nor_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA_KEY", "ada-key-of-sixteen")
    agent = desk()

    @agent.capability()
    async def secret(text: str) -> str:
        """Open the safe."""
        raise AssertionError

    rules = (Rule("deny", "ada", "desk", "secret"), Rule("allow", "ada"))
    limits = Limits(per_minute=60, burst=1)
    settings = Settings(clients=(Known(id="ada", key="env:ADA_KEY"),), rules=rules, limits=limits)
    with hosted(tmp_path, [agent], settings) as door:
        ada = door.as_("ada-key-of-sixteen")
        asked = ada.call("desk", VAGUE).json
        assert asked["questions"][0]["schema"]["enum"] == NAMES
        answer = f"/v1/calls/{asked['job']}/answer"
        for name in ("secret", "xyzzy"):  # whether it is there is not told
            again = ada.post(answer, {"message": name}).json
            assert again["questions"][0]["text"].endswith(f"(invalid: '{name}')")
        # The question was no call: the only one of this minute is still to be had.
        assert ada.post(answer, {"message": "rate"}).json["result"] == f"rate of {VAGUE}"
        refused = ada.post(f"/v1/calls/{ada.call('desk', VAGUE).json['job']}/answer", {"message": "rate"})
        assert (refused.status, refused.error["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) > 0
