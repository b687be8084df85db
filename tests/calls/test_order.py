"""The chain in its two forms: compiled, as every call takes it, and nested, with nothing left out.

Cases are drawn: what a capability says of itself, how the core is set, what its targets do, what the caller gives. Both
forms must agree on everything that anybody can see: the outcome, what reached the targets, the rows of the ledger, the
counters, the dead letters, the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent3.calls.order import ORDER, Chain
from agent3.calls.step import Aim, Entered, Stage, Step
from agent3.env import SeededEnv
from agent3.errors import AgentNotFound, TargetError, Unavailable
from agent3.model import (
    Answer,
    Artifact,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Handler,
    Hints,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Route,
    Turn,
    Usage,
    Working,
    encode,
)
from agent3.settings import Calls, Limits, Rule, Settings
from tests.support.home import run
from tests.support.rig import DONE, Nested, OneSecret, Script, rig

SECRET = "s3cr3t-pizza-token"
TEXT = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

# What a target may do


def emitting(outcome: Outcome, *events: Event) -> Callable[[Call], Any]:
    async def answer(call: Call) -> Outcome:
        for event in events:
            call.emit(event)
        return outcome

    return answer


def raising(error: Exception) -> Callable[[Call], Any]:
    async def answer(call: Call) -> Outcome:
        raise error

    return answer


def pausing(outcome: Outcome) -> Callable[[Call], Any]:
    async def answer(call: Call) -> Outcome:
        await asyncio.sleep(0)
        return outcome

    return answer


async def asking(call: Call) -> Outcome:
    if call.live.ask is None:
        return Needs((Question("q1", "Which?", {"type": "string"}),), state={"seen": 1})
    answer = await call.live.ask(Question("q1", "Which?", {"type": "string"}))
    return Done((Part(text=f"you said {answer.data}"),))


async def telling_the_secret(call: Call) -> Outcome:
    call.emit(Event("status", text=f"using {SECRET}", data={"key": SECRET}))
    return Done((Part(text=call.secret.reveal() if call.secret is not None else "no secret"),))


ANSWERS: dict[str, Any] = {
    "text": Done((Part(text="fine"),)),
    "data": Done((Part(data={"n": 1}),)),
    "wrong data": Done((Part(data={"n": "x"}),)),
    "nothing": Done(),
    "large": Done((Part(text="x" * 3_000),)),
    "large artifact": Done((Part(text="see"),), (Artifact("a", parts=(Part(raw=b"y" * 3_000),)),)),
    "deceptive": Done((Part(text="a\u202eb"),), meta={"k": "\u200bz"}),
    "billed": Done((Part(text="fine"),), usage=Usage(7, 0.25)),
    "counted": Done((Part(text="fine"),), usage=Usage(7)),
    "mad bill": Done((Part(text="fine"),), usage=Usage(-1, 1e300)),
    "late": pausing(DONE),
    "chunk": emitting(DONE, Event("artifact", artifact="result", parts=(Part(text="half\u202e"),))),
    "chunk, then down": emitting(
        Failed("unavailable", "gone", retryable=True), Event("artifact", artifact="result", parts=(Part(text="half"),))
    ),
    "progress": emitting(DONE, Event("progress", done=1, total=2, text="on\u0007 it")),
    "down": Failed("unavailable", "It is down.", retryable=True),
    "not sent": Failed("unavailable", "No line.", retryable=True, sent=False),
    "busy": Failed("rate_limited", "Later.", retryable=True, retry_after=0.001),
    "refused": Failed("target_refused", "No."),
    "failed": Failed("target_failed", "It broke.\u202e", data={"k": "v"}),
    "our code": Failed("not_found", "There is no such thing."),
    "element": Failed("element_missing", "Not on the page."),
    "raises": raising(RuntimeError("boom")),
    "raises ours": raising(AgentNotFound("gone")),
    "raises down": raising(Unavailable("no line")),
    "raises target": raising(TargetError("bad\u202e")),
    "raises timeout": raising(TimeoutError()),
    "asks": asking,
    "works": Working("ref 1", 3_600.0),
    "secret": telling_the_secret,
}

capabilities = st.fixed_dictionaries(
    {
        "hints": st.builds(Hints, read_only=st.booleans(), idempotent=st.booleans(), replay=st.booleans()),
        "input_schema": st.sampled_from([{}, TEXT, NUMBER]),
        "output_schema": st.sampled_from([None, None, NUMBER]),
        "cache_ttl": st.sampled_from([0.0, 0.0, 60.0]),
        "price": st.sampled_from([Price(), Price(call=0.5, tokens=2.0)]),
        "timeout": st.sampled_from([None, 90.0]),
        "interactive": st.sampled_from([False, False, True]),
        "meta": st.sampled_from([{}, {}, {"reads": "messages"}]),
    }
)
cores = st.builds(
    Settings,
    calls=st.builds(
        Calls,
        timeout=st.just(200.0),
        attempt_timeout=st.just(100.0),
        retries=st.integers(0, 2),
        backoff=st.just(0.0001),
        backoff_max=st.just(0.0002),
        breaker_failures=st.integers(1, 4),
        artifact_bytes=st.sampled_from([1_000, 1_000_000]),
        result_bytes=st.sampled_from([100, 1_000_000]),
        ledger=st.sampled_from(["durable", "batched"]),
        events=st.sampled_from([1, 1_000]),
    ),
    limits=st.sampled_from(
        [Limits(per_minute=0), Limits(per_minute=0.001, burst=2), Limits(per_minute=0, concurrent=1)]
    ),
    rules=st.sampled_from(
        [(), (), (Rule("deny", protocol="a"), Rule("allow")), (Rule("deny", principal="alice"), Rule("allow"))]
    ),
)
calls = st.fixed_dictionaries(
    {
        "input": st.sampled_from(
            [None, {}, {"text": "hi"}, {"text": "too long for the model"}, {"n": 3}, {"n": "x"}, float]
        ),
        "parts": st.sampled_from([(), (Part(text="hi"),), (Part(text='{"n": 3}'),)]),
        "input_mode": st.sampled_from([None, "text/plain", "application/json"]),
        "principal": st.sampled_from(
            [
                Principal("alice", "client"),
                Principal("local", "local"),
                Principal("bob", "client", frozenset({"s"}), "t"),
            ]
        ),
        "key": st.sampled_from([None, None, "k"]),
        "timeout": st.sampled_from([None, 150.0]),
        "retries": st.sampled_from([None, 0, 2]),
        "context": st.sampled_from([None, "c\u0000tx"]),
        "traceparent": st.sampled_from([None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "junk"]),
    }
)
targets = st.lists(st.lists(st.sampled_from(sorted(ANSWERS)), min_size=1, max_size=3), min_size=1, max_size=3)
doors = st.sampled_from(["mcp", "a2a", "rest", "recovery"])


async def seen(
    form: type[Chain],
    capability: dict[str, Any],
    core: Settings,
    scripts: Sequence[Sequence[str]],
    sealed: bool,
    wanted: Sequence[dict[str, Any]],
    door: str,
) -> dict[str, Any]:
    """Everything that can be seen of some calls on a core of its own."""
    told: list[Any] = []
    world = SeededEnv()
    asked = [Script(*(ANSWERS[name] for name in names)) for names in scripts]
    async with rig(*asked, chain=form, settings=core, env=world, vault=OneSecret(SECRET), **capability) as it:
        chosen = it.capability
        if sealed:
            routes = tuple(Route(one.protocol, one.address, one.target, credential="env:T") for one in chosen.routes)
            chosen = Capability(**{**{f: getattr(chosen, f) for f in chosen.__struct_fields__}, "routes": routes})
        target = (it.agent, chosen)
        for number, more in enumerate(wanted):
            heard: list[Event] = []
            call = Call(
                id=f"{number:032x}",
                agent="target",
                capability="do",
                routes=chosen.routes,
                **{**more, "input": more["input"]},
            )
            try:
                outcome: Any = await it.runner.start(call, target, listener=heard.append, door=door)
                if isinstance(outcome, Needs) and outcome.job is not None:
                    job = outcome.job
                    told.append(_plain(outcome))
                    outcome = await it.runner.answer(call.principal, job, {"q1": Answer(data="tall")}, door=door)
            except Exception as error:  # noqa: BLE001 - both forms must raise alike
                outcome = f"{type(error).__name__}: {error}"
            told.append(_plain(outcome))
            told.append([_plain(event) for event in heard])
        reached = [
            [(c.route and c.route.key, c.attempt, c.entry, repr(c.input), bool(c.secret), c.state) for c in one.calls]
            for one in asked
        ]
        # Sorted: a refusal is written at once, and may overtake rows that are written in batches.
        ledger = sorted(({k: v for k, v in row.items() if k not in _TIMES} for row in await it.rows()), key=repr)
        letters = [(row["code"], row["message"], row["attempts"]) for row in await it.rows("dead_letters")]
        page = [
            line
            for line in it.metrics.render()[0].decode().splitlines()
            if line.startswith("agent3_") and "_created" not in line and "_seconds" not in line
        ]
    return {"told": told, "reached": reached, "ledger": ledger, "letters": letters, "page": sorted(page)}


_TIMES = {"id", "at", "seconds", "job", "sequence", "link"}  # the last two depend on which row was written first


def _plain(value: Any) -> Any:
    if isinstance(value, (Done, Failed, Needs, Working, Event)):
        text = encode(value).decode()
        return (type(value).__name__, text if '"job"' not in text and '"artifact"' not in text else _unnamed(value))
    return value


def _unnamed(value: Any) -> str:
    """Without ids that are made anew each time."""
    import re

    return re.sub(r"[0-9a-f]{32}", "ID", encode(value).decode())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(
    capability=capabilities,
    core=cores,
    scripts=targets,
    sealed=st.booleans(),
    wanted=st.lists(calls, min_size=1, max_size=3),
    door=doors,
)
def test_both_forms_show_the_same(
    capability: dict[str, Any],
    core: Settings,
    scripts: list[list[str]],
    sealed: bool,
    wanted: list[dict[str, Any]],
    door: str,
) -> None:
    folded = run(seen(Chain, capability, core, scripts, sealed, wanted, door), 60)
    nested = run(seen(Nested, capability, core, scripts, sealed, wanted, door), 60)
    assert folded == nested


# A rule that is added is in force


class Refuse(Step):
    """One more step."""

    name = "refuse"
    asked = 0

    def enter(self, call: Call) -> Entered:
        type(self).asked += 1
        return Failed("forbidden", "Nobody calls anything today.")


class RefuseAround(Step):
    """The same in the other form."""

    name = "refuse_around"

    def around(self, inner: Handler) -> Handler:
        async def refuse(call: Call) -> Outcome:
            return Failed("forbidden", "Nobody calls anything today.")

        return refuse


class RefuseLate(Step):
    """The same on the way out."""

    name = "refuse_late"

    def leave(self, call: Call, outcome: Outcome) -> Outcome:
        return Failed("forbidden", "Nobody hears anything today.")


@pytest.mark.parametrize("kind", [Refuse, RefuseAround, RefuseLate])
@pytest.mark.parametrize("place", range(len(ORDER) + 1))
def test_a_refusing_step_refuses_at_any_place(place: int, kind: type[Step]) -> None:
    async def story() -> None:
        target = Script()
        order = (*ORDER[:place], kind, *ORDER[place:])
        async with rig(target, order=order) as it:
            for _ in range(2):
                outcome = await it.call()
                assert isinstance(outcome, Failed)
                assert outcome.code == "forbidden"
            assert kind is RefuseLate or not target.calls

    run(story())


def test_what_was_compiled_is_dropped_when_its_agent_changes_or_it_is_told_so() -> None:
    bound: list[Aim] = []

    class Count(Step):
        name = "count"

        def bind(self, aim: Aim) -> Stage:
            bound.append(aim)
            return self

    async def story() -> None:
        async with rig(Script(), order=(*ORDER, Count)) as it:
            for _ in range(3):
                await it.call()
            assert len(bound) == 1
            it.core.chain.drop()
            await it.call()
            assert len(bound) == 2
            await it.call(capability=Capability(name="do", routes=it.capability.routes))
            assert len(bound) == 3
            await it.call(principal=Principal("bob", "client"))
            assert len(bound) == 4

    run(story())


@pytest.mark.parametrize(
    "other",
    [Principal("alice"), Principal("alice", "local", frozenset({"s"})), Principal("alice", "local", tenant="t")],
    ids=["kind", "scopes", "tenant"],
)
def test_what_is_compiled_for_one_caller_does_not_serve_another(other: Principal) -> None:
    spared = Principal("alice", "local")

    class RefuseOthers(Refuse):
        name = "refuse_others"

        def idle(self, aim: Aim) -> bool:
            return aim.principal == spared

    async def story() -> None:
        target = Script()
        async with rig(target, order=(*ORDER, RefuseOthers)) as it:
            assert isinstance(await it.call(principal=spared), Done)
            assert isinstance(await it.call(principal=other), Failed)
            assert len(target.calls) == 1

    run(story())


def test_a_stage_that_was_not_entered_is_not_left() -> None:
    steps: list[str] = []

    def noting(label: str, ends: bool = False) -> type[Step]:
        class Note(Step):
            name = label

            def enter(self, call: Call) -> Entered:
                steps.append(f"enter {label}")
                if ends:
                    raise RuntimeError(label)
                return call

            def leave(self, call: Call, outcome: Outcome) -> Outcome:
                steps.append(f"leave {label}")
                return outcome

            def fail(self, call: Call, error: BaseException) -> BaseException:
                steps.append(f"fail {label}")
                return error

        return Note

    async def story(form: type[Chain]) -> None:
        async with rig(Script(), order=(noting("one"), noting("two", ends=True), noting("three")), chain=form) as it:
            aim = Aim(it.agent, it.capability, Principal("a"), "test", "start")
            with pytest.raises(RuntimeError, match="two"):
                await it.core.chain.compile(aim)(it.a_call(live=Turn(it.agent, it.capability)))

    for form in (Chain, Nested):
        steps.clear()
        run(story(form))
        assert steps == ["enter one", "enter two", "fail one"]


def test_an_exception_held_by_nobody_does_not_hold_the_frames() -> None:
    import gc
    import weakref

    class Big:
        pass

    async def story() -> None:
        held: list[weakref.ref[Big]] = []

        async def raises(call: Call) -> Outcome:
            big = Big()
            held.append(weakref.ref(big))
            raise asyncio.CancelledError

        async with rig(Script(raises)) as it:
            await it.call()
        gc.disable()
        try:
            assert held[0]() is None
        finally:
            gc.enable()

    run(story())


def test_the_example_of_a_case_that_was_wrong_once() -> None:
    """Kept from drawing: routes of a job that are others than the capability's now."""

    async def story(form: type[Chain]) -> Any:
        async with rig(Script(telling_the_secret), chain=form, vault=OneSecret(SECRET)) as it:
            routes = (Route("a", "a.test", "do", credential="env:TOKEN"),)
            outcome = await it.call(routes=routes)
            assert isinstance(outcome, Done)
            return outcome.parts

    assert run(story(Chain)) == run(story(Nested)) == (Part(text="***"),)
