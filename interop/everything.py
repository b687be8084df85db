"""The official everything-server of several SDK versions, judged by the protocol's kit: directly, and behind a gateway.

Each server comes from PyPI with the SDK that it was written for, and runs in an environment of its own. A check that
passes directly and fails behind the gateway is a fault of ours.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.kits import KitError, cache, python_with
from conformance.mcp_gateway import through_gateway
from conformance.mcp_suite import LEGS, Leg, Report, await_server, judge

__all__ = ["VERSIONS", "Row", "run"]

VERSIONS = ("1.26.0", "1.30.0", "2.3.0")
"""Versions of the SDK: an older one and the newest of the handshake era, and one of both eras."""
_EXAMPLE = "examples/servers/everything-server"
_UNTESTABLE = "Not testable"
"""How the kit puts it that a server lacks a tool. Behind a gateway it notices, since an unknown tool is an error."""


@dataclass(frozen=True)
class Row:
    """One server before one leg of the kit, in both places."""

    version: str
    direct: Report
    behind: Report

    @property
    def ours(self) -> list[str]:
        """What fails only behind the gateway."""
        before = {_case(fault) for fault in self.direct.faults}
        return [
            fault
            for fault in self.behind.faults
            if fault.startswith("FAILURE") and _case(fault) not in before and _UNTESTABLE not in fault
        ]

    @property
    def fine(self) -> bool:
        return not self.ours and self.behind.checks["SUCCESS"] > 0


def run(tell: Callable[[Row], None], names: Sequence[str] = ()) -> list[Row]:
    """Judge the servers of these versions, by default all. KitError where one cannot be got."""
    rows = []
    for version in names or VERSIONS:
        with _serving(version) as url, through_gateway(url) as behind:
            for leg in _legs(version):
                rows.append(Row(version, judge(leg, url), judge(leg, behind)))
                tell(rows[-1])
    return rows


def _legs(version: str) -> list[Leg]:
    """The legs of the handshake era for all, those of the modern era for servers that have it."""
    names = ["server-2025-11-25", *(["server-2026-07-28"] if version.startswith("2.") else [])]
    return [leg for leg in LEGS if leg.name in names]


def _case(fault: str) -> str:
    """The scenario and check that a fault is about."""
    return ":".join(fault.split(" ", 2)[2].split(":", 2)[:2])


@contextmanager
def _serving(version: str) -> Iterator[str]:
    python = python_with("mcp", version, "click")
    folder = _get_example(version)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(python), "-m", "mcp_everything_server", "--port", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet) as process:  # noqa: S603 - our own words
        try:
            url = f"http://localhost:{port}/mcp"
            await_server(process, url)
            yield url
        finally:
            process.terminate()


def _get_example(version: str) -> Path:
    """The server's folder, out of the source package of the SDK."""
    folder = cache() / f"mcp-{version}-source"
    example = folder / f"mcp-{version}" / _EXAMPLE
    if not example.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mcp"]
        done = subprocess.run(  # noqa: S603 - our own words
            [*command, "--dest", str(folder), f"mcp=={version}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KitError(f"The source of mcp {version} could not be got:\n{done.stderr[-2000:]}")
        with tarfile.open(folder / f"mcp-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return example
