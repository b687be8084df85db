"""Plans and batches: order, references, failures, and nothing repeated after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from agent3.errors import Unavailable, ValidationError
from agent3.protocols.functions.plans import Item, PlanStep, parse_plan, run_batch, run_plan


class Memory:
    """A context that remembers what was done once, as a job does."""

    job_id = "job"

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def once(self, name: str, do: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = msgspec.to_builtins(await do())
        return self.kept[name]


class Tools:
    """Calls that answer with their input, and remember in which order and under which key they came."""

    def __init__(self, broken: tuple[str, ...] = ()):
        self.broken = broken
        self.seen: list[tuple[str, Any, str | None]] = []

    async def __call__(self, step: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
        self.seen.append((step.id, given, key))
        await asyncio.sleep(0)
        if step.id in self.broken:
            raise Unavailable("It is down.")
        return {"status": "success", "result": {"said": given, "list": [1, {"price": 7}]}, "trace_id": f"t-{step.id}"}


def _plan(*steps: dict[str, Any]) -> tuple[PlanStep, ...]:
    return parse_plan(steps)


def _run(tools: Tools, plan: tuple[PlanStep, ...], memory: Memory | None = None, **more: Any) -> list[Item]:
    return asyncio.run(run_plan(memory or Memory(), plan, tools, **more))


def test_results_of_one_step_are_the_input_of_the_next() -> None:
    tools = Tools()
    plan = _plan(
        {"id": "book", "tool": "book", "input": {"price": "${find.list.1.price}", "text": "for ${find.said.to}"}},
        {"id": "find", "tool": "find", "input": {"to": "Paris"}},
    )
    items = _run(tools, plan)
    assert [item.status for item in items] == ["success", "success"]
    assert [name for name, _, _ in tools.seen] == ["find", "book"]
    assert tools.seen[1][1] == {"price": 7, "text": "for Paris"}


def test_every_step_has_a_key_of_its_own() -> None:
    tools = Tools()
    _run(tools, _plan({"id": "a", "tool": "t"}, {"id": "b", "tool": "t"}))
    assert sorted(str(key) for _, _, key in tools.seen) == ["job/a", "job/b"]


def test_without_a_job_nothing_is_kept_and_no_step_has_a_key() -> None:
    tools = Tools()
    items = asyncio.run(run_plan(None, _plan({"id": "a", "tool": "t"}), tools))
    assert [(item.status, item.trace_id) for item in items] == [("success", "t-a")]
    assert tools.seen == [("a", {}, None)]


def test_a_finished_step_is_not_repeated_after_a_crash() -> None:
    memory, plan = Memory(), _plan({"id": "a", "tool": "t"}, {"id": "b", "tool": "t", "after": ["a"]})

    class Crash(BaseException):
        pass

    class Dies(Tools):
        async def __call__(self, step: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
            if step.id == "b":
                raise Crash
            return await super().__call__(step, given, key)

    first, second = Dies(), Tools()
    with pytest.raises(Crash):
        _run(first, plan, memory)
    items = _run(second, plan, memory)
    assert [name for name, _, _ in first.seen] == ["a"]
    assert [name for name, _, _ in second.seen] == ["b"]
    assert [item.status for item in items] == ["success", "success"]


def test_a_failed_step_skips_what_waits_for_it_and_the_rest_only_if_told_to() -> None:
    plan = _plan(
        {"id": "a", "tool": "t"},
        {"id": "b", "tool": "t", "after": ["a"]},
        {"id": "c", "tool": "t", "after": ["d"]},
        {"id": "d", "tool": "t"},
    )
    goes_on = _run(Tools(broken=("a",)), plan, on_error="continue")
    assert [item.status for item in goes_on] == ["error", "skipped", "success", "success"]
    assert goes_on[0].error == {"code": "unavailable", "message": "It is down.", "retryable": True}
    stops = _run(Tools(broken=("a",)), plan, on_error="stop", parallel=1)
    assert [item.status for item in stops] == ["error", "skipped", "skipped", "skipped"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "1 to 200 steps"),
        ([{"id": "a", "tool": "t"}, {"id": "a", "tool": "t"}], "occurs twice"),
        ([{"id": "a", "tool": "t", "after": ["bb"]}, {"id": "b", "tool": "t"}], "not in the plan"),
        ([{"id": "search", "tool": "t"}, {"id": "b", "tool": "t", "input": "${serch.x}"}], "Did you mean 'search'?"),
        ([{"id": "a", "tool": "t", "after": ["b"]}, {"id": "b", "tool": "t", "after": ["a"]}], "depend on one another"),
        ([{"id": "a"}], "malformed"),
        ([{"id": "a", "tool": "t", "inptu": {}}], "inptu"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_runs(steps: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("?", r"\?")):
        parse_plan(steps)


@pytest.mark.parametrize("step", [[], [[]], [["id", "a"]], "ab", 7, None])
def test_a_step_that_is_no_object_is_refused(step: Any) -> None:
    with pytest.raises(ValidationError, match="Step 2 of the plan must be an object"):
        parse_plan([{"id": "a", "tool": "t"}, step])


def test_results_do_not_grow_without_a_bound_from_step_to_step() -> None:
    steps = [{"id": "s0", "tool": "t", "input": {"a": "x" * 1_000}}]
    steps += [{"id": f"s{at}", "tool": "t", "input": {"a": f"${{s{at - 1}.a}}" * 10}} for at in range(1, 9)]

    async def echo(step: PlanStep, given: Any, key: str | None) -> Mapping[str, Any]:
        return {"status": "success", "result": given}

    items = asyncio.run(run_plan(None, parse_plan(steps), echo))
    assert [item.status for item in items] == ["success"] * 4 + ["error"] + ["skipped"] * 4
    assert (items[4].error or {})["code"] == "too_large"


def test_a_reference_into_nothing_fails_that_step_with_the_name() -> None:
    plan = _plan({"id": "a", "tool": "t"}, {"id": "b", "tool": "t", "input": "${a.nothing.here}"})
    items = _run(Tools(), plan)
    assert items[1].status == "error"
    assert items[1].error is not None
    assert "'nothing'" in items[1].error["message"]


def _dying(step: PlanStep, given: Any, key: str | None) -> Awaitable[Mapping[str, Any]]:
    """Answers, but for one call that dies of something that is no error of ours, and one that answers nonsense."""

    async def answer() -> Mapping[str, Any]:
        if step.id == "dies":
            raise msgspec.DecodeError("JSON is malformed")
        return {"status": "nonsense" if step.id == "babbles" else "success", "result": 1}

    return answer()


@pytest.mark.parametrize("wrong", ["dies", "babbles"])
def test_whatever_one_call_dies_of_the_others_keep_their_results(wrong: str) -> None:
    calls = [PlanStep(name, "tool") for name in ("a", wrong, "b")]
    for items in (
        asyncio.run(run_batch(calls, _dying)),
        asyncio.run(run_plan(None, calls, _dying, on_error="continue")),
    ):
        assert [item.status for item in items] == ["success", "error", "success"]
        error = items[1].error
        assert error is not None
        assert error["code"] == "internal"
        assert "'tool' failed with" in error["message"]


def test_a_batch_keeps_its_order_and_its_bound() -> None:
    running = most = 0

    async def slow(step: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return {"status": "success", "result": step.id}

    calls = [PlanStep(f"c{number}", "t") for number in range(20)]
    items = asyncio.run(run_batch(calls, slow, parallel=4))
    assert [item.result for item in items] == [call.id for call in calls]
    assert most == 4


def test_a_batch_may_stop_at_the_first_error() -> None:
    calls = [PlanStep(name, "t") for name in ("a", "b", "c")]
    items = asyncio.run(run_batch(calls, Tools(broken=("a",)), parallel=1, stop_on_error="first"))
    assert [item.status for item in items] == ["error", "skipped", "skipped"]
    goes_on = asyncio.run(run_batch(calls, Tools(broken=("a",)), parallel=1))
    assert [item.status for item in goes_on] == ["error", "success", "success"]


def test_a_batch_may_also_end_the_calls_that_run() -> None:
    begun = asyncio.Event()
    cancelled: list[str] = []

    async def calls_of(step: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
        if step.id == "fails":
            await begun.wait()
            raise Unavailable("It is down.")
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.append(step.id)
        return {}

    async def story() -> list[Item]:
        calls = [PlanStep(name, "t") for name in ("hangs", "fails", "waits")]
        return await asyncio.wait_for(run_batch(calls, calls_of, parallel=2, stop_on_error="cancel"), 60)

    items = asyncio.run(story())
    assert [item.status for item in items] == ["canceled", "error", "skipped"]
    assert cancelled == ["hangs"]


def test_a_batch_that_is_cancelled_cancels_its_calls() -> None:
    begun, cancelled = asyncio.Event(), []

    async def hangs(step: PlanStep, given: Any, key: str | None) -> dict[str, Any]:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.append(step.id)
        return {}

    async def story() -> None:
        batch = asyncio.ensure_future(run_batch([PlanStep("a", "t")], hangs))
        await asyncio.wait_for(begun.wait(), 60)
        batch.cancel()
        await asyncio.wait([batch], timeout=60)

    asyncio.run(story())
    assert cancelled == ["a"]
