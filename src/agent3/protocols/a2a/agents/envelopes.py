"""What an agent does to its messages: signs and seals them on the way out, opens and verifies them on the way in.

An agent with a cipher takes no plain messages, and one with a verifier no unsigned ones, so neither can be evaded by
leaving it out.
"""

from __future__ import annotations

from pydantic import ValidationError as PydanticError

from agent3.definitions import A2AMessage, MessageType
from agent3.env import REAL
from agent3.errors import SecurityError, SetupError, ValidationError
from agent3.observe import logs, traces
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
from agent3.protocols.a2a.agents.mailboxes import Envelope, Mailboxes, answer_box, request_box
from agent3.protocols.a2a.agents.memory_queue import MessageQueue
from agent3.queue import Lease

__all__ = ["ANSWERS", "Sealer", "traceparent"]

ANSWERS = (MessageType.RESPONSE, MessageType.ERROR)


class Sealer:
    """The messages of one agent, going out and coming in. Only for the bridge's loop."""

    def __init__(
        self,
        agent: str,
        mailboxes: Mailboxes,
        cipher: Cipher | None = None,
        identity: AgentIdentity | None = None,
        verifier: A2AIdentityVerifier | None = None,
    ):
        if identity is not None and identity.agent_id != agent:
            raise SetupError(
                f"The identity belongs to {identity.agent_id!r}, not to {agent!r}. Give each agent its own."
            )
        self.agent = agent
        self.mailboxes = mailboxes
        self._cipher = cipher
        self._identity = identity
        self._verifier = verifier

    def sign(self, message: A2AMessage) -> A2AMessage:
        """The message as it goes out: signed if the agent has an identity."""
        return message if self._identity is None else self._identity.signed(message)

    def seal(self, message: A2AMessage, box: str | None = None) -> Envelope:
        """A message in its envelope, for the given mailbox or that of its recipient."""
        answers = message.message_type in ANSWERS
        return Envelope(
            to=message.to_agent,
            box=box or (answer_box(message.to_agent) if answers else request_box(message.to_agent)),
            body=self._encode(message),
            id=message.message_id,
            context=message.context_id or None,
            priority=message.priority,
        )

    async def open(self, lease: Lease) -> A2AMessage:
        """The message in an envelope that came; AccessError or ValidationError if it must not be processed."""
        message = self.read(lease.body)
        if message.to_agent != self.agent:
            raise SecurityError(f"Message {message.message_id[:100]!r} is for {message.to_agent[:100]!r}.")
        if self._verifier is not None:
            await self._verifier.check(message, message.signature, age=lease.age, again=lease.attempt > 1)
        return message

    async def verify(self, message: A2AMessage) -> None:
        """Check a message that came by another way than a mailbox; Unauthenticated if it must not be processed."""
        if self._verifier is not None:
            await self._verifier.check(message, message.signature)

    async def keep_answer(
        self, answer: A2AMessage, received: tuple[MessageQueue, Lease] | None = None, *, sealed: bool = False
    ) -> None:
        """Keep an answer until it is read, and acknowledge the message that was received, both or neither.

        ``sealed`` says that the answer is itself that message, so that its body can stay as it is.
        """
        body = received[1].body if received is not None and sealed else self._encode(answer)
        # By the id and the agent: one that was not asked cannot answer, whatever it claims to answer.
        question = f"{answer.correlation_id or answer.message_id} {answer.from_agent}"
        await self.mailboxes.keep_answer(self.agent, question, body, received)

    async def wait_for_answer(self, message: A2AMessage, seconds: float) -> A2AMessage | None:
        """The answer of the agent that was asked; None if it does not come within so many seconds."""
        body = await self.mailboxes.read_answer(self.agent, f"{message.message_id} {message.to_agent}", seconds)
        return self.read(body) if body is not None else None

    def read(self, body: bytes) -> A2AMessage:
        """The message in an envelope; not verified, so only for what this agent has sealed or checked itself."""
        if self._cipher is not None:
            return self._cipher.decrypt_message(body)
        try:
            return A2AMessage.model_validate_json(body)
        except PydanticError as error:
            raise ValidationError(f"Not a valid message: {error.error_count()} errors. Is it encrypted?") from None

    def _encode(self, message: A2AMessage) -> bytes:
        return message.model_dump_json().encode() if self._cipher is None else self._cipher.encrypt_message(message)


def traceparent() -> str:
    """The trace context of a message that is sent here: the current span, the current call's trace, or a new trace."""
    if (span := traces.here.get()) is not None:
        return span.header()
    trace = logs.current().trace
    parent = traces.parse(f"00-{trace}-{'1' * 16}-01") if trace else None
    return (parent.child(REAL) if parent is not None else traces.new(REAL)).header()
