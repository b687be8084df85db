"""Upstreams: one MCP server with one credential, spoken to in the eras it speaks.

An ``Upstream`` agrees on an era, keeps long-lived sessions, reopens them when they were lost, and caches lists until
the server says that they changed. ``Upstreams`` is the pool. Neither knows tools or outcomes.

Over HTTP the modern era is tried first. A server of both eras has a session of each: its tools may be written to ask
in either, so each call chooses. A program is one process with one state, and its first message decides on the era. It
is greeted in the handshake era, in which every kind of question can be asked, and in the modern one if it refuses.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from agent3 import jsonrpc
from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, CallTimeout, LoopDetected, MalformedResponse, TargetError, Unavailable
from agent3.identity.authorization import Authorization, RenewableSecret
from agent3.identity.secret_refs import HEADERS
from agent3.identity.secrets import Secret
from agent3.memory import find_free_memory
from agent3.model import place_of
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.client.channels import (
    FOREVER,
    LEVELS,
    HTTPChannel,
    OldHTTPChannel,
    PendingRequest,
    ServerError,
    Silent,
    answer_request,
    params_of,
    spawn,
)
from agent3.protocols.mcp.client.floor import Crowded, Floor, Habits
from agent3.protocols.mcp.client.processes import PREFIX, Command, Restarts, StdioChannel, Watchdog
from agent3.protocols.mcp.meta_keys import TASKS
from agent3.security import via
from agent3.security.outbound import Gate, Policy

__all__ = ["ERA", "SESSIONS", "SHARED", "Era", "OnChange", "Session", "Upstream", "Upstreams"]

log = logger("mcp")

Era = Literal["modern", "legacy"]
ERA = "era"
"""In a route's ``meta``: the only era in which the operator wants the server to be spoken to."""
Features = frozenset[str]
"""What a legacy session declares besides elicitation, for callers that can do it: ``sampling``, ``roots``."""
Line = tuple[Era | None, Features, str]
"""Which of the sessions: its era, None for the one that was agreed on first, what it declares, and the caller whose own
it is, if it is not shared."""
OnChange = Callable[[str], None]
"""Takes the address of a server whose lists changed."""
OnWait = Callable[[str], None]
"""Takes what is known of a server that is still starting."""
OnNote = Callable[[str, str, dict[str, Any], str], None]
"""Takes the address of a server, the method and parameters of a notification that belongs to no request, and the caller
in whose own session it came; empty for a session that is shared."""

Agent3ErrorT = TypeVar("Agent3ErrorT", bound=Agent3Error)
_ALL: Features = frozenset({"sampling", "roots"})
_MAIN: Line = (None, _ALL, "")
"""The session of our own requests. It declares all that any caller can do: some servers show some tools only then."""
_CLIENT_INFO = {"name": "agent3", "version": __version__}
_ELICITATION: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": _CLIENT_INFO,
    _CAPABILITIES: {**_ELICITATION, "extensions": {TASKS: {}}},
}
_OWN_META = {**_MODERN_META, _CAPABILITIES: {**_ELICITATION, "sampling": {}, "roots": {}, "extensions": {TASKS: {}}}}
"""Of requests of our own, such as lists."""
_MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete", "tasks/result"})
"""Requests during which a server may ask."""
_MODERN_CODES = frozenset({-32020, -32021, -32022, -32601, -32602, -32603, -32700})
"""Errors by which a modern server refuses a modern request; any other 4xx comes from one that is not modern."""
_REFUSAL = re.compile("session|protocol.?version|initializ", re.IGNORECASE)
"""What servers that are not modern speak of when they refuse a modern request."""
_UNSUPPORTED_VERSION = -32022
_HANDSHAKE = 30.0
"""Seconds that a server gets to answer ``initialize``; a program that starts for the first time gets more."""
FIRST_START = 300.0
"""Seconds that a program gets until it answers for the first time: npx and uvx install it meanwhile."""
_NEWS_OF_START = 2.0
"""Seconds between two notices of a start that takes long."""
_TRY_AGAIN = 10.0
"""Seconds after which a caller that was sent away may find that the server has started."""
_PAGES = 1_000
_LEGACY_TTL = 30.0
"""Seconds that a legacy list is served from memory; that era cannot say how long a list is good."""
_STREAM_WAIT = 2.0
"""Seconds to wait for the stream on which a legacy server may send its questions."""
_OPEN_QUESTIONS = 800
"""Questions of one server that may be open at once. Over HTTP each holds a connection, of which there are 1000."""
_OWN_LINES = 128
"""Callers of one server that may have a session, or process, of their own at once. Others wait until one is free."""
_FEW_PROCESSES = 16
"""Processes of one program that callers may always have. Each further one is started while there is memory for it."""
_PROCESS = 64 << 20
"""Bytes that one process of a program takes, about, once it has started."""
_SPARE = 512 << 20
"""Bytes that stay free."""
SESSIONS = "sessions"
"""In a route's ``meta``: ``caller`` or ``shared``, whether each caller has a session of its own where there are any."""
SHARED = "shared"
_KNOWN_TASKS = 10_000
"""Tasks of one server of which we remember the session."""


@dataclass(slots=True)
class Known:
    """What was learned of the server at an address, with whichever credential."""

    era: Era | None = None
    """The one that was agreed on last."""
    both: bool | None = None
    """Whether a modern server also has sessions of the handshake era in which it can ask. None: not tried."""
    tasks: bool = False
    """Whether it turns long calls into tasks by itself, as only the modern era can: it is written for that one."""
    version: tuple[Any, ...] | None = None
    """Its name, its version and its first era; another version may behave in other ways."""
    habits: Habits = field(default_factory=dict)
    ways: dict[str, Era] = field(default_factory=dict)
    """Tools that can only ask in one era."""

    def forget(self) -> None:
        """It is another version now."""
        self.both = None
        self.habits.clear()
        self.ways.clear()


