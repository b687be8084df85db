"""Python functions as agents: every form that an author may write, over every kind of turn."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from agent3 import testing
from agent3.errors import AgentNotFound, Canceled, Declined, SetupError, Unavailable
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Question, Turn, Working, value_of
from agent3.protocols.functions import LocalAgent, LocalConnector, functions
from agent3.protocols.functions.functions import Context, SyncContext
from agent3.protocols.functions.threads import Threads
from tests.support.clock import advance_loop
from tests.support.home import CLIENT, home, job_of, run, until


class Size(enum.Enum):
    S = "small"
    L = "large"


class Place(pydantic.BaseModel):
    city: str
    zip: int = 0


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Pair(msgspec.Struct):
    left: int
    right: str


def offering(fn: Callable[..., Any], **options: Any) -> LocalAgent:
    agent = LocalAgent("Some Agent")
    agent.add(fn, name="do", **options)
    return agent


def called(fn: Callable[..., Any], given: Any = None, *, answers: Any = None, **options: Any) -> Outcome:
    return run(testing.call(offering(fn, **options), "do", given or {}, answers=answers))


def value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Done), outcome
    return value_of(outcome.parts)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_name_that_gives_no_id_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="needs a name"):
        LocalAgent(name)


# Forms


def plain(text: str) -> str:
    return text.upper()


async def coroutine(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


def generator(text: str) -> Iterator[str]:
    for letter in text:
        yield letter.upper()


async def async_generator(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield letter.upper()


class Callable_:
    async def __call__(self, text: str) -> str:
        return text.upper()


@functools.wraps(coroutine)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return coroutine(*args, **kwargs)


FORMS = [plain, coroutine, generator, async_generator, Callable_(), wrapped, functools.partial(coroutine)]


@pytest.mark.parametrize("fn", FORMS, ids=lambda fn: getattr(fn, "__name__", type(fn).__name__))
def test_every_form_answers(fn: Callable[..., Any]) -> None:
    assert value(called(fn, {"text": "abc"})) == "ABC"


def test_an_inline_function_runs_without_a_thread() -> None:
    assert value(called(lambda: threading.current_thread().name, inline=True)) == threading.main_thread().name
    assert value(called(lambda: threading.current_thread().name)).startswith("agent3-function")


@pytest.mark.parametrize("fn", [coroutine, generator, async_generator, lambda ctx: 1])
def test_only_a_plain_function_without_context_can_be_inline(fn: Callable[..., Any]) -> None:
    with pytest.raises(SetupError, match="inline"):
        offering(fn, inline=True)


def test_generators_stream_their_pieces_and_the_first_begins_anew() -> None:
    async def story() -> None:
        for fn in (generator, async_generator):
            async with home(offering(fn)) as here:
                assert value(await here.call("do", {"text": "abc"})) == "ABC"
                pieces = [(event.parts[0].text, event.append) for event in here.events]
                assert pieces == [("A", False), ("B", True), ("C", True)]

    run(story())


def test_a_generators_return_value_comes_after_its_pieces() -> None:
    def fn() -> Generator[Any, None, str]:
        yield "a"
        yield {"b": 1}
        return "end"

    outcome = called(fn)
    assert isinstance(outcome, Done)
    assert outcome.parts == (Part(text="a"), Part(data={"b": 1}), Part(text="end"))


# Values


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (None, ()),
        ("text", (Part(text="text"),)),
        (7, (Part(data=7),)),
        (2**70, (Part(data=2**70),)),
        (False, (Part(data=False),)),
        ({"a": None, "b": [1.5]}, (Part(data={"a": None, "b": [1.5]}),)),
        (b"\x00", (Part(raw=b"\x00", media_type="application/octet-stream"),)),
        (b"GIF89a", (Part(raw=b"GIF89a", media_type="image/gif"),)),
        (Part(url="https://example.com"), (Part(url="https://example.com"),)),
        ([Part(text="a"), Part(data=1)], (Part(text="a"), Part(data=1))),
        ([], (Part(data=[]),)),
        ({"a": (1, 2), 3: {4}}, (Part(data={"a": [1, 2], "3": [4]}),)),
        (Point(1, 2), (Part(data={"x": 1, "y": 2}),)),
        (Pair(1, "b"), (Part(data={"left": 1, "right": "b"}),)),
        (Place(city="Rome"), (Part(data={"city": "Rome", "zip": 0}),)),
        ([Place(city="Rome")], (Part(data=[{"city": "Rome", "zip": 0}]),)),
        (datetime.date(2026, 1, 2), (Part(data="2026-01-02"),)),
        (Size.L, (Part(data="large"),)),
        (Done((Part(text="by hand"),)), (Part(text="by hand"),)),
    ],
)
def test_what_is_returned_becomes_parts(given: Any, parts: tuple[Part, ...]) -> None:
    outcome = called(lambda: given)
    assert isinstance(outcome, Done), outcome
    assert outcome.parts == parts


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "bad",
    [
        *(object(), {"a": object()}, _endless(), Done((Part(data=object()),)), Needs((), state=object())),
        *(threading.Lock(), float("nan"), {"a": [None, float("-inf")]}, Point(1, float("inf"))),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_json_is_a_clear_failure(bad: Any) -> None:
    outcome = called(lambda: bad)
    assert isinstance(outcome, Failed)
    assert outcome.code == "target_failed"
    assert "not JSON" in outcome.message


def test_rich_arguments_arrive_as_what_they_are() -> None:
    seen: list[Any] = []

    async def fn(place: Place, size: Size, day: datetime.date, points: list[Point], pair: Pair, more: int = 3) -> str:
        seen.extend([place, size, day, points, pair, more])
        return "ok"

    given = {
        "place": {"city": "Rome"},
        "size": "large",
        "day": "2026-01-02",
        "points": [{"x": 1, "y": 2}],
        "pair": {"left": 1, "right": "b"},
    }
    assert value(called(fn, given)) == "ok"
    assert seen == [Place(city="Rome"), Size.L, datetime.date(2026, 1, 2), [Point(1, 2)], Pair(1, "b"), 3]
    wrong = called(fn, {**given, "day": "2026-02-31"})
    assert isinstance(wrong, Failed)
    assert wrong.code == "invalid_input"


def test_a_whole_number_written_with_a_point_arrives_as_an_int() -> None:
    seen: list[Any] = []

    async def fn(a: int, b: int | None, c: list[int], d: dict[str, int], e: float, f: int | float, **g: Any) -> str:
        seen.extend([a, b, c, d, e, f, g])
        return "ok"

    given = {"a": 2.0, "b": 3.0, "c": [4.0, 5], "d": {"x": 6.0}, "e": 7.0, "f": 8.0, "g": 9.0}
    assert value(called(fn, given)) == "ok"
    assert repr(seen) == "[2, 3, [4, 5], {'x': 6}, 7.0, 8.0, {'g': 9.0}]"
    for wrong in ({"a": 2.5}, {"c": [4.5]}, {"a": True}):
        refused = called(fn, given | wrong)
        assert isinstance(refused, Failed), wrong
        assert refused.code == "invalid_input"


def test_the_context_may_stand_anywhere() -> None:
    async def fn(text: str, ctx: Context) -> str:
        return f"{text} {ctx.principal.id}"

    def other(text: str, ctx: SyncContext) -> str:
        return f"{text} {ctx.principal.id}"

    assert value(called(fn, {"text": "a"})) == value(called(other, {"text": "a"})) == "a local"


def test_the_context_knows_its_call() -> None:
    def fn(ctx: SyncContext, message: str) -> list[str]:
        return [ctx.call_id, ctx.job_id, ctx.message, message]

    call_id, job_id, message, given = value(run(testing.call(offering(fn), "do", message="hello")))
    assert call_id == job_id
    assert message == given == "hello"


# Failures


@pytest.mark.parametrize("is_async", [True, False])
def test_exceptions_become_failures_with_their_words(is_async: bool) -> None:
    def fail(kind: type[Exception]) -> Callable[[], Any]:
        async def later() -> None:
            raise kind("words")

        def now() -> None:
            raise kind("words")

        return later if is_async else now

    cases = [(ValueError, "target_failed"), (TimeoutError, "timeout"), (Unavailable, "unavailable")]
    for kind, code in cases:
        outcome = called(fail(kind))
        assert isinstance(outcome, Failed)
        assert outcome.code == code
        assert "words" in outcome.message
        assert "within" not in outcome.message, "its own TimeoutError is not our timeout"


def test_a_function_whose_own_work_was_cancelled_has_failed() -> None:
    async def fn() -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    async def asking(ctx: Context) -> None:
        await fn()

    for one in (fn, asking):
        outcome = called(one)
        assert isinstance(outcome, Failed)
        assert outcome.code == "target_failed"
        assert "cancelled" in outcome.message


def test_outcomes_may_be_returned_by_hand() -> None:
    agent = LocalAgent("a")

    @agent.capability
    async def step(ctx: Context) -> Outcome:
        call = ctx._call
        if call.entry == "start":
            return Needs((Question("where", "Where?", {"type": "string"}),), state={"seen": 1})
        return Done((Part(data=[call.state, call.answers["where"].data]),))

    agent.add(step, name="do", replay=True)
    outcome = run(testing.restarting(agent, "do", {}, answers={"where": "Rome"}))
    assert value(outcome) == [{"seen": 1}, "Rome"]
    failed = called(lambda: Failed("own_code", "by hand"))
    assert isinstance(failed, Failed)
    assert failed.code == "own_code"


def test_working_by_hand_is_entered_again() -> None:
    agent, entries = LocalAgent("a"), []

    @agent.capability
    async def do(ctx: Context) -> Outcome:
        entries.append(ctx._call.entry)
        return Working("ref", 0.0) if len(entries) < 3 else Done((Part(text="done"),))

    async def story() -> None:
        async with home(agent) as here:
            told = await here.call("do", {})
            assert value(await here.runner.wait(CLIENT, job_of(told), 60)) == "done"
            assert entries == ["start", "attach", "attach"]

    run(story())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
@pytest.mark.parametrize("form", ["plain", "inline", "generator", "async", "async generator", "asking"])
def test_a_function_that_raises_what_would_end_the_loop_has_failed_and_is_recorded(
    form: str, error: type[BaseException]
) -> None:
    agent = LocalAgent("leaver")

    def plain() -> None:
        raise error("words")

    def generator() -> Iterator[str]:
        yield "first"
        raise error("words")

    async def later() -> None:
        await asyncio.sleep(0)
        raise error("words")

    async def later_generator() -> AsyncIterator[str]:
        yield "first"
        raise error("words")

    async def asking(ctx: Context) -> None:
        await ctx.ask("Sure?")
        raise error("words")

    forms: dict[str, Callable[..., Any]] = {
        "plain": plain, "inline": plain, "generator": generator,
        "async": later, "async generator": later_generator, "asking": asking,
    }  # fmt: skip
    agent.add(forms[form], name="do", inline=form == "inline")

    async def story() -> None:
        async with home(agent) as house:
            outcome = await house.call("do")
            if isinstance(outcome, Needs):
                outcome = await house.answer(outcome, q1="yes")
            assert isinstance(outcome, Failed)
            assert outcome.code == "target_failed"
            # Python itself turns a StopIteration out of a generator or a coroutine into a RuntimeError.
            assert f"raised {error.__name__}" in outcome.message
            assert [row["status"] for row in await house.rows()].count("failed") == 1

    run(story())


def test_a_function_that_is_thrown_away_in_the_middle_has_not_failed() -> None:
    agent, left = LocalAgent("waiter"), []

    @agent.capability
    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.append("left")

    async def story() -> None:
        call = Call(id="c1", principal=CLIENT, agent=agent.id, capability="wait", input={})
        coro = agent.functions["wait"].run(call, Threads(1, 1))
        coro.send(None)
        coro.close()  # raises RuntimeError where a coroutine goes on after that
        assert left == ["left"]

    run(story())


# Questions

KINDS: list[tuple[Any, Any, Any, Any]] = [
    (str, "a", "a", 1),
    (int, 3, 3, "3"),
    (float, 1.5, 1.5, "x"),
    (bool, True, True, "yes"),
    (Literal["EUR", "JPY"], "JPY", "JPY", "USD"),
    (Size, "large", Size.L, "huge"),
    (Place, {"city": "Rome", "zip": 5}, Place(city="Rome", zip=5), {"zip": 5}),
    (list[int], [1, 2], [1, 2], ["a"]),
    ({"type": "string", "maxLength": 2}, "ab", "ab", "abc"),
    (datetime.date, "2026-02-28", datetime.date(2026, 2, 28), "31/02/2026"),
]


@pytest.mark.parametrize(("kind", "said", "got", "bad"), KINDS, ids=lambda one: str(one)[:20])
@pytest.mark.parametrize("is_async", [True, False])
def test_answers_arrive_in_the_type_that_was_asked_for(
    kind: Any, said: Any, got: Any, bad: Any, is_async: bool
) -> None:
    seen: list[Any] = []

    async def later(ctx: Context) -> None:
        seen.append(await ctx.ask("Which?", kind))

    def now(ctx: SyncContext) -> None:
        seen.append(ctx.ask("Which?", kind))

    fn = later if is_async else now
    assert isinstance(called(fn, answers={"Which?": said}), Done)
    assert seen == [got]
    again = called(fn, answers={"q1": bad})
    assert isinstance(again, Needs), "a bad answer is asked for again"
    assert "invalid: " in again.questions[0].text
    assert seen == [got]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_answer_of_no_value_of_its_type_is_asked_for_again_and_the_job_goes_on(is_async: bool) -> None:
    agent = LocalAgent("booker")

    async def later(ctx: Context) -> str:
        many = await ctx.ask("How many?", int)
        return f"{many} at {await ctx.ask('Date?', datetime.date)}"

    def now(ctx: SyncContext) -> str:
        many = ctx.ask("How many?", int)
        return f"{many} at {ctx.ask('Date?', datetime.date)}"

    agent.add(later if is_async else now, name="do")

    async def story() -> None:
        async with home(agent) as house:
            outcome = await house.call("do")
            outcome = await house.answer(outcome, q1=3)
            for _ in range(2):
                outcome = await house.answer(outcome, q2="2026-02-31")
                assert isinstance(outcome, Needs)
                assert [question.id for question in outcome.questions] == ["q2"]
                assert outcome.questions[0].text.startswith("Date? (invalid: ")
            assert value(await house.answer(outcome, q2="2026-03-01")) == "3 at 2026-03-01"

    run(story())


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_no_is_raised_where_it_was_asked(action: Literal["decline", "cancel"], is_async: bool) -> None:
    caught: list[Exception] = []

    async def later(ctx: Context) -> str:
        try:
            return str(await ctx.ask("Sure?"))
        except (Declined, Canceled) as no:
            caught.append(no)
            raise

    def now(ctx: SyncContext) -> str:
        try:
            return str(ctx.ask("Sure?"))
        except (Declined, Canceled) as no:
            caught.append(no)
            raise

    outcome = called(later if is_async else now, answers={"q1": Answer(action)})
    assert isinstance(outcome, Failed)
    assert outcome.code == ("declined" if action == "decline" else "canceled")
    assert len(caught) == 1


def test_a_question_with_an_address_asks_for_authorization() -> None:
    async def fn(ctx: Context) -> str:
        await ctx.ask("Please sign in.", url="https://example.com/login")
        return "in"

    asked = called(fn)
    assert isinstance(asked, Needs)
    assert (asked.questions[0].url, asked.questions[0].schema) == ("https://example.com/login", None)
    assert value(called(fn, answers={"q1": None})) == "in"


def test_an_async_generator_may_ask_too() -> None:
    async def fn(ctx: Context) -> AsyncIterator[str]:
        yield "before "
        yield str(await ctx.ask("Which?"))

    assert value(called(fn, answers={"q1": "after"})) == "before after"


def test_a_generator_asks_by_yielding_and_sends_no_piece_twice() -> None:
    agent, closed = LocalAgent("a"), []

    @agent.capability
    def do(ctx: SyncContext) -> Iterator[Any]:
        try:
            yield "one "
            size = yield Question("any", "Size?", {"enum": ["s", "l"]})
            yield f"{size} "
            yield f"{ctx.ask('Count?', int)}"
        finally:
            closed.append(True)

    async def story() -> None:
        async with home(agent) as here:
            first = await here.call("do", {})
            second = await here.answer(first, q1="l")
            assert value(await here.answer(second, q2=3)) == "one l 3"
            assert [event.parts[0].text for event in here.events] == ["one ", "l ", "3"]
            assert [event.append for event in here.events] == [False, True, True]
            assert len(closed) == 3, "each run of the generator was closed"

    run(story())


def test_a_plain_function_sends_no_piece_twice() -> None:
    agent = LocalAgent("a")

    @agent.capability
    def do(ctx: SyncContext) -> str:
        ctx.send("one")
        size = ctx.ask("Size?")
        ctx.send("two")
        return f"{size} {ctx.ask('Count?')}"

    async def story() -> None:
        async with home(agent) as here:
            first = await here.call("do", {})
            assert value(await here.answer(await here.answer(first, q1="l"), q2="3")) == "l 3"
            assert [event.parts[0].text for event in here.events] == ["one", "two"]

    run(story())


def test_no_except_of_an_author_swallows_a_question() -> None:
    def fn(ctx: SyncContext) -> str:
        try:
            return str(ctx.ask("Which?"))
        except Exception:  # noqa: BLE001 - as authors do
            return "swallowed"

    assert value(called(fn, answers={"q1": "a"})) == "a"


# Once, over a restart at every turn


@pytest.mark.parametrize("is_async", [True, False])
def test_once_runs_once_over_a_restart_at_every_turn(is_async: bool) -> None:
    done: list[str] = []
    runs: list[int] = []

    def reserve(what: str) -> list[str]:
        done.append(what)
        return [what]

    async def reserve_later(what: str) -> list[str]:
        return reserve(what)

    async def later(ctx: Context) -> list[Any]:
        runs.append(1)
        flight = await ctx.once("flight", lambda: reserve_later("flight"))
        seat = await ctx.ask("Seat?")
        room = await ctx.once("room", lambda: reserve("room"))
        return [flight, seat, room, await ctx.ask("Meal?")]

    def now(ctx: SyncContext) -> list[Any]:
        runs.append(1)
        flight = ctx.once("flight", lambda: reserve("flight"))
        seat = ctx.ask("Seat?")
        room = ctx.once("room", lambda: reserve("room"))
        return [flight, seat, room, ctx.ask("Meal?")]

    agent = offering(later, replay=True) if is_async else offering(now)
    outcome = run(testing.restarting(agent, "do", {}, answers={"Seat?": "12", "Meal?": "none"}))
    assert value(outcome) == [["flight"], "12", ["room"], "none"]
    assert done == ["flight", "room"]
    assert len(runs) == 3


def test_an_async_function_that_may_not_be_replayed_does_not_survive_a_restart() -> None:
    async def fn(ctx: Context) -> str:
        return str(await ctx.ask("Which?"))

    assert value(run(testing.call(offering(fn), "do", {}, answers={"q1": "a"}))) == "a"
    outcome = run(testing.restarting(offering(fn), "do", {}, answers={"q1": "a"}))
    assert isinstance(outcome, Failed)
    assert outcome.code == "interrupted"


def test_once_runs_once_for_all_who_ask_side_by_side() -> None:
    ran: list[str] = []

    async def pay() -> str:
        ran.append("paid")
        await asyncio.sleep(0.01)
        return "receipt"

    async def fn(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(*(ctx.once("pay", pay) for _ in range(5))))

    assert value(called(fn)) == ["receipt"] * 5
    assert ran == ["paid"]


def test_once_runs_once_for_all_threads_that_ask_side_by_side() -> None:
    ran: list[str] = []
    together = threading.Barrier(5, timeout=60)

    def pay() -> str:
        ran.append("paid")
        time.sleep(0.05)
        return "receipt"

    def fn(ctx: SyncContext) -> list[str]:
        def one(_: int) -> str:
            together.wait()
            return ctx.once("pay", pay)

        with ThreadPoolExecutor(5) as threads:
            return list(threads.map(one, range(5)))

    assert value(called(fn)) == ["receipt"] * 5
    assert ran == ["paid"]
    assert functions._turnstiles == {}


def test_once_is_tried_by_the_next_who_waits_when_it_failed() -> None:
    ran: list[str] = []

    async def pay() -> str:
        ran.append("tried")
        await asyncio.sleep(0.01)
        if len(ran) == 1:
            raise Unavailable("the bank is closed")
        return "receipt"

    async def fn(ctx: Context) -> list[str]:
        both = await asyncio.gather(ctx.once("pay", pay), ctx.once("pay", pay), return_exceptions=True)
        return [str(one) for one in both]

    assert value(called(fn)) == ["the bank is closed", "receipt"]
    assert ran == ["tried", "tried"]


def test_once_in_a_thread_whose_attempt_is_over_is_not_begun_again_by_the_next_attempt() -> None:
    ran: list[str] = []
    attempts: list[int] = []
    again = threading.Event()

    def pay() -> str:
        ran.append("paid")
        assert again.wait(60)
        return "receipt"

    def fn(ctx: SyncContext) -> str:
        attempts.append(len(attempts))
        if len(attempts) == 2:
            again.set()
        return ctx.once("pay", pay)

    async def story() -> None:
        async with home(offering(fn, idempotent=True, timeout=30.0)) as here:
            calling = asyncio.create_task(here.call("do", {}, retries=3))
            await until(lambda: ran == ["paid"])
            advance_loop(30.0)
            assert value(await calling) == "receipt"
            assert (attempts, ran) == ([0, 1], ["paid"])

    run(story())


@pytest.mark.parametrize("is_async", [True, False])
def test_an_endless_generator_is_stopped_at_the_limit_and_says_so(is_async: bool) -> None:
    closed = threading.Event()

    async def later() -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 1_000_000
        finally:
            closed.set()

    def now() -> Iterator[str]:
        try:
            while True:
                yield "x" * 1_000_000
        finally:
            closed.set()

    outcome = called(later if is_async else now)
    assert isinstance(outcome, Failed)
    assert outcome.code == "too_large"
    assert "more than 16777216 bytes" in outcome.message
    assert closed.is_set()


def test_many_tiny_pieces_weigh_as_well() -> None:
    async def fn() -> AsyncIterator[str]:
        while True:
            yield ""

    outcome = called(fn)
    assert isinstance(outcome, Failed)
    assert outcome.code == "too_large"


@pytest.mark.parametrize("is_async", [True, False])
def test_once_takes_only_json(is_async: bool) -> None:
    async def later(ctx: Context) -> None:
        await ctx.once("bad", object)

    def now(ctx: SyncContext) -> None:
        ctx.once("bad", object)

    outcome = called(later if is_async else now)
    assert isinstance(outcome, Failed)
    assert "ctx.once('bad')" in outcome.message


# Events and cancellation


@pytest.mark.parametrize("is_async", [True, False])
def test_progress_status_and_pieces_arrive_in_order(is_async: bool) -> None:
    async def later(ctx: Context) -> str:
        ctx.status("on it")
        ctx.progress(1, 2, "half")
        ctx.send({"a": 1})
        return "end"

    def now(ctx: SyncContext) -> str:
        ctx.status("on it")
        ctx.progress(1, 2, "half")
        ctx.send({"a": 1})
        return "end"

    async def story() -> None:
        async with home(offering(later if is_async else now)) as here:
            assert value(await here.call("do", {})) == "end"
            assert here.events == [
                Event("status", text="on it"),
                Event("progress", done=1, total=2, text="half"),
                Event("artifact", artifact="result", parts=(Part(data={"a": 1}),)),
            ]

    run(story())


def test_a_thread_whose_caller_is_gone_learns_it_at_its_next_word() -> None:
    entered, go, ended = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def fn(ctx: SyncContext) -> None:
        entered.set()
        go.wait(60)
        try:
            ctx.progress(1)
        except BaseException as wrong:
            raised.append(wrong)
            raise
        finally:
            ended.set()

    async def story() -> None:
        async with home(offering(fn)) as here:
            calling = asyncio.create_task(here.call("do", {}))
            await until(entered.is_set)
            calling.cancel()
            await asyncio.wait([calling])
            go.set()
            await until(ended.is_set)
            assert [type(one) for one in raised] == [Canceled]
            assert here.events == []
            assert [row["status"] for row in await here.rows()] == ["canceled"]

    run(story())


def test_plain_functions_run_side_by_side() -> None:
    barrier = threading.Barrier(4, timeout=60)

    def fn() -> int:
        return barrier.wait()

    async def story() -> None:
        async with home(offering(fn)) as here:
            outcomes = await asyncio.gather(*(here.call("do", {}) for _ in range(4)))
            assert sorted(value(one) for one in outcomes) == [0, 1, 2, 3]

    run(story())


def test_context_variables_reach_the_thread() -> None:
    from agent3.observe import logs

    def fn() -> str | None:
        return logs.current().call

    assert value(called(fn)) is not None


# Agents and their connector


def test_an_agent_describes_itself_by_its_functions() -> None:
    agent = LocalAgent("Pizza Place", description="Takes orders", tags=("food",))

    @agent.capability(name="order", read_only=True, timeout=3.0, cache_ttl=5.0, phrases=("I am hungry",))
    async def place_order(ctx: Context, size: Literal["s", "l"], count: int = 1) -> str:
        """Order a pizza.

        Args:
            size: How large it shall be.
        """
        return size * count

    described = run(_described(agent))
    (capability,) = described.capabilities
    assert (described.id, described.name, described.tags) == ("pizza-place", "Pizza Place", ("food",))
    assert (capability.name, capability.description) == ("order", "Order a pizza.")
    assert capability.input_schema["required"] == ["size"]
    assert capability.input_schema["properties"]["size"]["description"] == "How large it shall be."
    assert capability.hints.read_only
    assert capability.interactive
    assert agent.remove("order")
    assert not agent.remove("order")


async def _described(agent: LocalAgent) -> Any:
    connector = LocalConnector()
    connector.add(agent)
    return await connector.describe(agent.id)


def test_an_unknown_agent_is_named() -> None:
    with pytest.raises(AgentNotFound, match="'nobody' is not in this process"):
        run(LocalConnector().describe("nobody"))


def test_a_closed_connector_can_be_used_again() -> None:
    async def story() -> None:
        agent = offering(plain)
        for _ in range(2):
            async with home(agent) as here:
                assert value(await here.call("do", {"text": "a"})) == "A"
        threads = Threads(2, 1)
        for _ in range(2):
            assert await threads.run("a", lambda: 1) == 1
            threads.close()

    run(story())


def test_hung_functions_of_one_agent_leave_threads_for_the_others() -> None:
    go = threading.Event()
    begun: list[int] = []
    slow, other = LocalAgent("slow"), LocalAgent("other")

    def stuck() -> None:
        begun.append(1)
        go.wait(60)

    slow.add(stuck)
    other.add(plain)
    connector = LocalConnector(workers=8)
    connector.add(slow)
    connector.add(other)

    async def turn(agent: LocalAgent, name: str, given: dict[str, Any]) -> Outcome:
        capability = agent.functions[name].capability
        live = Turn(agent.agent, capability)
        call = Call(id="c", principal=CLIENT, agent=agent.id, capability=name, input=given, live=live)
        return await connector.call(msgspec.structs.replace(call, route=capability.routes[0]))

    async def story() -> None:
        hung = [asyncio.create_task(turn(slow, "stuck", {})) for _ in range(10)]
        await until(lambda: len(begun) == 2)
        for task in hung:
            task.cancel()
        await asyncio.wait(hung)
        with pytest.raises(Unavailable, match="All 2 threads that 'slow' may use") as refusal:
            await turn(slow, "stuck", {})
        assert refusal.value.sent is False
        assert value(await asyncio.wait_for(turn(other, "plain", {"text": "a"}), 60)) == "A"
        go.set()
        async with asyncio.timeout(60):
            while connector._threads._rooms:
                await asyncio.sleep(0.01)
        assert await turn(slow, "stuck", {}) == Done(()), "they came back, so it can be called again"
        await connector.aclose()

    try:
        run(story())
    finally:
        go.set()


def test_a_burst_of_honest_calls_waits_for_threads_and_none_is_refused() -> None:
    def fn(n: int) -> int:
        time.sleep(0.005)
        return n

    async def story() -> None:
        async with home(offering(fn)) as here:
            outcomes = await asyncio.gather(*(here.call("do", {"n": n}) for n in range(90)))
            assert [value(one) for one in outcomes] == list(range(90))

    run(story())


def test_a_slow_plain_function_times_out_without_blocking_the_loop() -> None:
    go = threading.Event()

    def fn() -> None:
        go.wait(60)

    async def story() -> None:
        async with home(offering(fn, timeout=0.05)) as here:
            outcome = await here.call("do", {})  # while the function waits for what comes next
            go.set()
            assert isinstance(outcome, Failed)
            assert outcome.code == "timeout"

    run(story())


@pytest.mark.parametrize("plain", [True, False])
def test_a_function_that_passes_on_an_unsent_error_has_run_all_the_same(plain: bool) -> None:
    ran: list[int] = []
    agent = LocalAgent("inner")

    def broken() -> None:
        ran.append(1)
        error = Unavailable("further on it is down")
        error.sent = False
        raise error

    async def broken_async() -> None:
        broken()

    agent.add(broken if plain else broken_async, name="do")

    async def story() -> None:
        async with home(agent) as here:
            outcome = await here.call("do", {})
            assert isinstance(outcome, Failed)
            assert (outcome.code, outcome.sent, ran) == ("unavailable", True, [1])

    run(story())
