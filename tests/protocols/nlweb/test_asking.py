"""Websites that answer questions, of both generations, as agents: what each says becomes one of the four outcomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from agent3.errors import SecurityError, TargetError
from agent3.model import LOCAL, Answer, Call, Done, Failed, Needs, Part, Working
from agent3.protocols.nlweb.ask.door import _encode_outcome
from agent3.protocols.nlweb.ask.sites import Sites
from agent3.protocols.nlweb.ask.wire import Query, encode_query, endpoint_of, fold
from agent3.security.outbound import Policy
from tests.support.nlweb_judge import models
from tests.support.sites import Answer as Page
from tests.support.sites import Site

T = TypeVar("T")

judge = models()
SSE = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}
ROWS = [{"@type": "Recipe", "name": "Soup", "url": "https://x.example/soup", "score": 80, "description": "Warm"}]


def said(kind: str, stream: bool = False, **more: Any) -> Page:
    """An answer of 0.54, in one piece or as a stream."""
    body = {"_meta": {"response_type": kind, "version": "0.54", "session_context": {"state_token": "s1"}}, **more}
    if not stream:
        return Page(json.dumps(body), headers=JSON)
    frames = [{"_meta": body.pop("_meta")}, *({key: value} for key, value in body.items())]
    return Page("".join(f"data: {json.dumps(one)}\n\n" for one in frames), headers=SSE)


def flat(query: dict[str, str]) -> Page:
    """An old server: what it gets by POST is not understood."""
    if "query" not in query:
        return Page("what?", 400)
    if query.get("streaming") == "false":
        row = {"url": "https://x.example/1", "name": query["query"], "score": 70, "schema_object": {"@type": "Thing"}}
        return Page(json.dumps({"query_id": "1", "results": [row]}), headers=JSON)
    messages = [
        {"message_type": "result_batch", "results": [{"name": f"{query['query']} {n}", "url": ""} for n in (1, 2)]},
        {"message_type": "summary", "message": "Two of them."},
        {"message_type": "complete"},
    ]
    return Page("".join(f"data: {json.dumps(one)}\n\n" for one in messages), headers=SSE)


def using(work: Callable[[Sites], Awaitable[T]], policy: Policy | None = None) -> T:
    async def run() -> T:
        sites = Sites(policy)
        try:
            async with asyncio.timeout(60):
                return await work(sites)
        finally:
            await sites.aclose()

    return asyncio.run(run())


async def first_call(sites: Sites, site: Site, **more: Any) -> Call:
    agent = await sites.describe(site.url)
    capability = agent.capabilities[0]
    given = {"input": {"query": "soup"}, **more}
    return Call(id="c", principal=LOCAL, agent=agent.id, capability="ask", route=capability.routes[0], **given)


def test_an_answer_in_pieces_becomes_one_result_with_everything_the_site_said() -> None:
    with Site({"/ask": said("Answer", stream=True, results=ROWS)}) as site:

        async def work(sites: Sites) -> Any:
            return await sites.call(await first_call(sites, site))

        outcome = using(work)
    assert isinstance(outcome, Done)
    row = outcome.parts[0].data["results"][0]
    assert (row["name"], row["type"], row["score"], row["raw"]) == ("Soup", "Recipe", 80.0, ROWS[0])
    # Whoever asks us at /ask gets the row as the site gave it.
    assert _encode_outcome(outcome)["results"] == ROWS


def test_what_is_sent_is_a_request_of_the_reference() -> None:
    query = Query(text="soup", site="x", mode="list", previous=("hello",), session={"state_token": "s"}, max_results=3)
    read = judge.AskRequest.model_validate(encode_query(query))
    assert (read.query.text, read.query.site, read.query.max_results) == ("soup", "x", 3)
    assert (read.context.prev, read.prefer.mode, read.meta.session_context.state_token) == (["hello"], "list", "s")


def test_an_old_site_is_found_out_and_asked_in_its_own_form() -> None:
    with Site({"/ask": flat}) as site:

        async def work(sites: Sites) -> Any:
            call = await first_call(sites, site, input=None, parts=(Part(text="tea"),))
            assert call.route is not None
            assert call.route.meta["dialect"] == "flat"
            return await sites.call(call)

        outcome = using(work)
    assert isinstance(outcome, Done)
    assert outcome.parts[0].data["text"] == "Two of them."
    assert [one["name"] for one in outcome.parts[0].data["results"]] == ["tea 1", "tea 2"]


def test_a_site_that_asks_back_is_answered_with_what_it_gave_to_be_shown() -> None:
    question = {"id": "diet", "text": "Vegan?", "type": "single_select", "options": ["yes", "no"]}
    with Site({"/ask": said("Answer", results=[])}) as site:

        async def work(sites: Sites) -> tuple[Any, Any]:
            call = await first_call(sites, site)
            site.pages["/ask"] = said("Elicitation", elicitation={"text": "One thing", "questions": [question]})
            needs = await sites.call(call)
            assert isinstance(needs, Needs)
            site.pages["/ask"] = said("Answer", results=ROWS)
            answers = {"diet": Answer("accept", "yes")}
            turn = replace(call, entry="answer", state=needs.state, questions=needs.questions, answers=answers)
            return needs, await sites.call(turn)

        needs, outcome = using(work)
    assert needs.questions[0].schema == {"type": "string", "enum": ["yes", "no"]}
    assert needs.state["session"] == {"state_token": "s1"}
    assert isinstance(outcome, Done)


def test_a_promise_goes_on_until_it_is_kept_or_taken_back() -> None:
    promised = said("Promise", promise={"token": "p1", "estimated_time": 3})
    with Site({"/ask": said("Answer", results=[]), "/await": promised}) as site:

        async def work(sites: Sites) -> list[Any]:
            call = await first_call(sites, site)
            site.pages["/ask"] = promised
            first = await sites.call(call)
            assert isinstance(first, Working)
            again = replace(call, entry="attach", state=first.state)
            second = await sites.call(again)
            site.pages["/await"] = said("Answer", results=ROWS)
            return [first, second, await sites.call(again), await sites.call(replace(again, entry="cancel"))]

        first, second, third, fourth = using(work)
        assert len([one for one in site.requests if one[1] == "/await"]) == 3
    assert (first.state["token"], first.poll) == ("p1", 3.0)
    assert isinstance(second, Working)
    assert isinstance(third, Done)
    assert isinstance(fourth, Failed)
    assert fourth.code == "canceled"


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (said("Failure", error={"code": "INVALID_REQUEST", "message": "no"}), "rejected"),
        (said("Failure", error={"code": "INTERNAL_ERROR", "message": "oh"}), "target_failed"),
        (Page("busy", 503), "unavailable"),
        (Page("who?", 401), "target_refused"),
        (Page("<html>", 200), "malformed_response"),
        (said("Elicitation", elicitation={"text": "x", "questions": []}), "malformed_response"),
    ],
)
def test_what_goes_wrong_has_its_own_code(page: Page, code: str) -> None:
    with Site({"/ask": said("Answer", results=[])}) as site:

        async def work(sites: Sites) -> Any:
            call = await first_call(sites, site)
            site.pages["/ask"] = page
            return await sites.call(call)

        outcome = using(work)
    assert isinstance(outcome, Failed)
    assert outcome.code == code


def test_a_site_that_answers_no_questions_is_no_agent() -> None:
    with Site({"/": "<h1>Shop</h1>"}) as site, pytest.raises(TargetError):
        using(lambda sites: sites.describe(site.url))


def test_a_route_that_no_operator_vouched_for_does_not_lead_to_this_machine() -> None:
    with Site({"/ask": said("Answer", results=[])}) as site:

        async def work(sites: Sites) -> Any:
            call = await first_call(sites, site)
            assert call.route is not None
            before = site.connections
            meta = {name: value for name, value in call.route.meta.items() if name != "registered"}
            outcome = await sites.call(replace(call, route=replace(call.route, meta=meta)))
            return outcome, site.connections - before

        outcome, connections = using(work)
    assert isinstance(outcome, Failed)
    assert (outcome.code, connections) == (SecurityError.code, 0)


def test_an_answer_that_is_no_object_at_all_never_breaks_the_reader() -> None:
    odd: list[dict[str, Any]] = [
        {"results": [None, 1, {"name": ["a", "b"], "score": True}]},
        {"content": [1, {"resource": {"data": [{"name": "x"}, 3]}}]},
        {"_meta": {"response_type": None}},
        {"promise": {}},
        {"results": 5, "elicitation": {"questions": 7}, "content": {"a": 1}},
        {"results": [{"actions": 3}]},
        {"error": "plain"},
    ]
    reply = fold(odd)
    assert [one.name for one in reply.results] == ["a, b", "x", ""]
    assert (reply.kind, reply.message) == ("Failure", "plain")


def test_the_place_to_ask_is_below_the_site_unless_it_is_named() -> None:
    assert endpoint_of("https://x.example/") == "https://x.example/ask"
    assert endpoint_of("https://x.example/food/ask?q=1#y") == "https://x.example/food/ask"
