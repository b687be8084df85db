"""``agent3 search``, ``list`` and ``show``: what a gateway knows of agents."""

from __future__ import annotations

from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import MOST, print_agent, print_agents
from agent3.terminal.output import print_indented, print_result

__all__ = ["list_agents", "search", "show"]


def search(
    text: tuple[str, ...],
    *,
    limit: int = 10,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Find agents by what they do.

    Parameters
    ----------
    text:
        What you need, in a few words.
    limit:
        At most this many, up to 50 [default: 10].
    """
    found = connect(options).search(" ".join(text), limit)
    print_result(found, options.json, print_agents)


def list_agents(*, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """List all agents."""
    found = connect(options).search("", MOST)
    print_result(found, options.json, print_agents)


def show(agent: str, *, card: bool = False, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """Show an agent: what it can do, with schemas, prices and ratings.

    Parameters
    ----------
    agent:
        Its id, as agent3 search prints it.
    card:
        Show its raw card instead.
    """
    gateway = connect(options)
    body = gateway.card(agent) if card else gateway.show(agent)
    print_result(body, options.json, print_indented if card else print_agent)
