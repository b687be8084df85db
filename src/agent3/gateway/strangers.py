"""What others may name in a catalog or in a description of themselves: addresses, and nothing of this machine.

A program to run, a folder, or a reference to a secret is named by the person who adds something, and by nobody else.
"""

from __future__ import annotations

from agent3.errors import SecurityError, SetupError, TooLarge
from agent3.identity.secret_refs import references_in
from agent3.model import Agent, Route, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.security.foreign_words import clean_agent, explain_name

__all__ = ["admit_described", "check_listed", "check_name", "needs_secret"]

log = logger("server")

_MOST_CAPABILITIES, _MOST_BYTES = 5_000, 8 << 20
"""Of one agent. It is read as a whole whenever it is used after a while, in the event loop."""


def check_listed(route: Route, name: str) -> None:
    """SetupError where an entry of a catalog is more than an address on the web."""
    again = "Download its description and add that instead, if you trust it."
    if not route.address.startswith(("http://", "https://")):
        raise SetupError(f"{name} is a program, and a catalog may not decide what runs here. {again}")
    if needs_secret(route):
        raise SetupError(
            f"{name} asks for a secret of this machine, and a catalog may not decide who gets one. {again}"
        )


def needs_secret(route: Route) -> bool:
    """Whether a route takes a secret of this machine along."""
    return route.credential is not None or bool(references_in(route))


def admit_described(agent: Agent, given: Route) -> Agent:
    """What an agent says of itself, as data: texts cleaned and bounded, and without what has a deceptive name.

    SecurityError where it names a program or a secret that ``given`` does not; TooLarge where it says too much.
    """
    known = references_in(given)
    for capability in agent.capabilities:
        for route in capability.routes:
            if route.address.startswith("stdio:") and route.address != given.address:
                raise SecurityError(f"{agent.name} describes itself as a program of this machine.")
            if route.credential not in (None, given.credential) or references_in(route) - known:
                raise SecurityError(f"{agent.name} asks for a secret of this machine in its description.")
    if (many := len(agent.capabilities)) > _MOST_CAPABILITIES:
        raise TooLarge(f"{agent.name[:100]} has {many} capabilities; an agent may have {_MOST_CAPABILITIES} at most.")
    cleaned, refused = clean_agent(agent)
    if (size := len(encode(cleaned))) > _MOST_BYTES:
        raise TooLarge(f"The description of {cleaned.id} has {size} bytes; at most {_MOST_BYTES} are kept.")
    for name, why in refused:
        METRICS.foreign_names_refused.inc()
        log.warning("%s: ignoring capability %r: %s", cleaned.id, name, why)
    return cleaned


def check_name(agent: Agent) -> None:
    """SecurityError for the name of an agent that cannot be seen for what it is."""
    if why := explain_name(agent.name):
        METRICS.foreign_names_refused.inc()
        raise SecurityError(f"{agent.id} cannot be added under the name it gives itself: {why}. Choose another --name.")
