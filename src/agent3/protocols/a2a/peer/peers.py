"""Remote agents: which interface of a card to use, with which credential, and how to survive a broken connection.

A ``Peer`` tries the interfaces of a card, newest first, falls back when an agent does not speak what its card says, and
remembers what worked. Cards are wrong about versions often enough that every generation is tried at a JSON-RPC address.
A stream that breaks off is resumed, then subscribed to anew, then replaced by polling the task. A message is sent once:
again only if the agent certainly did not take it, or if it recognizes repetitions. What messages mean is unknown here.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
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
    SecurityError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.identity.secrets import Secret
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import DEADLINE, IDEMPOTENT, SCHEMAS, TRACEABILITY, USAGE
from agent3.protocols.a2a.peer.bindings import BINDINGS, Binding, Interface, RequestOptions
from agent3.protocols.a2a.peer.card_discovery import FoundCard, find_card
from agent3.protocols.a2a.peer.credentials import ORIGINS, Credential, named_origins
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
from agent3.security.outbound import Gate, Policy

__all__ = ["EXTENSIONS", "INTERRUPTED", "SETTLED", "Peer", "Peers"]

log = logger("a2a.client")

EXTENSIONS: Final = frozenset({USAGE, TRACEABILITY, IDEMPOTENT, SCHEMAS, DEADLINE})
"""Extensions that we activate wherever they are offered."""
INTERRUPTED: Final = frozenset({State.INPUT_REQUIRED, State.AUTH_REQUIRED})
SETTLED: Final = TERMINAL | INTERRUPTED
"""States in which nothing more happens to a task by itself."""
_GENERATIONS: Final[tuple[Generation, ...]] = ("1.0", "0.3", "0.1")
_RESUMPTIONS: Final = 5
"""How often a broken stream is resumed before the task is polled instead."""
_AT_ONCE: Final = 16
"""Items of a stream that are read before others have their turn on the loop."""
_NOT_STREAMED: Final = (MethodNotFound, MethodNotAllowed, UnsupportedOperation, JobNotFound)
_BROKEN_OFF: Final = (Unavailable, CallTimeout, MalformedResponse)
_REMEMBERED_INTERFACES: Final = 10_000


class Peer:
    """One remote agent and one credential. It belongs to one event loop; many requests may run at once."""

    def __init__(
        self,
        found: FoundCard,
        gate: Gate,
        credential: Credential,
        *,
        working: OrderedDict[str, Interface] | None = None,
        bindings: dict[Interface, Binding] | None = None,
        extensions: frozenset[str] = EXTENSIONS,
        env: Env = REAL,
        first_pause: float = 0.2,
    ):
        self.found = found
        self.card = found.card
        self.host = urlsplit(found.url).netloc
        """Host and port of the card, for messages to people."""
        self.streams = found.card.features.streaming
        offered = [each.uri for each in found.card.features.extensions]
        self.declared = frozenset(offered)
        """Extensions that the agent offers."""
        self.extensions = tuple([uri for uri in offered if uri in extensions])
        """Those of them that we support."""
        self.dedupes = IDEMPOTENT in self.declared
        """Whether the agent recognizes a message that it has already taken."""
        self.gate = gate
        self.credential = credential
        self._working = OrderedDict[str, Interface]() if working is None else working
        """The interface that took the last message, by the URL of the card."""
        self._env = env
        self._first_pause = first_pause
        self.bindings: dict[Interface, Binding] = {} if bindings is None else bindings
        self._matched: Mapping[str, Any] | None = None
        self.last_used = env.monotonic()
        self.requests = 0
        """Requests and streams under way."""

    @property
    def interface(self) -> Interface | None:
        """The interface that took the last message; None before the first."""
        return self._working.get(self.found.url)

    def has_card(self, document: Mapping[str, Any] | None) -> bool:
        """Whether ``document`` is the card of this peer, or None; the same object is compared only once."""
        if document is not None and document is not self._matched:
            if document != self.found.document:
                return False
            self._matched = document
        return True

    async def send(self, request: Request, options: RequestOptions | None = None) -> Value:
        """Send a request to the first interface that speaks our language; its answer."""
        options = options or RequestOptions()
        first_error: Agent3Error | None = None
        self.requests += 1
        try:
            for binding in self._candidates():
                try:
                    authorized = await self._authorize(options, binding)
                    try:
                        value = await binding.send(request, authorized)
                    except TargetRefused as refused:
                        if not await self.credential.renew(authorized.headers, refused):
                            raise
                        value = await binding.send(request, await self._authorize(options, binding))
                except (RequestError, SecurityError) as error:
                    if not self._may_try_next(binding, request, error):
                        raise
                    first_error = first_error or error
                    continue
                self._remember(binding.interface, request)
                return value
        finally:
            self.requests -= 1
            self.last_used = self._env.monotonic()
        raise first_error or self._no_interface()

    async def stream(
        self, request: Request, options: RequestOptions | None = None, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        """The items of a stream with their event ids, as they come; a stream that breaks off is not resumed."""
        options = options or RequestOptions()
        first_error: Agent3Error | None = None
        self.requests += 1
        try:
            for binding in self._candidates():
                try:
                    for renewable in (True, False):
                        authorized = await self._authorize(options, binding)
                        try:
                            async with aclosing(binding.stream(request, authorized, last)) as items:
                                async for event_id, item in items:
                                    self._remember(binding.interface, request)
                                    yield event_id, item
                            return
                        except TargetRefused as refused:
                            if not renewable or not await self.credential.renew(authorized.headers, refused):
                                raise
                except (RequestError, SecurityError) as error:
                    if not self._may_try_next(binding, request, error):
                        raise
                    first_error = first_error or error
        finally:
            self.requests -= 1
            self.last_used = self._env.monotonic()
        raise first_error or self._no_interface()

    async def follow(
        self, request: Send | Subscribe, options: RequestOptions | None = None
    ) -> AsyncGenerator[Item, None]:
        """Everything that happens to a task until it settles, whatever happens to the connection meanwhile.

        A Task among the items is a snapshot that replaces all items before it.
        """
        progress = _StreamProgress(request.id if isinstance(request, Subscribe) else None)
        source: Send | Subscribe = request
        read = 0
        for attempt in range(_RESUMPTIONS + 1):
            try:
                async with aclosing(self.stream(source, options, progress.last_event)) as items:
                    async for event_id, item in items:
                        over = progress.note(event_id, item, source)
                        yield item
                        # What has arrived already is read without waiting: others wait for the loop.
                        read += 1
                        if read % _AT_ONCE == 0:
                            await asyncio.sleep(0)
                        if over:
                            return
                if progress.settled:
                    return
                if progress.task is None:
                    raise Unavailable(f"{self.host} closed its stream before it sent anything.")
            except _NOT_STREAMED as error:
                if isinstance(source, Subscribe):
                    break
                if source.message.task_id is not None or isinstance(error, JobNotFound):
                    raise
                # Refused because it was to be streamed, so it was not taken: send it as a plain request.
                reply = await self.send(replace(source, stream=False), options)
                assert isinstance(reply, (Task, Message))
                yield reply
                if isinstance(reply, Task) and reply.status.state not in SETTLED:
                    async for task in self.poll(reply.id, options):
                        yield task
                return
            except _BROKEN_OFF as error:
                # Without a task id the message itself would be sent again, which takes an agent that dedupes.
                if progress.task is None and not (self.dedupes and isinstance(error, Unavailable) and error.sent):
                    raise
            log.info("%s: a stream was interrupted and is resumed", self.host)
            await asyncio.sleep(self._first_pause * attempt)
            source = Subscribe(id=progress.task) if progress.task is not None else source
        if progress.task is None:
            raise Unavailable(f"{self.host} closed each of its streams before it sent anything.")
        async for task in self.poll(progress.task, options):
            yield task

    async def poll(
        self, task_id: str, options: RequestOptions | None = None, longest_pause: float = 1.0
    ) -> AsyncGenerator[Task, None]:
        """Read a task again and again, with growing pauses, until it settles."""
        pause = min(self._first_pause, longest_pause)
        while True:
            task = await self.send(GetTask(id=task_id), options)
            assert isinstance(task, Task)
            yield task
            if task.status.state in SETTLED:
                return
            await asyncio.sleep(pause)
            pause = min(longest_pause, pause * 2)

    async def aclose(self) -> None:
        """Close the connections."""
        for binding in self.bindings.values():
            await binding.aclose()
        await self.gate.aclose()

    def _candidates(self) -> Iterator[Binding]:
        """The bindings to try: what worked last, then what the card declares, then every generation at its URLs."""

        def interfaces() -> Iterator[Interface]:
            if self.interface is not None:
                yield self.interface  # it almost always does, so the card is only read after it
            declared = [
                Interface(each.url, each.protocol_binding.upper(), generation, each.tenant)
                for each, generation in cards.interfaces(self.card, tuple(BINDINGS))
            ]
            yield from declared
            for each in declared:
                if each.binding == "JSONRPC":
                    for generation in _GENERATIONS:
                        yield Interface(each.url, "JSONRPC", generation, each.tenant if generation == "1.0" else None)

        tried: set[Interface] = set()
        for interface in interfaces():
            if interface in tried:
                continue
            tried.add(interface)
            try:
                if interface not in self.bindings:
                    self.bindings[interface] = BINDINGS[interface.binding](interface, self.gate)
            except (ContentTypeNotSupported, MissingExtra):
                continue
            yield self.bindings[interface]

    def check_reachable(self) -> None:
        """MissingExtra, or TargetError, where the card names no interface that we can speak."""
        if next(self._candidates(), None) is None:
            raise self._no_interface()

    def _no_interface(self) -> Agent3Error:
        if any(each.protocol_binding.upper() == "GRPC" for each in self.card.interfaces):
            return MissingExtra(f"{self.card.name}, which is only reached over gRPC,", "grpc")
        return TargetError(f"The card of {self.host} has no address for {', '.join(BINDINGS)}.")

    def _may_try_next(self, binding: Binding, request: Request, error: RequestError | SecurityError) -> bool:
        """Whether an error means that this language is not spoken here, and so that nothing was done.

        At an interface that has taken a message before, only a message that it no longer takes means that. An address
        that may not be reached was sent nothing.
        """
        if isinstance(error, SecurityError):
            return not error.sent
        if binding.interface == self.interface and not isinstance(request, Send):
            return False
        if isinstance(error, (MethodNotFound, MethodNotAllowed, VersionNotSupported)):
            return True
        if isinstance(error, ContentTypeNotSupported):
            return error.data.get("http_status") == 415
        # Servers of 0.2 answer an unknown method with "invalid request".
        return type(error) is RequestError and error.data.get("rpc_code") == -32600

    def _remember(self, interface: Interface, request: Request) -> None:
        if not isinstance(request, Send) or self.interface == interface:
            return
        if self.interface is not None:
            log.info("%s: now A2A %s over %s", self.host, interface.generation, interface.binding)
        self._working[self.found.url] = interface
        while len(self._working) > _REMEMBERED_INTERFACES:
            self._working.popitem(last=False)

    async def _authorize(self, options: RequestOptions, binding: Binding) -> RequestOptions:
        carried = await self.credential.carry(binding.origin)
        return options._replace(
            headers={**carried.headers, **options.headers},
            query={**carried.query, **options.query},
            extensions=tuple(dict.fromkeys((*options.extensions, *self.extensions))),
        )


class _StreamProgress:
    """How far a stream has been read."""

    def __init__(self, task: str | None):
        self.task = task
        self.last_event: str | None = None
        self.settled = False
        """The last item was a message or a settled state, so an end of the stream is no break."""

    def note(self, event_id: str | None, item: Item, source: Request) -> bool:
        """Take an item; whether it is the last one."""
        self.last_event = event_id or self.last_event
        if isinstance(item, Message):
            self.settled = True
            return True
        self.task = item.id if isinstance(item, Task) else item.task_id
        if not isinstance(item, (Task, StatusUpdate)):
            self.settled = False
            return False
        state = item.status.state
        self.settled = state in SETTLED
        # A message to an interrupted task is first answered with that task as it was before the message.
        echo = isinstance(item, Task) and isinstance(source, Send) and state not in TERMINAL
        return self.settled and not echo


class Peers:
    """All agents that a process talks to: one peer for each address and credential, closed when unused for a while.

    ``policy`` bounds what may be reached. An address that the operator ``registered`` may be on this machine or in a
    private network; what its card leads to elsewhere may not. Peers of one address with different credentials share
    only which interface works there.
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
        self._policy = dataclasses.replace(policy or Policy(), total_timeout=ceiling)
        self._unused = unused
        self._first_pause = pauses
        self._env = env
        self._peers: OrderedDict[tuple[Any, ...], Peer] = OrderedDict()
        self._locks: dict[tuple[Any, ...], asyncio.Lock] = {}
        self._opening: set[asyncio.Task[Peer]] = set()
        self._working: OrderedDict[str, Interface] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        return len(self._peers)

    async def get(
        self,
        address: str,
        secret: Secret | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        document: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> Peer:
        """The agent at an address. ``fresh`` fetches its card again; with a ``document`` no card is fetched.

        ``meta`` is that of the route: ``secret_header`` names the header for the secret, ``registered`` says that the
        operator chose the address, ``origins`` are those that may get the secret; without any, that of the address.
        """
        meta = meta or {}
        origins = meta.get(ORIGINS)
        confirmed = None if origins is None or secret is None else tuple(origins)
        key = (address, secret, meta.get("secret_header"), bool(meta.get("registered")), confirmed)
        peer = self._peers.get(key)
        if peer is not None and not fresh and peer.has_card(document):
            peer.last_used = self._env.monotonic()
            return peer
        async with self._locks.setdefault(key, asyncio.Lock()):
            try:
                peer = self._peers.get(key)
                if peer is None or fresh or not peer.has_card(document):
                    peer = await self._open_unless_closed(key, peer, document)
            finally:
                self._locks.pop(key, None)
        # On the way out, so that no timer is needed: what comes back on demand may go.
        oldest = self._env.monotonic() - self._unused
        unused = [name for name, each in self._peers.items() if not each.requests and each.last_used < oldest]
        for each in [self._peers.pop(name) for name in unused]:
            await each.aclose()
        return peer

    async def aclose(self) -> None:
        """Close all connections, also those being opened. One that cannot be closed keeps no other open.

        A card that is being fetched is not waited for: the waiting caller gets Unavailable.
        """
        self._closed = True
        for opening in list(self._opening):
            opening.cancel()
        peers = list(self._peers.values())
        self._peers.clear()
        for error in await asyncio.gather(*(peer.aclose() for peer in peers), return_exceptions=True):
            if error is not None:
                log.warning("a connection could not be closed: %s", error)
        for lock in list(self._locks.values()):
            async with lock:  # its holder has seen ``_closed`` by now, and has left nothing open
                pass

    async def _open_unless_closed(
        self, key: tuple[Any, ...], before: Peer | None, document: Mapping[str, Any] | None
    ) -> Peer:
        """Open a peer in a task of its own, which ``aclose`` can cancel without cancelling the caller."""
        opening = asyncio.get_running_loop().create_task(self._open(key, before, document))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await opening
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or not current.cancelling():
                self._check_open()
            raise

    async def _open(self, key: tuple[Any, ...], before: Peer | None, document: Mapping[str, Any] | None) -> Peer:
        self._check_open()
        address, secret, header, registered, confirmed = key
        if before is not None:
            gate = before.gate
        else:
            gate = Gate(self._policy.registering(address) if registered else self._policy)
        try:
            if document is not None:
                found = FoundCard(url=address, document=dict(document), card=AgentCard.from_wire(document))
            else:
                found = await find_card(gate, address, secret, header, before.found if before is not None else None)
            self._check_open()  # it may have been closed meanwhile
        except BaseException:
            if before is None:
                await gate.aclose()
            raise
        if before is not None and found is before.found:
            return before
        if confirmed is None:  # added before they were kept, or being added
            confirmed = () if document is None else named_origins(found.card)
        peer = self._peers[key] = Peer(
            found,
            gate,
            Credential(found.card, secret, header, gate, found.url, self._env, confirmed),
            working=self._working,
            # A new card is still the same agent: its open connections are taken over, and closed with the new peer.
            bindings=before.bindings if before is not None else None,
            env=self._env,
            first_pause=self._first_pause,
        )
        return peer

    def _check_open(self) -> None:
        if self._closed:
            error = Unavailable("The gateway is stopping.")
            error.sent = False
            raise error