class Session:
    """A channel on which the era is agreed: adds the envelope and the headers to requests."""

    def __init__(
        self,
        channel: HTTPChannel | StdioChannel,
        era: Era,
        version: str,
        greeting: Mapping[str, Any],
        gateway: str = "",
        known: Known | None = None,
        room: asyncio.Semaphore | None = None,
    ):
        self.channel = channel
        self._gateway = gateway
        self._known = known or Known()
        self._room = room or asyncio.Semaphore(_OPEN_QUESTIONS)
        self._floor: Floor[PendingRequest] = Floor(self._known.habits)
        self.era = era
        self.version = version
        self.level: str | None = None
        """The lowest log level that a legacy server was asked for."""
        self._running: dict[int, PendingRequest] = {}
        self.listening = asyncio.Event()
        """Set when the stream of messages that belong to no request is open, or will not be."""
        self.watching: asyncio.Task[None] | None = None
        self.capabilities: dict[str, Any] = _table(greeting, "capabilities")
        instructions = greeting.get("instructions")
        self.instructions: str | None = instructions if isinstance(instructions, str) else None
        self.info: dict[str, Any] = _table(greeting, "serverInfo") or _table(_table(greeting, "_meta"), _SERVER_INFO)
        self.headers: Mapping[str, str] = {"MCP-Protocol-Version": version}
        """Those of answers."""
        self.line: Line = _MAIN
        self.busy = 0
        """Requests under way, or about to be."""
        self.used = 0.0

    @property
    def alive(self) -> bool:
        return self.channel.alive

    @property
    def keeps_state(self) -> bool:
        """Whether the server may know in one request what was said in another."""
        if isinstance(self.channel, StdioChannel):
            return True
        return self.era == "legacy" and self.channel.session is not None

    def headers_for(self, method: str, name: str | None = None) -> Mapping[str, str]:
        """Those of a request or notification.

        A server that speaks the modern era wants each message to name its method, also in a session of the other era.
        """
        if self.era != "modern" and self._known.era != "modern":
            return self.headers
        named = {} if name is None else {"Mcp-Name": name}
        return {**self.headers, "Mcp-Method": method, **named}

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        pending: PendingRequest,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        tool: str | None = None,
        rooted: bool = False,
    ) -> dict[str, Any]:
        """The result of a request; ServerError for an error of the server. ``tool`` is who may ask meanwhile.

        Crowded if the caller should have a session of its own for it, unless it is ``rooted`` in this one.
        """
        # Of the channel, not of the session: a slow server may answer the probe while ``initialize`` is waited for.
        key = next(self.channel.request_ids)
        own = _OWN_META if pending.features is None else _MODERN_META
        meta = {**(own if self.era == "modern" else {}), **(params.get("_meta") or {}), "progressToken": key}
        if way := via.outgoing(self._gateway):
            meta[via.META] = way
        body = jsonrpc.request(key, method, {**params, "_meta": meta})
        sent = self.headers_for(method, name)
        if self.era == "modern" and headers:
            sent = {**sent, **headers}
        may_ask = self.era == "legacy" and method in _MAY_ASK
        pending.waiting = partial(self._wait_for_person, pending)
        floor = self._floor.work(tool or method, pending, pending.caller, rooted=rooted) if may_ask else nullcontext()
        async with floor:
            self._running[key] = pending
            try:
                async with pending:
                    result = await self.channel.request(key, body, sent, pending)
            finally:
                del self._running[key]
        if not isinstance(result, dict):
            raise MalformedResponse(f"{self.channel.place} answered {method} with something that is not an object.")
        return result

    @asynccontextmanager
    async def _wait_for_person(self, pending: PendingRequest) -> AsyncIterator[None]:
        if self._room.locked():
            text = f"{_OPEN_QUESTIONS} questions of this server are already open"
            log.warning("%s: a question was refused: %s", self.channel.place, text)
            raise ServerError(jsonrpc.INTERNAL_ERROR, text)
        async with self._room, self._floor.wait_for_person(pending):
            yield

    async def answer(self, message: dict[str, Any]) -> None:
        """Answer a request of the server that came with none of ours, once it is clear which of them it belongs to."""
        try:
            if message.get("method") == "ping":
                await self.channel.tell(await answer_request(message, None), self.headers)
                return
            for pending in self._running.values():
                pending.restart_clock()
            asking, is_open, body = None, True, b""
            while is_open:
                asking = None
                if self._floor.is_empty:
                    # Some ask for roots as soon as they are greeted, and may be gone before they are told.
                    log.debug("%s asked while no call was in progress", self.channel.place)
                    text = "No call is in progress that this question could belong to"
                    body = jsonrpc.error(message.get("id"), jsonrpc.INVALID_REQUEST, text)
                    with suppress(Agent3Error, ServerError):
                        await self.channel.tell(body, self.headers)
                    return
                try:
                    async with self._floor.question() as asking:
                        body = await answer_request(message, asking)
                    is_open = False
                except asyncio.CancelledError:
                    # A call that ended before its answer had not asked: it is a question of another one.
                    task = asyncio.current_task()
                    if asking is None or not asking.has_ended or task is None or task.uncancel():
                        raise
            if asking is None:
                text = "Several calls are in progress, and it is unclear which of them asks"
                body = jsonrpc.error(message.get("id"), jsonrpc.INVALID_REQUEST, text)
                log.warning("%s: a question was refused: %s", self.channel.place, text)
            await self.channel.tell(body, self.headers)
        except (Agent3Error, ServerError) as error:
            log.warning("%s did not accept the answer to its question: %s", self.channel.place, error)

    def take_notification(self, message: dict[str, Any]) -> bool:
        """Take progress and log lines that did not come on the stream of their request; False for anything else.

        A log line does not say which request it belongs to. It is shown with the oldest, where all are of one caller.
        With none under way it is news of the session.
        """
        method, params = str(message.get("method")), params_of(message)
        if method == "notifications/progress":
            token = params.get("progressToken")
            working = [self._running[token]] if isinstance(token, int) and token in self._running else []
        elif method == "notifications/message":
            working = [pending for pending in self._running.values() if pending.features is not None]
            if not working:
                return False
        else:
            return False
        if len({pending.caller for pending in working}) == 1:
            working[0].notify(method, params)
        return True

    def announces(self) -> bool:
        """Whether the server may send something that belongs to no request."""
        if self.era == "legacy" and isinstance(self.channel, HTTPChannel):
            return self.channel.session is not None
        return any(_table(self.capabilities, kind).get("listChanged") for kind in ("tools", "prompts", "resources"))

    async def close(self) -> None:
        """End it, and tell the server."""
        if self.watching is not None:
            self.watching.cancel()
        if isinstance(self.channel, HTTPChannel):
            await self.channel.end_session(self.headers)
        await self.channel.aclose()


