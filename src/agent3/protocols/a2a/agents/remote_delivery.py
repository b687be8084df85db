"""The courier of an agent: carries what it sends to agents elsewhere, which are known by an address alone.

Messages wait in a box of the sender's own for each of them, sealed as in any other, and are said over A2A in whatever
generation and binding the agent speaks, under all steps of the house. What failed without having been done is tried
again, then lies with the dead letters; answers come back like those of any agent, also late ones.
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
from agent3.calls.runner import Target
from agent3.definitions import A2AMessage, AgentCard, MessageType
from agent3.errors import Agent3Error, AgentNotFound, Canceled, CapabilityNotFound, TargetError
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Done, Failed, Needs, Outcome, Principal, Route, Working, value_of
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.envelopes import Mail
from agent3.protocols.a2a.agents.memory_queue import Box
from agent3.protocols.a2a.agents.registry import AgentRegistry
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.negotiation import NEGOTIATE, Wants, negotiate
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease
from agent3.schema import nearest

if TYPE_CHECKING:
    from agent3.protocols.a2a.peer.connector import A2AConnector

__all__ = ["Courier", "content_of", "error_content"]

log = logger("a2a.courier")

_AT_ONCE = 16
"""Messages that are said to one agent at once."""
_LONGEST = 3_600.0
"""Seconds that an answer is waited for, where the message does not say until when."""


class Courier:
    """Of one agent. ``here`` tells which agents live in this core, and need none. Inside the bridge's loop."""

    def __init__(
        self,
        core: Standalone,
        mail: Mail,
        registry: AgentRegistry | None,
        here: Callable[[str], bool],
        credentials: Mapping[str, str] | None = None,
    ):
        self._core = weakref.ref(core)
        self._mail = mail
        self._registry = registry
        self._here = here
        self._credentials = dict(credentials or {})
        self._known: dict[str, tuple[AgentCard, Agent]] = {}
        self._rounds: dict[str, asyncio.Task[None]] = {}

    async def way_to(self, agent: str) -> str | None:
        """The box for an agent elsewhere, which is emptied from now on; None for one that empties its own."""
        if self._registry is None or self._here(agent) or await self._card(agent) is None:
            return None
        box = self.box_for(agent)
        running = self._rounds.get(agent)
        if running is None or running.done():
            self._rounds[agent] = self._mail.post.serve(box, self._deliver, _AT_ONCE)
        return box

    def box_for(self, agent: str) -> str:
        """The box of what this agent sends to another elsewhere."""
        return f"a2a-out:{self._mail.agent}:{agent}"

    def known(self) -> list[str]:
        """Agents elsewhere to whom something was sent."""
        return list(self._rounds)

    async def resume(self) -> None:
        """Go on with what an earlier process did not deliver."""
        if self._registry is None:
            return
        for card in await self._registry.everybody():
            box = await self._mail.post.box(self.box_for(card.agent_id))
            if (await box.depth()).live:
                await self.way_to(card.agent_id)

    async def leave(self) -> None:
        """Carry nothing more; what was taken is finished."""
        for task in self._rounds.values():
            task.cancel()
        self._rounds.clear()

    # One message

    async def _deliver(self, box: Box, lease: Lease) -> None:
        message = self._mail.own(lease.body)
        if message.message_type not in (MessageType.REQUEST, MessageType.EVENT):
            await box.bury(lease, "an agent elsewhere asks over A2A, and is answered there")
            return
        content, again = await self._content(message, lease.attempt)
        if again is not None and lease.attempt < box.rules.attempts:
            raise again  # whoever handed it out tries again, after a pause
        if message.message_type is MessageType.REQUEST:
            await self._answered(box, lease, message.reply(content), given_up=again is not None)
        elif content["status"] == "error":
            log.warning("event %s was not delivered: %s", message.message_id, content["error"]["message"])
            await box.bury(lease, f"{content['error']['code']}: {content['error']['message']}")
        else:
            await self._mail.post.end(box, lease)

    async def _answered(self, box: Box, lease: Lease, reply: A2AMessage, *, given_up: bool) -> None:
        """Keep the answer for whoever asked; of what was given up the message too."""
        if given_up:
            await self._mail.keep(reply)
            await box.bury(lease, f"{reply.content['error']['code']}: {reply.content['error']['message']}")
        elif reply.to_agent == self._mail.agent:
            await self._mail.arrived(reply, (box, lease))
        else:
            await self._mail.post.end(box, lease, self._mail.letter(reply))

    async def _content(self, message: A2AMessage, attempt: int) -> tuple[dict[str, Any], Agent3Error | None]:
        """What comes of a message, and the error by which it may be tried again, where it may."""
        if message.expires_at is not None and message.expires_at < _now():
            return error_content("timeout", f"Message {message.message_id} expired before it was delivered."), None
        if message.capability == NEGOTIATE:
            return await self._negotiated(message), None
        outcome = await self._outcome(message, attempt)
        if isinstance(outcome, Failed) and outcome.retryable and (outcome.repeatable or not outcome.sent):
            return content_of(outcome), error_of(outcome)
        return content_of(outcome), None

    async def _outcome(self, message: A2AMessage, attempt: int) -> Outcome:
        key = f"a2a {message.to_agent} {message.idempotency_key or message.message_id}"
        principal = Principal(message.from_agent, "local")  # of this house: no stranger's limits
        core = self._house()
        try:
            agent, capability = await self._target(message)
            outcome = await core.call_async(
                agent,
                capability,
                message.content,
                principal,
                traceparent=message.traceparent,
                context=message.context_id,
                key=key if attempt == 1 else f"{key} {attempt}",
                door="a2a",
            )
            if isinstance(outcome, Working) and outcome.job is not None:
                outcome = await (await core.house()).runner.wait(principal, outcome.job, _patience(message))
        except Agent3Error as wrong:
            return failed_by(wrong)
        return outcome

    async def _negotiated(self, message: A2AMessage) -> dict[str, Any]:
        """What both can do: by its card, which is all that is known of an agent elsewhere."""
        try:
            wants = msgspec.convert(message.content, Wants)
            card = AgentCard.from_wire((await self._agent(message.to_agent)).card)
        except msgspec.ValidationError as wrong:
            return error_content("invalid_input", f"{NEGOTIATE}: {wrong}")
        except Agent3Error as wrong:
            return error_content(wrong.code, wrong.message)
        named = card.model_copy(update={"agent_id": message.to_agent})
        return {"status": "success", "result": msgspec.to_builtins(negotiate(named, wants))}

    # Whom it is for

    async def _card(self, agent: str) -> AgentCard | None:
        """The card of an agent elsewhere: it has an address, and no heartbeat of an executor on this database."""
        if self._registry is None:
            return None
        card, left = await self._registry.known(agent)
        return card if card is not None and left is None and _address(card) else None

    async def _target(self, message: A2AMessage) -> Target:
        agent = await self._agent(message.to_agent)
        name = message.capability
        if name is None and len(agent.capabilities) == 1:
            return agent, agent.capabilities[0]
        found = next((one for one in agent.capabilities if name in (one.name, one.title)), None)
        if found is None:
            near = nearest(name or "", [one.name for one in agent.capabilities])
            hint = f" Did you mean {near!r}?" if near else ""
            raise CapabilityNotFound(f"Agent {message.to_agent!r} has no capability {(name or '')[:100]!r}.{hint}")
        return agent, found

    async def _agent(self, agent: str) -> Agent:
        """The agent as it describes itself, asked once for as long as its card in the registry stays as it is."""
        card = await self._card(agent)
        if card is None:
            raise AgentNotFound(f"There is no agent {agent[:100]!r} elsewhere in the registry any more.")
        known = self._known.get(agent)
        if known is None or known[0] is not card:
            core, found = self._house(), await self._described(card)
            found = replace(found, id=agent)
            kept = core.adopt(found) if known is None else core.renew(replace(found, id=known[1].id))
            known = self._known[agent] = card, kept
        return known[1]

    async def _described(self, card: AgentCard) -> Agent:
        # It brings the HTTP client along, for which agents that only talk among themselves have no use.
        kind: type[A2AConnector] = import_module("agent3.protocols.a2a.peer.connector").A2AConnector
        connector = self._house().reach("a2a", kind())
        assert isinstance(connector, kind)
        reference = self._credentials.get(card.agent_id)
        secret = await EnvironmentVault().get(reference) if reference else None
        route = Route("a2a", _address(card), credential=reference)
        try:
            return await connector.describe(route.address, secret=secret, route=route, registered=True)
        except TargetError as wrong:
            if wrong.retryable or not card.capabilities:
                raise
            log.info("%s shows no card at its address, so the one in the registry counts: %s", card.agent_id, wrong)
            return connector.describe_card(card.to_wire("1.0"), route)

    def _house(self) -> Standalone:
        core = self._core()
        if core is None:
            raise Canceled("The core of this executor is gone. Keep a reference to it.")
        return core


def _address(card: AgentCard) -> str:
    offered = cards.interfaces(card) if card.url or card.interfaces else []
    return card.url or (offered[0][0].url if offered else "")


def _patience(message: A2AMessage) -> float:
    return _LONGEST if message.expires_at is None else max(0.0, (message.expires_at - _now()).total_seconds())


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 - messages carry local time, as documented


# What is answered


def error_content(code: str, message: str) -> dict[str, Any]:
    """The content of an answer that says what went wrong."""
    return {"status": "error", "error": {"code": code, "message": message}}


def content_of(outcome: Outcome) -> dict[str, Any]:
    """The content of an answer, as documented: ``{"status": …, "result" | "error": …}``."""
    if isinstance(outcome, Done):
        return {"status": "success", "result": value_of(outcome.parts)}
    if isinstance(outcome, Failed):
        return error_content(outcome.code, outcome.message)
    if isinstance(outcome, Needs):
        return {"status": "needs", "job": outcome.job, "questions": [one.text for one in outcome.questions]}
    return {"status": "working", "job": outcome.job}
