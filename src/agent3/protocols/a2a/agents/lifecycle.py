"""The life of an agent: registered, active, draining, suspended, retired, and which follows which.

Data and judgement only. Who lives by it asks ``step`` before it changes, and ``refusal`` before it takes anything new.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from agent3.errors import Agent3Error, Conflict, Unavailable

__all__ = ["IN_SERVICE", "NEXT", "Status", "refusal", "step"]

Status: TypeAlias = Literal["registered", "active", "draining", "suspended", "retired"]

IN_SERVICE: Final = frozenset({"registered", "active"})
"""States in which an agent is found and takes new work. One that is registered has just not said so yet."""
NEXT: Final[dict[Status, frozenset[Status]]] = {
    "registered": frozenset({"active", "suspended", "retired"}),
    "active": frozenset({"draining", "suspended", "retired"}),
    "draining": frozenset({"active", "suspended", "retired"}),
    "suspended": frozenset({"active", "retired"}),
    "retired": frozenset(),
}
"""What may follow. Nothing follows the end."""


def step(agent: str, now: Status, then: Status) -> Status:
    """The state an agent goes to; the same again is no step. Conflict names the ways that are open."""
    if then == now or then in NEXT[now]:
        return then
    ways = ", ".join(sorted(NEXT[now])) or "nothing: register it anew under another id"
    raise Conflict(f"Agent {agent[:100]!r} is {now} and cannot become {then}. What can follow is {ways}.")


def refusal(agent: str, status: Status) -> Agent3Error | None:
    """Why an agent in this state takes nothing new; None where it does."""
    if status in IN_SERVICE:
        return None
    when = "for ever" if status == "retired" else "for now"
    error = Unavailable(f"Agent {agent[:100]!r} is {status} and takes no new work {when}. Discover another one.")
    error.sent = False
    return error
