"""``agent3 route``: which capabilities answer for which others while those are down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import make_console, make_table
from agent3.errors import SetupError
from agent3.terminal.output import clean, print_result

__all__ = ["route"]


def route(
    capability: str | None = None,
    *,
    also: str | None = None,
    map: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),  # noqa: A002 - the option is called so
    output: str | None = None,
    remove: bool = False,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Let a capability answer for another one while that is down; without arguments, list these routes.

    Parameters
    ----------
    capability:
        The capability that has, or gets, a stand-in: AGENT.CAPABILITY.
    also:
        The capability that stands in for it, of any agent and protocol: AGENT.CAPABILITY.
    map:
        Inputs whose names differ: THEIRS=OURS, the name in --also and the name in CAPABILITY.
    output:
        The field of the result of CAPABILITY that the result of --also becomes, where the results differ.
    remove:
        Remove the route to --also, or all routes of CAPABILITY to others.
    """
    gateway = connect(options)
    if capability is None:
        if also is not None or map or output is not None or remove:
            raise SetupError(
                "Say which capability the route is of: agent3 route AGENT.CAPABILITY --also AGENT.CAPABILITY"
            )
        print_result(gateway.routes(None), options.json, _print_routes)
    elif remove:
        if map or output is not None:
            raise SetupError("--remove takes no --map and no --output.")
        print_result(gateway.remove_route(capability, also), options.json, _print_removed)
    elif also is None:
        if map or output is not None:
            raise SetupError("Say which capability stands in: --also AGENT.CAPABILITY")
        print_result(gateway.routes(capability), options.json, _print_routes)
    else:
        print_result(gateway.add_route(_body(capability, also, map, output)), options.json, _print_added)


def _body(capability: str, also: str, pairs: tuple[str, ...], output: str | None) -> dict[str, Any]:
    from agent3.gateway.routes import parse_map

    body: dict[str, Any] = {"capability": capability, "also": also, "map": parse_map(pairs)}
    return {**body, "output": output} if output is not None else body


def _print_routes(found: Mapping[str, Any]) -> None:
    if not found["routes"]:
        print("No capability has a stand-in. Add one: agent3 route AGENT.CAPABILITY --also AGENT.CAPABILITY")
        return
    table = make_table("capability", "also", "inputs", "state")
    for one in found["routes"]:
        names = ", ".join(f"{their}={our}" for their, our in one["map"].items())
        state = f"{one['state']}: {one['why']}" if one.get("why") else one["state"]
        cells = (one["capability"], one["also"], names or "-", state)
        table.add_row(*(clean(cell) for cell in cells))
    make_console().print(table)


def _print_added(one: Mapping[str, Any]) -> None:
    print(clean(f"{one['also']} answers for {one['capability']} while that is down."))


def _print_removed(body: Mapping[str, Any]) -> None:
    count = body["removed"]
    print(f"Removed {count} route{'' if count == 1 else 's'}.")
