"""A language model's help with sentences that the reader has to ask about.

The model fills the capability's schema as a tool. What it says is a proposal: it must fit the schema, each value must
stand in the message or follow from it, and what it adds counts as guessed. It is asked within a time, so
many times a day, and never about a message that forbids something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Unavailable
from agent3.llm.port import LLM, Message, Reply, System, Tool, User
from agent3.model import Capability
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.schema.compiler import compiled
from agent3.sentences import Ask, Understood
from agent3.sentences.evidence import find_unsaid, words_in
from agent3.sentences.lexicon import fold
from agent3.sentences.slots import form_of

__all__ = ["BoundedModel", "Proposals"]

log = logger("llm")

_SYSTEM = (
    "Call the tool with exactly the parameters that the user's message states. Copy texts as they are "
    "written. Do not invent anything, and leave out what is not stated. If the message does not ask for "
    "what the tool does, or does not state a required parameter, call no tool."
)


_CHOOSE = (
    "Call the one tool that does what the user's message asks for. If there is none, or it is unclear which "
    "one, call none."
)


class Proposals:
    """Asks one model. ``seconds`` bounds a question to it, ``per_day`` how many there are."""

    def __init__(self, llm: LLM, *, seconds: float = 20.0, per_day: int = 1_000, max_tokens: int = 1_000,
                 env: Env = REAL, metrics: Metrics = METRICS):  # fmt: skip
        self._llm = llm
        self._seconds = seconds
        self._per_day = per_day
        self._max_tokens = max_tokens
        self._env = env
        self._count = metrics.sentences
        self._day, self._used = 0, 0

    def take(self) -> bool:
        """Whether the model may be asked once more today."""
        day = int(self._env.now() // 86_400)
        if day != self._day:
            self._day, self._used = day, 0
        if self._used >= self._per_day:
            self._count.inc(("spent",))
            return False
        self._used += 1
        return True

    async def __call__(self, capability: Capability, message: str, asked: Ask) -> Understood | None:
        """What the model makes of a message; None where that does not hold, and where it does not answer in time."""
        if not self.take():
            return None
        tool = Tool(capability.name, capability.description, capability.input_schema)
        now = datetime.fromtimestamp(self._env.now())  # noqa: DTZ006 - the user's own day
        system = System(f"{_SYSTEM} Now is {now:%A %Y-%m-%d %H:%M}.")
        reply = await self._ask([system, User(message)], [tool])
        if reply is None:
            return None
        call = next((call for call in reply.calls if call.name == capability.name and not call.fault), None)
        understood = (
            None if call is None else self._judge(capability, message, {**asked.input, **call.arguments}, asked, now)
        )
        self._count.inc(("dropped" if understood is None else "proposed",))
        return understood

    async def choose(self, offered: Sequence[Capability], message: str) -> Capability | None:
        """Which capability the model takes a message for; None where it takes none, or does not answer in time."""
        if not self.take():
            return None
        tools = [Tool(one.name, f"{one.description} {'; '.join(one.phrases[:3])}", one.input_schema) for one in offered]
        reply = await self._ask([System(_CHOOSE), User(message)], tools)
        named = {call.name for call in reply.calls} if reply is not None else set()
        chosen = [one for one in offered if one.name in named]
        return chosen[0] if len(chosen) == 1 else None

    async def complete(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply | None:
        """What the model answers to other messages, within the same bounds; None where it does not, or is spent."""
        return await self._ask(messages, tools) if self.take() else None

    async def _ask(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply | None:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._llm.complete(messages, tools, max_tokens=self._max_tokens)
        except (Agent3Error, TimeoutError) as error:
            log.warning("the language model did not help with a message: %s", str(error) or "it took too long")
            self._count.inc(("unreachable",))
            return None

    def _judge(
        self, capability: Capability, message: str, given: dict[str, object], asked: Ask, now: datetime
    ) -> Understood | None:
        if find_unsaid(message, given, now):
            return None
        try:
            compiled(capability.input_schema).check(given)
        except Agent3Error:
            return None
        # A word that still has no place may ask for more than the tool does.
        known = words_in(given)
        if not form_of(capability).reading and any(fold(word) not in known for word in asked.left):
            return None
        return Understood(given, (), tuple(name for name, value in given.items() if asked.input.get(name) != value))


class BoundedModel:
    """The model as an ``LLM``, within the time, the length and the questions a day that its proposals have."""

    def __init__(self, proposals: Proposals):
        self._proposals = proposals

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """One reply; Unavailable where there is none. The options are those of the settings."""
        reply = await self._proposals.complete(messages, tools)
        if reply is None:
            raise Unavailable("The language model did not answer, or has reached its daily limit.")
        return reply
