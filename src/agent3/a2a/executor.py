"""``AgentExecutor``: an agent that sends, receives and answers messages, as documented.

What it receives runs under the same steps as every other call. Messages to an executor of this process are delivered
at once; others wait in the outbox, which is bounded and refuses rather than forgets.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from agent3 import bridge
from agent3.calls.functions import LocalAgent
from agent3.calls.standalone import Standalone, shared
from agent3.definitions import A2AMessage, AgentCard, MessageType
from agent3.errors import CallTimeout, RateLimited
from agent3.model import Capability, Done, Failed, Needs, Outcome, Principal, value_of
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.schema import nearest

__all__ = ["AgentExecutor"]

log = logger("a2a")

_OUTBOX = 10_000
_REPLIES = 10_000


class AgentExecutor:
    """One agent of this process. Safe from any thread, and inside a running loop.

    hotel = AgentExecutor(AgentCard(agent_id="hotel", name="Hotel"))
    hotel.register_capability("search_hotels", search_hotels)
    """

    _here: WeakValueDictionary[str, AgentExecutor] = WeakValueDictionary()

    def __init__(self, card: AgentCard, *, core: Standalone | None = None):
        self.card = card
        self.outbox: deque[A2AMessage] = deque()
        self._replies: dict[str, A2AMessage] = {}
        self._arrived = threading.Condition()
        self._core = core or shared()
        self._agent = LocalAgent(card.name, agent_id=card.agent_id, description=card.description)
        self._core.host(self._agent)
        AgentExecutor._here[card.agent_id] = self

    def register_capability(self, name: str, function: Callable[..., Any]) -> None:
        """Offer a function under a name. The card's schema of that capability checks its input, where it has one."""
        declared = self.card.capability(name)
        self._agent.add(
            function,
            name=name,
            description=declared.description if declared is not None else None,
            input_schema=declared.input_schema if declared is not None else None,
            output_schema=declared.output_schema if declared is not None else None,
        )

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
    ) -> A2AMessage:
        """Send a message and return at once. RateLimited when the outbox is full: nothing is dropped in silence."""
        message = A2AMessage(
            from_agent=self.card.agent_id,
            to_agent=to_agent,
            message_type=message_type,
            capability=capability,
            content=content or {},
            priority=priority,
            context_id=context_id,
            correlation_id=correlation_id,
        )
        self._post(message)
        METRICS.a2a_messages_sent.inc((message.from_agent, to_agent, message_type.value))
        return message

    def receive_message(self, message: A2AMessage) -> A2AMessage | None:
        """Process a message. A REQUEST is answered by a RESPONSE, an EVENT by nothing; a RESPONSE is kept."""
        if message.message_type in (MessageType.RESPONSE, MessageType.ERROR):
            self._keep(message)
            return None
        return bridge.run(self._handle(message))

    def wait_for_response(self, message: A2AMessage, timeout: float = 30.0) -> A2AMessage:
        """The answer to a message that was sent; CallTimeout when it does not come in time. A late one is kept.

        Not for an async capability, whose loop would wait for itself: there it is a SetupError.
        """
        _may_wait()
        with self._arrived:
            if not self._arrived.wait_for(lambda: message.message_id in self._replies, timeout):
                raise CallTimeout(
                    f"{message.to_agent} did not answer message {message.message_id} within {timeout:g} s."
                )
            return self._replies.pop(message.message_id)

    def close(self) -> None:
        """Leave: nothing is delivered to this executor any more."""
        self._core.drop(self._agent)
        if AgentExecutor._here.get(self.card.agent_id) is self:
            del AgentExecutor._here[self.card.agent_id]

    def _post(self, message: A2AMessage) -> None:
        target = AgentExecutor._here.get(message.to_agent)
        if target is not None:
            bridge.shared().spawn(target.deliver(message, self))
            return
        if len(self.outbox) >= _OUTBOX:
            raise RateLimited(
                f"The outbox of {self.card.agent_id!r} is full: {_OUTBOX} messages wait.", retry_after=1.0
            )
        self.outbox.append(message)
        METRICS.a2a_queue_depth.set((self.card.agent_id,), len(self.outbox))

    async def deliver(self, message: A2AMessage, sender: AgentExecutor) -> None:
        """Process a message of another executor in this process, and bring the answer back."""
        if message.message_type in (MessageType.RESPONSE, MessageType.ERROR):
            self._keep(message)
            return
        response = await self._handle(message)
        if response is not None:
            sender._keep(response)

    def _keep(self, message: A2AMessage) -> None:
        with self._arrived:
            self._replies[message.correlation_id or message.message_id] = message
            while len(self._replies) > _REPLIES:
                self._replies.pop(next(iter(self._replies)))
                METRICS.events_dropped.inc(("unread reply",))
            self._arrived.notify_all()

    async def _handle(self, message: A2AMessage) -> A2AMessage | None:
        now = datetime.now()  # noqa: DTZ005 - messages carry local time, as documented
        if message.expires_at is not None and message.expires_at < now:
            content = _error("timeout", f"Message {message.message_id} expired before it was processed.")
        else:
            content = await self._content(message)
        if message.message_type is MessageType.EVENT:
            if content["status"] == "error":
                log.warning("event %s was not processed: %s", message.message_id, content["error"]["message"])
            return None
        return message.reply(content)

    async def _content(self, message: A2AMessage) -> dict[str, Any]:
        capability = self._capability(message.capability)
        if capability is None:
            near = nearest(message.capability or "", self._agent.functions)
            hint = f" Did you mean {near!r}?" if near else ""
            text = f"Agent {self.card.agent_id!r} has no capability {(message.capability or '')[:100]!r}.{hint}"
            return _error("capability_not_found", text)
        outcome = await self._core.call_async(
            self._agent,
            capability,
            message.content,
            Principal(message.from_agent, "agent"),
            traceparent=message.traceparent,
            context=message.context_id,
        )
        return _content(outcome)

    def _capability(self, name: str | None) -> Capability | None:
        function = self._agent.functions.get(name or "")
        return function.capability if function is not None else None


def _may_wait() -> None:
    """Let the bridge judge, where a loop runs in this thread at all: from inside its own it refuses to wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    bridge.run(_nothing())


async def _nothing() -> None:
    return


def _error(code: str, message: str) -> dict[str, Any]:
    return {"status": "error", "error": {"code": code, "message": message}}


def _content(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Done):
        return {"status": "success", "result": value_of(outcome.parts)}
    if isinstance(outcome, Failed):
        return _error(outcome.code, outcome.message)
    if isinstance(outcome, Needs):
        return {"status": "needs", "job": outcome.job, "questions": [one.text for one in outcome.questions]}
    return {"status": "working", "job": outcome.job}
