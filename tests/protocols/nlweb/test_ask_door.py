"""The NLWeb door of a gateway, judged by the reference models, and asked by our own client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent3.model import Done, Needs, Outcome, Part, Question
from agent3.protocols.functions import Context, LocalAgent
from agent3.protocols.nlweb.ask.wire import AskClient, Query, Reply
from agent3.security.outbound import Gate, Policy
from agent3.server import demo
from tests.support.gateway import Door, Hosted, hosted
from tests.support.nlweb_judge import models
from tests.support.registration import add
from tests.support.sites import Answer as Page
from tests.support.sites import Site

judge = models()

slow = LocalAgent("Slow", agent_id="slow", description="Thinks for long before it answers")
gone_on = asyncio.Event()


@slow.capability(read_only=True)
async def ponder(message: str) -> str:
    """Think about something until somebody says that it is enough."""
    await gone_on.wait()
    return f"thought about {message}"


desk = LocalAgent("Desk", agent_id="desk", description="Takes a form")


@desk.capability(replay=True)
async def form(ctx: Context, message: str = "") -> Outcome:
    """Fill in a form with two fields."""
    said = {name: answer.data for name, answer in ctx._call.answers.items()}
    if not said:
        kinds = {"name": "string", "sure": "boolean"}
        return Needs(tuple(Question(name, f"{name}?", {"type": kind}) for name, kind in kinds.items()))
    return Done((Part(data=said),))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("asking"), [*demo.agents(), slow, desk]) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.nlweb.ask.door._PATIENCE", 0.05)
    monkeypatch.setattr("agent3.protocols.nlweb.ask.door._CHECK_IN", 0.05)


def asked(text: str, **more: Any) -> dict[str, Any]:
    """The body of a question, made by the reference's own models."""
    session = more.pop("session", None)
    form = more.pop("form", "conv_search")
    body: dict[str, Any] = {
        "query": {"text": text, **more},
        "prefer": {"streaming": False, "response_format": form},
        "meta": {"session_context": session},
    }
    made: dict[str, Any] = judge.AskRequest.model_validate(body).model_dump(by_alias=True, exclude_none=True)
    return made


def pieces(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n\n") if line]


def test_a_question_to_all_finds_agents_with_actions_that_can_be_called(door: Door) -> None:
    reply = door.post("/ask", asked("pizza delivery", max_results=2))
    answer = judge.AnswerResponseConvSearch.model_validate(reply.json)
    assert reply.status == 200
    assert answer.field_meta.response_type == "Answer"
    first = answer.results[0]
    assert (first.identifier, first.score) == ("pizza", 100)
    action = next(one for one in first.actions if one.name == "menu")
    called = door.post(action.endpoint.removeprefix(door.url), action.params)
    assert called.json["result"][0]["topping"] == "cheese"


def test_the_default_form_for_language_models_is_given_when_preferred(door: Door) -> None:
    reply = door.post("/ask", asked("pizza delivery", form="chatgpt_app"))
    answer = judge.AnswerResponseChatGPT.model_validate(reply.json)
    assert "Pizza" in answer.content[0].Text
    assert answer.structuredData[0].identifier == "pizza"


def test_without_a_word_on_streaming_the_answer_is_a_stream(door: Door) -> None:
    reply = door.post("/ask", {"query": {"text": "pizza menu", "site": "pizza"}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    first, *rest = pieces(reply.raw)
    assert set(first) == {"_meta"}
    assert judge.AskResponseMeta.model_validate(first["_meta"]).response_type == "Answer"
    rows = [row for one in rest for row in one["results"]]
    assert len(rows) == 9
    assert rows[0] == {"@type": "Thing", "topping": "cheese", "small": 8, "medium": 11, "large": 14}


@pytest.mark.parametrize("prev", [["order a mushroom pizza"], "order a mushroom pizza"])
def test_who_reads_one_sentence_only_gets_the_earlier_one_in_it(door: Door, prev: Any) -> None:
    body = {**asked("and a large one, please", site="pizza"), "context": {"prev": prev}}
    row = judge.AnswerResponseConvSearch.model_validate(door.post("/ask", body).json).results[0]
    assert (row.size, row.topping) == ("large", "mushroom")


def test_a_search_that_goes_on_looks_for_both_and_a_given_wording_counts_for_more(door: Door) -> None:
    body = {**asked("and cheap ones?"), "context": {"prev": ["pizza delivery"]}}
    assert door.post("/ask", body).json["results"][0]["identifier"] == "pizza"
    plain = {
        **asked("and cheap ones?", decontextualized_query="slow thinking"),
        "context": {"prev": ["pizza delivery"]},
    }
    assert door.post("/ask", plain).json["results"][0]["identifier"] == "slow"
    wrong = {**asked("and cheap ones?"), "context": {"prev": {"a": 1}}}
    assert door.post("/ask", wrong).status == 422


def test_what_an_agent_asks_back_is_an_elicitation_and_the_answer_goes_on(door: Door) -> None:
    first = door.post("/ask", asked("order a mushroom pizza", site="pizza")).json
    elicited = judge.ElicitationResponse.model_validate(first)
    question = elicited.elicitation.questions[0]
    assert (question.type, question.options) == ("single_select", ["small", "medium", "large"])
    session = {"state_token": elicited.field_meta.session_context.state_token}
    last = door.post("/ask", asked("large", session=session)).json
    row = judge.AnswerResponseConvSearch.model_validate(last).results[0]
    assert (row.size, row.topping, row.status) == ("large", "mushroom", "confirmed")
    again = door.post("/ask", asked("small", session=session))
    assert again.status == 409
    assert judge.FailureResponse.model_validate(again.json).field_meta.response_type == "Failure"


def test_several_questions_can_be_answered_one_after_the_other(door: Door) -> None:
    told = door.post("/ask", asked("fill in a form", site="desk")).json
    for said in ("Ann", "perhaps", "yes, please"):
        session = {"state_token": judge.ElicitationResponse.model_validate(told).field_meta.session_context.state_token}
        told = door.post("/ask", asked(said, session=session)).json
    row = judge.AnswerResponseConvSearch.model_validate(told).results[0]
    assert (row.name, row.sure) == ("Ann", True)


@pytest.mark.usefixtures("impatient")
def test_what_takes_long_is_a_promise_that_is_kept(door: Hosted) -> None:
    promised = judge.PromiseResponse.model_validate(door.post("/ask", asked("why", site="slow")).json)
    token = promised.promise.token
    waiting = door.post("/await", {"promise_token": token, "action": "checkin"}).json
    assert judge.PromiseResponse.model_validate(waiting).promise.token == token
    door.loop.call_soon_threadsafe(gone_on.set)
    said, end = waiting, time.monotonic() + 60
    while said["_meta"]["response_type"] != "Answer" and time.monotonic() < end:
        said = door.post("/await", {"promise_token": token, "action": "checkin"}).json
    assert judge.AnswerResponseConvSearch.model_validate(said).results[0].text == "thought about why"
    door.loop.call_soon_threadsafe(gone_on.clear)


@pytest.mark.usefixtures("impatient")
def test_a_promise_can_be_cancelled(door: Hosted) -> None:
    token = door.post("/ask", asked("why", site="slow")).json["promise"]["token"]
    said = judge.FailureResponse.model_validate(door.post("/await", {"promise_token": token, "action": "cancel"}).json)
    assert said.error.code == "CANCELED"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/ask", {}, 422, "MISSING_FIELD"),
        ("/ask", {"query": {"text": "  "}}, 422, "INVALID_REQUEST"),
        ("/ask", {"query": {"text": "x", "surprise": 1}}, 422, "INVALID_REQUEST"),
        ("/ask", {"query": {"text": "x", "max_results": 0}}, 422, "INVALID_REQUEST"),
        ("/ask", {"query": {"text": "x", "site": "nobody"}}, 404, "NOT_FOUND"),
        ("/ask", {"query": {"text": "x"}, "meta": {"session_context": {"state_token": "x"}}}, 422, "INVALID_REQUEST"),
        ("/await", {"promise_token": "none", "action": "checkin"}, 404, "INVALID_TOKEN"),
        ("/await", {"promise_token": "none", "action": "dance"}, 422, "INVALID_REQUEST"),
        ("/who", {"query": {"text": ""}}, 422, "INVALID_QUERY"),
        ("/who", {"query": {"text": "x", "type": "soap"}}, 422, "INVALID_QUERY"),
    ],
)
def test_a_wrong_request_is_refused_in_the_protocols_own_form(
    door: Door, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    reply = door.post(path, body)
    failure = judge.FailureResponse.model_validate(reply.json)
    assert (reply.status, failure.error.code) == (status, code)
    assert failure.field_meta.response_type.lower() == "failure"


def test_the_older_flat_form_is_served_too(door: Door) -> None:
    whole = door.get("/ask?query=pizza%20delivery&streaming=false").json
    assert whole["results"][0]["site"] == "pizza"
    assert set(whole["results"][0]) == {"url", "name", "site", "score", "description", "schema_object"}
    streamed = pieces(door.get("/ask?query=pizza%20delivery").raw)
    assert [one["message_type"] for one in streamed] == ["result_batch", "complete"]


def test_a_page_cannot_make_a_browser_call_an_agent_by_a_mere_address(door: Door) -> None:
    reply = door.get("/ask?query=order%20a%20large%20cheese%20pizza&site=pizza")
    assert reply.status == 405
    assert "POST" in reply.json["error"]["message"]


def test_who_names_agents_with_their_definitions(door: Door) -> None:
    reply = door.post("/who", {"query": {"text": "pizza delivery"}, "meta": {"max_results": 1, "request_id": "r1"}})
    assert reply.json["_meta"] == {"response_type": "answer", "version": "0.1", "result_count": 1, "request_id": "r1"}
    found = reply.json["results"][0]
    assert (found["protocol"], found["score"]) == ("mcp", 100)
    assert found["endpoint"] == f"{door.url}/agents/pizza/mcp"
    assert [one["name"] for one in found["definition"]["tools"]] == ["order", "menu"]
    card = door.post("/who", {"query": {"text": "pizza delivery", "type": "a2a"}}).json["results"][0]["definition"]
    assert [one["id"] for one in card["skills"]] == ["order", "menu"]
    assert door.get("/who?query=pizza").json["results"][0]["definition"]["name"] == "pizza"


def talk(door: Door, query: Query, dialect: Any = None) -> tuple[Reply, Any]:
    async def work() -> tuple[Reply, Any]:
        gate = Gate(Policy(allow_loopback=True))
        client = AskClient(door.url, gate, dialect)
        try:
            return await client.ask(query), client.dialect
        finally:
            await gate.aclose()

    return asyncio.run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_our_own_client_understands_our_own_door_in_both_forms(door: Door, stream: bool) -> None:
    modern, dialect = talk(door, Query(text="pizza delivery", stream=stream))
    assert dialect == "0.54"
    assert (modern.kind, modern.results[0].site, modern.results[0].score) == ("Answer", "pizza", 100.0)
    assert {one["name"] for one in modern.results[0].actions} == {"order", "menu"}
    flat, _ = talk(door, Query(text="pizza delivery", stream=stream), "flat")
    assert flat.results[0].site == "pizza"


def test_a_site_that_answers_questions_is_added_found_and_called(door: Hosted) -> None:
    row = {"@type": "Recipe", "name": "Soup", "url": "https://x.example/soup"}
    body = {"_meta": {"response_type": "Answer", "version": "0.54"}, "results": [row]}
    with Site({"/ask": Page(json.dumps(body), headers={"Content-Type": "application/json"})}) as site:
        agent = door.run(add(door.server, site.url, "Kitchen"))
        assert [one.name for one in agent.capabilities] == ["ask"]
        assert agent.id in {one["id"] for one in door.post("/v1/search", {"query": "kitchen"}).json["agents"]}
        called = door.call(agent.id, "soup").json
        assert called["result"]["results"][0]["name"] == "Soup"
        passed = door.post("/ask", asked("soup", site=agent.id)).json
    assert judge.AnswerResponseConvSearch.model_validate(passed).results[0].name == "Soup"
