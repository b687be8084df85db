"""The audit chain: records and rows in which each holds a SHA-256 over itself and the one before it.

Its spine is the table ``audit``: changes of configuration, each in the transaction of its effect, and what is said of
segments. A ``Segment`` is the chain of the rows that one process writes, so that several processes on one database wait
for no common lock; it begins at the link of the record that opens it. Heads of segments are recorded on the spine, and
signed where there is a key. What a row holds is the business of who writes it.

That makes a change afterwards evident. It prevents none: see docs/how-to/operate.md.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

import msgspec

from agent3.env import Env
from agent3.errors import SetupError
from agent3.observe import logs
from agent3.storage.database import Database, Transaction

__all__ = [
    "ACTOR",
    "BEGIN",
    "LINKED",
    "Gap",
    "Segment",
    "Signer",
    "link_record",
    "link_row",
    "list_gaps",
    "make_who_digest",
    "record",
    "record_change",
    "signed_text",
]

log = logs.get("audit")

Gap: TypeAlias = tuple[int, int, int, str]
"""Rows that are gone: of which segment, the first, the last, and the link of the last."""
BEGIN = "0" * 64
"""The link before the first record."""
LINKED = ("segment", "sequence", "link")
"""The columns that a linked row has beside its own."""
ACTOR: ContextVar[str] = ContextVar("agent3_actor", default="")
"""Who changes the configuration: the caller of a request; empty for the command line and the process itself."""
_NAMED = 20
"""Segments whose heads a new segment names: the youngest of those that were not closed."""
_encode = msgspec.json.Encoder().encode
_INSERT = (
    "INSERT INTO audit (number, at, kind, what, who, salt, who_digest, detail, link, key, signature) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UNCLOSED = f"""
SELECT number FROM audit AS opened WHERE kind = 'open' AND NOT EXISTS
    (SELECT 1 FROM audit AS closed WHERE closed.kind = 'close' AND closed.what = CAST(opened.number AS TEXT))
