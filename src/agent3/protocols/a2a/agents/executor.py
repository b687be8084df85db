"""``AgentExecutor``: an agent that sends, receives and answers messages, as documented.

What it receives runs under the same steps as every other call. What it sends lies in the recipient's letter box until
that has processed it: in memory and gone with the process by default, or in the database of the core it was given,
where agents of all processes on it meet. Boxes are bounded and refuse rather than forget.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from agent3 import bridge
from agent3.definitions import A2AMessage, AgentCapability, AgentCard, MessageType
from agent3.env import REAL
from agent3.errors import AccessError, Agent3Error, CallTimeout, RequestError, SetupError, Unavailable, ValidationError
from agent3.model import Capability, Principal
from agent3.observe import logs
from agent3.observe.metrics import METRICS
from agent3.protocols.a2a.agents.artifacts import ArtifactReference, Artifacts
from agent3.protocols.a2a.agents.consumer import Inbox
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.a2a.agents.envelopes import Mail, traceparent
from agent3.protocols.a2a.agents.events import Broadcast, Subscription, Topics
from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
from agent3.protocols.a2a.agents.lifecycle import IN_SERVICE, Status, refusal, step
from agent3.protocols.a2a.agents.mailboxes import Letter, box_of, post_of
from agent3.protocols.a2a.agents.memory_queue import Box
from agent3.protocols.a2a.agents.registry import LEASE, AgentRegistry
from agent3.protocols.a2a.agents.remote_delivery import Courier, content_of, error_content
from agent3.protocols.a2a.cards.negotiation import NEGOTIATE, Agreement, Wants, agreed, negotiate
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.queue import Lease, Rules
from agent3.schema import nearest

__all__ = ["PING", "AgentExecutor", "DeadMessage"]

log = logs.get("a2a")

T = TypeVar("T")

PING = "a2a.ping"
"""The capability by which every executor says how it is."""
_ANSWERS = (MessageType.RESPONSE, MessageType.ERROR)
_GRACE = 5.0
"""Seconds that a closing executor gives to what it is processing."""
_PATIENCE = 60.0
"""Seconds that a sender waits for storage before it gives up."""


class DeadMessage(msgspec.Struct, frozen=True):
    """A message that was given up, and why; ``body`` is as it lay in the box."""

    message_id: str
    reason: str
    attempts: int
    body: bytes


class AgentExecutor:
    """One agent of this process. Safe from any thread, and inside a running loop.

        hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"))
        hotel.register_capability("search_hotels", search_hotels)

    With a ``core`` that keeps a database messages and answers outlive the process, and agents of other processes on it
    are reached; each message is then done once, however often it is delivered. ``encryption`` seals what is sent and
    takes nothing plain; ``identity`` signs and ``verifier`` takes nothing that is not signed by whom it names. With a
    ``registry`` it is registered there, with a heartbeat, and agents that are registered there by an address are
    reached over A2A; ``credentials`` are what it shows them, by their ids: ``{"hotel": "env:HOTEL_KEY"}``. ``rules``
    are those of its letter box.
    """

    _here: weakref.WeakKeyDictionary[Standalone, weakref.WeakValueDictionary[str, AgentExecutor]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(
        self,
        card: AgentCard,
        *,
        core: Standalone | None = None,
        registry: AgentRegistry | None = None,
        encryption: Cipher | None = None,
        identity: AgentIdentity | None = None,
        verifier: A2AIdentityVerifier | None = None,
        rules: Rules | None = None,
        credentials: Mapping[str, str] | None = None,
    ):
        self.card = card
        self.core = core or shared()
        self.agent = LocalAgent(card.name, agent_id=card.agent_id, description=card.description, version=card.version)
        self.artifacts = Artifacts(self.core, card.agent_id)
        self._registry = registry
        self._post = post_of(self.core)
        self._mail = Mail(card.agent_id, self._post, encryption, identity, verifier)
        self._topics = Topics(self._post)
        self._inbox = Inbox(self.core, self._post, card.agent_id, self._process, registry)
        weakref.finalize(self, self._inbox.leave).atexit = False
        self._courier = Courier(self.core, self._mail, registry, self._lives_here(), credentials)
        weakref.finalize(self, _leave_soon, self._courier).atexit = False
        self._running = 0
        self._idle = asyncio.Event()
        self._closed = False
        if rules is not None:
            self._post.rule(box_of(card.agent_id), rules)
        self.core.host(self.agent)
        self._take_the_place()
        if registry is not None:
            registry.register_agent(card, lease=LEASE)
            self._inbox.open_soon()
            if self.core.durable:
                bridge.shared().spawn(self._courier.resume())

    # What it can do

    def register_capability(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        read_only: bool = False,
        idempotent: bool = False,
        replay: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Offer a function under a name: plain, async, or a generator of updates.

        The card's schema of that capability checks its input, where it has one. One that is ``idempotent``,
        ``read_only`` or may be ``replay``-ed is done again when its process died in the middle; any other is answered
        as interrupted. ``timeout`` is in seconds.
        """
        declared = self.card.capability(name)
        self.agent.add(
            function,
            name=name,
            description=declared.description if declared is not None else None,
            input_schema=_declared_schema(declared),
            output_schema=declared.output_schema if declared is not None else None,
            read_only=read_only or (declared is not None and declared.read_only),
            idempotent=idempotent or (declared is not None and declared.idempotent),
            replay=replay,
            timeout=timeout,
        )
        if self.status in IN_SERVICE:
            self._inbox.open_soon()

    def register_object(self, thing: object) -> list[str]:
        """Offer every public method of an object; their names."""
        methods = [(name, one) for name, one in inspect.getmembers(thing, callable) if not name.startswith("_")]
        for name, method in methods:
            self.register_capability(name, method)
        return [name for name, _ in methods]

    def full_card(self) -> AgentCard:
        """The card, with what was registered and is not on it."""
        known = {one.name for one in self.card.capabilities}
        more = [_capability(one.capability) for name, one in self.agent.functions.items() if name not in known]
        return self.card.model_copy(update={"capabilities": [*self.card.capabilities, *more]})

    # Sending

    def send_message(
        self,
        to_agent: str,
        message_type: MessageType,
        capability: str | None = None,
        content: dict[str, Any] | None = None,
        *,
        priority: int = 0,
        context_id: str | None = None,
        correlation_id: str | None = None,
        expires_in: float | None = None,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> A2AMessage:
        """Send a message; it is kept when this returns, and nobody has to be there to take it.

        QueueFull, which is a RateLimited, when the recipient's box is full: nothing is dropped in silence. Within an
        async capability it returns at once, and a refusal is logged; ``await send`` tells it.
        """
        message = self._signed_message(
            to_agent=to_agent,
            message_type=message_type,
            capability=capability,
            content=content or {},
            priority=priority,
            context_id=context_id,
            correlation_id=correlation_id,
            expires_at=_in(expires_in),
            idempotency_key=idempotency_key,
            metadata=metadata or {},
        )
        sending = bridge.shared().spawn(self._send(message))
        if _in_the_bridge():
            sending.add_done_callback(_tell_of_failure)
        else:
            sending.result(_PATIENCE)
        return message

    async def send(self, to_agent: str, message_type: MessageType, *args: Any, **more: Any) -> A2AMessage:
        """``send_message`` for async code in any loop; the refusal of a full box is raised."""
        names = ("capability", "content")
        fields = {**dict(zip(names, args, strict=False)), **more}
        fields["expires_at"] = _in(fields.pop("expires_in", None))
        fields["content"] = fields.get("content") or {}
        message = self._signed_message(to_agent=to_agent, message_type=message_type, **fields)
        await _elsewhere(self._send(message))
        return message

    def request(
        self, to_agent: str, capability: str, content: dict[str, Any] | None = None, timeout: float = 30.0, **more: Any
    ) -> A2AMessage:
        """Send a REQUEST and wait for its RESPONSE; CallTimeout when it does not come in time.

        The request expires with the waiting: one that nobody took by then is not processed any more.
        """
        more.setdefault("expires_in", timeout)
        sent = self.send_message(to_agent, MessageType.REQUEST, capability, content, **more)
        return self.wait_for_response(sent, timeout)

    async def ask(
        self, to_agent: str, capability: str, content: dict[str, Any] | None = None, timeout: float = 30.0, **more: Any
    ) -> A2AMessage:
        """``request`` for async code in any loop."""
        more.setdefault("expires_in", timeout)
        sent = await self.send(to_agent, MessageType.REQUEST, capability, content, **more)
        return await self.response(sent, timeout)

    async def ask_once(
        self, to_agent: str, capability: str, content: dict[str, Any], timeout: float, message_id: str | None
    ) -> A2AMessage:
        """``ask`` under an id of the caller's: asked again with the same one, it is one message and one answer."""
        message = self._signed_message(
            to_agent=to_agent,
            message_type=MessageType.REQUEST,
            capability=capability,
            content=content,
            **({"message_id": message_id, "idempotency_key": message_id} if message_id is not None else {}),
        )
        await _elsewhere(self._send(message))
        return await self.response(message, timeout)

    def wait_for_response(self, message: A2AMessage, timeout: float = 30.0) -> A2AMessage:
        """The answer to a message that was sent; CallTimeout when it does not come in time. A late one is kept.

        It is read once. Not for an async capability, whose loop would wait for itself: there it is a SetupError, and
        ``await response`` does it.
        """
        return bridge.run(self._response(message, timeout))

    async def response(self, message: A2AMessage, timeout: float = 30.0) -> A2AMessage:
        """``wait_for_response`` for async code in any loop."""
        return await _elsewhere(self._response(message, timeout))

    def waiting(self, agent_id: str | None = None) -> int:
        """Messages in the box of an agent, by default this one, that have not been processed."""
        return bridge.run(self._waiting(agent_id or self.card.agent_id))

    def dead_letters(self, limit: int = 100) -> list[DeadMessage]:
        """Messages in its box that were given up, and those that did not reach an agent elsewhere, and why."""
        return bridge.run(self._dead(limit))

    def replay_dead_letters(self, *message_ids: str) -> int:
        """Line up dead messages once more; how many there were."""
        return bridge.run(self._replay(message_ids))

    # Events

    def subscribe(self, topic: str, handler: Callable[..., Any] | str) -> str:
        """Hear of a topic, in which ``*`` stands for anything, by a capability or a function that becomes one.

        Its name is returned. The subscription outlives the executor where its core keeps a database: register the
        capability again and it goes on, with what came meanwhile.
        """
        name = handler if isinstance(handler, str) else f"on {topic}"
        if not isinstance(handler, str):
            self.register_capability(name, handler)
        bridge.run(self._topics.subscribe(Subscription(topic, self.card.agent_id, name)))
        return name

    def subscribe_agent(self, agent_id: str, topic: str, capability: str) -> None:
        """Have another agent hear of a topic by one of its capabilities, such as one elsewhere that cannot ask."""
        bridge.run(self._topics.subscribe(Subscription(topic, agent_id, capability)))

    def unsubscribe(self, topic: str | None = None) -> int:
        """Hear no more of a topic, or of any; how many subscriptions there were."""
        return bridge.run(self._topics.unsubscribe(self.card.agent_id, topic))

    def broadcast(
        self, topic: str, content: dict[str, Any] | None = None, *, priority: int = 0, ordered: bool = True
    ) -> Broadcast:
        """Send an EVENT to everybody who subscribed to the topic, in this process or another.

        Each subscriber hears the events of a topic one after the other, unless ``ordered`` is False.
        """
        return bridge.run(self._broadcast(topic, content or {}, priority, ordered, traceparent()))

    # Artifacts

    def create_artifact(
        self, content: Any, *, name: str | None = None, media_type: str | None = None
    ) -> ArtifactReference:
        """Keep bytes, text or a JSON value that others can be given; ``artifacts`` does more with it."""
        return self.artifacts.create(content, name=name, media_type=media_type)

    def share_artifact(self, artifact_id: str, *agents: str, seconds: float | None = None) -> None:
        """Let other agents read it, for some seconds or as long as it is kept."""
        self.artifacts.share(artifact_id, *agents, seconds=seconds)

    # Agreeing

    def negotiate(self, to_agent: str, wants: Wants, timeout: float = 30.0) -> Agreement:
        """Ask another agent what both can do; Conflict lists what stands against it."""
        told = self.request(to_agent, NEGOTIATE, msgspec.to_builtins(wants), timeout)
        if told.content.get("status") != "success":
            raise ValidationError(f"{to_agent!r} did not negotiate: {told.content.get('error')}")
        return agreed(msgspec.convert(told.content["result"], Agreement))

    # Its life

    def start(self) -> None:
        """Take messages from now on, instead of a moment after the last capability was registered."""
        bridge.run(self._inbox.open())

    @property
    def status(self) -> Status:
        """Where in its life it is."""
        return self.card.status

    def set_status(self, status: Status) -> None:
        """Go to another state; Conflict when that cannot follow. Out of service it takes nothing new."""
        status = step(self.card.agent_id, self.card.status, status)
        if self._registry is not None:
            self._registry.set_status(self.card.agent_id, status)
        self.card = self.card.model_copy(update={"status": status})
        if status in IN_SERVICE:
            self._inbox.open_soon()
        else:
            self._inbox.close()

    def drain(self, timeout: float = 30.0) -> bool:
        """Take nothing new and finish what runs; whether all of it was finished in that time.

        Messages that nobody took stay in the box, for this agent when it is active again or for another process.
        """
        self.set_status("draining")
        return bridge.run(self._finished(timeout))

    def close(self) -> None:
        """Leave: what runs gets some seconds, and nothing is delivered to this executor any more."""
        if self._closed:
            return
        self._closed = True
        self._inbox.leave()
        _leave_soon(self._courier)
        with suppress(SetupError):  # from inside the bridge's loop, which cannot wait for itself
            bridge.run(self._finished(_GRACE))
        self.core.drop(self.agent)
        here = AgentExecutor._here.get(self.core)
        if here is not None and here.get(self.card.agent_id) is self:
            del here[self.card.agent_id]

    def __enter__(self) -> AgentExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Receiving

    def receive_message(self, message: A2AMessage) -> A2AMessage | None:
        """Process a message. A REQUEST is answered by a RESPONSE, an EVENT by nothing; a RESPONSE is kept."""
        return bridge.run(self._receive(message))

    async def receive(self, message: A2AMessage) -> A2AMessage | None:
        """``receive_message`` for async code in any loop."""
        return await _elsewhere(self._receive(message))

    async def _receive(self, message: A2AMessage) -> A2AMessage | None:
        try:
            await self._mail.judge(message)
        except Agent3Error as wrong:
            content = error_content(wrong.code, wrong.message)
        else:
            if message.message_type in _ANSWERS:
                await self._mail.keep(message)
                return None
            content = await self._content(message)
        if message.message_type is MessageType.REQUEST:
            return self._reply(message, content)
        if content["status"] == "error":
            log.warning("event %s was not processed: %s", message.message_id, content["error"]["message"])
        return None

    async def _content(self, message: A2AMessage, attempt: int = 1) -> dict[str, Any]:
        """What comes of a message, as the content of its answer."""
        if message.expires_at is not None and message.expires_at < _now():
            return error_content("timeout", f"Message {message.message_id} expired before it was processed.")
        if message.capability == PING:
            return {"status": "success", "result": {"status": self.status, "running": self._running}}
        if message.capability == NEGOTIATE:
            return self._negotiated(message.content)
        if (out := refusal(self.card.agent_id, self.status)) is not None:
            return error_content(out.code, out.message)
        function = self.agent.functions.get(message.capability or "")
        if function is None:
            return self._unknown(message.capability)
        self._running += 1
        self._idle.clear()
        try:
            return await self._attempts(message, function.capability, attempt)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _attempts(self, message: A2AMessage, capability: Capability, attempt: int) -> dict[str, Any]:
        """What came of it, or comes of it now. Earlier attempts are not made again: what they led to is kept."""
        # What is not repeatable by key is faster; where the process may die in the middle, it must be.
        key = message.idempotency_key or (message.message_id if self.core.durable else None)
        if key is None:
            return await self._call(message, capability, None)
        content = await self._call(message, capability, f"a2a {message.to_agent} {key}")
        for number in range(2, attempt + 1):
            if content["status"] != "error" or content["error"]["code"] in _HOPELESS:
                break
            content = await self._call(message, capability, f"a2a {message.to_agent} {key} {number}")
        return content

    async def _call(self, message: A2AMessage, capability: Capability, key: str | None) -> dict[str, Any]:
        try:
            outcome = await self.core.call_async(
                self.agent,
                capability,
                message.content,
                Principal(message.from_agent, "local"),  # of this house: no stranger's limits
                traceparent=message.traceparent,
                context=message.context_id,
                key=key,
                door="a2a",
            )
        except RequestError as wrong:
            return error_content(wrong.code, wrong.message)
        return content_of(outcome)

    def _negotiated(self, content: Mapping[str, Any]) -> dict[str, Any]:
        try:
            wants = msgspec.convert(content, Wants)
        except msgspec.ValidationError as wrong:
            return error_content("invalid_input", f"{NEGOTIATE}: {wrong}")
        return {"status": "success", "result": msgspec.to_builtins(negotiate(self.full_card(), wants))}

    def _unknown(self, name: str | None) -> dict[str, Any]:
        near = nearest(name or "", self.agent.functions)
        hint = f" Did you mean {near!r}?" if near else ""
        text = f"Agent {self.card.agent_id!r} has no capability {(name or '')[:100]!r}.{hint}"
        return error_content("capability_not_found", text)

    # The letter box. All below runs in the bridge's loop

    async def _process(self, box: Box, lease: Lease) -> None:
        """One message from the box, to its end."""
        try:
            message = await self._mail.opened(lease)
        except (AccessError, RequestError) as wrong:
            log.warning("%s: message %s is not taken: %s", self.card.agent_id, lease.id[:100], wrong)
            METRICS.refusals.inc((wrong.code,))
            await box.bury(lease, f"{wrong.code}: {wrong.message}")
            return
        if message.message_type in _ANSWERS:
            await self._mail.keep(message, (box, lease))
        elif message.message_type is MessageType.EVENT:
            await self._hear(box, lease, message)
        else:
            self._must_be_ready(message, lease.attempt, box.rules.attempts)
            reply = self._reply(message, await self._content(message))
            await self._post.end(box, lease, self._mail.letter(reply))

    def _must_be_ready(self, message: A2AMessage, attempt: int, most: int) -> None:
        """What the card promises and nobody has registered yet may still be: an executor starts in several steps."""
        name = message.capability or ""
        if attempt < most and name not in self.agent.functions and self.card.capability(name) is not None:
            raise Unavailable(f"{self.card.agent_id!r} has not registered {name!r} yet.")

    async def _hear(self, box: Box, lease: Lease, message: A2AMessage) -> None:
        """An event: nobody waits for its answer, so what fails is tried again, and then lies with the dead letters."""
        content = await self._content(message, lease.attempt)
        if content["status"] != "error":
            await self._post.end(box, lease)
            return
        code, text = content["error"]["code"], content["error"]["message"]
        log.warning("event %s was not processed: %s", message.message_id, text)
        if code in _HOPELESS:
            await box.bury(lease, f"{code}: {text}")
        else:
            await box.nack(lease, f"{code}: {text}")

    def _reply(self, message: A2AMessage, content: dict[str, Any]) -> A2AMessage:
        reply = message.reply(content)
        if message.reply_to:
            reply = reply.model_copy(update={"to_agent": message.reply_to})
        return self._mail.signed(reply)

    def _signed_message(self, **fields: Any) -> A2AMessage:
        message = A2AMessage(from_agent=self.card.agent_id, traceparent=traceparent(), **fields)
        return self._mail.signed(message)

    async def _send(self, message: A2AMessage) -> None:
        if message.message_type is MessageType.REQUEST:
            await self._inbox.expect()
        await self._post.put(self._mail.letter(message, await self._courier.way_to(message.to_agent)))
        METRICS.a2a_messages_sent.inc((message.from_agent, message.to_agent, message.message_type.value))

    async def _response(self, message: A2AMessage, timeout: float) -> A2AMessage:
        await self._inbox.expect()
        answer = await self._mail.answer(message, timeout)
        if answer is None:
            raise CallTimeout(f"{message.to_agent} did not answer message {message.message_id} within {timeout:g} s.")
        return answer

    async def _waiting(self, agent_id: str) -> int:
        box = await self._courier.way_to(agent_id) or box_of(agent_id)
        return (await (await self._post.box(box)).depth()).live

    async def _own_boxes(self) -> list[Box]:
        names = [box_of(self.card.agent_id), *map(self._courier.box_for, self._courier.known())]
        return [await self._post.box(one) for one in names]

    async def _dead(self, limit: int) -> list[DeadMessage]:
        letters = [one for box in await self._own_boxes() for one in await box.dead(limit=limit)]
        return [DeadMessage(one.id, one.reason, one.attempts, one.body) for one in letters[:limit]]

    async def _replay(self, message_ids: tuple[str, ...]) -> int:
        await self._inbox.open()
        return sum([await box.replay(message_ids) for box in await self._own_boxes()])

    async def _broadcast(
        self, topic: str, content: dict[str, Any], priority: int, ordered: bool, trace: str
    ) -> Broadcast:
        event = REAL.id()
        heard_by = {one.agent for one in await self._topics.subscribers(topic)}
        ways = {agent: await self._courier.way_to(agent) for agent in heard_by}

        def letter(wish: Subscription) -> Letter:
            message = A2AMessage(
                from_agent=self.card.agent_id,
                to_agent=wish.agent,
                message_type=MessageType.EVENT,
                capability=wish.capability,
                content=content,
                correlation_id=event,
                context_id=f"topic {topic}" if ordered else None,
                priority=priority,
                traceparent=trace,
                metadata={"topic": topic},
            )
            METRICS.a2a_messages_sent.inc((message.from_agent, message.to_agent, "event"))
            return self._mail.letter(self._mail.signed(message), ways.get(wish.agent))

        return await self._topics.broadcast(topic, event, letter)

    async def _finished(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while self._running:
                    await self._idle.wait()
                await self._inbox.finished()
        except TimeoutError:
            return False
        return True

    # Its place

    def _take_the_place(self) -> None:
        """Of two executors of one core with one id the newer one takes the messages."""
        here = AgentExecutor._here.setdefault(self.core, weakref.WeakValueDictionary())
        before = here.get(self.card.agent_id)
        if before is not None:
            before.step_aside()
        here[self.card.agent_id] = self

    def step_aside(self) -> None:
        """Leave the messages to another executor of the same id."""
        self._inbox.leave()

    def _lives_here(self) -> Callable[[str], bool]:
        """Tells whether an agent is of this core, without keeping either alive."""
        core = weakref.ref(self.core)

        def here(agent: str) -> bool:
            found = core()
            return found is not None and agent in AgentExecutor._here.get(found, ())

        return here


def _leave_soon(courier: Courier) -> None:
    """Have a courier stop, from any thread; in the bridge's loop, where its rounds are."""
    if courier.known():
        bridge.shared().spawn(courier.leave())


_HOPELESS = frozenset(
    {"capability_not_found", "invalid_input", "too_large", "not_found", "conflict", "forbidden", "interrupted"}
)
"""Failures that no further attempt changes, or after which none may be made without asking."""


def _declared_schema(declared: AgentCapability | None) -> dict[str, Any] | None:
    if declared is None or (declared.input_schema is None and not declared.parameters):
        return None
    return declared.to_schema()


def _capability(one: Capability) -> AgentCapability:
    return AgentCapability(
        name=one.name, description=one.description, input_schema=one.input_schema, output_schema=one.output_schema
    )


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 - messages carry local time, as documented


def _in(seconds: float | None) -> datetime | None:
    return None if seconds is None else _now() + timedelta(seconds=seconds)


def _in_the_bridge() -> bool:
    """Whether this is the bridge's own loop, which cannot wait for itself."""
    try:
        asyncio.get_running_loop()
        bridge.run(_nothing())
    except RuntimeError:
        return False
    except SetupError:
        return True
    return False


async def _nothing() -> None:
    return


async def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Something of the bridge's loop, awaited in whichever loop this is."""
    return await asyncio.wrap_future(bridge.shared().spawn(work))


def _tell_of_failure(sending: Future[None]) -> None:
    if not sending.cancelled() and (wrong := sending.exception()) is not None:
        log.error("a message was not sent: %s", wrong)
        METRICS.events_dropped.inc(("unsent message",))
