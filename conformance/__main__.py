"""The command line: ``python -m conformance mcp [--serve PORT | --leg NAME … | --url URL]``, and
``python -m conformance a2a --serve PORT [--profile NAME] [--grpc-port N] | --tck PATH [--leg NAME …]``.

With a URL only the legs that judge a server run, unless others are named.

Ends with 0, with 1 when a check failed or a kit could not be got, with 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import a2a_agent, a2a_suite, mcp_fixture, mcp_gateway, mcp_suite
from conformance.kits import KitError

LEGS = {leg.name: leg for leg in mcp_suite.LEGS}
A2A_LEGS = {leg.name: leg for leg in a2a_suite.LEGS}
PLACES = {
    "fixture": mcp_suite.fixture_server,
    "library": mcp_suite.library_server,
    "gateway": mcp_gateway.through_gateway,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite, or serve its fixture."""
    chosen = _parser().parse_args(arguments)
    try:
        return _a2a(chosen) if chosen.suite == "a2a" else _mcp(chosen)
    except KitError as wrong:
        print(wrong, file=sys.stderr)
        return 1


def _a2a(chosen: argparse.Namespace) -> int:
    if chosen.serve is not None:
        print(f"The agent under test is at http://localhost:{chosen.serve}", file=sys.stderr)
        if chosen.shipped is not None:
            a2a_agent.serve_shipped(chosen.shipped, chosen.serve, chosen.grpc_port or 0)
            return 0
        a2a_agent.serve(chosen.serve, chosen.profile, chosen.grpc_port, chosen.kit, chosen.table)
        return 0
    return a2a_suite.run(chosen.tck, [A2A_LEGS[name] for name in chosen.leg] if chosen.leg else None, chosen.limit)


def _mcp(chosen: argparse.Namespace) -> int:
    if chosen.serve is not None:
        print(f"The fixture server is at http://localhost:{chosen.serve}/mcp", file=sys.stderr)
        mcp_fixture.serve(chosen.serve)
        return 0
    return mcp_suite.run(_legs(chosen.leg, chosen.url), chosen.url, PLACES, chosen.limit)


def _legs(names: Sequence[str] | None, url: str | None) -> list[mcp_suite.Leg]:
    if names:
        return [LEGS[name] for name in names]
    return [leg for leg in LEGS.values() if url is None or leg.judges == "fixture"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description="The protocols' own conformance suites.")
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    mcp = suites.add_parser("mcp", help="the kit of the Model Context Protocol")
    mcp.add_argument("--serve", type=int, metavar="PORT", help="start only the fixture server, at /mcp")
    mcp.add_argument("--leg", action="append", choices=sorted(LEGS), help="run this leg only; may be repeated")
    mcp.add_argument("--url", help="test the server at this address instead of the fixture")
    _add_a2a(suites)
    for suite in (mcp, suites.choices["a2a"]):
        suite.add_argument("--limit", type=float, default=mcp_suite.PATIENCE, metavar="SECONDS", help="for each run")
    return parser


def _add_a2a(suites: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    a2a = suites.add_parser("a2a", help="the kit of the Agent2Agent protocol")
    what = a2a.add_mutually_exclusive_group(required=True)
    what.add_argument("--serve", type=int, metavar="PORT", help="start only the agent under test")
    what.add_argument("--tck", type=Path, metavar="PATH", help="run the kit of this checkout: branch 1.0-dev or 0.3.x")
    a2a.add_argument("--profile", choices=a2a_agent.PROFILES, default="full", help="what the agent declares")
    a2a.add_argument("--grpc-port", type=int, metavar="PORT", help="speak gRPC too, here")
    a2a.add_argument("--kit", choices=("1.0", "0.3"), default="1.0", help="whose card the agent shows")
    a2a.add_argument("--table", choices=("1.0.0", "1.0.1"), default="1.0.0", help="whose statuses of errors it has")
    a2a.add_argument("--shipped", choices=a2a_agent.SHIPPED, help="with every default, by a2a.serve or agent3 serve")
    a2a.add_argument("--leg", action="append", choices=sorted(A2A_LEGS), help="run this leg only; may be repeated")


if __name__ == "__main__":
    sys.exit(main())
