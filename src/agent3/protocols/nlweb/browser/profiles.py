"""Folders that browsers leave on the disk, also those of a process that was killed before it could clean up.

Playwright makes a profile for each browser and removes it when the browser closes normally. A note in the profile
marks it as ours and is locked for as long as our process lives. A later process can therefore tell a profile in use
from an abandoned one, even from inside another container that shares the folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from agent3.observe.logs import get as logger

if sys.platform != "win32":
    import fcntl

__all__ = ["ARTIFACTS", "BrowserFolders", "remove_abandoned", "remove_folder"]

log = logger("nlweb")

_PROC = Path("/proc")
_HAS_PROC = _PROC.is_dir()
_PROFILES = "playwright_chromiumdev_profile-"
ARTIFACTS = "agent3-browser-"
"""Prefix of the folders that we give to the driver."""
_NOTE = "agent3.lock"
_ATTEMPTS = 100
_PAUSE = 0.05


class BrowserFolders:
    """The folders of one browser: its profile, chosen by Playwright, and the driver's artifacts, chosen by us."""

    def __init__(self, artifacts: Path):
        self.artifacts = artifacts
        self._before = _list_profiles()
        self._profiles: set[Path] | None = None
        self._notes: list[int] = []

    def claim(self, profiles: list[Path]) -> None:
        """Mark the profiles that the browser reported as ours, and hold the locks until ``remove``."""
        self._profiles = set(profiles)
        if sys.platform == "win32":  # no flock: an abandoned profile is not recognised there
            return
        for profile in profiles:
            with suppress(OSError):  # the browser died at once, and its profile with it
                note = os.open(profile / _NOTE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                fcntl.flock(note, fcntl.LOCK_EX)
                os.write(note, str(self.artifacts).encode())
                self._notes.append(note)

    async def remove(self) -> None:
        """Remove the folders once the browser is dead: one that lost its driver still writes for a moment."""
        if self._profiles is not None:
            ours = self._profiles
        else:
            # The browser never reported its profile. Those that appeared since may be ours, and are removed if unused;
            # where use cannot be seen, none is touched.
            ours = _list_profiles() - self._before if _HAS_PROC else set()
        unused = _keep_unused(ours)
        for _ in range(_ATTEMPTS):
            if unused == ours:
                break
            await asyncio.sleep(_PAUSE)
            unused = _keep_unused(ours)
        for folder in (self.artifacts, *(unused if self._profiles is None else ours)):
            for _ in range(_ATTEMPTS):
                if remove_folder(folder):
                    break
                await asyncio.sleep(_PAUSE)
        while self._notes:
            os.close(self._notes.pop())


def remove_abandoned() -> int:
    """Remove the folders of our browsers whose process is gone; the number of folders removed."""
    if sys.platform == "win32":
        return 0
    removed = 0
    for profile in _keep_unused({path for path in _list_profiles() if (path / _NOTE).exists()}):
        with suppress(OSError, UnicodeError), (profile / _NOTE).open("rb") as note:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
            if os.fstat(note.fileno()).st_uid != os.geteuid():
                continue
            folders = [profile]
            artifacts = Path(note.read().decode())
            # Anybody may write into the temporary folder: a note must not be able to name any other folder.
            if (
                artifacts.parent == Path(tempfile.gettempdir())
                and artifacts.name.startswith(ARTIFACTS)
                and not artifacts.is_symlink()
            ):
                folders.insert(0, artifacts)  # first: without the profile nobody would know of it
            removed += sum(folder.exists() and remove_folder(folder) for folder in folders)
    if removed:
        log.info("removed %d folders of browsers whose process was killed", removed)
    return removed


def remove_folder(folder: Path) -> bool:
    """Remove a folder; whether it is gone."""
    # Not in a thread: while the interpreter exits, no new thread can be started.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _list_profiles() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"{_PROFILES}*"))


def _keep_unused(folders: set[Path]) -> set[Path]:
    """The folders that no process names on its command line; all of them where that cannot be seen."""
    commands = []
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            commands.append((process / "cmdline").read_bytes())
    return {folder for folder in folders if not any(folder.name.encode() in command for command in commands)}
