"""What browsers leave on the disk: their profiles, also those of a process that was killed before it could clean up.

Playwright makes a profile for each browser and removes it when the browser ends in order. A note in it says that it is
ours. It is locked by our process for as long as that lives, so that whoever comes later can tell a profile that is in
use from one that was left, also from inside another container with the same folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent3.observe import logs

__all__ = ["ARTIFACTS", "Leavings", "removed", "sweep_left"]

logger = logs.get("nlweb")

_PROC = Path("/proc")
_PROFILES = "playwright_chromiumdev_profile-"
ARTIFACTS = "agent3-browser-"
"""How the driver's own folders begin."""
_NOTE = "agent3.lock"
_SWEEPS = 100


class Leavings:
    """What one browser leaves: its profile, and the driver's own folder, which is ours to choose."""

    def __init__(self, artifacts: Path):
        self.artifacts = artifacts
        self._before = _profiles()
        self._profiles: set[Path] | None = None
        self._notes: list[Callable[[], None]] = []

    def found(self, profiles: list[Path]) -> None:
        """The browser told its profile."""
        self._profiles = set(profiles)
        for one in profiles:
            with suppress(OSError):  # it went away in its first moment
                self._notes.append(_noted(one, self.artifacts))

    async def sweep(self) -> None:
        """Remove it, once the browser is dead: killed with its driver, it lives and writes for a moment yet."""
        ours = self._new() if self._profiles is None else self._profiles
        unused = _unused(ours)
        for _ in range(_SWEEPS):
            if unused == ours:
                break
            await asyncio.sleep(0.05)
            unused = _unused(ours)
        for folder in (self.artifacts, *(unused if self._profiles is None else ours)):
            for _ in range(_SWEEPS):
                if removed(folder):
                    break
                await asyncio.sleep(0.05)
        while self._notes:
            self._notes.pop()()

    def _new(self) -> set[Path]:
        """What may be ours of a browser that did not tell; nothing where it cannot be seen whether it is in use."""
        return _profiles() - self._before if _PROC.is_dir() else set()


def sweep_left() -> int:
    """Remove what browsers of ours have left whose process is no more, and say how many folders that were."""
    swept = 0
    for profile in _unused({one for one in _profiles() if (one / _NOTE).exists()}):
        with suppress(OSError, UnicodeError), _locked(profile / _NOTE) as text:
            if text is not None:
                swept += sum(one.exists() and removed(one) for one in (_artifacts(text), profile) if one is not None)
    if swept:
        logger.info("%d folders of browsers whose process was killed are removed", swept)
    return swept


def removed(folder: Path) -> bool:
    """Remove a folder; whether it is gone."""
    # Here and not in a thread: at the exit of the interpreter there are no more threads to be had.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _noted(profile: Path, artifacts: Path) -> Callable[[], None]:
    """Write into a profile that it is ours, and give what ends that. Where nothing can be locked there is no note."""
    if not hasattr(os, "fork"):
        return lambda: None
    import fcntl

    note = os.open(profile / _NOTE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(note, fcntl.LOCK_EX)
    os.write(note, str(artifacts).encode())
    return lambda: os.close(note)


@contextmanager
def _locked(note: Path) -> Iterator[str | None]:
    """What a note says that nobody holds any more, and is ours inside the block; None for one that somebody holds."""
    import fcntl

    with note.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file.read().decode() if os.fstat(file.fileno()).st_uid == os.geteuid() else None


def _artifacts(text: str) -> Path | None:
    """The folder that a note names; in a folder where all may write it can name nothing else."""
    found = Path(text)
    return (
        found
        if found.parent == Path(tempfile.gettempdir()) and found.name.startswith(ARTIFACTS) and not found.is_symlink()
        else None
    )


def _profiles() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"{_PROFILES}*"))


def _unused(folders: set[Path]) -> set[Path]:
    """Those that no process names in its command; all of them where that cannot be seen."""
    commands = []
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            commands.append((process / "cmdline").read_bytes())
    return {one for one in folders if not any(one.name.encode() in command for command in commands)}
