"""The command line of the faults."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence

from faults.registry import Fault, Result, known


def main(arguments: Sequence[str] | None = None) -> int:
    faults = known()
    parser = argparse.ArgumentParser(prog="faults", description="Break things on purpose and look what is left.")
    parser.add_argument("name", nargs="?", choices=[*faults, "all"], help="one fault, or all of them")
    parser.add_argument("--list", action="store_true", help="name every fault and what it is about")
    parser.add_argument("--seed", type=int, help="repeat a run with the seed that it printed")
    parser.add_argument("--json", action="store_true", help="one JSON object for each fault, and nothing else")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{fault.name:<22}{fault.about}" for fault in faults.values()))
        return 0
    if options.name is None:
        parser.error("name a fault, or say all; --list names them")
    chosen = list(faults.values()) if options.name == "all" else [faults[options.name]]
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    results = [_perform(fault, seed, as_json=options.json) for fault in chosen]
    return 0 if all(result["ok"] for result in results) else 1


def _perform(fault: Fault, seed: int, *, as_json: bool) -> Result:
    print(f"{fault.name}: seed {seed}", file=sys.stderr, flush=True)
    started = time.monotonic()
    result = {"fault": fault.name, "seed": seed, **_run(fault, seed), "seconds": round(time.monotonic() - started, 1)}
    if as_json:
        print(json.dumps(result), flush=True)
    else:
        print(f"{fault.name}: {'ok' if result['ok'] else 'FAILED'}")
        print("\n".join(f"  {key:<28}{value}" for key, value in result.items()), flush=True)
    return result


def _run(fault: Fault, seed: int) -> Result:
    """Its result; one that breaks down has failed, and does not keep the others from their turn."""
    try:
        return fault.run(seed)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told
        traceback.print_exc()
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main())
