"""The order of the steps: one list, and what it promises.

Everything that every call must respect is a step around the handler that answers. The order below keeps fourteen
promises, each of them a test in tests/calls/test_promises.py that fails when the steps it speaks of are swapped:

 1. a denied call is recorded, but neither charged nor sent
 2. a call is charged once, however often it is retried or takes another route
 3. authorize runs once and narrows the routes, so that no fallback passes it by
 4. invalid input never reaches a target
 5. the deadline bounds all attempts and routes together
 6. a call that ran out of time still reaches the dead letters, a mere hop to the next route does not
 7. the breaker sees each attempt, also one that only hangs, and an open circuit is not retried
 8. what already emitted content is neither retried nor rerouted
 9. only what was not sent, is idempotent or carries a key is repeated
10. results are validated as they came, then sanitized and bounded, and large parts become artifact references
11. secrets enter last, so that no ledger row, log, trace or dead letter can hold them
12. span, metric, audit row and cost are written once per turn
13. a turn is durable before it is told
14. cancellation reaches the innermost handler, and a paused job is cancelled by a turn of its own
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from agent3.errors import Unavailable
from agent3.model import Call, Connector, Handler, Live, Outcome, Step

__all__ = ["AFTER", "ORDER", "chain", "dispatch"]

ORDER: tuple[str, ...] = (
    "ledger",
    "authorize",
    "limit",
    "cache",
    "artifacts",
    "resolve",
    "validate",
    "dead_letter",
    "deadline",
    "fallback",
    "retry",
    "breaker",
    "attempt",
    "sanitize",
    "sealing",
    "park",
)


AFTER = tuple(name for name in ORDER if name not in ("ledger", "authorize", "limit", "cache", "resolve", "validate"))
"""The steps for a call whose target has been asked already: those that deal with what it said."""


def chain(steps: Mapping[str, Step], handler: Handler, order: Sequence[str] = ORDER) -> Handler:
    """The handler with every step around it, the first of the list outermost.

    A step with nothing to do afterwards hands on what the next one will answer, instead of awaiting it: a frame less
    for every call.
    """
    for name in reversed(order):
        handler = steps[name](handler)
    return handler


async def _said(live: Live) -> Outcome:
    """What the target said before the chain was asked; it is not asked twice."""
    first, live.first = live.first, None
    assert first is not None
    live.content = first.content
    if isinstance(first.said, BaseException):
        raise first.said
    return first.said


def dispatch(connectors: Mapping[str, Connector]) -> Handler:
    """The innermost handler: the connector of the route's protocol."""

    def call_connector(call: Call) -> Awaitable[Outcome]:
        if call.live.first is not None:
            return _said(call.live)
        route = call.route
        connector = connectors.get(route.protocol) if route is not None else None
        if connector is None:
            protocol = route.protocol if route is not None else "no route"
            raise Unavailable(f"Agent {call.agent!r} cannot be reached by {protocol!r}: no connector speaks it here.")
        return connector.call(call)

    return call_connector
