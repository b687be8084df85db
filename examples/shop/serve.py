"""Serve the demo shop on loopback: ``python serve.py [--port 8400] [--redesigned]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent3.testing import Website

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8400)
    parser.add_argument("--redesigned", action="store_true", help="the same shop after a relaunch")
    chosen = parser.parse_args()
    try:
        shop = Website(HERE / ("redesigned" if chosen.redesigned else "site"), chosen.port)
    except OSError as error:
        raise SystemExit(
            f"Cannot listen on port {chosen.port}: {error.strerror}. Choose another with --port."
        ) from None
    with shop as site:
        print(f"The shop is at {site.url}. Ctrl-C ends it.", flush=True)
        try:
            site.wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
