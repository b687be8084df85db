"""One agent on the network, asked in plain HTTP: what every generation says and hears."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from agent3.definitions import AgentExtension, AgentFeatures
from agent3.errors import TargetError
from agent3.protocols.a2a.agents.serving import listening
from agent3.protocols.a2a.cards.extensions import SEARCH, TIMED_OUT, TRACEABILITY, USAGE, Extensions
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from tests.support.a2a_toy import V1, codes, frames, message, rpc, toy, unary
from tests.support.gateway import Door, Reply

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def agent() -> Iterator[Door]:
    core = Standalone()
    with listening(toy(), core=core, features=AgentFeatures(streaming=True, extendedAgentCard=True)) as url:
        yield Door(url)
    core.close()


def v03(text: str, skill: str = "echo") -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    return {
        "kind": "message",
        "messageId": f"m-{text}-{skill}",
        "role": "user",
        "parts": parts,
        "metadata": {"skill": skill},
    }


@pytest.mark.parametrize("path", ["/tasks", "/.well-known/agent-card.json"])
def test_a_query_of_too_many_fields_is_refused(agent: Door, path: str) -> None:
    asked = "&".join(f"a-{number}=1" for number in range(101))
    refused = agent.get(f"{path}?A2A-Version=1.0&{asked}", **V1)
    assert (refused.status, refused.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert codes(agent.post(f"/?{asked}", b"{}", content_type="application/json"))[1] == -32600


# JSON-RPC


def test_a_message_of_1_0_becomes_a_task_with_its_result(agent: Door) -> None:
    task = unary(rpc(agent, "SendMessage", {"message": message("hello")}))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "echo: hello"}]
    read = unary(rpc(agent, "GetTask", {"id": task["id"]}))
    assert read["id"] == task["id"]
    assert read["artifacts"] == task["artifacts"]


def test_structured_input_comes_in_a_data_part(agent: Door) -> None:
    asked = message("", None, parts=[{"data": {"skill": "add", "input": {"left": 2, "right": 3}}}])
    task = unary(rpc(agent, "SendMessage", {"message": asked}))["task"]
    assert task["artifacts"][0]["parts"] == [{"data": {"sum": 5}}]


def test_a_capability_may_answer_with_a_mere_message(agent: Door) -> None:
    said = unary(rpc(agent, "SendMessage", {"message": message("you", "chat")}))["message"]
    assert said["role"] == "ROLE_AGENT"
    assert said["parts"] == [{"text": "hi, you"}]


def test_a_message_that_names_no_skill_is_understood_by_its_words(agent: Door) -> None:
    task = unary(rpc(agent, "SendMessage", {"message": message("tell a tale about dragons", None)}))["task"]
    assert task["artifacts"][0]["parts"] == [{"text": "Once upon dragons"}]
    asked = unary(rpc(agent, "SendMessage", {"message": message("zzz qqq", None)}))["task"]
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert "echo" in asked["status"]["message"]["parts"][1]["data"]["schema"]["enum"]
    unknown = rpc(agent, "SendMessage", {"message": message("x", "ecko")})
    assert "'echo'" in unknown.json["error"]["message"]


def test_a_large_result_comes_whole(agent: Door) -> None:
    large = "x" * 100_000
    task = unary(rpc(agent, "SendMessage", {"message": message(large)}))["task"]
    assert task["artifacts"][0]["parts"][0]["text"] == f"echo: {large}"


def test_a_task_that_asks_goes_on_with_the_answer(agent: Door) -> None:
    task = unary(rpc(agent, "SendMessage", {"message": message("Rome", "book")}))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["parts"][0] == {"text": "Which seat?"}
    answer = message("12A", None, taskId=task["id"])
    done = unary(rpc(agent, "SendMessage", {"message": answer}))["task"]
    assert (done["id"], done["contextId"]) == (task["id"], task["contextId"])
    assert done["artifacts"][0]["parts"] == [{"text": "Rome 12A"}]


def test_the_same_message_gets_the_same_task(agent: Door) -> None:
    same = message("once")
    first = unary(rpc(agent, "SendMessage", {"message": same}))["task"]
    assert unary(rpc(agent, "SendMessage", {"message": same}))["task"]["id"] == first["id"]


@pytest.mark.requirement("SL-01")
def test_0_3_is_answered_in_its_own_words(agent: Door) -> None:
    task = unary(rpc(agent, "message/send", {"message": v03("hallo")}, a2a_version=""))
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "echo: hallo"}]
    read = unary(rpc(agent, "tasks/get", {"id": task["id"]}, a2a_version=""))
    assert read["kind"] == "task"


@pytest.mark.requirement("SP-01")
def test_0_1_is_answered_in_its_own_words(agent: Door) -> None:
    said = {"role": "user", "parts": [{"type": "text", "text": "ciao"}], "metadata": {"skill": "echo"}}
    task = unary(rpc(agent, "tasks/send", {"id": "mine-1", "sessionId": "s1", "message": said}, a2a_version=""))
    assert (task["id"], task["sessionId"], task["status"]["state"]) == ("mine-1", "s1", "completed")
    assert task["artifacts"][0]["parts"] == [{"type": "text", "text": "echo: ciao"}]
    assert "kind" not in task
    # The name is shared with 0.3; the task remembers who began it.
    read = unary(rpc(agent, "tasks/get", {"id": "mine-1"}, a2a_version=""))
    assert "kind" not in read
    assert read["sessionId"] == "s1"


def test_0_1_streams_in_its_own_words(agent: Door) -> None:
    said = {"role": "user", "parts": [{"type": "text", "text": "time"}], "metadata": {"skill": "story"}}
    events = frames(rpc(agent, "tasks/sendSubscribe", {"id": "mine-2", "message": said}, a2a_version=""))
    results = [body["result"] for _, body in events]
    assert all(result["id"] == "mine-2" for result in results)
    assert results[-1]["final"] is True
    assert results[-1]["status"]["state"] == "completed"
    assert any("artifact" in result for result in results)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{nonsense", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"NoSuch","params":{}}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"no-such"}}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"role":"ROLE_USER"}}}', -32602),
    ],
)
def test_what_is_wrong_has_the_code_of_1_0(agent: Door, body: bytes, code: int) -> None:
    assert codes(agent.post("/", body, content_type="application/json", **V1)) == (200, code)


@pytest.mark.requirement("SP-15")
def test_codes_are_those_of_the_generation(agent: Door) -> None:
    ended = unary(rpc(agent, "SendMessage", {"message": message("over")}))["task"]["id"]
    again = {"role": "user", "parts": [{"type": "text", "text": "more"}]}
    assert codes(rpc(agent, "tasks/send", {"id": ended, "message": again}, a2a_version="")) == (200, -32009)
    more = message("more", None, taskId=ended)
    assert codes(rpc(agent, "SendMessage", {"message": more})) == (200, -32004)
    assert codes(rpc(agent, "CancelTask", {"id": ended})) == (200, -32002)
    assert codes(rpc(agent, "tasks/cancel", {"id": ended}, a2a_version="0.3")) == (200, -32002)
    assert rpc(agent, "GetTask", {"id": "none"}).json["error"]["data"][0]["reason"] == "TASK_NOT_FOUND"


def test_versions_are_negotiated(agent: Door) -> None:
    asked = {"message": message("v")}
    assert codes(rpc(agent, "SendMessage", asked, a2a_version="99.0")) == (200, -32009)
    assert codes(rpc(agent, "SendMessage", asked, a2a_version="")) == (200, -32009)
    assert codes(rpc(agent, "SendMessage", asked, a2a_version="0.3")) == (200, -32009)
    unary(rpc(agent, "SendMessage", asked, path="/?A2A-Version=1.0", a2a_version="1.0"))
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": asked}
    unary(agent.post("/?A2A-Version=1.0", body, content_type="application/json"))


def test_a_lenient_endpoint_takes_the_words_of_1_0_without_its_version() -> None:
    core = Standalone()
    with listening(toy(), core=core, lenient=True) as url:
        unary(rpc(Door(url), "SendMessage", {"message": message("v")}, a2a_version=""))
        assert Door(url).get("/tasks").status == 200
    core.close()


def test_a_body_of_another_kind_or_size_is_refused(agent: Door) -> None:
    assert codes(agent.post("/", b"x", content_type="text/plain", **V1)) == (200, -32005)
    reply = agent.post("/message:send", b"x", content_type="text/plain", **V1)
    assert reply.status == 400
    deep = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b"[" * 100 + b"]" * 100 + b"}"
    assert codes(agent.post("/", deep, content_type="application/json", **V1)) == (413, -32600)


# Streams


@pytest.mark.requirement("SL-11")
def test_a_stream_tells_the_task_its_pieces_and_its_end_with_ids(agent: Door) -> None:
    events = frames(rpc(agent, "SendStreamingMessage", {"message": message("time", "story")}))
    items = [body["result"] for _, body in events]
    assert "task" in items[0]
    pieces = [item["artifactUpdate"] for item in items if "artifactUpdate" in item]
    assert "".join(part["text"] for piece in pieces for part in piece["artifact"]["parts"]) == "Once upon time"
    assert items[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    numbers = [int(frame.id or "") for frame, _ in events]
    assert numbers == sorted(set(numbers))


@pytest.mark.requirement("SL-12")
def test_a_stream_is_taken_up_after_the_last_event_that_was_seen(agent: Door) -> None:
    events = frames(rpc(agent, "SendStreamingMessage", {"message": message("time", "story")}))
    task = events[0][1]["result"]["task"]["id"]
    for seen in range(1, len(events)):
        last = events[seen - 1][0].id or ""
        (now, first), *rest = frames(rpc(agent, "SubscribeToTask", {"id": task}, last_event_id=last))
        assert (now.id, first["result"]["task"]["id"]) == (last, task)
        assert rest == events[seen:]
    assert codes(rpc(agent, "SubscribeToTask", {"id": task})) == (200, -32004)
    assert codes(rpc(agent, "SubscribeToTask", {"id": task}, last_event_id="x")) == (200, -32602)


def test_what_fails_before_the_first_event_is_no_stream_in_1_0(agent: Door) -> None:
    reply = rpc(agent, "SubscribeToTask", {"id": "no-such"})
    assert codes(reply) == (200, -32001)
    assert reply.headers["content-type"] == "application/json"
    ((_, earlier),) = frames(rpc(agent, "tasks/resubscribe", {"id": "no-such"}, a2a_version=""))
    assert earlier["error"]["code"] == -32001
    assert agent.post("/tasks/no-such:subscribe", **V1).status == 404
    assert agent.post("/v1/tasks/no-such:subscribe").status == 404


def hanging(door: Door) -> tuple[HTTPConnection, HTTPResponse, str]:
    """A stream of a task that does not end by itself, after its first event: the connection, its answer, the task."""
    asked = {"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage", "params": {"message": message("x", "hang")}}
    connection = door.connect()
    connection.request("POST", "/", json.dumps(asked), {"content-type": "application/json", "a2a-version": "1.0"})
    answer = connection.getresponse()
    line = b""
    while not line.startswith(b"data: "):
        line = answer.readline()
    return connection, answer, json.loads(line[6:])["result"]["task"]["id"]


def test_who_hangs_up_has_only_stopped_listening(agent: Door) -> None:
    connection, answer, task = hanging(agent)
    answer.close()
    connection.close()
    read = unary(rpc(agent, "GetTask", {"id": task}))
    assert read["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    canceled = unary(rpc(agent, "CancelTask", {"id": task}))
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


def test_a_silent_stream_says_that_it_is_still_there() -> None:
    core = Standalone()
    with listening(toy(), core=core, beat=0.05) as url:
        connection, answer, task = hanging(Door(url))
        assert any(answer.readline().startswith(b":") for _ in range(50))
        unary(rpc(Door(url), "CancelTask", {"id": task}))
        assert b"TASK_STATE_CANCELED" in answer.read()
        connection.close()
    core.close()


# REST


def test_rest_of_1_0_says_the_same_as_json_rpc(agent: Door) -> None:
    reply = agent.post("/message:send", {"message": message("rest")}, content_type="application/a2a+json", **V1)
    task = reply.json["task"]
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert task["artifacts"][0]["parts"] == [{"text": "echo: rest"}]
    read = agent.get(f"/tasks/{task['id']}?historyLength=0", accept="application/a2a+json", **V1)
    assert read.headers["content-type"] == "application/a2a+json"
    assert "history" not in read.json
    listed = agent.get(f"/tasks?contextId={task['contextId']}&pageSize=1", **V1).json
    assert [each["id"] for each in listed["tasks"]] == [task["id"]]
    assert (listed["totalSize"], listed["nextPageToken"]) == (1, "")


def test_rest_of_0_3_is_answered_in_its_own_words(agent: Door) -> None:
    said = {"messageId": "r3", "role": "ROLE_USER", "content": [{"text": "alt"}], "metadata": {"skill": "echo"}}
    reply = agent.post("/v1/message:send", {"request": said}, content_type="application/json")
    task = reply.json["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert agent.get(f"/v1/tasks/{task['id']}").json["id"] == task["id"]


def test_rest_streams(agent: Door) -> None:
    events = frames(
        agent.post("/message:stream", {"message": message("time", "story")}, content_type="application/json", **V1)
    )
    assert "task" in events[0][1]
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/tasks/none", 404),
        ("GET", "/nothing", 404),
        ("PUT", "/tasks", 405),
        ("GET", "/message:send", 405),
        ("POST", "/tasks/none:cancel", 404),
        ("GET", "/tasks?pageSize=0", 400),
        ("GET", "/other/tasks", 404),
        ("GET", "/", 404),
    ],
)
def test_rest_errors_have_the_status_of_1_0_1(agent: Door, method: str, path: str, status: int) -> None:
    reply = agent.ask(method, path, **V1)
    assert reply.status == status, reply.raw
    error = reply.json["error"]
    assert error["code"] == status
    assert error["details"][0]["@type"].endswith("ErrorInfo")
    assert status != 405 or reply.headers["allow"]


@pytest.mark.parametrize("body", [b'{"message": 5, "x": Infinity}', b'{"message": 5', b'{"message": 5, "x": "\xff"}'])
def test_what_is_wrong_first_and_no_json_after_that_is_refused(agent: Door, body: bytes) -> None:
    refused = agent.post("/message:send", body, content_type="application/json", **V1)
    assert (refused.status, refused.json["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_path_of_1_0_without_its_version_is_refused(agent: Door) -> None:
    reply = agent.get("/tasks")
    assert (reply.status, reply.json["error"]["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")
    assert agent.get("/v1/tasks/none", a2a_version="99.0").status == 400


# Cards


def card(door: Door, path: str = "/.well-known/agent-card.json", **headers: str) -> Reply:
    return door.get(path, **headers)


@pytest.mark.requirement("SP-02")
def test_one_card_is_for_every_generation(agent: Door) -> None:
    reply = card(agent)
    document = reply.json
    assert document == card(agent, "/.well-known/agent.json").json
    assert document["url"] == agent.url
    spoken = {
        (interface["protocolBinding"], interface["protocolVersion"]) for interface in document["supportedInterfaces"]
    }
    assert spoken == {("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")}
    assert document["capabilities"]["streaming"] is True
    assert {skill["id"] for skill in document["skills"]} >= {"echo", "add", "story", "book"}
    assert {extension["uri"] for extension in document["capabilities"]["extensions"]} >= {
        USAGE,
        TRACEABILITY,
        SEARCH,
        TIMED_OUT,
    }
    assert "url" not in card(agent, "/.well-known/agent-card.json?format=1.0").json
    assert "url" not in card(agent, **V1).json
    assert "supportedInterfaces" not in card(agent, a2a_version="0.3").json
    assert card(agent, "/.well-known/agent-card.json?format=9").status == 400


def test_a_card_is_cached_by_its_tag(agent: Door) -> None:
    reply = card(agent)
    assert "max-age=" in reply.headers["cache-control"]
    assert reply.headers["last-modified"].endswith("GMT")
    again = card(agent, if_none_match=reply.headers["etag"])
    assert (again.status, again.raw) == (304, b"")
    assert card(agent, if_none_match='"other"').status == 200
    assert agent.ask("HEAD", "/.well-known/agent-card.json").headers["etag"] == reply.headers["etag"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_has_nothing_to_tell_yet_shows_that_it_is_there(fails: bool) -> None:
    ready = threading.Event()
    slow = LocalAgent("slow")

    async def think(text: str) -> str:
        """Answer with a mere message, when it is ready."""
        await asyncio.to_thread(ready.wait, 60)
        if fails:
            raise TargetError("thought in vain")
        return f"thought of {text}"

    slow.add(think, meta={"a2a": {"answer": "message"}})
    core = Standalone()
    with listening(slow, core=core, beat=0.05) as url:
        connection = Door(url).connect()
        body = {
            "jsonrpc": "2.0",
            "id": 7,
            "method": "SendStreamingMessage",
            "params": {"message": message("it", "think")},
        }
        headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
        connection.request("POST", "/", json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.readline() == b": still here\n"
        assert (answer.readline(), answer.readline()) == (b"\n", b": still here\n")
        ready.set()
        rest = answer.read()
        assert (b"thought in vain" in rest) is fails
        assert (b"thought of it" in rest) is not fails
        connection.close()
    core.close()


def test_what_is_refused_at_once_is_no_stream_for_all_its_heartbeat() -> None:
    core = Standalone()
    with listening(toy(), core=core, beat=600.0) as url:
        refused = rpc(Door(url), "SendStreamingMessage", {"message": message("hi", "nothing")})
        assert refused.headers["content-type"] == "application/json"
    core.close()


def test_the_extended_card_is_told_in_every_generation(agent: Door) -> None:
    assert "supportedInterfaces" in unary(rpc(agent, "GetExtendedAgentCard", {}))
    assert "url" in unary(rpc(agent, "agent/getAuthenticatedExtendedCard", {}, a2a_version=""))
    assert agent.get("/extendedAgentCard", **V1).json["name"] == "toy"
    assert agent.get("/v1/card").json["name"] == "toy"
    assert agent.get("/agent/authenticatedExtendedCard").json["name"] == "toy"


def test_what_is_not_declared_is_not_done() -> None:
    core = Standalone()
    with listening(toy(), core=core, features=AgentFeatures()) as url:
        door = Door(url)
        assert codes(rpc(door, "SendStreamingMessage", {"message": message("x")})) == (200, -32004)
        assert codes(rpc(door, "GetExtendedAgentCard", {})) == (200, -32004)
        assert codes(rpc(door, "agent/getAuthenticatedExtendedCard", {}, a2a_version="")) == (200, -32007)
        said = {"role": "user", "parts": [{"type": "text", "text": "x"}]}
        assert codes(rpc(door, "tasks/sendSubscribe", {"id": "t", "message": said}, a2a_version="")) == (200, -32006)
        task = unary(rpc(door, "SendMessage", {"message": message("x")}))["task"]["id"]
        config = {"taskId": task, "url": "https://example.com/hook"}
        assert codes(rpc(door, "CreateTaskPushNotificationConfig", config)) == (200, -32003)
    core.close()


# Extensions


@pytest.mark.requirement("SL-10")
def test_extensions_do_nothing_until_they_are_activated(agent: Door) -> None:
    plain = rpc(agent, "SendMessage", {"message": message("plain")}, traceparent=TRACE)
    assert "a2a-extensions" not in plain.headers
    assert "metadata" not in unary(plain)["task"]
    reply = rpc(
        agent, "SendMessage", {"message": message("x")}, traceparent=TRACE, a2a_extensions=f"{TRACEABILITY}, urn:x"
    )
    assert reply.headers["a2a-extensions"] == TRACEABILITY
    assert unary(reply)["task"]["metadata"][TRACEABILITY]["traceId"] == TRACE.split("-")[1]


@pytest.mark.requirement("SL-10")
def test_usage_is_data_that_a_task_carries(agent: Door) -> None:
    reply = rpc(agent, "SendMessage", {"message": message("cost")}, a2a_extensions=USAGE)
    assert set(unary(reply)["task"]["metadata"][USAGE]) <= {"tokens", "cost", "estimated", "retries"}


@pytest.mark.requirement("SL-10")
def test_tasks_search_is_a_method_of_an_extension(agent: Door) -> None:
    unary(rpc(agent, "SendMessage", {"message": message("needle in the hay")}))
    assert codes(rpc(agent, "tasks/search", {"query": "needle"})) == (200, -32601)
    found = unary(rpc(agent, "tasks/search", {"query": "needle"}, a2a_extensions=SEARCH))
    assert len(found["tasks"]) == 1
    assert unary(rpc(agent, "tasks/search", {"query": "no such words"}, a2a_extensions=SEARCH))["tasks"] == []


@pytest.mark.requirement("SL-10")
def test_a_task_that_ran_out_of_time_is_in_a_state_of_its_own(agent: Door) -> None:
    reply = rpc(agent, "SendMessage", {"message": message("it", "late")}, a2a_extensions=TIMED_OUT)
    task = unary(reply)["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["metadata"][TIMED_OUT]["state"] == "TASK_STATE_TIMED_OUT"
    other = rpc(agent, "SendMessage", {"message": message("it", "break_")}, a2a_extensions=TIMED_OUT)
    assert "metadata" not in unary(other)["task"]


def test_a_required_extension_that_is_not_activated_refuses_the_request() -> None:
    core = Standalone()
    needed = Extensions(AgentExtension(uri="urn:test:needed", required=True))
    with listening(toy(), core=core, extensions=needed) as url:
        door = Door(url)
        assert codes(rpc(door, "SendMessage", {"message": message("x")})) == (200, -32008)
        unary(rpc(door, "SendMessage", {"message": message("x")}, a2a_extensions="urn:test:needed"))
        assert (
            door.post("/message:send", {"message": message("x")}, content_type="application/json", **V1).status == 400
        )
        assert [extension for extension in card(door).json["capabilities"]["extensions"] if extension.get("required")]
    core.close()


# Who may


def test_only_this_machine_and_no_page_of_another_site_may_call(agent: Door) -> None:
    asked = {"message": message("x")}
    assert rpc(agent, "SendMessage", asked, host="evil.example").status == 403
    assert rpc(agent, "SendMessage", asked, origin="https://evil.example").status == 403
    assert codes(rpc(agent, "SendMessage", asked, x_forwarded_for="10.0.0.1"))[0] == 401


@pytest.mark.requirement("SP-11")
def test_who_does_not_prove_who_it_is_gets_401_in_the_words_of_its_generation(agent: Door) -> None:
    stranger = {"x_forwarded_for": "10.0.0.1"}
    reply = rpc(agent, "tasks/send", {"id": "t", "message": {"role": "user", "parts": []}}, a2a_version="", **stranger)
    assert codes(reply) == (401, -32007)
    assert reply.headers["www-authenticate"] == "Bearer"
    assert agent.get("/tasks", **V1, **stranger).status == 401
    assert card(agent, **stranger).status == 200
