"""Tasks that ended without ever waiting, where nothing outlives the process: kept in memory, and only when they end.

A message that is answered at once then costs no transaction. It is for databases in memory alone: what is in a file or
a server must be there before anything is told. The latest are kept, as bytes, up to a number and a size; an older one
is forgotten together with its message id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from agent3.calls.jobs import Job, JobFilter, Jobs, Line
from agent3.calls.jobs.rows import META_ALIAS, META_KIND, KeyReused, Status, detail_of, digest_of, status_of
from agent3.model import Call, Done, Event, Failed, encode
from agent3.protocols.a2a.door.in_flight import Key, key_of

__all__ = ["Kept", "Shelf"]

_MOST: Final = 20_000
_BYTES: Final = 64 * 1_048_576


class _Entry(Struct, frozen=True, gc=False):
    """One task: what it is found by, and the rest in bytes."""

    id: str
    owner: str
    key: str
    alias: str | None
    kind: str | None
    agent: str
    context: str | None
    status: Status
    detail: str | None
    updated: float
    body: bytes


class Kept(Struct, frozen=True):
    """A task and what it told before its end."""

    job: Job
    lines: list[Line]

    def log(self) -> list[Line]:
        """All that it told."""
        last = Event("turn", data=msgspec.to_builtins(self.job.outcome), seq=self.job.seq, turn=1)
        return [*self.lines, Line(last, self.job.updated)]


_bodies = msgspec.json.Decoder(Kept)


class Shelf:
    """The tasks of one process that are in no table."""

    _shelves: WeakKeyDictionary[Jobs, Shelf] = WeakKeyDictionary()

    def __init__(self, most: int = _MOST, size: int = _BYTES):
        self._most = most
        self._room = size
        self._size = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._keys: dict[Key, str] = {}
        self._aliases: dict[Key, str] = {}
        self._owned: dict[str, dict[str, None]] = {}

    @classmethod
    def of(cls, jobs: Jobs) -> Shelf:
        """The one that belongs to these jobs, whichever engine asks."""
        return cls._shelves.setdefault(jobs, cls())

    def __len__(self) -> int:
        return len(self._entries)

    def known(self, call: Call) -> Job | None:
        """The task of the message of a call; KeyReused if that had another content."""
        if (found := self._keys.get(key_of(call))) is None:
            return None
        job = _bodies.decode(self._entries[found].body).job
        if digest_of(job.call) != digest_of(call):
            raise KeyReused(call.key)
        return job

    def put(self, call: Call, outcome: Done | Failed, events: Sequence[Event], now: float) -> Job:
        """Keep a task that has ended; the task."""
        seq = len(events) + 1
        job = Job(
            id=call.id,
            owner=call.principal.id,
            status=status_of(outcome),
            turn=1,
            call=call,
            key=call.key,
            outcome=outcome,
            seq=seq,
            generation=1,
            created=now,
            updated=now,
        )
        self._add(_entry(job, [Line(event, now) for event in events]))
        return job

    def get(self, owner: str, task: str) -> Kept | None:
        """A task of this owner, by its id or alias, with its log."""
        entry = self._entries.get(task) or self._entries.get(self._aliases.get((owner, task), ""))
        return _bodies.decode(entry.body) if entry is not None and entry.owner == owner else None

    def listed(self, owner: str, wanted: JobFilter, limit: int) -> tuple[list[Job], int]:
        """Tasks, the latest first, and how many there are before any page is cut off."""
        found = [entry for name in self._owned.get(owner, ()) if _matches(entry := self._entries[name], wanted)]
        before = wanted.before
        page = [one for one in reversed(found) if before is None or (one.updated, one.id) < before][:limit]
        return [_bodies.decode(one.body).job for one in page], len(found)

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.id] = entry
        self._keys[entry.owner, entry.key] = entry.id
        if entry.alias is not None:
            self._aliases.setdefault((entry.owner, entry.alias), entry.id)
        self._owned.setdefault(entry.owner, {})[entry.id] = None
        self._size += len(entry.body)
        while len(self._entries) > self._most or self._size > self._room:
            self._drop()

    def _drop(self) -> None:
        name, entry = self._entries.popitem(last=False)
        self._size -= len(entry.body)
        del self._keys[entry.owner, entry.key]
        if entry.alias is not None and self._aliases.get((entry.owner, entry.alias)) == name:
            del self._aliases[entry.owner, entry.alias]
        owned = self._owned[entry.owner]
        del owned[name]
        if not owned:
            del self._owned[entry.owner]


def _entry(job: Job, lines: list[Line]) -> _Entry:
    call = job.call
    assert job.outcome is not None
    return _Entry(
        job.id,
        job.owner,
        job.key or job.id,
        call.meta.get(META_ALIAS),
        call.meta.get(META_KIND),
        call.agent,
        call.context,
        job.status,
        detail_of(job.outcome),
        job.updated,
        encode(Kept(job, lines)),
    )


def _matches(entry: _Entry, wanted: JobFilter) -> bool:
    if entry.kind != wanted.kind or (wanted.since is not None and entry.updated < wanted.since):
        return False
    pairs = ((wanted.agent, entry.agent), (wanted.context, entry.context), (wanted.status, entry.status))
    if any(asked is not None and asked != has for asked, has in pairs):
        return False
    return not wanted.details or (entry.detail in wanted.details) != wanted.exclude_details
