"""``agent3 route``: capabilities that stand in for others."""

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
    """Let one capability stand in for another that is down. Without arguments, list the stand-ins.

    Parameters
    ----------
    capability:
        The capability that gets a stand-in: AGENT.CAPABILITY.
    also:
        The stand-in, of any agent and protocol: AGENT.CAPABILITY.
    map:
        Inputs with different names, as THEIRS=OURS: the name in --also, and the name in CAPABILITY.
    output:
        Field of CAPABILITY's result that takes the result of --also, if the results differ.
    remove:
        Remove the stand-in --also, or all stand-ins of CAPABILITY.
    """
    gateway = connect(options)
    if capability is None:
        if also is not None or map or output is not None or remove:
            raise SetupError("Name the capability: agent3 route AGENT.CAPABILITY --also AGENT.CAPABILITY")
        print_result(gateway.routes(None), options.json, _print_routes)
    elif remove:
        if map or output is not None:
            raise SetupError("--remove cannot be combined with --map or --output.")
        print_result(gateway.remove_route(capability, also), options.json, _print_removed)
    elif also is None:
        if map or output is not None:
            raise SetupError("Name the stand-in: --also AGENT.CAPABILITY")
        print_result(gateway.routes(capability), options.json, _print_routes)
    else:
        print_result(gateway.add_route(_body(capability, also, map, output)), options.json, _print_added)


def _body(capability: str, also: str, pairs: tuple[str, ...], output: str | None) -> dict[str, Any]:
    from agent3.gateway.routes import parse_map

    body: dict[str, Any] = {"capability": capability, "also": also, "map": parse_map(pairs)}
    return {**body, "output": output} if output is not None else body


def _print_routes(found: Mapping[str, Any]) -> None:
    if not found["routes"]:
        print("No stand-ins. To add one: agent3 route AGENT.CAPABILITY --also AGENT.CAPABILITY")
        return
    table = make_table("capability", "also", "inputs", "state")
    for one in found["routes"]:
        names = ", ".join(f"{their}={our}" for their, our in one["map"].items())
        state = f"{one['state']}: {one['why']}" if one.get("why") else one["state"]
        cells = (one["capability"], one["also"], names or "-", state)
        table.add_row(*(clean(cell) for cell in cells))
    make_console().print(table)


def _print_added(one: Mapping[str, Any]) -> None:
    print(clean(f"{one['also']} stands in for {one['capability']} when that is down."))


def _print_removed(body: Mapping[str, Any]) -> None:
    count = body["removed"]
    print(f"Removed {count} route{'' if count == 1 else 's'}.")
