"""The wheel and the sdist as people install them: by pip, pipx and uv, with every Python here, outside the repository.

Each way gets an empty home. It must give a command ``agent3`` that makes a call to a demo agent, and a package that
``import agent3`` finds where that way put it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

__all__ = ["PYTHONS", "Row", "run"]

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SECONDS = 600
CALL = ("call", "calculator", "2 * (3 + 4)", "--demo")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one way to install with one Python."""

    way: str
    python: str
    fine: bool
    note: str


def run(tell: Callable[[Row], None], names: Sequence[str] = ()) -> list[Row]:
    """Build both and try every way, or those that are named."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="agent3-packages-") as name:
        folder = Path(name)
        _do([sys.executable, "-m", "venv", folder / "tools"])
        _do([folder / "tools/bin/pip", "install", "--quiet", "build", "pipx", "uv"])
        _do([folder / "tools/bin/python", "-m", "build", "--outdir", folder / "dist", ROOT])
        (wheel,), (sdist,) = ((folder / "dist").glob(end) for end in ("*.whl", "*.tar.gz"))
        for python, program in _pythons():
            for way, install, package in (
                ("pip", _by_pip, wheel),
                ("pipx", _by_pipx, wheel),
                ("uvx", _by_uvx, wheel),
                ("sdist", _by_pip, sdist),
            ):
                if names and way not in names and python not in names:
                    continue
                home = folder / f"{way}-{python}"
                home.mkdir()
                rows.append(_try(way, python, partial(install, folder, package, program, home)))
                tell(rows[-1])
    return rows


def _pythons() -> Iterator[tuple[str, str]]:
    """The Pythons that can be found: on PATH, or beside the one that runs this."""
    for version in PYTHONS:
        beside = Path(sys.base_prefix).parent
        candidates = [
            shutil.which(f"python{version}"),
            *map(str, sorted(beside.glob(f"{version}.*/bin/python{version}"))),
        ]
        for program in filter(None, candidates):
            tried = subprocess.run([program, "-c", "pass"], capture_output=True, timeout=60, check=False)  # noqa: S603
            if tried.returncode == 0:
                yield version, program
                break


def _try(way: str, python: str, install: Callable[[], str]) -> Row:
    try:
        said = install()
    except subprocess.CalledProcessError as wrong:
        return Row(way, python, fine=False, note=(wrong.stderr or wrong.stdout or "").strip()[-400:])
    return Row(way, python, fine=said.strip() == "14", note="" if said.strip() == "14" else said[-400:])


def _by_pip(folder: Path, package: Path, python: str, home: Path) -> str:
    _do([python, "-m", "venv", home / "venv"])
    _do([home / "venv/bin/pip", "install", "--quiet", package])
    return _do([home / "venv/bin/agent3", *CALL], home)


def _by_pipx(folder: Path, package: Path, python: str, home: Path) -> str:
    return _do([folder / "tools/bin/pipx", "run", "--python", python, "--spec", package, "agent3", *CALL], home)


def _by_uvx(folder: Path, package: Path, python: str, home: Path) -> str:
    return _do([folder / "tools/bin/uvx", "--python", python, "--from", package, "agent3", *CALL], home)


def _do(command: Sequence[str | Path], home: Path | None = None) -> str:
    """Run it and give what it prints; a plain environment with a home of its own, where one is named."""
    environment: Mapping[str, str] = os.environ
    if home is not None:
        named = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")  # a machine may have an authority of its own
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_")) or name in named}
        environment = {**kept, "HOME": str(home), "AGENT3_DATA": str(home / "data"), "NO_COLOR": "1"}
    done = subprocess.run(  # noqa: S603
        list(map(str, command)), cwd=home, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout
