"""The command line: ``python -m conformance mcp [--serve PORT | --leg NAME … | --url URL]``.

With a URL only the legs that judge a server run, unless others are named.

Ends with 0, with 1 when a check failed or a kit could not be got, with 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance import mcp_fixture, mcp_gateway, mcp_suite
from conformance.kits import KitError

LEGS = {leg.name: leg for leg in mcp_suite.LEGS}
PLACES = {"fixture": mcp_suite.fixture_server, "gateway": mcp_gateway.through_gateway}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite, or serve its fixture."""
    chosen = _parser().parse_args(arguments)
    if chosen.serve is not None:
        print(f"The fixture server is at http://localhost:{chosen.serve}/mcp", file=sys.stderr)
        mcp_fixture.serve(chosen.serve)
        return 0
    try:
        return mcp_suite.run(_legs(chosen.leg, chosen.url), chosen.url, PLACES)
    except KitError as wrong:
        print(wrong, file=sys.stderr)
        return 1


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
    return parser


if __name__ == "__main__":
    sys.exit(main())
