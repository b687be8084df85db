"""Values of every shape, for the tests of all codecs: some by hand, many by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Authentication,
    Message,
    Part,
    Push,
    Role,
    Send,
    Sending,
    State,
    Status,
    StatusUpdate,
    Task,
)

TIME = "2025-10-28T10:30:00.000Z"

PARTS = (
    Part(text="hello ☃", metadata={"n": 1}),
    Part(raw=b"\x00\xff\xfe~", filename="a.bin", media_type="application/octet-stream"),
    Part(url="https://x.example/a.pdf", filename="a.pdf", media_type="application/pdf"),
    Part(data={"a": [1, None, {"b": "c"}]}),
)
MESSAGE = Message(
    message_id="m1",
    role=Role.USER,
    parts=PARTS,
    context_id="c1",
    task_id="t1",
    metadata={"k": "v"},
    extensions=("https://x.example/ext",),
    reference_task_ids=("t0",),
)
ANSWER = Message(message_id="m2", role=Role.AGENT, parts=(Part(text="done"),))
ARTIFACT = Artifact(artifact_id="a1", parts=PARTS, name="result", description="what came of it", metadata={"x": 1})
TASK = Task(
    id="t1",
    context_id="c1",
    status=Status(state=State.COMPLETED, message=ANSWER, timestamp=TIME),
    artifacts=(ARTIFACT,),
    history=(MESSAGE, ANSWER),
    metadata={"m": True},
)
STATUS_UPDATE = StatusUpdate(
    task_id="t1", context_id="c1", status=Status(state=State.WORKING, timestamp=TIME), metadata={"p": 1}
)
ARTIFACT_UPDATE = ArtifactUpdate(task_id="t1", context_id="c1", artifact=ARTIFACT, append=True, last_chunk=True)
ITEMS = (TASK, MESSAGE, STATUS_UPDATE, ARTIFACT_UPDATE)
PUSH = Push(
    url="https://me.example/hook",
    id="p1",
    task_id="t1",
    token="secret",
    authentication=Authentication(scheme="Bearer", credentials="abc"),
)
SEND = Send(
    message=MESSAGE,
    configuration=Sending(
        accepted_output_modes=("text/plain",),
        return_immediately=True,
        history_length=3,
        push=replace(PUSH, task_id=None),
    ),
    metadata={"s": 1},
)

# By hypothesis. JSON without floats: what they print as is msgspec's affair, and each would have to be compared alike.

_text = st.text(max_size=8)
_name = st.text("abcXYZ-09_é", min_size=1, max_size=8)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)
_metadata = st.none() | st.dictionaries(_name, _json, min_size=1, max_size=2)
_names = st.lists(_name, max_size=2).map(tuple)
_time = st.none() | st.datetimes().map(lambda time: f"{time.isoformat(timespec='milliseconds')}Z")

parts = st.one_of(
    st.builds(Part, text=_text, metadata=_metadata),
    st.builds(
        Part, raw=st.binary(max_size=9), filename=st.none() | _name, media_type=st.none() | _name, metadata=_metadata
    ),
    st.builds(Part, url=_name, filename=st.none() | _name, media_type=st.none() | _name, metadata=_metadata),
    st.builds(Part, data=_json, metadata=_metadata),
)
_several = st.lists(parts, min_size=1, max_size=3).map(tuple)
messages = st.builds(
    Message,
    message_id=_name,
    role=st.sampled_from(Role),
    parts=_several,
    context_id=st.none() | _name,
    task_id=st.none() | _name,
    metadata=_metadata,
    extensions=_names,
    reference_task_ids=_names,
)
artifacts = st.builds(
    Artifact,
    artifact_id=_name,
    parts=_several,
    name=st.none() | _name,
    description=st.none() | _name,
    metadata=_metadata,
    extensions=_names,
)
statuses = st.builds(Status, state=st.sampled_from(State), message=st.none() | messages, timestamp=_time)
tasks = st.builds(
    Task,
    id=_name,
    context_id=_name,
    status=statuses,
    artifacts=st.lists(artifacts, max_size=2).map(tuple),
    history=st.lists(messages, max_size=2).map(tuple),
    metadata=_metadata,
)
status_updates = st.builds(
    StatusUpdate, task_id=_name, context_id=_name, status=statuses, metadata=_metadata, final=st.booleans()
)
artifact_updates = st.builds(
    ArtifactUpdate,
    task_id=_name,
    context_id=_name,
    artifact=artifacts,
    append=st.booleans(),
    last_chunk=st.booleans(),
    metadata=_metadata,
)
items = st.one_of(tasks, messages, status_updates, artifact_updates)
pushes = st.builds(
    Push,
    url=_name,
    id=st.none() | _name,
    token=st.none() | _name,
    authentication=st.none() | st.builds(Authentication, scheme=_name, credentials=st.none() | _name),
)
sends = st.builds(
    Send,
    message=messages,
    configuration=st.builds(
        Sending,
        accepted_output_modes=_names,
        return_immediately=st.booleans(),
        history_length=st.none() | st.integers(0, 99),
        push=st.none() | pushes,
    ),
    metadata=_metadata,
    stream=st.booleans(),
)
