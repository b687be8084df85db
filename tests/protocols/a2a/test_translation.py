"""Calls as messages, and tasks as outcomes: what no agent of the other tests does."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from agent3.errors import ValidationError
from agent3.model import LOCAL, Answer, Call, Done, Failed, Needs, Principal, Usage, Working, value_of
from agent3.model import Part as Piece
from agent3.protocols.a2a.cards.extensions import DEADLINE, USAGE
from agent3.protocols.a2a.peer.translation import (
    TaskFold,
    build_answer,
    build_message,
    given_metadata,
    message_id,
    to_outcome,
)
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    Role,
    State,
    Status,
    StatusUpdate,
    Task,
)


def call(**more: Any) -> Call:
    return Call(id="c1", principal=LOCAL, agent="remote", capability="talk", **more)


def said(*parts: Part, **more: Any) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts, **more)


def task(state: State, message: Message | None = None, **more: Any) -> Task:
    return Task(id="t1", context_id="x1", status=Status(state=state, message=message), **more)


def artifact(name: str, *texts: str) -> Artifact:
    return Artifact(artifact_id=name, parts=tuple(Part(text=text) for text in texts))


# Messages


GIVEN: list[tuple[Any, tuple[Piece, ...], tuple[Part, ...]]] = [
    ({"message": "hi"}, (Piece(text="hi"),), (Part(text="hi"),)),
    ({"message": "hi"}, (), (Part(text="hi"),)),
    ({"message": "hi", "data": [1]}, (), (Part(text="hi"), Part(data=[1]))),
    ({"size": 3}, (), (Part(data={"size": 3}),)),
    ({"size": 3}, (Piece(data={"size": 3}),), (Part(data={"size": 3}),)),
    ([1, 2], (), (Part(data=[1, 2]),)),
    ({"message": "see"}, (Piece(url="https://x/y.png"),), (Part(text="see"), Part(url="https://x/y.png"))),
]


@pytest.mark.parametrize(("given", "parts", "wanted"), GIVEN)
def test_what_a_caller_gives_is_said_once(given: Any, parts: tuple[Piece, ...], wanted: tuple[Part, ...]) -> None:
    message = build_message(call(input=given, parts=parts), "talk")
    assert message.parts == wanted
    assert message.metadata == {"skillId": "talk"}


def test_what_a_caller_said_beside_its_message_is_passed_on() -> None:
    given = Message(
        message_id="m0",
        role=Role.USER,
        parts=(),
        metadata={"com.example/x": 1, "skillId": "agent/talk"},
        extensions=("https://example.com/e",),
        reference_task_ids=("t0",),
    )
    beside = {"com.example/y": 2, DEADLINE: {"deadline": "then"}}
    for message in (given, msgspec.to_builtins(given)):  # as it came, and as it is stored
        asked = call(input={"message": "hi"}, meta={"a2a": {"message": message, "metadata": beside}})
        built = build_message(asked, "talk")
        assert built.metadata == {"com.example/x": 1, "skillId": "talk"}
        assert (built.extensions, built.reference_task_ids) == (given.extensions, given.reference_task_ids)
        assert given_metadata(asked) == {"com.example/y": 2}


def test_nothing_to_say_is_refused() -> None:
    with pytest.raises(ValidationError, match="empty message"):
        build_message(call(input={}), None)


def test_a_message_is_known_by_the_key_of_its_caller() -> None:
    other = Call(id="c9", principal=Principal("bob"), agent="remote", capability="talk", key="k")
    assert message_id(call()) == "c1"
    assert message_id(call(key="k")) == message_id(call(key="k", attempt=2))
    assert message_id(call(key="k")) != message_id(other)


# Results


def test_the_artifact_called_result_is_the_result_and_others_stay_beside_it() -> None:
    found = task(State.COMPLETED, artifacts=(artifact("a", "log"), artifact("result", "the answer")))
    outcome = to_outcome(found, call())
    assert isinstance(outcome, Done)
    assert value_of(outcome.parts) == "the answer"
    assert [each.id for each in outcome.artifacts] == ["a"]


@pytest.mark.parametrize("ours", [True, False])
def test_without_artifacts_the_last_words_are_the_result_and_usage_is_counted(ours: bool) -> None:
    used = {USAGE: {"tokens": 7, "cost": 0.5}} if ours else {"usage": {"total_tokens": 7, "cost": 0.5}}
    outcome = to_outcome(task(State.COMPLETED, said(Part(text="done")), metadata=used), call())
    assert isinstance(outcome, Done)
    assert (value_of(outcome.parts), outcome.usage) == ("done", Usage(tokens=7, cost=0.5))


@pytest.mark.parametrize(
    ("code", "wanted"), [("timeout", "timeout"), ("forbidden", "target_failed"), (5, "target_failed")]
)
def test_only_errors_of_a_target_are_believed(code: Any, wanted: str) -> None:
    failed = to_outcome(task(State.FAILED, said(Part(text="no"), metadata={"code": code, "retryable": True})), call())
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (wanted, wanted == "timeout")


def test_a_task_that_works_is_read_again() -> None:
    outcome = to_outcome(task(State.WORKING, said(Part(text="half way"))), call())
    assert isinstance(outcome, Working)
    assert (outcome.state["task"], outcome.text) == ("t1", "half way")


# Questions


def test_questions_with_forms_keep_their_names_and_types() -> None:
    forms = (Part(data={"id": "q1", "schema": {"type": "integer"}}), Part(data={"id": "q2"}))
    asked = said(
        Part(text="A few things."), Part(text="How many?"), Part(text="For whom?"), *forms, Part(url="https://x/m")
    )
    needs = to_outcome(task(State.INPUT_REQUIRED, asked), call(answers={"q2": Answer(data="old")}, turn=2))
    assert isinstance(needs, Needs)
    assert [(question.id, question.text, question.schema) for question in needs.questions] == [
        ("q1", "How many?", {"type": "integer"}),
        ("q2-2", "For whom?", None),
    ]
    assert [part.text or part.url for part in needs.parts] == ["A few things.", "https://x/m"]
    answers = {"q1": Answer(data=3), "q2-2": Answer("decline")}
    message = build_answer(call(state=needs.state, answers=answers, turn=3))
    assert (message.task_id, message.context_id) == ("t1", "x1")
    data = [part.data for part in message.parts if isinstance(part.data, dict)]
    assert data == [
        {"id": "q1", "action": "accept", "data": 3},
        {"id": "q2", "action": "decline", "data": None},
    ]


WHERE = [
    (said(Part(text="Go to https://login.example/a, please.")), "https://login.example/a"),
    (said(Part(url="https://login.example/b")), "https://login.example/b"),
    (said(Part(text="Sign in"), Part(data={"auth": "https://login.example/c"})), "https://login.example/c"),
    (said(Part(text="Sign in"), metadata={"url": "https://login.example/d"}), "https://login.example/d"),
    (None, "about:blank"),
]


@pytest.mark.parametrize(("message", "url"), WHERE)
def test_an_authorization_is_a_question_with_a_place(message: Message | None, url: str) -> None:
    needs = to_outcome(task(State.AUTH_REQUIRED, message), call())
    assert isinstance(needs, Needs)
    assert needs.questions[0].url == url


# The fold


def test_pieces_add_up_and_a_snapshot_counts_for_all_before_it() -> None:
    fold = TaskFold()

    def piece(text: str, *, append: bool) -> ArtifactUpdate:
        return ArtifactUpdate(task_id="t1", artifact=artifact("tale", text), append=append)

    events = [*fold.add(piece("Once ", append=False)), *fold.add(piece("upon", append=True))]
    assert [(event.artifact, event.append) for event in events] == [(None, False), (None, True)]
    fold.add(StatusUpdate(task_id="t1", status=Status(state=State.COMPLETED)))
    result = fold.result()
    assert isinstance(result, Task)
    assert (result.artifacts[0].parts, result.status.state) == ((Part(text="Once upon"),), State.COMPLETED)
    fold.add(task(State.COMPLETED, artifacts=(artifact("tale", "Once upon a time"), artifact("map", "here"))))
    again = fold.result()
    assert isinstance(again, Task)
    assert [each.artifact_id for each in again.artifacts] == ["tale", "map"]


def test_a_stream_of_very_many_pieces_is_not_copied_with_each_of_them() -> None:
    fold, begun = TaskFold(), time.thread_time()
    for number in range(80_000):
        fold.add(ArtifactUpdate(task_id="t", context_id="c", artifact=artifact("a", "x" * 64), append=number > 0))
    result = fold.result()
    assert isinstance(result, Task)
    assert len(result.artifacts[0].parts[0].text or "") == 80_000 * 64
    assert time.thread_time() - begun < 15  # of computing: a fraction of a second, or half a minute and more


def test_progress_with_numbers_is_told_with_numbers() -> None:
    update = StatusUpdate(
        task_id="t1",
        status=Status(state=State.WORKING, message=said(Part(text="baking"))),
        metadata={"progress": {"done": 1, "total": 4}},
    )
    (event,) = TaskFold().add(update)
    assert (event.kind, event.text, event.done, event.total) == ("progress", "baking", 1.0, 4.0)
