"""Everything-servers of several SDKs, judged by the protocol's kit: directly, and behind a gateway.

That of the official Python SDK comes from PyPI with each version. For fastmcp and the TypeScript SDK, whose packages
have none that knows the kit, ``peers/`` has one written with their usual calls. Of Go and Rust npm has servers that do
other things; they show what the protocol asks of every server. A check that passes directly and fails behind the
gateway is a fault of ours, unless it is among ``IMPOSSIBLE``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.kits import KitError, Npm, cache, python_with
from conformance.mcp_gateway import through_gateway
from conformance.mcp_suite import LEGS, Leg, Report, await_server, judge
from interop.matrix import PROGRAMS, TYPESCRIPT_1, TYPESCRIPT_2, place_program
from interop.ports import find_free_ports
from interop.servers import KUBECONFIG

__all__ = ["IMPOSSIBLE", "SERVERS", "Row", "Server", "run"]

_EXAMPLE = "examples/servers/everything-server"
_UNTESTABLE = "Not testable"
"""How the kit puts it that a server lacks a tool. Behind a gateway it notices, since an unknown tool is an error."""


@dataclass(frozen=True)
class Server:
    """A server that is judged, by the name that it has in the table. ``command`` takes the port."""

    name: str
    command: Callable[[int], list[str]]
    folder: Callable[[], Path] = Path.cwd
    both_eras: bool = False
    """Whether it has the modern era too."""


def _official(version: str) -> Server:
    """The everything-server in the source package of the official Python SDK."""

    def command(port: int) -> list[str]:
        return [str(python_with("mcp", version, "click")), "-m", "mcp_everything_server", "--port", str(port)]

    return Server(f"mcp {version}", command, lambda: _get_example(version), version.startswith("2."))


def _fastmcp(version: str, *, both_eras: bool = False) -> Server:
    program = str(PROGRAMS / "everything_fastmcp.py")
    return Server(
        f"fastmcp {version}",
        lambda port: [str(python_with("fastmcp", version)), program, str(port)],
        both_eras=both_eras,
    )


def _typescript(kit: Npm, generation: str) -> Server:
    def command(port: int) -> list[str]:
        return [*place_program(kit, "everything_typescript.mjs"), generation, str(port)]

    return Server(f"TypeScript SDK {kit.version}", command, both_eras=generation == "2")


GO = Npm("kubernetes-mcp-server", "0.0.67", "bin/index.js")
RUST = Npm("nushell", "0.115.1", "lib/index.js")


def _go(port: int) -> list[str]:
    settings = cache() / "kubeconfig"
    settings.write_text(KUBECONFIG, "utf-8")
    words = ["--port", str(port), "--bind-address", "127.0.0.1", "--kubeconfig", str(settings)]
    return [*GO.command(), *words, "--cluster-provider", "kubeconfig"]


SERVERS = (
    _official("1.26.0"),
    _official("1.30.0"),
    _official("2.3.0"),
    _fastmcp("2.14.7"),
    _fastmcp("3.4.10"),
    _fastmcp("4.1.2", both_eras=True),
    _typescript(TYPESCRIPT_1, "1"),
    _typescript(TYPESCRIPT_2, "2"),
    Server("Go, kubernetes-mcp-server 0.0.67", _go),
    Server(
        "Rust, nushell 0.115.1",
        lambda port: [*RUST.command(), "--mcp", "--mcp-transport", "http", "--mcp-port", str(port)],
    ),
)

_UNDECLARED = "the server answers what it does not declare; behind a gateway there is what a server declares"
IMPOSSIBLE: Mapping[tuple[str, str], str] = {
    ("Rust, nushell 0.115.1", case): _UNDECLARED for case in ("completion-complete", "prompts-list", "resources-list")
}
"""Scenarios that cannot pass behind a gateway, by server, each with the reason."""


@dataclass(frozen=True)
class Row:
    """One server before one leg of the kit, in both places."""

    server: str
    direct: Report
    behind: Report

    @property
    def ours(self) -> list[str]:
        """What fails only behind the gateway."""
        before = {_case(fault) for fault in self.direct.faults}
        return [
            fault
            for fault in self.behind.faults
            if fault.startswith("FAILURE")
            and _case(fault) not in before
            and _UNTESTABLE not in fault
            and (self.server, _case(fault).partition(":")[0]) not in IMPOSSIBLE
        ]

    @property
    def fine(self) -> bool:
        return not self.ours and self.behind.checks["SUCCESS"] > 0


def run(tell: Callable[[Row], None], words: Sequence[str] = ()) -> list[Row]:
    """Judge the servers whose names contain one of the words, by default all. KitError where one cannot be got."""
    rows = []
    for server in SERVERS:
        if words and not any(word in server.name for word in words):
            continue
        with _serving(server) as url, through_gateway(url) as behind:
            for leg in _legs(server):
                rows.append(Row(server.name, judge(leg, url), judge(leg, behind)))
                tell(rows[-1])
    if not rows:
        raise KitError(f"There is no such server. There are: {', '.join(server.name for server in SERVERS)}.")
    return rows


def _legs(server: Server) -> list[Leg]:
    """The legs of the handshake era for all, those of the modern era for servers that have it."""
    names = ["server-2025-11-25", *(["server-2026-07-28"] if server.both_eras else [])]
    return [leg for leg in LEGS if leg.name in names]


def _case(fault: str) -> str:
    """The scenario and check that a fault is about."""
    return ":".join(fault.split(" ", 2)[2].split(":", 2)[:2])


@contextmanager
def _serving(server: Server) -> Iterator[str]:
    (port,) = find_free_ports(1)
    command, folder = server.command(port), server.folder()
    quiet = subprocess.DEVNULL
    # In a group of its own: some start the server as a process below them, and leave it there.
    with subprocess.Popen(  # noqa: S603 - our own words
        command, cwd=folder, stdout=quiet, stderr=quiet, start_new_session=True
    ) as process:
        try:
            url = f"http://localhost:{port}/mcp"
            await_server(process, url)
            yield url
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


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
