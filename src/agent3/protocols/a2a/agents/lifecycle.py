"""The states of an agent: registered, active, draining, suspended, retired, and which may follow which.

Executors and registries ask ``check_transition`` before a change of state, and ``find_refusal`` before new work.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from agent3.errors import Agent3Error, Conflict, Unavailable

__all__ = ["IN_SERVICE", "NEXT", "Status", "check_transition", "find_refusal"]

Status: TypeAlias = Literal["registered", "active", "draining", "suspended", "retired"]

IN_SERVICE: Final = frozenset({"registered", "active"})
"""States in which an agent is found and takes new work. A registered one has just not been activated yet."""
NEXT: Final[dict[Status, frozenset[Status]]] = {
    "registered": frozenset({"active", "suspended", "retired"}),
    "active": frozenset({"draining", "suspended", "retired"}),
    "draining": frozenset({"active", "suspended", "retired"}),
    "suspended": frozenset({"active", "retired"}),
    "retired": frozenset(),
}
"""The states that may follow each state."""


def check_transition(agent: str, now: Status, then: Status) -> Status:
    """The next state of an agent, which may be the present one; Conflict if it cannot follow."""
    if then == now or then in NEXT[now]:
        return then
    allowed = ", ".join(sorted(NEXT[now])) or "nothing: register it again under another id"
    raise Conflict(f"Agent {agent[:100]!r} is {now} and cannot become {then}. Allowed is {allowed}.")


def find_refusal(agent: str, status: Status) -> Agent3Error | None:
    """Why an agent in this state takes no new work; None if it does."""
    if status in IN_SERVICE:
        return None
    duration = "any more" if status == "retired" else "for now"
    error = Unavailable(f"Agent {agent[:100]!r} is {status} and accepts no new work {duration}. Find another one.")
    error.sent = False
    return error
