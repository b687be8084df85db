"""Bodies: what was sent and answered in each turn, kept beside the ledger where the settings ask for it.

Off by default. ``hashed`` keeps a SHA-256 that can be held against a copy; ``full`` keeps the text, without anything
that is or looks like a secret. Bodies are written in the background, a moment after the answer: a process that is
killed loses the last of them, while the ledger loses no row.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from agent3.env import Env
from agent3.errors import Agent3Error, StorageError
from agent3.model import Call, Outcome, Part, Working
from agent3.observe import logs
from agent3.observe.metrics import Metrics
from agent3.security.sensitive import Sensitive
from agent3.storage import Database
from agent3.storage.at_rest import Private

__all__ = ["Bodies"]

log = logs.get("ledger")

_PAUSE = 0.05
_WAITING = 2_000
_WAITING_BYTES = 64 << 20
"""Bodies that wait to be written, and their bytes together; beyond it they are dropped, and counted."""
_AT_ONCE = 200
_CUT = "… (cut)"
_COLUMNS = ("id", "at", "kind", "request", "response")
_Row: TypeAlias = tuple[Any, ...]
_Kept: TypeAlias = "tuple[Call, Outcome | None, int, Sensitive | None]"


class Bodies:
    """Keeps bodies, of one database. ``aclose`` writes what is left."""

    def __init__(
        self, database: Database, env: Env, metrics: Metrics, kind: Literal["off", "hashed", "full"], longest: int
    ):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._kind = kind
        self._longest = longest
        self.on = kind != "off"
        self._waiting: deque[_Kept] = deque()
        self._size = 0
        self._writer: asyncio.Task[None] | None = None

    def keep(self, call: Call, outcome: Outcome | None, size: int, sensitive: Sensitive | None = None) -> None:
        """Keep what a turn was given, and how it ended; ``size`` is about the bytes of both. Never waits.

        Of what is ``sensitive`` only a hash is kept.
        """
        if len(self._waiting) >= _WAITING or self._size + size > _WAITING_BYTES:
            self._metrics.events_dropped.inc(("call body",))
            return
        self._waiting.append((call, outcome, size, sensitive))
        self._size += size
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="bodies")

    async def aclose(self) -> None:
        """Write what is left, and stop."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(_PAUSE)
            some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            try:
                # Searching long texts for secrets takes its time, which is not the loop's.
                await self._append(await asyncio.to_thread(self._rows, some))
            except Exception as error:  # noqa: BLE001 - those that come next are to be written
                self._lose(len(some), error)
            finally:
                self._size -= sum(size for _, _, size, _ in some)

    async def _append(self, rows: list[_Row]) -> None:
        try:
            await self._database.append("call_bodies", _COLUMNS, rows)
        except StorageError:
            raise
        except Agent3Error:
            for row in rows:  # one of them cannot be stored, which must not take the others with it
                try:
                    await self._database.append("call_bodies", _COLUMNS, [row])
                except Agent3Error as error:
                    self._lose(1, error)

    def _lose(self, count: int, error: Exception) -> None:
        self._metrics.events_dropped.inc(("call body",), count)
        log.error("ledger: %d bodies were lost: %s", count, error)

    def _rows(self, some: list[_Kept]) -> list[_Row]:
        rows = []
        for call, outcome, _, sensitive in some:
            try:
                rows.append(self._row(call, outcome, sensitive))
            except Exception as error:  # noqa: BLE001 - it holds something that has no JSON form
                self._lose(1, error)
        return rows

    def _row(self, call: Call, outcome: Outcome | None, sensitive: Sensitive | None) -> _Row:
        hides_input = sensitive if sensitive is not None and sensitive.in_input else None
        sent: dict[str, Any] = {}
        if call.input is not None:
            sent["input"] = call.input if hides_input is None else hides_input.hide_input(call.input)
        if call.parts:
            sent["parts"] = _plain_parts(call.parts, hides_input)
        if call.answers:
            given = msgspec.to_builtins(call.answers)
            sent["answers"] = given if hides_input is None else hides_input.hide_text(str(given))
        got: Any = None
        if outcome is not None and not isinstance(outcome, Working):
            got = {"parts": _plain_parts(outcome.parts, sensitive, output=True)}
            if questions := getattr(outcome, "questions", ()):
                got["questions"] = msgspec.to_builtins(questions)
            if message := getattr(outcome, "message", None):
                got["error"] = message
            if hides_input is not None:
                got = hides_input.hide_echoes(got, call.input)
        request, response = Private(self._text(sent)), None if got is None else Private(self._text(got))
        return (call.id, self._env.now(), self._kind, request, response)

    def _text(self, value: Any) -> str:
        try:
            raw = msgspec.json.encode(value, order="sorted")
        except (TypeError, ValueError, RecursionError) as error:  # refused for that, and recorded nevertheless
            raw = f"<not JSON: {error}>".encode("utf-8", "replace")
        if self._kind == "hashed":
            return f"sha256:{hashlib.sha256(raw).hexdigest()}"
        return logs.hide_secrets(raw.decode("utf-8", "replace").replace("\x00", "\ufffd"), self._longest, _CUT)


def _plain_parts(
    parts: tuple[Part, ...], sensitive: Sensitive | None = None, *, output: bool = False
) -> list[dict[str, Any]]:
    """Parts without their bytes: a picture says nothing to who reads a log."""
    hides = sensitive if sensitive is not None and (sensitive.in_output if output else sensitive.in_input) else None
    plain = []
    for part in parts:
        shown: dict[str, Any] = {}
        if part.text is not None:
            shown["text"] = part.text if hides is None else hides.hide_text(part.text)
        if part.data is not UNSET:
            hide = None if hides is None else hides.hide_output if output else hides.hide_input
            shown["data"] = part.data if hide is None else hide(part.data)
        if part.raw is not None:
            shown["raw"] = f"<{len(part.raw)} bytes, sha256:{hashlib.sha256(part.raw).hexdigest()}>"
        for name in ("url", "artifact", "media_type", "name"):
            if (value := getattr(part, name)) is not None:
                shown[name] = value
        plain.append(shown)
    return plain
