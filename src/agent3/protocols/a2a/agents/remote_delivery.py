"""Delivers an agent's messages to agents elsewhere, which are known by an address alone.

Messages wait in a mailbox of the sender for each such agent, sealed as in any other, and are sent over A2A in whatever
generation and binding the agent speaks, under all steps of a call. What failed without having been done is tried again,
then becomes a dead letter; answers come back like those of any agent, also late ones.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import error_of, failed_by
from agent3.definitions import A2AMessage, AgentCard, MessageType
from agent3.errors import Agent3Error, AgentNotFound, Canceled, CapabilityNotFound, TargetError
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Capability, Done, Failed, Needs, Outcome, Principal, Route, Working, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.envelopes import Sealer
from agent3.protocols.a2a.agents.memory_queue import MessageQueue
from agent3.protocols.a2a.agents.registry import AgentRegistry
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.negotiation import NEGOTIATE, Wants, negotiate
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease
from agent3.schema import nearest

if TYPE_CHECKING:
    from agent3.protocols.a2a.peer.connector import A2AConnector

__all__ = ["RemoteDelivery", "content_of", "error_content"]

log = logger("a2a.delivery")

_AT_ONCE = 16
"""Messages that are sent to one agent at once."""
_LONGEST_WAIT = 3_600.0
"""Seconds that an answer is waited for, if the message does not say when it expires."""


class RemoteDelivery:
    """The deliveries of one agent. ``is_local`` tells which agents run in this core. Only for the bridge's loop."""

    def __init__(
        self,
        core: Standalone,
        sealer: Sealer,
        registry: AgentRegistry | None,
        is_local: Callable[[str], bool],
        credentials: Mapping[str, str] | None = None,
    ):
        self._core = weakref.ref(core)
        self._sealer = sealer
        self._mailboxes = sealer.mailboxes
        self._registry = registry
        self._is_local = is_local
        self._credentials = dict(credentials or {})
        self._described: dict[str, tuple[AgentCard, Agent]] = {}
        self._consumers: dict[str, asyncio.Task[None]] = {}

    async def find_box(self, agent: str) -> str | None:
        """The mailbox for an agent elsewhere, delivered from now on; None for an agent that empties its own."""
        if self._registry is None or self._is_local(agent) or await self._find_card(agent) is None:
            return None
        box = self.box_for(agent)
        running = self._consumers.get(agent)
        if running is None or running.done():
            self._consumers[agent] = self._mailboxes.serve(box, self._deliver, _AT_ONCE)
        return box

    def box_for(self, agent: str) -> str:
        """The mailbox of this agent's messages to an agent elsewhere."""
        return f"a2a-out:{self._sealer.agent}:{agent}"

    def agents(self) -> list[str]:
        """The agents elsewhere that something was sent to."""
        return list(self._consumers)

    async def resume(self) -> None:
        """Deliver what an earlier process did not."""
        if self._registry is None:
            return
        for card in await self._registry.all_cards():
            queue = await self._mailboxes.open(self.box_for(card.agent_id))
            if (await queue.depth()).live:
                await self.find_box(card.agent_id)

    async def stop(self) -> None:
        """Deliver nothing more; what was taken is finished."""
        for consumer in self._consumers.values():
            self._mailboxes.end_task(consumer)
        self._consumers.clear()

    async def _deliver(self, queue: MessageQueue, lease: Lease) -> None:
        message = self._sealer.read(lease.body)
        if message.message_type not in (MessageType.REQUEST, MessageType.EVENT):
            await queue.bury(lease, "answers cannot be delivered: a remote agent gets them over its own A2A request")
            return
        content, error = await self._call(message, lease.attempt)
        if error is not None and lease.attempt < queue.rules.attempts:
            raise error  # tried again after a pause
        if message.message_type is MessageType.EVENT:
            if content["status"] == "error":
                log.warning("event %s was not delivered: %s", message.message_id, content["error"]["message"])
                await queue.bury(lease, f"{content['error']['code']}: {content['error']['message']}")
            else:
                await self._mailboxes.end(queue, lease)
            return
        reply = message.reply(content)
        if error is not None:  # the caller gets the last error, and the message becomes a dead letter
            await self._sealer.keep_answer(reply)
            await queue.bury(lease, f"{content['error']['code']}: {content['error']['message']}")
        elif reply.to_agent == self._sealer.agent:
            await self._sealer.keep_answer(reply, (queue, lease))
        else:
            await self._mailboxes.end(queue, lease, self._sealer.seal(reply))

    async def _call(self, message: A2AMessage, attempt: int) -> tuple[dict[str, Any], Agent3Error | None]:
        """Call the agent that a message is for; the content of the answer, and the error if it may be tried again."""
        expires = message.expires_at
        now = datetime.now()  # noqa: DTZ005 - messages carry local time, as documented
        if expires is not None and expires < now:
            return error_content("timeout", f"Message {message.message_id} expired before it was delivered."), None
        if message.capability == NEGOTIATE:
            return await self._negotiate(message), None
        key = f"a2a {message.to_agent} {message.idempotency_key or message.message_id}"
        principal = Principal(message.from_agent, "local")  # an agent of ours: no limits for strangers
        core = self._get_core()
        try:
            agent = await self._describe(message.to_agent)
            outcome = await core.call_async(
                agent,
                _find_capability(agent, message),
                message.content,
                principal,
                traceparent=message.traceparent,
                context=message.context_id,
                key=key if attempt == 1 else f"{key} {attempt}",
                door="a2a",
            )
            if isinstance(outcome, Working) and outcome.job is not None:
                left = _LONGEST_WAIT
                if expires is not None:
                    left = max(0.0, (expires - datetime.now()).total_seconds())  # noqa: DTZ005
                outcome = await (await core.call_core()).runner.wait(principal, outcome.job, left)
        except Agent3Error as error:
            outcome = failed_by(error)
        if isinstance(outcome, Failed) and outcome.retryable and (outcome.repeatable or not outcome.sent):
            return content_of(outcome), error_of(outcome)
        return content_of(outcome), None

    async def _negotiate(self, message: A2AMessage) -> dict[str, Any]:
        """Negotiate by the card alone, which is all that is known of an agent elsewhere."""
        try:
            wants = msgspec.convert(message.content, Wants)
            card = AgentCard.from_wire((await self._describe(message.to_agent)).card)
        except msgspec.ValidationError as error:
            return error_content("invalid_input", f"{NEGOTIATE}: {error}")
        except Agent3Error as error:
            return error_content(error.code, error.message)
        named = card.model_copy(update={"agent_id": message.to_agent})
        return {"status": "success", "result": msgspec.to_builtins(negotiate(named, wants))}

    async def _find_card(self, agent: str) -> AgentCard | None:
        """The card of an agent elsewhere: it has an address, and no executor on this database sends its heartbeat."""
        if self._registry is None:
            return None
        card, left = await self._registry.find(agent)
        return card if card is not None and left is None and _address(card) else None

    async def _describe(self, agent: str) -> Agent:
        """The agent as it describes itself, asked once for as long as its card in the registry does not change."""
        card = await self._find_card(agent)
        if card is None:
            raise AgentNotFound(f"Agent {agent[:100]!r} no longer has an address in the registry.")
        known = self._described.get(agent)
        if known is not None and known[0] is card:
            return known[1]
        # Loaded here, because it brings the HTTP client along, which agents of one process do not need.
        kind: type[A2AConnector] = import_module("agent3.protocols.a2a.peer.connector").A2AConnector
        core = self._get_core()
        connector = core.reach("a2a", kind())
        assert isinstance(connector, kind)
        reference = self._credentials.get(card.agent_id)
        secret = await EnvironmentVault().get(reference) if reference else None
        route = Route("a2a", _address(card), credential=reference, meta={"registered": True})
        try:
            found = await connector.describe(route.address, secret=secret, route=route)
        except TargetError as error:
            if error.retryable or not card.capabilities:
                raise
            log.info("%s serves no card at its address, so the registered one is used: %s", card.agent_id, error)
            found = connector.describe_card(card.to_wire("1.0"), route)
        known = self._described.get(agent)  # another message may have described it meanwhile
        adopted = core.adopt(replace(found, id=agent)) if known is None else core.renew(replace(found, id=known[1].id))
        self._described[agent] = card, adopted
        return adopted

    def _get_core(self) -> Standalone:
        core = self._core()
        if core is None:
            raise Canceled("The core of this executor was garbage-collected. Keep a reference to it.")
        return core


