"""The order of the steps: one list, the promises that it keeps, and the handlers compiled from it.

Every rule that applies to all calls is a step around the handler that answers. The order below keeps fifteen promises,
each with a test in tests/calls/test_promises.py that fails if its steps are swapped:

 1. a denied call is recorded, but neither charged nor sent
 2. a call is charged once, for the route that served it, however often it was retried
 3. authorize runs once and narrows the routes, so that no fallback bypasses it
 4. invalid input never reaches a target
 5. the deadline bounds all attempts and routes together
 6. a call that timed out becomes a dead letter, a mere hop to the next route does not
 7. the breaker sees each attempt, also one that hangs, and an open circuit is not retried
 8. a call that has emitted content is neither retried nor rerouted
 9. an attempt is repeated only if it was not sent, is idempotent or carries a key
10. results are validated first, then sanitized and bounded, and large parts become artifact references
11. secrets are added last, so that no ledger row, log, trace or dead letter contains them
12. span, metric, audit row and cost are written once per turn
13. a turn is stored before its outcome is sent
14. cancellation reaches the innermost handler, and a paused job is cancelled by a turn of its own
15. only valid input is submitted for approval, and nothing is sent before it is approved

Innermost is the park (calls/parking.py), which keeps a function that waits for an answer. It is not a step: a step
inside it would be bypassed when the answer wakes the function.

``Chain.compile`` makes the handler for an aim: idle steps are left out, and neighbours that decide without waiting
share a frame. ``Chain.nest`` makes the same handler the long way, with every step in its own frame; tests compare both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import CoroutineType, coroutine
from typing import Any, cast

from msgspec.structs import replace

from agent3.calls.coroutines import finish
from agent3.calls.outcomes import failed_by
from agent3.calls.step import OUTCOMES, Aim, Parts, Stage, Step
from agent3.calls.steps.approval import Approval
from agent3.calls.steps.arguments import Arguments
from agent3.calls.steps.artifacts import Artifacts
from agent3.calls.steps.attempt import Attempt
from agent3.calls.steps.authorize import Authorize
from agent3.calls.steps.breaker import Breaker
from agent3.calls.steps.cache import Cache
from agent3.calls.steps.dead_letter import DeadLetter
from agent3.calls.steps.deadline import Deadline
from agent3.calls.steps.fallback import Fallback
from agent3.calls.steps.ledger import Record
from agent3.calls.steps.limit import Limit
from agent3.calls.steps.loop import Loop
from agent3.calls.steps.resolve import Resolve
from agent3.calls.steps.retry import Retry
from agent3.calls.steps.route_secrets import RouteSecrets
from agent3.calls.steps.sanitize import Sanitize
from agent3.calls.steps.scope import Scope
from agent3.calls.steps.stop import Stop
from agent3.calls.steps.validate import Validate
from agent3.errors import AccessError, Unavailable
from agent3.model import Agent, Call, Capability, Done, Failed, Handler, Needs, Outcome

__all__ = ["ORDER", "Chain"]

ORDER: tuple[type[Step], ...] = (
    Record,
    Authorize,
    Stop,
    Loop,
    Limit,
    Cache,
    Artifacts,
    Resolve,
    Validate,
    Arguments,
    Approval,
    DeadLetter,
    Deadline,
    Fallback,
    Retry,
    Breaker,
    Attempt,
    Sanitize,
    Scope,
    RouteSecrets,
)

_MOST = 10_000
"""Compiled handlers that are remembered."""
_FINE = Done()


class Chain:
    """The steps of one call core, in their order, and the handlers compiled from them."""

    def __init__(self, parts: Parts, order: Sequence[type[Step]] | None = None):
        self._connectors = parts.connectors
        self._park = parts.park
        self._budgets = parts.budgets
        self.steps = tuple(step(parts) for step in (ORDER if order is None else order))
        self._arguments = next((step for step in self.steps if isinstance(step, Arguments)), None)
        self._approval = next((step for step in self.steps if isinstance(step, Approval)), None)
        self._limit = next((step for step in self.steps if isinstance(step, Limit)), None)
        self._compiled: dict[tuple[Any, ...], tuple[Agent | None, Capability, Handler]] = {}

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Run a call through every step that has to do with it, to the connector of its route."""
        live, principal = call.live, call.principal
        agent, capability = live.agent, live.capability
        if call.routes is not capability.routes and call.routes != capability.routes:
            # A job that was begun by other routes goes on by those; what was compiled for the capability does not fit.
            capability = replace(capability, routes=call.routes)
            return self._compile_or_record(Aim(agent, capability, principal, live.door, call.entry))[0](call)
        # All that an Aim has: a step may be left out for a caller of one kind, and not for another of the same id.
        key = (call.agent, call.capability, live.door, call.entry, principal)
        known = self._compiled.get(key)
        # The agent and its capability are frozen: as long as they are the same objects, nothing about them changed.
        if known is None or known[0] is not agent or known[1] is not capability:
            known = self._remember(key, Aim(agent, capability, principal, live.door, call.entry))
        return known[2](call)

    def compile(self, aim: Aim, target: Handler | None = None) -> Handler:
        """The handler for an aim: idle steps left out, quick ones folded into one frame."""
        routes = aim.capability.routes
        connector = self._connectors.get(routes[0].protocol) if len(routes) == 1 else None
        handler = target or (self._dispatch if connector is None else connector.call)
        if aim.capability.interactive or any(route.stand_in is not None for route in routes):
            handler = self._park.around(handler)
        quick: list[Stage] = []
        for step in reversed(self.steps):
            if step.idle(aim):
                continue
            stage = step.bind(aim)
            if around := _around(stage):
                handler, quick = around(_fold(quick, handler)), []
            else:
                if stage is not step:
                    stage.inner = _fold(quick, handler)
                quick = [stage, *quick]
        return _fold(quick, handler)

    def nest(self, aim: Aim, target: Handler | None = None) -> Handler:
        """The same, with a frame for every step and none left out."""
        handler = self._park.around(self._dispatch if target is None else target)
        for step in reversed(self.steps):
            stage = step.bind(aim)
            if stage is not step:
                stage.inner = handler
            around = _around(stage)
            handler = Folded([stage], handler) if around is None else around(handler)
        return handler

    async def record(self, call: Call, outcome: Outcome) -> Outcome:
        """Record an outcome that came before there was anything to run."""

        async def known(_: Call) -> Outcome:
            return outcome

        return await self._only(("ledger",), call, known)(call)

    async def check(self, call: Call) -> Outcome | None:
        """What is wrong with the input of a call; None where nothing is. Nothing is recorded or sent."""

        async def nothing(_: Call) -> Outcome:
            return _FINE

        outcome = await self._only(("resolve", "validate"), call, nothing)(call)
        return None if outcome is _FINE else outcome

    async def admit(self, call: Call) -> Outcome | None:
        """Whether a call may start, asked before anything of it is kept; None where it may, and has paid.

        A refusal is recorded as if the whole chain had refused.
        """

        async def nothing(_: Call) -> Outcome:
            return _FINE

        refusal: Outcome | None = await self._only(("authorize", "stop", "loop"), call, nothing)(call)
        if refusal is _FINE:
            refusal = await self._limit.charge(call) if self._limit is not None else None
        return None if refusal is None else await self.record(call, refusal)

    async def bound(self, call: Call, asked: Needs) -> Needs | Failed:
        """A question that is put before there is anything to run, or the refusal to put one more."""
        return await self._limit.bound(call, asked) if self._limit is not None else asked

    async def charge_as(self, call: Call, capability: Capability) -> Failed | None:
        """Charge a running call as one of another capability of its agent; the refusal, if it is one."""
        waits = self._approval is not None and self._approval.approvals.match(call.principal, call.agent, capability)
        if waits or (self._arguments is not None and self._arguments.matter(call.principal, call.agent, capability)):
            # It runs already, so that nothing could be asked or judged any more.
            what = "needs approval" if waits else "is allowed only with certain arguments"
            text = f"{call.agent}.{capability.name} {what}. Call it by name, with its arguments."
            return replace(failed_by(AccessError(text)), sent=False)
        return await self._limit.charge_as(call, capability) if self._limit is not None else None

    def dismiss(self, call: Call) -> None:
        """Give back what ``admit`` reserved for a call that does not start after all."""
        self._budgets.give_back(call.live.reserved)
        call.live.reserved = None

    def drop(self) -> None:
        """Forget what was compiled: something that it was made of has changed, such as a rule."""
        self._compiled.clear()

    def _only(self, names: Sequence[str], call: Call, target: Handler) -> Handler:
        aim = Aim(call.live.agent, call.live.capability, call.principal, call.live.door, call.entry)
        return _fold([step.bind(aim) for step in self.steps if step.name in names], target)

    def _remember(self, key: tuple[Any, ...], aim: Aim) -> tuple[Agent | None, Capability, Handler]:
        if len(self._compiled) >= _MOST:
            self._compiled.clear()
        handler, lasts = self._compile_or_record(aim)
        made = (aim.agent, aim.capability, handler)
        if lasts:
            self._compiled[key] = made
        return made

    def _compile_or_record(self, aim: Aim) -> tuple[Handler, bool]:
        """The handler for an aim, and whether it may be remembered; one that records why there is none."""
        try:
            return self.compile(aim), True
        except Exception as error:  # noqa: BLE001 - the ledger logs it and makes an outcome of it
            failure = error

            async def fail(_: Call) -> Outcome:
                raise failure

            return _fold([step.bind(aim) for step in self.steps if isinstance(step, Record)], fail), False

    def _dispatch(self, call: Call) -> Awaitable[Outcome]:
        """The innermost handler: the connector of the route's protocol."""
        route = call.route
        connector = self._connectors.get(route.protocol) if route is not None else None
        if connector is None:
            protocol = route.protocol if route is not None else "no route"
            raise Unavailable(
                f"Agent {call.agent!r} cannot be reached: no connector for protocol {protocol!r} is installed."
            )
        return connector.call(call)


def _around(stage: Stage) -> Callable[[Handler], Handler] | None:
    return getattr(stage, "around", None)


def _fold(stages: Sequence[Stage], inner: Handler) -> Handler:
    # The bound method: calling an object takes twice the way to it.
    return Folded(stages, inner).__call__ if stages else inner


class Folded:
    """Some stages, and what lies inside them, as one handler: entered in order, left in reverse.

    It does in one frame what nested frames with try, except and finally would do. A stage is asked only where it has
    something to say: timers start and stop only when the call has to wait for something, which most calls to functions
    never do, and what deals with failures does not see a call that is Done.
    """

    def __init__(self, stages: Sequence[Stage], inner: Handler):
        self._inner = inner
        self._all_entered = len(stages) + 1
        numbered = tuple(enumerate(stages, 1))
        self._enters = tuple(stage.enter for stage in stages if _has(stage, "enter"))
        self._exits = tuple(_Exit(number, stage) for number, stage in reversed(numbered))
        self._waits = tuple((number, stage.wait) for number, stage in numbered if _has(stage, "wait"))
        # The usual way out: Done without ever having waited; and mostly no stage has changed the call.
        usual = [
            stage
            for stage in reversed(stages)
            if _has(stage, "leave") and not stage.for_failures and not stage.for_waits
        ]
        self._leaves_changed = tuple(stage.leave for stage in usual)
        self._leaves = tuple(stage.leave for stage in usual if not stage.for_changes)
        # Of which stage a method is, for the calls that do not go the usual way.
        self._numbers = {method: number for number, stage in numbered for method in (stage.enter, stage.leave)}

    async def __call__(self, call: Call) -> Outcome:
        below = 0
        """The stages of a lower number are entered; 0 as long as that is not known."""
        waited = False
        replaced: list[tuple[int, Call]] | None = None
        """The calls that stages were given, where they gave on another one."""
        error: BaseException | None = None
        enter: Any = None
        leave: Any = None
        result: Any
        try:
            for enter in self._enters:
                got: Any = enter(call)
                if got is not call:
                    if type(got) is not Call and type(got) not in OUTCOMES:
                        waited = self._start_timers(call, self._numbers[enter])
                        got = await got
                    if type(got) is not Call:
                        result = got
                        break
                    replaced = [*(replaced or ()), (self._numbers[enter], call)]
                    call = got
            else:
                below = self._all_entered
                running = self._inner(call)
                if self._waits and type(running) is CoroutineType:
                    try:
                        pending = running.send(None)
                    except StopIteration as done:  # as most do that call a function
                        result = done.value
                    else:
                        waited = True
                        result = await self._wait_for(running, pending, call)
                else:
                    if self._waits:
                        waited = self._start_timers(call, below)
                    result = await running
        except BaseException as raised:  # noqa: BLE001 - the stages that were entered decide what becomes of it
            error, waited = raised, True
        if not below:
            # A stage that ended the call, or whose ``enter`` raised, is not entered; those before it are.
            below = self._numbers[enter]
        elif not waited and type(result) is Done:
            try:
                for leave in self._leaves if replaced is None else self._leaves_changed:
                    while replaced and self._numbers[leave] <= replaced[-1][0]:
                        call = replaced.pop()[1]
                    left = leave(call, result)
                    if left is not result:
                        result = left
                        if type(left) is not Done:
                            break
                else:
                    answer: Outcome = result
                    return answer
                below = self._numbers[leave]
                if type(result) not in OUTCOMES:
                    waited = self._start_timers(call, below)
                    result = await result
            except BaseException as raised:  # noqa: BLE001 - likewise
                error, waited, below = raised, True, self._numbers[leave]
        for number, leave_or_none, fail, for_failures, for_waits in self._exits:
            if number >= below or (for_waits and not waited):
                continue
            while replaced and number <= replaced[-1][0]:
                call = replaced.pop()[1]
            try:
                if error is None:
                    if leave_or_none is None or (for_failures and type(result) is Done):
                        continue
                    result = leave_or_none(call, result)
                elif fail is None:
                    continue
                else:
                    result = fail(call, error)
                    if isinstance(result, BaseException):
                        error = result
                        continue
                    error = None
                if type(result) not in OUTCOMES:
                    waited = self._start_timers(call, number)
                    result = await result
            except BaseException as raised:  # noqa: BLE001 - likewise
                error, waited = raised, True
        if error is not None:
            try:
                raise error
            finally:
                error = None  # the exception holds this frame, and this frame must not hold the exception
        return cast("Outcome", result)

    @coroutine
    def _wait_for(
        self, running: Coroutine[Any, Any, Outcome], pending: Any, call: Call
    ) -> Generator[Any, Any, Outcome]:
        """Await what lies inside from where it first had to wait, and tell the stages of that."""
        try:
            self._start_timers(call, self._all_entered)
        except BaseException:
            running.close()
            raise
        return (yield from finish(running, pending))

    def _start_timers(self, call: Call, before: int) -> bool:
        """Something has to be waited for: tell the stages that are entered at that moment."""
        for number, wait in self._waits:
            if number < before:
                wait(call)
        return True


class _Exit(tuple[int, Any, Any, bool, bool]):
    """The number of a stage, the methods that it really has for the way out, and when they are not asked."""

    def __new__(cls, number: int, stage: Stage) -> _Exit:
        leave = stage.leave if _has(stage, "leave") else None
        fail = stage.fail if _has(stage, "fail") else None
        return super().__new__(cls, (number, leave, fail, stage.for_failures, stage.for_waits))


def _has(stage: Stage, method: str) -> bool:
    return getattr(type(stage), method) is not getattr(Stage, method)
