"""The command line: ``python -m conformance mcp [--serve PORT | --leg NAME … | --url URL]``.

Ends with 0, with 1 when a check failed or a kit could not be got, with 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance import mcp_fixture, mcp_suite
from conformance.kits import KitError

LEGS = {leg.name: leg for leg in mcp_suite.LEGS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite, or serve its fixture."""
    chosen = _parser().parse_args(arguments)
    if chosen.serve is not None:
        print(f"The fixture server is at http://localhost:{chosen.serve}/mcp", file=sys.stderr)
        mcp_fixture.serve(chosen.serve)
        return 0
    try:
        return mcp_suite.run([LEGS[name] for name in chosen.leg or LEGS], chosen.url)
    except KitError as wrong:
        print(wrong, file=sys.stderr)
        return 1


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
