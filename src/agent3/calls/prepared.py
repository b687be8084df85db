"""Prepared calls: a plain function of this process for one caller, with everything decided but the input.

Who calls, whether it may, by which route, under which schema, limits and prices, and what its row in the ledger says
besides: none of that changes from one call to the next. ``prepare`` finds it out once, for as long as the agent stays
the same object; what is left for a call is to check its input, pay, run and record. Like the express it only ends calls
well. Whatever should be refused is left to the steps before anything was done, and what a function says that is no
plain result goes to the steps after it.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Protocol, TypeAlias, cast

from agent3 import failpoints
from agent3.calls.core import House
from agent3.calls.coroutines import to_the_end
from agent3.calls.ledger import Began, Entry, ledger
from agent3.calls.outcomes import failed_by
from agent3.calls.policy import from_message
from agent3.calls.resilience import late
from agent3.calls.results import has_large, malformed
from agent3.calls.timeouts import Timeouts
from agent3.errors import Agent3Error
from agent3.model import Agent, Call, Capability, Done, First, Handler, Outcome, Principal
from agent3.observe import logs
from agent3.protocols.functions.functions import Function, LocalConnector
from agent3.schema.cache import compiled
from agent3.security.sanitize import clean_outcome

__all__ = ["Prepared", "Ready", "prepare"]


class Turn(Protocol):
    """Runs the first turn of a call by a handler."""

    def __call__(self, *, by: Handler) -> Awaitable[Outcome]: ...


_timeouts = Timeouts()
_MOST = 10_000
"""Pairs of a caller and a capability that are remembered as prepared."""


class _Late(Exception):
    """A function took longer than it may."""


class _Waits:
    """A function that was begun, and waits for something."""

    __slots__ = ("pending",)

    def __init__(self, pending: Any):
        self.pending = pending


_Said: TypeAlias = Outcome | BaseException | _Waits


class Ready:
    """The prepared calls of one door, each found out once for as long as the agent stays the same object."""

    def __init__(self, house: House, door: str):
        self._house = house
        self._door = door
        self._known: dict[tuple[str, str, str, frozenset[str]], tuple[Agent, Capability, Prepared | None]] = {}

    def find(self, principal: Principal, agent: Agent, capability: Capability) -> Prepared | None:
        """The capability prepared for this caller; None for one that wants all steps."""
        key = agent.id, capability.name, principal.id, principal.scopes
        known = self._known.get(key)
        if known is not None and known[0] is agent and known[1] is capability:
            return known[2]
        if len(self._known) >= _MOST:
            self._known.clear()
        made = prepare(self._house, principal, agent, capability, self._door)
        self._known[key] = agent, capability, made
        return made


def prepare(house: House, principal: Principal, agent: Agent, capability: Capability, door: str) -> Prepared | None:
    """The capability prepared for a caller; None for one that wants more of the steps, or is none of its business.

    Rules, limits and other settings do not change while a house stands. What else may change is looked at in each call;
    only of the agent whoever asks has to know that it is still the same.
    """
    if len(capability.routes) != 1 or house.traced:
        return None
    route = capability.routes[0]
    connector = house.connectors.get(route.protocol)
    if not isinstance(connector, LocalConnector) or route.credential is not None or route.target != capability.name:
        return None
    if capability.interactive or capability.cache_ttl or not capability.input_schema:
        return None
    if not house.access.allows(principal, agent.id, capability.name, route.protocol):
        return None
    function = connector.function(route)
    if function is None or not function.plain:
        return None
    return Prepared(house, connector, function, principal, agent, capability, door)


class Prepared:
    """One capability for one caller. Safe for any number of calls at once."""

    def __init__(
        self,
        house: House,
        connector: LocalConnector,
        function: Function,
        principal: Principal,
        agent: Agent,
        capability: Capability,
        door: str,
    ):
        how = house.settings.calls
        self._house = house
        self._connector = connector
        self._principal = principal
        self._target = agent, capability
        self._door = door
        self._route = capability.routes[0]
        self._key = self._route.key
        self._agent = agent.id
        self._function = function
        self._fits = compiled(capability.input_schema).valid
        self._free = principal.kind == "local"
        self._whole = how.timeout if capability.timeout is None else capability.timeout
        self._seconds = min(self._whole, capability.timeout or how.attempt_timeout)
        self._large = how.artifact_bytes
        self._longest = how.result_bytes
        self._entry = Entry(principal, agent.id, capability, self._route, door)
        self._answered = (self._route.protocol, "answered")

    async def __call__(self, given: dict[str, Any]) -> Outcome | None:
        """What became of a call with this input; None where nothing was done and the steps have to say why."""
        house = self._house
        if not self._lets_in(given):
            return None
        env = house.env
        call, began = env.id(), Began(env.now(), env.monotonic())
        coro = self._function.answer(given)
        try:
            said = self._at_once(coro, call)
            if isinstance(said, _Waits):
                said = await self._rest(coro, said.pending, call)
            if type(said) is not Done or self._wants_more(said):
                return await self._by_the_chain(call, given, said, began)
        finally:
            coro.close()
            house.ceiling.leave(self._agent)
        return await house.ledger.done(self._entry, call, given, self._good(said), began)

    async def message(self, call: Call, turn: Turn) -> Outcome | None:
        """What became of a call that is made already, whose message may be its input; None likewise.

        A function that waits, or says more than a plain result, goes on inside of ``turn``.
        """
        house = self._house
        given = self._given(call)
        if given is None or not self._lets_in(given):
            return None
        began = Began(house.env.now(), house.env.monotonic())
        coro = self._function.answer(given)
        try:
            said = self._at_once(coro, call.id, call.context)
            if type(said) is not Done or self._wants_more(said):
                return await turn(by=self._after(said, began, coro))
        finally:
            coro.close()
            house.ceiling.leave(self._agent)
        return await house.ledger.done(
            self._entry, call.id, given, self._good(said), began, context=call.context, parts=call.parts
        )

    def _given(self, call: Call) -> dict[str, Any] | None:
        """The input of a call, also where only its message says it; None for what the steps have to judge."""
        given = call.input
        if given is None:
            try:
                given = from_message(call, self._target[1])
            except Agent3Error:
                return None
        return given if isinstance(given, dict) else None

    def _good(self, said: Done) -> Done:
        """What is told of a plain result."""
        house = self._house
        house.breakers.succeeded(self._key)
        house.metrics.attempts.inc(self._answered)
        return cast("Done", clean_outcome(said, self._longest))

    def _lets_in(self, given: dict[str, Any]) -> bool:
        """The checks before a call. The last one costs something: whoever passes has paid, and is inside."""
        house = self._house
        if failpoints.armed is not None or not house.breakers.untroubled(self._key) or not self._fits(given):
            return False
        if self._connector.function(self._route) is not self._function or not house.ceiling.enter(self._agent):
            return False
        if self._free or not house.limiter.take(self._principal.id):
            return True
        house.ceiling.leave(self._agent)
        return False

    def _at_once(self, coro: Coroutine[Any, Any, Outcome], call: str, context: str | None = None) -> _Said:
        """What the function says before it waits for anything, or what it raises."""
        token = logs.bind(call, context=context, trace=call)
        try:
            return _Waits(coro.send(None))
        except StopIteration as done:
            return cast("Outcome", done.value)
        except BaseException as wrong:  # noqa: BLE001 - the chain raises it again, where it is understood
            return wrong
        finally:
            logs.reset(token)

    @types.coroutine
    def _rest(
        self, coro: Coroutine[Any, Any, Outcome], pending: Any, call: str, context: str | None = None
    ) -> Generator[Any, Any, Outcome | BaseException]:
        """What it says after that. Its time is counted from where it first waited: until then nobody could stop it, and
        most never do."""
        token = logs.bind(call, context=context, trace=call)
        try:
            return (yield from self._in_time(coro, pending))
        except BaseException as wrong:  # noqa: BLE001 - likewise
            return wrong
        finally:
            logs.reset(token)

    def _in_time(self, coro: Coroutine[Any, Any, Outcome], pending: Any) -> Generator[Any, Any, Outcome]:
        limit = _timeouts.after(self._seconds)
        try:
            with limit:
                return (yield from to_the_end(coro, pending))
        except TimeoutError as wrong:
            raise _Late if limit.expired else wrong from wrong

    def _wants_more(self, outcome: Done) -> bool:
        """Whether it is more than a plain result: with a bill or a name of its own, against its schema, or large."""
        if outcome.usage is not None or outcome.artifacts or outcome.meta:
            return True
        capability = self._target[1]
        if capability.output_schema is not None and malformed(outcome, capability):
            return True
        return has_large(outcome, self._large)

    async def _by_the_chain(
        self, call_id: str, given: dict[str, Any], said: Outcome | BaseException, began: Began
    ) -> Outcome:
        """The steps after the checks, with what the function said as their first attempt."""
        agent, capability = self._target
        call = Call(
            id=call_id,
            principal=self._principal,
            agent=agent.id,
            capability=capability.name,
            input=given,
            timeout=capability.timeout,
            routes=capability.routes,
        )
        by = self._after(said, began)
        return await self._house.runner.start(call, self._target, door=self._door, by=by)

    def _after(self, said: _Said, began: Began, coro: Coroutine[Any, Any, Outcome] | None = None) -> Handler:
        """A handler that ends a call of which this much was said; for one that waits, by its coroutine."""
        recorded = ledger(self._house.ledger, began=began)(self._house.after)

        async def after(call: Call) -> Outcome:
            heard = said
            if isinstance(heard, _Waits):
                assert coro is not None
                heard = await self._rest(coro, heard.pending, call.id, call.context)
            if isinstance(heard, _Late):
                heard = failed_by(late(call, self._seconds))
            live = call.live
            live.charged, live.expires = True, began.started + self._whole
            live.first = First(heard, 0)
            return await recorded(call)

        return after
