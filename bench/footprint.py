"""``footprint``: what an installation weighs and how soon it serves, beside the official SDKs.

Builds three virtual environments in a temporary folder, which takes minutes: ours (requirements/run.txt and the project
itself), one with only ``mcp``, one with only ``a2a-sdk[http-server]``. The gateway is started without demo and browser;
beside it stands the SDK's own minimal server (bench/apps/sdk.py), an echo tool and nothing else.

Rows are named WHOSE_WHAT and carry ``value`` and ``unit``; ours also ``limit`` and ``met``. MB are 10^6 bytes. Install
size is that of site-packages without bytecode, pip and setuptools; packages are counted without these two. Start is the
time from the start of the process to the first 200 of /healthz, import is that of a fresh interpreter less that of one
which imports nothing; both are medians.

Ratios, below 1 where ours is smaller or sooner:

    ours_vs_mcp_sdk_WHAT    value of ours / value of the MCP SDK, for each WHAT that both have
    ours_vs_a2a_sdk_WHAT    value of ours / value of the A2A SDK
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.harness import (
    HEALTHY,
    ROOT,
    Options,
    Result,
    Row,
    Server,
    bench,
    clean_environment,
    ratio,
    resident_mb,
    say,
    serving,
    uvicorn,
)

__all__ = ["LIMITS", "run"]

LIMITS = {"install": 100.0, "packages": 60.0, "start": 2.0, "memory": 120.0, "import": 0.3}
UNITS = {"install": "MB", "packages": "packages", "start": "s", "memory": "MB", "import": "s", "help": "s"}
INSTALL_SECONDS = 900
RUN_SECONDS = 60
STARTS = 3
IMPORTS = 5
SETTLE_SECONDS = 0.5
"""After the first answer, until memory is read: what a start leaves to do is done by then."""
TOOLS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence", "wheel")

Figures = dict[str, float | None]


@bench("footprint", "size, packages, start, memory and import time, beside the official SDKs (takes minutes)")
def run(_: Options) -> Result:
    """Build the three environments and measure each; the options of load do not apply."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures = {
            "ours": _ours(Path(folder, "ours")),
            "mcp_sdk": _mcp_sdk(Path(folder, "mcp_sdk")),
            "a2a_sdk": _a2a_sdk(Path(folder, "a2a_sdk")),
        }
    rows = [_row(whose, what, value) for whose, those in figures.items() for what, value in those.items()]
    return Result(rows, _ratios(figures))


def _ours(folder: Path) -> Figures:
    python = _installed(folder, "-r", str(ROOT / "requirements" / "run.txt"))
    _pip(python, "--no-deps", str(ROOT))

    def command(port: int, data: Path) -> list[str]:
        return [str(python), "-m", "agent3", "serve", "--port", str(port), "--db", f"sqlite:///{data / 'bench.db'}"]

    figures = _weight(folder) | _serves(command)
    help_seconds = _median_seconds([str(python.with_name("agent3")), "--help"])
    return figures | {"import": _import_seconds(python, "agent3"), "help": help_seconds}


def _mcp_sdk(folder: Path) -> Figures:
    python = _installed(folder, "mcp")
    served = _serves(lambda port, _: uvicorn("sdk", port, python=str(python)))
    return _weight(folder) | served | {"import": _import_seconds(python, "mcp")}


def _a2a_sdk(folder: Path) -> Figures:
    python = _installed(folder, "a2a-sdk[http-server]")
    return _weight(folder) | {"import": _import_seconds(python, "a2a.types")}


def _row(whose: str, what: str, value: float | None) -> Row:
    limit = LIMITS.get(what) if whose == "ours" else None
    judged = {} if limit is None else {"limit": limit, "met": value is not None and value <= limit}
    errors = 1 if value is None else 0
    return Row(f"{whose}_{what}", errors=errors, extra={"value": value, "unit": UNITS[what], **judged})


def _ratios(figures: dict[str, Figures]) -> dict[str, float | None]:
    ours = figures["ours"]
    return {
        f"ours_vs_{whose}_{what}": ratio(ours[what], value)
        for whose, those in figures.items()
        if whose != "ours"
        for what, value in those.items()
    }


# --- installation ---------------------------------------------------------------------------------------------------


def _installed(folder: Path, *wanted: str) -> Path:
    say(f"{folder.name}: installing")
    _finish([sys.executable, "-m", "venv", str(folder)], INSTALL_SECONDS)
    python = folder / "bin" / "python"
    _pip(python, *wanted)
    return python


def _pip(python: Path, *wanted: str) -> None:
    _finish([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], INSTALL_SECONDS)


def _weight(folder: Path) -> Figures:
    site = next(folder.glob("lib/python*/site-packages"))
    installed = [entry for entry in site.iterdir() if not entry.name.startswith(TOOLS)]
    size = sum(file.stat().st_size for entry in installed for file in _files(entry))
    packages = sum(entry.name.endswith(".dist-info") for entry in installed)
    return {"install": size / 1e6, "packages": float(packages)}


def _files(entry: Path) -> Iterator[Path]:
    files = entry.rglob("*") if entry.is_dir() else iter([entry])
    return (file for file in files if file.is_file() and file.suffix != ".pyc")


# --- running --------------------------------------------------------------------------------------------------------


def _serves(command: Callable[[int, Path], Sequence[str]]) -> Figures:
    seen: list[tuple[float, float | None]] = []
    try:
        for _ in range(STARTS):
            with serving(command, HEALTHY) as server:
                seen.append((server.start_seconds, _idle_memory(server)))
    except RuntimeError as error:
        say(str(error))
        return {"start": None, "memory": None}
    memory = [one for _, one in seen if one is not None]
    return {
        "start": statistics.median(start for start, _ in seen),
        "memory": statistics.median(memory) if memory else None,
    }


def _idle_memory(server: Server) -> float | None:
    time.sleep(SETTLE_SECONDS)
    return resident_mb(server.process.pid)


def _import_seconds(python: Path, module: str) -> float | None:
    bare = _median_seconds([str(python), "-c", "pass"])
    full = _median_seconds([str(python), "-c", f"import {module}"])
    return max(0.0, full - bare) if full is not None and bare is not None else None


def _median_seconds(command: Sequence[str]) -> float | None:
    laps = []
    for _ in range(IMPORTS):
        began = time.perf_counter()
        try:
            _finish(command, RUN_SECONDS)
        except RuntimeError as error:
            say(str(error))
            return None
        laps.append(time.perf_counter() - began)
    return statistics.median(laps)


def _finish(command: Sequence[str], seconds: float) -> None:
    try:
        done = subprocess.run(list(command), env=clean_environment(), capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{Path(command[0]).name} {' '.join(command[1:3])} did not end well: {error}") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-500:]
        raise RuntimeError(f"{Path(command[0]).name} {' '.join(command[1:3])} ended with {done.returncode}: {told}")