def _unsent(error: Agent3ErrorT) -> Agent3ErrorT:
    """The error of a call that never left."""
    error.sent = False
    return error


def _table(where: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = where.get(key)
    return value if isinstance(value, dict) else {}


class Upstream:
    """One server with one credential.

    Any number of requests may be under way at once, on one session. A lost session is reopened; what was under way on
    it is repeated only where that is certain to be harmless. A legacy server learns once per session what it may ask of
    us, so callers that can do less get a further session over HTTP; a program has one session for all. Where a server
    keeps state between requests, each caller has a session, or process, of its own, unless they are ``shared``; and
    also then where a server does not say which call asks. ``wanted`` is the only era to be spoken, where the operator
    chose one.
    """

    def __init__(
        self,
        address: str,
        open_channel: Callable[[], Awaitable[HTTPChannel | StdioChannel]],
        known: Known,
        on_change: OnChange | None = None,
        env: Env = REAL,
        gate: Gate | None = None,
        gateway: str = "",
        first_start: float = FIRST_START,
        wanted: Era | None = None,
        shared: bool = False,
    ):
        self.address = address
        self._one_for_all = shared
        self.known = known
        self._wanted = wanted
        self._room = asyncio.Semaphore(_OPEN_QUESTIONS)
        self._gateway = gateway
        self._first_start = first_start
        self.used = env.monotonic()
        self.busy = 0
        self.on_note: OnNote | None = None
        self._open_channel = open_channel
        self._on_change = on_change
        self._env = env
        self._gate = gate
        self._shared: dict[Line, Session] = {}
        self._opening: dict[Line, asyncio.Task[Session]] = {}
        self._freed = asyncio.Event()
        """Set when a caller's own session has nothing to do."""
        self._of_tasks: dict[str, Session] = {}
        """The sessions of tasks: no other one knows them."""
        self._watched: dict[str, Counter[str]] = {}
        """The resources of a legacy server that each caller watches, by the caller whose session it is, if it is not
        shared. Each of its sessions is subscribed to them, also one that is opened later."""
        self._begun = 0.0
        self._greeting: HTTPChannel | StdioChannel | None = None
        self._lists: dict[str, tuple[list[dict[str, Any]], float]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def session(
        self, line: Line = _MAIN, patience: float | None = None, on_wait: OnWait | None = None
    ) -> Session:
        """The session shared by all requests of this line, opened if necessary.

        A server may take minutes to start, longer than a caller can wait: after ``patience`` seconds Unavailable says
        when to try again, and the start goes on. ``on_wait`` hears meanwhile what is known of it.
        """
        session = self._shared.get(line)
        if session is not None and session.alive:
            return session
        opening = self._opening.get(line)
        if opening is None:
            # In a task of its own, and not in the name of the caller that happens to be the first.
            opening = self._opening[line] = asyncio.get_running_loop().create_task(
                self._open_shared(line), context=contextvars.Context()
            )
            self._tasks.add(opening)
            opening.add_done_callback(partial(self._on_opened, line))
        loop = asyncio.get_running_loop()
        ends = float("inf") if patience is None else loop.time() + patience
        while not opening.done():
            left = ends - loop.time()
            if left <= 0:
                raise self._still_starting()
            await asyncio.wait([opening], timeout=min(left, _NEWS_OF_START))
            if on_wait is not None and not opening.done():
                on_wait(self._start_text())
        if opening.cancelled():
            raise _unsent(Unavailable(f"{place_of(self.address)} was closed before it had started."))
        if (error := opening.exception()) is not None:
            # Of its own for each that waited: what is added to it on one way must not show on another.
            raise copy.copy(error) if isinstance(error, Agent3Error) else error
        return opening.result()

    async def has_both_eras(self) -> bool:
        """Whether a modern server can also be spoken to in the handshake era, and asks there. Tried once."""
        if (await self.session()).era == "legacy" or self._wanted is not None:
            return False
        if self.known.both is None:
            with suppress(Unavailable):  # tried again by the first call that needs it
                await self._legacy_session(_ALL)
        return bool(self.known.both)

    async def session_for(self, pending: PendingRequest, era: Era | None = None) -> Session:
        """The session for a request. ``era`` is the one that suits it, where the server has both."""
        session = await self._shared_session(pending, era)
        own = self._shared.get((*session.line[:2], pending.caller))
        if own is not None and own.alive:
            return own
        if pending.owned and session.keeps_state and not self._one_for_all:
            return await self._own_session(session, pending)
        return session

    async def _shared_session(self, pending: PendingRequest, era: Era | None) -> Session:
        session = self._shared.get(_MAIN)
        if session is None or not session.alive:
            session = await self.session(_MAIN, pending.patience, pending.tell_of_wait)
        if isinstance(session.channel, StdioChannel):
            return session
        features = _ALL if pending.features is None else pending.features
        if session.era == "legacy":
            if features == _ALL:
                return session
            return await self.session(("legacy", features, ""), pending.patience, pending.tell_of_wait)
        if era == "legacy" and self._wanted is None and self.known.both is not False:
            return await self._legacy_session(features) or session
        return session

    async def _own_session(self, shared: Session, pending: PendingRequest) -> Session:
        """A session for one caller alone: a process of its own, if it is a program. Waits while there are too many."""
        line: Line = (*shared.line[:2], pending.caller)
        try:
            async with asyncio.timeout(pending.patience):
                while line not in self._shared and line not in self._opening and not self._has_room():
                    pending.tell_of_wait(f"{self._use_text()}; waiting")
                    self._freed.clear()
                    with suppress(TimeoutError):  # memory becomes free without a word
                        await asyncio.wait_for(self._freed.wait(), _NEWS_OF_START)
        except TimeoutError:
            text = f"{self._use_text()}. Try again in {_TRY_AGAIN:g} s."
            raise Unavailable(text, retry_after=_TRY_AGAIN) from None
        return await self.session(line, pending.patience, pending.tell_of_wait)

    def _has_room(self) -> bool:
        """Whether one more caller can have a session; one that nobody uses is closed for it."""
        own = self._own_lines()
        if len(own) < _OWN_LINES and (len(own) < _FEW_PROCESSES or self._has_memory()):
            return True
        unused = [line for line in own if line in self._shared and not self._shared[line].busy]
        if unused:
            self._close_line(min(unused, key=lambda line: (line[2] in self._watched, self._shared[line].used)))
        return bool(unused)

    def _own_lines(self) -> set[Line]:
        return {line for line in (*self._shared, *self._opening) if line[2]}

    def _has_memory(self) -> bool:
        """Whether there is memory for one more process, and for those that are still starting."""
        if not self.address.startswith(PREFIX):
            return True
        free = find_free_memory()
        return free is None or free > _SPARE + _PROCESS * (len(self._opening) + 1)

    def _use_text(self) -> str:
        return f"{place_of(self.address)} is used by {len(self._own_lines())} other callers, the maximum"

    def close_unused(self, before: float) -> None:
        """Close the sessions of callers that have not used theirs since."""
        for line, session in list(self._shared.items()):
            if line[2] and not session.busy and session.used < before and line[2] not in self._watched:
                self._close_line(line)

    def _close_line(self, line: Line) -> None:
        session = self._shared.pop(line)
        self._of_tasks = {task: where for task, where in self._of_tasks.items() if where is not session}
        spawn(self._closing, session.close())

    async def _legacy_session(self, features: Features) -> Session | None:
        """The session in the handshake era of a modern server; None if it has none in which it could ask."""
        try:
            session = await self.session(("legacy", features, ""))
        except (LoopDetected, Unavailable):
            raise
        except (TargetError, CallTimeout):
            self.known.both = False
            return None
        # Without an id of the session there is no way for the server to hear our answers.
        self.known.both = isinstance(session.channel, HTTPChannel) and session.channel.session is not None
        return session if self.known.both else None

    async def _open_shared(self, line: Line) -> Session:
        session = self._shared[line] = await self._connect(line)
        session.line, session.used = line, self._env.monotonic()
        if line == _MAIN:
            self.known.tasks = TASKS in _table(session.capabilities, "extensions")
        self._note_version(session, line)
        session.watching = spawn(self._tasks, self._watch(session))
        if session.era == "legacy" and line[2] in self._watched:
            spawn(self._tasks, self._subscribe(session, tuple(self._watched[line[2]])))
        return session

    def _note_version(self, session: Session, line: Line) -> None:
        """What the server says of itself; what was learned of another version of it is forgotten."""
        seen = self.known.version
        era = session.era if line == _MAIN or seen is None else seen[2]
        self.known.version = session.info.get("name"), session.info.get("version"), era
        if seen is not None and seen != self.known.version:
            log.info("%s has another version now: %s", session.channel.place, self.known.version)
            self.known.forget()
            self._forget_lists()

    def _on_opened(self, line: Line, opening: asyncio.Task[Session]) -> None:
        self._tasks.discard(opening)
        self._opening.pop(line, None)
        if not opening.cancelled() and (error := opening.exception()) is not None:
            log.info("%s could not be reached: %s", place_of(self.address), error)

    def _start_text(self) -> str:
        """How long the server has been starting, and the last that it said."""
        seconds = self._env.monotonic() - self._begun
        said = self._greeting.last_words if isinstance(self._greeting, StdioChannel) else ""
        return f"{place_of(self.address)} is still starting, for {seconds:.0f} s now{f': {said}' if said else ''}"

    def _still_starting(self) -> Unavailable:
        text = f"{self._start_text().rstrip('.')}. It is still starting; try again in {_TRY_AGAIN:g} s."
        return _unsent(Unavailable(text, data={"starting": True}, retry_after=_TRY_AGAIN))

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        make_pending: Callable[[], PendingRequest],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        harmless: bool = False,
        era: Era | None = None,
        tool: str | None = None,
    ) -> dict[str, Any]:
        """The result of a request. ``make_pending`` makes a fresh one for each attempt, whose clock then starts.

        A session that the server no longer knows is reopened, once. A request that it refused with an HTTP error for
        that reason never ran, so it is sent again; one that may have run only if that is ``harmless``. ``era`` is the
        one that suits it, where the server has both; ``tool`` is the one that may ask meanwhile.
        """
        self.busy += 1
        try:
            for last in (False, True):
                pending = make_pending()
                root = self._of_tasks.get(str(params.get("taskId"))) if method.startswith("tasks/") else None
                rooted = root is not None and root.alive
                try:
                    session = root if root is not None and rooted else await self.session_for(pending, era)
                except Agent3Error as error:
                    raise _unsent(error)  # noqa: B904 - the same error
                try:
                    try:
                        return await self._send(session, method, params, pending, name, headers, tool, rooted)
                    except Crowded:
                        where = session.channel.place
                        log.info("%s asks without naming its call; each caller gets its own session", where)
                        try:
                            session = await self._own_session(session, pending)
                        except Agent3Error as error:
                            raise _unsent(error)  # noqa: B904 - the same error
                        return await self._send(session, method, params, pending, name, headers, tool, rooted=True)
                except ServerError as error:
                    if last:
                        raise
                    self._drop_lost(session, error, harmless)
            raise AssertionError("unreachable")
        finally:
            self.busy -= 1
            self.used = self._env.monotonic()

    async def items(self, method: str, key: str, *, fresh: bool = False) -> list[dict[str, Any]]:
        """All pages of a list, from memory while they are good. ``key`` is where a page holds its items."""
        cached = self._lists.get(method)
        if cached is not None and not fresh and self._env.monotonic() < cached[1]:
            return cached[0]
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await self.request(method, {"cursor": cursor} if cursor else {}, PendingRequest, harmless=True)
            items, following = page.get(key), page.get("nextCursor")
            if not isinstance(items, list):
                raise MalformedResponse(f"{place_of(self.address)} answered {method} without a list of {key}.")
            found += [item for item in items if isinstance(item, dict)]
            if not isinstance(following, str) or not following or following == cursor:
                break
            cursor = following
        else:
            raise MalformedResponse(f"{place_of(self.address)} returns more than {_PAGES} pages of {method}.")
        given = page.get("ttlMs")
        if isinstance(given, int | float) and not isinstance(given, bool):
            ttl = min(float(given) / 1000, FOREVER)
        else:
            ttl = _LEGACY_TTL if self.known.era == "legacy" else 0.0
        if ttl > 0:
            self._lists[method] = found, self._env.monotonic() + ttl
        return found

    # Watching resources of a legacy server

    async def watch(self, uri: str, caller: str, owned: bool) -> None:
        """Subscribe to a resource, in all sessions of this caller."""
        make_pending = partial(PendingRequest, caller=caller, owned=owned)
        session = await self.session_for(make_pending())
        who = session.line[2]
        await self.request("resources/subscribe", {"uri": uri}, make_pending, harmless=True)
        self._watched.setdefault(who, Counter())[uri] += 1
        for other in list(self._shared.values()):
            if other is not session and other.line[2] == who and other.era == "legacy" and other.alive:
                spawn(self._tasks, self._subscribe(other, (uri,)))

    def unwatch(self, uri: str, caller: str) -> None:
        """Take back one ``watch`` of this caller."""
        who = caller if uri in self._watched.get(caller, ()) else ""
        watched = self._watched.get(who, Counter())
        watched[uri] -= 1
        if watched[uri] > 0:
            return
        del watched[uri]
        if not watched:
            self._watched.pop(who, None)
        for session in self._shared.values():
            if session.line[2] == who and session.era == "legacy" and session.alive:
                spawn(self._tasks, self._ask_quietly(session, "resources/unsubscribe", uri))

    async def _subscribe(self, session: Session, uris: Collection[str]) -> None:
        """Have a further session hear of these resources; what changed before it did may be news."""
        for uri in uris:
            if await self._ask_quietly(session, "resources/subscribe", uri) and self.on_note is not None:
                self.on_note(self.address, "notifications/resources/updated", {"uri": uri}, session.line[2])

    async def _ask_quietly(self, session: Session, method: str, uri: str) -> bool:
        try:
            await session.request(method, {"uri": uri}, PendingRequest())
        except (ServerError, Agent3Error) as error:
            log.debug("%s did not accept %s of %s: %s", session.channel.place, method, uri[:200], error)
            return False
        return True

    async def aclose(self) -> None:
        """Close everything; what is under way ends as unavailable."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions, self._shared = list(self._shared.values()), {}
        await asyncio.gather(*(session.close() for session in sessions), *self._closing)
        if self._gate is not None:
            await self._gate.aclose()

    # Connecting

    async def _connect(self, line: Line) -> Session:
        if self._closed:
            raise _unsent(Unavailable(f"{place_of(self.address)} was closed."))
        self._begun = self._env.monotonic()
        era = self._wanted or line[0] or self.known.era
        try:
            return await self._negotiate(await self._open_channel(), era, line)
        except Unavailable as error:
            # Some servers hang up at a first message that they do not know.
            if era is not None or self.address.startswith(PREFIX) or not error.sent:
                raise
            return await self._negotiate(await self._open_channel(), "legacy", line)

    async def _negotiate(self, channel: HTTPChannel | StdioChannel, era: Era | None, line: Line) -> Session:
        self._greeting = channel
        try:
            if isinstance(channel, StdioChannel):
                session = await self._greet_program(channel, era)
            else:
                modern = await self._discover(channel, _HANDSHAKE) if era != "legacy" else None
                if modern is None and self._wanted == "modern":
                    raise ServerError(None, f"it does not speak MCP {LATEST_MODERN_VERSION}")
                try:
                    session = modern or await self._initialize(channel, line[1], _HANDSHAKE)
                except ServerError as error:
                    # So a client finds the transport of 2024-11-05, by the later versions: it refuses the POST.
                    if not 400 <= (error.status or 0) < 500 or isinstance(channel, OldHTTPChannel):
                        raise
                    channel = self._greeting = await self._open_old(channel, error)
                    session = await self._initialize(channel, line[1], _HANDSHAKE)
        except ServerError as error:
            await channel.aclose()
            if line == _MAIN:
                self.known.era = None
            if isinstance(error.data, dict) and error.data.get("code") == LoopDetected.code:
                raise LoopDetected(f"{channel.place} answered: {error.message[:300]}") from None
            text = f"{channel.place} is not an MCP server that agent3 supports: {error.message[:300]}"
            raise _unsent(TargetError(text)) from None
        except BaseException:
            await channel.aclose()
            raise
        finally:
            self._greeting = None
        if line == _MAIN:
            self.known.era = session.era
        channel.on_message = partial(self._take_message, session)
        return session

    async def _open_old(self, channel: HTTPChannel, refusal: ServerError) -> OldHTTPChannel:
        """The same server by the old transport; the error of the first try if there is none."""
        old = channel.by_old_transport()
        try:
            await old.open(_HANDSHAKE)
        except BaseException as error:
            await old.aclose()
            if isinstance(error, ServerError | Agent3Error):
                raise refusal from None
            raise
        await channel.aclose()
        return old

    async def _greet_program(self, channel: StdioChannel, era: Era | None) -> Session:
        """Agree on an era with a program, which may have to install itself before it reads a word."""
        limit = _HANDSHAKE if self.known.era is not None else self._first_start
        refusal = ServerError(None, f"it does not speak MCP {LATEST_MODERN_VERSION}")
        if era != "modern":
            try:
                return await self._initialize(channel, _ALL, limit)
            except ServerError as error:
                if era is not None:
                    raise
                refusal = error
        session = await self._discover(channel, limit)
        if session is None:
            raise refusal
        return session

    async def _discover(self, channel: HTTPChannel | StdioChannel, limit: float) -> Session | None:
        """The modern session, or None for a legacy server."""
        probe = Session(channel, "modern", LATEST_MODERN_VERSION, {}, self._gateway)
        for last in (False, True):
            try:
                greeting = await probe.request("server/discover", {}, PendingRequest(idle=limit, ceiling=limit))
                break
            except ServerError as error:
                versions = error.data.get("supported") if isinstance(error.data, dict) else None
                supported = versions if isinstance(versions, list) else []
                unsupported = error.code == _UNSUPPORTED_VERSION
                # Some servers refuse our version and name it as supported all the same; asked again they take it.
                if unsupported and probe.version in supported and not last:
                    continue
                if error.status == LoopDetected.http_status:
                    raise
                if (
                    unsupported
                    and supported
                    and not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)
                ):
                    raise
                return None
            except Silent:
                return None
        offered = greeting.get("supportedVersions")
        if not isinstance(offered, list) or LATEST_MODERN_VERSION not in offered:
            return None
        return self._make_session(channel, "modern", LATEST_MODERN_VERSION, greeting)

    def _make_session(
        self, channel: HTTPChannel | StdioChannel, era: Era, version: str, greeting: Mapping[str, Any]
    ) -> Session:
        return Session(channel, era, version, greeting, self._gateway, self.known, self._room)

    async def _initialize(self, channel: HTTPChannel | StdioChannel, features: Features, limit: float) -> Session:
        if isinstance(channel, HTTPChannel):
            channel.legacy = True
        capabilities = {**_ELICITATION, **{feature: {} for feature in sorted(features)}}
        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": capabilities,
            "clientInfo": _CLIENT_INFO,
        }
        opening = Session(channel, "legacy", LATEST_HANDSHAKE_VERSION, {}, self._gateway, self.known)
        try:
            greeting = await opening.request("initialize", params, PendingRequest(idle=limit, ceiling=limit))
        except Silent:
            said = channel.last_words if isinstance(channel, StdioChannel) else ""
            more = " The setting calls.start_seconds allows more time." if isinstance(channel, StdioChannel) else ""
            last = f" Its last output: {said}" if said else ""
            raise CallTimeout(
                f"{channel.place} did not answer within {limit:g} s after its start.{more}{last}"
            ) from None
        version = greeting.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise ServerError(None, f"it speaks MCP {version!r}, which is not supported")
        session = self._make_session(channel, "legacy", str(version), greeting)
        done = "notifications/initialized"
        await channel.tell(jsonrpc.notification(done), session.headers_for(done))
        return session

    # Sending

    async def _send(
        self,
        session: Session,
        method: str,
        params: Mapping[str, Any],
        pending: PendingRequest,
        name: str | None,
        headers: Mapping[str, str] | None,
        tool: str | None,
        rooted: bool,
    ) -> dict[str, Any]:
        session.busy += 1
        try:
            return await self._send_on(session, method, params, pending, name, headers, tool, rooted)
        finally:
            session.busy -= 1
            session.used = self._env.monotonic()
            if not session.busy:
                self._freed.set()

    async def _send_on(
        self,
        session: Session,
        method: str,
        params: Mapping[str, Any],
        pending: PendingRequest,
        name: str | None,
        headers: Mapping[str, str] | None,
        tool: str | None,
        rooted: bool,
    ) -> dict[str, Any]:
        if session.era == "legacy":
            over_http = isinstance(session.channel, HTTPChannel)
            if pending.can_answer and over_http and not session.listening.is_set() and session.announces():
                # Some servers ask on the stream that belongs to no request, so it has to be open first. Waited for
                # once only: some servers hold back the head of that stream until they have something to send.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STREAM_WAIT):
                        await session.listening.wait()
                session.listening.set()
            level, known = pending.level, session.level
            is_lower = level in LEVELS and (known is None or LEVELS.index(level) < LEVELS.index(known))
            if is_lower and "logging" in session.capabilities:
                # Have the server log as much as any caller wants; the door leaves out what a caller does not want.
                session.level = level
                try:
                    await session.request("logging/setLevel", {"level": level}, PendingRequest(idle=_STREAM_WAIT))
                except (ServerError, Agent3Error) as error:
                    log.debug("%s did not accept the level %s: %s", session.channel.place, level, error)
        result = await session.request(method, params, pending, name=name, headers=headers, tool=tool, rooted=rooted)
        if session.era == "legacy" and isinstance(task := _table(result, "task").get("taskId"), str):
            self._of_tasks[task] = session
            if len(self._of_tasks) > _KNOWN_TASKS:
                del self._of_tasks[next(iter(self._of_tasks))]
        if session.era == "modern" and (info := _table(_table(result, "_meta"), _SERVER_INFO)):
            # Without sessions this is how one learns that there is another version behind the address.
            same = all(info.get(key) == session.info.get(key) for key in ("name", "version"))
            if not same and self._shared.get(_MAIN) is session:
                session.info = info
                self._note_version(session, _MAIN)
        return result

    def _drop_lost(self, session: Session, error: ServerError, harmless: bool) -> None:
        """Drop a session that the server no longer knows. Raises unless the request may be sent on a new one."""
        if session.era == "legacy":
            about_session = "session" in error.message.lower()
            lost = error.status == 404 or (about_session and (error.status == 400 or error.code == -32600))
            if not lost or not isinstance(session.channel, HTTPChannel) or session.channel.session is None:
                raise error
        else:
            if error.status not in (400, 404, 405, 406) or error.code in _MODERN_CODES:
                raise error
            if error.by_id and not _REFUSAL.search(error.message):
                raise error  # the word of a tool, which must not be run again
        if self._shared.get(_MAIN) is session:
            self.known.era = None  # it may be of another era by now
        self._shared = {line: shared for line, shared in self._shared.items() if shared is not session}
        self._lists.clear()
        spawn(self._closing, session.close())
        if error.status is None and not harmless:
            raise Unavailable(
                f"{session.channel.place} lost the session during the call; whether it did the work is not "
                "known, so it was not repeated."
            )
        log.info("%s no longer knows the session; opening a new one", session.channel.place)

    # What the server sends unasked

    def _take_message(self, session: Session, message: dict[str, Any]) -> None:
        """Take a message that says nothing of the request that it belongs to."""
        if "id" in message:
            session.channel.inflow.answer(partial(session.answer, message))
            return
        if not session.take_notification(message):
            self._take_notification(message, session.line[2])

    def _take_notification(self, message: dict[str, Any], caller: str = "") -> None:
        method = str(message.get("method"))
        if method.startswith("notifications/") and method.endswith("/list_changed"):
            # Some servers tell every session of a change, and some only the one whose call made it.
            self._forget_lists()
            caller = ""
        if self.on_note is not None:
            self.on_note(self.address, method, params_of(message), caller)

    def _forget_lists(self) -> None:
        self._lists.clear()
        if self._on_change is not None:
            self._on_change(self.address)

    async def _watch(self, session: Session) -> None:
        """Listen for changes as long as the session lives. After a gap everything may have changed."""
        pause, again = 1.0, False
        try:
            while session.alive and session.announces():
                began = self._env.monotonic()
                try:
                    if not await self._listen(session, again):
                        return
                    again = True
                except ServerError as error:
                    if error.status == 404 and self._shared.get(session.line) is session:
                        self._replace(session)
                    return
                except Agent3Error as error:
                    log.debug("%s: listening was interrupted: %s", session.channel.place, error)
                pause = 1.0 if self._env.monotonic() - began > 60 else min(60.0, pause * 2)
                await asyncio.sleep(pause)
        finally:
            session.listening.set()

    def _replace(self, session: Session) -> None:
        """Drop a session that the server has forgotten, and open another where its caller watches something."""
        if session.line == _MAIN:
            self.known.era = None  # it may be of another era by now
        del self._shared[session.line]
        self._lists.clear()  # without a word: a server may only have ended a session that was idle
        spawn(self._closing, session.channel.aclose())
        if session.line[2] in self._watched:
            spawn(self._tasks, self._open_again(session.line))

    async def _open_again(self, line: Line) -> None:
        with suppress(Agent3Error, ServerError):  # the next request that needs it tries again
            await self.session(line)

    async def _listen(self, session: Session, again: bool) -> bool:
        """Listen until the stream ends; False if the server offers no such stream."""
        channel = session.channel
        if session.era == "legacy":
            return isinstance(channel, HTTPChannel) and await channel.listen(session.headers, session.listening.set)

        def take(method: str, params: dict[str, Any]) -> None:
            if again and method == "notifications/subscriptions/acknowledged":
                self._forget_lists()
            self._take_notification({"method": method, "params": params})

        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        pending = PendingRequest(take, idle=FOREVER, ceiling=FOREVER, subscription=True)
        await session.request("subscriptions/listen", {"notifications": wanted}, pending)
        return True


class Upstreams:
    """The pool: one upstream for each server and credential, closed when unused for ``idle`` seconds.

    Two credentials never share anything but what is known of the address: its eras and habits, and how often its
    program crashed. ``policy`` bounds what may be reached over HTTP; addresses that the operator ``registered`` may be
    on this machine or in a private network.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idle: float = 600.0,
        on_change: OnChange | None = None,
        env: Env = REAL,
        first_start: float = FIRST_START,
    ):
        self._policy = policy or Policy()
        self._idle = idle
        self._first_start = first_start
        self.on_note: OnNote | None = None
        self._on_change = on_change
        self._env = env
        self._all: dict[tuple[Any, ...], Upstream] = {}
        self._known: dict[str, Known] = {}
        self._restarts: dict[str, Restarts] = {}
        self._authorizations: dict[str, Authorization] = {}
        self._watchdog = Watchdog()
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def get(self, address: str, secret: Secret | None = None, where: Mapping[str, Any] | None = None) -> Upstream:
        """The upstream of an address and credential. ``where`` is the ``meta`` of the route.

        There ``secret_env`` names the variable in which a program gets the secret, ``secret_header`` the header that
        carries it instead of ``Authorization: Bearer``, ``headers`` those that every request has; ``registered`` says
        that the operator chose the address; ``era`` is the only one to be spoken; ``sessions`` may be ``shared``.
        """
        meta = where or {}
        carried = tuple(sorted((meta.get(HEADERS) or {}).items()))
        named = meta.get("secret_env"), meta.get("secret_header"), meta.get(ERA), meta.get(SESSIONS), carried
        key = (address, secret, *named, bool(meta.get("registered")))
        found = self._all.get(key)
        if found is None:
            if self._closed:
                raise Unavailable("The gateway is stopping.")
            found = self._all[key] = self._make(address, secret, meta)
            found.on_note = self.on_note
            if self._sweeper is None or self._sweeper.done():
                self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        found.used = self._env.monotonic()
        return found

    def authorize(self, address: str, by: Authorization) -> None:
        """Reach an address with a changing credential where no secret is given, from its next connection on."""
        self._authorizations[address] = by

    def addresses(self) -> frozenset[str]:
        """Where the upstreams are."""
        return frozenset(upstream.address for upstream in self._all.values())

    async def close(self, addresses: Collection[str]) -> None:
        """Close the upstreams of these addresses, whatever is under way there; the next use opens new ones."""
        gone = [key for key, upstream in self._all.items() if upstream.address in addresses]
        await asyncio.gather(*(self._all.pop(key).aclose() for key in gone))

    async def aclose(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        upstreams, self._all = list(self._all.values()), {}
        await asyncio.gather(*(upstream.aclose() for upstream in upstreams), *self._closing)
        self._watchdog.close()

    def _make(self, address: str, secret: Secret | None, meta: Mapping[str, Any]) -> Upstream:
        known = self._known.setdefault(address, Known())
        wanted, shared = meta.get(ERA), meta.get(SESSIONS) == SHARED
        if address.startswith(PREFIX):
            command = Command.parse(address)
            restarts = self._restarts.setdefault(address, Restarts(self._env.monotonic))
            variable = meta.get("secret_env")
            extra = {str(variable): secret.reveal()} if secret is not None and variable else {}

            async def start_program() -> HTTPChannel | StdioChannel:
                if (wait := restarts.wait()) > 0:
                    text = f"{command.name!r} keeps exiting; it can be started again in {wait:.1f} s."
                    error = Unavailable(text, retry_after=wait)
                    error.sent = False
                    raise error
                channel = await StdioChannel.start(command, extra, self._watchdog)
                channel.on_crash = restarts.record_crash
                return channel

            gateway, start = self._policy.gateway, self._first_start
            return Upstream(
                address, start_program, known, self._on_change, self._env, None, gateway, start, wanted, shared
            )
        policy = self._policy
        if meta.get("registered"):
            policy = policy.registering(address)
        gate = Gate(policy)
        headers: dict[str, str] = dict(meta.get(HEADERS) or {})
        authorization = self._authorizations.get(address) if secret is None else None
        if isinstance(secret, RenewableSecret):
            authorization = secret.authorization
        elif secret is not None and (header := meta.get("secret_header")):
            headers[str(header)] = secret.reveal()
        elif secret is not None:
            headers["Authorization"] = f"Bearer {secret.reveal()}"

        async def open_http() -> HTTPChannel | StdioChannel:
            return HTTPChannel(gate, address, headers, authorization)

        gateway = policy.gateway
        return Upstream(
            address, open_http, known, self._on_change, self._env, gate, gateway, wanted=wanted, shared=shared
        )

    async def _sweep(self) -> None:
        """Close what has not been used for a while; it comes back on demand."""
        while self._all:
            await asyncio.sleep(max(0.05, self._idle / 4))
            oldest = self._env.monotonic() - self._idle
            unused = [key for key, upstream in self._all.items() if not upstream.busy and upstream.used < oldest]
            for upstream in self._all.values():
                upstream.close_unused(oldest)
            for key in unused:
                upstream = self._all.pop(key)
                log.info("%s was not used for %g s; closing it", place_of(upstream.address), self._idle)
                # In a task of its own: cancelling the sweeper must not cut it short.
                spawn(self._closing, upstream.aclose())