def _find_capability(agent: Agent, message: A2AMessage) -> Capability:
    name = message.capability
    if name is None and len(agent.capabilities) == 1:
        return agent.capabilities[0]
    for capability in agent.capabilities:
        if name in (capability.name, capability.title):
            return capability
    near = nearest(name or "", [capability.name for capability in agent.capabilities])
    hint = f" Did you mean {near!r}?" if near else ""
    raise CapabilityNotFound(f"Agent {message.to_agent!r} has no capability {(name or '')[:100]!r}.{hint}")


def _address(card: AgentCard) -> str:
    offered = cards.interfaces(card) if card.url or card.interfaces else []
    return card.url or (offered[0][0].url if offered else "")


# The content of answers


def error_content(code: str, message: str) -> dict[str, Any]:
    """The content of an answer that reports an error."""
    return {"status": "error", "error": {"code": code, "message": message}}


def content_of(outcome: Outcome) -> dict[str, Any]:
    """The content of an answer, as documented: ``{"status": …, "result" | "error": …}``."""
    if isinstance(outcome, Done):
        return {"status": "success", "result": value_of(outcome.parts)}
    if isinstance(outcome, Failed):
        return error_content(outcome.code, outcome.message)
    if isinstance(outcome, Needs):
        return {"status": "needs", "job": outcome.job, "questions": [question.text for question in outcome.questions]}
    return {"status": "working", "job": outcome.job}
