"""Push notifications: whoever a task's owner names is told of its states and artifacts by HTTP.

A configuration is a row beside the job; what is told is written into the outbox in the very transaction that changes
the job, and delivered from there: signed, in order, repeated until it arrives or is a dead letter. Tokens and
credentials are sealed before anything of them is kept, and never shown again. ``verify`` is for the receiving side.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.calls import webhooks
from agent3.calls.jobs.jobs import Job, Jobs, Line
from agent3.calls.outbox import Delivery, Outbox, Receipt
from agent3.env import Env
from agent3.errors import JobNotFound, ParseError, RateLimited, SetupError, Unauthenticated, ValidationError
from agent3.model import SAID, Event
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.pagination import cursor, size_of, token_of
from agent3.protocols.a2a.door.projection import META, Link, Projection
from agent3.protocols.a2a.door.streams import fold
from agent3.protocols.a2a.wire import CODECS
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Authentication,
    Generation,
    GetTask,
    Item,
    Message,
    Part,
    Push,
    PushPage,
    Status,
    StatusUpdate,
    Task,
)
from agent3.storage import Database, Row, Transaction

__all__ = ["SENSITIVITY", "TOKEN", "Notice", "Pushes", "understood", "verify"]

log = logger("a2a.push")

Holder = TypeVar("Holder", Message, Artifact)

TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header
SENSITIVITY: Final = "sensitivity"
"""The key in the metadata of a part by which its author says how sensitive it is. What is not ``public`` is kept with
the task for those who may read it, and is not sent to webhooks."""
_PUBLIC: Final = "public"
_LARGEST: Final = 1_048_576
"""Bytes of a body. Of a larger artifact only the name is told: who is told reads the task."""
_MOST: Final = 20
"""Configurations that a task may have."""
_ID: Final = 200
"""Characters of the id of a configuration, which is part of the id of each notification."""
_VISIBLE: Final = re.compile(r"[!-~]{1,2048}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,63}")
_WORDS: Final = re.compile(r"[ -~]{1,4096}")
_KIND: Final[dict[type, str]] = {Task: "task", StatusUpdate: "status", ArtifactUpdate: "artifact", Message: "message"}


class Pushes:
    """The configurations of all tasks in a database, and what is told by them. A ``Teller`` of jobs."""

    def __init__(self, outbox: Outbox, jobs: Jobs, database: Database, env: Env, *, link: Link | None = None):
        self._outbox = outbox
        self._jobs = jobs
        self._database = database
        self._env = env
        self._link = link
        jobs.also_tell(self)

    # Configurations

    async def create(self, owner: str, job: str, push: Push, generation: Generation, snapshot: Task) -> Push:
        """Have somebody told of a task from now on, and first of how it stands. One of the same id is replaced.

        ValidationError, SecurityError, SetupError or QueueFull say why not; no secret is in any of them.
        """
        headers = _headers(push)
        if push.id is not None and len(push.id) > _ID:
            raise _wrong("id", f"must have at most {_ID} characters")
        await self._outbox.check(owner, push.url)
        sealed = await self._outbox.seal(owner, push.url, headers) if headers else ""
        kept = replace(push, id=push.id or _unnamed(generation) or self._env.id(), task_id=snapshot.id)

        async def work(tx: Transaction) -> None:
            row = await self._keep(tx, job, kept, generation, sealed)
            await self._post(tx, owner, job, row, snapshot, f"snapshot_{row['number']}_{self._stamp()}")

        await self._database.write(work)
        return _redacted(kept)

    async def get(self, job: str, push: str | None, task: str) -> Push:
        """One configuration, the first where none is named; JobNotFound where there is none."""
        rows = await self._rows(job)
        row = next((one for one in rows if push is None or one["id"] == push), None)
        if row is None:
            named = f"push configuration {push[:100]!r}" if push else "push configuration"
            raise JobNotFound(f"Task {task} has no {named}.")
        return _push(row, task)

    async def list(self, job: str, task: str, page_size: int | None = None, token: str | None = None) -> PushPage:
        """The configurations of a task, in the order of their making."""
        size, after = size_of(page_size), cursor(token)[0] if token else 0.0
        rows = [row for row in await self._rows(job) if row["number"] > after]
        more = token_of(rows[size - 1]["number"], "") if len(rows) > size else ""
        return PushPage(configs=tuple(_push(row, task) for row in rows[:size]), next_page_token=more)

    async def delete(self, job: str, push: str) -> None:
        """Have nobody told by a configuration any more; what waits for its delivery is still delivered."""
        await self._database.many("DELETE FROM a2a_pushes WHERE job = ? AND id = ?", [(job, push)])

    async def forget(self, job: str) -> None:
        """Remove the configurations of a task that did not come about."""
        await self._database.many("DELETE FROM a2a_pushes WHERE job = ?", [(job,)])

    async def receipts(self, job: str) -> Sequence[Receipt]:
        """What was told of a task and what became of it, the oldest first."""
        return await self._outbox.receipts(job)

    # Telling

    async def turned(self, tx: Transaction, job: Job) -> None:
        """Tell how a turn ended: what came with it, and the state."""
        if job.outcome is not None:
            last = Event("turn", data=msgspec.to_builtins(job.outcome), seq=job.seq, turn=job.turn)
            await self._tell(tx, job, [last])

    async def told(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Tell of artifacts, of what the agent says, and that it goes on after an answer; not of mere progress."""
        shown = [one for one in events if one.kind in ("artifact", "message") or one.data == SAID]
        if shown:
            await self._tell(tx, job, shown)

    async def _tell(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        if META not in job.call.meta:
            return
        rows = await tx.all("SELECT * FROM a2a_pushes WHERE job = ? ORDER BY number", job.id)
        if not rows:
            return
        items = self._items(job, events)
        for row in rows:
            if row["generation"] == "1.0":
                for name, item in items:
                    await self._post(tx, job.owner, job.id, row, item, name)
            elif any(one.kind != "artifact" or one.last for one in events):
                # Before 1.0 the whole task is told: with each piece of a stream, that would be many times the stream.
                await self._post(tx, job.owner, job.id, row, await self._task(tx, job), items[-1][0])

    def _items(self, job: Job, events: Sequence[Event]) -> Sequence[tuple[str, Item]]:
        seen, now = Projection(job, self._link, apart=True), self._env.now()
        return [
            (f"{event.seq}_{index}", item)
            for event in events
            for index, item in enumerate(seen.apply(Line(event, now)))
        ]

    async def _task(self, tx: Transaction, job: Job) -> Task:
        """The whole task, as clients before 1.0 are told it."""
        rows = await tx.all("SELECT seq, turn, body, at FROM job_events WHERE job = ? ORDER BY seq", job.id)
        return fold(job, self._jobs.read_lines(job.id, rows), self._link).task()

    async def _post(self, tx: Transaction, owner: str, job: str, row: Row, item: Item, name: str) -> None:
        generation: Generation = row["generation"]
        delivery = Delivery(row["url"], _body(item, generation), owner, _CONTENT[generation], row["sealed"])
        number = f"a2a_{job}_{row['id']}_{name}"[:500]
        await self._outbox.post(tx, delivery, id=number, subject=job, event=_KIND[type(item)])

    # Rows

    async def _keep(self, tx: Transaction, job: str, push: Push, generation: Generation, sealed: str) -> Row:
        last = await tx.one(
            "SELECT COUNT(CASE WHEN id <> ? THEN 1 END) AS others, MAX(number) AS last FROM a2a_pushes WHERE job = ?",
            push.id,
            job,
        )
        assert last is not None
        if last["others"] >= _MOST:
            raise RateLimited(f"A task may have {_MOST} push configurations. Delete one of them first.")
        row = await tx.one(
            "INSERT INTO a2a_pushes (job, id, number, url, scheme, token, generation, sealed, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, id) DO UPDATE SET url = excluded.url, "
            "scheme = excluded.scheme, token = excluded.token, generation = excluded.generation, "
            "sealed = excluded.sealed RETURNING *",
            job,
            push.id,
            (last["last"] or 0) + 1,
            push.url,
            push.authentication.scheme if push.authentication is not None else None,
            int(push.token is not None),
            generation,
            sealed,
            self._env.now(),
        )
        assert row is not None
        return row

    async def _rows(self, job: str) -> Sequence[Row]:
        return await self._database.all("SELECT * FROM a2a_pushes WHERE job = ? ORDER BY number", job)

    def _stamp(self) -> int:
        return int(self._env.now() * 1_000_000)


_CONTENT: Final[dict[Generation, dict[str, str]]] = {
    "1.0": {"Content-Type": "application/a2a+json"},
    "0.3": {"Content-Type": "application/json"},
    "0.1": {"Content-Type": "application/json"},
}


def _unnamed(generation: Generation) -> str:
    """The name of a configuration that has none: before 1.0 a client that names none has but one, and sets it anew."""
    return "" if generation == "1.0" else "default"


def _headers(push: Push) -> dict[str, str]:
    """The headers that a configuration asks for; ValidationError for what no header can hold."""
    found: dict[str, str] = {}
    if push.token is not None:
        if not _VISIBLE.fullmatch(push.token):
            raise _wrong("token", "must have 1 to 2048 characters of ASCII, without spaces")
        found[TOKEN] = push.token
    if (way := push.authentication) is not None and way.credentials is not None:
        if not _SCHEME.fullmatch(way.scheme):
            raise _wrong("authentication.scheme", "must be one word, such as Bearer")
        if not _WORDS.fullmatch(way.credentials):
            raise _wrong("authentication.credentials", "must have 1 to 4096 characters of ASCII")
        found["Authorization"] = f"{way.scheme} {way.credentials}"
    return found


def _wrong(field: str, text: str) -> ValidationError:
    path = f"pushNotificationConfig.{field}"
    return ValidationError(f"{path} {text}.", errors=[{"path": path, "message": text}])


def _redacted(push: Push) -> Push:
    way = push.authentication
    return replace(push, token=None, authentication=Authentication(scheme=way.scheme) if way is not None else None)


def _push(row: Row, task: str) -> Push:
    scheme = row["scheme"]
    return Push(
        id=row["id"],
        task_id=task,
        url=row["url"],
        authentication=Authentication(scheme=scheme) if scheme is not None else None,
    )


def _body(item: Item, generation: Generation) -> str:
    """What is sent: an item of a stream in 1.0, the task before. What is marked as sensitive stays with the task."""
    item = _discreet(item)
    body = _written(item, generation)
    if len(body) > _LARGEST:
        body = _written(_without(item, len(body)), generation)
    return body.decode()


def _written(item: Item, generation: Generation) -> bytes:
    codec = CODECS[generation]
    asked = GetTask(id=item.id if isinstance(item, Task) else item.task_id or "")
    return codec.write_item(item, asked) if generation == "1.0" else codec.write_result(asked, item)  # type: ignore[arg-type]


def _discreet(item: Item) -> Item:
    """An item without the content of parts that say in their metadata that it is sensitive."""
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=_hidden(item.artifact))
    if isinstance(item, Task):
        history = tuple(_hidden(one) for one in item.history)
        return replace(
            item, artifacts=tuple(map(_hidden, item.artifacts)), history=history, status=_hidden_in(item.status)
        )
    return replace(item, status=_hidden_in(item.status)) if isinstance(item, StatusUpdate) else _hidden(item)


