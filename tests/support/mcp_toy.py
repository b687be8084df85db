"""A small tool set for the tests of the MCP door. Run as a script it serves itself over stdio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agent3.errors import CapabilityNotFound, RateLimited, ValidationError
from agent3.model import (
    Answer,
    Artifact,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Working,
)
from agent3.protocols.mcp import Caller, DoorOptions, MCPDoor, Tool

__all__ = ["SECRET", "Toys"]

SECRET = "a word that must stay inside"
SIZES = {"type": "string", "enum": ["small", "large"]}
TOPPINGS = {
    "type": "object",
    "properties": {"cheese": {"type": "boolean"}, "count": {"type": "integer"}},
    "required": ["cheese"],
}
ADDRESS = {"type": "object", "properties": {"street": {"type": "object", "properties": {}}}}
PARTS = (
    Part(text="words"),
    Part(raw=b"png", media_type="image/png"),
    Part(raw=b"wav", media_type="audio/wav"),
    Part(raw=b"zip", media_type="application/zip", name="all of it.zip"),
    Part(url="https://example.com/x", name="x", media_type="text/html"),
    Part(artifact="sha256:abc", name="big", meta={"io.agent3/size": 9}),
)


def tool(name: str, output: dict[str, Any] | None = None, **schema: Any) -> Tool:
    return Tool(
        name=name,
        description=f"The toy {name}",
        input_schema=schema,
        output_schema=output,
        annotations={"readOnlyHint": True, "openWorldHint": False},
        meta={"io.agent3/version": "1"},
    )


TOOLS = [
    tool("who"),
    tool("echo", {"type": "object"}, properties={"text": {"type": "string"}}, required=["text"]),
    tool("numbers", {"type": "array", "items": {"type": "integer"}}),
    tool("region", properties={"region": {"type": "string", "x-mcp-header": "Region"}}),
    *(
        tool(name)
        for name in ("parts", "pizza", "login", "address", "slow", "hang", "seen", "strict", "busy", "broken")
    ),
    *(tool(name) for name in ("partial", "crash", "background", "nested_not_found", "cut")),
]


class Toys:
    """Each method below is a tool; ``noted`` holds what happened, and the tool ``seen`` tells it."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.hanging = asyncio.Event()
        self.cleaned = asyncio.Event()

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        hidden = {"echo"} if principal.id == "stranger" else set()
        return [one for one in reversed(TOOLS) if one.name not in hidden]

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        if all(one.name != name for one in await self.tools(caller.principal)):
            raise CapabilityNotFound(f"There is no tool {name}")
        outcome: Outcome = await getattr(self, name)(arguments, caller)
        return outcome

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        self.noted.append(f"{state} {sorted((key, one.action, one.data) for key, one in answers.items())}")
        if any(one.action != "accept" for one in answers.values()):
            return Failed("declined", "No pizza then")
        if state == "pizza:1":
            return Needs((Question("extras", "Which extras?", TOPPINGS),), state="pizza:2", job="j1", turn=2)
        return Done((Part(text=f"{state} done"), Part(data={key: one.data for key, one in answers.items()})))

    async def who(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        known = {"id": caller.principal.id, "era": caller.era, "can_elicit": caller.can_elicit}
        return Done((Part(data={**known, "traceparent": caller.traceparent, "meta": caller.meta}),))

    async def echo(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done((Part(data={"text": arguments["text"], "odd": float("nan")}),), meta={"io.agent3/cost": 1})

    async def numbers(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done((Part(data=[1, 2, 3]),))

    async def region(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done((Part(text=arguments["region"]),))

    async def parts(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done(PARTS, artifacts=(Artifact("a1", parts=(Part(text="in the artifact"),)),))

    async def pizza(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        size, note = Question("size", "Which size?", SIZES), Question("note", "Anything else?")
        return Needs((size, note), state="pizza:1", job="j1", turn=1)

    async def login(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Needs((Question("auth", "Please log in", url="https://example.com/login"),), job="login-job")

    async def address(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Needs((Question("where", "Where to?", ADDRESS),), state="address")

    async def slow(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        for done in (0, 50, 100):
            caller.listener(Event("progress", done=done, total=100, text=f"at {done}"))
        caller.listener(Event("status", text="almost"))
        caller.listener(Event("artifact", parts=(Part(text="a piece"),)))
        caller.listener(Event("state", text="never shown"))
        caller.listener(Event("log", text="quiet", name="debug"))
        caller.listener(Event("log", text="loud", name="warning"))
        return Done((Part(text="slow but done"),))

    async def hang(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        try:
            self.hanging.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # two awaits: a cleanup that is cut again would not come to its end
            await asyncio.sleep(0.01)
            self.noted.append("cleaned up")
            self.cleaned.set()
        return Done()

    async def seen(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        if arguments.get("until"):
            await asyncio.wait_for({"hanging": self.hanging, "cleaned": self.cleaned}[arguments["until"]].wait(), 60)
        return Done((Part(data={"noted": self.noted}),))

    async def strict(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        faults = [{"path": "/to", "message": "to is missing"}, {"path": "/n", "message": "n must be a number"}]
        raise ValidationError("Missing required parameter: to", errors=faults)

    async def busy(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        raise RateLimited("Too many calls", retry_after=2.5, data={"limit": 3})

    async def broken(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Failed("unavailable", "The oven is cold", retryable=True, retry_after=30, data={"oven": 1})

    async def partial(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Failed("timeout", "It took too long", parts=(Part(text="the first half"),))

    async def crash(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        raise RuntimeError(SECRET)

    async def cut(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        raise asyncio.CancelledError

    async def background(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Working(text="The dough is rising", job="j9", poll=5.0)

    async def nested_not_found(self, arguments: dict[str, Any], caller: Caller) -> Outcome:
        raise CapabilityNotFound("The agent has no such capability", data={"nearest": ["bake"]})


if __name__ == "__main__":
    asyncio.run(MCPDoor(Toys(), DoorOptions(instructions="Play.")).stdio())
