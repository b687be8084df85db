"""The REST door of a real gateway process: every route with good and bad input, and errors in their one form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent3 import AgentCard, AgentExecutor
from agent3.model import Part
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage
from tests.support.gateway import Door, Process, gateway, hosted


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("rest"), "--demo") as running:
        yield running


def test_agents_are_listed_and_searched(door: Door) -> None:
    listed = door.get("/v1/agents").json
    assert {"calculator", "echo", "images", "pizza", "story"} <= {agent["id"] for agent in listed["agents"]}
    assert listed["count"] == len(listed["agents"])
    found = door.get("/v1/agents?query=pizza%20delivery&limit=1").json
    assert [agent["id"] for agent in found["agents"]] == ["pizza"]
    posted = door.post("/v1/search", {"query": "pizza delivery", "limit": 1.0}).json
    assert [(hit["id"], hit["capability"]) for hit in posted["agents"]] == [("pizza", "order")]
    assert found["agents"][0]["capabilities"][0]["name"] == "order"


def test_a_search_that_finds_nothing_is_an_empty_list(door: Door) -> None:
    assert door.post("/v1/search", {"query": "zzzz qqqq"}).json["agents"] == []


def test_an_agent_is_shown_in_detail_and_as_a_card(door: Door) -> None:
    shown = door.get("/v1/agents/pizza").json
    order = shown["capabilities"][0]
    assert (shown["id"], shown["status"], shown["rating"]["count"]) == ("pizza", "active", 0)
    assert order["inputSchema"]["required"] == ["message"]
    assert order["price"] == {"call": 0.001}
    card = door.get("/v1/agents/pizza/card").json
    assert [skill["id"] for skill in card["skills"]] == ["order", "menu"]


def test_a_call_has_the_form_of_the_design(door: Door) -> None:
    answer = door.call("echo", "hello").json
    assert answer["success"] is True
    assert answer["result"] == "hello"
    metadata = answer["metadata"]
    assert set(metadata) == {"responseTime", "tokensUsed", "cost", "statusCode", "retryCount"}
    assert metadata["responseTime"] > 0
    assert (metadata["statusCode"], metadata["retryCount"]) == (200, 0)


def test_structured_input_and_a_named_capability_are_taken_as_they_are(door: Door) -> None:
    answer = door.call("calculator", capability="calculate", input={"expression": "2 * (3 + 4)"}).json
    assert answer["result"] == 14
    menu = door.call("pizza", capability="menu").json
    assert {"topping": "tuna", "small": 8, "medium": 11, "large": 14} in menu["result"]


def test_json_as_a_message_says_so_by_its_input_mode(door: Door) -> None:
    answer = door.call("calculator", '{"expression": "1 + 1"}', inputMode="application/json").json
    assert answer["result"] == 2
    wrong = door.call("calculator", "{", inputMode="application/json")
    assert wrong.status == 422
    assert "is not valid application/json" in wrong.json["error"]


def test_a_call_that_fails_keeps_its_form_and_has_the_status_of_the_failure(door: Door) -> None:
    answer = door.call("calculator", "2 +")
    assert answer.status == 422
    body = answer.json
    assert body["success"] is False
    assert body["error"].startswith("'2 +' is not arithmetic")
    assert (body["errorCode"], body["metadata"]["statusCode"]) == ("invalid_input", 422)


def test_feedback_counts_once_for_each_caller(door: Door) -> None:
    assert door.call("echo", "hello").json["success"]
    door.post("/v1/feedback", {"agentId": "echo", "rating": 1})
    told = door.post("/v1/feedback", {"agentId": "echo", "rating": 5, "comment": "quick"}).json
    assert told == {"agentId": "echo", "recorded": True, "rating": {"count": 1, "mean": 5.0}}
    assert door.get("/v1/agents/echo").json["rating"]["mean"] == 5.0


WRONG: list[tuple[str, str, Any, int, str, str]] = [
    ("GET", "/v1/agents?limit=0", None, 400, "invalid_request", "from 1 to 50"),
    ("GET", "/v1/agents?limit=51", None, 400, "invalid_request", "from 1 to 50"),
    ("GET", "/v1/agents?limit=-1", None, 400, "invalid_request", "whole number"),
    ("GET", "/v1/agents?limit=%C2%B2", None, 400, "invalid_request", "whole number"),
    ("GET", "/v1/agents?limit=" + "0" * 5000 + "1", None, 400, "invalid_request", "whole number"),
    ("GET", "/v1/agents/piza", None, 404, "agent_not_found", "Did you mean 'pizza'?"),
    ("GET", "/v1/agents/piza/card", None, 404, "agent_not_found", "Did you mean 'pizza'?"),
    ("POST", "/v1/search", {}, 422, "invalid_input", "Missing required parameter: query"),
    ("POST", "/v1/search", {"query": 5}, 422, "invalid_input", "query"),
    ("POST", "/v1/search", {"query": "x", "limit": 0}, 422, "invalid_input", "limit"),
    ("POST", "/v1/search", {"query": "x", "limt": 3}, 422, "invalid_input", "limit"),
    ("POST", "/v1/search", b"", 422, "invalid_input", "Missing required parameter: query"),
    ("POST", "/v1/search", b"{", 400, "parse_error", "not JSON"),
    ("POST", "/v1/search", b"\xff\xfe", 400, "parse_error", "not JSON"),
    ("POST", "/v1/search", b"[1]", 422, "invalid_input", "must be a JSON object"),
    ("POST", "/v1/search", b"[" * 1_000 + b"]" * 1_000, 413, "too_large", "nested deeper"),
    ("POST", "/v1/search", b"[" * 500_000, 413, "too_large", "values"),
    ("POST", "/v1/search", b'{"query": ' + b"1" * 5000 + b"}", 413, "too_large", "number"),
    ("POST", "/v1/call", {}, 422, "invalid_input", "Missing required parameter: agentId"),
    ("POST", "/v1/call", {"agentId": "piza", "message": "x"}, 404, "agent_not_found", "Did you mean 'pizza'?"),
    ("POST", "/v1/call", {"agentId": "pizza", "capability": "ordr"}, 404, "capability_not_found", "'order'?"),
    ("POST", "/v1/call", {"agentId": "echo", "metadata": {"timeout": 0}}, 422, "invalid_input", "timeout"),
    ("POST", "/v1/call", {"agentId": "echo", "metadata": {"retries": 11}}, 422, "invalid_input", "retries"),
    ("POST", "/v1/call", {"agentId": "echo", "metadata": {"job": "nope"}}, 404, "job_not_found", "nope"),
    ("GET", "/v1/calls/nope", None, 404, "job_not_found", "nope"),
    ("GET", "/v1/calls/nope?wait=61", None, 400, "invalid_request", "from 0 to 60"),
    ("GET", "/v1/calls/nope/events", None, 404, "job_not_found", "nope"),
    ("POST", "/v1/calls/nope/answer", {"message": "x"}, 404, "job_not_found", "nope"),
    ("POST", "/v1/calls/nope/answer", {}, 422, "invalid_input", "answers"),
    ("POST", "/v1/calls/nope/answer", {"answers": "x"}, 422, "invalid_input", "answers"),
    ("POST", "/v1/calls/nope/answer", {"message": {}}, 422, "invalid_input", "message"),
    ("POST", "/v1/calls/nope/answer", {"message": "x", "more": 1}, 422, "invalid_input", "message"),
    ("POST", "/v1/calls/nope/cancel", None, 404, "job_not_found", "nope"),
    ("POST", "/v1/feedback", {"agentId": "echo", "rating": 6}, 422, "invalid_input", "rating"),
    ("POST", "/v1/feedback", {"agentId": "ecco", "rating": 5}, 404, "agent_not_found", "'echo'"),
    ("GET", "/v1/artifacts/nope", None, 404, "not_found", "does not exist"),
    ("GET", "/v1/nothing", None, 404, "not_found", "/openapi.json"),
    ("GET", "/v1/call", None, 405, "method_not_allowed", "/v1/call does not support GET."),
    ("PATCH", "/v1/agents/pizza", None, 405, "method_not_allowed", "PATCH"),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "words"),
    WRONG,
    ids=[f"{one[0]} {one[1][:40]} {one[4]}" for one in WRONG],
)
def test_wrong_requests_are_refused_in_one_form(
    door: Door, method: str, path: str, body: Any, status: int, code: str, words: str
) -> None:
    reply = door.ask(method, path, body)
    error = reply.error
    assert (reply.status, error["code"]) == (status, code)
    assert words in error["message"]
    assert "Traceback" not in error["message"]


def test_every_fault_of_a_body_is_named_at_once(door: Door) -> None:
    error = door.post("/v1/feedback", {"rating": "five", "coment": "x"}).error
    told = json.dumps(error["data"]["errors"])
    assert all(word in told for word in ("agentId", "rating", "comment"))


def test_a_method_that_is_not_for_a_path_is_told_which_are(door: Door) -> None:
    assert door.get("/v1/call").headers["allow"] == "POST"


def test_a_huge_body_is_refused_without_being_read_to_its_end(door: Door) -> None:
    assert door.post("/v1/search", b" " * (1 << 20) + b"{}").error["code"] == "too_large"


def test_a_name_that_looks_like_a_path_or_markup_comes_back_harmless(door: Door) -> None:
    reply = door.get("/v1/agents/%3Cscript%3E")
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/json"


def test_a_question_is_answered_by_the_job_it_came_with(door: Door) -> None:
    asked = door.call("pizza", "a pizza").json
    assert (asked["success"], asked["status"]) == (False, "needs")
    assert asked["questions"][0]["schema"]["enum"] == ["small", "medium", "large"]
    assert asked["metadata"]["responseTime"] > 0
    shown = door.get(f"/v1/calls/{asked['job']}").json
    assert (shown["status"], shown["questions"]) == ("needs", asked["questions"])
    next_one = door.post(f"/v1/calls/{asked['job']}/answer", {"answers": {"q1": "large"}}).json
    assert next_one["questions"][0]["text"] == "Which topping?"
    done = door.post(f"/v1/calls/{asked['job']}/answer", {"message": "tuna"}).json
    assert done["success"] is True
    assert (done["result"]["size"], done["result"]["topping"]) == ("large", "tuna")
    ended = door.get(f"/v1/calls/{asked['job']}").json
    assert (ended["status"], ended["result"]) == ("done", done["result"])
    assert ended["metadata"]["statusCode"] == 200


def test_an_answer_that_does_not_fit_is_asked_for_again(door: Door) -> None:
    asked = door.call("pizza", "a tuna pizza").json
    again = door.post(f"/v1/calls/{asked['job']}/answer", {"message": "huge"}).json
    assert again["status"] == "needs"
    assert "invalid: " in again["questions"][0]["text"]
    done = door.post(f"/v1/calls/{asked['job']}/answer", {"message": "small"}).json
    assert done["result"]["size"] == "small"


def test_a_text_answers_a_question_for_a_number(door: Door) -> None:
    asked = door.call("story", capability="guess").json
    for number in "123":
        asked = door.post(f"/v1/calls/{asked['job']}/answer", {"message": number}).json
        if asked["success"]:
            break
        assert "invalid: " not in asked["questions"][0]["text"]
    assert "was" in asked["result"]


def test_an_answer_can_also_come_as_a_call_and_only_for_the_agent_that_asked(door: Door) -> None:
    job = door.call("pizza", "a tuna pizza").json["job"]
    assert door.call("echo", "small", metadata={"job": job}).error["code"] == "job_not_found"
    looked = door.call("pizza", metadata={"job": job}).json
    assert (looked["status"], looked["job"]) == ("needs", job)
    done = door.call("pizza", "small", metadata={"job": job}, prefer="respond-async")
    assert (done.status, done.json["result"]["size"]) == (200, "small")


def test_a_job_that_has_ended_takes_no_further_answer(door: Door) -> None:
    job = door.call("pizza", "a tuna pizza").json["job"]
    door.post(f"/v1/calls/{job}/answer", {"message": "small"})
    late = door.post(f"/v1/calls/{job}/answer", {"message": "large"})
    assert (late.status, late.error["code"]) == (409, "turn_taken")


def test_a_waiting_job_is_cancelled_and_stays_so(door: Door) -> None:
    job = door.call("pizza", "a pizza").json["job"]
    cancelled = door.post(f"/v1/calls/{job}/cancel").json
    assert (cancelled["status"], cancelled["errorCode"]) == ("canceled", "canceled")
    assert door.post(f"/v1/calls/{job}/cancel").json["status"] == "canceled"
    assert door.post(f"/v1/calls/{job}/answer", {"message": "small"}).status == 409


def test_the_home_page_and_the_health_pages_answer(door: Door) -> None:
    home = door.get("/")
    assert f"{door.url}/mcp" in home.raw.decode()
    assert door.get("/healthz").json["status"] == "ok"
    assert door.get("/readyz").json == {"status": "ready"}


def test_the_metrics_count_calls_by_door(door: Door) -> None:
    door.call("echo", "counted")
    page = door.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    text = page.raw.decode()
    assert 'door="rest"' in text
    assert "mcp_auth_failures_total 0.0" in text


def test_the_greeting_names_addresses_configuration_and_a_command(door: Process, tmp_path: Path) -> None:
    text = "\n".join(door.lines)
    for word in (f"{door.url}/mcp", "/openapi.json", "/healthz", '"mcpServers"', "claude mcp add", "call pizza"):
        assert word in text
    start = text.index("  {\n")
    config = json.loads(text[start : text.index("\n  or, for")])
    assert config["mcpServers"]["agent3"]["url"] == f"{door.url}/mcp"


CLIENTS = f"""
[[clients]]
id = "ann"
key = "sha256:{hashlib.sha256(b"a key").hexdigest()}"
"""


@pytest.mark.requirement("RF-013-25", "RF-013-24")
def test_an_artifact_is_read_by_its_readers_and_by_a_link_that_its_owner_signed(tmp_path: Path) -> None:
    core = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path}/agent3.db")))
    with gateway(tmp_path, "--demo", config=CLIENTS) as running:
        with AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"), core=core) as hotel:
            made = hotel.create_artifact("a large result", name="offer.txt")
            link = hotel.artifacts.link(made.artifact_id, seconds=60)
            opened = running.get(link)
            assert (opened.status, opened.raw) == (200, b"a large result")
            assert opened.headers["content-disposition"] == "attachment"
            for changed in (link[:-1], link.replace("expires=", "expires=9"), link.partition("?")[0] + "?signature=x"):
                refused = running.get(changed)
                assert (refused.status, refused.json["error"]["code"]) == (404, "not_found")
            plain, ann = link.partition("?")[0], running.as_("a key")
            assert running.get(plain).status == 401
            assert ann.get(plain).status == 404
            hotel.share_artifact(made.artifact_id, "ann")
            assert ann.get(plain).raw == b"a large result"
            hotel.artifacts.unshare(made.artifact_id)
            assert (ann.get(plain).status, running.get(link).status) == (404, 404)
        core.close()


@pytest.mark.parametrize("kind", ["text/plain\r\nX-Evil: 1", "text/中", "plain", "text/html; charset=utf-8"])
def test_a_type_that_an_agent_made_up_ends_no_header(tmp_path: Path, kind: str) -> None:
    maker = LocalAgent("maker")

    @maker.capability
    def make() -> Part:
        return Part(raw=b"x" * 300_000, media_type=kind)

    with hosted(tmp_path, [maker]) as house:
        found = house.post("/v1/call", {"agentId": "maker", "capability": "make", "input": {}}).json["result"]
        read = house.get(f"/v1/artifacts/{found['artifact']}")
        assert (read.status, len(read.raw)) == (200, 300_000)
        assert "x-evil" not in read.headers
        good = kind.startswith("text/html")
        assert read.headers["content-type"] == (kind if good else "application/octet-stream")
        assert read.headers["content-disposition"] == "attachment"