def _hidden_in(status: Status) -> Status:
    return status if status.message is None else replace(status, message=_hidden(status.message))


def _hidden(whole: Holder) -> Holder:
    """A message or an artifact likewise; the same object where nothing of it is sensitive."""
    if not any(_is_sensitive(one) for one in whole.parts):
        return whole
    return replace(whole, parts=tuple(_named_only(one) if _is_sensitive(one) else one for one in whole.parts))


def _is_sensitive(part: Part) -> bool:
    return bool(part.metadata) and (part.metadata or {}).get(SENSITIVITY, _PUBLIC) != _PUBLIC


def _named_only(part: Part) -> Part:
    return Part(text="", filename=part.filename, metadata={**(part.metadata or {}), "withheld": True})


def _without(item: Item, size: int) -> Item:
    """An item whose content is too large to be sent."""
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=_named(item.artifact, size))
    if isinstance(item, Task):
        named = tuple(_named(one, size) for one in item.artifacts)
        return replace(item, artifacts=named, history=(), status=replace(item.status, message=None))
    if isinstance(item, StatusUpdate):
        return replace(item, status=replace(item.status, message=None))
    return replace(item, parts=(_left_out(size),))


def _named(artifact: Artifact, size: int) -> Artifact:
    return replace(artifact, parts=(_left_out(size),))


