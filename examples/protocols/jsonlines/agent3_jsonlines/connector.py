"""Calls agents that speak JSON lines: their messages in terms of the gateway's model, and back.

Retries, time limits, rules and the ledger are around this and none of its business: it makes one attempt, and says
truthfully how that ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import msgspec

from agent3.errors import (
    CallTimeout,
    Declined,
    Interrupted,
    MalformedResponse,
    SetupError,
    TargetError,
    TargetRefused,
    Unavailable,
)
from agent3.model import (
    Agent,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Question,
    Route,
    agent_id,
    place_of,
)
from agent3.secret import Secret
from agent3.security.outbound import Gate, Policy
from agent3_jsonlines import wire

__all__ = ["JSONLinesConnector"]

_replies: msgspec.json.Decoder[wire.AnyReply] = msgspec.json.Decoder(wire.AnyReply)


class JSONLinesConnector:
    """The connector of the protocol. It keeps nothing between calls, so that calls may come in any number at once."""

    def __init__(self, policy: Policy):
        self._policy = policy

    async def describe(self, address: str, *, route: Route | None = None, secret: Secret | None = None) -> Agent:
        """What the agent at an address says of itself. ``route`` is how its capabilities are to be reached later."""
        hello = wire.Hello(agent=_agent_in(address), key=secret.reveal() if secret else "")
        try:
            async with asyncio.timeout(self._policy.total_timeout), aclosing(self._exchange(address, hello)) as replies:
                card = await anext(replies)
        except TimeoutError:
            raise CallTimeout(f"{place_of(address)} did not answer hello in time.") from None
        if isinstance(card, wire.Error):
            kind = TargetRefused if card.code == "unauthenticated" else TargetError
            raise kind(f"{place_of(address)}: {card.message}")
        if not isinstance(card, wire.Card):
            raise MalformedResponse(f"{place_of(address)} answered hello with another message than a card.")
        if card.agents:
            raise SetupError(
                f"Several agents are at {place_of(address)}. Put one behind it: /{', /'.join(card.agents)}"
            )
        route = route or Route("jsonl", address)
        capabilities = [
            Capability(
                name=capability.name,
                description=capability.description,
                input_schema=capability.input,
                output_schema=capability.output,
                hints=Hints(idempotent=capability.idempotent),
                routes=(msgspec.structs.replace(route, target=capability.name),),
            )
            for capability in card.capabilities
        ]
        return Agent(
            id=agent_id(card.name),
            name=card.name,
            description=card.description,
            version=card.version,
            capabilities=tuple(capabilities),
            source=route.address,
            card=msgspec.to_builtins(card),
        )

    async def call(self, call: Call) -> Outcome:
        """One turn. Cancelling it closes the connection, which cancels the work of the agent."""
        assert call.route is not None
        if call.entry == "cancel":
            # The job waits for an answer: the agent holds no connection for it, and hears nothing of its end.
            return Failed("canceled", "The job was cancelled.")
        if call.entry == "attach":
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        pieces: list[str] = []
        async with aclosing(self._exchange(call.route.address, _to_request(call, call.route))) as replies:
            async for reply in replies:
                match reply:
                    case wire.Status(text=text):
                        call.emit(Event("status", text=text))
                    case wire.Piece(text=text):
                        call.emit(Event("artifact", artifact="result", parts=(Part(text=text),), append=bool(pieces)))
                        pieces.append(text)
                    case wire.Result(value=None):
                        return Done((Part(text="".join(pieces)),))
                    case wire.Result(value=value):
                        return Done((Part(text=value) if isinstance(value, str) else Part(data=value),))
                    case wire.Questions():
                        asked = [Question(one.id, one.text, one.schema) for one in reply.questions]
                        return Needs(tuple(asked), state=reply.state)
                    case wire.Error():
                        # Whether it is really tried again, and how often, is decided by the steps of the call.
                        return Failed(
                            "target_refused" if reply.code == "unauthenticated" else reply.code,
                            reply.message,
                            retryable=reply.retryable,
                            retry_after=reply.retry_after,
                        )
                    case wire.Card():
                        break
        raise MalformedResponse(f"{call.agent} answered a call with a card.")

    async def aclose(self) -> None:
        """Nothing is kept, so there is nothing to close."""

    async def _exchange(self, address: str, request: wire.AnyRequest) -> AsyncGenerator[wire.AnyReply, None]:
        """Send a request; the replies, without end if the agent breaks off: that raises."""
        reader, writer = await self._connect(address)
        try:
            writer.write(wire.encode(request))
            while (reply := await wire.read_message(reader, _replies)) is not None:
                yield reply
            raise Unavailable(f"{place_of(address)} closed the connection in the middle of its answer.")
        except OSError as error:
            raise Unavailable(f"The connection to {place_of(address)} broke: {error.strerror}.") from None
        except ValueError as error:
            raise MalformedResponse(f"{place_of(address)} sent a line that cannot be read: {error}") from None
        finally:
            writer.close()

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(address)
        # An address is here because the operator added it, and so it may be on this machine or in a private network.
        policy = replace(self._policy, allow_hosts=self._policy.allow_hosts | {place.netloc})
        # The name is resolved once, judged, and the connection goes to what was judged.
        found = await Gate(policy).addresses(f"http://{place.netloc}/")
        try:
            async with asyncio.timeout(policy.connect_timeout):
                return await asyncio.open_connection(found[0], place.port, limit=policy.max_bytes)
        except OSError as error:  # TimeoutError is one of them
            unreachable = Unavailable(f"{place_of(address)} cannot be reached: {error.strerror or 'it took too long'}.")
            unreachable.sent = False  # certainly, so that anything may be tried again, idempotent or not
            raise unreachable from None


def _to_request(call: Call, route: Route) -> wire.AnyRequest:
    agent, key = _agent_in(route.address), call.secret.reveal() if call.secret else ""
    if call.entry == "start":
        return wire.Call(capability=route.target or call.capability, input=call.input, agent=agent, key=key)
    answers = {}
    for question in call.questions:
        if (answer := call.answers.get(question.id)) is None:
            continue
        if answer.action != "accept":
            raise Declined(f"The question {question.text!r} was declined.")
        answers[question.id] = answer.data
    return wire.Answer(state=call.state, answers=answers, agent=agent, key=key)


def _agent_in(address: str) -> str:
    """The agent that an address names: ``pizza`` in ``jsonl://host:9000/pizza``."""
    return unquote(urlsplit(address).path.strip("/"))
