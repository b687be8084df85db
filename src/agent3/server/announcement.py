"""The note that a running gateway leaves, so that commands on the same machine find it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent3.settings import Settings, data_folder

__all__ = ["FOLDER", "announce", "database_of"]

FOLDER = "gateways"


def announce(url: str, settings: Settings, home: Path | None = None) -> Path:
    """Leave word where this gateway runs, for commands to find it. Each has a note of its own, by its process."""
    file = (home or data_folder()) / FOLDER / f"{os.getpid()}.json"
    for folder in (file.parent.parent, file.parent):  # with parents=True the outer one would be open to all
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps({"url": url, "pid": os.getpid(), "database": database_of(settings)}))
    return file


def database_of(settings: Settings) -> str:
    """Which database it is, without the account that opens it."""
    url = settings.storage.url or f"sqlite:///{data_folder() / 'agent3.db'}"
    if url.startswith("sqlite:///") and not url.endswith(("///", ":memory:")):
        return str(Path(url.removeprefix("sqlite:///")).expanduser().absolute())
    return url.partition("://")[2].rpartition("@")[2].partition("?")[0]
