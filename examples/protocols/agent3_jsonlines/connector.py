"""Calls agents that speak JSON lines: their messages in terms of the gateway's model, and back.

It makes one attempt and says truthfully how that ended. Retries, time limits, rules and the ledger are around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from agent3 import errors, model
from agent3.secret import Secret
from agent3.security.outbound import Gate, Policy
from agent3_jsonlines import wire

__all__ = ["JSONLinesConnector"]

_replies: msgspec.json.Decoder[wire.AnyReply] = msgspec.json.Decoder(wire.AnyReply)


class JSONLinesConnector:
    """The connector of the protocol. Each call has a connection of its own, and nothing is kept between calls."""

    def __init__(self, policy: Policy):
        self._policy = policy

    async def describe(
        self, address: str, *, route: model.Route | None = None, secret: Secret | None = None
    ) -> model.Agent:
        """What the agent at an address says of itself. ``route`` is how its capabilities are reached, once stored."""
        place = model.place_of(address)
        hello = wire.Hello(agent=_agent_in(address), key=secret.reveal() if secret else "")
        try:
            async with asyncio.timeout(self._policy.total_timeout), aclosing(self._exchange(address, hello)) as replies:
                card = await anext(replies)
        except TimeoutError:
            raise errors.CallTimeout(f"{place} did not answer in time.") from None
        if isinstance(card, wire.Error):
            kind = errors.TargetRefused if card.code == "unauthenticated" else errors.TargetError
            raise kind(f"{place}: {card.message}")
        if not isinstance(card, wire.Card):
            raise errors.MalformedResponse(f"{place} did not answer with its card.")
        if card.agents:
            names = ", ".join(card.agents)
            raise errors.SetupError(
                f"{place} has several agents: {names}. Add one by its name: {place}/{card.agents[0]}"
            )
        route = route or model.Route("jsonl", address)
        capabilities = [
            model.Capability(
                name=capability.name,
                description=capability.description,
                input_schema=capability.input,
                output_schema=capability.output,
                hints=model.Hints(idempotent=capability.idempotent),
                routes=(msgspec.structs.replace(route, target=capability.name),),
            )
            for capability in card.capabilities
        ]
        return model.Agent(
            id=model.agent_id(card.name),
            name=card.name,
            description=card.description,
            version=card.version,
            capabilities=tuple(capabilities),
            source=route.address,
            card=msgspec.to_builtins(card),
        )

    async def call(self, call: model.Call) -> model.Outcome:
        """One turn. Cancelling it closes the connection, which cancels the work of the agent."""
        route = call.route
        assert route is not None
        if call.entry == "cancel":  # of a job that waits for an answer: the agent has no connection for it
            return model.Failed("canceled", "The job was cancelled.")
        if call.entry == "attach":  # only after an outcome Working, which this protocol does not have
            raise errors.Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        pieces: list[str] = []
        async with aclosing(self._exchange(route.address, _to_request(call, route))) as replies:
            async for reply in replies:
                match reply:
                    case wire.Status(text=text):
                        call.emit(model.Event("status", text=text))
                    case wire.Piece(text=text):
                        parts = (model.Part(text=text),)
                        call.emit(model.Event("artifact", artifact="result", parts=parts, append=bool(pieces)))
                        pieces.append(text)
                    case _:
                        return _to_outcome(reply, pieces)
        raise AssertionError("an exchange ends with its last line, or raises")

    async def aclose(self) -> None:
        """Nothing is kept, so there is nothing to close."""

    async def _exchange(self, address: str, request: wire.AnyRequest) -> AsyncGenerator[wire.AnyReply, None]:
        """Send a request and give its replies. Raises when they stop before the reader has left."""
        place = model.place_of(address)
        reader, writer = await self._connect(address)
        try:
            writer.write(wire.encode(request))
            while (reply := await wire.read_message(reader, _replies)) is not None:
                yield reply
            raise errors.Unavailable(f"{place} closed the connection before its last line.")
        except OSError as error:
            raise errors.Unavailable(f"The connection to {place} broke: {error}.") from None
        except ValueError as error:
            raise errors.MalformedResponse(f"{place} sent a line that cannot be read: {error}.") from None
        finally:
            writer.close()

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(address)
        # The operator has added this address, so it may be on this machine or in a private network.
        policy = replace(self._policy, allow_hosts=self._policy.allow_hosts | {place.netloc})
        # The name is resolved once and judged, and the connection goes to what was judged.
        found = await Gate(policy).addresses(f"http://{place.netloc}/")
        try:
            async with asyncio.timeout(policy.connect_timeout):
                return await asyncio.open_connection(found[0], place.port, limit=policy.max_bytes)
        except OSError as error:  # TimeoutError is one
            why = error.strerror or "it took too long"
            unavailable = errors.Unavailable(f"{model.place_of(address)} cannot be reached: {why}.")
            unavailable.sent = False  # so that it may be tried again even where twice is not as good as once
            raise unavailable from None


def _to_request(call: model.Call, route: model.Route) -> wire.AnyRequest:
    agent, key = _agent_in(route.address), call.secret.reveal() if call.secret else ""
    if call.entry == "start":
        return wire.Call(capability=route.target or call.capability, input=call.input, agent=agent, key=key)
    answers = {}
    for question in call.questions:
        answer = call.answers[question.id]
        if answer.action != "accept":
            raise errors.Declined(f"The question {question.text!r} was declined.")
        answers[question.id] = answer.data
    return wire.Answer(state=call.state, answers=answers, agent=agent, key=key)


def _to_outcome(reply: wire.AnyReply, pieces: list[str]) -> model.Outcome:
    match reply:
        case wire.Result(value=None):
            return model.Done((model.Part(text="".join(pieces)),))
        case wire.Result(value=str(text)):
            return model.Done((model.Part(text=text),))
        case wire.Result(value=value):
            return model.Done((model.Part(data=value),))
        case wire.Questions(state=state, questions=asked):
            questions = [model.Question(question.id, question.text, question.schema) for question in asked]
            return model.Needs(tuple(questions), state=state)
        case wire.Error(code=code, message=message):
            # The steps of the call decide whether what is retryable is really tried again, and how often.
            code = "target_refused" if code == "unauthenticated" else code
            return model.Failed(code, message, retryable=reply.retryable, retry_after=reply.retry_after)
        case _:
            raise errors.MalformedResponse(f"A call cannot end with {type(reply).__name__}.")


def _agent_in(address: str) -> str:
    """The agent that an address names: ``pizza`` in ``jsonl://host:9000/pizza``."""
    return urlsplit(address).path.strip("/")
