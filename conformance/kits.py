"""Other people's test kits, from npm and PyPI by name and version, in the user's cache folder.

What is there already is used as it is, without a network. Nothing of it is part of the project.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CONFORMANCE",
    "CONFORMANCE_OLD",
    "FASTMCP",
    "INSPECTOR",
    "KitError",
    "Npm",
    "cache",
    "python_for",
    "python_with",
]

NODE = "22"
"""The major version of node that the kits are made for."""
PATIENCE = 900
"""Seconds for one installation."""


class KitError(Exception):
    """A kit could not be got; the message says what to do."""


@dataclass(frozen=True)
class Npm:
    """A package of npm at one version, and the file in it that node runs."""

    package: str
    version: str
    entry: str
    beside: tuple[str, ...] = ()
    """Further packages that it needs and does not bring."""

    @property
    def folder(self) -> Path:
        """Where it is kept; each version has its own, with a node of its own."""
        return cache() / f"{self.package.rpartition('/')[2]}-{self.version}"

    def command(self) -> list[str]:
        """What to run it with; installed first, if it is not there."""
        if not self._there():
            self._install()
        node = self.folder / "node_modules" / ".bin" / "node"
        return [str(node), str(self.folder / "node_modules" / self.package / self.entry)]

    def _there(self) -> bool:
        manifest = self.folder / "node_modules" / self.package / "package.json"
        if not manifest.is_file() or not (self.folder / "node_modules" / ".bin" / "node").exists():
            return False
        return bool(json.loads(manifest.read_text("utf-8"))["version"] == self.version)

    def _install(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise KitError(f"{self.package} comes from npm, which is not on PATH. Install Node.js {NODE} or later.")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "package.json").write_text('{"private": true}\n', "utf-8")
        packages = [f"node@{NODE}", *self.beside, f"{self.package}@{self.version}"]
        _quietly([npm, "install", "--no-audit", "--no-fund", "--no-save", *packages], self.folder)
        if not self._there():
            raise KitError(f"npm did not install {self.package} {self.version} into {self.folder}.")


CONFORMANCE = Npm("@modelcontextprotocol/conformance", "0.2.0-alpha.12", "dist/index.js")
CONFORMANCE_OLD = Npm("@modelcontextprotocol/conformance", "0.1.16", "dist/index.js")
INSPECTOR = Npm("@modelcontextprotocol/inspector", "2.12.0", "clients/launcher/build/index.js")
FASTMCP = ("fastmcp", "4.1.2")


def cache() -> Path:
    """Where the kits are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "agent3" / "kits"


def python_with(package: str, version: str, *beside: str) -> Path:
    """A Python of its own that has a package of PyPI at one version, and others beside it at any."""
    folder = cache() / f"{package.partition('[')[0]}-{version}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.is_file():
        venv.create(folder, with_pip=True, clear=True)
        _quietly([str(python), "-m", "pip", "install", "--quiet", *beside, f"{package}=={version}"], folder)
        done.touch()
    return python


def python_for(name: str, requirements: Sequence[str]) -> Path:
    """A Python of its own for a kit that is given as a checkout, with what that says it needs."""
    folder = cache() / name
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(requirements)
    if not done.is_file() or done.read_text("utf-8") != wanted:
        venv.create(folder, with_pip=True, clear=True)
        _quietly([str(python), "-m", "pip", "install", "--quiet", *requirements], folder)
        done.write_text(wanted, "utf-8")
    return python


def _quietly(command: list[str], folder: Path) -> None:
    """Run an installer; what it says matters only when it went wrong."""
    print(f"getting {command[-1]} ...", file=sys.stderr)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise KitError(f"{command[-1]} was not installed within {PATIENCE} s. Is the network reachable?") from None
    if done.returncode:
        raise KitError(f"{command[-1]} could not be installed:\n{(done.stderr or done.stdout)[-2000:]}")


if __name__ == "__main__":
    # What scripts/interop needs, so that no test has to wait for it.
    try:
        INSPECTOR.command()
        python_with(*FASTMCP)
    except KitError as wrong:
        sys.exit(str(wrong))
