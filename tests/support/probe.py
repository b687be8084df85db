"""A step that a test puts anywhere into ``ORDER``, and the target whose runs it counts.

``PROBE`` notes every turn that passes the step and, while it ``refuses``, lets none through. It is one for the process,
because each call core makes steps of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent3 import Context, LocalAgent
from agent3.calls import order
from agent3.calls.outcomes import failed_by
from agent3.calls.step import Entered, Left, Step
from agent3.errors import AccessError, Unavailable
from agent3.model import Answer, Call, Done, Handler, Needs, Outcome, Part, Principal
from agent3.protocols.mcp.door.toolset import Caller, FilledPrompt, Prompt, PromptMessage, Resource, Tool

__all__ = ["AROUND", "ENTER", "PROBE", "WORDS", "Shelf", "Target", "places", "probing"]

WORDS = "Nobody calls anything today."


@dataclass
class Probe:
    """What the step saw since ``clear``: each turn on its way in, and again on its way out."""

    refuses: bool = False
    entered: list[Call] = field(default_factory=list)
    left: list[Call] = field(default_factory=list)

    def clear(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.entered.clear()
        self.left.clear()

    def refusal(self) -> Outcome:
        error = AccessError(WORDS)
        error.sent = False  # the target never saw the call
        return failed_by(error)


PROBE = Probe()


class ENTER(Step):
    """Written with ``enter``, ``leave`` and ``fail``."""

    name = "probe"

    def enter(self, call: Call) -> Entered:
        PROBE.entered.append(call)
        return PROBE.refusal() if PROBE.refuses else call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        PROBE.left.append(call)
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        PROBE.left.append(call)
        return error


class AROUND(Step):
    """Written with ``around``."""

    name = "probe"

    def around(self, inner: Handler) -> Handler:
        async def watched(call: Call) -> Outcome:
            PROBE.entered.append(call)
            if PROBE.refuses:
                return PROBE.refusal()
            try:
                return await inner(call)
            finally:
                PROBE.left.append(call)

        return watched


def places(*, few: bool = False) -> Sequence[int]:
    """The places in ``ORDER`` where a step can stand: all, or the first, a middle and the last one."""
    last = len(order.ORDER)
    return (0, last // 2, last) if few else range(last + 1)


@contextmanager
def probing(place: int, kind: type[Step] = ENTER) -> Iterator[None]:
    """Every call core that is built in this block has the step at this place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "ORDER", (*order.ORDER[:place], kind, *order.ORDER[place:]))
        PROBE.clear()
        yield


class Target:
    """Agents whose functions count how often they were run."""

    def __init__(self) -> None:
        self.runs = 0
        self.down = False
        self.plain = LocalAgent("Target", agent_id="target", description="Says it again")
        self.plain.add(self.say, name="say")
        self.asking = LocalAgent("Asker", agent_id="asker", description="Asks for a size")
        self.asking.add(self.order, name="order")
        self.reading = LocalAgent("Reader", agent_id="reader", description="Reads, and may do so again")
        self.reading.add(self.say, name="read", read_only=True)

    @property
    def agents(self) -> list[LocalAgent]:
        return [self.plain, self.asking, self.reading]

    def say(self, text: str) -> str:
        """Say it again."""
        self.runs += 1
        if self.down:
            raise Unavailable("The target is down.")
        return f"said {text}"

    async def order(self, ctx: Context, text: str = "") -> str:
        """Ask for a size. Only what comes after the answer counts."""
        size = await ctx.ask("Which size?")
        self.runs += 1
        return f"said {size}"


class Shelf:
    """An MCP server with a tool, a resource and a prompt. It counts for the target what it is asked."""

    def __init__(self, target: Target):
        self._target = target

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        return [Tool(name="say")]

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done((Part(text=self._target.say("hi")),))

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        return Done()

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        return [Resource(uri="shelf://tale", name="tale")]

    async def templates(self, principal: Principal) -> Sequence[Any]:
        return []

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        return Done((Part(text=self._target.say("hi"), media_type="text/plain"),))

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        return [Prompt(name="retell")]

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        return FilledPrompt((PromptMessage("assistant", Part(text=self._target.say("hi"))),), "A tale")
