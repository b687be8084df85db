"""The mail of one agent: signed and sealed on its way out, opened and judged on its way in.

Where an agent has a cipher, plain messages are not taken, and where it has a verifier, unsigned ones are not: nobody
gets past either by leaving it out.
"""

from __future__ import annotations

from pydantic import ValidationError as Malformed

from agent3.definitions import A2AMessage, MessageType
from agent3.env import REAL
from agent3.errors import SecurityError, SetupError, ValidationError
from agent3.observe import logs, traces
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
from agent3.protocols.a2a.agents.mailboxes import Letter, Post, answers_of, box_of
from agent3.protocols.a2a.agents.memory_queue import Box
from agent3.queue import Lease

__all__ = ["Mail", "traceparent"]


class Mail:
    """What an agent does to its messages. Inside the bridge's loop."""

    def __init__(
        self,
        agent: str,
        post: Post,
        cipher: Cipher | None = None,
        identity: AgentIdentity | None = None,
        verifier: A2AIdentityVerifier | None = None,
    ):
        if identity is not None and identity.agent_id != agent:
            raise SetupError(f"The identity is {identity.agent_id!r}'s, not {agent!r}'s. Give each agent its own.")
        self.agent = agent
        self.post = post
        self._cipher = cipher
        self._identity = identity
        self._verifier = verifier

    def signed(self, message: A2AMessage) -> A2AMessage:
        """The message as it goes out."""
        return message if self._identity is None else self._identity.signed(message)

    def letter(self, message: A2AMessage, box: str | None = None) -> Letter:
        """The message, signed if it is to be, in an envelope; for a box, or for the one of its recipient."""
        answers = message.message_type in (MessageType.RESPONSE, MessageType.ERROR)
        return Letter(
            to=message.to_agent,
            box=box or (answers_of(message.to_agent) if answers else box_of(message.to_agent)),
            body=self._closed(message),
            id=message.message_id,
            context=message.context_id or None,
            priority=message.priority,
        )

    async def opened(self, lease: Lease) -> A2AMessage:
        """The message in an envelope; AccessError or ValidationError when it is not to be taken."""
        message = self._read(lease.body)
        if message.to_agent != self.agent:
            raise SecurityError(f"Message {message.message_id[:100]!r} is for {message.to_agent[:100]!r}.")
        if self._verifier is not None:
            await self._verifier.check(message, message.signature, age=lease.age, again=lease.attempt > 1)
        return message

    async def judge(self, message: A2AMessage) -> None:
        """Whether a message that came by another way is to be taken; Unauthenticated when it is not."""
        if self._verifier is not None:
            await self._verifier.check(message, message.signature)

    async def keep(self, message: A2AMessage, taken: tuple[Box, Lease] | None = None) -> None:
        """Keep an answer until it is read."""
        body = taken[1].body if taken is not None else self._closed(message)
        await self.post.keep(self.agent, _asked(message), body, taken)

    async def arrived(self, reply: A2AMessage, taken: tuple[Box, Lease]) -> None:
        """Keep an answer that came by another way than a box, and acknowledge what it answers, both or neither."""
        await self.post.keep(self.agent, _asked(reply), self._closed(reply), taken)

    def own(self, body: bytes) -> A2AMessage:
        """A message that this agent itself had put into an envelope."""
        return self._read(body)

    async def answer(self, message: A2AMessage, seconds: float) -> A2AMessage | None:
        """The answer to a message, when it has come within so many seconds, from the agent that was asked."""
        body = await self.post.read(self.agent, _name(message.message_id, message.to_agent), seconds)
        return self._read(body) if body is not None else None

    def _closed(self, message: A2AMessage) -> bytes:
        return message.model_dump_json().encode() if self._cipher is None else self._cipher.encrypt_message(message)

    def _read(self, body: bytes) -> A2AMessage:
        if self._cipher is not None:
            return self._cipher.decrypt_message(body)
        try:
            return A2AMessage.model_validate_json(body)
        except Malformed as wrong:
            raise ValidationError(f"That is no message: {wrong.error_count()} faults. Is it encrypted?") from None


def _asked(answer: A2AMessage) -> str:
    """What an answer is found by. An agent that was not asked answers nothing, whatever it says it answers."""
    return _name(answer.correlation_id or answer.message_id, answer.from_agent)


def _name(message: str, agent: str) -> str:
    return f"{message} {agent}"


def traceparent() -> str:
    """Of what is sent here: the span that this code runs in, the trace of the call it runs in, or a new trace."""
    if (span := traces.here.get()) is not None:
        return span.header()
    begun = logs.current().trace
    known = traces.parse(f"00-{begun}-{'1' * 16}-01") if begun else None
    return (known.child(REAL) if known is not None else traces.new(REAL)).header()
