"""A job's log, seen as a task: the same whenever and from wherever it is read."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent3.calls.jobs import Job, Line
from agent3.errors import ValidationError
from agent3.model import SAID, Call, Done, Event, Failed, Needs, Outcome, Principal, Question, Working
from agent3.model import Artifact as Made
from agent3.model import Part as Piece
from agent3.protocols.a2a.door import projection
from agent3.protocols.a2a.door.pagination import check_page_size, decode_token, encode_token, jobs_query
from agent3.protocols.a2a.door.projection import (
    Growing,
    Projection,
    answers_to,
    format_time,
    item_number,
    latest_messages,
    parts_in,
    parts_out,
    split_number,
    stored_in,
)
from agent3.protocols.a2a.door.streams import fold
from agent3.protocols.a2a.peer.translation import TaskFold, to_outcome
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Item,
    ListTasks,
    Message,
    Part,
    Role,
    State,
    Status,
    StatusUpdate,
)

AT = 1_800_000_000.0


def a_job(outcome: Outcome | None = None, **more: Any) -> Job:
    meta = {"a2a": {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": []}, "generation": "1.0"}}
    call = Call(
        id="t1",
        principal=Principal("alice"),
        agent="target",
        capability="do",
        parts=(Piece(text="hello"),),
        context="c1",
        meta=meta | more.pop("meta", {}),
    )
    plain: dict[str, Any] = {"id": "t1", "owner": "alice", "status": "working", "turn": 1, "call": call, "seq": 1}
    return Job(**{**plain, "outcome": outcome, "created": AT, "updated": AT, **more})


def turn(outcome: Outcome, seq: int = 9) -> Line:
    return Line(Event("turn", data=msgspec.to_builtins(outcome), seq=seq), AT)


def told(*lines: Line, job: Job | None = None) -> tuple[Projection, list[Item]]:
    seen = Projection(job or a_job())
    return seen, [item for line in lines for item in seen.apply(line)]


def chunk(text: str, seq: int, artifact: str = "result", append: bool = True, last: bool = False) -> Line:
    event = Event("artifact", artifact=artifact, parts=(Piece(text=text),), append=append, last=last, seq=seq)
    return Line(event, AT)


@pytest.mark.requirement("SL-04")
@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Done((Piece(text="x"),)), State.COMPLETED),
        (Failed("target_failed", "broken", asked=True), State.FAILED),
        (Failed("canceled", "stopped"), State.CANCELED),
        (Failed("rejected", "no"), State.REJECTED),
        (Failed("declined", "no"), State.REJECTED),
        (Failed("forbidden", "no"), State.REJECTED),
        (Needs((Question("q1", "Which?"),)), State.INPUT_REQUIRED),
        (Needs((Question("q1", "Sign in", url="https://x.example"),)), State.AUTH_REQUIRED),
        (Working(text="elsewhere"), State.WORKING),
    ],
)
def test_every_outcome_has_its_state(outcome: Outcome, state: State) -> None:
    seen, items = told(turn(outcome))
    assert seen.status.state is state
    assert isinstance(items[-1], StatusUpdate)
    assert items[-1].final == (state not in (State.WORKING,))


@pytest.mark.parametrize(
    "meta",
    [
        {"a2a.about": {"name": 5}},
        {"a2a.about": {"parts": [{"text": "more"}]}},
        {"a2a.about": {"meta": {"a2a.extensions": 5}}},
        {"a2a.about": "x", "said": 5},
    ],
)
def test_what_an_mcp_server_writes_into_the_meta_of_a_result_breaks_no_task(meta: dict[str, Any]) -> None:
    seen, _ = told(turn(Done((Piece(text="x"),), meta=meta)))
    (made,) = seen.task().artifacts
    assert (made.name, made.parts, made.extensions) == (None, (Part(text="x"),), ())


def test_a_task_begins_submitted_with_its_message() -> None:
    task = Projection(a_job()).task()
    assert task.status.state is State.SUBMITTED
    assert [message.message_id for message in task.history] == ["m1"]
    assert task.history[0].parts == (Part(text="hello"),)
    assert (task.history[0].task_id, task.history[0].context_id) == ("t1", "c1")


def test_a_failure_says_what_and_whether_to_try_again() -> None:
    seen, _ = told(turn(Failed("unavailable", "It is down.", retryable=True, asked=True)))
    message = seen.status.message
    assert message is not None
    assert message.parts == (Part(text="It is down."),)
    assert message.metadata == {"code": "unavailable", "retryable": True}


def test_a_question_is_told_in_words_and_as_data_and_remembered_when_it_is_answered() -> None:
    asked = Needs((Question("q1", "Which size?", {"type": "string"}),))
    user = Message(message_id="m2", role=Role.USER, parts=())
    reply = Event("message", parts=(Piece(text="large"),), data=msgspec.to_builtins(user), seq=3)
    seen, items = told(turn(asked, 2), Line(reply, AT), turn(Done((Piece(text="ok"),)), 4))
    question = items[0]
    assert isinstance(question, StatusUpdate)
    assert question.status.message is not None
    assert question.status.message.parts == (
        Part(text="Which size?"),
        Part(data={"id": "q1", "schema": {"type": "string"}}),
    )
    assert isinstance(items[1], StatusUpdate)
    assert items[1].status.state is State.WORKING
    assert [(message.role, message.parts[0].text) for message in seen.task().history] == [
        (Role.USER, "hello"),
        (Role.AGENT, "Which size?"),
        (Role.USER, "large"),
    ]


def test_what_an_agent_says_is_history_and_what_it_reports_is_not() -> None:
    say = Line(Event("status", text="I found three.", data=SAID, seq=1), AT)
    report = Line(Event("status", text="reading", seq=2), AT)
    far = Line(Event("progress", done=1, total=2, seq=3), AT)
    seen, items = told(say, report, far)
    assert [message.parts[0].text for message in seen.history] == ["hello", "I found three."]
    assert all(isinstance(item, StatusUpdate) for item in items)
    assert isinstance(items[2], StatusUpdate)
    assert items[2].metadata == {"progress": {"done": 1, "total": 2}}


def test_chunks_add_up_and_the_end_tells_only_what_is_missing() -> None:
    seen, items = told(chunk("one ", 1, append=False), chunk("two", 2), turn(Done((Piece(text="one two!"),)), 3))
    pieces = [item for item in items if isinstance(item, ArtifactUpdate)]
    assert [(piece.artifact.parts[0].text, piece.append, piece.last_chunk) for piece in pieces] == [
        ("one ", False, False),
        ("two", True, False),
        ("!", True, True),
    ]
    assert seen.task().artifacts[0].parts == (Part(text="one two!"),)


def test_a_text_of_very_many_pieces_is_not_copied_with_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    append_text = projection._append_text

    def counted(parts: list[Part], tail: list[str]) -> None:
        joined.append(len(tail))
        append_text(parts, tail)

    monkeypatch.setattr(projection, "_append_text", counted)
    seen = Projection(a_job())
    for seq in range(1, 2_001):
        seen.apply(chunk("x" * 64, seq, append=seq > 1))
    assert joined == []  # with each piece, this would be quadratic
    assert len(seen.task().artifacts[0].parts[0].text or "") == 2_000 * 64
    assert sum(joined) == 1_999
    seen.task()
    assert sum(joined) == 1_999


def test_pieces_of_several_parts_stand_behind_each_other_and_a_name_may_come_late() -> None:
    growing = Growing(Artifact(artifact_id="a", parts=(Part(text="one "),)))
    growing.add(Artifact(artifact_id="a", parts=(Part(text="two"), Part(data=1)), name="Late"))
    assert growing.whole().parts == (Part(text="one two"), Part(data=1))
    for more in ((Part(text="three "),), (), (Part(text="four"),)):
        growing.add(Artifact(artifact_id="a", parts=more, name="Later"))
    assert growing.whole().parts == (Part(text="one two"), Part(data=1), Part(text="three four"))
    assert growing.whole().name == "Late"


def test_what_was_streamed_whole_is_not_told_again_and_the_last_words_close_it() -> None:
    done = Done(
        (Piece(text="one two"),), (Made("bill", parts=(Piece(data=1),)),), meta={"said": "Request is completed!"}
    )
    bill = Line(Event("artifact", artifact="bill", parts=(Piece(data=1),), last=True, seq=3), AT)
    seen, items = told(chunk("one ", 1, append=False), chunk("two", 2, last=True), bill, turn(done, 4))
    assert [item.last_chunk for item in items[:-1] if isinstance(item, ArtifactUpdate)] == [False, True, True]
    closing = items[-1]
    assert isinstance(closing, StatusUpdate)
    assert closing.status.message is not None
    assert closing.status.message.parts == (Part(text="Request is completed!"),)
    assert seen.task().status == closing.status
    assert [artifact.parts for artifact in seen.task().artifacts] == [(Part(text="one two"),), (Part(data=1),)]


@pytest.mark.parametrize("streamed", [True, False])
def test_what_an_agent_says_of_its_artifacts_reaches_the_caller_of_a_gateway(streamed: bool) -> None:
    first, second = (
        Artifact(
            artifact_id=name,
            name=f"The {name}",
            description="a paper",
            parts=(Part(text=name),),
            metadata={"pages": 2},
            extensions=("https://ext.example/paper",),
        )
        for name in ("offer", "terms")
    )
    bye = Message(message_id="m", role=Role.AGENT, parts=(Part(text="that is all"),), metadata={"bye": True})
    status = Status(state=State.COMPLETED, message=bye)
    heard = TaskFold()
    pieces = [heard.add(ArtifactUpdate(task_id="t", artifact=one, last_chunk=True))[0] for one in (first, second)]
    heard.add(StatusUpdate(task_id="t", status=status))
    result = heard.result()
    assert result is not None
    outcome = to_outcome(result, a_job().call)
    lines = [Line(replace(piece, seq=number), AT) for number, piece in enumerate(pieces)] if streamed else []
    seen, items = told(*lines, turn(outcome))
    assert [item.artifact for item in items if isinstance(item, ArtifactUpdate)] == list(seen.task().artifacts)
    shown = {artifact.name: artifact for artifact in seen.task().artifacts}
    assert shown == {"The offer": first, "The terms": second}
    message = seen.task().status.message
    assert message is not None
    assert (message.parts, message.metadata) == (bye.parts, bye.metadata)


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_a_result_that_grows_has_the_id_that_its_agent_gave_it_in_every_piece(state: State) -> None:
    heard = TaskFold()
    pieces = [
        heard.add(
            ArtifactUpdate(task_id="t", artifact=Artifact(artifact_id=name, parts=(Part(text=text),)), append=more)
        )
        for name, text, more in (("tale", "Once ", False), ("map", "here", False), ("tale", "upon", True))
    ]
    heard.add(StatusUpdate(task_id="t", status=Status(state=state)))
    result = heard.result()
    assert result is not None
    lines = [Line(replace(piece, seq=number), AT) for number, (piece,) in enumerate(pieces, 1)]
    seen, _ = told(*lines, turn(to_outcome(result, a_job().call)))
    assert {one.artifact_id: one.parts[0].text for one in seen.task().artifacts} == {"tale": "Once upon", "map": "here"}
    (pushed,) = Projection(a_job(), apart=True).apply(lines[-1])
    assert isinstance(pushed, ArtifactUpdate)
    assert (pushed.artifact.artifact_id, pushed.append) == ("tale", True)


@pytest.mark.parametrize("told_by", [{"progress": {"done": 1, "total": 4}}, {}])
def test_what_an_agent_says_beside_its_words_at_work_reaches_the_caller_of_a_gateway(told_by: dict[str, Any]) -> None:
    words = Message(message_id="m", role=Role.AGENT, parts=(Part(text="reading"),), metadata={"mood": "calm"})
    beside = {"step": {"name": "read"}, **told_by}
    heard = TaskFold()
    events = [
        *heard.add(StatusUpdate(task_id="t", status=Status(state=State.WORKING, message=words), metadata=beside)),
        *heard.add(StatusUpdate(task_id="t", status=Status(state=State.WORKING), metadata={"silent": True})),
    ]
    _, items = told(*(Line(replace(event, seq=number), AT) for number, event in enumerate(events, 1)))
    assert [item.metadata for item in items if isinstance(item, StatusUpdate)] == [beside, {"silent": True}]
    first = items[0]
    assert isinstance(first, StatusUpdate)
    assert first.status.message is not None
    assert (first.status.message.parts, first.status.message.metadata) == (words.parts, words.metadata)


def test_a_result_that_is_not_what_was_streamed_replaces_it() -> None:
    seen, items = told(chunk("draft", 1, append=False), turn(Done((Piece(text="final"),)), 2))
    last = items[1]
    assert isinstance(last, ArtifactUpdate)
    assert (last.append, last.last_chunk, last.artifact.parts) == (False, True, (Part(text="final"),))
    assert seen.task().artifacts[0].parts == (Part(text="final"),)


def test_artifacts_beside_the_result_keep_their_names_and_the_result_stands_last() -> None:
    done = Done((Piece(data={"ok": True}),), (Made("report", "Report", parts=(Piece(text="r"),)),))
    seen, _ = told(chunk("a", 1, "bill", append=False), chunk("b", 2, "bill", last=True), turn(done, 3))
    assert [artifact.artifact_id for artifact in seen.task().artifacts] == ["bill", "report", "result"]
    assert seen.task().artifacts[0].parts == (Part(text="ab"),)


def test_a_run_that_begins_anew_replaces_what_the_first_had_sent() -> None:
    seen, _ = told(chunk("lost", 1, append=False), chunk("again", 10_001, append=False))
    assert seen.task().artifacts[0].parts == (Part(text="again"),)


@pytest.mark.requirement("SL-02")
def test_every_kind_of_part_goes_in_and_out() -> None:
    parts = (
        Part(text="t"),
        Part(raw=b"\x00\x01", filename="a.bin", media_type="application/x"),
        Part(url="https://x.example/a"),
        Part(data=None),
        Part(data={"a": [1]}, metadata={"k": 1}),
    )
    assert parts_out(parts_in(parts)) == parts


def test_a_stored_part_has_an_address_or_a_handle() -> None:
    stored = (Piece(artifact="a1", media_type="text/plain"),)
    assert parts_out(stored, lambda handle: f"https://here/{handle}")[0].url == "https://here/a1"
    assert stored_in(parts_out(stored)[0]) == "a1"
    assert stored_in(Part(url="https://x.example")) is None


def test_numbers_tell_the_items_of_one_event_apart() -> None:
    assert split_number(item_number(7, 2)) == (7, 3)
    assert item_number(7, 0) < item_number(7, 1) < item_number(8, 0)
    assert split_number(item_number(7, 5_000))[0] == 7


def test_a_row_without_lines_tells_the_same_as_its_log() -> None:
    done = Done((Piece(text="x"),))
    job = a_job(done, status="done")
    by_log = fold(job, [turn(done, 1)])
    assert fold(job, []).task() == by_log.task()
    assert by_log.task().status.timestamp == format_time(AT) == "2027-01-15T08:00:00.000Z"


def test_history_is_as_long_as_is_wanted() -> None:
    history = [Message(message_id=str(n), role=Role.USER, parts=()) for n in range(3)]
    assert [len(latest_messages(history, n)) for n in (None, 0, 1, 2, 3, 9)] == [3, 0, 1, 2, 3, 3]
    assert latest_messages(history, 1)[0].message_id == "2"


# Answers


def say(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=parts)


SIZE = Question("q1", "Size?", {"type": "string", "enum": ["small", "large"]})
COUNT = Question("q2", "How many?", {"type": "integer"})
SURE = Question("q3", "Sure?", {"type": "boolean"})
FORM = Question("q4", "Who?", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})


@pytest.mark.parametrize(
    ("question", "text", "data"),
    [
        (SIZE, "large", "large"),
        (COUNT, "3", 3),
        (COUNT, "three", "three"),
        (SURE, "Yes", True),
        (FORM, "Ann", {"name": "Ann"}),
    ],
)
def test_words_become_what_was_asked_for(question: Question, text: str, data: Any) -> None:
    assert answers_to([question], say(Part(text=text)))[question.id].data == data


def test_data_answers_by_name_or_alone_and_may_decline() -> None:
    both = answers_to([SIZE, COUNT], say(Part(data={"q1": "small", "q2": 2, "else": 1})))
    assert {name: item.data for name, item in both.items()} == {"q1": "small", "q2": 2}
    assert answers_to([COUNT], say(Part(data=7)))["q2"].data == 7
    assert answers_to([SIZE], say(Part(data={"id": "q1", "action": "decline"})))["q1"].action == "decline"
    assert (
        answers_to([Question("q5", "Sign in", url="https://x.example")], say(Part(text="done")))["q5"].action
        == "accept"
    )


def test_of_several_questions_words_answer_the_first() -> None:
    assert list(answers_to([SIZE, COUNT], say(Part(text="large")))) == ["q1"]


# Pages


def test_a_token_leads_back_to_its_place_and_a_foreign_one_is_refused() -> None:
    assert decode_token(encode_token(AT, "t1")) == (AT, "t1")
    for wrong in ("x", "!!!", base64.urlsafe_b64encode(b"{}").decode()):
        with pytest.raises(ValidationError, match="pageToken"):
            decode_token(wrong)


def test_a_page_has_one_to_a_hundred_tasks() -> None:
    assert [check_page_size(entry) for entry in (None, 1, 100)] == [50, 1, 100]
    for wrong in (0, -1, 101):
        with pytest.raises(ValidationError, match="pageSize"):
            check_page_size(wrong)


def test_a_time_that_is_none_is_refused() -> None:
    chosen = jobs_query(ListTasks(status_timestamp_after="2027-01-15T08:00:00Z"), None)
    assert chosen is not None
    assert chosen.since == AT
    with pytest.raises(ValidationError, match="statusTimestampAfter"):
        jobs_query(ListTasks(status_timestamp_after="yesterday"), None)
