"""Push notifications: the states and artifacts of a task, sent by HTTP to the URLs that its owner configured.

A configuration is a row beside the job. A notification is written into the outbox in the same transaction that changes
the job, and delivered from there: signed, in order, repeated until it arrives or becomes a dead letter. Tokens and
credentials are sealed before they are stored, and never shown again. ``verify`` is for receivers.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.calls import webhooks
from agent3.calls.jobs import Job, Jobs, Line
from agent3.calls.outbox import Delivery, Outbox, Receipt
from agent3.env import Env
from agent3.errors import JobNotFound, ParseError, RateLimited, SetupError, Unauthenticated, ValidationError
from agent3.model import SAID, Event
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.pagination import check_page_size, decode_token, encode_token
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
    StatusUpdate,
    Task,
)
from agent3.storage import Database, Row, Transaction

__all__ = ["SENSITIVITY", "TOKEN", "Notice", "Pushes", "read_notification", "verify"]

log = logger("a2a.push")

Holder = TypeVar("Holder", Message, Artifact)

TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header
SENSITIVITY: Final = "sensitivity"
"""The key in the metadata of a part for how sensitive it is. A part that is not ``public`` is not sent to webhooks: it
stays with the task, for those who may read that."""
_PUBLIC: Final = "public"
_MOST_BYTES: Final = 1_048_576
"""Bytes of a body. Of a larger artifact only the name is sent: its receiver reads the task."""
_MOST_CONFIGS: Final = 20
"""Configurations that a task may have."""
_MOST_ID: Final = 200
"""Characters of the id of a configuration, which is part of the id of each notification."""
_TOKEN_FORM: Final = re.compile(r"[!-~]{1,2048}")
_SCHEME_FORM: Final = re.compile(r"[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,63}")
_CREDENTIALS_FORM: Final = re.compile(r"[ -~]{1,4096}")
_EVENTS: Final[dict[type, str]] = {Task: "task", StatusUpdate: "status", ArtifactUpdate: "artifact", Message: "message"}
_CONTENT: Final[dict[Generation, dict[str, str]]] = {
    "1.0": {"Content-Type": "application/a2a+json"},
    "0.3": {"Content-Type": "application/json"},
    "0.1": {"Content-Type": "application/json"},
}


class Pushes:
    """The push configurations of all tasks in a database, and what is sent by them. A ``JobObserver``."""

    def __init__(self, outbox: Outbox, jobs: Jobs, database: Database, env: Env, *, link: Link | None = None):
        self._outbox = outbox
        self._jobs = jobs
        self._database = database
        self._env = env
        self._link = link
        jobs.add_observer(self)

    # Configurations

    async def create(self, owner: str, job: str, push: Push, generation: Generation, snapshot: Task) -> Push:
        """Add a configuration, and send it the task as it stands. One with the same id is replaced.

        ValidationError, SecurityError, SetupError or QueueFull say why not; none of them holds a secret.
        """
        headers = _headers(push)
        if push.id is not None and len(push.id) > _MOST_ID:
            raise _invalid("id", f"must have at most {_MOST_ID} characters")
        await self._outbox.check(owner, push.url)
        sealed = await self._outbox.seal(owner, push.url, headers) if headers else ""
        # Before 1.0 a client that names no configuration has only one, and setting it again replaces it.
        name = push.id or (self._env.id() if generation == "1.0" else "default")
        kept = replace(push, id=name, task_id=snapshot.id)

        shown = kept.authentication

        async def work(tx: Transaction) -> None:
            last = await tx.one(
                "SELECT COUNT(CASE WHEN id <> ? THEN 1 END) AS others, MAX(number) AS last "
                "FROM a2a_pushes WHERE job = ?",
                kept.id,
                job,
            )
            assert last is not None
            if last["others"] >= _MOST_CONFIGS:
                raise RateLimited(f"A task may have at most {_MOST_CONFIGS} push configurations. Delete one first.")
            row = await tx.one(
                "INSERT INTO a2a_pushes (job, id, number, url, scheme, token, generation, sealed, created) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, id) DO UPDATE SET url = excluded.url, "
                "scheme = excluded.scheme, token = excluded.token, generation = excluded.generation, "
                "sealed = excluded.sealed RETURNING *",
                job,
                kept.id,
                (last["last"] or 0) + 1,
                kept.url,
                shown.scheme if shown is not None else None,
                int(kept.token is not None),
                generation,
                sealed,
                self._env.now(),
            )
            assert row is not None
            stamp = int(self._env.now() * 1_000_000)
            await self._post(tx, owner, job, row, snapshot, f"snapshot_{row['number']}_{stamp}")

        await self._database.write(work)
        return replace(kept, token=None, authentication=Authentication(scheme=shown.scheme) if shown else None)

    async def get(self, job: str, push: str | None, task: str) -> Push:
        """One configuration, by default the first; JobNotFound where there is none."""
        rows = await self._rows(job)
        row = next((row for row in rows if push is None or row["id"] == push), None)
        if row is None:
            named = f"push configuration {push[:100]!r}" if push else "push configuration"
            raise JobNotFound(f"Task {task} has no {named}.")
        return _read_row(row, task)

    async def list(self, job: str, task: str, page_size: int | None = None, token: str | None = None) -> PushPage:
        """The configurations of a task, the oldest first."""
        size, after = check_page_size(page_size), decode_token(token)[0] if token else 0.0
        rows = [row for row in await self._rows(job) if row["number"] > after]
        more = encode_token(rows[size - 1]["number"], "") if len(rows) > size else ""
        return PushPage(configs=tuple(_read_row(row, task) for row in rows[:size]), next_page_token=more)

    async def delete(self, job: str, push: str) -> None:
        """Remove a configuration; notifications that wait for delivery are still delivered."""
        await self._database.many("DELETE FROM a2a_pushes WHERE job = ? AND id = ?", [(job, push)])

    async def forget(self, job: str) -> None:
        """Remove the configurations of a task that did not come about."""
        await self._database.many("DELETE FROM a2a_pushes WHERE job = ?", [(job,)])

    async def receipts(self, job: str) -> Sequence[Receipt]:
        """The notifications of a task and what became of them, the oldest first."""
        return await self._outbox.receipts(job)

    # Notifications

    def concerns(self, job: Job) -> bool:
        """Whether it is a task, of which somebody may want to hear."""
        return META in job.call.meta

    async def on_turn_end(self, tx: Transaction, job: Job) -> None:
        """Notify of the end of a turn: what came with it, and the state."""
        if job.outcome is not None:
            last = Event("turn", data=msgspec.to_builtins(job.outcome), seq=job.seq, turn=job.turn)
            await self._notify(tx, job, [last])

    async def on_events(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Notify of artifacts, of the agent's messages, and of an answer that lets it go on; not of mere progress."""
        shown = [event for event in events if event.kind in ("artifact", "message") or event.data == SAID]
        if shown:
            await self._notify(tx, job, shown)

    async def _notify(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        if META not in job.call.meta:
            return
        rows = await tx.all("SELECT * FROM a2a_pushes WHERE job = ? ORDER BY number", job.id)
        if not rows:
            return
        projection, now = Projection(job, self._link, apart=True), self._env.now()
        items = [
            (f"{event.seq}_{index}", item)
            for event in events
            for index, item in enumerate(projection.apply(Line(event, now)))
        ]
        for row in rows:
            if row["generation"] == "1.0":
                for name, item in items:
                    await self._post(tx, job.owner, job.id, row, item, name)
            elif any(event.kind != "artifact" or event.last for event in events):
                # Before 1.0 the whole task is sent. With each piece of a stream, that would be many times the stream.
                found = await tx.all("SELECT seq, turn, body, at FROM job_events WHERE job = ? ORDER BY seq", job.id)
                task = fold(job, self._jobs.log.decode(job.id, found), self._link).task()
                await self._post(tx, job.owner, job.id, row, task, items[-1][0])

    async def _post(self, tx: Transaction, owner: str, job: str, row: Row, item: Item, name: str) -> None:
        generation: Generation = row["generation"]
        delivery = Delivery(row["url"], _body(item, generation), owner, _CONTENT[generation], row["sealed"])
        number = f"a2a_{job}_{row['id']}_{name}"[:500]
        await self._outbox.post(tx, delivery, id=number, subject=job, event=_EVENTS[type(item)])

    async def _rows(self, job: str) -> Sequence[Row]:
        return await self._database.all("SELECT * FROM a2a_pushes WHERE job = ? ORDER BY number", job)


def _read_row(row: Row, task: str) -> Push:
    """A configuration without its secrets."""
    scheme = row["scheme"]
    return Push(
        id=row["id"],
        task_id=task,
        url=row["url"],
        authentication=Authentication(scheme=scheme) if scheme is not None else None,
    )


def _headers(push: Push) -> dict[str, str]:
    """The headers that a configuration asks for; ValidationError for what a header cannot hold."""
    found: dict[str, str] = {}
    if push.token is not None:
        if not _TOKEN_FORM.fullmatch(push.token):
            raise _invalid("token", "must have 1 to 2048 characters of ASCII, without spaces")
        found[TOKEN] = push.token
    if (shown := push.authentication) is not None and shown.credentials is not None:
        if not _SCHEME_FORM.fullmatch(shown.scheme):
            raise _invalid("authentication.scheme", "must be one word, such as Bearer")
        if not _CREDENTIALS_FORM.fullmatch(shown.credentials):
            raise _invalid("authentication.credentials", "must have 1 to 4096 characters of ASCII")
        found["Authorization"] = f"{shown.scheme} {shown.credentials}"
    return found


def _invalid(field: str, text: str) -> ValidationError:
    path = f"pushNotificationConfig.{field}"
    return ValidationError(f"{path} {text}.", errors=[{"path": path, "message": text}])


# What is sent


def _body(item: Item, generation: Generation) -> str:
    """The body of a notification: an item of a stream in 1.0, the task before. Sensitive parts are withheld."""
    codec = CODECS[generation]
    asked = GetTask(id=item.id if isinstance(item, Task) else item.task_id or "")

    def write(item: Item) -> bytes:
        if generation == "1.0":
            return codec.write_item(item, asked)
        return codec.write_result(asked, item)  # type: ignore[arg-type]

    item = _withhold_sensitive(item)
    body = write(item)
    if len(body) > _MOST_BYTES:
        body = write(_without_content(item, len(body)))
    return body.decode()


def _withhold_sensitive(item: Item) -> Item:
    """An item without the content of parts whose metadata say that it is sensitive."""
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=_withhold(item.artifact))
    if isinstance(item, Message):
        return _withhold(item)
    message = item.status.message
    status = item.status if message is None else replace(item.status, message=_withhold(message))
    if isinstance(item, StatusUpdate):
        return replace(item, status=status)
    artifacts, history = tuple(map(_withhold, item.artifacts)), tuple(map(_withhold, item.history))
    return replace(item, artifacts=artifacts, history=history, status=status)


