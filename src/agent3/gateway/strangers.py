"""What others may name in a catalog or in a description of themselves: addresses, and nothing of this machine.

A program to run, a folder, or a reference to a secret is named by the person who adds something, and by nobody else.
"""

from __future__ import annotations

from agent3.errors import SecurityError, SetupError
from agent3.identity.secret_refs import references_in
from agent3.model import Agent, Route

__all__ = ["check_described", "check_listed", "needs_secret"]


def check_listed(route: Route, name: str) -> None:
    """SetupError where an entry of a catalog is more than an address on the web."""
    again = "Download its description and add that, if you want it."
    if not route.address.startswith(("http://", "https://")):
        raise SetupError(f"{name} is a program, and a catalog does not decide what runs here. {again}")
    if needs_secret(route):
        raise SetupError(f"{name} wants a secret of this machine, and a catalog does not decide who gets one. {again}")


def needs_secret(route: Route) -> bool:
    """Whether a route takes a secret of this machine along."""
    return route.credential is not None or bool(references_in(route))


def check_described(agent: Agent, given: Route) -> None:
    """SecurityError where what an agent says of itself names a program or a secret that ``given`` does not."""
    known = references_in(given)
    for capability in agent.capabilities:
        for route in capability.routes:
            if route.address.startswith("stdio:") and route.address != given.address:
                raise SecurityError(f"{agent.name} describes itself as a program of this machine.")
            if route.credential not in (None, given.credential) or references_in(route) - known:
                raise SecurityError(f"{agent.name} asks in its description for a secret of this machine.")
