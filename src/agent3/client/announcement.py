"""The note of a running gateway in the data folder, by which commands and programs on the same machine find it."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

from agent3.client.plain_http import check_address, request
from agent3.errors import Agent3Error, SetupError
from agent3.observe.logs import get as logger
from agent3.settings import Settings, data_folder, load

__all__ = ["announce", "find_gateway", "find_running", "withdraw"]

log = logger("client")

_FOLDER = "gateways"


def announce(url: str, settings: Settings, home: Path | None = None) -> Path:
    """Write the note of this gateway. Each process has its own file."""
    file = (home or data_folder()) / _FOLDER / f"{os.getpid()}.json"
    for folder in (file.parent.parent, file.parent):  # with parents=True the outer one would be open to all
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps({"url": url, "pid": os.getpid(), "database": _database_of(settings)}))
    return file


def withdraw(note: Path) -> None:
    """Remove the note of this gateway, unless another process has written it anew."""
    try:
        if json.loads(note.read_text())["pid"] == os.getpid():
            note.unlink()
    except (OSError, ValueError, KeyError):
        log.debug("the announcement of this gateway is already gone")


def find_gateway(url: str | None = None) -> str:
    """The address that was given, else that of ``AGENT3_SERVER``, else of a gateway that runs on this machine.

    SetupError where there is none.
    """
    if address := url or os.environ.get("AGENT3_SERVER"):
        return check_address(address)
    if running := find_running(load()):
        return running
    raise SetupError(
        "No gateway is running on this machine. Start one with agent3 serve, or name one with Client(url) "
        "or AGENT3_SERVER."
    )


def find_running(settings: Settings, folder: Path | None = None, *, own: bool = False) -> str | None:
    """The address of a gateway that runs on this machine.

    Of several, one on the database of these settings comes first, then the one that was started last; with ``own``
    only one on that database counts. The note of a gateway whose process is gone is removed.
    """
    wanted = _database_of(settings)
    candidates = []
    for file in ((folder or data_folder()) / _FOLDER).glob("*.json"):
        try:
            note, written = json.loads(file.read_text()), file.stat().st_mtime
        except (OSError, ValueError):  # being written, or removed by its gateway
            continue
        if isinstance(note, dict) and not (own and note.get("database") != wanted):
            candidates.append((note.get("database") != wanted, -written, file, note))
    for *_, file, note in sorted(candidates, key=lambda candidate: candidate[:2]):
        try:
            os.kill(int(note["pid"]), 0)
            request(check_address(str(note["url"])), "GET", "/healthz", timeout=1.0)
        except ProcessLookupError:
            file.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError, Agent3Error) as error:
            # One whose certificate is not trusted here does run: whoever calls it is told.
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                return str(note["url"])
        else:
            return str(note["url"])
    return None


def _database_of(settings: Settings) -> str:
    """The name of the database of these settings, without the account that opens it."""
    url = settings.storage.url or f"sqlite:///{data_folder() / 'agent3.db'}"
    if url.startswith("sqlite:///") and not url.endswith(("///", ":memory:")):
        return str(Path(url.removeprefix("sqlite:///")).expanduser().absolute())
    return url.partition("://")[2].rpartition("@")[2].partition("?")[0]
