"""Cases that broke the chain once: hidden secrets, schemas that cannot be used, rules that only hear of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent3.calls.core import Core
from agent3.calls.order import Folded
from agent3.calls.step import Stage
from agent3.model import (
    LOCAL,
    Agent,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Question,
    Route,
    encode,
)
from agent3.observe.metrics import Metrics
from agent3.settings import Settings
from agent3.storage import open_database

SECRET = "sk-supersecret-12345"


class Target:
    """A connector that does what it is told."""

    def __init__(self, work: Callable[[Call], Outcome]):
        self._work = work
        self.reached: list[str] = []

    async def describe(self, address: str) -> Agent:
        raise NotImplementedError

    async def call(self, call: Call) -> Outcome:
        self.reached.append(call.entry)
        return self._work(call)

    async def aclose(self) -> None:
        pass


async def run(
    target: Target, capability: Capability, given: Any = None, **more: Any
) -> tuple[Outcome, list[Event], list[dict[str, Any]], Core]:
    """One call, what its listener heard, and the rows of the ledger."""
    agent = Agent(id="a", name="a", capabilities=(capability,))
    database = await open_database(":memory:")

    async def lookup(_: str, __: str) -> tuple[Agent, Capability]:
        return agent, capability

    core = Core.build(Settings(), database, {"x": target}, lookup, metrics=Metrics())
    heard: list[Event] = []
    call = Call(id=core.env.id(), principal=LOCAL, agent="a", capability="c", input=given or {}, **more)
    try:
        outcome = await core.runner.start(call, (agent, capability), listener=heard.append)
        if isinstance(outcome, Needs):
            assert outcome.job is not None
            outcome = await core.runner.cancel(LOCAL, outcome.job)
        await core.ledger.flush()
        rows = [
            {"status": row["status"], "message": row["message"]}
            for row in await database.all("SELECT status, message FROM calls")
        ]
    finally:
        await core.aclose()
        await database.aclose()
    return outcome, heard, rows, core


@pytest.mark.parametrize("hidden", ["\u200b", "\u202e", "\x00", "\U000e0041"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_secret_that_cleaning_would_put_together_is_masked(
    hidden: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARD_CASE_KEY", SECRET)

    def echo(call: Call) -> Outcome:
        assert call.secret is not None
        text = hidden.join((call.secret.reveal()[:8], call.secret.reveal()[8:]))
        call.emit(Event("log", text=text, data={"at": text}))
        html = Part(raw=f"<p>{text}</p>".encode(), media_type="text/html")
        return Failed("target_failed", f"bad key {text}") if fails else Done((Part(text=text), html))

    routes = (Route("x", "x://host", credential="env:HARD_CASE_KEY"),)
    capability = Capability(name="c", input_schema={"type": "object"}, routes=routes)
    outcome, heard, rows, _ = asyncio.run(run(Target(echo), capability, routes=routes))
    seen = encode(outcome).decode() + "".join(encode(event).decode() for event in heard) + str(rows)
    assert heard
    assert SECRET not in seen
    for part in outcome.parts if isinstance(outcome, Done) else ():
        assert SECRET.encode() not in (part.raw or b"")


def test_an_output_schema_that_cannot_be_used_spoils_results_and_nothing_else() -> None:
    routes = (Route("x", "x://host"),)
    output = {"type": "object", "properties": {"a": {"pattern": "("}}}
    capability = Capability(name="c", input_schema={"type": "object"}, output_schema=output, routes=routes)
    answers = Target(lambda call: Done((Part(data={"a": "b"}),)))
    outcome, *_ = asyncio.run(run(answers, capability, routes=routes))
    assert isinstance(outcome, Failed)
    assert (outcome.code, answers.reached) == ("malformed_response", ["start"])
    asks = Target(lambda call: Needs((Question("q", "?"),)) if call.entry == "start" else Failed("canceled", "stopped"))
    outcome, *_ = asyncio.run(run(asks, capability, routes=routes))
    assert asks.reached == ["start", "cancel"]
    assert isinstance(outcome, Failed)
    assert outcome.message == "stopped"


@pytest.mark.parametrize("address", ["x://host", "x://another"])
def test_a_call_whose_input_schema_cannot_be_used_is_refused_and_recorded_by_whatever_route(address: str) -> None:
    capability = Capability(name="c", input_schema={"$ref": "http://x/y"}, routes=(Route("x", "x://host"),))
    target = Target(lambda call: Done())
    outcome, _, rows, _ = asyncio.run(run(target, capability, routes=(Route("x", address),)))
    assert isinstance(outcome, Failed)
    assert (outcome.code, target.reached) == ("invalid_input", [])
    assert [row["status"] for row in rows] == ["refused"]


class OnlyHearsOfFailures(Stage):
    def fail(self, call: Call, error: BaseException) -> Outcome:
        return Failed("internal", "caught")


class Raises(Stage):
    def enter(self, call: Call) -> Call:
        raise RuntimeError("on the way in")


async def nothing(_: Call) -> Outcome:
    return Done()


@pytest.mark.parametrize(
    "handler",
    [
        Folded([OnlyHearsOfFailures(), Raises()], nothing),
        Folded([OnlyHearsOfFailures()], Folded([Raises()], nothing)),
    ],
    ids=["folded", "nested"],
)
def test_a_stage_without_an_entrance_hears_of_what_fails_behind_it(handler: Folded) -> None:
    call = Call(id="1", principal=LOCAL, agent="a", capability="c")

    async def story() -> Outcome:
        return await handler(call)

    assert asyncio.run(story()) == Failed("internal", "caught")