def _left_out(size: int) -> Part:
    return Part(text="", metadata={"truncated": True, "size": size})


# For receivers


class Notice(NamedTuple):
    """A notification that is genuine: its id, by which a repetition is told, its generation, and what it says."""

    id: str | None
    generation: Generation
    item: Item


def verify(
    headers: Mapping[str, str],
    body: bytes,
    *,
    secret: str | None = None,
    keys: Iterable[Mapping[str, Any]] | None = None,
    token: str | None = None,
    authorization: str | None = None,
    tolerance: float = 300.0,
    now: float | None = None,
) -> Notice:
    """What a push notification says, if it is genuine by everything that is given; Unauthenticated if not.

    ``secret`` is that of the signature (Standard Webhooks), where the agent shares one with you; ``keys`` are its
    public ones otherwise, as its ``/.well-known/jwks.json`` shows them. ``token`` and ``authorization`` are what the
    configuration named, such as ``Bearer abc``. Values are compared in constant time. A notification may come more
    than once: its id tells. ParseError for a body that is none.
    """
    if secret is None and keys is None and token is None and authorization is None:
        raise SetupError("verify needs a secret, keys, a token or an authorization: without any, all is believed.")
    given = {name.lower(): value for name, value in headers.items()}
    for name, wanted in ((TOKEN.lower(), token), ("authorization", authorization)):
        if wanted is not None and not hmac.compare_digest(given.get(name, "").encode(), wanted.encode()):
            raise Unauthenticated(f"The notification's {name} is not the one that was configured.")
    known = given.get(webhooks.ID)
    if secret is not None:
        known = webhooks.verify(secret, headers, body, tolerance=tolerance, now=now)
    if keys is not None:
        known = webhooks.verify_by(keys, headers, body, tolerance=tolerance, now=now)
    generation, item = _read(body)
    return Notice(known, generation, item)


def understood(body: bytes) -> Item:
    """What a notification says, whoever sent it; ParseError or ValidationError for a body that is none."""
    return _read(body)[1]


def _read(body: bytes) -> tuple[Generation, Item]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ParseError(f"The notification is not a JSON object: {wrong}") from None
    if found.keys() & {"task", "message", "statusUpdate", "artifactUpdate"}:
        return "1.0", CODECS["1.0"].read_item(found)
    generation: Generation = "0.3" if "kind" in found else "0.1"
    task = CODECS[generation].read(GetTask(id=str(found.get("id", ""))), found)
    assert isinstance(task, Task)
    return generation, task
