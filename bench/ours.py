"""``agent3 serve`` as the benches run it: with everything on that a gateway at work has.

One client with a key or a secret to sign with, a rule that allows it, a rate limit that counts but is never reached,
metrics, and the ledger as asked for, in a fresh SQLite file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agent3.identity.signed_requests import sign
from bench.harness import ROOT
from bench.load import HOST, Request

__all__ = ["ENVIRONMENT", "Command", "serve", "signed", "with_key", "written"]

Command = Callable[[int, Path], list[str]]
Ledger = Literal["batched", "durable"]

CLIENT = "bench"
KEY = "a key that is only good on loopback, for the length of a bench"
ENVIRONMENT = {"BENCH_KEY": KEY, "PYTHONPATH": str(ROOT)}
"""What such a gateway, and the commands that speak of its file, find in their environment."""
_SETTINGS = """
[calls]
ledger = "{ledger}"

[limits]
per_minute = 1e9
burst = 1000000
concurrent = 1000

[[clients]]
id = "{client}"
{proof}

[[rules]]
effect = "allow"
principal = "{client}"
"""
_KEY = 'key = "env:BENCH_KEY"'
_SIGNATURE = 'signing = "env:BENCH_KEY"\nrequire_signature = true'


def written(folder: Path, ledger: Ledger, *, signing: bool = False, memory: bool = False) -> list[str]:
    """Write the settings into the folder; the options that make a command use them, and a database beside them.

    With ``memory`` the database is none that outlives the process.
    """
    config = folder / "agent3.toml"
    config.write_text(_SETTINGS.format(ledger=ledger, client=CLIENT, proof=_SIGNATURE if signing else _KEY))
    return ["--config", str(config), "--db", ":memory:" if memory else f"sqlite:///{folder / 'bench.db'}"]


def serve(*agents: str, ledger: Ledger = "batched", signing: bool = False, memory: bool = False) -> Command:
    """What starts the gateway; ``agents`` are further arguments, such as ``--demo`` or MODULE:NAME."""

    def command(port: int, folder: Path) -> list[str]:
        options = written(folder, ledger, signing=signing, memory=memory)
        return [sys.executable, "-m", "agent3", "serve", *agents, "--port", str(port), *options]

    return command


def with_key(request: Request) -> Request:
    """The request as the client sends it that shows its key."""
    return replace(request, headers={**request.headers, "Authorization": f"Bearer {KEY}"})


def signed(request: Request) -> Request:
    """The request as the client sends it that signs, each one anew."""

    def fresh(port: int, body: bytes) -> Mapping[str, str]:
        url = f"http://{HOST}:{port}{request.path}"
        return sign(request.method, url, body, key_id=CLIENT, key=KEY, headers=request.headers)

    return replace(request, fresh=fresh)
