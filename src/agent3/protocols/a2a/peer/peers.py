"""Agents elsewhere, each with one credential: which of its addresses to speak at, and how not to lose a word.

A ``Peer`` tries what a card offers, the newest first, falls back when an agent does not speak what its card says, and
remembers what worked. Cards are wrong about versions often enough that every generation is tried at an address that
answers. A stream that breaks off is resumed where it was, else subscribed to anew, else the task is read now and then.
A message is sent once: again only where it is certain that the agent did not take it, or where it tells repetitions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace as changed
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.definitions import AgentCard
from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    JobNotFound,
    MalformedResponse,
    MethodNotAllowed,
    MethodNotFound,
    MissingExtra,
    RequestError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.identity.secrets import Secret
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import DEADLINE, IDEMPOTENT, SCHEMAS, TRACEABILITY, USAGE
from agent3.protocols.a2a.peer.bindings import LINES, How, Line, Place
from agent3.protocols.a2a.peer.card_discovery import Found, find
from agent3.protocols.a2a.peer.credentials import Credential
from agent3.protocols.a2a.wire import Value
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, UnsupportedOperation, VersionNotSupported
from agent3.protocols.a2a.wire.types import (
    TERMINAL,
    Generation,
    GetTask,
    Item,
    Message,
    Request,
    Send,
    State,
    StatusUpdate,
    Subscribe,
    Task,
)
from agent3.security.outbound import Gate, Policy, parse_url

__all__ = ["DEADLINE", "IDEMPOTENT", "INTERRUPTED", "SCHEMAS", "SPOKEN", "Peer", "Peers", "opened_for"]

log = logger("a2a.client")

SPOKEN: Final = frozenset({USAGE, TRACEABILITY, IDEMPOTENT, SCHEMAS, DEADLINE})
"""Extensions that we activate wherever they are offered."""
INTERRUPTED: Final = frozenset({State.INPUT_REQUIRED, State.AUTH_REQUIRED})
_GENERATIONS: Final[tuple[Generation, ...]] = ("1.0", "0.3", "0.1")
_RESUMPTIONS: Final = 5
"""How often one stream that breaks off is taken up again before the task is read instead."""
_UNSTREAMED: Final = (MethodNotFound, MethodNotAllowed, UnsupportedOperation, JobNotFound)
_BROKEN: Final = (Unavailable, CallTimeout, MalformedResponse)


class Peer:
    """One agent and one credential. It belongs to the event loop it is used in; many requests may be under way."""

    def __init__(
        self,
        found: Found,
        gate: Gate,
        credential: Credential,
        *,
        tongues: OrderedDict[str, Place] | None = None,
        lines: dict[Place, Line] | None = None,
        extensions: frozenset[str] = SPOKEN,
        env: Env = REAL,
        pauses: float = 0.2,
    ):
        self.found = found
        self.gate = gate
        self.credential = credential
        self._tongues = OrderedDict[str, Place]() if tongues is None else tongues
        self._env = env
        self._pauses = pauses
        self.lines: dict[Place, Line] = {} if lines is None else lines
        self._extensions = extensions
        self._shown: Mapping[str, Any] | None = None
        self.used = env.monotonic()
        self.busy = 0

    @property
    def card(self) -> AgentCard:
        """What the agent says of itself."""
        return self.found.card

    @property
    def place(self) -> Place | None:
        """Where it is spoken to, once that is known to work."""
        return self._tongues.get(self.found.url)

    @property
    def dedupes(self) -> bool:
        """Whether it tells a message that it already has from a new one."""
        return self.declares(IDEMPOTENT)

    @property
    def streams(self) -> bool:
        """Whether it says that it streams."""
        return self.card.features.streaming

    @property
    def extensions(self) -> tuple[str, ...]:
        """Those that it offers and we speak."""
        return tuple(one.uri for one in self.card.features.extensions if one.uri in self._extensions)

    def declares(self, uri: str) -> bool:
        """Whether an extension is offered."""
        return any(one.uri == uri for one in self.card.features.extensions)

    def knows(self, document: Mapping[str, Any] | None) -> bool:
        """Whether a card that somebody holds is the one that is known here; the same object is compared only once."""
        if document is not None and document is not self._shown:
            if document != self.found.document:
                return False
            self._shown = document
        return True

    async def ask(self, request: Request, how: How | None = None) -> Value:
        """What a request is answered with, at the first address that speaks our tongue."""
        wrong: Agent3Error | None = None
        with self._at_work():
            for line in self._offered():
                try:
                    value = await self._asked(line, request, how or How())
                except RequestError as refused:
                    if not self._may_leave(line, request, refused):
                        raise
                    wrong = wrong or refused
                    continue
                self._remember(line.place, request)
                return value
        raise wrong or self._speechless()

    async def stream(
        self, request: Request, how: How | None = None, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        """What is told, as it comes, with the ids of events; a stream that breaks off is not taken up again."""
        wrong: Agent3Error | None = None
        with self._at_work():
            for line in self._offered():
                try:
                    async with aclosing(self._heard(line, request, how or How(), last)) as items:
                        async for key, item in items:
                            self._remember(line.place, request)
                            yield key, item
                except RequestError as refused:
                    if not self._may_leave(line, request, refused):
                        raise
                    wrong = wrong or refused
                    continue
                return
        raise wrong or self._speechless()

    async def follow(self, request: Send | Subscribe, how: How | None = None) -> AsyncGenerator[Item, None]:
        """Everything that a task tells until it ends or asks, whatever happens to the connection meanwhile.

        A Task among the items is a snapshot that counts for all that came before it.
        """
        seen = _Seen(request.id if isinstance(request, Subscribe) else None)
        source: Send | Subscribe = request
        for attempt in range(_RESUMPTIONS + 1):
            try:
                async with aclosing(self.stream(source, how, seen.last)) as items:
                    async for key, item in items:
                        over = seen.note(key, item, source)
                        yield item
                        if over:
                            return
                if seen.rests:
                    return
                if seen.task is None:
                    raise Unavailable(f"{self._who} ended its answer before it said anything.")
            except _UNSTREAMED as wrong:
                if isinstance(source, Subscribe):
                    break
                if source.message.task_id is not None or isinstance(wrong, JobNotFound):
                    raise
                async for one in self._in_one_piece(source, how):
                    yield one
                return
            except _BROKEN as wrong:
                if seen.task is None and not self._may_repeat(wrong):
                    raise
            log.info("%s: a stream broke off and is taken up again", self._who)
            await asyncio.sleep(self._pauses * attempt)
            source = Subscribe(id=seen.task) if seen.task is not None else source
        if seen.task is None:
            raise Unavailable(f"{self._who} broke off each of its answers before it said anything.")
        async for task in self.poll(seen.task, how):
            yield task

    async def _in_one_piece(self, request: Send, how: How | None) -> AsyncGenerator[Item, None]:
        """What comes of a message that was not taken because it was to be streamed."""
        reply = await self.ask(replace(request, stream=False), how)
        assert isinstance(reply, (Task, Message))
        yield reply
        if isinstance(reply, Task) and reply.status.state not in TERMINAL | INTERRUPTED:
            async for task in self.poll(reply.id, how):
                yield task

    async def poll(self, task: str, how: How | None = None, every: float = 1.0) -> AsyncGenerator[Task, None]:
        """Read a task now and then, until it has ended or asks; what is read is told."""
        pause = min(self._pauses, every)
        while True:
            found = await self.ask(GetTask(id=task), how)
            assert isinstance(found, Task)
            yield found
            if found.status.state in TERMINAL or found.status.state in INTERRUPTED:
                return
            await asyncio.sleep(pause)
            pause = min(every, pause * 2)

    async def aclose(self) -> None:
        """Close its connections."""
        for line in self.lines.values():
            await line.aclose()
        await self.gate.aclose()

    # Inside

    @property
    def _who(self) -> str:
        return urlsplit(self.found.url).netloc

    def _at_work(self) -> _Busy:
        return _Busy(self)

    def _speechless(self) -> Agent3Error:
        if any(one.protocol_binding.upper() == "GRPC" for one in self.card.interfaces):
            return MissingExtra(f"{self.card.name}, which is only reached over gRPC,", "grpc")
        spoken = ", ".join(LINES)
        return TargetError(f"The card of {self._who} names no address that is spoken to over {spoken}.")

    def _offered(self) -> Iterator[Line]:
        """The lines to try: the one that worked, those of the card, then guesses at addresses of the card."""
        known = self.place
        declared = [
            Place(one.url, one.protocol_binding.upper(), generation, one.tenant)
            for one, generation in cards.interfaces(self.card, tuple(LINES))
        ]
        guessed = [
            Place(one.url, "JSONRPC", generation, one.tenant if generation == "1.0" else None)
            for one in declared
            for generation in _GENERATIONS
            if one.binding == "JSONRPC"
        ]
        for place in dict.fromkeys([*([known] if known is not None else ()), *declared, *guessed]):
            try:
                if place not in self.lines:
                    self.lines[place] = LINES[place.binding](place, self.gate)
            except (ContentTypeNotSupported, MissingExtra):
                continue
            yield self.lines[place]

    def _may_leave(self, line: Line, request: Request, wrong: RequestError) -> bool:
        """Whether an error says that this is not spoken here, and so that nothing was done.

        Of an address that has answered a message before, only a message that it no longer takes says so.
        """
        if line.place == self.place and not isinstance(request, Send):
            return False
        if isinstance(wrong, (MethodNotFound, MethodNotAllowed, VersionNotSupported)):
            return True
        if isinstance(wrong, ContentTypeNotSupported):
            return wrong.data.get("http_status") == 415
        # Readers of 0.2 call a method that they do not know an invalid request.
        return type(wrong) is RequestError and wrong.data.get("rpc_code") == -32600

    def _may_repeat(self, wrong: Agent3Error) -> bool:
        """Whether a message whose answer was lost may be sent once more: the agent tells that it has it already."""
        return self.dedupes and isinstance(wrong, Unavailable) and wrong.sent

    def _remember(self, place: Place, request: Request) -> None:
        if not isinstance(request, Send) or self.place == place:
            return
        if self.place is not None:
            log.info("%s: now A2A %s over %s", self._who, place.generation, place.binding)
        self._tongues[self.found.url] = place
        while len(self._tongues) > _TONGUES:
            self._tongues.popitem(last=False)

    async def _dressed(self, how: How, line: Line) -> How:
        carried = await self.credential.carried(line.origin)
        extensions = tuple(dict.fromkeys((*how.extensions, *self.extensions)))
        return how._replace(
            headers={**carried.headers, **how.headers},
            query={**carried.query, **how.query},
            extensions=extensions,
        )

    async def _asked(self, line: Line, request: Request, how: How) -> Value:
        dressed = await self._dressed(how, line)
        try:
            return await line.ask(request, dressed)
        except TargetRefused as refused:
            if not await self.credential.renewed(dressed.headers, refused):
                raise
            return await line.ask(request, await self._dressed(how, line))

    async def _heard(
        self, line: Line, request: Request, how: How, last: str | None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        dressed = await self._dressed(how, line)
        try:
            async with aclosing(line.stream(request, dressed, last)) as items:
                async for one in items:
                    yield one
            return
        except TargetRefused as refused:
            if not await self.credential.renewed(dressed.headers, refused):
                raise
        async with aclosing(line.stream(request, await self._dressed(how, line), last)) as items:
            async for one in items:
                yield one


_TONGUES: Final = 10_000


class _Busy:
    """Keeps a peer from being let go while it is asked something."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Peer):
        self._peer = peer

    def __enter__(self) -> None:
        self._peer.busy += 1

    def __exit__(self, *_: object) -> None:
        self._peer.busy -= 1
        self._peer.used = self._peer._env.monotonic()  # noqa: SLF001 - it is the peer's own


