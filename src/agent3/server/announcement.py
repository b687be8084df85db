"""The note of a running gateway in the data folder, by which commands on the same machine find it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent3.observe.logs import get as logger
from agent3.settings import Settings, data_folder

__all__ = ["FOLDER", "announce", "database_of", "withdraw"]

log = logger("server")

FOLDER = "gateways"


def announce(url: str, settings: Settings, home: Path | None = None) -> Path:
    """Write the note of this gateway. Each process has its own file."""
    file = (home or data_folder()) / FOLDER / f"{os.getpid()}.json"
    for folder in (file.parent.parent, file.parent):  # with parents=True the outer one would be open to all
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps({"url": url, "pid": os.getpid(), "database": database_of(settings)}))
    return file


def withdraw(note: Path) -> None:
    """Remove the note of this gateway, unless another process has written it anew."""
    try:
        if json.loads(note.read_text())["pid"] == os.getpid():
            note.unlink()
    except (OSError, ValueError, KeyError):
        log.debug("the note of this gateway is gone already")


def database_of(settings: Settings) -> str:
    """The name of the database of these settings, without the account that opens it."""
    url = settings.storage.url or f"sqlite:///{data_folder() / 'agent3.db'}"
    if url.startswith("sqlite:///") and not url.endswith(("///", ":memory:")):
        return str(Path(url.removeprefix("sqlite:///")).expanduser().absolute())
    return url.partition("://")[2].rpartition("@")[2].partition("?")[0]
