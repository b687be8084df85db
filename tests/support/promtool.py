"""Prometheus' promtool: the one on PATH, else that of Debian's package prometheus, fetched on demand.

Only the program is taken out of the package: nothing is installed, and no server starts. As for the browser,
``AGENT3_NO_APT=1`` forbids it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["promtool"]

_SECONDS = 300


def promtool() -> str:
    """Its path. Skips the test, with the reason, where it cannot or must not be fetched; fails where that fails."""
    if found := shutil.which("promtool"):
        return found
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent3"
    kept = folder / "promtool"
    if kept.is_file():
        return str(kept)
    if os.environ.get("AGENT3_NO_APT"):
        pytest.skip("promtool is not on PATH, and AGENT3_NO_APT forbids to fetch Debian's package prometheus")
    if os.geteuid() or not Path("/etc/debian_version").is_file() or not shutil.which("apt-get"):
        pytest.skip("promtool is not on PATH, and only root on Debian can fetch the package prometheus with apt-get")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "promtool.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers want it at once
        if not kept.is_file():
            _fetch(kept)
    return str(kept)


def _fetch(kept: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        download = ["apt-get", "-q", "download", "prometheus"]
        if _run(download, place).returncode:  # the lists may be missing or old
            _run(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", "update"], place)
            again = _run(download, place)
            assert not again.returncode, (
                f"Debian's package prometheus, for promtool, could not be fetched: {again.stdout}\n"
                "Install it, or set AGENT3_NO_APT=1 to skip the tests of the alerts."
            )
        (package,) = Path(place).glob("prometheus_*.deb")
        unpacked = _run(["dpkg-deb", "-x", str(package), place], place)
        assert not unpacked.returncode, unpacked.stdout
        fresh = kept.with_suffix(f".{os.getpid()}")
        shutil.copy(Path(place) / "usr" / "bin" / "promtool", fresh)
        fresh.replace(kept)


def _run(command: list[str], place: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, check=False
    )