ORDER BY number DESC LIMIT {_NAMED}
"""
_HEAD = "SELECT sequence, link FROM calls WHERE segment = ? ORDER BY sequence DESC LIMIT 1"


class Signer(Protocol):
    """A key that signs heads."""

    def sign(self, content: bytes) -> bytes:
        """The signature of some bytes."""

    def jwk(self) -> dict[str, Any]:
        """The public half, with its ``kid``."""


def link_record(before: str, number: int, at: float, kind: str, what: str, who_digest: str, detail: str) -> str:
    """The link of a record of the spine, by the link before it."""
    return _link(before, _encode([number, f"{at:.6f}", kind, what, who_digest, detail]))


def link_row(before: str, segment: int, sequence: int, values: Sequence[object]) -> str:
    """The link of a row, by the link before it. Fractions are texts with 15 significant digits."""
    return _link(before, _encode([segment, sequence, *values]))


def _link(before: str, content: bytes) -> str:
    return sha256(before.encode() + content).hexdigest()


def make_who_digest(salt: str, who: str) -> str:
    """What stands for a name in the chain: when name and salt are erased, nothing leads back to it."""
    return sha256(f"{salt}\n{who}".encode()).hexdigest()


def signed_text(link: str) -> bytes:
    """What is signed for a record: its link holds all that came before."""
    return f"agent3 audit {link}".encode()


async def record(
    tx: Transaction, env: Env, kind: str, what: str, detail: object, *, who: str = "", signer: Signer | None = None
) -> tuple[int, str]:
    """Append a record to the spine, in the transaction of what it is about; its number and link."""
    last = await tx.one("SELECT number, link FROM audit ORDER BY number DESC LIMIT 1")
    number, before = (1, BEGIN) if last is None else (int(last["number"]) + 1, str(last["link"]))
    salt, at, text = env.random_bytes(16).hex(), env.now(), _encode(detail).decode()
    who_digest = make_who_digest(salt, who)
    link = link_record(before, number, at, kind, what, who_digest, text)
    key = signature = None
    if signer is not None:
        key = str(signer.jwk()["kid"])
        signature = base64.b64encode(signer.sign(signed_text(link))).decode()
    await tx.run(_INSERT, number, at, kind, what, who, salt, who_digest, text, link, key, signature)
    return number, link


async def record_change(tx: Transaction, env: Env, what: str, name: str, content: bytes | None, who: str) -> None:
    """Record a change of configuration: what was done to which thing, and the hash of its new content."""
    detail = {"name": name, "sha256": None if content is None else sha256(content).hexdigest()}
    await record(tx, env, "change", what, detail, who=who)


def list_gaps(rows: Iterable[tuple[int, int, str]]) -> list[Gap]:
    """Segment, sequence and link of rows that go, as gaps."""
    gaps: list[Gap] = []
    for segment, sequence, link in sorted(rows):
        if gaps and gaps[-1][0] == segment and gaps[-1][2] == sequence - 1:
            gaps[-1] = (segment, gaps[-1][1], sequence, link)
        else:
            gaps.append((segment, sequence, sequence, link))
    return gaps


class Segment:
    """The chain of the rows of ``calls`` that one process writes. Whoever writes them does so one batch after another.

    ``fractions`` are the places of the columns that hold fractions. A database may keep or read such a number a last
    bit off, so rows are stored and hashed with 15 significant digits of it, which survive that.
    """

    def __init__(
        self, database: Database, env: Env, key: Callable[[], Awaitable[Signer]] | None, fractions: Sequence[int]
    ):
        self._database = database
        self._env = env
        self._key = key
        self._fractions = tuple(fractions)
        self._signer: Signer | None = None
        self._number = 0
        self._sequence = 0
        self._link = BEGIN
        self._recorded = 0
        self._suspects: list[tuple[int, int, str]] = []

    async def load_signer(self) -> Signer | None:
        """The key that signs, if there is one; the log says once why there is none."""
        if self._key is not None and self._signer is None:
            try:
                self._signer = await self._key()
            except SetupError as error:
                self._key = None
                log.warning("audit: heads are not signed: %s", error.message)
        return self._signer

    async def open(self) -> None:
        """Begin the segment, if it is not begun; StorageError where that cannot be written."""
        if self._number:
            return
        signer = await self.load_signer()

        async def work(tx: Transaction) -> tuple[int, str]:
            unclosed = [row["number"] for row in await tx.all(_UNCLOSED)]
            found = [(number, await tx.one(_HEAD, number)) for number in unclosed]
            heads = [[number, head["sequence"], head["link"]] for number, head in found if head is not None]
            return await record(tx, self._env, "open", "", {"heads": heads}, signer=signer)

        self._number, self._link = await self._database.write(work)

    def link(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The rows as they are to be stored, with segment, sequence and link behind. It goes on only by ``advance``."""
        link = self._link
        # By columns, since a step of the interpreter for each value of each row would cost more than all hashes.
        stored = list(zip(*rows, strict=True))
        hashed = stored.copy()
        for place in self._fractions:
            column = stored[place]
            alike = column.count(column[0]) == len(column)  # as where nothing costs anything
            texts = [None if value is None else f"{value:.15g}" for value in (column[:1] if alike else column)]
            rounded = [None if text is None else float(text) for text in texts]
            hashed[place], stored[place] = (
                (tuple(texts * len(column)), tuple(rounded * len(column))) if alike else (tuple(texts), tuple(rounded))
            )
        numbers = [self._number] * len(rows)
        sequences = range(self._sequence + 1, self._sequence + 1 + len(rows))
        links = []
        for content in map(_encode, zip(numbers, sequences, *hashed, strict=True)):
            link = _link(link, content)
            links.append(link)
        return list(zip(*stored, numbers, sequences, links, strict=True))

    def advance(self, linked: Sequence[tuple[Any, ...]], inserted: int) -> None:
        """Go on after rows that are stored; where fewer were inserted, some may not have been taken."""
        self._sequence, self._link = linked[-1][-2], linked[-1][-1]
        if inserted != len(linked):
            self._suspects += [(row[-3], row[-2], row[-1]) for row in linked]

    async def record_head(self, *, closes: bool = False) -> None:
        """Record how far the segment is, signed; and what was not taken, since a row of that id was there already."""
        if not self._number or (self._recorded == self._sequence and not closes):
            return
        number, sequence, link = self._number, self._sequence, self._link
        suspects = list(self._suspects)

        async def work(tx: Transaction) -> None:
            missing = [
                one
                for one in suspects
                if await tx.one("SELECT id FROM calls WHERE segment = ? AND sequence = ?", *one[:2]) is None
            ]
            if missing:
                gaps = {"why": "twice", "gaps": list_gaps(missing)}
                await record(tx, self._env, "removed", "twice", gaps, signer=self._signer)
            detail = {"segment": number, "sequence": sequence, "link": link}
            await record(tx, self._env, "close" if closes else "head", str(number), detail, signer=self._signer)

        await self._database.write(work)
        self._recorded = sequence
        self._suspects = self._suspects[len(suspects) :]
        if closes:
            self._number = self._sequence = self._recorded = 0