def _withhold(holder: Holder) -> Holder:
    """A message or artifact likewise; the same object where nothing of it is sensitive."""
    if not any(_is_sensitive(part) for part in holder.parts):
        return holder
    parts = [
        Part(text="", filename=part.filename, metadata={**(part.metadata or {}), "withheld": True})
        if _is_sensitive(part)
        else part
        for part in holder.parts
    ]
    return replace(holder, parts=tuple(parts))


def _is_sensitive(part: Part) -> bool:
    return bool(part.metadata) and (part.metadata or {}).get(SENSITIVITY, _PUBLIC) != _PUBLIC


def _without_content(item: Item, size: int) -> Item:
    """An item whose content is too large to be sent."""
    truncated = (Part(text="", metadata={"truncated": True, "size": size}),)
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=replace(item.artifact, parts=truncated))
    if isinstance(item, Message):
        return replace(item, parts=truncated)
    status = replace(item.status, message=None)
    if isinstance(item, StatusUpdate):
        return replace(item, status=status)
    artifacts = tuple(replace(artifact, parts=truncated) for artifact in item.artifacts)
    return replace(item, artifacts=artifacts, history=(), status=status)


# For receivers


class Notice(NamedTuple):
    """A verified notification: its id, by which a repetition is recognised, its generation, and its item."""

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
    """A push notification, if everything that is given proves it; Unauthenticated if not.

    ``secret`` is that of the signature (Standard Webhooks), where the agent shares one with you; otherwise ``keys`` are
    its public ones, from its ``/.well-known/jwks.json``. ``token`` and ``authorization``, such as ``Bearer abc``, are
    those of the configuration. Values are compared in constant time. A notification may come more than once, with the
    same id. ParseError for a body that is not a notification.
    """
    if secret is None and keys is None and token is None and authorization is None:
        raise SetupError("verify needs a secret, keys, a token or an authorization; otherwise it would prove nothing.")
    given = {name.lower(): value for name, value in headers.items()}
    for name, expected in ((TOKEN.lower(), token), ("authorization", authorization)):
        if expected is not None and not hmac.compare_digest(given.get(name, "").encode(), expected.encode()):
            raise Unauthenticated(f"The notification's {name} differs from the configured one.")
    known = given.get(webhooks.ID)
    if secret is not None:
        known = webhooks.verify(secret, headers, body, tolerance=tolerance, now=now)
    if keys is not None:
        known = webhooks.verify_by(keys, headers, body, tolerance=tolerance, now=now)
    generation, item = _read(body)
    return Notice(known, generation, item)


def read_notification(body: bytes) -> Item:
    """The item of a notification, without verifying its sender. ParseError, ValidationError."""
    return _read(body)[1]


def _read(body: bytes) -> tuple[Generation, Item]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"The notification is not a JSON object: {error}") from None
    if found.keys() & {"task", "message", "statusUpdate", "artifactUpdate"}:
        return "1.0", CODECS["1.0"].read_item(found)
    generation: Generation = "0.3" if "kind" in found else "0.1"
    task = CODECS[generation].read_result(GetTask(id=str(found.get("id", ""))), found)
    assert isinstance(task, Task)
    return generation, task
