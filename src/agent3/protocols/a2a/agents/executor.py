"""``AgentExecutor``: an agent that sends, receives and answers messages, as documented.

What it receives runs under the same steps as every other call. What it sends waits in the recipient's mailbox until it
has been processed: in memory, gone with the process, or in the database of the core that it was given, where agents of
all processes meet. Mailboxes are bounded, and refuse messages rather than forget them.
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
from agent3.protocols.a2a.agents.consumer import Consumer
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.a2a.agents.envelopes import ANSWERS, Sealer, traceparent
from agent3.protocols.a2a.agents.events import Broadcast, Subscription, Topics
from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
from agent3.protocols.a2a.agents.lifecycle import IN_SERVICE, Status, check_transition, find_refusal
from agent3.protocols.a2a.agents.mailboxes import Envelope, mailboxes_of, request_box
from agent3.protocols.a2a.agents.memory_queue import MessageQueue
from agent3.protocols.a2a.agents.registry import LEASE, AgentRegistry
from agent3.protocols.a2a.agents.remote_delivery import RemoteDelivery, content_of, error_content
from agent3.protocols.a2a.cards.negotiation import NEGOTIATE, Agreement, Wants, negotiate, require_agreement
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.queue import Lease, Rules
from agent3.schema import nearest

__all__ = ["PING", "AgentExecutor", "DeadMessage"]

log = logs.get("a2a")

T = TypeVar("T")

PING = "a2a.ping"
"""The capability by which every executor reports how it is."""
_GRACE = 5.0
"""Seconds that a closing executor gives to what it is processing."""
_SEND_TIMEOUT = 60.0
"""Seconds that a sender waits for storage before it gives up."""
_HOPELESS = frozenset(
    {"capability_not_found", "invalid_input", "too_large", "not_found", "conflict", "forbidden", "interrupted"}
)
"""Failures that another attempt would not change, or after which none may be made without asking."""


_told: weakref.WeakSet[Standalone] = weakref.WeakSet()
"""Cores whose messages are open, which was said."""


class DeadMessage(msgspec.Struct, frozen=True):
    """A message that was given up, and why; ``body`` is as it was in the mailbox."""

    message_id: str
    reason: str
    attempts: int
    body: bytes


class AgentExecutor:
    """One agent of this process. Safe from any thread, and inside a running loop.

        hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"))
        hotel.register_capability("search_hotels", search_hotels)

    With a ``core`` that has a database, messages and answers outlive the process, and agents of other processes on it
    are reached; each message is then processed once, however often it is delivered. Where a master key is set
    (``AGENT3_STORAGE_SEAL``), messages on that database are encrypted, and those that were not written by a holder of
    the key are refused; where none is, the log says so. ``encryption`` seals what is sent with a key of your own and
    refuses plain messages; ``identity`` signs, and ``verifier`` refuses what is not signed by the agent it names: for
    agents that share a database and do not trust each other.
    With a ``registry`` the agent is registered there, with a heartbeat, and agents registered there with an address are
    reached over A2A, with the ``credentials`` for their ids: ``{"hotel": "env:HOTEL_KEY"}``. ``rules`` are those of its
    mailbox.
    """

    _local: weakref.WeakKeyDictionary[Standalone, weakref.WeakValueDictionary[str, AgentExecutor]] = (
        weakref.WeakKeyDictionary()
    )
    """The executors of each core, by agent."""

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
        self._mailboxes = mailboxes_of(self.core)
        self._sealer = Sealer(card.agent_id, self._mailboxes, encryption, identity, verifier)
        if self.core.durable and not self.core.sealed and verifier is None and self.core not in _told:
            _told.add(self.core)
            log.warning(
                "agent %r: its messages are %s: anyone who can write to the database can send in the name "
                "of any agent. Set AGENT3_STORAGE_SEAL, or give each agent an identity and a verifier.",
                card.agent_id,
                "not encrypted, and their senders not verified" if encryption is None else "from senders not verified",
            )
        self._topics = Topics(self._mailboxes)
        self._consumer = Consumer(self.core, self._mailboxes, card.agent_id, self._process, registry)
        weakref.finalize(self, self._consumer.leave).atexit = False
        core_reference = weakref.ref(self.core)

        def is_local(agent: str) -> bool:  # keeps neither the core nor this executor alive
            found = core_reference()
            return found is not None and agent in AgentExecutor._local.get(found, ())

        self._delivery = RemoteDelivery(self.core, self._sealer, registry, is_local, credentials)
        weakref.finalize(self, _stop_soon, self._delivery).atexit = False
        self._running = 0
        self._idle = asyncio.Event()
        self._closed = False
        if rules is not None:
            self._mailboxes.set_rules(request_box(card.agent_id), rules)
        self.core.host(self.agent)
        # Of two executors of one core with one id the newer one takes the messages.
        local = AgentExecutor._local.setdefault(self.core, weakref.WeakValueDictionary())
        before = local.get(card.agent_id)
        if before is not None:
            before._consumer.leave()  # noqa: SLF001 - of the same class
        local[card.agent_id] = self
        if registry is not None:
            registry.register_agent(card, lease=LEASE)
            self._consumer.open_soon()
            if self.core.durable:
                bridge.get_shared().spawn(self._delivery.resume())

    # Capabilities

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

        If the card has a schema for that capability, it checks the input. A capability that is ``idempotent``,
        ``read_only`` or may be ``replay``-ed is called again if its process died in the middle; any other is answered
        as interrupted. ``timeout`` is in seconds.
        """
        declared = self.card.capability(name)
        has_schema = declared is not None and (declared.input_schema is not None or bool(declared.parameters))
        self.agent.add(
            function,
            name=name,
            description=declared.description if declared is not None else None,
            input_schema=declared.to_schema() if declared is not None and has_schema else None,
            output_schema=declared.output_schema if declared is not None else None,
            read_only=read_only or (declared is not None and declared.read_only),
            idempotent=idempotent or (declared is not None and declared.idempotent),
            replay=replay,
            timeout=timeout,
        )
        if self.status in IN_SERVICE:
            self._consumer.open_soon()

    def register_object(self, thing: object) -> list[str]:
        """Offer every public method of an object; their names."""
        methods = [(name, member) for name, member in inspect.getmembers(thing, callable) if not name.startswith("_")]
        for name, method in methods:
            self.register_capability(name, method)
        return [name for name, _ in methods]

    def full_card(self) -> AgentCard:
        """The card, with the registered capabilities that are not on it."""
        known = {capability.name for capability in self.card.capabilities}
        more = [
            AgentCapability(
                name=function.capability.name,
                description=function.capability.description,
                input_schema=function.capability.input_schema,
                output_schema=function.capability.output_schema,
            )
            for name, function in self.agent.functions.items()
            if name not in known
        ]
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
        """Send a message; it is kept once this returns, even if its recipient is not running.

        QueueFull, which is a RateLimited, if the recipient's mailbox is full: nothing is dropped silently. Inside an
        async capability it returns at once, and a refusal is only logged; ``await send`` raises it.
        """
        message = self._build_message(
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
        sending = bridge.get_shared().spawn(self._send(message))
        if _is_in_bridge():  # where waiting for it would never end
            sending.add_done_callback(_log_failure)
        else:
            sending.result(_SEND_TIMEOUT)
        return message

    async def send(self, to_agent: str, message_type: MessageType, *args: Any, **more: Any) -> A2AMessage:
        """``send_message`` for async code in any loop; raises the refusal of a full mailbox."""
        names = ("capability", "content")
        fields = {**dict(zip(names, args, strict=False)), **more}
        fields["expires_at"] = _in(fields.pop("expires_in", None))
        fields["content"] = fields.get("content") or {}
        message = self._build_message(to_agent=to_agent, message_type=message_type, **fields)
        await _run_in_bridge(self._send(message))
        return message

    def request(
        self, to_agent: str, capability: str, content: dict[str, Any] | None = None, timeout: float = 30.0, **more: Any
    ) -> A2AMessage:
        """Send a REQUEST and wait for its RESPONSE; CallTimeout if it does not come in time.

        The request expires with the wait: one that was not taken by then is not processed.
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
        """``ask`` with an id of the caller's: asked again with the same id, it is one message with one answer."""
        message = self._build_message(
            to_agent=to_agent,
            message_type=MessageType.REQUEST,
            capability=capability,
            content=content,
            **({"message_id": message_id, "idempotency_key": message_id} if message_id is not None else {}),
        )
        await _run_in_bridge(self._send(message))
        return await self.response(message, timeout)

    def wait_for_response(self, message: A2AMessage, timeout: float = 30.0) -> A2AMessage:
        """The answer to a message that was sent; CallTimeout if it does not come in time. A late one is kept.

        It can be read once. Not for async capabilities, whose loop would wait for itself: there it raises SetupError,
        and ``await response`` is the way.
        """
        return bridge.run(self._wait_for_response(message, timeout))

    async def response(self, message: A2AMessage, timeout: float = 30.0) -> A2AMessage:
        """``wait_for_response`` for async code in any loop."""
        return await _run_in_bridge(self._wait_for_response(message, timeout))

    def waiting(self, agent_id: str | None = None) -> int:
        """How many messages in the mailbox of an agent, by default this one, have not been processed."""
        agent = agent_id or self.card.agent_id

        async def count() -> int:
            box = await self._delivery.find_box(agent) or request_box(agent)
            return (await (await self._mailboxes.open(box)).depth()).live

        return bridge.run(count())

    def dead_letters(self, limit: int = 100) -> list[DeadMessage]:
        """Messages in its mailbox that were given up, and those that did not reach an agent elsewhere, and why."""

        async def read() -> list[DeadMessage]:
            letters = [letter for queue in await self._own_queues() for letter in await queue.dead(limit=limit)]
            return [DeadMessage(letter.id, letter.reason, letter.attempts, letter.body) for letter in letters[:limit]]

        return bridge.run(read())

    def replay_dead_letters(self, *message_ids: str) -> int:
        """Put dead messages back into their mailboxes; how many there were."""

        async def replay() -> int:
            await self._consumer.open()
            return sum([await queue.replay(message_ids) for queue in await self._own_queues()])

        return bridge.run(replay())

    # Events

    def subscribe(self, topic: str, handler: Callable[..., Any] | str) -> str:
        """Get the events of a topic, in which ``*`` stands for anything, by a capability or a function; its name.

        The subscription outlives the executor if its core has a database: register the capability again and it goes
        on, with what came meanwhile.
        """
        name = handler if isinstance(handler, str) else f"on {topic}"
        if not isinstance(handler, str):
            self.register_capability(name, handler)
        self.subscribe_agent(self.card.agent_id, topic, name)
        return name

    def subscribe_agent(self, agent_id: str, topic: str, capability: str) -> None:
        """Subscribe another agent by one of its capabilities, such as one elsewhere that cannot do it itself."""
        bridge.run(self._topics.subscribe(Subscription(topic, agent_id, capability)))

    def unsubscribe(self, topic: str | None = None) -> int:
        """Unsubscribe from a topic, or from all; how many subscriptions there were."""
        return bridge.run(self._topics.unsubscribe(self.card.agent_id, topic))

    def broadcast(
        self, topic: str, content: dict[str, Any] | None = None, *, priority: int = 0, ordered: bool = True
    ) -> Broadcast:
        """Send an EVENT to all subscribers of the topic, in this process or another.

        Each subscriber gets the events of a topic one after the other, unless ``ordered`` is False.
        """
        trace = traceparent()

        async def send_all() -> Broadcast:
            event = REAL.id()
            subscribers = {each.agent for each in await self._topics.subscribers(topic)}
            boxes = {agent: await self._delivery.find_box(agent) for agent in subscribers}

            def seal(subscription: Subscription) -> Envelope:
                message = A2AMessage(
                    from_agent=self.card.agent_id,
                    to_agent=subscription.agent,
                    message_type=MessageType.EVENT,
                    capability=subscription.capability,
                    content=content or {},
                    correlation_id=event,
                    context_id=f"topic {topic}" if ordered else None,
                    priority=priority,
                    traceparent=trace,
                    metadata={"topic": topic},
                )
                METRICS.a2a_messages_sent.inc((message.from_agent, message.to_agent, "event"))
                return self._sealer.seal(self._sealer.sign(message), boxes.get(subscription.agent))

            return await self._topics.broadcast(topic, event, seal)

        return bridge.run(send_all())

    # Artifacts

    def create_artifact(
        self, content: Any, *, name: str | None = None, media_type: str | None = None
    ) -> ArtifactReference:
        """Keep bytes, text or a JSON value that can be shared; ``artifacts`` has the other operations."""
        return self.artifacts.create(content, name=name, media_type=media_type)

    def share_artifact(self, artifact_id: str, *agents: str, seconds: float | None = None) -> None:
        """Let other agents read it, for some seconds or as long as it is kept."""
        self.artifacts.share(artifact_id, *agents, seconds=seconds)

    # Negotiation

    def negotiate(self, to_agent: str, wants: Wants, timeout: float = 30.0) -> Agreement:
        """Agree with another agent on what both can do; Conflict lists what is in the way."""
        answer = self.request(to_agent, NEGOTIATE, msgspec.to_builtins(wants), timeout)
        if answer.content.get("status") != "success":
            raise ValidationError(f"{to_agent!r} did not negotiate: {answer.content.get('error')}")
        return require_agreement(msgspec.convert(answer.content["result"], Agreement))

    # Lifecycle

    def start(self) -> None:
        """Take messages from now on, instead of a moment after the last capability was registered."""
        bridge.run(self._consumer.open())

    @property
    def status(self) -> Status:
        """The state of the agent."""
        return self.card.status

    def set_status(self, status: Status) -> None:
        """Change the state; Conflict if it cannot follow the present one. Out of service, nothing new is taken."""
        status = check_transition(self.card.agent_id, self.card.status, status)
        if self._registry is not None:
            self._registry.set_status(self.card.agent_id, status)
        self.card = self.card.model_copy(update={"status": status})
        if status in IN_SERVICE:
            self._consumer.open_soon()
        else:
            self._consumer.close()

    def drain(self, timeout: float = 30.0) -> bool:
        """Take nothing new and finish what runs; whether all of it was finished in time.

        Messages that were not taken stay in the mailbox, for this agent when it is active again or for another process.
        """
        self.set_status("draining")
        return bridge.run(self._finish(timeout))

    def close(self) -> None:
        """Leave: what runs gets some seconds, and nothing is delivered to this executor any more."""
        if self._closed:
            return
        self._closed = True
        self._consumer.leave()
        _stop_soon(self._delivery)
        with suppress(SetupError):  # from inside the bridge's loop, which cannot wait for itself
            bridge.run(self._finish(_GRACE))
        self.core.drop(self.agent)
        local = AgentExecutor._local.get(self.core)
        if local is not None and local.get(self.card.agent_id) is self:
            del local[self.card.agent_id]

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
        return await _run_in_bridge(self._receive(message))

    # All below runs in the bridge's loop

    async def _receive(self, message: A2AMessage) -> A2AMessage | None:
        """Process a message that was handed over directly, not by a mailbox."""
        try:
            await self._sealer.verify(message)
        except Agent3Error as error:
            content = error_content(error.code, error.message)
        else:
            if message.message_type in ANSWERS:
                await self._sealer.keep_answer(message)
                return None
            mine = self.card.agent_id
            if message.message_type is MessageType.REQUEST and message.to_agent != mine:
                content = error_content(
                    "invalid_input",
                    f"The message is for {message.to_agent[:100]!r}; this is {mine!r}. Nothing was done.",
                )
            else:
                content = await self._content_for(message)
        if message.message_type is MessageType.REQUEST:
            return self._build_reply(message, content)
        if content["status"] == "error":
            log.warning("event %s was not processed: %s", message.message_id, content["error"]["message"])
        return None

    async def _process(self, queue: MessageQueue, lease: Lease) -> None:
        """Process a message from the mailbox, to its end."""
        try:
            message = await self._sealer.open(lease)
        except (AccessError, RequestError) as error:
            log.warning("%s: message %s is refused: %s", self.card.agent_id, lease.id[:100], error)
            METRICS.refusals.inc((error.code,))
            await queue.bury(lease, f"{error.code}: {error.message}")
            return
        if message.message_type in ANSWERS:
            await self._sealer.keep_answer(message, (queue, lease), sealed=True)
            return
        if message.message_type is not MessageType.EVENT:
            # An executor starts in several steps: what its card promises may be registered in a moment.
            name = message.capability or ""
            promised = name not in self.agent.functions and self.card.capability(name) is not None
            if promised and lease.attempt < queue.rules.attempts:
                raise Unavailable(f"{self.card.agent_id!r} has not registered {name!r} yet.")
            reply = self._build_reply(message, await self._content_for(message))
            await self._mailboxes.end(queue, lease, self._sealer.seal(reply))
            return
        # Nobody waits for the answer to an event, so one that fails is tried again, then becomes a dead letter.
        content = await self._content_for(message, lease.attempt)
        if content["status"] != "error":
            await self._mailboxes.end(queue, lease)
            return
        code, text = content["error"]["code"], content["error"]["message"]
        log.warning("event %s was not processed: %s", message.message_id, text)
        if code in _HOPELESS:
            await queue.bury(lease, f"{code}: {text}")
        else:
            await queue.nack(lease, f"{code}: {text}")

    async def _content_for(self, message: A2AMessage, attempt: int = 1) -> dict[str, Any]:
        """Do what a message asks for; the content of its answer."""
        if message.expires_at is not None and message.expires_at < _now():
            return error_content("timeout", f"Message {message.message_id} expired before it was processed.")
        name = message.capability or ""
        if name == PING:
            return {"status": "success", "result": {"status": self.status, "running": self._running}}
        if name == NEGOTIATE:
            try:
                wants = msgspec.convert(message.content, Wants)
            except msgspec.ValidationError as error:
                return error_content("invalid_input", f"{NEGOTIATE}: {error}")
            return {"status": "success", "result": msgspec.to_builtins(negotiate(self.full_card(), wants))}
        if (refused := find_refusal(self.card.agent_id, self.status)) is not None:
            return error_content(refused.code, refused.message)
        function = self.agent.functions.get(name)
        if function is None:
            near = nearest(name, self.agent.functions)
            hint = f" Did you mean {near!r}?" if near else ""
            text = f"Agent {self.card.agent_id!r} has no capability {name[:100]!r}.{hint}"
            return error_content("capability_not_found", text)
        self._running += 1
        self._idle.clear()
        try:
            # Calls without a key are faster; where the process may die in the middle, each needs one.
            key = message.idempotency_key or (message.message_id if self.core.durable else None)
            if key is None:
                return await self._call(message, function.capability, None)
            content = await self._call(message, function.capability, f"a2a {message.to_agent} {key}")
            # The outcome of each earlier attempt is kept under its key, so only a new one is made.
            for number in range(2, attempt + 1):
                if content["status"] != "error" or content["error"]["code"] in _HOPELESS:
                    break
                content = await self._call(message, function.capability, f"a2a {message.to_agent} {key} {number}")
            return content
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _call(self, message: A2AMessage, capability: Capability, key: str | None) -> dict[str, Any]:
        try:
            outcome = await self.core.call_async(
                self.agent,
                capability,
                message.content,
                Principal(message.from_agent, "local"),  # an agent of ours: no limits for strangers
                traceparent=message.traceparent,
                context=message.context_id,
                key=key,
                door="a2a",
            )
        except RequestError as error:
            return error_content(error.code, error.message)
        return content_of(outcome)

    def _build_reply(self, message: A2AMessage, content: dict[str, Any]) -> A2AMessage:
        reply = message.reply(content)
        if message.reply_to:
            reply = reply.model_copy(update={"to_agent": message.reply_to})
        return self._sealer.sign(reply)

    def _build_message(self, **fields: Any) -> A2AMessage:
        message = A2AMessage(from_agent=self.card.agent_id, traceparent=traceparent(), **fields)
        return self._sealer.sign(message)

    async def _send(self, message: A2AMessage) -> None:
        if message.message_type is MessageType.REQUEST:
            await self._consumer.open_answers()
        box = await self._delivery.find_box(message.to_agent)
        await self._mailboxes.post(self._sealer.seal(message, box))
        METRICS.a2a_messages_sent.inc((message.from_agent, message.to_agent, message.message_type.value))

    async def _wait_for_response(self, message: A2AMessage, timeout: float) -> A2AMessage:
        if not isinstance(message, A2AMessage):
            raise ValidationError(f"Pass the message as send_message returned it, not {message!r:.100}.")
        await self._consumer.open_answers()
        answer = await self._sealer.wait_for_answer(message, timeout)
        if answer is None:
            raise CallTimeout(
                f"{message.to_agent} did not answer message {message.message_id} within {timeout:g} s. Check "
                "that an agent with that id is running."
            )
        return answer

    async def _own_queues(self) -> list[MessageQueue]:
        """The queue of what is sent to this agent, and those of what it sends to agents elsewhere."""
        boxes = [request_box(self.card.agent_id), *map(self._delivery.box_for, self._delivery.agents())]
        return [await self._mailboxes.open(box) for box in boxes]

    async def _finish(self, timeout: float) -> bool:
        """Wait for what is being processed; whether it was finished in time."""
        try:
            async with asyncio.timeout(timeout):
                while self._running:
                    await self._idle.wait()
                await self._consumer.wait_finished()
        except TimeoutError:
            return False
        return True


def _stop_soon(delivery: RemoteDelivery) -> None:
    """Stop deliveries from any thread: they run in the bridge's loop."""
    if delivery.agents():
        bridge.get_shared().spawn(delivery.stop())


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 - messages carry local time, as documented


def _in(seconds: float | None) -> datetime | None:
    return None if seconds is None else _now() + timedelta(seconds=seconds)


def _is_in_bridge() -> bool:
    """Whether this is the bridge's own loop, which cannot wait for itself."""

    async def nothing() -> None:
        return

    try:
        asyncio.get_running_loop()
        bridge.run(nothing())
    except RuntimeError:
        return False
    except SetupError:
        return True
    return False


async def _run_in_bridge(work: Coroutine[Any, Any, T]) -> T:
    """Run something in the bridge's loop, from whichever loop this is."""
    return await asyncio.wrap_future(bridge.get_shared().spawn(work))


def _log_failure(sending: Future[None]) -> None:
    if not sending.cancelled() and (error := sending.exception()) is not None:
        log.error("a message was not sent: %s", error)
        METRICS.events_dropped.inc(("unsent message",))