class _Seen:
    """How far a stream was heard."""

    def __init__(self, task: str | None):
        self.task = task
        self.last: str | None = None
        self.rests = False
        """The last that was heard is a state in which there is nothing more to come by itself."""

    def note(self, key: str | None, item: Item, source: Request) -> bool:
        """Take an item; whether it is the last."""
        self.last = key or self.last
        if isinstance(item, Message):
            self.rests = True
            return True
        self.task = item.id if isinstance(item, Task) else item.task_id
        if not isinstance(item, (Task, StatusUpdate)):
            self.rests = False
            return False
        state = item.status.state
        self.rests = state in TERMINAL or state in INTERRUPTED
        # The first that a message to a waiting task brings is the task, as it was before the message.
        echo = isinstance(item, Task) and isinstance(source, Send) and state not in TERMINAL
        return self.rests and not echo


class Peers:
    """All agents that a process talks to: one peer for each address and credential, let go when nobody uses it.

    ``policy`` bounds what may be reached; an address that the operator ``registered`` may be on this machine or in a
    private network, but nothing that its card leads to elsewhere. Two credentials share only what is known of the
    address: which generation is spoken there.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        ceiling: float = 300.0,
        unused: float = 600.0,
        pauses: float = 0.2,
        env: Env = REAL,
    ):
        self._policy = changed(policy or Policy(), total_timeout=ceiling)
        self._unused = unused
        self._pauses = pauses
        self._env = env
        self._all: OrderedDict[tuple[Any, ...], Peer] = OrderedDict()
        self._opening: dict[tuple[Any, ...], asyncio.Lock] = {}
        self._making: set[asyncio.Task[Peer]] = set()
        self._tongues: OrderedDict[str, Place] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    async def get(
        self,
        address: str,
        secret: Secret | None = None,
        where: Mapping[str, Any] | None = None,
        *,
        document: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> Peer:
        """The agent of an address. With ``fresh`` its card is asked for again; with ``document`` it is not asked for.

        ``where`` is the route's own word: ``secret_header`` names the header that carries the secret, ``registered``
        says that the operator chose the address.
        """
        how = where or {}
        key = (address, secret, how.get("secret_header"), bool(how.get("registered")))
        peer = self._all.get(key)
        if peer is not None and not fresh and peer.knows(document):
            peer.used = self._env.monotonic()
            return peer
        async with self._opening.setdefault(key, asyncio.Lock()):
            try:
                peer = self._all.get(key)
                if peer is None or fresh or not peer.knows(document):
                    peer = await self._made_unless_closed(key, peer, how, document)
            finally:
                self._opening.pop(key, None)
        await self._let_go()
        return peer

    async def aclose(self) -> None:
        """Close all connections, also those that are being opened; one that cannot be closed keeps no other open.

        A card that is being asked for is not waited for: whoever asks is told that the gateway is stopping.
        """
        self._closed = True
        for making in list(self._making):
            making.cancel()
        peers = list(self._all.values())
        self._all.clear()
        for wrong in await asyncio.gather(*(one.aclose() for one in peers), return_exceptions=True):
            if wrong is not None:
                log.warning("a connection was not closed well: %s", wrong)
        for opening in list(self._opening.values()):
            async with opening:  # whoever holds it finds that all is closed, and leaves nothing open
                pass

    async def _made_unless_closed(self, *how: Any) -> Peer:
        making = asyncio.get_running_loop().create_task(self._made(*how))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await making
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or not own.cancelling():
                self._check_open()
            raise

    async def _made(
        self, key: tuple[Any, ...], before: Peer | None, how: Mapping[str, Any], document: Mapping[str, Any] | None
    ) -> Peer:
        self._check_open()
        address, secret, header, registered = key
        gate = (
            before.gate
            if before is not None
            else Gate(opened_for(self._policy, address) if registered else self._policy)
        )
        try:
            if document is not None:
                found = Found(url=address, document=dict(document), card=cards.from_wire(document))
            else:
                found = await find(gate, address, secret, header, before.found if before is not None else None)
            self._check_open()  # it may have been closed meanwhile
        except BaseException:
            if before is None:
                await gate.aclose()
            raise
        if before is not None and found is before.found:
            return before
        credential = Credential(found.card, secret, how.get("secret_header"), gate, found.url, self._env)
        # A new card is the same agent: what is open to it stays open, and is closed with this peer.
        lines = before.lines if before is not None else None
        peer = Peer(found, gate, credential, tongues=self._tongues, lines=lines, env=self._env, pauses=self._pauses)
        self._all[key] = peer
        return peer

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The gateway is stopping.")

    async def _let_go(self) -> None:
        """Close what nobody used for a while; it comes back on demand."""
        oldest = self._env.monotonic() - self._unused
        unused = [key for key, one in self._all.items() if not one.busy and one.used < oldest]
        for peer in [self._all.pop(key) for key in unused]:
            await peer.aclose()


def opened_for(policy: Policy, address: str) -> Policy:
    """A policy, wider by the one place that the operator named."""
    url = parse_url(address, policy)
    host = f"[{url.host}]" if ":" in (url.host or "") else url.host
    return changed(policy, allow_hosts=policy.allow_hosts | {f"{host}:{url.port}"})
