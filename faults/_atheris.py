"""Feeds one decoder with what atheris finds: ``python -m faults._atheris DECODER SECONDS SEED``.

A process of its own, since the fuzzer ends the process that it runs in.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore] # an optional tool

    with atheris.instrument_imports(include=["agent3"]):
        from faults._decoders import LONGEST, decode

    name, seconds, seed = sys.argv[1:4]
    bounds = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=5"]

    def once(raw: Any) -> None:
        decode(name, bytes(raw))

    atheris.Setup([sys.argv[0], *bounds, f"-seed={seed}", "-print_final_stats=1"], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
