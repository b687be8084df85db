"""Every step by itself: a step, a scripted handler inside it, and what the one makes of the other."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.artifacts import ArtifactStore
from agent3.calls.dead_letters import DeadLetters
from agent3.calls.order import Chain
from agent3.calls.steps.artifacts import Artifacts
from agent3.calls.steps.attempt import Attempt
from agent3.calls.steps.authorize import Authorize
from agent3.calls.steps.breaker import Breaker, Breakers
from agent3.calls.steps.cache import CACHED, Cache, ResultCache
from agent3.calls.steps.dead_letter import UNDELIVERED, DeadLetter
from agent3.calls.steps.deadline import Deadline, Timeouts
from agent3.calls.steps.fallback import Fallback
from agent3.calls.steps.limit import Limit
from agent3.calls.steps.resolve import Resolve
from agent3.calls.steps.retry import Retry
from agent3.calls.steps.route_secrets import RouteSecrets
from agent3.calls.steps.sanitize import Sanitize
from agent3.calls.steps.validate import Validate
from agent3.env import REAL, Env, SeededEnv
from agent3.errors import Agent3Error, NotFound, StorageError, TargetError, Unavailable, ValidationError
from agent3.identity.redaction import redact_outcome
from agent3.model import (
    Agent,
    Answer,
    Artifact,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Route,
    Turn,
    Working,
)
from agent3.observe.metrics import Metrics
from agent3.security.access import Access
from agent3.security.limits import Ceiling, RateLimiter
from agent3.security.sanitize import clean_outcome
from agent3.settings import Calls, Rule
from agent3.storage import Blobs, open_database
from agent3.storage.notifications import News
from tests.support.clock import run_timeless
from tests.support.home import run, until
from tests.support.postgres import new_database_url
from tests.support.rig import CLIENT, DONE, DOWN, OneSecret, Script, hang
from tests.support.steps import Around, alone, parts
from tests.support.storage import using

A, B = Route("a", "a.test", "do"), Route("b", "b.test", "do")
IDEMPOTENT = Hints(idempotent=True)
QUICK = Calls(timeout=60.0, attempt_timeout=50.0, backoff=0.001, backoff_max=0.002)


def a_call(hints: Hints = Hints(), heard: list[Event] | None = None, **more: Any) -> Call:  # noqa: B008 - frozen
    """A call with its live part; what is given for the capability goes there."""
    own = {name: more.pop(name) for name in list(more) if name in _OF_CAPABILITY}
    capability = Capability(name="do", hints=hints, **own)
    live = Turn(Agent(id="target", name="Target", capabilities=(capability,)), capability)
    if heard is not None:
        live.listener = heard.append
    plain: dict[str, Any] = {"principal": CLIENT, "agent": "target", "capability": "do", "input": {}}
    return Call(**{"id": REAL.id(), **plain, "live": live, "routes": (A, B), **more})


def authorize(access: Access) -> Around:
    return alone(Authorize, access=access)


def limit(limiter: RateLimiter, ceiling: Ceiling) -> Around:
    return alone(Limit, limiter=limiter, ceiling=ceiling)


def cache(results: ResultCache) -> Around:
    return alone(Cache, cache=results)


def artifacts(store: ArtifactStore, size: int) -> Around:
    return alone(Artifacts, artifacts=store, calls=Calls(artifact_bytes=size))


def dead_letter(bury: Callable[[Call, Failed], Awaitable[None]]) -> Around:
    return alone(DeadLetter, dead_letters=SimpleNamespace(bury=bury))


def deadline(calls: Calls) -> Around:
    return alone(Deadline, calls=calls)


def retry(calls: Calls, env: Env = REAL) -> Around:
    return alone(Retry, calls=calls, env=env)


def breaker(circuits: Breakers) -> Around:
    return alone(Breaker, breakers=circuits)


def attempt(calls: Calls) -> Around:
    return alone(Attempt, calls=calls)


def sanitize(size: int) -> Around:
    return alone(Sanitize, calls=Calls(result_bytes=size))


def route_secrets(vault: OneSecret) -> Around:
    return alone(RouteSecrets, vault=vault, logins=None)


_OF_CAPABILITY = {"input_schema", "output_schema", "cache_ttl", "version", "interactive", "price"}


def through(step: Around, target: Script, call: Call) -> Outcome:
    return run(_awaited(step(target.call)(call)))


async def _awaited(one: Awaitable[Outcome]) -> Outcome:
    return await one


def failed(outcome: Outcome, code: str) -> Failed:
    assert isinstance(outcome, Failed), outcome
    assert outcome.code == code
    return outcome


# authorize


def test_authorize_lets_nobody_know_what_is_denied() -> None:
    target = Script()
    step = authorize(Access((Rule("deny", principal="alice"), Rule("allow"))))
    call = a_call()
    refused = failed(through(step, target, call), "capability_not_found")
    assert call.live.denied == "forbidden"
    assert "forbidden" not in refused.message
    assert not target.calls
    assert isinstance(through(step, target, a_call(principal=Principal("bob"))), Done)


def test_authorize_judges_the_route_that_a_conversation_is_on() -> None:
    step = authorize(Access((Rule("deny", protocol="a"), Rule("allow"))))
    target = Script()
    failed(through(step, target, a_call(entry="answer", route=A)), "capability_not_found")
    assert isinstance(through(step, target, a_call(entry="answer", route=B)), Done)
    assert isinstance(through(step, target, a_call(entry="cancel", route=A)), Done)
    assert through(step, target, a_call()) == DONE
    assert target.calls[-1].routes == (B,)


# limit


def test_limit_refuses_by_rate_and_says_when_to_come_back() -> None:
    world = SeededEnv()
    step = limit(RateLimiter(60, 2, env=world), Ceiling(10))
    target = Script()
    for _ in range(2):
        assert isinstance(through(step, target, a_call()), Done)
    refused = failed(through(step, target, a_call()), "rate_limited")
    assert refused.retryable
    assert refused.retry_after == pytest.approx(1.0)
    assert isinstance(through(step, target, a_call(entry="answer")), Done), "only a start is charged"
    assert isinstance(through(step, target, a_call(principal=Principal("local", "local"))), Done)
    recovered = a_call()
    recovered.live.charged = True
    assert isinstance(through(step, target, recovered), Done)
    world.advance(1.0)
    assert isinstance(through(step, target, a_call()), Done)


def test_limit_bounds_what_runs_at_once_on_an_agent_and_gives_the_room_back() -> None:
    async def story() -> None:
        go = asyncio.Event()

        async def busy(call: Call) -> Outcome:
            await go.wait()
            raise RuntimeError("also then the room is given back")

        step = limit(RateLimiter(0, 1), Ceiling(2))
        handler = step(busy)
        running = [asyncio.create_task(_awaited(handler(a_call()))) for _ in range(2)]
        await asyncio.sleep(0)
        refused = failed(await handler(a_call()), "rate_limited")
        assert refused.retry_after == 1.0
        assert isinstance(await step(Script().call)(a_call(agent="another")), Done)
        go.set()
        await asyncio.wait(running)
        assert [type(one.exception()) for one in running] == [RuntimeError] * 2
        assert isinstance(await step(Script().call)(a_call()), Done)

    run(story())


# cache


def test_cache_serves_only_what_may_be_served_again() -> None:
    world = SeededEnv()
    step = cache(ResultCache(10, world))
    cases: list[tuple[Hints, float, int]] = [
        (Hints(), 60.0, 2),
        (IDEMPOTENT, 0.0, 2),
        (IDEMPOTENT, 60.0, 1),
        (Hints(read_only=True), 60.0, 1),
    ]
    for number, (hints, ttl, expected) in enumerate(cases):
        target = Script()
        for _ in range(2):
            through(step, target, a_call(hints, cache_ttl=ttl, agent=f"agent {number}"))
        assert len(target.calls) == expected, (hints, ttl)


def test_cache_tells_callers_versions_inputs_and_modes_apart_and_forgets() -> None:
    world = SeededEnv()
    step = cache(ResultCache(10, world))
    target = Script()
    first: dict[str, Any] = {"cache_ttl": 60.0, "input": {"a": 1, "b": 2}}
    through(step, target, a_call(IDEMPOTENT, **first))
    hit = a_call(IDEMPOTENT, **{**first, "input": {"b": 2, "a": 1}})
    assert through(step, target, hit) == replace(DONE, meta={CACHED: True})
    assert hit.live.cached
    assert len(target.calls) == 1
    others: list[dict[str, Any]] = [
        {"principal": Principal("bob")},
        {"principal": Principal("bob", scopes=frozenset({"few"}))},
        {"principal": Principal("bob", tenant="t")},
        {"version": "2"},
        {"input": {"a": 2}},
        {"input": None, "parts": (Part(text="{}"),)},
        {"input": None, "parts": (Part(text="{}"),), "input_mode": "application/json"},
        {"capability": "other"},
        {"agent": "other"},
    ]
    for number, other in enumerate(others, 2):
        through(step, target, a_call(IDEMPOTENT, **{**first, **other}))
        assert len(target.calls) == number, other
    through(step, target, a_call(IDEMPOTENT, entry="answer", **first))
    assert len(target.calls) == 11, "only a start is answered from the cache"
    world.advance(60.0)
    through(step, target, a_call(IDEMPOTENT, **first))
    assert len(target.calls) == 12, "its time is over"


def test_cache_keeps_no_failure_and_no_more_than_it_may() -> None:
    step = cache(ResultCache(2, SeededEnv()))
    target = Script(DOWN, DONE)
    for _ in range(3):
        through(step, target, a_call(IDEMPOTENT, cache_ttl=60.0, input=0))
    assert len(target.calls) == 2
    for number in (1, 2, 0):
        through(step, target, a_call(IDEMPOTENT, cache_ttl=60.0, input=number))
    assert len(target.calls) == 5, "the oldest went when the third came"
    assert through(step, target, a_call(IDEMPOTENT, cache_ttl=60.0, input={"a": object()})) == DONE


# artifacts


def test_large_parts_become_references_that_only_their_owner_can_follow(url: str) -> None:
    big = "ä" * 600

    async def story(database: Any) -> None:
        store = ArtifactStore(database, Blobs(None), REAL)
        parts = (
            Part(text=big, name="text"),
            Part(raw=b"\x00" * 1001, media_type="image/png"),
            Part(data={"list": list(range(1000))}, meta={"a": 1}),
            Part(text="ä" * 499),
            Part(data=7),
            Part(url="https://example.com"),
        )
        target = Script(Done(parts, artifacts=(Artifact("x", parts=parts[:1]),)))
        outcome = await artifacts(store, 1000)(target.call)(a_call())
        assert isinstance(outcome, Done)
        assert outcome.parts[3:] == parts[3:]
        kept = [await store.get("alice", part.artifact or "") for part in outcome.parts[:3]]
        assert [one.body for one in kept[:2]] == [big.encode(), b"\x00" * 1001]
        assert [one.media_type for one in kept] == ["text/plain", "image/png", "application/json"]
        assert (kept[0].name, outcome.parts[0].meta) == ("text", {"size": 1200})
        assert outcome.parts[2].meta["a"] == 1
        (inside,) = outcome.artifacts[0].parts
        assert (await store.get("alice", inside.artifact or "")).body == big.encode()
        for owner, name in (("bob", inside.artifact), ("alice", "nothing")):
            with pytest.raises(NotFound):
                await store.get(owner, name or "")

    using(url, story)


def test_half_a_character_keeps_no_result_from_its_caller(url: str) -> None:
    async def story(database: Any) -> None:
        store = ArtifactStore(database, Blobs(None), REAL)
        parts = (
            Part(text="a\ud83c"),
            Part(data={"t": "a\ud83c"}),
            Part(text="ü\ud83c" * 600),
            Part(data=["\ud83c"] * 600),
        )
        outcome = await artifacts(store, 1000)(Script(Done(parts)).call)(a_call())
        assert isinstance(outcome, Done)
        assert outcome.parts[:2] == parts[:2]
        kept = [(await store.get("alice", part.artifact or "")).body for part in outcome.parts[2:]]
        assert kept == ["ü?".encode() * 600, b"[" + b",".join([b'""'] * 600) + b"]"]

    using(url, story)


def test_artifacts_can_be_read_until_their_time_is_over() -> None:
    world = SeededEnv()

    async def story(database: Any) -> None:
        store = ArtifactStore(database, Blobs(None), world, keep_days=1.0)
        name = await store.store(a_call(), b"bytes", None, "text/plain")
        world.advance(86_399)
        assert (await store.get("alice", name)).body == b"bytes"
        world.advance(2)
        with pytest.raises(NotFound):
            await store.get("alice", name)

    using(":memory:", story)


# resolve

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("properties", "required", "expected"),
    [
        ({"message": TEXT}, ["message"], {"message": "hi"}),
        ({"message": TEXT, "days": {"type": "integer"}}, ["message"], {"message": "hi"}),
        ({"city": TEXT, "prompt": TEXT}, [], {"prompt": "hi"}),
        ({}, [], {}),
    ],
)
def test_a_message_is_passed_on_where_free_text_is_taken(properties: Any, required: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": properties, "required": required}
    target = Script()
    for entry in ("start", "answer", "attach"):
        through(alone(Resolve), target, a_call(input=None, entry=entry, parts=(Part(text="hi"),), input_schema=schema))
        assert target.calls[-1].input == expected
    through(alone(Resolve), target, a_call(input={"own": 1}, parts=(Part(text="hi"),), input_schema=schema))
    assert target.calls[-1].input == {"own": 1}, "structured input is taken as it is"


@pytest.mark.parametrize("name", ["city", "path", "url", "sql", "customer_id", "note"])
def test_a_message_is_never_taken_whole_for_anything_else(name: str) -> None:
    schema = {"type": "object", "properties": {name: TEXT}, "required": [name]}
    target = Script()
    asked = through(alone(Resolve), target, a_call(input=None, parts=(Part(text="hi"),), input_schema=schema))
    assert isinstance(asked, Needs)
    assert [question.id for question in asked.questions] == [name]
    assert not target.calls


def test_a_message_that_says_it_is_json_is_read_as_such() -> None:
    target = Script()
    json: dict[str, Any] = {"input": None, "input_mode": "application/json"}
    through(alone(Resolve), target, a_call(**json, parts=(Part(text='{"a": 1}'),)))
    assert target.calls[-1].input == {"a": 1}
    for bad in ("{", "[" * 100_000):
        refused = failed(through(alone(Resolve), target, a_call(**json, parts=(Part(text=bad),))), "invalid_input")
        assert "application/json" in refused.message
    assert len(target.calls) == 1


REMIND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": TEXT,
        "date": {"type": "string", "format": "date"},
        "days": {"type": "integer", "maximum": 7},
    },
    "required": ["title", "date"],
}
ONE_ID: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def converse(schema: Any, name: str, message: str, *answers: Any) -> tuple[Outcome, list[Any]]:
    """What comes of a message and of each answer to the first question, and the inputs that were passed on."""
    target, step = Script(), alone(Resolve)
    capability = Capability(name=name, description=f"{name.replace('_', ' ').capitalize()}.", input_schema=schema)
    live = Turn(Agent(id="target", name="Target", capabilities=(capability,)), capability)
    first = replace(a_call(input=None, parts=(Part(text=message),)), live=live)
    outcome = through(step, target, first)
    for answer in answers:
        assert isinstance(outcome, Needs), outcome
        given = {outcome.questions[0].id: Answer("accept", answer)}
        turn = replace(first, entry="answer", questions=outcome.questions, answers=given, state=outcome.state)
        outcome = through(step, target, turn)
    return outcome, [call.input for call in target.calls]


@pytest.mark.parametrize(
    "no", ["never mind", "Forget it.", "cancel", "Olvídalo", "déjalo", "don't create the reminder"]
)
def test_an_answer_that_drops_the_request_is_no_value(no: str) -> None:
    for said in (
        "create a reminder",
        "create a reminder titled Rent",
        "create a reminder xyzzy on 2027-01-05 and plugh",
    ):
        outcome, passed = converse(REMIND, "create_reminder", said, no)
        failed(outcome, "declined")
        assert not passed
    outcome, passed = converse(REMIND, "create_reminder", "create a reminder on 2027-01-05", f'"{no}"')
    assert passed == [{"title": no, "date": "2027-01-05"}], "unless it is quoted"


@pytest.mark.parametrize(
    ("schema", "name", "said", "expected"),
    [
        (REMIND, "create_reminder", ["create a reminder titled Rent", "soon", "2027-01-05"],
         {"title": "Rent", "date": "2027-01-05"}),
        (REMIND, "create_reminder", ["create a reminder", '{"title": "Rent", "date": "2027-01-05"}'],
         {"title": "Rent", "date": "2027-01-05"}),
        (REMIND, "create_reminder", ["create a reminder", {"title": "Rent", "days": 3}, "2027-01-05"],
         {"title": "Rent", "days": 3, "date": "2027-01-05"}),
        (ONE_ID, "delete_reminder", ["delete reminders 4 and 5", '{"id": 4}'], {"id": 4}),
        (ONE_ID, "delete_reminder", ["delete reminders 4 and 5", {"id": 4}], {"id": 4}),
        (ONE_ID, "delete_reminder", ["delete reminders 4 and 5", "4", "vale, pero mañana", "vale"], {"id": 4}),
    ],
)  # fmt: skip
def test_answers_in_words_or_as_input_complete_the_call(schema: Any, name: str, said: list[Any], expected: Any) -> None:
    outcome, passed = converse(schema, name, *said)
    assert passed == [expected], outcome


def test_the_reproach_of_a_bad_answer_is_in_its_language_and_said_once() -> None:
    asked, _ = converse(ONE_ID, "delete_reminder", "borra los recordatorios 4 y 5", "el 4", "quizá", "tal vez")
    assert isinstance(asked, Needs)
    assert asked.questions[0].text.count("no vale") == 1
    assert "sí o no" in asked.questions[0].text
    refused, passed = converse(ONE_ID, "delete_reminder", "borra los recordatorios 4 y 5", "el 4", "quizá", "nope")
    assert "no vale" not in failed(refused, "declined").message
    assert not passed


# validate


def test_input_is_checked_at_the_start_and_all_faults_are_told() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    target = Script()
    refused = failed(through(alone(Validate), target, a_call(input={"a": "x"}, input_schema=schema)), "invalid_input")
    assert len(refused.data["errors"]) == 2
    assert refused.message.startswith("Missing required parameter: b")
    assert not target.calls
    assert through(alone(Validate), target, a_call(entry="attach", input={}, input_schema=schema)) == DONE
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    for hostile in (deep, {"a": object()}, float("nan")):
        outcome = through(alone(Validate), target, a_call(input=hostile))
        assert isinstance(outcome, Failed), "without a schema, too, input must be JSON of bounded shape"
    assert len(target.calls) == 1


def test_bad_answers_are_asked_for_again_and_good_ones_kept() -> None:
    questions = (
        Question("n", "How many?", {"type": "integer"}),
        Question("s", "Which?", {"enum": ["a", "b"]}),
        Question("u", "Sign in.", url="https://example.com"),
        Question("f", "Anything?"),
    )
    target = Script()

    def answered(**answers: Answer) -> tuple[Outcome, Call]:
        call = a_call(entry="answer", questions=questions, answers=answers, state={"kept": 1})
        return through(alone(Validate), target, call), call

    good = {"n": Answer("accept", 3), "u": Answer(), "f": Answer("accept", [1])}
    again, call = answered(**good, s=Answer("accept", "c"))
    assert isinstance(again, Needs)
    assert [one.id for one in again.questions] == ["s"]
    assert again.questions[0].text.startswith("Which? (invalid: ")
    assert again.questions[0].schema == questions[1].schema
    assert (again.state, call.live.answers) == ({"kept": 1}, good)
    missing, _ = answered()
    assert isinstance(missing, Needs)
    assert len(missing.questions) == 4
    assert not target.calls
    assert answered(**good, s=Answer("decline"))[0] == DONE, "a no needs to fit no schema"

    twice = a_call(entry="answer", questions=again.questions, answers={"s": Answer("accept", "d")})
    third = through(alone(Validate), target, twice)
    assert isinstance(third, Needs)
    assert third.questions[0].text.count("invalid") == 1


def test_who_answers_one_after_the_other_has_done_nothing_wrong_and_the_target_hears_all() -> None:
    questions = tuple(Question(name, f"{name}?", {"type": "string"}) for name in ("a", "b"))
    target = Script()
    one = a_call(entry="answer", questions=questions, answers={"a": Answer("accept", "1")})
    open_now = through(alone(Validate), target, one)
    assert isinstance(open_now, Needs)
    assert [(one.id, one.text) for one in open_now.questions] == [("b", "b?")]
    assert [one.id for one in open_now.answered] == ["a"]
    assert not target.calls


# dead_letter

CODES = [*sorted(UNDELIVERED), "target_failed", "invalid_input", "rate_limited", "declined", "canceled", "internal"]


@pytest.mark.parametrize("code", CODES)
def test_only_the_undelivered_is_buried(code: str) -> None:
    async def story(database: Any) -> None:
        letters = DeadLetters(database, REAL)
        step = dead_letter(letters.bury)
        for entry in ("start", "answer", "attach", "cancel"):
            failed(await step(Script(Failed(code, "words")).call)(a_call(entry=entry)), code)
        kept = await letters.latest()
        assert len(kept) == (2 if code in UNDELIVERED else 0)
        assert all(
            (one.code, one.message, one.agent, one.principal) == (code, "words", "target", "alice") for one in kept
        )

    using(":memory:", story)


def test_a_letter_that_cannot_be_buried_does_not_hide_the_failure() -> None:
    async def broken(call: Call, outcome: Failed) -> None:
        raise StorageError("the disk is gone")

    failed(through(dead_letter(broken), Script(DOWN), a_call()), "unavailable")


# deadline


def test_the_deadline_is_the_callers_or_the_settings() -> None:
    step = deadline(Calls(timeout=0.05))
    refused = failed(through(step, Script(hang), a_call()), "timeout")
    assert "within 0.05 s" in refused.message
    assert "within 0.02 s" in failed(through(step, Script(hang), a_call(timeout=0.02)), "timeout").message
    failed(through(step, Script(hang), a_call(timeout=0.0)), "timeout")


def test_a_timeout_inside_is_not_the_deadline() -> None:
    async def raises(call: Call) -> Outcome:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        through(deadline(Calls(timeout=5.0)), Script(raises), a_call())


# fallback


def test_fallback_takes_the_next_route_only_where_that_is_harmless() -> None:
    step = alone(Fallback)
    down = Failed("unavailable", "down", repeatable=True)
    cases: list[tuple[Failed, Hints, int]] = [
        (down, Hints(), 2),
        (Failed("circuit_open", "open", repeatable=True), Hints(), 2),
        (Failed("target_refused", "no", repeatable=True), Hints(), 2),
        (Failed("malformed_response", "odd", repeatable=True), Hints(), 2),
        (Failed("element_missing", "gone", repeatable=True), Hints(), 2),
        (Failed("timeout", "late", repeatable=True), Hints(), 1),
        (Failed("timeout", "late", repeatable=True), IDEMPOTENT, 2),
        (Failed("unavailable", "down"), IDEMPOTENT, 1),
        (Failed("target_failed", "no", repeatable=True), IDEMPOTENT, 1),
    ]
    for failure, hints, expected in cases:
        target = Script(failure, DONE)
        call = a_call(hints)
        outcome = through(step, target, call)
        assert [one.route for one in target.calls] == [A, B][:expected], failure
        assert isinstance(outcome, Done) == (expected == 2)
        assert call.live.hops == expected - 1


def test_a_conversation_stays_on_its_route() -> None:
    for entry in ("answer", "attach", "cancel"):
        target = Script(Failed("unavailable", "down", repeatable=True))
        call = a_call(IDEMPOTENT, entry=entry, route=B)
        failed(through(alone(Fallback), target, call), "unavailable")
        assert [one.route for one in target.calls] == [B]


def test_without_a_route_nothing_is_sent() -> None:
    outcome = failed(through(alone(Fallback), Script(), a_call(routes=())), "unavailable")
    assert not outcome.sent
    assert "has no route" in outcome.message


# retry


@pytest.mark.parametrize("seed", range(20))
def test_pauses_have_full_jitter_below_a_doubling_ceiling(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    here, sleep = threading.current_thread(), asyncio.sleep

    async def note(seconds: float) -> None:
        if threading.current_thread() is not here:  # other tests' cores live on in a thread of their own
            await sleep(seconds)
            return
        pauses.append(seconds)

    monkeypatch.setattr("agent3.calls.steps.retry.asyncio.sleep", note)
    world = SeededEnv(seed=seed)
    settings = Calls(retries=6, backoff=1.0, backoff_max=8.0)
    again = Failed("unavailable", "down", retryable=True, repeatable=True)
    through(retry(settings, world), Script(again), a_call())
    expected = random.Random(seed)
    assert pauses == [expected.uniform(0, ceiling) for ceiling in (1.0, 2.0, 4.0, 8.0, 8.0, 8.0)]


def test_a_target_is_tried_again_as_often_as_the_caller_says() -> None:
    again = Failed("unavailable", "down", retryable=True, repeatable=True)
    for retries, expected in ((None, 3), (0, 1), (4, 5)):
        target = Script(again)
        through(retry(Calls(retries=2, backoff=0.0)), target, a_call(retries=retries))
        assert len(target.calls) == expected
        assert [call.attempt for call in target.calls] == list(range(expected))
    for final in (
        Failed("unavailable", "x", retryable=True),
        Failed("unavailable", "x", repeatable=True),
        Failed("circuit_open", "x", retryable=True, repeatable=True),
    ):
        target = Script(final)
        through(retry(QUICK), target, a_call(retries=3))
        assert len(target.calls) == 1


def test_retry_after_is_obeyed_but_never_beyond_the_time_that_is_left() -> None:
    def busy(seconds: float) -> Failed:
        return Failed("unavailable", "busy", retryable=True, repeatable=True, retry_after=seconds)

    async def story() -> None:
        step = retry(Calls(backoff=3_600.0, backoff_max=3_600.0))
        loop = asyncio.get_running_loop()
        call = a_call()
        call.live.expires = REAL.monotonic() + 200
        started = loop.time()
        assert isinstance(await step(Script(busy(0.05), DONE).call)(call), Done)  # the backoff would be for longer
        assert loop.time() - started > 0.04
        target = Script(busy(300.0), DONE)
        outcome = failed(await step(target.call)(call), "unavailable")
        assert outcome.retry_after == 300.0
        assert len(target.calls) == 1

    run(story())


# breaker


class Circuit:
    """A breaker with a clock in hand."""

    def __init__(self, failures: int = 2) -> None:
        self.world = SeededEnv()
        self.circuits = Breakers(Calls(breaker_failures=failures, breaker_seconds=30.0), self.world, Metrics())
        self.step = breaker(self.circuits)

    def call(self, *answers: Any, route: Route = A) -> Outcome:
        return through(self.step, Script(*answers), a_call(route=route))

    @property
    def state(self) -> str:
        return self.circuits.state("a:a.test")


def test_a_circuit_opens_tries_once_and_closes() -> None:
    it = Circuit()
    it.call(DOWN)
    it.call(DONE)
    it.call(DOWN)
    assert it.state == "closed", "only failures in a row count"
    it.call(DOWN)
    assert it.state == "open"
    refused = failed(it.call(), "circuit_open")
    assert (refused.sent, refused.repeatable, refused.retryable, refused.retry_after) == (False, True, True, 30.0)
    assert isinstance(it.call(route=B), Done), "another route has a circuit of its own"
    it.world.advance(30)
    assert it.state == "half-open"
    it.call(DOWN)
    assert it.state == "open", "the probe failed"
    it.world.advance(30)
    assert isinstance(it.call(), Done)
    assert it.state == "closed"


def test_what_failed_while_this_process_was_stopped_opens_no_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.calls.steps.breaker._LOOK_EVERY", 0.01)
    monkeypatch.setattr("agent3.calls.steps.breaker._AWAY", 0.1)
    circuits = Breakers(Calls(breaker_failures=1), REAL, Metrics())
    route = A.key

    async def stopped(call: Call) -> Outcome:
        await asyncio.sleep(0.02)
        time.sleep(0.2)  # noqa: ASYNC251 - as SIGSTOP does: nothing of this process runs
        await asyncio.sleep(0.02)
        return DOWN

    async def awake(call: Call) -> Outcome:
        return DOWN

    async def story() -> None:
        guarded = deadline(Calls())(breaker(circuits)(stopped))
        assert isinstance(await guarded(a_call(route=A)), Failed)
        assert circuits.state(route) == "closed"
        guarded = deadline(Calls())(breaker(circuits)(awake))
        assert isinstance(await guarded(a_call(route=A)), Failed)
        assert circuits.state(route) == "open", "what failed afterwards counts as ever"

    run(story())


@pytest.mark.parametrize("code", ["unavailable", "timeout", "malformed_response"])
def test_what_says_that_a_route_is_broken(code: str) -> None:
    it = Circuit(1)
    it.call(Failed(code, "x"))
    assert it.state == "open"


@pytest.mark.parametrize(
    "fine",
    [
        Failed("target_failed", "x"),
        Failed("element_missing", "x"),
        Failed("invalid_input", "x"),
        Needs(()),
        Working(),
        Failed("target_refused", ""),
    ],
)
def test_what_says_that_a_route_answers(fine: Outcome) -> None:
    it = Circuit(2)
    it.call(DOWN)
    it.call(fine)
    it.call(DOWN)
    assert it.state == "closed"


@pytest.mark.parametrize(
    ("seconds", "asking", "state"),
    [(None, True, "open"), (0.05, True, "open"), (0.01, True, "closed"), (None, False, "closed")],
)
def test_a_deadline_says_nothing_of_a_target_that_had_less_than_its_time_or_was_not_asked(
    seconds: float | None, asking: bool, state: str
) -> None:
    settings = Calls(timeout=0.05, attempt_timeout=20.0, breaker_failures=1)
    circuits = Breakers(settings, REAL, Metrics())

    async def silent(call: Call) -> Outcome:
        call.live.asking = asking  # a connector knows that the call still stands in a line of ours
        await asyncio.sleep(20)
        return DONE

    handler = deadline(settings)(breaker(circuits)(silent))
    failed(run(_awaited(handler(a_call(route=A, timeout=seconds)))), "timeout")
    assert circuits.state(A.key) == state


def test_a_failure_of_our_own_line_is_not_held_against_a_route() -> None:
    it = Circuit(1)

    async def full(call: Call) -> Outcome:
        call.live.asking = False
        return DOWN

    run(_awaited(it.step(full)(a_call(route=A))))
    assert it.state == "closed"
    it.call(DOWN)
    assert it.state == "open", "each attempt is judged by itself"


def test_one_probe_at_a_time_and_a_cancelled_one_makes_room() -> None:
    async def story() -> None:
        it = Circuit(1)
        handler = it.step(Script(DOWN, hang, DONE).call)
        await handler(a_call(route=A))
        it.world.advance(30)
        probe = asyncio.create_task(_awaited(handler(a_call(route=A))))
        await asyncio.sleep(0)
        assert failed(await handler(a_call(route=A)), "circuit_open").retry_after == 1.0
        probe.cancel()
        await asyncio.wait([probe])
        assert isinstance(await handler(a_call(route=A)), Done)
        assert it.state == "closed"

    run(story())


def test_a_late_call_from_before_does_not_make_room_for_a_second_probe() -> None:
    async def story() -> None:
        it = Circuit(1)
        handler = it.step(Script(hang, DOWN, hang, DONE).call)
        early = asyncio.create_task(_awaited(handler(a_call(route=A))))
        await asyncio.sleep(0)
        await handler(a_call(route=A))
        it.world.advance(30)
        probe = asyncio.create_task(_awaited(handler(a_call(route=A))))
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.wait([early])
        failed(await handler(a_call(route=A)), "circuit_open")
        probe.cancel()
        await asyncio.wait([probe])

    run(story())


@pytest.mark.postgres
def test_gateways_warn_each_other_of_routes_that_fail_and_close_none_to_each_other() -> None:
    url = new_database_url()

    async def story() -> None:
        database, settings = await open_database(url), Calls(breaker_failures=3)
        worlds, news = (SeededEnv(), SeededEnv()), (News(database, "here"), News(database, "there"))
        here, there = (Breakers(settings, world, Metrics(), news=its) for world, its in zip(worlds, news, strict=True))
        for its in news:
            its.listen()
        await until(lambda: all(its.live for its in news))
        for _ in range(3):
            here.add_failure("a:a.test")
        await until(lambda: "a:a.test" in there.circuits)
        assert there.refuse("a:a.test") is None, "it may reach what the other cannot"
        there.add_failure("a:a.test")
        assert there.state("a:a.test") == "open", "one failure was enough"
        worlds[0].advance(30)
        assert here.refuse("a:a.test", "probe") is None
        here.reset("a:a.test")
        await until(lambda: there.state("a:a.test") == "half-open")
        assert there.refuse("a:a.test", "probe") is None, "it answers elsewhere, so it is tried at once"
        for its in news:
            await its.aclose()
        await database.aclose()

    run(story())


def test_the_number_of_circuits_is_bounded() -> None:
    circuits = Breakers(Calls(), SeededEnv(), Metrics(), most=3)
    for number in range(10):
        circuits.add_failure(str(number))
    assert len(circuits.circuits) == 3


# attempt


def test_an_attempt_has_its_own_time_and_turns_exceptions_into_outcomes() -> None:
    def raising(error: BaseException) -> Callable[[Call], Awaitable[Outcome]]:
        async def raises(call: Call) -> Outcome:
            raise error

        return raises

    step = attempt(Calls(attempt_timeout=0.05))
    call = a_call()
    assert "within 0.05 s" in failed(through(step, Script(hang), call), "timeout").message
    assert call.live.attempts == 1
    failed(through(step, Script(raising(ValueError("x"))), a_call()), "target_failed")
    failed(through(step, Script(raising(Unavailable("x"))), a_call()), "unavailable")
    own = failed(through(step, Script(raising(TimeoutError("its own"))), a_call()), "timeout")
    assert "its own" in own.message
    failed(through(step, Script(raising(asyncio.CancelledError())), a_call()), "target_failed")
    failed(through(step, Script(raising(BaseExceptionGroup("x", [SystemExit(1)]))), a_call()), "target_failed")


def test_only_an_attempt_without_harm_is_repeatable() -> None:
    step = attempt(QUICK)

    async def emits(call: Call) -> Outcome:
        call.emit(Event("artifact", parts=(Part(text="x"),)))
        return DOWN

    async def chats(call: Call) -> Outcome:
        call.emit(Event("status", text="x"))
        call.emit(Event("progress", done=1))
        return DOWN

    unsent = Failed("unavailable", "x", sent=False)
    cases: list[tuple[Any, dict[str, Any], bool]] = [
        (DOWN, {}, False),
        (DOWN, {"key": "k"}, False),
        (DOWN, {"key": "k", "route": Route("a", "a.test", meta={"keys": True})}, True),
        (DOWN, {"hints": IDEMPOTENT}, True),
        (DOWN, {"hints": Hints(read_only=True)}, True),
        (DOWN, {"hints": Hints(replay=True)}, False),
        (unsent, {}, True),
        (emits, {"hints": IDEMPOTENT}, False),
        (chats, {"hints": IDEMPOTENT}, True),
        (Failed("unavailable", "x", repeatable=True), {}, False),
    ]
    for answer, more, expected in cases:
        outcome = failed(through(step, Script(answer), a_call(**more)), "unavailable")
        assert outcome.repeatable is expected, (answer, more)


def test_cancellation_passes_an_attempt() -> None:
    async def story() -> None:
        trying = asyncio.create_task(_awaited(attempt(QUICK)(hang)(a_call())))
        await asyncio.sleep(0)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying

    run(story())


# timeouts


def test_timeouts_of_one_length_share_a_timer_and_expire_in_time() -> None:
    async def story() -> None:
        timeouts = Timeouts()
        loop = asyncio.get_running_loop()

        async def work(delay: float, seconds: float) -> tuple[str, float]:
            await asyncio.sleep(delay)
            started = loop.time()
            limit = timeouts.start(0.1)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError as error:
                return "late" if limit.stop(error) else "cancelled", loop.time() - started
            assert not limit.stop()
            return "done", loop.time() - started

        results = await asyncio.gather(*(work(0.005 * n, 0.01 if n % 3 else 9.0) for n in range(30)))
        for number, (word, took) in enumerate(results):
            assert word == ("done" if number % 3 else "late")
            assert took == pytest.approx(0.01 if number % 3 else 0.1)
        assert all(not queue.running for queue in timeouts._queues.values())

    run_timeless(story())


def test_a_cancelled_task_stays_cancelled_also_when_its_time_is_over() -> None:
    async def story() -> None:
        timeouts = Timeouts()
        verdicts: list[bool] = []

        async def work() -> None:
            limit = timeouts.start(0.02)
            try:
                try:
                    await asyncio.sleep(9)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.05)
                    raise
            except asyncio.CancelledError as error:
                verdicts.append(limit.stop(error))
                raise

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert verdicts == [False]

    run_timeless(story())


def test_lengths_out_of_use_are_forgotten() -> None:
    async def story() -> None:
        timeouts = Timeouts()
        for number in range(1_000):
            timeouts.start(1 + number / 1000).stop()
        assert len(timeouts._queues) <= 100

    run_timeless(story())


# sanitize


def test_results_and_events_are_cleaned_and_bounded() -> None:
    heard: list[Event] = []

    async def sly(call: Call) -> Outcome:
        call.emit(Event("status", text="a\u202eb"))
        call.emit(Event("artifact", parts=(Part(data={"k\u200b": "v\u200b"}),)))
        return Done((Part(text="x\u202ey" + "z" * 20),))

    outcome = through(sanitize(10), Script(sly), a_call(heard=heard))
    assert isinstance(outcome, Done)
    assert (outcome.parts[0].text or "").startswith("xyzzzzzzz\n[13 of 23 characters left out")
    assert heard[0].text == "ab"
    assert heard[1].parts == (Part(data={"k": "v"}),)


def test_a_result_that_breaks_its_schema_is_malformed() -> None:
    schema = {"type": "object", "required": ["ok"]}
    step = sanitize(1000)
    assert through(step, Script(DONE), a_call(output_schema=schema)) == DONE
    wrong = failed(through(step, Script(Done((Part(data=1),))), a_call(output_schema=schema)), "malformed_response")
    assert "does not match its own schema" in wrong.message
    assert through(step, Script(DOWN), a_call(output_schema=schema)) == DOWN


LONG_TEXT = Part(text="word " * 40_000)


@pytest.mark.parametrize("parts", [(), (LONG_TEXT,), (Part(data=["x"] * 20_000),)])
@pytest.mark.parametrize(
    "question",
    [Question("q", "Sign in", url="javascript:alert(1)"), Question("q", "Open file:///etc/passwd"),
     Question("q", "Choose", {"type": "string", "description": "data:text/html;base64,AAAA" + " " * 140_000})],
)  # fmt: skip
def test_a_question_that_would_run_something_is_not_asked_however_much_stands_beside_it(
    question: Question, parts: tuple[Part, ...]
) -> None:
    refused = failed(through(sanitize(10**6), Script(Needs((question,), parts=parts)), a_call()), "blocked")
    assert "was not shown" in refused.message


@pytest.mark.parametrize(
    "outcome",
    [
        Done((Part(data={f"k{number}": "v" for number in range(20_000)}),)),
        Done((Part(data=[[[number]] for number in range(20_000)]),)),
        Done(tuple(Part(text="x") for _ in range(20_000))),
        Done(tuple(Part(url="http://x", name="n") for _ in range(20_000))),
        Done((Part(text="x", meta={"m": ["y"] * 20_000}),)),
        Done((Part(text="x", name="n" * 200_000),)),
        Done((Part(url="http://x/" + "u" * 200_000),)),
        Done((Part(text="x"),), meta={"m": ["y"] * 20_000}),
        Done(artifacts=(Artifact("a", parts=(LONG_TEXT,)),)),
        Done(artifacts=(Artifact("a", name="n", description="d" * 200_000),)),
        Done(artifacts=(Artifact("a", meta={"m": ["y"] * 20_000}),)),
        Failed("target_failed", "no " * 100_000),
        Failed("target_failed", "no", data={"m": ["y"] * 20_000}),
        Needs((Question("q", "Which?", {"enum": ["y"] * 20_000}),)),
        Needs((Question("q", "Sign in", url="https://x/" + "u" * 200_000),)),
    ],
)
def test_what_is_large_in_any_way_is_judged_beside_the_event_loop(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def note(*given: Any) -> Outcome:
        threads.append(threading.current_thread())
        return clean_outcome(*given)

    monkeypatch.setattr("agent3.calls.steps.sanitize.clean_outcome", note)
    through(sanitize(10**6), Script(outcome), a_call())
    assert threads
    assert threading.main_thread() not in threads


def test_what_is_told_on_the_way_is_short() -> None:
    heard: list[Event] = []

    async def talks(call: Call) -> Outcome:
        call.emit(Event("log", text="\u200b" * 10**6 + "x" * 10**6, data=["y"] * 10**6))
        call.emit(Event("artifact", parts=(LONG_TEXT,)))
        return DONE

    through(sanitize(10**6), Script(talks), a_call(heard=heard))
    assert len(heard[0].text or "") < 70_000
    assert heard[0].data == "[left out: too long for an event]"
    assert heard[1].parts == (LONG_TEXT,)  # which is part of the result


def test_filters_are_gone_when_the_step_is_left() -> None:
    async def raises(call: Call) -> Outcome:
        raise ValueError

    call = a_call()
    with pytest.raises(ValueError):
        through(sanitize(10), Script(raises), call)
    assert call.live.filters == ()


# route_secrets

SECRET = "s3cr3t-pizza-token"
WITH_SECRET = Route("a", "a.test", "do", credential="env:TOKEN")


def sealed(answer: Any, heard: list[Event] | None = None) -> Outcome:
    return through(route_secrets(OneSecret(SECRET)), Script(answer), a_call(route=WITH_SECRET, heard=heard))


@pytest.mark.parametrize("part", [LONG_TEXT, Part(data=[f"{SECRET} {number}" for number in range(20_000)])])
def test_secrets_are_taken_out_of_what_is_large_beside_the_event_loop(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def note(*given: Any) -> Outcome:
        threads.append(threading.current_thread())
        return redact_outcome(*given)

    monkeypatch.setattr("agent3.calls.steps.route_secrets.redact_outcome", note)
    outcome = sealed(Done((part, Part(text=f"it is {SECRET}"))))
    assert SECRET not in str(outcome)
    assert threads
    assert threading.main_thread() not in threads


def test_the_secret_reaches_the_connector_and_nothing_else() -> None:
    async def asks(call: Call) -> Outcome:
        assert call.secret is not None
        assert call.secret.reveal() == SECRET
        return DONE

    call = a_call(route=WITH_SECRET)
    assert through(route_secrets(OneSecret(SECRET)), Script(asks), call) == DONE
    assert call.secret is None
    target = Script()
    through(route_secrets(OneSecret(SECRET)), target, a_call(route=A))
    assert target.calls[0].secret is None


def test_the_secret_is_taken_out_of_outcomes() -> None:
    leaks: list[Outcome] = [
        Done(
            (
                Part(text=SECRET),
                Part(data={SECRET: [SECRET]}),
                Part(raw=SECRET.encode()),
                Part(url=f"https://x/{SECRET}"),
            )
        ),
        Done(artifacts=(Artifact("x", name=SECRET, parts=(Part(text=SECRET),)),)),
        Failed("x", SECRET, data={"a": SECRET}, parts=(Part(text=SECRET),)),
        Needs((Question("q", SECRET, {"title": SECRET}),), state={"a": SECRET}),
        Working(SECRET, text=SECRET),
    ]
    for leak in leaks:
        outcome = sealed(leak)
        assert SECRET not in repr(outcome)
        assert SECRET.encode() not in b"".join(part.raw or b"" for part in getattr(outcome, "parts", ()))


def test_the_secret_is_taken_out_of_events() -> None:
    heard: list[Event] = []

    async def leaky(call: Call) -> Outcome:
        call.emit(Event("status", text=SECRET, name=SECRET, data={"a": [SECRET]}))
        parts = (Part(text=SECRET), Part(data={"a": SECRET}), Part(raw=SECRET.encode()), Part(name=SECRET, text=""))
        call.emit(Event("artifact", parts=parts))
        return DONE

    sealed(leaky, heard)
    assert len(heard) == 2
    assert SECRET not in repr(heard)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"refused {SECRET}"),
        TargetError(f"refused {SECRET}", data={"header": f"Bearer {SECRET}"}),
        ValidationError(f"refused {SECRET}", errors=[{"got": SECRET}]),
        TimeoutError(f"connecting with {SECRET}"),
    ],
)
def test_the_secret_is_taken_out_of_exceptions(error: Exception) -> None:
    async def raises(call: Call) -> Outcome:
        try:
            raise KeyError(SECRET)
        except KeyError:
            raise error  # noqa: B904 - what a careless connector does

    with pytest.raises(Agent3Error) as caught:
        sealed(raises)
    assert SECRET not in f"{caught.value} {caught.value.message} {caught.value.data} {caught.value.to_dict()}"
    assert caught.value.__suppress_context__
    assert isinstance(caught.value, TimeoutError) == isinstance(error, TimeoutError)


# dispatch


def test_a_route_without_a_connector_is_unavailable() -> None:
    for route in (None, Route("nothing", "x")):
        with pytest.raises(Unavailable, match="no connector for protocol"):
            run(_awaited(Chain(parts(connectors={"a": Script()}, park=None), ())(a_call(route=route))))
