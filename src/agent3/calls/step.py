"""What a step is: a rule that every call passes, on its way in and on its way out.

A step is one class in ``calls/steps/`` and one entry in ``ORDER``. It is written once, in one of two forms:

* ``enter``, ``leave`` and ``fail`` for a rule that is mostly decided without waiting. Several of them run in one frame.
* ``around`` for a rule that has to run what is inside in its own way: as a task, or by one route after the other.

``calls/order.py`` puts both together into a handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from agent3.env import Env
from agent3.identity.logins import Logins
from agent3.identity.secrets import Vault
from agent3.model import (
    Agent,
    Call,
    Capability,
    Connector,
    Done,
    Entry,
    Failed,
    Handler,
    Needs,
    Outcome,
    Principal,
    Working,
)
from agent3.observe.metrics import Metrics
from agent3.observe.traces import Tracer
from agent3.security.access import Access
from agent3.security.caller_scope import CallerScope
from agent3.security.limits import Ceiling, FairShares, Limiter, Rates
from agent3.settings import Settings

if TYPE_CHECKING:
    from agent3.calls.approvals import Approvals
    from agent3.calls.artifacts import ArtifactStore
    from agent3.calls.bodies import Bodies
    from agent3.calls.budgets import Budgets, Standards
    from agent3.calls.dead_letters import DeadLetters
    from agent3.calls.parking import Park
    from agent3.calls.prices import Prices
    from agent3.calls.steps.breaker import Breakers
    from agent3.calls.steps.cache import ResultCache
    from agent3.calls.steps.ledger import Ledger
    from agent3.calls.steps.resolve import Propose
    from agent3.calls.stops import Stops

__all__ = ["OUTCOMES", "RECOVERY", "Aim", "Entered", "Left", "Parts", "Stage", "Step"]

RECOVERY = "recovery"
"""The door of turns that an earlier process let in: they have been checked and paid for."""
OUTCOMES = frozenset({Done, Failed, Needs, Working})

Entered: TypeAlias = Call | Outcome | Awaitable[Call | Outcome]
Left: TypeAlias = Outcome | Awaitable[Outcome]


class Aim(NamedTuple):
    """What a handler is compiled for: one capability, one caller, one door, one kind of turn."""

    agent: Agent | None
    capability: Capability
    principal: Principal
    door: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the steps are made of: the shared state of one call core."""

    settings: Settings
    env: Env
    metrics: Metrics
    tracer: Tracer | None
    connectors: Mapping[str, Connector]
    ledger: Ledger
    access: Access
    approvals: Approvals
    stops: Stops
    limiter: Limiter
    rates: Rates
    prices: Prices
    budgets: Budgets
    standards: Standards
    bodies: Bodies
    ceiling: Ceiling
    shares: FairShares
    cache: ResultCache
    artifacts: ArtifactStore
    dead_letters: DeadLetters
    breakers: Breakers
    vault: Vault
    park: Park
    lookup: Callable[[str, str], Awaitable[tuple[Agent, Capability]]]
    """An agent and a capability by their names; NotFound where there is none."""
    count_waiting: Callable[[str, int], Awaitable[int]]
    """How many calls of a caller wait for an answer, counted up to a number."""
    propose: Propose | None = None
    logins: Logins | None = None
    """What single users reach agents with; None where nobody logs in."""
    scope: CallerScope | None = None
    """Derives the ids that leave in a caller's name; None where everything is this program's own."""
    gateway: str = ""
    """The id of the gateway; empty where the core is in none."""


class Stage:
    """A rule at work for one aim. It serves many calls at once: what belongs to one call is kept in ``call.live``."""

    inner: Handler
    """What lies further in, for a stage that has to ask it again. Set when the chain is compiled."""
    for_failures: ClassVar[bool] = False
    """``leave`` has nothing to do with an outcome that is Done."""
    for_waits: ClassVar[bool] = False
    """``leave`` and ``fail`` have nothing to do with a call that never had to wait: ``wait`` was not called."""
    for_changes: ClassVar[bool] = False
    """``leave`` has nothing to do with an outcome that is Done where ``enter`` gave on the very call it was given."""

    def enter(self, call: Call) -> Entered:
        """On the way in. Gives the call on, perhaps changed, or an outcome that ends it here.

        A stage that ends the call, or raises, has not been entered: its ``leave`` and ``fail`` are not called.
        """
        return call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        """On the way out, with the call as this stage was given it."""
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        """On the way out with an exception: give it on, or the outcome that it stands for.

        It is returned and not raised: a frame that raises what it holds is a cycle for the garbage collector.
        """
        return error

    def wait(self, call: Call) -> None:
        """Called when the call has to wait for anything while this stage is entered; perhaps more than once."""


class Step(Stage):
    """A rule. One that needs to know nothing beforehand is its own stage.

    Subclasses may define ``around(inner) -> Handler``, which is then used in place of the methods of ``Stage``.
    """

    name: ClassVar[str]

    def __init__(self, parts: Parts):
        """Take what it needs of the core."""

    def idle(self, aim: Aim) -> bool:
        """Whether it has nothing to do for this aim, whatever the call brings. Then it is left out."""
        return False

    def bind(self, aim: Aim) -> Stage:
        """The stage for one aim, with everything decided that does not depend on the single call."""
        return self
